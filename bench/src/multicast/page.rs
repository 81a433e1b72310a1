//! The report of measurements and models.

use channel::broadcast::Shape;

use super::applications::AppPoint;
use super::arrivals::Arrivals;
use super::bars;
use super::measure::Measured;
use super::model::{self, Changing, MACHINES, ModelCosts, Modelled, RATES};
use super::real::{Dynamic, MulticastPlan, Point, Way};
use super::settle::{RateChange, arrivals, latencies};
use super::slices::SlicePoint;
use crate::BenchError;
use crate::multicast::app::FOLLOWED_EVERY;
use crate::report::{Axis, FigureOrigin, FigureReport, Plot, ReportSection, ReportTable, Series};

/// Ways that the model compares.
const MODELLED: [Way; 7] = [
    Way::Adaptive,
    Way::Tree(Shape::Capped(1)),
    Way::Tree(Shape::Capped(2)),
    Way::Tree(Shape::Capped(3)),
    Way::Tree(Shape::Binomial),
    Way::Tree(Shape::Sequential),
    Way::Copies,
];

/// Seconds of each rate in the model, at most.
const MODEL_SECONDS: f64 = 0.4;

/// The report of what was measured, and of the model with `changes` changes of trees.
///
/// # Errors
/// When the protocol is broken in the model.
pub fn report(
    plan: &MulticastPlan,
    measured: &Measured,
    changes: u64,
) -> Result<FigureReport, BenchError> {
    let MulticastPlan { nodes, workers, .. } = plan;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let about = vec![
        format!(
            "Measured: {nodes} processes with {workers} workers each, over {}, on one machine with \
             {processors} processors, which they share. Figures of throughput are of the whole \
             machine at work; they say how ways compare, not what a cluster does.",
            plan.fabric
        ),
        format!(
            "Simulated (dashed): the same protocol in virtual time on {MACHINES} machines with a \
             processor each. What things cost is measured here or the paper's, as each section \
             says; the way over the network is assumed to take 2 to 4 µs."
        ),
        "Every instance saw every request once and in order, and matches were compared with a \
         loop over all drivers: without that there is no report."
            .into(),
        "Not measured: a network, RDMA, or more machines than this one.".into(),
    ];
    let mut sections = vec![
        ways(measured),
        applications(measured),
        slices(measured),
        measured_rates(plan, measured),
    ];
    let most = measured.points.iter().filter(|point| point.way == Way::Tree(Shape::Sequential));
    if let Some(point) = most.max_by_key(|point| point.instances) {
        sections.push(trees(ModelCosts::measured(point, *nodes))?);
    }
    sections.push(trees(ModelCosts::PAPER)?);
    sections.push(modelled_rates(plan.rate_seconds.min(MODEL_SECONDS), plan.arrivals)?);
    sections.push(switches(changes)?);
    Ok(FigureReport { title: "Whale: one row to many instances".into(), about, sections })
}

fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.2} M", value / 1e6),
        size if size >= 1e4 => format!("{:.1} k", value / 1e3),
        size if size >= 10.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

/// A line for each way.
fn lines<T>(
    of: &[T],
    origin: FigureOrigin,
    way: impl Fn(&T) -> Way,
    point: impl Fn(&T) -> (f64, f64),
) -> Vec<Series> {
    let mut series: Vec<Series> = vec![];
    for one in of {
        let name = way(one).name();
        let at = series.iter().position(|series| series.name == name).unwrap_or_else(|| {
            series.push(Series { name, origin, points: vec![] });
            series.len() - 1
        });
        series[at].points.push(point(one));
    }
    series
}

/// Bytes of the source for 10,000 requests.
fn traffic(point: &Point) -> f64 {
    point.source_bytes as f64 * 1e4 / point.rows.max(1) as f64
}

/// Nanoseconds of the source for a request.
fn communication(point: &Point) -> f64 {
    (point.encode_ns + point.send_ns) as f64 / point.rows.max(1) as f64
}

fn share(point: &Point) -> f64 {
    100.0 * point.encode_ns as f64 / (point.encode_ns + point.send_ns).max(1) as f64
}

