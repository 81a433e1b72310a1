//! Values of every type, through every format and back: the least and the greatest, those that look
//! like something else, and NULL.

use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Int32Type, Int64Type};
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::sink::WriterContext;

use crate::bed::*;

fn of<T: arrow::datatypes::ArrowPrimitiveType>(values: &[T::Native], like: DataType) -> ArrayRef {
    let values = values.iter().map(|value| Some(*value)).chain([None]);
    Arc::new(values.collect::<PrimitiveArray<T>>().with_data_type(like))
}

/// A column of each type that a line of text can hold, each with a NULL at the end.
fn flat() -> Vec<ArrayRef> {
    use arrow::datatypes::*;
    let utc: Option<Arc<str>> = Some("UTC".into());
    let time = |unit| DataType::Timestamp(unit, None);
    // 0001-01-01 and 9999-12-31 in days.
    let days = [-719_162, -1, 0, 2_932_896];
    let millis = days.map(|day| i64::from(day) * 86_400_000 + 86_399_999);
    let texts = [
        "",
        "NULL",
        "null",
        "NA",
        "\\N",
        "a,b",
        "\"q\"",
        "two\nlines",
        "\r\n",
        " wide ",
        "'",
        "#",
        "ü😀",
        "\u{0}",
        "1",
        "true",
        "2024-01-01",
        "[1]",
        "{\"a\":1}",
    ];
    vec![
        Arc::new(BooleanArray::from(vec![Some(true), Some(false), None])),
        of::<Int8Type>(&[i8::MIN, i8::MAX], DataType::Int8),
        of::<Int16Type>(&[i16::MIN, i16::MAX], DataType::Int16),
        of::<Int32Type>(&[i32::MIN, i32::MAX], DataType::Int32),
        of::<Int64Type>(&[i64::MIN, i64::MAX], DataType::Int64),
        of::<UInt8Type>(&[0, u8::MAX], DataType::UInt8),
        of::<UInt16Type>(&[0, u16::MAX], DataType::UInt16),
        of::<UInt32Type>(&[0, u32::MAX], DataType::UInt32),
        of::<UInt64Type>(&[0, u64::MAX], DataType::UInt64),
        of::<Float32Type>(
            &[0.1, -0.0, f32::MIN, f32::MAX, f32::from_bits(1), f32::INFINITY, f32::NAN],
            DataType::Float32,
        ),
        of::<Float64Type>(
            &[0.1, -0.0, f64::MIN, f64::MAX, f64::from_bits(1), f64::NEG_INFINITY, f64::NAN],
            DataType::Float64,
        ),
        of::<Decimal128Type>(&[-123, 0, 999_999_999], DataType::Decimal128(9, 2)),
        of::<Decimal128Type>(&[10_i128.pow(38) - 1, 1], DataType::Decimal128(38, 0)),
        of::<Decimal128Type>(&[1 - 10_i128.pow(38), 1], DataType::Decimal128(38, 38)),
        of::<Decimal256Type>(
            &[i256::from_i128(10).wrapping_pow(70), i256::from_i128(-5)],
            DataType::Decimal256(76, 5),
        ),
        Arc::new(StringArray::from_iter(texts.map(Some).into_iter().chain([None]))),
        Arc::new(BinaryArray::from_iter([Some(&b"\x00\xff"[..]), Some(b"abc"), None])),
        of::<Date32Type>(&days, DataType::Date32),
        of::<Time64MicrosecondType>(
            &[0, 1, 86_399_999_999],
            DataType::Time64(TimeUnit::Microsecond),
        ),
        of::<TimestampSecondType>(&[-1, 0, 253_402_300_799], time(TimeUnit::Second)),
        of::<TimestampMillisecondType>(&millis, time(TimeUnit::Millisecond)),
        of::<TimestampMicrosecondType>(
            &millis.map(|at| at * 1_000 + 999),
            time(TimeUnit::Microsecond),
        ),
        of::<TimestampNanosecondType>(&[i64::MIN / 2, -1, i64::MAX], time(TimeUnit::Nanosecond)),
        of::<TimestampMillisecondType>(&millis, DataType::Timestamp(TimeUnit::Millisecond, utc)),
    ]
}

