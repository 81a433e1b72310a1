//! One end of a connection whose operations are frames on a wire.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::apply::Breach;
use super::frame::{Header, Op};
use super::outbox::{LateBody, Outbox};
use super::parser::{Fill, Parser};
use super::wire::Wire;
use crate::operations::{OperationTable, Seq};
use crate::published::{PUBLISHED_READ_MAX, PublishedPlace, PublishedTable};
use crate::token::Token;
use crate::validate::PostRequest;
use crate::{
    Armed, Budget, Caps, Completion, Endpoint, ErrorKind, FabricError, Flags, OpId, PostError,
    RemoteKey, RemoteRange, SlabRange, Src,
};

/// Reads of one poll, while each brings as much as it asked for.
const READS_PER_POLL: usize = 8;

/// The [`Endpoint`] on a wire.
pub(crate) struct FrameEndpoint<W: Wire> {
    pub(super) caps: Caps,
    wire: W,
    open: bool,
    /// Sending failed; bytes that the peer sent before are still read.
    deaf_peer: bool,
    outbox: Outbox,
    pub(super) parser: Parser,
    pub(super) operations: OperationTable,
    /// Writes and messages on their way, and how many ever were acknowledged.
    unacked: VecDeque<Seq>,
    acked: u64,
    /// Positions in the outbox at which answers to the peer end.
    answers: VecDeque<u64>,
    /// Posts behind a fence that waits for answers.
    held: VecDeque<Held>,
    /// Reads and atomics on their way, and where the answers go.
    pub(super) awaiting: VecDeque<(Seq, SlabRange)>,
    pub(super) exports: HashMap<u64, Export>,
    /// The fabric's, which every peer may read.
    pub(super) published: Arc<PublishedTable>,
    /// Answers to the peer that have not left.
    pub(super) replies: u32,
    pub(super) replies_max: u32,
    /// Receives that we posted, and that the peer used.
    pub(super) granted: u64,
    pub(super) received: u64,
    /// Writes and messages of the peer that took effect.
    pub(super) applied: u64,
    /// The values of `granted` and `applied` that the peer has received.
    advertised: (u64, u64),
    /// Receives that the peer posted, and that we used.
    pub(super) peer_granted: u64,
    used: u64,
    /// Completions for the next poll, or for the current one.
    pub(super) events: Vec<Completion>,
}

/// Memory that the peer may use.
pub(super) struct Export {
    pub(super) range: SlabRange,
    /// The peer may not know of the end yet: its writes are lost.
    pub(super) retired: bool,
}

struct Held {
    header: Header,
    body: HeldBody,
    answer: Option<SlabRange>,
    seq: Seq,
    fence: bool,
}

enum HeldBody {
    Copied(Vec<u8>),
    Slab(SlabRange),
}

