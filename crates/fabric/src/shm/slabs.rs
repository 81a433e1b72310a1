//! Memory that travels over the socket of a connection: descriptors of what this side exports and
//! publishes, mappings of what the peer does.
//!
//! ```text
//!   owner                                reader, writer
//!   SLAB number, bytes + descriptor ──▶  maps it         before the first key of an exported slab
//!   FREE number                     ──▶  unmaps it       with the last one
//!                       ◀── ASK number   needs a published slab, or the registry
//!   PUBLISHED number, bytes + descriptor, or NONE number ──▶
//! ```
//!
//! Numbers are never used twice: those of exports belong to the connection, those of publications
//! to the fabric of their owner. A reader lets go of published memory when its key has gone from
//! the registry and it asks for other memory; [`PeerSlabs::release`] does it at once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::map::{Access, Mapping, PublishedMemory, SharedMemory};
use super::publications::{Publications, REGISTRY};
use super::registry::{self, Posting};
use super::socket::Socket;
use crate::RemoteKey;
use crate::token::Token;

/// Slabs that one endpoint can export parts of. Their descriptors fit the socket's buffer.
const SLABS_MAX: usize = 128;
/// Questions of one side that wait for an answer.
const ASKED_MAX: usize = 16;

/// First byte of a message: number and size of a slab, whose descriptor comes along.
const SLAB: u8 = b'S';
/// Number of a slab of which nothing is exported any more.
const FREE: u8 = b'F';
/// Number of a published slab whose descriptor is needed.
const ASK: u8 = b'A';
/// As [`SLAB`], of a published one: the answer.
const PUBLISHED: u8 = b'P';
/// Number of a slab that is not published: the other answer.
const NONE: u8 = b'N';

/// The peer does not keep to the protocol.
pub(super) struct Breach;

/// The memory of this side whose descriptors were sent.
#[derive(Default)]
pub(super) struct OwnSlabs {
    /// Exported slabs whose descriptors the peer has got: number and exports.
    sent: HashMap<Token, (u64, usize)>,
    last_number: u64,
    /// Numbers that the peer has asked for and that found no room in the socket.
    unanswered: Vec<u64>,
}

impl OwnSlabs {
    /// The number of a slab of which one more range is exported; its descriptor is sent when the
    /// peer has none.
    ///
    /// # Errors
    /// When there are too many, or the peer has not taken those before.
    pub(super) fn export(&mut self, memory: &SharedMemory, socket: &Socket) -> io::Result<u64> {
        if let Some((number, exports)) = self.sent.get_mut(&memory.id()) {
            *exports += 1;
            return Ok(*number);
        }
        if self.sent.len() == SLABS_MAX {
            return Err(io::Error::other("too many slabs are exported on one connection"));
        }
        let number = self.last_number + 1;
        let sent = socket.send(&sized(SLAB, number, memory), Some(memory.fd()));
        sent.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::other(
                "the other end has not polled since many slabs were exported on the connection",
            ),
            _ => error,
        })?;
        self.last_number = number;
        self.sent.insert(memory.id(), (number, 1));
        Ok(number)
    }

    /// One range less of a slab is exported.
    pub(super) fn unexport(&mut self, memory: &SharedMemory, socket: &Socket) {
        if let Some((_, exports)) = self.sent.get_mut(&memory.id()) {
            *exports -= 1;
        }
        // A message without room is sent with the next one.
        self.sent.retain(|_, (number, exports)| {
            *exports > 0 || socket.send(&numbered(FREE, *number), None).is_err()
        });
    }

    /// Takes a question of the peer's.
    pub(super) fn asked(&mut self, number: u64) -> Result<(), Breach> {
        if self.unanswered.len() == ASKED_MAX {
            return Err(Breach);
        }
        self.unanswered.push(number);
        Ok(())
    }

    /// Answers as many questions as find room.
    pub(super) fn answer(&mut self, publications: &Publications, socket: &Socket) {
        self.unanswered.retain(|number| {
            let sent = publications.with_memory(*number, |memory| match memory {
                Some(memory) => match memory.to_read() {
                    Ok(fd) => socket.send(&sized(PUBLISHED, *number, memory), Some(fd.as_fd())),
                    Err(_) => socket.send(&numbered(NONE, *number), None),
                },
                None => socket.send(&numbered(NONE, *number), None),
            });
            sent.is_err()
        });
    }

    /// True when an answer waits for room.
    pub(super) fn has_unanswered(&self) -> bool {
        !self.unanswered.is_empty()
    }
}

