//! State beyond memory: a partition of its keys at a time (grace processing).
//!
//! Rows that an operator keeps after it had a use for them, as those of an interval join that may
//! still find a partner, lie on the disk in partitions by the hash of their keys. Rows that come
//! wait, and then a pass takes all partitions in turn: of each, the operator takes up what it kept,
//! is given the rows that have come, emits what there is at the watermark of the pass, and lays
//! down what it keeps.
//!
//! A pass reads and writes all that is kept, so there is one when there is an eighth as much that
//! is new, in bytes or in time, and at the end. Until then the operator hears of no time beyond the
//! last pass: results come later, and its watermark with them.

use std::sync::Arc;

use arrow::array::RecordBatch;
use state::SpilledBatch;

use super::{Due, ROOM_PART, SpillableRows};
use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{InputBatches, KeyedOperator, KeyedState};
use crate::operators::keyed::at_rest;
use crate::rows::time::ticks;

/// The part of the retained rows that must be new.
const NEW_PART: usize = 8;
/// Of the room, what is taken up whole again: its keys take several times its bytes.
const WHOLE_PART: usize = 8;

/// The retained rows, by partition.
pub(super) struct Passes {
    retained: Vec<Retained>,
    pass: Option<Pass>,
    /// The watermark of the last pass, or of the present one.
    pub(super) until: i64,
}

/// The retained rows of a partition.
struct Retained {
    batches: Vec<SpilledBatch>,
    /// The time of its first row.
    first: i64,
}

/// Partitions in turn.
struct Pass {
    /// The partition that the operator has, or the first.
    partition: usize,
    is_loaded: bool,
    /// The rows that have come.
    due: Vec<Vec<SpilledBatch>>,
}

impl Retained {
    const NOTHING: Self = Self { batches: vec![], first: i64::MAX };

    fn bytes(&self) -> usize {
        self.batches.iter().map(SpilledBatch::bytes).sum()
    }
}

impl Passes {
    /// Bytes on the disk.
    fn bytes(&self) -> usize {
        self.retained.iter().map(Retained::bytes).sum()
    }

    /// All that is retained, when no pass is under way.
    pub(super) fn retained(&self) -> Result<impl Iterator<Item = &SpilledBatch>, DataflowError> {
        at_rest(self.pass.is_none())?;
        Ok(self.retained.iter().flat_map(|retained| &retained.batches))
    }

    /// Batches on the disk.
    pub(super) fn batches(&self) -> usize {
        let due = self.pass.iter().flat_map(|pass| &pass.due).map(Vec::len);
        self.retained.iter().map(|retained| retained.batches.len()).chain(due).sum()
    }
}

impl SpillableRows {
    /// Lays down what the operator keeps, if that can be taken by keys.
    pub(super) fn begin_passes(
        &mut self,
        state: &mut Box<dyn KeyedState>,
        operator: &Arc<dyn KeyedOperator>,
        share: usize,
    ) -> Result<(), DataflowError> {
        if self.parts.is_none() {
            return Ok(());
        }
        let (rows, first) = self.taken(state, operator)?;
        let partitions = self.partitioned(Due { rows, spilled: vec![] }, share)?.into_iter();
        let retained = partitions.map(|batches| Retained { batches, first }).collect();
        self.passes = Some(Passes { retained, pass: None, until: self.reached });
        Ok(())
    }

    /// Takes all out that the operator keeps: its rows by part of what is saved, and the time of
    /// the first.
    fn taken(
        &self,
        state: &mut Box<dyn KeyedState>,
        operator: &Arc<dyn KeyedOperator>,
    ) -> Result<(InputBatches, i64), DataflowError> {
        let saved = state.save()?;
        *state = operator.create();
        let number = |part: u32| self.waits.len() + part as usize;
        let rows: InputBatches =
            saved.into_iter().map(|SavedRows { part, rows }| (number(part), rows)).collect();
        let firsts = rows.iter().map(|(number, rows)| self.first_of(*number, rows));
        let first = firsts.min().unwrap_or(i64::MAX);
        Ok((rows, first))
    }

    /// Lays down saved rows beside those that the operator keeps.
    pub(super) fn load(
        &mut self,
        number: usize,
        rows: RecordBatch,
        share: usize,
    ) -> Result<(), DataflowError> {
        let first = self.first_of(number, &rows);
        let rows = vec![(number, rows)];
        let partitions = self.partitioned(Due { rows, spilled: vec![] }, share)?;
        let retained = self.passes.iter_mut().flat_map(|passes| &mut passes.retained);
        for (retained, batches) in retained.zip(partitions) {
            retained.batches.extend(batches);
            retained.first = retained.first.min(first);
        }
        Ok(())
    }

