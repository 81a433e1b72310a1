//! A worker's counters, as numbers that nodes send each other.

use std::sync::atomic::{AtomicU64, Ordering};

use dataflow::metrics::Metrics;

use super::packed::{put_number, take_number};

/// Hardware counters of workers outside the kernel, from the time when all had opened: known when
/// they have ended, where they were asked for and are available, else 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessorCounters {
    /// Cycles.
    pub cycles: u64,
    /// Instructions that were retired.
    pub instructions: u64,
    /// Reads that the first-level data cache did not have.
    pub l1_misses: u64,
    /// Misses of the last level of the caches.
    pub llc_misses: u64,
    /// Branches that were predicted wrongly.
    pub branch_misses: u64,
}

impl ProcessorCounters {
    const FIELDS: usize = 5;

    fn of_worker(worker: &Metrics) -> Self {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            cycles: load(&worker.cycles),
            instructions: load(&worker.instructions),
            l1_misses: load(&worker.l1_misses),
            llc_misses: load(&worker.llc_misses),
            branch_misses: load(&worker.branch_misses),
        }
    }

    fn fields(self) -> [u64; Self::FIELDS] {
        let Self { cycles, instructions, l1_misses, llc_misses, branch_misses } = self;
        [cycles, instructions, l1_misses, llc_misses, branch_misses]
    }

    fn from_fields(fields: [u64; Self::FIELDS]) -> Self {
        let [cycles, instructions, l1_misses, llc_misses, branch_misses] = fields;
        Self { cycles, instructions, l1_misses, llc_misses, branch_misses }
    }
}

/// The sum of the counters of some workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Rows read from sources.
    pub rows_in: u64,
    /// Bytes of Arrow buffers read from sources.
    pub bytes_in: u64,
    /// Rows that have reached sinks.
    pub rows_out: u64,
    /// Rows dropped from a window because they were late.
    pub late: u64,
    /// Rows that a source could not read.
    pub bad: u64,
    /// Frames sent to workers of other processes.
    pub frames_sent: u64,
    /// Bytes sent to workers of other processes.
    pub bytes_sent: u64,
    /// Links that went on over another connection because theirs broke, each counted at both ends.
    pub reconnected_links: u64,
    /// Rows passed by reference to other workers of the same process.
    pub local_rows: u64,
    /// Bytes passed by reference: of these rows, and of partial states.
    pub local_bytes: u64,
    /// Changes of the trees by which rows reach every worker.
    pub tree_changes: u64,
    /// Frames of rows for every worker sent to other processes.
    pub cast_frames: u64,
    /// Bytes of these frames, and of payloads that the network copied, once.
    pub cast_bytes: u64,
    /// Payloads that went to all processes by the network's multicast.
    pub cast_flown: u64,
    /// Payloads of others that came by it; and those that did not, and were fetched.
    pub cast_landed: u64,
    /// See `cast_landed`.
    pub cast_fetched: u64,
    /// Time in which workers encoded their own rows for every worker, in nanoseconds.
    pub cast_encode_ns: u64,
    /// Time in which they wrote these into rings of other processes, in nanoseconds.
    pub cast_send_ns: u64,
    /// Epochs closed.
    pub epochs: u64,
    /// Groups in their deltas, or of frequent keys.
    pub groups_sent: u64,
    /// Windows triggered, counted once per leader.
    pub windows: u64,
    /// Bytes of window state now.
    pub state_bytes: u64,
    /// Most bytes of window state, each worker at its own time.
    pub state_bytes_peak: u64,
    /// Runs of groups that were written to disk because they did not fit memory.
    pub spilled_runs: u64,
    /// Their bytes.
    pub spilled_bytes: u64,
    /// Bytes read back.
    pub unspilled_bytes: u64,
    /// Processor time of the workers from when all had opened, in nanoseconds; known when they have
    /// ended, 0 where the system does not tell.
    pub cpu_ns: u64,
    /// Hardware counters of the same time.
    pub processor: ProcessorCounters,
    /// Time of the workers' threads with work, in nanoseconds.
    pub busy_ns: u64,
    /// Time in which workers had nothing to do, in nanoseconds.
    pub idle_ns: u64,
    /// Time in which workers waited for others to take what they had sent, or for a sink, and had
    /// nothing else to do, in nanoseconds.
    pub backpressured_ns: u64,
    /// Flows read to their end.
    pub flows_done: u64,
    /// The lowest watermark in milliseconds since 1970: `i64::MIN` before the first, `i64::MAX` at
    /// the end.
    pub watermark_ms: i64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            rows_in: 0,
            bytes_in: 0,
            rows_out: 0,
            late: 0,
            bad: 0,
            frames_sent: 0,
            bytes_sent: 0,
            reconnected_links: 0,
            local_rows: 0,
            local_bytes: 0,
            tree_changes: 0,
            cast_frames: 0,
            cast_bytes: 0,
            cast_flown: 0,
            cast_landed: 0,
            cast_fetched: 0,
            cast_encode_ns: 0,
            cast_send_ns: 0,
            epochs: 0,
            groups_sent: 0,
            windows: 0,
            state_bytes: 0,
            state_bytes_peak: 0,
            spilled_runs: 0,
            spilled_bytes: 0,
            unspilled_bytes: 0,
            cpu_ns: 0,
            processor: ProcessorCounters::default(),
            busy_ns: 0,
            idle_ns: 0,
            backpressured_ns: 0,
            flows_done: 0,
            watermark_ms: i64::MAX,
        }
    }
}

