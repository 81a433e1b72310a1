//! When a part of a directory ends before its time: the option 'roll'.

use std::time::Duration;

use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;

use crate::options::{OptionReader, refuse};

/// When a part ends before its time.
pub(super) const ROLL: OptionSpec = OptionSpec {
    key: "roll",
    values: "duration | bytes | both",
    default: "at the end, and with each checkpoint",
    doc: "When a sink that writes a directory begins another part: '1 min', '128 MiB', or \
          '1 min, 128 MiB' for whatever comes first.",
};

/// When a part ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Roll {
    pub(super) after: Option<Duration>,
    pub(super) bytes: Option<u64>,
}

impl Roll {
    /// The value of the option.
    ///
    /// # Errors
    /// When it is none.
    pub(super) fn given(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let mut roll = Self { after: None, bytes: None };
        let Some(text) = options.text(ROLL.key) else { return Ok(roll) };
        for one in text.split(',') {
            let only = [(ROLL.key.to_owned(), one.to_owned())].into_iter().collect();
            let given = match bytes_of(one) {
                Some(bytes) => roll.bytes.replace(bytes).is_some(),
                None => {
                    let ns =
                        OptionReader(&only).duration_ns(ROLL.key).map_err(|_| not_a_roll(text))?;
                    let after = ns.filter(|ns| *ns > 0).ok_or_else(|| not_a_roll(text))?;
                    roll.after.replace(Duration::from_nanos(after)).is_some()
                }
            };
            if given {
                return Err(not_a_roll(text));
            }
        }
        Ok(roll)
    }
}

fn not_a_roll(text: &str) -> ConnectorError {
    let message = format!("'{text}' is neither a duration nor a number of bytes, nor one of each");
    refuse(ROLL.key, message, Some("write 'roll' = '1 min, 128 MiB'".into()))
}

/// The number of bytes that a text with a unit says; `None` if it has none.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "b" | "bytes" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return None,
    };
    let number = text[..digits].replace('_', "").parse::<u64>().ok()?;
    number.checked_mul(unit).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roll(text: &str) -> Result<Roll, ConnectorError> {
        let options = [(ROLL.key.to_owned(), text.to_owned())].into_iter().collect();
        Roll::given(OptionReader(&options))
    }

    #[test]
    fn a_part_rolls_by_time_by_bytes_or_by_both() {
        let min = Some(Duration::from_secs(60));
        assert_eq!(roll("1 min").unwrap(), Roll { after: min, bytes: None });
        assert_eq!(roll("128MiB").unwrap(), Roll { after: None, bytes: Some(128 << 20) });
        assert_eq!(roll("5 kB, 1 min").unwrap(), Roll { after: min, bytes: Some(5_000) });
        for text in ["", "0 s", "0 MiB", "1 min, 2 min", "1 MiB, 2 MiB", "-1 s", "often", "1 s,"] {
            let error = roll(text).unwrap_err().to_string();
            assert!(error.contains("neither a duration"), "{text:?}: {error}");
        }
    }
}
