//! How far a running job is: every node tells rank 0, which adds up.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::Control;
use dataflow::job::{JobGraph, readers};
use dataflow::metrics::{Counters, Snapshot, finite_watermark};

use crate::checkpoints::CheckpointProgress;
use crate::error::Error;
use crate::links::NodeLayout;
use crate::report::{JobProgress, NodeCounters, Report};
use crate::script::Job;

/// An observer of running jobs. A closure that takes [`JobProgress`] is one.
pub trait Observer: Sync {
    /// A job is about to run.
    fn started(&self, _job: &Job) {}

    /// All workers of all nodes have opened their flows; the first row is read when this returns.
    /// On every node that has an observer.
    fn opened(&self) {}

    /// The progress of the running job: a few times a second, on node 0.
    fn progress(&self, progress: &JobProgress);

    /// A line for the user about the checkpoints of the job that begins, on node 0.
    fn recovers(&self, _line: &str) {}

    /// A job has ended.
    fn ended(&self, _result: &Result<Report, Error>) {}
}

impl<F: Fn(&JobProgress) + Sync> Observer for F {
    fn progress(&self, progress: &JobProgress) {
        self(progress);
    }
}

/// The progress of a job, as one node sees it.
pub(crate) struct ProgressWatch<'a> {
    control: &'a Control,
    per_node: u32,
    start: Instant,
    whole: Option<Whole>,
}

/// How much there is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    Rows(u64),
    Flows(u64),
}

impl<'a> ProgressWatch<'a> {
    pub(crate) fn new(control: &'a Control, job: &JobGraph, layout: NodeLayout) -> Self {
        let whole = (control.rank() == 0).then(|| Whole::of(job, layout.workers())).flatten();
        Self { control, per_node: layout.per_node, start: Instant::now(), whole }
    }

    /// Tells rank 0 of this node; at rank 0, tells `to` of all.
    pub(crate) fn report(
        &mut self,
        own: &NodeCounters,
        checkpoints: Option<CheckpointProgress>,
        to: Option<&dyn Observer>,
    ) {
        if self.control.rank() != 0 {
            self.control.publish(&own.encode());
            return;
        }
        let Some(to) = to else { return };
        let (mut counters, mut bad) = (own.total, own.bad);
        let mut workers: Vec<_> = own.workers(0, self.per_node).collect();
        for rank in 1..self.control.nodes() {
            let latest = self.control.latest(rank);
            match latest.and_then(|bytes| NodeCounters::decode(&mut &bytes[..])) {
                Some(node) => {
                    counters.add(&node.total);
                    bad = bad.saturating_add(node.bad);
                    workers.extend(node.workers(rank, self.per_node));
                }
                None => counters.watermark_ms = i64::MIN,
            }
        }
        to.progress(&JobProgress {
            elapsed: self.start.elapsed(),
            counters,
            bad,
            workers,
            done: self.whole.map(|whole| whole.done(&counters)),
            lag: lag(counters.watermark_ms),
            checkpoints,
        });
    }
}

impl Whole {
    /// `None` where a source has no end, or does not tell.
    fn of(job: &JobGraph, workers: u32) -> Option<Self> {
        let mut rows = Some(0);
        let mut flows = 0;
        let only = job.settings.only_readers(workers);
        let readers = readers(&job.operators, only, workers);
        for input in job.inputs() {
            if !input.bounded() {
                return None;
            }
            for flow in input.splits(readers).ok()? {
                rows = rows.zip(flow.rows).map(|(sum, rows)| sum + rows);
                flows += 1;
            }
        }
        Some(rows.map_or(Whole::Flows(flows), Whole::Rows))
    }

    fn done(self, counters: &Counters) -> f64 {
        let (done, whole) = match self {
            Whole::Rows(rows) => (counters.rows_in, rows),
            Whole::Flows(flows) => (counters.splits_done, flows),
        };
        if whole == 0 { 1.0 } else { (done as f64 / whole as f64).min(1.0) }
    }
}

/// How far the watermark is behind the machine's clock.
fn lag(watermark_ms: i64) -> Option<Duration> {
    let watermark_ms = finite_watermark(watermark_ms)?;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_millis() as i64;
    Some(Duration::from_millis(now_ms.saturating_sub(watermark_ms).max(0) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_is_done_is_never_more_than_all() {
        let counters = Counters { rows_in: 30, splits_done: 1, ..Counters::default() };
        assert_eq!(Whole::Rows(120).done(&counters), 0.25);
        assert_eq!(Whole::Rows(20).done(&counters), 1.0);
        assert_eq!(Whole::Flows(4).done(&counters), 0.25);
        assert_eq!(Whole::Rows(0).done(&counters), 1.0);
    }

    #[test]
    fn there_is_no_lag_without_a_watermark() {
        assert_eq!(lag(i64::MIN), None);
        assert_eq!(lag(i64::MAX), None);
        assert!(lag(0).unwrap() > Duration::from_secs(1_700_000_000));
        assert_eq!(lag(i64::MAX - 1), Some(Duration::ZERO));
    }
}
