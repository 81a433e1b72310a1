//! The state of one slice of time: an index of groups, and an accumulator per aggregate.
//!
//! [`Slice::update`] folds rows in, whoever leads their keys, and [`Slice::merge`] deltas of groups
//! that are led here. [`crate::Slices::take_remote_groups`] takes out the groups that others lead,
//! and [`Slice::take_values`] and [`Slice::take_delta`] all that are left. A slice is drained in
//! parts of some thousand groups: what is built of a part stays in the cache, and its memory serves
//! for the next. Memory of a whole window's columns would be touched for the first time, at a tenth
//! of the speed.
//!
//! The key mode is chosen while it runs: see [`mode`].

mod blocks;
mod cut;
mod fused;
mod mode;
mod ranges;
mod touched;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::{BooleanBuffer, NullBuffer};

use self::blocks::Blocks;
use self::ranges::Ranges;
use self::touched::Touched;
use crate::error::same;
use crate::index::array::Span;
use crate::index::{Index, KeyMode};
use crate::spec::ARRAY_PART;
use crate::table::ZeroedTable;
use crate::{
    Accumulator, Aggregate, GroupBy, GroupColumns, Groups, Ids, Part, SparseIds, StateError,
    kernel, words,
};

/// How many times the range of an array may exceed the number of its groups whatever it takes: at
/// 16, a counter of 4 bytes takes as much memory as its group would in a hash table.
const SPARSE_MAX: u64 = 16;

/// Ids that a part begins with, and that it has at most where most have no rows. Parts aim at the
/// former number of rows.
const PART_IDS: usize = 1 << 14;
const PART_IDS_MAX: usize = 1 << 17;
/// At how many groups in a hash table to ask for the first time whether an array is affordable.
const ASK_AT: usize = 1 << 12;

/// Columns of an aggregate, and of the groups of a part.
type States = Result<Vec<ArrayRef>, StateError>;
type Taken = Result<Option<GroupColumns>, StateError>;

/// The rows of a batch.
#[derive(Clone, Copy)]
enum Input<'a> {
    /// Arguments per aggregate.
    Rows(&'a [Vec<ArrayRef>]),
    /// States of all aggregates.
    States(&'a [ArrayRef]),
}

/// How far groups were read.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    /// Ids below this were read.
    next: usize,
    /// Beyond this id none had rows.
    used: usize,
    /// How many groups there were.
    groups: usize,
    /// How many ids the next part has.
    ids: usize,
}

/// The state of one slice.
pub struct Slice {
    spec: Arc<GroupBy>,
    index: Index,
    accumulators: Vec<Box<dyn Accumulator>>,
    /// The accumulator that knows which ids have rows, if there is one, and as long as it does.
    occupancy: Option<usize>,
    /// Which ids have rows, where they may have holes and there is no teller.
    marks: ZeroedTable<u8>,
    /// False before the first row, and again when all is drained.
    started: bool,
    /// For which groups rows have come since groups were given away or out.
    touched: Touched,
    /// Its groups as they were saved last, and the changes since.
    blocks: Blocks,
    /// How far groups are drained, from the first part until all are.
    giving: Option<Cursor>,
    /// Drained groups that are still in memory, until the memory is needed.
    drained: Option<Cursor>,
    /// The share of a sparse array.
    array_bytes_max: usize,
    /// By how many bytes the slice may grow.
    room: usize,
    /// Whether groups go to a disk where others would be refused.
    spills: bool,
    /// Rows that are not folded in yet, of an array that is larger than caches.
    ranges: Ranges,
    /// Scratch: the ids of a batch, and its words.
    ids: Vec<u32>,
    words: Vec<u64>,
}

