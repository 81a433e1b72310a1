//! Dense ids of keys, for what keeps rows by key: joins, sessions.
//!
//! A [`KeyTable`] is the index that a slice has, in its modes for hashed keys, without aggregates.
//! Ids are given in order of first appearance, so that whoever keeps something by key keeps it in
//! an array. Of what is kept no longer the keys are forgotten, when it pays, by giving the others
//! new ids.

use std::borrow::Cow;
use std::fmt;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{cast, filter, take};
use arrow::datatypes::DataType;

use crate::error::same;
use crate::index::hash::spread;
use crate::index::{Index, KeyMode};
use crate::{Part, StateError};

/// The meaning of NULL in a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullKeys {
    /// A value like any other, as GROUP BY has it.
    Equal,
    /// Equal to nothing, as joins have it: a row with NULL in its key has no id.
    Nothing,
}

/// Dense ids of keys.
///
/// A dictionary is as good as its values: equal values of a plain and of a dictionary column are
/// one key.
pub struct KeyTable {
    /// Types of the keys, without dictionaries.
    types: Vec<DataType>,
    nulls: NullKeys,
    index: Index,
    /// How many ids there are.
    len: usize,
    /// Scratch: words of a batch.
    words: Vec<u64>,
}

impl KeyTable {
    /// The id of a row that has none.
    pub const UNKNOWN: u32 = crate::index::UNKNOWN;

    /// An empty table of keys of these types. Without types all rows have one key.
    ///
    /// # Errors
    /// [`StateError::Key`] if there is a type of which values cannot be compared.
    pub fn new(types: &[DataType], nulls: NullKeys) -> Result<Self, StateError> {
        let types: Vec<DataType> = types.iter().map(without_dictionary).collect();
        let index = match Index::new(&types, Some(KeyMode::Hash), true) {
            Index::Refused(types) => return Err(StateError::Key(types)),
            index => index,
        };
        Ok(Self { types, nulls, index, len: 0, words: vec![] })
    }

    /// Makes room for this many more keys at once, where it would else be made step by step.
    ///
    /// # Errors
    /// [`StateError::Growth`], [`StateError::Full`].
    pub fn reserve(&mut self, more: usize) -> Result<(), StateError> {
        self.index.reserve(more)
    }

    /// Replaces `ids` by the id of each of `rows` rows, of which `keys` has a column per key. A key
    /// that has no id is given the next one.
    ///
    /// # Errors
    /// [`StateError::Shape`] or [`StateError::Type`] if columns do not fit; [`StateError::Full`].
    pub fn intern(
        &mut self,
        keys: &[ArrayRef],
        rows: usize,
        ids: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        let (keys, valid) = self.comparable(keys, rows)?;
        let some = valid.as_ref().map_or(rows, |valid| rows - valid.null_count());
        self.index.intern(&keys, some, &mut self.words, ids)?;
        self.len = match self.index {
            Index::One => self.len.max(some.min(1)),
            _ => self.index.total(),
        };
        if let Some(valid) = valid {
            spread(ids, &valid, Self::UNKNOWN);
        }
        Ok(())
    }

    /// Replaces `ids` by the id of each of `rows` rows, [`KeyTable::UNKNOWN`] where the key has
    /// none.
    ///
    /// # Errors
    /// As [`KeyTable::intern`].
    pub fn find(
        &self,
        keys: &[ArrayRef],
        rows: usize,
        ids: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        let (keys, valid) = self.comparable(keys, rows)?;
        if self.len == 0 {
            ids.clear();
            ids.resize(rows, Self::UNKNOWN);
            return Ok(());
        }
        let some = valid.as_ref().map_or(rows, |valid| rows - valid.null_count());
        self.index.find(&keys, some, ids)?;
        if let Some(valid) = valid {
            spread(ids, &valid, Self::UNKNOWN);
        }
        Ok(())
    }

    /// How many keys there are. Their ids are below.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.index.bytes() + self.words.capacity() * size_of::<u64>()
    }

    /// Forgets all keys but those of `ids`, which ascend. Their places there are their new ids.
    ///
    /// # Errors
    /// As [`KeyTable::intern`].
    pub fn retain(&mut self, ids: &[u32]) -> Result<(), StateError> {
        let keys = self.keys(ids)?;
        *self = Self::new(&self.types, self.nulls)?;
        self.reserve(ids.len())?;
        self.intern(&keys, ids.len(), &mut vec![])
    }

    /// The keys of some ids: a column for each of their columns, without dictionaries.
    ///
    /// # Errors
    /// Those of Arrow.
    pub fn keys(&self, ids: &[u32]) -> Result<Vec<ArrayRef>, StateError> {
        let all = self.index.total();
        let keys = self.index.keys(&self.types, &Part::all(0..all, all))?;
        let ids = UInt32Array::from(ids.to_vec());
        Ok(keys.iter().map(|key| take(key, &ids, None)).collect::<Result<_, _>>()?)
    }

    /// The keys as the index has them: plain, and only of those rows that have one; with which
    /// rows these are, if not all.
    fn comparable<'a>(
        &self,
        keys: &'a [ArrayRef],
        rows: usize,
    ) -> Result<(Cow<'a, [ArrayRef]>, Option<NullBuffer>), StateError> {
        same("columns of keys", self.types.len(), keys.len())?;
        let mut plain = Cow::Borrowed(keys);
        for (at, (key, expected)) in keys.iter().zip(&self.types).enumerate() {
            same("rows of a key", rows, key.len())?;
            if key.data_type() == expected {
                continue;
            }
            let got = without_dictionary(key.data_type());
            if got != *expected {
                let expected = expected.clone();
                return Err(StateError::Type { what: "a key", expected, got });
            }
            plain.to_mut()[at] = cast(key, expected)?;
        }
        if self.nulls == NullKeys::Equal {
            return Ok((plain, None));
        }
        let valid = plain
            .iter()
            .fold(None, |all, key| NullBuffer::union(all.as_ref(), key.logical_nulls().as_ref()))
            .filter(|valid| valid.null_count() > 0);
        if let Some(valid) = &valid {
            let kept = BooleanArray::new(valid.inner().clone(), None);
            for key in plain.to_mut() {
                *key = filter(key, &kept)?;
            }
        }
        Ok((plain, valid))
    }
}

impl fmt::Debug for KeyTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { types, nulls, len, .. } = self;
        let mut table = f.debug_struct("KeyTable");
        table.field("types", types).field("nulls", nulls).field("len", len).finish_non_exhaustive()
    }
}

/// A type as it is when dictionaries in it are unpacked.
pub fn without_dictionary(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => without_dictionary(values),
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests;
