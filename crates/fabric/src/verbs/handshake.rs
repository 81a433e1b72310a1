//! The handshake of two endpoints over their socket before the first request.
//!
//! ```text
//!   both: Hello  (queue pair, address, limits)      → queue pair to RTR, then RTS
//!   both: Ready  (how I promise to learn of writes) → the weaker of the two holds
//! ```
//!
//! Nobody posts before the peer's `Ready`: the peer's queue pair receives from then on. The socket
//! stays open and silent; its end says that the peer is gone, which a reliable connection itself
//! says only to who posts.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::Publish;

/// First bytes of an address and of a hello: name and version of the protocol.
pub(super) const MAGIC: [u8; 8] = *b"MLSVRB\x00\x02";

/// The description of one side for the other, on either way to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Card {
    /// Marks the keys of this connection.
    pub(super) tag: u32,
    /// Bytes of a message.
    pub(super) message_max: u32,
    /// Counter of credit messages taken: place and key.
    pub(super) counter: (u64, u32),
    /// Bytes of a packet.
    pub(super) mtu: u16,
    /// Reads and atomics that the sender of this answers at a time.
    pub(super) reads_max: u8,
    /// 0 none, 1 among themselves, 2 also with the processor.
    pub(super) atomics: u8,
}

impl Card {
    /// Bytes on the wire.
    pub(super) const BYTES: usize = 24;

    /// Little-endian, in the order of the fields.
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&self.tag.to_le_bytes());
        out[4..8].copy_from_slice(&self.message_max.to_le_bytes());
        out[8..16].copy_from_slice(&self.counter.0.to_le_bytes());
        out[16..20].copy_from_slice(&self.counter.1.to_le_bytes());
        out[20..22].copy_from_slice(&self.mtu.to_le_bytes());
        out[22..].copy_from_slice(&[self.reads_max, self.atomics]);
        out
    }

    /// The inverse of [`Card::encode`].
    ///
    /// # Errors
    /// The reason why it is refused; the peer is at fault.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, &'static str> {
        let card = Self {
            tag: quad(bytes, 0),
            message_max: quad(bytes, 4),
            counter: (
                u64::from(quad(bytes, 12)) << 32 | u64::from(quad(bytes, 8)),
                quad(bytes, 16),
            ),
            mtu: pair(bytes, 20),
            reads_max: bytes[22],
            atomics: bytes[23],
        };
        let sane = (256..=4096).contains(&card.mtu)
            && card.mtu.is_power_of_two()
            && card.message_max > 0
            && card.atomics <= 2;
        if sane { Ok(card) } else { Err("the peer's hello is out of bounds") }
    }
}

/// The first message over a socket: the card, and the way to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    /// The address; meaningful on RoCE, and between subnets of InfiniBand.
    pub(super) gid: [u8; 16],
    /// Number of the queue pair.
    pub(super) queue_pair: u32,
    /// First packet number of what the sender of this sends.
    pub(super) psn: u32,
    /// The sender itself.
    pub(super) card: Card,
    /// Address within an InfiniBand subnet.
    pub(super) lid: u16,
    /// The link layer is Ethernet.
    pub(super) roce: bool,
}

impl Hello {
    /// Bytes on the wire.
    pub(super) const BYTES: usize = 64;

    /// Little-endian, in the order of the fields, and zeros.
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..24].copy_from_slice(&self.gid);
        out[24..28].copy_from_slice(&self.queue_pair.to_le_bytes());
        out[28..32].copy_from_slice(&self.psn.to_le_bytes());
        out[32..56].copy_from_slice(&self.card.encode());
        out[56..58].copy_from_slice(&self.lid.to_le_bytes());
        out[58] = u8::from(self.roce);
        out
    }

    /// The inverse of [`Hello::encode`].
    ///
    /// # Errors
    /// The reason why it is refused; the peer is at fault.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, &'static str> {
        if bytes[..8] != MAGIC {
            return Err("the peer speaks another version of the protocol");
        }
        if bytes[59..] != [0; 5] || bytes[58] > 1 {
            return Err("the peer's hello is garbled");
        }
        let (mut gid, mut card) = ([0; 16], [0; Card::BYTES]);
        gid.copy_from_slice(&bytes[8..24]);
        card.copy_from_slice(&bytes[32..56]);
        let hello = Self {
            gid,
            queue_pair: quad(bytes, 24),
            psn: quad(bytes, 28),
            card: Card::decode(&card)?,
            lid: pair(bytes, 56),
            roce: bytes[58] == 1,
        };
        let sane = hello.queue_pair < 1 << 24 && hello.psn < 1 << 24;
        if sane { Ok(hello) } else { Err("the peer's hello is out of bounds") }
    }
}

