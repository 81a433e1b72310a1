//! Relations: planned texts of SQL. Queries run when they are read.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use millstream::cluster::Control;
use millstream::embedded::{
    QueuedRows, ROW_QUEUE_BYTES_MAX, RowQueue, RunningJob, StartOptions, TakenRows,
};
use millstream::{CheckpointOptions, ExplainFormat, Script};
use pyo3::exceptions::{PyKeyboardInterrupt, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::errors::{guarded, interrupted, misused, raised};
use crate::job::{self, PyJob};
use crate::rows::PyRows;
use crate::state::{SessionState, awaited, spawned};
use crate::{capsules, wait};

/// The wait for a query that Ctrl-C has dropped, shorter where its rows were waited for before. The
/// query ends by itself where that is too short.
const ABORT_WAIT: Duration = Duration::from_millis(500);

/// The wait for rows on a thread of another library that may have to look after Ctrl-C.
const NO_ROWS_AFTER: Duration = Duration::from_millis(100);

/// A planned text of SQL.
#[pyclass(name = "Relation", frozen, module = "millstream._millstream")]
pub(crate) struct PyRelation {
    state: Arc<SessionState>,
    script: Arc<Script>,
    rows: RowQueue,
    /// The columns of its query; `None` if it gives no rows.
    schema: Option<SchemaRef>,
    sql: String,
    /// Where it keeps checkpoints.
    checkpoints: Option<CheckpointOptions>,
    /// The run before, and whether it is being read.
    last: Mutex<Option<(RunningJob, Arc<AtomicBool>)>>,
}

/// A query that runs, and is read.
pub(crate) struct QueryRun {
    job: RunningJob,
    rows: QueuedRows,
    schema: SchemaRef,
    sql: String,
    state: Arc<SessionState>,
    is_read: Arc<AtomicBool>,
    bounded: bool,
    /// The time at which Ctrl-C ended its inputs. Rows are waited for [`ABORT_WAIT`] longer.
    stopped: Option<std::time::Instant>,
    ended: bool,
}

impl PyRelation {
    pub(crate) fn new(
        state: Arc<SessionState>,
        script: Script,
        rows: RowQueue,
        schema: Option<SchemaRef>,
        sql: String,
        checkpoints: Option<CheckpointOptions>,
    ) -> Self {
        let schema = schema.map(|schema| Arc::new(Schema::new(schema.fields().clone())));
        let (script, last) = (Arc::new(script), Mutex::default());
        Self { state, script, rows, schema, sql, checkpoints, last }
    }

    fn schema(&self, py: Python<'_>) -> PyResult<SchemaRef> {
        self.schema.clone().ok_or_else(|| {
            misused(py, "this statement gives no rows", "run it by .run(), or by .start()")
        })
    }

    fn bounded(&self) -> bool {
        self.script.jobs().iter().all(millstream::Job::bounded)
    }

    /// Starts it, when the run before has ended.
    fn begin(
        &self,
        py: Python<'_>,
        is_read: &Arc<AtomicBool>,
    ) -> PyResult<(RunningJob, QueuedRows)> {
        self.state.check(py)?;
        let is_being_read = || {
            if self.schema.is_none() {
                let hint = "wait for their job, or plan the text again";
                return misused(py, "these statements are running", hint);
            }
            let hint = "read it to its end, close its batches, or plan the text again";
            misused(py, "this relation is being read", hint)
        };
        // Another thread that starts it at the same time would take the rows of this run.
        let mut last = match self.last.try_lock() {
            Ok(last) => last,
            Err(TryLockError::Poisoned(last)) => last.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(is_being_read()),
        };
        if let Some((job, is_read)) = &*last {
            if is_read.load(Ordering::Relaxed) && job.result().is_none() {
                return Err(is_being_read());
            }
            wait::until(py, |timeout| job.wait(timeout))?;
        }
        let queue = self.rows.begin(ROW_QUEUE_BYTES_MAX);
        let rows = self.rows.clone();
        let failed = |error| raised(py, &error, &self.sql);
        let jobs = self.state.jobs().zip(self.checkpoints.as_ref());
        let name = jobs.map(|(jobs, of)| jobs.begin(&of.job)).transpose().map_err(failed)?;
        let control = self.met(py)?;
        let how = StartOptions { state: self.checkpoints.clone(), control };
        let started = Arc::clone(&self.script).start(how, move |_| {
            drop(name);
            rows.end();
        });
        let job = started.map_err(failed)?;
        self.state.keep(&job);
        *last = Some((job.clone(), Arc::clone(is_read)));
        Ok((job, queue))
    }

    /// Meets the other processes of the launcher, if there are any, and sees whether this machine
    /// has the memory.
    fn met(&self, py: Python<'_>) -> PyResult<Option<Control>> {
        if self.state.ranks().is_none() {
            return Ok(None);
        }
        let (state, script) = (Arc::clone(&self.state), Arc::clone(&self.script));
        let sql = self.sql.clone();
        let met = spawned("millstream-meet", move || {
            let control = state.met(&sql)?;
            if let Some(control) = &control
                && let Err(error) = script.fits(control.address().is_loopback())
            {
                control.fail(&error.reason());
                control.close();
                return Err(error);
            }
            Ok(control)
        })?;
        awaited(py, met)?.map_err(|error| raised(py, &error, &self.sql))
    }

    fn run_rows(&self, py: Python<'_>) -> PyResult<QueryRun> {
        let schema = self.schema(py)?;
        let is_read = Arc::new(AtomicBool::new(true));
        let (job, rows) = self.begin(py, &is_read)?;
        let (state, sql, bounded) = (Arc::clone(&self.state), self.sql.clone(), self.bounded());
        let (stopped, ended) = (None, false);
        Ok(QueryRun { job, rows, schema, sql, state, is_read, bounded, stopped, ended })
    }
}

impl QueryRun {
    /// The next batch; `None` at the end.
    fn next(&mut self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        Ok(self.next_within(py, None)?.flatten())
    }

    /// As [`next`](Self::next), for another library. On a thread that hears of no signals no rows
    /// are given after a while, so that the library asks for them: its main thread may wait for
    /// this one in C.
    fn next_for_library(&mut self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let limit = (!wait::is_main_thread(py)?).then_some(NO_ROWS_AFTER);
        let next = self.next_within(py, limit)?;
        Ok(next.unwrap_or_else(|| Some(RecordBatch::new_empty(Arc::clone(&self.schema)))))
    }

    /// As [`next`](Self::next); the outer `None` is for a batch that has not come within `limit`.
    fn next_within(
        &mut self,
        py: Python<'_>,
        limit: Option<Duration>,
    ) -> PyResult<Option<Option<RecordBatch>>> {
        self.state.check(py)?;
        if self.ended {
            return Ok(Some(None));
        }
        // Where rows come quickly nothing is waited for, and only this call asks for signals.
        if let Err(error) = py.check_signals() {
            self.interrupt(py, error)?;
        }
        loop {
            let rows = &self.rows;
            let waited =
                wait::until_at_most(py, self.row_timeout().or(limit), |timeout| {
                    match rows.next(timeout) {
                        TakenRows::Batch(batch) => Some(Some(batch)),
                        TakenRows::End => Some(None),
                        TakenRows::None => None,
                    }
                });
            match waited {
                Ok(Some(Some(batch))) => return Ok(Some(Some(batch))),
                Ok(Some(None)) => break,
                Ok(None) if self.stopped.is_some() => return Err(self.abort(py, None)),
                Ok(None) => return Ok(None),
                Err(error) => self.interrupt(py, error)?,
            }
        }
        self.ended = true;
        let job = &self.job;
        let result = wait::until(py, |timeout| job.wait(timeout))?;
        self.state.forget_ended();
        match &*result {
            Ok(_) => Ok(Some(None)),
            Err(error) => Err(raised(py, error, &self.sql)),
        }
    }

    /// How long rows are waited for: without limit, unless Ctrl-C has ended the inputs.
    fn row_timeout(&self) -> Option<Duration> {
        self.stopped.map(|since| ABORT_WAIT.saturating_sub(since.elapsed()))
    }

    /// Ctrl-C: input that does not end, ends here, and the rows so far are given. The second time,
    /// and where the input ends by itself, the query is dropped.
    fn interrupt(&mut self, py: Python<'_>, error: PyErr) -> PyResult<()> {
        if !error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(self.abort(py, Some(error)));
        }
        if self.bounded || self.stopped.is_some() {
            return Err(self.abort(py, None));
        }
        self.job.stop();
        self.stopped = Some(std::time::Instant::now());
        Ok(())
    }

    /// Drops the query, and waits a while for its end.
    fn abort(&mut self, py: Python<'_>, error: Option<PyErr>) -> PyErr {
        self.ended = true;
        self.job.abort();
        let job = self.job.clone();
        let limit = if self.stopped.is_some() { ABORT_WAIT / 5 } else { ABORT_WAIT };
        py.detach(|| job.wait(limit));
        error.unwrap_or_else(|| interrupted(py))
    }
}

