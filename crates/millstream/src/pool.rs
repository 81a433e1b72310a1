//! Memory servers, and the client by which a session uses them.
//!
//! ```text
//!   session ─ connector 'pool' ─ Client ══ control: requests, beats ══ MemoryServer ─ home
//!                                   └───── fabric: maps, READs, WRITEs ──── mover ─ extents
//! ```
//!
//! The messages, and the decisions of a server, are in the crate `pool`; here are the
//! sockets, the threads, the clock and the memory.

mod client;
mod fabrics;
mod server;

pub use connectors::pool::{ACCESS, NodeCache, SERVERS, buckets_of, followed};

pub use ::pool::PoolError;
pub use ::pool::access::{At, BlockRange, Pinned, PoolAccess, TableSummary};
pub use ::pool::manifest::Manifest;
pub use ::pool::wire::Stat;
pub use client::{Client, PoolOptions};
pub use server::{MEMORY_SERVER_PORT, MemoryOptions, MemoryServer, MemoryStats};

/// A random number, for what has to have another name than everything else.
fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}
