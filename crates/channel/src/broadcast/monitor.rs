//! When the cap of a tree is to change (W7, W8).

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use super::degree::{SourceLoad, degree, degree_max, is_direct_sooner};

/// Looks in a row that find the queue above the waterline before fewer children than are affordable
/// are tried: one may find what was held up for a moment.
const TRIAL_AFTER: u32 = 3;
/// Each number of children is tried for this many looks.
const TRIAL_LOOKS: u32 = 8;
/// A number of children is better than another if it carries this many times as much.
const TRIAL_GAIN: f64 = 1.05;
/// After a trial, no other one begins for this many looks.
const PAUSE_LOOKS: u32 = 400;
/// A source that sends to everybody itself goes back to a tree when hops take so much less than
/// those by which it began to: else the two would take turns where they are alike.
const HOP_SLACK: f64 = 2.0;

/// When to act.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// Q: frames that may wait.
    pub queue: u32,
    /// `l_w`: the waterline, at most `queue`.
    pub warning: u32,
    /// `T_down`: lower the cap when the queue grew by this part of what is left to the waterline.
    pub down: f64,
    /// `T_up`: raise it when the queue shrank by this part.
    pub up: f64,
    /// α: how much of the old rate stays in the new one.
    pub smoothing: f64,
    /// Δt: nanoseconds between two looks.
    pub interval_ns: u64,
}

impl Thresholds {
    /// For a queue of this many frames. The paper names the thresholds and not their values: these
    /// act when the waterline would be crossed in two more looks, or half of a queue is gone.
    pub fn of_queue(queue: u32) -> Self {
        Self {
            queue,
            warning: (queue / 2).max(1),
            down: 0.5,
            up: 0.5,
            smoothing: 0.5,
            interval_ns: 5_000_000,
        }
    }
}

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Negative scale-down to this cap.
    Lower(u32),
    /// Active scale-up to this cap.
    Raise(u32),
}

/// Watches the queue of a source.
#[derive(Debug, Clone)]
pub struct Monitor {
    thresholds: Thresholds,
    members: u32,
    since_ns: u64,
    arrived: u64,
    per_second: Option<f64>,
    encode_ns: Mean,
    send_ns: Mean,
    hop_ns: Mean,
    /// By child: numbers of frames that it was sent and has not acknowledged, and when. As many as
    /// its credit.
    on_the_way: BTreeMap<u32, VecDeque<(u64, u64)>>,
    /// Whether members stand on several racks, each of which a frame is to enter once.
    racked: bool,
    /// l′: the queue at the last look.
    before: u32,
    /// Looks in a row that found the queue above the waterline.
    crowded: u32,
    /// Frames a second that the tree carries, known while the queue is above the waterline: as many
    /// come then as go.
    carried: f64,
    trial: Trial,
}

/// Trials of fewer children than the formula affords. The formula knows the load of the source
/// alone. Fewer children carry more if relays or the network of the source are the bottleneck; if a
/// member is slow, they only make the way longer. So each number is tried, down to one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trial {
    /// None runs, and one may begin.
    Open,
    /// A number of children is tried.
    Running {
        /// Looks since it is tried.
        looks: u32,
        /// The sum over these looks of the frames a second that came.
        sum: f64,
        /// The number of children that has carried most, and the frames a second that it carried.
        best: (u32, f64),
    },
    /// None begins for this many looks.
    Paused(u32),
}

impl Monitor {
    /// Begins to watch at `now_ns`, over a tree of this many members.
    pub fn new(thresholds: Thresholds, members: u32, now_ns: u64) -> Self {
        Self {
            thresholds,
            members,
            since_ns: now_ns,
            arrived: 0,
            per_second: None,
            encode_ns: Mean::default(),
            send_ns: Mean::default(),
            hop_ns: Mean::default(),
            on_the_way: BTreeMap::new(),
            racked: false,
            before: 0,
            crowded: 0,
            carried: 0.0,
            trial: Trial::Open,
        }
    }

