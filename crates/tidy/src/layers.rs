//! The allowed dependencies between crates.
//!
//! [`LAYERS`] is the architecture as a table. A crate and its tests may use the crates of its row
//! and no others; and it must stay clear of the libraries that its layer does not know.

use toml::{Table, Value};

use crate::tree::{Finding, Tree};

/// One crate of the workspace.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    /// The package, without `millstream-`.
    pub name: &'static str,
    /// Crates of ours that it may use.
    pub uses: &'static [&'static str],
    /// First words of libraries that it must not know, directly.
    pub never: &'static [&'static str],
}

/// Libraries of asynchronous runtimes.
const ASYNC: &[&str] = &["tokio", "async-std", "smol"];
/// Libraries of queries.
const SQL: &[&str] = &["datafusion", "sqlparser"];
/// Those, and libraries of asynchronous runtimes: the data plane has its own scheduler.
const SQL_ASYNC: &[&str] = &["datafusion", "sqlparser", "tokio", "async-std", "smol"];
/// Libraries of queries and of rows.
const ROWS: &[&str] = &["datafusion", "sqlparser", "arrow", "parquet"];
/// All of these: for crates that move bytes.
const ROWS_ASYNC: &[&str] =
    &["datafusion", "sqlparser", "arrow", "parquet", "tokio", "async-std", "smol"];

/// The crates, from the lowest layer up.
pub const LAYERS: &[Layer] = &[
    layer("fabric", &[], ROWS_ASYNC),
    layer("channel", &["fabric"], ROWS_ASYNC),
    layer("pool", &["fabric"], ROWS_ASYNC),
    layer("checkpoint", &[], ROWS_ASYNC),
    layer("state", &["fabric"], SQL_ASYNC),
    layer("dataflow", &["fabric", "channel", "state"], SQL_ASYNC),
    layer("sql", &[], ASYNC),
    layer("plan", &["fabric", "channel", "state", "dataflow", "sql"], &[]),
    layer("stream", &["fabric", "channel", "state", "dataflow"], SQL_ASYNC),
    layer("connectors", &["fabric", "pool", "checkpoint", "dataflow"], SQL),
    layer("kafka", &["fabric", "connectors", "dataflow"], SQL),
    layer("postgres", &["fabric", "connectors", "dataflow"], SQL_ASYNC),
    layer("cluster", &["fabric", "channel"], ROWS),
    layer("millstream", ENGINE, &[]),
    layer("oracle", &[], &[]),
    layer("bench", EVERYTHING, SQL),
    layer("cli", &["millstream", "bench"], SQL),
    layer("python", &["millstream"], SQL_ASYNC),
    // Beside the layers.
    layer("models", &["fabric", "channel", "pool", "checkpoint", "state"], ROWS),
    layer("tidy", &[], ROWS_ASYNC),
    layer("verbs-sim", &["fabric", "channel"], ROWS_ASYNC),
    layer("tests", TESTS, &[]),
    layer(
        "fuzz",
        &["fabric", "channel", "pool", "checkpoint", "dataflow", "connectors", "plan", "cluster"],
        SQL,
    ),
    // Another engine, to be compared with: it knows nothing of ours.
    layer("peer-timely", &[], SQL),
];

const ENGINE: &[&str] = &[
    "fabric",
    "channel",
    "pool",
    "checkpoint",
    "state",
    "dataflow",
    "plan",
    "stream",
    "connectors",
    "kafka",
    "postgres",
    "cluster",
];
const EVERYTHING: &[&str] = &[
    "fabric",
    "channel",
    "pool",
    "checkpoint",
    "state",
    "dataflow",
    "plan",
    "stream",
    "connectors",
    "cluster",
    "millstream",
    // The engine that results are compared with on demand.
    "oracle",
];

/// All, the device that stands for a real one, and another engine.
const TESTS: &[&str] = &[
    "bench",
    "fabric",
    "channel",
    "pool",
    "checkpoint",
    "state",
    "dataflow",
    "plan",
    "stream",
    "connectors",
    "kafka",
    "postgres",
    "millstream",
    "verbs-sim",
    "oracle",
];

/// Crates that the tests of any crate may use.
const IN_TESTS: &[&str] = &["oracle"];

const fn layer(
    name: &'static str,
    uses: &'static [&'static str],
    never: &'static [&'static str],
) -> Layer {
    Layer { name, uses, never }
}

/// Edges between crates, and to libraries, that the table does not allow.
#[must_use]
pub fn forbidden_edges(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.manifests() {
        let manifest = match file.text.parse::<Table>() {
            Ok(manifest) => manifest,
            Err(error) => {
                findings.push(Finding::new(&file.path, 0, format!("not TOML: {error}")));
                continue;
            }
        };
        let name = package_name(&manifest);
        let Some(layer) = LAYERS.iter().find(|layer| layer.name == name) else {
            let message = format!("`{name}` has no row in crates/tidy/src/layers.rs: give it one");
            findings.push(Finding::new(&file.path, 0, message));
            continue;
        };
        check_manifest(&file.path, &manifest, layer, &mut findings);
    }
    findings
}

