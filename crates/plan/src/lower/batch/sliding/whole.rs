//! An aggregate that is made anew of the rows of its frame, whenever it is asked for.

use std::collections::VecDeque;

use arrow::array::ArrayRef;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Accumulator;
use datafusion::scalar::ScalarValue;

use super::{Made, merges};

/// Rows of a frame, oldest first, as they came.
#[derive(Debug, Default)]
pub(super) struct Rows(VecDeque<Vec<ArrayRef>>);

impl Rows {
    pub(super) fn push(&mut self, values: &[ArrayRef]) {
        if values.first().is_some_and(|column| !column.is_empty()) {
            self.0.push_back(values.to_vec());
        }
    }

    /// Removes a number of the oldest rows.
    pub(super) fn leave(&mut self, mut gone: usize) {
        while gone > 0
            && let Some(oldest) = self.0.front_mut()
        {
            let rows = oldest[0].len();
            if rows <= gone {
                gone -= rows;
                self.0.pop_front();
                continue;
            }
            oldest.iter_mut().for_each(|column| *column = column.slice(gone, rows - gone));
            gone = 0;
        }
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Vec<ArrayRef>> {
        self.0.iter()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn size(&self) -> usize {
        self.0.iter().flatten().map(size_of_val).sum()
    }
}

/// How many rows an accumulator is given.
pub(super) fn count(values: &[ArrayRef]) -> usize {
    values.first().map_or(0, |column| column.len())
}

/// An aggregate, as the rows that it is made of.
#[derive(Debug)]
pub(super) struct Whole {
    of: Made,
    rows: Rows,
}

impl Whole {
    pub(super) fn of(of: Made) -> Self {
        Self { of, rows: Rows::default() }
    }

    fn made(&self) -> DfResult<Box<dyn Accumulator>> {
        let mut made = self.of.accumulator()?;
        self.rows.iter().try_for_each(|rows| made.update_batch(rows))?;
        Ok(made)
    }
}

impl Accumulator for Whole {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.rows.push(values);
        Ok(())
    }

    /// Those that a frame leaves are the oldest.
    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.rows.leave(count(values));
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        self.made()?.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.rows.size()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        self.made()?.state()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> DfResult<()> {
        merges()
    }
}
