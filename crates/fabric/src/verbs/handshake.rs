//! What two endpoints tell each other over their socket before the first request.
//!
//! ```text
//!   both: Hello  (queue pair, address, limits)      → queue pair to RTR, then RTS
//!   both: Ready  (publish mode that I can promise)  → the weaker of the two holds
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
pub(super) const MAGIC: [u8; 8] = *b"MLSVRB\x00\x01";

/// The first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    /// The address; meaningful on RoCE, and between subnets of InfiniBand.
    pub(super) gid: [u8; 16],
    /// Number of the queue pair.
    pub(super) queue_pair: u32,
    /// First packet number of what the sender of this sends.
    pub(super) psn: u32,
    /// Marks the keys of this connection.
    pub(super) tag: u32,
    /// Bytes of a message.
    pub(super) message_max: u32,
    /// Counter of credit messages taken: place and key.
    pub(super) counter: (u64, u32),
    /// Address within an InfiniBand subnet.
    pub(super) lid: u16,
    /// Bytes of a packet.
    pub(super) mtu: u16,
    /// Reads and atomics that the sender of this answers at a time.
    pub(super) reads_max: u8,
    /// The link layer is Ethernet.
    pub(super) roce: bool,
    /// 0 none, 1 among themselves, 2 also with the processor.
    pub(super) atomics: u8,
}

impl Hello {
    /// Bytes on the wire.
    pub(super) const BYTES: usize = 64;

    /// Little-endian, in the order below.
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..24].copy_from_slice(&self.gid);
        out[24..28].copy_from_slice(&self.queue_pair.to_le_bytes());
        out[28..32].copy_from_slice(&self.psn.to_le_bytes());
        out[32..36].copy_from_slice(&self.tag.to_le_bytes());
        out[36..40].copy_from_slice(&self.message_max.to_le_bytes());
        out[40..48].copy_from_slice(&self.counter.0.to_le_bytes());
        out[48..52].copy_from_slice(&self.counter.1.to_le_bytes());
        out[52..54].copy_from_slice(&self.lid.to_le_bytes());
        out[54..56].copy_from_slice(&self.mtu.to_le_bytes());
        out[56..59].copy_from_slice(&[self.reads_max, u8::from(self.roce), self.atomics]);
        out
    }

    /// The inverse of [`Hello::encode`].
    ///
    /// # Errors
    /// What is wrong with it; the peer is at fault.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, &'static str> {
        let pair = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let quad = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if bytes[..8] != MAGIC {
            return Err("the peer speaks another version of the protocol");
        }
        if bytes[59..] != [0; 5] || bytes[57] > 1 || bytes[58] > 2 {
            return Err("the peer's hello is garbled");
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[8..24]);
        let hello = Self {
            gid,
            queue_pair: quad(24),
            psn: quad(28),
            tag: quad(32),
            message_max: quad(36),
            counter: (u64::from(quad(44)) << 32 | u64::from(quad(40)), quad(48)),
            lid: pair(52),
            mtu: pair(54),
            reads_max: bytes[56],
            roce: bytes[57] == 1,
            atomics: bytes[58],
        };
        let sane = (256..=4096).contains(&hello.mtu)
            && hello.mtu.is_power_of_two()
            && hello.message_max > 0
            && hello.queue_pair < 1 << 24
            && hello.psn < 1 << 24;
        if sane { Ok(hello) } else { Err("the peer's hello is out of bounds") }
    }
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

/// A publish mode as a byte; the larger one is the weaker.
pub(super) fn weakness(publish: Publish) -> u8 {
    match publish {
        Publish::InOrderPoll => 0,
        Publish::Notify => 1,
        Publish::NotifyCounted => 2,
    }
}

/// The weaker of our mode and the one that the peer named; `None` when it named none.
pub(super) fn weaker(ours: Publish, theirs: u8) -> Option<Publish> {
    match weakness(ours).max(theirs) {
        0 => Some(Publish::InOrderPoll),
        1 => Some(Publish::Notify),
        2 => Some(Publish::NotifyCounted),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            gid: [7; 16],
            queue_pair: 0x00ab_cdef,
            psn: 0x0012_3456,
            tag: u32::MAX,
            message_max: 1 << 30,
            counter: (u64::MAX - 7, 0x8000_0001),
            lid: 0x1234,
            mtu: 1024,
            reads_max: 16,
            roce: true,
            atomics: 1,
        }
    }

    #[test]
    fn a_hello_survives_the_wire() {
        assert_eq!(Hello::decode(&hello().encode()), Ok(hello()));
    }

    #[test]
    fn what_is_not_a_hello_is_refused() {
        let good = hello().encode();
        for (at, value) in [(0, 0), (7, 2), (57, 2), (58, 3), (59, 1), (63, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Hello::decode(&bad).is_err(), "byte {at} = {value}");
        }
        for bad in [
            Hello { mtu: 128, ..hello() },
            Hello { mtu: 1000, ..hello() },
            Hello { mtu: 8192, ..hello() },
            Hello { message_max: 0, ..hello() },
            Hello { queue_pair: 1 << 24, ..hello() },
            Hello { psn: 1 << 24, ..hello() },
        ] {
            assert!(Hello::decode(&bad.encode()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_weaker_mode_holds() {
        assert_eq!(weaker(Publish::InOrderPoll, 0), Some(Publish::InOrderPoll));
        assert_eq!(weaker(Publish::InOrderPoll, 1), Some(Publish::Notify));
        assert_eq!(weaker(Publish::NotifyCounted, 0), Some(Publish::NotifyCounted));
        assert_eq!(weaker(Publish::Notify, 3), None);
    }
}
