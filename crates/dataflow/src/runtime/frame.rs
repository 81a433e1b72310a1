//! What travels between two workers: the kinds of frame and the meaning of their header. Batches
//! are encoded between processes, and within one they travel as they are.
//!
//! | kind | `tag` | `epoch` | `watermark` | `aux` | payload |
//! |---|---|---|---|---|---|
//! | `Rows` | operator | input | – | – or key | a batch |
//! | `Progress` | operator | – | sender's watermark | frames broadcast before | – |
//! | `Delta` | operator | epoch | sender's watermark | chunk | runs, and groups |
//! | `Delta` of frequent keys | operator | – | – | – | the same |
//! | `Ack` | operator | last epoch merged | all clocks' least | – | – |
//! | `Gather` | operator | – | – | – | result rows |
//! | `GatherEnd` | operator | – | – | – | – |
//! | `Bye`, `ByeHeard` | – | – | – | – | – |
//! | `Cast` | operator | source, input | version of the tree | number | a batch, or a part |
//! | `Copy` | operator | source, input | frames that are then here | number | a batch, or a part |
//! | `List` | operator | source, input | – | number | for whom, and a batch, or a part |
//! | `Handed` | operator | source, input | frames that are then here | number | a batch |
//! | `Took` | operator | source | – | all before are passed on | – |
//! | `Steer` | operator | source | – | version of the tree | the receiver's children |
//! | `Steered` | operator | source | – | version of the tree | – |
//! | `Lack` | operator | source | – | number | – |
//! | `Filled` | operator | source | – | number | its payload |
//! | `Had` | operator | source | – | all before are here | – |
//!
//! The flag [`LAST`] on `Progress` and `Delta` ends the sender's stream, [`IDLE`] and [`RESUME`]
//! frame a time without rows, [`EPOCH_END`] is on the last chunk of an epoch. [`KEYED`] rows are
//! not of their slice: some of their windows have fired. [`MORE`] says that the payload goes on in
//! the next frame of the same kind and tag. [`STUB`] says that the payload comes by the network's
//! own multicast: in its place are its bytes, as a u32.

use channel::Header;
use state::epoch::{Presence, Progress};

/// The sender's stream to this operator ends here.
const LAST: u8 = 1;

/// The sender has no rows and holds no watermark back until it says otherwise.
const IDLE: u8 = 4;

/// The sender was idle and wants to know how far windows have fired.
pub(crate) const RESUME: u8 = 8;

/// The last chunk of an epoch.
pub(crate) const EPOCH_END: u8 = 16;

/// `aux` is the key of what the rows belong to.
pub(crate) const KEYED: u8 = 32;

/// The payload goes on in the next frame.
pub(crate) const MORE: u8 = 2;

/// The payload travels in another way, and how long it is stands in its place.
pub(crate) const STUB: u8 = 64;

/// The flags that say with the header's watermark what a sender says of its event time.
pub(crate) fn flags_of(said: Progress) -> u8 {
    match said.presence {
        Presence::Active => 0,
        Presence::Idle => IDLE,
        Presence::Ended => LAST,
    }
}

/// What the sender of a frame says of its event time.
pub(crate) fn said_in(header: &Header) -> Progress {
    let presence = match (header.flags & LAST != 0, header.flags & IDLE != 0) {
        (true, _) => Presence::Ended,
        (_, true) => Presence::Idle,
        _ => Presence::Active,
    };
    Progress { watermark: header.watermark, presence }
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Rows for their key's leader (shuffle).
    Rows = 1,
    /// The sender's watermark (shuffle).
    Progress = 2,
    /// A part of an epoch's delta (merge, S9); groups of frequent keys, in front of a shuffle.
    Delta = 3,
    /// Epochs up to this one are merged; the helper may forget them.
    Ack = 4,
    /// Result rows for worker 0.
    Gather = 5,
    /// The sender has no more result rows.
    GatherEnd = 6,
    /// The sender needs nothing more from this link.
    Bye = 7,
    /// The sender has heard the goodbye.
    ByeHeard = 8,
    /// Rows for every worker, on their way from process to process (W1, W5).
    Cast = 9,
    /// Rows for every worker, by reference, from a worker of the same process (W1).
    Handed = 10,
    /// The sender has passed on rows for every worker.
    Took = 11,
    /// To whom the receiver will pass on what the sender gives out (W9).
    Steer = 12,
    /// The sender will do so.
    Steered = 13,
    /// Rows for every worker, encoded for the receiver alone (W10).
    Copy = 14,
    /// Rows for some workers of the receiver's process, whom a list in front of them names (W1).
    List = 15,
    /// The sender has a stub of the receiver's and not its payload (I6).
    Lack = 16,
    /// The payload of a stub, for who lacks it.
    Filled = 17,
    /// The sender lacks no payload of the receiver's before a number.
    Had = 18,
}

impl Kind {
    /// Whether it is one of those by which a shuffle speaks, with its broadcasts.
    pub(crate) fn is_of_shuffle(self) -> bool {
        use Kind::{Ack, Progress, Rows};
        matches!(self, Rows | Progress | Ack) || self.is_of_broadcast()
    }

    /// Whether it is one of those by which rows go to several workers.
    pub(crate) fn is_of_broadcast(self) -> bool {
        use Kind::{Cast, Copy, Filled, Had, Handed, Lack, List, Steer, Steered, Took};
        matches!(self, Cast | Copy | List | Handed | Took | Steer | Steered | Lack | Filled | Had)
    }

    /// The kind with this number.
    pub(crate) fn decode(kind: u8) -> Option<Self> {
        [
            Kind::Rows,
            Kind::Progress,
            Kind::Delta,
            Kind::Ack,
            Kind::Gather,
            Kind::GatherEnd,
            Kind::Bye,
            Kind::ByeHeard,
            Kind::Cast,
            Kind::Handed,
            Kind::Took,
            Kind::Steer,
            Kind::Steered,
            Kind::Copy,
            Kind::List,
            Kind::Lack,
            Kind::Filled,
            Kind::Had,
        ]
        .into_iter()
        .find(|&k| k as u8 == kind)
    }

    /// A header of this kind and nothing else.
    pub(crate) fn header(self) -> Header {
        Header { kind: self as u8, ..Header::default() }
    }
}
