//! Slices against a plain map, in every key mode.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, StringArray, UInt8Array,
    UInt32Array,
};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use arrow::util::display::array_value_to_string;
use proptest::prelude::*;

use crate::aggregates::{avg, count, count_of, max, min, sum};
use crate::{
    Accumulator, Aggregate, GroupBy, GroupColumns, Groups, KeyMode, Part, Partitioner, RowsByOwner,
    Slice, Slices, StateError, StateOptions,
};

mod blocks;
mod modes;
mod raw;
mod sparse_ids;

fn spec(
    keys: Vec<DataType>,
    aggregates: Vec<Arc<dyn Aggregate>>,
    mode: Option<KeyMode>,
) -> Arc<GroupBy> {
    let options =
        StateOptions { key_mode: mode, array_range_max: 1 << 17, ..StateOptions::default() };
    Arc::new(GroupBy { keys, aggregates, options })
}

fn all() -> Vec<Arc<dyn Aggregate>> {
    let of = DataType::Int64;
    let native = [sum(&of), min(&of), max(&of), avg(&of)];
    [count(), count_of(&of)].into_iter().chain(native.into_iter().flatten()).collect()
}

/// All parts of a slice as one.
fn whole(mut part: impl FnMut() -> Result<Option<GroupColumns>, StateError>) -> GroupColumns {
    let parts: Vec<GroupColumns> = std::iter::from_fn(|| part().unwrap()).collect();
    let Some(first) = parts.first() else { return GroupColumns { keys: vec![], states: vec![] } };
    let column = |of: &dyn Fn(&GroupColumns) -> &ArrayRef| -> ArrayRef {
        let parts: Vec<&dyn Array> = parts.iter().map(|part| of(part).as_ref()).collect();
        concat(&parts).unwrap()
    };
    let keys = (0..first.keys.len()).map(|at| column(&|part| &part.keys[at])).collect();
    let states = (0..first.states.len()).map(|at| column(&|part| &part.states[at])).collect();
    GroupColumns { keys, states }
}

fn delta(slice: &mut Slice) -> GroupColumns {
    whole(|| slice.take_delta())
}

fn values(slice: &mut Slice) -> GroupColumns {
    whole(|| slice.take_values())
}

/// Rows of columns as text, sorted: the order of groups is no promise.
fn text(columns: &GroupColumns) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = (0..columns.rows())
        .map(|row| {
            let columns = columns.keys.iter().chain(&columns.states);
            columns.map(|column| array_value_to_string(column, row).unwrap()).collect()
        })
        .collect();
    rows.sort();
    rows
}

/// A batch of keys and values.
type Batch = Vec<(Option<i64>, Option<i64>)>;

fn oracle(batches: &[Batch]) -> Vec<Vec<String>> {
    let mut groups = BTreeMap::<Option<i64>, (i64, Vec<i64>)>::new();
    for &(key, value) in batches.iter().flatten() {
        let group = groups.entry(key).or_default();
        group.0 += 1;
        group.1.extend(value);
    }
    let show = |value: Option<i64>| value.map_or(String::new(), |value| value.to_string());
    let mut rows: Vec<Vec<String>> = groups
        .into_iter()
        .map(|(key, (rows, values))| {
            let total: i128 = values.iter().map(|&value| i128::from(value)).sum();
            let some = !values.is_empty();
            let mean = total as f64 / values.len() as f64;
            vec![
                show(key),
                rows.to_string(),
                values.len().to_string(),
                show(some.then_some(total as i64)),
                show(values.iter().min().copied()),
                show(values.iter().max().copied()),
                if some { format!("{mean:?}") } else { String::new() },
            ]
        })
        .collect();
    rows.sort();
    rows
}

fn columns(batch: &Batch, key: &DataType) -> (ArrayRef, ArrayRef) {
    let keys: Int64Array = batch.iter().map(|row| row.0).collect();
    let values: Int64Array = batch.iter().map(|row| row.1).collect();
    (cast(&keys, key).unwrap(), Arc::new(values))
}

