//! The bytes of slots as slices: with those of a region, the only `unsafe` of the crate.
//!
//! A slab has no owner whom the compiler knows; the ring's protocol gives each slot one. A staging
//! slot is its writer's from the completion of its last write to the post of the next. A ring slot
//! is its payload's from the acceptance of a frame to the return of its credit.
//! Trailers are read word by word and need no `unsafe`.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric::{Fabric, FabricError, Slab, SlabRange};

use crate::order;
use crate::trailer::{COMMIT_OFFSET, TRAILER_BYTES, Words};
use crate::{LinkError, MemoryNeed, RingConfig, Transfer};

/// Bytes of a huge page. Memory of the links of a peer is a multiple of it.
pub const HUGE_PAGE_BYTES: u64 = Slab::HUGE_PAGE_BYTES as u64;

/// The memory of one end of a link: its ring and its staging, each a part of a slab. Links of the
/// same peer may have parts of the same slabs, so that these are large enough for huge pages.
pub struct LinkMemory {
    config: RingConfig,
    ring: SlabRange,
    staging: SlabRange,
}

impl LinkMemory {
    /// Slabs for one link alone.
    ///
    /// # Errors
    /// [`LinkError::Config`] for dimensions out of bounds, [`LinkError::Fabric`] when memory is
    /// refused.
    pub fn new(fabric: &dyn Fabric, config: &RingConfig) -> Result<Self, LinkError> {
        config.validate()?;
        let MemoryNeed { ring, staging } = config.memory_bytes();
        Ok(Self {
            config: *config,
            ring: fabric.slab(ring)?.range(0..ring)?,
            staging: fabric.slab(staging)?.range(0..staging)?,
        })
    }

    /// Memory of `links` links with the same peer: one slab for their rings, which the peer's
    /// workers write, and one for their staging. Both have [whole](Slab::HUGE_PAGE_BYTES) huge
    /// pages, if the system gives some.
    ///
    /// # Errors
    /// As [`LinkMemory::new`].
    pub fn of_peer(
        fabric: &dyn Fabric,
        config: &RingConfig,
        links: usize,
    ) -> Result<Vec<Self>, LinkError> {
        config.validate()?;
        let MemoryNeed { ring, staging } = config.memory_bytes();
        let whole = |bytes: usize| (links * bytes).next_multiple_of(Slab::HUGE_PAGE_BYTES);
        let [rings, stagings] = [fabric.slab(whole(ring))?, fabric.slab(whole(staging))?];
        let part = |at: usize| {
            let ring = rings.range(at * ring..(at + 1) * ring)?;
            let staging = stagings.range(at * staging..(at + 1) * staging)?;
            Ok(Self { config: *config, ring, staging })
        };
        (0..links).map(part).collect()
    }

    /// The dimensions of the rings.
    pub(crate) fn config(&self) -> RingConfig {
        self.config
    }

    pub(crate) fn open(self) -> (Ring, Staging) {
        (Ring::new(self.ring, &self.config), Staging::new(self.staging, &self.config))
    }
}

/// Where our own frames wait for their writes, or to be read: each from the start of its slot,
/// payload and then trailer. One that is to be read has the trailer in front, where it is found
/// without knowing the length.
pub(crate) struct Staging {
    slab: Slab,
    /// Where the first slot begins.
    base: usize,
    slot_bytes: usize,
    front: bool,
}

impl Staging {
    fn new(memory: SlabRange, config: &RingConfig) -> Self {
        let front = config.transfer == Transfer::Read;
        let (slab, base) = (memory.slab().clone(), memory.offset());
        Self { slab, base, slot_bytes: config.slot_bytes as usize, front }
    }

    /// The slab that it is a part of.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// All of it, to be exported where the peer reads.
    pub fn all(&self, config: &RingConfig) -> Result<SlabRange, FabricError> {
        self.slab.range(self.base..self.base + config.memory_bytes().staging)
    }

    /// The payload of `slot`, to be filled. The producer has reserved the slot, and `&mut self`
    /// hands out one at a time.
    pub fn payload_mut(&mut self, slot: usize) -> &mut [u8] {
        let start = self.start(slot) + if self.front { TRAILER_BYTES } else { 0 };
        // SAFETY: the producer reserves a position only when the write that last used its slot is
        // retired (G5), so the fabric does not read the range; where the peer reads, it has
        // returned credit, and so has read. This thread owns the link, and `&mut self` excludes a
        // second slice.
        unsafe { self.slab.bytes_mut(start..start + self.slot_bytes - TRAILER_BYTES) }
    }

    fn start(&self, slot: usize) -> usize {
        self.base + slot * self.slot_bytes
    }

    /// Puts the trailer behind `padded` bytes of payload, or in front of them; returns where the
    /// frame starts and how long it is.
    pub fn seal(&self, slot: usize, padded: usize, trailer: &Words) -> (usize, usize) {
        let start = self.start(slot);
        let at = if self.front { start } else { start + padded };
        let words = &self.slab.words()[at / 8..][..TRAILER_BYTES / 8];
        for (word, value) in words.iter().zip(&trailer[..COMMIT_OFFSET / 8]) {
            word.store(value.to_le(), Ordering::Relaxed);
        }
        order::publish(&words[COMMIT_OFFSET / 8], trailer[COMMIT_OFFSET / 8].to_le());
        (start, padded + TRAILER_BYTES)
    }

    /// A sealed frame as a range that the fabric reads.
    pub fn range(&self, (start, len): (usize, usize)) -> Result<SlabRange, FabricError> {
        self.slab.range(start..start + len)
    }

