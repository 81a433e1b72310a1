//! `CURRENT_WATERMARK(ts)`: the watermark that a row met, that of its own flow.
//!
//! It is known where a table is read: expressions over its event time become a column that the
//! table itself has not, and that goes on with the rows as any other. So it is the same on any
//! number of workers, as lateness is; it is NULL before the first row of a flow has been read.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, make_array};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use dataflow::error::ConnectorError;
use dataflow::scan::{ScanStep, SplitStep};
use dataflow::source::{ReaderContext, Split};
use dataflow::time::ticks;
use datafusion::common::tree_node::TreeNode;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use crate::expr::own::own;
use crate::text::refusal::Refusal;

/// The column that a table's base has beside its own, if it has event time.
pub(crate) const COLUMN: &str = "CURRENT_WATERMARK()";

/// That column, of a table with `columns` of which one is the event time.
pub(crate) fn column_of(columns: &Schema, time: &str) -> Option<Field> {
    let time = columns.field_with_name(time).ok()?;
    Some(Field::new(COLUMN, time.data_type().clone(), true))
}

/// Rewrites the function over the base of rows with these `times`; `None` if it is another one.
pub(crate) fn rewritten(expr: &Expr, times: &[Expr], known: bool) -> Option<Result<Expr, Refusal>> {
    let Expr::ScalarFunction(call) = expr else { return None };
    call.func.inner().downcast_ref::<CurrentWatermark>()?;
    Some(match &call.args[..] {
        [time] if known && times.contains(time) => Ok(own(COLUMN)),
        _ => Err(Refusal::new(&["CURRENT_WATERMARK"], REASON).hint(
            "take it along from there: CREATE VIEW v AS SELECT *, \
             CURRENT_WATERMARK(ts) AS wm FROM t",
        )),
    })
}

/// Whether an expression reads that column.
pub(crate) fn is_read(expr: &Expr) -> bool {
    let reads = |node: &Expr| matches!(node, Expr::Column(column) if column.name == COLUMN);
    expr.exists(|node| Ok(reads(node))).unwrap_or(true)
}

const REASON: &str =
    "the watermark that a row met is known of the event time of a table, where the table is read";

/// The function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct CurrentWatermark {
    signature: Signature,
}

impl CurrentWatermark {
    pub(crate) fn new() -> Self {
        // It is no function of its argument, so that no equality may be used to replace that.
        Self { signature: Signature::any(1, Volatility::Volatile) }
    }
}

impl ScalarUDFImpl for CurrentWatermark {
    fn name(&self) -> &str {
        "current_watermark"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        match types {
            [time @ DataType::Timestamp(..)] => Ok(time.clone()),
            _ => Err(DataFusionError::Plan(
                "'CURRENT_WATERMARK' takes the event time of a table, a TIMESTAMP".into(),
            )),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|f| f.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, true)))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        Err(DataFusionError::Execution(format!("CURRENT_WATERMARK: {REASON}")))
    }
}

/// A flow's watermark while its rows are read.
#[derive(Debug)]
pub(crate) struct Met {
    greatest: i64,
    /// Ticks that rows may lag behind the latest.
    delay: i64,
}

impl Met {
    /// Before the first row.
    pub(crate) fn new(delay: i64) -> Self {
        Self { greatest: i64::MIN, delay }
    }

    /// The greatest time so far, as a number that may be saved.
    pub(crate) fn remembered(&self) -> u64 {
        self.greatest.cast_unsigned()
    }

    /// Goes on behind that time.
    pub(crate) fn remember(&mut self, number: u64) {
        self.greatest = number.cast_signed();
    }

    /// For each row the watermark that it met; `None` if there was none yet. A row without a time
    /// moves nothing.
    ///
    /// # Errors
    /// When `times` are none.
    pub(crate) fn of(&mut self, times: &ArrayRef) -> Result<Vec<Option<i64>>, String> {
        let values = ticks(times).ok_or("the event time is no timestamp")?;
        let met = values.iter().enumerate().map(|(row, &time)| {
            let some = self.greatest > i64::MIN;
            let met = some.then(|| self.greatest.saturating_sub(self.delay));
            if times.is_valid(row) {
                self.greatest = self.greatest.max(time);
            }
            met
        });
        Ok(met.collect())
    }
}

/// Ticks as a column of the type of a time.
pub(crate) fn as_time(ticks: Vec<Option<i64>>, time: &DataType) -> Result<ArrayRef, String> {
    let data = Int64Array::from(ticks).into_data().into_builder().data_type(time.clone());
    Ok(make_array(data.build().map_err(|error| error.to_string())?))
}

/// The step of a scan that puts [`COLUMN`] behind the columns.
pub(crate) struct RowWatermarks {
    time: usize,
    delay: i64,
    schema: SchemaRef,
}

impl RowWatermarks {
    /// Behind the columns `before`, of which `time` is the event time; rows may lag by `delay`
    /// ticks.
    pub(crate) fn new(before: &Schema, time: usize, delay: i64) -> Self {
        let added = column_of(before, before.field(time).name()).map(Arc::new);
        let fields = before.fields().iter().cloned().chain(added);
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Self { time, delay, schema }
    }
}

impl ScanStep for RowWatermarks {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        (output + 1 < self.schema.fields().len()).then_some(output)
    }

    fn open(&self, _: &Split, _: &mut ReaderContext) -> Box<dyn SplitStep> {
        let (time, met) = (self.time, Met::new(self.delay));
        Box::new(WatermarkedSplit { time, met, schema: Arc::clone(&self.schema) })
    }

    fn describe(&self) -> String {
        COLUMN.into()
    }
}

struct WatermarkedSplit {
    time: usize,
    met: Met,
    schema: SchemaRef,
}

impl WatermarkedSplit {
    fn with_watermark(&mut self, batch: &RecordBatch) -> Result<RecordBatch, String> {
        let time = batch.column(self.time);
        let met = as_time(self.met.of(time)?, time.data_type())?;
        let columns = batch.columns().iter().cloned().chain([met]).collect();
        RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(|error| error.to_string())
    }
}

impl SplitStep for WatermarkedSplit {
    fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
        self.with_watermark(&batch).map_err(|message| ConnectorError::Column {
            column: self.schema.field(self.time).name().clone(),
            message,
            hint: None,
        })
    }
    fn remembered(&self) -> Option<u64> {
        Some(self.met.remembered())
    }

    fn remember(&mut self, number: u64) {
        self.met.remember(number);
    }
}
