//! Spans of time in DDL and windows: `INTERVAL '1' HOUR`, `INTERVAL '1:30' MINUTE TO SECOND`,
//! `INTERVAL '5 minutes'`.
//!
//! Months and years are refused: they have no fixed length.

use arrow::datatypes::TimeUnit;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::Cursor;

const UNITS: &[(&str, i64)] = &[
    ("DAY", 86_400_000_000_000),
    ("HOUR", 3_600_000_000_000),
    ("MINUTE", 60_000_000_000),
    ("SECOND", 1_000_000_000),
    ("MILLISECOND", 1_000_000),
    ("MICROSECOND", 1_000),
    ("NANOSECOND", 1),
];

const WEEK_NS: i64 = 7 * 86_400_000_000_000;

/// A span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) ns: i64,
    /// Where its literal stands.
    pub(crate) place: Place,
}

impl Interval {
    /// In ticks of a time unit; `None` if it is no whole number of them.
    pub(crate) fn ticks(self, unit: TimeUnit) -> Option<i64> {
        let tick = tick_ns(unit);
        (self.ns % tick == 0).then_some(self.ns / tick)
    }
}

/// Nanoseconds of a tick.
pub(crate) fn tick_ns(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// Reads an interval.
pub(crate) fn interval(cursor: &mut Cursor<'_>) -> Result<Interval, Diagnostic> {
    let start = cursor.place();
    if !cursor.words("INTERVAL") {
        return Err(cursor.expected("an interval").hint("write one as INTERVAL '5' SECOND"));
    }
    let negative = cursor.token(&Token::Minus);
    let text = match cursor.peek().map(|t| &t.token) {
        Some(Token::Number(digits, _)) => {
            let place = cursor.place();
            cursor.skip(1);
            crate::text::syntax::Ident { text: digits.clone(), place }
        }
        _ => cursor.string("a length")?,
    };
    let mut place = text.place;
    if start.line == place.line {
        place = Place { length: place.column + place.length - start.column, ..start };
    }
    let bad = |message: String| {
        Diagnostic::at(place, message).hint("write an interval as INTERVAL '5' SECOND")
    };
    let ns = match cursor.peek() {
        Some(token) if unit(&token.token.to_string()).is_some() => {
            let from = unit(&token.token.to_string()).unwrap_or(1);
            cursor.skip(1);
            precision(cursor)?;
            if cursor.words("TO") {
                let to_place = cursor.place();
                let name = cursor.ident("a unit")?.text;
                precision(cursor)?;
                let to = unit(&name).filter(|to| *to < from).ok_or_else(|| {
                    Diagnostic::at(to_place, format!("'{name}' is no smaller unit"))
                })?;
                fields(&text.text, from, to)
            } else {
                scaled(text.text.trim(), from)
            }
        }
        _ => words(&text.text),
    };
    if let Some(unit) = calendar(cursor, &text.text) {
        return Err(bad(format!("{unit} has no fixed length"))
            .hint("count in DAY, HOUR, MINUTE, SECOND or MILLISECOND"));
    }
    if ns.is_none()
        && scaled(text.text.trim(), 1).is_some()
        && let Some(TokenWithSpan { token: Token::Word(word), span }) = cursor.peek()
    {
        let names = UNITS.iter().map(|(name, _)| *name);
        let message = format!("unknown unit '{}'", word.value);
        return Err(Diagnostic::at(Place::of(*span), message).nearest("units", &word.value, names));
    }
    let ns = ns.ok_or_else(|| bad(format!("'{}' is no length of time", text.text)))?;
    let place = cursor.since(start);
    Ok(Interval { ns: if negative { ns.wrapping_neg() } else { ns }, place })
}

/// `(3)` behind a unit.
fn precision(cursor: &mut Cursor<'_>) -> Result<(), Diagnostic> {
    if cursor.token(&Token::LParen) {
        cursor.skip(1);
        cursor.expect(&Token::RParen)?;
    }
    Ok(())
}

/// The unit without a fixed length that was used, if any.
fn calendar(cursor: &Cursor<'_>, text: &str) -> Option<&'static str> {
    let next = cursor.peek().map(|t| t.token.to_string()).unwrap_or_default();
    let used = |name: &str| {
        singular(&next).eq_ignore_ascii_case(name)
            || text.split_whitespace().any(|word| singular(word).eq_ignore_ascii_case(name))
    };
    [("MONTH", "a month"), ("QUARTER", "a quarter"), ("YEAR", "a year")]
        .into_iter()
        .find_map(|(name, shown)| used(name).then_some(shown))
}

fn singular(word: &str) -> &str {
    word.strip_suffix(['s', 'S']).unwrap_or(word)
}

/// Nanoseconds of a unit by name.
fn unit(name: &str) -> Option<i64> {
    let name = singular(name);
    if name.eq_ignore_ascii_case("WEEK") {
        return Some(WEEK_NS);
    }
    UNITS.iter().find(|(word, _)| name.eq_ignore_ascii_case(word)).map(|(_, ns)| *ns)
}

/// A decimal number of units, exactly.
fn scaled(number: &str, unit: i64) -> Option<i64> {
    let (sign, digits) = match number.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 18 {
        return None;
    }
    if !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let scale = 10i128.pow(fraction.len() as u32);
    let value: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let ns = value.checked_mul(unit.into())?;
    if ns % scale != 0 {
        return None;
    }
    i64::try_from(sign * ns / scale).ok()
}

/// `1 2:03:04.5` from one unit down to another.
fn fields(text: &str, from: i64, to: i64) -> Option<i64> {
    let units: Vec<i64> =
        UNITS.iter().map(|(_, ns)| *ns).filter(|ns| (to..=from).contains(ns)).collect();
    let parts: Vec<&str> = text.trim().split([' ', ':']).collect();
    if parts.len() != units.len() {
        return None;
    }
    parts.iter().zip(units).try_fold(0i64, |sum, (part, unit)| sum.checked_add(scaled(part, unit)?))
}

/// `5 minutes`, `1 hour 30 minutes`.
fn words(text: &str) -> Option<i64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() || !words.len().is_multiple_of(2) {
        return None;
    }
    words.chunks(2).try_fold(0i64, |sum, pair| sum.checked_add(scaled(pair[0], unit(pair[1])?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::split;

    fn read(sql: &str) -> Result<i64, String> {
        let tokens = split(sql).expect("tokens");
        interval(&mut Cursor::new(&tokens[0])).map(|i| i.ns).map_err(|e| e.message)
    }

    #[test]
    fn lengths_of_time_are_exact() {
        for (sql, ns) in [
            ("INTERVAL '5' SECOND", 5_000_000_000),
            ("INTERVAL '1' HOUR", 3_600_000_000_000),
            ("INTERVAL '1.5' SECONDS", 1_500_000_000),
            ("INTERVAL '0.001' SECOND(3)", 1_000_000),
            ("INTERVAL 10 MINUTES", 600_000_000_000),
            ("INTERVAL '1 hour 30 minutes'", 5_400_000_000_000),
            ("INTERVAL '1:30' HOUR TO MINUTE", 5_400_000_000_000),
            ("INTERVAL '1 02:00:00' DAY TO SECOND", 93_600_000_000_000),
            ("INTERVAL '-1' DAY", -86_400_000_000_000),
            ("INTERVAL - '1' WEEK", -604_800_000_000_000),
        ] {
            assert_eq!(read(sql), Ok(ns), "{sql}");
        }
    }

    #[test]
    fn what_is_no_length_of_time_is_refused() {
        for sql in [
            "INTERVAL '1' MONTH",
            "INTERVAL '2 years'",
            "INTERVAL 'x' SECOND",
            "INTERVAL '' SECOND",
            "INTERVAL '5'",
            "INTERVAL '1:2:3' HOUR TO MINUTE",
            "INTERVAL '1' SECOND TO HOUR",
            "INTERVAL '99999999999999999999' DAY",
            "5",
        ] {
            assert!(read(sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn ticks_are_whole() {
        let second = Interval { ns: 1_500_000_000, place: Place::default() };
        assert_eq!(second.ticks(TimeUnit::Millisecond), Some(1500));
        assert_eq!(second.ticks(TimeUnit::Second), None);
    }
}
