//! The state of a shared connection, used by the thread that holds it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::connection::SharedConnection;
use super::port::{Event, Op, Outgoing, Port};
use super::sleep::{Parker, Watch};
use super::wire::{
    self, HEADER_BYTES, LONGS, Message, Notice, PORTS_MAX, PortUpdate, UPDATE_BYTES,
};
use crate::posted::PostedOperation;
use crate::{
    Armed, Completion, Endpoint, ErrorKind, FabricError, Flags, MappedRange, OpId, PostError,
    RemoteKey, SlabRange,
};

/// Receives that a shared connection keeps posted. Links wait for each other's notices when they
/// are used up, and each poll gives them back.
const RECVS: u32 = 256;
/// Operations of one link that are posted before it is the next one's turn.
const TURN_OPS: usize = 16;
/// Attempts to put the line to sleep before the sleepers are roused instead.
const REARMS: usize = 4;
/// The owner of what the shared connection itself sends.
const NOBODY: u16 = u16::MAX;

/// The line and the books about it.
#[derive(Default)]
pub(super) struct Core {
    /// The physical end, once it is connected. Kept after its end: a sleeper may still wait for its
    /// descriptor.
    line: Option<Box<dyn Endpoint>>,
    over: bool,
    ordered: bool,
    ports: Vec<Slot>,
    /// Ports whose owners have not closed.
    open: u32,
    /// Operations that were posted and have not completed, and the id of the first.
    sent: VecDeque<Option<Sent>>,
    first: u64,
    /// Operations since the last signalled one, and how many there may be.
    unsignalled: u32,
    unsignalled_max: u32,
    /// Ports with operations that wait for room.
    backlog: VecDeque<Arc<Port>>,
    /// Updates for the peer's ports; at most one credit for each.
    updates: VecDeque<(u16, PortUpdate)>,
    /// Halves of long notices, by number.
    longs: HashMap<u32, Half>,
    next_long: u32,
    recvs_used: u32,
    unsubmitted: bool,
    completions: Vec<Completion>,
    /// The workers that sleep on the line, where they drive it.
    watch: Watch<Parker>,
}

#[derive(Default)]
struct Slot {
    port: Option<Arc<Port>>,
    in_backlog: bool,
}

/// An operation on the line.
#[derive(Clone, Copy)]
struct Sent {
    port: u16,
    seq: u64,
    /// Its owner waits for it.
    signalled: bool,
}

/// The half of a long notice that came first.
enum Half {
    Notice(u16),
    Message(u16, u32),
}

/// Why a port's turn is over.
enum PostProgress {
    Done,
    /// It has more, and there is room.
    More,
    /// There is no room.
    Full,
}

/// The peer does not keep to the protocol.
struct Breach;

impl Core {
    /// A port for one more link; `None` when the shared connection is over.
    pub(super) fn add(&mut self, parker: Arc<Parker>) -> io::Result<Option<Arc<Port>>> {
        if self.over {
            return Ok(None);
        }
        if self.ports.len() == PORTS_MAX {
            return Err(io::Error::other(format!(
                "two processes share a connection for {PORTS_MAX} links at most: use fewer \
                 workers, or a connection for each pair of workers"
            )));
        }
        let port = Arc::new(Port::new(self.ports.len() as u16, parker));
        self.ports.push(Slot { port: Some(port.clone()), in_backlog: false });
        self.open += 1;
        Ok(Some(port))
    }

    /// The line is connected.
    pub(super) fn raise(&mut self, mut line: Box<dyn Endpoint>) {
        let caps = line.caps();
        self.ordered = caps.ordered_completions;
        self.unsignalled_max = if self.ordered { (caps.max_ops / 4).max(1) } else { 1 };
        line.post_recvs(RECVS);
        self.line = Some(line);
        self.unsubmitted = true;
        if self.over {
            self.end();
        }
    }

