//! Counters of a worker, read by others while it runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use state::{KeyModes, Spilled};

use crate::connector::gauge::SinkGauge;

/// The counters of one worker. Written by that worker alone, with relaxed stores: each is right by
/// itself, and a reader sees it late by microseconds.
#[derive(Debug)]
pub struct Metrics {
    /// Rows read from sources.
    pub rows_in: AtomicU64,
    /// Bytes of Arrow buffers read from sources.
    pub bytes_in: AtomicU64,
    /// Rows dropped from a window because they were late.
    pub late: AtomicU64,
    /// Frames sent to workers of other processes.
    pub frames_out: AtomicU64,
    /// Bytes sent to workers of other processes.
    pub bytes_out: AtomicU64,
    /// Links that went on over another connection because theirs broke.
    pub mended_links: AtomicU64,
    /// Rows handed over, by reference, to other workers of this process.
    pub rows_handed: AtomicU64,
    /// Bytes handed over: of these rows, and of partial states.
    pub bytes_handed: AtomicU64,
    /// Epochs closed.
    pub epochs: AtomicU64,
    /// Windows fired, counted once per leader.
    pub windows: AtomicU64,
    /// Changes of the trees by which rows reach every worker.
    pub tree_changes: AtomicU64,
    /// Frames of rows for every worker that were sent to other processes: this worker's own, and
    /// those that it passed on.
    pub cast_frames: AtomicU64,
    /// Bytes of these frames, and of payloads that the network copied, once.
    pub cast_bytes: AtomicU64,
    /// Payloads of this worker's own that went to all processes by the network's multicast.
    pub cast_flown: AtomicU64,
    /// Payloads of others that came by it; and those that did not, and were fetched.
    pub cast_landed: AtomicU64,
    /// See `cast_landed`.
    pub cast_fetched: AtomicU64,
    /// Time in which this worker encoded its own rows for every worker, in nanoseconds.
    pub cast_encode_ns: AtomicU64,
    /// Time in which it wrote its own into rings of other processes, in nanoseconds.
    pub cast_send_ns: AtomicU64,
    /// Bytes of window state now.
    pub state_bytes: AtomicU64,
    /// Most bytes of window state so far.
    pub state_bytes_peak: AtomicU64,
    /// Runs of groups and of rows that were written to disk because they did not fit.
    pub spilled_runs: AtomicU64,
    /// Their bytes.
    pub spilled_bytes: AtomicU64,
    /// Bytes read back.
    pub unspilled_bytes: AtomicU64,
    /// The worker's low watermark in milliseconds since 1970; `i64::MIN` before the first,
    /// `i64::MAX` at the end.
    pub watermark_ms: AtomicI64,
    /// Processor time that the worker's thread has used, in nanoseconds; set by who runs the
    /// worker, where the system tells.
    pub cpu_ns: AtomicU64,
    /// What the processor has counted of that thread outside the kernel; set as `cpu_ns` is, 0
    /// where that is not asked for or not to be had: cycles.
    pub cycles: AtomicU64,
    /// Instructions that were retired.
    pub instructions: AtomicU64,
    /// Reads that the first-level data cache did not have.
    pub l1_misses: AtomicU64,
    /// Misses of the last level of the caches.
    pub llc_misses: AtomicU64,
    /// Branches that were foretold wrongly.
    pub branch_misses: AtomicU64,
    /// Time of the worker's thread with work, in nanoseconds.
    pub busy_ns: AtomicU64,
    /// Time in which nothing was ready, in nanoseconds.
    pub idle_ns: AtomicU64,
    /// Without waiting for sinks: time in which something waited for credit and nothing else was
    /// ready, in nanoseconds.
    pub backpressured_ns: AtomicU64,
    /// Work done of bounded inputs, in rows or bytes as
    /// [`Split`](crate::connector::source::Split) counts.
    pub flows_done: AtomicU64,
    operators: OnceLock<Box<[OperatorMetrics]>>,
}

