//! Aggregates over the rows around each row, in event time: `OVER (… ORDER BY ts …)`.
//!
//! Rows wait until the watermark has passed them ([`waiting`]); then they are put in order by key
//! and time, and each is given out with what its frames hold. Rows of a key and the same time are
//! peers of a RANGE frame; for a ROWS frame their columns order them, so that every run gives the
//! same rows, however many workers there are.
//!
//! Calls with the same frame share one [`Sliding`]: by key a list of the rows that a frame may
//! still reach, with the aggregates of aligned runs of 2, 4, 8, … rows. A frame is made of at most
//! two such runs of each length, all frames of a batch in one merge of columns, so that a row costs
//! O(log of the rows of its frame), whatever the aggregate: none is asked to take a value back.
//! Runs lie from left to right, so that first, last and n-th value are aggregates too ([`edge`],
//! [`nth`]), and so is the count of different times ([`steps`]).
//!
//! State: rows that wait; of a bounded frame the aggregates of the rows in it, twice at most; of
//! UNBOUNDED PRECEDING one aggregate per key, for what no end of a frame will cut any more is put
//! together. Keys without rows are forgotten where frames are bounded by time, or the key has a
//! window that has ended.

mod edge;
mod log;
mod nth;
mod parts;
mod picked;
mod sliding;
mod steps;
#[cfg(test)]
mod tests;
mod waiting;

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{interleave_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use state::{Aggregate, KeyRows, NullKeys};

pub use self::edge::{first_value, last_value};
pub use self::nth::nth_value;
use self::sliding::{Run, SavedFrame, Sliding};
pub use self::steps::times;
use self::waiting::{Due, Waiting};
use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{
    Description, InputBatches, KeyedOperator, KeyedState, Retention, RowOwner, SavedPart,
    SavedParts, SpillSpec, list,
};
use crate::operators::keyed::{at_rest, no_part};
use crate::rows::keys::{RowKeys, key_fields};
use crate::rows::time::ticks_text;

/// The parts of what is saved: rows that wait, and from then on frames.
const WAITING: u32 = 0;
const FRAMES: u32 = 1;

/// Keys below which those whose window has ended may stay.
const KEYS_MIN: usize = 1_024;

/// Widens each row by aggregates over the rows of its key around it.
#[derive(Debug, Clone)]
pub struct Over {
    /// Columns of the rows.
    pub input: SchemaRef,
    /// The columns whose values the rows of a frame share. NULL is a value.
    pub keys: Vec<usize>,
    /// When a row is: a timestamp.
    pub time: usize,
    /// All columns, in the order in which they tell rows of the same time apart.
    pub ties: Vec<usize>,
    /// The end of the window that a key is of, a timestamp of the unit of the time: from then on
    /// there are no rows of it.
    pub window_end: Option<usize>,
    /// What is computed.
    pub calls: Vec<OverCall>,
    /// The columns of the rows, then a column for each call.
    pub schema: SchemaRef,
}

/// An aggregate over a frame.
#[derive(Debug, Clone)]
pub struct OverCall {
    /// As the user would write it.
    pub text: String,
    /// The function.
    pub aggregate: Arc<dyn Aggregate>,
    /// Its arguments among the columns of the rows.
    pub args: Vec<usize>,
    /// The rows that it is over.
    pub frame: OverFrame,
}

/// The rows around a row: none of them comes after its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverFrame {
    /// What `from` and `to` count.
    pub unit: FrameUnit,
    /// How far before the row the frame begins; `None` for the first row of the key.
    pub from: Option<i64>,
    /// How far before the row the frame ends, 0 for the row itself. Both are at least 0.
    pub to: i64,
}

/// What the bounds of a frame count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameUnit {
    /// Rows.
    Rows,
    /// Ticks of time; rows of the same time are in a frame together.
    Range,
}

