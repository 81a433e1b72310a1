//! Requests, as bytes.

use super::{
    COMMIT_STRIPS_MAX, ClientRequest, KEYS_MAX, REASON_BYTES_MAX, Rights, ServerPlace, StatementId,
    VERIFY_EXTENTS_MAX, framed, opaque,
};
use crate::access::{At, LoadMode, LookOutcome, TableLoad};
use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;
use crate::manifest::{CachedOrigin, Definition, HOLDERS_MAX, Strip};

fn snapshot(out: &mut FieldWriter, of: StatementId) {
    out.u128(of.job);
    out.u32(of.statement);
}

fn snapshot_of(from: &mut FieldReader<'_>) -> Result<StatementId, PoolError> {
    Ok(StatementId { job: from.u128()?, statement: from.u32()? })
}

fn outcome_of(from: &mut FieldReader<'_>) -> Result<LookOutcome, PoolError> {
    match from.u8()? {
        0 => Ok(LookOutcome::Copy),
        1 => Ok(LookOutcome::Failed),
        2 => Ok(LookOutcome::Abandoned),
        _ => Err(from.malformed()),
    }
}

fn encode_abort(out: &mut FieldWriter, load: u64, reason: &str) {
    numbers(out, 13, &[load]);
    out.text(reason);
}

fn encode_drop(out: &mut FieldWriter, table: &str) {
    out.u8(14);
    out.text(table);
}

fn encode_look(out: &mut FieldWriter, table: &str, statement: StatementId, age_max_ns: u64) {
    out.u8(25);
    out.text(table);
    snapshot(out, statement);
    out.u64(age_max_ns);
}

fn decode_look(from: &mut FieldReader<'_>) -> Result<ClientRequest, PoolError> {
    let (table, statement) = (from.text()?, snapshot_of(from)?);
    Ok(ClientRequest::Look { table, statement, age_max_ns: from.u64()? })
}

fn encode_end_look(out: &mut FieldWriter, table: &str, outcome: LookOutcome) {
    out.u8(26);
    out.text(table);
    out.u8(match outcome {
        LookOutcome::Copy => 0,
        LookOutcome::Failed => 1,
        LookOutcome::Abandoned => 2,
    });
}

fn encode_hold(out: &mut FieldWriter, load: u64, extents: &[(u32, u32)], unused: &[u32]) {
    numbers(out, 23, &[load]);
    out.list(extents, |out, (extent, used)| [extent, used].iter().for_each(|of| out.u32(**of)));
    out.list(unused, |out, extent| out.u32(*extent));
}

/// A kind with some numbers.
fn numbers(out: &mut FieldWriter, kind: u8, numbers: &[u64]) {
    out.u8(kind);
    numbers.iter().for_each(|number| out.u64(*number));
}

/// A kind, a load, and more numbers.
fn fields(out: &mut FieldWriter, kind: u8, load: u64, fields: &[u32]) {
    numbers(out, kind, &[load]);
    fields.iter().for_each(|field| out.u32(*field));
}

fn encode_hello(out: &mut FieldWriter, protocol: u32, client: &str, token: &[u8]) {
    out.u8(1);
    out.u32(protocol);
    out.text(client);
    out.bytes(token);
}

fn decode_hello(from: &mut FieldReader<'_>) -> Result<ClientRequest, PoolError> {
    let (protocol, client, token) = (from.u32()?, from.text()?, opaque(from)?);
    Ok(ClientRequest::Hello { protocol, client, token, rights: Rights::decode(from)? })
}

fn encode_pin(out: &mut FieldWriter, table: &str, at: At) {
    out.u8(4);
    out.text(table);
    let version = match at {
        At::Newest => None,
        At::Version(version) => Some(version),
    };
    out.option(version, FieldWriter::u64);
}

fn encode_claim(
    out: &mut FieldWriter,
    (identity, name): (u64, &str),
    link: u64,
    extents: &[u32],
    last: bool,
) {
    numbers(out, 28, &[identity, link]);
    out.text(name);
    out.list(extents, |out, extent| out.u32(*extent));
    out.u8(last.into());
}

