//! Loops over whole columns that are worth the vector instructions of the machine at hand.
//!
//! The program is built for every x86-64; each loop here is compiled for newer ones as well
//! (AVX-512, AVX2) and chosen when it is first called. All versions are the same code, so results
//! are equal; only [`filter`] and [`equal`] are written twice, since no compiler finds the
//! instructions that pack, and the product of hashes, which vectors make of four. What finds hashes
//! in a table has no versions: where it is in a cache, one slot after the other is faster than to
//! gather eight, or to compare four that lie side by side. The macro that makes the versions calls
//! them as `unsafe` functions, after it has asked the processor.
//!
//! Every 64-bit ARM has NEON, so that there the same loops are vectors without being asked for.
//! Its hashes are the exception: see `neon`.
//!
//! No closures: one that is given to an iterator is compiled for the newer processor, the iterator
//! is not, and so each of its calls remains a call.
#![allow(unsafe_code)]

use multiversion::multiversion;
use multiversion::target::target_cfg_f;

use crate::kernel::{prefetch_column, prefetch_near};
use crate::{Scale, hash};

#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;

pub use pack::filter;
pub(crate) use pack::{Each, Eight, Four, MaskedStore};

/// Whether no time lies before the one in front of it; false as well if some lie in the outer
/// halves of the axis, whose differences might overflow.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn ascends(times: &[i64]) -> bool {
    ascend::<false>(times)
}

/// The same of few times, which are `near` what else is read at once.
#[inline(always)]
pub(crate) fn ascend<const NEAR: bool>(times: &[i64]) -> bool {
    // A sign tells, not a comparison: the oldest vector instructions compare no 64 bits.
    let Some((&first, rest)) = times.split_first() else { return true };
    let (befores, before) = times[..rest.len()].as_chunks::<8>();
    let (eights, few) = rest.as_chunks::<8>();
    let mut signs = [0; 8];
    for (at, (before, eight)) in befores.iter().zip(eights).enumerate() {
        if NEAR {
            prefetch_near(before)
        } else {
            prefetch_column(times, at * 8)
        }
        for ((sign, &a), &b) in signs.iter_mut().zip(before).zip(eight) {
            *sign |= b.wrapping_sub(a) | (b ^ (b << 1));
        }
    }
    let mut sign = signs.iter().fold(first ^ (first << 1), |all, sign| all | sign);
    for (&a, &b) in before.iter().zip(few) {
        sign |= b.wrapping_sub(a) | (b ^ (b << 1));
    }
    sign >= 0
}

/// The least and the greatest, if there are any.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn least_greatest(values: &[i64]) -> Option<(i64, i64)> {
    let (mut least, mut greatest) = (i64::MAX, i64::MIN);
    for &value in values {
        least = if value < least { value } else { least };
        greatest = if value > greatest { value } else { greatest };
    }
    (!values.is_empty()).then_some((least, greatest))
}

/// Writes the lower half of `word - base + 1` of each word to `out`. Gives the disjunctions of the
/// distances from the base and of what was written.
///
/// # Panics
/// When there is not room for all.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn distances(words: &[u64], base: u64, out: &mut [u32]) -> (u64, u32) {
    let (eights, few) = words.as_chunks::<8>();
    let (outs, out) = out[..words.len()].as_chunks_mut::<8>();
    let (mut anys, mut tops) = ([0; 8], [0; 8]);
    for (at, (eight, out)) in eights.iter().zip(outs).enumerate() {
        prefetch_column(words, at * 8);
        for (lane, (&word, out)) in eight.iter().zip(out).enumerate() {
            let distance = word.wrapping_sub(base);
            anys[lane] |= distance;
            *out = (distance as u32).wrapping_add(1);
            tops[lane] |= *out;
        }
    }
    let (mut any, mut top) = (0, 0);
    for (of_any, of_top) in anys.into_iter().zip(tops) {
        any |= of_any;
        top |= of_top;
    }
    for (&word, out) in few.iter().zip(out) {
        let distance = word.wrapping_sub(base);
        any |= distance;
        *out = (distance as u32).wrapping_add(1);
        top |= *out;
    }
    (any, top)
}

