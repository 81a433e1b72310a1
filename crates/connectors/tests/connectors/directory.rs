//! Directories of files, written: parts, their names, and what of them is seen when.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::sink::{
    Placement, Publishing, RunId, Sink, SinkVisibility, SinkWriter, StagingContext, WriterContext,
};

use crate::bed::*;

const FIRST: Publishing = Publishing { last: false, again: false, mark: None };
const LAST: Publishing = Publishing { last: true, again: false, mark: None };

fn numbers(from: i64, to: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..to));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(
        (from..to).map(|number| format!("a row, number {number}")),
    ));
    batch(&[("number", numbers), ("text", texts)])
}

/// A sink of a directory of the scratch.
fn sink(scratch: &Scratch, options: &[(&str, &str)]) -> Arc<dyn Sink> {
    let path = scratch.path("out/");
    let options: Vec<_> = [("path", path.as_str())].iter().chain(options).copied().collect();
    FileConnector::default().sink(&table(&numbers(0, 1).schema(), &options)).unwrap()
}

/// The names of the files below a directory that are not hidden, and the number of those that are.
fn names(directory: &str) -> (BTreeSet<String>, usize) {
    let (mut names, mut hidden) = (BTreeSet::new(), 0);
    let mut below = vec![directory.to_owned()];
    while let Some(at) = below.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path().display().to_string();
            let name = path.rsplit('/').next().unwrap().to_owned();
            if Path::new(&path).is_dir() {
                below.push(path);
            } else if name.starts_with('.') {
                hidden += 1;
            } else {
                names.insert(path.strip_prefix(directory).unwrap().to_owned());
            }
        }
    }
    (names, hidden)
}

fn is(names: &BTreeSet<String>, expected: &[&str]) {
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

/// All rows of files of a format that a path names.
fn rows_of(path: &str, format: &str) -> BTreeSet<String> {
    let options = [("path", path), ("format", format)];
    let table = table(&numbers(0, 1).schema(), &options);
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 2, &context());
    let all = rows(&read);
    let set: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(set.len(), all.len(), "a row is there twice");
    set
}

fn staging(worker: u32, generation: u64, goes_on: bool) -> WriterContext {
    let run = RunId { job: 7, generation };
    let staging = Some(StagingContext { run, goes_on, before: vec![] });
    WriterContext { staging, ..WriterContext::of(worker) }
}

#[test]
fn each_worker_writes_a_part_in_every_format() {
    for (format, options, extension) in [
        ("csv", vec![], "csv"),
        ("csv", vec![("compression", "gzip")], "csv.gz"),
        ("json", vec![], "json"),
        ("parquet", vec![], "parquet"),
        ("arrow", vec![], "arrow"),
        ("arrow", vec![("arrow.layout", "stream")], "arrows"),
    ] {
        let scratch = Scratch::new("directory-formats");
        let options: Vec<_> = [("format", format)].into_iter().chain(options).collect();
        let sink = sink(&scratch, &options);
        assert_eq!(
            (sink.placement(), sink.staging()),
            (Placement::Everywhere, SinkVisibility::ByCheckpoint)
        );
        let open = |worker| sink.open(&WriterContext::of(worker)).unwrap();
        let mut writers: Vec<Box<dyn SinkWriter>> = (0..3).map(open).collect();
        // The third has no rows, and writes no part.
        for (at, writer) in writers.iter_mut().take(2).enumerate() {
            writer.write(&numbers(10 * at as i64, 10 * at as i64 + 10)).unwrap();
            writer.flush().unwrap();
        }
        let out = scratch.path("out/");
        is(&names(&out).0, &[]);
        writers.into_iter().for_each(|writer| writer.commit().unwrap());
        let expected = [0, 1].map(|worker| format!("part-0000000000-000{worker}.{extension}"));
        is(&names(&out).0, &expected.each_ref().map(String::as_str));
        assert_eq!(rows_of(&out, format), rows(&numbers(0, 20)).into_iter().collect());
    }
}

