//! Lines as they are.

use arrow::datatypes::DataType;
use connectors::FileConnector;
use dataflow::connector::Connector;
use dataflow::source::{ReaderContext, Source};

use crate::bed::*;
use crate::positions::check;
use crate::ranges::read_split;

/// The rows of all ranges, in their order.
fn read_all(source: &dyn Source, context: &ReaderContext) -> Vec<String> {
    let splits = source.splits(3, None).unwrap();
    splits.iter().flat_map(|split| read_split(source, split, context, 2)).collect()
}

#[test]
fn each_line_is_a_row_whatever_it_holds() {
    let scratch = Scratch::new("raw");
    let text = b"\xef\xbb\xbfone\n\n  two, \"2\r\n{[\n\xff\n\r\nlast".as_slice();
    let path = scratch.write("t.log", text);
    for size in ["1", "5", "1000"] {
        let options = [("path", &*path), ("format", "raw"), ("split.bytes", size)];
        let texts =
            source(&FileConnector::default(), &table(&columns(&[("a", VARCHAR)]), &options));
        let texts = texts.unwrap();
        let opened = context();
        assert_eq!(read_all(&*texts, &opened), ["\u{feff}one", "", "  two, \"2", "{[", "", "last"]);
        let refused = bad(&opened);
        assert_eq!(refused.len(), 1);
        assert_eq!(
            (&*refused[0].0, &*refused[0].1),
            ("t.log:5", "column 'a': the text is not UTF-8")
        );
        assert_eq!(check(&*texts, 3), 6);
        let binary = table(&columns(&[("a", DataType::Binary)]), &options);
        let binary = source(&FileConnector::default(), &binary).unwrap();
        let shown = ["efbbbf6f6e65", "", "202074776f2c202232", "7b5b", "ff", "", "6c617374"];
        assert_eq!(read_all(&*binary, &context()), shown);
    }
}

#[test]
fn other_columns_and_sinks_are_refused() {
    let scratch = Scratch::new("raw-refused");
    let path = scratch.write("t.log", "x\n");
    let options = [("path", &*path), ("format", "raw")];
    let of = |schema| source(&FileConnector::default(), &table(&schema, &options));
    let error = refused(of(columns(&[("a", VARCHAR), ("b", VARCHAR)])));
    assert!(error.to_string().contains("has one column, and 2 are declared"), "{error}");
    let error = refused(of(columns(&[("a", BIGINT)])));
    assert!(error.to_string().contains("STRING or BYTES, and not BIGINT"), "{error}");
    let table = table(&columns(&[("a", VARCHAR)]), &options);
    let error = refused(FileConnector::default().sink(&table));
    assert!(error.to_string().contains("read, and not written"), "{error}");
    let inferred = FileConnector::default().infer(&table.options).unwrap().unwrap();
    assert_eq!(inferred.field(0).name(), "line");
    let long = format!("a\n{}\nb\n", "y".repeat(17 << 20));
    let options = [("path", &*scratch.write("u.log", long)), ("format", "raw")];
    let opened = context();
    let schema = columns(&[("a", VARCHAR)]);
    let long = source(&FileConnector::default(), &crate::bed::table(&schema, &options)).unwrap();
    assert_eq!(rows(&read(&*long, 1, &opened)), ["a", "b"]);
    assert!(bad(&opened)[0].1.contains("the line is longer than"), "{:?}", bad(&opened)[0].1);
}
