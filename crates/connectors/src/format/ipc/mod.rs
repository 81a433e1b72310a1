//! Arrow IPC, read in order: the stream form, and the file form without its footer.
//!
//! ```text
//! [ARROW1··] (FFFFFFFF length metadata body)* FFFFFFFF 0 [footer length ARROW1]
//! ```
//!
//! The library decodes a body by lengths that the metadata states. Here they are checked against
//! the bytes that are there before it may believe them: a damaged length must not become an
//! allocation. What has no end mark was cut off, perhaps between two messages: it is refused, since
//! nobody could tell what is missing.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use arrow::datatypes::{Field, Schema, SchemaRef};
use arrow::ipc;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::position::refused;

use super::input::{ByteInput, Filled};
use super::rows::Refuser;
use super::typed::{Mapping, guarded, plain};
use super::{Decoded, RecordDecoder, RecordStart};

mod parts;

/// Bytes of the metadata of a message at most.
const METADATA_BYTES_MAX: usize = 16 << 20;

/// Bytes of a message's body at most, where it is read in order.
pub const BODY_BYTES_MAX: u64 = 256 << 20;

/// Rows of a record batch at most.
const ROWS_MAX: i64 = 1 << 31;

/// The mark at both ends of the file form.
pub(crate) const MAGIC: &[u8] = b"ARROW1";

/// Bytes of the magic and its padding.
const HEAD_BYTES: usize = 8;

/// The frame at the beginning of some bytes.
pub(crate) enum IpcFrame {
    Message {
        metadata: Range<usize>,
        body: Range<usize>,
    },
    /// The end mark, with its length in bytes.
    End(usize),
    /// More bytes are needed.
    Cut,
}

/// The message at the beginning of `bytes`, with a body of at most `body_max`.
pub(crate) fn frame(bytes: &[u8], body_max: u64) -> Result<IpcFrame, String> {
    let word = |at: usize| Some(i32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    // Before version 0.15 there was no word of ones in front.
    let (head, length) = match word(0) {
        Some(-1) => (8, word(4)),
        length => (4, length),
    };
    let Some(length) = length else { return Ok(IpcFrame::Cut) };
    if length == 0 {
        return Ok(IpcFrame::End(head));
    }
    let Some(length) = usize::try_from(length).ok().filter(|bytes| *bytes <= METADATA_BYTES_MAX)
    else {
        return Err(format!("a message states {length} bytes of metadata"));
    };
    let metadata = head..head + length;
    let Some(text) = bytes.get(metadata.clone()) else { return Ok(IpcFrame::Cut) };
    let stated = message(text)?.bodyLength();
    let body = u64::try_from(stated).ok().filter(|bytes| *bytes <= body_max);
    let Some(body) = body else { return Err(format!("a message states a body of {stated} bytes")) };
    let body = metadata.end..metadata.end.saturating_add(body as usize);
    if body.end > bytes.len() {
        Ok(IpcFrame::Cut)
    } else {
        Ok(IpcFrame::Message { metadata, body })
    }
}

fn message(metadata: &[u8]) -> Result<ipc::Message<'_>, String> {
    if metadata.len() > METADATA_BYTES_MAX {
        return Err(format!("a message has {} bytes of metadata", metadata.len()));
    }
    ipc::root_as_message(metadata).map_err(|error| format!("unreadable metadata: {error}"))
}

/// The rows that a message has, by its metadata.
pub(crate) fn rows_of(metadata: &[u8]) -> Result<u64, String> {
    let batch = message(metadata)?.header_as_record_batch().ok_or("not a record batch")?;
    u64::try_from(batch.length()).map_err(|_| "a batch of less than no rows".to_owned())
}

/// A schema as the library reads it.
pub(crate) fn schema_of(schema: ipc::Schema<'_>) -> Result<SchemaRef, String> {
    if schema.endianness() != ipc::Endianness::Little {
        return Err("its numbers are big-endian".into());
    }
    guarded(|| Ok::<_, String>(Arc::new(ipc::convert::fb_to_schema(schema))))
}

