//! Rows that wait on a disk until the operator that keeps rows has a use for them.
//!
//! Some operators need a row not before the watermark has reached a time of it ([`Waits`]): the end
//! of its window, or when it was. If what such an operator holds takes more than half of its share
//! of memory, it gives back what waits, and what comes is put aside: as it came as long as there is
//! room, then on the disk, in the order in which it will be needed. When its time has come, it is
//! given to the operator, as much at once as there is room for ([`Aside::next`]).
//!
//! ```text
//! rows ─▶ runs, in memory ── no room ──▶ sections, on the disk, each of a span of time
//! watermark ─▶ what it has reached ─▶ fits: given at once ───────────▶ operator
//!                                 └▶ one window does not: 32 parts by
//!                                    a hash of its keys, one by one ─▶ operator
//! ```
//!
//! What it keeps for longer than that may be more than there is room for too ([`rounds`]).
//!
//! The operator is told of no time that it has not all rows of, so that it does not know of all
//! this. Rows of one key and window are in one part: each pair, and each number of
//! a ranking, is made in it as without parts.

mod rounds;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::array::{RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use state::{Disk, Partitioner, RowFiles, RowPiece, Spilled};

use self::rounds::Rounds;
use super::Run;
use crate::error::DataflowError;
use crate::job::{Given, Keyed, KeyedState, Waits};
use crate::pairing::columns_of;
use crate::rows::wire::bytes_of;

/// Into how many parts a window is split that does not fit.
const PARTS: u32 = 32;
/// How often it is split by another hash, if a part does not fit either: what does not fit then is
/// of one key, and given as it is.
const LEVELS_MAX: u32 = 4;
/// Rows of so many bytes are put in order and written together, and no fewer of a span.
const GATHERED_BYTES: usize = 4 << 20;
const SECTION_BYTES: usize = 1 << 16;
/// Sections that there is room for at least, unless they would be tiny.
const SECTIONS_MIN: usize = 8;
const SECTION_BYTES_MIN: usize = 1 << 11;
/// The part of a share of memory from which on rows are put aside; that of what waits in memory,
/// and of what is given back at once: it is given beside a table of it, and results.
const HELD_PART: usize = 2;
const ROOM_PART: usize = 4;
/// Of that room, what is given at once to an operator that keeps rows, which take several times as
/// many bytes with their keys found.
const KEEPS_PART: usize = 8;

/// What an operator keeps on one worker, with the rows that it has no room for.
pub(super) struct Keeping {
    state: Box<dyn KeyedState>,
    aside: Option<Aside>,
}

impl Keeping {
    /// Nothing yet; rows may go to the disk, if there is one and the operator says when it needs
    /// them.
    pub(super) fn new(spec: &Keyed, disk: Option<Arc<dyn Disk>>) -> Self {
        let aside = spec.waits().zip(disk).map(|(waits, disk)| Aside::new(disk, waits));
        Self { state: spec.operator.create(), aside }
    }

    /// Takes rows of an input; all may hold `share` bytes.
    pub(super) fn push(
        &mut self,
        input: usize,
        batch: RecordBatch,
        share: usize,
    ) -> Result<(), DataflowError> {
        let Self { state, aside: Some(aside) } = self else { return self.state.push(input, batch) };
        let is_over = |state: &dyn KeyedState| state.bytes() > share / HELD_PART;
        match aside.is_empty() && aside.rounds.is_none() && !is_over(&**state) {
            true => state.push(input, batch)?,
            false => aside.push(input, batch)?,
        }
        if aside.rounds.is_none() && is_over(&**state) {
            for (input, rows) in state.give_back()? {
                aside.push(input, rows)?;
            }
            if is_over(&**state) {
                aside.begin_rounds(&mut **state, aside.told, share)?;
            }
        }
        aside.relieve(share)
    }

    /// As [`KeyedState::windows_over`].
    pub(super) fn windows_over(&mut self) -> usize {
        self.state.windows_over()
    }

