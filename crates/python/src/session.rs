//! Sessions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use arrow::datatypes::{DataType, Fields, Schema};
use millstream::embedded::{APPENDED_BYTES_MAX, MemoryTable, RowQueue};
use millstream::pool::PoolOptions;
use millstream::{Error, FunctionVolatility, PlanDecisions, RowTarget};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};

use crate::aggregate::PyAggregate;
use crate::capsules;
use crate::checkpoints::{JobOptions, SessionJobs};
use crate::errors::{failed, misused, raised};
use crate::failed_rows::PyFailedRows;
use crate::function::{CalledPython, FunctionCounts, PyFunction};
use crate::ranks::{Ranks, SessionCard};
use crate::relation::PyRelation;
use crate::source::PySource;
use crate::state::{CLOSE_TIMEOUT, INTERRUPTED_CLOSE_TIMEOUT, SessionState, awaited, spawned};

/// The session of an engine in this process.
#[pyclass(name = "Session", frozen, weakref, module = "millstream._millstream")]
pub(crate) struct PySession(Arc<SessionState>);

#[pymethods]
impl PySession {
    #[new]
    #[pyo3(signature = (
        *, workers = None, settings = None, spill_dir = None, state = None, job = None,
        pool = None, pool_token_file = None, pool_certs = None
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords of Python")]
    fn new(
        py: Python<'_>,
        workers: Option<u32>,
        settings: Option<&Bound<'_, PyDict>>,
        spill_dir: Option<PathBuf>,
        state: Option<String>,
        job: Option<String>,
        pool: Option<Vec<String>>,
        pool_token_file: Option<PathBuf>,
        pool_certs: Option<PathBuf>,
    ) -> PyResult<Self> {
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        for (key, value) in settings.into_iter().flatten() {
            all.insert(key.extract()?, value.str()?.extract()?);
        }
        if let Some(directory) = spill_dir {
            all.insert("millstream.spill_dir".into(), directory.to_string_lossy().into_owned());
        }
        let pool = pool.map(|addresses| PoolOptions {
            token_file: pool_token_file,
            certs: pool_certs,
            ..PoolOptions::new(addresses)
        });
        if state.is_none() && job.is_some() {
            let hint = "say where its checkpoints are kept: state='/var/lib/jobs'";
            return Err(misused(py, "a job has a name where it has a state", hint));
        }
        let made = spawned("millstream-session", move || {
            session_of(workers, &all, state.map(|place| (place, job)), pool)
        })?;
        let made = awaited(py, made)?;
        made.map(|state| Self(Arc::new(state))).map_err(|error| raised(py, &error, ""))
    }

    /// The number of this process among those of the launcher.
    #[getter]
    fn rank(&self) -> u32 {
        self.0.ranks().map_or(0, Ranks::rank)
    }

    /// The number of processes of the launcher.
    #[getter]
    fn nodes(&self) -> u32 {
        self.0.ranks().map_or(1, Ranks::nodes)
    }

