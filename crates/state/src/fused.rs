//! Rows whose groups are not looked for first: one loop reads them, finds their groups and updates
//! these.
//!
//! A column that is read for the first time comes from memory, at this many bytes in a cycle and no
//! more. Loops of which one checks times, one filters, one computes keys and one counts wait for it
//! one after the other, and what they compute is done while nothing is on its way. Here a block of
//! 64 rows goes through all of it before the next, so that the processor, which looks some hundred
//! instructions ahead, fetches one block while it works on another. Nothing is written but a
//! block's groups, and no batch is so large that what lies between two loops outgrows a cache.
//!
//! A loop ends in front of the first block of which a row is not as expected (a time before its
//! predecessor, a key that the table does not cover): from there on rows go the way of all others.
#![allow(unsafe_code)]

use std::array;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray};
use multiversion::multiversion;
use multiversion::target::target_cfg_f;

use crate::KeyMap;
use crate::kernel::{FAR_BYTES, prefetch_near};
use crate::vector::{Each, Eight, Four, MaskedStore, ascend};
use crate::words;

/// Rows of a block.
const BLOCK: usize = 64;

/// Rows without nulls as they were read, and what is to be done before they count.
#[derive(Debug, Clone, Copy)]
pub struct RawRows<'a> {
    /// A word for each row, of which its key is made.
    pub words: &'a [u64],
    /// How.
    pub key: &'a KeyOf,
    /// A bit for each row, the lowest first: whether it counts. Without them all do; behind the
    /// last row none is set.
    pub passes: Option<&'a [u64]>,
    /// The time of each row, if it is not known that they are in order.
    pub times: Option<Times<'a>>,
}

/// How the key of a row is made of its word.
#[derive(Debug, Clone)]
pub enum KeyOf {
    /// It is the word.
    Word,
    /// It is a quotient of the word.
    Scaled(Scale),
    /// A table has it beside the word, and a row whose word it does not have does not count.
    Mapped(Arc<KeyMap>),
}

/// A key from a word: `word * factor >> shift`, of words below 2³¹ only. So a column is divided by
/// a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// The factor of words.
    pub factor: u32,
    /// By how many bits the product is shifted to the right.
    pub shift: u32,
}

/// Times of rows, each of which should be at or after the one before it.
#[derive(Debug, Clone, Copy)]
pub struct Times<'a> {
    /// One for each row.
    pub each: &'a [i64],
    /// None should be after this.
    pub last: i64,
}

/// How far rows were folded in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumedRows {
    /// Rows, from the first on.
    pub rows: usize,
    /// Those of them that count.
    pub passed: usize,
    /// Those that do not only because a table does not have their words.
    pub missed: usize,
    /// A bound on their groups.
    pub(crate) reach: u32,
}

/// Rows of which each is of the group that is the distance of its key from a base, plus one, if
/// that distance is below a limit.
#[derive(Debug, Clone, Copy)]
pub struct DenseRows<'a> {
    pub(crate) rows: RawRows<'a>,
    /// The base of distances.
    pub(crate) base: u64,
    /// A power of two.
    pub(crate) limit: u64,
}

impl<'a> RawRows<'a> {
    /// Rows in order that all count, by their keys.
    pub(crate) fn of(words: &'a [u64]) -> Self {
        Self { words, key: &KeyOf::Word, passes: None, times: None }
    }

    /// The same, of a column of keys; `None` if it has nulls or is not one of words as it stands.
    pub fn of_column(keys: &'a ArrayRef) -> Option<Self> {
        words::same(keys).filter(|_| keys.null_count() == 0).map(Self::of)
    }

    /// Whether words are keys, and all rows count.
    pub(crate) fn are_plain(&self) -> bool {
        matches!(self.key, KeyOf::Word) && self.passes.is_none()
    }

