//! A workload as a job that keeps checkpoints, or does not, in this process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabric::clock::process_ns;
use millstream::checkpoint::DirectoryStore;
use millstream::checkpoint::chain::ResumeFrom;
use millstream::{CheckpointOptions, FabricKind, RunOptions, Script, Session};

use super::input::{KeptInput, Observed};
use super::store::{StoredRecord, TimedStore};
use crate::checksums::{ChecksumSink, ChecksumTotals};
use crate::run::BenchError;
use crate::workload::{KeyDistribution, Workload, WorkloadSize};

/// The time between two looks at a run that may be ended early.
const LOOK: Duration = Duration::from_millis(2);
/// The name of jobs in their stores.
const JOB: &str = "bench";

/// A query, and the size of its input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct JobShape {
    pub(super) workload: Workload,
    pub(super) keys: u64,
    /// Whether groups are found by hash even if keys are dense.
    pub(super) hashed: bool,
    /// Rows that are kept, of all workers together; they are read `laps` times.
    pub(super) rows: u64,
    pub(super) laps: u64,
    /// Nanoseconds of event time between two rows, if not those of the workload.
    pub(super) interval_ns: Option<u64>,
    pub(super) workers: u32,
}

/// The figures of a run.
#[derive(Debug)]
pub(super) struct JobRun {
    pub(super) totals: ChecksumTotals,
    pub(super) rows_in: u64,
    pub(super) observed: Observed,
    /// From the first row that was read to the end of the job.
    pub(super) elapsed: Duration,
    /// Processor time of all threads in this time.
    pub(super) cpu: Duration,
    /// The records of the chain.
    pub(super) records: Vec<StoredRecord>,
    /// From the start of the run to the first row that was read.
    pub(super) until_first_row: Duration,
}

/// The conditions under which a run is ended before its input is: both have to hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Enough {
    /// Records in the chain, with that of the beginning of the run.
    pub(super) records: usize,
    /// Seconds since the first row was read.
    pub(super) seconds: f64,
    /// Seconds behind which the run is ended with any number of records.
    pub(super) seconds_max: f64,
}

/// Keeps the rows of jobs from run to run.
#[derive(Default)]
pub(super) struct Jobs {
    input: KeptInput,
}

impl Jobs {
    /// Runs the job without checkpoints.
    pub(super) fn bare(&self, shape: &JobShape) -> Result<JobRun, BenchError> {
        self.run(shape, "off", None, None)
    }

    /// Runs the job with checkpoints at an interval, in a directory.
    pub(super) fn saved(
        &self,
        shape: &JobShape,
        interval: &str,
        directory: &Path,
        enough: Option<Enough>,
    ) -> Result<JobRun, BenchError> {
        let store = Arc::new(TimedStore::new(Arc::new(DirectoryStore::new(directory))));
        self.run(shape, interval, Some(&store), enough)
    }

    /// Runs the job, with checkpoints if there is a store.
    fn run(
        &self,
        shape: &JobShape,
        interval: &str,
        store: Option<&Arc<TimedStore>>,
        enough: Option<Enough>,
    ) -> Result<JobRun, BenchError> {
        let checksums = ChecksumSink::default();
        let script = self.script(shape, interval, &checksums)?;
        let state = store.map(|store| CheckpointOptions {
            store: Arc::clone(store) as _,
            job: JOB.into(),
            from: ResumeFrom::Latest,
            evolve: false,
            take_over: false,
            begun: Vec::new(),
        });
        let cancel = AtomicBool::new(false);
        let options =
            RunOptions { cancel: Some(&cancel), state: state.as_ref(), ..RunOptions::default() };
        self.input.take();
        let started = Instant::now();
        let over = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            let watcher = enough.zip(store).map(|(enough, store)| {
                let (over, cancel) = (&over, &cancel);
                scope.spawn(move || self.end_when(enough, store, over, cancel))
            });
            let report = script.run(&options);
            over.store(true, Ordering::Release);
            if let Some(watcher) = watcher {
                watcher.thread().unpark();
            }
            report
        });
        let (ended, cpu_ns) = (Instant::now(), process_ns());
        let report = report?;
        let observed = self.input.take();
        let (first, before_ns) = observed.first_read.unwrap_or((ended, cpu_ns));
        Ok(JobRun {
            totals: checksums.take(),
            rows_in: report.total.rows_in,
            observed,
            elapsed: ended - first,
            cpu: Duration::from_nanos(cpu_ns.saturating_sub(before_ns)),
            records: store.map_or_else(Vec::new, |store| store.records()),
            until_first_row: first - started,
        })
    }

    /// Ends the job when it has done enough, unless it is over before.
    fn end_when(&self, enough: Enough, store: &TimedStore, over: &AtomicBool, cancel: &AtomicBool) {
        while !over.load(Ordering::Acquire) {
            if let Some(seconds) = self.input.reads_since().map(|since| since.as_secs_f64()) {
                let done = seconds >= enough.seconds && store.records().len() >= enough.records;
                if done || seconds >= enough.seconds_max {
                    return cancel.store(true, Ordering::Release);
                }
            }
            // Until the next look, or until the job is over.
            std::thread::park_timeout(LOOK);
        }
    }

    fn script(
        &self,
        shape: &JobShape,
        interval: &str,
        checksums: &ChecksumSink,
    ) -> Result<Script, BenchError> {
        let builder = Session::builder().nodes(1).workers(shape.workers).fabric(FabricKind::Shm);
        let builder = builder.set("millstream.checkpoint", interval);
        let builder =
            if shape.hashed { builder.set("millstream.key_mode", "hash") } else { builder };
        let builder = builder.connector(Arc::new(self.input.clone()));
        let session = builder.connector(Arc::new(checksums.clone())).build();
        Ok(session?.sql(&shape.sql())?)
    }
}

impl JobShape {
    /// The rows of all laps.
    pub(super) fn rows_in(&self) -> u64 {
        self.rows * self.laps
    }

    fn sql(&self) -> String {
        let workers = u64::from(self.workers);
        let size = WorkloadSize {
            rows_per_worker: self.rows.div_ceil(workers),
            workers,
            keys: self.keys,
            distribution: KeyDistribution::Uniform,
            interval_ns: self.interval_ns,
            record_bytes: None,
        };
        let preload = "'preload' = 'true'";
        let laps = format!("{preload}, 'repeat' = '{}'", self.laps);
        self.workload.sql(&size).replace(preload, &laps)
    }
}
