//! From columns as the bytes have them to rows as the table declares them.
//!
//! Invariant: a row leaves here with every value of its declared type, or is refused with a reason
//! and takes no other row with it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::{
    Array, ArrayRef, BooleanArray, Int64Array, StringArray, TimestampMillisecondArray, UInt32Array,
    new_null_array,
};
use arrow::compute::{can_cast_types, cast, filter_record_batch, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::bad::{BadRow, BadRows};
use dataflow::calendar::text_of;
use dataflow::connector::{MetadataSpec, TableDef};
use dataflow::error::ConnectorError;
use dataflow::origins::Origins;
use dataflow::source::ReaderContext;

use super::fit::{Fitted, Texts, fit};
use super::partitions::{self, value_as};
use crate::options::{OptionReader, nearest, sql_type};

/// The metadata of a row that every source of bytes knows.
pub(crate) static METADATA: [MetadataSpec; 3] = [
    MetadataSpec {
        key: "file",
        data_type: DataType::Utf8,
        doc: "The file, object or address that the row came from.",
    },
    MetadataSpec {
        key: "record",
        data_type: DataType::Int64,
        doc: "Where the row stands in it, counted from 1: the line on which it begins in CSV and \
              JSON, its number in other formats. Messages name bad rows by the same number.",
    },
    MetadataSpec {
        key: "ingestion_time",
        data_type: DataType::Timestamp(TimeUnit::Millisecond, None),
        doc: "The time of day (UTC) at which the batch of the row was read.",
    },
];

/// An output column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Output {
    /// A declared column, by position.
    Column(usize),
    /// A key in the names of directories, by position among all keys.
    Partition(usize),
    File,
    Record,
    IngestionTime,
}

/// The declared and the read columns of a table.
#[derive(Debug)]
pub(crate) struct TargetColumns {
    table: String,
    /// The declared columns that come from the bytes.
    pub(crate) declared: SchemaRef,
    /// The keys in the names of directories.
    keys: Vec<String>,
    /// The output columns.
    outputs: Vec<Output>,
    /// Their schema.
    pub(crate) projected: SchemaRef,
    /// Whether a bad row ends the query.
    strict: bool,
    /// Whether the bytes may lack columns that can be null, as others of the table have them.
    may_be_missing: bool,
}

impl TargetColumns {
    pub(crate) fn new(table: &TableDef, projection: &[usize]) -> Result<Self, ConnectorError> {
        Self::partitioned(table, projection, vec![])
    }

    /// The same for files whose names have these keys: a column with the name of a key takes its
    /// values from the names of the files.
    pub(crate) fn partitioned(
        table: &TableDef,
        projection: &[usize],
        keys: Vec<String>,
    ) -> Result<Self, ConnectorError> {
        let projected =
            table.schema.project(projection).map_err(|error| ConnectorError::Column {
                column: table.name.clone(),
                message: error.to_string(),
                hint: None,
            })?;
        let mut declared = Vec::new();
        let mut all = Vec::with_capacity(table.schema.fields().len());
        for (index, field) in table.schema.fields().iter().enumerate() {
            let name = field.name();
            let key = keys.iter().position(|key| key.eq_ignore_ascii_case(name));
            all.push(match (table.metadata.get(&index), key) {
                (Some(key), _) => metadata(field, key)?,
                (None, Some(key)) => Output::Partition(key),
                (None, None) => {
                    declared.push(Arc::clone(field));
                    Output::Column(declared.len() - 1)
                }
            });
        }
        let on_bad = OptionReader(&table.options).choice("on_bad", &["skip", "fail", "table"])?;
        Ok(Self {
            table: table.name.clone(),
            declared: Arc::new(Schema::new(declared)),
            keys,
            outputs: projection.iter().map(|index| all[*index]).collect(),
            projected: Arc::new(projected),
            strict: on_bad == Some(1),
            may_be_missing: false,
        })
    }

    /// The same for files among which each column has been found: one that lacks a column has
    /// NULL there.
    pub(crate) fn of_several(&self) -> Arc<Self> {
        let (keys, outputs) = (self.keys.clone(), self.outputs.clone());
        let [declared, projected] = [&self.declared, &self.projected].map(Arc::clone);
        let (table, strict) = (self.table.clone(), self.strict);
        Arc::new(Self { table, declared, keys, outputs, projected, strict, may_be_missing: true })
    }

