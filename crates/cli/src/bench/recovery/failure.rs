//! The time without results when nodes are killed or fall silent, and when a job goes on with
//! another number of nodes.

use std::path::Path;
use std::time::Instant;

use bench::recovery::estimate::quantile;
use bench::recovery::{GROUP_BYTES, StateDirectory};
use bench::report::{Bar, ReportSection, ReportTable};
use rustix::process::Signal;

use super::process::JobProcess;

/// Nodes of the jobs whose nodes fail.
const NODES: u32 = 2;
/// Bytes of the state that moves to other nodes, at scale 1.
const MOVED_BYTES: f64 = (1u64 << 30) as f64;
/// The share of the groups that the state has when the job is stopped.
const SHARE: f64 = 0.8;
/// Seconds in which the stream has as many rows as there are groups.
const ROUND_SECONDS: f64 = 5.0;
/// The interval of checkpoints in milliseconds.
const INTERVAL_MS: u32 = 100;
/// Rows a second of the job whose nodes fail.
const RATE: u64 = 20_000;

/// The percentiles that are bounded, with their limits in seconds.
const KILLED: [(f64, f64); 2] = [(0.5, 1.0), (0.99, 3.0)];
const SILENT: [(f64, f64); 1] = [(0.99, 8.0)];
const RESCALED: [(f64, f64); 1] = [(0.99, 5.0)];

/// The number of failures, and the size of the state.
#[derive(Debug, Clone)]
pub(super) struct FailurePlan<'a> {
    pub(super) kills: u32,
    pub(super) silences: u32,
    pub(super) rescales: u32,
    pub(super) scale: f64,
    pub(super) directory: &'a Path,
}

/// Failures of one kind, with the seconds without results of each.
struct Outages {
    what: String,
    limits: &'static [(f64, f64)],
    /// Infinite where the job did not go on.
    seconds: Vec<f64>,
    /// The error of the first job that did not go on.
    lost: Option<String>,
}

/// Measures all kinds of failures.
pub(super) fn measure(plan: &FailurePlan<'_>) -> Result<ReportSection, String> {
    let all = [
        failed(plan, "node killed by SIGKILL", Signal::KILL, plan.kills, &KILLED)?,
        failed(plan, "node silent by SIGSTOP", Signal::STOP, plan.silences, &SILENT)?,
        rescaled(plan)?,
    ];
    let columns =
        ["what", "times", "lost", "p50 s", "p99 s", "greatest s"].map(str::to_owned).to_vec();
    let rows = all.iter().map(Outages::row).collect();
    Ok(ReportSection {
        title: "Failures and other numbers of nodes".into(),
        text: vec![
            format!(
                "Processes as 'run --nodes {NODES} --state' starts them, with a checkpoint every \
                 {INTERVAL_MS} ms; the nodes take turns. Seconds from the signal to rows in the \
                 directory of the output that are of a checkpoint of the next run."
            ),
            "Another number of nodes is 'stop' and 'run' again, from the request to stop to such \
             rows. A job that does not go on within a minute is lost, and another one begins."
                .into(),
        ],
        bars: all.iter().flat_map(Outages::bars).collect(),
        tables: vec![ReportTable { title: String::new(), columns, rows }],
        ..ReportSection::default()
    })
}

fn failed(
    plan: &FailurePlan<'_>,
    what: &str,
    signal: Signal,
    times: u32,
    limits: &'static [(f64, f64)],
) -> Result<Outages, String> {
    let mut outages = Outages::new(what.into(), limits);
    let mut which = 0;
    // Another job follows one that is lost.
    while which < times {
        let directory = StateDirectory::new(plan.directory).map_err(|error| error.to_string())?;
        let mut job = JobProcess::start(directory.path(), &sql(100, RATE), NODES)?;
        let mut published = 0;
        let mut goes_on = true;
        while which < times && goes_on {
            // Results flow again before the next node fails.
            job.publishes_behind(published)?;
            let before = job.state().generation;
            let at = job.signal(which, signal)?;
            let flows = job.flows_behind(before);
            goes_on = flows.is_ok();
            outages.add(flows, at);
            job.bury();
            published = job.published().unwrap_or(0);
            which += 1;
        }
    }
    Ok(outages)
}

