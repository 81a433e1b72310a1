//! Targets of one row to many, each of which can be missed.

use channel::broadcast::Shape;

use super::applications::AppPoint;
use super::model::{MACHINES, ModelCosts, Modelled, Shaken};
use super::real::{Point, Way};
use super::settle::RateChange;
use crate::report::Bar;

/// The tree by load must carry this part of what the best tree that stays carries: then its degree
/// was chosen well.
const CHOSEN: f64 = 0.9;

/// It may take so many times as long as the soonest, or so many milliseconds more.
const SLOWER: f64 = 1.5;
const SLOWER_MS: f64 = 1.0;

/// Worker-oriented against instance-oriented, and the tree by load against those that stay, with
/// the most instances.
pub(super) fn measured(points: &[Point]) -> Vec<Bar> {
    let most = points.iter().map(|point| point.instances).max().unwrap_or(0);
    let of = |way: Way| points.iter().find(|p| p.instances == most && p.way == way);
    let (Some(tree), Some(copies)) = (of(Way::Adaptive), of(Way::Copies)) else { return vec![] };
    let less = |bytes: fn(&Point) -> u64| {
        let each = |point: &Point| bytes(point) as f64 / point.rows.max(1) as f64;
        100.0 * (1.0 - each(tree) / each(copies).max(1e-9))
    };
    let [all, source] = [less(|point| point.bytes), less(|point| point.source_bytes)];
    let faster = tree.per_second / copies.per_second.max(1e-9);
    // What is asked is asked of 480 instances.
    let judged = |met: bool| (most >= 480).then_some(met);
    let mut bars = vec![
        Bar {
            what: format!("bytes for a request, against a copy for each of {most} instances"),
            needed: "at least 90 % less".into(),
            got: format!("{all:.1} % less of all processes, {source:.1} % less of the source"),
            met: judged(all >= 90.0),
        },
        Bar {
            what: format!("throughput, against a copy for each of {most} instances"),
            needed: "at least 10 times".into(),
            got: format!("{faster:.1} times"),
            met: judged(faster >= 10.0),
        },
    ];
    let own = |p: &&Point| p.instances == most && p.way != Way::Copies;
    let rates = points.iter().filter(own).map(|point| (point.way, point.per_second));
    let most_of_all = |one: f64, other: (Way, f64)| one.max(other.1);
    let stays = rates.clone().filter(|rate| rate.0 != Way::Adaptive).fold(0.0, most_of_all);
    bars.push(against_best("measured", tree.per_second, stays));
    let sooner = |p: &Point| (p.way != Way::Adaptive).then_some(p.multicast.p50_ns);
    let soonest = points.iter().filter(own).filter_map(sooner).fold(f64::INFINITY, f64::min);
    bars.push(Bar {
        what: format!("multicast latency against the best tree that stays, {most} instances"),
        needed: format!("at most {SLOWER} times, or {SLOWER_MS} ms more"),
        got: format!("{:.2} and {:.2} ms", tree.multicast.p50_ns / 1e6, soonest / 1e6),
        met: soonest
            .is_finite()
            .then_some(tree.multicast.p50_ns <= (SLOWER * soonest).max(soonest + SLOWER_MS * 1e6)),
    });
    bars
}

/// Requests a second of the tree by load against those of the best that stays.
fn against_best(of: &str, adaptive: f64, best: f64) -> Bar {
    let times = adaptive / best;
    Bar {
        what: format!("tree by load against the best tree that stays, {of}"),
        needed: format!("at least {CHOSEN} times"),
        got: format!("{times:.2} times"),
        met: times.is_finite().then_some(times >= CHOSEN),
    }
}

/// The whole applications by the tree by load, each against the best of the others.
pub(super) fn applications(points: &[AppPoint]) -> Vec<Bar> {
    let adaptive = points.iter().filter(|point| point.way == Way::Adaptive);
    let bar = |own: &AppPoint| {
        let others = points
            .iter()
            .filter(|other| other.application == own.application && other.way != Way::Adaptive);
        let best = others.map(|other| other.per_second.median).fold(0.0, f64::max);
        against_best(own.application, own.per_second.median, best)
    };
    adaptive.map(bar).collect()
}

