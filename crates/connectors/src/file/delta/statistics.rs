//! Statistics of files in a log: rows, NULLs, and the ends of columns, as JSON in a text.
//!
//! ```text
//! {"numRecords": 3, "minValues": {"n": 1}, "maxValues": {"n": 7}, "nullCount": {"n": 0}}
//! ```
//!
//! Texts are cut: the least one is a prefix then, and the greatest one is no less than what it
//! stands for. Times have milliseconds, which writers cut off. Decimals are numbers of JSON, of
//! which some parsers keep 15 digits. So what is not certain to be an end is left out, by the
//! writer and by the reader: a file without an end is read.
//!
//! Wrong statistics are trusted, as other engines trust them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int64Array, StringArray,
    TimestampMicrosecondArray,
};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    DataType, Decimal128Type, Field, Float64Type, Int64Type, Schema, TimeUnit,
    TimestampMicrosecondType,
};
use arrow::temporal_conversions::timestamp_ms_to_datetime;
use dataflow::calendar::text_of;
use dataflow::predicate::ColumnSummary;
use serde_json::{Map, Value, json};

use crate::format::TargetColumns;
use crate::format::rows::fitted;
use crate::stored::{FileSummaries, always_fits, keeps_order};

/// Bytes of the statistics of a file at most: with more it has its rows alone.
const BYTES_MAX: usize = 64 << 10;
/// Letters of a text at most.
const LETTERS_MAX: usize = 32;
/// The letter behind a greatest text that was cut, so that it is no less: the last letter of ASCII,
/// or the last one of all.
const BEHIND_CUT: [char; 2] = ['\u{7f}', '\u{10ffff}'];
/// Decimals below are the same as numbers of 64 bits.
const UNSCALED_MAX: i128 = 1_000_000_000_000_000;
/// Columns that have statistics where the table does not say it.
const COLUMNS: usize = 32;

/// An end of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Least,
    Greatest,
}

/// The columns whose statistics a writer gathers. `setting` gives what the table says.
pub(super) fn columns_of<'a>(
    schema: &Schema,
    partitioned_by: &[String],
    setting: impl Fn(&str) -> Option<&'a str>,
) -> Vec<String> {
    let of_files = schema.fields().iter().filter(|field| !partitioned_by.contains(field.name()));
    if let Some(given) = setting("delta.dataSkippingStatsColumns") {
        let given: Vec<&str> = given.split(',').map(|name| name.trim().trim_matches('`')).collect();
        let is_given = |field: &&Arc<Field>| {
            given.contains(&field.name().as_str()) && !field.data_type().is_nested()
        };
        return of_files.filter(is_given).map(|field| field.name().clone()).collect();
    }
    let count = setting("delta.dataSkippingNumIndexedCols").and_then(|of| of.parse::<i64>().ok());
    let mut left = count.map_or(COLUMNS, |of| usize::try_from(of).unwrap_or(usize::MAX));
    let mut columns = vec![];
    for field in of_files {
        let leaves = leaves(field);
        if leaves <= left && !field.data_type().is_nested() {
            columns.push(field.name().clone());
        }
        left = left.saturating_sub(leaves);
    }
    columns
}

/// The columns that a column of rows counts as.
fn leaves(field: &Field) -> usize {
    match field.data_type() {
        DataType::Struct(fields) => fields.iter().map(|field| leaves(field)).sum(),
        _ => 1,
    }
}

/// The statistics of a file of `rows` rows, by what is known of its columns.
pub(super) fn written(rows: u64, columns: &[(String, ColumnSummary)]) -> String {
    let ends = |end: End| -> Map<String, Value> {
        let of = columns.iter().filter_map(|(name, of)| {
            let value = if end == End::Least { &of.least } else { &of.greatest };
            Some((name.clone(), written_end(value.as_ref()?, end)?))
        });
        of.collect()
    };
    let nulls = columns.iter().map(|(name, of)| (name.clone(), json!(of.nulls)));
    let nulls: Map<String, Value> = nulls.filter(|(_, of)| !of.is_null()).collect();
    let (least, greatest) = (ends(End::Least), ends(End::Greatest));
    let text = json!({
        "numRecords": rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
    });
    let text = text.to_string();
    if columns.is_empty() || text.len() > BYTES_MAX { rows_alone(rows) } else { text }
}

/// The statistics of a file of which only the rows are known.
pub(super) fn rows_alone(rows: u64) -> String {
    json!({ "numRecords": rows }).to_string()
}

