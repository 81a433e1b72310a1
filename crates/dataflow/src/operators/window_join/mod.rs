//! The join of two inputs window by window (S7, NB8).
//!
//! Rows wait, in the batches in which they came, until the watermark of both inputs has passed the
//! end of their window. Then the rows of the window meet: those of the side that has fewer are put
//! into a hash table by their keys, those of the other are probed against it, batch by batch, as
//! they lie. Windows of few rows, as sessions are, meet together, so that a batch is cut where a
//! meeting ends and not where a window does: the end of the window is a key then. A batch is
//! dropped with the last of its windows.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use state::NullKeys;

use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{
    Description, InputBatches, JoinKind, KeyedOperator, KeyedState, Retention, RowOwner, SavedPart,
    SavedParts, SpillSpec, Step, list,
};
use crate::operators::keyed::{Run, at_rest, before_windows, no_part};
use crate::pairing::{Hashed, Pairing, ProbeSide, Terms};
use crate::rows::wire::bytes_of;

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
        Box::new(Joining {
            spec: self.clone(),
            runs: Default::default(),
            next: i64::MAX,
            firing: None,
            over: 0,
            held: 0,
        })
    }

    /// The rows of either side, of windows that have not ended.
    fn saved(&self) -> Option<SavedParts> {
        let side = |(number, side): (usize, &JoinSide)| SavedPart {
            schema: side.schema.clone(),
            owner: RowOwner::Input(number),
        };
        let parts = self.sides.iter().enumerate().map(side).collect();
        Some(SavedParts { version: 1, parts })
    }

    /// Pairs are the same in any order of rows.
    fn loads_in_any_order(&self) -> bool {
        true
    }

    /// Rows are of use when their window ends.
    fn merges(&self) -> bool {
        true
    }

    fn window_end(&self, input: usize) -> Option<usize> {
        Some(self.sides[input].window_end)
    }

    fn retention(&self, _: usize) -> Option<Retention> {
        Some(Retention::TimeWindow)
    }

    fn spill_spec(&self, input: usize) -> Option<SpillSpec> {
        let JoinSide { keys, window_end, .. } = &self.sides[input];
        Some(SpillSpec { until: *window_end, apart: keys.clone(), keeps: false })
    }

    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        self.kind.passes_on(input, column, self.sides[0].schema.fields().len())
    }

    fn always_has(&self, input: usize) -> bool {
        self.kind.always_has(input)
    }

    fn describe(&self, columns: &[Vec<String>]) -> Description {
        let keys = self.sides.each_ref().map(|side| side.keys.as_slice());
        let mut properties = self.kind.properties(columns, keys, self.on.as_ref());
        let of = |side: usize| {
            list(columns.get(side).map_or(&[], Vec::as_slice), &[self.sides[side].window_end])
        };
        properties.insert(1, ("window", format!("{} = {}", of(0), of(1))));
        Description { name: "WindowJoin", properties }
    }
}

impl WindowJoin {
    fn terms(&self) -> Terms<'_> {
        let Self { kind, on, schema, both, .. } = self;
        Terms { kind: *kind, marks: false, on: on.as_ref(), schema, both }
    }
}

/// The rows of windows, by side.
type Sides = [Vec<RecordBatch>; 2];

/// Rows that wait for their window to end.
struct Joining {
    spec: WindowJoin,
    /// By side, none without rows.
    runs: [Vec<Run>; 2],
    /// The end of their first window.
    next: i64,
    firing: Option<Firing>,
    /// Windows of which all was given out.
    over: usize,
    held: usize,
}

