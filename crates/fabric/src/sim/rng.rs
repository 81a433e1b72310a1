//! The net's only source of chance.

use std::ops::Range;

/// SplitMix64: one word of state, full period, good enough to be hostile with.
#[derive(Debug, Clone)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Self(seed);
        rng.next();
        rng
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Below `n`, which is above zero.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// Mostly from the first eighth of the range and sometimes from all of it: queues are usually
    /// short.
    pub(super) fn delay(&mut self, range: &Range<u64>) -> u64 {
        let span = range.end.saturating_sub(range.start);
        if span == 0 {
            return range.start;
        }
        let span = if self.below(8) == 0 { span } else { span.div_ceil(8) };
        range.start + self.below(span)
    }
}

/// Spreads every bit of the input over the output.
pub(super) fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
