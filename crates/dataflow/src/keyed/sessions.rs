//! Rows with the session that they belong to (S5).
//!
//! Rows wait, by key, in the session that they have made so far. A row that is close to two
//! sessions brings them together. A session is over when no row on time can continue it any more:
//! then its rows are given out with its bounds.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::compute::{cast, interleave_record_batch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{RowConverter, SortField};
use state::Windows;

use crate::error::DataflowError;
use crate::job::{Kept, KeyedOperator, KeyedState};
use crate::pairing::names;
use crate::time::{last_tick, ticks};

/// What a row of a session takes beside its batch, in bytes.
const ROW_BYTES: usize = size_of::<Place>();
/// What a session takes beside its rows and its key, in bytes.
const SESSION_BYTES: usize = 160;

/// Gives each row the bounds of its session.
#[derive(Debug, Clone)]
pub struct RowSessions {
    /// The columns that sessions are of.
    pub keys: Vec<usize>,
    /// When a row was: a timestamp.
    pub time: usize,
    /// Ticks without a row that end a session.
    pub gap: i64,
    /// The columns of the input, then `window_start`, `window_end` and `window_time` of the type
    /// of the time.
    pub schema: SchemaRef,
}

impl KeyedOperator for RowSessions {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Waiting {
            spec: self.clone(),
            keys: None,
            batches: HashMap::new(),
            pushed: 0,
            sessions: HashMap::new(),
            lasts: BTreeSet::new(),
            over: VecDeque::new(),
            held: 0,
        })
    }

    fn keeps(&self, _: usize) -> Option<Kept> {
        Some(Kept::Session)
    }

    fn describe(&self) -> String {
        format!("rows by ({}) until their session ends", names(&self.schema, &self.keys))
    }
}

/// Where a row is: the number of its batch, and its number there.
type Place = (u64, u32);
type Key = Arc<[u8]>;

/// Rows that wait for their session to end.
struct Waiting {
    spec: RowSessions,
    keys: Option<RowConverter>,
    /// Batches of which rows wait.
    batches: HashMap<u64, Held>,
    /// How many batches have come.
    pushed: u64,
    /// By key and first time. No two of a key are close.
    sessions: HashMap<Key, BTreeMap<i64, Session>>,
    /// The last time that a session has or has had, and its key. Sessions only grow, so that the
    /// one that has this time is found by it.
    lasts: BTreeSet<(i64, Key)>,
    /// Rows of sessions that are over, with the bounds.
    over: VecDeque<(Place, i64, i64)>,
    held: usize,
}

struct Held {
    batch: RecordBatch,
    /// Rows that wait.
    rows: usize,
}

struct Session {
    last: i64,
    rows: Vec<Place>,
}

impl KeyedState for Waiting {
    fn push(&mut self, _: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        let Some(times) = ticks(batch.column(self.spec.time)).cloned() else {
            let message = "the time of a session is not a timestamp";
            return Err(DataflowError::Expression(message.into()));
        };
        let keys = self.keys_of(&batch)?;
        let number = self.pushed;
        for (row, &time) in times.iter().enumerate() {
            let key = keys.as_ref().map_or(&[][..], |keys| keys.row(row).data());
            self.add(key, time, (number, row as u32));
        }
        self.pushed += 1;
        self.held += batch.get_array_memory_size() + batch.num_rows() * ROW_BYTES;
        self.batches.insert(number, Held { rows: batch.num_rows(), batch });
        Ok(())
    }

    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let horizon = self.horizon(watermark);
        while self.over.len() < rows_max
            && let Some((last, _)) = self.lasts.first()
            && self.is_over(*last, horizon)
            && let Some((last, key)) = self.lasts.pop_first()
        {
            self.held -= SESSION_BYTES + key.len();
            self.end(last, key, horizon);
        }
        let count = self.over.len().min(rows_max);
        if count == 0 {
            return Ok(None);
        }
        let rows: Vec<_> = self.over.drain(..count).collect();
        self.give_out(&rows).map(Some)
    }

    /// Sessions that are left end at the least time of rows to come, or later.
    fn complete(&self, watermark: i64) -> i64 {
        match self.spec.schema.field(self.spec.time).data_type() {
            DataType::Timestamp(unit, _) => {
                self.horizon(watermark).saturating_sub(last_tick(*unit))
            }
            _ => watermark,
        }
    }

    fn bytes(&self) -> usize {
        self.held
    }
}

impl Waiting {
    /// The least time of rows to come.
    fn horizon(&self, watermark: i64) -> i64 {
        Windows::sessions(self.spec.gap).map_or(watermark, |windows| windows.horizon(watermark))
    }

