//! Bytes in the order of their arrival as a sliding window, for the formats that are read in order.
//!
//! ```text
//! buffer:  … │ the batch being read │ not looked at │ room
//!            begin                  at              filled
//! ```
//!
//! The bytes from `begin` on stay where they are while a batch is read, so that a bad record can be
//! shown, and read again from its second line.
//!
//! The bytes come from any [`Read`]: a file, a decompressor, a socket. One that has nothing *at the
//! moment* answers [`WouldBlock`](ErrorKind::WouldBlock); it is asked again later.

use std::io::{ErrorKind, Read};

use dataflow::error::ConnectorError;
use dataflow::position::refused;

/// Bytes asked of the reader at a time.
const READ_BYTES: usize = 1 << 20;

/// Bytes of a batch after which no further record is begun: bounds the memory of a flow together
/// with the bound on a record.
pub(crate) const BATCH_BYTES_MAX: usize = 8 << 20;

/// The mark of UTF-8 that may stand before the first byte of a text.
pub(crate) const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// Gives the bytes from an offset on; `None` where they cannot be read without those before.
pub(crate) type Seek =
    Box<dyn Fn(u64) -> Option<Result<Box<dyn Read + Send>, ConnectorError>> + Send>;

/// Changes bytes on their way, each where it stands, in their order.
pub(crate) trait ByteMap: Send {
    /// Changes the next bytes.
    fn apply(&mut self, bytes: &mut [u8]);
}

/// Bytes that are being read.
pub(crate) struct ByteInput {
    reader: Box<dyn Read + Send>,
    /// How to go on at an offset that lies far ahead.
    seek: Option<Seek>,
    /// Whether the bytes are those of a file, which may have a layout of its own.
    is_file: bool,
    /// Whether the bytes are those of a connection, which may break within a record.
    may_break: bool,
    map: Option<Box<dyn ByteMap>>,
    name: String,
    buffer: Vec<u8>,
    begin: usize,
    at: usize,
    filled: usize,
    ended: bool,
    /// Bytes of the input that stood before the buffer.
    forgotten: u64,
}

/// The outcome of an attempt to read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filled {
    /// There are more bytes ahead than before.
    More,
    /// Nothing at the moment.
    Later,
    /// Nothing more, ever.
    End,
}

impl ByteInput {
    /// `name` stands before the record in messages: a path, an address.
    pub(crate) fn new(reader: Box<dyn Read + Send>, name: impl Into<String>) -> Self {
        Self {
            reader,
            seek: None,
            is_file: false,
            may_break: false,
            map: None,
            name: name.into(),
            buffer: Vec::new(),
            begin: 0,
            at: 0,
            filled: 0,
            ended: false,
            forgotten: 0,
        }
    }

    /// The same for bytes that need not be read in order.
    pub(crate) fn seeking(self, seek: Seek) -> Self {
        Self { seek: Some(seek), ..self }
    }

    /// The same, of a file.
    pub(crate) fn of_file(self) -> Self {
        Self { is_file: true, ..self }
    }

    /// The same, of a connection: what it cuts off is a bad record, and no end of the query.
    pub(crate) fn of_connection(self) -> Self {
        Self { may_break: true, ..self }
    }

    /// Whether the bytes may end within a record.
    pub(crate) fn may_break(&self) -> bool {
        self.may_break
    }

    /// Whether the bytes are those of a file, from its beginning.
    pub(crate) fn is_file(&self) -> bool {
        self.is_file
    }

    /// Changes the bytes ahead, and those that come, by `map`. They are read in order then.
    pub(crate) fn change(&mut self, mut map: Box<dyn ByteMap>) {
        map.apply(&mut self.buffer[self.at..self.filled]);
        (self.map, self.seek) = (Some(map), None);
    }

