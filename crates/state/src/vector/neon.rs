//! Hashes by NEON, for processors that take long for products of 64 bits.
//!
//! NEON multiplies 32 bits by 32, so that a product of 64 bits is made of four, with what they
//! carry. That takes 8 instructions for a word, where `mul` and `umulh` take 6.5, and most
//! processors are faster with these: a Neoverse V1, N2 or V2 needs 1 to 1.5 cycles where NEON needs
//! 1.8 to 3.5, by the compiler's models of them. But a Neoverse N1 or a Cortex-A76 begins no other
//! product for three cycles with `mul` and for four with `umulh`, while its vectors need 3.7
//! cycles for all of it.

use std::arch::aarch64::{
    uint32x2_t, uint32x4_t, uint64x2_t, vandq_u64, vdupq_n_s64, vdupq_n_u32, vdupq_n_u64,
    veorq_u64, vget_high_u32, vget_low_u32, vld1q_u64, vmlal_u32, vmull_u32, vreinterpretq_u32_u64,
    vshlq_u64, vshrq_n_u64, vsliq_n_u64, vsraq_n_u64, vst1q_u32, vst1q_u64, vuzp1q_u32, vuzp2q_u32,
};
use std::sync::OnceLock;

use super::{hashes_by, starts_by};
use crate::hash::{A, B, C};

/// Arm's number among those who make processors.
const ARM: u64 = 0x41;
/// Its numbers of the Cortex-A76 and the Neoverse N1.
const PARTS: [u64; 2] = [0xd0b, 0xd0c];

/// Whether this processor is one of those. It is asked once.
pub(super) fn is_faster() -> bool {
    static FASTER: OnceLock<bool> = OnceLock::new();
    *FASTER.get_or_init(|| processor().is_some_and(multiplies_slowly))
}

/// Whether a processor of this identity takes long for a product of 64 bits.
fn multiplies_slowly(id: u64) -> bool {
    id >> 24 & 0xff == ARM && PARTS.contains(&(id >> 4 & 0xfff))
}

/// The identification of the processor, where the system allows it.
fn processor() -> Option<u64> {
    /// `HWCAP_CPUID`: the kernel reads registers of identity for us.
    const ANSWERS: usize = 1 << 11;
    if rustix::param::linux_hwcap().0 & ANSWERS == 0 {
        return None;
    }
    let id: u64;
    // SAFETY: the kernel has said that it reads this register for us, and that is all it does.
    unsafe {
        std::arch::asm!("mrs {}, midr_el1", out(reg) id, options(nomem, nostack, preserves_flags));
    }
    Some(id)
}

/// As [`super::starts`].
pub(super) fn starts(words: &[u64], shift: u32, out: &mut [u32]) {
    let (fours, rest) = words.as_chunks::<4>();
    let (outs, out) = out.split_at_mut(4 * fours.len());
    for (four, out) in fours.iter().zip(outs.as_chunks_mut::<4>().0) {
        let (low, _) = Four::load(four).hash().shifted(shift).halves();
        // SAFETY: four numbers are written to four.
        unsafe { vst1q_u32(out.as_mut_ptr(), low) };
    }
    starts_by::<false>(rest, shift, out);
}

/// As [`super::hashes`].
pub(super) fn hashes(words: &[u64], cut: u32, next: bool, out: &mut [u64]) {
    let (fours, rest) = words.as_chunks::<4>();
    let (outs, out) = out.split_at_mut(4 * fours.len());
    let outs = fours.iter().zip(outs.as_chunks_mut::<4>().0);
    if next {
        outs.for_each(|(four, out)| {
            let column = Four::load(four).shifted(cut).hash();
            Four::load(out).xor(A).fold(column.xor(C).halves()).store(out);
        })
    } else {
        outs.for_each(|(four, out)| Four::load(four).shifted(cut).hash().store(out))
    }
    hashes_by::<false>(rest, cut, next, out);
}

/// Four words.
#[derive(Clone, Copy)]
struct Four(uint64x2_t, uint64x2_t);