    /// Writes rows by the hash of their keys.
    fn partitioned(&self, due: Due, share: usize) -> Result<Vec<Vec<SpilledBatch>>, DataflowError> {
        let mut writer = self.store.writer(Some(0), share);
        for (input, rows) in due.rows {
            writer.add(input, &rows)?;
        }
        Ok(writer.finish_partitions(due.spilled)?)
    }

    /// The time of the first of some rows of a part.
    fn first_of(&self, number: usize, rows: &RecordBatch) -> i64 {
        let parts = self.parts.as_deref().unwrap_or_default();
        let input = number.checked_sub(self.waits.len()).and_then(|part| parts.get(part));
        let times = input.and_then(|&input| ticks(rows.column(self.waits[input].until)));
        times.and_then(|times| times.iter().min().copied()).unwrap_or(i64::MAX)
    }

    /// Takes the next step, when the operator has emitted what it could: false if there is nothing
    /// to do at this watermark, or it can be put off and the operator settles nothing.
    pub(super) fn step(
        &mut self,
        state: &mut Box<dyn KeyedState>,
        operator: &Arc<dyn KeyedOperator>,
        (watermark, settles): (i64, bool),
        share: usize,
    ) -> Result<bool, DataflowError> {
        let room = share / ROOM_PART;
        let Some(mut passes) = self.passes.take() else { return Ok(false) };
        if passes.pass.is_none() {
            let settles = settles && (watermark > passes.until || !self.is_empty());
            if !settles && !self.is_time(&passes, watermark, room) {
                self.passes = Some(passes);
                return Ok(false);
            }
            let due = self.due(if settles { i64::MAX } else { watermark })?;
            let due = self.partitioned(due, share)?;
            passes.until = watermark;
            passes.pass = Some(Pass { partition: 0, is_loaded: false, due });
        }
        let Some(pass) = &mut passes.pass else { return Ok(false) };
        if std::mem::take(&mut pass.is_loaded) {
            passes.retained[pass.partition] = self.laid_down(state, operator, share)?;
            pass.partition += 1;
        }
        if let Some(due) = pass.due.get_mut(pass.partition) {
            pass.is_loaded = true;
            let due = std::mem::take(due);
            let retained = &mut passes.retained[pass.partition];
            self.take_up(&mut **state, std::mem::replace(retained, Retained::NOTHING))?;
            for batch in due {
                state.push(batch.input(), self.store.read(&batch)?)?;
            }
            self.passes = Some(passes);
            return Ok(true);
        }
        passes.pass = None;
        if passes.bytes() > room / WHOLE_PART {
            self.passes = Some(passes);
            return Ok(true);
        }
        // There is room for all again.
        let mut retained = passes.retained.into_iter();
        retained.try_for_each(|retained| self.take_up(&mut **state, retained))?;
        Ok(true)
    }

    /// Whether it is time for a pass.
    fn is_time(&self, passes: &Passes, watermark: i64, room: usize) -> bool {
        if watermark <= passes.until {
            return false;
        }
        let first = passes.retained.iter().map(|retained| retained.first).min();
        let first = first.unwrap_or(i64::MAX);
        let spans = passes.until.saturating_sub(first).max(0) / NEW_PART as i64;
        let due = self.spilled.range(..=watermark).flat_map(|(_, batches)| batches);
        let due = self.held + due.map(SpilledBatch::bytes).sum::<usize>();
        watermark.saturating_sub(passes.until) >= spans
            || due >= (passes.bytes() / NEW_PART).max(room)
    }

    fn take_up(&self, state: &mut dyn KeyedState, from: Retained) -> Result<(), DataflowError> {
        for batch in from.batches {
            let part = (batch.input() - self.waits.len()) as u32;
            state.load(SavedRows { part, rows: self.store.read(&batch)? })?;
        }
        Ok(())
    }

    /// Writes what the operator keeps of a partition.
    fn laid_down(
        &self,
        state: &mut Box<dyn KeyedState>,
        operator: &Arc<dyn KeyedOperator>,
        share: usize,
    ) -> Result<Retained, DataflowError> {
        let (rows, first) = self.taken(state, operator)?;
        let mut writer = self.store.writer(None, share);
        for (number, rows) in rows {
            writer.add(number, &rows)?;
        }
        Ok(Retained { batches: writer.finish()?, first })
    }
}
