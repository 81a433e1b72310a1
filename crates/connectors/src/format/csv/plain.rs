//! Records as most are: of as many fields as there must be, whose quotes are around whole fields,
//! on one line. They are found without the states of the library.
//!
//! [`blocks`](super::blocks) finds where fields end. Where a block is plain, the library reads the
//! same fields; the first block that is not so stops the scan, and the library reads the records
//! that reach into it.

use std::ops::Range;

use super::blocks::{self, BLOCK_BYTES, QuoteState, Signs};
use super::{Dialect, RECORD_BYTES_MAX};

/// The mark of a field whose text is not as it stands in the batch's bytes.
const UNQUOTED: u32 = 1 << 31;

/// Bytes that are scanned ahead of the records.
const AHEAD_BYTES: usize = 16 << 10;

/// Where the text of a field stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldAt {
    from: u32,
    to: u32,
}

impl FieldAt {
    /// In the unquoted text.
    pub(super) fn unquoted(from: usize, to: usize) -> Self {
        Self { from: from as u32 | UNQUOTED, to: to as u32 }
    }

    /// Where it stands in the unquoted text, or else in the batch's bytes.
    #[inline(always)]
    pub(super) fn place(self) -> (bool, Range<usize>) {
        let from = self.from & !UNQUOTED;
        (self.from != from, from as usize..self.to as usize)
    }
}

/// Where a record stands in the batch's bytes.
pub(super) struct Span {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The line of `from`, counted from 1.
    pub(super) line: u64,
}

/// The bytes of a batch, and which records in it may be read.
pub(super) struct Come<'a> {
    /// From the beginning of the batch, as far as they have come.
    pub(super) bytes: &'a [u8],
    /// Where they stand in the input.
    pub(super) offset: u64,
    /// No record begins here or behind.
    pub(super) begin_max: usize,
    pub(super) rows_max: usize,
    pub(super) dialect: &'a Dialect,
    /// Fields of a record.
    pub(super) width: usize,
}

/// The fields found in the bytes behind the records that were read.
#[derive(Default)]
pub(super) struct PlainScan {
    /// Where the scan began, in the input. Places are counted from here.
    base: u64,
    /// Where the next record begins.
    from: u32,
    /// Bytes scanned.
    scanned: u32,
    /// Ends of fields outside of quotes: delimiters and line ends. Room for more lies behind them.
    ends: Vec<u32>,
    /// How many of `ends` there are.
    found: usize,
    /// How many of them belong to records that were read.
    passed: usize,
    state: QuoteState,
    /// Whether the block at `scanned` is none of plain records.
    stopped: bool,
    /// Where in the input no such block is known.
    resume: u64,
}

impl PlainScan {
    /// Reads the plain records that begin at the position `at` of the batch, one after the other,
    /// up to the first that is none or has not come as a whole. Gives the position behind them. The
    /// number of the line is led on.
    pub(super) fn read(
        &mut self,
        come: &Come<'_>,
        at: usize,
        (spans, fields, line): (&mut Vec<Span>, &mut Vec<FieldAt>, &mut u64),
    ) -> usize {
        let Dialect { delimiter, quote, .. } = *come.dialect;
        if delimiter == quote || come.width == 0 || !self.go_to(come, at) {
            return at;
        }
        while self.take(come, (&mut *spans, &mut *fields, &mut *line)) && self.scan(come) {}
        self.position(come)
    }

    /// The position of the next record in the batch.
    fn position(&self, come: &Come<'_>) -> usize {
        (self.base + u64::from(self.from) - come.offset) as usize
    }

    /// Goes on with the record at a position; `false` if it is known not to be plain.
    fn go_to(&mut self, come: &Come<'_>, at: usize) -> bool {
        let offset = come.offset + at as u64;
        if offset == self.base + u64::from(self.from) {
            return true;
        }
        // Another has read records. A line end outside of quotes begins the next one for both.
        let behind = offset.checked_sub(self.base + 1).and_then(|end| u32::try_from(end).ok());
        if let Some(end) = behind.filter(|end| *end < self.scanned)
            && let Ok(at) = self.ends[self.passed..self.found].binary_search(&end)
            && is_line_end(come.bytes, (offset - come.offset) as usize - 1)
        {
            self.passed += at + 1;
            self.from = end + 1;
            return true;
        }
        if offset < self.resume {
            return false;
        }
        let ends = std::mem::take(&mut self.ends);
        *self = Self { base: offset, ends, ..Self::default() };
        true
    }

