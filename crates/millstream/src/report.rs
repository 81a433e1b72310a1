//! Reports of a job, ended or running: counters of workers, summed over a node and over all
//! nodes.

mod counters;
mod packed;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dataflow::bad::{BAD_ROWS_KEPT_MAX, BadRow, BadRows};
use dataflow::metrics::{Metrics, OperatorMetrics};
use plan::{Ran, RanOperator, RanWorker};
use state::KeyModes;

pub use self::counters::{Counters, ProcessorCounters};

use self::packed::{put_number, take_number};
use crate::FabricKind;

/// Workers of a node that are reported one by one at most; the sum holds all.
pub(crate) const REPORTED_WORKERS_MAX: usize = 256;

/// Operators of a worker that are reported one by one at most.
pub(crate) const REPORTED_OPERATORS_MAX: usize = 64;

/// The counters of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Its node.
    pub node: u32,
    /// Its number among all workers of the job.
    pub worker: u32,
    /// Its counters. Bad rows are counted per node, and 0 here.
    pub counters: Counters,
    /// Counters of its operators, in the order of the plan; the first 64.
    pub operators: Vec<OperatorCounters>,
}

/// The counters of an operator on one worker; see [`dataflow::metrics::OperatorMetrics`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OperatorCounters {
    /// Rows that came to it on this worker.
    pub rows_in: u64,
    /// Rows that it gave out on this worker.
    pub rows_out: u64,
    /// Time with work, in nanoseconds.
    pub busy_ns: u64,
    /// Time in which it waited for others to take what it had sent, in nanoseconds.
    pub backpressured_ns: u64,
    /// Bytes of its state now.
    pub state_bytes: u64,
    /// How it has found the groups of rows.
    pub key_modes: KeyModes,
    /// Windows of which it gave out groups.
    pub windows: u64,
    /// Rows of a source that were filtered, found and folded in by one loop.
    pub rows_fused: u64,
    /// Runs of what it keeps that were written to disk because they did not fit memory.
    pub spilled_runs: u64,
    /// Their bytes.
    pub spilled_bytes: u64,
    /// Rows that it sent to workers of other processes.
    pub rows_sent: u64,
    /// Bytes of these.
    pub row_bytes_sent: u64,
    /// Rows that it passed by reference to other workers of the same process.
    pub local_rows: u64,
    /// Rows of frequent keys that it folded in front of a shuffle, where they were read.
    pub rows_combined: u64,
    /// Epochs that it closed, if it groups and its rows meet by merge.
    pub epochs: u64,
    /// Groups in their deltas, or of frequent keys.
    pub groups_sent: u64,
    /// Bytes of these deltas.
    pub delta_bytes: u64,
    /// Bytes of input after which its present epoch ends.
    pub epoch_bytes: u64,
    /// Its watermark in milliseconds since 1970: `i64::MIN` before the first, `i64::MAX` at the
    /// end.
    pub watermark_ms: i64,
}

impl OperatorCounters {
    const FIELDS: usize = 19;