/// The counters of one operator on one worker.
///
/// Rows are pushed, so the time of an operator is that of its own coroutines: with what is behind
/// it up to the next operator that keeps rows, and without what pushes rows into it. A frame of
/// another worker costs the operator that it is for.
#[derive(Debug)]
pub struct OperatorMetrics {
    /// Rows that came to it on this worker, before they go to others.
    pub rows_in: AtomicU64,
    /// Rows that it gave out on this worker.
    pub rows_out: AtomicU64,
    /// Time with work, in nanoseconds.
    pub busy_ns: AtomicU64,
    /// Time in which it waited for others to take what it had sent, and the worker had nothing else
    /// to do, in nanoseconds.
    pub backpressured_ns: AtomicU64,
    /// Bytes of its state now.
    pub state_bytes: AtomicU64,
    /// How it has found the groups of rows: [`state::KeyModes::bits`].
    pub key_modes: AtomicU64,
    /// Windows of which it gave out groups.
    pub windows: AtomicU64,
    /// Rows of a source that were filtered, found and folded in by one loop, by the row as it was
    /// read.
    pub rows_fused: AtomicU64,
    /// Runs of what it keeps that it wrote to disk.
    pub spilled_runs: AtomicU64,
    /// Their bytes.
    pub spilled_bytes: AtomicU64,
    /// Rows that it sent to workers of other processes.
    pub rows_sent: AtomicU64,
    /// Bytes of these, as they travel.
    pub row_bytes_sent: AtomicU64,
    /// Rows that it handed over, by reference, to other workers of this process.
    pub rows_handed: AtomicU64,
    /// Rows of frequent keys that it folded in front of a shuffle, where they were read.
    pub rows_combined: AtomicU64,
    /// Epochs that it closed, where its workers meet by merge.
    pub epochs: AtomicU64,
    /// Groups in the deltas of these epochs, or of frequent keys.
    pub groups_sent: AtomicU64,
    /// Bytes of these deltas.
    pub delta_bytes: AtomicU64,
    /// Bytes of input after which its present epoch ends.
    pub epoch_bytes: AtomicU64,
    /// The watermark of what it gives out, as [`Metrics::watermark_ms`].
    pub watermark_ms: AtomicI64,
    /// Of a sink that this worker writes.
    pub(crate) sink: OnceLock<Arc<SinkGauge>>,
}

impl Default for OperatorMetrics {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            rows_in: zero(),
            rows_out: zero(),
            busy_ns: zero(),
            backpressured_ns: zero(),
            state_bytes: zero(),
            key_modes: zero(),
            windows: zero(),
            rows_fused: zero(),
            spilled_runs: zero(),
            spilled_bytes: zero(),
            rows_sent: zero(),
            row_bytes_sent: zero(),
            rows_handed: zero(),
            rows_combined: zero(),
            epochs: zero(),
            groups_sent: zero(),
            delta_bytes: zero(),
            epoch_bytes: zero(),
            watermark_ms: AtomicI64::new(i64::MIN),
            sink: OnceLock::new(),
        }
    }
}

impl OperatorMetrics {
    /// Time in which it waited, and the worker had nothing else to do: for others to take what it
    /// had sent, or for its sink, in nanoseconds.
    pub fn waiting_ns(&self) -> u64 {
        let sink = self.sink.get().map_or(0, |sink| sink.waiting_ns());
        self.backpressured_ns.load(Ordering::Relaxed) + sink
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            rows_in: zero(),
            bytes_in: zero(),
            late: zero(),
            frames_out: zero(),
            bytes_out: zero(),
            mended_links: zero(),
            rows_handed: zero(),
            bytes_handed: zero(),
            epochs: zero(),
            windows: zero(),
            tree_changes: zero(),
            cast_frames: zero(),
            cast_bytes: zero(),
            cast_flown: zero(),
            cast_landed: zero(),
            cast_fetched: zero(),
            cast_encode_ns: zero(),
            cast_send_ns: zero(),
            state_bytes: zero(),
            state_bytes_peak: zero(),
            spilled_runs: zero(),
            spilled_bytes: zero(),
            unspilled_bytes: zero(),
            watermark_ms: AtomicI64::new(i64::MIN),
            cpu_ns: zero(),
            cycles: zero(),
            instructions: zero(),
            l1_misses: zero(),
            llc_misses: zero(),
            branch_misses: zero(),
            busy_ns: zero(),
            idle_ns: zero(),
            backpressured_ns: zero(),
            flows_done: zero(),
            operators: OnceLock::new(),
        }
    }
}

