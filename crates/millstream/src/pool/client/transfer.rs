//! The queues that readers and writers share with the thread that moves bytes.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::Waker;

use fabric::RemoteKey;
use pool::PoolError;
use pool::access::{BlockRange, EncodedStrip};
use pool::manifest::Strip;
use pool::wire::{ClientRequest, StatementId};

use super::locked;

/// Bytes of strips of a writer that wait to be written, at most; one strip may exceed it.
const QUEUED_BYTES_MAX: usize = 4 << 20;

/// The blocks that a reader wants by READs, in order.
#[derive(Debug)]
pub(super) struct ReadQueue {
    /// The server, and the lease that holds the blocks, with the server that has given it.
    pub(super) at: usize,
    pub(super) home: usize,
    pub(super) lease: u64,
    window: usize,
    waker: Waker,
    state: Mutex<Reads>,
}

#[derive(Debug, Default)]
struct Reads {
    /// The number of the first of `blocks`.
    first: u64,
    blocks: VecDeque<Read>,
    /// How many of `blocks` were posted.
    posted: usize,
}

#[derive(Debug)]
enum Read {
    Requested(RemoteKey, BlockRange),
    Posted,
    Done(Vec<u8>),
    Failed(PoolError),
}

impl ReadQueue {
    pub(super) fn new(at: usize, (home, lease): (usize, u64), window: usize, waker: Waker) -> Self {
        Self { at, home, lease, window, waker, state: Mutex::default() }
    }

    /// Nobody reads the blocks any more: those that were not posted are not posted.
    pub(super) fn close(&self) {
        let mut state = locked(&self.state);
        let posted = state.posted;
        state.blocks.truncate(posted);
    }

    pub(super) fn want(&self, key: RemoteKey, block: BlockRange) {
        locked(&self.state).blocks.push_back(Read::Requested(key, block));
    }

    /// The bytes of the first block, once they are there.
    pub(super) fn next(&self) -> Result<Option<Vec<u8>>, PoolError> {
        let mut state = locked(&self.state);
        if !matches!(state.blocks.front(), Some(Read::Done(_) | Read::Failed(_))) {
            return Ok(None);
        }
        state.first += 1;
        state.posted = state.posted.saturating_sub(1);
        match state.blocks.pop_front() {
            Some(Read::Done(bytes)) => Ok(Some(bytes)),
            Some(Read::Failed(error)) => Err(error),
            _ => Ok(None),
        }
    }

    /// The next block to post, if the window has room: its number, and where it is.
    pub(super) fn to_post(&self) -> Option<(u64, RemoteKey, BlockRange)> {
        let state = locked(&self.state);
        let at = state.posted;
        match state.blocks.get(at).filter(|_| at < self.window)? {
            Read::Requested(key, block) => Some((state.first + at as u64, *key, *block)),
            _ => None,
        }
    }

    /// The block of [`ReadQueue::to_post`] is on its way.
    pub(super) fn posted(&self) {
        let mut state = locked(&self.state);
        let at = state.posted;
        if let Some(read) = state.blocks.get_mut(at) {
            *read = Read::Posted;
            state.posted += 1;
        }
    }

    /// A block has come, or will not.
    pub(super) fn done(&self, number: u64, outcome: Result<Vec<u8>, PoolError>) {
        let mut state = locked(&self.state);
        let at = number.checked_sub(state.first).and_then(|at| usize::try_from(at).ok());
        if let Some(read) = at.and_then(|at| state.blocks.get_mut(at)) {
            *read = outcome.map_or_else(Read::Failed, Read::Done);
        }
        drop(state);
        self.waker.wake_by_ref();
    }

    /// The server is gone, as its reader finds when it looks.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }
}

/// A strip that goes to a server.
#[derive(Debug)]
pub(super) struct QueuedStrip {
    /// Its number among those of its writer.
    pub(super) number: u64,
    pub(super) partition: u32,
    pub(super) strip: EncodedStrip,
}

/// Where a load is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoadName {
    /// The server that has the table.
    pub(super) home: usize,
    pub(super) number: u64,
    /// The statement that has begun it.
    pub(super) snapshot: StatementId,
}

impl LoadName {
    /// The question for its outcome.
    pub(super) fn outcome(self) -> ClientRequest {
        ClientRequest::Outcome { load: self.number, snapshot: self.snapshot }
    }
}

/// The strips that a writer has given away.
#[derive(Debug)]
pub(super) struct WriteQueue {
    /// The server, its number in pointers, and the load.
    pub(super) at: usize,
    pub(super) server: u16,
    pub(super) load: LoadName,
    waker: Waker,
    state: Mutex<Writes>,
}

