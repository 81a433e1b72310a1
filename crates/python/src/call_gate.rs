//! Which worker calls Python next, where calls are short.
//!
//! A call of a kernel of pyarrow gives the interpreter's lock away while it computes. A worker that
//! waits for the lock takes it then, and the first one has to wait until the second gives it back:
//! two workers that call short functions hand the lock over several times a call, which takes
//! longer than the calls themselves. So workers wait for each other before they take the lock.
//! Longer calls do not wait: those that give the lock away run at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Calls up to this long are short: handing the lock over within them takes about as long, with two
/// workers as with four.
const SHORT: Duration = Duration::from_micros(150);

/// How long a call waits for another one at most. A function may itself wait for a query whose
/// workers call functions: they go on behind this time.
const WAIT: Duration = Duration::from_millis(2);

/// The calls of which the shortest counts. Of a function whose calls are not short one of as many
/// waits all the same, and is measured: its calls may have become short.
const MEASURED: u64 = 16;

/// The gate of this process's interpreter.
pub(crate) static INTERPRETER: CallGate =
    CallGate { taken: AtomicBool::new(false), sleepers: Mutex::new(()), released: Condvar::new() };

/// Lets one call in at a time.
pub(crate) struct CallGate {
    /// Acquire and release: what a call has done is there for the next one.
    taken: AtomicBool,
    sleepers: Mutex<()>,
    released: Condvar,
}

/// A call that was let in. Dropping it lets the next one in.
pub(crate) struct Entered<'a>(&'a CallGate);

impl CallGate {
    /// Waits for the call before; `None` where that takes longer than [`WAIT`]. It sleeps only when
    /// the call before is no short one, since a thread takes a while to wake up.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        let began = Instant::now();
        while !self.take() {
            if began.elapsed() > SHORT {
                return self.sleep();
            }
            std::thread::yield_now();
        }
        Some(Entered(self))
    }

    fn sleep(&self) -> Option<Entered<'_>> {
        let sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.released.wait_timeout_while(sleepers, WAIT, |()| !self.take());
        let timed_out = waited.unwrap_or_else(PoisonError::into_inner).1.timed_out();
        (!timed_out).then(|| Entered(self))
    }

    /// Takes it, unless another call has it.
    fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Acquire)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
        // A thread that has found it taken, and is about to sleep, holds the lock until it sleeps.
        drop(self.0.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.released.notify_one();
    }
}

/// How long the calls of a function take. Relaxed: a lost change makes it no worse.
#[derive(Default)]
pub(crate) struct CallTime {
    calls: AtomicU64,
    /// The most rows of a call. Calls of less than half of them say nothing.
    rows_max: AtomicUsize,
    /// How many calls were measured, the shortest of the present [`MEASURED`] ones, and that of
    /// those before.
    measured: AtomicU64,
    shortest_ns: AtomicU64,
    shortest_before_ns: AtomicU64,
}

impl CallTime {
    /// Whether the next call waits for others.
    pub(crate) fn is_gated(&self) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let shortest = self.shortest_before_ns.load(Ordering::Relaxed);
        u128::from(shortest) <= SHORT.as_nanos() || calls.is_multiple_of(MEASURED)
    }

    /// Takes the time of a call that was let in into account. The shortest of some counts: others
    /// were disturbed by calls that do not wait, or by threads without a processor.
    pub(crate) fn add(&self, rows: usize, ran: Duration) {
        if rows < self.rows_max.fetch_max(rows, Ordering::Relaxed) / 2 {
            return;
        }
        let ran = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
        if self.measured.fetch_add(1, Ordering::Relaxed).is_multiple_of(MEASURED) {
            let shortest = self.shortest_ns.swap(ran, Ordering::Relaxed);
            self.shortest_before_ns.store(shortest, Ordering::Relaxed);
        } else {
            self.shortest_ns.fetch_min(ran, Ordering::Relaxed);
        }
    }
}
