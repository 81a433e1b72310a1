//! Runs of the engine: every node makes these calls in this order, node 0 has the figures.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use channel::broadcast::Shape;
use connectors::Blackhole;
use dataflow::sink::Sink;
use millstream::cluster::Control;
use millstream::stream::{EventTime, Stream, process};
use millstream::{FabricKind, Report, RunOptions, Session, SessionBuilder};

use super::app::{self, FOLLOWED_EVERY, Matching, Phase, RequestCounts, Requests, Seen, Shared};
use super::arrivals::Arrivals;
use super::settle::{RateChange, settle};
use crate::BenchError;

/// Requests that are matched once more by a loop, at most.
const CHECKED_MAX: usize = 500;

/// The share of its throughput at which a way's latency is measured.
const LOAD: f64 = 0.5;

/// Shares of what the tree by load takes at most, of which the first that it sustains becomes the
/// greatest of the rates that change; with the last, latency is what it is without a load. What
/// comes as fast as it is taken at most waits ever longer, whatever the tree does.
const SHARES: [f64; 7] = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3];

/// A rate is sustained if the median request takes at most twice as long as without a load, and so
/// much longer.
const LATER_NS: f64 = 5e6;

/// A rate is sustained only if it is in this many runs in a row: near the limit, one may be lucky.
const PROBES: usize = 3;

/// Whether requests have event time. Then each batch is followed by a watermark for every worker,
/// which waits where a ring is full, so that nothing waits in the queue of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Time {
    /// They do: a frame leaves with its watermark.
    Announced,
    /// They do not: a frame leaves when it is full.
    Untold,
}

/// How rows reach the instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Once to each process, by a tree whose degree follows the load.
    Adaptive,
    /// Once to each process, by a tree that stays.
    Tree(Shape),
    /// Once to each instance of another process: instance-oriented.
    Copies,
}

impl Way {
    /// All that are compared.
    pub const ALL: [Way; 6] = [
        Way::Adaptive,
        Way::Tree(Shape::Sequential),
        Way::Tree(Shape::Binomial),
        Way::Tree(Shape::Capped(1)),
        Way::Tree(Shape::Capped(2)),
        Way::Copies,
    ];

    /// As `SET millstream.multicast_tree` has it.
    pub fn setting(self) -> String {
        match self {
            Way::Adaptive => "auto".into(),
            Way::Tree(Shape::Sequential) => "sequential".into(),
            Way::Tree(Shape::Binomial) => "binomial".into(),
            Way::Tree(Shape::Capped(children)) => children.to_string(),
            Way::Copies => "copies".into(),
        }
    }

    /// For a reader.
    pub fn name(self) -> String {
        match self {
            Way::Adaptive => "tree by load".into(),
            Way::Tree(Shape::Sequential) => "sequential".into(),
            Way::Tree(Shape::Binomial) => "binomial tree".into(),
            Way::Tree(Shape::Capped(children)) => format!("tree of {children}"),
            Way::Copies => "a copy for each instance".into(),
        }
    }
}

/// The workload.
#[derive(Debug, Clone, PartialEq)]
pub struct MulticastPlan {
    /// Nodes.
    pub nodes: u32,
    /// Workers of each.
    pub workers: u32,
    /// Instances of each worker, one measurement for each number.
    pub instances: Vec<u32>,
    /// Drivers of each instance.
    pub drivers: u32,
    /// Seconds of each run.
    pub seconds: f64,
    /// The transport.
    pub fabric: FabricKind,
    /// The rates of the run in which the rate changes, one after the other, in proportion: the
    /// greatest becomes the highest that the tree by load sustains.
    pub rates: Vec<f64>,
    /// Seconds of each of these.
    pub rate_seconds: f64,
    /// How requests of a rate follow each other.
    pub arrivals: Arrivals,
    /// Rows of the whole applications, against the usual.
    pub app_scale: f64,
    /// Other settings.
    pub settings: Vec<(String, String)>,
}

/// Nanoseconds of requests that were followed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestTimes {
    /// The mean.
    pub mean_ns: f64,
    /// Half are shorter.
    pub p50_ns: f64,
    /// 99 of 100 are shorter.
    pub p99_ns: f64,
}

