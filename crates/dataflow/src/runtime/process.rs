//! The workers of one process, and what they share: the queues by which they hand each other rows
//! (Q7), and tables that each of them looks up (W1).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use arrow::record_batch::RecordBatch;
use channel::RingConfig;

use crate::error::DataflowError;
use crate::pairing::Hashed;
use crate::runtime::local_exchange::{End, Parker, Queue};

/// The process of a worker. Workers `rank · n .. (rank + 1) · n` are those of process `rank`.
#[derive(Debug)]
pub struct Process {
    rank: u32,
    workers: u32,
    /// By giver and taker.
    queues: Vec<Arc<Queue>>,
    /// By worker.
    parkers: Vec<Arc<Parker>>,
    /// By operator the table that its workers share, when it was made.
    tables: Mutex<BTreeMap<u32, Slot>>,
    /// By operator the newest table in place of the one that was read first, and its number.
    refreshed: Mutex<BTreeMap<u32, (u64, Arc<Hashed>)>>,
    /// By operator the rows of a table that its workers read for one another.
    gathered: Mutex<BTreeMap<u32, Gathered>>,
}

/// Rows that the workers of a process have read.
#[derive(Debug, Default)]
struct Gathered {
    rows: Vec<RecordBatch>,
    /// Whether one of them has not read all of its part.
    is_cut: bool,
    /// Wakes those that have read their parts.
    done: Vec<Waker>,
    /// How many have asked for the rows since.
    given: usize,
}

/// Where a table comes. It is dropped when no worker uses it any more.
type Slot = Arc<Mutex<Weak<Hashed>>>;

impl Process {
    /// Process number `rank` of a job in which each process has so many workers; shared by them for
    /// one run.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(rank: u32, workers: u32) -> std::io::Result<Arc<Self>> {
        let queues = (0..workers * workers).map(|_| Arc::default()).collect();
        let parkers = (0..workers).map(|_| Ok(Arc::new(Parker::new()?)));
        let parkers = parkers.collect::<std::io::Result<_>>()?;
        let (tables, gathered) = (Mutex::default(), Mutex::default());
        let refreshed = Mutex::default();
        Ok(Arc::new(Self { rank, workers, queues, parkers, tables, refreshed, gathered }))
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
    pub fn relay_of(&self, rank: u32, source: u32) -> u32 {
        rank * self.workers + source % self.workers
    }

    /// The end of `worker` of what joins it with `other`, both of this process, in place of rings
    /// of these dimensions.
    pub(crate) fn end(&self, worker: u32, other: u32, ring: RingConfig) -> End {
        let (out, into) = (self.queue(worker, other), self.queue(other, worker));
        End::new(out, into, self.parker(other), ring)
    }

    /// The sleep of a worker of this process.
    pub(crate) fn parker(&self, worker: u32) -> Arc<Parker> {
        self.parkers[(worker - self.workers().start) as usize].clone()
    }

    /// The table of an operator, which the first worker that asks for it makes; the others wait
    /// for it meanwhile. A worker that asks when all others have dropped it makes it anew.
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
        if let Some(table) = slot.upgrade() {
            return Ok(table);
        }
        let table = Arc::new(make()?);
        *slot = Arc::downgrade(&table);
        Ok(table)
    }

    /// A worker has read a newer version of the table of an operator.
    pub(crate) fn refresh(&self, operator: u32, table: Arc<Hashed>) {
        let mut refreshed = lock(&self.refreshed);
        let number = refreshed.get(&operator).map_or(0, |(number, _)| *number) + 1;
        refreshed.insert(operator, (number, table));
    }

    /// The newest table of an operator and its number, unless it is the one of the number `seen`.
    pub(crate) fn refreshed(&self, operator: u32, seen: u64) -> Option<(u64, Arc<Hashed>)> {
        lock(&self.refreshed).get(&operator).filter(|(number, _)| *number != seen).cloned()
    }

    /// A worker has read its part of a table; the last one wakes all. It gives `None` if it was
    /// stopped before the end of its part.
    pub(crate) fn gather(&self, operator: u32, rows: Option<Vec<RecordBatch>>, waker: Waker) {
        let mut gathered = lock(&self.gathered);
        let Gathered { rows: all, is_cut, done, .. } = gathered.entry(operator).or_default();
        *is_cut |= rows.is_none();
        all.extend(rows.into_iter().flatten());
        done.push(waker);
        if done.len() == self.workers as usize {
            done.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// The rows that its workers have read of a table, when each has ended its part: for each
    /// worker once. They are `None` if some are missing.
    pub(crate) fn gathered(&self, operator: u32) -> Option<Option<Vec<RecordBatch>>> {
        let mut gathered = lock(&self.gathered);
        let Gathered { rows, is_cut, done, given } = gathered.get_mut(&operator)?;
        if done.len() < self.workers as usize {
            return None;
        }
        *given += 1;
        let is_whole = !*is_cut;
        let rows = if *given < done.len() {
            rows.clone()
        } else {
            gathered.remove(&operator).map_or(vec![], |of| of.rows)
        };
        Some(is_whole.then_some(rows))
    }

    fn queue(&self, from: u32, to: u32) -> Arc<Queue> {
        let first = self.workers().start;
        let at = (from - first) * self.workers + (to - first);
        self.queues[at as usize].clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
