//! The workers of one process, and what they hand to each other without copying it (W1).
//!
//! Workers of a process are joined by rings like any others. Rows that several of them need are not
//! written into each of these: they are put on a shelf here, by reference, and an empty frame in
//! the ring says that they are there. So the ring's order, credit and wake-up hold for them too.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::record_batch::RecordBatch;

use crate::error::DataflowError;
use crate::pairing::Hashed;

/// The process of a worker. Workers `rank · n .. (rank + 1) · n` are those of process `rank`.
#[derive(Debug)]
pub struct Process {
    rank: u32,
    workers: u32,
    /// By giver and taker. As many as the ring between the two has slots, at most.
    shelves: Vec<Mutex<VecDeque<RecordBatch>>>,
    /// By operator the table that its workers share, when it was made.
    tables: Mutex<BTreeMap<u32, Slot>>,
}

/// Where a table comes.
type Slot = Arc<Mutex<Option<Arc<Hashed>>>>;

impl Process {
    /// Process number `rank` of a job in which each process has so many workers; shared by them.
    pub fn new(rank: u32, workers: u32) -> Arc<Self> {
        let shelves = (0..workers * workers).map(|_| Mutex::default()).collect();
        Arc::new(Self { rank, workers, shelves, tables: Mutex::default() })
    }

    /// Its number.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Its workers.
    pub fn workers(&self) -> Range<u32> {
        self.rank * self.workers..(self.rank + 1) * self.workers
    }

    /// The process of any worker.
    pub fn rank_of(&self, worker: u32) -> u32 {
        worker / self.workers
    }

    /// The worker that takes for a process what `source` gives out, so that the work is spread.
    pub fn agent(&self, rank: u32, source: u32) -> u32 {
        rank * self.workers + source % self.workers
    }

    /// Puts a batch onto the shelf between two workers of this process.
    pub(crate) fn hand(&self, from: u32, to: u32, batch: RecordBatch) {
        self.shelf(from, to).push_back(batch);
    }

    /// Takes the first batch that was handed over and not taken.
    pub(crate) fn take(&self, from: u32, to: u32) -> Option<RecordBatch> {
        self.shelf(from, to).pop_front()
    }

    /// The table of an operator, which the first worker that asks for it makes; the others wait
    /// for it meanwhile.
    ///
    /// # Errors
    /// When it cannot be made. Then the next one tries.
    pub(crate) fn table(
        &self,
        operator: u32,
        make: impl FnOnce() -> Result<Hashed, DataflowError>,
    ) -> Result<Arc<Hashed>, DataflowError> {
        let slot = lock(&self.tables).entry(operator).or_default().clone();
        let mut slot = lock(&slot);
        if let Some(table) = &*slot {
            return Ok(table.clone());
        }
        let table = Arc::new(make()?);
        *slot = Some(table.clone());
        Ok(table)
    }

    fn shelf(&self, from: u32, to: u32) -> MutexGuard<'_, VecDeque<RecordBatch>> {
        let first = self.workers().start;
        let at = (from - first) * self.workers + (to - first);
        lock(&self.shelves[at as usize])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
