//! Spans of time as settings of a table have them: `interval 1 week`, `interval 30 days`.

pub(super) const HOUR_MS: i64 = 60 * 60 * 1000;

/// Milliseconds of a span; `None` if it is none. Months and years have no fixed length, and are not
/// taken, as Delta Lake does not take them.
pub(super) fn interval_ms(text: &str) -> Option<i64> {
    let text = text.to_ascii_lowercase();
    let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
    if words.first() == Some(&"interval") {
        words.remove(0);
    }
    let (pairs, []) = words.as_chunks::<2>() else { return None };
    if pairs.is_empty() {
        return None;
    }
    let mut total = 0_i64;
    for [number, unit] in pairs {
        let number: i64 = number.trim_matches('\'').parse().ok()?;
        let ms = match unit.strip_suffix('s').unwrap_or(unit) {
            "week" => 7 * 24 * HOUR_MS,
            "day" => 24 * HOUR_MS,
            "hour" => 3_600_000,
            "minute" => 60_000,
            "second" => 1_000,
            "millisecond" => 1,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(ms)?)?;
    }
    (total >= 0).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_those_of_delta_lake() {
        for (text, hours) in [
            ("interval 1 week", 168),
            ("INTERVAL 30 DAYS", 720),
            ("interval '7' days", 168),
            ("2 days 3 hours", 51),
            ("interval 120 minutes", 2),
            ("interval 0 days", 0),
        ] {
            assert_eq!(interval_ms(text), Some(hours * 3_600_000), "{text}");
        }
        let refused = ["", "interval", "interval 1", "7", "a week", "interval 1 month", "-1 day"];
        for text in refused.into_iter().chain(["9223372036854775807 weeks", "1 day 1"]) {
            assert_eq!(interval_ms(text), None, "{text}");
        }
    }
}
