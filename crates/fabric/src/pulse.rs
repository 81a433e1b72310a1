//! Connections that stand and carry nothing.
//!
//! That bytes do not arrive can be seen from their end alone, and that they were sent from the
//! other: a proxy or a broken network may take and acknowledge them, and hand nothing on. So each
//! side tells the other, over a way of its own, how much it has put into each connection, and each
//! compares that with what it got. Nobody needs to wait for the worker that owns the connection:
//! one that computes, or waits for a slow reader, leaves bytes in the socket, and they have
//! arrived.
//!
//! ```text
//!   a: sent 900 ── by another way ──▶ b: received 700, none unread, so at four looks in a row:
//!                                        the connection is given up, and made anew
//! ```
//!
//! The end of a connection is something to carry too, and counts as a byte: who ends it has put
//! all in, may not be there to be asked later, and is remembered until that was told once
//! ([`Pulses::take_ended`]).
//!
//! ```text
//!   note   (name of a connection, 16 bytes | bytes put in, u64)*
//! ```
//!
//! The watching thread looks once a second; there is no clock here. A process that was
//! stopped for a while accuses nobody when it wakes, since it has looked once in that time.
//! `models/tests/pulse.rs` explores what may happen between two ends.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::LinkId;

/// Looks in a row at which bytes are on their way and none arrives, after which a connection is
/// given up.
pub const STILL_LOOKS: u32 = 4;

/// Connections that have ended and of which nobody was told; beyond that the oldest is forgotten.
const ENDED_MAX: usize = 1 << 16;
/// Connections of which something was told before they were looked at.
const STRANGERS_MAX: usize = 1 << 16;

/// Bytes of a note for each connection.
const ENTRY_BYTES: usize = 24;

/// Identifies a connection: the same at both of its ends, and different for every other one.
pub type Name = [u8; 16];

/// A connection, as the watchdog sees it, which does not own it.
#[derive(Debug)]
pub struct Pulse {
    name: Name,
    link: LinkId,
    stream: TcpStream,
    sent: AtomicU64,
    received: AtomicU64,
    /// Where it is remembered when it has ended.
    pulses: Weak<Pulses>,
}

/// The bytes that a connection has carried up to one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The connection.
    pub name: Name,
    /// Bytes that this end has put into it; its end is one.
    pub sent: u64,
    /// Bytes that this end has taken out of it.
    pub received: u64,
    /// Whether more have arrived that nobody has taken yet, or its end has.
    pub unread: bool,
}

/// A connection that is over at this end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedConnection {
    /// The connection.
    pub name: Name,
    /// The link that it belonged to.
    pub link: LinkId,
    /// Bytes that this end has put into it; its end is one.
    pub sent: u64,
}

impl Pulse {
    /// The link that it belongs to.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// The bytes that it has carried by now.
    pub fn count(&self) -> Count {
        let received = self.received.load(Ordering::Relaxed);
        let sent = self.sent.load(Ordering::Relaxed);
        Count { name: self.name, sent, received, unread: self.has_unread() }
    }

    /// Whether something waits to be read: bytes, an end, or a failure of which its owner will
    /// hear.
    fn has_unread(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Ends it: its owner is woken and finds it broken.
    pub fn give_up(&self) {
        // One that has ended already needs no end.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Tells the other end that nothing more comes.
    pub(crate) fn end(&self) {
        // One that has failed takes no end.
        let _ = self.stream.shutdown(Shutdown::Write);
        self.has_sent(1);
    }

    pub(crate) fn has_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn has_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        let Some(pulses) = self.pulses.upgrade() else { return };
        let sent = self.sent.load(Ordering::Relaxed);
        pulses.lock().remember(EndedConnection { name: self.name, link: self.link, sent });
    }
}

/// The connections of a fabric.
#[derive(Debug, Default)]
pub struct Pulses(Mutex<Connections>);

#[derive(Debug, Default)]
struct Connections {
    used: Vec<Weak<Pulse>>,
    ended: VecDeque<EndedConnection>,
}

impl Connections {
    fn remember(&mut self, ended: EndedConnection) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }
}