impl KeyedOperator for Over {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Framed {
            waiting: Waiting::new(self.time),
            spec: self.clone(),
            slots: Slots::new(),
            frames: self.frames(),
            load: None,
            swept: Swept { at: i64::MIN, keys: 0 },
        })
    }

    /// Rows that wait, and of each frame what frames to come may be made of.
    fn saved(&self) -> Option<SavedParts> {
        let rows = SavedPart { schema: self.input.clone(), owner: RowOwner::Input(0) };
        let frames = self.frames();
        let frames = frames.iter().map(|sliding| self.saved_frame(sliding));
        Some(SavedParts { version: 1, parts: std::iter::once(rows).chain(frames).collect() })
    }

    fn retention(&self, _: usize) -> Option<Retention> {
        let frames = self.calls.iter().map(|call| match (call.frame.unit, call.frame.from) {
            // What no end of a frame will cut is put together.
            (_, None) => Retention::PerKey(1),
            (FrameUnit::Rows, Some(rows)) => Retention::PerKey(rows as u64 + 1),
            (FrameUnit::Range, Some(0)) => Retention::Waiting,
            (FrameUnit::Range, Some(ticks)) => Retention::Span(ticks),
        });
        frames.max().or(Some(Retention::Waiting))
    }

    fn spill_spec(&self, _: usize) -> Option<SpillSpec> {
        Some(SpillSpec { until: self.time, apart: vec![], keeps: true })
    }

    fn passes_on(&self, _: usize, column: usize) -> Option<usize> {
        Some(column)
    }

    fn describe(&self, columns: &[Vec<String>]) -> Description {
        let columns = columns.first().map_or(&[][..], Vec::as_slice);
        let time = self.input.field(self.time).data_type();
        let far = |unit: FrameUnit, count: i64| match unit {
            FrameUnit::Range => format!("{} PRECEDING", ticks_text(count, time)),
            FrameUnit::Rows => format!("{count} PRECEDING"),
        };
        let shown = |call: &OverCall| {
            let OverFrame { unit, from, to } = call.frame;
            let from = from.map_or("UNBOUNDED PRECEDING".into(), |from| far(unit, from));
            let to = if to == 0 { "CURRENT ROW".into() } else { far(unit, to) };
            let unit = match unit {
                FrameUnit::Rows => "ROWS",
                FrameUnit::Range => "RANGE",
            };
            ("function", format!("{} {unit} BETWEEN {from} AND {to}", call.text))
        };
        let mut properties = vec![];
        if !self.keys.is_empty() {
            properties.push(("partition by", list(columns, &self.keys)));
        }
        properties.push(("order by", list(columns, &[self.time])));
        properties.extend(self.calls.iter().map(shown));
        Description { name: "OverAggregate", properties }
    }
}

impl Over {
    /// A frame for each that calls are over.
    fn frames(&self) -> Vec<Sliding> {
        let mut frames: Vec<Sliding> = vec![];
        for (at, call) in self.calls.iter().enumerate() {
            let known = frames.iter().position(|sliding| sliding.frame == call.frame);
            let frame = known.unwrap_or_else(|| {
                frames.push(Sliding::new(call.frame));
                frames.len() - 1
            });
            frames[frame].call(at, call);
        }
        frames
    }

    /// The part of a frame: keys, the end of their window, whether it is a row or what is put
    /// together before the first row, the row's time, and states.
    fn saved_frame(&self, sliding: &Sliding) -> SavedPart {
        let states = sliding.state_types(self).into_iter().enumerate();
        let states = states.map(|(at, of)| Field::new(format!("state{at}"), of, true));
        let own = [
            Field::new("window_end", DataType::Int64, true),
            Field::new("is_row", DataType::Boolean, false),
            Field::new("time", DataType::Int64, true),
        ];
        let fields = key_fields(&self.input, &self.keys).into_iter().chain(own).chain(states);
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let keys = self.keys.iter().copied().zip(0..);
        let end = self.window_end.map(|end| (end, self.keys.len()));
        SavedPart { schema, owner: RowOwner::Keys(keys.chain(end).collect()) }
    }
}

/// The state of one worker.
struct Framed {
    spec: Over,
    waiting: Waiting,
    slots: Slots,
    frames: Vec<Sliding>,
    load: Option<Load>,
    swept: Swept,
}

/// Rows on their way out, in the order of key and time.
struct Load {
    rows: RecordBatch,
    times: Vec<i64>,
    runs: Vec<Run>,
    done: usize,
    /// The run of the next row.
    run: usize,
    bytes: usize,
}

/// When keys were looked at for the last time, and how many were left.
struct Swept {
    at: i64,
    keys: usize,
}

/// Numbers for keys.
struct Slots {
    keys: RowKeys,
    /// By slot the end of its window; the latest time if it has none.
    ends: Vec<i64>,
}

/// A row that is due.
struct Entry {
    slot: u32,
    time: i64,
    piece: u32,
    row: u32,
}