impl KeyedState for Joining {
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        let run = Run::new(batch, self.spec.sides[input].window_end)?;
        let Some(next) = run.next() else { return Ok(()) };
        self.next = self.next.min(next);
        self.held += run.bytes();
        self.runs[input].push(run);
        Ok(())
    }

    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        loop {
            if let Some(firing) = &mut self.firing {
                if let Some((rows, _)) = firing.pairing.next(self.spec.terms(), rows_max)? {
                    return Ok(Some(rows.materialized()?));
                }
                self.held -= firing.bytes;
                self.over += firing.windows;
                self.firing = None;
            }
            if self.runs.iter().all(Vec::is_empty) || self.next > watermark {
                return Ok(None);
            }
            let (first, until) = (self.next, self.until(watermark, rows_max));
            let windows = self.windows(until);
            let due = self.take(until);
            let firing = Firing::new(&self.spec, due, first < until, rows_max)?;
            let firing = Firing { windows, ..firing };
            self.held += firing.bytes;
            self.firing = Some(firing);
        }
    }

    fn drain(&mut self) -> Result<InputBatches, DataflowError> {
        self.next = i64::MAX;
        let mut all = vec![];
        for (input, runs) in self.runs.iter_mut().enumerate() {
            for run in std::mem::take(runs) {
                self.held -= run.bytes();
                all.push((input, run.rest()));
            }
        }
        Ok(all)
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        at_rest(self.firing.is_none())?;
        let side = |(part, runs): (u32, &Vec<Run>)| {
            let rows = |run: &Run| SavedRows { part, rows: run.rest() };
            runs.iter().map(rows).collect::<Vec<_>>()
        };
        Ok((0..).zip(&self.runs).flat_map(side).collect())
    }

    fn load(&mut self, SavedRows { part, rows }: SavedRows) -> Result<(), DataflowError> {
        if part as usize >= self.runs.len() {
            return Err(no_part(part));
        }
        self.push(part as usize, rows)
    }

    fn windows_over(&mut self) -> usize {
        std::mem::take(&mut self.over)
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
    /// The end of the last window that meets with the first: of those until the watermark as many
    /// as have at most `rows_max` rows on either side, but one at least.
    fn until(&self, watermark: i64, rows_max: usize) -> i64 {
        let fit = |until: i64| {
            let rows = |runs: &Vec<Run>| runs.iter().map(|run| run.due(until)).sum::<usize>();
            self.runs.iter().all(|runs| rows(runs) <= rows_max)
        };
        let last = self.runs.iter().flatten().filter_map(|run| run.last(watermark)).max();
        let (mut least, mut most) = (self.next, last.unwrap_or(self.next));
        if fit(most) {
            return most;
        }
        if !fit(least) {
            return least;
        }
        while least < most {
            let middle = most - (most.abs_diff(least) / 2) as i64;
            if fit(middle) { least = middle } else { most = middle - 1 }
        }
        least
    }

    /// How many windows until that have rows.
    fn windows(&self, until: i64) -> usize {
        if until == self.next {
            return 1;
        }
        let mut ends = BTreeSet::new();
        self.runs.iter().flatten().for_each(|run| run.windows(until, &mut ends));
        ends.len()
    }

    /// Takes out the rows of windows until that.
    fn take(&mut self, until: i64) -> Sides {
        let mut due = Sides::default();
        for (runs, due) in self.runs.iter_mut().zip(&mut due) {
            runs.retain_mut(|run| {
                due.extend(run.take(until));
                let is_left = run.next().is_some();
                self.held -= if is_left { 0 } else { run.bytes() };
                is_left
            });
        }
        self.next = self.runs.iter().flatten().filter_map(Run::next).min().unwrap_or(i64::MAX);
        due
    }
}

/// The rows of windows, on their way out.
struct Firing {
    pairing: Pairing,
    windows: usize,
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
        let [built, others] = [1 - probed, probed].map(|side| std::mem::take(&mut sides[side]));
        let (schema, keys) = of(1 - probed);
        let hashed = Arc::new(Hashed::new(built, schema, &keys, NullKeys::Nothing)?);
        let (schema, keys) = of(probed);
        let batches = gathered(schema, others, rows_max)?;
        let bytes = hashed.bytes() + batches.iter().map(bytes_of).sum::<usize>();
        let probe = ProbeSide { side: probed, keys: &keys };
        let pairing = Pairing::new(probe, batches, hashed, spec.kind);
        Ok(Self { pairing, windows: 1, bytes })
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
) -> Result<Vec<RecordBatch>, DataflowError> {
    let mut gathered = Vec::with_capacity(batches.len());
    let mut few: Vec<RecordBatch> = vec![];
    for batch in batches {
        let is_large = |rows: usize| rows >= rows_max / LARGE_PART;
        if is_large(batch.num_rows()) || rows_of(&few) + batch.num_rows() > rows_max {
            gathered.push(concat_batches(schema, &few)?);
            few.clear();
        }
        if is_large(batch.num_rows()) { gathered.push(batch) } else { few.push(batch) }
    }
    gathered.push(concat_batches(schema, &few)?);
    gathered.retain(|batch| batch.num_rows() > 0);
    Ok(gathered)
}

#[cfg(test)]
mod tests;