impl Drop for QueryRun {
    fn drop(&mut self) {
        self.job.abort();
        self.is_read.store(false, Ordering::Relaxed);
        self.state.forget_ended();
    }
}

#[pymethods]
impl PyRelation {
    /// Its text.
    #[getter(sql)]
    fn text(&self) -> &str {
        &self.sql
    }

    /// The names of its columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        let fields = self.schema.iter().flat_map(|schema| schema.fields());
        fields.map(|field| field.name().clone()).collect()
    }

    /// The types of its columns.
    #[getter]
    fn types(&self) -> Vec<String> {
        let fields = self.schema.iter().flat_map(|schema| schema.fields());
        fields.map(|field| field.data_type().to_string()).collect()
    }

    /// Whether its inputs end by themselves.
    #[getter(bounded)]
    fn ends(&self) -> bool {
        self.bounded()
    }

    /// Whether it gives rows: a query, and not a definition or an INSERT.
    #[getter]
    fn is_query(&self) -> bool {
        self.schema.is_some()
    }

    /// How it would run.
    #[pyo3(signature = (format = "text"))]
    fn explain(&self, py: Python<'_>, format: &str) -> PyResult<String> {
        let format = match format {
            "text" => ExplainFormat::Text,
            "json" => ExplainFormat::Json,
            "dot" => ExplainFormat::Dot,
            other => {
                let message = format!("there is no format '{other}': text, json or dot");
                return Err(PyValueError::new_err(message));
            }
        };
        guarded(py, || Ok(py.detach(|| self.script.explain_as(format))))
    }

    /// Runs it to its end and gives all of its rows.
    fn collect(&self, py: Python<'_>) -> PyResult<PyRows> {
        guarded(py, || {
            let mut run = self.run_rows(py)?;
            let mut batches = vec![];
            while let Some(batch) = run.next(py)? {
                batches.push(batch);
            }
            Ok(PyRows { schema: Arc::clone(&run.schema), batches })
        })
    }

    /// Runs it, and gives its rows as they come.
    fn batches(&self, py: Python<'_>) -> PyResult<PyBatches> {
        guarded(py, || {
            let run = self.run_rows(py)?;
            let (state, job) = (Arc::clone(&self.state), run.job.clone());
            let reading = BatchReading { run: Some(run), is_waited_for: false };
            Ok(PyBatches { state, job, reading: Mutex::new(reading) })
        })
    }

    /// Runs statements that give no rows, and waits for their end.
    #[pyo3(signature = (timeout = None))]
    fn run<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let job = self.start(py)?;
        job.finish(py, timeout)
    }

    /// Starts statements that give no rows in the background.
    fn start(&self, py: Python<'_>) -> PyResult<PyJob> {
        if self.schema.is_some() {
            let hint = "read its rows by .arrow(), .fetchall() or .batches(), or INSERT them";
            return Err(misused(py, "this is a query, and nobody would have its rows", hint));
        }
        guarded(py, || {
            let is_read = Arc::new(AtomicBool::new(true));
            let (job, _) = self.begin(py, &is_read)?;
            Ok(PyJob::new(Arc::clone(&self.state), job, self.sql.clone(), self.bounded()))
        })
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        guarded(py, || {
            let mut run = self.run_rows(py)?;
            let schema = Arc::clone(&run.schema);
            let next = move || {
                // The other library raises an error of its own with this text.
                Python::attach(|py| {
                    let next = run.next_for_library(py);
                    next.map_err(|error| error.value(py).to_string()).transpose()
                })
            };
            capsules::stream(py, schema, std::iter::from_fn(next))
        })
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::schema(py, &*self.schema(py)?)
    }
}

