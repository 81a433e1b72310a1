//! Files that are objects of a store.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::{Connector, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::WriterContext;
use dataflow::source::Source;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::bed::*;
use crate::servers::nobody;
use crate::servers::s3::S3;

fn at(store: &S3, path: &str, options: &[(&str, &str)]) -> TableDef {
    table_of_s3(store, path, &columns(&[("a", BIGINT), ("b", VARCHAR)]), options)
}

fn open(table: &TableDef) -> Result<Arc<dyn Source>, ConnectorError> {
    source(&FileConnector::default(), table)
}

/// All flows, one after the other.
fn read_all(source: &dyn Source) -> Result<Vec<String>, ConnectorError> {
    let mut all = Vec::new();
    for flow in 0..source.splits(1, None)?.len() {
        all.extend(rows(&drain(&mut *source.open(&nth(flow), None, &context())?)?));
    }
    Ok(all)
}

fn names(source: &dyn Source) -> Vec<String> {
    source.splits(1, None).unwrap().into_iter().map(|flow| flow.name).collect()
}

/// Two columns, the second wide and incompressible, so that to fetch it would show.
fn sample(from: i64, rows: i64) -> RecordBatch {
    let a: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + rows));
    let text = |a: i64| format!("{:x}", (a as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C));
    let b: ArrayRef = Arc::new(StringArray::from_iter_values((from..from + rows).map(text)));
    batch(&[("a", a), ("b", b)])
}

fn parquet(batch: &RecordBatch, group: usize) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .set_dictionary_enabled(false)
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn objects_are_found_by_name_pattern_and_directory() {
    let store = S3::start();
    for name in ["x/b.csv", "x/a.csv", "x/_hidden.csv", "x/c.txt", "x/deep/d.csv", "y/a.csv"] {
        store.put(&format!("/bucket/{name}"), format!("a,b\n1,{name}\n"));
    }
    let found = |path: &str| read_all(&*open(&at(&store, path, &[])).unwrap()).unwrap();
    assert_eq!(found("s3://bucket/x/a.csv"), ["1|x/a.csv"]);
    assert_eq!(found("s3://bucket/x/[a-b].csv"), ["1|x/a.csv", "1|x/b.csv"]);
    assert_eq!(found("s3://bucket/*/a.csv"), ["1|x/a.csv", "1|y/a.csv"]);
    assert_eq!(found("s3://bucket/x/**/d.csv"), ["1|x/deep/d.csv"]);
    assert_eq!(found("s3://bucket/x/"), ["1|x/a.csv", "1|x/b.csv"]);
    assert_eq!(found("s3://bucket/x"), ["1|x/a.csv", "1|x/b.csv"]);
    let source = open(&at(&store, "s3://bucket/x/*.csv", &[])).unwrap();
    assert_eq!(
        names(&*source),
        ["s3://bucket/x/_hidden.csv", "s3://bucket/x/a.csv", "s3://bucket/x/b.csv"]
    );
    let inferred = FileConnector::default().infer(&at(&store, "s3://bucket/x/a.csv", &[]).options);
    assert_eq!(inferred.unwrap().unwrap().field(0).data_type(), &BIGINT);
}

