//! Every pair of types of `docs/connectors.md`, in both directions: what fits, what is cut, and
//! what does not fit.

use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Field, Int32Type, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::*;

/// The values in the other type: `-` for one that does not fit.
fn shown(from: ArrayRef, to: &DataType, texts: Texts) -> String {
    let Fitted { column, lost } = fit(&from, to, texts).unwrap();
    assert_eq!(column.data_type(), to);
    assert_eq!(column.len(), from.len());
    let options = FormatOptions::default().with_null("NULL");
    let values = ArrayFormatter::try_new(&column, &options).unwrap();
    let value = |row: usize| match &lost {
        Some(lost) if lost.value(row) => "-".to_owned(),
        _ => values.value(row).to_string(),
    };
    (0..column.len()).map(value).collect::<Vec<_>>().join(" ")
}

fn timestamp(unit: TimeUnit) -> DataType {
    DataType::Timestamp(unit, None)
}

const SECONDS: DataType = DataType::Timestamp(TimeUnit::Second, None);
const MILLIS: DataType = DataType::Timestamp(TimeUnit::Millisecond, None);
const MICROS: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
const NANOS: DataType = DataType::Timestamp(TimeUnit::Nanosecond, None);

/// A decimal of 38 digits from texts.
fn decimals(scale: i8, texts: &[&str]) -> ArrayRef {
    let texts: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
    let Fitted { column, lost } =
        fit(&texts, &DataType::Decimal128(38, scale), Texts::Plain).unwrap();
    assert_eq!(lost, None);
    column
}

#[test]
fn every_pair_of_types_keeps_its_values_or_refuses_them() {
    use DataType::{
        Boolean, Date32, Decimal128, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt64,
    };
    let longs = |values: &[i64]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
    let doubles = |values: &[f64]| Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    let cases: Vec<(ArrayRef, DataType, &str)> = vec![
        // Whole numbers.
        (longs(&[-128, 127, 128]), Int8, "-128 127 -"),
        (longs(&[-32769, 32767]), Int16, "- 32767"),
        (longs(&[i64::MAX, -2147483648]), Int32, "- -2147483648"),
        (longs(&[-1, 255]), UInt8, "- 255"),
        (longs(&[-1, i64::MAX]), UInt64, "- 9223372036854775807"),
        (Arc::new(UInt64Array::from(vec![1, u64::MAX])), Int64, "1 -"),
        (longs(&[5, 1 << 53]), Float64, "5.0 9007199254740992.0"),
        (longs(&[(1 << 53) + 1]), Float64, "9007199254740992.0"),
        (longs(&[16_777_217]), Float32, "16777216.0"),
        (longs(&[12, 1_000, -999]), Decimal128(5, 2), "12.00 - -999.00"),
        (longs(&[0, 1, 2]), Boolean, "false true -"),
        (longs(&[1_500]), MILLIS, "1970-01-01T00:00:01.500"),
        (longs(&[1, i64::MAX]), Date32, "1970-01-02 -"),
        (longs(&[42]), DataType::Utf8, "42"),
        (Arc::new(BooleanArray::from(vec![true, false])), Int64, "1 0"),
        // Doubles.
        (doubles(&[1.0, -1.9, 1e19, nan, infinite, -0.0]), Int64, "1 - - - - 0"),
        (doubles(&[300.0, -128.0]), Int8, "- -128"),
        (doubles(&[0.1, 1e39, infinite, -1e39]), Float32, "0.1 - inf -"),
        (doubles(&[0.1, 1.25, 0.125, nan, 1e9]), Decimal128(10, 2), "0.10 1.25 - - -"),
        (
            doubles(&[1.1, 123_456_789.5]),
            Decimal128(38, 18),
            "1.100000000000000000 123456789.500000000000000000",
        ),
        (doubles(&[1.0, 0.5, 0.0, nan]), Boolean, "true - false -"),
        (doubles(&[1.0, 1.9]), MILLIS, "1970-01-01T00:00:00.001 -"),
        // Decimals.
        (decimals(2, &["1.00", "1.90", "-0.01"]), Int64, "1 - -"),
        (decimals(0, &["99999999999999999999"]), Int64, "-"),
        (decimals(3, &["1.990", "1.999", "12345.670"]), Decimal128(5, 2), "1.99 - -"),
        (decimals(2, &["1.5"]), Decimal128(38, 10), "1.5000000000"),
        (decimals(2, &["0.10", "-2.50"]), Float64, "0.1 -2.5"),
        (decimals(10, &["1234567890.1234567891"]), Float64, "1234567890.1234567"),
    ];
    check(cases);
}

