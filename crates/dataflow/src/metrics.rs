//! Counters of a worker, read by others while it runs.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The counters of one worker. Written by that worker alone, with relaxed stores: each is right by
/// itself, and a reader sees it late by microseconds.
#[derive(Debug)]
pub struct Metrics {
    /// Rows read from sources.
    pub rows_in: AtomicU64,
    /// Bytes of Arrow buffers read from sources.
    pub bytes_in: AtomicU64,
    /// Rows given to sinks.
    pub rows_out: AtomicU64,
    /// Rows dropped from a window because they were late.
    pub late: AtomicU64,
    /// Frames sent to other workers.
    pub frames_out: AtomicU64,
    /// Bytes sent to other workers.
    pub bytes_out: AtomicU64,
    /// Epochs closed.
    pub epochs: AtomicU64,
    /// Windows fired, counted once per leader.
    pub windows: AtomicU64,
    /// Bytes of window state now.
    pub state_bytes: AtomicU64,
    /// Most bytes of window state so far.
    pub state_bytes_peak: AtomicU64,
    /// The worker's low watermark in milliseconds since 1970; `i64::MIN` before the first,
    /// `i64::MAX` at the end.
    pub watermark_ms: AtomicI64,
    /// Processor time that the worker's thread has used, in nanoseconds; set by who runs the
    /// worker, where the system tells.
    pub cpu_ns: AtomicU64,
    /// Time of the worker's thread with work, in nanoseconds.
    pub busy_ns: AtomicU64,
    /// Time in which nothing was ready, in nanoseconds.
    pub idle_ns: AtomicU64,
    /// Time in which something waited for credit and nothing else was ready, in nanoseconds.
    pub backpressured_ns: AtomicU64,
    /// Work done of bounded inputs, in rows or bytes as [`FlowInfo`](crate::source::FlowInfo)
    /// counts.
    pub flows_done: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            rows_in: zero(),
            bytes_in: zero(),
            rows_out: zero(),
            late: zero(),
            frames_out: zero(),
            bytes_out: zero(),
            epochs: zero(),
            windows: zero(),
            state_bytes: zero(),
            state_bytes_peak: zero(),
            watermark_ms: AtomicI64::new(i64::MIN),
            cpu_ns: zero(),
            busy_ns: zero(),
            idle_ns: zero(),
            backpressured_ns: zero(),
            flows_done: zero(),
        }
    }
}

impl Metrics {
    /// Adds to a counter that only the calling worker writes.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}