    fn are_even(&self) -> bool {
        let len = self.words.len();
        self.times.is_none_or(|times| times.each.len() == len)
            && self.passes.is_none_or(|passes| passes.len() == len.div_ceil(BLOCK))
    }
}

impl Scale {
    /// The key of a word below 2³¹.
    #[inline(always)]
    pub fn of(self, word: u64) -> u64 {
        (u64::from(word as u32) * u64::from(self.factor)) >> self.shift
    }
}

impl Times<'_> {
    /// The first, and what none should be after.
    pub fn span(&self) -> Option<(i64, i64)> {
        self.each.first().map(|&first| (first, self.last))
    }

    /// Whether the times of rows, and the one behind them, are as they should be.
    #[inline(always)]
    fn fit(&self, rows: Range<usize>) -> bool {
        let behind = self.each.len().min(rows.end + 1);
        let before = rows.end.checked_sub(1).is_none_or(|row| self.each[row] <= self.last);
        before && ascend::<true>(&self.each[rows.start..behind])
    }
}

/// [`Times::fit`], for a loop that is compiled for any processor.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn fit(times: &Times<'_>, rows: Range<usize>) -> bool {
    times.fit(rows)
}

impl<'a> DenseRows<'a> {
    /// The values of the only argument, one for each row, of rows that all count and whose words
    /// are their keys.
    pub(crate) fn values<'b, T: ArrowPrimitiveType>(
        &self,
        args: &'b [ArrayRef],
    ) -> Option<&'b [T::Native]> {
        let [values] = args else { return None };
        let values = values.as_primitive_opt::<T>()?.values();
        (self.rows.are_plain() && values.len() == self.rows.words.len()).then_some(values)
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.rows.words.len()
    }

    /// How many groups a table of `S` has that covers all, if a cache holds it.
    pub(crate) fn total_of<S>(&self) -> Option<usize> {
        let total = self.limit as usize + 1;
        (total.saturating_mul(size_of::<S>()) <= FAR_BYTES).then_some(total)
    }
}

/// How a loop comes from a word to the slot of its group: by a number, which is computed of eight
/// words at once.
trait Find: Copy {
    /// Whether each number has a slot, and not only one below [`DenseRows::limit`].
    const IS_TOTAL: bool = false;

    fn number(self, word: u64) -> u64;

    /// Of a number that has one its slot, which is at most [`DenseRows::limit`].
    #[inline(always)]
    fn slot(self, number: u64) -> usize {
        number as usize + 1
    }
}

/// By the distance from this base.
#[derive(Clone, Copy)]
struct ByWord<'a>(&'a DenseRows<'a>);

/// By the distance of a quotient.
#[derive(Clone, Copy)]
struct ByQuotient<'a>(&'a DenseRows<'a>, Scale);

/// By what a table has beside the word: behind a slot for words that it does not have.
#[derive(Clone, Copy)]
struct ByMap<'a> {
    /// The fields of the map.
    first: u64,
    keys: &'a [u32],
    /// The slot for words that it does not have.
    miss: usize,
}

impl Find for ByWord<'_> {
    #[inline(always)]
    fn number(self, word: u64) -> u64 {
        word.wrapping_sub(self.0.base)
    }
}

impl Find for ByQuotient<'_> {
    #[inline(always)]
    fn number(self, word: u64) -> u64 {
        let distance = self.1.of(word).wrapping_sub(self.0.base);
        // Beyond every limit where there is no quotient.
        if word < 1 << 31 { distance } else { u64::MAX }
    }
}

impl<'a> ByMap<'a> {
    /// `None` if not all keys of the map have slots.
    fn new(map: &'a KeyMap, near: &DenseRows<'_>) -> Option<Self> {
        let miss = map.shift(near.base, near.limit)? as usize;
        Some(Self { first: map.first, keys: &map.keys, miss })
    }
}

