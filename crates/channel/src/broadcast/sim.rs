//! A multicast in virtual time: the source, relays and trees that run, with costs in place of
//! links.
//!
//! Each process has one processor that does one thing after another: it encodes a frame, sends it
//! to a child, hands it to an instance. A message takes a random time to arrive, and messages
//! between two processes stay in order. So thirty nodes with sixteen instances each fit one thread,
//! and a run is a function of its [`SimPlan`]. What it tells is the shape's, the cap's and the
//! protocol's; what a real network adds it does not know.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::{
    Advice, BroadcastSource, BroadcastTree, Monitor, Numbered, Relay, RelayBreach, Shape,
    Thresholds, TreeUpdate, degree_max,
};

/// Instances of process `p` have addresses `INSTANCES · (p + 1)` and up.
const INSTANCES: u32 = 1_000;

/// What is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct SimPlan {
    /// Processes, the source's among them: at least one.
    pub processes: u32,
    /// Instances of each.
    pub instances: u32,
    /// Racks over which the processes stand, one after the other.
    pub racks: u32,
    /// The tree.
    pub shape: Shape,
    /// Whether its cap follows the load.
    pub adapts: bool,
    /// Whether each instance is sent its own copy by the source (Storm), in place of a copy for
    /// each process.
    pub by_instance: bool,
    /// Frames, and how many come in a second while they do: one rate after the other.
    pub rates: Vec<(u64, f64)>,
    /// Whether they come by a Poisson process (W14); else at distances that are uniform between
    /// half and one and a half times the mean.
    pub poisson: bool,
    /// Q: frames that may wait at the source; those that find no room come later.
    pub queue: u32,
    /// Frames that a child may have open.
    pub open_max: usize,
    /// Nanoseconds to encode a frame.
    pub encode_ns: u64,
    /// Nanoseconds to send one to another process.
    pub send_ns: u64,
    /// Nanoseconds to hand one to an instance of the same process.
    pub hand_ns: u64,
    /// Least and most nanoseconds on the way.
    pub wire_ns: [u64; 2],
    /// The same, added between two racks.
    pub rack_ns: u64,
    /// Frames after which the tree is changed to a random cap, again and again; none for never.
    pub shaken_every: Option<u64>,
    /// Makes the random times.
    pub seed: u64,
}

impl Default for SimPlan {
    fn default() -> Self {
        Self {
            processes: 30,
            instances: 16,
            racks: 1,
            shape: Shape::Capped(3),
            adapts: false,
            by_instance: false,
            rates: vec![(10_000, 30_000.0)],
            poisson: false,
            queue: 64,
            open_max: 8,
            encode_ns: 4_000,
            send_ns: 3_000,
            hand_ns: 100,
            wire_ns: [2_000, 4_000],
            rack_ns: 0,
            shaken_every: None,
            seed: 1,
        }
    }
}

/// A frame that every instance has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimMulticast {
    /// When it came, in nanoseconds: also the time for which it stood before a full queue counts.
    pub came_ns: u64,
    /// When the last instance had it.
    pub done_ns: u64,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct SimOutcome {
    /// The frames, in order.
    pub frames: Vec<SimMulticast>,
    /// Changes of the tree: when, for how long it was on its way, and the degree behind it.
    pub changes: Vec<(u64, u64, u32)>,
    /// Messages with frames that the source's process sent to others.
    pub source_sends: u64,
    /// The same of all processes.
    pub sends: u64,
    /// Frames that every instance has.
    pub complete: u64,
}

impl SimOutcome {
    /// Frames in a second, over the whole run.
    pub fn per_second(&self) -> f64 {
        let first = self.frames.iter().map(|frame| frame.came_ns).min().unwrap_or(0);
        let last = self.frames.iter().map(|frame| frame.done_ns).max().unwrap_or(1);
        self.frames.len() as f64 * 1e9 / (last - first).max(1) as f64
    }

    /// Mean nanoseconds until the last instance has a frame.
    pub fn latency_ns(&self) -> f64 {
        let sum: u64 = self.frames.iter().map(|frame| frame.done_ns - frame.came_ns).sum();
        sum as f64 / self.frames.len().max(1) as f64
    }
}

#[derive(Debug, Clone)]
enum Message {
    Frame(Numbered<()>),
    Ack { upto: u64 },
    TreeUpdate { version: u64, children: Vec<u32> },
    TreeUpdated { version: u64 },
}

#[derive(Debug)]
enum Event {
    /// A frame comes to the source.
    Come,
    /// A processor has nothing to do any more.
    Free(u32),
    Arrive {
        from: u32,
        to: u32,
        message: Message,
    },
}

