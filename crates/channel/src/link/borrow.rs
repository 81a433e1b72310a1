//! Payloads that lie in the peer's region, and are read from there (W3).
//!
//! ```text
//!   producer                                        each of its consumers
//!   fill a slot of the region, once
//!   a frame on each ring: offset, length ─────────▶ accept it, READ the payload into its slot
//!                                                   hand out, in order, when the READ is done
//!          ◀── credit: all below q are released ─── the payload was dropped
//!   this consumer's loan ends; the last one frees the slot
//! ```
//!
//! A READ lands in the ring slot of the frame that names the payload, in front of its trailer. That
//! slot is not free before the payload is dropped, and so neither it nor the slot of the region
//! changes during a READ. A frame whose READ had not completed when the connection broke
//! counts as not taken: the peer posts it again.

use std::sync::Arc;

use fabric::{Flags, OpId, RemoteRange};

use super::{Failure, KIND_BITS, Link, READ, ReceivedFrame, refused};
use crate::Transfer;
use crate::region::{Reference, RegionFrame, SharedRegion};

/// A frame that was accepted.
pub(super) struct AcceptedFrame {
    pub(super) frame: ReceivedFrame,
    pub(super) position: u64,
    /// Its payload is still to be read.
    pub(super) borrowed: Option<Borrowed>,
    /// It is of the statement that this end takes part in.
    pub(super) is_current: bool,
}

/// A payload that is to be read.
pub(super) struct Borrowed {
    pub(super) reference: Reference,
    /// The READ was posted.
    pub(super) asked: bool,
}

impl AcceptedFrame {
    /// Whether all of it is here.
    pub(super) fn is_here(&self) -> bool {
        self.borrowed.is_none()
    }
}

impl Link {
    /// Whether a payload may stay where it is and be [lent](crate::SlotWriter::lend) to this peer.
    pub fn lends(&self, payload: &RegionFrame) -> bool {
        self.region.as_ref().is_some_and(|region| payload.is_in(region))
    }

    /// Lends payloads from this region to the peer; before the descriptor is made. Several links of
    /// one fabric share a region.
    ///
    /// # Panics
    /// Where rings are not configured for it ([`Transfer::Region`]).
    #[must_use]
    pub fn lending(mut self, region: Arc<SharedRegion>) -> Link {
        assert_eq!(self.config.transfer, Transfer::Region, "nobody would read it");
        self.region = Some(region);
        self
    }

    /// The region that this end lends from, if it does.
    pub fn region(&self) -> Option<&Arc<SharedRegion>> {
        self.region.as_ref()
    }

    /// The next frame, if all of it is here.
    pub(super) fn take_out(&mut self) -> Option<ReceivedFrame> {
        while let Some(AcceptedFrame { frame, is_current, .. }) =
            self.inbox.pop_front_if(|front| front.is_here())
        {
            if is_current {
                return Some(frame);
            }
            self.stats.frames_dropped += 1;
        }
        None
    }

    /// Posts the READs that are due and fit, leaving a place for a credit.
    pub(super) fn read_borrowed(&mut self) {
        let Some(key) = self.peer_region.filter(|_| self.failure.is_none()) else { return };
        for accepted in &mut self.inbox {
            let AcceptedFrame { frame, position, borrowed, .. } = accepted;
            let Some(borrowed) = borrowed.as_mut().filter(|borrowed| !borrowed.asked) else {
                continue;
            };
            let budget = self.endpoint.budget();
            if budget.ops <= 1 {
                self.cramped = Some(budget);
                return;
            }
            let dst = match frame.payload.landing() {
                Ok(dst) => dst,
                Err(error) => unreachable!("a payload fits its slot: {error}"),
            };
            let src = RemoteRange { key, offset: borrowed.reference.offset };
            let id = OpId(*position << KIND_BITS | READ);
            if let Err(error) = self.endpoint.read(&dst, src, id, Flags::SIGNAL) {
                return self.fail(refused(error));
            }
            borrowed.asked = true;
            self.unsubmitted = true;
            self.stats.reads += 1;
            self.stats.ring_bytes_read += dst.len() as u64;
        }
    }

    /// The READ of what the frame of `position` names has completed.
    pub(super) fn has_read(&mut self, position: u64) -> Result<(), Failure> {
        let checks = self.config.payload_crc;
        let found = self.inbox.iter_mut().find(|accepted| accepted.position == position);
        let Some(AcceptedFrame { frame, borrowed, .. }) = found else { return Ok(()) };
        let Some(Borrowed { reference, .. }) = borrowed else { return Ok(()) };
        if checks && crc32c::crc32c(frame.payload.as_ref()) != reference.crc {
            return Err(Failure::Disconnected(fabric::ErrorKind::Damaged));
        }
        *borrowed = None;
        Ok(())
    }

    /// Drops what nobody has received, now or, in its order, as soon as READs have completed.
    pub(super) fn drop_received(&mut self) {
        for accepted in &mut self.inbox {
            accepted.is_current = false;
        }
        let none = self.take_out();
        debug_assert!(none.is_none(), "all are of a former statement");
    }

    /// Gives up the frames from the first one on that was not read over the connection that has
    /// ended, before the ring is made anew.
    pub(super) fn withdraw_unread(&mut self) {
        let unread = self.inbox.iter().position(|accepted| !accepted.is_here());
        let Some(at) = unread else { return };
        self.consumer.withdraw(self.inbox[at].position);
        for AcceptedFrame { frame, .. } in self.inbox.drain(at..) {
            self.stats.frames_received -= 1;
            self.stats.payload_bytes_received -= frame.payload.len() as u64;
        }
    }
}
