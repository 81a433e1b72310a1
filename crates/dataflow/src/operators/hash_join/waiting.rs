//! Rows of a join that wait: for the build to be complete, or for their turn.

use std::collections::VecDeque;

use arrow::array::RecordBatch;

use crate::rows::wire::bytes_of;

/// Batches in the order in which they came, each with a value.
pub(super) struct Waiting<T = ()> {
    pub(super) batches: VecDeque<(T, RecordBatch)>,
    pub(super) bytes: usize,
    pub(super) rows: usize,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { batches: VecDeque::new(), bytes: 0, rows: 0 }
    }
}

impl<T> Waiting<T> {
    pub(super) fn push(&mut self, of: T, batch: RecordBatch) {
        self.bytes += bytes_of(&batch);
        self.rows += batch.num_rows();
        self.batches.push_back((of, batch));
    }

    pub(super) fn pop(&mut self) -> Option<(T, RecordBatch)> {
        let (of, batch) = self.batches.pop_front()?;
        self.bytes -= bytes_of(&batch);
        self.rows -= batch.num_rows();
        Some((of, batch))
    }
}
