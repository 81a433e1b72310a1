//! Metrics of a worker and of its operators, read by others while it runs.
//!
//! [`definitions`] has one line for each; [`metric`] makes the counters, their snapshots and the
//! list for pages from it. Counting is a relaxed store of the one worker that writes a counter.

mod definitions;
mod metric;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use state::{KeyModes, Spilled};

use crate::connector::gauge::SinkGauge;

pub use self::definitions::{Counters, Metrics, OperatorCounters, OperatorMetrics};
pub use self::metric::{Metric, MetricKind, MetricUnit, MetricValue, Snapshot, finite_watermark};

/// A snapshot of a worker and of its operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Its node.
    pub node: u32,
    /// Its number among all workers of the job.
    pub worker: u32,
    /// Its own metrics.
    pub counters: Counters,
    /// Those of its operators, in the order of the plan: the first of them, as many as are
    /// reported.
    pub operators: Vec<OperatorCounters>,
}

impl OperatorMetrics {
    /// A snapshot, with a wait for its sink that is going on.
    pub fn read(&self) -> OperatorCounters {
        let mut counters = self.counted();
        counters.backpressured_ns += self.sink.get().map_or(0, |sink| sink.waiting_ns());
        if let Some(backlog) = self.backlog.get() {
            counters.pending_records = backlog.records();
            counters.unreachable_flows = backlog.unreachable();
            counters.pending_bytes = backlog.pending_bytes();
            counters.retained_bytes = backlog.retained_bytes();
        }
        counters
    }
}

impl Metrics {
    /// A snapshot, with a wait for a sink that is going on.
    pub fn read(&self) -> Counters {
        let mut counters = self.counted();
        counters.backpressured_ns += self.sinks().map(SinkGauge::waiting_ns).sum::<u64>();
        let backlogs = || self.operators().iter().filter_map(|operator| operator.backlog.get());
        let pending_records = backlogs().map(|backlog| backlog.records()).sum();
        let unreachable_flows = backlogs().map(|backlog| backlog.unreachable()).sum();
        let pending_bytes = backlogs().map(|backlog| backlog.pending_bytes()).sum();
        let retained_bytes = backlogs().map(|backlog| backlog.retained_bytes()).sum();
        Counters {
            rows_out: self.rows_out(),
            pending_records,
            unreachable_flows,
            pending_bytes,
            retained_bytes,
            ..counters
        }
    }

    /// The counters of the operators, in the order of the job; none before there is a worker.
    pub fn operators(&self) -> &[OperatorMetrics] {
        self.operators.get().map_or(&[], |operators| operators)
    }

