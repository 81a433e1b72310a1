//! Where an operator runs: its worker, and what the operators of a worker share.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use fabric::Clock;
use state::Disk;

use crate::job::Settings;
use crate::runtime::accounting::StateAccounting;
use crate::runtime::external::External;
use crate::runtime::process::Process;
use crate::runtime::scheduler::Timers;

/// Where an operator runs.
pub(crate) struct WorkerContext {
    pub(crate) worker: u32,
    pub(crate) workers: u32,
    pub(crate) process: Arc<Process>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) accounting: Rc<StateAccounting>,
    pub(crate) disk: Option<Arc<dyn Disk>>,
    pub(crate) signals: Arc<Signals>,
    pub(crate) timers: Rc<Timers>,
    pub(crate) external: Rc<External>,
}

/// How others end a worker's run.
#[derive(Debug, Default)]
pub struct Signals {
    stop: AtomicBool,
    abort: AtomicBool,
    /// Of the workers.
    wakers: Mutex<Vec<Waker>>,
}

impl Signals {
    /// Ends the input: what was read is finished, windows that are still open are dropped, and so
    /// are complete ones where a grouping has more than a million rows of them; sinks are
    /// published.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends at once: nothing is published.
    pub fn abort(&self) {
        self.abort.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether [`Signals::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether [`Signals::abort`] was called.
    pub fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::Acquire)
    }

    /// Registers a worker that each signal wakes from now on.
    pub(crate) fn register(&self, waker: Waker) {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
    }

    fn wake(&self) {
        let wakers = self.wakers.lock().unwrap_or_else(PoisonError::into_inner);
        wakers.iter().for_each(Waker::wake_by_ref);
    }
}
