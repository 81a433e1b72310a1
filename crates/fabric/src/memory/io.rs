//! System calls that move bytes between a descriptor and registered memory without a copy in
//! between.
//!
//! The kernel gets the addresses; no Rust reference to memory that a peer may write is ever read or
//! written through.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::SlabRange;

/// Bytes of a gathered write.
pub(crate) enum IoPiece<'a> {
    /// Ordinary memory.
    Bytes(&'a [u8]),
    /// The part of a range that begins at this byte.
    Slab(&'a SlabRange, usize),
}

impl IoPiece<'_> {
    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            IoPiece::Bytes(bytes) => bytes.len(),
            IoPiece::Slab(range, from) => range.len().saturating_sub(*from),
        }
    }

    /// Copies bytes from a place on, as many as there are or fit; returns how many.
    pub(crate) fn copy(&self, at: usize, out: &mut [u8]) -> usize {
        let n = self.len().saturating_sub(at).min(out.len());
        match self {
            IoPiece::Bytes(bytes) => out[..n].copy_from_slice(&bytes[at..at + n]),
            // SAFETY: `from + at + n` is inside of the range, which the borrow keeps mapped, and
            // `out` is no memory of a slab. The poster keeps the source still until its `Local`.
            IoPiece::Slab(range, from) => unsafe {
                std::ptr::copy_nonoverlapping(range.as_ptr().add(from + at), out.as_mut_ptr(), n);
            },
        }
        n
    }
}

/// Pieces of one system call.
pub(crate) const PIECES_MAX: usize = 64;

/// Writes the pieces in order by one system call; returns how many bytes went, `None` when the
/// descriptor takes none. Pieces beyond the first [`PIECES_MAX`] are left for the next call.
pub(crate) fn gather<'a>(
    fd: BorrowedFd<'_>,
    pieces: impl Iterator<Item = IoPiece<'a>>,
) -> io::Result<Option<usize>> {
    let mut iov = [IoSlice::new(&[]); PIECES_MAX];
    let mut n = 0;
    for piece in pieces.take(PIECES_MAX) {
        iov[n] = IoSlice::new(match piece {
            IoPiece::Bytes(bytes) => bytes,
            // SAFETY: inside of the range, which the borrow keeps mapped; the slice goes to the
            // kernel only and is gone when this function returns. The poster keeps the source still
            // until its `Local`.
            IoPiece::Slab(range, from) => unsafe {
                let from = from.min(range.len());
                std::slice::from_raw_parts(range.as_ptr().add(from), range.len() - from)
            },
        });
        n += 1;
    }
    would_block(rustix::io::writev(fd, &iov[..n]))
}

/// Reads by one system call into `head` from byte `from` on, and what follows into `rest`; returns
/// how many bytes came, zero at the end of the stream and `None` when there is nothing now.
pub(crate) fn scatter(
    fd: BorrowedFd<'_>,
    head: Option<(&SlabRange, usize)>,
    rest: &mut [u8],
) -> io::Result<Option<usize>> {
    let Some((range, from)) = head else {
        return would_block(rustix::io::read(fd, rest));
    };
    let from = from.min(range.len());
    // SAFETY: as in `gather`; the range was exported for writing or is the destination of our own
    // read, so that nobody holds a reference into it.
    let direct =
        unsafe { std::slice::from_raw_parts_mut(range.as_ptr().add(from), range.len() - from) };
    would_block(rustix::io::readv(fd, &mut [IoSliceMut::new(direct), IoSliceMut::new(rest)]))
}

fn would_block(result: Result<usize, Errno>) -> io::Result<Option<usize>> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}
