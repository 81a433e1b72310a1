//! Tables of Delta Lake beside a program that is not ours: delta-rs, in the Python of
//! `MILLSTREAM_DELTALAKE`, which `scripts/deltalake.sh` installs.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Float64Array, Int64Array, StringArray};
use arrow::array::{ListArray, TimestampMillisecondArray};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use connectors::DeltaConnector;
use dataflow::connector::Connector;
use dataflow::sink::{Publishing, RunId, StagingContext, WriterContext};

use crate::bed::*;

/// Prints the rows of a table, one a line, sorted.
const READ: &str = r#"
import sys
from deltalake import DeltaTable
table = DeltaTable(sys.argv[1])
rows = table.to_pyarrow_table().select(["n", "town", "day", "at", "half", "list"]).to_pylist()
text = lambda value: "NULL" if value is None else str(value)
for line in sorted("|".join(text(value) for value in row.values()) for row in rows):
    print(line)
print("version", table.version(), table.transaction_version("millstream-0000000000000007"))
"#;

/// Appends two rows.
const APPEND: &str = r#"
import sys
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
table = DeltaTable(sys.argv[1])
schema = table.to_pyarrow_table().schema
from datetime import date, datetime
day, at = date(2022, 1, 8), datetime(2023, 11, 14, 22, 13, 20, 123000)
row = lambda n: {"n": n, "town": None, "day": day, "at": at, "half": n / 2, "list": None}
more = pa.Table.from_pylist([row(5000), row(5001)], schema=schema)
write_deltalake(sys.argv[1], more, mode="append")
DeltaTable(sys.argv[1]).optimize.compact()
"#;

fn python(script: &str, path: &str) -> Option<String> {
    let python = std::env::var("MILLSTREAM_DELTALAKE").ok()?;
    let done = Command::new(python).args(["-c", script, path]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(String::from_utf8(done.stdout).unwrap())
}

fn numbers(from: i64, to: i64) -> RecordBatch {
    let each = || from..to;
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(each()));
    let town = |n: i64| ["New York", "a/b=c%", "Zürich"].get(n as usize % 4).copied();
    let towns: ArrayRef = Arc::new(StringArray::from_iter(each().map(town)));
    let days: ArrayRef =
        Arc::new(Date32Array::from_iter_values(each().map(|n| 19_000 + n as i32 % 2)));
    let times = each().map(|n| 1_700_000_000_123 + 1000 * (n % 7));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from_iter_values(times));
    let halves: ArrayRef = Arc::new(Float64Array::from_iter_values(each().map(|n| n as f64 / 2.0)));
    let list = |n: i64| (n % 3 > 0).then(|| (0..n % 3).map(Some).collect::<Vec<_>>());
    let lists: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(each().map(list)));
    batch(&[
        ("n", numbers),
        ("town", towns),
        ("day", days),
        ("at", times),
        ("half", halves),
        ("list", lists),
    ])
}

/// The rows as the script prints them.
fn printed(from: i64, to: i64) -> BTreeSet<String> {
    let row = |n: i64| {
        let town = ["New York", "a/b=c%", "Zürich", "NULL"][n as usize % 4];
        let list = ["NULL", "[0]", "[0, 1]"][n as usize % 3];
        let (day, second) = (8 + n % 2, 20 + n % 7);
        let half = format!("{:?}", n as f64 / 2.0);
        format!("{n}|{town}|2022-01-{day:02}|2023-11-14 22:13:{second}.123000|{half}|{list}")
    };
    (from..to).map(row).collect()
}

#[test]
fn what_is_written_is_read_by_delta_rs_and_the_other_way() {
    let scratch = Scratch::new("real-delta");
    let path = scratch.path("t");
    let options = [("path", path.as_str()), ("partition.by", "town,day")];
    let table = table(&numbers(0, 0).schema(), &options);
    let run = RunId { job: 7, generation: 1 };
    let staging = Some(StagingContext { run, goes_on: true, before: vec![] });
    let sink = DeltaConnector.sink(&table).unwrap();
    let context = WriterContext { staging, ..WriterContext::of(0) };
    let mut writer = sink.open(&context).unwrap();
    let mut publish = |from: i64| {
        writer.write(&numbers(from, from + 20)).unwrap();
        let staged = stage_durably(&mut *writer, 1, false);
        let how = Publishing { last: false, again: false, mark: sink.mark().unwrap() };
        sink.publish(&[staged], how).unwrap();
    };
    // The last of them writes a checkpoint, and one more is behind it.
    (0..12).for_each(|turn| publish(20 * turn));
    let Some(read) = python(READ, &path) else { return };
    let rows: BTreeSet<String> = read.lines().map(str::to_owned).collect();
    let mut expected = printed(0, 240);
    expected.insert("version 11 12".into());
    assert_eq!(rows, expected);
    for version in 0..11 {
        std::fs::remove_file(format!("{path}/_delta_log/{version:020}.json")).unwrap();
    }
    assert_eq!(python(READ, &path).unwrap(), read, "the checkpoint has all of it");
    python(APPEND, &path).unwrap();
    publish(240);
    let source = source(&DeltaConnector, &table).unwrap();
    let count = crate::bed::read(&*source, 2, &crate::bed::context()).num_rows();
    assert_eq!(count, 262, "rows of both, behind a compaction");
    let read = python(READ, &path).unwrap();
    assert!(printed(0, 260).iter().all(|row| read.contains(row.as_str())), "{read}");
    assert_eq!(read.lines().count(), 262 + 1);
}