/// A column of each kind of nested type, with NULLs at each place.
fn nested() -> Vec<ArrayRef> {
    let numbers = [Some(vec![Some(1), None]), Some(vec![]), Some(vec![Some(i32::MIN)]), None];
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(numbers.clone());
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for entries in [&[("a", Some(1)), ("", None)][..], &[], &[("x y", Some(i64::MAX))]] {
        for (key, value) in entries {
            map.keys().append_value(key);
            map.values().append_option(*value);
        }
        map.append(true).unwrap();
    }
    map.append(false).unwrap();
    let inner: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(i64::MIN), Some(0)]));
    let text: ArrayRef = Arc::new(StringArray::from(vec![Some("NA"), None, Some(""), Some("z")]));
    let batch = batch(&[("n", inner), ("t", text)]);
    let row = StructArray::try_new(
        batch.schema().fields().clone(),
        batch.columns().to_vec(),
        Some(vec![true, true, true, false].into()),
    );
    vec![Arc::new(list), Arc::new(map.finish()), Arc::new(row.unwrap())]
}

#[test]
fn values_of_every_type_come_back_from_every_format() {
    let scratch = Scratch::new("values");
    let names = ["t.csv", "t.tsv.gz", "t.json", "t.parquet", "t.arrow", "t.arrows.zst"];
    for (index, column) in flat().into_iter().chain(nested()).enumerate() {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..column.len() as i64));
        let sample = batch(&[("k", keys), ("v", column)]);
        for name in names {
            let is_csv = name.contains("sv");
            let path = scratch.path(&format!("{index}-{name}"));
            let options = [("path", &*path), ("csv.null", "NA,0")];
            let table = table(&sample.schema(), &options[..1 + usize::from(is_csv)]);
            let place = format!("{name}: {}", sample.schema().field(1));
            let sink = match FileConnector::default().sink(&table) {
                Ok(sink) => sink,
                Err(error) if is_csv && sample.column(1).data_type().is_nested() => {
                    assert!(error.to_string().contains("a CSV file cannot hold"), "{error}");
                    continue;
                }
                Err(error) => panic!("{place}: {error}"),
            };
            let mut writer = sink.open(&WriterContext::of(0)).unwrap();
            writer.write(&sample).unwrap();
            writer.commit().unwrap();
            let context = context();
            let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
            assert_eq!(bad(&context), [], "{place}");
            assert_eq!(read.schema(), sample.schema(), "{place}");
            assert_eq!(rows(&read), rows(&sample), "{place}");
        }
    }
}

#[test]
fn bytes_are_written_in_base_16_and_nothing_else_is_read() {
    let scratch = Scratch::new("bytes");
    let csv = "k,v\n1,00fF\n2,abc\n3,xy\n4,\n5,61\n".to_owned();
    let json = "{\"k\":1,\"v\":\"00fF\"}\n{\"k\":2,\"v\":\"abc\"}\n{\"k\":3,\"v\":\"xy\"}\n\
                {\"k\":4,\"v\":null}\n{\"k\":5,\"v\":\"61\"}\n";
    for (name, text) in [("t.csv", &*csv), ("t.json", json)] {
        let path = scratch.write(name, text);
        let table = table(&columns(&[("k", BIGINT), ("v", DataType::Binary)]), &[("path", &path)]);
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        let keys = read.column(0).as_primitive::<Int64Type>().values().to_vec();
        assert_eq!((keys, context.bad.count()), (vec![1, 4, 5], 2), "{name}");
        let values: Vec<Option<&[u8]>> = read.column(1).as_binary::<i32>().iter().collect();
        assert_eq!(values, [Some(&[0, 255][..]), None, Some(b"a")], "{name}");
    }
}
