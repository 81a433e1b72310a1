//! Rows of two sides that meet by equal keys: one side lies in a hash table ([`Hashed`]), batches
//! of the other are probed against it ([`Pairing`]).
//!
//! What has found no partner is known only when all of the other side has been seen; it is given
//! out behind the pairs, where the kind of join asks for it.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, Rows, SortField};

use crate::error::DataflowError;
use crate::job::{Origin, Step};

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
    /// Whether pairs are given out, rather than rows of one side.
    pub fn widens(self) -> bool {
        matches!(self, Self::Inner | Self::Left | Self::Right | Self::Full)
    }

    /// Which rows of a side are given out alone: those with a partner, or those without one.
    pub(crate) fn alone(self, side: usize) -> Option<bool> {
        match (self, side) {
            (Self::LeftSemi, 0) | (Self::RightSemi, 1) => Some(true),
            (Self::Left | Self::Full | Self::LeftAnti, 0)
            | (Self::Right | Self::Full | Self::RightAnti, 1) => Some(false),
            _ => None,
        }
    }

    /// Whether the columns of a side are given out.
    pub(crate) fn shows(self, side: usize) -> bool {
        match self {
            Self::LeftSemi | Self::LeftAnti => side == 0,
            Self::RightSemi | Self::RightAnti => side == 1,
            _ => true,
        }
    }
}

/// Names of columns, for EXPLAIN.
pub(crate) fn names(schema: &SchemaRef, columns: &[usize]) -> String {
    let names = columns.iter().map(|&column| schema.field(column).name().as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// What a join asks of a pair besides equal keys, and what it gives out.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) kind: JoinKind,
    /// A filter over `both`.
    pub(crate) on: Option<&'a Arc<dyn Step>>,
    pub(crate) schema: &'a SchemaRef,
    /// Left and right columns.
    pub(crate) both: &'a SchemaRef,
}

impl Terms<'_> {
    /// For EXPLAIN; `keys` are the names of either side's, `how` says which rows meet.
    pub(crate) fn describe(&self, how: &str, keys: [String; 2]) -> String {
        let [left, right] = keys;
        let on = self.on.map_or(String::new(), |on| format!(", {}", on.describe()));
        format!("{:?}{how} on ({left}) = ({right}){on}", self.kind)
    }

    /// Which of some pairs, given as left and right columns, pass; `None` if all do.
    pub(crate) fn passed(
        &self,
        columns: &[ArrayRef],
        pairs: usize,
    ) -> Result<Option<Origin>, DataflowError> {
        let Some(on) = self.on else { return Ok(None) };
        let options = RecordBatchOptions::new().with_row_count(Some(pairs));
        let all = RecordBatch::try_new_with_options(self.both.clone(), columns.to_vec(), &options)?;
        match on.apply(&all)?.origin {
            Origin::All => Ok(None),
            Origin::Taken(_) => {
                let message = "the condition of a join is no filter";
                Err(DataflowError::Expression(message.into()))
            }
            kept => Ok(Some(kept)),
        }
    }

    /// Rows of one side alone, with NULL on the other side if that is shown too.
    pub(crate) fn single(
        &self,
        side: usize,
        columns: &[ArrayRef],
        rows: usize,
    ) -> Result<RecordBatch, DataflowError> {
        let all = self.both.fields().len();
        let first = if side == 0 { 0 } else { all - columns.len() };
        let shown = (0..all).filter_map(|at| {
            let own = (first..first + columns.len()).contains(&at);
            match own {
                true => Some(columns[at - first].clone()),
                false if self.kind.shows(1 - side) => {
                    Some(new_null_array(self.both.field(at).data_type(), rows))
                }
                false => None,
            }
        });
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), shown.collect(), &options)?)
    }
}

/// The keys of rows, in a form in which they can be compared. Equal values of a plain and of a
/// dictionary column are equal.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Nothing where there are no keys: then all rows are equal.
    rows: Option<Rows>,
    /// Rows whose keys are not NULL.
    valid: Option<NullBuffer>,
}