/// The converted values of each case.
fn check(cases: Vec<(ArrayRef, DataType, &str)>) {
    for (from, to, expected) in cases {
        let of = from.data_type().clone();
        assert_eq!(shown(from, &to, Texts::Plain), expected, "{of} to {to}");
    }
}

#[test]
fn texts_are_read_by_the_same_rules() {
    use DataType::{Boolean, Date32, Decimal128, Float32, Float64, Int8, Int64};
    let texts = |values: &[&str]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    check(vec![
        (texts(&["1", " 2 ", "1.0", "1e3", "1.5", "x", ""]), Int64, "1 2 1 1000 - - -"),
        (texts(&["9223372036854775807.0", "9223372036854775808"]), Int64, "9223372036854775807 -"),
        (texts(&["-129", "1.28e2", "12700e-2"]), Int8, "- - 127"),
        (
            texts(&["0.1", "1e400", "inf", "-Infinity", "NaN", "1e-400"]),
            Float64,
            "0.1 - inf -inf NaN 0.0",
        ),
        (texts(&["1e39", "0.1"]), Float32, "- 0.1"),
        (
            texts(&["1.25", "1.250", "1.255", "125e-2", ".5", "5.", "1e8", "."]),
            Decimal128(10, 2),
            "1.25 1.25 - 1.25 0.50 5.00 - -",
        ),
        (
            texts(&["12345678901234567890123456789012345678", "1e38", "0e99999"]),
            Decimal128(38, 0),
            "12345678901234567890123456789012345678 - 0",
        ),
        (
            texts(&["2024-01-31", "2024-02-30", "2024-01-31 23:59:59"]),
            Date32,
            "2024-01-31 - 2024-01-31",
        ),
        (texts(&["true", "no", "2"]), Boolean, "true false -"),
        (texts(&["1500"]), MILLIS, "-"),
    ]);
}

#[test]
fn times_are_cut_towards_the_past() {
    let micros = |ticks: i64| Arc::new(TimestampMicrosecondArray::from(vec![ticks])) as ArrayRef;
    let cut = |ticks, to: &DataType| shown(micros(ticks), to, Texts::Plain);
    assert_eq!(cut(1_999, &MILLIS), "1970-01-01T00:00:00.001");
    assert_eq!(cut(-1, &MILLIS), "1969-12-31T23:59:59.999");
    assert_eq!(cut(-1, &SECONDS), "1969-12-31T23:59:59");
    assert_eq!(cut(-1, &DataType::Date32), "1969-12-31");
    assert_eq!(cut(-1, &NANOS), "1969-12-31T23:59:59.999999");
    assert_eq!(cut(i64::MAX, &NANOS), "-");
    for unit in [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond] {
        let day: ArrayRef = Arc::new(Date32Array::from(vec![Some(-1), None]));
        assert_eq!(shown(day, &timestamp(unit), Texts::Plain), "1969-12-31T00:00:00 NULL");
    }
    let far: ArrayRef = Arc::new(Date32Array::from(vec![i32::MAX]));
    assert_eq!(shown(far, &NANOS, Texts::Plain), "-");
    let text: ArrayRef = Arc::new(StringArray::from(vec!["1969-12-31 23:59:59.9999"]));
    assert_eq!(shown(text, &MILLIS, Texts::Plain), "1969-12-31T23:59:59.999");
    let far: ArrayRef = Arc::new(TimestampSecondArray::from(vec![i64::MAX]));
    assert_eq!(shown(far, &MICROS, Texts::Plain), "-");
    // The last point of the calendar lies beyond it in this zone.
    let last = TimestampMicrosecondArray::from(vec![0, 8_210_266_876_799_999_999]);
    let last: ArrayRef = Arc::new(last.with_timezone("+14:00"));
    assert_eq!(shown(last, &DataType::Utf8, Texts::Plain), "1970-01-01T14:00:00+14:00 -");
    let clock: ArrayRef = Arc::new(Time64NanosecondArray::from(vec![1_999_999]));
    let to = DataType::Time32(TimeUnit::Millisecond);
    assert_eq!(shown(clock, &to, Texts::Plain), "00:00:00.001");
}

