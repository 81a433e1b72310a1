//! The tables of the reference pages are made from the code, and `UPDATE_DOCS=1` writes them anew.
//! The examples of all pages are run; `UPDATE_BOOK=1` writes anew what they show, and then it has
//! to be read. `BOOK_PAGE=tutorial` tries only pages whose path contains that.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use dataflow::connector::Connector;
use millstream::{Counters, JOB_METRICS, Metric, MetricKind, OperatorCounters, Snapshot};
use tests::book;

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

/// Every connector.
fn connectors() -> Vec<Arc<dyn Connector>> {
    let mut all = connectors::all();
    all.push(Arc::new(kafka::KafkaConnector));
    all.extend(postgres::all().into_iter().filter(|own| own.name() != "jdbc"));
    all
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
    let connectors = connectors();
    assert!(connectors.len() >= 4);
    let sections: Vec<_> = connectors
        .iter()
        .map(|connector| (format!("options of {}", connector.name()), table(connector.as_ref())))
        .collect();
    check("connectors.md", &sections);
}

#[test]
fn the_metadata_of_connectors_is_that_of_the_code() {
    let connectors = connectors();
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
fn the_rust_on_pages_is_that_of_the_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("the file exists");
    for (page, example, least) in
        [("connectors.md", "own_connector.rs", 4), ("streams.md", "ysb_star.rs", 1)]
    {
        let example = read(&format!("crates/millstream/examples/{example}"));
        let page = read(&format!("docs/{page}"));
        let blocks: Vec<&str> = page
            .split("```rust\n")
            .skip(1)
            .map(|rest| rest.split("```").next().unwrap_or_default())
            .collect();
        assert!(blocks.len() >= least);
        for block in blocks {
            assert!(example.contains(block), "the example has not:\n{block}");
        }
    }
}

#[test]
fn the_settings_are_those_of_the_code() {
    let mut out =
        String::from("| setting | of | values | default | what it does |\n|---|---|---|---|---|\n");
    for spec in plan::settings() {
        let (values, doc) = (cell(spec.values), cell(spec.doc));
        let of = match spec.scope {
            plan::Scope::Statement => "statement",
            plan::Scope::Job => "job",
        };
        writeln!(out, "| `{}` | {of} | {values} | `{}` | {doc} |", spec.name, spec.default)
            .expect("a string takes all");
    }
    check("configuration.md", &[("settings".into(), out)]);
}

#[test]
fn the_metrics_are_those_of_the_code() {
    let line = |name: String, metric: &Metric| {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge | MetricKind::Peak => "gauge",
        };
        format!("| `{name}` | {kind} | {} |\n", cell(metric.help))
    };
    let exported = |metric: &Metric| {
        let suffix = if metric.kind == MetricKind::Counter { "_total" } else { "" };
        line(format!("millstream_{}{suffix}", metric.name), metric)
    };
    let table =
        |lines: String| format!("| metric | kind | what it tells |\n|---|---|---|\n{lines}");
    let workers = Counters::METRICS.iter().map(exported);
    let jobs = JOB_METRICS.iter().map(|job| exported(&job.metric));
    let operators = OperatorCounters::METRICS.iter().map(|one| line(one.name.to_owned(), one));
    let sections = [
        ("metrics of a worker".into(), table(workers.collect())),
        ("metrics of an operator".into(), table(operators.collect())),
        ("metrics of a job".into(), table(jobs.collect())),
    ];
    check("metrics.md", &sections);
}

/// What the book's test makes of a page.
fn tried(page: &str) -> book::Run {
    book::run("page", page)
}

