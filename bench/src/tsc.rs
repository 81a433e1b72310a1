//! How many cycles a second has, by the counter that `rdtsc` reads: it runs at a constant rate
//! whatever the processor's clock does. Cycles are for comparisons with other machines and papers.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long it is counted.
const SPAN: Duration = Duration::from_millis(100);

/// Cycles a second; `None` on processors without such a counter.
#[derive(Debug, Default)]
pub struct Tsc(OnceLock<Option<f64>>);

impl Tsc {
    /// Cycles a second, measured at the first call.
    pub fn hertz(&self) -> Option<f64> {
        *self.0.get_or_init(measure)
    }
}

#[cfg(target_arch = "x86_64")]
fn measure() -> Option<f64> {
    fn now() -> u64 {
        // SAFETY: the instruction reads a counter and nothing else; every x86-64 has it.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
    let (start, from) = (Instant::now(), now());
    while start.elapsed() < SPAN {
        std::hint::spin_loop();
    }
    let (cycles, elapsed) = (now().wrapping_sub(from), start.elapsed());
    Some(cycles as f64 / elapsed.as_secs_f64())
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<f64> {
    None
}
