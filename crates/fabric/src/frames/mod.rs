//! One-sided operations as frames on a wire that carries bytes in order: the part that `tcp` and
//! `mpi` share.
//!
//! ```text
//!   post ─▶ outbox ──Wire::write──▶     ──Wire::read──▶ parser ─▶ slab, notices, replies
//!   Local ◀─ acknowledged                  credit, acks, read data, NAK ─▶ outbox
//! ```
//!
//! `Local` waits for the peer's cumulative acknowledgement, as on RDMA's reliable connections, so
//! that an operation that the peer refuses ends once, with its error. Acknowledgements ride on what
//! the peer sends next, or leave at its next poll.
//!
//! **Invariants.** Frames are applied in the order in which they were posted, so that
//! [`Publish::InOrderPoll`](crate::Publish::InOrderPoll) holds. The peer is hostile until checked:
//! keys are random, belong to one connection and are looked up with bounds at each frame; what it
//! can make this side hold is bounded by `max_send` and by the operations that it may have
//! outstanding. A breach ends the connection with a `Nak` that names the operation.

mod apply;
mod endpoint;
mod frame;
mod outbox;
mod parser;
mod wire;

pub(crate) use endpoint::FrameEndpoint;
pub(crate) use outbox::COMPACT_BYTES;
pub(crate) use parser::BUFFER_BYTES;
pub(crate) use wire::Wire;

/// Bytes of one `send`.
pub(crate) const MESSAGE_MAX: usize = 1024;
