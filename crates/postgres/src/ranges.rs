//! The rows of a table that were read, and the transactions that each had seen, when a job has not
//! read all of them in one run.
//!
//! ```text
//! keys   ─────────── 500 │ ──────── 900 │ ─────────▶
//! read    by run 1       │ by run 2     │ by run 3
//! with    snapshot 1     │ snapshot 2   │ snapshot 3      transactions that it sees
//! log     a change comes of each transaction that the snapshot of its key does not see
//! ```
//!
//! A snapshot of Postgres says of each transaction whether it sees it, and the log has the number
//! of each transaction. So a change is given exactly if the row was read without it, whatever the
//! order of commits in the log. Places in the log would not do: a transaction is in the log before
//! others see it.

use crate::errors::PgError;
use crate::frames::{FieldCursor, text_of};

/// Ranges of a table at most: runs that were ended while they read rows.
pub(crate) const RANGES_MAX: usize = 256;
/// Transactions that run beside a snapshot at most.
const RUNNING_MAX: usize = 1 << 14;
/// Bytes of all ranges in a position at most.
const RANGES_BYTES_MAX: usize = 8 << 20;
/// Columns of a key at most, as Postgres has it.
const KEY_COLUMNS_MAX: usize = 32;

/// The values of a key, as text.
pub(crate) type KeyText = Vec<String>;

/// The transactions that a query sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenTransactions {
    /// All before this one have ended.
    pub(crate) least: u64,
    /// This one and later ones had not begun.
    pub(crate) end: u64,
    /// Those between that had not ended, sorted.
    running: Vec<u64>,
}

impl SeenTransactions {
    /// Reads the value of `pg_current_snapshot()`.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) fn of(text: &str) -> Result<Self, PgError> {
        let parse = || {
            let mut parts = text.split(':');
            let (least, end) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let running = parts.next()?.split(',').filter(|number| !number.is_empty());
            let mut running: Vec<u64> = running.map(str::parse).collect::<Result<_, _>>().ok()?;
            running.sort_unstable();
            (parts.next().is_none() && running.len() <= RUNNING_MAX && least <= end)
                .then_some(Self { least, end, running })
        };
        parse().ok_or_else(|| PgError::Breach(format!("a snapshot '{text}'")))
    }

    /// Whether it sees a transaction that was committed. The log has the lower half of its number.
    pub(crate) fn sees(&self, transaction: u32) -> bool {
        let from_end = transaction.wrapping_sub(self.end as u32).cast_signed();
        let Some(number) = self.end.checked_add_signed(from_end.into()) else { return true };
        number < self.least || number < self.end && self.running.binary_search(&number).is_err()
    }
}

/// Rows that were read with one snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    /// The last key; of the last range, as far as it is read.
    pub(crate) upto: KeyText,
    pub(crate) seen: SeenTransactions,
}

/// The rows that were read so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReadRanges {
    /// The names of the columns of the key.
    pub(crate) columns: Vec<String>,
    /// In the order of keys. The first one has the snapshot of the slot.
    pub(crate) ranges: Vec<KeyRange>,
    /// Commits from this place of the log on are seen by no snapshot.
    pub(crate) until: u64,
}

impl ReadRanges {
    /// The same with the rows behind, as another snapshot has them.
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn with(&self, seen: SeenTransactions, until: u64) -> Result<Self, PgError> {
        let mut next = Self { until, ..self.clone() };
        let last = next.ranges.last();
        if last.is_none_or(|last| last.seen != seen) {
            let upto = last.map_or_else(Vec::new, |last| last.upto.clone());
            next.ranges.push(KeyRange { upto, seen });
        }
        let count = next.ranges.len();
        if count > RANGES_MAX || next.to_bytes(&[]).len() > RANGES_BYTES_MAX {
            return Err(PgError::Own {
                message: format!("the job was ended {count} times while it read the rows"),
                hint: "begin anew: --from none".into(),
            });
        }
        Ok(next)
    }

    /// The last key that was read.
    pub(crate) fn upto(&self) -> &[String] {
        self.ranges.last().map_or(&[], |last| last.upto.as_slice())
    }

    /// Whether a change may be one that a row was read with.
    pub(crate) fn overlap(&self, commit_lsn: u64) -> bool {
        self.ranges.len() > 1 && commit_lsn < self.until
    }

    /// The bytes of it in a position, with another last key.
    pub(crate) fn to_bytes(&self, upto: &[String]) -> Vec<u8> {
        let mut bytes = self.until.to_be_bytes().to_vec();
        put_texts(&mut bytes, &self.columns);
        bytes.extend((self.ranges.len() as u32).to_be_bytes());
        for (at, range) in self.ranges.iter().enumerate() {
            let is_last = at + 1 == self.ranges.len();
            put_texts(&mut bytes, if is_last { upto } else { &range.upto });
            let SeenTransactions { least, end, running } = &range.seen;
            let numbers = [*least, *end, running.len() as u64];
            let numbers = numbers.iter().chain(running);
            numbers.for_each(|number| bytes.extend(number.to_be_bytes()));
        }
        bytes
    }

