//! The send queue: requests that wait for the doorbell, and operations from post to completion.
//!
//! Requests are linked and handed to the device at once, by one doorbell. At most a quarter of the
//! queue goes without a completion being asked for, whatever the caller's flags say, because the
//! device gives places back by completions alone; the completion of one request retires all before
//! it, as those of a reliable connection complete in order.

use std::collections::VecDeque;
use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use super::objects::{Domain, Region, Wire};
use super::receives::{HEAD_BYTES, Head, MESSAGE_BYTES};
use super::{READS_MAX, sys};
use crate::anonymous::AnonymousMapping;
use crate::{Completion, ErrorKind, OpId, Slab};

/// Requests of one doorbell.
const BATCH_MAX: usize = 32;
/// Words at the front of the staging memory: the one that the peer reads, and the one that we have
/// read of the peer.
const TAKEN: usize = 0;
const PEER_TAKEN: usize = 8;
/// Bytes before the copies of small payloads.
const WORDS_BYTES: usize = 64;

/// Position of a request among all of its connection.
pub(super) type Seq = u64;

/// The origin of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// An operation of the caller, and whether it asked for `Local`.
    User { id: OpId, signalled: bool },
    /// The first of two requests of one operation: it takes a place, and ends with the second.
    Part { id: OpId },
    /// Receives that are told to the peer.
    Credit,
    /// A read of the number of requests that the peer has taken.
    Look,
    /// The message before the first operation, where there is no socket for it.
    Ready,
}

struct Posted {
    origin: Origin,
    read: bool,
    /// Keeps source or destination registered until the device has done with it.
    _memory: Option<Slab>,
}

