//! Key modes that are forced, and those that cannot be.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use super::spec;
use crate::aggregates::count;
use crate::{KeyMode, Slice};

#[test]
fn a_mode_is_forced_where_it_suits() {
    use KeyMode::*;
    let number = |range: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..4_000).map(|row| row * 7 % range)))
    };
    let real = |range| cast(&number(range), &DataType::Float64).unwrap();
    let text = |range| cast(&number(range), &DataType::Utf8).unwrap();
    let mode = |keys: &[ArrayRef], force| {
        let types = keys.iter().map(|key| key.data_type().clone()).collect();
        let mut slice = Slice::new(&spec(types, vec![count()], force));
        slice.update_rows(4_000, keys, &[vec![]]).unwrap();
        slice.update_rows(4_000, keys, &[vec![]]).unwrap();
        slice.key_mode()
    };
    for (keys, by_itself, forced) in [
        (vec![], One, [One; 7]),
        // Few ranges fill soon: neighbours come together.
        (vec![number(500)], Tiny, [Tiny, Tiny, Array, Tiny, Hash, Packed, Wide]),
        (vec![number(600)], Array, [Array, Array, Array, Array, Hash, Packed, Wide]),
        (vec![number(2_000)], Ranges, [Ranges, Ranges, Array, Ranges, Hash, Packed, Wide]),
        (vec![real(100)], Hash, [Hash, Hash, Hash, Hash, Hash, Packed, Wide]),
        (
            vec![number(100), real(100)],
            Packed,
            [Packed, Packed, Packed, Packed, Packed, Packed, Wide],
        ),
        (vec![text(100), number(100)], Wide, [Wide; 7]),
    ] {
        assert_eq!(mode(&keys, None), by_itself, "{keys:?}");
        for (force, expected) in KeyMode::ALL.into_iter().zip(forced) {
            assert_eq!(mode(&keys, Some(force)), expected, "{force:?} {keys:?}");
        }
    }
}

#[test]
fn a_mode_that_does_not_fit_the_memory_is_not_forced() {
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1_000).map(|row| row * 100)));
    for mode in [KeyMode::Array, KeyMode::Ranges] {
        let mut slice = Slice::new(&spec(vec![DataType::Int64], vec![count()], Some(mode)));
        slice.set_array_bytes_max(0);
        slice.set_room(100_000);
        slice.update(std::slice::from_ref(&keys), &[vec![]]).unwrap();
        assert_eq!((slice.key_mode(), slice.groups()), (KeyMode::Hash, 1_000));
    }
}
