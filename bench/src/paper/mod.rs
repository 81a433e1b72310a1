//! The experiments of the papers, in sizes that fit a machine: sweeps of `millstream bench`, each
//! point a run of processes of its own, and a [`FigureReport`] of what they print.
//!
//! A point that fails is named in the report, and the others go on. What needs more machines, or
//! hardware that is not there, the report says too.

use std::fmt::Write;

use serde_json::Value;

use crate::report::{
    Axis, Bar, FigureOrigin, FigureReport, Plot, ReportSection, ReportTable, Series,
};

mod air;
mod ingestion;
mod istore;
mod lists;
mod probes;
mod shuffle;
mod slash;

pub use air::air;
pub use istore::{SERVER_BYTES, istore, tables_text};
pub use shuffle::shuffle;
pub use slash::slash;

/// Runs `millstream bench`.
pub trait Runner {
    /// Runs it with these arguments, and gives the objects that it prints.
    ///
    /// # Errors
    /// Its error message.
    fn run(&mut self, arguments: &[String]) -> Result<Vec<Value>, String>;
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaperScale {
    /// Rows of each worker are this many times those of an ordinary sweep.
    pub rows: f64,
    /// Runs of each point.
    pub runs: u32,
    /// Processes at most.
    pub nodes: u32,
    /// Processors of the machine.
    pub processors: u32,
}

/// Runs points and keeps what went wrong.
struct Sweep<'a> {
    bench: &'a mut dyn Runner,
    scale: PaperScale,
    failed: Vec<String>,
}

impl Sweep<'_> {
    /// The objects of a run; none if it failed. `text` has the arguments, with blanks between.
    fn run(&mut self, text: &str) -> Vec<Value> {
        let mut arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        arguments.push("--json".into());
        match self.bench.run(&arguments) {
            Ok(values) => values,
            Err(error) => {
                self.failed.push(format!("not measured: bench {text}: {error}"));
                Vec::new()
            }
        }
    }

    /// A run of a workload with all rows there at once.
    fn at_once(&mut self, workload: &str, more: &str) -> Vec<Value> {
        self.some_at_once(workload, more, 1.0)
    }

    /// A run of a workload with some of the rows of an ordinary sweep, all there at once.
    fn some_at_once(&mut self, workload: &str, more: &str, part: f64) -> Vec<Value> {
        let rows = (self.scale.rows * rows_of(workload) * part).max(1000.0) as u64;
        let runs = self.scale.runs;
        self.run(&format!("{workload} {more} --rows {rows} --runs {runs}"))
    }

    /// The median and the 99th percentile of CM's latency in milliseconds, at 200,000 records a
    /// second with workers that spin.
    fn latency_of_cm(&mut self, options: &str) -> [Option<f64>; 2] {
        let run = self.run(&format!("cm {options} --latency 2e5 --set millstream.idle=spin"));
        let trial = run.first().and_then(|run| run["latency"].get(0)).map(Figures);
        ["p50", "p99"].map(|quantile| trial.as_ref()?.latency_ms(quantile))
    }

    /// Numbers of workers of a process: powers of two up to the processors of the machine, two at
    /// least.
    fn workers(&self) -> impl Iterator<Item = u32> + use<> {
        let most = self.scale.processors.max(2);
        std::iter::successors(Some(1), |workers| Some(workers * 2)).take_while(move |n| *n <= most)
    }

    /// Numbers of processes: powers of two.
    fn nodes(&self) -> impl Iterator<Item = u32> + use<> {
        let most = self.scale.nodes;
        std::iter::successors(Some(1), |nodes| Some(nodes * 2)).take_while(move |n| *n <= most)
    }

    /// Failures since the last call, as paragraphs.
    fn failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failed)
    }
}

/// Rows of each worker in an ordinary sweep: a fraction of a second or more.
fn rows_of(workload: &str) -> f64 {
    match workload {
        "nb8" | "nb11" => 4e6,
        "ro" | "ysb --keys 10000000" => 32e6,
        _ => 64e6,
    }
}

/// The values of an object that `bench` has printed.
struct Figures<'a>(&'a Value);

impl<'a> Figures<'a> {
    /// Of a variant among several.
    fn of(values: &'a [Value], variant: &str) -> Option<Self> {
        values.iter().find(|value| value["variant"] == variant).map(Self)
    }

    fn number(&self, name: &str) -> Option<f64> {
        let value = &self.0[name];
        value.as_f64().or_else(|| value["median"].as_f64())
    }

    /// The least, the median and the greatest of a figure.
    fn range(&self, name: &str) -> Option<[f64; 3]> {
        let of = |which: &str| self.0[name][which].as_f64();
        Some([of("least")?, of("median")?, of("greatest")?])
    }

