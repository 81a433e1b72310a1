//! Slash (S14, S15): late merge against re-partitioning.

use super::ingestion::ingestion;
use super::{
    Figures, PaperScale, Runner, Sweep, about, at_least, cell, measured, plot, report, section,
    table,
};
use crate::report::{Axis, FigureReport, ReportSection};
use crate::targets::{RUN_TARGETS, RunLimit};

/// The groups, and their name.
const GROUPED: [(&str, &str); 5] = [
    ("ysb", "YSB, 100 campaigns"),
    ("ysb --keys 10000000", "YSB, 10 M keys"),
    ("cm", "CM"),
    ("nb7", "NB7"),
    ("ro", "RO, 10 M keys"),
];
const JOINED: [(&str, &str); 2] = [("nb8", "NB8"), ("nb11", "NB11")];

/// Workloads with the records of a gigabyte.
const AT_PAPER_SIZE: [(&str, &str, f64); 4] = [
    ("ro", "RO, 100 M keys", 1e9 / 16.0),
    ("cm", "CM", 1e9 / 64.0),
    ("ysb --keys 10000000", "YSB, 10 M keys", 1e9 / 78.0),
    ("nb7", "NB7", 1e9 / 32.0),
];

/// The experiments of Slash.
pub fn slash(bench: &mut dyn Runner, scale: PaperScale) -> FigureReport {
    let sweep = &mut Sweep { bench, scale, failed: Vec::new() };
    let about = about(sweep, "Slash");
    let sections = vec![
        weak_scaling(sweep),
        against_uppar(sweep),
        buffers(sweep),
        ingestion(sweep),
        credits(sweep),
        threads(sweep),
        skew(sweep),
        limits(sweep),
        sizes(sweep),
        cost(sweep),
    ];
    report("Slash: stateful streams by late merge", about, sections)
}

/// Processes are added, each with as many rows.
fn weak_scaling(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Each process reads as many rows. Merge is what the planner chooses; UpPar has half \
                of the workers partition and half aggregate, so it begins with two.";
    let mut section = section("Weak scaling", &[text]);
    let mut rows = Vec::new();
    for (workload, name) in GROUPED {
        let (mut merge, mut uppar) = (Vec::new(), Vec::new());
        for nodes in sweep.nodes() {
            let exchanges = if nodes == 1 { "merge" } else { "merge,uppar" };
            let run = sweep.at_once(workload, &format!("--nodes {nodes} --exchange {exchanges}"));
            let rate = |variant| Figures::of(&run, variant).and_then(|figures| figures.rate());
            merge.extend(rate("merge").map(|rate| (f64::from(nodes), rate)));
            uppar.extend(rate("uppar").map(|rate| (f64::from(nodes), rate)));
        }
        let at = |points: &[(f64, f64)], nodes: f64| {
            points.iter().find(|point| point.0 == nodes).map(|point| point.1)
        };
        let (one, two) = (at(&merge, 1.0), at(&merge, 2.0));
        let times = one.zip(two).map(|(one, two)| two / one);
        section.bars.push(at_least(format!("{name}: two processes against one"), 1.7, times));
        let ratio = two.zip(at(&uppar, 2.0)).map(|(merge, uppar)| merge / uppar);
        let cells = [one, two, at(&uppar, 2.0), ratio];
        let cells = cells.into_iter().map(|value| cell(value, 1));
        rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
        let (x, y) = (Axis::linear("processes"), Axis::linear("M records/s"));
        let series = vec![measured("merge", merge), measured("UpPar", uppar)];
        section.plots.push(plot(name, x, y, series));
    }
    let columns =
        ["workload", "one process", "two, merge", "two, UpPar", "merge ÷ UpPar"].as_slice();
    section.tables.push(table("M records/s", columns, rows));
    section.text.append(&mut sweep.failures());
    section
}

