//! Event-time latency (A7): how long after a window's last row was due its rows are emitted.
//!
//! The last row of a window is the last of the stream before the window's end, which a
//! [`Probe`] computes from the window alone. Windows that the end of the input ends are left out,
//! and so are those of the first tenth of a run.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;

use crate::laps::lap_ms;
use crate::paced::Schedule;
use crate::task::WorkloadWindow;

/// The event time of the generator's first row: 2024-01-01.
const FIRST_MS: i64 = 1_704_067_200_000;

/// The schedule of a window's rows.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// The pace of the rows.
    pub schedule: Schedule,
    /// The windows.
    pub window: WorkloadWindow,
    /// Rows of a lap.
    pub lap_rows: u64,
    /// Laps.
    pub laps: u64,
    /// Nanoseconds of event time between two rows.
    pub interval_ns: u64,
}

impl Probe {
    /// The last row before the end of a window; `None` if the input ends before the window does.
    fn last_row(&self, start_ms: i64) -> Option<u64> {
        let end_ms = start_ms.checked_add(self.window.size_ms)?.checked_sub(FIRST_MS)?;
        let lap_ms = lap_ms(self.lap_rows, self.interval_ns).max(1);
        let lap = u64::try_from((end_ms - 1).div_euclid(lap_ms)).ok()?;
        if lap >= self.laps {
            return None;
        }
        let within_ms = (end_ms - lap as i64 * lap_ms) as u64;
        let rows = (within_ms * 1_000_000).div_ceil(self.interval_ns.max(1)).min(self.lap_rows);
        // A watermark that passes the end has come with a row behind it.
        let last = lap * self.lap_rows + rows.checked_sub(1)?;
        (last + 1 < self.laps * self.lap_rows).then_some(last)
    }

    /// Counts result rows whose windows begin at `starts`, emitted at `at_ns`.
    pub(crate) fn take(&self, starts: &[i64], at_ns: u64, latencies: &mut Latencies) {
        let rows = self.laps * self.lap_rows;
        for same in starts.chunk_by(|a, b| a == b) {
            let Some(last) = same.first().and_then(|start| self.last_row(*start)) else { continue };
            let due_ns = self.schedule.due_ns(last);
            let latency = at_ns.saturating_sub(due_ns);
            let half = match last {
                _ if last < rows / 10 => continue,
                _ if last < rows * 11 / 20 => &mut latencies.early,
                _ => &mut latencies.late,
            };
            half.record(latency, same.len() as u64);
            latencies.window(due_ns, at_ns);
        }
    }

    /// When the last row is due, in nanoseconds since 1970.
    pub(crate) fn end_ns(&self) -> u64 {
        self.schedule.due_ns((self.lap_rows * self.laps).saturating_sub(1))
    }
}

/// Latencies of result rows, of the two halves of a run.
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    /// Of windows of the first half, but for the first tenth of the run.
    pub early: LatencyHistogram,
    /// Of windows of the second half.
    pub late: LatencyHistogram,
    /// By when the last row of a window was due, when the last of its results was emitted, in
    /// nanoseconds since 1970.
    windows: BTreeMap<u64, u64>,
}

impl Latencies {
    /// Adds those of others.
    pub fn add(&mut self, other: &Self) {
        self.early.add(&other.early);
        self.late.add(&other.late);
        other.windows.iter().for_each(|(&due_ns, &at_ns)| self.window(due_ns, at_ns));
    }

    fn window(&mut self, due_ns: u64, at_ns: u64) {
        let last = self.windows.entry(due_ns).or_default();
        *last = at_ns.max(*last);
    }

    /// Windows that were due at `due_ns` or before, and those of them that had been emitted at
    /// `end_ns`.
    pub fn windows(&self, due_ns: u64, end_ns: u64) -> WindowCount {
        let due = self.windows.range(..=due_ns);
        let emitted = due.clone().filter(|window| *window.1 <= end_ns).count() as u64;
        WindowCount { due: due.count() as u64, emitted }
    }

