//! What is asked of two processes that work together, against what the machine gives in the same
//! run: one worker alone, or two processes that have nothing to do with each other.
//!
//! A target is for two processes of one worker over shared memory, with the keys of the workload
//! and rows in columns. The run and the report of Slash's paper make the same bars of it.

use millstream::FabricKind;

use crate::report::Bar;
use crate::summary::Summary;
use crate::workload::{Workload, WorkloadSize};

/// The reference that two processes are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunLimit {
    /// One worker alone; the figure is how many times as fast they are.
    OneWorker,
    /// Two processes that have nothing to do with each other; the figure is the share of what
    /// these reach together.
    Unrelated,
}

/// A workload, its limit, and the least figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunTarget {
    /// The workload.
    pub workload: Workload,
    /// Its name in a report.
    pub name: &'static str,
    /// The options of `millstream bench` that run it.
    pub options: &'static str,
    /// The limit.
    pub limit: RunLimit,
    /// The least figure: times, or a share of 1.
    pub asked: f64,
}

/// All of them.
pub const RUN_TARGETS: [RunTarget; 5] = [
    target(Workload::Nb8, "NB8", "nb8", RunLimit::OneWorker, 1.5),
    target(Workload::Nb11, "NB11", "nb11", RunLimit::OneWorker, 1.6),
    target(Workload::Ysb, "YSB, 100 campaigns", "ysb", RunLimit::Unrelated, 0.95),
    target(Workload::Ro, "RO, 10 M keys", "ro", RunLimit::Unrelated, 0.95),
    target(Workload::YsbKeys, "YSB, 10 M keys", "ysb --keys 10000000", RunLimit::Unrelated, 0.85),
];

const fn target(
    workload: Workload,
    name: &'static str,
    options: &'static str,
    limit: RunLimit,
    asked: f64,
) -> RunTarget {
    RunTarget { workload, name, options, limit, asked }
}

impl RunTarget {
    /// The flag of `millstream bench` that measures the limit in turns.
    pub fn flag(&self) -> &'static str {
        match self.limit {
            RunLimit::OneWorker => "--against-one",
            RunLimit::Unrelated => "--against-two",
        }
    }

    /// A figure of two processes against what is asked of them; `None` if it was not measured.
    pub fn bar(&self, variant: &str, got: Option<f64>) -> Bar {
        let (what, unit, factor, digits) = match self.limit {
            RunLimit::OneWorker => ("two processes against one worker", "times", 1.0, 2),
            RunLimit::Unrelated => {
                ("share of what two unrelated processes reach together", "%", 100.0, 0)
            }
        };
        let by = if variant == "auto" { String::new() } else { format!(" by {variant}") };
        let shown = got.map_or("–".into(), |got| format!("{:.digits$}", got * factor));
        Bar {
            what: format!("{}{by}: {what}", self.name),
            needed: format!("≥ {} {unit}", self.asked * factor),
            got: format!("{shown} {unit}"),
            met: got.map(|got| got >= self.asked),
        }
    }

    /// Whether it is asked of a run.
    fn is_of(&self, workload: Workload, size: &WorkloadSize) -> bool {
        let has_its_keys = !workload.has_keys()
            || (size.keys == workload.keys() && size.distribution == workload.distribution());
        self.workload == workload && has_its_keys && size.record_bytes.is_none()
    }

    /// The figure of a variant.
    fn figure(&self, summary: &Summary) -> Option<f64> {
        let range = match self.limit {
            RunLimit::OneWorker => summary.against.one_worker,
            RunLimit::Unrelated => summary.against.unrelated,
        };
        range.map(|range| range.median)
    }
}

/// What is asked of a workload on nodes of so many workers.
fn asked(
    workload: Workload,
    size: &WorkloadSize,
    (nodes, workers): (u32, u32),
    fabric: FabricKind,
) -> impl Iterator<Item = &'static RunTarget> {
    let is_layout = (nodes, workers, fabric) == (2, 1, FabricKind::Shm);
    RUN_TARGETS.iter().filter(move |target| is_layout && target.is_of(workload, size))
}

/// Whether anything is asked of such runs, of which these limits are measured with them.
pub fn is_asked(
    workload: Workload,
    size: &WorkloadSize,
    layout: (u32, u32),
    fabric: FabricKind,
    limits: &[RunLimit],
) -> bool {
    asked(workload, size, layout, fabric).any(|target| limits.contains(&target.limit))
}

