//! Newline JSON, read: one object a line.
//!
//! A batch of lines is decoded as a whole. Where that fails, the batch is cut in halves until the
//! bad lines stand alone: good lines cost nothing extra, and a bad one costs about two decodings of
//! its batch. Keys are matched as written; a key that is missing is NULL, one that is not declared
//! is passed over.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;

use super::infer::{SAMPLE_ROWS, narrowest};
use super::input::{BATCH_BYTES_MAX, Filled, Input};
use super::rows::{Origin, Refused, Refuser, convert, unfit};
use super::{Decoded, Decoder};

/// Bytes of a line at most.
pub const LINE_BYTES_MAX: usize = 16 << 20;

#[derive(Debug, Clone, Copy)]
struct Line {
    number: u64,
    from: usize,
    to: usize,
}

/// Bytes cut into lines, a batch at a time.
struct Lines {
    input: Input,
    /// The lines of the batch that hold something.
    found: Vec<Line>,
    /// The number of the line to be read next.
    number: u64,
    /// Bytes ahead that are known to hold no line end.
    searched: usize,
    /// What the last attempt to read on gave.
    filled: Filled,
}

impl Lines {
    fn new(input: Input) -> Self {
        Self { input, found: Vec::new(), number: 1, searched: 0, filled: Filled::More }
    }

    /// Finds the next lines.
    fn read(&mut self, rows_max: usize) -> Result<(), ConnectorError> {
        self.input.begin_batch(self.input.position());
        self.found.clear();
        self.filled = Filled::More;
        while self.found.len() < rows_max && self.input.position() < BATCH_BYTES_MAX {
            let ahead = self.input.ahead();
            let end = ahead[self.searched..].iter().position(|byte| *byte == b'\n');
            let (length, passed) = match end {
                Some(end) => (self.searched + end, self.searched + end + 1),
                None if self.input.is_whole() && !ahead.is_empty() => (ahead.len(), ahead.len()),
                None => {
                    self.searched = ahead.len();
                    if self.searched > LINE_BYTES_MAX {
                        return Err(self.too_long());
                    }
                    self.filled = self.input.fill(self.number)?;
                    match self.filled {
                        Filled::End if self.searched > 0 => continue,
                        Filled::More => continue,
                        Filled::Later | Filled::End => return Ok(()),
                    }
                }
            };
            self.searched = 0;
            let blank = ahead[..length].trim_ascii().is_empty();
            let from = self.input.position();
            self.input.pass(passed);
            if !blank {
                self.found.push(Line { number: self.number, from, to: from + length });
            }
            self.number += 1;
        }
        Ok(())
    }

    fn too_long(&self) -> ConnectorError {
        ConnectorError::Io {
            place: format!("{}:{}", self.input.name(), self.number),
            message: format!("no line ends within {LINE_BYTES_MAX} bytes"),
            hint: Some("JSON is read one object a line".into()),
        }
    }

    /// The text of lines that follow one another.
    fn text(&self, lines: &[Line]) -> &[u8] {
        match (lines.first(), lines.last()) {
            (Some(first), Some(last)) => self.input.bytes(first.from, last.to),
            _ => &[],
        }
    }
}

/// JSON that is being read.
pub(crate) struct JsonDecoder {
    lines: Lines,
    /// The declared columns, each of which may be null while a line is looked at.
    loose: SchemaRef,
    refuser: Refuser,
}

impl JsonDecoder {
    pub(crate) fn new(input: Input, refuser: Refuser) -> Self {
        Self::with(Lines::new(input), refuser)
    }

    fn with(lines: Lines, refuser: Refuser) -> Self {
        let declared = refuser.target.declared.fields();
        let fields: Vec<Field> =
            declared.iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        Self { lines, loose: Arc::new(Schema::new(fields)), refuser }
    }

    /// The rows among the lines at hand.
    fn rows(&self) -> Result<Option<RecordBatch>, ConnectorError> {
        let mut batches = Vec::new();
        self.decode_lines(&self.lines.found, &mut batches)?;
        if batches.len() < 2 {
            return Ok(batches.pop());
        }
        let batch = concat_batches(&self.refuser.target.projected, &batches);
        batch.map(Some).map_err(|error| unfit(self.lines.input.name(), &error))
    }

