//! Aggregates over frames that leave rows behind.
//!
//! DataFusion takes such rows back out of an aggregate, and fails as it runs where the aggregate
//! cannot do that: `bool_and`, `bit_or` and others say so only when they are asked for a state. For
//! those, here, the rows of the frame are kept, and the aggregate is made of them anew for each
//! row: a row costs what its frame has.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, LogicalPlan, ReversedUDAF, SetMonotonicity,
    Signature, WindowFunctionDefinition,
};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::scalar::ScalarValue;

/// The plan, whose aggregates over such frames keep rows where they have to.
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
        Expr::WindowFunction(mut call) if leaves_rows(&call) => {
            if let WindowFunctionDefinition::AggregateUDF(inner) = call.fun {
                call.fun = WindowFunctionDefinition::AggregateUDF(Keeping::over(inner));
            }
            Ok(Transformed::yes(Expr::WindowFunction(call)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(wrapped.data)
}

fn leaves_rows(call: &WindowFunction) -> bool {
    !call.params.window_frame.start_bound.is_unbounded()
}

/// An aggregate that can leave rows behind, whether or not it can take them back.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Keeping {
    inner: Arc<AggregateUDF>,
}

impl Keeping {
    fn over(inner: Arc<AggregateUDF>) -> Arc<AggregateUDF> {
        Arc::new(AggregateUDF::new_from_impl(Self { inner }))
    }
}

impl AggregateUDFImpl for Keeping {
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
        self.inner.accumulator(args)
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn Accumulator>> {
        let asked = Asked::of(&args);
        if let Ok(sliding) = self.inner.create_sliding_accumulator(args)
            && sliding.supports_retract_batch()
        {
            return Ok(sliding);
        }
        let rows = VecDeque::new();
        Ok(Box::new(Frame { of: self.inner.clone(), asked, rows }))
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

/// What an accumulator is made of, to make another.
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

/// The rows of a frame, oldest first, as they came.
#[derive(Debug)]
struct Frame {
    of: Arc<AggregateUDF>,
    asked: Asked,
    rows: VecDeque<Vec<ArrayRef>>,
}

impl Frame {
    fn whole(&self) -> DfResult<Box<dyn Accumulator>> {
        let mut whole = self.of.accumulator(self.asked.args())?;
        for rows in &self.rows {
            whole.update_batch(rows)?;
        }
        Ok(whole)
    }
}

impl Accumulator for Frame {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        if values.first().is_some_and(|column| !column.is_empty()) {
            self.rows.push_back(values.to_vec());
        }
        Ok(())
    }

    /// Those that a frame leaves are the oldest.
    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let mut gone = values.first().map_or(0, |column| column.len());
        while gone > 0
            && let Some(oldest) = self.rows.front_mut()
        {
            let rows = oldest[0].len();
            if rows <= gone {
                gone -= rows;
                self.rows.pop_front();
                continue;
            }
            oldest.iter_mut().for_each(|column| *column = column.slice(gone, rows - gone));
            gone = 0;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        self.whole()?.evaluate()
    }

    fn size(&self) -> usize {
        let rows = self.rows.iter().flatten();
        size_of_val(self) + rows.map(size_of_val).sum::<usize>()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        self.whole()?.state()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> DfResult<()> {
        datafusion::common::internal_err!("the rows of a frame are of one partition")
    }
}
