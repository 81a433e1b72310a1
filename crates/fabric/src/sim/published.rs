//! Published ranges of a node: reads of them tear and come late as all reads do.

use super::link::State;
use super::net::{EndId, Net, OpRef};
use super::op::Kind;
use crate::published::{PUBLISHED_MAX, too_many};
use crate::{ErrorKind, FabricError, RemoteKey, RemoteRange, Slab, SlabRange};

/// A range that every peer of its node may read.
#[derive(Debug)]
pub(super) struct Published {
    key: RemoteKey,
    slab: Slab,
}

impl Published {
    /// The memory that a peer means.
    fn resolve(&self, range: RemoteRange, len: usize) -> Option<(Slab, usize)> {
        let end = range.offset.checked_add(len as u64)?;
        let fits = self.key.base == range.key.base && end <= self.key.len;
        let offset = (self.key.base & !RemoteKey::PUBLISHED) + range.offset;
        fits.then(|| (self.slab.clone(), offset as usize))
    }
}

impl Net {
    pub(super) fn publish(
        &mut self,
        node: u32,
        range: &SlabRange,
    ) -> Result<RemoteKey, FabricError> {
        let mut key = self.key_of(node, range)?;
        key.base |= RemoteKey::PUBLISHED;
        let published = &mut self.nodes.entry(node).or_default().published;
        if published.len() == PUBLISHED_MAX {
            return Err(FabricError::Memory { bytes: range.len(), source: too_many() });
        }
        published.insert(key.key, Published { key, slab: range.slab().clone() });
        Ok(key)
    }

    /// Reads of the key that are under way are refused: they have not got all their bytes.
    pub(super) fn unpublish(&mut self, node: u32, key: RemoteKey) {
        if !self.options.keep.stop_after_close {
            return;
        }
        let gone = self.nodes.get_mut(&node).and_then(|n| n.published.remove(&key.key));
        if gone.is_none() {
            return;
        }
        for index in 0..self.ops.len() {
            let record = &self.ops[index];
            let op = OpRef { index: index as u32, generation: record.generation };
            if record.kind == Kind::Read && record.dst.key == key && record.is_landing() {
                let end = record.end;
                self.drop_bytes(op);
                self.fail(end, Some(op), ErrorKind::RemoteAccess);
            }
        }
    }

    /// The memory at the target of an operation of this kind.
    pub(super) fn resolve(
        &self,
        kind: Kind,
        target: EndId,
        range: RemoteRange,
        len: usize,
    ) -> Option<(Slab, usize)> {
        let end = &self.ends[target as usize];
        if !range.key.is_published() {
            return end.resolve(range, len);
        }
        let published = self.nodes.get(&end.node)?.published.get(&range.key.key)?;
        let serves = kind == Kind::Read && end.state != State::Closed;
        published.resolve(range, len).filter(|_| serves)
    }
}