    /// The ranges of which [`to_bytes`](Self::to_bytes) has made these bytes.
    ///
    /// # Errors
    /// When it has made none.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Self, PgError> {
        let mut cursor = FieldCursor(bytes);
        let (until, columns) = (cursor.u64()?, texts(&mut cursor)?);
        let count = bounded(cursor.u32()?.into(), RANGES_MAX)?;
        let mut ranges = Vec::with_capacity(count);
        for _ in 0..count {
            let upto = texts(&mut cursor)?;
            let (least, end) = (cursor.u64()?, cursor.u64()?);
            let running = bounded(cursor.u64()?, RUNNING_MAX)?;
            let running = (0..running).map(|_| cursor.u64()).collect::<Result<_, _>>()?;
            let is_fit = upto.len() == columns.len() && !upto.is_empty() && least <= end;
            bounded(u64::from(!is_fit), 0)?;
            ranges.push(KeyRange { upto, seen: SeenTransactions { least, end, running } });
        }
        bounded(cursor.0.len() as u64, 0)?;
        bounded(u64::from(ranges.is_empty()), 0)?;
        Ok(Self { columns, ranges, until })
    }
}

fn put_texts(bytes: &mut Vec<u8>, texts: &[String]) {
    bytes.extend((texts.len() as u32).to_be_bytes());
    for text in texts {
        bytes.extend((text.len() as u32).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
}

fn texts(cursor: &mut FieldCursor<'_>) -> Result<Vec<String>, PgError> {
    let count = bounded(cursor.u32()?.into(), KEY_COLUMNS_MAX)?;
    let text = |_| {
        let length = cursor.u32()? as usize;
        text_of(cursor.bytes(length)?)
    };
    (0..count).map(text).collect()
}

fn bounded(count: u64, most: usize) -> Result<usize, PgError> {
    let count = usize::try_from(count).ok().filter(|count| *count <= most);
    count.ok_or_else(|| PgError::Breach("the position is damaged".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_what_had_ended() {
        let seen = SeenTransactions::of("10:20:15,12").unwrap();
        let of = |seen: &SeenTransactions, numbers: &[u32]| {
            numbers.iter().map(|number| seen.sees(*number)).collect::<Vec<_>>()
        };
        assert_eq!(
            of(&seen, &[3, 9, 10, 12, 13, 15, 19]),
            [true, true, true, false, true, false, true]
        );
        assert_eq!(of(&seen, &[20, 21, 2_000_000_000]), [false; 3]);
        // Numbers go on behind 32 bits.
        let end = (7_u64 << 32) + 5;
        let seen = SeenTransactions::of(&format!("{}:{end}:{}", end - 10, end - 7)).unwrap();
        assert_eq!(of(&seen, &[4, 5, u32::MAX, u32::MAX - 1]), [true, false, true, false]);
        assert_eq!(of(&seen, &[u32::MAX - 100, 100]), [true, false]);
        for text in ["", "1", "1:2", "2:1:", "1:2:x", "1:2:3:4", "-1:2:"] {
            assert!(SeenTransactions::of(text).is_err(), "{text}");
        }
        assert!(SeenTransactions::of("7:7:").unwrap().sees(6));
    }

    #[test]
    fn ranges_are_read_as_they_were_written_and_not_when_they_are_damaged() {
        let seen = |text: &str| SeenTransactions::of(text).unwrap();
        let mut ranges = ReadRanges { columns: vec!["n".into(), "k".into()], ..Default::default() };
        for (at, text) in ["7:7:", "10:20:12,15", "10:20:12,15"].into_iter().enumerate() {
            ranges = ranges.with(seen(text), 99).unwrap();
            ranges.ranges.last_mut().unwrap().upto = vec![at.to_string(), "é".into()];
        }
        assert_eq!(ranges.ranges.len(), 2, "one snapshot is one range");
        assert!(ranges.overlap(98) && !ranges.overlap(99));
        let upto = ["5".to_owned(), String::new()];
        let bytes = ranges.to_bytes(&upto);
        let read = ReadRanges::of_bytes(&bytes).unwrap();
        assert_eq!((read.upto(), &read.ranges[0], read.until), (&upto[..], &ranges.ranges[0], 99));
        for end in 0..bytes.len() {
            assert!(ReadRanges::of_bytes(&bytes[..end]).is_err(), "{end}");
        }
        assert!(ReadRanges::of_bytes(&[&bytes[..], &[0]].concat()).is_err());
        let mut many = ReadRanges::default();
        for at in 0..RANGES_MAX as u64 {
            many = many.with(seen(&format!("{at}:{at}:")), 1).unwrap();
        }
        assert!(many.with(seen("999:999:"), 1).is_err());
    }
}
