//! Objects of a store, written in jobs that keep checkpoints: when they are seen.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::{Connector, TableDef};
use dataflow::sink::{
    Placement, Publishing, RunId, Sink, SinkVisibility, SinkWriter, StagingContext, WriterContext,
};

use crate::bed::*;
use crate::servers::s3::S3;

const FIRST: Publishing = Publishing { last: false, again: false, mark: None };
const LAST: Publishing = Publishing { last: true, again: false, mark: None };
const AGAIN: Publishing = Publishing { last: false, again: true, mark: None };

fn numbers(from: i64, to: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..to));
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter_values((from..to).map(|n| format!("text {}", n % 3))));
    batch(&[("number", numbers), ("text", texts)])
}

fn at(store: &S3, path: &str, options: &[(&str, &str)]) -> TableDef {
    table_of_s3(store, path, &numbers(0, 1).schema(), options)
}

fn sink(store: &S3, path: &str, options: &[(&str, &str)]) -> Arc<dyn Sink> {
    FileConnector::default().sink(&at(store, path, options)).unwrap()
}

fn staging(worker: u32, generation: u64, before: Option<&[u8]>) -> WriterContext {
    let run = RunId { job: 7, generation };
    let before: Vec<Vec<u8>> = before.into_iter().map(<[u8]>::to_vec).collect();
    let staging = Some(StagingContext { run, goes_on: generation > 3, before });
    WriterContext { staging, ..WriterContext::of(worker) }
}

/// The keys below a directory of the bucket: those that are seen, and the number of staged ones.
fn keys(store: &S3, directory: &str) -> (Vec<String>, usize) {
    let state = store.state.lock().unwrap();
    let keys = state.objects.keys().filter_map(|key| key.strip_prefix(directory));
    let (staged, seen): (Vec<&str>, Vec<&str>) = keys.partition(|key| key.contains("_staged/"));
    (seen.into_iter().map(str::to_owned).collect(), staged.len())
}

/// The numbers of all rows that a path names, each of which is there once.
fn read_numbers(store: &S3, path: &str, format: &str) -> BTreeSet<String> {
    read_once(&at(store, path, &[("format", format)]))
}

/// The rows of a table, each of which is there once.
pub(crate) fn read_once(table: &TableDef) -> BTreeSet<String> {
    let source = source(&FileConnector::default(), table).unwrap();
    let flows = source.splits(2, None).unwrap().len();
    let read = |flow| drain(&mut *source.open(&nth(flow), None, &context()).unwrap()).unwrap();
    let all: Vec<String> = (0..flows).flat_map(|flow| rows(&read(flow))).collect();
    let set: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(set.len(), all.len(), "a row is there twice");
    set
}

fn set(from: i64, to: i64) -> BTreeSet<String> {
    rows(&numbers(from, to)).into_iter().collect()
}

#[test]
fn a_directory_of_a_store_has_the_parts_of_each_worker() {
    let store = S3::start();
    let sink = sink(&store, "s3://bucket/out/", &[("format", "parquet")]);
    let is = (sink.placement(), sink.staging());
    assert_eq!(is, (Placement::Everywhere, SinkVisibility::ByCheckpoint));
    let open = |worker| sink.open(&WriterContext::of(worker)).unwrap();
    let mut writers: Vec<Box<dyn SinkWriter>> = (0..3).map(open).collect();
    for (at, writer) in writers.iter_mut().take(2).enumerate() {
        writer.write(&numbers(10 * at as i64, 10 * at as i64 + 10)).unwrap();
    }
    assert_eq!(keys(&store, "/bucket/out/").0, [""; 0]);
    writers.into_iter().for_each(|writer| writer.commit().unwrap());
    let parts = ["part-0000000000-0000.parquet", "part-0000000000-0001.parquet"];
    assert_eq!(keys(&store, "/bucket/out/"), (parts.map(String::from).to_vec(), 0));
    assert_eq!(read_numbers(&store, "s3://bucket/out/", "parquet"), set(0, 20));
    // It has rows now.
    let error = refused(sink.open(&WriterContext::of(0)));
    assert!(error.to_string().contains("it has rows already, such as 'part-0"), "{error}");
    assert!(sink.open(&staging(0, 4, None)).is_ok(), "a job that goes on finds its own");
    let web = at(&store, "http://127.0.0.1:9/out/", &[("format", "csv")]);
    let error = refused(FileConnector::default().sink(&web));
    assert!(error.to_string().contains("a web server cannot be written to"), "{error}");
}

