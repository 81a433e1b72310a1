//! `EXPLAIN ANALYZE`: the plan with what the workers did when it ran.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkWriter};
use serde_json::{Value, json};

use super::{Explain, ExplainFormat, human};

/// What a run came to, for [`Explain::analyzed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// From the first row that could be read to the end.
    pub elapsed: Duration,
    /// By node and worker.
    pub workers: Vec<RanWorker>,
}

/// What a worker did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RanWorker {
    /// Its node.
    pub node: u32,
    /// Its number in the job.
    pub worker: u32,
    /// Nanoseconds with work.
    pub busy_ns: u64,
    /// Nanoseconds in which it waited for others to take what it had sent, and for nothing else.
    pub backpressured_ns: u64,
    /// Nanoseconds without anything to do.
    pub idle_ns: u64,
    /// Rows read.
    pub rows_in: u64,
    /// Rows given out.
    pub rows_out: u64,
    /// Rows that were late for all of their windows.
    pub late: u64,
    /// Bytes sent to other workers.
    pub bytes_sent: u64,
    /// Most bytes of state.
    pub state_bytes_peak: u64,
    /// The watermark in milliseconds since 1970, if there was one that was not the end.
    pub watermark_ms: Option<i64>,
}

impl RanWorker {
    /// A part of its time, in percent.
    fn percent(&self, ns: u64) -> f64 {
        let all = self.busy_ns + self.backpressured_ns + self.idle_ns;
        if all == 0 { 0.0 } else { ns as f64 * 100.0 / all as f64 }
    }
}

impl Ran {
    /// Rows of the worker that read most, over the mean; 1 where all read as much.
    fn skew(&self) -> f64 {
        let rows = || self.workers.iter().map(|worker| worker.rows_in);
        let (most, sum) = (rows().max().unwrap_or(0), rows().sum::<u64>());
        if sum == 0 { 1.0 } else { most as f64 * self.workers.len() as f64 / sum as f64 }
    }

    fn text(&self) -> String {
        let mut out = format!("ran in {:.3} s\n", self.elapsed.as_secs_f64());
        let titles = ["busy", "waiting", "idle", "rows in", "rows out", "late", "sent", "state"];
        // Writing to a String cannot fail.
        let _ = write!(out, "  {:<12}", "worker");
        for title in titles {
            let _ = write!(out, " {title:>11}");
        }
        out.push('\n');
        for worker in &self.workers {
            let name = format!("{} of node {}", worker.worker, worker.node);
            let percent = |ns| format!("{:.0} %", worker.percent(ns));
            let cells = [
                percent(worker.busy_ns),
                percent(worker.backpressured_ns),
                percent(worker.idle_ns),
                worker.rows_in.to_string(),
                worker.rows_out.to_string(),
                worker.late.to_string(),
                human(worker.bytes_sent),
                human(worker.state_bytes_peak),
            ];
            let _ = write!(out, "  {name:<12}");
            for cell in cells {
                let _ = write!(out, " {cell:>11}");
            }
            out.push('\n');
        }
        let skew = self.skew();
        let _ = writeln!(
            out,
            "  skew         {skew:.2}: rows of the worker that read most, over the mean"
        );
        out
    }

    fn json(&self) -> Value {
        let worker = |worker: &RanWorker| {
            json!({
                "node": worker.node,
                "worker": worker.worker,
                "busy_seconds": worker.busy_ns as f64 / 1e9,
                "backpressured_seconds": worker.backpressured_ns as f64 / 1e9,
                "idle_seconds": worker.idle_ns as f64 / 1e9,
                "rows_in": worker.rows_in,
                "rows_out": worker.rows_out,
                "late": worker.late,
                "bytes_sent": worker.bytes_sent,
                "state_bytes_peak": worker.state_bytes_peak,
                "watermark_ms": worker.watermark_ms,
            })
        };
        json!({
            "elapsed_seconds": self.elapsed.as_secs_f64(),
            "skew": self.skew(),
            "workers": self.workers.iter().map(worker).collect::<Vec<_>>(),
        })
    }
}

impl Explain {
    /// The plan in a format, with what a run of it came to; as a graph, the plan alone.
    pub fn analyzed(&self, format: ExplainFormat, ran: &Ran) -> String {
        match format {
            ExplainFormat::Text => format!("{}\n{}", self.text(), ran.text()),
            ExplainFormat::Json => {
                let mut json = self.json();
                json["ran"] = ran.json();
                format!("{json:#}\n")
            }
            ExplainFormat::Dot => self.show(format),
        }
    }
}

/// Where the text of `EXPLAIN ANALYZE` is put when its query has run, to be read by the stage that
/// shows it.
#[derive(Debug, Clone)]
pub struct Analyzed {
    /// How it is shown.
    pub format: ExplainFormat,
    pub(crate) schema: SchemaRef,
    pub(crate) rows: Arc<Mutex<Vec<RecordBatch>>>,
}

impl Analyzed {
    /// Puts a text there.
    pub fn tell(&self, text: &str) {
        let lines: ArrayRef = Arc::new(StringArray::from(text.lines().collect::<Vec<_>>()));
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![lines]);
        let rows = batch.map(|batch| vec![batch]).unwrap_or_default();
        *self.rows.lock().unwrap_or_else(PoisonError::into_inner) = rows;
    }
}

/// Takes rows that nobody wants to see.
#[derive(Debug)]
pub(crate) struct Discard;

impl Sink for Discard {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn open(&self, _: u32) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(Discard))
    }
}

impl SinkWriter for Discard {
    fn write(&mut self, _: &RecordBatch) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<(), ConnectorError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_the_most_over_the_mean() {
        let worker = |rows_in| RanWorker { rows_in, ..RanWorker::default() };
        let ran = |rows: &[u64]| Ran {
            elapsed: Duration::from_secs(1),
            workers: rows.iter().map(|&rows| worker(rows)).collect(),
        };
        assert_eq!(ran(&[10, 10]).skew(), 1.0);
        assert_eq!(ran(&[30, 10]).skew(), 1.5);
        assert_eq!(ran(&[0, 0]).skew(), 1.0);
    }

    #[test]
    fn times_are_parts_of_their_sum() {
        let worker =
            RanWorker { busy_ns: 3, backpressured_ns: 1, idle_ns: 0, ..RanWorker::default() };
        let ran = Ran { elapsed: Duration::from_millis(1500), workers: vec![worker] };
        let text = ran.text();
        assert!(text.starts_with("ran in 1.500 s\n"), "{text}");
        assert!(text.contains("0 of node 0         75 %        25 %         0 %"), "{text}");
    }
}