impl KeyedState for Framed {
    fn push(&mut self, _: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        self.waiting.push(batch)
    }

    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        loop {
            if let Some(mut load) = self.load.take() {
                if load.done < load.rows.num_rows() {
                    let batch = self.give_out(&mut load, rows_max)?;
                    self.load = Some(load);
                    return Ok(Some(batch));
                }
                for sliding in &mut self.frames {
                    sliding.close(&self.spec, &load.runs)?;
                }
            }
            let due = self.waiting.due(watermark)?;
            if due.is_empty() {
                self.forget_before(watermark)?;
                return Ok(None);
            }
            self.load = Some(self.arrange(&due)?);
        }
    }

    fn drain(&mut self) -> Result<InputBatches, DataflowError> {
        Ok(self.waiting.drain()?.into_iter().map(|rows| (0, rows)).collect())
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        at_rest(self.load.is_none())?;
        let rows = self.waiting.rows()?.into_iter().map(|rows| SavedRows { part: WAITING, rows });
        let mut all: Vec<SavedRows> = rows.collect();
        for (part, sliding) in (FRAMES..).zip(&self.frames) {
            let SavedFrame { slots, is_row, times, states } = sliding.save()?;
            if slots.is_empty() {
                continue;
            }
            let mut columns = match self.spec.keys.as_slice() {
                [] => vec![],
                _ => self.slots.keys.keys(&slots)?,
            };
            let ends = slots.iter().map(|&slot| self.slots.ends[slot as usize]);
            let ends = ends.map(|end| (end != i64::MAX).then_some(end));
            columns.push(Arc::new(ends.collect::<Int64Array>()));
            columns.push(Arc::new(BooleanArray::from(is_row)));
            columns.push(Arc::new(Int64Array::from(times)));
            columns.extend(states);
            let schema = self.spec.saved_frame(sliding).schema;
            all.push(SavedRows { part, rows: RecordBatch::try_new(schema, columns)? });
        }
        Ok(all)
    }

    fn load(&mut self, SavedRows { part, rows }: SavedRows) -> Result<(), DataflowError> {
        if part == WAITING {
            return self.push(0, rows);
        }
        let Some(sliding) = self.frames.get_mut((part - FRAMES) as usize) else {
            return Err(no_part(part));
        };
        let (keys, others) = rows.columns().split_at(self.spec.keys.len());
        let [ends, is_row, times, states @ ..] = others else { return Err(no_part(part)) };
        let mut slots = vec![];
        self.slots.keys.intern(keys, rows.num_rows(), &mut slots)?;
        let ends = ends.as_primitive::<Int64Type>();
        for (end, &slot) in ends.iter().zip(&slots) {
            // New keys have the next slots, in their order.
            if slot as usize == self.slots.ends.len() {
                self.slots.ends.push(end.unwrap_or(i64::MAX));
            }
        }
        let saved = SavedFrame {
            slots,
            is_row: is_row.as_boolean().values().iter().collect(),
            times: times.as_primitive::<Int64Type>().iter().collect(),
            states: states.to_vec(),
        };
        sliding.load(&self.spec, saved, self.slots.ends.len())
    }

    fn bytes(&self) -> usize {
        let load = self.load.as_ref().map_or(0, |load| load.bytes);
        let frames: usize = self.frames.iter().map(Sliding::bytes).sum();
        self.waiting.bytes() + load + self.slots.bytes() + frames
    }
}

impl Framed {
    /// Puts rows in order, and down in the lists of their keys.
    fn arrange(&mut self, due: &[Due]) -> Result<Load, DataflowError> {
        let (mut entries, mut slots) = (vec![], vec![]);
        for (piece, rows) in due.iter().enumerate() {
            self.slots.of(&self.spec, rows, &mut slots)?;
            for (&(time, row), &slot) in rows.order.iter().zip(&slots) {
                entries.push(Entry { slot, time, piece: piece as u32, row });
            }
        }
        entries.sort_unstable_by_key(|entry| (entry.slot, entry.time));
        let batches: Vec<&RecordBatch> = due.iter().map(|piece| &piece.batch).collect();
        let places: Vec<_> =
            entries.iter().map(|entry| (entry.piece as usize, entry.row as usize)).collect();
        let rows = interleave_record_batch(&batches, &places)?;
        let rows = self.without_ties(rows, &entries)?;
        let mut runs = vec![];
        for rows in entries.chunk_by(|a, b| a.slot == b.slot) {
            let from = runs.last().map_or(0, |run: &Run| run.to);
            runs.push(Run { slot: rows[0].slot, from, to: from + rows.len() });
        }
        let times: Vec<i64> = entries.iter().map(|entry| entry.time).collect();
        let slots = self.slots.ends.len();
        for sliding in &mut self.frames {
            sliding.append(&self.spec, &rows, &runs, &times, slots)?;
        }
        let bytes = rows.get_array_memory_size() + times.len() * size_of::<i64>();
        Ok(Load { rows, times, runs, done: 0, run: 0, bytes })
    }

    /// Rows of equal key and time in the order of their columns.
    fn without_ties(
        &self,
        rows: RecordBatch,
        entries: &[Entry],
    ) -> Result<RecordBatch, DataflowError> {
        let tied = |a: &Entry, b: &Entry| a.slot == b.slot && a.time == b.time;
        if !entries.windows(2).any(|pair| tied(&pair[0], &pair[1])) {
            return Ok(rows);
        }
        let columns = self.spec.ties.iter().map(|&at| rows.column(at));
        let comparable = columns.filter(|column| KeyRows::supports(column.data_type()));
        let values = KeyRows::exact(&comparable.cloned().collect::<Vec<_>>())?;
        let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
        let mut from = 0;
        for peers in entries.chunk_by(tied) {
            let to = from + peers.len();
            order[from..to].sort_unstable_by_key(|&row| values.row(row as usize));
            from = to;
        }
        Ok(take_record_batch(&rows, &UInt32Array::from(order))?)
    }