/// Deals batches out to workers in turn; every other batch its worker gives the others' groups
/// away. The values of all.
fn late_merge(spec: &Arc<GroupBy>, batches: &[Batch], workers: usize) -> GroupColumns {
    let mut states: Vec<Slices> = (0..workers).map(|_| Slices::new(spec)).collect();
    let mut partitioner = Partitioner::in_blocks(workers as u32);
    let mut end_epoch = |states: &mut [Slices], worker: usize| {
        let mut deltas = vec![];
        let keep = |start, split: &RowsByOwner, columns: &GroupColumns| {
            for other in (0..workers).filter(|&other| other != worker) {
                if split.rows(other as u32) > 0 {
                    deltas.push((other, start, split.select(other as u32, columns)?));
                }
            }
            Ok::<_, StateError>(())
        };
        states[worker].take_remote_groups(worker as u32, &mut partitioner, keep).unwrap();
        for (other, start, delta) in deltas {
            states[other].merge(start, &delta.keys, &delta.states).unwrap();
        }
    };
    for (at, batch) in batches.iter().enumerate() {
        let (keys, value) = columns(batch, &spec.keys[0]);
        let rows_alone =
            matches!(&spec.aggregates[..], [only] if only.sparse_ids() == count().sparse_ids());
        let args = if rows_alone { vec![vec![]] } else { vec![vec![value]; spec.aggregates.len()] };
        states[at % workers].update(0, batch.len(), &[keys], &args).unwrap();
        if at % 2 == 1 {
            end_epoch(&mut states, at % workers);
        }
    }
    (0..workers).for_each(|worker| end_epoch(&mut states, worker));
    let give = |_: i64, _: &RowsByOwner, columns: &GroupColumns| {
        assert_eq!(columns.rows(), 0, "nothing has come since");
        Ok::<_, StateError>(())
    };
    states[0].take_remote_groups(0, &mut Partitioner::new(workers as u32), give).unwrap();
    let mut at = 0;
    whole(|| {
        while let Some(state) = states.get_mut(at) {
            let values = state.take_values(0)?;
            if values.is_some() {
                return Ok(values);
            }
            at += 1;
        }
        Ok(None)
    })
}

fn batches(nulls: u32) -> impl Strategy<Value = Vec<Batch>> {
    let key = prop_oneof![
        8 => (-20i64..100).prop_map(Some),
        1 => (-100_000_000i64..100_000_000).prop_map(Some),
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(0)].prop_map(Some),
        nulls => Just(None),
    ];
    let value = prop_oneof![9 => (-50i64..50).prop_map(Some), nulls => Just(None)];
    prop::collection::vec(prop::collection::vec((key, value), 0..40), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn every_mode_equals_the_oracle(
        with in batches(1),
        without in batches(0),
        workers in 1usize..4,
    ) {
        let modes = [None].into_iter().chain(KeyMode::ALL.map(Some));
        for batches in [with, without] {
            let expected = oracle(&batches);
            for mode in modes.clone() {
                let spec = spec(vec![DataType::Int64], all(), mode);
                let merged = text(&late_merge(&spec, &batches, workers));
                prop_assert_eq!(&merged, &expected, "{:?}", mode);
            }
            let spec = spec(vec![DataType::Utf8], all(), None);
            prop_assert_eq!(&text(&late_merge(&spec, &batches, workers)), &expected);
        }
    }

    #[test]
    fn array_moves_with_its_range(
        batches in prop::collection::vec(
            (-3i64..3, prop::collection::vec(0i64..30_000, 1..200)),
            1..6,
        ),
    ) {
        // Each batch is somewhere else, so that the range grows on both ends and gets too sparse at
        // times.
        let batch = |(at, keys): (i64, Vec<i64>)| {
            keys.iter().map(|key| (Some(at * 60_000 + key), Some(*key))).collect()
        };
        let batches: Vec<Batch> = batches.into_iter().map(batch).collect();
        let expected = oracle(&batches);
        let spec = spec(vec![DataType::Int64], all(), None);
        for workers in 1..3 {
            prop_assert_eq!(&text(&late_merge(&spec, &batches, workers)), &expected);
        }
    }

    #[test]
    fn short_epochs_take_the_groups_that_they_touched(
        first in prop::collection::vec(0i64..3_000, 500..600),
        more in prop::collection::vec(
            prop::collection::vec(prop::option::weighted(0.9, -200i64..20_000), 0..6),
            1..12,
        ),
        workers in 2usize..4,
    ) {
        let row = |key: Option<i64>| (key, Some(key.unwrap_or(0) % 7));
        let batch = |keys: Vec<Option<i64>>| keys.into_iter().map(row).collect();
        let first = first.into_iter().map(Some).collect();
        let batches: Vec<Batch> = std::iter::once(first).chain(more).map(batch).collect();
        let expected = oracle(&batches);
        let of = DataType::Int64;
        // By the column of what is expected.
        let alone = [Some(count()), max(&of), avg(&of)].into_iter().flatten().zip([1, 5, 6]);
        for (aggregate, column) in alone {
            let spec = spec(vec![of.clone()], vec![aggregate], Some(KeyMode::Array));
            let expected: Vec<_> =
                expected.iter().map(|row| vec![row[0].clone(), row[column].clone()]).collect();
            prop_assert_eq!(&text(&late_merge(&spec, &batches, workers)), &expected);
        }
        let spec = spec(vec![of], all(), None);
        prop_assert_eq!(&text(&late_merge(&spec, &batches, workers)), &expected);
    }

    #[test]
    fn rows_that_wait_are_counted(
        keys in prop::collection::vec(
            (1i64..3_000, prop::collection::vec(prop::option::weighted(0.99, 0i64..3_000), 0..600)),
            1..10,
        ),
        workers in 1usize..3,
    ) {
        // Of some batches all keys are few.
        let batch = |(few, keys): (i64, Vec<Option<i64>>)| {
            keys.into_iter().map(|key| (key.map(|key| key % few), None)).collect()
        };
        let batches: Vec<Batch> = keys.into_iter().map(batch).collect();
        let counts = |row: Vec<String>| row.into_iter().take(2).collect::<Vec<_>>();
        let expected: Vec<_> = oracle(&batches).into_iter().map(counts).collect();
        for mode in [None].into_iter().chain(KeyMode::ALL.map(Some)) {
            let spec = spec(vec![DataType::Int64], vec![count()], mode);
            prop_assert_eq!(&text(&late_merge(&spec, &batches, workers)), &expected, "{:?}", mode);
        }
    }
}

