//! Rows that a query has given.

use arrow::array::StructArray;
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::record_batch::RecordBatch;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList, PyTuple};

use crate::errors::{guarded, runtime};
use crate::{capsules, values};

/// Rows in memory: a batch, or all that a query gave. They go to other libraries by
/// `__arrow_c_stream__` and `__arrow_c_array__`, without being copied.
#[pyclass(name = "Rows", frozen, module = "millstream._millstream")]
pub(crate) struct PyRows {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
}

impl PyRows {
    /// As one batch.
    fn one(&self) -> PyResult<RecordBatch> {
        match self.batches.as_slice() {
            [batch] => Ok(batch.clone()),
            batches => arrow::compute::concat_batches(&self.schema, batches)
                .map_err(|error| runtime(error.to_string())),
        }
    }
}

#[pymethods]
impl PyRows {
    /// The number of rows.
    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The names of the columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.num_rows()
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = self.batches.clone().into_iter().map(Ok);
        capsules::stream(py, SchemaRef::clone(&self.schema), batches)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema;
        guarded(py, || {
            let batch = self.one()?;
            let columns = Field::new("", DataType::Struct(self.schema.fields().clone()), false);
            capsules::array(py, &columns, &StructArray::from(batch))
        })
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsules::schema(py, &*self.schema)
    }

    /// The rows as tuples.
    fn fetchall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        guarded(py, || values::tuples(py, &self.batches))
    }
}
