//! Frames of a ring as a peer may write them, among them those that name a payload in its region.

use channel::{Link, LinkError, ReceivedFrame, RingConfig, Transfer};
use fabric::sim::{SimNet, SimOptions};
use fabric::{Endpoint, Fabric, Flags, LinkId, OpId, Publish, RemoteKey, RemoteRange, Src};

/// Slots of the ring, and bytes of each.
const SLOTS: u32 = 4;
const SLOT_BYTES: usize = 1024;
/// Bytes behind the payload.
pub const TRAILER_BYTES: usize = 64;
/// Bytes of a payload at most.
pub const PAYLOAD_MAX: usize = SLOT_BYTES - TRAILER_BYTES;
/// Bytes of the peer's region.
pub const REGION_BYTES: usize = 31 * 64;
/// The connection of the link.
const INCARNATION: u32 = 7;
/// The length of a frame whose payload is a reference has this bit.
pub const BORROWED: u32 = 1 << 31;

/// A bit of the first byte: payloads have checksums.
pub const CHECKED: u8 = 1;
/// Another: the peer has no region.
pub const WITHOUT_REGION: u8 = 2;
/// Another: the peer's region is not published any more.
pub const UNPUBLISHED: u8 = 4;
/// Another: checksums and commit words come as they are.
pub const PLAIN: u8 = 8;

/// The outcome of the frames.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The number of received frames; the link stands.
    Received(usize),
    /// One broke the protocol, for this reason.
    Refused(String),
    /// The connection ended; the link goes on over another one.
    Disconnected,
}

/// A byte of the region.
pub fn region_byte(at: usize) -> u8 {
    (at * 31 + at / 64) as u8
}

/// A link, and an endpoint that writes anything into its ring.
struct Ring {
    net: SimNet,
    publish: Publish,
    endpoint: Box<dyn Endpoint>,
    key: RemoteKey,
    link: Link,
    checks: bool,
    region: Vec<u8>,
}

/// A slot as it was written: a payload, what aligns it, and a trailer, at its end.
struct Slot([u8; SLOT_BYTES]);

/// Takes frames as they are written into a ring, at most as many as it has slots. The first byte
/// says of what kind the link is, the second one how its fabric publishes; then comes for each
/// frame `length u16 | payload | trailer`. Whatever is received must be what was written, or what
/// lies in the region where the frame says.
///
/// # Panics
/// When something else is received, or memory is refused.
pub fn read(bytes: &[u8]) -> Outcome {
    let Some((&[how, mode], mut rest)) = bytes.split_first_chunk() else {
        return Outcome::Received(0);
    };
    let publish = [Publish::InOrderPoll, Publish::Notify, Publish::NotifyCounted];
    let mut ring = Ring::new(publish[usize::from(mode) % publish.len()], how);
    let mut received = 0;
    for position in 0..SLOTS {
        let Some((length, behind)) = rest.split_first_chunk::<2>() else { break };
        let length = usize::from(u16::from_le_bytes(*length)).min(PAYLOAD_MAX).min(behind.len());
        let (payload, behind) = behind.split_at(length);
        let Some((trailer, behind)) = behind.split_first_chunk::<TRAILER_BYTES>() else { break };
        let mut slot = Slot::of(payload, trailer);
        if how & PLAIN == 0 {
            slot.seal(position, ring.checks);
        }
        ring.write(position, &slot, payload.len());
        match ring.received() {
            Ok(frames) => {
                assert!(frames.len() <= 1, "{} frames of one", frames.len());
                frames.iter().for_each(|frame| ring.check(frame, &slot));
                received += frames.len();
            }
            Err(LinkError::Protocol { detail }) => return Outcome::Refused(detail),
            Err(LinkError::Disconnected { .. }) => return Outcome::Disconnected,
            Err(other) => panic!("another kind of failure: {other}"),
        }
        rest = behind;
    }
    Outcome::Received(received)
}

impl Ring {
    fn new(publish: Publish, how: u8) -> Self {
        let net = SimNet::new(SimOptions { publish, ..SimOptions::seeded(1) });
        let (here, there) = (net.fabric(0), net.fabric(1));
        let offer = here.offer(LinkId { local: 0, remote: 1 }).expect("an offer");
        let opposite = there.offer(LinkId { local: 1, remote: 0 }).expect("an offer");
        let (of_here, of_there) = (offer.address(), opposite.address());
        let own = offer.connect(&of_there).expect("an endpoint");
        let endpoint = opposite.connect(&of_here).expect("an endpoint");
        let config = RingConfig {
            slots: SLOTS,
            slot_bytes: SLOT_BYTES as u32,
            control_slots: 1,
            payload_crc: how & CHECKED != 0,
            transfer: Transfer::Region,
        };
        let mut link = Link::new(&*here as &dyn Fabric, own, config, INCARNATION).expect("a link");
        let region: Vec<u8> = (0..REGION_BYTES).map(region_byte).collect();
        let slab = there.slab(REGION_BYTES).expect("memory");
        let range = slab.range(0..REGION_BYTES).expect("all of it");
        range.place(0, &region);
        let published = there.publish(&range).expect("a key");
        if how & UNPUBLISHED != 0 {
            there.unpublish(published);
        }
        let mut descriptor = link.descriptor();
        let (_, keys) = descriptor.split_at_mut(36);
        let (own, lent) = keys.split_at_mut(RemoteKey::BYTES);
        let key = RemoteKey::decode(own).expect("the key of its ring");
        if how & WITHOUT_REGION == 0 {
            lent.copy_from_slice(&published.encode());
        }
        link.attach(&descriptor).expect("as its own");
        net.settle();
        Self { net, publish, endpoint, key, link, checks: config.payload_crc, region }
    }