#[test]
fn a_part_rolls_by_its_bytes_and_is_seen_then() {
    let scratch = Scratch::new("directory-roll");
    let sink = sink(&scratch, &[("format", "csv"), ("roll", "1 kB")]);
    let mut writer = sink.open(&WriterContext::of(2)).unwrap();
    for at in 0..4 {
        // Each has some 22 bytes a row.
        writer.write(&numbers(30 * at, 30 * at + 30)).unwrap();
    }
    let out = scratch.path("out/");
    let seen = ["part-0000000000-0002-000001.csv", "part-0000000000-0002.csv"];
    is(&names(&out).0, &seen);
    writer.write(&numbers(120, 130)).unwrap();
    is(&names(&out).0, &seen);
    drop(writer);
    is(&names(&out).0, &seen);
    assert_eq!(names(&out).1, 0, "what was not committed leaves no trace");
    assert_eq!(rows_of(&out, "csv"), rows(&numbers(0, 120)).into_iter().collect());
}

#[test]
fn a_directory_with_rows_of_others_is_refused() {
    let scratch = Scratch::new("directory-taken");
    let of = sink(&scratch, &[("format", "csv")]);
    let mut writer = of.open(&WriterContext::of(0)).unwrap();
    writer.write(&numbers(0, 3)).unwrap();
    writer.commit().unwrap();
    let error = refused(of.open(&WriterContext::of(0)));
    assert!(error.to_string().contains("it has rows already, such as 'part-0"), "{error}");
    assert!(hint(&error).contains("another directory"));
    // A job that goes on finds its own.
    assert!(of.open(&staging(0, 4, true)).is_ok());
    let missing = scratch.path("no/out/");
    let options = [("path", missing.as_str()), ("format", "csv")];
    let table = table(&numbers(0, 1).schema(), &options);
    let of = FileConnector::default().sink(&table).unwrap();
    let error = refused(of.open(&WriterContext::of(0)));
    assert!(hint(&error).contains("mkdir -p"), "{error}");
}

#[test]
fn rows_are_sorted_into_directories_by_columns_that_read_back() {
    let scratch = Scratch::new("directory-by");
    let texts = [Some("a/b"), None, Some("NULL"), Some(""), Some("ü=1%")];
    let texts: ArrayRef =
        Arc::new(StringArray::from_iter((0..50).map(|at: usize| texts[at % texts.len()])));
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..50));
    let sample = batch(&[("text", texts), ("number", numbers)]);
    let path = scratch.path("out/");
    let options = [("path", path.as_str()), ("format", "parquet"), ("partition.by", "text")];
    let written = table(&sample.schema(), &options);
    let sink = FileConnector::default().sink(&written).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&sample.slice(0, 20)).unwrap();
    writer.write(&sample.slice(20, 30)).unwrap();
    writer.commit().unwrap();
    assert_eq!(names(&path).0.len(), 5);
    let glob = format!("{path}**/*.parquet");
    let read_from = table(&sample.schema(), &[("path", glob.as_str())]);
    let read = read(&*source(&FileConnector::default(), &read_from).unwrap(), 1, &context());
    let sorted = |batch: &RecordBatch| rows(batch).into_iter().collect::<BTreeSet<_>>();
    assert_eq!((sorted(&read), read.num_rows()), (sorted(&sample), 50));

    let refused = |by: &str| {
        let options = [("path", path.as_str()), ("format", "csv"), ("partition.by", by)];
        refused(FileConnector::default().sink(&table(&sample.schema(), &options)))
    };
    assert_eq!(hint(&refused("txet")), "did you mean 'text'?");
    assert!(refused("text, text").to_string().contains("twice"));
    assert!(refused("text, number").to_string().contains("none is left"));
}

