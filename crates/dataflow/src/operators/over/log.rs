//! The rows of one key that a frame may still reach, and the aggregates of runs of them.
//!
//! Rows have numbers from 0, in order. Level `l` has the runs of `2^l` rows that begin at multiples
//! of `2^l`, as far as all their rows have come and none is forgotten:
//!
//! ```text
//! level 2           4───────7
//! level 1       2─3 4─5 6─7 8─9
//! level 0     1 2 3 4 5 6 7 8 9 10        rows 1 to 10: 1, 2─3, 4───────7, 8─9, 10
//! ```

use std::collections::VecDeque;
use std::ops::Range;

use super::parts::{NOTHING, Node};
use super::{FrameUnit, OverFrame};

/// The list of a key.
#[derive(Default)]
pub(super) struct Log {
    /// The number of the first row that is kept, and of the next to come.
    pub(super) first: u64,
    pub(super) count: u64,
    /// The times of the rows that are kept, where frames are of time.
    times: VecDeque<i64>,
    levels: Vec<Level>,
    /// All rows before the first, where frames reach back to them.
    pub(super) before: Option<Node>,
    /// Where the frame of the last row began and ended, for frames of time.
    at: (u64, u64),
}

/// Runs of one length.
#[derive(Default)]
struct Level {
    /// The number of the first: it begins at that many times the length.
    first: u64,
    nodes: VecDeque<Node>,
}

/// What a row of a list takes: its time, and at most two nodes.
pub(super) const ROW_BYTES: usize = size_of::<i64>() + 2 * size_of::<Node>();

impl Log {
    /// Takes rows: row `i` of `times` has the aggregate `row` of `part` from `from` on.
    pub(super) fn push(&mut self, frame: &OverFrame, part: u32, from: usize, times: &[i64]) {
        if self.levels.is_empty() {
            self.levels.push(Level { first: self.first, nodes: VecDeque::new() });
        }
        let rows = from..from + times.len();
        self.levels[0].nodes.extend(rows.map(|row| Node::of(part, row)));
        if frame.unit == FrameUnit::Range {
            self.times.extend(times);
        }
        self.count += times.len() as u64;
    }

    /// The halves of the runs of level `level`, from 1, that the last `rows` rows completed.
    pub(super) fn halves(&self, level: usize, rows: u64, mut each: impl FnMut(Node, Node)) {
        let known = match self.levels.get(level) {
            Some(of) => of.first + of.nodes.len() as u64,
            None => ceil(self.first, level),
        };
        // Where there is no run of half the length, none has been completed.
        let Some(below) = self.levels.get(level - 1) else { return };
        for run in known.max((self.count - rows) >> level)..self.count >> level {
            let half = (2 * run - below.first) as usize;
            each(below.nodes[half], below.nodes[half + 1]);
        }
    }

    /// Puts down what became of those halves: `runs` rows of a part from `row` on.
    pub(super) fn join(&mut self, level: usize, part: u32, row: usize, runs: usize) {
        if self.levels.len() == level {
            let first = ceil(self.first, level);
            self.levels.push(Level { first, nodes: VecDeque::new() });
        }
        self.levels[level].nodes.extend((row..row + runs).map(|row| Node::of(part, row)));
    }

    /// The first row of a frame and the row behind its last; `row` is at `time`. Rows are asked
    /// for in order.
    pub(super) fn bounds(&mut self, frame: &OverFrame, row: u64, time: i64) -> (u64, u64) {
        let (from, to) = match frame.unit {
            FrameUnit::Rows => {
                let from = frame.from.map_or(0, |rows| row.saturating_sub(rows as u64));
                (from, (row + 1).saturating_sub(frame.to as u64))
            }
            FrameUnit::Range => {
                let (mut from, mut to) = self.at;
                let time_of = |row: u64| self.times[(row - self.first) as usize];
                while to < self.count && time_of(to) <= time.saturating_sub(frame.to) {
                    to += 1;
                }
                if let Some(ticks) = frame.from {
                    while from < self.count && time_of(from) < time.saturating_sub(ticks) {
                        from += 1;
                    }
                }
                self.at = (from, to);
                self.at
            }
        };
        (from.max(self.first), to)
    }

    /// Up to where rows were asked for.
    pub(super) fn asked(&self) -> (u64, u64) {
        self.at
    }

    /// Lets rows be asked for again from there on.
    pub(super) fn ask_again(&mut self, asked: (u64, u64)) {
        self.at = asked;
    }

    /// The runs that rows are made of, from left to right, with those before the first
    /// row if frames reach back to them.
    pub(super) fn runs(&self, rows: Range<u64>, mut each: impl FnMut(Node)) {
        let Range { start: from, end: to } = rows;
        if let Some(before) = self.before {
            each(before);
        } else if from >= to {
            each(NOTHING);
        }
        let mut at = from;
        while at < to {
            let level = at.trailing_zeros().min((to - at).ilog2()) as usize;
            let of = &self.levels[level];
            each(of.nodes[((at >> level) - of.first) as usize]);
            at += 1 << level;
        }
    }

    /// Up to which row no frame of a row to come begins, or ends where frames begin with the first
    /// row of the key.
    pub(super) fn settled(&self, frame: &OverFrame) -> u64 {
        let row = match (frame.unit, frame.from) {
            (FrameUnit::Rows, Some(from)) => self.count.saturating_sub(from as u64),
            (FrameUnit::Rows, None) => (self.count + 1).saturating_sub(frame.to as u64),
            (FrameUnit::Range, Some(_)) => self.at.0,
            (FrameUnit::Range, None) => self.at.1,
        };
        row.clamp(self.first, self.count)
    }

    /// The first row whose time is `time` or later.
    pub(super) fn row_at(&self, time: i64) -> u64 {
        self.first + self.times.partition_point(|&of| of < time) as u64
    }

    /// Forgets the rows before `row`.
    pub(super) fn forget_before(&mut self, row: u64, mut each: impl FnMut(Node)) {
        let gone = (row - self.first) as usize;
        self.times.drain(..gone.min(self.times.len()));
        self.first = row;
        for (level, of) in self.levels.iter_mut().enumerate() {
            let first = ceil(row, level);
            let gone = first.saturating_sub(of.first).min(of.nodes.len() as u64);
            of.nodes.drain(..gone as usize).for_each(&mut each);
            of.first = of.first.max(first);
        }
        if row == self.count {
            (self.times, self.levels) = Default::default();
        }
        self.at = (self.at.0.max(row), self.at.1.max(row));
    }

    /// What a frame to come may be made of: what is put together of all rows before the first that
    /// is kept, and the rows, with their times where frames are of time.
    pub(super) fn saved(&self) -> (Option<Node>, impl Iterator<Item = (Option<i64>, Node)>) {
        let times = self.times.iter().copied().map(Some).chain(std::iter::repeat(None));
        let rows = self.levels.first().map(|level| level.nodes.iter().copied());
        (self.before, times.zip(rows.into_iter().flatten()))
    }

    /// How many rows are kept.
    pub(super) fn len(&self) -> u64 {
        self.count - self.first
    }

    /// All aggregates that are kept.
    pub(super) fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.levels.iter_mut().flat_map(|level| &mut level.nodes).chain(&mut self.before)
    }
}

/// The number of the first run of a level that begins at `row` or later.
fn ceil(row: u64, level: usize) -> u64 {
    (row + (1 << level) - 1) >> level
}
