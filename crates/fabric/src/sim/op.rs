//! The life of an operation: posted, started, arrived; then landed, done and observed, in any
//! order; and retired once it is done.

use super::bytes::{self, Cut, PIECE, Piece};
use super::link::{Entry, State};
use super::net::{EndId, Net, OpRef, What};
use super::options::POISON;
use crate::validate::PostRequest;
use crate::{ErrorKind, Flags, OpId, PostError, Publish, RemoteRange, Slab, SlabRange, Src};

/// The effect of an operation at its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Write,
    Read,
    Add(u64),
    Swap(u64, u64),
    Send,
}

impl Kind {
    /// Answers with data, so that fenced operations wait for it.
    pub(super) fn fetches(self) -> bool {
        !matches!(self, Kind::Write | Kind::Send)
    }
}

/// A posted operation.
pub(super) struct Post<'a> {
    pub kind: Kind,
    pub src: Src<'a>,
    /// Where a read's or an atomic's answer goes.
    pub answer: Option<&'a SlabRange>,
    /// Bytes at the target.
    pub len: usize,
    pub dst: RemoteRange,
    pub notice: Option<u32>,
    pub id: OpId,
    pub flags: Flags,
}

/// A record; see the invariant of `net.rs`.
#[derive(Debug)]
pub(super) struct Op {
    pub generation: u32,
    pub end: EndId,
    /// Position among the operations of its end.
    pub seq: u64,
    /// Position among the operations of the net.
    pub index: u64,
    pub id: OpId,
    pub kind: Kind,
    pub flags: Flags,
    pub notice: Option<u32>,
    pub dst: RemoteRange,
    pub len: usize,
    /// The source, read piece by piece, or the place of the answer.
    pub local: Option<SlabRange>,
    /// The source once it was copied, a message, or an atomic's old value.
    pub bytes: Vec<u8>,
    /// The source's hash at the post.
    pub hash: Option<u64>,
    /// The memory at the target, from when the key was checked until all bytes have moved.
    pub target: Option<(Slab, usize)>,
    /// The pieces that have not landed yet; the last lands first.
    pub pieces: Vec<Piece>,
    pub burst: usize,
    pub arrived: bool,
    pub done: bool,
    pub reported: bool,
    /// Goes on although its connection ended.
    pub zombie: bool,
    /// Events before this time are of the life before it became a zombie.
    pub not_before: u64,
    /// Its notice waits in the target's completions.
    pub queued: bool,
    pub retired: bool,
    pub landed: bool,
    pub observed: bool,
}

impl Net {
    pub(super) fn post(&mut self, end: EndId, post: Post<'_>) -> Result<(), PostError> {
        self.validate(end, &post)?;
        let op = self.record(end, &post);
        let (index, hash) = (op.index as usize, self.ops[op.index as usize].hash.unwrap_or(0));
        self.trace(9, post.id.0, hash ^ post.dst.offset ^ (post.len as u64) << 40);
        let e = &mut self.ends[end as usize];
        if post.notice.is_some() || post.kind == Kind::Send {
            e.allowance = e.allowance.saturating_sub(1);
        }
        self.ops[index].seq = e.posted;
        e.posted += 1;
        e.outstanding.push_back(op);
        e.unsubmitted.push_back(op);
        Ok(())
    }

    fn validate(&self, end: EndId, post: &Post<'_>) -> Result<(), PostError> {
        let e = &self.ends[end as usize];
        let asked = match post.answer {
            None if post.kind == Kind::Send => PostRequest::Send { len: post.len },
            None => {
                PostRequest::Write { src: post.src, dst: post.dst, notifies: post.notice.is_some() }
            }
            Some(answer) if post.kind == Kind::Read => {
                PostRequest::Read { dst: answer, src: post.dst }
            }
            Some(old) => PostRequest::Atomic { dst: post.dst, old },
        };
        let has_receive = || e.allowance > 0 || !self.options.keep.receive_budget;
        let open = e.state == State::Open;
        self.options.caps().validate(asked, open, e.outstanding.len(), has_receive)
    }

