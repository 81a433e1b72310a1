//! Which bytes of a block of text are of a kind, as the bits of a word.

// Instructions of the processor are called here; none of them takes a pointer.
#![allow(unsafe_code)]

/// Bytes of a block: one bit of a word each.
pub(super) const BLOCK_BYTES: usize = 64;

/// The places of each of some bytes in a block; the first byte of the block is the lowest bit.
#[inline(always)]
pub(super) fn places<const KINDS: usize>(
    block: &[u8; BLOCK_BYTES],
    kinds: [u8; KINDS],
) -> [u64; KINDS] {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: SSE2 belongs to x86-64: each processor has it.
        unsafe { by_vectors(block, kinds) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        by_words(block, kinds)
    }
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
pub(super) const fn parity(mut bits: u64) -> u64 {
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
            prop_assert_eq!(places(&all, [kind, b'-']), expected);
            prop_assert_eq!(by_words(&all, [kind, b'-']), expected);
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
