//! The corpora of the fuzz targets, replayed, and each seed with some changes. `UPDATE_CORPUS=1`
//! writes the seeds anew; a finding of a fuzz target is added by its own name. A seed whose name
//! begins with `bad` ends the connection, and no other does.
#![allow(missing_docs)]

use fabric::ErrorKind;
use fabric::hostile;

#[path = "../../../fuzz/replay/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/src/pulse.rs"]
mod pulse;
#[path = "../../../fuzz/replay/seeds.rs"]
mod seeds;

/// Changed seeds of a target.
const CHANGED: usize = 20_000;

/// The seeds of a target, by name.
fn replayed(target: &str, write: fn() -> Vec<(String, Vec<u8>)>) -> Vec<(String, Vec<u8>)> {
    seeds::read(&seeds::corpus(env!("CARGO_MANIFEST_DIR"), target), write)
}

const WRITE: u8 = 1;
const NOTIFY: u8 = 2;
const READ: u8 = 3;
const ADD: u8 = 4;
const SWAP: u8 = 5;
const SEND: u8 = 6;
const CREDIT: u8 = 7;
const DATA: u8 = 8;
const WORD: u8 = 9;
const NAK: u8 = 10;
/// Keys of memory that is exported, and that was.
const EXPORTED: u64 = 1;
const RETIRED: u64 = 2;
/// The key of memory that is published, and where that begins, with the mark of such keys.
const PUBLISHED: u64 = 3;
const PUBLISHED_BASE: u64 = 1 << 63 | 44 << 10;
/// Where exported memory begins.
const BASE: u64 = 4096;

/// A frame without its checksums.
fn frame(op: u8, len: usize, key: u64, offset: u64, id: u64, body: &[u8]) -> Vec<u8> {
    let mut out = vec![op, 0, 0, 0];
    for word in [7, len as u32, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    for word in [key, offset, id] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    [&out, &[0; 4][..], body].concat()
}

/// A write or an atomic.
fn to(op: u8, key: u64, offset: u64, bytes: usize) -> Vec<u8> {
    frame(op, bytes, key, offset, 5, &vec![0x5a; bytes])
}

fn good_frames() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("write", to(WRITE, EXPORTED, BASE, 100)),
        ("write-nothing", to(WRITE, EXPORTED, 0, 0)),
        ("write-large", [to(WRITE, EXPORTED, BASE, 32 << 10), to(NOTIFY, EXPORTED, 0, 0)].concat()),
        ("write-retired", to(WRITE, RETIRED, 40 << 10, 4096)),
        ("notify", to(NOTIFY, EXPORTED, BASE + 8, 3000).repeat(8)),
        ("read", frame(READ, 4096, EXPORTED, BASE, 5, &[]).repeat(4)),
        ("read-published", frame(READ, 2048, PUBLISHED, PUBLISHED_BASE, 5, &[]).repeat(4)),
        ("add", to(ADD, EXPORTED, BASE, 8)),
        ("swap", [to(SWAP, EXPORTED, BASE + 8, 16), to(SWAP, RETIRED, 40 << 10, 16)].concat()),
        ("send", [to(SEND, 0, 0, 1024), to(SEND, 0, 0, 0)].concat()),
        ("credit", [frame(CREDIT, 0, 1, 9, 0, &[]), frame(CREDIT, 0, 1, 3, 0, &[])].concat()),
        ("answers", answers()),
    ]
}

/// To all that the end that listens has asked.
fn answers() -> Vec<u8> {
    let data = frame(DATA, 64, 0, 0, 2, &[3; 64]);
    let words = [frame(WORD, 0, 0, 77, 3, &[]), frame(WORD, 0, 0, 78, 4, &[])].concat();
    [data, words, frame(CREDIT, 0, 1, 0, 0, &[])].concat()
}

