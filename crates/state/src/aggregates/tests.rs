//! The laws of S10 for each aggregate: merging is commutative and associative, empty state is its
//! zero, and rows that are split anywhere give what they give in sequence. Values are small whole
//! numbers, which floats add exactly.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int64Array, TimestampMicrosecondArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit, UInt64Type};
use proptest::prelude::*;

use super::*;
use crate::{Accumulator, Groups, Part};

const GROUPS: usize = 4;

type Row = (u32, Option<i64>);
type States = Vec<ArrayRef>;

fn types() -> Vec<DataType> {
    use DataType::*;
    vec![Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float32, Float64]
}

fn all() -> Vec<(DataType, Arc<dyn Aggregate>)> {
    let mut all = vec![];
    for of in types() {
        let aggregates = [count(), count_of(&of), sum(&of).unwrap(), avg(&of).unwrap()];
        all.extend(aggregates.into_iter().map(|aggregate| (of.clone(), aggregate)));
    }
    let times = [
        DataType::Date32,
        DataType::Date64,
        DataType::Timestamp(TimeUnit::Millisecond, Some("+00:00".into())),
    ];
    for of in types().into_iter().chain(times) {
        all.push((of.clone(), min(&of).unwrap()));
        all.push((of.clone(), max(&of).unwrap()));
    }
    all
}

/// Dense ids, as an index gives them, of which each has a row: the groups of an accumulator have
/// had one.
fn update(accumulator: &mut dyn Accumulator, of: &DataType, rows: &[Row], total: usize) {
    let ids: Vec<u32> = rows.iter().map(|row| row.0).collect();
    let values: Int64Array = rows.iter().map(|row| row.1).collect();
    let narrow = match of {
        DataType::Date32 => cast(&values, &DataType::Int32).unwrap(),
        _ => Arc::new(values),
    };
    let values = cast(&narrow, of).unwrap();
    accumulator.update(&[values], &Groups::each(&ids), total).unwrap();
}

/// Rows of all groups, followed by `rows`.
fn state(aggregate: &dyn Aggregate, of: &DataType, rows: &[Row]) -> States {
    let mut accumulator = aggregate.create();
    let each: Vec<Row> = (0..GROUPS as u32).map(|group| (group, None)).collect();
    update(accumulator.as_mut(), of, &each, GROUPS);
    update(accumulator.as_mut(), of, rows, GROUPS);
    accumulator.state(&Part::all(0..GROUPS, GROUPS)).unwrap()
}

fn merged(aggregate: &dyn Aggregate, states: &[&States]) -> States {
    let mut accumulator = aggregate.create();
    let ids: Vec<u32> = (0..GROUPS as u32).collect();
    for state in states {
        accumulator.merge(state, &Groups::each(&ids), GROUPS).unwrap();
    }
    accumulator.state(&Part::all(0..GROUPS, GROUPS)).unwrap()
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let value = prop_oneof![1 => Just(None), 5 => (0i64..100).prop_map(Some)];
    prop::collection::vec((0..GROUPS as u32, value), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn merging_is_a_commutative_monoid(a in rows(), b in rows(), c in rows()) {
        for (of, aggregate) in all() {
            let aggregate = aggregate.as_ref();
            let part = |rows: &[Row]| state(aggregate, &of, rows);
            let (a, b, c) = (part(&a), part(&b), part(&c));
            let ab = merged(aggregate, &[&a, &b]);
            prop_assert_eq!(&ab, &merged(aggregate, &[&b, &a]), "commutative: {:?}", aggregate);
            let left = merged(aggregate, &[&ab, &c]);
            let right = merged(aggregate, &[&a, &merged(aggregate, &[&b, &c])]);
            prop_assert_eq!(&left, &right, "associative: {:?}", aggregate);
            prop_assert_eq!(&merged(aggregate, &[&a]), &a, "the identity: {:?}", aggregate);
        }
    }

    #[test]
    fn split_anywhere_equals_sequential(
        rows in rows(),
        cuts in prop::collection::vec(0usize..31, 3),
    ) {
        for (of, aggregate) in all() {
            let mut sequential = aggregate.create();
            let each: Vec<Row> = (0..GROUPS as u32).map(|group| (group, Some(1))).collect();
            update(sequential.as_mut(), &of, &each, GROUPS);
            update(sequential.as_mut(), &of, &rows, GROUPS);
            let mut cuts: Vec<usize> = cuts.iter().map(|&cut| cut.min(rows.len())).collect();
            cuts.extend([0, rows.len()]);
            cuts.sort_unstable();
            let mut late = aggregate.create();
            let ids: Vec<u32> = (0..GROUPS as u32).collect();
            update(late.as_mut(), &of, &each, GROUPS);
            for cut in cuts.windows(2) {
                // A part has only some of the groups: nulls fill the others, but count rows.
                let part = &rows[cut[0]..cut[1]];
                let mut accumulator = aggregate.create();
                let mut of_group = [None; GROUPS];
                let mut dense = vec![];
                for (group, value) in part {
                    let next = dense.len() as u32;
                    let id = *of_group[*group as usize].get_or_insert(next);
                    if id == next {
                        dense.push(*group);
                    }
                    update(accumulator.as_mut(), &of, &[(id, *value)], dense.len());
                }
                let state = accumulator.state(&Part::all(0..dense.len(), dense.len())).unwrap();
                late.merge(&state, &Groups::each(&dense), ids.len()).unwrap();
            }
            let late = late.values(&Part::all(0..GROUPS, GROUPS)).unwrap();
            let sequential = sequential.values(&Part::all(0..GROUPS, GROUPS)).unwrap();
            prop_assert_eq!(&late, &sequential, "{:?}", aggregate);
        }
    }
}

fn value_of(aggregate: &dyn Aggregate, argument: ArrayRef) -> ArrayRef {
    let mut accumulator = aggregate.create();
    let groups = Groups::one(0, argument.len());
    accumulator.update(&[argument], &groups, 1).unwrap();
    accumulator.values(&Part::all(0..1, 1)).unwrap()
}

#[test]
fn results_have_the_types_of_sql() {
    for of in types() {
        let expected = match &of {
            of if of.is_signed_integer() => DataType::Int64,
            of if of.is_unsigned_integer() => DataType::UInt64,
            _ => DataType::Float64,
        };
        assert_eq!(sum(&of).unwrap().output_type(), expected);
        assert_eq!(avg(&of).unwrap().output_type(), DataType::Float64);
        assert_eq!(max(&of).unwrap().output_type(), of);
    }
    for of in [DataType::Utf8, DataType::Boolean, DataType::Decimal128(10, 2)] {
        assert!(sum(&of).is_none() && avg(&of).is_none());
        assert!(min(&of).is_none() && max(&of).is_none());
    }
}

#[test]
fn of_no_value_is_null_and_counts_zero() {
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![None, None]));
    let of = DataType::Int64;
    assert_eq!(value_of(count().as_ref(), nulls.clone()).as_primitive::<Int64Type>().value(0), 2);
    let counted = value_of(count_of(&of).as_ref(), nulls.clone());
    assert_eq!(counted.as_primitive::<Int64Type>().value(0), 0);
    for aggregate in [sum(&of), min(&of), max(&of), avg(&of)] {
        assert!(value_of(aggregate.unwrap().as_ref(), nulls.clone()).is_null(0));
    }
}

