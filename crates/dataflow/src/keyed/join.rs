//! The join of two inputs window by window (S7, NB8).
//!
//! Rows wait, by the end of their window, until the watermark of both inputs has passed it. Then
//! the rows of the window meet: the right side's are put into a hash table by their keys, the left
//! side's are probed against it, batch by batch, and what has found no partner is given out at the
//! end, where the kind of join asks for it. The state of a window is dropped with its last row.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;

use super::{before_windows, by_window};
use crate::error::DataflowError;
use crate::job::{Kept, KeyedOperator, KeyedState, Step};
use crate::pairing::{Hashed, JoinKind, Pairing, Terms, names};

/// One side of a join.
#[derive(Debug, Clone)]
pub struct JoinSide {
    /// Its columns.
    pub schema: SchemaRef,
    /// The columns that must be equal to the other side's, of the same types. NULL is equal to
    /// nothing.
    pub keys: Vec<usize>,
    /// The end of a row's window: a timestamp of the same unit on both sides.
    pub window_end: usize,
}

/// A join of the rows of each window.
#[derive(Clone)]
pub struct WindowJoin {
    /// Left and right.
    pub sides: [JoinSide; 2],
    /// Which rows are given out.
    pub kind: JoinKind,
    /// A filter over left and right columns that a pair must pass, besides equal keys.
    pub on: Option<Arc<dyn Step>>,
    /// Left and right columns, or those of one side where the kind gives out one side.
    pub schema: SchemaRef,
    /// Left and right columns: what `on` is given.
    pub both: SchemaRef,
}

impl KeyedOperator for WindowJoin {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Joining { spec: self.clone(), windows: BTreeMap::new(), firing: None, held: 0 })
    }

    fn keeps(&self, _: usize) -> Option<Kept> {
        Some(Kept::Window)
    }

    fn describe(&self) -> String {
        let keys = self.sides.each_ref().map(|side| names(&side.schema, &side.keys));
        self.terms().describe(" of each window", keys)
    }
}

impl WindowJoin {
    fn terms(&self) -> Terms<'_> {
        let Self { kind, on, schema, both, .. } = self;
        Terms { kind: *kind, on: on.as_ref(), schema, both }
    }
}

/// Rows that wait for their window to end.
struct Joining {
    spec: WindowJoin,
    /// By the end of the window the rows of either side.
    windows: BTreeMap<i64, [Vec<RecordBatch>; 2]>,
    firing: Option<Firing>,
    held: usize,
}

impl KeyedState for Joining {
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        for (end, rows) in by_window(&batch, self.spec.sides[input].window_end)? {
            self.held += rows.get_array_memory_size();
            self.windows.entry(end).or_default()[input].push(rows);
        }
        Ok(())
    }

    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        loop {
            if let Some(firing) = &mut self.firing {
                if let Some((batch, _)) = firing.pairing.next(self.spec.terms(), rows_max)? {
                    return Ok(Some(batch));
                }
                self.held -= firing.bytes;
                self.firing = None;
            }
            let Some(window) = self.windows.first_entry().filter(|w| *w.key() <= watermark) else {
                return Ok(None);
            };
            self.firing = Some(Firing::new(&self.spec, window.remove())?);
        }
    }

    fn complete(&self, watermark: i64) -> i64 {
        let [left, _] = &self.spec.sides;
        before_windows(watermark, left.schema.field(left.window_end))
    }

    fn bytes(&self) -> usize {
        self.held
    }
}

/// The rows of a window, on their way out.
struct Firing {
    pairing: Pairing,
    bytes: usize,
}

impl Firing {
    fn new(spec: &WindowJoin, sides: [Vec<RecordBatch>; 2]) -> Result<Self, DataflowError> {
        let bytes = sides.iter().flatten().map(RecordBatch::get_array_memory_size).sum();
        let [left, right] = &spec.sides;
        let whole = concat_batches(&right.schema, &sides[1])?;
        let hashed = Arc::new(Hashed::new(whole, &right.keys)?);
        let whole = concat_batches(&left.schema, &sides[0])?;
        Ok(Self { pairing: Pairing::new(whole, &left.keys, hashed, spec.kind)?, bytes })
    }
}

#[cfg(test)]
mod tests;
