//! The stall of a worker while a checkpoint is taken, and the time until the checkpoint is stored.
//!
//! The stall is the greatest gap between two reads near a mark, less the median of the gaps that
//! are near none: see [`input`](super::input). A checkpoint is stored when its record is in the
//! chain; its time counts from its first mark.

use std::time::Instant;

use super::estimate::{median, quantile};
use super::input::Gap;
use super::job::{Enough, JobRun, JobShape, Jobs};
use super::{GROUP_BYTES, RecoveryPlan, StateDirectory};
use crate::report::Bar;
use crate::run::BenchError;
use crate::workload::Workload;

/// Rows of the input for each group, so that nearly all groups occur.
const ROWS_OF_GROUP: u64 = 3;
/// Nanoseconds of event time between two rows: so few that no window ends.
const INTERVAL_NS: u64 = 1;
/// Checkpoints at the beginning that are left out, since groups are still added.
const WARM_UP: usize = 2;
/// The least number of checkpoints that a percentile is taken from.
const CHECKPOINTS_MIN: usize = 10;
/// The longest time of a run, as a multiple of what its checkpoints need.
const TIMEOUT_FACTOR: f64 = 20.0;
/// The shortest such time in seconds: a disk that others use may need some for one checkpoint.
const TIMEOUT_MIN: f64 = 60.0;

/// The groups, and the most milliseconds that a worker may stall, at scale 1.
pub(super) const STALLS: [(f64, f64); 3] = [(100e3, 1.0), (1e6, 10.0), (10e6, 60.0)];
/// The bytes of groups that a checkpoint has whose time is measured, at scale 1, and the most
/// milliseconds.
pub(super) const STORED: (f64, f64) = (100e6, 300.0);

/// The figures of a job whose groups all change between two checkpoints.
#[derive(Debug, Clone)]
pub(super) struct StallOutcome {
    pub(super) groups: u64,
    /// Milliseconds of each mark, by the clock.
    pub(super) stalls: Vec<f64>,
    /// The same by processor time, which other load of the machine does not lengthen.
    pub(super) worked: Vec<f64>,
    /// Milliseconds from the first mark of each checkpoint until it was stored.
    pub(super) stored: Vec<f64>,
    /// The median of the bytes of a checkpoint.
    pub(super) bytes: f64,
    /// The median gap that is near no mark, in milliseconds.
    pub(super) usual: f64,
    /// Million rows a second.
    pub(super) rate: f64,
}

/// A job that counts the rows of `groups` groups, in one window that does not end.
pub(super) fn shape(plan: &RecoveryPlan, groups: u64) -> JobShape {
    JobShape {
        workload: Workload::YsbKeys,
        keys: groups,
        hashed: false,
        rows: groups * ROWS_OF_GROUP,
        laps: 1_000_000,
        interval_ns: Some(INTERVAL_NS),
        workers: plan.workers,
    }
}

/// Runs the job until it has as many checkpoints as the plan asks for.
///
/// # Errors
/// The first failure.
pub(super) fn measure(
    plan: &RecoveryPlan,
    jobs: &Jobs,
    groups: u64,
) -> Result<StallOutcome, BenchError> {
    let directory = StateDirectory::new(&plan.directory)?;
    let seconds = plan.stall_seconds;
    let records = 1 + WARM_UP + plan.checkpoints as usize;
    let seconds_max = TIMEOUT_MIN.max(seconds * TIMEOUT_FACTOR * records as f64);
    let enough = Enough { records, seconds: 0.0, seconds_max };
    let interval = format!("{} ms", (seconds * 1e3).max(1.0) as u64);
    let run = jobs.saved(&shape(plan, groups), &interval, directory.path(), Some(enough))?;
    Ok(StallOutcome::of(groups, &run))
}

