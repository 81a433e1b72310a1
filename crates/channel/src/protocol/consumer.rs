//! The consuming end: which slot may be looked at, and which credit is due.

use fabric::Publish;

use super::wire::{commit_word, distance};
use super::{Breach, Contiguous, slot_of};

/// The consumer of one ring.
///
/// Accepts positions in order, each once. Keeps `returned <= released <= accepted`: credit follows
/// use, and covers only a contiguous run of released positions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Consumer {
    slots: u64,
    incarnation: u32,
    /// The first position of this incarnation.
    first: u64,
    credit_batch: u64,
    arrived: Arrived,
    accepted: u64,
    released: Contiguous,
    returned: u64,
    /// One past the last frame that names a payload in the producer's region.
    lent_below: u64,
}

/// What is known of frames that were not accepted yet, by publish mode.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Arrived {
    /// Mode A: the slot itself says it.
    InSlot,
    /// Mode B: all below.
    Below(u64),
    /// Mode C: each.
    Each(Contiguous),
    /// Read mode: all below `below` may be read, reads of those below `asked` were posted, and
    /// those in `fetched` are here.
    Fetched { below: u64, asked: u64, fetched: Contiguous },
}

impl Consumer {
    /// A consumer that expects position 0 of this incarnation.
    pub fn new(slots: u32, control_slots: u32, incarnation: u32, publish: Publish) -> Self {
        Self {
            slots: slots.into(),
            incarnation,
            first: 0,
            // A quarter of the ring; never so much that the data slots could run dry before credit
            // is due.
            credit_batch: u64::from((slots / 4).clamp(1, slots - control_slots)),
            arrived: match publish {
                Publish::InOrderPoll => Arrived::InSlot,
                Publish::Notify => Arrived::Below(0),
                Publish::NotifyCounted => Arrived::Each(Contiguous::default()),
            },
            accepted: 0,
            released: Contiguous::default(),
            returned: 0,
            lent_below: 0,
        }
    }

    /// Returns credit on its own after this many slots, and never so seldom that the data slots
    /// could run dry before.
    pub fn returning_every(&mut self, slots: u32, control_slots: u32) {
        self.credit_batch = u64::from(slots).clamp(1, self.slots - u64::from(control_slots));
    }

    /// A consumer that reads frames from the producer's memory (W3), and expects position 0.
    pub fn reading(slots: u32, control_slots: u32, incarnation: u32) -> Self {
        Self {
            arrived: Arrived::Fetched { below: 0, asked: 0, fetched: Contiguous::default() },
            ..Self::new(slots, control_slots, incarnation, Publish::Notify)
        }
    }

    /// Goes on over a new connection and another ring, whose memory is zero: with the frame behind
    /// those that were accepted.
    pub fn renew(&mut self, incarnation: u32) {
        let first = self.accepted;
        (self.incarnation, self.first) = (incarnation, first);
        let none = Contiguous::starting_at(first);
        (self.released, self.returned, self.lent_below) = (none, first, first);
        self.arrived = match self.arrived {
            Arrived::InSlot => Arrived::InSlot,
            Arrived::Below(_) => Arrived::Below(first),
            Arrived::Each(_) => Arrived::Each(none),
            Arrived::Fetched { .. } => {
                Arrived::Fetched { below: first, asked: first, fetched: none }
            }
        };
    }

    /// A notice that all frames below `count` were written (modes A and B, and where we read).
    ///
    /// # Errors
    /// [`Breach::Notice`] for frames beyond the credit.
    pub fn frames_notice(&mut self, count: u16) -> Result<(), Breach> {
        let limit = self.limit();
        if let Arrived::Below(below) | Arrived::Fetched { below, .. } = &mut self.arrived
            && let Ok(step) = u64::try_from(distance(*below, count))
        {
            let end = *below + step;
            if end > limit {
                return Err(Breach::Notice { position: end - 1, limit });
            }
            *below = end;
        }
        Ok(())
    }

    /// A notice that the frame at `count` was written (mode C).
    ///
    /// # Errors
    /// [`Breach::Notice`] for a frame beyond the credit.
    pub fn frame_notice(&mut self, count: u16) -> Result<(), Breach> {
        let limit = self.limit();
        if let Arrived::Each(arrived) = &mut self.arrived
            && let Ok(step) = u64::try_from(distance(arrived.below(), count))
        {
            let position = arrived.below() + step;
            if position >= limit {
                return Err(Breach::Notice { position, limit });
            }
            arrived.mark(position);
        }
        Ok(())
    }

