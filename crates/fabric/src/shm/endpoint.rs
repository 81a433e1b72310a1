//! One end of a shared-memory connection.
//!
//! Every operation is finished when its post returns; `poll` only reports it. The rest, for
//! `submit` is to wake a peer that sleeps.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use super::inbox::{EXPORTS_MAX, OwnInbox, PeerInbox};
use super::map::{Mapping, SharedMemory};
use super::socket::{Incoming, Socket};
use super::spsc::{Entry, Receiver, Sender};
use crate::memory::publish_copy;
use crate::token::Token;
use crate::validate::PostRequest;
use crate::{
    Armed, Budget, Caps, Completion, Endpoint, ErrorKind, FabricError, Flags, OpId, PostError,
    RemoteKey, RemoteRange, SlabRange, Src,
};

/// Slabs that one endpoint can export parts of. Their descriptors fit the socket's buffer.
const SLABS_MAX: usize = 128;
/// Polls without news of the peer after which the socket is asked whether it lives.
const IDLE_POLLS: u32 = 1024;
/// Rounds of waiting for a copy of the peer's after which the socket is asked.
const BUSY_ROUNDS: u32 = 1 << 14;
/// How long such a copy may take. One of a process that runs takes microseconds.
const BUSY_MAX: Duration = Duration::from_secs(2);

/// Set in a key as long as it opens something; a retired key stands without it.
const GIVEN_OUT: u64 = 1 << 63;

/// First byte of a message: nothing but a wake-up.
const WAKE: u8 = b'W';
/// First byte of a message: number and size of a slab, whose descriptor comes along.
const SLAB: u8 = b'S';
const SLAB_MESSAGE_BYTES: usize = 17;

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
    /// Touch the pages of the peer's slabs when they are mapped.
    prefault: bool,
    socket: Socket,
    state: State,
    mine: OwnInbox,
    theirs: PeerInbox,
    tx: Sender,
    rx: Receiver,
    /// By the low bits of their keys.
    exports: Vec<Option<SlabRange>>,
    /// Slabs whose descriptors the peer has got, and their numbers.
    sent_slabs: HashMap<Token, u64>,
    /// The peer's slabs by number; `None` where mapping failed.
    peer_slabs: Vec<Option<Mapping>>,
    /// Completions for the next poll, and how many operations each retires.
    done: VecDeque<(Completion, u32)>,
    /// Operations that were posted and not retired.
    outstanding: u32,
    /// Those of them that were posted after the last signalled one.
    unsignalled: u32,
    /// Something was published that a sleeping peer has to learn.
    dirty: bool,
    armed: bool,
    gone: bool,
    idle_polls: u32,
}

impl ShmEndpoint {
    pub(super) fn new(
        caps: Caps,
        prefault: bool,
        socket: Socket,
        mine: OwnInbox,
        theirs: PeerInbox,
    ) -> Self {
        Self {
            caps,
            prefault,
            socket,
            state: State::Open,
            mine,
            theirs,
            tx: Sender::default(),
            rx: Receiver::default(),
            exports: Vec::new(),
            sent_slabs: HashMap::new(),
            peer_slabs: Vec::new(),
            done: VecDeque::new(),
            outstanding: 0,
            unsignalled: 0,
            dirty: false,
            armed: false,
            gone: false,
            idle_polls: 0,
        }
    }

