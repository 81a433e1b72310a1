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
    /// Threads that use the memory of a sealed extent.
    held: HashMap<u32, u32>,
}

enum Extent {
    /// A client may write to it: the key is there when it was exported.
    Open { slab: Slab, writer: ClientId, key: ExportState },
    /// A checker has it.
    Sealing,
    /// Nobody writes any more; a key for each fabric, in their order.
    Sealed { keys: Vec<RemoteKey>, slab: Slab, used: u32, crc: u32 },
}

/// How far the export of an extent has come.
#[derive(Debug, Clone, Copy)]
enum ExportState {
    Asked,
    Failed,
    Done(RemoteKey),
}

/// When the memory of an extent that is freed has come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freeing {
    /// At once.
    Now,
    /// When the key of its writer was revoked.
    Revoke(ClientId, RemoteKey),
    /// When another thread lets go.
    Later,
}

impl Extents {
    pub(super) fn new(fabrics: Arc<[OpenFabric]>) -> Self {
        Self { fabrics, all: HashMap::new(), held: HashMap::new() }
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
        self.all.insert(number, Extent::Open { slab, writer, key: ExportState::Asked });
        Ok(range)
    }

    /// The key by which its client writes, or none where it could not be exported. False when the
    /// extent is not there any more.
    pub(super) fn exported(&mut self, number: u32, exported: Option<RemoteKey>) -> bool {
        match self.all.get_mut(&number) {
            Some(Extent::Open { key, .. }) => {
                *key = exported.map_or(ExportState::Failed, ExportState::Done);
                true
            }
            _ => false,
        }
    }

    /// The client that may write to an extent, and its key.
    pub(super) fn writer(&self, number: u32) -> Option<(ClientId, RemoteKey)> {
        match self.all.get(&number)? {
            Extent::Open { writer, key: ExportState::Done(key), .. } => Some((*writer, *key)),
            _ => None,
        }
    }

    /// Takes the memory of an extent whose key was revoked, to be sealed; `None` where it is not
    /// there any more.
    pub(super) fn take_open(&mut self, number: u32) -> Option<Slab> {
        match self.all.insert(number, Extent::Sealing) {
            Some(Extent::Open { slab, .. }) => Some(slab),
            other => {
                // It was given up, or is sealed.
                match other {
                    Some(extent) => self.all.insert(number, extent),
                    None => self.all.remove(&number),
                };
                None
            }
        }
    }

    /// Whether an extent is being sealed; if the seal has failed, it is forgotten.
    pub(super) fn was_sealing(&mut self, number: u32, sealed: bool) -> bool {
        let is = matches!(self.all.get(&number), Some(Extent::Sealing));
        if is && !sealed {
            self.all.remove(&number);
        }
        is
    }

    /// Publishes memory that nobody writes any more over all fabrics, as an extent.
    ///
    /// # Errors
    /// When a fabric has no room.
    pub(super) fn publish(
        &mut self,
        number: u32,
        slab: Slab,
        used: u32,
        crc: u32,
    ) -> Result<(), String> {
        self.all.remove(&number);
        let range = slab.range(0..slab.len()).map_err(|error| error.to_string())?;
        let mut keys = Vec::with_capacity(self.fabrics.len());
        for open in self.fabrics.iter() {
            match open.fabric.publish(&range) {
                Ok(key) => keys.push(key),
                Err(error) => {
                    let published = self.fabrics.iter().zip(keys);
                    published.for_each(|(open, key)| open.fabric.unpublish(key));
                    return Err(error.to_string());
                }
            }
        }
        self.all.insert(number, Extent::Sealed { keys, slab, used, crc });
        Ok(())
    }

    /// The memory of a sealed extent with its used bytes and their checksum, for another thread,
    /// which lets go by [`Extents::let_go`].
    pub(super) fn hold(&mut self, number: u32) -> Option<(Slab, u32, u32)> {
        match self.all.get(&number)? {
            Extent::Sealed { slab, used, crc, .. } => {
                *self.held.entry(number).or_default() += 1;
                Some((slab.clone(), *used, *crc))
            }
            _ => None,
        }
    }

    /// A thread does not use an extent any more; whether the memory of one that was freed has come
    /// back by that.
    pub(super) fn let_go(&mut self, number: u32) -> bool {
        let holders = self.held.get_mut(&number).map_or(0, |holders| {
            *holders -= 1;
            *holders
        });
        if holders == 0 {
            self.held.remove(&number);
        }
        holders == 0 && !self.all.contains_key(&number)
    }

    /// The key by which a sealed extent is read over a fabric.
    pub(super) fn key(&self, number: u32, kind: FabricKind) -> Option<RemoteKey> {
        let at = self.fabrics.iter().position(|open| open.kind == kind)?;
        match self.all.get(&number)? {
            Extent::Sealed { keys, .. } => keys.get(at).copied(),
            _ => None,
        }
    }

    /// Gives the memory of an extent back. When this returns no read of it is served.
    pub(super) fn free(&mut self, number: u32) -> Freeing {
        match self.all.remove(&number) {
            None => Freeing::Now,
            Some(Extent::Open { writer, key: ExportState::Done(key), .. }) => {
                Freeing::Revoke(writer, key)
            }
            Some(Extent::Open { key: ExportState::Failed, .. }) => Freeing::Now,
            Some(Extent::Open { key: ExportState::Asked, .. } | Extent::Sealing) => Freeing::Later,
            Some(Extent::Sealed { keys, .. }) => {
                for (open, key) in self.fabrics.iter().zip(keys) {
                    open.fabric.unpublish(key);
                }
                if self.held.contains_key(&number) { Freeing::Later } else { Freeing::Now }
            }
        }
    }
}

/// CRC-32C of the first bytes of a slab; `None` when it is shorter.
pub(super) fn checksum(slab: &Slab, used: u32) -> Option<u32> {
    let range = slab.range(0..used as usize).ok()?;
    let (mut sum, mut piece) = (0, vec![0; CHECKED_BYTES]);
    for from in (0..range.len()).step_by(CHECKED_BYTES) {
        let len = CHECKED_BYTES.min(range.len() - from);
        range.part(from, len).ok()?.snapshot(&mut piece[..len]);
        sum = crc32c::crc32c_append(sum, &piece[..len]);
    }
    Some(sum)
}
