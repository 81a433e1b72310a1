//! Two ends that send each other frames of every size, hold some of what they receive, and check
//! every byte.

use std::sync::Arc;

use channel::{
    Class, Header, Link, LinkError, LinkMemory, Payload, ReceivedFrame, RingConfig, SharedRegion,
    Transfer,
};
use fabric::Fabric;

use crate::ends::endpoints;

/// A generator that needs no crate: the tests want many numbers, not good ones.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % n
    }
}

/// What a test asks of an end.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Data frames to send.
    pub frames: u64,
    /// Every this many data frames a control frame is sent as well; 0 is never.
    pub control_every: u64,
    /// Payloads held at once before some are dropped.
    pub hold: usize,
}

/// One end under load.
pub struct Side {
    pub link: Link,
    pub load: Load,
    rng: Rng,
    salt: u64,
    sent: u64,
    control_due: u64,
    received: [u64; 2],
    held: Vec<(u64, Payload)>,
}

/// Numbers the frames of an end within their class.
fn fill(seed: u64, bytes: &mut [u8]) {
    let mut rng = Rng(seed);
    for chunk in bytes.chunks_mut(8) {
        let word = rng.below(1 << 31) * 0x1_0000_0001;
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

fn is_filled(seed: u64, bytes: &[u8]) -> bool {
    let mut expected = vec![0; bytes.len()];
    fill(seed, &mut expected);
    expected == bytes
}

impl Side {
    pub fn new(link: Link, load: Load, seed: u64, salt: u64) -> Self {
        Self {
            link,
            load,
            rng: Rng(seed ^ salt << 32),
            salt,
            sent: 0,
            control_due: 0,
            received: [0; 2],
            held: Vec::new(),
        }
    }

    /// Sends, receives, holds and drops a little, as the generator has it.
    ///
    /// # Errors
    /// What the link says, or which frame was wrong.
    pub fn act(&mut self) -> Result<(), String> {
        let broken = |error: LinkError| error.to_string();
        for _ in 0..self.rng.below(4) {
            self.send();
        }
        if self.rng.below(3) == 0 {
            self.link.flush();
        }
        // Half of the ends never poll where they need not.
        if self.salt == 1 || self.link.has_news() {
            self.link.poll().map_err(broken)?;
        }
        while let Some(frame) = self.link.recv().map_err(broken)? {
            self.receive(frame)?;
        }
        while self.held.len() > self.load.hold || (!self.held.is_empty() && self.rng.below(2) == 0)
        {
            let (seed, payload) =
                self.held.swap_remove(self.rng.below(self.held.len() as u64) as usize);
            if !is_filled(seed, &payload) {
                return Err("a payload changed while it was held".into());
            }
        }
        Ok(())
    }

    fn send(&mut self) {
        let class = if self.control_due > 0 { Class::Control } else { Class::Data };
        if class == Class::Data && self.sent == self.load.frames {
            return;
        }
        let max = self.link.config().payload_max() as u64;
        let len = match self.rng.below(8) {
            0 => 0,
            1 => max,
            _ => self.rng.below(max),
        } as usize;
        let number = match class {
            Class::Data => self.sent,
            Class::Control => self.sent / self.load.control_every,
        };
        let seed = number << 8 | self.salt;
        // Some payloads stay in the region, where there is one.
        let region = self.link.region().filter(|_| len > 0 && self.rng.below(3) > 0).cloned();
        let lent = match region {
            Some(region) => {
                let Some(mut writer) = region.reserve() else { return };
                fill(seed, &mut writer.payload_mut()[..len]);
                Some(writer.seal(len))
            }
            None => None,
        };
        let Some(mut slot) = self.link.reserve(class) else { return };
        let header = Header {
            kind: (class == Class::Control).into(),
            flags: len as u8,
            colour: number as u16,
            operator: number as u32,
            port: len as u32,
            words: [seed, number.wrapping_neg(), !number],
        };
        match lent {
            Some(payload) => slot.lend(header, &payload),
            None => {
                fill(seed, &mut slot.payload_mut()[..len]);
                slot.publish(header, len);
            }
        }
        match class {
            Class::Control => self.control_due -= 1,
            Class::Data => {
                self.sent += 1;
                let due = self.load.control_every > 0
                    && self.sent.is_multiple_of(self.load.control_every);
                self.control_due += u64::from(due);
            }
        }
    }

    fn receive(&mut self, frame: ReceivedFrame) -> Result<(), String> {
        let ReceivedFrame { header, payload } = frame;
        let class = usize::from(header.kind);
        let [salted, negative, inverse] = header.words;
        let number = salted >> 8;
        let expected = self.received[class] + class as u64;
        let colour = number as u16;
        if (number, negative, inverse, header.colour)
            != (expected, number.wrapping_neg(), !number, colour)
        {
            return Err(format!("frame {number} of class {class} where {expected} belongs"));
        }
        if payload.len() != header.port as usize || !is_filled(salted, &payload) {
            return Err(format!("frame {number} of class {class} has other bytes"));
        }
        assert!(payload.as_ptr().addr().is_multiple_of(64), "a payload is aligned");
        self.received[class] += 1;
        self.held.push((salted, payload));
        Ok(())
    }

    /// True when only the peer can bring anything on.
    #[allow(dead_code, reason = "the simulator does not sleep")]
    pub fn is_idle(&mut self) -> bool {
        let wants = match self.control_due {
            0 if self.sent == self.load.frames => return self.held.is_empty(),
            0 => Class::Data,
            _ => Class::Control,
        };
        self.held.is_empty() && self.link.reserve(wants).is_none()
    }

    /// True when all was sent, and all of the peer's frames have arrived and were dropped.
    pub fn is_done(&self, peer: &Load) -> bool {
        let control = peer.frames.checked_div(peer.control_every).unwrap_or(0);
        self.sent == self.load.frames
            && self.control_due == 0
            && self.received == [peer.frames, control]
            && self.held.is_empty()
    }
}

/// Slots of a region: fewer than of a ring, so that they run out.
const REGION_SLOTS: u32 = 2;

/// Makes both ends of a link and attaches them. The memory of the first lies between that of two
/// others, and the second has slabs of its own.
pub fn links(
    a: &Arc<dyn Fabric>,
    b: &Arc<dyn Fabric>,
    blocking: bool,
    config: RingConfig,
) -> (Link, Link) {
    let mut between = LinkMemory::of_peer(&**a, &config, 3).expect("memory");
    let alone = LinkMemory::new(&**b, &config).expect("memory");
    links_within(a, b, blocking, [between.swap_remove(1), alone])
}

/// The same in memory that is there.
pub fn links_within(
    a: &Arc<dyn Fabric>,
    b: &Arc<dyn Fabric>,
    blocking: bool,
    [of_here, of_there]: [LinkMemory; 2],
) -> (Link, Link) {
    let (here, there) = endpoints(&**a, &**b, blocking);
    let link = |fabric: &Arc<dyn Fabric>, memory, endpoint| {
        let link = Link::within(memory, endpoint, 7).expect("a link");
        let config = *link.config();
        if config.transfer == Transfer::Region {
            link.lending(SharedRegion::new(fabric, &config, REGION_SLOTS).expect("a region"))
        } else {
            link
        }
    };
    let (mut here, mut there) = (link(a, of_here, here), link(b, of_there, there));
    here.attach(&there.descriptor()).expect("equal ends");
    there.attach(&here.descriptor()).expect("equal ends");
    (here, there)
}