    /// The next rows of a load, with what their frames hold.
    fn give_out(&mut self, load: &mut Load, rows_max: usize) -> Result<RecordBatch, DataflowError> {
        let all = load.rows.num_rows();
        let mut some = load.done..all.min(load.done + rows_max.max(1));
        for sliding in &mut self.frames {
            some.end = sliding.fitting(&load.runs[load.run..], some.clone(), &load.times);
        }
        let mut columns = if some.len() == all {
            load.rows.columns().to_vec()
        } else {
            let rows: UInt32Array = (some.start as u32..some.end as u32).collect();
            take_record_batch(&load.rows, &rows)?.columns().to_vec()
        };
        let mut runs = vec![];
        while let Some(run) = load.runs.get(load.run).filter(|run| run.from < some.end) {
            runs.push(*run);
            if run.to > some.end {
                break;
            }
            load.run += 1;
        }
        let rows = columns.len();
        let mut results: Vec<Option<ArrayRef>> = vec![None; self.spec.calls.len()];
        for sliding in &mut self.frames {
            sliding.results(&self.spec, &runs, some.clone(), &load.times, &mut results)?;
        }
        columns.extend(results.into_iter().flatten());
        debug_assert_eq!(columns.len(), rows + self.spec.calls.len(), "a frame gives its calls");
        load.done = some.end;
        Ok(RecordBatch::try_new(self.spec.schema.clone(), columns)?)
    }

    /// Forgets what no frame of a row from `watermark` on reaches, now and then: after as much time
    /// as a frame has, so that each key is looked at about once per frame, or when there are twice
    /// as many keys as there were.
    fn forget_before(&mut self, watermark: i64) -> Result<(), DataflowError> {
        if watermark == i64::MAX {
            self.slots = Slots::new();
            self.frames.iter_mut().for_each(Sliding::clear);
            return Ok(());
        }
        let span = self.frames.iter().filter_map(|sliding| sliding.frame.span()).max();
        let over = |span: i64| watermark >= self.swept.at.saturating_add(span);
        let keys = self.slots.ends.len();
        let grown = self.spec.window_end.is_some() && keys > KEYS_MIN.max(2 * self.swept.keys);
        if !grown && !span.is_some_and(over) {
            return Ok(());
        }
        for sliding in &mut self.frames {
            sliding.forget_before(watermark);
        }
        let Self { slots, frames, .. } = self;
        let mut kept = vec![];
        for (slot, &end) in (0..).zip(&slots.ends) {
            if end <= watermark || frames.iter().all(|sliding| sliding.is_idle(slot)) {
                frames.iter_mut().for_each(|sliding| sliding.drop_slot(slot));
            } else {
                kept.push(slot);
            }
        }
        self.swept = Swept { at: watermark, keys: kept.len() };
        if keys > 2 * kept.len() {
            slots.retain(&kept)?;
            frames.iter_mut().for_each(|sliding| sliding.retain(&kept));
        }
        Ok(())
    }
}

impl Slots {
    fn new() -> Self {
        Self { keys: RowKeys::new(NullKeys::Equal), ends: vec![] }
    }

    /// Replaces `slots` by the slot of each row, in their order.
    fn of(&mut self, spec: &Over, rows: &Due, slots: &mut Vec<u32>) -> Result<(), DataflowError> {
        self.keys.intern(&rows.columns(&spec.keys)?, rows.order.len(), slots)?;
        let ends = rows.window_ends(spec.window_end);
        for (&(_, row), &slot) in rows.order.iter().zip(&*slots) {
            // New keys have the next slots, in their order.
            if slot as usize == self.ends.len() {
                self.ends.push(ends.map_or(i64::MAX, |ends| ends[row as usize]));
            }
        }
        Ok(())
    }

    /// Keeps some slots, which ascend. Their places are their new numbers.
    fn retain(&mut self, slots: &[u32]) -> Result<(), DataflowError> {
        self.ends = slots.iter().map(|&slot| self.ends[slot as usize]).collect();
        Ok(self.keys.retain(slots)?)
    }

    fn bytes(&self) -> usize {
        self.keys.bytes() + self.ends.len() * size_of::<i64>()
    }
}

impl OverFrame {
    /// The ticks that it reaches back, if these bound what it holds.
    fn span(&self) -> Option<i64> {
        match self.unit {
            FrameUnit::Range => self.from.map(|from| from.max(1)),
            FrameUnit::Rows => None,
        }
    }
}
