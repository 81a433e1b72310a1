//! The wire format of a shared connection, beside the operations themselves: notices with the
//! number of their port, messages, keys and addresses.
//!
//! ```text
//!   notice     port 12 | 0 | kind 3 | count 16       of a number that fits, as those of rings do
//!              port 12 | 1 | number 19               of any other, which a LONG message brings
//!   message    DATA port | bytes
//!              LONG port | number u32 | notice u32
//!              UPDATES (port | what | value u64)*
//! ```
//!
//! A message and a notice are not ordered (G3), so that the two halves of a long notice are matched
//! by their number, whichever comes first.

use crate::token::Token;
use crate::{FabricError, LinkId, RemoteKey};

/// Bits of a notice that name its port.
pub(super) const PORT_BITS: u32 = 12;
/// Links that a shared connection can have in its life.
pub(super) const PORTS_MAX: usize = 1 << PORT_BITS;
/// Bits that are left beside the port and the mark of long notices.
const REST_BITS: u32 = 31 - PORT_BITS;
const LONG: u32 = 1 << REST_BITS;
/// Bytes in front of a message.
pub(super) const HEADER_BYTES: usize = 4;
/// Bytes of one entry of UPDATES.
pub(super) const UPDATE_BYTES: usize = 12;

/// A number of 32 bits in a place of 19: those of which bit 31 and the bits 16 to 27 are zero.
fn shorten(imm: u32) -> Option<u32> {
    let fits = imm & 0x8fff_0000 == 0;
    fits.then_some(imm >> 28 << 16 | imm & 0xffff)
}

/// The content of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Notice {
    /// The link's notice.
    Short(u32),
    /// The number of the message that brings it.
    Long(u32),
}

/// The numbers of long notices go round below this.
pub(super) const LONGS: u32 = LONG;

/// The notice of a link whose peer has this port; `None` where it needs a message.
pub(super) fn short_notice(port: u16, imm: u32) -> Option<u32> {
    Some(u32::from(port) << (32 - PORT_BITS) | shorten(imm)?)
}

/// The notice that announces a message with a long one.
pub(super) fn long_notice(port: u16, number: u32) -> u32 {
    u32::from(port) << (32 - PORT_BITS) | LONG | number
}

pub(super) fn decode_notice(imm: u32) -> (u16, Notice) {
    let (port, rest) = ((imm >> (32 - PORT_BITS)) as u16, imm & (LONG - 1));
    let notice = match imm & LONG {
        0 => Notice::Short(rest >> 16 << 28 | rest & 0xffff),
        _ => Notice::Long(rest),
    };
    (port, notice)
}

/// An update of one of the peer's ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortUpdate {
    /// Receives that were ever posted.
    Credit(u64),
    /// The link was closed.
    Closed,
}

/// A message on a shared connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    Data { port: u16, bytes: &'a [u8] },
    Long { port: u16, number: u32, imm: u32 },
    Updates(Vec<(u16, PortUpdate)>),
}

fn header(kind: u8, port: u16) -> Vec<u8> {
    let [low, high] = port.to_le_bytes();
    vec![kind, 0, low, high]
}

pub(super) fn data(port: u16, bytes: &[u8]) -> Vec<u8> {
    [&header(0, port)[..], bytes].concat()
}

pub(super) fn long(port: u16, number: u32, imm: u32) -> Vec<u8> {
    [&header(1, port)[..], &number.to_le_bytes(), &imm.to_le_bytes()].concat()
}

pub(super) fn updates<'a>(entries: impl Iterator<Item = &'a (u16, PortUpdate)>) -> Vec<u8> {
    let mut out = header(2, 0);
    for (port, update) in entries {
        let (what, value) = match update {
            PortUpdate::Credit(total) => (0_u16, *total),
            PortUpdate::Closed => (1, 0),
        };
        out.extend_from_slice(&port.to_le_bytes());
        out.extend_from_slice(&what.to_le_bytes());
        out.extend_from_slice(&value.to_le_bytes());
    }
    out
}

/// The peer's message; `None` when it is malformed.
pub(super) fn decode(message: &[u8]) -> Option<Message<'_>> {
    let (&[kind, zero, low, high], rest) = message.split_first_chunk()?;
    let port = u16::from_le_bytes([low, high]);
    match (kind, zero) {
        (0, 0) => Some(Message::Data { port, bytes: rest }),
        (1, 0) => {
            let (number, imm) = rest.split_first_chunk()?;
            let number = u32::from_le_bytes(*number);
            let imm = u32::from_le_bytes(imm.try_into().ok()?);
            (number < LONGS).then_some(Message::Long { port, number, imm })
        }
        (2, 0) if rest.len().is_multiple_of(UPDATE_BYTES) => {
            let entries = rest.chunks_exact(UPDATE_BYTES).map(|entry| {
                let port = u16::from_le_bytes([entry[0], entry[1]]);
                let value = u64::from_le_bytes(entry[4..].try_into().ok()?);
                match u16::from_le_bytes([entry[2], entry[3]]) {
                    0 => Some((port, PortUpdate::Credit(value))),
                    1 => Some((port, PortUpdate::Closed)),
                    _ => None,
                }
            });
            entries.collect::<Option<_>>().map(Message::Updates)
        }
        _ => None,
    }
}