/// Writes the distance of each word from `base` to `out`, [`u32::MAX`] where it is not below `len`.
///
/// # Panics
/// When there is not room for all.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn near(words: &[u64], base: u64, len: u32, out: &mut [u32]) {
    let (eights, few) = words.as_chunks::<8>();
    let (outs, out) = out[..words.len()].as_chunks_mut::<8>();
    for (at, (eight, out)) in eights.iter().zip(outs).enumerate() {
        prefetch_column(words, at * 8);
        for (&word, out) in eight.iter().zip(out) {
            let distance = word.wrapping_sub(base);
            *out = if distance < u64::from(len) { distance as u32 } else { u32::MAX };
        }
    }
    for (&word, out) in few.iter().zip(out) {
        let distance = word.wrapping_sub(base);
        *out = if distance < u64::from(len) { distance as u32 } else { u32::MAX };
    }
}

/// The disjunction of all numbers. The lower halves of them, scaled, are written to `out`, whatever
/// was in it.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn scaled(numbers: &[i64], scale: Scale, out: &mut Vec<i64>) -> i64 {
    out.clear();
    out.reserve(numbers.len());
    let mut any = 0;
    for (&number, out) in numbers.iter().zip(out.spare_capacity_mut()) {
        any |= number;
        out.write(scale.of(number as u64) as i64);
    }
    // SAFETY: there is room for as many, and each was written.
    unsafe { out.set_len(numbers.len()) };
    any
}

/// The disjunction and the conjunction of all.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn any_all(ids: &[u32]) -> (u32, u32) {
    let (mut any, mut all) = (0, u32::MAX);
    for &id in ids {
        any |= id;
        all &= id;
    }
    (any, all)
}

/// Writes of the hash of each word the bits above the lowest `shift` to `out`: where in a table it
/// belongs.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn starts(words: &[u64], shift: u32, out: &mut [u32]) {
    #[cfg(target_arch = "aarch64")]
    if neon::is_faster() {
        return neon::starts(words, shift, out);
    }
    if target_cfg_f!(any(target_feature = "avx512f", target_feature = "avx2")) {
        starts_by::<true>(words, shift, out)
    } else {
        starts_by::<false>(words, shift, out)
    }
}

#[inline(always)]
fn starts_by<const HALVES: bool>(words: &[u64], shift: u32, out: &mut [u32]) {
    let (fours, rest) = of_fours::<HALVES>(words);
    let (outs, out) = out.split_at_mut(4 * fours.len());
    for (four, out) in fours.iter().zip(outs.as_chunks_mut::<4>().0) {
        for at in 0..4 {
            out[at] = (hash::word_by::<HALVES>(four[at]) >> shift) as u32;
        }
    }
    for (&word, out) in rest.iter().zip(out) {
        *out = (hash::word_by::<HALVES>(word) >> shift) as u32;
    }
}

/// Words in fours, and those that are left: all of them where the compiler is to make vectors. Of
/// whole products it makes none that are worth it: NEON would have to move each word out of a
/// vector and back. It does not try where four of them stand for themselves.
#[inline(always)]
fn of_fours<const HALVES: bool>(words: &[u64]) -> (&[[u64; 4]], &[u64]) {
    if HALVES { (&[], words) } else { words.as_chunks() }
}

/// Writes the hash of each word, without its lowest `cut` bits, to `out`; where `next`, combined
/// with what is there.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn hashes(words: &[u64], cut: u32, next: bool, out: &mut [u64]) {
    #[cfg(target_arch = "aarch64")]
    if neon::is_faster() {
        return neon::hashes(words, cut, next, out);
    }
    if target_cfg_f!(any(target_feature = "avx512f", target_feature = "avx2")) {
        hashes_by::<true>(words, cut, next, out)
    } else {
        hashes_by::<false>(words, cut, next, out)
    }
}

#[inline(always)]
fn hashes_by<const HALVES: bool>(words: &[u64], cut: u32, next: bool, out: &mut [u64]) {
    if next {
        hashes_on::<HALVES, true>(words, cut, out);
    } else {
        hashes_on::<HALVES, false>(words, cut, out);
    }
}

#[inline(always)]
fn hashes_on<const HALVES: bool, const NEXT: bool>(words: &[u64], cut: u32, out: &mut [u64]) {
    let (fours, rest) = of_fours::<HALVES>(words);
    let (outs, out) = out.split_at_mut(4 * fours.len());
    for (four, out) in fours.iter().zip(outs.as_chunks_mut::<4>().0) {
        for at in 0..4 {
            out[at] = hash_on::<HALVES, NEXT>(out[at], four[at] >> cut);
        }
    }
    for (&word, out) in rest.iter().zip(out) {
        *out = hash_on::<HALVES, NEXT>(*out, word >> cut);
    }
}

