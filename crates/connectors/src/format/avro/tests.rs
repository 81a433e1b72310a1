//! Random rows, written here and read by `arrow-avro`, and the other way round.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Decimal128Array, Float64Array, Int32Array,
    Int64Array, ListArray, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, Field, Float64Type, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_avro::reader::ReaderBuilder;
use arrow_avro::schema::{Fingerprint, FingerprintAlgorithm, SchemaStore};
use arrow_avro::writer::WriterBuilder;
use arrow_avro::writer::format::AvroBinaryFormat;
use proptest::prelude::*;

use super::container::Begun;
use super::*;
use crate::format::Refuser;

type Values = (
    (Option<i64>, i32, Option<String>, bool),
    (Option<Vec<Option<f64>>>, Vec<u8>, Option<i128>, Option<i64>),
);

fn values() -> impl Strategy<Value = Vec<Values>> {
    let first = (any::<Option<i64>>(), any::<i32>(), any::<Option<String>>(), any::<bool>());
    let list = prop::option::of(prop::collection::vec(any::<Option<f64>>(), 0..4));
    let decimal = prop::option::of(-(10_i128.pow(20) - 1)..10_i128.pow(20));
    let bytes = prop::collection::vec(any::<u8>(), 0..5);
    // Within what can be shown.
    let time = prop::option::of(-(10_i64.pow(16))..10_i64.pow(16));
    let second = (list, bytes, decimal, time);
    prop::collection::vec((first, second), 1..30)
}

/// The rows of these values.
fn batch(all: &[Values]) -> RecordBatch {
    let decimals = Decimal128Array::from_iter(all.iter().map(|(_, of)| of.2));
    let lists = all.iter().map(|(_, of)| of.0.clone());
    let name: ArrayRef = Arc::new(StringArray::from_iter(all.iter().map(|(of, _)| of.2.clone())));
    let at: ArrayRef =
        Arc::new(TimestampMicrosecondArray::from_iter(all.iter().map(|(_, of)| of.3)));
    let inner = vec![
        (Arc::new(Field::new("name", DataType::Utf8, true)), name),
        (Arc::new(Field::new("at", at.data_type().clone(), true)), at),
    ];
    let columns: [(&str, ArrayRef, bool); 8] = [
        ("id", Arc::new(Int64Array::from_iter(all.iter().map(|(of, _)| of.0))), true),
        ("small", Arc::new(Int32Array::from_iter_values(all.iter().map(|(of, _)| of.1))), false),
        ("is", Arc::new(BooleanArray::from_iter(all.iter().map(|(of, _)| Some(of.3)))), false),
        ("list", Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(lists)), true),
        ("raw", Arc::new(BinaryArray::from_iter_values(all.iter().map(|(_, of)| &of.1))), false),
        ("price", Arc::new(decimals.with_precision_and_scale(20, 4).unwrap()), true),
        (
            "far",
            Arc::new(Float64Array::from_iter(all.iter().map(|(of, _)| of.0.map(|a| a as f64)))),
            true,
        ),
        ("inner", Arc::new(StructArray::from(inner)), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// Rows as text; a point in time with a zone as one without.
fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL").with_display_error(true);
    let columns = batch.columns().iter();
    let columns: Vec<_> =
        columns.map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap()).collect();
    let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>();
    (0..batch.num_rows()).map(|at| row(at).join("|").replace("Z}", "}")).collect()
}

/// Messages as rows of `columns`.
fn read(columns: &SchemaRef, json: &str, messages: &[Vec<u8>]) -> RecordBatch {
    let target = Refuser::ignoring(Arc::clone(columns)).target;
    let schema = Arc::new(AvroSchema::new(json, &[]).unwrap());
    let mut rows = AvroRows::new(&target, schema, "t").unwrap();
    messages.iter().for_each(|message| rows.push(message).unwrap());
    rows.finish().unwrap()
}