    /// Plans a text of SQL. Definitions are in force at once; nothing else runs yet.
    #[pyo3(signature = (text, *, job = None, resume = "latest", evolve = false, take_over = false))]
    fn sql(
        &self,
        py: Python<'_>,
        text: &str,
        job: Option<String>,
        resume: &str,
        evolve: bool,
        take_over: bool,
    ) -> PyResult<PyRelation> {
        let (rows, sql) = (RowQueue::default(), text.to_owned());
        if self.0.jobs().is_none() && job.is_some() {
            let hint = "millstream.Session(state='/var/lib/jobs') says where";
            return Err(misused(py, "this session keeps no checkpoints", hint));
        }
        if self.0.shares() {
            rows.share();
        }
        let (target, is_asked) = (RowTarget::Connector(Arc::new(rows.clone())), job.is_some());
        let asked = JobOptions { job, resume: JobOptions::resume(resume), evolve, take_over };
        let (of_thread, state) = (sql.clone(), Arc::clone(&self.0));
        let planned = self.0.with(py, move |session| {
            let jobs = state.jobs().filter(|_| is_asked || !is_query(&of_thread));
            let options = jobs.map(|jobs| jobs.options(&asked)).transpose()?.flatten();
            let decisions = options.as_ref().map(PlanDecisions::of).transpose()?;
            session.rows_to(target)?;
            session.resume(&decisions.unwrap_or_default());
            Ok((session.sql(&of_thread)?, options))
        })?;
        let (script, options) = planned.map_err(|error| raised(py, &error, &sql))?;
        let schemas = rows.schemas();
        if schemas.len() > 1 {
            let message = format!("the text has {} queries that give rows", schemas.len());
            return Err(misused(py, &message, "give each to a call of its own"));
        }
        let schema = schemas.into_iter().next();
        if schema.is_some() && is_asked {
            let message = "a query whose rows are read here keeps no checkpoints";
            return Err(misused(py, message, "INSERT its rows into a table"));
        }
        let options = options.filter(|_| schema.is_none() && !script.jobs().is_empty());
        if let (Some(options), Some(jobs)) = (&options, self.0.jobs()) {
            jobs.name(&options.job, &sql).map_err(|error| raised(py, &error, &sql))?;
        }
        Ok(PyRelation::new(Arc::clone(&self.0), script, rows, schema, sql, options))
    }

    /// Makes a table of anything with `__arrow_c_stream__`. It is read whole, here.
    fn register(&self, py: Python<'_>, name: &str, table: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.check(py)?;
        let mut reader = capsules::stream_of(table)?;
        // After Ctrl-C this call is gone, and the thread reads no further.
        let waits = Arc::new(());
        let waiting = Arc::downgrade(&waits);
        // Another library may call Python while it gives its batches: the lock is free meanwhile.
        let done = spawned("millstream-read", move || {
            let mut batches = vec![];
            while waiting.strong_count() > 0
                && let Some(batch) = reader.next()?
            {
                batches.push(batch);
            }
            Ok((Arc::clone(reader.schema()), batches))
        })?;
        let read: Result<_, String> = awaited(py, done)?;
        drop(waits);
        let (schema, batches) =
            read.map_err(|message| failed(py, &message, "the table could not be read"))?;
        let name = name.to_owned();
        let count: usize = batches.iter().map(|batch| batch.num_rows()).sum();
        let described = format!("{count} rows of {schema:?}");
        let of_thread = name.clone();
        let added = self.0.with(py, move |session| {
            session.add_table(&of_thread, MemoryTable::new(schema, batches)?)
        })?;
        if added.is_ok() {
            self.0.describe_as(format!("table '{name}'"), described);
        }
        added.map_err(|error| raised(py, &error, ""))
    }

    /// Makes a table without an end, whose rows the program appends. `schema` is anything with
    /// `__arrow_c_schema__`. `on_bad` is "fail" or "skip".
    #[pyo3(signature = (name, schema, watermark, on_bad, max_bytes = None))]
    fn add_source(
        &self,
        py: Python<'_>,
        name: &str,
        schema: &Bound<'_, PyAny>,
        watermark: &str,
        on_bad: &str,
        max_bytes: Option<usize>,
    ) -> PyResult<PySource> {
        let skips_bad = match on_bad {
            "fail" => false,
            "skip" => true,
            other => {
                let message = format!("on_bad cannot be '{other}'");
                return Err(misused(py, &message, "'fail' or 'skip'"));
            }
        };
        if self.nodes() > 1 {
            let message = "a table that a program appends to is of one process";
            return Err(misused(py, message, "write the rows into files, which all nodes read"));
        }
        let (message, hint) = (
            "the columns of a source are a schema, and not a single type",
            "pyarrow.schema({'ts': pyarrow.timestamp('ms')})",
        );
        let schema = Arc::new(Schema::new(fields_of(py, schema, message, hint)?));
        let (of_thread, watermark) = (name.to_owned(), watermark.to_owned());
        let bytes_max = max_bytes.unwrap_or(APPENDED_BYTES_MAX);
        let added = self.0.with(py, move |session| {
            session.add_source(&of_thread, schema, &watermark, bytes_max)
        })?;
        let source = added.map_err(|error| raised(py, &error, ""))?;
        Ok(PySource::new(Arc::clone(&self.0), source, name.to_owned(), skips_bad))
    }