fn decode_claim(from: &mut FieldReader<'_>) -> Result<ClientRequest, PoolError> {
    let (identity, link, name) = (from.u64()?, from.u64()?, from.text()?);
    let extents = from.list(KEYS_MAX, FieldReader::u32)?;
    Ok(ClientRequest::Claim { identity, name, link, extents, last: from.flag()? })
}

fn encode_forget(out: &mut FieldWriter, name: &str, living: Option<u64>) {
    out.u8(29);
    out.text(name);
    out.option(living, FieldWriter::u64);
}

/// An extent and its used bytes.
fn used_extent(from: &mut FieldReader<'_>) -> Result<(u32, u32), PoolError> {
    Ok((from.u32()?, from.u32()?))
}

/// A kind with the numbers of extents.
fn extents(out: &mut FieldWriter, kind: u8, extents: &[u32]) {
    out.u8(kind);
    out.list(extents, |out, extent| out.u32(*extent));
}

fn encode_place(out: &mut FieldWriter, server: &ServerPlace) {
    server.encode(out);
}

fn encode_connect(out: &mut FieldWriter, fabric: &str, address: &[u8]) {
    out.u8(2);
    out.text(fabric);
    out.bytes(address);
}

fn encode_begin(out: &mut FieldWriter, load: &TableLoad, of: StatementId, writers: u32) {
    out.u8(9);
    encode_load(out, load);
    snapshot(out, of);
    out.u32(writers);
}

/// Blocks of a writer that are handed in.
fn decode_hand_in(from: &mut FieldReader<'_>) -> Result<ClientRequest, PoolError> {
    Ok(ClientRequest::HandIn {
        load: from.u64()?,
        writer: from.u32()?,
        strips: decode_strips(from)?,
        last: from.flag()?,
    })
}

