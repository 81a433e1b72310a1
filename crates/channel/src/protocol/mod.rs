//! The decisions of both ends of a ring, as plain values.
//!
//! Positions count frames from 0 and never wrap; a frame's slot is its position modulo the number
//! of slots. [`Producer`] and [`Consumer`] say what may be done and what a peer's number means;
//! they touch no memory, so that a model can clone, hash and explore them. [`Link`](crate::Link)
//! does what they say. [`SendWindow`] and [`ReceiveWindow`] bound the frames of one stream that
//! wait behind a ring that several streams share.
//!
//! All numbers that cross the wire are cumulative positions, never increments: a number that
//! arrives twice, late or behind a newer one changes nothing.

mod consumer;
mod contiguous;
mod lent;
mod producer;
mod statement;
mod window;
mod wire;

pub use consumer::Consumer;
pub use contiguous::Contiguous;
pub use lent::Lent;
pub use producer::{Class, Producer, Stall};
pub use statement::{KeptLinks, NextStatement, StatementNumber};
pub use window::{FRAME_BYTES_MIN, ReceiveWindow, SendWindow};
pub use wire::{Notice, commit_word};

use thiserror::Error;

/// Most slots of a ring: a set of slots fits a word.
pub const SLOTS_MAX: u32 = 64;

/// The slot of a position. Rings mostly have a power of two of slots, and a division is what a poll
/// costs otherwise.
pub(crate) fn slot_of(position: u64, slots: u64) -> u64 {
    if slots.is_power_of_two() { position & (slots - 1) } else { position % slots }
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Breach {
    /// Credit for frames that were never published.
    #[error("credit for position {credit}, but only {published} frames were published")]
    Credit {
        /// What the peer said.
        credit: u64,
        /// What we know.
        published: u64,
    },
    /// A consumer that goes on over a new connection has taken less than it returned credit for,
    /// or frames that were never published.
    #[error("all below position {taken} was taken, of {published} frames with credit for {credit}")]
    Taken {
        /// What the peer said.
        taken: u64,
        /// What it said of it before.
        credit: u64,
        /// What we know.
        published: u64,
    },
    /// A notice of a frame for which the peer had no credit.
    #[error("a notice of position {position}, beyond the credit of {limit}")]
    Notice {
        /// What the peer said.
        position: u64,
        /// One past the last position that the peer may write.
        limit: u64,
    },
    /// A notice that means nothing.
    #[error("a malformed notice {imm:#010x}")]
    Malformed {
        /// What the peer said.
        imm: u32,
    },
    /// A frame of a stream did not fit into its window.
    #[error("{unreturned} bytes are sent and not processed, beyond a window of {window}")]
    Window {
        /// Bytes that were sent and whose processing was not reported to the peer.
        unreturned: u64,
        /// The window.
        window: u64,
    },
    /// The peer reports bytes of a stream as processed that were never sent.
    #[error("all bytes before {position} are processed, of {sent} that were sent")]
    Consumed {
        /// The position that the peer reported.
        position: u64,
        /// Bytes that were sent.
        sent: u64,
    },
    /// A frame of a statement that has not begun.
    #[error("a frame of statement {found} in statement {current}")]
    Statement {
        /// The statement of the frame.
        found: u32,
        /// The statement that this end takes part in.
        current: u32,
    },
    /// A slot holds neither the frame that is expected nor what was in it before.
    #[error(
        "slot of position {position}: commit word {found:#018x} where {expected:#018x} belongs"
    )]
    Commit {
        /// The position expected.
        position: u64,
        /// What the slot holds.
        found: u64,
        /// What it should hold.
        expected: u64,
    },
}
