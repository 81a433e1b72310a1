//! Memory of columns that were lent to Arrow, recycled when no reference to them is left.
//!
//! What is made for each batch and dropped with it then lies at the same place for every batch, and
//! stays in a cache. An allocator gives each of them another place, of which all together fill one.
//!
//! So it is with words that are no column ([`RecycledWords`]), of which nothing is allocated at
//! all.
//!
//! Each thread has its own, as workers share the steps that fill columns: who drops a column on
//! another thread gives nothing back to that one. A thread keeps `COLUMNS_MAX` times `BYTES_MAX` at
//! most.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use arrow::buffer::Buffer;
use arrow::datatypes::ArrowNativeType;

/// Columns of a thread that are remembered: those of a few steps, one behind the other.
const COLUMNS_MAX: usize = 8;

/// Bytes of a column that is remembered at most.
const BYTES_MAX: usize = 1 << 20;

thread_local! {
    static LENT: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
    static DROPPED: RefCell<Vec<Vec<u64>>> = const { RefCell::new(Vec::new()) };
}

/// An empty vector, with the room of a column that was [lent](into_buffer) and dropped if there
/// is one.
pub fn take<T: ArrowNativeType>() -> Vec<T> {
    let mut values: Vec<T> = LENT.with_borrow_mut(|columns| {
        let dropped = columns.iter().position(|column| column.strong_count() == 1);
        let column = dropped.map(|at| columns.swap_remove(at));
        column.and_then(|column| column.into_vec().ok()).unwrap_or_default()
    });
    values.clear();
    values
}

/// Values as the memory of a column, which is remembered.
pub fn into_buffer<T: ArrowNativeType>(values: Vec<T>) -> Buffer {
    let remembered = values.capacity() * size_of::<T>() <= BYTES_MAX;
    let column = Buffer::from_vec(values);
    if remembered {
        LENT.with_borrow_mut(|columns| {
            if columns.len() == COLUMNS_MAX {
                columns.remove(0);
            }
            columns.push(column.clone());
        });
    }
    column
}

/// Words for a while: none at first, in the memory of some that were dropped if there are any.
#[derive(Debug)]
pub struct RecycledWords(Vec<u64>);

impl Default for RecycledWords {
    fn default() -> Self {
        let mut words = DROPPED.with_borrow_mut(Vec::pop).unwrap_or_default();
        words.clear();
        Self(words)
    }
}

impl Drop for RecycledWords {
    fn drop(&mut self) {
        let words = std::mem::take(&mut self.0);
        if words.capacity() * size_of::<u64>() <= BYTES_MAX {
            DROPPED.with_borrow_mut(|dropped| {
                if dropped.len() < COLUMNS_MAX {
                    dropped.push(words);
                }
            });
        }
    }
}

impl Deref for RecycledWords {
    type Target = Vec<u64>;

    fn deref(&self) -> &Vec<u64> {
        &self.0
    }
}

impl DerefMut for RecycledWords {
    fn deref_mut(&mut self) -> &mut Vec<u64> {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_up_again_when_they_are_dropped() {
        let mut words = RecycledWords::default();
        words.extend(0..1000);
        let other = RecycledWords::default();
        let place = words.as_ptr();
        drop(words);
        let again = RecycledWords::default();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        drop((again, other));
        let many: Vec<RecycledWords> = (0..20).map(|_| RecycledWords::default()).collect();
        drop(many);
        DROPPED.with_borrow(|dropped| assert_eq!(dropped.len(), COLUMNS_MAX));
    }

    #[test]
    fn memory_is_taken_up_again_when_nobody_holds_it() {
        let mut values: Vec<u64> = take();
        values.extend(0..1000);
        let place = values.as_ptr();
        let column = into_buffer(values);
        let held = column.clone();
        drop(column);
        assert_eq!(take::<u64>().capacity(), 0, "somebody holds it");
        assert_eq!(held.typed_data::<u64>()[999], 999);
        drop(held);
        let again: Vec<i64> = take();
        assert_eq!((again.as_ptr().cast(), again.len()), (place, 0));
        assert!(again.capacity() >= 1000);
    }

    #[test]
    fn a_few_columns_are_remembered_and_no_long_one() {
        let columns: Vec<Buffer> = (0..20).map(|_| into_buffer(vec![0u64; 100])).collect();
        drop(columns);
        drop(into_buffer(vec![0u64; BYTES_MAX]));
        let taken: Vec<Vec<u64>> = (0..20).map(|_| take()).collect();
        assert_eq!(taken.iter().filter(|values| values.capacity() > 0).count(), COLUMNS_MAX);
        assert!(taken.iter().all(|values| values.capacity() <= 100));
    }
}
