//! Files of Avro, read in order.

use std::sync::Arc;

use arrow::datatypes::Schema;
use dataflow::error::ConnectorError;
use dataflow::position::refused;

use super::datum::{Cursor, Passed};
use super::pack::{BlockCodec, MAGIC, MARK_BYTES};
use super::schema::AvroSchema;
use super::{AvroRows, column};
use crate::format::input::{ByteInput, Filled};
use crate::format::rows::{Refuser, unfit};
use crate::format::typed::shown_bytes;
use crate::format::{Decoded, RecordDecoder, RecordStart};

/// Bytes of what stands before the rows of a file at most.
const HEADER_BYTES_MAX: usize = 16 << 20;

/// Bytes of a block at most, as it lies in the file.
const BLOCK_BYTES_MAX: usize = 256 << 20;

/// The beginning of a file.
pub(super) struct Header {
    schema: Arc<AvroSchema>,
    codec: BlockCodec,
    mark: [u8; MARK_BYTES],
}

/// The part of a file's header that is parsed; a header may come in many pieces.
#[derive(Default)]
pub(super) struct Begun {
    /// Bytes of it, behind the magic ones.
    bytes: usize,
    /// Entries of its map that follow before the next count.
    entries_left: u64,
    is_map_read: bool,
    schema: Option<Vec<u8>>,
    codec: Option<Vec<u8>>,
}

/// Rows of a block that are left.
struct Block {
    bytes: Vec<u8>,
    passed: Passed,
    rows: u64,
}

/// A file that is being read.
pub(crate) struct AvroDecoder {
    input: ByteInput,
    begun: Begun,
    header: Option<Header>,
    rows: Option<AvroRows>,
    block: Option<Block>,
    /// Whether a connection has ended within the header, or before it.
    ended: bool,
    /// The number of the row to be read next.
    row: u64,
    /// Rows before this one, counted from 1, are passed over.
    from: u64,
    refuser: Refuser,
}

impl AvroDecoder {
    pub(crate) fn new(input: ByteInput, refuser: Refuser) -> Self {
        let begun = Begun::default();
        let (header, rows, block, ended) = (None, None, None, false);
        Self { input, begun, header, rows, block, ended, row: 1, from: 1, refuser }
    }

    /// Reads the beginning; `false`: it has not come yet.
    fn begin(&mut self) -> Result<bool, ConnectorError> {
        while self.header.is_none() {
            let ahead = self.input.ahead();
            match self.begun.header(ahead).map_err(|reason| self.damaged(&reason))? {
                Some((header, bytes)) => {
                    self.header = Some(header);
                    self.input.pass(bytes);
                }
                None if ahead.len() > HEADER_BYTES_MAX => {
                    let most = HEADER_BYTES_MAX;
                    return Err(self.damaged(&format!("its header has more than {most} bytes")));
                }
                None => match self.input.fill(self.row)? {
                    Filled::More => {}
                    Filled::Later => return Ok(false),
                    Filled::End if self.input.may_break() => {
                        self.ended = true;
                        return self.cut_off("its header").map(|()| false);
                    }
                    Filled::End => return Err(self.damaged("it ends within its header")),
                },
            }
        }
        Ok(true)
    }

    /// Reads the next block. `Filled::More`: there is one.
    fn next_block(&mut self) -> Result<Filled, ConnectorError> {
        loop {
            let Some(Header { codec, mark, .. }) = &self.header else { return Ok(Filled::Later) };
            let ahead = self.input.ahead();
            let frame = frame(ahead, mark).map_err(|reason| self.damaged(&reason))?;
            if let Some(Frame { rows, packed, bytes }) = frame {
                let passed = self.from.saturating_sub(self.row) >= rows;
                if passed {
                    self.row = self.row.saturating_add(rows);
                } else {
                    let bytes = codec.unpack(packed).map_err(|reason| self.damaged(&reason))?;
                    self.block = Some(Block { bytes, passed: Passed::default(), rows });
                }
                self.input.pass(bytes);
                self.input.begin_batch(self.input.position());
                if !passed {
                    return Ok(Filled::More);
                }
                continue;
            }
            match self.input.fill(self.row)? {
                Filled::More => {}
                Filled::End if self.input.ahead().is_empty() => return Ok(Filled::End),
                Filled::End if self.input.may_break() => {
                    return self.cut_off("a block").map(|()| Filled::End);
                }
                Filled::End => return Err(self.damaged("it ends within a block: truncated?")),
                Filled::Later => return Ok(Filled::Later),
            }
        }
    }

