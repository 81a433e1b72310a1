//! Rows one after the other: CSV and newline JSON, for the terminal and for files, records of fixed
//! length, and messages of Protobuf.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::csv;
use arrow::datatypes::{DataType, FieldRef, Float64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::writer::{NullableEncoder, make_encoder};
use arrow::json::{self, Encoder, EncoderFactory, EncoderOptions};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use dataflow::calendar::check_times;
use dataflow::error::ConnectorError;

use super::fixed::FixedLayout;
use super::protobuf::ProtoEncoder;
use crate::options::sql_type;

/// A point in time as text; the fraction only where there is one.
pub(crate) const TIMESTAMP_FORMAT: &str = "%Y-%m-%d %H:%M:%S%.f";

/// How CSV is written.
#[derive(Debug, Clone)]
pub(crate) struct CsvStyle {
    pub(crate) header: bool,
    pub(crate) delimiter: u8,
    pub(crate) quote: u8,
    /// Texts that stand for NULL; the first is written, nothing where there is none.
    pub(crate) nulls: Vec<String>,
}

impl Default for CsvStyle {
    fn default() -> Self {
        Self { header: true, delimiter: b',', quote: b'"', nulls: Vec::new() }
    }
}

/// A format in which each row is written by itself.
#[derive(Debug, Clone)]
pub(crate) enum RowEncoding {
    Csv(CsvStyle),
    /// One object a line. Nulls are written out, so that every line has every key.
    Json,
    Fixed(FixedLayout),
    /// Each row is a message behind its length.
    Protobuf(Arc<ProtoEncoder>),
}

impl RowEncoding {
    /// The text before the first row, so that a result without rows still names its columns.
    pub(crate) fn prologue(&self, schema: SchemaRef) -> Result<Vec<u8>, ArrowError> {
        let mut out = Vec::new();
        match self {
            Self::Csv(style) => {
                let mut writer = style.builder().with_header(style.header).build(&mut out);
                writer.write(&RecordBatch::new_empty(schema))?;
            }
            Self::Json | Self::Fixed(_) | Self::Protobuf(_) => {}
        }
        Ok(out)
    }

    /// Appends the rows of `batch` to `out`.
    ///
    /// # Errors
    /// Why a value cannot be written.
    pub(crate) fn encode(&self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Csv(_) | Self::Json => check_times(batch)?,
            Self::Fixed(_) | Self::Protobuf(_) => {}
        }
        let written = match self {
            Self::Csv(style) if !style.nulls.is_empty() => style.encode(batch, out),
            Self::Csv(style) => style.builder().with_header(false).build(out).write(batch),
            Self::Json => {
                let builder = json::WriterBuilder::new()
                    .with_explicit_nulls(true)
                    .with_encoder_factory(Arc::new(Numbers));
                let mut writer = builder.build::<_, json::writer::LineDelimited>(out);
                writer.write(batch).and_then(|()| writer.finish())
            }
            Self::Protobuf(encoder) => return encoder.encode_stream(batch, out),
            Self::Fixed(layout) => return layout.encode(batch.columns(), batch.num_rows(), out),
        };
        written.map_err(|error| error.to_string())
    }
}

impl CsvStyle {
    fn builder(&self) -> csv::WriterBuilder {
        csv::WriterBuilder::new()
            .with_delimiter(self.delimiter)
            .with_quote(self.quote)
            .with_timestamp_format(TIMESTAMP_FORMAT.to_owned())
    }

    /// Appends rows in which a value that would be read as NULL stands between quotes, which the
    /// library cannot do for one value.
    fn encode(&self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        let options = FormatOptions::default().with_timestamp_format(Some(TIMESTAMP_FORMAT));
        let null = self.nulls.first().map_or("", String::as_str);
        let columns: Result<Vec<_>, ArrowError> = batch
            .columns()
            .iter()
            .map(|column| Ok((column, ArrayFormatter::try_new(column.as_ref(), &options)?)))
            .collect();
        let columns = columns?;
        let mut text = String::new();
        for row in 0..batch.num_rows() {
            for (index, (column, formatter)) in columns.iter().enumerate() {
                if index > 0 {
                    out.push(self.delimiter);
                }
                if column.is_null(row) {
                    out.extend_from_slice(null.as_bytes());
                    continue;
                }
                text.clear();
                formatter.value(row).write(&mut text)?;
                self.field(&text, columns.len() == 1, out);
            }
            out.push(b'\n');
        }
        Ok(())
    }

    /// Appends a value; `alone`: it is the whole record, which must not be an empty line.
    fn field(&self, text: &str, alone: bool, out: &mut Vec<u8>) {
        let marks = [self.delimiter, self.quote, b'\r', b'\n'];
        let has_marks = text.bytes().any(|byte| marks.contains(&byte));
        let would_be_null = self.nulls.iter().any(|null| null == text);
        let needs_quotes = has_marks || would_be_null || (alone && text.is_empty());
        if !needs_quotes {
            return out.extend_from_slice(text.as_bytes());
        }
        out.push(self.quote);
        for byte in text.bytes() {
            if byte == self.quote {
                out.push(byte);
            }
            out.push(byte);
        }
        out.push(self.quote);
    }
}