fn bad_frames() -> Vec<(&'static str, Vec<u8>)> {
    let mut padded = to(WRITE, EXPORTED, BASE, 8);
    padded[2] = 1;
    vec![
        ("operation", to(11, 0, 0, 0)),
        ("operation-none", to(0, 0, 0, 0)),
        ("padding", padded),
        ("behind", to(WRITE, EXPORTED, BASE + (32 << 10) - 8, 9)),
        ("before", to(WRITE, EXPORTED, BASE - 1, 8)),
        ("offset-huge", to(WRITE, EXPORTED, u64::MAX, 8)),
        ("length-huge", frame(WRITE, u32::MAX as usize, EXPORTED, BASE, 5, &[1; 64])),
        ("read-huge", frame(READ, u32::MAX as usize, EXPORTED, BASE, 5, &[])),
        ("key", to(WRITE, 99, BASE, 8)),
        ("notices", to(NOTIFY, EXPORTED, BASE, 8).repeat(9)),
        ("messages", to(SEND, 0, 0, 8).repeat(9)),
        ("message-long", to(SEND, 0, 0, 1025)),
        ("reads", frame(READ, 16, EXPORTED, BASE, 5, &[]).repeat(9)),
        ("read-published-behind", frame(READ, 2049, PUBLISHED, PUBLISHED_BASE, 5, &[])),
        ("read-published-unmarked", frame(READ, 8, PUBLISHED, 44 << 10, 5, &[])),
        ("read-exported-marked", frame(READ, 8, EXPORTED, 1 << 63 | BASE, 5, &[])),
        ("write-published", to(WRITE, PUBLISHED, PUBLISHED_BASE, 8)),
        ("write-published-unmarked", to(WRITE, PUBLISHED, 44 << 10, 8)),
        ("add-published", to(ADD, PUBLISHED, PUBLISHED_BASE, 8)),
        ("add-odd", to(ADD, EXPORTED, BASE + 4, 8)),
        ("add-long", to(ADD, EXPORTED, BASE, 9)),
        ("swap-short", to(SWAP, EXPORTED, BASE, 15)),
        ("credit-much", frame(CREDIT, 0, 2, 0, 0, &[])),
        ("credit-huge", frame(CREDIT, 0, u64::MAX, u64::MAX, 0, &[])),
        ("data-short", frame(DATA, 63, 0, 0, 2, &[3; 63])),
        ("data-other", frame(DATA, 64, 0, 0, 3, &[3; 64])),
        ("data-twice", frame(DATA, 64, 0, 0, 2, &[3; 64]).repeat(2)),
        ("word-first", frame(WORD, 0, 0, 1, 3, &[])),
        ("answer-more", [answers(), frame(WORD, 0, 0, 1, 5, &[])].concat()),
        ("nak", frame(NAK, 0, 0, 0, 1, &[])),
    ]
}

fn frame_seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    let mut add = |name: String, how: u8, chunk: u8, frames: &[u8]| {
        seeds.push((name, [&[how, chunk], frames].concat()));
    };
    for (prefix, cases) in [("good", good_frames()), ("bad", bad_frames())] {
        for (name, frames) in cases {
            add(format!("{prefix}-{name}"), 1, 0, &frames);
            add(format!("{prefix}-{name}-unchecked"), 0, 0, &frames);
            // Answers leave between the pieces.
            if name != "reads" {
                add(format!("{prefix}-{name}-pieces"), 1, 13, &frames);
            }
        }
    }
    // A half of a frame is waited for.
    add("good-half".into(), 1, 0, &to(WRITE, EXPORTED, BASE, 4096)[..2000]);
    add("good-none".into(), 1, 0, &[]);
    // As they come: without checksums where those are wanted, and with some where they are not.
    add("bad-without-checksums".into(), 3, 0, &to(WRITE, EXPORTED, BASE, 8));
    let mut marked = to(WRITE, EXPORTED, BASE, 8);
    marked[40] = 1;
    add("bad-with-checksums".into(), 2, 0, &marked);
    seeds
}

#[test]
fn frames_do_what_they_may_or_end_the_connection() {
    let all = replayed("frames", frame_seeds);
    let (mut kinds, mut applied) = (Vec::new(), 0);
    for (name, bytes) in &all {
        let received = hostile::frames(bytes).expect("memory");
        let bad = name.starts_with("bad");
        assert_eq!(received.ended.is_some(), bad, "{name}: {received:?}");
        kinds.extend(received.ended);
        applied += received.notices + received.completed;
    }
    for kind in [
        ErrorKind::Disconnected,
        ErrorKind::Damaged,
        ErrorKind::ReceiverNotReady,
        ErrorKind::RemoteAccess,
    ] {
        assert!(kinds.contains(&kind), "no seed ends a connection as {kind:?}");
    }
    assert!(applied > 20, "the seeds do too little: {applied}");
    mutate::each(&seeds::contents(&all), CHANGED, hostile::frames);
}

