//! Capsules of Python around the structures of Arrow's C data and C stream interface.
//!
//! The structures are those of [`arrow::ffi`] and [`arrow::ffi_stream`]. Streams of other libraries
//! are read here and not by `ArrowArrayStreamReader`: it gives the values of a row that is NULL as
//! a whole, and trusts the lengths of an array.

use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, StructArray, make_array};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi_and_data_type};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow::record_batch::{RecordBatch, RecordBatchOptions, RecordBatchReader};
use millstream::panics::caught;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

use crate::errors::runtime;
use crate::foreign;

const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";

/// Batches for another library, of these columns.
pub(crate) fn stream<'py>(
    py: Python<'py>,
    schema: SchemaRef,
    batches: impl Iterator<Item = Result<RecordBatch, String>> + Send + 'static,
) -> PyResult<Bound<'py, PyCapsule>> {
    let batches = Box::new(ExportedBatches { schema, batches: Some(batches) });
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(batches), STREAM)
}

/// Columns, or a type, for another library.
pub(crate) fn schema<T>(py: Python<'_>, of: T) -> PyResult<Bound<'_, PyCapsule>>
where
    FFI_ArrowSchema: TryFrom<T, Error = ArrowError>,
{
    let of = FFI_ArrowSchema::try_from(of).map_err(|error| runtime(error.to_string()))?;
    PyCapsule::new_with_value(py, of, SCHEMA)
}

/// An array with its type for another library.
pub(crate) fn array<'py>(
    py: Python<'py>,
    of: &Field,
    array: &dyn Array,
) -> PyResult<Bound<'py, PyTuple>> {
    let array = PyCapsule::new_with_value(py, FFI_ArrowArray::new(&array.to_data()), ARRAY)?;
    (schema(py, of)?, array).into_pyobject(py)
}

/// Batches that another library reads. It calls them from C, where a panic would end the process.
struct ExportedBatches<I> {
    schema: SchemaRef,
    /// `None` after a panic.
    batches: Option<I>,
}

impl<I> ExportedBatches<I> {
    /// Drops the batches, which may end a query.
    fn end(&mut self) {
        let batches = self.batches.take();
        // Nobody hears of the end of a stream that was dropped.
        let _ = caught(|| drop(batches));
    }
}

impl<I: Iterator<Item = Result<RecordBatch, String>>> Iterator for ExportedBatches<I> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batches = self.batches.as_mut()?;
        let next = caught(|| batches.next()).unwrap_or_else(|panicked| {
            self.end();
            Some(Err(panicked.to_string()))
        })?;
        // The number of the error is EIO, and its text is one of C.
        Some(next.map_err(|message| {
            ArrowError::IoError(message.replace('\0', " "), io::ErrorKind::Other.into())
        }))
    }
}