    /// Of both halves.
    pub fn all(&self) -> LatencyHistogram {
        let mut all = self.early.clone();
        all.add(&self.late);
        all
    }

    /// As bytes, for another node.
    pub fn encode(&self) -> Vec<u8> {
        let (early, late) = (self.early.words(), self.late.words());
        let lengths = [early.len() as u64, late.len() as u64];
        let windows = self.windows.iter().flat_map(|(&due_ns, &at_ns)| [due_ns, at_ns]);
        let words = lengths.into_iter().chain(early).chain(late).chain(windows);
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// From the bytes of [`Latencies::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let ([early, late], rest) = words.split_first_chunk()?;
        let (early, rest) = rest.split_at_checked(usize::try_from(*early).ok()?)?;
        let (late, windows) = rest.split_at_checked(usize::try_from(*late).ok()?)?;
        let windows = windows.as_chunks::<2>().0.iter().map(|&[due_ns, at_ns]| (due_ns, at_ns));
        Some(Self {
            early: LatencyHistogram::of_words(early),
            late: LatencyHistogram::of_words(late),
            windows: windows.collect(),
        })
    }
}

/// How many windows a run has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowCount {
    /// Those that were due.
    pub due: u64,
    /// Those of them whose results had been emitted.
    pub emitted: u64,
}

/// Nanoseconds, to three digits, of a microsecond to an hour: what is outside counts as the bound.
#[derive(Clone)]
pub struct LatencyHistogram(Histogram<u64>);

impl LatencyHistogram {
    const LEAST_NS: u64 = 1_000;
    const MOST_NS: u64 = 3_600_000_000_000;

    fn record(&mut self, ns: u64, count: u64) {
        // Saturating: no value is refused.
        self.0.saturating_record_n(ns.clamp(Self::LEAST_NS, Self::MOST_NS), count);
    }

    fn add(&mut self, other: &Self) {
        for value in other.0.iter_recorded() {
            self.record(value.value_iterated_to(), value.count_at_value());
        }
    }

    fn words(&self) -> Vec<u64> {
        let each = self.0.iter_recorded();
        each.flat_map(|value| [value.value_iterated_to(), value.count_at_value()]).collect()
    }

    fn of_words(words: &[u64]) -> Self {
        let mut times = Self::default();
        words.as_chunks::<2>().0.iter().for_each(|&[ns, count]| times.record(ns, count));
        times
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Seconds that this share of them, of 0 to 1, does not exceed; zero if there are none.
    pub fn quantile(&self, share: f64) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.value_at_quantile(share) as f64 * 1e-9 }
    }

    /// As a JSON object, in seconds.
    pub fn json(&self) -> String {
        let [p50, p90, p99, p999, most] = self.figures();
        format!(
            "{{\"count\":{},\"p50\":{p50:e},\"p90\":{p90:e},\"p99\":{p99:e},\"p99.9\":{p999:e},\
             \"max\":{most:e}}}",
            self.count()
        )
    }

    fn figures(&self) -> [f64; 5] {
        [0.5, 0.9, 0.99, 0.999, 1.0].map(|share| self.quantile(share))
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        // Bounds and digits are constants that the crate takes.
        let histogram = Histogram::new_with_bounds(Self::LEAST_NS, Self::MOST_NS, 3);
        Self(histogram.unwrap_or_else(|error| unreachable!("constant bounds: {error}")))
    }
}

impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} times: {self}", self.count())
    }
}