#[test]
fn rows_wait_until_they_come_unevenly() {
    let spec = spec(vec![DataType::Int64], vec![count()], None);
    let mut slice = Slice::new(&spec);
    let update = |slice: &mut Slice, keys: &dyn Fn(i64) -> i64| {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..4_000).map(keys)));
        slice.update(&[keys], &[vec![]]).unwrap();
        (slice.key_mode(), slice.groups())
    };
    assert_eq!(update(&mut slice, &|i| i), (KeyMode::Array, 4_000), "all keys are new");
    assert_eq!(update(&mut slice, &|i| i * 1_237 % 4_000), (KeyMode::Ranges, 4_000));
    assert_eq!(update(&mut slice, &|_| 77), (KeyMode::Array, 4_000));
    assert_eq!(update(&mut slice, &|i| i * 1_237 % 4_000), (KeyMode::Array, 4_000));
    let counts = values(&mut slice);
    assert_eq!(counts.rows(), 4_000);
    assert_eq!(counts.states[0].as_primitive::<Int64Type>().value(77), 4_003);
    update(&mut slice, &|i| i);
    let next = update(&mut slice, &|i| i * 1_237 % 4_000);
    assert_eq!(next, (KeyMode::Ranges, 4_000), "of the next window");
    assert_eq!(update(&mut slice, &|i| i), (KeyMode::Array, 4_000), "neighbours come together");
}

#[test]
fn keys_come_back_in_their_types() {
    use DataType::*;
    let dictionary = Dictionary(Box::new(Int32), Box::new(Utf8));
    let single = [
        (Boolean, KeyMode::Tiny),
        (UInt8, KeyMode::Tiny),
        (Int16, KeyMode::Tiny),
        (Date32, KeyMode::Tiny),
        (UInt64, KeyMode::Tiny),
        (Timestamp(TimeUnit::Millisecond, Some("+00:00".into())), KeyMode::Tiny),
        (Float64, KeyMode::Hash),
        (Utf8, KeyMode::Wide),
        (LargeUtf8, KeyMode::Wide),
        (Utf8View, KeyMode::Wide),
        (Binary, KeyMode::Wide),
        (BinaryView, KeyMode::Wide),
        (dictionary, KeyMode::Wide),
        (Decimal128(20, 2), KeyMode::Wide),
    ];
    let source: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(0), Some(1), None]));
    for (key, mode) in single {
        let source = match &key {
            Date32 => cast(&source, &Int32).unwrap(),
            Dictionary(_, _) | Utf8View | Binary | BinaryView => cast(&source, &Utf8).unwrap(),
            _ => source.clone(),
        };
        let keys = cast(&source, &key).unwrap();
        let spec = spec(vec![key.clone()], vec![count()], None);
        let mut slice = Slice::new(&spec);
        slice.update(std::slice::from_ref(&keys), &[vec![]]).unwrap();
        assert_eq!((slice.key_mode(), slice.groups()), (mode, 3), "{key}");
        let delta = delta(&mut slice);
        assert_eq!(delta.keys[0].data_type(), &key);
        let mut merged = Slice::new(&spec);
        merged.merge(&delta.keys, &delta.states).unwrap();
        let mut counts: Vec<String> = text(&values(&mut merged)).concat();
        counts.sort();
        assert_eq!(counts.iter().filter(|text| *text == "2").count(), 2, "{key}: {counts:?}");
    }
}