    fn validate(&mut self, asked: PostRequest<'_>) -> Result<(), PostError> {
        let open = self.state == State::Open;
        let has_receive = || self.tx.ready(self.theirs.words());
        self.caps.validate(asked, open, self.outstanding as usize, has_receive)
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

    /// Finds the peer's memory: the address of `at` for `len` bytes in our mapping of its slab.
    fn locate(&mut self, at: &RemoteRange, len: usize) -> Result<*mut u8, ErrorKind> {
        let export = self.theirs.words().export(at.key.key);
        let is_current = export.key.load(Ordering::Acquire) == at.key.key
            && export.base.load(Ordering::Relaxed) == at.key.base
            && export.len.load(Ordering::Relaxed) == at.key.len;
        if !is_current {
            return Err(self.refusal());
        }
        let slab = export.slab.load(Ordering::Relaxed) as usize;
        if slab >= self.peer_slabs.len() {
            // The descriptor was sent before the key was published.
            self.drain_socket();
        }
        let Some(Some(mapping)) = self.peer_slabs.get(slab) else { return Err(self.refusal()) };
        let start = at.key.base.checked_add(at.offset).and_then(|s| usize::try_from(s).ok());
        match start.and_then(|start| Some((start, start.checked_add(len)?))) {
            Some((start, end)) if end <= mapping.len() => {
                // SAFETY: `start <= end <= mapping.len()`.
                Ok(unsafe { mapping.base().as_ptr().add(start) })
            }
            _ => Err(ErrorKind::RemoteAccess),
        }
    }

    /// Changes the peer's memory, unless the key was taken back; see `inbox` for the order of the
    /// steps.
    fn change<R>(
        &mut self,
        at: &RemoteRange,
        len: usize,
        change: impl FnOnce(*mut u8) -> R,
    ) -> Result<R, ErrorKind> {
        let target = self.locate(at, len)?;
        let words = self.theirs.words();
        words.busy().swap(1, Ordering::SeqCst);
        let valid = words.export(at.key.key).key.load(Ordering::SeqCst) == at.key.key;
        let result = valid.then(|| change(target));
        words.busy().store(0, Ordering::Release);
        result.ok_or_else(|| self.refusal())
    }

    /// Why a key does not open: the peer left, or it never gave that key or took it back.
    fn refusal(&self) -> ErrorKind {
        if self.gone || self.theirs.words().closed().load(Ordering::Acquire) != 0 {
            ErrorKind::Disconnected
        } else {
            ErrorKind::RemoteAccess
        }
    }

    fn put(&mut self, src: Src<'_>, dst: &RemoteRange) -> Result<(), ErrorKind> {
        let (from, len) = match src {
            Src::Slab(range) => (range.as_ptr().cast_const(), range.len()),
            Src::Inline(bytes) => (bytes.as_ptr(), bytes.len()),
            Src::Empty => return Ok(()),
        };
        // SAFETY: the source is live; the target lies inside of our mapping, and no safe reference
        // points there. Source and target overlap only when a worker writes to itself, and that is
        // a breach of its own protocol.
        let changed = self.change(dst, len, |target| unsafe { publish_copy(from, target, len) });
        if self.is_retired(&dst.key) { Ok(()) } else { changed }
    }

    /// Whether the peer has retired this key: nothing happens by it.
    fn is_retired(&self, key: &RemoteKey) -> bool {
        self.theirs.words().export(key.key).key.load(Ordering::Acquire) == key.key & !GIVEN_OUT
    }

    /// Takes a key back, leaving `mark` in its place.
    fn take_back(&mut self, key: RemoteKey, mark: u64) {
        let words = self.mine.words().export(key.key);
        if words.key.load(Ordering::Relaxed) != key.key {
            return;
        }
        words.key.store(mark, Ordering::SeqCst);
        let range = self.exports[key.key as usize % EXPORTS_MAX].take();
        if !self.await_quiet() {
            self.gone = true;
            // Never given back: nobody else may find what the peer still writes there.
            std::mem::forget(range);
        }
    }

    fn atomic(
        &mut self,
        dst: RemoteRange,
        old: &SlabRange,
        id: OpId,
        step: impl FnOnce(&AtomicU64) -> u64,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Atomic { dst, old })?;
        // SAFETY: eight bytes inside of our mapping, aligned because a mapping starts at a page.
        let outcome =
            self.change(&dst, 8, |word| step(unsafe { AtomicU64::from_ptr(word.cast()) }));
        if let Ok(value) = outcome {
            old.slab().store(old.offset(), value, Ordering::Release);
        }
        self.settle(outcome.map(drop), id, true);
        Ok(())
    }

    /// Takes what came over the socket.
    fn drain_socket(&mut self) {
        loop {
            match self.socket.receive() {
                Incoming::Empty => return,
                Incoming::Gone => return self.gone = true,
                Incoming::Message { bytes, len, fd } => match (bytes[0], len, fd) {
                    (WAKE, 1, None) => {}
                    (SLAB, SLAB_MESSAGE_BYTES, Some(fd)) => {
                        let word = |at: usize| {
                            bytes[at..at + 8].iter().rev().fold(0, |w, b| w << 8 | u64::from(*b))
                        };
                        if word(1) != self.peer_slabs.len() as u64 || word(1) >= SLABS_MAX as u64 {
                            return self.gone = true;
                        }
                        let mapping = usize::try_from(word(9)).ok().and_then(|bytes| {
                            Mapping::of_peer(fd.as_fd(), bytes, self.prefault).ok()
                        });
                        self.peer_slabs.push(mapping);
                    }
                    _ => return self.gone = true,
                },
            }
        }
    }

