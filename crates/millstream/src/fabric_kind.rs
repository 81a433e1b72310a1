//! Which transport carries rows: the only place that knows them by name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use fabric::shm::{ShmFabric, ShmOptions};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::{Fabric, FabricError};

/// A transport between workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FabricKind {
    /// Shared memory, between processes of one machine and between threads of one process.
    #[default]
    Shm,
    /// TCP sockets.
    Tcp,
}

impl FabricKind {
    /// All, as a user would write them.
    pub const NAMES: [&str; 2] = ["shm", "tcp"];

    /// Memory of each end of a link besides its ring, in bytes. What the operating system keeps for
    /// a socket is not counted.
    pub(crate) fn endpoint_bytes(self) -> u64 {
        match self {
            FabricKind::Shm => ShmFabric::ENDPOINT_BYTES as u64,
            FabricKind::Tcp => 0,
        }
    }

    pub(crate) fn open(self) -> Result<Arc<dyn Fabric>, FabricError> {
        Ok(match self {
            FabricKind::Shm => ShmFabric::new(ShmOptions::default())?,
            FabricKind::Tcp => TcpFabric::new(TcpOptions::default())?,
        })
    }
}

impl fmt::Display for FabricKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FabricKind::Shm => "shm",
            FabricKind::Tcp => "tcp",
        })
    }
}

impl FromStr for FabricKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "shm" => Ok(FabricKind::Shm),
            "tcp" => Ok(FabricKind::Tcp),
            _ => Err(format!("there is no fabric '{text}'; there are {}", Self::NAMES.join(", "))),
        }
    }
}
