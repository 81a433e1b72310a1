//! The metrics of the whole job. Those of workers and operators are defined where they are counted:
//! [`dataflow::metrics`].
//!
//! Labels are bounded: a worker's number, of which there are at most 256 per node. Nothing that
//! comes from data is ever a label.

use dataflow::metrics::{Metric, MetricKind, MetricUnit};

use crate::report::JobProgress;

/// A number of the whole job.
#[derive(Debug, Clone, Copy)]
pub struct JobMetric {
    /// Its definition.
    pub metric: Metric,
    /// Its value; `None` where there is none.
    pub read: fn(&JobProgress) -> Option<f64>,
}

/// All metrics of a job.
pub const JOB_METRICS: &[JobMetric] = &[
    JobMetric {
        metric: Metric {
            name: "bad_rows",
            kind: MetricKind::Counter,
            unit: MetricUnit::Count,
            help: "Rows that a source could not read.",
        },
        read: |progress| Some(progress.bad as f64),
    },
    JobMetric {
        metric: Metric {
            name: "job_done_ratio",
            kind: MetricKind::Gauge,
            unit: MetricUnit::Count,
            help: "How much of the bounded input of the running job is done, from 0 to 1; absent \
                   where that is unknown.",
        },
        read: |progress| progress.done,
    },
    JobMetric {
        metric: Metric {
            name: "job_elapsed_seconds",
            kind: MetricKind::Gauge,
            unit: MetricUnit::Nanoseconds,
            help: "Time since the running job could read its first row.",
        },
        read: |progress| Some(progress.elapsed.as_secs_f64()),
    },
    JobMetric {
        metric: Metric {
            name: "job_lag_seconds",
            kind: MetricKind::Gauge,
            unit: MetricUnit::Nanoseconds,
            help: "The machine's clock minus the lowest watermark; absent where there is no \
                   watermark.",
        },
        read: |progress| progress.lag.map(|lag| lag.as_secs_f64()),
    },
];
