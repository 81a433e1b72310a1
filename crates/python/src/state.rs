//! State that the objects of a session share, and threads that work for them.

use std::collections::BTreeMap;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use millstream::Error;
use millstream::cluster::Control;
use millstream::embedded::RunningJob;
use millstream::panics::{Panicked, caught};
use pyo3::prelude::*;

use crate::checkpoints::SessionJobs;
use crate::errors::{bug, failed, misused, runtime};
use crate::ranks::Ranks;
use crate::wait;

/// Bytes of stack for planning, which recurs as deep as expressions are nested.
const STACK_BYTES: usize = 32 << 20;

/// The wait for the jobs and the plans of a session that is closed. They end by themselves where
/// that is too short.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The same behind Ctrl-C, where a function of the program may go on for long.
pub(crate) const INTERRUPTED_CLOSE_TIMEOUT: Duration = Duration::from_millis(250);

/// State that relations, jobs and sources of a session share.
pub(crate) struct SessionState {
    /// `None` when it is closed. A thread that plans holds the lock, and a plan may call a function
    /// of the program that does not return.
    engine: Mutex<Option<millstream::Session>>,
    planning: PlanningTurns,
    /// Relaxed: the engine is behind its lock.
    is_closed: AtomicBool,
    /// Scripts that were started and may run.
    jobs: Mutex<Vec<RunningJob>>,
    /// The process that made it: a fork has none of its threads.
    process: u32,
    checkpoints: Option<SessionJobs>,
    ranks: Option<Ranks>,
    /// Whether rows are given in the memory in which they lie: see
    /// [`RowQueue::share`](millstream::embedded::RowQueue::share).
    shares: bool,
    /// Functions and tables of the program, for the other processes of the launcher.
    described: Mutex<BTreeMap<String, String>>,
}

/// Which call of Python has the engine now, so that Ctrl-C ends the planning of that call alone.
struct PlanningTurns {
    /// The flag of the engine: see
    /// [`interrupted_by`](millstream::SessionBuilder::interrupted_by).
    interrupted: Arc<AtomicBool>,
    /// How many calls there were.
    calls: AtomicU64,
    /// The call that has the engine.
    turn: Mutex<Option<u64>>,
}

/// A call that plans, or waits for its turn.
struct PlanningCall {
    number: u64,
    /// Relaxed: the lock of the turn orders it.
    is_given_up: AtomicBool,
}

impl PlanningTurns {
    /// A call has the engine from now on; false if nobody waits for it any more.
    fn begin(&self, call: &PlanningCall) -> bool {
        let mut turn = lock(&self.turn);
        if call.is_given_up.load(Ordering::Relaxed) {
            return false;
        }
        *turn = Some(call.number);
        self.interrupted.store(false, Ordering::Relaxed);
        true
    }

    fn end(&self) {
        *lock(&self.turn) = None;
    }

    /// Nobody waits for a call any more.
    fn give_up(&self, call: &PlanningCall) {
        let turn = lock(&self.turn);
        call.is_given_up.store(true, Ordering::Relaxed);
        if *turn == Some(call.number) {
            self.interrupted.store(true, Ordering::Relaxed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SessionState {
    pub(crate) fn new(
        engine: millstream::Session,
        interrupted: Arc<AtomicBool>,
        checkpoints: Option<SessionJobs>,
        ranks: Option<Ranks>,
        shares: bool,
    ) -> Self {
        let (engine, is_closed) = (Mutex::new(Some(engine)), AtomicBool::new(false));
        let (jobs, process, described) = (Mutex::default(), process::id(), Mutex::default());
        let planning =
            PlanningTurns { interrupted, calls: AtomicU64::new(0), turn: Mutex::default() };
        Self { engine, planning, is_closed, jobs, process, checkpoints, ranks, shares, described }
    }

    /// Whether it was closed, or is that of the process before a fork.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed) || self.process != process::id()
    }

    /// Whether rows are given in the memory in which they lie.
    pub(crate) fn shares(&self) -> bool {
        self.shares
    }

    /// Where its jobs keep checkpoints; `None` if they keep none.
    pub(crate) fn jobs(&self) -> Option<&SessionJobs> {
        self.checkpoints.as_ref()
    }

    /// The processes of the launcher; `None` where this one is alone.
    pub(crate) fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
    }

    /// Notes something that has to be the same in all processes.
    pub(crate) fn describe_as(&self, name: String, described: String) {
        lock(&self.described).insert(name, described);
    }

    /// The connection with the other processes for a run of a text, if there are any.
    ///
    /// # Errors
    /// When they do not come in time, or run something else.
    pub(crate) fn met(&self, sql: &str) -> Result<Option<Control>, Error> {
        let Some(ranks) = &self.ranks else { return Ok(None) };
        let described = lock(&self.described).clone().into_iter();
        let text = ("the text of SQL".to_owned(), sql.to_owned());
        ranks.begin(&std::iter::once(text).chain(described).collect::<Vec<_>>()).map(Some)
    }

    /// The exception of a call that comes behind the end of the session.
    pub(crate) fn closed(&self, py: Python<'_>) -> PyErr {
        misused(py, "the session is closed", "make another: millstream.Session()")
    }

    /// Refuses to go on in a fork.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.process == process::id() {
            return Ok(());
        }
        Err(failed(
            py,
            "this session was made by another process, before a fork",
            "make the session in the process that uses it, or start processes by 'spawn'",
        ))
    }