    /// Rows that have reached sinks.
    pub fn rows_out(&self) -> u64 {
        self.sinks().map(SinkGauge::rows).sum()
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

    /// Adds groups that an operator has sent to their leaders, and their bytes.
    pub(crate) fn count_groups_sent(&self, operator: u32, groups: u64, bytes: u64) {
        Self::add(&self.groups_sent, groups);
        if let Some(operator) = self.operators().get(operator as usize) {
            Self::add(&operator.groups_sent, groups);
            Self::add(&operator.delta_bytes, bytes);
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

    /// Records how an operator has found groups.
    pub(crate) fn set_key_modes(&self, operator: u32, modes: KeyModes) {
        if let Some(operator) = self.operators().get(operator as usize) {
            operator.key_modes.store(modes.bits(), Ordering::Relaxed);
        }
    }

    /// Adds windows of which an operator emits groups.
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

    /// Counts what an operator has saved of a round.
    pub(crate) fn count_saved(&self, operator: u32, round: u64, bytes: u64, ns: u64) {
        Self::add(&self.save_ns, ns);
        if let Some(operator) = self.operators().get(operator as usize) {
            operator.saved_round.store(round, Ordering::Relaxed);
            operator.saved_state_bytes.store(bytes, Ordering::Relaxed);
            Self::add(&operator.save_ns, ns);
        }
    }

    /// Counts how long an operator waited for the last marker of a round behind the first.
    pub(crate) fn count_aligned(&self, operator: u32, ns: u64) {
        self.align_peak_ns.fetch_max(ns, Ordering::Relaxed);
        if let Some(operator) = self.operators().get(operator as usize) {
            Self::add(&operator.align_ns, ns);
        }
    }

    /// An operator has ended: no round waits for it any more, and it keeps nothing.
    pub(crate) fn end_saved(&self, operator: u32) {
        if let Some(operator) = self.operators().get(operator as usize) {
            operator.saved_round.store(u64::MAX, Ordering::Relaxed);
            operator.saved_state_bytes.store(0, Ordering::Relaxed);
        }
    }

    /// All operators of the worker have saved a round, in so much time.
    pub(crate) fn count_saved_round(&self, round: u64, bytes: u64, ns: u64) {
        self.saved_round.store(round, Ordering::Relaxed);
        self.saved_state_bytes.store(bytes, Ordering::Relaxed);
        self.save_peak_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// Adds to a counter that only the calling worker writes.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each value is another.
    fn snapshot<S: Snapshot>() -> S {
        let mut words = 1..;
        S::from_words(|_| words.next()).expect("there are enough")
    }

    fn definitions_are_sound<S: Snapshot>() {
        let names: BTreeSet<&str> = S::METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), S::METRICS.len(), "each name stands once");
        for Metric { name, unit, help, .. } in S::METRICS {
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || "_1".contains(c)), "{name}");
            assert!(!name.ends_with("_total") && !name.starts_with("millstream"), "{name}");
            assert!(help.starts_with(char::is_uppercase) && help.ends_with('.'), "{name}");
            let suffix = match unit {
                MetricUnit::Bytes => "bytes",
                MetricUnit::Nanoseconds | MetricUnit::Watermark => "_seconds",
                _ => "",
            };
            assert!(name.ends_with(suffix), "{name} counts {unit:?}");
        }
        let counted = snapshot::<S>();
        assert_eq!(counted.words().len(), S::METRICS.len());
        let mut words = counted.words().into_iter();
        assert!(S::from_words(|_| words.next()).is_some_and(|it| it.words() == counted.words()));
        let shown: Vec<_> = counted.values().map(|(_, value)| value).collect();
        let mut values = shown.into_iter();
        let read = S::of_values(|_| values.next().flatten());
        assert_eq!(read.words(), counted.words(), "what is shown can be read");
        let mut sum = S::default();
        sum.add(&counted);
        assert_eq!(sum.words(), counted.words(), "the default changes no sum");
    }

    #[test]
    fn metrics_are_named_by_their_units_and_survive_each_form() {
        definitions_are_sound::<Counters>();
        definitions_are_sound::<OperatorCounters>();
    }

    #[test]
    fn the_lowest_watermark_counts_and_the_rest_adds_up() {
        let a = Counters { rows_in: 1, state_bytes_peak: 5, watermark_ms: 9, ..Default::default() };
        let b = Counters { rows_in: 2, state_bytes_peak: 6, watermark_ms: 4, ..Default::default() };
        let mut sum = a;
        sum.add(&b);
        assert_eq!((sum.rows_in, sum.state_bytes_peak, sum.watermark_ms), (3, 11, 4));
        let mut jobs = a;
        jobs.add_next(&b);
        assert_eq!((jobs.rows_in, jobs.state_bytes_peak, jobs.watermark_ms), (3, 6, 4));
        let since = b.since(&a);
        assert_eq!((since.rows_in, since.state_bytes_peak, since.watermark_ms), (1, 6, 4));
        let ended = b.counters_only();
        assert_eq!((ended.rows_in, ended.state_bytes_peak, ended.watermark_ms), (2, 0, i64::MAX));
    }

    #[test]
    fn a_watermark_is_absent_before_the_first_and_after_the_last() {
        let shown = |watermark_ms| {
            let counters = Counters { watermark_ms, ..Counters::default() };
            let mut values = counters.values();
            values
                .find(|(metric, _)| metric.unit == MetricUnit::Watermark)
                .and_then(|(_, value)| value)
        };
        assert_eq!((shown(i64::MIN), shown(i64::MAX)), (None, None));
        assert_eq!(shown(1500), Some(MetricValue::Seconds(1.5)));
        assert_eq!(Metrics::default().read().watermark_ms, i64::MIN);
    }
}