    /// The position of each declared column among `names`, by name: as written, else without regard
    /// to case. `None`: it is not there, and NULL.
    ///
    /// # Errors
    /// When one is missing that must be there.
    pub(crate) fn match_columns(
        &self,
        names: &[String],
        place: &str,
    ) -> Result<Vec<Option<usize>>, ConnectorError> {
        let found = find_columns(&self.declared, names);
        let missing = found.iter().zip(self.declared.fields()).find(|(found, field)| {
            found.is_none() && !(self.may_be_missing && field.is_nullable())
        });
        let Some((_, field)) = missing else {
            self.check_unique(&found, names, place)?;
            return Ok(found);
        };
        let name = field.name();
        Err(ConnectorError::Column {
            column: name.clone(),
            message: format!("{place} has no such column"),
            hint: Some(match nearest(name, names.iter().map(String::as_str)) {
                Some(near) => format!("did you mean '{near}'?"),
                None => format!("its columns are {}", names.join(", ")),
            }),
        })
    }

    /// Refuses a file in which a declared column is there twice: nothing says which one was meant.
    fn check_unique(
        &self,
        found: &[Option<usize>],
        names: &[String],
        place: &str,
    ) -> Result<(), ConnectorError> {
        let mut seen = HashSet::with_capacity(names.len());
        let twice: HashSet<&String> = names.iter().filter(|name| !seen.insert(*name)).collect();
        let Some(at) = found.iter().flatten().copied().find(|at| twice.contains(&names[*at]))
        else {
            return Ok(());
        };
        Err(ConnectorError::Column {
            column: names[at].clone(),
            message: format!("{place} has two columns of this name"),
            hint: Some("write the file with another name for one of them".into()),
        })
    }

    /// The declared columns in the output, each once, in order.
    pub(crate) fn columns_read(&self) -> Vec<usize> {
        let column = |output: &Output| match output {
            Output::Column(index) => Some(*index),
            _ => None,
        };
        let mut read: Vec<usize> = self.outputs.iter().filter_map(column).collect();
        read.sort_unstable();
        read.dedup();
        read
    }

    /// The declared column at `position` of the output; `None` where it is metadata.
    pub(crate) fn column_at(&self, position: usize) -> Option<usize> {
        match self.outputs.get(position)? {
            Output::Column(index) => Some(*index),
            _ => None,
        }
    }

    /// The value of an output column in all rows of a file, in a column of one row; `None` if it
    /// differs from row to row.
    ///
    /// # Errors
    /// When the name of the file has no such value.
    pub(crate) fn constant(
        &self,
        position: usize,
        name: &str,
    ) -> Result<Option<ArrayRef>, ConnectorError> {
        let field = self.projected.field(position);
        let key = match self.outputs.get(position) {
            Some(Output::Partition(key)) => &self.keys[*key],
            Some(Output::File) => return Ok(value_as(Some(name), field.data_type())),
            _ => return Ok(None),
        };
        let value = partitions::of_name(name).remove(key).flatten();
        let unfit = |message: String, hint: &str| ConnectorError::Column {
            column: field.name().clone(),
            message: format!("the path '{name}': {message}"),
            hint: Some(hint.into()),
        };
        if value.is_none() && !field.is_nullable() {
            return Err(unfit("it is NULL there, and NOT NULL".into(), "leave out NOT NULL"));
        }
        match value_as(value.as_deref(), field.data_type()) {
            Some(value) => Ok(Some(value)),
            None => {
                let (value, of) = (value.unwrap_or_default(), sql_type(field.data_type()));
                let message = format!("'{}' is not a valid {of}", clipped(&value));
                Err(unfit(message, "declare it as STRING"))
            }
        }
    }

    fn output(
        &self,
        position: usize,
        columns: &dyn Fn(usize) -> ArrayRef,
        rows: usize,
        origin: &dyn RowOrigin,
    ) -> Result<ArrayRef, ArrowError> {
        let array: ArrayRef = match self.outputs[position] {
            Output::Column(index) => return Ok(columns(index)),
            Output::Partition(_) => {
                let value = self.constant(position, origin.name());
                let value = value.map_err(|error| ArrowError::CastError(error.to_string()))?;
                let value = value.unwrap_or_else(|| new_null_array(&DataType::Null, 1));
                return take(&value, &UInt32Array::from_value(0, rows), None);
            }
            Output::File => {
                Arc::new(StringArray::from_iter_values(std::iter::repeat_n(origin.name(), rows)))
            }
            Output::Record => Arc::new(Int64Array::from_iter_values(
                (0..rows).map(|row| origin.record(row) as i64),
            )),
            Output::IngestionTime => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Arc::new(TimestampMillisecondArray::from_value(now.as_millis() as i64, rows))
            }
        };
        cast(&array, self.projected.field(position).data_type())
    }
}

