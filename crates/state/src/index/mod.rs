//! From keys to group ids: one index per key mode.
//!
//! | mode | keys | ids |
//! |---|---|---|
//! | One | none | always 0 |
//! | Tiny | an integer-like key in a range of at most 512 | as Array |
//! | Array | the same in a larger range | key − base, with holes; or dense by a table |
//! | Ranges | the same, of more groups than a cache holds | as Array, of rows that wait |
//! | Hash | one key of at most 64 bits | dense, in order of first appearance |
//! | Packed | several keys that fit 128 or 256 bits with their null bits | dense |
//! | Wide | anything else | dense |
//!
//! NULL is a value like any other, as GROUP BY has it. An index never forgets a key until
//! [`Index::clear`].

pub(crate) mod array;
pub(crate) mod hash;
mod short;
pub(crate) mod wide;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field};

use crate::table::{Plain, ZeroedTable};
use crate::{Part, StateError, words};
use array::ArrayIndex;
use hash::{PACKED_BITS_MAX, PackedIndex, WordIndex, packed_bits};
use wide::WideIndex;

/// An array of this many keys is tiny: with their NULL, four tables of counters for them fill a
/// quarter or half of a first-level cache.
pub(crate) const TINY_KEYS: u64 = 1 << 9;

/// The id of a key that has none.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// How a slice finds the group of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyMode {
    /// No keys: one group.
    One,
    /// One integer-like key of few; the group is its distance from a base. Where rows are counted,
    /// they take turns at four counters for each.
    Tiny,
    /// One integer-like key; the group is its distance from a base.
    Array,
    /// The same, and rows wait until many are of neighbouring groups (partition, then update).
    Ranges,
    /// One key of at most 64 bits in a hash table.
    Hash,
    /// Several keys of together at most 256 bits in a hash table.
    Packed,
    /// Keys of any type, encoded as bytes, in a hash table over a log.
    Wide,
}

impl KeyMode {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::One, Self::Tiny, Self::Array, Self::Ranges, Self::Hash, Self::Packed, Self::Wide];

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Tiny => "tiny",
            Self::Array => "array",
            Self::Ranges => "ranges",
            Self::Hash => "hash",
            Self::Packed => "packed",
            Self::Wide => "wide",
        }
    }

    /// Whether keys of these types can be found so, if their values allow it too.
    pub fn suits(self, keys: &[DataType]) -> bool {
        match (self, keys) {
            (Self::One, keys) => keys.is_empty(),
            (_, []) => false,
            (Self::Tiny | Self::Array | Self::Ranges, keys) => {
                matches!(keys, [key] if words::is_integer_like(key))
            }
            (Self::Hash, keys) => matches!(keys, [key] if words::bits(key).is_some()),
            (Self::Packed, keys) => packed_bits(keys).is_some_and(|bits| bits <= PACKED_BITS_MAX),
            (Self::Wide, _) => true,
        }
    }
}

/// Which key modes something has been in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyModes(u64);

impl KeyModes {
    /// The same as a number, of which each mode is a bit.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The modes that are bits of a number.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Adds a mode.
    pub fn insert(&mut self, mode: KeyMode) {
        self.0 |= 1 << mode as u32;
    }

    /// These and others.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Their names.
    pub fn names(self) -> Vec<&'static str> {
        let here = KeyMode::ALL.into_iter().filter(|&mode| self.0 >> mode as u32 & 1 == 1);
        here.map(KeyMode::name).collect()
    }
}

/// An index in one of the modes.
pub(crate) enum Index {
    /// None: Arrow's row format does not know a type.
    Refused(DataType),
    One,
    Array(ArrayIndex),
    Hash(WordIndex),
    Packed(PackedIndex<u128>),
    PackedWide(PackedIndex<[u64; 4]>),
    Wide(Box<WideIndex>),
}

/// The keys of a part of an index, which may have changed since.
pub(crate) enum CopiedKeys {
    /// Ids are distances, of which the keys are computed.
    Distances(ArrayIndex, DataType),
    Columns(Vec<ArrayRef>),
}

