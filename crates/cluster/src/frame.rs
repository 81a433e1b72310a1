//! The bytes of the control plane, little-endian:
//!
//! ```text
//!   length u32 | its checksum u32 | checksum of what follows u32 | kind u8 | body
//! ```
//!
//! The length counts kind and body; checksums are CRC-32C. The bytes of an exchange or a note that
//! are *places* are left out of them: where a connection is to be made may be rewritten by what
//! stands between two nodes and passes connections on, and a wrong place leads to nobody who knows
//! the token of the connection.
//!
//! A peer is believed only as far as a frame decodes completely; a longer, shorter or unknown frame
//! is its failure.

use crate::error::{Cause, NodeFailure};

/// Bytes of a frame at most, kind included.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// Bytes of a text (a reason, a step's name) at most; longer ones are cut when sent and refused
/// when received.
pub(crate) const TEXT_BYTES_MAX: usize = 64 << 10;

const HEADER_BYTES: usize = 12;

/// The messages between nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ControlFrame {
    /// I am alive.
    Beat,
    /// My contribution to the `seq`-th exchange of the job.
    Gather { seq: u64, step: String, places: bool, bytes: Vec<u8> },
    /// My progress; only the latest counts.
    Progress { bytes: Vec<u8> },
    /// The user wants the job to end.
    Cancel,
    /// I end, and this is why.
    Fail { reason: String },
    /// On how another node ended.
    Verdict(NodeFailure),
    /// I have done my part and close.
    Bye,
    /// The handshake succeeded; from rank 0 with port and process of every node.
    Welcome { nodes: Vec<(u16, u32)> },
    /// The handshake failed.
    Refuse { reason: String },
    /// A message for this node alone.
    Message { topic: u64, places: bool, bytes: Vec<u8> },
}

