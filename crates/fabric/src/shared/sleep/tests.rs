//! Sleepers on real descriptors.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

fn readable(fd: RawFd) -> bool {
    // SAFETY: the descriptor is of a sleeper that lives.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

/// Three workers that sleep, their descriptors, and a line.
struct Night {
    workers: [Arc<Parker>; 3],
    watch: Watch<Parker>,
    line: EventFd,
}

impl Night {
    fn new() -> Self {
        let workers = std::array::from_fn(|_| Arc::new(Parker::default()));
        let mut night =
            Self { workers, watch: Watch::default(), line: EventFd::new().expect("a descriptor") };
        (0..3).for_each(|at| night.lies_down(at));
        night
    }

    fn lies_down(&mut self, at: usize) {
        self.workers[at].epoll().expect("a descriptor");
        self.workers[at].lie_down();
        assert!(self.watch.lie_down(&self.workers[at], Some(self.line.raw())));
    }

    /// The workers that wake.
    fn woken(&self) -> Vec<usize> {
        let wakes = |at: &usize| readable(self.workers[*at].epoll().expect("a descriptor"));
        (0..3).filter(wakes).collect()
    }
}

#[test]
fn an_arrival_wakes_the_watcher_and_him_for_whom_it_is() {
    let mut night = Night::new();
    assert_eq!(night.woken(), []);
    night.line.signal();
    assert_eq!(night.woken(), [0], "who lay down first watches");
    assert!(night.workers[0].rise());
    // It takes what has come, which is for the last one.
    night.line.clear();
    night.workers[2].ring();
    night.watch.settle(night.line.raw());
    assert_eq!(night.woken(), [2]);
    // The one that still sleeps watches by now, and was not woken by that.
    assert!(!night.workers[2].rise());
    night.line.signal();
    assert_eq!(night.woken(), [1]);
    assert!(night.workers[1].rise());
    assert!(!night.watch.has_parked());
}

#[test]
fn the_watch_is_taken_from_one_that_is_awake_and_stays_with_one_that_sleeps_again() {
    let mut night = Night::new();
    for worker in &night.workers {
        worker.rise();
    }
    night.lies_down(1);
    night.lies_down(0);
    night.line.signal();
    assert_eq!(night.woken(), [1]);
    night.line.clear();
    assert!(night.workers[1].rise());
    night.lies_down(1);
    night.line.signal();
    assert_eq!(night.woken(), [1], "with no more to do than to lie down");
    // What was rung once is cleared by rising, and rings again.
    night.line.clear();
    for _ in 0..2 {
        night.watch.rouse();
        night.watch.rouse();
        assert_eq!(night.woken(), [0, 1]);
        for worker in &night.workers {
            worker.rise();
        }
        assert_eq!(night.woken(), []);
        night.lies_down(0);
        night.lies_down(1);
    }
}

#[test]
fn a_gift_to_one_that_sleeps_whose_line_has_something_wakes_it() {
    let mut night = Night::new();
    let epoll = night.workers[1].epoll().expect("a descriptor");
    let waits = std::thread::spawn(move || crate::wait(&[epoll], Duration::from_secs(60)));
    night.workers[0].rise();
    night.workers[2].rise();
    night.line.signal();
    night.watch.settle(night.line.raw());
    waits.join().expect("no panic");
    assert_eq!(night.woken(), [1]);
}

#[test]
fn a_line_that_wakes_by_another_descriptor_is_watched_by_that() {
    let mut night = Night::new();
    let other = EventFd::new().expect("a descriptor");
    night.watch.settle(other.raw());
    night.line.signal();
    assert_eq!(night.woken(), []);
    other.signal();
    assert_eq!(night.woken().len(), 1);
}