    /// A frame has come, whose encoding took so long.
    pub fn arrived(&mut self, encode_ns: u64) {
        self.arrived += 1;
        self.encode_ns.add(encode_ns);
    }

    /// Members stand on several racks: a tree enters each once, and the source does not send to
    /// everybody itself.
    #[must_use]
    pub fn over_racks(mut self, racked: bool) -> Self {
        self.racked = racked;
        self
    }

    /// Frame number `seq` was sent to a child, which took so long until `now_ns`.
    pub fn sent(&mut self, child: u32, seq: u64, now_ns: u64, send_ns: u64) {
        self.send_ns.add(send_ns);
        self.on_the_way.entry(child).or_default().push_back((seq, now_ns));
    }

    /// A child has passed on all frames before `upto`: half of the time since the last of them was
    /// sent is a hop. It may have kept others back, to acknowledge several at once.
    pub fn acknowledged(&mut self, child: u32, upto: u64, now_ns: u64) {
        let Some(on_the_way) = self.on_the_way.get_mut(&child) else { return };
        let mut last = None;
        while let Some((_, at_ns)) = on_the_way.pop_front_if(|sent| sent.0 < upto) {
            last = Some(at_ns);
        }
        if let Some(at_ns) = last {
            self.hop_ns.add(now_ns.saturating_sub(at_ns) / 2);
        }
    }

    /// The current load.
    pub fn load(&self) -> SourceLoad {
        let per_second = self.per_second.unwrap_or(0.0);
        let [encode_ns, send_ns, hop_ns] =
            [&self.encode_ns, &self.send_ns, &self.hop_ns].map(|mean| mean.known);
        SourceLoad { per_second, encode_ns, send_ns, hop_ns }
    }

    /// The most children for a load.
    fn most(&self, load: SourceLoad) -> u32 {
        let most = degree(self.thresholds.queue, load, self.members);
        if self.racked { most.min(degree_max(self.members)) } else { most }
    }

    /// Whether a source with this many children sends to everybody itself, and they would have
    /// frames much sooner by a tree.
    fn is_tree_sooner(&self, cap: u32, load: SourceLoad) -> bool {
        let slack = SourceLoad { hop_ns: load.hop_ns * HOP_SLACK, ..load };
        cap > degree_max(self.members) && !is_direct_sooner(slack, self.members)
    }

    /// Looks at a queue of `waiting` frames that goes out by a tree of degree `cap`, once an
    /// interval has passed; says what to do.
    pub fn look(&mut self, now_ns: u64, waiting: u32, cap: u32) -> Option<Advice> {
        let passed = now_ns.saturating_sub(self.since_ns);
        if passed < self.thresholds.interval_ns {
            return None;
        }
        let rate = self.arrived as f64 * 1e9 / passed as f64;
        let smoothing = self.thresholds.smoothing;
        let per_second =
            self.per_second.map_or(rate, |old| smoothing * old + (1.0 - smoothing) * rate);
        self.per_second = Some(per_second);
        self.encode_ns.smooth(smoothing);
        self.send_ns.smooth(smoothing);
        self.hop_ns.smooth(smoothing);
        self.since_ns = now_ns;
        self.arrived = 0;
        let before = std::mem::replace(&mut self.before, waiting);
        self.crowded = if waiting > self.thresholds.warning { self.crowded + 1 } else { 0 };
        self.carried = match self.crowded {
            // The first look above the waterline also counts the frames that filled the queue.
            0..=2 => rate,
            _ => smoothing * self.carried + (1.0 - smoothing) * rate,
        };
        let load = self.load();
        let affordable = self.most(load);
        if let Some(next) = self.continue_trial(waiting, rate, cap) {
            return match next.cmp(&cap) {
                Ordering::Less => Some(Advice::Lower(next)),
                Ordering::Equal => None,
                Ordering::Greater => Some(Advice::Raise(next)),
            };
        }
        let grows = self.must_lower(before, waiting);
        match () {
            () if grows && cap > 1 => {
                // The queue has shown that more comes: the mean over the past would be behind it.
                let needed = self.most(SourceLoad { per_second: per_second.max(rate), ..load });
                let tries = needed >= cap && self.begin_trial(cap);
                let lower = if tries { self.fewer(cap) } else { needed };
                (lower < cap).then_some(Advice::Lower(lower))
            }
            // There cannot be fewer than one; more may carry more by now.
            () if grows && affordable > cap && self.begin_trial(cap) => {
                Some(Advice::Raise(affordable))
            }
            () if affordable < cap && self.is_tree_sooner(cap, load) => {
                Some(Advice::Lower(affordable))
            }
            () if self.may_raise(before, waiting) && affordable > cap => {
                Some(Advice::Raise(affordable))
            }
            () => None,
        }
    }

