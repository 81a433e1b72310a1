//! The send queue: headers and small bodies copied into one buffer, large bodies left where
//! they are.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::frame::{Header, Op};
use super::wire::Wire;
use crate::SlabRange;
use crate::memory::IoPiece;
use crate::published::{PublishedPlace, PublishedTable};

/// Sent bytes at the front of the staging buffer from which on it is worth moving the rest down.
pub(crate) const COMPACT_BYTES: usize = 64 << 10;

/// The largest copied frame whose memory is kept for the next one.
const RECYCLED_BYTES_MAX: usize = 2 << 20;

/// The bytes of a connection in sending order.
#[derive(Default)]
pub(super) struct Outbox {
    /// The number of the next frame, where frames are checked.
    number: Option<u64>,
    staged: Vec<u8>,
    /// Bytes at the front of `staged` that were sent.
    staged_sent: usize,
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that were sent.
    front_sent: usize,
    /// Bytes ever queued.
    queued: u64,
    /// Bytes ever sent.
    sent: u64,
    /// The last frame of the queue refuses a read; nothing follows it.
    refused: bool,
    /// Memory of a copied frame that has been sent, for the next one.
    recycled: Vec<u8>,
}

/// A body that may change, or even go, until it is copied.
pub(super) enum LateBody {
    Exported(SlabRange),
    /// Of an answer to a read, which is served if the place is still published.
    Published(Arc<PublishedTable>, PublishedPlace),
}

impl LateBody {
    /// Copies it; false when it is gone.
    fn copy(&self, out: &mut [u8]) -> bool {
        match self {
            LateBody::Exported(range) => {
                range.snapshot(out);
                true
            }
            LateBody::Published(table, place) => table.copy(*place, out),
        }
    }
}

enum Segment {
    /// This number of bytes of the staging buffer.
    Staged(usize),
    Slab(SlabRange),
    /// A frame whose body may change until it is sent: it is copied, and its checksum made, when
    /// it is the first.
    Late(Header, Option<u64>, LateBody),
    /// Such a frame.
    Copied(Vec<u8>),
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Segment::Staged(len) => *len,
            Segment::Slab(range) => range.len(),
            Segment::Late(header, ..) => Header::BYTES + header.len as usize,
            Segment::Copied(bytes) => bytes.len(),
        }
    }
}

impl Outbox {
    /// An outbox whose frames carry checksums, or not.
    pub(super) fn new(checked: bool) -> Self {
        Self { number: checked.then_some(0), ..Self::default() }
    }

    /// The number of a frame that is queued now.
    fn count(&mut self) -> Option<u64> {
        let number = self.number?;
        self.number = Some(number + 1);
        Some(number)
    }

    /// Queues a header with its body copied.
    pub(super) fn push(&mut self, header: &Header, body: &[u8]) {
        let number = self.count();
        let sum = if number.is_some() { crc32c::crc32c(body) } else { 0 };
        self.stage(&Header { sum, ..*header }, number, body);
    }

    /// Queues a header with a body that is read when it is sent, and does not change until then.
    pub(super) fn push_slab(&mut self, header: &Header, body: SlabRange) {
        let number = self.count();
        let sum = if number.is_some() { body.checksum(0, 0, body.len()) } else { 0 };
        self.stage(&Header { sum, ..*header }, number, &[]);
        self.queue(body.len(), (!body.is_empty()).then(|| Segment::Slab(body)));
    }

    /// As [`Outbox::push_slab`], of a body that may change at any time.
    pub(super) fn push_changing(&mut self, header: &Header, body: SlabRange) {
        if self.number.is_none() {
            return self.push_slab(header, body);
        }
        self.push_late(header, LateBody::Exported(body));
    }

    /// Queues a header with a body of the length that it says, which is copied when the frame is
    /// the first.
    pub(super) fn push_late(&mut self, header: &Header, body: LateBody) {
        let number = self.count();
        let len = Header::BYTES + header.len as usize;
        self.queue(len, Some(Segment::Late(*header, number, body)));
    }

