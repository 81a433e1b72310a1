//! The slices of one operator in order of time, within a budget of memory; with a disk, of any size
//! beyond it ([`cold`]).

mod cold;
mod saved;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::ArrayRef;

use self::cold::Cold;
pub use self::saved::SavedGroups;
use crate::partition::RowsByOwner;
use crate::spec::ARRAY_PART;
use crate::spill::SpillRun;
use crate::{
    ConsumedRows, GroupBy, GroupColumns, KeyModes, Partitioner, RawRows, Slice, StateError,
};

/// The part of the budget that all slices may hold for one of them to get a sparse array.
const ARRAYS_PART: usize = 4;
/// How many emptied slices are kept for the next ones.
const FREE_MAX: usize = 2;

/// Slices by their start. Firing or dropping one costs nothing per key that stays.
///
/// Memory that emptied slices keep counts as held. An array that is larger than a hash table of its
/// groups is one slice's as long as it takes at most an eighth of the budget and all slices
/// together a quarter: however many slices are open, arrays cannot exhaust the budget on their own.
pub struct Slices {
    spec: Arc<GroupBy>,
    live: BTreeMap<i64, Live>,
    free: Vec<Slice>,
    bytes: usize,
    /// Bytes that all slices may hold now.
    budget: usize,
    /// How often rows or deltas have come.
    changes: u64,
    /// How groups have been found.
    modes: KeyModes,
    /// Where groups go that do not fit.
    cold: Option<Cold>,
}

/// A slice, and when it has changed.
#[derive(Default)]
struct Live {
    /// Groups in memory.
    slice: Option<Slice>,
    /// Groups on disk.
    runs: Vec<Arc<SpillRun>>,
    /// [`Slices::changes`] when rows or a delta came for it last.
    changed: u64,
}

impl Slices {
    /// No slices.
    pub fn new(spec: &Arc<GroupBy>) -> Self {
        let budget = spec.options.budget_bytes;
        let (spec, live) = (Arc::clone(spec), BTreeMap::new());
        Self {
            spec,
            live,
            free: vec![],
            bytes: 0,
            budget,
            changes: 0,
            modes: KeyModes::default(),
            cold: None,
        }
    }

    /// Bytes that all slices may hold from now on, where others share a budget with them. Arrays
    /// stay within their part of the whole budget.
    pub fn set_budget(&mut self, bytes: usize) {
        self.budget = bytes;
    }

    /// Adds `rows` rows of a batch to the slice that starts at `start`: see [`Slice::update_rows`].
    ///
    /// # Errors
    /// [`StateError::Budget`] before anything is applied; else as [`Slice::update_rows`].
    pub fn update(
        &mut self,
        start: i64,
        rows: usize,
        keys: &[ArrayRef],
        args: &[Vec<ArrayRef>],
    ) -> Result<(), StateError> {
        self.apply(start, |slice| slice.update_rows(rows, keys, args))
    }

    /// Whether rows that were read for the slice that starts at `start` are likely to be taken by
    /// [`Slices::update_raw`]: by a new one, if it has memory of one that was emptied.
    pub fn takes_raw(&self, start: i64) -> bool {
        let slice = match self.live.get(&start) {
            Some(live) => live.slice.as_ref(),
            None => self.free.last(),
        };
        slice.is_some_and(Slice::takes_raw)
    }

    /// Adds rows as they were read to the slice that starts at `start`, up to the first that is not
    /// as they have it, or some less: none where rows are to come in columns. `args` are the
    /// argument columns of the only aggregate.
    ///
    /// # Errors
    /// As [`Slices::update`].
    pub fn update_raw(
        &mut self,
        start: i64,
        rows: &RawRows<'_>,
        args: &[ArrayRef],
    ) -> Result<ConsumedRows, StateError> {
        if !self.takes_raw(start) {
            return Ok(ConsumedRows::default());
        }
        let folded = self.apply(start, |slice| slice.update_raw(rows, args))?;
        if folded.passed == 0 && self.get(start).is_some_and(Slice::is_empty) {
            self.release(start);
        }
        Ok(folded)
    }

    /// Merges a delta into the slice that starts at `start`: see [`Slice::merge`].
    ///
    /// # Errors
    /// [`StateError::Budget`] before anything is applied; else as [`Slice::merge`].
    pub fn merge(
        &mut self,
        start: i64,
        keys: &[ArrayRef],
        states: &[ArrayRef],
    ) -> Result<(), StateError> {
        self.apply(start, |slice| slice.merge(keys, states))
    }