/// The sweeps over instances.
fn ways(measured: &Measured) -> ReportSection {
    let points = &measured.points;
    let plot = |title: &str, label: &str, log: bool, value: fn(&Point) -> f64| Plot {
        title: title.to_owned(),
        x: Axis::linear("instances"),
        y: Axis { label: label.to_owned(), log },
        series: lines(
            points,
            FigureOrigin::Measured,
            |point| point.way,
            |point| (f64::from(point.instances), value(point)),
        ),
    };
    let plots = vec![
        plot("Throughput", "requests/s", true, |point| point.per_second),
        plot("Multicast latency at half of it", "ms", true, |p| p.multicast.mean_ns / 1e6),
        plot("Processing latency at half of it", "ms", true, |p| p.processing.mean_ns / 1e6),
        plot("Communication time of the source", "ns/request", true, communication),
        plot("Share of encoding in it", "%", false, share),
        plot("Bytes of the source for 10,000 requests", "bytes", true, traffic),
    ];
    ReportSection {
        title: "Measured: once to each process against once to each instance".into(),
        text: vec![
            "An instance is a state of the matching operator with drivers of its own; several \
             share a worker's thread. \"A copy for each instance\" encodes each batch anew for \
             every instance of another process and sends it there; those of the source's own \
             process get a reference either way. Multicast latency ends when the last instance \
             has a request, processing latency when it has matched it; both begin when the request \
             was due."
                .into(),
        ],
        bars: bars::measured(points),
        plots,
        tables: vec![contributions(points), all_points(points)],
    }
}

/// What each mechanism is worth, with each number of instances.
fn contributions(points: &[Point]) -> ReportTable {
    let mut counts: Vec<u32> = points.iter().map(|point| point.instances).collect();
    counts.dedup();
    let row = |&instances: &u32| {
        let of = |way: Way| {
            let found = points.iter().find(|p| p.instances == instances && p.way == way);
            found.map(|point| point.per_second)
        };
        let [copies, once, by_load] =
            [Way::Copies, Way::Tree(Shape::Sequential), Way::Adaptive].map(of);
        let times = |one: Option<f64>, other: Option<f64>| {
            one.zip(other).map_or("–".into(), |(one, other)| format!("{:.2}", other / one))
        };
        vec![instances.to_string(), times(copies, once), times(once, by_load)]
    };
    let columns = ["instances", "once to each process, times", "and by the tree, times"];
    ReportTable {
        title: "What each mechanism is worth in throughput".into(),
        columns: columns.map(String::from).to_vec(),
        rows: counts.iter().map(row).collect(),
    }
}

/// The whole applications, by each way.
fn applications(measured: &Measured) -> ReportSection {
    let row = |point: &AppPoint| {
        let AppPoint { application, way, rows, rows_out, per_second, cpu_ns, bytes_sent } = point;
        vec![
            application.to_string(),
            way.name(),
            rows.to_string(),
            rows_out.to_string(),
            number(per_second.median),
            format!("{} to {}", number(per_second.least), number(per_second.greatest)),
            format!("{cpu_ns:.0}"),
            number(*bytes_sent as f64),
        ]
    };
    let head =
        ["application", "way", "rows", "results", "rows/s", "range", "CPU ns/row", "sent, B"];
    ReportSection {
        title: "Measured: the whole applications".into(),
        text: vec![
            "Ride hailing: a stream of drivers goes by driver to one worker each, requests to all \
             workers, and the best of the drivers that they know is taken. Stock exchange: \
             sellers go to all workers and are joined with buyers of their symbol. Every worker \
             is a receiver; results of each way are those of one worker. In turns, three runs."
                .into(),
        ],
        bars: bars::applications(&measured.applications),
        plots: vec![],
        tables: vec![ReportTable {
            title: "Applications".into(),
            columns: head.map(String::from).to_vec(),
            rows: measured.applications.iter().map(row).collect(),
        }],
    }
}

/// How rows are collected.
fn slices(measured: &Measured) -> ReportSection {
    let row = |slice: &SlicePoint| {
        let SlicePoint { mms_bytes, wtl_ms, mode, point } = slice;
        let ms = |ns: f64| format!("{:.3}", ns / 1e6);
        vec![
            mms_bytes.to_string(),
            wtl_ms.to_string(),
            mode.to_string(),
            number(point.per_second),
            number(point.rows as f64 / point.source_frames.max(1) as f64),
            ms(point.multicast.p50_ns),
            ms(point.multicast.p99_ns),
        ]
    };
    let head =
        ["MMS, bytes", "WTL, ms", "by", "requests/s", "requests a frame", "median, ms", "p99"];
    ReportSection {
        title: "Measured: when a buffer leaves, and who moves it".into(),
        text: vec![
            "Rows leave when there are so many bytes of them (MMS), or when the first has waited \
             so long (WTL); latency is that at half of the throughput. The sender writes frames, \
             or receivers read them, each from a ring of its own or all from one region of the \
             sender (W3); nothing sends rows by SEND. Requests have no event time here."
                .into(),
        ],
        bars: vec![],
        plots: vec![],
        tables: vec![ReportTable {
            title: "Sweeps".into(),
            columns: head.map(String::from).to_vec(),
            rows: measured.slices.iter().map(row).collect(),
        }],
    }
}

