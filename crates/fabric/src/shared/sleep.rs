//! How the workers of a process sleep on a connection that they share.
//!
//! ```text
//!   line ──readable──▶ the watcher polls ──event descriptor──▶ those for whom something came
//!                      and hands the watch to one that sleeps, before it is elsewhere
//! ```
//!
//! Of the workers that sleep one watches the line's descriptor. If all did, each arrival would wake
//! them all, and one alone would find something. A watcher that wakes takes what has come, wakes by
//! their event descriptors those for whom it is, and hands the watch on to one that still sleeps,
//! which does not wake by that: the line moves from one epoll set to another.
//!
//! **Nobody sleeps without a watcher that sleeps too, or an awake one that will come by.** Who
//! watches changes under the lock of the connection alone, and there is looked at whenever it was
//! used ([`Watch::settle`]). A watcher that rises leaves word ([`Parker::rise`]) and then tries
//! the lock; if another holds it, that one looks for the word once it has let go.

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::EventFd;

/// A sleeper on a line: a [`Parker`], or one of the model.
pub(super) trait Sleeps {
    /// Whether it sleeps, or will in a moment.
    fn is_asleep(&self) -> bool;
    /// Lets the line wake it. False where it is awake, or the system refuses.
    fn watch(&self, line: RawFd) -> bool;
    /// The line wakes it no more.
    fn unwatch(&self, line: RawFd);
    /// Wakes it, if it sleeps.
    fn ring(&self);
}

/// The sleepers on a line, and the one of them that watches it. Used under the lock of the
/// connection.
pub(super) struct Watch<S> {
    /// The sleepers, and some that have woken.
    parked: Vec<Arc<S>>,
    watcher: Option<(Arc<S>, RawFd)>,
}

impl<S> Default for Watch<S> {
    fn default() -> Self {
        Self { parked: Vec::new(), watcher: None }
    }
}

impl<S: Sleeps> Watch<S> {
    /// Whether anybody sleeps.
    pub(super) fn has_parked(&self) -> bool {
        self.parked.iter().any(|parker| parker.is_asleep())
    }

    /// One lies down, which [is asleep](Sleeps::is_asleep) by now; `line` is the descriptor of the
    /// line, if it has one. False where it must not sleep: nobody would watch.
    pub(super) fn lie_down(&mut self, parker: &Arc<S>, line: Option<RawFd>) -> bool {
        if !self.parked.iter().any(|other| Arc::ptr_eq(other, parker)) {
            self.parked.push(parker.clone());
        }
        line.is_none_or(|line| self.is_watched(line) || self.give(parker, line))
    }

    /// Sees to it that one that sleeps watches the line, if any sleeps.
    pub(super) fn settle(&mut self, line: RawFd) {
        self.parked.retain(|parker| parker.is_asleep());
        while let Some(heir) = self.parked.last().filter(|_| !self.is_watched(line)).cloned() {
            if self.give(&heir, line) {
                return;
            }
            // It has risen, or cannot watch, and then must not sleep.
            heir.ring();
            self.parked.pop();
        }
    }

    /// Wakes all that sleep.
    pub(super) fn rouse(&mut self) {
        self.parked.drain(..).for_each(|parker| parker.ring());
    }

    fn is_watched(&self, line: RawFd) -> bool {
        let watches = |(watcher, of): &(Arc<S>, RawFd)| *of == line && watcher.is_asleep();
        self.watcher.as_ref().is_some_and(watches)
    }

    fn give(&mut self, parker: &Arc<S>, line: RawFd) -> bool {
        match self.watcher.take() {
            // The line that it watched when it last slept still wakes it.
            Some((watcher, of)) if of == line && Arc::ptr_eq(&watcher, parker) => {
                self.watcher = Some((watcher, of));
                return true;
            }
            Some((watcher, of)) => watcher.unwatch(of),
            None => {}
        }
        let watches = parker.watch(line);
        self.watcher = watches.then(|| (parker.clone(), line));
        watches
    }
}

/// The sleep of one worker on a shared connection, for all of its links there. One thread polls
/// them.
#[derive(Default)]
pub(super) struct Parker {
    /// How often the worker has driven the shared connection.
    pub(super) polls: AtomicU64,
    /// Changed under the lock.
    asleep: AtomicBool,
    state: Mutex<State>,
    event_fd: OnceLock<EventFd>,
    epoll: OnceLock<OwnedFd>,
}

#[derive(Default)]
struct State {
    /// The event descriptor was signalled and has not been cleared.
    rung: bool,
    /// The line is in the epoll set.
    watches: bool,
}

impl Parker {
    /// The worker lies down. It has asked for the descriptor on which it will wait, and waits until
    /// [`Parker::rise`].
    pub(super) fn lie_down(&self) {
        let _state = self.state();
        self.asleep.store(true, Ordering::Relaxed);
    }

    /// The worker is awake. True when it slept until now, and watched the line: then who holds the
    /// connection has to look for another watcher. Who has rung it has done so.
    pub(super) fn rise(&self) -> bool {
        let mut state = self.state();
        if std::mem::take(&mut state.rung) {
            self.event_fd.get().into_iter().for_each(EventFd::clear);
        }
        self.asleep.swap(false, Ordering::Relaxed) && state.watches
    }

    /// The descriptor on which it sleeps, if it sleeps on that of a line.
    pub(super) fn lies(&self) -> Option<RawFd> {
        let epoll = self.epoll.get().filter(|_| self.is_asleep());
        epoll.map(|epoll| epoll.as_fd().as_raw_fd())
    }

    /// The descriptor that wakes the worker where it watches no line.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn event_fd(&self) -> std::io::Result<&EventFd> {
        made(&self.event_fd, EventFd::new)
    }

    /// The descriptor that wakes it, and that the line can be added to.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn epoll(&self) -> std::io::Result<RawFd> {
        let event_fd = self.event_fd()?;
        let epoll = made(&self.epoll, || {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, event_fd.fd(), EventData::new_u64(0), EventFlags::IN)?;
            Ok(epoll)
        })?;
        Ok(epoll.as_fd().as_raw_fd())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn made<T>(place: &OnceLock<T>, make: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<&T> {
    if let Some(there) = place.get() {
        return Ok(there);
    }
    let fresh = make()?;
    Ok(place.get_or_init(|| fresh))
}

impl Sleeps for Parker {
    fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    fn watch(&self, line: RawFd) -> bool {
        let mut state = self.state();
        let Some(epoll) = self.epoll.get().filter(|_| self.is_asleep()) else { return false };
        // SAFETY: the descriptor is of the line of the shared connection, which keeps it open.
        let line = unsafe { BorrowedFd::borrow_raw(line) };
        state.watches = epoll::add(epoll, line, EventData::new_u64(1), EventFlags::IN).is_ok();
        state.watches
    }

    fn unwatch(&self, line: RawFd) {
        let mut state = self.state();
        // SAFETY: as above.
        let line = unsafe { BorrowedFd::borrow_raw(line) };
        if let Some(epoll) = self.epoll.get() {
            // It was added, and is there.
            let _ = epoll::delete(epoll, line);
        }
        state.watches = false;
    }

    fn ring(&self) {
        if !self.is_asleep() {
            return;
        }
        let mut state = self.state();
        if self.asleep.swap(false, Ordering::Relaxed) && !std::mem::replace(&mut state.rung, true) {
            // One that sleeps has an event descriptor.
            self.event_fd.get().into_iter().for_each(EventFd::signal);
        }
    }
}
