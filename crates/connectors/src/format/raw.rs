//! Lines as they are: the only column has the bytes of a line, as BYTES or as text.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryBuilder, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

use super::input::{ByteInput, Filled};
use super::json::lines::{Line, Lines};
use super::json::{LINE_BYTES_MAX, LinesOf};
use super::rows::{RefusedRow, Refuser};
use super::{Decoded, RecordDecoder, RecordStart};
use crate::options::{refuse, sql_type};

/// Refuses columns other than a single one of text or bytes.
pub(super) fn check(declared: &Schema) -> Result<(), ConnectorError> {
    let hint = Some("declare one column, such as CREATE TABLE t (line STRING) WITH (…)".into());
    let [field] = &declared.fields()[..] else {
        let message = format!("'raw' has one column, and {} are declared", declared.fields().len());
        return Err(refuse("format", message, hint));
    };
    if matches!(field.data_type(), DataType::Utf8 | DataType::Binary) {
        return Ok(());
    }
    let message = format!("a line is STRING or BYTES, and not {}", sql_type(field.data_type()));
    Err(ConnectorError::Column { column: field.name().clone(), message, hint: None })
}

/// Lines that are being read.
pub(crate) struct RawDecoder {
    lines: Lines,
    /// Where to go on.
    resume: Option<RecordStart>,
    refuser: Refuser,
}

impl RawDecoder {
    pub(crate) fn new(input: ByteInput, refuser: Refuser) -> Self {
        Self { lines: Lines::of_any(input), resume: None, refuser }
    }

    /// The bytes of a line without its end.
    fn line(&self, line: &Line) -> &[u8] {
        let text = self.lines.text(std::slice::from_ref(line));
        text.strip_suffix(b"\r").unwrap_or(text)
    }

    /// The lines at hand as a column.
    fn column(&self, field: &Field, refused: &mut Vec<RefusedRow>) -> ArrayRef {
        let found = &self.lines.found;
        let bytes = found.iter().map(|line| self.line(line).len()).sum();
        let mut texts = StringBuilder::with_capacity(0, 0);
        let mut binary = BinaryBuilder::with_capacity(0, 0);
        if *field.data_type() == DataType::Binary {
            binary = BinaryBuilder::with_capacity(found.len(), bytes);
        } else {
            texts = StringBuilder::with_capacity(found.len(), bytes);
        }
        for (row, line) in found.iter().enumerate() {
            let value = self.line(line);
            if line.is_long {
                let reason = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                refused.push(RefusedRow { row, reason });
            }
            if *field.data_type() == DataType::Binary {
                binary.append_value(value);
                continue;
            }
            match std::str::from_utf8(value) {
                Ok(text) => texts.append_value(text),
                Err(_) => {
                    let reason = format!("column '{}': the text is not UTF-8", field.name());
                    refused.push(RefusedRow { row, reason });
                    texts.append_null();
                }
            }
        }
        if *field.data_type() == DataType::Binary {
            Arc::new(binary.finish())
        } else {
            Arc::new(texts.finish())
        }
    }

    fn rows(&self) -> Result<Option<RecordBatch>, ConnectorError> {
        let (lines, mut refused) = (&self.lines.found[..], vec![]);
        let column = self.column(self.refuser.target.declared.field(0), &mut refused);
        let origin = LinesOf { all: &self.lines, lines };
        let batch = self.refuser.rows(&|_| Arc::clone(&column), lines.len(), refused, &origin)?;
        Ok((batch.num_rows() > 0).then_some(batch))
    }
}

impl RecordDecoder for RawDecoder {
    fn start(&mut self) -> Result<bool, ConnectorError> {
        Ok(true)
    }

    fn place(&self) -> RecordStart {
        self.resume.unwrap_or_else(|| self.lines.place())
    }

    fn go_to(&mut self, place: RecordStart) {
        self.resume = (place.offset > 0).then_some(place);
    }

    fn stop_at(&mut self, offset: u64) {
        self.lines.end = offset;
    }

    fn decode(&mut self, rows_max: usize) -> Result<Decoded, ConnectorError> {
        if let Some(place) = self.resume {
            if !self.lines.go_to(place)? {
                return Ok(Decoded::Later);
            }
            self.resume = None;
        }
        loop {
            self.lines.read(rows_max)?;
            if !self.lines.found.is_empty()
                && let Some(batch) = self.rows()?
            {
                return Ok(Decoded::Batch(batch));
            }
            match self.lines.filled {
                Filled::More => {}
                Filled::Later => return Ok(Decoded::Later),
                Filled::End if self.lines.found.is_empty() => return Ok(Decoded::End),
                Filled::End => {}
            }
        }
    }
}
