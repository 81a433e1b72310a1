//! JSON, read: one object a line, or what becomes such lines (`layout`).
//!
//! Flat objects are read field by field (`fields`), as long as lines are plainly right; the library
//! decodes the others. There a batch of lines is decoded as a whole. Where that fails, the batch is
//! cut in halves until the bad lines stand alone: good lines cost nothing extra, and a bad one
//! costs about two decodings of its batch. Keys are matched as written; a key that is missing is
//! NULL, one that is not declared is passed over.
//!
//! Numbers and times are decoded as text, and become what is declared by the rule of all formats
//! (`fit`): the library cuts fractions and digits without a word. Lines that are too long (`lines`)
//! or nest too deep (`text`) are refused before it sees them.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

use super::fit::Texts;
use super::infer::{SAMPLE_ROWS, narrowest};
use super::input::{ByteInput, Filled, UTF8_MARK};
use super::rows::{RefusedRow, Refuser, RowOrigin, clipped, convert_from, unfit};
use super::{Decoded, RecordDecoder, RecordStart};
use crate::options::sql_type;

mod columns;
mod fields;
mod layout;
pub(super) mod lines;
mod syntax;
mod text;

use fields::FieldReader;
use lines::{Line, Lines};
use text::{DEPTH_MAX, is_deep, nesting, without_pairs};

/// Bytes of a line at most.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// The part of the lines of a batch that a reader of fields may decline before the library decodes
/// the rest of the batch.
const DECLINED_PART: usize = 16;

/// Bytes shown of a line that was not decoded.
const UNREAD_BYTES_SHOWN: usize = 200;

/// JSON that is being read.
pub(crate) struct JsonDecoder {
    lines: Lines,
    /// Where to go on.
    resume: Option<RecordStart>,
    /// The declared columns, each of which may be null while a line is looked at.
    loose: SchemaRef,
    /// The same with text for what is decoded as such.
    texts: SchemaRef,
    /// Reads lines before the library does, if no column is nested.
    fields: Option<FieldReader>,
    refuser: Refuser,
}

impl JsonDecoder {
    pub(crate) fn new(input: ByteInput, refuser: Refuser) -> Self {
        Self::with(Lines::new(input), refuser)
    }

    fn with(lines: Lines, refuser: Refuser) -> Self {
        let declared = refuser.target.declared.fields();
        let fields: Vec<Field> =
            declared.iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        let texts: Vec<Field> = fields.iter().map(as_text).collect();
        let [loose, texts] = [fields, texts].map(|fields| Arc::new(Schema::new(fields)));
        let fields = FieldReader::new(&refuser.target.declared, &refuser.target.columns_read());
        Self { lines, resume: None, loose, texts, fields, refuser }
    }

    /// The rows among the lines at hand.
    fn rows(&mut self) -> Result<Option<RecordBatch>, ConnectorError> {
        let mut fields = self.fields.take();
        let batches = self.batches(fields.as_mut());
        self.fields = fields;
        let mut batches = batches?;
        if batches.len() < 2 {
            return Ok(batches.pop());
        }
        let batch = concat_batches(&self.refuser.target.projected, &batches);
        batch.map(Some).map_err(|error| unfit(self.lines.input.name(), &error))
    }

    /// The rows of each run of lines.
    fn batches(
        &self,
        mut fields: Option<&mut FieldReader>,
    ) -> Result<Vec<RecordBatch>, ConnectorError> {
        let mut batches = Vec::new();
        for lines in self.lines.found.chunk_by(|a, b| !a.is_long && !b.is_long) {
            match (lines, &mut fields) {
                ([line @ Line { is_long: true, .. }], _) => {
                    let reason = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                    self.refuse_unread(line, reason)?;
                }
                (lines, Some(fields)) => self.read_fields(fields, lines, &mut batches)?,
                (lines, None) => self.decode_lines(lines, &mut batches)?,
            }
        }
        Ok(batches)
    }

    /// Reads lines that follow one another, and has the library decode those that are declined.
    fn read_fields(
        &self,
        fields: &mut FieldReader,
        lines: &[Line],
        into: &mut Vec<RecordBatch>,
    ) -> Result<(), ConnectorError> {
        let Some(text) = self.lines.utf8(lines) else { return self.decode_lines(lines, into) };
        let start = lines[0].from;
        let mut may_decline = lines.len().div_ceil(DECLINED_PART);
        let mut at = 0;
        while at < lines.len() {
            let (columns, rows) =
                fields.read(text, lines[at..].iter().map(|line| line.within(start)));
            if rows > 0 {
                self.check(&columns, &lines[at..at + rows], into)?;
            }
            at += rows;
            if may_decline == 0 {
                return self.decode_lines(&lines[at..], into);
            }
            self.decode_lines(&lines[at..lines.len().min(at + 1)], into)?;
            (at, may_decline) = (at + 1, may_decline - 1);
        }
        Ok(())
    }