    /// Adds a function. `types` is a schema: its arguments, and behind them its result. `call`
    /// takes a list of arrays and gives one. Gives what shows its counts.
    fn add_function(
        &self,
        py: Python<'_>,
        name: &str,
        types: &Bound<'_, PyAny>,
        volatility: &str,
        call: Py<PyAny>,
        fingerprint: u64,
    ) -> PyResult<PyFunctionCounts> {
        let message = "the types of a function are a schema";
        let fields = fields_of(py, types, message, "pyarrow.schema(…)")?;
        let types = fields.iter().map(|field| field.data_type().clone()).collect();
        let volatility = match volatility {
            "immutable" => FunctionVolatility::Immutable,
            "stable" => FunctionVolatility::Stable,
            "volatile" => FunctionVolatility::Volatile,
            other => {
                let message = format!("there is no volatility '{other}'");
                return Err(misused(py, &message, "'immutable', 'stable' or 'volatile'"));
            }
        };
        let counts = Arc::default();
        let called = CalledPython::new(name, call, fingerprint, Arc::clone(&counts));
        let made = PyFunction::new(name.into(), types, volatility, called);
        let Some(function) = made else {
            return Err(misused(py, "a function has a result", "give its type"));
        };
        let added = self.0.with(py, move |session| session.add_function(Arc::new(function)))?;
        added.map_err(|error| raised(py, &error, ""))?;
        self.0.describe_as(format!("function '{name}'"), format!("{fingerprint:x}"));
        Ok(PyFunctionCounts(counts))
    }

    /// Makes a table of the rows for which a function fails.
    fn add_failed_rows(
        &self,
        py: Python<'_>,
        table: &str,
        function: String,
    ) -> PyResult<PyFailedRows> {
        if self.nodes() > 1 {
            let message = "the rows for which a function fails are kept by one process";
            return Err(misused(py, message, "on_error='null' counts them in each"));
        }
        let table = table.to_owned();
        let added = self.0.with(py, move |session| session.add_failed_rows(&table))?;
        let kept = added.map_err(|error| raised(py, &error, ""))?;
        Ok(PyFailedRows::new(function, kept))
    }

    /// Adds an aggregate. `types` is a schema: its arguments, of which there are `arguments`, the
    /// columns of its state, and behind them its result. `make` gives the groups of a worker.
    fn add_aggregate(
        &self,
        py: Python<'_>,
        name: &str,
        types: &Bound<'_, PyAny>,
        arguments: usize,
        make: Py<PyAny>,
        fingerprint: u64,
    ) -> PyResult<PyFunctionCounts> {
        let message = "the types of an aggregate are a schema";
        let fields = fields_of(py, types, message, "pyarrow.schema(…)")?;
        let types: Vec<_> = fields.iter().map(|field| field.data_type().clone()).collect();
        let counts = Arc::default();
        let called = CalledPython::new(name, make, fingerprint, Arc::clone(&counts));
        let Some(aggregate) = PyAggregate::new(name.into(), types, arguments, called) else {
            return Err(misused(py, "an aggregate has a result", "give its type"));
        };
        let added = self.0.with(py, move |session| session.add_aggregate(Arc::new(aggregate)))?;
        added.map_err(|error| raised(py, &error, ""))?;
        self.0.describe_as(format!("aggregate '{name}'"), format!("{fingerprint:x}"));
        Ok(PyFunctionCounts(counts))
    }

    /// Changes a setting, as `SET 'key' = 'value'` does.
    fn set(&self, py: Python<'_>, key: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, value) = (key.to_owned(), value.str()?.extract::<String>()?);
        let done = self.0.with(py, move |session| session.set(&key, &value))?;
        done.map_err(|error: Error| raised(py, &error, ""))
    }

