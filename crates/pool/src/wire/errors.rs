//! Errors, as bytes.

use crate::encoding::{FieldReader, FieldWriter};
use crate::error::PoolError;

/// The errors that a server tells; of others, their text.
pub(super) fn encode_error(out: &mut FieldWriter, error: &PoolError) {
    match error {
        // The client looks for the nearest name among all tables.
        PoolError::NoTable { table, .. } => {
            out.u8(1);
            out.text(table);
        }
        PoolError::NoVersion { table, version, reason } => {
            out.u8(2);
            out.text(table);
            out.u64(*version);
            out.text(reason);
        }
        PoolError::Full { needed, free } => {
            out.u8(3);
            out.u64(*needed);
            out.u64(*free);
        }
        PoolError::Mismatch { detail } => {
            out.u8(4);
            out.text(detail);
        }
        PoolError::Refused { reason } => {
            out.u8(5);
            out.text(reason);
        }
        PoolError::Damaged { table, reason } => {
            out.u8(6);
            out.text(table);
            out.text(reason);
        }
        PoolError::Lost { server, reason } => {
            out.u8(7);
            out.text(server);
            out.text(reason);
        }
        PoolError::GivenUp { reason } => {
            out.u8(8);
            out.text(reason);
        }
        PoolError::Unreachable { .. }
        | PoolError::Unusable { .. }
        | PoolError::WrongServers { .. }
        | PoolError::Malformed { .. } => {
            out.u8(5);
            out.text(&error.to_string());
        }
    }
}

pub(super) fn decode_error(from: &mut FieldReader<'_>) -> Result<PoolError, PoolError> {
    Ok(match from.u8()? {
        1 => PoolError::NoTable { table: from.text()?, nearest: None },
        2 => {
            PoolError::NoVersion { table: from.text()?, version: from.u64()?, reason: from.text()? }
        }
        3 => PoolError::Full { needed: from.u64()?, free: from.u64()? },
        4 => PoolError::Mismatch { detail: from.text()? },
        5 => PoolError::Refused { reason: from.text()? },
        6 => PoolError::Damaged { table: from.text()?, reason: from.text()? },
        7 => PoolError::Lost { server: from.text()?, reason: from.text()? },
        8 => PoolError::GivenUp { reason: from.text()? },
        _ => return Err(from.malformed()),
    })
}
