//! Frames that have landed, and slots that are free again.

use super::{Failure, Link, ReceivedFrame};
use crate::protocol::{commit_word, slot_of};
use crate::trailer::{self, Trailer};

impl Link {
    /// Moves the frame at the head to the inbox, if it is there. True when it was.
    pub(super) fn take_in(&mut self) -> bool {
        match self.accept() {
            Ok(Some(frame)) => self.inbox.push_back(frame),
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
    pub(super) fn accept(&mut self) -> Result<Option<ReceivedFrame>, Failure> {
        for _ in 0..=self.config.slots {
            match self.accept_head()? {
                Some((frame, true)) => return Ok(Some(frame)),
                Some((_, false)) => self.stats.frames_dropped += 1,
                None => break,
            }
        }
        Ok(None)
    }

    /// Accepts the frame at the head, if it is there, and says whether it is of the current
    /// statement.
    fn accept_head(&mut self) -> Result<Option<(ReceivedFrame, bool)>, Failure> {
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
        self.producer.credit(trailer.credit)?;
        self.consumer.accept();
        let payload = self.ring.payload(slot, trailer.len as usize);
        self.stats.frames_received += 1;
        self.stats.payload_bytes_received += u64::from(trailer.len);
        Ok(Some((ReceivedFrame { header: trailer.header, payload }, is_current)))
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
