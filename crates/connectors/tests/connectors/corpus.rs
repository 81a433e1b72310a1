//! The corpora of the fuzz targets, replayed, and each seed with some changes. `UPDATE_CORPUS=1`
//! writes the seeds anew: a whole file of each format and packing, and damaged ones; what a server
//! says, whole and damaged. What a fuzz target finds is added by its own name.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int64Array, ListArray, StringArray, TimestampMillisecondArray,
};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::IpcWriteOptions;
use arrow::record_batch::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use connectors::{FileConnector, hostile};
use dataflow::connector::Connector;
use dataflow::position::Position;
use dataflow::sink::WriterContext;
use futures::{StreamExt, stream};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};

use crate::bed::*;
use crate::formats::{digits, fixture};
use crate::protobuf::behind_length;

#[path = "../../../../fuzz/replay/mutate.rs"]
mod mutate;
#[path = "../../../../fuzz/src/read.rs"]
mod read;
#[path = "../../../../fuzz/replay/seeds.rs"]
mod seeds;

/// Changed seeds of a target: files, and what a server says.
const CHANGED_FILES: usize = 500;
const CHANGED: usize = 10_000;

/// The target, and the names of the files that it reads.
const TARGETS: [(&str, &[&str]); 7] = [
    ("csv", &["t.csv"]),
    ("json", &["t.json"]),
    ("arrow", &["t.arrow"]),
    ("arrows", &["t.arrows"]),
    ("parquet", &["t.parquet"]),
    ("avro", &["t.avro"]),
    ("packed", &["t.csv.gz", "t.csv.zst", "t.csv.bz2", "t.csv.xz"]),
];

/// Other ways to write a file, by the name of its seed.
const PACKED: [(&str, &str, &str); 14] = [
    ("arrow", "arrow.compression", "lz4"),
    ("arrow", "arrow.compression", "zstd"),
    ("arrows", "arrow.compression", "lz4"),
    ("arrows", "arrow.compression", "zstd"),
    ("parquet", "parquet.compression", "snappy"),
    ("parquet", "parquet.compression", "gzip"),
    ("parquet", "parquet.compression", "brotli"),
    ("parquet", "parquet.compression", "zstd"),
    ("parquet", "parquet.compression", "lz4"),
    ("avro", "avro.codec", "null"),
    ("avro", "avro.codec", "deflate"),
    ("avro", "avro.codec", "zstandard"),
    ("avro", "avro.codec", "bzip2"),
    ("avro", "avro.codec", "xz"),
];

type Seeds = Vec<(String, Vec<u8>)>;

fn corpus(target: &str) -> PathBuf {
    seeds::corpus(env!("CARGO_MANIFEST_DIR"), target)
}

fn sample() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-3)]));
    let values: ArrayRef = Arc::new(Float64Array::from(vec![0.5, f64::MAX, -0.0]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a,\"b\"\n", "", "ü"]));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![0, 1, 1 << 40]));
    batch(&[("id", ids), ("value", values), ("name", names), ("at", times)])
}

/// A whole file, and damaged ones, by a name each.
fn damaged(whole: &[u8]) -> Seeds {
    let mut seeds = vec![("whole".to_owned(), whole.to_vec()), ("empty".to_owned(), vec![])];
    for part in 1..4 {
        seeds.push((format!("cut-{part}"), whole[..whole.len() * part / 4].to_vec()));
    }
    for (at, part) in (0..whole.len()).step_by((whole.len() / 8).max(1)).enumerate() {
        let mut bytes = whole.to_vec();
        bytes[part] ^= 0xff;
        seeds.push((format!("flip-{at}"), bytes));
        let mut bytes = whole.to_vec();
        let end = (part + 4).min(bytes.len());
        bytes[part..end].fill(0xff);
        seeds.push((format!("huge-{at}"), bytes));
    }
    seeds
}

