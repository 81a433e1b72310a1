//! Flat objects, read in one pass over their lines: each value goes straight into its column.
//!
//! The library makes a tape of all values of a batch first, and looks up the fields of each object
//! by name. Here a line is read once: the fields of a line mostly stand in the order of the line
//! before, and are recognized by comparing bytes; strings are passed by vector instructions; a
//! number is read where it stands.
//!
//! Any line that is not plainly right is *declined*, and the library decides about it: so a reader
//! of fields never refuses a row, and gives only values that the library would give. Tables with a
//! nested column are left to the library altogether.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BooleanArray, BooleanBufferBuilder, PrimitiveArray, StringArray,
    new_null_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use super::syntax::Scan;
use crate::format::fit::Number;

/// Fields of a line whose names are remembered for the next one.
const REMEMBERED_MAX: usize = 1024;

/// Bytes of a string column at most: what its offsets can count.
const TEXT_BYTES_MAX: usize = i32::MAX as usize;

/// A column that is being filled.
trait Column: Send {
    /// Takes the value of the next row; `false` if it is none that is plainly right.
    fn push(&mut self, value: Value<'_>) -> bool;

    /// The first `rows` of the values taken, which are taken out.
    fn finish(&mut self, rows: usize) -> ArrayRef;
}

/// A value as it is written.
#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Null,
    Boolean(bool),
    /// A number, or a string without escapes.
    Text(&'a str),
    /// A string with escapes, which are known to be right.
    Escaped(&'a str),
}

/// Reads the declared columns of flat objects.
pub(super) struct FieldReader {
    names: Vec<String>,
    columns: Vec<Box<dyn Column>>,
    /// The fields of the line before, in their order.
    remembered: Vec<Remembered>,
    /// The values of a line, by column: `None` until one is found.
    values: Vec<Option<(usize, usize, Kind)>>,
}

/// A field of the line before.
struct Remembered {
    /// Its name with the quotation marks.
    name: Box<[u8]>,
    /// Its column; `None` if it is not declared.
    column: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Null,
    Boolean(bool),
    Text,
    Escaped,
}

impl FieldReader {
    /// For the declared columns, of which those at `read` are output; `None` if one of them is
    /// nested, or of a type that has no text.
    pub(super) fn new(declared: &Schema, read: &[usize]) -> Option<Self> {
        let columns = declared.fields().iter().enumerate();
        let columns = columns.map(|(at, field)| column_of(field, read.contains(&at)));
        let columns: Vec<Box<dyn Column>> = columns.collect::<Option<_>>()?;
        let names = declared.fields().iter().map(|field| field.name().clone()).collect();
        let values = vec![None; columns.len()];
        Some(Self { names, columns, remembered: vec![], values })
    }

    /// Reads lines up to the first that it declines. Gives the columns of those before it, and how
    /// many these are.
    pub(super) fn read(&mut self, lines: &[&str]) -> (Vec<ArrayRef>, usize) {
        let rows = lines.iter().take_while(|line| self.line(line)).count();
        (self.columns.iter_mut().map(|column| column.finish(rows)).collect(), rows)
    }

    /// Reads a line; `false` if it is declined. Some columns may have taken a value then.
    fn line(&mut self, line: &str) -> bool {
        self.values.fill(None);
        if self.object(line).is_none() {
            return false;
        }
        let Self { columns, values, .. } = self;
        columns.iter_mut().zip(values).all(|(column, value)| {
            column.push(match *value {
                None | Some((_, _, Kind::Null)) => Value::Null,
                Some((_, _, Kind::Boolean(value))) => Value::Boolean(value),
                Some((from, to, Kind::Text)) => Value::Text(&line[from..to]),
                Some((from, to, Kind::Escaped)) => Value::Escaped(&line[from..to]),
            })
        })
    }

    /// Finds the values of an object that is the whole line.
    fn object(&mut self, line: &str) -> Option<()> {
        let text = line.as_bytes();
        let mut at = after(text, 0, b'{')?;
        if let Some(end) = after(text, at, b'}') {
            return (space(text, end) == text.len()).then_some(());
        }
        for number in 0.. {
            at = space(text, at);
            let (column, behind) = self.field(text, at, number)?;
            at = space(text, after(text, behind, b':')?);
            let (value, behind) = value(line, at)?;
            if let Some(column) = column {
                // Of a name that comes twice, the library decides which value counts.
                let (kind, from, to) = value?;
                if self.values[column].replace((from, to, kind)).is_some() {
                    return None;
                }
            }
            at = space(text, behind);
            match text.get(at)? {
                b',' => at += 1,
                b'}' => return (space(text, at + 1) == text.len()).then_some(()),
                _ => return None,
            }
        }
        None
    }

    /// The column of the field whose name begins at `at`, and where its name ends.
    fn field(&mut self, text: &[u8], at: usize, number: usize) -> Option<(Option<usize>, usize)> {
        if let Some(Remembered { name, column }) = self.remembered.get(number)
            && text[at..].starts_with(name)
        {
            return Some((*column, at + name.len()));
        }
        if text.get(at) != Some(&b'"') {
            return None;
        }
        let end = at + 1 + memchr::memchr2(b'"', b'\\', text.get(at + 1..)?)?;
        let name = &text[at + 1..end];
        if text[end] != b'"' {
            return None;
        }
        let column = self.names.iter().position(|of| of.as_bytes() == name);
        let remembered = Remembered { name: text[at..=end].into(), column };
        if let Some(before) = self.remembered.get_mut(number) {
            *before = remembered;
        } else if number == self.remembered.len() && number < REMEMBERED_MAX {
            self.remembered.push(remembered);
        }
        Some((column, end + 1))
    }
}

/// Where the space at `at` ends.
fn space(text: &[u8], at: usize) -> usize {
    let mut at = at;
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

/// Where `token` ends, which is the next one.
fn after(text: &[u8], at: usize, token: u8) -> Option<usize> {
    let at = space(text, at);
    (text.get(at) == Some(&token)).then_some(at + 1)
}

/// A scalar and its place, or `None` for an array or object; and where it ends.
type Found = (Option<(Kind, usize, usize)>, usize);

/// The value that begins at `at`.
fn value(line: &str, at: usize) -> Option<Found> {
    let text = line.as_bytes();
    let word = |word: &str, kind: Kind| {
        let end = at + word.len();
        text[at..].starts_with(word.as_bytes()).then_some((Some((kind, at, end)), end))
    };
    match text.get(at)? {
        b'"' => {
            let (end, escaped) = string_end(text, at + 1)?;
            let kind = if escaped { Kind::Escaped } else { Kind::Text };
            if escaped {
                unescape(&line[at + 1..end], &mut |_| {})?;
            }
            Some((Some((kind, at + 1, end)), end + 1))
        }
        b'-' | b'0'..=b'9' => {
            let end = number_end(text, at)?;
            Some((Some((Kind::Text, at, end)), end))
        }
        b't' => word("true", Kind::Boolean(true)),
        b'f' => word("false", Kind::Boolean(false)),
        b'n' => word("null", Kind::Null),
        b'{' | b'[' => {
            let mut scan = Scan::new(text, at);
            scan.value().ok()?;
            // Escapes in it are for the library to check.
            let end = scan.at();
            (!text[at..end].contains(&b'\\')).then_some((None, end))
        }
        _ => None,
    }
}

/// Where a string ends whose text begins at `from`, and whether it has escapes.
fn string_end(text: &[u8], from: usize) -> Option<(usize, bool)> {
    let (mut at, mut escaped) = (from, false);
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some((at, escaped));
        }
        escaped = true;
        at += 2;
    }
}

/// Where a number ends that is one by the rules of JSON.
fn number_end(text: &[u8], from: usize) -> Option<usize> {
    let digits = |at: usize| {
        let mut end = at;
        while text.get(end).is_some_and(u8::is_ascii_digit) {
            end += 1;
        }
        (end > at).then_some(end)
    };
    let first = if text[from] == b'-' { from + 1 } else { from };
    let mut at = digits(first)?;
    if text[first] == b'0' && at > first + 1 {
        return None;
    }
    if text.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        at += 1;
        if matches!(text.get(at), Some(b'+' | b'-')) {
            at += 1;
        }
        at = digits(at)?;
    }
    // The library takes all of these together for one number.
    let goes_on = matches!(text.get(at), Some(b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'));
    (!goes_on).then_some(at)
}

/// Gives the parts of a string, escapes written out; `None` at an escape that is none.
fn unescape(text: &str, give: &mut impl FnMut(&str)) -> Option<()> {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        give(&rest[..at]);
        let escape = *rest.as_bytes().get(at + 1)?;
        let mut behind = at + 2;
        let letter = match escape {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = unit(rest.as_bytes(), behind)?;
                behind += 4;
                match char::from_u32(first.into()) {
                    Some(letter) => letter,
                    None => {
                        let second = rest.as_bytes()[behind..].starts_with(b"\\u");
                        let second = second.then(|| unit(rest.as_bytes(), behind + 2))??;
                        behind += 6;
                        char::decode_utf16([first, second]).next()?.ok()?
                    }
                }
            }
            _ => return None,
        };
        give(letter.encode_utf8(&mut [0; 4]));
        rest = &rest[behind..];
    }
    give(rest);
    Some(())
}

