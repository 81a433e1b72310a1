//! Bytes, numbers of rows and lengths of time, as a reader writes them.

pub(crate) use dataflow::time::span_text as span_ns;

/// Bytes with a binary unit.
pub(crate) fn human(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
        None => format!("{bytes} B"),
    }
}

/// A number in short, with two digits at least if it is cut.
pub(crate) fn count(number: u64) -> String {
    let units = [("T", 1_000_000_000_000u64), ("G", 1_000_000_000), ("M", 1_000_000), ("K", 1_000)];
    match units.into_iter().find(|(_, size)| number >= *size) {
        Some((unit, size)) if number / size < 10 => {
            format!("{:.1} {unit}", number as f64 / size as f64)
        }
        Some((unit, size)) => format!("{} {unit}", number / size),
        None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(human(1 << 20), "1.0 MiB");
        assert_eq!(human(100), "100 B");
        assert_eq!([999, 1_500, 48_211, 6_001_215].map(count), ["999", "1.5 K", "48 K", "6.0 M"]);
        assert_eq!(span_ns(5_400_000_000_000), "90 min");
        assert_eq!(span_ns(0), "0 s");
    }
}
