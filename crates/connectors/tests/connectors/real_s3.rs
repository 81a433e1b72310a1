//! A server with the protocol of S3 that is not ours, at the address of `MILLSTREAM_S3`, with a
//! bucket `bucket`: `scripts/s3.sh` starts one.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use checkpoint::chain::{Chain, ResumeFrom};
use checkpoint::{CheckpointError, CheckpointManifest, ObjectName, Store, conformance};
use connectors::{BucketStore, DeltaConnector, FileConnector};
use dataflow::connector::{Connector, TableDef};
use dataflow::sink::{Publishing, RunId, StagingContext, WriterContext};

use crate::bed::*;
use crate::checkpoints::run;
use crate::object_sink::read_once;

/// A URL of this process and of a test in the bucket, and the options that lead there; `None`
/// without a server.
fn place(test: &str) -> Option<(String, Vec<(String, String)>)> {
    let endpoint = std::env::var("MILLSTREAM_S3").ok()?;
    let url = format!("s3://bucket/{}-{test}", std::process::id());
    let options = [
        ("s3.endpoint", endpoint.as_str()),
        ("s3.region", "us-east-1"),
        ("s3.access_key_id", "tester"),
        ("s3.secret_access_key", "hush"),
    ];
    let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    Some((url, options.collect()))
}

fn numbers(from: i64, to: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..to));
    let text = |n: i64| format!("{:x}", (n as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((from..to).map(text)));
    batch(&[("number", numbers), ("text", texts)])
}

fn at(path: &str, options: &[(String, String)], more: &[(&str, &str)]) -> TableDef {
    let own = options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let all: Vec<_> = [("path", path)].into_iter().chain(own).chain(more.iter().copied()).collect();
    table(&numbers(0, 1).schema(), &all)
}

fn set(from: i64, to: i64) -> BTreeSet<String> {
    rows(&numbers(from, to)).into_iter().collect()
}

#[test]
fn checkpoints_in_it_are_fenced_by_conditional_puts() {
    let Some((url, options)) = place("state") else { return };
    let options = options.into_iter().collect();
    let store = |path: &str| -> Arc<dyn Store> {
        Arc::new(BucketStore::open(&format!("{url}/{path}"), &options).unwrap())
    };
    conformance::check(&store("promises")).unwrap();
    let (store, job) = (store("chain"), ObjectName::job("clicks").unwrap());
    let run = run();
    let begin = || Chain::begin(Arc::clone(&store), &job, &run, &ResumeFrom::Latest).unwrap();
    let manifest = |number| CheckpointManifest { number, ..Default::default() };
    let (mut former, none) = begin();
    assert!(none.is_none());
    former.append(manifest(1)).unwrap();
    let (mut later, resumed) = begin();
    assert_eq!(resumed.unwrap().manifest, manifest(1));
    let fenced = former.append(manifest(2));
    assert!(matches!(fenced, Err(CheckpointError::Fenced { .. })), "{fenced:?}");
    later.append(manifest(2)).unwrap();
    assert_eq!(begin().1.unwrap().manifest, manifest(2));
}

#[test]
fn what_is_written_in_parts_reads_back() {
    let Some((url, options)) = place("files") else { return };
    // More than one part of an upload takes, but for what is packed.
    for name in ["t.csv", "t.json", "t.parquet", "t.arrow", "t.csv.zst"] {
        let table = at(&format!("{url}/{name}"), &options, &[]);
        let sink = FileConnector::default().sink(&table).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        for part in 0..4 {
            writer.write(&numbers(part * 100_000, (part + 1) * 100_000)).unwrap();
        }
        assert!(source(&FileConnector::default(), &table).is_err(), "it is seen before its time");
        writer.commit().unwrap();
        assert!(read_once(&table) == set(0, 400_000), "{name} differs");
    }
    let all = at(&format!("{url}/*.csv"), &options, &[("format", "csv")]);
    assert_eq!(read_once(&all).len(), 400_000);
    let mut wrong = at(&format!("{url}/missing.csv"), &options, &[]);
    let error = refused(source(&FileConnector::default(), &wrong));
    assert!(error.to_string().contains("missing.csv"), "{error}");
    wrong.options.insert("path".into(), "s3://no-such-bucket/x.csv".into());
    let error = refused(source(&FileConnector::default(), &wrong)).to_string();
    assert!(error.contains("no-such-bucket") && !error.contains("hush"), "{error}");
}

#[test]
fn rows_of_checkpoints_are_published_once() {
    let Some((url, options)) = place("out") else { return };
    let how = |again| Publishing { last: false, again, mark: None };
    for format in ["csv", "parquet"] {
        let table = at(&format!("{url}-{format}/"), &options, &[("format", format)]);
        let sink = FileConnector::default().sink(&table).unwrap();
        let staging = |worker, generation| {
            let run = RunId { job: 7, generation };
            let staging = Some(StagingContext { run, goes_on: generation > 3, before: vec![] });
            WriterContext { staging, ..WriterContext::of(worker) }
        };
        let mut writers = [0, 1].map(|worker| sink.open(&staging(worker, 3)).unwrap());
        let mut round = |number: u64, from: i64| -> Vec<Vec<u8>> {
            let mut next = from;
            let staged = writers.iter_mut().map(|writer| {
                writer.write(&numbers(next, next + 50)).unwrap();
                next += 50;
                stage_durably(&mut **writer, number, false)
            });
            staged.collect()
        };
        let (first, second) = (round(1, 0), round(2, 100));
        sink.publish(&first, how(false)).unwrap();
        assert_eq!(read_once(&table), set(0, 100));
        // The next run does not know how far the publication came.
        sink.publish(&first, how(true)).unwrap();
        sink.publish(&second, how(true)).unwrap();
        sink.publish(&second, how(true)).unwrap();
        assert_eq!(read_once(&table), set(0, 200));
        // A round that nobody has recorded is gone with the run.
        let lost = round(3, 200);
        drop(writers);
        sink.sweep(RunId { job: 7, generation: 4 }, &[]).unwrap();
        assert!(sink.publish(&lost, how(false)).is_err());
        assert_eq!(read_once(&table), set(0, 200));
    }
}

#[test]
fn writers_of_a_table_of_delta_lake_meet() {
    let Some((url, options)) = place("delta") else { return };
    let table = || at(&format!("{url}/t"), &options, &[("checkpoint.interval", "4")]);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            scope.spawn(move || {
                for turn in 0..5 {
                    let sink = DeltaConnector.sink(&table()).unwrap();
                    let mut own = sink.open(&WriterContext::of(0)).unwrap();
                    let from = 1000 * writer + 100 * turn;
                    own.write(&numbers(from, from + 100)).unwrap();
                    own.commit().unwrap();
                }
            });
        }
    });
    let source = source(&DeltaConnector, &table()).unwrap();
    let flows = source.splits(2, None).unwrap().len();
    assert_eq!(flows, 15, "a file for each commit");
    let read = |flow| drain(&mut *source.open(&nth(flow), None, &context()).unwrap()).unwrap();
    let all: BTreeSet<String> = (0..flows).flat_map(|flow| rows(&read(flow))).collect();
    let expected = (0..3).flat_map(|writer| set(1000 * writer, 1000 * writer + 500));
    assert_eq!(all, expected.collect());
}
