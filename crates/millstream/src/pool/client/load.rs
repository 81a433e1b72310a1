//! A load, as the workers of this process see it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use pool::PoolError;
use pool::access::{EncodedStrip, Loading, StripWriter};
use pool::manifest::Strip;
use pool::wire::{COMMIT_STRIPS_MAX, ClientRequest, ServerResponse, StatementId};

use super::placement::StripPlacement;
use super::transfer::{LoadName, QueuedStrip, WriteQueue};
use super::{Connected, unexpected};

/// Blocks in one message of a commit at most, so that the message is as large as one may be.
const COMMIT_BLOCKS_MAX: usize = 200_000;

/// How often a server is asked whether it has saved a version.
const ASKS: Duration = Duration::from_millis(5);
/// For how long a server is asked that did not answer to the last part of a load.
const ASKED_AGAIN: Duration = Duration::from_secs(4);

/// A load that has begun.
pub(super) struct LoadHandle(Arc<OpenLoad>);

struct OpenLoad {
    connected: Arc<Connected>,
    /// The servers that strips go to, that of the table first, with their numbers in pointers.
    servers: Vec<(usize, u16)>,
    name: LoadName,
    placement: StripPlacement,
    /// Whether a writer has committed, or the load was given up: then its last handle says nothing.
    settled: AtomicBool,
    /// The first error of this process.
    failure: OnceLock<String>,
}

impl LoadHandle {
    pub(super) fn new(
        connected: Arc<Connected>,
        servers: Vec<(usize, u16)>,
        number: u64,
        snapshot: StatementId,
        placement: StripPlacement,
    ) -> Self {
        let (settled, failure) = (AtomicBool::new(false), OnceLock::new());
        let name = LoadName { home: servers[0].0, number, snapshot };
        Self(Arc::new(OpenLoad { connected, servers, name, placement, settled, failure }))
    }
}

impl fmt::Debug for LoadHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadHandle({})", self.0.name.number)
    }
}

impl OpenLoad {
    fn give_up(&self) {
        self.settled.store(true, Ordering::Relaxed);
        let reason = self.failure.get().map_or("", String::as_str);
        for (at, _) in &self.servers {
            self.connected.worker.abort(*at, self.name.number, reason);
        }
    }

    /// This process has failed: the first reason is the one that the server is told.
    fn failed(&self, reason: &str) {
        let _ = self.failure.set(reason.to_owned());
    }

    /// The error of a request of this load. If another node has given it up, the server of the
    /// table knows why; it tells those who name the statement.
    fn explained(&self, error: PoolError) -> PoolError {
        if !matches!(error, PoolError::GivenUp { .. }) {
            return error;
        }
        let request = self.name.outcome();
        match self.connected.remotes[self.name.home].call(&request) {
            Err(known @ PoolError::GivenUp { .. }) => known,
            _ => error,
        }
    }

