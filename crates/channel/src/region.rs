//! Memory of a sender that all of its receivers read (W3): a payload for many is written once, and
//! each receiver fetches it by a one-sided read.
//!
//! ```text
//!   reserve ─ fill ─ seal ─▶ RegionFrame ── named by a frame on each link ──▶ READ by each peer
//!      ▲                                                                          │
//!      └──── the last handle is dropped ◀── each link drops its own at the credit ◀┘
//! ```
//!
//! A region is registered and published once for all links of a worker. Its size is fixed: while no
//! slot is free, [`SharedRegion::reserve`] gives nothing.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use fabric::{Fabric, FabricError, PUBLISHED_READ_MAX, RemoteKey, Slab, SlabRange};

use crate::protocol::SLOTS_MAX;
use crate::trailer::TRAILER_BYTES;
use crate::{LinkError, RingConfig, order};

/// A region: slots of a sender that its receivers read. Slots are as large as a ring's.
pub struct SharedRegion {
    fabric: Arc<dyn Fabric>,
    memory: RegionMemory,
    key: RemoteKey,
    slots: u32,
    payload_max: usize,
    payload_crc: bool,
    /// Free slots, as a set.
    free: Mutex<u64>,
    /// Slots whose last handle was dropped; see [`order`].
    released: AtomicU64,
}

impl SharedRegion {
    /// Registers and publishes a region of `slots` slots of a ring, 1 to 64, for links of `fabric`.
    ///
    /// # Errors
    /// [`LinkError::Config`] for dimensions out of bounds, or slots that the fabric does not serve
    /// by one READ; [`LinkError::Fabric`] when memory is refused.
    pub fn new(
        fabric: &Arc<dyn Fabric>,
        config: &RingConfig,
        slots: u32,
    ) -> Result<Arc<SharedRegion>, LinkError> {
        config.validate()?;
        let refuse = |detail| Err(LinkError::Config { detail });
        if !(1..=SLOTS_MAX).contains(&slots) {
            return refuse(format!("a region has 1 to {SLOTS_MAX} slots, not {slots}"));
        }
        let slot_bytes = config.slot_bytes as usize;
        if slot_bytes > PUBLISHED_READ_MAX {
            return refuse(format!(
                "slots of a region are read whole, by at most {PUBLISHED_READ_MAX} bytes, and \
                 slot_bytes is {slot_bytes}"
            ));
        }
        let memory = RegionMemory::new(&**fabric, slots as usize, slot_bytes)?;
        let key = fabric.publish(&memory.all()?)?;
        Ok(Arc::new(Self {
            fabric: fabric.clone(),
            memory,
            key,
            slots,
            payload_max: config.payload_max(),
            payload_crc: config.payload_crc,
            free: Mutex::new(u64::MAX >> (SLOTS_MAX - slots)),
            released: AtomicU64::new(0),
        }))
    }

    /// A slot to be filled; `None` while receivers have not read what is in them.
    pub fn reserve(self: &Arc<Self>) -> Option<RegionWriter> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free |= order::collect(&self.released);
        let slot = (*free != 0).then(|| free.trailing_zeros())?;
        *free &= !(1 << slot);
        Some(RegionWriter(Slot { region: self.clone(), slot }))
    }

    /// Slots that are free.
    pub fn free(&self) -> u32 {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free |= order::collect(&self.released);
        free.count_ones()
    }

    /// All slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of a payload at most: as many as of a ring's.
    pub fn payload_max(&self) -> usize {
        self.payload_max
    }

    /// By which peers read it.
    pub(crate) fn key(&self) -> RemoteKey {
        self.key
    }
}

impl Drop for SharedRegion {
    fn drop(&mut self) {
        self.fabric.unpublish(self.key);
    }
}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRegion({} slots free)", self.free())
    }
}

/// A slot that is free again when this is dropped.
struct Slot {
    region: Arc<SharedRegion>,
    slot: u32,
}

impl Drop for Slot {
    fn drop(&mut self) {
        order::release(&self.region.released, self.slot);
    }
}

/// A slot of a region that may be filled. Dropped without [`seal`](Self::seal) it is free again.
pub struct RegionWriter(Slot);

impl RegionWriter {
    pub(crate) fn place(&self) -> (&RegionMemory, u32) {
        (&self.0.region.memory, self.0.slot)
    }

    /// The first `len` bytes of the payload as a frame, which does not change any more.
    ///
    /// # Panics
    /// When `len` is 0 or exceeds the payload.
    pub fn seal(mut self, len: usize) -> RegionFrame {
        let payload_max = self.0.region.payload_max;
        assert!((1..=payload_max).contains(&len), "{len} bytes do not fit a slot of a region");
        let payload = self.payload_mut();
        payload[len..len.next_multiple_of(64)].fill(0);
        let crc = crc32c::crc32c(&payload[..len]);
        let crc = if self.0.region.payload_crc { crc } else { 0 };
        RegionFrame(Arc::new(Sealed { slot: self.0, len: len as u32, crc }))
    }
}

/// A payload in a region. The slot is free when the last clone is dropped, on any thread; links
/// keep one until their peer has returned credit for the frame that names it.
#[derive(Clone)]
pub struct RegionFrame(Arc<Sealed>);

struct Sealed {
    slot: Slot,
    len: u32,
    crc: u32,
}

impl RegionFrame {
    /// Whether it lies in this region.
    pub(crate) fn is_in(&self, region: &Arc<SharedRegion>) -> bool {
        Arc::ptr_eq(&self.0.slot.region, region)
    }

