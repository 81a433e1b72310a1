//! Where bytes may be cut between records, so that their parts are read side by side.
//!
//! Invariant: a part begins where a reader of all bytes begins a record, with the number that this
//! reader gives it. So the parts give the rows and the bad rows that the whole gives.

use std::io::{ErrorKind, Read};

use dataflow::error::ConnectorError;

use super::csv::CsvCut;
use super::input::read_error;
use super::{ByteInput, RecordStart};

/// Bytes that are looked at a time.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// Bytes that can be read from any offset.
pub(crate) trait SeekableBytes {
    /// The name for messages.
    fn name(&self) -> String;

    /// The bytes from `offset` on.
    ///
    /// # Errors
    /// When they cannot be read.
    fn from(&self, offset: u64) -> Result<Box<dyn Read + Send>, ConnectorError>;

    /// All of them, as a decoder reads them.
    ///
    /// # Errors
    /// When they cannot be read.
    fn input(&self) -> Result<ByteInput, ConnectorError>;
}

/// How the bytes of a format are cut.
#[derive(Debug, Clone)]
pub(crate) enum RecordCut {
    /// A line is a record, whatever it holds.
    Lines,
    Csv(CsvCut),
}

impl RecordCut {
    /// The first record that begins at `least` or behind, or the end of the bytes. `from` is where
    /// one before begins.
    ///
    /// # Errors
    /// When the bytes cannot be read.
    pub(crate) fn next(
        &self,
        bytes: &dyn SeekableBytes,
        from: RecordStart,
        least: u64,
    ) -> Result<RecordStart, ConnectorError> {
        if from.offset >= least {
            return Ok(from);
        }
        match self {
            Self::Lines => next_line(bytes, from, least),
            Self::Csv(cut) => cut.next(bytes, from, least),
        }
    }
}

/// Reads a piece; 0 at the end.
pub(super) fn read_piece(
    reader: &mut dyn Read,
    into: &mut [u8],
    name: &str,
) -> Result<usize, ConnectorError> {
    loop {
        match reader.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read.map_err(|error| read_error(name, error)),
        }
    }
}

fn next_line(
    bytes: &dyn SeekableBytes,
    from: RecordStart,
    least: u64,
) -> Result<RecordStart, ConnectorError> {
    let (name, mut reader) = (bytes.name(), bytes.from(from.offset)?);
    let mut buffer = vec![0; PIECE_BYTES];
    let RecordStart { mut offset, mut record, .. } = from;
    loop {
        let read = read_piece(&mut *reader, &mut buffer, &name)?;
        let piece = &buffer[..read];
        // A line that ends with the byte before `least` has the next one begin there.
        let before = (least - 1).saturating_sub(offset);
        let before = usize::try_from(before).unwrap_or(usize::MAX).min(read);
        record += memchr::memchr_iter(b'\n', &piece[..before]).count() as u64;
        let end = memchr::memchr(b'\n', &piece[before..]);
        if let Some(end) = end {
            offset += (before + end + 1) as u64;
            return Ok(RecordStart { offset, record: record + 1, rest: false });
        }
        offset += read as u64;
        if read == 0 {
            return Ok(RecordStart { offset, record, rest: false });
        }
    }
}
