//! The processor time that checkpoints cost: pairs of runs over the same rows, with and without
//! them, in turns.

use super::estimate::{MedianEstimate, median, median_estimate};
use super::job::{JobRun, JobShape, Jobs};
use super::{RecoveryPlan, StateDirectory};
use crate::report::Bar;
use crate::run::BenchError;
use crate::workload::Workload;

/// Groups of the cases with many groups, at scale 1.
const MANY_KEYS: f64 = 10e6;
/// Rows that are kept for a job of few groups, and for one of many, at scale 1.
const FEW_ROWS: f64 = 16e6;
const MANY_ROWS: f64 = 32e6;
/// The least number of groups and of rows at smaller scales.
const LEAST: f64 = 1000.0;

/// One comparison.
#[derive(Debug, Clone, Copy)]
pub(super) struct CostCase {
    name: &'static str,
    workload: Workload,
    hashed: bool,
    interval: &'static str,
    /// The most that checkpoints may cost, in parts of the time without them.
    limit: f64,
}

/// All comparisons.
pub(super) const CASES: [CostCase; 4] = [
    CostCase {
        name: "YSB, 100 campaigns",
        workload: Workload::Ysb,
        hashed: false,
        interval: "1 s",
        limit: 0.01,
    },
    CostCase {
        name: "YSB, 100 campaigns",
        workload: Workload::Ysb,
        hashed: false,
        interval: "100 ms",
        limit: 0.03,
    },
    CostCase {
        name: "dense keys",
        workload: Workload::YsbKeys,
        hashed: false,
        interval: "1 s",
        limit: 0.03,
    },
    CostCase {
        name: "hashed keys",
        workload: Workload::YsbKeys,
        hashed: true,
        interval: "1 s",
        limit: 0.08,
    },
];

/// The figures of a comparison.
#[derive(Debug)]
pub(super) struct CostOutcome {
    case: CostCase,
    keys: u64,
    pairs: usize,
    /// The additional processor time of a run with checkpoints, in parts of that of the run without
    /// them; `None` if there are too few pairs for an interval.
    more: Option<MedianEstimate>,
    /// Medians: processor seconds without, million rows a processor second without, checkpoints of
    /// a run, and bytes of the largest of them.
    seconds: f64,
    rate: f64,
    checkpoints: f64,
    bytes: f64,
}