    fn stage(&mut self, header: &Header, number: Option<u64>, body: &[u8]) {
        self.staged.extend_from_slice(&header.encode(number));
        self.staged.extend_from_slice(body);
        let added = Header::BYTES + body.len();
        match self.segments.back_mut() {
            Some(Segment::Staged(len)) => {
                *len += added;
                self.queue(added, None);
            }
            _ => self.queue(added, Some(Segment::Staged(added))),
        }
    }

    fn queue(&mut self, bytes: usize, segment: Option<Segment>) {
        self.queued += bytes as u64;
        self.segments.extend(segment);
    }

    /// Bytes ever queued: the position at which what was pushed last ends.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// Bytes ever sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// True when an answer could not be given any more: the connection ends.
    pub(super) fn has_refused(&self) -> bool {
        self.refused
    }

    /// Sends what the wire takes; one call unless there are very many pieces.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(super) fn flush(&mut self, wire: &mut impl Wire) -> io::Result<()> {
        while !self.segments.is_empty() {
            self.copy_first();
            let Some(n) = wire.write(self.pieces())? else { return Ok(()) };
            let offered: usize =
                self.pieces().take(crate::memory::PIECES_MAX).map(|p| p.len()).sum();
            self.advance(n);
            if n < offered {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Copies the first frame, where its body may change. Where the body is gone, the refusal takes
    /// the place of the answer.
    fn copy_first(&mut self) {
        if let Some(first) = self.segments.front_mut()
            && let Segment::Late(header, number, late) = first
        {
            let mut bytes = std::mem::take(&mut self.recycled);
            bytes.resize(Header::BYTES + header.len as usize, 0);
            let body = &mut bytes[Header::BYTES..];
            if !late.copy(body) {
                let refusal = Header::new(Op::Nak, header.id).encode(*number);
                *first = Segment::Copied(refusal.to_vec());
                self.segments.truncate(1);
                self.refused = true;
                return;
            }
            let sum = if number.is_some() { crc32c::crc32c(body) } else { 0 };
            let header = Header { sum, ..*header };
            bytes[..Header::BYTES].copy_from_slice(&header.encode(*number));
            *first = Segment::Copied(bytes);
        }
    }

    /// The bytes that can be sent: up to a frame that has to be copied first.
    fn pieces(&self) -> impl Iterator<Item = IoPiece<'_>> {
        let mut skip = self.front_sent;
        let mut staged = &self.staged[self.staged_sent..];
        self.segments.iter().map_while(move |segment| {
            let skipped = std::mem::take(&mut skip);
            match segment {
                Segment::Staged(len) => {
                    let (piece, rest) = staged.split_at(len - skipped);
                    staged = rest;
                    Some(IoPiece::Bytes(piece))
                }
                Segment::Slab(range) => Some(IoPiece::Slab(range, skipped)),
                Segment::Late(..) => None,
                Segment::Copied(bytes) => Some(IoPiece::Bytes(&bytes[skipped..])),
            }
        })
    }

    fn advance(&mut self, mut n: usize) {
        self.sent += n as u64;
        while n > 0 {
            let Some(front) = self.segments.front() else { break };
            let step = n.min(front.len() - self.front_sent);
            if let Segment::Staged(_) = front {
                self.staged_sent += step;
            }
            n -= step;
            self.front_sent += step;
            if self.front_sent == front.len() {
                self.front_sent = 0;
                if let Some(Segment::Copied(bytes)) = self.segments.pop_front()
                    && bytes.capacity() <= RECYCLED_BYTES_MAX
                {
                    self.recycled = bytes;
                }
            }
        }
        if self.staged_sent == self.staged.len() {
            self.staged.clear();
            self.staged_sent = 0;
        } else if self.staged_sent >= COMPACT_BYTES {
            self.staged.drain(..self.staged_sent);
            self.staged_sent = 0;
        }
    }
}
