//! Tables without an end, whose rows the program appends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::record_batch::RecordBatch;
use millstream::BadRow;
use millstream::embedded::{AppendResult, AppendSource};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::errors::{failed, guarded, misused};
use crate::fitted::{FittedRows, fitted};
use crate::state::SessionState;
use crate::{capsules, wait};

/// The program's end of a table.
#[pyclass(name = "Source", frozen, module = "millstream._millstream")]
pub(crate) struct PySource {
    state: Arc<SessionState>,
    source: AppendSource,
    name: String,
    /// Whether rows that are none of the table are left out, and counted.
    skips_bad: bool,
    /// Rows until now, and how many of them were bad. Relaxed: they order nothing else.
    rows: AtomicU64,
    bad_rows: AtomicU64,
}

impl PySource {
    pub(crate) fn new(
        state: Arc<SessionState>,
        source: AppendSource,
        name: String,
        skips_bad: bool,
    ) -> Self {
        let (rows, bad_rows) = Default::default();
        Self { state, source, name, skips_bad, rows, bad_rows }
    }

    /// The rows of the table, and those that are bad; where that is not allowed the first of these
    /// is the error.
    fn fitted(
        &self,
        py: Python<'_>,
        batch: &RecordBatch,
    ) -> PyResult<(RecordBatch, Arc<[BadRow]>)> {
        let fitted = fitted(&self.name, self.source.schema(), batch);
        let FittedRows { rows, bad } =
            fitted.map_err(|unfit| misused(py, &unfit.message, &unfit.hint))?;
        if let (Some((row, bad)), false) = (bad.first(), self.skips_bad) {
            let message = format!("{} (row {} of {})", bad.reason, row + 1, batch.num_rows());
            return Err(misused(
                py,
                &message,
                "on_bad='skip' counts such rows and appends the others",
            ));
        }
        let count = batch.num_rows() as u64;
        let first = self.rows.fetch_add(count, Ordering::Relaxed) + 1;
        self.bad_rows.fetch_add(bad.len() as u64, Ordering::Relaxed);
        let placed = bad.into_iter().map(|(row, bad)| {
            let place = format!("{}:{}", self.name, first + row as u64);
            BadRow { place, ..bad }
        });
        Ok((rows, placed.collect()))
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
                let (rows, bad) = self.fitted(py, &batch)?;
                let append = |timeout| {
                    if self.state.is_closed() {
                        return Some(AppendResult::Closed);
                    }
                    match self.source.append_beside(&rows, &bad, timeout) {
                        AppendResult::Full => None,
                        other => Some(other),
                    }
                };
                match wait::until_at_most(py, timeout, append)? {
                    Some(AppendResult::Appended) => {}
                    Some(_) if self.state.is_closed() => return Err(self.state.closed(py)),
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

    /// Rows that were none of the table, and left out.
    #[getter]
    fn bad_rows(&self) -> u64 {
        self.bad_rows.load(Ordering::Relaxed)
    }

    /// Bytes of the rows that wait for queries.
    #[getter]
    fn waiting_bytes(&self) -> usize {
        self.source.waiting_bytes()
    }

    fn __repr__(&self) -> String {
        let (name, is_closed) = (&self.name, self.source.is_closed());
        format!("<millstream.Source {name}, {}>", if is_closed { "closed" } else { "open" })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close();
    }
}
