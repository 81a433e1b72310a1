//! Rows that wait for others to the same workers, to leave together: until so many bytes are there
//! (Q5, the MMS of W4), or the oldest has waited for so long (the WTL of W4).

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;

/// Rows for the same workers.
#[derive(Default)]
pub(super) struct Buffer {
    parts: Vec<RecordBatch>,
    rows: usize,
    /// When the oldest came, if there are any.
    since_ns: u64,
}

impl Buffer {
    /// Puts rows to the others. They lie in memory of their own: a slot must not be held for so
    /// long.
    pub(super) fn put(&mut self, part: RecordBatch, now_ns: u64) {
        if self.parts.is_empty() {
            self.since_ns = now_ns;
        }
        self.rows += part.num_rows();
        self.parts.push(part);
    }

    /// The number of rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// When the oldest came, if there are any.
    pub(super) fn since_ns(&self) -> Option<u64> {
        (!self.parts.is_empty()).then_some(self.since_ns)
    }

    /// Takes the rows out, if there are any.
    ///
    /// # Errors
    /// When they are too many for one batch.
    pub(super) fn take(&mut self, schema: &SchemaRef) -> Result<Option<RecordBatch>, ArrowError> {
        self.rows = 0;
        match std::mem::take(&mut self.parts).as_slice() {
            [] => Ok(None),
            parts => concat_batches(schema, parts).map(Some),
        }
    }
}
