//! Functions of SQL that are written in Python.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field};
use millstream::{BatchFunction, FunctionVolatility};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList, PyTuple};

use crate::capsules;

/// A function over batches. The interpreter's lock is taken once a call.
pub(crate) struct PyFunction {
    name: String,
    arguments: Vec<DataType>,
    returns: DataType,
    volatility: FunctionVolatility,
    /// Takes the arguments as a list, and gives an array of Arrow.
    call: Py<PyAny>,
    counts: Arc<FunctionCounts>,
}

/// Counts of the calls of a function. Relaxed: they are only read for a person.
#[derive(Default)]
pub(crate) struct FunctionCounts {
    calls: AtomicU64,
    rows: AtomicU64,
    /// Nanoseconds with the interpreter's lock, and those that were waited for it.
    ran_ns: AtomicU64,
    waited_ns: AtomicU64,
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
        call: Py<PyAny>,
        counts: Arc<FunctionCounts>,
    ) -> Option<Self> {
        let returns = types.pop()?;
        Some(Self { name, arguments: types, returns, volatility, call, counts })
    }

    fn called(&self, py: Python<'_>, args: &[ArrayRef]) -> PyResult<ArrayRef> {
        let args = args.iter().map(|arg| Py::new(py, PyArray(Arc::clone(arg))));
        let args = PyList::new(py, args.collect::<PyResult<Vec<_>>>()?)?;
        let made = self.call.bind(py).call1((args,))?;
        capsules::array_of(&made)
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

    fn call(&self, args: &[ArrayRef], rows: usize) -> Result<ArrayRef, String> {
        let began = Instant::now();
        let made = Python::try_attach(|py| {
            let attached = Instant::now();
            let made = self.called(py, args).map_err(|error| traceback(py, &error));
            let add = |to: &AtomicU64, count: u64| to.fetch_add(count, Ordering::Relaxed);
            add(&self.counts.calls, 1);
            add(&self.counts.rows, rows as u64);
            add(&self.counts.ran_ns, attached.elapsed().as_nanos() as u64);
            add(&self.counts.waited_ns, (attached - began).as_nanos() as u64);
            made
        });
        made.unwrap_or_else(|| Err("the interpreter ends".into()))
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
