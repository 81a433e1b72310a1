//! A connected pair with memory, and the small verbs that the cases are written in.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::Bed;
use crate::{
    Caps, Completion, Endpoint, ErrorKind, Fabric, Flags, LinkId, OpId, PostError, RemoteKey,
    RemoteRange, Slab, SlabRange, Src,
};

/// Bytes of each side's memory.
pub const MEMORY: usize = 256 << 10;
/// Receives that each side posts at the start.
pub const RECVS: u32 = 64;
/// How long a promised event may take on a real transport. Only a broken promise waits that long.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Rounds after which silence counts as silence.
const QUIET_ROUNDS: usize = 400;

/// One end of the connection under test.
pub struct ConnectionEnd {
    /// The node's fabric.
    pub fabric: Arc<dyn Fabric>,
    /// The end.
    pub end: Box<dyn Endpoint>,
    /// Memory of which all is exported.
    pub memory: Slab,
    /// The peer's memory.
    pub peer: RemoteKey,
    /// Completions that `poll` has returned and no case has taken yet.
    pub seen: Vec<Completion>,
    next_id: u64,
}

/// The two sides of a fresh connection, called `a` and `b`, on a bed.
pub struct Rig<'b> {
    /// The side that most cases post from.
    pub a: ConnectionEnd,
    /// The side that most cases watch.
    pub b: ConnectionEnd,
    /// Further connections between the same nodes; see [`Rig::another`].
    pub others: Vec<(ConnectionEnd, ConnectionEnd)>,
    bed: &'b mut dyn Bed,
    links: u32,
}

impl<'b> Rig<'b> {
    /// A fresh connection with exported memory and posted receives.
    pub fn new(bed: &'b mut dyn Bed) -> Self {
        let (a, b) = sides(bed, 0);
        let mut rig = Self { a, b, others: Vec::new(), bed, links: 1 };
        rig.a.allow(RECVS);
        rig.b.allow(RECVS);
        rig.until("receives are announced", |rig| {
            rig.a.end.budget().notices >= RECVS && rig.b.end.budget().notices >= RECVS
        });
        rig
    }

    /// The capabilities of the connection.
    pub fn caps(&self) -> Caps {
        self.a.end.caps()
    }

    /// The bed, for cases that make fabrics and offers of their own.
    pub fn bed(&mut self) -> &mut dyn Bed {
        self.bed
    }

    /// One more connection between the same nodes, without receives; returns its place in
    /// [`Rig::others`].
    pub fn another(&mut self) -> usize {
        self.links += 1;
        self.others.push(sides(self.bed, self.links - 1));
        self.others.len() - 1
    }

    /// Polls all sides once and lets the network act.
    pub fn turn(&mut self) {
        self.a.poll();
        self.b.poll();
        for (a, b) in &mut self.others {
            a.poll();
            b.poll();
        }
        self.bed.step();
    }