    /// Scans more bytes; `false` if there are none, or the next are not of plain records.
    fn scan(&mut self, come: &Come<'_>) -> bool {
        self.forget_passed();
        if self.stopped || self.scanned as usize > RECORD_BYTES_MAX {
            return false;
        }
        let at = self.position(come) + self.scanned as usize;
        let ahead = come.bytes.get(at..).unwrap_or_default();
        let ahead = &ahead[..ahead.len().min(AHEAD_BYTES)];
        let room = self.found + ahead.len() + BLOCK_BYTES;
        if self.ends.len() < room {
            self.ends.resize(room, 0);
        }
        let signs = Signs { delimiter: come.dialect.delimiter, quote: come.dialect.quote };
        let room = &mut self.ends[self.found..];
        let scanned = blocks::scan(ahead, self.scanned, signs, &mut self.state, room);
        self.found += scanned.ends;
        self.scanned += scanned.bytes as u32;
        if scanned.bytes < ahead.len() {
            self.stopped = true;
            self.resume = self.base + u64::from(self.scanned) + BLOCK_BYTES as u64;
        }
        !ahead.is_empty()
    }

    /// Forgets the ends of fields of records that were read.
    fn forget_passed(&mut self) {
        let before = self.from;
        self.ends.copy_within(self.passed..self.found, 0);
        self.found -= self.passed;
        self.passed = 0;
        for end in &mut self.ends[..self.found] {
            *end -= before;
        }
        self.base += u64::from(before);
        self.scanned -= before;
        self.from = 0;
    }

    /// Takes the records whose ends are known, up to one that is not plain; whether more may be
    /// taken behind them.
    fn take(
        &mut self,
        come: &Come<'_>,
        (spans, fields, line): (&mut Vec<Span>, &mut Vec<FieldAt>, &mut u64),
    ) -> bool {
        let Come { bytes, begin_max, rows_max, width, .. } = *come;
        let Dialect { delimiter, quote, comment, .. } = *come.dialect;
        // The bytes of the batch may begin behind the base.
        let shift = self.base.wrapping_sub(come.offset) as u32;
        let found = &self.ends[..self.found];
        while spans.len() < rows_max {
            let from = self.from.wrapping_add(shift);
            if from as usize >= begin_max {
                break;
            }
            let (mut begin, mut ends, mut lines) = (self.from, &found[self.passed..], 0);
            while let Some((end, rest)) = ends.split_first()
                && *end == begin
                && is_line_end(bytes, end.wrapping_add(shift) as usize)
            {
                lines += u64::from(bytes[end.wrapping_add(shift) as usize] == b'\n');
                (begin, ends) = (begin + 1, rest);
            }
            let mut begin = begin.wrapping_add(shift);
            let Some((ends, rest)) = ends.split_at_checked(width) else { return true };
            let is_comment = comment.is_some() && bytes.get(begin as usize).copied() == comment;
            let Some((last, others)) = ends.split_last().filter(|_| !is_comment) else { break };
            let to = last.wrapping_add(shift);
            let is_end =
                |end: &u32| bytes.get(end.wrapping_add(shift) as usize) == Some(&delimiter);
            let is_plain = is_line_end(bytes, to as usize) && others.iter().all(is_end);
            if !is_plain || (to - from) as usize >= RECORD_BYTES_MAX {
                break;
            }
            fields.extend(ends.iter().map(|end| {
                let end = end.wrapping_add(shift);
                let quoted = u32::from(bytes.get(begin as usize) == Some(&quote));
                let field = FieldAt { from: begin + quoted, to: end - quoted };
                begin = end + 1;
                field
            }));
            spans.push(Span { from, to: to + 1, line: *line });
            *line += lines + u64::from(bytes.get(to as usize) == Some(&b'\n'));
            self.passed = found.len() - rest.len();
            self.from = last + 1;
        }
        false
    }
}

#[inline(always)]
fn is_line_end(bytes: &[u8], at: usize) -> bool {
    matches!(bytes.get(at), Some(b'\n' | b'\r'))
}