    /// Begins a trial of other numbers of children than the present one. It does not if one runs or
    /// has just ended, or if the queue has not been above the waterline for long: it may have been
    /// held up for a moment. Gives whether it has begun.
    fn begin_trial(&mut self, cap: u32) -> bool {
        let begins = self.crowded >= TRIAL_AFTER && self.trial == Trial::Open;
        if begins {
            self.trial = Trial::Running { looks: 0, sum: 0.0, best: (cap, self.carried) };
        }
        begins
    }

    /// The next smaller number of children. Below all members it is the largest degree of a tree.
    fn fewer(&self, cap: u32) -> u32 {
        cap.saturating_sub(1).min(degree_max(self.members))
    }

    /// Counts a look with `cap` children for the trial that runs. Gives the number of children to
    /// go on with, when there have been enough looks: the next one to try, or the best.
    fn continue_trial(&mut self, waiting: u32, rate: f64, cap: u32) -> Option<u32> {
        let (trial, next) = match self.trial {
            Trial::Open | Trial::Paused(0) => (Trial::Open, None),
            Trial::Paused(looks) => (Trial::Paused(looks - 1), None),
            Trial::Running { looks, sum, best } if looks + 1 < TRIAL_LOOKS => {
                (Trial::Running { looks: looks + 1, sum: sum + rate, best }, None)
            }
            // The queue is short: this number is enough.
            Trial::Running { .. } if waiting <= self.thresholds.warning => (Trial::Open, None),
            Trial::Running { looks, sum, best } => {
                let mean = (sum + rate) / f64::from(looks + 1);
                let helps = mean > TRIAL_GAIN * best.1;
                let best = if helps { (cap, mean) } else { best };
                if cap > 1 && mean * TRIAL_GAIN >= best.1 {
                    (Trial::Running { looks: 0, sum: 0.0, best }, Some(self.fewer(cap)))
                } else {
                    (Trial::Paused(PAUSE_LOOKS), Some(best.0))
                }
            }
        };
        self.trial = trial;
        next
    }

    /// ΔL / (l_w − l) ≥ T_down, which holds for every growth above the waterline; or the queue is
    /// full, and grows no more because the source is held back.
    fn must_lower(&self, before: u32, now: u32) -> bool {
        let Thresholds { queue, warning, down, .. } = self.thresholds;
        let room = f64::from(warning.saturating_sub(now));
        now >= queue || (now > before && f64::from(now - before) >= down * room)
    }

    /// ΔL / l′ ≥ T_up, or nothing waits: a frame that has just come, with which one looks, is no
    /// queue.
    fn may_raise(&self, before: u32, now: u32) -> bool {
        let gone = f64::from(before.saturating_sub(now));
        (before <= 1 && now <= 1)
            || (now < before && gone >= self.thresholds.up * f64::from(before))
    }
}

/// Nanoseconds that something takes: the mean of an interval, smoothed over intervals. One time by
/// itself tells little, for a processor may have been taken away meanwhile.
#[derive(Debug, Clone, Default)]
struct Mean {
    sum_ns: u64,
    times: u64,
    known: f64,
}

impl Mean {
    fn add(&mut self, ns: u64) {
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.times += 1;
    }

