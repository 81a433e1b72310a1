//! A reserved slot on its way from the caller to the endpoint.
//!
//! Borrows its link, so that nothing else can be posted between the check of credit and queue and
//! the post itself.

use fabric::RemoteKey;

use super::{Link, StagedFrame};
use crate::Header;
use crate::protocol::{Class, slot_of};
use crate::region::{Reference, RegionFrame};

/// A slot that may be filled. Dropped without [`publish`](Self::publish) nothing was sent.
pub struct SlotWriter<'a> {
    pub(super) link: &'a mut Link,
    pub(super) peer: RemoteKey,
    pub(super) position: u64,
    pub(super) class: Class,
}

impl SlotWriter<'_> {
    /// The payload: [`RingConfig::payload_max`](crate::RingConfig::payload_max) bytes from a
    /// multiple of 64, with whatever was there before.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let slot = slot_of(self.position, self.link.config.slots.into());
        self.link.staging.payload_mut(slot as usize)
    }

    /// Sends the first `len` bytes of the payload. The peer sees it after [`Link::flush`], or
    /// before.
    ///
    /// # Panics
    /// When `len` exceeds the payload.
    pub fn publish(self, header: Header, len: usize) {
        assert!(len <= self.link.config.payload_max(), "{len} bytes do not fit a slot");
        if self.class == Class::Control {
            self.link.signal_next();
        }
        self.link.stats.frames_sent += 1;
        self.link.stats.payload_bytes_sent += len as u64;
        let statement = self.link.statement;
        let borrowed = false;
        let frame = StagedFrame { header, statement, len, borrowed };
        self.link.post_frame(self.peer, self.position, frame);
    }

    /// Sends a payload that stays in the region, from where the peer reads it; see
    /// [`Link::lends`].
    ///
    /// # Panics
    /// When it lies in another region than the link's.
    pub fn lend(mut self, header: Header, payload: &RegionFrame) {
        assert!(self.link.lends(payload), "it lies in another region");
        if self.class == Class::Control {
            self.link.signal_next();
        }
        self.payload_mut()[..Reference::BYTES].copy_from_slice(&payload.reference().encode());
        let bytes = payload.as_ref().len() as u64;
        self.link.stats.frames_sent += 1;
        self.link.stats.frames_lent += 1;
        self.link.stats.payload_bytes_sent += bytes;
        self.link.lent.lend(self.position, payload.clone());
        let (statement, len) = (self.link.statement, Reference::BYTES);
        let frame = StagedFrame { header, statement, len, borrowed: true };
        self.link.post_frame(self.peer, self.position, frame);
    }
}
