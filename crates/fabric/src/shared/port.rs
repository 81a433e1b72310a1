//! Where a link and its trunk meet: what waits to be posted, and what has happened.
//!
//! The owner of the link puts in operations and takes out events; whoever holds the trunk does the
//! reverse. Both locks are held for moments only.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{Bell, Completion, ErrorKind, Flags, RemoteRange, SlabRange};

/// The trunk's end of a link.
pub(super) struct Port {
    /// What the peer calls it by.
    pub(super) number: u16,
    outgoing: Mutex<Outgoing>,
    inbox: Mutex<Inbox>,
    /// Among the trunk's ports that have something to post.
    pub(super) due: AtomicBool,
    bell: OnceLock<Bell>,
}

/// What the owner wants posted.
#[derive(Default)]
pub(super) struct Outgoing {
    pub(super) ops: VecDeque<Op>,
    /// Operations that were posted on the trunk so far.
    pub(super) posted: u64,
    /// Receives that were ever granted to the peer, where it has not been told.
    pub(super) grant: Option<u64>,
    /// The peer's port; known when the link is connected.
    pub(super) peer: Option<u16>,
    /// Nothing is taken any more.
    pub(super) over: bool,
}

/// What has happened.
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
    /// The owner sleeps on its bell.
    asleep: bool,
    /// The bell was rung and has not been silenced.
    rung: bool,
    /// The owner has closed: only completions interest it.
    pub(super) closed: bool,
    /// The trunk is gone: nothing comes any more.
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
    /// The trunk broke; by this operation of the link, where there is one to blame.
    Broken(Option<u64>, ErrorKind),
}

/// An operation that waits.
pub(super) struct Op {
    /// Position among the operations of the link.
    pub(super) seq: u64,
    /// The caller's wishes.
    pub(super) flags: Flags,
    pub(super) what: What,
}

pub(super) enum What {
    Write { src: Source, dst: RemoteRange, notice: Option<u32> },
    Read { dst: SlabRange, src: RemoteRange },
    Add { dst: RemoteRange, add: u64, old: SlabRange },
    Swap { dst: RemoteRange, expect: u64, swap: u64, old: SlabRange },
    Send(Vec<u8>),
}

/// Bytes of a write.
pub(super) enum Source {
    Slab(SlabRange),
    Copied(Vec<u8>),
    Empty,
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
            bell: OnceLock::new(),
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
        let news = change(&mut inbox);
        inbox.fresh |= news;
        let wakes = news && inbox.asleep;
        if wakes {
            inbox.asleep = false;
            inbox.rung = true;
            // One that sleeps has a bell.
            self.bell.get().into_iter().for_each(Bell::ring);
        }
        wakes
    }

    /// Wakes the owner to look for itself. True when it slept.
    pub(super) fn wake(&self) -> bool {
        self.tell(|_| true)
    }

    /// Lies down to sleep; false when there is something already. The owner has asked for its
    /// [`Port::bell`], and waits for it then, until [`Port::rise`].
    pub(super) fn lie_down(&self) -> bool {
        let mut inbox = self.inbox();
        inbox.asleep = !inbox.fresh;
        inbox.asleep
    }

    /// The owner is awake. True when it was not woken by the trunk.
    pub(super) fn rise(&self) -> bool {
        let mut inbox = self.inbox();
        if std::mem::take(&mut inbox.rung) {
            self.bell.get().into_iter().for_each(Bell::silence);
        }
        std::mem::take(&mut inbox.asleep)
    }

    /// What wakes the owner.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn bell(&self) -> std::io::Result<&Bell> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell);
        }
        let bell = Bell::new()?;
        Ok(self.bell.get_or_init(|| bell))
    }
}
