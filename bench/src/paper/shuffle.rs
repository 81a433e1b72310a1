//! The asynchronous shuffle (Q10, Q11): sockets against rings on whole queries, by the workers of a
//! process.

use serde_json::Value;

use super::{
    Figures, PaperScale, Runner, Sweep, about, at_least, cell, measured, plot, report, section,
    table,
};
use crate::report::{Axis, FigureReport, ReportSection};

/// Workers of all processes together, and of each process.
const WORKERS: u32 = 8;
const OF_EACH: [u32; 4] = [1, 2, 4, 8];

/// What rings gain over sockets on whole queries, at least once: as the paper has it.
const GAIN_ASKED: f64 = 1.16;

/// Suites of queries, with the scale of an ordinary sweep.
const SUITES: [(&str, &str, f64); 2] =
    [("tpcc", "the three queries over TPC-C", 1.0), ("ssb", "the star schema", 0.5)];

/// Streams whose rows travel.
const STREAMS: [(&str, &str); 2] = [("ysb --keys 10000000", "YSB, 10 M keys"), ("nb8", "NB8")];

/// The experiments of the asynchronous shuffle but for its integers, which `bench shuffle` has.
pub fn shuffle(bench: &mut dyn Runner, scale: PaperScale) -> FigureReport {
    let sweep = &mut Sweep { bench, scale, failed: Vec::new() };
    let about = about(sweep, "the asynchronous shuffle");
    let mut sections: Vec<ReportSection> =
        SUITES.iter().map(|suite| queries(sweep, suite)).collect();
    sections.push(streams(sweep));
    report("The asynchronous shuffle: whole queries", about, sections)
}

/// A suite of queries on as many workers, in few processes and in many, over rings and sockets.
fn queries(sweep: &mut Sweep<'_>, (suite, name, scale): &(&str, &str, f64)) -> ReportSection {
    let text = format!(
        "{WORKERS} workers in all. Rows of both sides of each join travel; the tables are in \
         memory. Seconds are sums of medians. Over shm there are rings, over tcp sockets, with the \
         same batches."
    );
    let mut section = section(&format!("Whole queries: {name}"), &[&text]);
    let PaperScale { rows, runs, nodes, .. } = sweep.scale;
    let scale = (scale * rows).max(crate::analytics::SCALE_MIN);
    let of_each: Vec<u32> = OF_EACH.into_iter().filter(|each| WORKERS / each <= nodes).collect();
    let layouts: Vec<String> =
        of_each.iter().map(|each| format!("{}x{each}", WORKERS / each)).collect();
    let values = sweep.run(&format!(
        "{suite} --scale {scale} --layouts {} --fabric shm,tcp --exchange shuffle --repeat {runs}",
        layouts.join(",")
    ));
    let (mut rows, mut lines, mut gains) = (vec![], [vec![], vec![]], vec![]);
    for each in of_each {
        let of = |fabric: &str| total(&values, [WORKERS / each, each], fabric);
        let found = ["shm", "tcp"].map(of);
        for (line, of) in lines.iter_mut().zip(&found) {
            line.extend(of.map(|[seconds, _]| (f64::from(each), seconds * 1e3)));
        }
        let [rings, sockets] = found;
        let times = rings.zip(sockets).map(|(rings, sockets)| sockets[0] / rings[0]);
        // One process has neither.
        gains.extend(times.filter(|_| each < WORKERS));
        let cells = [rings, sockets].map(|of| of.map_or([None; 2], |of| of.map(Some)));
        let cells = cells.concat().into_iter().map(|seconds| cell(seconds.map(|s| s * 1e3), 1));
        let layout = [WORKERS / each, each].map(|count| count.to_string());
        rows.push(layout.into_iter().chain(cells).chain([cell(times, 2)]).collect());
    }
    let most = gains.into_iter().reduce(f64::max);
    let what = format!("{name}: rings against sockets, in one of the layouts");
    section.bars.push(at_least(what, GAIN_ASKED, most));
    let columns = [
        "processes",
        "workers of each",
        "shm, ms",
        "its processor ms",
        "tcp, ms",
        "its processor ms",
        "times",
    ];
    section.tables.push(table("All queries", &columns, rows));
    let [rings, sockets] = lines;
    let (x, y) = (Axis::log("workers of a process"), Axis::linear("ms"));
    let series = vec![measured("rings", rings), measured("sockets", sockets)];
    section.plots.push(plot("All queries", x, y, series));
    section.text.append(&mut sweep.failures());
    section
}

/// Seconds of all queries of a layout over a fabric, and those of its processors.
fn total(values: &[Value], [nodes, workers]: [u32; 2], fabric: &str) -> Option<[f64; 2]> {
    let found = values.iter().find(|of| {
        of["nodes"] == nodes
            && of["workers"] == workers
            && of["fabric"] == fabric
            && of["total_seconds"].is_number()
    })?;
    let of = |name: &str| found[name].as_f64();
    Some([of("total_seconds")?, of("total_cpu_seconds")?])
}

/// Workloads whose rows travel, by the workers of each of two processes.
fn streams(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Two processes, each worker with as many rows; every row goes to the leader of its \
                key.";
    let mut section = section("Workers of a process", &[text]);
    let mut rows = Vec::new();
    for (workload, name) in STREAMS {
        let mut lines = Vec::new();
        for (fabric, of) in [("shm", "rings"), ("tcp", "sockets")] {
            let mut points = Vec::new();
            for workers in OF_EACH {
                let more =
                    format!("--nodes 2 --workers {workers} --fabric {fabric} --exchange shuffle");
                let run = sweep.some_at_once(workload, &more, 1.0 / f64::from(OF_EACH[3]));
                let figures = Figures::of(&run, "shuffle");
                let rate = figures.as_ref().and_then(Figures::rate);
                let cycles = figures.as_ref().and_then(|of| of.number("busy_cycles_per_row"));
                points.extend(rate.map(|rate| (f64::from(workers), rate)));
                let names = [name, of, &workers.to_string()].map(str::to_owned);
                rows.push(names.into_iter().chain([cell(rate, 1), cell(cycles, 1)]).collect());
            }
            lines.push(measured(of, points));
        }
        let (x, y) = (Axis::log("workers of a process"), Axis::linear("M records/s"));
        section.plots.push(plot(name, x, y, lines));
    }
    let columns = ["workload", "by", "workers of each", "M records/s", "cycles a record"];
    section.tables.push(table("Two processes", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}
