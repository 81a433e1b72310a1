//! Registered memory: the only memory that a fabric reads from and writes into.
//!
//! A [`Slab`] is allocated once, never moves and may be written by a peer at any time. It therefore
//! has no safe view as `&[u8]`: words are loaded and stored atomically, and bytes are copied by
//! `unsafe` functions whose caller knows, from its protocol, that nobody else touches the range.

mod io;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::FabricError;
use crate::anonymous::{AnonymousMapping, HUGE_BYTES, huge_bytes};

pub(crate) use io::{IoPiece, PIECES_MAX, gather, scatter};

/// Bytes of a cache line; slabs start at a multiple of it.
pub const CACHE_LINE: usize = 64;

/// The memory behind a slab: heap, a shared mapping, a device registration.
///
/// # Safety
/// `base..base + len` stays mapped, readable and writable at the same address until the value is
/// dropped, and `base` is a multiple of [`CACHE_LINE`]. Memory of a slab that is sealed need not be
/// writable: the system ends a process that writes to it.
pub unsafe trait Backing: Send + Sync + 'static {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Bytes.
    fn len(&self) -> usize;
    /// True when there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// For the transport that made the backing to find its own type again.
    fn as_any(&self) -> &dyn Any;
}

/// A registered region. Clones share the memory; it is released with the last clone.
#[derive(Clone)]
pub struct Slab {
    backing: Arc<dyn Backing>,
    /// The addresses of `backing`, without a virtual call at each access.
    base: NonNull<u8>,
    len: usize,
    /// Nobody writes it any more.
    sealed: bool,
}

