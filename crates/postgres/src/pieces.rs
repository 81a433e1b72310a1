//! Changes on their way to the reader, in pieces with a bound, and places in the log.

use crate::changes::Change;

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

/// The changes that the thread hands to the reader at a time.
#[derive(Debug)]
pub(crate) struct ChangeBatch {
    pub(crate) changes: Vec<Change>,
    /// Bytes of their values.
    pub(crate) bytes: usize,
    /// Changes that cannot be read: the places behind them, and why.
    pub(crate) bad: Vec<(LogPlace, String)>,
    /// The place behind; `None` within the snapshot.
    pub(crate) place: Option<LogPlace>,
}

impl ChangeBatch {
    pub(crate) fn none() -> Self {
        Self { changes: vec![], bytes: 0, bad: vec![], place: None }
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
        Self { changes, bytes: 0, bad, place: self.place.map(|_| last) }
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
        Change { op: "c", before: None, after, lsn: 5, number, time_us: None }
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
        piece.place = Some(end);
        let mut next = |count: usize| {
            let part = piece.split(count);
            let numbers: Vec<u64> = part.changes.iter().map(|change| change.number).collect();
            let bad: Vec<u64> = part.bad.iter().map(|(place, _)| place.given).collect();
            (numbers, bad, part.place)
        };
        assert_eq!(next(2), (vec![1, 3], vec![2], Some(place(3))));
        assert_eq!(next(1), (vec![4], vec![], Some(place(4))));
        assert_eq!(next(1), (vec![6], vec![5, 7], Some(end)));
        assert_eq!(next(1), (vec![], vec![], None));
        // The place within a snapshot is none.
        let mut piece = ChangeBatch::none();
        [0, 0].into_iter().for_each(|number| piece.push(change(number, 1)));
        assert_eq!(piece.split(1).place, None);
        assert_eq!(piece.split(1).changes.len(), 1);
    }
}
