//! A node's handle on the others.
//!
//! The handle only changes shared state and wakes the [`turn`](crate::control_thread) thread, which
//! owns all sockets. Outboxes are bounded without a limit of their own: an exchange is sent only
//! after the last one was answered, progress and beats are left out while anything waits, a note is
//! told in answer to another or once in a while, and every other frame is sent once.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::control_thread::ControlThread;
use crate::error::{Cause, ClusterError, NodeFailure};
use crate::frame::{ControlFrame, FRAME_BYTES_MAX, TEXT_BYTES_MAX, clip};
use crate::launch::Exits;
use crate::mesh::{Invitation, Peer};
use crate::messages::UnreadMessages;

/// Bytes of a progress report at most: of as many workers and operators as a node tells of, however
/// much they have counted.
pub const PROGRESS_BYTES_MAX: usize = 5 << 20;

/// A node's connection with all others. Dropping it without [`close`](Control::close) or
/// [`fail`](Control::fail) looks to them like a death.
pub struct Control {
    shared: Arc<Shared>,
    /// The next exchange; held while one runs, so that exchanges have one order.
    gather: Mutex<u64>,
    turn: Mutex<Option<JoinHandle<()>>>,
}

/// Tells handles of different starts apart, for what outlives a job and belongs to one of them.
#[derive(Clone)]
pub struct ControlId(Weak<Shared>);

impl PartialEq for ControlId {
    fn eq(&self, other: &Self) -> bool {
        Weak::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ControlId {}

impl fmt::Debug for ControlId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlId")
    }
}

impl Control {
    /// The handle of a job's only node: nothing is connected, every call succeeds at once.
    pub fn solo() -> Result<Self, ClusterError> {
        let shared = Arc::new(Shared::new(0, 1, 1, IpAddr::V4(Ipv4Addr::LOCALHOST))?);
        Ok(Self { shared, gather: Mutex::new(0), turn: Mutex::new(None) })
    }

