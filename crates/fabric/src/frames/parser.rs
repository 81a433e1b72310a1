//! From the wire to frames, with large bodies read straight to where they belong.
//!
//! Headers and small frames are read through a buffer. Of a large body all but the last bytes go
//! from a socket into the slab; the last ones pass the buffer, so that the last aligned word is
//! stored at once and after the rest (G2), and only when the checksum of the whole body fits.

use std::io;

use super::MESSAGE_MAX;
use super::frame::{Header, Op, Unfit};
use super::wire::Wire;
use crate::SlabRange;

/// Bytes of the buffer.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Last bytes of a body, which contain its last aligned word.
const TAIL_BYTES: usize = 16;
/// Bytes that may follow a body that is read directly.
const BEHIND_BYTES: usize = 1 << 10;
/// Bodies of at least this size are worth reading directly; after one, less is read ahead.
const LARGE_BYTES: usize = 16 << 10;
/// Bytes that are read ahead while bodies are large.
const AHEAD_BYTES: usize = 4 << 10;

/// The reading side of a connection.
pub(super) struct Parser {
    buffer: Box<[u8]>,
    /// Bytes that were read and not parsed.
    start: usize,
    end: usize,
    body: Option<Body>,
    /// The number of the next frame, where frames are checked.
    number: Option<u64>,
    /// The last body was large, and so the next one probably is.
    large: bool,
}

/// A body that has not arrived in full.
struct Body {
    range: SlabRange,
    /// Bytes that are in place.
    at: usize,
    header: Header,
    /// The checksum of the bytes that have come, where bodies are checked.
    sum: u32,
    /// Its bytes are read and go nowhere.
    lost: bool,
}

/// A result of the parser.
pub(super) enum Next {
    /// A header. The endpoint calls [`Parser::begin`] if it has a body for a slab,
    /// [`Parser::small`] if it has another.
    Frame(Header),
    /// The body of this header is in place.
    Placed(Header),
    /// Nothing without reading on.
    Starved,
    /// Not a frame, or not the one that was sent.
    Unfit(Unfit),
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// As much as was asked for: there may be more.
    More,
    /// Something or nothing; no more now.
    Dry,
    /// The peer sends no more.
    End,
}

impl Parser {
    /// A parser of frames that carry checksums, or do not.
    pub(super) fn new(checked: bool) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let number = checked.then_some(0);
        Self { buffer, start: 0, end: 0, body: None, number, large: false }
    }

    /// Reads by one call.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(super) fn fill(&mut self, wire: &mut impl Wire) -> io::Result<Fill> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let direct = self.body.as_ref().filter(|_| self.end == 0).and_then(Body::direct);
        let (head, behind) = match &direct {
            Some((range, at)) => (Some((range, *at)), BEHIND_BYTES + TAIL_BYTES),
            None if self.large => (None, AHEAD_BYTES),
            None => (None, BUFFER_BYTES),
        };
        let room = (self.buffer.len() - self.end).min(behind);
        let rest = &mut self.buffer[self.end..self.end + room];
        let in_place = direct.as_ref().map_or(0, |(range, at)| range.len() - at);
        let n = match wire.read(head, rest)? {
            None => return Ok(Fill::Dry),
            Some(0) => return Ok(Fill::End),
            Some(n) => n,
        };
        if let Some(body) = &mut self.body {
            let direct = n.min(in_place);
            if direct > 0 && self.number.is_some() {
                body.sum = body.range.checksum(body.sum, body.at, direct);
            }
            body.at += direct;
        }
        self.end += n.saturating_sub(in_place);
        Ok(if n == in_place + room { Fill::More } else { Fill::Dry })
    }

    /// Goes on with what was read.
    pub(super) fn next(&mut self) -> Next {
        if let Some(mut body) = self.body.take() {
            let left = body.range.len() - body.at;
            let there = self.end - self.start;
            // The tail is placed at once.
            let n = if there >= left { left } else { there.min(left.saturating_sub(TAIL_BYTES)) };
            let bytes = &self.buffer[self.start..self.start + n];
            if self.number.is_some() {
                body.sum = crc32c::crc32c_append(body.sum, bytes);
                if n == left && body.sum != body.header.sum {
                    return Next::Unfit(Unfit::Damaged);
                }
            }
            if !body.lost {
                body.range.place(body.at, bytes);
            }
            self.start += n;
            body.at += n;
            if n == left {
                return Next::Placed(body.header);
            }
            self.body = Some(body);
            return Next::Starved;
        }
        let there = &self.buffer[self.start..self.end];
        let Some(bytes) = there.first_chunk() else { return Next::Starved };
        let header = match Header::decode(bytes, self.number) {
            Ok(header) => header,
            Err(unfit) => return Next::Unfit(unfit),
        };
        if matches!(header.op, Op::Send | Op::FetchAdd | Op::CompareSwap) {
            if header.body() > MESSAGE_MAX {
                return Next::Unfit(Unfit::Malformed);
            }
            let Some(body) = there.get(Header::BYTES..Header::BYTES + header.body()) else {
                return Next::Starved;
            };
            if self.number.is_some() && crc32c::crc32c(body) != header.sum {
                return Next::Unfit(Unfit::Damaged);
            }
        }
        self.number = self.number.map(|number| number + 1);
        self.start += Header::BYTES;
        Next::Frame(header)
    }

    /// The body of a message or an atomic, which [`Parser::next`] has waited for.
    pub(super) fn small(&mut self, header: &Header) -> &[u8] {
        let start = self.start;
        self.start += header.body();
        &self.buffer[start..self.start]
    }

    /// The body of this header goes to `range`, whose length it is.
    pub(super) fn begin(&mut self, header: Header, range: SlabRange) {
        self.large = range.len() >= LARGE_BYTES;
        self.body = Some(Body { range, at: 0, header, sum: 0, lost: false });
    }

    /// The body that is arriving goes nowhere from now on, if it is of such a header.
    pub(super) fn lose(&mut self, concerns: impl FnOnce(&Header) -> bool) {
        if let Some(body) = self.body.as_mut().filter(|body| concerns(&body.header)) {
            body.lost = true;
        }
    }

    /// The header whose body is arriving.
    pub(super) fn arriving(&self) -> Option<&Header> {
        self.body.as_ref().map(|body| &body.header)
    }

    /// Forgets all that has not been placed.
    pub(super) fn abandon(&mut self) {
        self.body = None;
        (self.start, self.end) = (0, 0);
    }
}

impl Body {
    /// The part that is read directly, and how much of it is in place; `None` when that is not
    /// worth it.
    fn direct(&self) -> Option<(SlabRange, usize)> {
        let len = self.range.len().checked_sub(TAIL_BYTES).filter(|_| !self.lost)?;
        let left = len.checked_sub(self.at).filter(|left| *left >= BEHIND_BYTES)?;
        debug_assert!(left <= len);
        Some((self.range.part(0, len).ok()?, self.at))
    }
}