#[derive(Debug, Default)]
struct Writes {
    strips: VecDeque<QueuedStrip>,
    /// Bytes of strips that the memory server does not have.
    bytes: usize,
    /// Strips that have no place yet.
    unplaced: usize,
    /// Somebody waits until all strips have places.
    waits: bool,
    /// Strips for which the server has no room, until another one gets them.
    refused: Vec<QueuedStrip>,
    /// Why the server has no room.
    full: Option<PoolError>,
    /// No strip follows.
    ends: bool,
    sealed: bool,
    /// The strips, with their numbers, partitions and places.
    placed: Vec<(u64, u32, Strip)>,
    failed: Option<PoolError>,
    /// Nobody asks any more.
    dropped: bool,
}

impl WriteQueue {
    pub(super) fn new(at: usize, server: u16, load: LoadName, waker: Waker) -> Self {
        Self { at, server, load, waker, state: Mutex::default() }
    }

    pub(super) fn has_room(&self) -> Result<bool, PoolError> {
        let state = locked(&self.state);
        state.failed.clone().map_or(Ok(state.bytes < QUEUED_BYTES_MAX), Err)
    }

    pub(super) fn write(&self, strip: QueuedStrip) -> Result<(), PoolError> {
        let mut state = locked(&self.state);
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        state.bytes += bytes_of(&strip.strip);
        state.unplaced += 1;
        state.strips.push_back(strip);
        Ok(())
    }

    /// Whether all strips have places; the writer is woken when they have.
    ///
    /// # Errors
    /// When the server has failed.
    pub(super) fn has_placed_all(&self) -> Result<bool, PoolError> {
        let mut state = locked(&self.state);
        state.waits = state.unplaced > 0;
        state.failed.clone().map_or(Ok(!state.waits && state.refused.is_empty()), Err)
    }

    /// Why the server has no room, if it has none.
    pub(super) fn full(&self) -> Option<PoolError> {
        locked(&self.state).full.clone()
    }

    /// The server has no room for a strip: those that wait are for other servers, too.
    pub(super) fn refuse(&self, strip: QueuedStrip, error: PoolError) {
        let mut state = locked(&self.state);
        let waiting = std::mem::take(&mut state.strips);
        state.refused.push(strip);
        state.refused.extend(waiting);
        state.full = Some(error);
        state.unplaced = 0;
        drop(state);
        self.waker.wake_by_ref();
    }

    /// The strips for which the server has no room.
    pub(super) fn take_refused(&self) -> Vec<QueuedStrip> {
        let mut state = locked(&self.state);
        let refused = std::mem::take(&mut state.refused);
        let bytes: usize = refused.iter().map(|of| bytes_of(&of.strip)).sum();
        state.bytes = state.bytes.saturating_sub(bytes);
        refused
    }

    /// No strip follows; whether all lie in sealed extents.
    pub(super) fn end(&self) -> Result<bool, PoolError> {
        let mut state = locked(&self.state);
        state.ends = true;
        state.failed.clone().map_or(Ok(state.sealed), Err)
    }

    pub(super) fn take_placed(&self) -> Vec<(u64, u32, Strip)> {
        std::mem::take(&mut locked(&self.state).placed)
    }

    pub(super) fn abandon(&self) {
        locked(&self.state).dropped = true;
    }

    pub(super) fn is_over(&self) -> bool {
        let state = locked(&self.state);
        state.dropped || state.failed.is_some() || state.sealed
    }

    pub(super) fn next(&self) -> Option<QueuedStrip> {
        locked(&self.state).strips.pop_front()
    }

    /// Whether no strip follows those that were taken.
    pub(super) fn has_ended(&self) -> bool {
        let state = locked(&self.state);
        state.ends && state.strips.is_empty()
    }

    pub(super) fn placed(&self, number: u64, partition: u32, strip: Strip) {
        let mut state = locked(&self.state);
        state.placed.push((number, partition, strip));
        state.unplaced = state.unplaced.saturating_sub(1);
        let wakes = state.unplaced == 0 && std::mem::take(&mut state.waits);
        drop(state);
        if wakes {
            self.waker.wake_by_ref();
        }
    }

    /// Bytes are on their way.
    pub(super) fn sent(&self, bytes: usize) {
        let mut state = locked(&self.state);
        let full = state.bytes >= QUEUED_BYTES_MAX;
        state.bytes = state.bytes.saturating_sub(bytes);
        let has_room = state.bytes < QUEUED_BYTES_MAX;
        drop(state);
        if full && has_room {
            self.waker.wake_by_ref();
        }
    }

    pub(super) fn sealed(&self) {
        locked(&self.state).sealed = true;
        self.waker.wake_by_ref();
    }

    pub(super) fn fail(&self, error: PoolError) {
        locked(&self.state).failed.get_or_insert(error);
        self.waker.wake_by_ref();
    }
}

pub(super) fn bytes_of(strip: &EncodedStrip) -> usize {
    strip.blocks.iter().map(|block| block.bytes.len()).sum()
}