fn quad(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn pair(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Sends our part and awaits the peer's of the same length.
///
/// # Errors
/// At the deadline, or when the peer is gone.
pub(super) fn swap<const N: usize>(
    stream: &mut TcpStream,
    ours: &[u8; N],
    deadline: Instant,
) -> io::Result<[u8; N]> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    stream.write_all(ours)?;
    let (mut theirs, mut filled) = ([0; N], 0);
    while filled < N {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut theirs[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Linux reports a timed-out read as one that would block.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(theirs)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// How what is written becomes known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Promise {
    /// The mode.
    pub(super) publish: Publish,
    /// Notices are messages.
    pub(super) headed: bool,
}

/// In the byte of a promise: notices are messages.
const HEADED: u8 = 1 << 7;

impl Promise {
    /// As a byte; the larger mode is the weaker.
    pub(super) fn encode(self) -> u8 {
        let weakness = match self.publish {
            Publish::InOrderPoll => 0,
            Publish::Notify => 1,
            Publish::NotifyCounted => 2,
        };
        weakness | if self.headed { HEADED } else { 0 }
    }

    /// The weaker of ours and the one that the peer named; `None` when it named none.
    pub(super) fn weaker(self, theirs: u8) -> Option<Self> {
        let ours = self.encode();
        let publish = match (ours & !HEADED).max(theirs & !HEADED) {
            0 => Publish::InOrderPoll,
            1 => Publish::Notify,
            2 => Publish::NotifyCounted,
            _ => return None,
        };
        Some(Self { publish, headed: (ours | theirs) & HEADED != 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            tag: u32::MAX,
            message_max: 1 << 30,
            counter: (u64::MAX - 7, 0x8000_0001),
            mtu: 1024,
            reads_max: 16,
            atomics: 1,
        }
    }

    fn hello() -> Hello {
        Hello {
            gid: [7; 16],
            queue_pair: 0x00ab_cdef,
            psn: 0x0012_3456,
            card: card(),
            lid: 0x1234,
            roce: true,
        }
    }

    #[test]
    fn a_hello_survives_the_wire() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    }

    #[test]
    fn what_is_not_a_hello_is_refused() {
        let good = hello().encode();
        for (at, value) in [(0, 0), (7, 9), (55, 3), (58, 2), (59, 1), (63, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Hello::decode(&bad).is_err(), "byte {at} = {value}");
        }
        for bad in [
            Hello { card: Card { mtu: 128, ..card() }, ..hello() },
            Hello { card: Card { mtu: 1000, ..card() }, ..hello() },
            Hello { card: Card { mtu: 8192, ..card() }, ..hello() },
            Hello { card: Card { message_max: 0, ..card() }, ..hello() },
            Hello { queue_pair: 1 << 24, ..hello() },
            Hello { psn: 1 << 24, ..hello() },
        ] {
            assert!(Hello::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_weaker_mode_holds() {
        let promise = |publish, headed| Promise { publish, headed };
        let plain = |publish| promise(publish, false);
        let [poll, notify, counted] =
            [Publish::InOrderPoll, Publish::Notify, Publish::NotifyCounted].map(plain);
        for (ours, theirs, held) in [
            (poll, poll, poll),
            (poll, notify, notify),
            (counted, poll, counted),
            (promise(Publish::Notify, true), poll, promise(Publish::Notify, true)),
            (counted, promise(Publish::Notify, true), promise(Publish::NotifyCounted, true)),
        ] {
            assert_eq!(ours.weaker(theirs.encode()), Some(held));
            assert_eq!(theirs.weaker(ours.encode()), Some(held));
        }
        assert_eq!(notify.weaker(3), None);
        assert_eq!(notify.weaker(HEADED | 3), None);
    }
}