/// The peer's memory in this process.
pub(super) struct PeerSlabs {
    /// Touch the pages of the peer's slabs when they are mapped.
    prefault: bool,
    /// Exported ones in the order of their numbers; `None` where mapping failed. Each write looks
    /// for one of them, and a connection has few.
    exported: Vec<(u64, Option<Mapping>)>,
    registry: PeerMemory<Mapping>,
    /// Published ones by number, each with a key of it that was used.
    published: HashMap<u64, (RemoteKey, PeerMemory<Arc<PublishedMemory>>)>,
    /// Questions without an answer.
    asked: usize,
}

/// Memory that is there when the peer has sent it.
enum PeerMemory<T> {
    /// No operation has needed it yet.
    Unrequested,
    Requested,
    Mapped(T),
    /// The peer does not have it, or it cannot be mapped.
    Refused,
}

/// Memory that an operation needs.
pub(super) enum Reach<T> {
    Here(T),
    /// The peer was asked for it.
    Pending,
    Refused,
}

/// A published range in this process.
pub(super) struct Published {
    pub(super) memory: Arc<PublishedMemory>,
    /// First byte in the memory, and bytes from there on.
    pub(super) start: usize,
    pub(super) len: usize,
}

impl PeerSlabs {
    pub(super) fn new(prefault: bool) -> Self {
        Self {
            prefault,
            exported: Vec::new(),
            registry: PeerMemory::Unrequested,
            published: HashMap::new(),
            asked: 0,
        }
    }

    /// The place of an exported slab in this list, until another one comes or goes; `Err` with the
    /// place that it would have if it has not come.
    pub(super) fn place(&self, number: u64) -> Result<usize, usize> {
        self.exported.binary_search_by_key(&number, |(number, _)| *number)
    }

    /// The mapping of the exported slab at a place, unless it cannot be mapped.
    pub(super) fn exported(&self, place: usize) -> Option<&Mapping> {
        self.exported[place].1.as_ref()
    }

    /// Unmaps an exported slab.
    pub(super) fn forget(&mut self, number: u64) {
        if let Ok(place) = self.place(number) {
            self.exported.remove(place);
        }
    }

    /// Lets go of the memory of a published key. Memory that was requested is kept until the answer
    /// has come.
    pub(super) fn release(&mut self, key: &RemoteKey) {
        if let Some(posting) = self.posting(key)
            && let Entry::Occupied(memory) = self.published.entry(posting.slab)
            && !matches!(memory.get().1, PeerMemory::Requested)
        {
            memory.remove();
        }
        self.sweep();
    }

    /// The range of a published key, whose first `len` bytes from `offset` on are needed.
    pub(super) fn published(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        len: usize,
        ask: &mut impl FnMut(&[u8]) -> bool,
    ) -> Reach<Published> {
        match self.registry {
            PeerMemory::Mapped(_) => {}
            PeerMemory::Refused => {
                // The peer may publish something later.
                self.registry = PeerMemory::Unrequested;
                return Reach::Refused;
            }
            PeerMemory::Requested => return Reach::Pending,
            PeerMemory::Unrequested => {
                if self.ask(REGISTRY, ask) {
                    self.registry = PeerMemory::Requested;
                }
                return Reach::Pending;
            }
        }
        let Some(posting) = self.posting(key) else { return Reach::Refused };
        let number = posting.slab;
        match self.published.get_mut(&number) {
            Some((_, PeerMemory::Mapped(memory))) => {
                let place = inside(&posting, key, offset, len, memory.mapping().len());
                let Some(start) = place else { return Reach::Refused };
                Reach::Here(Published { memory: memory.clone(), start, len })
            }
            Some((_, PeerMemory::Refused)) => Reach::Refused,
            Some(_) => Reach::Pending,
            None => {
                self.sweep();
                if self.ask(number, ask) {
                    self.published.insert(number, (*key, PeerMemory::Requested));
                }
                Reach::Pending
            }
        }
    }

    /// True when the key still stands on the registry, and what was loaded by it is what was
    /// published.
    pub(super) fn holds(&self, key: &RemoteKey) -> bool {
        self.entry(key).is_some_and(|entry| entry.has(key.key))
    }

    fn entry(&self, key: &RemoteKey) -> Option<&registry::Entry<AtomicU64>> {
        match &self.registry {
            PeerMemory::Mapped(registry) => {
                Some(&registry::entries(registry)[registry::place_of(key).0])
            }
            _ => None,
        }
    }

    /// The posting of a key on the registry. The entry may become that of another range meanwhile,
    /// so that it is asked for the key again.
    fn posting(&self, key: &RemoteKey) -> Option<Posting> {
        let entry = self.entry(key)?;
        let posting = entry.find(key.key).filter(|_| entry.has(key.key))?;
        let right = posting.base == registry::place_of(key).1 && posting.len == key.len;
        right.then_some(posting)
    }

