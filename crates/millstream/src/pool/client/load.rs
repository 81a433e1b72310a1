//! A load, as the workers of this process see it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use pool::PoolError;
use pool::access::{EncodedStrip, Loading, StripWriter};
use pool::wire::{COMMIT_STRIPS_MAX, ClientRequest};

use super::Connected;
use super::transfer::WriteQueue;

/// Blocks in one message of a commit at most, so that the message is as large as one may be.
const COMMIT_BLOCKS_MAX: usize = 200_000;

/// A load that has begun.
pub(super) struct LoadHandle(Arc<OpenLoad>);

struct OpenLoad {
    connected: Arc<Connected>,
    /// The server.
    at: usize,
    number: u64,
    /// Whether a writer has committed, or the load was given up: then its last handle says nothing.
    settled: AtomicBool,
}

impl LoadHandle {
    pub(super) fn new(connected: Arc<Connected>, at: usize, number: u64) -> Self {
        Self(Arc::new(OpenLoad { connected, at, number, settled: AtomicBool::new(false) }))
    }
}

impl fmt::Debug for LoadHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadHandle({})", self.0.number)
    }
}

impl OpenLoad {
    fn give_up(&self) {
        self.settled.store(true, Ordering::Relaxed);
        self.connected.worker.abort(self.at, self.number);
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
        if let Some(lost) = self.0.connected.remotes[self.0.at].lost() {
            return Err(lost);
        }
        let queue = Arc::new(WriteQueue::new(self.0.at, self.0.number, waker));
        self.0.connected.worker.write(&queue);
        let load = Arc::clone(&self.0);
        Ok(Box::new(Writer { load, worker, queue, committed: false }))
    }
}

/// The writer of a worker.
struct Writer {
    load: Arc<OpenLoad>,
    worker: u32,
    queue: Arc<WriteQueue>,
    committed: bool,
}

impl StripWriter for Writer {
    fn has_room(&mut self) -> Result<bool, PoolError> {
        self.queue.has_room()
    }

    fn write(&mut self, partition: u32, strip: EncodedStrip) -> Result<(), PoolError> {
        self.queue.write(partition, strip)?;
        self.load.connected.worker.wake();
        Ok(())
    }

    fn is_sealed(&mut self) -> Result<bool, PoolError> {
        let sealed = self.queue.end()?;
        if !sealed {
            self.load.connected.worker.wake();
        }
        Ok(sealed)
    }

    fn commit(mut self: Box<Self>) -> Result<(), PoolError> {
        let mut strips = self.queue.take_placed();
        let columns = strips.first().map_or(1, |(_, strip)| strip.blocks.len().max(1));
        let some = (COMMIT_BLOCKS_MAX / columns).clamp(1, COMMIT_STRIPS_MAX);
        loop {
            let rest = strips.split_off(strips.len().min(some));
            let last = rest.is_empty();
            let load = self.load.number;
            let request = ClientRequest::Commit { load, writer: self.worker, strips, last };
            self.load.connected.remotes[self.load.at].call(&request)?;
            if last {
                self.committed = true;
                self.load.settled.store(true, Ordering::Relaxed);
                return Ok(());
            }
            strips = rest;
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.abandon();
        if !self.committed {
            self.load.give_up();
        }
    }
}
