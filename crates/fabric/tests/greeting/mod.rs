//! The greeting of the listener, written out by hand: the bytes that a client has to send before an
//! offer answers it. The TCP transport and verbs meet by the same one.

use std::net::SocketAddr;

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = 60;

/// Where an offer listens, from its address.
pub fn place(address: &[u8]) -> SocketAddr {
    let port = u16::from_le_bytes([address[24], address[25]]);
    ([127, 0, 0, 1], port).into()
}

/// A greeting without a wish for checksums of frames.
pub fn greeting(local: u32, remote: u32, to: &[u8], from: &[u8]) -> Vec<u8> {
    let mut out = b"MLSTCP\x00\x02".to_vec();
    out.extend_from_slice(&local.to_le_bytes());
    out.extend_from_slice(&remote.to_le_bytes());
    out.extend_from_slice(to);
    out.extend_from_slice(from);
    out.extend_from_slice(&4_u32.to_le_bytes());
    out.extend_from_slice(&0_u32.to_le_bytes());
    out.extend_from_slice(&crc32c::crc32c(&out).to_le_bytes());
    assert_eq!(out.len(), GREETING_BYTES);
    out
}
