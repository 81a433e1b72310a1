//! One frame and the calls over it, for all keys.

use std::ops::Range;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use state::{Aggregate, Groups, Part};

use super::log::{Log, ROW_BYTES};
use super::parts::{Node, Parts};
use super::{FrameUnit, Over, OverCall, OverFrame};
use crate::error::DataflowError;

/// What the list of a key takes beside its rows: itself, and its levels.
const LOG_BYTES: usize = size_of::<Log>() + 256;

/// Bytes of lists and texts that frames of the rows of a batch hold together; those of one row may
/// be more.
const FRAMES_BYTES_MAX: usize = 64 << 20;

/// A frame that slides over the rows of each key.
pub(super) struct Sliding {
    pub(super) frame: OverFrame,
    /// The calls of the operator that are over it.
    pub(super) calls: Vec<usize>,
    /// By slot.
    logs: Vec<Log>,
    parts: Parts,
    /// Rows that are kept.
    rows: u64,
    /// Whether what a frame holds grows with its rows, as a list does.
    long: bool,
}

/// What is saved of a frame: a row for each row of a key that is kept, and one for what is put
/// together before them.
pub(super) struct SavedFrame {
    /// The slot of each.
    pub(super) slots: Vec<u32>,
    pub(super) is_row: Vec<bool>,
    pub(super) times: Vec<Option<i64>>,
    pub(super) states: Vec<ArrayRef>,
}

