//! Runs by the clock (A7): the latency at a rate, and the highest rate that can be sustained.
//!
//! Rows come when they are due, whether or not anybody is ready for them. A rate is sustained if
//! the last rows are not emitted long after they were due, windows of the second half of a run take
//! no longer than those of the first, and as many windows come out as are due. A run in which no
//! window was measured shows nothing, and is not sustained. The search tries rates by halves of
//! what is left between the highest that was sustained and the lowest that was not. If then nine
//! tenths of what was found are too much, a lucky run had been believed, and the search goes on
//! below.
//!
//! The event time of the rows passes such that a window ends every so often by the clock, whatever
//! the rate.

mod trial;

use std::fmt;
use std::sync::Arc;

use millstream::RunOptions;
use millstream::cluster::Control;

use crate::checksums::{ChecksumSink, ChecksumTotals};
use crate::latency::{Latencies, Probe, WindowCount};
use crate::paced::{Paced, Schedule, now_ns};
use crate::reference;
use crate::run::{BenchError, RunPlan, session};
use crate::task::WorkloadWindow;
use crate::workload::WorkloadSize;

use self::trial::behind_max_s;
pub use self::trial::{Trial, TrialVerdict};

/// Rows of a lap at most: such that laps are whole milliseconds of event time.
const LAP_ROWS: u64 = 4_000_000;
/// Nanoseconds from when a run is agreed upon until its first row is due.
const LEAD_NS: u64 = 400_000_000;
/// Halvings of a search: to one and a half hundredths of the rate.
const HALVINGS: u32 = 5;
/// Searches at most, the first among them.
const SEARCHES: u32 = 4;
/// Parts of what was found at which latency is measured.
const PARTS: [f64; 2] = [0.5, 0.9];

/// The workload by the clock.
#[derive(Debug, Clone)]
pub struct Timed {
    /// The workload and where it runs; its runs and rows do not count.
    pub plan: RunPlan,
    /// Rows a second of all workers at which latency is measured; none to search what can be
    /// sustained, and measure at half and nine tenths of it.
    pub rate: Option<f64>,
    /// How long a run takes.
    pub seconds: f64,
    /// Seconds between the ends of two windows.
    pub every_s: f64,
}

/// The result for one exchange.
#[derive(Debug, Clone)]
pub struct SustainOutcome {
    /// The measurements.
    pub timed: Timed,
    /// The exchange.
    pub exchange: String,
    /// Rows a second if all are there at once, and the trials of the search, if there was one.
    pub search: Option<(f64, Vec<Trial>)>,
    /// Latency at rates that were asked for.
    pub at: Vec<Trial>,
}

/// Measures; node 0 gets what came out, the others nothing.
///
/// # Errors
/// [`BenchError::NoLatency`] for workloads without windows of one table; the first failure, and
/// wrong results.
pub fn run(timed: &Timed, control: &Control) -> Result<Vec<SustainOutcome>, BenchError> {
    let window = timed.plan.workload.window();
    let window = window.ok_or(BenchError::NoLatency(timed.plan.workload))?;
    let planned = [String::from("auto")];
    let exchanges = &timed.plan.exchanges;
    let exchanges = if exchanges.is_empty() { &planned[..] } else { exchanges };
    let mut outcomes = Vec::new();
    for exchange in exchanges {
        let (checksums, paced) = (ChecksumSink::default(), Paced::default());
        let mut stand = Stand { timed, exchange, window, control, checksums, paced, known: None };
        let outcome = stand.outcome()?;
        if control.rank() == 0 {
            outcomes.push(outcome);
        }
    }
    Ok(outcomes)
}

/// Rows of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rows {
    lap_rows: u64,
    laps: u64,
    interval_ns: u64,
}

/// The outcome of a run.
struct Ran {
    elapsed_s: f64,
    /// When all rows were through, in nanoseconds since 1970.
    ended_ns: u64,
    latencies: Latencies,
}

struct Stand<'a> {
    timed: &'a Timed,
    exchange: &'a str,
    window: WorkloadWindow,
    control: &'a Control,
    checksums: ChecksumSink,
    paced: Paced,
    /// The rows of a lap that the flows have kept.
    known: Option<(u64, u64)>,
}

