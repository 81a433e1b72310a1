//! Entrances for fuzz targets and the replay of their corpora: bytes of a peer are read as this
//! crate reads them (`fuzz/`, `tests/corpus.rs`).
//!
//! Each function reads bytes that anybody may have made, and checks what holds whatever they are.

use crate::list::{ListNode, ListWalk};
use crate::manifest::Manifest;
use crate::record;
use crate::wire::{ClientRequest, ServerResponse, split};

/// Takes messages one after the other. The first byte tells what they are: requests where it is
/// even, responses where it is odd. Where it is 2 or more the checksums are put right before. Gives
/// how many there were.
///
/// # Errors
/// The reason why the first bytes are malformed.
///
/// # Panics
/// When a message is another one behind being written again.
pub fn messages(bytes: &[u8]) -> Result<usize, String> {
    let Some((how, messages)) = bytes.split_first() else { return Ok(0) };
    let messages = if *how > 1 { summed(messages) } else { messages.to_vec() };
    let (mut rest, mut count) = (&messages[..], 0);
    while let Some((body, length)) = split(rest).map_err(|error| error.to_string())? {
        if how & 1 == 0 {
            let request = ClientRequest::decode(body).map_err(|error| error.to_string())?;
            let again = request.encode();
            assert_eq!(again, rest[..length], "{request:?}");
        } else {
            let response = ServerResponse::decode(body).map_err(|error| error.to_string())?;
            let again = response.encode();
            assert_eq!(again, rest[..length], "{response:?}");
        }
        (rest, count) = (&rest[length..], count + 1);
    }
    Ok(count)
}

/// The same messages with the right checksums.
fn summed(mut messages: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((header, rest)) = messages.split_first_chunk::<8>() {
        let [a, b, c, d, ..] = *header;
        let length = (u32::from_le_bytes([a, b, c, d]) as usize).min(rest.len());
        let (body, behind) = rest.split_at(length);
        let sum = crc32c::crc32c(body).to_le_bytes();
        out.extend_from_slice(&[&header[..4], &sum, body].concat());
        messages = behind;
    }
    out.extend_from_slice(messages);
    out
}

/// Whether these bytes, with the right checksum behind them, are the file of a table.
///
/// # Panics
/// When it is another one behind being written again, or is not of the table that it names.
pub fn saved(bytes: &[u8]) -> bool {
    let whole = [bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
    let table = record::table(&whole);
    let Ok((version, sums)) = record::decode(&whole) else { return false };
    assert_eq!(record::encode(&version, &sums), whole);
    assert_eq!(table.as_deref(), Some(version.manifest.table.as_str()));
    assert_eq!(sums.len(), version.manifest.own_extents().count());
    true
}

/// Whether these bytes, with the right checksum behind them, are the file of what a server holds
/// for another one.
///
/// # Panics
/// When it is another one behind being written again, or names an extent twice.
pub fn part(bytes: &[u8]) -> bool {
    let whole = [bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
    let Ok((part, sums)) = record::part::decode(&whole) else { return false };
    assert_eq!(record::part::encode(&part, &sums), whole);
    assert_eq!(part.extents.len(), sums.len());
    let numbers: std::collections::BTreeSet<u32> = part.extents.iter().map(|of| of.0).collect();
    assert_eq!(numbers.len(), sums.len());
    true
}

/// Whether these bytes, with the right checksum behind them, are a node of a list.
///
/// # Panics
/// When it is another one behind being written again, or says no end of its list.
pub fn list_node(bytes: &[u8]) -> bool {
    let whole = [bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
    let Ok(node) = ListNode::decode(&whole) else { return false };
    assert_eq!(node.encode(), whole);
    assert!(!node.strips.is_empty() && node.links.len() < node.depth as usize);
    true
}

/// Whether these bytes, with the right checksum behind them, are a manifest.
///
/// # Panics
/// When it is another one behind being written again, or does not say where its blocks lie.
pub fn manifest(bytes: &[u8]) -> bool {
    let whole = [bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
    let Ok(manifest) = Manifest::decode(&whole) else { return false };
    assert_eq!(manifest.encode(), whole);
    assert_eq!(manifest.partitions.len(), manifest.definition.partitions() as usize + 1);
    if let Ok(walk) = ListWalk::of(&manifest) {
        let heads = (0..).map_while(|ahead| walk.wanted(ahead)).count();
        assert_eq!(heads, manifest.strips.len());
    }
    for block in manifest.strips.iter().flat_map(|strip| &strip.blocks) {
        let is_of = |(extent, used): &&(_, u32)| {
            *extent == block.at.extent && block.at.offset + block.bytes <= *used
        };
        assert!(block.bytes == 0 || manifest.extents.iter().any(|of| is_of(&of)));
    }
    true
}
