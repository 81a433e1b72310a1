//! The join of two inputs whose times lie within bounds of each other.
//!
//! A pair needs equal keys and a difference of times, left less right, between a least and a
//! greatest number of ticks. So a left row waits for right rows until the watermark has passed its
//! time less the least difference, and a right row for left ones until it has passed its time and
//! the greatest. Rows are put down by spans of time ([`Span`]), each with its rows by the ids of
//! their keys: a row meets the few spans that can hold a partner, and a span is dropped as a whole.
//!
//! Pairs are given out when the second row comes; rows without a partner, where the kind of join
//! asks for them, when their span is dropped. Batches wait in a queue, so that what one batch makes
//! of a key with many rows is given out in parts.

mod spans;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use state::{KeyTable, NullKeys, gather};

use self::spans::{Span, Spot, with_matched};
use crate::checkpoint::SavedRows;
use crate::error::DataflowError;
use crate::job::{
    Description, InputBatches, JoinKind, KeyedOperator, KeyedState, Origin, Retention, RowOwner,
    SavedPart, SavedParts, SpillSpec, Step, list,
};
use crate::operators::keyed::{at_rest, no_part};
use crate::pairing::Terms;
use crate::rows::keys::RowKeys;
use crate::rows::keys::columns_of;
use crate::rows::time::{ticks, ticks_text};

/// Spans that the time in which a row may have partners is cut into.
const SPANS: i64 = 4;
/// Keys below which those without rows may stay.
const KEYS_MIN: usize = 1 << 12;

/// One side of a join of times.
#[derive(Debug, Clone)]
pub struct TimedSide {
    /// Its columns.
    pub schema: SchemaRef,
    /// The columns that must be equal to the other side's. NULL is equal to nothing.
    pub keys: Vec<usize>,
    /// When a row is: a timestamp of the same unit on both sides.
    pub time: usize,
}

/// A join of rows whose times are near each other.
#[derive(Clone)]
pub struct IntervalJoin {
    /// Left and right.
    pub sides: [TimedSide; 2],
    /// The least and the greatest that a left time less a right one may be, in ticks.
    pub apart: [i64; 2],
    /// Which rows are given out.
    pub kind: JoinKind,
    /// A filter over left and right columns that a pair must pass, besides keys and times.
    pub on: Option<Arc<dyn Step>>,
    /// Left and right columns, or those of one side where the kind gives out one side.
    pub schema: SchemaRef,
    /// Left and right columns: what `on` is given.
    pub both: SchemaRef,
}

impl IntervalJoin {
    fn terms(&self) -> Terms<'_> {
        let Self { kind, on, schema, both, .. } = self;
        Terms { kind: *kind, marks: false, on: on.as_ref(), schema, both }
    }

    /// The times of partners of a row of a side at `time`.
    fn partners(&self, side: usize, time: i64) -> [i64; 2] {
        let [least, most] = self.apart;
        match side {
            0 => [time.saturating_sub(most), time.saturating_sub(least)],
            _ => [time.saturating_add(least), time.saturating_add(most)],
        }
    }

    /// Ticks of a span.
    fn width(&self) -> i64 {
        let [least, most] = self.apart;
        (most.saturating_sub(least) / SPANS).max(1)
    }

    /// How far the times of what is given out may lie before the watermark. One row of a pair has
    /// come since, the other lies at most as far off as it may; and a row without a partner is
    /// given out when the last row of its span can have none.
    fn lag(&self) -> i64 {
        let [least, most] = self.apart;
        let lag = most.max(least.saturating_neg()).max(0);
        if (0..2).any(|side| self.kind.alone(side) == Some(false)) {
            lag.saturating_add(self.width())
        } else {
            lag
        }
    }
}