/// An operation's bytes at the call.
enum Body<'a> {
    Copied(&'a [u8]),
    Slab(&'a SlabRange),
}

impl<W: Wire> FrameEndpoint<W> {
    /// `replies_max` bounds the reads and atomics of the peer that wait for their answers. Both
    /// ends carry checksums, or none does.
    pub(crate) fn new(
        caps: Caps,
        wire: W,
        published: Arc<PublishedTable>,
        replies_max: u32,
        checked: bool,
    ) -> Self {
        Self {
            caps,
            wire,
            open: true,
            deaf_peer: false,
            outbox: Outbox::new(checked),
            parser: Parser::new(checked),
            operations: OperationTable::default(),
            unacked: VecDeque::new(),
            acked: 0,
            answers: VecDeque::new(),
            held: VecDeque::new(),
            awaiting: VecDeque::new(),
            exports: HashMap::new(),
            published,
            replies: 0,
            replies_max,
            granted: 0,
            received: 0,
            applied: 0,
            advertised: (0, 0),
            peer_granted: 0,
            used: 0,
            events: Vec::new(),
        }
    }

    fn validate(&self, asked: PostRequest<'_>) -> Result<(), PostError> {
        let has_receive = || self.used < self.peer_granted;
        self.caps.validate(asked, self.open, self.operations.len(), has_receive)
    }

    fn post(&mut self, header: Header, body: Body<'_>, answer: Option<SlabRange>, flags: Flags) {
        let seq = self.operations.post(OpId(header.id), flags.has(Flags::SIGNAL));
        let fence = flags.has(Flags::FENCE);
        if self.held.is_empty() && (!fence || self.awaiting.is_empty()) {
            return self.ship(header, body, answer, seq);
        }
        let body = match body {
            Body::Copied(bytes) => HeldBody::Copied(bytes.to_vec()),
            Body::Slab(range) => HeldBody::Slab(range.clone()),
        };
        self.held.push_back(Held { header, body, answer, seq, fence });
    }

    fn ship(&mut self, header: Header, body: Body<'_>, answer: Option<SlabRange>, seq: Seq) {
        match body {
            Body::Copied(bytes) => self.outbox.push(&header, bytes),
            Body::Slab(range) => self.outbox.push_slab(&header, range.clone()),
        }
        match answer {
            Some(range) => self.awaiting.push_back((seq, range)),
            None => self.unacked.push_back(seq),
        }
    }

    /// Ships posts whose fence has nothing to wait for any more.
    pub(super) fn release_held(&mut self) {
        while let Some(next) = self.held.front() {
            if next.fence && !self.awaiting.is_empty() {
                return;
            }
            let Some(Held { header, body, answer, seq, .. }) = self.held.pop_front() else {
                return;
            };
            match &body {
                HeldBody::Copied(bytes) => self.ship(header, Body::Copied(bytes), answer, seq),
                HeldBody::Slab(range) => self.ship(header, Body::Slab(range), answer, seq),
            }
        }
    }

    pub(super) fn push_reply(&mut self, header: Header, body: Option<SlabRange>) {
        match body {
            Some(range) => self.outbox.push_changing(&header, range),
            None => self.outbox.push(&header, &[]),
        }
        self.answers.push_back(self.outbox.queued());
    }

    /// Answers a read of a published place.
    pub(super) fn push_published(&mut self, header: Header, place: PublishedPlace) {
        let body = LateBody::Published(self.published.clone(), place);
        self.outbox.push_late(&header, body);
        self.answers.push_back(self.outbox.queued());
    }

    /// Names the operation that was refused, if the wire takes it: the connection ends in any
    /// case.
    pub(super) fn send_nak(&mut self, id: u64) {
        self.submit();
        if self.outbox.is_empty() {
            self.outbox.push(&Header::new(Op::Nak, id), &[]);
            self.flush();
        }
    }

    /// Sends what the wire takes.
    fn flush(&mut self) {
        if self.outbox.is_empty() || self.deaf_peer {
            return;
        }
        self.deaf_peer = self.outbox.flush(&mut self.wire).is_err();
        while self.answers.pop_front_if(|end| *end <= self.outbox.sent()).is_some() {
            self.replies -= 1;
        }
        if self.outbox.has_refused() {
            self.fail(None, ErrorKind::Disconnected);
        }
    }

    /// The peer says how many of our writes and messages took effect; false when there were not so
    /// many.
    pub(super) fn acknowledge(&mut self, applied: u64) -> bool {
        while self.acked < applied {
            let Some(seq) = self.unacked.pop_front() else { return false };
            self.operations.done(seq);
            self.acked += 1;
        }
        true
    }

    /// Tells the peer what it may send and what took effect.
    fn advertise(&mut self) {
        let events = (self.granted, self.applied);
        if self.advertised != events {
            self.advertised = events;
            let header = Header { offset: events.0, key: events.1, ..Header::new(Op::Credit, 0) };
            self.outbox.push(&header, &[]);
        }
    }

    /// Reads and applies what is there.
    fn take_input(&mut self) {
        for _ in 0..READS_PER_POLL {
            let fill = self.parser.fill(&mut self.wire);
            let applied = self.apply_all();
            if let Err(breach) = applied {
                return self.end(breach);
            }
            match fill {
                Ok(Fill::More) => {}
                Ok(Fill::Dry) if !self.deaf_peer => return,
                Ok(Fill::Dry | Fill::End) | Err(_) => {
                    return self.fail(None, ErrorKind::Disconnected);
                }
            }
        }
    }

    /// Ends the connection for a reason that the next poll reports.
    pub(super) fn fail(&mut self, id: Option<OpId>, kind: ErrorKind) {
        if self.open {
            self.operations.retire(&mut self.events);
            self.events.push(Completion::Error { id, kind });
            self.shut(id);
        }
    }

    fn shut(&mut self, blamed: Option<OpId>) {
        self.open = false;
        self.operations.flush(blamed, &mut self.events);
        self.exports.clear();
        self.parser.abandon();
        self.held.clear();
        self.awaiting.clear();
        self.unacked.clear();
        self.answers.clear();
        self.outbox = Outbox::default();
        self.wire.end();
    }

    fn write_frame(
        &mut self,
        op: Op,
        src: Src<'_>,
        dst: RemoteRange,
        imm: u32,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        let notifies = op == Op::WriteNotify;
        self.validate(PostRequest::Write { src, dst, notifies })?;
        let body = match src {
            Src::Inline(bytes) => Body::Copied(bytes),
            Src::Slab(range) => Body::Slab(range),
            Src::Empty => Body::Copied(&[]),
        };
        self.used += u64::from(notifies);
        let (key, offset) = (dst.key.key, wire_offset(&dst));
        let len = src.len() as u32;
        let header = Header { imm, len, key, offset, ..Header::new(op, id.0) };
        self.post(header, body, None, flags);
        Ok(())
    }

    fn atomic(
        &mut self,
        op: Op,
        dst: RemoteRange,
        operands: &[u8],
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Atomic { dst, old })?;
        let (key, offset, len) = (dst.key.key, wire_offset(&dst), operands.len() as u32);
        let header = Header { len, key, offset, ..Header::new(op, id.0) };
        self.post(header, Body::Copied(operands), Some(old.clone()), Flags::SIGNAL);
        Ok(())
    }
}

