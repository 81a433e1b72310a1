//! One end of a reliable connection.

mod completions;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::events::{Alarm, Events};
use super::line::Line;
use super::memory::{DeviceMemory, explain};
use super::objects::{Domain, Region, Wire};
use super::queue::{Origin, Payload, SendQueue, Seq, request};
use super::receives::Head;
use super::sys;
use crate::validate::PostRequest;
use crate::{
    Armed, Budget, Caps, Completion, Endpoint, FabricError, Flags, OpId, PostError, RemoteKey,
    RemoteRange, SlabRange, Src,
};

use completions::LOST;

/// Receives of each connection that are kept for credit messages.
pub(super) const CONTROL_RECEIVES: u32 = 8;
/// Places of the send queue that are kept for credit messages and one look at the peer's counter.
pub(super) const CONTROL_OPS: u32 = CONTROL_RECEIVES + 1;
/// Polls without news after which the line is asked whether the peer lives.
const IDLE_POLLS: u32 = 256;

/// The terms of the handshake.
pub(super) struct Terms {
    pub(super) caps: Caps,
    /// Marks our keys.
    pub(super) tag: u32,
    /// Marks the peer's keys.
    pub(super) peer_tag: u32,
    /// The peer's counter of credit messages: place and key.
    pub(super) peer_counter: (u64, u32),
    /// The access rights of peers to exported memory.
    pub(super) access: i32,
    /// Exported memory may be written in any order.
    pub(super) relaxed: bool,
    /// Notices and credit are messages with a [`Head`]: a side carries no immediate data.
    pub(super) headed: bool,
    /// Receives that this connection can promise at a time.
    pub(super) receives_max: u32,
}

/// Receives of both sides, as cumulative positions.
#[derive(Default)]
struct Credit {
    /// Receives that the caller posted, those that the pool has reserved, those that were announced
    /// to the peer.
    posted: u64,
    limit: u64,
    announced: u64,
    /// Receives that the peer has used.
    received: u64,
    /// Credit messages that we have taken, and that we have sent.
    messages_taken: u64,
    messages_sent: u64,
    /// Of the latter, those that the peer is known to have taken.
    peer_taken: u64,
    /// Receives that the peer has announced, and those that we have used.
    peer_limit: u64,
    used: u64,
}

/// The verbs [`Endpoint`].
pub(super) struct VerbsEndpoint {
    terms: Terms,
    domain: Arc<Domain>,
    events: Arc<Events>,
    /// `None` once the connection has ended.
    wire: Option<Wire>,
    // After the wire, so that no request names memory that is gone.
    queue: SendQueue,
    exports: Vec<(RemoteKey, Region)>,
    line: Line,
    alarm: Arc<Alarm>,
    epoll: OwnedFd,
    credit: Credit,
    /// Completions for the next poll.
    completions: Vec<Completion>,
    /// The request after the last one that the device has given back, in whatever state.
    returned: Seq,
    idle_polls: u32,
    armed: bool,
}

/// An operation as the caller describes it.
#[derive(Clone, Copy)]
struct OpTag {
    id: OpId,
    flags: Flags,
}

impl OpTag {
    fn origin(self) -> Origin {
        Origin::User { id: self.id, signalled: self.flags.has(Flags::SIGNAL) }
    }
}

/// The operands of an atomic operation.
struct AtomicWords {
    /// The operand: a value to add, or one to compare the word with.
    compare_add: u64,
    swap: u64,
}

impl VerbsEndpoint {
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn new(
        terms: Terms,
        domain: Arc<Domain>,
        events: Arc<Events>,
        wire: Wire,
        queue: SendQueue,
        line: Line,
    ) -> io::Result<Self> {
        let alarm = events.subscribe(wire.number())?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let data = EventData::new_u64(0);
        let interest = EventFlags::IN | EventFlags::RDHUP;
        epoll::add(&epoll, line.fd(), data, interest)?;
        epoll::add(&epoll, alarm.fd(), data, interest)?;
        for fd in [wire.channel_fd(), events.fd()] {
            // SAFETY: the descriptors belong to objects that `wire` and `events` keep open.
            epoll::add(&epoll, unsafe { BorrowedFd::borrow_raw(fd) }, data, interest)?;
        }
        Ok(Self {
            terms,
            domain,
            events,
            wire: Some(wire),
            queue,
            exports: Vec::new(),
            line,
            alarm,
            epoll,
            credit: Credit::default(),
            completions: Vec::new(),
            returned: 0,
            idle_polls: 0,
            armed: false,
        })
    }

