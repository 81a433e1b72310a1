//! Rows whose groups are not looked for first: one loop reads them, finds their groups and updates
//! these.
//!
//! A column that is read for the first time comes from memory, at so many bytes in a cycle and no
//! more. Loops of which one checks times, one filters, one computes keys and one counts wait for it
//! one after the other, and what they compute is done while nothing is on its way. Here a block of
//! 64 rows goes through all of it before the next, so that the processor, which looks some hundred
//! instructions ahead, fetches one block while it works on another. Nothing is written but a
//! block's groups, and no batch is so large that what lies between two loops outgrows a cache.
//!
//! A loop ends in front of the first block of which a row is not as expected (a time before its
//! predecessor, a key that the table does not cover): from there on rows go the way of all others.
#![allow(unsafe_code)]

use std::ops::Range;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray};
use arrow::buffer::BooleanBuffer;
use arrow::util::bit_chunk_iterator::BitChunks;
use multiversion::multiversion;
use multiversion::target::target_cfg_f;

use crate::kernel::{FAR_BYTES, prefetch_near};
use crate::vector::{Each, Eight, Four, Store, ascend};
use crate::words;

/// Rows of a block.
const BLOCK: usize = 64;

/// Rows without nulls as they were read, and what is to be done before they count.
#[derive(Debug, Clone, Copy)]
pub struct RawRows<'a> {
    /// A word for each row, of which its key is made.
    pub words: &'a [u64],
    /// How: without it the word is the key.
    pub scale: Option<Scale>,
    /// Which rows count, if not all.
    pub passes: Option<&'a BooleanBuffer>,
    /// The time of each row, if it is not known that they are in order.
    pub times: Option<Times<'a>>,
}

/// A key from a word: `word * factor >> shift`, of words below 2³¹ only. So a column is divided by
/// a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    /// What words are multiplied by.
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
pub struct Folded {
    /// Rows, from the first on.
    pub rows: usize,
    /// Those of them that count.
    pub passed: usize,
    /// A bound on their groups.
    pub(crate) reach: u32,
}

/// Rows of which each is of the group that is the distance of its key from a base, plus one, if
/// that distance is below a limit.
#[derive(Debug, Clone, Copy)]
pub struct Near<'a> {
    pub(crate) rows: RawRows<'a>,
    /// What distances are counted from.
    pub(crate) base: u64,
    /// A power of two.
    pub(crate) limit: u64,
}

impl<'a> RawRows<'a> {
    /// Rows in order that all count, by their keys.
    pub(crate) fn of(words: &'a [u64]) -> Self {
        Self { words, scale: None, passes: None, times: None }
    }

    /// The same, of a column of keys; `None` if it has nulls or is not one of words as it stands.
    pub fn of_column(keys: &'a ArrayRef) -> Option<Self> {
        words::same(keys).filter(|_| keys.null_count() == 0).map(Self::of)
    }

    /// Whether words are keys, and all rows count.
    pub(crate) fn are_plain(&self) -> bool {
        self.scale.is_none() && self.passes.is_none()
    }