impl RequestTimes {
    /// Of these nanoseconds; zeros of none.
    pub(super) fn of(mut ns: Vec<u64>) -> Self {
        ns.sort_unstable();
        let Some(last) = ns.len().checked_sub(1) else { return Self::default() };
        let at = |share: f64| ns[(last as f64 * share) as usize] as f64;
        let mean_ns = ns.iter().sum::<u64>() as f64 / ns.len() as f64;
        Self { mean_ns, p50_ns: at(0.5), p99_ns: at(0.99) }
    }
}

/// One way with one number of instances.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// How rows went.
    pub way: Way,
    /// Instances of all workers.
    pub instances: u32,
    /// Requests that every instance took, as fast as they were taken.
    pub rows: u64,
    /// Requests a second.
    pub per_second: f64,
    /// Bytes that the source sent to other processes.
    pub source_bytes: u64,
    /// The same of all workers: relays send too.
    pub bytes: u64,
    /// Frames that the source sent.
    pub source_frames: u64,
    /// Frames that all sent.
    pub frames: u64,
    /// Nanoseconds of the source for encoding.
    pub encode_ns: u64,
    /// Nanoseconds of the source for writing into rings.
    pub send_ns: u64,
    /// Nanoseconds in which an instance took a batch, on average.
    pub take_ns: f64,
    /// Requests a second of the run whose latency is reported.
    pub offered: f64,
    /// Until the last instance had a request.
    pub multicast: RequestTimes,
    /// Until the last instance had matched it.
    pub processing: RequestTimes,
}

/// A run in which the rate changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Dynamic {
    /// How rows went.
    pub way: Way,
    /// Changes of the tree.
    pub tree_changes: u64,
    /// Nanoseconds since the first, when each followed request was due and when all had it.
    pub times: Vec<(u64, u64)>,
    /// The rates, and what came of each change.
    pub steps: Vec<RateChange>,
}

/// One run of the engine, of all nodes.
struct Ran {
    report: Report,
    emitted: u64,
    seen: Vec<Seen>,
    taken: [u64; 2],
}

/// The highest rate that the tree by load sustains.
pub(super) fn sustained(
    plan: &MulticastPlan,
    instances: u32,
    control: &Control,
) -> Result<f64, BenchError> {
    let run = |per_second: Option<f64>| {
        let phase = Phase { seconds: plan.seconds, per_second };
        once(plan, Way::Adaptive, instances, (vec![phase], Time::Untold), control)
    };
    // The median of the second half: a queue takes its time to fill.
    let latency = |ran: Option<Ran>| {
        let seen = ran.map_or(vec![], |ran| ran.seen);
        let later = seen[seen.len() / 2..].iter();
        RequestTimes::of(later.map(|seen| seen.here_ns.saturating_sub(seen.at_ns)).collect()).p50_ns
    };
    let fast = run(None)?.as_ref().map_or(0.0, Ran::per_second);
    let fast = agreed("capacity", fast, control)?;
    let [shares @ .., least] = SHARES;
    let calm_ns = agreed("latency", latency(run(Some(least * fast))?), control)?;
    let late = |share: f64| -> Result<bool, BenchError> {
        for _ in 0..PROBES {
            let late_ns = agreed("latency", latency(run(Some(share * fast))?), control)?;
            if late_ns > 2.0 * calm_ns + LATER_NS {
                return Ok(true);
            }
        }
        Ok(false)
    };
    for share in shares {
        if !late(share)? {
            return Ok(share * fast);
        }
    }
    Ok(least * fast)
}

/// Rates in the same proportions, of which the greatest is `most`.
pub(super) fn scaled(rates: &[f64], most: f64) -> Vec<f64> {
    let greatest = rates.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    rates.iter().map(|rate| (rate / greatest * most).max(1.0)).collect()
}

/// The value of node 0, which all nodes use.
fn agreed(what: &str, own: f64, control: &Control) -> Result<f64, BenchError> {
    let all = control.all_gather(what, own.to_le_bytes().to_vec())?;
    let first = all.first().and_then(|bytes| bytes.as_slice().try_into().ok());
    Ok(f64::from_le_bytes(first.unwrap_or_default()))
}

