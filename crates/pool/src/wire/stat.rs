//! The state of a server, as bytes.

use super::Stat;
use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;

pub(super) fn encode_stat(out: &mut FieldWriter, stat: &Stat) {
    let Stat { name, bytes_max, bytes, extents, tables, versions, damaged, .. } = stat;
    let Stat { leases, loads, clients, mapped, reads, read_bytes, refusals, .. } = stat;
    out.text(name);
    [bytes_max, bytes].into_iter().for_each(|of| out.u64(*of));
    [extents, tables, versions, damaged].into_iter().for_each(|of| out.u32(*of));
    [leases, loads, clients, mapped].into_iter().for_each(|of| out.u32(*of));
    [reads, read_bytes, refusals].into_iter().for_each(|of| out.u64(*of));
}

pub(super) fn decode_stat(from: &mut FieldReader<'_>) -> Result<Stat, PoolError> {
    Ok(Stat {
        name: from.text()?,
        bytes_max: from.u64()?,
        bytes: from.u64()?,
        extents: from.u32()?,
        tables: from.u32()?,
        versions: from.u32()?,
        damaged: from.u32()?,
        leases: from.u32()?,
        loads: from.u32()?,
        clients: from.u32()?,
        mapped: from.u32()?,
        reads: from.u64()?,
        read_bytes: from.u64()?,
        refusals: from.u64()?,
    })
}
