//! Intervals are compared by their length.
//!
//! DataFusion compares months first, then days, then the rest, so that 21 days are less than a
//! month, as they should be, but 48 hours less than a day. Here a month has 30 days and a day 24
//! hours, as in DuckDB and PostgreSQL. What would put equal intervals of different parts into
//! different groups is refused.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, IntervalMonthDayNanoType, IntervalUnit};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Between, BinaryExpr, Case, ColumnarValue, Distinct, Expr, ExprSchemable, LogicalPlan, Operator,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::refused;
use crate::expr::columnar::over_arrays;

const NAME: &str = "__length";

/// Compares the lengths of intervals.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let length = Arc::new(ScalarUDF::from(Length::new()));
    let rewritten = plan.transform_up_with_subqueries(|node| {
        let mut scope = DFSchema::empty();
        node.inputs().iter().for_each(|input| scope.merge(input.schema()));
        if node.inputs().is_empty() {
            scope = node.schema().as_ref().clone();
        }
        check(&node, &scope)?;
        let names = NamePreserver::new(&node);
        // By what rows are put in order, and the two sides of keys that must be equal.
        let keys = matches!(node, LogicalPlan::Sort(_) | LogicalPlan::Join(_));
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let found = expr.transform_up(|part| Ok(in_lengths(part, &scope, &length)))?;
            if keys && is_interval(&found.data, &scope) {
                return Ok(Transformed::yes(length.call(vec![found.data])));
            }
            Ok(found.update_data(|expr| name.restore(expr)))
        })
    });
    rewritten.map(|rewritten| rewritten.data)
}

fn is_interval(expr: &Expr, scope: &DFSchema) -> bool {
    matches!(expr.get_type(scope), Ok(DataType::Interval(_)))
}

/// Whether an operator compares two values.
pub(super) fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Refuses what would compare intervals by their parts.
fn check(node: &LogicalPlan, scope: &DFSchema) -> Result<()> {
    let grouped = match node {
        LogicalPlan::Aggregate(node) => {
            let keys = node.group_expr.iter().any(|key| is_interval(key, scope));
            let args = |expr: &Expr| match expr.clone().unalias() {
                Expr::AggregateFunction(call) => {
                    let ordered = matches!(call.func.name(), "min" | "max") || call.params.distinct;
                    ordered && call.params.args.iter().any(|arg| is_interval(arg, scope))
                }
                _ => false,
            };
            keys || node.aggr_expr.iter().any(args)
        }
        LogicalPlan::Distinct(Distinct::All(input)) => {
            let of = |of: &DataType| matches!(of, DataType::Interval(_));
            input.schema().fields().iter().any(|field| of(field.data_type()))
        }
        LogicalPlan::Distinct(Distinct::On(distinct)) => {
            distinct.on_expr.iter().any(|key| is_interval(key, scope))
        }
        _ => {
            let by_parts = |part: &Expr| Ok(is_by_parts(part, scope));
            node.expressions().iter().any(|expr| expr.exists(by_parts).unwrap_or(true))
        }
    };
    if !grouped {
        return Ok(());
    }
    let message = "groups, DISTINCT, IN (SELECT …), min, max, greatest, least and nullif do not \
                   take an INTERVAL, whose equals may be written in several ways";
    let words = &["GROUP", "DISTINCT", "IN", "INTERVAL"];
    Err(refused(words, message, "take its length in seconds or days"))
}

/// Whether an expression compares intervals, and is not among those of [`in_lengths`].
fn is_by_parts(expr: &Expr, scope: &DFSchema) -> bool {
    let interval = |expr: &Expr| is_interval(expr, scope);
    match expr {
        Expr::InSubquery(asked) => interval(&asked.expr),
        Expr::ScalarFunction(call) => {
            let compares = ["greatest", "least", "nullif"].contains(&call.func.name());
            compares && call.args.iter().any(interval)
        }
        Expr::WindowFunction(call) => {
            let compares = ["min", "max"].contains(&call.fun.name()) || call.params.distinct;
            compares && call.params.args.iter().any(interval)
        }
        _ => false,
    }
}

/// A comparison of intervals as one of their lengths.
fn in_lengths(expr: Expr, scope: &DFSchema, length: &Arc<ScalarUDF>) -> Transformed<Expr> {
    let of = |expr: Box<Expr>| Box::new(length.call(vec![*expr]));
    let interval = |expr: &Expr| is_interval(expr, scope);
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if compares(op) && (interval(&left) || interval(&right)) =>
        {
            Transformed::yes(Expr::BinaryExpr(BinaryExpr::new(of(left), op, of(right))))
        }
        Expr::Between(Between { expr, negated, low, high }) if interval(&expr) => {
            let between = Between::new(of(expr), negated, of(low), of(high));
            Transformed::yes(Expr::Between(between))
        }
        Expr::InList(InList { expr, list, negated }) if interval(&expr) => {
            let list = list.into_iter().map(|item| length.call(vec![item])).collect();
            Transformed::yes(Expr::InList(InList::new(of(expr), list, negated)))
        }
        Expr::Case(Case { expr: Some(base), when_then_expr, else_expr }) if interval(&base) => {
            let when_then_expr =
                when_then_expr.into_iter().map(|(when, then)| (of(when), then)).collect();
            Transformed::yes(Expr::Case(Case { expr: Some(of(base)), when_then_expr, else_expr }))
        }
        Expr::WindowFunction(mut call) => {
            let params = &mut call.params;
            let orders = params.order_by.iter_mut().map(|order| &mut order.expr);
            let mut some = false;
            for key in params.partition_by.iter_mut().chain(orders).filter(|key| interval(key)) {
                *key = length.call(vec![std::mem::take(key)]);
                some = true;
            }
            let call = Expr::WindowFunction(call);
            if some { Transformed::yes(call) } else { Transformed::no(call) }
        }
        other => Transformed::no(other),
    }
}

/// `__length(interval)`: nanoseconds.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Length {
    signature: Signature,
}

impl Length {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

/// All intervals have less: 2³¹ months of 30 days are 5.6 × 10²⁴ ns.
const LENGTHS: DataType = DataType::Decimal128(38, 0);

impl ScalarUDFImpl for Length {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(LENGTHS)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        over_arrays(&args.args, |given| Ok(Arc::new(lengths(&given[0])?)))
    }
}

fn lengths(given: &ArrayRef) -> Result<Decimal128Array> {
    let whole = cast(given, &DataType::Interval(IntervalUnit::MonthDayNano))?;
    let whole = whole.as_primitive::<IntervalMonthDayNanoType>();
    let length = |row: usize| {
        let value = whole.value(row);
        let days = i128::from(value.months) * 30 + i128::from(value.days);
        days * 86_400_000_000_000 + i128::from(value.nanoseconds)
    };
    let lengths = (0..whole.len()).map(|row| whole.is_valid(row).then(|| length(row)));
    Ok(lengths.collect::<Decimal128Array>().with_data_type(LENGTHS))
}