struct Process {
    /// Nothing for the source.
    relay: Option<Relay<()>>,
    messages: VecDeque<(u32, Message)>,
    busy: bool,
    /// The child that is sent to next.
    turn: usize,
}

struct Run<'a> {
    plan: &'a SimPlan,
    now: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    bodies: Vec<Option<Event>>,
    /// Places among the bodies that are free again.
    free: Vec<usize>,
    source: BroadcastSource<()>,
    processes: Vec<Process>,
    monitor: Monitor,
    /// By instance address frames taken, and those not acknowledged.
    instances: BTreeMap<u32, (u64, u64)>,
    /// By link when its last message arrives.
    links: BTreeMap<(u32, u32), u64>,
    came: VecDeque<u64>,
    waiting: VecDeque<u64>,
    left: Vec<u32>,
    change_since: u64,
    outcome: SimOutcome,
    random: u64,
}

/// Runs a plan to its end.
///
/// # Errors
/// When a member breaks the protocol, or an instance gets a frame twice or out of order.
///
/// # Panics
/// When frames are left over: the protocol has come to a halt.
pub fn run(plan: &SimPlan) -> Result<SimOutcome, String> {
    let mut run = Run::new(plan);
    run.arrivals();
    while let Some(Reverse((at, _, body))) = run.events.pop() {
        run.now = at;
        let event = run.bodies[body].take();
        run.free.push(body);
        match event {
            Some(Event::Come) => run.come(),
            Some(Event::Free(process)) => {
                run.processes[process as usize].busy = false;
                run.work(process);
            }
            Some(Event::Arrive { from, to, message }) => run.arrive(from, to, message)?,
            None => {}
        }
    }
    assert!(run.left.iter().all(|&left| left == 0), "frames are left that nobody sends");
    Ok(run.outcome)
}

impl<'a> Run<'a> {
    fn new(plan: &'a SimPlan) -> Self {
        // Without a copy for each process there is no tree: instances hang on the source.
        let members = if plan.by_instance { 0 } else { plan.processes - 1 };
        let of_rack = plan.processes.div_ceil(plan.racks.max(1));
        let racks: Vec<u32> = (0..=members).map(|process| process / of_rack).collect();
        let tree = BroadcastTree::racked(plan.shape, members, &racks);
        let addresses: Vec<u32> = (0..=members).collect();
        let relay = |member: u32| {
            let children = if member <= members {
                BroadcastSource::<()>::first_children(&tree, &addresses, member)
            } else {
                vec![]
            };
            (member > 0).then(|| Relay::new(children, plan.open_max))
        };
        let process = |member: u32| Process {
            relay: relay(member),
            messages: VecDeque::new(),
            busy: false,
            turn: 0,
        };
        let processes = (0..plan.processes).map(process).collect();
        let of = |process: u32| instances_of(process, plan.instances);
        Self {
            plan,
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            bodies: vec![],
            free: vec![],
            source: BroadcastSource::new(tree.clone(), addresses.clone(), plan.open_max),
            processes,
            monitor: Monitor::new(Thresholds::of_queue(plan.queue), members, 0)
                .over_racks(plan.racks > 1),
            instances: (0..plan.processes).flat_map(of).map(|at| (at, (0, 0))).collect(),
            links: BTreeMap::new(),
            came: VecDeque::new(),
            waiting: VecDeque::new(),
            left: vec![],
            change_since: 0,
            outcome: SimOutcome {
                frames: vec![],
                changes: vec![],
                source_sends: 0,
                sends: 0,
                complete: 0,
            },
            random: plan.seed,
        }
    }

