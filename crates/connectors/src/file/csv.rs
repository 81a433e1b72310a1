//! CSV, read.
//!
//! `csv-core` cuts bytes into records; a batch of them is turned into columns of the declared
//! types, one column after the other. A record that does not fit is taken out by its row, so that
//! bad rows cost nothing while there are none and little when there are some.
//!
//! A quote that is never closed would swallow the records after it. Therefore a record of several
//! lines must close its quotes as RFC 4180 says, and has a bound; otherwise only its first line is
//! refused, and reading goes on with the next one.
//!
//! A row is good or bad by all declared columns, not only by those that a query reads: what is
//! counted does not depend on the query.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, PrimitiveBuilder, StringBuilder};
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema,
};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use csv_core::ReadRecordResult;
use dataflow::error::ConnectorError;
use dataflow::source::{Flow, Next};

use super::infer::{SAMPLE_ROWS, narrowest};
use super::input::{BATCH_BYTES_MAX, Input};
use super::rows::{
    Refused, Refuser, convert, first_reasons, is_text, match_columns, not_valid, without,
};
use crate::encode::CsvStyle;
use crate::options::Reader;

/// Bytes of a record at most: beyond, a quote was not closed.
pub const RECORD_BYTES_MAX: usize = 2 << 20;

/// How a CSV file is written.
#[derive(Debug, Clone)]
pub(super) struct Dialect {
    header: bool,
    delimiter: u8,
    quote: u8,
    comment: Option<u8>,
    /// Texts that stand for NULL; an empty text does so for every type but strings.
    nulls: Vec<String>,
}

impl Dialect {
    pub(super) fn new(options: Reader<'_>, path: &Path) -> Result<Self, ConnectorError> {
        let tabs = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("tsv"));
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
    pub(super) fn style(&self) -> CsvStyle {
        CsvStyle {
            header: self.header,
            delimiter: self.delimiter,
            quote: self.quote,
            null: self.nulls.first().cloned().unwrap_or_default(),
        }
    }

    fn is_null(&self, text: &str) -> bool {
        self.nulls.iter().any(|null| null == text)
    }
}

/// A file that is being read.
pub(super) struct CsvFlow {
    records: Records,
    /// The field of each declared column.
    fields: Vec<usize>,
    refuser: Refuser,
}

impl CsvFlow {
    pub(super) fn open(
        path: &Path,
        dialect: Dialect,
        refuser: Refuser,
    ) -> Result<Self, ConnectorError> {
        let place = path.display().to_string();
        let declared = Arc::clone(&refuser.target.declared);
        let mut records = Records::open(path, dialect)?;
        let fields = match records.header()? {
            Some(names) => match_columns(&declared, &names, &place)?,
            None => (0..declared.fields().len()).collect(),
        };
        if records.width == 0 {
            records.set_width(fields.len());
        }
        Ok(Self { records, fields, refuser })
    }

    /// Columns of the records at hand, without those that do not fit the table.
    fn columns(&mut self) -> Result<RecordBatch, ConnectorError> {
        let target = Arc::clone(&self.refuser.target);
        let mut refused = Vec::new();
        let mut columns: Vec<Option<ArrayRef>> = vec![None; target.declared.fields().len()];
        let texts = self.records.texts();
        for (index, field) in target.declared.fields().iter().enumerate() {
            let column = texts.column(self.fields[index], field, &mut refused);
            columns[index] = Some(column.map_err(|error| self.unfit(error))?);
        }
        let refused = first_reasons(refused);
        for refused in &refused {
            let (line, text) = self.records.source_of(refused.row);
            let place = format!("{}:{line}", self.records.input.path.display());
            self.refuser.refuse(place, refused.reason.clone(), text)?;
        }
        let chosen = target.projection.iter().filter_map(|index| columns[*index].clone()).collect();
        without(&target.projected, chosen, self.records.spans.len(), &refused)
            .map_err(|error| self.unfit(error))
    }

