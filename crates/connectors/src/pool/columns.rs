//! The types that a table of a pool may have, and how their values lie in blocks.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use dataflow::error::ConnectorError;
use pool::manifest::{Buckets, Definition, Layout};

use super::errors::damaged;
use crate::format::ipc::schema_in;
use crate::options::sql_type;

/// The columns of a table as they are stored.
#[derive(Debug, Clone)]
pub(super) struct StoredColumns {
    pub(super) schema: SchemaRef,
    /// One for each column.
    pub(super) layouts: Vec<Layout>,
}

impl StoredColumns {
    /// Of columns that a declaration or a query has.
    ///
    /// # Errors
    /// When a column is of a type that is not stored.
    pub(super) fn declared(schema: &Schema) -> Result<Self, ConnectorError> {
        let mut layouts = Vec::with_capacity(schema.fields().len());
        let mut fields = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let Some((of, layout)) = stored(field.data_type()) else {
                return Err(refused(field));
            };
            layouts.push(layout);
            fields.push(Field::new(field.name(), of, field.is_nullable()));
        }
        Ok(Self { schema: Arc::new(Schema::new(fields)), layouts })
    }

    /// Of a definition, which a stranger may have made.
    ///
    /// # Errors
    /// When it says no columns, or such as are not stored in these layouts.
    pub(super) fn of(definition: &Definition, table: &str) -> Result<Self, ConnectorError> {
        let schema = schema_in(&definition.schema).map_err(|error| damaged(table, error))?;
        let columns = Self::declared(&schema).map_err(|error| damaged(table, error.to_string()))?;
        if columns.layouts != definition.columns {
            return Err(damaged(table, "its columns have other layouts than their types"));
        }
        Ok(columns)
    }

    /// The columns as the pool keeps them: a schema message of Arrow IPC.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let mut dictionaries = DictionaryTracker::new(true);
        let options = IpcWriteOptions::default();
        let generator = IpcDataGenerator::default();
        let schema = &self.schema;
        generator
            .schema_to_bytes_with_dictionary_tracker(schema, &mut dictionaries, &options)
            .ipc_message
    }
}

/// By which columns the rows of a table are in buckets, and how many: a column by its number where
/// its name cannot be read.
pub fn buckets_of(definition: &Definition, table: &str) -> Vec<(String, u32)> {
    let rows = definition.of_rows().ok();
    let columns = rows.and_then(|rows| StoredColumns::of(&rows, table).ok());
    let name = |at: u16| {
        let schema = &columns.as_ref()?.schema;
        Some(schema.fields().get(usize::from(at))?.name().clone())
    };
    let buckets = definition.buckets.iter();
    let of = |by: &Buckets| {
        let name = name(by.column).unwrap_or_else(|| format!("column {}", by.column));
        (name, 1 << by.bits)
    };
    buckets.map(of).collect()
}

fn refused(field: &FieldRef) -> ConnectorError {
    let hint = match field.data_type() {
        DataType::Null => "give it a type: CAST(NULL AS INT)",
        of if of.is_nested() => "store its parts as columns of their own",
        _ => "CAST it to a type that is stored: a number, text, bytes, a date or a time",
    };
    ConnectorError::Column {
        column: field.name().clone(),
        message: format!("a pool does not store {}", sql_type(field.data_type())),
        hint: Some(hint.into()),
    }
}

/// The type as which values are stored, and their layout.
fn stored(of: &DataType) -> Option<(DataType, Layout)> {
    use DataType::{
        Binary, BinaryView, Boolean, Date32, Date64, Decimal128, Decimal256, Dictionary, Duration,
        Float32, Float64, LargeBinary, LargeUtf8, Time32, Time64, Timestamp, Utf8, Utf8View,
    };
    match of {
        Boolean => Some((Boolean, Layout::Bits)),
        Utf8 | LargeUtf8 | Utf8View => Some((Utf8, Layout::Bytes)),
        Binary | LargeBinary | BinaryView => Some((Binary, Layout::Bytes)),
        Dictionary(_, value) => stored(value),
        Float32 | Float64 | Decimal128(..) | Decimal256(..) | Date32 | Date64 | Time32(_)
        | Time64(_) | Timestamp(..) | Duration(_) => fixed(of),
        of if of.is_integer() => fixed(of),
        _ => None,
    }
}

fn fixed(of: &DataType) -> Option<(DataType, Layout)> {
    Some((of.clone(), Layout::Fixed(of.primitive_width()? as u8)))
}

/// How the values of a type are read as numbers, if they have an order that these keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    Signed,
    Unsigned,
}

/// The numbers that the values of a type are; `None` for floats, text, bytes and truth values.
pub(super) fn numbers(of: &DataType) -> Option<Numbers> {
    match of {
        DataType::Decimal128(..)
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_) => Some(Numbers::Signed),
        of if of.is_unsigned_integer() => Some(Numbers::Unsigned),
        of if of.is_signed_integer() => Some(Numbers::Signed),
        _ => None,
    }
}
