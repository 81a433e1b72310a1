//! Planning that its caller may end, as by Ctrl-C, while it waits for an origin or loads it.
//!
//! ```text
//! thread that plans ─▶ a thread of its own: looks at the origin, loads it
//!         │ ◀── done ──┘                         ▲
//!         └─ interrupted: gives it up ───────────┘ which it notices between two batches
//! ```
//!
//! An origin may not answer for as long as its timeouts last. So the thread that plans does not
//! wait for it, but for a thread that does, and leaves that one behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use dataflow::error::ConnectorError;

use super::staged::ASKED_AGAIN;

/// How long an interrupted call waits until what it gives up has ended. Work that waits for an
/// origin ends later, by itself.
const ENDS_WITHIN: Duration = Duration::from_millis(500);

/// Set to true to end what planning waits for: by the caller of the planner, who clears it, and for
/// work on a thread of its own that nobody waits for any more.
#[derive(Debug, Clone, Default)]
pub(super) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(super) fn new(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }

    pub(super) fn is_set(&self) -> bool {
        // Nothing is ordered behind it: the work ends, whenever it sees that.
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// When the planning of a statement on this table is ended.
    pub(super) fn check(&self, table: &str) -> Result<(), ConnectorError> {
        if self.is_set() { Err(interrupted(table)) } else { Ok(()) }
    }

    /// Does some work for a table on a thread of its own, and waits for it.
    ///
    /// # Errors
    /// That of the work. When the caller ends the planning meanwhile: then the work is given up.
    pub(super) fn waits_for<T: Send + 'static>(
        &self,
        table: &str,
        work: impl FnOnce(&Interrupt) -> Result<T, ConnectorError> + Send + 'static,
    ) -> Result<T, ConnectorError> {
        self.check(table)?;
        let given_up = Interrupt::default();
        let (of_work, span) = (given_up.clone(), tracing::Span::current());
        let (done, ended) = mpsc::channel();
        let work = move || {
            // Nobody may wait any more.
            let _ = done.send(span.in_scope(|| work(&of_work)));
        };
        let thread = thread::Builder::new().name("cache".into()).spawn(work);
        let thread = thread.map_err(|error| no_thread(table, &error))?;
        loop {
            match ended.recv_timeout(ASKED_AGAIN) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(interrupted) = self.check(table) {
                        given_up.0.store(true, Ordering::Relaxed);
                        let _ = ended.recv_timeout(ENDS_WITHIN);
                        return Err(interrupted);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => match thread.join() {
                    Err(panic) => std::panic::resume_unwind(panic),
                    Ok(()) => return Err(interrupted(table)),
                },
            }
        }
    }
}

fn interrupted(table: &str) -> ConnectorError {
    ConnectorError::Io {
        place: format!("pool table '{table}'"),
        message: "interrupted".into(),
        hint: None,
    }
}

/// The error of a thread that could not be started.
pub(super) fn no_thread(table: &str, error: &std::io::Error) -> ConnectorError {
    ConnectorError::Io {
        place: format!("pool table '{table}'"),
        message: format!("the system gives no thread: {error}"),
        hint: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_never_answers_is_left_behind() {
        let flag = Arc::new(AtomicBool::new(false));
        let interrupt = Interrupt::new(Arc::clone(&flag));
        assert_eq!(interrupt.waits_for("t", |_| Ok(7)).ok(), Some(7));
        let failed = interrupt.waits_for::<()>("t", |_| Err(interrupted("u")));
        assert!(failed.unwrap_err().to_string().contains("'u'"));

        let (tells, hears) = mpsc::channel();
        let (begun, begins) = (Arc::clone(&flag), tells.clone());
        let result = interrupt.waits_for("t", move |given_up| {
            begun.store(true, Ordering::Relaxed);
            while !given_up.is_set() {
                thread::yield_now();
            }
            // It goes on waiting for its origin.
            begins.send("it is given up").unwrap();
            thread::park();
            Ok(())
        });
        assert!(result.unwrap_err().to_string().contains("interrupted"));
        assert_eq!(hears.recv(), Ok("it is given up"));
        drop(tells);

        assert!(interrupt.waits_for("t", |_| Ok(())).is_err(), "it has not been cleared");
        flag.store(false, Ordering::Relaxed);
        assert!(interrupt.waits_for("t", |_| Ok(())).is_ok());
    }

    #[test]
    fn a_panic_of_the_work_is_one_of_the_caller() {
        let caught = std::panic::catch_unwind(|| {
            Interrupt::default().waits_for::<()>("t", |_| panic!("as the test wants"))
        });
        assert!(caught.is_err());
    }
}
