//! Sessions: rows of a key between which no pause is longer than a gap (S5).
//!
//! Rows are kept in slices half a gap wide, as those of any window are. Rows of one key and slice
//! are always of one session, so that a group of a slice is a *partial session*: the first and the
//! last time of its rows, and its aggregates. Partial sessions merge as groups do, commutatively
//! and associatively, which is why exchanges move them without knowing what they are.
//!
//! A session is a chain of partial ones. The slices are walked in order of time, each when no row
//! can come for it any more, and by key the one session is kept that a later slice may continue:
//!
//! ```text
//! slices    │ a b │ a   │     │   b │       gap = two slices
//! sessions  a───────────┄┄┄┄┄┄┄             over when the third slice begins
//!             b─────┄┄┄┄┄┄┄   b────┄┄┄┄     the second b begins behind the end of the first
//! ```
//!
//! At each slice the open sessions move to another table, but those that are over, which are given
//! out. Each of them has had a row in the last few slices, so that moving costs no more than rows
//! do.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Int64Type};

use crate::index::Index;
use crate::saved::SavedBlock;
use crate::{
    GroupBy, GroupColumns, Groups, KeyMode, Part, SaveRound, Slice, Slices, StateError, Windows,
};

/// The sessions of the keys of one leader that may go on.
pub(crate) struct Sessions {
    spec: Arc<GroupBy>,
    windows: Windows,
    gap: i64,
    /// By key what came before the slices that are left.
    open: Slice,
    /// No session of `open` ends before this.
    first_end: i64,
    pass: Option<Pass>,
    /// An emptied table for the next pass.
    recycled: Option<Slice>,
}

/// Open sessions on their way from one table to the next.
struct Pass {
    adding: Adding,
    next: Slice,
    first_end: i64,
    /// All rows to come are at this time or later, but for those of the slice that is added.
    until: i64,
}

/// A slice that is added to the open sessions.
#[derive(Default)]
struct Adding {
    index: Option<Index>,
    /// By the index's id the time of the key's first row.
    starts: Vec<i64>,
    parts: Vec<GroupColumns>,
    bytes: usize,
    ids: Vec<u32>,
    words: Vec<u64>,
}

impl Sessions {
    /// No sessions. The last two aggregates are the least and the greatest time of a session.
    pub(crate) fn new(spec: &Arc<GroupBy>, windows: Windows, gap: i64) -> Self {
        Self {
            spec: Arc::clone(spec),
            windows,
            gap,
            open: Slice::new(spec),
            first_end: i64::MAX,
            pass: None,
            recycled: None,
        }
    }

    /// Bytes held beside the slices.
    pub(crate) fn bytes(&self) -> usize {
        let next = self.pass.as_ref().map(|pass| &pass.next);
        let tables = [Some(&self.open), next, self.recycled.as_ref()];
        let adding = self.pass.as_ref().map_or(0, |pass| pass.adding.bytes());
        tables.into_iter().flatten().map(Slice::bytes).sum::<usize>() + adding
    }

    /// Saves the sessions that a later slice may continue, and keeps them: see [`Slice::save`].
    ///
    /// # Errors
    /// Errors of accumulators and of `each`; [`StateError::BeingDrained`] while some are given out.
    pub(crate) fn save<E: From<StateError>>(
        &mut self,
        round: SaveRound,
        serial: u64,
        each: impl FnMut(SavedBlock) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.pass.is_some() {
            return Err(StateError::BeingDrained.into());
        }
        self.open.save(round, serial, each)
    }

    /// Adds sessions of keys that have none here.
    ///
    /// # Errors
    /// As [`Slice::merge`].
    pub(crate) fn load(&mut self, part: &GroupColumns) -> Result<(), StateError> {
        let (_, lasts) = times_of(part)?;
        let ends = lasts.into_iter().map(|last| last.saturating_add(self.gap));
        self.first_end = ends.fold(self.first_end, i64::min);
        self.open.merge(&part.keys, &part.states)
    }

