//! The producing end: which position may be filled, and what has to be announced.

use super::wire::distance;
use super::{Breach, Contiguous};

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Rows and state. Leaves the reserved slots free.
    Data,
    /// Marks, ends and requests. May use the reserved slots.
    Control,
}

/// Why no slot can be filled now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stall {
    /// The consumer has not returned the slot's credit yet.
    Credit,
    /// The write that last used the staging slot has not completed yet.
    Staging,
}

/// The producer of one ring.
///
/// Keeps `published - credit <= slots`, and for data `published - credit <= slots - control_slots`;
/// a staging slot is filled again only after its write has completed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer {
    slots: u64,
    data_slots: u64,
    published: u64,
    announced: u64,
    credit: u64,
    retired: Contiguous,
}

impl Producer {
    /// A producer that has published nothing and may fill all slots.
    pub fn new(slots: u32, control_slots: u32) -> Self {
        Self {
            slots: slots.into(),
            data_slots: (slots - control_slots).into(),
            published: 0,
            announced: 0,
            credit: 0,
            retired: Contiguous::default(),
        }
    }

    /// The position that the next frame of this class may take.
    ///
    /// # Errors
    /// The reason why there is none now.
    pub fn reserve(&self, class: Class) -> Result<u64, Stall> {
        let slots = match class {
            Class::Data => self.data_slots,
            Class::Control => self.slots,
        };
        if self.published - self.credit >= slots {
            return Err(Stall::Credit);
        }
        if self.published >= self.slots && !self.retired.has(self.published - self.slots) {
            return Err(Stall::Staging);
        }
        Ok(self.published)
    }

    /// Counts the reserved position as published and returns it.
    ///
    /// # Panics
    /// When there is no credit: the frame would overwrite one that is being read.
    pub fn publish(&mut self) -> u64 {
        assert!(self.published - self.credit < self.slots, "a frame without credit");
        self.published += 1;
        self.published - 1
    }

    /// Frames published.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Frames published and not yet released, as far as is known.
    pub fn in_flight(&self) -> u64 {
        self.published - self.credit
    }

    /// All frames below this position are known to be released.
    pub fn released_below(&self) -> u64 {
        self.credit
    }

    /// True when each write has completed.
    pub fn all_retired(&self) -> bool {
        self.retired.below() == self.published
    }

    /// Takes a credit from a trailer: all positions below `credit` are free. True when it is news.
    ///
    /// # Errors
    /// [`Breach::Credit`] for frames that were never published.
    pub fn credit(&mut self, credit: u64) -> Result<bool, Breach> {
        if credit > self.published {
            return Err(Breach::Credit { credit, published: self.published });
        }
        let events = credit > self.credit;
        self.credit = self.credit.max(credit);
        Ok(events)
    }

    /// As [`credit`](Self::credit), from the count of a notice.
    ///
    /// # Errors
    /// [`Breach::Credit`] for frames that were never published.
    pub fn credit_notice(&mut self, count: u16) -> Result<bool, Breach> {
        match u64::try_from(distance(self.credit, count)) {
            Ok(step) => self.credit(self.credit + step),
            Err(_) => Ok(false),
        }
    }

    /// The write of `position` has completed.
    pub fn retire(&mut self, position: u64) {
        self.retired.mark(position);
    }

    /// Goes on over a new connection, to a ring in which all slots are free, of a consumer that has
    /// taken all frames below `taken`. The others are published again: their staging slots still
    /// hold them, for none is filled anew before there is credit for its last frame.
    ///
    /// # Errors
    /// [`Breach::Taken`] when that cannot be.
    pub fn renew(&mut self, taken: u64) -> Result<(), Breach> {
        let Self { credit, published, .. } = *self;
        if !(credit..=published).contains(&taken) {
            return Err(Breach::Taken { taken, credit, published });
        }
        let retired = Contiguous::starting_at(taken);
        *self = Self { published: taken, announced: taken, credit: taken, retired, ..*self };
        Ok(())
    }

    /// The writes of all positions below `end` have completed.
    pub fn retire_below(&mut self, end: u64) {
        self.retired.mark_below(end);
    }

    /// The count of a notice that covers all published frames; `None` when they are announced
    /// already.
    pub fn unannounced(&self) -> Option<u16> {
        (self.announced < self.published).then_some(self.published as u16)
    }

    /// The notice of [`unannounced`](Self::unannounced) was posted.
    pub fn announce(&mut self) {
        self.announced = self.published;
    }

    /// True when frames were published beyond `seen`, the count of a consumer that goes to sleep.
    pub fn is_beyond(&self, seen: u16) -> bool {
        distance(self.published, seen) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_leaves_the_reserved_slots_to_control() {
        let mut producer = Producer::new(4, 1);
        for position in 0..3 {
            assert_eq!(producer.reserve(Class::Data), Ok(position));
            producer.publish();
        }
        assert_eq!(producer.reserve(Class::Data), Err(Stall::Credit));
        assert_eq!(producer.reserve(Class::Control), Ok(3));
        producer.publish();
        assert_eq!(producer.reserve(Class::Control), Err(Stall::Credit));
    }

    #[test]
    fn credit_is_cumulative_and_bounded_by_what_was_published() {
        let mut producer = Producer::new(4, 1);
        (0..4).for_each(|_| {
            producer.publish();
        });
        assert_eq!(producer.credit(2), Ok(true));
        assert_eq!(producer.credit(2), Ok(false), "twice");
        assert_eq!(producer.credit_notice(1), Ok(false), "late");
        assert_eq!(producer.in_flight(), 2);
        let breach = Breach::Credit { credit: 5, published: 4 };
        assert_eq!(producer.credit(5), Err(breach));
        assert_eq!(producer.credit_notice(5), Err(breach));
    }

    #[test]
    fn staging_waits_for_its_write_even_with_credit() {
        let mut producer = Producer::new(2, 1);
        producer.publish();
        producer.publish();
        producer.credit(2).expect("published");
        assert_eq!(producer.reserve(Class::Control), Err(Stall::Staging));
        producer.retire(1);
        assert_eq!(producer.reserve(Class::Control), Err(Stall::Staging), "slot 0 is next");
        producer.retire_below(1);
        assert_eq!(producer.reserve(Class::Control), Ok(2));
        assert!(producer.all_retired());
    }

    #[test]
    fn counts_cross_their_wrap() {
        let mut producer = Producer::new(4, 1);
        for _ in 0..0x1_0003 {
            producer.publish();
            producer.credit(producer.published() - 1).expect("published");
        }
        assert_eq!(producer.credit_notice(3), Ok(true));
        assert_eq!(producer.in_flight(), 0);
        assert!(producer.is_beyond(0xffff) && !producer.is_beyond(3));
        assert_eq!(producer.unannounced(), Some(3));
        producer.announce();
        assert_eq!(producer.unannounced(), None);
    }

    #[test]
    #[should_panic(expected = "without credit")]
    fn publishing_without_credit_is_our_bug() {
        let mut producer = Producer::new(2, 1);
        (0..3).for_each(|_| {
            producer.publish();
        });
    }
}
