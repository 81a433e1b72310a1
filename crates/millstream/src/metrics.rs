//! The metrics, as a table, from which the page for Prometheus and the reference page are made.
//!
//! Labels are bounded: a worker's number, of which there are at most 256 per node. Nothing that
//! comes from data is ever a label.

use crate::report::{Counters, Progress};

/// How a number changes over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// A number of each worker.
#[derive(Debug, Clone, Copy)]
pub struct MetricSpec {
    /// Its name, without the suffix `_total` of a counter.
    pub name: &'static str,
    /// How it changes over time.
    pub kind: MetricKind,
    /// One sentence.
    pub doc: &'static str,
    /// Its value; `None` where there is none yet.
    pub read: fn(&Counters) -> Option<f64>,
}

/// A number of the whole job.
#[derive(Debug, Clone, Copy)]
pub struct JobMetricSpec {
    /// Its name, without the suffix `_total` of a counter.
    pub name: &'static str,
    /// How it changes over time.
    pub kind: MetricKind,
    /// One sentence.
    pub doc: &'static str,
    /// Its value; `None` where there is none.
    pub read: fn(&Progress) -> Option<f64>,
}

/// All numbers that are measured per worker, by name.
pub fn metrics() -> &'static [MetricSpec] {
    METRICS
}

/// All numbers that are measured per job, by name.
pub fn job_metrics() -> &'static [JobMetricSpec] {
    JOB_METRICS
}

const JOB_METRICS: &[JobMetricSpec] = &[
    JobMetricSpec {
        name: "millstream_bad_rows",
        kind: MetricKind::Counter,
        doc: "Rows that a source could not read.",
        read: |progress| Some(progress.counters.bad as f64),
    },
    JobMetricSpec {
        name: "millstream_job_done_ratio",
        kind: MetricKind::Gauge,
        doc: "How much of the bounded input of the running job is done, from 0 to 1; absent where \
              that is unknown.",
        read: |progress| progress.done,
    },
    JobMetricSpec {
        name: "millstream_job_elapsed_seconds",
        kind: MetricKind::Gauge,
        doc: "Time since the running job could read its first row.",
        read: |progress| Some(progress.elapsed.as_secs_f64()),
    },
    JobMetricSpec {
        name: "millstream_job_lag_seconds",
        kind: MetricKind::Gauge,
        doc: "The machine's clock minus the lowest watermark; absent where there is no watermark.",
        read: |progress| progress.lag.map(|lag| lag.as_secs_f64()),
    },
];

const fn counter(
    name: &'static str,
    doc: &'static str,
    read: fn(&Counters) -> Option<f64>,
) -> MetricSpec {
    MetricSpec { name, kind: MetricKind::Counter, doc, read }
}

const fn gauge(
    name: &'static str,
    doc: &'static str,
    read: fn(&Counters) -> Option<f64>,
) -> MetricSpec {
    MetricSpec { name, kind: MetricKind::Gauge, doc, read }
}

/// A count of the processor; nothing where it was not asked for.
fn counted(count: u64) -> Option<f64> {
    (count > 0).then_some(count as f64)
}