/// Every figure of the sweeps.
fn all_points(points: &[Point]) -> ReportTable {
    let head = [
        "way",
        "instances",
        "requests/s",
        "B/10 k source",
        "B/10 k all",
        "ns/request",
        "encoding",
        "offered/s",
        "multicast ms",
        "p99",
        "processing ms",
        "p99",
    ];
    let row = |point: &Point| {
        let all = point.bytes as f64 * 1e4 / point.rows.max(1) as f64;
        let ms = |ns: f64| format!("{:.3}", ns / 1e6);
        vec![
            point.way.name(),
            point.instances.to_string(),
            number(point.per_second),
            number(traffic(point)),
            number(all),
            number(communication(point)),
            format!("{:.0} %", share(point)),
            number(point.offered),
            ms(point.multicast.mean_ns),
            ms(point.multicast.p99_ns),
            ms(point.processing.mean_ns),
            ms(point.processing.p99_ns),
        ]
    };
    ReportTable {
        title: "All points".into(),
        columns: head.map(String::from).to_vec(),
        rows: points.iter().map(row).collect(),
    }
}

/// A run over time.
struct Drawn<'a> {
    way: Way,
    /// When requests were due and when all instances had them, in nanoseconds.
    times: &'a [(u64, u64)],
    /// Requests for which each stands.
    weight: f64,
}