    /// The partial states of the next groups of the slice that starts at `start`; when there are no
    /// more, `None`, and the slice is gone. See [`Slice::take_delta`].
    ///
    /// # Errors
    /// As [`Slice::take_delta`].
    ///
    /// # Panics
    /// If groups of it are on disk: [`Windowed`](crate::Windowed) puts these together.
    pub fn take_delta(&mut self, start: i64) -> Result<Option<GroupColumns>, StateError> {
        self.take(start, Slice::take_delta)
    }

    /// The values of the next groups of the slice that starts at `start`, as
    /// [`Slices::take_delta`].
    ///
    /// # Errors
    /// As [`Slice::take_values`].
    ///
    /// # Panics
    /// As [`Slices::take_delta`].
    pub fn take_values(&mut self, start: i64) -> Result<Option<GroupColumns>, StateError> {
        self.take(start, Slice::take_values)
    }

    /// Gives away the groups of which `own` is not the owner, of all slices that rows have come for
    /// since the last call. `each` gets, part by part, the start of the slice, which rows are
    /// whose, and the rows; what it is told of `own` is of no account, for those groups stay. Gives
    /// how many stayed of those slices, at most: each was looked at.
    ///
    /// # Errors
    /// Errors of accumulators and of `each`; [`StateError::BeingDrained`] for a slice that is being
    /// drained.
    pub fn take_remote_groups<E: From<StateError>>(
        &mut self,
        own: u32,
        partitioner: &mut Partitioner,
        mut each: impl FnMut(i64, &RowsByOwner, &GroupColumns) -> Result<(), E>,
    ) -> Result<usize, E> {
        let (budget, mut stayed) = (self.budget, 0);
        for (&start, Live { slice, .. }) in &mut self.live {
            let Some(slice) = slice else { continue };
            let (all, mut recycled) = (self.bytes, self.free.pop());
            let before = slice.bytes() + recycled.as_ref().map_or(0, Slice::bytes);
            slice.set_room(budget.saturating_sub(all));
            let given = slice.take_remote_groups(
                own,
                partitioner,
                &mut recycled,
                |split, columns| each(start, split, columns),
                |error| over_budget(error, all, budget),
            );
            self.bytes = all - before + slice.bytes();
            if let Some(recycled) =
                recycled.filter(|recycled| self.bytes + recycled.bytes() <= budget)
            {
                self.bytes += recycled.bytes();
                self.free.push(recycled);
            }
            stayed += given?;
        }
        Ok(stayed)
    }

    /// Merges all groups of the slice that starts at `start` into `into`; the slice keeps them.
    ///
    /// # Errors
    /// As [`Slice::merge`].
    pub(crate) fn merge_into(&mut self, start: i64, into: &mut Slice) -> Result<(), StateError> {
        let Some(slice) = self.live.get_mut(&start).and_then(Live::whole) else { return Ok(()) };
        let others = self.bytes - slice.bytes();
        let merged = into.merge_all_of(slice);
        self.bytes = others + slice.bytes();
        merged
    }

    /// Drops the slice that starts at `start`. False if there was none.
    pub fn drop_slice(&mut self, start: i64) -> bool {
        let dropped = self.live.remove(&start);
        self.bytes -= dropped.as_ref().map_or(0, Live::bytes);
        dropped.is_some()
    }

    /// The starts of the slices, ascending.
    pub fn starts(&self) -> impl Iterator<Item = i64> {
        self.live.keys().copied()
    }

    /// The starts of the slices from `start` on, ascending.
    pub(crate) fn starts_from(&self, start: i64) -> impl Iterator<Item = i64> {
        self.live.range(start..).map(|(start, _)| *start)
    }

    /// The start of the earliest slice.
    pub fn first(&self) -> Option<i64> {
        self.live.keys().next().copied()
    }

    /// The part in memory of the slice that starts at `start`.
    pub fn get(&self, start: i64) -> Option<&Slice> {
        self.live.get(&start).and_then(|live| live.slice.as_ref())
    }

    /// When rows or a delta came last for the slice that starts at `start`: numbers that ascend
    /// with each change of any slice, from 1; 0 if there is no such slice.
    pub(crate) fn changed(&self, start: i64) -> u64 {
        self.live.get(&start).map_or(0, |live| live.changed)
    }

