//! Frames: what one worker sends another. `docs/protocols/frames.md` gives the number, the fields,
//! the class and the payload of each kind; a test compares that page with this module.
//!
//! A [`Frame`] travels in an [`Envelope`], which names the operator and its input. Both lie in the
//! [`Header`] that a channel carries in front of the payload. [`Frame::fields`] has one codec per
//! kind, which is the same for writing and reading; what a kind does not use is zero, and a frame
//! is refused where it is not. Within a process frames travel the same way, rows by reference.

mod codec;
pub mod payload;
#[cfg(test)]
mod tests;

use channel::Header;
use state::epoch::{Presence, Progress};

use self::codec::{Encoder, Fields};

/// The round in which the rows of a frame were read, modulo 2^16.
///
/// A round is the input of a worker between two markers. A receiver tells by the colour whether
/// rows belong to the round that it completes or to the next one, before the marker of that round
/// has come. A relay passes the colour of the frame's source on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Colour(u16);

impl Colour {
    /// The colour of a round.
    #[must_use]
    pub fn of_round(round: u64) -> Self {
        Self(round as u16)
    }

    /// The round modulo 2^16.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

/// A frame and where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// The operator, by its number in the job; zero where the frame is of the link itself.
    pub operator: u32,
    /// The input of the operator; zero where the frame is of all inputs.
    pub port: u32,
    /// The round of the rows that a frame carries or speaks of; zero for other frames.
    pub colour: Colour,
    /// Whether the payload goes on in the next frame of this kind, operator and port.
    pub more: bool,
    /// The frame.
    pub frame: Frame,
}

/// The kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// Rows for the worker that leads their keys (shuffle).
    Rows {
        /// The slice of all of these rows, some of whose windows have fired; if nothing, each row
        /// belongs to the slice of its time.
        slice: Option<i64>,
    },
    /// The sender's progress at all inputs of an operator, behind the rows that it sent before.
    Progress {
        /// Its watermark, and whether rows are to come.
        progress: Progress,
        /// Whether the sender was idle and waits for a [`Frame::ResumeAck`].
        resumes: bool,
        /// Broadcast frames for the receiver that the progress is behind.
        broadcast_before: u64,
    },
    /// A part of the groups that an epoch brought for a leader (merge, S9).
    Delta {
        /// The epoch, counted from 1.
        epoch: u64,
        /// The number of the part within the epoch.
        chunk: u32,
        /// Whether the epoch ends with it.
        last: bool,
        /// The sender's progress at the end of the epoch.
        progress: Progress,
    },
    /// The epochs up to one are merged, and the receiver may forget them.
    EpochAck {
        /// The last of them.
        epoch: u64,
        /// The watermark up to which windows have fired at the sender.
        watermark: i64,
    },
    /// Groups of frequent keys, pre-aggregated in front of a shuffle.
    Groups,
    /// The answer to a [`Frame::Progress`] that resumes.
    ResumeAck {
        /// The watermark up to which windows have fired at the sender.
        watermark: i64,
    },
    /// Result rows for the worker that writes them.
    Gather,
    /// The sender has no more result rows.
    GatherEnd,
    /// The sender has processed rows that the receiver sent to an input.
    Consumed {
        /// All bytes before this position.
        position: u64,
    },
    /// The sender needs nothing more from this link.
    Bye,
    /// The sender has received the goodbye.
    ByeAck,
    /// Rows for every worker, on their way from process to process (W1, W5).
    Broadcast {
        /// The worker that the rows come from.
        source: u32,
        /// The number of the frame among the source's.
        number: u64,
        /// The tree along which it goes.
        version: u64,
        /// Whether the payload is a [`payload::Placeholder`], and the rows travel by the network's
        /// own multicast.
        placeholder: bool,
    },
    /// Rows for every worker, from the relay of this process, by reference (W1).
    BroadcastReference {
        /// The worker that the rows come from.
        source: u32,
        /// The number of the frame among the source's.
        number: u64,
        /// All frames of the source before this number have been received then.
        complete_before: u64,
    },
    /// Rows for every worker, encoded by their source for the receiver alone (W10).
    BroadcastCopy {
        /// The number of the frame among the source's.
        number: u64,
        /// All frames of the source before this number have been received then.
        complete_before: u64,
    },
    /// Rows for some workers of the receiver's process, whose list is in front of them (W1).
    BroadcastList {
        /// The number of the frame among those that the source sends the receiver.
        number: u64,
    },
    /// The sender has passed on frames of a source.
    BroadcastAck {
        /// The worker that the rows come from.
        source: u32,
        /// All frames before this number are passed on.
        before: u64,
    },
    /// The children to which the receiver passes on the sender's frames in a tree (W9).
    TreeUpdate {
        /// The tree.
        version: u64,
    },
    /// The sender knows its children in a tree of the receiver.
    TreeUpdateAck {
        /// The tree.
        version: u64,
    },
    /// The sender has a placeholder of the receiver's and not its payload (I6).
    Nack {
        /// The number of the frame.
        number: u64,
    },
    /// The payload that a receiver lacks.
    Repair {
        /// The number of the frame.
        number: u64,
    },
    /// The sender lacks no payload of the receiver's.
    PayloadAck {
        /// All payloads before this number have been received.
        before: u64,
    },
    /// The sender has sent all rows of a round for an operator: the marker that ends it.
    Round {
        /// The round in full; the colour of the frame is its colour.
        round: u64,
        /// The sender's progress at its end.
        progress: Progress,
        /// Broadcast frames for the receiver that the marker is behind.
        broadcast_before: u64,
    },
}