/// The cost of a record with each exchange, on two processes.
fn against_uppar(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Two processes. Cycles are those of all workers for a record; bytes and work \
                requests are what the fabric was given, exactly. By merge the rows of joins wait \
                where they are read, by leader and window, and leave with an epoch; by the others \
                they travel to the leader of their key as they are read. The paper has up to 25 \
                times UpPar for aggregations and 8 for joins, 53 cycles a record against 274 in \
                its sender.";
    let mut section = section("What a record costs", &[text]);
    let (mut rows, mut counted) = (Vec::new(), Vec::new());
    let exchanges = "merge,shuffle,uppar";
    for (workload, name) in GROUPED.iter().chain(&JOINED) {
        let run = sweep.at_once(workload, &format!("--nodes 2 --exchange {exchanges}"));
        for variant in exchanges.split(',') {
            let Some(figures) = Figures::of(&run, variant) else { continue };
            rows.push(vec![
                name.to_string(),
                variant.to_owned(),
                cell(figures.rate(), 1),
                cell(figures.number("busy_cycles_per_row"), 1),
                cell(figures.number("bytes_per_row"), 1),
                cell(figures.per_row("bytes_sent"), 3),
                cell(figures.per_row("work_requests"), 6),
            ]);
            counted.extend(counted_of(name, variant, &figures));
        }
    }
    let columns = [
        "workload",
        "exchange",
        "M records/s",
        "cycles a record",
        "bytes read",
        "bytes sent",
        "work requests",
    ];
    let any = !rows.is_empty();
    section.tables.push(table("For each record", &columns, rows));
    let columns = [
        "workload",
        "exchange",
        "instructions",
        "instructions a cycle",
        "L1 misses",
        "LLC misses",
        "branch misses",
    ];
    if !counted.is_empty() {
        section.tables.push(table("What the processor counts for it", &columns, counted));
    } else if any {
        let text = "The kernel gives no counters of instructions and misses here (perf), as on \
                    most virtual machines.";
        section.text.push(text.into());
    }
    section.text.append(&mut sweep.failures());
    section
}

/// Hardware counters per record, where available.
fn counted_of(name: &str, variant: &str, figures: &Figures<'_>) -> Option<Vec<String>> {
    let of = |what: &str| figures.number(&format!("{what}_per_row"));
    let instructions = of("instructions")?;
    let each_cycle = of("processor_cycles").map(|cycles| instructions / cycles);
    let misses = ["l1_misses", "llc_misses", "branch_misses"].map(|what| cell(of(what), 4));
    let counts = [cell(Some(instructions), 1), cell(each_cycle, 2)].into_iter().chain(misses);
    Some([name, variant].map(str::to_owned).into_iter().chain(counts).collect())
}

/// The bytes of a slot against throughput and latency.
fn buffers(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Two processes. Throughput is that of UpPar on YSB with 10 M keys, in which every \
                row crosses a link; latency is that of CM by merge at 200,000 records a second, \
                with workers that spin. The paper has less than 100 µs below 128 KiB.";
    let mut section = section("Buffer size", &[text]);
    let (mut rates, mut medians, mut tails) = (Vec::new(), Vec::new(), Vec::new());
    for kib in [4, 16, 64, 256, 1024] {
        let slot = format!("--nodes 2 --slot-bytes {kib}KiB");
        let run = sweep.at_once("ysb --keys 10000000", &format!("{slot} --exchange uppar"));
        let rate = Figures::of(&run, "uppar").and_then(|figures| figures.rate());
        rates.extend(rate.map(|rate| (f64::from(kib), rate)));
        let [median, tail] = sweep.latency_of_cm(&slot);
        medians.extend(median.map(|ms| (f64::from(kib), ms)));
        tails.extend(tail.map(|ms| (f64::from(kib), ms)));
    }
    let x = || Axis::log("KiB of a slot");
    let series = vec![measured("UpPar", rates)];
    section.plots.push(plot("Throughput", x(), Axis::linear("M records/s"), series));
    let series = vec![measured("median", medians), measured("p99", tails)];
    section.plots.push(plot("Latency", x(), Axis::log("ms"), series));
    section.text.append(&mut sweep.failures());
    section
}

/// Slots of a ring.
fn credits(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Two processes, UpPar on YSB with 10 M keys, slots of 64 KiB. Two slots of a ring \
                are for control.";
    let mut section = section("Credits", &[text]);
    let mut points = Vec::new();
    for credits in [3, 4, 8, 16, 64] {
        let more = format!("--nodes 2 --exchange uppar --credits {credits}");
        let run = sweep.at_once("ysb --keys 10000000", &more);
        let rate = Figures::of(&run, "uppar").and_then(|figures| figures.rate());
        points.extend(rate.map(|rate| (f64::from(credits), rate)));
    }
    let (x, y) = (Axis::log("slots of a ring"), Axis::linear("M records/s"));
    section.plots.push(plot("Throughput", x, y, vec![measured("UpPar", points)]));
    section.text.append(&mut sweep.failures());
    section
}

