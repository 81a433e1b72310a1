//! Integer-like keys in a small range: the id is the distance from a base.
//!
//! *Direct*: ids have holes where no key was; which are holes is for the slice to know. *Dense*: a
//! table turns distances into dense ids, for aggregates that do not stand holes.
//!
//! Id 0 (distance 0 in the table) is the NULL key, key `base + d` has `d + 1`.

use arrow::array::ArrayRef;
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;

use super::{TINY_KEYS, room};
use crate::table::ZeroedTable;
use crate::{DenseRows, Part, RawRows, StateError, vector, words};

/// Where fewer than one entry in this many is used, each is cleared on its own.
const CLEAR_EACH: usize = 32;

/// An index by distance.
pub(crate) struct ArrayIndex {
    /// The word of distance 0.
    base: u64,
    /// Distances are below this; zero or a power of two.
    limit: u64,
    ids: Distances,
}

enum Distances {
    Direct {
        /// Ids are below this.
        top: usize,
    },
    Dense(Dense),
}

/// Dense ids by distance.
struct Dense {
    /// Per distance + 1 the id + 1, or 0.
    table: ZeroedTable<u32>,
    /// Per id the distance + 1, or 0 for NULL.
    keys: Vec<u32>,
}

/// Words from `min` to `max`, compared as signed numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) min: i64,
    pub(crate) max: i64,
}

impl Span {
    /// The range of those of `words` that are not null.
    pub(crate) fn of(words: &[u64], nulls: Option<&NullBuffer>) -> Option<Self> {
        let each = |range: Option<Self>, word: u64| {
            let word = word as i64;
            let (min, max) =
                range.map_or((word, word), |r: Self| (r.min.min(word), r.max.max(word)));
            Some(Self { min, max })
        };
        match nulls {
            None => words.iter().fold(None, |range, &word| each(range, word)),
            Some(nulls) => nulls.valid_indices().fold(None, |range, i| each(range, words[i])),
        }
    }

    pub(crate) fn union(self, other: Option<Self>) -> Self {
        other.map_or(self, |o| Self { min: self.min.min(o.min), max: self.max.max(o.max) })
    }

    /// How many words there are, at most `u64::MAX`.
    pub(crate) fn len(self) -> u64 {
        self.max.abs_diff(self.min).saturating_add(1)
    }
}

impl ArrayIndex {
    /// An index that covers nothing yet.
    pub(crate) fn new(dense: bool) -> Self {
        let ids = if dense {
            Distances::Dense(Dense { table: ZeroedTable::new(), keys: vec![] })
        } else {
            Distances::Direct { top: 0 }
        };
        Self { base: 0, limit: 0, ids }
    }

    /// An index that covers `range`, and as much below it if keys come downwards.
    pub(crate) fn covering(range: Span, downwards: bool, dense: bool) -> Self {
        let below = if downwards { range.len().min(range.min.abs_diff(i64::MIN)) } else { 0 };
        let base = (range.min as u64).wrapping_sub(below);
        let limit = (range.len() + below).next_power_of_two();
        let mut index = Self { base, limit, ..Self::new(dense) };
        if let Distances::Dense(dense) = &mut index.ids {
            dense.table.grow(limit as usize + 1);
        }
        index
    }

    /// Whether it covers more than `times` as many keys as there are groups.
    pub(crate) fn is_sparse(&self, groups: usize, times: u64) -> bool {
        self.limit > times.saturating_mul(groups as u64)
    }

    /// Whether it covers few keys, if any.
    pub(crate) fn is_tiny(&self) -> bool {
        self.limit <= TINY_KEYS
    }

