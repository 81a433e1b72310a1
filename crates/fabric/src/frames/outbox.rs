//! What waits to be sent: headers and small bodies copied into one buffer, large bodies left where
//! they are.

use std::collections::VecDeque;
use std::io;

use super::frame::Header;
use super::wire::Wire;
use crate::SlabRange;
use crate::memory::Piece;

/// Sent bytes at the front of the staging buffer from which on it is worth moving the rest down.
pub(crate) const COMPACT_BYTES: usize = 64 << 10;

/// The bytes of a connection in sending order.
#[derive(Default)]
pub(super) struct Outbox {
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
}

enum Segment {
    /// So many bytes of the staging buffer.
    Staged(usize),
    Slab(SlabRange),
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Segment::Staged(len) => *len,
            Segment::Slab(range) => range.len(),
        }
    }
}

impl Outbox {
    /// Queues a header with its body copied.
    pub(super) fn push(&mut self, header: &Header, body: &[u8]) {
        self.staged.extend_from_slice(&header.encode());
        self.staged.extend_from_slice(body);
        let added = Header::BYTES + body.len();
        self.queued += added as u64;
        match self.segments.back_mut() {
            Some(Segment::Staged(len)) => *len += added,
            _ => self.segments.push_back(Segment::Staged(added)),
        }
    }

    /// Queues a header with a body that is read when it is sent.
    pub(super) fn push_slab(&mut self, header: &Header, body: SlabRange) {
        self.push(header, &[]);
        self.queued += body.len() as u64;
        if !body.is_empty() {
            self.segments.push_back(Segment::Slab(body));
        }
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

    /// Sends what the wire takes; one call unless there are very many pieces.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(super) fn flush(&mut self, wire: &mut impl Wire) -> io::Result<()> {
        while !self.segments.is_empty() {
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

    fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        let mut skip = self.front_sent;
        let mut staged = &self.staged[self.staged_sent..];
        self.segments.iter().map(move |segment| {
            let skipped = std::mem::take(&mut skip);
            match segment {
                Segment::Staged(len) => {
                    let (piece, rest) = staged.split_at(len - skipped);
                    staged = rest;
                    Piece::Bytes(piece)
                }
                Segment::Slab(range) => Piece::Slab(range, skipped),
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
                self.segments.pop_front();
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