fn written(batch: &RecordBatch, json: &str) -> Vec<Vec<u8>> {
    let encoder = AvroEncoder::new(&batch.schema(), AvroSchema::new(json, &[]).unwrap()).unwrap();
    let (mut bytes, mut messages) = (vec![], vec![]);
    let end = |bytes: &mut Vec<u8>| {
        messages.push(std::mem::take(bytes));
        Ok(())
    };
    encoder.encode(batch, &mut bytes, end).unwrap();
    messages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn random_rows_are_those_of_the_library(all in values()) {
        let batch = batch(&all);
        let json = schema_of(&batch.schema()).unwrap();
        let messages = written(&batch, &json);
        let ours = read(&batch.schema(), &json, &messages);
        prop_assert_eq!(texts(&ours), texts(&batch));
        // Read by the library.
        let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
        let schema = arrow_avro::schema::AvroSchema::new(json);
        store.set(Fingerprint::Id(1), schema).unwrap();
        let mut decoder = ReaderBuilder::new()
            .with_writer_schema_store(store)
            .with_active_fingerprint(Fingerprint::Id(1))
            .build_decoder()
            .unwrap();
        for message in &messages {
            let framed = [&[0, 0, 0, 0, 1], &message[..]].concat();
            prop_assert_eq!(decoder.decode(&framed).unwrap(), framed.len());
        }
        prop_assert_eq!(texts(&decoder.flush().unwrap().unwrap()), texts(&batch));
        // Written by it.
        let builder = WriterBuilder::new(batch.schema().as_ref().clone());
        let mut encoder = builder.build_encoder::<AvroBinaryFormat>().unwrap();
        encoder.encode(&batch).unwrap();
        let messages: Vec<_> = encoder.flush().iter().map(|row| row.to_vec()).collect();
        let schema = arrow_avro::schema::AvroSchema::try_from(batch.schema().as_ref()).unwrap();
        let read = read(&batch.schema(), &schema.json_string, &messages);
        prop_assert_eq!(texts(&read), texts(&batch));
    }

    #[test]
    fn a_bad_message_leaves_nothing_behind(
        all in values(),
        at in any::<usize>(),
        cut in any::<usize>(),
    ) {
        let batch = batch(&all);
        let json = schema_of(&batch.schema()).unwrap();
        let messages = written(&batch, &json);
        let target = Refuser::ignoring(batch.schema()).target;
        let schema = Arc::new(AvroSchema::new(&json, &[]).unwrap());
        let mut rows = AvroRows::new(&target, schema, "t").unwrap();
        let at = at % messages.len();
        for (number, message) in messages.iter().enumerate() {
            if number == at {
                // One that is cut off is never a whole one.
                prop_assert!(rows.push(&message[..cut % message.len()]).is_err());
            }
            rows.push(message).unwrap();
        }
        let read = rows.finish().unwrap();
        read.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
        prop_assert_eq!(texts(&read), texts(&batch));
    }
}