    fn refuse_unread(&self, line: &Line, reason: String) -> Result<(), ConnectorError> {
        let text = self.lines.text(std::slice::from_ref(line)).trim_ascii();
        let text = &text[..text.len().min(UNREAD_BYTES_SHOWN)];
        self.refuser.refuse(self.place(line.number), reason, text)
    }

    /// Decodes lines that follow one another; refuses those that are no row, one by one. The
    /// library does not see those that nest too deep.
    fn decode_lines(
        &self,
        mut lines: &[Line],
        into: &mut Vec<RecordBatch>,
    ) -> Result<(), ConnectorError> {
        let nests = |line: &Line| is_deep(self.lines.text(std::slice::from_ref(line)));
        while let Some(at) = lines.iter().position(nests) {
            self.decode_shallow(&lines[..at], into)?;
            self.refuse_unread(&lines[at], format!("it nests deeper than {DEPTH_MAX} levels"))?;
            lines = &lines[at + 1..];
        }
        self.decode_shallow(lines, into)
    }

    fn decode_shallow(
        &self,
        lines: &[Line],
        into: &mut Vec<RecordBatch>,
    ) -> Result<(), ConnectorError> {
        let Some(first) = lines.first() else { return Ok(()) };
        let text = self.lines.text(lines);
        let decoded = decode_all(&self.texts, text, lines.len());
        // The library passes over missing commas.
        let fault = |line| syntax::fault(self.lines.text(std::slice::from_ref(line)).trim_ascii());
        let decoded = decoded.and_then(|batch| match lines.iter().find_map(fault) {
            Some(fault) => Err(ArrowError::JsonError(fault)),
            None => Ok(batch),
        });
        match decoded {
            Ok(batch) => self.check(batch.columns(), lines, into),
            Err(error) if lines.len() == 1 => {
                let text = text.trim_ascii();
                self.refuser.refuse(self.place(first.number), self.reason(text, error), text)
            }
            Err(_) => {
                let (left, right) = lines.split_at(lines.len() / 2);
                self.decode_shallow(left, into)?;
                self.decode_shallow(right, into)
            }
        }
    }

    /// Refuses rows with a null where none is allowed, and projects.
    fn check(
        &self,
        columns: &[ArrayRef],
        lines: &[Line],
        into: &mut Vec<RecordBatch>,
    ) -> Result<(), ConnectorError> {
        let mut refused: Vec<RefusedRow> = Vec::new();
        let declared = self.refuser.target.declared.fields();
        let columns: Result<Vec<ArrayRef>, ArrowError> = declared
            .iter()
            .zip(columns)
            .map(|(field, column)| convert_from(column, field, Texts::Json, &mut refused))
            .collect();
        let columns = columns.map_err(|error| unfit(self.lines.input.name(), &error))?;
        let origin = LinesOf { all: &self.lines, lines };
        let column = |index: usize| Arc::clone(&columns[index]);
        let batch = self.refuser.rows(&column, lines.len(), refused, &origin)?;
        if batch.num_rows() > 0 {
            into.push(batch);
        }
        Ok(())
    }

    /// Why a line is no row: the column that fails alone, or the text as a whole.
    fn reason(&self, text: &[u8], error: ArrowError) -> String {
        let message = |error: ArrowError| match error {
            ArrowError::JsonError(message) => clipped(&message).into_owned(),
            other => clipped(&other.to_string()).into_owned(),
        };
        let whole = decode_all(&Arc::new(Schema::empty()), text, 1);
        // The library passes over some of what is missing, and blames a column.
        let fault = || syntax::fault(text);
        let none = || whole.as_ref().err().and_then(|_| not_a_line(text)).map(str::to_owned);
        if let Some(fault) = none().or_else(fault) {
            return fault;
        }
        if let Err(error) = whole {
            return message(error);
        }
        for (field, as_text) in self.loose.fields().iter().zip(self.texts.fields()) {
            let alone = |field| Arc::new(Schema::new(vec![Arc::clone(field)]));
            if let Err(error) = decode_all(&alone(as_text), text, 1) {
                // The message for the declared type, where that fails too.
                let error = decode_all(&alone(field), text, 1).err().unwrap_or(error);
                let error_text = error.to_string();
                let value =
                    error_text.split_once(": expected ").and_then(|(_, of)| of.split_once(" got "));
                let message = match value {
                    Some((_, value)) => {
                        let of = sql_type(field.data_type());
                        format!("{} is not a valid {of}", clipped(value))
                    }
                    None => message(error),
                };
                return format!("column '{}': {message}", field.name());
            }
        }
        message(error)
    }

    fn place(&self, line: u64) -> String {
        format!("{}:{line}", self.lines.input.name())
    }
}

/// Names the kind of a text that is no object on a line, if that can be seen.
fn not_a_line(text: &[u8]) -> Option<&'static str> {
    match text.first() {
        Some(b'[') => Some(
            "a JSON array, or a part of one: JSON is read one object a line, which \
             `jq -c '.[]'` makes of an array",
        ),
        Some(b'{') if nesting(text).open > 0 => Some(
            "an object that does not end on its line: JSON is read one object a line, which \
             `jq -c .` makes of objects of several lines",
        ),
        _ => None,
    }
}