/// The four digits of base 16 at `at`.
fn unit(text: &[u8], at: usize) -> Option<u16> {
    text.get(at..at + 4)?
        .iter()
        .try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)? as u16))
}

/// An empty column for a field.
fn column_of(field: &Field, read: bool) -> Option<Box<dyn Column>> {
    fn numbers<T: Number>() -> Option<Box<dyn Column>> {
        Some(Box::new(Numbers::<T>(vec![], Validity::default())))
    }
    match field.data_type() {
        // Any text is right in a column of text.
        DataType::Utf8 if !read && field.is_nullable() => Some(Box::new(Passed)),
        DataType::Int8 => numbers::<Int8Type>(),
        DataType::Int16 => numbers::<Int16Type>(),
        DataType::Int32 => numbers::<Int32Type>(),
        DataType::Int64 => numbers::<Int64Type>(),
        DataType::UInt8 => numbers::<UInt8Type>(),
        DataType::UInt16 => numbers::<UInt16Type>(),
        DataType::UInt32 => numbers::<UInt32Type>(),
        DataType::UInt64 => numbers::<UInt64Type>(),
        DataType::Float32 => numbers::<Float32Type>(),
        DataType::Float64 => numbers::<Float64Type>(),
        DataType::Boolean => Some(Box::new(Booleans(vec![], Validity::default()))),
        // They are read as text, as the library is told to, and become what is declared by `fit`.
        of if *of == DataType::Utf8
            || of.is_decimal()
            || matches!(
                of,
                DataType::Timestamp(..)
                    | DataType::Date32
                    | DataType::Date64
                    | DataType::Time32(_)
                    | DataType::Time64(_)
                    | DataType::Binary
            ) =>
        {
            Some(Box::new(TextColumn { bytes: vec![], ends: vec![0], valid: Validity::default() }))
        }
        _ => None,
    }
}