    /// An interval is over.
    fn smooth(&mut self, smoothing: f64) {
        let Self { sum_ns, times, known } = std::mem::take(self);
        let mean = sum_ns as f64 / times as f64;
        self.known = match times {
            0 => known,
            _ if known == 0.0 => mean,
            _ => smoothing * known + (1.0 - smoothing) * mean,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A monitor of 29 members whose frames take 10 µs and 5 µs a child.
    fn monitor() -> Monitor {
        let thresholds = Thresholds { interval_ns: 10 * MS, ..Thresholds::of_queue(64) };
        Monitor::new(thresholds, 29, 0)
    }

    fn arrive(monitor: &mut Monitor, frames: u32) {
        for _ in 0..frames {
            monitor.arrived(10_000);
            monitor.sent(1, 0, 0, 5_000);
        }
    }

    /// A frame to each of the members, which have passed it on after two hops' time.
    fn sends(monitor: &mut Monitor, seq: u64, at_ns: u64, [send_ns, hop_ns]: [u64; 2]) {
        monitor.arrived(1_000);
        for child in 1..30 {
            monitor.sent(child, seq, at_ns, send_ns);
            monitor.acknowledged(child, seq + 1, at_ns + 2 * hop_ns);
        }
    }

    #[test]
    fn a_hop_is_half_of_the_time_until_the_last_frame_is_acknowledged() {
        let mut monitor = monitor();
        monitor.sent(7, 0, 1_000, 10);
        monitor.sent(7, 1, 9_000, 10);
        monitor.sent(7, 2, 9_500, 10);
        monitor.acknowledged(8, 2, 10_000);
        monitor.acknowledged(7, 2, 11_000);
        monitor.acknowledged(7, 2, 99_000);
        monitor.look(10 * MS, 0, 5);
        assert_eq!(monitor.load().hop_ns, 1_000.0);
        monitor.acknowledged(7, 3, 15_500);
        monitor.look(20 * MS, 0, 5);
        assert_eq!(monitor.load().hop_ns, 2_000.0, "half of the old one stays");
    }

    #[test]
    fn sends_that_are_cheap_go_to_everybody_until_they_are_dear() {
        let mut monitor = monitor();
        sends(&mut monitor, 0, 0, [100, 10_000]);
        assert_eq!(monitor.look(10 * MS, 0, 5), Some(Advice::Raise(29)));
        sends(&mut monitor, 1, 10 * MS, [100, 10_000]);
        assert_eq!(monitor.look(20 * MS, 0, 29), None);
        // 24 sends of 1 µs against 4 hops of 5 µs: a tree is sooner, but hardly.
        let advice: Vec<_> = (2..10)
            .filter_map(|at| {
                sends(&mut monitor, at, at * 10 * MS, [1_000, 5_000]);
                monitor.look((at + 1) * 10 * MS, 0, 29)
            })
            .collect();
        assert_eq!(advice, []);
        let advice = (10..20).find_map(|at| {
            sends(&mut monitor, at, at * 10 * MS, [5_000, 5_000]);
            monitor.look((at + 1) * 10 * MS, 0, 29)
        });
        assert_eq!(advice, Some(Advice::Lower(5)));
    }

    #[test]
    fn over_racks_there_is_a_tree() {
        let mut monitor = monitor().over_racks(true);
        sends(&mut monitor, 0, 0, [100, 10_000]);
        assert_eq!(monitor.look(10 * MS, 0, 3), Some(Advice::Raise(5)));
        assert_eq!(monitor.look(20 * MS, 0, 5), None);
    }

    #[test]
    fn behind_everybody_comes_what_a_tree_has_at_most() {
        let mut monitor = monitor();
        let mut advice = vec![];
        for at in 0..3 {
            sends(&mut monitor, at, at * 10 * MS, [100, 10_000]);
            advice.extend(monitor.look((at + 1) * 10 * MS, 40 + at as u32, 29));
        }
        assert_eq!(advice, [Advice::Lower(5)], "to try whether it helps");
        // No number carries more: the source sends to everybody again.
        let (mut cap, mut caps) = (5, vec![]);
        for at in 3..3 + 5 * u64::from(TRIAL_LOOKS) {
            sends(&mut monitor, at, at * 10 * MS, [100, 10_000]);
            if let Some(Advice::Lower(next) | Advice::Raise(next)) =
                monitor.look((at + 1) * 10 * MS, 45, cap)
            {
                caps.push(next);
                cap = next;
            }
        }
        assert_eq!(caps, [4, 3, 2, 1, 29]);
    }

    #[test]
    fn nothing_is_said_before_an_interval_has_passed() {
        let mut monitor = monitor();
        arrive(&mut monitor, 1_000);
        assert_eq!(monitor.look(9 * MS, 60, 5), None);
        assert!(monitor.look(10 * MS, 60, 5).is_some());
    }

    #[test]
    fn a_growing_queue_lowers_the_cap_and_an_empty_one_raises_it() {
        let mut monitor = monitor();
        // 40,000 a second of 10 µs + 5 µs a child: three children fit, barely.
        arrive(&mut monitor, 400);
        assert_eq!(monitor.look(10 * MS, 20, 5), Some(Advice::Lower(2)), "20 of 32 at once");
        arrive(&mut monitor, 400);
        assert_eq!(monitor.look(20 * MS, 20, 2), None, "it does not grow");
        arrive(&mut monitor, 10);
        assert_eq!(monitor.look(30 * MS, 2, 2), Some(Advice::Raise(5)), "most of it is gone");
        monitor.look(40 * MS, 0, 4);
        assert_eq!(monitor.look(50 * MS, 0, 4), Some(Advice::Raise(5)), "nothing waits");
        assert_eq!(monitor.look(60 * MS, 0, 5), None, "no more is of use");
    }

    #[test]
    fn a_queue_that_is_full_lowers_the_cap_though_it_cannot_grow() {
        let mut monitor = monitor();
        arrive(&mut monitor, 400);
        assert_eq!(monitor.look(10 * MS, 64, 5), Some(Advice::Lower(2)));
        arrive(&mut monitor, 600);
        assert_eq!(monitor.look(20 * MS, 64, 2), Some(Advice::Lower(1)));
        arrive(&mut monitor, 600);
        assert_eq!(monitor.look(30 * MS, 64, 1), None);
    }

    #[test]
    fn a_little_growth_far_from_the_waterline_is_borne() {
        let mut monitor = monitor();
        arrive(&mut monitor, 10);
        assert_eq!(monitor.look(10 * MS, 4, 5), None);
        arrive(&mut monitor, 400);
        assert_eq!(monitor.look(20 * MS, 40, 5), Some(Advice::Lower(2)));
        arrive(&mut monitor, 400);
        assert_eq!(monitor.look(30 * MS, 41, 1), None, "one child is the least");
        arrive(&mut monitor, 400);
        assert_eq!(monitor.look(40 * MS, 42, 5), Some(Advice::Lower(2)), "above it one acts");
    }

    #[test]
    fn a_queue_that_the_cap_can_carry_lowers_it_only_if_it_stays_above_the_waterline() {
        let mut monitor = monitor();
        let mut look = |at: u64, waiting: u32| {
            arrive(&mut monitor, 10);
            monitor.look(at * MS, waiting, 5)
        };
        for (at, waiting) in [(10, 30), (20, 33), (30, 34), (40, 31), (50, 33), (60, 34)] {
            assert_eq!(look(at, waiting), None, "a child was held up");
        }
        assert_eq!(look(70, 35), Some(Advice::Lower(4)));
    }

    /// Follows the advice for `looks` looks at a queue that grows above the waterline. `frames`
    /// gives the frames that come in a look by the number of children. Gives the numbers of
    /// children that were advised.
    fn followed(
        monitor: &mut Monitor,
        at: &mut u64,
        looks: u32,
        mut cap: u32,
        frames: impl Fn(u32) -> u32,
    ) -> Vec<u32> {
        let mut caps = vec![];
        for number in 0..looks {
            *at += 10;
            arrive(monitor, frames(cap));
            if let Some(Advice::Lower(next) | Advice::Raise(next)) =
                monitor.look(*at * MS, 40 + number % 20, cap)
            {
                caps.push(next);
                cap = next;
            }
        }
        caps
    }

    #[test]
    fn numbers_of_children_that_are_of_no_use_are_given_back_and_not_tried_again_soon() {
        let (mut monitor, mut at) = (monitor(), 0);
        let mut follow = |looks, cap| followed(&mut monitor, &mut at, looks, cap, |_| 10);
        assert_eq!(follow(TRIAL_AFTER - 1, 3), []);
        assert_eq!(follow(2 + 2 * TRIAL_LOOKS, 3), [2, 1, 3]);
        assert_eq!(follow(PAUSE_LOOKS - 1, 3), []);
        assert_eq!(follow(3, 3)[0], 2);
    }

    #[test]
    fn the_number_of_children_stays_with_which_most_goes_out() {
        // Relays are the bottleneck, of which the load of the source shows nothing.
        for (frames, way, best) in [
            ([0, 135, 121, 110, 100, 100], &[4, 3, 2, 1][..], 1),
            ([0, 101, 120, 110, 100, 100], &[4, 3, 2, 1, 2], 2),
            // A trial ends at a number that carries less.
            ([0, 999, 999, 90, 110, 100], &[4, 3, 4], 4),
        ] {
            let (mut monitor, mut at) = (monitor(), 0);
            let mut follow = |looks, cap| {
                followed(&mut monitor, &mut at, looks, cap, |cap| frames[cap as usize])
            };
            let trials = way.len() as u32;
            assert_eq!(follow(TRIAL_AFTER + trials * TRIAL_LOOKS, 5), way);
            assert_eq!(follow(PAUSE_LOOKS - TRIAL_LOOKS, best), []);
        }
    }

    #[test]
    fn more_than_one_child_are_tried_again_where_one_is_not_enough() {
        let (mut monitor, mut at) = (monitor(), 0);
        let frames = |cap| if cap == 1 { 100 } else { 80 };
        let caps = followed(&mut monitor, &mut at, TRIAL_AFTER + TRIAL_LOOKS, 1, frames);
        assert_eq!(caps, [5, 1], "they carry less");
        let mut follow = |looks| followed(&mut monitor, &mut at, looks, 1, |_| 100);
        assert_eq!(follow(PAUSE_LOOKS - 1), []);
        assert_eq!(follow(3 + 5 * TRIAL_LOOKS), [5, 4, 3, 2, 1], "they carry as much");
    }

    #[test]
    fn children_that_are_enough_are_kept() {
        let (mut monitor, mut at) = (monitor(), 0);
        assert_eq!(followed(&mut monitor, &mut at, TRIAL_AFTER, 3, |_| 10), [2]);
        for _ in 0..3 * TRIAL_LOOKS {
            at += 10;
            arrive(&mut monitor, 10);
            assert_eq!(monitor.look(at * MS, 30, 2), None);
        }
        assert_eq!(monitor.trial, Trial::Open);
    }

    #[test]
    fn one_long_time_is_a_part_of_the_mean() {
        let mut monitor = monitor();
        arrive(&mut monitor, 99);
        monitor.arrived(10_000);
        monitor.sent(1, 0, 0, 4_005_000);
        monitor.look(10 * MS, 0, 5);
        assert_eq!((monitor.load().encode_ns, monitor.load().send_ns), (10_000.0, 45_000.0));
        arrive(&mut monitor, 1);
        monitor.look(20 * MS, 0, 5);
        assert_eq!(monitor.load().send_ns, 25_000.0);
    }

    #[test]
    fn the_rate_is_smoothed() {
        let mut monitor = monitor();
        arrive(&mut monitor, 100);
        monitor.look(10 * MS, 0, 5);
        assert_eq!(monitor.load().per_second, 10_000.0);
        monitor.look(20 * MS, 0, 5);
        assert_eq!(monitor.load().per_second, 5_000.0);
    }
}
