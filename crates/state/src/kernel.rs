//! The inner loops: random updates of a table by group id.
//!
//! Unsafe code: bounds are proved once per batch from [`Groups::reach`], or for eight rows at once,
//! and then not asked again; prefetching is a hint that may name any address. The tests compare
//! each loop with checked indexing.
#![allow(unsafe_code)]

use arrow::buffer::BooleanBuffer;

use crate::groups::{Groups, Ids};

/// A table beyond this many bytes is expected to miss the second-level cache, and is prefetched.
pub(crate) const FAR_BYTES: usize = if cfg!(miri) { 1 << 9 } else { 1 << 19 };
/// How many rows ahead to prefetch.
const AHEAD: usize = 24;
/// How many bytes ahead one loop asks for what it reads that does all there is to do: with so much
/// to do for each line, few are on their way at a time, and there is room for them in the
/// first-level cache.
const NEAR_AHEAD: usize = 2 << 10;
/// How many bytes ahead memory is asked for where a column is read for the first time: two pages,
/// since no processor does so across their ends.
const COLUMN_AHEAD: usize = 8 << 10;
/// Of 64 bits with fewer set, each one is searched for.
const SPARSE_BITS: usize = 12;

/// Applies `f(slot of the row's group, value of the row)` to each row.
///
/// # Panics
/// If `table` does not cover [`Groups::reach`], or `values` has another length than `groups`.
#[inline]
pub(crate) fn scatter<S, V: Copy>(
    table: &mut [S],
    groups: &Groups,
    values: &[V],
    mut f: impl FnMut(&mut S, V),
) {
    assert!(groups.reach() < table.len() && groups.rows() == values.len());
    match groups.ids() {
        Ids::One { id, .. } => {
            let slot = &mut table[id as usize];
            values.iter().for_each(|&value| f(slot, value));
        }
        Ids::Each(ids) => {
            let far = size_of_val(table) > FAR_BYTES;
            let (eights, few) = ids.as_chunks::<8>();
            let (of_eights, of_few) = values.as_chunks::<8>();
            for (at, (eight, of_eight)) in eights.iter().zip(of_eights).enumerate() {
                prefetch_column(values, at * 8);
                if far && let Some(next) = ids[at * 8..].get(AHEAD..AHEAD + 8) {
                    next.iter().for_each(|&next| prefetch(table, next as usize));
                }
                for (&id, &value) in eight.iter().zip(of_eight) {
                    // SAFETY: `id <= groups.reach() < table.len()`: Groups' invariant and the
                    // assertion above.
                    f(unsafe { table.get_unchecked_mut(id as usize) }, value);
                }
            }
            for (&id, &value) in few.iter().zip(of_few) {
                // SAFETY: as above.
                f(unsafe { table.get_unchecked_mut(id as usize) }, value);
            }
        }
    }
}

/// Applies `f(slot of the row's group)` to each row.
///
/// # Panics
/// If `table` does not cover [`Groups::reach`].
#[inline]
pub(crate) fn touch<S>(table: &mut [S], groups: &Groups, f: impl Fn(&mut S)) {
    assert!(groups.reach() < table.len());
    match groups.ids() {
        Ids::One { id, rows } => {
            let slot = &mut table[id as usize];
            (0..rows).for_each(|_| f(slot));
        }
        Ids::Each(ids) => {
            let far = size_of_val(table) > FAR_BYTES;
            let (eights, few) = ids.as_chunks::<8>();
            for (at, eight) in eights.iter().enumerate() {
                if far && let Some(next) = ids[at * 8..].get(AHEAD..AHEAD + 8) {
                    next.iter().for_each(|&next| prefetch(table, next as usize));
                }
                for &id in eight {
                    // SAFETY: `id <= groups.reach() < table.len()`: Groups' invariant and the
                    // assertion above.
                    f(unsafe { table.get_unchecked_mut(id as usize) });
                }
            }
            for &id in few {
                // SAFETY: as above.
                f(unsafe { table.get_unchecked_mut(id as usize) });
            }
        }
    }
}