#[test]
fn an_example_that_is_wrong_is_told_and_corrected() {
    let run = tried(
        "```sql\nSELECT 1 AS a;\n```\n\n```text\nnonsense\n```\n\
         ```sql\nSELECT b;\n```\n```yaml\na: 1\n```\n\
         ```console\n$ echo 1; echo 2 >&2\n1\n$ echo 3\n3\n```\n",
    );
    assert_eq!((run.faults.len(), run.examples), (4, 4), "{:#?}", run.faults);
    assert!(run.faults[0].starts_with("docs/page:6: shows\n┌"), "{}", run.faults[0]);
    assert!(run.faults[1].contains(":9: fails:\nerror: unknown column 'b'"), "{}", run.faults[1]);
    assert!(run.faults[2].contains("nobody runs a block of 'yaml'"), "{}", run.faults[2]);
    assert!(run.page.contains("│      a │"), "{}", run.page);
    assert!(run.page.contains("$ echo 1; echo 2 >&2\n1\n2\n$ echo 3\n3\n```\n"), "{}", run.page);
}

#[test]
fn what_an_example_is_told_beforehand_is_done() {
    let run = tried(
        "<!-- before: CREATE TABLE x (n INT) WITH ('connector' = 'file', 'path' = 'x.csv'); -->\n\n\
         <!-- file: x.csv -->\n```csv\nn\n4\n```\n\n```sql\nSELECT n FROM x;\n```\n\n\
         ```console\n$ tail -n 1 x.csv\n4\n```\n\n\
         <!-- not run: it is wrong -->\n```sql\nSELECT m FROM x;\n```\n\
         Prose between.\n\n```text\na picture\n```\n",
    );
    assert_eq!((run.faults.len(), run.examples), (0, 3), "{:#?}", run.faults);
    let run = tried("<!-- before: SELECT nonsense; -->\n");
    assert_eq!(run.faults.len(), 1, "{:#?}", run.faults);
}

#[test]
fn an_ellipsis_stands_for_any_lines_and_any_text() {
    let faults = |shown: &str, printed: &str| {
        let page = format!("```console\n$ printf '{printed}'\n{shown}\n```\n");
        tried(&page).faults.len()
    };
    assert_eq!(faults("a\n…\nd", "a\\nb\\nc\\nd\\n"), 0);
    assert_eq!(faults("a\n…\nd", "a\\nd\\n"), 0);
    assert_eq!(faults("a\n…\nd", "a\\nb\\n"), 1);
    assert_eq!(faults("a", "a\\nb\\n"), 1);
    assert_eq!(faults("a\nb", "a\\n"), 1);
    let line = "5 rows in, 2 out in 3 ms (2 K rows/s); 1 late";
    assert_eq!(faults("5 rows in, 2 out in … (… rows/s); 1 late", line), 0);
    assert_eq!(faults("5 rows in, 2 out in … (… rows/s)", line), 1);
    assert_eq!(faults("6 rows in, 2 out in …", line), 1);
    // What differs each time is not written into a page.
    let run = tried(&format!("```console\n$ echo '{line}'\n```\n"));
    assert!(run.page.contains("\n5 rows in, 2 out in … (… rows/s); 1 late\n"), "{}", run.page);
}

/// Examples of the whole book at least: a page whose blocks are no longer found must be noticed.
const EXAMPLES_MIN: usize = 75;

#[test]
fn the_examples_of_the_book_do_what_it_says() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let docs = docs.canonicalize().expect("the pages");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).expect("the page exists");
    let only = std::env::var("BOOK_PAGE").unwrap_or_default();
    let (mut faults, mut examples) = (Vec::new(), 0);
    for name in book::pages(&read("SUMMARY.md")).iter().filter(|name| name.contains(&only)) {
        let page = read(name);
        let run = book::run(name, &page);
        examples += run.examples;
        if std::env::var_os("UPDATE_BOOK").is_some() && run.page != page {
            std::fs::write(docs.join(name), &run.page).expect("the page can be written");
        }
        faults.extend(run.faults);
    }
    let told = "UPDATE_BOOK=1 writes into the pages what is shown now";
    assert!(faults.is_empty(), "{} faults; {told}\n\n{}", faults.len(), faults.join("\n\n"));
    assert!(!only.is_empty() || examples >= EXAMPLES_MIN, "only {examples} examples were found");
}