    pub(crate) fn start(
        own: &Invitation,
        peers: Vec<Option<Peer>>,
        exits: Option<Arc<Exits>>,
    ) -> Result<Self, ClusterError> {
        let &Invitation { rank, nodes, generation, at, .. } = own;
        let shared = Arc::new(Shared::new(rank, nodes, generation, at.ip())?);
        let turn = ControlThread::new(Arc::clone(&shared), peers, exits)?;
        let handle = std::thread::Builder::new()
            .name(format!("control-{rank}"))
            .spawn(move || turn.run())
            .map_err(ClusterError::system("a thread"))?;
        Ok(Self { shared, gather: Mutex::new(0), turn: Mutex::new(Some(handle)) })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The identity of this handle: no other one of the process has it, now or later.
    pub fn id(&self) -> ControlId {
        ControlId(Arc::downgrade(&self.shared))
    }

    /// This node.
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// All nodes of the job.
    pub fn nodes(&self) -> u32 {
        self.shared.nodes
    }

    /// Which start of the job this is; higher after each restart. The incarnation of links.
    pub fn generation(&self) -> u32 {
        self.shared.generation
    }

    /// The address at which other nodes reach this one; the fabric may listen there too.
    pub fn address(&self) -> IpAddr {
        self.shared.address
    }

    /// Exchanges a byte string with every node: the result holds one per rank. Returns when all
    /// have called, hence it is a barrier too. Every node makes the same calls in the same order;
    /// `step` names the call, so that nodes that disagree notice.
    ///
    /// # Errors
    /// When a node failed, closed or is at another step, or when `bytes` exceed a frame.
    pub fn all_gather(&self, step: &str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, ClusterError> {
        self.exchange(step, false, bytes, None)
    }

    /// As [`all_gather`](Self::all_gather); while it waits for others it calls `meanwhile`, first
    /// at the latest after `first`, and then at the latest after what the call has returned.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    pub fn all_gather_while(
        &self,
        step: &str,
        bytes: Vec<u8>,
        first: Duration,
        meanwhile: &mut dyn FnMut() -> Duration,
    ) -> Result<Vec<Vec<u8>>, ClusterError> {
        self.exchange(step, false, bytes, Some((first, meanwhile)))
    }

    /// As [`all_gather`](Self::all_gather), of places: where connections are to be made, which what
    /// stands between two nodes may rewrite. They carry no checksum, and prove themselves.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    pub fn all_gather_places(
        &self,
        step: &str,
        bytes: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, ClusterError> {
        self.exchange(step, true, bytes, None)
    }

    fn exchange(
        &self,
        step: &str,
        places: bool,
        bytes: Vec<u8>,
        mut meanwhile: Option<(Duration, &mut dyn FnMut() -> Duration)>,
    ) -> Result<Vec<Vec<u8>>, ClusterError> {
        if bytes.len() + step.len() + 64 > FRAME_BYTES_MAX {
            return Err(ClusterError::TooLarge { bytes: bytes.len() });
        }
        debug_assert!(step.len() <= TEXT_BYTES_MAX, "a step has a short name");
        let mut next = lock(&self.gather);
        let seq = *next;
        let mut state = self.shared.lock();
        // A node that knows of a failure takes part in no exchange any more, even if all others
        // did.
        if let Some(failure) = &state.failure {
            return Err(failure.clone().into());
        }
        let frame = ControlFrame::Gather { seq, step: step.into(), places, bytes };
        state.broadcast(&frame);
        let ControlFrame::Gather { bytes, .. } = frame else { return Err(ClusterError::Closed) };
        state.contribute(seq, self.rank(), (step.into(), bytes));
        self.shared.wake();
        loop {
            if let Some(all) = state.take_complete(seq) {
                *next += 1;
                return Self::same_step(step, all);
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone().into());
            }
            if state.ended {
                return Err(ClusterError::Closed);
            }
            if let Some(rank) = state.missing_for_ever(seq) {
                let (theirs, ours) = ("the end".into(), step.into());
                return Err(ClusterError::Step { rank, theirs, ours });
            }
            state = wait(&self.shared.changed, state, meanwhile.as_ref().map(|(limit, _)| *limit));
            if let Some((limit, act)) = &mut meanwhile {
                drop(state);
                *limit = act();
                state = self.shared.lock();
            }
        }
    }

    fn same_step(step: &str, all: Vec<Contribution>) -> Result<Vec<Vec<u8>>, ClusterError> {
        let differs = all.iter().position(|(theirs, _)| theirs != step);
        match differs {
            None => Ok(all.into_iter().map(|(_, bytes)| bytes).collect()),
            Some(rank) => Err(ClusterError::Step {
                rank: rank as u32,
                theirs: all[rank].0.clone(),
                ours: step.into(),
            }),
        }
    }

