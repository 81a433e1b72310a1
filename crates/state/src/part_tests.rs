//! Slices that are drained in many parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use proptest::prelude::*;

use crate::aggregates::{count, max, sum};
use crate::{GroupBy, GroupColumns, KeyMode, Slice, Slices, StateError, StateOptions};

/// As many groups as a part aims at.
const PART: i64 = 1 << 14;

fn spec(keys: Vec<DataType>, mode: Option<KeyMode>) -> Arc<GroupBy> {
    let of = DataType::Int64;
    let aggregates = [sum(&of), max(&of)].into_iter().flatten().chain([count()]).collect();
    let options = StateOptions { key_mode: mode, ..StateOptions::default() };
    Arc::new(GroupBy { keys, aggregates, options })
}

fn parts(slice: &mut Slice) -> Vec<GroupColumns> {
    std::iter::from_fn(|| slice.take_delta().unwrap()).collect()
}

/// Sum, maximum and count by key.
type Groups = BTreeMap<Option<i64>, (Option<i64>, Option<i64>, i64)>;

/// What the parts say, whose first key is a number or its digits.
fn announced(parts: &[GroupColumns]) -> Groups {
    let mut groups = Groups::new();
    for part in parts {
        assert!(part.rows() > 0, "a part has rows");
        let keys = cast(&part.keys[0], &DataType::Int64).unwrap();
        let numbers = |column: &ArrayRef| column.as_primitive::<Int64Type>().clone();
        // Behind the sums there are their carries.
        let [sums, _, most, counts] = &part.states[..] else { panic!("{:?}", part.states) };
        let (keys, counts) = (numbers(&keys), numbers(counts));
        let (sums, most) = (numbers(sums), numbers(most));
        for row in 0..part.rows() {
            let value = |column: &Int64Array| column.is_valid(row).then(|| column.value(row));
            let group = (value(&sums), value(&most), counts.value(row));
            assert!(groups.insert(value(&keys), group).is_none(), "a group is in one part");
        }
    }
    groups
}

fn fill(slice: &mut Slice, key: &DataType, rows: &[(Option<i64>, Option<i64>)]) -> Groups {
    let mut groups = Groups::new();
    for rows in rows.chunks(8192) {
        let keys: ArrayRef = Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>());
        let values: ArrayRef = Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>());
        let args = [vec![values.clone()], vec![values], vec![]];
        slice.update(&[cast(&keys, key).unwrap()], &args).unwrap();
        for &(key, value) in rows {
            let group = groups.entry(key).or_default();
            group.0 = group.0.map_or(value, |sum| Some(sum + value.unwrap_or(0)));
            group.1 = group.1.max(value);
            group.2 += 1;
        }
    }
    groups
}

