//! The messages between a client and a memory server, on a connection of their own:
//!
//! ```text
//!   length u32 | CRC-32C of the body u32 | body: kind u8 | fields
//! ```
//!
//! A client asks, and gets one [`ServerResponse`] to each [`ClientRequest`], in order. Between
//! responses the server may send a notice: a [`ServerResponse::Broken`] answers nothing. A
//! peer that sends another kind, length or checksum loses the connection.

mod errors;
mod requests;
mod responses;
mod stat;
#[cfg(test)]
mod tests;

use crate::access::{At, LookOutcome, OriginLook, TableLoad, TableSummary};
use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;
#[cfg(doc)]
use crate::manifest::HOLDERS_MAX;
use crate::manifest::Strip;

/// The number of these messages: peers of another number are refused.
pub const PROTOCOL: u32 = 7;

/// Bytes of a message at most, without its length and checksum.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// Bytes of a manifest that one answer carries at most: a client that takes none of its answers
/// costs the server no more.
pub const MANIFEST_PIECE_BYTES: usize = 1 << 20;

/// Bytes that one READ of a block asks for at most; a server on whose processor READs depend makes
/// a copy of them.
pub const READ_BYTES_MAX: u32 = fabric::PUBLISHED_READ_MAX as u32;

/// Extents in one [`ClientRequest::Verify`] at most: the server reads all of their bytes.
pub const VERIFY_EXTENTS_MAX: usize = 16;

/// Strips in one [`ClientRequest::Commit`] at most.
pub const COMMIT_STRIPS_MAX: usize = 4096;

/// Bytes of a token, an address or a key of a fabric at most.
const OPAQUE_BYTES_MAX: usize = 4096;

/// Extents whose keys are asked for at a time at most.
pub const KEYS_MAX: usize = 65_536;

/// Tables of a memory server at most: one response lists them all.
pub const TABLES_MAX: usize = 32_768;

/// Bytes of the name of a table at most.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes of the reason of a [`ClientRequest::Abort`] at most.
pub const REASON_BYTES_MAX: usize = 1024;

const HEADER_BYTES: usize = 8;

/// The rights of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// Pin versions and read blocks.
    Read,
    /// Load and drop tables, too.
    Write,
}

impl Rights {
    fn encode(self, out: &mut FieldWriter) {
        out.u8((self == Rights::Write).into());
    }

    fn decode(from: &mut FieldReader<'_>) -> Result<Self, PoolError> {
        Ok(if from.flag()? { Rights::Write } else { Rights::Read })
    }
}