    /// The bytes of a sealed frame, to be handed over by value.
    pub fn bytes(&self, (start, len): (usize, usize)) -> &[u8] {
        // SAFETY: the frame was sealed by this thread and is not posted yet, so that nobody writes
        // its bytes before the slot's next turn, which needs `&mut self`.
        unsafe { self.slab.bytes(start..start + len) }
    }
}

/// Where the peer's frames land: each at the end of its slot, or at the start where we read them.
/// Shared with the payloads that were handed out.
pub(crate) struct Ring {
    slab: Slab,
    /// Where the first slot begins.
    base: usize,
    slot_bytes: usize,
    front: bool,
    /// Slots whose payloads were dropped; see [`order`].
    released: AtomicU64,
}

impl Ring {
    fn new(memory: SlabRange, config: &RingConfig) -> Self {
        let slot_bytes = config.slot_bytes as usize;
        let front = config.transfer == Transfer::Read;
        let (slab, base) = (memory.slab().clone(), memory.offset());
        Self { slab, base, slot_bytes, front, released: AtomicU64::new(0) }
    }

    /// The slab that it is a part of.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// A ring in a slab of its own.
    ///
    /// # Errors
    /// [`FabricError::Memory`] when memory is refused.
    pub fn alone(fabric: &dyn Fabric, config: &RingConfig) -> Result<Self, FabricError> {
        let bytes = config.memory_bytes().ring;
        Ok(Self::new(fabric.slab(bytes)?.range(0..bytes)?, config))
    }

    /// All of it, to be exported.
    pub fn range(&self, config: &RingConfig) -> Result<SlabRange, FabricError> {
        self.slab.range(self.base..self.base + config.memory_bytes().ring)
    }

    /// Bytes of a slot, from its start, to be read into.
    pub fn part(&self, slot: usize, bytes: Range<usize>) -> Result<SlabRange, FabricError> {
        let start = self.base + slot * self.slot_bytes;
        self.slab.range(start + bytes.start..start + bytes.end)
    }

    fn trailer_at(&self, slot: usize) -> usize {
        let slot = self.base + slot * self.slot_bytes;
        if self.front { slot } else { slot + self.slot_bytes - TRAILER_BYTES }
    }

    /// The commit word of `slot`; acquire.
    pub fn commit(&self, slot: usize) -> u64 {
        let at = self.trailer_at(slot) + COMMIT_OFFSET;
        u64::from_le(order::observe(self.slab.word(at)))
    }

    /// A copy of the trailer of `slot`. Nothing of it may be believed before it is checked.
    pub fn trailer(&self, slot: usize) -> Words {
        let at = self.trailer_at(slot);
        let words = &self.slab.words()[at / 8..][..TRAILER_BYTES / 8];
        std::array::from_fn(|i| u64::from_le(words[i].load(Ordering::Relaxed)))
    }

    /// Slots that were released since the last call, as a set.
    pub fn collect(&self) -> u64 {
        order::collect(&self.released)
    }

    /// How many slots [`collect`](Self::collect) would return.
    pub fn uncollected(&self) -> u32 {
        order::uncollected(&self.released)
    }

    /// Where a payload of `len` bytes begins, which was checked to fit a slot.
    fn payload_at(&self, slot: u32, len: usize) -> usize {
        let trailer = self.trailer_at(slot as usize);
        if self.front { trailer + TRAILER_BYTES } else { trailer - len.next_multiple_of(64) }
    }

    /// The payload of a frame that is there and was not accepted; `len` was checked to fit a slot.
    pub fn bytes(&self, slot: u32, len: usize) -> &[u8] {
        let start = self.payload_at(slot, len);
        // SAFETY: as in `Payload::as_ref`: the commit word was observed, so that the bytes are
        // placed, and the peer has no credit for the slot.
        unsafe { self.slab.bytes(start..start + len) }
    }

    /// Hands out the payload of an accepted frame of `len` bytes; `len` was checked to fit a slot.
    pub fn payload(self: &Arc<Self>, slot: u32, len: usize) -> Payload {
        Payload { ring: self.clone(), slot, start: self.payload_at(slot, len), len }
    }
}

/// The bytes of a received frame, in place where they landed.
///
/// Starts at a multiple of 64 bytes, so that Arrow buffers in it are aligned. Dropping it, on any
/// thread, releases the slot; the link returns the credit at its next poll. The memory outlives the
/// link.
///
/// Releasing does not wake a link that sleeps ([`Link::arm`](crate::Link::arm)): whoever sleeps
/// while payloads of it live elsewhere must poll again after a while.
pub struct Payload {
    ring: Arc<Ring>,
    slot: u32,
    start: usize,
    len: usize,
}

impl Payload {
    /// Where it lies, with its padding, to be read into.
    pub(crate) fn landing(&self) -> Result<SlabRange, FabricError> {
        self.ring.slab.range(self.start..self.start + self.len.next_multiple_of(64))
    }
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the frame was accepted after its commit word was observed, so its bytes are
        // placed; the peer may write the slot again only after credit for it, which is returned
        // only after this value is dropped. A peer that writes without credit breaks the protocol:
        // it was authenticated when its key was issued.
        unsafe { self.ring.slab.bytes(self.start..self.start + self.len) }
    }
}

impl std::ops::Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_ref()
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        order::release(&self.ring.released, self.slot);
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes in slot {})", self.len, self.slot)
    }
}