/// Rows of one key, side by side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) slot: u32,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl Sliding {
    /// A frame without calls.
    pub(super) fn new(frame: OverFrame) -> Self {
        let (calls, logs, parts) = Default::default();
        Self { frame, calls, logs, parts, rows: 0, long: false }
    }

    /// Adds call `at`.
    pub(super) fn call(&mut self, at: usize, call: &OverCall) {
        self.calls.push(at);
        let long = |of: &DataType| of.primitive_width().is_none() && *of != DataType::Boolean;
        self.long |= call.aggregate.state_types().iter().any(long);
    }

    pub(super) fn bytes(&self) -> usize {
        let rows = self.rows as usize * ROW_BYTES;
        self.parts.bytes() + self.logs.len() * LOG_BYTES + rows
    }

    pub(super) fn clear(&mut self) {
        (self.logs, self.parts, self.rows) = Default::default();
    }

    /// Takes rows, those of a key in order, where there are so many `slots`.
    pub(super) fn append(
        &mut self,
        spec: &Over,
        rows: &RecordBatch,
        runs: &[Run],
        times: &[i64],
        slots: usize,
    ) -> Result<(), DataflowError> {
        self.begin(spec, slots)?;
        let count = rows.num_rows();
        let ids: Vec<u32> = (0..count as u32).collect();
        let mut states = vec![];
        for &call in &self.calls {
            let call = &spec.calls[call];
            let args: Vec<ArrayRef> = call.args.iter().map(|&at| rows.column(at).clone()).collect();
            let mut each = call.aggregate.create();
            each.update(&args, &Groups::each(&ids), count)?;
            states.extend(each.state(&Part::all(0..count, count))?);
        }
        let part = self.parts.add(states, count);
        for run in runs {
            let times = &times[run.from..run.to];
            self.logs[run.slot as usize].push(&self.frame, part, run.from, times);
        }
        self.rows += count as u64;
        self.join(spec, runs)
    }

    /// Makes room for the slots, and the aggregate of no rows.
    fn begin(&mut self, spec: &Over, slots: usize) -> Result<(), DataflowError> {
        if self.parts.is_empty() {
            let mut nothing = vec![];
            for call in self.aggregates(spec) {
                nothing.extend(call.create().state(&Part::all(0..1, 1))?);
            }
            self.parts.add(nothing, 1);
        }
        self.logs.resize_with(slots, Log::default);
        Ok(())
    }

    /// What frames to come may be made of: by slot what is put together, and rows. Runs of several
    /// rows are made anew.
    pub(super) fn save(&self) -> Result<SavedFrame, DataflowError> {
        let (mut slots, mut times, mut is_row, mut nodes) = (vec![], vec![], vec![], vec![]);
        for (slot, log) in (0..).zip(&self.logs) {
            let (before, rows) = log.saved();
            let before = before.map(|node| (false, None, node));
            let rows = rows.map(|(time, node)| (true, time, node));
            for (row, time, node) in before.into_iter().chain(rows) {
                slots.push(slot);
                is_row.push(row);
                times.push(time);
                nodes.push(node);
            }
        }
        let states = if nodes.is_empty() { vec![] } else { self.parts.gather(&nodes)? };
        Ok(SavedFrame { slots, is_row, times, states })
    }

    /// Takes up saved rows of keys, those of a key in order, where there are so many `slots`.
    pub(super) fn load(
        &mut self,
        spec: &Over,
        saved: SavedFrame,
        slots: usize,
    ) -> Result<(), DataflowError> {
        self.begin(spec, slots)?;
        let SavedFrame { slots, is_row, times, states } = saved;
        let part = self.parts.add(states, slots.len());
        let (mut from, mut runs) = (0, vec![]);
        for of_slot in slots.chunk_by(|a, b| a == b) {
            let to = from + of_slot.len();
            let log = &mut self.logs[of_slot[0] as usize];
            while from < to && !is_row[from] {
                let old = log.before.replace(Node::of(part, from));
                old.into_iter().for_each(|node| self.parts.forget(node));
                from += 1;
            }
            let times: Vec<i64> = times[from..to].iter().map(|time| time.unwrap_or(0)).collect();
            log.push(&self.frame, part, from, &times);
            self.rows += times.len() as u64;
            runs.push(Run { slot: of_slot[0], from, to });
            from = to;
        }
        self.join(spec, &runs)
    }

    /// The types of the states of its calls.
    pub(super) fn state_types(&self, spec: &Over) -> Vec<DataType> {
        self.aggregates(spec).flat_map(Aggregate::state_types).collect()
    }

    /// Makes the runs that the last rows have completed, each of two shorter ones.
    fn join(&mut self, spec: &Over, runs: &[Run]) -> Result<(), DataflowError> {
        // No frame of so many rows holds a longer run.
        let longest = match (self.frame.unit, self.frame.from) {
            (FrameUnit::Rows, Some(from)) => {
                from.saturating_sub(self.frame.to).saturating_add(1).max(1).ilog2() as usize
            }
            _ => 63,
        };
        for level in 1..=longest {
            let (mut left, mut right, mut made) = (vec![], vec![], vec![]);
            for run in runs {
                let before = left.len();
                let rows = (run.to - run.from) as u64;
                self.logs[run.slot as usize].halves(level, rows, |l, r| {
                    left.push(l);
                    right.push(r);
                });
                if left.len() > before {
                    made.push((run.slot, before..left.len()));
                }
            }
            if made.is_empty() {
                break;
            }
            let ids: Vec<u32> = (0..left.len() as u32).collect();
            let states = self.merged(spec, &[(&left, &ids), (&right, &ids)], ids.len())?;
            let part = self.parts.add(states, ids.len());
            for (slot, rows) in made {
                self.logs[slot as usize].join(level, part, rows.start, rows.len());
            }
        }
        Ok(())
    }

    /// Up to which of `rows`, at least the first, their frames hold no more than
    /// [`FRAMES_BYTES_MAX`].
    pub(super) fn fitting(&mut self, runs: &[Run], rows: Range<usize>, times: &[i64]) -> usize {
        if !self.long {
            return rows.end;
        }
        let mut bytes = 0;
        for run in runs.iter().take_while(|run| run.from < rows.end) {
            let log = &mut self.logs[run.slot as usize];
            let asked = log.asked();
            let own = run.from.max(rows.start)..run.to.min(rows.end);
            let over = own.clone().zip(&times[own]).find_map(|(row, &time)| {
                let number = log.count - (run.to - row) as u64;
                let bounds = log.bounds(&self.frame, number, time);
                log.runs(bounds.0..bounds.1, |node| bytes += self.parts.bytes_of(node));
                (bytes > FRAMES_BYTES_MAX && row > rows.start).then_some(row)
            });
            // They are asked for once more, in order, for their results.
            log.ask_again(asked);
            if let Some(row) = over {
                return row;
            }
        }
        rows.end
    }

    /// What the frames of `rows` hold: a column for each call, put where the call has its place.
    pub(super) fn results(
        &mut self,
        spec: &Over,
        runs: &[Run],
        rows: Range<usize>,
        times: &[i64],
        results: &mut [Option<ArrayRef>],
    ) -> Result<(), DataflowError> {
        let (mut nodes, mut ids) = (vec![], vec![]);
        for run in runs {
            let log = &mut self.logs[run.slot as usize];
            let own = run.from.max(rows.start)..run.to.min(rows.end);
            for (row, &time) in own.clone().zip(&times[own]) {
                let number = log.count - (run.to - row) as u64;
                let bounds = log.bounds(&self.frame, number, time);
                log.runs(bounds.0..bounds.1, |node| {
                    nodes.push(node);
                    ids.push((row - rows.start) as u32);
                });
            }
        }
        let states = self.parts.gather(&nodes)?;
        let mut states = &states[..];
        for &call in &self.calls {
            let aggregate = &spec.calls[call].aggregate;
            let (own, others) = states.split_at(aggregate.state_types().len());
            let mut frames = aggregate.create();
            frames.merge(own, &Groups::each(&ids), rows.len())?;
            results[call] = Some(frames.values(&Part::all(0..rows.len(), rows.len()))?);
            states = others;
        }
        Ok(())
    }

    /// All rows of these runs have been given out: forgets what no frame to come reaches, or puts
    /// it together where frames begin with the first row.
    pub(super) fn close(&mut self, spec: &Over, runs: &[Run]) -> Result<(), DataflowError> {
        if self.frame.from.is_none() {
            self.fold(spec, runs)?;
        }
        for run in runs {
            let row = self.logs[run.slot as usize].settled(&self.frame);
            self.forget(run.slot, row);
        }
        if self.parts.is_sparse() {
            let nodes = self.logs.iter_mut().flat_map(Log::nodes_mut).collect();
            self.parts.compact(nodes)?;
        }
        Ok(())
    }

    /// Puts all rows of a key that every frame to come holds together.
    fn fold(&mut self, spec: &Over, runs: &[Run]) -> Result<(), DataflowError> {
        let (mut nodes, mut ids, mut keys): (Vec<Node>, Vec<u32>, Vec<u32>) = Default::default();
        for run in runs {
            let log = &self.logs[run.slot as usize];
            let settled = log.settled(&self.frame);
            if settled == log.first {
                continue;
            }
            log.runs(log.first..settled, |node| {
                nodes.push(node);
                ids.push(keys.len() as u32);
            });
            keys.push(run.slot);
        }
        if keys.is_empty() {
            return Ok(());
        }
        let states = self.merged(spec, &[(&nodes, &ids)], keys.len())?;
        let part = self.parts.add(states, keys.len());
        for (row, &slot) in keys.iter().enumerate() {
            let before = self.logs[slot as usize].before.replace(Node::of(part, row));
            before.into_iter().for_each(|node| self.parts.forget(node));
        }
        Ok(())
    }

    /// Forgets the rows that no frame of a row at `watermark` or later reaches.
    pub(super) fn forget_before(&mut self, watermark: i64) {
        let Some(span) = self.frame.from.filter(|_| self.frame.unit == FrameUnit::Range) else {
            return;
        };
        for slot in 0..self.logs.len() {
            let row = self.logs[slot].row_at(watermark.saturating_sub(span));
            self.forget(slot as u32, row);
        }
    }

    /// Whether a key has nothing that a row to come could see.
    pub(super) fn is_idle(&self, slot: u32) -> bool {
        let of_time = self.frame.unit == FrameUnit::Range && self.frame.from.is_some();
        self.logs.get(slot as usize).is_none_or(|log| of_time && log.len() == 0)
    }

    /// Keeps the keys of some slots, which ascend. Their places are their new numbers.
    pub(super) fn retain(&mut self, slots: &[u32]) {
        let mut log = |&slot: &u32| self.logs.get_mut(slot as usize).map(std::mem::take);
        self.logs = slots.iter().map(|slot| log(slot).unwrap_or_default()).collect();
    }

    /// Forgets a key.
    pub(super) fn drop_slot(&mut self, slot: u32) {
        let Some(log) = self.logs.get_mut(slot as usize) else { return };
        let mut log = std::mem::take(log);
        self.rows -= log.len();
        log.nodes_mut().for_each(|node| self.parts.forget(*node));
    }

    fn forget(&mut self, slot: u32, row: u64) {
        let log = &mut self.logs[slot as usize];
        self.rows -= row - log.first;
        log.forget_before(row, |node| self.parts.forget(node));
    }

    /// The merged aggregates of some nodes, in `total` groups.
    fn merged(
        &self,
        spec: &Over,
        nodes: &[(&Vec<Node>, &Vec<u32>)],
        total: usize,
    ) -> Result<Vec<ArrayRef>, DataflowError> {
        let mut all: Vec<_> = self.aggregates(spec).map(|call| call.create()).collect();
        for (nodes, ids) in nodes {
            let states = self.parts.gather(nodes)?;
            let mut states = &states[..];
            for (call, accumulator) in self.aggregates(spec).zip(&mut all) {
                let (own, others) = states.split_at(call.state_types().len());
                accumulator.merge(own, &Groups::each(ids), total)?;
                states = others;
            }
        }
        let mut merged = vec![];
        for mut accumulator in all {
            merged.extend(accumulator.state(&Part::all(0..total, total))?);
        }
        Ok(merged)
    }

    fn aggregates<'a>(&'a self, spec: &'a Over) -> impl Iterator<Item = &'a dyn Aggregate> {
        self.calls.iter().map(|&call| spec.calls[call].aggregate.as_ref())
    }
}