/// Where the bytes of a request are.
pub(super) enum Payload<'a> {
    /// Nowhere: there are none.
    Empty,
    /// Copied into the queue's own memory.
    Copied(&'a [u8]),
    /// The same, behind a head.
    Headed(Head, &'a [u8]),
    /// Memory of the queue.
    Own(sys::Sge),
    /// Registered memory of the caller.
    Registered { sge: sys::Sge, slab: Slab },
}

/// See the head of the module.
pub(super) struct SendQueue {
    /// Places, control requests included.
    depth: u32,
    /// Requests after which a completion is asked for.
    signal_every: u32,
    unsignalled: u32,
    iwarp: bool,
    /// Reads that the device has got.
    reads: u32,
    inline_max: usize,
    ops: VecDeque<Posted>,
    /// Position of the first of `ops`.
    first: Seq,
    users: u32,
    parts: u32,
    wrs: Vec<sys::SendWr>,
    sges: Vec<sys::Sge>,
    // Dropped in this order: the device forgets the memory before it is unmapped.
    counter: Region,
    staging_region: Region,
    staging: AnonymousMapping,
}

// SAFETY: the raw pointers of `wrs` are null except during `ring`, which sets them.
unsafe impl Send for SendQueue {}

impl SendQueue {
    /// # Errors
    /// When memory cannot be pinned.
    pub(super) fn new(domain: &Arc<Domain>, depth: u32, inline_max: u32) -> io::Result<Self> {
        let staging = AnonymousMapping::new(WORDS_BYTES + depth as usize * MESSAGE_BYTES)?;
        staging.keep_from_children();
        let (base, len) = (staging.base().as_ptr(), staging.len());
        // SAFETY: both regions are dropped before the mapping; the words are only accessed as
        // atomics, and a place for a copy only while no request uses it.
        let (counter, staging_region) = unsafe {
            let counter = Region::register(domain, base, 8, sys::ACCESS_REMOTE_READ, false)?;
            (counter, Region::register(domain, base, len, domain.local_access(), false)?)
        };
        Ok(Self {
            depth,
            signal_every: (depth / 4).max(1),
            unsignalled: 0,
            iwarp: domain.is_iwarp(),
            reads: 0,
            inline_max: inline_max as usize,
            ops: VecDeque::with_capacity(depth as usize),
            first: 0,
            users: 0,
            parts: 0,
            wrs: Vec::with_capacity(BATCH_MAX),
            sges: Vec::with_capacity(BATCH_MAX),
            counter,
            staging_region,
            staging,
        })
    }

    /// Operations of the caller that take a place.
    pub(super) fn users(&self) -> u32 {
        self.users
    }

    /// Requests of our own that take a place.
    pub(super) fn controls(&self) -> u32 {
        self.ops.len() as u32 - self.users - self.parts
    }

    /// Whether a request of this origin is under way.
    pub(super) fn has(&self, origin: Origin) -> bool {
        self.ops.iter().any(|op| op.origin == origin)
    }

    /// Whether an operation is under way whose end its owner awaits.
    pub(super) fn is_awaited(&self) -> bool {
        self.ops.iter().any(|op| matches!(op.origin, Origin::User { signalled: true, .. }))
    }

    /// Address and key by which the peer reads how many credit messages we have taken.
    pub(super) fn counter(&self) -> (u64, u32) {
        (self.staging.base().as_ptr() as u64, self.counter.rkey())
    }

    /// Says how many credit messages we have taken.
    pub(super) fn set_taken(&self, taken: u64) {
        self.word(TAKEN).store(taken, std::sync::atomic::Ordering::Release);
    }

    /// The value of the peer's counter at the last read.
    pub(super) fn peer_taken(&self) -> u64 {
        self.word(PEER_TAKEN).load(std::sync::atomic::Ordering::Acquire)
    }

    /// Where that look is to put it.
    pub(super) fn look(&self) -> Payload<'static> {
        let addr = self.staging.base().as_ptr() as u64 + PEER_TAKEN as u64;
        Payload::Own(sys::Sge { addr, length: 8, lkey: self.staging_region.lkey() })
    }

    fn word(&self, at: usize) -> &std::sync::atomic::AtomicU64 {
        // SAFETY: an aligned word at the front of the mapping, which is never accessed otherwise;
        // the device's access is that of a peer's word.
        unsafe {
            std::sync::atomic::AtomicU64::from_ptr(self.staging.base().as_ptr().add(at).cast())
        }
    }

    /// Books a request and puts it into the batch. The caller has seen that there is a place, and
    /// that a copied payload fits [`MESSAGE_BYTES`].
    pub(super) fn push(&mut self, mut wr: sys::SendWr, payload: Payload<'_>, origin: Origin) {
        assert!(self.ops.len() < self.depth as usize, "the caller looks at the budget");
        let seq = self.first + self.ops.len() as u64;
        let (sge, memory) = match payload {
            Payload::Empty => (sys::Sge::default(), None),
            Payload::Copied(bytes) => {
                if bytes.len() <= self.inline_max {
                    wr.send_flags |= sys::SEND_INLINE;
                }
                (self.stage(seq, &[], bytes), None)
            }
            Payload::Headed(head, bytes) => {
                if HEAD_BYTES + bytes.len() <= self.inline_max {
                    wr.send_flags |= sys::SEND_INLINE;
                }
                (self.stage(seq, &head.encode(), bytes), None)
            }
            Payload::Own(sge) => (sge, None),
            Payload::Registered { sge, slab } => (sge, Some(slab)),
        };
        let asked = match origin {
            Origin::User { signalled, .. } => signalled,
            Origin::Part { .. } => false,
            Origin::Credit | Origin::Look | Origin::Ready => true,
        };
        self.unsignalled += 1;
        if asked || self.unsignalled >= self.signal_every {
            self.unsignalled = 0;
            wr.send_flags |= sys::SEND_SIGNALED;
        }
        let read = wr.opcode == sys::WR_RDMA_READ;
        if self.iwarp {
            // `due` keeps the order, and has to hear of the end of reads.
            wr.send_flags &= !sys::SEND_FENCE;
            wr.send_flags |= if read { sys::SEND_SIGNALED } else { 0 };
        }
        wr.wr_id = seq;
        wr.num_sge = i32::from(sge.length > 0);
        self.users += u32::from(matches!(origin, Origin::User { .. }));
        self.parts += u32::from(matches!(origin, Origin::Part { .. }));
        self.ops.push_back(Posted { origin, read, _memory: memory });
        self.wrs.push(wr);
        self.sges.push(sge);
    }

    /// Whether the batch has to go before another request is pushed.
    pub(super) fn is_batch_full(&self) -> bool {
        self.wrs.len() >= BATCH_MAX
    }

    fn stage(&self, seq: Seq, head: &[u8], bytes: &[u8]) -> sys::Sge {
        let length = head.len() + bytes.len();
        let at = WORDS_BYTES + (seq % u64::from(self.depth)) as usize * MESSAGE_BYTES;
        assert!(length <= MESSAGE_BYTES && at + MESSAGE_BYTES <= self.staging.len());
        // SAFETY: inside of the mapping as asserted. The place belongs to this request alone: there
        // are as many places as requests can be under way, and their positions are consecutive.
        let addr = unsafe {
            let place = self.staging.base().as_ptr().add(at);
            std::ptr::copy_nonoverlapping(head.as_ptr(), place, head.len());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.add(head.len()), bytes.len());
            place as u64
        };
        sys::Sge { addr, length: length as u32, lkey: self.staging_region.lkey() }
    }

    /// How many requests of the batch the device may have now.
    ///
    /// Over iWARP what is posted behind a read may be done before it, and a device that waits at a
    /// fence may answer no read of the peer meanwhile, so that two that wait do so for ever. So
    /// what is behind reads stays here until they are done. A read needs no fence to see earlier
    /// writes.
    pub(super) fn due(&self) -> usize {
        if !self.iwarp {
            return self.wrs.len();
        }
        let mut reads = self.reads;
        let goes = |wr: &&sys::SendWr| match wr.opcode {
            sys::WR_RDMA_READ => {
                reads += 1;
                reads <= READS_MAX
            }
            _ => reads == 0,
        };
        self.wrs.iter().take_while(goes).count()
    }

    /// Hands what is due of the batch to the device.
    ///
    /// # Errors
    /// When the device refuses; what became of the batch is then unknown.
    pub(super) fn ring(&mut self, wire: &mut Wire) -> io::Result<()> {
        let n = self.due();
        if n == 0 {
            return Ok(());
        }
        let reads = self.wrs[..n].iter().filter(|wr| wr.opcode == sys::WR_RDMA_READ).count();
        self.reads += reads as u32;
        let (wrs, sges) = (self.wrs.as_mut_ptr(), self.sges.as_mut_ptr());
        for i in 0..n {
            // SAFETY: `i < n`, the length of both vectors, which are not moved before the call
            // below has returned.
            unsafe {
                (*wrs.add(i)).sg_list = sges.add(i);
                (*wrs.add(i)).next = if i + 1 < n { wrs.add(i + 1) } else { null_mut() };
            }
        }
        // SAFETY: linked above; the memory that the elements name is kept by `ops` and `staging`
        // until the requests have completed, or the queue pair is gone.
        let rung = unsafe { wire.post_send(wrs) };
        self.wrs.drain(..n);
        self.sges.drain(..n);
        rung
    }

    /// Retires everything up to this request; returns what that one was of. `None` for a request
    /// that is not under way.
    pub(super) fn retire(&mut self, seq: Seq, out: &mut Vec<Completion>) -> Option<Origin> {
        let count = seq.checked_sub(self.first)?.checked_add(1)?;
        let mut last = None;
        if count > self.ops.len() as u64 {
            return None;
        }
        for op in self.ops.drain(..count as usize) {
            self.reads -= u32::from(op.read);
            match op.origin {
                Origin::User { id, signalled } => {
                    self.users -= 1;
                    if signalled {
                        out.push(Completion::Local { id });
                    }
                }
                Origin::Part { .. } => self.parts -= 1,
                Origin::Credit | Origin::Look | Origin::Ready => {}
            }
            last = Some(op.origin);
        }
        self.first += count;
        last
    }

    /// Retires what comes before this request, and says what it was of.
    pub(super) fn retire_before(&mut self, seq: Seq, out: &mut Vec<Completion>) -> Option<Origin> {
        if let Some(before) = seq.checked_sub(1).filter(|before| *before >= self.first) {
            self.retire(before, out);
        }
        let at = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.ops.get(at).map(|op| op.origin)
    }

    /// The last request that the device has got; `None` when there is none under way.
    pub(super) fn last_posted(&self) -> Option<Seq> {
        let posted = self.ops.len().checked_sub(self.wrs.len())?;
        (posted > 0).then(|| self.first + posted as u64 - 1)
    }

    /// Reports all operations as flushed, except for the one that is to blame. The queue pair is
    /// gone, so that the device does not touch their memory any more.
    pub(super) fn flush(&mut self, mut blamed: Option<OpId>, out: &mut Vec<Completion>) {
        self.first += self.ops.len() as u64;
        (self.users, self.parts) = (0, 0);
        self.wrs.clear();
        self.sges.clear();
        for op in self.ops.drain(..) {
            let Origin::User { id, .. } = op.origin else { continue };
            if blamed == Some(id) {
                blamed = None;
            } else {
                out.push(Completion::Error { id: Some(id), kind: ErrorKind::Flushed });
            }
        }
    }
}

/// A request of which nothing but the operation and its flags is said.
pub(super) fn request(opcode: i32, send_flags: u32) -> sys::SendWr {
    let nowhere = sys::Atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 };
    sys::SendWr {
        wr_id: 0,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
        opcode,
        send_flags,
        imm_data: 0,
        wr: sys::Target { atomic: nowhere },
        xrc_remote_srqn: 0,
        bind_mw: [0; 6],
    }
}
