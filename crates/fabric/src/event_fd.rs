//! An `eventfd`, which wakes a thread that sleeps.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a thread that [waits](crate::wait) for its descriptor.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// An event descriptor that was not signalled.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable until [`EventFd::clear`].
    pub fn signal(&self) {
        // It fails when the counter is full: then it is signalled already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable, if it was signalled.
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// The descriptor; open for as long as `self` lives.
    pub fn raw(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn an_event_fd_that_was_signalled_is_readable_until_it_is_cleared() {
        let event_fd = EventFd::new().unwrap();
        let received = || {
            let mut fds = [PollFd::new(&event_fd.0, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
        };
        assert_eq!(received(), 0);
        event_fd.signal();
        event_fd.signal();
        assert_eq!((received(), received()), (1, 1));
        event_fd.clear();
        assert_eq!(received(), 0);
        event_fd.clear();
        event_fd.signal();
        assert_eq!(received(), 1);
    }
}
