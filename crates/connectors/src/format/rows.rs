//! From columns as the bytes have them to rows as the table declares them.
//!
//! Invariant: a row leaves here with every value of its declared type, or is refused with a reason
//! and takes no other row with it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::buffer::BooleanBuffer;
use arrow::compute::{CastOptions, can_cast_types, cast_with_options, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dataflow::bad::{BadRow, BadRows};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::source::FlowContext;

use crate::options::{Reader, nearest, sql_type};

/// What is read of a table.
#[derive(Debug)]
pub(crate) struct Target {
    table: String,
    /// All declared columns.
    pub(crate) declared: SchemaRef,
    /// The columns to be given out, by position among the declared.
    pub(crate) projection: Vec<usize>,
    /// Their schema.
    pub(crate) projected: SchemaRef,
    /// Whether a bad row ends the query.
    strict: bool,
}

impl Target {
    pub(crate) fn new(table: &TableDef, projection: &[usize]) -> Result<Self, ConnectorError> {
        let projected =
            table.schema.project(projection).map_err(|error| ConnectorError::Column {
                column: table.name.clone(),
                message: error.to_string(),
                hint: None,
            })?;
        let on_bad = Reader(&table.options).choice("on_bad", &["skip", "fail"])?;
        Ok(Self {
            table: table.name.clone(),
            declared: Arc::clone(&table.schema),
            projection: projection.to_vec(),
            projected: Arc::new(projected),
            strict: on_bad == Some(1),
        })
    }
}

/// A row that was refused: its position in the batch, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) row: usize,
    pub(crate) reason: String,
}

/// Where refused rows go.
#[derive(Clone)]
pub(crate) struct Refuser {
    pub(crate) target: Arc<Target>,
    pub(crate) bad: Arc<BadRows>,
}

impl Refuser {
    /// Rows refused go to the bad rows of `context`.
    pub(crate) fn new(target: &Arc<Target>, context: &FlowContext) -> Self {
        Self { target: Arc::clone(target), bad: Arc::clone(&context.bad) }
    }

    /// The same columns, and nobody who would hear of the bad rows.
    pub(crate) fn silent(target: &Arc<Target>) -> Self {
        Self { target: Arc::clone(target), bad: Arc::default() }
    }

    /// Reads every row of columns that nobody declared yet, and forgets the bad ones.
    pub(crate) fn ignoring(declared: SchemaRef) -> Self {
        let projection = (0..declared.fields().len()).collect();
        let projected = Arc::clone(&declared);
        let table = String::new();
        let target = Target { table, declared, projection, projected, strict: false };
        Self { target: Arc::new(target), bad: Arc::default() }
    }

    /// Counts a row that cannot be read, or fails where the table says so.
    pub(crate) fn refuse(
        &self,
        place: String,
        reason: String,
        text: &[u8],
    ) -> Result<(), ConnectorError> {
        if self.target.strict {
            return Err(ConnectorError::Io {
                place,
                message: reason,
                hint: Some("with 'on_bad' = 'skip' such rows are counted and passed over".into()),
            });
        }
        let text = String::from_utf8_lossy(text).into_owned();
        self.bad.add(BadRow { table: self.target.table.clone(), place, reason, text });
        Ok(())
    }
}

/// The first reason for each refused row, in the order of rows.
pub(crate) fn first_reasons(mut refused: Vec<Refused>) -> Vec<Refused> {
    refused.sort_by_key(|refused| refused.row);
    refused.dedup_by_key(|refused| refused.row);
    refused
}

/// A batch of the `columns` without the refused rows.
pub(crate) fn without(
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
    refused: &[Refused],
) -> Result<RecordBatch, ArrowError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    if refused.is_empty() {
        return RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options);
    }
    // A refused row may have a null where none is allowed, until it is taken out.
    let fields: Vec<Field> =
        schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    let loose = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new_with_options(loose, columns, &options)?;
    let mut kept = vec![true; rows];
    for refused in refused {
        kept[refused.row] = false;
    }
    let batch = filter_record_batch(&batch, &BooleanArray::from(kept))?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options)
}

