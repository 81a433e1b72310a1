//! `ArrowArrayStream`: batches, one after another.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use arrow::array::{Array, StructArray};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};

use super::array::{CArray, exported_array, imported_array};
use super::schema::{CSchema, exported_schema, imported_schema};
use super::{CDataError, refused};

/// The status of a call that failed: `EIO`.
const FAILED: c_int = 5;

/// The structure of the specification.
#[repr(C)]
pub(crate) struct CStream {
    get_schema: Option<unsafe extern "C" fn(*mut CStream, *mut CSchema) -> c_int>,
    get_next: Option<unsafe extern "C" fn(*mut CStream, *mut CArray) -> c_int>,
    get_last_error: Option<unsafe extern "C" fn(*mut CStream) -> *const c_char>,
    release: Option<unsafe extern "C" fn(*mut CStream)>,
    private_data: *mut c_void,
}

// SAFETY: whoever holds the structure owns what it points to, and calls it from one thread at a
// time.
unsafe impl Send for CStream {}

impl CStream {
    /// Takes the structure out of a place of another library, which is left as released.
    ///
    /// # Safety
    /// The pointer is one to a valid structure.
    pub(crate) unsafe fn take(at: *mut CStream) -> Self {
        let empty = Self {
            get_schema: None,
            get_next: None,
            get_last_error: None,
            release: None,
            private_data: ptr::null_mut(),
        };
        // SAFETY: the caller's word.
        unsafe { ptr::replace(at, empty) }
    }
}

impl Drop for CStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: it was not released: that sets the pointer to null.
            unsafe { release(self) }
        }
    }
}

/// Gives batches to another library.
pub(crate) trait BatchSource: Send {
    /// The columns of all of them.
    fn schema(&self) -> SchemaRef;

    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// A text for the reader of the other library.
    fn next(&mut self) -> Result<Option<RecordBatch>, String>;
}

/// What an exported stream owns.
struct Exported {
    source: Box<dyn BatchSource>,
    error: Option<CString>,
}

/// The stream as another library reads it.
pub(crate) fn exported_stream(source: Box<dyn BatchSource>) -> CStream {
    let given = Box::new(Exported { source, error: None });
    CStream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release),
        private_data: Box::into_raw(given).cast(),
    }
}

/// # Safety
/// The stream is one of [`exported_stream`] that was not released.
unsafe fn given<'a>(stream: *mut CStream) -> &'a mut Exported {
    // SAFETY: the caller's word.
    unsafe { &mut *(*stream).private_data.cast::<Exported>() }
}

/// Gives what a call made, or notes its error. A panic must not leave it.
fn answer<T>(
    given: &mut Exported,
    to: *mut T,
    make: impl FnOnce(&mut Exported) -> Result<T, String>,
) -> c_int {
    let made = catch_unwind(AssertUnwindSafe(|| make(given)));
    match made.unwrap_or_else(|_| Err("a bug in millstream: it panicked".into())) {
        Ok(made) => {
            // SAFETY: the specification gives a place for it, whose content is undefined.
            unsafe { ptr::write(to, made) };
            0
        }
        Err(message) => {
            given.error = CString::new(message.replace('\0', " ")).ok();
            FAILED
        }
    }
}

unsafe extern "C" fn get_schema(stream: *mut CStream, to: *mut CSchema) -> c_int {
    // SAFETY: the specification gives a stream that was not released.
    let given = unsafe { given(stream) };
    answer(given, to, |given| {
        exported_schema(&given.source.schema()).map_err(|error| error.to_string())
    })
}

unsafe extern "C" fn get_next(stream: *mut CStream, to: *mut CArray) -> c_int {
    // SAFETY: as above.
    let given = unsafe { given(stream) };
    answer(given, to, |given| {
        let next = given.source.next()?;
        Ok(next.map_or_else(CArray::empty, |batch| {
            exported_array(&StructArray::from(batch).to_data())
        }))
    })
}

unsafe extern "C" fn get_last_error(stream: *mut CStream) -> *const c_char {
    // SAFETY: as above.
    let given = unsafe { given(stream) };
    given.error.as_ref().map_or(ptr::null(), |error| error.as_ptr())
}

unsafe extern "C" fn release(stream: *mut CStream) {
    // SAFETY: the caller owns the stream and gives it up.
    unsafe {
        let Some(stream) = stream.as_mut() else { return };
        let given = Box::from_raw(stream.private_data.cast::<Exported>());
        // What a dropped query does must not unwind into another language.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(given)));
        stream.release = None;
    }
}

/// Reads the stream of another library.
pub(crate) struct CStreamReader {
    stream: CStream,
    schema: SchemaRef,
}

impl CStreamReader {
    /// Asks the stream for its columns.
    ///
    /// # Safety
    /// The structure is as the specification says.
    pub(crate) unsafe fn new(mut stream: CStream) -> Result<Self, CDataError> {
        let mut schema = CSchema::empty();
        let (Some(get_schema), true) = (stream.get_schema, stream.release.is_some()) else {
            return refused("the stream was read before");
        };
        // SAFETY: the caller's word.
        let status = unsafe { get_schema(&raw mut stream, &raw mut schema) };
        if status != 0 {
            return Err(error_of(&mut stream));
        }
        // SAFETY: the stream gave it.
        let schema = Arc::new(unsafe { imported_schema(&schema)? });
        Ok(Self { stream, schema })
    }

    /// The columns.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next batch; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, CDataError> {
        let Some(get_next) = self.stream.get_next else { return Ok(None) };
        let mut array = CArray::empty();
        // SAFETY: the stream is valid since it was taken, and is not released before it is dropped.
        let status = unsafe { get_next(&raw mut self.stream, &raw mut array) };
        if status != 0 {
            return Err(error_of(&mut self.stream));
        }
        if array.is_released() {
            return Ok(None);
        }
        let rows_type = DataType::Struct(self.schema.fields().clone());
        // SAFETY: the stream gave it, and its type.
        let data = unsafe { imported_array(array, &rows_type)? };
        if data.null_count() > 0 {
            return refused("a row as a whole is NULL, which a table cannot have");
        }
        let rows = StructArray::from(data);
        let count = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let columns = rows.columns().to_vec();
        Ok(Some(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &count)?))
    }
}

fn error_of(stream: &mut CStream) -> CDataError {
    let Some(get_last_error) = stream.get_last_error else {
        return CDataError("the stream failed and says nothing about it".into());
    };
    // SAFETY: the stream is valid; the text is null or ends with a zero byte, until the next call.
    let text = unsafe {
        let text = get_last_error(stream);
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    CDataError(text.unwrap_or_else(|| "the stream failed and says nothing about it".into()))
}