    /// Records a second, in millions.
    fn rate(&self) -> Option<f64> {
        Some(self.number("rows_per_s")? * 1e-6)
    }

    /// Of something that is counted, what a record has.
    fn per_row(&self, name: &str) -> Option<f64> {
        Some(self.number(name)? / self.number("rows")?)
    }

    /// A quantile of a latency, in milliseconds.
    fn latency_ms(&self, quantile: &str) -> Option<f64> {
        Some(self.0["latency_s"][quantile].as_f64()? * 1e3)
    }
}

/// A bar for a number that must be so large: missed by a smaller one, not known without one.
fn at_least(what: String, asked: f64, got: Option<f64>) -> Bar {
    Bar {
        what,
        needed: format!("≥ {asked} times"),
        got: format!("{} times", cell(got, 2)),
        met: got.map(|got| got >= asked),
    }
}

/// A bar for a number that must lie within bounds.
fn within(what: String, [least, most]: [f64; 2], got: Option<f64>) -> Bar {
    Bar {
        what,
        needed: format!("{least:.2} to {most:.2} times"),
        got: format!("{} times", cell(got, 3)),
        met: got.map(|got| (least..=most).contains(&got)),
    }
}

/// A bar for a number that must not be larger.
fn at_most(what: String, asked: f64, got: Option<f64>) -> Bar {
    Bar {
        what,
        needed: format!("≤ {asked} times"),
        got: format!("{} times", cell(got, 3)),
        met: got.map(|got| got <= asked),
    }
}

/// A number in a table; a dash where there is none.
fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.digits$}"))
}

fn table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> ReportTable {
    let columns = columns.iter().map(|column| column.to_string()).collect();
    ReportTable { title: title.to_owned(), columns, rows }
}

/// A table as text: its title, and columns that stand right.
fn table_of_text(table: &ReportTable) -> String {
    let lines: Vec<&Vec<String>> = std::iter::once(&table.columns).chain(&table.rows).collect();
    let width = |at: usize| {
        lines.iter().filter_map(|line| line.get(at)).map(|cell| cell.chars().count()).max()
    };
    let mut text = format!("\n{}\n", table.title);
    for line in &lines {
        for (at, cell) in line.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(text, "  {cell:>width$}", width = width(at).unwrap_or(0));
        }
        text.push('\n');
    }
    text
}

fn plot(title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Plot {
    Plot { title: title.to_owned(), x, y, series }
}

fn measured(name: &str, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.to_owned(), origin: FigureOrigin::Measured, points }
}

fn section(title: &str, text: &[&str]) -> ReportSection {
    let text = text.iter().map(|paragraph| paragraph.to_string()).collect();
    ReportSection { title: title.to_owned(), text, ..ReportSection::default() }
}

/// The conditions, for a reader.
fn about(sweep: &mut Sweep<'_>, paper: &str) -> Vec<String> {
    let PaperScale { rows, runs, nodes, processors } = sweep.scale;
    let mut machine = format!("{processors} processors");
    for limits in sweep.run(&format!("limits --runs {runs}")) {
        let limits = Figures(&limits);
        for (name, unit, factor) in [
            ("hertz", "GHz of the time stamp counter", 1e-9),
            ("read_bytes_per_s_1", "GB/s read from memory by one thread", 1e-9),
            ("shm_bytes_per_s_64_kib", "GB/s over a link of shared memory", 1e-9),
            ("shm_one_way_s", "us one way of 64 bytes over it", 1e6),
        ] {
            if let Some(value) = limits.number(name) {
                // Writing to a String cannot fail.
                let _ = write!(machine, ", {:.2} {unit}", value * factor);
            }
        }
    }
    let mut about = vec![
        format!("The machine: {machine}."),
        format!(
            "Figures are medians of {runs} runs, {rows} times the rows of an ordinary sweep. Every \
             result was checked against a sequential computation before its figures were taken. \
             Up to {nodes} processes of one worker share the machine: beyond {processors} they \
             share processors, and the figures show that and nothing else."
        ),
        format!(
            "Not measured, because it is not there: several machines and RDMA hardware, on which \
             {paper} has its figures. Cycles are those of the time stamp counter while a worker \
             had a processor."
        ),
    ];
    about.append(&mut sweep.failed);
    about
}

