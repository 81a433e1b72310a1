//! `EXPLAIN ANALYZE`: the plan with what the workers did when it ran.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::error::ConnectorError;
use dataflow::hash_join::BUILD;
use dataflow::job::{HashJoin, Operator, OperatorKind};
use dataflow::sink::{Placement, Sink, SinkWriter, WriterContext};
use serde_json::{Value, json};

use super::{Explain, Ran};
use crate::expr::given::{CalledFunction, FunctionUsage, GivenFunction};
use crate::text::statements::ExplainFormat;
use crate::text::units::count;

impl Explain {
    /// How often the functions of the program that it calls were called until now.
    pub fn called(&self) -> Vec<CalledFunction> {
        self.functions.iter().map(GivenFunction::called).collect()
    }

    /// The plan in a format, with what a run of it came to; as a graph, the plan alone.
    pub fn analyzed(&self, format: ExplainFormat, ran: &Ran) -> String {
        match format {
            ExplainFormat::Text => {
                let (plan, ran_text) = (self.text(), ran.text(&self.operators()));
                let (modes, met) = (self.modes_text(ran), self.exchanges_text(ran));
                let rows = self.estimates_text(ran);
                let called = functions_text(ran);
                format!("{plan}\n{ran_text}{rows}{modes}{met}{called}")
            }
            ExplainFormat::Json => {
                let mut json = self.json();
                json["ran"] = ran.json(&self.operators());
                let [epochs, shuffles] = self.exchanges_json(ran);
                json["ran"]["epochs"] = epochs;
                json["ran"]["shuffles"] = shuffles;
                if !ran.functions.is_empty() {
                    json["ran"]["functions"] = functions_json(ran);
                }
                format!("{json:#}\n")
            }
            ExplainFormat::Dot => self.show(format),
        }
    }

    /// A line for each build and each operator with an estimate: the rows of the build, or that the
    /// operator emitted, and the estimate.
    fn estimates_text(&self, ran: &Ran) -> String {
        let mut out = String::new();
        for (at, (operator, name)) in self.operators.iter().zip(self.operators()).enumerate() {
            if let Some((build, estimate)) = build_of(operator) {
                let all = ran.of(at).map(|one| one.build_rows);
                // Each worker has all rows of a build that is broadcast, and each process reads all
                // of one that is pulled.
                let rows = match build {
                    build if build.is_pulled => {
                        Some(all.sum::<u64>() / u64::from(self.workers.nodes.max(1)))
                    }
                    // Some processes get a part of one that is multicast, each the same share.
                    build if parts_of(build).is_some() => {
                        let parts = u64::from(parts_of(build).unwrap_or(1));
                        Some(all.sum::<u64>() * parts / u64::from(self.workers.total().max(1)))
                    }
                    build if build.is_replicated() => all.max(),
                    _ => Some(all.sum()),
                };
                let (rows, about) = (rows.unwrap_or(0), count(estimate));
                out +=
                    &format!("  {name}: {rows} rows in the build, about {about} were expected\n");
            }
            if let Some(estimate) = operator.labels.rows_estimate {
                let rows = ran.sum(at, |one| one.rows_out);
                let about = count(estimate);
                out += &format!("  {name}: {rows} rows came out, about {about} were expected\n");
            }
        }
        out
    }
}

/// A line for each function of the program that was called.
fn functions_text(ran: &Ran) -> String {
    let called = ran.functions.iter().filter(|of| of.usage.calls > 0);
    let line = |of: &CalledFunction| {
        let FunctionUsage { calls, rows, ran, waited } = of.usage;
        let (ran, waited) = (ran.as_secs_f64(), waited.as_secs_f64());
        let name = &of.name;
        format!(
            "  function {name}: {calls} calls, {rows} rows, {ran:.3} s, {waited:.3} s of waiting \
             for its lock\n"
        )
    };
    called.map(line).collect()
}

fn functions_json(ran: &Ran) -> Value {
    let called = ran.functions.iter().map(|of| {
        let FunctionUsage { calls, rows, ran, waited } = of.usage;
        let (seconds, waited) = (ran.as_secs_f64(), waited.as_secs_f64());
        json!({
            "name": of.name, "calls": calls, "rows": rows, "seconds": seconds,
            "lock_wait_seconds": waited,
        })
    });
    called.collect()
}

/// The parts of the buckets of a build of which each process gets one.
fn parts_of(build: &HashJoin) -> Option<u32> {
    Some(build.multicast.as_ref()?.cells.as_ref()?.axis.parts)
}

/// The join that an operator is, and the estimated rows of its build.
fn build_of(operator: &Operator) -> Option<(&HashJoin, u64)> {
    let OperatorKind::HashJoin(join) = &operator.kind else { return None };
    Some((join, operator.labels.inputs.get(BUILD)?.rows_estimate?))
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

    fn open(&self, _: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
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