impl fmt::Display for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p90, p99, p999, most] = self.figures().map(|seconds| seconds * 1e3);
        write!(
            f,
            "{p50:.3} ms median, {p90:.3} ms p90, {p99:.3} ms p99, {p999:.3} ms p99.9, \
             {most:.3} ms at most"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(rate: f64) -> Probe {
        Probe {
            schedule: Schedule { start_ns: 1_000_000_000, rate },
            window: WorkloadWindow { time: "t", size_ms: 10, slide_ms: 10 },
            lap_rows: 50,
            laps: 2,
            interval_ns: 3_000_000,
        }
    }

    /// The last row before the end by looking at each.
    fn by_looking(probe: &Probe, start_ms: i64) -> Option<u64> {
        let time = |row: u64| {
            let of_lap = (row % probe.lap_rows * probe.interval_ns / 1_000_000) as i64;
            FIRST_MS + (row / probe.lap_rows) as i64 * 150 + of_lap
        };
        let rows = probe.lap_rows * probe.laps;
        let first_after = (0..rows).find(|row| time(*row) >= start_ms + 10)?;
        first_after.checked_sub(1)
    }

    #[test]
    fn the_last_row_of_a_window_is_computed() {
        let probe = probe(1e6);
        for start in 0..32 {
            let start_ms = FIRST_MS + start * 10;
            assert_eq!(probe.last_row(start_ms), by_looking(&probe, start_ms), "{start}");
        }
        assert_eq!(probe.last_row(FIRST_MS - 100), None);
    }

    #[test]
    fn latency_counts_from_when_the_last_row_was_due() {
        // A row a millisecond: the window from 40 to 50 has row 16 as its last.
        let (probe, mut latencies) = (probe(1e3), Latencies::default());
        let due_ns = 1_000_000_000 + 16_000_000;
        probe.take(&[FIRST_MS + 40; 3], due_ns + 5_000_000, &mut latencies);
        // The first tenth of the rows does not count, nor what the end of input ends.
        probe.take(&[FIRST_MS, FIRST_MS + 290], due_ns, &mut latencies);
        assert_eq!((latencies.early.count(), latencies.late.count()), (3, 0));
        assert!((latencies.all().quantile(0.5) - 0.005).abs() < 1e-5);
    }

    #[test]
    fn a_window_has_been_emitted_when_all_workers_have_emitted_it() {
        // A row a millisecond: of the windows from 40, 50 and 60 the rows 16, 19 and 23 are last.
        let (probe, mut latencies) = (probe(1e3), Latencies::default());
        let due_ns = |row: u64| 1_000_000_000 + row * 1_000_000;
        probe.take(&[FIRST_MS + 40, FIRST_MS + 50], due_ns(20), &mut latencies);
        let mut other = Latencies::default();
        probe.take(&[FIRST_MS + 50, FIRST_MS + 60], due_ns(30), &mut other);
        latencies.add(&Latencies::decode(&other.encode()).unwrap());
        let count = |due, end| latencies.windows(due_ns(due), due_ns(end));
        assert_eq!(count(15, 99), WindowCount { due: 0, emitted: 0 });
        assert_eq!(count(23, 99), WindowCount { due: 3, emitted: 3 });
        assert_eq!(count(23, 29), WindowCount { due: 3, emitted: 1 }, "one worker was late");
        assert_eq!(count(19, 30), WindowCount { due: 2, emitted: 2 });
        assert_eq!(probe.end_ns(), due_ns(99));
    }

    #[test]
    fn latencies_survive_the_wire_and_add_up() {
        let mut latencies = Latencies::default();
        (1..1000).for_each(|ms| latencies.early.record(ms * 1_000_000, ms));
        latencies.late.record(u64::MAX, 1);
        latencies.late.record(0, 1);
        latencies.window(5, 7);
        let mut other = Latencies::decode(&latencies.encode()).unwrap();
        assert_eq!(other.encode(), latencies.encode());
        assert!(Latencies::decode(&latencies.encode()[8..]).is_none());
        other.add(&latencies);
        assert_eq!(other.early.count(), 2 * latencies.early.count());
        assert_eq!(other.early.quantile(0.5), latencies.early.quantile(0.5));
        assert!((latencies.early.quantile(0.5) - 0.707).abs() < 0.002);
    }
}