impl Frame {
    /// One frame of each kind, in the order of their numbers, with all optional fields.
    pub const KINDS: [Frame; 22] = [
        Frame::Rows { slice: Some(0) },
        Frame::Progress { progress: NO_PROGRESS, resumes: false, broadcast_before: 0 },
        Frame::Delta { epoch: 0, chunk: 0, last: false, progress: NO_PROGRESS },
        Frame::EpochAck { epoch: 0, watermark: 0 },
        Frame::Groups,
        Frame::ResumeAck { watermark: 0 },
        Frame::Gather,
        Frame::GatherEnd,
        Frame::Consumed { position: 0 },
        Frame::Bye,
        Frame::ByeAck,
        Frame::Broadcast { source: 0, number: 0, version: 0, placeholder: false },
        Frame::BroadcastReference { source: 0, number: 0, complete_before: 0 },
        Frame::BroadcastCopy { number: 0, complete_before: 0 },
        Frame::BroadcastList { number: 0 },
        Frame::BroadcastAck { source: 0, before: 0 },
        Frame::TreeUpdate { version: 0 },
        Frame::TreeUpdateAck { version: 0 },
        Frame::Nack { number: 0 },
        Frame::Repair { number: 0 },
        Frame::PayloadAck { before: 0 },
        Frame::Round { round: 0, progress: NO_PROGRESS, broadcast_before: 0 },
    ];

