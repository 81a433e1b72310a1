//! Ends of fields in blocks of text, found by words that have a bit for each byte of a block.
//!
//! The parity of the quotes up to a byte tells whether it stands between quotes. A block is *plain*
//! where each quote that opens stands behind the end of a field, each that closes stands before
//! one, and no line ends between them.

// Instructions of the processor are called here; none of them takes a pointer.
#![allow(unsafe_code)]

/// Bytes of a block: one bit of a word each.
pub(super) const BLOCK_BYTES: usize = 64;

/// Ends of fields that are written together, needed or not.
const ENDS_AT_ONCE: usize = 8;

/// The bytes that make fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs {
    pub(super) delimiter: u8,
    pub(super) quote: u8,
}

/// The state that a block takes over from the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QuoteState {
    /// All bits, if its last byte stands between quotes.
    inside: u64,
    /// 1 if its last byte ends a field.
    ends: u64,
    /// 1 if its last byte is a quote that closes.
    closes: u64,
}

impl Default for QuoteState {
    /// At the beginning of a record.
    fn default() -> Self {
        Self { inside: 0, ends: 1, closes: 0 }
    }
}

/// How far bytes were scanned, and how many ends of fields were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scanned {
    pub(super) bytes: usize,
    pub(super) ends: usize,
}

/// Writes where fields end outside of quotes, counted from `at`, up to the first block that is not
/// plain. `ends` has room for as many as there are bytes, and for [`BLOCK_BYTES`] more.
pub(super) fn scan(
    bytes: &[u8],
    at: u32,
    signs: Signs,
    state: &mut QuoteState,
    ends: &mut [u32],
) -> Scanned {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("popcnt")
    {
        // SAFETY: the processor has what the function needs.
        return unsafe { scan_wide(bytes, at, signs, state, ends) };
    }
    scan_with::<false>(bytes, at, signs, state, ends)
}

/// The same with the instructions of newer processors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,popcnt")]
fn scan_wide(
    bytes: &[u8],
    at: u32,
    signs: Signs,
    state: &mut QuoteState,
    ends: &mut [u32],
) -> Scanned {
    scan_with::<true>(bytes, at, signs, state, ends)
}

/// `WIDE`: the caller has AVX2.
#[inline(always)]
fn scan_with<const WIDE: bool>(
    bytes: &[u8],
    at: u32,
    signs: Signs,
    state: &mut QuoteState,
    ends: &mut [u32],
) -> Scanned {
    let mut scanned = Scanned { bytes: 0, ends: 0 };
    let (blocks, tail) = bytes.as_chunks::<BLOCK_BYTES>();
    for block in blocks {
        let Some(found) = state.ends::<WIDE>(block, BLOCK_BYTES, signs) else { return scanned };
        write(found, at + scanned.bytes as u32, &mut ends[scanned.ends..]);
        scanned.ends += found.count_ones() as usize;
        scanned.bytes += BLOCK_BYTES;
    }
    if !tail.is_empty() {
        let mut block = [0; BLOCK_BYTES];
        block[..tail.len()].copy_from_slice(tail);
        if let Some(found) = state.ends::<WIDE>(&block, tail.len(), signs) {
            write(found, at + scanned.bytes as u32, &mut ends[scanned.ends..]);
            scanned.ends += found.count_ones() as usize;
            scanned.bytes += tail.len();
        }
    }
    scanned
}

/// Writes the places of the bits of a block that begins at `at`; what is behind them is of no use.
#[inline(always)]
fn write(mut bits: u64, at: u32, mut ends: &mut [u32]) {
    while let Some((some, rest)) = ends.split_first_chunk_mut::<ENDS_AT_ONCE>() {
        for end in some {
            // The highest bit is no place where it is not the last: it makes the word not zero.
            *end = at + (bits | 1 << 63).trailing_zeros();
            bits &= bits.wrapping_sub(1);
        }
        if bits == 0 {
            break;
        }
        ends = rest;
    }
}

impl QuoteState {
    /// The ends of fields in a block, of which `bytes` are text; `None` if it is not plain.
    #[inline(always)]
    fn ends<const WIDE: bool>(
        &mut self,
        block: &[u8; BLOCK_BYTES],
        bytes: usize,
        Signs { delimiter, quote }: Signs,
    ) -> Option<u64> {
        let text = u64::MAX >> (BLOCK_BYTES - bytes);
        let [quotes, delimiters, feeds, returns] =
            places::<4, WIDE>(block, [quote, delimiter, b'\n', b'\r']).map(|bits| bits & text);
        // A quote that opens is inside, one that closes is not.
        let inside = parity(quotes) ^ self.inside;
        let ends = (delimiters | feeds | returns) & !inside;
        let closes = quotes & !inside;
        let opens_within = quotes & inside & !(ends << 1 | self.ends);
        let closes_within = (closes << 1 | self.closes) & text & !ends;
        if (opens_within | closes_within | feeds & inside) != 0 {
            return None;
        }
        let is_last = |bits: u64| bits >> (bytes - 1) & 1;
        let inside = is_last(inside).wrapping_neg();
        *self = Self { inside, ends: is_last(ends), closes: is_last(closes) };
        Some(ends)
    }
}