    fn of(operator: &OperatorMetrics) -> Self {
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            rows_in: load(&operator.rows_in),
            rows_out: load(&operator.rows_out),
            busy_ns: load(&operator.busy_ns),
            backpressured_ns: operator.waiting_ns(),
            state_bytes: load(&operator.state_bytes),
            key_modes: KeyModes::from_bits(load(&operator.key_modes)),
            windows: load(&operator.windows),
            rows_fused: load(&operator.rows_fused),
            spilled_runs: load(&operator.spilled_runs),
            spilled_bytes: load(&operator.spilled_bytes),
            rows_sent: load(&operator.rows_sent),
            row_bytes_sent: load(&operator.row_bytes_sent),
            local_rows: load(&operator.rows_handed),
            rows_combined: load(&operator.rows_combined),
            epochs: load(&operator.epochs),
            groups_sent: load(&operator.groups_sent),
            delta_bytes: load(&operator.delta_bytes),
            epoch_bytes: load(&operator.epoch_bytes),
            watermark_ms: operator.watermark_ms.load(Ordering::Relaxed),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let fields: [u64; Self::FIELDS] = [
            self.rows_in,
            self.rows_out,
            self.busy_ns,
            self.backpressured_ns,
            self.state_bytes,
            self.key_modes.bits(),
            self.windows,
            self.rows_fused,
            self.spilled_runs,
            self.spilled_bytes,
            self.rows_sent,
            self.row_bytes_sent,
            self.local_rows,
            self.rows_combined,
            self.epochs,
            self.groups_sent,
            self.delta_bytes,
            self.epoch_bytes,
            self.watermark_ms as u64,
        ];
        fields.iter().for_each(|field| put_number(out, *field));
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut word = || take_number(bytes);
        Some(Self {
            rows_in: word()?,
            rows_out: word()?,
            busy_ns: word()?,
            backpressured_ns: word()?,
            state_bytes: word()?,
            key_modes: KeyModes::from_bits(word()?),
            windows: word()?,
            rows_fused: word()?,
            spilled_runs: word()?,
            spilled_bytes: word()?,
            rows_sent: word()?,
            row_bytes_sent: word()?,
            local_rows: word()?,
            rows_combined: word()?,
            epochs: word()?,
            groups_sent: word()?,
            delta_bytes: word()?,
            epoch_bytes: word()?,
            watermark_ms: word()? as i64,
        })
    }
}

/// A node's report: `total | number of workers | each worker`, and of a worker
/// `counters | number of operators | each operator`. All numbers are [`packed`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeCounters {
    pub(crate) total: Counters,
    /// The first [`REPORTED_WORKERS_MAX`] of them.
    pub(crate) workers: Vec<(Counters, Vec<OperatorCounters>)>,
}

impl NodeCounters {
    /// Reads the counters of this node.
    pub(crate) fn read(metrics: &[Arc<Metrics>], bad: &BadRows) -> Self {
        let mut total = Counters { bad: bad.count(), ..Counters::default() };
        let operators = |one: &Metrics| {
            let reported = one.operators().iter().take(REPORTED_OPERATORS_MAX);
            reported.map(OperatorCounters::of).collect()
        };
        let all = metrics.iter().map(|one| (Counters::of_worker(one), operators(one)));
        let mut workers: Vec<(Counters, Vec<OperatorCounters>)> = all.collect();
        workers.iter().for_each(|(worker, _)| total.add(worker));
        workers.truncate(REPORTED_WORKERS_MAX);
        Self { total, workers }
    }

    /// Its workers, by their numbers in the job.
    pub(crate) fn workers(&self, node: u32, per_node: u32) -> impl Iterator<Item = WorkerCounters> {
        let numbers = node * per_node..;
        numbers.zip(&self.workers).map(move |(worker, (counters, operators))| {
            let (counters, operators) = (*counters, operators.clone());
            WorkerCounters { node, worker, counters, operators }
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.total.encode();
        put_number(&mut out, self.workers.len() as u64);
        for (worker, operators) in &self.workers {
            out.extend(worker.encode());
            put_number(&mut out, operators.len() as u64);
            operators.iter().for_each(|operator| operator.encode(&mut out));
        }
        out
    }

    /// Takes a node's counters off the front of what it sent.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let total = Counters::decode(bytes)?;
        let count = decode_count(bytes, REPORTED_WORKERS_MAX)?;
        let worker = |bytes: &mut &[u8]| {
            let counters = Counters::decode(bytes)?;
            let count = decode_count(bytes, REPORTED_OPERATORS_MAX)?;
            let operators = (0..count).map(|_| OperatorCounters::decode(bytes));
            Some((counters, operators.collect::<Option<_>>()?))
        };
        let workers = (0..count).map(|_| worker(bytes)).collect::<Option<_>>()?;
        Some(Self { total, workers })
    }
}

/// A count of at most `most`, off the front of what a node sent.
fn decode_count(bytes: &mut &[u8], most: usize) -> Option<usize> {
    usize::try_from(take_number(bytes)?).ok().filter(|count| *count <= most)
}

/// The progress of a running job.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Since the first row could be read.
    pub elapsed: Duration,
    /// All nodes; those of other nodes are some hundred milliseconds old.
    pub counters: Counters,
    /// The first 256 workers of each node.
    pub workers: Vec<WorkerCounters>,
    /// How much of a bounded input is done, from 0 to 1; `None` where that is unknown.
    pub done: Option<f64>,
    /// The machine's clock minus the watermark, where there is a watermark.
    pub lag: Option<Duration>,
}