    fn record(&mut self, end: EndId, post: &Post<'_>) -> OpRef {
        let index = self.free.pop().unwrap_or_else(|| {
            self.ops.push(Op::unused());
            self.ops.len() as u32 - 1
        });
        let counted = self.stats.ops;
        self.stats.ops += 1;
        let check = self.options.check_sources;
        let op = &mut self.ops[index as usize];
        (op.end, op.index, op.id, op.kind, op.flags) =
            (end, counted, post.id, post.kind, post.flags);
        (op.notice, op.dst, op.len) = (post.notice, post.dst, post.len);
        op.local = post.answer.cloned();
        match post.src {
            Src::Slab(range) => op.local = Some(range.clone()),
            Src::Inline(bytes) => op.bytes.extend_from_slice(bytes),
            Src::Empty => {}
        }
        if check && op.kind == Kind::Write {
            op.hash = op.local.as_ref().map(hash_of);
        }
        op.landed = matches!(op.kind, Kind::Send) || op.len == 0;
        op.observed = op.notice.is_none() && op.kind != Kind::Send;
        OpRef { index, generation: op.generation }
    }

    /// The record, while it is still in the use that the caller means.
    pub(super) fn live(&mut self, op: OpRef) -> Option<&mut Op> {
        let record = &mut self.ops[op.index as usize];
        (record.generation == op.generation).then_some(record)
    }

    /// Begins: the operation is on its way.
    pub(super) fn start(&mut self, op: OpRef) {
        let record = &self.ops[op.index as usize];
        let (end, kind, has_bytes) = (record.end as usize, record.kind, record.len > 0);
        if kind.fetches() {
            self.ends[end].fetching += 1;
        } else if has_bytes && kind == Kind::Write {
            self.prune(end as EndId);
            self.ends[end].flying.push_back(op);
        }
        let record = &self.ops[op.index as usize];
        let delay = self.rng.delay(&self.options.latency_ns);
        if self.options.fail_at == Some(record.index) {
            return self.after(delay, What::Break(op));
        }
        if kind == Kind::Send && self.options.keep.sends_in_order {
            let at = (self.now() + delay).max(self.ends[end].last_send_at);
            self.ends[end].last_send_at = at;
            return self.at(at, What::Arrive(op));
        }
        self.after(delay, What::Arrive(op));
    }

    pub(super) fn arrive(&mut self, op: OpRef) {
        let now = self.now();
        let Some(record) = self.live(op) else { return };
        if record.arrived || now < record.not_before {
            return;
        }
        record.arrived = true;
        let (end, kind, zombie, seq) = (record.end, record.kind, record.zombie, record.seq);
        let answers_later = kind == Kind::Read && record.len > 0;
        let fenced_read = kind == Kind::Read && record.flags.has(Flags::FENCE);
        let tells = record.notice.is_some() || kind == Kind::Send;
        if self.ends[end as usize].broken && !zombie {
            return;
        }
        let Some(peer) = self.ends[end as usize].peer else { return };
        if fenced_read && self.options.keep.fence {
            self.release(end, seq);
        }
        if !self.enter(op, peer) {
            let live = !zombie && self.ends[peer as usize].state == State::Open;
            self.drop_bytes(op);
            self.recycle(op);
            if live {
                self.fail(end, Some(op), ErrorKind::RemoteAccess);
            }
            return;
        }
        if zombie || self.ends[peer as usize].state != State::Open {
            return;
        }
        if tells {
            if self.ends[peer as usize].receives == 0 {
                return self.fail(end, Some(op), ErrorKind::ReceiverNotReady);
            }
            self.ends[peer as usize].receives -= 1;
            let delay =
                if kind == Kind::Send { 0 } else { self.rng.delay(&self.options.latency_ns) };
            self.after(delay, What::Tell(op));
        }
        if !answers_later {
            let delay = self.rng.delay(&self.options.completion_ns);
            self.after(delay, What::Done(op));
        }
    }

    /// Checks the key and takes effect at the target, or begins to; false when the key does not
    /// hold.
    fn enter(&mut self, op: OpRef, peer: EndId) -> bool {
        let record = &self.ops[op.index as usize];
        if record.kind == Kind::Send || record.len == 0 {
            return true;
        }
        let (kind, dst, len) = (record.kind, record.dst, record.len);
        let Some((slab, offset)) = self.resolve(kind, peer, dst, len) else { return false };
        let retired = self.ends[peer as usize].is_retired(&dst.key);
        match kind {
            Kind::Add(_) | Kind::Swap(..) => self.exchange(op, &slab, offset, retired),
            Kind::Write if retired => {
                self.drop_bytes(op);
                return true;
            }
            _ => {
                self.cut(op, &slab, offset);
                let delay = self.rng.delay(&self.options.placement_ns);
                self.after(delay, What::Land(op));
                self.ops[op.index as usize].target = Some((slab, offset));
            }
        }
        true
    }

