//! Time as a value, so that a simulated run owns it.

use std::time::Instant;

/// A monotonic clock in nanoseconds. The zero point has no meaning.
pub trait Clock: Send + Sync {
    /// Nanoseconds since this clock's zero point.
    fn now_ns(&self) -> u64;
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy)]
pub struct MonotonicClock {
    zero: Instant,
}

impl MonotonicClock {
    /// A clock whose zero point is now.
    pub fn new() -> Self {
        Self { zero: Instant::now() }
    }
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        self.zero.elapsed().as_nanos() as u64
    }
}
