//! The same protocol in virtual time, for as many machines as the paper had.
//!
//! Each machine has a processor of its own here, and a network that nobody has measured on one
//! machine: its time on the way is assumed. What the model tells is the trees', not the wire's.

use channel::broadcast::sim::{SimMulticast, SimOutcome, SimPlan, run};
use channel::broadcast::{Shape, degree_max};

use super::arrivals::Arrivals;
use super::real::{Point, Way};
use super::settle::{RateChange, settle};
use crate::BenchError;

/// Machines of the paper, and instances of each.
pub(super) const MACHINES: u32 = 30;
/// The most.
pub(super) const INSTANCES: u32 = 16;

/// Frames in which a tree that follows the load finds its degree.
const FRAMES_TO_ADAPT: u64 = 8_000;

/// The rates of the paper, in tuples a second (W13).
pub const RATES: [f64; 5] = [30e3, 60e3, 80e3, 100e3, 80e3];

/// Costs, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelCosts {
    /// Whose these are.
    pub of: &'static str,
    /// To encode a frame.
    pub encode_ns: u64,
    /// To send one to a child.
    pub send_ns: u64,
    /// For an instance to take one.
    pub hand_ns: u64,
    /// Requests of a frame.
    pub rows: f64,
}

impl ModelCosts {
    /// Of the paper: 5.2 µs for a child, as its published code has it, and so much for encoding
    /// that it is 15 % of the communication with three children, as its figure 26 says. A frame is
    /// one tuple.
    pub const PAPER: ModelCosts =
        ModelCosts { of: "the paper", encode_ns: 2_750, send_ns: 5_200, hand_ns: 100, rows: 1.0 };

    /// Those of the source of a run here.
    pub fn measured(point: &Point, processes: u32) -> Self {
        let each = |ns: u64, of: u64| (ns / of.max(1)).max(1);
        let emitted = point.frames / u64::from(processes.max(2) - 1);
        Self {
            of: "this machine",
            encode_ns: each(point.encode_ns, emitted),
            send_ns: each(point.send_ns, point.source_frames),
            hand_ns: (point.take_ns as u64).max(1),
            rows: point.rows as f64 / emitted.max(1) as f64,
        }
    }

    fn plan(self, way: Way, processes: u32, instances: u32) -> SimPlan {
        let shape = match way {
            Way::Tree(shape) => shape,
            Way::Adaptive | Way::Copies => Shape::Capped(degree_max(processes - 1)),
        };
        let (adapts, by_instance) = (way == Way::Adaptive, way == Way::Copies);
        let ModelCosts { encode_ns, send_ns, hand_ns, .. } = self;
        SimPlan {
            processes,
            instances,
            shape,
            adapts,
            by_instance,
            encode_ns,
            send_ns,
            hand_ns,
            ..SimPlan::default()
        }
    }
}

/// One way in the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Modelled {
    /// How frames went.
    pub way: Way,
    /// Instances of all processes.
    pub instances: u32,
    /// Requests a second, when more come than can be taken.
    pub per_second: f64,
    /// Mean nanoseconds until the last instance had a frame, when few come.
    pub latency_ns: f64,
    /// Messages of the source for each frame.
    pub source_sends: f64,
}

/// A run in which the rate changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Changing {
    /// How frames went.
    pub way: Way,
    /// When each frame came and when all had it, in nanoseconds.
    pub times: Vec<(u64, u64)>,
    /// The outcome of each rate.
    pub steps: Vec<RateChange>,
    /// Changes of the tree: when, how long each was on its way, and the degree behind it.
    pub changes: Vec<(u64, u64, u32)>,
}

/// Trees under changes that come without need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shaken {
    /// Changes of trees.
    pub changes: u64,
    /// Frames that were emitted.
    pub frames: u64,
    /// Frames that some instance missed; a run in which one came twice does not end.
    pub missed: u64,
}

fn simulated(plan: &SimPlan) -> Result<SimOutcome, BenchError> {
    let what = format!("the model with {:?}", plan.shape);
    run(plan).map_err(|detail| BenchError::Multicast { what, detail })
}

/// Throughput and latency of a way.
///
/// # Errors
/// When the protocol is broken in the model.
pub fn sweep(costs: ModelCosts, way: Way, instances: u32) -> Result<Modelled, BenchError> {
    let processes = MACHINES.min(instances);
    let of_each = instances.div_ceil(processes);
    let plan = costs.plan(way, processes, of_each);
    let (frames, calm) = match way {
        Way::Copies => (100, vec![(60, 100.0)]),
        Way::Tree(_) => (600, vec![(60, 100.0)]),
        // Its monitor must have looked several times.
        Way::Adaptive => (FRAMES_TO_ADAPT, vec![(600, 1_000.0)]),
    };
    // Then all instances of a process count as one, which costs as much.
    let plan = match way {
        Way::Adaptive => {
            let hand_ns = plan.hand_ns * u64::from(of_each);
            SimPlan { instances: 1, hand_ns, ..plan }
        }
        _ => plan,
    };
    let flood = simulated(&SimPlan { rates: vec![(frames, 1e9)], ..plan.clone() })?;
    let calm = simulated(&SimPlan { rates: calm, ..plan })?;
    Ok(Modelled {
        way,
        instances,
        per_second: later_per_second(&flood) * costs.rows,
        latency_ns: calm.latency_ns(),
        source_sends: flood.source_sends as f64 / frames as f64,
    })
}

