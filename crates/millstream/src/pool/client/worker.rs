//! The thread of a client: it owns the data connections with all servers.
//!
//! It posts READs of readers and WRITEs of loads, and says each second that this process lives. It
//! sleeps until a completion or a task comes.

mod writing;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::{
    Armed, Completion, EventFd, Flags, MappedRange, OpId, PostError, RemoteKey, RemoteRange, Slab,
    wait,
};
use pool::PoolError;
use pool::access::BlockRange;
use pool::wire::{ClientRequest, READ_BYTES_MAX};

use super::remote::{End, Remote};
use super::transfer::{LoadName, ReadQueue, WriteQueue};
use super::{locked, unexpected};
use writing::{Staging, Write};

/// How often a client says that it lives.
const BEAT: Duration = Duration::from_secs(1);
/// How long a server may take until its memory is mapped.
const MAP: Duration = Duration::from_secs(4);
/// Bytes of buffers for READs that are kept for the next ones.
const BUFFER_BYTES_MAX: usize = 64 << 20;
/// Bytes of such a buffer at least.
const BUFFER_BYTES_MIN: usize = 64 << 10;

/// Where an extent can be read.
pub(super) enum Place {
    /// Here.
    Mapped(MappedRange),
    /// By READs.
    Remote(RemoteKey),
}

/// A task for the thread.
enum Task {
    Map { at: usize, keys: Vec<RemoteKey>, answer: Sender<Result<Vec<Place>, PoolError>> },
    Read(Arc<ReadQueue>),
    Write(Arc<WriteQueue>),
    Unpin { at: usize, lease: u64 },
    Abort { at: usize, load: u64, reason: String },
}

/// The handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Worker(Arc<Shared>);

struct Shared {
    tasks: Mutex<Vec<Task>>,
    wakes: EventFd,
    stop: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Worker {
    /// Starts it, with a data connection of each server.
    ///
    /// # Errors
    /// When the system gives no thread or descriptor.
    pub(super) fn start(remotes: Vec<Arc<Remote>>, ends: Vec<End>) -> std::io::Result<Self> {
        let (tasks, stop) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { tasks, wakes: EventFd::new()?, stop });
        let ends = remotes.into_iter().zip(ends).map(|(remote, end)| Served::new(remote, end));
        let ends = ends.collect::<Result<Vec<_>, _>>()?;
        let work =
            Work { shared: Arc::clone(&shared), ends, writes: Vec::new(), ending: Vec::new() };
        std::thread::Builder::new().name("pool".into()).spawn(move || work.run())?;
        Ok(Self(shared))
    }

    /// Where the extents of these keys can be read.
    ///
    /// # Errors
    /// When a key is malformed, or the server is gone.
    pub(super) fn map(&self, at: usize, keys: Vec<Vec<u8>>) -> Result<Vec<Place>, PoolError> {
        let keys: Result<Vec<_>, _> = keys.iter().map(|key| RemoteKey::decode(key)).collect();
        let keys = keys.map_err(|_| PoolError::Malformed { what: "key" })?;
        let (answer, answered) = channel();
        self.ask(Task::Map { at, keys, answer });
        answered.recv().map_err(|_| unexpected())?
    }

    pub(super) fn read(&self, queue: &Arc<ReadQueue>) {
        if queue.to_post().is_some() {
            self.ask(Task::Read(Arc::clone(queue)));
        }
    }

    pub(super) fn write(&self, queue: &Arc<WriteQueue>) {
        self.ask(Task::Write(Arc::clone(queue)));
    }

    pub(super) fn unpin(&self, at: usize, lease: u64) {
        self.ask(Task::Unpin { at, lease });
    }

    /// Gives a load up on a server, for a reason that the other nodes are told.
    pub(super) fn abort(&self, at: usize, load: u64, reason: &str) {
        self.ask(Task::Abort { at, load, reason: reason.to_owned() });
    }

    pub(super) fn wake(&self) {
        self.0.wakes.signal();
    }

    fn ask(&self, task: Task) {
        locked(&self.0.tasks).push(task);
        self.wake();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        self.wake();
    }
}

struct Work {
    shared: Arc<Shared>,
    /// By server.
    ends: Vec<Served>,
    writes: Vec<Write>,
    /// Leases that nobody uses any more, but for reads that are on their way: the server of each.
    ending: Vec<(usize, u64)>,
}

