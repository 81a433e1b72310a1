//! Reports of a job, ended or running: counters of workers, summed over a node and over all
//! nodes.

use std::sync::Arc;
use std::time::Duration;

use dataflow::bad::{BAD_ROWS_KEPT_MAX, BadRow, BadRows};
use dataflow::metrics::{
    Counters, Metrics, OperatorCounters, OperatorMetrics, Snapshot, WorkerCounters,
};
use plan::Ran;

use crate::FabricKind;
use crate::checkpoints::CheckpointProgress;
use crate::costs::{JobCosts, MeasuredCosts};
use crate::error::Error;
use crate::packed::{put_number, take_number};

/// Workers of a node that are reported one by one at most; the sum holds all.
pub(crate) const REPORTED_WORKERS_MAX: usize = 256;

/// Operators of a worker that are reported one by one at most.
pub(crate) const REPORTED_OPERATORS_MAX: usize = 46;

/// A node's report: `total | bad rows | number of workers | each worker`, and of a worker
/// `counters | number of operators | each operator`. All numbers are [`packed`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeCounters {
    pub(crate) total: Counters,
    /// Rows that its sources could not read.
    pub(crate) bad: u64,
    /// The first [`REPORTED_WORKERS_MAX`] of them.
    pub(crate) workers: Vec<(Counters, Vec<OperatorCounters>)>,
}

impl NodeCounters {
    /// Reads the counters of this node.
    pub(crate) fn read(metrics: &[Arc<Metrics>], bad: &BadRows) -> Self {
        let mut total = Counters::default();
        let operators = |one: &Metrics| {
            let reported = one.operators().iter().take(REPORTED_OPERATORS_MAX);
            reported.map(OperatorMetrics::read).collect()
        };
        let all = metrics.iter().map(|one| (one.read(), operators(one)));
        let mut workers: Vec<(Counters, Vec<OperatorCounters>)> = all.collect();
        workers.iter().for_each(|(worker, _)| total.add(worker));
        workers.truncate(REPORTED_WORKERS_MAX);
        Self { total, bad: bad.count(), workers }
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
        let mut out = Vec::new();
        encode(&self.total, &mut out);
        put_number(&mut out, self.bad);
        put_number(&mut out, self.workers.len() as u64);
        for (worker, operators) in &self.workers {
            encode(worker, &mut out);
            put_number(&mut out, operators.len() as u64);
            operators.iter().for_each(|operator| encode(operator, &mut out));
        }
        out
    }

    /// Takes a node's counters off the front of what it sent.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let total = decode(bytes)?;
        let bad = take_number(bytes)?;
        let count = decode_count(bytes, REPORTED_WORKERS_MAX)?;
        let worker = |bytes: &mut &[u8]| {
            let counters = decode(bytes)?;
            let count = decode_count(bytes, REPORTED_OPERATORS_MAX)?;
            let operators = (0..count).map(|_| decode(bytes));
            Some((counters, operators.collect::<Option<_>>()?))
        };
        let workers = (0..count).map(|_| worker(bytes)).collect::<Option<_>>()?;
        Some(Self { total, bad, workers })
    }
}

/// Appends all values of a snapshot.
fn encode(counters: &impl Snapshot, out: &mut Vec<u8>) {
    counters.words().into_iter().for_each(|word| put_number(out, word));
}

/// Takes a snapshot off the front of what a node sent.
fn decode<S: Snapshot>(bytes: &mut &[u8]) -> Option<S> {
    S::from_words(|_| take_number(bytes))
}

/// A count of at most `most`, off the front of what a node sent.
fn decode_count(bytes: &mut &[u8], most: usize) -> Option<usize> {
    usize::try_from(take_number(bytes)?).ok().filter(|count| *count <= most)
}

/// The progress of a running job.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct JobProgress {
    /// Since the first row could be read.
    pub elapsed: Duration,
    /// All nodes; those of other nodes are some hundred milliseconds old.
    pub counters: Counters,
    /// Rows that sources could not read, on all nodes.
    pub bad: u64,
    /// The first 256 workers of each node.
    pub workers: Vec<WorkerCounters>,
    /// How much of a bounded input is done, from 0 to 1; `None` where that is unknown.
    pub done: Option<f64>,
    /// The machine's clock minus the watermark, where there is a watermark.
    pub lag: Option<Duration>,
    /// Its checkpoints, if it keeps some.
    pub checkpoints: Option<CheckpointProgress>,
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
    /// Rows that sources could not read, on all nodes.
    pub bad: u64,
    /// The first bad rows of each node.
    pub bad_rows: Vec<BadRow>,
    /// The checkpoints of the last job, if it kept some, at node 0.
    pub checkpoints: Option<CheckpointProgress>,
    /// The job ended because it was asked to.
    pub cancelled: bool,
}