/// A greeting, places, and what travels on a connection that links share.
fn greeting_seeds() -> Vec<(String, Vec<u8>)> {
    let mut hello = b"MLSTCP\x00\x02".to_vec();
    hello.extend((0..40).chain([4, 0, 0, 0, 1, 0, 0, 0]));
    let greeted = |hello: &[u8]| [&[0], hello, &crc32c::crc32c(hello).to_le_bytes()].concat();
    let place =
        |ip: usize| [&[1][..], b"MLSTCP\x00\x01", &[7; 16], &[80, 0], &[1; 16][..ip]].concat();
    let berth =
        |joined: u8, port: u8| [&[9; 16][..], &[joined; 16], &[port, 0, 3, 0, 1, 2, 3]].concat();
    let shared = [&[2][..], b"MLSSHR\x00\x01", &[1, 0, 0, 0, 2, 0, 0, 0]].concat();
    let long = [&[2, 1, 0, 5, 0, 3, 0, 0, 0][..], &[9; 4]].concat();
    let reported =
        [&[2, 2, 0, 0, 0][..], &[1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0], &[4, 0, 1, 0], &[0; 8]];
    let reported = reported.concat();
    let mut other = hello.clone();
    other[7] = 9;
    let all = [
        ("good-greeting", greeted(&hello)),
        ("good-place", place(4)),
        ("good-place-six", place(16)),
        ("good-berth", [&shared[..], &berth(0, 7)].concat()),
        ("good-berths", [&shared[..], &berth(5, 7), &berth(0, 8)].concat()),
        ("good-data", vec![2, 0, 0, 5, 0, 1, 2, 3]),
        ("good-long", long.clone()),
        ("good-news", reported.clone()),
        ("bad-greeting-version", greeted(&other)),
        ("bad-greeting-damaged", [&[0], &hello[..], &[0; 4]].concat()),
        ("bad-greeting-short", greeted(&hello)[..40].to_vec()),
        ("bad-place-other", place(5)),
        ("bad-place-short", place(0)[..20].to_vec()),
        ("bad-berth-alone", [&shared[..], &berth(5, 7)].concat()),
        ("bad-berth-short", [&shared[..], &berth(0, 7)[..38]].concat()),
        ("bad-berth-more", [&shared[..], &berth(0, 7), &[1]].concat()),
        ("bad-message", vec![2, 3, 0, 0, 0]),
        ("bad-long", long[..11].to_vec()),
        ("bad-news", reported[..reported.len() - 1].to_vec()),
        ("bad-nothing", vec![]),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[test]
fn greetings_and_places_are_what_they_say_or_none() {
    let all = replayed("greeting", greeting_seeds);
    for (name, bytes) in &all {
        assert_eq!(hostile::greeting(bytes), name.starts_with("good"), "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::greeting);
}

/// Looks at one or more connections, of which something was told before, between or behind them.
fn pulse_seeds() -> Vec<(String, Vec<u8>)> {
    let note = |name: u8, sent: u64| [&[49][..], &[name; 16], &sent.to_le_bytes()].concat();
    let look = |received: u64, unread: u8| [&[2][..], &received.to_le_bytes(), &[unread]].concat();
    let both = [&[4][..], &[0; 18]].concat();
    let all = [
        ("0-nothing", vec![]),
        ("0-carried", [note(0, 9), look(9, 0).repeat(9)].concat()),
        ("0-waits", [note(0, 9), look(3, 1).repeat(9)].concat()),
        ("0-other", [note(1, 9), look(3, 0).repeat(9)].concat()),
        ("0-half", [&note(0, 9)[..20], &look(3, 0).repeat(9)].concat()),
        ("1-told-before", [note(0, 9), look(3, 0).repeat(5)].concat()),
        ("1-told-behind", [look(3, 0), note(0, u64::MAX), look(3, 0).repeat(9)].concat()),
        ("2-both", [both.clone(), note(0, 1), note(1, 2), both.repeat(4)].concat()),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[test]
fn what_is_told_of_connections_gives_up_those_that_it_should() {
    let all = replayed("pulse", pulse_seeds);
    for (name, bytes) in &all {
        let given_up = name.split('-').next().and_then(|number| number.parse().ok());
        assert_eq!(Some(pulse::read(bytes)), given_up, "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, pulse::read);
}
