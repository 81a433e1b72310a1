//! `LEAD(v, n) IGNORE NULLS`.
//!
//! DataFusion's function gives wrong rows where it is computed row by row, because it does not
//! count the NULLs that come into sight; over a whole partition it is right. This one is the same
//! function and, with `IGNORE NULLS`, always computed over a whole partition.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::functions_window::lead_lag::lead_udwf;
use datafusion::logical_expr::function::{
    ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs,
};
use datafusion::logical_expr::{
    Documentation, LimitEffect, PartitionEvaluator, ReversedUDWF, Signature, WindowUDF,
    WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;

/// The function.
pub(crate) fn function() -> WindowUDF {
    WindowUDF::from(LeadFunction { datafusion: lead_udwf() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LeadFunction {
    datafusion: Arc<WindowUDF>,
}

impl WindowUDFImpl for LeadFunction {
    fn name(&self) -> &str {
        self.datafusion.name()
    }

    fn signature(&self) -> &Signature {
        self.datafusion.signature()
    }

    fn expressions(&self, args: ExpressionArgs<'_>) -> Vec<Arc<dyn PhysicalExpr>> {
        self.datafusion.expressions(args)
    }

    fn partition_evaluator(
        &self,
        args: PartitionEvaluatorArgs<'_>,
    ) -> Result<Box<dyn PartitionEvaluator>> {
        let ignores = args.ignore_nulls();
        let datafusion = self.datafusion.partition_evaluator_factory(args)?;
        Ok(if ignores { Box::new(Whole(datafusion)) } else { datafusion })
    }

    fn field(&self, args: WindowUDFFieldArgs<'_>) -> Result<FieldRef> {
        self.datafusion.field(args)
    }

    fn coerce_types(&self, args: &[DataType]) -> Result<Vec<DataType>> {
        self.datafusion.coerce_types(args)
    }

    fn reverse_expr(&self) -> ReversedUDWF {
        self.datafusion.reverse_expr()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.datafusion.documentation()
    }

    fn limit_effect(&self, args: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        self.datafusion.inner().limit_effect(args)
    }
}

/// Computes whole partitions.
#[derive(Debug)]
struct Whole(Box<dyn PartitionEvaluator>);

impl PartitionEvaluator for Whole {
    fn get_range(&self, row: usize, rows: usize) -> Result<Range<usize>> {
        self.0.get_range(row, rows)
    }

    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        self.0.evaluate_all(values, rows)
    }
}
