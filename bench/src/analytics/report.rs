//! Figures of a suite, for a reader and for a program.

use std::fmt::{self, Write};
use std::time::Duration;

use serde_json::json;

use super::check::Checked;
use super::run::{QueryFigures, QueryOutcome, SuiteLayout, SuitePlan, SuiteWay};
use crate::summary::MedianRange;

/// All outcomes of a suite.
#[derive(Debug)]
pub struct SuiteReport {
    /// The plan of the measurement.
    pub plan: SuitePlan,
    /// The queries, each with each exchange.
    pub outcomes: Vec<QueryOutcome>,
    /// The outcome of the check of the results, if they were checked.
    pub checked: Option<Checked>,
}

impl SuiteReport {
    /// All faults: queries that were refused or failed, and wrong results.
    pub fn faults(&self) -> Vec<String> {
        let failed = self.outcomes.iter().filter_map(|outcome| {
            let why = outcome.figures.as_ref().err()?;
            Some(format!("{} ({}): {why}", outcome.query.name, self.plan.name_of(&outcome.way)))
        });
        let wrong = self.checked.iter().flat_map(|checked| checked.wrong.iter().cloned());
        failed.chain(wrong).collect()
    }

    /// A JSON object a line: each query, then a summary of each way in which the queries ran.
    pub fn json(&self) -> String {
        let base = |way: &SuiteWay| {
            json!({
                "suite": self.plan.suite.name(), "scale": self.plan.scale,
                "nodes": way.layout.nodes, "workers": way.layout.workers,
                "fabric": way.fabric.to_string(), "exchange": way.exchange,
                "from": self.plan.place(),
            })
        };
        let mut lines = String::new();
        let mut line = |way: &SuiteWay, more: serde_json::Value| {
            let mut object = base(way);
            if let (Some(object), serde_json::Value::Object(more)) = (object.as_object_mut(), more)
            {
                object.extend(more);
            }
            let _ = writeln!(lines, "{object}");
        };
        for outcome in &self.outcomes {
            let of = match &outcome.figures {
                Ok(figures) => json!({
                    "query": outcome.query.name,
                    "seconds": range_json(figures.elapsed_ms().times(1e-3)),
                    "cpu_seconds": range_json(figures.busy_ms().times(1e-3)),
                    "rows": figures.rows(),
                    "scanned_rows": figures.scanned,
                    "scanned_bytes": figures.total.bytes_in,
                    "sent_bytes": figures.total.bytes_sent,
                    "pool_blocks": figures.pool_blocks,
                    "pool_bytes": figures.pool_bytes,
                    "gathered_rows": figures.gathered,
                    "gathered_bytes": figures.gathered_bytes,
                    "spilled_bytes": figures.total.spilled_bytes,
                }),
                Err(why) => json!({ "query": outcome.query.name, "error": why }),
            };
            line(&outcome.way, of);
        }
        for way in &self.plan.ways() {
            let sums = Sums::of(self.figures(way));
            line(
                way,
                json!({
                    "queries": sums.queries, "total_seconds": sums.total_ms * 1e-3,
                    "total_cpu_seconds": sums.busy_ms * 1e-3,
                    "geometric_mean_seconds": sums.geometric_ms * 1e-3,
                    "checked_against": self.checked.as_ref().map(|checked| &checked.against),
                    "right": self.checked.as_ref().map(|checked| checked.right),
                }),
            );
        }
        lines
    }

    fn outcomes_of<'a>(&'a self, way: &'a SuiteWay) -> impl Iterator<Item = &'a QueryOutcome> {
        self.outcomes.iter().filter(move |outcome| outcome.way == *way)
    }

    fn figures<'a>(&'a self, way: &'a SuiteWay) -> impl Iterator<Item = &'a QueryFigures> {
        self.outcomes_of(way).filter_map(|outcome| outcome.figures.as_ref().ok())
    }

    /// The head of a section: what the queries ran on, as far as it is not the same for all of
    /// them.
    fn head(&self, way: &SuiteWay) -> String {
        let SuitePlan { layouts, fabrics, .. } = &self.plan;
        let several = layouts.len() > 1 || fabrics.len() > 1;
        if several { format!("\n  {}", ran_on(way)) } else { String::new() }
    }

