//! Messages of a log, such as Kafka, as rows: a message is one record of the table's format.
//!
//! ```text
//! push: plain ones ─▶ lines, one a message ─▶ decoder ─▶ rows ┐
//!       others     ─▶ decoded each by itself ────────────────┴─▶ rows, and the message of each
//! ```
//!
//! Messages that are one line each are decoded together, by the decoder that reads files: a row is
//! led back to its message by the number of its line. A message in which a line end or a quote may
//! stand where it is none is looked at alone, so that no message takes another one with it.
//!
//! Those of Avro and Protobuf are no lines, and have a way of their own (`typed`); so have values
//! that are read as they are (`raw`).

use std::collections::VecDeque;
use std::io::{Cursor, ErrorKind, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use arrow::array::AsArray;
use arrow::array::UInt32Array;
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::bad::{BadRow, BadRows};
use dataflow::connector::{OptionSpec, TableDef};
use dataflow::error::ConnectorError;

use crate::format::typed::shown_bytes;
use crate::format::{ByteInput, CSV_OPTIONS, Decoded, Format, ON_BAD, RecordDecoder, Refuser};
use crate::format::{TargetColumns, rows};
use crate::options::{OptionReader, refuse};
use crate::remote::line_format;

mod encoder;
mod raw;
mod typed;

pub use encoder::MessageEncoder;
use raw::{RawMessages, value_column};
pub use typed::TYPED_OPTIONS;
use typed::{AVRO_CONFLUENT, PROTOBUF_CONFLUENT, TypedFormat, TypedMessages};

/// Options of the formats of messages, of which 'csv.header' is none: a message has no header.
pub const MESSAGE_OPTIONS: [OptionSpec; 5] = {
    let [_, delimiter, quote, comment, null] = CSV_OPTIONS;
    [ON_BAD, delimiter, quote, comment, null]
};

/// The name of the hidden column that has the line of a row.
const LINE: &str = "\u{0}line";

/// The name of the input in what the decoder reports, which nobody sees.
const INPUT: &str = "message";

/// The rows of a decoder at most, a batch.
const ROWS_MAX: usize = 1 << 16;

/// How the messages of a table are read.
#[derive(Debug, Clone)]
pub struct MessageFormat {
    format: MessageKind,
    /// The columns of the values, and the line of each row behind them.
    target: Arc<TargetColumns>,
    table: String,
    strict: bool,
}

/// How the values of messages are told apart.
#[derive(Debug, Clone)]
enum MessageKind {
    /// They are records of a text.
    Lines(Format),
    /// Each is the value of this column.
    Raw(FieldRef),
    Typed(TypedFormat),
}

impl MessageFormat {
    /// For the columns of `projection`, in that order. The table has no metadata: its columns are
    /// those of the messages.
    ///
    /// # Errors
    /// When the options or the columns do not fit.
    pub fn new(table: &TableDef, projection: &[usize]) -> Result<Self, ConnectorError> {
        let format = match TypedFormat::new(table)? {
            Some(format) => MessageKind::Typed(format),
            None => match line_format(&table.options, false)? {
                Format::Raw => MessageKind::Raw(value_column(&table.schema)?),
                format => MessageKind::Lines(format),
            },
        };
        let mut numbered = table.clone();
        let line = Field::new(LINE, DataType::Int64, true);
        let fields = table.schema.fields().iter().cloned().chain([Arc::new(line)]);
        numbered.schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let last = table.schema.fields().len();
        numbered.metadata = [(last, "record".to_owned())].into();
        // The decoder tells of all bad rows: what becomes of them is decided here.
        numbered.options.remove(ON_BAD.key);
        let columns: Vec<usize> = projection.iter().copied().chain([last]).collect();
        let target = TargetColumns::new(&numbered, &columns)?;
        let target = match &format {
            MessageKind::Lines(format) => {
                format.check(&target.declared)?;
                Arc::new(target)
            }
            MessageKind::Raw(_) => Arc::new(target),
            MessageKind::Typed(format) => format.check(target)?,
        };
        let on_bad = OptionReader(&table.options);
        let on_bad = on_bad.choice(ON_BAD.key, &["skip", "fail", "table"])?;
        let table = table.name.clone();
        Ok(Self { format, target, table, strict: on_bad == Some(1) })
    }

    /// The columns of the rows.
    pub fn schema(&self) -> SchemaRef {
        let fields = self.target.projected.fields();
        Arc::new(Schema::new(fields[..fields.len() - 1].to_vec()))
    }

    /// A decoder of messages in their order. Bad ones go to `bad`.
    pub fn decoder(&self, bad: &Arc<BadRows>) -> MessageDecoder {
        let (refused, origins) = (Arc::new(BadRows::collecting()), Arc::default());
        let refuser = Refuser { target: Arc::clone(&self.target), bad: refused, origins };
        let decoding = match &self.format {
            MessageKind::Lines(format) => Decoding::Lines(MessageLines::new(format, &refuser)),
            MessageKind::Raw(column) => {
                Decoding::Raw(RawMessages::new(Arc::clone(column), refuser.clone()))
            }
            MessageKind::Typed(format) => {
                Decoding::Typed(Box::new(TypedMessages::new(format.clone(), refuser.clone())))
            }
        };
        MessageDecoder {
            decoding,
            format: self.clone(),
            schema: self.schema(),
            refuser,
            bad: Arc::clone(bad),
            pushed: 0,
            batches: vec![],
            messages: vec![],
            faults: vec![],
        }
    }
}

/// The decoder of messages that are records of a text.
struct MessageLines {
    format: Format,
    input: PushedBytes,
    /// Lines that the decoder was given.
    pushed: u64,
    lines: Box<dyn RecordDecoder>,
    /// The messages of the lines that were pushed and not decoded.
    waiting: Vec<u32>,
}

impl MessageLines {
    fn new(format: &Format, refuser: &Refuser) -> Self {
        let pushed = PushedBytes::default();
        // The first line is empty: what marks an encoding at the beginning of a file marks
        // nothing in a message.
        pushed.push(b"\n");
        let input = ByteInput::new(Box::new(pushed.clone()), INPUT);
        let lines = format.decoder(input, refuser.clone());
        Self { format: format.clone(), input: pushed, pushed: 1, lines, waiting: vec![] }
    }

    fn push(&mut self, message: u32, line: &[u8]) {
        self.input.push(line);
        self.input.push(b"\n");
        self.waiting.push(message);
    }
}

enum Decoding {
    Lines(MessageLines),
    Raw(RawMessages),
    Typed(Box<TypedMessages>),
}

/// Rows, and where they are from.
#[derive(Debug)]
pub struct MessageRows {
    /// The rows, in the order of their messages.
    pub rows: RecordBatch,
    /// The message of each row, counted from 0 in the order in which they were pushed.
    pub messages: Vec<u32>,
}

/// Messages becoming rows.
pub struct MessageDecoder {
    format: MessageFormat,
    schema: SchemaRef,
    decoding: Decoding,
    refuser: Refuser,
    bad: Arc<BadRows>,
    /// Messages of this batch.
    pushed: u32,
    batches: Vec<RecordBatch>,
    messages: Vec<u32>,
    /// Messages that are no rows, why, and their texts.
    faults: Vec<(u32, String, Vec<u8>)>,
}

impl std::fmt::Debug for MessageDecoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MessageDecoder({} messages)", self.pushed)
    }
}