/// The schema of a message that has nothing but its metadata.
pub(crate) fn schema_in(metadata: &[u8]) -> Result<SchemaRef, String> {
    schema_of(message(metadata)?.header_as_schema().ok_or("it does not begin with a schema")?)
}

/// The schema of a message as it stands in a stream.
pub(crate) fn framed_schema(bytes: &[u8]) -> Result<SchemaRef, String> {
    match frame(bytes, 0)? {
        IpcFrame::Message { metadata, .. } => schema_in(&bytes[metadata]),
        IpcFrame::End(_) | IpcFrame::Cut => Err("its schema is cut off".into()),
    }
}

/// The schema and dictionaries of earlier messages.
#[derive(Clone)]
pub(crate) struct IpcContext {
    pub(crate) schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
}

impl IpcContext {
    pub(crate) fn new(schema: SchemaRef) -> Self {
        Self { schema, dictionaries: HashMap::new() }
    }

    /// Takes a message; a record batch is given back with the columns of `projection`.
    pub(crate) fn accept(
        &mut self,
        metadata: &[u8],
        body: &[u8],
        projection: &[usize],
    ) -> Result<Option<RecordBatch>, String> {
        let message = message(metadata)?;
        let version = message.version();
        if let Some(batch) = message.header_as_record_batch() {
            check(batch, body)?;
            let fields: Vec<&Field> = self.schema.fields().iter().map(AsRef::as_ref).collect();
            parts::check_rows(batch, &fields, version)?;
            let wanted = |column| projection.contains(&column);
            return match parts::unpack(batch, &fields, wanted, version, body, None)? {
                None => self.batch(batch, version, &Buffer::from(body), projection),
                Some(plain) => {
                    let message = self::message(&plain.metadata)?;
                    let batch = message.header_as_record_batch().ok_or("not a record batch")?;
                    self.batch(batch, version, &plain.body, projection)
                }
            }
            .map(Some);
        }
        if let Some(dictionary) = message.header_as_dictionary_batch() {
            let values = dictionary.data().ok_or("a dictionary without values")?;
            check(values, body)?;
            // Only the library knows its layout: all of it is unpacked.
            let as_is = Some((dictionary.id(), dictionary.isDelta()));
            match parts::unpack(values, &[], |_| true, version, body, as_is)? {
                None => self.dictionary(dictionary, version, &Buffer::from(body))?,
                Some(plain) => {
                    let message = self::message(&plain.metadata)?;
                    let dictionary = message.header_as_dictionary_batch();
                    let dictionary = dictionary.ok_or("not a dictionary")?;
                    self.dictionary(dictionary, version, &plain.body)?;
                }
            }
            return Ok(None);
        }
        Err(format!("a message of kind {:?} where rows are due", message.header_type()))
    }

    fn batch(
        &self,
        batch: ipc::RecordBatch<'_>,
        version: ipc::MetadataVersion,
        body: &Buffer,
        projection: &[usize],
    ) -> Result<RecordBatch, String> {
        let (schema, known) = (Arc::clone(&self.schema), &self.dictionaries);
        guarded(|| {
            let projection = Some(projection);
            ipc::reader::read_record_batch(body, batch, schema, known, projection, &version)
        })
    }

    fn dictionary(
        &mut self,
        dictionary: ipc::DictionaryBatch<'_>,
        version: ipc::MetadataVersion,
        body: &Buffer,
    ) -> Result<(), String> {
        let (schema, known) = (&self.schema, &mut self.dictionaries);
        guarded(|| ipc::reader::read_dictionary(body, dictionary, schema, known, &version))
    }
}