/// The package's name without `millstream-`.
fn package_name(manifest: &Table) -> String {
    let package = manifest.get("package").and_then(|package| package.get("name"));
    short_name(package.and_then(Value::as_str).unwrap_or("")).to_owned()
}

fn short_name(package: &str) -> &str {
    package.strip_prefix("millstream-").unwrap_or(package)
}

fn check_manifest(path: &str, manifest: &Table, layer: &Layer, findings: &mut Vec<Finding>) {
    let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
    if lints.and_then(Value::as_bool) != Some(true) {
        findings.push(Finding::new(path, 0, "`[lints] workspace = true` is missing"));
    }
    for (dependency, in_tests) in dependencies(manifest) {
        let ours = LAYERS.iter().any(|other| other.name == dependency);
        let name = dependency.as_str();
        let allowed_in_tests = layer.name == name || IN_TESTS.contains(&name);
        let allowed = layer.uses.contains(&name) || (in_tests && allowed_in_tests);
        if ours && !allowed {
            let message = format!("`{}` must not depend on `{dependency}`", layer.name);
            findings.push(Finding::new(path, 0, message));
        }
        if !in_tests && layer.never.iter().any(|never| is_family(&dependency, never)) {
            let message = format!("`{}` must not know `{dependency}`", layer.name);
            findings.push(Finding::new(path, 0, message));
        }
    }
}

/// Whether `dependency` is `family` or one of its parts (`arrow`, `arrow-schema`).
fn is_family(dependency: &str, family: &str) -> bool {
    dependency.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Every dependency of a manifest, and whether it is one of tests alone.
fn dependencies(manifest: &Table) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let targets = manifest.get("target").and_then(Value::as_table);
    let tables = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    for table in tables.chain([manifest]) {
        for (section, in_tests) in
            [("dependencies", false), ("build-dependencies", false), ("dev-dependencies", true)]
        {
            let entries = table.get(section).and_then(Value::as_table);
            for (key, value) in entries.into_iter().flatten() {
                let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
                found.push((short_name(package).to_owned(), in_tests));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::tree::File;

    fn findings_of(manifest: &str) -> Vec<String> {
        let file = File::new("crates/x/Cargo.toml", manifest);
        let tree = Tree { root: PathBuf::new(), files: vec![file] };
        forbidden_edges(&tree).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn an_edge_upwards_is_found_in_every_kind_of_section() {
        let head = "[package]\nname = \"millstream-channel\"\n[lints]\nworkspace = true\n";
        for edge in [
            "[dependencies]\nstate.workspace = true",
            "[dependencies]\nstate = { workspace = true, features = [\"x\"] }",
            "[dependencies]\nother = { package = \"millstream-state\", path = \"../state\" }",
            "[dependencies.state]\nworkspace = true",
            "[dev-dependencies]\nstate.workspace = true",
            "[build-dependencies]\nstate.workspace = true",
            "[target.'cfg(loom)'.dependencies]\nstate.workspace = true",
        ] {
            let found = findings_of(&format!("{head}{edge}"));
            assert_eq!(found, ["`channel` must not depend on `state`"], "{edge}");
        }
        assert!(findings_of(&format!("{head}[dependencies]\nfabric.workspace = true")).is_empty());
    }

    #[test]
    fn what_is_for_tests_is_used_by_tests_alone() {
        let head = "[package]\nname = \"millstream-plan\"\n[lints]\nworkspace = true\n";
        let found = findings_of(&format!("{head}[dependencies]\noracle.workspace = true"));
        assert_eq!(found, ["`plan` must not depend on `oracle`"]);
        let in_tests = format!("{head}[dev-dependencies]\noracle.workspace = true");
        assert!(findings_of(&in_tests).is_empty());
    }

    #[test]
    fn a_library_of_a_higher_layer_is_found() {
        let head = "[package]\nname = \"millstream-fabric\"\n[lints]\nworkspace = true\n";
        let found = findings_of(&format!("{head}[dependencies]\narrow-schema = \"59\""));
        assert_eq!(found, ["`fabric` must not know `arrow-schema`"]);
        assert!(findings_of(&format!("{head}[dependencies]\narrowhead = \"1\"")).is_empty());
    }

    #[test]
    fn a_crate_without_a_row_or_without_lints_is_found() {
        let found = findings_of("[package]\nname = \"millstream-new\"\n");
        assert!(found[0].starts_with("`new` has no row"), "{found:?}");
        let found = findings_of("[package]\nname = \"millstream-fabric\"\n");
        assert_eq!(found, ["`[lints] workspace = true` is missing"]);
    }

    #[test]
    fn the_table_points_down_only() {
        for (i, layer) in LAYERS.iter().enumerate() {
            for used in layer.uses {
                let below = LAYERS[..i].iter().any(|lower| lower.name == *used);
                assert!(below, "{} uses {used}, which does not stand above it", layer.name);
            }
        }
    }
}
