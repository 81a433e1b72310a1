//! Keys of at most 256 bits in an open-addressed table.
//!
//! A slot holds the key and its id side by side, so that a row costs one cache miss here and one in
//! each accumulator. A batch is hashed first and then probed, with slots prefetched some rows
//! ahead. The keys are kept a second time in order of their ids: growing and giving the keys back
//! read them sequentially.

use std::ops::Range;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

use super::array::Span;
use super::{UNKNOWN, regrown, room};
use crate::table::{Plain, ZeroedTable};
use crate::{Part, StateError, hash, kernel, vector, words};

/// How many rows are hashed before they are probed.
const CHUNK: usize = 512;
/// How many rows ahead a slot is prefetched.
const AHEAD: usize = 32;
/// A table beyond this many bytes is prefetched.
const FAR_BYTES: usize = 1 << 19;
/// A table with fewer keys than one slot in this many is hardly used.
const HARDLY: usize = 32;
/// Slots of the smallest table.
const SLOTS_MIN: usize = 1 << 10;

/// A key with its slot.
pub(crate) trait Key: Copy + Eq {
    /// Key and id + 1; all zero where there is no key.
    type Slot: Plain;
    fn hash(self) -> u64;
    /// Of each key the bits of its hash above the lowest `shift`. Vectors take longer for keys of
    /// several words, which they have to sort first.
    #[inline(always)]
    fn starts(keys: &[Self], shift: u32, out: &mut [u32]) {
        for (key, out) in keys.iter().zip(out) {
            *out = (key.hash() >> shift) as u32;
        }
    }
    fn slot(self, id: u32) -> Self::Slot;
    /// The id + 1 in `slot`, and whether its key is `self`.
    fn read(self, slot: &Self::Slot) -> (u32, bool);
}

impl Key for u64 {
    type Slot = [u64; 2];

    #[inline(always)]
    fn hash(self) -> u64 {
        hash::word(self)
    }

    #[inline(always)]
    fn starts(keys: &[u64], shift: u32, out: &mut [u32]) {
        vector::starts(keys, shift, out);
    }

    #[inline(always)]
    fn slot(self, id: u32) -> [u64; 2] {
        [self, u64::from(id) + 1]
    }

    #[inline(always)]
    fn read(self, slot: &[u64; 2]) -> (u32, bool) {
        (slot[1] as u32, slot[0] == self)
    }
}

impl Key for u128 {
    type Slot = [u64; 4];

    #[inline(always)]
    fn hash(self) -> u64 {
        hash::wide(self)
    }

    #[inline(always)]
    fn slot(self, id: u32) -> [u64; 4] {
        [self as u64, (self >> 64) as u64, u64::from(id) + 1, 0]
    }

    #[inline(always)]
    fn read(self, slot: &[u64; 4]) -> (u32, bool) {
        (slot[2] as u32, slot[0] == self as u64 && slot[1] == (self >> 64) as u64)
    }
}

impl Key for [u64; 4] {
    type Slot = [u64; 5];

    #[inline(always)]
    fn hash(self) -> u64 {
        let [a, b, c, d] = self;
        hash::combine(hash::wide(u128::from(b) << 64 | u128::from(a)), hash::combine(c, d))
    }

    #[inline(always)]
    fn slot(self, id: u32) -> [u64; 5] {
        let [a, b, c, d] = self;
        [a, b, c, d, u64::from(id) + 1]
    }

    #[inline(always)]
    fn read(self, slot: &[u64; 5]) -> (u32, bool) {
        let differs = self.iter().zip(slot).fold(0, |bits, (a, b)| bits | (a ^ b));
        (slot[4] as u32, differs == 0)
    }
}

/// Several keys in one number.
pub(crate) trait Packed: Key {
    const BITS: u32;
    const ZERO: Self;
    /// Puts a word where there is none.
    fn put(&mut self, word: u64, shift: u32);
    /// The word that begins there, and parts of others above it.
    fn word(self, shift: u32) -> u64;
}

impl Packed for u128 {
    const BITS: u32 = 128;
    const ZERO: Self = 0;

    #[inline(always)]
    fn put(&mut self, word: u64, shift: u32) {
        *self |= u128::from(word) << shift;
    }

    #[inline(always)]
    fn word(self, shift: u32) -> u64 {
        (self >> shift) as u64
    }
}

impl Packed for [u64; 4] {
    const BITS: u32 = 256;
    const ZERO: Self = [0; 4];

    #[inline(always)]
    fn put(&mut self, word: u64, shift: u32) {
        let (at, shift) = (shift as usize / 64, shift % 64);
        self[at] |= word << shift;
        if shift > 0 && at < 3 {
            self[at + 1] |= word >> (64 - shift);
        }
    }

