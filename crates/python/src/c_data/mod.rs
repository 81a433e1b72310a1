//! Arrow's C data interface and C stream interface, by which rows go between libraries of a process
//! without being copied. The structures and their rules are those of the
//! [specification](https://arrow.apache.org/docs/format/CDataInterface.html).
//!
//! Arrow's own implementation is behind its feature `ffi`, which is off in this workspace: with it
//! DataFusion and all that stands on it would be another build.
//!
//! The other side is trusted as far as the interface has to trust it: pointers are valid, and
//! buffers are as long as the type, the length and the offset say. Numbers and texts are checked,
//! offsets within buffers are validated before an array is used.

mod array;
mod schema;
mod stream;

pub(crate) use array::{CArray, exported_array, imported_array};
pub(crate) use schema::{CSchema, exported_field, exported_schema, imported_field};
pub(crate) use stream::{BatchSource, CStream, CStreamReader, exported_stream};

/// What is wrong with what another library gave.
#[derive(Debug)]
pub(crate) struct CDataError(pub(crate) String);

impl std::fmt::Display for CDataError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<arrow::error::ArrowError> for CDataError {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self(error.to_string())
    }
}

fn refused<T>(message: impl Into<String>) -> Result<T, CDataError> {
    Err(CDataError(message.into()))
}