const METRICS: &[MetricSpec] = &[
    counter(
        "millstream_backpressured_seconds",
        "Time in which the worker waited for others to take what it had sent, or for a sink, and \
         had nothing else to do.",
        |c| Some(c.backpressured_ns as f64 / 1e9),
    ),
    counter(
        "millstream_broadcast_bytes",
        "Bytes of rows for every worker, sent to other processes: the worker's own, and those that \
         it passed on. A payload that the network copies counts once.",
        |c| Some(c.cast_bytes as f64),
    ),
    counter(
        "millstream_broadcast_encode_seconds",
        "Time in which the worker encoded its own rows for every worker.",
        |c| Some(c.cast_encode_ns as f64 / 1e9),
    ),
    counter(
        "millstream_broadcast_fetched",
        "Payloads of rows for every worker that did not come by the network's multicast, and were \
         asked for.",
        |c| Some(c.cast_fetched as f64),
    ),
    counter(
        "millstream_broadcast_frames",
        "Frames of rows for every worker, sent to other processes.",
        |c| Some(c.cast_frames as f64),
    ),
    counter(
        "millstream_broadcast_multicast",
        "Payloads of its rows for every worker that went to all processes by the network's \
         multicast.",
        |c| Some(c.cast_flown as f64),
    ),
    counter(
        "millstream_broadcast_multicast_received",
        "Payloads of rows for every worker that came by the network's multicast.",
        |c| Some(c.cast_landed as f64),
    ),
    counter(
        "millstream_broadcast_send_seconds",
        "Time in which the worker wrote its own rows for every worker into rings.",
        |c| Some(c.cast_send_ns as f64 / 1e9),
    ),
    counter(
        "millstream_broadcast_tree_changes",
        "Changes of the tree by which its rows reach every worker.",
        |c| Some(c.tree_changes as f64),
    ),
    counter("millstream_busy_seconds", "Time in which the worker had work.", |c| {
        Some(c.busy_ns as f64 / 1e9)
    }),
    counter(
        "millstream_cpu_seconds",
        "Processor time of the worker, known when it has ended.",
        |c| Some(c.cpu_ns as f64 / 1e9),
    ),
    counter(
        "millstream_delta_groups",
        "Groups sent to their leaders, when epochs ended or of frequent keys.",
        |c| Some(c.groups_sent as f64),
    ),
    counter("millstream_epochs", "Epochs closed.", |c| Some(c.epochs as f64)),
    counter("millstream_flows_done", "Flows of bounded input read to their end.", |c| {
        Some(c.flows_done as f64)
    }),
    counter("millstream_idle_seconds", "Time in which the worker had nothing to do.", |c| {
        Some(c.idle_ns as f64 / 1e9)
    }),
    counter("millstream_input_bytes", "Bytes of Arrow buffers read from sources.", |c| {
        Some(c.bytes_in as f64)
    }),
    counter("millstream_input_rows", "Rows read from sources.", |c| Some(c.rows_in as f64)),
    counter("millstream_late_rows", "Rows that came too late for their window.", |c| {
        Some(c.late as f64)
    }),
    counter(
        "millstream_local_exchange_bytes",
        "Bytes passed by reference to other workers of the process.",
        |c| Some(c.local_bytes as f64),
    ),
    counter(
        "millstream_local_exchange_rows",
        "Rows passed by reference to other workers of the process.",
        |c| Some(c.local_rows as f64),
    ),
    counter("millstream_output_rows", "Rows that have reached sinks.", |c| Some(c.rows_out as f64)),
    counter(
        "millstream_processor_branch_misses",
        "Branches that the processor predicted wrongly, known when the \
         worker has ended; absent without millstream.hardware_counters.",
        |c| counted(c.processor.branch_misses),
    ),
    counter(
        "millstream_processor_cycles",
        "Cycles of the processor outside the kernel, known when the \
         worker has ended; absent without millstream.hardware_counters.",
        |c| counted(c.processor.cycles),
    ),
    counter(
        "millstream_processor_instructions",
        "Instructions of the worker outside the kernel, known when the \
         worker has ended; absent without millstream.hardware_counters.",
        |c| counted(c.processor.instructions),
    ),
    counter(
        "millstream_processor_l1_misses",
        "Reads that the first-level data cache did not have, known when the \
         worker has ended; absent without millstream.hardware_counters.",
        |c| counted(c.processor.l1_misses),
    ),
    counter(
        "millstream_processor_llc_misses",
        "Misses of the last level of the caches, known when the \
         worker has ended; absent without millstream.hardware_counters.",
        |c| counted(c.processor.llc_misses),
    ),
    counter(
        "millstream_reconnected_links",
        "Links to workers of other processes that went on over another connection because theirs \
         broke.",
        |c| Some(c.reconnected_links as f64),
    ),
    counter("millstream_sent_bytes", "Bytes sent to workers of other processes.", |c| {
        Some(c.bytes_sent as f64)
    }),
    counter("millstream_sent_frames", "Frames sent to workers of other processes.", |c| {
        Some(c.frames_sent as f64)
    }),
    counter(
        "millstream_spilled_bytes",
        "Bytes of groups and rows written to disk because they did not fit memory.",
        |c| Some(c.spilled_bytes as f64),
    ),
    counter("millstream_spilled_runs", "Runs of groups and rows written to disk.", |c| {
        Some(c.spilled_runs as f64)
    }),
    gauge("millstream_state_bytes", "Bytes of window state now.", |c| Some(c.state_bytes as f64)),
    gauge("millstream_state_peak_bytes", "Most bytes of window state in the job.", |c| {
        Some(c.state_bytes_peak as f64)
    }),
    counter("millstream_unspilled_bytes", "Bytes of groups and rows read back from disk.", |c| {
        Some(c.unspilled_bytes as f64)
    }),
    gauge(
        "millstream_watermark_seconds",
        "The watermark in seconds since 1970; absent before the first and after the last.",
        |c| {
            let is_known = c.watermark_ms != i64::MIN && c.watermark_ms != i64::MAX;
            is_known.then_some(c.watermark_ms as f64 / 1e3)
        },
    ),
    counter(
        "millstream_windows",
        "Windows triggered by groupings, joins and rankings, counted once per leader.",
        |c| Some(c.windows as f64),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_say_their_unit() {
        assert!(metrics().is_sorted_by_key(|metric| metric.name));
        assert!(job_metrics().is_sorted_by_key(|metric| metric.name));
        let workers = metrics().iter().map(|metric| (metric.name, metric.doc));
        for (name, doc) in
            workers.chain(job_metrics().iter().map(|metric| (metric.name, metric.doc)))
        {
            assert!(name.starts_with("millstream_") && !name.ends_with("_total"), "{name}");
            assert!(doc.ends_with('.'), "{name}");
        }
    }

    #[test]
    fn a_watermark_is_absent_before_the_first_and_after_the_last() {
        let watermark = metrics().iter().find(|m| m.name == "millstream_watermark_seconds");
        let read = watermark.expect("there is one").read;
        let at = |watermark_ms| read(&Counters { watermark_ms, ..Counters::default() });
        assert_eq!((at(i64::MIN), at(i64::MAX), at(1500)), (None, None, Some(1.5)));
    }
}