/// Whether a text may be statistics that were written here.
pub(super) fn is_written(text: &str) -> bool {
    let is_one = |of: Value| of.get("numRecords").is_some_and(Value::is_u64);
    text.len() <= BYTES_MAX && serde_json::from_str(text).is_ok_and(is_one)
}

fn written_end(value: &ArrayRef, end: End) -> Option<Value> {
    match value.data_type() {
        DataType::Utf8 => cut(value.as_string::<i32>().value(0), end).map(Value::String),
        DataType::Float32 | DataType::Float64 => {
            let number = cast(value, &DataType::Float64).ok()?;
            let number = number.as_primitive::<Float64Type>().value(0);
            // A zero has no sign for most, and stands for both.
            let zero = if end == End::Least { -0.0 } else { 0.0 };
            let number = if number == 0.0 { zero } else { number };
            number.is_finite().then(|| json!(number))
        }
        of if of.is_integer() => {
            let number = cast(value, &DataType::Int64).ok()?;
            Some(json!(number.as_primitive::<Int64Type>().value(0)))
        }
        DataType::Date32 => {
            let text = text_of(value, 0).ok()?;
            // A year of four digits.
            (text.len() == "2024-01-31".len()).then_some(Value::String(text))
        }
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let micros = value.as_primitive::<TimestampMicrosecondType>().value(0);
            let up = if end == End::Least { 0 } else { 999 };
            let time = timestamp_ms_to_datetime(micros.checked_add(up)?.div_euclid(1000))?;
            let text = time.format("%Y-%m-%dT%H:%M:%S%.3f").to_string();
            let zone = if zone.is_some() { "Z" } else { "" };
            (text.len() == "2024-01-31T12:34:56.789".len())
                .then(|| Value::String(format!("{text}{zone}")))
        }
        DataType::Decimal128(..) => {
            let unscaled = value.as_primitive::<Decimal128Type>().value(0);
            let text = text_of(value, 0).ok()?;
            let is_exact = unscaled.abs() < UNSCALED_MAX;
            is_exact.then(|| text.parse::<f64>().ok()).flatten().map(|number| json!(number))
        }
        _ => None,
    }
}

/// A text of at most [`LETTERS_MAX`] letters that is no greater, or no less, than `text`, with one
/// more where it was cut.
fn cut(text: &str, end: End) -> Option<String> {
    let Some((at, _)) = text.char_indices().nth(LETTERS_MAX) else { return Some(text.to_owned()) };
    let (kept, rest) = text.split_at(at);
    if end == End::Least {
        return Some(kept.to_owned());
    }
    let next = rest.chars().next()?;
    let behind = BEHIND_CUT.into_iter().find(|behind| *behind > next)?;
    Some(format!("{kept}{behind}"))
}

/// The summary of a column by statistics, as values of its type.
fn read(json: &Value, column: &Field) -> ColumnSummary {
    let of = |kind: &str| json.get(kind)?.get(column.name());
    let end = |kind: &str, end: End| read_end(of(kind)?, column.data_type(), end);
    let rows = json.get("numRecords").and_then(Value::as_u64);
    // Ends are right where they are wide, and numbers of NULLs are not.
    let is_tight = json.get("tightBounds").and_then(Value::as_bool) != Some(false);
    let nulls = of("nullCount").and_then(Value::as_u64).filter(|_| is_tight);
    ColumnSummary {
        least: end("minValues", End::Least),
        greatest: end("maxValues", End::Greatest),
        nulls: nulls.filter(|nulls| rows.is_some_and(|rows| *nulls <= rows)),
        rows,
        members: None,
    }
}

/// Reads statistics that anybody may have made, of a file with these columns.
///
/// # Panics
/// When an end is none of its column.
pub(super) fn check(text: &str, schema: &Schema) {
    let Ok(json) = serde_json::from_str(text) else { return };
    for field in schema.fields() {
        let ColumnSummary { least, greatest, .. } = read(&json, field);
        for end in least.into_iter().chain(greatest) {
            assert_eq!((end.data_type(), end.len()), (field.data_type(), 1), "{field}");
            assert!(end.is_valid(0), "{field} has NULL for an end");
        }
    }
}

