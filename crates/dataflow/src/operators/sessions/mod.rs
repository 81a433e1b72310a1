//! Rows with the session that they belong to (S5).
//!
//! Rows wait in the batches in which they came ([`Waiting`]), chained by the session that they have
//! made so far ([`Open`]), which is found by the id of its key. A row that is close to two sessions
//! brings them together. A session is over when no row on time can continue it any more: then its
//! rows are given out with its bounds, in the order in which sessions end. Where a batch has many
//! of them, they are given out apart from those of others, as they lie in fewer arrays: a batch
//! that goes out is in that order, but not what comes behind it.
//!
//! What is held is in proportion to the rows that wait: they are copied out of batches that are
//! mostly gone, and ids of keys without sessions are given anew.

mod open;
mod rows;

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, Int64Array, RecordBatch, make_array};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::compute::{filter_record_batch, prep_null_mask_filter};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use state::{NullKeys, Windows};

use self::open::{AHEAD, Open, Session};
use self::rows::{Chain, Chains, Part, Place, Waiting};
use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{
    Description, KeyedOperator, KeyedState, Retention, RowOwner, SavedPart, SavedParts, SpillSpec,
    list,
};
use crate::operators::keyed::{at_rest, no_part};
use crate::rows::keys::columns_of;
use crate::rows::keys::{RowKeys, key_fields};
use crate::rows::time::{last_tick, ticks, ticks_text};

/// How many times the rows that wait batches may hold, and how many times the keys with sessions
/// there may be ids, besides [`Slack`].
const SLACK_TIMES: usize = 2;

/// The parts of what is saved.
const ROWS: u32 = 0;
const SPANS: u32 = 1;

/// Columns that are added to rows.
const BOUNDS: usize = 3;

/// Bounds are written for so many rows at a time.
const STRIDE: usize = 8;

/// What need not be in proportion to the rows that wait.
#[derive(Debug, Clone, Copy)]
struct Slack {
    /// Rows of batches that are held.
    rows: usize,
    /// Ids of keys.
    keys: usize,
    /// Rows of a batch that is made of rows of others.
    batch_rows: usize,
}

impl Slack {
    const USUAL: Self = Self { rows: 1 << 16, keys: 1 << 12, batch_rows: 1 << 13 };
}

/// Gives each row the bounds of its session.
#[derive(Debug, Clone)]
pub struct RowSessions {
    /// The columns of the rows.
    pub input: SchemaRef,
    /// The columns that sessions are of.
    pub keys: Vec<usize>,
    /// When a row was: a timestamp.
    pub time: usize,
    /// Ticks without a row that end a session.
    pub gap: i64,
    /// The column that says which rows are given out, if not all are: the others make sessions.
    pub given: Option<usize>,
    /// The first columns of the input, then `window_start`, `window_end` and `window_time` of the
    /// type of the time.
    pub schema: SchemaRef,
}

impl KeyedOperator for RowSessions {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Sessions::new(self.clone(), Slack::USUAL))
    }

    /// Rows that wait, and the spans of sessions where other rows make them too.
    fn saved(&self) -> Option<SavedParts> {
        let rows = SavedPart { schema: self.input.clone(), owner: RowOwner::Input(0) };
        let keys = self.keys.iter().copied().zip(0..).collect();
        let spans = SavedPart { schema: self.spans_schema(), owner: RowOwner::Keys(keys) };
        let parts = std::iter::once(rows).chain(self.given.map(|_| spans));
        Some(SavedParts { version: 1, parts: parts.collect() })
    }

    /// Rows are of use when their session ends.
    fn merges(&self) -> bool {
        true
    }

    fn retention(&self, _: usize) -> Option<Retention> {
        Some(Retention::Session)
    }

    fn spill_spec(&self, _: usize) -> Option<SpillSpec> {
        Some(SpillSpec { until: self.time, apart: self.keys.clone(), keeps: true })
    }

    fn passes_on(&self, _: usize, column: usize) -> Option<usize> {
        let kept = self.schema.fields().len() - BOUNDS;
        (column < kept).then_some(column)
    }

    fn describe(&self, columns: &[Vec<String>]) -> Description {
        let columns = columns.first().map_or(&[][..], Vec::as_slice);
        let time = self.schema.field(self.schema.fields().len() - BOUNDS).data_type();
        let window =
            format!("SESSION({}, GAP {})", list(columns, &[self.time]), ticks_text(self.gap, time));
        let mut properties = vec![("window", window)];
        if !self.keys.is_empty() {
            properties.push(("partition by", list(columns, &self.keys)));
        }
        properties.extend(self.given.map(|given| ("filter", list(columns, &[given]))));
        Description { name: "SessionWindow", properties }
    }
}