/// How long workers waited for a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkWait {
    /// The sink's name: that of its table, or of the statement.
    pub sink: String,
    /// All workers together.
    pub waited: Duration,
}

/// The report of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// From the first row that could be read to the last that was written, on this node.
    pub elapsed: Duration,
    /// All nodes.
    pub total: Counters,
    /// Each node, by rank.
    pub nodes: Vec<Counters>,
    /// The first 256 workers of each node, in their last job.
    pub workers: Vec<WorkerCounters>,
    /// How many pairs of nodes were joined by which transport, in their last job.
    pub joined: Vec<(FabricKind, u64)>,
    /// The sinks, and how long they were waited for.
    pub sinks: Vec<SinkWait>,
    /// The first bad rows of each node.
    pub bad_rows: Vec<BadRow>,
    /// The job ended because it was asked to.
    pub cancelled: bool,
}

impl Report {
    /// The data for EXPLAIN ANALYZE.
    pub(crate) fn ran(&self) -> Ran {
        let finite =
            |watermark_ms: i64| Some(watermark_ms).filter(|ms| ![i64::MIN, i64::MAX].contains(ms));
        let worker = |worker: &WorkerCounters| {
            let counters = &worker.counters;
            RanWorker {
                node: worker.node,
                worker: worker.worker,
                busy_ns: counters.busy_ns,
                backpressured_ns: counters.backpressured_ns,
                idle_ns: counters.idle_ns,
                rows_in: counters.rows_in,
                rows_out: counters.rows_out,
                late: counters.late,
                bytes_sent: counters.bytes_sent,
                state_bytes_peak: counters.state_bytes_peak,
                state_bytes: counters.state_bytes,
                watermark_ms: finite(counters.watermark_ms),
            }
        };
        let operators = self.workers.iter().flat_map(|worker| {
            worker.operators.iter().enumerate().map(move |(operator, counters)| RanOperator {
                operator,
                node: worker.node,
                worker: worker.worker,
                busy_ns: counters.busy_ns,
                backpressured_ns: counters.backpressured_ns,
                rows_in: counters.rows_in,
                rows_out: counters.rows_out,
                state_bytes: counters.state_bytes,
                key_modes: counters.key_modes,
                windows: counters.windows,
                rows_fused: counters.rows_fused,
                spilled_runs: counters.spilled_runs,
                spilled_bytes: counters.spilled_bytes,
                rows_sent: counters.rows_sent,
                row_bytes_sent: counters.row_bytes_sent,
                rows_handed: counters.local_rows,
                rows_combined: counters.rows_combined,
                epochs: counters.epochs,
                groups_sent: counters.groups_sent,
                delta_bytes: counters.delta_bytes,
                epoch_bytes: counters.epoch_bytes,
                watermark_ms: finite(counters.watermark_ms),
            })
        });
        Ran {
            elapsed: self.elapsed,
            clock_ms: None,
            workers: self.workers.iter().map(worker).collect(),
            operators: operators.collect(),
            joined: self.joined.iter().map(|(kind, pairs)| (kind.to_string(), *pairs)).collect(),
        }
    }

    /// Adds a job that ran after this one.
    pub(crate) fn then(&mut self, next: Report) {
        self.elapsed += next.elapsed;
        self.nodes.resize(self.nodes.len().max(next.nodes.len()), Counters::default());
        for (node, counters) in self.nodes.iter_mut().zip(&next.nodes) {
            node.then(counters);
        }
        self.total.then(&next.total);
        self.workers = next.workers;
        self.joined = next.joined;
        self.sinks.extend(next.sinks);
        self.bad_rows.extend(next.bad_rows);
        self.cancelled |= next.cancelled;
    }
}