impl KeyedOperator for IntervalJoin {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(PendingRows {
            width: self.width(),
            spec: self.clone(),
            keys: RowKeys::new(NullKeys::Nothing),
            keys_used: 0,
            kept: Default::default(),
            waiting: VecDeque::new(),
            probing: None,
            leaving: VecDeque::new(),
            held: 0,
        })
    }

    /// The rows of either side that may find a partner, and whether they have found one, where that
    /// matters.
    fn saved(&self) -> Option<SavedParts> {
        let side = |(number, side): (usize, &TimedSide)| {
            let schema = match self.kind.alone(number) {
                Some(_) => with_matched(&side.schema),
                None => side.schema.clone(),
            };
            SavedPart { schema, owner: RowOwner::Input(number) }
        };
        let parts = self.sides.iter().enumerate().map(side).collect();
        Some(SavedParts { version: 1, parts })
    }

    /// Pairs are the same in any order of rows.
    fn loads_in_any_order(&self) -> bool {
        true
    }

    /// The watermark of what it emits is behind its own by what a row may wait. Pairs are emitted
    /// as their rows come, which is when an epoch ends.
    fn merges(&self) -> bool {
        true
    }

    fn retention(&self, input: usize) -> Option<Retention> {
        // A left row waits for right ones that are later than it, and the other way round.
        let later = if input == 0 { self.apart[0].saturating_neg() } else { self.apart[1] };
        Some(if later > 0 { Retention::Span(later) } else { Retention::Waiting })
    }

    fn spill_spec(&self, input: usize) -> Option<SpillSpec> {
        let TimedSide { keys, time, .. } = &self.sides[input];
        Some(SpillSpec { until: *time, apart: keys.clone(), keeps: true })
    }

    fn passes_on(&self, input: usize, column: usize) -> Option<usize> {
        self.kind.passes_on(input, column, self.sides[0].schema.fields().len())
    }

    fn always_has(&self, input: usize) -> bool {
        self.kind.always_has(input)
    }

    fn describe(&self, columns: &[Vec<String>]) -> Description {
        let keys = self.sides.each_ref().map(|side| side.keys.as_slice());
        let mut properties = self.kind.properties(columns, keys, self.on.as_ref());
        let of = |side: usize| {
            list(columns.get(side).map_or(&[], Vec::as_slice), &[self.sides[side].time])
        };
        let time = self.sides[0].schema.field(self.sides[0].time).data_type();
        let [least, most] = self.apart.map(|ticks| ticks_text(ticks, time));
        let between = format!("{} - {} BETWEEN {least} AND {most}", of(0), of(1));
        properties.insert(properties.len().min(2), ("interval", between));
        Description { name: "IntervalJoin", properties }
    }
}

/// Rows that may still find a partner.
struct PendingRows {
    spec: IntervalJoin,
    /// Ticks of a span.
    width: i64,
    /// Of both sides.
    keys: RowKeys,
    /// How many keys had rows when that was counted for the last time.
    keys_used: usize,
    /// Spans of either side by their number.
    kept: [BTreeMap<i64, Span>; 2],
    /// Batches that have not met the other side.
    waiting: VecDeque<(usize, RecordBatch)>,
    probing: Option<Probing>,
    /// Spans that were dropped, with rows to be given out.
    leaving: VecDeque<(usize, Span)>,
    held: usize,
}

/// A row of the other side.
#[derive(Clone, Copy)]
struct Partner {
    span: i64,
    part: u32,
    row: u32,
}

/// A batch on its way past the other side.
struct Probing {
    side: usize,
    batch: RecordBatch,
    /// The id of the key of each row.
    ids: Vec<u32>,
    times: Vec<i64>,
    /// The row that is probed, its partners, and how many of them are done.
    row: usize,
    partners: Option<Vec<Partner>>,
    done: usize,
    matched: Vec<bool>,
    bytes: usize,
}