/// Throughput and latency over time.
fn over_time(runs: &[Drawn<'_>], origin: FigureOrigin) -> Vec<Plot> {
    let plot = |title: &str, label: &str, log: bool, points: &dyn Fn(usize) -> Vec<(f64, f64)>| {
        let series = runs.iter().enumerate();
        let series =
            series.map(|(at, run)| Series { name: run.way.name(), origin, points: points(at) });
        let y = Axis { label: label.to_owned(), log };
        Plot { title: title.to_owned(), x: Axis::linear("s"), y, series: series.collect() }
    };
    vec![
        plot("Requests that arrived everywhere", "requests/s", false, &|at| {
            arrivals(runs[at].times, runs[at].weight)
        }),
        plot("Multicast latency", "ms", true, &|at| latencies(runs[at].times)),
    ]
}

fn steps_table(runs: &[(String, &[RateChange])]) -> ReportTable {
    let row = |name: &str, step: &RateChange| {
        vec![
            name.to_owned(),
            number(step.per_second),
            format!("{:.0}", step.dip_ns as f64 / 1e6),
            step.late_ns.map_or("to the end".into(), |late| format!("{:.1}", late as f64 / 1e6)),
            format!("{:.3}", step.before_ns / 1e6),
            format!("{:.3}", step.steady_ns / 1e6),
        ]
    };
    let rows = runs.iter().flat_map(|(name, steps)| steps.iter().map(move |s| row(name, s)));
    let head =
        ["way", "to requests/s", "dip, ms", "late for, ms", "median before, ms", "median then, ms"];
    ReportTable {
        title: "Each change of rate".into(),
        columns: head.map(String::from).to_vec(),
        rows: rows.collect(),
    }
}

/// Outcomes of the changes of rate, by the tree that adapts or by others.
fn steps_of(runs: &[Dynamic], adapts: bool) -> Vec<&[RateChange]> {
    let own = runs.iter().filter(|run| (run.way == Way::Adaptive) == adapts);
    own.map(|run| run.steps.as_slice()).collect()
}

fn measured_rates(
    plan: &MulticastPlan,
    Measured { rates, dynamic: runs, .. }: &Measured,
) -> ReportSection {
    let weight = FOLLOWED_EVERY as f64;
    // The first run of each way is drawn.
    let mut drawn: Vec<Drawn<'_>> = vec![];
    for run in runs {
        if drawn.iter().all(|other| other.way != run.way) {
            drawn.push(Drawn { way: run.way, times: &run.times, weight });
        }
    }
    let steps: Vec<_> = runs.iter().map(|run| (run.way.name(), run.steps.as_slice())).collect();
    let adaptive: Vec<&Dynamic> = runs.iter().filter(|run| run.way == Way::Adaptive).collect();
    let changes: Vec<String> = adaptive.iter().map(|run| run.tree_changes.to_string()).collect();
    let rates: Vec<String> = rates.iter().map(|&rate| number(rate)).collect();
    ReportSection {
        title: "Measured: a rate that changes".into(),
        text: vec![format!(
            "{} requests a second, {} s each, each way in turns; every {FOLLOWED_EVERY}th request \
             is followed. The tree was changed {} times. The rates are in proportion as the \
             paper's are, and the greatest is the highest that the tree by load sustained, in \
             tenths of what it took at most: in each of three runs the median request took at \
             most twice as long as at three tenths, and 5 ms. Requests have no event time here: a \
             frame leaves when it is full, and no watermark between frames holds the source back \
             before the queue of the tree does.",
            rates.join(", "),
            plan.rate_seconds,
            changes.join(", ")
        )],
        bars: bars::changes("measured", &steps_of(runs, true), &steps_of(runs, false)),
        plots: over_time(&drawn, FigureOrigin::Measured),
        tables: vec![steps_table(&steps)],
    }
}

/// The trees on as many machines as the paper had.
fn trees(costs: ModelCosts) -> Result<ReportSection, BenchError> {
    let mut points: Vec<Modelled> = vec![];
    for way in MODELLED {
        for instances in [1, 30, 120, 240, 360, 480] {
            points.push(model::sweep(costs, way, instances)?);
        }
    }
    let plot = |title: &str, label: &str, value: fn(&Modelled) -> f64| Plot {
        title: title.to_owned(),
        x: Axis::linear("instances"),
        y: Axis::log(label),
        series: lines(
            &points,
            FigureOrigin::Simulated,
            |point| point.way,
            |point| (f64::from(point.instances), value(point)),
        ),
    };
    let racks: Vec<(f64, f64)> = (1..=5)
        .map(|racks| Ok((f64::from(racks), model::on_racks(costs, racks)? / 1e3)))
        .collect::<Result<_, BenchError>>()?;
    let series =
        vec![Series { name: "tree of 3".into(), origin: FigureOrigin::Simulated, points: racks }];
    let ModelCosts { of: whose, encode_ns, send_ns, hand_ns, rows } = costs;
    Ok(ReportSection {
        title: format!("Simulated: {MACHINES} machines with the costs of {whose}"),
        text: vec![format!(
            "Encoding a frame of {rows:.0} requests takes {encode_ns} ns, sending it to a child \
             {send_ns} ns, and an instance takes it in {hand_ns} ns."
        )],
        bars: bars::modelled(costs, &points),
        plots: vec![
            plot("Throughput", "requests/s", |point| point.per_second),
            plot("Multicast latency of few frames", "µs", |point| point.latency_ns / 1e3),
            plot("Messages of the source for a frame", "messages", |point| point.source_sends),
            Plot {
                title: "Multicast latency on racks".into(),
                x: Axis::linear("racks"),
                y: Axis::linear("µs"),
                series,
            },
        ],
        tables: vec![],
    })
}

fn modelled_rates(seconds: f64, arrivals: Arrivals) -> Result<ReportSection, BenchError> {
    let ways = [Way::Adaptive, Way::Tree(Shape::Binomial), Way::Tree(Shape::Sequential)];
    let runs: Vec<Changing> = ways
        .into_iter()
        .map(|way| model::changing(ModelCosts::PAPER, way, seconds, arrivals))
        .collect::<Result<_, _>>()?;
    let drawn = runs.iter().map(|run| Drawn { way: run.way, times: &run.times, weight: 1.0 });
    let drawn: Vec<Drawn<'_>> = drawn.collect();
    let steps: Vec<_> = runs.iter().map(|run| (run.way.name(), run.steps.as_slice())).collect();
    let mut plots = over_time(&drawn, FigureOrigin::Simulated);
    let adaptive = runs.first().map(|run| run.changes.as_slice()).unwrap_or_default();
    let degrees = adaptive.iter().map(|change| (change.0 as f64 / 1e9, f64::from(change.2)));
    plots.push(Plot {
        title: "Children of a process behind each change of the tree".into(),
        x: Axis::linear("s"),
        y: Axis::linear("d*"),
        series: vec![Series {
            name: "tree by load".into(),
            origin: FigureOrigin::Simulated,
            points: degrees.collect(),
        }],
    });
    let longest = adaptive.iter().map(|change| change.1).max().unwrap_or(0);
    let rates: Vec<String> = RATES.iter().map(|&rate| number(rate)).collect();
    Ok(ReportSection {
        title: "Simulated: a rate that changes, with the costs of the paper".into(),
        text: vec![format!(
            "{} tuples a second, {seconds} s each, {MACHINES} machines. The tree was changed \
             {} times, which took {:.2} ms at most.",
            rates.join(", "),
            adaptive.len(),
            longest as f64 / 1e6
        )],
        bars: runs.first().map_or(vec![], |run| bars::changes("simulated", &[&run.steps], &[])),
        plots,
        tables: vec![steps_table(&steps)],
    })
}

fn switches(changes: u64) -> Result<ReportSection, BenchError> {
    let shaken = model::shaken(changes)?;
    Ok(ReportSection {
        title: "Simulated: trees that change without need".into(),
        text: vec![
            "480 instances on 30 machines and one to five racks; seeds decide when the tree \
             changes and to what. A frame that came twice or out of order would have ended \
             the report."
                .into(),
        ],
        bars: vec![bars::switched(shaken)],
        plots: vec![],
        tables: vec![],
    })
}