/// Keys of a slice, and whether one of them and some values are null.
fn keys() -> impl Strategy<Value = (Vec<i64>, bool)> {
    let edge = prop_oneof![Just(-1i64), Just(0), Just(1)];
    let length = (0..4i64, edge).prop_map(|(parts, edge)| (parts * PART + edge).max(0));
    // Without holes, with some, and with more than a part has ids.
    let step = prop_oneof![Just(1i64), Just(2), Just(3), Just(60), Just(5_003)];
    let far = prop_oneof![Just(0i64), Just(3 * PART), Just(40 * PART)];
    (length, step, far, -3i64..3, any::<bool>()).prop_map(|(length, step, far, from, nulls)| {
        let key = |i| from * PART + i * step + if 2 * i < length { 0 } else { far };
        ((0..length.min(200 * PART / step)).map(key).collect(), nulls)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn parts_together_are_the_slice(rounds in prop::collection::vec(keys(), 1..4)) {
        let modes = [
            (DataType::Int64, None),
            (DataType::Int64, Some(KeyMode::Hash)),
            (DataType::Utf8, None),
        ];
        for (key, mode) in modes {
            let spec = spec(vec![key.clone()], mode);
            let (mut slice, mut leader) = (Slice::new(&spec), Slice::new(&spec));
            for (keys, nulls) in &rounds {
                let value = |key: i64| (!nulls || key % 7 != 0).then_some(key % 11);
                let mut rows: Vec<_> = keys.iter().map(|&key| (Some(key), value(key))).collect();
                rows.extend(keys.iter().step_by(5).map(|&key| (Some(key), Some(3))));
                rows.extend(nulls.then_some((None, Some(1))));
                let expected = fill(&mut slice, &key, &rows);
                prop_assert_eq!(slice.groups(), expected.len());
                let parts = parts(&mut slice);
                prop_assert_eq!(&announced(&parts), &expected);
                prop_assert!(slice.is_empty() && slice.groups() == 0);
                for part in &parts {
                    leader.merge(&part.keys, &part.states).unwrap();
                }
                prop_assert_eq!(announced(&self::parts(&mut leader)), expected, "merged");
            }
        }
    }
}

#[test]
fn several_keys_come_in_parts_too() {
    let spec = spec(vec![DataType::Int64, DataType::Int64], None);
    let mut slice = Slice::new(&spec);
    let keys: ArrayRef = Arc::new(Int64Array::from_iter((0..40_000).map(|i| (i > 0).then_some(i))));
    let halves: ArrayRef = Arc::new(Int64Array::from_iter_values((0..40_000).map(|i| i / 2)));
    let args = [vec![keys.clone()], vec![keys.clone()], vec![]];
    slice.update(&[keys, halves], &args).unwrap();
    let parts = parts(&mut slice);
    let rows: Vec<usize> = parts.iter().map(GroupColumns::rows).collect();
    assert_eq!(rows, [16_384, 16_384, 7_232]);
    for (row, key) in [(0, 16_384), (1, 16_385), (16_383, 32_767)] {
        let value = |column: &ArrayRef| column.as_primitive::<Int64Type>().value(row);
        assert_eq!((value(&parts[1].keys[0]), value(&parts[1].keys[1])), (key, key / 2));
    }
    assert!(parts[0].keys[0].is_null(0) && parts[1].keys[0].null_count() == 0);
}

#[test]
fn long_strings_come_back_from_the_right_part() {
    let spec = spec(vec![DataType::Utf8], None);
    let mut slice = Slice::new(&spec);
    let name = |i: i64| (i != 20_000).then(|| format!("{i:0width$}", width = (i % 40) as usize));
    let keys: ArrayRef = Arc::new((0..40_000).map(name).collect::<StringArray>());
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..40_000));
    slice.update(&[keys], &[vec![values.clone()], vec![values], vec![]]).unwrap();
    let mut seen = 0;
    for part in parts(&mut slice) {
        let names = part.keys[0].as_string::<i32>();
        let values = part.states[0].as_primitive::<Int64Type>();
        for (key, value) in names.iter().zip(values.values()) {
            assert_eq!(key.map(str::to_string), name(*value));
            seen += 1;
        }
    }
    assert_eq!(seen, 40_000);
}

#[test]
fn a_slice_takes_no_rows_while_it_is_drained() {
    let spec = spec(vec![DataType::Int64], None);
    let mut slices = Slices::new(&spec);
    let add = |slices: &mut Slices, from: i64| {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + 20_000));
        let args = [vec![keys.clone()], vec![keys.clone()], vec![]];
        slices.update(0, keys.len(), &[keys], &args)
    };
    add(&mut slices, 0).unwrap();
    let first = slices.take_values(0).unwrap().unwrap();
    // The first id is that of NULL, which has no rows.
    assert_eq!((first.rows(), slices.first()), (16_383, Some(0)));
    assert!(matches!(add(&mut slices, 0), Err(StateError::BeingDrained)));
    assert_eq!(slices.take_values(0).unwrap().unwrap().rows(), 20_000 - 16_383);
    assert!(slices.take_values(0).unwrap().is_none() && slices.is_empty());
    let held = slices.bytes();
    assert!(held > 0, "an emptied slice keeps its memory");
    add(&mut slices, 0).unwrap();
    assert_eq!(slices.bytes(), held, "which serves for the next one");
}

#[test]
fn open_slices_share_what_sparse_arrays_may_take() {
    let options = StateOptions { budget_bytes: 8 << 20, ..StateOptions::default() };
    let (keys, aggregates) = (vec![DataType::Int64], vec![count()]);
    let mut slices = Slices::new(&Arc::new(GroupBy { keys, aggregates, options }));
    // 100 keys of a range that takes half a megabyte: less than an eighth of the budget, of which
    // all together may hold a quarter.
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1_000).map(|i| i * 100)));
    let mut arrays = 0;
    for start in 0..12 {
        slices.update(start, 1_000, std::slice::from_ref(&keys), &[vec![]]).unwrap();
        arrays += usize::from(slices.get(start).unwrap().key_mode() == KeyMode::Array);
    }
    assert_eq!(arrays, 3, "the fourth would make it more");
    assert!(slices.bytes() < 8 << 20);
    let dense: ArrayRef = Arc::new(Int64Array::from_iter_values(0..8_000));
    slices.update(12, 8_000, &[dense], &[vec![]]).unwrap();
    assert_eq!(slices.get(12).unwrap().key_mode(), KeyMode::Array, "no more than hashed");
}
