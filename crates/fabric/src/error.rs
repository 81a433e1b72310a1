//! Errors of a fabric, and whose fault they are.

use std::fmt;

use thiserror::Error;

/// A failure while memory is registered or a connection is made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The operating system refused memory. The user's limits (memlock, cgroup, `/dev/shm`) are too
    /// small.
    #[error("cannot register {bytes} bytes of memory: {source}")]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// The message of the operating system.
        source: std::io::Error,
    },
    /// The peer could not be reached, or did not answer in time. Look at the peer.
    #[error("cannot connect {link}: {source}")]
    Connect {
        /// Which pair of workers.
        link: String,
        /// The message of the operating system.
        source: std::io::Error,
    },
    /// The peer's address or key is not of this fabric or this version. The peer is at fault.
    #[error("the peer sent a malformed {what}")]
    Malformed {
        /// The kind of bytes that could not be decoded.
        what: &'static str,
    },
    /// No device of this transport can be used. The machine, its drivers or the options are at
    /// fault.
    #[error("no RDMA device can be used: {detail}")]
    Device {
        /// The reason.
        detail: String,
    },
    /// The library of this transport is missing or cannot be used. The machine, or who started the
    /// process, is at fault.
    #[error("MPI cannot be used: {detail}")]
    Library {
        /// The reason.
        detail: String,
    },
    /// The slab was not made by this fabric, and this fabric cannot do without. The caller is at
    /// fault.
    #[error("the slab belongs to another fabric")]
    ForeignSlab,
    /// The limits of this process do not allow that number of slabs. The user's limits are too
    /// small.
    #[error("{slabs} slabs do not fit into the limits of this process: {detail}")]
    Limits {
        /// Slabs that were to be made.
        slabs: u64,
        /// The limit, and how to raise it.
        detail: String,
    },
    /// The memory was sealed: nobody writes it any more, so that it can be published and not
    /// exported. The caller is at fault.
    #[error("the slab is sealed: its ranges can be published, but not exported")]
    Sealed,
    /// Memory cannot be sealed, because it can still be written. This process has handles on it
    /// (the caller is at fault), or a peer has kept its mapping (the peer is).
    #[error("{bytes} bytes of memory cannot be sealed: {writer} can still write to them")]
    StillWritable {
        /// Size of the slab.
        bytes: usize,
        /// The side that can write.
        writer: &'static str,
    },
    /// A range does not lie inside the slab that it names. The caller is at fault.
    #[error("range {offset}..{end} is outside of a slab of {len} bytes")]
    OutOfBounds {
        /// First byte.
        offset: usize,
        /// One past the last byte.
        end: usize,
        /// Size of the slab.
        len: usize,
    },
}

/// Why an operation was not posted. Nothing of it took place.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// The queue, or the peer's posted receives, are used up. Call `poll` and try again.
    #[error("the endpoint's queue is full")]
    Full,
    /// The payload exceeds what the operation can carry ([`Caps`](crate::Caps)). The caller is at
    /// fault.
    #[error("the payload exceeds the limit of the endpoint")]
    TooLarge,
    /// The range is outside of what the peer exported, or misaligned; or it was published, and was
    /// to be written. The caller is at fault.
    #[error("the remote range is outside of the exported range")]
    OutOfBounds,
    /// The device does not offer this operation ([`Caps`](crate::Caps)). The caller is at fault.
    #[error("the endpoint does not offer this operation")]
    Unsupported,
    /// The endpoint failed or was closed earlier.
    #[error("the endpoint is closed")]
    Closed,
}

/// The kind of a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The peer is gone or the connection broke.
    Disconnected,
    /// The bytes that arrived differ from those that the peer sent: a checksum does not match. The
    /// connection has ended.
    Damaged,
    /// The peer refused the key or range: revoked, stale or out of bounds.
    RemoteAccess,
    /// The peer had no receive posted (a breach of G9).
    ReceiverNotReady,
    /// An earlier operation failed and took this one with it; its effect is unknown.
    Flushed,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Disconnected => "the other end is gone, or cannot be reached any more",
            ErrorKind::Damaged => "what arrived is not what was sent",
            ErrorKind::RemoteAccess => "the other end refused a key or a range of memory",
            ErrorKind::ReceiverNotReady => "the other end had posted no receive",
            ErrorKind::Flushed => "an operation before this one failed",
        })
    }
}
