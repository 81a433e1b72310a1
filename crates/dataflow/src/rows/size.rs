//! Bytes of values, rows and groups in memory, as far as types tell them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, SchemaRef};

/// Bytes that a value without a fixed width is counted with: what its place in an array takes, and
/// a short text.
pub const VARIABLE_BYTES: u64 = 24;
/// Bytes of a group in the index that finds it: an entry of a hash table and its free places.
pub const INDEX_BYTES: u64 = 8;

/// Bytes of a value in memory.
pub fn value_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::Null => 0,
        DataType::Boolean => 1,
        DataType::FixedSizeBinary(bytes) => *bytes as u64,
        DataType::Dictionary(key, _) => value_bytes(key),
        DataType::Struct(fields) => fields.iter().map(|field| value_bytes(field.data_type())).sum(),
        _ => data_type.primitive_width().map_or(VARIABLE_BYTES, |bytes| bytes as u64),
    }
}

/// Bytes of an element of a list.
pub fn element_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::List(field) | DataType::LargeList(field) => value_bytes(field.data_type()),
        _ => value_bytes(data_type),
    }
}

/// Bytes of a row in memory.
pub fn row_bytes(schema: &SchemaRef) -> u64 {
    schema.fields().iter().map(|field: &Arc<Field>| value_bytes(field.data_type())).sum()
}