impl Stand<'_> {
    fn outcome(&mut self) -> Result<SustainOutcome, BenchError> {
        let (search, at) = match self.timed.rate {
            Some(rate) => (None, vec![self.trial(rate)?]),
            None => {
                // The first run tells how long windows are to be for the second.
                let guessed = self.at_once(self.interval_ns(1e8))?;
                let most = self.at_once(self.interval_ns(guessed))?;
                let (trials, at) = self.found(most)?;
                (Some((most, trials)), at)
            }
        };
        let (timed, exchange) = (self.timed.clone(), self.exchange.to_owned());
        Ok(SustainOutcome { timed, exchange, search, at })
    }

    fn interval_ns(&self, rate: f64) -> u64 {
        interval_ns(self.window, self.timed.every_s, rate)
    }

    /// The trials of the search, and those at [`PARTS`] of what was found: none if nothing was.
    fn found(&mut self, at_once: f64) -> Result<(Vec<Trial>, Vec<Trial>), BenchError> {
        let (mut trials, mut at) = (Vec::new(), Vec::new());
        self.search(0.8 * at_once, 1.25 * at_once, &mut trials)?;
        for searches in 1..=SEARCHES {
            let found = best(&trials);
            let rates = PARTS.iter().map(|part| part * found).filter(|rate| *rate > 0.0);
            at = rates.map(|rate| self.trial(rate)).collect::<Result<_, _>>()?;
            let Some(failed) = at.last().filter(|trial| !trial.sustained()) else { break };
            trials.push(failed.clone());
            if searches < SEARCHES {
                let most = failed.rate;
                self.search((best(&trials) + most) / 2.0, most, &mut trials)?;
            }
        }
        Ok((trials, at))
    }

    /// Tries rates below the highest, this one first.
    fn search(
        &mut self,
        mut rate: f64,
        mut most: f64,
        trials: &mut Vec<Trial>,
    ) -> Result<(), BenchError> {
        let mut least = best(trials);
        for _ in 0..=HALVINGS {
            let trial = self.trial(rate)?;
            if trial.sustained() {
                least = rate
            } else {
                most = rate
            }
            trials.push(trial);
            rate = (least + most) / 2.0;
        }
        Ok(())
    }

    /// Rows a second if all are there at once, as node 0 has seen it: what follows from it must be
    /// the same everywhere.
    fn at_once(&mut self, interval_ns: u64) -> Result<f64, BenchError> {
        let workers = u64::from(self.timed.plan.nodes * self.timed.plan.workers);
        let rows = Rows { lap_rows: LAP_ROWS, laps: 8 * workers, interval_ns };
        self.warm(rows)?;
        let schedule = Schedule { start_ns: 0, rate: f64::INFINITY };
        let elapsed_s = self.run(rows, schedule, None)?.elapsed_s;
        let rate = (rows.lap_rows * rows.laps) as f64 / elapsed_s;
        Ok(f64::from_bits(self.agreed(rate.to_bits())?))
    }

    /// A run at a rate. All nodes get the same answer to whether it was sustained.
    fn trial(&mut self, rate: f64) -> Result<Trial, BenchError> {
        let rows = ((rate * self.timed.seconds) as u64).max(1);
        let laps = rows.div_ceil(LAP_ROWS);
        let lap_rows = if laps == 1 { rows } else { LAP_ROWS };
        let interval_ns = self.interval_ns(rate);
        let rows = Rows { lap_rows, laps, interval_ns };
        self.warm(rows)?;
        let schedule = Schedule { start_ns: self.agreed(now_ns() + LEAD_NS)?, rate };
        let probe = Probe { schedule, window: self.window, lap_rows, laps, interval_ns };
        let Ran { ended_ns, latencies, .. } = self.run(rows, schedule, Some(probe))?;
        let seconds = (lap_rows * laps) as f64 / rate;
        let end_ns = probe.end_ns();
        let behind_s = ended_ns.saturating_sub(end_ns) as f64 * 1e-9;
        let behind_ns = (behind_max_s(seconds) * 1e9) as u64;
        let windows = latencies.windows(end_ns.saturating_sub(behind_ns), end_ns);
        let verdict = TrialVerdict::of(seconds, behind_s, &latencies, windows);
        let agreed = self.agreed(verdict as u64)?;
        let verdict = TrialVerdict::ALL.into_iter().find(|one| *one as u64 == agreed);
        let verdict = verdict.unwrap_or(TrialVerdict::NotMeasured);
        let every_s = every_s(self.window, interval_ns, rate);
        Ok(Trial { rate, behind_s, every_s, windows, latencies, verdict })
    }

    /// Has the flows make the rows of a lap, if they have others.
    fn warm(&mut self, rows: Rows) -> Result<(), BenchError> {
        let lap = (rows.lap_rows, rows.interval_ns);
        if self.known != Some(lap) {
            self.known = Some(lap);
            self.paced.forget();
            let schedule = Schedule { start_ns: 0, rate: f64::INFINITY };
            self.run(Rows { laps: 1, ..rows }, schedule, None)?;
        }
        Ok(())
    }

    /// The value of node 0.
    fn agreed(&self, own: u64) -> Result<u64, BenchError> {
        let all = self.control.all_gather("agree", own.to_le_bytes().to_vec())?;
        let first = all.first().and_then(|bytes| bytes.as_slice().try_into().ok());
        Ok(first.map_or(own, u64::from_le_bytes))
    }

    /// Runs, and checks the result.
    fn run(
        &mut self,
        rows: Rows,
        schedule: Schedule,
        probe: Option<Probe>,
    ) -> Result<Ran, BenchError> {
        let RunPlan { workload, size, nodes, workers, .. } = self.timed.plan;
        let lap = WorkloadSize {
            rows_per_worker: rows.lap_rows,
            workers: 1,
            interval_ns: Some(rows.interval_ns),
            record_bytes: None,
            ..size
        };
        let repeat = format!("'repeat' = '{}', 'preload' = 'true'", rows.laps);
        let sql = workload.sql(&lap).replace("'preload' = 'true'", &repeat);
        self.paced.set(schedule);
        self.checksums.probe(probe);
        let script = session(&self.timed.plan, (nodes, workers), Some(self.exchange))
            .connector(Arc::new(self.checksums.clone()))
            .connector(Arc::new(self.paced.clone()))
            .build()?
            .sql(&sql)?;
        let options = RunOptions { control: Some(self.control), ..RunOptions::default() };
        let report = script.run(&options)?;
        // The check takes longer than many a run.
        let ended_ns = now_ns();
        let all = self.control.all_gather("sums", self.checksums.take().encode())?;
        let mut got = ChecksumTotals::default();
        all.iter()
            .filter_map(|bytes| ChecksumTotals::decode(bytes))
            .for_each(|node| got.add(&node));
        let taken = self.checksums.take_latencies().encode();
        let all = self.control.all_gather("latencies", taken)?;
        let mut latencies = Latencies::default();
        let each = all.iter().filter_map(|bytes| Latencies::decode(bytes));
        each.for_each(|node| latencies.add(&node));
        if self.control.rank() == 0 {
            let right = reference::sums_of(workload, &sql)?;
            if !right.agrees(&got) {
                let variant = format!("{workload} ({}), by the clock", self.exchange);
                return Err(BenchError::Wrong { variant, got, right });
            }
        }
        Ok(Ran { elapsed_s: report.elapsed.as_secs_f64(), ended_ns, latencies })
    }
}

