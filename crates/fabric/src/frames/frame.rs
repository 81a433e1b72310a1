//! Frames: a header of fixed size, and for some operations a body.
//!
//! On a connection that is checked a header ends with the checksum (CRC-32C) of the frame's number
//! and of the header, in which that of the body stands. The number itself does not travel: frames
//! that are missing, repeated or in another order do not fit.

use crc32c::{crc32c, crc32c_append};

/// The kind of a request or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    /// Body to `key + offset`.
    Write = 1,
    /// As `Write`, then a notice with `imm`.
    WriteNotify = 2,
    /// Asks for `len` bytes from `key + offset`.
    Read = 3,
    /// Body: the number to add to the word at `key + offset`.
    FetchAdd = 4,
    /// Body: the expected value of the word at `key + offset`, and its replacement.
    CompareSwap = 5,
    /// Body: a message.
    Send = 6,
    /// `offset`: receives posted since the connection began; `key`: writes and messages applied.
    Credit = 7,
    /// Body: the bytes that a `Read` asked for.
    ReadData = 8,
    /// `offset`: the old value that an atomic found.
    Word = 9,
    /// The operation `id` was refused, and the connection ends.
    Nak = 10,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) op: Op,
    /// Number of a notice.
    pub(super) imm: u32,
    /// Bytes of the body, or that a `Read` asks for.
    pub(super) len: u32,
    /// The export.
    pub(super) key: u64,
    /// Bytes after the first byte of the export's slab, or a value.
    pub(super) offset: u64,
    /// The poster's name of the operation.
    pub(super) id: u64,
    /// The checksum of the body; 0 where nothing is checked, and without a body.
    pub(super) sum: u32,
}

impl Header {
    /// Bytes on the wire.
    pub(super) const BYTES: usize = 44;
    /// Where the checksum of the header is.
    const CHECK: usize = 40;

    /// A header of which nothing else is used.
    pub(super) fn new(op: Op, id: u64) -> Self {
        Self { op, imm: 0, len: 0, key: 0, offset: 0, id, sum: 0 }
    }

    /// Little-endian: op and padding to 4, imm, len, sum, key, offset, id, and the checksum of all
    /// this for the frame of this number, or 0 without one.
    pub(super) fn encode(&self, number: Option<u64>) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0] = self.op as u8;
        out[4..8].copy_from_slice(&self.imm.to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[12..16].copy_from_slice(&self.sum.to_le_bytes());
        out[16..24].copy_from_slice(&self.key.to_le_bytes());
        out[24..32].copy_from_slice(&self.offset.to_le_bytes());
        out[32..Self::CHECK].copy_from_slice(&self.id.to_le_bytes());
        let check = check(number, &out[..Self::CHECK]);
        out[Self::CHECK..].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// The inverse of [`Header::encode`].
    ///
    /// # Errors
    /// [`Unfit::Damaged`] where the checksum does not fit, [`Unfit::Malformed`] for an unknown
    /// operation or padding that is not zero.
    pub(super) fn decode(bytes: &[u8; Self::BYTES], number: Option<u64>) -> Result<Self, Unfit> {
        if bytes[Self::CHECK..] != check(number, &bytes[..Self::CHECK]).to_le_bytes() {
            return Err(Unfit::Damaged);
        }
        Self::fields(bytes).ok_or(Unfit::Malformed)
    }

    fn fields(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let op = match bytes[0] {
            1 => Op::Write,
            2 => Op::WriteNotify,
            3 => Op::Read,
            4 => Op::FetchAdd,
            5 => Op::CompareSwap,
            6 => Op::Send,
            7 => Op::Credit,
            8 => Op::ReadData,
            9 => Op::Word,
            10 => Op::Nak,
            _ => return None,
        };
        if bytes[1..4] != [0; 3] {
            return None;
        }
        let quad = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some(Self {
            op,
            imm: quad(4)?,
            len: quad(8)?,
            sum: quad(12)?,
            key: word(16)?,
            offset: word(24)?,
            id: word(32)?,
        })
    }

    /// Bytes of the body that follows.
    pub(super) fn body(&self) -> usize {
        match self.op {
            Op::Read => 0,
            _ => self.len as usize,
        }
    }
}

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfit {
    /// They are not those that were sent.
    Damaged,
    /// The peer does not speak the protocol.
    Malformed,
}

/// The checksum of a header's fields in the frame of this number; 0 without one.
fn check(number: Option<u64>, fields: &[u8]) -> u32 {
    number.map_or(0, |number| crc32c_append(crc32c(&number.to_le_bytes()), fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Op; 10] = [
        Op::Write,
        Op::WriteNotify,
        Op::Read,
        Op::FetchAdd,
        Op::CompareSwap,
        Op::Send,
        Op::Credit,
        Op::ReadData,
        Op::Word,
        Op::Nak,
    ];

    #[test]
    fn a_header_survives_the_wire() {
        for op in ALL {
            let (key, offset, id) = (u64::MAX, 5, 1 << 63);
            let header = Header { op, imm: 1 << 31, len: 77, key, offset, id, sum: 9 };
            for number in [None, Some(0), Some(u64::MAX)] {
                assert_eq!(Header::decode(&header.encode(number), number), Ok(header));
            }
        }
    }

    #[test]
    fn unknown_operations_and_padding_are_refused() {
        let good = Header::new(Op::Send, 9).encode(None);
        for (at, value) in [(0, 0), (0, 11), (0, 255), (1, 1), (3, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Header::decode(&bad, None), Err(Unfit::Malformed), "byte {at} = {value}");
        }
    }

    #[test]
    fn each_flipped_bit_and_each_other_number_is_damage() {
        let good = Header { len: 3, sum: 8, ..Header::new(Op::Write, 9) }.encode(Some(4));
        for bit in 0..8 * Header::BYTES {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad, Some(4)), Err(Unfit::Damaged), "bit {bit}");
        }
        for number in [Some(3), Some(5), None] {
            assert_eq!(Header::decode(&good, number), Err(Unfit::Damaged), "{number:?}");
        }
    }
}
