//! One end of a link that shares its connection with others.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::SharedConnection;
use super::port::{Event, Op, Port};
use super::sleep::Sleeps;
use super::wire::Mark;
use crate::operations::OperationTable;
use crate::posted::{PostedOperation, PostedSource};
use crate::validate::PostRequest;
use crate::{
    Armed, Budget, Caps, Completion, Endpoint, ErrorKind, EventFd, FabricError, Flags, MappedRange,
    OpId, PostError, RemoteKey, RemoteRange, SlabRange, Src,
};

/// The [`Endpoint`] of a link on a shared connection.
pub(super) struct SharedEndpoint {
    connection: Arc<SharedConnection>,
    port: Arc<Port>,
    caps: Caps,
    /// Of the keys that we emit, and that the peer gave us.
    own: Mark,
    theirs: Mark,
    /// Operations can be posted.
    open: bool,
    /// `close` was called.
    closed: bool,
    operations: OperationTable,
    /// Operations whose completion the shared connection has reported.
    completed: u64,
    /// After the end: operations that the shared connection has begun, and the one to blame.
    /// PostedOperation is outstanding is flushed when the shared connection uses its memory no
    /// more.
    flushing: Option<(u64, Option<OpId>)>,
    staged: Vec<Op>,
    /// Receives that we posted, and of which the shared connection knows.
    granted: u64,
    granted_published: u64,
    /// Receives that the peer posted, and that we used.
    peer_granted: u64,
    used: u64,
    /// As the transport knows them.
    exports: Vec<RemoteKey>,
    events: Vec<Completion>,
    /// How often this worker had driven the shared connection when this end last looked.
    polls_seen: u64,
    /// Has been armed since the last poll.
    armed: bool,
}

impl SharedEndpoint {
    pub(super) fn new(
        connection: Arc<SharedConnection>,
        port: Arc<Port>,
        caps: Caps,
        theirs: Mark,
    ) -> Self {
        let own = Mark::new(&connection.token, port.number);
        Self {
            caps,
            own,
            theirs,
            open: true,
            closed: false,
            operations: OperationTable::default(),
            completed: 0,
            flushing: None,
            staged: Vec::new(),
            granted: 0,
            granted_published: 0,
            peer_granted: 0,
            used: 0,
            exports: Vec::new(),
            events: Vec::new(),
            polls_seen: 0,
            armed: false,
            connection,
            port,
        }
    }

    fn validate(&self, asked: PostRequest<'_>) -> Result<(), PostError> {
        let has_receive = || self.used < self.peer_granted;
        self.caps.validate(asked, self.open, self.operations.len(), has_receive)
    }

    /// The place as the transport knows it, if it is of this link or of all.
    fn place(&self, at: RemoteRange) -> Result<RemoteRange, PostError> {
        if at.key.is_published() {
            return Ok(at);
        }
        let key = self.theirs.take(at.key).ok_or(PostError::OutOfBounds)?;
        Ok(RemoteRange { key, ..at })
    }

    fn stage(&mut self, id: OpId, flags: Flags, signalled: bool, what: PostedOperation) {
        let seq = self.operations.post(id, signalled);
        self.staged.push(Op { seq, flags, what });
    }