    /// Checks what needs no look at the peer. `at` is where bytes go to or come from, if there are
    /// any: the device would check its key against the domain only, of which all connections are.
    fn validate(&self, asked: PostRequest<'_>, at: Option<&RemoteRange>) -> Result<(), PostError> {
        let has_receive = || self.credit.used < self.credit.peer_limit;
        self.terms.caps.validate(
            asked,
            self.wire.is_some(),
            self.queue.users() as usize,
            has_receive,
        )?;
        let ours = |at: &RemoteRange| {
            at.key.is_published() || at.key.key >> 32 == u64::from(self.terms.peer_tag)
        };
        if at.is_none_or(ours) { Ok(()) } else { Err(PostError::OutOfBounds) }
    }

    /// An element that names a range of a slab.
    fn registered(&self, range: &SlabRange) -> Result<Payload<'static>, PostError> {
        let memory: Option<&DeviceMemory> = range.slab().backing().as_any().downcast_ref();
        let region = memory.map(DeviceMemory::region).filter(|region| region.is_of(&self.domain));
        let lkey = region.ok_or(PostError::Unsupported)?.lkey();
        let length = u32::try_from(range.len()).map_err(|_| PostError::TooLarge)?;
        let sge = sys::Sge { addr: range.as_ptr() as u64, length, lkey };
        Ok(Payload::Registered { sge, slab: range.slab().clone() })
    }

    fn payload<'a>(&self, src: Src<'a>) -> Result<Payload<'a>, PostError> {
        match src {
            Src::Slab(range) if !range.is_empty() => self.registered(range),
            Src::Inline(bytes) if !bytes.is_empty() => Ok(Payload::Copied(bytes)),
            Src::Slab(_) | Src::Inline(_) | Src::Empty => Ok(Payload::Empty),
        }
    }

    fn post(&mut self, wr: sys::SendWr, payload: Payload<'_>, origin: Origin) {
        self.queue.push(wr, payload, origin);
        if self.queue.is_batch_full() {
            self.ring();
        }
    }

    fn ring(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        if self.queue.ring(wire).is_err() {
            self.fail(LOST);
        }
    }

    fn write_request(
        &mut self,
        opcode: i32,
        src: Src<'_>,
        dst: RemoteRange,
        imm: u32,
        tag: OpTag,
    ) -> Result<(), PostError> {
        let notifies = opcode == sys::WR_RDMA_WRITE_WITH_IMM;
        let at = (!src.is_empty()).then_some(&dst);
        self.validate(PostRequest::Write { src, dst, notifies }, at)?;
        let payload = self.payload(src)?;
        self.credit.used += u64::from(notifies);
        if notifies && self.terms.headed {
            self.write_and_say(dst, payload, imm, tag);
            return Ok(());
        }
        let mut wr = request(opcode, fence(tag.flags));
        wr.imm_data = imm.to_be();
        if !src.is_empty() {
            wr.wr.rdma = target(&dst);
        }
        self.post(wr, payload, tag.origin());
        Ok(())
    }

    /// A write, if there are bytes, and a message that says the number.
    fn write_and_say(&mut self, dst: RemoteRange, payload: Payload<'_>, imm: u32, tag: OpTag) {
        let mut fence = fence(tag.flags);
        if !matches!(payload, Payload::Empty) {
            let mut wr = request(sys::WR_RDMA_WRITE, std::mem::take(&mut fence));
            wr.wr.rdma = target(&dst);
            self.post(wr, payload, Origin::Part { id: tag.id });
        }
        let origin = tag.origin();
        self.post(request(sys::WR_SEND, fence), Payload::Headed(Head::Notice(imm), &[]), origin);
    }

    fn atomic(
        &mut self,
        opcode: i32,
        dst: RemoteRange,
        words: AtomicWords,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Atomic { dst, old }, Some(&dst))?;
        let sys::Rdma { remote_addr, rkey } = target(&dst);
        let word = old.part(0, 8).map_err(|_| PostError::OutOfBounds)?;
        let payload = self.registered(&word)?;
        let mut wr = request(opcode, 0);
        wr.wr.atomic =
            sys::Atomic { remote_addr, compare_add: words.compare_add, swap: words.swap, rkey };
        self.post(wr, payload, Origin::User { id, signalled: true });
        Ok(())
    }

    /// Reserves what the caller allowed, and tells the peer: at once when it has used half of what
    /// it knows of, otherwise when nothing else is to do.
    fn advertise(&mut self, idle: bool) {
        let Some(wire) = &self.wire else { return };
        let credit = &mut self.credit;
        let promised = credit.limit - credit.received;
        let room = u64::from(self.terms.receives_max).saturating_sub(promised);
        let more = (credit.posted - credit.limit).min(room);
        if more > 0 {
            credit.limit += u64::from(wire.receives().reserve(more as u32));
        }
        let unused = credit.announced - credit.received;
        let pressing = unused <= (credit.limit - credit.received) / 2;
        if credit.limit == credit.announced || !(idle || pressing) {
            return;
        }
        // A message keeps its place in the queue until its completion was polled, which may be
        // after the peer has said that it took it.
        if self.queue.controls() >= CONTROL_RECEIVES {
            return;
        }
        if credit.messages_sent - credit.peer_taken < u64::from(CONTROL_RECEIVES) {
            credit.messages_sent += 1;
            credit.announced = credit.limit;
            let imm = (credit.limit as u16 as u32) << 16 | credit.messages_taken as u16 as u32;
            let (opcode, payload) = if self.terms.headed {
                (sys::WR_SEND, Payload::Headed(Head::Credit(imm), &[]))
            } else {
                (sys::WR_SEND_WITH_IMM, Payload::Empty)
            };
            let mut wr = request(opcode, 0);
            wr.imm_data = imm.to_be();
            self.post(wr, payload, Origin::Credit);
        } else if !self.queue.has(Origin::Look) {
            let mut wr = request(sys::WR_RDMA_READ, 0);
            let (remote_addr, rkey) = self.terms.peer_counter;
            wr.wr.rdma = sys::Rdma { remote_addr, rkey };
            let landing = self.queue.look();
            self.post(wr, landing, Origin::Look);
        }
    }
}

