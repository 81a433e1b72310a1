//! Statistics of files in the log of a table: files that they leave out have no row that matches.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use arrow::array::*;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use connectors::DeltaConnector;
use dataflow::connector::Connector;
use dataflow::predicate::{ColumnPredicate, ColumnRange, RangeEnd};
use dataflow::sink::WriterContext;
use dataflow::source::{Pruning, Source};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::bed::*;

/// One column of each kind, by numbers; `None` is NULL.
fn sample(numbers: &[Option<i64>]) -> RecordBatch {
    let each = || numbers.iter().copied();
    let text = |n: i64| match n.rem_euclid(5) {
        0 => format!("{n:06}"),
        1 => format!("a beginning of thirty-two letters {n}"),
        2 => format!("{}{}", "z".repeat(32), ["\u{7f}", "\u{10ffff}", "é"][n as usize % 3]),
        3 => String::new(),
        _ => format!("ü{}", "ü".repeat(n as usize % 40)),
    };
    let double = |n: i64| match n.rem_euclid(40) {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => -0.0,
        3 => 0.0,
        _ => n as f64 / 4.0,
    };
    let micros: TimestampMicrosecondArray = each().map(|n| n.map(|n| n * 3_333 - 50_000)).collect();
    // Some have more digits than numbers of JSON do.
    let cents = |n: i64| if n < 40 { n.into() } else { i128::from(n) * 10_i128.pow(n as u32 % 20) };
    let cents: Decimal128Array = each().map(|n| n.map(cents)).collect();
    batch(&[
        ("long", Arc::new(each().collect::<Int64Array>())),
        ("byte", Arc::new(each().map(|n| n.map(|n| n as i8)).collect::<Int8Array>())),
        ("double", Arc::new(each().map(|n| n.map(double)).collect::<Float64Array>())),
        ("float", Arc::new(each().map(|n| n.map(|n| n as f32 / 10.0)).collect::<Float32Array>())),
        ("text", Arc::new(each().map(|n| n.map(text)).collect::<StringArray>())),
        ("day", Arc::new(each().map(|n| n.map(|n| n as i32 - 50)).collect::<Date32Array>())),
        ("at", Arc::new(micros.clone())),
        ("utc", Arc::new(micros.with_timezone("UTC"))),
        ("cents", Arc::new(cents.with_precision_and_scale(30, 2).unwrap())),
        ("flag", Arc::new(each().map(|n| n.map(|n| n % 2 == 0)).collect::<BooleanArray>())),
    ])
}

/// Writes each batch as a file of its own.
fn write(path: &str, options: &[(&str, &str)], files: &[RecordBatch]) {
    let options = [&[("path", path), ("roll", "1 B")], options].concat();
    let table = table(&files[0].schema(), &options);
    let sink = DeltaConnector.sink(&table).unwrap();
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    for rows in files {
        writer.write(rows).unwrap();
    }
    writer.commit().unwrap();
}

/// The table without, and with, what a predicate leaves out.
fn pruned(path: &str, schema: &SchemaRef, kept: &ColumnPredicate) -> [Arc<dyn Source>; 2] {
    let source = source(&DeltaConnector, &table(schema, &[("path", path)])).unwrap();
    let by = Pruning { kept: kept.clone(), within_splits: false };
    let pruned = source.pruned(&by).unwrap();
    [source, pruned]
}

/// How many files are left, of how many.
fn files(source: &dyn Source) -> [usize; 2] {
    let text = source.describe_pruning().unwrap();
    let words: Vec<&str> = text.split([' ', ',']).collect();
    let ["files", left, "of", all, ..] = words[..] else { panic!("{text}") };
    [left, all].map(|count| count.parse().unwrap())
}

fn matching(source: &dyn Source, kept: &ColumnPredicate) -> Vec<String> {
    let all = read(source, 2, &context());
    let found = kept.matches(&|column| all.column(column).clone(), all.num_rows()).unwrap();
    let mut found = rows(&filter_record_batch(&all, &BooleanArray::new(found, None)).unwrap());
    found.sort();
    found
}

