//! The two numbers through which the ends of a ring speak: the commit word in a slot, and the
//! notice.

use super::Breach;

/// The last word of the slot that holds the frame of `position`: the incarnation of the link and
/// the low 32 bits of `position + 1`.
///
/// Both are in one word because only a word is read at once (G1). It is a sequence number and not a
/// flag: it need not be cleared, and neither a frame of the lap before nor one of an earlier
/// incarnation can be taken for it.
pub fn commit_word(incarnation: u32, position: u64) -> u64 {
    u64::from(incarnation) << 32 | ((position + 1) & 0xffff_ffff)
}

/// What a notice says. On the wire it is kind 4 bits, group 12 bits (always 0: one link an
/// endpoint), count 16 bits, where the count is the low part of a cumulative position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notice {
    /// Frames: all below `count` were written (modes A and B).
    Frames(u16),
    /// A frame: the one at `count` was written by the write that carries this notice (mode C).
    Frame(u16),
    /// All frames below `count` were released.
    Credit(u16),
    /// The consumer has seen all below `count` and goes to sleep; it wants a notice of the next
    /// frame (mode A).
    Sleep(u16),
}

impl Notice {
    /// The immediate value.
    pub fn encode(self) -> u32 {
        let (kind, count) = match self {
            Notice::Frames(count) => (1, count),
            Notice::Frame(count) => (2, count),
            Notice::Credit(count) => (3, count),
            Notice::Sleep(count) => (4, count),
        };
        kind << 28 | u32::from(count)
    }

    /// The inverse of [`encode`](Self::encode).
    ///
    /// # Errors
    /// [`Breach::Malformed`] for any other value.
    pub fn decode(imm: u32) -> Result<Self, Breach> {
        let count = imm as u16;
        match imm >> 16 {
            0x1000 => Ok(Notice::Frames(count)),
            0x2000 => Ok(Notice::Frame(count)),
            0x3000 => Ok(Notice::Credit(count)),
            0x4000 => Ok(Notice::Sleep(count)),
            _ => Err(Breach::Malformed { imm }),
        }
    }
}

/// How far the position with the low bits `count` is beyond `from`; negative when it is behind.
/// Exact while the two are less than 2^15 apart, and a ring has 64 slots.
pub(super) fn distance(from: u64, count: u16) -> i64 {
    i64::from(count.wrapping_sub(from as u16) as i16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_survive_the_wire() {
        for count in [0, 1, 0x7fff, 0xffff] {
            for notice in [
                Notice::Frames(count),
                Notice::Frame(count),
                Notice::Credit(count),
                Notice::Sleep(count),
            ] {
                assert_eq!(Notice::decode(notice.encode()), Ok(notice));
            }
        }
    }

    #[test]
    fn other_kinds_and_groups_are_refused() {
        for imm in [0, 0x1001_0000, 0x5000_0001, 0xf000_0000] {
            assert_eq!(Notice::decode(imm), Err(Breach::Malformed { imm }));
        }
    }

    #[test]
    fn distances_cross_the_wrap_of_the_count() {
        assert_eq!(distance(0xffff, 0x0001), 2);
        assert_eq!(distance(0x1_0001, 0xffff), -2);
        assert_eq!(distance(7, 7), 0);
    }

    #[test]
    fn the_commit_word_tells_laps_and_incarnations_apart() {
        assert_ne!(commit_word(0, 0), 0, "fresh memory is no frame");
        assert_ne!(commit_word(1, 3), commit_word(2, 3));
        assert_ne!(commit_word(1, 3), commit_word(1, 11));
    }
}