    /// The number of the kind.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Frame::Rows { .. } => 1,
            Frame::Progress { .. } => 2,
            Frame::Delta { .. } => 3,
            Frame::EpochAck { .. } => 4,
            Frame::Groups => 5,
            Frame::ResumeAck { .. } => 6,
            Frame::Gather => 7,
            Frame::GatherEnd => 8,
            Frame::Consumed { .. } => 9,
            Frame::Bye => 10,
            Frame::ByeAck => 11,
            Frame::Broadcast { .. } => 12,
            Frame::BroadcastReference { .. } => 13,
            Frame::BroadcastCopy { .. } => 14,
            Frame::BroadcastList { .. } => 15,
            Frame::BroadcastAck { .. } => 16,
            Frame::TreeUpdate { .. } => 17,
            Frame::TreeUpdateAck { .. } => 18,
            Frame::Nack { .. } => 19,
            Frame::Repair { .. } => 20,
            Frame::PayloadAck { .. } => 21,
            Frame::Round { .. } => 22,
        }
    }

    /// The worker whose rows, or the end of them, a frame from another worker is of. Nothing for
    /// frames that may come behind the end.
    pub(crate) fn source(&self, from: u32) -> Option<u32> {
        match *self {
            Frame::Broadcast { source, .. } | Frame::BroadcastReference { source, .. } => {
                Some(source)
            }
            Frame::Rows { .. }
            | Frame::Progress { .. }
            | Frame::Delta { .. }
            | Frame::Groups
            | Frame::Gather
            | Frame::GatherEnd
            | Frame::BroadcastCopy { .. }
            | Frame::BroadcastList { .. }
            | Frame::Round { .. } => Some(from),
            _ => None,
        }
    }

    /// Whether it may have been overtaken by the marker of its round, on its way through other
    /// workers or in a queue.
    pub(crate) fn is_broadcast(&self) -> bool {
        matches!(
            self,
            Frame::Broadcast { .. }
                | Frame::BroadcastReference { .. }
                | Frame::BroadcastCopy { .. }
                | Frame::BroadcastList { .. }
        )
    }

    /// The codec of each kind.
    fn fields(&mut self, to: &mut Envelope, fields: &mut impl Fields) {
        match self {
            Frame::Rows { slice } => {
                fields.port(to);
                fields.colour(to);
                fields.parts(to);
                fields.optional("slice", SLICE, 0, slice);
            }
            Frame::Progress { progress, resumes, broadcast_before } => {
                fields.operator(to);
                fields.colour(to);
                fields.progress(0, progress);
                fields.flag("resumes", RESUMES, resumes);
                fields.word("broadcast_before", 1, broadcast_before);
            }
            Frame::Delta { epoch, chunk, last, progress } => {
                fields.port(to);
                fields.colour(to);
                fields.parts(to);
                fields.word("epoch", 0, epoch);
                fields.progress(1, progress);
                fields.short("chunk", 2, chunk);
                fields.flag("last", LAST_CHUNK, last);
            }
            Frame::EpochAck { epoch, watermark } => {
                fields.port(to);
                fields.word("epoch", 0, epoch);
                fields.signed("watermark", 1, watermark);
            }
            Frame::Groups | Frame::Gather => {
                fields.port(to);
                fields.colour(to);
                fields.parts(to);
            }
            Frame::ResumeAck { watermark } => {
                fields.operator(to);
                fields.signed("watermark", 0, watermark);
            }
            Frame::GatherEnd => {
                fields.port(to);
                fields.colour(to);
            }
            Frame::Consumed { position } => {
                fields.port(to);
                fields.word("position", 0, position);
            }
            Frame::Bye | Frame::ByeAck => {}
            Frame::Round { round, progress, broadcast_before } => {
                fields.operator(to);
                fields.colour(to);
                fields.word("round", 0, round);
                fields.progress(1, progress);
                fields.word("broadcast_before", 2, broadcast_before);
            }
            _ => self.fields_of_broadcast(to, fields),
        }
    }

    /// The codec of each kind of the broadcast.
    fn fields_of_broadcast(&mut self, to: &mut Envelope, fields: &mut impl Fields) {
        fields.port(to);
        match self {
            Frame::Broadcast { source, number, version, placeholder } => {
                fields.colour(to);
                fields.parts(to);
                fields.short("source", 0, source);
                fields.word("number", 1, number);
                fields.word("version", 2, version);
                fields.flag("placeholder", PLACEHOLDER, placeholder);
            }
            Frame::BroadcastReference { source, number, complete_before } => {
                fields.colour(to);
                fields.short("source", 0, source);
                fields.word("number", 1, number);
                fields.word("complete_before", 2, complete_before);
            }
            Frame::BroadcastCopy { number, complete_before } => {
                fields.colour(to);
                fields.parts(to);
                fields.word("number", 0, number);
                fields.word("complete_before", 1, complete_before);
            }
            Frame::BroadcastList { number } => {
                fields.colour(to);
                fields.parts(to);
                fields.word("number", 0, number);
            }
            Frame::BroadcastAck { source, before } => {
                fields.short("source", 0, source);
                fields.word("before", 1, before);
            }
            Frame::TreeUpdate { version } => {
                fields.payload();
                fields.word("version", 0, version);
            }
            Frame::TreeUpdateAck { version } => fields.word("version", 0, version),
            Frame::Nack { number } => fields.word("number", 0, number),
            Frame::Repair { number } => {
                fields.payload();
                fields.word("number", 0, number);
            }
            Frame::PayloadAck { before } => fields.word("before", 0, before),
            _ => {}
        }
    }
}

/// The bits of `flags`; each has one meaning in all kinds that have it.
const ENDED: u8 = 1;
const MORE: u8 = 2;
const IDLE: u8 = 4;
const RESUMES: u8 = 8;
const LAST_CHUNK: u8 = 16;
const SLICE: u8 = 32;
const PLACEHOLDER: u8 = 64;

const NO_PROGRESS: Progress = Progress { watermark: 0, presence: Presence::Active };

impl Envelope {
    /// A frame of a link itself.
    #[must_use]
    pub fn of_link(frame: Frame) -> Self {
        Self { operator: 0, port: 0, colour: Colour::default(), more: false, frame }
    }

    /// The header that a channel carries in front of the payload.
    #[must_use]
    pub fn encode(&self) -> Header {
        let mut encoder = Encoder::new(self.frame.kind());
        let mut to = *self;
        let mut frame = self.frame;
        frame.fields(&mut to, &mut encoder);
        encoder.finish()
    }

    /// The frame of a header that came with `payload_bytes` of payload.
    ///
    /// # Errors
    /// The malformed part.
    pub fn decode(header: &Header, payload_bytes: usize) -> Result<Self, String> {
        let kind = usize::from(header.kind);
        let blank = kind.checked_sub(1).and_then(Self::blank);
        let mut to = blank.ok_or_else(|| format!("there is no frame of kind {kind}"))?;
        let mut decoder = codec::Decoder::new(*header);
        let mut frame = to.frame;
        frame.fields(&mut to, &mut decoder);
        decoder.finish(payload_bytes)?;
        Ok(Self { frame, ..to })
    }

    fn blank(at: usize) -> Option<Self> {
        Frame::KINDS.get(at).map(|frame| Self::of_link(*frame))
    }
}
