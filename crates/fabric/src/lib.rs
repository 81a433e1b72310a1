//! Layer 1: one-sided memory operations between the workers of a job.
//!
//! A [`Fabric`] hands out registered memory ([`Slab`]) and connects pairs of workers. The two ends
//! of a connection are [`Endpoint`]s; an endpoint writes into memory that its peer exported, reads
//! from it, notifies the peer, and reports what was completed. Nothing here knows Arrow, queries or
//! async runtimes.
//!
//! ```text
//!   worker a                                  worker b
//!   Endpoint ──write──▶  exported Slab range  (no code of b runs)
//!            ──write_notify(imm)──▶           Completion::Notify { imm } at b's next poll
//!            ◀─Completion::Local { id }       the source may be reused; nothing else is known
//! ```
//!
//! # The contract
//!
//! Every transport passes the suite in [`conformance`] unchanged. What a caller may rely on:
//!
//! * **G1** Only aligned 8-byte words are single-copy atomic.
//! * **G2** The bytes of one operation appear in any order, unless [`Caps::publish`] is
//!   [`Publish::InOrderPoll`]: then the last aligned word of a write appears last (release), and
//!   who loads it with acquire sees the whole write.
//! * **G3** Nothing is ordered between endpoints, nor between operations of one endpoint, except by
//!   G4 and [`Flags::FENCE`].
//! * **G4** When `poll` returns `Notify { imm }` of operation N, every write posted earlier on the
//!   *same endpoint* is visible to the polling thread. Where [`Caps::publish`] is
//!   [`Publish::NotifyCounted`] only the write that carries the notice is.
//! * **G5** `Local { id }` means that the source is reusable and nothing more. It retires all
//!   earlier operations of the endpoint only where [`Caps::ordered_completions`] says so.
//! * **G6** Remote atomics are atomic among themselves only, unless [`Caps::atomics`] is
//!   [`Atomics::Global`].
//! * **G7** A read may return torn or old data beyond 8 bytes. The data is there after its `Local`
//!   completion; a fenced read comes after the writes posted before it.
//! * **G8** After the first `Error` each outstanding operation yields exactly one `Error` of kind
//!   [`ErrorKind::Flushed`]; whether it took effect is unknown. No effect appears after the
//!   *peer's* [`Endpoint::close`] or [`Endpoint::revoke`] returned.
//! * **G9** Notices and sends never exceed the receives that the peer has posted: see
//!   [`Endpoint::budget`].
//! * **G10** No hidden progress: an endpoint acts in `submit` and `poll` only, and owns no thread.
//!   Links that share a connection are moved by each other's calls, or by a thread that was asked
//!   for ([`shared::Network`]).
//!
//! * **G11** A range that was published ([`Fabric::publish`]) is read by every peer of the fabric,
//!   as G7 says, until [`Fabric::unpublish`] returned, and by nobody else: a peer's reads are
//!   served no more after the owner's [`Endpoint::close`] returned. A write or an atomic into it is
//!   refused, as one by a key of somebody else.
//!
//! A fabric whose network copies datagrams has [`multicast`] besides, with a contract of its own.
//!
//! `docs/protocols/fabric.md` sets beside each promise what it does not say, and the mistake that
//! follows from believing that it did.

pub mod affinity;
mod anonymous;
pub mod clock;
pub mod conformance;
mod endpoint;
mod error;
mod event_fd;
mod frames;
#[doc(hidden)]
pub mod hostile;
mod listener;
mod mapped;
mod memory;
pub mod mpi;
pub mod multicast;
mod operations;
mod posted;
mod published;
pub mod pulse;
pub mod shared;
pub mod shm;
pub mod sim;
pub mod tcp;
mod token;
mod validate;
pub mod verbs;
mod wait;

pub use clock::Clock;
pub use endpoint::{
    Armed, Atomics, Budget, Caps, Completion, Endpoint, Fabric, Flags, LinkId, Offer, OpId,
    Publish, RemoteKey, RemoteRange, Src,
};
pub use error::{ErrorKind, FabricError, PostError};
pub use event_fd::EventFd;
pub use mapped::MappedRange;
pub use memory::{Backing, CACHE_LINE, Slab, SlabRange};
pub use published::PUBLISHED_READ_MAX;
pub use wait::wait;
