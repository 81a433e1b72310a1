//! The first rows of a worker, which may be among the first rows of all workers.
//!
//! Rows are gathered until there are about twice as many as the query asks for; then all but the
//! first are dropped, and from then on no row behind the last of these is gathered.

use std::rc::Rc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::row::OwnedRow;

use super::order::Order;
use crate::error::DataflowError;
use crate::rows::wire::{bytes_of, compact};

/// The number of rows up to which no row is dropped.
const ROWS_MIN: usize = 8_192;

/// The first rows.
pub(super) struct Top {
    order: Rc<Order>,
    most: usize,
    gathered: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    /// The key of the last row that is kept, once `most` rows are.
    last: Option<OwnedRow>,
}

impl Top {
    /// No rows yet; it keeps the first `most`.
    pub(super) fn new(order: Rc<Order>, most: usize) -> Self {
        Self { order, most, gathered: vec![], rows: 0, bytes: 0, last: None }
    }

    /// Takes rows.
    ///
    /// # Errors
    /// When they cannot be compared.
    pub(super) fn push(&mut self, batch: RecordBatch) -> Result<(), DataflowError> {
        let batch = match &self.last {
            Some(last) => {
                let keyed = self.order.keyed(batch)?;
                // A row with an equal key may come first by its other columns.
                let counts = (0..keyed.len()).map(|row| Some(keyed.key(row) <= last.row()));
                filter_record_batch(keyed.batch(), &counts.collect::<BooleanArray>())?
            }
            None => batch,
        };
        if batch.num_rows() == 0 || self.most == 0 {
            return Ok(());
        }
        let batch = compact(batch);
        self.rows += batch.num_rows();
        self.bytes += bytes_of(&batch);
        self.gathered.push(batch);
        if self.rows > ROWS_MIN.max(self.most.saturating_mul(2)) {
            self.prune()?;
        }
        Ok(())
    }

    /// Drops all but the first rows.
    fn prune(&mut self) -> Result<(), DataflowError> {
        let kept = self.order.sort(&self.gathered, Some(self.most), self.most)?;
        self.rows = kept.iter().map(RecordBatch::num_rows).sum();
        self.bytes = kept.iter().map(bytes_of).sum();
        if let Some(batch) = kept.last().filter(|_| self.rows == self.most) {
            let keyed = self.order.keyed(batch.slice(batch.num_rows() - 1, 1))?;
            self.last = Some(keyed.key(0).owned());
        }
        self.gathered = kept;
        Ok(())
    }

    /// The number of rows that the query asks for.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// The rows that were gathered, in any order.
    pub(super) fn into_gathered(self) -> Vec<RecordBatch> {
        self.gathered
    }

    /// The number of gathered rows.
    #[cfg(test)]
    pub(super) fn gathered_rows(&self) -> usize {
        self.rows
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