/// The bars of a summary: of what is asked of such runs and whose limit was measured with them.
pub(crate) fn bars(summary: &Summary, layout: (u32, u32), fabric: FabricKind) -> Vec<Bar> {
    // A loop is one worker too, and the limits are no results.
    if summary.is_limit() || summary.size.workers < 2 {
        return Vec::new();
    }
    asked(summary.workload, &summary.size, layout, fabric)
        .filter_map(|target| Some(target.bar(&summary.variant, Some(target.figure(summary)?))))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream::Counters;

    use super::*;
    use crate::summary::{AgainstLimits, MeasuredRun};
    use crate::workload::KeyDistribution;

    #[test]
    fn each_target_is_met_missed_and_not_known() {
        for target in RUN_TARGETS {
            let met = |got| target.bar("auto", got).met;
            let all = [met(Some(target.asked)), met(Some(target.asked - 0.01)), met(None)];
            assert_eq!(all, [Some(true), Some(false), None], "{}", target.name);
            assert_eq!(met(Some(f64::NAN)), Some(false), "no number is no success");
        }
        let [nb8, .., ysb] = RUN_TARGETS;
        let bar = nb8.bar("shuffle", Some(1.234));
        assert_eq!(bar.what, "NB8 by shuffle: two processes against one worker");
        assert_eq!([&*bar.needed, &*bar.got], ["≥ 1.5 times", "1.23 times"]);
        let bar = ysb.bar("auto", Some(0.384));
        assert_eq!([&*bar.needed, &*bar.got], ["≥ 85 %", "38 %"]);
    }

    fn summary(workload: Workload, variant: &str, workers: u64, seconds: &[u64]) -> Summary {
        let run = |&seconds: &u64| MeasuredRun {
            elapsed: Duration::from_secs(seconds),
            busy: Duration::ZERO,
            bandwidth: 1e10,
        };
        Summary {
            workload,
            variant: variant.into(),
            size: WorkloadSize {
                rows_per_worker: 1_000,
                workers,
                keys: workload.keys(),
                distribution: workload.distribution(),
                interval_ns: None,
                record_bytes: None,
            },
            runs: seconds.iter().map(run).collect(),
            total: Counters::default(),
            hertz: None,
            against: AgainstLimits::default(),
        }
    }

    fn met(summary: &Summary, layout: (u32, u32), fabric: FabricKind) -> Vec<Option<bool>> {
        bars(summary, layout, fabric).iter().map(|bar| bar.met).collect()
    }

    #[test]
    fn two_processes_are_held_to_the_limit_of_the_same_turn() {
        let (two, shm) = ((2, 1), FabricKind::Shm);
        // One worker reads half of the rows: as fast as two processes in twice the time.
        let alone = summary(Workload::Nb8, "alone", 1, &[10, 30, 20]);
        let mut both = summary(Workload::Nb8, "auto", 2, &[13, 39, 26]);
        assert_eq!(met(&both, two, shm), [], "without a limit nothing is asked");
        both.compare(Some(&alone), None);
        assert_eq!(met(&both, two, shm), [Some(true)]);
        let mut slow = summary(Workload::Nb8, "auto", 2, &[14, 41, 28]);
        slow.compare(Some(&alone), None);
        assert_eq!(met(&slow, two, shm), [Some(false)]);
        assert_eq!([met(&slow, (2, 2), shm), met(&slow, two, FabricKind::Tcp)], [[]; 2]);
        assert_eq!(met(&alone, two, shm), []);

        let unrelated = summary(Workload::Ro, "unrelated", 2, &[95, 95, 95]);
        let mut ro = summary(Workload::Ro, "auto", 2, &[100, 100, 100]);
        ro.compare(None, Some(&unrelated));
        assert_eq!(met(&ro, two, shm), [Some(true)]);
        ro.runs[0].elapsed = Duration::from_secs(101);
        ro.runs[1].elapsed = Duration::from_secs(101);
        ro.compare(None, Some(&unrelated));
        assert_eq!(met(&ro, two, shm), [Some(false)]);
        let asked =
            |limits: &[RunLimit]| is_asked(Workload::Ro, &ro.size, two, FabricKind::Shm, limits);
        let all = [RunLimit::OneWorker, RunLimit::Unrelated];
        assert_eq!([asked(&all), asked(&all[1..]), asked(&all[..1])], [true, true, false]);
        // Other keys, other distributions and records of fixed length are other workloads.
        let others = [
            WorkloadSize { keys: 1_000, ..ro.size },
            WorkloadSize { distribution: KeyDistribution::Zipf(1.0), ..ro.size },
            WorkloadSize { record_bytes: Some(16), ..ro.size },
        ];
        for size in others {
            assert_eq!(met(&Summary { size, ..ro.clone() }, two, shm), [], "{size:?}");
        }
    }
}