impl MessageDecoder {
    /// Takes the next message; `None` is one without a value.
    ///
    /// # Errors
    /// When the decoder cannot go on.
    pub fn push(&mut self, value: Option<&[u8]>) -> Result<(), ConnectorError> {
        let message = self.pushed;
        self.pushed += 1;
        if let Decoding::Raw(raw) = &mut self.decoding {
            if let Err(reason) = raw.push(message, value) {
                let shown = value.map(shown_bytes).unwrap_or_default();
                self.refuse(message, reason, &shown);
            }
            return Ok(());
        }
        let Some(value) = value else {
            self.refuse(message, "the message has no value", b"");
            return Ok(());
        };
        let lines = match &mut self.decoding {
            Decoding::Typed(typed) => {
                if let Some(reason) = typed.push(message, value)? {
                    self.refuse(message, reason, &shown_bytes(value));
                }
                return Ok(());
            }
            Decoding::Raw(_) => return Ok(()),
            Decoding::Lines(lines) => lines,
        };
        if value.trim_ascii().is_empty() {
            self.refuse(message, "the message is empty", b"");
            return Ok(());
        }
        match line_of(&lines.format, value) {
            Line::Plain => lines.push(message, value),
            Line::Flat(flat) => lines.push(message, &flat),
            Line::Alone => {
                self.decode_lines()?;
                self.decode_alone(message, value)?;
            }
            Line::Bad(reason) => self.refuse(message, reason, value),
        }
        Ok(())
    }