impl ControlFrame {
    /// Appends the frame to `out`.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        match self {
            ControlFrame::Beat => out.push(1),
            ControlFrame::Gather { seq, step, places, bytes } => {
                out.push(2);
                out.extend_from_slice(&seq.to_le_bytes());
                put_text(out, step);
                out.push((*places).into());
                out.extend_from_slice(bytes);
            }
            ControlFrame::Progress { bytes } => {
                out.push(3);
                out.extend_from_slice(bytes);
            }
            ControlFrame::Cancel => out.push(4),
            ControlFrame::Fail { reason } => {
                out.push(5);
                put_text(out, reason);
            }
            ControlFrame::Verdict(failure) => {
                out.push(6);
                put_failure(out, failure);
            }
            ControlFrame::Bye => out.push(7),
            ControlFrame::Welcome { nodes } => {
                out.push(8);
                for (port, process) in nodes {
                    out.extend_from_slice(&port.to_le_bytes());
                    out.extend_from_slice(&process.to_le_bytes());
                }
            }
            ControlFrame::Refuse { reason } => {
                out.push(9);
                put_text(out, reason);
            }
            ControlFrame::Message { topic, places, bytes } => {
                out.push(10);
                out.extend_from_slice(&topic.to_le_bytes());
                out.push((*places).into());
                out.extend_from_slice(bytes);
            }
        }
        let (header, body) = out[start..].split_at_mut(HEADER_BYTES);
        let len = (body.len() as u32).to_le_bytes();
        header[..4].copy_from_slice(&len);
        header[4..8].copy_from_slice(&crc32c::crc32c(&len).to_le_bytes());
        let checked = &body[..body.len() - self.unchecked()];
        header[8..].copy_from_slice(&crc32c::crc32c(checked).to_le_bytes());
    }

    /// Bytes at the end that are left out of the checksum.
    fn unchecked(&self) -> usize {
        match self {
            ControlFrame::Gather { places: true, bytes, .. }
            | ControlFrame::Message { places: true, bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// Takes the first frame off `bytes`: the frame and its length, or `None` until more bytes are
    /// there.
    ///
    /// # Errors
    /// The reason why the frame is malformed.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<(ControlFrame, usize)>, &'static str> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let mut reader = Reader(header);
        let (len, check, sum) = (reader.u32()?, reader.u32()?, reader.u32()?);
        if crc32c::crc32c(&len.to_le_bytes()) != check {
            return Err(DAMAGED);
        }
        let len = len as usize;
        if len == 0 || len > FRAME_BYTES_MAX {
            return Err("its length is out of bounds");
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let frame = Self::decode_body(Reader(body))?;
        if crc32c::crc32c(&body[..len - frame.unchecked()]) != sum {
            return Err(DAMAGED);
        }
        Ok(Some((frame, HEADER_BYTES + len)))
    }

    fn decode_body(mut body: Reader<'_>) -> Result<ControlFrame, &'static str> {
        let frame = match body.u8()? {
            1 => ControlFrame::Beat,
            2 => {
                let (seq, step, places) = (body.u64()?, body.text()?, body.flag()?);
                ControlFrame::Gather { seq, step, places, bytes: body.rest() }
            }
            3 => ControlFrame::Progress { bytes: body.rest() },
            4 => ControlFrame::Cancel,
            5 => ControlFrame::Fail { reason: body.text()? },
            6 => ControlFrame::Verdict(body.failure()?),
            7 => ControlFrame::Bye,
            8 => {
                let mut nodes = Vec::new();
                while !body.0.is_empty() {
                    nodes.push((body.u16()?, body.u32()?));
                }
                ControlFrame::Welcome { nodes }
            }
            9 => ControlFrame::Refuse { reason: body.text()? },
            10 => ControlFrame::Message {
                topic: body.u64()?,
                places: body.flag()?,
                bytes: body.rest(),
            },
            _ => return Err("its kind is unknown"),
        };
        if body.0.is_empty() { Ok(frame) } else { Err("it is too long") }
    }
}

/// `text` up to [`TEXT_BYTES_MAX`], cut between characters.
pub(crate) fn clip(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = clip(text);
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_failure(out: &mut Vec<u8>, failure: &NodeFailure) {
    out.extend_from_slice(&failure.rank.to_le_bytes());
    out.extend_from_slice(&failure.process.to_le_bytes());
    let (tag, number, text) = match &failure.cause {
        Cause::Reported(reason) => (1, 0, reason.as_str()),
        Cause::Exited(code) => (2, *code as u32, ""),
        Cause::Killed(signal) => (3, *signal as u32, ""),
        Cause::Lost => (4, 0, ""),
        Cause::Silent(ms) => (5, *ms, ""),
        Cause::Malformed(what) => (6, 0, what.as_str()),
    };
    out.push(tag);
    out.extend_from_slice(&number.to_le_bytes());
    put_text(out, text);
}

/// Reads little-endian fields off the front.
struct Reader<'a>(&'a [u8]);

const SHORT: &str = "it is too short";
const DAMAGED: &str = "what arrived is not what was sent";

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], &'static str> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(SHORT)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    fn u8(&mut self) -> Result<u8, &'static str> {
        self.array().map(u8::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, &'static str> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("its mark is unknown"),
        }
    }

    fn u16(&mut self) -> Result<u16, &'static str> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, &'static str> {
        let len = self.u32()? as usize;
        if len > TEXT_BYTES_MAX {
            return Err("its text is too long");
        }
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| "its text is not UTF-8")
    }

    fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    fn failure(&mut self) -> Result<NodeFailure, &'static str> {
        let (rank, process) = (self.u32()?, self.u32()?);
        let (tag, number, text) = (self.u8()?, self.u32()?, self.text()?);
        let cause = match tag {
            1 => Cause::Reported(text),
            2 => Cause::Exited(number as i32),
            3 => Cause::Killed(number as i32),
            4 => Cause::Lost,
            5 => Cause::Silent(number),
            6 => Cause::Malformed(text),
            _ => return Err("its cause is unknown"),
        };
        Ok(NodeFailure { rank, process, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(seq: u64, step: &str, bytes: Vec<u8>) -> ControlFrame {
        ControlFrame::Gather { seq, step: step.into(), places: false, bytes }
    }

    fn samples() -> Vec<ControlFrame> {
        let causes = [
            Cause::Reported("the disk is full".into()),
            Cause::Exited(-3),
            Cause::Killed(9),
            Cause::Lost,
            Cause::Silent(3000),
            Cause::Malformed("its kind is unknown".into()),
        ];
        let mut frames = vec![
            ControlFrame::Beat,
            gather(u64::MAX, "plans", vec![0, 255, 7]),
            gather(0, "", Vec::new()),
            ControlFrame::Progress { bytes: vec![1, 2] },
            ControlFrame::Cancel,
            ControlFrame::Fail { reason: "café".into() },
            ControlFrame::Bye,
            ControlFrame::Welcome { nodes: vec![(0, 1), (u16::MAX, u32::MAX)] },
            ControlFrame::Refuse { reason: "no".into() },
            ControlFrame::Message { topic: 1 << 40 | 3, places: false, bytes: vec![5, 6] },
        ];
        frames.extend(
            causes
                .map(|cause| ControlFrame::Verdict(NodeFailure { rank: 2, process: 1234, cause })),
        );
        frames
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut bytes = Vec::new();
        for frame in samples() {
            frame.encode(&mut bytes);
        }
        let mut rest = &bytes[..];
        for frame in samples() {
            let (decoded, len) = ControlFrame::decode(rest).unwrap().unwrap();
            assert_eq!(decoded, frame);
            rest = &rest[len..];
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn every_prefix_asks_for_more() {
        for frame in samples() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            for len in 0..bytes.len() {
                assert_eq!(ControlFrame::decode(&bytes[..len]), Ok(None), "{frame:?} cut to {len}");
            }
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let framed = |len: u32, body: &[u8]| {
            let sums = [crc32c::crc32c(&len.to_le_bytes()), crc32c::crc32c(body)];
            let header = [len, sums[0], sums[1]].map(u32::to_le_bytes);
            [header.as_flattened(), body].concat()
        };
        assert!(ControlFrame::decode(&framed(FRAME_BYTES_MAX as u32 + 1, &[])).is_err());
        assert!(ControlFrame::decode(&framed(0, &[])).is_err());
        assert!(ControlFrame::decode(&framed(1, &[77])).is_err());
        assert!(ControlFrame::decode(&framed(2, &[1, 0])).is_err(), "longer than it is");
        assert!(ControlFrame::decode(&framed(3, &[5, 0, 0])).is_err(), "shorter than it is");
        assert_eq!(
            ControlFrame::decode(&framed(1, &[1])),
            Ok(Some((ControlFrame::Beat, HEADER_BYTES + 1)))
        );
    }

    #[test]
    fn any_single_damage_is_refused_at_once() {
        for frame in samples() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    assert!(ControlFrame::decode(&damaged).is_err(), "{frame:?}, byte {at}");
                }
            }
        }
    }

    #[test]
    fn places_alone_may_be_rewritten() {
        let frames: [fn(Vec<u8>) -> ControlFrame; 2] = [
            |bytes| ControlFrame::Gather { seq: 3, step: "addresses".into(), places: true, bytes },
            |bytes| ControlFrame::Message { topic: 9, places: true, bytes },
        ];
        for frame in frames {
            let mut bytes = Vec::new();
            frame(vec![127, 0, 0, 1]).encode(&mut bytes);
            let places = bytes.len() - 4;
            bytes[places..].copy_from_slice(&[10, 0, 0, 7]);
            let (rewritten, _) = ControlFrame::decode(&bytes).unwrap().unwrap();
            assert_eq!(rewritten, frame(vec![10, 0, 0, 7]));
            for at in 0..places {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                assert!(ControlFrame::decode(&damaged).is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let mut bytes = Vec::new();
        ControlFrame::Fail { reason: format!("x{long}") }.encode(&mut bytes);
        let (frame, _) = ControlFrame::decode(&bytes).unwrap().unwrap();
        let ControlFrame::Fail { reason } = frame else { panic!("{frame:?}") };
        assert_eq!(reason.len(), TEXT_BYTES_MAX - 1);
    }
}
