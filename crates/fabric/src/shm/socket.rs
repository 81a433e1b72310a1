//! The UNIX socket between two endpoints: how they find each other, pass memory, wake each other
//! and notice death.
//!
//! Sockets live in Linux's abstract namespace, which holds nothing once its processes are gone.
//! Only processes of the same user are answered, and only when they know the random token of the
//! offer.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};

use crate::listener::{LEFT, broken};

/// Bytes of the largest message.
const MESSAGE_BYTES: usize = 64;

/// The result of one receive.
pub(super) enum Incoming {
    /// A message, with a descriptor if one came along.
    Message { bytes: [u8; MESSAGE_BYTES], len: usize, fd: Option<OwnedFd> },
    /// Nothing now.
    Empty,
    /// The peer is gone.
    Gone,
}

/// A connected socket that keeps message boundaries and never blocks.
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// # Errors
    /// When nobody listens there.
    pub(super) fn dial(name: &[u8]) -> io::Result<Self> {
        let fd = new()?;
        rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
        Ok(Self(fd))
    }

    /// Sends a message of at most 64 bytes. A full socket is an error: the messages here are
    /// bounded by the protocol.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(super) fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags)?;
        Ok(())
    }

    /// As [`Socket::send`], of the first message: a peer that is gone by then left in the middle of
    /// its greeting.
    ///
    /// # Errors
    /// When the peer is gone.
    pub(super) fn greet(&self, greeting: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
        self.send(greeting, Some(fd)).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => broken(LEFT),
            _ => error,
        })
    }

    /// Takes one message if there is one.
    pub(super) fn receive(&self) -> Incoming {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let got = match rustix::net::recvmsg(&self.0, &mut iov, &mut control, flags) {
            Ok(got) => got,
            Err(Errno::AGAIN | Errno::INTR) => return Incoming::Empty,
            Err(_) => return Incoming::Gone,
        };
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let whole = !got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        match got.bytes {
            0 => Incoming::Gone,
            len if whole => Incoming::Message { bytes, len, fd },
            _ => Incoming::Gone,
        }
    }

    /// Waits for one message.
    ///
    /// # Errors
    /// At the deadline, or when the peer is gone.
    pub(super) fn await_message(
        &self,
        deadline: Instant,
    ) -> io::Result<([u8; MESSAGE_BYTES], usize, Option<OwnedFd>)> {
        loop {
            match self.receive() {
                Incoming::Message { bytes, len, fd } => return Ok((bytes, len, fd)),
                Incoming::Gone => return Err(broken(LEFT)),
                Incoming::Empty => readable(self.0.as_fd(), deadline)?,
            }
        }
    }

    /// True while nothing says that the peer's process is gone. One system call.
    pub(super) fn peer_lives(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&now)) {
            Ok(_) => !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR),
            Err(_) => true,
        }
    }

    /// Tells the peer that this side is gone.
    pub(super) fn shut(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }

    /// The descriptor to sleep on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A listening socket of one offer.
pub(super) struct Listener(OwnedFd);

impl Listener {
    /// # Errors
    /// When the name is taken or there are no descriptors left.
    pub(super) fn bind(name: &[u8]) -> io::Result<Self> {
        let fd = new()?;
        rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&fd, 8)?;
        Ok(Self(fd))
    }

    /// Waits for a process of the same user.
    ///
    /// # Errors
    /// At the deadline.
    pub(super) fn accept(&self, deadline: Instant) -> io::Result<Socket> {
        loop {
            readable(self.0.as_fd(), deadline)?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.0, flags) {
                Ok(fd) => {
                    let peer = rustix::net::sockopt::socket_peercred(&fd)?;
                    if peer.uid == rustix::process::geteuid() {
                        return Ok(Socket(fd));
                    }
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn new() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn readable(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}
