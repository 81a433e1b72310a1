//! A run at a rate, and whether the rate was sustained.

use std::fmt;

use crate::latency::{Latencies, WindowCount};

/// Seconds that the end of a run may be behind its last row, beside a twentieth of the run.
const BEHIND_S: f64 = 0.1;
/// Of the windows that were due, the part that must have been emitted at the end of the schedule.
const WINDOWS: f64 = 0.9;
/// Seconds by which later windows may take longer than twice the earlier ones.
const SLACK_S: f64 = 0.005;

/// A run at a rate.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Rows a second that were due.
    pub rate: f64,
    /// Seconds by which the end was behind the last row.
    pub behind_s: f64,
    /// Seconds by the clock between the ends of two windows.
    pub every_s: f64,
    /// Windows that were due when the last row was, but for the time that a run may be behind, and
    /// those that had been emitted then.
    pub windows: WindowCount,
    /// Latencies of windows.
    pub latencies: Latencies,
    /// Whether the rate was sustained.
    pub verdict: TrialVerdict,
}

impl Trial {
    /// Whether the rate was sustained.
    pub fn sustained(&self) -> bool {
        self.verdict == TrialVerdict::Sustained
    }
}

/// Whether a rate was sustained, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialVerdict {
    /// It was.
    Sustained,
    /// No window of the first or of the second half was measured: nothing is known.
    NotMeasured,
    /// The end was too far behind the last row.
    Behind,
    /// Windows of the second half took longer than those of the first.
    Slower,
    /// Fewer windows came out than were due.
    FewWindows,
}

impl TrialVerdict {
    pub(super) const ALL: [Self; 5] =
        [Self::Sustained, Self::NotMeasured, Self::Behind, Self::Slower, Self::FewWindows];

    /// Of a run that took `seconds` by its schedule.
    pub(super) fn of(
        seconds: f64,
        behind_s: f64,
        latencies: &Latencies,
        windows: WindowCount,
    ) -> Self {
        let [early, late] = [&latencies.early, &latencies.late].map(|half| half.quantile(0.5));
        let enough = windows.emitted as f64 >= WINDOWS * windows.due as f64;
        match () {
            () if latencies.early.count() == 0 || latencies.late.count() == 0 => Self::NotMeasured,
            () if behind_s > behind_max_s(seconds) => Self::Behind,
            () if late > 2.0 * early + SLACK_S => Self::Slower,
            () if !enough => Self::FewWindows,
            () => Self::Sustained,
        }
    }
}

impl fmt::Display for TrialVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sustained => "sustained",
            Self::NotMeasured => "no window measured",
            Self::Behind => "too fast: ended behind",
            Self::Slower => "too fast: windows took ever longer",
            Self::FewWindows => "too fast: fewer windows than due",
        })
    }
}

/// Seconds that the end of a run of so many seconds may be behind its last row.
pub(super) fn behind_max_s(seconds: f64) -> f64 {
    BEHIND_S + seconds / 20.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Probe;
    use crate::paced::Schedule;
    use crate::task::WorkloadWindow;

    /// Latencies of windows that take so many milliseconds in the first half and in the second.
    fn took(early_ms: Option<u64>, late_ms: Option<u64>) -> Latencies {
        let schedule = Schedule { start_ns: 0, rate: 1e3 };
        let window = WorkloadWindow { time: "t", size_ms: 100, slide_ms: 100 };
        let (lap_rows, laps, interval_ns) = (1_000, 1, 1_000_000);
        let probe = Probe { schedule, window, lap_rows, laps, interval_ns };
        let mut latencies = Latencies::default();
        for (number, ms) in [(2, early_ms), (7, late_ms)] {
            let Some(ms) = ms else { continue };
            let start = 1_704_067_200_000 + number * 100;
            let due_ns = schedule.due_ns((number as u64 + 1) * 100 - 1);
            probe.take(&[start], due_ns + ms * 1_000_000, &mut latencies);
        }
        latencies
    }

    #[test]
    fn a_rate_is_sustained_for_each_reason_or_for_none() {
        let all = WindowCount { due: 10, emitted: 10 };
        let of = |behind_s, latencies: &Latencies, windows| {
            TrialVerdict::of(2.0, behind_s, latencies, windows)
        };
        let calm = took(Some(5), Some(5));
        assert_eq!((calm.early.count(), calm.late.count()), (1, 1));
        assert_eq!(of(0.19, &calm, all), TrialVerdict::Sustained);
        assert_eq!(of(0.21, &calm, all), TrialVerdict::Behind);
        assert_eq!(of(0.0, &took(Some(5), Some(14)), all), TrialVerdict::Sustained);
        assert_eq!(of(0.0, &took(Some(5), Some(16)), all), TrialVerdict::Slower);
        assert_eq!(of(0.0, &calm, WindowCount { emitted: 9, ..all }), TrialVerdict::Sustained);
        assert_eq!(of(0.0, &calm, WindowCount { emitted: 8, ..all }), TrialVerdict::FewWindows);
        for none in [took(None, None), took(Some(5), None), took(None, Some(5))] {
            assert_eq!(of(0.0, &none, all), TrialVerdict::NotMeasured);
        }
    }
}