/// A statement of a job. All of its nodes get the same version of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatementId {
    /// The job: a random number that its nodes share.
    pub job: u128,
    /// The statement's number in it.
    pub statement: u32,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientRequest {
    /// The first message: the client introduces itself.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// For messages to others, as `process 4711 on host a`.
        client: String,
        /// The token of the server's owner; empty where certificates prove who asks.
        token: Vec<u8>,
        /// The rights that it needs.
        rights: Rights,
    },
    /// Prepares a connection of a fabric; the client's address of it.
    Connect {
        /// The fabric's name.
        fabric: String,
        /// See [`fabric::Offer::address`].
        address: Vec<u8>,
    },
    /// The tables.
    Tables,
    /// Pins a version.
    Pin {
        /// The table.
        table: String,
        /// The version.
        at: At,
        /// With [`At::Newest`]: the statement whose nodes get the same version.
        snapshot: Option<StatementId>,
    },
    /// A piece of the manifest of a pinned version.
    Manifest {
        /// The lease.
        lease: u64,
        /// From which byte on.
        from: u64,
    },
    /// The keys of extents that are published.
    Keys {
        /// Their numbers.
        extents: Vec<u32>,
    },
    /// A lease is not used any more.
    Unpin {
        /// The lease.
        lease: u64,
    },
    /// The client lives.
    Beat,
    /// Begins a load, or takes part in one.
    Begin {
        /// The table, and how it changes.
        load: TableLoad,
        /// All nodes of a statement take part in one load of a table.
        snapshot: StatementId,
        /// How many writers commit.
        writers: u32,
    },
    /// Asks for an extent.
    Grant {
        /// The load.
        load: u64,
        /// Its bytes.
        bytes: u32,
        /// Whether the load is that of a table that another server has, which numbers it: the
        /// extent belongs to this client until that server holds it.
        part: bool,
    },
    /// Says which other servers extents of a load lie on, to the server that has the table.
    Distribute {
        /// The load.
        load: u64,
        /// The servers, [`HOLDERS_MAX`] at most.
        servers: Vec<ServerPlace>,
    },
    /// From the server that has a table to another one: sealed extents of a load are held until
    /// they are released, or the asking server has ended.
    Hold {
        /// The load.
        load: u64,
        /// The extents, each with the bytes that are used of it at least.
        extents: Vec<(u32, u32)>,
        /// Extents of the same load that no version will have.
        unused: Vec<u32>,
    },
    /// From the same: extents are not held any more.
    Release {
        /// Their numbers.
        extents: Vec<u32>,
    },
    /// No more will be written into an extent.
    Seal {
        /// The load.
        load: u64,
        /// The extent.
        extent: u32,
        /// Bytes that were written, from its beginning on.
        used: u32,
        /// CRC-32C of these.
        crc: u32,
    },
    /// Tells a server where other servers of its pool that keep tables are: it introduces itself to
    /// those with which it has no connection.
    Relocate {
        /// The servers, [`HOLDERS_MAX`] at most.
        servers: Vec<ServerPlace>,
    },
    /// The first messages of a server that keeps tables to another one: who it is, and which
    /// extents it has there. Whatever else is held for it is freed with the last one.
    Claim {
        /// Its identity; see [`Welcome::identity`].
        identity: u64,
        /// Its name.
        name: String,
        /// The number of this connection: those of a directory rise, also over restarts. What an
        /// older one says is refused, since it may have been on its way for long.
        link: u64,
        /// Extents of its tables, [`KEYS_MAX`] at most.
        extents: Vec<u32>,
        /// Whether it has no others.
        last: bool,
    },
    /// A server never comes back: tables that lie there in part are dropped, and extents that are
    /// held for it are freed.
    Forget {
        /// Its name.
        name: String,
        /// The identity of the server of this name that is there, if one is: it is not meant.
        living: Option<u64>,
    },
    /// Strips of a writer.
    Commit {
        /// The load.
        load: u64,
        /// The writer's number.
        writer: u32,
        /// Strips, each with its partition.
        strips: Vec<(u32, Strip)>,
        /// Whether these are the writer's last.
        last: bool,
    },
    /// Strips that those of the writer's next [`HandIn`](Self::HandIn) or `Commit` take the place
    /// of.
    Replace {
        /// The load.
        load: u64,
        /// The writer's number.
        writer: u32,
        /// Strips as they were committed, each with its partition; [`COMMIT_STRIPS_MAX`] at most.
        strips: Vec<(u32, Strip)>,
    },
    /// As [`Commit`](Self::Commit), of a writer that goes on: a version appears when each has
    /// handed in its part.
    HandIn {
        /// The load.
        load: u64,
        /// The writer's number.
        writer: u32,
        /// Strips, each with its partition.
        strips: Vec<(u32, Strip)>,
        /// Whether these are the last ones of its part.
        last: bool,
    },
    /// Gives a load up; see [`ClientRequest::abort`].
    Abort {
        /// The load.
        load: u64,
        /// Why, for the other nodes of the load: [`REASON_BYTES_MAX`] bytes without control
        /// characters at most. Empty where the client cannot tell.
        reason: String,
    },
    /// Drops a table.
    Drop {
        /// The table.
        table: String,
    },
    /// Asks whether this client has to look at the origin of a table that is a cache.
    Look {
        /// The table.
        table: String,
        /// The statement that reads it: its nodes wait for the one that looks.
        statement: StatementId,
        /// How long ago, in ns, the last look may have been.
        age_max_ns: u64,
    },
    /// The client looks no longer.
    EndLook {
        /// The table.
        table: String,
        /// Its outcome.
        outcome: LookOutcome,
    },
    /// The state of the server.
    Stat,
    /// The question for the outcome of a load: its writer has committed and got no answer.
    Outcome {
        /// The load.
        load: u64,
        /// The statement that has begun it.
        snapshot: StatementId,
    },
    /// Whether the bytes of extents are still those that were sealed.
    Verify {
        /// Their numbers, [`VERIFY_EXTENTS_MAX`] at most.
        extents: Vec<u32>,
    },
}