    fn stage_write(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        notice: Option<u32>,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Write { src, dst, notifies: notice.is_some() })?;
        let src = PostedSource::of(src);
        let dst = if matches!(src, PostedSource::Empty) { NOWHERE } else { self.place(dst)? };
        self.used += u64::from(notice.is_some());
        self.stage(
            id,
            flags,
            flags.has(Flags::SIGNAL),
            PostedOperation::Write { src, dst, notice },
        );
        Ok(())
    }

    /// Gives what was posted to the shared connection. True when there was something.
    fn hand_over(&mut self) -> bool {
        if self.staged.is_empty() && self.granted_published == self.granted {
            return false;
        }
        if self.granted_published != self.granted {
            // Before the peer can use them.
            self.port.inbox().granted = self.granted;
        }
        let mut outgoing = self.port.outgoing();
        if self.granted_published != self.granted {
            self.granted_published = self.granted;
            outgoing.grant = Some(self.granted);
        }
        if outgoing.over {
            self.staged.clear()
        } else {
            outgoing.ops.extend(self.staged.drain(..))
        }
        drop(outgoing);
        self.connection.mark(&self.port);
        true
    }

    /// Whether it is this end's turn to drive the shared connection: not if another link of the
    /// same worker has done so since this one looked, for then its news are here.
    fn drives(&mut self) -> bool {
        let polls_seen = self.port.parker.polls.load(Ordering::Relaxed);
        let drives = polls_seen == self.polls_seen;
        self.polls_seen = polls_seen + u64::from(drives);
        if drives {
            self.port.parker.polls.store(self.polls_seen, Ordering::Relaxed);
        }
        drives
    }

    fn take_inbox(&mut self) {
        let mut inbox = self.port.inbox();
        inbox.fresh = false;
        let (completed, credit, over) = (inbox.completed, inbox.credit, inbox.over);
        let events = std::mem::take(&mut inbox.events);
        drop(inbox);
        self.peer_granted = self.peer_granted.max(credit);
        if self.caps.ordered_completions {
            for seq in self.completed..completed {
                self.operations.done(seq);
            }
            self.completed = self.completed.max(completed);
        }
        for event in events {
            match event {
                Event::Done(seq) => {
                    self.operations.done(seq);
                    self.completed += 1;
                }
                Event::Arrived(completion) if self.open => self.events.push(completion),
                Event::Arrived(_) => {}
                Event::Closed => self.fail(None, ErrorKind::Disconnected),
                Event::Broken(seq, kind) => {
                    let id = seq.and_then(|seq| self.operations.id(seq));
                    self.fail(id, kind);
                }
            }
        }
        if self.open {
            self.operations.retire(&mut self.events);
        }
        if let Some((begun, blamed)) = self.flushing
            && (over || self.completed >= begun)
        {
            self.operations.flush(blamed, &mut self.events);
            self.flushing = None;
        }
    }

    fn fail(&mut self, id: Option<OpId>, kind: ErrorKind) {
        if self.open {
            self.operations.retire(&mut self.events);
            self.events.push(Completion::Error { id, kind });
            self.stop(id);
        }
    }

    /// Posts nothing any more.
    fn stop(&mut self, blamed: Option<OpId>) {
        self.open = false;
        self.staged.clear();
        let mut outgoing = self.port.outgoing();
        outgoing.over = true;
        outgoing.ops.clear();
        self.flushing = Some((outgoing.posted, blamed));
    }

    /// The worker is awake. True when another has to watch the line, for which the request is left.
    fn rise(&mut self) -> bool {
        let watched = std::mem::take(&mut self.armed) && self.port.parker.rise();
        if watched {
            self.connection.mark(&self.port);
        }
        watched
    }
}

impl Endpoint for SharedEndpoint {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn export(&mut self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        let key = self.connection.with(|core| core.export(range))?;
        if !self.closed {
            self.exports.push(key);
        }
        let source = || std::io::Error::other("the address has more than 48 bits");
        let marked = self.own.put(key);
        marked.ok_or_else(|| FabricError::Memory { bytes: range.len(), source: source() })
    }

    fn revoke(&mut self, key: RemoteKey) {
        let Some(key) = self.own.take(key) else { return };
        if let Some(at) = self.exports.iter().position(|known| *known == key) {
            self.exports.swap_remove(at);
            self.connection.with(|core| core.revoke(key));
        }
    }

    fn release(&mut self, key: RemoteKey) {
        let key = if key.is_published() { Some(key) } else { self.theirs.take(key) };
        if let Some(key) = key {
            self.connection.with(|core| core.release(key));
        }
    }

    fn mapped(&mut self, key: RemoteKey) -> Result<Option<MappedRange>, PostError> {
        if !self.open {
            return Err(PostError::Closed);
        }
        self.connection.with(|core| core.mapped(key))
    }

    fn write(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.stage_write(src, dst, None, id, flags)
    }

    fn write_notify(
        &mut self,
        src: Src<'_>,
        dst: RemoteRange,
        imm: u32,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.stage_write(src, dst, Some(imm), id, flags)
    }