    fn are_even(&self) -> bool {
        let len = self.words.len();
        self.times.is_none_or(|times| times.each.len() == len)
            && self.passes.is_none_or(|passes| passes.len() == len)
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

impl<'a> Near<'a> {
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

    /// How far the key of a word is from the base: beyond every limit where there is no key.
    #[inline(always)]
    fn distance<const SCALED: bool>(&self, word: u64, scale: Scale) -> u64 {
        if !SCALED {
            return word.wrapping_sub(self.base);
        }
        let distance = scale.of(word).wrapping_sub(self.base);
        if word < 1 << 31 { distance } else { u64::MAX }
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
    near: &Near<'_>,
    values: &[V],
    mut f: impl FnMut(&mut S, V),
) -> Folded {
    let &Near { rows: RawRows { words, times, .. }, base, limit } = near;
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
    Folded { rows: taken, passed: taken, reach: any as u32 + 1 }
}

/// Counts the rows that count, `lanes` tables side by side in `tables` (one or four, in turns): a
/// group that occurs often is not incremented at the same address twice in a row, which would wait
/// for the store before it.
///
/// # Panics
/// If a table does not cover what `near` does.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+popcnt", "x86_64+avx2+popcnt"))]
pub(crate) fn count(tables: &mut [u32], lanes: usize, near: &Near<'_>) -> Folded {
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
fn count_by<S: Store>(tables: &mut [u32], lanes: usize, near: &Near<'_>) -> Folded {
    match near.rows.scale {
        None => count_of::<S, false>(tables, lanes, near, Scale { factor: 1, shift: 0 }),
        Some(scale) => count_of::<S, true>(tables, lanes, near, scale),
    }
}

#[inline(always)]
fn count_of<S: Store, const SCALED: bool>(
    tables: &mut [u32],
    lanes: usize,
    near: &Near<'_>,
    scale: Scale,
) -> Folded {
    let &Near { rows: RawRows { words, passes, times, .. }, limit, .. } = near;
    let width = tables.len() / lanes;
    assert!(lanes == 1 || lanes == 4);
    assert!(limit.is_power_of_two() && limit < width as u64 && near.rows.are_even());
    let step = if lanes == 4 { width } else { 0 };
    let bits = passes.map(BooleanBuffer::bit_chunks);
    let mut bits = bits.as_ref().map(BitChunks::iter_padded);
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
        let mask = match &mut bits {
            Some(bits) => bits.next().unwrap_or(0),
            None => u64::MAX >> (rows + BLOCK - end),
        };
        let (mut count, mut alls) = (0, [0; 8]);
        for (mask, eight) in mask.to_le_bytes().into_iter().zip(block.as_chunks::<8>().0) {
            prefetch_near(eight);
            let distances = eight.map(|word| near.distance::<SCALED>(word, scale));
            for (lane, (all, &distance)) in alls.iter_mut().zip(&distances).enumerate() {
                *all |= if mask >> lane & 1 == 1 { distance } else { 0 };
            }
            // SAFETY: who calls has asked for the processor. Each time at most eight are written,
            // of which as many stay as are in the mask: at most 64 together.
            unsafe { S::store(&distances, mask, ids.as_mut_ptr().add(count)) };
            count += mask.count_ones() as usize;
        }
        let all = alls.iter().fold(0, |all, lane| all | lane);
        // As the limit is a power of two, all are below it exactly if their disjunction is.
        if all >= limit {
            break;
        }
        let (fours, rest) = ids[..count].as_chunks::<4>();
        for four in fours {
            for (lane, &id) in four.iter().enumerate() {
                // SAFETY: `lane * step + id + 1 <= (lanes - 1) * width + limit < tables.len()`.
                unsafe { *tables.get_unchecked_mut(lane * step + id as usize + 1) += 1 };
            }
        }
        for &id in rest {
            tables[id as usize + 1] += 1;
        }
        (rows, passed, any) = (end, passed + count, any | all);
    }
    Folded { rows, passed, reach: any as u32 + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 64;
    const BASE: u64 = u64::MAX - 5;

    /// Where something is not as expected: the row, and what of it.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Odd {
        Nothing,
        Key(usize),
        Time(usize),
        Late(usize),
    }

    impl Odd {
        fn all(rows: usize) -> impl Iterator<Item = Self> {
            let each = (0..rows).step_by(1 + rows / 30);
            let odd = each.flat_map(|row| [Self::Key(row), Self::Time(row), Self::Late(row)]);
            odd.chain([Self::Nothing])
        }

        /// From which row on none may be taken.
        fn row(self) -> usize {
            match self {
                Self::Nothing => usize::MAX,
                Self::Key(row) | Self::Time(row) | Self::Late(row) => row,
            }
        }

        fn times(self, rows: usize) -> Vec<i64> {
            let mut times: Vec<i64> = (0..rows as i64).map(|row| row / 3).collect();
            match self {
                // The one behind the first row of a time is before it.
                Self::Time(row) => times[row] = -1,
                Self::Late(row) => times[row..].fill(i64::from(i32::MAX) + 1),
                Self::Nothing | Self::Key(_) => {}
            }
            times
        }
    }

    /// Numbers without a pattern.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            self.0 >> 33
        }
    }

    fn lengths() -> impl Iterator<Item = usize> {
        (0..20).chain([63, 64, 65, 127, 128, 130, 333])
    }

    #[test]
    fn groups_are_found_and_updated_up_to_the_first_row_that_is_odd() {
        for (rows, odd) in lengths().flat_map(|rows| Odd::all(rows).map(move |odd| (rows, odd))) {
            let key = |row: u64| BASE.wrapping_add(row * row % LIMIT);
            let mut words: Vec<u64> = (0..rows as u64).map(key).collect();
            if let Odd::Key(row) = odd {
                words[row] = BASE.wrapping_add(LIMIT);
            }
            let (values, times): (Vec<u64>, _) = ((0..rows as u64).collect(), odd.times(rows));
            let times = Some(Times { each: &times, last: i32::MAX.into() });
            // Nobody has to know of a first time that it is early.
            let (odd, times) =
                if odd == Odd::Time(0) { (Odd::Nothing, None) } else { (odd, times) };
            let rows_raw = RawRows { times, ..RawRows::of(&words) };
            let near = Near { rows: rows_raw, base: BASE, limit: LIMIT };
            let mut sums = [0u64; LIMIT as usize + 1];
            let folded = scatter(&mut sums, &near, &values, |slot, v| *slot += v + 1);
            let done = folded.rows;
            assert!(done <= rows.min(odd.row()) && done + 65 > rows.min(odd.row()), "{odd:?}");
            assert_eq!(folded.passed, done);
            let (mut expected, mut most) = ([0u64; LIMIT as usize + 1], 0);
            for (row, &value) in values[..done].iter().enumerate() {
                let id = row * row % LIMIT as usize + 1;
                expected[id] += value + 1;
                most = most.max(id as u32);
            }
            assert_eq!(sums, expected, "{done} of {rows}, {odd:?}");
            assert!((most..=LIMIT as u32).contains(&folded.reach), "{most} of {}", folded.reach);
        }
    }

    /// What is counted of rows, and how many, by a version.
    fn counted(
        near: &Near<'_>,
        count: fn(&mut [u32], usize, &Near<'_>) -> Folded,
    ) -> (Vec<u32>, Folded) {
        let width = 2 * LIMIT as usize;
        let mut one = vec![0; width];
        let folded = count(&mut one, 1, near);
        let mut four = vec![0; 4 * width];
        assert_eq!(count(&mut four, 4, near), folded);
        let sum = |id: usize| (0..4).map(|lane| four[lane * width + id]).sum::<u32>();
        assert_eq!((0..width).map(sum).collect::<Vec<_>>(), one);
        (one, folded)
    }

    /// Words of which keys are in reach, but for the odd one and those of rows that do not count.
    fn words(random: &mut Random, passes: &[bool], scale: Option<Scale>, odd: Odd) -> Vec<u64> {
        let mut word = |(row, &passes): (usize, &bool)| match (scale, passes) {
            (Some(_), _) if odd == Odd::Key(row) => [1 << 31, u64::MAX, 10 * LIMIT][row % 3],
            (None, _) if odd == Odd::Key(row) => BASE.wrapping_add(LIMIT << (row % 40)),
            (_, false) => random.next() << (row % 31),
            (None, true) => BASE.wrapping_add(random.next() % LIMIT),
            (Some(_), true) => random.next() % (10 * LIMIT),
        };
        passes.iter().enumerate().map(&mut word).collect()
    }

    #[test]
    fn rows_that_pass_are_counted_up_to_the_first_that_is_odd() {
        let ten = Scale { factor: 3_435_973_837, shift: 35 };
        let mut random = Random(1);
        for (rows, odd) in lengths().flat_map(|rows| Odd::all(rows).map(move |odd| (rows, odd))) {
            for (scale, sieve) in [(None, 1), (None, 2), (Some(ten), 1), (Some(ten), 3)] {
                let mut pass =
                    |row| sieve == 1 || odd.row() == row || random.next().is_multiple_of(sieve);
                let passes: Vec<bool> = (0..rows).map(&mut pass).collect();
                let words = words(&mut random, &passes, scale, odd);
                let base = if scale.is_some() { 0 } else { BASE };
                let times = odd.times(rows);
                // A mask that begins within a byte.
                let mask = [&[true; 3], &passes[..]].concat();
                let mask = BooleanBuffer::from(mask).slice(3, rows);
                let times = Times { each: &times, last: i32::MAX.into() };
                let checked = odd != Odd::Time(0);
                let near = Near {
                    rows: RawRows {
                        words: &words,
                        scale,
                        passes: (sieve > 1).then_some(&mask),
                        times: checked.then_some(times),
                    },
                    base,
                    limit: LIMIT,
                };
                let (counts, folded) = counted(&near, count);
                let end = if checked { rows.min(odd.row()) } else { rows };
                assert!(folded.rows <= end && folded.rows + 65 > end, "{} of {end}", folded.rows);
                let (mut expected, mut most) = (vec![0; counts.len()], 0);
                let key = |word: u64| scale.map_or(word, |scale| scale.of(word));
                for (&word, _) in words[..folded.rows].iter().zip(&passes).filter(|row| *row.1) {
                    let id = key(word).wrapping_sub(base) + 1;
                    (expected[id as usize], most) = (expected[id as usize] + 1, most.max(id));
                }
                assert_eq!(counts, expected, "{odd:?} of {rows}, {scale:?}, {sieve}");
                assert_eq!(folded.passed, counts.iter().sum::<u32>() as usize);
                assert!(most <= folded.reach.into() && u64::from(folded.reach) <= LIMIT);
                assert_eq!(counted(&near, count_by::<Each>), (counts.clone(), folded));
                #[cfg(target_arch = "x86_64")]
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
                    assert_eq!(counted(&near, count_by::<Four>), (counts, folded));
                }
            }
        }
    }
}
