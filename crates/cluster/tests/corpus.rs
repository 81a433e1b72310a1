//! The corpora of the fuzz targets, replayed, and each seed with some changes. `UPDATE_CORPUS=1`
//! writes the seeds anew.
#![allow(missing_docs)]

use cluster::{FRAME_BYTES_MAX, hostile};

#[path = "../../../fuzz/replay/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/replay/seeds.rs"]
mod seeds;

/// Changed seeds of a target.
const CHANGED: usize = 20_000;

type Seeds = Vec<(String, Vec<u8>)>;

fn replayed(target: &str, write: fn() -> Seeds) -> Seeds {
    seeds::read(&seeds::corpus(env!("CARGO_MANIFEST_DIR"), target), write)
}

/// A frame whose checksums are put right by the reader.
fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&(body.len() as u32).to_le_bytes()[..], &[0; 8], &body].concat()
}

fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes()[..], text].concat()
}

fn verdict(cause: u8, of: &[u8]) -> Vec<u8> {
    frame(&[&[6, 2, 0, 0, 0, 9, 9, 0, 0, cause, 3, 0, 0, 0], &text(of)])
}

/// The name of a good one begins with the number of its frames.
fn control_seeds() -> Seeds {
    let gather = |mark: u8| frame(&[&[2], &[7; 8], &text(b"plans"), &[mark], b"what it says"]);
    let message = |mark: u8| frame(&[&[10], &[7; 8], &[mark], b"what it says"]);
    let beat = frame(&[&[1]]);
    let verdicts: Vec<u8> = (1..=6).flat_map(|cause| verdict(cause, b"why")).collect();
    let long = (FRAME_BYTES_MAX as u32 + 1).to_le_bytes();
    let plain = [
        ("1-beat", beat.clone()),
        ("1-gather", gather(0)),
        ("1-progress", frame(&[&[3], &[1; 100]])),
        ("1-cancel", frame(&[&[4]])),
        ("1-fail", frame(&[&[5], &text("café".as_bytes())])),
        ("6-verdicts", verdicts),
        ("1-bye", frame(&[&[7]])),
        ("1-welcome", frame(&[&[8], &[1; 6 * 4]])),
        ("1-refuse", frame(&[&[9], &text(b"no")])),
        ("1-note", message(0)),
        ("2-half", [&beat[..], &beat, &gather(0)[..20]].concat()),
        ("0-none", vec![]),
        ("bad-kind", frame(&[&[11]])),
        ("bad-empty", frame(&[])),
        ("bad-long", [&long[..], &[0; 9]].concat()),
        ("bad-short", frame(&[&[2, 7, 7]])),
        ("bad-more", frame(&[&[1, 1]])),
        ("bad-welcome", frame(&[&[8], &[1; 7]])),
        ("bad-text", frame(&[&[5], &text(b"\xff")])),
        ("bad-text-long", frame(&[&[5], &[0xff; 8]])),
        ("bad-mark", message(2)),
        ("bad-cause", verdict(7, b"why")),
        ("bad-behind", [&beat[..], &frame(&[&[0]])].concat()),
    ];
    let sealed = plain.map(|(name, frames)| (name.to_owned(), [&[1][..], &frames].concat()));
    // As they come.
    let whole = |places: usize, mut frame: Vec<u8>| {
        let checked = frame.len() - places;
        let sums = [&frame[..4], &frame[12..checked]].map(|b| crc32c::crc32c(b).to_le_bytes());
        frame[4..12].copy_from_slice(sums.as_flattened());
        frame
    };
    let (places, message) = (b"what it says".len(), whole(0, message(0)));
    let mut damaged = message.clone();
    damaged[25] ^= 4;
    let mut length = message.clone();
    length[1] ^= 4;
    let plain = [
        ("1-note-plain", message.clone()),
        ("2-places", [whole(places, gather(1)), message].concat()),
        ("bad-damaged", damaged),
        ("bad-length-damaged", length),
    ];
    let plain = plain.map(|(name, frames)| (name.to_owned(), [&[0][..], &frames].concat()));
    sealed.into_iter().chain(plain).collect()
}

#[test]
fn frames_of_the_control_plane_are_what_they_say_or_refused() {
    let all = replayed("control", control_seeds);
    for (name, bytes) in &all {
        let count = name.split('-').next().and_then(|number| number.parse().ok());
        assert_eq!(hostile::control(bytes).ok(), count, "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::control);
}

fn hello_seeds() -> Seeds {
    let hello = [&b"MILLCTRL"[..], &[8, 0, 0, 0], &[1; 16], &[80, 0], &[9; 16]].concat();
    let changed = |at: usize| {
        let mut hello = hello.clone();
        hello[at] ^= 8;
        hello
    };
    let all = [
        ("good", hello.clone()),
        ("bad-protocol", changed(3)),
        ("bad-version", changed(8)),
        ("bad-version-before", [&hello[..8], &[7], &hello[9..]].concat()),
        ("bad-short", hello[..45].to_vec()),
        ("bad-tls", vec![22, 3, 1, 2, 0]),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

fn card_seeds() -> Seeds {
    let card = "1,3,4,127.0.0.1:80,77,a-host,00112233445566778899aabbccddeeff";
    let all = [
        ("good", card.to_owned()),
        ("good-line", format!("{card}\n")),
        ("good-six", card.replace("127.0.0.1", "[fe80::1]")),
        ("good-nobody", card.replace("a-host", "")),
        ("bad-version", card.replacen('1', "2", 1)),
        ("bad-rank", card.replacen('3', "4294967296", 1)),
        ("bad-address", card.replace(":80", "")),
        ("bad-token", card.replace("ff", "fg")),
        ("bad-token-sign", card.replace("00112233", "+0112233")),
        ("bad-token-letters", card.replace("aabb", "äb")),
        ("bad-token-short", card[..card.len() - 1].to_owned()),
        ("bad-fields", card.replace("a-host", "a,host")),
        ("bad-nothing", String::new()),
    ];
    all.map(|(name, text)| (name.to_owned(), text.into_bytes())).into()
}

#[test]
fn hellos_and_cards_are_what_they_say_or_refused() {
    type Target = (&'static str, fn() -> Seeds, fn(&[u8]) -> bool);
    let targets: [Target; 2] =
        [("hello", hello_seeds, hostile::hello), ("card", card_seeds, hostile::card)];
    for (target, write, read) in targets {
        let all = replayed(target, write);
        for (name, bytes) in &all {
            assert_eq!(read(bytes), name.starts_with("good"), "{target} {name}");
        }
        mutate::each(&seeds::contents(&all), CHANGED, read);
    }
}