    /// Makes progress once: delivers arrivals if `poll` is set, then posts requests that are due.
    pub(super) fn progress(&mut self, connection: &SharedConnection, poll: bool) {
        self.advance(connection, poll);
        self.settle(connection);
    }

    fn advance(&mut self, connection: &SharedConnection, poll: bool) {
        for port in connection.take_due() {
            self.queue_credit(&port);
        }
        if self.over || self.line.is_none() {
            return;
        }
        if poll {
            self.collect();
        }
        self.post();
    }

    /// Makes progress, and then lets the owner of a port sleep on descriptors of its own, if
    /// nothing is there for it.
    pub(super) fn lay_down(
        &mut self,
        connection: &SharedConnection,
        poll: bool,
        port: &Port,
    ) -> Armed {
        self.advance(connection, poll);
        let epoll = |line| Some((line, Armed::Fd(port.parker.epoll().ok()?)));
        let place = match self.arm() {
            Some(Armed::Ready) => None,
            Some(Armed::Virtual) => Some((None, Armed::Virtual)),
            Some(Armed::Fd(line)) => epoll(Some(line)),
            None => epoll(None),
        };
        if let Some((line, armed)) = place
            && port.park()
            && self.watch.lie_down(&port.parker, line)
        {
            return armed;
        }
        self.settle(connection);
        Armed::Ready
    }

    /// Prepares the line for a thread that sleeps on its descriptor; `None` when there is no line
    /// to wait for.
    pub(super) fn arm(&mut self) -> Option<Armed> {
        if self.over { None } else { self.line.as_mut().map(|line| line.arm()) }
    }

    /// Those that sleep were promised a wake-up, which posting and polling may have used up, and
    /// whoever watched for them may be awake.
    fn settle(&mut self, connection: &SharedConnection) {
        let sleeps = connection.has_sleeping_thread() || self.watch.has_parked();
        if self.over || self.line.is_none() || !sleeps {
            return;
        }
        for _ in 0..REARMS {
            match self.arm() {
                Some(Armed::Ready) => {
                    self.collect();
                    self.post();
                }
                Some(Armed::Fd(line)) => return self.watch.settle(line),
                _ => return,
            }
        }
        self.watch.rouse();
        connection.rouse_thread();
    }

    pub(super) fn export(&mut self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        match &mut self.line {
            Some(line) => line.export(range),
            None => Ok(RemoteKey { key: 0, base: 0, len: range.len() as u64 }),
        }
    }

    pub(super) fn revoke(&mut self, key: RemoteKey) {
        if let Some(line) = &mut self.line {
            line.revoke(key);
        }
    }

    pub(super) fn release(&mut self, key: RemoteKey) {
        if let Some(line) = &mut self.line {
            line.release(key);
        }
    }

    pub(super) fn mapped(&mut self, key: RemoteKey) -> Result<Option<MappedRange>, PostError> {
        match &mut self.line {
            Some(line) if !self.over => line.mapped(key),
            _ => Err(PostError::Closed),
        }
    }

    /// A link's owner has closed it; with the last one the line ends.
    pub(super) fn close(&mut self, port: &Port, exports: &[RemoteKey], tell: bool) {
        port.inbox().closed = true;
        self.open -= 1;
        let peer = port.outgoing().peer;
        if self.open == 0 {
            self.end();
        } else if let Some(line) = &mut self.line {
            exports.iter().for_each(|key| line.retire(*key));
            if let Some(peer) = peer.filter(|_| tell && !self.over) {
                self.updates.push_back((peer, PortUpdate::Closed));
            }
        }
    }

    /// Nobody owns the port any more.
    pub(super) fn forget(&mut self, port: &Port) {
        self.ports[usize::from(port.number)].port = None;
    }

    /// The line cannot be used any more.
    pub(super) fn break_down(&mut self) {
        self.fail(None, ErrorKind::Disconnected);
    }