/// A range of the values of a column, between those of two rows.
fn range(all: &RecordBatch, column: usize, rows: [usize; 2], open: u8) -> ColumnPredicate {
    let end = |row: usize, is_open: bool| {
        let value = all.column(column).slice(row % all.num_rows(), 1);
        let end = RangeEnd { inclusive: row.is_multiple_of(2), value };
        (!is_open && end.value.is_valid(0)).then_some(end)
    };
    let (from, to) = (end(rows[0], open == 1), end(rows[1], open == 2));
    if from.is_none() && to.is_none() {
        return ColumnPredicate::NotNull(column);
    }
    ColumnPredicate::Range(ColumnRange { column, from, to })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_same_rows_match_whatever_is_left_out(
        numbers in prop::collection::vec(
            prop::collection::vec(prop::option::weighted(0.9, -60i64..200), 1..6),
            1..9,
        ),
        column in 0usize..10,
        ends in prop::array::uniform2(0usize..1000),
        open in 0u8..4,
        kind in 0u8..6,
    ) {
        let scratch = Scratch::new("delta-statistics");
        let path = scratch.path("t");
        let batches: Vec<RecordBatch> = numbers.iter().map(|of| sample(of)).collect();
        write(&path, &[], &batches);
        let schema = batches[0].schema();
        let all = arrow::compute::concat_batches(&schema, &batches).unwrap();
        let kept = match kind {
            0 => ColumnPredicate::Null(column),
            1 => ColumnPredicate::NotNull(column),
            2 => {
                let beginning = ["", "ü", "a beginning of thirty-two letters", "zzz"][ends[0] % 4];
                ColumnPredicate::Prefix { column: 4, prefix: beginning.into() }
            }
            _ => range(&all, column, ends, open),
        };
        let [whole, left] = pruned(&path, &schema, &kept);
        let of_both = [whole, left.clone()].map(|source| matching(&*source, &kept));
        prop_assert_eq!(&of_both[0], &of_both[1], "{}", kept.describe(&schema));
        // The oracle does not read what was written.
        let found = kept.matches(&|at| all.column(at).clone(), all.num_rows()).unwrap();
        prop_assert_eq!(matching(&*left, &kept).len(), found.count_set_bits());
    }
}

fn between(column: usize, from: ArrayRef, to: ArrayRef) -> ColumnPredicate {
    let end = |value: ArrayRef| Some(RangeEnd { value, inclusive: true });
    ColumnPredicate::Range(ColumnRange { column, from: end(from), to: end(to) })
}

fn long(n: i64) -> ArrayRef {
    Arc::new(Int64Array::from(vec![n]))
}

/// Four files of ten numbers each.
fn tens() -> Vec<RecordBatch> {
    (0..4).map(|file| sample(&(file * 10..file * 10 + 10).map(Some).collect::<Vec<_>>())).collect()
}

#[test]
fn files_are_left_out_by_each_kind_of_column() {
    let scratch = Scratch::new("delta-kinds");
    let path = scratch.path("t");
    // None of them is NaN.
    let numbers = |file: i64| (9 * file + 2..9 * file + 11).map(Some).collect::<Vec<_>>();
    let files_of: Vec<RecordBatch> = (0..4).map(|file| sample(&numbers(file))).collect();
    write(&path, &[], &files_of);
    let schema = files_of[0].schema();
    for (column, field) in schema.fields().iter().enumerate() {
        let values = files_of[1].column(column);
        let of_one = between(column, values.slice(4, 1), values.slice(4, 1));
        let [_, left] = pruned(&path, &schema, &of_one);
        let expected = match field.name().as_str() {
            // Texts of all files lie between each other, and truth values have no ends.
            "text" | "flag" => 4,
            _ => 1,
        };
        assert_eq!(files(&*left), [expected, 4], "{}", field.name());
        let [_, left] = pruned(&path, &schema, &ColumnPredicate::Null(column));
        assert_eq!(files(&*left), [0, 4], "{}", field.name());
        assert_eq!(read(&*left, 2, &context()).num_rows(), 0);
    }
}

/// The actions of the first commit, with what `change` makes of the statistics of its files.
fn change_statistics(path: &str, change: impl Fn(usize, &mut Value)) {
    let log = format!("{path}/_delta_log/{:020}.json", 0);
    let mut number = 0;
    let lines = fs::read_to_string(&log).unwrap();
    let lines = lines.lines().map(|line| {
        let mut action: Value = serde_json::from_str(line).unwrap();
        if let Some(add) = action.get_mut("add") {
            change(number, add);
            number += 1;
        }
        format!("{action}\n")
    });
    let lines: String = lines.collect();
    fs::write(log, lines).unwrap();
}

