//! The device: operations posted, under way and completed.
//!
//! One thread of the library moves everything, a small step at a time, and chooses at random what
//! moves next, within what the InfiniBand specification promises to users of a reliable connection:
//!
//! * requests execute in order, except that a read may be answered late, and what follows it
//!   without a fence then executes before;
//! * the bytes of a write are placed in pieces, in any order, until a notice, a message, a read or
//!   an atomic behind it executes; also after the sender has its completion;
//! * completions come in order, some time after the execution;
//! * when a queue pair is destroyed or a region is deregistered, nothing lands there any more. The
//!   death of the *sender* stops nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::air::Air;
use crate::knobs::{Knobs, Rng};
use crate::memory::{ScatterPiece, change, load, store};
use crate::sys;

/// More of `enum ibv_wc_status`: codes that only the device reports.
const WC_LOC_QP_OP_ERR: i32 = 2;
const WC_LOC_PROT_ERR: i32 = 4;
const WC_WR_FLUSH_ERR: i32 = 5;
const WC_RETRY_EXC_ERR: i32 = 12;

/// How long a request waits for a peer that is not there.
const RETRY_TIMEOUT: Duration = Duration::from_millis(100);

/// A registered region.
pub(crate) struct Region {
    pub(crate) pd: u64,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: i32,
}

/// A completion queue.
pub(crate) struct Completions {
    pub(crate) cq: u64,
    pub(crate) channel: u64,
    pub(crate) capacity: usize,
    pub(crate) armed: bool,
    /// With each, the queue pair and how many of its requests are retired by it.
    pub(crate) entries: VecDeque<(sys::Wc, u32, u64)>,
}

/// Receives of a shared queue: name, place and length.
pub(crate) struct Receives {
    pub(crate) pd: u64,
    pub(crate) capacity: usize,
    pub(crate) posted: VecDeque<(u64, sys::Sge)>,
}

/// The bytes of a request.
#[derive(Clone)]
pub(crate) enum Bytes {
    Inline(Vec<u8>),
    At(sys::Sge),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Waiting,
    /// A read that is answered later.
    Late,
    Done(i32),
}

/// A posted request.
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) opcode: i32,
    pub(crate) flags: u32,
    pub(crate) imm: u32,
    pub(crate) bytes: Bytes,
    pub(crate) target: sys::Atomic,
    /// Number among those of its queue pair.
    pub(crate) number: u64,
    /// The source when it was read.
    seen: Option<Vec<u8>>,
    progress: Progress,
}

/// A queue pair.
pub(crate) struct Pair {
    pub(crate) qp: u64,
    pub(crate) pd: u64,
    pub(crate) cq: u64,
    pub(crate) srq: u64,
    /// Of datagrams: all that follows up to the key.
    pub(crate) datagrams: bool,
    pub(crate) receive_cq: u64,
    pub(crate) receives_max: usize,
    pub(crate) receives: VecDeque<(u64, sys::Sge)>,
    pub(crate) key: u32,
    pub(crate) state: i32,
    pub(crate) peer: u32,
    pub(crate) capacity: u64,
    pub(crate) posted: u64,
    pub(crate) retired: u64,
    queue: VecDeque<Request>,
    /// Writes of peers that have not reached memory.
    landing: Vec<ScatterPiece>,
    absent_since: Option<Instant>,
}

/// All of it.
pub(crate) struct Nic {
    pub(crate) knobs: Knobs,
    rng: Rng,
    executed: u64,
    /// Writes under way to queue pairs that are gone; nothing, on a device that keeps its
    /// promises.
    undead: Vec<ScatterPiece>,
    pub(crate) regions: BTreeMap<u32, Region>,
    pub(crate) completions: BTreeMap<u64, Completions>,
    pub(crate) receives: BTreeMap<u64, Receives>,
    pub(crate) pairs: BTreeMap<u32, Pair>,
    pub(crate) air: Air,
    /// Asynchronous events: of which object, which one.
    pub(crate) events: VecDeque<(u64, i32)>,
    /// Objects of events that were taken and not acknowledged.
    pub(crate) unacknowledged: Vec<u64>,
    /// Channels and contexts that have something to say.
    pub(crate) wake: Vec<u64>,
}

