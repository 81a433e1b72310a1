//! Connections: how they are made, the state of an end, and how they end.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::net::{EndId, Net, OpRef, What};
use super::op::Kind;
use super::rng::mix;
use crate::{
    Budget, Completion, ErrorKind, FabricError, Flags, LinkId, Publish, RemoteKey, RemoteRange,
    Slab, SlabRange,
};

/// One side of a connection that is or was being made.
pub(super) struct Offered {
    pub node: u32,
    pub link: LinkId,
    /// Once it was used, the end and the peer's offer.
    pub used: Option<(EndId, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// The connection broke; the memory is still exported.
    Failed,
    /// The owner has closed, or died.
    Closed,
}

/// Completions that wait for a poll.
pub(super) enum Entry {
    Local(OpRef),
    /// Done without `SIGNAL`.
    Silent(OpRef),
    Notify {
        imm: u32,
        op: OpRef,
    },
    Recv(Vec<u8>),
    Error {
        op: Option<OpRef>,
        kind: ErrorKind,
    },
}

struct Export {
    key: RemoteKey,
    slab: Slab,
    /// Bytes that are written there are lost.
    retired: bool,
}

/// One end of a connection.
pub(super) struct End {
    pub node: u32,
    pub link: LinkId,
    pub state: State,
    /// Nothing of the connection moves any more, zombies apart.
    pub broken: bool,
    pub peer: Option<EndId>,
    /// Operations posted so far.
    pub posted: u64,
    /// Not retired yet, in the order of posting.
    pub outstanding: VecDeque<OpRef>,
    pub unsubmitted: VecDeque<OpRef>,
    /// Submitted, but behind a fence or ahead of the peer's connect.
    pub held: VecDeque<OpRef>,
    /// Started writes, in the order of posting; those that have landed are skipped.
    pub flying: VecDeque<OpRef>,
    /// Started reads and atomics without an answer.
    pub fetching: u32,
    pub last_send_at: u64,
    /// Receives of the peer that are known and unused.
    pub allowance: u32,
    /// Posted receives that no notice or message has used.
    pub receives: u32,
    pub completions: VecDeque<Entry>,
    exports: Vec<Export>,
}

impl End {
    fn new(node: u32, link: LinkId) -> Self {
        Self {
            node,
            link,
            state: State::Open,
            broken: false,
            peer: None,
            posted: 0,
            outstanding: VecDeque::new(),
            unsubmitted: VecDeque::new(),
            held: VecDeque::new(),
            flying: VecDeque::new(),
            fetching: 0,
            last_send_at: 0,
            allowance: 0,
            receives: 0,
            completions: VecDeque::new(),
            exports: Vec::new(),
        }
    }

    /// Whether what a peer does with this key is lost.
    pub(super) fn is_retired(&self, key: &RemoteKey) -> bool {
        self.exports.iter().any(|e| e.retired && e.key.key == key.key)
    }

    /// The memory that a peer's key means. All of it is checked: a peer may have made it up.
    pub(super) fn resolve(&self, range: RemoteRange, len: usize) -> Option<(Slab, usize)> {
        let export = self.exports.iter().find(|e| e.key.key == range.key.key)?;
        let end = range.offset.checked_add(len as u64)?;
        let fits = export.key.base == range.key.base && end <= export.key.len;
        fits.then(|| (export.slab.clone(), (export.key.base + range.offset) as usize))
    }
}

impl Net {
    pub(super) fn offer(&mut self, node: u32, link: LinkId) -> Result<u32, FabricError> {
        if self.dead(node) {
            return Err(refused(link));
        }
        self.offers.push(Offered { node, link, used: None });
        Ok(self.offers.len() as u32 - 1)
    }

    pub(super) fn connect(&mut self, mine: u32, theirs: u32) -> Result<EndId, FabricError> {
        let (node, link) = (self.offers[mine as usize].node, self.offers[mine as usize].link);
        let Some(peer) = self.offers.get(theirs as usize) else {
            return Err(FabricError::Malformed { what: "address" });
        };
        if (peer.link.local, peer.link.remote) != (link.remote, link.local) {
            return Err(FabricError::Malformed { what: "address: it is of another link" });
        }
        let (peer_node, used) = (peer.node, peer.used);
        let taken = used.is_some_and(|(_, other)| other != mine);
        if taken || self.dead(node) || self.dead(peer_node) {
            return Err(refused(link));
        }
        let end = self.ends.len() as EndId;
        self.ends.push(End::new(node, link));
        self.offers[mine as usize].used = Some((end, theirs));
        if let Some((peer, _)) = used {
            self.establish(end, peer, self.cuts.contains(&pair(node, peer_node)));
        }
        Ok(end)
    }

