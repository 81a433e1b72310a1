//! Rows until the watermark has passed them.
//!
//! Each batch that came is ordered by time once, and looked at again only when its first row is
//! due. Of a batch most of whose rows have left, the others are copied, so that a row that is ahead
//! of time does not hold the whole batch.

use std::collections::BTreeMap;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{take, take_record_batch};
use arrow::error::ArrowError;

use crate::error::DataflowError;
use crate::rows::keys::columns_of;
use crate::rows::time::ticks;

/// Rows below which a batch is not copied.
const ROWS_MIN: usize = 64;

/// Batches by the time of their first row.
pub(super) struct Waiting {
    time: usize,
    batches: BTreeMap<(i64, u64), Held>,
    pushed: u64,
    bytes: usize,
}

struct Held {
    rows: Due,
    bytes: usize,
}

/// Rows of a batch, in the order of time.
pub(super) struct Due {
    pub(super) batch: RecordBatch,
    /// Times and rows.
    pub(super) order: Vec<(i64, u32)>,
}

impl Due {
    /// Some columns of the rows, in the order of time.
    pub(super) fn columns(&self, columns: &[usize]) -> Result<Vec<ArrayRef>, ArrowError> {
        let all = columns_of(&self.batch, columns);
        let in_turn = self.order.iter().map(|&(_, row)| row).eq(0..self.batch.num_rows() as u32);
        if in_turn {
            return Ok(all);
        }
        let rows: UInt32Array = self.order.iter().map(|&(_, row)| Some(row)).collect();
        all.iter().map(|column| take(column, &rows, None)).collect()
    }

    /// The ticks of the column that says when windows end.
    pub(super) fn window_ends(&self, column: Option<usize>) -> Option<&[i64]> {
        Some(ticks(self.batch.column(column?))?)
    }

    /// The rows that are not due yet.
    fn later(&self, order: Vec<(i64, u32)>) -> Result<Self, ArrowError> {
        let count = self.batch.num_rows();
        if count < ROWS_MIN || order.len() > count / 2 {
            return Ok(Self { batch: self.batch.clone(), order });
        }
        let picked: UInt32Array = order.iter().map(|&(_, row)| Some(row)).collect();
        let batch = take_record_batch(&self.batch, &picked)?;
        let order = order.into_iter().zip(0..).map(|((time, _), row)| (time, row)).collect();
        Ok(Self { batch, order })
    }
}

impl Waiting {
    pub(super) fn new(time: usize) -> Self {
        Self { time, batches: BTreeMap::new(), pushed: 0, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn push(&mut self, batch: RecordBatch) -> Result<(), DataflowError> {
        let Some(times) = ticks(batch.column(self.time)) else {
            let message = "rows are ordered by what is not a timestamp";
            return Err(DataflowError::Expression(message.into()));
        };
        let mut order: Vec<(i64, u32)> = times.iter().copied().zip(0..).collect();
        if !order.is_sorted() {
            order.sort_unstable();
        }
        self.hold(Due { batch, order });
        Ok(())
    }

    fn hold(&mut self, rows: Due) {
        let Some(&(first, _)) = rows.order.first() else { return };
        let order = rows.order.len() * size_of::<(i64, u32)>();
        let bytes = rows.batch.get_array_memory_size() + order;
        self.bytes += bytes;
        self.batches.insert((first, self.pushed), Held { rows, bytes });
        self.pushed += 1;
    }

    /// The rows before `watermark`.
    pub(super) fn due(&mut self, watermark: i64) -> Result<Vec<Due>, DataflowError> {
        let is_due = |time: i64| time < watermark || watermark == i64::MAX;
        let (mut all, mut rest) = (vec![], vec![]);
        while let Some(first) = self.batches.first_entry().filter(|batch| is_due(batch.key().0)) {
            let Held { mut rows, bytes } = first.remove();
            self.bytes -= bytes;
            let until = rows.order.partition_point(|&(time, _)| is_due(time));
            let later = rows.order.split_off(until);
            if !later.is_empty() {
                rest.push(rows.later(later)?);
            }
            all.push(rows);
        }
        rest.into_iter().for_each(|rows| self.hold(rows));
        Ok(all)
    }

    /// All rows.
    pub(super) fn rows(&self) -> Result<Vec<RecordBatch>, ArrowError> {
        let left = |Held { rows: Due { batch, order }, .. }: &Held| {
            let rows: UInt32Array = order.iter().map(|&(_, row)| Some(row)).collect();
            if rows.len() == batch.num_rows() {
                Ok(batch.clone())
            } else {
                take_record_batch(batch, &rows)
            }
        };
        self.batches.values().map(left).collect()
    }

    /// Takes out all rows.
    pub(super) fn drain(&mut self) -> Result<Vec<RecordBatch>, ArrowError> {
        let all = self.rows()?;
        self.batches.clear();
        self.bytes = 0;
        Ok(all)
    }
}
