//! A batch in the order of time, from which rows are taken from the front.

use std::collections::BTreeSet;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::buffer::ScalarBuffer;
use arrow::compute::take_record_batch;

use crate::error::DataflowError;
use crate::rows::windows::ends_of;
use crate::rows::wire::bytes_of;

/// A batch in the order of a timestamp, as the ends of windows are.
pub(crate) struct Run {
    batch: RecordBatch,
    ends: ScalarBuffer<i64>,
    /// Rows that were taken.
    taken: usize,
    bytes: usize,
}

impl Run {
    pub(crate) fn new(mut batch: RecordBatch, end: usize) -> Result<Self, DataflowError> {
        let mut ends = ends_of(&batch, end)?;
        // Rows that come in the order of their windows, as most do, are not copied.
        if !ends.is_sorted() {
            let mut rows: Vec<u32> = (0..ends.len() as u32).collect();
            rows.sort_by_key(|&row| ends[row as usize]);
            batch = take_record_batch(&batch, &UInt32Array::from(rows))?;
            ends = ends_of(&batch, end)?;
        }
        Ok(Self { bytes: bytes_of(&batch), batch, ends, taken: 0 })
    }

    /// Bytes of all rows, also of those that were taken.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The end of the first window of rows that are left.
    pub(crate) fn next(&self) -> Option<i64> {
        self.ends.get(self.taken).copied()
    }

    /// The end of the last window until then of rows that are left.
    pub(crate) fn last(&self, until: i64) -> Option<i64> {
        self.ends[self.taken..][..self.due(until)].last().copied()
    }

    /// Whether none are left of later windows.
    pub(crate) fn ends_by(&self, until: i64) -> bool {
        self.ends.last().is_none_or(|&end| end <= until)
    }

    /// How many rows are left of windows until that.
    pub(crate) fn due(&self, until: i64) -> usize {
        self.ends[self.taken..].partition_point(|&end| end <= until)
    }

    /// Adds the ends of windows until that of rows that are left.
    pub(crate) fn windows(&self, until: i64, ends: &mut BTreeSet<i64>) {
        let due = &self.ends[self.taken..][..self.due(until)];
        ends.extend(due.chunk_by(|one, other| one == other).filter_map(|same| same.first()));
    }

    /// Takes them.
    pub(crate) fn take(&mut self, until: i64) -> Option<RecordBatch> {
        let rows = self.due(until);
        self.taken += rows;
        (rows > 0).then(|| self.batch.slice(self.taken - rows, rows))
    }

    /// The rows that are left.
    pub(crate) fn rest(&self) -> RecordBatch {
        if self.taken == 0 {
            // The same arrays: a checkpoint knows them again.
            return self.batch.clone();
        }
        self.batch.slice(self.taken, self.batch.num_rows() - self.taken)
    }

    /// The rows that are left in spans of whole windows of at least so many bytes, but the last;
    /// with the end of the first window of each.
    pub(crate) fn spans(&self, bytes_min: usize) -> Vec<(i64, RecordBatch)> {
        let rows_min = bytes_min * self.ends.len() / self.bytes.max(1) + 1;
        let mut spans = vec![];
        let mut from = self.taken;
        while let Some(&first) = self.ends.get(from) {
            let least = (from + rows_min).min(self.ends.len());
            let last = self.ends[least - 1];
            let to = least + self.ends[least..].partition_point(|&end| end == last);
            spans.push((first, self.batch.slice(from, to - from)));
            from = to;
        }
        spans
    }
}