    /// Ends the line without an error at the links.
    pub(super) fn end(&mut self) {
        self.over = true;
        if let Some(line) = &mut self.line {
            line.close();
            // This releases the outstanding operations.
            line.poll(&mut Vec::new());
        }
        self.sent.clear();
        self.backlog.clear();
        self.updates.clear();
        self.longs.clear();
        for port in self.ports.iter().filter_map(|slot| slot.port.as_ref()) {
            port.inbox().over = true;
        }
    }

    /// The line broke: each link fails once.
    fn fail(&mut self, blamed: Option<Sent>, kind: ErrorKind) {
        if self.over {
            return;
        }
        self.end();
        for port in self.ports.iter().filter_map(|slot| slot.port.as_ref()) {
            let event = match blamed.filter(|sent| sent.port == port.number) {
                Some(sent) => Event::Broken(Some(sent.seq), kind),
                None if kind == ErrorKind::Damaged => Event::Broken(None, kind),
                None => Event::Broken(None, ErrorKind::Disconnected),
            };
            port.tell(|inbox| inbox.push(event));
        }
    }

    /// Takes down what a port wants.
    fn queue_credit(&mut self, port: &Arc<Port>) {
        port.due.store(false, std::sync::atomic::Ordering::Release);
        let mut outgoing = port.outgoing();
        let Some(peer) = outgoing.peer.filter(|_| !self.over) else { return };
        if let Some(total) = outgoing.grant.take() {
            let previous = self.updates.iter_mut().find_map(|(to, update)| match update {
                PortUpdate::Credit(previous) if *to == peer => Some(previous),
                _ => None,
            });
            match previous {
                Some(previous) => *previous = total,
                None => self.updates.push_back((peer, PortUpdate::Credit(total))),
            }
        }
        let slot = &mut self.ports[usize::from(port.number)];
        if !outgoing.ops.is_empty() && !slot.in_backlog {
            slot.in_backlog = true;
            self.backlog.push_back(port.clone());
        }
    }

    /// Posts as much as there is room for, a few operations of each link in turn.
    fn post(&mut self) {
        self.post_updates();
        let mut moves = true;
        while std::mem::take(&mut moves) {
            for _ in 0..self.backlog.len() {
                let Some(port) = self.backlog.pop_front() else { break };
                let progress = self.post_some(&port);
                match progress {
                    PostProgress::Done => {
                        self.ports[usize::from(port.number)].in_backlog = false;
                        continue;
                    }
                    PostProgress::More => moves = true,
                    PostProgress::Full => {}
                }
                self.backlog.push_back(port);
            }
        }
        if std::mem::take(&mut self.unsubmitted)
            && let Some(line) = &mut self.line
        {
            line.submit();
        }
    }

    fn post_some(&mut self, port: &Arc<Port>) -> PostProgress {
        let mut outgoing = port.outgoing();
        for _ in 0..TURN_OPS {
            let Outgoing { ops, peer: Some(peer), .. } = &*outgoing else {
                return PostProgress::Done;
            };
            let Some(op) = ops.front() else { return PostProgress::Done };
            match self.post_op(port.number, *peer, op) {
                Ok(()) => {
                    outgoing.ops.pop_front();
                    outgoing.posted += 1;
                }
                // A closed line says so at its next poll.
                Err(PostError::Full | PostError::Closed) => return PostProgress::Full,
                Err(_) => {
                    let seq = op.seq;
                    outgoing.ops.clear();
                    outgoing.over = true;
                    let event = Event::Broken(Some(seq), ErrorKind::RemoteAccess);
                    port.tell(|inbox| inbox.push(event));
                    return PostProgress::Done;
                }
            }
        }
        PostProgress::More
    }

