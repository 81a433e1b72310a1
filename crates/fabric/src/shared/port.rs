//! The boundary between a link and its shared connection: operations to post, and events.
//!
//! The owner of the link puts in operations and takes out events; the holder of the shared
//! connection does the reverse. Both locks are held for moments only.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::posted::PostedOperation;
use crate::{Completion, ErrorKind, EventFd, Flags};

/// The shared connection's end of a link.
pub(super) struct Port {
    /// The number by which the peer names it.
    pub(super) number: u16,
    outgoing: Mutex<Outgoing>,
    inbox: Mutex<Inbox>,
    /// Among the shared connection's ports that have something to post.
    pub(super) due: AtomicBool,
    event_fd: OnceLock<EventFd>,
}

/// Operations that the owner has posted.
#[derive(Default)]
pub(super) struct Outgoing {
    pub(super) ops: VecDeque<Op>,
    /// Operations that were posted on the shared connection so far.
    pub(super) posted: u64,
    /// Receives that were ever granted to the peer, where it has not been told.
    pub(super) grant: Option<u64>,
    /// The peer's port; known when the link is connected.
    pub(super) peer: Option<u16>,
    /// Nothing is taken any more.
    pub(super) over: bool,
}

/// Events for the owner.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) events: VecDeque<Event>,
    /// Operations that have completed; where completions are ordered, the first ones.
    pub(super) completed: u64,
    /// Receives that the owner granted, and those that the peer used.
    pub(super) granted: u64,
    pub(super) received: u64,
    /// Receives that the peer has ever granted.
    pub(super) credit: u64,
    /// The last event of the link is there or was taken.
    ended: bool,
    /// There is something that the owner has not looked at.
    pub(super) fresh: bool,
    /// The owner sleeps on its event descriptor.
    asleep: bool,
    /// The event descriptor was signalled and has not been cleared.
    rung: bool,
    /// The owner has closed: only completions interest it.
    pub(super) closed: bool,
    /// The shared connection is gone: nothing comes any more.
    pub(super) over: bool,
}

/// One event of a link.
#[derive(Debug)]
pub(super) enum Event {
    /// The operation has completed, and no other by that: completions are not ordered.
    Done(u64),
    /// A notice or a message.
    Arrived(Completion),
    /// The peer has closed the link.
    Closed,
    /// The shared connection broke; by this operation of the link, where there is one to blame.
    Broken(Option<u64>, ErrorKind),
}

/// An operation that waits.
pub(super) struct Op {
    /// Position among the operations of the link.
    pub(super) seq: u64,
    /// The caller's wishes.
    pub(super) flags: Flags,
    pub(super) what: PostedOperation,
}

impl Inbox {
    /// Appends an event, unless the link has ended. True when the owner has something to look at.
    pub(super) fn push(&mut self, event: Event) -> bool {
        if self.closed || self.ended {
            return false;
        }
        self.ended = matches!(event, Event::Closed | Event::Broken(..));
        self.events.push_back(event);
        true
    }
}

impl Port {
    pub(super) fn new(number: u16) -> Self {
        Self {
            number,
            outgoing: Mutex::default(),
            inbox: Mutex::default(),
            due: AtomicBool::new(false),
            event_fd: OnceLock::new(),
        }
    }

    pub(super) fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the inbox, and wakes the owner if it sleeps and `change` says so. True when it was
    /// woken.
    pub(super) fn tell(&self, change: impl FnOnce(&mut Inbox) -> bool) -> bool {
        let mut inbox = self.inbox();
        let changed = change(&mut inbox);
        inbox.fresh |= changed;
        let wakes = changed && inbox.asleep;
        if wakes {
            inbox.asleep = false;
            inbox.rung = true;
            // One that sleeps has an event descriptor.
            self.event_fd.get().into_iter().for_each(EventFd::signal);
        }
        wakes
    }

    /// Whether there is something that the owner has not looked at.
    pub(super) fn has_news(&self) -> bool {
        self.inbox().fresh
    }

    /// Wakes the owner to look for itself. True when it slept.
    pub(super) fn wake(&self) -> bool {
        self.tell(|_| true)
    }

    /// Lies down to sleep; false when there is something already. The owner has asked for its
    /// [`Port::event_fd`], and waits for it then, until [`Port::unpark`].
    pub(super) fn park(&self) -> bool {
        let mut inbox = self.inbox();
        inbox.asleep = !inbox.fresh;
        inbox.asleep
    }

    /// The owner is awake. True when it was not woken by the shared connection.
    pub(super) fn unpark(&self) -> bool {
        let mut inbox = self.inbox();
        if std::mem::take(&mut inbox.rung) {
            self.event_fd.get().into_iter().for_each(EventFd::clear);
        }
        std::mem::take(&mut inbox.asleep)
    }

    /// The descriptor that wakes the owner.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn event_fd(&self) -> std::io::Result<&EventFd> {
        if let Some(event_fd) = self.event_fd.get() {
            return Ok(event_fd);
        }
        let event_fd = EventFd::new()?;
        Ok(self.event_fd.get_or_init(|| event_fd))
    }
}