    fn exchange(&mut self, op: OpRef, slab: &Slab, offset: usize, retired: bool) {
        let record = &mut self.ops[op.index as usize];
        let mut old = [0; 8];
        bytes::load(slab.words(), offset, &mut old);
        let value = u64::from_le_bytes(old);
        let new = match record.kind {
            _ if retired => value,
            Kind::Add(n) => value.wrapping_add(n),
            Kind::Swap(expect, swap) if expect == value => swap,
            _ => value,
        };
        bytes::store(slab.words(), offset, &new.to_le_bytes());
        record.bytes.extend_from_slice(&old);
        record.landed = true;
    }

    fn cut(&mut self, op: OpRef, slab: &Slab, offset: usize) {
        let o = &self.options;
        let how = Cut {
            in_order: o.publish == Publish::InOrderPoll && o.keep.in_order_poll,
            whole_words: o.keep.whole_words,
        };
        let record = &mut self.ops[op.index as usize];
        bytes::cut(&mut self.rng, offset, record.len, how, &mut record.pieces);
        record.burst = record.pieces.len().div_ceil(1 + self.rng.below(8) as usize);
        if o.poison && record.kind == Kind::Write {
            let spared = ((offset + record.len) & !7).saturating_sub(8);
            let end = if spared >= offset { spared } else { offset };
            for at in (offset..end).step_by(PIECE) {
                bytes::store(slab.words(), at, &[POISON; PIECE][..PIECE.min(end - at)]);
            }
        }
    }

    pub(super) fn land(&mut self, op: OpRef) {
        let now = self.now();
        let Some(record) = self.live(op) else { return };
        let (end, burst, zombie) = (record.end as usize, record.burst, record.zombie);
        if record.landed || now < record.not_before || (self.ends[end].broken && !zombie) {
            return;
        }
        self.place(op, burst);
        let record = &self.ops[op.index as usize];
        if !record.landed {
            let delay = 1 + self.rng.delay(&self.options.placement_ns) / 4;
            self.after(delay, What::Land(op));
        } else if record.kind == Kind::Read && !zombie {
            let delay = self.rng.delay(&self.options.completion_ns);
            self.after(delay, What::Done(op));
        }
        self.recycle(op);
    }

    /// Moves up to `n` pieces.
    fn place(&mut self, op: OpRef, n: usize) {
        let record = &mut self.ops[op.index as usize];
        let Some((slab, base)) = &record.target else { return };
        let (to, mut buffer) = (slab.words(), [0; PIECE]);
        let from = record.local.as_ref().map(|local| (local.slab().words(), local.offset()));
        for _ in 0..n {
            let Some(piece) = record.pieces.pop() else { break };
            let (at, buffer) = (piece.at as usize, &mut buffer[..piece.len as usize]);
            self.stats.pieces += 1;
            self.stats.bytes += buffer.len() as u64;
            match (from, record.kind) {
                (Some((words, offset)), Kind::Read) => {
                    bytes::load(to, base + at, buffer);
                    bytes::store(words, offset + at, buffer);
                }
                (Some((words, offset)), _) => {
                    bytes::load(words, offset + at, buffer);
                    bytes::store(to, base + at, buffer);
                }
                (None, _) => bytes::store(to, base + at, &record.bytes[at..at + buffer.len()]),
            }
        }
        record.landed = record.pieces.is_empty();
        record.target = record.target.take().filter(|_| !record.landed);
    }

    /// Makes every write of `end` posted before `before` visible.
    pub(super) fn release(&mut self, end: EndId, before: u64) {
        for i in 0..self.ends[end as usize].flying.len() {
            let Some(&op) = self.ends[end as usize].flying.get(i) else { break };
            match self.live(op) {
                Some(record) if record.seq >= before => break,
                Some(_) => self.release_one(op),
                None => {}
            }
        }
        self.prune(end);
    }

    /// Forgets the writes at the front that have landed.
    fn prune(&mut self, end: EndId) {
        let Net { ends, ops, .. } = self;
        let flying = &mut ends[end as usize].flying;
        while let Some(op) = flying.front() {
            let record = &ops[op.index as usize];
            if record.generation == op.generation && !record.landed {
                break;
            }
            flying.pop_front();
        }
    }

    pub(super) fn release_one(&mut self, op: OpRef) {
        self.arrive(op);
        if self.live(op).is_some_and(|record| !record.landed && record.kind == Kind::Write) {
            self.place(op, usize::MAX);
            self.recycle(op);
        }
    }

