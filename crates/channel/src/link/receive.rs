//! Frames that have landed, and slots that are free again.

use super::borrow::{AcceptedFrame, Borrowed};
use super::{Failure, Link, ReceivedFrame};
use crate::protocol::{commit_word, slot_of};
use crate::region::Reference;
use crate::trailer::{self, Trailer};

impl Link {
    /// Moves the frame at the head to the inbox, if it is there. True when it was.
    pub(super) fn take_in(&mut self) -> bool {
        match self.accept() {
            Ok(Some(frame)) => {
                self.inbox.push_back(frame);
                self.read_borrowed();
            }
            Ok(None) => return false,
            Err(failure) => {
                self.fail(failure);
                return false;
            }
        }
        true
    }

    /// Accepts the frame at the head, if it is there, and drops those of former statements in front
    /// of it, of which a ring holds no more than it has slots.
    pub(super) fn accept(&mut self) -> Result<Option<AcceptedFrame>, Failure> {
        for _ in 0..=self.config.slots {
            match self.accept_head()? {
                Some((frame, true)) => return Ok(Some(frame)),
                // In their order: what is in front of it may have to be accepted once more.
                Some((frame, false)) if !self.inbox.is_empty() => self.inbox.push_back(frame),
                Some((_, false)) => self.stats.frames_dropped += 1,
                None => break,
            }
        }
        Ok(None)
    }

    /// Accepts the frame at the head, if it is there, and says whether it is of the current
    /// statement.
    fn accept_head(&mut self) -> Result<Option<(AcceptedFrame, bool)>, Failure> {
        use fabric::ErrorKind::Damaged;
        if matches!(self.failure, Some(Failure::Protocol(_) | Failure::Disconnected(Damaged))) {
            return Ok(None);
        }
        let Some(position) = self.consumer.head() else { return Ok(None) };
        let slot = slot_of(position, self.config.slots.into()) as u32;
        if !self.consumer.is_there(self.ring.commit(slot as usize))? {
            return Ok(None);
        }
        let at = |detail: String| Failure::Protocol(format!("frame {position}: {detail}"));
        let words = self.ring.trailer(slot as usize);
        let payload_max = self.config.payload_max();
        if self.config.payload_crc {
            // Nothing is believed before: a length that does not fit is damage, too.
            let len = Trailer::decode(&words, payload_max).map_or(0, |trailer| trailer.len);
            if !trailer::is_intact(&words, self.ring.bytes(slot, len as usize)) {
                return Err(Failure::Disconnected(Damaged));
            }
        }
        let trailer = Trailer::decode(&words, payload_max).map_err(at)?;
        if !self.config.payload_crc && !trailer::is_intact(&words, &[]) {
            return Err(at("the checksum of the trailer does not fit".into()));
        }
        if trailer.commit != commit_word(self.incarnation, position) {
            return Err(at("the commit word changed while it was read".into()));
        }
        let is_current = self.statement.has(trailer.statement)?;
        let mut len = trailer.len as usize;
        let reference = if trailer.borrowed && is_current {
            let reference = self.reference(slot, len).map_err(at)?;
            len = reference.len as usize;
            Some(reference)
        } else {
            None
        };
        self.producer.credit(trailer.credit)?;
        self.lent.read_below(self.producer.released_below());
        self.consumer.accept();
        if reference.is_some() {
            self.consumer.borrowed();
        }
        let payload = self.ring.payload(slot, len);
        self.stats.frames_received += 1;
        self.stats.payload_bytes_received += len as u64;
        let borrowed = reference.map(|reference| Borrowed { reference, asked: false });
        let frame = ReceivedFrame { header: trailer.header, payload };
        Ok(Some((AcceptedFrame { frame, position, borrowed, is_current }, is_current)))
    }

    /// Where the payload of the next frame lies, which has come and was not accepted yet.
    fn reference(&self, slot: u32, len: usize) -> Result<Reference, String> {
        let region = self.peer_region.ok_or("it names a region, and the peer has none")?;
        Reference::decode(self.ring.bytes(slot, len), region, self.config.payload_max())
    }

    /// Releases the slots whose payloads were dropped. True when there were any.
    pub(super) fn collect(&mut self) -> bool {
        let mut slots = self.ring.collect();
        let any = slots != 0;
        // In the order of positions: a slot beyond the contiguous part is found from the first
        // unreleased one.
        while slots != 0 {
            self.consumer.release_slot(slots.trailing_zeros());
            slots &= slots - 1;
        }
        any
    }
}
