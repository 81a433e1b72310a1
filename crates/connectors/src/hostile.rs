//! Entrances for fuzz targets and the replay of their corpora: bytes of a server are read as this
//! crate reads them (`fuzz/`). Files are read through [`FileConnector`](crate::FileConnector) as by
//! queries.
//!
//! Each function reads bytes that anybody may have made, and checks what holds whatever they are.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::bad::BadRows;
use dataflow::position::Position;

use crate::format::avro::{AvroEncoder, AvroRows, AvroSchema, readable};
use crate::format::ipc::{IpcContext, schema_in};
use crate::format::protobuf::{
    ProtoDecoder, ProtoEncoder, ProtoFormat, ProtoRows, columns_of, compiled,
};
use crate::format::{ByteInput, Decoded, RecordDecoder, RecordStart, Refuser};
use crate::{http, remote};

/// Reads a block of a table in a pool, behind a type u8, a codec u8, the rows u16, NULLs u16 and
/// the least number i64. Gives the rows.
///
/// # Errors
/// Why it does not fit that.
///
/// # Panics
/// When the values are others than Arrow takes, or not so many.
pub fn pool_block(bytes: &[u8]) -> Result<usize, String> {
    let array = crate::pool::block_of(bytes)?;
    array.to_data().validate_full().map_err(|why| why.to_string()).expect("a reader trusts it");
    let rows = u16::from_le_bytes([bytes[2], bytes[3]]);
    assert_eq!(array.len(), usize::from(rows).min(8192));
    Ok(array.len())
}

/// Reads a position, as a checkpoint has it. Gives whether it is one of a watched directory, whose
/// list of files is read too.
///
/// # Errors
/// Why it is none.
///
/// # Panics
/// When it is written otherwise than it was read.
pub fn position(bytes: &[u8]) -> Result<bool, String> {
    let position = Position::from_bytes(bytes).map_err(|error| error.to_string())?;
    assert_eq!(position.to_bytes(), bytes, "it is the same");
    crate::file::watched(&position).map_err(|error| error.to_string())
}

/// Reads a commit of the log of a table of Delta Lake, with which the table begins. Gives the
/// number of its files.
///
/// # Errors
/// Why it is none.
///
/// # Panics
/// When a file is outside of the table, or a checkpoint of the log has others.
pub fn delta_log(bytes: &[u8]) -> Result<usize, String> {
    crate::file::read_log(bytes)
}

/// Takes the messages of a Flight stream, each behind the lengths of its header and body, two bytes
/// each: a schema, then rows and dictionaries. Gives the rows.
///
/// # Errors
/// The fault of the first message that is refused.
///
/// # Panics
/// When rows are not those of the schema.
pub fn flight(bytes: &[u8]) -> Result<usize, String> {
    let mut messages = Messages(bytes);
    let (header, _) = messages.next().ok_or("there is none")?;
    let mut context = IpcContext::new(schema_in(header)?);
    let schema = context.schema.clone();
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    let mut rows = 0;
    for (header, body) in messages {
        let Some(batch) = context.accept(header, body, &all)? else { continue };
        for (column, field) in batch.columns().iter().zip(schema.fields()) {
            assert_eq!(column.data_type(), field.data_type());
            // A message may state many rows of nulls.
            if batch.num_rows() < 1000 {
                column.to_data().validate_full().map_err(|why| why.to_string())?;
            }
        }
        rows += batch.num_rows();
    }
    Ok(rows)
}

/// Headers and bodies, one behind the other.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (lengths, rest) = self.0.split_first_chunk::<4>()?;
        let [header, body] = [[lengths[0], lengths[1]], [lengths[2], lengths[3]]]
            .map(|length| usize::from(u16::from_le_bytes(length)));
        let (header, rest) = rest.split_at(header.min(rest.len()));
        let (body, rest) = rest.split_at(body.min(rest.len()));
        self.0 = rest;
        Some((header, body))
    }
}

