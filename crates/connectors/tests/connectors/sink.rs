//! Files, written.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::record_batch::RecordBatch;
use connectors::{Blackhole, FileConnector};
use dataflow::connector::Connector;
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, WriterContext};

use crate::bed::*;

fn sample() -> RecordBatch {
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a,\"b\""), None, Some("ü")]));
    let values: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.5), Some(-2.0), None]));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![0, 1_250, 2_000]));
    batch(&[("name", names), ("value", values), ("at", times)])
}

#[test]
fn what_is_written_reads_back_in_every_format() {
    let scratch = Scratch::new("sink-formats");
    let sample = sample();
    for name in ["t.csv", "t.tsv", "t.json", "t.parquet"] {
        let options = [("path", &*scratch.path(name)), ("csv.null", "NA")];
        let table = table(&sample.schema(), &options);
        let sink = FileConnector::default().sink(&table).unwrap();
        assert_eq!(sink.placement(), Placement::Gather);
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&sample.slice(0, 1)).unwrap();
        writer.flush().unwrap();
        writer.write(&sample.slice(1, 2)).unwrap();
        assert!(!fs::exists(scratch.path(name)).unwrap(), "visible before its time");
        writer.commit().unwrap();
        let context = context();
        let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context);
        assert_eq!((rows(&read), context.bad.count()), (rows(&sample), 0), "{name}");
    }
    assert_eq!(scratch.names(), ["t.csv", "t.json", "t.parquet", "t.tsv"]);
    let csv = fs::read_to_string(scratch.path("t.csv")).unwrap();
    let text = "name,value,at\n\
                \"a,\"\"b\"\"\",1.5,1970-01-01 00:00:00\n\
                NA,-2.0,1970-01-01 00:00:01.250\n\
                ü,NA,1970-01-01 00:00:02\n";
    assert_eq!(csv, text);
}

#[test]
fn a_text_that_stands_for_null_is_quoted_and_read_again() {
    let scratch = Scratch::new("sink-null");
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("NA"), None, Some(""), Some("-")]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(0), None, Some(0)]));
    let sample = batch(&[("text", texts), ("number", numbers)]);
    let options = [("path", &*scratch.path("t.csv")), ("csv.null", "NA,0,-")];
    let table = table(&sample.schema(), &options);
    let mut writer =
        FileConnector::default().sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
    writer.write(&sample).unwrap();
    writer.commit().unwrap();
    let written = fs::read_to_string(scratch.path("t.csv")).unwrap();
    assert_eq!(written, "text,number\n\"NA\",1\nNA,\"0\"\n,NA\n\"-\",\"0\"\n");
    let read = read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context());
    assert_eq!(rows(&read), rows(&sample));
}

#[test]
fn json_has_words_for_numbers_without_digits_and_none_for_times_beyond_the_calendar() {
    let scratch = Scratch::new("sink-json");
    let values: ArrayRef = Arc::new(Float64Array::from(vec![
        Some(f64::INFINITY),
        Some(f64::NEG_INFINITY),
        Some(f64::NAN),
        None,
        Some(1.5),
    ]));
    let sample = batch(&[("value", values)]);
    let path = scratch.path("t.json");
    let json = table(&sample.schema(), &[("path", &path)]);
    let mut writer =
        FileConnector::default().sink(&json).unwrap().open(&WriterContext::of(0)).unwrap();
    writer.write(&sample).unwrap();
    writer.commit().unwrap();
    let words = ["\"Infinity\"", "\"-Infinity\"", "\"NaN\"", "null", "1.5"];
    let lines: String = words.map(|word| format!("{{\"value\":{word}}}\n")).concat();
    assert_eq!(fs::read_to_string(&path).unwrap(), lines);
    let read = read(&*source(&FileConnector::default(), &json).unwrap(), 1, &context());
    assert_eq!(rows(&read), ["inf", "-inf", "NaN", "NULL", "1.5"]);
    let far: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![0, i64::MAX]));
    let sample = batch(&[("at", far)]);
    for name in ["t.json", "t.csv"] {
        let table = table(&sample.schema(), &[("path", &scratch.path(name))]);
        let mut writer =
            FileConnector::default().sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
        let error = refused(writer.write(&sample).and_then(|()| writer.flush()));
        assert!(error.to_string().contains("9223372036854775807"), "{error}");
    }
}

