//! Which worker each row goes to.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use state::{Frequent, Partitioner};

use crate::error::DataflowError;
use crate::job::{RowPartitioner, halves};

/// The leader of all rows where there are no keys.
const KEYLESS_LEADER: u32 = 0;

/// The numbers of the rows of a batch by worker, and behind the last worker those of rows that are
/// set apart.
#[derive(Default)]
pub(super) struct NumbersByWorker {
    owners: Vec<u32>,
    pub(super) rows: Vec<Vec<u32>>,
}

impl NumbersByWorker {
    /// Finds those of a batch, in place of those that it has.
    ///
    /// # Errors
    /// As [`Partition::owners`].
    pub(super) fn split(
        &mut self,
        partition: &Partition,
        batch: &RecordBatch,
        frequent: Option<&RefCell<Frequent>>,
    ) -> Result<(), DataflowError> {
        partition.owners(batch, frequent, &mut self.owners)?;
        self.rows.resize_with(partition.apart() as usize + 1, Vec::new);
        self.rows.iter_mut().for_each(Vec::clear);
        for (row, &owner) in self.owners.iter().enumerate() {
            self.rows[owner as usize].push(row as u32);
        }
        Ok(())
    }
}

/// A function from rows to workers.
pub(crate) struct Partition {
    worker: u32,
    workers: u32,
    /// The workers that rows go to, from worker 0 on.
    stateful: u32,
    by: By,
}

enum By {
    /// A hash of key columns, to all workers or to half of them.
    Key { keys: Vec<usize>, partitioner: RefCell<Partitioner>, halved: bool },
    /// A function.
    Function(Arc<dyn RowPartitioner>),
    /// Each worker in turn: the next one.
    RoundRobin(Cell<u32>),
    /// One worker, for all rows.
    One(u32),
}

impl Partition {
    /// By the columns `keys`, to the first `stateful` workers; without any all rows go to one.
    pub(crate) fn by_key(keys: &[usize], worker: u32, workers: u32, stateful: u32) -> Self {
        let partitioner = RefCell::new(Partitioner::new(stateful));
        let by = By::Key { keys: keys.to_vec(), partitioner, halved: false };
        Self { worker, workers, stateful, by }
    }

    /// The same, where half of the workers lead keys.
    pub(super) fn by_half(keys: &[usize], worker: u32, workers: u32) -> Self {
        let partitioner = RefCell::new(Partitioner::new(halves::leaders(workers)));
        let by = By::Key { keys: keys.to_vec(), partitioner, halved: true };
        Self { worker, workers, stateful: workers, by }
    }

    /// The same as groups are led that are merged: neighbouring integers have one leader.
    pub(crate) fn in_blocks(keys: &[usize], worker: u32, workers: u32, stateful: u32) -> Self {
        let partitioner = RefCell::new(Partitioner::in_blocks(stateful));
        let by = By::Key { keys: keys.to_vec(), partitioner, halved: false };
        Self { worker, workers, stateful, by }
    }

    /// By a function, which knows of the first `stateful` workers.
    pub(crate) fn by_function(
        partitioner: Arc<dyn RowPartitioner>,
        worker: u32,
        workers: u32,
        stateful: u32,
    ) -> Self {
        Self { worker, workers, stateful, by: By::Function(partitioner) }
    }

    /// One row to each of the first `stateful` workers, beginning with this one.
    pub(crate) fn in_turn(worker: u32, workers: u32, stateful: u32) -> Self {
        let first = Cell::new(worker % stateful.max(1));
        Self { worker, workers, stateful, by: By::RoundRobin(first) }
    }

    /// All rows of a worker that only reads to one of the others, and those of another to itself
    /// (S16).
    pub(crate) fn to_partner(worker: u32, workers: u32, stateful: u32) -> Self {
        let partner = match worker.checked_sub(stateful) {
            Some(reader) => reader % stateful.max(1),
            None => worker,
        };
        Self { worker, workers, stateful, by: By::One(partner) }
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
                let next = |row: usize| ((first + row as u64) % u64::from(self.stateful)) as u32;
                owners.clear();
                owners.extend((0..batch.num_rows()).map(next));
                turn.set(next(batch.num_rows()));
            }
            By::Function(partitioner) => {
                owners.clear();
                partitioner.partition(batch, self.stateful, owners)?;
                self.check(batch, owners)?;
            }
            By::One(worker) => {
                owners.clear();
                owners.resize(batch.num_rows(), *worker);
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
        if fits && owners.iter().all(|&owner| owner < self.stateful) {
            return Ok(());
        }
        let message = format!(
            "a partitioner gave {} workers up to {} for {} rows, of {} workers",
            owners.len(),
            owners.iter().max().unwrap_or(&0),
            batch.num_rows(),
            self.stateful
        );
        Err(DataflowError::Expression(message))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    const KEYS: [usize; 1] = [0];

    fn owners(of: &Partition, rows: i64) -> Vec<u32> {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        let batch = RecordBatch::try_from_iter([("k", column)]).unwrap();
        let mut owners = vec![9];
        of.owners(&batch, None, &mut owners).unwrap();
        owners
    }

    #[test]
    fn rows_go_to_stateful_workers() {
        for (workers, stateful) in [(1, 1), (4, 4), (4, 3), (8, 2), (2, 1)] {
            for worker in 0..workers {
                for of in [
                    Partition::by_key(&KEYS, worker, workers, stateful),
                    Partition::in_blocks(&KEYS, worker, workers, stateful),
                    Partition::in_turn(worker, workers, stateful),
                    Partition::by_key(&[], worker, workers, stateful),
                ] {
                    assert!(owners(&of, 10_000).iter().all(|&owner| owner < stateful));
                    assert!(owners(&of, 0).is_empty());
                }
            }
            let by_key = owners(&Partition::by_key(&KEYS, 0, workers, stateful), 10_000);
            let met = (0..stateful).filter(|worker| by_key.contains(worker)).count();
            assert_eq!(met as u32, stateful, "each leads some keys");
        }
    }

    #[test]
    fn a_reader_feeds_one_stateful_worker_and_each_has_as_many_readers() {
        let partner = |worker| {
            let of = Partition::to_partner(worker, 7, 3);
            let owners = owners(&of, 5);
            assert_eq!(owners, [owners[0]; 5]);
            owners[0]
        };
        assert_eq!([3, 4, 5, 6].map(partner), [0, 1, 2, 0]);
        assert_eq!([0, 1, 2].map(partner), [0, 1, 2], "rows of a stateful worker stay");
    }

    #[test]
    fn a_function_that_names_a_worker_that_only_reads_is_an_error() {
        struct Last;
        impl RowPartitioner for Last {
            fn partition(
                &self,
                batch: &RecordBatch,
                workers: u32,
                owners: &mut Vec<u32>,
            ) -> Result<(), DataflowError> {
                owners.resize(batch.num_rows(), workers);
                Ok(())
            }
        }
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let batch = RecordBatch::try_from_iter([("k", column)]).unwrap();
        let of = Partition::by_function(Arc::new(Last), 0, 4, 3);
        let error = of.owners(&batch, None, &mut vec![]).unwrap_err().to_string();
        assert!(error.contains("of 3 workers"), "{error}");
    }
}
