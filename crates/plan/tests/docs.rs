//! The table of settings in `docs/sql.md` is the one of the code.

use std::fmt::Write;
use std::path::Path;

const BEGIN: &str = "--test docs -->\n";
const END: &str = "<!-- end of settings -->";

#[test]
fn the_page_lists_the_settings() {
    let mut table = String::from("\n| setting | values | default | |\n|---|---|---|---|\n");
    for spec in plan::settings() {
        let (name, values, default, doc) = (spec.name, spec.values, spec.default, spec.doc);
        writeln!(table, "| `{name}` | {values} | `{default}` | {doc} |").expect("a line");
    }
    table.push('\n');
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sql.md");
    let page = std::fs::read_to_string(&path).expect("docs/sql.md");
    let (before, rest) = page.split_once(BEGIN).expect("the beginning of the table");
    let (found, after) = rest.split_once(END).expect("the end of the table");
    if std::env::var_os("UPDATE_EXPECTED").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).expect("docs/sql.md");
    } else {
        assert_eq!(
            found, table,
            "run UPDATE_EXPECTED=1 cargo test --release -p millstream-plan --test docs"
        );
    }
}