    fn keys_of(&mut self, batch: &RecordBatch) -> Result<Option<arrow::row::Rows>, DataflowError> {
        if self.spec.keys.is_empty() {
            return Ok(None);
        }
        let columns: Vec<ArrayRef> =
            self.spec.keys.iter().map(|&key| batch.column(key).clone()).collect();
        if self.keys.is_none() {
            let field = |column: &ArrayRef| SortField::new(column.data_type().clone());
            self.keys = Some(RowConverter::new(columns.iter().map(field).collect())?);
        }
        let convert = |keys: &RowConverter| keys.convert_columns(&columns);
        Ok(self.keys.as_ref().map(convert).transpose()?)
    }

    fn is_over(&self, last: i64, horizon: i64) -> bool {
        last.saturating_add(self.spec.gap) < horizon || horizon == i64::MAX
    }

    /// Puts a row into its session, which may bring others together.
    fn add(&mut self, key: &[u8], time: i64, place: Place) {
        let gap = self.spec.gap;
        let key: Key = match self.sessions.get_key_value(key) {
            Some((key, _)) => key.clone(),
            None => key.into(),
        };
        let sessions = self.sessions.entry(key.clone()).or_default();
        let (mut first, mut session) = (time, Session { last: time, rows: vec![place] });
        let mut grows = false;
        // Those that are close lie side by side.
        while let Some((&at, close)) = sessions.range(..=time.saturating_add(gap)).next_back()
            && close.last.saturating_add(gap) >= time
            && let Some(mut close) = sessions.remove(&at)
        {
            (first, grows) = (first.min(at), true);
            session.last = session.last.max(close.last);
            // The fewer rows move.
            if close.rows.len() > session.rows.len() {
                std::mem::swap(&mut close.rows, &mut session.rows);
            }
            session.rows.append(&mut close.rows);
        }
        sessions.insert(first, session);
        if !grows {
            self.watch(time, key);
        }
    }

    /// Looks at the session of `key` that has `last` when that may be its end.
    fn watch(&mut self, last: i64, key: Key) {
        let bytes = SESSION_BYTES + key.len();
        if self.lasts.insert((last, key)) {
            self.held += bytes;
        }
    }

    /// Ends the session that has `last`, unless it goes on.
    fn end(&mut self, last: i64, key: Key, horizon: i64) {
        let Some(sessions) = self.sessions.get(&key) else { return };
        let Some((&first, session)) = sessions.range(..=last).next_back() else { return };
        let until = session.last;
        // It may have been given out with another that it was brought together with.
        if until < last {
            return;
        }
        if !self.is_over(until, horizon) {
            return self.watch(until, key);
        }
        let end = until.saturating_add(self.spec.gap);
        let Some(sessions) = self.sessions.get_mut(&key) else { return };
        if let Some(session) = sessions.remove(&first) {
            self.over.extend(session.rows.into_iter().map(|place| (place, first, end)));
        }
        if sessions.is_empty() {
            self.sessions.remove(&key);
        }
    }

    fn give_out(&mut self, rows: &[(Place, i64, i64)]) -> Result<RecordBatch, DataflowError> {
        let mut numbers: Vec<u64> = rows.iter().map(|((batch, _), ..)| *batch).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let batches: Vec<&RecordBatch> =
            numbers.iter().filter_map(|number| Some(&self.batches.get(number)?.batch)).collect();
        let at = |batch: &u64| numbers.binary_search(batch).unwrap_or_default();
        let indices: Vec<_> =
            rows.iter().map(|((batch, row), ..)| (at(batch), *row as usize)).collect();
        let inner = interleave_record_batch(&batches, &indices)?;
        let time_type = self.spec.schema.field(self.spec.time).data_type().clone();
        let DataType::Timestamp(unit, _) = time_type else {
            let message = "the time of a session is not a timestamp";
            return Err(DataflowError::Expression(message.into()));
        };
        let bound = |of: fn(&(Place, i64, i64)) -> i64, less: i64| {
            let ticks: Int64Array = rows.iter().map(|row| of(row).saturating_sub(less)).collect();
            cast(&ticks, &time_type)
        };
        let mut columns = inner.columns().to_vec();
        columns.push(bound(|row| row.1, 0)?);
        columns.push(bound(|row| row.2, 0)?);
        columns.push(bound(|row| row.2, last_tick(unit))?);
        for ((batch, _), ..) in rows {
            self.forget(*batch);
        }
        Ok(RecordBatch::try_new(self.spec.schema.clone(), columns)?)
    }

    /// A row of a batch is gone, and with its last one the batch.
    fn forget(&mut self, number: u64) {
        self.held -= ROW_BYTES;
        let Some(held) = self.batches.get_mut(&number) else { return };
        held.rows -= 1;
        if held.rows == 0 {
            self.held -= held.batch.get_array_memory_size();
            self.batches.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests;
