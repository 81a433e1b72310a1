//! Ids of keys of several columns that are short, found without encoding them.
//!
//! To encode a key of texts as a row of bytes and to hash and compare these takes ten times as long
//! as to look at few bytes. Where few groups have most rows, as those of flags, states and names
//! do, their ids are found here: in a table of one way, by parts of at most 15 bytes or 64 bits
//! each. The index of all keys is asked for the others; what it says is kept here. A cache forgets
//! nothing but by another key of the same slot, and its memory is fixed.

use arrow::array::{Array, ArrayRef, AsArray, GenericByteArray};
use arrow::datatypes::{ArrowNativeType, ByteArrayType, DataType};

use crate::{StateError, hash, words};

/// Slots of the table.
const SLOTS: usize = 1 << 9;
/// Rows whose parts are in memory at a time.
const CHUNK: usize = 1 << 9;
/// Rows of a batch that are not looked for, and rows that come before a table is made: the table
/// would be larger than they are. A window of many slices has an index for each.
const ROWS_MIN: usize = 1 << 6;
const ROWS_BEFORE: usize = 1 << 12;
/// Columns of a key.
const PARTS_MAX: usize = 4;
/// Bytes of a part that is a text; above them is its length.
const BYTES_MAX: usize = 15;
/// A part that is NULL. Those that are not have a tag in the highest byte.
const NULL: u128 = 0;
/// A part that is longer.
const LONG: u128 = u128::MAX;
/// Batches that are not looked for, after one of which most rows were not found.
const REST: u32 = 32;

/// The cache.
pub(super) struct ShortKeys {
    columns: usize,
    /// The parts of the key of each slot.
    keys: Vec<u128>,
    /// Of each slot the id + 1, or 0 if it is free.
    ids: Vec<u32>,
    /// Rows that came before there was a table.
    before: usize,
    /// Whether any slot is used.
    is_used: bool,
    /// Batches until rows are looked for again.
    rest: u32,
    /// The parts of the keys of a chunk, column by column.
    parts: Vec<u128>,
    /// Rows that were not found last.
    missed: Vec<u32>,
    /// The first of those that are short: each with the slot that it belongs into.
    short: Vec<(u32, u32)>,
    /// Their parts, key by key.
    short_parts: Vec<u128>,
    scratch: Vec<u64>,
}

impl ShortKeys {
    /// A cache for keys of these types; `None` if it would know none of them.
    pub(super) fn new(keys: &[DataType]) -> Option<Self> {
        let is_known = |of: &DataType| is_text(of) || words::bits(of).is_some();
        let suits = (2..=PARTS_MAX).contains(&keys.len()) && keys.iter().all(is_known);
        suits.then(|| Self {
            columns: keys.len(),
            keys: vec![],
            ids: vec![],
            before: 0,
            is_used: false,
            rest: 0,
            parts: vec![],
            missed: vec![],
            short: vec![],
            short_parts: vec![],
            scratch: vec![],
        })
    }

    /// Replaces `out` by the ids that are known, and gives the rows of which none is; `None` where
    /// it is not worth looking for them, and `out` is as it was.
    ///
    /// # Errors
    /// [`StateError::Key`] if a column is of another type than it was said.
    pub(super) fn find(
        &mut self,
        keys: &[ArrayRef],
        out: &mut Vec<u32>,
    ) -> Result<Option<&[u32]>, StateError> {
        let rows = keys.first().map_or(0, |key| key.len());
        if rows < ROWS_MIN || self.before < ROWS_BEFORE {
            self.before = self.before.saturating_add(rows);
            return Ok(None);
        }
        if self.rest > 0 {
            self.rest -= 1;
            return Ok(None);
        }
        self.ids.resize(SLOTS, 0);
        self.keys.resize(SLOTS * self.columns, NULL);
        self.missed.clear();
        self.short.clear();
        self.short_parts.clear();
        out.clear();
        for first in (0..rows).step_by(CHUNK) {
            self.find_chunk(keys, first, CHUNK.min(rows - first), out)?;
        }
        if self.is_used && self.missed.len() > rows / 2 {
            self.rest = REST;
        }
        Ok(Some(&self.missed))
    }

    /// The same for `rows` rows from `first` on, whose ids are appended.
    fn find_chunk(
        &mut self,
        keys: &[ArrayRef],
        first: usize,
        rows: usize,
        out: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        self.parts.clear();
        for key in keys {
            parts(&key.slice(first, rows), &mut self.parts, &mut self.scratch)?;
        }
        for row in 0..rows {
            let parts = (0..self.columns).map(|column| self.parts[column * rows + row]);
            let mixed = parts.clone().fold(0, |mixed, part| hash::combine(mixed, hash::wide(part)));
            let slot = mixed as usize % SLOTS;
            let own = &self.keys[slot * self.columns..(slot + 1) * self.columns];
            let id = self.ids[slot];
            out.push(id.wrapping_sub(1));
            if id == 0 || own.iter().zip(parts.clone()).any(|(own, part)| *own != part) {
                let row = (first + row) as u32;
                self.missed.push(row);
                if self.short.len() < SLOTS && parts.clone().all(|part| part != LONG) {
                    self.short.push((row, slot as u32));
                    self.short_parts.extend(parts);
                }
            }
        }
        Ok(())
    }