    /// The names of tables and views.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.0.with(py, |session| {
            session.vocabulary().relations.into_iter().map(|relation| relation.name).collect()
        })
    }

    /// Drops the scripts that run, and ends the session.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py, CLOSE_TIMEOUT)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// As [`close`](Self::close). Behind Ctrl-C what does not end at once is not waited for.
    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        let class = exception.get_item(0).ok();
        let class = class.as_ref().and_then(|class| class.cast::<PyType>().ok());
        let is_interrupt =
            class.map(|of| of.is_subclass_of::<PyKeyboardInterrupt>()).transpose()?;
        let is_interrupt = is_interrupt.unwrap_or(false);
        self.0.close(py, if is_interrupt { INTERRUPTED_CLOSE_TIMEOUT } else { CLOSE_TIMEOUT })
    }

    fn __repr__<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        let text = py.detach(|| self.0.describe());
        let text = text.map_or("<millstream.Session, closed>".into(), |engine| {
            format!("<millstream.{engine}>")
        });
        PyString::new(py, &text)
    }
}

/// Makes the session, which meets the other processes of a launcher.
fn session_of(
    workers: Option<u32>,
    settings: &BTreeMap<String, String>,
    state: Option<(String, Option<String>)>,
    pool: Option<PoolOptions>,
) -> Result<SessionState, Error> {
    let described =
        format!("{settings:?} {state:?} {:?}", pool.as_ref().map(|pool| &pool.addresses));
    let ranks = Ranks::meet(&SessionCard { workers, settings: &described })?;
    let processors = || thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let mut builder = millstream::Session::builder();
    builder = match &ranks {
        Some(ranks) => {
            builder.nodes(ranks.nodes()).workers(ranks.workers).started_at(ranks.started)
        }
        None => builder.workers(workers.unwrap_or_else(processors)),
    };
    for (key, value) in settings {
        builder = builder.set(key, value);
    }
    let shares = ranks.is_none() && pool.is_none();
    if let Some(pool) = pool {
        let job = ranks.as_ref().map(|ranks| ranks.number);
        builder = builder.pool(PoolOptions { job, ..pool });
    }
    let jobs = state.map(|(place, job)| SessionJobs::new(place, job)).transpose()?;
    let interrupted = Arc::<AtomicBool>::default();
    let engine = builder.interrupted_by(Arc::clone(&interrupted)).build()?;
    Ok(SessionState::new(engine, interrupted, jobs, ranks, shares))
}

/// Whether a text is a query and nothing else, judged by its first word: such a text has no job.
fn is_query(sql: &str) -> bool {
    let mut rest = sql;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '(');
        let comment = [("--", "\n"), ("/*", "*/")].into_iter().find(|of| rest.starts_with(of.0));
        let Some((_, end)) = comment else { break };
        rest = rest.split_once(end).map_or("", |(_, rest)| rest);
    }
    let word = rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    ["SELECT", "WITH", "VALUES", "EXPLAIN", "SHOW", "DESCRIBE"]
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known))
}

/// The fields of a schema; `message` and `hint` are for a single type.
fn fields_of(
    py: Python<'_>,
    schema: &Bound<'_, PyAny>,
    message: &str,
    hint: &str,
) -> PyResult<Fields> {
    match capsules::field_of(schema)?.data_type() {
        DataType::Struct(fields) => Ok(fields.clone()),
        _ => Err(misused(py, message, hint)),
    }
}

/// Counts of the calls of a function.
#[pyclass(name = "FunctionCounts", frozen, module = "millstream._millstream")]
pub(crate) struct PyFunctionCounts(Arc<FunctionCounts>);

#[pymethods]
impl PyFunctionCounts {
    /// Calls, rows, seconds with the interpreter's lock and seconds of waiting for it.
    fn shown<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.0.shown(py)
    }
}
