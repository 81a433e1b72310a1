//! Filters of joins: the keys of a complete build, for the scans whose rows are looked up in it.
//!
//! ```text
//! build, complete ─▶ JoinFilter ─▶ JoinFilters ─▶ scan: row groups, pages and rows left out
//! ```
//!
//! A filter has the keys of all rows of the build: a filter of a part of them would drop rows that
//! have a partner. It holds the least and the greatest key, and one of these sets, unless that
//! would be larger than [`SET_BYTES_MAX`]:
//!
//! ```text
//! whole numbers and times, close together    a bit for each number from the least to the greatest,
//!                                            and a byte where these stay in a cache
//! other keys                                 a Bloom filter of twelve bits per key
//! ```
//!
//! A filter that drops few rows is given up: it is not evaluated any more, in none of the scans
//! that have it.
//!
//! A key that is NULL has no partner. Floating point numbers have no filter, since their order and
//! their equality are not those of a join's keys.

use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, make_comparator};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::compute::{SortOptions, cast, is_not_null};
use arrow::datatypes::{DataType, Int64Type};
use arrow::error::ArrowError;
use state::Partitioner;

use super::range::{ColumnRange, ColumnSummary, RangeEnd};

/// Bits of a Bloom filter per key.
const BITS_OF_KEY: u64 = 12;

/// The most bytes of the set of a filter: a build with more keys has only its least and greatest.
const SET_BYTES_MAX: u64 = 1 << 20;

/// Numbers from the least key to the greatest up to which a set has a byte for each: they are found
/// in half the time of bits as long as the second cache of a processor holds them.
const NEAR_NUMBERS_MAX: u64 = 256 << 10;

/// Rows after which a filter is given up if it has dropped less than one row in [`DROPPED_MIN`].
const TRIED_ROWS: u64 = 65_536;
const DROPPED_MIN: u64 = 4;

/// The words of a block of a Bloom filter. A key sets one bit in each word of one block.
const BLOCK_WORDS: usize = 4;

/// The keys of a complete build.
#[derive(Debug)]
pub struct JoinFilter {
    data_type: DataType,
    /// The least and the greatest key; `None` if there is no key.
    ends: Option<[ArrayRef; 2]>,
    set: KeySet,
    /// Rows that were compared with it, and dropped.
    seen: AtomicU64,
    dropped: AtomicU64,
}

/// The keys between the least and the greatest.
#[derive(Debug)]
enum KeySet {
    /// They are not known.
    Any,
    /// A bit for each number from `least` on, and a byte unless they are more than
    /// [`NEAR_NUMBERS_MAX`].
    Numbers { least: i64, bits: Vec<u64>, bytes: Vec<u8> },
    /// A Bloom filter.
    Bloom(Vec<[u64; BLOCK_WORDS]>),
}

impl JoinFilter {
    /// The filter of the keys of all rows of a build, in columns of one type; `None` if keys of
    /// that type have none.
    ///
    /// # Errors
    /// When Arrow cannot compare keys of that type.
    pub fn new(keys: &[ArrayRef]) -> Result<Option<Self>, ArrowError> {
        let Some(data_type) = keys.first().map(|key| key.data_type()) else { return Ok(None) };
        let differs = keys.iter().any(|key| key.data_type() != data_type);
        if differs || data_type.is_floating() || data_type.is_nested() || data_type.is_null() {
            return Ok(None);
        }
        let mut ends: Option<[ArrayRef; 2]> = None;
        for key in keys {
            let Some([least, greatest]) = ends_of(key)? else { continue };
            ends = Some(match ends {
                None => [least, greatest],
                Some([a, b]) => [
                    if is_less(&least, &a)? { least } else { a },
                    if is_less(&b, &greatest)? { greatest } else { b },
                ],
            });
        }
        let rows: u64 = keys.iter().map(|key| (key.len() - key.null_count()) as u64).sum();
        let set = match &ends {
            None => KeySet::Any,
            Some(ends) => KeySet::numbers(ends, keys).unwrap_or_else(|| KeySet::bloom(keys, rows)),
        };
        let (data_type, [seen, dropped]) = (data_type.clone(), Default::default());
        Ok(Some(Self { data_type, ends, set, seen, dropped }))
    }

    /// Whether it drops so few rows that it costs more than it saves.
    pub(super) fn is_in_vain(&self) -> bool {
        let [seen, dropped] = [&self.seen, &self.dropped].map(|of| of.load(Ordering::Relaxed));
        seen >= TRIED_ROWS && dropped < seen / DROPPED_MIN
    }

    /// From the least to the greatest key; `None` if there is no key: no row has a partner.
    fn range(&self) -> Option<ColumnRange> {
        let end = |value: &ArrayRef| Some(RangeEnd { value: value.clone(), inclusive: true });
        let [least, greatest] = self.ends.as_ref()?;
        Some(ColumnRange { column: 0, from: end(least), to: end(greatest) })
    }

