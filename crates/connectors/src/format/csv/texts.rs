//! Fields as columns of the declared types.

use std::cell::OnceCell;
use std::sync::Arc;

use arrow::array::{ArrayRef, NullBufferBuilder, PrimitiveBuilder, StringBuilder};
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
};
use arrow::error::ArrowError;

use super::records::Records;
use crate::format::fit::Number;
use crate::format::quick::{self, TimeTicks};
use crate::format::rows::{RefusedRow, convert, is_text, not_valid};

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

    #[inline(always)]
    fn bytes(&self, row: usize, field: usize) -> &[u8] {
        let (unquoted, place) = self.records.fields[row * self.records.width + field].place();
        &self.bytes[usize::from(unquoted)][place]
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
        let (ticks, rows) = (TimeTicks::of(of)?, self.records.spans.len());
        let (mut values, mut valid) = (Vec::with_capacity(rows), NullBufferBuilder::new(rows));
        let is_free = self.has_no_nulls();
        for row in 0..rows {
            let bytes = self.bytes(row, position);
            let quick = ticks.read(bytes, 0).filter(|(_, end)| is_free && *end == bytes.len());
            if let Some((ticks, _)) = quick {
                valid.append(true);
                values.push(ticks);
                continue;
            }
            let text = self.get(row, position)?.trim_ascii();
            let is_null = text.is_empty() || self.is_null(row, position, text);
            valid.append(!is_null);
            let read = || ticks.read(text.as_bytes(), 0).filter(|(_, end)| *end == text.len());
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
        let mut builder = PrimitiveBuilder::<T>::with_capacity(rows);
        let is_free = self.has_no_nulls();
        for row in 0..rows {
            let quick = T::quick(self.bytes(row, position)).filter(|_| is_free);
            if let Some(value) = quick {
                builder.append_value(value);
                continue;
            }
            let text = self.get(row, position).map(str::trim_ascii);
            match text {
                Some(text) if text.is_empty() || self.is_null(row, position, text) => {
                    builder.append_null();
                }
                Some(text) => {
                    let value = T::read(text);
                    if value.is_none() {
                        refused.push(RefusedRow { row, reason: not_valid(field, text) });
                    }
                    builder.append_option(value);
                }
                None => {
                    refused.push(RefusedRow { row, reason: not_utf8(field) });
                    builder.append_null();
                }
            }
        }
        Arc::new(builder.finish())
    }

    /// Whether a text stands for NULL: not where it is quoted, as a writer does with such a value.
    fn is_null(&self, row: usize, position: usize, text: &str) -> bool {
        let is_quoted = || {
            let quoted = self.quoted.get_or_init(|| self.records.quoted());
            quoted.get(row * self.records.width + position).is_some_and(|quoted| *quoted)
        };
        self.records.dialect.is_null(text) && !is_quoted()
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
        let mut builder = StringBuilder::with_capacity(rows, rows * 8);
        let is_free = is_text && self.has_no_nulls();
        for row in 0..rows {
            match self.get(row, position) {
                Some(text) if is_free => builder.append_value(text),
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
    /// The number that a text is in its common form.
    #[inline(always)]
    fn quick(text: &[u8]) -> Option<Self::Native> {
        let _ = text;
        None
    }
}

impl QuickNumber for Int8Type {}
impl QuickNumber for Int16Type {}
impl QuickNumber for Int32Type {}
impl QuickNumber for Float32Type {}

impl QuickNumber for Int64Type {
    #[inline(always)]
    fn quick(text: &[u8]) -> Option<i64> {
        let (number, end) = quick::whole(text, 0)?;
        (end == text.len()).then_some(number)
    }
}

impl QuickNumber for Float64Type {
    #[inline(always)]
    fn quick(text: &[u8]) -> Option<f64> {
        let (number, end) = quick::double(text, 0)?;
        (end == text.len()).then_some(number)
    }
}

fn not_utf8(field: &Field) -> String {
    format!("column '{}': the text is not UTF-8", field.name())
}