/// The places of each of some bytes in a block; the first byte of the block is the lowest bit.
#[inline(always)]
fn places<const KINDS: usize, const WIDE: bool>(
    block: &[u8; BLOCK_BYTES],
    kinds: [u8; KINDS],
) -> [u64; KINDS] {
    #[cfg(target_arch = "x86_64")]
    if WIDE {
        // SAFETY: AVX2 is there where `WIDE` is said.
        unsafe { by_wide_vectors(block, kinds) }
    } else {
        // SAFETY: SSE2 belongs to x86-64: each processor has it.
        unsafe { by_vectors(block, kinds) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        by_words(block, kinds)
    }
}

/// 32 bytes at a time.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
fn by_wide_vectors<const KINDS: usize>(
    block: &[u8; BLOCK_BYTES],
    kinds: [u8; KINDS],
) -> [u64; KINDS] {
    use std::arch::x86_64::{
        _mm256_cmpeq_epi8, _mm256_movemask_epi8, _mm256_set_epi64x, _mm256_set1_epi8,
    };
    let mut places = [0; KINDS];
    for (part, bytes) in block.as_chunks::<32>().0.iter().enumerate() {
        let word = |at: usize| {
            let bytes = bytes[8 * at..].first_chunk::<8>();
            bytes.map_or(0, |bytes| i64::from_le_bytes(*bytes))
        };
        let vector = _mm256_set_epi64x(word(3), word(2), word(1), word(0));
        for (places, kind) in places.iter_mut().zip(kinds) {
            let equal = _mm256_cmpeq_epi8(vector, _mm256_set1_epi8(kind as i8));
            *places |= u64::from(_mm256_movemask_epi8(equal) as u32) << (32 * part);
        }
    }
    places
}

/// Sixteen bytes at a time.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "sse2")]
fn by_vectors<const KINDS: usize>(block: &[u8; BLOCK_BYTES], kinds: [u8; KINDS]) -> [u64; KINDS] {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    let mut places = [0; KINDS];
    for (part, bytes) in block.as_chunks::<16>().0.iter().enumerate() {
        let bytes = u128::from_le_bytes(*bytes);
        let vector = _mm_set_epi64x((bytes >> 64) as i64, bytes as i64);
        for (places, kind) in places.iter_mut().zip(kinds) {
            let equal = _mm_cmpeq_epi8(vector, _mm_set1_epi8(kind as i8));
            *places |= u64::from(_mm_movemask_epi8(equal) as u16) << (16 * part);
        }
    }
    places
}

/// Eight bytes at a time.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn by_words<const KINDS: usize>(block: &[u8; BLOCK_BYTES], kinds: [u8; KINDS]) -> [u64; KINDS] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const LOW: u64 = 0x7f * ONES;
    // Brings the lowest bit of each byte into the highest byte, in their order.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let mut places = [0; KINDS];
    for (part, bytes) in block.as_chunks::<8>().0.iter().enumerate() {
        let word = u64::from_le_bytes(*bytes);
        for (places, kind) in places.iter_mut().zip(kinds) {
            let other = word ^ (u64::from(kind) * ONES);
            // The highest bit of each byte that is zero, and of no other.
            let equal = !((other & LOW).wrapping_add(LOW) | other | LOW);
            *places |= ((equal >> 7).wrapping_mul(GATHER) >> 56) << (8 * part);
        }
    }
    places
}

/// Each bit becomes the parity of itself and all bits below.
#[inline(always)]
const fn parity(mut bits: u64) -> u64 {
    let mut by = 1;
    while by < 64 {
        bits ^= bits << by;
        by *= 2;
    }
    bits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_those_of_equal_bytes(
            block in prop::array::uniform32(
                prop::sample::select(vec![0, 1, b',', b'-', 0x80, 0xac, 0xff]),
            ),
            behind in prop::array::uniform32(any::<u8>()),
            kind in prop::sample::select(vec![0, 1, b',', 0x80, 0xac, 0xff]),
        ) {
            let mut all = [0; BLOCK_BYTES];
            all[..32].copy_from_slice(&block);
            all[32..].copy_from_slice(&behind);
            let bits = |kind: u8| {
                let places = (0..BLOCK_BYTES).filter(|at| all[*at] == kind);
                places.fold(0_u64, |bits, at| bits | 1 << at)
            };
            let expected = [bits(kind), bits(b'-')];
            prop_assert_eq!(places::<2, false>(&all, [kind, b'-']), expected);
            prop_assert_eq!(by_words(&all, [kind, b'-']), expected);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                prop_assert_eq!(places::<2, true>(&all, [kind, b'-']), expected);
            }
        }

        #[test]
        fn ends_are_the_same_on_all_processors(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "a", "bcdefghijkl", ",", "\n", "\r\n", ",\"x,y\",", "\"",
                ]),
                0..200,
            ),
        ) {
            let text = pieces.concat();
            let signs = Signs { delimiter: b',', quote: b'"' };
            let scanned = |wide: bool| {
                let mut ends = vec![0; text.len() + BLOCK_BYTES];
                let mut state = QuoteState::default();
                let scan = if wide { scan } else { scan_with::<false> };
                let scanned = scan(text.as_bytes(), 7, signs, &mut state, &mut ends);
                ends.truncate(scanned.ends);
                (scanned, ends, state)
            };
            prop_assert_eq!(scanned(true), scanned(false));
        }

        #[test]
        fn parity_counts_the_bits_below(bits in any::<u64>()) {
            for at in 0..64 {
                let below = bits << (63 - at);
                prop_assert_eq!(parity(bits) >> at & 1, u64::from(below.count_ones() % 2));
            }
        }
    }
}
