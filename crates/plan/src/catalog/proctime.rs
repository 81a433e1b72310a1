//! `PROCTIME()`: the time of day (UTC) at which a row is worked on, in milliseconds.
//!
//! It is evaluated once per batch. As a computed column (`pt AS PROCTIME()`) that is when the row
//! was read, and with `WATERMARK FOR pt AS pt` windows are windows of processing time.
//!
//! So they are where a query or a view over a table makes the column: there, the time becomes a
//! column that the table itself has not, and the watermark speaks of it if windows are over it. In
//! a flow it never falls, so that no row is late.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::TimestampMillisecondArray;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::error::ConnectorError;
use dataflow::scan::{ScanStep, SplitStep};
use dataflow::source::{ReaderContext, Split};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use crate::expr::own::own;

/// The column that a table's base has beside its own.
pub(crate) const COLUMN: &str = "PROCTIME()";

/// That column.
pub(crate) fn column() -> Field {
    Field::new(COLUMN, TYPE, false)
}

/// Rewrites the function over a base that has the column; `None` if it is another function.
pub(crate) fn rewritten(expr: &Expr) -> Option<Expr> {
    let Expr::ScalarFunction(call) = expr else { return None };
    call.func.inner().downcast_ref::<ProcTime>()?;
    Some(own(COLUMN))
}

/// Whether an expression is that column.
pub(crate) fn is_column(expr: &Expr) -> bool {
    matches!(expr, Expr::Column(column) if column.name == COLUMN)
}

/// Whether an expression reads that column.
pub(crate) fn is_read(expr: &Expr) -> bool {
    expr.exists(|node| Ok(is_column(node))).unwrap_or(true)
}

const TYPE: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);

/// The function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcTime {
    signature: Signature,
}

impl ProcTime {
    pub(crate) fn new() -> Self {
        Self { signature: Signature::nullary(Volatility::Volatile) }
    }
}

impl ScalarUDFImpl for ProcTime {
    fn name(&self) -> &str {
        "proctime"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(TYPE)
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        Ok(Field::new(self.name(), TYPE, false).into())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::TimestampMillisecond(Some(now_ms()), None)))
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as i64
}

/// The step of a scan that puts [`COLUMN`] behind the columns.
pub(crate) struct ReadTime {
    schema: SchemaRef,
}

impl ReadTime {
    /// Behind the columns `before`.
    pub(crate) fn new(before: &Schema) -> Self {
        let fields = before.fields().iter().cloned().chain([Arc::new(column())]);
        Self { schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())) }
    }
}

impl ScanStep for ReadTime {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn is_stateless(&self) -> bool {
        true
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        (output + 1 < self.schema.fields().len()).then_some(output)
    }

    fn open(&self, _: &Split, _: &mut ReaderContext) -> Box<dyn SplitStep> {
        Box::new(TimedSplit { schema: Arc::clone(&self.schema), last_ms: i64::MIN })
    }

    fn describe(&self) -> String {
        COLUMN.into()
    }
}

struct TimedSplit {
    schema: SchemaRef,
    /// The clock of the system may be set back.
    last_ms: i64,
}

impl SplitStep for TimedSplit {
    fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
        self.last_ms = self.last_ms.max(now_ms());
        let times = TimestampMillisecondArray::from_value(self.last_ms, batch.num_rows());
        let columns = batch.columns().iter().cloned().chain([Arc::new(times) as _]).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let timed = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options);
        timed.map_err(|error| ConnectorError::Column {
            column: COLUMN.into(),
            message: error.to_string(),
            hint: None,
        })
    }
}