    /// Whether some row of a column with these statistics may have a key of the build.
    pub(super) fn may_match(&self, of: &ColumnSummary) -> bool {
        let Some(range) = self.range() else { return false };
        let may_have = || range.only().is_none_or(|value| of.may_be_member(value));
        of.may_have_values() && range.may_overlap(of) && may_have() && self.set.may_have_within(of)
    }

    /// The rows of a column whose key may be in the build: all of them if the column is of another
    /// type, or if the filter has dropped few rows so far.
    ///
    /// # Errors
    /// When Arrow cannot compare the values.
    pub fn matches(&self, column: &ArrayRef) -> Result<BooleanBuffer, ArrowError> {
        if *column.data_type() != self.data_type || self.is_in_vain() {
            return Ok(BooleanBuffer::new_set(column.len()));
        }
        let found = self.found(column)?;
        let dropped = column.len() - found.count_set_bits();
        self.seen.fetch_add(column.len() as u64, Ordering::Relaxed);
        self.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        Ok(found)
    }

    /// The rows of a column whose key may be in the build.
    fn found(&self, column: &ArrayRef) -> Result<BooleanBuffer, ArrowError> {
        let Some(range) = self.range() else {
            return Ok(BooleanBuffer::new_unset(column.len()));
        };
        match &self.set {
            KeySet::Any => range.matches(column),
            KeySet::Numbers { least, bits, bytes } => numbers_in(column, *least, bits, bytes),
            KeySet::Bloom(blocks) => {
                let within = range.matches(column)?;
                let Some(hashes) = (within.count_set_bits() > 0).then(|| hashes(column)).flatten()
                else {
                    return Ok(within);
                };
                Ok(BooleanBuffer::collect_bool(column.len(), |row| {
                    let (block, bits) = place(hashes[row], blocks.len());
                    let is_set = |(word, bit): (&u64, u64)| word & bit != 0;
                    within.value(row) && blocks[block].iter().zip(bits).all(is_set)
                }))
            }
        }
    }
}

impl KeySet {
    /// A bit for each number between the ends, if there are not too many.
    fn numbers(ends: &[ArrayRef; 2], keys: &[ArrayRef]) -> Option<Self> {
        let number = |of: &ArrayRef| {
            let number = whole_numbers(of)?;
            Some(number.as_primitive::<Int64Type>().value(0))
        };
        let [Some(least), Some(greatest)] = ends.each_ref().map(number) else { return None };
        let span = (i128::from(greatest) - i128::from(least)) as u64;
        if span / 8 >= SET_BYTES_MAX {
            return None;
        }
        let mut bits = vec![0; (span / 64 + 1) as usize];
        for key in keys {
            for number in whole_numbers(key)?.as_primitive::<Int64Type>().iter().flatten() {
                let at = number.wrapping_sub(least) as u64;
                bits[(at / 64) as usize] |= 1 << (at % 64);
            }
        }
        let is_set = |at: u64| (bits[(at / 64) as usize] >> (at % 64) & 1) as u8;
        let bytes = (span < NEAR_NUMBERS_MAX).then(|| (0..=span).map(is_set).collect());
        let bytes = bytes.unwrap_or_default();
        Some(Self::Numbers { least, bits, bytes })
    }

    /// Whether it may have a key within the bounds of a column.
    fn may_have_within(&self, of: &ColumnSummary) -> bool {
        let Self::Numbers { least, bits, .. } = self else { return true };
        let number = |value: &Option<ArrayRef>| {
            let numbers = whole_numbers(value.as_ref()?)?;
            Some(i128::from(numbers.as_primitive::<Int64Type>().value(0)) - i128::from(*least))
        };
        let (Some(from), Some(to)) = (number(&of.least), number(&of.greatest)) else { return true };
        let (from, to) = (from.max(0), to.min(bits.len() as i128 * 64 - 1));
        let is_set = |at: i128| bits[(at / 64) as usize] >> (at % 64) & 1 != 0;
        // Words without a key are passed as wholes.
        let mut at = from;
        while at <= to {
            if at % 64 == 0 && bits[(at / 64) as usize] == 0 {
                at += 64;
            } else if is_set(at) {
                return true;
            } else {
                at += 1;
            }
        }
        false
    }

    /// A Bloom filter, if it is not too large and the keys can be hashed.
    fn bloom(keys: &[ArrayRef], rows: u64) -> Self {
        let blocks = (rows * BITS_OF_KEY).div_ceil(64 * BLOCK_WORDS as u64).max(1);
        if blocks * 8 * BLOCK_WORDS as u64 > SET_BYTES_MAX {
            return Self::Any;
        }
        let mut words = vec![[0; BLOCK_WORDS]; blocks as usize];
        for key in keys {
            let Some(hashes) = hashes(key) else { return Self::Any };
            let valid = key.logical_nulls();
            let is_valid = |row: usize| valid.as_ref().is_none_or(|valid| valid.is_valid(row));
            for (_, hash) in hashes.into_iter().enumerate().filter(|(row, _)| is_valid(*row)) {
                let (block, bits) = place(hash, words.len());
                words[block].iter_mut().zip(bits).for_each(|(word, bit)| *word |= bit);
            }
        }
        Self::Bloom(words)
    }
}