fn written(name: &str, options: &[(&str, &str)]) -> Vec<u8> {
    let scratch = Scratch::new(&format!("seeds-{name}"));
    let path = scratch.path(name);
    let options: Vec<_> = [("path", path.as_str())].iter().chain(options).copied().collect();
    let sink = FileConnector::default().sink(&table(&sample().schema(), &options)).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&sample()).unwrap();
    writer.write(&sample()).unwrap();
    writer.commit().unwrap();
    fs::read(&path).unwrap()
}

fn file_seeds(target: &str, names: &[&str]) -> Seeds {
    let mut all = Seeds::new();
    for (packing, name) in names.iter().enumerate() {
        all.extend(damaged(&written(name, &[])).into_iter().map(
            |(seed, bytes)| match names.len() {
                1 => (seed, bytes),
                // The first byte chooses the name.
                _ => (format!("{name}-{seed}"), [vec![packing as u8], bytes].concat()),
            },
        ));
    }
    for (_, option, packing) in PACKED.iter().filter(|(of, ..)| *of == target) {
        all.push((format!("{packing}-whole"), written(names[0], &[(option, packing)])));
    }
    if target == "parquet" {
        all.extend(parquet_seeds());
    }
    all
}

/// Pages of either version and of each encoding, with indexes, lists and dictionaries.
fn parquet_seeds() -> Seeds {
    let lists = ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
    ]);
    let lists: ArrayRef = Arc::new(lists);
    let fields = sample();
    let columns = [("id", fields.column(0).clone()), ("name", fields.column(2).clone())];
    let batch = batch(&[columns[0].clone(), columns[1].clone(), ("list", lists)]);
    let properties = |version, encoding: Option<Encoding>| {
        let builder = WriterProperties::builder().set_writer_version(version);
        let builder = builder.set_data_page_row_count_limit(2).set_write_batch_size(1);
        let builder = builder.set_statistics_enabled(EnabledStatistics::Page);
        match encoding {
            Some(encoding) => builder.set_dictionary_enabled(false).set_encoding(encoding),
            None => builder.set_compression(Compression::ZSTD(Default::default())),
        }
    };
    let (first, second) = (WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0);
    let delta = properties(second, None).set_dictionary_enabled(false);
    let ways = [
        ("pages-1-whole", properties(first, Some(Encoding::PLAIN))),
        ("pages-2-whole", properties(second, None)),
        ("pages-2-delta-whole", delta),
    ];
    let scratch = Scratch::new("seeds-parquet");
    ways.map(|(name, properties)| {
        let path = scratch.path(name);
        let file = File::create(&path).unwrap();
        let mut writer =
            ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        (name.to_owned(), fs::read(&path).unwrap())
    })
    .into()
}

#[test]
fn every_file_of_the_corpora_is_read_or_refused() {
    let scratch = Scratch::new("corpus");
    for (target, names) in TARGETS {
        let all = seeds::read(&corpus(target), || file_seeds(target, names));
        let read = |bytes: &[u8]| {
            let (name, bytes) = match bytes.split_first() {
                Some((first, rest)) if names.len() > 1 => {
                    (names[usize::from(*first) % names.len()], rest)
                }
                _ => (names[0], bytes),
            };
            read::file(&scratch.write(name, bytes))
        };
        let (mut whole, mut refused) = (0, 0);
        for (name, bytes) in &all {
            let read = read(bytes);
            let is_whole = name.ends_with("whole");
            assert!(!is_whole || read == Ok((6, 0)), "{target} {name}: {read:?}");
            whole += usize::from(is_whole);
            refused += u32::from(read.is_err());
        }
        assert!(whole >= names.len() && refused > 0, "{target}");
        mutate::each(&seeds::contents(&all), CHANGED_FILES, read);
    }
}

