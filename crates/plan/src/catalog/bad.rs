//! The step of a scan behind `t__bad`: in place of the rows that can be read it gives a row for
//! each that cannot.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use dataflow::bad::{BadRow, BadRows, as_batch};
use dataflow::error::ConnectorError;
use dataflow::origins::Origins;
use dataflow::scan::{ScanStep, SplitStep};
use dataflow::source::{ReaderContext, Split};

/// The step.
pub(crate) struct BadRowsOnly {
    /// The table, for messages.
    pub(crate) table: String,
    /// The event time among the columns that are read: rows without one are bad.
    pub(crate) time: Option<usize>,
    /// The columns of `t__bad`, already projected.
    pub(crate) schema: SchemaRef,
}

impl ScanStep for BadRowsOnly {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn passes_on(&self, _: usize) -> Option<usize> {
        None
    }

    fn keeps_rows(&self) -> bool {
        false
    }

    fn open(&self, split: &Split, context: &mut ReaderContext) -> Box<dyn SplitStep> {
        let bad = Arc::new(BadRows::collecting());
        context.bad = Arc::clone(&bad);
        let untimed = UntimedRows::new(&self.table, self.time, split, &context.origins);
        Box::new(BadSplit { untimed, bad, schema: Arc::clone(&self.schema) })
    }

    fn describe(&self) -> String {
        "bad rows".into()
    }
}

struct BadSplit {
    untimed: UntimedRows,
    /// Where the reader puts bad rows.
    bad: Arc<BadRows>,
    schema: SchemaRef,
}

impl SplitStep for BadSplit {
    fn apply(&mut self, batch: RecordBatch) -> Result<RecordBatch, ConnectorError> {
        self.untimed.find(&batch, &self.bad);
        as_batch(&self.schema, self.bad.take().iter())
    }

    fn flush(&mut self) -> Result<Option<RecordBatch>, ConnectorError> {
        as_batch(&self.schema, self.bad.take().iter()).map(Some)
    }
}

/// Finds the rows of a split that are bad because they have no event time.
pub(crate) struct UntimedRows {
    table: String,
    split: String,
    /// The column of the event time, if the table has one.
    time: Option<usize>,
    /// Where the rows are in the data.
    origins: Arc<Origins>,
    /// Rows of the split so far.
    rows: u64,
}

impl UntimedRows {
    /// Of a split that begins.
    pub(crate) fn new(
        table: &str,
        time: Option<usize>,
        split: &Split,
        origins: &Arc<Origins>,
    ) -> Self {
        let (table, split) = (table.to_owned(), split.name.clone());
        Self { table, split, time, origins: Arc::clone(origins), rows: 0 }
    }

    /// Adds those of the next batch to `bad`.
    pub(crate) fn find(&mut self, batch: &RecordBatch, bad: &BadRows) {
        let first = self.rows;
        self.rows += batch.num_rows() as u64;
        let Some(column) = self.time else { return };
        let (times, schema) = (batch.column(column), batch.schema_ref());
        for row in (0..batch.num_rows()).filter(|&row| times.is_null(row)) {
            let number = first + row as u64;
            let place = self.origins.of(number);
            bad.add(BadRow {
                table: self.table.clone(),
                place: place.unwrap_or_else(|| format!("{}:{}", self.split, number + 1)),
                reason: format!("event time '{}' is NULL", schema.field(column).name()),
                text: String::new(),
            });
        }
    }
}