/// A column of whole numbers or times as numbers of 64 bits; `None` if it is neither.
fn whole_numbers(column: &ArrayRef) -> Option<ArrayRef> {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp, UInt64};
    let of = column.data_type();
    let is_time = matches!(of, Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..));
    let fits = is_time || of.is_integer() && *of != UInt64;
    if !fits {
        return None;
    }
    match of {
        // Arrow has no cast from each time to 64 bits.
        Date32 | Time32(_) => cast(&cast(column, &DataType::Int32).ok()?, &DataType::Int64).ok(),
        _ => cast(column, &DataType::Int64).ok(),
    }
}

/// The rows of a column whose number is in a set that has a bit for each number from `least` on
/// and, unless there are too many, a byte in `bytes`.
fn numbers_in(
    column: &ArrayRef,
    least: i64,
    bits: &[u64],
    bytes: &[u8],
) -> Result<BooleanBuffer, ArrowError> {
    use DataType::{Date32, Date64, Int32, Int64, Time32, Time64, Timestamp};
    let (data, rows) = (column.to_data(), column.len());
    let found = match column.data_type() {
        Int32 | Date32 | Time32(_) => found(&data.buffer::<i32>(0)[..rows], least, bits, bytes),
        Int64 | Date64 | Time64(_) | Timestamp(..) => {
            found(&data.buffer::<i64>(0)[..rows], least, bits, bytes)
        }
        _ => match whole_numbers(column) {
            Some(numbers) => {
                found(numbers.as_primitive::<Int64Type>().values(), least, bits, bytes)
            }
            None => return Ok(BooleanBuffer::new_set(rows)),
        },
    };
    Ok(match column.nulls() {
        Some(valid) => &found & valid.inner(),
        None => found,
    })
}

/// The numbers that are in such a set.
fn found<N: Copy + Into<i64>>(
    numbers: &[N],
    least: i64,
    bits: &[u64],
    bytes: &[u8],
) -> BooleanBuffer {
    let at = |number: N| number.into().wrapping_sub(least) as u64;
    if bytes.is_empty() {
        let word = |at: u64| bits.get((at / 64) as usize).copied().unwrap_or(0);
        tested(numbers, |number| (word(at(number)) >> (at(number) % 64) & 1) as u8)
    } else {
        tested(numbers, |number| bytes.get(at(number) as usize).copied().unwrap_or(0))
    }
}

/// The values for which a test gives 1 and not 0, eight at a time: shifts by constants are cheap.
fn tested<N: Copy>(values: &[N], test: impl Fn(N) -> u8) -> BooleanBuffer {
    let (wholes, rest) = values.as_chunks::<8>();
    let mut bytes: Vec<u8> = Vec::with_capacity(wholes.len() + 1);
    bytes.extend(wholes.iter().map(|&[a, b, c, d, e, f, g, h]| {
        let low = test(a) | test(b) << 1 | test(c) << 2 | test(d) << 3;
        low | test(e) << 4 | test(f) << 5 | test(g) << 6 | test(h) << 7
    }));
    if !rest.is_empty() {
        bytes.push(rest.iter().rev().fold(0, |byte, &value| byte << 1 | test(value)));
    }
    BooleanBuffer::new(Buffer::from_vec(bytes), 0, values.len())
}

fn is_less(a: &ArrayRef, b: &ArrayRef) -> Result<bool, ArrowError> {
    Ok(make_comparator(a, b, SortOptions::default())?(0, 0).is_lt())
}

/// The least and the greatest value of a column, if it has values.
fn ends_of(column: &ArrayRef) -> Result<Option<[ArrayRef; 2]>, ArrowError> {
    let order = make_comparator(column, column, SortOptions::default())?;
    let valid = is_not_null(column)?;
    let mut ends: Option<[usize; 2]> = None;
    for row in (0..column.len()).filter(|row| valid.value(*row)) {
        let [least, greatest] = ends.unwrap_or([row; 2]);
        let less = if order(row, least).is_lt() { row } else { least };
        let greater = if order(row, greatest).is_gt() { row } else { greatest };
        ends = Some([less, greater]);
    }
    Ok(ends.map(|ends| ends.map(|row| column.slice(row, 1))))
}

/// The hashes of the values of a column, if they can be hashed.
fn hashes(column: &ArrayRef) -> Option<Vec<u64>> {
    // With one owner it would hash nothing.
    let (mut partitioner, mut owners) = (Partitioner::new(2), vec![]);
    partitioner.owners_of(std::slice::from_ref(column), &mut owners).ok()?;
    Some(partitioner.hashes().to_vec())
}

/// The block of a hash, and its bit in each word of the block.
fn place(hash: u64, blocks: usize) -> (usize, [u64; BLOCK_WORDS]) {
    let block = (u128::from(hash) * blocks as u128) >> 64;
    let bits = std::array::from_fn(|word| 1 << (hash >> (6 * word) & 63));
    (block as usize, bits)
}

#[cfg(test)]
mod tests;