#[test]
fn staged_objects_are_seen_when_they_are_published_and_once() {
    let store = S3::start();
    let options = [("format", "csv"), ("roll", "1 kB")];
    let sink = sink(&store, "s3://bucket/a/out/", &options);
    let mut writer = sink.open(&staging(1, 3, None)).unwrap();
    writer.write(&numbers(0, 120)).unwrap();
    writer.write(&numbers(120, 130)).unwrap();
    let first = stage_durably(&mut *writer, 5, false);
    writer.write(&numbers(130, 135)).unwrap();
    let second = stage_durably(&mut *writer, 6, false);
    let empty = stage_durably(&mut *writer, 7, false);
    // Rows that no checkpoint has go with their writer.
    writer.write(&numbers(999, 1009)).unwrap();
    drop(writer);
    let seen = || keys(&store, "/bucket/a/out/");
    assert_eq!(seen(), (vec![], 3), "staged rows outlive their writer");
    sink.publish(&[first.clone(), empty.clone()], FIRST).unwrap();
    let parts = ["part-0000000005-0001-000001.csv", "part-0000000005-0001.csv"];
    assert_eq!(seen(), (parts.map(String::from).to_vec(), 1));
    for _ in 0..2 {
        sink.publish(&[first.clone(), empty.clone()], AGAIN).unwrap();
        assert_eq!(seen().0, parts);
    }
    // The next run keeps what its checkpoint names, and removes the rest of earlier runs.
    let run = RunId { job: 7, generation: 4 };
    sink.sweep(run, std::slice::from_ref(&second)).unwrap();
    assert_eq!(seen().1, 1);
    let mut next = sink.open(&staging(1, 4, None)).unwrap();
    next.write(&numbers(135, 140)).unwrap();
    let third = stage_durably(&mut *next, 7, true);
    sink.sweep(run, &[]).unwrap();
    assert_eq!(seen().1, 1, "that of this run stays, that of the one before is gone");
    let error = refused(sink.publish(std::slice::from_ref(&second), FIRST));
    assert!(error.to_string().contains("were staged as"), "{error}");
    sink.publish(&[second], AGAIN).unwrap();
    sink.publish(&[third], LAST).unwrap();
    assert_eq!(seen().1, 0);
    let expected = &set(0, 130) | &set(135, 140);
    assert_eq!(read_numbers(&store, "s3://bucket/a/out/", "csv"), expected);
    assert!(store.state.lock().unwrap().uploads.is_empty(), "no upload is left incomplete");
}

/// The run dies between the copies of a publication, and the next one publishes again.
#[test]
fn a_publication_that_broke_off_is_finished_by_the_next_run() {
    let store = S3::start();
    let sink = sink(&store, "s3://bucket/out/", &[("format", "csv")]);
    let staged: Vec<Vec<u8>> = (0..3)
        .map(|worker| {
            let mut writer = sink.open(&staging(worker, 3, None)).unwrap();
            let from = 10 * i64::from(worker);
            writer.write(&numbers(from, from + 10)).unwrap();
            stage_durably(&mut *writer, 8, false)
        })
        .collect();
    // One was copied and not removed, another one was copied and removed.
    let before = store.state.lock().unwrap().objects.clone();
    sink.publish(&staged[1..], FIRST).unwrap();
    let kept = before.iter().find(|(key, _)| key.contains("-1-0.staged")).unwrap();
    store.put(kept.0, kept.1.1.clone());
    sink.publish(&staged, AGAIN).unwrap();
    assert_eq!(keys(&store, "/bucket/out/").1, 0);
    assert_eq!(read_numbers(&store, "s3://bucket/out/", "csv"), set(0, 30));
    // Somebody takes a part: it does not come back.
    store.state.lock().unwrap().objects.remove("/bucket/out/part-0000000008-0001.csv").unwrap();
    sink.publish(&staged, AGAIN).unwrap();
    assert_eq!(read_numbers(&store, "s3://bucket/out/", "csv"), &set(0, 10) | &set(20, 30));
}

#[test]
fn an_object_of_somebody_else_is_not_replaced_by_a_part() {
    let store = S3::start();
    let sink = sink(&store, "s3://bucket/out/", &[("format", "csv")]);
    let mut writer = sink.open(&staging(0, 3, None)).unwrap();
    writer.write(&numbers(0, 2)).unwrap();
    let staged = stage_durably(&mut *writer, 1, true);
    store.put("/bucket/out/part-0000000001-0000.csv", "of another");
    for how in [LAST, AGAIN] {
        let error = refused(sink.publish(std::slice::from_ref(&staged), how));
        assert!(error.to_string().contains("has not written"), "{error}");
    }
    assert_eq!(store.get("/bucket/out/part-0000000001-0000.csv").unwrap(), "of another");
}

