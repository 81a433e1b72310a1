//! How far each helper's event time has come (S11).

/// The watermark of a helper that has read its input to the end.
pub const END_OF_STREAM: i64 = i64::MAX;

/// A helper's announcement of its event time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Progress {
    /// No row before it will come of this helper, in ticks of event time.
    pub watermark: i64,
    /// Whether rows are to come at all.
    pub presence: Presence,
}

/// Whether rows of a helper are to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Presence {
    /// They come: its watermark holds time back.
    Active,
    /// None for the time being: it holds nothing back, and time may pass its watermark. Before it
    /// judges rows again it says that it is [`Presence::Active`], and learns how far time has come.
    Idle,
    /// None any more. It holds time back at its watermark, unless that is [`END_OF_STREAM`].
    Ended,
}

impl Progress {
    /// Rows are to come, at this watermark and after it.
    pub fn active(watermark: i64) -> Self {
        Self { watermark, presence: Presence::Active }
    }

    /// No rows for the time being.
    pub fn idle(watermark: i64) -> Self {
        Self { watermark, presence: Presence::Idle }
    }

    /// No rows any more; [`END_OF_STREAM`] if that was all of its input.
    pub fn ended(watermark: i64) -> Self {
        Self { watermark, presence: Presence::Ended }
    }

    fn is_complete(&self) -> bool {
        *self == Self::ended(END_OF_STREAM)
    }

    /// Whether time may not pass its watermark.
    fn holds(&self) -> bool {
        self.presence != Presence::Idle && !self.is_complete()
    }
}

/// The event time of a partition, as far as its helpers have told of it.
///
/// A helper that has said nothing is active at the beginning of time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VectorClock {
    helpers: Vec<Progress>,
    least: i64,
    /// The greatest watermark that any helper has announced, but [`END_OF_STREAM`].
    greatest: i64,
}

impl VectorClock {
    /// A clock of this many helpers.
    pub fn new(helpers: u32) -> Self {
        let helpers = vec![Progress::active(i64::MIN); helpers as usize];
        let mut clock = Self { helpers, least: i64::MIN, greatest: i64::MIN };
        clock.refresh();
        clock
    }

    /// The same of a partition whose windows up to `least` have fired: rows before it are late.
    pub fn beginning_at(helpers: u32, least: i64) -> Self {
        Self { least, ..Self::new(helpers) }
    }

    /// Brings time to where it depends on what helpers have announced, and not on the order in
    /// which that came: partitions that have heard the same have the same clock then. It only makes
    /// a difference where nobody holds time back: then it goes to the greatest watermark that was
    /// announced. True as for [`advance`](Self::advance).
    pub fn settle(&mut self) -> bool {
        let before = self.least;
        if !self.helpers.iter().any(Progress::holds) {
            self.least = self.least.max(self.greatest);
        }
        before != self.least
    }

    /// Notes what a helper says. Its watermark does not go back, and who has ended does not come
    /// back. True if [`least`](Self::least) or [`ended`](Self::ended) tells something new.
    pub fn advance(&mut self, helper: u32, announced: Progress) -> bool {
        let before = (self.least, self.ended());
        if let Some(own) = self.helpers.get_mut(helper as usize) {
            if announced.watermark != END_OF_STREAM {
                self.greatest = self.greatest.max(announced.watermark);
            }
            own.watermark = own.watermark.max(announced.watermark);
            if own.presence != Presence::Ended {
                own.presence = announced.presence;
            }
        }
        self.refresh();
        before != (self.least, self.ended())
    }

    /// The watermark up to which windows fire: every active helper has passed it. It never goes
    /// back, though a helper that was idle may come back behind it. [`END_OF_STREAM`] when all
    /// have read their input to the end.
    pub fn least(&self) -> i64 {
        self.least
    }

    /// The value of [`least`](Self::least) if an active helper announced this watermark.
    pub fn least_with(&self, helper: u32, watermark: i64) -> i64 {
        self.least_if(Some((helper as usize, watermark)))
    }

    /// True when no helper has rows any more.
    pub fn ended(&self) -> bool {
        self.helpers.iter().all(|own| own.presence == Presence::Ended)
    }

    /// The last announcement of a helper.
    pub fn of(&self, helper: u32) -> Option<Progress> {
        self.helpers.get(helper as usize).copied()
    }

