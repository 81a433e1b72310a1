//! Values of Postgres, as text, become columns.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, ListArray, RecordBatchOptions, StringArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;

use crate::errors::PgError;
use crate::frames::text_of;

/// Rows that are being gathered.
#[derive(Debug)]
pub(crate) struct RowCollector {
    schema: SchemaRef,
    /// By column.
    values: Vec<Vec<Option<String>>>,
    rows: usize,
    bytes: usize,
}

impl RowCollector {
    pub(crate) fn new(schema: SchemaRef) -> Self {
        let values = vec![vec![]; schema.fields().len()];
        Self { schema, values, rows: 0, bytes: 0 }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes a line of a COPY.
    ///
    /// # Errors
    /// When it has not the columns that were asked for.
    pub(crate) fn push(&mut self, line: &[u8]) -> Result<(), PgError> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        self.bytes += line.len();
        self.rows += 1;
        if self.values.is_empty() {
            return Ok(());
        }
        let values = split_line(line)?;
        if values.len() != self.values.len() {
            return Err(unfit("a row has other columns"));
        }
        self.values.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        Ok(())
    }

    /// The rows so far; those that follow are others.
    ///
    /// # Errors
    /// When a value is none of its column's type.
    pub(crate) fn take(&mut self) -> Result<RecordBatch, PgError> {
        let columns = self.values.iter_mut().zip(self.schema.fields()).map(|(values, field)| {
            let values = std::mem::take(values);
            column_of(values, field.data_type()).map_err(|message| PgError::Own {
                message: format!("column '{}': {message}", field.name()),
                hint: "declare the column as it is in Postgres, or as STRING".into(),
            })
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        (self.rows, self.bytes) = (0, 0);
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(
            |error| PgError::Own {
                message: error.to_string(),
                hint: "leave NOT NULL out where Postgres has NULL".into(),
            },
        )
    }
}

/// The fields of a line of a COPY.
///
/// # Errors
/// When one is not text.
pub(crate) fn split_line(line: &[u8]) -> Result<Vec<Option<String>>, PgError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.split(|byte| *byte == b'\t').map(unescaped).collect()
}

fn unfit(message: &str) -> PgError {
    PgError::Breach(message.into())
}

/// A field of a COPY; `None` is NULL.
fn unescaped(field: &[u8]) -> Result<Option<String>, PgError> {
    if field == br"\N" {
        return Ok(None);
    }
    if !field.contains(&b'\\') {
        return text_of(field).map(Some);
    }
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field.iter());
    while let Some(&byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'v') => 11,
            Some(other) => *other,
            None => return Err(unfit("a field ends with a backslash")),
        });
    }
    text_of(&bytes).map(Some)
}

/// Values as a column of a type.
///
/// # Errors
/// When one of them is none.
pub(crate) fn column_of(
    values: Vec<Option<String>>,
    data_type: &DataType,
) -> Result<ArrayRef, String> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    match data_type {
        DataType::Boolean => {
            let value = |text: Option<String>| match text.as_deref() {
                None => Ok(None),
                Some("t" | "true") => Ok(Some(true)),
                Some("f" | "false") => Ok(Some(false)),
                Some(other) => Err(format!("'{other}' is no truth value")),
            };
            let values = values.into_iter().map(value);
            Ok(Arc::new(values.collect::<Result<BooleanArray, String>>()?))
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            let values =
                values.into_iter().map(|text| text.map(|text| bytes_of(&text)).transpose());
            let values = values.collect::<Result<Vec<_>, String>>()?;
            let array = BinaryArray::from_iter(values);
            cast(&array, data_type).map_err(|error| error.to_string())
        }
        DataType::List(element) => {
            let (mut all, mut lengths, mut valid) = (vec![], vec![], vec![]);
            for text in values {
                valid.push(text.is_some());
                let elements = text.map_or_else(|| Ok(vec![]), |text| elements_of(&text))?;
                lengths.push(elements.len());
                all.extend(elements);
            }
            let all = column_of(all, element.data_type())?;
            let offsets = OffsetBuffer::from_lengths(lengths);
            let valid = NullBuffer::from(valid);
            let lists = ListArray::try_new(Arc::clone(element), offsets, all, Some(valid));
            Ok(Arc::new(lists.map_err(|error| error.to_string())?))
        }
        DataType::Timestamp(..) | DataType::Date32 => {
            for text in values.iter().flatten() {
                if text.ends_with(" BC") || text.ends_with("infinity") {
                    return Err(format!("'{text}' is no time here"));
                }
            }
            // Years of five digits have a sign.
            let signed = |text: String| {
                let year = text.find('-').unwrap_or(0);
                if year > 4 { format!("+{text}") } else { text }
            };
            let values = values.into_iter().map(|text| text.map(signed));
            let array: StringArray = values.collect();
            cast_with_options(&array, data_type, &strict).map_err(|error| error.to_string())
        }
        data_type => {
            let array = StringArray::from(values);
            cast_with_options(&array, data_type, &strict).map_err(|error| error.to_string())
        }
    }
}