impl Pulses {
    /// One more.
    pub(crate) fn add(self: &Arc<Self>, name: Name, link: LinkId, stream: TcpStream) -> Arc<Pulse> {
        let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
        let pulses = Arc::downgrade(self);
        let pulse = Arc::new(Pulse { name, link, stream, sent, received, pulses });
        let mut connections = self.lock();
        connections.used.retain(|pulse| pulse.strong_count() > 0);
        connections.used.push(Arc::downgrade(&pulse));
        pulse
    }

    /// Those that are in use.
    pub fn used(&self) -> Vec<Arc<Pulse>> {
        self.lock().used.iter().filter_map(Weak::upgrade).collect()
    }

    /// The connections that have ended since the last call. The caller announces each to the other
    /// end, once.
    pub fn take_ended(&self) -> Vec<EndedConnection> {
        std::mem::take(&mut self.lock().ended).into()
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds connections that carry nothing although there is something to carry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ConnectionWatch {
    observed: BTreeMap<Name, Observed>,
    /// Those in `observed` that were looked at.
    observed_before: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Observed {
    /// Bytes that the other end has announced to have put in.
    announced: u64,
    received: u64,
    /// Looks in a row at which nothing had come.
    still: u32,
}

impl ConnectionWatch {
    /// Looks at all connections of this side; once a second. Gives those to be given up, with the
    /// bytes that are on their way.
    pub fn look(&mut self, counts: &[Count]) -> Vec<(Name, u64)> {
        let mut before = std::mem::take(&mut self.observed);
        let mut overdue = Vec::new();
        for count in counts {
            let mut observed = before.remove(&count.name).unwrap_or_default();
            let missing = observed.announced.saturating_sub(count.received);
            if missing == 0 || count.unread || count.received != observed.received {
                observed.still = 0;
            } else {
                observed.still += 1;
                if observed.still == STILL_LOOKS {
                    overdue.push((count.name, missing));
                }
            }
            observed.received = count.received;
            self.observed.insert(count.name, observed);
        }
        self.observed_before = self.observed.len();
        overdue
    }

    /// The other end of a connection has told how much it put in. It may tell so before the first
    /// look at it, and not again; of connections that are not there at the next look nothing is
    /// kept.
    pub fn announce(&mut self, name: Name, sent: u64) {
        let full = self.observed.len() - self.observed_before >= STRANGERS_MAX;
        if full && !self.observed.contains_key(&name) {
            return;
        }
        let observed = self.observed.entry(name).or_default();
        observed.announced = observed.announced.max(sent);
    }
}

/// Encodes the bytes that were put into each connection, in messages of at most `bytes_max`.
pub fn encode_counts(
    connections: impl Iterator<Item = (Name, u64)>,
    bytes_max: usize,
) -> Vec<Vec<u8>> {
    let entry = |(name, sent): (Name, u64)| [&name[..], &sent.to_le_bytes()].concat();
    let entries: Vec<u8> = connections.flat_map(entry).collect();
    let most = (bytes_max / ENTRY_BYTES).max(1) * ENTRY_BYTES;
    entries.chunks(most).map(<[u8]>::to_vec).collect()
}

/// Decodes one message of [`encode_counts`]; an incomplete last entry is ignored.
pub fn entries(message: &[u8]) -> impl Iterator<Item = (Name, u64)> {
    message.as_chunks::<ENTRY_BYTES>().0.iter().filter_map(|entry| {
        let (name, sent) = entry.split_first_chunk::<16>()?;
        Some((*name, u64::from_le_bytes(sent.try_into().ok()?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = [7; 16];

    fn count(received: u64, unread: bool) -> Count {
        Count { name: NAME, sent: 0, received, unread }
    }

    #[test]
    fn what_is_told_is_heard_and_a_broken_rest_is_not() {
        let reported = [([1; 16], 900), ([2; 16], u64::MAX), ([3; 16], 0)];
        let mut messages = encode_counts(reported.into_iter(), 2 * ENTRY_BYTES + 7);
        assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [48, 24]);
        messages[1].extend_from_slice(&[9; ENTRY_BYTES - 1]);
        let decoded: Vec<_> = messages.iter().flat_map(|message| entries(message)).collect();
        assert_eq!(decoded, reported);
        assert_eq!(entries(&[]).count(), 0);
    }

    #[test]
    fn what_was_sent_and_does_not_come_is_overdue_once() {
        let mut watch = ConnectionWatch::default();
        assert_eq!(watch.look(&[count(90, false)]), []);
        watch.announce(NAME, 100);
        for look in 1..10 {
            let overdue = watch.look(&[count(90, false)]);
            let expected = if look == STILL_LOOKS { vec![(NAME, 10)] } else { vec![] };
            assert_eq!(overdue, expected, "look {look}");
        }
    }

    #[test]
    fn whatever_comes_or_waits_to_be_read_counts_as_carried() {
        let mut watch = ConnectionWatch::default();
        watch.look(&[count(0, false)]);
        watch.announce(NAME, 1000);
        for look in 0..100 {
            // A little at a time, and at times none that is read.
            let received = look / (STILL_LOOKS as u64 - 1);
            assert_eq!(watch.look(&[count(received, false)]), [], "look {look}");
        }
        // Its owner is busy.
        for _ in 0..100 {
            assert_eq!(watch.look(&[count(33, true)]), []);
        }
        watch.announce(NAME, 33);
        watch.look(&[count(1000, false)]);
        for _ in 0..100 {
            assert_eq!(watch.look(&[count(1000, false)]), [], "all has come");
        }
    }

    #[test]
    fn what_is_told_before_the_first_look_is_kept_for_that_look() {
        let mut watch = ConnectionWatch::default();
        watch.announce(NAME, 100);
        let mut overdue = (0..STILL_LOOKS).map(|_| watch.look(&[count(0, false)]));
        assert!(overdue.any(|overdue| overdue == [(NAME, 100)]));
        watch.announce([8; 16], 100);
        assert_eq!(watch.look(&[]), []);
        assert_eq!(watch, ConnectionWatch::default(), "what is not there is forgotten");
        for _ in 0..100 {
            assert_eq!(watch.look(&[count(0, false)]), []);
        }
    }

    #[test]
    fn strangers_that_are_told_of_have_a_bound() {
        let mut watch = ConnectionWatch::default();
        watch.look(&[count(0, false)]);
        for stranger in 0..2 * STRANGERS_MAX as u128 {
            watch.announce(stranger.to_le_bytes(), 1);
        }
        assert_eq!(watch.observed.len(), 1 + STRANGERS_MAX);
        watch.announce(NAME, 100);
        assert_eq!(watch.observed[&NAME].announced, 100, "one that is there is no stranger");
    }

    /// The two ends of a connection, and what remembers the first one.
    fn connected() -> (Arc<Pulses>, Arc<Pulse>, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let pulses = Arc::new(Pulses::default());
        let pulse = pulses.add(NAME, LinkId { local: 3, remote: 5 }, stream);
        (pulses, pulse, listener.accept().unwrap().0)
    }

    #[test]
    fn one_that_has_ended_is_told_of_once_and_its_end_is_a_byte() {
        let (pulses, pulse, _other) = connected();
        pulse.has_sent(900);
        assert_eq!((pulses.take_ended(), pulses.used().len()), (vec![], 1));
        pulse.end();
        assert_eq!(pulse.count().sent, 901);
        drop(pulse);
        let ended = EndedConnection { name: NAME, link: LinkId { local: 3, remote: 5 }, sent: 901 };
        assert_eq!((pulses.take_ended(), pulses.used().len()), (vec![ended], 0));
        assert_eq!(pulses.take_ended(), []);
    }

    #[test]
    fn those_that_nobody_is_told_of_have_a_bound() {
        let mut connections = Connections::default();
        for sent in 0..ENDED_MAX as u64 + 3 {
            let link = LinkId { local: 0, remote: 1 };
            connections.remember(EndedConnection { name: NAME, link, sent });
        }
        assert_eq!(connections.ended.len(), ENDED_MAX);
        assert_eq!(connections.ended.front().map(|ended| ended.sent), Some(3));
    }

    #[test]
    fn an_end_that_has_come_is_unread_like_bytes() {
        let (_pulses, pulse, other) = connected();
        assert!(!pulse.count().unread);
        other.shutdown(Shutdown::Write).unwrap();
        let mut fds = [PollFd::new(pulse.stream(), PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        assert!(pulse.count().unread);
    }
}
