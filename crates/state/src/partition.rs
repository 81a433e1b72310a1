//! Which node leads a key.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, MutableArrayData, UInt32Array, make_array};
use arrow::buffer::MutableBuffer;
use arrow::compute::take;
use arrow::datatypes::DataType;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use crate::{GroupColumns, KeyRows, StateError, hash, vector, words};

/// With [`Partitioner::in_blocks`], 2 to the power of this many neighbouring keys have one owner.
const BLOCK_BITS: u32 = 6;
/// Runs of fewer rows than this are taken row by row.
const RUN_ROWS: usize = 8;

/// Assigns keys to owners by a hash that every node computes alike.
///
/// The owner depends on the values alone: strings in any layout (with offsets, as views, in a
/// dictionary) have the same owner, and so have the two zeros of floats, and all NaNs. It does
/// depend on the numeric type: 1 as `Int32` and as `Int64` agree, 1 as `Float64` does not. Nested
/// values are hashed through [`KeyRows`].
#[derive(Debug)]
pub struct Partitioner {
    owners: u32,
    /// By how many bits a single integer key is shortened before it is hashed.
    shift: u32,
    /// The seed of another hash of it.
    salt: Option<u64>,
    hashes: Vec<u64>,
    scratch: Vec<u64>,
}

/// Which rows of some columns go to which owner.
#[derive(Debug, Default, Clone)]
pub struct RowsByOwner {
    owners: Vec<Share>,
}

/// Rows of one owner, ascending.
#[derive(Debug, Default, Clone)]
struct Share {
    runs: Vec<Range<u32>>,
    rows: usize,
}

impl Share {
    #[inline]
    fn push(&mut self, run: Range<u32>) {
        self.rows += run.len();
        match self.runs.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => self.runs.push(run),
        }
    }
}

impl RowsByOwner {
    /// How many owners.
    pub fn owners(&self) -> u32 {
        self.owners.len() as u32
    }

    /// How many rows go to `owner`.
    pub fn rows(&self, owner: u32) -> usize {
        self.owners.get(owner as usize).map_or(0, |share| share.rows)
    }

    /// The rows of `owner`, ascending, as runs that do not touch.
    pub fn runs(&self, owner: u32) -> &[Range<u32>] {
        self.owners.get(owner as usize).map_or(&[], |share| &share.runs)
    }

    /// The rows of `owner` of the columns that were split.
    ///
    /// # Errors
    /// [`StateError::Arrow`] if a column cannot be built.
    pub fn select(&self, owner: u32, columns: &GroupColumns) -> Result<GroupColumns, StateError> {
        let keys = self.select_columns(owner, &columns.keys)?;
        Ok(GroupColumns { keys, states: self.select_columns(owner, &columns.states)? })
    }

    /// The rows of `owner` of a batch whose keys were split.
    pub(crate) fn select_rows(
        &self,
        owner: u32,
        batch: &RecordBatch,
    ) -> Result<RecordBatch, StateError> {
        let rows = self.rows(owner);
        if rows == batch.num_rows() {
            return Ok(batch.clone());
        }
        let columns = self.select_columns(owner, batch.columns())?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
    }

    /// The rows of `owner` of each column of those that were split; a column that is all of
    /// `owner`'s is given as it is.
    ///
    /// # Errors
    /// [`StateError::Arrow`] if a column cannot be built.
    pub fn select_columns(
        &self,
        owner: u32,
        columns: &[ArrayRef],
    ) -> Result<Vec<ArrayRef>, StateError> {
        let (rows, runs) = (self.rows(owner), self.runs(owner));
        if columns.iter().all(|column| column.len() == rows) {
            return Ok(columns.to_vec());
        }
        // Short runs are read row by row, long ones copied as they are.
        let few = rows / RUN_ROWS < runs.len();
        let one_by_one: Option<UInt32Array> = few.then(|| runs.iter().cloned().flatten().collect());
        let select = |column: &ArrayRef| match &one_by_one {
            Some(rows) => take(column, rows, None).map_err(StateError::from),
            None => copy_runs(column, runs, rows),
        };
        columns.iter().map(select).collect()
    }