    /// How many slices.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether there are no slices.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// A bound on the groups in memory of all slices: where keys are an array, the length of its
    /// range.
    pub fn groups_at_most(&self) -> usize {
        self.live.values().flat_map(|live| &live.slice).map(Slice::groups_at_most).sum()
    }

    /// The key modes that slices have been in.
    pub fn key_modes(&self) -> KeyModes {
        self.modes
    }

    /// Bytes held, those of emptied slices included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn apply<T>(
        &mut self,
        start: i64,
        apply: impl Fn(&mut Slice) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        let budget = self.budget;
        if self.bytes >= budget {
            self.free.drain(..).for_each(|slice| self.bytes -= slice.bytes());
            self.spill_down()?;
            if self.bytes >= self.limit() {
                return Err(StateError::Budget { bytes: self.bytes, budget });
            }
        }
        self.changes += 1;
        let applied = match self.apply_in_memory(start, budget, &apply) {
            // An array would outgrow the budget, and nothing has happened yet.
            Err(StateError::Growth { .. }) if self.cold.is_some() => {
                self.spill(start)?;
                self.spill_down()?;
                self.apply_in_memory(start, self.limit(), &apply)
            }
            applied => applied,
        }
        .map_err(|error| over_budget(error, self.bytes, budget))?;
        // The slice may double with the next rows.
        let next = self.get(start).map_or(0, Slice::bytes);
        if self.bytes.saturating_add(next) > budget {
            self.spill_down()?;
        }
        Ok(applied)
    }

    /// Bytes at which nothing more is taken. Where groups are spilled, the budget says when: groups
    /// that others own are not, but are given away with the next delta, and until then they may
    /// take what the job has for all of its state.
    fn limit(&self) -> usize {
        match self.cold {
            Some(_) => self.budget.max(self.spec.options.budget_bytes),
            None => self.budget,
        }
    }

    fn apply_in_memory<T>(
        &mut self,
        start: i64,
        budget: usize,
        apply: &impl Fn(&mut Slice) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        let all = self.spec.options.budget_bytes;
        let Live { slice, changed, .. } = self.live.entry(start).or_default();
        *changed = self.changes;
        let slice = slice.get_or_insert_with(|| {
            self.free.pop().unwrap_or_else(|| {
                let slice = if self.cold.is_some() {
                    Slice::spilling(&self.spec)
                } else {
                    Slice::new(&self.spec)
                };
                self.bytes += slice.bytes();
                slice
            })
        });
        let before = slice.bytes();
        let others = self.bytes - before;
        slice.set_array_bytes_max((all / ARRAYS_PART).saturating_sub(others).min(all / ARRAY_PART));
        slice.set_room(budget.saturating_sub(self.bytes));
        let applied = apply(slice);
        if !slice.is_empty() {
            self.modes.insert(slice.key_mode());
        }
        self.bytes = others + slice.bytes();
        applied
    }

    fn take(
        &mut self,
        start: i64,
        take: impl FnOnce(&mut Slice) -> Result<Option<GroupColumns>, StateError>,
    ) -> Result<Option<GroupColumns>, StateError> {
        let Some(slice) = self.live.get_mut(&start).and_then(Live::whole) else { return Ok(None) };
        let others = self.bytes - slice.bytes();
        let part = take(slice)?;
        self.bytes = others + slice.bytes();
        if part.is_none() {
            self.release(start);
        }
        Ok(part)
    }

    /// The slice that starts at `start` has no groups: it is gone, and its memory is for others.
    fn release(&mut self, start: i64) {
        let Some(Live { slice: Some(slice), .. }) = self.live.remove(&start) else { return };
        if self.free.len() < FREE_MAX { self.free.push(slice) } else { self.bytes -= slice.bytes() }
    }
}

impl Live {
    /// Bytes of memory.
    fn bytes(&self) -> usize {
        let runs = self.runs.iter().map(|run| run.bytes());
        self.slice.as_ref().map_or(0, Slice::bytes) + runs.sum::<usize>()
    }

    /// The slice, all of which is in memory: what is not is gathered.
    fn whole(&mut self) -> Option<&mut Slice> {
        assert!(self.runs.is_empty(), "groups on disk are gathered");
        self.slice.as_mut()
    }
}

/// What a slice that may not grow says of itself, said of all slices, which hold `held` bytes.
fn over_budget(error: StateError, held: usize, budget: usize) -> StateError {
    match error {
        StateError::Growth { bytes } => StateError::Budget { bytes: held + bytes, budget },
        error => error,
    }
}
