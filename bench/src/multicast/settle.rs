//! Effects of a change of rate: how long fewer requests arrive than come, and how long they take
//! longer than before.

/// Requests are late when half of them take this many times what they took before the change.
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
    /// The longest time in which fewer than nine of ten arrived of those that were due, while the
    /// rate lasted, in nanoseconds.
    pub dip_ns: u64,
    /// The longest time in which requests were late, in nanoseconds; `None` if they still were when
    /// the rate ended, or if the queue grew all the while: latency never came back.
    pub late_ns: Option<u64>,
    /// The median latency before the change, by which requests are late: in the second half of the
    /// last rate whose queue had an end.
    pub before_ns: f64,
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
    let mut arrived: Vec<u64> = times.iter().map(|time| time.1).collect();
    arrived.sort_unstable();
    let phase = |number: usize| RatePhase::of(times, number as u64 * length_ns, length_ns);
    let first = phase(0);
    // Behind a queue that grew from the beginning nothing is known of the latency before.
    let mut before_ns = (!first.grows()).then(|| first.steady_ns());
    let mut changes = vec![];
    for (number, &per_second) in rates.iter().enumerate().skip(1) {
        let own = phase(number);
        let (at_ns, steady_ns) = (own.at_ns, own.steady_ns());
        let late_ns = before_ns.and_then(|before| own.late_ns((LATE * before).max(LATE_NS_MIN)));
        let dip_ns = dip(&arrived, weight, per_second, at_ns, at_ns + length_ns);
        let change = RateChange {
            per_second,
            at_ns,
            dip_ns,
            late_ns,
            before_ns: before_ns.unwrap_or(f64::NAN),
            steady_ns,
        };
        if late_ns.is_some() {
            before_ns = Some(steady_ns);
        }
        changes.push(change);
    }
    changes
}

/// The requests that were due while a rate lasted.
struct RatePhase<'a> {
    times: &'a [(u64, u64)],
    at_ns: u64,
    length_ns: u64,
}

impl<'a> RatePhase<'a> {
    fn of(times: &'a [(u64, u64)], at_ns: u64, length_ns: u64) -> Self {
        let since = times.partition_point(|time| time.0 < at_ns);
        let until = times.partition_point(|time| time.0 < at_ns + length_ns);
        Self { times: &times[since..until], at_ns, length_ns }
    }

    /// The median latency of those that were due between two quarters.
    fn median_ns(&self, quarters: [u64; 2]) -> f64 {
        let [from, to] = quarters.map(|quarter| {
            let at_ns = self.at_ns + self.length_ns / 4 * quarter;
            match quarter {
                4 => self.times.len(),
                _ => self.times.partition_point(|time| time.0 < at_ns),
            }
        });
        median(self.times[from..to].iter().map(latency))
    }

    fn steady_ns(&self) -> f64 {
        self.median_ns([2, 4])
    }

    /// Whether requests waited ever longer: the queue has no bound.
    fn grows(&self) -> bool {
        let [second, last] = [[1, 2], [3, 4]].map(|quarters| self.median_ns(quarters));
        last > LATE * second + LATE_NS_MIN
    }

    /// The longest time in which the median request took longer than `late`; `None` if that was so
    /// at the end, or the queue grew.
    fn late_ns(&self, late: f64) -> Option<u64> {
        let mut spell = Spell::default();
        for some in self.times.chunk_by(|a, b| a.0 / BUCKET_NS == b.0 / BUCKET_NS) {
            spell.goes_on(median(some.iter().map(latency)) > late);
        }
        (spell.now_ns == 0 && !self.grows()).then_some(spell.longest_ns)
    }
}

fn latency(time: &(u64, u64)) -> f64 {
    time.1.saturating_sub(time.0) as f64
}

/// The longest time in a row in which too few arrived. `arrived` is in order.
fn dip(arrived: &[u64], weight: f64, per_second: f64, from_ns: u64, to_ns: u64) -> u64 {
    let due = per_second * BUCKET_NS as f64 / 1e9;
    let mut spell = Spell::default();
    for at in (from_ns..=to_ns.saturating_sub(BUCKET_NS)).step_by(BUCKET_NS as usize) {
        let before = |ns: u64| arrived.partition_point(|&time| time < ns);
        let count = before(at + BUCKET_NS) - before(at);
        // One request more or less stands at each end.
        spell.goes_on((count as f64 + 1.0) * weight < DIP * due);
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

    fn changed(times: &[(u64, u64)]) -> RateChange {
        settle(times, 1.0, &[1e3, 2e3], 1_000 * MS)[0]
    }

    #[test]
    fn a_hold_up_is_a_dip_and_lateness() {
        let calm = changed(&times(0, 0));
        assert_eq!((calm.dip_ns, calm.late_ns, calm.at_ns), (0, Some(0), 1_000 * MS));
        assert_eq!((calm.before_ns, calm.steady_ns), (1e5, 1e5));
        let held = changed(&times(1_000 * MS, 1_080 * MS));
        assert_eq!((held.dip_ns, held.late_ns), (80 * MS, Some(80 * MS)));
        // Late in the time of the rate counts as well.
        let held = changed(&times(1_700 * MS, 1_850 * MS));
        assert_eq!((held.dip_ns, held.late_ns), (150 * MS, Some(150 * MS)));
    }

    #[test]
    fn a_new_latency_that_stays_is_not_the_one_before() {
        let mut slow = times(0, 0);
        let of_rate = slow.iter_mut().filter(|time| time.0 >= 1_000 * MS);
        of_rate.for_each(|time| time.1 += 3 * MS);
        let change = changed(&slow);
        assert_eq!((change.before_ns, change.late_ns), (1e5, None), "{change:?}");
        assert!(change.steady_ns > 3e6);
    }

    #[test]
    fn a_queue_without_bound_never_settles() {
        // Of two that are due one arrives.
        let mut grows = times(0, 0);
        let of_rate = grows.iter_mut().filter(|time| time.0 >= 1_000 * MS);
        of_rate.for_each(|time| time.1 += time.0 - 1_000 * MS);
        let change = changed(&grows);
        assert_eq!(change.late_ns, None, "{change:?}");
        assert!(change.dip_ns > 900 * MS, "{change:?}");
        // A queue that grew before the change is no latency to come back to.
        let mut before = times(0, 0);
        let of_rate = before.iter_mut().filter(|time| time.0 < 1_000 * MS);
        of_rate.for_each(|time| time.1 += time.0 / 2);
        assert_eq!(changed(&before).late_ns, None);
        // Nor is that of a rate whose queue grew: the third compares with the first.
        let three = |late_ns: u64| {
            let mut times = times(0, 0);
            times.extend((0..2_000).map(|at| (2_000 * MS + at * MS / 2, 2_000 * MS + at * MS)));
            times.extend(
                (0..1_000).map(|at| (3_000 * MS + at * MS, 3_000 * MS + at * MS + late_ns)),
            );
            settle(&times, 1.0, &[1e3, 2e3, 2e3, 1e3], 1_000 * MS)
        };
        let late: Vec<_> = three(MS / 2).iter().map(|change| change.late_ns).collect();
        assert_eq!(late, [Some(0), None, Some(0)]);
        let late: Vec<_> = three(5 * MS).iter().map(|change| change.late_ns).collect();
        assert_eq!(late, [Some(0), None, None], "as long as in the queue, longer than before it");
    }

    #[test]
    fn of_no_requests_nothing_is_known() {
        let change = changed(&[]);
        assert_eq!((change.dip_ns, change.late_ns), (1_000 * MS, Some(0)));
        assert!(settle(&[], 1.0, &[1e3], MS).is_empty());
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