impl Keys {
    pub(crate) fn of(batch: &RecordBatch, keys: &[usize]) -> Result<Self, DataflowError> {
        let columns: Vec<ArrayRef> = keys.iter().map(|&key| batch.column(key).clone()).collect();
        let valid = columns
            .iter()
            .fold(None, |all, key| NullBuffer::union(all.as_ref(), key.logical_nulls().as_ref()));
        let fields = columns.iter().map(|column| SortField::new(column.data_type().clone()));
        let rows = match columns.is_empty() {
            true => None,
            false => Some(RowConverter::new(fields.collect())?.convert_columns(&columns)?),
        };
        Ok(Self { rows, valid })
    }

    /// The key of a row as bytes; nothing where a part of it is NULL.
    pub(crate) fn get(&self, row: usize) -> Option<&[u8]> {
        match &self.valid {
            Some(valid) if valid.is_null(row) => None,
            _ => Some(self.rows.as_ref().map_or(&[], |rows| rows.row(row).data())),
        }
    }

    fn bytes(&self) -> usize {
        self.rows.as_ref().map_or(0, Rows::size)
    }
}

/// Rows that are found by their keys.
#[derive(Debug)]
pub(crate) struct Hashed {
    pub(crate) batch: RecordBatch,
    keys: Keys,
    hasher: RandomState,
    /// By the last bits of a key's hash the first row with them; the others follow in `next`, each
    /// as its number + 1.
    first: Vec<u32>,
    next: Vec<u32>,
}

impl Hashed {
    pub(crate) fn new(batch: RecordBatch, keys: &[usize]) -> Result<Self, DataflowError> {
        let keys = Keys::of(&batch, keys)?;
        let rows = batch.num_rows();
        let first = vec![0; (rows * 2).next_power_of_two()];
        let mut hashed =
            Self { batch, keys, hasher: RandomState::new(), first, next: vec![0; rows] };
        for row in (0..rows).rev() {
            let Some(key) = hashed.keys.get(row) else { continue };
            let at = hashed.at(key);
            hashed.next[row] = std::mem::replace(&mut hashed.first[at], row as u32 + 1);
        }
        Ok(hashed)
    }

    fn at(&self, key: &[u8]) -> usize {
        self.hasher.hash_one(key) as usize & (self.first.len() - 1)
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        let links = (self.first.len() + self.next.len()) * size_of::<u32>();
        self.batch.get_array_memory_size() + self.keys.bytes() + links
    }
}

/// Left rows on their way past right ones.
pub(crate) struct Pairing {
    left: RecordBatch,
    keys: Keys,
    right: Arc<Hashed>,
    /// The left row that is probed, and the right row to look at, + 1; before the first of a left
    /// row, nothing.
    row: usize,
    at: Option<u32>,
    /// Rows of either side that have found a partner, where the kind of join asks for it.
    matched: [Vec<bool>; 2],
    /// Sides whose rows without or with a partner are still to be given out.
    alone: VecDeque<usize>,
    done: usize,
}

/// Some of the rows of a join, and of which left row each is; where right rows are given out alone,
/// of which right row.
pub(crate) type Paired = (RecordBatch, UInt32Array);

impl Pairing {
    pub(crate) fn new(
        left: RecordBatch,
        keys: &[usize],
        right: Arc<Hashed>,
        kind: JoinKind,
    ) -> Result<Self, DataflowError> {
        let keys = Keys::of(&left, keys)?;
        let rows = [left.num_rows(), right.batch.num_rows()];
        let asked = |side: usize| if kind.alone(side).is_some() { rows[side] } else { 0 };
        let matched = [0, 1].map(|side| vec![false; asked(side)]);
        let alone = (0..2).filter(|&side| kind.alone(side).is_some()).collect();
        Ok(Self { left, keys, right, row: 0, at: None, matched, alone, done: 0 })
    }

