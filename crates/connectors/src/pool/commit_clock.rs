//! When the workers of a process hand in the rows of a table that grows: each interval, and when
//! they have written so many bytes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How often versions appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommitEvery {
    pub(super) interval: Duration,
    /// Bytes of rows of this process.
    pub(super) bytes: u64,
}

/// A clock that wakes the workers of a process. Its thread ends with it.
#[derive(Debug)]
pub(super) struct CommitClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    every: CommitEvery,
    /// How often it was time. A worker that reads a new number hands in what it has; no other
    /// memory is ordered by it.
    times: AtomicU64,
    /// Bytes since then, which may be a few too many or too few.
    bytes: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wakers: Vec<Waker>,
    ends: bool,
    /// The last time it was time, where bytes were the reason.
    restarted: Option<Instant>,
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strike(&self, state: &State) {
        self.bytes.store(0, Ordering::Relaxed);
        self.times.fetch_add(1, Ordering::Relaxed);
        state.wakers.iter().for_each(Waker::wake_by_ref);
    }

    /// Strikes each interval until the clock is dropped.
    fn run(&self) {
        let mut state = self.locked();
        let mut due = Instant::now() + self.every.interval;
        while !state.ends {
            let now = Instant::now();
            if let Some(at) = state.restarted.take() {
                due = at + self.every.interval;
            }
            if now >= due {
                self.strike(&state);
                due = now + self.every.interval;
            }
            let waited = self.changed.wait_timeout(state, due.saturating_duration_since(now));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl CommitClock {
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(every: CommitEvery) -> io::Result<Self> {
        let (times, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { every, times, bytes, state, changed });
        let run = Arc::clone(&shared);
        std::thread::Builder::new().name("pool-commit".into()).spawn(move || run.run())?;
        Ok(Self(shared))
    }

    /// Wakes this worker, too.
    pub(super) fn wakes(&self, waker: Waker) {
        self.0.locked().wakers.push(waker);
    }

    /// How often it was time.
    pub(super) fn times(&self) -> u64 {
        self.0.times.load(Ordering::Relaxed)
    }

    /// A worker has written `bytes`.
    pub(super) fn written(&self, bytes: u64) {
        let before = self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before < self.0.every.bytes && before.saturating_add(bytes) >= self.0.every.bytes {
            let mut state = self.0.locked();
            state.restarted = Some(Instant::now());
            self.0.strike(&state);
            drop(state);
            self.0.changed.notify_one();
        }
    }
}

impl Drop for CommitClock {
    fn drop(&mut self) {
        self.0.locked().ends = true;
        self.0.changed.notify_one();
    }
}
