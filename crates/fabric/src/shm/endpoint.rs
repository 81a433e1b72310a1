//! One end of a shared-memory connection.
//!
//! Almost every operation is finished when its post returns; `poll` only reports it. The rest, for
//! `submit` is to wake a peer that sleeps. A read of published memory that is not mapped yet waits
//! for its descriptor, and what is posted behind it waits too ([`held`]).

mod held;
mod peer_memory;

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::inbox::{EXPORTS_MAX, OwnInbox, PeerInbox};
use super::limits::refused;
use super::publications::{Publications, shared};
use super::slabs::{self, OwnSlabs, PeerSlabs, Reach};
use super::socket::{Incoming, Socket};
use super::spsc::{Entry, Receiver, Sender};
use crate::posted::{PostedOperation, PostedSource};
use crate::token::Token;
use crate::validate::PostRequest;
use crate::{
    Armed, Budget, Caps, Completion, Endpoint, ErrorKind, FabricError, Flags, MappedRange, OpId,
    PostError, RemoteKey, RemoteRange, SlabRange, Src,
};
use held::Held;

/// Polls without news of the peer after which the socket is asked whether it lives.
const IDLE_POLLS: u32 = 1024;
/// Sleeps that the peer did not end after which the socket is looked at all the same. A worker that
/// sleeps on many connections is woken by one of them, and has no reason to ask all sockets. The
/// death of a process, and memory that it no longer exports, show at the socket alone: it then ends
/// each sleep at once, so that this many follow each other in microseconds.
const UNEXPLAINED_WAKES_MAX: u32 = 8;
/// Rounds of waiting for a copy of the peer's after which the socket is asked.
const BUSY_ROUNDS: u32 = 1 << 14;
/// How long such a copy may take. One of a process that runs takes microseconds.
const BUSY_MAX: Duration = Duration::from_secs(2);

/// Set in a key as long as it opens something; a retired key stands without it.
const GIVEN_OUT: u64 = 1 << 63;

/// First byte of a message: nothing but a wake-up.
const WAKE: u8 = b'W';

/// Whether operations can be posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// An error was reported or waits to be, or `close` was called.
    Closed,
}

/// The shared-memory [`Endpoint`].
pub(super) struct ShmEndpoint {
    caps: Caps,
    socket: Socket,
    state: State,
    mine: OwnInbox,
    theirs: PeerInbox,
    tx: Sender,
    rx: Receiver,
    /// By the low bits of their keys.
    exports: Vec<Option<SlabRange>>,
    publications: Arc<Publications>,
    own_slabs: OwnSlabs,
    peer_slabs: PeerSlabs,
    /// Questions of the peer that were looked for.
    asked_seen: u64,
    held: Held,
    /// Completions for the next poll, and how many operations each retires.
    done: VecDeque<(Completion, u32)>,
    /// Operations that were posted and not retired.
    outstanding: u32,
    /// Those of them that were posted after the last signalled one.
    unsignalled: u32,
    /// Something was published that a sleeping peer has to learn.
    dirty: bool,
    armed: bool,
    /// Sleeps since the last look at the socket.
    unexplained_wakes: u32,
    gone: bool,
    idle_polls: u32,
}

impl ShmEndpoint {
    pub(super) fn new(
        caps: Caps,
        prefault: bool,
        publications: Arc<Publications>,
        socket: Socket,
        mine: OwnInbox,
        theirs: PeerInbox,
    ) -> Self {
        Self {
            caps,
            socket,
            state: State::Open,
            mine,
            theirs,
            tx: Sender::default(),
            rx: Receiver::default(),
            exports: Vec::new(),
            publications,
            own_slabs: OwnSlabs::default(),
            peer_slabs: PeerSlabs::new(prefault),
            asked_seen: 0,
            held: Held::default(),
            done: VecDeque::new(),
            outstanding: 0,
            unsignalled: 0,
            dirty: false,
            armed: false,
            unexplained_wakes: 0,
            gone: false,
            idle_polls: 0,
        }
    }

    fn validate(&mut self, asked: PostRequest<'_>) -> Result<(), PostError> {
        let open = self.state == State::Open;
        let occupied = self.outstanding as usize + self.held.len();
        let words = self.theirs.words();
        let has_receive = || match self.held.notices() {
            0 => self.tx.ready(words),
            held => self.tx.budget(words) > held,
        };
        self.caps.validate(asked, open, occupied, has_receive)
    }

