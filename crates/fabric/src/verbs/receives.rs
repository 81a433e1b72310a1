//! The receives of all connections of a fabric: one shared queue, so that their memory does not
//! grow with the number of peers.
//!
//! **Invariant.** The queue is full at the start, and each receive is posted again as soon as its
//! completion was looked at. What endpoints have promised to their peers never exceeds it: a
//! promise is reserved here first and given back when the peer has used it (G9). A peer that uses
//! more than it was promised is found out by its endpoint, which ends the connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::memory::DeviceMemory;
use super::objects::{Domain, SharedReceives};
use super::sys;
use crate::FabricError;
use crate::memory::Backing;

/// Bytes of a receive, and thereby of the longest message.
pub(super) const MESSAGE_BYTES: usize = 256;

/// Marks the completion of a receive among those of sends.
pub(super) const RECEIVE: u64 = 1 << 63;

/// The pool.
pub(super) struct Receives {
    // Dropped in this order: the queue goes before the memory that it points to.
    pub(super) queue: SharedReceives,
    memory: DeviceMemory,
    /// Entries that are promised to nobody.
    free: AtomicU32,
}

impl Receives {
    /// # Errors
    /// When the device has no shared receive queue of this size, or memory cannot be pinned.
    pub(super) fn new(domain: &Arc<Domain>, entries: u32) -> Result<Arc<Self>, FabricError> {
        let queue = SharedReceives::new(domain, entries).map_err(|error| FabricError::Device {
            detail: format!("it gives no shared receive queue of {entries} entries: {error}"),
        })?;
        let memory = DeviceMemory::new(domain, entries as usize * MESSAGE_BYTES)?;
        let receives = Self { queue, memory, free: AtomicU32::new(entries) };
        for index in 0..entries {
            receives.post(index).map_err(|error| FabricError::Device {
                detail: format!("it takes only {index} of {entries} receives: {error}"),
            })?;
        }
        Ok(Arc::new(receives))
    }

    /// Takes up to `wanted` entries out of the free ones; returns how many.
    pub(super) fn reserve(&self, wanted: u32) -> u32 {
        let mut free = self.free();
        loop {
            let got = wanted.min(free);
            let (all, relaxed) = (&self.free, Ordering::Relaxed);
            match all.compare_exchange_weak(free, free - got, relaxed, relaxed) {
                Ok(_) => return got,
                Err(now) => free = now,
            }
        }
    }

    /// The opposite of [`Receives::reserve`].
    pub(super) fn release(&self, n: u32) {
        self.free.fetch_add(n, Ordering::Relaxed);
    }

    /// Entries that are promised to nobody.
    pub(super) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// The bytes of a completed receive.
    pub(super) fn bytes(&self, wr_id: u64, len: u32) -> Vec<u8> {
        let at = index(wr_id) as usize * MESSAGE_BYTES;
        let len = (len as usize).min(MESSAGE_BYTES);
        assert!(at + MESSAGE_BYTES <= self.memory.len(), "a completion of a receive of ours");
        // SAFETY: inside of the memory as asserted; the receive has completed, so that the device
        // does not write there until it is posted again, which its only taker does later.
        unsafe {
            let base = self.memory.base().as_ptr().add(at);
            std::slice::from_raw_parts(base, len).to_vec()
        }
    }

    /// Posts a completed receive again.
    ///
    /// # Errors
    /// When the device is broken.
    pub(super) fn again(&self, wr_id: u64) -> io::Result<()> {
        self.post(index(wr_id))
    }

    fn post(&self, index: u32) -> io::Result<()> {
        let addr = self.memory.base().as_ptr() as u64 + u64::from(index) * MESSAGE_BYTES as u64;
        let lkey = self.memory.region().lkey();
        let sge = sys::Sge { addr, length: MESSAGE_BYTES as u32, lkey };
        self.queue.post(RECEIVE | u64::from(index), sge)
    }
}

fn index(wr_id: u64) -> u32 {
    (wr_id & !RECEIVE) as u32
}