    /// Keeps the ids of the rows that were missed last, which are in `ids` now.
    pub(super) fn keep(&mut self, ids: &[u32]) {
        for (&(row, slot), parts) in self.short.iter().zip(self.short_parts.chunks(self.columns)) {
            let slot = slot as usize;
            self.ids[slot] = ids[row as usize] + 1;
            self.keys[slot * self.columns..(slot + 1) * self.columns].copy_from_slice(parts);
            self.is_used = true;
        }
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.ids.fill(0);
        self.before = 0;
        self.is_used = false;
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        let parts = self.keys.capacity() + self.parts.capacity() + self.short_parts.capacity();
        let words = self.scratch.capacity() + self.short.capacity();
        let ids = self.ids.capacity() + self.missed.capacity();
        parts * size_of::<u128>() + words * size_of::<u64>() + ids * size_of::<u32>()
    }
}

fn is_text(of: &DataType) -> bool {
    matches!(
        of,
        DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView
    )
}

/// Appends the part of each row's key that a column is.
fn parts(column: &ArrayRef, out: &mut Vec<u128>, scratch: &mut Vec<u64>) -> Result<(), StateError> {
    let first = out.len();
    match column.data_type() {
        DataType::Utf8 => one_by_one(column.as_string::<i32>(), out),
        DataType::LargeUtf8 => one_by_one(column.as_string::<i64>(), out),
        DataType::Utf8View => {
            let bytes_of = |text: Option<&str>| bytes(text.map(str::as_bytes));
            out.extend(column.as_string_view().iter().map(bytes_of));
        }
        DataType::Binary => one_by_one(column.as_binary::<i32>(), out),
        DataType::LargeBinary => one_by_one(column.as_binary::<i64>(), out),
        DataType::BinaryView => out.extend(column.as_binary_view().iter().map(bytes)),
        _ => {
            let tag = 1 << (8 * BYTES_MAX);
            let words = words::words(column, scratch)?;
            out.extend(words.iter().map(|&word| u128::from(word) | tag));
        }
    }
    if let Some(nulls) = column.nulls().filter(|nulls| nulls.null_count() > 0) {
        let rows = out[first..].iter_mut().zip(nulls.iter());
        rows.filter(|(_, valid)| !valid).for_each(|(part, _)| *part = NULL);
    }
    Ok(())
}

/// The same of values that lie one behind another, whatever lies where one is NULL.
fn one_by_one<T: ByteArrayType>(column: &GenericByteArray<T>, out: &mut Vec<u128>) {
    let values = column.value_data();
    let part = |ends: &[T::Offset]| {
        let (from, to) = (ends[0].as_usize(), ends[1].as_usize());
        let len = to - from;
        // Bytes behind the value are read with it, and cut.
        match values[from..].first_chunk() {
            Some(some) if len <= BYTES_MAX => {
                let value = u128::from_le_bytes(*some) & ((1 << (8 * len)) - 1);
                value | (len as u128 + 1) << (8 * BYTES_MAX)
            }
            _ => bytes(Some(&values[from..to])),
        }
    };
    out.extend(column.value_offsets().windows(2).map(part));
}