    /// Calls `waker` when messages that [wait](Self::is_waiting) may wait no longer.
    pub fn wakes(&mut self, waker: &Waker) {
        if let Decoding::Typed(typed) = &mut self.decoding {
            typed.wakes(waker);
        }
    }

    /// Whether there are messages that wait for a schema of a registry. Their [rows](Self::rows)
    /// are there when they do not; who asks for them before waits.
    ///
    /// # Errors
    /// When the registry could not be reached for too long, or refuses to answer.
    pub fn is_waiting(&mut self) -> Result<bool, ConnectorError> {
        let Decoding::Typed(typed) = &mut self.decoding else { return Ok(false) };
        let refused = typed.retry()?;
        let waits = typed.is_waiting();
        self.refuse_all(refused);
        Ok(waits)
    }

    fn refuse_all(&mut self, refused: Vec<typed::RefusedMessage>) {
        for typed::RefusedMessage { message, reason, value } in refused {
            self.refuse(message, reason, &shown_bytes(&value));
        }
    }

    /// Refuses a message that was pushed last, for a reason outside of its value.
    pub fn refuse_last(&mut self, reason: &str) {
        if let Some(message) = self.pushed.checked_sub(1) {
            self.refuse(message, reason, b"");
        }
    }

    /// The rows of the messages that were pushed since the last call. `place` names a message.
    ///
    /// # Errors
    /// When the decoder cannot go on, or a message is bad and the table says that this is an error.
    pub fn rows(&mut self, place: &dyn Fn(u32) -> String) -> Result<MessageRows, ConnectorError> {
        self.decode_lines()?;
        self.decode_others()?;
        self.pushed = 0;
        let mut faults = std::mem::take(&mut self.faults);
        faults.sort_by_key(|(message, ..)| *message);
        faults.dedup_by_key(|(message, ..)| *message);
        let mut messages = std::mem::take(&mut self.messages);
        let batches = std::mem::take(&mut self.batches);
        let mut rows = concat_batches(&self.schema, &batches)
            .map_err(|error| rows::unfit(&self.format.table, &error))?;
        // Those of one schema come together.
        if !messages.is_sorted() {
            let mut order: Vec<u32> = (0..).take(messages.len()).collect();
            order.sort_by_key(|row| messages[*row as usize]);
            messages = order.iter().map(|row| messages[*row as usize]).collect();
            rows = take_record_batch(&rows, &UInt32Array::from(order))
                .map_err(|error| rows::unfit(&self.format.table, &error))?;
        }
        // A row of a message that was refused for another reason is none.
        let is_bad = |message: &u32| faults.binary_search_by_key(message, |fault| fault.0).is_ok();
        if messages.iter().any(is_bad) {
            let kept: Vec<bool> = messages.iter().map(|message| !is_bad(message)).collect();
            rows = arrow::compute::filter_record_batch(&rows, &kept.into())
                .map_err(|error| rows::unfit(&self.format.table, &error))?;
            messages.retain(|message| !is_bad(message));
        }
        for (message, reason, text) in faults {
            self.report(place(message), reason, &text)?;
        }
        Ok(MessageRows { rows, messages })
    }