impl Four {
    #[inline(always)]
    fn load(words: &[u64; 4]) -> Self {
        let (first, last) = (words.as_ptr(), words[2..].as_ptr());
        // SAFETY: two words are read of each half.
        unsafe { Self(vld1q_u64(first), vld1q_u64(last)) }
    }

    #[inline(always)]
    fn store(self, words: &mut [u64; 4]) {
        let (first, last) = words.split_at_mut(2);
        // SAFETY: two words are written to each half.
        unsafe {
            vst1q_u64(first.as_mut_ptr(), self.0);
            vst1q_u64(last.as_mut_ptr(), self.1);
        }
    }

    /// Without the lowest bits.
    #[inline(always)]
    fn shifted(self, bits: u32) -> Self {
        // SAFETY: every 64-bit ARM has the instructions.
        unsafe {
            let left = vdupq_n_s64(-i64::from(bits));
            Self(vshlq_u64(self.0, left), vshlq_u64(self.1, left))
        }
    }

    #[inline(always)]
    fn xor(self, word: u64) -> Self {
        // SAFETY: as above.
        unsafe {
            let word = vdupq_n_u64(word);
            Self(veorq_u64(self.0, word), veorq_u64(self.1, word))
        }
    }

    /// The lower and the upper halves of all.
    #[inline(always)]
    fn halves(self) -> (uint32x4_t, uint32x4_t) {
        // SAFETY: as above.
        unsafe {
            let (a, b) = (vreinterpretq_u32_u64(self.0), vreinterpretq_u32_u64(self.1));
            (vuzp1q_u32(a, b), vuzp2q_u32(a, b))
        }
    }

    /// The hash of each.
    #[inline(always)]
    fn hash(self) -> Self {
        // SAFETY: as above.
        let b = unsafe { (vdupq_n_u32(B as u32), vdupq_n_u32((B >> 32) as u32)) };
        self.xor(A).fold(b)
    }

    /// The products with words of these halves, folded.
    #[inline(always)]
    fn fold(self, (b_low, b_high): (uint32x4_t, uint32x4_t)) -> Self {
        let (low, high) = self.halves();
        // SAFETY: as above.
        unsafe {
            Self(
                fold(
                    (vget_low_u32(low), vget_low_u32(high)),
                    (vget_low_u32(b_low), vget_low_u32(b_high)),
                ),
                fold(
                    (vget_high_u32(low), vget_high_u32(high)),
                    (vget_high_u32(b_low), vget_high_u32(b_high)),
                ),
            )
        }
    }
}

/// The steps of `hash::fold_of_halves`, of which NEON adds each product where it is made.
#[inline(always)]
fn fold(
    (a_low, a_high): (uint32x2_t, uint32x2_t),
    (b_low, b_high): (uint32x2_t, uint32x2_t),
) -> uint64x2_t {
    // SAFETY: every 64-bit ARM has the instructions.
    unsafe {
        let low = vmull_u32(a_low, b_low);
        let one = vmlal_u32(vshrq_n_u64::<32>(low), a_low, b_high);
        let other = vmlal_u32(vandq_u64(one, vdupq_n_u64(0xffff_ffff)), a_high, b_low);
        let carried = vsraq_n_u64::<32>(vshrq_n_u64::<32>(one), other);
        let above = vmlal_u32(carried, a_high, b_high);
        veorq_u64(vsliq_n_u64::<32>(low, other), above)
    }
}

#[cfg(test)]
mod tests {
    use super::multiplies_slowly;

    #[test]
    fn two_processors_are_known_to_multiply_slowly() {
        for id in [0x413f_d0c1, 0x414f_d0b1] {
            assert!(multiplies_slowly(id), "{id:#x}: Neoverse N1, Cortex-A76");
        }
        for id in [0x410f_d083, 0x411f_d401, 0x410f_d490, 0x410f_d4f1, 0x611f_0221, 0xc00f_ac30] {
            assert!(!multiplies_slowly(id), "{id:#x}: A72, V1, N2, V2, Apple M1, Ampere 1");
        }
        assert!(!multiplies_slowly(0x480f_d0c0), "the same number, of another maker");
    }
}
