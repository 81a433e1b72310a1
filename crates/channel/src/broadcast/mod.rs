//! One to many: how a frame reaches every process of a job, each once (W1, W5–W10).
//!
//! The processes of a job form a tree around each source. A source gives a frame to its children,
//! each child passes it on to its own, so that no sender is kept longer than its out-degree says:
//!
//! ```text
//!   source 0 ─┬─▶ 1 ─┬─▶ 3 ───▶ 6        cap 2, seven members: each round every member with
//!             │      └─▶ 5               fewer than two children adopts the next one
//!             └─▶ 2 ─┬─▶ 4
//!                    └─▶ 7
//! ```
//!
//! - [`BroadcastTree`] is the shape: who passes frames on to whom (W5, W10, W13), and what it
//!   becomes when the cap changes (W9).
//! - [`Relay`] is a member: it takes frames in the order of their numbers, whichever parent they
//!   come from, and keeps each until all children have been sent it.
//! - [`BroadcastSource`] numbers frames and changes trees: it tells those whose children change,
//!   waits for their answers, and only then uses the new *version*. The frames that some child was
//!   sent before go by the old tree, those behind them by the new one, also such as waited already:
//!   a boundary between two frames. A switch that fails half-way leaves the old tree as it is.
//! - [`InFlightPayloads`] and [`ExpectedPayloads`] are what source and members know of payloads
//!   that the network copies: placeholders go along the tree then.
//! - [`degree`] and [`Monitor`] choose the cap (W6–W8).
//!
//! Like [`crate::protocol`] these are plain values, without memory, clock or links, so that the
//! models explore the very types that run. What they keep, for every order in which links deliver:
//!
//! * each member takes every frame once, in order;
//! * a member keeps at most [`Relay::open_max`] frames of a parent: credit per child and source, on
//!   top of the ring's, so that trees of several sources over the same links cannot block each
//!   other.
//!
//! Where this leaves the paper: its source stops while a tree is changed, here the old tree goes on
//! until the new one is ready; its status message to all is the version in each frame's header,
//! which reaches every member in band and in order; its members fetch by READ, ours are written to.

mod degree;
mod monitor;
mod payloads;
mod relay;
pub mod sim;
mod source;
mod tree;

pub use degree::{SourceLoad, degree, degree_max, expected_queue};
pub use monitor::{Advice, Monitor, Thresholds};
pub use payloads::{ExpectedPayloads, InFlightPayloads};
pub use relay::{Numbered, Relay, RelayBreach};
pub use source::{BroadcastSource, TreeUpdate};
pub use tree::{BroadcastTree, Shape};