/// `array` as a column of the type of `field`. Values that the type cannot hold, and nulls where
/// none is allowed, are added to `refused`.
pub(crate) fn convert(
    array: &ArrayRef,
    field: &Field,
    refused: &mut Vec<Refused>,
) -> Result<ArrayRef, ArrowError> {
    let column = if array.data_type() == field.data_type() {
        Arc::clone(array)
    } else {
        let safe = CastOptions { safe: true, format_options: FormatOptions::default() };
        let column = cast_with_options(array, field.data_type(), &safe)?;
        let lost = lost_rows(array, &column)?;
        if lost.count_set_bits() > 0 {
            let shown = ArrayFormatter::try_new(array, &FormatOptions::default())?;
            let reason = |row| not_valid(field, &shown.value(row).to_string());
            refused.extend(lost.set_indices().map(|row| Refused { row, reason: reason(row) }));
        }
        column
    };
    if !field.is_nullable() && column.null_count() > 0 {
        refused.extend((0..array.len()).filter(|row| array.is_null(*row)).map(|row| Refused {
            row,
            reason: format!("column '{}': NULL, but it is NOT NULL", field.name()),
        }));
    }
    Ok(column)
}

/// The reason for a value that the declared type cannot hold.
pub(crate) fn not_valid(field: &Field, value: &str) -> String {
    format!("column '{}': '{value}' is not a valid {}", field.name(), sql_type(field.data_type()))
}

/// The rows whose value did not survive: a null that was none, a fraction that was cut off.
fn lost_rows(from: &ArrayRef, to: &ArrayRef) -> Result<BooleanBuffer, ArrowError> {
    let rows = from.len();
    let valid = |array: &ArrayRef| match array.logical_nulls() {
        Some(nulls) => nulls.inner().clone(),
        None => BooleanBuffer::new_set(rows),
    };
    let mut lost = if to.null_count() > from.logical_null_count() {
        &valid(from) & &!&valid(to)
    } else {
        BooleanBuffer::new_unset(rows)
    };
    if from.data_type().is_floating() && to.data_type().is_integer() {
        let wide = cast_with_options(from, &DataType::Float64, &CastOptions::default())?;
        let whole = wide.as_primitive::<arrow::datatypes::Float64Type>();
        let cut = BooleanBuffer::collect_bool(rows, |row| {
            to.is_valid(row) && whole.value(row).fract() != 0.0
        });
        lost = &lost | &cut;
    }
    Ok(lost)
}

/// A row as text, for a row that never was any.
pub(crate) fn shown(batch: &RecordBatch, row: usize) -> Result<String, ArrowError> {
    let options = FormatOptions::default().with_null("NULL");
    let values = batch.columns().iter().map(|column| {
        Ok::<_, ArrowError>(ArrayFormatter::try_new(column, &options)?.value(row).to_string())
    });
    Ok(values.collect::<Result<Vec<_>, _>>()?.join(","))
}

/// The position of each declared column among `names`, by name: as written, else without regard to
/// case.
pub(crate) fn match_columns(
    declared: &Schema,
    names: &[String],
    place: &str,
) -> Result<Vec<usize>, ConnectorError> {
    declared
        .fields()
        .iter()
        .map(|field| {
            let name = field.name();
            names
                .iter()
                .position(|other| other == name)
                .or_else(|| names.iter().position(|other| other.eq_ignore_ascii_case(name)))
                .ok_or_else(|| ConnectorError::Column {
                    column: name.clone(),
                    message: format!("{place} has no such column"),
                    hint: Some(match nearest(name, names.iter().map(String::as_str)) {
                        Some(near) => format!("did you mean '{near}'?"),
                        None => format!("its columns are {}", names.join(", ")),
                    }),
                })
        })
        .collect()
}

/// Refuses a declared type that nothing in a file of type `from` can become.
pub(crate) fn check_castable(
    field: &Field,
    from: &DataType,
    place: &str,
) -> Result<(), ConnectorError> {
    if from == field.data_type() || can_cast_types(from, field.data_type()) {
        return Ok(());
    }
    Err(ConnectorError::Column {
        column: field.name().clone(),
        message: format!(
            "{} cannot be read from {}, which {place} has",
            sql_type(field.data_type()),
            sql_type(from)
        ),
        hint: Some(format!("declare it as {}", sql_type(from))),
    })
}

/// Whether a column holds text.
pub(crate) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => is_text(value),
        other => other.is_string(),
    }
}
