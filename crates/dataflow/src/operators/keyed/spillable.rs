//! Rows that wait on a disk until the operator that keeps rows has a use for them.
//!
//! Some operators need a row not before the watermark has reached a time of it ([`SpillSpec`]): the
//! end of its window, or when it was. If what such an operator holds takes more than half of its
//! share of memory, it gives back what waits, and rows that come are spilled: as they came as long
//! as there is room, then on the disk, in the order in which they will be needed. When their time
//! has come, they are given to the operator, as many at once as there is room for
//! ([`SpillableRows::next`]).
//!
//! ```text
//! rows ─▶ runs, in memory ── no room ──▶ sections, on the disk, each of a span of time
//! watermark ─▶ what it has reached ─▶ fits: given at once ───────────▶ operator
//!                                 └▶ one window does not: hash
//!                                    partitions, one by one ─────────▶ operator
//! ```
//!
//! What it keeps for longer than that may be more than there is room for too ([`passes`]). Files,
//! sections and hash partitions are those of [`SpillStore`], as for groups.
//!
//! The operator hears of no time that it has not all rows of, so that it does not know of all this.
//! Rows of one key and window are in one partition: each pair, and each number of a ranking, is
//! made in it as without partitions.

mod passes;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use state::{Disk, SpillPartitions, SpillStore, Spilled, SpilledBatch};

use self::passes::Passes;
use super::{Run, at_rest};
use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{
    Distribution, InputBatches, Keyed, KeyedOperator, KeyedState, RowOwner, SavedPart, SpillSpec,
};

/// Bytes of rows that are put in order and written together, and the fewest of a span.
const GATHERED_BYTES: usize = 4 << 20;
const SECTION_BYTES: usize = 1 << 16;
/// Sections that there is room for at least, unless they would be tiny.
const SECTIONS_MIN: usize = 8;
const SECTION_BYTES_MIN: usize = 1 << 11;
/// The part of a share of memory from which on rows are spilled; that of what waits in memory, and
/// of what is given back at once: it is given beside a table of it, and results.
const HELD_PART: usize = 2;
const ROOM_PART: usize = 4;
/// Of that room, what is given at once to an operator that keeps rows, which take several times as
/// many bytes with their keys found.
const KEEPS_PART: usize = 8;

/// Rows whose time has come.
struct Due {
    rows: InputBatches,
    spilled: Vec<SpilledBatch>,
}

/// The rows that an operator keeps, to be saved.
pub(super) struct KeptRows {
    /// Rows in memory.
    pub(super) held: Vec<SavedRows>,
    /// Rows on the disk, whose input is the part that they are of.
    pub(super) spilled: Vec<SpilledBatch>,
}

/// The state of an operator on one worker, with the rows that it has no room for.
pub(super) struct SpillableState {
    operator: Arc<dyn KeyedOperator>,
    state: Box<dyn KeyedState>,
    /// Whether it has had nothing to give when it was asked last.
    is_at_rest: bool,
    /// How many inputs there are: parts of what is saved begin with the rows that wait of each.
    inputs: usize,
    /// Whether rows of an input are on several workers.
    is_shared: bool,
    /// Whether passes are not put off.
    settles: bool,
    rows: Option<SpillableRows>,
}

impl SpillableState {
    /// Nothing yet; rows may go to the disk, if there is one and the operator says when it needs
    /// them.
    pub(super) fn new(spec: &Keyed, disk: Option<Arc<dyn Disk>>) -> Self {
        let rows =
            spec.spill_specs().zip(disk).map(|(waits, disk)| SpillableRows::new(disk, waits, spec));
        let operator = spec.operator.clone();
        let state = operator.create();
        let is_shared = (0..).zip(&spec.inputs).any(|(number, input)| {
            input.distribution == Distribution::Broadcast
                || operator.multi_partitioner(number).is_some()
        });
        let inputs = spec.inputs.len();
        Self { operator, state, is_at_rest: true, inputs, is_shared, settles: false, rows }
    }

