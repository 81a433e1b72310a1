//! Waiting without the interpreter's lock.

use std::time::Duration;

use pyo3::prelude::*;

/// How often a call that waits asks whether Ctrl-C was pressed. Another thread may have taken the
/// interpreter's lock until then.
pub(crate) const STEP: Duration = Duration::from_millis(50);

/// Calls `poll` without the interpreter's lock until it gives something. Each call may wait for as
/// long as it is given.
///
/// # Errors
/// The exception of a signal handler of Python: `KeyboardInterrupt` after Ctrl-C. Signals are
/// handled on Python's main thread alone.
pub(crate) fn until<T: Send>(
    py: Python<'_>,
    mut poll: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<T> {
    loop {
        if let Some(given) = py.detach(|| poll(STEP)) {
            return Ok(given);
        }
        py.check_signals()?;
    }
}

/// Calls `poll` in the same way for `timeout` at most; `None` after that.
///
/// # Errors
/// As [`until`].
pub(crate) fn until_at_most<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut poll: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    let Some(timeout) = timeout else { return until(py, poll).map(Some) };
    let began = std::time::Instant::now();
    loop {
        let left = timeout.saturating_sub(began.elapsed());
        if let Some(given) = py.detach(|| poll(left.min(STEP))) {
            return Ok(Some(given));
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

/// Whether signals are handled on this thread.
///
/// # Errors
/// When the module of threads cannot be imported.
pub(crate) fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    main.eq(threading.call_method0("get_ident")?)
}

/// The seconds of Python as a duration; `None` for no limit.
///
/// # Errors
/// `ValueError` for a number that is no length of time.
pub(crate) fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(seconds) = timeout else { return Ok(None) };
    let made = Duration::try_from_secs_f64(seconds);
    made.map(Some).map_err(|error| {
        pyo3::exceptions::PyValueError::new_err(format!("timeout = {seconds}: {error}"))
    })
}