    /// Some of the sessions that are over at `watermark`; `None` if all were emitted.
    ///
    /// # Errors
    /// Errors of accumulators.
    pub(crate) fn trigger(
        &mut self,
        slices: &mut Slices,
        watermark: i64,
    ) -> Result<Option<GroupColumns>, StateError> {
        loop {
            let Some(pass) = &mut self.pass else {
                let Some((slice, until)) = self.next(slices, watermark) else { return Ok(None) };
                self.begin(slices, slice, until)?;
                continue;
            };
            match self.open.take_delta()? {
                Some(part) => {
                    if let Some(over) = pass.carry(part, self.gap)? {
                        return values_of(&self.spec, over).map(Some);
                    }
                }
                None => self.finish()?,
            }
        }
    }

    /// The slice to add, if one is complete, and the time before which no other row will come;
    /// `None` if there is nothing to do.
    fn next(&self, slices: &Slices, watermark: i64) -> Option<(Option<i64>, i64)> {
        let horizon = self.windows.horizon(watermark);
        let mut starts = slices.starts();
        let first = starts.next();
        let complete =
            |&start: &i64| horizon == i64::MAX || self.windows.slice_end(start) <= horizon;
        if let Some(slice) = first.filter(complete) {
            return Some((Some(slice), starts.next().unwrap_or(i64::MAX).min(horizon)));
        }
        let until = first.unwrap_or(i64::MAX).min(horizon);
        let any = !self.open.is_empty() && is_over(self.first_end, until);
        any.then_some((None, until))
    }

    fn begin(
        &mut self,
        slices: &mut Slices,
        slice: Option<i64>,
        until: i64,
    ) -> Result<(), StateError> {
        let mut pass = Pass {
            adding: Adding::default(),
            next: self.recycled.take().unwrap_or_else(|| Slice::new(&self.spec)),
            first_end: i64::MAX,
            until,
        };
        if let Some(slice) = slice {
            let mut index = Index::new(&self.spec.keys, Some(KeyMode::Hash), true);
            let mut gathering = if slices.is_cold(slice) {
                Some(slices.gather([(slice, true)].into_iter())?)
            } else {
                None
            };
            let mut take = || match &mut gathering {
                Some(gathering) => slices.gathered(gathering, Slice::take_delta),
                None => slices.take_delta(slice),
            };
            while let Some(part) = take()? {
                let last = pass.adding.add(&mut index, part)?;
                pass.first_end = pass.first_end.min(last.saturating_add(self.gap));
            }
            pass.adding.index = Some(index);
        }
        self.pass = Some(pass);
        Ok(())
    }

    /// The open sessions have moved: the slice's own follow.
    fn finish(&mut self) -> Result<(), StateError> {
        let Some(mut pass) = self.pass.take() else { return Ok(()) };
        for part in pass.adding.parts {
            pass.next.merge(&part.keys, &part.states)?;
        }
        self.recycled = Some(std::mem::replace(&mut self.open, pass.next));
        self.first_end = pass.first_end;
        Ok(())
    }
}

impl Pass {
    /// Moves open sessions; gives those that are over.
    fn carry(&mut self, part: GroupColumns, gap: i64) -> Result<Option<GroupColumns>, StateError> {
        let rows = part.rows();
        let (_, lasts) = times_of(&part)?;
        self.adding.find(&part)?;
        let (mut stay, mut over) = (Vec::with_capacity(rows), Vec::new());
        for (row, last) in lasts.into_iter().enumerate() {
            let end = last.saturating_add(gap);
            match self.adding.start_of(row) {
                Some(start) if start <= end => stay.push(row as u32),
                None if !is_over(end, self.until) => {
                    self.first_end = self.first_end.min(end);
                    stay.push(row as u32);
                }
                _ => over.push(row as u32),
            }
        }
        if over.is_empty() {
            self.next.merge(&part.keys, &part.states)?;
            return Ok(None);
        }
        if stay.is_empty() {
            return Ok(Some(part));
        }
        let stay = rows_of(&part, stay)?;
        self.next.merge(&stay.keys, &stay.states)?;
        rows_of(&part, over).map(Some)
    }
}

