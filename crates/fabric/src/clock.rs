//! Time as a value, so that a simulated run owns it.

use std::time::Instant;

/// A monotonic clock in nanoseconds. The zero point has no meaning.
pub trait Clock: Send + Sync {
    /// Nanoseconds since this clock's zero point.
    fn now_ns(&self) -> u64;

    /// Nanoseconds that the calling thread has spent on a processor, from a zero point of its own.
    /// A clock that does not know it takes all time for work.
    fn worked_ns(&self) -> u64 {
        self.now_ns()
    }

    /// How often the calling thread has given its processor up to wait for something. A thread
    /// whose processor was taken away did not wait. Always the same where a clock does not know it.
    fn sleeps(&self) -> u64 {
        0
    }
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

    fn worked_ns(&self) -> u64 {
        clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_else(|| self.now_ns())
    }

    fn sleeps(&self) -> u64 {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes one `rusage`, and `usage` is one that this call alone has.
        let known = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        // SAFETY: all bytes of it are zero or were written by the kernel, and any are integers.
        let usage = unsafe { usage.assume_init() };
        if known == 0 { usage.ru_nvcsw as u64 } else { 0 }
    }
}

/// Nanoseconds of processor time of all threads of this process, those that have ended among them;
/// 0 where the system does not tell.
pub fn process_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// Nanoseconds of a clock of the system, if it has that clock.
fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one `timespec`, and `time` is one that this call alone has.
    let known = unsafe { libc::clock_gettime(clock, &mut time) };
    (known == 0).then(|| (time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_moves_its_clock() {
        let clock = MonotonicClock::new();
        let before = clock.worked_ns();
        // However long that takes.
        while clock.worked_ns() == before {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_sleep_is_counted() {
        let clock = MonotonicClock::new();
        let before = clock.sleeps();
        while clock.sleeps() == before {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
