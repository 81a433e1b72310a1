//! The step of a scan behind `t__late`: it keeps the rows that came behind the watermark of their
//! own split, and puts that watermark beside them.

use std::sync::Arc;

use arrow::array::{Array, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use dataflow::bad::BadRows;
use dataflow::error::ConnectorError;
use dataflow::scan::{ScanStep, SplitStep};
use dataflow::source::{ReaderContext, Split};
use dataflow::time::ticks;

use crate::catalog::side_output::WATERMARK;
use crate::catalog::watermark::{Met, as_time};

/// The step.
pub(crate) struct LateRowsOnly {
    /// The event time among the columns that are read, always there, and the ticks that rows may
    /// lag behind the latest.
    pub(crate) time: Option<(usize, i64)>,
    /// The columns of `t__late`, already projected.
    pub(crate) schema: SchemaRef,
}

impl ScanStep for LateRowsOnly {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn passes_on(&self, _: usize) -> Option<usize> {
        None
    }

    fn keeps_rows(&self) -> bool {
        false
    }

    fn open(&self, _: &Split, context: &mut ReaderContext) -> Box<dyn SplitStep> {
        // They are counted where the table itself is read.
        context.bad = Arc::new(BadRows::default());
        let (column, delay) = self.time.unzip();
        let met = Met::new(delay.unwrap_or_default());
        Box::new(LateSplit { time: column, met, schema: Arc::clone(&self.schema) })
    }

    fn describe(&self) -> String {
        "late rows".into()
    }
}

struct LateSplit {
    time: Option<usize>,
    met: Met,
    schema: SchemaRef,
}

impl SplitStep for LateSplit {
    fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
        self.late(&batch).map_err(|message| ConnectorError::Column {
            column: WATERMARK.into(),
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

impl LateSplit {
    fn late(&mut self, batch: &RecordBatch) -> Result<RecordBatch, String> {
        let array = batch.column(self.time.ok_or("the table has no event time")?);
        let times = ticks(array).ok_or("it is no timestamp")?;
        let met = self.met.of(array)?;
        let late = times.iter().zip(&met).enumerate().map(|(row, (time, met))| {
            array.is_valid(row) && met.is_some_and(|watermark| *time < watermark)
        });
        let late: Vec<bool> = late.collect();
        // A late row has met one; the others are not kept.
        let met = met.into_iter().map(|met| Some(met.unwrap_or(i64::MIN))).collect();
        let met = as_time(met, array.data_type())?;
        let columns = self.schema.fields().iter().map(|field| {
            batch.column_by_name(field.name()).map_or_else(|| Arc::clone(&met), Arc::clone)
        });
        RecordBatch::try_new(Arc::clone(&self.schema), columns.collect())
            .and_then(|all| filter_record_batch(&all, &BooleanArray::from(late)))
            .map_err(|error| error.to_string())
    }
}