impl ClientRequest {
    /// The message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        match self {
            ClientRequest::Hello { protocol, client, token, rights } => {
                encode_hello(&mut out, *protocol, client, token);
                rights.encode(&mut out);
            }
            ClientRequest::Connect { fabric, address } => {
                encode_connect(&mut out, fabric, address);
            }
            ClientRequest::Tables => out.u8(3),
            ClientRequest::Pin { table, at, snapshot: of } => {
                encode_pin(&mut out, table, *at);
                out.option(*of, snapshot);
            }
            ClientRequest::Manifest { lease, from } => numbers(&mut out, 5, &[*lease, *from]),
            ClientRequest::Keys { extents: of } => extents(&mut out, 6, of),
            ClientRequest::Unpin { lease } => numbers(&mut out, 7, &[*lease]),
            ClientRequest::Beat => out.u8(8),
            ClientRequest::Begin { load, snapshot, writers } => {
                encode_begin(&mut out, load, *snapshot, *writers);
            }
            ClientRequest::Grant { load, bytes, part } => {
                fields(&mut out, 10, *load, &[*bytes]);
                out.u8((*part).into());
            }
            ClientRequest::Distribute { load, servers } => {
                numbers(&mut out, 22, &[*load]);
                out.list(servers, encode_place);
            }
            ClientRequest::Hold { load, extents: of, unused } => {
                encode_hold(&mut out, *load, of, unused);
            }
            ClientRequest::Release { extents: of } => extents(&mut out, 24, of),
            ClientRequest::Relocate { servers } => {
                out.u8(27);
                out.list(servers, encode_place);
            }
            ClientRequest::Claim { identity, name, link, extents, last } => {
                encode_claim(&mut out, (*identity, name), *link, extents, *last);
            }
            ClientRequest::Forget { name, living } => encode_forget(&mut out, name, *living),
            ClientRequest::Seal { load, extent, used, crc } => {
                fields(&mut out, 11, *load, &[*extent, *used, *crc]);
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
            ClientRequest::Abort { load, reason } => encode_abort(&mut out, *load, reason),
            ClientRequest::Drop { table } => encode_drop(&mut out, table),
            ClientRequest::Stat => out.u8(15),
            ClientRequest::Look { table, statement, age_max_ns } => {
                encode_look(&mut out, table, *statement, *age_max_ns);
            }
            ClientRequest::EndLook { table, outcome } => encode_end_look(&mut out, table, *outcome),
            ClientRequest::Verify { extents: of } => extents(&mut out, 16, of),
            ClientRequest::Outcome { load, snapshot: of } => {
                numbers(&mut out, 17, &[*load]);
                snapshot(&mut out, *of);
            }
        }
        framed(out)
    }

    /// Gives a load up for a reason, which is shortened to what the message may have.
    pub fn abort(load: u64, reason: &str) -> Self {
        let shown = |c: char| if c.is_control() { ' ' } else { c };
        let mut reason: String = reason.chars().map(shown).collect();
        reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
        ClientRequest::Abort { load, reason }
    }

    /// The request of a message's body.
    ///
    /// # Errors
    /// [`PoolError::Malformed`] when it is none.
    pub fn decode(body: &[u8]) -> Result<Self, PoolError> {
        let mut from = FieldReader::new(body, "request");
        let extents = |from: &mut FieldReader<'_>| from.list(KEYS_MAX, FieldReader::u32);
        let request = match from.u8()? {
            1 => decode_hello(&mut from)?,
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
            10 => {
                ClientRequest::Grant { load: from.u64()?, bytes: from.u32()?, part: from.flag()? }
            }
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
            13 => ClientRequest::Abort { load: from.u64()?, reason: reason_of(&mut from)? },
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
            21 => decode_hand_in(&mut from)?,
            22 => ClientRequest::Distribute {
                load: from.u64()?,
                servers: from.list(HOLDERS_MAX, ServerPlace::decode)?,
            },
            23 => ClientRequest::Hold {
                load: from.u64()?,
                extents: from.list(KEYS_MAX, used_extent)?,
                unused: extents(&mut from)?,
            },
            24 => ClientRequest::Release { extents: extents(&mut from)? },
            25 => decode_look(&mut from)?,
            26 => ClientRequest::EndLook { table: from.text()?, outcome: outcome_of(&mut from)? },
            27 => ClientRequest::Relocate { servers: from.list(HOLDERS_MAX, ServerPlace::decode)? },
            28 => decode_claim(&mut from)?,
            29 => {
                ClientRequest::Forget { name: from.text()?, living: from.option(FieldReader::u64)? }
            }
            _ => return Err(from.malformed()),
        };
        from.end()?;
        Ok(request)
    }
}

/// The reason of an abort, which is shown to others.
fn reason_of(from: &mut FieldReader<'_>) -> Result<String, PoolError> {
    let reason = from.text()?;
    let fits = reason.len() <= REASON_BYTES_MAX && !reason.chars().any(char::is_control);
    if fits { Ok(reason) } else { Err(from.malformed()) }
}

impl ServerPlace {
    fn encode(&self, out: &mut FieldWriter) {
        out.text(&self.name);
        out.text(&self.address);
        out.u64(self.identity);
        out.u32(self.incarnation);
    }

    fn decode(from: &mut FieldReader<'_>) -> Result<Self, PoolError> {
        let (name, address) = (from.text()?, from.text()?);
        Ok(Self { name, address, identity: from.u64()?, incarnation: from.u32()? })
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
    out.option(load.origin.as_ref(), |out, origin| origin.encode(out));
}

fn decode_load(from: &mut FieldReader<'_>) -> Result<TableLoad, PoolError> {
    let (table, definition) = (from.text()?, Definition::decode(from)?);
    let mode = match from.u8()? {
        0 => LoadMode::Create,
        1 => LoadMode::Append,
        2 => LoadMode::Overwrite,
        _ => return Err(from.malformed()),
    };
    let origin = from.option(CachedOrigin::decode)?;
    Ok(TableLoad { table, definition, mode, origin })
}
