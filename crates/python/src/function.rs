//! Functions of SQL that are written in Python.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field};
use millstream::{BatchFunction, FunctionUsage, FunctionVolatility};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};

use crate::call_gate::{CallTime, INTERPRETER};
use crate::capsules;

/// A function over batches. The interpreter's lock is taken once a call.
pub(crate) struct PyFunction {
    name: String,
    arguments: Vec<DataType>,
    returns: DataType,
    volatility: FunctionVolatility,
    /// Takes the arguments as a list, and gives an array of Arrow.
    called: CalledPython,
}

/// An object of Python that workers call, with the counts of its calls.
pub(crate) struct CalledPython {
    name: String,
    object: Py<PyAny>,
    /// A hash of what it does.
    pub(crate) fingerprint: u64,
    counts: Arc<FunctionCounts>,
    /// The counts of all functions of this name, since the first call.
    of_process: OnceLock<Arc<FunctionCounts>>,
    time: CallTime,
}

/// Names of functions whose counts a process keeps. Others are counted together.
const NAMES_MAX: usize = 1_000;

/// The name under which they are: no function has it.
const OTHERS: &str = "(others)";

/// The counts of functions by their names, in all sessions of this process. They only grow.
static OF_PROCESS: Mutex<BTreeMap<String, Arc<FunctionCounts>>> = Mutex::new(BTreeMap::new());

fn of_process(name: &str) -> Arc<FunctionCounts> {
    let mut all = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_counted = all.contains_key(name) || all.len() < NAMES_MAX;
    let name = if is_counted { name } else { OTHERS };
    Arc::clone(all.entry(name.to_owned()).or_default())
}

/// The counts of the functions of this process, by their names, as dictionaries.
#[pyfunction]
pub(crate) fn function_counts(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let made = PyDict::new(py);
    for (name, counts) in all {
        let shown = counts.shown(py)?;
        shown.set_item("failed_rows", counts.failed_rows.load(Ordering::Relaxed))?;
        made.set_item(name, shown)?;
    }
    Ok(made)
}

/// Counts rows for which a function fails and that are not the end of its query.
#[pyfunction]
pub(crate) fn count_failed_rows(function: &str, rows: u64) {
    of_process(function).failed_rows.fetch_add(rows, Ordering::Relaxed);
}

impl CalledPython {
    pub(crate) fn new(
        name: &str,
        object: Py<PyAny>,
        fingerprint: u64,
        counts: Arc<FunctionCounts>,
    ) -> Self {
        let (name, of_process) = (name.to_owned(), OnceLock::new());
        Self { name, object, fingerprint, counts, of_process, time: CallTime::default() }
    }

    /// Takes the interpreter's lock, once, for a call with these rows.
    ///
    /// # Errors
    /// The text of the exception, with the lines that led to it.
    pub(crate) fn with<T>(
        &self,
        rows: usize,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, String> {
        let began = Instant::now();
        let entered = self.time.is_gated().then(|| INTERPRETER.enter()).flatten();
        let made = Python::try_attach(|py| {
            let attached = Instant::now();
            let made = call(self.object.bind(py)).map_err(|error| traceback(py, &error));
            let (ran, waited) = (attached.elapsed(), attached - began);
            if entered.is_some() {
                self.time.add(rows, ran);
            }
            self.counts.add(rows, ran, waited);
            self.of_process.get_or_init(|| of_process(&self.name)).add(rows, ran, waited);
            made
        });
        drop(entered);
        made.unwrap_or_else(|| Err("the interpreter ends".into()))
    }

    /// Calls it without arguments for an object, which is no call of the function that is counted.
    ///
    /// # Errors
    /// The text of the exception, with the lines that led to it.
    pub(crate) fn groups(&self, py: Python<'_>) -> Result<Py<PyAny>, String> {
        self.object.call0(py).map_err(|error| traceback(py, &error))
    }

    /// How it was called until now.
    pub(crate) fn usage(&self) -> FunctionUsage {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        FunctionUsage {
            calls: count(&self.counts.calls),
            rows: count(&self.counts.rows),
            ran: Duration::from_nanos(count(&self.counts.ran_ns)),
            waited: Duration::from_nanos(count(&self.counts.waited_ns)),
        }
    }
}

/// Arrays for Python.
pub(crate) fn arrays<'py>(py: Python<'py>, arrays: &[ArrayRef]) -> PyResult<Bound<'py, PyList>> {
    let all = arrays.iter().map(|array| Py::new(py, PyArray(Arc::clone(array))));
    PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
}