impl Find for ByMap<'_> {
    const IS_TOTAL: bool = true;

    #[inline(always)]
    fn number(self, word: u64) -> u64 {
        // The last is that of no word.
        word.wrapping_sub(self.first).min(self.keys.len() as u64 - 1)
    }

    /// At most the limit, as [`KeyMap::shift`] has looked.
    #[inline(always)]
    fn slot(self, number: u64) -> usize {
        self.miss + self.keys[number as usize] as usize
    }
}

/// Applies `f(slot of the row's group, value of the row)` to each row.
///
/// # Panics
/// If `table` does not cover what `near` does, or `values` has another length than its words; if
/// those are not keys, or not all rows count.
#[inline]
pub(crate) fn scatter<S, V: Copy>(
    table: &mut [S],
    near: &DenseRows<'_>,
    values: &[V],
    mut f: impl FnMut(&mut S, V),
) -> ConsumedRows {
    let &DenseRows { rows: RawRows { words, times, .. }, base, limit } = near;
    assert!(limit.is_power_of_two() && limit < table.len() as u64 && words.len() == values.len());
    assert!(near.rows.are_plain() && near.rows.are_even());
    let (mut taken, mut any) = (0, 0);
    'blocks: for (words, values) in words.chunks(BLOCK).zip(values.chunks(BLOCK)) {
        if times.is_some_and(|times| !fit(&times, taken..taken + words.len())) {
            break;
        }
        let (eights, few) = words.as_chunks::<8>();
        let (of_eights, of_few) = values.as_chunks::<8>();
        for (eight, of_eight) in eights.iter().zip(of_eights) {
            prefetch_near(eight);
            prefetch_near(of_eight);
            let distances = eight.map(|word| word.wrapping_sub(base));
            let all = distances.iter().fold(0, |all, distance| all | distance);
            // As the limit is a power of two, all are below it exactly if their disjunction is.
            if all >= limit {
                break 'blocks;
            }
            any |= all;
            for (&distance, &value) in distances.iter().zip(of_eight) {
                // SAFETY: `distance + 1 <= limit < table.len()`: the comparison and the assertion
                // above.
                f(unsafe { table.get_unchecked_mut(distance as usize + 1) }, value);
            }
            taken += 8;
        }
        for (&word, &value) in few.iter().zip(of_few) {
            let distance = word.wrapping_sub(base);
            if distance >= limit {
                break 'blocks;
            }
            any |= distance;
            f(&mut table[distance as usize + 1], value);
            taken += 1;
        }
    }
    ConsumedRows { rows: taken, passed: taken, missed: 0, reach: any as u32 + 1 }
}

/// Counts the rows that count, `lanes` tables side by side in `tables` (one or four, in turns): a
/// group that occurs often is not incremented at the same address twice in a row, which would wait
/// for the store before it.
///
/// # Panics
/// If a table does not cover what `near` does.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+popcnt", "x86_64+avx2+popcnt"))]
pub(crate) fn count(tables: &mut [u32], lanes: usize, near: &DenseRows<'_>) -> ConsumedRows {
    #[cfg(target_arch = "x86_64")]
    if target_cfg_f!(target_feature = "avx512f") {
        return count_by::<Eight>(tables, lanes, near);
    }
    #[cfg(target_arch = "x86_64")]
    if target_cfg_f!(target_feature = "avx2") {
        return count_by::<Four>(tables, lanes, near);
    }
    count_by::<Each>(tables, lanes, near)
}

#[inline(always)]
fn count_by<S: MaskedStore>(
    tables: &mut [u32],
    lanes: usize,
    near: &DenseRows<'_>,
) -> ConsumedRows {
    match near.rows.key {
        KeyOf::Word => count_of::<S, _>(tables, lanes, near, ByWord(near)),
        KeyOf::Scaled(scale) => count_of::<S, _>(tables, lanes, near, ByQuotient(near, *scale)),
        KeyOf::Mapped(map) => match ByMap::new(map, near) {
            Some(find) => {
                let reach = find.miss as u32 + map.reach;
                ConsumedRows { reach, ..count_found::<S>(tables, lanes, near, find) }
            }
            None => ConsumedRows::default(),
        },
    }
}