#[test]
fn rows_of_a_store_are_sorted_into_directories_by_columns_that_read_back() {
    let store = S3::start();
    let options = [("format", "parquet"), ("partition.by", "text")];
    let sink = sink(&store, "s3://bucket/by/", &options);
    let mut writer = sink.open(&staging(0, 3, None)).unwrap();
    writer.write(&numbers(0, 30)).unwrap();
    let staged = stage_durably(&mut *writer, 2, true);
    assert_eq!(keys(&store, "/bucket/by/"), (vec![], 3));
    sink.publish(&[staged], LAST).unwrap();
    let name = |value| format!("text=text {value}/part-0000000002-0000.parquet");
    assert_eq!(keys(&store, "/bucket/by/"), ([0, 1, 2].map(name).to_vec(), 0));
    let read = read_numbers(&store, "s3://bucket/by/**/*.parquet", "parquet");
    assert_eq!(read, set(0, 30));
    let error = refused(sink.open(&WriterContext::of(0)));
    assert!(error.to_string().contains("it has rows already, such as 'text=text"), "{error}");
}

#[test]
fn a_single_object_keeps_its_rows_beside_it_until_the_job_has_ended() {
    for name in ["out.csv", "out.json.gz", "out.parquet", "out.arrow"] {
        let store = S3::start();
        let path = format!("s3://bucket/a/{name}");
        let sink = sink(&store, &path, &[]);
        assert_eq!(
            (sink.placement(), sink.staging()),
            (Placement::Gather, SinkVisibility::Retained)
        );
        let mut writer = sink.open(&staging(0, 3, None)).unwrap();
        writer.write(&numbers(0, 10)).unwrap();
        let first = stage_durably(&mut *writer, 1, false);
        sink.publish(std::slice::from_ref(&first), FIRST).unwrap();
        // It dies: what came behind the checkpoint comes again.
        writer.write(&numbers(10, 999)).unwrap();
        stage_durably(&mut *writer, 2, false);
        drop(writer);
        let mut next = sink.open(&staging(0, 4, Some(&first))).unwrap();
        sink.sweep(RunId { job: 7, generation: 4 }, std::slice::from_ref(&first)).unwrap();
        assert_eq!(keys(&store, "/bucket/a/"), (vec![], 1), "{name}");
        next.write(&numbers(10, 20)).unwrap();
        let second = stage_durably(&mut *next, 3, false);
        let staged = [stage_durably(&mut *next, 4, true)];
        assert_eq!(staged[0], second, "there were no rows");
        drop(next);
        sink.publish(&staged, LAST).unwrap();
        assert_eq!(keys(&store, "/bucket/a/"), (vec![name.to_owned()], 0));
        let format = name.split('.').nth(1).unwrap();
        assert_eq!(read_numbers(&store, &path, format), set(0, 20));
        // A run that goes on from an earlier checkpoint is refused before it has read anything.
        let error = refused(sink.open(&staging(0, 5, Some(&first))));
        assert!(error.to_string().contains("it is gone"), "{error}");
        // It was published: again is no error, and it is left as it is.
        sink.publish(&staged, Publishing { again: true, ..LAST }).unwrap();
        assert_eq!(read_numbers(&store, &path, format), set(0, 20));
    }
}

#[test]
fn many_small_objects_of_a_single_one_are_merged() {
    let store = S3::start();
    let sink = sink(&store, "s3://bucket/out.csv", &[]);
    let mut writer = sink.open(&staging(0, 3, None)).unwrap();
    let mut staged = Vec::new();
    for round in 0..100 {
        writer.write(&numbers(10 * round, 10 * round + 10)).unwrap();
        staged = stage_durably(&mut *writer, round as u64, false);
        let named = staged.split(|byte| *byte == b'\t').count() / 2;
        assert!(named <= 33, "{named} objects at round {round}");
    }
    assert!(keys(&store, "/bucket/").1 > 33, "those that were merged are there");
    // Objects of another job, of another object and of a later run are none of its business.
    let others = [".out.csv.0000000000000008-3-0", ".b.csv.0000000000000007-3-0"];
    for name in others.into_iter().chain([".out.csv.0000000000000007-4-0"]) {
        store.put(&format!("/bucket/_staged/{name}.staged"), "of another");
    }
    sink.publish(&[staged], LAST).unwrap();
    assert_eq!(read_numbers(&store, "s3://bucket/out.csv", "csv"), set(0, 1000));
    // Behind the end of its job no checkpoint names those that were merged.
    sink.sweep(RunId { job: 7, generation: 4 }, &[]).unwrap();
    assert_eq!(keys(&store, "/bucket/").1, 3);
}

/// The client of the store would give up after ten times, which are some seconds.
#[test]
fn a_store_that_is_away_is_asked_again_as_long_as_the_table_says() {
    let store = S3::start();
    let sink = sink(&store, "s3://bucket/away/", &[("retry.timeout", "10 min"), ("format", "csv")]);
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&numbers(0, 1)).unwrap();
    store.state.lock().unwrap().refusals = 12;
    writer.commit().unwrap();
    assert_eq!(store.state.lock().unwrap().refusals, 0);
    assert_eq!(keys(&store, "/bucket/away/").0.len(), 1);
}
