//! Errors of a pool, and whose fault they are.

use thiserror::Error;

/// A failure while a table of a pool is looked up, read or loaded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// No memory server answers at the address. The address, or the server, is at fault.
    #[error("no memory server answers at {address}: {reason}")]
    Unreachable {
        /// The address as the user wrote it.
        address: String,
        /// The message of the operating system, or of the handshake.
        reason: String,
    },
    /// A memory server is at the address, and this client does not get at its tables. What the
    /// client shows, or asks for, is at fault.
    #[error("the memory server at {address} cannot be used: {reason}")]
    Unusable {
        /// The address as the user wrote it.
        address: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// The pool has no such table.
    #[error("the pool has no table '{table}'")]
    NoTable {
        /// The name that was asked for.
        table: String,
        /// The table with the nearest name.
        nearest: Option<String>,
    },
    /// The table is there, and this version of it is not, or not any more.
    #[error("table '{table}' has no version {version}: {reason}")]
    NoVersion {
        /// The table.
        table: String,
        /// The version that was asked for.
        version: u64,
        /// The versions that there are.
        reason: String,
    },
    /// Bytes of the table that a server has saved were lost. The disk of the server is at fault.
    #[error("table '{table}' is damaged: {reason}")]
    Damaged {
        /// The table.
        table: String,
        /// The damage, and the file.
        reason: String,
    },
    /// The pool has no room for what is loaded.
    #[error("the pool is full: {needed} bytes are needed, {free} are free")]
    Full {
        /// Bytes asked for.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A load does not fit the table that is there.
    #[error("{detail}")]
    Mismatch {
        /// The difference.
        detail: String,
    },
    /// The memory server refuses: rights, another loader of the table, a bound.
    #[error("the memory server refuses: {reason}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// A load was given up, by one of its nodes or by the server. The reason names both.
    #[error("the load was given up: {reason}")]
    GivenUp {
        /// The node that has given it up, and the reason.
        reason: String,
    },
    /// A client finds that the servers that are named are not one pool, or not all of it.
    #[error("{reason}")]
    WrongServers {
        /// The servers, and what is wrong with them.
        reason: String,
    },
    /// A memory server went away, was restarted, or ended the lease while its blocks were read or
    /// written.
    #[error("memory server '{server}' is gone: {reason}")]
    Lost {
        /// Its name.
        server: String,
        /// The reason, as far as the client knows it.
        reason: String,
    },
    /// A peer said something that is not of this protocol.
    #[error("the memory server sent a malformed {what}")]
    Malformed {
        /// The part that could not be decoded.
        what: &'static str,
    },
}
