//! Rows that wait for others to the same workers, to be sent together: until so many bytes are
//! there (Q5, the MMS of W4), or the oldest has waited for so long (the WTL of W4).

use std::sync::Arc;

use arrow::array::UInt32Array;
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{FieldRef, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use fabric::Clock;

use crate::error::DataflowError;
use crate::job::ShuffleSettings;
use crate::rows::wire::own_views;
use crate::runtime::place::WorkerContext;

/// Rows for the same workers.
#[derive(Default)]
pub(super) struct Buffer {
    parts: Vec<RecordBatch>,
    rows: usize,
    /// When the oldest came, if there are any.
    since_ns: u64,
}

/// When rows of an input have waited enough.
pub(super) struct Batching {
    schema: SchemaRef,
    row_bytes: usize,
    bytes_together: usize,
    wait_ns: u64,
    clock: Arc<dyn Clock>,
}

impl Batching {
    pub(super) fn new(schema: &SchemaRef, place: &WorkerContext, shuffle: ShuffleSettings) -> Self {
        let width = |field: &FieldRef| field.data_type().primitive_width().unwrap_or(16);
        Self {
            row_bytes: schema.fields().iter().map(width).sum::<usize>().max(1),
            schema: schema.clone(),
            bytes_together: shuffle.bytes,
            wait_ns: shuffle.wait_ns,
            clock: place.clock.clone(),
        }
    }

    /// Puts rows to those that wait. They lie in memory of their own: a slot must not be held for
    /// so long.
    pub(super) fn put(&self, buffer: &mut Buffer, part: RecordBatch) {
        if buffer.parts.is_empty() {
            buffer.since_ns = self.clock.now_ns();
        }
        buffer.rows += part.num_rows();
        buffer.parts.push(part);
    }

    /// Whether enough rows wait to be sent.
    pub(super) fn is_full(&self, buffer: &Buffer) -> bool {
        buffer.rows * self.row_bytes >= self.bytes_together
    }

    /// When the rows will have waited long enough, if there are any.
    pub(super) fn due_ns(&self, buffer: &Buffer) -> Option<u64> {
        let waits = !buffer.parts.is_empty();
        waits.then_some(buffer.since_ns.saturating_add(self.wait_ns))
    }

    /// Whether the rows have waited long enough.
    pub(super) fn is_due(&self, buffer: &Buffer, now_ns: u64) -> bool {
        self.due_ns(buffer).is_some_and(|due| due <= now_ns)
    }

    /// Takes the rows out, if there are any.
    ///
    /// # Errors
    /// When they are too many for one batch.
    pub(super) fn take(&self, buffer: &mut Buffer) -> Result<Option<RecordBatch>, ArrowError> {
        buffer.rows = 0;
        match std::mem::take(&mut buffer.parts).as_slice() {
            [] => Ok(None),
            parts => concat_batches(&self.schema, parts).map(Some),
        }
    }
}

/// Rows of a batch in memory of their own, since they may wait.
pub(super) fn take_rows(batch: &RecordBatch, rows: &[u32]) -> Result<RecordBatch, DataflowError> {
    Ok(own_views(take_record_batch(batch, &UInt32Array::from(rows.to_vec()))?))
}
