//! Columns of JSON that are being filled.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, BooleanArray, BooleanBufferBuilder, PrimitiveArray, StringArray,
    new_null_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use crate::format::fit::Number;
use crate::format::quick::{self, TimeReader, TimeTicks, string};

/// Bytes of a string column at most: what its offsets can count.
const TEXT_BYTES_MAX: usize = i32::MAX as usize;

/// Bytes that are copied at once for a text, needed or not.
const COPIED_BYTES: usize = 32;

/// A value as it is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Null,
    Boolean(bool),
    /// A number, or a string without escapes.
    Text(&'a str),
    /// A string with escapes, which are known to be right.
    Escaped(&'a str),
}

/// A column that is being filled.
pub(super) trait Column: Send {
    /// Takes the value of the next row; `false` if it is none that is plainly right.
    fn push(&mut self, value: Value<'_>) -> bool;

    /// The first `rows` of the values taken, which are taken out.
    fn finish(&mut self, rows: usize) -> ArrayRef;
}

/// The values of a column. Those of the common types are read where they stand.
pub(super) enum Cells {
    Whole(Numbers<Int64Type>),
    Double(Numbers<Float64Type>),
    Texts(TextColumn),
    Times(TimeColumn),
    /// Text that nobody reads.
    Passed,
    /// Numbers that nobody reads. They are checked and not kept.
    PassedWhole,
    PassedDouble,
    Other(Box<dyn Column>),
}

impl Cells {
    /// An empty column for a field, which is output if it is `read`; `None` if it is nested.
    pub(super) fn of(field: &Field, read: bool) -> Option<Self> {
        fn numbers<T: Number>() -> Option<Cells> {
            Some(Cells::Other(Box::new(Numbers::<T>::default())))
        }
        match field.data_type() {
            // Any text is right in a column of text.
            DataType::Utf8 if !read && field.is_nullable() => Some(Self::Passed),
            DataType::Int64 if !read && field.is_nullable() => Some(Self::PassedWhole),
            DataType::Float64 if !read && field.is_nullable() => Some(Self::PassedDouble),
            DataType::Int8 => numbers::<Int8Type>(),
            DataType::Int16 => numbers::<Int16Type>(),
            DataType::Int32 => numbers::<Int32Type>(),
            DataType::Int64 => Some(Self::Whole(Numbers::default())),
            DataType::UInt8 => numbers::<UInt8Type>(),
            DataType::UInt16 => numbers::<UInt16Type>(),
            DataType::UInt32 => numbers::<UInt32Type>(),
            DataType::UInt64 => numbers::<UInt64Type>(),
            DataType::Float32 => numbers::<Float32Type>(),
            DataType::Float64 => Some(Self::Double(Numbers::default())),
            DataType::Boolean => Some(Self::Other(Box::new(Booleans(vec![], Validity::default())))),
            of if TimeTicks::of(of).is_some() => {
                TimeTicks::of(of).map(|ticks| Self::Times(TimeColumn::new(ticks, of.clone())))
            }
            // They are read as text, as the library is told to, and become what is declared by
            // `fit`.
            of if *of == DataType::Utf8
                || of.is_decimal()
                || matches!(
                    of,
                    DataType::Timestamp(..)
                        | DataType::Date64
                        | DataType::Time32(_)
                        | DataType::Time64(_)
                        | DataType::Binary
                ) =>
            {
                Some(Self::Texts(TextColumn::default()))
            }
            _ => None,
        }
    }

    /// Takes the value of the next row that stands at `at`, if it has the common form of its type;
    /// gives where it ends.
    #[inline(always)]
    pub(super) fn read(&mut self, text: &[u8], at: usize) -> Option<usize> {
        match self {
            Self::Whole(numbers) => {
                let (number, end) = quick::whole(text, at)?;
                numbers.take(Some(number));
                Some(end)
            }
            Self::Double(numbers) => {
                let (number, end) = quick::double(text, at)?;
                numbers.take(Some(number));
                Some(end)
            }
            Self::Texts(texts) => {
                let end = string(text, at)?;
                texts.copy(text, at + 1..end - 1).then_some(end)
            }
            Self::Times(times) => {
                if text.get(at) != Some(&b'"') {
                    // Eight digits may be a day.
                    let is_ticks = times.reader.ticks != TimeTicks::Days;
                    let (ticks, end) = quick::whole(text, at).filter(|_| is_ticks)?;
                    times.take(Some(ticks), at..end);
                    return Some(end);
                }
                let (ticks, end) = times.reader.read(text, at + 1)?;
                if text.get(end) != Some(&b'"') {
                    return None;
                }
                times.take(Some(ticks), at + 1..end);
                Some(end + 1)
            }
            Self::Passed => string(text, at),
            // The number itself is not computed.
            Self::PassedWhole => quick::whole(text, at).map(|(_, end)| end),
            Self::PassedDouble => quick::double(text, at).map(|(_, end)| end),
            Self::Other(_) => None,
        }
    }

    /// Takes the value of the next row, which begins at `at`; `false` if it is none that is plainly
    /// right.
    pub(super) fn push(&mut self, value: Value<'_>, at: usize) -> bool {
        match self {
            Self::Whole(numbers) => numbers.push(value),
            Self::Double(numbers) => numbers.push(value),
            Self::Texts(texts) => texts.push(value),
            Self::Times(times) => times.push(value, at),
            Self::Passed => true,
            Self::PassedWhole => {
                matches!(value, Value::Null) || number::<Int64Type>(value).is_some()
            }
            Self::PassedDouble => {
                matches!(value, Value::Null) || number::<Float64Type>(value).is_some()
            }
            Self::Other(column) => column.push(value),
        }
    }

    /// The first `rows` of the values taken, which are taken out. `text` is that of their lines.
    pub(super) fn finish(&mut self, rows: usize, text: &str) -> ArrayRef {
        match self {
            Self::Whole(numbers) => numbers.finish(rows),
            Self::Double(numbers) => numbers.finish(rows),
            Self::Texts(texts) => texts.finish(rows),
            Self::Times(times) => times.finish(rows, text),
            Self::Passed => new_null_array(&DataType::Utf8, rows),
            Self::PassedWhole => new_null_array(&DataType::Int64, rows),
            Self::PassedDouble => new_null_array(&DataType::Float64, rows),
            Self::Other(column) => column.finish(rows),
        }
    }
}

/// The validity of the rows of a column: begun at the first row without a value.
#[derive(Default)]
struct Validity(Option<BooleanBufferBuilder>);

impl Validity {
    /// Adds a row behind `rows`.
    #[inline(always)]
    fn push(&mut self, valid: bool, rows: usize) {
        if !valid || self.0.is_some() {
            self.push_bit(valid, rows);
        }
    }

    #[inline(never)]
    fn push_bit(&mut self, valid: bool, rows: usize) {
        let bits = self.0.get_or_insert_with(|| {
            let mut bits = BooleanBufferBuilder::new(rows + 1);
            bits.append_n(rows, true);
            bits
        });
        bits.append(valid);
    }

    fn finish(&mut self, rows: usize) -> Option<NullBuffer> {
        let bits = self.0.take()?.finish();
        Some(NullBuffer::new(bits.slice(0, rows)))
    }
}

/// The number that a value is, by the rule of all formats.
fn number<T: Number>(value: Value<'_>) -> Option<T::Native> {
    match value {
        Value::Text(text) => T::read(text.trim_ascii()),
        Value::Null | Value::Boolean(_) | Value::Escaped(_) => None,
    }
}

/// Numbers that are read from text.
pub(super) struct Numbers<T: ArrowPrimitiveType>(Vec<T::Native>, Validity);

impl<T: ArrowPrimitiveType> Default for Numbers<T> {
    fn default() -> Self {
        Self(vec![], Validity::default())
    }
}

impl<T: Number> Numbers<T> {
    #[inline(always)]
    fn take(&mut self, number: Option<T::Native>) {
        self.1.push(number.is_some(), self.0.len());
        self.0.push(number.unwrap_or_default());
    }
}

impl<T: Number> Column for Numbers<T> {
    fn push(&mut self, value: Value<'_>) -> bool {
        let number = number::<T>(value);
        let is_right = number.is_some() || matches!(value, Value::Null);
        if is_right {
            self.take(number);
        }
        is_right
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
        self.1.push(value.is_some(), self.0.len());
        self.0.push(value.unwrap_or_default());
        true
    }

    fn finish(&mut self, rows: usize) -> ArrayRef {
        let values = std::mem::take(&mut self.0);
        Arc::new(BooleanArray::new(values[..rows].into(), self.1.finish(rows)))
    }
}

/// Text.
pub(super) struct TextColumn {
    bytes: Vec<u8>,
    ends: Vec<i32>,
    valid: Validity,
}

impl Default for TextColumn {
    fn default() -> Self {
        Self { bytes: vec![], ends: vec![0], valid: Validity::default() }
    }
}

impl TextColumn {
    /// Takes the text of the next row; `false` if it is too long for the column.
    #[inline(always)]
    fn take(&mut self, text: Option<&[u8]>) -> bool {
        self.bytes.extend_from_slice(text.unwrap_or_default());
        self.end(text.is_some())
    }

    /// Takes a part of a text; `false` if it is too long for the column.
    #[inline(always)]
    fn copy(&mut self, text: &[u8], place: Range<usize>) -> bool {
        let (at, length) = (place.start, place.len());
        match text.get(at..).and_then(|text| text.first_chunk::<COPIED_BYTES>()) {
            // Bytes behind the part are copied, and taken back.
            Some(some) if length <= COPIED_BYTES => {
                let behind = self.bytes.len() + length;
                self.bytes.extend_from_slice(some);
                self.bytes.truncate(behind);
            }
            _ => self.bytes.extend_from_slice(&text[place]),
        }
        self.end(true)
    }

    #[inline(always)]
    fn end(&mut self, valid: bool) -> bool {
        if self.bytes.len() > TEXT_BYTES_MAX {
            return false;
        }
        self.valid.push(valid, self.ends.len() - 1);
        self.ends.push(self.bytes.len() as i32);
        true
    }
}

impl Column for TextColumn {
    fn push(&mut self, value: Value<'_>) -> bool {
        match value {
            Value::Null => return self.take(None),
            Value::Boolean(value) => self.bytes.extend_from_slice(value.to_string().as_bytes()),
            Value::Text(text) => self.bytes.extend_from_slice(text.as_bytes()),
            Value::Escaped(text) => {
                let bytes = &mut self.bytes;
                if unescape(text, &mut |part| bytes.extend_from_slice(part.as_bytes())).is_none() {
                    return false;
                }
            }
        }
        self.end(true)
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

/// Points in time. Where one of a batch is written in another form than the common one, all of them
/// are given as text, and `fit` decides about them.
pub(super) struct TimeColumn {
    reader: TimeReader,
    of: DataType,
    values: Vec<i64>,
    valid: Validity,
    /// Where each value stands in the text of the batch.
    spans: Vec<(u32, u32)>,
    /// Whether there is one of another form.
    is_odd: bool,
}

impl TimeColumn {
    fn new(ticks: TimeTicks, of: DataType) -> Self {
        let (values, valid, spans) = (vec![], Validity::default(), vec![]);
        Self { reader: ticks.reader(), of, values, valid, spans, is_odd: false }
    }

    #[inline(always)]
    fn take(&mut self, ticks: Option<i64>, at: Range<usize>) {
        self.valid.push(ticks.is_some(), self.values.len());
        self.values.push(ticks.unwrap_or_default());
        self.spans.push((at.start as u32, at.end as u32));
    }

    fn push(&mut self, value: Value<'_>, at: usize) -> bool {
        match value {
            Value::Null => self.take(None, 0..0),
            Value::Text(text) => {
                self.take(Some(0), at..at + text.len());
                self.is_odd = true;
            }
            Value::Boolean(_) | Value::Escaped(_) => return false,
        }
        true
    }

    fn finish(&mut self, rows: usize, text: &str) -> ArrayRef {
        let (mut ticks, mut spans) =
            (std::mem::take(&mut self.values), std::mem::take(&mut self.spans));
        let valid = self.valid.finish(rows);
        self.values.reserve(rows);
        self.spans.reserve(rows);
        ticks.truncate(rows);
        spans.truncate(rows);
        if std::mem::take(&mut self.is_odd) {
            let texts = spans.iter().enumerate().map(|(row, &(from, to))| {
                let is_valid = valid.as_ref().is_none_or(|valid| valid.is_valid(row));
                is_valid.then(|| &text[from as usize..to as usize])
            });
            return Arc::new(texts.collect::<StringArray>());
        }
        quick::times(ticks, valid, &self.of)
    }
}

/// Gives the parts of a string, escapes written out; `None` at an escape that is none.
pub(super) fn unescape(text: &str, give: &mut impl FnMut(&str)) -> Option<()> {
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