#[test]
fn what_is_missing_or_closed_is_told() {
    let store = S3::start();
    store.put("/bucket/flights.csv", "a,b\n");
    store.put("/bucket/empty.parquet", "PAR1");
    let error = |path: &str, options: &[(&str, &str)]| {
        let error = refused(open(&at(&store, path, options)).map(drop));
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
        error
    };
    let near = error("s3://bucket/flihgts.csv", &[]);
    assert_eq!(hint(&near), "did you mean 's3://bucket/flights.csv'?");
    assert!(error("s3://bucket/*.json", &[]).to_string().contains("no object matches"));
    assert!(error("s3:///x", &[]).to_string().contains("names no bucket"));
    let closed = error("s3://bucket/flights.csv", &[("s3.access_key_id", "somebody")]);
    assert!(closed.to_string().contains("access is refused"), "{closed}");
    assert!(hint(&closed).contains("AWS_ACCESS_KEY_ID"), "{closed}");
    let closed = error("s3://bucket/*.csv", &[("s3.access_key_id", "somebody")]);
    assert!(closed.to_string().contains("InvalidAccessKeyId: who are you?"), "{closed}");
    let gone = format!("http://{}", nobody());
    let gone = error("s3://bucket/flights.csv", &[("s3.endpoint", &gone)]);
    assert!(gone.to_string().contains("Connection refused"), "{gone}");
    let broken = error("s3://bucket/empty.parquet", &[]);
    assert!(broken.to_string().contains("not a whole Parquet file"), "{broken}");
    let wrong = error("s3://bucket/flights.csv", &[("csv.delimiter", ";")]);
    assert!(matches!(&wrong, ConnectorError::Column { column, .. } if column == "a"), "{wrong}");
}

#[test]
fn of_parquet_only_the_footer_and_the_columns_of_the_query_are_fetched() {
    let store = S3::start();
    let sample = sample(0, 100_000);
    let bytes = parquet(&sample, 40_000);
    let whole = bytes.len();
    store.put("/bucket/t.parquet", bytes);
    let table = at(&store, "s3://bucket/t.parquet", &[]);
    let source = FileConnector::default().source(&table, &[0]).unwrap();
    assert_eq!(names(&*source).len(), 3, "row groups");
    store.log();
    let read = read_all(&*source).unwrap();
    assert_eq!(read, (0..100_000).map(|a| a.to_string()).collect::<Vec<_>>());
    let log = store.log();
    assert_eq!(log.len(), 3, "one request a row group: {log:?}");
    let fetched: usize = log.iter().map(|line| length(line)).sum();
    assert!(fetched < whole / 2, "{fetched} bytes of {whole}");
    let all = open(&table).unwrap();
    assert_eq!(read_all(&*all).unwrap(), rows(&sample));
}

/// Bytes of the range of a line of the log.
fn length(line: &str) -> usize {
    let (_, range) = line.split_once("bytes=").unwrap_or_else(|| panic!("the whole: {line}"));
    let (start, end) = range.split_once('-').unwrap();
    end.parse::<usize>().unwrap() + 1 - start.parse::<usize>().unwrap()
}

#[test]
fn text_is_read_while_it_arrives() {
    let store = S3::start();
    let lines: String = (0..300_000).map(|a| format!("{{\"a\":{a},\"b\":\"x\"}}\n")).collect();
    assert!(lines.len() > 4 << 20, "more than the queue holds");
    store.put("/bucket/t.json", lines);
    let source = open(&at(&store, "s3://bucket/t.json", &[])).unwrap();
    let read = read_all(&*source).unwrap();
    assert_eq!(read.len(), 300_000);
    assert_eq!(read[299_999], "299999|x");
}

#[test]
fn an_object_that_is_replaced_while_it_is_read_is_an_error() {
    let store = S3::start();
    store.put("/bucket/t.csv", "a,b\n1,x\n");
    store.put("/bucket/t.parquet", parquet(&sample(0, 10), 10));
    for name in ["t.csv", "t.parquet"] {
        let source = open(&at(&store, &format!("s3://bucket/{name}"), &[])).unwrap();
        store.put(&format!("/bucket/{name}"), parquet(&sample(5, 10), 10));
        let error = refused(read_all(&*source));
        assert!(error.to_string().contains("replaced while it was read"), "{name}: {error}");
    }
}

