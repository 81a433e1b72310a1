//! Layer 2: how frames go from worker to worker over one-sided writes.
//!
//! A [`Link`] joins two workers by two rings, one each way (S1, Q6). A ring is `slots` slots of
//! `slot_bytes` bytes in the consumer's registered memory. The producer fills a slot of its own
//! staging memory, writes it into the ring by **one** write, and may not write again before the
//! consumer has returned credit:
//!
//! ```text
//!   producer                                       consumer
//!   reserve ─▶ fill ─▶ publish ── one WRITE ──────▶ slot p mod c
//!                      flush   ── notice (mode B) ▶ recv: check the trailer, hand out in place
//!            ◀── credit: all below q are free ───── payload dropped, in any order, by any thread
//! ```
//!
//! What a ring keeps, in every publish mode and for every order in which the fabric may place
//! bytes:
//!
//! * frames arrive whole, once, in order, or the link fails;
//! * no slot is overwritten while a [`Payload`] of it lives;
//! * control frames find a slot while data frames are stalled ([`Class`]);
//! * memory is bounded and known beforehand ([`RingConfig::memory_bytes`]).
//!
//! From one to many, [`broadcast`] says who passes a frame on to whom.
//!
//! The protocol's decisions are plain values without memory, clock or randomness,
//! [`protocol::Producer`] and [`protocol::Consumer`]; the models explore the very same types. What
//! peers write is hostile until checked. Nothing here knows Arrow or SQL, retries a failed link, or
//! waits.

pub mod broadcast;
mod config;
mod descriptor;
mod error;
mod link;
mod memory;
mod order;
pub mod protocol;
mod region;
mod trailer;

pub use config::{MemoryNeed, RingConfig, Transfer, Tuning};
pub use error::LinkError;
pub use link::{Link, LinkStats, ReceivedFrame, SlotWriter};
pub use memory::{HUGE_PAGE_BYTES, LinkMemory, Payload};
pub use protocol::Class;
pub use region::{RegionFrame, RegionWriter, SharedRegion};
pub use trailer::Header;