impl Counters {
    /// Adds what the same workers did in the next job.
    fn then(&mut self, next: &Self) {
        let peak = self.state_bytes_peak.max(next.state_bytes_peak);
        self.add(next);
        self.state_bytes_peak = peak;
        self.watermark_ms = next.watermark_ms;
    }
}

/// A node's counters and bad rows, for all to have.
pub(crate) fn encode_end(counters: &NodeCounters, bad: &[BadRow]) -> Vec<u8> {
    let mut out = counters.encode();
    for row in bad {
        for text in [&row.table, &row.place, &row.reason, &row.text] {
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

/// The inverse of [`encode_end`].
pub(crate) fn decode_end(mut bytes: &[u8]) -> Option<(NodeCounters, Vec<BadRow>)> {
    let counters = NodeCounters::decode(&mut bytes)?;
    let mut text = || {
        let (len, rest) = bytes.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    };
    let mut bad = Vec::new();
    while let Some(table) = text() {
        bad.push(BadRow { table, place: text()?, reason: text()?, text: text()? });
    }
    (bytes.is_empty() && bad.len() <= BAD_ROWS_KEPT_MAX).then_some((counters, bad))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_end_survives_the_wire() {
        let total = Counters { rows_in: 7, watermark_ms: -3, late: u64::MAX, ..Default::default() };
        let operator = OperatorCounters {
            rows_in: 1,
            rows_out: 2,
            busy_ns: 3,
            backpressured_ns: 4,
            state_bytes: 5,
            key_modes: KeyModes::from_bits(16),
            windows: 19,
            rows_fused: 17,
            spilled_runs: 6,
            spilled_bytes: 7,
            rows_sent: 8,
            row_bytes_sent: 9,
            local_rows: 10,
            rows_combined: 18,
            epochs: 11,
            groups_sent: 12,
            delta_bytes: 13,
            epoch_bytes: 14,
            watermark_ms: i64::MIN,
        };
        let workers = vec![(total, vec![operator; 2]), (Counters::default(), vec![])];
        let counters = NodeCounters { total, workers };
        let row = |n: u32| BadRow {
            table: "flights".into(),
            place: format!("a.csv:{n}"),
            reason: String::new(),
            text: "é".into(),
        };
        let bad = vec![row(1), row(2)];
        let bytes = encode_end(&counters, &bad);
        assert_eq!(decode_end(&bytes), Some((counters, bad)));
        assert_eq!(decode_end(&bytes[..20]), None);
        assert_eq!(decode_end(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn the_longest_report_is_not_left_out() {
        let most = Counters::from_fields([u64::MAX; Counters::FIELDS]);
        let worker = (most, vec![of_all(u64::MAX); REPORTED_OPERATORS_MAX]);
        let report = NodeCounters { total: most, workers: vec![worker; REPORTED_WORKERS_MAX] };
        let bytes = report.encode();
        assert!(bytes.len() <= cluster::PROGRESS_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(NodeCounters::decode(&mut &bytes[..]), Some(report));
    }

    fn of_all(number: u64) -> OperatorCounters {
        let mut bytes = Vec::new();
        (0..OperatorCounters::FIELDS).for_each(|_| put_number(&mut bytes, number));
        OperatorCounters::decode(&mut &bytes[..]).expect("as many as there are")
    }

    #[test]
    fn the_lowest_watermark_counts_and_the_rest_adds_up() {
        let a = Counters { rows_in: 1, state_bytes_peak: 5, watermark_ms: 9, ..Default::default() };
        let b = Counters { rows_in: 2, state_bytes_peak: 6, watermark_ms: 4, ..Default::default() };
        let mut sum = Counters::default();
        sum.add(&a);
        sum.add(&b);
        assert_eq!((sum.rows_in, sum.state_bytes_peak, sum.watermark_ms), (3, 11, 4));
    }
}