    #[inline(always)]
    fn word(self, shift: u32) -> u64 {
        let at = shift as usize / 64;
        let next = self.get(at + 1).copied().unwrap_or(0);
        ((u128::from(next) << 64 | u128::from(self[at])) >> (shift % 64)) as u64
    }
}

/// Dense ids of keys.
pub(crate) struct HashIndex<K: Key> {
    slots: ZeroedTable<K::Slot>,
    /// Key of each id.
    keys: Vec<K>,
    /// The id of NULL, which has a key that means nothing, and no slot.
    null: Option<u32>,
    /// By how many bytes the table may grow.
    room: usize,
    /// Scratch: where the rows of a chunk start probing.
    starts: Vec<u32>,
}

impl<K: Key> HashIndex<K> {
    fn new() -> Self {
        Self {
            slots: ZeroedTable::new(),
            keys: vec![],
            null: None,
            room: usize::MAX,
            starts: vec![],
        }
    }

    /// Appends the id of each key to `out`.
    fn intern(&mut self, keys: &[K], out: &mut Vec<u32>) -> Result<(), StateError> {
        room(self.keys.len(), keys.len())?;
        out.reserve(keys.len());
        for chunk in keys.chunks(CHUNK) {
            self.reserve(chunk.len())?;
            let shift = 64 - self.slots.len().trailing_zeros();
            self.starts.resize(chunk.len(), 0);
            K::starts(chunk, shift, &mut self.starts);
            let slots = self.slots.as_mut();
            let far = size_of_val(slots) > FAR_BYTES;
            for (row, &key) in chunk.iter().enumerate() {
                if far && let Some(&next) = self.starts.get(row + AHEAD) {
                    kernel::prefetch(slots, next as usize);
                }
                out.push(probe(slots, &mut self.keys, key, self.starts[row]));
            }
        }
        Ok(())
    }

    /// Appends the id of each key to `out`, [`UNKNOWN`] where it has none.
    fn find(&self, keys: &[K], out: &mut Vec<u32>) {
        let slots = self.slots.as_ref();
        if slots.is_empty() {
            out.resize(out.len() + keys.len(), UNKNOWN);
            return;
        }
        out.reserve(keys.len());
        let shift = 64 - slots.len().trailing_zeros();
        let far = size_of_val(slots) > FAR_BYTES;
        let mut starts = [0; CHUNK];
        for chunk in keys.chunks(CHUNK) {
            let starts = &mut starts[..chunk.len()];
            K::starts(chunk, shift, starts);
            out.extend(chunk.iter().enumerate().map(|(row, &key)| {
                if far && let Some(&next) = starts.get(row + AHEAD) {
                    kernel::prefetch(slots, next as usize);
                }
                look_up(slots, key, starts[row])
            }));
        }
    }

    /// Makes room for `more` keys at a load of at most 0.6.
    fn reserve(&mut self, more: usize) -> Result<(), StateError> {
        let need = (self.keys.len() + more) * 5 / 3;
        if need > self.slots.len() { self.rebuild(need.max(SLOTS_MIN)) } else { Ok(()) }
    }

    #[cold]
    fn rebuild(&mut self, slots: usize) -> Result<(), StateError> {
        let mut table = regrown(&mut self.slots, slots, self.room)?;
        let shift = 64 - table.len().trailing_zeros();
        let mask = table.len() - 1;
        for (id, &key) in self.keys.iter().enumerate() {
            if let Some(next) = self.keys.get(id + AHEAD) {
                kernel::prefetch(table.as_ref(), (next.hash() >> shift) as usize);
            }
            if Some(id as u32) == self.null {
                continue;
            }
            let mut at = (key.hash() >> shift) as usize;
            while key.read(&table.as_ref()[at]).0 != 0 {
                at = (at + 1) & mask;
            }
            table.as_mut()[at] = key.slot(id as u32);
        }
        self.slots = table;
        Ok(())
    }

    /// Forgets all keys. A table that was hardly used is given back: clearing it would cost more
    /// than its keys did.
    fn clear(&mut self) {
        if self.keys.len() < self.slots.len() / HARDLY {
            self.slots = ZeroedTable::new();
        }
        self.slots.clear(self.slots.len());
        self.keys.clear();
        self.null = None;
    }

    /// Where among `ids` NULL is.
    fn null_among(&self, ids: &Range<usize>) -> Option<usize> {
        let null = self.null? as usize;
        ids.contains(&null).then(|| null - ids.start)
    }