impl<I: Iterator<Item = Result<RecordBatch, String>>> RecordBatchReader for ExportedBatches<I> {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl<I> Drop for ExportedBatches<I> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The stream that an object gives by `__arrow_c_stream__`.
///
/// # Errors
/// `TypeError` when it has no such method, with what may be done about that.
pub(crate) fn stream_of(object: &Bound<'_, PyAny>) -> PyResult<ForeignStream> {
    let Ok(method) = object.getattr("__arrow_c_stream__") else {
        return Err(PyTypeError::new_err(no_stream(object)));
    };
    // The argument has no default in Polars 1.3.
    let requested_schema = object.py().None();
    let capsule = method.call1((requested_schema,))?;
    let at = pointer_in::<FFI_ArrowArrayStream>(&capsule, STREAM)?;
    // SAFETY: a capsule of this name holds a pointer to a stream, by the specification. The stream
    // is moved out, and what is left in its place is released.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(at.as_ptr()) };
    ForeignStream::new(stream).map_err(PyValueError::new_err)
}

/// The array that an object gives by `__arrow_c_array__`.
pub(crate) fn array_of(object: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let Ok(method) = object.getattr("__arrow_c_array__") else {
        let class = object.get_type().name()?;
        let message = format!("an Arrow array was expected, and not a value of type {class}");
        return Err(PyTypeError::new_err(message));
    };
    let capsules = method.call0()?;
    let capsules = capsules.cast::<PyTuple>()?;
    let (of, array) = (capsules.get_item(0)?, capsules.get_item(1)?);
    let of = pointer_in::<FFI_ArrowSchema>(&of, SCHEMA)?;
    let at = pointer_in::<FFI_ArrowArray>(&array, ARRAY)?;
    // SAFETY: a capsule of this name holds a pointer to an array, by the specification. The array
    // is moved out, and what is left in its place is released.
    let array = unsafe { FFI_ArrowArray::from_raw(at.as_ptr()) };
    // SAFETY: a capsule of this name holds a pointer to a schema, by the specification, and is held
    // by `capsules` meanwhile.
    let field = foreign::field(unsafe { of.as_ref() });
    let imported = field.and_then(|field| {
        // SAFETY: the capsules are of one object, so that the type is that of the array.
        unsafe { imported(array, field.data_type().clone()) }
    });
    Ok(make_array(imported.map_err(PyValueError::new_err)?))
}

/// The type that an object gives by `__arrow_c_schema__`.
pub(crate) fn field_of(object: &Bound<'_, PyAny>) -> PyResult<Field> {
    let Ok(method) = object.getattr("__arrow_c_schema__") else {
        let class = object.get_type().name()?;
        let message =
            format!("an Arrow type was expected, such as pyarrow.int64(), and not {class}");
        return Err(PyTypeError::new_err(message));
    };
    let capsule = method.call0()?;
    let of = pointer_in::<FFI_ArrowSchema>(&capsule, SCHEMA)?;
    // SAFETY: a capsule of this name holds a pointer to a schema, by the specification, and is held
    // by `capsule` meanwhile.
    let field = foreign::field(unsafe { of.as_ref() });
    field.map_err(PyValueError::new_err)
}

/// The structure of a capsule of this name.
fn pointer_in<T>(capsule: &Bound<'_, PyAny>, name: &CStr) -> PyResult<NonNull<T>> {
    Ok(capsule.cast::<PyCapsule>()?.pointer_checked(Some(name))?.cast())
}

/// The array that another library gave. Its buffers are that library's until the last reference is
/// dropped.
///
/// # Safety
/// The structure is as the specification says, for an array of this type.
unsafe fn imported(array: FFI_ArrowArray, data_type: DataType) -> Result<ArrayData, String> {
    foreign::converted(|| Ok(foreign::check_array(&array, &data_type)))??;
    if array.is_empty() {
        // Offsets of no rows may lie behind the values, which arrow takes for none.
        return foreign::converted(|| Ok(ArrayData::new_empty(&data_type)));
    }
    // SAFETY: the caller's word.
    let data = foreign::converted(|| unsafe { from_ffi_and_data_type(array, data_type) })?;
    foreign::check_data(&data)?;
    Ok(data)
}

/// Reads the stream of another library.
pub(crate) struct ForeignStream {
    stream: FFI_ArrowArrayStream,
    schema: SchemaRef,
}

impl ForeignStream {
    /// Asks the stream for its columns. It is as the specification says.
    fn new(mut stream: FFI_ArrowArrayStream) -> Result<Self, String> {
        let (Some(get_schema), true) = (stream.get_schema, stream.release.is_some()) else {
            return Err("the stream was read before".into());
        };
        let mut given = FFI_ArrowSchema::empty();
        // SAFETY: the stream was not released, and the place for the schema holds nothing.
        let status = unsafe { get_schema(&raw mut stream, &raw mut given) };
        if status != 0 {
            return Err(error_of(&mut stream));
        }
        let schema = Arc::new(foreign::schema(&given)?);
        Ok(Self { stream, schema })
    }

    /// The columns.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// The text of the other library, or what is wrong with what it gave.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, String> {
        let Some(get_next) = self.stream.get_next else { return Ok(None) };
        let mut array = FFI_ArrowArray::empty();
        // SAFETY: the stream is released when it is dropped, not before, and the place for the
        // array holds nothing.
        let status = unsafe { get_next(&raw mut self.stream, &raw mut array) };
        if status != 0 {
            return Err(error_of(&mut self.stream));
        }
        if array.is_released() {
            return Ok(None);
        }
        // SAFETY: the arrays of a stream are of the type that it gave.
        let data = unsafe { imported(array, DataType::Struct(self.schema.fields().clone()))? };
        if data.null_count() > 0 {
            return Err("a row as a whole is NULL, which a table cannot have".into());
        }
        let rows = StructArray::from(data);
        let count = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let columns = rows.columns().to_vec();
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &count);
        batch.map(Some).map_err(|error| error.to_string())
    }
}

/// The text of the last error of a stream that was not released.
fn error_of(stream: &mut FFI_ArrowArrayStream) -> String {
    let text = stream.get_last_error.and_then(|get_last_error| {
        // SAFETY: the stream was not released.
        let text = unsafe { get_last_error(stream) };
        // SAFETY: a text that is not null ends with a zero byte, and is there until the next call.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    });
    text.unwrap_or_else(|| "the stream failed and says nothing about it".into())
}

/// The message for an object that gives no stream.
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
        ("polars", _) if object.hasattr("collect").unwrap_or(false) => {
            format!("{name} has no __arrow_c_stream__: pass what its collect() gives")
        }
        _ => format!(
            "{name} has no __arrow_c_stream__: pass a table of Polars, pandas, pyarrow or DuckDB, \
             such as pyarrow.table({{'x': [1, 2]}})"
        ),
    }
}