/// The data connection with a server, and what is under way on it.
struct Served {
    remote: Arc<Remote>,
    end: End,
    operations: HashMap<u64, Operation>,
    posted: u64,
    /// Blocks that are read, by the queue's address and the block's number.
    blocks: HashMap<(usize, u64), Incoming>,
    /// Readers whose next block did not find room.
    waiting: VecDeque<Arc<ReadQueue>>,
    buffers: Vec<Slab>,
    staging: Staging,
    /// Why an operation has failed, until the server is taken for lost.
    failed: Option<String>,
}

/// A block that is read in parts of at most [`READ_BYTES_MAX`].
struct Incoming {
    slab: Slab,
    bytes: usize,
    /// Bytes whose parts were posted.
    posted: usize,
    /// Parts on their way.
    parts: usize,
}

/// The purpose of an operation.
enum Operation {
    /// A part of a block; the block is there with the last of its parts.
    Read { queue: Arc<ReadQueue>, number: u64 },
    /// A piece of the staging memory is free again.
    Piece(usize),
    /// All writes into an extent have landed.
    Landed { writer: u64, extent: u32 },
}

impl Work {
    fn run(mut self) {
        let mut beaten = Instant::now();
        loop {
            // Tasks that were left before the end are done.
            let stop = self.shared.stop.load(Ordering::Acquire);
            self.shared.wakes.clear();
            let tasks = std::mem::take(&mut *locked(&self.shared.tasks));
            tasks.into_iter().for_each(|task| self.begin(task));
            if stop {
                return;
            }
            self.poll();
            self.go_on_writing();
            if beaten.elapsed() >= BEAT {
                self.beat();
                beaten = Instant::now();
            }
            let mut descriptors: Vec<RawFd> = vec![self.shared.wakes.raw()];
            let mut ready = false;
            for served in self.ends.iter_mut().filter(|served| served.remote.is_there()) {
                served.end.endpoint.submit();
                match served.end.endpoint.arm() {
                    Armed::Fd(descriptor) => descriptors.push(descriptor),
                    Armed::Ready => ready = true,
                    Armed::Virtual => {}
                }
            }
            if !ready {
                wait(&descriptors, BEAT.saturating_sub(beaten.elapsed()));
            }
        }
    }

    fn begin(&mut self, task: Task) {
        match task {
            Task::Map { at, keys, answer } => {
                // The caller may have given up.
                let _ = answer.send(self.ends[at].map(&keys));
            }
            Task::Read(queue) => self.ends[queue.at].read(&queue),
            Task::Write(queue) => self.writes.push(Write::new(queue)),
            Task::Unpin { at, lease } => self.unpin(at, lease),
            Task::Abort { at, load, reason } => {
                self.give_up_writing(at, load, &reason);
                self.ends[at].say(&ClientRequest::abort(load, &reason));
            }
        }
    }

    fn beat(&mut self) {
        for served in &mut self.ends {
            served.say(&ClientRequest::Beat);
        }
    }

    fn poll(&mut self) {
        for at in 0..self.ends.len() {
            for (writer, extent) in self.ends[at].poll() {
                self.landed(at, writer, extent);
            }
            if let Some(reason) = self.ends[at].failed.take() {
                self.lose(at, reason);
            }
        }
        let ending = std::mem::take(&mut self.ending);
        ending.into_iter().for_each(|(at, lease)| self.unpin(at, lease));
    }

    /// An operation of a server has failed. It may have said why, or refuse what it held for
    /// another one that is gone: that one is found first.
    fn lose(&mut self, at: usize, reason: String) {
        let others = self.ends.iter_mut().enumerate().filter(|(other, _)| *other != at);
        others.for_each(|(_, served)| served.say(&ClientRequest::Beat));
        let served = &mut self.ends[at];
        let _ = served.remote.call(&ClientRequest::Beat);
        match self.given_up(at) {
            Some(error) => self.ends[at].remote.end(error),
            None => self.ends[at].remote.lose(reason),
        };
        self.ends[at].end();
    }

    /// The error of a load that writes to a server and was given up by another node: the server
    /// refuses what is on its way into its extents.
    fn given_up(&self, at: usize) -> Option<PoolError> {
        let loads: BTreeSet<LoadName> =
            self.writes.iter().filter_map(|write| write.load_on(at)).collect();
        loads.into_iter().find_map(|load| {
            let error = self.ends[load.home].remote.call(&load.outcome()).err()?;
            matches!(error, PoolError::GivenUp { .. }).then_some(error)
        })
    }