/// The tree by load against the others, on as many machines as the paper had.
pub(super) fn modelled(costs: ModelCosts, points: &[Modelled]) -> Vec<Bar> {
    let most = points.iter().map(|point| point.instances).max().unwrap_or(0);
    let of = |way: Way| points.iter().find(|p| p.way == way && p.instances == most);
    let Some(adaptive) = of(Way::Adaptive) else { return vec![] };
    let stays = points.iter().filter(|p| p.instances == most && matches!(p.way, Way::Tree(_)));
    let best = stays.map(|point| point.per_second).fold(0.0, f64::max);
    let mut bars = vec![against_best(costs.of, adaptive.per_second, best)];
    if costs == ModelCosts::PAPER {
        // Where sends are as dear as the paper's, a tree wins by so much.
        let against = [(Way::Tree(Shape::Binomial), 1.2), (Way::Tree(Shape::Sequential), 1.4)];
        bars.extend(against.into_iter().filter_map(|(way, needed)| {
            let times = adaptive.per_second / of(way)?.per_second.max(1e-9);
            Some(Bar {
                what: format!(
                    "tree by load against {}, {MACHINES} machines, {}",
                    way.name(),
                    costs.of
                ),
                needed: format!("at least {needed} times"),
                got: format!("{times:.2} times"),
                met: Some(times >= needed),
            })
        }));
    }
    bars
}

/// Trees that change without need lose nothing.
pub(super) fn switched(shaken: Shaken) -> Bar {
    Bar {
        what: format!("frames lost or doubled in {} changes", shaken.changes),
        needed: "none in 1,000".into(),
        got: format!("{} of {}", shaken.missed, shaken.frames),
        met: if shaken.missed > 0 {
            Some(false)
        } else {
            (shaken.changes >= 1_000).then_some(true)
        },
    }
}

/// A time that changes of rate show; `None` for one without an end.
type ChangeTime = fn(&RateChange) -> Option<u64>;

/// The worst change of rate, by the medians of all runs, in milliseconds; infinite where it has no
/// end. `None` of no runs, and of runs without changes.
fn worst_ms(runs: &[&[RateChange]], ns: ChangeTime) -> Option<f64> {
    let changes = runs.iter().map(|steps| steps.len()).min()?;
    let median = |change: usize| {
        let ms =
            |steps: &&[RateChange]| ns(&steps[change]).map_or(f64::INFINITY, |ns| ns as f64 / 1e6);
        let mut all: Vec<f64> = runs.iter().map(ms).collect();
        all.sort_unstable_by(f64::total_cmp);
        all[all.len() / 2]
    };
    (0..changes).map(median).reduce(f64::max)
}

