//! Rows that wait for others to the same workers, to be sent together: until so many bytes are
//! there (Q5, the MMS of W4), or the oldest has waited for so long (the WTL of W4).

use std::sync::Arc;

use arrow::datatypes::{FieldRef, SchemaRef};
use arrow::record_batch::RecordBatch;
use fabric::Clock;

use crate::job::ShuffleSettings;
use crate::rows::wire::Picks;
use crate::runtime::place::WorkerContext;

/// Rows for the same workers. They stay in the batches in which they came.
#[derive(Default)]
pub(super) struct Buffer {
    rows: Picks,
    /// When the oldest came, if there are any.
    since_ns: u64,
}

/// When rows of an input have waited enough.
pub(super) struct Batching {
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
            bytes_together: shuffle.bytes,
            wait_ns: shuffle.wait_ns,
            clock: place.clock.clone(),
        }
    }

    /// Puts rows of a batch to those that wait. The batch lies in memory of its own: a slot must
    /// not be held for so long.
    pub(super) fn put(&self, buffer: &mut Buffer, batch: &RecordBatch, numbers: &[u32]) {
        self.begin(buffer);
        buffer.rows.add(batch.clone(), numbers);
    }

    /// The same with all rows of a batch.
    pub(super) fn put_all(&self, buffer: &mut Buffer, batch: RecordBatch) {
        self.begin(buffer);
        buffer.rows.add_all(batch);
    }

    fn begin(&self, buffer: &mut Buffer) {
        if buffer.rows.is_empty() {
            buffer.since_ns = self.clock.now_ns();
        }
    }

    /// Bytes of rows that are sent together.
    pub(super) fn bytes_together(&self) -> usize {
        self.bytes_together
    }

    /// Whether enough rows wait to be sent.
    pub(super) fn is_full(&self, buffer: &Buffer) -> bool {
        buffer.rows.rows() * self.row_bytes >= self.bytes_together
    }

    /// When the rows will have waited long enough, if there are any.
    pub(super) fn due_ns(&self, buffer: &Buffer) -> Option<u64> {
        let waits = !buffer.rows.is_empty();
        waits.then_some(buffer.since_ns.saturating_add(self.wait_ns))
    }

    /// Whether the rows have waited long enough.
    pub(super) fn is_due(&self, buffer: &Buffer, now_ns: u64) -> bool {
        self.due_ns(buffer).is_some_and(|due| due <= now_ns)
    }
}

impl Buffer {
    /// Takes the rows out.
    pub(super) fn take(&mut self) -> Picks {
        std::mem::take(&mut self.rows)
    }
}
