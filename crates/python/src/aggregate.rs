//! Aggregates of SQL that are written in Python.
//!
//! The groups of a worker are an object of `millstream._aggregates`, which is called once a batch:
//! the interpreter's lock is taken once for all groups of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use millstream::{BatchAggregate, BatchGroups, FunctionUsage};
use pyo3::prelude::*;

use crate::capsules;
use crate::function::{CalledPython, arrays};

/// An aggregate over batches.
pub(crate) struct PyAggregate {
    name: String,
    arguments: Vec<DataType>,
    state: Vec<DataType>,
    returns: DataType,
    /// Gives an object for groups, of which there are none yet.
    make: Arc<CalledPython>,
}

impl PyAggregate {
    /// The types of its arguments, of its state, and behind them that of its result.
    pub(crate) fn new(
        name: String,
        mut types: Vec<DataType>,
        arguments: usize,
        make: CalledPython,
    ) -> Option<Self> {
        let returns = types.pop()?;
        let state = types.split_off(arguments.min(types.len()));
        Some(Self { name, arguments: types, state, returns, make: Arc::new(make) })
    }
}

impl BatchAggregate for PyAggregate {
    fn name(&self) -> &str {
        &self.name
    }

    fn arguments(&self) -> &[DataType] {
        &self.arguments
    }

    fn state(&self) -> &[DataType] {
        &self.state
    }

    fn returns(&self) -> &DataType {
        &self.returns
    }

    fn fingerprint(&self) -> u64 {
        self.make.fingerprint
    }

    fn usage(&self) -> FunctionUsage {
        self.make.usage()
    }

    fn groups(&self) -> Result<Box<dyn BatchGroups>, String> {
        let object = Python::try_attach(|py| self.make.groups(py));
        let object = object.unwrap_or_else(|| Err("the interpreter ends".into()))?;
        Ok(Box::new(PyGroups { object, make: Arc::clone(&self.make), bytes: AtomicUsize::new(0) }))
    }
}

/// The groups of a worker.
struct PyGroups {
    object: Py<PyAny>,
    make: Arc<CalledPython>,
    /// As Python has said after the last call.
    bytes: AtomicUsize,
}

impl fmt::Debug for PyGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PyGroups")
    }
}

impl PyGroups {
    /// Calls a method that adds rows or states to groups, and gives the bytes that all have.
    fn add(
        &self,
        method: &str,
        columns: &[ArrayRef],
        groups: &ArrayRef,
        total: usize,
    ) -> Result<(), String> {
        let bytes = self.make.with(groups.len(), |make| {
            let py = make.py();
            let groups = arrays(py, std::slice::from_ref(groups))?;
            let args = (arrays(py, columns)?, groups, total);
            self.object.bind(py).call_method1(method, args)?.extract::<usize>()
        })?;
        // A number for the bounds of memory: nothing is ordered behind it.
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn take(&self, method: &str) -> Result<Vec<ArrayRef>, String> {
        let made = self.make.with(0, |make| {
            let made = self.object.bind(make.py()).call_method0(method)?;
            made.try_iter()?.map(|array| capsules::array_of(&array?)).collect()
        });
        self.bytes.store(0, Ordering::Relaxed);
        made
    }
}

impl BatchGroups for PyGroups {
    fn update(&mut self, args: &[ArrayRef], groups: &ArrayRef, total: usize) -> Result<(), String> {
        self.add("update", args, groups, total)
    }

    fn merge(
        &mut self,
        states: &[ArrayRef],
        groups: &ArrayRef,
        total: usize,
    ) -> Result<(), String> {
        self.add("merge", states, groups, total)
    }

    fn take_states(&mut self) -> Result<Vec<ArrayRef>, String> {
        self.take("take_states")
    }

    fn take_values(&mut self) -> Result<ArrayRef, String> {
        let mut made = self.take("take_values")?;
        made.pop().ok_or_else(|| "gave no values".to_owned())
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}
