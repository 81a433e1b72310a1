//! Frames: a header of fixed size, and for some operations a body.

/// What a frame asks or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    /// Body to `key + offset`.
    Write = 1,
    /// As `Write`, then a notice with `imm`.
    WriteNotify = 2,
    /// Asks for `len` bytes from `key + offset`.
    Read = 3,
    /// Body: what to add to the word at `key + offset`.
    FetchAdd = 4,
    /// Body: what to expect in the word at `key + offset`, and what to replace it by.
    CompareSwap = 5,
    /// Body: a message.
    Send = 6,
    /// `offset`: receives posted since the connection began; `key`: writes and messages applied.
    Credit = 7,
    /// Body: what a `Read` asked for.
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
}

impl Header {
    /// Bytes on the wire.
    pub(super) const BYTES: usize = 40;

    /// A header of which nothing else is used.
    pub(super) fn new(op: Op, id: u64) -> Self {
        Self { op, imm: 0, len: 0, key: 0, offset: 0, id }
    }

    /// Little-endian: op and padding to 4, imm, len, padding to 16, key, offset, id.
    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0] = self.op as u8;
        out[4..8].copy_from_slice(&self.imm.to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[16..24].copy_from_slice(&self.key.to_le_bytes());
        out[24..32].copy_from_slice(&self.offset.to_le_bytes());
        out[32..].copy_from_slice(&self.id.to_le_bytes());
        out
    }

    /// The inverse of [`Header::encode`]; `None` for an unknown operation or padding that is not
    /// zero.
    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
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
        if bytes[1..4] != [0; 3] || bytes[12..16] != [0; 4] {
            return None;
        }
        let quad = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some(Self {
            op,
            imm: quad(4)?,
            len: quad(8)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        for op in [Op::Write, Op::WriteNotify, Op::Read, Op::FetchAdd, Op::CompareSwap]
            .into_iter()
            .chain([Op::Send, Op::Credit, Op::ReadData, Op::Word, Op::Nak])
        {
            let header =
                Header { op, imm: 1 << 31, len: 77, key: u64::MAX, offset: 5, id: 1 << 63 };
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
    }

    #[test]
    fn unknown_operations_and_padding_are_refused() {
        let good = Header::new(Op::Send, 9).encode();
        for (at, value) in [(0, 0), (0, 11), (0, 255), (1, 1), (3, 1), (12, 1), (15, 8)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Header::decode(&bad), None, "byte {at} = {value}");
        }
    }
}
