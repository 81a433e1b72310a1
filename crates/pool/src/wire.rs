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
mod responses;
mod stat;
#[cfg(test)]
mod tests;

use crate::access::{At, LoadMode, TableLoad, TableSummary};
use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;
use crate::manifest::{Definition, Strip};

/// The number of these messages: peers of another number are refused.
pub const PROTOCOL: u32 = 3;

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
    /// Gives a load up.
    Abort {
        /// The load.
        load: u64,
    },
    /// Drops a table.
    Drop {
        /// The table.
        table: String,
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
    /// It is done: to [`ClientRequest::Unpin`], `Beat`, `Seal`, `Abort`, `Drop`.
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

fn snapshot(out: &mut FieldWriter, of: StatementId) {
    out.u128(of.job);
    out.u32(of.statement);
}

fn snapshot_of(from: &mut FieldReader<'_>) -> Result<StatementId, PoolError> {
    Ok(StatementId { job: from.u128()?, statement: from.u32()? })
}

/// A kind with some numbers.
fn numbers(out: &mut FieldWriter, kind: u8, numbers: &[u64]) {
    out.u8(kind);
    numbers.iter().for_each(|number| out.u64(*number));
}

/// A kind with the numbers of extents.
fn extents(out: &mut FieldWriter, kind: u8, extents: &[u32]) {
    out.u8(kind);
    out.list(extents, |out, extent| out.u32(*extent));
}

/// Bytes of at most [`OPAQUE_BYTES_MAX`].
fn opaque(from: &mut FieldReader<'_>) -> Result<Vec<u8>, PoolError> {
    let bytes = from.bytes()?;
    if bytes.len() > OPAQUE_BYTES_MAX { Err(from.malformed()) } else { Ok(bytes.to_vec()) }
}

impl ClientRequest {
    /// The message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        match self {
            ClientRequest::Hello { protocol, client, token, rights } => {
                out.u8(1);
                out.u32(*protocol);
                out.text(client);
                out.bytes(token);
                rights.encode(&mut out);
            }
            ClientRequest::Connect { fabric, address } => {
                out.u8(2);
                out.text(fabric);
                out.bytes(address);
            }
            ClientRequest::Tables => out.u8(3),
            ClientRequest::Pin { table, at, snapshot: of } => {
                out.u8(4);
                out.text(table);
                let version = match at {
                    At::Newest => None,
                    At::Version(version) => Some(*version),
                };
                out.option(version, FieldWriter::u64);
                out.option(*of, snapshot);
            }
            ClientRequest::Manifest { lease, from } => numbers(&mut out, 5, &[*lease, *from]),
            ClientRequest::Keys { extents: of } => extents(&mut out, 6, of),
            ClientRequest::Unpin { lease } => numbers(&mut out, 7, &[*lease]),
            ClientRequest::Beat => out.u8(8),
            ClientRequest::Begin { load, snapshot: of, writers } => {
                out.u8(9);
                encode_load(&mut out, load);
                snapshot(&mut out, *of);
                out.u32(*writers);
            }
            ClientRequest::Grant { load, bytes } => {
                out.u8(10);
                out.u64(*load);
                out.u32(*bytes);
            }
            ClientRequest::Seal { load, extent, used, crc } => {
                out.u8(11);
                out.u64(*load);
                [extent, used, crc].into_iter().for_each(|field| out.u32(*field));
            }
            ClientRequest::Commit { load, writer, strips, last } => {
                encode_strips(&mut out, 12, (*load, *writer), strips);
                out.u8((*last).into());
            }
            ClientRequest::Replace { load, writer, strips } => {
                encode_strips(&mut out, 20, (*load, *writer), strips);
            }
            ClientRequest::HandIn { load, writer, strips, last } => {
                encode_strips(&mut out, 21, (*load, *writer), strips);
                out.u8((*last).into());
            }
            ClientRequest::Abort { load } => numbers(&mut out, 13, &[*load]),
            ClientRequest::Drop { table } => {
                out.u8(14);
                out.text(table);
            }
            ClientRequest::Stat => out.u8(15),
            ClientRequest::Verify { extents: of } => extents(&mut out, 16, of),
            ClientRequest::Outcome { load, snapshot: of } => {
                out.u8(17);
                out.u64(*load);
                snapshot(&mut out, *of);
            }
        }
        framed(out)
    }

    /// The request of a message's body.
    ///
    /// # Errors
    /// [`PoolError::Malformed`] when it is none.
    pub fn decode(body: &[u8]) -> Result<Self, PoolError> {
        let mut from = FieldReader::new(body, "request");
        let extents = |from: &mut FieldReader<'_>| from.list(KEYS_MAX, FieldReader::u32);
        let request = match from.u8()? {
            1 => ClientRequest::Hello {
                protocol: from.u32()?,
                client: from.text()?,
                token: opaque(&mut from)?,
                rights: Rights::decode(&mut from)?,
            },
            2 => ClientRequest::Connect { fabric: from.text()?, address: opaque(&mut from)? },
            3 => ClientRequest::Tables,
            4 => ClientRequest::Pin {
                table: from.text()?,
                at: from.option(FieldReader::u64)?.map_or(At::Newest, At::Version),
                snapshot: from.option(snapshot_of)?,
            },
            5 => ClientRequest::Manifest { lease: from.u64()?, from: from.u64()? },
            6 => ClientRequest::Keys { extents: extents(&mut from)? },
            7 => ClientRequest::Unpin { lease: from.u64()? },
            8 => ClientRequest::Beat,
            9 => ClientRequest::Begin {
                load: decode_load(&mut from)?,
                snapshot: snapshot_of(&mut from)?,
                writers: from.u32()?,
            },
            10 => ClientRequest::Grant { load: from.u64()?, bytes: from.u32()? },
            11 => ClientRequest::Seal {
                load: from.u64()?,
                extent: from.u32()?,
                used: from.u32()?,
                crc: from.u32()?,
            },
            12 => ClientRequest::Commit {
                load: from.u64()?,
                writer: from.u32()?,
                strips: decode_strips(&mut from)?,
                last: from.flag()?,
            },
            13 => ClientRequest::Abort { load: from.u64()? },
            14 => ClientRequest::Drop { table: from.text()? },
            15 => ClientRequest::Stat,
            16 => {
                ClientRequest::Verify { extents: from.list(VERIFY_EXTENTS_MAX, FieldReader::u32)? }
            }
            17 => ClientRequest::Outcome { load: from.u64()?, snapshot: snapshot_of(&mut from)? },
            20 => ClientRequest::Replace {
                load: from.u64()?,
                writer: from.u32()?,
                strips: decode_strips(&mut from)?,
            },
            21 => ClientRequest::HandIn {
                load: from.u64()?,
                writer: from.u32()?,
                strips: decode_strips(&mut from)?,
                last: from.flag()?,
            },
            _ => return Err(from.malformed()),
        };
        from.end()?;
        Ok(request)
    }
}