/// The metadata of a key, as the type of `field`.
fn metadata(field: &Field, key: &str) -> Result<Output, ConnectorError> {
    let unfit = |message: String, hint: String| ConnectorError::Column {
        column: field.name().clone(),
        message,
        hint: Some(hint),
    };
    let Some(index) = METADATA.iter().position(|spec| spec.key == key) else {
        let keys = METADATA.iter().map(|spec| spec.key);
        let all = keys.clone().collect::<Vec<_>>().join(", ");
        let hint = match nearest(key, keys) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("there are {all}"),
        };
        return Err(unfit(format!("there is no metadata '{key}'"), hint));
    };
    let (of, declared) = (&METADATA[index].data_type, field.data_type());
    let fits = match declared {
        DataType::Timestamp(..) => matches!(of, DataType::Timestamp(..)),
        _ => declared == of || (is_text(declared) && is_text(of)),
    };
    if !fits {
        let (of, declared) = (sql_type(of), sql_type(declared));
        let message = format!("metadata '{key}' is {of}, not {declared}");
        return Err(unfit(message, format!("declare it as {of}")));
    }
    Ok([Output::File, Output::Record, Output::IngestionTime][index])
}

/// Where the rows of a batch stand.
pub(crate) trait RowOrigin {
    /// The file, object or address.
    fn name(&self) -> &str;

    /// The number of a row's record in it.
    fn record(&self, row: usize) -> u64;

    /// The record as text.
    fn text(&self, row: usize) -> Cow<'_, [u8]>;
}

/// A row that was refused: its position in the batch, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusedRow {
    pub(crate) row: usize,
    pub(crate) reason: String,
}

/// Where refused rows go.
#[derive(Clone)]
pub(crate) struct Refuser {
    pub(crate) target: Arc<TargetColumns>,
    pub(crate) bad: Arc<BadRows>,
    pub(crate) origins: Arc<Origins>,
}

impl Refuser {
    /// Rows refused go to the bad rows of `context`.
    pub(crate) fn new(target: &Arc<TargetColumns>, context: &ReaderContext) -> Self {
        let (bad, origins) = (Arc::clone(&context.bad), Arc::clone(&context.origins));
        Self { target: Arc::clone(target), bad, origins }
    }

    /// The same columns; bad rows are reported to nobody.
    pub(crate) fn silent(target: &Arc<TargetColumns>) -> Self {
        Self { target: Arc::clone(target), bad: Arc::default(), origins: Arc::default() }
    }

    /// Reads every row of columns that nobody declared yet, and forgets the bad ones.
    pub(crate) fn ignoring(declared: SchemaRef) -> Self {
        let outputs = (0..declared.fields().len()).map(Output::Column).collect();
        let projected = Arc::clone(&declared);
        let (table, keys) = (String::new(), vec![]);
        let (strict, may_be_missing) = (false, false);
        let target =
            TargetColumns { table, declared, keys, outputs, projected, strict, may_be_missing };
        Self { target: Arc::new(target), bad: Arc::default(), origins: Arc::default() }
    }

    /// Reports the origins of the next output rows.
    fn tell(&self, rows: usize, refused: &[RefusedRow], origin: &dyn RowOrigin) {
        let Some(last) = rows.checked_sub(1) else { return };
        let (first, records) = (origin.record(0), origin.record(last));
        if refused.is_empty() && records == first + last as u64 {
            return self.origins.tell(origin.name(), first, rows as u64);
        }
        let mut refused = refused.iter().map(|refused| refused.row).peekable();
        let mut run: Option<(u64, u64)> = None;
        for row in (0..rows).filter(|row| refused.next_if_eq(row).is_none()) {
            let record = origin.record(row);
            match &mut run {
                Some((first, count)) if *first + *count == record => *count += 1,
                run => {
                    if let Some((first, count)) = run.replace((record, 1)) {
                        self.origins.tell(origin.name(), first, count);
                    }
                }
            }
        }
        if let Some((first, count)) = run {
            self.origins.tell(origin.name(), first, count);
        }
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
                hint: Some("with 'on_bad' = 'skip' such rows are counted and skipped".into()),
            });
        }
        let text = String::from_utf8_lossy(text).into_owned();
        self.bad.add(BadRow { table: self.target.table.clone(), place, reason, text });
        Ok(())
    }

    /// The output columns, without the refused rows. `columns` gives a declared column.
    pub(crate) fn rows(
        &self,
        columns: &dyn Fn(usize) -> ArrayRef,
        rows: usize,
        mut refused: Vec<RefusedRow>,
        origin: &dyn RowOrigin,
    ) -> Result<RecordBatch, ConnectorError> {
        // The first reason for each, in the order of rows.
        refused.sort_by_key(|refused| refused.row);
        refused.dedup_by_key(|refused| refused.row);
        for RefusedRow { row, reason } in &refused {
            let place = format!("{}:{}", origin.name(), origin.record(*row));
            self.refuse(place, reason.clone(), &origin.text(*row))?;
        }
        self.tell(rows, &refused, origin);
        let outputs = 0..self.target.outputs.len();
        let chosen: Result<Vec<ArrayRef>, ArrowError> =
            outputs.map(|position| self.target.output(position, columns, rows, origin)).collect();
        chosen
            .and_then(|chosen| without(&self.target.projected, chosen, rows, &refused))
            .map_err(|error| unfit(origin.name(), &error))
    }
}

