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
pub const MEMORY: usize = 1 << 20;
/// Receives that each side posts at the start.
pub const RECVS: u32 = 64;
/// How long a promised event may take on a real transport. Only a broken promise waits that long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rounds after which silence counts as silence.
const QUIET_ROUNDS: usize = 400;

/// One end of the connection under test.
pub struct Side {
    /// The node's fabric.
    pub fabric: Arc<dyn Fabric>,
    /// The end.
    pub end: Box<dyn Endpoint>,
    /// Memory of which all is exported.
    pub memory: Slab,
    /// The peer's memory.
    pub peer: RemoteKey,
    /// What `poll` has returned and no case has taken yet.
    pub seen: Vec<Completion>,
    next_id: u64,
}

/// The two sides of a fresh connection, called `a` and `b`, on a bed.
pub struct Rig<'b> {
    /// The side that most cases post from.
    pub a: Side,
    /// The side that most cases watch.
    pub b: Side,
    bed: &'b mut dyn Bed,
    links: u32,
}

impl<'b> Rig<'b> {
    /// A fresh connection with exported memory and posted receives.
    pub fn new(bed: &'b mut dyn Bed) -> Self {
        let (a, b) = sides(bed, 0);
        let mut rig = Self { a, b, bed, links: 1 };
        rig.a.end.post_recvs(RECVS);
        rig.b.end.post_recvs(RECVS);
        rig.a.end.submit();
        rig.b.end.submit();
        rig.until("receives are announced", |rig| {
            rig.a.end.budget().notices >= RECVS && rig.b.end.budget().notices >= RECVS
        });
        rig
    }

    /// What the connection can do.
    pub fn caps(&self) -> Caps {
        self.a.end.caps()
    }

    /// The bed, for cases that make connections of their own.
    pub fn bed(&mut self) -> &mut dyn Bed {
        self.bed
    }

    /// One more connection between the same nodes, without receives.
    pub fn another(&mut self) -> (Side, Side) {
        self.links += 1;
        sides(self.bed, self.links - 1)
    }

    /// Polls both sides once and lets the network act.
    pub fn turn(&mut self) {
        self.a.poll();
        self.b.poll();
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
            assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        }
    }

    /// Turns for a while, so that what is not promised to come had its chance.
    pub fn quiet(&mut self) {
        for _ in 0..QUIET_ROUNDS {
            self.turn();
        }
    }

    /// Awaits `Local` of an operation that `a` posted.
    pub fn local(&mut self, id: OpId) {
        self.until("Local", |rig| rig.a.take(&Completion::Local { id }));
    }

    /// Awaits a notice at `b`.
    pub fn notice(&mut self, imm: u32) {
        self.until("Notify", |rig| rig.b.take(&Completion::Notify { imm }));
    }

    /// Awaits the refusal of an operation that `a` tries to post: refused at the call, or by the peer.
    pub fn refused(&mut self, posted: Result<OpId, PostError>) {
        match posted {
            Err(PostError::OutOfBounds) => {}
            Err(other) => panic!("refused with the wrong error: {other}"),
            Ok(id) => {
                let kind = ErrorKind::RemoteAccess;
                self.until("the peer refuses", |rig| {
                    rig.a.take(&Completion::Error { id: Some(id), kind })
                });
            }
        }
    }
}

impl Side {
    /// Polls once into [`Side::seen`].
    pub fn poll(&mut self) {
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

    /// As [`Side::write`], with a notice.
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
        for (i, &byte) in bytes.iter().enumerate() {
            let (word, shift) = ((offset + i) & !7, ((offset + i) & 7) * 8);
            let old = self.memory.load(word, Ordering::Relaxed) & !(0xff << shift);
            self.memory.store(word, old | u64::from(byte) << shift, Ordering::Relaxed);
        }
    }

    /// Loads bytes, word by word.
    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        let word = |at: usize| self.memory.load(at & !7, Ordering::Relaxed).to_le_bytes();
        (offset..offset + len).map(|at| word(at)[at & 7]).collect()
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

fn sides(bed: &mut dyn Bed, n: u32) -> (Side, Side) {
    let [fabric_a, fabric_b] = bed.fabrics();
    let (left, right) = (2 * n, 2 * n + 1);
    let offer_a = fabric_a.offer(LinkId { local: left, remote: right }).expect("an offer");
    let offer_b = fabric_b.offer(LinkId { local: right, remote: left }).expect("an offer");
    let [end_a, end_b] = bed.connect([offer_a, offer_b]);
    let (mut a, mut b) = (side(fabric_a, end_a), side(fabric_b, end_b));
    let all = |side: &Side| side.range(0, MEMORY);
    b.peer = carry(a.end.export(&all(&a)).expect("own memory can be exported"));
    a.peer = carry(b.end.export(&all(&b)).expect("own memory can be exported"));
    (a, b)
}

fn side(fabric: Arc<dyn Fabric>, end: Box<dyn Endpoint>) -> Side {
    let memory = fabric.slab(MEMORY).expect("a small slab");
    let nothing = RemoteKey { key: 0, base: 0, len: 0 };
    Side { fabric, end, memory, peer: nothing, seen: Vec::new(), next_id: 0 }
}

/// A key as it arrives after its way over the control plane.
fn carry(key: RemoteKey) -> RemoteKey {
    RemoteKey::decode(&key.encode()).expect("an encoded key decodes")
}