impl CopiedKeys {
    /// The keys of the part that was copied.
    pub(crate) fn columns(&self, part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        match self {
            Self::Distances(index, key) => Ok(vec![index.keys(key, part)?]),
            Self::Columns(columns) => Ok(columns.clone()),
        }
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Distances(..) => 0,
            Self::Columns(columns) => {
                columns.iter().map(|column| column.get_array_memory_size()).sum()
            }
        }
    }
}

impl Index {
    /// The index that fits keys of these types before a row was seen, in the mode `force` if it
    /// suits them; `dense` if ids must not have holes.
    pub(crate) fn new(keys: &[DataType], force: Option<KeyMode>, dense: bool) -> Self {
        let suits = |mode: KeyMode| mode.suits(keys);
        let by_itself = [KeyMode::One, KeyMode::Array, KeyMode::Hash, KeyMode::Packed];
        let mode = force.filter(|&mode| suits(mode));
        let mode = mode.or_else(|| by_itself.into_iter().find(|&mode| suits(mode)));
        match mode {
            Some(KeyMode::One) => Self::One,
            Some(KeyMode::Tiny | KeyMode::Array | KeyMode::Ranges) => {
                Self::Array(ArrayIndex::new(dense))
            }
            Some(KeyMode::Hash) => Self::Hash(WordIndex::new(keys[0].clone(), 0)),
            Some(KeyMode::Packed) if let Some(packed) = packed(keys) => packed,
            _ => match WideIndex::new(keys) {
                Ok(wide) => Self::Wide(Box::new(wide)),
                Err(_) => Self::Refused(DataType::Struct(
                    keys.iter().map(|key| Field::new("key", key.clone(), true)).collect(),
                )),
            },
        }
    }

    /// Replaces `ids` by the id of each of `rows` keys, in any mode but Array. `scratch` is for
    /// their words.
    pub(crate) fn intern(
        &mut self,
        keys: &[ArrayRef],
        rows: usize,
        scratch: &mut Vec<u64>,
        ids: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        match self {
            Self::One => {
                ids.clear();
                ids.resize(rows, 0);
                Ok(())
            }
            Self::Refused(keys) => Err(StateError::Key(keys.clone())),
            Self::Array(_) => unreachable!("an array covers a range of words"),
            Self::Hash(index) => {
                let words = words::words(&keys[0], scratch)?;
                let nulls = keys[0].nulls().filter(|nulls| nulls.null_count() > 0);
                index.intern(words, nulls, ids)
            }
            Self::Packed(index) => index.intern(keys, ids),
            Self::PackedWide(index) => index.intern(keys, ids),
            Self::Wide(index) => index.intern(keys, ids),
        }
    }

