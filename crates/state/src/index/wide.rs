//! Keys of any type: encoded as bytes in an append-only log, found through a table of salt and id.
//!
//! A slot is the upper half of the hash and the id, so that the log is read only where the salt
//! agrees. One key that is a string or binary is its own encoding; other keys are encoded as
//! [`KeyRows`], unless they are short and were seen before ([`ShortKeys`]).

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, LargeBinaryArray, LargeStringArray,
    StringArray, UInt32Array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::DataType;
use arrow::row::Rows;

use super::short::ShortKeys;
use super::{UNKNOWN, regrown, room};
use crate::table::ZeroedTable;
use crate::{KeyRows, Part, StateError, hash, words};

/// A table with fewer keys than one slot in this many is hardly used, and is given back rather than
/// cleared.
const HARDLY: usize = 32;

/// Dense ids of strings of bytes, and of NULL.
#[derive(Debug)]
struct BytesIndex {
    /// Salt and id + 1; zero where there is no key.
    slots: ZeroedTable<u64>,
    log: Vec<u8>,
    /// Where in the log the key of each id ends. It begins where the one before ends.
    ends: Vec<i64>,
    /// The id of NULL, which has no slot and no bytes.
    null: Option<u32>,
    /// By how many bytes the table may grow.
    room: usize,
}

impl BytesIndex {
    fn new() -> Self {
        Self { slots: ZeroedTable::new(), log: vec![], ends: vec![], null: None, room: usize::MAX }
    }

    fn key(&self, id: usize) -> &[u8] {
        let begin = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.log[begin..self.ends[id] as usize]
    }

    /// Makes room for `more` keys at a load of at most 0.6.
    fn reserve(&mut self, more: usize) -> Result<(), StateError> {
        room(self.ends.len(), more)?;
        let need = (self.ends.len() + more) * 5 / 3;
        if need <= self.slots.len() {
            return Ok(());
        }
        let mut slots = regrown(&mut self.slots, need.max(1 << 10), self.room)?;
        let mask = slots.len() - 1;
        for id in (0..self.ends.len()).filter(|&id| Some(id as u32) != self.null) {
            let hash = hash::bytes(self.key(id));
            let mut at = hash as usize & mask;
            while slots.as_ref()[at] != 0 {
                at = (at + 1) & mask;
            }
            slots.as_mut()[at] = slot(hash, id as u32);
        }
        self.slots = slots;
        Ok(())
    }

    /// The id of a key; there must be room.
    #[inline]
    fn intern(&mut self, key: Option<&[u8]>) -> u32 {
        let Some(key) = key else {
            let ends = &mut self.ends;
            return *self.null.get_or_insert_with(|| {
                ends.push(ends.last().copied().unwrap_or(0));
                ends.len() as u32 - 1
            });
        };
        let hash = hash::bytes(key);
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let found = self.slots.as_ref()[at];
            if found == 0 {
                let id = self.ends.len() as u32;
                self.log.extend_from_slice(key);
                self.ends.push(self.log.len() as i64);
                self.slots.as_mut()[at] = slot(hash, id);
                return id;
            }
            let id = found as u32 - 1;
            if found >> 32 == hash >> 32 && self.key(id as usize) == key {
                return id;
            }
            at = (at + 1) & mask;
        }
    }

    /// The id of a key, [`UNKNOWN`] if it has none.
    #[inline]
    fn find(&self, key: Option<&[u8]>) -> u32 {
        let Some(key) = key else { return self.null.unwrap_or(UNKNOWN) };
        let slots = self.slots.as_ref();
        let Some(mask) = slots.len().checked_sub(1) else { return UNKNOWN };
        let hash = hash::bytes(key);
        let mut at = hash as usize & mask;
        loop {
            let found = slots[at];
            if found == 0 {
                return UNKNOWN;
            }
            let id = found as u32 - 1;
            if found >> 32 == hash >> 32 && self.key(id as usize) == key {
                return id;
            }
            at = (at + 1) & mask;
        }
    }

    fn find_all<'a>(
        &self,
        keys: impl Iterator<Item = Option<&'a [u8]>>,
        out: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        out.clear();
        out.extend(keys.map(|key| self.find(key)));
        Ok(())
    }

    fn intern_all<'a>(
        &mut self,
        keys: impl ExactSizeIterator<Item = Option<&'a [u8]>>,
        out: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        out.clear();
        self.reserve(keys.len().min(1 << 10))?;
        for (row, key) in keys.enumerate() {
            if row % (1 << 10) == 0 {
                self.reserve(1 << 10)?;
            }
            out.push(self.intern(key));
        }
        Ok(())
    }

    /// The bytes of the keys of `ids`, where each ends in them, and which one is NULL.
    fn part(&self, ids: Range<usize>) -> (&[u8], Vec<i64>, Option<usize>) {
        let null = self.null.map(|id| id as usize).filter(|id| ids.contains(id));
        let null = null.map(|id| id - ids.start);
        let begin = if ids.start == 0 { 0 } else { self.ends[ids.start - 1] };
        let ends: Vec<i64> = self.ends[ids].iter().map(|end| end - begin).collect();
        let len = ends.last().copied().unwrap_or(0);
        (&self.log[begin as usize..(begin + len) as usize], ends, null)
    }

    fn clear(&mut self) {
        if self.ends.len() < self.slots.len() / HARDLY {
            self.slots = ZeroedTable::new();
        }
        self.slots.clear(self.slots.len());
        self.log.clear();
        self.ends.clear();
        self.null = None;
    }

    fn bytes(&self) -> usize {
        self.slots.bytes() + self.log.len() + self.ends.len() * 8
    }
}

