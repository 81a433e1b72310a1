//! Avro and Protobuf, against rows that the encoders of others have written (`tests/formats`).

use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use connectors::FileConnector;
use connectors::messages::{MessageEncoder, MessageFormat, MessageRows};
use dataflow::bad::BadRows;
use dataflow::connector::{Connector, TableDef};
use dataflow::sink::WriterContext;

use crate::bed::*;
use crate::positions::check;

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/formats").join(name)
}

fn path_of(name: &str) -> String {
    fixture(name).display().to_string()
}

fn lines(name: &str) -> Vec<String> {
    fs::read_to_string(fixture(name)).unwrap().lines().map(str::to_owned).collect()
}

/// Messages as hexadecimal digits in lines of JSON.
pub fn digits(name: &str, key: &str) -> Vec<Vec<u8>> {
    let message = |line: String| {
        let digits = line.split(&format!("\"{key}\": \"")).nth(1).unwrap().trim_end_matches("\"}");
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    };
    lines(name).into_iter().map(message).collect()
}

/// Rows as text, NULL as nothing.
fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default();
    let columns: Vec<_> = batch
        .columns()
        .iter()
        .map(|column| ArrayFormatter::try_new(column.as_ref(), &options).unwrap())
        .collect();
    let row = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>();
    (0..batch.num_rows()).map(|at| row(at).join("|")).collect()
}

fn row_of(fields: &[(&str, DataType)]) -> DataType {
    DataType::Struct(columns(fields).fields().clone())
}

fn map_of(value: DataType) -> DataType {
    let entries = vec![Field::new("key", VARCHAR, false), Field::new("value", value, true)];
    let entries = Field::new("entries", DataType::Struct(entries.into()), false);
    DataType::Map(Arc::new(entries), false)
}

fn list_of(item: DataType) -> DataType {
    DataType::new_list(item, true)
}

fn micros() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

/// The columns of `rows.*`, as a table declares them.
fn avro_columns() -> SchemaRef {
    columns(&[
        ("id", BIGINT),
        ("small", DataType::Int32),
        ("name", VARCHAR),
        ("is", DataType::Boolean),
        ("near", DataType::Float32),
        ("far", DOUBLE),
        ("raw", DataType::Binary),
        ("four", DataType::Binary),
        ("color", VARCHAR),
        ("day", DataType::Date32),
        ("clock", DataType::Time64(TimeUnit::Microsecond)),
        ("at", TIMESTAMP),
        ("at_us", micros()),
        ("price", DataType::Decimal128(12, 2)),
        ("tags", list_of(VARCHAR)),
        ("counts", map_of(BIGINT)),
        ("place", row_of(&[("x", DOUBLE), ("kinds", list_of(VARCHAR))])),
    ])
}

/// The columns of `events.*`.
fn proto_columns() -> SchemaRef {
    let place = row_of(&[("x", DOUBLE), ("kinds", list_of(VARCHAR))]);
    let inner = row_of(&[("x", DOUBLE), ("inner", row_of(&[("id", BIGINT)]))]);
    columns(&[
        ("id", BIGINT),
        ("small", DataType::Int32),
        ("name", VARCHAR),
        ("is", DataType::Boolean),
        ("near", DataType::Float32),
        ("far", DOUBLE),
        ("raw", DataType::Binary),
        ("u32", BIGINT),
        ("u64", BIGINT),
        ("s32", DataType::Int32),
        ("f64", BIGINT),
        ("sf32", DataType::Int32),
        ("color", VARCHAR),
        ("numbers", list_of(DataType::Int32)),
        ("places", list_of(place)),
        ("counts", map_of(BIGINT)),
        ("place", inner),
        ("at", micros()),
        ("wrapped", VARCHAR),
        ("text", VARCHAR),
        ("number", DataType::Int32),
    ])
}

