//! Rows as the text of COPY: columns with tabs between them, a row a line, `\N` for NULL.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::record_batch::RecordBatch;
use dataflow::calendar::check_times;
use dataflow::error::ConnectorError;

use crate::errors::failed;

/// The hint for a value that Postgres does not store.
const REPLACED: &str = "leave such rows out, or write another value: CASE WHEN … END";

/// Appends rows as text. `number` is that of the first, if each gets one in front.
///
/// # Errors
/// When a value cannot be kept by Postgres.
pub(crate) fn encode(
    place: &str,
    batch: &RecordBatch,
    number: Option<u64>,
    out: &mut Vec<u8>,
) -> Result<(), ConnectorError> {
    // The casts below would give an error as the text, or panic.
    check_times(batch).map_err(|message| failed(place, message, REPLACED))?;
    let schema = batch.schema();
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        Text::of(column).map_err(|message| ConnectorError::Column {
            column: field.name().clone(),
            message,
            hint: None,
        })
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    for row in 0..batch.num_rows() {
        if let Some(number) = number {
            let number = number + row as u64;
            out.extend(number.to_string().as_bytes());
            out.push(b'\t');
        }
        for (at, column) in columns.iter().enumerate() {
            if at > 0 {
                out.push(b'\t');
            }
            column.append(row, out).map_err(|message| {
                let column = schema.field(at).name();
                failed(place, format!("column '{column}': {message}"), REPLACED)
            })?;
        }
        out.push(b'\n');
    }
    Ok(())
}

/// A column as text.
enum Text {
    /// Numbers and the like, in which nothing has to be escaped.
    Plain(StringArray),
    /// Times, whose years Postgres writes in another way.
    Years(StringArray),
    Any(StringArray),
    Bytes(ArrayRef),
    /// The lists, and the texts of their elements.
    Lists(ArrayRef, Box<Text>),
}

impl Text {
    fn of(column: &ArrayRef) -> Result<Self, String> {
        let text = |column: &ArrayRef| {
            let text = cast(column, &DataType::Utf8).map_err(|error| error.to_string())?;
            Ok::<_, String>(text.as_string::<i32>().clone())
        };
        Ok(match column.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Any(text(column)?),
            DataType::Dictionary(_, value) => {
                Self::of(&cast(column, value).map_err(|error| error.to_string())?)?
            }
            DataType::Binary => Self::Bytes(Arc::clone(column)),
            DataType::LargeBinary | DataType::BinaryView => {
                Self::Bytes(cast(column, &DataType::Binary).map_err(|error| error.to_string())?)
            }
            DataType::Date32 | DataType::Timestamp(..) => Self::Years(text(column)?),
            DataType::List(_) => {
                let values = Self::of(column.as_list::<i32>().values())?;
                Self::Lists(Arc::clone(column), Box::new(values))
            }
            _ => Self::Plain(text(column)?),
        })
    }

    fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Plain(text) | Self::Years(text) | Self::Any(text) => text.is_null(row),
            Self::Bytes(array) | Self::Lists(array, _) => array.is_null(row),
        }
    }

    fn append(&self, row: usize, out: &mut Vec<u8>) -> Result<(), String> {
        if self.is_null(row) {
            out.extend(br"\N");
            return Ok(());
        }
        match self {
            Self::Plain(text) => out.extend(text.value(row).as_bytes()),
            Self::Any(text) => escape(text.value(row).as_bytes(), out)?,
            other => escape(other.value(row)?.as_bytes(), out)?,
        }
        Ok(())
    }

    /// A value that is not NULL, as Postgres reads it.
    fn value(&self, row: usize) -> Result<String, String> {
        Ok(match self {
            Self::Plain(text) | Self::Any(text) => text.value(row).to_owned(),
            Self::Years(text) => of_era(text.value(row)),
            Self::Bytes(array) => {
                let mut hex = r"\x".to_owned();
                for byte in array.as_binary::<i32>().value(row) {
                    let _ = write!(hex, "{byte:02x}");
                }
                hex
            }
            Self::Lists(lists, values) => {
                let offsets = lists.as_list::<i32>().value_offsets();
                let element = |at: i32| {
                    let at = at as usize;
                    if values.is_null(at) {
                        return Ok("NULL".to_owned());
                    }
                    let value = values.value(at)?;
                    Ok(format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")))
                };
                let elements = (offsets[row]..offsets[row + 1]).map(element);
                format!("{{{}}}", elements.collect::<Result<Vec<_>, String>>()?.join(","))
            }
        })
    }
}

