//! A script that runs on a thread of its own.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dataflow::panics::caught;

use crate::error::Error;
use crate::report::{JobProgress, Report};
use crate::script::{RunOptions, Script};

/// A script that runs in the background. Dropping it drops the script: see
/// [`abort`](Self::abort). Clones are the same script.
#[derive(Clone)]
pub struct RunningJob {
    shared: Arc<Shared>,
    /// Held by the handles alone: the thread does not keep the script from being dropped.
    _alive: Arc<Alive>,
}

struct Shared {
    stop: AtomicBool,
    abort: AtomicBool,
    state: Mutex<RunState>,
    ended: Condvar,
}

#[derive(Default)]
struct RunState {
    progress: Option<JobProgress>,
    result: Option<Arc<Result<Report, Error>>>,
}

/// Ends the script when the last handle is gone.
struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        // The thread only reads the flag: nothing has to be ordered behind it.
        self.0.abort.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, RunState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Script {
    /// Runs the script on a thread of its own, on nodes of this process. `at_end` is called on that
    /// thread when the script has ended, before anybody sees that it has.
    ///
    /// # Errors
    /// [`Error::Thread`] when the operating system gives no thread.
    pub fn start(
        self: Arc<Self>,
        at_end: impl FnOnce(&Result<Report, Error>) + Send + 'static,
    ) -> Result<RunningJob, Error> {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            abort: AtomicBool::new(false),
            state: Mutex::default(),
            ended: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let run = move || {
            let watch = |progress: &JobProgress| {
                of_thread.lock().progress = Some(progress.clone());
            };
            let options = RunOptions {
                cancel: Some(&of_thread.stop),
                abort: Some(&of_thread.abort),
                observer: Some(&watch),
                ..RunOptions::default()
            };
            let result = caught(|| self.run(&options)).unwrap_or_else(|panicked| {
                Err(Error::Panic { doing: "running a script".into(), panicked })
            });
            at_end(&result);
            drop(self);
            of_thread.lock().result = Some(Arc::new(result));
            of_thread.ended.notify_all();
        };
        let thread = thread::Builder::new().name("millstream-job".into());
        thread.spawn(run).map_err(|source| Error::Thread { worker: 0, source })?;
        Ok(RunningJob { _alive: Arc::new(Alive(Arc::clone(&shared))), shared })
    }
}

impl RunningJob {
    /// Ends the inputs: what was read is finished and published.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Drops the script: nothing of the job that runs is published, and it ends with
    /// [`Error::Interrupted`].
    pub fn abort(&self) {
        self.shared.abort.store(true, Ordering::Relaxed);
    }

    /// Waits until the script has ended, for `timeout` at most. `None` if it still runs.
    pub fn wait(&self, timeout: Duration) -> Option<Arc<Result<Report, Error>>> {
        let until = Instant::now() + timeout;
        let mut state = self.shared.lock();
        while state.result.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.shared.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.result.clone()
    }

    /// How the script has ended; `None` while it runs.
    pub fn result(&self) -> Option<Arc<Result<Report, Error>>> {
        self.shared.lock().result.clone()
    }

    /// The progress of the job that runs, a few hundred milliseconds old; `None` before the first
    /// is known.
    pub fn progress(&self) -> Option<JobProgress> {
        self.shared.lock().progress.clone()
    }
}

impl fmt::Debug for RunningJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningJob").field("ended", &self.result().is_some()).finish()
    }
}