/// The rows of messages with the numbers of these, and the bad ones.
fn decoded<M: AsRef<[u8]>>(table: &TableDef, messages: &[M]) -> (MessageRows, Vec<String>) {
    let all: Vec<usize> = (0..table.schema.fields().len()).collect();
    let format = MessageFormat::new(table, &all).unwrap();
    let bad = Arc::new(BadRows::collecting());
    let mut decoder = format.decoder(&bad);
    messages.iter().for_each(|message| decoder.push(Some(message.as_ref())).unwrap());
    let rows = decoder.rows(&|at| format!("m{at}")).unwrap();
    let bad = bad.take().into_iter().map(|bad| format!("{}: {}", bad.place, bad.reason)).collect();
    (rows, bad)
}

pub fn encoded(table: &TableDef, batch: &RecordBatch) -> Vec<Vec<u8>> {
    let encoder = MessageEncoder::new(table, &table.schema).unwrap();
    let mut messages = vec![];
    encoder.encode("t", batch, |message| messages.extend(message.map(<[u8]>::to_vec))).unwrap();
    messages
}

#[test]
fn files_of_avro_are_those_of_another_encoder() {
    for codec in ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"] {
        let path = path_of(&format!("rows.{codec}.avro"));
        let table = table(&avro_columns(), &[("path", &path)]);
        let of = source(&FileConnector::default(), &table).unwrap();
        let opened = context();
        assert_eq!(texts(&read(&*of, 2, &opened)), lines("rows.txt"), "{codec}");
        assert_eq!(bad(&opened), []);
        assert_eq!(check(&*of, 5), 12, "{codec}");
        // Some of the columns, in another order.
        let some = FileConnector::default().source(&table, &[16, 0]).unwrap();
        let first = texts(&read(&*some, 1, &context())).remove(1);
        assert_eq!(first, "{x: 1.25, kinds: [GREEN]}|999999999999997");
    }
}

#[test]
fn columns_of_avro_come_from_its_schema_where_they_can() {
    let scratch = Scratch::new("avro-infer");
    let batch = batch(&[("a", Arc::new(Int64Array::from(vec![Some(1), None])))]);
    let path = scratch.path("t.avro");
    write_file(&path, &batch, &[]);
    let options = table(&batch.schema(), &[("path", &path)]).options;
    let inferred = FileConnector::default().infer(&options).unwrap().unwrap();
    assert_eq!(*inferred, *batch.schema());
    let path = path_of("rows.null.avro");
    let options = table(&avro_columns(), &[("path", &path)]).options;
    let error = refused(FileConnector::default().infer(&options));
    assert!(error.to_string().contains("union of several types"), "{error}");
    // One that is declared is refused by its name, and what it is.
    let odd = columns(&[("id", BIGINT), ("next", row_of(&[("id", BIGINT)]))]);
    let error = refused(source(&FileConnector::default(), &table(&odd, &[("path", &path)])));
    assert!(error.to_string().contains("column 'next': it is not read from"), "{error}");
    let missing = columns(&[("ident", BIGINT)]);
    let error = refused(source(&FileConnector::default(), &table(&missing, &[("path", &path)])));
    assert!(error.to_string().contains("no such column"), "{error}");
}

fn write_file(path: &str, batch: &RecordBatch, options: &[(&str, &str)]) {
    let options: Vec<_> = [("path", path)].iter().chain(options).copied().collect();
    let sink = FileConnector::default().sink(&table(&batch.schema(), &options)).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    put(&mut *writer, batch).unwrap();
    put(&mut *writer, batch).unwrap();
    writer.commit().unwrap();
}

