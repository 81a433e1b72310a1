//! The corpus of the fuzz target `ring`, replayed, and each seed with some changes. With
//! `UPDATE_CORPUS=1` the seeds are written anew. The first part of a seed's name says how many
//! frames are received; with `bad` one breaks the protocol, with `end` the connection ends, and of
//! `other`, as which a finding of the target is added, nothing is known.
#![allow(missing_docs)]

#[path = "../../../fuzz/replay/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/src/ring.rs"]
mod ring;
#[path = "../../../fuzz/replay/seeds.rs"]
mod seeds;

use ring::{
    BORROWED, CHECKED, Outcome, PAYLOAD_MAX, PLAIN, REGION_BYTES, TRAILER_BYTES, UNPUBLISHED,
    WITHOUT_REGION, region_byte,
};

/// Changed seeds.
const CHANGED: usize = 20_000;

/// A frame whose trailer has this length, and of which the rest is put right.
fn frame(payload: &[u8], length: u32) -> Vec<u8> {
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..4].copy_from_slice(&length.to_le_bytes());
    trailer[16] = 1;
    let size = (payload.len() as u16).to_le_bytes();
    [&size[..], payload, &trailer].concat()
}

/// A frame with a payload of its own.
fn plain(payload: &[u8]) -> Vec<u8> {
    frame(payload, payload.len() as u32)
}

/// A frame that names bytes of the region.
fn named(offset: u64, len: u32) -> Vec<u8> {
    let end = (offset as usize).saturating_add(len as usize).min(REGION_BYTES);
    let bytes: Vec<u8> = (offset as usize..end).map(region_byte).collect();
    summed(offset, len, crc32c::crc32c(&bytes))
}

/// The same with that checksum.
fn summed(offset: u64, len: u32, sum: u32) -> Vec<u8> {
    let reference = [&offset.to_le_bytes()[..], &len.to_le_bytes(), &sum.to_le_bytes()].concat();
    frame(&reference, 16 | BORROWED)
}

/// One after the other.
fn several() -> Vec<u8> {
    [named(0, 100), plain(&[7; 70]), named(64, 960), plain(&[])].concat()
}

/// The place of a field in a frame without payload: behind its size.
fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    let trailer = frame.len() - TRAILER_BYTES;
    frame[trailer + at..][..bytes.len()].copy_from_slice(bytes);
    frame
}

/// Frames with what becomes of them over a link of this kind.
fn cases() -> Vec<(&'static str, u8, Vec<u8>)> {
    let last = REGION_BYTES as u64 - 64;
    let max = PAYLOAD_MAX as u32;
    let reference = &named(0, 64)[2..18];
    vec![
        ("1-plain", 0, plain(&[5; 100])),
        ("1-empty", 0, plain(&[])),
        ("1-largest", 0, plain(&[6; PAYLOAD_MAX])),
        ("1-named", 0, named(128, 300)),
        ("1-named-last", 0, named(last, 64)),
        ("1-named-largest", 0, named(960, max)),
        ("1-named-byte", 0, named(0, 1)),
        ("4-several", 0, several()),
        ("4-several-checked", CHECKED, several()),
        ("1-unread-sum", 0, summed(0, 64, 1)),
        ("bad-length", 0, frame(&[], max + 1)),
        ("bad-length-huge", 0, frame(&[], BORROWED - 1)),
        ("bad-named-nothing", 0, named(0, 0)),
        ("bad-named-long", 0, named(0, max + 1)),
        ("bad-named-huge", 0, named(0, u32::MAX)),
        ("bad-named-unaligned", 0, named(32, 1)),
        ("bad-named-behind", 0, named(last + 64, 1)),
        ("bad-named-across", 0, named(last, 65)),
        ("bad-named-overflow", 0, named(u64::MAX - 63, 64)),
        ("bad-named-short", 0, frame(&reference[..15], 15 | BORROWED)),
        ("bad-named-more", 0, frame(&[reference, &[0]].concat(), 17 | BORROWED)),
        ("bad-named-empty", 0, frame(&[], BORROWED)),
        ("bad-named-largest", 0, frame(&[1; PAYLOAD_MAX], max | BORROWED)),
        ("bad-without-region", WITHOUT_REGION, named(0, 64)),
        ("bad-later", 0, [several()[..218].to_vec(), named(0, 0)].concat()),
        ("bad-credit", 0, with(plain(&[]), 48, &[1])),
        ("bad-statement", 0, with(named(0, 64), 20, &[1])),
        ("bad-sums", PLAIN, with(named(0, 64), 56, &[1, 0, 0, 0, 7, 0, 0, 0])),
        ("end-unpublished", UNPUBLISHED, named(0, 64)),
        ("end-sum", CHECKED, summed(0, 64, 1)),
        ("end-sums", CHECKED | PLAIN, with(plain(&[9; 9]), 56, &[1, 0, 0, 0, 7, 0, 0, 0])),
        ("other-none", 0, vec![]),
        ("other-cut", 0, named(0, 64)[..80].to_vec()),
        ("other-position", PLAIN, with(plain(&[]), 56, &[2, 0, 0, 0, 7, 0, 0, 0])),
    ]
}

fn ring_seeds() -> Vec<(String, Vec<u8>)> {
    let modes = ["polled", "notified", "counted"];
    let seed = |(name, how, frames): (&str, u8, Vec<u8>)| {
        let of = move |(mode, called): (u8, &str)| {
            (format!("{name}-{called}"), [&[how, mode], &frames[..]].concat())
        };
        (0..).zip(modes).map(of).collect::<Vec<_>>()
    };
    cases().into_iter().flat_map(seed).collect()
}

#[test]
fn frames_are_what_was_written_or_what_they_name_or_the_link_ends() {
    let all = seeds::read(&seeds::corpus(env!("CARGO_MANIFEST_DIR"), "ring"), ring_seeds);
    for (name, bytes) in &all {
        let outcome = ring::read(bytes);
        let fits = match name.split('-').next() {
            // The link says so itself, before the endpoint could.
            Some("bad") if name.contains("named") => {
                let by_link = |reason: &String| reason.contains("frame 0: ");
                matches!(&outcome, Outcome::Refused(reason) if by_link(reason))
            }
            Some("bad") => matches!(outcome, Outcome::Refused(_)),
            Some("end") => outcome == Outcome::Disconnected,
            Some("other") | None => true,
            Some(count) => count.parse().is_ok_and(|count| outcome == Outcome::Received(count)),
        };
        assert!(fits, "{name}: {outcome:?}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, ring::read);
}
