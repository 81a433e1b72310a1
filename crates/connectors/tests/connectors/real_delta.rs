//! Tables of Delta Lake beside a program that is not ours: delta-rs, in the Python of
//! `MILLSTREAM_DELTALAKE`, which `scripts/deltalake.sh` installs.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Float64Array, Int64Array, StringArray};
use arrow::array::{
    Decimal128Array, ListArray, TimestampMicrosecondArray, TimestampMillisecondArray,
};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use connectors::DeltaConnector;
use dataflow::connector::Connector;
use dataflow::predicate::{ColumnPredicate, ColumnRange};
use dataflow::sink::{Publishing, RunId, StagingContext, WriterContext};
use dataflow::source::Pruning;

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

/// Prints how many files a table has, and how many the reader opens for a range of numbers.
const SKIP: &str = r#"
import sys
import pyarrow.compute as pc
from deltalake import DeltaTable
dataset = DeltaTable(sys.argv[1]).to_pyarrow_dataset()
of = lambda filter: len(list(dataset.get_fragments(filter=filter)))
from datetime import date, datetime, timezone
from decimal import Decimal
for filter in [
    None,
    (pc.field("n") >= 13) & (pc.field("n") <= 15),
    pc.field("day") == date(2024, 10, 5),
    pc.field("at") == datetime(2024, 10, 5, 0, 0, 0, 123456),
    pc.field("utc") == datetime(2024, 10, 5, 0, 0, 0, 123456, tzinfo=timezone.utc),
    pc.field("cents") == Decimal("10.5"),
    pc.field("half") == 5.5,
    pc.field("town") == "y" * 40 + "1",
    pc.field("n") > 1000,
]:
    print(of(filter))
"#;

/// Writes four files of ten rows.
const FILES: &str = r#"
import sys
import pyarrow as pa
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from deltalake import write_deltalake
zero = datetime(2024, 10, 4, 0, 0, 0, 123456)
for file in range(4):
    numbers = range(10 * file, 10 * file + 10)
    day = timedelta(days=file)
    at = [zero + day for n in numbers]
    letter = "xyz~"[file]
    rows = pa.table({
        "n": pa.array(numbers, pa.int64()),
        "day": pa.array([date(2024, 10, 4) + day for n in numbers]),
        "at": pa.array(at, pa.timestamp("us")),
        "utc": pa.array(at, pa.timestamp("us", "UTC")),
        "cents": pa.array([Decimal(n) + Decimal("0.5") for n in numbers], pa.decimal128(20, 2)),
        "half": pa.array([n / 2 for n in numbers]),
        "town": [letter * 40 + str(n % 10) for n in numbers],
    })
    write_deltalake(sys.argv[1], rows, mode="append")
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

/// Four files of ten rows, as the script makes them.
fn tens() -> Vec<RecordBatch> {
    let file = |file: i64| {
        let each = || 10 * file..10 * file + 10;
        let rows = each().count();
        let micros = (20_000 + file) * 86_400_000_000 + 123_456;
        let times = TimestampMicrosecondArray::from(vec![micros; rows]);
        let letter = ["x", "y", "z", "~"][file as usize];
        let town = |n: i64| format!("{}{}", letter.repeat(40), n % 10);
        let cents: Decimal128Array = each().map(|n| Some(i128::from(100 * n + 50))).collect();
        let columns: [(&str, ArrayRef); 7] = [
            ("n", Arc::new(Int64Array::from_iter_values(each()))),
            ("day", Arc::new(Date32Array::from(vec![20_000 + file as i32; rows]))),
            ("at", Arc::new(times.clone())),
            ("utc", Arc::new(times.with_timezone("UTC"))),
            ("cents", Arc::new(cents.with_precision_and_scale(20, 2).unwrap())),
            ("half", Arc::new(Float64Array::from_iter_values(each().map(|n| n as f64 / 2.0)))),
            ("town", Arc::new(StringArray::from_iter_values(each().map(town)))),
        ];
        batch(&columns)
    };
    (0..4).map(file).collect()
}

/// The rows that are left out by our statistics are left out by delta-rs, and the other way.
#[test]
fn files_are_left_out_by_the_statistics_of_the_other() {
    let scratch = Scratch::new("real-delta-statistics");
    let [ours, theirs] = ["ours", "theirs"].map(|name| scratch.path(name));
    let files_of = tens();
    let schema = files_of[0].schema();
    let sink =
        DeltaConnector.sink(&table(&schema, &[("path", ours.as_str()), ("roll", "1 B")])).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    files_of.iter().for_each(|rows| writer.write(rows).unwrap());
    writer.commit().unwrap();
    let Some(left) = python(SKIP, &ours) else { return };
    let left: Vec<&str> = left.lines().collect();
    assert_eq!(left, ["4", "1", "1", "1", "1", "1", "1", "1", "0"]);
    python(FILES, &theirs).unwrap();
    let left = python(SKIP, &theirs).unwrap();
    assert_eq!(left.lines().next().unwrap(), "4");
    for path in [&ours, &theirs] {
        let source = source(&DeltaConnector, &table(&schema, &[("path", path.as_str())])).unwrap();
        for (column, field) in schema.fields().iter().enumerate() {
            let value = files_of[1].column(column).slice(4, 1);
            let kept = ColumnPredicate::Range(ColumnRange::equal(column, value));
            let pruned = source.pruned(&Pruning { kept, within_splits: false }).unwrap();
            let how = pruned.describe_pruning().unwrap();
            assert!(how.starts_with("files 1 of 4"), "{path}, {}: {how}", field.name());
            assert_eq!(crate::bed::read(&*pruned, 2, &crate::bed::context()).num_rows(), 10);
        }
    }
}
