//! Filters of joins: a finished build announces its keys to the scans of the probe side.
//!
//! ```text
//! build, complete ─▶ JoinFilter ─▶ JoinFilters ─▶ scan: row groups, pages and rows left out
//! ```
//!
//! A filter has the keys of the complete build: a filter of a part of it would drop rows that have
//! a partner. It holds the least and the greatest key, and a Bloom filter of twelve bits per key
//! unless that would be too large. A key that is NULL has no partner.

use arrow::array::{Array, ArrayRef, make_comparator};
use arrow::buffer::BooleanBuffer;
use arrow::compute::SortOptions;
use arrow::error::ArrowError;
use state::Partitioner;

use super::range::{ColumnRange, RangeEnd};

/// Bits of a Bloom filter per key.
const BITS_OF_KEY: u64 = 12;

/// The most bytes of a Bloom filter: a build with more keys has none.
const BLOOM_BYTES_MAX: u64 = 1 << 20;

/// The words of a block. A key sets bits in one block, one bit in each of its words.
const BLOCK_WORDS: usize = 4;

/// The keys of a complete build.
#[derive(Debug)]
pub struct JoinFilter {
    /// The least and the greatest key; none if there is no key.
    ends: Option<[ArrayRef; 2]>,
    bloom: Option<Vec<[u64; BLOCK_WORDS]>>,
}

impl JoinFilter {
    /// The filter of the keys of all rows of a build, in columns of one type; `None` if the order
    /// of keys of that type is not the order of statistics in files.
    ///
    /// # Errors
    /// When keys of that type cannot be hashed.
    pub fn new(keys: &[ArrayRef]) -> Result<Option<Self>, ArrowError> {
        let of_floats = |key: &ArrayRef| key.data_type().is_floating();
        if keys.iter().any(|key| of_floats(key) || key.data_type().is_nested()) {
            return Ok(None);
        }
        let mut ends: Option<[ArrayRef; 2]> = None;
        for key in keys {
            let Some([least, greatest]) = ends_of(key)? else { continue };
            ends = Some(match ends {
                None => [least, greatest],
                Some([a, b]) => {
                    let order = |a: &ArrayRef, b: &ArrayRef| {
                        Ok::<_, ArrowError>(make_comparator(a, b, SortOptions::default())?(0, 0))
                    };
                    let least = if order(&least, &a)?.is_lt() { least } else { a };
                    let greatest = if order(&greatest, &b)?.is_gt() { greatest } else { b };
                    [least, greatest]
                }
            });
        }
        let rows: u64 = keys.iter().map(|key| (key.len() - key.null_count()) as u64).sum();
        let blocks = (rows * BITS_OF_KEY).div_ceil(64 * BLOCK_WORDS as u64).max(1);
        let mut bloom = None;
        if blocks * 8 * BLOCK_WORDS as u64 <= BLOOM_BYTES_MAX {
            let mut words = vec![[0; BLOCK_WORDS]; blocks as usize];
            for key in keys {
                let hashes = hashes(key)?;
                for row in (0..key.len()).filter(|row| key.is_valid(*row)) {
                    let (block, bits) = place(hashes[row], words.len());
                    for (word, bit) in words[block].iter_mut().zip(bits) {
                        *word |= bit;
                    }
                }
            }
            bloom = Some(words);
        }
        Ok(Some(Self { ends, bloom }))
    }

    /// The range of the keys, for a column; `None` if there is no key: no row has a partner.
    pub(super) fn range(&self, column: usize) -> Option<ColumnRange> {
        let end = |value: &ArrayRef| Some(RangeEnd { value: value.clone(), inclusive: true });
        let [least, greatest] = self.ends.as_ref()?;
        Some(ColumnRange { column, from: end(least), to: end(greatest) })
    }

