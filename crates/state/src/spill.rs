//! State that does not fit memory: runs of partial states on a disk, merged late (S8).
//!
//! A *run* is what one slice held at one moment: a delta like any other, only that its leader is
//! this worker at a later time. Merging is commutative and associative, so it does not matter how
//! often a slice is written and goes on with nothing.
//!
//! ```text
//! rows ─▶ slice ──── over budget ────▶ run ┌ whole ────────────┐  small slices
//!                                          └ 0 │ 1 │ 2 │ … │ 31 ┘  large ones, by the hash of keys
//! window triggers ─▶ all runs of its slices ─▶ fit: merged ─▶ rows
//!                                       └▶ else: 32 partitions by another hash, each as before
//! ```
//!
//! One partition is put together at a time ([`groups`]), so that a window may have any number of
//! groups. Nothing is read back before its window triggers.
//!
//! Operators that keep rows write them by the same [`SpillStore`]: a batch is of groups or of rows,
//! of one input, and of one hash partition or of all keys ([`store`]). What does not fit is
//! processed partition by partition, and split again ([`partitions`]), whichever it is.
//!
//! What lies on the disk is of use to nobody else and to no later run: it is no checkpoint. Where
//! everything is, and its checksum, is known in memory alone; a byte that is not what was written
//! is an error, never a row.

pub(crate) mod groups;
mod partitions;
mod section;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Debug;
use std::io;

pub use self::partitions::{SpillPartition, SpillPartitions};
pub(crate) use self::store::SpillRun;
pub use self::store::{SpillStore, SpillWriter, SpilledBatch};

/// Into how many partitions a hash splits what does not fit.
const PARTITIONS: u8 = 32;

/// A place for state beyond memory.
pub trait Disk: Send + Sync + Debug {
    /// A new file without bytes.
    ///
    /// # Errors
    /// Why there can be none.
    fn create(&self) -> io::Result<Box<dyn DiskFile>>;
}

/// A file of spilled state. It is gone when this is dropped.
pub trait DiskFile: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> String;

    /// Writes all of `bytes` behind what it has.
    ///
    /// # Errors
    /// Why they are not all there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Nothing will be appended any more.
    ///
    /// # Errors
    /// Why what was appended is not there.
    fn finish(&mut self) -> io::Result<()>;

    /// Fills `bytes` with those from `at` on.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()>;
}

/// Bytes written to disk and read back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spilled {
    /// Runs written.
    pub runs: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Bytes read back.
    pub read_bytes: u64,
}
