//! Errors of a pool, for the author of the SQL.

use dataflow::error::ConnectorError;
use pool::PoolError;

use crate::options::refuse;

/// The hint where the servers of a pool are named wrongly.
pub const SERVERS: &str =
    "--pool ADDR,ADDR names each server of the pool once; each has a --name of its own";

/// The hint where a memory server is there, and this client does not get at its tables.
pub const ACCESS: &str = "--pool-certs or --pool-token-file shows who this client is, and \
                          --pool-fabric auto takes what both have";

/// The error of a pool as that of the table: at the option at fault, with what to do about it.
pub(super) fn refused(error: PoolError) -> ConnectorError {
    let message = error.to_string();
    let io = |place: &str, hint: &str| ConnectorError::Io {
        place: place.to_owned(),
        message: message.clone(),
        hint: Some(hint.to_owned()),
    };
    match error {
        PoolError::NoTable { nearest, .. } => {
            let hint = match nearest {
                Some(near) => format!("did you mean '{near}'?"),
                None => "make it: CREATE TABLE … WITH ('connector' = 'pool') AS SELECT …".into(),
            };
            refuse("table", message, Some(hint))
        }
        PoolError::NoVersion { .. } => {
            let hint = "leave the version out to read the newest";
            refuse("version", message, Some(hint.into()))
        }
        PoolError::Mismatch { .. } => {
            let hint = "millstream pool stat tells what the pool has";
            refuse("table", message, Some(hint.into()))
        }
        PoolError::Full { .. } => io(
            "pool",
            "start the memory server with more --bytes, or make room: millstream pool drop TABLE",
        ),
        PoolError::Unreachable { .. } => {
            io("pool", "start it, millstream memory --bytes 8GiB, or check --pool")
        }
        PoolError::Unusable { .. } => io("pool", ACCESS),
        PoolError::Damaged { .. } => {
            io("pool", "drop it, millstream pool drop TABLE, and load it again")
        }
        PoolError::Refused { .. } => {
            io("pool", "millstream pool stat shows what the memory servers have and do")
        }
        // The node that failed gives the hint.
        PoolError::GivenUp { .. } => {
            ConnectorError::Io { place: "pool".into(), message, hint: None }
        }
        PoolError::WrongServers { .. } => io("pool", SERVERS),
        PoolError::Lost { .. } => io(
            "pool",
            "run the statement again; drop a table that millstream pool ls calls damaged",
        ),
        _ => io("pool", "the memory server may be of another version of millstream"),
    }
}

/// The error that what a pool has of a table does not fit together.
pub(super) fn damaged(table: &str, message: impl Into<String>) -> ConnectorError {
    ConnectorError::Io {
        place: format!("pool table '{table}'"),
        message: message.into(),
        hint: Some("load the table again; millstream pool verify tells more".into()),
    }
}