/// [`count_of`] rows of which some may have no group: a slot counts them that belongs to the key
/// below all that the map has, and is as it was afterwards.
#[inline(always)]
fn count_found<S: MaskedStore>(
    tables: &mut [u32],
    lanes: usize,
    near: &DenseRows<'_>,
    find: ByMap<'_>,
) -> ConsumedRows {
    let width = tables.len() / lanes;
    let before: [u32; 4] = array::from_fn(|lane| tables[lane % lanes * width + find.miss]);
    let folded = count_of::<S, _>(tables, lanes, near, find);
    let mut missed = 0;
    for (lane, before) in before.into_iter().enumerate().take(lanes) {
        let slot = &mut tables[lane * width + find.miss];
        missed += slot.wrapping_sub(before) as usize;
        *slot = before;
    }
    ConsumedRows { passed: folded.passed - missed, missed, ..folded }
}

#[inline(always)]
fn count_of<S: MaskedStore, F: Find>(
    tables: &mut [u32],
    lanes: usize,
    near: &DenseRows<'_>,
    find: F,
) -> ConsumedRows {
    let &DenseRows { rows: RawRows { words, passes, times, .. }, limit, .. } = near;
    let width = tables.len() / lanes;
    assert!(lanes == 1 || lanes == 4);
    assert!(limit.is_power_of_two() && limit < width as u64 && near.rows.are_even());
    let step = if lanes == 4 { width } else { 0 };
    let mut ids = [0; BLOCK + 8];
    let (mut rows, mut passed, mut any) = (0, 0, 0);
    let (blocks, few) = words.as_chunks::<BLOCK>();
    let mut last = [0; BLOCK];
    last[..few.len()].copy_from_slice(few);
    for block in blocks.iter().chain((!few.is_empty()).then_some(&last)) {
        let end = words.len().min(rows + BLOCK);
        if times.is_some_and(|times| !times.fit(rows..end)) {
            break;
        }
        let all_of_it = u64::MAX >> (rows + BLOCK - end);
        let mask = passes.map_or(all_of_it, |passes| passes[rows / BLOCK] & all_of_it);
        let (mut count, mut alls) = (0, [0; 8]);
        for (mask, eight) in mask.to_le_bytes().into_iter().zip(block.as_chunks::<8>().0) {
            prefetch_near(eight);
            let numbers = eight.map(|word| find.number(word));
            for (lane, (all, &number)) in alls.iter_mut().zip(&numbers).enumerate() {
                *all |= if mask >> lane & 1 == 1 { number } else { 0 };
            }
            // SAFETY: who calls has asked for the processor. Each time at most eight are written,
            // of which as many stay as are in the mask: at most 64 together.
            unsafe { S::store(&numbers, mask, ids.as_mut_ptr().add(count)) };
            count += mask.count_ones() as usize;
        }
        let all = alls.iter().fold(0, |all, lane| all | lane);
        // As the limit is a power of two, all are below it exactly if their disjunction is.
        if !F::IS_TOTAL && all >= limit {
            break;
        }
        let (fours, rest) = ids[..count].as_chunks::<4>();
        for four in fours {
            for (lane, &id) in four.iter().enumerate() {
                // SAFETY: a slot is at most `limit`, and `(lanes - 1) * width + limit` is less than
                // `tables.len()`.
                unsafe { *tables.get_unchecked_mut(lane * step + find.slot(id)) += 1 };
            }
        }
        for &id in rest {
            tables[find.slot(id)] += 1;
        }
        (rows, passed, any) = (end, passed + count, any | all);
    }
    ConsumedRows { rows, passed, missed: 0, reach: any as u32 + 1 }
}

#[cfg(test)]
mod tests;
