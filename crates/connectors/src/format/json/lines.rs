//! Bytes cut into lines, a batch at a time.
//!
//! A line that is longer than any may be is marked here: no decoder may see it. Only its beginning
//! is kept, while the rest passes by.

use std::ops::Range;

use dataflow::error::ConnectorError;

use super::{LINE_BYTES_MAX, layout};
use crate::format::input::{BATCH_BYTES_MAX, ByteInput, Filled};
use crate::format::{RecordStart, seek};

/// Bytes that are kept of a line that is too long.
const KEPT_BYTES: usize = 1 << 10;

#[derive(Debug, Clone, Copy)]
pub(in crate::format) struct Line {
    pub(in crate::format) number: u64,
    pub(in crate::format) from: usize,
    to: usize,
    /// Whether it is longer than a line may be.
    pub(in crate::format) is_long: bool,
}

impl Line {
    /// Where it stands in a text that begins at `start`.
    pub(in crate::format) fn within(self, start: usize) -> Range<usize> {
        self.from - start..self.to - start
    }
}

/// Bytes cut into lines, a batch at a time.
pub(in crate::format) struct Lines {
    pub(in crate::format) input: ByteInput,
    /// The lines of the batch that hold something.
    pub(in crate::format) found: Vec<Line>,
    /// The number of the line to be read next.
    number: u64,
    /// Bytes ahead that are known to hold no line end.
    searched: usize,
    /// The outcome of the last attempt to read on.
    pub(in crate::format) filled: Filled,
    /// Whether the mark of an encoding may still stand ahead.
    at_start: bool,
    /// Whether a line counts whatever it holds, also nothing.
    is_any: bool,
    /// Whether the rest of a line that is too long is ahead.
    in_rest: bool,
    /// Where no line begins any more that is read.
    pub(in crate::format) end: u64,
}

impl Lines {
    pub(in crate::format) fn new(input: ByteInput) -> Self {
        Self {
            input,
            found: Vec::new(),
            number: 1,
            searched: 0,
            filled: Filled::More,
            at_start: true,
            is_any: false,
            in_rest: false,
            end: u64::MAX,
        }
    }

    /// The same for lines that are no JSON.
    pub(in crate::format) fn of_any(input: ByteInput) -> Self {
        Self { is_any: true, at_start: false, ..Self::new(input) }
    }

    /// Where the next line begins, and whether the rest of one that is too long stands there.
    pub(in crate::format) fn place(&self) -> RecordStart {
        RecordStart { offset: self.offset(), record: self.number, rest: self.in_rest }
    }

    fn offset(&self) -> u64 {
        self.input.offset(self.input.position())
    }

    /// Goes on at a place that [`place`](Self::place) gave; `false` if its bytes have not come yet.
    pub(in crate::format) fn go_to(&mut self, place: RecordStart) -> Result<bool, ConnectorError> {
        if self.at_start && self.input.is_file() && !self.begin()? {
            return Ok(false);
        }
        self.at_start = false;
        if !seek(&mut self.input, place)? {
            return Ok(false);
        }
        (self.number, self.in_rest, self.searched) = (place.record, place.rest, 0);
        Ok(true)
    }

    /// Looks at the beginning: passes the mark of an encoding, and makes lines of what is none.
    /// `false`: it has not come yet.
    fn begin(&mut self) -> Result<bool, ConnectorError> {
        if !self.at_start {
            return Ok(true);
        }
        self.filled = self.input.pass_mark()?;
        if self.filled == Filled::Later {
            return Ok(false);
        }
        while self.input.is_file() {
            match layout::is_document(self.input.ahead(), self.input.is_whole()) {
                Some(true) => {
                    self.input.change(Box::<layout::Flattened>::default());
                    break;
                }
                Some(false) => break,
                None => {
                    self.filled = self.input.fill(self.number)?;
                    if self.filled == Filled::Later {
                        return Ok(false);
                    }
                }
            }
        }
        self.at_start = false;
        self.filled = Filled::More;
        Ok(true)
    }

    /// Finds the next lines.
    pub(in crate::format) fn read(&mut self, rows_max: usize) -> Result<(), ConnectorError> {
        self.found.clear();
        self.filled = Filled::More;
        if !self.begin()? {
            return Ok(());
        }
        if self.offset() >= self.end {
            self.filled = Filled::End;
            return Ok(());
        }
        if self.in_rest {
            self.pass_rest()?;
            if self.in_rest {
                return Ok(());
            }
        }
        self.input.begin_batch(self.input.position());
        while self.found.len() < rows_max
            && self.input.position() < BATCH_BYTES_MAX
            && self.offset() < self.end
        {
            let ahead = self.input.ahead();
            let end = memchr::memchr(b'\n', &ahead[self.searched..]);
            let (length, passed) = match end {
                Some(end) => (self.searched + end, self.searched + end + 1),
                None if self.input.is_whole() && !ahead.is_empty() => (ahead.len(), ahead.len()),
                None => {
                    self.searched = ahead.len();
                    if self.searched > LINE_BYTES_MAX {
                        // The lines before it first: they stand in the way of its rest.
                        if self.found.is_empty() {
                            self.begin_rest();
                        }
                        return Ok(());
                    }
                    self.filled = self.input.fill(self.number)?;
                    match self.filled {
                        Filled::End if self.searched > 0 => continue,
                        Filled::More => continue,
                        Filled::Later | Filled::End => return Ok(()),
                    }
                }
            };
            let text = ahead[..length].trim_ascii();
            let is_long = length > LINE_BYTES_MAX;
            let blank = text.is_empty() && !self.is_any;
            self.searched = 0;
            let from = self.input.position();
            self.input.pass(passed);
            if !blank {
                self.found.push(Line { number: self.number, from, to: from + length, is_long });
            }
            self.number += 1;
        }
        Ok(())
    }

    /// The line ahead is too long: keeps its beginning.
    fn begin_rest(&mut self) {
        let from = self.input.position();
        let (number, to) = (self.number, from + KEPT_BYTES);
        self.found.push(Line { number, from, to, is_long: true });
        self.input.pass(self.searched);
        self.searched = 0;
        self.in_rest = true;
    }

    /// Passes the rest of a line, as far as it has come.
    fn pass_rest(&mut self) -> Result<(), ConnectorError> {
        loop {
            let ahead = self.input.ahead();
            let end = memchr::memchr(b'\n', ahead);
            self.input.pass(end.map_or(ahead.len(), |end| end + 1));
            if end.is_none() {
                self.input.begin_batch(self.input.position());
                self.filled = self.input.fill(self.number)?;
                match self.filled {
                    Filled::More => continue,
                    Filled::Later => return Ok(()),
                    Filled::End => {}
                }
            }
            self.in_rest = false;
            self.number += 1;
            return Ok(());
        }
    }

    /// The text of lines that follow one another, if all of it is UTF-8.
    pub(in crate::format) fn utf8(&self, lines: &[Line]) -> Option<&str> {
        std::str::from_utf8(self.text(lines)).ok()
    }

    /// The text of lines that follow one another.
    pub(in crate::format) fn text(&self, lines: &[Line]) -> &[u8] {
        match (lines.first(), lines.last()) {
            (Some(first), Some(last)) => self.input.bytes(first.from, last.to),
            _ => &[],
        }
    }
}
