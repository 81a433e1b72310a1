//! Ids against a plain map of rows, for keys of every mode.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::DataType::{self, *};
use arrow::util::display::array_value_to_string;
use proptest::prelude::*;

use super::{KeyTable, NullKeys};
use crate::StateError;

/// Types of keys: of one word, packed, encoded as they are, and encoded by rows.
fn types() -> Vec<Vec<DataType>> {
    let one = [Int64, UInt8, Float64, Boolean, Utf8, Utf8View, LargeUtf8, Binary, BinaryView];
    let several = [
        vec![Int32, Boolean],
        vec![Int64, UInt8, Int32],
        vec![Int64, Int64],
        vec![Int64, Int64, Int64],
        vec![Int64, Utf8],
        vec![Utf8, Utf8View],
        vec![Decimal128(20, 0)],
        vec![],
    ];
    one.into_iter().map(|key| vec![key]).chain(several).collect()
}

/// A column of a type, made of numbers; the same number in dictionary form if `packed`.
fn column(data_type: &DataType, values: &[Option<u8>], packed: bool) -> ArrayRef {
    // Booleans must come from numbers, binaries from text.
    let numbers: ArrayRef =
        Arc::new(values.iter().map(|v| v.map(i64::from)).collect::<Int64Array>());
    let plain = match data_type {
        Binary | BinaryView => cast(&cast(&numbers, &Utf8).unwrap(), data_type).unwrap(),
        _ => cast(&numbers, data_type).unwrap(),
    };
    if packed {
        let into = Dictionary(Box::new(Int32), Box::new(data_type.clone()));
        // Arrow packs not every type.
        cast(&plain, &into).unwrap_or(plain)
    } else {
        plain
    }
}

fn columns(types: &[DataType], rows: &Rows, packed: bool) -> Vec<ArrayRef> {
    let values = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
    types.iter().enumerate().map(|(at, key)| column(key, &values(at), packed)).collect()
}

/// Rows of three values each.
type Rows = Vec<[Option<u8>; 3]>;

/// The key of a row in a map; nothing if it is equal to nothing.
fn key(columns: &[ArrayRef], row: usize, nulls: NullKeys) -> Option<Vec<Option<String>>> {
    let text = |column: &ArrayRef| {
        let plain = match column.data_type() {
            Dictionary(_, values) => cast(column, values).unwrap(),
            _ => column.clone(),
        };
        plain.is_valid(row).then(|| array_value_to_string(&plain, row).unwrap())
    };
    let key: Vec<_> = columns.iter().map(text).collect();
    (nulls == NullKeys::Equal || key.iter().all(Option::is_some)).then_some(key)
}

fn some_rows() -> impl Strategy<Value = Rows> {
    let value = prop_oneof![1 => Just(None), 6 => (0..12u8).prop_map(Some)];
    prop::collection::vec([value.clone(), value.clone(), value], 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn ids_are_those_of_a_map(
        batches in prop::collection::vec((some_rows(), any::<bool>(), any::<bool>()), 1..6),
        (clear_at, retain_at) in (0..6usize, 0..6usize),
    ) {
        for types in types() {
            for nulls in [NullKeys::Equal, NullKeys::Nothing] {
                let mut table = KeyTable::new(&types, nulls).unwrap();
                let mut map = HashMap::new();
                let mut ids = vec![7];
                for (at, (rows, packed, add)) in batches.iter().enumerate() {
                    if at == clear_at {
                        table.retain(&[]).unwrap();
                        map.clear();
                    }
                    if at == retain_at {
                        let all = 0..map.len() as u32;
                        let kept: Vec<u32> = all.filter(|id| id % 3 != 1).collect();
                        table.retain(&kept).unwrap();
                        let place = |id: u32| kept.binary_search(&id).ok().map(|at| at as u32);
                        let ids = map.drain().filter_map(|(key, id)| Some((key, place(id)?)));
                        map = ids.collect();
                    }
                    let columns = columns(&types, rows, *packed);
                    if *add {
                        table.intern(&columns, rows.len(), &mut ids).unwrap();
                    } else {
                        table.find(&columns, rows.len(), &mut ids).unwrap();
                    }
                    let expected = (0..rows.len()).map(|row| {
                        let Some(key) = key(&columns, row, nulls) else { return KeyTable::UNKNOWN };
                        let next = map.len() as u32;
                        if *add {
                            *map.entry(key).or_insert(next)
                        } else {
                            map.get(&key).copied().unwrap_or(KeyTable::UNKNOWN)
                        }
                    });
                    prop_assert_eq!(&ids, &expected.collect::<Vec<_>>(), "{:?} {:?}", types, nulls);
                    prop_assert_eq!(table.len(), map.len());
                    prop_assert_eq!(table.is_empty(), map.is_empty());
                }
            }
        }
    }
}

#[test]
fn a_table_grows_and_still_finds() {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..200_000).map(|i| i * 977)));
    let text = cast(&numbers, &Utf8).unwrap();
    for keys in [vec![numbers.clone()], vec![numbers.clone(), numbers.clone()], vec![text]] {
        let types: Vec<DataType> = keys.iter().map(|key| key.data_type().clone()).collect();
        let mut table = KeyTable::new(&types, NullKeys::Nothing).unwrap();
        let (mut ids, mut found) = (vec![], vec![]);
        table.intern(&keys, numbers.len(), &mut ids).unwrap();
        assert!(ids.iter().enumerate().all(|(row, &id)| row == id as usize));
        assert!(table.bytes() > numbers.len() * 16, "{} bytes", table.bytes());
        let back = UInt32Array::from_iter_values((0..numbers.len() as u32).rev());
        let reversed: Vec<ArrayRef> =
            keys.iter().map(|key| take(key, &back, None).unwrap()).collect();
        table.find(&reversed, numbers.len(), &mut found).unwrap();
        assert!(found.iter().rev().eq(&ids));
    }
}

#[test]
fn floats_have_one_zero_and_one_nan() {
    let keys: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN, 1.0]));
    let mut ids = vec![];
    for keys in [vec![keys.clone()], vec![keys.clone(), keys.clone()]] {
        let types: Vec<DataType> = keys.iter().map(|_| Float64).collect();
        let mut table = KeyTable::new(&types, NullKeys::Nothing).unwrap();
        table.intern(&keys, 5, &mut ids).unwrap();
        assert_eq!(ids, [0, 0, 1, 1, 2]);
    }
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let mut table = KeyTable::new(&[Int64], NullKeys::Equal).unwrap();
    let ids = &mut vec![];
    let shape = |result| matches!(result, Err(StateError::Shape { .. }));
    assert!(shape(table.intern(&[], 2, ids)));
    assert!(shape(table.intern(std::slice::from_ref(&numbers), 3, ids)));
    assert!(shape(table.find(&[numbers.clone(), numbers], 2, ids)));
    assert!(matches!(table.find(&[text], 2, ids), Err(StateError::Type { .. })));
    assert!(table.is_empty());
}
