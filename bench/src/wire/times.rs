//! Times of many rounds, and processor time.

/// The times of single rounds, in nanoseconds one way.
#[derive(Debug, Clone, Default)]
pub struct RoundTimes(Vec<f64>);

impl RoundTimes {
    /// Of these rounds, there and back.
    pub fn of_rounds(mut rounds: Vec<f64>) -> Self {
        rounds.iter_mut().for_each(|round| *round /= 2.0);
        rounds.sort_by(f64::total_cmp);
        Self(rounds)
    }

    /// The time that a share of the rounds does not exceed: 0.5 for the median.
    pub fn quantile(&self, share: f64) -> f64 {
        let at = (share * self.0.len().saturating_sub(1) as f64) as usize;
        self.0.get(at).copied().unwrap_or(f64::NAN)
    }

    /// The median.
    pub fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The 99th percentile.
    pub fn p99(&self) -> f64 {
        self.quantile(0.99)
    }
}

/// Processor time of the calling thread so far, in seconds; 0 where the system does not tell.
pub fn cpu_s() -> f64 {
    // Its first number, in nanoseconds.
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    times.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_one_way() {
        let times = RoundTimes::of_rounds((0..=100).rev().map(f64::from).collect());
        assert_eq!((times.p50(), times.p99(), times.quantile(1.0)), (25.0, 49.5, 50.0));
        assert!(RoundTimes::default().p50().is_nan());
    }
}
