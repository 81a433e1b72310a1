//! The join of two inputs window by window (S7, NB8).
//!
//! Rows wait, by the end of their window, until the watermark of both inputs has passed it. Then
//! the rows of the window meet: the right side's are put into a hash table by their keys, the left
//! side's are probed against it, batch by batch, and what has found no partner is given out at the
//! end, where the kind of join asks for it. The state of a window is dropped with its last row.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute::{concat_batches, take, take_record_batch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};

use crate::error::DataflowError;
use crate::job::{KeyedOperator, KeyedState, Origin, Step};
use crate::time::{last_tick, ticks};

/// Which rows of a join are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// Pairs.
    Inner,
    /// Pairs, and left rows without a partner.
    Left,
    /// Pairs, and right rows without a partner.
    Right,
    /// Pairs, and rows without a partner.
    Full,
    /// Left rows with a partner, once.
    LeftSemi,
    /// Left rows without a partner.
    LeftAnti,
    /// Right rows with a partner, once.
    RightSemi,
    /// Right rows without a partner.
    RightAnti,
}

impl JoinKind {
    fn pairs(self) -> bool {
        matches!(self, Self::Inner | Self::Left | Self::Right | Self::Full)
    }

    /// Which rows of a side are given out alone: those with a partner, or those without one.
    fn alone(self, side: usize) -> Option<bool> {
        match (self, side) {
            (Self::LeftSemi, 0) | (Self::RightSemi, 1) => Some(true),
            (Self::Left | Self::Full | Self::LeftAnti, 0)
            | (Self::Right | Self::Full | Self::RightAnti, 1) => Some(false),
            _ => None,
        }
    }

    /// Whether the columns of a side are given out.
    fn shows(self, side: usize) -> bool {
        match self {
            Self::LeftSemi | Self::LeftAnti => side == 0,
            Self::RightSemi | Self::RightAnti => side == 1,
            _ => true,
        }
    }
}

/// One side of a join.
#[derive(Debug, Clone)]
pub struct JoinSide {
    /// Its columns.
    pub schema: SchemaRef,
    /// The columns that must be equal to the other side's, of the same types. NULL is equal to
    /// nothing.
    pub keys: Vec<usize>,
    /// The end of a row's window: a timestamp of the same unit on both sides.
    pub window_end: usize,
}

/// A join of the rows of each window.
#[derive(Clone)]
pub struct WindowJoin {
    /// Left and right.
    pub sides: [JoinSide; 2],
    /// Which rows are given out.
    pub kind: JoinKind,
    /// A filter over left and right columns that a pair must pass, besides equal keys.
    pub on: Option<Arc<dyn Step>>,
    /// Left and right columns, or those of one side where the kind gives out one side.
    pub schema: SchemaRef,
    /// Left and right columns: what `on` is given.
    pub both: SchemaRef,
}

impl KeyedOperator for WindowJoin {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn create(&self) -> Box<dyn KeyedState> {
        Box::new(Joining { spec: self.clone(), windows: BTreeMap::new(), firing: None, held: 0 })
    }

    fn describe(&self) -> String {
        let on = self.on.as_ref().map_or(String::new(), |on| format!(", {}", on.describe()));
        let keys = |side: &JoinSide| {
            let names = side.keys.iter().map(|&key| side.schema.field(key).name().clone());
            names.collect::<Vec<_>>().join(", ")
        };
        let [left, right] = &self.sides;
        format!("{:?} of each window on ({}) = ({}){on}", self.kind, keys(left), keys(right))
    }
}

/// Rows that wait for their window to end.
struct Joining {
    spec: WindowJoin,
    /// By the end of the window the rows of either side.
    windows: BTreeMap<i64, [Vec<RecordBatch>; 2]>,
    firing: Option<Firing>,
    held: usize,
}