    fn unfit(&self, error: ArrowError) -> ConnectorError {
        ConnectorError::Io {
            place: self.records.input.path.display().to_string(),
            message: error.to_string(),
            hint: None,
        }
    }
}

impl Flow for CsvFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            self.records.read(rows_max, &self.refuser)?;
            if self.records.spans.is_empty() {
                if self.records.ended {
                    return Ok(Next::End);
                }
                continue;
            }
            let batch = self.columns()?;
            if batch.num_rows() > 0 {
                return Ok(Next::Batch(batch));
            }
        }
    }
}

/// Where a record stands in the batch's bytes.
struct Span {
    from: usize,
    to: usize,
    /// The line of `from`, counted from 1.
    line: u64,
}

/// A file cut into records, a batch at a time.
struct Records {
    input: Input,
    parser: csv_core::Reader,
    dialect: Dialect,
    /// Fields that a record must have; 0 until known.
    width: usize,
    /// Unquoted text of all fields, one after the other.
    data: Vec<u8>,
    /// Bytes of `data` in use.
    used: usize,
    /// Where each field ends in `data`: `width` per record.
    ends: Vec<usize>,
    spans: Vec<Span>,
    /// Whether the last record has been read.
    ended: bool,
    /// The ends of the record being read, counted from its beginning.
    ends_of_record: Vec<usize>,
}

/// What became of an attempt to read a record.
enum Attempt {
    Record { fields: usize },
    TooLong,
    End,
}

impl Records {
    fn open(path: &Path, dialect: Dialect) -> Result<Self, ConnectorError> {
        let parser = csv_core::ReaderBuilder::new()
            .delimiter(dialect.delimiter)
            .quote(dialect.quote)
            .comment(dialect.comment)
            .build();
        Ok(Self {
            input: Input::open(path)?,
            parser,
            dialect,
            width: 0,
            data: vec![0; 64 << 10],
            used: 0,
            ends: Vec::new(),
            spans: Vec::new(),
            ended: false,
            ends_of_record: vec![0; 64],
        })
    }

    fn set_width(&mut self, width: usize) {
        self.width = width;
    }

    /// The names of the columns, where the file has them; a file without any record has none.
    fn header(&mut self) -> Result<Option<Vec<String>>, ConnectorError> {
        if !self.dialect.header {
            return Ok(None);
        }
        let place = self.input.path.display().to_string();
        match self.attempt()? {
            Attempt::Record { fields } => {
                let mut start = 0;
                let names = self.ends_of_record[..fields].iter().map(|end| {
                    let name = String::from_utf8_lossy(&self.data[start..*end]);
                    start = *end;
                    name.trim().to_owned()
                });
                let names = names.collect();
                self.width = fields;
                Ok(Some(names))
            }
            Attempt::End => Err(ConnectorError::Io {
                place,
                message: "the file is empty: it has no header".into(),
                hint: Some("a file without a header is read with 'csv.header' = 'false'".into()),
            }),
            Attempt::TooLong => Err(too_long(place)),
        }
    }

    /// Reads up to `rows_max` records of the right number of fields; refuses the others.
    fn read(&mut self, rows_max: usize, refuser: &Refuser) -> Result<(), ConnectorError> {
        self.input.begin_batch();
        self.used = 0;
        self.ends.clear();
        self.spans.clear();
        while self.spans.len() < rows_max && self.input.position() < BATCH_BYTES_MAX {
            let (from, line, used) = (self.input.position(), self.parser.line(), self.used);
            let refusal = match self.attempt()? {
                Attempt::End => {
                    self.ended = true;
                    break;
                }
                Attempt::TooLong => {
                    Some(format!("a quoted value does not end within {RECORD_BYTES_MAX} bytes"))
                }
                Attempt::Record { .. } if self.is_torn(from, line) => {
                    Some("a quoted value does not end as it should".into())
                }
                Attempt::Record { fields } if fields != self.width => {
                    Some(format!("expected {} fields, found {fields}", self.width))
                }
                Attempt::Record { fields } => {
                    let ends = &self.ends_of_record[..fields];
                    self.ends.extend(ends.iter().map(|end| used + end));
                    self.spans.push(Span { from, to: self.input.position(), line });
                    None
                }
            };
            if let Some(reason) = refusal {
                self.used = used;
                self.refuse_line(from, line, reason, refuser)?;
            }
        }
        Ok(())
    }