    fn post_op(&mut self, port: u16, peer: u16, op: &Op) -> Result<(), PostError> {
        let Some(line) = &mut self.line else { return Err(PostError::Closed) };
        let signalled = op.flags.has(Flags::SIGNAL);
        let due = self.unsignalled + 1 >= self.unsignalled_max;
        let fence = if op.flags.has(Flags::FENCE) { Flags::FENCE } else { Flags::NONE };
        let flags = if signalled || due { fence | Flags::SIGNAL } else { fence };
        let mut id = OpId(self.first + self.sent.len() as u64);
        match &op.what {
            PostedOperation::Write { src, dst, notice: None } => {
                line.write(src.get(), *dst, id, flags)?
            }
            PostedOperation::Write { src, dst, notice: Some(imm) } => {
                let number = self.next_long;
                let imm = match wire::short_notice(peer, *imm) {
                    Some(short) => short,
                    None => {
                        let budget = line.budget();
                        if budget.ops < 2 || budget.notices < 2 {
                            return Err(PostError::Full);
                        }
                        line.send(&wire::long(peer, number, *imm), id)?;
                        self.next_long = (number + 1) % LONGS;
                        self.sent.push_back(Some(Sent { port: NOBODY, seq: 0, signalled: true }));
                        id.0 += 1;
                        wire::long_notice(peer, number)
                    }
                };
                line.write_notify(src.get(), *dst, imm, id, flags)?;
            }
            PostedOperation::Read { dst, src } => line.read(dst, *src, id, flags)?,
            PostedOperation::Add { dst, add, old } => line.fetch_add(*dst, *add, old, id)?,
            PostedOperation::Swap { dst, expect, swap, old } => {
                line.compare_swap(*dst, *expect, *swap, old, id)?;
            }
            PostedOperation::Send(bytes) => line.send(&wire::data(peer, bytes), id)?,
        }
        let always = matches!(
            op.what,
            PostedOperation::Add { .. } | PostedOperation::Swap { .. } | PostedOperation::Send(_)
        );
        let flagged = always || flags.has(Flags::SIGNAL);
        self.unsignalled = if flagged { 0 } else { self.unsignalled + 1 };
        let signalled = signalled || always;
        self.sent.push_back(Some(Sent { port, seq: op.seq, signalled }));
        self.unsubmitted = true;
        Ok(())
    }

    /// Tells the peer what there is to tell, many ports at a time.
    fn post_updates(&mut self) {
        let Some(line) = &mut self.line else { return };
        let most = ((line.caps().max_send - HEADER_BYTES) / UPDATE_BYTES).max(1);
        while !self.updates.is_empty() {
            let some = most.min(self.updates.len());
            let message = wire::updates(self.updates.iter().take(some));
            let id = OpId(self.first + self.sent.len() as u64);
            if line.send(&message, id).is_err() {
                return;
            }
            self.updates.drain(..some);
            self.sent.push_back(Some(Sent { port: NOBODY, seq: 0, signalled: true }));
            self.unsignalled = 0;
            self.unsubmitted = true;
        }
    }

    /// Takes what the line has, and hands it to the links that it is of.
    fn collect(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        if let Some(line) = &mut self.line {
            line.poll(&mut completions);
        }
        for completion in completions.drain(..) {
            if self.over {
                continue;
            }
            let routed = match completion {
                Completion::Local { id } => {
                    self.completed(id);
                    Ok(())
                }
                Completion::Notify { imm } => self.notified(imm),
                Completion::Recv { bytes } => self.received(&bytes),
                Completion::Error { id, kind } => {
                    let at = id.and_then(|id| id.0.checked_sub(self.first));
                    let blamed = at.and_then(|at| self.sent.get(at as usize).copied().flatten());
                    self.fail(blamed, kind);
                    Ok(())
                }
            };
            if let Err(Breach) = routed {
                self.fail(None, ErrorKind::Disconnected);
            }
        }
        self.completions = completions;
        if self.recvs_used >= RECVS / 4
            && let Some(line) = &mut self.line
        {
            line.post_recvs(std::mem::take(&mut self.recvs_used));
            self.unsubmitted = true;
        }
    }

