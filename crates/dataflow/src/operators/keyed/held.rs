//! The numbers of batches that a keyed operator keeps in memory: a checkpoint does not store a
//! batch again that an earlier one has.
//!
//! A batch is known by its columns. As long as its number is remembered, so is the place of each
//! column, which no other column can take meanwhile; arrays never change.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use arrow::array::{Array, RecordBatch};

use crate::checkpoint::{RowsId, SavedRows};

/// The bit that numbers of batches in memory have, and numbers of batches on a disk do not.
const HELD: u64 = 1 << 62;

/// A batch: its part, and the addresses of its columns.
type BatchKey = (u32, Vec<usize>);

/// A batch of the last save.
struct NumberedBatch {
    number: u64,
    /// Keeps the addresses from being used again, but not the memory of values.
    _columns: Vec<Weak<dyn Array>>,
}

/// The numbers of the batches of one operator on one worker.
#[derive(Default)]
pub(super) struct HeldNumbers {
    /// Those of the last save.
    batches: HashMap<BatchKey, NumberedBatch>,
    /// The next number.
    next: u64,
}

impl HeldNumbers {
    /// The number of each batch of a save, in their order: that of the last save if it had the same
    /// batch, and otherwise a new one.
    pub(super) fn of(&mut self, saved: &[SavedRows]) -> Vec<RowsId> {
        let mut batches = HashMap::with_capacity(saved.len());
        let mut numbers = Vec::with_capacity(saved.len());
        for SavedRows { part, rows } in saved {
            let key = key_of(*part, rows);
            // Rows that are there twice are stored twice.
            let before = self.batches.get(&key).filter(|_| !batches.contains_key(&key));
            let number = before.map_or(self.next, |before| before.number);
            self.next = self.next.max(number + 1);
            numbers.push((HELD | number, 0));
            let columns = rows.columns().iter().map(Arc::downgrade).collect();
            batches.entry(key).or_insert(NumberedBatch { number, _columns: columns });
        }
        self.batches = batches;
        numbers
    }
}

fn key_of(part: u32, rows: &RecordBatch) -> BatchKey {
    let address = |column: &Arc<dyn Array>| Arc::as_ptr(column).cast::<()>().addr();
    (part, rows.columns().iter().map(address).collect())
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    fn rows(number: i64) -> RecordBatch {
        let column = || -> ArrayRef { Arc::new(Int64Array::from(vec![number; 3])) };
        RecordBatch::try_from_iter([("a", column()), ("b", column())]).unwrap()
    }

    #[test]
    fn a_batch_keeps_its_number_as_long_as_it_is_there_and_no_other_has_it() {
        let mut numbers = HeldNumbers::default();
        let mut of = |saved: &[(u32, &RecordBatch)]| {
            let saved =
                saved.iter().map(|(part, rows)| SavedRows { part: *part, rows: (*rows).clone() });
            let ids = numbers.of(&saved.collect::<Vec<_>>());
            ids.into_iter().map(|(number, _)| number & !HELD).collect::<Vec<_>>()
        };
        let (a, b, c) = (rows(1), rows(2), rows(3));
        assert_eq!(of(&[(0, &a), (0, &b)]), [0, 1]);
        assert_eq!(of(&[(0, &b), (0, &a), (0, &c)]), [1, 0, 2]);
        // The same rows in another part, twice, or with another column, are others.
        assert_eq!(of(&[(1, &a), (0, &a), (0, &a)]), [3, 0, 4]);
        let columns = vec![a.column(0).clone(), b.column(1).clone()];
        let other = RecordBatch::try_new(a.schema(), columns).unwrap();
        assert_eq!(of(&[(0, &other), (0, &a)]), [5, 0]);
        // A batch that was absent from a save is new, and so is a slice of a batch.
        assert_eq!(of(&[(0, &b), (0, &a.slice(0, 2))]), [6, 7]);
    }

    /// Memory of a batch that is gone is used again by others.
    #[test]
    fn a_new_batch_does_not_take_the_number_of_one_that_is_gone() {
        let mut numbers = HeldNumbers::default();
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..1000 {
            let saved = [SavedRows { part: 0, rows: rows(number) }];
            assert!(seen.insert(numbers.of(&saved)), "round {number}");
        }
    }
}
