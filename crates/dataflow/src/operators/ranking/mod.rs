//! The first rows of each key in each window, numbered: window Top-N, and with one row
//! deduplication.
//!
//! Rows wait, by the end of their window, until the watermark has passed it; then they are sorted,
//! numbered and given out. Where only the first are asked for, a window that has gathered twice as
//! many rows as it kept before throws away those that can no longer be among them, so that its
//! state grows with its keys and not with its rows.
//!
//! Rows that the order does not tell apart are told apart by their other columns, so that they are
//! the same rows in every run, however many workers there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::{SortOptions, concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::row::Rows;
use state::{KeyRows, has_floats};

use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{
    Description, InputBatches, KeyedOperator, KeyedState, Retention, RowOwner, SavedPart,
    SavedParts, SpillSpec, list,
};
use crate::operators::keyed::{at_rest, before_windows, no_part};
use crate::rows::windows::by_window;
use crate::rows::wire::bytes_of;

/// Rows of a window below which none are thrown away before it ends.
const ROWS_MIN: usize = 4_096;

/// Numbers the rows of each key in each window.
#[derive(Debug, Clone)]
pub struct Ranking {
    /// Columns of the rows.
    pub input: SchemaRef,
    /// The columns whose values share one numbering, besides the window. NULL is a value.
    pub keys: Vec<usize>,
    /// The end of a row's window: a timestamp.
    pub window_end: usize,
    /// The columns that say which row is first.
    pub order: Vec<(usize, SortOptions)>,
    /// How many rows of each key are asked for; `None` for all.
    pub limit: Option<usize>,
    /// The columns of the rows, and their number from 1, of 64 bits without a sign.
    pub schema: SchemaRef,
}

impl KeyedOperator for Ranking {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        let (windows, firing) = (BTreeMap::new(), None);
        Box::new(Ranked { spec: self.clone(), windows, firing, over: 0, held: 0 })
    }

    /// The rows of windows that have not ended, without those that cannot be among the first.
    fn saved(&self) -> Option<SavedParts> {
        let rows = SavedPart { schema: self.input.clone(), owner: RowOwner::Input(0) };
        Some(SavedParts { version: 1, parts: vec![rows] })
    }

    fn retention(&self, _: usize) -> Option<Retention> {
        Some(Retention::TimeWindow)
    }

    fn spill_spec(&self, _: usize) -> Option<SpillSpec> {
        Some(SpillSpec { until: self.window_end, apart: self.keys.clone(), keeps: false })
    }

    fn passes_on(&self, _: usize, column: usize) -> Option<usize> {
        Some(column)
    }

    fn describe(&self, columns: &[Vec<String>]) -> Description {
        let columns = columns.first().map_or(&[][..], Vec::as_slice);
        let by = self.order.iter().map(|(at, options)| {
            let down = if options.descending { " DESC" } else { "" };
            format!("{}{down}", list(columns, &[*at]))
        });
        let mut properties = vec![];
        properties.extend(self.limit.map(|limit| ("limit", limit.to_string())));
        let keys = [self.keys.as_slice(), &[self.window_end]].concat();
        properties.push(("partition by", list(columns, &keys)));
        properties.push(("order by", by.collect::<Vec<_>>().join(", ")));
        let name = if self.limit.is_some() { "TopN" } else { "RowNumber" };
        Description { name, properties }
    }
}

struct Ranked {
    spec: Ranking,
    windows: BTreeMap<i64, Gathered>,
    firing: Option<Firing>,
    /// Windows of which all was given out.
    over: usize,
    held: usize,
}

/// Rows of a window.
#[derive(Default)]
struct Gathered {
    parts: Vec<RecordBatch>,
    rows: usize,
    /// What was left when rows were thrown away for the last time.
    kept: usize,
    bytes: usize,
}

/// Rows of a window on their way out.
struct Firing {
    rows: RecordBatch,
    order: Vec<u32>,
    numbers: Vec<u64>,
    done: usize,
    bytes: usize,
}

impl Ranking {
    /// The rows that count, first to last, and their numbers.
    fn ranked(&self, rows: &RecordBatch) -> Result<(Vec<u32>, Vec<u64>), DataflowError> {
        let keys = made(rows, self.keys.iter().copied(), KeyRows::of)?;
        let options = || self.order.iter().map(|(_, options)| *options);
        let order = self.order.iter().map(|(at, _)| *at);
        let order = made(rows, order, |columns| KeyRows::ordered(columns, options()))?;
        let others = made(rows, self.others(), KeyRows::exact)?;
        let key = |row: u32| keys.as_ref().map(|keys| keys.row(row as usize));
        let place = |row: u32| {
            let place = order.as_ref().map(|order| order.row(row as usize));
            (place, others.as_ref().map(|others| others.row(row as usize)))
        };
        let mut sorted: Vec<u32> = (0..rows.num_rows() as u32).collect();
        sorted.sort_unstable_by(|&a, &b| key(a).cmp(&key(b)).then_with(|| place(a).cmp(&place(b))));
        let mut numbers = Vec::with_capacity(sorted.len());
        let mut before = None;
        let mut number = 0;
        let most = self.limit.map_or(u64::MAX, |limit| limit as u64);
        sorted.retain(|&row| {
            number = if before.is_some_and(|b| key(b) == key(row)) { number + 1 } else { 1 };
            before = Some(row);
            if number <= most {
                numbers.push(number);
            }
            number <= most
        });
        Ok((sorted, numbers))
    }

