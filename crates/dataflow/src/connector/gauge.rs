//! How long a worker waits for its sinks, and how many rows have reached them.
//!
//! A sink is called by the worker's own thread, which does nothing else meanwhile. If the thread
//! gives its processor up in such a call, the part of the call that it does not spend there is
//! waiting: for a disk. A thread whose processor was taken away, for another thread of a busy
//! machine, does not wait. Others may look at any time, also while a call lasts.
//!
//! While a writer has no [room](SinkWriter::room), its rows are held back and the worker goes on.
//! Time in which the worker has nothing else to do then is waited for that sink, too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::record_batch::RecordBatch;
use fabric::Clock;

use crate::connector::sink::{Room, SinkWriter, StagedOutput};
use crate::error::ConnectorError;

/// A call that lasts longer is waiting as a whole, and seen as that while it lasts.
const LONG_NS: u64 = 100_000_000;
/// No call is going on.
const NEVER: u64 = u64::MAX;

/// The calls of one sink by one worker.
pub struct SinkGauge {
    clock: Arc<dyn Clock>,
    /// When the call that is going on began.
    since_ns: AtomicU64,
    /// Waited in calls that are over.
    waited_ns: AtomicU64,
    rows: AtomicU64,
    /// Rows are held back, because the writer has no room.
    holds_back: AtomicBool,
}

impl std::fmt::Debug for SinkGauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SinkGauge({} rows)", self.rows())
    }
}

impl SinkGauge {
    /// Of a worker with this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (since_ns, waited_ns, rows) = (NEVER.into(), 0.into(), 0.into());
        Self { clock, since_ns, waited_ns, rows, holds_back: false.into() }
    }

    /// Has rows written.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(
        &self,
        writer: &mut dyn SinkWriter,
        batch: &RecordBatch,
    ) -> Result<(), ConnectorError> {
        self.call(|| writer.write(batch))?;
        self.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Has rows made visible.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn flush(&self, writer: &mut dyn SinkWriter) -> Result<(), ConnectorError> {
        self.call(|| writer.flush())
    }

    /// Has the writer hand on what it still holds.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn drain(&self, writer: &mut dyn SinkWriter) -> Result<Room, ConnectorError> {
        self.call(|| writer.drain())
    }

    /// Has the writer hand on the rows before a checkpoint.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn settle(&self, writer: &mut dyn SinkWriter) -> Result<Room, ConnectorError> {
        self.call(|| writer.settle())
    }

    /// Says whether rows are held back, because the writer has no room.
    pub(crate) fn hold_back(&self, holds_back: bool) {
        self.holds_back.store(holds_back, Ordering::Relaxed);
    }

    /// Whether rows are held back.
    pub(crate) fn holds_back(&self) -> bool {
        self.holds_back.load(Ordering::Relaxed)
    }

    /// Adds time in which the worker had nothing to do but wait for room.
    pub(crate) fn add_waited(&self, ns: u64) {
        self.waited_ns.fetch_add(ns, Ordering::Release);
    }

    /// Has everything published.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn commit(&self, writer: Box<dyn SinkWriter>) -> Result<(), ConnectorError> {
        self.call(|| writer.commit())
    }

    /// Has rows staged that a checkpoint names.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn stage(
        &self,
        writer: &mut dyn SinkWriter,
        round: u64,
        last: bool,
    ) -> Result<StagedOutput, ConnectorError> {
        self.call(|| writer.stage(round, last))
    }

    /// Rows that have reached the sink.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Nanoseconds waited in calls that are over, and for room.
    pub fn waited_ns(&self) -> u64 {
        self.waited_ns.load(Ordering::Relaxed)
    }

    /// The same with a long call that is going on.
    pub fn waiting_ns(&self) -> u64 {
        // This order: a call that ends in between is left out rather than counted twice.
        let since = self.since_ns.load(Ordering::Acquire);
        let waited = self.waited_ns();
        let lasts = self.clock.now_ns().saturating_sub(since);
        let still = self.since_ns.load(Ordering::Acquire) == since;
        waited + if still && lasts >= LONG_NS { lasts } else { 0 }
    }

    fn call<T>(&self, work: impl FnOnce() -> T) -> T {
        let clock = &self.clock;
        let (since, worked, slept) = (clock.now_ns(), clock.worked_ns(), clock.sleeps());
        self.since_ns.store(since, Ordering::Release);
        let done = work();
        let lasted = clock.now_ns().saturating_sub(since);
        let waited = match lasted {
            LONG_NS.. => lasted,
            _ if clock.sleeps() == slept => 0,
            _ => lasted.saturating_sub(clock.worked_ns().saturating_sub(worked)),
        };
        self.since_ns.store(NEVER, Ordering::Release);
        self.waited_ns.fetch_add(waited, Ordering::Release);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock that is set by hand: its time, how much of that was work, and sleeps.
    #[derive(Default)]
    struct Hand([AtomicU64; 3]);

    impl Hand {
        /// Time passes in which the thread sleeps once.
        fn moves(&self, ns: u64, worked_ns: u64) {
            self.preempts(ns, worked_ns);
            self.0[2].fetch_add(1, Ordering::Relaxed);
        }

        /// Time passes in which the thread has its processor taken away.
        fn preempts(&self, ns: u64, worked_ns: u64) {
            self.0[0].fetch_add(ns, Ordering::Relaxed);
            self.0[1].fetch_add(worked_ns, Ordering::Relaxed);
        }
    }

    impl Clock for Hand {
        fn now_ns(&self) -> u64 {
            self.0[0].load(Ordering::Relaxed)
        }

        fn worked_ns(&self) -> u64 {
            self.0[1].load(Ordering::Relaxed)
        }

        fn sleeps(&self) -> u64 {
            self.0[2].load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_thread_without_its_processor_does_not_wait_for_the_sink() {
        let clock = Arc::new(Hand::default());
        let gauge = SinkGauge::new(clock.clone());
        gauge.call(|| clock.preempts(5_000_000, 20));
        assert_eq!(gauge.waiting_ns(), 0);
        gauge.call(|| clock.moves(5_000_000, 20));
        assert_eq!(gauge.waiting_ns(), 4_999_980);
    }

    #[test]
    fn what_is_no_work_in_a_call_is_waiting() {
        let clock = Arc::new(Hand::default());
        let gauge = SinkGauge::new(clock.clone());
        clock.moves(1_000, 1_000);
        gauge.call(|| clock.moves(500, 200));
        assert_eq!((gauge.waited_ns(), gauge.waiting_ns()), (300, 300));
        clock.moves(1_000_000_000, 0);
        assert_eq!(gauge.waiting_ns(), 300, "outside of calls nobody waits for the sink");
        gauge.call(|| {
            clock.moves(LONG_NS - 1, 0);
            assert_eq!(gauge.waiting_ns(), 300);
            clock.moves(1, 1);
            assert_eq!(gauge.waiting_ns(), 300 + LONG_NS, "it is seen while it lasts");
        });
        assert_eq!((gauge.waited_ns(), gauge.waiting_ns()), (300 + LONG_NS, 300 + LONG_NS));
    }
}