/// Workers of a process.
fn threads(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Workers of one process and of each of two, each with as many rows. More workers \
                than processors share these.";
    let mut section = section("Threads", &[text]);
    let mut rows = Vec::new();
    for (workload, name) in GROUPED {
        let mut lines = Vec::new();
        for nodes in sweep.nodes().take(2) {
            let mut points = Vec::new();
            for workers in sweep.workers() {
                let more = format!("--nodes {nodes} --workers {workers}");
                let run = sweep.some_at_once(workload, &more, 0.5);
                let rate = Figures::of(&run, "auto").and_then(|figures| figures.rate());
                points.extend(rate.map(|rate| (f64::from(workers), rate)));
                let cells = [nodes.to_string(), workers.to_string(), cell(rate, 1)];
                rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
            }
            lines.push(measured(&format!("{nodes} process(es)"), points));
        }
        let (x, y) = (Axis::linear("workers of a process"), Axis::linear("M records/s"));
        section.plots.push(plot(name, x, y, lines));
    }
    let columns = ["workload", "processes", "workers", "M records/s"];
    section.tables.push(table("Workers of a process", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}

/// Two processes against what the machine gives in the same run.
fn limits(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Two processes that work together. Aggregations in turns with two that each run \
                the workload by themselves at the same time: the share of what those reach \
                together is the machine's limit, whatever its processors share. Joins, whose rows \
                travel, in turns with one worker alone.";
    let mut section = section("Against the machine", &[text]);
    let mut rows = Vec::new();
    for target in &RUN_TARGETS {
        let run = sweep.at_once(target.options, &format!("--nodes 2 {}", target.flag()));
        let (name, factor, unit) = match target.limit {
            RunLimit::OneWorker => ("times_one_worker", 1.0, "times one worker"),
            RunLimit::Unrelated => ("share_of_unrelated", 100.0, "% of two unrelated processes"),
        };
        let range = Figures::of(&run, "auto").and_then(|figures| figures.range(name));
        let digits = if factor == 1.0 { 2 } else { 0 };
        let cells = [0, 1, 2].map(|at| cell(range.map(|range| range[at] * factor), digits));
        let names = [target.name, unit].map(str::to_owned);
        rows.push(names.into_iter().chain(cells).collect());
        section.bars.push(target.bar("auto", range.map(|range| range[1])));
    }
    let columns = ["workload", "figure", "least", "median", "greatest"];
    section.tables.push(table("Two processes", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}

/// Workloads at the sizes of the paper.
fn sizes(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Records as they lie in the paper's memory, and as many keys: RO of 16 bytes and \
                100 M keys, CM of 64, YSB of 78 and 10 M keys, NB7 of 32; a gigabyte for each \
                worker of an ordinary sweep. Two processes.";
    let mut section = section("Sizes of the paper", &[text]);
    let mut rows = Vec::new();
    for (workload, name, records) in AT_PAPER_SIZE {
        let rows_each = (sweep.scale.rows * records).max(1000.0) as u64;
        let runs = sweep.scale.runs;
        let run = sweep.run(&format!(
            "{workload} --paper-size --nodes 2 --exchange merge,uppar --rows {rows_each} --runs \
             {runs}"
        ));
        let rate = |variant| Figures::of(&run, variant).and_then(|figures| figures.rate());
        let (merge, uppar) = (rate("merge"), rate("uppar"));
        let times = merge.zip(uppar).map(|(merge, uppar)| merge / uppar);
        let cells = [merge, uppar, times].map(|value| cell(value, 1));
        rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
    let columns = ["workload", "merge", "UpPar", "merge ÷ UpPar"];
    section.tables.push(table("M records/s", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}

/// Zipf's law with exponents of 0 to 2.
fn skew(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "Two processes, YSB with a million keys by Zipf's law; an exponent of zero is \
                uniform. Under merge skew helps, since an epoch combines more rows; under \
                UpPar the leader of the hottest key has most of the work.";
    let mut section = section("Skew", &[text]);
    let (mut merge, mut uppar) = (Vec::new(), Vec::new());
    for exponent in [0.0, 0.4, 0.8, 1.0, 1.2, 1.6, 2.0] {
        let more = format!("--nodes 2 --exchange merge,uppar --exponent {exponent}");
        let run = sweep.at_once("ysb --keys 1000000", &more);
        for (variant, points) in [("merge", &mut merge), ("uppar", &mut uppar)] {
            let rate = Figures::of(&run, variant).and_then(|figures| figures.rate());
            points.extend(rate.map(|rate| (exponent, rate)));
        }
    }
    let of = |exponent| merge.iter().find(|point| point.0 == exponent).map(|point| point.1);
    let times = of(0.0).zip(of(1.0)).map(|(uniform, one)| one / uniform);
    let what = "merge with an exponent of 1 against uniform keys";
    section.bars.push(at_least(what.into(), 1.0, times));
    let (x, y) = (Axis::linear("exponent"), Axis::linear("M records/s"));
    let series = vec![measured("merge", merge), measured("UpPar", uppar)];
    section.plots.push(plot("Throughput", x, y, series));
    section.text.append(&mut sweep.failures());
    section
}

/// How many workers it takes to beat a loop.
fn cost(sweep: &mut Sweep<'_>) -> ReportSection {
    let text = "COST (McSherry et al.): how many workers it takes to beat one thread that does the \
                same by a loop written for it, over the same rows in memory: an array of \
                counters, no SQL, no watermark, no exchange. The workers are threads of one \
                process.";
    let mut section = section("COST", &[text]);
    let mut rows = Vec::new();
    let counts: Vec<u32> = sweep.workers().collect();
    for (workload, name) in GROUPED {
        let mut rates = Vec::new();
        let mut by_hand = None;
        for &workers in &counts {
            let more = if workers == 1 { " --against-loop" } else { "" };
            let run = sweep.at_once(workload, &format!("--workers {workers}{more}"));
            let rate = |variant| Figures::of(&run, variant).and_then(|figures| figures.rate());
            by_hand = by_hand.or(rate("loop"));
            rates.push((workers, rate("auto")));
        }
        let cells = rates.iter().map(|(_, rate)| cell(*rate, 1));
        let name = [name.to_owned(), cell(by_hand, 1)];
        rows.push(name.into_iter().chain(cells).chain([cost_of(by_hand, &rates)]).collect());
    }
    let workers = counts.iter().map(|workers| format!("{workers} worker(s)"));
    let columns: Vec<String> = ["workload".into(), "loop".into()]
        .into_iter()
        .chain(workers)
        .chain(["COST".into()])
        .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    section.tables.push(table("M records/s", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}

/// The least number of workers that is as fast as a loop.
fn cost_of(by_hand: Option<f64>, rates: &[(u32, Option<f64>)]) -> String {
    let Some(by_hand) = by_hand else { return "not known".into() };
    let known: Vec<(u32, f64)> =
        rates.iter().filter_map(|&(workers, rate)| Some((workers, rate?))).collect();
    match known.iter().find(|(_, rate)| *rate >= by_hand) {
        Some((workers, _)) => workers.to_string(),
        None if known.len() == rates.len() => {
            format!("more than {}", known.last().map_or(0, |known| known.0))
        }
        None => "not known".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_the_least_number_of_workers_that_beats_the_loop() {
        let rates =
            |rates: [f64; 3]| [1, 2, 4].into_iter().zip(rates.map(Some)).collect::<Vec<_>>();
        assert_eq!(cost_of(Some(10.0), &rates([10.0, 20.0, 40.0])), "1");
        assert_eq!(cost_of(Some(10.0), &rates([9.0, 9.5, 40.0])), "4");
        assert_eq!(cost_of(Some(10.0), &rates([1.0, 2.0, 4.0])), "more than 4");
        assert_eq!(cost_of(None, &rates([1.0, 2.0, 4.0])), "not known");
        assert_eq!(cost_of(Some(10.0), &[(1, Some(5.0)), (2, None)]), "not known");
    }
}
