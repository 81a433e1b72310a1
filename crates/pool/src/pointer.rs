//! Where a block lies: a server, one of its extents, and a place in it.

use std::fmt;

/// Blocks begin at multiples of this many bytes.
pub const BLOCK_ALIGN: usize = 64;

/// The number of an extent of one server. A number is never used again while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtentId {
    /// 0: the server that has the table. Otherwise one of the others that hold extents of it, by
    /// the number that the table's server has given it.
    pub server: u16,
    /// The extent's number on that server.
    pub number: u32,
}

impl fmt::Display for ExtentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "extent {} of server {}", self.number, self.server)
    }
}

/// A remote pointer (I4): where a block begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pointer {
    /// The extent.
    pub extent: ExtentId,
    /// Bytes from its beginning, a multiple of [`BLOCK_ALIGN`].
    pub offset: u32,
}
