//! Measurements of workers and operators: of a run that has ended, or in an interval of one that
//! goes on.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use arrow::temporal_conversions::timestamp_ms_to_datetime;
use dataflow::metrics::{Counters, OperatorCounters, Snapshot, WorkerCounters, finite_watermark};
use serde_json::{Value, json};
use state::KeyModes;

use super::counters_json::counters_to_json;
use crate::expr::given::CalledFunction;
use crate::text::units::human;

/// The measurements of a run, or of an interval of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// From the first row that could be read to the end; or how long the interval was.
    pub elapsed: Duration,
    /// Where the run goes on, the clock of the job in milliseconds since 1970: then rows and bytes
    /// are shown per second, with how far each watermark is behind the clock.
    pub clock_ms: Option<i64>,
    /// The metrics of each worker and of its operators.
    pub workers: Vec<WorkerCounters>,
    /// How many pairs of nodes were joined by which transport; empty where there is one node.
    pub joined: Vec<(String, u64)>,
    /// The functions of the program that were called in this process.
    pub functions: Vec<CalledFunction>,
}

/// A watermark further behind than this belongs to old data; how far behind it is tells nothing.
const LAG_SHOWN_MAX_MS: i64 = 7 * 86_400_000;

/// A percentage of a time.
fn percent(part_ns: u64, all_ns: u64) -> f64 {
    if all_ns == 0 { 0.0 } else { (part_ns as f64 * 100.0 / all_ns as f64).min(100.0) }
}

/// The greatest over the mean; 1 where all are equal.
fn skew(numbers: &[u64]) -> f64 {
    let (most, sum) = (numbers.iter().max().copied().unwrap_or(0), numbers.iter().sum::<u64>());
    if sum == 0 { 1.0 } else { most as f64 * numbers.len() as f64 / sum as f64 }
}

/// The time of a worker.
fn all_ns(worker: &Counters) -> u64 {
    worker.busy_ns + worker.backpressured_ns + worker.idle_ns
}

/// An object of numbers that have no definition, and of metrics.
fn object(of: Value, counters: &impl Snapshot) -> Value {
    let mut object = of;
    for (metric, value) in counters_to_json(counters) {
        object[metric.name] = value;
    }
    object
}

