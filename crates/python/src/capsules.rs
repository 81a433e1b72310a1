//! Capsules of Python around the structures of Arrow's C interface.

use std::ffi::CStr;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::c_data::{BatchSource, CArray, CSchema, CStream, CStreamReader, exported_stream};

const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";

/// Batches for another library.
pub(crate) fn stream<'py>(
    py: Python<'py>,
    source: Box<dyn BatchSource>,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, exported_stream(source), STREAM)
}

/// Columns, or a type, for another library.
pub(crate) fn schema(py: Python<'_>, schema: CSchema) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, schema, SCHEMA)
}

/// An array with its type for another library.
pub(crate) fn array(py: Python<'_>, of: CSchema, array: CArray) -> PyResult<Bound<'_, PyTuple>> {
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    (schema(py, of)?, array).into_pyobject(py)
}

/// The stream that an object gives by `__arrow_c_stream__`.
///
/// # Errors
/// `TypeError` when it has no such method, with what may be done about that.
pub(crate) fn stream_of(object: &Bound<'_, PyAny>) -> PyResult<CStreamReader> {
    let Ok(method) = object.getattr("__arrow_c_stream__") else {
        return Err(PyTypeError::new_err(no_stream(object)));
    };
    let capsule = method.call0()?;
    let capsule = capsule.cast::<PyCapsule>()?;
    let at = capsule.pointer_checked(Some(STREAM))?.cast::<CStream>();
    // SAFETY: a capsule of this name holds a pointer to a stream, by the specification.
    let reader = unsafe { CStreamReader::new(CStream::take(at.as_ptr())) };
    reader.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The type and the array that an object gives by `__arrow_c_array__`.
pub(crate) fn array_of(object: &Bound<'_, PyAny>) -> PyResult<arrow::array::ArrayData> {
    let Ok(method) = object.getattr("__arrow_c_array__") else {
        let class = object.get_type().name()?;
        let message = format!("an Arrow array was expected, and not a value of type {class}");
        return Err(PyTypeError::new_err(message));
    };
    let capsules = method.call0()?;
    let capsules = capsules.cast::<PyTuple>()?;
    let (of, array) = (capsules.get_item(0)?, capsules.get_item(1)?);
    let of = of.cast::<PyCapsule>()?.pointer_checked(Some(SCHEMA))?.cast::<CSchema>();
    let array = array.cast::<PyCapsule>()?.pointer_checked(Some(ARRAY))?.cast::<CArray>();
    // SAFETY: capsules of these names hold pointers to these structures, by the specification. The
    // array is moved out, and what is left in its place holds nothing.
    let imported = unsafe {
        let field = crate::c_data::imported_field(of.as_ref());
        let array = std::ptr::replace(array.as_ptr(), CArray::empty());
        field.and_then(|field| crate::c_data::imported_array(array, field.data_type()))
    };
    imported.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// The type that an object gives by `__arrow_c_schema__`.
pub(crate) fn field_of(object: &Bound<'_, PyAny>) -> PyResult<arrow::datatypes::Field> {
    let Ok(method) = object.getattr("__arrow_c_schema__") else {
        let class = object.get_type().name()?;
        let message =
            format!("an Arrow type was expected, such as pyarrow.int64(), and not {class}");
        return Err(PyTypeError::new_err(message));
    };
    let capsule = method.call0()?;
    let of = capsule.cast::<PyCapsule>()?.pointer_checked(Some(SCHEMA))?.cast::<CSchema>();
    // SAFETY: a capsule of this name holds a pointer to a schema, by the specification.
    let field = unsafe { crate::c_data::imported_field(of.as_ref()) };
    field.map_err(|error| PyValueError::new_err(error.to_string()))
}

/// What is said of an object that gives no stream.
fn no_stream(object: &Bound<'_, PyAny>) -> String {
    let class = object.get_type();
    let name = class.name().map(|name| name.to_string()).unwrap_or_default();
    let module = class.module().map(|module| module.to_string()).unwrap_or_default();
    let package = module.split('.').next().unwrap_or_default().to_owned();
    let version = object.py().import(package.as_str()).and_then(|it| it.getattr("__version__"));
    match (package.as_str(), version) {
        ("pandas", Ok(version)) => format!(
            "pandas {version} has no __arrow_c_stream__: needs 2.2, or pass \
             pyarrow.Table.from_pandas(df)"
        ),
        _ => format!(
            "a {name} has no __arrow_c_stream__: pass a table of Polars, pandas, pyarrow or \
             DuckDB, such as pyarrow.table({{'x': [1, 2]}})"
        ),
    }
}