/// The bytes of `\x00ff`.
fn bytes_of(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.strip_prefix(r"\x").filter(|digits| digits.len().is_multiple_of(2));
    let digits = digits.ok_or_else(|| "bytes are not in hexadecimal digits".to_owned())?;
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'));
        pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    pairs.map(byte).collect::<Option<_>>().ok_or_else(|| "bytes have other digits".to_owned())
}

/// The elements of `{1,NULL,"a b"}`: a list of one dimension.
fn elements_of(text: &str) -> Result<Vec<Option<String>>, String> {
    let unfit = || "it is no list of one dimension that begins at 1".to_owned();
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).ok_or_else(unfit)?;
    let (mut elements, mut rest) = (vec![], inner.chars().peekable());
    while rest.peek().is_some() {
        let (mut element, is_quoted) = (String::new(), rest.next_if_eq(&'"').is_some());
        loop {
            match rest.next() {
                Some('\\') => element.push(rest.next().ok_or_else(unfit)?),
                Some('"') if is_quoted => {
                    if rest.next().is_some_and(|next| next != ',') {
                        return Err(unfit());
                    }
                    break;
                }
                Some(',') if !is_quoted => break,
                None if !is_quoted => break,
                Some('{' | '}') if !is_quoted => return Err(unfit()),
                Some(other) => element.push(other),
                None => return Err(unfit()),
            }
        }
        elements.push((is_quoted || element != "NULL").then_some(element));
    }
    Ok(elements)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Field, Int64Type, Schema, TimeUnit};

    use super::*;

    #[test]
    fn fields_are_read_as_they_are_written() {
        let fields = vec![
            Field::new("a", DataType::Utf8, true),
            Field::new("b", DataType::Int64, true),
            Field::new("c", DataType::Boolean, true),
        ];
        let mut rows = RowCollector::new(Arc::new(Schema::new(fields)));
        rows.push(b"a\\tb\\\\N\\n\t-7\tt\n").unwrap();
        rows.push(b"\\N\t\\N\t\\N\n").unwrap();
        rows.push(b"\t0\tf\n").unwrap();
        assert!(rows.push(b"one\t2\n").is_err());
        let mut rows_again = RowCollector::new(Arc::new(Schema::empty()));
        rows_again.push(b"1\n").unwrap();
        assert_eq!(rows_again.take().unwrap().num_rows(), 1);
        let text = unescaped(b"a\\tb\\\\N\\n").unwrap();
        assert_eq!(text.as_deref(), Some("a\tb\\N\n"));
        assert!(unescaped(b"a\\").is_err());
    }

    #[test]
    fn lists_are_read() {
        let of = |text| elements_of(text).unwrap();
        assert_eq!(of("{}"), Vec::<Option<String>>::new());
        assert_eq!(of("{1,NULL,3}"), [Some("1".into()), None, Some("3".into())]);
        let text = r#"{"a,\"b\\",NULL,"NULL"}"#;
        assert_eq!(of(text), [Some("a,\"b\\".into()), None, Some("NULL".into())]);
        for text in ["1", "{{1},{2}}", "[0:1]={1,2}", "{\"a}", "{\"a\"b}"] {
            assert!(elements_of(text).is_err(), "{text}");
        }
        let list = DataType::List(Field::new("item", DataType::Int64, true).into());
        let column = column_of(vec![Some("{1,2}".into()), None, Some("{}".into())], &list).unwrap();
        let lists = column.as_list::<i32>();
        assert_eq!(lists.value(0).as_primitive::<Int64Type>().values(), &[1, 2]);
        assert!(lists.is_null(1) && lists.value(2).is_empty());
    }

    #[test]
    fn values_that_are_none_are_refused() {
        let of = |text: &str, data_type| column_of(vec![Some(text.into())], &data_type);
        let stamp = DataType::Timestamp(TimeUnit::Microsecond, None);
        assert!(of("2024-01-02 03:04:05.678901", stamp.clone()).is_ok());
        assert!(of("infinity", stamp.clone()).is_err());
        assert!(of("0001-12-31 23:59:59 BC", stamp).is_err());
        let zoned = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
        assert!(of("2024-01-02 03:04:05+00", zoned).is_ok());
        assert!(of("10000-01-01", DataType::Date32).is_ok());
        assert!(of("x", DataType::Int32).is_err());
        assert!(of(r"\x0g", DataType::Binary).is_err());
        assert!(of("NaN", DataType::Float64).is_ok());
        assert!(of("-Infinity", DataType::Float32).is_ok());
    }
}