    fn establish(&mut self, a: EndId, b: EndId, cut: bool) {
        for (end, peer) in [(a, b), (b, a)] {
            self.ends[end as usize].peer = Some(peer);
            self.ends[end as usize].broken = cut;
            let open = self.ends[peer as usize].state == State::Open;
            if cut || !open {
                let delay = self.rng.delay(&self.options.detection_ns);
                self.after(delay, What::Fail(end));
            }
            let receives = self.ends[peer as usize].receives;
            let delay = self.rng.delay(&self.options.latency_ns);
            self.after(delay, What::Credit(end, receives));
        }
        self.pump(a);
        self.pump(b);
    }

    pub(super) fn dead(&self, node: u32) -> bool {
        self.nodes.get(&node).is_some_and(|n| n.dead)
    }

    pub(super) fn export(
        &mut self,
        end: EndId,
        range: &SlabRange,
    ) -> Result<RemoteKey, FabricError> {
        let node = self.ends[end as usize].node;
        let key = self.key_of(node, range.exportable()?)?;
        self.ends[end as usize].exports.push(Export {
            key,
            slab: range.slab().clone(),
            retired: false,
        });
        Ok(key)
    }

    /// A new key for a range of the node's own memory.
    pub(super) fn key_of(
        &mut self,
        node: u32,
        range: &SlabRange,
    ) -> Result<RemoteKey, FabricError> {
        let backing = Arc::as_ptr(range.slab().backing());
        let same = |slab: &Weak<_>| std::ptr::addr_eq(slab.as_ptr(), backing);
        let own = self.nodes.get(&node).is_some_and(|n| n.slabs.iter().any(same));
        if !own {
            return Err(FabricError::ForeignSlab);
        }
        let key = mix(self.rng.next());
        Ok(RemoteKey { key, base: range.offset() as u64, len: range.len() as u64 })
    }

    pub(super) fn revoke(&mut self, end: EndId, key: RemoteKey) {
        if !self.options.keep.stop_after_close {
            return;
        }
        self.settle(end);
        self.ends[end as usize].exports.retain(|e| e.key.key != key.key);
        self.stop_inbound(end, |range| range.key.key == key.key);
    }

    /// As [`Net::revoke`], without fault for what comes later.
    pub(super) fn retire_key(&mut self, end: EndId, key: RemoteKey) {
        if !self.options.keep.stop_after_close {
            return;
        }
        self.settle(end);
        let exports = &mut self.ends[end as usize].exports;
        exports.iter_mut().filter(|e| e.key.key == key.key).for_each(|e| e.retired = true);
        self.stop_inbound(end, |range| range.key.key == key.key);
    }

    pub(super) fn post_receives(&mut self, end: EndId, n: u32) {
        let e = &mut self.ends[end as usize];
        e.receives = e.receives.saturating_add(n);
        if let (Some(peer), false) = (e.peer, e.broken) {
            let delay = self.rng.delay(&self.options.latency_ns);
            self.after(delay, What::Credit(peer, n));
        }
    }

    pub(super) fn submit(&mut self, end: EndId) {
        let e = &mut self.ends[end as usize];
        e.held.append(&mut e.unsubmitted);
        self.pump(end);
    }

    /// Starts what is held, as far as fences allow.
    pub(super) fn pump(&mut self, end: EndId) {
        while let Some(&op) = self.ends[end as usize].held.front() {
            let e = &self.ends[end as usize];
            let fenced = self.ops[op.index as usize].flags.has(Flags::FENCE);
            let waits = fenced && e.fetching > 0 && self.options.keep.fence;
            if e.peer.is_none() || waits {
                return;
            }
            self.ends[end as usize].held.pop_front();
            self.start(op);
        }
    }

    /// Queues the completion of a done operation, or of all that it lets through where completions
    /// are ordered.
    pub(super) fn report(&mut self, end: EndId, op: OpRef) {
        let Net { ends, ops, options, .. } = self;
        let e = &mut ends[end as usize];
        let mut queue = |op: OpRef| {
            let record = &mut ops[op.index as usize];
            record.reported = true;
            let signalled = record.flags.has(Flags::SIGNAL);
            e.completions.push_back(if signalled { Entry::Local(op) } else { Entry::Silent(op) });
        };
        if !(options.ordered_completions && options.keep.ordered_completions) {
            return queue(op);
        }
        for &op in &e.outstanding {
            let record = &mut ops[op.index as usize];
            if !record.done {
                break;
            }
            if !record.reported {
                record.reported = true;
                if record.flags.has(Flags::SIGNAL) {
                    e.completions.push_back(Entry::Local(op));
                }
            }
        }
    }

    pub(super) fn budget(&self, end: EndId) -> Budget {
        let e = &self.ends[end as usize];
        if e.state != State::Open {
            return Budget { ops: 0, notices: 0 };
        }
        let ops = self.options.max_ops - e.outstanding.len() as u32;
        let bounded = self.options.keep.receive_budget;
        Budget { ops, notices: if bounded { e.allowance } else { u32::MAX } }
    }

