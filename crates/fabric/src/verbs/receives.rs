//! The receives of all connections of a fabric: one shared queue, so that their memory does not
//! grow with the number of peers.
//!
//! **Invariant.** The queue is full at the start, and each receive is posted again as soon as its
//! completion was looked at. The sum of the endpoints' promises to their peers never exceeds it: a
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

/// Bytes before the content of a message where messages also stand for notices and credit.
pub(super) const HEAD_BYTES: usize = 8;

/// The kind of a message without immediate data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    /// A message of the caller: its content follows.
    Message,
    /// A notice.
    Notice(u32),
    /// Credit.
    Credit(u32),
}

impl Head {
    /// Kind, three zeros, and the number, little-endian.
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let (kind, number) = match self {
            Head::Message => (0, 0),
            Head::Notice(imm) => (1, imm),
            Head::Credit(imm) => (2, imm),
        };
        let mut out = [kind, 0, 0, 0, 0, 0, 0, 0];
        out[4..].copy_from_slice(&u32::to_le_bytes(number));
        out
    }

    /// The head of a message and what follows it; `None` for what no peer of this version sends.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, content) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let [kind, 0, 0, 0, number @ ..] = *head else { return None };
        let number = u32::from_le_bytes(number);
        match (kind, number, content.len()) {
            (0, 0, _) => Some((Head::Message, content)),
            (1, _, 0) => Some((Head::Notice(number), content)),
            (2, _, 0) => Some((Head::Credit(number), content)),
            _ => None,
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_wire_and_others_are_refused() {
        for head in [Head::Notice(0x8000_0001), Head::Credit(7)] {
            assert_eq!(Head::decode(&head.encode()), Some((head, &[][..])));
            assert_eq!(Head::decode(&[&head.encode()[..], &[1]].concat()), None, "{head:?}");
        }
        let message = [&Head::Message.encode()[..], b"content"].concat();
        assert_eq!(Head::decode(&message), Some((Head::Message, &b"content"[..])));
        for (at, value) in [(0, 3), (1, 1), (3, 1), (4, 1)] {
            let mut bad = message.clone();
            bad[at] = value;
            assert_eq!(Head::decode(&bad), None, "byte {at} = {value}");
        }
        assert_eq!(Head::decode(&message[..7]), None);
    }
}
