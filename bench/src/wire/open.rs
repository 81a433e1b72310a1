//! Transports by the names that a user chooses them by.

use std::sync::Arc;

use fabric::shm::{ShmFabric, ShmOptions};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::verbs::{VerbsFabric, VerbsOptions};
use fabric::{Fabric, FabricError, Publish};
use millstream::{FabricKind, RDMA_VARIABLE};

use super::Transport;

impl Transport {
    /// The transport of this kind.
    pub fn of(kind: FabricKind) -> Self {
        let name = match kind {
            FabricKind::Auto => FabricKind::Shm.to_string(),
            kind => kind.to_string(),
        };
        Self { name, open: Box::new(move |publish| open(kind, publish)) }
    }

    /// TCP without the checksums that it has by itself: to see what they cost.
    pub fn without_checksums() -> Self {
        let open = |publish: Option<Publish>| {
            let usual = TcpOptions { checksum: false, ..TcpOptions::default() };
            let publish = publish.unwrap_or(usual.publish);
            let fabric: Arc<dyn Fabric> = TcpFabric::new(TcpOptions { publish, ..usual })?;
            Ok(fabric)
        };
        Self { name: "tcp without checksums".into(), open: Box::new(open) }
    }
}

/// Opens a transport of this machine, with this publish mode where it has a choice.
///
/// # Errors
/// As [`FabricKind::open`].
pub fn open(kind: FabricKind, publish: Option<Publish>) -> Result<Arc<dyn Fabric>, FabricError> {
    Ok(match kind {
        FabricKind::Auto | FabricKind::Shm => {
            let usual = ShmOptions { prefault: true, ..ShmOptions::default() };
            let publish = publish.unwrap_or(usual.publish);
            ShmFabric::new(ShmOptions { publish, ..usual })?
        }
        FabricKind::Tcp => {
            let usual = TcpOptions::default();
            let publish = publish.unwrap_or(usual.publish);
            TcpFabric::new(TcpOptions { publish, ..usual })?
        }
        FabricKind::Verbs if publish.is_some() => {
            let options = std::env::var(RDMA_VARIABLE).unwrap_or_default();
            let options: VerbsOptions =
                options.parse().map_err(|detail| FabricError::Device { detail })?;
            VerbsFabric::new(VerbsOptions { publish, ..options })?
        }
        FabricKind::Verbs | FabricKind::Mpi => kind.open()?,
    })
}
