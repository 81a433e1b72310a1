//! Sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use arrow::datatypes::{DataType, Fields, Schema};
use millstream::embedded::{APPENDED_BYTES_MAX, MemoryTable, RowQueue};
use millstream::{Error, FunctionVolatility, RowTarget};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::capsules;
use crate::errors::{failed, guarded, misused, raised};
use crate::function::{FunctionCounts, PyFunction};
use crate::relation::PyRelation;
use crate::source::PySource;
use crate::state::{SessionState, awaited, spawned};

/// The session of an engine in this process.
#[pyclass(name = "Session", frozen, weakref, module = "millstream._millstream")]
pub(crate) struct PySession(Arc<SessionState>);

#[pymethods]
impl PySession {
    #[new]
    #[pyo3(signature = (*, workers = None, settings = None, spill_dir = None))]
    fn new(
        py: Python<'_>,
        workers: Option<u32>,
        settings: Option<&Bound<'_, PyDict>>,
        spill_dir: Option<std::path::PathBuf>,
    ) -> PyResult<Self> {
        let processors = || thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let mut all: HashMap<String, String> = HashMap::new();
        for (key, value) in settings.into_iter().flatten() {
            all.insert(key.extract()?, value.str()?.extract()?);
        }
        if let Some(directory) = spill_dir {
            all.insert("millstream.spill_dir".into(), directory.to_string_lossy().into_owned());
        }
        let workers = workers.unwrap_or_else(processors);
        guarded(py, || {
            let mut builder = millstream::Session::builder().workers(workers);
            for (key, value) in &all {
                builder = builder.set(key, value);
            }
            let engine = builder.build().map_err(|error| raised(py, &error, ""))?;
            Ok(Self(Arc::new(SessionState::new(engine))))
        })
    }

    /// Plans a text of SQL. Definitions are in force at once; nothing else runs yet.
    fn sql(&self, py: Python<'_>, text: &str) -> PyResult<PyRelation> {
        let (rows, sql) = (RowQueue::default(), text.to_owned());
        let target = RowTarget::Connector(Arc::new(rows.clone()));
        let of_thread = sql.clone();
        let planned = self.0.with(py, move |session| {
            session.rows_to(target)?;
            session.sql(&of_thread)
        })?;
        let script = planned.map_err(|error| raised(py, &error, &sql))?;
        let schemas = rows.schemas();
        if schemas.len() > 1 {
            let message = format!("the text has {} queries that give rows", schemas.len());
            return Err(misused(py, &message, "give each to a call of its own"));
        }
        let schema = schemas.into_iter().next();
        Ok(PyRelation::new(Arc::clone(&self.0), script, rows, schema, sql))
    }

    /// Makes a table of anything with `__arrow_c_stream__`. It is read whole, here.
    fn register(&self, py: Python<'_>, name: &str, table: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.check(py)?;
        let mut reader = capsules::stream_of(table)?;
        // Another library may call Python while it gives its batches: the lock is free meanwhile.
        let done = spawned("millstream-read", move || {
            let mut batches = vec![];
            while let Some(batch) = reader.next()? {
                batches.push(batch);
            }
            Ok((Arc::clone(reader.schema()), batches))
        })?;
        let read: Result<_, String> = awaited(py, done)?;
        let (schema, batches) =
            read.map_err(|message| failed(py, &message, "the table could not be read"))?;
        let name = name.to_owned();
        let added = self.0.with(py, move |session| {
            session.add_table(&name, MemoryTable::new(schema, batches)?)
        })?;
        added.map_err(|error| raised(py, &error, ""))
    }

    /// Makes a table without an end, whose rows the program appends. `schema` is anything with
    /// `__arrow_c_schema__`.
    #[pyo3(signature = (name, schema, watermark, max_bytes = None))]
    fn add_source(
        &self,
        py: Python<'_>,
        name: &str,
        schema: &Bound<'_, PyAny>,
        watermark: &str,
        max_bytes: Option<usize>,
    ) -> PyResult<PySource> {
        let (message, hint) = (
            "the columns of a source are a schema, and not a single type",
            "pyarrow.schema({'ts': pyarrow.timestamp('ms')})",
        );
        let schema = Arc::new(Schema::new(fields_of(py, schema, message, hint)?));
        let (name, watermark) = (name.to_owned(), watermark.to_owned());
        let bytes_max = max_bytes.unwrap_or(APPENDED_BYTES_MAX);
        let added = self
            .0
            .with(py, move |session| session.add_source(&name, schema, &watermark, bytes_max))?;
        let source = added.map_err(|error| raised(py, &error, ""))?;
        Ok(PySource::new(Arc::clone(&self.0), source))
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
        let made = PyFunction::new(name.into(), types, volatility, call, Arc::clone(&counts));
        let Some(function) = made else {
            return Err(misused(py, "a function has a result", "give its type"));
        };
        let added = self.0.with(py, move |session| session.add_function(Arc::new(function)))?;
        added.map_err(|error| raised(py, &error, ""))?;
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
        self.0.close(py)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.describe().is_none())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _exception: &Bound<'_, pyo3::types::PyTuple>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        let text = py.detach(|| self.0.describe());
        let text = text.map_or("<millstream.Session, closed>".into(), |engine| {
            format!("<millstream.{engine}>")
        });
        PyString::new(py, &text)
    }
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