fn slot(hash: u64, id: u32) -> u64 {
    hash >> 32 << 32 | (u64::from(id) + 1)
}

/// Runs `$body` with `$bytes` as the values of a column of strings or binaries.
macro_rules! with_bytes {
    ($key:expr, $bytes:ident => $body:expr) => {{
        let key: &ArrayRef = $key;
        macro_rules! body {
            ($values:expr) => {{
                let $bytes = $values;
                $body
            }};
        }
        match key.data_type() {
            DataType::Utf8 => body!(key.as_string::<i32>().iter().map(|k| k.map(str::as_bytes))),
            DataType::LargeUtf8 => {
                body!(key.as_string::<i64>().iter().map(|k| k.map(str::as_bytes)))
            }
            DataType::Utf8View => {
                body!(key.as_string_view().iter().map(|k| k.map(str::as_bytes)))
            }
            DataType::Binary => body!(key.as_binary::<i32>().iter()),
            DataType::LargeBinary => body!(key.as_binary::<i64>().iter()),
            DataType::BinaryView => body!(key.as_binary_view().iter()),
            other => Err(StateError::Key(other.clone())),
        }
    }};
}

/// An index of keys of any type.
pub(crate) struct WideIndex {
    index: BytesIndex,
    /// `None` for one key that is a string or binary.
    rows: Option<Encoder>,
}

/// The encoder of keys, and a buffer of rows to reuse.
struct Encoder {
    converter: KeyRows,
    rows: Rows,
    short: Option<ShortKeys>,
    /// Ids of rows that are not short or were not seen before.
    others: Vec<u32>,
}

impl Encoder {
    /// Replaces `out` by the ids in `index`.
    fn intern(
        &mut self,
        index: &mut BytesIndex,
        keys: &[ArrayRef],
        out: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        let Some(short) = &mut self.short else { return self.encode(index, keys, out) };
        let Some(missed) = short.find(keys, out)? else { return self.encode(index, keys, out) };
        if missed.is_empty() {
            return Ok(());
        }
        let rows = UInt32Array::from(missed.to_vec());
        let columns = keys.iter().map(|key| take(key, &rows, None));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let mut others = std::mem::take(&mut self.others);
        self.encode(index, &columns, &mut others)?;
        rows.values().iter().zip(&others).for_each(|(row, id)| out[*row as usize] = *id);
        self.others = others;
        if let Some(short) = &mut self.short {
            short.keep(out);
        }
        Ok(())
    }

    /// The same by the bytes of each row.
    fn encode(
        &mut self,
        index: &mut BytesIndex,
        keys: &[ArrayRef],
        out: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        self.rows.clear();
        self.converter.append(&mut self.rows, keys)?;
        let rows = &self.rows;
        index.intern_all((0..rows.num_rows()).map(|row| Some(rows.row(row).data())), out)
    }
}

impl WideIndex {
    pub(crate) fn new(keys: &[DataType]) -> Result<Self, StateError> {
        let rows = match keys {
            [
                DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView,
            ] => None,
            _ => {
                let converter =
                    KeyRows::new(keys.iter().map(|key| (key.clone(), Default::default())))?;
                let rows = converter.empty();
                let (short, others) = (ShortKeys::new(keys), vec![]);
                Some(Encoder { converter, rows, short, others })
            }
        };
        Ok(Self { index: BytesIndex::new(), rows })
    }