#[test]
fn an_address_of_the_web_is_one_object() {
    let store = S3::start();
    store.put("/public/a b.csv", "a,b\n1,x\n");
    store.put("/public/t.parquet", parquet(&sample(0, 10), 4));
    let base = store.endpoint();
    let found = |path: &str| read_all(&*open(&at(&store, path, &[])).unwrap()).unwrap();
    assert_eq!(found(&format!("{base}/public/a%20b.csv")), ["1|x"]);
    assert_eq!(found(&format!("{base}/public/t.parquet")), rows(&sample(0, 10)));
    let signed = open(&at(&store, &format!("{base}/public/a%20b.csv?signature=hush"), &[]));
    let signed = signed.unwrap();
    assert_eq!(names(&*signed), [format!("{base}/public/a b.csv")]);
    assert_eq!(read_all(&*signed).unwrap(), ["1|x"]);
    let error = |path: &str| refused(open(&at(&store, path, &[])).map(drop)).to_string();
    assert!(error(&format!("{base}/public/none.csv")).contains("no such object"));
    assert!(error(&format!("{base}/public/")).contains("does not tell"));
    let closed = error(&format!("{base}/bucket/t.csv?token=hush"));
    assert!(closed.contains("access is refused") && !closed.contains("hush"), "{closed}");
}

#[test]
fn what_is_written_appears_on_commit_and_reads_back() {
    let store = S3::start();
    let sample = sample(0, 500_000);
    for name in ["t.csv", "t.json", "t.parquet", "t.arrow", "t.csv.zst"] {
        let path = format!("/bucket/out/{name}");
        let table = at(&store, &format!("s3:/{path}"), &[]);
        let mut writer =
            FileConnector::default().sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
        for part in 0..5 {
            writer.write(&sample.slice(part * 100_000, 100_000)).unwrap();
        }
        assert!(store.get(&path).is_none(), "visible before its time");
        writer.commit().unwrap();
        let bytes = store.get(&path).unwrap().len();
        let several = bytes > 8 << 20 || name.ends_with("zst");
        assert!(several, "{name} has {bytes} bytes: a single part");
        let read = read_all(&*open(&table).unwrap()).unwrap();
        assert!(read == rows(&sample), "{name} differs");
    }
    assert!(store.state.lock().unwrap().uploads.is_empty());
}

#[test]
fn a_writer_that_is_dropped_leaves_no_trace() {
    let store = S3::start();
    store.put("/bucket/t.csv", "old");
    let table = at(&store, "s3://bucket/t.csv", &[]);
    let mut writer =
        FileConnector::default().sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
    assert_eq!(store.state.lock().unwrap().uploads.len(), 1);
    writer.write(&sample(0, 500_000)).unwrap();
    drop(writer);
    assert!(store.state.lock().unwrap().uploads.is_empty());
    assert_eq!(store.get("/bucket/t.csv").unwrap(), "old");
}

#[test]
fn an_output_that_cannot_be_written_fails_before_the_first_row() {
    let store = S3::start();
    let error = |path: &str, options: &[(&str, &str)]| {
        let sink = FileConnector::default().sink(&at(&store, path, options));
        refused(sink.and_then(|sink| sink.open(&WriterContext::of(0)).map(drop)))
    };
    let closed = error("s3://bucket/t.csv", &[("s3.access_key_id", "somebody")]);
    assert!(closed.to_string().contains("access is refused"), "{closed}");
    let web = error("http://127.0.0.1:1/t.csv", &[]);
    assert!(web.to_string().contains("cannot be written to"), "{web}");
    let key = ("s3.access_key_id", "somebody");
    let closed = error("s3://bucket/out/", &[("format", "csv"), key]);
    assert!(closed.to_string().contains("who are you?"), "{closed}");
}

#[test]
fn an_upload_that_fails_on_the_way_is_given_up() {
    let store = S3::start();
    let table = at(&store, "s3://bucket/t.csv", &[]);
    let mut writer =
        FileConnector::default().sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
    // As a rule of the bucket would do that removes old uploads.
    store.state.lock().unwrap().uploads.clear();
    let error = refused(writer.write(&sample(0, 500_000)).and_then(|()| writer.commit()));
    assert!(error.to_string().starts_with("s3://bucket/t.csv: "), "{error}");
    assert!(store.get("/bucket/t.csv").is_none());
}
