//! How the fields of a frame lie in a header. Each kind names its fields once, and that is read in
//! three ways: by an [`Encoder`], by a [`Decoder`], and by what compares the documentation.

use channel::Header;
use state::epoch::{Presence, Progress};

use super::{Colour, ENDED, Envelope, IDLE, MORE};

/// A visitor of the fields of a kind.
pub(super) trait Fields {
    /// The frame is of an operator, and of all its inputs.
    fn operator(&mut self, to: &mut Envelope);

    /// The frame is of an input of an operator.
    fn port(&mut self, to: &mut Envelope);

    /// The frame carries rows, or progress behind rows, of a round.
    fn colour(&mut self, to: &mut Envelope);

    /// The frame has a payload, which fits it.
    fn payload(&mut self);

    /// A bit of `flags`.
    fn flag(&mut self, name: &'static str, bit: u8, value: &mut bool);

    /// One of the words.
    fn word(&mut self, name: &'static str, at: usize, value: &mut u64);

    /// A word of 32 bits alone.
    fn short(&mut self, name: &'static str, at: usize, value: &mut u32);

    /// Fields contradict each other.
    fn refuse(&mut self, why: &'static str);

    /// The frame has a payload, which may go on in the next one.
    fn parts(&mut self, to: &mut Envelope) {
        self.payload();
        self.flag("more", MORE, &mut to.more);
    }

    /// A word with a sign.
    fn signed(&mut self, name: &'static str, at: usize, value: &mut i64) {
        let mut bits = value.cast_unsigned();
        self.word(name, at, &mut bits);
        *value = bits.cast_signed();
    }

    /// A word with a sign that is there if a flag says so.
    fn optional(&mut self, name: &'static str, bit: u8, at: usize, value: &mut Option<i64>) {
        let mut is_there = value.is_some();
        self.flag(name, bit, &mut is_there);
        let mut number = value.unwrap_or(0);
        if is_there {
            self.signed(name, at, &mut number);
        }
        *value = is_there.then_some(number);
    }

    /// A watermark in a word, and two flags for what is to come behind it.
    fn progress(&mut self, at: usize, progress: &mut Progress) {
        self.signed("watermark", at, &mut progress.watermark);
        let mut ended = progress.presence == Presence::Ended;
        let mut idle = progress.presence == Presence::Idle;
        self.flag("ended", ENDED, &mut ended);
        self.flag("idle", IDLE, &mut idle);
        progress.presence = match (ended, idle) {
            (false, false) => Presence::Active,
            (false, true) => Presence::Idle,
            (true, false) => Presence::Ended,
            (true, true) => return self.refuse("its sender is both idle and at its end"),
        };
    }
}

/// Writes fields into a header.
pub(super) struct Encoder(Header);

impl Encoder {
    pub(super) fn new(kind: u8) -> Self {
        Self(Header { kind, ..Header::default() })
    }

    pub(super) fn finish(self) -> Header {
        self.0
    }
}

impl Fields for Encoder {
    fn operator(&mut self, to: &mut Envelope) {
        self.0.operator = to.operator;
    }

    fn port(&mut self, to: &mut Envelope) {
        self.0.operator = to.operator;
        self.0.port = to.port;
    }

    fn colour(&mut self, to: &mut Envelope) {
        self.0.colour = to.colour.0;
    }

    fn payload(&mut self) {}

    fn flag(&mut self, _: &'static str, bit: u8, value: &mut bool) {
        self.0.flags |= if *value { bit } else { 0 };
    }

    fn word(&mut self, _: &'static str, at: usize, value: &mut u64) {
        self.0.words[at] = *value;
    }

    fn short(&mut self, _: &'static str, at: usize, value: &mut u32) {
        self.0.words[at] = u64::from(*value);
    }

    fn refuse(&mut self, why: &'static str) {
        debug_assert!(false, "a frame is made of which {why}");
    }
}

/// Takes fields out of a header; what is left at the end belongs to no field.
pub(super) struct Decoder {
    left: Header,
    has_payload: bool,
    refused: Option<String>,
}

impl Decoder {
    pub(super) fn new(header: Header) -> Self {
        Self { left: header, has_payload: false, refused: None }
    }

    /// # Errors
    /// The malformed part.
    pub(super) fn finish(self, payload_bytes: usize) -> Result<(), String> {
        let Self { left, has_payload, refused } = self;
        let kind = left.kind;
        if let Some(why) = refused {
            return Err(format!("a frame of kind {kind} is malformed: {why}"));
        }
        if left != (Header { kind, ..Header::default() }) {
            return Err(format!(
                "a frame of kind {kind} has fields that it does not use: {left:?}"
            ));
        }
        if payload_bytes > 0 && !has_payload {
            return Err(format!("a frame of kind {kind} has a payload of {payload_bytes} bytes"));
        }
        Ok(())
    }
}

impl Fields for Decoder {
    fn operator(&mut self, to: &mut Envelope) {
        to.operator = std::mem::take(&mut self.left.operator);
    }

    fn port(&mut self, to: &mut Envelope) {
        self.operator(to);
        to.port = std::mem::take(&mut self.left.port);
    }

    fn colour(&mut self, to: &mut Envelope) {
        to.colour = Colour(std::mem::take(&mut self.left.colour));
    }

    fn payload(&mut self) {
        self.has_payload = true;
    }

    fn flag(&mut self, _: &'static str, bit: u8, value: &mut bool) {
        *value = self.left.flags & bit != 0;
        self.left.flags &= !bit;
    }

    fn word(&mut self, _: &'static str, at: usize, value: &mut u64) {
        *value = std::mem::take(&mut self.left.words[at]);
    }

    fn short(&mut self, name: &'static str, at: usize, value: &mut u32) {
        let word = std::mem::take(&mut self.left.words[at]);
        match u32::try_from(word) {
            Ok(number) => *value = number,
            Err(_) => self.refused = Some(format!("`{name}` is {word}, of more than 32 bits")),
        }
    }

    fn refuse(&mut self, why: &'static str) {
        self.refused = Some(why.into());
    }
}