impl Endpoint for VerbsEndpoint {
    fn caps(&self) -> Caps {
        self.terms.caps
    }

    fn export(&mut self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        let memory: Option<&DeviceMemory> =
            range.exportable()?.slab().backing().as_any().downcast_ref();
        let unused = memory.is_some_and(|memory| memory.region().is_of(&self.domain));
        if !unused {
            return Err(FabricError::ForeignSlab);
        }
        let (base, len) = (range.as_ptr(), range.len());
        let mut key =
            RemoteKey { key: u64::from(self.terms.tag) << 32, base: base as u64, len: len as u64 };
        if self.wire.is_none() || len == 0 {
            return Ok(key);
        }
        let Terms { access, relaxed, .. } = self.terms;
        // SAFETY: the slab is kept beside the region; memory of slabs is accessed atomically or by
        // unsafe functions whose callers know the protocol.
        let region = unsafe { Region::register(&self.domain, base, len, access, relaxed) };
        let region = region
            .map_err(|source| FabricError::Memory { bytes: len, source: explain(source, len) })?;
        key.key |= u64::from(region.rkey());
        self.exports.push((key, region.holding(range.slab().clone())));
        Ok(key)
    }

    fn revoke(&mut self, key: RemoteKey) {
        let Some(at) = self.exports.iter().position(|(held, _)| *held == key) else { return };
        let (_, mut region) = self.exports.swap_remove(at);
        if !region.revoke() {
            // The device does not let go of the memory while the queue pair may use it.
            self.fail(LOST);
        }
    }

    fn write(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.write_request(sys::WR_RDMA_WRITE, src, dst, 0, OpTag { id, flags })
    }