    /// Ends a lease when no read of its blocks is on its way to any server: these may take away
    /// their memory behind that, and a read that comes too late ends the connection.
    fn unpin(&mut self, at: usize, lease: u64) {
        let reads = |operation: &Operation| match operation {
            Operation::Read { queue, .. } => (queue.home, queue.lease) == (at, lease),
            Operation::Piece(_) | Operation::Landed { .. } => false,
        };
        if self.ends.iter().any(|served| served.operations.values().any(reads)) {
            self.ending.push((at, lease));
        } else {
            self.ends[at].say(&ClientRequest::Unpin { lease });
        }
    }
}

impl Served {
    fn new(remote: Arc<Remote>, end: End) -> std::io::Result<Self> {
        let staging = Staging::new(&*end.fabric).map_err(std::io::Error::other)?;
        let (operations, waiting, buffers) = (HashMap::new(), VecDeque::new(), Vec::new());
        let blocks = HashMap::new();
        Ok(Self {
            remote,
            end,
            operations,
            posted: 0,
            blocks,
            waiting,
            buffers,
            staging,
            failed: None,
        })
    }

    /// Says something to which no answer matters. When the server is gone, all find it out.
    fn say(&mut self, request: &ClientRequest) {
        if self.remote.is_there() && self.remote.call(request).is_err() && !self.remote.is_there() {
            self.end();
        }
    }

    /// The server is gone.
    fn end(&mut self) {
        self.end.endpoint.close();
        for (_, operation) in self.operations.drain() {
            if let Operation::Read { queue, .. } = operation {
                queue.wake();
            }
        }
        self.blocks.clear();
        self.waiting.drain(..).for_each(|queue| queue.wake());
    }

    /// The reason why memory cannot be mapped. A connection that has ended is the end of the
    /// server, which may have said more.
    fn not_mapped(&self, error: PostError) -> PoolError {
        let reason = format!("its memory cannot be mapped: {error}");
        if error == PostError::Closed {
            let _ = self.remote.call(&ClientRequest::Beat);
            return self.remote.lose(reason);
        }
        self.remote.lost().unwrap_or(PoolError::Refused { reason })
    }

    fn map(&mut self, keys: &[RemoteKey]) -> Result<Vec<Place>, PoolError> {
        let deadline = Instant::now() + MAP;
        let mut places = Vec::with_capacity(keys.len());
        for key in keys {
            let place = loop {
                match self.end.endpoint.mapped(*key) {
                    Ok(Some(range)) => break Place::Mapped(range),
                    Ok(None) => break Place::Remote(*key),
                    Err(PostError::Full) if Instant::now() < deadline => self.await_event(),
                    Err(error) => return Err(self.not_mapped(error)),
                }
            };
            places.push(place);
        }
        Ok(places)
    }

    /// Waits for something of this server alone. Writes that land meanwhile are kept.
    fn await_event(&mut self) {
        self.end.endpoint.submit();
        if let Armed::Fd(descriptor) = self.end.endpoint.arm() {
            wait(&[descriptor], Duration::from_millis(100));
        }
        let landed = self.poll();
        self.staging.keep(landed);
    }

    /// Looks at what has completed; gives the extents whose writes have landed.
    fn poll(&mut self) -> Vec<(u64, u32)> {
        let mut landed = self.staging.take_kept();
        if !self.remote.is_there() {
            return landed;
        }
        let mut completions = Vec::new();
        self.end.endpoint.poll(&mut completions);
        let mut readers = VecDeque::new();
        for completion in completions {
            let id = match completion {
                Completion::Local { id } => id,
                Completion::Error { kind, .. } => {
                    self.failed = Some(kind.to_string());
                    return landed;
                }
                Completion::Notify { .. } | Completion::Recv { .. } => continue,
            };
            match self.operations.remove(&id.0) {
                Some(Operation::Read { queue, number }) => {
                    self.arrived(&queue, number);
                    readers.push_back(queue);
                }
                Some(Operation::Piece(piece)) => self.staging.free(piece),
                Some(Operation::Landed { writer, extent }) => landed.push((writer, extent)),
                None => {}
            }
        }
        readers.append(&mut self.waiting);
        readers.iter().for_each(|queue| self.read(queue));
        landed
    }