/// Counts of the calls of a function. Relaxed: they are only read for a person.
#[derive(Default)]
pub(crate) struct FunctionCounts {
    calls: AtomicU64,
    rows: AtomicU64,
    /// Nanoseconds with the interpreter's lock, and those that were waited for it.
    ran_ns: AtomicU64,
    waited_ns: AtomicU64,
    /// Rows for which it failed; of all sessions alone.
    failed_rows: AtomicU64,
}

impl FunctionCounts {
    /// Adds a call.
    fn add(&self, rows: usize, ran: Duration, waited: Duration) {
        let add = |to: &AtomicU64, count: u64| to.fetch_add(count, Ordering::Relaxed);
        add(&self.calls, 1);
        add(&self.rows, rows as u64);
        add(&self.ran_ns, ran.as_nanos() as u64);
        add(&self.waited_ns, waited.as_nanos() as u64);
    }
}

/// An array for `pyarrow.array`.
#[pyclass(name = "Array", frozen, module = "millstream._millstream")]
pub(crate) struct PyArray(ArrayRef);

#[pymethods]
impl PyArray {
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        capsules::array(py, &self.field(), &self.0)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::schema(py, &self.field())
    }
}

impl PyArray {
    fn field(&self) -> Field {
        Field::new("", self.0.data_type().clone(), true)
    }
}

impl PyFunction {
    /// The types of the arguments, and behind them that of the result.
    pub(crate) fn new(
        name: String,
        mut types: Vec<DataType>,
        volatility: FunctionVolatility,
        called: CalledPython,
    ) -> Option<Self> {
        let returns = types.pop()?;
        Some(Self { name, arguments: types, returns, volatility, called })
    }
}

impl BatchFunction for PyFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn arguments(&self) -> &[DataType] {
        &self.arguments
    }

    fn returns(&self) -> &DataType {
        &self.returns
    }

    fn volatility(&self) -> FunctionVolatility {
        self.volatility
    }

    fn fingerprint(&self) -> u64 {
        self.called.fingerprint
    }

    fn usage(&self) -> FunctionUsage {
        self.called.usage()
    }

    fn call(&self, args: &[ArrayRef], rows: usize) -> Result<ArrayRef, String> {
        self.called.with(rows, |object| {
            let made = object.call1((arrays(object.py(), args)?,))?;
            capsules::array_of(&made)
        })
    }
}

/// The error with the lines of the program that led to it.
fn traceback(py: Python<'_>, error: &PyErr) -> String {
    let lines = || -> PyResult<String> {
        let format = py.import("traceback")?.getattr("format_exception")?;
        let trace = error.traceback(py);
        let lines = format.call1((error.get_type(py), error.value(py), trace))?;
        let lines: Vec<String> = lines.extract()?;
        Ok(lines.concat())
    };
    let lines = lines().unwrap_or_default();
    format!("{error}\n{}", lines.trim_end())
}

impl FunctionCounts {
    /// The counts as a dictionary.
    pub(crate) fn shown<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let made = PyDict::new(py);
        let seconds = |of: &AtomicU64| of.load(Ordering::Relaxed) as f64 / 1e9;
        made.set_item("calls", self.calls.load(Ordering::Relaxed))?;
        made.set_item("rows", self.rows.load(Ordering::Relaxed))?;
        made.set_item("seconds", seconds(&self.ran_ns))?;
        made.set_item("gil_wait_seconds", seconds(&self.waited_ns))?;
        Ok(made)
    }
}
