//! The corpus of lists of workers: each list that is none is refused, and the others say what their
//! names do.
#![allow(missing_docs)]

use std::path::Path;

#[path = "../../../fuzz/src/list.rs"]
mod list;

#[test]
fn the_corpus_of_lists_is_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/list");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let expected: Option<usize> = match name.split('-').collect::<Vec<_>>().as_slice() {
            ["bad", ..] => None,
            [_, workers, ..] => Some(workers.parse().unwrap()),
            _ => panic!("{name} says nothing"),
        };
        assert_eq!(list::read(&std::fs::read(entry.path()).unwrap()), expected, "{name}");
        count += 1;
    }
    assert!(count > 8, "only {count} lists");
}
