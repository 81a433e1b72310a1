//! The state of one slice of time: an index of groups, and an accumulator per aggregate.
//!
//! A slice is either a partial that a helper fills by [`Slice::update`] and empties by
//! [`Slice::take_delta`], or a merged state that a leader fills by [`Slice::merge`] and reads by
//! [`Slice::take_values`]; both at once is allowed, as a leader is a helper of itself.
//!
//! The slice chooses the key mode and changes it while it runs: integer keys go to Array while
//! their range is small for the number of groups, else to Hash. Moving is taking all state and
//! merging it into new accumulators; it happens when sizes double, so that it costs a constant per
//! group. An emptied slice keeps its mode and memory.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::FilterBuilder;
use arrow::datatypes::DataType;

use crate::error::same;
use crate::index::array::{ArrayIndex, Range};
use crate::index::hash::WordIndex;
use crate::index::{Index, KeyMode};
use crate::table::Table;
use crate::{Accumulator, Aggregate, Groups, Holes, StateError, kernel, words};

/// A range of so many keys is never too sparse for an array.
const RANGE_FREE: u64 = 1 << 16;
/// How many times the range of an array may exceed the number of its groups: at 16, a counter of 4
/// bytes takes as much memory as its group would in a hash table.
const SPARSE_MAX: u64 = 16;

/// An array that takes the place of a hash table leaves this part of its range free below, if it is
/// no longer for that.
const BELOW_PART: u64 = 64;

/// What rows are grouped by and what is computed of each group: shared by all slices of an
/// operator.
#[derive(Debug)]
pub struct GroupBy {
    /// The types of the keys.
    pub keys: Vec<DataType>,
    /// The aggregates.
    pub aggregates: Vec<Arc<dyn Aggregate>>,
    /// Limits and preferences.
    pub options: StateOptions,
}

/// Limits and preferences of state.
#[derive(Debug, Clone)]
pub struct StateOptions {
    /// How many bytes all slices of an operator may hold. Exceeded by at most what one batch adds.
    pub budget_bytes: usize,
    /// How many keys the range of an array may have, at most 2³⁰.
    pub array_range_max: usize,
    /// The key mode to use wherever the keys allow it.
    pub key_mode: Option<KeyMode>,
}

impl Default for StateOptions {
    /// 1 GiB, arrays up to 128 Mi keys, key modes by what the data are like.
    fn default() -> Self {
        Self { budget_bytes: 1 << 30, array_range_max: 128 << 20, key_mode: None }
    }
}

/// Groups as columns: row `i` of each column is of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// The keys, in their original types.
    pub keys: Vec<ArrayRef>,
    /// The states of all aggregates one after another, or one column of values per aggregate.
    pub states: Vec<ArrayRef>,
}

impl Columns {
    /// How many groups.
    pub fn rows(&self) -> usize {
        self.keys.first().or(self.states.first()).map_or(0, |column| column.len())
    }
}

impl GroupBy {
    /// The types of the columns of a delta's `states`.
    pub fn state_types(&self) -> Vec<DataType> {
        self.aggregates.iter().flat_map(|aggregate| aggregate.state_types()).collect()
    }

    /// Whether an aggregate may keep arrays that it was given ([`Aggregate::keeps_arrays`]).
    pub fn keeps_arrays(&self) -> bool {
        self.aggregates.iter().any(|aggregate| aggregate.keeps_arrays())
    }

    /// The types of the values.
    pub fn output_types(&self) -> Vec<DataType> {
        self.aggregates.iter().map(|aggregate| aggregate.output_type()).collect()
    }

    /// The values of a group without rows: what a query without keys answers over no input.
    ///
    /// # Errors
    /// Those of [`crate::Accumulator::evaluate`].
    pub fn of_nothing(&self) -> Result<Vec<ArrayRef>, StateError> {
        self.aggregates.iter().map(|aggregate| aggregate.create().evaluate(1)).collect()
    }

    fn holes(&self) -> bool {
        self.aggregates.iter().all(|aggregate| aggregate.holes() != Holes::Refused)
    }
}