#[test]
fn what_is_staged_is_seen_when_it_is_published_and_once() {
    let scratch = Scratch::new("directory-staged");
    let sink = sink(&scratch, &[("format", "csv"), ("roll", "1 kB")]);
    let out = scratch.path("out/");
    let mut writer = sink.open(&staging(1, 3, false)).unwrap();
    writer.write(&numbers(0, 60)).unwrap();
    writer.write(&numbers(60, 70)).unwrap();
    let first = stage_durably(&mut *writer, 5, false);
    writer.write(&numbers(70, 75)).unwrap();
    let second = stage_durably(&mut *writer, 6, false);
    let empty = stage_durably(&mut *writer, 7, false);
    drop(writer);
    assert_eq!(names(&out), (BTreeSet::new(), 3), "staged rows outlive their writer");
    for _ in 0..2 {
        sink.publish(&[first.clone(), empty.clone()], FIRST).unwrap();
        is(&names(&out).0, &["part-0000000005-0001-000001.csv", "part-0000000005-0001.csv"]);
    }
    // The next run keeps what its checkpoint names, and removes the rest of earlier runs.
    let run = RunId { job: 7, generation: 4 };
    sink.sweep(run, std::slice::from_ref(&second)).unwrap();
    assert_eq!(names(&out).1, 1);
    let mut next = sink.open(&staging(1, 4, true)).unwrap();
    next.write(&numbers(75, 80)).unwrap();
    let third = stage_durably(&mut *next, 7, true);
    sink.sweep(run, &[]).unwrap();
    assert_eq!(names(&out).1, 1, "that of this run stays, that of the one before is gone");
    let error = refused(sink.publish(std::slice::from_ref(&second), FIRST));
    assert!(error.to_string().contains("were staged as"), "{error}");
    // A second publication takes it for published and taken: there are others.
    sink.publish(&[second], Publishing { again: true, ..FIRST }).unwrap();
    sink.publish(&[third], LAST).unwrap();
    let expected: BTreeSet<String> = rows(&numbers(0, 70)).into_iter().collect();
    let expected = &expected | &rows(&numbers(75, 80)).into_iter().collect();
    assert_eq!(rows_of(&out, "csv"), expected);
}

#[test]
fn parts_are_durable_when_another_thread_has_seen_to_it_and_leave_no_trace_before() {
    let scratch = Scratch::new("directory-unsynced");
    let sink = sink(&scratch, &[("format", "csv"), ("roll", "1 B")]);
    let out = scratch.path("out/");
    let mut writer = sink.open(&staging(0, 3, false)).unwrap();
    writer.write(&numbers(0, 1)).unwrap();
    drop(writer.stage(1, false).unwrap());
    assert_eq!(names(&out), (BTreeSet::new(), 0), "the job has failed before the checkpoint");
    // More parts than files may be open.
    (0..100).for_each(|at| writer.write(&numbers(at, at + 1)).unwrap());
    let output = writer.stage(2, false).unwrap();
    drop(writer);
    let hidden = names(&out).1;
    assert!((1..100).contains(&hidden), "{hidden} parts are durable");
    let unsynced = output.unsynced.unwrap();
    std::thread::spawn(move || unsynced.sync().unwrap()).join().unwrap();
    assert_eq!(names(&out), (BTreeSet::new(), 100));
    sink.publish(&[output.staged], FIRST).unwrap();
    assert_eq!(names(&out).1, 0);
    assert_eq!(rows_of(&out, "csv"), rows(&numbers(0, 100)).into_iter().collect());
}

