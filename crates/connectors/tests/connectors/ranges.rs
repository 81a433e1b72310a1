//! Ranges of a file give the rows, their numbers and the bad rows that the whole file gives.

use std::sync::Arc;

use connectors::FileConnector;
use dataflow::source::{Next, ReaderContext, Source, Split};
use proptest::prelude::*;

use crate::bed::*;
use crate::positions::{check, odd_records};

/// The same on any number of workers: rows with the numbers of their records, and bad rows.
#[derive(Debug, PartialEq)]
struct Read {
    rows: Vec<String>,
    bad: Vec<(String, String, String)>,
}

fn opened(path: &str, options: &[(&str, &str)]) -> Arc<dyn Source> {
    let all: Vec<_> = [("path", path)].iter().chain(options).copied().collect();
    let mut table = table(&columns(&[("a", BIGINT), ("b", VARCHAR), ("n", BIGINT)]), &all);
    table.metadata.insert(2, "record".into());
    source(&FileConnector::default(), &table).unwrap()
}

pub fn read_split(
    source: &dyn Source,
    split: &Split,
    context: &ReaderContext,
    rows_max: usize,
) -> Vec<String> {
    let mut reader = source.open(split, None, context).unwrap();
    let mut all = Vec::new();
    loop {
        match reader.next(rows_max).unwrap() {
            Next::Batch(batch) => all.extend(rows(&batch)),
            Next::Pending | Next::Wait { .. } => panic!("a file does not wait"),
            Next::End => return all,
        }
    }
}

/// Reads the splits in the given order, and puts their rows in that of the file.
fn read(source: &dyn Source, splits: &[Split], backwards: bool, rows_max: usize) -> Read {
    let read = |split: &Split| {
        let context = context();
        (read_split(source, split, &context, rows_max), bad(&context))
    };
    let mut all: Vec<_> = match splits {
        _ if backwards => splits.iter().rev().map(read).collect(),
        _ => splits.iter().map(read).collect(),
    };
    if backwards {
        all.reverse();
    }
    let (rows, bad): (Vec<_>, Vec<_>) = all.into_iter().unzip();
    Read { rows: rows.concat(), bad: bad.concat() }
}

/// Compares ranges of many sizes with the whole.
fn is_same(name: &str, text: &[u8], options: &[(&str, &str)], sizes: &[usize]) -> Read {
    let scratch = Scratch::new(&format!("ranges-{}", name.replace('.', "-")));
    let path = scratch.write(name, text);
    let whole = opened(&path, options);
    let expected = read(&*whole, &whole.splits(1, None).unwrap(), false, 1000);
    for size in sizes {
        let size_text = size.to_string();
        let options: Vec<_> =
            options.iter().copied().chain([("split.bytes", &*size_text)]).collect();
        {
            let (backwards, rows_max) = [(false, 3), (true, 1000)][size % 2];
            let cut = opened(&path, &options);
            let splits = cut.splits(4, None).unwrap();
            assert_eq!(splits.len(), text.len().div_ceil(*size).max(1));
            let shown = String::from_utf8_lossy(&text[..text.len().min(500)]);
            let got = read(&*cut, &splits, backwards, rows_max);
            assert_eq!(got, expected, "{size} bytes of {shown:?}");
        }
    }
    expected
}

#[test]
fn lines_of_json_are_read_in_ranges() {
    let line = |a: usize| match a % 9 {
        3 => "{\"a\": \"none\"}\n".to_owned(),
        4 => format!("\r\n  {{\"a\": {a}, \"b\": \"x\\n\"}}\r\n\n"),
        5 => "[1]\n".to_owned(),
        _ => format!("{{\"b\": \"{}\", \"a\": {a}}}\n", "y".repeat(a)),
    };
    let text: String = ["\u{feff}".to_owned()].into_iter().chain((0..60).map(line)).collect();
    let sizes = [2, 7, 16, 50, 101, text.len() - 1, text.len()];
    let read = is_same("t.json", text.as_bytes(), &[], &sizes);
    assert_eq!((read.rows.len(), read.bad.len()), (46, 14));
    is_same("t.json", text.trim_end().as_bytes(), &[], &sizes);
    // A line that is too long spans ranges.
    let long = format!("{{\"a\": 1}}\n{{\"b\": \"{}\"}}\n{{\"a\": 2}}\n", "y".repeat(17 << 20));
    let read = is_same("u.json", long.as_bytes(), &[], &[3 << 20]);
    assert_eq!((read.rows.len(), read.bad.len()), (2, 1));
}

#[test]
fn what_looks_like_lines_at_its_beginning_is_read_as_lines() {
    let long = |bytes| format!("{{\"b\": \"{}\",\n\"a\": 1\n}}\n", "x".repeat(bytes)).repeat(3);
    let sizes = [70_000, 70_005];
    for text in [
        format!("{}[\n{{\"a\":1}},{{\"a\":2}},\n{{\"a\":3}}]\n", " ".repeat(70_000)),
        long(70_000),
        format!("\u{feff}{}", long((64 << 10) - 8)),
    ] {
        is_same("begun.json", text.as_bytes(), &[], &sizes);
    }
    // One byte less shows an object of several lines, and these are no ranges.
    let scratch = Scratch::new("ranges-document");
    let path = scratch.write("t.json", format!("\u{feff}{}", long((64 << 10) - 12)));
    let source = opened(&path, &[("split.bytes", "70000")]);
    let splits = source.splits(4, None).unwrap();
    assert_eq!((splits.len(), read(&*source, &splits, false, 10).rows.len()), (1, 3));
}

