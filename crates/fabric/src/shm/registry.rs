//! The registry: the published ranges of a fabric, as its peers see them.
//!
//! The registry is memory that the owner writes and that the readers of all its connections map to
//! read. A key names its entry, so that a reader needs nobody's help:
//!
//! ```text
//!   owner                                      reader
//!   base, len, slab; key   ──release──▶        key?  base, len, slab
//!                                              copies the bytes
//!   key = 0; fence; the bytes may change  ──▶  fence; key still there?  else nothing was read
//! ```
//!
//! **Invariant.** A reader that finds the key behind its copy has copied what was published: bytes
//! that were stored after the key had gone are seen by nobody who does not see that as well. So
//! `unpublish` waits for nobody, also not for a reader that was stopped (`registry/loom.rs`).

#[cfg(all(test, loom))]
mod loom;

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::map::Mapping;
use super::spsc::Word;
use crate::RemoteKey;
use crate::published::PUBLISHED_MAX;

/// Bytes of a registry. Pages that were never touched take no memory.
pub(super) const BYTES: usize = size_of::<Entries>();
/// Bits of a key's base that are an offset in its slab; those above are the number of its entry.
const OFFSET_BITS: u32 = 40;

/// A word that a fence goes with.
pub(super) trait FencedWord: Word {
    /// See [`fence`].
    fn fence(order: Ordering);
}

impl FencedWord for AtomicU64 {
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// One range. All are zero at first.
#[repr(C, align(32))]
#[derive(Debug, Default)]
pub(super) struct Entry<W> {
    /// Zero when there is none.
    key: W,
    base: W,
    len: W,
    slab: W,
}

/// A published range as it stands on the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Posting {
    /// First byte in the slab.
    pub(super) base: u64,
    /// Bytes.
    pub(super) len: u64,
    /// Number of the slab among those of the fabric.
    pub(super) slab: u64,
}

impl<W: FencedWord> Entry<W> {
    /// Makes a free entry that of a range. The owner calls it, one thread at a time.
    pub(super) fn open(&self, key: u64, posting: Posting) {
        self.base.store(posting.base, Ordering::Relaxed);
        self.len.store(posting.len, Ordering::Relaxed);
        self.slab.store(posting.slab, Ordering::Relaxed);
        self.key.store(key, Ordering::Release);
    }

    /// Takes the range away. What is stored behind this call is read by nobody through it.
    pub(super) fn close(&self) {
        self.key.store(0, Ordering::Relaxed);
        W::fence(Ordering::Release);
    }

    /// The range of a key. It holds if the entry [has](Entry::has) the key when it was used.
    pub(super) fn find(&self, key: u64) -> Option<Posting> {
        let load = |word: &W| word.load(Ordering::Relaxed);
        let found = key != 0 && self.key.load(Ordering::Acquire) == key;
        found.then(|| Posting {
            base: load(&self.base),
            len: load(&self.len),
            slab: load(&self.slab),
        })
    }

    /// Whether all that was loaded before is of the time of this key.
    pub(super) fn has(&self, key: u64) -> bool {
        W::fence(Ordering::Acquire);
        self.key.load(Ordering::Relaxed) == key
    }
}

type Entries = [Entry<AtomicU64>; PUBLISHED_MAX];

/// The entries of a registry in this process's mapping of it.
pub(super) fn entries(mapping: &Mapping) -> &Entries {
    assert_eq!(mapping.len(), BYTES);
    // SAFETY: the mapping has the size of `Entries`, is page aligned and lives as long as the
    // borrow; entries consist of atomics only, for which every bit pattern is valid and which the
    // owner may change at any time. A reader only loads them, for which a mapping to read will do.
    unsafe { mapping.base().cast::<Entries>().as_ref() }
}

/// The base of a key: entry and offset.
pub(super) fn base_of(entry: usize, offset: usize) -> Option<u64> {
    let offset = u64::try_from(offset).ok().filter(|offset| offset >> OFFSET_BITS == 0)?;
    Some(RemoteKey::PUBLISHED | (entry as u64) << OFFSET_BITS | offset)
}

/// Entry and offset of a key that a peer may have made up.
pub(super) fn place_of(key: &RemoteKey) -> (usize, u64) {
    let entry = (key.base & !RemoteKey::PUBLISHED) >> OFFSET_BITS;
    (entry as usize % PUBLISHED_MAX, key.base & ((1 << OFFSET_BITS) - 1))
}
