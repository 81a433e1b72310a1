//! The tables of the reference pages are made from the code. `UPDATE_DOCS=1` writes them anew.

use std::fmt::Write;
use std::path::Path;

use arrow::datatypes::{DataType, TimeUnit};
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
fn the_metadata_of_connectors_is_that_of_the_code() {
    let connectors = connectors::all();
    let known = connectors.iter().filter(|connector| !connector.metadata().is_empty());
    let sections = known.map(|connector| {
        let mut out = String::from("| key | type | what it is |\n|---|---|---|\n");
        for spec in connector.metadata() {
            let name = match &spec.data_type {
                DataType::Utf8 => "STRING",
                DataType::Int64 => "BIGINT",
                DataType::Timestamp(TimeUnit::Millisecond, None) => "TIMESTAMP(3)",
                other => panic!("a type without a name here: {other}"),
            };
            writeln!(out, "| `{}` | `{name}` | {} |", spec.key, cell(spec.doc))
                .expect("a string takes all");
        }
        (format!("metadata of {}", connector.name()), out)
    });
    let sections: Vec<_> = sections.collect();
    assert!(!sections.is_empty());
    check("connectors.md", &sections);
}

#[test]
fn the_connector_on_the_page_is_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("the file exists");
    let example = read("crates/millstream/examples/own_connector.rs");
    let page = read("docs/connectors.md");
    let blocks: Vec<&str> = page
        .split("```rust\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect();
    assert!(blocks.len() >= 4);
    for block in blocks {
        assert!(example.contains(block), "the example has not:\n{block}");
    }
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

#[test]
fn the_metrics_are_those_of_the_code() {
    use millstream::MetricKind;
    let line = |name: &str, kind: MetricKind, doc: &str| match kind {
        MetricKind::Counter => format!("| `{name}_total` | counter | {} |\n", cell(doc)),
        MetricKind::Gauge => format!("| `{name}` | gauge | {} |\n", cell(doc)),
    };
    let head = "| metric | kind | what it tells |\n|---|---|---|\n".to_owned();
    let workers = millstream::metrics().iter().map(|m| line(m.name, m.kind, m.doc));
    let jobs = millstream::job_metrics().iter().map(|m| line(m.name, m.kind, m.doc));
    let sections = [
        ("metrics of a worker".into(), head.clone() + &workers.collect::<String>()),
        ("metrics of a job".into(), head + &jobs.collect::<String>()),
    ];
    check("metrics.md", &sections);
}
