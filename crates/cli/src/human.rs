//! Numbers for the reader's eyes.

use std::time::Duration;

use millstream::{CheckpointProgress, CheckpointWait, JobProgress};

/// `1234567` as `1,234,567`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 row`, `2 rows`.
pub(crate) fn counted(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", count(number))
}

/// Something per second with three digits: `1.23 M`.
pub(crate) fn rate(things: u64, elapsed: Duration) -> String {
    let per_second = things as f64 / elapsed.as_secs_f64().max(1e-6);
    let (value, unit) = match per_second {
        ..1e3 => (per_second, ""),
        ..1e6 => (per_second / 1e3, " K"),
        ..1e9 => (per_second / 1e6, " M"),
        _ => (per_second / 1e9, " G"),
    };
    let digits = match value {
        ..10.0 if unit.is_empty() => 0,
        ..10.0 => 2,
        ..100.0 if unit.is_empty() => 0,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{unit}")
}

/// `1.5 MiB`.
pub(crate) fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(value < 100.0 && value.fract() > 0.0);
    format!("{value:.digits$} {}", UNITS[unit])
}

/// `12 ms`, `3.4 s`, `5 min 6 s`, `7 h 8 min`, `9 d`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..100 => format!("{:.1} s", duration.as_secs_f64()),
        100..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// The last checkpoint of a job, as `checkpoint 412, 1.2 s ago`; `None` if the job has taken none.
pub(crate) fn checkpoint(checkpoints: &CheckpointProgress) -> Option<String> {
    let CheckpointProgress { last, given_up_since, pending, .. } = checkpoints;
    let mut text = match last {
        Some(last) => format!("checkpoint {}, {} ago", last.number, duration(last.age)),
        None if pending.is_some() || *given_up_since > 0 => "no checkpoint yet".to_owned(),
        None => return None,
    };
    if *given_up_since > 0 {
        text += &format!(", {} given up since", count(*given_up_since));
    }
    Some(text)
}

/// Workers that a checkpoint waits for are named up to this number.
const WAITS_SHOWN: usize = 3;

/// The waits of the checkpoint under way, as `2 WindowAggregate on worker 3`.
pub(crate) fn checkpoint_waits(progress: &JobProgress, operators: &[String]) -> Option<String> {
    let waits = progress.checkpoints.as_ref()?.waits(&progress.workers);
    let shown: Vec<String> = waits
        .iter()
        .take(WAITS_SHOWN)
        .map(|wait| match wait {
            CheckpointWait::Record => "the record in the store".to_owned(),
            CheckpointWait::Node { node } => format!("the store of node {node}"),
            CheckpointWait::Worker { worker, operator } => {
                match operator.and_then(|at| operators.get(at)) {
                    Some(name) => format!("{name} on worker {worker}"),
                    None => format!("worker {worker}"),
                }
            }
        })
        .collect();
    let more = waits.len() - shown.len();
    let more = (more > 0).then(|| format!("{more} more"));
    let all: Vec<String> = shown.into_iter().chain(more).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Milliseconds since 1970 as `2013-01-31 23:59:58` in UTC.
pub(crate) fn time(ms: i64) -> String {
    let seconds = ms.div_euclid(1000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years begin in March here, so that the day of a leap year is the last one; 400 years have
    // 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next_year;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_thousands() {
        let shown = [0, 999, 1000, 1_234_567].map(count);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!((counted(1, "row"), counted(2, "row")), ("1 row".into(), "2 rows".into()));
    }

    #[test]
    fn rates_have_three_digits() {
        let second = Duration::from_secs(1);
        let shown = [0, 5, 50, 999, 1234, 56_789, 123_456, 4_567_890, 8_000_000_000];
        let expected = ["0", "5", "50", "999", "1.23 K", "56.8 K", "123 K", "4.57 M", "8.00 G"];
        assert_eq!(shown.map(|things| rate(things, second)), expected);
        assert_eq!(rate(0, Duration::ZERO), "0");
    }

    #[test]
    fn sizes_have_units() {
        let shown = [0, 1023, 1024, 1536, 1 << 20, 200 << 30, u64::MAX].map(bytes);
        let expected = ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1 MiB", "200 GiB", "16384 PiB"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn durations_have_two_units() {
        let shown = [7, 3400, 306_000, 26_000_000, 900_000_000];
        let expected = ["7 ms", "3.4 s", "5 min 6 s", "7 h 13 min", "10 d"];
        assert_eq!(shown.map(|ms| duration(Duration::from_millis(ms))), expected);
    }

    #[test]
    fn times_are_of_the_gregorian_calendar() {
        for (ms, expected) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400_000, "2000-02-29 00:00:00"),
            (1_357_034_400_000, "2013-01-01 10:00:00"),
            (4_107_542_399_000, "2100-02-28 23:59:59"),
            (4_107_542_400_000, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(time(ms), expected);
        }
    }
}
