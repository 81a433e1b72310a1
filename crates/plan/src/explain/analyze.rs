//! `EXPLAIN ANALYZE`: the plan with what the workers did when it ran.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
                let enough = workers_enough_text(ran);
                format!("{plan}\n{ran_text}{rows}{modes}{met}{called}{enough}")
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
                if let Some((enough, _)) = workers_enough(ran) {
                    json["ran"]["workers_enough_for_functions"] = enough.into();
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

/// Workers that wait for functions for less than this part of their time are not too many: a tenth.
const WAITS_SHOWN_MIN: u128 = 10;

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

/// How many workers would be as fast as all of a process, whose functions run one at a time: those
/// that keep the lock of the functions taken; and the number of all. `None` if the workers hardly
/// waited for it.
fn workers_enough(ran: &Ran) -> Option<(u64, u64)> {
    let sum = |of: fn(&FunctionUsage) -> Duration| -> u128 {
        ran.functions.iter().map(|called| of(&called.usage).as_nanos()).sum()
    };
    let (in_functions, waited) = (sum(|of| of.ran), sum(|of| of.waited));
    // The functions are counted in this process, which is the first.
    let node = ran.workers.iter().map(|of| of.node).min()?;
    let workers = ran.workers.iter().filter(|of| of.node == node);
    let (count, busy) = workers
        .fold((0, 0), |(count, busy), of| (count + 1, busy + u128::from(of.counters.busy_ns)));
    if in_functions == 0 || waited * WAITS_SHOWN_MIN < busy {
        return None;
    }
    // Each worker works for so long in all, while one at a time is in a function.
    let worked = busy.saturating_sub(waited).max(in_functions);
    let enough = u64::try_from(worked.div_ceil(in_functions)).unwrap_or(u64::MAX);
    (enough < count).then_some((enough, count))
}

fn workers_enough_text(ran: &Ran) -> String {
    let Some((enough, count)) = workers_enough(ran) else { return String::new() };
    format!("  {enough} of {count} workers would be enough: one at a time calls these functions\n")
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

#[cfg(test)]
mod tests {
    use dataflow::metrics::{Counters, WorkerCounters};

    use super::*;

    /// A run of workers that were busy for `busy` seconds each, `of` on each of two nodes, whose
    /// functions ran and waited for these seconds in all.
    fn ran(of: u32, busy: u64, functions: &[(u64, u64)]) -> Ran {
        let worker = |worker: u32| WorkerCounters {
            node: worker / of,
            worker,
            counters: Counters { busy_ns: busy * 1_000_000_000, ..Counters::default() },
            operators: vec![],
        };
        let called = |&(ran, waited): &(u64, u64)| CalledFunction {
            name: "f".into(),
            usage: FunctionUsage {
                calls: 1,
                rows: 1,
                ran: Duration::from_secs(ran),
                waited: Duration::from_secs(waited),
            },
        };
        Ran {
            elapsed: Duration::from_secs(busy),
            clock_ms: None,
            workers: (0..2 * of).map(worker).collect(),
            joined: vec![],
            functions: functions.iter().map(called).collect(),
        }
    }

    #[test]
    fn fewer_workers_are_enough_where_one_at_a_time_calls_functions() {
        // Of 40 s of 4 workers 20 are waits, and the others are half in functions.
        let run = ran(4, 10, &[(10, 20)]);
        assert_eq!(workers_enough(&run), Some((2, 4)));
        let message = "  2 of 4 workers would be enough: one at a time calls these functions\n";
        assert_eq!(workers_enough_text(&run), message);
        // Two functions have one lock.
        assert_eq!(workers_enough(&ran(4, 10, &[(4, 12), (6, 8)])), Some((2, 4)));
        // All is in functions.
        assert_eq!(workers_enough(&ran(4, 10, &[(10, 30)])), Some((1, 4)));
        // A part of a worker is a worker.
        assert_eq!(workers_enough(&ran(4, 10, &[(10, 19)])), Some((3, 4)));
    }

    #[test]
    fn nothing_is_said_of_workers_that_hardly_wait() {
        for functions in [&[][..], &[(0, 0)], &[(10, 0)], &[(10, 3)], &[(5, 5)], &[(10, 5)]] {
            let run = ran(4, 10, functions);
            assert_eq!((workers_enough(&run), workers_enough_text(&run)), (None, String::new()));
        }
        assert_eq!(workers_enough(&ran(1, 10, &[(8, 2)])), None, "there is one");
        let none = Ran { workers: vec![], ..ran(4, 10, &[(10, 20)]) };
        assert_eq!(workers_enough(&none), None);
    }
}