    /// The number of a slab on this connection; its descriptor is sent when it has none yet.
    fn slab_number(&mut self, memory: &SharedMemory) -> std::io::Result<u64> {
        if let Some(number) = self.sent_slabs.get(&memory.id()) {
            return Ok(*number);
        }
        let number = self.sent_slabs.len();
        if number == SLABS_MAX {
            return Err(std::io::Error::other("too many slabs are exported on one connection"));
        }
        let mut message = [SLAB; SLAB_MESSAGE_BYTES];
        message[1..9].copy_from_slice(&(number as u64).to_le_bytes());
        message[9..].copy_from_slice(&(memory.mapping().len() as u64).to_le_bytes());
        self.socket.send(&message, Some(memory.fd()))?;
        self.sent_slabs.insert(memory.id(), number as u64);
        Ok(number as u64)
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
        let backing = range.slab().backing().clone();
        let memory: &SharedMemory =
            backing.as_any().downcast_ref().ok_or(FabricError::ForeignSlab)?;
        let refused = |source| FabricError::Memory { bytes: range.len(), source };
        let free = self.exports.iter().position(Option::is_none).unwrap_or(self.exports.len());
        if free == EXPORTS_MAX {
            return Err(refused(std::io::Error::other("too many exports on one connection")));
        }
        let slab = self.slab_number(memory).map_err(refused)?;
        // The low bits find the entry; one high bit keeps the key from being zero.
        let random = Token::random().map_err(refused)?.word() | GIVEN_OUT;
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

    fn write(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Write { src, dst, notifies: false })?;
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
        let outcome = self.put(src, &dst);
        if outcome.is_ok() {
            self.tx.push(self.theirs.words(), Entry::Notice(imm));
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
        self.validate(PostRequest::Read { len: dst.len(), src })?;
        let outcome = self.locate(&src, dst.len()).map(|from| {
            // SAFETY: both lie inside of their mappings; the destination is the caller's until
            // `Local`. The peer may change the source meanwhile: the bytes are then torn, which a
            // read may be (G7).
            unsafe { std::ptr::copy(from.cast_const(), dst.as_ptr(), dst.len()) }
            // A second read, which shows whether the first one was whole, comes later:
            // some processors would load in another order.
            fence(Ordering::Acquire);
        });
        let outcome = if self.is_retired(&src.key) { Ok(()) } else { outcome };
        self.settle(outcome, id, flags.has(Flags::SIGNAL));
        Ok(())
    }

    fn fetch_add(
        &mut self,
        dst: RemoteRange,
        add: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.atomic(dst, old, id, |word| word.fetch_add(add, Ordering::AcqRel))
    }

    fn compare_swap(
        &mut self,
        dst: RemoteRange,
        expect: u64,
        swap: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.atomic(dst, old, id, |word| {
            match word.compare_exchange(expect, swap, Ordering::AcqRel, Ordering::Acquire) {
                Ok(old) | Err(old) => old,
            }
        })
    }

    fn send(&mut self, bytes: &[u8], id: OpId) -> Result<(), PostError> {
        self.validate(PostRequest::Send { len: bytes.len() })?;
        let words = self.theirs.words();
        words.put_message(self.tx.position(), bytes);
        self.tx.push(words, Entry::Message(bytes.len() as u16));
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
        self.submit();
        if std::mem::take(&mut self.armed) {
            self.rx.wake(self.mine.words());
            self.drain_socket();
        }
        while let Some((completion, retires)) = self.done.pop_front() {
            self.outstanding -= retires;
            out.push(completion);
        }
        if self.state == State::Closed {
            return out.len() - before;
        }
        // Looked at before the entries, so that none that was sent before the end is missed.
        let ended = self.gone || self.theirs.words().closed().load(Ordering::Acquire) != 0;
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
            }
        }
        out.len() - before
    }

    fn arm(&mut self) -> Armed {
        self.submit();
        let fd = Armed::Fd(self.socket.fd().as_raw_fd());
        if self.state == State::Closed {
            return if self.done.is_empty() { fd } else { Armed::Ready };
        }
        self.armed = true;
        // The end of the peer shows at the socket, and needs no look here.
        if self.done.is_empty() && !self.gone && self.rx.sleep(self.mine.words()) {
            fd
        } else {
            Armed::Ready
        }
    }

    fn budget(&self) -> Budget {
        if self.state == State::Closed {
            return Budget { ops: 0, notices: 0 };
        }
        Budget {
            ops: self.caps.max_ops - self.outstanding,
            notices: self.tx.budget(self.theirs.words()) as u32,
        }
    }

    fn close(&mut self) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        let words = self.mine.words();
        words.closed().store(1, Ordering::SeqCst);
        for index in 0..self.exports.len() {
            words.export(index as u64).key.store(0, Ordering::SeqCst);
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