    /// The position of the frame that is to be read next, if it was announced. Its slot here is
    /// free: the producer had credit for it.
    pub fn to_fetch(&self) -> Option<u64> {
        match &self.arrived {
            Arrived::Fetched { below, asked, .. } => (asked < below).then_some(*asked),
            _ => None,
        }
    }

    /// The read of [`to_fetch`](Self::to_fetch) was posted.
    pub fn asked(&mut self) {
        if let Arrived::Fetched { asked, .. } = &mut self.arrived {
            *asked += 1;
        }
    }

    /// All of the frame of `position` was read.
    ///
    /// # Panics
    /// When it was not asked for.
    pub fn fetched(&mut self, position: u64) {
        if let Arrived::Fetched { asked, fetched, .. } = &mut self.arrived {
            assert!(position < *asked, "position {position} was not asked for");
            fetched.mark(position);
        }
    }

    /// The position whose slot may be looked at; `None` while no notice covers it (modes B and C),
    /// or it was not read.
    pub fn head(&self) -> Option<u64> {
        let arrived = match &self.arrived {
            Arrived::InSlot => true,
            Arrived::Below(below) => self.accepted < *below,
            Arrived::Each(arrived) | Arrived::Fetched { fetched: arrived, .. } => {
                self.accepted < arrived.below()
            }
        };
        arrived.then_some(self.accepted)
    }

    /// True when the commit word of the slot of [`head`](Self::head), loaded with acquire, says
    /// that the frame is there; false when it is not there yet.
    ///
    /// # Errors
    /// [`Breach::Commit`] for a word that is neither: of another incarnation, or after a notice
    /// that came too early.
    pub fn is_there(&self, commit: u64) -> Result<bool, Breach> {
        let position = self.accepted;
        let expected = commit_word(self.incarnation, position);
        if commit == expected {
            return Ok(true);
        }
        let before = match position.checked_sub(self.slots) {
            Some(lap_before) if lap_before >= self.first => {
                commit_word(self.incarnation, lap_before)
            }
            _ => 0,
        };
        if commit == before && matches!(self.arrived, Arrived::InSlot) {
            return Ok(false);
        }
        Err(Breach::Commit { position, found: commit, expected })
    }

    /// Accepts the frame at [`head`](Self::head) and returns its position.
    pub fn accept(&mut self) -> u64 {
        self.accepted += 1;
        self.accepted - 1
    }

    /// The frame that was accepted last names a payload in the producer's region (W3), which is to
    /// be read: credit for it is returned as soon as all up to it are released.
    pub fn borrowed(&mut self) {
        self.lent_below = self.accepted;
    }

    /// Whether credit was returned for all frames that name payloads in the producer's region.
    pub fn has_returned_borrowed(&self) -> bool {
        self.returned >= self.lent_below
    }

    /// Frames from `position` on were accepted, and what they name was not read before the
    /// connection ended: they are accepted once more behind a [`renew`](Self::renew).
    ///
    /// # Panics
    /// When they were not accepted.
    pub fn withdraw(&mut self, position: u64) {
        assert!(position < self.accepted, "position {position} was not accepted");
        self.accepted = position;
    }

    /// Frames accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Frames accepted and not released.
    pub fn held(&self) -> u64 {
        self.accepted - self.released.below() - u64::from(self.released.ahead())
    }

    /// The frame at `position` is not used any more.
    ///
    /// # Panics
    /// When it was not accepted.
    pub fn release(&mut self, position: u64) {
        assert!(position < self.accepted, "position {position} was not accepted");
        self.released.mark(position);
    }

    /// As [`release`](Self::release) for the frame that slot `slot` holds.
    pub fn release_slot(&mut self, slot: u32) {
        let below = self.released.below();
        let ahead = slot_of(u64::from(slot) + self.slots - slot_of(below, self.slots), self.slots);
        self.release(below + ahead);
    }

    /// The credit for a trailer that leaves now; [`returned`](Self::returned) follows once it was
    /// posted.
    pub fn credit(&self) -> u64 {
        self.released.below()
    }

    /// The credit that is worth a notice of its own: a batch was released since the last one. Where
    /// we read, also the last one of what was announced, or is in a region: the producer may be
    /// waiting to go, or for slots.
    pub fn credit_due(&self) -> Option<u64> {
        let credit = self.released.below();
        let last = matches!(self.arrived, Arrived::Fetched { below, .. } if below == credit);
        let read = self.returned < self.lent_below && self.lent_below <= credit;
        let batch = if last || read { 1 } else { self.credit_batch };
        (credit - self.returned >= batch).then_some(credit)
    }