#[test]
fn numbers_of_any_width_are_written_with_as_few_bytes_as_they_need() {
    let json = r#"{"type":"record","name":"R","fields":[{"name":"a","type":
        {"type":"bytes","logicalType":"decimal","precision":38,"scale":0}}]}"#;
    for (value, bytes) in [
        (0_i128, &[0_u8][..]),
        (127, &[127]),
        (128, &[0, 128]),
        (-128, &[128]),
        (-129, &[255, 127]),
        (i128::from(i64::MAX) + 1, &[0, 128, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        let column = Decimal128Array::from(vec![value]).with_precision_and_scale(38, 0).unwrap();
        let column: ArrayRef = Arc::new(column);
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let message = written(&batch, json).remove(0);
        assert_eq!(message, [&[bytes.len() as u8 * 2], bytes].concat(), "{value}");
        assert_eq!(texts(&read(&batch.schema(), json, &[message])), [value.to_string()]);
    }
    // Bytes in front that say nothing more are read, and digits that are too many are not.
    let target = Arc::new(Schema::new(vec![Field::new("a", DataType::Decimal128(38, 0), true)]));
    let long = [&[40][..], &[255; 20]].concat();
    assert_eq!(texts(&read(&target, json, &[long])), ["-1"]);
    let schema = Arc::new(AvroSchema::new(json, &[]).unwrap());
    let mut rows = AvroRows::new(&Refuser::ignoring(target).target, schema, "t").unwrap();
    let error = rows.push(&[&[34][..], &[1], &[0; 16]].concat()).unwrap_err();
    assert!(error.contains("more than 38 digits"), "{error}");
}

#[test]
fn names_have_namespaces() {
    let json = r#"{"type":"record","name":"a.b.R","fields":[
        {"name":"x","type":{"type":"enum","name":"E","symbols":["P","Q"]}},
        {"name":"y","type":"a.b.E"},{"name":"z","type":["null","E"]},
        {"name":"w","type":{"type":"record","name":"I","namespace":"c","fields":[
            {"name":"v","type":{"type":"string","avro.java.string":"String"}}]}},
        {"name":"u","type":["null","c.I"]}]}"#;
    let schema = AvroSchema::new(json, &[]).unwrap();
    let types = schema.fields().iter().map(|(_, of)| schema.data_type(of).unwrap());
    let inner = DataType::Struct(vec![Field::new("v", DataType::Utf8, true)].into());
    let text = DataType::Utf8;
    assert_eq!(types.collect::<Vec<_>>(), [text.clone(), text.clone(), text, inner.clone(), inner]);
    let within = r#"{"type":"record","name":"R","fields":[{"name":"x","type":["null","R"]}]}"#;
    let schema = AvroSchema::new(within, &[]).unwrap();
    let error = schema.data_type(&schema.fields()[0].1).unwrap_err();
    assert!(error.contains("has itself within"), "{error}");
    // Fields that are not read are skipped, to some depth.
    let mut deep = vec![2; 200];
    deep.push(0);
    let error = Reading(&schema).pass(&schema.fields()[0].1, &mut Cursor::new(&deep), 0);
    assert!(error.unwrap_err().contains("within each other"));
    Reading(&schema).pass(&schema.fields()[0].1, &mut Cursor::new(&[2, 2, 0]), 0).unwrap();
    for (json, reason) in [
        (r#"{"type":"record","name":"R","fields":[{"name":"x","type":"Nope"}]}"#, "it lacks"),
        (r#"{"type":"record","name":"R"}"#, "no 'fields'"),
        (r#"{"type":"record","fields":[]}"#, "no name"),
        (r#"{"type":"record","name":"R","fields":[{"name":"x","type":[]}]}"#, "of nothing"),
        (r#"{"type":"record","name":"R","fields":[{"type":"int"}]}"#, "no name or type"),
        (r#"["null"]"#, "not that of a record"),
        ("17", "no type"),
        ("", "no JSON"),
    ] {
        let error = AvroSchema::new(json, &[]).unwrap_err();
        assert!(error.contains(reason), "{json}: {error}");
    }
}

#[test]
fn a_header_that_comes_in_pieces_is_read_once() {
    let mut bytes = vec![];
    let json = r#"{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}"#;
    BlockWriter::begin(BlockCodec::named(b"null").unwrap(), json, "t", &mut bytes);
    let length = bytes.len();
    bytes.extend([2, 2]);
    // One byte at a time, each of which is forgotten as soon as an entry is whole.
    let mut begun = Begun::default();
    for end in 0..length {
        assert!(begun.header(&bytes[..end]).unwrap().is_none(), "{end}");
    }
    let codec = bytes.windows(10).position(|of| of == b"avro.codec").unwrap();
    let read = bytes[..codec - 1].to_vec();
    bytes[4..codec - 1].fill(0xff);
    assert_eq!(begun.header(&bytes).unwrap().unwrap().1, length);
    // A reader that begins there reads it all.
    assert!(Begun::default().header(&bytes).is_err());
    bytes[..codec - 1].copy_from_slice(&read);
    assert_eq!(Begun::default().header(&bytes).unwrap().unwrap().1, length);
}