impl RowSessions {
    /// Keys and the times of the first and the last row of a session.
    fn spans_schema(&self) -> SchemaRef {
        let bounds = ["first", "last"].map(|name| Field::new(name, DataType::Int64, false));
        let keys = key_fields(&self.input, &self.keys);
        Arc::new(Schema::new(keys.into_iter().chain(bounds).collect::<Vec<_>>()))
    }
}

/// The sessions of one worker.
struct Sessions {
    spec: RowSessions,
    slack: Slack,
    /// Made anew when all sessions are over.
    keys: RowKeys,
    ids: Vec<u32>,
    waiting: Waiting,
    chains: Chains,
    open: Open,
    /// A session that is over, with those of its rows that have not been given out.
    ending: Option<Session>,
    /// Rows on their way out.
    out: VecDeque<RecordBatch>,
}

/// Rows of sessions that are over.
struct Over {
    places: Vec<Place>,
    starts: Vec<i64>,
    ends: Vec<i64>,
}

impl Over {
    fn with_capacity(rows: usize) -> Self {
        let ticks = || Vec::with_capacity(rows);
        Self { places: Vec::with_capacity(rows), starts: ticks(), ends: ticks() }
    }

    /// The places that have come since are of a session with these bounds.
    #[inline]
    fn bound(&mut self, start: i64, end: i64) {
        fill(&mut self.starts, start, self.places.len());
        fill(&mut self.ends, end, self.places.len());
    }
}

/// Grows to `len`, in strides: a few more and a cut take less than a loop of unknown length.
#[inline]
fn fill(ticks: &mut Vec<i64>, value: i64, len: usize) {
    while ticks.len() < len {
        ticks.extend_from_slice(&[value; STRIDE]);
    }
    ticks.truncate(len);
}

impl KeyedState for Sessions {
    fn push(&mut self, _: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        let Some(times) = ticks(batch.column(self.spec.time)).cloned() else {
            return Err(no_time());
        };
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.tidy()?;
        let keys = columns_of(&batch, &self.spec.keys);
        let known = self.keys.intern(&keys, batch.num_rows(), &mut self.ids)?;
        self.open.grow(known);
        let (given, rows) = self.given(batch)?;
        let batch = (rows.num_rows() > 0).then(|| self.waiting.push(rows));
        let mut row = 0;
        for (at, (&key, &time)) in self.ids.iter().zip(&times).enumerate() {
            if let Some(&next) = self.ids.get(at + AHEAD) {
                self.open.ahead(next);
            }
            let place = match batch {
                Some(batch) if given.as_ref().is_none_or(|given| given.value(at)) => {
                    row += 1;
                    Some(Place { batch, row: row - 1 })
                }
                _ => None,
            };
            self.open.add(key, time, place, &mut self.chains);
        }
        Ok(())
    }

    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        if self.out.is_empty() {
            let over = self.over(self.horizon(watermark), rows_max);
            self.give_out(over)?;
        }
        let batch = self.out.pop_front();
        let is_over = self.open.keys() == 0 && self.ending.is_none() && self.out.is_empty();
        if is_over && self.keys.len() > 0 {
            *self = Self::new(self.spec.clone(), self.slack);
        }
        Ok(batch)
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        at_rest(self.ending.is_none() && self.out.is_empty())?;
        let mut all: Vec<SavedRows> = self.spans()?.into_iter().collect();
        let mut places = Vec::with_capacity(self.waiting.len());
        for (_, session) in self.open.sessions() {
            self.chains.each(&session.rows, |place| places.push(place));
        }
        for places in places.chunks(self.slack.batch_rows) {
            let rows = self.waiting.rows(places)?;
            all.extend(rows.map(|rows| SavedRows { part: ROWS, rows }));
        }
        Ok(all)
    }

    fn load(&mut self, SavedRows { part, rows }: SavedRows) -> Result<(), DataflowError> {
        match part {
            ROWS => self.push(0, rows),
            SPANS if self.spec.given.is_some() => self.load_spans(&rows),
            _ => Err(no_part(part)),
        }
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
        let keys = self.keys.bytes() + self.ids.capacity() * size_of::<u32>();
        self.waiting.bytes() + self.chains.bytes() + self.open.bytes() + keys
    }
}

