//! Frames that stay with their producer until the consumer has read them (W3).
//!
//! ```text
//!   producer                                     consumer
//!   fill slot p, trailer in front
//!   flush ── notice: all below p + 1 ──────────▶ READ of as much as the frame before had
//!                                                longer? READ of the rest
//!          ◀── credit: all below q are read ──── check the trailer, hand out in place
//! ```
//!
//! A frame's place follows from its position, so that nothing but a count has to be told: the
//! paper's predicted address. What is read lands in the consumer's own slot of that position, which
//! nobody else can write, and is checked there as a frame that was written. The slowest reader's
//! credit frees a slot, as where frames are written.

use std::collections::VecDeque;

use fabric::{Flags, OpId, RemoteRange};

use super::{Failure, KIND_BITS, Link, READ, refused};
use crate::protocol::slot_of;
use crate::trailer::{TRAILER_BYTES, Trailer};

/// What is being read.
pub(super) struct Fetches {
    /// Bytes that are read of the next frame: a trailer at least.
    guess: usize,
    /// Bytes of the frame of each slot that were asked for.
    asked: Vec<usize>,
    /// Frames of which more has to be read, and all of their bytes.
    longer: VecDeque<(u64, usize)>,
}

impl Fetches {
    pub(super) fn new(slots: u32) -> Self {
        let asked = vec![0; slots as usize];
        Self { guess: TRAILER_BYTES, asked, longer: VecDeque::new() }
    }
}

impl Link {
    /// Posts the reads that are due and fit, leaving a place for a credit.
    pub(super) fn fetch(&mut self) {
        let Some(peer) = self.peer.filter(|_| self.failure.is_none()) else { return };
        while self.endpoint.budget().ops > 1 {
            let longer = self.fetches.longer.front().copied();
            let next = longer.or_else(|| Some((self.consumer.to_fetch()?, self.fetches.guess)));
            let Some((position, end)) = next else { return };
            let slot = slot_of(position, self.config.slots.into()) as usize;
            let start = if longer.is_some() { self.fetches.asked[slot] } else { 0 };
            let dst = match self.ring.part(slot, start..end) {
                Ok(dst) => dst,
                Err(error) => unreachable!("a frame fits its slot: {error}"),
            };
            let offset = (slot * self.config.slot_bytes as usize + start) as u64;
            let (src, id) = (RemoteRange { key: peer, offset }, OpId(position << KIND_BITS | READ));
            if let Err(error) = self.endpoint.read(&dst, src, id, Flags::SIGNAL) {
                return self.fail(refused(error));
            }
            match longer {
                Some(_) => drop(self.fetches.longer.pop_front()),
                None => self.consumer.asked(),
            }
            self.fetches.asked[slot] = end;
            self.unsubmitted = true;
            self.stats.reads += 1;
            self.stats.ring_bytes_read += (end - start) as u64;
        }
    }

    /// A read of the frame of `position` has completed: it is here, or longer than was asked for.
    pub(super) fn fetched(&mut self, position: u64) -> Result<(), Failure> {
        let slot = slot_of(position, self.config.slots.into()) as usize;
        let words = self.ring.trailer(slot);
        let trailer = Trailer::decode(&words, self.config.payload_max())
            .map_err(|detail| Failure::Protocol(format!("frame {position}: {detail}")))?;
        let all = TRAILER_BYTES + (trailer.len as usize).next_multiple_of(64);
        if self.fetches.asked[slot] < all {
            self.fetches.longer.push_back((position, all));
        } else {
            self.consumer.fetched(position);
            self.fetches.guess = all;
        }
        Ok(())
    }
}