/// A kind, a load with its writer, and strips with their partitions.
fn encode_strips(
    out: &mut FieldWriter,
    kind: u8,
    (load, writer): (u64, u32),
    strips: &[(u32, Strip)],
) {
    out.u8(kind);
    out.u64(load);
    out.u32(writer);
    out.list(strips, |out, (partition, strip)| {
        out.u32(*partition);
        strip.encode(out);
    });
}

fn decode_strips(from: &mut FieldReader<'_>) -> Result<Vec<(u32, Strip)>, PoolError> {
    from.list(COMMIT_STRIPS_MAX, |from| Ok((from.u32()?, Strip::decode(from)?)))
}

fn encode_load(out: &mut FieldWriter, load: &TableLoad) {
    out.text(&load.table);
    load.definition.encode(out);
    out.u8(match load.mode {
        LoadMode::Create => 0,
        LoadMode::Append => 1,
        LoadMode::Overwrite => 2,
    });
}

fn decode_load(from: &mut FieldReader<'_>) -> Result<TableLoad, PoolError> {
    let (table, definition) = (from.text()?, Definition::decode(from)?);
    let mode = match from.u8()? {
        0 => LoadMode::Create,
        1 => LoadMode::Append,
        2 => LoadMode::Overwrite,
        _ => return Err(from.malformed()),
    };
    Ok(TableLoad { table, definition, mode })
}