    /// Takes the rows of `owner` out: the others move up, as they do in columns without them.
    pub(crate) fn remove(&mut self, owner: u32) {
        let Some(removed) = self.owners.get_mut(owner as usize).map(std::mem::take) else { return };
        for share in &mut self.owners {
            let mut gone = removed.runs.iter().peekable();
            let (mut before, mut moved) = (0, Share::default());
            for run in &share.runs {
                while let Some(earlier) = gone.next_if(|earlier| earlier.end <= run.start) {
                    before += earlier.end - earlier.start;
                }
                moved.push(run.start - before..run.end - before);
            }
            *share = moved;
        }
    }

    fn begin(&mut self, owners: u32) {
        self.owners.resize_with(owners as usize, Share::default);
        for share in &mut self.owners {
            share.runs.clear();
            share.rows = 0;
        }
    }
}

fn copy_runs(column: &ArrayRef, runs: &[Range<u32>], rows: usize) -> Result<ArrayRef, StateError> {
    let data = column.to_data();
    let width = data.data_type().primitive_width().filter(|_| data.nulls().is_none());
    let Some(width) = width else {
        let mut copy = MutableArrayData::new(vec![&data], false, rows);
        for run in runs {
            copy.try_extend(0, run.start as usize, run.end as usize)?;
        }
        return Ok(make_array(copy.freeze()));
    };
    let bytes = &data.buffers()[0].as_slice()[data.offset() * width..];
    let mut copy = MutableBuffer::with_capacity(rows * width);
    for run in runs {
        copy.extend_from_slice(&bytes[run.start as usize * width..run.end as usize * width]);
    }
    let copied = arrow::array::ArrayData::builder(data.data_type().clone())
        .len(rows)
        .add_buffer(copy.into())
        .build()?;
    Ok(make_array(copied))
}

impl Partitioner {
    /// For this many owners, at least one.
    pub fn new(owners: u32) -> Self {
        Self { owners: owners.max(1), shift: 0, salt: None, hashes: vec![], scratch: vec![] }
    }

    /// As [`Partitioner::new`], but where the key is one column of integers, blocks of neighbouring
    /// keys have one owner: groups that lie in the order of their keys are then cut in runs.
    ///
    /// Few keys spread less evenly so; it is for partial states, which have a row for each key, and
    /// not for rows.
    pub fn in_blocks(owners: u32) -> Self {
        Self { shift: BLOCK_BITS, ..Self::new(owners) }
    }

    /// As [`Partitioner::new`], by a hash of its own for each `salt`: keys of one owner there have
    /// any owner here.
    pub fn salted(owners: u32, salt: u32) -> Self {
        Self { salt: Some(u64::from(salt) + 1), ..Self::new(owners) }
    }

    /// Replaces `out` by the owner of each row. Without keys there are no rows: the only group
    /// belongs to owner 0.
    ///
    /// # Errors
    /// [`StateError::Shape`] if keys have different lengths; [`StateError::Key`] or
    /// [`StateError::Arrow`] for types that cannot be hashed.
    pub fn owners_of(&mut self, keys: &[ArrayRef], out: &mut Vec<u32>) -> Result<(), StateError> {
        out.clear();
        let rows = keys.first().map_or(0, |key| key.len());
        if self.owners == 1 {
            out.resize(rows, 0);
            return Ok(());
        }
        let shift = if in_order(keys) { self.shift } else { 0 };
        self.hashes.clear();
        for (at, key) in keys.iter().enumerate() {
            crate::error::same("rows of a key", rows, key.len())?;
            if at == 0 {
                self.hashes.resize(rows, 0);
            }
            column(key, shift, &mut self.hashes, &mut self.scratch, at == 0)?;
        }
        let owners = self.owners;
        match self.salt {
            None => out.extend(self.hashes.iter().map(|hash| owner(*hash, owners))),
            Some(salt) => {
                let salted = self.hashes.iter().map(|hash| hash::combine(*hash, salt));
                out.extend(salted.map(|hash| owner(hash, owners)));
            }
        }
        Ok(())
    }

    /// The hash of each row that [`Partitioner::owners_of`] was last asked of, if there is more
    /// than one owner.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// Sorts the rows of a delta by owner. Without keys all rows are owner 0's.
    ///
    /// # Errors
    /// As [`Partitioner::owners_of`].
    pub fn split(
        &mut self,
        columns: &GroupColumns,
        split: &mut RowsByOwner,
    ) -> Result<(), StateError> {
        split.begin(self.owners);
        let keys = &columns.keys;
        if keys.is_empty() || self.owners == 1 {
            split.owners[0].push(0..columns.rows() as u32);
            return Ok(());
        }
        if self.shift > 0 && in_order(keys) && keys[0].null_count() == 0 {
            let words = words::words(&keys[0], &mut self.scratch)?;
            split_blocks(words, self.shift, self.owners, split);
            return Ok(());
        }
        let mut owners = Vec::new();
        self.owners_of(keys, &mut owners)?;
        for (row, owner) in (0..).zip(owners) {
            split.owners[owner as usize].push(row..row + 1);
        }
        Ok(())
    }
}

