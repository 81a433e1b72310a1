//! The state of a simulated network and its queue of events. Operations live in `op.rs`,
//! connections in `link.rs`.
//!
//! Invariant: an operation's record is reused only after it was retired (its poster has seen the
//! outcome), landed (no byte of it can move any more) and observed (its notice was polled or lost).
//! Events name a record by index and generation, so that an event of an earlier use is void.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::group::Groups;
use super::link::{End, Offered};
use super::op::Op;
use super::options::{SimOptions, SimStats};
use super::published::Published;
use super::rng::{Rng, mix};
use crate::Backing;

/// Index of an end of a connection.
pub(super) type EndId = u32;

/// A use of an operation's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpRef {
    pub index: u32,
    pub generation: u32,
}

/// An event that the network schedules by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// The operation reaches its target.
    Arrive(OpRef),
    /// Some of its bytes land.
    Land(OpRef),
    /// Its poster learns that it is done.
    Done(OpRef),
    /// Its notice or message reaches the target's completions.
    Tell(OpRef),
    /// It breaks its connection.
    Break(OpRef),
    /// The other side's receives become known.
    Credit(EndId, u32),
    /// The end learns that its connection is gone.
    Fail(EndId),
    /// A copy of a datagram arrives.
    Datagram(u32),
    /// A paused node goes on.
    Resume(u32),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at: u64,
    order: u64,
    what: What,
}

#[derive(Debug, Default)]
pub(super) struct Node {
    pub dead: bool,
    pub paused_until: u64,
    /// The memory that the node registered; the net does not keep it alive.
    pub slabs: Vec<Weak<dyn Backing>>,
    /// The ranges that every peer may read, by key.
    pub published: BTreeMap<u64, Published>,
}

pub(super) struct Net {
    pub options: SimOptions,
    pub rng: Rng,
    pub nonce: u64,
    pub clock: Arc<AtomicU64>,
    pub nodes: BTreeMap<u32, Node>,
    pub cuts: BTreeSet<(u32, u32)>,
    pub offers: Vec<Offered>,
    pub ends: Vec<End>,
    pub ops: Vec<Op>,
    pub free: Vec<u32>,
    pub groups: Groups,
    pub stats: SimStats,
    pub trace: u64,
    queue: BinaryHeap<Reverse<Event>>,
    order: u64,
}

impl Net {
    pub(super) fn new(options: SimOptions) -> Self {
        let mut rng = Rng::new(options.seed);
        let nonce = rng.next();
        Self {
            options,
            rng,
            nonce,
            clock: Arc::default(),
            nodes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            offers: Vec::new(),
            ends: Vec::new(),
            ops: Vec::new(),
            free: Vec::new(),
            groups: Groups::default(),
            stats: SimStats::default(),
            trace: nonce,
            queue: BinaryHeap::new(),
            order: 0,
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub(super) fn next_event(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(event)| event.at)
    }

    /// Adds to the hash of everything that happened.
    pub(super) fn trace(&mut self, tag: u64, a: u64, b: u64) {
        let word = mix(a ^ tag.rotate_left(56)) ^ b;
        self.trace = (self.trace.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    pub(super) fn after(&mut self, delay_ns: u64, what: What) {
        let at = self.now() + delay_ns;
        self.at(at, what);
    }

    pub(super) fn at(&mut self, at: u64, what: What) {
        self.order += 1;
        self.queue.push(Reverse(Event { at, order: self.order, what }));
    }

    /// The next event takes place; false when there is none.
    pub(super) fn step(&mut self) -> bool {
        let Some(Reverse(event)) = self.queue.pop() else { return false };
        self.clock.store(event.at, Ordering::Relaxed);
        self.stats.events += 1;
        let (tag, subject) = match event.what {
            What::Arrive(op) => (1, op.index),
            What::Land(op) => (2, op.index),
            What::Done(op) => (3, op.index),
            What::Tell(op) => (4, op.index),
            What::Break(op) => (5, op.index),
            What::Credit(end, _) => (6, end),
            What::Fail(end) => (7, end),
            What::Resume(node) => (8, node),
            What::Datagram(flight) => (17, flight),
        };
        self.trace(tag, event.at, u64::from(subject));
        match event.what {
            What::Arrive(op) => self.arrive(op),
            What::Land(op) => self.land(op),
            What::Done(op) => self.done(op),
            What::Tell(op) => self.tell(op),
            What::Break(op) => self.break_at(op),
            What::Credit(end, n) => self.ends[end as usize].allowance += n,
            What::Fail(end) => self.fail_late(end),
            What::Datagram(flight) => self.datagram(flight),
            What::Resume(_) => {}
        }
        true
    }

    pub(super) fn advance_to(&mut self, at: u64) {
        while self.next_event().is_some_and(|next| next <= at) {
            self.step();
        }
        if at > self.now() {
            self.clock.store(at, Ordering::Relaxed);
        }
    }
}
