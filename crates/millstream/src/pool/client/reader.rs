//! A version that is pinned, and the readers of its blocks.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use fabric::MappedRange;
use pool::PoolError;
use pool::access::{BlockBytes, BlockRange, BlockReader, Blocks, Pinned};
use pool::manifest::Manifest;
use pool::pointer::ExtentId;

use super::Connected;
use super::transfer::ReadQueue;
use super::worker::Place;

/// A version and its lease, which ends with it.
pub(super) struct Version {
    connected: Arc<Connected>,
    /// The server.
    at: usize,
    lease: u64,
    pub(super) manifest: Arc<Manifest>,
    places: HashMap<ExtentId, Place>,
}

impl Version {
    pub(super) fn new(
        connected: Arc<Connected>,
        at: usize,
        lease: u64,
        manifest: Arc<Manifest>,
        places: HashMap<ExtentId, Place>,
    ) -> Self {
        Self { connected, at, lease, manifest, places }
    }

    pub(super) fn pinned(self: Arc<Self>) -> Pinned {
        let manifest = Arc::clone(&self.manifest);
        Pinned { manifest, blocks: Arc::new(PinnedBlocks(self)) }
    }

    /// Whether the lease holds, as far as is known here.
    fn check(&self) -> Result<(), PoolError> {
        match self.connected.remotes[self.at].lost() {
            Some(lost) => Err(lost),
            None => Ok(()),
        }
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        self.connected.worker.unpin(self.at, self.lease);
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({} of '{}')", self.manifest.version, self.manifest.table)
    }
}

/// The blocks of a pinned version.
#[derive(Debug)]
struct PinnedBlocks(Arc<Version>);

impl Blocks for PinnedBlocks {
    fn open(&self, window: usize, waker: Waker) -> Result<Box<dyn BlockReader>, PoolError> {
        self.0.check()?;
        let reads = Arc::new(ReadQueue::new(self.0.at, self.0.lease, window.max(1), waker));
        Ok(Box::new(Reader { version: Arc::clone(&self.0), order: VecDeque::new(), reads }))
    }

    fn is_mapped(&self) -> bool {
        self.0.places.values().any(|place| matches!(place, Place::Mapped(_)))
    }

    fn describe(&self) -> String {
        let remote = &self.0.connected.remotes[self.0.at];
        // All nodes of a job describe the same plan, and some may be elsewhere.
        if self.0.connected.options.job.is_some() {
            return format!("from {}", remote.name);
        }
        let how = if self.is_mapped() { "mapped" } else { "READs" };
        format!("{how} ({}) from {}", remote.kind, remote.name)
    }
}

/// Reads blocks for a worker.
struct Reader {
    version: Arc<Version>,
    /// The requested blocks in order: one that is mapped, or `None` for the next of `reads`.
    order: VecDeque<Option<BlockRange>>,
    reads: Arc<ReadQueue>,
}

/// A block where it lies in a mapped extent.
struct MappedBlock {
    range: MappedRange,
    _version: Arc<Version>,
}

impl AsRef<[u8]> for MappedBlock {
    fn as_ref(&self) -> &[u8] {
        &self.range
    }
}

/// A block in memory of its own.
struct OwnBlock {
    bytes: Vec<u8>,
    _version: Arc<Version>,
}

impl AsRef<[u8]> for OwnBlock {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.reads.close();
    }
}

impl BlockReader for Reader {
    fn want(&mut self, block: BlockRange) {
        match self.version.places.get(&block.at.extent) {
            Some(Place::Remote(key)) => {
                self.reads.want(*key, block);
                self.version.connected.worker.read(&self.reads);
                self.order.push_back(None);
            }
            // One that is nowhere is an error of `next`.
            Some(Place::Mapped(_)) | None => self.order.push_back(Some(block)),
        }
    }

    fn wanted(&self) -> usize {
        self.order.len()
    }

    fn next(&mut self) -> Result<Option<BlockBytes>, PoolError> {
        self.version.check()?;
        let _version = Arc::clone(&self.version);
        match self.order.front() {
            None => Ok(None),
            Some(Some(block)) => {
                let place = self.version.places.get(&block.at.extent);
                let range = match place {
                    Some(Place::Mapped(mapped)) => {
                        mapped.part(block.at.offset as usize, block.bytes as usize)
                    }
                    _ => None,
                };
                let range = range.ok_or(PoolError::Malformed { what: "pointer" })?;
                self.order.pop_front();
                Ok(Some(Arc::new(MappedBlock { range, _version })))
            }
            Some(None) => {
                let Some(bytes) = self.reads.next()? else { return Ok(None) };
                self.order.pop_front();
                // The window has moved on.
                self.version.connected.worker.read(&self.reads);
                Ok(Some(Arc::new(OwnBlock { bytes, _version })))
            }
        }
    }
}