    /// Lets go of memory whose keys have gone from the registry.
    fn sweep(&mut self) {
        let mut published = std::mem::take(&mut self.published);
        published
            .retain(|_, (key, memory)| matches!(memory, PeerMemory::Requested) || self.holds(key));
        self.published = published;
    }

    fn ask(&mut self, number: u64, ask: &mut impl FnMut(&[u8]) -> bool) -> bool {
        let asks = self.asked < ASKED_MAX && ask(&numbered(ASK, number));
        self.asked += usize::from(asks);
        asks
    }

    /// Takes an answer.
    fn answered(&mut self, number: u64, memory: Option<(OwnedFd, usize)>) -> Result<(), Breach> {
        self.asked = self.asked.checked_sub(1).ok_or(Breach)?;
        if number == REGISTRY {
            let map = |(fd, bytes): (OwnedFd, usize)| {
                let right = bytes == registry::BYTES;
                Mapping::of_peer(fd.as_fd(), bytes, Access::ReadWords, false).ok().filter(|_| right)
            };
            self.registry = memory.and_then(map).map_or(PeerMemory::Refused, PeerMemory::Mapped);
            return Ok(());
        }
        let (_, place) = self.published.get_mut(&number).ok_or(Breach)?;
        let map = |(fd, bytes): (OwnedFd, usize)| {
            PublishedMemory::new(fd.as_fd(), bytes, self.prefault).ok()
        };
        let mapped = memory.and_then(map);
        *place = mapped.map_or(PeerMemory::Refused, |memory| PeerMemory::Mapped(Arc::new(memory)));
        Ok(())
    }
}

/// Takes a message about memory.
pub(super) fn take(
    message: &[u8],
    fd: Option<OwnedFd>,
    own: &mut OwnSlabs,
    peer: &mut PeerSlabs,
) -> Result<(), Breach> {
    let (kind, rest) = message.split_first().ok_or(Breach)?;
    let word = |at: usize| rest.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let number = word(0).ok_or(Breach)?;
    let bytes = word(8).and_then(|bytes| usize::try_from(bytes).ok());
    match (*kind, rest.len(), bytes, fd) {
        (SLAB, 16, Some(bytes), Some(fd)) => {
            let Err(place) = peer.place(number) else { return Err(Breach) };
            if peer.exported.len() == SLABS_MAX {
                return Err(Breach);
            }
            let mapping = Mapping::of_peer(fd.as_fd(), bytes, Access::Write, peer.prefault).ok();
            peer.exported.insert(place, (number, mapping));
            Ok(())
        }
        (FREE, 8, None, None) => {
            peer.forget(number);
            Ok(())
        }
        (ASK, 8, None, None) => own.asked(number),
        (PUBLISHED, 16, Some(bytes), Some(fd)) => peer.answered(number, Some((fd, bytes))),
        (NONE, 8, None, None) => peer.answered(number, None),
        _ => Err(Breach),
    }
}

/// The offset of bytes of a published range in memory of `memory` bytes; `None` if they leave it.
fn inside(
    posting: &Posting,
    key: &RemoteKey,
    offset: u64,
    len: usize,
    memory: usize,
) -> Option<usize> {
    let end = offset.checked_add(len as u64).filter(|end| *end <= key.len)?;
    let fits = posting.base.checked_add(end)? <= memory as u64;
    fits.then_some((posting.base + offset) as usize)
}

fn numbered(kind: u8, number: u64) -> [u8; 9] {
    let mut message = [kind; 9];
    message[1..].copy_from_slice(&number.to_le_bytes());
    message
}

