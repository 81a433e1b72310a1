//! The side that merges deltas, in epoch order, once.

use super::{Progress, Tag, VectorClock};

/// The leader of one partition: how far each helper has come in memory, and how far it is
/// committed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    helpers: Vec<Clock>,
    merged: VectorClock,
    committed: Cut,
}

/// How far one helper has come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Clock {
    incarnation: u64,
    /// The last epoch that was merged in whole.
    epoch: u64,
    /// The next chunk of the epoch after it.
    chunk: u32,
}

/// The position of each helper in the merged state, to be written together with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cut {
    /// Per helper the last epoch.
    pub epochs: Vec<u64>,
    /// Their event time.
    pub clock: VectorClock,
}

/// The verdict on a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Keep it beside the state, for the rest of its epoch is still to come.
    Stage,
    /// It completes its epoch: merge it with all that is staged of this helper.
    Complete,
    /// Do not merge it.
    Refuse(TagRefusal),
}

/// Why a chunk is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TagRefusal {
    /// It was merged or staged before. Harmless; acknowledge the committed epoch again.
    Duplicate,
    /// Something before it is missing: the helper must send again from this epoch and chunk on.
    Gap {
        /// The epoch that is next.
        epoch: u64,
        /// The chunk that is next.
        chunk: u32,
    },
    /// It is from a life of the helper that is over, or that has not joined. Cut the link.
    Stale,
    /// There is no such helper. Cut the link.
    Unknown,
}

/// The answer to a helper that joins or comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rejoin {
    /// Drop what is staged of it, and let it begin after this epoch, which is committed. It begins
    /// as a helper that was idle.
    After(u64),
    /// It has epochs that are merged but not committed, and its former life is the only one that
    /// could send them again: commit first, then ask once more. Until then nothing is accepted from
    /// the former life.
    CommitFirst,
    /// A later life of it has joined already, or there is no such helper.
    Refused,
}

impl Leader {
    /// The leader of a partition without state, with helpers `0..helpers` in their first lives, of
    /// number 0.
    pub fn new(helpers: u32) -> Self {
        let epochs = vec![0; helpers as usize];
        Self::restore(&Cut { epochs, clock: VectorClock::new(helpers) }, &vec![0; helpers as usize])
    }

    /// The same with the state of a partition whose windows up to `least` have fired.
    pub fn beginning_at(helpers: u32, least: i64) -> Self {
        let epochs = vec![0; helpers as usize];
        let clock = VectorClock::beginning_at(helpers, least);
        Self::restore(&Cut { epochs, clock }, &vec![0; helpers as usize])
    }

    /// As [`VectorClock::settle`].
    pub fn settle(&mut self) -> bool {
        self.merged.settle()
    }

    /// The leader that comes back with the state that was written with `cut`. `incarnations` are
    /// the lives of the helpers, as membership knows them; a life that is missing is 0.
    pub fn restore(cut: &Cut, incarnations: &[u64]) -> Self {
        let lives = incarnations.iter().copied().chain(std::iter::repeat(0));
        let clocks = cut.epochs.iter().zip(lives);
        let helpers =
            clocks.map(|(&epoch, incarnation)| Clock { incarnation, epoch, chunk: 0 }).collect();
        Self { helpers, merged: cut.clock.clone(), committed: cut.clone() }
    }

    /// Decides on a chunk. Accepted is only the next chunk of the epoch after the helper's clock.
    pub fn accept(&mut self, tag: &Tag) -> Verdict {
        let Some(clock) = self.helpers.get_mut(tag.helper as usize) else {
            return Verdict::Refuse(TagRefusal::Unknown);
        };
        if tag.incarnation != clock.incarnation {
            return Verdict::Refuse(TagRefusal::Stale);
        }
        let next = (clock.epoch + 1, clock.chunk);
        if (tag.epoch, tag.chunk) < next {
            return Verdict::Refuse(TagRefusal::Duplicate);
        }
        if (tag.epoch, tag.chunk) > next {
            return Verdict::Refuse(TagRefusal::Gap { epoch: next.0, chunk: next.1 });
        }
        if !tag.last {
            clock.chunk += 1;
            return Verdict::Stage;
        }
        (clock.epoch, clock.chunk) = next_epoch(clock);
        self.merged.advance(tag.helper, tag.progress);
        Verdict::Complete
    }

    /// What the state in memory contains. To be written with it, and with the sink's position, in
    /// one write; staged chunks are no part of it.
    pub fn cut(&self) -> Cut {
        let epochs = self.helpers.iter().map(|clock| clock.epoch).collect();
        Cut { epochs, clock: self.merged.clone() }
    }

    /// `cut` has been written: [`Leader::acknowledged`] may be told to helpers. A cut that is older
    /// than another one is ignored.
    pub fn committed(&mut self, cut: Cut) {
        let newer = cut.epochs.iter().zip(&self.committed.epochs).all(|(new, old)| new >= old);
        if newer && cut.epochs.len() == self.committed.epochs.len() {
            self.committed = cut;
        }
    }

    /// The epoch up to which everything of a helper is committed: the cumulative acknowledgement.
    pub fn acknowledged(&self, helper: u32) -> Option<u64> {
        self.committed.epochs.get(helper as usize).copied()
    }

    /// Helper `helper` comes with life `incarnation`, having lost what it kept.
    pub fn rejoin(&mut self, helper: u32, incarnation: u64) -> Rejoin {
        let Some(clock) = self.helpers.get_mut(helper as usize) else { return Rejoin::Refused };
        if incarnation < clock.incarnation {
            return Rejoin::Refused;
        }
        clock.incarnation = incarnation;
        clock.chunk = 0;
        if clock.epoch > self.committed.epochs[helper as usize] {
            Rejoin::CommitFirst
        } else {
            Rejoin::After(clock.epoch)
        }
    }

    /// A helper says where its event time is, outside of any epoch: the leader as a helper of
    /// itself, and helpers that send rows as they read them. As [`VectorClock::advance`].
    pub fn advance(&mut self, helper: u32, announced: Progress) -> bool {
        self.merged.advance(helper, announced)
    }

    /// How far each helper's event time is merged: a window triggers when [`VectorClock::least`]
    /// has passed its end.
    pub fn clock(&self) -> &VectorClock {
        &self.merged
    }
}

/// The clock after the epoch that is under way.
fn next_epoch(clock: &Clock) -> (u64, u32) {
    (clock.epoch + 1, 0)
}