    /// The next rows, at most `rows_max`; `None` when there are no more.
    pub(crate) fn next(
        &mut self,
        terms: Terms<'_>,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        while self.row < self.left.num_rows() {
            let (left, right) = self.probe(rows_max);
            if let Some(paired) = self.pairs(terms, left, right)? {
                return Ok(Some(paired));
            }
        }
        while let Some(&side) = self.alone.front() {
            if let Some(paired) = self.singles(terms, side, rows_max)? {
                return Ok(Some(paired));
            }
            self.alone.pop_front();
            self.done = 0;
        }
        Ok(None)
    }

    /// The next pairs of equal keys, at most `rows_max`.
    fn probe(&mut self, rows_max: usize) -> (Vec<u32>, Vec<u32>) {
        let (mut left, mut right) = (vec![], vec![]);
        while self.row < self.left.num_rows() && left.len() < rows_max {
            let key = self.keys.get(self.row);
            let mut at = match (self.at, key) {
                (Some(at), _) => at,
                (None, Some(key)) => self.right.first[self.right.at(key)],
                (None, None) => 0,
            };
            while at != 0 && left.len() < rows_max {
                let row = at as usize - 1;
                if self.right.keys.get(row) == key {
                    left.push(self.row as u32);
                    right.push(row as u32);
                }
                at = self.right.next[row];
            }
            match at {
                0 => (self.row, self.at) = (self.row + 1, None),
                more => self.at = Some(more),
            }
        }
        (left, right)
    }

    /// Pairs that pass the filter, as rows, if pairs are given out.
    fn pairs(
        &mut self,
        terms: Terms<'_>,
        left: Vec<u32>,
        right: Vec<u32>,
    ) -> Result<Option<Paired>, DataflowError> {
        if left.is_empty() {
            return Ok(None);
        }
        let mut rows = [UInt32Array::from(left), UInt32Array::from(right)];
        let mut columns = None;
        if terms.on.is_some() {
            let all = self.columns(&rows)?;
            match terms.passed(&all, rows[0].len())? {
                Some(Origin::Kept(kept)) => {
                    for side in &mut rows {
                        *side = arrow::compute::filter(side, &kept)?.as_primitive().clone();
                    }
                }
                _ => columns = Some(all),
            }
        }
        for (matched, rows) in self.matched.iter_mut().zip(&rows) {
            if !matched.is_empty() {
                rows.values().iter().for_each(|&row| matched[row as usize] = true);
            }
        }
        if !terms.kind.widens() || rows[0].is_empty() {
            return Ok(None);
        }
        let columns = match columns {
            Some(columns) => columns,
            None => self.columns(&rows)?,
        };
        let options = RecordBatchOptions::new().with_row_count(Some(rows[0].len()));
        let batch = RecordBatch::try_new_with_options(terms.schema.clone(), columns, &options)?;
        let [left, _] = rows;
        Ok(Some((batch, left)))
    }

    fn columns(&self, rows: &[UInt32Array; 2]) -> Result<Vec<ArrayRef>, DataflowError> {
        let mut columns = vec![];
        // Where each row has one partner, as in a table of campaigns, nothing is copied.
        let each_once = rows[0].len() == self.left.num_rows()
            && rows[0].values().iter().enumerate().all(|(at, &row)| at == row as usize);
        match each_once {
            true => columns.extend_from_slice(self.left.columns()),
            false => columns.extend(taken(&self.left, &rows[0])?),
        }
        columns.extend(taken(&self.right.batch, &rows[1])?);
        Ok(columns)
    }

    /// The next rows of a side that are given out alone.
    fn singles(
        &mut self,
        terms: Terms<'_>,
        side: usize,
        rows_max: usize,
    ) -> Result<Option<Paired>, DataflowError> {
        let Some(with) = terms.kind.alone(side) else { return Ok(None) };
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
        let rows = UInt32Array::from(rows);
        let of = if side == 0 { &self.left } else { &self.right.batch };
        let batch = terms.single(side, &taken(of, &rows)?, rows.len())?;
        Ok(Some((batch, rows)))
    }
}

fn taken(batch: &RecordBatch, rows: &UInt32Array) -> Result<Vec<ArrayRef>, DataflowError> {
    Ok(batch.columns().iter().map(|column| take(column, rows, None)).collect::<Result<_, _>>()?)
}