// SAFETY: `base` points into the backing, which may be sent and shared; every access is atomic or
// `unsafe`.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    /// Bytes of a huge page. Slabs of this size and larger ones ask for huge pages.
    pub const HUGE_PAGE_BYTES: usize = HUGE_BYTES;

    /// Wraps memory that a transport has made.
    pub fn new(backing: Arc<dyn Backing>) -> Self {
        assert!(
            (backing.base().as_ptr() as usize).is_multiple_of(CACHE_LINE),
            "a slab starts at a cache line"
        );
        let (base, len) = (backing.base(), backing.len());
        Self { backing, base, len, sealed: false }
    }

    /// Zeroed heap memory, at least so much: for transports that move bytes by the CPU of both
    /// sides. From 2 MiB on huge pages are asked for.
    ///
    /// # Errors
    /// [`FabricError::Memory`] when the operating system refuses.
    pub fn heap(bytes: usize) -> Result<Self, FabricError> {
        if bytes >= HUGE_BYTES {
            let mapping = AnonymousMapping::new(bytes);
            let mapping = mapping.map_err(|source| FabricError::Memory { bytes, source })?;
            return Ok(Self::new(Arc::new(mapping)));
        }
        Ok(Self::new(Arc::new(Heap::new(bytes)?)))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of these slabs, no two of which are the same, that lie in huge pages now: what was
    /// never touched lies in none. 0 where the system does not tell.
    pub fn huge_bytes(slabs: &[Slab]) -> u64 {
        let range = |slab: &Slab| {
            let base = slab.base.as_ptr() as usize;
            base..base + slab.len
        };
        huge_bytes(&slabs.iter().map(range).collect::<Vec<_>>())
    }

    /// The memory behind the slab.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    /// True when nobody writes the memory any more: [`Fabric::seal`](crate::Fabric::seal) has made
    /// this slab.
    pub fn is_sealed(&self) -> bool {
        self.sealed
    }

    /// The same memory, which nobody writes any more.
    ///
    /// # Errors
    /// [`FabricError::StillWritable`] when this process has other handles on it: clones, ranges,
    /// exports, publications.
    pub(crate) fn into_sealed(self) -> Result<Slab, FabricError> {
        match Arc::strong_count(&self.backing) {
            1 => Ok(Self { sealed: true, ..self }),
            _ => Err(FabricError::StillWritable { bytes: self.len, writer: "this process" }),
        }
    }

    /// True when both name the same memory.
    pub fn same(&self, other: &Slab) -> bool {
        self.base == other.base
    }

    /// A part of this slab.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`] when the range leaves the slab.
    pub fn range(&self, range: Range<usize>) -> Result<SlabRange, FabricError> {
        if range.start > range.end || range.end > self.len() {
            return Err(FabricError::OutOfBounds {
                offset: range.start,
                end: range.end,
                len: self.len(),
            });
        }
        Ok(SlabRange { slab: self.clone(), offset: range.start, len: range.len() })
    }

    /// Loads the aligned word at byte `offset`. `Acquire` pairs with the transport's release of the
    /// last word of a write (G2) or with [`Slab::store`].
    ///
    /// # Panics
    /// When the word is misaligned or outside of the slab.
    pub fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.word(offset).load(order)
    }

    /// Stores the aligned word at byte `offset` of a slab that is not sealed.
    ///
    /// # Panics
    /// When the word is misaligned or outside of the slab.
    pub fn store(&self, offset: usize, value: u64, order: Ordering) {
        debug_assert!(!self.sealed, "the slab is sealed");
        self.word(offset).store(value, order);
    }

    /// The aligned word at byte `offset` as an atomic.
    ///
    /// # Panics
    /// When the word is misaligned or outside of the slab.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len(),
            "word {offset} of a slab of {}",
            self.len()
        );
        // SAFETY: in bounds and aligned as asserted (the base is a multiple of 64); the backing
        // keeps the memory mapped while `self` borrows it, and an atomic may alias whatever a peer
        // does to the word.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// All whole words as atomics.
    pub fn words(&self) -> &[AtomicU64] {
        let (base, len) = (self.base.as_ptr(), self.len() / 8);
        // SAFETY: `len` words from an aligned base lie inside of the backing, which stays mapped
        // while `self` is borrowed; an atomic may alias whatever a peer does to the word.
        unsafe { std::slice::from_raw_parts(base.cast::<AtomicU64>(), len) }
    }

    /// Copies `bytes` into the slab at `offset`.
    ///
    /// # Safety
    /// Nobody reads or writes `offset..offset + bytes.len()` during the call: the caller's protocol
    /// says so.
    ///
    /// # Panics
    /// When the range leaves the slab.
    pub unsafe fn copy_in(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        debug_assert!(!self.sealed, "the slab is sealed");
        // SAFETY: in bounds as checked; exclusive as the caller promises; `bytes` is a live slice
        // and cannot overlap memory that no safe reference may point into.
        unsafe {
            let dst = self.base.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst, bytes.len());
        }
    }

    /// Copies bytes out of the slab, beginning at `offset`, until `out` is full.
    ///
    /// # Safety
    /// Nobody writes `offset..offset + out.len()` during the call.
    ///
    /// # Panics
    /// When the range leaves the slab.
    pub unsafe fn copy_out(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: in bounds as checked; no concurrent writer as the caller promises.
        unsafe {
            let src = self.base.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(src, out.as_mut_ptr(), out.len());
        }
    }

    /// The bytes of `range` in place.
    ///
    /// # Safety
    /// Nobody writes the range while the slice lives.
    ///
    /// # Panics
    /// When the range leaves the slab.
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.check(range.start, range.len());
        // SAFETY: in bounds as checked; no writer as the caller promises; mapped while `self` is
        // borrowed.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) }
    }

    /// The bytes of `range` in place, to be written.
    ///
    /// # Safety
    /// Nobody else reads or writes the range while the slice lives.
    ///
    /// # Panics
    /// When the range leaves the slab.
    #[expect(
        clippy::mut_from_ref,
        reason = "a slab is shared memory; the caller's protocol gives exclusivity"
    )]
    pub unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        self.check(range.start, range.len());
        debug_assert!(!self.sealed, "the slab is sealed");
        // SAFETY: in bounds as checked; exclusive as the caller promises; mapped while `self` is
        // borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(range.start), range.len()) }
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len()),
            "{len} bytes at {offset} of a slab of {}",
            self.len()
        );
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slab({} bytes)", self.len())
    }
}

/// Bytes that are copied at once for their checksum.
const CHECKED_BYTES: usize = 4 << 10;

/// A part of a slab, checked to lie inside of it.
#[derive(Debug, Clone)]
pub struct SlabRange {
    slab: Slab,
    offset: usize,
    len: usize,
}