    /// Turns until the condition holds.
    ///
    /// # Panics
    /// When it does not within the patience of the suite.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        loop {
            if done(self) {
                return;
            }
            self.turn();
            assert!(start.elapsed() < TIMEOUT, "waited in vain until {what}");
        }
    }

    /// Turns for a while, so that what is not promised to come had its chance.
    pub fn quiet(&mut self) {
        for _ in 0..QUIET_ROUNDS {
            self.turn();
        }
    }

    /// Posts with turns in between for as long as the queue is full.
    ///
    /// # Panics
    /// At any other error.
    pub fn post<T>(&mut self, mut post: impl FnMut(&mut Self) -> Result<T, PostError>) -> T {
        let mut posted = None;
        self.until("there is room", |rig| match post(rig) {
            Ok(value) => {
                posted = Some(value);
                true
            }
            Err(PostError::Full) => false,
            Err(other) => panic!("cannot post: {other}"),
        });
        posted.expect("the loop ends with a value")
    }

    /// Writes from `a` to `b` with a notice, and awaits both ends of it.
    pub fn publish(&mut self, from: usize, to: usize, len: usize, imm: u32) {
        let id = self.post(|rig| rig.a.write_notify(from, to, len, imm));
        self.notice(imm);
        self.local(id);
        self.b.allow(1);
    }

    /// Awaits `Local` of an operation that `a` posted.
    pub fn local(&mut self, id: OpId) {
        self.until("Local", |rig| rig.a.take(&Completion::Local { id }));
    }

    /// Awaits a notice at `b`.
    pub fn notice(&mut self, imm: u32) {
        self.until("Notify", |rig| rig.b.take(&Completion::Notify { imm }));
    }

    /// Awaits the refusal of an operation that `a` tries to post: refused at the call, or by the
    /// peer.
    pub fn refused(&mut self, posted: Result<OpId, PostError>) {
        match posted {
            Err(PostError::OutOfBounds) => {}
            Err(other) => panic!("refused with the wrong error: {other}"),
            Ok(id) => {
                self.until("the peer refuses", |rig| !rig.a.errors().is_empty());
                assert_eq!(self.a.errors()[0], self.refusal(id));
            }
        }
    }

    /// The first error that `a` sees when the peer has refused an operation.
    pub fn refusal(&self, id: OpId) -> (Option<OpId>, ErrorKind) {
        if self.caps().names_refused {
            (Some(id), ErrorKind::RemoteAccess)
        } else {
            (None, ErrorKind::Disconnected)
        }
    }
}

impl ConnectionEnd {
    /// Polls once into [`ConnectionEnd::seen`], if the end says that it has news: all cases show
    /// that it says so.
    pub fn poll(&mut self) {
        if !self.end.has_news() {
            return;
        }
        let before = self.seen.len();
        let n = self.end.poll(&mut self.seen);
        assert_eq!(self.seen.len() - before, n, "poll returns how many it appended");
    }

    /// Takes a completion out of what was seen.
    pub fn take(&mut self, wanted: &Completion) -> bool {
        match self.seen.iter().position(|c| c == wanted) {
            Some(at) => {
                self.seen.remove(at);
                true
            }
            None => false,
        }
    }

    /// Allows the peer `n` more notices or messages.
    pub fn allow(&mut self, n: u32) {
        self.end.post_recvs(n);
        self.end.submit();
    }

    /// How often an operation's outcome was seen: `(Local, Error)`.
    pub fn outcomes(&self, id: OpId) -> (usize, usize) {
        let of = |wanted: bool| {
            let hit = |c: &&Completion| match c {
                Completion::Local { id: seen } => wanted && *seen == id,
                Completion::Error { id: seen, .. } => !wanted && *seen == Some(id),
                _ => false,
            };
            self.seen.iter().filter(hit).count()
        };
        (of(true), of(false))
    }

    /// Whether an operation's outcome was seen.
    pub fn settled(&self, id: OpId) -> bool {
        self.outcomes(id) != (0, 0)
    }

    /// The errors seen so far, in order.
    pub fn errors(&self) -> Vec<(Option<OpId>, ErrorKind)> {
        let error = |c: &Completion| match c {
            Completion::Error { id, kind } => Some((*id, *kind)),
            _ => None,
        };
        self.seen.iter().filter_map(error).collect()
    }

    /// A number that no other operation of this side has.
    pub fn id(&mut self) -> OpId {
        self.next_id += 1;
        OpId(self.next_id)
    }

    /// A place in the peer's memory.
    pub fn at(&self, offset: usize) -> RemoteRange {
        RemoteRange { key: self.peer, offset: offset as u64 }
    }

    /// A part of this side's memory.
    pub fn range(&self, offset: usize, len: usize) -> SlabRange {
        self.memory.range(offset..offset + len).expect("a case stays inside of the memory")
    }

    /// Posts and starts a signalled write of this side's memory to the peer's.
    pub fn write(&mut self, from: usize, to: usize, len: usize) -> Result<OpId, PostError> {
        let (id, src, dst) = (self.id(), self.range(from, len), self.at(to));
        self.end.write(Src::Slab(&src), dst, id, Flags::SIGNAL)?;
        self.end.submit();
        Ok(id)
    }