impl Slice {
    /// An empty slice. Keys of types that cannot be grouped are refused with the first rows.
    pub fn new(spec: &Arc<GroupBy>) -> Self {
        let index = Index::new(&spec.keys, spec.options.key_mode, spec.hole_bytes().is_none());
        let mut accumulators: Vec<_> =
            spec.aggregates.iter().map(|aggregate| aggregate.create()).collect();
        if spec.forced_mode() == Some(KeyMode::Array) {
            accumulators.iter_mut().for_each(|accumulator| accumulator.keep_unreplicated());
        }
        Self {
            spec: Arc::clone(spec),
            index,
            accumulators,
            occupancy: occupancy(spec),
            marks: ZeroedTable::new(),
            started: false,
            touched: Touched::default(),
            blocks: Blocks::default(),
            giving: None,
            drained: None,
            array_bytes_max: spec.options.budget_bytes / ARRAY_PART,
            room: usize::MAX,
            spills: false,
            ranges: Ranges::default(),
            ids: vec![],
            words: vec![],
        }
    }

    /// As [`Slice::new`], for state that may leave memory: what a batch brings is never refused
    /// midway, and an array that would outgrow the room is refused before anything has happened.
    pub(crate) fn spilling(spec: &Arc<GroupBy>) -> Self {
        Self { spills: true, ..Self::new(spec) }
    }