#[test]
fn integer_sums_wrap_around() {
    let most: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, 1]));
    let sum = value_of(sum(&DataType::Int64).unwrap().as_ref(), most);
    assert_eq!(sum.as_primitive::<Int64Type>().value(0), i64::MIN);
}

#[test]
fn extremes_of_floats_do_not_depend_on_order() {
    let of = DataType::Float64;
    let (min, max) = (min(&of).unwrap(), max(&of).unwrap());
    let values = [f64::NAN, -0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, -f64::NAN];
    for shift in 0..values.len() {
        let mut values = values;
        values.rotate_left(shift);
        let array: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        let of = |a: &Arc<dyn Aggregate>| value_of(a.as_ref(), array.clone());
        assert!(of(&max).as_primitive::<Float64Type>().value(0).is_nan());
        assert_eq!(of(&min).as_primitive::<Float64Type>().value(0), f64::NEG_INFINITY);
    }
    for zeros in [vec![0.0, -0.0], vec![-0.0, 0.0]] {
        let array: ArrayRef = Arc::new(Float64Array::from(zeros));
        let least = value_of(min.as_ref(), array);
        assert!(least.as_primitive::<Float64Type>().value(0).is_sign_negative());
    }
}

#[test]
fn the_least_values_are_not_taken_for_nothing() {
    let array: ArrayRef = Arc::new(Int64Array::from(vec![i64::MIN]));
    let value = value_of(max(&DataType::Int64).unwrap().as_ref(), array);
    assert_eq!(value.as_primitive::<Int64Type>().value(0), i64::MIN);
    let of = DataType::Timestamp(TimeUnit::Microsecond, Some("+00:00".into()));
    let array = TimestampMicrosecondArray::from(vec![5, i64::MIN]).with_timezone("+00:00");
    let value = value_of(min(&of).unwrap().as_ref(), Arc::new(array));
    assert_eq!(value.data_type(), &of);
}

#[test]
fn counters_widen_before_they_overflow() {
    let mut accumulator = count().create();
    let most: ArrayRef = Arc::new(Int64Array::from(vec![i64::from(u32::MAX) - 1, 3]));
    accumulator.merge(std::slice::from_ref(&most), &Groups::each(&[0, 1]), 2).unwrap();
    accumulator.merge(&[most], &Groups::each(&[0, 1]), 2).unwrap();
    accumulator.update(&[], &Groups::one(1, 4), 2).unwrap();
    let counts = accumulator.values(&Part::all(0..2, 2)).unwrap();
    assert_eq!(counts.as_primitive::<Int64Type>().values(), &[2 * i64::from(u32::MAX) - 2, 10]);
    accumulator.clear(2);
    let counts = accumulator.values(&Part::all(0..2, 2)).unwrap();
    assert_eq!(counts.as_primitive::<Int64Type>().values(), &[0, 0]);
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let mut accumulator = sum(&DataType::Int64).unwrap().create();
    let groups = Groups::one(0, 1);
    let float: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    assert!(matches!(accumulator.update(&[float], &groups, 1), Err(StateError::Type { .. })));
    assert!(matches!(accumulator.update(&[], &groups, 1), Err(StateError::Shape { .. })));
    let two: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    assert!(matches!(accumulator.update(&[two], &groups, 1), Err(StateError::Shape { .. })));
}

#[test]
fn the_average_of_a_state_is_sum_by_count() {
    let state = [
        Arc::new(arrow::array::UInt64Array::from(vec![3, 0])) as ArrayRef,
        Arc::new(Float64Array::from(vec![6.0, 0.0])),
    ];
    assert_eq!(state[0].as_primitive::<UInt64Type>().value(0), 3);
    let mut accumulator = avg(&DataType::Int32).unwrap().create();
    accumulator.merge(&state, &Groups::each(&[0, 1]), 2).unwrap();
    let value = accumulator.values(&Part::all(0..2, 2)).unwrap();
    assert_eq!(value.as_primitive::<Float64Type>().iter().collect::<Vec<_>>(), [Some(2.0), None]);
}