impl KeyedState for Joining {
    fn push(&mut self, input: usize, batch: RecordBatch) -> Result<(), DataflowError> {
        let column = batch.column(self.spec.sides[input].window_end);
        let Some(ends) = ticks(column) else {
            let message = "the end of a window is not a timestamp";
            return Err(DataflowError::Expression(message.into()));
        };
        let mut by_end: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
        for (row, &end) in ends.iter().enumerate() {
            by_end.entry(end).or_default().push(row as u32);
        }
        for (end, rows) in by_end {
            let part = match rows.len() == batch.num_rows() {
                true => batch.clone(),
                false => take_record_batch(&batch, &UInt32Array::from(rows))?,
            };
            self.held += part.get_array_memory_size();
            self.windows.entry(end).or_default()[input].push(part);
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
                if let Some(batch) = firing.next(&self.spec, rows_max)? {
                    return Ok(Some(batch));
                }
                self.held -= firing.bytes;
                self.firing = None;
            }
            let Some(window) = self.windows.first_entry().filter(|w| *w.key() <= watermark) else {
                return Ok(None);
            };
            self.firing = Some(Firing::new(&self.spec, window.remove())?);
        }
    }

    /// The least `window_time` that can come is the last millisecond of a later window.
    fn complete(&self, watermark: i64) -> i64 {
        let [left, _] = &self.spec.sides;
        let DataType::Timestamp(unit, _) = left.schema.field(left.window_end).data_type() else {
            return watermark;
        };
        watermark.saturating_sub(last_tick(*unit) - 1)
    }

    fn bytes(&self) -> usize {
        self.held
    }
}

/// The rows of a window, on their way out.
struct Firing {
    sides: [RecordBatch; 2],
    rows: [Rows; 2],
    /// Rows of either side whose keys are not NULL.
    valid: [Option<NullBuffer>; 2],
    hasher: RandomState,
    /// By the hash of its keys the first of the right rows; the others of that hash follow in
    /// `next`, each as its number + 1.
    first: HashMap<u64, u32>,
    next: Vec<u32>,
    /// The left row that is probed, and the right row to look at, + 1; before the first of a left
    /// row, nothing.
    left: usize,
    right: Option<u32>,
    /// Rows of either side that have found a partner.
    matched: [Vec<bool>; 2],
    /// Sides whose rows without or with a partner are still to be given out.
    alone: VecDeque<usize>,
    done: usize,
    bytes: usize,
}

impl Firing {
    fn new(spec: &WindowJoin, sides: [Vec<RecordBatch>; 2]) -> Result<Self, DataflowError> {
        let bytes = sides.iter().flatten().map(RecordBatch::get_array_memory_size).sum();
        let [left, right] = &spec.sides;
        let whole =
            [concat_batches(&left.schema, &sides[0])?, concat_batches(&right.schema, &sides[1])?];
        let types = left.keys.iter().map(|&key| left.schema.field(key).data_type().clone());
        let converter = RowConverter::new(types.map(SortField::new).collect())?;
        let keys = |side: usize| -> Vec<ArrayRef> {
            spec.sides[side].keys.iter().map(|&key| whole[side].column(key).clone()).collect()
        };
        let rows = |side: usize| match spec.sides[side].keys.is_empty() {
            true => Ok(converter.empty_rows(0, 0)),
            false => converter.convert_columns(&keys(side)),
        };
        let rows = [rows(0)?, rows(1)?];
        let valid = [0, 1].map(|side| {
            keys(side).iter().fold(None, |all, key| {
                NullBuffer::union(all.as_ref(), key.logical_nulls().as_ref())
            })
        });
        let matched = [vec![false; whole[0].num_rows()], vec![false; whole[1].num_rows()]];
        let alone = (0..2).filter(|&side| spec.kind.alone(side).is_some()).collect();
        let next = vec![0; whole[1].num_rows()];
        let mut firing = Self {
            sides: whole,
            rows,
            valid,
            hasher: RandomState::new(),
            first: HashMap::new(),
            next,
            left: 0,
            right: None,
            matched,
            alone,
            done: 0,
            bytes,
        };
        for row in (0..firing.sides[1].num_rows()).rev() {
            if let Some(hash) = firing.hash(1, row) {
                let before = firing.first.insert(hash, row as u32 + 1);
                firing.next[row] = before.unwrap_or(0);
            }
        }
        Ok(firing)
    }

    /// The hash of a row's keys; nothing where one of them is NULL.
    fn hash(&self, side: usize, row: usize) -> Option<u64> {
        if self.valid[side].as_ref().is_some_and(|valid| valid.is_null(row)) {
            return None;
        }
        Some(match self.rows[side].num_rows() {
            0 => 0,
            _ => self.hasher.hash_one(self.rows[side].row(row)),
        })
    }

    fn equal(&self, left: usize, right: usize) -> bool {
        self.rows[0].num_rows() == 0 || self.rows[0].row(left) == self.rows[1].row(right)
    }

