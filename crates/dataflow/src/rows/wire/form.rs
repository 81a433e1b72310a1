//! The form of rows as sender and receiver know it: where regions lie, and how many words say how
//! long they are.

use arrow::datatypes::{DataType, UnionMode};

use crate::error::DataflowError;

/// Regions begin at multiples of this: the greatest alignment of a value.
pub(super) const ALIGNMENT: usize = 16;

/// Bytes before the extra: the rows, and the bytes of the extra.
pub(super) const PREFIX_BYTES: usize = 8;

/// Bytes of a word.
pub(super) const WORD_BYTES: usize = 4;

/// Rows of a payload, and of a column within another one, at most: a column of NULLs states its
/// length and has no bytes.
pub(super) const ROWS_MAX: usize = 1 << 28;

/// The bit of a word of NULLs which says that the column has a region of validity bits.
pub(super) const HAS_VALIDITY: u32 = 1 << 31;

/// Bytes of an offset of a text or a list, and of a large one.
pub(super) const OFFSET_BYTES: usize = 4;
pub(super) const LARGE_OFFSET_BYTES: usize = 8;

/// The type as which a column travels: that of its values where it has them by reference.
pub(super) fn travelling(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => travelling(values),
        DataType::RunEndEncoded(_, values) => travelling(values.data_type()),
        DataType::Utf8View => &DataType::Utf8,
        DataType::BinaryView => &DataType::Binary,
        other => other,
    }
}

/// Words of a column and of the columns within it.
///
/// # Errors
/// When columns of the type, or within it, cannot travel.
pub(super) fn words_of(data_type: &DataType) -> Result<usize, DataflowError> {
    Ok(match travelling(data_type) {
        DataType::Null | DataType::Boolean | DataType::FixedSizeBinary(_) => 1,
        DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => 2,
        DataType::List(values)
        | DataType::LargeList(values)
        | DataType::ListView(values)
        | DataType::LargeListView(values)
        | DataType::Map(values, _) => 2 + words_of(values.data_type())?,
        DataType::FixedSizeList(values, _) => 1 + words_of(values.data_type())?,
        DataType::Struct(fields) => fields.iter().try_fold(1, |words, field| {
            Ok::<_, DataflowError>(words + words_of(field.data_type())?)
        })?,
        DataType::Union(fields, UnionMode::Sparse | UnionMode::Dense) => {
            fields.iter().try_fold(1, |words, (_, field)| {
                Ok::<_, DataflowError>(words + words_of(field.data_type())?)
            })?
        }
        fixed if fixed.primitive_width().is_some() => 1,
        other => return Err(cannot_travel(other)),
    })
}

/// Columns of a type do not travel.
pub(super) fn cannot_travel(data_type: &DataType) -> DataflowError {
    let message = format!("a column of {data_type} cannot travel between workers");
    DataflowError::Expression(message)
}

/// Where a region behind `at` begins.
pub(super) fn region_at(at: usize) -> usize {
    at.next_multiple_of(ALIGNMENT)
}