#[inline(always)]
fn hash_on<const HALVES: bool, const NEXT: bool>(before: u64, word: u64) -> u64 {
    let hash = hash::word_by::<HALVES>(word);
    if NEXT { hash::combine_by::<HALVES>(before, hash) } else { hash }
}

/// Replaces `bits` by a bit for each key, the lowest first: whether it is `only`. Behind the last
/// none is set.
pub fn equal(keys: &[i8], only: i8, bits: &mut Vec<u64>) {
    let (lines, rest) = keys.as_chunks::<64>();
    bits.clear();
    bits.extend(lines.iter().enumerate().map(|(at, line)| {
        prefetch_column(keys, at * 64);
        equal_in(line, only)
    }));
    if !rest.is_empty() {
        let mut last = [0; 64];
        last[..rest.len()].copy_from_slice(rest);
        bits.push(equal_in(&last, only) & ((1 << rest.len()) - 1));
    }
}

#[inline(always)]
fn equal_in(line: &[i8; 64], only: i8) -> u64 {
    let sixteens = line.as_chunks().0.iter().enumerate();
    sixteens.fold(0, |bits, (at, keys)| bits | u64::from(equal_of(keys, only)) << (16 * at))
}

/// The first key's bit is the lowest.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn equal_of(keys: &[i8; 16], only: i8) -> u16 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: sixteen bytes are read. Every x86-64 has the instructions.
    unsafe {
        let all = _mm_loadu_si128(keys.as_ptr().cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_set1_epi8(only))) as u16
    }
}