/// Bits of a key's base that are an address; those above mark the link, except for the highest,
/// which says that a key is of no link but of all.
const BASE_BITS: u32 = 48;
const BASE_MASK: u64 = (1 << BASE_BITS) - 1;

/// Marks the keys that one end of a link issues, so that they open nothing on the shared
/// connection's other links.
///
/// The poster checks the mark: a mistake is refused at the call and does not affect the shared
/// connection. Against a process that lies it does not help, and need not: all links of a shared
/// connection are of the same two processes, and the transport's own check of the key stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark(u64);

impl Mark {
    /// The mark of the end with this port on the shared connection of this token.
    pub(super) fn new(connection: &Token, port: u16) -> Self {
        Self(mix(connection.word() ^ u64::from(port).rotate_left(40)))
    }

    fn of(self, key: &RemoteKey) -> u64 {
        let base = key.base & BASE_MASK;
        mix(mix(mix(self.0 ^ key.key) ^ base) ^ key.len) & !BASE_MASK & !RemoteKey::PUBLISHED
    }

    /// The key with the mark; `None` where its base leaves no room.
    pub(super) fn put(self, key: RemoteKey) -> Option<RemoteKey> {
        (key.base <= BASE_MASK).then(|| RemoteKey { base: key.base | self.of(&key), ..key })
    }

    /// The key without the mark; `None` when it has not this one.
    pub(super) fn take(self, key: RemoteKey) -> Option<RemoteKey> {
        let plain = RemoteKey { base: key.base & BASE_MASK, ..key };
        (key.base & !BASE_MASK == self.of(&key)).then_some(plain)
    }
}

/// The finalizer of splitmix64.
fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

const MAGIC: [u8; 8] = *b"MLSSHR\x00\x01";

/// A place on a shared connection that is offered to the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Berth {
    /// The side's end of the shared connection.
    pub(super) connection: Token,
    /// The end that it is joined with already.
    pub(super) joined: Option<Token>,
    pub(super) port: u16,
    /// Where the transport finds it.
    pub(super) place: Vec<u8>,
}

/// The address of one end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) link: LinkId,
    pub(super) berth: Berth,
    /// Where the berth is on a shared connection that is joined: one on a fresh shared connection,
    /// for a peer that is on that shared connection no more.
    pub(super) spare_berth: Option<Berth>,
}

impl Berth {
    const FIXED_BYTES: usize = 36;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.connection.bytes());
        // No end of a shared connection has this name.
        let nobody = Token::from_bytes([0; Token::BYTES]);
        out.extend_from_slice(self.joined.unwrap_or(nobody).bytes());
        out.extend_from_slice(&self.port.to_le_bytes());
        out.extend_from_slice(&(self.place.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.place);
    }

    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (fixed, rest) = bytes.split_first_chunk::<{ Self::FIXED_BYTES }>()?;
        let half = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        let token = |at: usize| {
            let bytes: [u8; Token::BYTES] = fixed[at..at + Token::BYTES].try_into().ok()?;
            (bytes != [0; Token::BYTES]).then(|| Token::from_bytes(bytes))
        };
        let (port, len) = (half(32), half(34));
        let (place, rest) = rest.split_at_checked(usize::from(len))?;
        let previous = usize::from(port) < PORTS_MAX;
        let berth = Self { connection: token(0)?, joined: token(16), port, place: place.to_vec() };
        previous.then_some((berth, rest))
    }
}

impl Address {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.link.local.to_le_bytes());
        out.extend_from_slice(&self.link.remote.to_le_bytes());
        self.berth.encode(&mut out);
        self.spare_berth.iter().for_each(|spare_berth| spare_berth.encode(&mut out));
        out
    }

    /// # Errors
    /// [`FabricError::Malformed`] for anything that [`Address::encode`] did not make.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FabricError> {
        let decoded = || {
            let rest = bytes.strip_prefix(&MAGIC)?;
            let (local, rest) = rest.split_first_chunk()?;
            let (remote, rest) = rest.split_first_chunk()?;
            let link =
                LinkId { local: u32::from_le_bytes(*local), remote: u32::from_le_bytes(*remote) };
            let (berth, rest) = Berth::decode(rest)?;
            // A berth on a joined shared connection has a spare, and no other has.
            let (spare_berth, rest) = match berth.joined {
                Some(_) => {
                    Berth::decode(rest).map(|(spare_berth, rest)| (Some(spare_berth), rest))?
                }
                None => (None, rest),
            };
            let fresh = spare_berth.as_ref().is_none_or(|spare_berth| spare_berth.joined.is_none());
            (rest.is_empty() && fresh).then_some(Self { link, berth, spare_berth })
        };
        decoded().ok_or(FabricError::Malformed { what: "address" })
    }
}

