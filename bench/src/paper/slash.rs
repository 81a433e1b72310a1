//! Slash (S14, S15): late merge against re-partitioning.

use super::{
    Figures, PaperScale, Runner, Sweep, about, cell, measured, plot, report, section, table,
};
use crate::report::{Axis, Bar, FigureReport, ReportSection};

/// The groups, and their name.
const GROUPED: [(&str, &str); 5] = [
    ("ysb", "YSB, 100 campaigns"),
    ("ysb --keys 10000000", "YSB, 10 M keys"),
    ("cm", "CM"),
    ("nb7", "NB7"),
    ("ro", "RO, 10 M keys"),
];
const JOINED: [(&str, &str); 2] = [("nb8", "NB8"), ("nb11", "NB11")];

/// The experiments of Slash.
pub fn slash(bench: &mut dyn Runner, scale: PaperScale) -> FigureReport {
    let sweep = &mut Sweep { bench, scale, failed: Vec::new() };
    let about = about(sweep, "Slash");
    let sections = vec![
        weak_scaling(sweep),
        against_uppar(sweep),
        buffers(sweep),
        credits(sweep),
        skew(sweep),
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
        if let (Some(one), Some(two)) = (one, two) {
            section.bars.push(Bar {
                what: format!("{name}: two processes against one"),
                needed: "≥ 1.7 times".into(),
                got: format!("{:.2} times", two / one),
                met: Some(two >= 1.7 * one),
            });
        }
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
                requests are what the fabric was given, exactly. Joins have no merge: their rows \
                travel to the leader of their key. The paper has up to 25 times UpPar for \
                aggregations and 8 for joins, 53 cycles a record against 274 in its sender.";
    let mut section = section("What a record costs", &[text]);
    let (mut rows, mut counted) = (Vec::new(), Vec::new());
    let exchanges = |joins| if joins { "shuffle,uppar" } else { "merge,shuffle,uppar" };
    let grouped = GROUPED.iter().map(|workload| (workload, false));
    for ((workload, name), joins) in grouped.chain(JOINED.iter().map(|w| (w, true))) {
        let exchanges = exchanges(joins);
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
        let run = sweep.run(&format!("cm {slot} --latency 2e5 --set millstream.idle=spin"));
        let trial = run.first().and_then(|run| run["latency"].get(0)).map(Figures);
        let of = |quantile| trial.as_ref().and_then(|trial| trial.latency_ms(quantile));
        medians.extend(of("p50").map(|ms| (f64::from(kib), ms)));
        tails.extend(of("p99").map(|ms| (f64::from(kib), ms)));
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
    if let (Some((_, uniform)), Some(one)) = (merge.first(), merge.iter().find(|p| p.0 == 1.0)) {
        section.bars.push(Bar {
            what: "merge with an exponent of 1 against uniform keys".into(),
            needed: "not slower".into(),
            got: format!("{:.2} times", one.1 / uniform),
            met: Some(one.1 >= *uniform),
        });
    }
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
    for (workload, name) in GROUPED {
        let one = sweep.at_once(workload, "--workers 1 --against-loop");
        let two = sweep.at_once(workload, "--workers 2");
        let rate = |run, variant| Figures::of(run, variant).and_then(|figures| figures.rate());
        let (by_hand, alone, both) = (rate(&one, "loop"), rate(&one, "auto"), rate(&two, "auto"));
        let cost = match (by_hand, alone, both) {
            (Some(by_hand), Some(alone), _) if alone >= by_hand => "1",
            (Some(by_hand), _, Some(both)) if both >= by_hand => "2",
            (Some(_), Some(_), Some(_)) => "more than 2",
            _ => "not known",
        };
        let cells = [by_hand, alone, both].map(|value| cell(value, 1));
        let name = std::iter::once(name.to_owned());
        rows.push(name.chain(cells).chain([cost.to_owned()]).collect());
    }
    let columns = ["workload", "loop", "1 worker", "2 workers", "COST"];
    section.tables.push(table("M records/s", &columns, rows));
    section.text.append(&mut sweep.failures());
    section
}