    /// Posts what a reader wants, as far as its window goes.
    fn read(&mut self, queue: &Arc<ReadQueue>) {
        if !self.remote.is_there() {
            return queue.wake();
        }
        while let Some((number, key, block)) = queue.to_post() {
            let posted = self.post(queue, number, key, block);
            match posted {
                Ok(()) => queue.posted(),
                Err(PostError::Full) => {
                    self.waiting.push_back(Arc::clone(queue));
                    return;
                }
                Err(error) => {
                    queue.posted();
                    let reason = format!("a block cannot be read: {error}");
                    queue.done(number, Err(PoolError::Refused { reason }));
                }
            }
        }
    }

    /// A part of a block has come.
    fn arrived(&mut self, queue: &Arc<ReadQueue>, number: u64) {
        let at = (Arc::as_ptr(queue).addr(), number);
        let Some(incoming) = self.blocks.get_mut(&at) else { return };
        incoming.parts -= 1;
        if incoming.parts > 0 || incoming.posted < incoming.bytes {
            return;
        }
        let Some(Incoming { slab, bytes, .. }) = self.blocks.remove(&at) else { return };
        let mut out = vec![0; bytes];
        if let Ok(range) = slab.range(0..bytes) {
            range.snapshot(&mut out);
        }
        self.recycle(slab);
        queue.done(number, Ok(out));
    }

    /// Posts all parts of a block, or those that find room: then the rest is posted when this is
    /// called again.
    fn post(
        &mut self,
        queue: &Arc<ReadQueue>,
        number: u64,
        key: RemoteKey,
        block: BlockRange,
    ) -> Result<(), PostError> {
        let at = (Arc::as_ptr(queue).addr(), number);
        let bytes = block.bytes as usize;
        let mut incoming = match self.blocks.remove(&at) {
            Some(incoming) => incoming,
            None => {
                if self.end.endpoint.budget().ops == 0 {
                    return Err(PostError::Full);
                }
                let slab = self.buffer(bytes).ok_or(PostError::TooLarge)?;
                Incoming { slab, bytes, posted: 0, parts: 0 }
            }
        };
        let posted = self.post_parts(queue, number, key, block, &mut incoming);
        match posted {
            Err(PostError::Full) | Ok(()) => {
                self.blocks.insert(at, incoming);
            }
            // Parts on their way still write to the memory, which goes with them.
            Err(_) if incoming.parts == 0 => self.recycle(incoming.slab),
            Err(_) => {}
        }
        posted
    }

    fn post_parts(
        &mut self,
        queue: &Arc<ReadQueue>,
        number: u64,
        key: RemoteKey,
        block: BlockRange,
        incoming: &mut Incoming,
    ) -> Result<(), PostError> {
        while incoming.posted < incoming.bytes {
            if self.end.endpoint.budget().ops == 0 {
                return Err(PostError::Full);
            }
            let to = incoming.bytes.min(incoming.posted + READ_BYTES_MAX as usize);
            let range = incoming.slab.range(incoming.posted..to);
            let range = range.map_err(|_| PostError::OutOfBounds)?;
            let offset = u64::from(block.at.offset) + incoming.posted as u64;
            let (from, id) = (RemoteRange { key, offset }, self.next_operation());
            self.end.endpoint.read(&range, from, OpId(id), Flags::SIGNAL)?;
            let queue = Arc::clone(queue);
            self.operations.insert(id, Operation::Read { queue, number });
            (incoming.posted, incoming.parts) = (to, incoming.parts + 1);
        }
        Ok(())
    }

    fn next_operation(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// Memory of this fabric, of at least `bytes` bytes.
    fn buffer(&mut self, bytes: usize) -> Option<Slab> {
        let fits =
            |slab: &Slab| slab.len() >= bytes && slab.len() / 4 <= bytes.max(BUFFER_BYTES_MIN);
        if let Some(at) = self.buffers.iter().position(fits) {
            return Some(self.buffers.swap_remove(at));
        }
        let bytes = bytes.max(BUFFER_BYTES_MIN).next_power_of_two();
        self.end.fabric.slab(bytes).ok()
    }

    fn recycle(&mut self, slab: Slab) {
        let kept: usize = self.buffers.iter().map(Slab::len).sum();
        if kept + slab.len() <= BUFFER_BYTES_MAX {
            self.buffers.push(slab);
        }
    }
}
