//! Aggregates over frames that leave rows behind.
//!
//! DataFusion takes such rows back out of an aggregate. It fails as it runs where the aggregate
//! cannot do that: `bool_and`, `bit_or` and others say so only when they are asked for a state. Of
//! floating-point numbers it gives what is left when large ones have been added and taken away,
//! which may be nothing of the small ones; an infinity stays for ever. And it lets sums of
//! `DISTINCT` wrap. Here rows are taken back only where that is exact:
//!
//! - of an aggregate that can, of no floating-point numbers: as DataFusion does;
//! - of such an aggregate of `DISTINCT` values: when the last row with a value leaves
//!   ([`distinct`]);
//! - of others whose partial states are a few values: never; partial states of the rows of the
//!   frame are merged, a few for each row ([`stacks`]);
//! - of the rest, as `array_agg(DISTINCT …)` and `string_agg`, the aggregate is made anew of the
//!   rows of the frame for each row, which costs what the frame has ([`whole`]).

mod distinct;
mod metered;
mod stacks;
mod whole;

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::WindowFunctionParams;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, LogicalPlan, ReversedUDAF, SetMonotonicity,
    Signature, WindowFunctionDefinition,
};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::scalar::ScalarValue;

/// The plan, whose aggregates over frames keep rows where they have to, and whose long results
/// have a bound.
pub(super) fn kept(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let kept = plan.transform_up_with_subqueries(|node| match node {
        // The columns of the node are named as before: the functions are.
        LogicalPlan::Window(mut window) => {
            let calls = std::mem::take(&mut window.window_expr).into_iter();
            window.window_expr = calls.map(call).collect::<DfResult<_>>()?;
            Ok(Transformed::yes(LogicalPlan::Window(window)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(kept.data)
}

fn call(call: Expr) -> DfResult<Expr> {
    let wrapped = call.transform_up(|node| match node {
        Expr::WindowFunction(mut call) => {
            if let WindowFunctionDefinition::AggregateUDF(inner) = call.fun {
                call.fun = WindowFunctionDefinition::AggregateUDF(FrameAggregate::over(inner));
            }
            Ok(Transformed::yes(Expr::WindowFunction(call)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(wrapped.data)
}

/// An aggregate over frames, which can leave rows behind, whether or not it can take them back.
#[derive(Debug, PartialEq, Eq, Hash)]
struct FrameAggregate {
    inner: Arc<AggregateUDF>,
}

impl FrameAggregate {
    fn over(inner: Arc<AggregateUDF>) -> Arc<AggregateUDF> {
        Arc::new(AggregateUDF::new_from_impl(Self { inner }))
    }
}

impl AggregateUDFImpl for FrameAggregate {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        self.inner.return_type(types)
    }

    fn return_field(&self, fields: &[FieldRef]) -> DfResult<FieldRef> {
        self.inner.return_field(fields)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> DfResult<String> {
        self.inner.window_function_schema_name(params)
    }

    fn window_function_display_name(&self, params: &WindowFunctionParams) -> DfResult<String> {
        self.inner.window_function_display_name(params)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        let of = args.return_field.data_type().clone();
        Ok(metered::metered(self.inner.accumulator(args)?, self.name(), &of))
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn Accumulator>> {
        let of = args.return_field.data_type().clone();
        let made = Made { by: self.inner.clone(), asked: Asked::of(&args) };
        Ok(metered::metered(made.sliding()?, self.name(), &of))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn default_value(&self, of: &DataType) -> DfResult<ScalarValue> {
        self.inner.default_value(of)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.inner.reverse_udf() {
            ReversedUDAF::Reversed(other) => ReversedUDAF::Reversed(Self::over(other)),
            same => same,
        }
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn set_monotonicity(&self, of: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(of)
    }
}

/// The arguments of an accumulator, to make another.
#[derive(Debug)]
struct Asked {
    return_field: FieldRef,
    schema: Schema,
    ignore_nulls: bool,
    order_bys: Vec<PhysicalSortExpr>,
    is_reversed: bool,
    name: String,
    is_distinct: bool,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
}

impl Asked {
    fn of(args: &AccumulatorArgs<'_>) -> Self {
        Self {
            return_field: args.return_field.clone(),
            schema: args.schema.clone(),
            ignore_nulls: args.ignore_nulls,
            order_bys: args.order_bys.to_vec(),
            is_reversed: args.is_reversed,
            name: args.name.to_owned(),
            is_distinct: args.is_distinct,
            exprs: args.exprs.to_vec(),
            expr_fields: args.expr_fields.to_vec(),
        }
    }

    fn args(&self) -> AccumulatorArgs<'_> {
        AccumulatorArgs {
            return_field: self.return_field.clone(),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &self.order_bys,
            is_reversed: self.is_reversed,
            name: &self.name,
            is_distinct: self.is_distinct,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        }
    }
}

/// A factory of accumulators of one aggregate call.
#[derive(Debug)]
struct Made {
    by: Arc<AggregateUDF>,
    asked: Asked,
}

/// Aggregates that give back values as they were, or count them.
const NOT_COMPUTED: [&str; 8] =
    ["array_agg", "count", "first_value", "last_value", "max", "median", "min", "percentile_cont"];

/// Aggregates whose partial state has everything that they are made of, though it is one text.
const GATHERED: [&str; 1] = ["string_agg"];

impl Made {
    fn accumulator(&self) -> DfResult<Box<dyn Accumulator>> {
        self.by.accumulator(self.asked.args())
    }

    /// An accumulator that rows can leave.
    fn sliding(self) -> DfResult<Box<dyn Accumulator>> {
        let is_distinct = self.asked.is_distinct;
        if self.is_exact_backwards() {
            let mut plain = self.asked.args();
            plain.is_distinct = false;
            if let Ok(sliding) = self.by.create_sliding_accumulator(plain)
                && sliding.supports_retract_batch()
            {
                return Ok(if is_distinct {
                    Box::new(distinct::Distinct::over(sliding))
                } else {
                    sliding
                });
            }
        }
        if self.has_small_states()? {
            Ok(Box::new(stacks::Stacks::of(self)?))
        } else {
            Ok(Box::new(whole::Whole::of(self)))
        }
    }

    /// Whether what is taken back leaves what was there before, to the last digit.
    fn is_exact_backwards(&self) -> bool {
        let floating = self.asked.expr_fields.iter().any(|field| field.data_type().is_floating());
        !floating || NOT_COMPUTED.contains(&self.by.name())
    }

    /// Whether a partial state is as large for many rows as for one.
    fn has_small_states(&self) -> DfResult<bool> {
        let asked = &self.asked;
        if GATHERED.contains(&self.by.name()) || !asked.order_bys.is_empty() {
            return Ok(false);
        }
        let states = self.by.state_fields(StateFieldsArgs {
            name: &asked.name,
            input_fields: &asked.expr_fields,
            return_field: asked.return_field.clone(),
            ordering_fields: &[],
            is_distinct: asked.is_distinct,
        })?;
        let small = |of: &DataType| of.is_primitive() || of.is_string() || *of == DataType::Boolean;
        Ok(states.iter().all(|field| small(field.data_type())))
    }
}

/// Frames are of one partition: nobody merges what is made of them.
fn merges() -> DfResult<()> {
    datafusion::common::internal_err!("the rows of a frame are of one partition")
}