#[test]
fn statistics_of_strangers_that_are_no_ends_leave_nothing_out() {
    let scratch = Scratch::new("delta-strange");
    let files_of = tens();
    let schema = files_of[0].schema();
    let kept = between(0, long(13), long(13));
    let ends = |least: Value, greatest: Value| {
        let text = json!({
            "numRecords": 10, "minValues": {"long": least}, "maxValues": {"long": greatest},
        });
        json!(text.to_string())
    };
    let strange = [
        ("gone", Value::Null, 4),
        ("no text", json!({"numRecords": 10}), 4),
        ("no JSON", json!("{\"numRecords\""), 4),
        ("a list", json!("[1]"), 4),
        ("rows alone", json!("{\"numRecords\":10}"), 4),
        ("texts", ends(json!("100"), json!("200")), 4),
        ("floats", ends(json!(100.0), json!(200.5)), 4),
        ("beyond", ends(json!(u64::MAX), json!(u64::MAX)), 4),
        ("values of a list", ends(json!([100]), json!({"a": 1})), 4),
        ("no least", ends(Value::Null, json!(200)), 4),
        ("they are", ends(json!(100), json!(200)), 0),
        ("no greatest", ends(json!(100), Value::Null), 0),
        ("more NULLs than rows", json!("{\"numRecords\":10,\"nullCount\":{\"long\":11}}"), 4),
        ("all NULL", json!("{\"numRecords\":10,\"nullCount\":{\"long\":10}}"), 0),
        (
            "all NULL, perhaps",
            json!("{\"numRecords\":10,\"nullCount\":{\"long\":10},\"tightBounds\":false}"),
            4,
        ),
    ];
    for (number, (name, statistics, left)) in strange.into_iter().enumerate() {
        let path = scratch.path(&format!("t{number}"));
        write(&path, &[], &files_of);
        change_statistics(&path, |_, add| add["stats"] = statistics.clone());
        let [_, source] = pruned(&path, &schema, &kept);
        assert_eq!(files(&*source), [left, 4], "{name}");
        let expected = usize::from(left > 0);
        assert_eq!(matching(&*source, &kept).len(), expected, "{name}");
    }
}

#[test]
fn a_file_that_may_have_bad_rows_is_read() {
    let scratch = Scratch::new("delta-bad-rows");
    let path = scratch.path("t");
    let mut files_of = tens();
    files_of.push(sample(&[Some(1000), None]));
    write(&path, &[], &files_of);
    let field = |name: &str, of: DataType, null: bool| Field::new(name, of, null);
    let bad_rows = |schema: Schema, kept: &ColumnPredicate| {
        let schema = Arc::new(schema);
        pruned(&path, &schema, kept).map(|source| {
            let context = context();
            let rows = read(&*source, 2, &context).num_rows();
            (rows, bad(&context).len())
        })
    };
    // 1000 is no byte: the file of it counts as one that may have such rows, as do all others.
    let small: ArrayRef = Arc::new(Int8Array::from(vec![13]));
    let [whole, left] = bad_rows(
        Schema::new(vec![field("long", DataType::Int8, true)]),
        &between(0, small.clone(), small),
    );
    assert_eq!((whole, left), ((41, 1), (41, 1)));
    // A file without NULL is left out, and one with NULL is read.
    let [whole, left] = bad_rows(
        Schema::new(vec![field("long", DataType::Int64, false)]),
        &between(0, long(13), long(13)),
    );
    assert_eq!((whole, left), ((41, 1), (11, 1)));
}