#[test]
fn files_of_avro_are_written_as_others_read_them() {
    let scratch = Scratch::new("avro-sink");
    let path = path_of("rows.null.avro");
    let of = table(&avro_columns(), &[("path", &path)]);
    let rows = read(&*source(&FileConnector::default(), &of).unwrap(), 1, &context());
    let expected = [lines("rows.txt"), lines("rows.txt")].concat();
    for codec in ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"] {
        let path = scratch.path(&format!("{codec}.avro"));
        write_file(&path, &rows, &[("avro.codec", codec)]);
        let of = table(&avro_columns(), &[("path", &path)]);
        let again = read(&*source(&FileConnector::default(), &of).unwrap(), 1, &context());
        assert_eq!(texts(&again), expected, "{codec}");
        let file = BufReader::new(File::open(&path).unwrap());
        let other = arrow_avro::reader::ReaderBuilder::new().build(file).unwrap();
        let other: Vec<_> = other.map(Result::unwrap).collect();
        let other = arrow::compute::concat_batches(&other[0].schema(), &other).unwrap();
        let plain = |texts: Vec<String>| texts.join("\n").replace('Z', "");
        assert_eq!(plain(texts(&other)), expected.join("\n"), "{codec}");
    }
    // By a schema of one's own: other types, another order, a field that stays NULL.
    let schema = r#"{"type": "record", "name": "R", "fields": [
        {"name": "more", "type": ["null", "string"]}, {"name": "small", "type": ["long", "null"]},
        {"name": "id", "type": "int"}]}"#;
    let path = scratch.path("own.avro");
    let few = rows.project(&[0, 1]).unwrap();
    let error = {
        let options = [("path", &*path), ("avro.schema", schema)];
        let sink = FileConnector::default().sink(&table(&few.schema(), &options)).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        put(&mut *writer, &few.slice(0, 3)).unwrap_err().to_string()
    };
    assert!(error.contains("'999999999999997' is not a valid INT"), "{error}");
    let schema = schema.replace("\"int\"", "\"double\"");
    write_file(&path, &few.slice(0, 3), &[("avro.schema", &schema)]);
    let declared = columns(&[("id", BIGINT), ("small", BIGINT), ("more", VARCHAR)]);
    let of = source(&FileConnector::default(), &table(&declared, &[("path", &path)])).unwrap();
    let read = texts(&read(&*of, 1, &context()));
    assert_eq!(read[..3], ["-3|-5|", "999999999999997||", "1999999999999997|-3|"]);
}

#[test]
fn a_damaged_file_of_avro_is_an_error_at_its_place() {
    let scratch = Scratch::new("avro-damaged");
    let whole = fs::read(fixture("rows.null.avro")).unwrap();
    let read_of = |bytes: &[u8]| {
        let path = scratch.write("t.avro", bytes);
        let of = source(&FileConnector::default(), &table(&avro_columns(), &[("path", &path)]))?;
        try_read_flow(&*of, 0, &context())
    };
    assert_eq!(read_of(&whole).unwrap().num_rows(), 12);
    let mark: &[u8] = b"0123456789abcdef";
    let at = whole.windows(16).rposition(|bytes| bytes == mark).unwrap();
    let mut other = whole.clone();
    other[at] = b'x';
    let error = read_of(&other).unwrap_err().to_string();
    assert!(error.contains("the mark behind a block is another one"), "{error}");
    let error = read_of(&whole[..at]).unwrap_err().to_string();
    assert!(error.contains("it ends within a block"), "{error}");
    let error = read_of(&whole[..100]).unwrap_err().to_string();
    assert!(error.contains("ends within its header"), "{error}");
    let error = read_of(b"not Avro at all").unwrap_err().to_string();
    assert!(error.contains("does not begin as files of Avro do"), "{error}");
}

/// A file of one block, in which `rows` are stated.
pub fn container(schema: &str, codec: &str, rows: i64, block: &[u8]) -> Vec<u8> {
    let long = |value: i64| {
        let (mut left, mut bytes) = (((value << 1) ^ (value >> 63)).cast_unsigned(), vec![]);
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes
    };
    let text = |bytes: &[u8]| [&long(bytes.len() as i64)[..], bytes].concat();
    let mark = [7; 16];
    let entries = [("avro.schema", schema), ("avro.codec", codec)];
    let entries =
        entries.map(|(key, value)| [text(key.as_bytes()), text(value.as_bytes())].concat());
    [b"Obj\x01".to_vec(), long(2), entries.concat(), long(0), mark.to_vec()]
        .into_iter()
        .chain([long(rows), text(block), mark.to_vec()])
        .flatten()
        .collect()
}