    /// The rows of a column whose key may be in the build.
    pub(super) fn matches(&self, column: &ArrayRef) -> Result<BooleanBuffer, ArrowError> {
        let Some(range) = self.range(0) else {
            return Ok(BooleanBuffer::new_unset(column.len()));
        };
        let within = range.matches(column)?;
        let Some(bloom) = self.bloom.as_ref().filter(|_| within.count_set_bits() > 0) else {
            return Ok(within);
        };
        let hashes = hashes(column)?;
        Ok(BooleanBuffer::collect_bool(column.len(), |row| {
            within.value(row) && {
                let (block, bits) = place(hashes[row], bloom.len());
                bloom[block].iter().zip(bits).all(|(word, bit)| word & bit != 0)
            }
        }))
    }
}

/// The least and the greatest value of a column, if it has values.
fn ends_of(column: &ArrayRef) -> Result<Option<[ArrayRef; 2]>, ArrowError> {
    let order = make_comparator(column, column, SortOptions::default())?;
    let mut ends: Option<[usize; 2]> = None;
    for row in (0..column.len()).filter(|row| column.is_valid(*row)) {
        let [least, greatest] = ends.unwrap_or([row; 2]);
        let less = if order(row, least).is_lt() { row } else { least };
        let greater = if order(row, greatest).is_gt() { row } else { greatest };
        ends = Some([less, greater]);
    }
    Ok(ends.map(|ends| ends.map(|row| column.slice(row, 1))))
}

fn hashes(column: &ArrayRef) -> Result<Vec<u64>, ArrowError> {
    // With one owner it would hash nothing.
    let (mut partitioner, mut owners) = (Partitioner::new(2), vec![]);
    let hashed = partitioner.owners_of(std::slice::from_ref(column), &mut owners);
    hashed.map_err(|error| ArrowError::ExternalError(Box::new(error)))?;
    Ok(partitioner.hashes().to_vec())
}

/// The block of a hash, and its bit in each word of the block.
fn place(hash: u64, blocks: usize) -> (usize, [u64; BLOCK_WORDS]) {
    let block = (u128::from(hash) * blocks as u128) >> 64;
    let bits = std::array::from_fn(|word| 1 << (hash >> (6 * word) & 63));
    (block as usize, bits)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array};

    use super::*;

    fn numbers(of: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
        Arc::new(of.into_iter().collect::<Int64Array>())
    }

    fn matching(filter: &JoinFilter, column: &ArrayRef) -> usize {
        filter.matches(column).unwrap().count_set_bits()
    }

    #[test]
    fn no_key_of_the_build_is_dropped_and_few_others_pass() {
        let keys = [numbers((0..5_000).map(|n| Some(n * 7))), numbers([None, Some(-50)])];
        let filter = JoinFilter::new(&keys).unwrap().unwrap();
        assert_eq!(matching(&filter, &keys[0]), 5_000);
        assert_eq!(matching(&filter, &keys[1]), 1, "NULL has no partner");
        let others = numbers((0..5_000).map(|n| Some(n * 7 + 3)));
        let passed = matching(&filter, &others);
        assert!(passed < 400, "{passed} of 5,000");
        assert_eq!(matching(&filter, &numbers([Some(-51), Some(35_000)])), 0, "beyond the ends");
    }

    #[test]
    fn an_empty_build_lets_nothing_pass_and_floats_have_no_filter() {
        let filter = JoinFilter::new(&[numbers([None])]).unwrap().unwrap();
        assert_eq!(matching(&filter, &numbers([Some(1), None])), 0);
        assert!(filter.range(0).is_none());
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        assert!(JoinFilter::new(&[floats]).unwrap().is_none());
    }

    #[test]
    fn a_large_build_has_its_ends_alone() {
        let keys = numbers((0..1_000_000).map(|n| Some(n * 2)));
        let filter = JoinFilter::new(&[keys]).unwrap().unwrap();
        let others = numbers([Some(-1), Some(1), Some(1_999_999)]);
        assert_eq!(matching(&filter, &others), 1);
    }
}