fn sized(kind: u8, number: u64, memory: &SharedMemory) -> [u8; 17] {
    let mut message = [kind; 17];
    message[1..9].copy_from_slice(&number.to_le_bytes());
    message[9..].copy_from_slice(&(memory.mapping().len() as u64).to_le_bytes());
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(message: &[u8], own: &mut OwnSlabs, peer: &mut PeerSlabs) -> bool {
        take(message, None, own, peer).is_ok()
    }

    #[test]
    fn what_no_honest_peer_sends_is_a_breach() {
        let (mut own, mut peer) = (OwnSlabs::default(), PeerSlabs::new(false));
        let sizes = [&[SLAB; 17][..], &[PUBLISHED; 17], &[SLAB; 9], &[FREE; 17], &[ASK; 8]];
        let unasked = [&[NONE; 9][..], &[PUBLISHED; 9], &[b'X'; 9], &[]];
        for message in sizes.into_iter().chain(unasked) {
            assert!(!took(message, &mut own, &mut peer), "{message:?}");
        }
        assert!(took(&numbered(FREE, 7), &mut own, &mut peer), "it may not have been mapped");
    }

    #[test]
    fn questions_have_a_bound_on_both_sides() {
        let (mut own, mut peer) = (OwnSlabs::default(), PeerSlabs::new(false));
        let mut sent = 0;
        let mut ask = |_: &[u8]| {
            sent += 1;
            true
        };
        let asked = (1..100).filter(|number| peer.ask(*number, &mut ask)).count();
        assert_eq!((asked, sent), (ASKED_MAX, ASKED_MAX));
        for number in 0..ASKED_MAX as u64 {
            assert!(took(&numbered(ASK, number), &mut own, &mut peer));
        }
        assert!(own.has_unanswered());
        assert!(!took(&numbered(ASK, 99), &mut own, &mut peer));
    }

    /// A peer that has published a range of its slab 1, as this side sees it.
    fn published(peer: &mut PeerSlabs) -> (SharedMemory, RemoteKey) {
        let registry = SharedMemory::of_words(registry::BYTES).unwrap();
        let key = RemoteKey { key: 77, base: registry::base_of(5, 0).unwrap(), len: 8 };
        let posting = Posting { base: 0, len: 8, slab: 1 };
        registry::entries(registry.mapping())[5].open(key.key, posting);
        let mut ask = |_: &[u8]| true;
        assert!(matches!(peer.published(&key, 0, 8, &mut ask), Reach::Pending));
        let message = sized(PUBLISHED, REGISTRY, &registry);
        let fd = registry.to_read().unwrap();
        assert!(take(&message, Some(fd), &mut OwnSlabs::default(), peer).is_ok());
        (registry, key)
    }

    #[test]
    fn memory_that_is_on_its_way_may_be_released() {
        let (mut own, mut peer) = (OwnSlabs::default(), PeerSlabs::new(false));
        let (_registry, key) = published(&mut peer);
        assert!(matches!(peer.published(&key, 0, 8, &mut |_| true), Reach::Pending));
        peer.release(&key);
        let slab = SharedMemory::new(4096, false).unwrap();
        let fd = Some(slab.to_read().unwrap());
        assert!(take(&sized(PUBLISHED, 1, &slab), fd, &mut own, &mut peer).is_ok());
        assert!(matches!(peer.published(&key, 0, 8, &mut |_| true), Reach::Here(_)));
        peer.release(&key);
        assert!(peer.published.is_empty());
    }

    #[test]
    fn an_entry_of_another_key_is_not_taken_for_the_first() {
        let mut peer = PeerSlabs::new(false);
        let (registry, key) = published(&mut peer);
        assert!(peer.posting(&key).is_some());
        let entry = &registry::entries(registry.mapping())[5];
        entry.close();
        entry.open(78, Posting { base: 0, len: 8, slab: 2 });
        assert!(peer.posting(&key).is_none());
        assert!(matches!(peer.published(&key, 0, 8, &mut |_| true), Reach::Refused));
    }

    #[test]
    fn readers_cannot_write() {
        let registry = SharedMemory::of_registry().unwrap();
        let slab = SharedMemory::new(4096, false).unwrap();
        for memory in [&registry, &slab] {
            let (fd, bytes) = (memory.to_read().unwrap(), memory.mapping().len());
            let map = |access| Mapping::of_peer(fd.as_fd(), bytes, access, false);
            assert!(map(Access::Write).is_err() && map(Access::ReadWords).is_ok());
        }
        registry::entries(registry.mapping())[0].open(1, Posting { base: 0, len: 8, slab: 1 });
        let by_any = Mapping::of_peer(registry.fd(), registry::BYTES, Access::WriteWords, false);
        assert!(by_any.is_err(), "whatever descriptor a reader has");
    }

    #[test]
    fn a_number_that_is_not_published_is_refused() {
        let (mut own, mut peer) = (OwnSlabs::default(), PeerSlabs::new(false));
        let key = RemoteKey { key: 1, base: RemoteKey::PUBLISHED, len: 8 };
        let mut ask = |_: &[u8]| true;
        assert!(matches!(peer.published(&key, 0, 8, &mut ask), Reach::Pending));
        assert!(took(&numbered(NONE, REGISTRY), &mut own, &mut peer));
        assert!(matches!(peer.published(&key, 0, 8, &mut ask), Reach::Refused));
        assert!(matches!(peer.published(&key, 0, 8, &mut ask), Reach::Pending), "asked anew");
    }
}