    /// Appends the id of each row to `out`.
    pub(crate) fn intern(
        &mut self,
        keys: &[ArrayRef],
        out: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        if let Some(encoder) = &mut self.rows {
            return encoder.intern(&mut self.index, keys, out);
        }
        let index = &mut self.index;
        with_bytes!(&keys[0], bytes => index.intern_all(bytes, out))
    }

    /// Replaces `out` by the id of each row, [`UNKNOWN`] where it has none.
    pub(crate) fn find(&self, keys: &[ArrayRef], out: &mut Vec<u32>) -> Result<(), StateError> {
        if let Some(Encoder { converter, .. }) = &self.rows {
            let rows = converter.rows(keys)?;
            let keys = (0..rows.num_rows()).map(|row| Some(rows.row(row).data()));
            return self.index.find_all(keys, out);
        }
        with_bytes!(&keys[0], bytes => self.index.find_all(bytes, out))
    }

    pub(crate) fn total(&self) -> usize {
        self.index.ends.len()
    }

    pub(crate) fn set_room(&mut self, bytes: usize) {
        self.index.room = bytes;
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        if let Some(short) = self.rows.as_mut().and_then(|encoder| encoder.short.as_mut()) {
            short.clear();
        }
    }

    /// The keys of a part.
    pub(crate) fn keys(&self, keys: &[DataType], part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        if let Some(encoder) = &self.rows {
            let parser = encoder.converter.parser();
            let rows = part.ids().map(|id| parser.parse(self.index.key(id)));
            let columns = encoder.converter.columns(rows)?;
            // Rows come back without dictionaries.
            let typed = columns.into_iter().zip(keys).map(|(column, key)| {
                if column.data_type() == key { Ok(column) } else { Ok(cast(&column, key)?) }
            });
            return typed.collect();
        }
        let (log, ends, null) = self.index.part(part.ids());
        let nulls = words::null_at(null, ends.len());
        let large = || OffsetBuffer::new(std::iter::once(0).chain(ends.iter().copied()).collect());
        let bytes = || std::iter::once(0).chain(ends.iter().map(|&e| e as usize)).zip(&ends);
        Ok(vec![match &keys[0] {
            DataType::Utf8 => {
                Arc::new(StringArray::try_new(small(&ends)?, log.to_vec().into(), nulls)?)
                    as ArrayRef
            }
            DataType::LargeUtf8 => {
                Arc::new(LargeStringArray::try_new(large(), log.to_vec().into(), nulls)?)
            }
            DataType::Binary => {
                Arc::new(BinaryArray::try_new(small(&ends)?, log.to_vec().into(), nulls)?)
            }
            DataType::LargeBinary => {
                Arc::new(LargeBinaryArray::try_new(large(), log.to_vec().into(), nulls)?)
            }
            key @ (DataType::BinaryView | DataType::Utf8View) => {
                let views = bytes().enumerate().map(|(id, (begin, &end))| {
                    (Some(id) != null).then(|| &log[begin..end as usize])
                });
                let array: BinaryViewArray = views.collect();
                match key {
                    DataType::BinaryView => Arc::new(array),
                    _ => Arc::new(array.to_string_view()?),
                }
            }
            other => return Err(StateError::Key(other.clone())),
        }])
    }

    pub(crate) fn bytes(&self) -> usize {
        let encoder = self.rows.as_ref().map_or(0, |encoder| {
            let short = encoder.short.as_ref().map_or(0, ShortKeys::bytes);
            encoder.rows.size() + short + encoder.others.capacity() * size_of::<u32>()
        });
        self.index.bytes() + encoder
    }
}

/// Offsets of 32 bits.
fn small(ends: &[i64]) -> Result<OffsetBuffer<i32>, StateError> {
    let max = i32::MAX as u64;
    let full = |_| StateError::Full { what: "bytes in a column of strings", max };
    let ends = ends.iter().map(|&end| i32::try_from(end));
    let offsets: Result<Vec<i32>, _> = std::iter::once(Ok(0)).chain(ends).collect();
    Ok(OffsetBuffer::new(ScalarBuffer::from(offsets.map_err(full)?)))
}