/// The validity of the rows of a column.
#[derive(Default)]
struct Validity {
    rows: usize,
    /// Begun at the first row without one.
    bits: Option<BooleanBufferBuilder>,
}

impl Validity {
    fn push(&mut self, valid: bool) {
        if !valid && self.bits.is_none() {
            let mut bits = BooleanBufferBuilder::new(self.rows + 1);
            bits.append_n(self.rows, true);
            self.bits = Some(bits);
        }
        if let Some(bits) = &mut self.bits {
            bits.append(valid);
        }
        self.rows += 1;
    }

    fn finish(&mut self, rows: usize) -> Option<NullBuffer> {
        self.rows = 0;
        let bits = self.bits.take()?.finish();
        Some(NullBuffer::new(bits.slice(0, rows)))
    }
}

struct Numbers<T: ArrowPrimitiveType>(Vec<T::Native>, Validity);

impl<T: Number> Column for Numbers<T> {
    fn push(&mut self, value: Value<'_>) -> bool {
        let number = match value {
            Value::Null => None,
            Value::Text(text) => match T::read(text.trim_ascii()) {
                Some(number) => Some(number),
                None => return false,
            },
            Value::Boolean(_) | Value::Escaped(_) => return false,
        };
        self.1.push(number.is_some());
        self.0.push(number.unwrap_or_default());
        true
    }

    fn finish(&mut self, rows: usize) -> ArrayRef {
        let mut values = std::mem::take(&mut self.0);
        values.truncate(rows);
        self.0.reserve(rows);
        Arc::new(PrimitiveArray::<T>::new(values.into(), self.1.finish(rows)))
    }
}

struct Booleans(Vec<bool>, Validity);

impl Column for Booleans {
    fn push(&mut self, value: Value<'_>) -> bool {
        let value = match value {
            Value::Null => None,
            Value::Boolean(value) => Some(value),
            Value::Text(_) | Value::Escaped(_) => return false,
        };
        self.1.push(value.is_some());
        self.0.push(value.unwrap_or_default());
        true
    }

    fn finish(&mut self, rows: usize) -> ArrayRef {
        let values = std::mem::take(&mut self.0);
        Arc::new(BooleanArray::new(values[..rows].into(), self.1.finish(rows)))
    }
}

struct TextColumn {
    bytes: Vec<u8>,
    ends: Vec<i32>,
    valid: Validity,
}

impl Column for TextColumn {
    fn push(&mut self, value: Value<'_>) -> bool {
        match value {
            Value::Null => {}
            Value::Boolean(value) => self.bytes.extend_from_slice(value.to_string().as_bytes()),
            Value::Text(text) => self.bytes.extend_from_slice(text.as_bytes()),
            Value::Escaped(text) => {
                let bytes = &mut self.bytes;
                if unescape(text, &mut |part| bytes.extend_from_slice(part.as_bytes())).is_none() {
                    return false;
                }
            }
        }
        if self.bytes.len() > TEXT_BYTES_MAX {
            return false;
        }
        self.ends.push(self.bytes.len() as i32);
        self.valid.push(!matches!(value, Value::Null));
        true
    }

    fn finish(&mut self, rows: usize) -> ArrayRef {
        let (mut bytes, mut ends) =
            (std::mem::take(&mut self.bytes), std::mem::replace(&mut self.ends, vec![0]));
        ends.truncate(rows + 1);
        bytes.truncate(ends[rows] as usize);
        self.bytes.reserve(bytes.len());
        self.ends.reserve(rows);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
        Arc::new(StringArray::new(offsets, Buffer::from_vec(bytes), self.valid.finish(rows)))
    }
}

/// A column of text that nobody reads.
struct Passed;

impl Column for Passed {
    fn push(&mut self, _: Value<'_>) -> bool {
        true
    }

    fn finish(&mut self, rows: usize) -> ArrayRef {
        new_null_array(&DataType::Utf8, rows)
    }
}
