//! What the ends of a link tell each other before the first frame.
//!
//! ```text
//!   0 "MSRING" | 6 version u16 | 8 slots u32 | 12 slot_bytes u32 | 16 control_slots u32
//!  20 payload_crc u8 | 21 publish u8 | 22 transfer u8 | 23 zero u8 | 24 incarnation u32
//!  28 frames taken u64 | 36 key of the ring 24
//! ```

use fabric::{Publish, RemoteKey};

use crate::{LinkError, RingConfig, Transfer};

const MAGIC: &[u8; 6] = b"MSRING";
/// Of this layout, of the trailer and of the notices together.
const VERSION: u16 = 3;
const BYTES: usize = 36 + RemoteKey::BYTES;

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub config: RingConfig,
    pub publish: Publish,
    pub incarnation: u32,
    /// Frames that this end has taken in earlier incarnations.
    pub taken: u64,
    pub ring: RemoteKey,
}

impl Descriptor {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.common().to_vec();
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.taken.to_le_bytes());
        out.extend_from_slice(&self.ring.encode());
        out
    }

    /// Checks a peer's descriptor against ours; returns the frames that it has taken, and the key
    /// of its ring.
    pub fn check(&self, peer: &[u8]) -> Result<(u64, RemoteKey), LinkError> {
        let refuse = |detail: &str| Err(LinkError::Descriptor { detail: detail.into() });
        let (Some((theirs, rest)), BYTES) = (peer.split_first_chunk::<24>(), peer.len()) else {
            return refuse("its descriptor has another length");
        };
        let ours = self.common();
        for (range, what) in [
            (0..6, "not a descriptor of a ring"),
            (6..8, "another version of the protocol"),
            (8..12, "slots differ"),
            (12..16, "slot_bytes differ"),
            (16..20, "control_slots differ"),
            (20..21, "payload_crc differs"),
            (21..22, "its fabric publishes in another way"),
            (22..24, "one end writes frames and the other reads them"),
        ] {
            if ours[range.clone()] != theirs[range] {
                return refuse(what);
            }
        }
        let (incarnation, rest) = rest.split_at(4);
        let (taken, key) = rest.split_at(8);
        let theirs = number(incarnation) as u32;
        if theirs != self.incarnation {
            return Err(LinkError::Incarnation { ours: self.incarnation, theirs });
        }
        let key = RemoteKey::decode(key)?;
        if key.len < self.config.memory_bytes().ring as u64 {
            return refuse("its ring is too small");
        }
        Ok((number(taken), key))
    }

    /// The part that is the same at both ends.
    fn common(&self) -> [u8; 24] {
        let mut out = [0; 24];
        out[..6].copy_from_slice(MAGIC);
        out[6..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..12].copy_from_slice(&self.config.slots.to_le_bytes());
        out[12..16].copy_from_slice(&self.config.slot_bytes.to_le_bytes());
        out[16..20].copy_from_slice(&self.config.control_slots.to_le_bytes());
        out[20] = self.config.payload_crc.into();
        out[21] = match self.publish {
            Publish::InOrderPoll => 1,
            Publish::Notify => 2,
            Publish::NotifyCounted => 3,
        };
        out[22] = match self.config.transfer {
            Transfer::Write => 0,
            Transfer::Read => 1,
        };
        out
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rfold(0, |high, byte| high << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> Descriptor {
        let config = RingConfig::default();
        let len = config.memory_bytes().ring as u64;
        let ring = RemoteKey { key: 1, base: 2, len };
        Descriptor { config, publish: Publish::Notify, incarnation: 5, taken: 1 << 40, ring }
    }

    #[test]
    fn equal_ends_fit() {
        let ours = descriptor();
        assert_eq!(ours.check(&ours.encode()).expect("equal"), (ours.taken, ours.ring));
    }

    #[test]
    fn each_difference_is_refused() {
        let ours = descriptor();
        let bytes = ours.encode();
        for at in 0..28 {
            let mut other = bytes.clone();
            other[at] ^= 0x10;
            let error = ours.check(&other).expect_err("one byte differs");
            let incarnation = matches!(error, LinkError::Incarnation { ours: 5, .. });
            assert_eq!(incarnation, at >= 24, "byte {at}: {error}");
        }
        for len in 0..BYTES {
            ours.check(&bytes[..len]).expect_err("cut short");
        }
        let mut small = ours;
        small.ring.len -= 1;
        ours.check(&small.encode()).expect_err("a smaller ring");
    }
}
