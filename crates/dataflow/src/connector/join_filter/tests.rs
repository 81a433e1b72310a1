use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{
    BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray,
    TimestampMicrosecondArray, UInt64Array, new_empty_array, new_null_array,
};
use arrow::compute::concat;
use proptest::prelude::*;

use super::*;

fn numbers(of: impl IntoIterator<Item = Option<i64>>) -> ArrayRef {
    Arc::new(of.into_iter().collect::<Int64Array>())
}

fn filter(keys: &[ArrayRef]) -> JoinFilter {
    JoinFilter::new(keys).unwrap().unwrap()
}

fn matching(filter: &JoinFilter, column: &ArrayRef) -> usize {
    filter.matches(column).unwrap().count_set_bits()
}

#[test]
fn no_key_of_the_build_is_dropped_and_few_others_pass() {
    let keys = [numbers((0..5_000).map(|n| Some(n * 7_000))), numbers([None, Some(-50)])];
    let filter = filter(&keys);
    assert!(matches!(filter.set, KeySet::Bloom(_)));
    assert_eq!(matching(&filter, &keys[0]), 5_000);
    assert_eq!(matching(&filter, &keys[1]), 1, "NULL has no partner");
    let passed = matching(&filter, &numbers((0..5_000).map(|n| Some(n * 7_000 + 3))));
    assert!(passed < 400, "{passed} of 5,000");
    assert_eq!(matching(&filter, &numbers([Some(-51), Some(35_000_000)])), 0, "beyond the ends");
}

#[test]
fn close_numbers_have_a_bit_each() {
    let filter = filter(&[numbers([Some(-3), None, Some(60), Some(61), Some(200)])]);
    assert!(matches!(filter.set, KeySet::Numbers { .. }));
    let found = filter.matches(&numbers((-70..300).map(Some))).unwrap();
    let found: Vec<i64> = found.set_indices().map(|at| at as i64 - 70).collect();
    assert_eq!(found, [-3, 60, 61, 200]);
    assert_eq!(matching(&filter, &numbers([None, Some(i64::MIN), Some(i64::MAX)])), 0);
}

#[test]
fn bounds_without_a_key_between_them_do_not_match() {
    let filter = filter(&[numbers([Some(5), Some(150), Some(151), Some(1_000)])]);
    let of = |least: i64, greatest: i64| ColumnSummary {
        least: Some(numbers([Some(least)])),
        greatest: Some(numbers([Some(greatest)])),
        ..ColumnSummary::default()
    };
    for (least, greatest, may) in [
        (0, 4, false),
        (0, 5, true),
        (6, 149, false),
        (6, 150, true),
        (152, 999, false),
        (151, 999, true),
        (1_000, i64::MAX, true),
        (1_001, i64::MAX, false),
        (i64::MIN, i64::MAX, true),
    ] {
        assert_eq!(filter.may_match(&of(least, greatest)), may, "{least} to {greatest}");
    }
    assert!(filter.may_match(&ColumnSummary::default()), "nothing is known");
    let nulls = ColumnSummary { nulls: Some(9), rows: Some(9), ..ColumnSummary::default() };
    assert!(!filter.may_match(&nulls));
}

#[test]
fn a_build_without_keys_lets_nothing_pass() {
    for keys in [numbers([]), numbers([None])] {
        let filter = filter(&[keys]);
        assert_eq!(matching(&filter, &numbers([Some(1), None])), 0);
        assert!(!filter.may_match(&ColumnSummary::default()));
    }
}

#[test]
fn floats_have_no_filter_and_another_type_is_not_filtered() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN]));
    assert!(JoinFilter::new(&[floats]).unwrap().is_none());
    assert!(JoinFilter::new(&[]).unwrap().is_none());
    let narrow: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    assert_eq!(matching(&filter(&[numbers([Some(1)])]), &narrow), 3);
}

#[test]
fn a_large_build_has_its_ends_alone() {
    let filter = filter(&[numbers((0..1_000_000).map(|n| Some(n * 100)))]);
    assert!(matches!(filter.set, KeySet::Any));
    assert_eq!(matching(&filter, &numbers([Some(-1), Some(1), Some(99_999_901)])), 1);
}

/// An array of a type that joins compare, made of numbers.
fn array(of: &[Option<i16>], data_type: usize) -> ArrayRef {
    let wide = || of.iter().map(|n| n.map(i64::from));
    match data_type {
        0 => Arc::new(wide().map(|n| n.map(|n| n * 1_000_003)).collect::<Int64Array>()),
        1 => Arc::new(of.iter().map(|n| n.map(i32::from)).collect::<Int32Array>()),
        2 => Arc::new(wide().map(|n| n.map(|n| n.cast_unsigned())).collect::<UInt64Array>()),
        3 => Arc::new(of.iter().map(|n| n.map(i32::from)).collect::<Date32Array>()),
        4 => {
            let micros = wide().map(|n| n.map(|n| n * 86_400_000_000));
            Arc::new(micros.collect::<TimestampMicrosecondArray>())
        }
        5 => Arc::new(wide().map(|n| n.map(i128::from)).collect::<Decimal128Array>()),
        6 => Arc::new(wide().map(|n| n.map(|n| format!("key {n}"))).collect::<StringArray>()),
        _ => Arc::new(wide().map(|n| n.map(|n| n % 2 == 0)).collect::<BooleanArray>()),
    }
}

