//! The epoch protocol: deltas reach the leader of their partition exactly once, in epoch order (S9,
//! S11).
//!
//! ```text
//!  Helper                                     Leader
//!  close(progress, chunks) ── (tag, chunk) ─► accept(tag): Stage … Complete, or a refusal
//!     keeps the chunks                        merge; the helper's clock is one epoch further
//!                                             cut() ─► state, clocks and sink in one write
//!  acknowledge(epoch) ◄── committed epoch ─── committed(cut)
//!     drops what is committed
//! ```
//!
//! A [`Helper`] stands for one executor towards one leader, a [`Leader`] for one partition. Both
//! are plain values: no I/O, no clock, no randomness. An exhaustive model in
//! `models/tests/epoch.rs` explores these very types.
//!
//! # Guarantees
//! - Committed state holds each delta of the epochs up to the committed clock once, and nothing
//!   else, if the caller merges exactly what [`Leader::accept`] lets pass and writes state, [`Cut`]
//!   and sink position in one atomic write.
//! - Clocks of a helper grow by exactly one epoch.
//! - A window that ends at or before [`VectorClock::least`] is complete: no row of it is merged
//!   later, if a helper that was idle asks before it judges its next rows how far time has come.
//!
//! # Who was idle
//! An idle helper holds no window back, so that windows fire beyond its watermark. Before it judges
//! the rows with which it comes back, it closes an epoch as [`Presence::Active`] and waits until
//! every leader has acknowledged that epoch, each with its [`VectorClock::least`]. From then on it
//! holds time where it is; rows of windows that end at or before the greatest of these are late.
//! An acknowledgement tells of a commit, so that a leader that comes back still knows it as active.
//! A new life of a helper does the same: the former one may have been idle.
//!
//! # Where it deviates from the paper
//! S9 step 5 lets a helper invalidate a delta once it was sent; a leader that dies then takes the
//! epoch with it. Here it is kept until the leader has committed it. See `docs/protocols/epoch.md`.

mod clock;
mod held;
mod helper;
mod leader;
mod length;
mod round;
#[cfg(test)]
mod tests;

pub use clock::{END_OF_STREAM, Presence, Progress, VectorClock};
pub use held::{HeldRows, RowsOfLeader};
pub use helper::{AcknowledgeError, Helper, TooManyEpochs};
pub use leader::{Cut, Leader, Rejoin, TagRefusal, Verdict};
pub use length::{Ended, EpochLength, LengthBounds, combine_factor, distinct, groups_behind};
pub use round::{Arrives, RoundAlignment, RoundBreach};

/// The header of a chunk of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Which helper sent it.
    pub helper: u32,
    /// Which life of the helper made it. Grows with each restart.
    pub incarnation: u64,
    /// Which epoch it is of, counted from 1.
    pub epoch: u64,
    /// Which chunk of the epoch's delta, counted from 0.
    pub chunk: u32,
    /// Whether it is the last chunk of its epoch.
    pub last: bool,
    /// The helper's event time at the end of the epoch.
    pub progress: Progress,
}