impl<W: Wire> Endpoint for FrameEndpoint<W> {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn export(&mut self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        let random = Token::random();
        let random = random.map_err(|source| FabricError::Memory { bytes: range.len(), source })?;
        let (key, range) = (random.word(), range.exportable()?);
        if self.open {
            self.exports.insert(key, Export { range: range.clone(), retired: false });
        }
        Ok(RemoteKey { key, base: range.offset() as u64, len: range.len() as u64 })
    }

    fn revoke(&mut self, key: RemoteKey) {
        self.exports.remove(&key.key);
        let arriving = self.parser.arriving().filter(|h| h.op != Op::ReadData && h.key == key.key);
        if let Some(id) = arriving.map(|header| header.id) {
            self.end(Breach::Refused { id });
        }
    }

    fn retire(&mut self, key: RemoteKey) {
        if let Some(export) = self.exports.get_mut(&key.key) {
            export.retired = true;
            self.parser.lose(|header| header.op != Op::ReadData && header.key == key.key);
        }
    }

    fn write(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.write_frame(Op::Write, src, dst, 0, id, flags)
    }

    fn write_notify(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        imm: u32,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.write_frame(Op::WriteNotify, src, dst, imm, id, flags)
    }

    fn read(
        &mut self,
        dst: &SlabRange,
        src: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Read { dst, src })?;
        if src.key.is_published() && dst.len() > PUBLISHED_READ_MAX {
            return Err(PostError::TooLarge);
        }
        let (key, offset, len) = (src.key.key, wire_offset(&src), dst.len() as u32);
        let header = Header { len, key, offset, ..Header::new(Op::Read, id.0) };
        self.post(header, Body::Copied(&[]), Some(dst.clone()), flags);
        Ok(())
    }

    fn fetch_add(
        &mut self,
        dst: RemoteRange,
        add: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.atomic(Op::FetchAdd, dst, &add.to_le_bytes(), old, id)
    }

    fn compare_swap(
        &mut self,
        dst: RemoteRange,
        expect: u64,
        swap: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        let operands = [expect.to_le_bytes(), swap.to_le_bytes()].concat();
        self.atomic(Op::CompareSwap, dst, &operands, old, id)
    }

    fn send(&mut self, bytes: &[u8], id: OpId) -> Result<(), PostError> {
        self.validate(PostRequest::Send { len: bytes.len() })?;
        self.used += 1;
        let header = Header { len: bytes.len() as u32, ..Header::new(Op::Send, id.0) };
        self.post(header, Body::Copied(bytes), None, Flags::SIGNAL);
        Ok(())
    }

    fn post_recvs(&mut self, n: u32) {
        self.granted = self.granted.saturating_add(u64::from(n));
    }

    fn submit(&mut self) {
        if self.open {
            self.advertise();
            self.flush();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        if self.open {
            self.submit();
        }
        if self.open {
            self.take_input();
        }
        if self.open {
            self.flush();
        }
        if self.open {
            self.operations.retire(&mut self.events);
        }
        out.append(&mut self.events);
        out.len() - before
    }

    fn arm(&mut self) -> Armed {
        self.submit();
        if !self.events.is_empty() || self.operations.has_events() || (self.open && self.deaf_peer)
        {
            return Armed::Ready;
        }
        self.wire.arm(!self.outbox.is_empty())
    }

    fn budget(&self) -> Budget {
        if !self.open {
            return Budget { ops: 0, notices: 0 };
        }
        let notices = self.peer_granted.saturating_sub(self.used);
        Budget {
            ops: self.caps.max_ops - self.operations.len() as u32,
            notices: u32::try_from(notices).unwrap_or(u32::MAX),
        }
    }

    fn close(&mut self) {
        if self.open {
            self.submit();
            self.shut(None);
        }
    }
}

impl<W: Wire> Drop for FrameEndpoint<W> {
    fn drop(&mut self) {
        self.close();
    }
}

/// On the wire offsets count from the slab, so that the peer checks the base of the key as well.
fn wire_offset(at: &RemoteRange) -> u64 {
    at.key.base.wrapping_add(at.offset)
}