/// The messages of a stream, each behind its lengths.
fn messages(packing: Option<CompressionType>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let fields = sample();
    let key = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let coded = cast(fields.column(2), &key).unwrap();
    let batch = batch(&[
        ("id", fields.column(0).clone()),
        ("name", fields.column(2).clone()),
        ("coded", coded),
    ]);
    let options = IpcWriteOptions::default().try_with_compression(packing).unwrap();
    let data = FlightDataEncoderBuilder::new()
        .with_schema(batch.schema())
        .with_options(options)
        .with_dictionary_handling(arrow_flight::encode::DictionaryHandling::Resend)
        .build(stream::iter([Ok(batch.clone()), Ok(batch)]));
    let messages = futures::executor::block_on(data.collect::<Vec<_>>());
    let message = |data: Result<arrow_flight::FlightData, _>| {
        let data = data.unwrap();
        (data.data_header.to_vec(), data.data_body.to_vec())
    };
    messages.into_iter().map(message).collect()
}

fn joined(messages: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let one = |(header, body): &(Vec<u8>, Vec<u8>)| {
        let lengths = [header.len() as u16, body.len() as u16].map(u16::to_le_bytes);
        [lengths.as_flattened(), header, body].concat()
    };
    messages.iter().flat_map(one).collect()
}

/// The name of a good one begins with the number of its rows.
fn flight_seeds() -> Seeds {
    let ways = [
        ("plain", None),
        ("lz4", Some(CompressionType::LZ4_FRAME)),
        ("zstd", Some(CompressionType::ZSTD)),
    ];
    let mut all = Seeds::new();
    for (name, packing) in ways {
        let messages = messages(packing);
        all.push((format!("6-{name}"), joined(&messages)));
        all.push((format!("0-{name}-schema"), joined(&messages[..1])));
        all.push((format!("bad-{name}-without-schema"), joined(&messages[1..])));
        all.push((format!("bad-{name}-schema-twice"), joined(&messages[..1]).repeat(2)));
        let mut cut = messages.clone();
        cut.iter_mut().for_each(|(_, body)| body.truncate(body.len() / 2));
        all.push((format!("bad-{name}-cut"), joined(&cut)));
        let mut huge = messages;
        huge.iter_mut().skip(1).for_each(|(_, body)| body.iter_mut().for_each(|byte| *byte = 0xff));
        all.push((format!("bad-{name}-huge"), joined(&huge)));
    }
    all.push(("bad-nothing".into(), vec![]));
    all
}