impl KeyedState for PendingRows {
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        self.held += batch.get_array_memory_size();
        self.waiting.push_back((input, batch));
        Ok(())
    }

    fn ready(&self) -> bool {
        !self.waiting.is_empty()
    }

    fn advance(
        &mut self,
        watermark: i64,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        loop {
            if let Some(mut probing) = self.probing.take() {
                while probing.row < probing.batch.num_rows() {
                    if let Some(batch) = self.probe(&mut probing, rows_max)? {
                        self.probing = Some(probing);
                        return Ok(Some(batch));
                    }
                }
                self.held -= probing.bytes;
                self.keep(probing)?;
            }
            match self.waiting.pop_front() {
                Some((side, batch)) => self.probing = Some(self.start(side, batch)?),
                None => break,
            }
        }
        self.drop_before(watermark)?;
        while let Some((side, mut span)) = self.leaving.pop_front() {
            match span.next_alone(side, self.spec.terms(), rows_max)? {
                Some(batch) => {
                    self.leaving.push_front((side, span));
                    return Ok(Some(batch));
                }
                None => self.held -= span.bytes(),
            }
        }
        Ok(None)
    }

    fn drain(&mut self) -> Result<InputBatches, DataflowError> {
        let all: InputBatches = std::mem::take(&mut self.waiting).into();
        self.held -= all.iter().map(|(_, rows)| rows.get_array_memory_size()).sum::<usize>();
        Ok(all)
    }

    fn save(&mut self) -> Result<Vec<SavedRows>, DataflowError> {
        let busy = self.probing.is_some() || !self.waiting.is_empty() || !self.leaving.is_empty();
        at_rest(!busy)?;
        let mut all = vec![];
        for (part, spans) in (0..).zip(&mut self.kept) {
            for span in spans.values_mut() {
                all.extend(span.rows()?.into_iter().map(|rows| SavedRows { part, rows }));
            }
        }
        Ok(all)
    }

    fn load(&mut self, SavedRows { part, rows }: SavedRows) -> Result<(), DataflowError> {
        let side = part as usize;
        let Some(of) = self.spec.sides.get(side) else { return Err(no_part(part)) };
        let columns: Vec<usize> = (0..of.schema.fields().len()).collect();
        let mut probing = self.start(side, rows.project(&columns)?)?;
        let matched = rows.columns().get(columns.len()).and_then(|of| of.as_boolean_opt());
        if let (true, Some(matched)) = (self.asks(side), matched) {
            probing.matched = matched.values().iter().collect();
        }
        self.keep(probing)
    }

    fn complete(&self, watermark: i64) -> i64 {
        watermark.saturating_sub(self.spec.lag())
    }

    fn bytes(&self) -> usize {
        self.held + self.keys.bytes()
    }
}

impl PendingRows {
    fn span_of(&self, time: i64) -> i64 {
        time.div_euclid(self.width)
    }

    fn start(&mut self, side: usize, batch: RecordBatch) -> Result<Probing, DataflowError> {
        let TimedSide { keys, time, .. } = &self.spec.sides[side];
        let Some(times) = ticks(batch.column(*time)).map(|times| times.to_vec()) else {
            return Err(DataflowError::Expression("the time of a join is not a timestamp".into()));
        };
        let mut ids = vec![];
        self.keys.intern(&columns_of(&batch, keys), batch.num_rows(), &mut ids)?;
        let asked = if self.asks(side) { batch.num_rows() } else { 0 };
        let bytes = batch.get_array_memory_size();
        Ok(Probing {
            side,
            batch,
            ids,
            times,
            row: 0,
            partners: None,
            done: 0,
            matched: vec![false; asked],
            bytes,
        })
    }

    /// Whether it matters which rows of a side have found a partner.
    fn asks(&self, side: usize) -> bool {
        self.spec.kind.alone(side).is_some()
    }