    /// As [`KeyedState::advance`].
    pub(super) fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
        share: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let Self { state, aside: Some(aside) } = self else {
            return self.state.advance(watermark, rows_max);
        };
        loop {
            let until = aside.until(watermark);
            aside.told = aside.told.max(until);
            if let Some(batch) = state.advance(until, rows_max)? {
                return Ok(Some(batch));
            }
            // It has given out all, so it can lay down what it keeps.
            if aside.rounds.is_none() && state.bytes() > share / HELD_PART {
                aside.begin_rounds(&mut **state, aside.told, share)?;
            }
            if aside.rounds.is_some() {
                match aside.step(&mut **state, watermark, share)? {
                    true => continue,
                    false => return Ok(None),
                }
            }
            let Some(rows) = aside.next(watermark, share)? else { return Ok(None) };
            for (input, rows) in rows {
                state.push(input, rows)?;
            }
            aside.relieve(share)?;
        }
    }

    /// As [`KeyedState::ready`].
    pub(super) fn ready(&self) -> bool {
        self.state.ready()
    }

    /// As [`KeyedState::complete`].
    pub(super) fn complete(&self, watermark: i64) -> i64 {
        let until = self.aside.as_ref().map_or(watermark, |aside| aside.until(watermark));
        match until {
            i64::MIN | i64::MAX => until,
            _ => self.state.complete(until),
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.state.bytes() + self.aside.as_ref().map_or(0, Aside::bytes)
    }

    /// What went to the disk and came back.
    pub(super) fn spilled(&self) -> Spilled {
        self.aside.as_ref().map_or_else(Spilled::default, |aside| aside.files.spilled())
    }
}

/// Rows that an operator has no use for yet.
struct Aside {
    files: RowFiles,
    /// By input.
    waits: Vec<Waits>,
    /// In memory.
    runs: Vec<(usize, Run)>,
    /// The end of the first window of `runs`.
    next: i64,
    /// On the disk, by the end of the first window.
    cold: BTreeMap<i64, Vec<Cold>>,
    /// Parts of what is being given, the next one last.
    parts: Vec<Part>,
    /// Up to where rows were given.
    given: i64,
    /// Bytes of `runs`.
    held: usize,
    /// What the operator keeps, if it has no room for it.
    rounds: Option<Rounds>,
    /// The time that the operator was told of.
    told: i64,
}

/// Rows of a span of time on the disk.
struct Cold {
    input: usize,
    piece: RowPiece,
}

/// Rows that have nothing to do with others.
struct Part {
    /// How often they were split.
    level: u32,
    pieces: Vec<(usize, RowPiece)>,
}

impl Aside {
    /// Nothing yet; `waits` by input.
    fn new(disk: Arc<dyn Disk>, waits: Vec<Waits>) -> Self {
        Self {
            files: RowFiles::new(disk),
            waits,
            runs: vec![],
            next: i64::MAX,
            cold: BTreeMap::new(),
            parts: vec![],
            given: i64::MIN,
            held: 0,
            rounds: None,
            told: i64::MIN,
        }
    }

    /// Whether no rows wait here.
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.cold.is_empty() && self.parts.is_empty()
    }