#[test]
fn messages_of_a_flight_server_are_read_or_refused() {
    let all = seeds::read(&corpus("flight"), flight_seeds);
    for (name, bytes) in &all {
        let rows = name.split('-').next().and_then(|number| number.parse().ok());
        let read = hostile::flight(bytes);
        assert_eq!(read.as_ref().ok(), rows.as_ref(), "{name}: {read:?}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::flight);
}

/// Events, arrays and lines, in pieces of some bytes.
fn web_seeds() -> Seeds {
    let events = "\u{feff}: hello\r\nretry: 7\r\n\r\nid: 1\ndata: {\"a\":\ndata:1}\n\n\
                  event: other\rdata: {\"a\":2}\r\rid: 3\ndata\n\ndata: cut";
    let array = "\n[ {\"a\":1},\n {\"b\":[1,\n2], \"c\":\"x,]\\\"\\\\\"}\n]\n";
    let all = [
        ("good-events", 0, 3, events),
        ("good-events-deep", 0, 1, "data: [[[[[[[[[[\n\n"),
        ("good-array", 1, 5, array),
        ("good-array-none", 1, 1, "[]"),
        ("good-array-lines", 1, 7, "{\"a\":[1,2]}\n{\"a\":[3,4]}\n"),
        ("good-lines", 2, 2, "1,2\n3,\r\n\n4"),
        ("good-lines-none", 2, 1, ""),
        ("bad-array-open", 1, 2, "[{}, {"),
        ("bad-array-text", 1, 2, "[\"]}"),
    ];
    let seed = |(name, kind, piece, text): (&str, u8, u8, &str)| {
        (name.to_owned(), [&[kind, piece], text.as_bytes()].concat())
    };
    all.map(seed).into()
}

#[test]
fn what_a_web_server_says_is_the_same_in_any_pieces() {
    let all = seeds::read(&corpus("web"), web_seeds);
    for (name, bytes) in &all {
        assert_eq!(hostile::web(bytes).is_some(), name.starts_with("good"), "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::web);
}

/// A block behind its description.
fn block(of: u8, codec: u8, [rows, nulls]: [u16; 2], least: i64, parts: &[&[u8]]) -> Vec<u8> {
    let numbers = [rows.to_le_bytes(), nulls.to_le_bytes()].concat();
    [&[of, codec][..], &numbers, &least.to_le_bytes(), &parts.concat()].concat()
}

/// The name of a good one begins with the number of its rows.
fn block_seeds() -> Seeds {
    const LONG: u8 = 3;
    const TEXT: u8 = 7;
    let longs: Vec<u8> = (0..3_i64).flat_map(i64::to_le_bytes).collect();
    let ends = |ends: &[i32]| ends.iter().flat_map(|end| end.to_le_bytes()).collect::<Vec<u8>>();
    let behind = [0; 64 - 24];
    let all = [
        ("3-longs", block(LONG, 0, [3, 0], 0, &[&longs])),
        ("3-longs-null", block(LONG, 0, [3, 1], 0, &[&longs, &behind, &[0b101]])),
        ("4-near", block(LONG, 1, [4, 0], -7, &[&[0, 1, 2, 255]])),
        ("2-far", block(2, 2, [2, 0], 1 << 40, &[&[1, 2, 3, 4]])),
        ("8192-one", block(1, 3, [9000, 0], 5, &[])),
        ("3-texts", block(TEXT, 0, [3, 0], 0, &[&ends(&[0, 1, 1, 3]), "aé".as_bytes()])),
        ("9-bits", block(6, 0, [9, 0], 0, &[&[0xff, 1]])),
        ("1-decimal", block(5, 0, [1, 0], 0, &[&[0xff; 16]])),
        ("0-none", block(TEXT, 0, [0, 0], 0, &[])),
        ("bad-short", block(LONG, 0, [4, 0], 0, &[&longs])),
        ("bad-null", block(LONG, 0, [3, 1], 0, &[&longs, &[0b101]])),
        ("bad-text", block(TEXT, 0, [1, 0], 0, &[&ends(&[0, 1]), &[0xff]])),
        ("bad-descends", block(TEXT, 0, [2, 0], 0, &[&ends(&[0, 2, 1]), b"ab"])),
        ("bad-negative", block(TEXT, 0, [1, 0], 0, &[&ends(&[0, -1]), b"ab"])),
        ("bad-behind", block(TEXT, 0, [1, 0], 0, &[&ends(&[0, i32::MAX]), b"ab"])),
        ("bad-codec", block(TEXT, 1, [1, 0], 0, &[b"a"])),
        ("bad-width", block(LONG, 9, [1, 0], 0, &[&longs])),
        ("bad-type", block(200, 0, [1, 0], 0, &[&longs])),
        ("bad-cut", vec![LONG, 0, 3]),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[test]
fn blocks_of_a_pool_are_read_or_refused() {
    let all = seeds::read(&corpus("pool_block"), block_seeds);
    for (name, bytes) in &all {
        let rows = name.split('-').next().and_then(|number| number.parse().ok());
        let read = hostile::pool_block(bytes);
        assert_eq!(read.as_ref().ok(), rows.as_ref(), "{name}: {read:?}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::pool_block);
}

/// The name of a good one tells whether it is of a watched directory.
fn position_seeds() -> Seeds {
    let file = Position::new("csv", 1, "in/a.csv", &[7, u64::MAX]);
    let list = |numbers: &[u64], note: &[u8]| {
        Position::new("watch", 1, "in", numbers).with_note(note.to_vec()).to_bytes()
    };
    let (path, within) = (b"in/a.csv", file.to_bytes());
    let done: Vec<u8> = [3_u64, 9].into_iter().flat_map(u64::to_le_bytes).collect();
    let begun = |path: &[u8], within: &[u8]| {
        let lengths = [path, within].map(|bytes| (bytes.len() as u32).to_le_bytes());
        let numbers = [5_u64, 0].map(u64::to_le_bytes);
        let numbers = numbers.as_flattened();
        [&done, numbers, &lengths[0], path, &lengths[1], within].concat()
    };
    let bytes = file.to_bytes();
    let all = [
        ("file", bytes.clone()),
        ("file-none", Position::none("socket").to_bytes()),
        ("file-most", Position::new("", 0, "", &[1; 16]).to_bytes()),
        ("file-note", Position::new("x", 2, "in", &[]).with_note(vec![0, 1]).to_bytes()),
        ("watch-none", list(&[0, 0], &[])),
        ("watch-done", list(&[2, 0], &done)),
        ("watch-begun", list(&[2, 1], &begun(path, &within))),
        ("watch-at-the-beginning", list(&[2, 1], &begun(path, &[]))),
        ("bad-count", list(&[3, 0], &done)),
        ("bad-most", list(&[u64::MAX, 0], &done)),
        ("bad-begun", list(&[2, 1], &done)),
        ("bad-within", list(&[2, 1], &begun(path, &within[1..]))),
        ("bad-behind", [&bytes[..], &[0]].concat()),
        ("bad-cut", bytes[..bytes.len() - 1].to_vec()),
        ("bad-empty", vec![]),
        ("bad-form", vec![9; 40]),
        ("bad-length", [&[1][..], &u32::MAX.to_le_bytes(), b"csv"].concat()),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[test]
fn positions_of_strangers_are_positions_or_refused() {
    let all = seeds::read(&corpus("position"), position_seeds);
    assert!(all.len() > 12, "only {}", all.len());
    for (name, bytes) in &all {
        let read = hostile::position(bytes);
        let expected = (!name.starts_with("bad")).then(|| name.starts_with("watch"));
        assert_eq!(read.as_ref().ok(), expected.as_ref(), "{name}: {read:?}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::position);
}

/// Commits with which a table begins, and broken ones. The name of a good one begins with "good".
fn log_seeds() -> Seeds {
    let schema = r#"{\"type\":\"struct\",\"fields\":[{\"name\":\"n\",\"type\":\"long\",
        \"nullable\":true,\"metadata\":{}},
        {\"name\":\"m\",\"type\":{\"type\":\"map\",\"keyType\":\"string\",
        \"valueType\":\"decimal(9,2)\",\"valueContainsNull\":true}}]}"#;
    let schema = schema.replace("\n        ", "");
    let begin = format!(
        r#"{{"protocol":{{"minReaderVersion":1,"minWriterVersion":2}}}}
{{"metaData":{{"id":"i","format":{{"provider":"parquet","options":{{}}}},"schemaString":"{schema}",
"partitionColumns":["day"],"configuration":{{"delta.checkpointInterval":"7"}},"createdTime":1}}}}"#
    );
    let begin = begin.replace(",\n\"part", ",\"part");
    let add = r#"{"add":{"path":"day=2024-01-01/a%20b.parquet",
"partitionValues":{"day":"2024-01-01"},"size":7,"modificationTime":1,"dataChange":true,
"stats":"{\"numRecords\":1}","tags":null}}"#;
    let add = add.replace(",\n\"", ",\"");
    let null =
        r#"{"add":{"path":"day=__HIVE_DEFAULT_PARTITION__/c","partitionValues":{"day":null}}}"#;
    let own = r#"{"txn":{"appId":"a","version":3,"lastUpdated":9}}"#;
    let remove = r#"{"remove":{"path":"d","deletionTimestamp":5,"dataChange":true,"size":null}}"#;
    let whole = [&begin, &add, null, own, remove].join("\n");
    let with = |line: &str| format!("{begin}\n{line}");
    let known = statistics_seed(&begin, &schema);
    let all = [
        ("good-statistics", known),
        ("good-empty", begin.clone()),
        ("good-files", whole.clone()),
        ("good-twice", [&whole, &add, remove, own].join("\n\n")),
        ("bad-nothing", String::new()),
        ("bad-begin", add.clone()),
        ("bad-cut", whole[..whole.len() - 3].to_owned()),
        ("bad-outside", with(&add.replace("day=2024-01-01/", "day=2024-01-01/../../"))),
        ("bad-value", with(&add.replace("\"day\":\"2024-01-01\"", "\"day\":\"2023-01-01\""))),
        ("bad-type", whole.replace("decimal(9,2)", "decimal(99,2)")),
        ("bad-feature", whole.replace("\"minReaderVersion\":1", "\"minReaderVersion\":9")),
    ];
    all.map(|(name, text)| (name.to_owned(), text.into_bytes())).into()
}

/// A commit whose file has statistics of each kind of column.
fn statistics_seed(begin: &str, schema: &str) -> String {
    let types = ["long", "byte", "double", "string", "boolean", "date", "decimal(20,2)"];
    let times = ["timestamp", "timestamp_ntz", "binary"];
    let names = types.iter().chain(&times);
    let field = |of: &&str| serde_json::json!({"name": of, "type": of, "nullable": true});
    let fields: Vec<_> = names.map(field).collect();
    let columns = serde_json::json!({"type": "struct", "fields": fields}).to_string();
    let columns = serde_json::json!(columns).to_string();
    let ends = serde_json::json!({
        "long": 1, "byte": 2, "double": -0.5, "string": "a", "boolean": true,
        "date": "2024-01-31", "decimal(20,2)": 12.34, "timestamp": "2024-01-31T12:34:56.789Z",
        "timestamp_ntz": "2024-01-31T12:34:56.789", "binary": "00",
    });
    let text = serde_json::json!({
        "numRecords": 3, "minValues": ends, "maxValues": ends, "nullCount": {"long": 1},
        "tightBounds": true,
    });
    let path = "day=2024-01-01/a";
    let add = serde_json::json!({"add": {
        "path": path, "partitionValues": {"day": "2024-01-01"}, "stats": text.to_string(),
    }});
    format!("{}\n{add}", begin.replace(&format!("\"{schema}\""), &columns))
}

#[test]
fn logs_of_strangers_are_tables_or_refused() {
    let all = seeds::read(&corpus("delta_log"), log_seeds);
    assert!(all.len() > 9, "only {}", all.len());
    for (name, bytes) in &all {
        let read = hostile::delta_log(bytes);
        assert_eq!(read.is_ok(), name.starts_with("good"), "{name}: {read:?}");
    }
    mutate::each(&seeds::contents(&all), CHANGED / 10, hostile::delta_log);
}

/// A message behind what describes it.
fn described(text: &str, message: &[u8]) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes()[..], text.as_bytes(), message].concat()
}

/// Messages that another encoder has written, and broken ones. The name of a good one begins with
/// "good".
fn message_seeds(text: &str, good: &[Vec<u8>], others: &[(&str, &[u8])]) -> Seeds {
    let mut all = Seeds::new();
    for (at, message) in good.iter().enumerate() {
        all.push((format!("good-{at}"), described(text, message)));
    }
    let whole = &good[1];
    all.push(("bad-cut".into(), described(text, &whole[..whole.len() - 1])));
    all.push(("bad-first".into(), described(text, &[&[0xff; 12], &whole[..]].concat())));
    all.push(("bad-text".into(), described("{", whole)));
    all.push(("bad-none".into(), vec![]));
    all.extend(others.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())));
    all
}

#[test]
fn messages_of_avro_are_read_or_refused() {
    let text = fs::read_to_string(fixture("rows.avsc")).unwrap();
    let own = r#"{"type":"record","name":"R","fields":[{"name":"a","type":"long"},
        {"name":"b","type":{"type":"array","items":"null"}},
        {"name":"c","type":{"type":"map","values":["null","double"]}}]}"#;
    let good = described(
        own,
        b"\x02\x04\x00\x03\x08\x02a\x00\x02b\x02\x00\x00\x00\x00\x00\x00\xf0\x3f\x00",
    );
    let empty = described(own, b"\x02\xfe\xff\xff\xff\x0f\x00\x00");
    let less = described(own, b"\x02\x01\x00\x02\x00");
    let others = [("good-own", &good[..]), ("bad-empty-values", &empty), ("bad-count", &less)];
    let all = seeds::read(&corpus("avro_message"), || {
        message_seeds(&text, &digits("rows.datums.json", "datum"), &others)
    });
    for (name, bytes) in &all {
        let read = hostile::avro(bytes);
        assert_eq!(read.is_ok(), name.starts_with("good"), "{name}: {read:?}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::avro);
}

#[test]
fn messages_of_protobuf_are_read_or_refused() {
    let text = fs::read_to_string(fixture("event.proto")).unwrap();
    // The file has another type in front.
    let text = text.replace("message Other { int32 nothing = 1; }\n", "");
    let deep = {
        let mut message = vec![];
        for _ in 0..200 {
            let length = [(message.len() & 0x7f) as u8 | 0x80, (message.len() >> 7) as u8];
            let inner = [&[0x1a], &length[..], &message].concat();
            let length = [(inner.len() & 0x7f) as u8 | 0x80, (inner.len() >> 7) as u8];
            message = [&[0x8a, 1], &length[..], &inner].concat();
        }
        described(&text, &message)
    };
    let others = [("bad-deep", &deep[..])];
    let all = seeds::read(&corpus("protobuf_message"), || {
        message_seeds(&text, &digits("events.json", "message"), &others)
    });
    for (name, bytes) in &all {
        let read = hostile::protobuf(bytes);
        assert_eq!(read.is_ok(), name.starts_with("good"), "{name}: {read:?}");
    }
    mutate::each(&seeds::contents(&all), CHANGED / 10, hostile::protobuf);
}

/// Streams of messages of another encoder, and broken ones. The name of one that is read to its end
/// begins with "good"; a number behind it is that of the bad rows.
fn stream_seeds(text: &str) -> Seeds {
    let messages = digits("events.json", "message");
    let whole: Vec<u8> = messages.iter().flat_map(|message| behind_length(message)).collect();
    let broken = [&whole[..], &[2, 18, 9], &whole].concat();
    let piece = |piece: u8, stream: &[u8]| described(text, &[&[piece], stream].concat());
    let all = [
        ("good-0-whole", piece(0, &whole)),
        ("good-0-pieces", piece(3, &whole)),
        ("good-0-empty", piece(1, &[])),
        ("good-0-empty-messages", piece(1, &[0; 50])),
        ("good-1-broken", piece(200, &broken)),
        ("good-1-cut", piece(9, &whole[..whole.len() - 1])),
        ("good-1-cut-length", piece(9, &[&whole[..], &[0x80]].concat())),
        ("bad-long", piece(9, &[&whole[..], &[0xff; 12]].concat())),
        ("bad-huge", piece(9, &[&whole[..], &[0xff, 0xff, 0xff, 0x7f]].concat())),
        ("bad-text", described("{", &[0])),
        ("bad-none", vec![]),
        ("bad-no-stream", described(text, &[])),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[test]
fn streams_of_protobuf_are_read_or_refused() {
    let text = fs::read_to_string(fixture("event.proto")).unwrap();
    let text = text.replace("message Other { int32 nothing = 1; }\n", "");
    let all = seeds::read(&corpus("protobuf_stream"), || stream_seeds(&text));
    assert!(all.len() > 11, "only {}", all.len());
    for (name, bytes) in &all {
        let read = hostile::protobuf_stream(bytes);
        assert_eq!(read.is_ok(), name.starts_with("good"), "{name}: {read:?}");
        if let Ok((_, bad)) = read {
            assert!(name.starts_with(&format!("good-{bad}-")), "{name}: {bad}");
        }
    }
    mutate::each(&seeds::contents(&all), CHANGED / 20, hostile::protobuf_stream);
}