/// Nanoseconds of event time between two rows such that a window ends every so many seconds by the
/// clock.
fn interval_ns(window: WorkloadWindow, every_s: f64, rate: f64) -> u64 {
    let rows = (rate * every_s).max(1.0);
    (window.slide_ms as f64 * 1e6 / rows).round().max(1.0) as u64
}

/// Seconds by the clock from the end of a window to that of the next.
fn every_s(window: WorkloadWindow, interval_ns: u64, rate: f64) -> f64 {
    window.slide_ms as f64 * 1e6 / (interval_ns as f64 * rate)
}

/// The highest rate that was sustained, as was each below it; zero if none was.
fn best(trials: &[Trial]) -> f64 {
    let of = |sustained| trials.iter().filter(move |trial| trial.sustained() == sustained);
    let lowest = of(false).map(|trial| trial.rate).fold(f64::INFINITY, f64::min);
    of(true).map(|trial| trial.rate).filter(|rate| *rate < lowest).fold(0.0, f64::max)
}

impl SustainOutcome {
    /// The highest rate that was sustained, if that was searched and found.
    pub fn sustainable(&self) -> Option<f64> {
        self.search.as_ref().map(|(_, trials)| best(trials)).filter(|rate| *rate > 0.0)
    }

    /// As one JSON object.
    pub fn json(&self) -> String {
        let trial = |trial: &Trial| {
            let Trial { rate, behind_s, every_s, latencies, verdict, windows } = trial;
            let latency = latencies.all().json();
            let WindowCount { due, emitted } = windows;
            let sustained = trial.sustained();
            format!(
                "{{\"rate\":{rate:e},\"sustained\":{sustained},\"verdict\":\"{verdict}\",\
                 \"behind_s\":{behind_s:e},\"window_every_s\":{every_s:e},\"windows_due\":{due},\
                 \"windows_emitted\":{emitted},\"latency_s\":{latency}}}"
            )
        };
        let trials = |all: &[Trial]| all.iter().map(trial).collect::<Vec<_>>().join(",");
        let plan = &self.timed.plan;
        let mut fields = vec![
            format!("\"workload\":\"{}\"", plan.workload),
            format!("\"variant\":\"{}\"", self.exchange),
            format!("\"workers\":{}", plan.nodes * plan.workers),
            format!("\"window_every_s\":{:e}", self.timed.every_s),
        ];
        if let Some((most, tried)) = &self.search {
            fields.push(format!("\"at_once\":{most:e},\"trials\":[{}]", trials(tried)));
            fields.push(format!("\"sustainable\":{:e}", self.sustainable().unwrap_or(0.0)));
        }
        fields.push(format!("\"latency\":[{}]", trials(&self.at)));
        format!("{{{}}}", fields.join(","))
    }
}