#[test]
fn numbers_of_json_may_be_times() {
    let texts = |values: &[&str]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let times = texts(&["1500", "-1", "1.5", "1e3", "1e300", "1970-01-01T00:00:02Z", "x", "inf"]);
    let expected = "1970-01-01T00:00:01.500 1969-12-31T23:59:59.999 - 1970-01-01T00:00:01 - \
                    1970-01-01T00:00:02 - -";
    assert_eq!(shown(times, &MILLIS, Texts::Json), expected);
    let days = texts(&["1", "20240131", "2024-01-31", "1.5", "9999999999"]);
    let expected = "1970-01-02 2024-01-31 2024-01-31 - -";
    assert_eq!(shown(days, &DataType::Date32, Texts::Json), expected);
}

#[test]
fn values_within_values_take_their_row_along() {
    let numbers = vec![Some(vec![Some(1), Some(300)]), None, Some(vec![]), Some(vec![None])];
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(numbers));
    let to = DataType::new_list(DataType::Int8, true);
    assert_eq!(shown(Arc::clone(&list), &to, Texts::Plain), "- NULL [] [NULL]");
    assert_eq!(shown(list.slice(1, 3), &to, Texts::Plain), "NULL [] [NULL]");
    let field = |name: &str, of: DataType| Arc::new(Field::new(name, of, true));
    let column: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 1.5]));
    let of = StructArray::from(vec![(field("A", DataType::Float64), column)]);
    let to = DataType::Struct(vec![field("b", DataType::Utf8), field("a", DataType::Int32)].into());
    assert_eq!(shown(Arc::new(of), &to, Texts::Plain), "{b: NULL, a: 1} -");
    let mut maps = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for value in [1, 1 << 40] {
        maps.keys().append_value("k");
        maps.values().append_value(value);
        maps.append(true).unwrap();
    }
    let maps = maps.finish();
    let entry = Field::new(
        "entries",
        DataType::Struct(
            vec![
                Field::new("keys", DataType::Utf8, false),
                Field::new("values", DataType::Int32, true),
            ]
            .into(),
        ),
        false,
    );
    let to = DataType::Map(Arc::new(entry), false);
    assert_eq!(shown(Arc::new(maps), &to, Texts::Plain), "{k: 1} -");
}

#[test]
fn a_null_within_a_value_that_may_have_none_takes_its_row() {
    let part = |name: &str, of: DataType, nullable| Field::new(name, of, nullable);
    let from = StructArray::from(vec![(
        Arc::new(part("x", DataType::Utf8, true)),
        Arc::new(StringArray::from(vec![Some("1"), None, Some("a")])) as ArrayRef,
    )]);
    let from: ArrayRef = Arc::new(from);
    let row = |name: &str| DataType::Struct(vec![part(name, DataType::Int32, false)].into());
    let lost = |to: &DataType| {
        let fitted = fit(&from, to, Texts::Plain).unwrap();
        assert_eq!(fitted.column.data_type(), to);
        fitted.lost.unwrap().iter().collect::<Vec<_>>()
    };
    assert_eq!(lost(&row("x")), [false, true, true]);
    assert_eq!(lost(&row("y")), [true, true, true]);
}
