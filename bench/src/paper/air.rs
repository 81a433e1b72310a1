//! AIR (A5, A7, A8): sustainable throughput and latency.

use super::{
    Figures, PaperScale, Runner, Sweep, about, at_least, cell, measured, plot, report, section,
    table,
};
use crate::report::{Axis, Bar, FigureReport, Plot, ReportSection};

const WORKLOADS: [(&str, &str); 3] = [("ysb", "YSB"), ("ysb-star", "YSB*"), ("swa", "SWA")];

/// The experiments of AIR.
pub fn air(bench: &mut dyn Runner, scale: PaperScale) -> FigureReport {
    let sweep = &mut Sweep { bench, scale, failed: Vec::new() };
    let about = about(sweep, "AIR");
    let sections = vec![
        scaling(sweep),
        sustainable(sweep),
        by_rate(sweep),
        forward(sweep),
        grid(sweep),
        low_latency(sweep),
    ];
    report("AIR: dataflow without a master", about, sections)
}

/// All rows are there at once.
fn scaling(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Each process reads as many rows, all of them there at once.";
    let mut section = section("Weak scaling", &[text]);
    let mut series = Vec::new();
    for (workload, name) in WORKLOADS {
        let mut points = Vec::new();
        for nodes in sweep.nodes() {
            let run = sweep.at_once(workload, &format!("--nodes {nodes}"));
            let rate = Figures::of(&run, "auto").and_then(|figures| figures.rate());
            points.extend(rate.map(|rate| (f64::from(nodes), rate)));
        }
        series.push(measured(name, points));
    }
    let (x, y) = (Axis::linear("processes"), Axis::linear("M records/s"));
    section.plots.push(plot("Throughput", x, y, series));
    section.text.append(&mut sweep.failures());
    section
}

