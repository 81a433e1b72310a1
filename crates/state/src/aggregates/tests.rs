//! The laws of S10 for each aggregate and type: merging is commutative and associative, empty state
//! is its zero, and rows that are split anywhere give what they give in sequence. Values are nulls,
//! small numbers, the ends of each type and, of floats, infinities, NaN and both zeros. What is
//! exact has to be equal to the bit; sums of floats are equal but for rounding.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, AsArray, Decimal128Array, Float64Array, Int64Array,
    PrimitiveArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal128Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, TimeUnit, TimestampMillisecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use proptest::prelude::*;

use super::*;
use crate::{Accumulator, Groups, Part};

const GROUPS: usize = 4;

/// Greater than any sum of the values of a case, but for the rounding of each addition.
const ROUNDING: f64 = 64.0 * f64::EPSILON;

type States = Vec<ArrayRef>;

/// A value of any type.
#[derive(Debug, Clone, Copy)]
enum Value {
    Small(i8),
    Least,
    Most,
    /// Of integers, 1.
    Nan,
    /// Of integers, the least but one.
    NegativeInfinity,
    /// Of integers, the most but one.
    Infinity,
    /// Of integers, 0.
    NegativeZero,
}

type Row = (u32, Option<Value>);

/// A number that each [`Value`] is one of.
trait Valued: Copy {
    fn of(value: Value) -> Self;
}

macro_rules! valued_integers {
    ($($integer:ty),*) => {
        $(impl Valued for $integer {
            fn of(value: Value) -> Self {
                match value {
                    Value::Small(small) => small.unsigned_abs() as $integer,
                    Value::Least => <$integer>::MIN,
                    Value::Most => <$integer>::MAX,
                    Value::Nan => 1,
                    Value::NegativeInfinity => <$integer>::MIN + 1,
                    Value::Infinity => <$integer>::MAX - 1,
                    Value::NegativeZero => 0,
                }
            }
        })*
    };
}
valued_integers!(i8, i16, i32, i64, i128, u8, u16, u32, u64);

macro_rules! valued_floats {
    ($($float:ty, $most:expr);*) => {
        $(impl Valued for $float {
            fn of(value: Value) -> Self {
                match value {
                    Value::Small(small) => <$float>::from(small) / 3.0,
                    // No sum of some of them is beyond what is finite: whether that happens would
                    // depend on the order.
                    Value::Least => -$most,
                    Value::Most => $most,
                    Value::Nan => <$float>::NAN,
                    Value::NegativeInfinity => <$float>::NEG_INFINITY,
                    Value::Infinity => <$float>::INFINITY,
                    Value::NegativeZero => -0.0,
                }
            }
        })*
    };
}
valued_floats!(f32, 1e35; f64, 1e300);

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
    for of in [DataType::Decimal128(12, 2), DataType::Decimal128(38, 3)] {
        let aggregates = [sum(&of).unwrap(), avg(&of).unwrap(), count_of(&of)];
        all.extend(aggregates.into_iter().map(|aggregate| (of.clone(), aggregate)));
    }
    let others = [
        DataType::Decimal128(38, 3),
        DataType::Date32,
        DataType::Date64,
        DataType::Timestamp(TimeUnit::Millisecond, Some("+00:00".into())),
    ];
    for of in types().into_iter().chain(others) {
        all.push((of.clone(), min(&of).unwrap()));
        all.push((of.clone(), max(&of).unwrap()));
    }
    all
}

fn array<T: ArrowPrimitiveType<Native: Valued>>(rows: &[Row]) -> PrimitiveArray<T> {
    rows.iter().map(|row| row.1.map(T::Native::of)).collect()
}

