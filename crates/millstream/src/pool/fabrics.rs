//! The transports over which a memory server is read.

use std::net::IpAddr;
use std::sync::Arc;

use fabric::{Fabric, FabricError};

use crate::FabricKind;

/// A transport in use.
pub(super) struct OpenFabric {
    pub(super) kind: FabricKind,
    pub(super) fabric: Arc<dyn Fabric>,
}

impl OpenFabric {
    pub(super) fn open(kind: FabricKind, at: IpAddr) -> Result<Self, FabricError> {
        Ok(Self { kind, fabric: kind.open_at(at, false, true)? })
    }
}

/// The transports of a memory server, the one that makes its memory first. With
/// [`FabricKind::Auto`] those of its machine share memory with it, and others read over TCP.
///
/// # Errors
/// When one cannot be opened.
pub(super) fn of_server(kind: FabricKind, at: IpAddr) -> Result<Arc<[OpenFabric]>, FabricError> {
    let kinds: &[FabricKind] = match kind {
        FabricKind::Auto => &[FabricKind::Shm, FabricKind::Tcp],
        FabricKind::Shm => &[FabricKind::Shm],
        FabricKind::Verbs => &[FabricKind::Verbs, FabricKind::Tcp],
        FabricKind::Tcp | FabricKind::Mpi => &[FabricKind::Tcp],
    };
    kinds.iter().map(|&kind| OpenFabric::open(kind, at)).collect()
}
