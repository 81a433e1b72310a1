//! Entrances for fuzz targets and the replay of their corpora: bytes of a peer or a file are read
//! as this crate reads them (`fuzz/`, `tests/corpus.rs`).
//!
//! Each function reads bytes that anybody may have made, and checks what holds whatever they are.

use crate::frame::ControlFrame;
use crate::mesh::Hello;
use crate::rendezvous::Card;

/// Bytes in front of a frame: its length, the checksum of that, and the checksum of what follows.
const HEADER_BYTES: usize = 12;

/// Takes frames of the control plane one after the other. Where the first byte is odd the checksums
/// are put right before. Gives how many there were.
///
/// # Errors
/// The reason why the first bytes are malformed.
///
/// # Panics
/// When a frame is another one behind being written again, or longer than what there is of it.
pub fn control(bytes: &[u8]) -> Result<usize, &'static str> {
    let Some((how, message)) = bytes.split_first() else { return Ok(0) };
    let message = if how & 1 == 1 { sealed(message) } else { message.to_vec() };
    let (mut rest, mut count) = (&message[..], 0);
    while let Some((frame, length)) = ControlFrame::decode(rest)? {
        assert!(length <= rest.len());
        let mut again = Vec::new();
        frame.encode(&mut again);
        assert_eq!(ControlFrame::decode(&again), Ok(Some((frame, again.len()))));
        (rest, count) = (&rest[length..], count + 1);
    }
    Ok(count)
}

/// The same frames with the right checksums, as of frames without places.
fn sealed(mut frames: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((header, rest)) = frames.split_first_chunk::<HEADER_BYTES>() {
        let [a, b, c, d, ..] = *header;
        let length = (u32::from_le_bytes([a, b, c, d]) as usize).min(rest.len());
        let (body, behind) = rest.split_at(length);
        let sums = [&header[..4], body].map(|bytes| crc32c::crc32c(bytes).to_le_bytes());
        out.extend_from_slice(&[&header[..4], sums.as_flattened(), body].concat());
        frames = behind;
    }
    out.extend_from_slice(frames);
    out
}

/// Whether this is what a node says first.
pub fn hello(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|bytes| Hello::decode(bytes).is_ok())
}

/// Whether this is what a node leaves for others in a file, or by its launcher.
///
/// # Panics
/// When it is something else behind being written again.
pub fn card(text: &[u8]) -> bool {
    let card = std::str::from_utf8(text).ok().and_then(Card::decode);
    let Some(text) = card.as_ref().map(Card::encode) else { return false };
    assert_eq!(Card::decode(&text).map(|card| card.encode()), Some(text));
    true
}
