//! Bytes and lengths of time, as a reader writes them.

pub(crate) use dataflow::time::span_text as span_ns;

/// Bytes with a binary unit.
pub(crate) fn human(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
        None => format!("{bytes} B"),
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
