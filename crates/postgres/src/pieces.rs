//! Changes on their way to the reader, in pieces with a bound, and places in the log.

use std::sync::Arc;

use crate::changes::Change;
use crate::ranges::{KeyText, ReadRanges};

/// Changes that are given to the reader together, at most.
const CHANGES_MAX: usize = 1024;
/// Bytes of their values, about: one change more may be there.
const CHANGES_BYTES: usize = 4 << 20;

/// A place in the log: what lies before it, and so many changes of the transaction there, are
/// given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct LogPlace {
    pub(crate) lsn: u64,
    pub(crate) given: u64,
}

/// A change that some snapshots see, and others do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// Its place among the changes of the piece.
    pub(crate) at: usize,
    pub(crate) transaction: u32,
    /// The key of the row before and after it.
    pub(crate) before: Option<KeyText>,
    pub(crate) after: Option<KeyText>,
}

/// The changes that the thread hands to the reader at a time.
#[derive(Debug)]
pub(crate) struct ChangeBatch {
    pub(crate) changes: Vec<Change>,
    /// Bytes of their values.
    pub(crate) bytes: usize,
    /// Changes that cannot be read: the places behind them, and why.
    pub(crate) bad: Vec<(LogPlace, String)>,
    /// Changes that some of the rows may have been read with.
    pub(crate) doubts: Vec<Doubt>,
    /// The place behind, once it is known.
    pub(crate) end: Option<PieceEnd>,
}

/// The place behind a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PieceEnd {
    /// Within the rows that were there: behind the key of the last one.
    Rows {
        /// The place of the slot.
        lsn: u64,
        /// The ranges, with the one that is read; `None` if rows are read without a key.
        ranges: Option<Arc<ReadRanges>>,
    },
    /// Within the log.
    Log {
        place: LogPlace,
        /// The ranges, while they are needed.
        ranges: Option<Arc<ReadRanges>>,
    },
}

impl ChangeBatch {
    pub(crate) fn none() -> Self {
        Self { changes: vec![], bytes: 0, bad: vec![], doubts: vec![], end: None }
    }

    pub(crate) fn push(&mut self, change: Change) {
        self.bytes += change.bytes();
        self.changes.push(change);
    }

    /// Whether it has as many changes as are given together.
    pub(crate) fn is_full(&self) -> bool {
        self.changes.len() + self.bad.len() >= CHANGES_MAX || self.bytes >= CHANGES_BYTES
    }

    /// Takes its first changes, so many at most, and what could not be read before the place behind
    /// them. The rest stays.
    pub(crate) fn split(&mut self, changes_max: usize) -> Self {
        if self.changes.len() <= changes_max {
            return std::mem::replace(self, Self::none());
        }
        let rest = self.changes.split_off(changes_max);
        let changes = std::mem::replace(&mut self.changes, rest);
        let behind = |change: &Change| LogPlace { lsn: change.lsn, given: change.number };
        let last = changes.last().map(behind).unwrap_or_default();
        let later = self.bad.partition_point(|(place, _)| *place <= last);
        let rest = self.bad.split_off(later);
        let bad = std::mem::replace(&mut self.bad, rest);
        let mut end = self.end.clone();
        if let Some(PieceEnd::Log { place, .. }) = &mut end {
            *place = last;
        }
        Self { changes, bytes: 0, bad, doubts: vec![], end }
    }
}

/// A place in the log as Postgres writes it.
pub(crate) fn shown(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn & 0xffff_ffff)
}

/// The place that is written so.
pub(crate) fn lsn_of(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let part = |digits: &str| u32::from_str_radix(digits, 16).ok();
    Some(u64::from(part(high)?) << 32 | u64::from(part(low)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_shown() {
        for lsn in [0, 1, 0x16_B374_D848, u64::MAX] {
            assert_eq!(lsn_of(&shown(lsn)), Some(lsn));
        }
        assert!(["", "1", "x/1", "1/100000000"].iter().all(|text| lsn_of(text).is_none()));
    }

    fn change(number: u64, bytes: usize) -> Change {
        let after = Some(vec![Some("x".repeat(bytes))]);
        Change { op: "c", before: None, after, lsn: 5, number, time_us: None, key: vec![] }
    }

    #[test]
    fn a_piece_is_bounded_in_changes_and_in_bytes() {
        let changes = |bytes: usize| {
            let mut piece = ChangeBatch::none();
            while !piece.is_full() {
                piece.push(change(1, bytes));
            }
            piece.changes.len()
        };
        assert_eq!(changes(1), CHANGES_MAX);
        assert_eq!(changes(1 << 20), 4);
        assert_eq!(changes(CHANGES_BYTES), 1);
        // Values that are NULL take memory too.
        let null = Change { after: Some(vec![None; 1600]), ..change(1, 0) };
        assert!(null.bytes() > 1600 * 8);
    }

    #[test]
    fn a_piece_is_given_in_parts_with_the_places_behind_them() {
        let place = |given: u64| LogPlace { lsn: 5, given };
        let end = LogPlace { lsn: 9, given: 0 };
        let mut piece = ChangeBatch::none();
        [1, 3, 4, 6].into_iter().for_each(|number| piece.push(change(number, 1)));
        piece.bad = [2, 5, 7].map(|number| (place(number), String::new())).into();
        piece.end = Some(PieceEnd::Log { place: end, ranges: None });
        let mut next = |count: usize| {
            let part = piece.split(count);
            let numbers: Vec<u64> = part.changes.iter().map(|change| change.number).collect();
            let bad: Vec<u64> = part.bad.iter().map(|(place, _)| place.given).collect();
            let end = part.end.map(|end| match end {
                PieceEnd::Log { place, .. } => place,
                PieceEnd::Rows { .. } => panic!("rows"),
            });
            (numbers, bad, end)
        };
        assert_eq!(next(2), (vec![1, 3], vec![2], Some(place(3))));
        assert_eq!(next(1), (vec![4], vec![], Some(place(4))));
        assert_eq!(next(1), (vec![6], vec![5, 7], Some(end)));
        assert_eq!(next(1), (vec![], vec![], None));
        // The place within a snapshot is that of the last row.
        let rows = Some(PieceEnd::Rows { lsn: 5, ranges: None });
        let mut piece = ChangeBatch { end: rows.clone(), ..ChangeBatch::none() };
        [0, 0].into_iter().for_each(|number| piece.push(change(number, 1)));
        for _ in 0..2 {
            let part = piece.split(1);
            assert_eq!((part.end, part.changes.len()), (rows.clone(), 1));
        }
    }
}