    fn completed(&mut self, id: OpId) {
        let Some(at) = id.0.checked_sub(self.first) else { return };
        if !self.ordered {
            let sent = self.sent.get_mut(at as usize).and_then(Option::take);
            if let Some((port, sent)) = sent.and_then(|sent| Some((self.of(sent.port)?, sent))) {
                port.tell(|inbox| {
                    inbox.completed += 1;
                    inbox.events.push_back(Event::Done(sent.seq));
                    // A signalled one that completed before may have waited for it.
                    true
                });
            }
            while self.sent.pop_front_if(|sent| sent.is_none()).is_some() {
                self.first += 1;
            }
            return;
        }
        // Neighbours are mostly of one link.
        let mut last: Option<Sent> = None;
        for _ in 0..=at {
            let next = self.sent.pop_front().flatten();
            self.first += 1;
            last = match (last, next) {
                (Some(last), Some(next)) if last.port == next.port => {
                    let signalled = last.signalled || next.signalled;
                    Some(Sent { signalled, ..next })
                }
                (last, next) => {
                    self.retired(last);
                    next
                }
            };
        }
        self.retired(last);
    }

    /// All operations of a link up to this one have completed.
    fn retired(&self, sent: Option<Sent>) {
        if let Some((port, sent)) = sent.and_then(|sent| Some((self.of(sent.port)?, sent))) {
            port.tell(|inbox| {
                inbox.completed = sent.seq + 1;
                sent.signalled
            });
        }
    }

    fn notified(&mut self, imm: u32) -> Result<(), Breach> {
        self.recvs_used += 1;
        let (port, notice) = wire::decode_notice(imm);
        match notice {
            Notice::Short(imm) => self.arrived(port, Completion::Notify { imm }),
            Notice::Long(number) => match self.longs.remove(&number) {
                Some(Half::Message(to, imm)) if to == port => {
                    self.arrived(port, Completion::Notify { imm });
                }
                Some(_) => return Err(Breach),
                None => return self.keep(number, Half::Notice(port)),
            },
        }
        Ok(())
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), Breach> {
        self.recvs_used += 1;
        match wire::decode(bytes).ok_or(Breach)? {
            Message::Data { port, bytes } => {
                self.arrived(port, Completion::Recv { bytes: bytes.to_vec() });
            }
            Message::Long { port, number, imm } => match self.longs.remove(&number) {
                Some(Half::Notice(to)) if to == port => {
                    self.arrived(port, Completion::Notify { imm });
                }
                Some(_) => return Err(Breach),
                None => return self.keep(number, Half::Message(port, imm)),
            },
            Message::Updates(entries) => {
                for (port, update) in entries {
                    let Some(port) = self.of(port) else { continue };
                    port.tell(|inbox| match update {
                        PortUpdate::Credit(total) => {
                            inbox.credit = inbox.credit.max(total);
                            true
                        }
                        PortUpdate::Closed => inbox.push(Event::Closed),
                    });
                }
            }
        }
        Ok(())
    }

    /// Keeps half of a long notice until the other one comes.
    fn keep(&mut self, number: u32, half: Half) -> Result<(), Breach> {
        if self.longs.len() >= RECVS as usize {
            return Err(Breach);
        }
        self.longs.insert(number, half);
        Ok(())
    }

    /// A notice or a message for a link.
    fn arrived(&self, port: u16, completion: Completion) {
        let Some(port) = self.of(port) else { return };
        port.tell(|inbox| {
            if inbox.received == inbox.granted {
                return inbox.push(Event::Broken(None, ErrorKind::ReceiverNotReady));
            }
            inbox.received += 1;
            inbox.push(Event::Arrived(completion))
        });
    }

    fn of(&self, port: u16) -> Option<&Arc<Port>> {
        self.ports.get(usize::from(port))?.port.as_ref()
    }
}
