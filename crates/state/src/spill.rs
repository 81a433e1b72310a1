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
//!                                       └▶ else: 32 piles by another hash, each as before
//! ```
//!
//! What is put together at a time is one pile ([`gather`]), so that a window may have any number of
//! groups. Nothing is read back before its window triggers.
//!
//! What lies on the disk is of use to nobody else and to no later run: it is no checkpoint. Where
//! everything is, and its checksum, is known in memory alone; a byte that is not what was written
//! is an error, never a row.

pub(crate) mod gather;
pub(crate) mod rows;
pub(crate) mod run;
mod section;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use self::section::SpillCounters;
use crate::GroupBy;

/// Into how many parts a hash splits what does not fit.
pub(crate) const PARTS: u32 = 32;

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

/// How the groups of an operator lie on a disk.
#[derive(Debug)]
pub(crate) struct Store {
    disk: Arc<dyn Disk>,
    pub(crate) spec: Arc<GroupBy>,
    /// Keys and states: views and dictionaries as plain values.
    schema: SchemaRef,
    counters: SpillCounters,
}

impl Store {
    pub(crate) fn new(disk: Arc<dyn Disk>, spec: &Arc<GroupBy>) -> Self {
        let types = spec.keys.iter().cloned().chain(spec.state_types());
        let field = |(at, of): (usize, DataType)| Field::new(at.to_string(), of, true);
        let schema = Schema::new(types.enumerate().map(field).collect::<Vec<_>>());
        let (schema, counters) = (section::plain_schema(&schema), SpillCounters::default());
        Self { disk, spec: Arc::clone(spec), schema, counters }
    }

    /// Bytes written and read so far.
    pub(crate) fn spilled(&self) -> Spilled {
        self.counters.spilled()
    }
}