/// Refuses lengths that the body does not have.
fn check(batch: ipc::RecordBatch<'_>, body: &[u8]) -> Result<(), String> {
    let length = batch.length();
    let fits = |rows: i64| (0..=ROWS_MAX).contains(&rows);
    let nodes = batch.nodes().into_iter().flatten();
    if !fits(length) || !nodes.clone().all(|node| fits(node.length())) {
        return Err(format!("a batch states {length} rows"));
    }
    if !nodes.clone().all(|node| (0..=node.length()).contains(&node.null_count())) {
        return Err("a column states more nulls than rows".into());
    }
    let buffers = batch.buffers().into_iter().flatten();
    let lies_within = |buffer: &ipc::Buffer| {
        let end = buffer.offset().checked_add(buffer.length());
        let end = end.filter(|_| buffer.offset() >= 0 && buffer.length() >= 0);
        end.is_some_and(|end| end as u64 <= body.len() as u64)
    };
    if !buffers.clone().all(lies_within) {
        return Err("a column lies outside of its message".into());
    }
    let most = buffers.count() as i64;
    let parts = batch.variadicBufferCounts().into_iter().flatten();
    match parts.into_iter().find(|parts| !(0..=most).contains(parts)) {
        Some(parts) => Err(format!("a column states {parts} parts")),
        None => Ok(()),
    }
}

/// The meaning of the next bytes.
enum Step {
    Schema(SchemaRef),
    Batch(RecordBatch),
    Dictionary,
    Later,
    End,
}

/// Messages, one after the other.
struct Messages {
    input: ByteInput,
    /// Whether the first bytes have been looked at, and whether they begin a file.
    is_file: Option<bool>,
    context: Option<IpcContext>,
    ended: bool,
    /// The number of the row to be read next.
    row: u64,
}

impl Messages {
    fn new(input: ByteInput) -> Self {
        Self { input, is_file: None, context: None, ended: false, row: 1 }
    }

    /// Reads the next message; of a record batch only the columns of `projection`.
    fn step(&mut self, projection: &[usize]) -> Result<Step, ConnectorError> {
        if self.ended {
            return Ok(Step::End);
        }
        loop {
            let ahead = self.input.ahead();
            let at_end = self.input.is_whole();
            let frame = match self.is_file {
                None if ahead.len() < HEAD_BYTES && !at_end => IpcFrame::Cut,
                None => {
                    self.is_file = Some(ahead.starts_with(MAGIC) && ahead.len() >= HEAD_BYTES);
                    self.input.pass(if self.is_file == Some(true) { HEAD_BYTES } else { 0 });
                    continue;
                }
                Some(_) => frame(ahead, BODY_BYTES_MAX).map_err(|error| self.damaged(&error))?,
            };
            match frame {
                IpcFrame::Cut => match self.input.fill(self.row)? {
                    Filled::More => {}
                    Filled::Later => return Ok(Step::Later),
                    Filled::End if self.is_file.is_none() => {}
                    Filled::End => return Err(self.damaged("its end mark is missing: truncated?")),
                },
                IpcFrame::End(bytes) => {
                    self.input.pass(bytes);
                    return self.end();
                }
                IpcFrame::Message { metadata, body } => {
                    return self.take(metadata, body, projection);
                }
            }
        }
    }

    /// Behind the end mark: a file has its footer there, and a stream nothing.
    fn end(&mut self) -> Result<Step, ConnectorError> {
        if self.context.is_none() {
            return Err(self.damaged("it ends before its schema"));
        }
        let nothing = self.input.ahead().is_empty() && self.input.fill(self.row)? != Filled::More;
        if self.is_file == Some(false) && !nothing {
            return Err(self.damaged("there are bytes behind its end mark"));
        }
        self.ended = true;
        Ok(Step::End)
    }

    fn take(
        &mut self,
        metadata: Range<usize>,
        body: Range<usize>,
        projection: &[usize],
    ) -> Result<Step, ConnectorError> {
        let ahead = self.input.ahead();
        let end = body.end;
        let (metadata, body) = (&ahead[metadata], &ahead[body]);
        let step = match &mut self.context {
            Some(context) => context.accept(metadata, body, projection).map(|batch| match batch {
                Some(batch) => Step::Batch(batch),
                None => Step::Dictionary,
            }),
            None => schema_in(metadata).map(Step::Schema),
        };
        let step = step.map_err(|error| self.damaged(&error))?;
        if let Step::Schema(schema) = &step {
            self.context = Some(IpcContext::new(Arc::clone(schema)));
        }
        self.input.pass(end);
        self.input.begin_batch(self.input.position());
        Ok(step)
    }