impl Report {
    /// The data for EXPLAIN ANALYZE.
    pub(crate) fn ran(&self) -> Ran {
        Ran {
            elapsed: self.elapsed,
            clock_ms: None,
            workers: self.workers.clone(),
            joined: self.joined.iter().map(|(kind, pairs)| (kind.to_string(), *pairs)).collect(),
            functions: Vec::new(),
        }
    }

    /// The same with what each node has sent at its end, by rank; and the costs that it has sent.
    ///
    /// # Errors
    /// When a node has sent something else.
    pub(crate) fn with_ends(
        mut self,
        ends: &[Vec<u8>],
        per_node: u32,
        costs: &JobCosts,
    ) -> Result<(Self, MeasuredCosts), Error> {
        let mut measured = MeasuredCosts::default();
        for (rank, bytes) in (0..).zip(ends) {
            let end = decode_end(bytes, costs, &mut measured);
            let (node, bad) = end.ok_or(Error::Unlike { rank, what: "report" })?;
            self.total.add(&node.total);
            self.bad = self.bad.saturating_add(node.bad);
            self.workers.extend(node.workers(rank, per_node));
            self.nodes.push(node.total);
            self.bad_rows.extend(bad);
        }
        Ok((self, measured))
    }

    /// Adds a job that ran after this one.
    pub(crate) fn then(&mut self, next: Report) {
        self.elapsed += next.elapsed;
        self.nodes.resize(self.nodes.len().max(next.nodes.len()), Counters::default());
        for (node, counters) in self.nodes.iter_mut().zip(&next.nodes) {
            node.add_next(counters);
        }
        self.total.add_next(&next.total);
        self.bad += next.bad;
        self.workers = next.workers;
        self.joined = next.joined;
        self.sinks.extend(next.sinks);
        self.bad_rows.extend(next.bad_rows);
        self.checkpoints = next.checkpoints.or(self.checkpoints.take());
        self.cancelled |= next.cancelled;
    }
}

/// A node's counters, the costs that it has measured and bad rows, for all to have.
pub(crate) fn encode_end(counters: &NodeCounters, costs: &JobCosts, bad: &[BadRow]) -> Vec<u8> {
    let mut out = counters.encode();
    costs.encode(&mut out);
    for row in bad {
        for text in [&row.table, &row.place, &row.reason, &row.text] {
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

/// The inverse of [`encode_end`]; the costs are added to `measured`.
pub(crate) fn decode_end(
    mut bytes: &[u8],
    costs: &JobCosts,
    measured: &mut MeasuredCosts,
) -> Option<(NodeCounters, Vec<BadRow>)> {
    let counters = NodeCounters::decode(&mut bytes)?;
    costs.decode(&mut bytes, measured)?;
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
        let operator =
            OperatorCounters { rows_in: 1, watermark_ms: i64::MIN, ..Default::default() };
        let workers = vec![(total, vec![operator; 2]), (Counters::default(), vec![])];
        let counters = NodeCounters { total, bad: 2, workers };
        let row = |n: u32| BadRow {
            table: "flights".into(),
            place: format!("a.csv:{n}"),
            reason: String::new(),
            text: "é".into(),
        };
        let bad = vec![row(1), row(2)];
        let bytes = encode_end(&counters, &JobCosts::default(), &bad);
        let decode = |bytes| decode_end(bytes, &JobCosts::default(), &mut MeasuredCosts::default());
        assert_eq!(decode(&bytes), Some((counters, bad)));
        assert_eq!(decode(&bytes[..20]), None);
        assert_eq!(decode(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn the_longest_report_is_not_left_out() {
        fn most<S: Snapshot>() -> S {
            S::from_words(|_| Some(u64::MAX)).expect("as many as there are")
        }
        let worker = (most(), vec![most(); REPORTED_OPERATORS_MAX]);
        let workers = vec![worker; REPORTED_WORKERS_MAX];
        let report = NodeCounters { total: most(), bad: u64::MAX, workers };
        let bytes = report.encode();
        assert!(bytes.len() <= cluster::PROGRESS_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(NodeCounters::decode(&mut &bytes[..]), Some(report));
    }
}