#[test]
fn hostile_files_of_avro_ask_for_little() {
    let scratch = Scratch::new("avro-hostile");
    let read_of = |bytes: &[u8]| {
        let path = scratch.write("t.avro", bytes);
        let schema = columns(&[("a", BIGINT)]);
        let of = source(&FileConnector::default(), &table(&schema, &[("path", &path)]));
        of.and_then(|of| try_read_flow(&*of, 0, &context())).unwrap_err().to_string()
    };
    let record = |of: &str| {
        format!(r#"{{"type":"record","name":"R","fields":[{{"name":"a","type":{of}}}]}}"#)
    };
    // Rows without bytes, as many as a number has.
    let error = read_of(&container(&record("\"null\""), "null", i64::MAX, b""));
    assert!(error.contains("values without bytes"), "{error}");
    // Arrays of them within a field that is not read.
    let nulls = r#"{"type":"record","name":"R","fields":[{"name":"a","type":"long"},
        {"name":"b","type":{"type":"array","items":"null"}}]}"#;
    let error = read_of(&container(nulls, "null", 1, b"\x02\xfe\xff\xff\xff\xff\x0f\x00"));
    assert!(error.contains("values without bytes"), "{error}");
    // A block that unpacks to more than a gigabyte.
    let bomb = {
        let mut packer = flate(vec![]);
        let zeros = vec![0; 1 << 20];
        (0..300).for_each(|_| std::io::Write::write_all(&mut packer, &zeros).unwrap());
        packer.finish().unwrap()
    };
    let error = read_of(&container(&record("\"long\""), "deflate", 1, &bomb));
    assert!(error.contains("unpacks to more than"), "{error}");
    // A length of bytes that are not there, a row that says too little, one that says too much.
    let error = read_of(&container(&record("\"bytes\""), "null", 1, b"\xfe\xff\xff\xff\x0f"));
    assert!(error.contains("BIGINT") || error.contains("ends within a value"), "{error}");
    let error = read_of(&container(&record("\"long\""), "null", 2, b"\x02"));
    assert!(error.contains("ends within a value"), "{error}");
    let error = read_of(&container(&record("\"long\""), "null", 1, b"\x02\x02"));
    assert!(error.contains("1 bytes are left"), "{error}");
    // Schemas that are too deep, or have too many types when each is written out.
    let deep =
        (0..200).fold("\"long\"".to_owned(), |of, _| format!(r#"{{"type":"array","items":{of}}}"#));
    let error = read_of(&container(&record(&deep), "null", 0, b""));
    assert!(error.contains("within each other") || error.contains("no JSON"), "{error}");
    let wide = (0..20).fold("\"long\"".to_owned(), |of, at| {
        let second = if at == 0 { "\"long\"".into() } else { format!("\"R{}\"", at - 1) };
        let fields = [("x", of), ("y", second)];
        let fields = fields.map(|(name, of)| format!(r#"{{"name":"{name}","type":{of}}}"#));
        format!(r#"{{"type":"record","name":"R{at}","fields":[{}]}}"#, fields.join(","))
    });
    let error = read_of(&container(&record(&wide), "null", 0, b""));
    assert!(error.contains("too many types"), "{error}");
}

#[test]
fn values_without_bytes_are_passed_over_at_once() {
    let scratch = Scratch::new("avro-empty");
    // Records of two records each: 2^45 values within a field, and `n` alone has bytes.
    let empty = (0..=45).map(|at| {
        let within = if at == 0 { "null".to_owned() } else { format!("R{}", at - 1) };
        let fields = ["x", "y"].map(|name| format!(r#"{{"name":"{name}","type":"{within}"}}"#));
        let of = format!(r#"{{"type":"record","name":"R{at}","fields":[{}]}}"#, fields.join(","));
        format!(r#"{{"name":"e{at}","type":{of}}}"#)
    });
    let empty = empty.collect::<Vec<_>>().join(",");
    let schema = format!(
        r#"{{"type":"record","name":"R","fields":[{empty},{{"name":"n","type":"long"}}]}}"#
    );
    let path = scratch.write("t.avro", container(&schema, "null", 3, &[2, 4, 6]));
    let of = table(&columns(&[("n", BIGINT)]), &[("path", &path)]);
    let of = source(&FileConnector::default(), &of).unwrap();
    assert_eq!(rows(&read(&*of, 1, &context())), ["1", "2", "3"]);
}

fn flate(to: Vec<u8>) -> flate2::write::DeflateEncoder<Vec<u8>> {
    flate2::write::DeflateEncoder::new(to, flate2::Compression::default())
}

#[test]
fn messages_of_avro_are_those_of_another_encoder() {
    let schema = path_of("rows.avsc");
    let options = [("format", "avro"), ("avro.schema.file", &*schema)];
    let mut messages = digits("rows.datums.json", "datum");
    let table_of = table(&avro_columns(), &options);
    let (rows, bad) = decoded(&table_of, &messages);
    assert_eq!((texts(&rows.rows), bad), (lines("rows.txt"), vec![]));
    // Bad ones take no other with them.
    messages[3].pop();
    messages[5].push(0);
    messages[7].clear();
    let (rows, bad) = decoded(&table_of, &messages);
    assert_eq!(rows.messages, [0, 1, 2, 4, 6, 8, 9, 10, 11]);
    let left = rows.messages.iter().map(|at| lines("rows.txt")[*at as usize].clone());
    assert_eq!(texts(&rows.rows), left.collect::<Vec<_>>());
    let places: Vec<_> = bad.iter().map(|bad| bad.split(':').next().unwrap()).collect();
    assert_eq!(places, ["m3", "m5", "m7"], "{bad:?}");
    // A type that a value does not fit takes its row.
    let narrow = table(&columns(&[("id", DataType::Int32)]), &options);
    let (rows, bad) = decoded(&narrow, &digits("rows.datums.json", "datum"));
    assert_eq!((rows.rows.num_rows(), bad.len()), (1, 11));
    assert_eq!(bad[0], "m1: column 'id': '999999999999997' is not a valid INT");
}

#[test]
fn messages_of_avro_by_the_columns_are_those_of_flink() {
    let schema = Arc::new(Schema::new(vec![
        Field::new("id", BIGINT, false),
        Field::new("tags", list_of(VARCHAR), true),
        Field::new("at", TIMESTAMP, true),
    ]));
    let table = table(&schema, &[("format", "avro")]);
    let tags = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
    let columns: [ArrayRef; 3] = [
        Arc::new(Int64Array::from(vec![-1, 64])),
        arrow::compute::cast(&tags, &list_of(VARCHAR)).unwrap(),
        Arc::new(arrow::array::TimestampMillisecondArray::from(vec![None, Some(1)])),
    ];
    let batch = RecordBatch::try_new(schema, columns.into()).unwrap();
    let messages = encoded(&table, &batch);
    // id; the second type of a union, two items: the second type, "1", the first type; no more.
    assert_eq!(messages[0], [1, 2, 4, 2, 2, b'1', 0, 0, 0]);
    assert_eq!(messages[1], [0x80, 1, 0, 2, 2]);
    let (rows, bad) = decoded(&table, &messages);
    assert_eq!(bad, Vec::<String>::new());
    assert_eq!(texts(&rows.rows), ["-1|[1, ]|", "64||1970-01-01T00:00:00.001"]);
}

fn proto_table(columns: &SchemaRef, options: &[(&str, &str)]) -> TableDef {
    let file = path_of("event.desc");
    let mut all =
        vec![("format", "protobuf"), ("protobuf.message-class-name", "org.example.Event")];
    if !options.iter().any(|(key, _)| *key == "protobuf.proto.file") {
        all.push(("protobuf.descriptor.file", &file));
    }
    all.extend(options);
    table(columns, &all)
}

#[test]
fn messages_of_protobuf_are_those_of_another_encoder() {
    let messages = digits("events.json", "message");
    let proto = path_of("event.proto");
    for options in [&[][..], &[("protobuf.proto.file", &*proto)]] {
        let (rows, bad) = decoded(&proto_table(&proto_columns(), options), &messages);
        assert_eq!((texts(&rows.rows), bad), (lines("events.txt"), vec![]));
    }
    let mut broken = messages.clone();
    broken[2].pop();
    broken[4] = b"\x0a\xff".to_vec();
    broken[5] = vec![];
    let (rows, bad) = decoded(&proto_table(&proto_columns(), &[]), &broken);
    assert_eq!((rows.messages, bad.len()), (vec![0, 1, 3, 5, 6, 7], 2));
    assert_eq!(texts(&rows.rows)[3], "0|||false|0.0|0.0||0|0|0|0|0|UNKNOWN||||||||");
    // Other types of the same fields.
    let other = columns(&[
        ("color", DataType::Int32),
        ("at", row_of(&[("nanos", DataType::Int32), ("seconds", BIGINT)])),
        ("s32", DataType::Int8),
    ]);
    let (rows, bad) = decoded(&proto_table(&other, &[]), &messages[..3]);
    assert_eq!(
        (texts(&rows.rows)[1].as_str(), bad),
        ("1|{nanos: 1500000, seconds: -2}|-1", vec![])
    );
    // With defaults, what is not there is not NULL, but for messages.
    let few = columns(&[("small", BIGINT), ("numbers", list_of(BIGINT)), ("place", row_of(&[]))]);
    let defaults = [("protobuf.read-default-values", "true")];
    let (rows, _) = decoded(&proto_table(&few, &defaults), &[b""]);
    assert_eq!(texts(&rows.rows), ["0|[]|"]);
}

#[test]
fn messages_of_protobuf_are_written_as_others_write_them() {
    let messages = digits("events.json", "message");
    let table = proto_table(&proto_columns(), &[]);
    let (rows, _) = decoded(&table, &messages);
    let again = encoded(&table, &rows.rows);
    let (read, bad) = decoded(&table, &again);
    assert_eq!((texts(&read.rows), bad), (lines("events.txt"), vec![]));
    // One without a map has one encoding; the field that nobody reads is not there.
    let unread = |message: &[u8], at: usize| {
        let end = if at == 0 { 0 } else { at + 3 };
        message[..message.len() - end].to_vec()
    };
    for at in [0, 3, 6] {
        assert_eq!(again[at], unread(&messages[at], at), "message {at}");
    }
    // NULL in a list has a text.
    let list = columns(&[("places", list_of(row_of(&[("kinds", list_of(VARCHAR))])))]);
    let kinds = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(7), None])]);
    let kinds = arrow::compute::cast(&kinds, &list_of(VARCHAR)).unwrap();
    let DataType::List(item) = list.field(0).data_type().clone() else { panic!("a list") };
    let DataType::Struct(fields) = item.data_type().clone() else { panic!("rows") };
    let place: ArrayRef = Arc::new(StructArray::new(fields, vec![kinds], None));
    let offsets = arrow::buffer::OffsetBuffer::from_lengths([1]);
    let places: ArrayRef = Arc::new(ListArray::new(item, offsets, place, None));
    let batch = RecordBatch::try_new(Arc::clone(&list), vec![places]).unwrap();
    let table = proto_table(&list, &[("protobuf.write-null-string-literal", "none")]);
    let message = encoded(&table, &batch).remove(0);
    assert_eq!(message, [&[0x7a, 9, 0x12, 1][..], b"7", &[0x12, 4], b"none"].concat());
}

#[test]
fn descriptions_that_are_none_say_where_and_what_to_write() {
    let scratch = Scratch::new("formats-descriptions");
    let one = columns(&[("id", BIGINT)]);
    let says = |key: &str, path: &str, place: &str, words: &str| {
        let options = [
            ("format", if key.starts_with("avro") { "avro" } else { "protobuf" }),
            ("protobuf.message-class-name", "Event"),
            (key, path),
        ];
        let error = refused(MessageFormat::new(&table(&one, &options), &[0]));
        let text = error.to_string();
        assert!(text.contains(key) && text.contains(place), "{text}");
        assert!(hint(&error).contains(words), "{error:?}");
    };
    let proto = "protobuf.proto.file";
    let wrong =
        scratch.write("wrong.proto", "syntax = \"proto3\";\nmessage Event { int32 id = ; }");
    says(proto, &wrong, "wrong.proto: at 2:28: ", "a .proto file");
    let imports = "syntax = \"proto3\";\nimport \"wrong.proto\";\nmessage Event { int32 id = 1; }";
    says(proto, &scratch.write("imports.proto", imports), "wrong.proto:2:28: ", "imports");
    let missing = imports.replace("wrong", "missing");
    says(proto, &scratch.write("alone.proto", missing), "alone.proto: at 2:1: ", "imports");
    says(proto, "missing.proto", "missing.proto: ", "a .proto file");
    let set = scratch.write("wrong.desc", "no descriptors");
    says("protobuf.descriptor.file", &set, "wrong.desc: ", "--include_imports");
    says("avro.schema", "{\"type\": \"record\"", "no JSON", "\"fields\"");
    says("avro.schema", "\"int\"", "record", "\"fields\"");
    says("avro.schema.file", "missing.avsc", "missing.avsc: ", "a schema in JSON");
}

#[test]
fn what_does_not_fit_is_refused_by_its_name() {
    let refuse = |columns: &SchemaRef, options: &[(&str, &str)]| {
        let of = table(columns, options);
        refused(MessageFormat::new(&of, &[0])).to_string()
    };
    let one = columns(&[("id", BIGINT)]);
    let error = refuse(&one, &[("format", "avro-confluent")]);
    assert!(error.contains("avro-confluent.url"), "{error}");
    let error = refuse(&one, &[("format", "avro"), ("avro.schema", "{")]);
    assert!(error.contains("avro.schema") && error.contains("no JSON"), "{error}");
    let error = refuse(&one, &[("format", "protobuf")]);
    assert!(error.contains("protobuf.message-class-name"), "{error}");
    let desc = path_of("event.desc");
    let mut options = vec![("format", "protobuf"), ("protobuf.descriptor.file", &*desc)];
    options.push(("protobuf.message-class-name", "org.example.Evnt"));
    let error = refused(MessageFormat::new(&table(&one, &options), &[0]));
    assert!(hint(&error).contains("org.example.Event"), "{error}");
    options[2].1 = "com.example.Outer$Event";
    for (of, reason) in [
        (columns(&[("idd", BIGINT)]), "no such column"),
        (columns(&[("numbers", BIGINT)]), "declare an ARRAY"),
        (columns(&[("counts", BIGINT)]), "declare a MAP"),
        (columns(&[("place", BIGINT)]), "declare a ROW"),
        (columns(&[("name", BIGINT)]), "VARCHAR"),
    ] {
        let error = refuse(&of, &options);
        assert!(error.contains(reason) || error.contains("STRING"), "{reason}: {error}");
    }
    // Streams of bytes have no messages that name their schema.
    for (format, of) in [("protobuf-confluent", "socket"), ("avro-confluent", "http")] {
        let options =
            [("format", format), ("address", "localhost:1"), ("url", "http://localhost:1")];
        let of: Arc<dyn Connector> = match of {
            "socket" => Arc::new(connectors::Socket),
            _ => Arc::new(connectors::Http),
        };
        let error = refused(source(&*of, &table(&one, &options))).to_string();
        assert!(error.contains(&format!("'{format}' is read from 'kafka'")), "{error}");
    }
    let names: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let batch = batch(&[("a-b", names)]);
    let error = refused(MessageEncoder::new(
        &table(&batch.schema(), &[("format", "avro")]),
        &batch.schema(),
    ));
    assert!(error.to_string().contains("no such names"), "{error}");
}