    /// The name for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that were read and not passed yet.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.buffer[self.at..self.filled]
    }

    /// Passes `bytes` of [`ahead`](Self::ahead).
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.at += bytes;
        debug_assert!(self.at <= self.filled);
    }

    /// The position, counted from the beginning of the batch.
    pub(crate) fn position(&self) -> usize {
        self.at - self.begin
    }

    /// Where a position of this batch is, counted from the beginning of the input.
    pub(crate) fn offset(&self, position: usize) -> u64 {
        self.forgotten + (self.begin + position) as u64
    }

    /// Passes all bytes before an offset, as they come; a new batch begins there. `false`: they
    /// have not come yet.
    ///
    /// # Errors
    /// When the input cannot be read, has passed the offset already, or ends before it.
    pub(crate) fn skip_to(&mut self, offset: u64, record: u64) -> Result<bool, ConnectorError> {
        loop {
            let at = self.offset(self.position());
            let Some(left) = offset.checked_sub(at) else {
                let message = format!("the position is byte {offset}, before the first record");
                return Err(refused(&self.name, message));
            };
            let bytes = self.ahead().len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.at += bytes;
            self.begin = self.at;
            if bytes as u64 == left {
                return Ok(true);
            }
            if let Some(read_from) = self.seek.take()
                && let Some(reader) = read_from(offset - 1)
            {
                // The byte before tells whether a record may begin here.
                (self.reader, self.forgotten) = (reader?, offset - 1);
                (self.begin, self.at, self.filled, self.ended) = (0, 0, 0, false);
            }
            match self.fill(record)? {
                Filled::More => {}
                Filled::Later => return Ok(false),
                Filled::End => {
                    let message = format!("the position is byte {offset}, behind the end");
                    return Err(refused(&self.name, message));
                }
            }
        }
    }

    /// Whether a record may begin here: behind a line end, at the beginning, or at the end.
    ///
    /// # Errors
    /// When the input cannot be read.
    pub(crate) fn is_behind_line(&mut self, record: u64) -> Result<bool, ConnectorError> {
        let before = self.at.checked_sub(1).map(|at| self.buffer[at]);
        let in_line = before.is_some_and(|byte| byte != b'\n' && byte != b'\r');
        let at_end = |input: &mut Self| Ok(input.fill(record)? == Filled::End);
        Ok(!in_line || self.ahead().is_empty() && at_end(self)?)
    }

    /// Goes back to a position of this batch.
    pub(crate) fn rewind(&mut self, position: usize) {
        self.at = self.begin + position;
    }

    /// The bytes of this batch between two positions.
    pub(crate) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        &self.buffer[self.begin + from..self.begin + to]
    }

    /// All bytes of this batch that have come, also those ahead.
    pub(crate) fn come(&self) -> &[u8] {
        &self.buffer[self.begin..self.filled]
    }

    /// Forgets what stands before a position of this batch: a new batch begins there.
    pub(crate) fn begin_batch(&mut self, position: usize) {
        self.begin += position;
    }

    /// Whether the last byte has been read, though not all of them are passed.
    pub(crate) fn is_whole(&self) -> bool {
        self.ended
    }

    /// Passes the [mark of UTF-8](UTF8_MARK); another encoding is refused. [`Filled::Later`]: it
    /// cannot be told yet.
    pub(crate) fn pass_mark(&mut self) -> Result<Filled, ConnectorError> {
        const WIDE: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];
        loop {
            let ahead = self.ahead();
            if ahead.starts_with(UTF8_MARK) {
                self.pass(UTF8_MARK.len());
                return Ok(Filled::More);
            }
            // Letters and digits of such a text without a mark have every other byte zero.
            let has_zeros =
                matches!(ahead, [0, 1..=255, 0, 1..=255, ..] | [1..=255, 0, 1..=255, 0, ..]);
            if has_zeros || WIDE.iter().any(|mark| ahead.starts_with(mark)) {
                return Err(ConnectorError::Io {
                    place: self.name.clone(),
                    message: "its text is UTF-16 or UTF-32; UTF-8 is read".into(),
                    hint: Some("`iconv -f UTF-16 -t UTF-8` turns it into UTF-8".into()),
                });
            }
            let may_be = |mark: &[u8]| mark.starts_with(ahead);
            if !may_be(UTF8_MARK) && !WIDE.iter().any(|mark| may_be(mark)) {
                return Ok(Filled::More);
            }
            match self.fill(1)? {
                Filled::More => {}
                filled => return Ok(filled),
            }
        }
    }

    /// Reads on. `record` is the one that is being read, for the message of an error.
    pub(crate) fn fill(&mut self, record: u64) -> Result<Filled, ConnectorError> {
        if self.ended {
            return Ok(Filled::End);
        }
        if self.buffer.len() - self.filled < READ_BYTES {
            self.buffer.copy_within(self.begin..self.filled, 0);
            self.filled -= self.begin;
            self.at -= self.begin;
            self.forgotten += self.begin as u64;
            self.begin = 0;
            let wanted = (self.filled * 2).max(2 * READ_BYTES);
            if self.buffer.len() < wanted {
                self.buffer.resize(wanted, 0);
            }
        }
        loop {
            match self.reader.read(&mut self.buffer[self.filled..]) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(Filled::End);
                }
                Ok(bytes) => {
                    if let Some(map) = &mut self.map {
                        map.apply(&mut self.buffer[self.filled..self.filled + bytes]);
                    }
                    self.filled += bytes;
                    return Ok(Filled::More);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Filled::Later),
                Err(error) => return Err(read_error(&format!("{}:{record}", self.name), error)),
            }
        }
    }
}

/// An error of a reader; one that carries an error of a connector stands for that one.
pub(crate) fn read_error(place: &str, error: std::io::Error) -> ConnectorError {
    match error.downcast::<ConnectorError>() {
        Ok(error) => error,
        Err(error) => {
            ConnectorError::Io { place: place.to_owned(), message: error.to_string(), hint: None }
        }
    }
}