#[test]
fn a_writer_that_is_dropped_leaves_what_was_there() {
    let scratch = Scratch::new("sink-dropped");
    for name in ["t.csv", "t.json", "t.parquet"] {
        let path = scratch.write(name, "old");
        let sink =
            FileConnector::default().sink(&table(&sample().schema(), &[("path", &path)])).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&sample()).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old", "until it is whole");
        drop(writer);
        assert_eq!(scratch.names(), [name]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&sample()).unwrap();
        writer.commit().unwrap();
        assert_ne!(fs::read(&path).unwrap(), b"old");
        assert_eq!(scratch.names(), [name]);
        fs::remove_file(path).unwrap();
    }
}

fn written(path: &str) {
    let sink =
        FileConnector::default().sink(&table(&sample().schema(), &[("path", path)])).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    writer.write(&sample()).unwrap();
    writer.commit().unwrap();
}

#[test]
fn a_file_that_is_replaced_keeps_its_permissions() {
    let scratch = Scratch::new("sink-mode");
    for mode in [0o600, 0o640, 0o666, 0o755] {
        let path = scratch.write("t.csv", "old");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let before = fs::metadata(&path).unwrap();
        written(&path);
        let after = fs::metadata(&path).unwrap();
        assert_ne!(after.ino(), before.ino(), "readers of the old one keep it");
        assert_eq!(after.mode() & 0o777, mode);
        assert_eq!((after.uid(), after.gid()), (before.uid(), before.gid()));
    }
}

#[test]
fn a_link_stays_and_the_file_that_it_points_to_is_replaced() {
    let scratch = Scratch::new("sink-link");
    fs::create_dir(scratch.path("far")).unwrap();
    let links = [("to-old.csv", "far/old.csv"), ("to-new.csv", "far/new.csv")];
    scratch.write("far/old.csv", "old");
    for (link, to) in links {
        let path = scratch.path(link);
        symlink(to, &path).unwrap();
        symlink(link, scratch.path("again.csv")).unwrap();
        written(&scratch.path("again.csv"));
        fs::remove_file(scratch.path("again.csv")).unwrap();
        assert_eq!(fs::read_link(&path).unwrap().to_str(), Some(to));
        let text = fs::read_to_string(scratch.path(to)).unwrap();
        assert!(text.starts_with("name,value,at\n"), "{text}");
    }
    let circle = scratch.path("circle.csv");
    symlink("circle.csv", &circle).unwrap();
    let sink =
        FileConnector::default().sink(&table(&sample().schema(), &[("path", &circle)])).unwrap();
    assert!(refused(sink.open(&WriterContext::of(0)).map(drop)).to_string().contains("circle.csv"));
}

#[test]
fn what_a_killed_writer_left_is_removed_and_that_of_a_living_one_is_not() {
    let scratch = Scratch::new("sink-left");
    let name = |number| format!(".t.csv.tmp-{number:016x}");
    let (left, others) =
        (name(1), [".t.csv.tmp-x".to_owned(), ".u.csv.tmp-0000000000000001".to_owned()]);
    scratch.write(&left, "half of a");
    for other in &others {
        scratch.write(other, "of somebody else");
    }
    let lives = fs::File::create(scratch.path(&name(2))).unwrap();
    lives.lock().unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        scratch.path(&name(3)),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    written(&scratch.path("t.csv"));
    let mut expected = vec![name(2), name(3), others[0].clone(), others[1].clone()];
    expected.push("t.csv".into());
    expected.sort();
    assert_eq!(scratch.names(), expected);
}