    /// True when a node failed: one relaxed load, for loops that check often.
    /// [`failure`](Control::failure) tells more.
    pub fn failed(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// The node that failed, if one did; this one if it called [`fail`](Control::fail).
    pub fn failure(&self) -> Option<NodeFailure> {
        if self.failed() { self.shared.lock().failure.clone() } else { None }
    }

    /// Waits up to `limit` for a failure to be known. For a node that saw a connection of the data
    /// plane break, and wants to tell why.
    pub fn await_failure(&self, limit: Duration) -> Option<NodeFailure> {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.lock();
        loop {
            if state.failure.is_some() || state.ended || self.nodes() == 1 {
                return state.failure.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = wait(&self.shared.changed, state, Some(left));
        }
    }

    /// Tells all nodes that this one ends, and why: a line, and what else the layer above wants to
    /// hear of it behind that. Only the first failure of a job counts.
    pub fn fail(&self, reason: &str) {
        let reason = clip(reason).to_owned();
        let mut state = self.shared.lock();
        if state.failure.is_none() {
            state.broadcast(&ControlFrame::Fail { reason: reason.clone() });
            let process = std::process::id();
            let cause = Cause::Reported(reason);
            self.shared.record(&mut state, NodeFailure { rank: self.rank(), process, cause });
        }
        self.shared.wake();
    }

    /// Leaves `bytes` (at most [`PROGRESS_BYTES_MAX`]) for rank 0 to read with
    /// [`latest`](Control::latest). A report is skipped while an earlier one is on its way, or when
    /// it is too long.
    pub fn publish(&self, bytes: &[u8]) {
        if bytes.len() > PROGRESS_BYTES_MAX {
            tracing::warn!(bytes = bytes.len(), "a report of progress is too long");
            return;
        }
        let mut state = self.shared.lock();
        if self.rank() == 0 {
            state.latest[0] = Some(bytes.to_vec());
        } else if state.outboxes[0].is_empty() {
            state.send(0, &ControlFrame::Progress { bytes: bytes.to_vec() });
            self.shared.wake();
        }
    }

    /// The latest report of a node, at rank 0.
    pub fn latest(&self, rank: u32) -> Option<Vec<u8>> {
        self.shared.lock().latest.get(rank as usize)?.clone()
    }

    /// Drops the reports of a job that has ended, so that they are not read as those of the next
    /// one. Call it when every node is known to have ended that job.
    pub fn discard_progress(&self) {
        self.shared.lock().latest.fill(None);
    }

    /// Asks all nodes to end in good order.
    pub fn cancel(&self) {
        if !self.shared.cancelled.swap(true, Ordering::Relaxed) {
            self.shared.lock().broadcast(&ControlFrame::Cancel);
            self.shared.wake();
        }
    }

    /// True once any node called [`cancel`](Control::cancel).
    pub fn cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Relaxed)
    }

    /// Ends in good order: tells all others, and waits up to five seconds until they have told too.
    pub fn close(&self) {
        self.end(Ending::Orderly);
    }

    fn end(&self, ending: Ending) {
        let Some(turn) = lock(&self.turn).take() else { return };
        let mut state = self.shared.lock();
        if ending == Ending::Orderly && state.failure.is_none() {
            state.broadcast(&ControlFrame::Bye);
        }
        state.ending = Some(ending);
        drop(state);
        self.shared.wake();
        if turn.join().is_err() {
            tracing::error!("the control thread panicked");
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.end(Ending::Abrupt);
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control(node {} of {})", self.rank(), self.nodes())
    }
}

/// How a handle was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Orderly,
    Abrupt,
}

/// The state that the handle and the control thread share.
pub(crate) struct Shared {
    pub(crate) rank: u32,
    pub(crate) nodes: u32,
    generation: u32,
    address: IpAddr,
    failed: AtomicBool,
    cancelled: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) event_fd: OwnedFd,
}

/// A step's name and a node's bytes for it.
type Contribution = (String, Vec<u8>);

pub(crate) struct State {
    /// Bytes not yet written, by rank.
    pub(crate) outboxes: Vec<Vec<u8>>,
    /// Whether a node has announced that it sends nothing more, by rank.
    pub(crate) closed: Vec<bool>,
    /// Whether a node cannot be reached any more, by rank.
    pub(crate) gone: Vec<bool>,
    pub(crate) latest: Vec<Option<Vec<u8>>>,
    pub(crate) failure: Option<NodeFailure>,
    pub(crate) ending: Option<Ending>,
    /// The control thread is gone.
    pub(crate) ended: bool,
    pub(crate) messages: UnreadMessages,
    gathers: BTreeMap<u64, Vec<Option<Contribution>>>,
    gathers_done: u64,
}