fn report(title: &str, about: Vec<String>, sections: Vec<ReportSection>) -> FigureReport {
    FigureReport { title: title.to_owned(), about, sections }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Prints what a run of this many arguments would, and fails where it is told to.
    struct Fake {
        asked: Vec<String>,
        fails: &'static str,
        /// More processes, skew and pipelining do not help, and windows take long.
        slow: bool,
    }

    impl Fake {
        fn new(fails: &'static str, slow: bool) -> Self {
            Self { asked: Vec::new(), fails, slow }
        }
    }

    fn range(median: f64) -> Value {
        json!({ "median": median, "least": 1.0, "greatest": 2e9 })
    }

    /// The totals of all queries, by layout.
    fn totals(layouts: &str, slow: bool) -> Vec<Value> {
        let totals = layouts.split(',').flat_map(|layout| {
            let counts = layout.split('x').map(|count| count.parse::<u32>().unwrap());
            let counts: Vec<u32> = counts.collect();
            [("shm", 1.0), ("tcp", if slow { 1.1 } else { 1.2 })].map(|(name, seconds)| {
                json!({
                    "nodes": counts[0], "workers": counts[1], "fabric": name,
                    "total_seconds": seconds, "total_cpu_seconds": 2.0 * seconds,
                })
            })
        });
        totals.collect()
    }

    /// The queries of a star, by exchange.
    fn ssb(queries: &str, exchanges: &str, (nodes, pool, slow): (f64, bool, bool)) -> Vec<Value> {
        let each = exchanges.split(',').flat_map(|exchange| {
            let of = move |query: &str| {
                let seconds = match (exchange, slow) {
                    ("pull", false) => range(0.5 / nodes),
                    ("pull", true) => range(8.0 / nodes),
                    (_, true) if pool => range(4.0 / nodes),
                    _ => range(2.0 / nodes),
                };
                json!({
                    "query": query, "exchange": exchange, "seconds": seconds,
                    "sent_bytes": 1 << 20, "pool_bytes": 1 << 21, "pool_blocks": 5,
                })
            };
            queries.split(',').map(of).collect::<Vec<_>>()
        });
        each.collect()
    }

    impl Runner for Fake {
        fn run(&mut self, arguments: &[String]) -> Result<Vec<Value>, String> {
            let text = arguments.join(" ");
            self.asked.push(text.clone());
            if text.contains(self.fails) {
                return Err("no memory".into());
            }
            let after = |name: &str| {
                let at = arguments.iter().position(|argument| argument == name)?;
                arguments.get(at + 1).cloned()
            };
            let trial = json!({
                "rate": 1e6, "sustained": true, "behind_s": 0.0,
                "latency_s": {
                    "count": 5, "p50": if self.slow { 1e-3 } else { 6e-5 }, "p90": 7e-5,
                    "p99": 8e-5, "max": 9e-5
                }
            });
            let number = |name| after(name).and_then(|n| n.parse::<f64>().ok());
            let nodes = number("--nodes").filter(|_| !self.slow).unwrap_or(1.0);
            let skewed = self.slow && number("--exponent").is_some_and(|exponent| exponent > 0.0);
            let exchange = after("--exchange").unwrap_or_else(|| "auto".into());
            if let Some(layouts) = after("--layouts") {
                return Ok(totals(&layouts, self.slow));
            }
            if arguments[0] == "ssb" {
                let pool = after("--from").is_some_and(|from| from == "pool");
                let queries = after("--queries").unwrap_or_default();
                return Ok(ssb(&queries, &exchange, (nodes, pool, self.slow)));
            }
            let mut variants: Vec<&str> = exchange.split(',').collect();
            if arguments.iter().any(|argument| argument == "--against-loop") {
                variants.push("loop");
            }
            Ok(variants
                .iter()
                .map(|variant| {
                    let factor = match *variant {
                        "uppar" if self.slow && text.contains("millstream.readers") => 1.0,
                        "uppar" => 0.25,
                        "shuffle" if !self.slow => 0.5,
                        _ if skewed => 0.9,
                        _ => 1.0,
                    };
                    json!({
                        "variant": variant, "rows": 1000, "bytes_sent": 500, "work_requests": 10,
                        "rows_per_s": range(1e8 * nodes * factor), "sustainable": 5e7,
                        "busy_cycles_per_row": range(25.0), "bytes_per_row": 16.0,
                        "share_of_bandwidth": range(0.5), "processor_cycles_per_row": 20.0,
                        "share_of_unrelated": range(if self.slow { 0.5 } else { 0.96 }),
                        "times_one_worker": range(if self.slow { 0.9 } else { 1.7 }),
                        "instructions_per_row": 40.0, "l1_misses_per_row": 2.0,
                        "llc_misses_per_row": 0.5, "branch_misses_per_row": 0.1,
                        "latency": [trial.clone(), trial.clone()],
                    })
                })
                .collect())
        }
    }

    const SCALE: PaperScale = PaperScale { rows: 0.5, runs: 3, nodes: 4, processors: 2 };

    #[test]
    fn every_section_has_figures() {
        let of_pool =
            |bench: &mut dyn Runner, scale| istore(bench, scale, "127.0.0.1:1,127.0.0.1:1");
        type Make = fn(&mut dyn Runner, PaperScale) -> FigureReport;
        for (title, make) in [
            ("Slash", slash as Make),
            ("AIR", air),
            ("I-Store", of_pool),
            ("asynchronous shuffle", shuffle),
        ] {
            let mut bench = Fake::new("nothing fails", false);
            let report = make(&mut bench, SCALE);
            assert!(report.title.contains(title), "{}", report.title);
            for section in &report.sections {
                let drawn = section.plots.iter().flat_map(|plot| &plot.series);
                let empty = drawn.filter(|series| series.points.is_empty()).count();
                assert_eq!(empty, 0, "{}", section.title);
                let is_told = section.text.iter().any(|text| text.starts_with("Not measured: "));
                let is_drawn = section.plots.len() + section.tables.len() > 0;
                assert!(is_drawn || is_told, "{}", section.title);
                let cells = section.tables.iter().flat_map(|table| table.rows.iter().flatten());
                assert_eq!(cells.filter(|cell| *cell == "–").count(), 0, "{}", section.title);
            }
            assert!(bench.asked.iter().all(|asked| asked.ends_with("--json")));
            assert!(report.html().contains("<svg"), "{title}");
        }
    }

    #[test]
    fn a_bar_is_met_missed_and_not_known() {
        let met = [Some(true), Some(false), None];
        let name = String::new;
        assert_eq!([Some(2.0), Some(1.9), None].map(|got| at_least(name(), 2.0, got).met), met);
        assert_eq!([Some(2.0), Some(2.1), None].map(|got| at_most(name(), 2.0, got).met), met);
        let bounds = [0.9, 1.1];
        assert_eq!([Some(1.1), Some(1.2), None].map(|got| within(name(), bounds, got).met), met);
        assert_eq!(within(name(), bounds, Some(0.8)).met, Some(false));
    }

    #[test]
    fn bars_of_tables_in_a_pool_are_missed_where_pulls_do_not_help() {
        let of = |slow| {
            let mut bench = Fake::new("nothing", slow);
            let report = istore(&mut bench, SCALE, "127.0.0.1:1,127.0.0.1:1");
            let of_queries = |bar: &&Bar| {
                bar.what.starts_with("pull against") || bar.what.starts_with("star schema")
            };
            report.bars().filter(of_queries).map(|bar| bar.met).collect::<Vec<_>>()
        };
        assert_eq!((of(false), of(true)), (vec![Some(true); 5], vec![Some(false); 5]));
    }

    #[test]
    fn every_bar_is_missed_by_an_engine_that_is_slow_and_not_known_of_one_that_fails() {
        type Make = fn(&mut dyn Runner, PaperScale) -> FigureReport;
        for make in [slash as Make, air, shuffle] {
            let met = |bench: &mut Fake| -> Vec<_> {
                make(bench, SCALE).bars().map(|bar| (bar.what.clone(), bar.met)).collect()
            };
            let (good, slow) =
                (met(&mut Fake::new("nothing", false)), met(&mut Fake::new("nothing", true)));
            assert!(good.len() > 1 && good.len() == slow.len());
            let missed = |of: &[(String, Option<bool>)], as_it_is| {
                of.iter()
                    .filter(|bar| bar.1 != as_it_is)
                    .map(|bar| bar.0.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!(missed(&good, Some(true)), Vec::<String>::new());
            assert_eq!(missed(&slow, Some(false)), Vec::<String>::new());
            let none = met(&mut Fake::new("--", false));
            assert_eq!(missed(&none, None), Vec::<String>::new());
            assert_eq!(none.len(), good.len(), "what was not measured is not left out");
        }
    }

    #[test]
    fn a_point_that_fails_is_named_and_the_others_go_on() {
        let mut bench = Fake::new("--nodes 4", false);
        let report = slash(&mut bench, SCALE);
        let reported = report.sections.iter().flat_map(|section| &section.text);
        assert!(reported.filter(|text| text.contains("no memory")).count() > 2);
        let points = report.sections.iter().flat_map(|section| &section.plots);
        assert!(points.flat_map(|plot| &plot.series).any(|series| series.points.len() == 2));
        let known = report.bars().filter(|bar| bar.what.contains("two processes"));
        let known: Vec<Option<bool>> = known.map(|bar| bar.met).collect();
        assert!(!known.is_empty(), "one and two processes are there");
        assert!(known.iter().all(Option::is_some), "{known:?}");
    }
}