    pub(super) fn done(&mut self, op: OpRef) {
        let Some(record) = self.live(op) else { return };
        let (end, kind, late) = (record.end, record.kind, record.reported || record.done);
        if late || self.ends[end as usize].broken {
            return;
        }
        let record = &mut self.ops[op.index as usize];
        record.done = true;
        if let (Kind::Add(_) | Kind::Swap(..), Some(answer)) = (kind, &record.local) {
            bytes::store(answer.slab().words(), answer.offset(), &record.bytes);
        }
        self.report(end, op);
        if kind.fetches() {
            self.ends[end as usize].fetching -= 1;
            self.pump(end);
        }
    }

    pub(super) fn tell(&mut self, op: OpRef) {
        let Some(record) = self.live(op) else { return };
        let (end, imm, observed) = (record.end, record.notice, record.observed);
        let Some(peer) = self.ends[end as usize].peer else { return };
        if observed {
            return;
        }
        if self.ends[end as usize].broken {
            self.ops[op.index as usize].observed = true;
            return self.recycle(op);
        }
        let record = &mut self.ops[op.index as usize];
        let entry = match imm {
            Some(imm) => {
                record.queued = true;
                Entry::Notify { imm, op }
            }
            None => {
                record.observed = true;
                Entry::Recv(std::mem::take(&mut record.bytes))
            }
        };
        self.ends[peer as usize].completions.push_back(entry);
        self.recycle(op);
    }

    /// Ends the poster's interest: from here on the source may change.
    pub(super) fn retire(&mut self, op: OpRef) {
        let keep = self.options.keep.local_means_reusable;
        if keep {
            self.check_source(op);
        }
        let record = &mut self.ops[op.index as usize];
        record.retired = true;
        if keep && !record.landed && record.kind == Kind::Write {
            record.copy_source();
        }
        self.recycle(op);
    }

    /// # Panics
    /// When the source has changed since the post: the caller broke its side of the contract.
    pub(super) fn check_source(&self, op: OpRef) {
        let record = &self.ops[op.index as usize];
        if let (Some(hash), Some(local)) = (record.hash, &record.local) {
            assert!(
                hash == hash_of(local),
                "sim: the source of operation {} of {} changed before its Local completion (G5)",
                record.id.0,
                self.ends[record.end as usize].link,
            );
        }
    }

    /// Loses what has not moved yet.
    pub(super) fn drop_bytes(&mut self, op: OpRef) {
        let record = &mut self.ops[op.index as usize];
        record.pieces.clear();
        record.target = None;
        record.arrived = true;
        record.landed = true;
    }

    /// Frees the record when nothing refers to it any more.
    pub(super) fn recycle(&mut self, op: OpRef) {
        let record = &mut self.ops[op.index as usize];
        if record.generation == op.generation && record.retired && record.landed && record.observed
        {
            record.reset();
            self.free.push(op.index);
        }
    }
}

impl Op {
    fn unused() -> Self {
        let key = crate::RemoteKey { key: 0, base: 0, len: 0 };
        Self {
            generation: 0,
            end: 0,
            seq: 0,
            index: 0,
            id: OpId(0),
            kind: Kind::Write,
            flags: Flags::NONE,
            notice: None,
            dst: RemoteRange { key, offset: 0 },
            len: 0,
            local: None,
            bytes: Vec::new(),
            hash: None,
            target: None,
            pieces: Vec::new(),
            burst: 1,
            arrived: false,
            done: false,
            reported: false,
            zombie: false,
            not_before: 0,
            queued: false,
            retired: false,
            landed: false,
            observed: false,
        }
    }

    /// Ready for the next use, with the capacity of its vectors.
    fn reset(&mut self) {
        let (mut bytes, mut pieces) =
            (std::mem::take(&mut self.bytes), std::mem::take(&mut self.pieces));
        bytes.clear();
        pieces.clear();
        *self =
            Self { generation: self.generation.wrapping_add(1), bytes, pieces, ..Self::unused() };
    }

    /// Some of its bytes may have moved, and not all.
    pub(super) fn is_landing(&self) -> bool {
        self.target.is_some()
    }

    /// From here on the pieces come from a copy.
    pub(super) fn copy_source(&mut self) {
        if let Some(local) = self.local.take() {
            self.bytes.resize(local.len(), 0);
            bytes::load(local.slab().words(), local.offset(), &mut self.bytes);
            self.hash = None;
        }
    }
}

fn hash_of(range: &SlabRange) -> u64 {
    bytes::hash(range.slab().words(), range.offset(), range.len())
}