    /// Reads a record into `data` and `ends_of_record`.
    fn attempt(&mut self) -> Result<Attempt, ConnectorError> {
        let from = self.input.position();
        let mut fields = 0;
        loop {
            if self.input.ahead().is_empty() {
                self.input.fill()?;
            }
            let (result, passed, written, ended) = self.parser.read_record(
                self.input.ahead(),
                &mut self.data[self.used..],
                &mut self.ends_of_record[fields..],
            );
            self.input.pass(passed);
            self.used += written;
            fields += ended;
            match result {
                ReadRecordResult::Record => return Ok(Attempt::Record { fields }),
                ReadRecordResult::End => return Ok(Attempt::End),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.data.resize(self.data.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => {
                    self.ends_of_record.resize(self.ends_of_record.len() * 2, 0);
                }
            }
            if self.input.position() - from > RECORD_BYTES_MAX {
                return Ok(Attempt::TooLong);
            }
        }
    }

    /// Whether the record read last spans lines, or the end of the file, without its quotes being
    /// closed.
    fn is_torn(&self, from: usize, line: u64) -> bool {
        let one_line = self.parser.line() <= line + 1 && !self.input.is_whole();
        if one_line {
            return false;
        }
        let raw = self.input.bytes(from, self.input.position());
        let (_, text) = skip_blank(raw, line, self.dialect.comment);
        !quotes_close(text, self.dialect.delimiter, self.dialect.quote)
    }

    /// Refuses the first line of a record and goes on behind it.
    fn refuse_line(
        &mut self,
        from: usize,
        line: u64,
        reason: String,
        refuser: &Refuser,
    ) -> Result<(), ConnectorError> {
        let to = self.input.position();
        let raw = self.input.bytes(from, to);
        let (line, text) = skip_blank(raw, line, self.dialect.comment);
        let skipped = raw.len() - text.len();
        let place = format!("{}:{line}", self.input.path.display());
        match text.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                refuser.refuse(place, reason, text[..end].trim_ascii_end())?;
                self.input.rewind(from + skipped + end + 1);
                self.parser.reset();
                self.parser.set_line(line + 1);
                Ok(())
            }
            None if to - from > RECORD_BYTES_MAX => Err(too_long(place)),
            None => refuser.refuse(place, reason, text.trim_ascii_end()),
        }
    }

    /// Line and text of a record of this batch.
    fn source_of(&self, row: usize) -> (u64, &[u8]) {
        let span = &self.spans[row];
        let raw = self.input.bytes(span.from, span.to);
        let (line, text) = skip_blank(raw, span.line, self.dialect.comment);
        (line, text.trim_ascii_end())
    }

    fn texts(&self) -> Texts<'_> {
        Texts { records: self, whole: std::str::from_utf8(&self.data[..self.used]).ok() }
    }
}

/// The fields of a batch as text.
struct Texts<'a> {
    records: &'a Records,
    /// All of them, where all are UTF-8.
    whole: Option<&'a str>,
}

