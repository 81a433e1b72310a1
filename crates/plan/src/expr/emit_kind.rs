//! `EMIT_KIND()`: whether a row of a window is early or final.

use arrow::datatypes::{DataType, Field};
use datafusion::common::exec_err;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDFImpl, Expr, Signature, Volatility};

/// The column of a grouping that says which rows are early.
pub(crate) const COLUMN: &str = "EMIT_KIND()";

/// The column of a grouping.
pub(crate) fn kind_field() -> Field {
    Field::new(COLUMN, DataType::Utf8, false)
}

/// Whether an aggregate of a grouping is `EMIT_KIND()`.
pub(crate) fn is_kind(call: &Expr) -> bool {
    let Expr::AggregateFunction(call) = call else { return false };
    call.func.inner().downcast_ref::<EmitKind>().is_some()
}

/// `EMIT_KIND()`: `early` of groups of a window that may change, `final` of one that has ended. It
/// is asked as an aggregate is, so that it stays with its grouping; that gives it out by itself.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct EmitKind {
    signature: Signature,
}

impl EmitKind {
    pub(crate) fn new() -> Self {
        Self { signature: Signature::nullary(Volatility::Volatile) }
    }
}

impl AggregateUDFImpl for EmitKind {
    fn name(&self) -> &str {
        "emit_kind"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn accumulator(&self, _: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        exec_err!("EMIT_KIND() is a column of groups that emit early results")
    }
}