/// The targets of a change of rate. `stays` are runs by a tree that never changes: what they show
/// is the machine's.
pub(super) fn changes(of: &str, runs: &[&[RateChange]], stays: &[&[RateChange]]) -> Vec<Bar> {
    let shown = |ms: f64| if ms.is_finite() { format!("{ms:.0} ms") } else { "never".to_owned() };
    let bar = |what: &str, ns: ChangeTime, (needed, ms_max): (&str, f64)| {
        let worst = worst_ms(runs, ns);
        let all = runs.iter().filter_map(|&steps| worst_ms(&[steps], ns)).fold(0.0, f64::max);
        let spread = match (runs.len(), worst_ms(stays, ns)) {
            (several, Some(other)) if several > 1 => format!(
                " (at most {} in {several} runs; {} by a tree that stays)",
                shown(all),
                shown(other)
            ),
            _ => String::new(),
        };
        Bar {
            what: format!("{of}: {what}"),
            needed: format!("{needed} {ms_max} ms"),
            got: worst.map_or("no change".into(), |worst| format!("{}{spread}", shown(worst))),
            met: worst.map(|worst| worst <= ms_max),
        }
    };
    let dip = "fewer arrive than are due, while a rate lasts";
    vec![
        bar(dip, |step| Some(step.dip_ns), ("at most", 126.0)),
        bar("latency is what it was before the change", |step| step.late_ns, ("within", 30.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicast::RequestTimes;

    const MS: u64 = 1_000_000;

    fn met(bars: &[Bar]) -> Vec<Option<bool>> {
        bars.iter().map(|bar| bar.met).collect()
    }

    fn point(way: Way, per_second: f64, bytes: u64, p50_ns: f64) -> Point {
        Point {
            way,
            instances: 480,
            rows: 1_000,
            per_second,
            source_bytes: bytes,
            bytes,
            source_frames: 1,
            frames: 1,
            encode_ns: 1,
            send_ns: 1,
            take_ns: 1.0,
            offered: 1.0,
            multicast: RequestTimes { p50_ns, ..RequestTimes::default() },
            processing: RequestTimes::default(),
        }
    }

    #[test]
    fn each_bar_of_what_is_measured_is_met_and_missed() {
        let points = |per_second: f64, bytes: u64, p50_ns: f64| {
            [
                point(Way::Adaptive, per_second, bytes, p50_ns),
                point(Way::Tree(Shape::Sequential), 1_000.0, 10, 4e6),
                point(Way::Tree(Shape::Binomial), 500.0, 10, 2e6),
                point(Way::Copies, 90.0, 200, 9e9),
            ]
        };
        let yes = Some(true);
        assert_eq!(met(&measured(&points(900.0, 20, 3e6))), [yes; 4]);
        assert_eq!(met(&measured(&points(899.0, 21, 3.1e6))), [Some(false); 4]);
        let mut few = points(900.0, 20, 3e6);
        few.iter_mut().for_each(|point| point.instances = 60);
        assert_eq!(met(&measured(&few)), [None, None, yes, yes], "those are asked of 480");
        assert_eq!(met(&measured(&[])), []);
        let alone = [point(Way::Adaptive, 900.0, 20, 1.0), point(Way::Copies, 90.0, 200, 1.0)];
        assert_eq!(met(&measured(&alone))[2..], [None, None], "nothing to compare with");
    }

    #[test]
    fn an_application_is_held_to_the_best_way() {
        use crate::summary::MedianRange;
        let points = |rates: [f64; 3]| {
            let ways = [Way::Adaptive, Way::Tree(Shape::Sequential), Way::Tree(Shape::Binomial)];
            let point = |(way, rate): (Way, f64)| AppPoint {
                application: "rides",
                way,
                rows: 1,
                rows_out: 1,
                per_second: MedianRange { median: rate, least: rate, greatest: rate },
                cpu_ns: 1.0,
                bytes_sent: 1,
            };
            ways.into_iter().zip(rates).map(point).collect::<Vec<_>>()
        };
        let of = |rates| met(&applications(&points(rates)));
        assert_eq!(of([9.0, 1.0, 10.0]), [Some(true)]);
        assert_eq!(of([8.9, 10.0, 1.0]), [Some(false)]);
        assert_eq!(met(&applications(&points([9.0, 1.0, 1.0])[..1])), [None]);
        assert_eq!(met(&applications(&[])), []);
    }

    #[test]
    fn a_model_is_held_to_the_best_tree_and_to_the_paper() {
        let points = |per_second| {
            let rates = [
                (Way::Adaptive, per_second),
                (Way::Tree(Shape::Capped(2)), 1_000.0),
                (Way::Tree(Shape::Binomial), 750.0),
                (Way::Tree(Shape::Sequential), 600.0),
                (Way::Copies, 1e9),
            ];
            rates.map(|(way, per_second)| Modelled {
                way,
                instances: 480,
                per_second,
                latency_ns: 1.0,
                source_sends: 1.0,
            })
        };
        let of = |per_second| met(&modelled(ModelCosts::PAPER, &points(per_second)));
        assert_eq!(of(900.0), [Some(true); 3]);
        assert_eq!(of(800.0), [Some(false); 3]);
        let own = ModelCosts { of: "this machine", ..ModelCosts::PAPER };
        assert_eq!(met(&modelled(own, &points(900.0))), [Some(true)]);
    }

    #[test]
    fn a_change_of_rate_fails_by_its_dip_by_its_latency_and_by_a_queue_without_end() {
        let step = |dip_ms: u64, late_ms: Option<u64>| RateChange {
            per_second: 1e3,
            at_ns: 0,
            dip_ns: dip_ms * MS,
            late_ns: late_ms.map(|ms| ms * MS),
            before_ns: 1e5,
            steady_ns: 1e5,
        };
        let of = |steps: &[RateChange]| met(&changes("measured", &[steps], &[]));
        assert_eq!(of(&[step(126, Some(30)), step(0, Some(0))]), [Some(true); 2]);
        assert_eq!(of(&[step(127, Some(30))]), [Some(false), Some(true)]);
        assert_eq!(of(&[step(0, Some(0)), step(0, Some(31))]), [Some(true), Some(false)]);
        assert_eq!(of(&[step(0, None)]), [Some(true), Some(false)]);
        assert_eq!(of(&[]), [None; 2], "no change");
        assert_eq!(met(&changes("measured", &[], &[])), [None; 2]);
        // The median of several runs counts.
        let (good, bad) = ([step(0, Some(0))], [step(200, None)]);
        let runs = |runs: &[&[RateChange]]| met(&changes("measured", runs, &[&good]));
        assert_eq!(runs(&[&good, &bad, &good]), [Some(true); 2]);
        assert_eq!(runs(&[&good, &bad, &bad]), [Some(false); 2]);
        let bars = changes("measured", &[&good, &bad, &bad], &[&good]);
        assert!(bars[1].got.starts_with("never (at most never"), "{}", bars[1].got);
    }

    #[test]
    fn a_lost_frame_fails() {
        let of = |changes, missed| switched(Shaken { changes, frames: 10, missed }).met;
        assert_eq!([of(1_000, 0), of(999, 0)], [Some(true), None]);
        assert_eq!([of(1_000, 1), of(5, 1)], [Some(false); 2]);
    }
}
