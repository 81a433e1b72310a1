//! Reads zstd from a reader that may have nothing yet.

use std::io::{self, BufRead, ErrorKind, Read};

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// The packed bytes.
///
/// The library's own reader asks its decoder for more before it looks for input, and a decoder that
/// was asked in vain for sixteen times takes its data for damaged. So a reader that waits for the
/// network must not ask it until there is input.
pub(super) struct Unzstd<R> {
    packed: R,
    decoder: Decoder<'static>,
    /// The last answer filled its place: there may be more of it.
    more: bool,
    /// All that has come is whole.
    whole: bool,
}

impl<R: BufRead> Unzstd<R> {
    /// # Errors
    /// When there is no memory for it.
    pub(super) fn new(packed: R) -> io::Result<Self> {
        Ok(Self { packed, decoder: Decoder::new()?, more: false, whole: false })
    }
}

impl<R: BufRead> Read for Unzstd<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            let input = if self.more { &[] } else { self.packed.fill_buf()? };
            if input.is_empty() && !self.more {
                return if self.whole { Ok(0) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
            if self.whole {
                self.decoder.reinit()?;
            }
            let (mut from, mut to) = (InBuffer::around(input), OutBuffer::around(&mut *into));
            let left = self.decoder.run(&mut from, &mut to)?;
            let (taken, given) = (from.pos(), to.pos());
            self.packed.consume(taken);
            self.whole = left == 0;
            self.more = given == into.len() && !self.whole;
            if given > 0 {
                return Ok(given);
            }
        }
    }
}
