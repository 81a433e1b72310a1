//! Results of frames that may be long, as lists and texts, with a bound on those of a batch.
//!
//! A partition of 100,000 rows, each of which has a list of all of them, would be gigabytes of a
//! megabyte.

use std::collections::VecDeque;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::exec_err;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Accumulator;
use datafusion::scalar::ScalarValue;

use super::whole::count;
use crate::expr::growth::{CALL_BYTES_MAX, bytes_of};
use crate::text::units::human;

/// Rows that are computed before the first of them are given on, at most.
const BATCH_ROWS: usize = 8_192;

/// An aggregate whose last results are counted.
#[derive(Debug)]
pub(super) struct Metered {
    inner: Box<dyn Accumulator>,
    name: String,
    /// Rows since a result was asked for: all of a partition have the same one.
    rows: u64,
    /// Bytes of the last results, and of all of them.
    last: VecDeque<u64>,
    bytes: u64,
}

/// The accumulator, metered where its results may be long.
pub(super) fn metered(
    inner: Box<dyn Accumulator>,
    name: &str,
    of: &DataType,
) -> Box<dyn Accumulator> {
    if of.is_nested() || of.is_string() || of.is_binary() {
        Box::new(Metered { inner, name: name.to_owned(), rows: 0, last: VecDeque::new(), bytes: 0 })
    } else {
        inner
    }
}

impl Accumulator for Metered {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.rows += count(values) as u64;
        self.inner.update_batch(values)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.inner.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let value = self.inner.evaluate()?;
        let rows = std::mem::take(&mut self.rows).max(1);
        let bytes = bytes_of(value.to_array()?.as_ref(), 0, 1).saturating_mul(rows);
        self.last.push_back(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.last.len() > BATCH_ROWS {
            self.bytes -= self.last.pop_front().unwrap_or(0);
        }
        if self.bytes > CALL_BYTES_MAX {
            let (made, most) = (human(self.bytes), human(CALL_BYTES_MAX));
            let rows = rows.max(self.last.len() as u64);
            return exec_err!(
                "{} would make {made} of the frames of {rows} rows; {most} are the most of a batch",
                self.name
            );
        }
        Ok(value)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.last.len() * size_of::<u64>() + self.inner.size()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        self.inner.merge_batch(states)
    }
}