    fn report(&self, place: String, reason: String, text: &[u8]) -> Result<(), ConnectorError> {
        if self.format.strict {
            let hint = "with 'on_bad' = 'skip' such messages are counted and skipped";
            return Err(ConnectorError::Io { place, message: reason, hint: Some(hint.into()) });
        }
        let text = String::from_utf8_lossy(text).into_owned();
        self.bad.add(BadRow { table: self.format.table.clone(), place, reason, text });
        Ok(())
    }

    fn refuse(&mut self, message: u32, reason: impl Into<String>, text: &[u8]) {
        self.faults.push((message, reason.into(), text.to_vec()));
    }

    /// Decodes the lines that wait.
    fn decode_lines(&mut self) -> Result<(), ConnectorError> {
        let Decoding::Lines(lines) = &mut self.decoding else { return Ok(()) };
        if lines.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut lines.waiting);
        let first = lines.pushed + 1;
        lines.pushed += waiting.len() as u64;
        let mut batches = vec![];
        while let Decoded::Batch(batch) = lines.lines.decode(ROWS_MAX)? {
            batches.push(batch);
        }
        self.take_all(batches, |line| waiting.get(line.checked_sub(first)? as usize).copied())
    }

    /// Takes the rows of messages that are no lines; waits for the schemas that they need.
    fn decode_others(&mut self) -> Result<(), ConnectorError> {
        let batches = match &mut self.decoding {
            Decoding::Lines(_) => return Ok(()),
            Decoding::Raw(raw) => raw.finish()?,
            Decoding::Typed(typed) => {
                let refused = typed.wait()?;
                let batches = typed.finish()?;
                self.refuse_all(refused);
                batches
            }
        };
        self.take_all(batches, |number| u32::try_from(number.checked_sub(1)?).ok())
    }

    /// Takes rows, and the bad ones that the decoder told of.
    fn take_all(
        &mut self,
        batches: Vec<RecordBatch>,
        message_of: impl Fn(u64) -> Option<u32>,
    ) -> Result<(), ConnectorError> {
        batches.into_iter().try_for_each(|batch| self.take(batch, &message_of))?;
        for BadRow { place, reason, text, .. } in self.refuser.bad.take() {
            let line = place.rsplit_once(':').and_then(|(_, line)| line.parse::<u64>().ok());
            let message = line.and_then(&message_of).ok_or_else(|| self.lost(&place))?;
            self.refuse(message, reason, text.as_bytes());
        }
        Ok(())
    }

    /// Takes rows; `message_of` gives the message of a line.
    fn take(
        &mut self,
        batch: RecordBatch,
        message_of: impl Fn(u64) -> Option<u32>,
    ) -> Result<(), ConnectorError> {
        let columns = batch.num_columns() - 1;
        let lines = batch.column(columns).as_primitive::<Int64Type>().values().clone();
        for line in &lines {
            let message = message_of(line.cast_unsigned());
            self.messages.push(message.ok_or_else(|| self.lost(&line.to_string()))?);
        }
        let kept: Vec<usize> = (0..columns).collect();
        let batch = batch.project(&kept).map_err(|error| rows::unfit(INPUT, &error))?;
        self.batches.push(batch);
        Ok(())
    }

    /// Decodes a message of which nobody knows how many lines it has.
    fn decode_alone(&mut self, message: u32, value: &[u8]) -> Result<(), ConnectorError> {
        let bytes = [b"\n", value, b"\n"].concat();
        let input = ByteInput::new(Box::new(Cursor::new(bytes)), INPUT);
        let Decoding::Lines(lines) = &self.decoding else { return Ok(()) };
        let mut decoder = lines.format.decoder(input, self.refuser.clone());
        let mut batches = vec![];
        while let Decoded::Batch(batch) = decoder.decode(ROWS_MAX)? {
            batches.push(batch);
        }
        let mut bad = self.refuser.bad.take();
        let good: usize = batches.iter().map(RecordBatch::num_rows).sum();
        match (good, bad.len()) {
            (1, 0) => {
                batches.into_iter().try_for_each(|batch| self.take(batch, |_| Some(message)))?;
            }
            (0, 1) => {
                let reason = bad.pop().map(|bad| bad.reason).unwrap_or_default();
                self.refuse(message, reason, value);
            }
            (good, bad) => {
                let reason = format!("the message has {} records, and not one", good + bad);
                self.refuse(message, reason, value);
            }
        }
        Ok(())
    }

    /// The decoder tells of a line that it was not given.
    fn lost(&self, line: &str) -> ConnectorError {
        rows::unfit(&self.format.table, &format!("the decoder tells of line {line}, which is none"))
    }
}

