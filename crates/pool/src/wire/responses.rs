//! Responses, as bytes.

use super::errors::{decode_error, encode_error};
use super::stat::{decode_stat, encode_stat};
use super::{KEYS_MAX, Rights, ServerResponse, TABLES_MAX, Welcome, framed, opaque};
use crate::access::{OriginLook, TableSummary};
use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;
use crate::manifest::HOLDERS_MAX;

impl Welcome {
    fn encode(&self, out: &mut FieldWriter) {
        self.rights.encode(out);
        out.text(&self.name);
        out.text(&self.host);
        out.list(&self.fabrics, |out, fabric| out.text(fabric));
        out.u32(self.incarnation);
        out.u64(self.identity);
        out.u8(self.keeps.into());
    }

    fn decode(from: &mut FieldReader<'_>) -> Result<Self, PoolError> {
        Ok(Self {
            rights: Rights::decode(from)?,
            name: from.text()?,
            host: from.text()?,
            fabrics: from.list(16, FieldReader::text)?,
            incarnation: from.u32()?,
            identity: from.u64()?,
            keeps: from.flag()?,
        })
    }
}

fn encode_summary(out: &mut FieldWriter, table: &TableSummary) {
    out.text(&table.name);
    [table.version, table.rows, table.bytes].iter().for_each(|of| out.u64(*of));
    out.u32(table.leases);
    out.u8(table.damaged.into());
}

fn encode_look(out: &mut FieldWriter, look: OriginLook) {
    out.u8(17);
    out.u8(match look {
        OriginLook::Current => 0,
        OriginLook::Wait => 1,
        OriginLook::Due => 2,
        OriginLook::Resting => 3,
    });
}

fn encode_broken(out: &mut FieldWriter, lease: u64, reason: &str) {
    out.u8(13);
    out.u64(lease);
    out.text(reason);
}

impl ServerResponse {
    /// The message.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        match self {
            ServerResponse::Welcome(welcome) => {
                out.u8(1);
                welcome.encode(&mut out);
            }
            ServerResponse::Failed(error) => {
                out.u8(2);
                encode_error(&mut out, error);
            }
            ServerResponse::Done => out.u8(3),
            ServerResponse::Address(address) => {
                out.u8(4);
                out.bytes(address);
            }
            ServerResponse::Tables(tables) => {
                out.u8(5);
                out.list(tables, encode_summary);
            }
            ServerResponse::Pinned { version, lease, manifest_bytes } => {
                out.u8(6);
                [version, lease, manifest_bytes].into_iter().for_each(|of| out.u64(*of));
            }
            ServerResponse::Manifest(bytes) => {
                out.u8(7);
                out.bytes(bytes);
            }
            ServerResponse::Keys(keys) => {
                out.u8(8);
                out.list(keys, |out, key| out.bytes(key));
            }
            ServerResponse::Load(load) => {
                out.u8(9);
                out.u64(*load);
            }
            ServerResponse::Extent { number, bytes, key } => {
                out.u8(10);
                out.u32(*number);
                out.u32(*bytes);
                out.bytes(key);
            }
            ServerResponse::Committed { version } => {
                out.u8(11);
                out.option(*version, FieldWriter::u64);
            }
            ServerResponse::Stat(stat) => {
                out.u8(12);
                encode_stat(&mut out, stat);
            }
            ServerResponse::Look(look) => encode_look(&mut out, *look),
            ServerResponse::UnderWay => out.u8(14),
            ServerResponse::Working => out.u8(15),
            ServerResponse::Numbers(numbers) => {
                out.u8(16);
                out.list(numbers, |out, number| out.u16(*number));
            }
            ServerResponse::Missing(extents) => {
                out.u8(18);
                out.list(extents, |out, extent| out.u32(*extent));
            }
            ServerResponse::Forgotten { tables, extents } => {
                out.u8(19);
                out.list(tables, |out, table| out.text(table));
                out.u32(*extents);
            }
            ServerResponse::Broken { lease, reason } => encode_broken(&mut out, *lease, reason),
        }
        framed(out)
    }

    /// The response of a message's body.
    ///
    /// # Errors
    /// [`PoolError::Malformed`] when it is none.
    pub fn decode(body: &[u8]) -> Result<Self, PoolError> {
        let mut from = FieldReader::new(body, "response");
        let response = match from.u8()? {
            1 => ServerResponse::Welcome(Welcome::decode(&mut from)?),
            2 => ServerResponse::Failed(decode_error(&mut from)?),
            3 => ServerResponse::Done,
            4 => ServerResponse::Address(opaque(&mut from)?),
            5 => ServerResponse::Tables(from.list(TABLES_MAX, |from| {
                Ok(TableSummary {
                    name: from.text()?,
                    version: from.u64()?,
                    rows: from.u64()?,
                    bytes: from.u64()?,
                    leases: from.u32()?,
                    damaged: from.flag()?,
                })
            })?),
            6 => ServerResponse::Pinned {
                version: from.u64()?,
                lease: from.u64()?,
                manifest_bytes: from.u64()?,
            },
            7 => ServerResponse::Manifest(from.bytes()?.to_vec()),
            8 => ServerResponse::Keys(from.list(KEYS_MAX, opaque)?),
            9 => ServerResponse::Load(from.u64()?),
            10 => ServerResponse::Extent {
                number: from.u32()?,
                bytes: from.u32()?,
                key: opaque(&mut from)?,
            },
            11 => ServerResponse::Committed { version: from.option(FieldReader::u64)? },
            12 => ServerResponse::Stat(decode_stat(&mut from)?),
            13 => ServerResponse::Broken { lease: from.u64()?, reason: from.text()? },
            14 => ServerResponse::UnderWay,
            15 => ServerResponse::Working,
            17 => ServerResponse::Look(match from.u8()? {
                0 => OriginLook::Current,
                1 => OriginLook::Wait,
                2 => OriginLook::Due,
                3 => OriginLook::Resting,
                _ => return Err(from.malformed()),
            }),
            16 => ServerResponse::Numbers(from.list(HOLDERS_MAX, FieldReader::u16)?),
            18 => ServerResponse::Missing(from.list(KEYS_MAX, FieldReader::u32)?),
            19 => ServerResponse::Forgotten {
                tables: from.list(TABLES_MAX, FieldReader::text)?,
                extents: from.u32()?,
            },
            _ => return Err(from.malformed()),
        };
        from.end()?;
        Ok(response)
    }
}