#[test]
fn several_keys_are_packed_or_wide() {
    let a: ArrayRef = Arc::new(Int64Array::from(vec![Some(-1), None, Some(-1), None]));
    let b: ArrayRef = Arc::new(UInt8Array::from(vec![Some(0), Some(0), Some(0), None]));
    let c: ArrayRef = Arc::new(StringArray::from(vec!["x", "x", "x", "x"]));
    let f: ArrayRef = Arc::new(Float64Array::from(vec![0.0, 1.0, -0.0, f64::NAN]));
    let cases = [
        (vec![a.clone(), b.clone()], KeyMode::Packed, 3),
        (vec![b.clone(), a.clone()], KeyMode::Packed, 3),
        (vec![a.clone(), b.clone(), c], KeyMode::Wide, 3),
        (vec![a.clone(), f.clone(), b.clone()], KeyMode::Packed, 3),
        (vec![b.clone(), a.clone(), f.clone(), a.clone()], KeyMode::Packed, 3),
        (vec![a.clone(), f, b, a.clone(), a], KeyMode::Wide, 3),
    ];
    for (keys, mode, groups) in cases {
        let types = keys.iter().map(|key| key.data_type().clone()).collect();
        let mut slice = Slice::new(&spec(types, vec![count()], None));
        slice.update(&keys, &[vec![]]).unwrap();
        assert_eq!((slice.key_mode(), slice.groups()), (mode, groups));
        let values = values(&mut slice);
        assert_eq!(values.rows(), groups);
        for (key, given) in values.keys.iter().zip(&keys) {
            assert_eq!(key.data_type(), given.data_type());
            assert_eq!(key.null_count() > 0, given.null_count() > 0);
        }
    }
}

#[test]
fn zeros_are_one_group_and_so_are_nans() {
    let quiet = f64::from_bits(f64::NAN.to_bits() | 1);
    let keys: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, quiet, -f64::NAN]));
    for mode in [KeyMode::Hash, KeyMode::Wide] {
        let mut slice = Slice::new(&spec(vec![DataType::Float64], vec![count()], Some(mode)));
        slice.update(std::slice::from_ref(&keys), &[vec![]]).unwrap();
        assert_eq!((slice.groups(), slice.key_mode()), (2, mode));
    }
}

#[test]
fn without_keys_there_is_one_group() {
    let of = DataType::Int64;
    let spec = spec(vec![], vec![count(), sum(&of).unwrap()], None);
    let mut slice = Slice::new(&spec);
    assert_eq!(values(&mut slice).rows(), 0);
    let values: ArrayRef = Arc::new(Int64Array::from(vec![5, 6]));
    slice.update_rows(2, &[], &[vec![], vec![values]]).unwrap();
    assert_eq!(text(&delta(&mut slice)), [["2", "11", "0"]], "the count, the sum, its carry");
    let nothing = GroupColumns { keys: vec![], states: spec.of_nothing().unwrap() };
    assert_eq!(text(&nothing), [["0", ""]]);
    let missing = Slice::new(&spec).update(&[], &[vec![], vec![]]);
    assert!(matches!(missing, Err(StateError::Shape { .. })), "nothing tells the number of rows");
}

#[test]
fn a_dense_range_moves_from_hash_to_array() {
    let options = StateOptions::default();
    let spec = GroupBy { keys: vec![DataType::Int64], aggregates: vec![count()], options };
    let spec = Arc::new(spec);
    let mut slice = Slice::new(&spec);
    let keys = |from: i64| -> ArrayRef {
        let keys = (from..from + 4096).map(|i| Some(i * 7919 % 100_003 * 7));
        Arc::new(keys.collect::<Int64Array>())
    };
    slice.update(&[keys(0)], &[vec![]]).unwrap();
    assert_eq!(slice.key_mode(), KeyMode::Hash, "700,000 keys of 4,096 groups are sparse");
    (1..25).for_each(|i| slice.update(&[keys(i * 4096)], &[vec![]]).unwrap());
    assert_eq!((slice.key_mode(), slice.groups()), (KeyMode::Ranges, 100_003), "an array");
    let far: ArrayRef = Arc::new(Int64Array::from(vec![1 << 40]));
    slice.update(&[far], &[vec![]]).unwrap();
    assert_eq!((slice.key_mode(), slice.groups()), (KeyMode::Hash, 100_004));
    assert_eq!(delta(&mut slice).rows(), 100_004);
    slice.update(&[keys(0)], &[vec![]]).unwrap();
    assert_eq!(slice.groups(), 4096, "an emptied slice starts from zero");
}