/// An error about bytes that no row is to blame for.
pub(crate) fn unfit(name: &str, error: &dyn std::fmt::Display) -> ConnectorError {
    ConnectorError::Io { place: name.to_owned(), message: error.to_string(), hint: None }
}

/// A batch of the `columns` without the refused rows.
fn without(
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
    refused: &[RefusedRow],
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
    refused: &mut Vec<RefusedRow>,
) -> Result<ArrayRef, ArrowError> {
    convert_from(array, field, Texts::Plain, refused)
}

/// The same, where texts are what `texts` says.
pub(super) fn convert_from(
    array: &ArrayRef,
    field: &Field,
    texts: Texts,
    refused: &mut Vec<RefusedRow>,
) -> Result<ArrayRef, ArrowError> {
    let Fitted { column, lost } = fit(array, field.data_type(), texts)?;
    if let Some(lost) = lost {
        for row in lost.set_indices() {
            refused.push(RefusedRow { row, reason: not_valid(field, &text_of(array, row)?) });
        }
    }
    if !field.is_nullable() && column.null_count() > 0 {
        refused.extend(
            (0..array.len())
                .filter(|row| array.is_null(*row))
                .map(|row| RefusedRow { row, reason: not_null(field) }),
        );
    }
    Ok(column)
}

/// Values that are known to fit, or nulls, in another type.
pub(crate) fn fitted(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    fit(array, data_type, Texts::Plain).map(|fitted| fitted.column)
}

/// `array` as a column of the type of `field`, to be written.
///
/// # Errors
/// When the type cannot hold a value.
pub(crate) fn exact(array: &ArrayRef, field: &Field) -> Result<ArrayRef, String> {
    let text = |error: ArrowError| error.to_string();
    let Fitted { column, lost } = fit(array, field.data_type(), Texts::Plain).map_err(text)?;
    match lost.and_then(|lost| lost.set_indices().next()) {
        None => Ok(column),
        Some(row) => Err(not_valid(field, &text_of(array, row).map_err(text)?)),
    }
}

/// Letters of a value that are shown in a reason.
const SHOWN_LETTERS_MAX: usize = 200;

/// A value or message as far as a reason shows it.
pub(super) fn clipped(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN_LETTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// The reason for a value that the declared type cannot hold.
pub(crate) fn not_valid(field: &Field, value: &str) -> String {
    let value = clipped(value);
    format!("column '{}': '{value}' is not a valid {}", field.name(), sql_type(field.data_type()))
}

/// The reason for a NULL where none is allowed.
pub(crate) fn not_null(field: &Field) -> String {
    format!("column '{}': NULL, but it is NOT NULL", field.name())
}

/// A row as text, for a row that never was any.
pub(crate) fn shown(batch: &RecordBatch, row: usize) -> Result<String, ArrowError> {
    let value = |column: &ArrayRef| text_of(column, row);
    Ok(batch.columns().iter().map(value).collect::<Result<Vec<_>, _>>()?.join(","))
}

/// The position of each declared column among `names`, where it is there.
pub(crate) fn find_columns(declared: &Schema, names: &[String]) -> Vec<Option<usize>> {
    // A file may have very many columns.
    let (mut exact, mut folded) = (HashMap::new(), HashMap::new());
    for (index, name) in names.iter().enumerate() {
        exact.entry(name).or_insert(index);
        folded.entry(name.to_ascii_lowercase()).or_insert(index);
    }
    let place = |field: &Arc<Field>| {
        let written = exact.get(field.name());
        written.or_else(|| folded.get(&field.name().to_ascii_lowercase())).copied()
    };
    declared.fields().iter().map(place).collect()
}

/// Whether each declared column is in one of several schemas.
pub(crate) fn all_found<'a>(
    declared: &Schema,
    schemas: impl IntoIterator<Item = &'a Schema>,
) -> bool {
    let mut left: Vec<usize> = (0..declared.fields().len()).collect();
    for schema in schemas {
        let found = find_columns(declared, &names_of(schema));
        left.retain(|column| found[*column].is_none());
    }
    left.is_empty()
}

/// The names of the columns of a schema.
pub(crate) fn names_of(schema: &Schema) -> Vec<String> {
    schema.fields().iter().map(|field| field.name().clone()).collect()
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
