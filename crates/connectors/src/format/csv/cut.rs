//! Where CSV may be cut.
//!
//! A quoted value may hold line ends, and a quote that is never closed swallows none: where a
//! record ends depends on all bytes before it. Mostly it need not be asked, since each line closes
//! its own quotes; then each line that holds something is a record, good or bad. Where one does
//! not, the reader itself goes over the records up to the place that is asked for.

use dataflow::error::ConnectorError;

use super::records::{Header, Records, Stop};
use super::{Dialect, RECORD_BYTES_MAX};
use crate::format::RecordStart;
use crate::format::cut::{PIECE_BYTES, SeekableBytes, read_piece};
use crate::format::input::UTF8_MARK;

/// Records that the reader goes over at a time.
const STEP_RECORDS: usize = 4096;

/// How CSV of a dialect is cut.
#[derive(Debug, Clone)]
pub(crate) struct CsvCut {
    dialect: Dialect,
    /// Fields of a record where no header tells.
    width: usize,
}

impl CsvCut {
    /// `None` where lines may be comments, which hold any quotes.
    pub(crate) fn new(dialect: &Dialect, declared: usize) -> Option<Self> {
        let is_plain = dialect.comment.is_none() && dialect.delimiter != dialect.quote;
        is_plain.then(|| Self { dialect: dialect.clone(), width: declared })
    }

    /// The first record that begins at `least` or behind, or the end.
    ///
    /// # Errors
    /// When the bytes cannot be read.
    pub(crate) fn next(
        &self,
        bytes: &dyn SeekableBytes,
        from: RecordStart,
        least: u64,
    ) -> Result<RecordStart, ConnectorError> {
        match self.by_lines(bytes, from, least)? {
            Some(start) => Ok(start),
            None => self.by_records(bytes, from, least),
        }
    }

    /// By lines that close their quotes; `None` if one does not.
    fn by_lines(
        &self,
        bytes: &dyn SeekableBytes,
        from: RecordStart,
        least: u64,
    ) -> Result<Option<RecordStart>, ConnectorError> {
        if from.rest {
            return Ok(None);
        }
        let (name, mut reader) = (bytes.name(), bytes.from(from.offset)?);
        let mut buffer = vec![0; 2 * PIECE_BYTES];
        // The bytes of a line that has begun.
        let mut kept = 0;
        let RecordStart { mut offset, mut record, .. } = from;
        loop {
            if buffer.len() - kept < PIECE_BYTES {
                buffer.resize(kept + PIECE_BYTES, 0);
            }
            let read = read_piece(&mut *reader, &mut buffer[kept..], &name)?;
            let piece = &buffer[..kept + read];
            let mut at = 0;
            while let Some(end) = memchr::memchr(b'\n', &piece[at..]) {
                let line = &piece[at..at + end];
                if !self.closes_quotes(line) {
                    return Ok(None);
                }
                if let Some(behind) = record_end(line) {
                    let behind = offset + behind as u64;
                    if behind >= least {
                        let record = record + u64::from(!line.ends_with(b"\r"));
                        return Ok(Some(RecordStart { offset: behind, record, rest: false }));
                    }
                }
                (at, offset, record) = (at + end + 1, offset + end as u64 + 1, record + 1);
            }
            let line = &piece[at..];
            if read == 0 {
                let end = RecordStart { offset: offset + line.len() as u64, record, rest: false };
                return Ok(self.closes_quotes(line).then_some(end));
            }
            if line.len() > RECORD_BYTES_MAX {
                return Ok(None);
            }
            kept = line.len();
            buffer.copy_within(at..at + kept, 0);
        }
    }

    /// Whether each quote of a line begins a field, ends one or is doubled in one.
    fn closes_quotes(&self, line: &[u8]) -> bool {
        let Dialect { delimiter, quote, .. } = self.dialect;
        let ends_field =
            |byte: Option<&u8>| byte.is_none_or(|byte| *byte == delimiter || *byte == b'\r');
        let mut at = 0;
        while let Some(begin) = memchr::memchr(quote, &line[at..]) {
            at += begin;
            if !ends_field(at.checked_sub(1).map(|before| &line[before])) {
                return false;
            }
            loop {
                at += 1;
                let Some(end) = memchr::memchr(quote, &line[at..]) else { return false };
                at += end + 1;
                if line.get(at) != Some(&quote) {
                    break;
                }
            }
            if !ends_field(line.get(at)) {
                return false;
            }
        }
        true
    }

    /// By the records of the reader.
    fn by_records(
        &self,
        bytes: &dyn SeekableBytes,
        from: RecordStart,
        least: u64,
    ) -> Result<RecordStart, ConnectorError> {
        let mut records = Records::new(bytes.input()?, self.dialect.clone());
        records.width = self.width;
        if self.dialect.header
            && let Header::Nothing = records.header()?
        {
            return Ok(from);
        }
        if from.offset > 0 {
            records.go_to(from)?;
        }
        // A mark at the beginning is of the first record: no reader begins behind it.
        let first = if from.offset == 0 { UTF8_MARK.len() as u64 + 1 } else { 0 };
        records.end = least.max(first);
        while let Stop::Full = records.read(STEP_RECORDS)? {}
        Ok(records.place())
    }
}

/// Behind the end of the record on a line without its line feed; `None` if the line is blank. A
/// carriage return ends a record, and what follows it is blank.
fn record_end(line: &[u8]) -> Option<usize> {
    let last = line.iter().rposition(|byte| *byte != b'\r')?;
    Some(last + 2)
}