    /// As [`ConnectionEnd::write`], with a notice.
    pub fn write_notify(
        &mut self,
        from: usize,
        to: usize,
        len: usize,
        imm: u32,
    ) -> Result<OpId, PostError> {
        let (id, src, dst) = (self.id(), self.range(from, len), self.at(to));
        self.end.write_notify(Src::Slab(&src), dst, imm, id, Flags::SIGNAL)?;
        self.end.submit();
        Ok(id)
    }

    /// Posts and starts a message.
    pub fn send(&mut self, bytes: &[u8]) -> Result<OpId, PostError> {
        let id = self.id();
        self.end.send(bytes, id)?;
        self.end.submit();
        Ok(id)
    }

    /// Posts and starts a notice without bytes.
    pub fn notify(&mut self, imm: u32) -> Result<OpId, PostError> {
        let (id, dst) = (self.id(), self.at(0));
        self.end.write_notify(Src::Empty, dst, imm, id, Flags::SIGNAL)?;
        self.end.submit();
        Ok(id)
    }

    /// Posts and starts a signalled read of the peer's memory into this side's.
    pub fn read(
        &mut self,
        from: usize,
        to: usize,
        len: usize,
        flags: Flags,
    ) -> Result<OpId, PostError> {
        let (id, dst, src) = (self.id(), self.range(to, len), self.at(from));
        self.end.read(&dst, src, id, flags | Flags::SIGNAL)?;
        self.end.submit();
        Ok(id)
    }

    /// Fills memory with [`pattern`] of this seed.
    pub fn fill(&self, offset: usize, len: usize, seed: u64) {
        self.set(offset, &pattern(seed, len));
    }

    /// Stores bytes, word by word.
    pub fn set(&self, offset: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (at, skip) = ((offset + done) & !7, (offset + done) & 7);
            let n = (8 - skip).min(bytes.len() - done);
            let mut word = self.memory.load(at, Ordering::Relaxed).to_le_bytes();
            word[skip..skip + n].copy_from_slice(&bytes[done..done + n]);
            self.memory.store(at, u64::from_le_bytes(word), Ordering::Relaxed);
            done += n;
        }
    }

    /// Loads bytes, word by word.
    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let (first, end) = (offset & !7, offset + len);
        let word = |at: usize| self.memory.load(at, Ordering::Relaxed).to_le_bytes();
        let words: Vec<u8> = (first..end).step_by(8).flat_map(word).collect();
        words[offset - first..end - first].to_vec()
    }
}

/// Bytes that no other seed gives, and of which no two neighbouring words are equal.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

fn sides(bed: &mut dyn Bed, n: u32) -> (ConnectionEnd, ConnectionEnd) {
    let [fabric_a, fabric_b] = bed.fabrics();
    let (left, right) = (2 * n, 2 * n + 1);
    let offer_a = fabric_a.offer(LinkId { local: left, remote: right }).expect("an offer");
    let offer_b = fabric_b.offer(LinkId { local: right, remote: left }).expect("an offer");
    let [end_a, end_b] = bed.connect([offer_a, offer_b]);
    let (mut a, mut b) = (side(fabric_a, end_a), side(fabric_b, end_b));
    let all = |side: &ConnectionEnd| side.range(0, MEMORY);
    b.peer = carry(a.end.export(&all(&a)).expect("own memory can be exported"));
    a.peer = carry(b.end.export(&all(&b)).expect("own memory can be exported"));
    (a, b)
}

fn side(fabric: Arc<dyn Fabric>, end: Box<dyn Endpoint>) -> ConnectionEnd {
    let memory = fabric.slab(MEMORY).expect("a small slab");
    let nothing = RemoteKey { key: 0, base: 0, len: 0 };
    ConnectionEnd { fabric, end, memory, peer: nothing, seen: Vec::new(), next_id: 0 }
}

/// A key as it arrives after its way over the control plane.
fn carry(key: RemoteKey) -> RemoteKey {
    RemoteKey::decode(&key.encode()).expect("an encoded key decodes")
}