/// A field with text for each value that is decoded as such.
fn as_text(field: &Field) -> Field {
    let inner = |field: &FieldRef| Arc::new(as_text(field).with_nullable(true));
    let data_type = match field.data_type() {
        of if of.is_numeric() => DataType::Utf8,
        DataType::Timestamp(..)
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Binary => DataType::Utf8,
        DataType::List(element) => DataType::List(inner(element)),
        DataType::LargeList(element) => DataType::LargeList(inner(element)),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        DataType::Map(entries, ordered) => match entries.data_type() {
            DataType::Struct(parts) => {
                let part = |part: &FieldRef| Arc::new(as_text(part));
                let parts = DataType::Struct(parts.iter().map(part).collect());
                let entries = entries.as_ref().clone().with_data_type(parts);
                DataType::Map(Arc::new(entries), *ordered)
            }
            _ => field.data_type().clone(),
        },
        other => other.clone(),
    };
    field.clone().with_data_type(data_type)
}

/// Lines that follow one another.
pub(super) struct LinesOf<'a> {
    pub(super) all: &'a Lines,
    pub(super) lines: &'a [Line],
}

impl RowOrigin for LinesOf<'_> {
    fn name(&self) -> &str {
        self.all.input.name()
    }

    fn record(&self, row: usize) -> u64 {
        self.lines[row].number
    }

    fn text(&self, row: usize) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.all.text(&self.lines[row..=row]).trim_ascii())
    }
}

impl RecordDecoder for JsonDecoder {
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
            if let Some(batch) = self.rows()? {
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

/// Bytes at the beginning of a file that decide whether it [is a document](is_document).
pub(crate) const HEAD_BYTES: usize = UTF8_MARK.len() + layout::LAYOUT_BYTES;

/// Whether the first [`HEAD_BYTES`] of a file show that its objects are no lines.
pub(crate) fn is_document(head: &[u8]) -> bool {
    let text = head.strip_prefix(UTF8_MARK).unwrap_or(head);
    layout::is_document(text, true) == Some(true)
}

/// Decodes exactly `rows` objects.
fn decode_all(schema: &SchemaRef, bytes: &[u8], rows: usize) -> Result<RecordBatch, ArrowError> {
    let one_a_line = || ArrowError::JsonError("expected one object a line".into());
    let mut decoder = json::ReaderBuilder::new(Arc::clone(schema))
        .with_batch_size(rows + 1)
        .with_coerce_primitive(true)
        .build_decoder()?;
    let bytes = &*without_pairs(bytes);
    if decoder.decode(bytes)? != bytes.len() {
        return Err(one_a_line());
    }
    match decoder.flush()? {
        Some(batch) if batch.num_rows() == rows => Ok(batch),
        _ => Err(one_a_line()),
    }
}

/// Columns that the first lines suggest; text that is nothing but points in time is a TIMESTAMP.
pub(crate) fn infer(input: ByteInput) -> Result<Schema, ConnectorError> {
    let mut lines = Lines::new(input);
    lines.read(SAMPLE_ROWS)?;
    let place = lines.input.name().to_owned();
    let text = |line| lines.text(std::slice::from_ref(line));
    let read = lines.found.iter().filter(|line| !line.is_long && !is_deep(text(line)));
    let first = read.clone().next().map(|line| text(line).trim_ascii());
    let not_a_line = first.and_then(not_a_line);
    if let (Some(hint), Some([b'[', ..] | [b'{'])) = (not_a_line, first) {
        return Err(ConnectorError::Io {
            place: lines.input.name().to_owned(),
            message: "it is not JSON of one object a line".into(),
            hint: Some(hint.into()),
        });
    }
    let texts = read.clone().map(|line| without_pairs(text(line)));
    let values = texts.flat_map(|text| json::reader::ValueIter::new(&*text, None).next());
    let schema = json::reader::infer_json_schema_from_iterator(values.filter(Result::is_ok));
    let schema = schema.map_err(|error| ConnectorError::Io {
        place: place.clone(),
        message: error.to_string(),
        hint: Some("declare the columns of the table".into()),
    })?;
    let hint = not_a_line.unwrap_or("JSON is read one object a line");
    let mut decoder = JsonDecoder::with(lines, Refuser::ignoring(Arc::new(schema)));
    let Some(sample) = decoder.rows()? else {
        return Err(ConnectorError::Io {
            place,
            message: "no line is a JSON object".into(),
            hint: Some(hint.into()),
        });
    };
    let schema = &decoder.refuser.target.declared;
    let fields = schema.fields().iter().zip(sample.columns()).map(|(field, column)| {
        let data_type = match field.data_type() {
            DataType::Null => DataType::Utf8,
            DataType::Utf8 => match narrowest(column) {
                time @ DataType::Timestamp(..) => time,
                _ => DataType::Utf8,
            },
            other => other.clone(),
        };
        Field::new(field.name(), data_type, true)
    });
    Ok(Schema::new(fields.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests;
