//! Which node leads a key.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, SortField};

use crate::{Columns, StateError, hash, words};

/// Assigns keys to owners by a hash that every node computes alike.
///
/// The owner depends on the values alone: strings in any layout (with offsets, as views, in a
/// dictionary) have the same owner, and so have the two zeros of floats, and all NaNs. It does
/// depend on the numeric type: 1 as `Int32` and as `Int64` agree, 1 as `Float64` does not. Nested
/// values are hashed through Arrow's row format.
#[derive(Debug)]
pub struct Partitioner {
    owners: u32,
    hashes: Vec<u64>,
    scratch: Vec<u64>,
}

/// Which rows of some columns go to which owner.
#[derive(Debug, Default, Clone)]
pub struct Split {
    rows: Vec<u32>,
    /// Where in `rows` those of each owner begin, and where the last one's end.
    begins: Vec<usize>,
}

impl Split {
    /// The rows of `owner`, ascending.
    pub fn rows(&self, owner: u32) -> &[u32] {
        let owner = owner as usize;
        match self.begins.get(owner..owner + 2) {
            Some(&[begin, end]) => &self.rows[begin..end],
            _ => &[],
        }
    }

    /// How many owners.
    pub fn owners(&self) -> u32 {
        self.begins.len().saturating_sub(1) as u32
    }
}

impl Partitioner {
    /// For so many owners, at least one.
    pub fn new(owners: u32) -> Self {
        Self { owners: owners.max(1), hashes: vec![], scratch: vec![] }
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
        self.hashes.clear();
        for (at, key) in keys.iter().enumerate() {
            crate::error::same("rows of a key", rows, key.len())?;
            if at == 0 {
                self.hashes.resize(rows, 0);
            }
            column(key, &mut self.hashes, &mut self.scratch, at == 0)?;
        }
        // The lower half times the number of owners: an even share of the range without a division.
        // Hash tables look at the upper bits: in those, the keys of one owner must not be alike.
        let owners = u64::from(self.owners);
        out.extend(
            self.hashes.iter().map(|hash| ((u64::from(*hash as u32) * owners) >> 32) as u32),
        );
        Ok(())
    }

    /// Sorts the rows of a delta by owner. Without keys all rows are owner 0's.
    ///
    /// # Errors
    /// As [`Partitioner::owners_of`].
    pub fn split(&mut self, columns: &Columns, split: &mut Split) -> Result<(), StateError> {
        let mut owners = Vec::new();
        self.owners_of(&columns.keys, &mut owners)?;
        if columns.keys.is_empty() {
            owners.resize(columns.rows(), 0);
        }
        split.begins.clear();
        split.begins.resize(self.owners as usize + 1, 0);
        owners.iter().for_each(|&owner| split.begins[owner as usize + 1] += 1);
        for owner in 0..self.owners as usize {
            split.begins[owner + 1] += split.begins[owner];
        }
        let mut next = split.begins.clone();
        split.rows.clear();
        split.rows.resize(owners.len(), 0);
        for (row, &owner) in owners.iter().enumerate() {
            split.rows[next[owner as usize]] = row as u32;
            next[owner as usize] += 1;
        }
        Ok(())
    }
}

/// Adds the hash of each value of `key` to the hash of its row.
fn column(
    key: &ArrayRef,
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
            column(values, &mut of, scratch, true)?;
            for (row, &at) in dictionary.normalized_keys().iter().enumerate() {
                let null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
                put(row, if null { None } else { of.get(at).copied() });
            }
        }
        other if words::bits(other).is_some() => {
            let words = words::words(key, scratch)?;
            match nulls {
                None => {
                    words.iter().enumerate().for_each(|(row, &w)| put(row, Some(hash::word(w))))
                }
                Some(nulls) => words
                    .iter()
                    .zip(nulls.iter())
                    .enumerate()
                    .for_each(|(row, (&word, valid))| put(row, valid.then(|| hash::word(word)))),
            }
        }
        other => {
            let converter = RowConverter::new(vec![SortField::new(other.clone())])?;
            let rows = converter.convert_columns(std::slice::from_ref(key))?;
            strings(rows.iter().map(|row| Some(row.data())).collect::<Vec<_>>().into_iter(), put);
        }
    }
    Ok(())
}
