//! What can go wrong on a link, and whose fault it is.

use fabric::{ErrorKind, FabricError};
use thiserror::Error;

use crate::protocol::Breach;

/// A failure of a link. After `Disconnected` it can go on over another connection
/// ([`Link::renew`](crate::Link::renew)); after `Protocol` it is of no more use.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A dimension of the ring is out of bounds. The caller is at fault.
    #[error("ring configuration: {detail}")]
    Config {
        /// Which, and its bounds.
        detail: String,
    },
    /// The fabric refused memory or an export. Look at the operating system's limits.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The peer's descriptor is not of this version, or its ring has other dimensions. The two
    /// programs differ.
    #[error("the peer's ring does not fit: {detail}")]
    Descriptor {
        /// What differs.
        detail: String,
    },
    /// The peer's descriptor is of another incarnation of the link, from before or after a
    /// reconnect.
    #[error("incarnation {theirs} of the peer is not ours, {ours}")]
    Incarnation {
        /// This end's.
        ours: u32,
        /// The peer's.
        theirs: u32,
    },
    /// The peer broke the protocol, or the fabric its contract: nothing more from it can be
    /// believed.
    #[error("ring protocol: {detail}")]
    Protocol {
        /// What was seen.
        detail: String,
    },
    /// The connection ended. Look at the peer.
    #[error("the connection ended: {kind}")]
    Disconnected {
        /// As the fabric reports it.
        kind: ErrorKind,
    },
    /// The link was closed by this end.
    #[error("the link is closed")]
    Closed,
}

impl From<Breach> for LinkError {
    fn from(breach: Breach) -> Self {
        LinkError::Protocol { detail: breach.to_string() }
    }
}