    /// Makes room for `more` keys, in the modes that keep their words.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<(), StateError> {
        match self {
            Self::Hash(index) => index.reserve(more),
            Self::Packed(index) => index.reserve(more),
            Self::PackedWide(index) => index.reserve(more),
            Self::One | Self::Refused(_) | Self::Array(_) | Self::Wide(_) => Ok(()),
        }
    }

    /// Replaces `ids` by the id of each of `rows` keys, [`UNKNOWN`] where it has none, in any mode
    /// but Array.
    pub(crate) fn find(
        &self,
        keys: &[ArrayRef],
        rows: usize,
        ids: &mut Vec<u32>,
    ) -> Result<(), StateError> {
        match self {
            Self::One => {
                ids.clear();
                ids.resize(rows, 0);
                Ok(())
            }
            Self::Refused(keys) => Err(StateError::Key(keys.clone())),
            Self::Array(_) => unreachable!("an array covers a range of words"),
            Self::Hash(index) => {
                let mut scratch = vec![];
                let words = words::words(&keys[0], &mut scratch)?;
                let nulls = keys[0].nulls().filter(|nulls| nulls.null_count() > 0);
                index.find(words, nulls, ids);
                Ok(())
            }
            Self::Packed(index) => index.find(keys, ids),
            Self::PackedWide(index) => index.find(keys, ids),
            Self::Wide(index) => index.find(keys, ids),
        }
    }

    pub(crate) fn mode(&self) -> KeyMode {
        match self {
            Self::One => KeyMode::One,
            Self::Refused(_) => KeyMode::Wide,
            Self::Array(index) if index.is_tiny() => KeyMode::Tiny,
            Self::Array(_) => KeyMode::Array,
            Self::Hash(_) => KeyMode::Hash,
            Self::Packed(_) | Self::PackedWide(_) => KeyMode::Packed,
            Self::Wide(_) => KeyMode::Wide,
        }
    }

    /// How many ids there are; with holes, a bound on them.
    pub(crate) fn total(&self) -> usize {
        match self {
            Self::One => 1,
            Self::Refused(_) => 0,
            Self::Array(index) => index.total(),
            Self::Hash(index) => index.total(),
            Self::Packed(index) => index.total(),
            Self::PackedWide(index) => index.total(),
            Self::Wide(index) => index.total(),
        }
    }

    /// The keys of a part, which must be all of its ids unless ids may have holes.
    pub(crate) fn keys(&self, keys: &[DataType], part: &Part) -> Result<Vec<ArrayRef>, StateError> {
        match self {
            Self::One => Ok(vec![]),
            Self::Refused(keys) => Err(StateError::Key(keys.clone())),
            Self::Array(index) => Ok(vec![index.keys(&keys[0], part)?]),
            Self::Hash(index) => Ok(vec![index.keys(part)?]),
            Self::Packed(index) => index.keys(keys, part),
            Self::PackedWide(index) => index.keys(keys, part),
            Self::Wide(index) => index.keys(keys, part),
        }
    }

    /// The keys of a part as they are now, to be read later: see [`Index::keys`].
    pub(crate) fn copied(&self, keys: &[DataType], part: &Part) -> Result<CopiedKeys, StateError> {
        let distances = match self {
            Self::Array(index) => index.distances(),
            _ => None,
        };
        Ok(match distances {
            Some(index) => CopiedKeys::Distances(index, keys[0].clone()),
            None => CopiedKeys::Columns(self.keys(keys, part)?),
        })
    }

    /// By how many bytes tables of keys may grow. A table grows by as much as it has: this cannot
    /// be found out afterwards.
    pub(crate) fn set_room(&mut self, bytes: usize) {
        match self {
            Self::One | Self::Refused(_) | Self::Array(_) => {}
            Self::Hash(index) => index.set_room(bytes),
            Self::Packed(index) => index.set_room(bytes),
            Self::PackedWide(index) => index.set_room(bytes),
            Self::Wide(index) => index.set_room(bytes),
        }
    }

    /// Forgets all keys. Memory may be kept.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::One | Self::Refused(_) => {}
            Self::Array(index) => index.clear(),
            Self::Hash(index) => index.clear(),
            Self::Packed(index) => index.clear(),
            Self::PackedWide(index) => index.clear(),
            Self::Wide(index) => index.clear(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::One | Self::Refused(_) => 0,
            Self::Array(index) => index.bytes(),
            Self::Hash(index) => index.bytes(),
            Self::Packed(index) => index.bytes(),
            Self::PackedWide(index) => index.bytes(),
            Self::Wide(index) => index.bytes(),
        }
    }
}

/// The index of keys that fit 128 or 256 bits with their null bits; `None` of others.
fn packed(keys: &[DataType]) -> Option<Index> {
    let narrow = PackedIndex::new(keys).map(Index::Packed);
    narrow.or_else(|| PackedIndex::new(keys).map(Index::PackedWide))
}

/// An error if a table of `slots` entries in the place of `table` would grow by more than `room`
/// bytes; else that table. The old one is given back first: its entries are made anew.
fn regrown<T: Plain>(
    table: &mut ZeroedTable<T>,
    slots: usize,
    room: usize,
) -> Result<ZeroedTable<T>, StateError> {
    let bytes = ZeroedTable::<T>::bytes_of(slots).saturating_sub(table.bytes());
    if bytes > room {
        return Err(StateError::Growth { bytes });
    }
    *table = ZeroedTable::new();
    Ok(ZeroedTable::zeroed(slots))
}

/// An error if `more` groups might not have ids any more.
fn room(total: usize, more: usize) -> Result<(), StateError> {
    let max = u64::from(u32::MAX) - 1;
    if (total + more) as u64 > max { Err(StateError::Full { what: "groups", max }) } else { Ok(()) }
}