impl Texts<'_> {
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
    fn column(
        &self,
        position: usize,
        field: &Field,
        refused: &mut Vec<Refused>,
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
    fn numbers<T: ArrowPrimitiveType + Parser>(
        &self,
        position: usize,
        field: &Field,
        refused: &mut Vec<Refused>,
    ) -> ArrayRef {
        let rows = self.records.spans.len();
        let mut builder = PrimitiveBuilder::<T>::with_capacity(rows);
        for row in 0..rows {
            let text = self.get(row, position).map(str::trim_ascii);
            match text {
                Some(text) if text.is_empty() || self.records.dialect.is_null(text) => {
                    builder.append_null();
                }
                Some(text) => {
                    let value = T::parse(text);
                    if value.is_none() {
                        refused.push(Refused { row, reason: not_valid(field, text) });
                    }
                    builder.append_option(value);
                }
                None => {
                    refused.push(Refused { row, reason: not_utf8(field) });
                    builder.append_null();
                }
            }
        }
        Arc::new(builder.finish())
    }

    /// A column of text with its nulls.
    fn text(&self, position: usize, field: &Field, refused: &mut Vec<Refused>) -> ArrayRef {
        let rows = self.records.spans.len();
        let dialect = &self.records.dialect;
        let is_text = is_text(field.data_type());
        let mut builder = StringBuilder::with_capacity(rows, rows * 8);
        for row in 0..rows {
            match self.get(row, position) {
                Some(text) => {
                    let text = if is_text { text } else { text.trim_ascii() };
                    if (text.is_empty() && !is_text) || dialect.is_null(text) {
                        builder.append_null();
                    } else {
                        builder.append_value(text);
                    }
                }
                None => {
                    builder.append_null();
                    refused.push(Refused { row, reason: not_utf8(field) });
                }
            }
        }
        Arc::new(builder.finish())
    }
}

fn not_utf8(field: &Field) -> String {
    format!("column '{}': the text is not UTF-8", field.name())
}

/// Blank and comment lines before a record belong to its bytes: passes them.
fn skip_blank(raw: &[u8], mut line: u64, comment: Option<u8>) -> (u64, &[u8]) {
    let mut rest = raw;
    loop {
        match rest {
            [b'\n', tail @ ..] => {
                line += 1;
                rest = tail;
            }
            [b'\r', tail @ ..] => rest = tail,
            [first, ..] if Some(*first) == comment => {
                let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                rest = &rest[end..];
            }
            _ => return (line, rest),
        }
    }
}

/// Whether every quoted field of a record ends with a quote before a delimiter or the end.
fn quotes_close(text: &[u8], delimiter: u8, quote: u8) -> bool {
    let mut rest = text;
    loop {
        if let [first, tail @ ..] = rest
            && *first == quote
        {
            rest = tail;
            loop {
                let Some(end) = rest.iter().position(|byte| *byte == quote) else { return false };
                rest = &rest[end + 1..];
                match rest {
                    [next, tail @ ..] if *next == quote => rest = tail,
                    [next, ..] if *next != delimiter && !matches!(next, b'\r' | b'\n') => {
                        return false;
                    }
                    _ => break,
                }
            }
        }
        match rest.iter().position(|byte| *byte == delimiter) {
            Some(end) => rest = &rest[end + 1..],
            None => return true,
        }
    }
}

fn too_long(place: String) -> ConnectorError {
    ConnectorError::Io {
        place,
        message: format!("no line ends within {RECORD_BYTES_MAX} bytes"),
        hint: Some("is it a CSV file? check 'format' and 'csv.quote'".into()),
    }
}

/// Columns that the first records suggest; names from the header, else `column1`, ….
pub(super) fn infer(path: &Path, dialect: Dialect) -> Result<Schema, ConnectorError> {
    let mut records = Records::open(path, dialect)?;
    let names = match records.header()? {
        Some(names) => names,
        None => match records.attempt()? {
            Attempt::Record { fields } => {
                records.set_width(fields);
                records.input.rewind(0);
                records.parser.reset();
                (1..=fields).map(|index| format!("column{index}")).collect()
            }
            _ => Vec::new(),
        },
    };
    let refuser = Refuser::ignoring(Arc::new(Schema::empty()));
    records.read(SAMPLE_ROWS, &refuser)?;
    let texts = records.texts();
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