    /// Decodes lines that follow one another; refuses those that are no row, one by one.
    fn decode_lines(
        &self,
        lines: &[Line],
        into: &mut Vec<RecordBatch>,
    ) -> Result<(), ConnectorError> {
        let Some(first) = lines.first() else { return Ok(()) };
        let text = self.lines.text(lines);
        match decode_all(&self.loose, text, lines.len()) {
            Ok(batch) => self.check(batch, lines, into),
            Err(error) if lines.len() == 1 => {
                let text = text.trim_ascii();
                self.refuser.refuse(self.place(first.number), self.reason(text, error), text)
            }
            Err(_) => {
                let (left, right) = lines.split_at(lines.len() / 2);
                self.decode_lines(left, into)?;
                self.decode_lines(right, into)
            }
        }
    }

    /// Refuses rows with a null where none is allowed, and projects.
    fn check(
        &self,
        batch: RecordBatch,
        lines: &[Line],
        into: &mut Vec<RecordBatch>,
    ) -> Result<(), ConnectorError> {
        let mut refused: Vec<Refused> = Vec::new();
        let declared = self.refuser.target.declared.fields();
        let columns: Result<Vec<ArrayRef>, ArrowError> = declared
            .iter()
            .zip(batch.columns())
            .map(|(field, column)| convert(column, field, &mut refused))
            .collect();
        let columns = columns.map_err(|error| unfit(self.lines.input.name(), &error))?;
        let origin = LinesOf { all: &self.lines, lines };
        let column = |index: usize| Arc::clone(&columns[index]);
        let batch = self.refuser.rows(&column, batch.num_rows(), refused, &origin)?;
        if batch.num_rows() > 0 {
            into.push(batch);
        }
        Ok(())
    }

    /// Why a line is no row: the column that fails alone, or the text as a whole.
    fn reason(&self, text: &[u8], error: ArrowError) -> String {
        let message = |error: ArrowError| match error {
            ArrowError::JsonError(message) => message,
            other => other.to_string(),
        };
        if let Err(error) = decode_all(&Arc::new(Schema::empty()), text, 1) {
            return message(error);
        }
        for field in self.loose.fields() {
            let alone = Arc::new(Schema::new(vec![Arc::clone(field)]));
            if let Err(error) = decode_all(&alone, text, 1) {
                return format!("column '{}': {}", field.name(), message(error));
            }
        }
        message(error)
    }

    fn place(&self, line: u64) -> String {
        format!("{}:{line}", self.lines.input.name())
    }
}

/// Lines that follow one another.
struct LinesOf<'a> {
    all: &'a Lines,
    lines: &'a [Line],
}

impl Origin for LinesOf<'_> {
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

impl Decoder for JsonDecoder {
    fn start(&mut self) -> Result<bool, ConnectorError> {
        Ok(true)
    }

    fn decode(&mut self, rows_max: usize) -> Result<Decoded, ConnectorError> {
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

/// Decodes exactly `rows` objects.
fn decode_all(schema: &SchemaRef, bytes: &[u8], rows: usize) -> Result<RecordBatch, ArrowError> {
    let one_a_line = || ArrowError::JsonError("expected one object a line".into());
    let mut decoder =
        json::ReaderBuilder::new(Arc::clone(schema)).with_batch_size(rows + 1).build_decoder()?;
    if decoder.decode(bytes)? != bytes.len() {
        return Err(one_a_line());
    }
    match decoder.flush()? {
        Some(batch) if batch.num_rows() == rows => Ok(batch),
        _ => Err(one_a_line()),
    }
}

/// Columns that the first lines suggest; text that is nothing but points in time is a TIMESTAMP.
pub(crate) fn infer(input: Input) -> Result<Schema, ConnectorError> {
    let mut lines = Lines::new(input);
    lines.read(SAMPLE_ROWS)?;
    let place = lines.input.name().to_owned();
    let values = json::reader::ValueIter::new(lines.text(&lines.found), None);
    let schema = json::reader::infer_json_schema_from_iterator(values.filter(Result::is_ok));
    let schema = schema.map_err(|error| ConnectorError::Io {
        place: place.clone(),
        message: error.to_string(),
        hint: Some("declare the columns of the table".into()),
    })?;
    let decoder = JsonDecoder::with(lines, Refuser::ignoring(Arc::new(schema)));
    let Some(sample) = decoder.rows()? else {
        return Err(ConnectorError::Io {
            place,
            message: "no line is a JSON object".into(),
            hint: Some("JSON is read one object a line".into()),
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