impl SlabRange {
    /// The slab.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// First byte.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes that begin `from` bytes into this range.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`] when they leave the range.
    pub fn part(&self, from: usize, len: usize) -> Result<SlabRange, FabricError> {
        match from.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(Self { slab: self.slab.clone(), offset: self.offset + from, len })
            }
            end => Err(FabricError::OutOfBounds {
                offset: from,
                end: end.unwrap_or(usize::MAX),
                len: self.len,
            }),
        }
    }

    /// The range, for a transport to let a peer write to it.
    ///
    /// # Errors
    /// [`FabricError::Sealed`] when nobody writes it any more.
    pub(crate) fn exportable(&self) -> Result<&Self, FabricError> {
        if self.slab.sealed { Err(FabricError::Sealed) } else { Ok(self) }
    }

    /// First byte in memory.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the range lies inside of the backing.
        unsafe { self.slab.base.as_ptr().add(self.offset) }
    }

    /// Copies the first bytes of the range as they are now: each of its own moment (G7).
    ///
    /// # Panics
    /// When the range is shorter.
    pub fn snapshot(&self, out: &mut [u8]) {
        self.copy_from(0, out);
    }

    /// The checksum of `len` bytes that begin `from` bytes into this range, behind those whose
    /// checksum is `sum`.
    ///
    /// # Panics
    /// When the bytes leave the range.
    pub(crate) fn checksum(&self, mut sum: u32, from: usize, len: usize) -> u32 {
        let mut chunk = [0; CHECKED_BYTES];
        for at in (from..from + len).step_by(CHECKED_BYTES) {
            let n = CHECKED_BYTES.min(from + len - at);
            self.copy_from(at, &mut chunk[..n]);
            sum = crc32c::crc32c_append(sum, &chunk[..n]);
        }
        sum
    }

    fn copy_from(&self, from: usize, out: &mut [u8]) {
        assert!(from + out.len() <= self.len, "{} bytes at {from} of {}", out.len(), self.len);
        // SAFETY: inside of the range as asserted; `out` is a live slice, which no memory of a slab
        // is while a peer may write it. No reference into the slab is made: what somebody changes
        // meanwhile is copied as it is.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr().add(from), out.as_mut_ptr(), out.len());
        }
    }

    /// Stores bytes from byte `at` of the range on, the last aligned word last. As of
    /// [`Slab::store`], the protocol of the range says who does that when; of a range that is
    /// exported nobody holds a reference.
    ///
    /// # Panics
    /// When the bytes leave the range, or the slab is sealed.
    pub fn place(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "{} bytes at {at} of {}", bytes.len(), self.len);
        assert!(!self.slab.sealed, "the slab is sealed");
        // SAFETY: inside of the range as asserted; `bytes` is a live slice, which no memory of a
        // slab is while a peer may write it; the protocol of the exported range keeps others away.
        unsafe { publish_copy(bytes.as_ptr(), self.as_ptr().add(at), bytes.len()) }
    }
}

/// Copies so that the last aligned word of the destination appears last, by a release store (G2
/// under [`Publish::InOrderPoll`](crate::Publish)). A destination without an aligned word has no
/// such word.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes, they do not overlap, and nobody else
/// touches them during the call except by loading the last word atomically.
pub(crate) unsafe fn publish_copy(src: *const u8, dst: *mut u8, len: usize) {
    let at = match ((dst as usize + len) & !7).checked_sub(dst as usize + 8) {
        Some(at) => at,
        None => {
            // SAFETY: as the caller promises.
            unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
            return fence(Ordering::Release);
        }
    };
    // SAFETY: `at + 8 <= len`, so that all three parts lie inside of both ranges; `dst + at` is
    // aligned.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, at);
        std::ptr::copy_nonoverlapping(src.add(at + 8), dst.add(at + 8), len - at - 8);
        let last = src.add(at).cast::<u64>().read_unaligned();
        AtomicU64::from_ptr(dst.add(at).cast()).store(last, Ordering::Release);
    }
}

/// Zeroed memory of the process's own heap.
struct Heap {
    base: NonNull<u8>,
    bytes: usize,
    layout: std::alloc::Layout,
}

impl Heap {
    fn new(bytes: usize) -> Result<Self, FabricError> {
        let refused =
            || FabricError::Memory { bytes, source: std::io::ErrorKind::OutOfMemory.into() };
        let layout = std::alloc::Layout::from_size_align(bytes.max(CACHE_LINE), 4096)
            .map_err(|_| refused())?;
        // SAFETY: the layout has a size above zero.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Self { base: NonNull::new(base).ok_or_else(refused)?, bytes, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and freed once.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the mapping is owned, fixed, and mapped until drop; a page is a multiple of a cache line.
unsafe impl Backing for AnonymousMapping {
    fn base(&self) -> NonNull<u8> {
        self.base()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

// SAFETY: the memory is owned, fixed and mapped until drop, and page aligned.
unsafe impl Backing for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

// SAFETY: the pointer is owned memory; every access to it goes through `Slab`, which is atomic or
// `unsafe`.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_slab_is_a_mapping_of_its_own_and_zeroed() {
        for bytes in [HUGE_BYTES, HUGE_BYTES + 64, 3 * HUGE_BYTES] {
            let slab = Slab::heap(bytes).expect("memory");
            assert!(slab.len() >= bytes);
            assert!(slab.backing().as_any().is::<AnonymousMapping>());
            for at in [0, bytes / 2 / 8 * 8, bytes - 8] {
                assert_eq!(slab.load(at, Ordering::Relaxed), 0);
                slab.store(at, 7, Ordering::Relaxed);
            }
            assert!(Slab::huge_bytes(std::slice::from_ref(&slab)) <= slab.len() as u64);
        }
        let small = Slab::heap(HUGE_BYTES - 64).expect("memory");
        assert!(!small.backing().as_any().is::<AnonymousMapping>());
    }
}