    /// Reads rows of the block, up to `rows_max`; gives the number of the first.
    fn read(&mut self, rows_max: usize) -> Result<u64, ConnectorError> {
        let (mut row, from) = (self.row, self.from);
        let mut first = row;
        let mut fault = None;
        if let (Some(block), Some(rows)) = (&mut self.block, &mut self.rows) {
            let mut cursor = Cursor::behind(&block.bytes, &block.passed);
            while block.rows > 0 && rows.rows.rows() < rows_max && fault.is_none() {
                let read = if row < from {
                    first = row + 1;
                    rows.pass(&mut cursor)
                } else {
                    rows.read(&mut cursor, false)
                };
                match read {
                    Ok(()) => (row, block.rows) = (row + 1, block.rows - 1),
                    Err(reason) => fault = Some(reason),
                }
            }
            if block.rows == 0 && cursor.left() > 0 && fault.is_none() {
                fault =
                    Some(format!("{} bytes are left behind the rows of a block", cursor.left()));
            }
            block.passed = cursor.passed(&block.bytes);
        }
        self.row = row;
        if self.block.as_ref().is_some_and(|block| block.rows == 0) {
            self.block = None;
        }
        fault.map_or(Ok(first), |reason| Err(self.damaged(&reason)))
    }

    /// Behind the last whole block of a connection: what is left is a bad record.
    fn cut_off(&mut self, within: &str) -> Result<(), ConnectorError> {
        let rest = self.input.ahead();
        if rest.is_empty() {
            return Ok(());
        }
        let place = format!("{}:{}", self.input.name(), self.row);
        let reason = format!("cut off: {} bytes of {within}", rest.len());
        self.refuser.refuse(place, reason, &shown_bytes(rest))?;
        self.input.pass(rest.len());
        Ok(())
    }

    fn damaged(&self, reason: &str) -> ConnectorError {
        ConnectorError::Io {
            place: format!("{}:{}", self.input.name(), self.row),
            message: format!("not whole Avro data: {reason}"),
            hint: Some("it may be truncated or of another format: check 'format'".into()),
        }
    }
}

impl RecordDecoder for AvroDecoder {
    /// Blocks that are passed over are not unpacked, but read.
    fn place(&self) -> RecordStart {
        RecordStart { offset: 0, record: self.row.max(self.from), rest: false }
    }

    fn go_to(&mut self, place: RecordStart) {
        self.from = place.record;
    }

    fn start(&mut self) -> Result<bool, ConnectorError> {
        if self.rows.is_some() {
            return Ok(true);
        }
        if !self.begin()? {
            return Ok(false);
        }
        if let Some(header) = &self.header {
            let (target, schema) = (&self.refuser.target, Arc::clone(&header.schema));
            self.rows = Some(AvroRows::new(target, schema, self.input.name())?);
        }
        Ok(true)
    }

    fn decode(&mut self, rows_max: usize) -> Result<Decoded, ConnectorError> {
        if !self.start()? {
            return Ok(if self.ended { Decoded::End } else { Decoded::Later });
        }
        loop {
            if self.block.is_none() {
                match self.next_block()? {
                    Filled::More => {}
                    Filled::Later => return Ok(Decoded::Later),
                    Filled::End if self.row < self.from => {
                        let message = format!("the position is row {}, behind the end", self.from);
                        return Err(refused(self.input.name(), message));
                    }
                    Filled::End => return Ok(Decoded::End),
                }
            }
            let first = self.read(rows_max.max(1))?;
            let Some(rows) = &mut self.rows else { return Ok(Decoded::Later) };
            let name = self.input.name();
            let batch = rows.finish().map_err(|error| unfit(name, &error))?;
            let batch = rows.mapping().rows(&self.refuser, &batch, name, &first)?;
            if batch.num_rows() > 0 {
                return Ok(Decoded::Batch(batch));
            }
        }
    }
}