    /// The columns that tell rows apart which are equal in their key and order: equal floats may
    /// still look apart.
    fn others(&self) -> impl Iterator<Item = usize> {
        let named =
            |at: usize| self.keys.contains(&at) || self.order.iter().any(|(by, _)| *by == at);
        (0..self.input.fields().len()).filter(move |&at| {
            let data_type = self.input.field(at).data_type();
            (!named(at) || has_floats(data_type)) && KeyRows::supports(data_type)
        })
    }
}

/// What is made of some columns, if there are any.
fn made(
    rows: &RecordBatch,
    columns: impl Iterator<Item = usize>,
    make: impl Fn(&[ArrayRef]) -> Result<Rows, ArrowError>,
) -> Result<Option<Rows>, ArrowError> {
    let columns: Vec<ArrayRef> = columns.map(|at| rows.column(at).clone()).collect();
    (!columns.is_empty()).then(|| make(&columns)).transpose()
}

impl Gathered {
    /// Throws away rows that are not among the first of their key.
    fn prune(&mut self, spec: &Ranking) -> Result<(), DataflowError> {
        let whole = concat_batches(&spec.input, &self.parts)?;
        let (first, _) = spec.ranked(&whole)?;
        let rows = take_record_batch(&whole, &UInt32Array::from(first))?;
        (self.rows, self.kept) = (rows.num_rows(), rows.num_rows());
        self.bytes = bytes_of(&rows);
        self.parts = vec![rows];
        Ok(())
    }
}

impl KeyedState for Ranked {
    fn push(&mut self, _: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        for (end, rows) in by_window(&batch, self.spec.window_end)? {
            let window = self.windows.entry(end).or_default();
            let before = window.bytes;
            window.rows += rows.num_rows();
            window.bytes += bytes_of(&rows);
            window.parts.push(rows);
            if self.spec.limit.is_some() && window.rows > ROWS_MIN.max(2 * window.kept) {
                window.prune(&self.spec)?;
            }
            self.held = self.held - before + window.bytes;
        }
        Ok(())
    }

    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        loop {
            if let Some(firing) = &mut self.firing {
                let until = firing.order.len().min(firing.done + rows_max);
                let some = std::mem::replace(&mut firing.done, until)..until;
                if !some.is_empty() {
                    let order = UInt32Array::from(firing.order[some.clone()].to_vec());
                    let mut columns = take_record_batch(&firing.rows, &order)?.columns().to_vec();
                    columns.push(Arc::new(UInt64Array::from(firing.numbers[some].to_vec())));
                    return Ok(Some(RecordBatch::try_new(self.spec.schema.clone(), columns)?));
                }
                self.held -= firing.bytes;
                self.over += 1;
                self.firing = None;
            }
            let Some(window) = self.windows.first_entry().filter(|w| *w.key() <= watermark) else {
                return Ok(None);
            };
            let Gathered { parts, bytes, .. } = window.remove();
            let rows = concat_batches(&self.spec.input, &parts)?;
            let (order, numbers) = self.spec.ranked(&rows)?;
            self.firing = Some(Firing { rows, order, numbers, done: 0, bytes });
        }
    }

    fn drain(&mut self) -> Result<InputBatches, DataflowError> {
        let windows = std::mem::take(&mut self.windows);
        self.held -= windows.values().map(|window| window.bytes).sum::<usize>();
        let all = windows.into_values().flat_map(|window| window.parts);
        Ok(all.map(|rows| (0, rows)).collect())
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        at_rest(self.firing.is_none())?;
        let all = self.windows.values().flat_map(|window| &window.parts);
        Ok(all.map(|rows| SavedRows { part: 0, rows: rows.clone() }).collect())
    }

    fn load(&mut self, SavedRows { part, rows }: SavedRows) -> Result<(), DataflowError> {
        if part == 0 { self.push(0, rows) } else { Err(no_part(part)) }
    }

    fn windows_over(&mut self) -> usize {
        std::mem::take(&mut self.over)
    }

    fn complete(&self, watermark: i64) -> i64 {
        before_windows(watermark, self.spec.input.field(self.spec.window_end))
    }

    fn bytes(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests;
