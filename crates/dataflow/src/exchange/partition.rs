//! Which worker each row goes to.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use state::{Frequent, Partitioner};

use crate::error::DataflowError;
use crate::job::{RowPartitioner, halves};

/// The leader of all rows where there are no keys.
const KEYLESS_LEADER: u32 = 0;

/// A function from rows to workers.
pub(crate) struct Partition {
    worker: u32,
    workers: u32,
    by: By,
}

enum By {
    /// A hash of key columns, to all workers or to half of them.
    Key { keys: Vec<usize>, partitioner: RefCell<Partitioner>, halved: bool },
    /// A function.
    Function(Arc<dyn RowPartitioner>),
    /// Each worker in turn: the next one.
    RoundRobin(Cell<u32>),
}

impl Partition {
    /// By the columns `keys`; without any all rows go to one worker.
    pub(crate) fn by_key(keys: &[usize], worker: u32, workers: u32) -> Self {
        let partitioner = RefCell::new(Partitioner::new(workers));
        Self { worker, workers, by: By::Key { keys: keys.to_vec(), partitioner, halved: false } }
    }

    /// The same, where half of the workers lead keys.
    pub(super) fn by_half(keys: &[usize], worker: u32, workers: u32) -> Self {
        let partitioner = RefCell::new(Partitioner::new(halves::leaders(workers)));
        Self { worker, workers, by: By::Key { keys: keys.to_vec(), partitioner, halved: true } }
    }

    /// The same as groups are led that are merged: neighbouring integers have one leader.
    pub(crate) fn in_blocks(keys: &[usize], worker: u32, workers: u32) -> Self {
        let partitioner = RefCell::new(Partitioner::in_blocks(workers));
        Self { worker, workers, by: By::Key { keys: keys.to_vec(), partitioner, halved: false } }
    }

    /// By a function.
    pub(crate) fn by_function(
        partitioner: Arc<dyn RowPartitioner>,
        worker: u32,
        workers: u32,
    ) -> Self {
        Self { worker, workers, by: By::Function(partitioner) }
    }

    /// One row to each worker, beginning with this one.
    pub(crate) fn in_turn(worker: u32, workers: u32) -> Self {
        Self { worker, workers, by: By::RoundRobin(Cell::new(worker)) }
    }

    /// The number that stands for rows that are set apart.
    pub(super) fn apart(&self) -> u32 {
        self.workers
    }

    /// The worker of each row; [`Partition::apart`] for rows of others whose keys are frequent.
    ///
    /// # Errors
    /// When a key cannot be hashed, or a function fails or names a worker that there is not.
    pub(crate) fn owners(
        &self,
        batch: &RecordBatch,
        frequent: Option<&RefCell<Frequent>>,
        owners: &mut Vec<u32>,
    ) -> Result<(), DataflowError> {
        match &self.by {
            By::RoundRobin(turn) => {
                let first = u64::from(turn.get());
                let next = |row: usize| ((first + row as u64) % u64::from(self.workers)) as u32;
                owners.clear();
                owners.extend((0..batch.num_rows()).map(next));
                turn.set(next(batch.num_rows()));
            }
            By::Function(partitioner) => {
                owners.clear();
                partitioner.partition(batch, self.workers, owners)?;
                self.check(batch, owners)?;
            }
            By::Key { keys, .. } if keys.is_empty() => {
                owners.clear();
                owners.resize(batch.num_rows(), KEYLESS_LEADER);
            }
            By::Key { keys, partitioner, halved } => {
                let keys: Vec<_> = keys.iter().map(|&key| batch.column(key).clone()).collect();
                let mut partitioner = partitioner.borrow_mut();
                partitioner.owners_of(&keys, owners)?;
                if *halved {
                    owners.iter_mut().for_each(|owner| *owner = halves::leader(*owner));
                }
                if let Some(frequent) = frequent {
                    let hashes = partitioner.hashes();
                    frequent.borrow_mut().redirect(hashes, owners, self.worker, self.workers);
                }
            }
        }
        Ok(())
    }

    /// Checks that a function has named one worker for each row.
    fn check(&self, batch: &RecordBatch, owners: &[u32]) -> Result<(), DataflowError> {
        let fits = owners.len() == batch.num_rows();
        if fits && owners.iter().all(|&owner| owner < self.workers) {
            return Ok(());
        }
        let message = format!(
            "a partitioner gave {} workers up to {} for {} rows, of {} workers",
            owners.len(),
            owners.iter().max().unwrap_or(&0),
            batch.num_rows(),
            self.workers
        );
        Err(DataflowError::Expression(message))
    }
}