    fn damaged(&self, message: &str) -> ConnectorError {
        damaged(format!("{}:{}", self.input.name(), self.row), message)
    }
}

/// An error about bytes that are no Arrow data, or not all of it.
pub(crate) fn damaged(place: String, message: &str) -> ConnectorError {
    ConnectorError::Io {
        place,
        message: format!("not whole Arrow data: {message}"),
        hint: Some("it may be truncated or of another format: check 'format'".into()),
    }
}

/// Arrow data that is being read.
pub(crate) struct IpcDecoder {
    messages: Messages,
    mapping: Option<Mapping>,
    /// Rows that did not fit into the last batch asked for, as the data has it.
    rest: Option<RecordBatch>,
    /// Rows before this one, counted from 1, are passed over.
    from: u64,
    refuser: Refuser,
}

impl IpcDecoder {
    pub(crate) fn new(input: ByteInput, refuser: Refuser) -> Self {
        Self { messages: Messages::new(input), mapping: None, rest: None, from: 1, refuser }
    }
}

impl RecordDecoder for IpcDecoder {
    /// Dictionaries come along the way, so that the data are read from their beginning always.
    fn place(&self) -> RecordStart {
        RecordStart { offset: 0, record: self.messages.row.max(self.from), rest: false }
    }

    fn go_to(&mut self, place: RecordStart) {
        self.from = place.record;
    }

    fn start(&mut self) -> Result<bool, ConnectorError> {
        while self.mapping.is_none() {
            match self.messages.step(&[])? {
                Step::Schema(schema) => {
                    let name = self.messages.input.name();
                    self.mapping = Some(Mapping::new(&self.refuser.target, &schema, name)?);
                }
                Step::Later => return Ok(false),
                // The schema is the first message, and none ends before it.
                Step::Batch(_) | Step::Dictionary | Step::End => break,
            }
        }
        Ok(self.mapping.is_some())
    }

    fn decode(&mut self, rows_max: usize) -> Result<Decoded, ConnectorError> {
        self.start()?;
        let Some(mapping) = &self.mapping else { return Ok(Decoded::Later) };
        let projection = mapping.columns_read();
        loop {
            let batch = match self.rest.take() {
                Some(batch) => batch,
                None => match self.messages.step(&projection)? {
                    Step::Batch(batch) => batch,
                    Step::Later => return Ok(Decoded::Later),
                    Step::End if self.messages.row < self.from => {
                        let row = self.from;
                        let message = format!("the position is row {row}, behind the end");
                        return Err(refused(self.messages.input.name(), message));
                    }
                    Step::End => return Ok(Decoded::End),
                    Step::Schema(_) | Step::Dictionary => continue,
                },
            };
            let passed = usize::try_from(self.from.saturating_sub(self.messages.row));
            let passed = passed.unwrap_or(usize::MAX).min(batch.num_rows());
            let batch = batch.slice(passed, batch.num_rows() - passed);
            self.messages.row += passed as u64;
            let rows = batch.num_rows().min(rows_max);
            if rows < batch.num_rows() {
                self.rest = Some(batch.slice(rows, batch.num_rows() - rows));
            }
            let (name, first) = (self.messages.input.name(), self.messages.row);
            let batch = mapping.rows(&self.refuser, &batch.slice(0, rows), name, &first)?;
            self.messages.row += rows as u64;
            if batch.num_rows() > 0 {
                return Ok(Decoded::Batch(batch));
            }
        }
    }
}

/// The data's own columns.
pub(crate) fn infer(input: ByteInput) -> Result<Schema, ConnectorError> {
    let mut messages = Messages::new(input);
    match messages.step(&[])? {
        Step::Schema(schema) => Ok(plain(&schema)),
        _ => Err(messages.damaged("its schema has not arrived")),
    }
}
