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
    /// The server that has the table.
    at: usize,
    lease: u64,
    /// By the number that extents name: the servers that have blocks, that of the table, too.
    servers: HashMap<u16, usize>,
    pub(super) manifest: Arc<Manifest>,
    places: HashMap<ExtentId, Place>,
}

impl Version {
    pub(super) fn new(
        connected: Arc<Connected>,
        (at, lease): (usize, u64),
        servers: HashMap<u16, usize>,
        manifest: Arc<Manifest>,
        places: HashMap<ExtentId, Place>,
    ) -> Self {
        Self { connected, at, lease, servers, manifest, places }
    }

    pub(super) fn pinned(self: Arc<Self>) -> Pinned {
        let manifest = Arc::clone(&self.manifest);
        Pinned { manifest, blocks: Arc::new(PinnedBlocks(self)) }
    }

    /// Whether the lease holds, as far as is known here.
    fn check(&self) -> Result<(), PoolError> {
        // Extents that other servers hold go with the server that has the table.
        let mut servers = std::iter::once(&self.at).chain(self.servers.values());
        match servers.find_map(|at| self.connected.remotes[*at].lost()) {
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
        // The window is that of all servers.
        let window = window.div_ceil(self.0.servers.len()).max(1);
        let lease = (self.0.at, self.0.lease);
        let queue = |(number, at): (&u16, &usize)| {
            (*number, Arc::new(ReadQueue::new(*at, lease, window, waker.clone())))
        };
        let reads = self.0.servers.iter().map(queue).collect();
        Ok(Box::new(Reader { version: Arc::clone(&self.0), order: VecDeque::new(), reads }))
    }

    fn check(&self) -> Result<(), PoolError> {
        self.0.check()
    }

    fn incarnation(&self) -> Option<u32> {
        Some(self.0.connected.remotes[self.0.at].incarnation)
    }

    fn is_mapped(&self) -> bool {
        self.0.places.values().any(|place| matches!(place, Place::Mapped(_)))
    }

    fn describe(&self) -> String {
        let remotes = &self.0.connected.remotes;
        let mut servers: Vec<usize> = self.0.servers.values().copied().collect();
        servers.sort_unstable();
        let names: Vec<&str> = servers.iter().map(|at| remotes[*at].name.as_str()).collect();
        let names = names.join(", ");
        // All nodes of a job describe the same plan, and some may be elsewhere.
        if self.0.connected.options.job.is_some() {
            return format!("from {names}");
        }
        let how = if self.is_mapped() { "mapped" } else { "READs" };
        format!("{how} ({}) from {names}", remotes[self.0.at].kind)
    }
}

/// Reads blocks for a worker.
struct Reader {
    version: Arc<Version>,
    /// The requested blocks in order.
    order: VecDeque<Requested>,
    /// By the number of a server.
    reads: HashMap<u16, Arc<ReadQueue>>,
}

/// A requested block.
#[derive(Debug, Clone, Copy)]
enum Requested {
    Mapped(BlockRange),
    /// The next that this server's queue of READs gives.
    Read(u16),
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
        self.reads.values().for_each(|reads| reads.close());
    }
}

impl BlockReader for Reader {
    fn want(&mut self, block: BlockRange) {
        let server = block.at.extent.server;
        let place = self.version.places.get(&block.at.extent);
        match (place, self.reads.get(&server)) {
            (Some(Place::Remote(key)), Some(reads)) => {
                reads.want(*key, block);
                self.version.connected.worker.read(reads);
                self.order.push_back(Requested::Read(server));
            }
            // One that is nowhere is an error of `next`.
            _ => self.order.push_back(Requested::Mapped(block)),
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
            Some(Requested::Mapped(block)) => {
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
            Some(Requested::Read(server)) => {
                let Some(reads) = self.reads.get(server) else { return Ok(None) };
                let Some(bytes) = reads.next()? else { return Ok(None) };
                // The window has moved on.
                self.version.connected.worker.read(reads);
                self.order.pop_front();
                Ok(Some(Arc::new(OwnBlock { bytes, _version })))
            }
        }
    }
}
