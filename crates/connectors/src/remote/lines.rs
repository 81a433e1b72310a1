//! Whole lines of a connection that may be lost within one, and bytes that are no lines.

use bytes::{Bytes, BytesMut};

use crate::file::LINE_BYTES_MAX;
use crate::format::Format;

/// Holds back the beginning of a line until its end has come: so that the half of a record that
/// was cut off by a lost connection is never taken for a record (`12` of `1234`).
#[derive(Debug, Default)]
pub(crate) struct WholeLines {
    held: BytesMut,
    lines: u64,
}

impl WholeLines {
    /// Takes bytes; gives all whole lines so far. A line longer than any record may be is passed
    /// on, for the decoder to refuse.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Bytes {
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.lines += bytes[..end].iter().filter(|byte| **byte == b'\n').count() as u64;
        let mut whole = BytesMut::new();
        if end > 0 {
            whole = std::mem::take(&mut self.held);
            whole.extend_from_slice(&bytes[..end]);
        }
        self.held.extend_from_slice(&bytes[end..]);
        if self.held.len() > LINE_BYTES_MAX {
            whole.extend_from_slice(&std::mem::take(&mut self.held));
        }
        whole.freeze()
    }

    /// The number of the line that is held back, and what there is of it; `None` if nothing is.
    pub(crate) fn take_rest(&mut self) -> Option<(u64, Bytes)> {
        let held = std::mem::take(&mut self.held).freeze();
        (!held.trim_ascii().is_empty()).then_some((self.lines + 1, held))
    }
}

/// The framing of a connection: how its bytes are cut before they reach the decoder.
#[derive(Debug)]
pub(crate) enum Framing {
    /// Into whole lines.
    Lines(WholeLines),
    /// Not at all: the decoder finds records that are cut off.
    Bytes,
}

impl Framing {
    /// Of a connection that has records of this format.
    pub(crate) fn of(format: &Format) -> Self {
        if format.is_of_lines() { Self::Lines(WholeLines::default()) } else { Self::Bytes }
    }

    /// Takes bytes; gives those that are passed on.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Bytes {
        match self {
            Self::Lines(lines) => lines.push(bytes),
            Self::Bytes => Bytes::copy_from_slice(bytes),
        }
    }

    /// The number of the line that is held back, and what there is of it; `None` if nothing is.
    pub(crate) fn take_rest(&mut self) -> Option<(u64, Bytes)> {
        match self {
            Self::Lines(lines) => lines.take_rest(),
            Self::Bytes => None,
        }
    }
}

/// The whole lines of a connection that delivers pieces of `piece` bytes, and the rest.
pub(crate) fn lines_in(bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
    let mut lines = WholeLines::default();
    let mut all: Vec<u8> = bytes.chunks(piece).flat_map(|piece| lines.push(piece)).collect();
    if let Some((number, rest)) = lines.take_rest() {
        let before = all.iter().filter(|byte| **byte == b'\n').count() as u64;
        assert_eq!(number, before + 1, "the number of the line that is cut off");
        all.extend_from_slice(&rest);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_passed_on_when_it_is_whole() {
        let mut lines = WholeLines::default();
        assert_eq!(&lines.push(b"1,2\n3,")[..], b"1,2\n");
        assert_eq!(&lines.push(b"4")[..], b"");
        assert_eq!(&lines.push(b"5\n\n6")[..], b"3,45\n\n");
        assert_eq!(lines.take_rest(), Some((4, Bytes::from_static(b"6"))));
        assert_eq!(lines.take_rest(), None);
    }

    #[test]
    fn what_is_held_back_is_bounded() {
        let mut lines = WholeLines::default();
        let half = vec![b'x'; LINE_BYTES_MAX / 2 + 1];
        assert!(lines.push(&half).is_empty());
        assert_eq!(lines.push(&half).len(), 2 * half.len());
        assert_eq!(lines.take_rest(), None);
    }
}