/// What a batch brings.
#[derive(Clone, Copy)]
enum Input<'a> {
    /// Arguments per aggregate.
    Rows(&'a [Vec<ArrayRef>]),
    /// States of all aggregates.
    States(&'a [ArrayRef]),
}

/// The state of one slice.
pub struct Slice {
    spec: Arc<GroupBy>,
    index: Index,
    accumulators: Vec<Box<dyn Accumulator>>,
    /// The accumulator that knows which ids have rows, if there is one.
    teller: Option<usize>,
    /// Which ids have rows, where they may have holes and there is no teller.
    marks: Table<u8>,
    /// False before the first row.
    started: bool,
    /// Scratch: the ids of a batch, and its words.
    ids: Vec<u32>,
    words: Vec<u64>,
}

impl Slice {
    /// An empty slice. Keys of types that cannot be grouped are refused with the first rows.
    pub fn new(spec: &Arc<GroupBy>) -> Self {
        let index = Index::new(&spec.keys, spec.options.key_mode, !spec.holes());
        Self {
            spec: Arc::clone(spec),
            index,
            accumulators: spec.aggregates.iter().map(|aggregate| aggregate.create()).collect(),
            teller: spec.aggregates.iter().position(|aggregate| aggregate.holes() == Holes::Told),
            marks: Table::new(),
            started: false,
            ids: vec![],
            words: vec![],
        }
    }

    /// Adds the rows of a batch: `keys` has a column per key and `args` the argument columns of
    /// each aggregate.
    ///
    /// Without keys and arguments (`count(*)` alone) there is nothing to tell the number of rows:
    /// use [`Slice::update_rows`].
    ///
    /// # Errors
    /// [`StateError::Shape`] or [`StateError::Type`] if columns do not fit; [`StateError::Full`];
    /// errors of accumulators.
    pub fn update(&mut self, keys: &[ArrayRef], args: &[Vec<ArrayRef>]) -> Result<(), StateError> {
        let any = keys.first().or_else(|| args.iter().flatten().next());
        let missing = StateError::Shape { what: "columns", expected: 1, got: 0 };
        self.update_rows(any.ok_or(missing)?.len(), keys, args)
    }

    /// As [`Slice::update`], for `rows` rows.
    ///
    /// # Errors
    /// As [`Slice::update`].
    pub fn update_rows(
        &mut self,
        rows: usize,
        keys: &[ArrayRef],
        args: &[Vec<ArrayRef>],
    ) -> Result<(), StateError> {
        same("aggregates with arguments", self.accumulators.len(), args.len())?;
        args.iter().flatten().try_for_each(|arg| same("rows of an argument", rows, arg.len()))?;
        self.apply(rows, keys, Input::Rows(args))
    }

    /// Merges a delta: `states` has the columns of all aggregates' states one after another.
    ///
    /// # Errors
    /// As [`Slice::update`].
    pub fn merge(&mut self, keys: &[ArrayRef], states: &[ArrayRef]) -> Result<(), StateError> {
        let types = self.spec.aggregates.iter().map(|aggregate| aggregate.state_types().len());
        same("columns of state", types.sum(), states.len())?;
        let rows = keys.first().or(states.first()).map_or(0, |column| column.len());
        states.iter().try_for_each(|state| same("rows of a state", rows, state.len()))?;
        self.apply(rows, keys, Input::States(states))
    }

    /// The partial state of each group, leaving none (S9 step 5: the groups restart from zero).
    ///
    /// # Errors
    /// Errors of accumulators.
    pub fn take_delta(&mut self) -> Result<Columns, StateError> {
        self.take(|accumulator, total| accumulator.take_state(total))
    }

    /// The values of each group, leaving no state.
    ///
    /// # Errors
    /// Errors of accumulators.
    pub fn take_values(&mut self) -> Result<Columns, StateError> {
        self.take(|accumulator, total| Ok(vec![accumulator.evaluate(total)?]))
    }

    /// How many groups have state. Counts them, if the key mode is Array.
    pub fn groups(&self) -> usize {
        match self.occupied() {
            _ if !self.started => 0,
            Some(occupied) => occupied.count_set_bits(),
            None => self.index.total(),
        }
    }

    /// A bound on [`Slice::groups`] that costs nothing.
    pub fn groups_at_most(&self) -> usize {
        if self.started { self.index.total() } else { 0 }
    }

    /// Whether no group has state.
    pub fn is_empty(&self) -> bool {
        !self.started
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let accumulators = self.accumulators.iter().map(|accumulator| accumulator.bytes());
        let scratch = self.ids.capacity() * 4 + self.words.capacity() * 8;
        accumulators.sum::<usize>() + self.index.bytes() + self.marks.bytes() + scratch
    }

    /// How groups are found at the moment.
    pub fn key_mode(&self) -> KeyMode {
        self.index.mode()
    }

    fn apply(
        &mut self,
        rows: usize,
        keys: &[ArrayRef],
        input: Input<'_>,
    ) -> Result<(), StateError> {
        same("keys", self.spec.keys.len(), keys.len())?;
        for (key, expected) in keys.iter().zip(&self.spec.keys) {
            same("rows of a key", rows, key.len())?;
            if key.data_type() != expected {
                let (expected, got) = (expected.clone(), key.data_type().clone());
                return Err(StateError::Type { what: "key", expected, got });
            }
        }
        if rows == 0 {
            return Ok(());
        }
        if self.is_direct() && input.has_nulls() {
            self.go_dense()?;
        }
        let ids = std::mem::take(&mut self.ids);
        let (ids, interned) = self.intern(keys, ids);
        let applied = interned.and_then(|()| {
            let groups = match self.index {
                Index::One => Groups::one(0, rows),
                _ => Groups::each(&ids),
            };
            self.accumulate(input, &groups)
        });
        self.ids = ids;
        applied
    }

    fn accumulate(&mut self, input: Input<'_>, groups: &Groups) -> Result<(), StateError> {
        self.started = true;
        let total = self.index.total();
        if self.is_direct() && self.teller.is_none() {
            self.marks.grow(total.max(groups.reach() + 1));
            kernel::touch(self.marks.as_mut(), groups, |mark| *mark = 1);
        }
        match input {
            Input::Rows(args) => {
                for (accumulator, args) in self.accumulators.iter_mut().zip(args) {
                    accumulator.update(args, groups, total)?;
                }
            }
            Input::States(states) => {
                let mut states = states;
                for (accumulator, aggregate) in
                    self.accumulators.iter_mut().zip(&self.spec.aggregates)
                {
                    let (own, rest) = states.split_at(aggregate.state_types().len());
                    accumulator.merge(own, groups, total)?;
                    states = rest;
                }
            }
        }
        Ok(())
    }

    /// The ids of a batch's keys.
    fn intern(
        &mut self,
        keys: &[ArrayRef],
        mut ids: Vec<u32>,
    ) -> (Vec<u32>, Result<(), StateError>) {
        let interned = match &mut self.index {
            Index::One => Ok(()),
            Index::Refused(keys) => Err(StateError::Key(keys.clone())),
            Index::Packed(index) => index.intern(keys, &mut ids),
            Index::Wide(index) => index.intern(keys, &mut ids),
            Index::Array(_) | Index::Hash(_) => {
                let mut scratch = std::mem::take(&mut self.words);
                let interned = words::words(&keys[0], &mut scratch).and_then(|words| {
                    let nulls = keys[0].nulls().filter(|nulls| nulls.null_count() > 0);
                    self.intern_words(words, nulls, &mut ids)
                });
                self.words = scratch;
                interned
            }
        };
        (ids, interned)
    }

    fn intern_words(
        &mut self,
        words: &[u64],
        nulls: Option<&NullBuffer>,
        ids: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        if let Index::Hash(index) = &mut self.index
            && index.total() >= index.ask_at
        {
            index.ask_at = index.total() + index.total() / 2;
            let range = index.range();
            self.maybe_array(range)?;
        }
        if let Index::Array(index) = &mut self.index {
            if index.intern(words, nulls, ids)? {
                return Ok(());
            }
            if let Some(range) = Range::of(words, nulls) {
                self.stretch(range, words.len())?;
            }
        }
        match &mut self.index {
            Index::Array(index) => {
                let done = index.intern(words, nulls, ids)?;
                assert!(done, "an array covers the range it was stretched to");
                Ok(())
            }
            Index::Hash(index) => index.intern(words, nulls, ids),
            _ => unreachable!("words are interned by Array and Hash"),
        }
    }

    /// Moves from Hash to Array if the keys are dense enough.
    fn maybe_array(&mut self, range: Option<Range>) -> Result<(), StateError> {
        let integer = self.spec.keys.first().is_some_and(words::is_integer_like);
        match range {
            Some(range)
                if integer
                    && self.spec.options.key_mode != Some(KeyMode::Hash)
                    && self.worth_array(range, self.index.total()) =>
            {
                let dense = !self.spec.holes();
                // The least key of all has hardly come yet, and an array grows upwards only.
                let below = (range.span() / BELOW_PART) as i64;
                let min = match range.min {
                    min @ 0.. => (min - below).max(0),
                    min => min.saturating_sub(below),
                };
                let room = Range { min, ..range };
                let free = room.span().next_power_of_two() == range.span().next_power_of_two();
                let range = if free { room } else { range };
                self.move_to(Index::Array(ArrayIndex::covering(range, false, dense)))
            }
            _ => Ok(()),
        }
    }

    /// Makes an array cover `range` too, or gives it up for Hash.
    fn stretch(&mut self, range: Range, rows: usize) -> Result<(), StateError> {
        let Index::Array(index) = &mut self.index else { return Ok(()) };
        let covered = index.range();
        let dense = !index.is_direct();
        let range = range.union(covered);
        let downwards = covered.is_some_and(|covered| range.min < covered.min);
        let groups = self.groups() + rows;
        let forced =
            self.spec.options.key_mode == Some(KeyMode::Array) && range.span() <= self.range_max();
        if !forced && !self.worth_array(range, groups) {
            return self.move_to(Index::Hash(WordIndex::new(self.spec.keys[0].clone())));
        }
        match &mut self.index {
            Index::Array(index) if covered.is_some() && !downwards => {
                index.grow(range);
                Ok(())
            }
            _ => self.move_to(Index::Array(ArrayIndex::covering(range, downwards, dense))),
        }
    }

    fn range_max(&self) -> u64 {
        self.spec.options.array_range_max.min(1 << 30) as u64
    }

    fn worth_array(&self, range: Range, groups: usize) -> bool {
        let sparse = range.span() > RANGE_FREE && range.span() > SPARSE_MAX * groups as u64;
        range.span() <= self.range_max() && !sparse
    }

    /// From here on ids have no holes: nulls make accumulators ask which groups have had a value.
    fn go_dense(&mut self) -> Result<(), StateError> {
        let Index::Array(index) = &self.index else { return Ok(()) };
        let dense = match index.range() {
            Some(range) => ArrayIndex::covering(range, false, true),
            None => ArrayIndex::new(true),
        };
        self.move_to(Index::Array(dense))
    }

    /// Moves all groups to another index.
    fn move_to(&mut self, index: Index) -> Result<(), StateError> {
        let moved = self.started.then(|| self.take_delta()).transpose()?;
        self.index = index;
        match moved {
            Some(columns) => self.merge(&columns.keys, &columns.states),
            None => Ok(()),
        }
    }

    fn is_direct(&self) -> bool {
        matches!(&self.index, Index::Array(index) if index.is_direct())
    }

    /// Which ids have rows; `None` if all.
    fn occupied(&self) -> Option<BooleanBuffer> {
        if !self.is_direct() {
            return None;
        }
        let total = self.index.total();
        let told = self.teller.and_then(|teller| self.accumulators[teller].occupied(total));
        Some(told.unwrap_or_else(|| {
            let marks = self.marks.head(total);
            BooleanBuffer::collect_bool(total, |id| marks.get(id).is_some_and(|&mark| mark != 0))
        }))
    }

    fn take(
        &mut self,
        take: impl Fn(&mut dyn Accumulator, usize) -> Result<Vec<ArrayRef>, StateError>,
    ) -> Result<Columns, StateError> {
        let occupied = self.occupied();
        let total = match &occupied {
            _ if !self.started => 0,
            Some(occupied) => occupied.set_indices().last().map_or(0, |last| last + 1),
            None => self.index.total(),
        };
        let occupied = occupied.map(|occupied| occupied.slice(0, total));
        self.started = false;
        self.marks.clear(self.index.total());
        let keys = self.index.take(&self.spec.keys, occupied.as_ref())?;
        let mut states = Vec::new();
        for accumulator in &mut self.accumulators {
            states.extend(take(accumulator.as_mut(), total)?);
        }
        if let Some(occupied) = occupied.filter(|bits| bits.count_set_bits() < total) {
            let occupied = occupied.into();
            // A list of indices pays for itself from the second column on.
            let predicate = match states.len() {
                0 | 1 => FilterBuilder::new(&occupied).build(),
                _ => FilterBuilder::new(&occupied).optimize().build(),
            };
            for state in &mut states {
                *state = predicate.filter(state)?;
            }
        }
        Ok(Columns { keys, states })
    }
}

impl Input<'_> {
    fn has_nulls(&self) -> bool {
        let null = |column: &ArrayRef| column.logical_null_count() > 0;
        match self {
            Self::Rows(args) => args.iter().flatten().any(null),
            Self::States(states) => states.iter().any(null),
        }
    }
}