/// Counts the rows of each group into four tables side by side in `lanes` (table `l` begins at `l *
/// lanes.len() / 4`), so that a group that occurs often is not incremented at the same address
/// twice in a row, which would wait for the store before it.
///
/// # Panics
/// If a quarter of `lanes` does not cover [`Groups::reach`].
#[inline]
pub(crate) fn histogram(lanes: &mut [u32], groups: &Groups) {
    let width = lanes.len() / 4;
    assert!(groups.reach() < width);
    let Ids::Each(ids) = groups.ids() else {
        groups.iter().for_each(|id| lanes[id as usize] += 1);
        return;
    };
    let (quads, rest) = ids.as_chunks::<4>();
    for quad in quads {
        for (lane, &id) in quad.iter().enumerate() {
            // SAFETY: `lane < 4` and `id < width`, so the index is below `4 * width <=
            // lanes.len()`.
            unsafe { *lanes.get_unchecked_mut(lane * width + id as usize) += 1 };
        }
    }
    for &id in rest {
        lanes[id as usize] += 1;
    }
}

/// `of` the place of each of the `count` set bits, ascending. Places of bits that are not set may
/// be asked for too, and what is said of them is thrown away.
pub(crate) fn select<V: Copy + Default>(
    bits: &BooleanBuffer,
    count: usize,
    of: impl Fn(usize) -> V,
) -> Vec<V> {
    let mut out = Vec::with_capacity(count);
    let mut chosen = [V::default(); 64];
    for (at, word) in bits.bit_chunks().iter_padded().enumerate() {
        let begin = at * 64;
        let count = word.count_ones() as usize;
        let from = word.trailing_zeros() as usize;
        if count > SPARSE_BITS && word >> from == u64::MAX >> (64 - count) {
            // One run, as where blocks of keys have one leader.
            out.extend((begin + from..begin + from + count).map(&of));
            continue;
        }
        if count < SPARSE_BITS {
            let mut left = word;
            for chosen in &mut chosen[..count] {
                *chosen = of(begin + left.trailing_zeros() as usize);
                left &= left - 1;
            }
        } else {
            // No branch that depends on the bits: each value is written, and the next one over it
            // unless its bit is set.
            let mut next = 0;
            for bit in 0..64 {
                chosen[next & 63] = of(begin + bit);
                next += (word >> bit & 1) as usize;
            }
        }
        out.extend_from_slice(&chosen[..count]);
    }
    out
}

/// Bit `i` is `set[i]`. Eight at a time: a product moves the lowest bit of each byte to the top.
#[inline]
pub(crate) fn bits(set: [bool; 64]) -> u64 {
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let (eights, _) = set.as_chunks::<8>();
    eights.iter().enumerate().fold(0, |word, (at, eight)| {
        let bytes = u64::from_le_bytes(eight.map(u8::from));
        word | (bytes.wrapping_mul(GATHER) >> 56) << (8 * at)
    })
}

/// The bits of `low`, from the lowest on, at the places of the bits of `places`.
#[inline]
pub(crate) fn deposit(mut low: u64, mut places: u64) -> u64 {
    let mut out = 0;
    while places != 0 && low != 0 {
        // A run of neighbours at once.
        let from = places.trailing_zeros();
        let run = (places >> from).trailing_ones();
        let mask = u64::MAX >> (64 - run);
        out |= (low & mask) << from;
        low = low.checked_shr(run).unwrap_or(0);
        places &= !(mask << from);
    }
    out
}

/// Asks for the cache line of `table[at]`, which may be out of bounds.
#[inline(always)]
pub fn prefetch<S>(table: &[S], at: usize) {
    prefetch_at(table.as_ptr().wrapping_add(at));
}

/// Asks for the cache line that lies [`COLUMN_AHEAD`] bytes behind `column[at]`, which may be out
/// of bounds, into the second-level cache: the first one has few places for lines on their way, and
/// what is read meanwhile would wait for one of them.
#[inline(always)]
pub(crate) fn prefetch_column<V>(column: &[V], at: usize) {
    let place = column.as_ptr().wrapping_add(at).cast::<u8>();
    prefetch_into::<2>(place.wrapping_add(COLUMN_AHEAD));
}