/// Runs all pairs of a comparison.
///
/// # Errors
/// The first failure, and results of a pair that differ.
pub(super) fn measure(
    plan: &RecoveryPlan,
    jobs: &Jobs,
    case: CostCase,
) -> Result<CostOutcome, BenchError> {
    let many = case.workload.has_keys();
    let scaled = |of: f64| (of * plan.scale).max(LEAST) as u64;
    let keys = if many { scaled(MANY_KEYS) } else { case.workload.keys() };
    let once = JobShape {
        workload: case.workload,
        keys,
        hashed: case.hashed,
        rows: scaled(if many { MANY_ROWS } else { FEW_ROWS }),
        laps: 1,
        interval_ns: None,
        workers: plan.workers,
    };
    // The first run makes the rows, and the second one measures a lap: its processor time, so that
    // other load of the machine does not make runs short.
    jobs.bare(&once)?;
    let lap = jobs.bare(&once)?.cpu.as_secs_f64();
    let shape = JobShape { laps: (plan.seconds / lap.max(1e-6)).ceil().max(1.0) as u64, ..once };
    let (mut more, mut seconds, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let (mut checkpoints, mut bytes) = (Vec::new(), Vec::new());
    for pair in 0..plan.pairs {
        let directory = StateDirectory::new(&plan.directory)?;
        let saved = || jobs.saved(&shape, case.interval, directory.path(), None);
        // The two take turns to be the first, so that neither profits from its place.
        let (bare, saved) = if pair % 2 == 0 {
            let bare = jobs.bare(&shape)?;
            (bare, saved()?)
        } else {
            let saved = saved()?;
            (jobs.bare(&shape)?, saved)
        };
        case.check(&shape, &bare, &saved)?;
        let cpu = bare.cpu.as_secs_f64().max(1e-9);
        more.push(saved.cpu.as_secs_f64() / cpu - 1.0);
        seconds.push(cpu);
        rates.push(shape.rows_in() as f64 / cpu / 1e6);
        let taken = &saved.records[1.min(saved.records.len())..];
        checkpoints.push(taken.len() as f64);
        bytes.extend(taken.iter().map(|record| record.bytes as f64).reduce(f64::max));
    }
    Ok(CostOutcome {
        case,
        keys,
        pairs: more.len(),
        more: median_estimate(&more),
        seconds: median(&seconds),
        rate: median(&rates),
        checkpoints: median(&checkpoints),
        bytes: median(&bytes),
    })
}

impl CostCase {
    /// Compares the results of a pair with each other, and the rows that were read with the input.
    fn check(&self, shape: &JobShape, bare: &JobRun, saved: &JobRun) -> Result<(), BenchError> {
        let variant = || format!("{} every {}", self.name, self.interval);
        if !bare.totals.agrees(&saved.totals) {
            let (got, right) = (saved.totals, bare.totals);
            return Err(BenchError::Wrong { variant: variant(), got, right });
        }
        let right = shape.rows_in();
        match [bare, saved].iter().find(|run| run.rows_in != right) {
            Some(run) => Err(BenchError::Rows { variant: variant(), got: run.rows_in, right }),
            None => Ok(()),
        }
    }
}

impl CostOutcome {
    /// The upper end of the interval against its limit.
    pub(super) fn bar(&self) -> Bar {
        let CostCase { name, interval, limit, .. } = self.case;
        let got = match self.more {
            Some(more) => percent_of(more),
            None => format!("{} pairs, which are too few for an interval", self.pairs),
        };
        Bar {
            what: format!(
                "processor time of checkpoints, {name} ({}), every {interval}",
                self.keys
            ),
            needed: format!("≤ {}", percent(limit)),
            got,
            met: self.more.map(|more| more.high <= limit),
        }
    }

    /// The figures as cells, for the columns of [`COLUMNS`].
    pub(super) fn row(&self) -> Vec<String> {
        let interval =
            |of: fn(MedianEstimate) -> f64| self.more.map_or("–".into(), |m| percent(of(m)));
        vec![
            self.case.name.into(),
            self.keys.to_string(),
            self.case.interval.into(),
            self.pairs.to_string(),
            format!("{:.3}", self.seconds),
            format!("{:.1}", self.rate),
            format!("{:.0}", self.checkpoints),
            format!("{:.3}", self.bytes / 1e6),
            interval(|more| more.median),
            interval(|more| more.low),
            interval(|more| more.high),
        ]
    }
}

/// The columns of the table of costs.
pub(super) const COLUMNS: [&str; 11] = [
    "job",
    "groups",
    "interval",
    "pairs",
    "processor s",
    "M rows/s",
    "checkpoints",
    "MB",
    "more",
    "from",
    "to",
];

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn percent_of(more: MedianEstimate) -> String {
    let MedianEstimate { median, low, high, count } = more;
    let [median, low, high] = [median, low, high].map(percent);
    format!("{median} ({low} to {high}, {count} pairs)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(more: &[f64]) -> CostOutcome {
        CostOutcome {
            case: CASES[0],
            keys: 100,
            pairs: more.len(),
            more: median_estimate(more),
            seconds: 1.0,
            rate: 1.0,
            checkpoints: 1.0,
            bytes: 1.0,
        }
    }

    /// The upper end decides, and not the median: one pair of eleven may be anything, two not.
    #[test]
    fn a_cost_is_met_only_by_the_upper_end_of_its_interval() {
        let mut more = [0.005; 11];
        more[3] = 0.5;
        assert_eq!(outcome(&more).bar().met, Some(true));
        more[7] = 0.02;
        let bar = outcome(&more).bar();
        assert_eq!((bar.met, &*bar.needed), (Some(false), "≤ 1.00 %"));
        assert_eq!(bar.got, "0.50 % (0.50 % to 2.00 %, 11 pairs)");
        assert_eq!(outcome(&more[..5]).bar().met, None);
        assert_eq!(outcome(&more).row().len(), COLUMNS.len());
    }
}
