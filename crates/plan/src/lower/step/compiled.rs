//! Expressions of a step, compiled for rows that may protect each other from failing.
//!
//! `b <> 0 AND a / b > 1` must not fail on a row where `b` is zero. To compute `a / b` for the
//! other rows alone, they are copied together first, which costs several times as much as the
//! division. So an expression is computed for all rows of a batch, and only if that fails again
//! with its parts computed where they are asked for. An expression that has failed once is
//! computed so from then on: its data are of that kind.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Schema};
use dataflow::error::DataflowError;
use datafusion::common::DFSchema;
use datafusion::error::Result as DfResult;
use datafusion::execution::context::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{ColumnarValue, Expr};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};

use super::failed;
use crate::expr::checked;

/// An expression that can be computed.
pub(super) struct Compiled {
    for_all_rows: Arc<dyn PhysicalExpr>,
    /// The same with parts that may fail computed only for the rows that ask for them; `None` where
    /// it has no such parts.
    guarded: Option<Arc<dyn PhysicalExpr>>,
    /// Whether the first form has failed. It only saves work: no other memory depends on it.
    has_failed: AtomicBool,
}

impl Compiled {
    /// Compiles an expression.
    pub(super) fn expression(expr: &Expr, scope: &DFSchema) -> DfResult<Self> {
        Self::new(expr, checked::expression(expr.clone(), scope)?, scope)
    }

    /// Compiles a filter: NULL is as good as FALSE.
    pub(super) fn condition(filter: &Expr, scope: &DFSchema) -> DfResult<Self> {
        Self::new(filter, checked::condition(filter.clone(), scope)?, scope)
    }

    fn new(expr: &Expr, guarded: Expr, scope: &DFSchema) -> DfResult<Self> {
        let for_all_rows = checked::for_all_rows(expr.clone(), scope)?;
        let guarded = (guarded != for_all_rows).then(|| compiled(&guarded, scope)).transpose()?;
        let for_all_rows = compiled(&for_all_rows, scope)?;
        Ok(Self { for_all_rows, guarded, has_failed: AtomicBool::new(false) })
    }

    /// Its type, over columns of `schema`.
    pub(super) fn data_type(&self, schema: &Schema) -> DfResult<DataType> {
        self.for_all_rows.data_type(schema)
    }

    /// Computes it.
    ///
    /// # Errors
    /// [`DataflowError::Expression`] when it fails on a row for which it is asked.
    pub(super) fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue, DataflowError> {
        let Some(guarded) = &self.guarded else {
            return self.for_all_rows.evaluate(batch).map_err(failed);
        };
        if !self.has_failed.load(Ordering::Relaxed) {
            if let Ok(value) = self.for_all_rows.evaluate(batch) {
                return Ok(value);
            }
            self.has_failed.store(true, Ordering::Relaxed);
        }
        guarded.evaluate(batch).map_err(failed)
    }

    /// Computes it as a column.
    ///
    /// # Errors
    /// As [`Compiled::evaluate`].
    pub(super) fn array(&self, batch: &RecordBatch) -> Result<ArrayRef, DataflowError> {
        self.evaluate(batch)?.into_array(batch.num_rows()).map_err(failed)
    }
}

impl fmt::Display for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.for_all_rows.fmt(f)
    }
}

fn compiled(expr: &Expr, scope: &DFSchema) -> DfResult<Arc<dyn PhysicalExpr>> {
    create_physical_expr(expr, scope, &ExecutionProps::new(), &PhysicalPlanningContext::default())
}