/// Takes what a server sends, in pieces of as many bytes as the second byte says, as the first byte
/// says: events, an array or lines. Gives the bytes of the records, or nothing if it was refused.
///
/// # Panics
/// When the pieces make a difference, or records hold more than was sent.
pub fn web(bytes: &[u8]) -> Option<Vec<u8>> {
    let (&[kind, piece], input) = bytes.split_first_chunk()?;
    let read = [http::events_in, http::array_in, remote::lines_in][usize::from(kind % 3)];
    let whole = read(input, input.len().max(1));
    assert_eq!(read(input, usize::from(piece).max(1)), whole);
    // An event, an element or a line may end where there was no line end.
    assert!(whole.as_ref().is_none_or(|records| records.len() <= input.len() + 1));
    whole
}

/// The text behind its length, two bytes, and what follows it.
fn behind_text(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let (length, rest) = bytes.split_first_chunk::<2>().ok_or("it is too short")?;
    let (text, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    Ok((std::str::from_utf8(text).map_err(|error| error.to_string())?, rest))
}

/// Checks that rows can be relied on, and gives how many there are.
fn whole(rows: &RecordBatch, columns: &SchemaRef) -> usize {
    for (column, field) in rows.columns().iter().zip(columns.fields()) {
        assert_eq!(column.data_type(), field.data_type());
        column.to_data().validate_full().expect("a reader trusts it");
    }
    rows.num_rows()
}

/// Reads a message of Avro behind its schema, which has the length of two bytes in front. Gives the
/// rows, of which there is one.
///
/// # Errors
/// Why one of them is none.
///
/// # Panics
/// When the row is written otherwise than it was read.
pub fn avro(bytes: &[u8]) -> Result<usize, String> {
    let (json, message) = behind_text(bytes)?;
    let schema = Arc::new(AvroSchema::new(json, &[])?);
    let columns = Arc::new(readable(&schema));
    let target = Refuser::ignoring(Arc::clone(&columns)).target;
    let mut rows = AvroRows::new(&target, Arc::clone(&schema), "a schema")
        .map_err(|error| error.to_string())?;
    rows.push(message)?;
    let read = rows.finish().map_err(|error| error.to_string())?;
    if columns.fields().len() == rows.fields() {
        let encoder = AvroEncoder::new(&columns, schema.as_ref().clone());
        let mut written = vec![];
        let encoded = encoder.expect("its columns").encode(&read, &mut written, |_| Ok(()));
        encoded.expect("what was read");
        rows.push(&written).expect("what was written");
        let again = rows.finish().map_err(|error| error.to_string())?;
        // A key that is twice in a map is twice in both.
        assert_eq!(again, read);
    }
    Ok(whole(&read, &columns))
}

/// Reads a message of Protobuf of the first type of a `.proto` file, which stands in front with a
/// length of two bytes. Gives the rows, of which there is one.
///
/// # Errors
/// Why one of them is none.
///
/// # Panics
/// When the row is written otherwise than it was read.
pub fn protobuf(bytes: &[u8]) -> Result<usize, String> {
    let (text, message) = behind_text(bytes)?;
    let file = compiled(text, &[])?;
    let of = file.messages().next().ok_or("it has no type")?;
    let columns = Arc::new(columns_of(&of));
    let target = Refuser::ignoring(Arc::clone(&columns)).target;
    let rows = ProtoRows::new(&target, &of, "a type", false);
    let mut rows = rows.map_err(|error| error.to_string())?;
    rows.push(message)?;
    let read = rows.finish().map_err(|error| error.to_string())?;
    let mut written = vec![];
    // A field of an old file may be required without being there.
    if let Ok(encoder) = ProtoEncoder::new(&columns, &of, "")
        && encoder.encode(&read, &mut written, |_| Ok(())).is_ok()
    {
        rows.push(&written).expect("what was written");
        let again = rows.finish().map_err(|error| error.to_string())?;
        assert_eq!(again, read);
    }
    Ok(whole(&read, &columns))
}

/// Bytes that come in pieces, before each of which there is nothing.
struct Pieces {
    bytes: Vec<u8>,
    piece: usize,
    at: usize,
    waits: bool,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.waits = !self.waits;
        if self.waits {
            return Err(ErrorKind::WouldBlock.into());
        }
        let bytes = self.piece.min(self.bytes.len() - self.at).min(into.len());
        into[..bytes].copy_from_slice(&self.bytes[self.at..self.at + bytes]);
        self.at += bytes;
        Ok(bytes)
    }
}