    /// Does something with the session on a thread of its own, so that Ctrl-C ends the wait for it.
    pub(crate) fn with<T: Send + 'static>(
        self: &Arc<Self>,
        py: Python<'_>,
        run: impl FnOnce(&mut millstream::Session) -> T + Send + 'static,
    ) -> PyResult<T> {
        self.check(py)?;
        let state = Arc::clone(self);
        let call = Arc::new(PlanningCall {
            number: self.planning.calls.fetch_add(1, Ordering::Relaxed),
            is_given_up: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&call);
        let done = spawned("millstream-plan", move || {
            let mut engine = lock(&state.engine);
            if !state.planning.begin(&of_thread) {
                return None;
            }
            let made = engine.as_mut().filter(|_| !state.is_closed()).map(run);
            state.planning.end();
            drop(engine);
            made
        })?;
        match awaited(py, done).inspect_err(|_| self.planning.give_up(&call))? {
            Some(made) => Ok(made),
            None => Err(self.closed(py)),
        }
    }

    /// Drops the scripts that run, and ends the session. They may not have ended after `limit`.
    pub(crate) fn close(self: &Arc<Self>, py: Python<'_>, limit: Duration) -> PyResult<()> {
        self.check(py)?;
        self.is_closed.store(true, Ordering::Relaxed);
        let jobs = std::mem::take(&mut *lock(&self.jobs));
        jobs.iter().for_each(RunningJob::abort);
        let state = Arc::clone(self);
        let ended = spawned("millstream-close", move || {
            let ends = Instant::now() + CLOSE_TIMEOUT;
            for job in &jobs {
                job.wait(ends.saturating_duration_since(Instant::now()));
            }
            drop(lock(&state.engine).take());
        })?;
        awaited_at_most(py, limit, ended).map(drop)
    }

    /// The session as a text for people; `None` if it is closed.
    pub(crate) fn describe(&self) -> Option<String> {
        if self.is_closed() {
            return None;
        }
        lock(&self.engine).as_ref().map(|engine| format!("{engine:?}"))
    }

    /// A script that was started: it is dropped when the session is closed.
    pub(crate) fn keep(&self, job: &RunningJob) {
        let mut jobs = lock(&self.jobs);
        jobs.retain(|job| job.result().is_none());
        jobs.push(job.clone());
    }

    /// Forgets a script that was started to be read.
    pub(crate) fn forget_ended(&self) {
        lock(&self.jobs).retain(|job| job.result().is_none());
    }
}

/// Starts a thread, and gives where its result comes.
pub(crate) fn spawned<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> PyResult<mpsc::Receiver<Result<T, Panicked>>> {
    let (to, from) = mpsc::channel();
    let run = move || {
        // The receiver is gone after Ctrl-C.
        let _ = to.send(caught(run));
    };
    let thread = thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
    thread.spawn(run).map_err(|error| runtime(format!("cannot start a thread: {error}")))?;
    Ok(from)
}

/// Waits for the result of a thread. A panic of the thread is an exception.
pub(crate) fn awaited<T: Send>(
    py: Python<'_>,
    from: mpsc::Receiver<Result<T, Panicked>>,
) -> PyResult<T> {
    let made = wait::until(py, move |timeout| received(&from, timeout))?;
    made.map_err(|panicked| bug(py, panicked))
}

/// As [`awaited`], for `limit` at most; `None` after that.
pub(crate) fn awaited_at_most<T: Send>(
    py: Python<'_>,
    limit: Duration,
    from: mpsc::Receiver<Result<T, Panicked>>,
) -> PyResult<Option<T>> {
    let made = wait::until_at_most(py, Some(limit), move |timeout| received(&from, timeout))?;
    made.transpose().map_err(|panicked| bug(py, panicked))
}

fn received<T>(
    from: &mpsc::Receiver<Result<T, Panicked>>,
    timeout: Duration,
) -> Option<Result<T, Panicked>> {
    match from.recv_timeout(timeout) {
        Ok(made) => Some(made),
        Err(mpsc::RecvTimeoutError::Timeout) => None,
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Some(Err(Panicked::of(&"its thread has ended")))
        }
    }
}
