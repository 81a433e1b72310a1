//! The rows for which a function of the program fails.

use millstream::BadRow;
use millstream::embedded::FailedRows;
use pyo3::prelude::*;

use crate::capsules;
use crate::errors::runtime;
use crate::fitted::{batch_of, clipped, text};

/// Letters that are kept of the text of an exception.
const REASON_LETTERS_MAX: usize = 1_000;

/// Where they are kept.
#[pyclass(name = "FailedRows", frozen, module = "millstream._millstream")]
pub(crate) struct PyFailedRows {
    function: String,
    kept: FailedRows,
}

impl PyFailedRows {
    pub(crate) fn new(function: String, kept: FailedRows) -> Self {
        Self { function, kept }
    }
}

#[pymethods]
impl PyFailedRows {
    /// Keeps a row: the arguments are arrays of one value.
    fn add(&self, reason: &str, args: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let columns = args.iter().map(capsules::array_of).collect::<PyResult<Vec<_>>>()?;
        let batch = batch_of(1, columns).map_err(runtime)?;
        self.kept.add(BadRow {
            table: self.function.clone(),
            place: self.function.clone(),
            reason: clipped(reason, REASON_LETTERS_MAX),
            text: text(&batch, 0),
        });
        Ok(())
    }
}
