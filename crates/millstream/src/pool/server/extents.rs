//! The memory of a server: extents, each a slab of its own.

use std::collections::HashMap;
use std::sync::Arc;

use fabric::{Fabric, FabricError, RemoteKey, Slab, SlabRange};

use super::ClientId;
use crate::FabricKind;
use crate::pool::fabrics::OpenFabric;

/// Bytes of an extent that are copied to be checked at a time.
const CHECKED_BYTES: usize = 256 << 10;

/// The extents of a server, by number.
pub(super) struct Extents {
    fabrics: Arc<[OpenFabric]>,
    all: HashMap<u32, Extent>,
}

enum Extent {
    /// A client may write to it.
    Open { slab: Slab, writer: ClientId, key: Option<RemoteKey> },
    /// Nobody writes any more; a key for each fabric, in their order.
    Sealed { keys: Vec<RemoteKey>, slab: Slab, used: u32, crc: u32 },
}

impl Extents {
    pub(super) fn new(fabrics: Arc<[OpenFabric]>) -> Self {
        Self { fabrics, all: HashMap::new() }
    }

    /// The fabric that makes memory: the first.
    fn maker(&self) -> &dyn Fabric {
        &*self.fabrics[0].fabric
    }

    /// Memory for an extent that a client fills.
    ///
    /// # Errors
    /// When the operating system refuses it.
    pub(super) fn make(
        &mut self,
        number: u32,
        bytes: u32,
        writer: ClientId,
    ) -> Result<SlabRange, FabricError> {
        let slab = self.maker().slab(bytes as usize)?;
        let range = slab.range(0..bytes as usize)?;
        self.all.insert(number, Extent::Open { slab, writer, key: None });
        Ok(range)
    }

    /// The key by which its client writes. False when the extent is not there any more.
    pub(super) fn exported(&mut self, number: u32, exported: RemoteKey) -> bool {
        match self.all.get_mut(&number) {
            Some(Extent::Open { key, .. }) => {
                *key = Some(exported);
                true
            }
            _ => false,
        }
    }

    /// The client that may write to an extent, and its key.
    pub(super) fn writer(&self, number: u32) -> Option<(ClientId, RemoteKey)> {
        match self.all.get(&number)? {
            Extent::Open { writer, key, .. } => Some((*writer, (*key)?)),
            Extent::Sealed { .. } => None,
        }
    }

    /// Seals an extent whose key was revoked, and publishes it over all fabrics.
    ///
    /// # Errors
    /// When its client keeps it mapped, so that the memory is lost to us until the client has gone;
    /// and when other bytes have come than the client says.
    pub(super) fn seal(&mut self, number: u32, used: u32, crc: u32) -> Result<(), String> {
        let Some(Extent::Open { slab, .. }) = self.all.remove(&number) else {
            return Err("the load was given up".into());
        };
        let slab = self.maker().seal(slab).map_err(|error| error.to_string())?;
        if checksum(&slab, used) != Some(crc) {
            return Err("what arrived in an extent is not what was written".into());
        }
        let range = slab.range(0..slab.len()).map_err(|error| error.to_string())?;
        let published = self.fabrics.iter().map(|open| open.fabric.publish(&range));
        let keys = published.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        self.all.insert(number, Extent::Sealed { keys, slab, used, crc });
        Ok(())
    }

    /// Whether the bytes of a sealed extent are those that were written.
    pub(super) fn is_intact(&self, number: u32) -> bool {
        match self.all.get(&number) {
            Some(Extent::Sealed { slab, used, crc, .. }) => checksum(slab, *used) == Some(*crc),
            _ => false,
        }
    }

    /// The key by which a sealed extent is read over a fabric.
    pub(super) fn key(&self, number: u32, kind: FabricKind) -> Option<RemoteKey> {
        let at = self.fabrics.iter().position(|open| open.kind == kind)?;
        match self.all.get(&number)? {
            Extent::Sealed { keys, .. } => keys.get(at).copied(),
            Extent::Open { .. } => None,
        }
    }

    /// Gives the memory of an extent back. When this returns no read of it is served.
    pub(super) fn free(&mut self, number: u32) {
        if let Some(Extent::Sealed { keys, .. }) = self.all.remove(&number) {
            for (open, key) in self.fabrics.iter().zip(keys) {
                open.fabric.unpublish(key);
            }
        }
    }
}

/// CRC-32C of the first bytes of a slab; `None` when it is shorter.
fn checksum(slab: &Slab, used: u32) -> Option<u32> {
    let range = slab.range(0..used as usize).ok()?;
    let (mut sum, mut piece) = (0, vec![0; CHECKED_BYTES]);
    for from in (0..range.len()).step_by(CHECKED_BYTES) {
        let len = CHECKED_BYTES.min(range.len() - from);
        range.part(from, len).ok()?.snapshot(&mut piece[..len]);
        sum = crc32c::crc32c_append(sum, &piece[..len]);
    }
    Some(sum)
}