impl Adding {
    /// Takes groups of the slice; gives the least of their last times.
    fn add(&mut self, index: &mut Index, part: GroupColumns) -> Result<i64, StateError> {
        let (starts, lasts) = times_of(&part)?;
        index.intern(&part.keys, part.rows(), &mut self.words, &mut self.ids)?;
        self.starts.resize(index.total(), i64::MAX);
        for (&id, start) in self.ids.iter().zip(starts) {
            self.starts[id as usize] = start;
        }
        let columns = part.keys.iter().chain(&part.states);
        self.bytes += columns.map(|column| column.get_array_memory_size()).sum::<usize>();
        self.parts.push(part);
        Ok(lasts.into_iter().min().unwrap_or(i64::MAX))
    }

    /// Looks for the keys of a part.
    fn find(&mut self, part: &GroupColumns) -> Result<(), StateError> {
        match &mut self.index {
            Some(index) => index.intern(&part.keys, part.rows(), &mut self.words, &mut self.ids),
            None => Ok(()),
        }
    }

    /// When the key of row `row` of the part that was looked for begins in this slice, if it is
    /// there. Keys that are not were given ids behind those that are.
    fn start_of(&self, row: usize) -> Option<i64> {
        self.starts.get(*self.ids.get(row)? as usize).copied()
    }

    fn bytes(&self) -> usize {
        let index = self.index.as_ref().map_or(0, Index::bytes);
        let scratch =
            self.starts.capacity() * 8 + self.ids.capacity() * 4 + self.words.capacity() * 8;
        self.bytes + index + scratch
    }
}

/// Whether a session is over that ends at `end`, exclusively: a row at the end would continue it.
fn is_over(end: i64, until: i64) -> bool {
    end < until || until == i64::MAX
}

/// The first and last times of partial sessions: the last two columns of their states.
fn times_of(part: &GroupColumns) -> Result<(Vec<i64>, Vec<i64>), StateError> {
    let [.., first, last] = &part.states[..] else {
        let got = part.states.len();
        return Err(StateError::Shape { what: "states of a session", expected: 2, got });
    };
    let ticks = |column: &ArrayRef| -> Result<Vec<i64>, StateError> {
        let ticks = cast(column, &DataType::Int64)?;
        Ok(ticks.as_primitive::<Int64Type>().values().to_vec())
    };
    Ok((ticks(first)?, ticks(last)?))
}

fn rows_of(part: &GroupColumns, rows: Vec<u32>) -> Result<GroupColumns, StateError> {
    let rows = UInt32Array::from(rows);
    let of = |columns: &[ArrayRef]| -> Result<Vec<ArrayRef>, StateError> {
        columns.iter().map(|column| Ok(take(column, &rows, None)?)).collect()
    };
    Ok(GroupColumns { keys: of(&part.keys)?, states: of(&part.states)? })
}

/// The values of groups, of which each is there once.
fn values_of(spec: &GroupBy, groups: GroupColumns) -> Result<GroupColumns, StateError> {
    let rows = groups.rows();
    let ids: Vec<u32> = (0..rows as u32).collect();
    let each = Groups::each(&ids);
    let mut states = &groups.states[..];
    let mut values = Vec::with_capacity(spec.aggregates.len());
    for aggregate in &spec.aggregates {
        let (own, rest) = states.split_at(aggregate.state_types().len());
        let mut accumulator = aggregate.create();
        accumulator.merge(own, &each, rows)?;
        values.push(accumulator.values(&Part::all(0..rows, rows))?);
        states = rest;
    }
    Ok(GroupColumns { keys: groups.keys, states: values })
}

#[cfg(test)]
mod tests;