impl StallOutcome {
    fn of(groups: u64, run: &JobRun) -> Self {
        let passed = |gap: &Gap| gap.passed.as_secs_f64() * 1e3;
        let worked = |gap: &Gap| gap.worked.as_secs_f64() * 1e3;
        let usual: Vec<f64> = run.observed.usual.iter().map(passed).collect();
        let usual_work: Vec<f64> = run.observed.usual.iter().map(worked).collect();
        let (usual, usual_work) = (median(&usual), median(&usual_work));
        let mut marks = run.observed.marks.clone();
        marks.sort_by_key(|mark| mark.at);
        let (mut stalls, mut works) = (Vec::new(), Vec::new());
        let (mut stored, mut bytes) = (Vec::new(), Vec::new());
        // The first record is that of the beginning of the run.
        let records = run.records.iter().zip(run.records.iter().skip(1));
        for (before, record) in records.skip(WARM_UP) {
            let of = |at: Instant| before.at < at && at <= record.at;
            let own: Vec<_> = marks.iter().filter(|mark| of(mark.at)).collect();
            // No reads follow the marks of the last checkpoint of a job that ends.
            let Some(first) = own.first() else { continue };
            stalls.extend(own.iter().map(|mark| (passed(&mark.gap) - usual).max(0.0)));
            works.extend(own.iter().map(|mark| (worked(&mark.gap) - usual_work).max(0.0)));
            stored.push((record.at - first.at).as_secs_f64() * 1e3);
            bytes.push(record.bytes as f64);
        }
        let rate = run.rows_in as f64 / run.elapsed.as_secs_f64().max(1e-9) / 1e6;
        Self { groups, stalls, worked: works, stored, bytes: median(&bytes), usual, rate }
    }

    /// The 99th percentile of the stalls against a limit.
    pub(super) fn stall_bar(&self, limit_ms: f64) -> Bar {
        let what = format!("stall of a worker, p99, {} groups", self.groups);
        bar(what, limit_ms, &self.stalls)
    }

    /// The 99th percentile of the times until a checkpoint was stored against a limit.
    pub(super) fn stored_bar(&self, limit_ms: f64) -> Bar {
        let megabytes = self.groups as f64 * GROUP_BYTES / 1e6;
        let what = format!("a checkpoint of {megabytes:.1} MB that changed, local disk, p99");
        bar(what, limit_ms, &self.stored)
    }

    /// The figures as cells, for the columns of [`COLUMNS`].
    pub(super) fn row(&self) -> Vec<String> {
        let of = |values: &[f64], share| {
            quantile(values, share).map_or("–".into(), |ms: f64| format!("{ms:.2}"))
        };
        vec![
            self.groups.to_string(),
            format!("{:.2}", self.bytes / 1e6),
            self.stored.len().to_string(),
            format!("{:.1}", self.rate),
            format!("{:.3}", self.usual),
            of(&self.stalls, 0.5),
            of(&self.stalls, 0.99),
            of(&self.worked, 0.99),
            of(&self.stored, 0.5),
            of(&self.stored, 0.99),
        ]
    }
}

/// The columns of the table of stalls; times are milliseconds.
pub(super) const COLUMNS: [&str; 10] = [
    "groups",
    "MB",
    "checkpoints",
    "M rows/s",
    "usual gap",
    "stall p50",
    "p99",
    "worked p99",
    "stored p50",
    "p99",
];

/// The 99th percentile of milliseconds against a limit.
pub(super) fn bar(what: String, limit_ms: f64, values: &[f64]) -> Bar {
    let enough = values.len() >= CHECKPOINTS_MIN;
    let p99 = quantile(values, 0.99);
    let of = format!("of {}", values.len());
    let got = match p99 {
        Some(ms) if values.len() >= 100 => format!("{ms:.2} ms ({of})"),
        Some(ms) => format!("{ms:.2} ms (the greatest {of})"),
        None => "no checkpoint".into(),
    };
    let met = p99.filter(|_| enough).map(|ms| ms <= limit_ms);
    Bar { what, needed: format!("≤ {limit_ms} ms"), got, met }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slow_ones_of_a_hundred_fail_a_bar_and_few_tell_nothing() {
        let mut values = [1.0; 100];
        values[17] = 80.0;
        assert_eq!(bar("stall".into(), 60.0, &values).met, Some(true));
        values[18] = 70.0;
        let failed = bar("stall".into(), 60.0, &values);
        assert_eq!((failed.met, &*failed.got), (Some(false), "70.00 ms (of 100)"));
        let greatest = bar("stall".into(), 60.0, &values[..20]);
        assert_eq!((greatest.met, &*greatest.got), (Some(false), "80.00 ms (the greatest of 20)"));
        assert_eq!(bar("stall".into(), 60.0, &values[..9]).met, None);
        assert_eq!(bar("stall".into(), 60.0, &[]).met, None);
    }
}