/// The rows of a stream that were read, the number of bad ones, and places with the rows before
/// each.
struct ReadStream {
    rows: RecordBatch,
    bad: u64,
    places: Vec<(usize, RecordStart)>,
}

impl ReadStream {
    /// Of bytes that come in pieces of as many bytes, from a place on.
    fn of(
        format: &ProtoFormat,
        stream: &[u8],
        piece: usize,
        from: Option<RecordStart>,
    ) -> Result<Self, String> {
        let columns = Arc::new(format.columns());
        let bad = Arc::new(BadRows::default());
        let target = Refuser::ignoring(Arc::clone(&columns)).target;
        let refuser = Refuser { target, bad: Arc::clone(&bad), origins: Arc::default() };
        let pieces = Pieces { bytes: stream.to_vec(), piece, at: 0, waits: false };
        let input = ByteInput::new(Box::new(pieces), "s");
        let mut decoder = ProtoDecoder::new(input, format.clone(), refuser);
        from.into_iter().for_each(|place| decoder.go_to(place));
        let (mut batches, mut places, mut rows) = (vec![], vec![], 0);
        loop {
            match decoder.decode(7).map_err(|error| error.to_string())? {
                Decoded::Batch(batch) => {
                    rows += whole(&batch, &columns);
                    batches.push(batch);
                    places.push((rows, decoder.place()));
                }
                Decoded::Later => {}
                Decoded::End => break,
            }
        }
        let rows = concat_batches(&columns, &batches).map_err(|error| error.to_string())?;
        Ok(Self { rows, bad: bad.count(), places })
    }
}

/// Reads a stream of messages of Protobuf, each behind its length: of the first type of a `.proto`
/// file, which stands in front with a length of two bytes, in pieces of as many bytes as the byte
/// behind it says. Gives the rows, and the number of bad ones.
///
/// # Errors
/// Why it cannot be read to its end.
///
/// # Panics
/// When the pieces make a difference, or reading goes on elsewhere than it stopped, or rows are
/// written otherwise than they were read.
pub fn protobuf_stream(bytes: &[u8]) -> Result<(usize, u64), String> {
    let (text, rest) = behind_text(bytes)?;
    let (piece, stream) = rest.split_first().ok_or("there is no stream")?;
    let file = compiled(text, &[])?;
    let format = ProtoFormat::of(file.messages().next().ok_or("it has no type")?);
    let read = ReadStream::of(&format, stream, stream.len().max(1), None);
    let pieces = ReadStream::of(&format, stream, usize::from(*piece).max(1), None);
    assert_eq!(
        read.as_ref().map(|read| (&read.rows, read.bad)),
        pieces.as_ref().map(|read| (&read.rows, read.bad))
    );
    let ReadStream { rows, bad, places } = read?;
    // A few of many.
    for (before, place) in places.iter().step_by(places.len() / 4 + 1) {
        let left = ReadStream::of(&format, stream, stream.len(), Some(*place));
        assert_eq!(left.expect("its rest").rows, rows.slice(*before, rows.num_rows() - before));
    }
    let mut written = vec![];
    if let Ok(encoder) = format.encoder(rows.schema_ref())
        && encoder.encode_stream(&rows, &mut written).is_ok()
    {
        let again = ReadStream::of(&format, &written, written.len().max(1), None);
        let again = again.expect("what was written");
        assert_eq!((again.rows, again.bad), (rows.clone(), 0));
    }
    Ok((rows.num_rows(), bad))
}
