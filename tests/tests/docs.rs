//! The tables of the reference pages are made from the code. `UPDATE_DOCS=1` writes them anew.

use std::fmt::Write;
use std::path::Path;

use dataflow::connector::Connector;

fn check(page: &str, sections: &[(String, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let old = std::fs::read_to_string(&path).expect("the page exists");
    let mut new = old.clone();
    for (marker, table) in sections {
        let begin = format!("<!-- {marker} -->\n");
        let at = new.find(&begin).unwrap_or_else(|| panic!("{page} lacks the marker '{marker}'"));
        let from = at + begin.len();
        let to = from + new[from..].find("<!-- end -->").expect("each marker has an end");
        new.replace_range(from..to, table);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &new).expect("the page can be written");
    } else {
        assert!(old == new, "docs/{page} differs from the code: run the tests with UPDATE_DOCS=1");
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[test]
fn the_options_of_connectors_are_those_of_the_code() {
    let table = |connector: &dyn Connector| {
        let mut out = String::new();
        if connector.options().is_empty() {
            return "It has no options.\n".to_string();
        }
        out.push_str("| option | values | default | what it does |\n|---|---|---|---|\n");
        for spec in connector.options() {
            let default = match spec.default {
                "" => String::new(),
                default => format!("`{}`", cell(default)),
            };
            let (values, doc) = (cell(spec.values), cell(spec.doc));
            writeln!(out, "| `{}` | {values} | {default} | {doc} |", spec.key)
                .expect("a string takes all");
        }
        out
    };
    let connectors = connectors::all();
    assert!(connectors.len() >= 4);
    let sections: Vec<_> = connectors
        .iter()
        .map(|connector| (format!("options of {}", connector.name()), table(connector.as_ref())))
        .collect();
    check("connectors.md", &sections);
}

#[test]
fn the_settings_are_those_of_the_code() {
    let mut out =
        String::from("| setting | values | default | what it does |\n|---|---|---|---|\n");
    for spec in plan::settings() {
        let (values, doc) = (cell(spec.values), cell(spec.doc));
        writeln!(out, "| `{}` | {values} | `{}` | {doc} |", spec.name, spec.default)
            .expect("a string takes all");
    }
    check("configuration.md", &[("settings".into(), out)]);
}