/// The end that a value of JSON is, as a value of the type `of`.
fn read_end(json: &Value, of: &DataType, end: End) -> Option<ArrayRef> {
    match of {
        DataType::Utf8 => Some(Arc::new(StringArray::from(vec![json.as_str()?]))),
        DataType::Boolean => Some(Arc::new(BooleanArray::from(vec![json.as_bool()?]))),
        DataType::Float32 | DataType::Float64 => {
            let number: ArrayRef = Arc::new(Float64Array::from(vec![json.as_f64()?]));
            let number = cast(&number, of).ok()?;
            let double = cast(&number, &DataType::Float64).ok()?;
            double.as_primitive::<Float64Type>().value(0).is_finite().then_some(number)
        }
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => {
            exactly(Arc::new(Int64Array::from(vec![json.as_i64()?])), of)
        }
        DataType::Date32 => exactly(Arc::new(StringArray::from(vec![json.as_str()?])), of),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let text = json.as_str()?;
            let time = text.get("2024-01-31".len()..)?;
            let has_zone = time.ends_with('Z') || time.contains(['+', '-']);
            if has_zone != zone.is_some() {
                return None;
            }
            let read = exactly(Arc::new(StringArray::from(vec![text])), of)?;
            let micros = read.as_primitive::<TimestampMicrosecondType>().value(0);
            // Writers cut off what is behind the milliseconds.
            let is_cut = end == End::Greatest && micros.rem_euclid(1000) == 0;
            let micros = micros.checked_add(if is_cut { 999 } else { 0 })?;
            let read = TimestampMicrosecondArray::from(vec![micros]);
            Some(Arc::new(read.with_timezone_opt(zone.clone())))
        }
        DataType::Decimal128(digits, scale) => decimal(json, *digits, *scale),
        _ => None,
    }
}

/// A number with at most as many digits behind its point as the type has.
fn decimal(json: &Value, digits: u8, scale: i8) -> Option<ArrayRef> {
    let text = json.as_i64().map(|of| of.to_string());
    let text = text.or_else(|| json.as_f64().map(|of| of.to_string()))?;
    let (whole, behind) = text.split_once('.').unwrap_or((&text, ""));
    let (behind, scale_digits) = (behind.trim_end_matches('0'), usize::try_from(scale).ok()?);
    if behind.len() > scale_digits {
        return None;
    }
    let unscaled: i128 = format!("{whole}{behind:0<scale_digits$}").parse().ok()?;
    let is_exact = unscaled.abs() < UNSCALED_MAX.min(10_i128.checked_pow(digits.into())?);
    let one = Decimal128Array::from(vec![unscaled]);
    is_exact.then(|| one.with_precision_and_scale(digits, scale).ok())?.map(|of| Arc::new(of) as _)
}

/// A value as one of the type `of`, if it is one.
fn exactly(value: ArrayRef, of: &DataType) -> Option<ArrayRef> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(&value, of, &options).ok()
}

/// The statistics of the files of a table, for the columns that a query reads.
pub(super) struct TableStatistics {
    /// By file.
    texts: Vec<Option<Box<str>>>,
    target: Arc<TargetColumns>,
    /// The column of the table at a place of the output.
    columns: BTreeMap<usize, Field>,
    /// Places of columns that are declared NOT NULL and may be NULL in the table.
    not_null: BTreeSet<usize>,
    /// Whether each value of a column that is read fits the declared type.
    fits: bool,
}

impl TableStatistics {
    /// Of files with these statistics, in a table with these columns.
    pub(super) fn new(
        texts: Vec<Option<Box<str>>>,
        known: &Schema,
        target: &Arc<TargetColumns>,
    ) -> Self {
        let places = 0..target.projected.fields().len();
        let column = |place: usize| {
            let name = target.declared.field(target.column_at(place)?).name();
            let mut named =
                known.fields().iter().filter(|field| field.name().eq_ignore_ascii_case(name));
            // Two columns whose names differ in case alone are ambiguous.
            let field = named.next().filter(|_| named.next().is_none())?;
            Some((place, field.as_ref().clone()))
        };
        let columns: BTreeMap<usize, Field> = places.filter_map(column).collect();
        let declared = |place: &usize| target.projected.field(*place);
        let fits = columns
            .iter()
            .all(|(place, field)| always_fits(field.data_type(), declared(place).data_type()));
        let is_checked = |(place, field): &(&usize, &Field)| {
            field.is_nullable() && !declared(place).is_nullable()
        };
        let not_null = columns.iter().filter(is_checked).map(|(place, _)| *place).collect();
        Self { texts, target: Arc::clone(target), columns, not_null, fits }
    }
}