/// The search for what can be sustained (A7).
fn sustainable(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Rows come by the clock. The rate is the highest without a backlog, latency that of \
                event time: from when the last row of a window was due until its rows are \
                emitted. A window ends every 100 ms.";
    let mut section = section("Sustainable throughput", &[text]);
    let mut rows = Vec::new();
    for (workload, name) in WORKLOADS {
        for nodes in sweep.nodes().take(2) {
            let run = sweep.run(&format!("{workload} --nodes {nodes} --sustainable"));
            let Some(found) = run.first() else { continue };
            let rate = Figures(found).number("sustainable").map(|rate| rate * 1e-6);
            let latency = |at: usize, quantile: &str| {
                found["latency"].get(at).and_then(|trial| Figures(trial).latency_ms(quantile))
            };
            rows.push(vec![
                name.to_owned(),
                nodes.to_string(),
                cell(rate, 2),
                cell(latency(0, "p50"), 3),
                cell(latency(0, "p99"), 3),
                cell(latency(1, "p50"), 3),
                cell(latency(1, "p99"), 3),
            ]);
        }
    }
    let columns = [
        "workload",
        "processes",
        "M records/s",
        "median at 50 %, ms",
        "p99 at 50 %, ms",
        "median at 90 %, ms",
        "p99 at 90 %, ms",
    ];
    section.tables.push(table("What can be sustained", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}

/// Latency against the rate.
fn by_rate(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "YSB on two processes, at rates of 100,000 records a second and more.";
    let mut section = section("Latency by rate", &[text]);
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for rate in [1e5, 1e6, 1e7, 3e7, 1e8] {
        let run = sweep.run(&format!("ysb --nodes 2 --latency {rate}"));
        let trial = run.first().and_then(|run| run["latency"].get(0)).map(Figures);
        let of = |quantile| trial.as_ref().and_then(|trial| trial.latency_ms(quantile));
        medians.extend(of("p50").map(|ms| (rate, ms)));
        tails.extend(of("p99").map(|ms| (rate, ms)));
    }
    let series = vec![measured("median", medians), measured("p99", tails)];
    section.plots.push(plot("Latency", Axis::log("records/s"), Axis::log("ms"), series));
    section.text.append(&mut sweep.failures());
    section
}

/// Hand-over without an exchange (A5).
fn forward(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "The counts of YSB* are led by campaign, and so is their join: its rows need not \
                travel a second time (A5). With an exchange that is set by hand they do.";
    let mut section = section("Pipelining", &[text]);
    let run = sweep.at_once("ysb-star", "--nodes 2 --exchange auto,merge,shuffle");
    let mut rows = Vec::new();
    for (variant, name) in [
        ("auto", "merge, then forward"),
        ("merge", "merge, then shuffle"),
        ("shuffle", "shuffle, then shuffle"),
    ] {
        let Some(figures) = Figures::of(&run, variant) else { continue };
        rows.push(vec![
            name.to_owned(),
            cell(figures.rate(), 1),
            cell(figures.number("busy_cycles_per_row"), 1),
            cell(figures.per_row("bytes_sent"), 3),
        ]);
    }
    let columns = ["exchanges", "M records/s", "cycles a record", "bytes sent for a record"];
    section.tables.push(table("YSB* on two processes", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}

/// Workers that spin, and small slots.
fn low_latency(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Over shared memory with --low-latency: YSB at a million records a second and a \
                window every 100 ms, CM at 100,000 and a window every 20 ms. End to end, with the \
                wait for the row behind a window's end, and the 10 µs that a stripe of rows may \
                wait in the source. A worker that spins needs a processor of its own.";
    let mut section = section("The low-latency profile", &[text]);
    let mut rows = Vec::new();
    let workloads = [("ysb --latency 1e6", "YSB"), ("cm --latency 1e5 --window-every 20", "CM")];
    let points = sweep.nodes().take(2).flat_map(|nodes| workloads.map(|of| (nodes, of)));
    for (nodes, (workload, name)) in points {
        let run = sweep.run(&format!("{workload} --nodes {nodes} --low-latency"));
        let trial = run.first().and_then(|run| run["latency"].get(0)).map(Figures);
        let of = |quantile| trial.as_ref().and_then(|trial| trial.latency_ms(quantile));
        section.bars.push(latency_bar(name, nodes, of("p50")));
        if of("p50").is_none() {
            continue;
        }
        let cells = [of("p50"), of("p90"), of("p99")].map(|ms| cell(ms, 3));
        rows.push([name.to_owned(), nodes.to_string()].into_iter().chain(cells).collect());
    }
    let columns = ["workload", "processes", "median", "p90", "p99"];
    section.tables.push(table("Latency, ms", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}

fn latency_bar(name: &str, nodes: u32, median_ms: Option<f64>) -> Bar {
    Bar {
        what: format!("{name}: median on {nodes} process(es)"),
        needed: "< 100 µs".into(),
        got: format!("{} µs", cell(median_ms.map(|ms| ms * 1e3), 0)),
        met: median_ms.map(|ms| ms < 0.1),
    }
}

/// What a run without pipelining takes longer, at least: the least gain of the paper.
const PIPELINING_ASKED: f64 = 1.09;

/// The rows of each worker in a point of the grid, against an ordinary sweep.
const GRID_PART: f64 = 0.25;

/// A number of processes by a number of workers of each, with pipelining and without.
#[derive(Debug, Clone, Copy)]
struct GridPoint {
    nodes: u32,
    workers: u32,
    /// Whether there are more workers than processors.
    is_overcommitted: bool,
    /// M records/s with pipelining.
    with: Option<f64>,
    /// The same without.
    without: Option<f64>,
}

impl GridPoint {
    /// The gain of pipelining.
    fn gain(&self) -> Option<f64> {
        self.with.zip(self.without).map(|(with, without)| with / without)
    }
}

/// The median and the greatest gain of pipelining, with overcommit or without.
fn gains(points: &[GridPoint], is_overcommitted: bool) -> Option<[f64; 2]> {
    let of = points.iter().filter(|point| point.is_overcommitted == is_overcommitted);
    let mut gains: Vec<f64> = of.filter_map(GridPoint::gain).collect();
    gains.sort_by(f64::total_cmp);
    Some([*gains.get(gains.len() / 2)?, *gains.last()?])
}

/// The best rates of a number of processes in the four modes of the paper: plain, P, O and OP.
fn modes(points: &[GridPoint], nodes: u32) -> [Option<f64>; 4] {
    type Rate = fn(&GridPoint) -> Option<f64>;
    let best = |is_overcommitted: bool, rate: Rate| {
        let all = points.iter().filter(|point| point.nodes == nodes);
        let of = all.filter(|point| point.is_overcommitted == is_overcommitted);
        of.filter_map(rate).reduce(f64::max)
    };
    let (with, without): (Rate, Rate) = (|of| of.with, |of| of.without);
    [best(false, without), best(false, with), best(true, without), best(true, with)]
}

/// Runs a workload on each point of the grid.
fn points(sweep: &mut Sweep<'_>, workload: &str) -> Vec<GridPoint> {
    let processors = sweep.scale.processors.max(1);
    let layouts = sweep.nodes().flat_map(|nodes| {
        // Twice the workers that have a processor each, to overcommit.
        let most = (2 * processors / nodes).max(1);
        let counts = std::iter::successors(Some(1), |workers| Some(workers * 2));
        counts.take_while(move |workers| *workers <= most).map(move |workers| (nodes, workers))
    });
    // One worker has nobody to send rows to.
    let layouts: Vec<_> = layouts.filter(|(nodes, workers)| nodes * workers > 1).collect();
    let point = |(nodes, workers)| {
        let more = format!("--nodes {nodes} --workers {workers} --exchange auto,shuffle");
        let run = sweep.some_at_once(workload, &more, GRID_PART);
        let rate = |variant| Figures::of(&run, variant).and_then(|figures| figures.rate());
        let is_overcommitted = nodes * workers > processors;
        let (with, without) = (rate("auto"), rate("shuffle"));
        GridPoint { nodes, workers, is_overcommitted, with, without }
    };
    layouts.into_iter().map(point).collect()
}

/// The median gain of pipelining where each worker has a processor.
fn pipelining_bar(name: &str, points: &[GridPoint]) -> Bar {
    let median = gains(points, false).map(|[median, _]| median);
    at_least(format!("{name}: pipelining against none, median"), PIPELINING_ASKED, median)
}

/// Nodes by workers, with pipelining and without, and with more workers than processors (A10).
fn grid(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Processes by workers of each, with pipelining (rows are aggregated by the worker \
                that reads them, and groups are merged) and without (each row travels to the \
                leader of its key first). Where there are more workers than processors, these are \
                overcommitted. Rates are those of rows that are all there at once. The modes of \
                the paper are the best of these points: plain, with pipelining (P), with \
                overcommit (O), with both (OP). Its channels have threads, which wait, so that it \
                gains by overcommit; ours are coroutines of the worker, which has nothing to wait \
                for.";
    let mut section = section("Processes, workers, pipelining and overcommit", &[text]);
    let (mut rows, mut of_modes, mut of_gains) = (vec![], vec![], vec![]);
    for (workload, name) in WORKLOADS {
        let points = points(sweep, workload);
        for point in &points {
            let over = if point.is_overcommitted { "yes" } else { "no" };
            let names = [name, &point.nodes.to_string(), &point.workers.to_string(), over];
            let cells = [cell(point.with, 1), cell(point.without, 1), cell(point.gain(), 2)];
            rows.push(names.map(str::to_owned).into_iter().chain(cells).collect());
        }
        for nodes in sweep.nodes() {
            let has = |is_overcommitted| {
                let of = |point: &GridPoint| {
                    point.nodes == nodes && point.is_overcommitted == is_overcommitted
                };
                points.iter().any(of)
            };
            let there = [has(false), has(false), has(true), has(true)];
            let cells = modes(&points, nodes).into_iter().zip(there);
            // Four processes on two processors are overcommitted whatever they do.
            let cells =
                cells.map(|(rate, there)| if there { cell(rate, 1) } else { "none".into() });
            let names = [name.to_owned(), nodes.to_string()];
            of_modes.push(names.into_iter().chain(cells).collect());
        }
        for (is_overcommitted, over) in [(false, "no"), (true, "yes")] {
            let found = gains(&points, is_overcommitted);
            let cells = [0, 1].map(|at| cell(found.map(|of| of[at]), 2));
            let names = [name, over].map(str::to_owned);
            of_gains.push(names.into_iter().chain(cells).collect());
        }
        section.plots.push(grid_plot(name, &points));
        section.bars.push(pipelining_bar(name, &points));
    }
    let columns = [
        "workload",
        "processes",
        "workers of each",
        "overcommitted",
        "pipelined, M records/s",
        "without",
        "times",
    ];
    section.tables.push(table("Nodes by workers", &columns, rows));
    let columns = ["workload", "processes", "plain, M records/s", "P", "O", "OP"];
    section.tables.push(table("The best of each mode", &columns, of_modes));
    let columns = ["workload", "overcommitted", "median", "greatest"];
    section.tables.push(table("What pipelining gains, times", &columns, of_gains));
    section.text.append(&mut sweep.failures());
    section
}

/// Rates by the workers of all processes.
fn grid_plot(name: &str, points: &[GridPoint]) -> Plot {
    let line = |label: &str, rate: fn(&GridPoint) -> Option<f64>| {
        let at = |point: &GridPoint| {
            rate(point).map(|rate| (f64::from(point.nodes * point.workers), rate))
        };
        let mut line: Vec<(f64, f64)> = points.iter().filter_map(at).collect();
        line.sort_by(|one, other| one.0.total_cmp(&other.0));
        measured(label, line)
    };
    let series = vec![line("pipelined", |of| of.with), line("without", |of| of.without)];
    let (x, y) = (Axis::log("workers of all processes"), Axis::linear("M records/s"));
    plot(name, x, y, series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_below_a_tenth_of_a_millisecond_or_is_not() {
        let met = |ms| latency_bar("YSB", 1, ms).met;
        assert_eq!([met(Some(0.099)), met(Some(0.1)), met(None)], [Some(true), Some(false), None]);
    }

    fn point(workers: u32, is_overcommitted: bool, with: f64, without: f64) -> GridPoint {
        let (with, without) = (Some(with), Some(without));
        GridPoint { nodes: 1, workers, is_overcommitted, with, without }
    }

    #[test]
    fn pipelining_gains_in_the_median_point_that_is_not_overcommitted_or_does_not() {
        let met = |points: &[GridPoint]| pipelining_bar("YSB", points).met;
        let [slow, fast] = [point(2, false, 10.8, 10.0), point(2, false, 10.9, 10.0)];
        assert_eq!([met(&[fast]), met(&[slow])], [Some(true), Some(false)]);
        // Points that share processors, and those that failed, say nothing.
        assert_eq!(met(&[point(4, true, 20.0, 10.0)]), None);
        assert_eq!(met(&[GridPoint { without: None, ..fast }]), None);
        assert_eq!(met(&[]), None);
        assert_eq!(gains(&[slow, fast, point(2, false, 30.0, 10.0)], false), Some([1.09, 3.0]));
    }

    #[test]
    fn a_mode_is_the_best_of_its_points() {
        let points = [
            point(2, false, 5.0, 4.0),
            point(4, false, 7.0, 3.0),
            point(8, true, 6.0, 9.0),
            GridPoint { nodes: 2, ..point(1, false, 1.0, 2.0) },
        ];
        assert_eq!(modes(&points, 1), [Some(4.0), Some(7.0), Some(9.0), Some(6.0)]);
        assert_eq!(modes(&points, 2), [Some(2.0), Some(1.0), None, None]);
        assert_eq!(modes(&points, 4), [None; 4]);
    }
}
