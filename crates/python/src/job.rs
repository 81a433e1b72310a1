//! Jobs in the background.

use std::sync::Arc;

use millstream::embedded::RunningJob;
use millstream::{CheckpointProgress, Error, JobProgress, Report};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{in_python, interrupted, raised};
use crate::state::SessionState;
use crate::wait;

/// A script that runs in the background.
#[pyclass(name = "Job", frozen, module = "millstream._millstream")]
pub(crate) struct PyJob {
    state: Arc<SessionState>,
    job: RunningJob,
    sql: String,
    bounded: bool,
}

impl PyJob {
    pub(crate) fn new(
        state: Arc<SessionState>,
        job: RunningJob,
        sql: String,
        bounded: bool,
    ) -> Self {
        Self { state, job, sql, bounded }
    }

    /// Waits for its end. Ctrl-C drops it where its inputs end, and ends them where they do not.
    pub(crate) fn finish<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let waited = self.wait(py, timeout);
        if let Err(error) = &waited
            && self.job.result().is_none()
        {
            let is_interrupt = error.is_instance_of::<PyKeyboardInterrupt>(py);
            if is_interrupt && !self.bounded {
                self.job.stop()
            } else {
                self.job.abort()
            }
            py.detach(|| self.job.wait(std::time::Duration::from_millis(500)));
            if is_interrupt {
                self.job.abort();
                return Err(interrupted(py));
            }
        }
        waited
    }
}

#[pymethods]
impl PyJob {
    /// Its text.
    #[getter(sql)]
    fn text(&self) -> &str {
        &self.sql
    }

    /// Whether it has ended, well or not.
    #[getter]
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.state.check(py)?;
        Ok(self.job.result().is_some())
    }

    /// How far it is: a dictionary, `None` before that is known.
    #[getter]
    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.state.check(py)?;
        self.job.progress().map(|progress| progress_of(py, &progress)).transpose()
    }

    /// What was said about its checkpoints so far.
    #[getter]
    fn messages(&self) -> Vec<String> {
        self.job.messages().iter().map(|message| in_python(message)).collect()
    }

    /// Ends its inputs: what was read is finished and published. A job that keeps checkpoints takes
    /// a last one, and goes on when it is run again.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.state.check(py)?;
        self.job.stop();
        Ok(())
    }

    /// Drops it: nothing of what runs is published.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.state.check(py)?;
        self.job.abort();
        Ok(())
    }

    /// Waits for its end, and gives its report. After Ctrl-C it goes on.
    #[pyo3(signature = (timeout = None))]
    fn wait<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        self.state.check(py)?;
        let timeout = wait::seconds(timeout)?;
        let job = &self.job;
        match wait::until_at_most(py, timeout, |timeout| job.wait(timeout))? {
            Some(result) => self.reported(py, &result),
            None => Err(PyTimeoutError::new_err("the job still runs")),
        }
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let awaited = slf.py().import("millstream._awaited")?.getattr("awaited")?;
        awaited.call1((slf,))?.call_method0("__await__")
    }

    /// Its progress as HTML, in a notebook.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("millstream._display")?.getattr("job_html")?.call1((slf,))
    }

    /// Shows its progress in a notebook, until it ends.
    fn _ipython_display_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("millstream._display")?.getattr("show_job")?.call1((slf,))
    }

    fn __repr__(&self) -> String {
        let how = match self.job.result().as_deref() {
            None => "running",
            Some(Ok(report)) if report.cancelled => "stopped",
            Some(Ok(_)) => "ended",
            Some(Err(_)) => "failed",
        };
        format!("<millstream.Job, {how}>")
    }
}

impl PyJob {
    fn reported<'py>(
        &self,
        py: Python<'py>,
        result: &Result<Report, Error>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.state.forget_ended();
        match result {
            Ok(report) => {
                let made = report_of(py, report)?;
                made.set_item("messages", self.messages())?;
                Ok(made.into_any())
            }
            Err(error) => Err(raised(py, error, &self.sql)),
        }
    }
}

/// The number of the last checkpoint.
fn checkpoint(of: Option<&CheckpointProgress>) -> Option<u64> {
    of.and_then(|of| of.last.as_ref()).map(|last| last.number)
}

/// The progress of a job while it runs, and its report if it has ended well.
pub(crate) fn progress<'py>(
    py: Python<'py>,
    job: &RunningJob,
) -> PyResult<Option<Bound<'py, PyDict>>> {
    match job.result().as_deref() {
        Some(Ok(report)) => report_of(py, report).map(Some),
        _ => job.progress().map(|progress| progress_of(py, &progress)).transpose(),
    }
}

fn progress_of<'py>(py: Python<'py>, progress: &JobProgress) -> PyResult<Bound<'py, PyDict>> {
    let made = PyDict::new(py);
    let counters = &progress.counters;
    made.set_item("elapsed", progress.elapsed.as_secs_f64())?;
    made.set_item("rows_in", counters.rows_in)?;
    made.set_item("rows_out", counters.rows_out)?;
    made.set_item("late_rows", counters.late)?;
    made.set_item("bad_rows", progress.bad)?;
    made.set_item("done", progress.done)?;
    made.set_item("checkpoint", checkpoint(progress.checkpoints.as_ref()))?;
    made.set_item("lag", progress.lag.map(|lag| lag.as_secs_f64()))?;
    made.set_item("watermark_ms", millstream::finite_watermark(counters.watermark_ms))?;
    Ok(made)
}

fn report_of<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let made = PyDict::new(py);
    made.set_item("elapsed", report.elapsed.as_secs_f64())?;
    made.set_item("rows_in", report.total.rows_in)?;
    made.set_item("rows_out", report.total.rows_out)?;
    made.set_item("late_rows", report.total.late)?;
    made.set_item("bad_rows", report.bad)?;
    made.set_item("stopped", report.cancelled)?;
    made.set_item("checkpoint", checkpoint(report.checkpoints.as_ref()))?;
    Ok(made)
}