#[test]
fn no_table_grows_beyond_the_budget() {
    let scattered = |i: i64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    let word = |i: i64| Arc::new(Int64Array::from(vec![i; 1])) as ArrayRef;
    let text = |i: i64| Arc::new(StringArray::from(vec![format!("key {i}")])) as ArrayRef;
    type Keys<'a> = &'a dyn Fn(i64) -> Vec<ArrayRef>;
    let kinds: [(KeyMode, Keys); 4] = [
        (KeyMode::Array, &|i| vec![word(i)]),
        (KeyMode::Hash, &|i| vec![word(scattered(i))]),
        (KeyMode::Packed, &|i| vec![word(scattered(i)), Arc::new(BooleanArray::from(vec![true]))]),
        (KeyMode::Wide, &|i| vec![text(i)]),
    ];
    for (mode, keys) in kinds {
        let options = StateOptions { budget_bytes: 4 << 20, ..StateOptions::default() };
        let types = keys(0).iter().map(|key| key.data_type().clone()).collect();
        let aggregates = vec![count(), sum(&DataType::Float64).unwrap()];
        let mut slices = Slices::new(&Arc::new(GroupBy { keys: types, aggregates, options }));
        let one: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
        let mut groups = 0;
        let error = loop {
            match slices.update(0, 1, &keys(groups), &[vec![], vec![one.clone()]]) {
                Ok(()) => groups += 1,
                Err(error) => break error,
            }
            assert!(slices.bytes() <= (4 << 20) + (16 << 10), "{mode:?}: {}", slices.bytes());
        };
        assert!(matches!(error, StateError::Budget { bytes, .. } if bytes >= 4 << 20), "{error}");
        assert!(slices.bytes() > 4 << 18, "{mode:?} gave up at {}", slices.bytes());
        assert_eq!(slices.get(0).map(|slice| slice.key_mode()), Some(mode));
    }
}

#[test]
fn a_budget_holds_and_frees_recycled_memory() {
    let options = StateOptions { budget_bytes: 1 << 20, ..StateOptions::default() };
    let spec = GroupBy { keys: vec![DataType::Int64], aggregates: vec![count()], options };
    let mut slices = Slices::new(&Arc::new(spec));
    let keys = |from: i64| -> Vec<ArrayRef> {
        vec![Arc::new((from..from + 8192).map(|i| Some(i << 20)).collect::<Int64Array>())]
    };
    let mut filled = 0;
    let error = loop {
        match slices.update(filled, 8192, &keys(filled << 13), &[vec![]]) {
            Ok(()) => filled += 1,
            Err(error) => break error,
        }
    };
    let StateError::Budget { bytes, budget } = error else { panic!("{error}") };
    assert!(bytes >= budget && bytes == slices.bytes() && filled > 1);
    assert_eq!((slices.len() as i64, slices.first()), (filled, Some(0)), "nothing was applied");
    assert_eq!(whole(|| slices.take_values(0)).rows(), 8192);
    assert_eq!(slices.first(), Some(1));
    assert!(slices.drop_slice(1) && !slices.drop_slice(1));
    assert!(slices.take_delta(1).unwrap().is_none());
    slices.update(0, 8192, &keys(0), &[vec![]]).unwrap();
    while let Some(start) = slices.first() {
        slices.take_delta(start).unwrap();
    }
    assert!(slices.is_empty() && slices.bytes() < 1 << 20, "two free slices are kept");
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let mut slice = Slice::new(&spec(vec![DataType::Int64], vec![count()], None));
    let key: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1"]));
    assert!(matches!(slice.update(&[text], &[vec![]]), Err(StateError::Type { .. })));
    assert!(matches!(slice.update(&[], &[vec![]]), Err(StateError::Shape { .. })));
    assert!(matches!(slice.update(std::slice::from_ref(&key), &[]), Err(StateError::Shape { .. })));
    assert!(matches!(slice.merge(std::slice::from_ref(&key), &[]), Err(StateError::Shape { .. })));
    let two: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    assert!(matches!(slice.merge(&[key], &[two]), Err(StateError::Shape { .. })));
}

