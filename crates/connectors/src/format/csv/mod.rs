//! CSV, read.
//!
//! `csv-core` cuts bytes into records; a batch of them is turned into columns of the declared
//! types, one column after the other. A record that does not fit is taken out by its row, so that
//! bad rows cost nothing while there are none and little when there are some.
//!
//! A quote that is never closed would swallow the records after it. Therefore a record of several
//! lines must close its quotes as RFC 4180 says, and within a bound; otherwise only its first line
//! is refused, and reading goes on with the next one. One that closes them and is too long for a
//! row is refused as a whole.
//!
//! A row is good or bad by all declared columns, not only by those that a query reads: what is
//! counted does not depend on the query.

use std::sync::Arc;

use arrow::array::{ArrayRef, new_null_array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

use super::encode::CsvStyle;
use super::infer::{SAMPLE_ROWS, narrowest};
use super::rows::{Refuser, unfit};
use super::{ByteInput, Decoded, RecordDecoder, RecordStart, extension};
use crate::options::OptionReader;

mod blocks;
mod cut;
mod names;
mod plain;
mod records;
mod texts;

pub(crate) use cut::CsvCut;

use names::ColumnNames;
use records::{Header, Records, Stop};
use texts::Texts;

/// Bytes of a record at most.
pub const RECORD_BYTES_MAX: usize = 2 << 20;

/// Bytes within which the end of a longer record is looked for: beyond, a quote was not closed.
pub const QUOTED_BYTES_MAX: usize = 16 << 20;

/// How CSV is written.
#[derive(Debug, Clone)]
pub(crate) struct Dialect {
    header: bool,
    delimiter: u8,
    quote: u8,
    comment: Option<u8>,
    /// Texts that stand for NULL; an empty text does so for every type but strings.
    nulls: Vec<String>,
}

impl Dialect {
    /// `name` is that of the file: tabs separate the fields of a `.tsv`.
    pub(crate) fn new(options: OptionReader<'_>, name: &str) -> Result<Self, ConnectorError> {
        let tabs = extension(name).is_some_and(|extension| extension.eq_ignore_ascii_case("tsv"));
        let delimiter = if tabs { b'\t' } else { b',' };
        Ok(Self {
            header: options.bool("csv.header", true)?,
            delimiter: options.byte("csv.delimiter")?.unwrap_or(delimiter),
            quote: options.byte("csv.quote")?.unwrap_or(b'"'),
            comment: options.byte("csv.comment")?,
            nulls: match options.text("csv.null") {
                Some(list) => list.split(',').map(str::to_owned).collect(),
                None => Vec::new(),
            },
        })
    }

    /// The same, to be written.
    pub(crate) fn style(&self) -> CsvStyle {
        CsvStyle {
            header: self.header,
            delimiter: self.delimiter,
            quote: self.quote,
            nulls: self.nulls.clone(),
        }
    }

    fn is_null(&self, text: &str) -> bool {
        self.nulls.iter().any(|null| null == text)
    }
}

/// CSV that is being read.
pub(crate) struct CsvDecoder {
    records: Records,
    /// The field of each declared column, once the header has been read.
    fields: Option<Vec<Option<usize>>>,
    /// The declared columns that are output.
    read: Vec<usize>,
    /// Where to go on, behind the header.
    resume: Option<RecordStart>,
    refuser: Refuser,
}

impl CsvDecoder {
    pub(crate) fn new(input: ByteInput, dialect: Dialect, refuser: Refuser) -> Self {
        let declared = refuser.target.declared.fields().len();
        let mut records = Records::new(input, dialect);
        let mut fields = None;
        if !records.dialect.header {
            records.width = declared;
            fields = Some((0..declared).map(Some).collect());
        }
        let read = refuser.target.columns_read();
        Self { records, fields, read, resume: None, refuser }
    }

    /// Columns of the records at hand, without those that do not fit the table.
    fn columns(&self, positions: &[Option<usize>]) -> Result<RecordBatch, ConnectorError> {
        let declared = &self.refuser.target.declared;
        let mut refused = self.records.refused.clone();
        let rows = self.records.spans.len();
        let texts = Texts::of(&self.records);
        let is_read = |index: usize| self.read.binary_search(&index).is_ok();
        // Any text is right in a column of text that may be null.
        let is_passed = |field: &Field| {
            field.is_nullable() && *field.data_type() == DataType::Utf8 && texts.are_whole()
        };
        let columns: Result<Vec<ArrayRef>, ArrowError> = declared
            .fields()
            .iter()
            .enumerate()
            .zip(positions)
            .map(|((index, field), position)| match position {
                Some(position)
                    if !is_read(index)
                        && (is_passed(field) || texts.check(*position, field, &mut refused)) =>
                {
                    Ok(new_null_array(field.data_type(), rows))
                }
                Some(position) => texts.column(*position, field, &mut refused),
                None => Ok(new_null_array(field.data_type(), rows)),
            })
            .collect();
        let columns = columns.map_err(|error| unfit(self.records.input.name(), &error))?;
        self.refuser.rows(&|index| Arc::clone(&columns[index]), rows, refused, &self.records)
    }

    fn decode_at(
        &mut self,
        fields: &[Option<usize>],
        rows_max: usize,
    ) -> Result<Decoded, ConnectorError> {
        loop {
            let stop = self.records.read(rows_max)?;
            if !self.records.spans.is_empty() {
                let batch = self.columns(fields)?;
                if batch.num_rows() > 0 {
                    return Ok(Decoded::Batch(batch));
                }
            }
            match stop {
                Stop::Full => {}
                Stop::Later => return Ok(Decoded::Later),
                Stop::End => return Ok(Decoded::End),
            }
        }
    }
}

impl RecordDecoder for CsvDecoder {
    fn start(&mut self) -> Result<bool, ConnectorError> {
        if self.fields.is_none() {
            self.fields = match self.records.header()? {
                Header::Names(names) => {
                    let (names, place) = (ColumnNames::of(names), self.records.input.name());
                    let found = self.refuser.target.match_columns(names.names(), place)?;
                    names.check(&found, place)?;
                    Some(found)
                }
                // No record asks for its fields.
                Header::Nothing => Some(Vec::new()),
                Header::Later => None,
            };
        }
        Ok(self.fields.is_some())
    }

    fn place(&self) -> RecordStart {
        self.resume.unwrap_or_else(|| self.records.place())
    }

    fn go_to(&mut self, place: RecordStart) {
        self.resume = (place.offset > 0).then_some(place);
    }

    fn stop_at(&mut self, offset: u64) {
        self.records.end = offset;
    }

    fn decode(&mut self, rows_max: usize) -> Result<Decoded, ConnectorError> {
        if !self.start()? {
            return Ok(Decoded::Later);
        }
        if let Some(place) = self.resume {
            if !self.records.go_to(place)? {
                return Ok(Decoded::Later);
            }
            self.resume = None;
        }
        let Some(fields) = self.fields.take() else { return Ok(Decoded::Later) };
        let decoded = self.decode_at(&fields, rows_max);
        self.fields = Some(fields);
        decoded
    }
}

/// Columns that the first records suggest; names from the header, else `column1`, ….
pub(crate) fn infer(input: ByteInput, dialect: Dialect) -> Result<Schema, ConnectorError> {
    let mut records = Records::new(input, dialect);
    let names = if records.dialect.header {
        match records.header()? {
            Header::Names(names) => ColumnNames::of(names).names().to_vec(),
            Header::Later => Vec::new(),
            Header::Nothing => {
                return Err(ConnectorError::Io {
                    place: records.input.name().to_owned(),
                    message: "is empty: it has no header".into(),
                    hint: Some("declare the columns of the table".into()),
                });
            }
        }
    } else {
        (1..=records.first_width()?).map(|index| format!("column{index}")).collect()
    };
    records.read(SAMPLE_ROWS)?;
    let texts = Texts::of(&records);
    let fields: Vec<Field> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            // Read as a number, so that empty texts are nulls here.
            let probe = Field::new(name, DataType::Int64, true);
            let text = texts.text(index, &probe, &mut Vec::new());
            Field::new(name, narrowest(&text), true)
        })
        .collect();
    Ok(Schema::new(fields))
}

#[cfg(test)]
mod tests;