fn column_of(of: &DataType, rows: &[Row]) -> ArrayRef {
    match of {
        DataType::Int8 => Arc::new(array::<Int8Type>(rows)),
        DataType::Int16 => Arc::new(array::<Int16Type>(rows)),
        DataType::Int32 => Arc::new(array::<Int32Type>(rows)),
        DataType::Int64 => Arc::new(array::<Int64Type>(rows)),
        DataType::UInt8 => Arc::new(array::<UInt8Type>(rows)),
        DataType::UInt16 => Arc::new(array::<UInt16Type>(rows)),
        DataType::UInt32 => Arc::new(array::<UInt32Type>(rows)),
        DataType::UInt64 => Arc::new(array::<UInt64Type>(rows)),
        DataType::Float32 => Arc::new(array::<Float32Type>(rows)),
        DataType::Float64 => Arc::new(array::<Float64Type>(rows)),
        DataType::Date32 => Arc::new(array::<Date32Type>(rows)),
        DataType::Date64 => Arc::new(array::<Date64Type>(rows)),
        DataType::Decimal128(..) => {
            Arc::new(array::<Decimal128Type>(rows).with_data_type(of.clone()))
        }
        DataType::Timestamp(TimeUnit::Millisecond, zone) => {
            let times = array::<TimestampMillisecondType>(rows);
            Arc::new(times.with_timezone_opt(zone.clone()))
        }
        of => unreachable!("no rows of {of}"),
    }
}

/// Dense ids, as an index gives them, of which each has a row: the groups of an accumulator have
/// had one.
fn update(accumulator: &mut dyn Accumulator, of: &DataType, rows: &[Row], total: usize) {
    let ids: Vec<u32> = rows.iter().map(|row| row.0).collect();
    accumulator.update(&[column_of(of, rows)], &Groups::each(&ids), total).unwrap();
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
        let ids = &ids[..state[0].len()];
        accumulator.merge(state, &Groups::each(ids), GROUPS).unwrap();
    }
    accumulator.state(&Part::all(0..GROUPS, GROUPS)).unwrap()
}

/// Whether columns are the same. Of floats, where they were added, but for rounding: relative to
/// the sum of what was added, without signs.
fn alike(a: &ArrayRef, b: &ArrayRef, of: &DataType, rows: &[Row]) -> bool {
    let (Some(left), Some(right)) =
        (a.as_primitive_opt::<Float64Type>(), b.as_primitive_opt::<Float64Type>())
    else {
        return a == b;
    };
    let values = arrow::compute::cast(&column_of(of, rows), &DataType::Float64).unwrap();
    let finite = values.as_primitive::<Float64Type>().iter().flatten().filter(|v| v.is_finite());
    let slack = finite.map(f64::abs).sum::<f64>() * ROUNDING;
    a.nulls() == b.nulls()
        && left
            .iter()
            .flatten()
            .zip(right.iter().flatten())
            .all(|(a, b)| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= slack)
}

fn all_alike(a: &States, b: &States, of: &DataType, rows: &[Row]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b, of, rows))
}

