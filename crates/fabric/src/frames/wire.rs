//! The wire that carries the bytes of frames.

use std::io;

use crate::memory::IoPiece;
use crate::{Armed, SlabRange};

/// A connection that carries bytes in order, both ways, and never blocks.
pub(crate) trait Wire: Send {
    /// Takes bytes of the pieces, in order; returns how many, `None` when it takes none now. A
    /// source keeps still until the peer has acknowledged it.
    ///
    /// # Errors
    /// When the connection is broken.
    fn write<'a>(&mut self, pieces: impl Iterator<Item = IoPiece<'a>>)
    -> io::Result<Option<usize>>;

    /// Gives bytes into `head` from a byte on, and what follows into `rest`; returns how many, zero
    /// when the peer sends no more and `None` when there is nothing now. Where it returns fewer
    /// than there is room for, no more are there now.
    ///
    /// # Errors
    /// When the connection is broken.
    fn read(
        &mut self,
        head: Option<(&SlabRange, usize)>,
        rest: &mut [u8],
    ) -> io::Result<Option<usize>>;

    /// Tells the peer that nothing more is sent.
    fn end(&mut self);

    /// Prepares to sleep until there is something to read, or, where that is awaited, bytes are
    /// taken again.
    fn arm(&mut self, awaits_room: bool) -> Armed;
}
