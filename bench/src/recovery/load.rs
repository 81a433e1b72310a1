//! The time until a job that goes on from a checkpoint reads its first row.

use super::job::{Enough, Jobs};
use super::stall::shape;
use super::{GROUP_BYTES, RecoveryPlan, StateDirectory};
use crate::report::Bar;
use crate::run::BenchError;

/// The bytes of state of a node, at scale 1, and the most seconds.
pub(super) const LOADED: (f64, f64) = ((1u64 << 30) as f64, 2.0);
/// The interval of the job that makes the state.
const INTERVAL: &str = "1 s";
/// Seconds of that job: until all groups are there, and at most.
const SECONDS: [f64; 2] = [0.5, 600.0];
/// The records of a job that has taken a checkpoint of all of its groups.
const RECORDS: usize = 4;

/// The figures of the loads of a checkpoint.
#[derive(Debug, Clone)]
pub(super) struct LoadOutcome {
    pub(super) groups: u64,
    /// The bytes of the checkpoint.
    pub(super) bytes: u64,
    /// Seconds from the start of each run to its first row.
    pub(super) seconds: Vec<f64>,
}

/// Makes a state of `groups` groups, and lets a job go on from it as often as the plan says.
///
/// # Errors
/// The first failure.
pub(super) fn measure(
    plan: &RecoveryPlan,
    jobs: &Jobs,
    groups: u64,
) -> Result<LoadOutcome, BenchError> {
    let directory = StateDirectory::new(&plan.directory)?;
    let shape = shape(plan, groups);
    let enough = Enough { records: RECORDS, seconds: SECONDS[0], seconds_max: SECONDS[1] };
    let made = jobs.saved(&shape, INTERVAL, directory.path(), Some(enough))?;
    let bytes = made.records.iter().map(|record| record.bytes).max().unwrap_or(0);
    let mut outcome = LoadOutcome { groups, bytes, seconds: Vec::new() };
    for _ in 0..plan.loads {
        // The run is stopped behind the record of its beginning; that of its stop follows.
        let enough = Enough { records: 1, seconds: 0.0, seconds_max: SECONDS[1] };
        let run = jobs.saved(&shape, "off", directory.path(), Some(enough))?;
        outcome.seconds.push(run.until_first_row.as_secs_f64());
    }
    Ok(outcome)
}

impl LoadOutcome {
    /// The slowest load against its limit.
    pub(super) fn bar(&self, limit: f64) -> Bar {
        let slowest = self.seconds.iter().copied().reduce(f64::max);
        let of_state = self.groups as f64 * GROUP_BYTES / f64::from(1 << 20);
        let stored = self.bytes as f64 / f64::from(1 << 20);
        let what = format!("load of {of_state:.1} MiB, stored as {stored:.1}, on a node");
        let got = match slowest {
            Some(seconds) => format!("{seconds:.3} s (the greatest of {})", self.seconds.len()),
            None => "no run".into(),
        };
        Bar { what, needed: format!("≤ {limit} s"), got, met: slowest.map(|s| s <= limit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_load_fails_the_bar() {
        let (groups, bytes) = (1 << 17, 1 << 20);
        let outcome = LoadOutcome { groups, bytes, seconds: vec![1.0, 2.5, 1.5] };
        let bar = outcome.bar(2.0);
        assert_eq!(
            (bar.met, &*bar.what),
            (Some(false), "load of 3.0 MiB, stored as 1.0, on a node")
        );
        assert_eq!(outcome.bar(2.5).met, Some(true));
        assert_eq!(LoadOutcome { groups: 0, bytes: 0, seconds: vec![] }.bar(2.0).met, None);
    }
}
