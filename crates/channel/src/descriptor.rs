//! What the ends of a link tell each other before the first frame.
//!
//! ```text
//!   0 "MSRING" | 6 version u16 | 8 slots u32 | 12 slot_bytes u32 | 16 control_slots u32
//!  20 payload_crc u8 | 21 publish u8 | 22 transfer u8 | 23 zero u8 | 24 incarnation u32
//!  28 frames taken u64 | 36 key of the ring 24 | 60 key of the region 24, zero where there is none
//! ```

use fabric::{Publish, RemoteKey};

use crate::{LinkError, RingConfig, Transfer};

const MAGIC: &[u8; 6] = b"MSRING";
/// Of this layout, of the trailer and of the notices together.
const VERSION: u16 = 4;
const BYTES: usize = 36 + 2 * RemoteKey::BYTES;

/// One end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub config: RingConfig,
    pub publish: Publish,
    pub incarnation: u32,
    /// Frames that this end has taken in earlier incarnations.
    pub taken: u64,
    pub ring: RemoteKey,
    /// The region that this end lends to its peers, if it does.
    pub region: Option<RemoteKey>,
}

/// The checked fields of a peer's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerMemory {
    /// Frames that it has taken.
    pub taken: u64,
    pub ring: RemoteKey,
    pub region: Option<RemoteKey>,
}

/// Stands for a region that is not there.
const NO_REGION: RemoteKey = RemoteKey { key: 0, base: 0, len: 0 };

impl Descriptor {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.common().to_vec();
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.taken.to_le_bytes());
        out.extend_from_slice(&self.ring.encode());
        out.extend_from_slice(&self.region.unwrap_or(NO_REGION).encode());
        out
    }

    /// Checks a peer's descriptor against ours; returns the frames that it has taken, and the key
    /// of its ring.
    pub fn check(&self, peer: &[u8]) -> Result<PeerMemory, LinkError> {
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
            (22..24, "one end writes frames and the other reads them, or only one has a region"),
        ] {
            if ours[range.clone()] != theirs[range] {
                return refuse(what);
            }
        }
        let (incarnation, rest) = rest.split_at(4);
        let (taken, keys) = rest.split_at(8);
        let (key, region) = keys.split_at(RemoteKey::BYTES);
        let theirs = number(incarnation) as u32;
        if theirs != self.incarnation {
            return Err(LinkError::Incarnation { ours: self.incarnation, theirs });
        }
        let key = RemoteKey::decode(key)?;
        if key.len < self.config.memory_bytes().ring as u64 {
            return refuse("its ring is too small");
        }
        let region = Some(RemoteKey::decode(region)?).filter(|region| region.len > 0);
        if region.is_some() && self.config.transfer != Transfer::Region {
            return refuse("it has a region that nobody is to read");
        }
        Ok(PeerMemory { taken: number(taken), ring: key, region })
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
            Transfer::Region => 2,
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
        let (publish, taken, region) = (Publish::Notify, 1 << 40, None);
        Descriptor { config, publish, incarnation: 5, taken, ring, region }
    }

    #[test]
    fn equal_ends_fit() {
        let ours = descriptor();
        let Descriptor { taken, ring, region, .. } = ours;
        let expected = PeerMemory { taken, ring, region };
        assert_eq!(ours.check(&ours.encode()).expect("equal"), expected);
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
