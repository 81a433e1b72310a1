//! Rows of a program as rows of the table to which it appends them.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, UInt64Array};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options, filter_record_batch, take};
use arrow::datatypes::{DataType, Field, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow::util::display::array_value_to_string;
use millstream::BadRow;

/// Letters that are shown of a value that is refused.
const SHOWN_LETTERS_MAX: usize = 100;

/// Rows that were converted.
pub(crate) struct FittedRows {
    pub(crate) rows: RecordBatch,
    /// Those that cannot be rows of the table, in their order, with the numbers that they had.
    pub(crate) bad: Vec<(usize, BadRow)>,
}

/// Why none of the rows can be appended: what is wrong, and what may help.
pub(crate) struct Unfit {
    pub(crate) message: String,
    pub(crate) hint: String,
}

/// Finds the columns of a table by their names, and converts their values to its types.
///
/// # Errors
/// A column is missing, or none of its values could be converted.
pub(crate) fn fitted(
    table: &str,
    schema: &SchemaRef,
    batch: &RecordBatch,
) -> Result<FittedRows, Unfit> {
    let mut columns = vec![];
    // The first reason against each row.
    let mut reasons: Vec<(usize, String)> = vec![];
    for field in schema.fields() {
        let column = column_of(batch, field)?;
        refused(&column, field, 0..column.len(), &mut reasons);
        columns.push(column);
    }
    reasons.sort_by_key(|(row, _)| *row);
    reasons.dedup_by_key(|(row, _)| *row);
    let (rows, columns) = if reasons.is_empty() {
        (batch.num_rows(), columns)
    } else {
        let mut good = vec![true; batch.num_rows()];
        reasons.iter().for_each(|(row, _)| good[*row] = false);
        let good = BooleanArray::from(good);
        let kept = batch_of(batch.num_rows(), columns)
            .and_then(|batch| filter_record_batch(&batch, &good).map_err(|error| error.to_string()))
            .map_err(|message| Unfit { message, hint: "pass fewer columns".into() })?;
        (kept.num_rows(), kept.columns().to_vec())
    };
    let mut made = vec![];
    for (field, column) in schema.fields().iter().zip(columns) {
        made.push(converted(&column, field.data_type()).map_err(|message| Unfit {
            message: format!("column '{}': {message}", field.name()),
            hint: "convert it before".into(),
        })?);
    }
    let count = RecordBatchOptions::new().with_row_count(Some(rows));
    let rows = RecordBatch::try_new_with_options(Arc::clone(schema), made, &count);
    let rows = rows.map_err(|error| Unfit {
        message: error.to_string(),
        hint: "the source says what may be NULL".into(),
    })?;
    let bad = reasons.into_iter().map(|(row, reason)| {
        let bad =
            BadRow { table: table.into(), place: String::new(), reason, text: text(batch, row) };
        (row, bad)
    });
    Ok(FittedRows { rows, bad: bad.collect() })
}

/// The column of this name. It has no values that no row has, as a dictionary and the array below a
/// slice of lists may: those must not count.
fn column_of(batch: &RecordBatch, field: &Field) -> Result<ArrayRef, Unfit> {
    let Some(column) = batch.column_by_name(field.name()) else {
        let names = batch.schema();
        let names: Vec<_> = names.fields().iter().map(|one| one.name().as_str()).collect();
        let message = format!("the rows have no column '{}'", field.name());
        return Err(Unfit { message, hint: format!("they have: {}", names.join(", ")) });
    };
    let (has, wants) = (column.data_type(), field.data_type());
    let unfit = |hint: String| Unfit {
        message: format!("column '{}' is {has}, and not {wants}", field.name()),
        hint,
    };
    if has != wants && !can_cast_types(has, wants) {
        return Err(unfit(format!("{has} cannot be converted to {wants}")));
    }
    match has {
        DataType::Dictionary(_, values) if has != wants => converted(column, values).map_err(unfit),
        _ => Ok(Arc::clone(column)),
    }
}

/// Adds the rows of a range whose values the column of the table cannot have, and why. Halves of
/// the range are looked at where a whole is refused: one value among many is found by some
/// conversions.
fn refused(
    column: &ArrayRef,
    field: &Field,
    range: Range<usize>,
    reasons: &mut Vec<(usize, String)>,
) {
    let Ok(part) = part_of(column, range.clone()) else { return };
    let is_null = !field.is_nullable() && part.null_count() > 0;
    if !is_null && converted(&part, field.data_type()).is_ok() {
        return;
    }
    if range.len() > 1 {
        let half = range.start + range.len() / 2;
        refused(column, field, range.start..half, reasons);
        refused(column, field, half..range.end, reasons);
    } else if range.len() == 1 {
        let reason = if is_null {
            format!("column '{}': NULL, but it is NOT NULL", field.name())
        } else {
            let value = array_value_to_string(column, range.start).unwrap_or_default();
            let wants = field.data_type();
            format!(
                "column '{}': '{}' is not a valid {wants}",
                field.name(),
                clipped(&value, SHOWN_LETTERS_MAX)
            )
        };
        reasons.push((range.start, reason));
    }
}

/// The rows of a range. Values within others are copied: a conversion is of all that lie there,
/// also of those that no row has.
fn part_of(column: &ArrayRef, range: Range<usize>) -> Result<ArrayRef, String> {
    if !column.data_type().is_nested() {
        return Ok(column.slice(range.start, range.len()));
    }
    let rows = UInt64Array::from_iter_values(range.start as u64..range.end as u64);
    take(column, &rows, None).map_err(|error| error.to_string())
}

/// The values as another type. One that the type does not have is an error, and not NULL.
fn converted(column: &ArrayRef, wants: &DataType) -> Result<ArrayRef, String> {
    if column.data_type() == wants {
        return Ok(Arc::clone(column));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(column, wants, &options).map_err(|error| error.to_string())
}

/// Columns, with the rows that they have.
pub(crate) fn batch_of(rows: usize, columns: Vec<ArrayRef>) -> Result<RecordBatch, String> {
    let field = |column: &ArrayRef| Field::new("", column.data_type().clone(), true);
    let schema = arrow::datatypes::Schema::new(columns.iter().map(field).collect::<Vec<_>>());
    let count = RecordBatchOptions::new().with_row_count(Some(rows));
    let made = RecordBatch::try_new_with_options(Arc::new(schema), columns, &count);
    made.map_err(|error| error.to_string())
}

/// The values of a row, as far as they are shown.
pub(crate) fn text(batch: &RecordBatch, row: usize) -> String {
    let value = |column: &ArrayRef| array_value_to_string(column, row).unwrap_or_default();
    let values: Vec<String> =
        batch.columns().iter().map(|column| clipped(&value(column), SHOWN_LETTERS_MAX)).collect();
    values.join(",")
}

/// A text, cut behind `letters_max` letters.
pub(crate) fn clipped(text: &str, letters_max: usize) -> String {
    match text.char_indices().nth(letters_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}