    fn read(
        &mut self,
        dst: &SlabRange,
        src: RemoteRange,
        id: OpId,
        flags: Flags,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Read { dst, src })?;
        let what = PostedOperation::Read { dst: dst.clone(), src: self.place(src)? };
        self.stage(id, flags, flags.has(Flags::SIGNAL), what);
        Ok(())
    }

    fn fetch_add(
        &mut self,
        dst: RemoteRange,
        add: u64,
        old: &SlabRange,
        id: OpId,
    ) -> Result<(), PostError> {
        self.validate(PostRequest::Atomic { dst, old })?;
        let what = PostedOperation::Add { dst: self.place(dst)?, add, old: old.clone() };
        self.stage(id, Flags::SIGNAL, true, what);
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
        let what = PostedOperation::Swap { dst: self.place(dst)?, expect, swap, old: old.clone() };
        self.stage(id, Flags::SIGNAL, true, what);
        Ok(())
    }

    fn send(&mut self, bytes: &[u8], id: OpId) -> Result<(), PostError> {
        self.validate(PostRequest::Send { len: bytes.len() })?;
        self.used += 1;
        self.stage(id, Flags::SIGNAL, true, PostedOperation::Send(bytes.to_vec()));
        Ok(())
    }

    fn post_recvs(&mut self, n: u32) {
        if self.open {
            self.granted = self.granted.saturating_add(u64::from(n));
        }
    }

    fn submit(&mut self) {
        // What was gathered may have been started with what another endpoint had posted.
        if self.open && (self.hand_over() || self.port.due.load(Ordering::Relaxed)) {
            self.connection.serve(false);
        }
    }

    fn gather(&mut self) {
        if self.open {
            self.hand_over();
        }
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        let watched = self.rise();
        let wants = (self.open && self.hand_over()) || watched;
        let drives = self.connection.spins() && self.drives();
        if drives || wants {
            self.connection.serve(drives);
        }
        self.take_inbox();
        out.append(&mut self.events);
        out.len() - before
    }

    fn has_news(&mut self) -> bool {
        let own = self.armed || !self.events.is_empty() || !self.staged.is_empty();
        if own || self.flushing.is_some() || self.granted != self.granted_published {
            return true;
        }
        let polls = self.port.parker.polls.load(Ordering::Relaxed);
        let drives = self.connection.spins() && polls == self.polls_seen;
        if drives || self.port.has_news() {
            return true;
        }
        // Another link of the worker has driven the connection: it is the next one's turn again.
        self.polls_seen = polls;
        false
    }

    fn arm(&mut self) -> Armed {
        let watched = self.rise();
        let wants = self.open && self.hand_over();
        if !self.events.is_empty() {
            if watched {
                self.connection.serve(false);
            }
            return Armed::Ready;
        }
        self.armed = true;
        if self.connection.spins() {
            let polls = self.drives();
            // Another link of the worker has lain down for all, if this one has nothing to post.
            let lain = if polls || wants { None } else { self.port.lies() };
            return lain.map_or_else(|| self.connection.arm(polls, &self.port), Armed::Fd);
        }
        self.connection.serve(false);
        // Without a descriptor one can still poll.
        let Ok(event_fd) = self.port.parker.event_fd().map(EventFd::raw) else {
            return Armed::Ready;
        };
        if self.port.park() { Armed::Fd(event_fd) } else { Armed::Ready }
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
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if std::mem::take(&mut self.armed) {
            // Another thread may close it, while the worker sleeps for its other links.
            self.port.parker.ring();
        }
        let tells = self.open;
        if self.open {
            self.stop(None);
        }
        self.connection.close(&self.port, &std::mem::take(&mut self.exports), tells);
    }
}

impl Drop for SharedEndpoint {
    fn drop(&mut self) {
        self.close();
        self.connection.with(|core| core.forget(&self.port));
    }
}

/// The place of a write without bytes, which is not looked at.
const NOWHERE: RemoteRange = RemoteRange { key: RemoteKey { key: 0, base: 0, len: 0 }, offset: 0 };
