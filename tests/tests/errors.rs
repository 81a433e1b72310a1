//! The text of errors, as the user sees it: `errors/NAME.sql` is a script, `errors/NAME.txt` what
//! is said to it. `UPDATE_ERRORS=1` writes the texts anew; then they have to be read.

use std::fs;
use std::path::Path;

use millstream::{Error, Session};

#[test]
fn the_text_of_each_error_is_as_it_was_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("errors");
    let mut scripts: Vec<_> = fs::read_dir(&dir)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    scripts.sort();
    assert!(scripts.len() >= 12);
    let mut wrong = Vec::new();
    for script in scripts {
        let name = script.file_name().expect("a name").to_string_lossy().into_owned();
        let sql = fs::read_to_string(&script).expect("a script");
        let mut session = Session::builder().build().expect("a session");
        let Err(Error::Sql(errors)) = session.sql(&sql) else { panic!("{name} has an error") };
        let texts: Vec<_> = errors.iter().map(|error| error.render(&name, &sql, false)).collect();
        let text = texts.join("\n");
        let golden = script.with_extension("txt");
        if std::env::var_os("UPDATE_ERRORS").is_some() {
            fs::write(&golden, &text).expect("the text is written");
        } else if fs::read_to_string(&golden).unwrap_or_default() != text {
            wrong.push(text);
        }
    }
    assert!(wrong.is_empty(), "these are new, UPDATE_ERRORS=1 keeps them:\n{}", wrong.join("\n\n"));
}
