//! The connection that remains from the rendezvous: silent while both live, and readable when one
//! of them ends, which a reliable connection itself says only to who posts.

use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use super::cm::Call;

/// One end of the line.
pub(super) enum Line {
    /// The socket of the handshake.
    Socket(TcpStream),
    /// The connection as the connection manager knows it.
    Cm(Call),
}

impl Line {
    /// Readable when there is something to hear.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Line::Socket(stream) => stream.as_fd(),
            Line::Cm(call) => call.fd(),
        }
    }

    /// Whether what is there to hear is the end.
    pub(super) fn has_ended(&mut self) -> bool {
        match self {
            // The peer says nothing on the socket but that it ends.
            Line::Socket(_) => true,
            Line::Cm(call) => call.has_ended(),
        }
    }

    /// Tells the peer that this side ends.
    pub(super) fn end(&mut self) {
        match self {
            // A socket that is shut down already needs nothing more.
            Line::Socket(stream) => _ = stream.shutdown(Shutdown::Both),
            Line::Cm(call) => call.end(),
        }
    }
}
