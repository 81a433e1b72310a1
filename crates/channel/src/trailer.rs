//! The last 64 bytes of a slot: what a frame says of itself.
//!
//! ```text
//!   0 len u31, borrowed u1 | 4 crc u32 | 8 port u32 | 12 operator u32 | 16 kind u8 | 17 flags u8
//!  18 colour u16 | 20 statement u32 | 24 words 3 × u64 | 48 credit u64 | 56 commit u64
//! ```
//!
//! Little-endian. The checksum is CRC-32C of the trailer with `crc` zero, and then of the payload
//! where the link is configured so. Of a *borrowed* frame
//! the payload is a reference to one in the sender's region. The commit word comes last, so that a
//! write placed in order shows it last.

use fabric::CACHE_LINE;

/// Bytes of a trailer: one cache line.
pub(crate) const TRAILER_BYTES: usize = CACHE_LINE;
/// Where the commit word is.
pub(crate) const COMMIT_OFFSET: usize = 56;

/// Set beside the length of a frame whose payload is a reference.
const BORROWED: u64 = 1 << 31;

/// A trailer as words in the order of memory.
pub(crate) type Words = [u64; TRAILER_BYTES / 8];

/// The sender's part of a trailer. The ring carries it and reads none of it: what a field means is
/// said by the layer that numbers the kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Header {
    /// The kind of the frame, in the sender's numbering.
    pub kind: u8,
    /// Yes or no, a bit each, as the kind defines them.
    pub flags: u8,
    /// The round of the rows, modulo 2^16.
    pub colour: u16,
    /// The operator that the frame is for; several share the link (Q1).
    pub operator: u32,
    /// The input of that operator.
    pub port: u32,
    /// Numbers, as the kind defines them.
    pub words: [u64; 3],
}

/// A whole trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub header: Header,
    /// The statement of the session that the frame is of.
    pub statement: u32,
    /// Bytes of payload, without padding.
    pub len: u32,
    /// The payload says where in the sender's region the payload is.
    pub borrowed: bool,
    /// Piggybacked credit of the reverse ring.
    pub credit: u64,
    pub commit: u64,
}

impl Trailer {
    /// The words to be written, with the checksum of `checked`: the payload, or nothing.
    pub fn encode(&self, checked: &[u8]) -> Words {
        let header = &self.header;
        let mut words = [
            u64::from(self.len) | if self.borrowed { BORROWED } else { 0 },
            u64::from(header.operator) << 32 | u64::from(header.port),
            u64::from(self.statement) << 32
                | u64::from(header.colour) << 16
                | u64::from(header.flags) << 8
                | u64::from(header.kind),
            header.words[0],
            header.words[1],
            header.words[2],
            self.credit,
            self.commit,
        ];
        words[0] |= u64::from(crc(&words, checked)) << 32;
        words
    }

    /// Takes apart a copy of what a peer wrote. Bounds are checked here; [`is_intact`] checks the
    /// rest.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(words: &Words, payload_max: usize) -> Result<Self, String> {
        let len = (words[0] & (BORROWED - 1)) as u32;
        if len as usize > payload_max {
            return Err(format!("a frame of {len} bytes in a slot for {payload_max}"));
        }
        Ok(Self {
            header: Header {
                kind: words[2] as u8,
                flags: (words[2] >> 8) as u8,
                colour: (words[2] >> 16) as u16,
                operator: (words[1] >> 32) as u32,
                port: words[1] as u32,
                words: [words[3], words[4], words[5]],
            },
            statement: (words[2] >> 32) as u32,
            len,
            borrowed: words[0] & BORROWED != 0,
            credit: words[6],
            commit: words[7],
        })
    }
}

/// Whether the checksum of a trailer fits it and `checked`.
pub(crate) fn is_intact(words: &Words, checked: &[u8]) -> bool {
    let mut bare = *words;
    bare[0] &= 0xffff_ffff;
    crc(&bare, checked) == (words[0] >> 32) as u32
}

fn crc(words: &Words, checked: &[u8]) -> u32 {
    let mut bytes = [0; TRAILER_BYTES];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    let crc = crc32c::crc32c(&bytes);
    if checked.is_empty() { crc } else { crc32c::crc32c_append(crc, checked) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trailer() -> Trailer {
        let header = Header {
            kind: 3,
            flags: 0x81,
            colour: 0xfeed,
            operator: 0xdead_beef,
            port: 12_345,
            words: [u64::MAX - 1, 1 << 63, 42],
        };
        let (statement, commit) = (0x0102_0304, 1 << 32 | 77);
        Trailer { header, statement, len: 100, borrowed: true, credit: 9, commit }
    }

    #[test]
    fn a_trailer_survives_the_wire() {
        let words = trailer().encode(b"payload");
        assert!(is_intact(&words, b"payload"));
        assert_eq!(Trailer::decode(&words, 100), Ok(trailer()));
    }

    #[test]
    fn each_flipped_bit_is_noticed() {
        let words = trailer().encode(&[]);
        for bit in 0..512 {
            let mut bad = words;
            bad[bit / 64] ^= 1 << (bit % 64);
            assert!(!is_intact(&bad, &[]), "bit {bit}");
        }
        let words = trailer().encode(&[7; 100]);
        assert!(!is_intact(&words, &[8; 100]));
        assert!(!is_intact(&words, &[]));
    }

    #[test]
    fn bounds_are_checked() {
        let words = trailer().encode(&[]);
        Trailer::decode(&words, 99).expect_err("longer than a slot");
    }
}