    /// Books an operation that has taken place.
    fn finish(&mut self, id: OpId, signalled: bool) {
        self.outstanding += 1;
        self.unsignalled += 1;
        if signalled {
            self.done.push_back((Completion::Local { id }, self.unsignalled));
            self.unsignalled = 0;
        }
        self.dirty = true;
    }

    /// Ends the connection for a reason that the next poll reports.
    fn fail(&mut self, id: Option<OpId>, kind: ErrorKind) {
        self.done.push_back((Completion::Error { id, kind }, 0));
        self.close();
    }

    /// Books an operation, or the failure that it met.
    fn settle(&mut self, outcome: Result<(), ErrorKind>, id: OpId, signalled: bool) {
        match outcome {
            Ok(()) => self.finish(id, signalled),
            Err(kind) => self.fail(Some(id), kind),
        }
    }

    /// Takes a key back, leaving `mark` in its place.
    fn take_back(&mut self, key: RemoteKey, mark: u64) {
        let words = self.mine.words().export(key.key);
        if words.key.load(Ordering::Relaxed) != key.key {
            return;
        }
        words.key.store(mark, Ordering::SeqCst);
        let range = self.exports[key.key as usize % EXPORTS_MAX].take();
        if let Some(memory) = range.as_ref().and_then(|range| shared(range.slab().backing())) {
            self.own_slabs.unexport(memory, &self.socket);
        }
        if !self.await_quiet() {
            self.gone = true;
            // Never given back: nobody else may find what the peer still writes there.
            std::mem::forget(range);
        }
    }

    /// Sends a message, for which there is a receive.
    fn say(&mut self, bytes: &[u8]) {
        self.theirs.words().put_message(self.tx.position(), bytes);
        self.push(Entry::Message(bytes.len() as u16));
    }

    /// Makes an entry visible, for which there is a receive.
    fn push(&mut self, entry: Entry) {
        let words = self.theirs.words();
        // Operations that waited were counted, not looked for.
        let ready = self.tx.ready(words);
        debug_assert!(ready);
        self.tx.push(words, entry);
    }

    /// Takes what came over the socket.
    fn drain_socket(&mut self) {
        self.unexplained_wakes = 0;
        loop {
            match self.socket.receive() {
                Incoming::Empty => return,
                Incoming::Gone => return self.gone = true,
                Incoming::Message { bytes, len: 1, fd: None } if bytes[0] == WAKE => {
                    self.rx.woken();
                }
                Incoming::Message { bytes, len, fd } => {
                    let Self { own_slabs, peer_slabs, .. } = self;
                    if slabs::take(&bytes[..len], fd, own_slabs, peer_slabs).is_err() {
                        return self.gone = true;
                    }
                }
            }
        }
    }

    /// Looks at the socket where something may wait there, and lets go on what waited for it.
    fn look_around(&mut self) {
        let asked = self.mine.words().asked().load(Ordering::Acquire);
        let mut looks = false;
        if std::mem::take(&mut self.armed) {
            self.rx.wake(self.mine.words());
            self.unexplained_wakes += 1;
            looks = self.rx.expects_wake() || self.unexplained_wakes >= UNEXPLAINED_WAKES_MAX;
        }
        if looks || asked != self.asked_seen || !self.held.is_empty() {
            self.asked_seen = asked;
            self.drain_socket();
        }
        self.use_received();
    }

    /// Answers what came over the socket, and lets go on what waited for it.
    fn use_received(&mut self) {
        if self.own_slabs.has_unanswered() {
            self.own_slabs.answer(&self.publications, &self.socket);
        }
        self.run_held();
    }

