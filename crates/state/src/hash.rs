//! One hash without a seed, equal on every platform: it decides which node leads a key, so nodes
//! must agree on it.
//!
//! It multiplies 64 by 64 bits and folds the product, which mixes all input bits into all output
//! bits in one step. It is no defence against chosen keys: somebody who can choose keys can make
//! one node or one bucket busy.

pub(crate) const A: u64 = 0x9e37_79b9_7f4a_7c15;
pub(crate) const B: u64 = 0xd6e8_feb8_6659_fd93;
pub(crate) const C: u64 = 0xa076_1d64_78bd_642f;

/// The hash of a null.
pub(crate) const NULL: u64 = 0x2545_f491_4f6c_dd1d;

/// The product of `a` and `b`, folded.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The same of products of halves, for vectors: they multiply no more than 32 bits by 32. A product
/// of halves has room for one half more, so that what is carried is added to the next product.
#[inline(always)]
fn fold_of_halves(a: u64, b: u64) -> u64 {
    const LOW: u64 = 0xffff_ffff;
    let low = (a & LOW) * (b & LOW);
    let one = (a & LOW) * (b >> 32) + (low >> 32);
    let other = (a >> 32) * (b & LOW) + (one & LOW);
    let above = (a >> 32) * (b >> 32) + (one >> 32) + (other >> 32);
    (low & LOW | other << 32) ^ above
}

/// [`word`], where `HALVES` by products of halves.
#[inline(always)]
pub(crate) fn word_by<const HALVES: bool>(word: u64) -> u64 {
    if HALVES { fold_of_halves(word ^ A, B) } else { fold(word ^ A, B) }
}

/// [`combine`], where `HALVES` by products of halves.
#[inline(always)]
pub(crate) fn combine_by<const HALVES: bool>(row: u64, column: u64) -> u64 {
    if HALVES { fold_of_halves(row ^ A, column ^ C) } else { fold(row ^ A, column ^ C) }
}

/// The hash of a word.
#[inline(always)]
pub(crate) fn word(word: u64) -> u64 {
    word_by::<false>(word)
}

/// The hash of two words.
#[inline(always)]
pub(crate) fn wide(word: u128) -> u64 {
    fold(fold(word as u64 ^ A, B) ^ (word >> 64) as u64, C)
}

/// The hash of a row of which `row` hashes the columns so far and `column` the next.
#[inline(always)]
pub(crate) fn combine(row: u64, column: u64) -> u64 {
    combine_by::<false>(row, column)
}

/// The hash of a string of bytes.
#[inline]
pub(crate) fn bytes(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let (a, b) = match len {
        0 => (0, 0),
        1..4 => {
            let (first, middle, last) = (bytes[0], bytes[len / 2], bytes[len - 1]);
            (u64::from(first) << 16 | u64::from(middle) << 8 | u64::from(last), 0)
        }
        4..8 => (u64::from(half(bytes, 0)), u64::from(half(bytes, len - 4))),
        8..=16 => (full(bytes, 0), full(bytes, len - 8)),
        _ => {
            let mut hash = B;
            let mut at = 0;
            while at + 16 < len {
                hash = fold(full(bytes, at) ^ A, full(bytes, at + 8) ^ hash);
                at += 16;
            }
            (full(bytes, len - 16) ^ hash, full(bytes, len - 8))
        }
    };
    fold(fold(a ^ A, b ^ B) ^ len as u64, C)
}

/// Four bytes from `at` on.
#[inline(always)]
pub(crate) fn half(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

/// Eight bytes from `at` on.
#[inline(always)]
pub(crate) fn full(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn strings_that_differ_hash_apart() {
        let text: Vec<u8> = (0..200u8).map(|i| i.wrapping_mul(37)).collect();
        let mut seen = HashSet::new();
        for len in 0..text.len() {
            assert!(seen.insert(bytes(&text[..len])), "prefix of {len}");
            let mut one_off = text[..len].to_vec();
            for at in 0..len {
                one_off[at] ^= 1;
                assert!(seen.insert(bytes(&one_off)), "prefix of {len} with byte {at} changed");
                one_off[at] ^= 1;
            }
        }
    }

    #[test]
    fn high_and_low_bits_spread_consecutive_words() {
        for shift in [0, 56] {
            let mut buckets = [0u32; 256];
            (0..65_536).for_each(|i| buckets[(word(i) >> shift) as usize & 255] += 1);
            let (least, most) = (buckets.iter().min(), buckets.iter().max());
            assert!(least > Some(&150) && most < Some(&370), "{least:?} {most:?} of 256");
        }
    }
}