impl fmt::Display for SustainOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Timed { plan, seconds, every_s, .. } = &self.timed;
        writeln!(
            f,
            "{}, {}: {} worker(s), runs of {seconds} s, a window every {:.0} ms",
            plan.workload,
            self.exchange,
            plan.nodes * plan.workers,
            every_s * 1e3
        )?;
        if let Some((most, trials)) = &self.search {
            writeln!(f, "  all rows at once             {:>9.2} M/s", most * 1e-6)?;
            for trial in trials {
                let Trial { rate, behind_s, verdict, windows, .. } = trial;
                let p99 = trial.latencies.all().quantile(0.99) * 1e3;
                let WindowCount { due, emitted } = windows;
                writeln!(
                    f,
                    "  tried                        {:>9.2} M/s  {verdict}, p99 {p99:.2} ms, ended \
                     {:.0} ms behind, {emitted} of {due} windows in time",
                    rate * 1e-6,
                    behind_s * 1e3
                )?;
            }
            match self.sustainable() {
                Some(rate) => {
                    writeln!(f, "  sustainable                  {:>9.2} M/s", rate * 1e-6)?
                }
                None => writeln!(f, "  no rate was sustained")?,
            }
        }
        for trial in &self.at {
            let all = trial.latencies.all();
            let found = match trial.verdict {
                TrialVerdict::Sustained => String::new(),
                verdict => format!(" ({verdict})"),
            };
            writeln!(f, "  latency at {:.3} M/s{found}: {all}", trial.rate * 1e-6)?;
            let (count, behind_ms) = (all.count(), trial.behind_s * 1e3);
            writeln!(
                f,
                "    of {count} result rows, a window every {:.1} ms, ended {behind_ms:.0} ms \
                 behind; results checked",
                trial.every_s * 1e3
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn windows_end_as_often_as_stated_whatever_the_rate() {
        let windows = Workload::ALL.into_iter().filter_map(Workload::window);
        let mut tried = 0;
        for window in windows {
            for power in 12..40 {
                // From some thousand rows a second to half a milliard.
                let rate = 2f64.powf(f64::from(power) * 0.725);
                for wanted_s in [0.02, 0.1] {
                    let interval_ns = interval_ns(window, wanted_s, rate);
                    let ends_s = every_s(window, interval_ns, rate);
                    let off = (ends_s / wanted_s - 1.0).abs();
                    // Times of rows are whole nanoseconds: at most half of one is missing.
                    assert!(off <= 0.02, "{window:?}, {rate:e} a second: {ends_s} s");
                    tried += 1;
                }
            }
        }
        assert!(tried > 200, "{tried}");
    }

    #[test]
    fn what_is_found_is_below_every_rate_that_was_too_much() {
        let trial = |(rate, sustained)| Trial {
            rate,
            behind_s: 0.0,
            every_s: 0.1,
            windows: WindowCount::default(),
            latencies: Latencies::default(),
            verdict: if sustained { TrialVerdict::Sustained } else { TrialVerdict::Behind },
        };
        let best_of =
            |rates: &[(f64, bool)]| best(&rates.iter().copied().map(trial).collect::<Vec<_>>());
        assert_eq!(best_of(&[]), 0.0);
        assert_eq!(best_of(&[(8.0, false), (4.0, false)]), 0.0);
        let mut rates = vec![(8.0, true), (10.0, false), (9.0, true)];
        assert_eq!(best_of(&rates), 9.0);
        rates.push((0.9 * 9.0, false));
        assert_eq!(best_of(&rates), 8.0, "a lucky run");
        rates.push((7.0, false));
        assert_eq!(best_of(&rates), 0.0);
    }
}
