//! What an operator keeps beyond memory: a part of its keys at a time.
//!
//! Rows that an operator keeps after it had a use for them, as those of an interval join that may
//! still find a partner, lie on the disk in parts by the hash of their keys. Rows that come wait,
//! and then all parts have their turn: of each, the operator takes up what it kept, is given the
//! rows that have come, gives out what there is at the watermark of the round, and lays down what
//! it keeps.
//!
//! A round reads and writes all that is kept, so there is one when there is an eighth as much that
//! is new, in bytes or in time, and at the end. Until then the operator is told of no time beyond
//! the last round: results come later, and its watermark with them.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use state::RowPiece;

use super::{Aside, GATHERED_BYTES, ROOM_PART};
use crate::error::DataflowError;
use crate::job::{Given, KeyedState};
use crate::rows::time::ticks;
use crate::rows::wire::bytes_of;

/// What part of what is kept must be new.
const NEW_PART: usize = 8;
/// Of the room, what is taken up whole again: its keys take several times its bytes.
const WHOLE_PART: usize = 8;

/// What is kept, by part.
pub(super) struct Rounds {
    kept: Vec<Kept>,
    round: Option<Round>,
    /// The watermark of the last round, or of the present one.
    pub(super) until: i64,
}

/// What is kept of a part.
struct Kept {
    pieces: Vec<(usize, RowPiece)>,
    /// The time of its first row.
    first: i64,
}

/// Parts that have their turn.
struct Round {
    /// The part that the operator has, or the first.
    part: usize,
    has: bool,
    /// The rows that have come.
    due: Vec<Vec<(usize, RowPiece)>>,
}

impl Kept {
    const NOTHING: Self = Self { pieces: vec![], first: i64::MAX };

    fn bytes(&self) -> usize {
        self.pieces.iter().map(|(_, piece)| piece.bytes()).sum()
    }
}

impl Rounds {
    /// Bytes on the disk.
    fn bytes(&self) -> usize {
        self.kept.iter().map(Kept::bytes).sum()
    }

    /// Pieces, of which places are known.
    pub(super) fn pieces(&self) -> usize {
        let due = self.round.iter().flat_map(|round| &round.due).map(Vec::len);
        self.kept.iter().map(|kept| kept.pieces.len()).chain(due).sum()
    }
}

impl Aside {
    /// Lays down what the operator keeps, which has been told of `told`, if it can now.
    pub(super) fn begin_rounds(
        &mut self,
        state: &mut dyn KeyedState,
        told: i64,
        share: usize,
    ) -> Result<(), DataflowError> {
        if self.waits.iter().any(|waits| waits.apart.is_empty()) {
            return Ok(());
        }
        let Some(given) = state.lay_down()? else { return Ok(()) };
        let firsts: Vec<i64> = given.iter().map(|(at, rows)| self.first_of(*at, rows)).collect();
        let first = firsts.into_iter().min().unwrap_or(i64::MAX);
        let parts = self.spread(0, given, vec![], share / ROOM_PART)?;
        let kept = parts.into_iter().map(|pieces| Kept { pieces, first }).collect();
        self.rounds = Some(Rounds { kept, round: None, until: told });
        Ok(())
    }

    /// The time of the first of some rows.
    fn first_of(&self, input: usize, rows: &RecordBatch) -> i64 {
        let times = ticks(rows.column(self.waits[input].until));
        times.and_then(|times| times.iter().min().copied()).unwrap_or(i64::MAX)
    }

    /// Takes the next step, when the operator has given out what it could: false if there is
    /// nothing to do at this watermark.
    pub(super) fn step(
        &mut self,
        state: &mut dyn KeyedState,
        watermark: i64,
        share: usize,
    ) -> Result<bool, DataflowError> {
        let room = share / ROOM_PART;
        let Some(mut rounds) = self.rounds.take() else { return Ok(false) };
        if rounds.round.is_none() {
            if !self.is_time(&rounds, watermark, room) {
                self.rounds = Some(rounds);
                return Ok(false);
            }
            let (given, pieces) = self.due(watermark)?;
            let due = self.spread(0, given, pieces, room)?;
            rounds.until = watermark;
            rounds.round = Some(Round { part: 0, has: false, due });
        }
        let Some(round) = &mut rounds.round else { return Ok(false) };
        if std::mem::take(&mut round.has) {
            rounds.kept[round.part] = self.laid_down(state)?;
            round.part += 1;
        }
        if let Some(due) = round.due.get_mut(round.part) {
            round.has = true;
            let due = std::mem::take(due);
            let kept = std::mem::replace(&mut rounds.kept[round.part], Kept::NOTHING);
            self.take_up(state, kept)?;
            for (input, piece) in due {
                state.push(input, self.files.read(&piece)?)?;
            }
            self.rounds = Some(rounds);
            return Ok(true);
        }
        rounds.round = None;
        if rounds.bytes() > room / WHOLE_PART {
            self.rounds = Some(rounds);
            return Ok(true);
        }
        // There is room for all again.
        rounds.kept.into_iter().try_for_each(|kept| self.take_up(state, kept))?;
        Ok(true)
    }

    /// Whether it is time for a round.
    fn is_time(&self, rounds: &Rounds, watermark: i64, room: usize) -> bool {
        if watermark <= rounds.until {
            return false;
        }
        let first = rounds.kept.iter().map(|kept| kept.first).min().unwrap_or(i64::MAX);
        let spans = rounds.until.saturating_sub(first).max(0) / NEW_PART as i64;
        let due = self.cold.range(..=watermark).flat_map(|(_, cold)| cold);
        let due = self.held + due.map(|cold| cold.piece.bytes()).sum::<usize>();
        watermark.saturating_sub(rounds.until) >= spans
            || due >= (rounds.bytes() / NEW_PART).max(room)
    }

    fn take_up(&self, state: &mut dyn KeyedState, kept: Kept) -> Result<(), DataflowError> {
        for (input, piece) in kept.pieces {
            state.take_up(input, self.files.read(&piece)?)?;
        }
        Ok(())
    }

    /// Writes what the operator keeps of a part.
    fn laid_down(&self, state: &mut dyn KeyedState) -> Result<Kept, DataflowError> {
        let given = state.lay_down()?.expect("who has given out all lays down what it keeps");
        let mut kept = Kept::NOTHING;
        let mut gathered: Vec<Vec<RecordBatch>> = vec![vec![]; self.waits.len()];
        let mut bytes = 0;
        for (input, rows) in given {
            kept.first = kept.first.min(self.first_of(input, &rows));
            bytes += bytes_of(&rows);
            gathered[input].push(rows);
            if bytes >= GATHERED_BYTES {
                bytes = 0;
                kept.pieces.extend(self.written(&mut gathered)?);
            }
        }
        kept.pieces.extend(self.written(&mut gathered)?);
        Ok(kept)
    }

    /// Writes what was gathered, by input.
    fn written(
        &self,
        gathered: &mut [Vec<RecordBatch>],
    ) -> Result<Vec<(usize, RowPiece)>, DataflowError> {
        let mut all: Given = vec![];
        for (input, batches) in gathered.iter_mut().enumerate() {
            let batches = std::mem::take(batches);
            if let Some(first) = batches.first() {
                all.push((input, concat_batches(&first.schema(), &batches)?));
            }
        }
        let pieces = self.files.write(all.iter().map(|(_, rows)| rows.clone()))?;
        Ok(all.iter().map(|(input, _)| *input).zip(pieces).collect())
    }
}