/// Numbers that JSON has no digits for as strings: `"NaN"`, `"Infinity"`, `"-Infinity"`, which are
/// read again. The library makes nulls of them.
#[derive(Debug)]
struct Numbers;

impl EncoderFactory for Numbers {
    fn make_default_encoder<'a>(
        &self,
        field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        if !array.data_type().is_floating() {
            return Ok(None);
        }
        let wide = cast(array, &DataType::Float64)?;
        let values: Vec<f64> = wide.as_primitive::<Float64Type>().values().to_vec();
        if values.iter().all(|value| value.is_finite()) {
            return Ok(None);
        }
        let finite = make_encoder(field, array, &PLAIN)?;
        let encoder = Box::new(MaybeFinite { values, finite });
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

/// How finite numbers are written.
static PLAIN: LazyLock<EncoderOptions> = LazyLock::new(EncoderOptions::default);

struct MaybeFinite<'a> {
    values: Vec<f64>,
    finite: NullableEncoder<'a>,
}

impl Encoder for MaybeFinite<'_> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        let word: &[u8] = match self.values[row] {
            value if value.is_nan() => b"\"NaN\"",
            f64::INFINITY => b"\"Infinity\"",
            f64::NEG_INFINITY => b"\"-Infinity\"",
            _ => return self.finite.encode(row, out),
        };
        out.extend_from_slice(word);
    }
}

/// Refuses columns that CSV has no text for.
pub(crate) fn check_csv_columns(schema: &Schema) -> Result<(), ConnectorError> {
    match schema.fields().iter().find(|field| field.data_type().is_nested()) {
        None => Ok(()),
        Some(field) => Err(ConnectorError::Column {
            column: field.name().clone(),
            message: format!("a CSV file cannot hold {}", sql_type(field.data_type())),
            hint: Some("write 'format' = 'json' or 'parquet'".into()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int32Array, Int64Array};
    use arrow::datatypes::TimeUnit;

    use super::*;

    /// Both sides of each bound, in CSV and in JSON: the last value that has a text is written, and
    /// the next one refuses its batch.
    #[test]
    fn a_time_without_a_text_is_an_error_in_every_format() {
        use DataType::{Date32, Date64, Duration, Time32, Time64, Timestamp};
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        // The calendar ends with 262142-12-31, and begins with -262143-01-01.
        let (last_day, first_day) = (95_026_236, -96_465_292);
        let (last, first) = (last_day * 86_400 + 86_399, first_day * 86_400);
        let zone = || Some(Arc::from("+01:00"));
        let bounds = [
            (Duration(Second), -(i64::MAX / 1000), i64::MAX / 1000),
            (Duration(Millisecond), -i64::MAX, i64::MAX),
            (Duration(Microsecond), i64::MIN, i64::MAX),
            (Duration(Nanosecond), i64::MIN, i64::MAX),
            (Time32(Second), 0, 86_399),
            (Time32(Millisecond), 0, 86_399_999),
            (Time64(Microsecond), 0, 86_399_999_999),
            (Time64(Nanosecond), 0, 86_399_999_999_999),
            (Date32, first_day, last_day),
            (Date64, first * 1000, last * 1000 + 999),
            (Timestamp(Second, None), first, last),
            (Timestamp(Second, zone()), first + 86_400, last - 86_400),
            (Timestamp(Millisecond, None), first * 1000, last * 1000 + 999),
            (Timestamp(Microsecond, None), first * 1_000_000, last * 1_000_000 + 999_999),
            (Timestamp(Nanosecond, None), i64::MIN, i64::MAX),
        ];
        for (of, least, most) in bounds {
            for (within, beyond) in [(least, least.checked_sub(1)), (most, most.checked_add(1))] {
                for encoding in [RowEncoding::Csv(CsvStyle::default()), RowEncoding::Json] {
                    let written = write(&encoding, &of, within).unwrap();
                    let wrong = written.contains("invalid") || written.contains("ERROR");
                    assert!(!wrong, "{of}: {written}");
                    let Some(beyond) = beyond else { continue };
                    let refused = write(&encoding, &of, beyond).unwrap_err();
                    assert!(refused.contains(&format!("column 'd': {beyond} is ")), "{refused}");
                }
            }
        }
    }

    /// A row of one column.
    fn write(encoding: &RowEncoding, of: &DataType, ticks: i64) -> Result<String, String> {
        let ticks: ArrayRef = match i32::try_from(ticks) {
            Ok(ticks) if of.primitive_width() == Some(4) => Arc::new(Int32Array::from(vec![ticks])),
            _ => Arc::new(Int64Array::from(vec![ticks])),
        };
        let column = cast(&ticks, of).unwrap();
        let mut out = Vec::new();
        encoding.encode(&RecordBatch::try_from_iter([("d", column)]).unwrap(), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }
}