/// Whether a peer may say this on a shared connection, or tell it of a place on one.
///
/// # Panics
/// When it is something else behind being written again.
pub(crate) fn sent_on_shared_connection(bytes: &[u8]) -> bool {
    if let Ok(address) = Address::decode(bytes) {
        assert_eq!(address.encode(), bytes);
        return true;
    }
    let message = decode(bytes);
    let again = message.as_ref().map(|message| match message {
        Message::Data { port, bytes } => data(*port, bytes),
        Message::Long { port, number, imm } => long(*port, *number, *imm),
        Message::Updates(entries) => updates(entries.iter()),
    });
    assert_eq!(again.as_deref().and_then(decode), message);
    message.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_of_rings_are_short_and_others_are_matched() {
        for imm in [0, 7, 0xffff, 0x1000_0000, 0x4000_ffff, 0x7000_1234] {
            let sent = short_notice(4095, imm).unwrap();
            assert_eq!(decode_notice(sent), (4095, Notice::Short(imm)));
        }
        for imm in [0x1_0000, 0x8000_0000, u32::MAX, 0x0800_0000] {
            assert_eq!(short_notice(1, imm), None, "{imm:#x}");
        }
        assert_eq!(decode_notice(long_notice(9, LONGS - 1)), (9, Notice::Long(LONGS - 1)));
    }

    #[test]
    fn messages_survive_and_garbage_is_nothing() {
        assert_eq!(decode(&data(5, b"x")), Some(Message::Data { port: 5, bytes: b"x" }));
        let sent = long(4095, 3, u32::MAX);
        assert_eq!(decode(&sent), Some(Message::Long { port: 4095, number: 3, imm: u32::MAX }));
        assert_eq!(decode(&long(1, LONGS, 0)), None);
        let sent_updates = vec![(1, PortUpdate::Credit(u64::MAX)), (2, PortUpdate::Closed)];
        let sent = updates(sent_updates.iter());
        assert_eq!(decode(&sent), Some(Message::Updates(sent_updates)));
        assert_eq!(decode(&sent[..sent.len() - 1]), None);
        for garbage in [&[][..], &[0, 0, 0], &[3, 0, 0, 0], &[0, 1, 0, 0], &[1, 0, 0, 0, 0]] {
            assert_eq!(decode(garbage), None, "{garbage:?}");
        }
    }

    #[test]
    fn a_mark_is_of_one_end_and_covers_all_of_the_key() {
        let connection = Token::from_bytes([7; Token::BYTES]);
        let (own, other) = (Mark::new(&connection, 1), Mark::new(&connection, 2));
        let plain = RemoteKey { key: 0x1234_5678_9abc, base: 64, len: 4096 };
        let marked = own.put(plain).unwrap();
        assert_eq!(own.take(marked), Some(plain));
        assert_eq!(other.take(marked), None);
        for wrong in [
            RemoteKey { key: marked.key ^ 1, ..marked },
            RemoteKey { base: marked.base + 64, ..marked },
            RemoteKey { len: marked.len + 1, ..marked },
        ] {
            assert_eq!(own.take(wrong), None);
        }
        assert_eq!(own.put(RemoteKey { base: 1 << 48, ..plain }), None);
    }

    #[test]
    fn addresses_survive_and_no_part_of_one_is_one() {
        let token = |byte| Token::from_bytes([byte; Token::BYTES]);
        let fresh = Berth { connection: token(9), joined: None, port: 4095, place: vec![1, 2, 3] };
        let joined = Berth { connection: token(8), joined: Some(token(7)), port: 0, place: vec![] };
        let link = LinkId { local: 3, remote: 1 << 20 };
        for address in [
            Address { link, berth: fresh.clone(), spare_berth: None },
            Address { link, berth: joined, spare_berth: Some(fresh) },
        ] {
            let bytes = address.encode();
            assert_eq!(Address::decode(&bytes).unwrap(), address);
            for end in 0..bytes.len() {
                assert!(Address::decode(&bytes[..end]).is_err());
            }
            assert!(Address::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }
}