impl Request {
    /// Takes over a request of the caller.
    pub(crate) fn new(wr: &sys::SendWr, bytes: Bytes, number: u64, datagram: bool) -> Self {
        // SAFETY: all members of the union are numbers; the larger one covers the smaller one.
        let atomic = unsafe { wr.wr.atomic };
        let target = match wr.opcode {
            // SAFETY: the caller's request of a queue pair of datagrams.
            _ if datagram => unsafe { crate::air::target(wr) },
            sys::WR_ATOMIC_CMP_AND_SWP | sys::WR_ATOMIC_FETCH_AND_ADD => atomic,
            _ => {
                // SAFETY: as above.
                let rdma = unsafe { wr.wr.rdma };
                sys::Atomic { remote_addr: rdma.remote_addr, rkey: rdma.rkey, ..atomic }
            }
        };
        Self {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            imm: wr.imm_data,
            bytes,
            target,
            number,
            seen: None,
            progress: Progress::Waiting,
        }
    }

    fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Inline(bytes) => bytes.len(),
            Bytes::At(sge) => sge.length as usize,
        }
    }
}

impl Pair {
    pub(crate) fn new(qp: u64, pd: u64, cq: u64, srq: u64, capacity: u64) -> Self {
        Self {
            qp,
            pd,
            cq,
            srq,
            datagrams: false,
            receive_cq: cq,
            receives_max: 0,
            receives: VecDeque::new(),
            key: 0,
            state: 0,
            peer: 0,
            capacity,
            posted: 0,
            retired: 0,
            queue: VecDeque::new(),
            landing: Vec::new(),
            absent_since: None,
        }
    }

    pub(crate) fn post(&mut self, request: Request) {
        self.posted += 1;
        self.queue.push_back(request);
    }

    /// The first request that can execute.
    fn next(&self) -> Option<usize> {
        let at = self.queue.iter().position(|r| r.progress == Progress::Waiting)?;
        let late = self.queue.iter().take(at).any(|r| r.progress == Progress::Late);
        let fenced = self.queue[at].flags & sys::SEND_FENCE != 0;
        (!(late && fenced)).then_some(at)
    }
}

impl Nic {
    pub(crate) fn new(knobs: Knobs) -> Self {
        let rng = Rng(knobs.seed);
        Self {
            knobs,
            rng,
            executed: 0,
            undead: Vec::new(),
            regions: BTreeMap::new(),
            completions: BTreeMap::new(),
            receives: BTreeMap::new(),
            pairs: BTreeMap::new(),
            air: Air::default(),
            events: VecDeque::new(),
            unacknowledged: Vec::new(),
            wake: Vec::new(),
        }
    }

    /// A number below `n`, by chance.
    pub(crate) fn draw(&mut self, n: usize) -> usize {
        self.rng.below(n)
    }

    /// Whether writes land after the memory was taken away, as no device may.
    pub(crate) fn breaks_revoke(&self) -> bool {
        self.knobs.break_revoke
    }

