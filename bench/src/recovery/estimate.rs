//! Estimates from a sample: its median, an interval for that, and quantiles.

/// The least probability that an interval has the true median.
const CONFIDENCE: f64 = 0.95;

/// A median, with an interval in which the true one lies with a probability of 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MedianEstimate {
    /// The median of the sample.
    pub median: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The size of the sample.
    pub count: usize,
}

/// The median of a sample with its interval by order statistics, which assumes nothing of how
/// values are distributed; `None` for samples of fewer than 6, whose extremes are not enough.
pub fn median_estimate(values: &[f64]) -> Option<MedianEstimate> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let rank = (1..=count / 2).rev().find(|&rank| coverage(count, rank) >= CONFIDENCE)?;
    let (low, high) = (sorted[rank - 1], sorted[count - rank]);
    Some(MedianEstimate { median: middle(&sorted), low, high, count })
}

/// The probability that the median lies between the values of this rank from both ends.
fn coverage(count: usize, rank: usize) -> f64 {
    let mut below = 0.0;
    let mut chosen = 0.5f64.powi(count as i32);
    for k in 0..rank {
        below += chosen;
        chosen *= (count - k) as f64 / (k + 1) as f64;
    }
    1.0 - 2.0 * below
}

/// The median of values in their order; 0 of none.
fn middle(sorted: &[f64]) -> f64 {
    match sorted {
        [] => 0.0,
        _ => f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]),
    }
}

/// The median of values in any order; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    middle(&sorted)
}

/// The least value that a share of the sample does not exceed. Of fewer than `1 / (1 - share)`
/// values it is the greatest. `None` of none.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_has_the_ranks_of_the_tables_of_the_binomial_distribution() {
        // The size of a sample, and the rank from both ends, from tables of the sign test.
        for (count, rank) in [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (20, 6), (25, 8)] {
            let values: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            let found = median_estimate(&values).unwrap();
            assert_eq!((found.low, found.high), (f64::from(rank), f64::from(count + 1 - rank)));
            assert_eq!(found.median, f64::from(count + 1) / 2.0);
        }
        assert_eq!(median_estimate(&[1.0; 5]), None);
    }

    #[test]
    fn a_quantile_is_a_value_of_the_sample() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(quantile(&values, 0.99), Some(198.0));
        assert_eq!(quantile(&values, 0.5), Some(100.0));
        assert_eq!(quantile(&values[..20], 0.99), Some(200.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }
}