/// How a message is given to a decoder of lines.
enum Line {
    /// As it is.
    Plain,
    /// As this line.
    Flat(Vec<u8>),
    /// To a decoder of its own.
    Alone,
    /// Not at all.
    Bad(&'static str),
}

fn line_of(format: &Format, value: &[u8]) -> Line {
    let has_ends = memchr::memchr2(b'\n', b'\r', value).is_some();
    match format {
        Format::Json if !has_ends => Line::Plain,
        Format::Json => flat_json(value),
        Format::Csv(dialect) => {
            let style = dialect.style();
            let begins = value.trim_ascii_start().first();
            let is_plain = !has_ends
                && memchr::memchr(style.quote, value).is_none()
                && begins.is_some_and(u8::is_ascii_alphanumeric);
            if is_plain { Line::Plain } else { Line::Alone }
        }
        Format::Arrow | Format::Avro | Format::Fixed(_) | Format::Protobuf(_) | Format::Raw => {
            Line::Alone
        }
    }
}

/// JSON on one line: between its tokens a line end is a space like any other.
fn flat_json(value: &[u8]) -> Line {
    let mut flat = value.to_vec();
    let (mut in_string, mut escaped) = (false, false);
    for byte in &mut flat {
        match *byte {
            b'\n' | b'\r' if in_string => return Line::Bad("a string has a line end in it"),
            b'\n' | b'\r' => *byte = b' ',
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ => {}
        }
    }
    Line::Flat(flat)
}

/// Bytes that are pushed at one end, and read at the other.
#[derive(Debug, Clone, Default)]
struct PushedBytes(Arc<Mutex<VecDeque<u8>>>);

impl PushedBytes {
    fn push(&self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
    }
}

impl Read for PushedBytes {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes.is_empty() && !into.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        bytes.read(into)
    }
}

/// The formats that messages have.
pub const MESSAGE_FORMATS: [&str; 7] =
    ["csv", "json", "raw", "avro", AVRO_CONFLUENT, "protobuf", PROTOBUF_CONFLUENT];

/// Refuses a table of messages that does not say its format, or names another than they have.
///
/// # Errors
/// When that is so.
pub fn require_format(options: OptionReader<'_>) -> Result<(), ConnectorError> {
    let name = options.required("format", "write 'format' = 'json'")?;
    if name.eq_ignore_ascii_case("debezium-json") {
        let message = "a change of Debezium is read as a row that says what has changed";
        let hint = "write 'format' = 'json', and columns `op`, `before` and `after`: \
                    docs/connectors.md";
        return Err(refuse("format", message, Some(hint.into())));
    }
    options.choice("format", &MESSAGE_FORMATS).map(|_| ())
}

#[cfg(test)]
mod tests;
