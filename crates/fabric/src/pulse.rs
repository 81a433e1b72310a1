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
//! A look is taken once a second by whoever watches; there is no clock here. A process that was
//! stopped for a while accuses nobody when it wakes, since it has looked once in that time.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::LinkId;

/// Looks in a row at which bytes are on their way and none arrives, after which a connection is
/// given up.
pub const STILL_LOOKS: u32 = 4;

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
}

/// The bytes that a connection has carried up to one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The connection.
    pub name: Name,
    /// Bytes that this end has put into it.
    pub sent: u64,
    /// Bytes that this end has taken out of it.
    pub received: u64,
    /// Whether more have arrived that nobody has taken yet.
    pub unread: bool,
}

impl Pulse {
    pub(crate) fn new(name: Name, link: LinkId, stream: TcpStream) -> Arc<Self> {
        let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { name, link, stream, sent, received })
    }

    /// The link that it belongs to.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// The bytes that it has carried by now.
    pub fn count(&self) -> Count {
        let received = self.received.load(Ordering::Relaxed);
        let sent = self.sent.load(Ordering::Relaxed);
        // A socket that cannot tell has failed, and its owner will hear of it.
        let unread = rustix::io::ioctl_fionread(&self.stream).is_ok_and(|bytes| bytes > 0);
        Count { name: self.name, sent, received, unread }
    }

    /// Ends it: its owner is woken and finds it broken.
    pub fn give_up(&self) {
        // One that has ended already needs no end.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn has_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn has_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The connections of a fabric that are in use.
#[derive(Debug, Default)]
pub(crate) struct Pulses(Mutex<Vec<Weak<Pulse>>>);

impl Pulses {
    pub(crate) fn add(&self, pulse: &Arc<Pulse>) {
        let mut pulses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pulses.retain(|known| known.strong_count() > 0);
        pulses.push(Arc::downgrade(pulse));
    }

    pub(crate) fn all(&self) -> Vec<Arc<Pulse>> {
        let pulses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pulses.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Finds connections that carry nothing although there is something to carry.
#[derive(Debug, Default)]
pub struct Watch {
    known: HashMap<Name, Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Bytes that the other end has announced to have put in.
    announced: u64,
    received: u64,
    /// Looks in a row at which nothing had come.
    still: u32,
}

impl Watch {
    /// Looks at all connections of this side; once a second. Gives those to be given up, with the
    /// bytes that are on their way.
    pub fn look(&mut self, counts: &[Count]) -> Vec<(Name, u64)> {
        let mut before = std::mem::take(&mut self.known);
        let mut overdue = Vec::new();
        for count in counts {
            let mut known = before.remove(&count.name).unwrap_or_default();
            let missing = known.announced.saturating_sub(count.received);
            if missing == 0 || count.unread || count.received != known.received {
                known.still = 0;
            } else {
                known.still += 1;
                if known.still == STILL_LOOKS {
                    overdue.push((count.name, missing));
                }
            }
            known.received = count.received;
            self.known.insert(count.name, known);
        }
        overdue
    }

    /// The other end of a connection has told how much it put in. What is told of connections that
    /// were not there at the last look is not kept: it will be told again.
    pub fn hear(&mut self, name: Name, sent: u64) {
        if let Some(known) = self.known.get_mut(&name) {
            known.announced = known.announced.max(sent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = [7; 16];

    fn count(received: u64, unread: bool) -> Count {
        Count { name: NAME, sent: 0, received, unread }
    }

    #[test]
    fn what_was_sent_and_does_not_come_is_overdue_once() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(&[count(90, false)]), []);
        watch.hear(NAME, 100);
        for look in 1..10 {
            let overdue = watch.look(&[count(90, false)]);
            let expected = if look == STILL_LOOKS { vec![(NAME, 10)] } else { vec![] };
            assert_eq!(overdue, expected, "look {look}");
        }
    }

    #[test]
    fn whatever_comes_or_waits_to_be_read_counts_as_carried() {
        let mut watch = Watch::default();
        watch.look(&[count(0, false)]);
        watch.hear(NAME, 1000);
        for look in 0..100 {
            // A little at a time, and at times none that is read.
            let received = look / (STILL_LOOKS as u64 - 1);
            assert_eq!(watch.look(&[count(received, false)]), [], "look {look}");
        }
        // Its owner is busy.
        for _ in 0..100 {
            assert_eq!(watch.look(&[count(33, true)]), []);
        }
        watch.hear(NAME, 33);
        watch.look(&[count(1000, false)]);
        for _ in 0..100 {
            assert_eq!(watch.look(&[count(1000, false)]), [], "all has come");
        }
    }

    #[test]
    fn what_is_told_of_strangers_and_of_the_past_is_not_kept() {
        let mut watch = Watch::default();
        watch.hear(NAME, 100);
        assert!(watch.known.is_empty());
        watch.look(&[count(0, false)]);
        watch.hear(NAME, 100);
        assert_eq!(watch.look(&[]), []);
        assert!(watch.known.is_empty());
        for _ in 0..100 {
            assert_eq!(watch.look(&[count(0, false)]), []);
        }
    }
}
