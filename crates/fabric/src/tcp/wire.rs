//! A socket as a wire.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::frames::Wire;
use crate::memory::{Piece, gather, scatter};
use crate::{Armed, SlabRange};

/// A connected socket that never blocks.
pub(super) struct Socket {
    stream: TcpStream,
    sleep: Option<Sleep>,
}

/// What one sleeps on: readable when the socket is, or when it takes bytes that wait.
struct Sleep {
    epoll: OwnedFd,
    interest: EventFlags,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self { stream, sleep: None }
    }

    /// The descriptor to sleep on, told what to wait for.
    fn sleep_on(&mut self, awaits_room: bool) -> rustix::io::Result<&OwnedFd> {
        let mut interest = EventFlags::IN | EventFlags::RDHUP;
        interest.set(EventFlags::OUT, awaits_room);
        let data = EventData::new_u64(0);
        let sleep = match self.sleep.take() {
            Some(sleep) if sleep.interest == interest => sleep,
            Some(Sleep { epoll, .. }) => {
                epoll::modify(&epoll, &self.stream, data, interest)?;
                Sleep { epoll, interest }
            }
            None => {
                let epoll = epoll::create(CreateFlags::CLOEXEC)?;
                epoll::add(&epoll, &self.stream, data, interest)?;
                Sleep { epoll, interest }
            }
        };
        Ok(&self.sleep.insert(sleep).epoll)
    }
}

impl Wire for Socket {
    fn write<'a>(&mut self, pieces: impl Iterator<Item = Piece<'a>>) -> io::Result<Option<usize>> {
        gather(self.stream.as_fd(), pieces)
    }

    fn read(
        &mut self,
        head: Option<(&SlabRange, usize)>,
        rest: &mut [u8],
    ) -> io::Result<Option<usize>> {
        scatter(self.stream.as_fd(), head, rest)
    }

    fn end(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn arm(&mut self, awaits_room: bool) -> Armed {
        match self.sleep_on(awaits_room) {
            Ok(fd) => Armed::Fd(fd.as_raw_fd()),
            // Without descriptors to sleep on there is only polling.
            Err(_) => Armed::Ready,
        }
    }
}
