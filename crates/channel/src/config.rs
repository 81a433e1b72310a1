//! The dimensions of a ring, and the memory that follows from them.

use crate::LinkError;
use crate::protocol::SLOTS_MAX;
use crate::trailer::TRAILER_BYTES;

/// The dimensions of both rings of a link; equal at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RingConfig {
    /// Slots of a ring, 2 to 64.
    pub slots: u32,
    /// Bytes of a slot: a multiple of 64, of which the last 64 are the trailer.
    pub slot_bytes: u32,
    /// Slots that data frames leave free for control frames: at least 1, less than `slots`.
    pub control_slots: u32,
    /// Whether the checksum covers the payload; it always covers the trailer. Where it does, a
    /// frame that does not fit ends the connection, over which it may be sent again, and not the
    /// link.
    pub payload_crc: bool,
    /// Who moves frames.
    pub transfer: Transfer,
}

/// Which end moves a frame from one memory to the other. Which is faster depends on the device:
/// `millstream bench wire` measures it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Transfer {
    /// The producer writes into the consumer's ring (S1).
    #[default]
    Write,
    /// The producer keeps the ring and announces how far it is filled; the consumer reads (W3). Its
    /// memory cannot be written by anybody. A frame costs a notice, and a way more.
    Read,
    /// As [`Write`](Self::Write), and a payload for many lies once in a region of its producer
    /// ([`SharedRegion`](crate::SharedRegion)), from where each consumer reads it (W3).
    Region,
}

impl RingConfig {
    /// Largest slot: 16 MiB.
    pub const SLOT_BYTES_MAX: u32 = 16 << 20;

    /// Checks the dimensions.
    ///
    /// # Errors
    /// [`LinkError::Config`] that names the first dimension out of bounds. The caller is at fault.
    pub fn validate(&self) -> Result<(), LinkError> {
        let refuse = |detail: String| Err(LinkError::Config { detail });
        if !(2..=SLOTS_MAX).contains(&self.slots) {
            return refuse(format!("slots must be 2 to {SLOTS_MAX}, not {}", self.slots));
        }
        if !self.slot_bytes.is_multiple_of(64)
            || !(128..=Self::SLOT_BYTES_MAX).contains(&self.slot_bytes)
        {
            return refuse(format!(
                "slot_bytes must be a multiple of 64 from 128 to {}, not {}",
                Self::SLOT_BYTES_MAX,
                self.slot_bytes
            ));
        }
        if self.control_slots == 0 || self.control_slots >= self.slots {
            return refuse(format!(
                "control_slots must be 1 to {}, not {}",
                self.slots - 1,
                self.control_slots
            ));
        }
        Ok(())
    }

    /// What one end of a link registers.
    pub fn memory_bytes(&self) -> MemoryNeed {
        let ring = self.slots as usize * self.slot_bytes as usize;
        MemoryNeed { ring, staging: ring }
    }

    /// Bytes of the largest payload.
    pub fn payload_max(&self) -> usize {
        self.slot_bytes as usize - TRAILER_BYTES
    }
}

/// 8 slots of 64 KiB, 2 of them for control: the size at which Slash, DFI and the shuffle paper
/// agree.
impl Default for RingConfig {
    fn default() -> Self {
        Self {
            slots: 8,
            slot_bytes: 64 << 10,
            control_slots: 2,
            payload_crc: false,
            transfer: Transfer::Write,
        }
    }
}

/// What each end of a link decides for itself, without the other's knowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Frames of at most this many bytes, padding and trailer included, are handed over by value: a
    /// device then need not fetch them. What the endpoint takes by value bounds it as well.
    pub inline_bytes: usize,
    /// Each how-many-th operation asks for its completion; 0 leaves it to the link, which asks as
    /// seldom as queue and ring allow. Bounded by a quarter of either.
    pub signal_every: u32,
    /// Slots that have to be released before their credit is worth a notice of its own (Q2); 0
    /// leaves it to the link: a quarter of the ring. Bounded by the slots for data.
    pub credit_slots: u32,
}

/// All by value that may go so, and as few completions as possible. Beyond 220 bytes devices take
/// longer to accept bytes by value than to fetch them.
impl Default for Tuning {
    fn default() -> Self {
        Self { inline_bytes: 220, signal_every: 0, credit_slots: 0 }
    }
}

/// Registered memory of one end of a link, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Where the peer's frames land.
    pub ring: usize,
    /// Where our own frames are filled and stay until their writes have completed.
    pub staging: usize,
}

impl MemoryNeed {
    /// The sum.
    pub fn total(&self) -> usize {
        self.ring + self.staging
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_needs_a_mebibyte() {
        let config = RingConfig::default();
        config.validate().expect("the default");
        assert_eq!(config.memory_bytes().total(), 1 << 20);
        assert_eq!(config.payload_max(), 65536 - 64);
    }

    #[test]
    fn each_bound_is_named() {
        let ok = RingConfig::default();
        for (config, word) in [
            (RingConfig { slots: 1, ..ok }, "slots"),
            (RingConfig { slots: 65, ..ok }, "slots"),
            (RingConfig { slot_bytes: 100, ..ok }, "slot_bytes"),
            (RingConfig { slot_bytes: 64, ..ok }, "slot_bytes"),
            (RingConfig { slot_bytes: 32 << 20, ..ok }, "slot_bytes"),
            (RingConfig { control_slots: 0, ..ok }, "control_slots"),
            (RingConfig { control_slots: 8, ..ok }, "control_slots"),
        ] {
            let error = config.validate().expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