impl Sessions {
    fn new(spec: RowSessions, slack: Slack) -> Self {
        Self {
            slack,
            keys: RowKeys::new(NullKeys::Equal),
            ids: vec![],
            waiting: Waiting::default(),
            chains: Chains::default(),
            open: Open::new(spec.gap),
            ending: None,
            out: VecDeque::new(),
            spec,
        }
    }

    /// From when until when sessions last, where not all of their rows wait.
    fn spans(&self) -> Result<Option<SavedRows>, DataflowError> {
        if self.spec.given.is_none() || self.open.keys() == 0 {
            return Ok(None);
        }
        let (ids, bounds): (Vec<u32>, Vec<[i64; 2]>) =
            self.open.sessions().map(|(key, session)| (key, [session.first, session.last])).unzip();
        let mut columns = match self.spec.keys.as_slice() {
            [] => vec![],
            _ => self.keys.keys(&ids)?,
        };
        for bound in 0..2 {
            let ticks = bounds.iter().map(|bounds| bounds[bound]);
            columns.push(Arc::new(Int64Array::from_iter_values(ticks)));
        }
        let rows = RecordBatch::try_new(self.spec.spans_schema(), columns)?;
        Ok(Some(SavedRows { part: SPANS, rows }))
    }

    /// Sessions as they were saved, before the rows of their keys that wait.
    fn load_spans(&mut self, rows: &RecordBatch) -> Result<(), DataflowError> {
        let keys = self.spec.keys.len();
        let known = self.keys.intern(&rows.columns()[..keys], rows.num_rows(), &mut self.ids)?;
        self.open.grow(known);
        let ticks = |at: usize| rows.column(at).as_primitive::<Int64Type>().values();
        let (firsts, lasts) = (ticks(keys), ticks(keys + 1));
        for ((&key, &first), &last) in self.ids.iter().zip(firsts).zip(lasts) {
            self.open.add_span(key, first, last);
        }
        Ok(())
    }

    /// The least time of rows to come.
    fn horizon(&self, watermark: i64) -> i64 {
        Windows::sessions(self.spec.gap).map_or(watermark, |windows| windows.horizon(watermark))
    }

    /// Gives back what is held for rows and keys that are gone, where that is most of it.
    fn tidy(&mut self) -> Result<(), DataflowError> {
        if self.waiting.held() > SLACK_TIMES * self.waiting.len() + self.slack.rows {
            let ending = self.ending.as_mut().map(|session| &mut session.rows);
            let all = self.open.chains().chain(ending);
            let rows_max = self.slack.batch_rows;
            self.waiting = self.waiting.gathered(all, &mut self.chains, rows_max)?;
        }
        if self.keys.len() > SLACK_TIMES * self.open.keys() + self.slack.keys {
            self.keys.retain(&self.open.rename())?;
        }
        Ok(())
    }