/// Whether values have to be the same to the bit: those that are not added as floats.
fn is_exact(aggregate: &dyn Aggregate) -> bool {
    let name = format!("{aggregate:?}");
    !(name.starts_with("Avg(") || name.starts_with("Sum") && name.contains("Float"))
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    use Value::*;
    let rare = [Least, Most, Nan, NegativeInfinity, Infinity, NegativeZero];
    let value = prop_oneof![
        2 => Just(None),
        5 => any::<i8>().prop_map(|small| Some(Small(small))),
        2 => prop::sample::select(rare.to_vec()).prop_map(Some),
        1 => prop::sample::select(vec![Least, Most, NegativeZero]).prop_map(Some),
    ];
    prop::collection::vec((0..GROUPS as u32, value), 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn merging_is_a_commutative_monoid(x in rows(), y in rows(), z in rows()) {
        let all_rows = [&x[..], &y, &z].concat();
        for (of, aggregate) in all() {
            let aggregate = aggregate.as_ref();
            let part = |rows: &[Row]| state(aggregate, &of, rows);
            let (a, b, c) = (part(&x), part(&y), part(&z));
            let ab = merged(aggregate, &[&a, &b]);
            prop_assert!(
                all_alike(&ab, &merged(aggregate, &[&b, &a]), &of, &all_rows),
                "commutative: {:?}", aggregate
            );
            let left = merged(aggregate, &[&ab, &c]);
            let right = merged(aggregate, &[&a, &merged(aggregate, &[&b, &c])]);
            prop_assert!(
                all_alike(&left, &right, &of, &all_rows),
                "associative: {:?}: {:?} {:?}", aggregate, left, right
            );
            let nothing = aggregate.create().state(&Part::all(0..0, 0)).unwrap();
            for with_nothing in [vec![&a], vec![&a, &nothing], vec![&nothing, &a]] {
                let found = merged(aggregate, &with_nothing);
                prop_assert!(all_alike(&found, &a, &of, &all_rows), "identity: {:?}", aggregate);
                prop_assert!(!is_exact(aggregate) || found == a, "identity: {:?}", aggregate);
            }
        }
    }

    #[test]
    fn split_anywhere_equals_sequential(
        rows in rows(),
        cuts in prop::collection::vec(0usize..31, 3),
    ) {
        for (of, aggregate) in all() {
            let mut sequential = aggregate.create();
            let one = Some(Value::Small(1));
            let each: Vec<Row> = (0..GROUPS as u32).map(|group| (group, one)).collect();
            update(sequential.as_mut(), &of, &each, GROUPS);
            update(sequential.as_mut(), &of, &rows, GROUPS);
            let mut cuts: Vec<usize> = cuts.iter().map(|&cut| cut.min(rows.len())).collect();
            cuts.extend([0, rows.len()]);
            cuts.sort_unstable();
            let mut late = aggregate.create();
            let ids: Vec<u32> = (0..GROUPS as u32).collect();
            update(late.as_mut(), &of, &each, GROUPS);
            // The last part first: order is nothing.
            for cut in cuts.windows(2).rev() {
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
            let late = late.values(&Part::all(0..GROUPS, GROUPS));
            let sequential = sequential.values(&Part::all(0..GROUPS, GROUPS));
            let (late, sequential) = match (late, sequential) {
                (Err(StateError::Sum(_)), Err(StateError::Sum(_))) => continue,
                (late, sequential) => (late.unwrap(), sequential.unwrap()),
            };
            prop_assert!(
                alike(&late, &sequential, &of, &rows),
                "{:?}: {:?} {:?}", aggregate, late, sequential
            );
            prop_assert!(!is_exact(aggregate.as_ref()) || late == sequential, "{:?}", aggregate);
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
    let of = DataType::Decimal128(36, 37);
    assert_eq!(sum(&of).unwrap().output_type(), DataType::Decimal128(38, 37));
    assert_eq!(avg(&of).unwrap().output_type(), DataType::Decimal128(38, 38));
    assert_eq!(max(&of).unwrap().output_type(), of);
    for of in [DataType::Utf8, DataType::Boolean, DataType::Decimal256(40, 2)] {
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
fn a_sum_of_integers_is_exact_or_an_error() {
    let of = DataType::Int64;
    let parts: [&[i64]; 4] = [&[i64::MAX, i64::MAX, 7], &[i64::MIN, 1], &[i64::MIN], &[1]];
    // After each part, whether all so far fit.
    let fits = [None, None, Some(6), Some(7)];
    let mut leader = sum(&of).unwrap().create();
    for (part, fits) in parts.iter().zip(fits) {
        let mut helper = sum(&of).unwrap().create();
        let values: ArrayRef = Arc::new(Int64Array::from(part.to_vec()));
        helper.update(&[values], &Groups::one(1, part.len()), 2).unwrap();
        let state = helper.state(&Part::all(0..2, 2)).unwrap();
        leader.merge(&state, &Groups::each(&[0, 1]), 2).unwrap();
        let mut emitted = sum(&of).unwrap().create();
        let state = leader.state(&Part::all(1..2, 2)).unwrap();
        emitted.merge(&state, &Groups::one(0, 1), 1).unwrap();
        match (emitted.values(&Part::all(0..1, 1)), fits) {
            (Ok(sum), Some(fits)) => assert_eq!(sum.as_primitive::<Int64Type>().value(0), fits),
            (Err(StateError::Sum(of)), None) => assert_eq!(of, DataType::Int64),
            (found, fits) => panic!("{found:?}, {fits:?}"),
        }
        assert!(emitted.values(&Part::all(0..1, 1)).is_ok() == fits.is_some(), "it stays so");
        emitted.clear(1);
        assert!(emitted.values(&Part::all(0..1, 1)).is_ok(), "a cleared sum carries nothing");
    }
}

/// Values of `DECIMAL(38, 0)`, and of each aggregate the value over all.
fn of_decimals(aggregate: &Arc<dyn Aggregate>, parts: &[&[i128]]) -> Result<i128, StateError> {
    let mut leader = aggregate.create();
    for part in parts {
        let mut helper = aggregate.create();
        let values =
            Decimal128Array::from(part.to_vec()).with_data_type(DataType::Decimal128(38, 0));
        helper.update(&[Arc::new(values)], &Groups::one(0, part.len()), 1)?;
        leader.merge(&helper.state(&Part::all(0..1, 1))?, &Groups::one(0, 1), 1)?;
    }
    let values = leader.values(&Part::all(0..1, 1))?;
    Ok(values.as_primitive::<Decimal128Type>().value(0))
}

#[test]
fn sums_of_decimals_are_exact_or_an_error() {
    let sum = sum(&DataType::Decimal128(38, 0)).unwrap();
    let most = 10_i128.pow(38) - 1;
    assert_eq!(of_decimals(&sum, &[&[most, -1], &[1]]).unwrap(), most);
    // Within 128 bits, but of 39 digits.
    assert!(matches!(of_decimals(&sum, &[&[most], &[1]]), Err(StateError::Sum(_))));
    // Beyond 128 bits on the way, on one worker and on two.
    assert_eq!(of_decimals(&sum, &[&[most, most, -most], &[-most, 5]]).unwrap(), 5);
    assert_eq!(of_decimals(&sum, &[&[most, most], &[-most, -most, -5]]).unwrap(), -5);
    assert!(matches!(of_decimals(&sum, &[&[-most, -most], &[-7]]), Err(StateError::Sum(_))));
}

#[test]
fn averages_of_decimals_are_rounded_half_away_from_zero() {
    // Of 38 digits none is left for the quotient: units are those of the values times 10^4.
    let avg = avg(&DataType::Decimal128(38, 0)).unwrap();
    let sixth = of_decimals(&avg, &[&[1, 0, 0, 0, 0, 0]]).unwrap();
    assert_eq!(sixth, 1_667);
    assert_eq!(of_decimals(&avg, &[&[-1], &[0, 0, 0, 0, 0]]).unwrap(), -1_667);
    let halves: Vec<i128> = std::iter::once(1).chain(std::iter::repeat_n(0, 19_999)).collect();
    assert_eq!(of_decimals(&avg, &[&halves]).unwrap(), 1, "0.00005");
    let halves: Vec<i128> = halves.iter().map(|value| -value).collect();
    assert_eq!(of_decimals(&avg, &[&halves]).unwrap(), -1);
    // Sums of more than 128 bits.
    let large = 10_i128.pow(33) + 1;
    let many = vec![large; 400_000];
    assert_eq!(of_decimals(&avg, &[&many, &many]).unwrap(), large * 10_000);
    let (most, down) = (10_i128.pow(38) - 1, -10_i128.pow(38) + 1);
    assert_eq!(of_decimals(&avg, &[&[most, most, 2], &[down, down]]).unwrap(), 4_000);
    assert_eq!(of_decimals(&avg, &[&[down, down, -1, -1], &[most, most]]).unwrap(), -3_333);
    assert!(matches!(of_decimals(&avg, &[&[most, most]]), Err(StateError::Sum(_))));
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
