//! The join of two inputs window by window (S7, NB8).
//!
//! Rows wait, by the end of their window, until the watermark of both inputs has passed it. Then
//! the rows of the window meet: those of the side that has fewer are put into a hash table by their
//! keys, those of the other are probed against it, batch by batch, as they lie. Windows of few rows
//! meet together, so that their pairs make batches of some size: the end of the window is a key
//! then. The state of a window is dropped with its last row.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;

use super::{before_windows, by_window};
use crate::error::DataflowError;
use crate::job::{Kept, KeyedOperator, KeyedState, Step};
use crate::pairing::{Hashed, JoinKind, Pairing, Terms, names};
use crate::wire::bytes_of;

/// A batch of this part of the rows that a batch may have is probed as it lies.
const LARGE_PART: usize = 4;

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

/// The rows of windows, by side.
type Sides = [Vec<RecordBatch>; 2];

/// Rows that wait for their window to end.
struct Joining {
    spec: WindowJoin,
    /// By the end of the window.
    windows: BTreeMap<i64, Sides>,
    firing: Option<Firing>,
    held: usize,
}

impl KeyedState for Joining {
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        for (end, rows) in by_window(&batch, self.spec.sides[input].window_end)? {
            self.held += bytes_of(&rows);
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
            let (due, windows) = self.due(watermark, rows_max);
            if windows == 0 {
                return Ok(None);
            }
            let waited: usize = due.iter().flatten().map(bytes_of).sum();
            let firing = Firing::new(&self.spec, due, windows > 1, rows_max)?;
            self.held = self.held - waited + firing.bytes;
            self.firing = Some(firing);
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

impl Joining {
    /// Takes out the first windows that are due: one, or so many that a side has some `rows_max`
    /// rows. Gives how many windows they are.
    fn due(&mut self, watermark: i64, rows_max: usize) -> (Sides, usize) {
        let (mut due, mut windows) = (Sides::default(), 0);
        let mut rows = [0; 2];
        while rows.iter().all(|&rows| rows < rows_max)
            && let Some(window) = self.windows.first_entry().filter(|w| *w.key() <= watermark)
        {
            windows += 1;
            for (side, batches) in window.remove().into_iter().enumerate() {
                rows[side] += rows_of(&batches);
                due[side].extend(batches);
            }
        }
        (due, windows)
    }
}

/// The rows of windows, on their way out.
struct Firing {
    pairing: Pairing,
    bytes: usize,
}

impl Firing {
    fn new(
        spec: &WindowJoin,
        mut sides: Sides,
        several: bool,
        rows_max: usize,
    ) -> Result<Self, DataflowError> {
        let probed = usize::from(rows_of(&sides[0]) < rows_of(&sides[1]));
        let of = |side: usize| {
            let JoinSide { schema, keys, window_end } = &spec.sides[side];
            let window = several.then_some(*window_end);
            (schema, keys.iter().copied().chain(window).collect::<Vec<_>>())
        };
        let (schema, keys) = of(1 - probed);
        let whole = concat_batches(schema, &std::mem::take(&mut sides[1 - probed]))?;
        let hashed = Arc::new(Hashed::new(whole, &keys)?);
        let (schema, keys) = of(probed);
        let batches = gathered(schema, std::mem::take(&mut sides[probed]), rows_max)?;
        let bytes = hashed.bytes() + batches.iter().map(bytes_of).sum::<usize>();
        Ok(Self { pairing: Pairing::new((probed, &keys), batches, hashed, spec.kind), bytes })
    }
}

fn rows_of(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// Batches of few rows put together, in their order, to at most `rows_max` rows.
fn gathered(
    schema: &SchemaRef,
    batches: Vec<RecordBatch>,
    rows_max: usize,
) -> Result<VecDeque<RecordBatch>, DataflowError> {
    let mut gathered = VecDeque::with_capacity(batches.len());
    let mut few: Vec<RecordBatch> = vec![];
    for batch in batches {
        let is_large = |rows: usize| rows >= rows_max / LARGE_PART;
        if is_large(batch.num_rows()) || rows_of(&few) + batch.num_rows() > rows_max {
            gathered.push_back(concat_batches(schema, &few)?);
            few.clear();
        }
        match is_large(batch.num_rows()) {
            true => gathered.push_back(batch),
            false => few.push(batch),
        }
    }
    gathered.push_back(concat_batches(schema, &few)?);
    gathered.retain(|batch| batch.num_rows() > 0);
    Ok(gathered)
}

#[cfg(test)]
mod tests;