#[test]
fn a_directory_without_any_part_is_not_taken_for_one_whose_parts_were_taken() {
    let scratch = Scratch::new("directory-unmounted");
    let sink = sink(&scratch, &[("format", "csv")]);
    let mut writer = sink.open(&staging(0, 3, false)).unwrap();
    writer.write(&numbers(0, 2)).unwrap();
    let staged = [stage_durably(&mut *writer, 1, false)];
    drop(writer);
    let again = Publishing { again: true, ..FIRST };
    let out = scratch.path("out");
    fs::rename(&out, scratch.path("elsewhere")).unwrap();
    fs::create_dir(&out).unwrap();
    let error = refused(sink.publish(&staged, again));
    assert!(error.to_string().contains("the 1 parts of the checkpoint are gone"), "{error}");
    assert!(hint(&error).contains("part-taken"), "{error}");
    fs::remove_dir(&out).unwrap();
    fs::rename(scratch.path("elsewhere"), &out).unwrap();
    sink.publish(&staged, again).unwrap();
    // Somebody takes the part and leaves another one, or says that all were taken.
    fs::remove_file(format!("{out}/part-0000000001-0000.csv")).unwrap();
    refused(sink.publish(&staged, again));
    scratch.write("out/part-taken", "");
    sink.publish(&staged, again).unwrap();

    let path = scratch.path("single.csv");
    let options = [("path", path.as_str())];
    let table = table(&numbers(0, 1).schema(), &options);
    let sink = FileConnector::default().sink(&table).unwrap();
    let mut writer = sink.open(&staging(0, 3, false)).unwrap();
    writer.write(&numbers(0, 2)).unwrap();
    let staged = [stage_durably(&mut *writer, 1, true)];
    sink.publish(&staged, LAST).unwrap();
    let again = Publishing { again: true, ..LAST };
    sink.publish(&staged, again).unwrap();
    fs::remove_file(&path).unwrap();
    let error = refused(sink.publish(&staged, again));
    assert!(error.to_string().contains("are gone"), "{error}");
}

#[test]
fn a_file_of_somebody_else_is_not_replaced_by_a_part() {
    let scratch = Scratch::new("directory-other");
    let sink = sink(&scratch, &[("format", "csv")]);
    let mut writer = sink.open(&staging(0, 3, false)).unwrap();
    writer.write(&numbers(0, 2)).unwrap();
    let staged = stage_durably(&mut *writer, 1, true);
    let other = scratch.write("out/part-0000000001-0000.csv", "of another");
    let error = refused(sink.publish(&[staged], LAST));
    assert!(error.to_string().contains("has not written"), "{error}");
    assert_eq!(fs::read_to_string(other).unwrap(), "of another");
}

#[test]
fn a_single_file_keeps_its_rows_beside_it_until_the_job_has_ended() {
    for name in ["out.csv", "out.json.gz", "out.parquet", "out.arrow"] {
        let scratch = Scratch::new("single-staged");
        let path = scratch.path(name);
        let options = [("path", path.as_str())];
        let table = table(&numbers(0, 1).schema(), &options);
        let sink = FileConnector::default().sink(&table).unwrap();
        assert_eq!(
            (sink.placement(), sink.staging()),
            (Placement::Gather, SinkVisibility::Retained)
        );
        let mut writer = sink.open(&staging(0, 3, false)).unwrap();
        writer.write(&numbers(0, 10)).unwrap();
        let first = stage_durably(&mut *writer, 1, false);
        sink.publish(std::slice::from_ref(&first), FIRST).unwrap();
        writer.write(&numbers(10, 999)).unwrap();
        // It dies: what came behind the checkpoint comes again.
        drop(writer);
        let mut context = staging(0, 4, true);
        context.staging.as_mut().unwrap().before = vec![first.clone()];
        let mut next = sink.open(&context).unwrap();
        sink.sweep(RunId { job: 7, generation: 4 }, &[]).unwrap();
        next.write(&numbers(10, 20)).unwrap();
        let staged = stage_durably(&mut *next, 2, true);
        drop(next);
        assert!(!Path::new(&path).exists());
        let staged = [staged];
        sink.publish(&staged, LAST).unwrap();
        assert_eq!(scratch.names(), [name], "nothing is left beside it");
        let format = name.split('.').nth(1).unwrap();
        let expected: BTreeSet<String> = rows(&numbers(0, 20)).into_iter().collect();
        assert_eq!(rows_of(&path, format), expected);
        // It was published: again is no error.
        sink.publish(&staged, Publishing { again: true, ..LAST }).unwrap();
        // But a run that goes on from rows that are gone would lose them.
        context.staging.as_mut().unwrap().run.generation = 5;
        let error = refused(sink.open(&context));
        assert!(error.to_string().contains("were staged as"), "{error}");
        assert_eq!(rows_of(&path, format), expected);
    }
}