impl Counters {
    pub(super) const FIELDS: usize = 32 + ProcessorCounters::FIELDS;

    /// Reads the counters of a worker. Bad rows are counted per node.
    pub(super) fn of_worker(worker: &Metrics) -> Self {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            rows_in: load(&worker.rows_in),
            bytes_in: load(&worker.bytes_in),
            rows_out: worker.rows_out(),
            late: load(&worker.late),
            bad: 0,
            frames_sent: load(&worker.frames_out),
            bytes_sent: load(&worker.bytes_out),
            reconnected_links: load(&worker.mended_links),
            local_rows: load(&worker.rows_handed),
            local_bytes: load(&worker.bytes_handed),
            tree_changes: load(&worker.tree_changes),
            cast_frames: load(&worker.cast_frames),
            cast_bytes: load(&worker.cast_bytes),
            cast_flown: load(&worker.cast_flown),
            cast_landed: load(&worker.cast_landed),
            cast_fetched: load(&worker.cast_fetched),
            cast_encode_ns: load(&worker.cast_encode_ns),
            cast_send_ns: load(&worker.cast_send_ns),
            epochs: load(&worker.epochs),
            groups_sent: worker.operators().iter().map(|one| load(&one.groups_sent)).sum(),
            windows: load(&worker.windows),
            state_bytes: load(&worker.state_bytes),
            state_bytes_peak: load(&worker.state_bytes_peak),
            spilled_runs: load(&worker.spilled_runs),
            spilled_bytes: load(&worker.spilled_bytes),
            unspilled_bytes: load(&worker.unspilled_bytes),
            cpu_ns: load(&worker.cpu_ns),
            processor: ProcessorCounters::of_worker(worker),
            busy_ns: load(&worker.busy_ns),
            idle_ns: load(&worker.idle_ns),
            backpressured_ns: worker.waiting_ns(),
            flows_done: load(&worker.flows_done),
            watermark_ms: worker.watermark_ms.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let lowest = self.watermark_ms.min(other.watermark_ms);
        let sum = self.fields().into_iter().zip(other.fields()).map(|(a, b)| a.wrapping_add(b));
        let mut fields = [0; Self::FIELDS];
        for (field, value) in fields.iter_mut().zip(sum) {
            *field = value;
        }
        *self = Self { watermark_ms: lowest, ..Self::from_fields(fields) };
    }

    pub(super) fn fields(&self) -> [u64; Self::FIELDS] {
        let [cycles, instructions, l1_misses, llc_misses, branch_misses] = self.processor.fields();
        [
            self.rows_in,
            self.bytes_in,
            self.rows_out,
            self.late,
            self.bad,
            self.frames_sent,
            self.bytes_sent,
            self.reconnected_links,
            self.local_rows,
            self.local_bytes,
            self.tree_changes,
            self.cast_frames,
            self.cast_bytes,
            self.cast_flown,
            self.cast_landed,
            self.cast_fetched,
            self.cast_encode_ns,
            self.cast_send_ns,
            self.epochs,
            self.groups_sent,
            self.windows,
            self.state_bytes,
            self.state_bytes_peak,
            self.spilled_runs,
            self.spilled_bytes,
            self.unspilled_bytes,
            self.cpu_ns,
            self.busy_ns,
            self.idle_ns,
            self.backpressured_ns,
            self.flows_done,
            self.watermark_ms as u64,
            cycles,
            instructions,
            l1_misses,
            llc_misses,
            branch_misses,
        ]
    }

    pub(super) fn from_fields(fields: [u64; Self::FIELDS]) -> Self {
        let [
            rows_in,
            bytes_in,
            rows_out,
            late,
            bad,
            frames_sent,
            bytes_sent,
            reconnected_links,
            local_rows,
            local_bytes,
            tree_changes,
            cast_frames,
            cast_bytes,
            cast_flown,
            cast_landed,
            cast_fetched,
            cast_encode_ns,
            cast_send_ns,
            epochs,
            groups_sent,
            windows,
            state_bytes,
            state_bytes_peak,
            spilled_runs,
            spilled_bytes,
            unspilled_bytes,
            cpu_ns,
            busy_ns,
            idle_ns,
            backpressured_ns,
            flows_done,
            watermark,
            processor @ ..,
        ] = fields;
        Self {
            rows_in,
            bytes_in,
            rows_out,
            late,
            bad,
            frames_sent,
            bytes_sent,
            reconnected_links,
            local_rows,
            local_bytes,
            tree_changes,
            cast_frames,
            cast_bytes,
            cast_flown,
            cast_landed,
            cast_fetched,
            cast_encode_ns,
            cast_send_ns,
            epochs,
            groups_sent,
            windows,
            state_bytes,
            state_bytes_peak,
            spilled_runs,
            spilled_bytes,
            unspilled_bytes,
            cpu_ns,
            processor: ProcessorCounters::from_fields(processor),
            busy_ns,
            idle_ns,
            backpressured_ns,
            flows_done,
            watermark_ms: watermark as i64,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.fields().iter().for_each(|field| put_number(&mut out, *field));
        out
    }

    /// Takes counters off the front of what a node sent.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut fields = [0; Self::FIELDS];
        for field in &mut fields {
            *field = take_number(bytes)?;
        }
        Some(Self::from_fields(fields))
    }
}
