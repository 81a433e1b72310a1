//! The decisions of a process about the chain, as values without input and output.
//!
//! [`Claim`] finds the head of a chain and begins a generation behind it; [`Append`] writes a
//! record behind the last one of its generation. Each says what it asks the store next, and takes
//! the answer. They hold these rules:
//!
//! * **C1** A record is created once and never replaced.
//! * **C2** The first record of a generation goes behind the head. Who finds that place taken looks
//!   for the head again.
//! * **C3** A later record goes behind the last one of its own generation. If another record is
//!   there, the generation is fenced: it writes and publishes nothing any more.
//! * **C4** A create whose answer was lost is asked again with the same record until the store says
//!   that it is new or that it exists.
//! * **C5** After a create the record before it must still be the one that it was, and no marker of
//!   collection must be beyond this one. Else collection has passed this place, or the job was
//!   dropped and begun anew, and the process is fenced. Each of the two has a hole that the other
//!   one closes: a create that takes effect very late can bring the record before it back, and the
//!   listing of markers can be behind the time.
//! * **C6** Output of a checkpoint is published after its record was written by C3 to C5.
//! * **C7** Collection deletes the records with the lowest numbers, one after the other, each after
//!   the store has confirmed that the one before is gone ([`retained_from`]). Before that it makes
//!   a marker with the number of the lowest record that it keeps; the greatest marker is never
//!   deleted.

use crate::store::Created;

/// A call to the store. `R` is a record; equal records have equal bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ChainRequest<R> {
    /// The greatest number of a record, by a listing: [`ChainReply::Greatest`].
    Greatest,
    /// The record of a number: [`ChainReply::Record`].
    Read(u64),
    /// Creates the record of a number: [`ChainReply::Created`] or [`ChainReply::Lost`].
    Create(u64, R),
    /// The greatest marker of collection: [`ChainReply::CollectedBelow`].
    CollectedBelow,
}

/// The answer to a [`ChainRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ChainReply<R> {
    /// The greatest number; 0 without records. A listing may be behind the time.
    Greatest(u64),
    /// The record, if it is there.
    Record(Option<R>),
    /// The outcome of a create.
    Created(Created),
    /// The answer to a create was lost: it may have taken effect, or may yet.
    Lost,
    /// Records with lower numbers were collected, or are about to be; 0 if there is no marker.
    CollectedBelow(u64),
}

/// The last record of a chain, as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ChainHead<R> {
    /// Its number; 0 for an empty chain.
    pub number: u64,
    /// The record; `None` for an empty chain.
    pub record: Option<R>,
}

/// Where a process stands that writes a record behind another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Append<R> {
    last: ChainHead<R>,
    record: R,
    phase: AppendPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum AppendPhase {
    Creating,
    /// A record is there: it is compared with this one.
    Comparing,
    /// The record is this one: the one before it must be there.
    Confirming,
    /// The one before it is there: collection must not have passed.
    Counting,
    Written,
    Fenced,
}

/// The end of an [`Append`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppendOutcome {
    /// The record is part of the chain, with this number.
    Written(u64),
    /// Another record is in its place, or collection has passed it.
    Fenced,
}

impl<R: Clone + Eq> Append<R> {
    /// Begins to write `record` behind the record `last`, which was read or written by this
    /// process.
    pub fn new(last: ChainHead<R>, record: R) -> Self {
        Self { last, record, phase: AppendPhase::Creating }
    }

    /// The number that the record gets.
    pub fn number(&self) -> u64 {
        self.last.number + 1
    }

    /// The next call; `None` when the outcome is known.
    pub fn request(&self) -> Option<ChainRequest<R>> {
        match self.phase {
            AppendPhase::Creating => Some(ChainRequest::Create(self.number(), self.record.clone())),
            AppendPhase::Comparing => Some(ChainRequest::Read(self.number())),
            AppendPhase::Confirming => Some(ChainRequest::Read(self.last.number)),
            AppendPhase::Counting => Some(ChainRequest::CollectedBelow),
            AppendPhase::Written | AppendPhase::Fenced => None,
        }
    }

    /// Takes the answer to [`request`](Self::request). One that does not belong to it is passed
    /// over.
    pub fn reply(&mut self, reply: &ChainReply<R>) {
        // The first record of a chain has none before it.
        let confirming =
            if self.last.number == 0 { AppendPhase::Counting } else { AppendPhase::Confirming };
        let number = self.number();
        self.phase = match (self.phase, reply) {
            (AppendPhase::Creating, ChainReply::Created(Created::New)) => confirming,
            (AppendPhase::Creating, ChainReply::Created(Created::Exists)) => AppendPhase::Comparing,
            (AppendPhase::Comparing, ChainReply::Record(Some(found))) if *found == self.record => {
                confirming
            }
            (AppendPhase::Comparing, ChainReply::Record(Some(_))) => AppendPhase::Fenced,
            // It was collected meanwhile, or another process creates it at this moment: the next
            // create tells.
            (AppendPhase::Comparing, ChainReply::Record(None)) => AppendPhase::Creating,
            (AppendPhase::Confirming, ChainReply::Record(found)) if *found == self.last.record => {
                AppendPhase::Counting
            }
            (AppendPhase::Confirming, ChainReply::Record(_)) => AppendPhase::Fenced,
            (AppendPhase::Counting, ChainReply::CollectedBelow(below)) if *below > number => {
                AppendPhase::Fenced
            }
            (AppendPhase::Counting, ChainReply::CollectedBelow(_)) => AppendPhase::Written,
            (AppendPhase::Written, _) => AppendPhase::Written,
            (AppendPhase::Fenced, _) => AppendPhase::Fenced,
            // Rule C4: the outcome is unknown, and the same record is created again.
            (_, ChainReply::Lost) => AppendPhase::Creating,
            (phase, _) => phase,
        };
    }

