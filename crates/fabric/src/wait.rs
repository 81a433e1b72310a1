//! Sleeping until an endpoint has something to say.

use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Sleeps until one of the descriptors that [`Endpoint::arm`](crate::Endpoint::arm) gave is
/// readable, or the time is over. May wake early. The descriptors stay open meanwhile, as their
/// endpoints are borrowed by the caller's thread.
pub fn wait(descriptors: &[RawFd], timeout: Duration) {
    let mut fds: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|&fd| {
            // SAFETY: the descriptor belongs to an endpoint of the calling thread, which cannot
            // close it during the call.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            PollFd::from_borrowed_fd(fd, PollFlags::IN)
        })
        .collect();
    let timeout = Timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // An interrupted sleep is an early wake-up, which the caller expects.
    let _ = poll(&mut fds, Some(&timeout));
}