    /// Takes rows of an input; all may hold `share` bytes.
    pub(super) fn push(
        &mut self,
        input: usize,
        batch: RecordBatch,
        share: usize,
    ) -> Result<(), DataflowError> {
        let Some(spillable) = &mut self.rows else { return self.state.push(input, batch) };
        let state = &mut self.state;
        let is_over = |state: &dyn KeyedState| state.bytes() > share / HELD_PART;
        if spillable.is_empty() && spillable.passes.is_none() && !is_over(&**state) {
            state.push(input, batch)?;
        } else {
            spillable.push(input, batch)?;
        }
        if spillable.passes.is_none() && is_over(&**state) {
            for (input, rows) in state.drain()? {
                spillable.push(input, rows)?;
            }
            if is_over(&**state) && self.is_at_rest {
                spillable.begin_passes(state, &self.operator, share)?;
            }
        }
        spillable.relieve(share)
    }

    /// All rows that it keeps, at rest, by part of what the operator [saves](crate::job::Keyed):
    /// those in memory, and those on the disk, which stay there.
    pub(super) fn save(&mut self) -> Result<KeptRows, DataflowError> {
        let is_passing = self.rows.as_ref().is_some_and(|rows| rows.passes.is_some());
        at_rest(self.is_at_rest && (self.settles || !self.is_shared || !is_passing))?;
        self.settles = false;
        let mut held = self.state.save()?;
        held.iter_mut().for_each(|saved| saved.part += self.inputs as u32);
        let mut spilled = vec![];
        if let Some(spillable) = &self.rows {
            let (rows, batches) = spillable.saved()?;
            let rows = rows.into_iter();
            held.extend(rows.map(|(part, rows)| SavedRows { part: part as u32, rows }));
            spilled = batches;
        }
        Ok(KeptRows { held, spilled })
    }

    /// Takes up saved rows.
    pub(super) fn load(
        &mut self,
        SavedRows { part, rows }: SavedRows,
        share: usize,
    ) -> Result<(), DataflowError> {
        let number = part as usize;
        let Some(own) = number.checked_sub(self.inputs) else {
            return self.push(number, rows, share);
        };
        let Some(spillable) = &mut self.rows else {
            return self.state.load(SavedRows { part: own as u32, rows });
        };
        if spillable.passes.is_some() {
            return spillable.load(number, rows, share);
        }
        self.state.load(SavedRows { part: own as u32, rows })?;
        let is_over = |state: &dyn KeyedState| state.bytes() > share / HELD_PART;
        if is_over(&*self.state) || !spillable.is_empty() {
            // Rows of a time wait in one place.
            for (input, rows) in self.state.drain()? {
                spillable.push(input, rows)?;
            }
        }
        if is_over(&*self.state) {
            spillable.begin_passes(&mut self.state, &self.operator, share)?;
        }
        spillable.relieve(share)
    }

    /// Until it is saved, no rows wait that the operator could take, and no pass is put off. Where
    /// rows are on several workers, these must have made the same use of them, for one of them
    /// saves the rows. It is called before [`advance`](Self::advance) is asked for the last time
    /// before that.
    pub(super) fn settle(&mut self) {
        self.settles = self.is_shared;
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
        let Self { operator, state, is_at_rest, settles, rows, .. } = self;
        let Some(spillable) = rows else {
            let batch = state.advance(watermark, rows_max)?;
            *is_at_rest = batch.is_none();
            return Ok(batch);
        };
        loop {
            let until = spillable.until(watermark);
            spillable.reached = spillable.reached.max(until);
            let batch = state.advance(until, rows_max)?;
            *is_at_rest = batch.is_none();
            if batch.is_some() {
                return Ok(batch);
            }
            // It has emitted everything, so that its state can be laid down.
            if spillable.passes.is_none() && state.bytes() > share / HELD_PART {
                spillable.begin_passes(state, operator, share)?;
            }
            if spillable.passes.is_some() {
                if spillable.step(state, operator, (watermark, *settles), share)? {
                    continue;
                }
                return Ok(None);
            }
            let rows = match spillable.next(watermark, share)? {
                None if *settles && spillable.is_much_ahead(share) => {
                    // They are used partition by partition.
                    spillable.begin_passes(state, operator, share)?;
                    continue;
                }
                None if *settles => spillable.ahead()?,
                rows => rows,
            };
            let Some(rows) = rows else { return Ok(None) };
            for (input, rows) in rows {
                state.push(input, rows)?;
            }
            spillable.relieve(share)?;
        }
    }

    /// As [`KeyedState::ready`].
    pub(super) fn ready(&self) -> bool {
        self.state.ready()
    }