    /// The queries with each way in a column: milliseconds, and those of processor time.
    fn write_compared(&self, f: &mut fmt::Formatter<'_>, ways: &[SuiteWay]) -> fmt::Result {
        write!(f, "\n  {:<9}", "ms (cpu)")?;
        let widths: Vec<usize> =
            ways.iter().map(|way| self.plan.name_of(way).len().max(20) + 2).collect();
        for (way, width) in ways.iter().zip(&widths) {
            write!(f, "{:>width$}", self.plan.name_of(way))?;
        }
        for query in &self.plan.queries {
            write!(f, "\n  {:<9}", query.name)?;
            for (way, width) in ways.iter().zip(&widths) {
                let of = self.outcomes_of(way).find(|outcome| outcome.query.name == query.name);
                let text = match of.and_then(|outcome| outcome.figures.as_ref().ok()) {
                    Some(figures) => {
                        let [elapsed, busy] = [figures.elapsed_ms(), figures.busy_ms()];
                        format!("{:.2} ({:.2})", elapsed.median, busy.median)
                    }
                    None => "-".to_owned(),
                };
                write!(f, "{text:>width$}")?;
            }
        }
        writeln!(f)
    }
}

fn range_json(range: MedianRange) -> serde_json::Value {
    json!({ "median": range.median, "least": range.least, "greatest": range.greatest })
}

impl QueryFigures {
    /// Milliseconds of the runs.
    pub fn elapsed_ms(&self) -> MedianRange {
        milliseconds(&self.elapsed)
    }

    /// Milliseconds of processor time of the runs.
    pub fn busy_ms(&self) -> MedianRange {
        milliseconds(&self.busy)
    }
}

fn milliseconds(times: &[Duration]) -> MedianRange {
    MedianRange::of(&times.iter().map(|time| time.as_secs_f64() * 1e3).collect())
}

/// Sums over the queries that have figures.
struct Sums {
    queries: usize,
    total_ms: f64,
    busy_ms: f64,
    geometric_ms: f64,
}

impl Sums {
    fn of<'a>(figures: impl Iterator<Item = &'a QueryFigures>) -> Self {
        let mut sums = Self { queries: 0, total_ms: 0.0, busy_ms: 0.0, geometric_ms: 0.0 };
        for figures in figures {
            let elapsed = figures.elapsed_ms().median;
            sums.queries += 1;
            sums.total_ms += elapsed;
            sums.busy_ms += figures.busy_ms().median;
            sums.geometric_ms += elapsed.max(1e-6).ln();
        }
        sums.geometric_ms = (sums.geometric_ms / sums.queries.max(1) as f64).exp();
        sums
    }
}

impl fmt::Display for SuiteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SuitePlan { suite, scale, runs, .. } = &self.plan;
        let ways = self.plan.ways();
        let alike = ways.first().filter(|way| self.head(way).is_empty());
        let on = alike.map_or("in turns".to_owned(), ran_on);
        let place = self.plan.place();
        writeln!(f, "{suite}, scale {scale}, from {place}: {on}, medians of {runs} run(s)")?;
        for way in &ways {
            writeln!(
                f,
                "{}\n  {:<9}{:>10}{:>20}{:>10}{:>9}{:>12}{:>11}{:>11}{:>8}",
                self.head(way),
                way.exchange,
                "ms",
                "least to greatest",
                "cpu ms",
                "rows",
                "scanned",
                "sent MiB",
                "gathered",
                "share"
            )?;
            for outcome in self.outcomes_of(way) {
                match &outcome.figures {
                    Ok(figures) => query_line(f, outcome.query.name, figures)?,
                    Err(why) => writeln!(f, "  {:<9}{why}", outcome.query.name)?,
                }
            }
            let sums = Sums::of(self.figures(way));
            writeln!(
                f,
                "  {} queries: {:.1} ms in total, geometric mean {:.2} ms, {:.1} ms of processor \
                 time",
                sums.queries, sums.total_ms, sums.geometric_ms, sums.busy_ms
            )?;
        }
        if alike.is_none() {
            self.write_compared(f, &ways)?;
        }
        if let Some(checked) = &self.checked {
            writeln!(
                f,
                "\n{} of {} results are right, by {}",
                checked.right, checked.all, checked.against
            )?;
        }
        Ok(())
    }
}

/// Processes, workers and transport of a way.
fn ran_on(way: &SuiteWay) -> String {
    let SuiteWay { layout: SuiteLayout { nodes, workers }, fabric, .. } = way;
    format!("{nodes} process(es) of {workers} worker(s) over {fabric}")
}

fn query_line(f: &mut fmt::Formatter<'_>, name: &str, figures: &QueryFigures) -> fmt::Result {
    let (elapsed, total) = (figures.elapsed_ms(), &figures.total);
    let share = 100.0 * figures.gathered as f64 / figures.scanned.max(1) as f64;
    writeln!(
        f,
        "  {name:<9}{:>10.2}{:>20}{:>10.2}{:>9}{:>12}{:>11.2}{:>11}{share:>7.2}%",
        elapsed.median,
        elapsed.range(2),
        figures.busy_ms().median,
        figures.rows(),
        figures.scanned,
        total.bytes_sent as f64 / f64::from(1 << 20),
        figures.gathered,
    )
}
