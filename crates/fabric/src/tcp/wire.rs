//! A socket as a wire.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::frames::Wire;
use crate::memory::{IoPiece, gather, scatter};
use crate::pulse::Pulse;
use crate::{Armed, SlabRange};

/// A connected socket that never blocks.
pub(super) struct Socket {
    pulse: Arc<Pulse>,
    sleep: Option<Sleep>,
}

/// The descriptor to sleep on: readable when the socket is, or when it takes bytes that wait.
struct Sleep {
    epoll: OwnedFd,
    interest: EventFlags,
}

impl Socket {
    pub(super) fn new(pulse: Arc<Pulse>) -> Self {
        Self { pulse, sleep: None }
    }

    /// The descriptor to sleep on, told what to wait for.
    fn sleep_on(&mut self, awaits_room: bool) -> rustix::io::Result<&OwnedFd> {
        let mut interest = EventFlags::IN | EventFlags::RDHUP;
        interest.set(EventFlags::OUT, awaits_room);
        let data = EventData::new_u64(0);
        let sleep = match self.sleep.take() {
            Some(sleep) if sleep.interest == interest => sleep,
            Some(Sleep { epoll, .. }) => {
                epoll::modify(&epoll, self.pulse.stream(), data, interest)?;
                Sleep { epoll, interest }
            }
            None => {
                let epoll = epoll::create(CreateFlags::CLOEXEC)?;
                epoll::add(&epoll, self.pulse.stream(), data, interest)?;
                Sleep { epoll, interest }
            }
        };
        Ok(&self.sleep.insert(sleep).epoll)
    }
}

impl Wire for Socket {
    fn write<'a>(
        &mut self,
        pieces: impl Iterator<Item = IoPiece<'a>>,
    ) -> io::Result<Option<usize>> {
        let written = gather(self.pulse.stream().as_fd(), pieces)?;
        self.pulse.has_sent(written.unwrap_or(0));
        Ok(written)
    }

    fn read(
        &mut self,
        head: Option<(&SlabRange, usize)>,
        rest: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let read = scatter(self.pulse.stream().as_fd(), head, rest)?;
        self.pulse.has_received(read.unwrap_or(0));
        Ok(read)
    }

    fn end(&mut self) {
        self.pulse.end();
    }

    fn arm(&mut self, awaits_room: bool) -> Armed {
        match self.sleep_on(awaits_room) {
            Ok(fd) => Armed::Fd(fd.as_raw_fd()),
            // Without descriptors to sleep on there is only polling.
            Err(_) => Armed::Ready,
        }
    }
}
