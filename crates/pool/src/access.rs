//! The interface of a pool for programs: they pin versions, read blocks, and load tables.
//!
//! These are the traits between those that know rows and those that know sockets and fabrics.
//! Nothing here blocks but [`PoolAccess`], which is called while a statement is planned or ended.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;

use crate::error::PoolError;
use crate::manifest::{CachedOrigin, Codec, Definition, Manifest, Strip};
use crate::pointer::Pointer;

/// A pool, as a client sees it.
pub trait PoolAccess: Send + Sync + Debug {
    /// The tables, by name.
    ///
    /// # Errors
    /// When a memory server does not answer.
    fn tables(&self) -> Result<Vec<TableSummary>, PoolError>;

    /// Pins a version for reading until the last clone of the answer is dropped. All nodes of a job
    /// that ask for the newest version in the same statement get the same one.
    ///
    /// # Errors
    /// [`PoolError::NoTable`], [`PoolError::NoVersion`], or when a memory server does not answer.
    fn pin(&self, table: &str, at: At) -> Result<Pinned, PoolError>;

    /// Begins to load a table. All nodes of a job that load the same table in the same statement
    /// take part in one load; its version appears when the last of their writers has committed.
    ///
    /// # Errors
    /// [`PoolError::Mismatch`] when the table is another than the load says, and when a memory
    /// server refuses or does not answer.
    fn begin(&self, load: &TableLoad) -> Result<Arc<dyn Loading>, PoolError>;

    /// Begins a load that has writers of this process alone: those of workers 0 to `writers` - 1.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    fn begin_alone(&self, load: &TableLoad, writers: u32) -> Result<Arc<dyn Loading>, PoolError>;

    /// Whether this process has to look at the origin of a table that is a cache, since nobody has
    /// for `age_max_ns`. It loads the table if the origin has changed, and then [ends the
    /// look](Self::end_look). Others read the version that is there meanwhile, or wait.
    ///
    /// # Errors
    /// When a memory server does not answer, and when there is no version and this process may not
    /// load one.
    fn look(&self, table: &str, age_max_ns: u64) -> Result<OriginLook, PoolError>;

    /// Ends a look that this process [had to](OriginLook::Due) take.
    ///
    /// # Errors
    /// When a memory server does not answer.
    fn end_look(&self, table: &str, outcome: LookOutcome) -> Result<(), PoolError>;

    /// Drops a table with all of its versions; readers that have pinned one go on.
    ///
    /// # Errors
    /// [`PoolError::NoTable`], or when a memory server refuses or does not answer.
    fn drop_table(&self, table: &str) -> Result<(), PoolError>;
}

/// A table, for lists.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableSummary {
    /// Its name.
    pub name: String,
    /// Its newest version.
    pub version: u64,
    /// Rows of that version.
    pub rows: u64,
    /// Bytes of all versions that are kept.
    pub bytes: u64,
    /// Leases that hold a version.
    pub leases: u32,
    /// Whether its bytes were lost: it can be dropped, and nothing else.
    pub damaged: bool,
}

/// The answer to who wants to read a table that is a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OriginLook {
    /// The newest version is to be read as it is.
    Current,
    /// The same, though the origin could not be read or loaded a short time ago.
    Resting,
    /// Another process looks at the origin, and there is no version to be read meanwhile, or it is
    /// of the same statement: ask again a little later.
    Wait,
    /// This process looks.
    Due,
}

/// The outcome of a look at an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LookOutcome {
    /// The newest version is a copy of it.
    Copy,
    /// It could not be read or loaded: it is left alone for a while.
    Failed,
    /// It was not looked at: another process does so.
    Abandoned,
}

/// The version of a table that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum At {
    /// The newest one.
    Newest,
    /// This one.
    Version(u64),
}

/// A version that stays as long as a clone of this does.
#[derive(Debug, Clone)]
pub struct Pinned {
    /// Its definition, its strips and their blocks.
    pub manifest: Arc<Manifest>,
    /// Reads its blocks.
    pub blocks: Arc<dyn Blocks>,
}

/// The blocks of a pinned version. The lease ends when this is dropped, and with it all
/// [`BlockBytes`] that were read.
pub trait Blocks: Send + Sync + Debug {
    /// Opens a reader for one worker, with at most `window` blocks on their way (I5); `waker` wakes
    /// the worker, from any thread, when [`BlockReader::next`] would give another answer.
    ///
    /// # Errors
    /// When a memory server cannot be reached.
    fn open(&self, window: usize, waker: Waker) -> Result<Box<dyn BlockReader>, PoolError>;

    /// Whether the lease holds and the servers are there, as far as is known here. It never waits.
    ///
    /// # Errors
    /// The error that a reader would end with.
    fn check(&self) -> Result<(), PoolError> {
        Ok(())
    }

    /// For EXPLAIN: how blocks are read, as `mapped (shm) from m0`.
    fn describe(&self) -> String;

    /// A number under which a pointer means the same bytes for ever: that of a start of the server
    /// that has the table. `None` where nothing is known of that.
    fn incarnation(&self) -> Option<u32> {
        None
    }