    /// An empty slice of the same kind.
    fn alike(&self) -> Self {
        Self { spills: self.spills, ..Self::new(&self.spec) }
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

    /// The partial states of the next groups; `None` when all were drained, and none is left (S9
    /// step 5: the groups restart from zero). Between the first part and `None`, rows are refused.
    ///
    /// # Errors
    /// Errors of accumulators.
    pub fn take_delta(&mut self) -> Result<Option<GroupColumns>, StateError> {
        self.take(|accumulator, part| accumulator.state(part))
    }

    /// The values of the next groups: see [`Slice::take_delta`].
    ///
    /// # Errors
    /// Errors of accumulators.
    pub fn take_values(&mut self) -> Result<Option<GroupColumns>, StateError> {
        self.take(|accumulator, part| Ok(vec![accumulator.values(part)?]))
    }

    /// Gives the partial states of all groups, part by part, and keeps them.
    ///
    /// # Errors
    /// Errors of accumulators and of `each`; [`StateError::BeingDrained`].
    pub(crate) fn each_part<E: From<StateError>>(
        &mut self,
        mut each: impl FnMut(GroupColumns) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.giving.is_some() {
            return Err(StateError::BeingDrained.into());
        }
        self.settle()?;
        let mut cursor = Cursor::default();
        while let Some(part) =
            self.read(&mut cursor, |accumulator, part| accumulator.state(part))?
        {
            each(part)?;
        }
        Ok(())
    }

    /// Merges all groups of `other`, which keeps them.
    ///
    /// # Errors
    /// Errors of accumulators; [`StateError::BeingDrained`] if either is being drained.
    pub(crate) fn merge_all_of(&mut self, other: &mut Self) -> Result<(), StateError> {
        other.each_part(|part| self.merge(&part.keys, &part.states))
    }

    /// How many bytes an array may take that has fewer groups than a hash table would need to be as
    /// large.
    pub(crate) fn set_array_bytes_max(&mut self, bytes: usize) {
        self.array_bytes_max = bytes;
    }

    /// By how many bytes the slice may grow in one step. Beyond that comes only what the groups of
    /// a batch bring.
    pub(crate) fn set_room(&mut self, bytes: usize) {
        self.room = bytes;
        self.index.set_room(if self.spills { usize::MAX } else { bytes });
    }

    /// How many groups have state. Counts them, if the key mode is Array.
    pub fn groups(&self) -> usize {
        match self.occupied(0..self.index.total()) {
            _ if !self.started => 0,
            Some(occupied) if self.ranges.any() => {
                let waiting = self.ranges.ids().filter(|id| !occupied.value(*id as usize));
                occupied.count_set_bits() + waiting.collect::<HashSet<_>>().len()
            }
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
        let own = self.index.bytes() + self.marks.bytes() + self.ranges.bytes();
        accumulators.sum::<usize>() + own + scratch
    }

    /// How groups are found at the moment.
    pub fn key_mode(&self) -> KeyMode {
        match self.index.mode() {
            _ if self.ranges.is_open() => KeyMode::Ranges,
            KeyMode::Tiny if self.spec.forced_mode() == Some(KeyMode::Array) => KeyMode::Array,
            mode => mode,
        }
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
        if self.giving.is_some() {
            return Err(StateError::BeingDrained);
        }
        self.clear_drained();
        let nulls = input.has_nulls();
        if nulls && self.is_direct() {
            self.go_dense()?;
        }
        match self.apply_near(keys, input)? {
            0 => {}
            done if done == rows => return Ok(()),
            done => {
                let rest = |column: &ArrayRef| column.slice(done, rows - done);
                let keys: Vec<ArrayRef> = keys.iter().map(rest).collect();
                let args = input.args().iter().map(|args| args.iter().map(rest).collect());
                return self.apply(rows - done, &keys, Input::Rows(&args.collect::<Vec<_>>()));
            }
        }
        let ids = std::mem::take(&mut self.ids);
        let before = self.index.total();
        let (mut ids, mut interned) = self.intern(keys, ids);
        if nulls && self.is_direct() && interned.is_ok() {
            // What was a hash table has just become an array.
            self.go_dense()?;
            (ids, interned) = self.intern(keys, ids);
        }
        let known = self.is_direct() && self.index.total() == before;
        let applied = interned.and_then(|()| {
            if matches!(self.index, Index::One) {
                self.accumulate(input, &Groups::one(0, rows))
            } else if known && self.may_wait(input) {
                self.wait(&ids)
            } else {
                self.accumulate(input, &Groups::each(&ids))
            }
        });
        self.ids = ids;
        applied
    }

    fn accumulate(&mut self, input: Input<'_>, groups: &Groups) -> Result<(), StateError> {
        match (input, groups.ids()) {
            (Input::States(_), _) => {}
            (Input::Rows(_), Ids::Each(ids)) if self.is_direct() => self.touched.add(ids),
            (Input::Rows(_), Ids::One { id, .. }) if self.is_direct() => self.touched.add(&[id]),
            (Input::Rows(_), _) => self.touched.add_any(),
        }
        if self.blocks.are_watched() {
            self.blocks.change(groups.ids());
        }
        let total = self.index.total();
        self.started = true;
        if self.is_direct() && self.occupancy.is_none() {
            self.mark(groups);
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
        if self.is_direct()
            && let Some(occupancy) = self.occupancy
            && !self.accumulators[occupancy].shows()
        {
            self.mark_occupied();
            self.mark(groups);
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
            Index::PackedWide(index) => index.intern(keys, &mut ids),
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
            index.ask_at = ASK_AT.max(index.total() + index.total() / 2);
            let range = index.span();
            self.maybe_array(range)?;
        }
        if let Index::Array(index) = &mut self.index {
            if index.intern(words, nulls, ids)? {
                return Ok(());
            }
            if let Some(range) = Span::of(words, nulls) {
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

    /// Marks that these have rows.
    fn mark(&mut self, groups: &Groups) {
        self.marks.grow(self.index.total().max(groups.reach() + 1));
        kernel::touch(self.marks.as_mut(), groups, |mark| *mark = 1);
    }

    /// From here on marks tell which ids have rows.
    fn mark_occupied(&mut self) {
        let total = self.index.total();
        if let Some(occupied) = self.occupied(0..total) {
            self.marks.grow(total);
            let marks = self.marks.as_mut();
            occupied.set_indices().for_each(|id| marks[id] = 1);
        }
        self.occupancy = None;
    }

    fn is_direct(&self) -> bool {
        matches!(&self.index, Index::Array(index) if index.is_direct())
    }

    /// Which of `ids` have rows; `None` if all.
    fn occupied(&self, ids: Range<usize>) -> Option<BooleanBuffer> {
        if !self.is_direct() {
            return None;
        }
        let emitted = self.occupancy.and_then(|at| self.accumulators[at].occupied(ids.clone()));
        Some(emitted.unwrap_or_else(|| self.marks.not_zero(ids)))
    }

    fn take(&mut self, read: impl Fn(&mut dyn Accumulator, &Part) -> States) -> Taken {
        self.settle()?;
        let mut cursor = self.giving.take().unwrap_or_default();
        let part = self.read(&mut cursor, read)?;
        if part.is_some() {
            self.giving = Some(cursor);
        } else if std::mem::take(&mut self.started) {
            self.touched.clear();
            self.blocks.forget();
            self.drained = Some(cursor);
        }
        Ok(part)
    }

    /// Reads the next groups that have rows.
    fn read(
        &mut self,
        cursor: &mut Cursor,
        read: impl Fn(&mut dyn Accumulator, &Part) -> States,
    ) -> Taken {
        let Some((ids, occupied)) = self.next_part(cursor) else { return Ok(None) };
        self.columns_of(&self.part(&ids, occupied.as_ref()), read).map(Some)
    }

    /// These ids, or those of them that have rows.
    fn part<'a>(&self, ids: &Range<usize>, occupied: Option<&'a BooleanBuffer>) -> Part<'a> {
        let (ids, total) = (ids.clone(), self.index.total());
        match occupied {
            Some(marks) => Part::marked(ids, total, marks),
            None => Part::all(ids, total),
        }
    }

    /// The ids of the next groups that have rows, and which of them have if not all.
    fn next_part(&self, cursor: &mut Cursor) -> Option<(Range<usize>, Option<BooleanBuffer>)> {
        let total = if self.started { self.index.total() } else { 0 };
        while cursor.next < total {
            let step = cursor.ids.clamp(PART_IDS, PART_IDS_MAX);
            let ids = cursor.next..total.min(cursor.next + step);
            let occupied = self.occupied(ids.clone());
            let rows = occupied.as_ref().map_or(ids.len(), BooleanBuffer::count_set_bits);
            cursor.next = ids.end;
            cursor.groups += rows;
            // As many ids as have had a part's rows in this one.
            cursor.ids = ids.len().saturating_mul(PART_IDS) / rows.max(1);
            if rows > 0 {
                cursor.used = ids.end;
                return Some((ids, occupied.filter(|marks| rows < marks.len())));
            }
        }
        None
    }

    fn columns_of(
        &mut self,
        part: &Part,
        read: impl Fn(&mut dyn Accumulator, &Part) -> States,
    ) -> Result<GroupColumns, StateError> {
        let keys = self.index.keys(&self.spec.keys, part)?;
        let mut states = Vec::new();
        for accumulator in &mut self.accumulators {
            states.extend(read(accumulator.as_mut(), part)?);
        }
        Ok(GroupColumns { keys, states })
    }

    /// Makes room for new groups where old ones were drained.
    fn clear_drained(&mut self) {
        let Some(drained) = self.drained.take() else { return };
        self.ranges.start_anew();
        self.accumulators.iter_mut().for_each(|accumulator| accumulator.clear(drained.used));
        self.marks.clear(drained.used);
        self.occupancy = occupancy(&self.spec);
        match &mut self.index {
            // Its range was too large for its groups: the next ones may have a better.
            Index::Array(array) if array.is_sparse(drained.groups, SPARSE_MAX) => {
                let mode = self.spec.options.key_mode;
                let dense = self.spec.hole_bytes().is_none();
                self.index = Index::new(&self.spec.keys, mode, dense);
            }
            index => index.clear(),
        }
    }
}

/// The accumulator with the smallest state that knows which ids have rows.
fn occupancy(spec: &GroupBy) -> Option<usize> {
    let bytes = |aggregate: &Arc<dyn Aggregate>| match aggregate.sparse_ids() {
        SparseIds::Reported(bytes) => Some(bytes),
        SparseIds::Refused | SparseIds::Allowed(_) => None,
    };
    let tellers = spec.aggregates.iter().enumerate();
    let tellers = tellers.filter_map(|(at, aggregate)| Some((bytes(aggregate)?, at)));
    tellers.min().map(|(_, at)| at)
}

impl<'a> Input<'a> {
    /// Arguments per aggregate, where rows come.
    fn args(self) -> &'a [Vec<ArrayRef>] {
        match self {
            Self::Rows(args) => args,
            Self::States(_) => &[],
        }
    }

    fn has_nulls(&self) -> bool {
        let null = |column: &ArrayRef| column.logical_null_count() > 0;
        match self {
            Self::Rows(args) => args.iter().flatten().any(null),
            Self::States(states) => states.iter().any(null),
        }
    }
}
