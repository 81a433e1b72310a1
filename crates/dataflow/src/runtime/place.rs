//! Where an operator runs: its worker, and what the operators of a worker share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use fabric::Clock;
use state::Disk;

use crate::checkpoint::{CheckpointTarget, Restored, SinkSnapshot};
use crate::connector::peers::NeededPeers;
use crate::job::Settings;
use crate::runtime::accounting::StateAccounting;
use crate::runtime::external::External;
use crate::runtime::process::Process;
use crate::runtime::rounds::WorkerRounds;
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
    /// Takes what the worker keeps, if the job keeps checkpoints.
    pub(crate) checkpoints: Option<Arc<dyn CheckpointTarget>>,
    /// The checkpoint that the job goes on from.
    pub(crate) restored: Option<Arc<Restored>>,
    /// By operator the watermark up to which its results had been emitted, if the job goes on.
    pub(crate) watermarks: Vec<i64>,
    /// The round with which the worker begins.
    pub(crate) round: u64,
    /// The rounds of the worker, if its job keeps checkpoints and all of its operators can save.
    pub(crate) rounds: Option<Rc<WorkerRounds>>,
    /// The staged output of sinks that have all of their rows.
    pub(crate) staged_last: Rc<RefCell<Vec<SinkSnapshot>>>,
    /// The peers that the workers of the process still need.
    pub(crate) peers: Arc<NeededPeers>,
}

impl WorkerContext {
    /// The workers that lead keys and keep state, from worker 0 on.
    pub(crate) fn stateful(&self) -> u32 {
        self.settings.stateful(self.workers)
    }

    /// The watermark up to which the results of an operator were emitted in the run before.
    pub(crate) fn watermark(&self, operator: u32) -> i64 {
        self.watermarks.get(operator as usize).copied().unwrap_or(i64::MIN)
    }
}

/// How others end a worker's run.
#[derive(Debug)]
pub struct Signals {
    stop: AtomicBool,
    abort: AtomicBool,
    /// The rounds before this one are to be ended.
    rounds_ended: AtomicU64,
    /// In this round and later ones sources read nothing.
    rests_from: AtomicU64,
    /// Of the workers.
    wakers: Mutex<Vec<Waker>>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            stop: AtomicBool::default(),
            abort: AtomicBool::default(),
            rounds_ended: AtomicU64::default(),
            rests_from: AtomicU64::new(u64::MAX),
            wakers: Mutex::default(),
        }
    }
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

    /// Ends a round, and all before it: sources mark where they are, and go on in the next one. The
    /// workers of a job without checkpoints end none. Whoever calls this waits for what the round
    /// before has brought of every worker, however they are told: else the job fails.
    pub fn end_round(&self, round: u64) {
        self.rounds_ended.fetch_max(round.saturating_add(1), Ordering::AcqRel);
        self.wake();
    }

    /// Has sources read nothing more once they have marked this round: no row behind it is seen by
    /// anybody. It is called before the round is [ended](Self::end_round) in any process, for a
    /// worker may hear of that end from a peer. Release: a source that sees the round's end sees
    /// this too.
    pub fn rest_behind(&self, round: u64) {
        self.rests_from.fetch_min(round.saturating_add(1), Ordering::Release);
        self.wake();
    }

    /// Whether sources read nothing in a round.
    pub(crate) fn rests_in(&self, round: u64) -> bool {
        round >= self.rests_from.load(Ordering::Acquire)
    }

    /// The rounds before this one are to be ended.
    pub(crate) fn rounds_ended(&self) -> u64 {
        self.rounds_ended.load(Ordering::Acquire)
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
