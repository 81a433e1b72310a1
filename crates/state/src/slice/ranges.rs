//! Partition, then update: rows of an array that no cache holds wait by ranges of ids, each of
//! which one holds, and are folded range by range when one is full.
//!
//! A row on its own fetches a cache line and writes it back, and however far ahead it is asked for,
//! memory is what it takes. Four rows of a line that are folded together share it; what they pay is
//! that their ids are written and read once more, side by side with others.
//!
//! Where neighbours come together anyway, as with keys that ascend with time, this is no bargain.
//! It is noticed by a range that is full before four times as many rows have come to all of them;
//! then no row waits any more until the slice is emptied. Under skew frequent groups fill their
//! ranges sooner than others, and are folded more often.
//!
//! Only rows without arguments wait, as those of `count(*)`: with an argument of eight bytes beside
//! each id, `max` and `avg` of ten million groups took as long as they do without.

use super::{Input, Slice};
use crate::table::ZeroedTable;
use crate::{Groups, Ids, KeyMode, StateError};

/// Bytes of state from which on rows wait.
const FAR_BYTES: usize = if cfg!(test) { 1 << 12 } else { 16 << 20 };
/// Bytes of state of a range: half of the smallest second-level cache of servers.
const RANGE_BYTES: usize = if cfg!(test) { 1 << 9 } else { 512 << 10 };
/// Rows that a range has room for: four for each line of its state.
const RANGE_ROWS: usize = RANGE_BYTES / 16;
/// Neighbours come together where one row in so many, or more, is of the same range.
const TOGETHER: u32 = 4;
/// The part of the memory left to the slice that rows may take to wait: groups come first.
const ROOM_PART: usize = 8;

/// Rows that wait.
#[derive(Default)]
pub(super) struct Ranges {
    /// An id without this many of its lowest bits is the number of its range.
    shift: u32,
    ranges: Vec<Range>,
    /// The ids of the rows of each range, [`RANGE_ROWS`] a range.
    ids: ZeroedTable<u32>,
    /// How many rows have come, modulo 2³².
    come: u32,
    /// Whether rows wait.
    any: bool,
    /// Whether rows may wait.
    is_open: bool,
    /// Whether neighbours were found to come together.
    together: bool,
}

#[derive(Clone, Copy, Default)]
struct Range {
    /// How many rows wait.
    filled: u32,
    /// [`Ranges::come`] when it was empty last.
    empty_at: u32,
}

impl Slice {
    /// Whether rows of groups that have been seen may wait.
    pub(super) fn may_wait(&mut self, input: Input<'_>) -> bool {
        let Input::Rows(args) = input else { return false };
        if self.spec.forced_mode() == Some(KeyMode::Ranges) {
            self.ranges.start_anew();
        }
        let alone = self.occupancy.is_some() && args.iter().all(Vec::is_empty);
        let (groups, group_bytes) = (self.index.total(), self.spec.id_bytes());
        alone && self.is_far() && self.ranges.open(groups, group_bytes, self.room)
    }

    /// Whether so much memory is updated that it is better to wait.
    pub(super) fn is_far(&self) -> bool {
        let bytes = self.index.total().saturating_mul(self.spec.id_bytes());
        match self.spec.forced_mode() {
            Some(KeyMode::Ranges) => true,
            Some(KeyMode::Array) => false,
            _ => bytes >= FAR_BYTES,
        }
    }

    /// Lets rows wait for others of their ranges of ids, as far as they may.
    pub(super) fn wait(&mut self, mut ids: &[u32]) -> Result<(), StateError> {
        self.started = true;
        self.touched.add_any();
        if self.blocks.are_watched() {
            self.blocks.change(Ids::Each(ids));
        }
        let mut ranges = std::mem::take(&mut self.ranges);
        while let Some((row, full)) = ranges.push(ids) {
            self.fold(ranges.take(full))?;
            ids = &ids[row..];
            if ranges.together {
                break;
            }
        }
        self.ranges = ranges;
        if self.ranges.together {
            self.settle()?;
            self.fold(ids)?;
            self.ranges = Ranges { together: true, ..Ranges::default() };
        }
        Ok(())
    }

    /// Folds in the rows that wait.
    pub(super) fn settle(&mut self) -> Result<(), StateError> {
        if !std::mem::take(&mut self.ranges.any) {
            return Ok(());
        }
        let mut ranges = std::mem::take(&mut self.ranges);
        (0..ranges.ranges.len()).try_for_each(|range| self.fold(ranges.take(range)))?;
        self.ranges = ranges;
        Ok(())
    }

    /// Folds in rows without arguments, of groups that an accumulator tells apart from holes.
    fn fold(&mut self, ids: &[u32]) -> Result<(), StateError> {
        let (groups, total) = (Groups::each(ids), self.index.total());
        let mut accumulators = self.accumulators.iter_mut();
        accumulators.try_for_each(|accumulator| accumulator.update(&[], &groups, total))
    }
}

impl Ranges {
    /// Makes room for rows of `groups` groups of `group_bytes` to wait, if it takes little of
    /// `room` bytes and neighbours do not come together.
    fn open(&mut self, groups: usize, group_bytes: usize, room: usize) -> bool {
        if self.together {
            return false;
        }
        let shift = (RANGE_BYTES / group_bytes).max(1).ilog2();
        let ranges = groups.div_ceil(1 << shift);
        let more =
            ZeroedTable::<u32>::bytes_of(ranges * RANGE_ROWS).saturating_sub(self.ids.bytes());
        if more > room / ROOM_PART {
            return false;
        }
        self.shift = shift;
        if ranges > self.ranges.len() {
            self.ranges.resize(ranges, Range { filled: 0, empty_at: self.come });
            self.ids.grow(ranges * RANGE_ROWS);
        }
        self.is_open = true;
        true
    }

    /// Lets rows wait, up to the first whose range is full: tells how many, and which range.
    fn push(&mut self, ids: &[u32]) -> Option<(usize, usize)> {
        let (shift, waiting) = (self.shift, self.ids.as_mut());
        self.any = true;
        for (row, &id) in ids.iter().enumerate() {
            let at = (id >> shift) as usize;
            let range = &mut self.ranges[at];
            if range.filled as usize == RANGE_ROWS {
                self.come = self.come.wrapping_add(row as u32);
                let meanwhile = self.come.wrapping_sub(range.empty_at);
                self.together = meanwhile < TOGETHER * RANGE_ROWS as u32;
                return Some((row, at));
            }
            waiting[at * RANGE_ROWS + range.filled as usize] = id;
            range.filled += 1;
        }
        self.come = self.come.wrapping_add(ids.len() as u32);
        None
    }

    /// The ids of the rows of a range, which wait no more.
    fn take(&mut self, at: usize) -> &[u32] {
        let empty = Range { filled: 0, empty_at: self.come };
        let rows = std::mem::replace(&mut self.ranges[at], empty).filled as usize;
        &self.ids.as_ref()[at * RANGE_ROWS..][..rows]
    }

    /// Whether rows wait.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Whether rows may wait.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether rows may wait again: those to come may be others.
    pub(super) fn start_anew(&mut self) {
        (self.is_open, self.together) = (false, false);
    }

    /// The ids of the rows that wait.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        let ranges = self.ids.as_ref().chunks(RANGE_ROWS).zip(&self.ranges);
        ranges.flat_map(|(ids, range)| &ids[..range.filled as usize]).copied()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.ids.bytes() + self.ranges.capacity() * size_of::<Range>()
    }
}
