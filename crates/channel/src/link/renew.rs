//! A link that goes on when its connection has broken.
//!
//! ```text
//!   Disconnected ─▶ renew(endpoint): the old connection is closed, what had landed is taken,
//!                   the ring is new ─▶ descriptor: how much was taken ─▶ attach: the rest again
//! ```
//!
//! Nothing that was posted over the old connection can land once it is closed (G8), so that what
//! this end has taken by then is all that it will. The peer still has the rest in its staging slots
//! and posts it again, under the same positions and the next incarnation. No frame is lost or
//! comes twice, and those that were received before stay valid: the old ring lives as long as they.

use fabric::{Endpoint, Fabric};

use super::fetch::Fetches;
use super::{Failure, Link, open};
use crate::LinkError;
use crate::memory::Ring;
use crate::protocol::{Class, slot_of};

impl Link {
    /// Goes on over another connection of the same fabric, after [`LinkError::Disconnected`] or
    /// because the peer has lost this one. Then both ends give each other their
    /// [`descriptor`](Self::descriptor) and [`attach`](Self::attach) again; `incarnation` is the
    /// same at both and greater than before. Until then frames that had arrived can be received,
    /// and none can be sent.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] or [`LinkError::Closed`] when the link has ended so,
    /// [`LinkError::Config`] for an endpoint of another kind, [`LinkError::Fabric`] when memory is
    /// refused. The old connection is closed in any case.
    pub fn renew(
        &mut self,
        fabric: &dyn Fabric,
        mut endpoint: Box<dyn Endpoint>,
        incarnation: u32,
    ) -> Result<(), LinkError> {
        self.abandon();
        if !matches!(self.failure, None | Some(Failure::Disconnected(_))) {
            return self.failed();
        }
        let caps = endpoint.caps();
        if caps.publish != self.caps.publish || caps.max_msg < self.config.slot_bytes as usize {
            let detail = format!("the new endpoint is of another kind: {caps:?}");
            return Err(LinkError::Config { detail });
        }
        let ring = Ring::alone(fabric, &self.config)?;
        self.key = open(&mut *endpoint, &self.config, &ring, &self.staging)?;
        self.withdraw_unread();
        self.ring = ring.into();
        self.consumer.renew(incarnation);
        self.fetches = Fetches::new(self.config.slots);
        (self.endpoint, self.caps, self.incarnation) = (endpoint, caps, incarnation);
        (self.peer, self.failure, self.slept_at, self.cramped) = (None, None, None, None);
        (self.peer_sleeps, self.wake_due) = (false, false);
        (self.unsignalled, self.notices_open, self.recvs_used) = (0, 0, 0);
        self.tune();
        self.endpoint.submit();
        Ok(())
    }

    /// Ends the connection, and takes what has landed by then.
    fn abandon(&mut self) {
        // A failure is looked at behind.
        let _ = self.poll();
        self.endpoint.close();
        while self.take_in() {}
    }

    /// Whether frames wait to be posted again.
    pub(super) fn posts_again(&self) -> bool {
        self.producer.published() < self.again
    }

    /// Posts again what the peer had not taken when the connection broke, as far as there is room.
    pub(super) fn post_again(&mut self) {
        let Some(peer) = self.peer.filter(|_| self.failure.is_none()) else { return };
        while self.posts_again() && self.queue_has_room(Class::Data) {
            let position = self.producer.published();
            let slot = slot_of(position, self.config.slots.into()) as usize;
            self.post_frame(peer, position, self.staged[slot]);
            // It was to be announced, or will be.
            self.flushing = true;
            self.stats.frames_again += 1;
        }
    }
}