    /// Waits for the version where the server is saving it, or others are asked to hold its blocks.
    /// Where the answer to a last part was lost, the server is asked again over a new connection:
    /// it may have let the version appear.
    fn outcome(&self, answer: Result<ServerResponse, PoolError>) -> Result<(), PoolError> {
        let remote = &self.connected.remotes[self.name.home];
        let request = self.name.outcome();
        let (mut answer, begun) = (answer, Instant::now());
        loop {
            match answer {
                Ok(ServerResponse::Committed { .. }) => return Ok(()),
                Ok(ServerResponse::UnderWay) => {
                    std::thread::sleep(ASKS);
                    answer = remote.call(&request);
                }
                Ok(_) => return Err(unexpected()),
                Err(lost @ PoolError::Lost { .. }) => {
                    return self.truth(&request, lost, begun);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Asks a server to which the connection was lost. An answer that the load is under way may
    /// mean that the server has not noticed yet.
    fn truth(
        &self,
        request: &ClientRequest,
        lost: PoolError,
        begun: Instant,
    ) -> Result<(), PoolError> {
        let remote = &self.connected.remotes[self.name.home];
        while begun.elapsed() < ASKED_AGAIN {
            match remote.ask_anew(&self.connected.options, request) {
                Ok(ServerResponse::Committed { .. }) => return Ok(()),
                Err(error @ (PoolError::Refused { .. } | PoolError::GivenUp { .. })) => {
                    tracing::debug!("the load is not committed: {error}");
                    return Err(lost);
                }
                _ => std::thread::sleep(ASKS),
            }
        }
        Err(lost)
    }
}

impl Drop for OpenLoad {
    fn drop(&mut self) {
        if !self.settled.load(Ordering::Relaxed) {
            self.give_up();
        }
    }
}

impl Loading for LoadHandle {
    fn writer(&self, worker: u32, waker: Waker) -> Result<Box<dyn StripWriter>, PoolError> {
        self.check()?;
        let mut queues = Vec::with_capacity(self.0.servers.len());
        for (at, server) in &self.0.servers {
            queues.push(Arc::new(WriteQueue::new(*at, *server, self.0.name, waker.clone())));
        }
        queues.iter().for_each(|queue| self.0.connected.worker.write(queue));
        let load = Arc::clone(&self.0);
        let (written, replaced, named) = (0, vec![], vec![]);
        let committed = false;
        Ok(Box::new(Writer { load, worker, queues, written, replaced, named, committed }))
    }

    fn check(&self) -> Result<(), PoolError> {
        let mut servers = self.0.servers.iter();
        match servers.find_map(|(at, _)| self.0.connected.remotes[*at].lost()) {
            Some(lost) => Err(lost),
            None => Ok(()),
        }
    }

    fn failed(&self, reason: &str) {
        self.0.failed(reason);
    }
}

/// The writer of a worker.
struct Writer {
    load: Arc<OpenLoad>,
    worker: u32,
    /// By server.
    queues: Vec<Arc<WriteQueue>>,
    /// How many strips it has written.
    written: u64,
    replaced: Vec<(u32, Strip)>,
    /// Heads of lists.
    named: Vec<(u32, Strip)>,
    /// Whether its strips have been committed, or handed in.
    committed: bool,
}

impl StripWriter for Writer {
    fn has_room(&mut self) -> Result<bool, PoolError> {
        self.explained(self.have_room())
    }

    fn write(&mut self, partition: u32, strip: EncodedStrip) -> Result<(), PoolError> {
        let number = self.written;
        self.written += 1;
        let server = self.load.placement.server_of(self.worker, partition);
        self.explained(self.give(server, QueuedStrip { number, partition, strip }))?;
        self.load.connected.worker.wake();
        Ok(())
    }

    fn is_sealed(&mut self) -> Result<bool, PoolError> {
        self.explained(self.have_sealed())
    }

    fn take_placed(&mut self) -> Result<Option<Vec<(u32, Strip)>>, PoolError> {
        let placed = self.explained(self.has_placed_all())?;
        Ok(placed.then(|| self.placed()))
    }

    fn name(&mut self, heads: Vec<(u32, Strip)>) {
        self.named.extend(heads);
    }

    fn replace(&mut self, strips: Vec<(u32, Strip)>) {
        self.replaced.extend(strips);
    }

    fn hand_in(mut self: Box<Self>) -> Result<Vec<(u32, Strip)>, PoolError> {
        let placed = self.placed();
        self.hand_over(placed.clone(), Then::Continues)?;
        self.committed = true;
        Ok(placed)
    }

    fn commit(mut self: Box<Self>) -> Result<(), PoolError> {
        let placed = self.placed();
        self.hand_over(placed, Then::Ends)?;
        self.committed = true;
        self.load.settled.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Writer {
    /// The error of a load that another node has given up is the reason for that.
    fn explained<T>(&self, result: Result<T, PoolError>) -> Result<T, PoolError> {
        result.map_err(|error| self.load.explained(error))
    }

    /// Whether no server has as many strips waiting as it may have.
    fn have_room(&self) -> Result<bool, PoolError> {
        self.move_refused()?;
        for queue in &self.queues {
            if !queue.has_room()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether all strips lie in sealed extents; none follows.
    fn have_sealed(&self) -> Result<bool, PoolError> {
        if !self.has_placed_all()? {
            return Ok(false);
        }
        let mut sealed = true;
        for queue in &self.queues {
            sealed &= queue.end()?;
        }
        if !sealed {
            self.load.connected.worker.wake();
        }
        Ok(sealed)
    }

    /// Gives a strip to a server, or to the next one that has room.
    ///
    /// # Errors
    /// [`PoolError::Full`] when none has, and when the load has failed.
    fn give(&self, server: usize, strip: QueuedStrip) -> Result<(), PoolError> {
        let turns = (0..self.queues.len()).map(|at| (server + at) % self.queues.len());
        match turns.into_iter().find(|at| self.queues[*at].full().is_none()) {
            Some(at) => self.queues[at].write(strip),
            None => Err(self.full()),
        }
    }

    /// The error of a load for which no server has room: that of the one with most of it.
    fn full(&self) -> PoolError {
        let free = |error: &PoolError| match error {
            PoolError::Full { free, .. } => *free,
            _ => 0,
        };
        let full = self.queues.iter().filter_map(|queue| queue.full());
        full.max_by_key(free).unwrap_or_else(unexpected)
    }

    /// Gives strips for which a server has no room to others.
    ///
    /// # Errors
    /// [`PoolError::Full`] when none has, and when the load has failed.
    fn move_refused(&self) -> Result<(), PoolError> {
        let mut moved = false;
        for (at, queue) in self.queues.iter().enumerate() {
            for strip in queue.take_refused() {
                self.give(at, strip)?;
                moved = true;
            }
        }
        if moved {
            self.load.connected.worker.wake();
        }
        Ok(())
    }

    /// Whether all strips have places; a strip may have to go to a server whose strips all have
    /// some.
    fn has_placed_all(&self) -> Result<bool, PoolError> {
        let mut placed = true;
        self.move_refused()?;
        for queue in &self.queues {
            placed &= queue.has_placed_all()?;
        }
        Ok(placed)
    }

    /// The strips with their places, in the order in which they were written, and heads of lists.
    fn placed(&mut self) -> Vec<(u32, Strip)> {
        let placed = self.queues.iter().flat_map(|queue| queue.take_placed());
        let mut placed: Vec<(u64, u32, Strip)> = placed.collect();
        placed.sort_unstable_by_key(|(number, ..)| *number);
        let placed = placed.into_iter().map(|(_, partition, strip)| (partition, strip));
        placed.chain(std::mem::take(&mut self.named)).collect()
    }

    /// Sends strips. Nobody asks for the servers meanwhile: a writer that fails says so itself.
    fn hand_over(&mut self, strips: Vec<(u32, Strip)>, then: Then) -> Result<(), PoolError> {
        let sent = self.send(strips, then);
        let sent = self.explained(sent);
        sent.inspect_err(|error| self.load.failed(&error.to_string()))
    }

    /// Sends strips, those that are replaced first, in messages of a bounded size.
    fn send(&mut self, mut strips: Vec<(u32, Strip)>, then: Then) -> Result<(), PoolError> {
        let (remote, load) =
            (&self.load.connected.remotes[self.load.name.home], self.load.name.number);
        let writer = self.worker;
        let mut replaced = std::mem::take(&mut self.replaced);
        while !replaced.is_empty() {
            let rest = split(&mut replaced);
            remote.call(&ClientRequest::Replace { load, writer, strips: replaced })?;
            replaced = rest;
        }
        loop {
            let rest = split(&mut strips);
            let last = rest.is_empty();
            let answer = remote.call(&match then {
                Then::Continues => ClientRequest::HandIn { load, writer, strips, last },
                Then::Ends => ClientRequest::Commit { load, writer, strips, last },
            });
            if last && then == Then::Ends {
                return self.load.outcome(answer);
            }
            answer?;
            if last {
                return Ok(());
            }
            strips = rest;
        }
    }
}

/// The state of a writer behind its strips.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Continues,
    Ends,
}

/// Leaves as many strips as one message takes; gives those behind.
fn split(strips: &mut Vec<(u32, Strip)>) -> Vec<(u32, Strip)> {
    let columns = strips.first().map_or(1, |(_, strip)| strip.blocks.len().max(1));
    let some = (COMMIT_BLOCKS_MAX / columns).clamp(1, COMMIT_STRIPS_MAX);
    strips.split_off(strips.len().min(some))
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.abandon());
        if !self.committed {
            self.load.give_up();
        }
    }
}