    /// Whether ids may have holes.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.ids, Distances::Direct { .. })
    }

    /// The covered range; `None` before the first key.
    pub(crate) fn range(&self) -> Option<Span> {
        let min = self.base as i64;
        (self.limit > 0).then(|| Span { min, max: min.saturating_add_unsigned(self.limit - 1) })
    }

    /// Covers as much as `range` beyond the same base.
    pub(crate) fn grow(&mut self, range: Span) {
        self.limit = self.limit.max((range.max as u64).wrapping_sub(self.base) + 1);
        self.limit = self.limit.next_power_of_two();
        if let Distances::Dense(dense) = &mut self.ids {
            dense.table.grow(self.limit as usize + 1);
        }
    }

    /// Appends the id of each row to `out`. False, with `out` spoilt, if a word is out of range.
    pub(crate) fn intern(
        &mut self,
        words: &[u64],
        nulls: Option<&NullBuffer>,
        out: &mut Vec<u32>,
    ) -> Result<bool, StateError> {
        let base = self.base;
        out.clear();
        let (mut any, mut top_id) = (0, 0);
        match nulls {
            None => {
                out.resize(words.len(), 0);
                (any, top_id) = vector::distances(words, base, out);
            }
            Some(nulls) => out.extend(words.iter().zip(nulls.iter()).map(|(&word, valid)| {
                let distance = word.wrapping_sub(base);
                any |= if valid { distance } else { 0 };
                let id = if valid { (distance as u32).wrapping_add(1) } else { 0 };
                top_id |= id;
                id
            })),
        }
        // As the limit is a power of two, all are below it exactly if their disjunction is.
        let nothing = nulls.is_some_and(|nulls| nulls.null_count() == words.len());
        if any >= self.limit && !words.is_empty() && !nothing {
            return Ok(false);
        }
        match &mut self.ids {
            Distances::Direct { top } => *top = (*top).max(top_id as usize + 1),
            Distances::Dense(dense) => dense.intern(out)?,
        }
        Ok(true)
    }

    /// The same index, if ids may have holes: then the keys are computed of the ids.
    pub(crate) fn distances(&self) -> Option<Self> {
        let Distances::Direct { top } = self.ids else { return None };
        Some(Self { base: self.base, limit: self.limit, ids: Distances::Direct { top } })
    }

    /// Rows whose groups are told from their words, if ids may have holes and anything is covered.
    pub(crate) fn near<'a>(&self, rows: RawRows<'a>) -> Option<DenseRows<'a>> {
        let near = DenseRows { rows, base: self.base, limit: self.limit };
        (self.is_direct() && self.limit > 0).then_some(near)
    }

    /// Rows have come for groups up to `reach`, which is covered.
    pub(crate) fn reached(&mut self, reach: u32) {
        if let Distances::Direct { top } = &mut self.ids {
            *top = (*top).max(reach as usize + 1);
        }
    }

    pub(crate) fn total(&self) -> usize {
        match &self.ids {
            Distances::Direct { top } => *top,
            Distances::Dense(dense) => dense.keys.len(),
        }
    }

    /// The keys of a part.
    pub(crate) fn keys(&self, key: &DataType, part: &Part) -> Result<ArrayRef, StateError> {
        let base = self.base;
        let word = |id: u64| base.wrapping_add(id).wrapping_sub(1);
        let (null, words) = match &self.ids {
            Distances::Direct { .. } => {
                let null = (part.ids().start == 0 && part.has_first()).then_some(0);
                (null, part.each_id(|id| word(id as u64)))
            }
            Distances::Dense(dense) => {
                let keys = &dense.keys[part.ids()];
                let null = keys.iter().position(|&key| key == 0);
                (null, keys.iter().map(|&key| word(u64::from(key))).collect())
            }
        };
        let nulls = words::null_at(null, words.len());
        words::column(key, words, nulls)
    }

    /// Forgets all keys, but not the range.
    pub(crate) fn clear(&mut self) {
        match &mut self.ids {
            Distances::Direct { top } => *top = 0,
            Distances::Dense(dense) => dense.clear(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match &self.ids {
            Distances::Direct { .. } => 0,
            Distances::Dense(dense) => dense.table.bytes() + dense.keys.capacity() * 4,
        }
    }
}

impl Dense {
    fn clear(&mut self) {
        if self.keys.len() < self.table.len() / CLEAR_EACH {
            let table = self.table.as_mut();
            self.keys.iter().for_each(|&distance| table[distance as usize] = 0);
        } else {
            self.table.clear(self.table.len());
        }
        self.keys.clear();
    }

    /// Replaces distances + 1 by ids.
    fn intern(&mut self, distances: &mut [u32]) -> Result<(), StateError> {
        room(self.keys.len(), distances.len())?;
        self.table.grow(1);
        let table = self.table.as_mut();
        for distance in distances {
            let entry = &mut table[*distance as usize];
            if *entry == 0 {
                self.keys.push(*distance);
                *entry = self.keys.len() as u32;
            }
            *distance = *entry - 1;
        }
        Ok(())
    }
}
