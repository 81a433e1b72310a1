//! Tables without an end, whose rows the program appends.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::cast;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use millstream::embedded::{AppendResult, AppendSource};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::errors::{failed, guarded, misused};
use crate::state::SessionState;
use crate::{capsules, wait};

/// The program's end of a table.
#[pyclass(name = "Source", frozen, module = "millstream._millstream")]
pub(crate) struct PySource {
    state: Arc<SessionState>,
    source: AppendSource,
}

impl PySource {
    pub(crate) fn new(state: Arc<SessionState>, source: AppendSource) -> Self {
        Self { state, source }
    }

    /// The columns of the table, found by name.
    fn fitted(&self, py: Python<'_>, batch: &RecordBatch) -> PyResult<RecordBatch> {
        let schema = self.source.schema();
        let column = |field: &arrow::datatypes::FieldRef| -> PyResult<ArrayRef> {
            let Some(column) = batch.column_by_name(field.name()) else {
                let names = batch.schema();
                let names: Vec<_> = names.fields().iter().map(|one| one.name().as_str()).collect();
                let message = format!("the rows have no column '{}'", field.name());
                let hint = format!("they have: {}", names.join(", "));
                return Err(misused(py, &message, &hint));
            };
            if column.data_type() == field.data_type() {
                return Ok(ArrayRef::clone(column));
            }
            cast(column, field.data_type()).map_err(|error| {
                let (has, wants) = (column.data_type(), field.data_type());
                let message = format!("column '{}' is {has}, and not {wants}", field.name());
                misused(py, &message, &error.to_string())
            })
        };
        let columns = schema.fields().iter().map(column).collect::<PyResult<Vec<_>>>()?;
        let count = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let fitted = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &count);
        fitted.map_err(|error| misused(py, &error.to_string(), "the source says what may be NULL"))
    }
}

#[pymethods]
impl PySource {
    /// Appends the rows of anything with `__arrow_c_stream__`. Waits while too many bytes wait.
    #[pyo3(signature = (table, timeout = None))]
    fn append(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.state.check(py)?;
        let timeout = wait::seconds(timeout)?;
        let mut reader = capsules::stream_of(table)?;
        guarded(py, || {
            loop {
                let next = py.detach(|| reader.next());
                let next = next.map_err(|message| failed(py, &message, "it cannot be read"))?;
                let Some(batch) = next else { return Ok(()) };
                let batch = self.fitted(py, &batch)?;
                let append = |timeout| match self.source.append(&batch, timeout) {
                    AppendResult::Full => None,
                    other => Some(other),
                };
                match wait::until_at_most(py, timeout, append)? {
                    Some(AppendResult::Appended) => {}
                    Some(_) => {
                        let hint = "make it again: session.source(…)";
                        return Err(misused(py, "the source is closed", hint));
                    }
                    None => {
                        return Err(PyTimeoutError::new_err("no query has taken the rows before"));
                    }
                }
            }
        })
    }

    /// No more rows come: queries end with those that are there.
    fn close(&self) {
        self.source.close();
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.source.is_closed()
    }

    /// Bytes of the rows that wait for queries.
    #[getter]
    fn waiting_bytes(&self) -> usize {
        self.source.waiting_bytes()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
}
