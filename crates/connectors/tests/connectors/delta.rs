//! Tables of Delta Lake: those that delta-rs has written, and logs by hand.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use arrow::array::{ArrayRef, Int64Array};
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::error::ConnectorError;
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};

use crate::bed::*;
use crate::formats::fixture;

/// The rows of a table with these columns, sorted.
fn read(
    path: &str,
    fields: &[(&str, arrow::datatypes::DataType)],
) -> Result<Vec<String>, ConnectorError> {
    let table = table(&columns(fields), &[("path", path)]);
    let source = source(&FileConnector::default(), &table)?;
    let mut all = vec![];
    for flow in 0..source.splits(2, None)?.len() {
        all.extend(rows(&drain(&mut *source.open(&nth(flow), None, &context())?)?));
    }
    all.sort();
    Ok(all)
}

#[test]
fn a_table_that_was_written_over_is_read_as_it_is_now() {
    // Two appends of 20 rows, a delete, a checkpoint, an append of 10 rows and a delete.
    let path = fixture("delta/towns").display().to_string();
    let town = |n: i64| match n % 7 {
        0 => "NULL",
        _ => ["New York", "Bern", "a/b"][(n % 3) as usize],
    };
    let is_there = |n: &i64| (*n >= 40 || n % 5 != 0) && *n != 41;
    let row = |n: i64| format!("{n}|{}|{:?}", town(n), n as f64 * 0.5);
    let mut expected: Vec<String> = (0..50).filter(is_there).map(row).collect();
    expected.sort();
    let fields = [("n", BIGINT), ("town", VARCHAR), ("v", DOUBLE)];
    assert_eq!(read(&path, &fields).unwrap(), expected);
    // Its files alone have rows that were deleted, and rows twice.
    assert_ne!(read(&format!("{path}/*/*.parquet"), &fields).unwrap(), expected);
    // A column came later, and files were merged.
    let path = fixture("delta/grown").display().to_string();
    let expected = ["1|NULL", "2|NULL", "3|NULL", "4|x", "5|y"];
    assert_eq!(read(&path, &[("n", BIGINT), ("s", VARCHAR)]).unwrap(), expected);
}