    /// Writes the end of a slot with this length of payload, and announces it.
    fn write(&mut self, position: u32, slot: &Slot, payload: usize) {
        let bytes = &slot.0[PAYLOAD_MAX - payload.next_multiple_of(64)..];
        let offset = (position as usize + 1) * SLOT_BYTES - bytes.len();
        let dst = RemoteRange { key: self.key, offset: offset as u64 };
        let source = self.net.fabric(1).slab(bytes.len()).expect("memory");
        let range = source.range(0..bytes.len()).expect("all of it");
        range.place(0, bytes);
        let imm = match self.publish {
            Publish::InOrderPoll => None,
            Publish::Notify => Some(0x1000_0000 | (position + 1)),
            Publish::NotifyCounted => Some(0x2000_0000 | position),
        };
        let (src, id) = (Src::Slab(&range), OpId(1));
        match imm {
            None => self.endpoint.write(src, dst, id, Flags::SIGNAL),
            Some(imm) => self.endpoint.write_notify(src, dst, imm, id, Flags::SIGNAL),
        }
        .expect("room in the queue");
        self.endpoint.submit();
        self.net.settle();
    }

    /// All that the link has received, including payloads that it had to read first.
    fn received(&mut self) -> Result<Vec<ReceivedFrame>, LinkError> {
        let mut frames = Vec::new();
        for _ in 0..3 {
            self.link.poll()?;
            while let Some(frame) = self.link.recv()? {
                frames.push(frame);
            }
            self.net.settle();
        }
        Ok(frames)
    }

    /// Holds a frame against what was written.
    fn check(&self, frame: &ReceivedFrame, slot: &Slot) {
        let (header, payload) = (&frame.header, frame.payload.as_ref());
        assert_eq!(header.kind, slot.trailer()[16]);
        assert_eq!(header.port, slot.word(8) as u32);
        assert_eq!(header.words, [24, 32, 40].map(|at| slot.word(at)));
        if slot.length() & BORROWED == 0 {
            return assert_eq!(payload, slot.payload());
        }
        let [offset, len] = slot.reference().expect("a reference");
        assert!(len > 0 && offset.is_multiple_of(64), "{len} bytes at {offset}");
        assert_eq!(payload, &self.region[offset..offset + len]);
    }
}

impl Slot {
    fn of(payload: &[u8], trailer: &[u8; TRAILER_BYTES]) -> Self {
        let mut slot = [0; SLOT_BYTES];
        slot[PAYLOAD_MAX - payload.len().next_multiple_of(64)..][..payload.len()]
            .copy_from_slice(payload);
        slot[PAYLOAD_MAX..].copy_from_slice(trailer);
        Self(slot)
    }

    fn trailer(&self) -> &[u8] {
        &self.0[PAYLOAD_MAX..]
    }

    fn word(&self, at: usize) -> u64 {
        let word = self.trailer()[at..].first_chunk().expect("a word of a trailer");
        u64::from_le_bytes(*word)
    }

    /// The length as it is written.
    fn length(&self) -> u32 {
        self.word(0) as u32
    }

    /// The payload of that length; none where it does not fit.
    fn payload(&self) -> &[u8] {
        let length = (self.length() & !BORROWED) as usize;
        let from = PAYLOAD_MAX.checked_sub(length.next_multiple_of(64));
        from.map_or(&[], |from| &self.0[from..from + length])
    }

    /// Offset and length of what it names.
    fn reference(&self) -> Option<[usize; 2]> {
        let (offset, rest) = self.payload().split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let [offset, len] = [u64::from_le_bytes(*offset), u32::from_le_bytes(*len).into()];
        (rest.len() == 4).then_some([offset as usize, len as usize])
    }

    /// Puts commit word and checksum right.
    fn seal(&mut self, position: u32, checks: bool) {
        let commit = u64::from(INCARNATION) << 32 | u64::from(position + 1);
        self.0[SLOT_BYTES - 8..].copy_from_slice(&commit.to_le_bytes());
        self.0[PAYLOAD_MAX + 4..][..4].fill(0);
        let mut sum = crc32c::crc32c(self.trailer());
        if checks {
            sum = crc32c::crc32c_append(sum, self.payload());
        }
        self.0[PAYLOAD_MAX + 4..][..4].copy_from_slice(&sum.to_le_bytes());
    }
}
