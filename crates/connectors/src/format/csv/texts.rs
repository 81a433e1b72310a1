//! Fields as columns of the declared types.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, NullBufferBuilder, PrimitiveArray, StringArray, StringBuilder};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
};
use arrow::error::ArrowError;

use super::records::Records;
use crate::format::fit::Number;
use crate::format::quick::{self, TimeTicks};
use crate::format::rows::{RefusedRow, convert, is_text, not_null, not_valid};

/// Bytes that are copied at once for a text, needed or not.
const COPIED_BYTES: usize = 32;

/// The fields of a batch as text.
pub(super) struct Texts<'a> {
    records: &'a Records,
    /// The bytes of the batch, and the unquoted text.
    bytes: [&'a [u8]; 2],
    /// The same where all of them are UTF-8.
    whole: [Option<&'a str>; 2],
    /// Which of them stand between quotes; found when it is first asked for.
    quoted: OnceCell<Vec<bool>>,
}

impl<'a> Texts<'a> {
    pub(super) fn of(records: &'a Records) -> Self {
        let bytes = records.texts();
        let whole = bytes.map(|text| std::str::from_utf8(text).ok());
        Self { records, bytes, whole, quoted: OnceCell::new() }
    }

    /// Whether each field is UTF-8 for certain. The bytes of the batch tell: in the unquoted text a
    /// letter may be whole of which two fields have a part each.
    pub(super) fn are_whole(&self) -> bool {
        self.whole[0].is_some()
    }

    #[inline(always)]
    fn get(&self, row: usize, field: usize) -> Option<&str> {
        let (unquoted, place) = self.records.fields[row * self.records.width + field].place();
        match self.whole[usize::from(unquoted)] {
            Some(whole) => whole.get(place),
            None => std::str::from_utf8(&self.bytes[usize::from(unquoted)][place]).ok(),
        }
    }

    /// The fields of a column: all bytes where each stands, and its place among them.
    fn places(&self, field: usize) -> impl Iterator<Item = (&'a [u8], Range<usize>)> {
        let (bytes, width) = (self.bytes, self.records.width.max(1));
        self.records.fields.iter().skip(field).step_by(width).map(move |field| {
            let (unquoted, place) = field.place();
            (bytes[usize::from(unquoted)], place)
        })
    }

    /// Whether no text stands for NULL but an empty one.
    fn has_no_nulls(&self) -> bool {
        self.records.dialect.nulls.is_empty()
    }

    /// A column in its declared type. Numbers are parsed where they stand; every other type is a
    /// cast from text.
    pub(super) fn column(
        &self,
        position: usize,
        field: &Field,
        refused: &mut Vec<RefusedRow>,
    ) -> Result<ArrayRef, ArrowError> {
        let array = match field.data_type() {
            of if TimeTicks::of(of).is_some() => match self.times(position, of) {
                Some(times) => times,
                None => self.text(position, field, refused),
            },
            DataType::Int8 => self.numbers::<Int8Type>(position, field, refused),
            DataType::Int16 => self.numbers::<Int16Type>(position, field, refused),
            DataType::Int32 => self.numbers::<Int32Type>(position, field, refused),
            DataType::Int64 => self.numbers::<Int64Type>(position, field, refused),
            DataType::Float32 => self.numbers::<Float32Type>(position, field, refused),
            DataType::Float64 => self.numbers::<Float64Type>(position, field, refused),
            _ => self.text(position, field, refused),
        };
        convert(&array, field, refused)
    }

    /// A column of points in time, if each is written in the common form.
    fn times(&self, position: usize, of: &DataType) -> Option<ArrayRef> {
        let (mut reader, rows) = (TimeTicks::of(of)?.reader(), self.records.spans.len());
        let (mut values, mut valid) = (Vec::with_capacity(rows), NullBufferBuilder::new(rows));
        let is_free = self.has_no_nulls();
        for (row, (bytes, place)) in self.places(position).enumerate() {
            let quick = reader.read(bytes, place.start);
            if let Some((ticks, _)) = quick.filter(|(_, end)| is_free && *end == place.end) {
                valid.append_non_null();
                values.push(ticks);
                continue;
            }
            let text = self.get(row, position)?.trim_ascii();
            let is_null = text.is_empty() || self.is_null(row, position, text);
            valid.append(!is_null);
            let mut read = || reader.read(text.as_bytes(), 0).filter(|(_, end)| *end == text.len());
            values.push(if is_null { 0 } else { read()?.0 });
        }
        Some(quick::times(values, valid.finish(), of))
    }

    /// A column of numbers.
    fn numbers<T: QuickNumber>(
        &self,
        position: usize,
        field: &Field,
        refused: &mut Vec<RefusedRow>,
    ) -> ArrayRef {
        let rows = self.records.spans.len();
        let (mut values, mut valid) = (Vec::with_capacity(rows), NullBufferBuilder::new(rows));
        let is_free = self.has_no_nulls();
        for (row, (bytes, place)) in self.places(position).enumerate() {
            let quick = T::quick(bytes, place.start);
            if let Some((value, _)) = quick.filter(|(_, end)| is_free && *end == place.end) {
                valid.append_non_null();
                values.push(value);
                continue;
            }
            let value = self.number::<T>((row, position), field, refused);
            valid.append(value.is_some());
            values.push(value.unwrap_or_default());
        }
        Arc::new(PrimitiveArray::<T>::new(values.into(), valid.finish()))
    }

    /// A number by the rule of all formats; `None` if it is NULL, or refused.
    #[cold]
    fn number<T: QuickNumber>(
        &self,
        (row, position): (usize, usize),
        field: &Field,
        refused: &mut Vec<RefusedRow>,
    ) -> Option<T::Native> {
        let Some(text) = self.get(row, position).map(str::trim_ascii) else {
            refused.push(RefusedRow { row, reason: not_utf8(field) });
            return None;
        };
        if text.is_empty() || self.is_null(row, position, text) {
            return None;
        }
        let value = T::read(text);
        if value.is_none() {
            refused.push(RefusedRow { row, reason: not_valid(field, text) });
        }
        value
    }

    /// Refuses the rows whose fields are none of a column that nobody reads; `false` if that is not
    /// known without the column.
    pub(super) fn check(
        &self,
        position: usize,
        field: &Field,
        refused: &mut Vec<RefusedRow>,
    ) -> bool {
        match field.data_type() {
            DataType::Int32 => self.check_numbers::<Int32Type>(position, field, refused),
            DataType::Int64 => self.check_numbers::<Int64Type>(position, field, refused),
            DataType::Float64 => self.check_numbers::<Float64Type>(position, field, refused),
            _ => return false,
        }
        true
    }

    fn check_numbers<T: QuickNumber>(
        &self,
        position: usize,
        field: &Field,
        refused: &mut Vec<RefusedRow>,
    ) {
        let is_free = self.has_no_nulls();
        for (row, (bytes, place)) in self.places(position).enumerate() {
            // The number itself is not computed.
            let end = T::quick(bytes, place.start).map(|(_, end)| end);
            let is_right = (is_free && end == Some(place.end))
                || self.number::<T>((row, position), field, refused).is_some();
            if !is_right && !field.is_nullable() {
                refused.push(RefusedRow { row, reason: not_null(field) });
            }
        }
    }

    /// Whether a text stands for NULL: not where it is quoted, as a writer does with such a value.
    fn is_null(&self, row: usize, position: usize, text: &str) -> bool {
        let is_quoted = || {
            let quoted = self.quoted.get_or_init(|| self.records.quoted());
            quoted.get(row * self.records.width + position).is_some_and(|quoted| *quoted)
        };
        self.records.dialect.is_null(text) && !is_quoted()
    }

    /// All fields of a column as they stand; `None` if one of them is not UTF-8.
    fn copied(&self, position: usize) -> Option<StringArray> {
        let rows = self.records.spans.len();
        let mut offsets = Vec::with_capacity(rows + 1);
        let mut total = 0;
        offsets.push(0);
        for (_, place) in self.places(position) {
            total += place.len();
            offsets.push(i32::try_from(total).ok()?);
        }
        let mut values = vec![0; total + COPIED_BYTES];
        let mut from = 0;
        for (bytes, place) in self.places(position) {
            let (begin, behind) = (place.start, from + place.len());
            // Bytes behind the text are written over by the next one.
            match bytes.get(begin..).and_then(|bytes| bytes.first_chunk::<COPIED_BYTES>()) {
                Some(some) if place.len() <= COPIED_BYTES => {
                    values[from..from + COPIED_BYTES].copy_from_slice(some);
                }
                _ => values[from..behind].copy_from_slice(&bytes[place]),
            }
            from = behind;
        }
        values.truncate(total);
        let offsets = OffsetBuffer::new(offsets.into());
        StringArray::try_new(offsets, Buffer::from_vec(values), None).ok()
    }

    /// A column of text with its nulls.
    pub(super) fn text(
        &self,
        position: usize,
        field: &Field,
        refused: &mut Vec<RefusedRow>,
    ) -> ArrayRef {
        let rows = self.records.spans.len();
        let is_text = is_text(field.data_type());
        if is_text
            && self.has_no_nulls()
            && let Some(texts) = self.copied(position)
        {
            return Arc::new(texts);
        }
        let mut builder = StringBuilder::with_capacity(rows, rows * 8);
        for row in 0..rows {
            match self.get(row, position) {
                Some(text) => {
                    let text = if is_text { text } else { text.trim_ascii() };
                    if (text.is_empty() && !is_text) || self.is_null(row, position, text) {
                        builder.append_null();
                    } else {
                        builder.append_value(text);
                    }
                }
                None => {
                    builder.append_null();
                    refused.push(RefusedRow { row, reason: not_utf8(field) });
                }
            }
        }
        Arc::new(builder.finish())
    }
}

/// Numbers some of which are read in one pass.
trait QuickNumber: Number {
    /// The number that begins at a place in its common form, and where it ends.
    #[inline(always)]
    fn quick(text: &[u8], at: usize) -> Option<(Self::Native, usize)> {
        let _ = (text, at);
        None
    }
}

impl QuickNumber for Int8Type {}
impl QuickNumber for Int16Type {}
impl QuickNumber for Float32Type {}

impl QuickNumber for Int32Type {
    #[inline(always)]
    fn quick(text: &[u8], at: usize) -> Option<(i32, usize)> {
        let (number, end) = quick::whole(text, at)?;
        Some((i32::try_from(number).ok()?, end))
    }
}

impl QuickNumber for Int64Type {
    #[inline(always)]
    fn quick(text: &[u8], at: usize) -> Option<(i64, usize)> {
        quick::whole(text, at)
    }
}

impl QuickNumber for Float64Type {
    #[inline(always)]
    fn quick(text: &[u8], at: usize) -> Option<(f64, usize)> {
        quick::double(text, at)
    }
}

fn not_utf8(field: &Field) -> String {
    format!("column '{}': the text is not UTF-8", field.name())
}