    /// As [`KeyedState::complete`].
    pub(super) fn complete(&self, watermark: i64) -> i64 {
        let until = self.rows.as_ref().map_or(watermark, |rows| rows.until(watermark));
        match until {
            i64::MIN | i64::MAX => until,
            _ => self.state.complete(until),
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.state.bytes() + self.rows.as_ref().map_or(0, SpillableRows::bytes)
    }

    /// Bytes written to the disk and read back.
    pub(super) fn spilled(&self) -> Spilled {
        self.rows.as_ref().map_or_else(Spilled::default, |rows| rows.store.spilled())
    }
}

/// Rows that an operator has no use for yet.
struct SpillableRows {
    store: SpillStore,
    /// By input.
    waits: Vec<SpillSpec>,
    /// In memory.
    runs: Vec<(usize, Run)>,
    /// The end of the first window of `runs`.
    next: i64,
    /// On the disk, by the end of the first window.
    spilled: BTreeMap<i64, Vec<SpilledBatch>>,
    /// Those of them that are being given.
    partitions: SpillPartitions,
    /// Up to where rows were given.
    given: i64,
    /// Bytes of `runs`.
    held: usize,
    /// The state of the operator on the disk, if it has no room for it.
    passes: Option<Passes>,
    /// The watermark of the operator.
    reached: i64,
    /// By part of the operator the input whose columns its rows have, where what it keeps can be
    /// taken by keys.
    parts: Option<Vec<usize>>,
}

impl SpillableRows {
    /// Nothing yet; `waits` by input.
    fn new(disk: Arc<dyn Disk>, waits: Vec<SpillSpec>, spec: &Keyed) -> Self {
        let of_part = |part: SavedPart| match part.owner {
            RowOwner::Input(input) => Some(input),
            _ => None,
        };
        let saved = spec.operator.saved().unwrap_or_default().parts.into_iter();
        let parts: Option<Vec<usize>> = saved.map(of_part).collect();
        let parts = parts.filter(|_| waits.iter().any(|waits| waits.keeps));
        let parts = parts.filter(|_| waits.iter().all(|waits| !waits.apart.is_empty()));
        let of_parts = parts.iter().flatten().map(|&input| &waits[input]);
        let apart = waits.iter().chain(of_parts).map(|waits| waits.apart.clone()).collect();
        Self {
            store: SpillStore::new(disk, apart),
            parts,
            waits,
            runs: vec![],
            next: i64::MAX,
            spilled: BTreeMap::new(),
            partitions: SpillPartitions::default(),
            given: i64::MIN,
            held: 0,
            passes: None,
            reached: i64::MIN,
        }
    }

    /// Whether no rows wait here.
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.spilled.is_empty() && self.partitions.is_empty()
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
        let (firsts, rows): (Vec<i64>, Vec<RecordBatch>) = spans.into_iter().unzip();
        for (first, batch) in firsts.into_iter().zip(self.store.write(input, rows)?) {
            self.spilled.entry(first).or_default().push(batch);
        }
        Ok(())
    }

    /// When the first row that waits is needed.
    fn first(&self) -> Option<i64> {
        let spilled = self.spilled.keys().next().copied();
        let run = (!self.runs.is_empty()).then_some(self.next);
        run.into_iter().chain(spilled).min()
    }

    /// Up to where the operator has all rows, if the watermark is this.
    fn until(&self, watermark: i64) -> i64 {
        if let Some(passes) = &self.passes {
            return passes.until;
        }
        match self.first() {
            _ if !self.partitions.is_empty() => self.given,
            Some(first) if first <= watermark => first.saturating_sub(1),
            _ => watermark,
        }
    }

    /// Rows that the watermark has reached, when the operator has emitted all results that do not
    /// need them; `None` if there are no such rows.
    fn next(
        &mut self,
        watermark: i64,
        share: usize,
    ) -> Result<Option<InputBatches>, DataflowError> {
        let keeps = self.waits.iter().any(|waits| waits.keeps);
        let room = share / ROOM_PART / if keeps { KEEPS_PART } else { 1 };
        loop {
            if let Some(partition) = self.partitions.pop() {
                if partition.bytes() > room && !partition.is_last() {
                    let writer = self.store.writer(Some(partition.level()), share);
                    self.partitions.split(writer, partition.batches)?;
                    continue;
                }
                let read = |batch: SpilledBatch| Ok((batch.input(), self.store.read(&batch)?));
                return partition.batches.into_iter().map(read).collect::<Result<_, _>>().map(Some);
            }
            let Some(first) = self.first().filter(|&first| first <= watermark) else {
                return Ok(None);
            };
            let (until, fits) = self.reach(first, watermark, room);
            self.given = until;
            if fits || self.waits.iter().any(|waits| waits.keeps || waits.apart.is_empty()) {
                for batch in self.spilled_until(until) {
                    let rows = self.store.read(&batch)?;
                    self.push(batch.input(), rows)?;
                }
                return Ok(Some(self.take(until)));
            }
            let due = self.due(until)?;
            let mut writer = self.store.writer(Some(0), share);
            for (input, rows) in due.rows {
                writer.add(input, &rows)?;
            }
            self.partitions.split(writer, due.spilled)?;
        }
    }

