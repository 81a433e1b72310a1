//! What a peer writes is checked before it is believed: each malformed frame or notice is refused
//! with its reason.

#[path = "bed/ends.rs"]
mod ends;

use channel::{Link, LinkError, RingConfig, Transfer};
use ends::small;
use fabric::sim::{SimNet, SimOptions};
use fabric::{Endpoint, Fabric, Flags, OpId, Publish, RemoteKey, RemoteRange, Slab, Src};

const INCARNATION: u32 = 7;

/// A link, and a raw endpoint that may write anything into its ring.
struct Attack {
    net: SimNet,
    endpoint: Box<dyn Endpoint>,
    ring: RemoteKey,
    link: Link,
}

/// The words of a trailer of an empty frame at position 0.
fn honest() -> [u64; 8] {
    [0, 0, 0, 0, 0, 0, 0, u64::from(INCARNATION) << 32 | 1]
}

fn sealed(mut words: [u64; 8]) -> [u64; 8] {
    words[0] |= u64::from(crc32c::crc32c(&bytes(&words))) << 32;
    words
}

fn bytes(words: &[u64; 8]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Attack {
    fn new(publish: Publish) -> Self {
        Self::on(publish, small(false))
    }

    fn on(publish: Publish, config: RingConfig) -> Self {
        let net = SimNet::new(SimOptions { publish, ..SimOptions::seeded(1) });
        let (here, endpoint) = ends::endpoints(&*net.fabric(0), &*net.fabric(1), false);
        let fabric = net.fabric(0);
        let link = Link::new(&*fabric as &dyn Fabric, here, config, INCARNATION).expect("a link");
        let ring = RemoteKey::decode(&link.descriptor()[36..60]).expect("a key");
        net.settle();
        Self { net, endpoint, ring, link }
    }

    fn write(&mut self, trailer: &[u64; 8], imm: Option<u32>) {
        self.write_behind(&[], trailer, imm);
    }

    /// Writes a trailer behind its payload, of whole lines.
    fn write_behind(&mut self, payload: &[u8], trailer: &[u64; 8], imm: Option<u32>) {
        let src = [payload, &bytes(trailer)].concat();
        let dst = RemoteRange { key: self.ring, offset: 1024 - src.len() as u64 };
        let src = Src::Inline(&src);
        match imm {
            None => self.endpoint.write(src, dst, OpId(1), Flags::SIGNAL),
            Some(imm) => self.endpoint.write_notify(src, dst, imm, OpId(1), Flags::SIGNAL),
        }
        .expect("room in the queue");
        self.endpoint.submit();
        self.net.settle();
    }

    fn outcome(mut self) -> Result<bool, LinkError> {
        self.link.poll()?;
        Ok(self.link.recv()?.is_some())
    }

    fn refusal(self) -> String {
        match self.outcome() {
            Err(LinkError::Protocol { detail }) => detail,
            other => panic!("not refused: {other:?}"),
        }
    }
}

/// What the link says of a trailer, first where it polls the slot and then where a notice announces
/// it.
fn refused(trailer: [u64; 8], reason: &str) {
    for (publish, imm) in [
        (Publish::InOrderPoll, None),
        (Publish::Notify, Some(0x1000_0001)),
        (Publish::NotifyCounted, Some(0x2000_0000)),
    ] {
        let mut attack = Attack::new(publish);
        attack.write(&trailer, imm);
        let detail = attack.refusal();
        assert!(detail.contains(reason), "{publish:?}: {detail}");
    }
}

#[test]
fn an_honest_frame_of_the_same_form_is_accepted() {
    for (publish, imm) in [
        (Publish::InOrderPoll, None),
        (Publish::Notify, Some(0x1000_0001)),
        (Publish::NotifyCounted, Some(0x2000_0000)),
    ] {
        let mut attack = Attack::new(publish);
        attack.write(&sealed(honest()), imm);
        assert!(attack.outcome().expect("nothing is wrong with it"));
    }
}

#[test]
fn each_flipped_bit_of_a_trailer_is_refused() {
    for bit in 0..512 {
        let mut trailer = sealed(honest());
        trailer[bit / 64] ^= 1 << (bit % 64);
        refused(trailer, "");
    }
}

#[test]
fn a_length_beyond_the_slot_is_refused() {
    let mut trailer = honest();
    trailer[0] = 1024 - 64 + 1;
    refused(sealed(trailer), "961 bytes in a slot for 960");
    trailer[0] = u64::from(u32::MAX);
    refused(sealed(trailer), "in a slot for 960");
}

#[test]
fn another_incarnation_is_refused() {
    let mut trailer = honest();
    trailer[7] = u64::from(INCARNATION - 1) << 32 | 1;
    refused(sealed(trailer), "commit word");
}

#[test]
fn a_position_of_another_lap_is_refused() {
    for position in [2, 4, 5, u32::MAX] {
        let mut trailer = honest();
        trailer[7] = u64::from(INCARNATION) << 32 | u64::from(position);
        refused(sealed(trailer), "commit word");
    }
}

#[test]
fn credit_for_frames_never_sent_is_refused() {
    for credit in [1, u64::MAX] {
        let mut trailer = honest();
        trailer[6] = credit;
        refused(sealed(trailer), "but only 0 frames were published");
    }
}

#[test]
fn a_statement_that_has_not_begun_is_refused() {
    for statement in [1, u32::MAX] {
        let mut trailer = honest();
        trailer[2] = u64::from(statement) << 32;
        refused(sealed(trailer), "in statement 0");
    }
}

#[test]
fn notices_that_mean_nothing_are_refused() {
    for (imm, reason) in [
        (0, "malformed notice"),
        (0x1001_0000, "malformed notice"),
        (0xffff_ffff, "malformed notice"),
        (0x3000_0001, "but only 0 frames were published"),
        (0x1000_0005, "beyond the credit of 4"),
        (0x1000_7fff, "beyond the credit of 4"),
    ] {
        let mut attack = Attack::new(Publish::Notify);
        attack.write(&sealed(honest()), Some(imm));
        let detail = attack.refusal();
        assert!(detail.contains(reason), "{imm:#x}: {detail}");
    }
    let mut attack = Attack::new(Publish::NotifyCounted);
    attack.write(&sealed(honest()), Some(0x2000_0004));
    assert!(attack.refusal().contains("beyond the credit of 4"));
}

#[test]
fn a_notice_without_its_frame_is_refused() {
    for (publish, imm) in [(Publish::Notify, 0x1000_0001), (Publish::NotifyCounted, 0x2000_0000)] {
        let mut attack = Attack::new(publish);
        attack.write(&[0; 8], Some(imm));
        assert!(attack.refusal().contains("commit word"));
    }
}

#[test]
fn a_message_is_refused() {
    let mut attack = Attack::new(Publish::Notify);
    attack.endpoint.send(b"hello", OpId(1)).expect("room in the queue");
    attack.endpoint.submit();
    attack.net.settle();
    assert!(attack.refusal().contains("message"));
}

#[test]
fn a_refusal_is_for_ever() {
    let mut attack = Attack::new(Publish::Notify);
    attack.write(&sealed(honest()), Some(0));
    for _ in 0..2 {
        assert!(matches!(attack.link.poll(), Err(LinkError::Protocol { .. })));
        assert!(matches!(attack.link.recv(), Err(LinkError::Protocol { .. })));
    }
}

#[test]
fn descriptors_of_other_lengths_are_refused() {
    let mut attack = Attack::new(Publish::Notify);
    let descriptor = attack.link.descriptor();
    for len in 0..descriptor.len() {
        attack.link.attach(&descriptor[..len]).expect_err("cut short");
    }
    attack.link.attach(&[descriptor.clone(), vec![0]].concat()).expect_err("too long");
    attack.link.attach(&descriptor).expect("itself");
}

#[test]
fn frames_that_were_never_sent_were_not_taken() {
    let mut attack = Attack::new(Publish::Notify);
    let mut descriptor = attack.link.descriptor();
    descriptor[28] = 1;
    match attack.link.attach(&descriptor) {
        Err(LinkError::Protocol { detail }) => assert!(detail.contains("taken"), "{detail}"),
        other => panic!("{other:?}"),
    }
}

/// A link to a peer that says that it has published so many bytes, and has 1,024.
struct RegionAttack {
    attack: Attack,
    /// The memory that it has published.
    _slab: Slab,
}

impl RegionAttack {
    fn new(publish: Publish, said_bytes: u64) -> Self {
        let config = RingConfig { transfer: Transfer::Region, ..small(false) };
        let mut attack = Attack::on(publish, config);
        let fabric = attack.net.fabric(1);
        let slab = fabric.slab(1024).expect("memory");
        let key = fabric.publish(&slab.range(0..1024).expect("all of it")).expect("a key");
        let mut descriptor = attack.link.descriptor();
        let region = descriptor.len() - RemoteKey::BYTES;
        descriptor[region..].copy_from_slice(&RemoteKey { len: said_bytes, ..key }.encode());
        attack.link.attach(&descriptor).expect("it says nothing wrong");
        Self { attack, _slab: slab }
    }

    /// The frame whose payload of `len` bytes names `named` bytes from an offset of the region.
    fn name(&mut self, publish: Publish, len: u64, (offset, named): (u64, u32)) {
        let mut payload = [0; 64];
        payload[..8].copy_from_slice(&offset.to_le_bytes());
        payload[8..12].copy_from_slice(&named.to_le_bytes());
        let mut trailer = honest();
        trailer[0] = BORROWED | len;
        let imm = match publish {
            Publish::InOrderPoll => None,
            Publish::Notify => Some(0x1000_0001),
            Publish::NotifyCounted => Some(0x2000_0000),
        };
        let payload = &payload[..(len as usize).next_multiple_of(64)];
        self.attack.write_behind(payload, &sealed(trailer), imm);
    }

    /// The length of the payload that is handed out in the end.
    fn outcome(mut self) -> Result<usize, LinkError> {
        for _ in 0..100 {
            self.attack.link.poll()?;
            if let Some(frame) = self.attack.link.recv()? {
                return Ok(frame.payload.as_ref().len());
            }
            self.attack.link.flush();
            self.attack.net.settle();
        }
        panic!("neither a payload nor a failure");
    }
}

/// The mark of a payload that lies elsewhere, in the length of a trailer.
const BORROWED: u64 = 1 << 31;

const MODES: [Publish; 3] = [Publish::InOrderPoll, Publish::Notify, Publish::NotifyCounted];

#[test]
fn a_payload_in_a_region_is_read_and_one_that_cannot_be_there_is_refused() {
    for publish in MODES {
        for (offset, named) in [(0, 1), (64, 960), (960, 64)] {
            let mut peer = RegionAttack::new(publish, 1024);
            peer.name(publish, 16, (offset, named));
            assert_eq!(peer.outcome().expect("it is there"), named as usize, "{publish:?}");
        }
        for (len, named, reason) in [
            (16, (0, 0), "0 bytes from 0 of a region of 1024"),
            (16, (0, 961), "961 bytes from 0"),
            (16, (0, u32::MAX), "from 0 of a region"),
            (16, (32, 1), "1 bytes from 32"),
            (16, (1024, 1), "1 bytes from 1024"),
            (16, (128, 960), "960 bytes from 128"),
            (16, (!63, 64), "of a region of 1024"),
            (15, (0, 1), "a reference of 15 bytes"),
            (17, (0, 1), "a reference of 17 bytes"),
            (0, (0, 1), "a reference of 0 bytes"),
        ] {
            let mut peer = RegionAttack::new(publish, 1024);
            peer.name(publish, len, named);
            match peer.outcome() {
                Err(LinkError::Protocol { detail }) => {
                    assert!(detail.contains(reason), "{publish:?}: {detail}");
                }
                other => panic!("{publish:?}, {named:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_region_that_was_never_announced_is_refused() {
    let mut trailer = honest();
    trailer[0] = BORROWED;
    refused(sealed(trailer), "names a region, and the peer has none");
}

#[test]
fn a_region_that_is_smaller_than_was_said_ends_the_connection() {
    for publish in MODES {
        for said_bytes in [2048, 1 << 40, u64::MAX] {
            let mut peer = RegionAttack::new(publish, said_bytes);
            peer.name(publish, 16, (1024, 64));
            let failure = peer.outcome().expect_err("nothing is there");
            assert!(!matches!(failure, LinkError::Protocol { .. }), "{publish:?}: {failure}");
        }
    }
}