#[test]
fn a_result_without_rows_is_a_file_with_columns() {
    let scratch = Scratch::new("sink-empty");
    for name in ["t.csv", "t.parquet"] {
        let table = table(&sample().schema(), &[("path", &scratch.path(name))]);
        FileConnector::default()
            .sink(&table)
            .unwrap()
            .open(&WriterContext::of(0))
            .unwrap()
            .commit()
            .unwrap();
        assert_eq!(
            read(&*source(&FileConnector::default(), &table).unwrap(), 1, &context()).num_rows(),
            0
        );
    }
}

#[test]
fn an_output_that_cannot_be_made_fails_before_the_first_row() {
    let scratch = Scratch::new("sink-open");
    let open = |path: &str| {
        let table = table(&sample().schema(), &[("path", path), ("format", "csv")]);
        FileConnector::default()
            .sink(&table)
            .and_then(|sink| sink.open(&WriterContext::of(0)).map(drop))
    };
    let nowhere = refused(open(&scratch.path("nowhere/t.csv")));
    assert!(hint(&nowhere).starts_with("make it first: mkdir -p"), "{nowhere}");
    let directory = refused(open(scratch.path("").trim_end_matches('/')));
    assert!(directory.to_string().contains("is a directory"), "{directory}");
    assert!(hint(&directory).contains("or a slash"), "{directory}");
    let unnamed = table(&sample().schema(), &[("path", &scratch.path("t.txt"))]);
    let unnamed = refused(FileConnector::default().sink(&unnamed).map(drop));
    assert!(matches!(&unnamed, ConnectorError::Option { key, .. } if key == "format"));
    assert!(scratch.names().is_empty());
}

/// `/dev/full` refuses every byte as a full disk does.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_with_its_path() {
    for format in ["csv", "json", "parquet"] {
        let options = [("path", "/dev/full"), ("format", format)];
        let sink = FileConnector::default().sink(&table(&sample().schema(), &options)).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        let error = refused(writer.write(&sample()).and_then(|()| writer.commit()));
        assert!(matches!(&error, ConnectorError::Io { place, .. } if place == "/dev/full"));
        assert!(hint(&error).contains("make room"), "{format}: {error}");
    }
}

#[test]
fn the_blackhole_counts_and_keeps_nothing() {
    let blackhole = Blackhole::default();
    let sink = blackhole.sink(&table(&sample().schema(), &[])).unwrap();
    assert_eq!(sink.placement(), Placement::Everywhere);
    for worker in 0..3 {
        let mut writer = sink.open(&WriterContext::of(worker)).unwrap();
        writer.write(&sample()).unwrap();
        writer.commit().unwrap();
    }
    assert_eq!(blackhole.rows(), 9);
    assert!(blackhole.source(&table(&sample().schema(), &[]), &[]).is_err());
}

#[test]
fn a_file_is_one_however_it_is_spelled() {
    let scratch = Scratch::new("sink-spelled");
    let of = |path: &str| {
        let table = table(&sample().schema(), &[("path", path), ("format", "csv")]);
        FileConnector::default().sink(&table).unwrap().replaces()
    };
    let directory = scratch.path(".");
    fs::create_dir(format!("{directory}/d")).unwrap();
    std::os::unix::fs::symlink("d", format!("{directory}/l")).unwrap();
    std::os::unix::fs::symlink("l/o.csv", format!("{directory}/before.csv")).unwrap();
    for there in [false, true] {
        let one = of(&scratch.path("d/o.csv"));
        assert!(one.is_some());
        assert_eq!(of(&format!("{directory}/d/../d/./o.csv")), one, "there: {there}");
        assert_eq!(of(&scratch.path("l/o.csv")), one, "there: {there}");
        assert_eq!(of(&scratch.path("before.csv")), one, "there: {there}");
        assert_ne!(of(&scratch.path("d/p.csv")), one);
        scratch.write("d/o.csv", "old");
    }
    std::os::unix::fs::symlink("d/o.csv", format!("{directory}/s.csv")).unwrap();
    assert_eq!(of(&scratch.path("s.csv")), of(&scratch.path("d/o.csv")));
    assert_eq!(of("/dev/null"), None, "a device takes the rows of all");
}
