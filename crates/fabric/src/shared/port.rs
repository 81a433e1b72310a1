//! The boundary between a link and its shared connection: operations to post, and events.
//!
//! The owner of the link puts in operations and takes out events; the holder of the shared
//! connection does the reverse. Both locks are held for moments only.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sleep::{Parker, Sleeps};
use crate::posted::PostedOperation;
use crate::{Completion, ErrorKind, Flags};

/// The shared connection's end of a link.
pub(super) struct Port {
    /// The number by which the peer names it.
    pub(super) number: u16,
    outgoing: Mutex<Outgoing>,
    inbox: Mutex<Inbox>,
    /// Among the shared connection's ports that have something to post.
    pub(super) due: AtomicBool,
    /// The sleep of the worker that owns the link.
    pub(super) parker: Arc<Parker>,
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
    pub(super) fn new(number: u16, parker: Arc<Parker>) -> Self {
        Self {
            number,
            outgoing: Mutex::default(),
            inbox: Mutex::default(),
            due: AtomicBool::new(false),
            parker,
        }
    }

    pub(super) fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the inbox, and wakes the owner if it sleeps and `change` says so.
    pub(super) fn tell(&self, change: impl FnOnce(&mut Inbox) -> bool) {
        let mut inbox = self.inbox();
        if change(&mut inbox) {
            inbox.fresh = true;
            self.parker.ring();
        }
    }

    /// Whether there is something that the owner has not looked at.
    pub(super) fn has_news(&self) -> bool {
        self.inbox().fresh
    }

    /// The descriptor on which the worker sleeps for the line, if it has lain down already and
    /// there is nothing for this link.
    pub(super) fn lies(&self) -> Option<RawFd> {
        let inbox = self.inbox();
        // An event from now on finds that it sleeps, or that it was woken.
        self.parker.lies().filter(|_| !inbox.fresh)
    }

    /// Lies down to sleep, until [`Parker::rise`]; false when there is something already.
    pub(super) fn park(&self) -> bool {
        let inbox = self.inbox();
        if !inbox.fresh {
            self.parker.lie_down();
        }
        !inbox.fresh
    }
}
