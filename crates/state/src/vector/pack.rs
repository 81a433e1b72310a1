//! Packing: values that are in a mask, one behind the other.

use arrow::buffer::BooleanBuffer;
use multiversion::multiversion;
use multiversion::target::target_cfg_f;

use crate::kernel::{prefetch_column, select};

/// Puts the values whose bits are set in place of what is in `out`.
///
/// # Panics
/// When there is not one bit for each value.
#[multiversion(targets("x86_64+avx512f+popcnt", "x86_64+avx2+popcnt"))]
pub fn filter(values: &[u64], bits: &BooleanBuffer, out: &mut Vec<u64>) {
    assert_eq!(values.len(), bits.len());
    let count = bits.count_set_bits();
    #[cfg(target_arch = "x86_64")]
    if target_cfg_f!(target_feature = "avx512f") {
        return filter_by::<Eight>(values, bits, count, out);
    }
    #[cfg(target_arch = "x86_64")]
    if target_cfg_f!(target_feature = "avx2") {
        return filter_by::<Four>(values, bits, count, out);
    }
    *out = select(bits, count, |at| values.get(at).copied().unwrap_or(0));
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn filter_by<S: MaskedStore>(
    values: &[u64],
    bits: &BooleanBuffer,
    count: usize,
    out: &mut Vec<u64>,
) {
    let (eights, rest) = values.as_chunks::<8>();
    out.clear();
    out.reserve(count + 8);
    let mut next = 0;
    for (word, eights) in bits.bit_chunks().iter_padded().zip(eights.chunks(8)) {
        for (mask, eight) in word.to_le_bytes().into_iter().zip(eights) {
            prefetch_column(eight, 0);
            // SAFETY: who calls has asked for the processor. At most eight values are written, of
            // which as many count as are set, so fewer than there is room for lie before `next`.
            unsafe { S::store(eight, mask, out.as_mut_ptr().add(next)) };
            next += mask.count_ones() as usize;
        }
    }
    // SAFETY: what lies before `next` was written.
    unsafe { out.set_len(next) };
    let first = values.len() - rest.len();
    out.extend((first..).zip(rest).filter(|(at, _)| bits.value(*at)).map(|(_, value)| value));
}

/// A way to store the values that are in a mask.
pub(crate) trait MaskedStore {
    /// Stores the values in the mask, one behind the other, and something up to eight.
    ///
    /// # Safety
    /// Eight values may be written, and the processor has the instructions.
    unsafe fn store(values: &[u64; 8], mask: u8, to: *mut u64);
}

/// With AVX-512: all at once.
pub(crate) struct Eight;
/// With AVX2: four by four, whose halves change places.
pub(crate) struct Four;
/// With any processor: each of them, and the next one over it unless it is in the mask.
pub(crate) struct Each;

#[cfg(target_arch = "x86_64")]
impl MaskedStore for Eight {
    #[inline(always)]
    unsafe fn store(values: &[u64; 8], mask: u8, to: *mut u64) {
        #[inline]
        #[target_feature(enable = "avx512f")]
        unsafe fn store(values: &[u64; 8], mask: u8, to: *mut u64) {
            use std::arch::x86_64::{
                _mm512_loadu_epi64, _mm512_maskz_compress_epi64, _mm512_storeu_epi64,
            };
            // SAFETY: eight values are read, and eight are written.
            unsafe {
                let all = _mm512_loadu_epi64(values.as_ptr().cast());
                _mm512_storeu_epi64(to.cast(), _mm512_maskz_compress_epi64(mask, all));
            }
        }
        // SAFETY: the caller's.
        unsafe { store(values, mask, to) }
    }
}

#[cfg(target_arch = "x86_64")]
impl MaskedStore for Four {
    #[inline(always)]
    unsafe fn store(values: &[u64; 8], mask: u8, to: *mut u64) {
        #[inline]
        #[target_feature(enable = "avx2,popcnt")]
        unsafe fn store(values: &[u64; 8], mask: u8, to: *mut u64) {
            use std::arch::x86_64::{
                _mm256_loadu_si256, _mm256_permutevar8x32_epi32, _mm256_storeu_si256,
            };
            let (low, high) = (usize::from(mask & 15), usize::from(mask >> 4));
            let [front, back] = [values.as_ptr(), values[4..].as_ptr()];
            // SAFETY: four values and the places of their halves are read, and four are written,
            // behind at most four.
            unsafe {
                let pack = |from: *const u64, mask: usize| {
                    let all = _mm256_loadu_si256(from.cast());
                    let places = _mm256_loadu_si256(HALVES[mask].as_ptr().cast());
                    _mm256_permutevar8x32_epi32(all, places)
                };
                _mm256_storeu_si256(to.cast(), pack(front, low));
                let behind = to.add(low.count_ones() as usize);
                _mm256_storeu_si256(behind.cast(), pack(back, high));
            }
        }
        // SAFETY: the caller's.
        unsafe { store(values, mask, to) }
    }
}

impl MaskedStore for Each {
    #[inline(always)]
    unsafe fn store(values: &[u64; 8], mask: u8, to: *mut u64) {
        let mut next = 0;
        for (at, &value) in values.iter().enumerate() {
            // SAFETY: `next <= at < 8`.
            unsafe { *to.add(next) = value };
            next += usize::from(mask >> at & 1);
        }
    }
}

/// For each mask of four values the places of the halves of those that are in it.
#[cfg(target_arch = "x86_64")]
static HALVES: [[u32; 8]; 16] = {
    let mut halves = [[0; 8]; 16];
    let mut mask = 0;
    while mask < 16 {
        let (mut value, mut next) = (0, 0);
        while value < 4 {
            if mask >> value & 1 == 1 {
                halves[mask][next] = 2 * value;
                halves[mask][next + 1] = 2 * value + 1;
                next += 2;
            }
            value += 1;
        }
        mask += 1;
    }
    halves
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_whose_bits_are_set() {
        let mut state = 1u64;
        let lengths = (0..70).chain([127, 128, 129, 1000]);
        for (len, skip) in lengths.flat_map(|len| [(len, 0), (len, 3)]) {
            for density in 0..5 {
                let mut bit = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 60) < 4 * density
                };
                let bits: Vec<bool> = (0..len + skip).map(|_| bit()).collect();
                let values: Vec<u64> = (0..len as u64).map(|at| at * at).collect();
                let kept = values.iter().zip(&bits[skip..]).filter(|(_, set)| **set);
                let expected: Vec<u64> = kept.map(|(value, _)| *value).collect();
                let mask = BooleanBuffer::from(bits).slice(skip, len);
                let mut kept = vec![7; 9];
                filter(&values, &mask, &mut kept);
                assert_eq!(kept, expected);
            }
        }
    }

    /// # Safety
    /// The processor must have the instructions.
    unsafe fn stores_what_is_in_each_mask<S: MaskedStore>() {
        let values = [3, 1 << 40, 5, u64::MAX, 7, 8, 1 << 63, 10];
        for mask in 0..=u8::MAX {
            let mut stored = [0; 8];
            // SAFETY: there is room for eight; the processor is the caller's to answer for.
            unsafe { S::store(&values, mask, stored.as_mut_ptr()) };
            let kept = (0..8).filter(|at| mask >> at & 1 == 1).map(|at| values[at]);
            let kept: Vec<u64> = kept.collect();
            assert_eq!(stored[..kept.len()], kept, "{mask:08b}");
        }
    }

    #[test]
    fn all_versions_store_alike() {
        // SAFETY: any processor will do; of the others it is asked.
        unsafe {
            stores_what_is_in_each_mask::<Each>();
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
                stores_what_is_in_each_mask::<Four>();
            }
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx512f") {
                stores_what_is_in_each_mask::<Eight>();
            }
        }
    }
}
