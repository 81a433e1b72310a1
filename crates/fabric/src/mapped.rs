//! Memory of a peer that this process reads in place.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that stays mapped, and whose bytes never change again.
///
/// # Safety
/// `base..base + len` is readable at the same address until the value is dropped, and nobody can
/// write it: neither this process nor another one.
pub(crate) unsafe trait Unchanging: Send + Sync + 'static {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Bytes.
    fn len(&self) -> usize;
}

/// A range that a peer has published and sealed, or a part of it, mapped into this process. Clones
/// share the mapping, which ends with the last of them.
#[derive(Clone)]
pub struct MappedRange {
    memory: Arc<dyn Unchanging>,
    offset: usize,
    len: usize,
}

impl MappedRange {
    /// A part of memory; `None` when it is outside.
    pub(crate) fn new(memory: Arc<dyn Unchanging>, offset: usize, len: usize) -> Option<Self> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= memory.len());
        inside.then_some(Self { memory, offset, len })
    }

    /// The `len` bytes that begin `from` bytes into this range; `None` when they leave it.
    pub fn part(&self, from: usize, len: usize) -> Option<MappedRange> {
        let inside = from.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| Self { memory: self.memory.clone(), offset: self.offset + from, len })
    }
}

impl Deref for MappedRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside of the memory as `new` has checked, which is mapped while `self` holds it
        // and does not change.
        unsafe {
            std::slice::from_raw_parts(self.memory.base().as_ptr().add(self.offset), self.len)
        }
    }
}

impl fmt::Debug for MappedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedRange({} bytes)", self.len)
    }
}