    /// All rows of the other side that a row fits by key and time.
    fn partners(&self, probing: &Probing) -> Vec<Partner> {
        let id = probing.ids[probing.row];
        if id == KeyTable::UNKNOWN {
            return vec![];
        }
        let [from, to] = self.spec.partners(probing.side, probing.times[probing.row]);
        if from > to {
            return vec![];
        }
        let spans = self.kept[1 - probing.side].range(self.span_of(from)..=self.span_of(to));
        let mut partners = vec![];
        for (&number, span) in spans {
            let near = span.rows_of(id).iter().filter(|spot| (from..=to).contains(&spot.time));
            let partner = |&Spot { part, row, .. }: &Spot| Partner { span: number, part, row };
            partners.extend(near.map(partner));
        }
        partners
    }

    /// Some pairs of the rows that are probed, at most `rows_max`; `None` if none of them passes.
    fn probe(
        &mut self,
        probing: &mut Probing,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let (mut own, mut partners) = (vec![], vec![]);
        while probing.row < probing.batch.num_rows() && own.len() < rows_max {
            let all = match probing.partners.take() {
                Some(all) => all,
                None => self.partners(probing),
            };
            let some = (all.len() - probing.done).min(rows_max - own.len());
            own.extend(std::iter::repeat_n(probing.row as u32, some));
            partners.extend_from_slice(&all[probing.done..probing.done + some]);
            probing.done += some;
            if probing.done == all.len() {
                (probing.row, probing.done) = (probing.row + 1, 0);
            } else {
                probing.partners = Some(all);
            }
        }
        if own.is_empty() { Ok(None) } else { self.pairs(probing, own, partners) }
    }

    /// Pairs that pass the filter, as the rows that they make.
    fn pairs(
        &mut self,
        probing: &mut Probing,
        own: Vec<u32>,
        mut partners: Vec<Partner>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let spec = self.spec.clone();
        let (side, other) = (probing.side, 1 - probing.side);
        let mut own = UInt32Array::from(own);
        if spec.on.is_some() {
            let columns = self.columns(probing, &own, &partners)?;
            if let Some(Origin::Mask(kept)) = spec.terms().passed(&columns, own.len())? {
                own = arrow::compute::filter(&own, &kept)?.as_primitive().clone();
                let mut kept = kept.iter();
                partners.retain(|_| kept.next().flatten() == Some(true));
            }
        }
        if own.is_empty() {
            return Ok(None);
        }
        // Of a side that is given out once, rows that have a partner for the first time.
        let mut first = [vec![], vec![]];
        if self.asks(side) {
            for (at, &row) in own.values().iter().enumerate() {
                if !std::mem::replace(&mut probing.matched[row as usize], true) {
                    first[side].push(at as u32);
                }
            }
        }
        if self.asks(other) {
            for (at, partner) in partners.iter().enumerate() {
                let span = self.kept[other].get_mut(&partner.span);
                if span.is_some_and(|span| span.mark(partner.part, partner.row)) {
                    first[other].push(at as u32);
                }
            }
        }
        if spec.kind.widens() {
            let columns = self.columns(probing, &own, &partners)?;
            return Ok(Some(RecordBatch::try_new(spec.schema.clone(), columns)?));
        }
        let Some(shown) = (0..2).find(|&side| spec.kind.alone(side) == Some(true)) else {
            return Ok(None);
        };
        let rows = UInt32Array::from(std::mem::take(&mut first[shown]));
        if rows.is_empty() {
            return Ok(None);
        }
        let columns = if shown == side {
            taken(&probing.batch, &arrow::compute::take(&own, &rows, None)?)?
        } else {
            let picked: Vec<Partner> =
                rows.values().iter().map(|&at| partners[at as usize]).collect();
            self.partner_columns(other, &picked)?
        };
        Ok(Some(RecordBatch::try_new(spec.schema.clone(), columns)?))
    }

    /// Left and right columns of pairs.
    fn columns(
        &self,
        probing: &Probing,
        own: &UInt32Array,
        partners: &[Partner],
    ) -> Result<Vec<ArrayRef>, DataflowError> {
        let own = taken(&probing.batch, own)?;
        let others = self.partner_columns(1 - probing.side, partners)?;
        Ok(match probing.side {
            0 => own.into_iter().chain(others).collect(),
            _ => others.into_iter().chain(own).collect(),
        })
    }