    /// Waits until no copy of the peer's is under way that began before a key was cleared. False
    /// when that took too long: the peer is stopped in the middle of one, and may go on some day.
    fn await_quiet(&self) -> bool {
        let mut rounds = 0;
        let mut since = None;
        while self.mine.words().busy().load(Ordering::SeqCst) != 0 {
            rounds += 1;
            match rounds % BUSY_ROUNDS {
                0 if !self.socket.peer_lives() => return true,
                0 if since.get_or_insert_with(Instant::now).elapsed() > BUSY_MAX => return false,
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        true
    }

    /// Appends what the peer sent.
    fn take_entries(&mut self, out: &mut Vec<Completion>) {
        let words = self.mine.words();
        let mut broken = false;
        loop {
            let position = self.rx.position();
            match self.rx.pop(words) {
                None => break,
                Some(Entry::Notice(imm)) => out.push(Completion::Notify { imm }),
                Some(Entry::Message(len)) => match words.take_message(position, len.into()) {
                    Some(bytes) => out.push(Completion::Recv { bytes }),
                    None => broken = true,
                },
            }
        }
        self.rx.advertise(words);
        self.gone |= broken;
    }
}

impl Endpoint for ShmEndpoint {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn export(&mut self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        let memory = shared(range.exportable()?.slab().backing());
        let memory = memory.ok_or(FabricError::ForeignSlab)?;
        let refused = |source| refused(range.len(), source);
        let free = self.exports.iter().position(Option::is_none).unwrap_or(self.exports.len());
        if free == EXPORTS_MAX {
            return Err(refused(std::io::Error::other("too many exports on one connection")));
        }
        // The low bits find the entry; one high bit keeps the key from being zero.
        let random = Token::random().map_err(refused)?.word() | GIVEN_OUT;
        let slab = self.own_slabs.export(memory, &self.socket).map_err(refused)?;
        let key = random - random % EXPORTS_MAX as u64 + free as u64;
        let words = self.mine.words().export(key);
        words.base.store(range.offset() as u64, Ordering::Relaxed);
        words.len.store(range.len() as u64, Ordering::Relaxed);
        words.slab.store(slab, Ordering::Relaxed);
        words.key.store(key, Ordering::Release);
        if free == self.exports.len() {
            self.exports.push(None);
        }
        self.exports[free] = Some(range.clone());
        Ok(RemoteKey { key, base: range.offset() as u64, len: range.len() as u64 })
    }

    fn revoke(&mut self, key: RemoteKey) {
        self.take_back(key, 0);
    }

    fn retire(&mut self, key: RemoteKey) {
        self.take_back(key, key.key & !GIVEN_OUT);
    }

    fn release(&mut self, key: RemoteKey) {
        if key.is_published() {
            return self.peer_slabs.release(&key);
        }
        let export = self.theirs.words().export(key.key);
        if export.key.load(Ordering::Acquire) == key.key {
            let slab = export.slab.load(Ordering::Relaxed);
            if self.peer_slabs.place(slab).is_err() {
                self.drain_socket();
            }
            self.peer_slabs.forget(slab);
        }
    }

    fn mapped(&mut self, key: RemoteKey) -> Result<Option<MappedRange>, PostError> {
        if self.state == State::Closed {
            return Err(PostError::Closed);
        }
        let len = usize::try_from(key.len).map_err(|_| PostError::OutOfBounds)?;
        if !key.is_published() {
            return Err(PostError::OutOfBounds);
        }
        match self.reach(&key, 0, len) {
            Reach::Here(place) if place.memory.is_sealed() => {
                let range = MappedRange::new(place.memory, place.start, place.len);
                range.map(Some).ok_or(PostError::OutOfBounds)
            }
            Reach::Here(_) => Ok(None),
            Reach::Pending => Err(PostError::Full),
            Reach::Refused => Err(PostError::OutOfBounds),
        }
    }

    fn write(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Write { src, dst, notifies: false })?;
        if !self.held.is_empty() {
            let what = PostedOperation::Write { src: PostedSource::of(src), dst, notice: None };
            return self.hold(what, id, flags.has(Flags::SIGNAL));
        }
        let outcome = self.put(src, &dst);
        self.settle(outcome, id, flags.has(Flags::SIGNAL));
        Ok(())
    }

    fn write_notify(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        imm: u32,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Write { src, dst, notifies: true })?;
        if !self.held.is_empty() {
            let what =
                PostedOperation::Write { src: PostedSource::of(src), dst, notice: Some(imm) };
            return self.hold(what, id, flags.has(Flags::SIGNAL));
        }
        let outcome = self.put(src, &dst);
        if outcome.is_ok() {
            self.push(Entry::Notice(imm));
        }
        self.settle(outcome, id, flags.has(Flags::SIGNAL));
        Ok(())
    }

