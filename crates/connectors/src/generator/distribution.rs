//! Distributions of whole numbers over a range.

use super::random::Draws;

/// A distribution over `min..=max`.
#[derive(Debug, Clone, Copy)]
pub(super) enum ValueDistribution {
    Uniform {
        min: i64,
        max: i64,
    },
    /// Rank `k` (1 for `min`) has a probability in proportion to `k^-exponent`.
    Zipf {
        min: i64,
        zipf: Zipf,
    },
    Pareto {
        min: i64,
        max: i64,
        pareto: Pareto,
    },
}

impl ValueDistribution {
    /// By name: `uniform`, `zipf`, `pareto`, as numbered in [`NAMES`].
    pub(super) fn new(name: usize, min: i64, max: i64, exponent: f64) -> Self {
        match name {
            1 => Self::Zipf { min, zipf: Zipf::new(span(min, max), exponent) },
            2 => {
                let pareto = Pareto::new(1.0, span(min, max) as f64 + 1.0, exponent);
                Self::Pareto { min, max, pareto }
            }
            _ => Self::Uniform { min, max },
        }
    }

    /// How many values there are, as far as 64 bits tell.
    pub(super) fn values(&self) -> u64 {
        match self {
            Self::Zipf { zipf, .. } => zipf.ranks,
            Self::Uniform { min, max } | Self::Pareto { min, max, .. } => match span(*min, *max) {
                0 => u64::MAX,
                span => span,
            },
        }
    }

    pub(super) fn draw(&self, mut draws: Draws) -> i64 {
        match self {
            Self::Uniform { min, max } => match span(*min, *max) {
                // The whole range of 64 bits.
                0 => draws.bits() as i64,
                span => min.wrapping_add(draws.below(span) as i64),
            },
            Self::Zipf { min, zipf } => min.wrapping_add((zipf.rank(draws) - 1) as i64),
            Self::Pareto { min, max, pareto } => {
                min.saturating_add(pareto.draw(draws.unit()) as i64 - 1).min(*max)
            }
        }
    }
}

/// The names of the distributions, in SQL.
pub(super) const NAMES: &[&str] = &["uniform", "zipf", "pareto"];

/// Numbers of `min..=max`; 0 stands for 2⁶⁴.
fn span(min: i64, max: i64) -> u64 {
    (max.wrapping_sub(min) as u64).wrapping_add(1)
}

/// Zipf's law over ranks `1..=ranks`, exact, in constant time and space: rejection-inversion
/// (Hörmann and Derflinger 1996). The integral of the density is inverted at a random height and
/// the nearest rank taken, unless the height lies beyond that rank's own column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Zipf {
    ranks: u64,
    exponent: f64,
    /// The integral at the left end of the first rank, less that rank's probability.
    low: f64,
    /// The integral at the right end of the last rank.
    high: f64,
    /// Ranks this near to the inverse need no look at their column.
    sure: f64,
}

impl Zipf {
    pub(super) fn new(ranks: u64, exponent: f64) -> Self {
        let mut zipf = Self { ranks, exponent, low: 0.0, high: 0.0, sure: 0.0 };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(ranks as f64 + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-exponent));
        zipf
    }

    pub(super) fn rank(&self, mut draws: Draws) -> u64 {
        loop {
            let height = self.high + draws.unit() * (self.low - self.high);
            let x = self.inverse(height);
            let rank = (x + 0.5).floor().clamp(1.0, self.ranks as f64);
            let own = self.integral(rank + 0.5) - rank.powf(-self.exponent);
            if rank - x <= self.sure || height >= own {
                return rank as u64;
            }
        }
    }

    /// The integral of `x^-exponent` from 1.
    fn integral(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        // `exp_m1(y) / y`, which is 1 at 0: the exponent 1 is no special case.
        let y = power * x.ln();
        if y.abs() < 1e-9 { x.ln() } else { y.exp_m1() / power }
    }

    fn inverse(&self, integral: f64) -> f64 {
        let power = 1.0 - self.exponent;
        let y = integral * power;
        if y.abs() < 1e-9 { integral.exp() } else { (y.max(-1.0).ln_1p() / power).exp() }
    }
}

/// Pareto's law from `min` up, cut off at `max` (infinite for none), by inversion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pareto {
    min: f64,
    exponent: f64,
    /// The probability of a value below `max`.
    below_max: f64,
}

impl Pareto {
    pub(super) fn new(min: f64, max: f64, exponent: f64) -> Self {
        Self { min, exponent, below_max: 1.0 - (min / max).powf(exponent) }
    }

    /// The value at which the distribution function is `unit`.
    pub(super) fn draw(&self, unit: f64) -> f64 {
        self.min * (1.0 - unit * self.below_max).powf(-1.0 / self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Column;
    use super::*;

    #[test]
    fn the_ranks_of_zipf_have_their_frequencies() {
        for (exponent, ranks) in [(0.0, 50u64), (0.5, 1000), (1.0, 1000), (1.5, 100_000), (3.0, 10)]
        {
            let zipf = Zipf::new(ranks, exponent);
            let column = Column::new(3, "zipf");
            let rows = 400_000u64;
            let mut counts = vec![0u64; ranks as usize + 1];
            for row in 0..rows {
                counts[zipf.rank(column.draws(row)) as usize] += 1;
            }
            let sum: f64 = (1..=ranks).map(|rank| (rank as f64).powf(-exponent)).sum();
            for rank in 1..=ranks.min(10) {
                let expected = rows as f64 * (rank as f64).powf(-exponent) / sum;
                let off = (counts[rank as usize] as f64 - expected).abs();
                let tolerance = 5.0 * expected.sqrt() + 1.0;
                assert!(off < tolerance, "exponent {exponent} rank {rank}: off by {off}");
            }
            // The tail as a whole.
            let tail: f64 = (11..=ranks).map(|rank| (rank as f64).powf(-exponent)).sum();
            let seen: u64 = counts.iter().skip(11).sum();
            let expected = rows as f64 * tail / sum;
            assert!((seen as f64 - expected).abs() < 5.0 * expected.sqrt() + 1.0);
        }
    }

    #[test]
    fn the_tail_of_pareto_falls_by_its_exponent() {
        let pareto = Pareto::new(2.0, f64::INFINITY, 1.5);
        let column = Column::new(5, "pareto");
        let rows = 400_000u64;
        for bound in [4.0, 10.0, 50.0] {
            let beyond = (0..rows).filter(|row| pareto.draw(column.unit(*row)) > bound).count();
            let expected = rows as f64 * (2.0f64 / bound).powf(1.5);
            assert!((beyond as f64 - expected).abs() < 5.0 * expected.sqrt(), "{bound}: {beyond}");
        }
    }

    #[test]
    fn every_distribution_stays_in_its_range() {
        let column = Column::new(9, "range");
        for (index, name) in NAMES.iter().enumerate() {
            for (min, max) in [(0, 0), (-3, 3), (10, 1_000_000)] {
                let distribution = ValueDistribution::new(index, min, max, 1.16);
                for row in 0..20_000 {
                    let value = distribution.draw(column.draws(row));
                    assert!((min..=max).contains(&value), "{name}: {value}");
                }
            }
        }
        let whole = ValueDistribution::new(0, i64::MIN, i64::MAX, 1.0);
        assert!((0..100).any(|row| whole.draw(column.draws(row)) < 0));
    }
}
