//! A script that runs on a thread of its own.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::Control;
use dataflow::panics::caught;

use crate::error::Error;
use crate::progress::Observer;
use crate::recovery::CheckpointOptions;
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
    messages: Vec<String>,
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

/// How a script is run in the background.
#[derive(Debug, Default)]
pub struct StartOptions {
    /// Where its jobs keep checkpoints. [`RunningJob::stop`] takes a last one then, with which they
    /// go on when they are run again.
    pub state: Option<CheckpointOptions>,
    /// The connection with the other nodes, where they are processes of their own. The script fails
    /// them if it fails, and closes it at its end.
    pub control: Option<Control>,
}

/// Keeps what an observer is told.
struct JobWatch<'s>(&'s Shared);

impl Observer for JobWatch<'_> {
    fn progress(&self, progress: &JobProgress) {
        self.0.lock().progress = Some(progress.clone());
    }

    fn recovers(&self, line: &str) {
        self.0.lock().messages.push(line.to_owned());
    }
}

impl Script {
    /// Runs the script on a thread of its own. `at_end` is called on that thread when the script
    /// has ended, before anybody sees that it has.
    ///
    /// # Errors
    /// [`Error::Thread`] when the operating system gives no thread.
    pub fn start(
        self: Arc<Self>,
        how: StartOptions,
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
            let (watch, StartOptions { state, control }) = (JobWatch(&of_thread), how);
            let options = RunOptions {
                control: control.as_ref(),
                state: state.as_ref(),
                cancel: Some(&of_thread.stop),
                abort: Some(&of_thread.abort),
                observer: Some(&watch),
                ..RunOptions::default()
            };
            let result = caught(|| self.run(&options)).unwrap_or_else(|panicked| {
                Err(Error::Panic { doing: "running a script".into(), panicked })
            });
            if let Some(control) = control {
                if let Err(error) = &result
                    && error.failed_node().is_none()
                {
                    control.fail(&error.reason());
                }
                control.close();
            }
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

    /// What was said about its checkpoints so far, as on the screen of `millstream run --state`.
    pub fn messages(&self) -> Vec<String> {
        self.shared.lock().messages.clone()
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