    /// Whether they are read where they lie, in mapped memory.
    fn is_mapped(&self) -> bool {
        false
    }
}

/// A block's place and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// Where it begins.
    pub at: Pointer,
    /// Its bytes; not 0.
    pub bytes: u32,
}

/// Reads blocks, in the order in which they are wanted.
pub trait BlockReader: Send {
    /// Asks for a block. The request waits here while the window is full.
    fn want(&mut self, block: BlockRange);

    /// How many blocks are wanted that `next` has not given.
    fn wanted(&self) -> usize;

    /// The next block in the order of [`want`](Self::want), or `None` if it is not there yet.
    ///
    /// # Errors
    /// When the server is gone or the lease has ended: no byte of it is given then.
    fn next(&mut self) -> Result<Option<BlockBytes>, PoolError>;
}

/// The bytes of a block, where they lie: in a mapped extent, or in a buffer that they were read
/// into. The memory is not used for anything else while a clone exists.
pub type BlockBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// How a load changes its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoadMode {
    /// The table is made; that it exists is an error.
    Create,
    /// The next version has the rows of the newest one, and those of the load.
    Append,
    /// The next version has the rows of the load.
    Overwrite,
}

/// A load of a table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableLoad {
    /// The table's name.
    pub table: String,
    /// The table's columns and buckets.
    pub definition: Definition,
    /// Whether the rows that are there are kept.
    pub mode: LoadMode,
    /// Where the rows come from, if the table is a cache.
    pub origin: Option<CachedOrigin>,
}

/// A load that has begun. It is given up when this is dropped before all writers have committed.
pub trait Loading: Send + Sync + Debug {
    /// Opens the writer of a worker; `waker` wakes the worker when the writer has room again.
    ///
    /// # Errors
    /// When a memory server cannot be reached.
    fn writer(&self, worker: u32, waker: Waker) -> Result<Box<dyn StripWriter>, PoolError>;

    /// Whether the servers are there, as far as is known here. It never waits.
    ///
    /// # Errors
    /// The error that a writer would end with.
    fn check(&self) -> Result<(), PoolError> {
        Ok(())
    }

    /// The job has failed in this process, before it drops its writers: the other nodes of the load
    /// are told the first reason.
    fn failed(&self, reason: &str) {
        let _ = reason;
    }
}

/// Writes strips of a load. Dropped before [`commit`](Self::commit) it ends the whole load.
pub trait StripWriter: Send {
    /// Whether [`write`](Self::write) may be called now; the waker is called when that changes.
    ///
    /// # Errors
    /// When the load has failed.
    fn has_room(&mut self) -> Result<bool, PoolError>;

    /// Takes a strip of a partition.
    ///
    /// # Errors
    /// [`PoolError::Full`], or when the load has failed.
    fn write(&mut self, partition: u32, strip: EncodedStrip) -> Result<(), PoolError>;

    /// Whether all strips that were written lie in sealed extents; the waker is called when that
    /// changes. No strip may be written afterwards.
    ///
    /// # Errors
    /// When the load has failed.
    fn is_sealed(&mut self) -> Result<bool, PoolError>;

    /// The strips that were written since this gave some, with their places and partitions, in the
    /// order in which they were written: once all of them have places, until then `None`, and the
    /// waker is called. They are not handed in then: nodes of lists name them.
    ///
    /// # Errors
    /// When the load has failed.
    fn take_placed(&mut self) -> Result<Option<Vec<(u32, Strip)>>, PoolError>;

    /// Strips, the [heads](crate::list::head) of lists, that are handed in or committed beside
    /// those that were written.
    fn name(&mut self, heads: Vec<(u32, Strip)>);

    /// Strips that were handed in, with their partitions, which those of this writer take the place
    /// of: they are of no version any more in which these are.
    fn replace(&mut self, strips: Vec<(u32, Strip)>);

    /// Hands in the strips of a worker that goes on by another writer of the load; gives them as
    /// they lie, in the order in which they were written. A version appears when each worker has
    /// handed in its part, or has committed.
    ///
    /// # Errors
    /// When the load has failed; then no version appears.
    fn hand_in(self: Box<Self>) -> Result<Vec<(u32, Strip)>, PoolError>;

    /// Commits the part of this worker. The version appears with the last worker's part.
    ///
    /// # Errors
    /// When the load has failed; then no version appears.
    fn commit(self: Box<Self>) -> Result<(), PoolError>;
}

/// Rows of one partition, encoded column by column.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EncodedStrip {
    /// How many rows.
    pub rows: u32,
    /// A block for each column.
    pub blocks: Vec<EncodedBlock>,
}

/// A [`Block`](crate::manifest::Block) that has no place yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EncodedBlock {
    /// Its bytes, values and bits of NULLs.
    pub bytes: Vec<u8>,
    /// See [`Block`](crate::manifest::Block).
    pub codec: Codec,
    /// See [`Block`](crate::manifest::Block).
    pub nulls: u32,
    /// See [`Block`](crate::manifest::Block).
    pub least: i64,
    /// See [`Block`](crate::manifest::Block).
    pub greatest: i64,
}