    /// The columns of rows that lie in spans.
    fn partner_columns(
        &self,
        side: usize,
        partners: &[Partner],
    ) -> Result<Vec<ArrayRef>, DataflowError> {
        let mut parts: Vec<&RecordBatch> = vec![];
        let mut known: HashMap<(i64, u32), usize> = HashMap::new();
        let mut rows = Vec::with_capacity(partners.len());
        for partner in partners {
            let Some(span) = self.kept[side].get(&partner.span) else { continue };
            let part = *known.entry((partner.span, partner.part)).or_insert_with(|| {
                parts.push(span.part(partner.part));
                parts.len() - 1
            });
            rows.push((part, partner.row as usize));
        }
        let columns = 0..self.spec.sides[side].schema.fields().len();
        let columns = columns.map(|column| {
            let arrays: Vec<&dyn Array> =
                parts.iter().map(|part| part.column(column).as_ref()).collect();
            gather(&arrays, &rows)
        });
        Ok(columns.collect::<Result<_, _>>()?)
    }

    /// Puts the rows of a batch that has met the other side down for those to come.
    fn keep(&mut self, probing: Probing) -> Result<(), DataflowError> {
        let mut by_span: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for (row, &time) in probing.times.iter().enumerate() {
            by_span.entry(self.span_of(time)).or_default().push(row as u32);
        }
        for (number, rows) in by_span {
            let span = self.kept[probing.side].entry(number).or_default();
            self.held += span.push(&probing, rows)?;
        }
        Ok(())
    }

    /// Forgets keys without rows, where they are most of them.
    fn forget_keys(&mut self) -> Result<(), DataflowError> {
        let keys = self.keys.len();
        if self.kept.iter().all(BTreeMap::is_empty) {
            self.keys.clear();
            self.keys_used = 0;
            return Ok(());
        }
        if keys <= KEYS_MIN.max(2 * self.keys_used) {
            return Ok(());
        }
        let mut is_used = vec![false; keys];
        let spans = || self.kept.iter().flat_map(BTreeMap::values);
        for id in spans().flat_map(Span::keys) {
            is_used[id as usize] = true;
        }
        let used: Vec<u32> = (0..).zip(&is_used).filter_map(|(id, is)| is.then_some(id)).collect();
        self.keys_used = used.len();
        if keys <= 2 * used.len() {
            return Ok(());
        }
        self.keys.retain(&used)?;
        let mut new_ids = vec![KeyTable::UNKNOWN; keys];
        (0..).zip(&used).for_each(|(new, &id)| new_ids[id as usize] = new);
        for span in self.kept.iter_mut().flat_map(BTreeMap::values_mut) {
            span.rename_keys(&new_ids);
        }
        Ok(())
    }

    /// Drops the spans whose last row can have no partner from `watermark` on.
    fn drop_before(&mut self, watermark: i64) -> Result<(), DataflowError> {
        for side in 0..2 {
            while let Some((&number, _)) = self.kept[side].first_key_value() {
                let last = number.saturating_add(1).saturating_mul(self.width).saturating_sub(1);
                let [_, until] = self.spec.partners(side, last);
                if watermark != i64::MAX && until >= watermark {
                    break;
                }
                let Some((_, mut span)) = self.kept[side].pop_first() else { break };
                span.forget_keys();
                match self.spec.kind.alone(side) {
                    Some(false) => self.leaving.push_back((side, span)),
                    _ => self.held -= span.bytes(),
                }
            }
        }
        self.forget_keys()
    }
}

fn taken(batch: &RecordBatch, rows: &dyn Array) -> Result<Vec<ArrayRef>, DataflowError> {
    Ok(batch.columns().iter().map(|column| take(column, rows, None)).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests;
