//! The text of every error: `errors/<case>.sql` with `errors/<case>.txt` beside it.
//!
//! `UPDATE_EXPECTED=1 cargo test --release -p millstream-plan --test planner errors` writes the
//! texts anew; read them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support;

fn cases() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors");
    let entries = fs::read_dir(folder).expect("the folder of cases");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut cases: Vec<_> = paths.filter(|p| p.extension().is_some_and(|e| e == "sql")).collect();
    cases.sort();
    cases
}

#[test]
fn each_error_reads_as_expected() {
    let update = std::env::var_os("UPDATE_EXPECTED").is_some();
    let cases = cases();
    assert!(cases.len() >= 25, "only {} cases", cases.len());
    let mut wrong = vec![];
    for path in cases {
        let sql = fs::read_to_string(&path).expect("a script");
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let workers = if sql.contains("-- workers: 1") { 1 } else { 4 };
        let (mut planner, _) = support::planner(workers);
        let text: String = match planner.plan(&sql) {
            Ok(_) => "no error\n".into(),
            Err(errors) => {
                errors.iter().map(|error| error.render(&name, &sql, false)).collect::<String>()
            }
        };
        let expected = path.with_extension("txt");
        if update {
            fs::write(&expected, &text).expect("the expected text");
        } else if fs::read_to_string(&expected).ok().as_ref() != Some(&text) {
            wrong.push(format!("{name}:\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
