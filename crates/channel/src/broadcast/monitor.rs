//! When the cap of a tree is to change (W7, W8).

use super::degree::{SourceLoad, degree};

/// Looks in a row that find the queue above the waterline before fewer children than are affordable
/// are tried: one may find what was held up for a moment.
const TRIAL_AFTER: u32 = 3;
/// For this many looks they are tried.
const TRIAL_LOOKS: u32 = 8;
/// By so much more must go out then that they are of use.
const TRIAL_GAIN: f64 = 1.05;
/// Looks for which they are not tried again, if they were of none.
const PAUSE_LOOKS: u32 = 400;

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
    /// l′: the queue at the last look.
    before: u32,
    /// Looks in a row that found the queue above the waterline.
    crowded: u32,
    trial: Trial,
}

/// Whether fewer children help where the formula says that the present ones are affordable. They
/// do if what is short is not the time that sending takes, but the way out of the machine; they do
/// not, and make the way longer, if a member is slow.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trial {
    /// To be tried when it is called for.
    Open,
    /// Fewer are tried.
    Running {
        /// For this many looks by now.
        looks: u32,
        /// Frames that came in a second before. Above the waterline as many come as go.
        before: f64,
        /// The sum over the looks since.
        since: f64,
    },
    /// They did not help; not to be tried again for this many looks.
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
            before: 0,
            crowded: 0,
            trial: Trial::Open,
        }
    }

    /// A frame has come, whose encoding took so long.
    pub fn arrived(&mut self, encode_ns: u64) {
        self.arrived += 1;
        self.encode_ns.add(encode_ns);
    }

    /// A frame was sent to a child, which took so long.
    pub fn sent(&mut self, send_ns: u64) {
        self.send_ns.add(send_ns);
    }

    /// The current load.
    pub fn load(&self) -> SourceLoad {
        let per_second = self.per_second.unwrap_or(0.0);
        SourceLoad { per_second, encode_ns: self.encode_ns.known, send_ns: self.send_ns.known }
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
        self.since_ns = now_ns;
        self.arrived = 0;
        let before = std::mem::replace(&mut self.before, waiting);
        self.crowded = if waiting > self.thresholds.warning { self.crowded + 1 } else { 0 };
        let load = self.load();
        let (queue, members) = (self.thresholds.queue, self.members);
        let most = |per_second| degree(queue, SourceLoad { per_second, ..load }, members);
        let affordable = most(per_second);
        let in_vain = self.tried_in_vain(waiting, rate);
        let grows = self.must_lower(before, waiting);
        match () {
            () if in_vain && affordable > cap => Some(Advice::Raise(affordable)),
            () if grows && cap > 1 => {
                // The queue has shown that more comes: the mean over the past would be behind it.
                let needed = most(per_second.max(rate));
                let tries = needed >= cap && self.may_try();
                if tries {
                    self.trial = Trial::Running { looks: 0, before: per_second, since: 0.0 };
                }
                let lower = if tries { cap - 1 } else { needed };
                (lower < cap).then_some(Advice::Lower(lower))
            }
            // Fewer than one there cannot be, and that was not enough either.
            () if grows && affordable > cap && self.may_try() => {
                self.trial = Trial::Paused(PAUSE_LOOKS);
                Some(Advice::Raise(affordable))
            }
            () if self.may_raise(before, waiting) && affordable > cap => {
                Some(Advice::Raise(affordable))
            }
            () => None,
        }
    }

    /// Whether another number of children than is affordable may be tried: a queue that is below
    /// the waterline again was only held up.
    fn may_try(&self) -> bool {
        self.crowded >= TRIAL_AFTER && self.trial == Trial::Open
    }

    /// A look has passed; whether fewer children were tried and turn out to be of no use.
    fn tried_in_vain(&mut self, waiting: u32, rate: f64) -> bool {
        let (next, in_vain) = match self.trial {
            Trial::Open | Trial::Paused(0) => (Trial::Open, false),
            Trial::Paused(looks) => (Trial::Paused(looks - 1), false),
            Trial::Running { looks, before, since } => {
                let (looks, since) = (looks + 1, since + rate);
                let helps = waiting <= self.thresholds.warning
                    || since > TRIAL_GAIN * before * f64::from(looks);
                match () {
                    () if looks < TRIAL_LOOKS => (Trial::Running { looks, before, since }, false),
                    () if helps => (Trial::Open, false),
                    () => (Trial::Paused(PAUSE_LOOKS), true),
                }
            }
        };
        self.trial = next;
        in_vain
    }

    /// ΔL / (l_w − l) ≥ T_down, which holds for every growth above the waterline.
    fn must_lower(&self, before: u32, now: u32) -> bool {
        let Thresholds { warning, down, .. } = self.thresholds;
        let room = f64::from(warning.saturating_sub(now));
        now > before && f64::from(now - before) >= down * room
    }

    /// ΔL / l′ ≥ T_up, or l = l′ = 0.
    fn may_raise(&self, before: u32, now: u32) -> bool {
        let gone = f64::from(before.saturating_sub(now));
        (before == 0 && now == 0)
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
            monitor.sent(5_000);
        }
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

    /// Looks of a queue above the waterline that grows, beginning at `at`; says what they advise.
    fn crowded(monitor: &mut Monitor, at: &mut u64, looks: u32, cap: u32) -> Vec<Advice> {
        let look = |number| {
            *at += 10;
            arrive(monitor, 10);
            monitor.look(*at * MS, 40 + number % 20, cap)
        };
        (0..looks).filter_map(look).collect()
    }

    #[test]
    fn fewer_children_that_are_of_no_use_are_given_back_and_not_tried_again_soon() {
        let (mut monitor, mut at) = (monitor(), 0);
        assert_eq!(crowded(&mut monitor, &mut at, TRIAL_AFTER - 1, 3), []);
        assert_eq!(crowded(&mut monitor, &mut at, 2, 3), [Advice::Lower(2)]);
        let advice = crowded(&mut monitor, &mut at, TRIAL_LOOKS, 2);
        assert_eq!(advice, [Advice::Raise(5)], "what the formula affords");
        assert_eq!(crowded(&mut monitor, &mut at, PAUSE_LOOKS, 5), []);
        assert_eq!(crowded(&mut monitor, &mut at, 3, 5)[0], Advice::Lower(4));
    }

    #[test]
    fn one_child_that_is_not_enough_is_given_up() {
        let (mut monitor, mut at) = (monitor(), 0);
        assert_eq!(crowded(&mut monitor, &mut at, TRIAL_AFTER, 1), [Advice::Raise(5)]);
        assert_eq!(crowded(&mut monitor, &mut at, PAUSE_LOOKS, 1), []);
    }

    #[test]
    fn fewer_children_that_help_are_kept() {
        // Nothing waits behind them, or more goes out.
        for (waiting, frames) in [(30, 10), (50, 11)] {
            let (mut monitor, mut at) = (monitor(), 0);
            assert_eq!(crowded(&mut monitor, &mut at, TRIAL_AFTER, 2), [Advice::Lower(1)]);
            for look in 4..22 {
                arrive(&mut monitor, frames);
                assert_eq!(monitor.look(look * 10 * MS, waiting, 1), None);
            }
            assert_eq!(monitor.trial, Trial::Open);
        }
    }

    #[test]
    fn one_long_time_is_a_part_of_the_mean() {
        let mut monitor = monitor();
        arrive(&mut monitor, 99);
        monitor.arrived(10_000);
        monitor.sent(4_005_000);
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
