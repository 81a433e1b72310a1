//! Random rows, written and read again; the types of fields.

use arrow::array::{
    Array, ArrayRef, BinaryArray, Float64Array, Int64Array, ListArray, StringArray, StructArray,
    TimestampNanosecondArray, UInt64Array,
};
use arrow::datatypes::{Int32Type, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use proptest::prelude::*;

use super::*;
use crate::format::Refuser;

const TEXT: &str = r#"
    syntax = "proto3";
    import "google/protobuf/timestamp.proto";
    import "google/protobuf/wrappers.proto";
    message Row {
      message Inner { optional string name = 1; Inner again = 2; }
      optional int64 id = 1;
      optional double far = 2;
      repeated sint32 numbers = 3;
      optional bytes raw = 4;
      google.protobuf.Timestamp at = 5;
      google.protobuf.UInt64Value large = 6;
      Inner inner = 7;
    }
"#;

type Values = (
    (Option<i64>, f64, Vec<i32>, Option<Vec<u8>>),
    (Option<i64>, Option<u64>, Option<Option<String>>),
);

fn values() -> impl Strategy<Value = Vec<Values>> {
    let numbers = prop::collection::vec(any::<i32>(), 0..4);
    let bytes = prop::option::of(prop::collection::vec(any::<u8>(), 0..5));
    let first = (any::<Option<i64>>(), any::<f64>(), numbers, bytes);
    let second = (any::<Option<i64>>(), any::<Option<u64>>(), any::<Option<Option<String>>>());
    prop::collection::vec((first, second), 1..30)
}

/// The rows of these values; a list without values is NULL.
fn batch(all: &[Values]) -> RecordBatch {
    let numbers = all.iter().map(|(of, _)| {
        let numbers = of.2.iter().copied().map(Some).collect::<Vec<_>>();
        (!numbers.is_empty()).then_some(numbers)
    });
    let names = all.iter().map(|(_, of)| of.2.clone().flatten());
    let names: ArrayRef = Arc::new(StringArray::from_iter(names));
    let again = Field::new("name", DataType::Utf8, true);
    let again = arrow::array::new_null_array(&DataType::Struct(vec![again].into()), all.len());
    let fields = Fields::from(vec![
        Field::new("name", DataType::Utf8, true),
        Field::new("again", again.data_type().clone(), true),
    ]);
    let nulls: Vec<_> = all.iter().map(|(_, of)| of.2.is_some()).collect();
    let inner = StructArray::new(fields, vec![names, again], Some(nulls.into()));
    let columns: [(&str, ArrayRef); 7] = [
        ("id", Arc::new(Int64Array::from_iter(all.iter().map(|(of, _)| of.0)))),
        ("far", Arc::new(Float64Array::from_iter(all.iter().map(|(of, _)| Some(of.1))))),
        ("numbers", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(numbers))),
        ("raw", Arc::new(BinaryArray::from_iter(all.iter().map(|(of, _)| of.3.clone())))),
        ("at", Arc::new(TimestampNanosecondArray::from_iter(all.iter().map(|(_, of)| of.0)))),
        ("large", Arc::new(UInt64Array::from_iter(all.iter().map(|(_, of)| of.1)))),
        ("inner", Arc::new(inner)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, of)| (name, of, true))).unwrap()
}

fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL").with_display_error(true);
    let columns = batch.columns().iter();
    let columns: Vec<_> =
        columns.map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap()).collect();
    let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>();
    (0..batch.num_rows()).map(|at| row(at).join("|")).collect()
}

fn written(batch: &RecordBatch, message: &MessageDescriptor) -> Vec<Vec<u8>> {
    let encoder = ProtoEncoder::new(&batch.schema(), message, "").unwrap();
    let (mut bytes, mut messages) = (vec![], vec![]);
    let end = |bytes: &mut Vec<u8>| {
        messages.push(std::mem::take(bytes));
        Ok(())
    };
    encoder.encode(batch, &mut bytes, end).unwrap();
    messages
}

fn row() -> MessageDescriptor {
    compiled(TEXT, &[]).unwrap().messages().next().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn random_rows_are_read_as_they_were_written(all in values(), cut in any::<usize>()) {
        let (batch, message) = (batch(&all), row());
        let messages = written(&batch, &message);
        let target = Refuser::ignoring(batch.schema()).target;
        let mut rows = ProtoRows::new(&target, &message, "t", false).unwrap();
        for message in &messages {
            rows.push(message).unwrap();
        }
        let whole = rows.finish().unwrap();
        prop_assert_eq!(texts(&whole), texts(&batch));
        // A truncated message may be valid, too; the columns stay whole.
        for message in &messages {
            let _ = rows.push(&message[..cut % (message.len() + 1)]);
        }
        let cut = rows.finish().unwrap();
        cut.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
    }
}

