//! An aggregate that merges partial states in place of taking rows back.
//!
//! The rows of a frame are two stacks: of the older ones, each has the partial state of it and of
//! those behind it in its stack, so that the oldest leaves by being taken off; the newer ones have
//! one partial state together. When the first stack is empty, the rows of the second become it. So
//! a row is folded twice, and a result merges two states, however large the frame is.

use arrow::array::ArrayRef;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::Accumulator;
use datafusion::scalar::ScalarValue;

use super::whole::{Rows, count};
use super::{Made, merges};

type State = Vec<ScalarValue>;

#[derive(Debug)]
pub(super) struct Stacks {
    of: Made,
    /// Of the older rows, the oldest last: each the state of it and of all that are newer.
    older: Vec<State>,
    /// The newer rows, and what they come to.
    newer: Rows,
    of_newer: Box<dyn Accumulator>,
}

impl Stacks {
    pub(super) fn of(of: Made) -> DfResult<Self> {
        let of_newer = of.accumulator()?;
        Ok(Self { of, older: vec![], newer: Rows::default(), of_newer })
    }

    /// The newer rows become older ones.
    fn turn(&mut self) -> DfResult<()> {
        for rows in self.newer.iter().rev() {
            for row in (0..count(rows)).rev() {
                let mut folded = self.of.accumulator()?;
                let row: Vec<ArrayRef> = rows.iter().map(|column| column.slice(row, 1)).collect();
                folded.update_batch(&row)?;
                if let Some(behind) = self.older.last() {
                    merge(folded.as_mut(), behind)?;
                }
                self.older.push(folded.state()?);
            }
        }
        self.newer.clear();
        self.of_newer = self.of.accumulator()?;
        Ok(())
    }

    fn merged(&mut self) -> DfResult<Box<dyn Accumulator>> {
        let mut merged = self.of.accumulator()?;
        if let Some(older) = self.older.last() {
            merge(merged.as_mut(), older)?;
        }
        // An accumulator may be empty after it has exported its state.
        let newer = self.of_newer.state()?;
        self.of_newer = self.of.accumulator()?;
        merge(self.of_newer.as_mut(), &newer)?;
        merge(merged.as_mut(), &newer)?;
        Ok(merged)
    }
}

fn merge(into: &mut dyn Accumulator, state: &State) -> DfResult<()> {
    let state = state.iter().map(|value| value.to_array()).collect::<DfResult<Vec<_>>>()?;
    into.merge_batch(&state)
}

impl Accumulator for Stacks {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.newer.push(values);
        self.of_newer.update_batch(values)
    }

    /// Those that a frame leaves are the oldest.
    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let gone = count(values);
        match self.older.len().checked_sub(gone) {
            Some(left) => self.older.truncate(left),
            None => {
                self.newer.leave(gone - self.older.len());
                self.older.clear();
                self.turn()?;
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        self.merged()?.evaluate()
    }

    fn size(&self) -> usize {
        let older = self.older.iter().map(ScalarValue::size_of_vec).sum::<usize>();
        size_of_val(self) + older + self.newer.size() + self.of_newer.size()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        self.merged()?.state()
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> DfResult<()> {
        merges()
    }
}