    fn bytes(&self) -> usize {
        self.slots.bytes() + self.keys.len() * size_of::<K>() + self.starts.capacity() * 4
    }
}

/// The id of `key`, which is given the next id if it is new. There is an empty slot: the load is
/// below one.
#[inline(always)]
fn probe<K: Key>(slots: &mut [K::Slot], keys: &mut Vec<K>, key: K, start: u32) -> u32 {
    let mask = slots.len() - 1;
    let mut at = start as usize;
    loop {
        let slot = &mut slots[at & mask];
        match key.read(slot) {
            (0, _) => {
                let id = keys.len() as u32;
                *slot = key.slot(id);
                keys.push(key);
                return id;
            }
            (id, true) => return id - 1,
            _ => at += 1,
        }
    }
}

/// The id of `key`, if it has one. There is an empty slot: the load is below one.
#[inline(always)]
fn look_up<K: Key>(slots: &[K::Slot], key: K, start: u32) -> u32 {
    let mask = slots.len() - 1;
    let mut at = start as usize;
    loop {
        match key.read(&slots[at & mask]) {
            (0, _) => return UNKNOWN,
            (id, true) => return id - 1,
            _ => at += 1,
        }
    }
}

/// One key of at most 64 bits.
pub(crate) struct WordIndex {
    key: DataType,
    index: HashIndex<u64>,
    /// At how many keys to ask again whether they are dense enough for an array.
    pub(crate) ask_at: usize,
    scratch: Vec<u64>,
}

impl WordIndex {
    pub(crate) fn new(key: DataType, ask_at: usize) -> Self {
        Self { key, index: HashIndex::new(), ask_at, scratch: vec![] }
    }

    /// Appends the id of each row to `out`.
    pub(crate) fn intern(
        &mut self,
        words: &[u64],
        nulls: Option<&NullBuffer>,
        out: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        out.clear();
        let Some(nulls) = nulls else { return self.index.intern(words, out) };
        // The valid words are interned together, then spread over the rows from the back.
        self.scratch.clear();
        self.scratch.extend(nulls.valid_indices().map(|row| words[row]));
        let first = (0..words.len()).find(|&row| nulls.is_null(row));
        let null = match (self.index.null, first) {
            (Some(id), _) => {
                self.index.intern(&self.scratch, out)?;
                id
            }
            (None, None) => return self.index.intern(&self.scratch, out),
            // Ids are in order of first appearance, which NULL has in this row.
            (None, Some(first)) => {
                self.index.intern(&self.scratch[..first], out)?;
                room(self.index.keys.len(), 1)?;
                self.index.keys.push(0);
                let id = *self.index.null.insert(self.index.keys.len() as u32 - 1);
                self.index.intern(&self.scratch[first..], out)?;
                id
            }
        };
        spread(out, nulls, null);
        Ok(())
    }

    /// Replaces `out` by the id of each row, [`UNKNOWN`] where it has none.
    pub(crate) fn find(&self, words: &[u64], nulls: Option<&NullBuffer>, out: &mut Vec<u32>) {
        out.clear();
        let Some(nulls) = nulls else { return self.index.find(words, out) };
        let valid: Vec<u64> = nulls.valid_indices().map(|row| words[row]).collect();
        self.index.find(&valid, out);
        spread(out, nulls, self.index.null.unwrap_or(UNKNOWN));
    }

    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), StateError> {
        self.index.reserve(more)
    }

    pub(crate) fn total(&self) -> usize {
        self.index.keys.len()
    }

    /// The range of its keys.
    pub(crate) fn span(&self) -> Option<Span> {
        let nulls = words::null_at(self.index.null_among(&(0..self.total())), self.total());
        Span::of(&self.index.keys, nulls.as_ref())
    }

    /// The keys of a part.
    pub(crate) fn keys(&self, part: &Part) -> Result<ArrayRef, StateError> {
        let nulls = words::null_at(self.index.null_among(&part.ids()), part.rows());
        words::column(&self.key, self.index.keys[part.ids()].to_vec(), nulls)
    }

    pub(crate) fn set_room(&mut self, bytes: usize) {
        self.index.room = bytes;
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        self.ask_at = 0;
        self.index.clear();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.scratch.capacity() * 8
    }
}

/// Several keys that fit one number together: their words, and above these a bit of each that says
/// whether it is null. So words of 64 bits need no shift.
pub(crate) struct PackedIndex<K: Packed> {
    index: HashIndex<K>,
    scratch: Vec<u64>,
    packed: Vec<K>,
}

/// Bits of the widest number that keys are packed into.
pub(crate) const PACKED_BITS_MAX: u32 = <[u64; 4] as Packed>::BITS;