#[test]
fn owners_do_not_depend_on_layout() {
    use DataType::*;
    let strings = vec![Some("a"), None, Some(""), Some("a longer string than a view"), Some("a")];
    let strings: ArrayRef = Arc::new(StringArray::from(strings));
    let dictionary = Dictionary(Box::new(Int8), Box::new(Utf8));
    let mut partitioner = Partitioner::new(1000);
    let mut owners = |key: ArrayRef| {
        let mut out = vec![];
        partitioner.owners_of(&[key], &mut out).unwrap();
        out
    };
    let expected = owners(strings.clone());
    assert_eq!(expected[0], expected[4]);
    for layout in [LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView, dictionary] {
        assert_eq!(owners(cast(&strings, &layout).unwrap()), expected, "{layout}");
    }
    let sliced = owners(strings.slice(2, 3));
    assert_eq!(sliced, expected[2..]);
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, -f64::NAN]));
    let floats = owners(floats);
    assert!(floats[0] == floats[1] && floats[2] == floats[3] && floats[0] != floats[2]);
    // What nodes of different versions must agree on.
    let golden: ArrayRef = Arc::new(Int64Array::from(vec![Some(0), Some(1), Some(-1), None]));
    assert_eq!(owners(golden), GOLDEN);
}

/// Owners among 1,000 of 0, 1, −1 and NULL.
const GOLDEN: [u32; 4] = [343, 676, 375, 310];

#[test]
fn a_delta_is_split_in_order() {
    let keys: ArrayRef = Arc::new((0..1000).map(Some).collect::<Int64Array>());
    let with_null: ArrayRef =
        Arc::new((0..1000).map(|i| (i != 7).then_some(i)).collect::<Int64Array>());
    let shuffled: ArrayRef =
        Arc::new((0..1000).map(|i| Some(i * 7919 % 1000)).collect::<Int64Array>());
    let mut split = RowsByOwner::default();
    for (mut partitioner, keys, least) in [
        (Partitioner::new(3), vec![keys.clone(), keys.clone()], 250),
        (Partitioner::new(3), vec![keys.clone()], 250),
        (Partitioner::in_blocks(3), vec![keys.clone()], 64),
        (Partitioner::in_blocks(3), vec![with_null], 64),
        (Partitioner::in_blocks(3), vec![shuffled], 64),
        (Partitioner::in_blocks(3), vec![keys.clone(), keys.clone()], 250),
    ] {
        let text: ArrayRef =
            Arc::new(StringArray::from_iter((0..1000).map(|i| Some(format!("{i}")))));
        let columns = GroupColumns { keys, states: vec![numbers(), text] };
        partitioner.split(&columns, &mut split).unwrap();
        let mut owners = vec![];
        partitioner.owners_of(&columns.keys, &mut owners).unwrap();
        assert_eq!(split.owners(), 3);
        for owner in 0..3 {
            let rows: Vec<u32> = split.runs(owner).iter().cloned().flatten().collect();
            assert!(rows.is_sorted() && rows.len() >= least, "{} of 1000", rows.len());
            assert_eq!(rows.len(), split.rows(owner));
            assert!(rows.iter().all(|&row| owners[row as usize] == owner));
            let selected = split.select(owner, &columns).unwrap();
            let rows = UInt32Array::from(rows);
            let all = columns.keys.iter().chain(&columns.states);
            for (column, selected) in all.zip(selected.keys.iter().chain(&selected.states)) {
                assert_eq!(&take(column, &rows, None).unwrap(), selected);
            }
        }
        assert_eq!((0..4).map(|owner| split.rows(owner)).sum::<usize>(), 1000);
    }
    let mut partitioner = Partitioner::in_blocks(3);
    let columns = GroupColumns { keys: vec![keys], states: vec![numbers()] };
    partitioner.split(&columns, &mut split).unwrap();
    // Neighbours whose blocks have one owner are one run.
    assert!((0..3).map(|owner| split.runs(owner).len()).sum::<usize>() <= 16);
    let none = GroupColumns { keys: vec![], states: columns.states };
    partitioner.split(&none, &mut split).unwrap();
    assert_eq!((split.rows(0), split.rows(1)), (1000, 0));
}

fn numbers() -> ArrayRef {
    Arc::new((0..1000).map(Some).collect::<Int64Array>())
}