/// Asks for the cache line that lies [`NEAR_AHEAD`] bytes behind the beginning of `values`, which
/// may be out of bounds.
#[inline(always)]
pub(crate) fn prefetch_near<V>(values: &[V]) {
    prefetch_at(values.as_ptr().cast::<u8>().wrapping_add(NEAR_AHEAD));
}

/// Asks for the cache line of what may lie there.
#[inline(always)]
pub(crate) fn prefetch_at<S>(place: *const S) {
    prefetch_into::<1>(place.cast());
}

/// Asks for the cache line of what may lie there, into the caches from the first or second level
/// on.
#[inline(always)]
fn prefetch_into<const LEVEL: u8>(place: *const u8) {
    const { assert!(LEVEL == 1 || LEVEL == 2) };
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: prefetching does not access memory; any address will do. SSE is part of x86-64.
        unsafe {
            match LEVEL {
                1 => _mm_prefetch::<_MM_HINT_T0>(place.cast()),
                _ => _mm_prefetch::<_MM_HINT_T1>(place.cast()),
            }
        }
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above; nothing that the program could notice is read or written. A load that will
    // keep the line from that level on.
    unsafe {
        std::arch::asm!(
            "prfm pldl{level}keep, [{place}]",
            level = const LEVEL,
            place = in(reg) place,
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", not(miri)))))]
    let _ = place;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of a table beyond `FAR_BYTES`.
    const FAR: usize = FAR_BYTES / 4;

    /// Ids that are spread, repeated, and few, for tables on both sides of `FAR_BYTES`.
    fn cases() -> Vec<(usize, Vec<u32>)> {
        let spread = |n: u32, m: u32| (0..n).map(|i| i.wrapping_mul(2_654_435_761) % m).collect();
        vec![
            (1, vec![0; 9]),
            (128, spread(1003, 100)),
            (FAR, spread(if cfg!(miri) { 501 } else { 5001 }, FAR as u32)),
            (FAR, vec![77; 40]),
            (FAR, vec![3, 9]),
            (4, vec![]),
        ]
    }

    #[test]
    fn loops_agree_with_checked_indexing() {
        for (len, ids) in cases() {
            let values: Vec<u64> = (0..ids.len() as u64).map(|i| i * i).collect();
            let groups = Groups::each(&ids);
            let (mut sums, mut counts) = (vec![0u64; len], vec![0u64; len]);
            let mut lanes = vec![0u32; 4 * len];
            scatter(&mut sums, &groups, &values, |slot, v| *slot += v);
            touch(&mut counts, &groups, |slot| *slot += 1);
            histogram(&mut lanes, &groups);
            let (mut sums_checked, mut counts_checked) = (vec![0u64; len], vec![0u64; len]);
            for (&id, &value) in ids.iter().zip(&values) {
                sums_checked[id as usize] += value;
                counts_checked[id as usize] += 1;
            }
            assert_eq!(sums, sums_checked);
            assert_eq!(counts, counts_checked);
            let folded: Vec<u64> =
                (0..len).map(|i| (0..4).map(|l| u64::from(lanes[l * len + i])).sum()).collect();
            assert_eq!(folded, counts_checked);
        }
    }

    #[test]
    fn bits_go_where_they_belong() {
        let mut state = 1u64;
        for round in 0..200 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round);
            let places = [state, u64::MAX, 0, !1, state & (state << 3)][round as usize % 5];
            assert_eq!(bits(std::array::from_fn(|at| places >> at & 1 == 1)), places);
            let low = state.rotate_left(17);
            let (mut expected, mut next) = (0, 0);
            for at in (0..64).filter(|at| places >> at & 1 == 1) {
                expected |= (low >> next & 1) << at;
                next += 1;
            }
            assert_eq!(deposit(low, places), expected);
            let words = BooleanBuffer::collect_bool(64, |at| places >> at & 1 == 1);
            let chosen: Vec<usize> = words.set_indices().collect();
            assert_eq!(select(&words, chosen.len(), |at| at), chosen);
        }
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn a_table_that_is_too_small_is_refused() {
        scatter(&mut [0u64; 4], &Groups::each(&[1, 4]), &[1u64, 1], |slot, v| *slot += v);
    }
}
