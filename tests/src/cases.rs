//! How many random cases a suite tries, and which.
//!
//! Every suite asks [`cases`] for its seeds, so that one variable holds for all of them:
//! `MILLSTREAM_CASES=5000` tries so many in each, `MILLSTREAM_SEED=17` that one alone. `make cases`
//! sets them. Without either, a suite tries the number that it names. Whatever its seeds are for is
//! a function of the seed alone, so a case is the same in a short run and a long one.

use std::env;
use std::ops::Range;

/// How many cases each suite tries, in place of its own number.
const CASES: &str = "MILLSTREAM_CASES";
/// The one case that is tried.
const SEED: &str = "MILLSTREAM_SEED";

/// The seeds of a suite. When a case fails, it says how to try that one again.
#[derive(Debug)]
pub struct Cases {
    left: Range<u64>,
    now: Option<u64>,
    usual: u64,
    tried: u64,
}

/// The seeds of a suite that by itself tries `usual` of them, from 0 on.
///
/// # Panics
/// When a variable is no number.
pub fn cases(usual: u64) -> Cases {
    let left = match (number(SEED), number(CASES)) {
        (Some(seed), _) => seed..seed.saturating_add(1),
        (None, Some(count)) => 0..count,
        (None, None) => 0..usual,
    };
    Cases { left, now: None, usual, tried: 0 }
}

impl Cases {
    /// Fails unless the cases have met what a suite of the usual length meets: a test whose cases
    /// are all of one easy kind would pass whatever the engine does. Shorter runs may be tame.
    ///
    /// # Panics
    /// When `met` is false and as many cases as usual were tried.
    pub fn met(&self, met: bool, what: &str) {
        assert!(met || self.tried < self.usual, "too tame: {what}");
    }
}

impl Iterator for &mut Cases {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.now = self.left.next();
        self.tried += u64::from(self.now.is_some());
        self.now
    }
}

impl Drop for Cases {
    fn drop(&mut self) {
        if let Some(seed) = self.now.filter(|_| std::thread::panicking()) {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or_default();
            eprintln!("this case alone: make cases SEED={seed} TEST={test}");
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name} is a number, not '{text}'"),
    }
}
