//! Layer 2: tables in network-attached memory (I-Store).
//!
//! A *memory server* holds blocks of tables and serves them to any process that may read them; a
//! *pool* is one memory server or several. This crate is what servers and clients agree on: how a
//! table lies in memory, how its versions come and go, and which messages tell of them.
//!
//! ```text
//!   table ─▶ version ─▶ partition ─▶ strip ─▶ block       a block: one column of a strip's rows
//!                                               │
//!                                            Pointer ─▶ server, extent, offset
//! ```
//!
//! A version never changes. A load writes blocks into extents of its own, seals them, and publishes
//! the next version as a whole; a reader pins a version by a lease and reads blocks of it alone.
//! Nothing is validated on the way of the data: a block that a lease protects cannot change.
//!
//! Out of scope: Arrow, SQL, clocks (a time comes in as a value), threads, sockets.
#![forbid(unsafe_code)]

pub mod access;
mod encoding;
mod error;
pub mod home;
pub mod hostile;
pub mod list;
pub mod manifest;
pub mod pointer;
pub mod record;
pub mod wire;

pub use error::PoolError;
