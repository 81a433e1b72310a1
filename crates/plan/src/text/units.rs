//! Bytes and lengths of time, as a reader writes them.

/// Bytes with a binary unit.
pub(crate) fn human(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
        None => format!("{bytes} B"),
    }
}

/// Nanoseconds in the greatest unit of which they are a whole number.
pub(crate) fn span_ns(ns: i64) -> String {
    let units = [
        ("day", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ];
    match units.into_iter().find(|(_, size)| ns % size == 0 && ns != 0) {
        Some((unit, size)) => format!("{} {unit}", ns / size),
        None if ns == 0 => "0 s".into(),
        None => format!("{ns} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(human(1 << 20), "1.0 MiB");
        assert_eq!(human(100), "100 B");
        assert_eq!(span_ns(5_400_000_000_000), "90 min");
        assert_eq!(span_ns(0), "0 s");
    }
}
