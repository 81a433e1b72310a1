//! The corpora of the fuzz targets, replayed. `UPDATE_CORPUS=1` writes the seeds anew: a whole file
//! of each format, and damaged ones. What a fuzz target finds is added by its own name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, TimestampMillisecondArray};
use arrow::record_batch::RecordBatch;
use connectors::FileConnector;
use dataflow::connector::Connector;

use crate::bed::*;

#[path = "../../../../fuzz/src/read.rs"]
mod read;

/// The target, and the names of the files that it reads.
const TARGETS: [(&str, &[&str]); 6] = [
    ("csv", &["t.csv"]),
    ("json", &["t.json"]),
    ("arrow", &["t.arrow"]),
    ("arrows", &["t.arrows"]),
    ("parquet", &["t.parquet"]),
    ("packed", &["t.csv.gz", "t.csv.zst", "t.csv.bz2", "t.csv.xz"]),
];

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

fn sample() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-3)]));
    let values: ArrayRef = Arc::new(Float64Array::from(vec![0.5, f64::MAX, -0.0]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a,\"b\"\n", "", "ü"]));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![0, 1, 1 << 40]));
    batch(&[("id", ids), ("value", values), ("name", names), ("at", times)])
}

/// A whole file, and damaged ones, by a name each.
fn seeds(whole: &[u8]) -> Vec<(String, Vec<u8>)> {
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

fn write_seeds() {
    let scratch = Scratch::new("seeds");
    for (target, names) in TARGETS {
        fs::create_dir_all(corpus(target)).unwrap();
        for (packing, name) in names.iter().enumerate() {
            let path = scratch.path(name);
            let sink = FileConnector.sink(&table(&sample().schema(), &[("path", &path)])).unwrap();
            let mut writer = sink.open(0).unwrap();
            writer.write(&sample()).unwrap();
            writer.write(&sample()).unwrap();
            writer.commit().unwrap();
            for (seed, bytes) in seeds(&fs::read(&path).unwrap()) {
                let (seed, bytes) = match names.len() {
                    1 => (seed, bytes),
                    // The first byte chooses the name.
                    _ => (format!("{name}-{seed}"), [vec![packing as u8], bytes].concat()),
                };
                fs::write(corpus(target).join(seed), bytes).unwrap();
            }
        }
    }
}

#[test]
fn every_file_of_the_corpora_is_read_or_refused() {
    if std::env::var_os("UPDATE_CORPUS").is_some() {
        write_seeds();
    }
    let scratch = Scratch::new("corpus");
    for (target, names) in TARGETS {
        let (mut whole, mut refused) = (0, 0);
        for entry in fs::read_dir(corpus(target)).unwrap() {
            let entry = entry.unwrap().path();
            let bytes = fs::read(&entry).unwrap();
            let (name, bytes) = match bytes.split_first() {
                Some((first, rest)) if names.len() > 1 => {
                    (names[usize::from(*first) % names.len()], rest)
                }
                _ => (names[0], &*bytes),
            };
            let read = read::file(&scratch.write(name, bytes));
            let is_whole = entry.to_string_lossy().ends_with("whole");
            assert!(!is_whole || read == Ok((6, 0)), "{}: {read:?}", entry.display());
            whole += u32::from(is_whole);
            refused += u32::from(read.is_err());
        }
        assert_eq!(whole, names.len() as u32, "{target}");
        assert!(refused > 0, "{target}");
    }
}