impl Metrics {
    /// The counters of the operators, in the order of the job; none before there is a worker.
    pub fn operators(&self) -> &[OperatorMetrics] {
        self.operators.get().map_or(&[], |operators| operators)
    }

    /// Rows that have reached sinks.
    pub fn rows_out(&self) -> u64 {
        self.sinks().map(SinkGauge::rows).sum()
    }

    /// Time in which the worker waited, for credit or for a sink, and had nothing else to do, in
    /// nanoseconds; also of a wait that is going on.
    pub fn waiting_ns(&self) -> u64 {
        let sinks = self.sinks().map(SinkGauge::waiting_ns);
        self.backpressured_ns.load(Ordering::Relaxed) + sinks.sum::<u64>()
    }

    /// Time waited for sinks in calls that are over, and for room.
    pub(crate) fn waited_for_sinks_ns(&self) -> u64 {
        self.sinks().map(SinkGauge::waited_ns).sum()
    }

    /// A sink that holds rows back, if there is one.
    pub(crate) fn sink_without_room(&self) -> Option<&SinkGauge> {
        self.sinks().find(|sink| sink.holds_back())
    }

    fn sinks(&self) -> impl Iterator<Item = &SinkGauge> {
        self.operators().iter().filter_map(|operator| operator.sink.get().map(AsRef::as_ref))
    }

    /// Adds rows that an operator has sent.
    pub(crate) fn count_sent(&self, operator: u32, rows: usize, bytes: usize) {
        if let Some(operator) = self.operators().get(operator as usize) {
            Self::add(&operator.rows_sent, rows as u64);
            Self::add(&operator.row_bytes_sent, bytes as u64);
        }
    }

    /// Adds rows that an operator has folded in as they were read.
    pub(crate) fn count_fused(&self, operator: u32, rows: usize) {
        if let Some(operator) = self.operators().get(operator as usize) {
            Self::add(&operator.rows_fused, rows as u64);
        }
    }

    /// Adds what an operator has written and read since `before`, which it moves on.
    pub(crate) fn count_spilled(&self, operator: u32, before: &Cell<Spilled>, now: Spilled) {
        let was = before.replace(now);
        if now == was {
            return;
        }
        let (runs, bytes) = (now.runs - was.runs, now.bytes - was.bytes);
        Self::add(&self.spilled_runs, runs);
        Self::add(&self.spilled_bytes, bytes);
        Self::add(&self.unspilled_bytes, now.read_bytes - was.read_bytes);
        if let Some(operator) = self.operators().get(operator as usize) {
            Self::add(&operator.spilled_runs, runs);
            Self::add(&operator.spilled_bytes, bytes);
        }
    }

    /// Tells how an operator has found groups.
    pub(crate) fn set_key_modes(&self, operator: u32, modes: KeyModes) {
        if let Some(operator) = self.operators().get(operator as usize) {
            operator.key_modes.store(modes.bits(), Ordering::Relaxed);
        }
    }

    /// Adds windows of which an operator gives out groups.
    pub(crate) fn count_windows(&self, operator: u32, windows: usize) {
        Self::add(&self.windows, windows as u64);
        if let Some(operator) = self.operators().get(operator as usize) {
            Self::add(&operator.windows, windows as u64);
        }
    }

    /// Makes room for the operators of a job, once.
    pub(crate) fn count_operators(&self, operators: usize) {
        self.operators.get_or_init(|| (0..operators).map(|_| Default::default()).collect());
    }

    /// Adds to a counter that only the calling worker writes.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}