/// Hashes each block once for as long as its keys follow one another.
fn split_blocks(words: &[u64], shift: u32, owners: u32, split: &mut RowsByOwner) {
    let mut begin = 0;
    while let Some(first) = words.get(begin) {
        let block = first >> shift;
        // All keys of a block, without a question at each; else as far as they go.
        let whole = begin + (((block + 1) << shift).wrapping_sub(*first)) as usize;
        let differ =
            |end: usize| words[begin..end].iter().fold(0, |bits, word| bits | (word ^ first));
        let end = if whole <= words.len() && differ(whole) >> shift == 0 {
            whole
        } else {
            let others = words[begin..].iter().position(|word| word >> shift != block);
            others.map_or(words.len(), |rows| begin + rows)
        };
        let owner = owner(hash::word(block), owners);
        split.owners[owner as usize].push(begin as u32..end as u32);
        begin = end;
    }
}

/// Whether neighbours in the order of keys can be told.
fn in_order(keys: &[ArrayRef]) -> bool {
    matches!(keys, [key] if words::is_integer_like(key.data_type()))
}

/// The lower half times the number of owners: an even share of the range without a division. Hash
/// tables look at the upper bits: in those, the keys of one owner must not be alike.
#[inline]
fn owner(hash: u64, owners: u32) -> u32 {
    ((u64::from(hash as u32) * u64::from(owners)) >> 32) as u32
}

/// Adds the hash of each value of `key`, its word without the lowest `shift` bits, to the hash of
/// its row.
fn column(
    key: &ArrayRef,
    shift: u32,
    hashes: &mut [u64],
    scratch: &mut Vec<u64>,
    first: bool,
) -> Result<(), StateError> {
    fn strings<'a>(
        values: impl Iterator<Item = Option<&'a [u8]>>,
        mut put: impl FnMut(usize, Option<u64>),
    ) {
        values.enumerate().for_each(|(row, value)| put(row, value.map(hash::bytes)));
    }
    let nulls = key.logical_nulls().filter(|nulls| nulls.null_count() > 0);
    let mut put = |row: usize, value: Option<u64>| {
        let value = value.unwrap_or(hash::NULL);
        hashes[row] = if first { value } else { hash::combine(hashes[row], value) };
    };
    match key.data_type() {
        DataType::Utf8 => strings(key.as_string::<i32>().iter().map(|v| v.map(str::as_bytes)), put),
        DataType::LargeUtf8 => {
            strings(key.as_string::<i64>().iter().map(|v| v.map(str::as_bytes)), put);
        }
        DataType::Utf8View => {
            strings(key.as_string_view().iter().map(|v| v.map(str::as_bytes)), put)
        }
        DataType::Binary => strings(key.as_binary::<i32>().iter(), put),
        DataType::LargeBinary => strings(key.as_binary::<i64>().iter(), put),
        DataType::BinaryView => strings(key.as_binary_view().iter(), put),
        DataType::Dictionary(_, _) => {
            let dictionary = key.as_any_dictionary();
            let values = dictionary.values();
            if values.is_empty() {
                (0..key.len()).for_each(|row| put(row, None));
                return Ok(());
            }
            let mut of = vec![0; values.len()];
            column(values, shift, &mut of, scratch, true)?;
            for (row, &at) in dictionary.normalized_keys().iter().enumerate() {
                let null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                put(row, if null { None } else { of.get(at).copied() });
            }
        }
        other if words::bits(other).is_some() => {
            let words = words::words(key, scratch)?;
            match nulls {
                None => vector::hashes(words, shift, !first, hashes),
                Some(nulls) => {
                    words.iter().zip(nulls.iter()).enumerate().for_each(|(row, (&word, valid))| {
                        put(row, valid.then(|| hash::word(word >> shift)))
                    })
                }
            }
        }
        _ => {
            let rows = KeyRows::of(std::slice::from_ref(key))?;
            strings(rows.iter().map(|row| Some(row.data())).collect::<Vec<_>>().into_iter(), put);
        }
    }
    Ok(())
}