/// A table of files with a number each, and a log of these commits.
fn written(scratch: &Scratch, name: &str, files: &[&str], commits: &[(u64, &[Value])]) -> String {
    let table = scratch.path(name);
    fs::create_dir_all(format!("{table}/_delta_log")).unwrap();
    for (number, file) in files.iter().enumerate() {
        let path = format!("{table}/{file}");
        fs::create_dir_all(Path::new(&path).parent().unwrap()).unwrap();
        let column: ArrayRef = std::sync::Arc::new(Int64Array::from(vec![number as i64]));
        let batch = batch(&[("n", column)]);
        let mut writer =
            ArrowWriter::try_new(fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
    for (version, actions) in commits {
        let lines: String = actions.iter().map(|action| format!("{action}\n")).collect();
        fs::write(format!("{table}/_delta_log/{version:020}.json"), lines).unwrap();
    }
    table
}

fn begin() -> Value {
    let protocol = json!({"minReaderVersion": 1, "minWriterVersion": 2});
    let metadata = json!({"format": {"provider": "parquet"}, "partitionColumns": []});
    json!({ "protocol": protocol, "metaData": metadata })
}

fn add(path: &str) -> Value {
    json!({"add": {"path": path, "partitionValues": {}, "size": 1, "dataChange": true}})
}

fn remove(path: &str) -> Value {
    json!({"remove": {"path": path, "dataChange": true}})
}

#[test]
fn actions_are_applied_commit_by_commit() {
    let scratch = Scratch::new("delta-actions");
    let files = ["a.parquet", "b c.parquet", "d.parquet", "never.parquet"];
    let commits: [(u64, &[Value]); 3] = [
        (0, &[begin(), add("a.parquet"), add("b%20c.parquet")]),
        // A file that is written anew under its name is there, in whichever order.
        (1, &[add("a.parquet"), remove("a.parquet"), json!({"txn": {"appId": "x", "version": 3}})]),
        (2, &[remove("b%20c.parquet"), add("d.parquet"), add("b%20c.parquet")]),
    ];
    let table = written(&scratch, "t", &files, &commits);
    assert_eq!(read(&table, &[("n", BIGINT)]).unwrap(), ["0", "1", "2"]);
    fs::write(format!("{table}/_delta_log/{:020}.json", 3), remove("d.parquet").to_string())
        .unwrap();
    assert_eq!(read(&format!("{table}/"), &[("n", BIGINT)]).unwrap(), ["0", "1"]);
    let all: BTreeSet<String> =
        read(&format!("{table}/*.parquet"), &[("n", BIGINT)]).unwrap().into_iter().collect();
    assert_eq!(all.len(), 4, "a pattern names files");
}

/// REORG TABLE … APPLY (PURGE) writes the files anew that have them.
#[test]
fn vectors_of_files_that_were_removed_are_no_matter() {
    let scratch = Scratch::new("delta-purged");
    let mut vector = add("a.parquet");
    vector["add"]["deletionVector"] = json!({"storageType": "u", "cardinality": 1});
    let commits: [(u64, &[Value]); 2] =
        [(0, &[begin(), add("a.parquet"), add("b.parquet")]), (1, &[remove("a.parquet"), vector])];
    let table = written(&scratch, "t", &["a.parquet", "b.parquet", "c.parquet"], &commits);
    let error = read(&table, &[("n", BIGINT)]).unwrap_err().to_string();
    assert!(error.contains("rows of its file 'a.parquet' are deleted by vectors"), "{error}");
    let purged = format!("{}\n{}", remove("a.parquet"), add("c.parquet"));
    fs::write(format!("{table}/_delta_log/{:020}.json", 2), purged).unwrap();
    assert_eq!(read(&table, &[("n", BIGINT)]).unwrap(), ["1", "2"]);
}

#[test]
fn what_a_reader_would_have_to_know_is_refused_by_its_name() {
    let scratch = Scratch::new("delta-refused");
    let protocol = |protocol: Value| json!({ "protocol": protocol });
    let features = protocol(json!({"minReaderVersion": 3, "readerFeatures": ["variantType"]}));
    let mapped = json!({"configuration": {"delta.columnMapping.mode": "name"}});
    let partitioned = json!({"metaData": {"partitionColumns": ["town"]}});
    let vector = json!({"path": "a.parquet", "deletionVector": {"storageType": "u"}});
    let moved = json!({"path": "town=Bern/b.parquet", "partitionValues": {"town": "Rome"}});
    let cases: [(&[Value], &str); 12] = [
        (&[features, add("a.parquet")], "the feature 'variantType'"),
        (&[protocol(json!({"minReaderVersion": 4}))], "readers of version 4"),
        (&[protocol(json!({}))], "its protocol has no version"),
        (&[json!({ "metaData": mapped }), add("a.parquet")], "other names in the files"),
        (&[json!({ "add": vector })], "deleted by vectors"),
        (&[partitioned.clone(), add("a.parquet")], "not the values of its partition columns"),
        (&[partitioned, json!({ "add": moved })], "not the values of its partition columns"),
        (&[add("../a.parquet")], "outside of its directory"),
        (&[add("%2Fetc/passwd")], "outside of its directory"),
        (&[add("s3://bucket/a.parquet")], "outside of its directory"),
        (&[json!({"add": {}})], "an action has no path"),
        (&[], "has no rows"),
    ];
    for (at, (actions, message)) in cases.into_iter().enumerate() {
        let actions: Vec<Value> = [begin()].into_iter().chain(actions.iter().cloned()).collect();
        let files = ["a.parquet", "town=Bern/b.parquet"];
        let table = written(&scratch, &format!("t{at}"), &files, &[(0, &actions)]);
        let error = read(&table, &[("n", BIGINT)]).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    // A feature that a table may have, and does not use, does not matter.
    let names = json!(["deletionVectors", "columnMapping", "timestampNtz"]);
    let features = protocol(json!({"minReaderVersion": 3, "readerFeatures": names}));
    let actions = [begin(), features, add("a.parquet")];
    let table = written(&scratch, "unused", &["a.parquet"], &[(0, &actions)]);
    assert_eq!(read(&table, &[("n", BIGINT)]).unwrap(), ["0"]);
}

#[test]
fn a_log_that_is_damaged_is_an_error() {
    let scratch = Scratch::new("delta-damaged");
    let log = |name: &str, commits: &[(u64, &[Value])]| {
        let table = written(&scratch, name, &["a.parquet"], commits);
        let error = read(&table, &[("n", BIGINT)]).unwrap_err().to_string();
        (table, error)
    };
    let actions = [begin(), add("a.parquet")];
    let (table, error) = log("gap", &[(0, &actions), (2, &[remove("a.parquet")])]);
    assert!(error.contains("lacks version 1, of 2"), "{error}");
    // A checkpoint of which a part is missing is none, and one that is no Parquet is an error.
    let checkpoint = |name: &str| {
        let path = format!("{table}/_delta_log/{:020}.checkpoint.{name}parquet", 1);
        fs::write(&path, "no parquet").unwrap();
        read(&table, &[("n", BIGINT)]).unwrap_err().to_string()
    };
    assert!(checkpoint("0000000001.0000000002.").contains("lacks version 1"));
    let error = checkpoint("");
    assert!(error.contains("checkpoint.parquet"), "{error}");
    assert!(log("none", &[]).1.contains("no version"));
    // The first commit was cut.
    for lost in ["protocol", "metaData"] {
        let mut rest = begin();
        rest.as_object_mut().unwrap().remove(lost);
        let error = log(lost, &[(0, &[rest, add("a.parquet")])]).1;
        assert!(error.contains("no protocol or no metadata"), "{error}");
    }
    // Numbers go up to a last one; behind it there is none.
    let towns = fixture("delta/towns/_delta_log");
    let name = format!("{:020}.checkpoint.parquet", 2);
    let table = written(&scratch, "last", &["a.parquet"], &[(0, &actions)]);
    let last = format!("{table}/_delta_log/{}.checkpoint.parquet", u64::MAX);
    fs::copy(towns.join(name), last).unwrap();
    let error = read(&table, &[("n", BIGINT)]).unwrap_err().to_string();
    assert!(error.contains("has the last number"), "{error}");
    let (table, _) = log("lost", &[(0, &[begin(), add("b.parquet")])]);
    let error = read(&table, &[("n", BIGINT)]).unwrap_err().to_string();
    assert!(error.contains("b.parquet"), "{error}");
    fs::write(format!("{table}/_delta_log/{:020}.json", 1), "{\"add\"").unwrap();
    let error = read(&table, &[("n", BIGINT)]).unwrap_err().to_string();
    assert!(error.contains("no JSON"), "{error}");
}

#[test]
fn a_table_is_neither_written_nor_watched() {
    let scratch = Scratch::new("delta-written");
    let path = written(&scratch, "t", &["a.parquet"], &[(0, &[begin(), add("a.parquet")])]) + "/";
    let of = |options: &[(&str, &str)]| {
        let options = [&[("path", path.as_str()), ("format", "parquet")], options].concat();
        table(&columns(&[("n", BIGINT)]), &options)
    };
    let error = refused(FileConnector::default().sink(&of(&[]))).to_string();
    assert!(error.contains("cannot be written as files"), "{error}");
    let error = refused(source(&FileConnector::default(), &of(&[("watch", "1 s")]))).to_string();
    assert!(error.contains("cannot be watched"), "{error}");
    let text = table(&columns(&[("n", BIGINT)]), &[("path", &path), ("format", "csv")]);
    let error = refused(source(&FileConnector::default(), &text)).to_string();
    assert!(error.contains("files of Parquet"), "{error}");
}