    fn next(
        &mut self,
        spec: &WindowJoin,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        while self.left < self.sides[0].num_rows() {
            let (left, right) = self.probe(rows_max);
            if let Some(batch) = self.pairs(spec, left, right)? {
                return Ok(Some(batch));
            }
        }
        while let Some(&side) = self.alone.front() {
            if let Some(batch) = self.singles(spec, side, rows_max)? {
                return Ok(Some(batch));
            }
            self.alone.pop_front();
            self.done = 0;
        }
        Ok(None)
    }

    /// The next pairs of equal keys, at most `rows_max`.
    fn probe(&mut self, rows_max: usize) -> (Vec<u32>, Vec<u32>) {
        let (mut left, mut right) = (vec![], vec![]);
        while self.left < self.sides[0].num_rows() && left.len() < rows_max {
            let mut at = match self.right {
                Some(at) => at,
                None => {
                    let hash = self.hash(0, self.left);
                    hash.and_then(|hash| self.first.get(&hash).copied()).unwrap_or(0)
                }
            };
            while at != 0 && left.len() < rows_max {
                let row = at as usize - 1;
                if self.equal(self.left, row) {
                    left.push(self.left as u32);
                    right.push(row as u32);
                }
                at = self.next[row];
            }
            match at {
                0 => (self.left, self.right) = (self.left + 1, None),
                more => self.right = Some(more),
            }
        }
        (left, right)
    }

    /// Pairs that pass the filter, as rows, if pairs are given out.
    fn pairs(
        &mut self,
        spec: &WindowJoin,
        left: Vec<u32>,
        right: Vec<u32>,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        if left.is_empty() {
            return Ok(None);
        }
        let mut rows = [UInt32Array::from(left), UInt32Array::from(right)];
        let mut pairs = None;
        if let Some(on) = &spec.on {
            let both = self.columns(&rows)?;
            let all = RecordBatch::try_new(spec.both.clone(), both)?;
            let passed = on.apply(&all)?;
            rows = match passed.origin {
                Origin::All => rows,
                Origin::Kept(kept) => {
                    let [left, right] = &rows;
                    let keep = |side| -> Result<UInt32Array, DataflowError> {
                        let kept = arrow::compute::filter(side, &kept)?;
                        Ok(UInt32Array::from(kept.to_data()))
                    };
                    [keep(left)?, keep(right)?]
                }
                Origin::Taken(_) => {
                    let message = "the condition of a join is no filter";
                    return Err(DataflowError::Expression(message.into()));
                }
            };
            pairs = Some(passed.batch);
        }
        for (side, rows) in rows.iter().enumerate() {
            rows.values().iter().for_each(|&row| self.matched[side][row as usize] = true);
        }
        if !spec.kind.pairs() || rows[0].is_empty() {
            return Ok(None);
        }
        let columns = match pairs {
            Some(batch) => batch.columns().to_vec(),
            None => self.columns(&rows)?,
        };
        Ok(Some(RecordBatch::try_new(spec.schema.clone(), columns)?))
    }

    fn columns(&self, rows: &[UInt32Array; 2]) -> Result<Vec<ArrayRef>, DataflowError> {
        let mut columns = vec![];
        for (side, rows) in self.sides.iter().zip(rows) {
            for column in side.columns() {
                columns.push(take(column, rows, None)?);
            }
        }
        Ok(columns)
    }

    /// The next rows of a side that are given out alone.
    fn singles(
        &mut self,
        spec: &WindowJoin,
        side: usize,
        rows_max: usize,
    ) -> Result<Option<RecordBatch>, DataflowError> {
        let Some(with) = spec.kind.alone(side) else { return Ok(None) };
        let mut rows = vec![];
        while self.done < self.matched[side].len() && rows.len() < rows_max {
            if self.matched[side][self.done] == with {
                rows.push(self.done as u32);
            }
            self.done += 1;
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let (rows, count) = (UInt32Array::from(rows.clone()), rows.len());
        let mut columns = vec![];
        for (of, batch) in self.sides.iter().enumerate().filter(|(of, _)| spec.kind.shows(*of)) {
            for column in batch.columns() {
                columns.push(match of == side {
                    true => take(column, &rows, None)?,
                    false => new_null_array(column.data_type(), count),
                });
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        Ok(Some(RecordBatch::try_new_with_options(spec.schema.clone(), columns, &options)?))
    }
}

#[cfg(test)]
mod tests;