    pub(crate) fn place(&self) -> (&RegionMemory, u32, usize) {
        let Sealed { slot, len, .. } = &*self.0;
        (&slot.region.memory, slot.slot, *len as usize)
    }

    /// Its key and its size, as receivers are told.
    pub(crate) fn reference(&self) -> Reference {
        let Sealed { slot, len, crc } = &*self.0;
        let offset = slot.region.memory.offset(slot.slot);
        Reference { offset: offset as u64, len: *len, crc: *crc }
    }
}

impl fmt::Debug for RegionFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionFrame({} bytes in slot {})", self.0.len, self.0.slot.slot)
    }
}

/// Where a payload lies in its sender's region: the payload of the frame that names it.
///
/// ```text
///   0 offset u64 | 8 len u32 | 12 crc u32
/// ```
///
/// The checksum is CRC-32C of the payload where the link checks payloads, else 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reference {
    pub offset: u64,
    pub len: u32,
    pub crc: u32,
}

impl Reference {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    pub fn encode(self) -> [u8; Self::BYTES] {
        let word = u64::from(self.crc) << 32 | u64::from(self.len);
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&self.offset.to_le_bytes());
        out[8..].copy_from_slice(&word.to_le_bytes());
        out
    }

    /// Takes apart what a peer wrote, and checks it against its region and our slots.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(bytes: &[u8], region: RemoteKey, payload_max: usize) -> Result<Self, String> {
        let Some((offset, rest)) = bytes.split_first_chunk::<8>() else {
            return Err(format!("a reference of {} bytes", bytes.len()));
        };
        let Some((word, [])) = rest.split_first_chunk::<8>() else {
            return Err(format!("a reference of {} bytes", bytes.len()));
        };
        let word = u64::from_le_bytes(*word);
        let found = Self {
            offset: u64::from_le_bytes(*offset),
            len: word as u32,
            crc: (word >> 32) as u32,
        };
        let Self { offset, len, .. } = found;
        let end = offset.checked_add(found.padded() as u64);
        if len == 0
            || len as usize > payload_max
            || !offset.is_multiple_of(64)
            || end.is_none_or(|end| end > region.len)
        {
            let size = region.len;
            return Err(format!("it names {len} bytes from {offset} of a region of {size}"));
        }
        Ok(found)
    }

    /// Bytes that are read.
    pub fn padded(self) -> usize {
        (self.len as usize).next_multiple_of(64)
    }
}

/// The slots of a region.
pub(crate) struct RegionMemory {
    slab: Slab,
    slot_bytes: usize,
    bytes: usize,
}

impl RegionMemory {
    pub fn new(fabric: &dyn Fabric, slots: usize, slot_bytes: usize) -> Result<Self, FabricError> {
        let bytes = slots * slot_bytes;
        Ok(Self { slab: fabric.slab(bytes)?, slot_bytes, bytes })
    }

    /// All of it, to be published.
    pub fn all(&self) -> Result<SlabRange, FabricError> {
        self.slab.range(0..self.bytes)
    }

    /// Where a slot begins.
    pub fn offset(&self, slot: u32) -> usize {
        slot as usize * self.slot_bytes
    }

    fn slot(&self, slot: u32) -> Range<usize> {
        let start = self.offset(slot);
        start..start + self.slot_bytes - TRAILER_BYTES
    }
}

impl RegionWriter {
    /// The payload: [`SharedRegion::payload_max`] bytes from a multiple of
    /// 64, with whatever was there before.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let (memory, slot) = self.place();
        // SAFETY: a region hands a slot to one writer, when the last frame of it was dropped, and
        // so all who were to read it have; `&mut self` excludes a second slice.
        unsafe { memory.slab.bytes_mut(memory.slot(slot)) }
    }
}

impl AsRef<[u8]> for RegionFrame {
    fn as_ref(&self) -> &[u8] {
        let (memory, slot, len) = self.place();
        let start = memory.offset(slot);
        // SAFETY: its writer is gone, and the slot has no other before this frame is dropped. Peers
        // cannot write into what is published.
        unsafe { memory.slab.bytes(start..start + len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RemoteKey = RemoteKey { key: 1, base: 0, len: 1_024 };

    #[test]
    fn a_reference_survives_the_wire() {
        for (offset, len) in [(0, 1), (64, 960), (960, 64), (512, 100)] {
            let reference = Reference { offset, len, crc: 0xfeed_beef };
            assert_eq!(Reference::decode(&reference.encode(), KEY, 960), Ok(reference));
        }
    }

    #[test]
    fn a_reference_to_what_is_not_there_is_refused() {
        for (offset, len) in [(0, 0), (0, 961), (32, 1), (1_024, 1), (960, 65), (!63, 1)] {
            let reference = Reference { offset, len, crc: 0 };
            Reference::decode(&reference.encode(), KEY, 960).expect_err("out of bounds");
        }
        let whole = Reference { offset: 0, len: 1, crc: 0 }.encode();
        for len in 0..whole.len() {
            Reference::decode(&whole[..len], KEY, 960).expect_err("cut short");
        }
        Reference::decode(&[&whole[..], &[0]].concat(), KEY, 960).expect_err("too long");
        let none = RemoteKey { len: 0, ..KEY };
        Reference::decode(&whole, none, 960).expect_err("the peer has no region");
    }
}
