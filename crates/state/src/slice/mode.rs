//! The slice chooses its key mode, and changes it while it runs. An array costs a row one access to
//! memory and no comparison, so integer keys go to Array as soon as its bytes are affordable:
//!
//! - where it has a group for every [`SPARSE_MAX`] keys of its range, always: a hash table would
//!   take as much memory;
//! - where it has one for every [`SPARSER_MAX`] keys, as long as it takes no more than its share of
//!   the budget, which [`crate::Slices`] sets. Giving out reads all of the range, and beyond that
//!   it would cost more than the rows that it serves.
//!
//! Moving is reading all state and merging it into new accumulators; it happens when there are half
//! as many groups again, or a range doubles, so that it costs a constant per group. An emptied
//! slice keeps its mode and memory, but not an array that turned out sparse.

use super::{ASK_AT, Cursor, SPARSE_MAX, Slice};
use crate::index::array::{ArrayIndex, Span};
use crate::index::hash::WordIndex;
use crate::index::{Index, TINY_KEYS};
use crate::{KeyMode, StateError, words};

/// A range of this many keys is never too sparse for an array within its share.
const RANGE_FREE: u64 = 1 << 16;
/// How many times the range may exceed the number of groups if the array is within its share.
const SPARSER_MAX: u64 = 128;
/// An array that takes the place of a hash table leaves this part of its range free below, if it is
/// no longer for that.
const BELOW_PART: u64 = 64;

impl Slice {
    /// Moves from Hash to Array if the keys are dense enough.
    pub(super) fn maybe_array(&mut self, range: Option<Span>) -> Result<(), StateError> {
        let integer = self.spec.keys.first().is_some_and(words::is_integer_like);
        match range {
            Some(range)
                if integer
                    && self.spec.forced_mode() != Some(KeyMode::Hash)
                    && self.worth_array(range, self.index.total())
                    && range.len().saturating_mul(self.spec.id_bytes() as u64)
                        <= self.room as u64 =>
            {
                let dense = self.spec.hole_bytes().is_none();
                let range = with_room(range);
                self.move_to(Index::Array(ArrayIndex::covering(range, false, dense)))
            }
            _ => Ok(()),
        }
    }

    /// Makes an array cover `range` too, or gives it up for Hash.
    pub(super) fn stretch(&mut self, range: Span, rows: usize) -> Result<(), StateError> {
        self.settle()?;
        let Index::Array(index) = &mut self.index else { return Ok(()) };
        let covered = index.range();
        let dense = !index.is_direct();
        let range = range.union(covered);
        let downwards = covered.is_some_and(|covered| range.min < covered.min);
        let groups = self.groups() + rows;
        let most = match self.spec.forced_mode() {
            Some(KeyMode::Tiny) => TINY_KEYS,
            Some(KeyMode::Array | KeyMode::Ranges) => self.range_max(),
            _ => 0,
        };
        let forced = range.len() <= most && self.array_bytes(range) <= self.room as u64;
        if !forced && !self.worth_array(range, groups) {
            let ask_at = ASK_AT.max(groups + groups / 2);
            return self.move_to(Index::Hash(WordIndex::new(self.spec.keys[0].clone(), ask_at)));
        }
        match &mut self.index {
            Index::Array(index) if covered.is_some() && !downwards => {
                let ids = range.len().saturating_sub(index.total() as u64);
                let bytes = ids.saturating_mul(self.spec.id_bytes() as u64) as usize;
                if bytes > self.room {
                    return Err(StateError::Growth { bytes });
                }
                index.grow(range);
                Ok(())
            }
            _ => {
                let range = if covered.is_none() { with_room(range) } else { range };
                self.move_to(Index::Array(ArrayIndex::covering(range, downwards, dense)))
            }
        }
    }

    fn range_max(&self) -> u64 {
        self.spec.options.array_range_max.min(1 << 30) as u64
    }

    /// Bytes of an array for a range that is not beyond [`Slice::range_max`].
    fn array_bytes(&self, range: Span) -> u64 {
        (range.len() + 1).next_power_of_two().saturating_mul(self.spec.id_bytes() as u64)
    }

    fn worth_array(&self, range: Span, groups: usize) -> bool {
        let len = range.len();
        let sparse = |times: u64| len > times.saturating_mul(groups as u64);
        if len > self.range_max() {
            return false;
        }
        let affordable = self.array_bytes(range) <= self.array_bytes_max as u64;
        !sparse(SPARSE_MAX) || (affordable && (len <= RANGE_FREE || !sparse(SPARSER_MAX)))
    }

    /// From here on ids have no holes: nulls make accumulators ask which groups have had a value.
    pub(super) fn go_dense(&mut self) -> Result<(), StateError> {
        let Index::Array(index) = &self.index else { return Ok(()) };
        let dense = match index.range() {
            Some(range) => ArrayIndex::covering(range, false, true),
            None => ArrayIndex::new(true),
        };
        self.move_to(Index::Array(dense))
    }

    /// Moves all groups to another index.
    fn move_to(&mut self, index: Index) -> Result<(), StateError> {
        if !self.started {
            self.index = index;
            return Ok(());
        }
        self.settle()?;
        let mut moved = self.alike();
        (moved.index, moved.array_bytes_max) = (index, self.array_bytes_max);
        moved.touched = self.touched.renumbered();
        moved.set_room(self.room);
        let mut cursor = Cursor::default();
        while let Some(part) =
            self.read(&mut cursor, |accumulator, part| accumulator.state(part))?
        {
            moved.merge(&part.keys, &part.states)?;
        }
        *self = moved;
        Ok(())
    }
}

/// A range that begins a little lower, if that costs nothing: the least key of all has hardly come
/// yet, and an array grows upwards only.
fn with_room(range: Span) -> Span {
    let below = (range.len() / BELOW_PART) as i64;
    let min = match range.min {
        min @ 0.. => (min - below).max(0),
        min => min.saturating_sub(below),
    };
    let room = Span { min, ..range };
    let free = room.len().next_power_of_two() == range.len().next_power_of_two();
    if free { room } else { range }
}
