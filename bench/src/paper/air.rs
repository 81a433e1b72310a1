//! AIR (A5, A7, A8): sustainable throughput and latency.

use super::{
    Figures, PaperScale, Runner, Sweep, about, at_least, cell, measured, plot, report, section,
    table,
};
use crate::report::{Axis, Bar, FigureReport, ReportSection};

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

/// Nodes by workers, with pipelining and without, and with more workers than processors.
fn grid(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Processes by workers of each, with pipelining (rows are aggregated by the worker \
                that reads them, and groups are merged) and without (each row travels to the \
                leader of its key first). Where there are more workers than processors, these are \
                overcommitted. Pipelining gains what the last column has.";
    let mut section = section("Processes, workers, pipelining and overcommit", &[text]);
    let (mut rows, processors) = (Vec::new(), sweep.scale.processors.max(1));
    for (workload, name) in WORKLOADS {
        let mut first = None;
        let points = sweep.nodes().flat_map(|nodes| {
            // Twice the workers that have a processor each, to overcommit.
            let most = (2 * processors / nodes).max(1);
            let counts = std::iter::successors(Some(1), |workers| Some(workers * 2));
            counts.take_while(move |workers| *workers <= most).map(move |workers| (nodes, workers))
        });
        for (nodes, workers) in points.filter(|(nodes, workers)| nodes * workers > 1) {
            let more = format!("--nodes {nodes} --workers {workers} --exchange auto,shuffle");
            let run = sweep.some_at_once(workload, &more, 0.25);
            let rate = |variant| Figures::of(&run, variant).and_then(|figures| figures.rate());
            let (with, without) = (rate("auto"), rate("shuffle"));
            let gain = with.zip(without).map(|(with, without)| with / without);
            if nodes * workers <= processors.max(2) {
                first = first.or(gain);
            }
            let over = nodes * workers > processors;
            let cells = [cell(with, 1), cell(without, 1), cell(gain, 2)];
            let names =
                [name, &nodes.to_string(), &workers.to_string(), if over { "yes" } else { "no" }]
                    .map(str::to_owned);
            rows.push(names.into_iter().chain(cells).collect());
        }
        let what = format!("{name}: pipelining against none, two workers");
        section.bars.push(at_least(what, PIPELINING_ASKED, first));
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
    section.text.append(&mut sweep.failures());
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_below_a_tenth_of_a_millisecond_or_is_not() {
        let met = |ms| latency_bar("YSB", 1, ms).met;
        assert_eq!([met(Some(0.099)), met(Some(0.1)), met(None)], [Some(true), Some(false), None]);
    }
}