/// The bytes with their number above them.
#[inline(always)]
fn bytes(bytes: Option<&[u8]>) -> u128 {
    let Some(bytes) = bytes else { return NULL };
    let len = bytes.len();
    let at = |at: usize, byte: u8| u128::from(byte) << (8 * at);
    // Bytes that are read twice lie in the same place.
    let value = match len {
        0 => 0,
        1..4 => at(0, bytes[0]) | at(len / 2, bytes[len / 2]) | at(len - 1, bytes[len - 1]),
        4..8 => {
            let last = u128::from(hash::half(bytes, len - 4)) << (8 * (len - 4));
            u128::from(hash::half(bytes, 0)) | last
        }
        8..=BYTES_MAX => {
            let last = u128::from(hash::full(bytes, len - 8)) << (8 * (len - 8));
            u128::from(hash::full(bytes, 0)) | last
        }
        _ => return LONG,
    };
    value | (len as u128 + 1) << (8 * BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int32Array, StringArray};

    use super::*;

    #[test]
    fn parts_of_different_texts_differ() {
        let mut seen = HashSet::from([NULL, LONG]);
        for len in 0..=BYTES_MAX {
            let zeros = vec![0; len];
            assert!(seen.insert(bytes(Some(&zeros))));
            for at in 0..len {
                let mut one = zeros.clone();
                one[at] = 1;
                assert!(seen.insert(bytes(Some(&one))), "{at} of {len}");
            }
        }
        assert_eq!(bytes(Some(&[7; BYTES_MAX + 1])), LONG);
        assert_eq!(bytes(None), NULL);
    }

    #[test]
    fn parts_are_those_of_single_values_wherever_they_lie() {
        let of = |len: usize| (len != 7).then(|| "zyxwvutsrqponmlkjihg"[20 - len..].to_owned());
        let texts: Vec<Option<String>> = (0..=20).chain((0..=20).rev()).map(of).collect();
        let expected: Vec<u128> =
            texts.iter().map(|text| bytes(text.as_ref().map(String::as_bytes))).collect();
        let all: ArrayRef = Arc::new(StringArray::from(texts));
        for to in [
            DataType::Utf8,
            DataType::LargeUtf8,
            DataType::Utf8View,
            DataType::Binary,
            DataType::LargeBinary,
            DataType::BinaryView,
        ] {
            let column = arrow::compute::cast(&all, &to).unwrap();
            for (first, rows) in [(0, 42), (3, 30), (41, 1), (20, 0)] {
                let mut found = vec![5];
                parts(&column.slice(first, rows), &mut found, &mut vec![]).unwrap();
                assert_eq!(found[0], 5);
                assert_eq!(found[1..], expected[first..first + rows], "{to}");
            }
        }
    }

    /// A cache before which enough rows have come.
    fn cache(keys: &[DataType]) -> ShortKeys {
        let mut cache = ShortKeys::new(keys).unwrap();
        cache.before = ROWS_BEFORE;
        cache
    }

    /// The rows, and others that fill a batch.
    fn columns(rows: &[(Option<&str>, Option<i32>)]) -> [ArrayRef; 2] {
        let mut rows = rows.to_vec();
        rows.resize(rows.len().max(ROWS_MIN), (Some("another"), None));
        [
            Arc::new(rows.iter().map(|row| row.0).collect::<StringArray>()),
            Arc::new(rows.iter().map(|row| row.1).collect::<Int32Array>()),
        ]
    }

    fn missed(cache: &mut ShortKeys, columns: &[ArrayRef], ids: &mut Vec<u32>) -> Vec<u32> {
        cache.find(columns, ids).unwrap().unwrap().to_vec()
    }

    #[test]
    fn a_key_is_found_once_it_is_kept() {
        let mut cache = cache(&[DataType::Utf8, DataType::Int32]);
        let long = "sixteen bytes long";
        let rows = [(Some("a"), Some(1)), (None, Some(1)), (Some(""), None), (Some(long), Some(1))];
        let columns = columns(&rows);
        let mut ids = vec![];
        assert_eq!(missed(&mut cache, &columns, &mut ids).len(), ROWS_MIN);
        let mut all = vec![9; ROWS_MIN];
        all[..4].copy_from_slice(&[5, 6, 7, 8]);
        cache.keep(&all);
        assert_eq!(missed(&mut cache, &columns, &mut ids), [3]);
        assert_eq!(ids[..3], [5, 6, 7]);
        assert_eq!(ids[4..], all[4..]);
        cache.clear();
        for _ in 0..ROWS_BEFORE / ROWS_MIN {
            assert!(cache.find(&columns, &mut ids).unwrap().is_none(), "few rows have no table");
        }
        assert_eq!(missed(&mut cache, &columns, &mut ids).len(), ROWS_MIN);
        assert!(cache.find(&columns.map(|column| column.slice(0, 3)), &mut ids).unwrap().is_none());
    }

    #[test]
    fn floats_that_are_one_key_are_one_here() {
        let mut cache = cache(&[DataType::Utf8, DataType::Float64]);
        let texts = Arc::new(StringArray::from(vec!["a"; ROWS_MIN])) as ArrayRef;
        let floats = [0.0, -0.0, f64::NAN, -f64::NAN].repeat(ROWS_MIN / 4);
        let floats = Float64Array::from(floats);
        let columns = [texts, Arc::new(floats)];
        let mut ids = vec![];
        let _ = missed(&mut cache, &columns, &mut ids);
        let expected = [0, 0, 1, 1].repeat(ROWS_MIN / 4);
        cache.keep(&expected);
        assert!(missed(&mut cache, &columns, &mut ids).is_empty());
        assert_eq!(ids, expected);
    }

    #[test]
    fn many_keys_are_not_looked_for() {
        let mut cache = cache(&[DataType::Utf8, DataType::Int32]);
        let mut next = 0;
        let mut looked = 0;
        for _ in 0..100 {
            let rows: Vec<_> = (next..next + 100).map(|key| (Some("a"), Some(key))).collect();
            let mut ids = vec![];
            if cache.find(&columns(&rows), &mut ids).unwrap().is_some() {
                looked += 1;
                cache.keep(&(next as u32..next as u32 + 100).collect::<Vec<_>>());
            }
            next += 100;
        }
        assert_eq!(looked, 4, "the first, and each thirty-third of the others");
    }
}