    /// The record.
    pub fn record(&self) -> &R {
        &self.record
    }

    /// Whether the record is there, and it is asked whether collection has passed it (rule C5).
    pub fn is_confirming(&self) -> bool {
        matches!(self.phase, AppendPhase::Confirming | AppendPhase::Counting)
    }

    /// Whether a record is there that is compared with this one.
    pub fn is_comparing(&self) -> bool {
        self.phase == AppendPhase::Comparing
    }

    /// The outcome, when it is known.
    pub fn outcome(&self) -> Option<AppendOutcome> {
        match self.phase {
            AppendPhase::Written => Some(AppendOutcome::Written(self.number())),
            AppendPhase::Fenced => Some(AppendOutcome::Fenced),
            _ => None,
        }
    }
}

/// Where a process stands that begins a generation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Claim<R> {
    /// It lists the records.
    Listing,
    /// It reads the record that the listing has as the last one.
    Reading(u64),
    /// It reads the record behind the last one that it knows: a listing may be behind the time.
    Probing(ChainHead<R>),
    /// The chain seems empty. It asks whether it only seems so.
    Doubting,
    /// The head is known. It goes on by [`begin`](Claim::begin).
    Found(ChainHead<R>),
    /// It writes its first record.
    Beginning(Append<R>),
    /// Its first record is part of the chain, with this number.
    Begun(u64),
}

impl<R: Clone + Eq> Claim<R> {
    /// The next call; `None` in [`Found`](Self::Found) and [`Begun`](Self::Begun).
    pub fn request(&self) -> Option<ChainRequest<R>> {
        match self {
            Self::Listing => Some(ChainRequest::Greatest),
            Self::Reading(number) => Some(ChainRequest::Read(*number)),
            Self::Probing(head) => Some(ChainRequest::Read(head.number + 1)),
            Self::Doubting => Some(ChainRequest::CollectedBelow),
            Self::Beginning(append) => append.request(),
            Self::Found(_) | Self::Begun(_) => None,
        }
    }

    /// Takes the answer to [`request`](Self::request). One that does not belong to it is passed
    /// over.
    pub fn reply(&mut self, reply: ChainReply<R>) {
        let next = match (&mut *self, reply) {
            (Self::Listing, ChainReply::Greatest(0)) => {
                Self::Probing(ChainHead { number: 0, record: None })
            }
            (Self::Listing, ChainReply::Greatest(number)) => Self::Reading(number),
            (Self::Reading(number), ChainReply::Record(Some(record))) => {
                Self::Probing(ChainHead { number: *number, record: Some(record) })
            }
            // It was collected meanwhile.
            (Self::Reading(_), ChainReply::Record(None)) => Self::Listing,
            (Self::Probing(head), ChainReply::Record(Some(record))) => {
                Self::Probing(ChainHead { number: head.number + 1, record: Some(record) })
            }
            (Self::Probing(head), ChainReply::Record(None)) if head.number == 0 => Self::Doubting,
            (Self::Probing(head), ChainReply::Record(None)) => Self::Found(head.clone()),
            (Self::Doubting, ChainReply::CollectedBelow(1..)) => Self::Listing,
            (Self::Doubting, ChainReply::CollectedBelow(0)) => {
                Self::Found(ChainHead { number: 0, record: None })
            }
            (Self::Beginning(append), reply) => {
                append.reply(&reply);
                match append.outcome() {
                    None => return,
                    Some(AppendOutcome::Written(number)) => Self::Begun(number),
                    // Rule C2.
                    Some(AppendOutcome::Fenced) => Self::Listing,
                }
            }
            _ => return,
        };
        *self = next;
    }

    /// Begins to write the first record of a generation behind the head that was
    /// [`Found`](Self::Found); elsewhere it changes nothing.
    pub fn begin(&mut self, record: R) {
        if let Self::Found(head) = self {
            *self = Self::Beginning(Append::new(head.clone(), record));
        }
    }
}

/// Checkpoints that are kept, with their segments.
pub const CHECKPOINTS_RETAINED: usize = 3;
/// A record is kept for so long: processes that were stopped for less find out by C3 alone.
pub const RECORD_RETAINED_MS: i64 = 3600 * 1000;

/// Rule C7: the lowest record that is kept. `checkpoints` are the numbers of the records of
/// checkpoints, greatest first; `base` is the record that the job would go on from; `young` is the
/// lowest record that is younger than [`RECORD_RETAINED_MS`].
#[must_use]
pub fn retained_from(checkpoints: &[u64], base: Option<u64>, young: u64) -> u64 {
    let oldest = checkpoints.get(CHECKPOINTS_RETAINED - 1).copied().unwrap_or(0);
    oldest.min(base.unwrap_or(u64::MAX)).min(young)
}