/// The first key's bit is the lowest.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn equal_of(keys: &[i8; 16], only: i8) -> u16 {
    keys.iter().rev().fold(0, |bits, &key| bits << 1 | u16::from(key == only))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around those of vectors.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..70).chain([127, 128, 129, 1000])
    }

    #[test]
    fn times_ascend_if_no_one_lies_before_the_one_in_front() {
        for len in lengths() {
            let mut times: Vec<i64> = (0..len as i64).map(|at| at / 2 - 7).collect();
            assert!(ascends(&times));
            for at in 1..len {
                let before = std::mem::replace(&mut times[at], -8);
                assert!(!ascends(&times), "{at} of {len}");
                times[at] = before;
            }
        }
        assert!(!ascends(&[i64::MIN, i64::MAX]), "the difference overflows");
        assert!(!ascends(&[0, i64::MAX]), "in the outer half of the axis");
    }

    #[test]
    fn least_and_greatest_are_found_wherever_they_are() {
        for len in lengths() {
            let values: Vec<i64> = (0..len as i64).map(|at| (at * 37) % 101 - 50).collect();
            let expected = values.iter().min().copied().zip(values.iter().max().copied());
            assert_eq!(least_greatest(&values), expected, "{len}");
            for at in 0..len {
                let mut values = vec![7; len];
                values[at] = i64::MIN;
                let greatest = if len == 1 { i64::MIN } else { 7 };
                assert_eq!(least_greatest(&values), Some((i64::MIN, greatest)), "{at} of {len}");
            }
        }
    }

    #[test]
    fn a_bit_is_set_for_each_key_that_is_equal() {
        for len in lengths() {
            let keys: Vec<i8> = (0..len).map(|at| (at * 37 % 5) as i8 - 2).collect();
            let mut bits = vec![7; 3];
            for only in -3..3 {
                let word = |keys: &[i8]| {
                    let keys = keys.iter().enumerate();
                    keys.fold(0, |bits, (at, &key)| bits | u64::from(key == only) << at)
                };
                let expected: Vec<u64> = keys.chunks(64).map(word).collect();
                equal(&keys, only, &mut bits);
                assert_eq!(bits, expected, "{only} of {len}");
            }
        }
    }

    #[test]
    fn columns_are_read_as_one_by_one() {
        let mut word = 1u64;
        for len in lengths() {
            let words: Vec<u64> = (0..len)
                .map(|_| {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    word
                })
                .collect();
            let base = word >> 3;
            let mut ids = vec![0; len];
            let (any, top) = distances(&words, base, &mut ids);
            let each = words.iter().map(|word| word.wrapping_sub(base));
            assert_eq!(any, each.clone().fold(0, |any, distance| any | distance));
            let expected: Vec<u32> = each.map(|at| (at as u32).wrapping_add(1)).collect();
            assert_eq!(ids, expected);
            let (disjunction, conjunction) = any_all(&ids);
            assert_eq!(disjunction, top);
            assert_eq!(disjunction, ids.iter().fold(0, |any, id| any | id));
            assert_eq!(conjunction, ids.iter().fold(u32::MAX, |all, id| all & id));
        }
    }

    #[test]
    fn numbers_are_scaled_by_their_lower_halves() {
        for len in lengths() {
            let numbers: Vec<i64> = (0..len as i64).map(|at| at << (at % 60)).collect();
            let any = numbers.iter().fold(0, |any, number| any | number);
            let expected: Vec<i64> = numbers
                .iter()
                .map(|&number| ((u128::from(number as u32) * 3_435_973_837) >> 35) as i64)
                .collect();
            let mut out = vec![7; 3];
            let scale = Scale { factor: 3_435_973_837, shift: 35 };
            assert_eq!(scaled(&numbers, scale, &mut out), any, "{len}");
            assert_eq!(out, expected, "{len}");
        }
    }

    /// Words with few and with many bits, and of all lengths of them.
    fn words(len: usize) -> Vec<u64> {
        let mut word = 7u64;
        let mut next = |at: usize| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            [at as u64, word, !(at as u64), word >> 31, word << 33, 1 << (at % 64)][at % 6]
        };
        (0..len).map(&mut next).collect()
    }

    type Hashes = (Vec<u32>, [Vec<u64>; 2]);

    /// What a version says of words, each by itself or with what was before.
    macro_rules! version {
        ($(#[$feature:meta])* $name:ident, $halves:literal) => {
            $(#[$feature])*
            fn $name(words: &[u64]) -> Hashes {
                let (mut starts, mut one) = (vec![0; words.len()], vec![0; words.len()]);
                starts_by::<$halves>(words, 47, &mut starts);
                hashes_by::<$halves>(words, 3, false, &mut one);
                let mut two = one.clone();
                hashes_by::<$halves>(words, 0, true, &mut two);
                (starts, [one, two])
            }
        };
    }
    version!(plain, false);
    version!(halves, true);
    #[cfg(target_arch = "x86_64")]
    version!(
        #[target_feature(enable = "avx2")]
        avx2,
        true
    );
    #[cfg(target_arch = "x86_64")]
    version!(
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        avx512,
        true
    );

    #[cfg(target_arch = "aarch64")]
    fn neon(words: &[u64]) -> Hashes {
        let (mut starts, mut one) = (vec![0; words.len()], vec![0; words.len()]);
        super::neon::starts(words, 47, &mut starts);
        super::neon::hashes(words, 3, false, &mut one);
        let mut two = one.clone();
        super::neon::hashes(words, 0, true, &mut two);
        (starts, [one, two])
    }

    #[test]
    fn all_versions_hash_alike() {
        for len in lengths() {
            let words = words(len);
            let one: Vec<u64> = words.iter().map(|&word| hash::word(word >> 3)).collect();
            let both = words.iter().zip(&one);
            let two = both.map(|(&word, &row)| hash::combine(row, hash::word(word))).collect();
            let starts = words.iter().map(|&word| (hash::word(word) >> 47) as u32).collect();
            let expected: Hashes = (starts, [one, two]);
            assert_eq!(plain(&words), expected);
            assert_eq!(halves(&words), expected);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the instructions.
                assert_eq!(unsafe { avx2(&words) }, expected);
            }
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                // SAFETY: as above.
                assert_eq!(unsafe { avx512(&words) }, expected);
            }
            #[cfg(target_arch = "aarch64")]
            assert_eq!(neon(&words), expected);
            let (mut chosen, mut each) = (vec![0; len], vec![0; len]);
            super::starts(&words, 47, &mut chosen);
            super::hashes(&words, 3, false, &mut each);
            let one = each.clone();
            super::hashes(&words, 0, true, &mut each);
            assert_eq!((chosen, [one, each]), expected, "the version that is chosen");
        }
    }
}
