//! When the cap of a tree is to change (W7, W8).

use super::degree::{Load, degree, degree_max};

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
    /// For a queue of so many frames. The paper names the thresholds and not their values: these
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

/// What a look came to.
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
    encode_ns: f64,
    send_ns: f64,
    /// l′: the queue at the last look.
    before: u32,
}

impl Monitor {
    /// Begins to watch at `now_ns`, over a tree of so many members.
    pub fn new(thresholds: Thresholds, members: u32, now_ns: u64) -> Self {
        Self {
            thresholds,
            members,
            since_ns: now_ns,
            arrived: 0,
            per_second: None,
            encode_ns: 0.0,
            send_ns: 0.0,
            before: 0,
        }
    }

    /// A frame has come, whose encoding took so long.
    pub fn arrived(&mut self, encode_ns: u64) {
        self.arrived += 1;
        smooth(&mut self.encode_ns, self.thresholds.smoothing, encode_ns as f64);
    }

    /// A frame was sent to a child, which took so long.
    pub fn sent(&mut self, send_ns: u64) {
        smooth(&mut self.send_ns, self.thresholds.smoothing, send_ns as f64);
    }

    /// What is known of the load.
    pub fn load(&self) -> Load {
        let per_second = self.per_second.unwrap_or(0.0);
        Load { per_second, encode_ns: self.encode_ns, send_ns: self.send_ns }
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
        self.since_ns = now_ns;
        self.arrived = 0;
        let before = std::mem::replace(&mut self.before, waiting);
        let load = self.load();
        let most =
            |per_second| degree(self.thresholds.queue, Load { per_second, ..load }, self.members);
        let affordable = most(per_second);
        match () {
            () if self.must_lower(before, waiting) && cap > 1 => {
                // The queue has shown that more comes: the mean over the past would be behind it.
                Some(Advice::Lower(most(per_second.max(rate)).min(cap - 1)))
            }
            () if self.may_raise(before, waiting) && affordable > cap => {
                Some(Advice::Raise(affordable.min(degree_max(self.members))))
            }
            () => None,
        }
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

fn smooth(value: &mut f64, smoothing: f64, new: f64) {
    *value = if *value == 0.0 { new } else { smoothing * *value + (1.0 - smoothing) * new };
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
        arrive(&mut monitor, 10);
        assert_eq!(
            monitor.look(20 * MS, 40, 5),
            Some(Advice::Lower(4)),
            "above it any growth acts"
        );
        arrive(&mut monitor, 10);
        assert_eq!(monitor.look(30 * MS, 41, 1), None, "one child is the least");
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
