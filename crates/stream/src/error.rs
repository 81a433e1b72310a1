//! Errors of a stream that is being built: always its author's fault.

use arrow::datatypes::{DataType, Schema};
use dataflow::type_name::type_name;

/// Why a stream or a job cannot be built. Nothing has run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A column that the stream does not have was named.
    #[error("there is no column '{name}'")]
    Column {
        /// The text as written.
        name: String,
        /// The columns of the stream.
        columns: Vec<String>,
    },
    /// Two columns of a result would have one name.
    #[error("two columns are called '{name}'")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A column is of a type that does not do here.
    #[error("column '{name}' is {}: {needs}", sql_type(found))]
    Type {
        /// The column.
        name: String,
        /// Its type.
        found: DataType,
        /// The requirement.
        needs: String,
    },
    /// The request cannot be fulfilled.
    #[error("{message}")]
    Refused {
        /// Why.
        message: String,
        /// The text to write instead.
        hint: String,
    },
}

impl StreamError {
    /// The text to write instead.
    pub fn hint(&self) -> Option<String> {
        match self {
            StreamError::Column { columns, .. } => {
                Some(format!("the columns are: {}", columns.join(", ")))
            }
            StreamError::Duplicate { .. } => {
                Some("call one of them otherwise: stream.rename(\"old\", \"new\")".into())
            }
            StreamError::Type { .. } => None,
            StreamError::Refused { hint, .. } => Some(hint.clone()),
        }
    }

    pub(crate) fn refused(message: impl Into<String>, hint: impl Into<String>) -> Self {
        StreamError::Refused { message: message.into(), hint: hint.into() }
    }
}

/// The column of that name.
pub(crate) fn index_of(schema: &Schema, name: &str) -> Result<usize, StreamError> {
    schema.index_of(name).map_err(|_| StreamError::Column {
        name: name.into(),
        columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
    })
}

/// The columns of these names.
pub(crate) fn indices_of(schema: &Schema, names: &[&str]) -> Result<Vec<usize>, StreamError> {
    names.iter().map(|name| index_of(schema, name)).collect()
}

/// Refuses two columns of one name.
pub(crate) fn check_names(schema: &Schema) -> Result<(), StreamError> {
    for (at, field) in schema.fields().iter().enumerate() {
        if schema.fields()[..at].iter().any(|other| other.name() == field.name()) {
            return Err(StreamError::Duplicate { name: field.name().clone() });
        }
    }
    Ok(())
}

/// The name of a type as SQL has it.
pub(crate) fn sql_type(of: &DataType) -> String {
    type_name(of, "STRING")
}