pub(super) fn point(
    plan: &MulticastPlan,
    way: Way,
    instances: u32,
    time: Time,
    control: &Control,
) -> Result<Option<Point>, BenchError> {
    let flood = vec![Phase { seconds: plan.seconds, per_second: None }];
    let fast = once(plan, way, instances, (flood, time), control)?;
    let per_second = fast.as_ref().map_or(0.0, Ran::per_second);
    let offered = (LOAD * agreed("rate", per_second, control)?).max(1.0);
    let steady = vec![Phase { seconds: plan.seconds, per_second: Some(offered) }];
    let calm = once(plan, way, instances, (steady, time), control)?;
    let (Some(fast), Some(calm)) = (fast, calm) else { return Ok(None) };
    let workers = fast.report.workers.iter();
    let source = workers.max_by_key(|worker| worker.counters.broadcast_encode_ns);
    let source = source.map(|worker| worker.counters).unwrap_or_default();
    let times = |of: fn(&Seen) -> u64| {
        RequestTimes::of(calm.seen.iter().map(|seen| of(seen).saturating_sub(seen.at_ns)).collect())
    };
    Ok(Some(Point {
        way,
        instances: instances * plan.nodes * plan.workers,
        rows: fast.emitted,
        per_second,
        source_bytes: source.broadcast_bytes,
        bytes: fast.report.total.broadcast_bytes,
        source_frames: source.broadcast_frames,
        frames: fast.report.total.broadcast_frames,
        encode_ns: source.broadcast_encode_ns,
        send_ns: source.broadcast_send_ns,
        take_ns: fast.taken[0] as f64 / fast.taken[1].max(1) as f64,
        offered,
        multicast: times(|seen| seen.here_ns),
        processing: times(|seen| seen.done_ns),
    }))
}

/// The rate changes while it runs (W13).
pub(super) fn changing(
    plan: &MulticastPlan,
    rates: &[f64],
    way: Way,
    instances: u32,
    control: &Control,
) -> Result<Option<Dynamic>, BenchError> {
    let phase = |&rate: &f64| Phase { seconds: plan.rate_seconds, per_second: Some(rate) };
    let phases = rates.iter().map(phase).collect();
    let ran = once(plan, way, instances, (phases, Time::Untold), control)?;
    let Some(ran) = ran else { return Ok(None) };
    let start = ran.seen.first().map_or(0, |seen| seen.at_ns);
    let since = |seen: &Seen| (seen.at_ns.saturating_sub(start), seen.here_ns - start);
    let times: Vec<(u64, u64)> = ran.seen.iter().map(since).collect();
    let length_ns = (plan.rate_seconds * 1e9) as u64;
    let steps = settle(&times, FOLLOWED_EVERY as f64, rates, length_ns);
    let tree_changes = ran.report.total.tree_changes;
    Ok(Some(Dynamic { way, tree_changes, times, steps }))
}

fn once(
    plan: &MulticastPlan,
    way: Way,
    instances: u32,
    (phases, agreed): (Vec<Phase>, Time),
    control: &Control,
) -> Result<Option<Ran>, BenchError> {
    let shared = Arc::new(Shared::default());
    let source = Requests { phases, arrivals: plan.arrivals, shared: shared.clone() };
    let copies = way == Way::Copies;
    let operator = Matching {
        shared: shared.clone(),
        first_worker: control.rank() * plan.workers,
        instances,
        drivers: plan.drivers,
        copies,
    };
    let session = Session::builder().nodes(plan.nodes).workers(plan.workers).fabric(plan.fabric);
    let session = session.set("millstream.multicast_tree", &way.setting());
    let set = |session: SessionBuilder, (key, value): &(String, String)| session.set(key, value);
    let mut session = plan.settings.iter().fold(session, set).build()?;
    let engine = |error| BenchError::Engine(millstream::Error::Stream(error));
    let time = (agreed == Time::Announced).then(|| EventTime::of("ts"));
    let requests = Stream::read("requests", Arc::new(source), time).map_err(engine)?;
    let input = requests.key_by(&[]).map_err(engine)?.to_all();
    let inputs = vec![input; if copies { instances as usize } else { 1 }];
    let matched = process("matching", &inputs, Arc::new(operator), None).map_err(engine)?;
    // The operator notes what it has matched.
    let sink: Arc<dyn Sink> = Arc::new(Blackhole::default());
    let job = session.job(&[matched.into_sink("nothing", sink)])?;
    let report = job.run(&RunOptions { control: Some(control), ..RunOptions::default() })?;
    let all = control.all_gather("multicast", encode(&shared))?;
    if control.rank() > 0 {
        return Ok(None);
    }
    let mut ran = Ran { report, emitted: 0, seen: vec![], taken: [0; 2] };
    let mut counts_of_instances = vec![];
    for bytes in &all {
        ran.add(bytes, &mut counts_of_instances);
    }
    ran.check(plan, way, instances, &counts_of_instances)?;
    Ok(Some(ran))
}

