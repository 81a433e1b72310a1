//! Round numbers along an axis, and how they are written.

use crate::human;

/// An axis from `low` to `high`, which are multiples of `step`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) step: f64,
}

impl Scale {
    /// An axis with about `ticks` round numbers that holds all values. Zero is on it where the
    /// values are not far away from it for their spread.
    pub(super) fn around(low: f64, high: f64, ticks: usize) -> Self {
        let (mut low, mut high) = (low.min(high), high.max(low));
        if low > 0.0 && low < high / 2.0 {
            low = 0.0;
        } else if high < 0.0 && high > low / 2.0 {
            high = 0.0;
        }
        // A flat line lies in the middle.
        if low == high {
            let room = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low, high) = (low - room, high + room);
        }
        let rough = (high / ticks.max(1) as f64) - (low / ticks.max(1) as f64);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|s| *s >= rough);
        let step = step.unwrap_or(rough);
        let low = ((low / step).floor() * step).max(f64::MIN);
        let high = ((high / step).ceil() * step).min(f64::MAX);
        Self { low, high, step }
    }

    /// Where a value lies, from 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        // Halved, so that the greatest of floats does not overflow.
        let span = self.high / 2.0 - self.low / 2.0;
        if span > 0.0 { (value / 2.0 - self.low / 2.0) / span } else { 0.5 }
    }

    /// Its round numbers from the bottom.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let count = ((self.high - self.low) / self.step).round();
        let count = if count.is_finite() { count.clamp(1.0, 100.0) as usize } else { 1 };
        (0..=count).map(|n| self.low + n as f64 * self.step).collect()
    }
}

/// `1,234`, `0.25`, `1.5e12`: six digits that count.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".into();
    }
    if !(1e-4..1e15).contains(&size) {
        return format!("{value:.3e}");
    }
    let digits = (5 - size.log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{size:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let whole = whole.parse().map_or(whole.to_owned(), human::count);
    let fraction = fraction.trim_end_matches('0');
    let sign = if value < 0.0 { "-" } else { "" };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{whole}{point}{fraction}")
}

/// A time within a span of `span` milliseconds, as fine as it has to be.
pub(super) fn time(ms: f64, span_ms: f64) -> String {
    let text = human::time(ms as i64);
    let (date, clock) = text.split_once(' ').unwrap_or((&text, ""));
    match span_ms {
        ..=2e3 => format!("{clock}.{:03}", (ms as i64).rem_euclid(1000)),
        ..=86_400e3 => clock.to_owned(),
        ..=864_000e3 => format!("{} {}", &date[date.len() - 5..], &clock[..5]),
        _ => date.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_round_and_hold_their_values() {
        let scale = Scale::around(3.0, 97.0, 5);
        assert_eq!((scale.low, scale.high, scale.step), (0.0, 100.0, 20.0));
        assert_eq!(scale.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let far = Scale::around(1000.0, 1004.0, 4);
        assert_eq!((far.low, far.high), (1000.0, 1004.0));
        for (low, high) in [
            (0.0, 0.0),
            (-7.0, -7.0),
            (-1e-300, 1e-300),
            (-1e308, 1e308),
            (f64::MIN, f64::MAX),
            (-3.0, 9.0),
        ] {
            let scale = Scale::around(low, high, 4);
            assert!((0.0..=1.0).contains(&scale.place(low)), "{low} {high} {scale:?}");
            assert!((0.0..=1.0).contains(&scale.place(high)), "{low} {high} {scale:?}");
            assert!(scale.ticks().len() <= 101);
        }
    }

    #[test]
    fn numbers_have_six_digits_that_count() {
        let shown = [0.0, 1.0, 1234567.0, 0.25, -12.3456789, 1e20, 1e-9, 99_999.96].map(number);
        let expected =
            ["0", "1", "1,234,567", "0.25", "-12.3457", "1.000e20", "1.000e-9", "100,000"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn times_are_as_fine_as_their_span() {
        let at = 1_357_034_400_123.0;
        let day = 86_400e3;
        assert_eq!(time(at, 1e3), "10:00:00.123");
        assert_eq!(time(at, day), "10:00:00");
        assert_eq!(time(at, 3.0 * day), "01-01 10:00");
        assert_eq!(time(at, 365.0 * day), "2013-01-01");
    }
}
