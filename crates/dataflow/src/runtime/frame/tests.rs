//! Frames survive the wire, whatever their fields; a header that is none is refused; and the page
//! of the protocol says what the codecs do.

use std::path::Path;

use channel::Header;
use proptest::prelude::*;

use super::codec::Fields;
use super::payload::{Placeholder, decode_children, encode_children};
use super::{Colour, Envelope, Frame};

/// Gives each field of a frame a value, and notes where it lies.
struct Filler {
    values: Vec<u64>,
    filled: usize,
    /// The bits of a header that belong to a field.
    used: Header,
    flags: Vec<(&'static str, u8)>,
    words: Vec<(usize, &'static str)>,
    payload: bool,
}

impl Filler {
    fn new(values: Vec<u64>) -> Self {
        let used = Header::default();
        Self { values, filled: 0, used, flags: vec![], words: vec![], payload: false }
    }

    fn next(&mut self) -> u64 {
        self.filled += 1;
        self.values[(self.filled - 1) % self.values.len()]
    }

    fn fill(mut self, mut frame: Frame) -> (Envelope, Self) {
        let mut to = Envelope::of_link(frame);
        frame.fields(&mut to, &mut self);
        (Envelope { frame, ..to }, self)
    }
}

impl Fields for Filler {
    fn operator(&mut self, to: &mut Envelope) {
        to.operator = self.next() as u32;
        self.used.operator = u32::MAX;
    }

    fn port(&mut self, to: &mut Envelope) {
        self.operator(to);
        to.port = self.next() as u32;
        self.used.port = u32::MAX;
    }

    fn colour(&mut self, to: &mut Envelope) {
        to.colour = Colour::of_round(self.next());
        self.used.colour = u16::MAX;
    }

    fn payload(&mut self) {
        self.payload = true;
    }

    fn flag(&mut self, name: &'static str, bit: u8, value: &mut bool) {
        *value = self.next() % 2 == 1;
        assert_eq!(bit.count_ones(), 1, "{name}");
        assert_eq!(self.used.flags & bit, 0, "{name} has a bit of its own");
        self.used.flags |= bit;
        self.flags.push((name, bit));
    }

    fn word(&mut self, name: &'static str, at: usize, value: &mut u64) {
        *value = self.next();
        assert_eq!(self.used.words[at], 0, "{name} has a word of its own");
        self.used.words[at] = u64::MAX;
        self.words.push((at, name));
    }

    fn short(&mut self, name: &'static str, at: usize, value: &mut u32) {
        let mut word = 0;
        self.word(name, at, &mut word);
        *value = word as u32;
        self.used.words[at] = u64::from(u32::MAX);
    }

    fn refuse(&mut self, _: &'static str) {}
}

/// A header with one bit changed: of kind, flags, colour, operator, port and words, in this order.
fn flip(header: &Header, bit: u32) -> Header {
    let mut flipped = *header;
    match bit {
        0..8 => flipped.kind ^= 1 << bit,
        8..16 => flipped.flags ^= 1 << (bit - 8),
        16..32 => flipped.colour ^= 1 << (bit - 16),
        32..64 => flipped.operator ^= 1 << (bit - 32),
        64..96 => flipped.port ^= 1 << (bit - 64),
        _ => flipped.words[(bit as usize - 96) / 64] ^= 1 << ((bit - 96) % 64),
    }
    flipped
}

/// The bits of the fields of a header, which are those behind its kind.
const FIELD_BITS: std::ops::Range<u32> = 8..288;

proptest! {
    #[test]
    fn frames_survive_the_wire(values in proptest::collection::vec(any::<u64>(), 7..20)) {
        for frame in Frame::KINDS {
            let (envelope, filler) = Filler::new(values.clone()).fill(frame);
            let header = envelope.encode();
            prop_assert_eq!(Envelope::decode(&header, 0), Ok(envelope));
            let with_payload = Envelope::decode(&header, 100);
            prop_assert_eq!(with_payload.is_ok(), filler.payload, "{:?}", envelope);
        }
    }

    #[test]
    fn what_is_decoded_is_the_same_when_encoded(
        kind in 0..=1 + Frame::KINDS.len() as u8,
        flags in any::<u8>(),
        colour in any::<u16>(),
        [operator, port] in any::<[u32; 2]>(),
        words in any::<[u64; 3]>(),
    ) {
        let header = Header { kind, flags, colour, operator, port, words };
        for bits in [0, u64::MAX] {
            let header = Header { words: words.map(|word| word & bits), ..header };
            if let Ok(envelope) = Envelope::decode(&header, 0) {
                prop_assert_eq!(envelope.encode(), header);
            }
        }
    }
}

#[test]
fn kinds_are_numbered_from_one() {
    for (frame, number) in Frame::KINDS.iter().zip(1..) {
        assert_eq!(frame.kind(), number, "{frame:?}");
    }
    for kind in [0, Frame::KINDS.len() as u8 + 1, u8::MAX] {
        let header = Header { kind, ..Header::default() };
        let refused = Envelope::decode(&header, 0).expect_err("no such kind");
        assert_eq!(refused, format!("there is no frame of kind {kind}"));
    }
}

#[test]
fn each_bit_that_is_of_no_field_is_refused() {
    for frame in Frame::KINDS {
        // Even numbers set no flag; odd ones set some, but no sender is both idle and at its end.
        for values in [vec![2], vec![u64::MAX - 1], vec![2, 2, 2, 2, 2, 2, 1]] {
            let (envelope, filler) = Filler::new(values).fill(frame);
            let header = envelope.encode();
            for bit in FIELD_BITS {
                let flipped = flip(&header, bit);
                let decoded = Envelope::decode(&flipped, 0);
                if is_outside(&filler.used, bit) {
                    assert!(decoded.is_err(), "bit {bit} of {envelope:?}");
                } else if let Ok(other) = decoded {
                    assert_ne!(other, envelope, "bit {bit} of {envelope:?}");
                    assert_eq!(other.encode(), flipped);
                }
            }
        }
    }
}

/// Whether a bit belongs to no field.
fn is_outside(used: &Header, bit: u32) -> bool {
    let zero = Header::default();
    let only = flip(&zero, bit);
    (only.flags & !used.flags) != 0
        || (only.colour & !used.colour) != 0
        || (only.operator & !used.operator) != 0
        || (only.port & !used.port) != 0
        || only.words.iter().zip(used.words).any(|(only, used)| only & !used != 0)
}

#[test]
fn senders_are_not_both_idle_and_at_their_end() {
    for frame in Frame::KINDS {
        let header = Envelope::of_link(frame).encode();
        let (_, filler) = Filler::new(vec![1]).fill(frame);
        if filler.flags.iter().any(|(name, _)| *name == "idle") {
            let both = Header { flags: super::ENDED | super::IDLE, ..header };
            let refused = Envelope::decode(&both, 0).expect_err("both");
            assert!(refused.contains("both idle and at its end"), "{refused}");
        }
    }
}

#[test]
fn payloads_survive_the_wire() {
    let placeholder = Placeholder { bytes: 70_000 };
    assert_eq!(Placeholder::decode(&placeholder.encode()), Ok(placeholder));
    for bytes in [&[0; 4][..], &[1, 0, 0], &[1, 0, 0, 0, 0]] {
        Placeholder::decode(bytes).expect_err("no placeholder");
    }
    for children in [vec![], vec![3], vec![7, 0, 2]] {
        assert_eq!(decode_children(&encode_children(&children), 8), Ok(children));
    }
    for children in [vec![8], vec![1, 2, 1], vec![u32::MAX]] {
        decode_children(&encode_children(&children), 8).expect_err("no children of eight workers");
    }
    decode_children(&[1, 0, 0], 8).expect_err("cut off");
}

/// A kind on the page: number, name, place, flags, words, and whether there is a payload.
fn documented(line: &str) -> Option<Vec<String>> {
    let cells: Vec<&str> = line.trim().strip_prefix('|')?.split('|').map(str::trim).collect();
    let number = cells.first()?.parse::<u8>().ok()?;
    let plain = |at: usize| cells.get(at).map_or(String::new(), |cell| cell.replace('`', ""));
    let payload = if plain(5) == "–" { "no" } else { "yes" };
    let texts = (1..5).map(plain).collect::<Vec<_>>();
    Some([vec![number.to_string()], texts, vec![payload.into()]].concat())
}

/// The same, as the codec says.
fn coded(frame: Frame) -> Vec<String> {
    let name = format!("{frame:?}");
    let name = name.split_whitespace().next().unwrap_or_default().to_owned();
    // All flags are set, so that what depends on one is there.
    let (_, filler) = Filler::new(vec![1]).fill(frame);
    let Filler { used, flags, mut words, payload, .. } = filler;
    let parts =
        [(used.operator > 0, "operator"), (used.port > 0, "port"), (used.colour > 0, "colour")];
    let place: Vec<&str> = parts.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    let flags: Vec<String> = flags.iter().map(|(name, bit)| format!("{name} {bit}")).collect();
    words.sort_unstable();
    let words: Vec<String> = words.iter().map(|(at, name)| format!("{at} {name}")).collect();
    let or_none = |text: String| if text.is_empty() { "–".to_owned() } else { text };
    let texts = [place.join(", "), flags.join(", "), words.join(", ")].map(or_none);
    let payload = if payload { "yes" } else { "no" };
    [&[frame.kind().to_string(), name][..], &texts, &[payload.into()]].concat()
}

#[test]
fn the_page_of_the_protocol_says_what_the_codecs_do() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocols/frames.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let rows: Vec<Vec<String>> = page.lines().filter_map(documented).collect();
    let kinds: Vec<Vec<String>> = Frame::KINDS.into_iter().map(coded).collect();
    for (row, kind) in rows.iter().zip(&kinds) {
        assert_eq!(row, kind);
    }
    assert_eq!(rows.len(), kinds.len(), "a row for each kind");
}