/// The record of a process: words of 8 bytes, and before each list its length.
fn encode(shared: &Shared) -> Vec<u8> {
    let record = shared.record();
    let mut words = vec![shared.emitted.load(Ordering::Relaxed), record.taken[0], record.taken[1]];
    words.push(record.counts_of_instances.len() as u64);
    words.extend(record.counts_of_instances.iter().flat_map(|counts| [counts.rows, counts.astray]));
    for seen in &record.seen {
        words.extend([seen.at_ns, seen.here_ns, seen.done_ns, seen.apart.to_bits()]);
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Ran {
    fn per_second(&self) -> f64 {
        self.emitted as f64 / self.report.elapsed.as_secs_f64()
    }

    /// Adds the record of a process.
    fn add(&mut self, bytes: &[u8], counts_of_instances: &mut Vec<RequestCounts>) {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
        let [emitted, ns, times, count, rest @ ..] = words.as_slice() else { return };
        self.emitted += emitted;
        self.taken = [self.taken[0] + ns, self.taken[1] + times];
        let (own, seen) = rest.split_at((2 * *count as usize).min(rest.len()));
        let counts = |&[rows, astray]: &[u64; 2]| RequestCounts { rows, astray };
        counts_of_instances.extend(own.as_chunks().0.iter().map(counts));
        let of = |&[at_ns, here_ns, done_ns, apart]: &[u64; 4]| {
            let apart = f64::from_bits(apart);
            Seen { at_ns, here_ns, done_ns, apart }
        };
        let seen: Vec<Seen> = seen.as_chunks().0.iter().map(of).collect();
        app::merge(&mut self.seen, &seen);
    }

    /// Every instance has every request once, in order, and matches are right.
    fn check(
        &self,
        plan: &MulticastPlan,
        way: Way,
        instances: u32,
        counts_of_instances: &[RequestCounts],
    ) -> Result<(), BenchError> {
        let all = instances * plan.nodes * plan.workers;
        let what = format!("{} with {all} instances", way.name());
        let wrong = |detail: String| BenchError::Multicast { what: what.clone(), detail };
        if counts_of_instances.len() != all as usize || self.emitted == 0 {
            let detail =
                format!("{} instances saw {} requests", counts_of_instances.len(), self.emitted);
            return Err(wrong(detail));
        }
        let fits =
            |counts: &RequestCounts| *counts == RequestCounts { rows: self.emitted, astray: 0 };
        if let Some(counts) = counts_of_instances.iter().find(|counts| !fits(counts)) {
            let RequestCounts { rows, astray } = counts;
            let emitted = self.emitted;
            let detail = format!("an instance took {rows} of {emitted} requests, {astray} astray");
            return Err(wrong(detail));
        }
        let every = self.seen.len().div_ceil(CHECKED_MAX).max(1);
        for (at, seen) in self.seen.iter().enumerate().step_by(every) {
            let number = at as u64 * FOLLOWED_EVERY;
            let place = app::place(number);
            let drivers = (0..all).flat_map(|instance| {
                (0..plan.drivers).map(move |driver| app::driver(instance, driver))
            });
            let nearest = drivers.map(|driver| app::apart(place, driver)).fold(f64::MAX, f64::min);
            if seen.apart != nearest {
                let detail =
                    format!("request {number} was matched at {}, not {nearest}", seen.apart);
                return Err(wrong(detail));
            }
        }
        Ok(())
    }
}
