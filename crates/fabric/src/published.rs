//! Ranges that all peers of a fabric may read, where this process itself answers the reads.
//!
//! The table is shared by the endpoints of a fabric. What a reader gets is copied while the table
//! is locked, so that [`PublishedTable::unpublish`] returns after the last copy (G11).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::token::Token;
use crate::{FabricError, RemoteKey, SlabRange};

/// Ranges that a fabric can have published at a time.
pub(crate) const PUBLISHED_MAX: usize = 1 << 18;

/// Bytes of one READ of a published range at most, where this process answers READs itself: it
/// makes a copy of them before they are sent.
pub const PUBLISHED_READ_MAX: usize = 4 << 20;

/// The published ranges of a fabric, by key.
#[derive(Default)]
pub(crate) struct PublishedTable {
    ranges: RwLock<HashMap<u64, SlabRange>>,
    /// Reads that were served, and their bytes. Both are counts for people: `Relaxed`.
    reads: AtomicU64,
    bytes: AtomicU64,
}

/// Bytes that a peer wants to read. It may have made it up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PublishedPlace {
    pub(crate) key: u64,
    /// As the peer counts: from the slab's first byte, with the mark of published keys.
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

impl PublishedTable {
    /// # Errors
    /// When there is no room for another range, or no randomness for its key.
    pub(crate) fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        let refused = |source| FabricError::Memory { bytes: range.len(), source };
        let key = Token::random().map_err(refused)?.word();
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        if ranges.len() == PUBLISHED_MAX {
            return Err(refused(too_many()));
        }
        ranges.insert(key, range.clone());
        let base = range.offset() as u64 | RemoteKey::PUBLISHED;
        Ok(RemoteKey { key, base, len: range.len() as u64 })
    }

    pub(crate) fn unpublish(&self, key: &RemoteKey) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        let range = ranges.remove(&key.key);
        drop(ranges);
        drop(range);
    }

    /// Whether this is a published place now.
    pub(crate) fn has(&self, place: PublishedPlace) -> bool {
        self.with(place, drop).is_some()
    }

    /// Copies what is there, if it is still published; false otherwise.
    ///
    /// # Panics
    /// When `out` has another length than the place.
    pub(crate) fn copy(&self, place: PublishedPlace, out: &mut [u8]) -> bool {
        let served = self.with(place, |range| range.snapshot(out)).is_some();
        if served {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(place.len as u64, Ordering::Relaxed);
        }
        served
    }

    /// Reads that were served, and their bytes.
    pub(crate) fn served(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    fn with<R>(&self, place: PublishedPlace, act: impl FnOnce(SlabRange) -> R) -> Option<R> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        let range = ranges.get(&place.key)?;
        let offset = usize::try_from(place.offset & !RemoteKey::PUBLISHED).ok()?;
        let part = range.part(offset.checked_sub(range.offset())?, place.len).ok()?;
        Some(act(part))
    }
}

/// Why no range can be published any more.
pub(crate) fn too_many() -> std::io::Error {
    std::io::Error::other(format!("{PUBLISHED_MAX} ranges are published, and no more can be"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Slab;

    #[test]
    fn a_place_is_served_while_it_is_published_and_inside() {
        let slab = Slab::heap(4096).unwrap();
        slab.range(0..4096).unwrap().place(1024, &[7; 64]);
        let table = PublishedTable::default();
        let key = table.publish(&slab.range(1024..1088).unwrap()).unwrap();
        assert!(key.is_published() && key.len == 64);
        let at = |offset: u64, len| PublishedPlace { key: key.key, offset, len };
        let mut out = [0; 64];
        assert!(table.copy(at(key.base, 64), &mut out) && out == [7; 64]);
        for (offset, len) in [(key.base, 65), (key.base + 1, 64), (key.base - 1, 8), (u64::MAX, 8)]
        {
            assert!(!table.has(at(offset, len)), "{offset:x} {len}");
        }
        assert!(!table.has(PublishedPlace { key: key.key ^ 1, ..at(key.base, 64) }));
        table.unpublish(&key);
        table.unpublish(&key);
        assert!(!table.copy(at(key.base, 64), &mut out));
        assert_eq!(table.served(), (1, 64));
        assert!(slab.into_sealed().is_ok(), "the table holds nothing any more");
    }
}