    fn read(
        &mut self,
        dst: &SlabRange,
        src: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Read { dst, src })?;
        let signalled = flags.has(Flags::SIGNAL);
        if self.held.is_empty()
            && let Reach::Here(outcome) = self.fetch(dst, &src)
        {
            self.settle(outcome, id, signalled);
            return Ok(());
        }
        self.hold(PostedOperation::Read { dst: dst.clone(), src }, id, signalled)
    }

    fn fetch_add(
        &mut self,
        dst: RemoteRange,
        add: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Atomic { dst, old })?;
        if !self.held.is_empty() {
            return self.hold(PostedOperation::Add { dst, add, old: old.clone() }, id, true);
        }
        let outcome = self.add(&dst, add, old);
        self.settle(outcome, id, true);
        Ok(())
    }

    fn compare_swap(
        &mut self,
        dst: RemoteRange,
        expect: u64,
        swap: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Atomic { dst, old })?;
        if !self.held.is_empty() {
            return self.hold(
                PostedOperation::Swap { dst, expect, swap, old: old.clone() },
                id,
                true,
            );
        }
        let outcome = self.swap(&dst, expect, swap, old);
        self.settle(outcome, id, true);
        Ok(())
    }

    fn send(&mut self, bytes: &[u8], id: OpId) -> Result<(), PostError> {
        self.validate(PostRequest::Send { len: bytes.len() })?;
        if !self.held.is_empty() {
            return self.hold(PostedOperation::Send(bytes.to_vec()), id, true);
        }
        self.say(bytes);
        self.finish(id, true);
        Ok(())
    }

    fn post_recvs(&mut self, n: u32) {
        self.rx.grant(self.mine.words(), n);
        self.dirty = true;
    }

    fn submit(&mut self) {
        if std::mem::take(&mut self.dirty) && self.tx.publish(self.theirs.words()) {
            self.gone |= self.socket.send(&[WAKE], None).is_err();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        self.look_around();
        self.submit();
        while let Some((completion, retires)) = self.done.pop_front() {
            self.outstanding -= retires;
            out.push(completion);
        }
        if self.state == State::Closed {
            return out.len() - before;
        }
        // Looked at before the entries, so that none that was sent before the end is missed.
        let ended = self.gone || self.peer_closed();
        // Our own completions say nothing of the peer: its memory outlives it.
        let own = out.len();
        self.take_entries(out);
        if ended || self.gone {
            self.close();
            out.push(Completion::Error { id: None, kind: ErrorKind::Disconnected });
        } else if out.len() == own {
            self.idle_polls += 1;
            if self.idle_polls.is_multiple_of(IDLE_POLLS) {
                self.drain_socket();
                self.use_received();
            }
        }
        out.len() - before
    }

    fn has_news(&mut self) -> bool {
        if self.armed || !self.done.is_empty() {
            return true;
        }
        if self.state == State::Closed {
            return false;
        }
        let words = self.mine.words();
        let of_own = self.dirty || self.gone || !self.held.is_empty();
        let of_peer = self.rx.has_entry(words)
            || words.asked().load(Ordering::Relaxed) != self.asked_seen
            || self.own_slabs.has_unanswered()
            || self.peer_closed();
        if of_own || of_peer {
            return true;
        }
        // The poll that looks at the socket is not left out.
        let looks = (self.idle_polls + 1).is_multiple_of(IDLE_POLLS);
        self.idle_polls += u32::from(!looks);
        looks
    }

    fn arm(&mut self) -> Armed {
        self.submit();
        let fd = Armed::Fd(self.socket.fd().as_raw_fd());
        if self.state == State::Closed {
            return if self.done.is_empty() { fd } else { Armed::Ready };
        }
        self.armed = true;
        // The end of the peer shows at the socket, and needs no look here.
        // Room for an answer does not show at the socket.
        let idle = self.done.is_empty() && !self.gone && !self.own_slabs.has_unanswered();
        if idle && self.rx.sleep(self.mine.words()) { fd } else { Armed::Ready }
    }

    fn budget(&self) -> Budget {
        if self.state == State::Closed {
            return Budget { ops: 0, notices: 0 };
        }
        Budget {
            ops: self.caps.max_ops - self.outstanding - self.held.len() as u32,
            notices: (self.tx.budget(self.theirs.words()) - self.held.notices()) as u32,
        }
    }

    fn close(&mut self) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        let words = self.mine.words();
        words.closed().store(1, Ordering::SeqCst);
        // A reader of published memory that copies what is stored behind this sees the end as well.
        fence(Ordering::Release);
        for index in 0..self.exports.len() {
            words.export(index as u64).key.store(0, Ordering::SeqCst);
        }
        for id in self.held.take_all() {
            let flushed = Completion::Error { id: Some(id), kind: ErrorKind::Flushed };
            self.done.push_back((flushed, 0));
        }
        let ranges = std::mem::take(&mut self.exports);
        if !self.await_quiet() {
            std::mem::forget(ranges);
        }
        self.socket.shut();
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}