/// Frames in a second, over the second half of a run in which more come than can be taken: by then
/// a tree that follows the load has found its degree.
fn later_per_second(flood: &SimOutcome) -> f64 {
    let half = flood.frames.len() / 2;
    let done = |at: usize| flood.frames.get(at).map_or(0, |frame| frame.done_ns);
    let [first, last] = [half.saturating_sub(1), flood.frames.len().saturating_sub(1)].map(done);
    (flood.frames.len() - half) as f64 * 1e9 / last.saturating_sub(first).max(1) as f64
}

/// The rates of the paper, each for `seconds`, with requests that come so.
///
/// # Errors
/// When the protocol is broken in the model.
pub fn changing(
    costs: ModelCosts,
    way: Way,
    seconds: f64,
    arrivals: Arrivals,
) -> Result<Changing, BenchError> {
    // All instances of a process count as one, which costs as much.
    let costs = ModelCosts { hand_ns: costs.hand_ns * u64::from(INSTANCES), ..costs };
    let rates = RATES.map(|rate| ((rate * seconds) as u64, rate)).to_vec();
    let plan = costs.plan(way, MACHINES, 1);
    let (poisson, seed) = match arrivals {
        Arrivals::Even => (false, plan.seed),
        Arrivals::Poisson { seed } => (true, seed),
    };
    let outcome = simulated(&SimPlan { rates, poisson, seed, ..plan })?;
    let times: Vec<(u64, u64)> = outcome
        .frames
        .iter()
        .map(|&SimMulticast { came_ns, done_ns }| (came_ns, done_ns))
        .collect();
    let steps = settle(&times, 1.0, &RATES, (seconds * 1e9) as u64);
    Ok(Changing { way, times, steps, changes: outcome.changes })
}

/// As many changes of trees as asked, of 480 instances on one to five racks.
///
/// # Errors
/// When a frame comes twice or out of order, with the seed.
pub fn shaken(changes_min: u64) -> Result<Shaken, BenchError> {
    let mut sum = Shaken { changes: 0, frames: 0, missed: 0 };
    let mut seed = 0;
    while sum.changes < changes_min {
        seed += 1;
        let racks = 1 + (seed % 5) as u32;
        let frames = 400;
        let rates = vec![(frames, 30_000.0)];
        let plan = SimPlan { racks, rates, shaken_every: Some(3), seed, ..SimPlan::default() };
        let what = format!("the model with seed {seed}");
        let outcome = run(&plan).map_err(|detail| BenchError::Multicast { what, detail })?;
        sum.changes += outcome.changes.len() as u64;
        sum.frames += frames;
        sum.missed += frames - outcome.complete;
    }
    Ok(sum)
}

/// Mean nanoseconds until the last instance has a frame, on this many racks.
///
/// # Errors
/// When the protocol is broken in the model.
pub fn on_racks(costs: ModelCosts, racks: u32) -> Result<f64, BenchError> {
    let plan = costs.plan(Way::Tree(Shape::Capped(3)), MACHINES, INSTANCES);
    let rates = vec![(60, 100.0)];
    // Between racks a message takes as long again as at most within one.
    let outcome = simulated(&SimPlan { racks, rack_ns: plan.wire_ns[1], rates, ..plan })?;
    Ok(outcome.latency_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_compares_as_the_paper_does() {
        let of = |way| sweep(ModelCosts::PAPER, way, 480).unwrap();
        let capped = of(Way::Tree(Shape::Capped(3)));
        for way in [Way::Tree(Shape::Binomial), Way::Tree(Shape::Sequential), Way::Copies] {
            assert!(capped.per_second > of(way).per_second, "{way:?}");
        }
        let adaptive = of(Way::Adaptive);
        let best = (1..=3).map(|cap| of(Way::Tree(Shape::Capped(cap))).per_second);
        let best = best.fold(0.0, f64::max);
        assert!(adaptive.per_second > 0.9 * best, "{adaptive:?} of {best}");
        assert_eq!(capped.source_sends, 3.0);
        assert_eq!(of(Way::Tree(Shape::Sequential)).source_sends, 29.0);
        assert_eq!(of(Way::Copies).source_sends, 464.0, "480 but those of the source's process");
    }

    #[test]
    fn every_change_that_is_asked_for_is_made_and_nothing_is_missed() {
        let shaken = shaken(50).unwrap();
        assert!(shaken.changes >= 50 && shaken.frames > 0);
        assert_eq!(shaken.missed, 0);
    }

    #[test]
    fn rates_that_change_move_the_tree() {
        for arrivals in [Arrivals::Even, Arrivals::Poisson { seed: 1 }] {
            let ran = changing(ModelCosts::PAPER, Way::Adaptive, 0.1, arrivals).unwrap();
            assert_eq!(ran.times.len(), 35_000);
            assert_eq!(ran.steps.len(), 4);
            assert!(!ran.changes.is_empty());
        }
    }

    #[test]
    fn where_a_send_is_cheap_the_tree_by_load_is_the_source_and_everybody() {
        // A frame of many requests is encoded for long and sent fast.
        let cheap = ModelCosts { encode_ns: 20_000, send_ns: 100, ..ModelCosts::PAPER };
        let of = |way| sweep(cheap, way, 30).unwrap();
        let [adaptive, sequential] = [Way::Adaptive, Way::Tree(Shape::Sequential)].map(of);
        assert!(adaptive.per_second > 0.9 * sequential.per_second, "{adaptive:?} {sequential:?}");
        let binomial = of(Way::Tree(Shape::Binomial));
        let middle = 0.5 * (sequential.latency_ns + binomial.latency_ns);
        assert!(sequential.latency_ns < binomial.latency_ns, "{sequential:?} {binomial:?}");
        assert!(adaptive.latency_ns < middle, "{adaptive:?} {sequential:?} {binomial:?}");
    }
}