/// A response of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerResponse {
    /// To [`ClientRequest::Hello`].
    Welcome(Welcome),
    /// It cannot be done.
    Failed(PoolError),
    /// It is done: to [`ClientRequest::Unpin`], `Beat`, `Seal`, `Abort`, `Drop`,
    /// `EndLook`, `Relocate`.
    Done,
    /// To [`ClientRequest::Connect`]: the server's address.
    Address(Vec<u8>),
    /// To [`ClientRequest::Tables`].
    Tables(Vec<TableSummary>),
    /// To [`ClientRequest::Pin`].
    Pinned {
        /// The version.
        version: u64,
        /// The lease that holds it.
        lease: u64,
        /// Bytes of the manifest.
        manifest_bytes: u64,
    },
    /// To [`ClientRequest::Manifest`].
    Manifest(Vec<u8>),
    /// To [`ClientRequest::Keys`], in their order; see [`fabric::RemoteKey`].
    Keys(Vec<Vec<u8>>),
    /// To [`ClientRequest::Begin`]: the load's number.
    Load(u64),
    /// To [`ClientRequest::Distribute`]: the numbers by which pointers name the servers, in order.
    Numbers(Vec<u16>),
    /// To [`ClientRequest::Claim`]: the extents of the message that are not held here.
    Missing(Vec<u32>),
    /// To [`ClientRequest::Forget`].
    Forgotten {
        /// The tables that were dropped.
        tables: Vec<String>,
        /// How many extents of other servers' tables were freed.
        extents: u32,
    },
    /// To [`ClientRequest::Grant`].
    Extent {
        /// Its number.
        number: u32,
        /// Its bytes, at least as many as were asked for.
        bytes: u32,
        /// By which it is written.
        key: Vec<u8>,
    },
    /// To [`ClientRequest::Commit`] and [`ClientRequest::Outcome`].
    Committed {
        /// The version that appeared, if this was the last part.
        version: Option<u64>,
    },
    /// To the same: all parts are there, or not yet, and the version has not appeared. The client
    /// asks for the outcome of the load.
    UnderWay,
    /// A notice, which answers nothing: the server still works on the request, so that the client
    /// waits on.
    Working,
    /// To [`ClientRequest::Look`].
    Look(OriginLook),
    /// To [`ClientRequest::Stat`].
    Stat(Stat),
    /// A notice, which answers nothing: a lease has ended.
    Broken {
        /// The lease.
        lease: u64,
        /// Why.
        reason: String,
    },
}

/// A memory server of a pool, for another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerPlace {
    /// Its name.
    pub name: String,
    /// Where it listens, as its clients know it.
    pub address: String,
    /// Names its memory, wherever it listens; see [`Welcome::identity`].
    pub identity: u64,
    /// Its incarnation; see [`Welcome::incarnation`].
    pub incarnation: u32,
}

/// A server, as it presents itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Its name.
    pub name: String,
    /// Names the machine, so that a client knows whether it shares its memory.
    pub host: String,
    /// Names of the fabrics by which it is read.
    pub fabrics: Vec<String>,
    /// The rights of the client here: those that it has asked for, or less.
    pub rights: Rights,
    /// A random number of this start of the server: after another one, nothing is as it was.
    pub incarnation: u32,
    /// A random number of what it holds: that of its directory if it keeps its tables there, else
    /// one of this start.
    pub identity: u64,
    /// Whether it keeps its tables in a directory: then they lie on servers that do so, too.
    pub keeps: bool,
}

/// The state of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stat {
    /// Its name.
    pub name: String,
    /// Bytes that it may hold.
    pub bytes_max: u64,
    /// Bytes that it holds: extents, manifests and definitions.
    pub bytes: u64,
    /// Extents.
    pub extents: u32,
    /// Tables.
    pub tables: u32,
    /// Versions that are kept.
    pub versions: u32,
    /// Tables that it has saved and whose bytes were lost.
    pub damaged: u32,
    /// Leases that hold a version.
    pub leases: u32,
    /// Loads under way.
    pub loads: u32,
    /// Clients.
    pub clients: u32,
    /// Clients that map its memory.
    pub mapped: u32,
    /// READs of published memory that its processor has served.
    pub reads: u64,
    /// Bytes of these.
    pub read_bytes: u64,
    /// Requests and clients that were refused.
    pub refusals: u64,
}

/// Takes the body of the first message off `bytes`, with the bytes that it takes in all; `None`
/// until more bytes are there.
///
/// # Errors
/// [`PoolError::Malformed`] for a length that is out of bounds, or bytes that were damaged.
pub fn split(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, PoolError> {
    let malformed = || PoolError::Malformed { what: "message" };
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let mut header = FieldReader::new(header, "message");
    let (len, crc) = (header.u32()? as usize, header.u32()?);
    if len == 0 || len > MESSAGE_BYTES_MAX {
        return Err(malformed());
    }
    let Some(body) = rest.get(..len) else { return Ok(None) };
    if crc32c::crc32c(body) != crc {
        return Err(malformed());
    }
    Ok(Some((body, HEADER_BYTES + len)))
}

/// The bytes of the message that begins here, as far as it has come; 0 while its length has not.
pub fn length(bytes: &[u8]) -> usize {
    let length = bytes.first_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize);
    length.map_or(0, |length| HEADER_BYTES + length)
}

/// A body with its length and checksum.
fn framed(body: FieldWriter) -> Vec<u8> {
    let mut out = FieldWriter::default();
    out.u32(body.0.len() as u32);
    out.u32(crc32c::crc32c(&body.0));
    out.0.extend_from_slice(&body.0);
    out.0
}

/// Bytes of at most [`OPAQUE_BYTES_MAX`].
fn opaque(from: &mut FieldReader<'_>) -> Result<Vec<u8>, PoolError> {
    let bytes = from.bytes()?;
    if bytes.len() > OPAQUE_BYTES_MAX { Err(from.malformed()) } else { Ok(bytes.to_vec()) }
}