fn rescaled(plan: &FailurePlan<'_>) -> Result<Outages, String> {
    let groups = (MOVED_BYTES * plan.scale / GROUP_BYTES).max(1000.0);
    let megabytes = groups * GROUP_BYTES / (1u32 << 20) as f64;
    let what = format!("{NODES} to {} nodes with about {megabytes:.0} MiB", NODES + 1);
    let mut outages = Outages::new(what, &RESCALED);
    let sql = sql(groups as u64, (groups / ROUND_SECONDS) as u64);
    for _ in 0..plan.rescales {
        let directory = StateDirectory::new(plan.directory).map_err(|error| error.to_string())?;
        let mut job = JobProcess::start(directory.path(), &sql, NODES)?;
        job.grows_to((groups * SHARE) as u64)?;
        let before = job.state().generation;
        let since = Instant::now();
        job.stop()?;
        let mut job = JobProcess::start(directory.path(), &sql, NODES + 1)?;
        outages.add(job.flows_behind(before), since);
    }
    Ok(outages)
}

/// A job that publishes rows at each checkpoint and keeps `groups` groups in its state.
fn sql(groups: u64, rate: u64) -> String {
    format!(
        "SET 'millstream.checkpoint' = '{INTERVAL_MS} ms';
         CREATE TABLE bids (
           ts TIMESTAMP(3), auction BIGINT, price BIGINT,
           WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
         ) WITH (
           'connector' = 'generator', 'rate' = '{rate}', 'interval' = '1ms',
           'fields.auction.max' = '{}', 'fields.price.max' = '1000000');
         CREATE TABLE counts (ws TIMESTAMP(3), n BIGINT) WITH (
           'connector' = 'file', 'path' = 'out/', 'format' = 'csv');
         CREATE TABLE kept (ws TIMESTAMP(3), auction BIGINT, n BIGINT)
         WITH ('connector' = 'blackhole');
         EXECUTE STATEMENT SET BEGIN
         INSERT INTO counts SELECT window_start, count(*)
         FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' SECOND)
         GROUP BY window_start, window_end;
         INSERT INTO kept SELECT window_start, auction, count(*)
         FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '3650' DAY)
         GROUP BY window_start, window_end, auction;
         END;",
        groups - 1
    )
}

impl Outages {
    fn new(what: String, limits: &'static [(f64, f64)]) -> Self {
        Self { what, limits, seconds: Vec::new(), lost: None }
    }

    /// Each percentile against its limit; a job that did not go on is beyond any.
    fn bars(&self) -> Vec<Bar> {
        let bar = |(share, limit): &(f64, f64)| {
            let found = quantile(&self.seconds, *share);
            let of = self.seconds.len();
            let got = match (found, &self.lost) {
                (Some(seconds), Some(why)) if seconds.is_infinite() => format!("none: {why}"),
                (Some(seconds), _) => format!("{seconds:.3} s (of {of})"),
                (None, _) => "not measured".into(),
            };
            let met = found.map(|seconds| seconds <= *limit);
            let what = format!("{}: no results, p{:.0}", self.what, share * 100.0);
            Bar { what, needed: format!("≤ {limit} s"), got, met }
        };
        self.limits.iter().map(bar).collect()
    }

    /// Adds a failure at `since`, with the time of the first results behind it.
    fn add(&mut self, flows: Result<Instant, String>, since: Instant) {
        match flows {
            Ok(flows) => self.seconds.push((flows - since).as_secs_f64()),
            Err(why) => {
                self.seconds.push(f64::INFINITY);
                let first = why.lines().next().unwrap_or_default();
                self.lost.get_or_insert_with(|| first.to_owned());
            }
        }
    }

    fn row(&self) -> Vec<String> {
        let of = |share| quantile(&self.seconds, share).map_or("–".into(), |s| format!("{s:.3}"));
        let lost = self.seconds.iter().filter(|seconds| seconds.is_infinite()).count().to_string();
        let times = self.seconds.len().to_string();
        vec![self.what.clone(), times, lost, of(0.5), of(0.99), of(1.0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(seconds: Vec<f64>, lost: Option<&str>) -> Vec<Option<bool>> {
        let lost = lost.map(str::to_owned);
        let outages = Outages { seconds, lost, ..Outages::new("killed".into(), &KILLED) };
        outages.bars().iter().map(|bar| bar.met).collect()
    }

    #[test]
    fn slow_starts_fail_their_percentile_and_so_do_jobs_that_are_lost() {
        let mut seconds = vec![0.5; 50];
        assert_eq!(met(seconds.clone(), None), [Some(true), Some(true)]);
        seconds[7] = 4.0;
        assert_eq!(met(seconds.clone(), None), [Some(true), Some(false)]);
        assert_eq!(met(vec![1.5; 9], None), [Some(false), Some(true)]);
        seconds[7] = f64::INFINITY;
        assert_eq!(met(seconds, Some("the job publishes no rows")), [Some(true), Some(false)]);
        assert_eq!(met(vec![f64::INFINITY], Some("lost")), [Some(false); 2]);
        assert_eq!(met(vec![], None), [None, None]);
    }
}
