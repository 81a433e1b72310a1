//! Builds that are multicast (I6): each strip of a table in memory that the processes share is read
//! by one of them, which passes its rows on to those that need them.
//!
//! ```text
//!   memory servers ── each strip once ──▶ one process ── broadcast edge ──▶ the processes that
//!                                                                           need its partition
//! ```
//!
//! Memory servers stay passive. What leaves them does not grow with the processes, as it does where
//! each of them pulls the table; the processes send to each other instead, along the tree of the
//! broadcast, or where each needs some partitions to those that need them.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;

use super::{GridAxis, MultiPartitioner};
use crate::connector::source::RowBuckets;
use crate::error::DataflowError;
use crate::job::worker_set::WorkerSet;

/// How a build is multicast.
#[derive(Clone, Default)]
pub struct BuildMulticast {
    /// Where each process needs some buckets of the build: which ones. All need all if there is
    /// nothing here.
    pub cells: Option<Arc<BuildCells>>,
}

/// The processes that need the rows of a build, by the buckets of a key.
pub struct BuildCells {
    /// The key, a column of the build.
    pub key: usize,
    /// Finds the bucket of a value.
    pub buckets: Arc<dyn RowBuckets>,
    /// The number of buckets, as a power of two.
    pub bits: u8,
    /// The parts of the buckets, and which process needs which.
    pub axis: GridAxis,
    /// The processes, each of which has as many workers as another.
    pub processes: u32,
}

impl BuildCells {
    /// By part: the workers of the processes that need it.
    fn workers_of_parts(&self, workers: u32) -> Vec<WorkerSet> {
        let each = workers / self.processes.max(1);
        let of_part = |part: u32| {
            let needs = |rank: &u32| self.axis.part_of(*rank) == part;
            let ranks = (0..self.processes).filter(needs);
            ranks.flat_map(|rank| rank * each..(rank + 1) * each).collect()
        };
        (0..self.axis.parts.max(1)).map(of_part).collect()
    }
}

impl MultiPartitioner for BuildCells {
    fn partition(
        &self,
        batch: &RecordBatch,
        workers: u32,
        to: &mut Vec<WorkerSet>,
    ) -> Result<(), DataflowError> {
        let mut buckets = vec![];
        let found = self.buckets.of_values(batch.column(self.key), &mut buckets);
        found.map_err(DataflowError::Expression)?;
        let sets = self.workers_of_parts(workers);
        let parts = u64::from(self.axis.parts);
        let part = |bucket: u32| ((u64::from(bucket) * parts) >> self.bits) as usize;
        to.extend(buckets.into_iter().map(|bucket| sets[part(bucket)].clone()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    /// A value is its bucket.
    struct Itself;

    impl RowBuckets for Itself {
        fn of_values(&self, column: &ArrayRef, to: &mut Vec<u32>) -> Result<(), String> {
            to.extend(column.as_primitive::<Int64Type>().values().iter().map(|of| *of as u32));
            Ok(())
        }
    }

    #[test]
    fn a_row_goes_to_all_workers_of_the_processes_whose_cell_has_its_bucket() {
        // Four processes of two workers in a grid of two by two; eight buckets.
        let cells = |stride: u32| BuildCells {
            key: 0,
            buckets: Arc::new(Itself),
            bits: 3,
            axis: GridAxis { column: 0, parts: 2, stride },
            processes: 4,
        };
        let keys: ArrayRef = Arc::new(Int64Array::from(vec![0, 3, 4, 7]));
        let batch = RecordBatch::try_from_iter([("k", keys)]).unwrap();
        let of = |stride: u32| {
            let mut sets = vec![];
            cells(stride).partition(&batch, 8, &mut sets).unwrap();
            sets.iter().map(|set| set.iter().collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        let (even, odd) = (vec![0, 1, 4, 5], vec![2, 3, 6, 7]);
        assert_eq!(of(1), [even.clone(), even, odd.clone(), odd]);
        let (low, high) = (vec![0, 1, 2, 3], vec![4, 5, 6, 7]);
        assert_eq!(of(2), [low.clone(), low, high.clone(), high]);
    }
}