    fn random(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.random >> 33) % limit.max(1)
    }

    fn at(&mut self, ns: u64, event: Event) {
        self.order += 1;
        let body = self.free.pop().unwrap_or_else(|| {
            self.bodies.push(None);
            self.bodies.len() - 1
        });
        self.bodies[body] = Some(event);
        self.events.push(Reverse((ns, self.order, body)));
    }

    /// Frames come one after the other, at random distances of the rate's mean.
    fn arrivals(&mut self) {
        let mut ns = 0;
        for &(frames, per_second) in &self.plan.rates {
            for _ in 0..frames {
                let mean = (1e9 / per_second) as u64;
                ns += if self.plan.poisson {
                    // Above 0, whose logarithm is not finite.
                    let above = (self.random(1 << 31) + 1) as f64 / (1_u64 << 31) as f64;
                    (-above.ln() * 1e9 / per_second) as u64
                } else {
                    mean / 2 + self.random(mean)
                };
                self.at(ns, Event::Come);
            }
        }
    }

    fn come(&mut self) {
        self.waiting.push_back(self.now);
        self.accept_frame();
        self.work(0);
    }

    /// Lets frames into the queue that has room.
    fn accept_frame(&mut self) {
        while self.source.relay().retained() < self.plan.queue as usize {
            let Some(came) = self.waiting.pop_front() else { return };
            let seq = self.source.push(());
            let locals: Vec<u32> = if self.plan.by_instance {
                (0..self.plan.processes)
                    .flat_map(|process| instances_of(process, self.plan.instances))
                    .collect()
            } else {
                instances_of(0, self.plan.instances).collect()
            };
            self.source.relay_mut().also(seq, &locals);
            self.came.push_back(came);
            self.outcome.frames.push(SimMulticast { came_ns: came, done_ns: came });
            self.left.push(self.plan.processes * self.plan.instances);
            self.monitor.arrived(self.plan.encode_ns);
            self.adapt(seq);
        }
    }

    fn adapt(&mut self, seq: u64) {
        if self.source.is_changing() || self.plan.processes < 3 {
            return;
        }
        let cap = match self.plan.shaken_every {
            Some(every) if seq % every == every - 1 => {
                let most = degree_max(self.plan.processes - 1);
                1 + self.random(u64::from(most)) as u32
            }
            None if self.plan.adapts => {
                let waiting = (self.source.relay().retained() + self.waiting.len()) as u32;
                let degree = self.source.tree().degree();
                match self.monitor.look(self.now, waiting, degree) {
                    Some(Advice::Lower(cap) | Advice::Raise(cap)) => cap,
                    None => return,
                }
            }
            _ => return,
        };
        self.change_since = self.now;
        let tree = self.source.tree().switched(cap);
        for TreeUpdate { to, version, children } in self.source.begin(tree) {
            self.processes[0].messages.push_back((to, Message::TreeUpdate { version, children }));
        }
    }

    /// Has a processor do the next thing, if it is free.
    fn work(&mut self, process: u32) {
        if self.processes[process as usize].busy {
            return;
        }
        if let Some((to, message)) = self.processes[process as usize].messages.pop_front() {
            return self.send(process, to, message, 500);
        }
        let own = &mut self.processes[process as usize];
        let relay = own.relay.as_mut().unwrap_or(self.source.relay_mut());
        let children = relay.awaiting();
        let turn = own.turn;
        let ready = (0..children.len())
            .map(|at| children[(turn + at) % children.len()])
            .find(|&child| relay.to_send(child).is_some());
        let Some(child) = ready else { return };
        own.turn = turn.wrapping_add(1);
        let Some(numbered) = relay.to_send(child).cloned() else { return };
        relay.sent(child);
        relay.settle();
        let first = process == 0 && self.came.front().is_some() && {
            // The first send of a frame pays for its encoding.
            let encoded = self.outcome.frames.len() as u64 - self.came.len() as u64;
            numbered.seq >= encoded
        };
        let mut cost = if is_local(process, child) { self.plan.hand_ns } else { self.plan.send_ns };
        // Who is in the same process gets a reference, not a copy.
        let copies = self.plan.by_instance && !is_local(process, child);
        if process == 0 && (first || copies) {
            cost += self.plan.encode_ns;
        }
        if first {
            self.came.pop_front();
        }
        if !is_local(process, child) {
            self.outcome.sends += 1;
            self.outcome.source_sends += u64::from(process == 0);
            if process == 0 {
                self.monitor.sent(child, numbered.seq, self.now + cost, self.plan.send_ns);
            }
        }
        self.owes_ack(process);
        self.send(process, child, Message::Frame(numbered), cost);
        if process == 0 {
            self.accept_frame();
        }
    }

    /// Notes what a process owes its parents.
    fn owes_ack(&mut self, process: u32) {
        let own = &mut self.processes[process as usize];
        let Some(relay) = &mut own.relay else { return };
        while let Some((parent, upto)) = relay.ack_due() {
            own.messages.push_back((parent, Message::Ack { upto }));
        }
    }

    fn send(&mut self, from: u32, to: u32, message: Message, cost_ns: u64) {
        let [least, most] = self.plan.wire_ns;
        let of_rack = self.plan.processes.div_ceil(self.plan.racks.max(1));
        let target = if to < INSTANCES { to } else { to / INSTANCES - 1 };
        let mut wire = if target == from { 0 } else { least + self.random(most - least + 1) };
        if target / of_rack != from / of_rack {
            wire += self.plan.rack_ns;
        }
        let done = self.now + cost_ns;
        let last = self.links.entry((from, to)).or_default();
        *last = (done + wire).max(*last + 1);
        let arrives = *last;
        self.processes[from as usize].busy = true;
        self.at(done, Event::Free(from));
        self.at(arrives, Event::Arrive { from, to, message });
    }

    fn arrive(&mut self, from: u32, to: u32, message: Message) -> Result<(), String> {
        let broken = |breach: RelayBreach| format!("process {to}: {breach}");
        if to >= INSTANCES {
            return self.instance(from, to, message);
        }
        let own = &mut self.processes[to as usize];
        match (message, &mut own.relay) {
            (Message::Frame(numbered), Some(relay)) => {
                relay.receive(from, numbered).map_err(broken)?;
                while let Some(seq) = relay.take().map_err(broken)? {
                    if !self.plan.by_instance {
                        let locals: Vec<u32> = instances_of(to, self.plan.instances).collect();
                        relay.also(seq, &locals);
                    }
                }
                relay.settle();
                self.owes_ack(to);
            }
            (Message::Ack { upto }, Some(relay)) => {
                relay.acknowledged(from, upto).map_err(broken)?
            }
            (Message::Ack { upto }, None) => {
                self.source.relay_mut().acknowledged(from, upto).map_err(broken)?;
                self.monitor.acknowledged(from, upto, self.now);
            }
            (Message::TreeUpdate { version, children }, Some(relay)) => {
                if relay.prepare(version, children) {
                    own.messages.push_back((0, Message::TreeUpdated { version }));
                }
            }
            (Message::TreeUpdated { version }, None) => {
                if self.source.answered(from, version).map_err(broken)? {
                    let duration = self.now - self.change_since;
                    let degree = self.source.tree().degree();
                    self.outcome.changes.push((self.now, duration, degree));
                }
            }
            (message, _) => return Err(format!("process {to} got {message:?}")),
        }
        self.work(to);
        Ok(())
    }

    /// An instance has got a frame. It acknowledges a quarter of the credit at a time, at no cost.
    fn instance(&mut self, from: u32, to: u32, message: Message) -> Result<(), String> {
        let Message::Frame(Numbered { seq, .. }) = message else { return Ok(()) };
        let (taken, open) = self.instances.get_mut(&to).ok_or("an instance that is not there")?;
        if seq != *taken {
            return Err(format!("instance {to} got frame {seq} after {taken} frames"));
        }
        *taken += 1;
        *open += 1;
        if *open >= (self.plan.open_max as u64 / 4).max(1) {
            *open = 0;
            let relay = &mut self.processes[from as usize].relay;
            let relay = relay.as_mut().unwrap_or(self.source.relay_mut());
            relay.acknowledged(to, seq + 1).map_err(|breach| breach.to_string())?;
        }
        let at = seq as usize;
        self.left[at] -= 1;
        self.outcome.complete += u64::from(self.left[at] == 0);
        self.outcome.frames[at].done_ns = self.outcome.frames[at].done_ns.max(self.now);
        self.work(from);
        Ok(())
    }
}