impl Ran {
    /// Lines of cells, the first of which names the line.
    fn table(out: &mut String, first: &str, titles: &[&str], lines: &[(String, Vec<String>)]) {
        let width = |at: usize| {
            let cells = lines.iter().map(|(_, cells)| cells[at].chars().count());
            cells.chain([titles[at].len()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..titles.len()).map(width).collect();
        let names = lines.iter().map(|(name, _)| name.chars().count());
        let name_width = names.chain([first.len()]).max().unwrap_or(0);
        let mut line = |name: &str, cells: &[&str]| {
            // Writing to a String cannot fail.
            let _ = write!(out, "  {name:<name_width$}");
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(out, "  {cell:>width$}");
            }
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
        };
        line(first, titles);
        for (name, cells) in lines {
            line(name, &cells.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    /// A number of the run; of one that goes on, how many there were in a second.
    fn number(&self, number: u64) -> String {
        match self.clock_ms {
            None => number.to_string(),
            Some(_) => per_second(number, self.elapsed),
        }
    }

    fn bytes(&self, bytes: u64) -> String {
        match self.clock_ms {
            None => human(bytes),
            Some(_) => human((bytes as f64 / self.elapsed.as_secs_f64().max(1e-6)) as u64),
        }
    }

    /// A watermark, and how far it is behind the clock.
    fn time(&self, watermark_ms: Option<i64>) -> Option<[String; 2]> {
        let clock_ms = self.clock_ms?;
        let time = watermark_ms.and_then(timestamp_ms_to_datetime);
        let behind = watermark_ms.map(|ms| clock_ms.saturating_sub(ms).max(0));
        let behind = behind.filter(|&ms| ms <= LAG_SHOWN_MAX_MS);
        Some([
            time.map_or("-".into(), |time| time.format("%Y-%m-%d %H:%M:%S").to_string()),
            behind.map_or("-".into(), |ms| format!("{:.1} s", ms as f64 / 1e3)),
        ])
    }

    /// The tables of operators, which have these names, and of workers.
    pub fn text(&self, names: &[String]) -> String {
        let mut out = match self.clock_ms {
            None => format!("ran in {:.3} s\n", self.elapsed.as_secs_f64()),
            Some(_) => String::new(),
        };
        self.operators_text(&mut out, names);
        self.workers_text(&mut out);
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "  skew {:.2}: rows of the worker that read most, over the mean",
            self.skew()
        );
        self.skipped_text(&mut out);
        if !self.joined.is_empty() {
            let joined = self.joined.iter().map(|(by, pairs)| format!("{pairs} by {by}"));
            let joined: Vec<_> = joined.collect();
            let _ = writeln!(out, "  pairs of nodes: {}", joined.join(", "));
        }
        for (at, name) in names.iter().enumerate() {
            self.pool_text(&mut out, at, name);
            self.backlog_text(&mut out, at, name);
        }
        for (at, name) in names.iter().enumerate().filter(|_| self.clock_ms.is_none()) {
            self.sent_text(&mut out, at, name);
        }
        out
    }

    /// A line about the row groups, pages and rows that readers skipped in the splits that they
    /// opened, if there are any.
    fn skipped_text(&self, out: &mut String) {
        let sum = |of: fn(&Counters) -> u64| -> u64 {
            self.workers.iter().map(|worker| of(&worker.counters)).sum()
        };
        let [groups, pages, rows] = [
            sum(|of| of.skipped_row_groups),
            sum(|of| of.skipped_pages),
            sum(|of| of.skipped_rows),
        ];
        if rows > 0 {
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "  skipped while reading: {rows} rows, {pages} pages, {groups} row groups"
            );
        }
    }

    /// The skew of the rows that workers read.
    fn skew(&self) -> f64 {
        let rows: Vec<u64> = self.workers.iter().map(|worker| worker.counters.rows_in).collect();
        skew(&rows)
    }

    /// The metrics of an operator on each worker.
    pub(super) fn of(&self, operator: usize) -> impl Iterator<Item = &OperatorCounters> + Clone {
        self.workers.iter().filter_map(move |worker| worker.operators.get(operator))
    }

    /// Windows of an operator, by the worker that emitted groups of most; `None` if there are none.
    pub(super) fn windows(&self, operator: usize) -> Option<u64> {
        self.of(operator).map(|one| one.windows).max().filter(|&windows| windows > 0)
    }

    /// How an operator has found groups on any worker.
    pub(super) fn key_modes(&self, operator: usize) -> KeyModes {
        self.of(operator).fold(KeyModes::default(), |all, one| all.union(one.key_modes))
    }

    /// A sum over the workers of what an operator did.
    pub(super) fn sum(&self, operator: usize, of: fn(&OperatorCounters) -> u64) -> u64 {
        self.of(operator).map(of).sum()
    }

    /// Lines of how an operator found the groups of its rows, and of those that did not stay where
    /// they were: with another worker, or on disk.
    fn sent_text(&self, out: &mut String, operator: usize, name: &str) {
        let sum = |of| self.sum(operator, of);
        let all = sum(|one| one.rows_in);
        let (sent, bytes) = (sum(|one| one.rows_sent), sum(|one| one.row_bytes_sent));
        let local = sum(|one| one.local_rows);
        // Writing to a String cannot fail.
        if sent > 0 {
            let each = bytes as f64 / sent as f64;
            let bytes = human(bytes);
            let _ = writeln!(
                out,
                "  {name}: {all} rows came, {sent} sent to other processes in {bytes}, {each:.1} B \
                 each"
            );
        }
        if local > 0 {
            let _ = writeln!(
                out,
                "  {name}: {all} rows came, {local} passed by reference within a process"
            );
        }
        let waited = sum(|one| one.window_wait_ns);
        let all_ns: u64 = self.workers.iter().map(|worker| all_ns(&worker.counters)).sum();
        if percent(waited, all_ns) >= 1.0 {
            let percent = percent(waited, all_ns);
            let _ = writeln!(
                out,
                "  {name}: {percent:.0} % waiting for rows that it sent to be processed, with full \
                 receive windows"
            );
        }
        let modes = self.key_modes(operator);
        if modes != KeyModes::default() {
            let _ = writeln!(out, "  {name}: groups by {}", modes.names().join(", "));
        }
        let fused = sum(|one| one.rows_fused);
        if fused > 0 {
            let _ = writeln!(out, "  {name}: {fused} rows read, filtered and folded in one loop");
        }
        let (combined, groups) = (sum(|one| one.rows_combined), sum(|one| one.groups_sent));
        if combined > 0 {
            let _ = writeln!(
                out,
                "  {name}: {combined} rows of frequent keys grouped where they were read, \
                 {groups} groups of them sent"
            );
        }
        let (built, probed) = (sum(|one| one.build_rows), sum(|one| one.probe_rows));
        if built + probed > 0 {
            let waited = sum(|one| one.build_wait_ns) as f64 / 1e9;
            let _ = writeln!(
                out,
                "  {name}: {built} rows built, {probed} probed, which waited {waited:.3} s for them"
            );
        }
        let chained = sum(|one| one.chain_rows);
        if chained > 0 {
            let _ = writeln!(out, "  {name}: {chained} rows looked up in its chain");
        }
        let changes = sum(|one| one.order_changes);
        if changes > 0 {
            let times = if changes == 1 { "once".into() } else { format!("{changes} times") };
            let _ = writeln!(out, "  {name}: the order of its chain changed {times}");
        }
        let unmatched = sum(|one| one.unmatched_rows);
        if unmatched > 0 {
            let _ = writeln!(out, "  {name}: {unmatched} rows skipped by join filters");
        }
        let (runs, bytes) = (sum(|one| one.spilled_runs), sum(|one| one.spilled_bytes));
        if runs > 0 {
            let _ = writeln!(out, "  {name}: spilled {} in {runs} runs", human(bytes));
        }
    }

    /// A line about the blocks of a pool that an operator read, if it did.
    fn pool_text(&self, out: &mut String, operator: usize, name: &str) {
        let sum = |of| self.sum(operator, of);
        let (blocks, pruned) = (sum(|one| one.pool_blocks), sum(|one| one.pool_pruned_blocks));
        if blocks + pruned == 0 {
            return;
        }
        let per_second = if self.clock_ms.is_some() { " a second" } else { "" };
        let (read, bytes) = (self.number(blocks), self.bytes(sum(|one| one.pool_bytes)));
        let mapped = percent(sum(|one| one.pool_mapped_blocks), blocks);
        let (pruned, waits) = (self.number(pruned), self.number(sum(|one| one.pool_waits)));
        let waited = sum(|one| one.pool_wait_ns) as f64 / 1e9;
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "  {name}: {read} blocks of the pool read{per_second}, {bytes}, {mapped:.0} % mapped; \
             {pruned} pruned; waited {waits} times, {waited:.3} s"
        );
        let leases = sum(|one| one.pool_leases);
        if leases > 0 {
            let _ = write!(out, "; leases: {leases}");
        }
        out.push('\n');
    }

    /// A line about what a source has left to read, where it knows that.
    fn backlog_text(&self, out: &mut String, operator: usize, name: &str) {
        let pending = self.sum(operator, |one| one.pending_records);
        let unreachable = self.sum(operator, |one| one.unreachable_flows);
        // Writing to a String cannot fail.
        if pending > 0 {
            let _ = writeln!(out, "  {name}: {pending} records behind the end");
        }
        if unreachable > 0 {
            let flows = if unreachable == 1 { "flow waits" } else { "flows wait" };
            let _ =
                writeln!(out, "  {name}: {unreachable} {flows} for a server that is not reached");
        }
        let pending = self.sum(operator, |one| one.pending_bytes);
        let retained = self.sum(operator, |one| one.retained_bytes);
        if pending > 0 || retained > 0 {
            let (pending, retained) = (human(pending), human(retained));
            let _ = writeln!(
                out,
                "  {name}: {pending} of the log behind the end; the server keeps {retained} of it"
            );
        }
    }

    fn operators_text(&self, out: &mut String, names: &[String]) {
        let all_ns: u64 = self.workers.iter().map(|worker| all_ns(&worker.counters)).sum();
        let live = self.clock_ms.is_some();
        let mut titles = if live {
            vec!["busy", "waiting", "idle", "in/s", "out/s", "skew", "state"]
        } else {
            vec!["busy", "waiting", "idle", "rows in", "rows out", "skew"]
        };
        titles.extend(if live { &["watermark", "lag"][..] } else { &[] });
        let line = |(at, name): (usize, &String)| {
            let sum = |of| self.sum(at, of);
            let (busy, waiting) = (sum(|one| one.busy_ns), sum(|one| one.backpressured_ns));
            let idle = all_ns.saturating_sub(busy + waiting);
            let rows: Vec<u64> = self.of(at).map(|one| one.rows_in).collect();
            let mut cells: Vec<String> =
                [busy, waiting, idle].map(|ns| format!("{:.0} %", percent(ns, all_ns))).into();
            cells.push(self.number(sum(|one| one.rows_in)));
            cells.push(self.number(sum(|one| one.rows_out)));
            cells.push(format!("{:.2}", skew(&rows)));
            if live {
                cells.push(human(sum(|one| one.state_bytes)));
            }
            // Workers whose input has ended have none.
            let least = self.of(at).filter_map(|one| finite_watermark(one.watermark_ms)).min();
            cells.extend(self.time(least).into_iter().flatten());
            (name.clone(), cells)
        };
        let lines: Vec<_> = names.iter().enumerate().map(line).collect();
        if self.workers.iter().any(|worker| !worker.operators.is_empty()) {
            Self::table(out, "operator", &titles, &lines);
        }
    }

    fn workers_text(&self, out: &mut String) {
        let mut titles = match self.clock_ms {
            None => vec!["busy", "waiting", "idle", "rows in", "rows out", "late", "sent", "state"],
            Some(_) => {
                vec!["busy", "waiting", "idle", "in/s", "out/s", "late/s", "sent/s", "state"]
            }
        };
        titles.extend(if self.clock_ms.is_some() { &["watermark", "lag"][..] } else { &[] });
        let line = |of: &WorkerCounters| {
            let worker = &of.counters;
            let percent = |ns| format!("{:.0} %", percent(ns, all_ns(worker)));
            let state = match self.clock_ms {
                None => worker.state_bytes_peak,
                Some(_) => worker.state_bytes,
            };
            let mut cells = vec![
                percent(worker.busy_ns),
                percent(worker.backpressured_ns),
                percent(worker.idle_ns),
                self.number(worker.rows_in),
                self.number(worker.rows_out),
                self.number(worker.late),
                self.bytes(worker.bytes_sent),
                human(state),
            ];
            let watermark = finite_watermark(worker.watermark_ms);
            cells.extend(self.time(watermark).into_iter().flatten());
            (format!("{} of node {}", of.worker, of.node), cells)
        };
        let lines: Vec<_> = self.workers.iter().map(line).collect();
        Self::table(out, "worker", &titles, &lines);
    }

    /// The same for other programs.
    pub fn json(&self, names: &[String]) -> Value {
        let workers = self.workers.iter();
        let worker = |of: &WorkerCounters| {
            object(json!({ "node": of.node, "worker": of.worker }), &of.counters)
        };
        let operators = |of: &WorkerCounters| -> Vec<Value> {
            let name = |at: usize| {
                let name = names.get(at);
                json!({ "operator": at, "name": name, "node": of.node, "worker": of.worker })
            };
            of.operators.iter().enumerate().map(|(at, one)| object(name(at), one)).collect()
        };
        json!({
            "elapsed_seconds": self.elapsed.as_secs_f64(),
            "clock_ms": self.clock_ms,
            "skew": self.skew(),
            "pairs_of_nodes": self.joined.iter().cloned().collect::<BTreeMap<_, _>>(),
            "workers": workers.clone().map(worker).collect::<Vec<_>>(),
            "operators": workers.flat_map(operators).collect::<Vec<_>>(),
        })
    }
}

/// Something per second, with three digits.
fn per_second(number: u64, elapsed: Duration) -> String {
    let each = number as f64 / elapsed.as_secs_f64().max(1e-6);
    match each {
        ..1e3 => format!("{each:.0}"),
        ..1e6 => format!("{:.3} K", each / 1e3),
        ..1e9 => format!("{:.3} M", each / 1e6),
        _ => format!("{:.3} G", each / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use state::KeyMode;

    use super::*;

    #[test]
    fn skew_is_the_most_over_the_mean() {
        assert_eq!(skew(&[10, 10]), 1.0);
        assert_eq!(skew(&[30, 10]), 1.5);
        assert_eq!(skew(&[0, 0]), 1.0);
    }

    fn ran() -> Ran {
        let worker = |worker, rows: [u64; 2]| {
            let watermark_ms = 1_357_034_400_000;
            let counters = Counters {
                busy_ns: 3,
                backpressured_ns: 1,
                rows_in: 3_000,
                watermark_ms,
                ..Counters::default()
            };
            let operator = OperatorCounters { busy_ns: 1, ..OperatorCounters::default() };
            let operators = vec![
                OperatorCounters { rows_in: rows[0], watermark_ms, ..operator },
                OperatorCounters { rows_in: rows[1], ..operator },
            ];
            WorkerCounters { node: 0, worker, counters, operators }
        };
        Ran {
            elapsed: Duration::from_millis(1500),
            clock_ms: None,
            workers: vec![worker(0, [2_000, 300]), worker(1, [4_000, 100])],
            joined: Vec::new(),
            functions: Vec::new(),
        }
    }

    #[test]
    fn times_are_parts_of_their_sum() {
        let text = ran().text(&["source t".into(), "join".into()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ran in 1.500 s");
        let cells = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(cells(2), "source t 25 % 0 % 75 % 6000 0 1.33", "{text}");
        assert_eq!(cells(3), "join 25 % 0 % 75 % 400 0 1.50", "{text}");
        assert_eq!(cells(5), "0 of node 0 75 % 25 % 0 % 3000 0 0 0 B 0 B", "{text}");
    }

    #[test]
    fn rows_that_went_elsewhere_have_a_line() {
        let mut ran = ran();
        for (at, worker) in ran.workers.iter_mut().enumerate() {
            let operator = &mut worker.operators[1];
            operator.rows_sent = 100 + 200 * at as u64;
            operator.row_bytes_sent = 1_250 + 2_500 * at as u64;
            (operator.spilled_runs, operator.spilled_bytes) = (2, 1 << 10);
            operator.key_modes.insert([KeyMode::Array, KeyMode::Hash][at]);
            operator.rows_fused = 50;
            (operator.rows_combined, operator.groups_sent) = (40, 3);
        }
        ran.workers[0].operators[1].local_rows = 7;
        ran.workers[1].operators[1].window_wait_ns = 2;
        let scan = &mut ran.workers[0].operators[0];
        (scan.pool_blocks, scan.pool_bytes, scan.pool_mapped_blocks) = (40, 10 << 10, 30);
        (scan.pool_pruned_blocks, scan.pool_waits, scan.pool_wait_ns) = (7, 2, 1_500_000_000);
        scan.pool_leases = 1;
        ran.joined = vec![("shm".into(), 2), ("tcp".into(), 4)];
        let text = ran.text(&["source t".into(), "join".into()]);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let expected = [
            "pairs of nodes: 2 by shm, 4 by tcp",
            "source t: 40 blocks of the pool read, 10.0 KiB, 75 % mapped; 7 pruned; waited 2 \
             times, 1.500 s; leases: 1",
            "join: 400 rows came, 400 sent to other processes in 4.9 KiB, 12.5 B each",
            "join: 400 rows came, 7 passed by reference within a process",
            "join: 25 % waiting for rows that it sent to be processed, with full receive windows",
            "join: groups by array, hash",
            "join: 100 rows read, filtered and folded in one loop",
            "join: 80 rows of frequent keys grouped where they were read, 6 groups of them sent",
            "join: spilled 2.0 KiB in 4 runs",
        ];
        assert_eq!(lines[lines.len() - expected.len()..], expected);
        assert_eq!(ran.json(&[])["pairs_of_nodes"]["tcp"], 4);
    }

    #[test]
    fn of_a_job_that_runs_there_are_rates_and_lags() {
        let mut ran = Ran { clock_ms: Some(1_357_034_401_500), ..ran() };
        for (worker, pending) in ran.workers.iter_mut().zip([1_000, 234]) {
            let scan = &mut worker.operators[0];
            (scan.pending_records, scan.unreachable_flows) = (pending, 1);
            (scan.pending_bytes, scan.retained_bytes) = (512, 1024);
        }
        let text = ran.text(&["source t".into(), "join".into()]);
        let line = |name: &str| {
            let mut lines =
                text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            lines.find(|line| line.starts_with(name)).expect(&text)
        };
        let source = "source t 25 % 0 % 75 % 4.000 K 0 1.33 0 B 2013-01-01 10:00:00 1.5 s";
        assert_eq!(line("source t 25"), source);
        assert_eq!(line("source t: 12"), "source t: 1234 records behind the end");
        assert_eq!(line("source t: 2"), "source t: 2 flows wait for a server that is not reached");
        let log = "source t: 1.0 KiB of the log behind the end; the server keeps 2.0 KiB of it";
        assert_eq!(line("source t: 1.0"), log);
        assert!(line("join").ends_with("267 0 1.50 0 B - -"), "{text}");
        assert!(line("0 of").ends_with("2.000 K 0 0 0 B 0 B 2013-01-01 10:00:00 1.5 s"), "{text}");
        assert_eq!(ran.json(&[])["operators"][3]["input_rows"], 100);
    }
}