/// A date or a time as Postgres has it: years before 1 are years before Christ, and a year of five
/// digits has no sign.
fn of_era(text: &str) -> String {
    if let Some(later) = text.strip_prefix('+') {
        return later.to_owned();
    }
    let before = text.strip_prefix('-');
    let (year, rest) = before.unwrap_or(text).split_once('-').unwrap_or((text, ""));
    match year.parse::<i64>() {
        Ok(year) if before.is_some() || year == 0 => format!("{:04}-{rest} BC", year + 1),
        _ => text.to_owned(),
    }
}

fn escape(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    for &byte in bytes {
        match byte {
            b'\\' => out.extend(br"\\"),
            b'\n' => out.extend(br"\n"),
            b'\r' => out.extend(br"\r"),
            b'\t' => out.extend(br"\t"),
            0 => return Err("a text has a zero in it, which Postgres keeps in none".into()),
            byte => out.push(byte),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BinaryArray, BooleanArray, Date32Array, Int64Array, ListArray, Time64MicrosecondArray,
        TimestampMicrosecondArray,
    };
    use arrow::datatypes::Int32Type;

    use super::*;

    fn text(column: ArrayRef) -> String {
        let batch = RecordBatch::try_from_iter_with_nullable([("a", column, true)]).unwrap();
        let mut out = vec![];
        encode("t", &batch, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn values_are_escaped() {
        let all = StringArray::from(vec![Some("a\tb\\N\n"), None, Some("")]);
        assert_eq!(text(Arc::new(all)), "a\\tb\\\\N\\n\n\\N\n\n");
        assert_eq!(text(Arc::new(Int64Array::from(vec![Some(-5), None]))), "-5\n\\N\n");
        assert_eq!(text(Arc::new(BooleanArray::from(vec![true, false]))), "true\nfalse\n");
        let bytes = BinaryArray::from_vec(vec![b"\x00\xffa"]);
        assert_eq!(text(Arc::new(bytes)), "\\\\x00ff61\n");
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
        ]);
        assert_eq!(text(Arc::new(lists)), "{\"1\",NULL}\n\\N\n{}\n");
        let zero = StringArray::from(vec!["a\0"]);
        let batch = RecordBatch::try_from_iter([("a", Arc::new(zero) as ArrayRef)]).unwrap();
        assert!(encode("t", &batch, None, &mut vec![]).is_err());
    }

    #[test]
    fn years_are_those_of_postgres() {
        // The days of 2024-02-29, 10000-01-01, 0001-01-01, and the one before.
        let dates = Date32Array::from(vec![19_782, 2_932_897, -719_162, -719_163]);
        let expected = "2024-02-29\n10000-01-01\n0001-01-01\n0001-12-31 BC\n";
        assert_eq!(text(Arc::new(dates)), expected);
        assert_eq!(of_era("0000-12-31"), "0001-12-31 BC");
        assert_eq!(of_era("-0001-05-01"), "0002-05-01 BC");
        assert_eq!(of_era("+10000-01-01"), "10000-01-01");
    }

    #[test]
    fn times_without_a_text_are_refused() {
        let zone: Option<Arc<str>> = Some("+01:00".into());
        // The last moment of the calendar, which is beyond it in that zone; and a time after 24 h.
        let last = TimestampMicrosecondArray::from(vec![0, 8_210_266_876_799_999_999]);
        let columns: [ArrayRef; 3] = [
            Arc::new(last.with_timezone_opt(zone)),
            Arc::new(Time64MicrosecondArray::from(vec![86_399_999_999, 86_400_000_000])),
            Arc::new(Date32Array::from(vec![0, i32::MAX])),
        ];
        for column in columns {
            let batch = |from| RecordBatch::try_from_iter([("at", column.slice(from, 1))]).unwrap();
            encode("t", &batch(0), None, &mut vec![]).unwrap();
            let error = encode("t", &batch(1), None, &mut vec![]).unwrap_err().to_string();
            assert!(error.contains("column 'at': "), "{error}");
        }
    }

    #[test]
    fn rows_are_numbered() {
        let columns: [(_, ArrayRef); 2] = [
            ("a", Arc::new(Int64Array::from(vec![7, 8]))),
            ("b", Arc::new(StringArray::from(vec!["x", "y"]))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut out = vec![];
        encode("t", &batch, Some(3), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "3\t7\tx\n4\t8\ty\n");
    }
}