#[test]
fn points_in_time_have_the_ticks_of_the_column() {
    let message = row();
    let time = |seconds: i64, nanos: i32| {
        let mut time =
            DynamicMessage::new(message.get_field(5).unwrap().kind().as_message().unwrap().clone());
        time.set_field_by_number(1, Value::I64(seconds));
        time.set_field_by_number(2, Value::I32(nanos));
        time
    };
    assert_eq!(ticks(&time(-1, 999_999_999), TimeUnit::Millisecond), Ok(-1));
    assert_eq!(ticks(&time(-1, 0), TimeUnit::Second), Ok(-1));
    assert_eq!(ticks(&time(3, 1_999), TimeUnit::Microsecond), Ok(3_000_001));
    for (seconds, nanos) in [(i64::MAX, 0), (0, -1), (0, 1_000_000_000)] {
        assert!(ticks(&time(seconds, nanos), TimeUnit::Nanosecond).is_err());
    }
}

#[test]
fn required_fields_and_enums_are_checked() {
    let text = "syntax = \"proto2\"; message M { required int32 a = 1; enum E { X = 0; Y = 5; } \
                optional E e = 2; optional string t = 3 [default = \"none\"]; }";
    let message = compiled(text, &[]).unwrap().messages().next().unwrap();
    let texts_of = |names: Vec<Option<&str>>| {
        let names: ArrayRef = Arc::new(StringArray::from(names));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![7]));
        RecordBatch::try_from_iter_with_nullable([("a", numbers, true), ("e", names, true)])
            .unwrap()
    };
    assert_eq!(written(&texts_of(vec![Some("Y")]), &message), [[8, 7, 16, 5]]);
    let encoder = ProtoEncoder::new(&texts_of(vec![None]).schema(), &message, "").unwrap();
    let error = encoder.encode(&texts_of(vec![Some("Z")]), &mut vec![], |_| Ok(())).unwrap_err();
    assert!(error.contains("'Z' is no value of 'M.E'"), "{error}");
    let without = Schema::new(vec![Field::new("e", DataType::Utf8, true)]);
    let error = ProtoEncoder::new(&without, &message, "").unwrap_err();
    assert!(error.to_string().contains("it is required"), "{error}");
    // A default of the file, where it is asked for.
    let declared = Arc::new(Schema::new(vec![Field::new("t", DataType::Utf8, true)]));
    let target = Refuser::ignoring(declared).target;
    for (defaults, read) in [(false, "NULL"), (true, "none")] {
        let mut rows = ProtoRows::new(&target, &message, "t", defaults).unwrap();
        rows.push(&[8, 7]).unwrap();
        assert_eq!(texts(&rows.finish().unwrap()), [read]);
    }
}

#[test]
fn columns_that_nothing_declares_have_so_many_fields_at_most() {
    let columns = |wide: usize| {
        let fields = |of: &str| {
            (1..=wide).map(|at| format!("optional {of} f{at} = {at};")).collect::<String>()
        };
        let text = format!(
            "syntax = \"proto3\"; message R {{ M1 a = 1; int64 b = 2; }} message M1 {{ {} }} \
             message M2 {{ {} }}",
            fields("M2"),
            fields("int32")
        );
        let columns = columns_of(&compiled(&text, &[]).unwrap().messages().next().unwrap());
        columns.fields().iter().map(|column| column.name().clone()).collect::<Vec<_>>()
    };
    // With their messages and their own, 1 + 99 * 100 and 1 + 100 * 101.
    assert_eq!(columns(99), ["a", "b"]);
    assert_eq!(columns(100), ["b"]);
}

#[test]
fn types_that_only_have_the_names_of_googles_are_messages_like_others() {
    let text = "syntax = \"proto3\"; package google.protobuf; \
                message M { Int64Value a = 1; Timestamp t = 2; } \
                message Int64Value { Int64Value value = 1; } \
                message Timestamp { string seconds = 1; int32 nanos = 2; }";
    let message = compiled(text, &[]).unwrap().messages().next().unwrap();
    let columns = columns_of(&message);
    assert!(columns.fields().iter().all(|column| column.data_type().is_nested()), "{columns}");
    for (name, of) in
        [("a", DataType::Int64), ("t", DataType::Timestamp(TimeUnit::Microsecond, None))]
    {
        let declared = Arc::new(Schema::new(vec![Field::new(name, of, true)]));
        let target = Refuser::ignoring(Arc::clone(&declared)).target;
        let error = ProtoRows::new(&target, &message, "t", false).map(drop).unwrap_err();
        assert!(error.to_string().contains("it is a message"), "{error}");
        assert!(ProtoEncoder::new(&declared, &message, "").is_err());
    }
}