#[test]
fn times_that_were_cut_to_milliseconds_are_within_their_ends() {
    let scratch = Scratch::new("delta-cut-times");
    let at = |micros: i64| -> ArrayRef { Arc::new(TimestampMicrosecondArray::from(vec![micros])) };
    let utc = |micros: i64| -> ArrayRef {
        Arc::new(TimestampMicrosecondArray::from(vec![micros]).with_timezone("UTC"))
    };
    let day = 20_000 * 86_400_000_000;
    for (name, of, texts) in [
        (
            "at",
            &at as &dyn Fn(i64) -> ArrayRef,
            ["2024-10-04T00:00:00.123", "2024-10-04 00:00:00.123"],
        ),
        ("utc", &utc, ["2024-10-04T00:00:00.123Z", "2024-10-04T02:00:00.123+02:00"]),
    ] {
        let rows = batch(&[(name, of(day + 123_456))]);
        for (number, text) in texts.into_iter().enumerate() {
            let path = scratch.path(&format!("{name}{number}"));
            write(&path, &[], std::slice::from_ref(&rows));
            change_statistics(&path, |_, add| {
                let ends = json!({ name: text });
                let text = json!({"numRecords": 1, "minValues": ends, "maxValues": ends});
                add["stats"] = json!(text.to_string());
            });
            let left = |from: i64, to: i64| {
                let kept = between(0, of(from), of(to));
                files(&*pruned(&path, &rows.schema(), &kept)[1])[0]
            };
            assert_eq!(left(day + 123_456, day + 200_000), 1, "{text}");
            assert_eq!(left(day + 124_000, day + 200_000), 0, "{text}");
            assert_eq!(left(day, day + 122_999), 0, "{text}");
        }
        // Whose clock a time without a zone is of, nobody knows.
        let path = scratch.path(&format!("{name}-lie"));
        write(&path, &[], std::slice::from_ref(&rows));
        change_statistics(&path, |_, add| {
            let other = texts[0].strip_suffix('Z').map_or(format!("{}Z", texts[0]), str::to_owned);
            let ends = json!({ name: other });
            let text = json!({"numRecords": 1, "minValues": ends, "maxValues": ends});
            add["stats"] = json!(text.to_string());
        });
        let kept = between(0, of(day + 999_000), of(day + 999_000));
        assert_eq!(files(&*pruned(&path, &rows.schema(), &kept)[1]), [1, 1], "{name}");
    }
}

#[test]
fn a_table_says_which_columns_have_statistics() {
    let scratch = Scratch::new("delta-some-columns");
    let files_of = tens();
    let names = |path: &str| {
        let mut names = BTreeSet::new();
        let log = fs::read_to_string(format!("{path}/_delta_log/{:020}.json", 1)).unwrap();
        for line in log.lines() {
            let action: Value = serde_json::from_str(line).unwrap();
            let Some(text) = action.pointer("/add/stats") else { continue };
            let text: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
            let nulls = text.get("nullCount").and_then(Value::as_object);
            names.extend(nulls.into_iter().flatten().map(|(name, _)| name.clone()));
        }
        names.into_iter().collect::<Vec<_>>().join(",")
    };
    let all = "at,byte,cents,day,double,flag,float,long,text,utc";
    for (number, (key, value, expected)) in [
        ("delta.appendOnly", "false", all),
        ("delta.dataSkippingNumIndexedCols", "2", "byte,long"),
        ("delta.dataSkippingNumIndexedCols", "0", ""),
        ("delta.dataSkippingNumIndexedCols", "-1", all),
        ("delta.dataSkippingNumIndexedCols", "some", all),
        ("delta.dataSkippingStatsColumns", "day, `utc`,gone", "day,utc"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = scratch.path(&format!("t{number}"));
        write(&path, &[], &files_of[..1]);
        let log = format!("{path}/_delta_log/{:020}.json", 0);
        let text = fs::read_to_string(&log).unwrap();
        let setting = json!({ key: value }).to_string();
        let text = text.replace("\"configuration\":{}", &format!("\"configuration\":{setting}"));
        fs::write(&log, text).unwrap();
        write(&path, &[], &files_of[1..2]);
        assert_eq!(names(&path), expected, "{key} = {value}");
    }
}

#[test]
fn a_wide_table_has_statistics_of_its_first_columns() {
    let scratch = Scratch::new("delta-wide");
    let path = scratch.path("t");
    let names: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
    let columns: Vec<(&str, ArrayRef)> =
        names.iter().map(|name| (name.as_str(), long(7))).collect();
    let rows = batch(&columns);
    write(&path, &[("partition.by", "c3")], std::slice::from_ref(&rows));
    let by = |column: usize| {
        files(&*pruned(&path, &rows.schema(), &between(column, long(8), long(8)))[1])
    };
    // The partition column is in the name, and counts as none of the 32.
    assert_eq!([by(0), by(3), by(32)], [[0, 1]; 3]);
    assert_eq!(by(33), [1, 1]);
}
