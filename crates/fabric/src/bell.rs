//! Waking a thread that sleeps.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a thread that [waits](crate::wait) for its descriptor.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell that was not rung.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable until the bell is silenced.
    pub fn ring(&self) {
        // It fails when the counter is full: then it has been rung.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable, if it was rung.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// The descriptor; open for as long as the bell lives.
    pub fn raw(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_bell_that_was_rung_can_be_heard_until_it_is_silenced() {
        let bell = Bell::new().unwrap();
        let heard = || {
            let mut fds = [PollFd::new(&bell.0, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
        };
        assert_eq!(heard(), 0);
        bell.ring();
        bell.ring();
        assert_eq!((heard(), heard()), (1, 1));
        bell.silence();
        assert_eq!(heard(), 0);
        bell.silence();
        bell.ring();
        assert_eq!(heard(), 1);
    }
}