/// The batches of a query that runs.
#[pyclass(name = "Batches", frozen, module = "millstream._millstream")]
pub(crate) struct PyBatches {
    state: Arc<SessionState>,
    job: RunningJob,
    reading: Mutex<BatchReading>,
}

/// The query of batches, and whether a thread waits for its next one.
struct BatchReading {
    /// `None` behind the end, and while a thread waits.
    run: Option<QueryRun>,
    is_waited_for: bool,
}

impl PyBatches {
    fn reading(&self) -> MutexGuard<'_, BatchReading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The query, until it is [given back](Self::give_back); `None` behind the end.
    fn take(&self, py: Python<'_>) -> PyResult<Option<QueryRun>> {
        self.state.check(py)?;
        let mut reading = self.reading();
        if reading.is_waited_for {
            let hint = "each thread reads a query of its own, or takes batches from a queue";
            return Err(misused(py, "another thread waits for a batch of this query", hint));
        }
        reading.is_waited_for = reading.run.is_some();
        Ok(reading.run.take())
    }

    fn give_back(&self, run: Option<QueryRun>) {
        *self.reading() = BatchReading { run, is_waited_for: false };
    }
}

#[pymethods]
impl PyBatches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyRows>> {
        self.next_within(py, None)
    }

    /// The next batch, `None` at the end; `TimeoutError` if it does not come in so many seconds.
    #[pyo3(signature = (timeout))]
    fn next_within(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyRows>> {
        let limit = wait::seconds(timeout)?;
        let Some(mut run) = self.take(py)? else { return Ok(None) };
        let schema = Arc::clone(&run.schema);
        let next = guarded(py, || run.next_within(py, limit));
        self.give_back(matches!(next, Ok(None | Some(Some(_)))).then_some(run));
        match next? {
            Some(Some(batch)) => Ok(Some(PyRows { schema, batches: vec![batch] })),
            Some(None) => Ok(None),
            None => Err(PyTimeoutError::new_err("no batch has come in time")),
        }
    }

    /// How far the query is: a dictionary, its report behind the end, `None` before that is known.
    #[getter]
    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        job::progress(py, &self.job)
    }

    /// Drops the query. A thread that waits for its next batch gets an error.
    fn close(&self) {
        self.job.abort();
        let run = self.reading().run.take();
        drop(run);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
}
