//! When requests are due (W14): evenly, or by a Poisson process, as the paper has its streams.

use std::fmt;
use std::str::FromStr;

/// How requests of one rate follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrivals {
    /// At equal distances.
    Even,
    /// At distances that are independent of each other and exponential. A seed has one sequence of
    /// them, on each machine and in each run.
    Poisson {
        /// The seed.
        seed: u64,
    },
}

/// The seed where none is given.
const SEED: u64 = 1;

impl FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, seed) = text.split_once(':').map_or((text, None), |(of, seed)| (of, Some(seed)));
        match (name, seed) {
            ("even", None) => Ok(Self::Even),
            ("poisson", None) => Ok(Self::Poisson { seed: SEED }),
            ("poisson", Some(seed)) => {
                let seed = seed.parse().map_err(|_| format!("'{seed}' is no seed: a number"))?;
                Ok(Self::Poisson { seed })
            }
            _ => Err("it is even, poisson or poisson:SEED".into()),
        }
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Even => f.write_str("even"),
            Self::Poisson { seed } => write!(f, "poisson:{seed}"),
        }
    }
}

/// The times of the requests of one rate, one after the other, in nanoseconds since it began.
#[derive(Debug, Clone)]
pub(super) struct DueTimes {
    mean_ns: f64,
    of: Arrivals,
    /// Of the Poisson process: the state of its generator.
    state: u64,
    /// The requests before the next one.
    count: u64,
    next_ns: f64,
}

impl DueTimes {
    /// Of `per_second` requests, the rate number `phase` of a run.
    pub(super) fn new(of: Arrivals, per_second: f64, phase: usize) -> Self {
        let seed = if let Arrivals::Poisson { seed } = of { seed } else { 0 };
        let state = mixed(seed ^ mixed(phase as u64));
        let mut times =
            Self { mean_ns: 1e9 / per_second.max(1e-3), of, state, count: 0, next_ns: 0.0 };
        if of != Arrivals::Even {
            times.next_ns = times.distance_ns();
        }
        times
    }

    /// The next request, if it is due by then.
    pub(super) fn next_until(&mut self, passed_ns: u64) -> Option<u64> {
        let due_ns = self.next_ns;
        if due_ns > passed_ns as f64 {
            return None;
        }
        self.count += 1;
        self.next_ns = match self.of {
            // Not a sum of distances, which would lose as many halves of a nanosecond.
            Arrivals::Even => self.count as f64 * self.mean_ns,
            Arrivals::Poisson { .. } => due_ns + self.distance_ns(),
        };
        Some(due_ns as u64)
    }

    fn distance_ns(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // Above 0, whose logarithm is not finite, and at most 1.
        let above = ((mixed(self.state) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -above.ln() * self.mean_ns
    }
}

/// The finalizer of SplitMix64.
pub(super) fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn all(of: Arrivals, per_second: f64, phase: usize, until_ns: u64) -> Vec<u64> {
        let mut times = DueTimes::new(of, per_second, phase);
        std::iter::from_fn(|| times.next_until(until_ns)).collect()
    }

    #[test]
    fn even_requests_are_equally_far_apart() {
        assert_eq!(all(Arrivals::Even, 4.0, 3, SECOND), [0, 1, 2, 3, 4].map(|n| n * SECOND / 4));
        assert_eq!(all(Arrivals::Even, 1.0, 0, SECOND - 1), [0]);
        // Nothing is lost over many.
        assert_eq!(all(Arrivals::Even, 3e5, 0, 20 * SECOND - 1).len(), 6_000_000);
    }

    /// In each hundredth of a second as many come as the mean, and the variance is the mean too:
    /// what tells a Poisson process from even requests, whose variance there is 0.
    #[test]
    fn counts_of_a_poisson_process_have_their_mean_for_variance() {
        for seed in 1..6 {
            let times = all(Arrivals::Poisson { seed }, 10_000.0, 0, 10 * SECOND - 1);
            assert!(times.is_sorted());
            let mut counts = vec![0.0_f64; 1_000];
            times.iter().for_each(|at| counts[(at / 10_000_000) as usize] += 1.0);
            let mean = counts.iter().sum::<f64>() / 1e3;
            let variance = counts.iter().map(|of| (of - mean).powi(2)).sum::<f64>() / 1e3;
            assert!((mean - 100.0).abs() < 2.0, "{mean}");
            assert!((80.0..120.0).contains(&variance), "{variance}");
        }
    }

    #[test]
    fn a_seed_has_one_sequence_and_each_rate_its_own() {
        let of = |seed, phase| all(Arrivals::Poisson { seed }, 1e3, phase, SECOND);
        assert_eq!(of(7, 0), of(7, 0));
        assert_ne!(of(7, 0), of(8, 0));
        assert_ne!(of(7, 0), of(7, 1));
    }

    /// Whoever asks often gets the same requests as who asks once.
    #[test]
    fn requests_do_not_depend_on_when_they_are_asked_for() {
        let poisson = Arrivals::Poisson { seed: 3 };
        let mut times = DueTimes::new(poisson, 1e4, 0);
        let mut found = vec![];
        for at in (0..=SECOND).step_by(333_333) {
            found.extend(std::iter::from_fn(|| times.next_until(at)));
        }
        found.extend(std::iter::from_fn(|| times.next_until(SECOND)));
        assert_eq!(found, all(poisson, 1e4, 0, SECOND));
    }

    #[test]
    fn a_name_and_a_seed_are_read_and_written() {
        for text in ["even", "poisson:1", "poisson:99"] {
            assert_eq!(text.parse::<Arrivals>().unwrap().to_string(), text);
        }
        assert_eq!("poisson".parse(), Ok(Arrivals::Poisson { seed: SEED }));
        for text in ["", "even:1", "poisson:", "poisson:x", "Poisson"] {
            assert!(text.parse::<Arrivals>().is_err(), "{text}");
        }
    }
}