proptest! {
    /// Whatever the keys are, a row that has a partner passes, and one of statistics that contain a
    /// partner may match.
    #[test]
    fn a_row_with_a_partner_always_passes(
        build in prop::collection::vec(prop::option::weighted(0.9, any::<i16>()), 0..200),
        probe in prop::collection::vec(prop::option::weighted(0.9, any::<i16>()), 0..200),
        data_type in 0_usize..8,
        cut in 0_usize..200,
        shift in 0_u32..14,
    ) {
        // Close together, or not.
        let near = |of: &[Option<i16>]| -> Vec<_> {
            of.iter().map(|n| n.map(|n| n >> shift)).collect()
        };
        let (build, probe) = (near(&build), near(&probe));
        let (first, second) = build.split_at(cut.min(build.len()));
        let filter = filter(&[array(first, data_type), array(second, data_type)]);
        let column = array(&probe, data_type);
        let keys: BTreeSet<i16> = build.iter().flatten().copied().collect();
        let passes = filter.matches(&column).unwrap();
        for (row, key) in probe.iter().enumerate() {
            let Some(key) = key else {
                prop_assert!(!passes.value(row), "NULL");
                continue;
            };
            let has_partner = keys.contains(key)
                || data_type == 7 && keys.iter().any(|of| (of ^ key) & 1 == 0);
            if has_partner {
                prop_assert!(passes.value(row), "{} has a partner", key);
                let value = Some(column.slice(row, 1));
                let of = ColumnSummary {
                    least: value.clone(),
                    greatest: value,
                    ..ColumnSummary::default()
                };
                prop_assert!(filter.may_match(&of));
            }
        }
    }
}

#[test]
fn parts_of_a_build_without_rows_or_with_nulls_alone_count() {
    let of = DataType::Utf8;
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["b", "a"]));
    let parts = [new_empty_array(&of), new_null_array(&of, 2), texts.clone()];
    let all = concat(&parts.iter().map(|part| part.as_ref()).collect::<Vec<_>>()).unwrap();
    assert_eq!(matching(&filter(&parts), &all), 2);
    assert_eq!(matching(&filter(&[texts]), &all), 2);
}

#[test]
fn a_filter_that_drops_few_rows_is_given_up() {
    let stranger = numbers([Some(99)]);
    for (step, passes) in [(1, 1), (2, 0)] {
        let filter = filter(&[numbers((0..10).map(|n| Some(n * step)))]);
        assert_eq!(matching(&filter, &stranger), 0, "it was not tried yet");
        let column = numbers((0..i64::try_from(TRIED_ROWS).unwrap()).map(|n| Some(n % 10)));
        assert!(matching(&filter, &column) >= column.len() / 2);
        assert_eq!(matching(&filter, &stranger), passes);
    }
}

#[test]
fn numbers_of_all_widths_are_found_wherever_they_lie() {
    let key = |n: i64| n % 3 == 0 || n % 64 == 7;
    let value = |row: i64| (row % 17 != 4).then_some(row * 37 % 120);
    let all = numbers((0..300).map(value));
    for to in [
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::UInt16,
        DataType::UInt32,
        DataType::Date32,
        DataType::Date64,
        DataType::Time64(arrow::datatypes::TimeUnit::Microsecond),
        DataType::Timestamp(arrow::datatypes::TimeUnit::Second, None),
    ] {
        let typed = |of: &ArrayRef| match to {
            DataType::Date32 => cast(&cast(of, &DataType::Int32).unwrap(), &to).unwrap(),
            _ => cast(of, &to).unwrap(),
        };
        // The greatest values are beyond the ends.
        let keys: Vec<i64> = (1..100).filter(|n| key(*n)).collect();
        let near = filter(&[typed(&numbers(keys.iter().copied().map(Some)))]);
        assert!(matches!(&near.set, KeySet::Numbers { bytes, .. } if !bytes.is_empty()), "{to}");
        check_widths(&near, &typed(&all), &value, &key);
        // A key that is far away leaves no room for bytes.
        if to.primitive_width() > Some(2) {
            let far = keys.iter().copied().chain([NEAR_NUMBERS_MAX as i64 * 2]).map(Some);
            let far = filter(&[typed(&numbers(far))]);
            assert!(matches!(&far.set, KeySet::Numbers { bytes, .. } if bytes.is_empty()), "{to}");
            check_widths(&far, &typed(&all), &value, &key);
        }
    }
}

fn check_widths(
    filter: &JoinFilter,
    column: &ArrayRef,
    value: &dyn Fn(i64) -> Option<i64>,
    key: &dyn Fn(i64) -> bool,
) {
    let of = column.data_type();
    for (first, rows) in [(0, 300), (0, 64), (5, 128), (3, 1), (64, 65), (299, 1), (9, 0)] {
        let found = filter.matches(&column.slice(first, rows)).unwrap();
        let is_key = |row| value(row).is_some_and(|n| (1..100).contains(&n) && key(n));
        let expected: Vec<bool> = (first..first + rows).map(|row| is_key(row as i64)).collect();
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{of}: {rows} from {first}");
    }
}