    /// This credit was posted.
    pub fn returned(&mut self, credit: u64) {
        self.returned = self.returned.max(credit);
    }

    /// One past the last position that the peer may have written.
    fn limit(&self) -> u64 {
        self.returned + self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumer(publish: Publish) -> Consumer {
        Consumer::new(4, 1, 7, publish)
    }

    #[test]
    fn polling_tells_the_lap_before_from_the_frame() {
        let mut polling = consumer(Publish::InOrderPoll);
        assert_eq!(polling.head(), Some(0));
        assert_eq!(polling.is_there(0), Ok(false));
        for position in 0..4 {
            assert_eq!(polling.is_there(commit_word(7, position)), Ok(true));
            polling.accept();
        }
        assert_eq!(polling.is_there(commit_word(7, 0)), Ok(false));
        assert_eq!(polling.is_there(commit_word(7, 4)), Ok(true));
        for stranger in [commit_word(6, 4), commit_word(7, 8), 0, u64::MAX] {
            polling.is_there(stranger).expect_err("neither");
        }
    }

    #[test]
    fn a_notice_must_be_backed_by_the_slot() {
        let mut notified = consumer(Publish::Notify);
        assert_eq!(notified.head(), None);
        notified.frames_notice(2).expect("within the ring");
        notified.frames_notice(1).expect("a late notice changes nothing");
        assert_eq!(notified.head(), Some(0));
        notified.is_there(0).expect_err("announced and not there");
        notified.accept();
        notified.accept();
        assert_eq!(notified.head(), None);
        assert_eq!(notified.frames_notice(5), Err(Breach::Notice { position: 4, limit: 4 }));
    }

    #[test]
    fn counted_notices_open_the_head_in_order() {
        let mut counted = consumer(Publish::NotifyCounted);
        counted.frame_notice(1).expect("within the ring");
        assert_eq!(counted.head(), None);
        counted.frame_notice(0).expect("within the ring");
        assert_eq!(counted.head(), Some(0));
        assert_eq!(counted.frame_notice(4), Err(Breach::Notice { position: 4, limit: 4 }));
    }

    #[test]
    fn a_frame_is_read_once_after_its_notice_and_the_last_is_acknowledged() {
        let mut reading = Consumer::reading(8, 1, 7);
        assert_eq!(reading.to_fetch(), None);
        reading.frames_notice(2).expect("within the ring");
        for position in 0..2 {
            assert_eq!(reading.to_fetch(), Some(position));
            reading.asked();
        }
        assert_eq!((reading.to_fetch(), reading.head()), (None, None));
        reading.fetched(1);
        assert_eq!(reading.head(), None, "in order");
        reading.fetched(0);
        for position in 0..2 {
            assert_eq!(reading.head(), Some(position));
            assert_eq!(reading.is_there(commit_word(7, position)), Ok(true));
            reading.accept();
            assert_eq!(reading.credit_due(), None, "half a batch, and more was announced");
            reading.release(position);
        }
        assert_eq!(reading.credit_due(), Some(2));
        reading.returned(2);
        assert_eq!(reading.credit_due(), None);
        assert_eq!(reading.frames_notice(11), Err(Breach::Notice { position: 10, limit: 10 }));
    }

    #[test]
    fn credit_follows_the_contiguous_release() {
        let mut consumer = consumer(Publish::InOrderPoll);
        (0..4).for_each(|_| {
            consumer.accept();
        });
        consumer.release_slot(3);
        consumer.release_slot(1);
        assert_eq!((consumer.credit(), consumer.held(), consumer.credit_due()), (0, 2, None));
        consumer.release_slot(0);
        assert_eq!((consumer.credit(), consumer.credit_due()), (2, Some(2)));
        consumer.returned(2);
        assert_eq!(consumer.credit_due(), None);
        consumer.release_slot(2);
        assert_eq!((consumer.credit(), consumer.held()), (4, 0));
        consumer.accept();
        consumer.release_slot(0);
        assert_eq!(consumer.credit(), 5);
    }

    #[test]
    fn credit_is_due_before_the_data_slots_run_dry() {
        let mut consumer = Consumer::new(64, 63, 0, Publish::InOrderPoll);
        let position = consumer.accept();
        consumer.release(position);
        assert_eq!(consumer.credit_due(), Some(1));
    }

    #[test]
    #[should_panic(expected = "not accepted")]
    fn releasing_twice_is_our_bug() {
        let mut consumer = consumer(Publish::InOrderPoll);
        consumer.accept();
        consumer.release_slot(0);
        consumer.release_slot(0);
    }
}