/// Bits of keys in one number, a bit of each for NULL; `None` if one has no fixed width.
pub(crate) fn packed_bits(keys: &[DataType]) -> Option<u32> {
    keys.iter().map(|key| words::bits(key).map(|bits| bits + 1)).sum()
}

impl<K: Packed> PackedIndex<K> {
    /// `None` if the keys do not fit.
    pub(crate) fn new(keys: &[DataType]) -> Option<Self> {
        let fits = packed_bits(keys)? <= K::BITS;
        fits.then(|| Self { index: HashIndex::new(), scratch: vec![], packed: vec![] })
    }

    /// Appends the id of each row to `out`.
    pub(crate) fn intern(
        &mut self,
        keys: &[ArrayRef],
        out: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        out.clear();
        pack(keys, &mut self.scratch, &mut self.packed)?;
        self.index.intern(&self.packed, out)
    }

    /// Replaces `out` by the id of each row, [`UNKNOWN`] where it has none.
    pub(crate) fn find(&self, keys: &[ArrayRef], out: &mut Vec<u32>) -> Result<(), StateError> {
        out.clear();
        let mut packed = vec![];
        pack(keys, &mut vec![], &mut packed)?;
        self.index.find(&packed, out);
        Ok(())
    }

    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), StateError> {
        self.index.reserve(more)
    }

    pub(crate) fn total(&self) -> usize {
        self.index.keys.len()
    }

    /// The keys of a part.
    pub(crate) fn keys(&self, keys: &[DataType], part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        let packed = &self.index.keys[part.ids()];
        keys.iter()
            .zip(layout(keys.iter())?)
            .map(|(key, Field { shift, mask, null_at })| {
                let words = packed.iter().map(|packed| packed.word(shift) & mask).collect();
                let null = |packed: &K| packed.word(null_at) & 1 == 1;
                let nulls = packed.iter().any(null).then(|| {
                    let valid = packed.iter().map(|packed| !null(packed));
                    NullBuffer::new(valid.collect())
                });
                words::column(key, words, nulls)
            })
            .collect()
    }

    pub(crate) fn set_room(&mut self, bytes: usize) {
        self.index.room = bytes;
    }

    /// Forgets all keys.
    pub(crate) fn clear(&mut self) {
        self.index.clear();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.scratch.capacity() * 8 + self.packed.capacity() * size_of::<K>()
    }
}

/// Where the word of a key begins and which bits it has, and where its bit for NULL is.
struct Field {
    shift: u32,
    mask: u64,
    null_at: u32,
}

/// The fields of keys: words one behind the other, then a bit for each.
fn layout<'a>(
    keys: impl Iterator<Item = &'a DataType> + Clone,
) -> Result<impl Iterator<Item = Field>, StateError> {
    let bits = |key: &DataType| words::bits(key).ok_or_else(|| StateError::Key(key.clone()));
    let end = keys.clone().try_fold(0, |end, key| Ok::<_, StateError>(end + bits(key)?))?;
    let mut shift = 0;
    Ok(keys.zip(end..).map(move |(key, null_at)| {
        let bits = words::bits(key).unwrap_or(1);
        shift += bits;
        Field { shift: shift - bits, mask: u64::MAX >> (64 - bits), null_at }
    }))
}

/// Replaces `packed` by the keys of each row in one number.
fn pack<K: Packed>(
    keys: &[ArrayRef],
    scratch: &mut Vec<u64>,
    packed: &mut Vec<K>,
) -> Result<(), StateError> {
    packed.clear();
    packed.resize(keys[0].len(), K::ZERO);
    let fields = layout(keys.iter().map(|key| key.data_type()))?;
    for (key, Field { shift, mask, null_at }) in keys.iter().zip(fields) {
        let words = words::words(key, scratch)?;
        match key.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => {
                for (packed, &word) in packed.iter_mut().zip(words) {
                    packed.put(word & mask, shift);
                }
            }
            Some(nulls) => {
                for ((packed, &word), valid) in packed.iter_mut().zip(words).zip(nulls) {
                    let (word, shift) = if valid { (word & mask, shift) } else { (1, null_at) };
                    packed.put(word, shift);
                }
            }
        }
    }
    Ok(())
}

/// Moves the ids of valid rows, which `ids` begins with, to their rows; the others get `null`.
pub(crate) fn spread(ids: &mut Vec<u32>, valid: &NullBuffer, null: u32) {
    let mut from = ids.len();
    ids.resize(valid.len(), null);
    for row in (0..valid.len()).rev() {
        ids[row] = if valid.is_valid(row) {
            from -= 1;
            ids[from]
        } else {
            null
        };
    }
}