impl FileSummaries for TableStatistics {
    fn of(&self, file: usize, places: &BTreeSet<usize>) -> Option<BTreeMap<usize, ColumnSummary>> {
        let text = self.texts.get(file)?.as_deref().filter(|_| self.fits)?;
        let json: Value = serde_json::from_str(text).ok()?;
        let summary = |place: usize| {
            let field = self.columns.get(&place)?;
            let declared = self.target.projected.field(place).data_type();
            let ColumnSummary { least, greatest, nulls, rows, .. } = read(&json, field);
            let is_ordered = keeps_order(field.data_type(), declared);
            let [least, greatest] = [least, greatest].map(|end| {
                let end = fitted(&end.filter(|_| is_ordered)?, declared).ok()?;
                Some(end).filter(|end| end.is_valid(0))
            });
            Some(ColumnSummary { least, greatest, nulls, rows, members: None })
        };
        let has_nulls = |place: &usize| summary(*place).and_then(|of| of.nulls) != Some(0);
        if self.not_null.iter().any(has_nulls) {
            return None;
        }
        Some(places.iter().filter_map(|place| Some((*place, summary(*place)?))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_with_parts_have_no_statistics_however_they_are_chosen() {
        let parts = DataType::Struct(vec![Field::new("x", DataType::Int64, true)].into());
        let fields = [Field::new("s", parts, true), Field::new("n", DataType::Int64, true)];
        let schema = Schema::new(fields.to_vec());
        for given in [None, Some("s, n")] {
            let setting = |key: &str| given.filter(|_| key == "delta.dataSkippingStatsColumns");
            assert_eq!(columns_of(&schema, &[], setting), ["n"], "{given:?}");
        }
    }

    #[test]
    fn a_text_that_was_cut_is_an_end_still() {
        let long = |of: &str, more: &str| format!("{}{more}", of.repeat(LETTERS_MAX));
        for text in [
            String::new(),
            long("a", ""),
            long("a", "b"),
            long("a", "\u{7f}"),
            long("é", "\u{7f}é"),
            long("😀", "\u{10fffe}"),
        ] {
            let [least, greatest] = [End::Least, End::Greatest].map(|end| cut(&text, end).unwrap());
            assert!(least <= text && text <= greatest, "{text}: {least} to {greatest}");
            let letters = [least, greatest].map(|of| of.chars().count());
            assert!(letters[0] <= LETTERS_MAX && letters[1] <= LETTERS_MAX + 1, "{text}");
        }
        assert_eq!(cut(&long("a", "\u{10ffff}"), End::Greatest), None, "no letter is behind it");
        assert_eq!(cut(&long("a", "b"), End::Greatest).unwrap(), long("a", "\u{7f}"));
    }

    #[test]
    fn a_decimal_is_the_number_that_was_written_or_none() {
        let read = |json: Value, scale: i8| {
            let of = DataType::Decimal128(30, scale);
            read_end(&json, &of, End::Least).map(|of| text_of(&of, 0).unwrap())
        };
        let number = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        for (text, scale, expected) in [
            ("12.34", 2, Some("12.34")),
            ("-0.5", 2, Some("-0.50")),
            ("-0.05", 2, Some("-0.05")),
            ("7", 0, Some("7")),
            ("7.0", 0, Some("7")),
            ("1e3", 2, Some("1000.00")),
            ("12.345", 2, None),
            ("9999999999999.99", 2, Some("9999999999999.99")),
            ("10000000000000.00", 2, None),
            ("12345678901234567890.12", 2, None),
            ("1e300", 2, None),
            ("\"12.34\"", 2, None),
        ] {
            assert_eq!(read(number(text), scale).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn statistics_have_a_bound() {
        let of = |columns: usize| {
            let name = |n: usize| (format!("{n:0100}"), ColumnSummary::default());
            let columns = (0..columns)
                .map(name)
                .map(|(name, of)| (name, ColumnSummary { nulls: Some(1), ..of }));
            written(7, &columns.collect::<Vec<_>>())
        };
        assert!(of(600).len() > BYTES_MAX * 9 / 10);
        assert_eq!(of(700), rows_alone(7));
        assert!(is_written(&of(600)) && is_written(&rows_alone(7)));
        let long = format!("{{\"numRecords\":1,\"x\":\"{}\"}}", "x".repeat(BYTES_MAX));
        for text in ["", "{}", "7", "{\"numRecords\":-1}", long.as_str()] {
            assert!(!is_written(text), "{text}");
        }
    }
}