#[test]
fn records_of_csv_are_read_in_ranges() {
    let mut text = String::from("\u{feff}a,b\r\n");
    for a in 0..30 {
        match a % 10 {
            3 => text.push_str("none,bad\n"),
            4 => text.push_str(&format!("{a},\"two\nlines, \"\"quoted\"\"\"\r\n\n")),
            5 => text.push_str("\"never closed,x\n"),
            6 => text.push_str(&format!("{a},a \"quote\n{a},carriage\r{a},return\r\r\n")),
            7 => text.push_str(&format!("1,\"of two lines\n{a}\",3\r\n\r\n")),
            8 => text.push_str("one\r\n\r\n"),
            _ => text.push_str(&format!("{a},\"x{a}\"\r\n")),
        }
    }
    text.push_str("99,last");
    let sizes = [2, 7, 16, 50, 101, text.len() - 1, text.len()];
    let read = is_same("t.csv", text.as_bytes(), &[], &sizes);
    assert!(read.rows.len() > 22 && read.bad.len() > 11, "{read:?}");
    is_same("t.csv", text.as_bytes(), &[("csv.header", "false")], &sizes);
    let tabs = text.replace(',', "\t");
    is_same("t.tsv", tabs.as_bytes(), &[("csv.quote", "'")], &sizes);
    // A record of one line is read alike before and after the end of the file was seen.
    let read = is_same("v.csv", b"a,b\n\"torn\n1,\"\"x\n\n2,\"\"y\n3,\"\"z", &[], &[11, 18]);
    assert_eq!((&*read.rows.concat(), read.bad.len()), ("1|x|32|y|5", 2));
    // Records that are too long, and a quote that swallows more than is looked at.
    let long = "y".repeat(3 << 20);
    for middle in [format!("3,{long}"), format!("3,\"{long}\n\""), format!("3,\"{long}")] {
        let text = format!("a,b\r\n1,a\r\n{middle}\r\n4,d\n5,e\n");
        let read = is_same("u.csv", text.as_bytes(), &[], &[(1 << 20) + 1]);
        assert_eq!((read.rows.len(), read.bad.is_empty()), (3, false));
    }
}

#[test]
fn a_mark_at_the_beginning_is_of_the_first_record() {
    let mark = "\u{feff}";
    for text in ["\"", "1,x\n", "\n", "", "\"a\nb\"\n3,4", "\"torn\n2,y\n"] {
        for (header, first) in [("false", ""), ("true", "a,b\n")] {
            let text = format!("{mark}{first}{text}");
            is_same("mark.csv", text.as_bytes(), &[("csv.header", header)], &[1, 2, 3, 4, 5]);
        }
        let text = format!("{mark}{text}");
        is_same("mark.json", text.as_bytes(), &[], &[1, 2, 3, 4, 5]);
    }
    let read = is_same("mark.csv", b"\xef\xbb\xbf\"torn\n2,y", &[("csv.header", "false")], &[2]);
    assert_eq!((read.rows.len(), read.bad.len()), (1, 1));
}

#[test]
fn positions_in_ranges_are_those_of_their_rows() {
    let scratch = Scratch::new("ranges-positions");
    let csv = scratch.write("t.csv", format!("a,b\r\n{}", odd_records(30)));
    let lines: Vec<_> = (0..30).map(|a| format!("{{\"a\":{a}}}\r\n")).collect();
    let json = scratch.write("t.json", lines.concat());
    for size in ["9", "100"] {
        assert_eq!(check(&*opened(&csv, &[("split.bytes", size)]), 3), 24);
        assert_eq!(check(&*opened(&json, &[("split.bytes", size)]), 3), 30);
    }
}

#[test]
fn what_has_an_order_of_times_or_is_packed_is_one_split() {
    let scratch = Scratch::new("ranges-whole");
    let lines: Vec<_> = (0..60).map(|a| format!("{a},x\n")).collect();
    let path = scratch.write("t.csv", format!("a,b\n{}", lines.concat()));
    let small = [("split.bytes", "64")];
    let cut = opened(&path, &small);
    assert_eq!(cut.splits(2, None).unwrap().len(), 5);
    assert_eq!(cut.splits(1, None).unwrap().len(), 1);
    assert_eq!(cut.splits(2, Some(0)).unwrap().len(), 1);
    assert_eq!(cut.splits_in_order(2).unwrap().len(), 1);
    let comments = opened(&path, &[small[0], ("csv.comment", "#")]);
    assert_eq!(comments.splits(2, None).unwrap().len(), 1);
    let split = &cut.splits(2, None).unwrap()[2];
    assert_eq!(split.name, format!("{path} from byte 128"));
    assert_eq!(split.bytes, Some(64));
}

/// Bytes of which CSV and JSON are made.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "\n",
        "\n",
        "\r\n",
        "\r",
        "\"",
        "\"\"",
        ",",
        ",",
        "1",
        "22,x\n",
        "3,\"y\"\r\n",
        "\"a\nb\",",
        "5,z\n6,zz\n",
        "\u{feff}",
        " ",
        "{\"a\":1}\n",
        "7,\"\"\"q\"\"\"\n",
        "8,\"\"x\n",
        "\"torn\n",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn ranges_of_any_text_are_the_whole(
        text in text(),
        size in 1..90_usize,
        header in any::<bool>(),
    ) {
        let with_header = [if header { b"a,b\n".as_slice() } else { b"" }, &text].concat();
        let header = ("csv.header", if header { "true" } else { "false" });
        is_same("p.csv", &with_header, &[header], &[size]);
        is_same("p.json", &text, &[], &[size]);
    }
}