    pub(super) fn has_events(&self, end: EndId) -> bool {
        !self.ends[end as usize].completions.is_empty() && self.runs(self.ends[end as usize].node)
    }

    /// Whether the node's code would run now.
    pub(super) fn runs(&self, node: u32) -> bool {
        self.nodes.get(&node).is_none_or(|n| !n.dead && n.paused_until <= self.now())
    }

    pub(super) fn poll(&mut self, end: EndId, out: &mut Vec<Completion>) -> usize {
        if !self.has_events(end) {
            return 0;
        }
        let before = out.len();
        while let Some(entry) = self.ends[end as usize].completions.pop_front() {
            let (tag, completion) = match entry {
                Entry::Silent(op) => {
                    self.retire_through(end, op);
                    continue;
                }
                Entry::Local(op) => {
                    let id = self.ops[op.index as usize].id;
                    self.retire_through(end, op);
                    (id.0, Completion::Local { id })
                }
                Entry::Notify { imm, op } => {
                    self.show(op);
                    self.stats.notices += 1;
                    (u64::from(imm), Completion::Notify { imm })
                }
                Entry::Recv(bytes) => {
                    self.stats.messages += 1;
                    (bytes.len() as u64, Completion::Recv { bytes })
                }
                Entry::Error { op, kind } => {
                    let id = op.map(|op| self.ops[op.index as usize].id);
                    if let Some(op) = op {
                        self.ends[end as usize].outstanding.retain(|other| *other != op);
                        self.retire(op);
                    }
                    (kind as u64, Completion::Error { id, kind })
                }
            };
            self.stats.completions += 1;
            self.trace(10, u64::from(end), tag);
            out.push(completion);
        }
        out.len() - before
    }

    fn retire_through(&mut self, end: EndId, op: OpRef) {
        if self.options.ordered_completions && self.options.keep.ordered_completions {
            while let Some(first) = self.ends[end as usize].outstanding.pop_front() {
                self.retire(first);
                if first == op {
                    return;
                }
            }
        } else {
            self.ends[end as usize].outstanding.retain(|other| *other != op);
            self.retire(op);
        }
    }

    /// A notice is about to be polled: the writes that it releases become visible.
    fn show(&mut self, op: OpRef) {
        let record = &self.ops[op.index as usize];
        let (end, seq) = (record.end, record.seq);
        if self.options.keep.notify_releases {
            match self.options.publish {
                Publish::NotifyCounted => self.release_one(op),
                _ => self.release(end, seq + 1),
            }
        }
        self.ops[op.index as usize].observed = true;
        self.recycle(op);
    }

    /// Keeps the promises of notices that `end` has received and not polled, before something may
    /// break them.
    fn settle(&mut self, end: EndId) {
        if !self.options.keep.notify_releases {
            return;
        }
        for i in 0..self.ends[end as usize].completions.len() {
            if let Entry::Notify { op, .. } = self.ends[end as usize].completions[i] {
                let record = &self.ops[op.index as usize];
                let (sender, seq) = (record.end, record.seq);
                match self.options.publish {
                    Publish::NotifyCounted => self.release_one(op),
                    _ => self.release(sender, seq + 1),
                }
            }
        }
    }

    /// Drops what is under way to memory of `end`.
    fn stop_inbound(&mut self, end: EndId, concerns: impl Fn(&RemoteRange) -> bool) {
        let Some(peer) = self.ends[end as usize].peer else { return };
        for i in 0..self.ends[peer as usize].flying.len() {
            let op = self.ends[peer as usize].flying[i];
            if self.live(op).is_some_and(|record| concerns(&record.dst) && record.arrived) {
                self.drop_bytes(op);
                self.recycle(op);
            }
        }
    }

    pub(super) fn close(&mut self, end: EndId) {
        if self.ends[end as usize].state == State::Closed {
            return;
        }
        self.settle(end);
        self.fail(end, None, ErrorKind::Flushed);
        self.ends[end as usize].state = State::Closed;
        if self.options.keep.stop_after_close {
            self.ends[end as usize].exports.clear();
            self.stop_inbound(end, |_| true);
        }
    }

    /// The owner is gone: nobody will poll.
    pub(super) fn forget(&mut self, end: EndId) {
        self.close(end);
        let completions = std::mem::take(&mut self.ends[end as usize].completions);
        for entry in completions {
            if let Entry::Notify { op, .. } = entry {
                self.ops[op.index as usize].observed = true;
                self.recycle(op);
            }
        }
        while let Some(op) = self.ends[end as usize].outstanding.pop_front() {
            self.ops[op.index as usize].retired = true;
            self.recycle(op);
        }
    }

