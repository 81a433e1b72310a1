//! Rows that are folded in as they were read.

use super::*;
use crate::RawRows;

#[test]
fn a_new_slice_takes_rows_as_they_were_read_where_another_was_emptied() {
    let mut slices = Slices::new(&spec(vec![DataType::Int64], vec![count()], None));
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    assert!(!slices.takes_raw(0), "nothing is known of keys");
    slices.update(0, 100, &[keys], &[vec![]]).unwrap();
    assert!(slices.takes_raw(0) && !slices.takes_raw(10));
    assert_eq!(whole(|| slices.take_values(0)).rows(), 100);
    let words = [7, 99, 7];
    let rows = RawRows::of(&words);
    let (beyond, none) = (RawRows::of(&[1 << 40]), RawRows { passes: Some(&[0]), ..rows });
    for (rows, taken) in [(beyond, 0), (none, 3)] {
        assert!(slices.takes_raw(10), "it has memory, and a range");
        let folded = slices.update_raw(10, &rows, &[]).unwrap();
        assert_eq!((folded.rows, folded.passed), (taken, 0));
        assert!(slices.is_empty(), "no row has come for it");
    }
    assert_eq!(slices.update_raw(10, &rows, &[]).unwrap().passed, 3);
    assert_eq!(slices.starts().collect::<Vec<_>>(), [10]);
    assert_eq!(text(&whole(|| slices.take_values(10))), [["7", "2"], ["99", "1"]]);
}