    fn refresh(&mut self) {
        self.least = self.least_if(None);
    }

    fn least_if(&self, announced: Option<(usize, i64)>) -> i64 {
        let holding = self.helpers.iter().enumerate().filter(|(_, own)| own.holds());
        let watermarks = holding.map(|(at, own)| match announced {
            Some((helper, watermark)) if helper == at => own.watermark.max(watermark),
            _ => own.watermark,
        });
        match watermarks.min() {
            Some(least) => self.least.max(least),
            None if self.helpers.iter().all(Progress::is_complete) => END_OF_STREAM,
            // Only idle helpers are left: time stands still, for they may come back.
            None => self.least,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_who_is_not_idle_counts_and_never_goes_back() {
        let mut clock = VectorClock::new(3);
        assert!(!clock.advance(0, Progress::active(10)));
        assert!(!clock.advance(1, Progress::active(20)));
        assert!(clock.advance(2, Progress::active(30)));
        assert_eq!(clock.least(), 10);
        let with = [5, 15, 25].map(|watermark| clock.least_with(0, watermark));
        assert_eq!((with, clock.least_with(1, 25)), ([10, 15, 20], 10), "it would be");
        assert_eq!(clock.least(), 10, "but is not");
        assert!(clock.advance(0, Progress::idle(10)), "an idle helper holds nothing back");
        assert_eq!(clock.least(), 20);
        assert!(!clock.advance(0, Progress::active(15)));
        assert_eq!(clock.least(), 20, "a helper that comes back does not turn time back");
        assert!(!clock.advance(1, Progress::active(25)));
        assert_eq!(clock.least(), 20, "but time waits for it");
        clock.advance(1, Progress::idle(25));
        clock.advance(0, Progress::idle(15));
        assert_eq!(clock.least(), 30);
        assert!(!clock.advance(2, Progress::idle(40)), "when all are idle, time stands still");
    }

    #[test]
    fn clocks_that_have_heard_the_same_settle_at_the_same_time() {
        let announced = [(0, Progress::active(100)), (0, Progress::idle(100))];
        let also = [(1, Progress::active(200)), (1, Progress::idle(200))];
        let clock = |announced: [&[(u32, Progress)]; 2]| {
            let mut clock = VectorClock::beginning_at(2, 50);
            for &(helper, progress) in announced.into_iter().flatten() {
                clock.advance(helper, progress);
            }
            clock
        };
        let (mut one, mut other) = (clock([&announced, &also]), clock([&also, &announced]));
        assert_eq!((one.least(), other.least()), (200, 100));
        assert!(!one.settle() && other.settle());
        assert_eq!(one, other);
        // One that has read everything holds nothing back, but time may have come to where it was.
        let end = [(0, Progress::ended(END_OF_STREAM))];
        let mut before = clock([&[(1, Progress::idle(50)), (0, Progress::active(70))], &end]);
        let mut behind = clock([&[(0, Progress::active(70)), end[0]], &[(1, Progress::idle(50))]]);
        assert_eq!((before.least(), behind.least()), (70, 50));
        assert!(!before.settle() && behind.settle());
        assert_eq!(before, behind);
        other.advance(0, Progress::active(150));
        assert!(!other.settle(), "who holds time back does so");
        assert_eq!(VectorClock::beginning_at(1, 50).least(), 50);
    }

    #[test]
    fn who_has_ended_stays_so_and_holds_time_unless_it_read_everything() {
        let mut clock = VectorClock::new(3);
        clock.advance(0, Progress::ended(END_OF_STREAM));
        clock.advance(1, Progress::active(20));
        assert!(clock.advance(2, Progress::active(50)));
        assert_eq!(clock.least(), 20);
        assert!(clock.advance(1, Progress::ended(40)));
        clock.advance(2, Progress::active(90));
        assert_eq!(clock.least(), 40, "who was stopped ends where it was");
        assert!(!clock.ended());
        assert!(clock.advance(2, Progress::ended(END_OF_STREAM)));
        assert!(!clock.advance(2, Progress::idle(0)));
        assert!(clock.ended());
        assert_eq!((clock.least(), clock.of(1)), (40, Some(Progress::ended(40))));
        assert!(!clock.advance(3, Progress::ended(0)), "there is no such helper");
        assert_eq!(clock.of(3), None);
        assert_eq!(VectorClock::new(0).least(), END_OF_STREAM);
    }
}