fn instances_of(process: u32, instances: u32) -> std::ops::Range<u32> {
    let first = INSTANCES * (process + 1);
    first..first + instances
}

fn is_local(process: u32, child: u32) -> bool {
    child >= INSTANCES && child / INSTANCES - 1 == process
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_or_doubled_in_a_thousand_switches_of_480_instances() {
        let mut changes = 0;
        let mut seed = 0;
        const FRAMES: u64 = 400;
        while changes < 1_000 {
            seed += 1;
            let racks = 1 + (seed % 5) as u32;
            let rates = vec![(FRAMES, 30_000.0)];
            let plan = SimPlan { racks, rates, shaken_every: Some(3), seed, ..SimPlan::default() };
            let outcome = run(&plan).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(outcome.frames.len() as u64, FRAMES);
            assert_eq!(outcome.complete, FRAMES, "seed {seed}");
            assert_eq!(outcome.sends, FRAMES * 29, "seed {seed}");
            changes += outcome.changes.len();
        }
        assert!(seed < 40, "{changes} changes in {seed} runs");
    }

    #[test]
    fn a_tree_with_a_cap_carries_more_than_others() {
        // More comes than any tree can carry: the queue stays full.
        let carried = |shape: Shape, by_instance: bool| {
            let rates = vec![(600, 1e6)];
            run(&SimPlan { shape, by_instance, rates, ..SimPlan::default() }).unwrap().per_second()
        };
        let capped = carried(Shape::Capped(3), false);
        let binomial = carried(Shape::Binomial, false);
        let sequential = carried(Shape::Sequential, false);
        assert!(capped >= 1.2 * binomial, "{capped} and {binomial}");
        assert!(capped >= 1.4 * sequential, "{capped} and {sequential}");
    }

    #[test]
    fn the_cap_follows_the_load() {
        let rates = vec![(1_000, 20_000.0), (4_000, 60_000.0), (2_000, 20_000.0)];
        let plan = SimPlan { shape: Shape::Capped(5), adapts: true, rates, ..SimPlan::default() };
        let outcome = run(&plan).unwrap();
        let degrees: Vec<u32> = outcome.changes.iter().map(|change| change.2).collect();
        let least = degrees.iter().min().expect("it changes");
        assert!(*least < 5, "{degrees:?}");
        assert!(degrees.last() > Some(least), "and rises again: {degrees:?}");
    }

    #[test]
    fn where_sends_are_cheap_the_source_sends_to_everybody() {
        // Few frames for long enough that the monitor looks.
        let plan = |send_ns, shape, adapts| SimPlan {
            instances: 1,
            shape,
            adapts,
            send_ns,
            rates: vec![(4_000, 20_000.0)],
            ..SimPlan::default()
        };
        let ran = |send_ns, shape, adapts| run(&plan(send_ns, shape, adapts)).unwrap();
        let cheap = ran(100, Shape::Capped(5), true);
        assert_eq!(cheap.changes.last().map(|change| change.2), Some(29), "{:?}", cheap.changes);
        let latency = |shape| ran(100, shape, false).latency_ns();
        let (all, tree) = (latency(Shape::Sequential), latency(Shape::Capped(5)));
        assert!(all < tree, "{all} and {tree}");
        assert!(cheap.latency_ns() < 0.5 * (all + tree), "{} of {all}", cheap.latency_ns());
        let dear = ran(3_000, Shape::Capped(5), true);
        assert!(dear.changes.iter().all(|change| change.2 <= 5), "{:?}", dear.changes);
        assert!(
            dear.latency_ns() < ran(3_000, Shape::Sequential, false).latency_ns(),
            "a tree is sooner"
        );
    }

    #[test]
    fn where_relays_are_the_bottleneck_the_tree_finds_the_degree_that_carries_most() {
        // Instances are slow, so that the source could afford each degree.
        let later = |shape, adapts, frames| {
            let plan = SimPlan {
                instances: 1,
                shape,
                adapts,
                encode_ns: 3_500,
                send_ns: 6_000,
                hand_ns: 40_000,
                rates: vec![(frames, 1e9)],
                ..SimPlan::default()
            };
            let outcome = run(&plan).unwrap();
            eprintln!(
                "{:?}",
                outcome.changes.iter().map(|c| (c.0 / 1000, c.2)).collect::<Vec<_>>()
            );
            let done = |at: u64| outcome.frames[at as usize].done_ns;
            (frames / 2) as f64 * 1e9 / (done(frames - 1) - done(frames / 2)) as f64
        };
        let adaptive = later(Shape::Capped(5), true, 8_000);
        let best = (1..=5).map(|cap| later(Shape::Capped(cap), false, 600)).fold(0.0, f64::max);
        assert!(adaptive > 0.9 * best, "{adaptive} of {best}");
    }

    /// Distances of a Poisson process have a deviation as large as their mean, uniform ones 0.29 of
    /// it.
    #[test]
    fn frames_of_a_poisson_process_come_at_exponential_distances() {
        for (poisson, expected) in [(true, 1.0), (false, 12_f64.sqrt().recip())] {
            let rates = vec![(4_000, 10_000.0)];
            let outcome = run(&SimPlan { poisson, rates, ..SimPlan::default() }).unwrap();
            assert_eq!(outcome.complete, 4_000);
            let came: Vec<f64> = outcome.frames.iter().map(|frame| frame.came_ns as f64).collect();
            let distances = || came.windows(2).map(|pair| pair[1] - pair[0]);
            let count = distances().count() as f64;
            let mean = distances().sum::<f64>() / count;
            let square = distances().map(|one| (one - mean).powi(2)).sum::<f64>() / count;
            let deviation = square.sqrt() / mean;
            assert!((mean / 1e5 - 1.0).abs() < 0.06, "{mean}");
            assert!((deviation / expected - 1.0).abs() < 0.1, "{deviation}");
        }
    }

    #[test]
    fn a_run_is_a_function_of_its_plan() {
        let plan = SimPlan { shaken_every: Some(7), rates: vec![(500, 5e4)], ..SimPlan::default() };
        assert_eq!(run(&plan), run(&plan));
        assert_ne!(run(&plan), run(&SimPlan { seed: 2, ..plan }));
    }
}
