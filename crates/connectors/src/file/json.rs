//! Newline JSON, read: one object a line.
//!
//! A batch of lines is decoded as a whole. Where that fails, the batch is cut in halves until the
//! bad lines stand alone: good lines cost nothing extra, and a bad one costs about two decodings of
//! its batch. Keys are matched as written; a key that is missing is NULL, one that is not declared
//! is passed over.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::source::{Flow, Next};

use super::infer::{SAMPLE_ROWS, narrowest};
use super::input::{BATCH_BYTES_MAX, Input};
use super::paths::io_error;
use super::rows::{Refused, Refuser, convert, first_reasons, without};

/// Bytes of a line at most.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// A file that is being read.
pub(super) struct JsonFlow {
    input: Input,
    /// The lines of the batch that hold something: number, begin and end.
    lines: Vec<Line>,
    /// The number of the line to be read next.
    line: u64,
    /// Whether the last line has been read.
    ended: bool,
    /// The declared columns, each of which may be null while a line is looked at.
    loose: SchemaRef,
    refuser: Refuser,
}

#[derive(Debug, Clone, Copy)]
struct Line {
    number: u64,
    from: usize,
    to: usize,
}

impl JsonFlow {
    pub(super) fn open(path: &Path, refuser: Refuser) -> Result<Self, ConnectorError> {
        let fields: Vec<Field> = refuser
            .target
            .declared
            .fields()
            .iter()
            .map(|field| field.as_ref().clone().with_nullable(true))
            .collect();
        let loose = Arc::new(Schema::new(fields));
        Ok(Self {
            input: Input::open(path)?,
            lines: Vec::new(),
            line: 1,
            ended: false,
            loose,
            refuser,
        })
    }

    /// Finds the next lines.
    fn read_lines(&mut self, rows_max: usize) -> Result<(), ConnectorError> {
        self.input.begin_batch();
        self.lines.clear();
        // Bytes ahead that are known to hold no line end.
        let mut searched = 0;
        while self.lines.len() < rows_max && self.input.position() < BATCH_BYTES_MAX {
            let ahead = self.input.ahead();
            let end = ahead[searched..].iter().position(|byte| *byte == b'\n');
            let (length, passed) = match end {
                Some(end) => (searched + end, searched + end + 1),
                None if self.input.is_whole() => (ahead.len(), ahead.len()),
                None => {
                    searched = ahead.len();
                    if searched > LINE_BYTES_MAX {
                        return Err(ConnectorError::Io {
                            place: self.place(self.line),
                            message: format!("no line ends within {LINE_BYTES_MAX} bytes"),
                            hint: Some("JSON is read one object a line".into()),
                        });
                    }
                    self.input.fill()?;
                    continue;
                }
            };
            if passed == 0 {
                self.ended = true;
                return Ok(());
            }
            searched = 0;
            let blank = ahead[..length].trim_ascii().is_empty();
            let from = self.input.position();
            self.input.pass(passed);
            if !blank {
                self.lines.push(Line { number: self.line, from, to: from + length });
            }
            self.line += 1;
        }
        Ok(())
    }

    /// Decodes lines that follow one another; refuses those that are no row, one by one.
    fn decode(&self, lines: &[Line], into: &mut Vec<RecordBatch>) -> Result<(), ConnectorError> {
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return Ok(()) };
        match decode_all(&self.loose, self.input.bytes(first.from, last.to), lines.len()) {
            Ok(batch) => self.check(batch, lines, into),
            Err(error) if lines.len() == 1 => {
                let text = self.input.bytes(first.from, first.to).trim_ascii();
                self.refuser.refuse(self.place(first.number), self.reason(text, error), text)
            }
            Err(_) => {
                let (left, right) = lines.split_at(lines.len() / 2);
                self.decode(left, into)?;
                self.decode(right, into)
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
        let target = &self.refuser.target;
        let mut refused: Vec<Refused> = Vec::new();
        let columns = target.declared.fields().iter().zip(batch.columns());
        let columns: Result<Vec<ArrayRef>, ArrowError> =
            columns.map(|(field, column)| convert(column, field, &mut refused)).collect();
        let columns = columns.map_err(|error| self.unfit(error))?;
        let refused = first_reasons(refused);
        for refused in &refused {
            let line = lines[refused.row];
            let text = self.input.bytes(line.from, line.to).trim_ascii();
            self.refuser.refuse(self.place(line.number), refused.reason.clone(), text)?;
        }
        let chosen = target.projection.iter().map(|index| Arc::clone(&columns[*index])).collect();
        let batch = without(&target.projected, chosen, batch.num_rows(), &refused)
            .map_err(|error| self.unfit(error))?;
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
        format!("{}:{line}", self.input.path.display())
    }

    fn unfit(&self, error: ArrowError) -> ConnectorError {
        let place = self.input.path.display().to_string();
        ConnectorError::Io { place, message: error.to_string(), hint: None }
    }
}

impl Flow for JsonFlow {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            self.read_lines(rows_max)?;
            if self.lines.is_empty() && self.ended {
                return Ok(Next::End);
            }
            let mut batches = Vec::new();
            self.decode(&self.lines, &mut batches)?;
            match batches.len() {
                0 => {}
                1 => return Ok(Next::Batch(batches.remove(0))),
                _ => {
                    let schema = &self.refuser.target.projected;
                    let batch = concat_batches(schema, &batches);
                    return Ok(Next::Batch(batch.map_err(|error| self.unfit(error))?));
                }
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
pub(super) fn infer(path: &Path) -> Result<Schema, ConnectorError> {
    let unfit = |error: ArrowError| ConnectorError::Io {
        place: path.display().to_string(),
        message: error.to_string(),
        hint: Some("declare the columns of the table".into()),
    };
    let file = std::fs::File::open(path).map_err(|error| io_error(path, &error))?;
    let values = json::reader::ValueIter::new(BufReader::new(file), Some(SAMPLE_ROWS));
    let schema = json::reader::infer_json_schema_from_iterator(values.filter(Result::is_ok));
    let schema = Arc::new(schema.map_err(unfit)?);
    let mut flow = JsonFlow::open(path, Refuser::ignoring(Arc::clone(&schema)))?;
    let Next::Batch(sample) = flow.next(SAMPLE_ROWS)? else {
        return Err(ConnectorError::Io {
            place: path.display().to_string(),
            message: "no line is a JSON object".into(),
            hint: Some("JSON is read one object a line".into()),
        });
    };
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