    /// Destroys a queue pair; writes that have not landed there are dropped.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(pair) = self.pairs.remove(&number).filter(|_| self.knobs.break_revoke) {
            self.undead.extend(pair.landing);
        }
    }

    /// Takes a region away from the device.
    pub(crate) fn forget(&mut self, key: u32) {
        self.regions.remove(&key);
        if !self.knobs.break_revoke {
            self.pairs.values_mut().for_each(|pair| pair.landing.retain(|piece| piece.key != key));
        }
    }

    /// Moves something; false when nothing can.
    pub(crate) fn step(&mut self) -> bool {
        if let Some(piece) = self.undead.pop().filter(|piece| self.is_mapped(piece)) {
            // SAFETY: a region covers the place.
            unsafe { piece.place() };
        }
        let numbers: Vec<u32> = self.pairs.keys().copied().collect();
        if numbers.is_empty() {
            return false;
        }
        let first = self.rng.below(numbers.len());
        let mut moved = self.arrive();
        for i in 0..numbers.len() {
            let number = numbers[(first + i) % numbers.len()];
            moved |= match self.rng.below(4) {
                0 | 1 => self.place_one(number) || self.execute(number) || self.complete(number),
                2 => self.execute(number) || self.complete(number) || self.place_one(number),
                _ => self.complete(number) || self.place_one(number) || self.execute(number),
            };
        }
        moved
    }

    /// Whether a piece goes to memory that some region still covers.
    fn is_mapped(&self, piece: &ScatterPiece) -> bool {
        let covers =
            |region: &Region| piece.addr >= region.addr && piece.end() <= region.addr + region.len;
        !self.knobs.break_revoke || self.regions.values().any(covers)
    }

    /// Places some pieces of what is under way to a queue pair.
    fn place_one(&mut self, number: u32) -> bool {
        // A write that lands late enough lands after a revoke.
        if self.knobs.break_revoke && self.rng.below(64) > 0 {
            return false;
        }
        if self.pairs.get(&number).is_none_or(|pair| pair.landing.is_empty()) {
            return false;
        }
        for _ in 0..1 + self.rng.below(16) {
            let Some(pair) = self.pairs.get_mut(&number).filter(|p| !p.landing.is_empty()) else {
                break;
            };
            let mut at = self.rng.below(pair.landing.len());
            if self.knobs.in_order {
                // The first piece of the write that was drawn.
                let write = pair.landing[at].write;
                at = pair.landing.iter().position(|piece| piece.write == write).unwrap_or(at);
            }
            let piece = if self.knobs.in_order {
                pair.landing.remove(at)
            } else {
                pair.landing.swap_remove(at)
            };
            if self.is_mapped(&piece) {
                // SAFETY: pieces of regions that were deregistered are dropped before that returns,
                // so that the region is still mapped; or another region covers the place.
                unsafe { piece.place() };
            }
        }
        true
    }

    fn place_all(&mut self, number: u32) {
        let landing = self.pairs.get_mut(&number).map(|pair| std::mem::take(&mut pair.landing));
        for piece in landing.unwrap_or_default() {
            if self.is_mapped(&piece) {
                // SAFETY: as in `place_one`.
                unsafe { piece.place() };
            }
        }
    }

    /// Executes the next request of a queue pair.
    fn execute(&mut self, number: u32) -> bool {
        let late = self.pairs.get(&number).and_then(|pair| {
            pair.queue.iter().position(|request| request.progress == Progress::Late)
        });
        if let Some(at) = late.filter(|_| self.rng.below(3) == 0) {
            return self.carry_out(number, at);
        }
        let Some(pair) = self.pairs.get_mut(&number).filter(|p| p.state == sys::QPS_RTS) else {
            return false;
        };
        let Some(at) = pair.next() else { return late.is_some() };
        if pair.queue[at].opcode == sys::WR_RDMA_READ && self.rng.below(2) == 0 {
            pair.queue[at].progress = Progress::Late;
            return true;
        }
        self.carry_out(number, at)
    }

    /// Executes a request, unless the peer cannot take it now.
    fn carry_out(&mut self, number: u32, at: usize) -> bool {
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        if pair.datagrams {
            let Some(mut request) = pair.queue.remove(at) else { return false };
            let sent = self.cast(number, &request);
            request.progress = Progress::Done(sent.as_ref().err().copied().unwrap_or(0));
            request.seen = sent.ok();
            self.pairs.entry(number).and_modify(|pair| pair.queue.insert(at, request));
            return true;
        }
        if !self.reaches(number) {
            let Some(pair) = self.pairs.get_mut(&number) else { return false };
            let since = *pair.absent_since.get_or_insert_with(Instant::now);
            if since.elapsed() > RETRY_TIMEOUT {
                self.break_pair(number, at, WC_RETRY_EXC_ERR);
                return true;
            }
            return false;
        }
        self.executed += 1;
        let Knobs { fail_at, fail_every, .. } = self.knobs;
        let breaks = fail_every > 0 && self.executed.is_multiple_of(fail_every);
        if self.executed == fail_at || breaks {
            self.break_pair(number, at, WC_RETRY_EXC_ERR);
            return true;
        }
        match self.apply(number, at) {
            Ok(true) => self.pairs.get_mut(&number).is_some_and(|pair| {
                pair.queue[at].progress = Progress::Done(sys::WC_SUCCESS);
                true
            }),
            Ok(false) => {
                self.executed -= 1;
                false
            }
            Err(status) => {
                self.break_pair(number, at, status);
                true
            }
        }
    }

    /// Whether the other end of a queue pair is there to answer.
    fn reaches(&self, number: u32) -> bool {
        let peer = self.pairs.get(&number).and_then(|pair| self.pairs.get(&pair.peer));
        peer.is_some_and(|p| p.peer == number && matches!(p.state, sys::QPS_RTR | sys::QPS_RTS))
    }

    /// Applies a request at the peer. False when the peer has no receive.
    fn apply(&mut self, number: u32, at: usize) -> Result<bool, i32> {
        let pair = &self.pairs[&number];
        let (pd, peer, request) = (pair.pd, pair.peer, &pair.queue[at]);
        let (opcode, target, len) = (request.opcode, request.target, request.len());
        let write = (u64::from(number) << 40) + request.number;
        let (imm, bytes) = (request.imm, request.bytes.clone());
        let notices =
            matches!(opcode, sys::WR_RDMA_WRITE_WITH_IMM | sys::WR_SEND | sys::WR_SEND_WITH_IMM);
        let srq = self.pairs[&peer].srq;
        let posted = self.receives.get(&srq).and_then(|r| r.posted.front().copied());
        if notices && posted.is_none() {
            return Ok(false);
        }
        let receive = posted.filter(|_| notices);
        match opcode {
            sys::WR_RDMA_WRITE
            | sys::WR_RDMA_WRITE_WITH_IMM
            | sys::WR_SEND
            | sys::WR_SEND_WITH_IMM => {
                let data = self.source(pd, &bytes)?;
                let sends = matches!(opcode, sys::WR_SEND | sys::WR_SEND_WITH_IMM);
                if len > 0 && !sends {
                    self.remote(peer, &target, len, sys::ACCESS_REMOTE_WRITE)?;
                    let step = if len > 4096 { 512 } else { 8 << self.rng.below(4) };
                    let addr = target.remote_addr;
                    let pieces = ScatterPiece::cut(addr, data.clone(), target.rkey, write, step);
                    self.pairs.entry(peer).and_modify(|pair| pair.landing.extend(pieces));
                }
                if let Some((wr_id, sge)) = receive {
                    if !self.knobs.break_notify {
                        self.place_all(peer);
                    }
                    if sends && data.len() > sge.length as usize {
                        return Err(sys::WC_REM_INV_REQ_ERR);
                    }
                    if sends {
                        // SAFETY: a posted receive lies in a region of the peer.
                        unsafe { store(sge.addr, &data) };
                    }
                    self.receives.entry(srq).and_modify(|r| _ = r.posted.pop_front());
                    self.receive(peer, wr_id, opcode, imm, data.len() as u32);
                }
                self.pairs.entry(number).and_modify(|pair| pair.queue[at].seen = Some(data));
            }
            sys::WR_RDMA_READ => {
                self.remote(peer, &target, len, sys::ACCESS_REMOTE_READ)?;
                self.place_all(peer);
                let Bytes::At(sge) = bytes else { return Err(WC_LOC_PROT_ERR) };
                self.local(pd, &sge, sys::ACCESS_LOCAL_WRITE)?;
                // SAFETY: both are inside of registered regions, as was just checked.
                unsafe { store(sge.addr, &load(target.remote_addr, len)) };
            }
            sys::WR_ATOMIC_CMP_AND_SWP | sys::WR_ATOMIC_FETCH_AND_ADD => {
                self.remote(peer, &target, 8, sys::ACCESS_REMOTE_ATOMIC)?;
                if !target.remote_addr.is_multiple_of(8) {
                    return Err(sys::WC_REM_INV_REQ_ERR);
                }
                self.place_all(peer);
                let Bytes::At(sge) = bytes else { return Err(WC_LOC_PROT_ERR) };
                self.local(pd, &sge, sys::ACCESS_LOCAL_WRITE)?;
                let swaps = opcode == sys::WR_ATOMIC_CMP_AND_SWP;
                let expect = swaps.then_some(target.compare_add);
                let operand = if swaps { target.swap } else { target.compare_add };
                // SAFETY: aligned, and both inside of registered regions.
                unsafe {
                    let old = change(target.remote_addr, expect, operand);
                    store(sge.addr, &old.to_ne_bytes());
                }
            }
            _ => return Err(WC_LOC_QP_OP_ERR),
        }
        Ok(true)
    }

    /// The bytes of a request, read from this side's memory.
    pub(crate) fn source(&self, pd: u64, bytes: &Bytes) -> Result<Vec<u8>, i32> {
        match bytes {
            Bytes::Inline(bytes) => Ok(bytes.clone()),
            Bytes::At(sge) if sge.length == 0 => Ok(Vec::new()),
            Bytes::At(sge) => {
                self.local(pd, sge, 0)?;
                // SAFETY: inside of a registered region.
                Ok(unsafe { load(sge.addr, sge.length as usize) })
            }
        }
    }

    pub(crate) fn local(&self, pd: u64, sge: &sys::Sge, access: i32) -> Result<(), i32> {
        let region = self.regions.get(&sge.lkey).ok_or(WC_LOC_PROT_ERR)?;
        let inside =
            sge.addr >= region.addr && sge.addr + u64::from(sge.length) <= region.addr + region.len;
        let allowed = region.pd == pd && region.access & access == access;
        if inside && allowed { Ok(()) } else { Err(WC_LOC_PROT_ERR) }
    }

    /// Checks what the peer's device would, and breaks the peer's queue pair at a breach.
    fn remote(
        &mut self,
        peer: u32,
        target: &sys::Atomic,
        len: usize,
        access: i32,
    ) -> Result<(), i32> {
        let pd = self.pairs[&peer].pd;
        let allowed = self.regions.get(&target.rkey).is_some_and(|region| {
            region.pd == pd
                && region.access & access == access
                && target.remote_addr >= region.addr
                && target
                    .remote_addr
                    .checked_add(len as u64)
                    .is_some_and(|end| end <= region.addr + region.len)
        });
        if allowed {
            return Ok(());
        }
        let qp = self.pairs[&peer].qp;
        self.set_error(peer);
        self.events.push_back((qp, sys::EVENT_QP_ACCESS_ERR));
        Err(sys::WC_REM_ACCESS_ERR)
    }

    /// A receive of a queue pair has completed.
    fn receive(&mut self, number: u32, wr_id: u64, opcode: i32, imm: u32, len: u32) {
        let with_imm = opcode != sys::WR_SEND;
        let wc = sys::Wc {
            wr_id,
            status: sys::WC_SUCCESS,
            opcode: match opcode {
                sys::WR_RDMA_WRITE_WITH_IMM => sys::WC_RECV_RDMA_WITH_IMM,
                _ => sys::WC_RECV,
            },
            byte_len: len,
            imm_data: imm,
            qp_num: number,
            wc_flags: if with_imm { sys::WC_WITH_IMM } else { 0 },
            ..sys::Wc::default()
        };
        let retired = self.pairs[&number].retired;
        self.push(self.pairs[&number].cq, wc, number, retired);
    }

    pub(crate) fn push(&mut self, cq: u64, wc: sys::Wc, number: u32, retired: u64) {
        let Some(queue) = self.completions.get_mut(&cq) else { return };
        if queue.entries.len() == queue.capacity {
            self.events.push_back((queue.cq, sys::EVENT_CQ_ERR));
            return;
        }
        queue.entries.push_back((wc, number, retired));
        if std::mem::take(&mut queue.armed) {
            self.wake.push(queue.channel);
        }
    }

    /// Reports the first request of a queue pair if it is done.
    fn complete(&mut self, number: u32) -> bool {
        let Some(pair) = self.pairs.get_mut(&number) else { return false };
        let Some(Request { progress: Progress::Done(status), .. }) = pair.queue.front() else {
            return false;
        };
        let (status, cq) = (*status, pair.cq);
        let Some(request) = pair.queue.pop_front() else { return false };
        if let (Some(seen), Bytes::At(sge), sys::WC_SUCCESS) =
            (&request.seen, &request.bytes, status)
        {
            // SAFETY: a source stays registered until its completion; the transport keeps it.
            let now = unsafe { load(sge.addr, seen.len()) };
            assert!(now == *seen, "a source has changed before its completion");
        }
        if status != sys::WC_SUCCESS || request.flags & sys::SEND_SIGNALED != 0 {
            let wc = sys::Wc { wr_id: request.wr_id, status, qp_num: number, ..Default::default() };
            self.push(cq, wc, number, request.number + 1);
        }
        true
    }

    /// A request fails, and takes those behind it with it.
    fn break_pair(&mut self, number: u32, at: usize, status: i32) {
        // Reads that stand before are answered first: the peer executes in order.
        for before in 0..at {
            if self.pairs[&number].queue[before].progress == Progress::Late {
                let answered = if self.reaches(number) {
                    self.apply(number, before).err().unwrap_or(sys::WC_SUCCESS)
                } else {
                    WC_WR_FLUSH_ERR
                };
                self.pairs.entry(number).and_modify(|pair| {
                    pair.queue[before].progress = Progress::Done(answered);
                });
            }
        }
        self.pairs.entry(number).and_modify(|pair| {
            pair.queue[at].progress = Progress::Done(status);
        });
        self.set_error(number);
    }

    /// Nothing more is executed or placed here; waiting requests are flushed.
    pub(crate) fn set_error(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        pair.state = sys::QPS_ERR;
        if !self.knobs.break_revoke {
            pair.landing.clear();
        }
        for request in &mut pair.queue {
            if !matches!(request.progress, Progress::Done(_)) {
                request.progress = Progress::Done(WC_WR_FLUSH_ERR);
            }
        }
    }
}