    /// Takes rows of an input.
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        let run = Run::new(batch, self.waits[input].until)?;
        if let Some(next) = run.next() {
            self.next = self.next.min(next);
            self.held += run.bytes();
            self.runs.push((input, run));
        }
        Ok(())
    }

    /// Writes what is needed last, if rows take more memory than `share` allows.
    fn relieve(&mut self, share: usize) -> Result<(), DataflowError> {
        let room = share / ROOM_PART;
        if self.held <= room {
            return Ok(());
        }
        self.runs.sort_by_key(|(_, run)| run.next());
        let mut gathered: Vec<Vec<RecordBatch>> = vec![vec![]; self.waits.len()];
        let mut bytes = vec![0; self.waits.len()];
        // Half of the room is kept, so that rows are written many at a time.
        while self.held > room / 2
            && let Some((input, run)) = self.runs.pop()
        {
            self.held -= run.bytes();
            bytes[input] += run.bytes();
            gathered[input].push(run.rest());
            if bytes[input] >= GATHERED_BYTES.min(room) {
                bytes[input] = 0;
                self.write(input, &std::mem::take(&mut gathered[input]), room)?;
            }
        }
        for (input, batches) in gathered.into_iter().enumerate() {
            self.write(input, &batches, room)?;
        }
        self.look();
        Ok(())
    }

    /// Finds the first of the runs again.
    fn look(&mut self) {
        let all = self.runs.iter().filter_map(|(_, run)| run.next());
        self.next = all.min().unwrap_or(i64::MAX);
    }

    /// Writes rows of an input, in the order of time.
    fn write(
        &mut self,
        input: usize,
        batches: &[RecordBatch],
        room: usize,
    ) -> Result<(), DataflowError> {
        let Some(first) = batches.first() else { return Ok(()) };
        let whole = concat_batches(&first.schema(), batches)?;
        let run = Run::new(whole, self.waits[input].until)?;
        let bytes = SECTION_BYTES.min(room / SECTIONS_MIN).max(SECTION_BYTES_MIN);
        let spans = run.spans(bytes);
        let pieces = self.files.write(spans.iter().map(|(_, rows)| rows.clone()))?;
        for ((first, _), piece) in spans.iter().zip(pieces) {
            self.cold.entry(*first).or_default().push(Cold { input, piece });
        }
        Ok(())
    }

    /// When the first row that waits is needed.
    fn first(&self) -> Option<i64> {
        let cold = self.cold.keys().next().copied();
        let run = (!self.runs.is_empty()).then_some(self.next);
        run.into_iter().chain(cold).min()
    }

    /// Up to where the operator has all rows, if the watermark is this.
    fn until(&self, watermark: i64) -> i64 {
        if let Some(rounds) = &self.rounds {
            return rounds.until;
        }
        match self.first() {
            _ if !self.parts.is_empty() => self.given,
            Some(first) if first <= watermark => first.saturating_sub(1),
            _ => watermark,
        }
    }

    /// Rows that the watermark has reached, when the operator has given out what it could without;
    /// `None` if there are no such rows.
    fn next(&mut self, watermark: i64, share: usize) -> Result<Option<Given>, DataflowError> {
        let keeps = self.waits.iter().any(|waits| waits.keeps);
        let room = share / ROOM_PART / if keeps { KEEPS_PART } else { 1 };
        loop {
            if let Some(Part { level, pieces }) = self.parts.pop() {
                let bytes: usize = pieces.iter().map(|(_, piece)| piece.bytes()).sum();
                if bytes > room && level < LEVELS_MAX {
                    self.split(level + 1, vec![], pieces, room)?;
                    continue;
                }
                let read =
                    |(input, piece): (usize, RowPiece)| Ok((input, self.files.read(&piece)?));
                return pieces.into_iter().map(read).collect::<Result<_, _>>().map(Some);
            }
            let Some(first) = self.first().filter(|&first| first <= watermark) else {
                return Ok(None);
            };
            let (until, fits) = self.reach(first, watermark, room);
            self.given = until;
            if fits || self.waits.iter().any(|waits| waits.keeps || waits.apart.is_empty()) {
                for Cold { input, piece } in self.cold_until(until) {
                    let rows = self.files.read(&piece)?;
                    self.push(input, rows)?;
                }
                return Ok(Some(self.take(until)));
            }
            let (given, pieces) = self.due(until)?;
            self.split(0, given, pieces, room)?;
        }
    }

    /// Takes out what lies on the disk with rows that are needed until then.
    fn cold_until(&mut self, until: i64) -> Vec<Cold> {
        let later = self.cold.split_off(&until.saturating_add(1));
        let mut cold = std::mem::replace(&mut self.cold, later);
        if until == i64::MAX {
            cold.append(&mut self.cold);
        }
        cold.into_values().flatten().collect()
    }

    /// Takes rows out that are needed until then, in memory and on the disk.
    fn due(&mut self, until: i64) -> Result<(Given, Vec<(usize, RowPiece)>), DataflowError> {
        let given = self.take(until);
        let mut pieces = vec![];
        for Cold { input, piece } in self.cold_until(until) {
            let mut run = Run::new(self.files.read(&piece)?, self.waits[input].until)?;
            match run.ends_by(until) {
                true => pieces.push((input, piece)),
                // What is needed later waits again.
                false => {
                    let due = self.files.write(run.take(until).into_iter())?;
                    pieces.extend(due.into_iter().map(|piece| (input, piece)));
                    self.push(input, run.rest())?;
                }
            }
        }
        Ok((given, pieces))
    }

    /// Up to where rows are given at once: as far as there is room for those on the disk, but of
    /// one time at least; and whether there is room.
    fn reach(&self, first: i64, watermark: i64, room: usize) -> (i64, bool) {
        let mut bytes = 0;
        for (&from, cold) in self.cold.range(..=watermark) {
            bytes += cold.iter().map(|cold| cold.piece.bytes()).sum::<usize>();
            if bytes > room {
                return if from > first { (from - 1, true) } else { (first, false) };
            }
        }
        (watermark, true)
    }

    /// Takes rows out that are needed until then.
    fn take(&mut self, until: i64) -> Given {
        let mut given = vec![];
        self.runs.retain_mut(|(input, run)| {
            given.extend(run.take(until).map(|rows| (*input, rows)));
            let is_left = run.next().is_some();
            self.held -= if is_left { 0 } else { run.bytes() };
            is_left
        });
        self.look();
        given
    }

    /// Splits rows by the hash of that level into parts, the next ones to be given.
    fn split(
        &mut self,
        level: u32,
        given: Given,
        pieces: Vec<(usize, RowPiece)>,
        room: usize,
    ) -> Result<(), DataflowError> {
        let parts = self.spread(level, given, pieces, room)?.into_iter();
        let parts = parts.filter(|pieces| !pieces.is_empty());
        self.parts.extend(parts.map(|pieces| Part { level, pieces }));
        Ok(())
    }

    /// Writes rows by the hash of that level in parts.
    fn spread(
        &self,
        level: u32,
        given: Given,
        pieces: Vec<(usize, RowPiece)>,
        room: usize,
    ) -> Result<Vec<Vec<(usize, RowPiece)>>, DataflowError> {
        let mut partitioner = Partitioner::salted(PARTS, level);
        let mut parts: Vec<Vec<(usize, RowPiece)>> = (0..PARTS).map(|_| vec![]).collect();
        let (mut gathered, mut bytes): (Vec<Vec<RecordBatch>>, usize) = (vec![], 0);
        gathered.resize(parts.len() * self.waits.len(), vec![]);
        let mut given = VecDeque::from(given);
        let mut pieces = pieces.into_iter();
        loop {
            let next = match given.pop_front() {
                Some(rows) => Some(rows),
                None => match pieces.next() {
                    Some((input, piece)) => Some((input, self.files.read(&piece)?)),
                    None => None,
                },
            };
            let is_last = next.is_none();
            if let Some((input, rows)) = next {
                bytes += bytes_of(&rows);
                let mut owners = vec![];
                let keys = columns_of(&rows, &self.waits[input].apart);
                partitioner.owners_of(&keys, &mut owners)?;
                let mut of = vec![vec![]; parts.len()];
                owners.iter().zip(0..).for_each(|(&part, row)| of[part as usize].push(row));
                for (part, own) in of.into_iter().enumerate().filter(|(_, own)| !own.is_empty()) {
                    let own = take_record_batch(&rows, &UInt32Array::from(own))?;
                    gathered[part * self.waits.len() + input].push(own);
                }
            }
            if bytes >= GATHERED_BYTES.min(room) || is_last {
                bytes = 0;
                self.write_parts(&mut gathered, &mut parts)?;
            }
            if is_last {
                return Ok(parts);
            }
        }
    }

    /// Writes what was gathered of parts, by part and input.
    fn write_parts(
        &self,
        gathered: &mut [Vec<RecordBatch>],
        parts: &mut [Vec<(usize, RowPiece)>],
    ) -> Result<(), DataflowError> {
        let inputs = self.waits.len();
        let mut places = vec![];
        let mut whole = vec![];
        for (at, batches) in gathered.iter_mut().enumerate().filter(|(_, of)| !of.is_empty()) {
            let batches = std::mem::take(batches);
            whole.push(concat_batches(&batches[0].schema(), &batches)?);
            places.push((at / inputs, at % inputs));
        }
        let pieces = self.files.write(whole.into_iter())?;
        for ((part, input), piece) in places.into_iter().zip(pieces) {
            parts[part].push((input, piece));
        }
        Ok(())
    }

    /// Bytes of memory.
    fn bytes(&self) -> usize {
        let cold: usize = self.cold.values().map(Vec::len).sum();
        let parts: usize = self.parts.iter().map(|part| part.pieces.len()).sum();
        let kept = self.rounds.as_ref().map_or(0, Rounds::pieces);
        self.held + (cold + parts + kept) * size_of::<Cold>()
    }
}

#[cfg(test)]
mod tests;
