//! `stdout`, captured.

use std::sync::Arc;

use arrow::array::{ArrayRef, DurationSecondArray, Int64Array, ListArray, StringArray};
use arrow::datatypes::{Int64Type, Time64MicrosecondType};
use arrow::record_batch::RecordBatch;
use connectors::{Stdout, StdoutTarget};
use dataflow::connector::Connector;
use dataflow::sink::{Placement, WriterContext};

use crate::bed::*;

fn sample(first: i64, rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let names = (first..first + rows).map(|row| (row != 1).then(|| format!("ä{row}")));
    batch(&[("id", ids), ("name", Arc::new(StringArray::from_iter(names)))])
}

fn print(options: &[(&str, &str)], batches: &[RecordBatch]) -> String {
    let (output, capture) = StdoutTarget::captured();
    let schema = sample(0, 0).schema();
    let sink = Stdout::new(output).sink(&table(&schema, options)).unwrap();
    assert_eq!(sink.placement(), Placement::Gather);
    let mut writer = sink.open(&WriterContext::of(0)).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.commit().unwrap();
    capture.take()
}

#[test]
fn a_table_is_drawn_with_its_types_and_count() {
    let expected = "\
┌────────┬─────────┐
│     id │ name    │
│ BIGINT │ VARCHAR │
├────────┼─────────┤
│      0 │ ä0      │
│      1 │ NULL    │
├────────┴─────────┤
│ 2 rows           │
└──────────────────┘
";
    assert_eq!(print(&[], &[sample(0, 1), sample(1, 1)]), expected);
    let nothing = print(&[], &[]);
    assert!(nothing.contains("│ 0 rows           │"), "{nothing}");
}

#[test]
fn of_many_rows_the_first_and_the_last_are_shown_however_they_come() {
    let ids = |text: &str| -> Vec<String> {
        let cell = |line: &str| line.split('│').nth(1).map(|cell| cell.trim().to_owned());
        text.lines().skip(4).filter_map(cell).collect()
    };
    for size in [1, 2, 3, 100] {
        let batches: Vec<_> = (0..100 / size).map(|index| sample(index * size, size)).collect();
        let text = print(&[("max_rows", "5")], &batches);
        let total = 100 / size * size;
        let last = |back: i64| (total - back).to_string();
        let expected = ["0", "1", "2", "·", &last(2), &last(1), &format!("{total} rows (5 shown)")];
        assert_eq!(ids(&text), expected, "batches of {size}");
    }
    let six = print(&[("max_rows", "5")], &[sample(0, 6)]);
    assert_eq!(ids(&six)[3..6], ["·", "4", "5"]);
    let five = print(&[("max_rows", "5")], &[sample(0, 5)]);
    assert_eq!(ids(&five), ["0", "1", "2", "3", "4", "5 rows"]);
    let one = print(&[("max_rows", "1")], &[sample(0, 3)]);
    assert_eq!(ids(&one), ["0", "·", "3 rows (1 shown)"]);
}

#[test]
fn csv_and_json_stream_at_a_flush() {
    for (format, first, second) in [
        ("csv", "id,name\n0,ä0\n", "1,\n"),
        ("json", "{\"id\":0,\"name\":\"ä0\"}\n", "{\"id\":1,\"name\":null}\n"),
    ] {
        let (output, capture) = StdoutTarget::captured();
        let table = table(&sample(0, 0).schema(), &[("format", format)]);
        let mut writer =
            Stdout::new(output).sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
        writer.write(&sample(0, 1)).unwrap();
        assert_eq!(capture.take(), "");
        writer.flush().unwrap();
        assert_eq!(capture.take(), first);
        writer.write(&sample(1, 1)).unwrap();
        writer.commit().unwrap();
        assert_eq!(capture.take(), second);
    }
}

/// What a program reads is whole, and each result of it names its columns.
#[test]
fn programs_get_all_rows_of_each_result() {
    let (output, capture) = StdoutTarget::captured();
    let stdout = Stdout::new(output.for_programs());
    let write = |options: &[(&str, &str)], rows: i64| {
        let sink = stdout.sink(&table(&sample(0, 0).schema(), options)).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        writer.write(&sample(0, rows)).unwrap();
        writer.commit().unwrap();
        capture.take()
    };
    let whole = write(&[], 100);
    assert_eq!(whole.lines().count(), 101);
    assert!(whole.starts_with("id,name\n0,ä0\n1,\n") && whole.contains("\n99,"), "{whole}");
    assert_eq!(write(&[], 1), "\nid,name\n0,ä0\n", "a blank line before the second result");
    assert_eq!(write(&[], 0), "\nid,name\n", "no rows are a header");
    assert_eq!(write(&[("format", "json")], 1), "{\"id\":0,\"name\":\"ä0\"}\n");
    for asked in [("format", "table"), ("max_rows", "3")] {
        assert!(write(&[asked], 1).starts_with('┌'), "{asked:?}");
    }
}

#[test]
fn lists_are_json_in_csv() {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
    ]);
    let batch = batch(&[("list", Arc::new(lists))]);
    let (output, capture) = StdoutTarget::captured();
    let table = table(&batch.schema(), &[("format", "csv")]);
    let mut writer = Stdout::new(output).sink(&table).unwrap().open(&WriterContext::of(0)).unwrap();
    writer.write(&batch).unwrap();
    writer.commit().unwrap();
    assert_eq!(capture.take(), "list\n\"[1,null]\"\n\"\"\n[]\n");
}

#[test]
fn a_format_that_does_not_exist_names_the_nearest() {
    let (output, _) = StdoutTarget::captured();
    let table = table(&sample(0, 0).schema(), &[("format", "jsno")]);
    let error = refused(Stdout::new(output).sink(&table).map(drop));
    assert_eq!(hint(&error), "did you mean 'json'?");
}

/// A type whose values have texts up to a bound, beyond it: by itself and in a list.
#[test]
fn a_table_does_not_show_an_error_as_a_value() {
    let long: ArrayRef = Arc::new(DurationSecondArray::from(vec![i64::MAX]));
    let lists = ListArray::from_iter_primitive::<Time64MicrosecondType, _, _>([Some([Some(-1)])]);
    for column in [long, Arc::new(lists) as ArrayRef] {
        let batch = batch(&[("d", column)]);
        let (output, capture) = StdoutTarget::captured();
        let sink = Stdout::new(output).sink(&table(&batch.schema(), &[])).unwrap();
        let mut writer = sink.open(&WriterContext::of(0)).unwrap();
        let error = writer.write(&batch).unwrap_err();
        assert!(error.to_string().contains("column 'd': "), "{error}");
        assert_eq!(capture.take(), "");
    }
}
