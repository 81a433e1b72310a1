//! Randomness by position: the number of a row is a pure function of seed, column and row.
//!
//! Nothing is drawn in order, so flows and nodes can cut the stream as they like and still see the
//! same rows. The numbers are those of SplitMix64, jumped to by its counter.

/// The counter's step: 2⁶⁴ divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The random numbers of a column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    base: u64,
}

impl Column {
    /// The random numbers of the column `name`, independent of every other column.
    pub(super) fn new(seed: u64, name: &str) -> Self {
        let base = name.bytes().fold(mix(seed.wrapping_add(STEP)), |state, byte| {
            mix(state ^ u64::from(byte)).wrapping_add(STEP)
        });
        Self { base }
    }

    /// The number of `row`: 64 random bits.
    pub(super) fn bits(&self, row: u64) -> u64 {
        mix(self.base.wrapping_add(row.wrapping_mul(STEP)))
    }

    /// As many numbers as wanted for `row`.
    pub(super) fn draws(&self, row: u64) -> Draws {
        Draws { state: self.bits(row) }
    }

    /// A number of `0..bound`. The bias is below `bound / 2⁶⁴`.
    pub(super) fn below(&self, row: u64, bound: u64) -> u64 {
        scale(self.bits(row), bound)
    }

    /// A number of `[0, 1)`.
    pub(super) fn unit(&self, row: u64) -> f64 {
        unit(self.bits(row))
    }
}

/// The numbers of one row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draws {
    state: u64,
}

impl Draws {
    pub(super) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        scale(self.bits(), bound)
    }

    pub(super) fn unit(&mut self) -> f64 {
        unit(self.bits())
    }
}

fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

/// The finalizer of SplitMix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fill_their_range_evenly() {
        let column = Column::new(7, "a");
        let mut counts = [0u32; 16];
        for row in 0..160_000 {
            counts[column.below(row, 16) as usize] += 1;
        }
        // 10,000 expected, standard deviation 97: six of them.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 580), "{counts:?}");
    }

    #[test]
    fn columns_and_seeds_are_independent() {
        let (a, b, c) = (Column::new(1, "a"), Column::new(1, "b"), Column::new(2, "a"));
        let equal =
            |x: Column, y: Column| (0..10_000).filter(|row| x.bits(*row) == y.bits(*row)).count();
        assert_eq!(equal(a, b) + equal(a, c), 0);
        assert_eq!(equal(a, Column::new(1, "a")), 10_000);
    }
}
