//! How the checkpoints of a job stand, for those who watch it.

use std::time::Duration;

use checkpoint::CheckpointManifest;
use dataflow::metrics::WorkerCounters;

/// The name under which a manifest counts rows that came late since the job began.
pub(crate) const LATE: &str = "late";
/// The same of rows that could not be read.
pub(crate) const BAD: &str = "bad";

/// The checkpoints of a job, at node 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckpointProgress {
    /// The checkpoint that the job would go on from after a failure.
    pub last: Option<LastCheckpoint>,
    /// Checkpoints that this run has stored.
    pub stored: u64,
    /// Checkpoints that this run has given up, because a part or the record could not be stored.
    pub given_up: u64,
    /// Checkpoints that were given up since the last one was stored.
    pub given_up_since: u64,
    /// The round that is being saved.
    pub pending: Option<PendingCheckpoint>,
    /// The checkpoint that this run went on from.
    pub restored: Option<RestoredCheckpoint>,
    /// How often the run was started again before, after a failure.
    pub restarts: u32,
}

/// The last checkpoint that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastCheckpoint {
    /// Its number: that of the round that it ends.
    pub number: u64,
    /// Bytes of its segments.
    pub bytes: u64,
    /// The time since its round was ended, or since this run went on from it: what was read in it
    /// is read again after a failure.
    pub age: Duration,
    /// The time from the end of its round until its output was visible; `None` if another run has
    /// stored it.
    pub duration: Option<Duration>,
}

/// The checkpoint that a run went on from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestoredCheckpoint {
    /// Its number.
    pub number: u64,
    /// Bytes of its segments.
    pub bytes: u64,
    /// Rows that had come late since the job began.
    pub late: u64,
    /// Rows that could not be read since the job began.
    pub bad: u64,
}

impl RestoredCheckpoint {
    pub(crate) fn of(manifest: &CheckpointManifest) -> Self {
        let count = |name: &str| manifest.counters.get(name).copied().unwrap_or(0);
        Self {
            number: manifest.number,
            bytes: manifest.all_segments().map(|segment| segment.bytes).sum(),
            late: count(LATE),
            bad: count(BAD),
        }
    }
}

/// A round that was ended, and whose checkpoint is not stored yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingCheckpoint {
    /// The round.
    pub round: u64,
    /// The time since it was ended.
    pub since: Duration,
    /// The nodes that have not stored their part; none where the record is being written.
    pub nodes: Vec<u32>,
}

/// A reason why a checkpoint is not stored yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointWait {
    /// A worker has not saved an operator.
    Worker {
        /// The worker.
        worker: u32,
        /// The first operator of the plan that it has not saved; `None` where that is not reported.
        operator: Option<usize>,
    },
    /// A node stores what its workers have saved.
    Node {
        /// The node.
        node: u32,
    },
    /// The record is written, and output is made visible.
    Record,
}

impl CheckpointProgress {
    /// The workers, nodes or record for which the checkpoint under way waits. A worker that itself
    /// waits for the marker of another one is left out. Empty where no checkpoint is under way.
    pub fn waits(&self, workers: &[WorkerCounters]) -> Vec<CheckpointWait> {
        let Some(PendingCheckpoint { round, nodes, .. }) = &self.pending else { return vec![] };
        if nodes.is_empty() {
            return vec![CheckpointWait::Record];
        }
        let unsaved = workers
            .iter()
            .filter(|worker| nodes.contains(&worker.node) && worker.counters.saved_round < *round);
        // An operator that has not saved may wait for those in front of it in the plan.
        let unsaved = unsaved.map(|worker| {
            let operators = &worker.operators;
            let operator = operators.iter().position(|operator| operator.saved_round < *round);
            (operator.unwrap_or(usize::MAX), worker.worker)
        });
        let unsaved: Vec<(usize, u32)> = unsaved.collect();
        let Some(first) = unsaved.iter().map(|(operator, _)| *operator).min() else {
            return nodes.iter().map(|&node| CheckpointWait::Node { node }).collect();
        };
        let waits = unsaved.into_iter().filter(|(operator, _)| *operator == first);
        let operator = (first != usize::MAX).then_some(first);
        waits.map(|(_, worker)| CheckpointWait::Worker { worker, operator }).collect()
    }
}

#[cfg(test)]
mod tests {
    use dataflow::metrics::{Counters, OperatorCounters, WorkerCounters};

    use super::*;

    /// The rounds that a worker's operators have saved.
    fn worker(node: u32, worker: u32, saved: &[u64]) -> WorkerCounters {
        let operator = |&saved_round| OperatorCounters { saved_round, ..Default::default() };
        let saved_round = saved.iter().copied().min().unwrap_or(0);
        WorkerCounters {
            node,
            worker,
            counters: Counters { saved_round, ..Default::default() },
            operators: saved.iter().map(operator).collect(),
        }
    }

    fn waits(workers: &[WorkerCounters], nodes: &[u32]) -> Vec<CheckpointWait> {
        let nodes = nodes.to_vec();
        let pending = Some(PendingCheckpoint { round: 7, since: Duration::from_secs(3), nodes });
        CheckpointProgress { pending, ..CheckpointProgress::default() }.waits(workers)
    }

    #[test]
    fn a_round_waits_for_the_first_of_the_plan_that_has_not_saved() {
        let wait = |worker, operator| CheckpointWait::Worker { worker, operator };
        // Worker 2 waits for the marker of worker 1, whose source has not come to it.
        let (ended, done) = (u64::MAX, 7);
        let workers = [
            worker(0, 0, &[done, done, done]),
            worker(1, 1, &[6, 6, 6]),
            worker(1, 2, &[ended, 6, 6]),
        ];
        assert_eq!(waits(&workers, &[1]), [wait(1, Some(0))]);
        assert_eq!(waits(&workers, &[0]), [CheckpointWait::Node { node: 0 }]);
        assert_eq!(waits(&workers, &[]), [CheckpointWait::Record]);
        assert_eq!(waits(&[worker(0, 0, &[]), worker(0, 1, &[0, 0])], &[0]), [wait(1, Some(0))]);
        assert_eq!(waits(&[worker(0, 0, &[])], &[0]), [wait(0, None)]);
        assert_eq!(CheckpointProgress::default().waits(&workers), []);
    }
}