impl Shared {
    fn new(rank: u32, nodes: u32, generation: u32, address: IpAddr) -> Result<Self, ClusterError> {
        let n = nodes as usize;
        let event_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| ClusterError::system("an event descriptor")(errno.into()))?;
        Ok(Self {
            rank,
            nodes,
            generation,
            address,
            failed: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            state: Mutex::new(State {
                outboxes: vec![Vec::new(); n],
                closed: vec![false; n],
                gone: vec![false; n],
                latest: vec![None; n],
                failure: None,
                ending: None,
                ended: false,
                messages: UnreadMessages::default(),
                gathers: BTreeMap::new(),
                gathers_done: 0,
            }),
            changed: Condvar::new(),
            event_fd,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Makes the control thread look at the state.
    pub(crate) fn wake(&self) {
        // A full counter already wakes; nothing else can go wrong with a descriptor that we own.
        let _ = rustix::io::write(&self.event_fd, &1u64.to_ne_bytes());
    }

    /// Wakes callers that wait for a change.
    pub(crate) fn changed(&self) -> &Condvar {
        &self.changed
    }

    /// Wakes callers that wait for a change.
    pub(crate) fn notify(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn note_cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Keeps the first failure, and tells the others of it unless it is this node's own: whoever
    /// ends because of it must not look like the cause.
    pub(crate) fn record(&self, state: &mut State, failure: NodeFailure) {
        if state.failure.is_some() {
            return;
        }
        tracing::debug!(%failure, "node {} ends the job", failure.rank);
        if failure.rank != self.rank {
            state.broadcast(&ControlFrame::Verdict(failure.clone()));
        }
        state.failure = Some(failure);
        self.failed.store(true, Ordering::Relaxed);
        self.notify();
    }
}

impl State {
    /// Queues a frame for a node that is connected.
    pub(crate) fn send(&mut self, rank: u32, frame: &ControlFrame) {
        if !self.ended && !self.gone[rank as usize] {
            frame.encode(&mut self.outboxes[rank as usize]);
        }
    }

    fn broadcast(&mut self, frame: &ControlFrame) {
        for rank in 0..self.outboxes.len() as u32 {
            self.send(rank, frame);
        }
    }

    /// Takes a contribution to an exchange. True when it was the last one: only then has who waits
    /// for the exchange something to do.
    ///
    /// # Errors
    /// When it comes twice, or for an exchange that cannot have begun.
    pub(crate) fn peer_contributes(
        &mut self,
        seq: u64,
        rank: u32,
        contribution: Contribution,
    ) -> Result<bool, &'static str> {
        // A peer is at our exchange or at the one after: the next but one needs our contribution to
        // that.
        if seq < self.gathers_done || seq > self.gathers_done + 1 {
            return Err("its exchange came out of order");
        }
        if self.gathers.get(&seq).is_some_and(|all| all[rank as usize].is_some()) {
            return Err("its exchange came twice");
        }
        self.contribute(seq, rank, contribution);
        Ok(self.is_complete(seq))
    }

    fn is_complete(&self, seq: u64) -> bool {
        self.gathers.get(&seq).is_some_and(|all| all.iter().all(Option::is_some))
    }

    fn contribute(&mut self, seq: u64, rank: u32, contribution: Contribution) {
        let nodes = self.outboxes.len();
        let all = self.gathers.entry(seq).or_insert_with(|| vec![None; nodes]);
        all[rank as usize] = Some(contribution);
    }

    fn take_complete(&mut self, seq: u64) -> Option<Vec<Contribution>> {
        if !self.is_complete(seq) {
            return None;
        }
        self.gathers_done = seq + 1;
        Some(self.gathers.remove(&seq)?.into_iter().flatten().collect())
    }

    /// A node that has not contributed and never will.
    fn missing_for_ever(&self, seq: u64) -> Option<u32> {
        let all = self.gathers.get(&seq)?;
        let rank = (0..all.len()).find(|&rank| all[rank].is_none() && self.closed[rank])?;
        Some(rank as u32)
    }
}

/// Locks, also after another thread panicked: every change to our states is a single step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub(crate) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Option<Duration>,
) -> MutexGuard<'a, T> {
    match limit {
        None => condvar.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner()),
        Some(limit) => {
            condvar.wait_timeout(guard, limit).unwrap_or_else(|poisoned| poisoned.into_inner()).0
        }
    }
}

#[cfg(test)]
mod tests;