    fn write_notify(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        imm: u32,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.write_request(sys::WR_RDMA_WRITE_WITH_IMM, src, dst, imm, OpTag { id, flags })
    }

    fn read(
        &mut self,
        dst: &SlabRange,
        src: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        let at = (!dst.is_empty()).then_some(&src);
        self.validate(PostRequest::Read { dst, src }, at)?;
        let origin = Origin::User { id, signalled: flags.has(Flags::SIGNAL) };
        // Nothing is read by writing nothing, which every device carries.
        if dst.is_empty() {
            self.post(request(sys::WR_RDMA_WRITE, fence(flags)), Payload::Empty, origin);
            return Ok(());
        }
        let payload = self.registered(dst)?;
        let mut wr = request(sys::WR_RDMA_READ, fence(flags));
        wr.wr.rdma = target(&src);
        self.post(wr, payload, origin);
        Ok(())
    }

    fn fetch_add(
        &mut self,
        dst: RemoteRange,
        add: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        let words = AtomicWords { compare_add: add, swap: 0 };
        self.atomic(sys::WR_ATOMIC_FETCH_AND_ADD, dst, words, old, id)
    }

    fn compare_swap(
        &mut self,
        dst: RemoteRange,
        expect: u64,
        swap: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        let words = AtomicWords { compare_add: expect, swap };
        self.atomic(sys::WR_ATOMIC_CMP_AND_SWP, dst, words, old, id)
    }

    fn send(&mut self, bytes: &[u8], id: OpId) -> Result<(), PostError> {
        self.validate(PostRequest::Send { len: bytes.len() }, None)?;
        self.credit.used += 1;
        let payload = match bytes {
            _ if self.terms.headed => Payload::Headed(Head::Message, bytes),
            [] => Payload::Empty,
            _ => Payload::Copied(bytes),
        };
        self.post(request(sys::WR_SEND, 0), payload, Origin::User { id, signalled: true });
        Ok(())
    }

    fn post_recvs(&mut self, n: u32) {
        self.credit.posted = self.credit.posted.saturating_add(u64::from(n));
    }

    fn submit(&mut self) {
        self.advertise(false);
        self.ring();
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        self.ring();
        self.collect();
        if self.completions.is_empty() {
            self.advertise(true);
            self.idle_polls += 1;
            if self.idle_polls >= IDLE_POLLS || self.armed {
                self.idle_polls = 0;
                self.look_around();
            }
        } else {
            self.advertise(false);
        }
        self.armed = false;
        self.ring();
        out.append(&mut self.completions);
        out.len() - before
    }

    fn arm(&mut self) -> Armed {
        self.advertise(true);
        self.ring();
        let requested = self.wire.as_mut().is_none_or(|wire| wire.request_event().is_ok());
        // A completion before the request raises no event.
        self.collect();
        self.look_around();
        let announces = self.wire.is_some() && self.credit.announced != self.credit.limit;
        // Requests may have waited for this completion.
        let due = self.wire.is_some() && self.queue.due() > 0;
        if !requested || announces || due || !self.completions.is_empty() {
            return Armed::Ready;
        }
        self.armed = true;
        Armed::Fd(self.epoll.as_fd().as_raw_fd())
    }

    fn budget(&self) -> Budget {
        if self.wire.is_none() {
            return Budget { ops: 0, notices: 0 };
        }
        let notices = self.credit.peer_limit - self.credit.used;
        Budget {
            ops: self.terms.caps.max_ops - self.queue.users(),
            notices: u32::try_from(notices).unwrap_or(u32::MAX),
        }
    }

    fn close(&mut self) {
        self.collect();
        if self.wire.is_some() {
            self.end();
            self.queue.flush(None, &mut self.completions);
        }
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}

fn fence(flags: Flags) -> u32 {
    if flags.has(Flags::FENCE) { sys::SEND_FENCE } else { 0 }
}

/// Where a range is in the peer's address space.
fn target(at: &RemoteRange) -> sys::Rdma {
    let base = at.key.base & !RemoteKey::PUBLISHED;
    sys::Rdma { remote_addr: base.wrapping_add(at.offset), rkey: at.key.key as u32 }
}