    /// Whether an operator that can take its rows by keys has no room for those that are ahead of
    /// time.
    fn is_much_ahead(&self, share: usize) -> bool {
        let keeps = self.waits.iter().any(|waits| waits.keeps);
        let spilled: usize = self.spilled.values().flatten().map(SpilledBatch::bytes).sum();
        keeps && self.parts.is_some() && self.held + spilled > share / ROOM_PART / KEEPS_PART
    }

    /// Rows that are ahead of time, if there are any, for an operator that keeps rows: it may have
    /// had such rows where there is more room.
    fn ahead(&mut self) -> Result<Option<InputBatches>, DataflowError> {
        if self.is_empty() || !self.waits.iter().any(|waits| waits.keeps) {
            return Ok(None);
        }
        let mut rows = self.take(i64::MAX);
        for batch in self.spilled_until(i64::MAX) {
            rows.push((batch.input(), self.store.read(&batch)?));
        }
        Ok(Some(rows))
    }

    /// Takes out what lies on the disk with rows that are needed until then.
    fn spilled_until(&mut self, until: i64) -> Vec<SpilledBatch> {
        let later = self.spilled.split_off(&until.saturating_add(1));
        let mut due = std::mem::replace(&mut self.spilled, later);
        if until == i64::MAX {
            due.append(&mut self.spilled);
        }
        due.into_values().flatten().collect()
    }

    /// Takes rows out that are needed until then, in memory and on the disk.
    fn due(&mut self, until: i64) -> Result<Due, DataflowError> {
        let mut due = Due { rows: self.take(until), spilled: vec![] };
        for batch in self.spilled_until(until) {
            let input = batch.input();
            let mut run = Run::new(self.store.read(&batch)?, self.waits[input].until)?;
            if run.ends_by(until) {
                due.spilled.push(batch);
            } else {
                // Rows that are needed later wait again.
                due.spilled.extend(self.store.write(input, run.take(until))?);
                self.push(input, run.rest())?;
            }
        }
        Ok(due)
    }

    /// Up to where rows are given at once: as far as there is room for those on the disk, but of
    /// one time at least; and whether there is room.
    fn reach(&self, first: i64, watermark: i64, room: usize) -> (i64, bool) {
        let mut bytes = 0;
        for (&from, batches) in self.spilled.range(..=watermark) {
            bytes += batches.iter().map(SpilledBatch::bytes).sum::<usize>();
            if bytes > room {
                return if from > first { (from - 1, true) } else { (first, false) };
            }
        }
        (watermark, true)
    }

    /// Takes rows out that are needed until then.
    fn take(&mut self, until: i64) -> InputBatches {
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

    /// All rows, by the part that they are saved in: rows in memory, and rows on the disk, which
    /// are not read.
    fn saved(&self) -> Result<(InputBatches, Vec<SpilledBatch>), DataflowError> {
        at_rest(self.partitions.is_empty())?;
        let held = self.runs.iter().map(|(input, run)| (*input, run.rest())).collect();
        let retained = self.passes.as_ref().map(Passes::retained).transpose()?;
        let spilled = self.spilled.values().flatten().chain(retained.into_iter().flatten());
        Ok((held, spilled.cloned().collect()))
    }

    /// Bytes of memory.
    fn bytes(&self) -> usize {
        let spilled: usize = self.spilled.values().map(Vec::len).sum();
        let kept = self.passes.as_ref().map_or(0, Passes::batches);
        self.held + self.partitions.bytes() + (spilled + kept) * SpilledBatch::HELD_BYTES
    }
}

#[cfg(test)]
mod tests;
