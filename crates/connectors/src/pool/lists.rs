//! Tables that are kept in lists of remote pointers (I4): nodes are followed when a version is
//! pinned, and written when strips have their places.
//!
//! ```text
//!   pin ─▶ heads ─▶ nodes, LINKS_MAX at a time ─▶ the directory of the version
//!                     └ a node that is known is not read again, whatever version has it
//! ```

mod write;

use std::collections::{HashMap, VecDeque};
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use pool::PoolError;
use pool::access::Pinned;
use pool::list::{ListNode, ListWalk};
use pool::pointer::Pointer;

pub(super) use write::ListLoading;

/// Nodes that are on their way at most.
const WINDOW: usize = 64;

/// Bytes of nodes that are on their way at most, where more than one is: those of a well-behaved
/// loader have 2 MiB, but anybody may have written their lengths.
const WINDOW_BYTES: u64 = 16 << 20;

/// Bytes of nodes that are kept, of each of two generations.
const KEPT_BYTES_MAX: u64 = 32 << 20;

/// How long the thread that follows lists sleeps when nobody wakes it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The nodes that this process has read, of all tables: they never change, so that the next version
/// of a table needs the new ones alone.
#[derive(Debug, Default)]
pub struct NodeCache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: Nodes,
    old: Nodes,
    young_bytes: u64,
    counts: ListReads,
}

/// By the start of the server that has the table, and the place of a node.
type Nodes = HashMap<(u32, Pointer), (Arc<ListNode>, u32)>;

/// How nodes of lists were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListReads {
    /// Nodes that were read of a memory server.
    pub read: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Nodes that were known.
    pub known: u64,
}

impl NodeCache {
    /// How nodes were found so far.
    pub fn reads(&self) -> ListReads {
        self.locked().counts
    }

    fn locked(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, server: Option<u32>, at: Pointer, bytes: u32) -> Option<Arc<ListNode>> {
        let key = (server?, at);
        let mut own = self.locked();
        let found = own.young.get(&key).cloned();
        let found = found.or_else(|| {
            let old = own.old.remove(&key)?;
            own.keep(key, old.clone());
            Some(old)
        });
        let (node, _) = found.filter(|(_, of)| *of == bytes)?;
        own.counts.known += 1;
        Some(node)
    }

    fn put(&self, server: Option<u32>, at: Pointer, node: &Arc<ListNode>, bytes: u32) {
        let mut own = self.locked();
        own.counts.read += 1;
        own.counts.bytes += u64::from(bytes);
        if let Some(server) = server {
            own.keep((server, at), (Arc::clone(node), bytes));
        }
    }
}

impl Generations {
    fn keep(&mut self, key: (u32, Pointer), node: (Arc<ListNode>, u32)) {
        self.young_bytes += u64::from(node.1);
        self.young.insert(key, node);
        if self.young_bytes > KEPT_BYTES_MAX {
            (self.old, self.young_bytes) = (take(&mut self.young), 0);
        }
    }
}

/// Wakes the thread that follows lists.
struct Unparks(Thread);

impl Wake for Unparks {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A node that was asked for.
enum Asked {
    Cached(Arc<ListNode>),
    Read(Pointer, u32),
}

/// The version with its directory, and how many nodes of lists tell it: `None` if its manifest has
/// the directory. This waits for the memory servers.
///
/// # Errors
/// When a node cannot be read, or is not what the pointer to it promised.
pub fn followed(pinned: Pinned, nodes: &NodeCache) -> Result<(Pinned, Option<usize>), PoolError> {
    let Pinned { manifest, blocks } = pinned;
    if !manifest.definition.is_listed() {
        return Ok((Pinned { manifest, blocks }, None));
    }
    let mut walk = ListWalk::of(&manifest)?;
    let server = blocks.incarnation();
    let waker = Waker::from(Arc::new(Unparks(thread::current())));
    let mut reader = blocks.open(WINDOW, waker)?;
    let (mut asked, mut asked_bytes, mut count) = (VecDeque::new(), 0, 0);
    loop {
        while asked.len() < WINDOW {
            let Some(place) = walk.wanted(asked.len()) else { break };
            if asked_bytes > 0 && asked_bytes + u64::from(place.bytes) > WINDOW_BYTES {
                break;
            }
            asked.push_back(match nodes.get(server, place.at, place.bytes) {
                Some(node) => Asked::Cached(node),
                None => {
                    reader.want(place);
                    asked_bytes += u64::from(place.bytes);
                    Asked::Read(place.at, place.bytes)
                }
            });
        }
        let node = match asked.front() {
            None => break,
            Some(Asked::Cached(node)) => Arc::clone(node),
            Some(Asked::Read(at, length)) => {
                let Some(bytes) = reader.next()? else {
                    thread::park_timeout(LOOK_AGAIN);
                    continue;
                };
                let node = Arc::new(ListNode::decode((*bytes).as_ref())?);
                asked_bytes -= u64::from(*length);
                nodes.put(server, *at, &node, *length);
                node
            }
        };
        walk.take(node)?;
        asked.pop_front();
        count += 1;
    }
    let manifest = Arc::new(walk.directory(&manifest)?);
    Ok((Pinned { manifest, blocks }, Some(count)))
}