    /// The rows of a batch that are given out, and which these are, if not all or none.
    fn given(
        &self,
        batch: RecordBatch,
    ) -> Result<(Option<BooleanBuffer>, RecordBatch), DataflowError> {
        let Some(at) = self.spec.given else { return Ok((None, batch)) };
        let given = batch.column(at).as_boolean();
        let given = match given.null_count() {
            0 => given.clone(),
            _ => prep_null_mask_filter(given),
        };
        Ok(match given.true_count() {
            0 => (None, batch.slice(0, 0)),
            all if all == batch.num_rows() => (None, batch),
            _ => {
                let rows = filter_record_batch(&batch, &given)?;
                (Some(given.values().clone()), rows)
            }
        })
    }

    /// Takes the next rows of sessions that are over.
    fn over(&mut self, horizon: i64, rows_max: usize) -> Over {
        let mut over = Over::with_capacity(rows_max.min(self.waiting.len()) + STRIDE);
        let mut take = |session: &mut Session| {
            self.chains.take(&mut session.rows, rows_max, &mut over.places);
            over.bound(session.first, session.last.saturating_add(self.spec.gap));
            over.places.len() < rows_max
        };
        let mut room = rows_max > 0;
        if let Some(mut session) = self.ending.take() {
            room = take(&mut session);
            self.ending = (!session.rows.is_empty()).then_some(session);
        }
        while room && let Some(session) = self.open.over(horizon) {
            room = take(session);
            if !session.rows.is_empty() {
                self.ending = Some(*session);
                session.rows = Chain::EMPTY;
            }
        }
        over
    }

    /// Makes batches of rows.
    fn give_out(&mut self, Over { places, starts, ends }: Over) -> Result<(), DataflowError> {
        if places.is_empty() {
            return Ok(());
        }
        let inner = self.spec.schema.fields().len() - BOUNDS;
        match self.waiting.parts(&places) {
            Some(parts) => {
                for Part { batch, of } in parts {
                    let rows = of.iter().map(|&at| places[at as usize].row);
                    let columns = self.waiting.taken(batch, rows.collect(), 0..inner)?;
                    let of = |ticks: &[i64]| of.iter().map(|&at| ticks[at as usize]).collect();
                    self.out.push_back(self.bounded(columns, of(&starts), of(&ends))?);
                }
            }
            None => {
                let columns = self.waiting.columns(&places, 0..inner)?;
                self.out.push_back(self.bounded(columns, starts, ends)?);
            }
        }
        self.waiting.forget();
        Ok(())
    }

    /// Rows with the bounds of their sessions.
    fn bounded(
        &self,
        mut columns: Vec<ArrayRef>,
        starts: Vec<i64>,
        ends: Vec<i64>,
    ) -> Result<RecordBatch, DataflowError> {
        let time_type = self.spec.schema.field(self.spec.time).data_type();
        let DataType::Timestamp(unit, _) = time_type else { return Err(no_time()) };
        let times = ends.iter().map(|end| end.saturating_sub(last_tick(*unit))).collect();
        let bounds: [Vec<i64>; BOUNDS] = [starts, ends, times];
        for bound in bounds {
            columns.push(timestamps(bound, time_type)?);
        }
        Ok(RecordBatch::try_new(self.spec.schema.clone(), columns)?)
    }
}

/// A column of ticks.
fn timestamps(ticks: Vec<i64>, time_type: &DataType) -> Result<ArrayRef, DataflowError> {
    let data = ArrayData::builder(time_type.clone()).len(ticks.len());
    Ok(make_array(data.add_buffer(Buffer::from_vec(ticks)).build()?))
}

fn no_time() -> DataflowError {
    DataflowError::Expression("the time of a session is not a timestamp".into())
}

#[cfg(test)]
mod tests;
