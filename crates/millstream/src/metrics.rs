//! The metrics of the whole job. Those of workers and operators are defined where they are counted:
//! [`dataflow::metrics`].
//!
//! Labels are bounded: a worker's number, of which there are at most 256 per node. Nothing that
//! comes from data is ever a label.

use dataflow::metrics::{Metric, MetricKind, MetricUnit};

use crate::checkpoints::{CheckpointProgress, LastCheckpoint};
use crate::report::JobProgress;

/// A number of the whole job.
#[derive(Debug, Clone, Copy)]
pub struct JobMetric {
    /// Its definition.
    pub metric: Metric,
    /// Its value; `None` where there is none.
    pub read: fn(&JobProgress) -> Option<f64>,
}

const fn metric(
    name: &'static str,
    kind: MetricKind,
    unit: MetricUnit,
    help: &'static str,
    read: fn(&JobProgress) -> Option<f64>,
) -> JobMetric {
    JobMetric { metric: Metric { name, kind, unit, help }, read }
}

/// A value of the checkpoints, where the job keeps some.
fn kept(progress: &JobProgress, read: impl Fn(&CheckpointProgress) -> Option<f64>) -> Option<f64> {
    progress.checkpoints.as_ref().and_then(read)
}

/// A value of the last checkpoint.
fn last(progress: &JobProgress, read: impl Fn(&LastCheckpoint) -> Option<f64>) -> Option<f64> {
    kept(progress, |checkpoints| read(checkpoints.last.as_ref()?))
}

/// All metrics of a job.
pub const JOB_METRICS: &[JobMetric] = &[
    metric(
        "bad_rows",
        MetricKind::Counter,
        MetricUnit::Count,
        "Rows that a source could not read.",
        |progress| Some(progress.bad as f64),
    ),
    metric(
        "job_done_ratio",
        MetricKind::Gauge,
        MetricUnit::Count,
        "How much of the bounded input of the running job is done, from 0 to 1; absent where that \
         is unknown.",
        |progress| progress.done,
    ),
    metric(
        "job_elapsed_seconds",
        MetricKind::Gauge,
        MetricUnit::Nanoseconds,
        "Time since the running job could read its first row.",
        |progress| Some(progress.elapsed.as_secs_f64()),
    ),
    metric(
        "job_lag_seconds",
        MetricKind::Gauge,
        MetricUnit::Nanoseconds,
        "The machine's clock minus the lowest watermark; absent where there is no watermark.",
        |progress| progress.lag.map(|lag| lag.as_secs_f64()),
    ),
    metric(
        "checkpoints",
        MetricKind::Counter,
        MetricUnit::Count,
        "Checkpoints that were stored.",
        |progress| kept(progress, |of| Some(of.stored as f64)),
    ),
    metric(
        "given_up_checkpoints",
        MetricKind::Counter,
        MetricUnit::Count,
        "Checkpoints that were given up because they could not be stored.",
        |progress| kept(progress, |of| Some(of.given_up as f64)),
    ),
    metric(
        "job_checkpoint_number",
        MetricKind::Gauge,
        MetricUnit::Count,
        "The number of the checkpoint that the running job would go on from; absent before the \
         first, and without --state.",
        |progress| last(progress, |of| Some(of.number as f64)),
    ),
    metric(
        "job_checkpoint_age_seconds",
        MetricKind::Gauge,
        MetricUnit::Nanoseconds,
        "Time since the round of that checkpoint was ended, or since the job went on from it: what \
         was read in it is read again after a failure.",
        |progress| last(progress, |of| Some(of.age.as_secs_f64())),
    ),
    metric(
        "job_checkpoint_duration_seconds",
        MetricKind::Gauge,
        MetricUnit::Nanoseconds,
        "Time from the end of its round until it was stored and its output visible; absent if an \
         earlier run has stored it.",
        |progress| last(progress, |of| of.duration.map(|duration| duration.as_secs_f64())),
    ),
    metric(
        "job_checkpoint_bytes",
        MetricKind::Gauge,
        MetricUnit::Bytes,
        "Bytes of its segments: state, positions of sources and what sinks have staged.",
        |progress| last(progress, |of| Some(of.bytes as f64)),
    ),
    metric(
        "job_checkpoint_pending_seconds",
        MetricKind::Gauge,
        MetricUnit::Nanoseconds,
        "Time since the round that is being saved was ended; absent where none is.",
        |progress| kept(progress, |of| Some(of.pending.as_ref()?.since.as_secs_f64())),
    ),
    metric(
        "job_restored_bytes",
        MetricKind::Gauge,
        MetricUnit::Bytes,
        "Bytes of the segments from which the running job went on; absent if it began anew.",
        |progress| kept(progress, |of| Some(of.restored.as_ref()?.bytes as f64)),
    ),
    metric(
        "job_restarts",
        MetricKind::Gauge,
        MetricUnit::Count,
        "How often the running job was started again after a failure; absent without --state.",
        |progress| kept(progress, |of| Some(f64::from(of.restarts))),
    ),
];
