//! Rows of an interval join that may still find a partner, in spans of time.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use state::KeyTable;

use super::{Probing, taken};
use crate::error::DataflowError;
use crate::pairing::Terms;
use crate::rows::selection::Selection;

/// Rows of some time.
#[derive(Default)]
pub(super) struct Span {
    parts: Vec<RecordBatch>,
    /// Rows by the ids of their keys.
    by_key: HashMap<u32, Vec<Spot>>,
    /// Rows of each part that have found a partner; only where the kind of join asks for it.
    matched: Vec<Vec<bool>>,
    /// The same of each part as it was saved last, until another row finds a partner: a checkpoint
    /// knows the array again. Parts beyond were not saved.
    saved: Vec<Option<ArrayRef>>,
    /// The part and the row to look at next when the span is dropped.
    next: (usize, usize),
    bytes: usize,
}

/// A row of a span.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) time: i64,
    pub(super) part: u32,
    pub(super) row: u32,
}

impl Span {
    /// Adds some rows of a batch; gives how many bytes they take.
    pub(super) fn push(
        &mut self,
        probing: &Probing,
        rows: Vec<u32>,
    ) -> Result<usize, DataflowError> {
        let Probing { batch, ids, times, matched, .. } = probing;
        let part = self.parts.len() as u32;
        let mut bytes = 0;
        for (at, &row) in (0..).zip(&rows) {
            let id = ids[row as usize];
            if id == KeyTable::UNKNOWN {
                continue;
            }
            let spots = self.by_key.entry(id).or_insert_with(|| {
                bytes += size_of::<(u32, Vec<Spot>)>();
                vec![]
            });
            spots.push(Spot { time: times[row as usize], part, row: at });
            bytes += size_of::<Spot>();
        }
        if !matched.is_empty() {
            bytes += rows.len();
            self.matched.push(rows.iter().map(|&row| matched[row as usize]).collect());
        }
        let batch = if rows.len() == batch.num_rows() {
            batch.clone()
        } else {
            RecordBatch::try_new(batch.schema(), taken(batch, &UInt32Array::from(rows))?)?
        };
        bytes += batch.get_array_memory_size();
        self.parts.push(batch);
        self.bytes += bytes;
        Ok(bytes)
    }

    /// The rows of a key.
    pub(super) fn rows_of(&self, id: u32) -> &[Spot] {
        self.by_key.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Rows of which some are [`Spot`]s.
    pub(super) fn part(&self, part: u32) -> &RecordBatch {
        &self.parts[part as usize]
    }

    /// A row has found a partner. Whether it is its first.
    pub(super) fn mark(&mut self, part: u32, row: u32) -> bool {
        let is_first = !std::mem::replace(&mut self.matched[part as usize][row as usize], true);
        if is_first && let Some(saved) = self.saved.get_mut(part as usize) {
            *saved = None;
        }
        is_first
    }

    /// The ids of the keys of its rows.
    pub(super) fn keys(&self) -> impl Iterator<Item = u32> {
        self.by_key.keys().copied()
    }

    /// Each key has the id that stands at its old one.
    pub(super) fn rename_keys(&mut self, ids: &[u32]) {
        let by_key = std::mem::take(&mut self.by_key).into_iter();
        self.by_key = by_key.map(|(id, spots)| (ids[id as usize], spots)).collect();
    }

    /// Its rows are asked for by their keys no more.
    pub(super) fn forget_keys(&mut self) {
        self.by_key = HashMap::new();
    }

    /// The next rows that have found no partner.
    pub(super) fn next_alone(
        &mut self,
        side: usize,
        terms: Terms<'_>,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        while self.next.0 < self.parts.len() {
            let (part, from) = self.next;
            let matched = &self.matched[part];
            let mut rows = vec![];
            let mut row = from;
            while row < matched.len() && rows.len() < rows_max {
                if !matched[row] {
                    rows.push(row as u32);
                }
                row += 1;
            }
            self.next = if row < matched.len() { (part, row) } else { (part + 1, 0) };
            if !rows.is_empty() {
                let rows = UInt32Array::from(rows);
                let own = Selection::of(self.parts[part].clone()).take(&rows)?;
                return Ok(Some(terms.single(side, own)?.materialized()?));
            }
        }
        Ok(None)
    }

    /// All rows, with a column that says which have found a partner, if that is known.
    pub(super) fn rows(&mut self) -> Result<Vec<RecordBatch>, DataflowError> {
        if self.matched.is_empty() {
            return Ok(self.parts.clone());
        }
        self.saved.resize(self.parts.len(), None);
        let all = self.parts.iter().zip(&self.matched).zip(&mut self.saved);
        let rows =
            |((rows, matched), saved): ((&RecordBatch, &Vec<bool>), &mut Option<ArrayRef>)| {
                let made = || -> ArrayRef { Arc::new(BooleanArray::from(matched.clone())) };
                let matched = saved.get_or_insert_with(made).clone();
                let columns = rows.columns().iter().cloned().chain([matched]).collect();
                Ok(RecordBatch::try_new(with_matched(&rows.schema()), columns)?)
            };
        all.map(rows).collect()
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The columns of rows, and one that says which have found a partner.
pub(super) fn with_matched(schema: &SchemaRef) -> SchemaRef {
    let field = Arc::new(Field::new("matched", DataType::Boolean, false));
    let fields = schema.fields().iter().cloned().chain([field]).collect::<Fields>();
    Arc::new(Schema::new(fields))
}