    pub(super) fn kill(&mut self, node: u32) {
        self.nodes.entry(node).or_default().dead = true;
        self.trace(11, u64::from(node), 0);
        self.leave_all(node);
        for end in 0..self.ends.len() {
            if self.ends[end].node == node {
                self.forget(end as EndId);
            }
        }
    }

    pub(super) fn cut_link(&mut self, a: u32, b: u32) {
        self.cuts.insert(pair(a, b));
        self.trace(12, u64::from(a), u64::from(b));
        for end in 0..self.ends.len() as EndId {
            let e = &self.ends[end as usize];
            let Some(peer) = e.peer else { continue };
            let concerned = e.node == a && self.ends[peer as usize].node == b;
            if concerned && !e.broken {
                self.break_link(end, peer);
                for end in [end, peer] {
                    let delay = self.rng.delay(&self.options.detection_ns);
                    self.after(delay, What::Fail(end));
                }
            }
        }
    }

    fn break_link(&mut self, end: EndId, peer: EndId) {
        self.settle(end);
        self.settle(peer);
        self.ends[end as usize].broken = true;
        self.ends[peer as usize].broken = true;
    }

    /// An end learns that its connection is gone, sometimes by an operation of its own.
    pub(super) fn fail_late(&mut self, end: EndId) {
        let ops = &self.ops;
        let mut waiting = self.ends[end as usize].outstanding.iter();
        let first = waiting.find(|op| !ops[op.index as usize].reported).copied();
        let blame = if self.rng.coin() { first } else { None };
        self.fail(end, blame, ErrorKind::Disconnected);
    }

    pub(super) fn break_at(&mut self, op: OpRef) {
        if let Some(record) = self.live(op) {
            let end = record.end;
            self.fail(end, Some(op), ErrorKind::Disconnected);
        }
    }

    /// Ends the connection at this end. `Flushed` without a culprit is the end's own wish and gives
    /// no error of its own.
    pub(super) fn fail(&mut self, end: EndId, blame: Option<OpRef>, kind: ErrorKind) {
        if self.ends[end as usize].state != State::Open {
            return;
        }
        if let Some(peer) = self.ends[end as usize].peer {
            self.break_link(end, peer);
            let delay = self.rng.delay(&self.options.detection_ns);
            self.after(delay, What::Fail(peer));
        }
        self.stats.failures += u64::from(kind != ErrorKind::Flushed);
        self.trace(13, u64::from(end), kind as u64);
        let e = &mut self.ends[end as usize];
        e.state = State::Failed;
        e.fetching = 0;
        e.held.clear();
        e.unsubmitted.clear();
        let blame = blame.filter(|op| {
            let record = &self.ops[op.index as usize];
            record.generation == op.generation && !record.reported
        });
        if blame.is_some() || kind != ErrorKind::Flushed {
            e.completions.push_back(Entry::Error { op: blame, kind });
        }
        self.flush(end, blame);
        for i in 0..self.ends[end as usize].flying.len() {
            self.abandon(self.ends[end as usize].flying[i]);
        }
    }

    fn flush(&mut self, end: EndId, blame: Option<OpRef>) {
        for i in 0..self.ends[end as usize].outstanding.len() {
            let op = self.ends[end as usize].outstanding[i];
            let record = &mut self.ops[op.index as usize];
            if !record.queued {
                record.observed = true;
            }
            if record.kind != Kind::Write || !self.ends[end as usize].flying.contains(&op) {
                self.drop_bytes(op);
            }
            let record = &mut self.ops[op.index as usize];
            if !record.reported && Some(op) != blame {
                let kind = ErrorKind::Flushed;
                self.ends[end as usize].completions.push_back(Entry::Error { op: Some(op), kind });
            }
            record.reported = true;
        }
    }

    /// A write whose connection ended is lost, or goes on for a while as a zombie.
    fn abandon(&mut self, op: OpRef) {
        let Some(record) = self.live(op) else { return };
        if record.landed {
            return;
        }
        if !record.queued {
            record.observed = true;
        }
        let arrived = record.arrived;
        let early = record.local.is_some() && self.options.keep.local_means_reusable;
        if self.rng.coin() {
            if early {
                self.check_source(op);
                self.ops[op.index as usize].copy_source();
            }
            self.ops[op.index as usize].zombie = true;
            self.stats.zombies += 1;
            let delay = self.rng.delay(&self.options.zombie_ns);
            self.ops[op.index as usize].not_before = self.now() + delay;
            self.after(delay, if arrived { What::Land(op) } else { What::Arrive(op) });
        } else {
            self.drop_bytes(op);
            self.recycle(op);
        }
    }
}

/// A link between nodes, in either direction.
pub(super) fn pair(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}

fn refused(link: LinkId) -> FabricError {
    FabricError::Connect {
        link: link.to_string(),
        source: std::io::ErrorKind::ConnectionRefused.into(),
    }
}
