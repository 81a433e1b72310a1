//! Fields as columns of the declared types.

use std::cell::OnceCell;
use std::sync::Arc;

use arrow::array::{ArrayRef, PrimitiveBuilder, StringBuilder};
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
};
use arrow::error::ArrowError;

use super::records::Records;
use crate::format::fit::Number;
use crate::format::rows::{RefusedRow, convert, is_text, not_valid};

/// The fields of a batch as text.
pub(super) struct Texts<'a> {
    records: &'a Records,
    /// All of them, where all are UTF-8.
    whole: Option<&'a str>,
    /// Which of them stand between quotes; found when it is first asked for.
    quoted: OnceCell<Vec<bool>>,
}

impl<'a> Texts<'a> {
    pub(super) fn of(records: &'a Records) -> Self {
        let whole = std::str::from_utf8(&records.data[..records.used]).ok();
        Self { records, whole, quoted: OnceCell::new() }
    }

    fn get(&self, row: usize, field: usize) -> Option<&str> {
        let index = row * self.records.width + field;
        let start = if index == 0 { 0 } else { self.records.ends[index - 1] };
        let end = self.records.ends[index];
        match self.whole {
            Some(whole) => whole.get(start..end),
            None => std::str::from_utf8(&self.records.data[start..end]).ok(),
        }
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

    /// A column of numbers.
    fn numbers<T: Number>(
        &self,
        position: usize,
        field: &Field,
        refused: &mut Vec<RefusedRow>,
    ) -> ArrayRef {
        let rows = self.records.spans.len();
        let mut builder = PrimitiveBuilder::<T>::with_capacity(rows);
        for row in 0..rows {
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

fn not_utf8(field: &Field) -> String {
    format!("column '{}': the text is not UTF-8", field.name())
}
