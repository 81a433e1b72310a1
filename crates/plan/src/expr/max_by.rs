//! `max_by(x, y)` and `min_by(x, y)`: the value of `x` in the row in which `y` is greatest or
//! least.
//!
//! DataFusion has no such function, but `last_value(x ORDER BY y)` is one, and merges: they are
//! written so when a query is planned. An ORDER BY within a function for which the order of rows is
//! all one is left out there too: DataFusion's `count(x ORDER BY y)` fails.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result as DfResult, exec_err, plan_err};
use datafusion::functions_aggregate::first_last::{first_value_udaf, last_value_udaf};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawWindowExpr,
};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, Signature, Volatility,
    WindowFunctionDefinition,
};

/// `max_by` and `min_by`, by their names; nothing computes them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ValueBy {
    name: &'static str,
    aliases: Vec<String>,
    signature: Signature,
}

/// The functions.
pub(crate) fn functions() -> impl Iterator<Item = AggregateUDF> {
    let names = [("max_by", ["arg_max", "argmax"]), ("min_by", ["arg_min", "argmin"])];
    names.into_iter().map(|(name, aliases)| {
        AggregateUDF::from(ValueBy {
            name,
            aliases: aliases.map(String::from).into(),
            signature: Signature::any(2, Volatility::Immutable),
        })
    })
}

impl AggregateUDFImpl for ValueBy {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn accumulator(&self, _: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        exec_err!("{} is planned as another function", self.name)
    }
}

/// The functions whose result depends on the order of rows.
const ORDERED: [&str; 5] = ["array_agg", "first_value", "last_value", "nth_value", "string_agg"];

/// Writes functions of ordered rows as what DataFusion has.
#[derive(Debug)]
pub(crate) struct ByOrder;

impl ExprPlanner for ByOrder {
    fn plan_aggregate(&self, raw: RawAggregateExpr) -> DfResult<PlannerResult<RawAggregateExpr>> {
        let function = match raw.func.name() {
            "max_by" => last_value_udaf(),
            "min_by" => first_value_udaf(),
            name => {
                let ordered = ORDERED.contains(&name) || raw.func.supports_within_group_clause();
                let order_by = if ordered { raw.order_by } else { vec![] };
                return Ok(PlannerResult::Original(RawAggregateExpr { order_by, ..raw }));
            }
        };
        let RawAggregateExpr { func, args, filter, order_by, .. } = raw;
        let name = func.name();
        let Ok([value, by]) = <[Expr; 2]>::try_from(args) else {
            return plan_err!("{name} takes a value and what rows are compared by");
        };
        if !order_by.is_empty() {
            return plan_err!("{name} has no ORDER BY: its second argument orders the rows");
        }
        let text = format!("{name}({value}, {by})");
        let known = by.clone().is_not_null();
        let kept = match filter {
            Some(filter) => filter.and(known),
            None => known,
        };
        let order = vec![by.sort(true, false)];
        let call = AggregateFunction::new_udf(
            function,
            vec![value],
            false,
            Some(kept.into()),
            order,
            None,
        );
        Ok(PlannerResult::Planned(Expr::AggregateFunction(call).alias(text)))
    }

    fn plan_window(&self, raw: RawWindowExpr) -> DfResult<PlannerResult<RawWindowExpr>> {
        match &raw.func_def {
            WindowFunctionDefinition::AggregateUDF(func)
                if matches!(func.name(), "max_by" | "min_by") =>
            {
                plan_err!("{} has no OVER: use first_value(x) OVER (… ORDER BY y)", func.name())
            }
            _ => Ok(PlannerResult::Original(raw)),
        }
    }
}
