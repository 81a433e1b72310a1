//! The memory that an endpoint shares with its peer besides slabs: the inbox, made and read by one
//! side, written by the other.
//!
//! ```text
//!   asleep · closed          rarely written; the peer reads them at each operation
//!   limit · asked            the owner's credit to the peer; the peer's counter of questions
//!   touched · busy           the peer's counter of publications; not zero while it copies
//!   exports[EXPORTS_MAX]     key (0 = revoked), base, length, slab; the owner writes
//!   entries[RECVS_MAX]       notices, see `spsc`
//!   arena                    bytes of messages, MESSAGE_MAX per entry
//! ```
//!
//! **Revocation.** A peer that is about to change memory sets `busy` and then loads the key; the
//! owner clears the key and then waits while `busy` is set. Both are sequentially consistent, so
//! that either the peer sees the key gone or the owner sees the copy that is under way: after the
//! wait no effect of the peer's can appear (G8).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::map::{Access, Mapping, SharedMemory};
use super::spsc::SpscMemory;

/// Exports that an endpoint can have at a time.
pub(super) const EXPORTS_MAX: usize = 512;
/// Receives that a peer can see posted at a time; more are held back until it used some.
pub(super) const RECVS_MAX: usize = 1024;
/// Bytes of one message.
pub(super) const MESSAGE_MAX: usize = 1024;
/// Bytes of an inbox.
pub(super) const BYTES: usize = size_of::<Words>();

/// Words on lines of their own, padded to two lines so that adjacent-line prefetch does not couple
/// them.
#[repr(C, align(128))]
struct Line([AtomicU64; 2]);

/// One export as the peer sees it.
#[repr(C, align(32))]
pub(super) struct ExportWords {
    /// The key; zero when there is none.
    pub(super) key: AtomicU64,
    /// First byte in the slab.
    pub(super) base: AtomicU64,
    /// Bytes.
    pub(super) len: AtomicU64,
    /// Number of the slab among those sent on this connection.
    pub(super) slab: AtomicU64,
}

/// The shared layout. Everything is atomic, so that a reference to it may exist while the peer
/// writes.
#[repr(C)]
pub(super) struct Words {
    /// `asleep`, `closed`.
    state: Line,
    /// `limit`, `asked`.
    credit: Line,
    /// `touched`, `busy`.
    peer: Line,
    exports: [ExportWords; EXPORTS_MAX],
    entries: [AtomicU64; RECVS_MAX],
    arena: [[AtomicU64; MESSAGE_MAX / 8]; RECVS_MAX],
}

impl Words {
    /// Not zero after the owner closed.
    pub(super) fn closed(&self) -> &AtomicU64 {
        &self.state.0[1]
    }

    /// Counts the questions that the peer has sent by the socket.
    pub(super) fn asked(&self) -> &AtomicU64 {
        &self.credit.0[1]
    }

    /// Not zero while the peer changes memory of the owner.
    pub(super) fn busy(&self) -> &AtomicU64 {
        &self.peer.0[1]
    }

    /// The export that a key's low bits name.
    pub(super) fn export(&self, key: u64) -> &ExportWords {
        &self.exports[key as usize % EXPORTS_MAX]
    }

    /// Stores a message of at most [`MESSAGE_MAX`] bytes into the arena. The entry that announces
    /// it is pushed after.
    pub(super) fn put_message(&self, position: u64, bytes: &[u8]) {
        let slot = &self.arena[position as usize % RECVS_MAX];
        for (word, chunk) in slot.iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
    }

    /// The message of an entry; `None` for a length that no honest peer announces.
    pub(super) fn take_message(&self, position: u64, len: usize) -> Option<Vec<u8>> {
        if len > MESSAGE_MAX {
            return None;
        }
        let slot = &self.arena[position as usize % RECVS_MAX];
        let words = slot[..len.div_ceil(8)].iter();
        let mut bytes: Vec<u8> =
            words.flat_map(|w| w.load(Ordering::Relaxed).to_le_bytes()).collect();
        bytes.truncate(len);
        Some(bytes)
    }
}

impl SpscMemory for Words {
    type Word = AtomicU64;
    const ENTRIES: u64 = RECVS_MAX as u64;

    fn entry(&self, index: usize) -> &AtomicU64 {
        &self.entries[index]
    }

    fn limit(&self) -> &AtomicU64 {
        &self.credit.0[0]
    }

    fn touched(&self) -> &AtomicU64 {
        &self.peer.0[0]
    }

    fn asleep(&self) -> &AtomicU64 {
        &self.state.0[0]
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// An inbox of this process, with the descriptor that the peer needs.
pub(super) struct OwnInbox(SharedMemory);

impl OwnInbox {
    /// # Errors
    /// When the operating system refuses the memory.
    pub(super) fn new() -> io::Result<Self> {
        SharedMemory::new(BYTES, false).map(Self)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    pub(super) fn words(&self) -> &Words {
        words(self.0.mapping())
    }
}

/// The peer's inbox, mapped into this process.
pub(super) struct PeerInbox(Mapping);

impl PeerInbox {
    /// # Errors
    /// When the descriptor is not an inbox of this version.
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Mapping::of_peer(fd, BYTES, Access::Write, false).map(Self)
    }

    pub(super) fn words(&self) -> &Words {
        words(&self.0)
    }
}

fn words(mapping: &Mapping) -> &Words {
    assert_eq!(mapping.len(), BYTES);
    // SAFETY: the mapping has the size of `Words`, is page aligned and lives as long as the borrow;
    // `Words` consists of atomics only, for which every bit pattern is valid and which any process
    // may change at any time.
    unsafe { mapping.base().cast::<Words>().as_ref() }
}
