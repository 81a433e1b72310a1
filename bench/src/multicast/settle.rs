//! Effects of a change of rate: how long fewer requests arrive than come, and how long they take
//! longer than they will.

/// Requests are late when half of them take this many times what those of the same rate take in the
/// end.
const LATE: f64 = 2.0;

/// Below this latency none are late: the timers and the scheduler of a machine make as much.
const LATE_NS_MIN: f64 = 1e6;

/// Arrivals are counted in this many nanoseconds.
pub(super) const BUCKET_NS: u64 = 10_000_000;

/// In a dip fewer than this share of what is due arrives.
const DIP: f64 = 0.9;

/// The effect of the change to a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateChange {
    /// The rate that came, in requests a second.
    pub per_second: f64,
    /// When it came, in nanoseconds.
    pub at_ns: u64,
    /// For how long fewer than nine of ten arrived of those that were due, at most, in
    /// nanoseconds.
    pub dip_ns: u64,
    /// For how long requests were late, at most, in nanoseconds.
    pub late_ns: u64,
    /// The median latency in the second half of the time of this rate.
    pub steady_ns: f64,
}

/// The effect of each rate but the first. `times` says of requests when they were due and when all
/// instances had them, each standing for `weight`; each rate lasts `length_ns`.
pub(super) fn settle(
    times: &[(u64, u64)],
    weight: f64,
    rates: &[f64],
    length_ns: u64,
) -> Vec<RateChange> {
    let step = |(number, &per_second): (usize, &f64)| {
        let at_ns = number as u64 * length_ns;
        let (half, end) = (at_ns + length_ns / 2, at_ns + length_ns);
        let first = times.partition_point(|time| time.0 < at_ns);
        let last = times.partition_point(|time| time.0 < end);
        let own = &times[first..last];
        let latency = |time: &(u64, u64)| time.1.saturating_sub(time.0) as f64;
        let (first, calm) = own.split_at(own.partition_point(|time| time.0 < half));
        let steady_ns = median(calm.iter().map(latency));
        let late = (LATE * steady_ns).max(LATE_NS_MIN);
        let mut spell = Spell::default();
        for some in first.chunk_by(|a, b| a.0 / BUCKET_NS == b.0 / BUCKET_NS) {
            spell.goes_on(median(some.iter().map(latency)) > late);
        }
        let dip_ns = dip(times, weight, per_second, at_ns, half);
        RateChange { per_second, at_ns, dip_ns, late_ns: spell.longest_ns, steady_ns }
    };
    rates.iter().enumerate().skip(1).map(step).collect()
}

/// The longest time in a row in which too few arrived.
fn dip(times: &[(u64, u64)], weight: f64, per_second: f64, from_ns: u64, to_ns: u64) -> u64 {
    let due = per_second * BUCKET_NS as f64 / 1e9;
    let mut spell = Spell::default();
    for at in (from_ns..to_ns.saturating_sub(BUCKET_NS)).step_by(BUCKET_NS as usize) {
        let arrived = times.iter().filter(|time| (at..at + BUCKET_NS).contains(&time.1)).count();
        // One request more or less stands at each end.
        spell.goes_on((arrived as f64 + 1.0) * weight < DIP * due);
    }
    spell.longest_ns
}

/// The longest time in a row in which something was so.
#[derive(Default)]
struct Spell {
    now_ns: u64,
    longest_ns: u64,
}

impl Spell {
    /// Whether it was so in the next bucket.
    fn goes_on(&mut self, so: bool) {
        self.now_ns = if so { self.now_ns + BUCKET_NS } else { 0 };
        self.longest_ns = self.longest_ns.max(self.now_ns);
    }
}

/// The middle value; zero of none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// How many arrived a second, by the second at which each bucket begins.
pub(super) fn arrivals(times: &[(u64, u64)], weight: f64) -> Vec<(f64, f64)> {
    let buckets = times.iter().map(|time| time.1 / BUCKET_NS).max().map_or(0, |last| last + 1);
    let mut counts = vec![0_u64; buckets as usize];
    times.iter().for_each(|time| counts[(time.1 / BUCKET_NS) as usize] += 1);
    let seconds = BUCKET_NS as f64 / 1e9;
    let rate = |(at, &count): (usize, &u64)| (at as f64 * seconds, count as f64 * weight / seconds);
    counts.iter().enumerate().map(rate).collect()
}

/// The mean milliseconds of the requests that were due in each bucket.
pub(super) fn latencies(times: &[(u64, u64)]) -> Vec<(f64, f64)> {
    let mut points = vec![];
    for own in times.chunk_by(|a, b| a.0 / BUCKET_NS == b.0 / BUCKET_NS) {
        let sum: u64 = own.iter().map(|time| time.1.saturating_sub(time.0)).sum();
        let at = (own[0].0 / BUCKET_NS * BUCKET_NS) as f64 / 1e9;
        points.push((at, sum as f64 / own.len() as f64 / 1e6));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// One request a millisecond for a second, then two; those due from `from` on are held up until
    /// `to`.
    fn times(from: u64, to: u64) -> Vec<(u64, u64)> {
        let due = (0..1_000).map(|at| at * MS).chain((0..2_000).map(|at| 1_000 * MS + at * MS / 2));
        let arrives = |at: u64| if (from..to).contains(&at) { to } else { at + MS / 10 };
        due.map(|at| (at, arrives(at))).collect()
    }

    #[test]
    fn a_hold_up_is_a_dip_and_lateness() {
        let step = |from, to| settle(&times(from, to), 1.0, &[1e3, 2e3], 1_000 * MS)[0];
        let calm = step(0, 0);
        assert_eq!((calm.dip_ns, calm.late_ns, calm.at_ns), (0, 0, 1_000 * MS));
        assert_eq!(calm.steady_ns, 1e5);
        let held = step(1_000 * MS, 1_080 * MS);
        assert_eq!((held.dip_ns, held.late_ns), (80 * MS, 80 * MS));
    }

    #[test]
    fn what_is_drawn_adds_up() {
        let times = times(0, 0);
        let drawn = arrivals(&times, 64.0);
        let sum: f64 = drawn.iter().map(|point| point.1 * 0.01).sum();
        assert!((sum - 3_000.0 * 64.0).abs() < 1e-3, "{sum}");
        assert_eq!(latencies(&times).len(), 200);
        assert!(latencies(&times).iter().all(|point| (point.1 - 0.1).abs() < 1e-9));
    }
}