impl Begun {
    /// The beginning of a file, and its length; `None` where it goes on behind these bytes. What
    /// was read of them before is not read again.
    pub(super) fn header(&mut self, bytes: &[u8]) -> Result<Option<(Header, usize)>, String> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err("it does not begin as files of Avro do".into());
        }
        let Some(bytes) = bytes.get(MAGIC.len()..) else { return Ok(None) };
        loop {
            let mut cursor = Cursor::new(&bytes[self.bytes..]);
            let header = match self.part(&mut cursor) {
                Ok(header) => header,
                Err(_) if cursor.ran_out() => return Ok(None),
                Err(reason) => return Err(reason),
            };
            self.bytes = bytes.len() - cursor.left();
            if let Some(header) = header {
                return Ok(Some((header, MAGIC.len() + self.bytes)));
            }
        }
    }

    /// Reads a count of entries, an entry, or the mark, which is the last; changes nothing when the
    /// bytes run out.
    fn part(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Header>, String> {
        if self.is_map_read {
            return self.end(cursor).map(Some);
        }
        if self.entries_left == 0 {
            let count = cursor.long()?;
            if count < 0 {
                // Its bytes, for those who pass over it.
                cursor.long()?;
            }
            (self.entries_left, self.is_map_read) = (count.unsigned_abs(), count == 0);
            return Ok(None);
        }
        let (key, value) = (cursor.counted()?, cursor.counted()?);
        match key {
            b"avro.schema" => self.schema = Some(value.to_vec()),
            b"avro.codec" => self.codec = Some(value.to_vec()),
            _ => {}
        }
        self.entries_left -= 1;
        Ok(None)
    }

    fn end(&self, cursor: &mut Cursor<'_>) -> Result<Header, String> {
        let mut mark = [0; MARK_BYTES];
        mark.copy_from_slice(cursor.take(MARK_BYTES)?);
        let schema = self.schema.as_deref().ok_or("its header has no schema")?;
        let schema = std::str::from_utf8(schema).map_err(|_| "its schema is not UTF-8")?;
        let schema = Arc::new(AvroSchema::new(schema, &[])?);
        let codec = self.codec.as_deref().unwrap_or(b"null");
        Ok(Header { schema, codec: BlockCodec::named(codec)?, mark })
    }
}

/// A block as it lies in a file.
struct Frame<'a> {
    rows: u64,
    packed: &'a [u8],
    /// With all that belongs to it.
    bytes: usize,
}

/// The block at the beginning of some bytes; `None` where it goes on behind them.
fn frame<'a>(bytes: &'a [u8], mark: &[u8]) -> Result<Option<Frame<'a>>, String> {
    let mut cursor = Cursor::new(bytes);
    match block(&mut cursor, mark) {
        Ok((rows, packed)) => Ok(Some(Frame { rows, packed, bytes: bytes.len() - cursor.left() })),
        Err(_) if cursor.ran_out() => Ok(None),
        Err(reason) => Err(reason),
    }
}

fn block<'a>(cursor: &mut Cursor<'a>, mark: &[u8]) -> Result<(u64, &'a [u8]), String> {
    let (rows, length) = (cursor.long()?, cursor.long()?);
    let rows = u64::try_from(rows).map_err(|_| format!("a block states {rows} rows"))?;
    let length = usize::try_from(length).ok().filter(|bytes| *bytes <= BLOCK_BYTES_MAX);
    let length = length.ok_or_else(|| format!("a block has more than {BLOCK_BYTES_MAX} bytes"))?;
    let packed = cursor.take(length)?;
    if cursor.take(MARK_BYTES)? != mark {
        return Err("the mark behind a block is another one".into());
    }
    Ok((rows, packed))
}

/// The columns of a file.
pub(crate) fn infer(input: ByteInput) -> Result<Schema, ConnectorError> {
    let mut decoder = AvroDecoder::new(input, Refuser::ignoring(Arc::new(Schema::empty())));
    decoder.begin()?;
    let Some(header) = &decoder.header else {
        return Err(decoder.damaged("its schema has not arrived"));
    };
    let (schema, name) = (&header.schema, decoder.input.name());
    let columns = (0..schema.fields().len()).map(|field| column(schema, field, name));
    Ok(Schema::new(columns.collect::<Result<Vec<_>, _>>()?))
}
