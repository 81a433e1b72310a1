//! Imports between the modules of a crate.
//!
//! The modules at the top of a crate, each with all that lies below it, import each other without
//! a circle: a reader of one has to read those that it imports, and no others. Modules of one
//! folder may import each other as they like.
//!
//! [`FOLDERS`] goes further for the crates that it names: their folders stand in layers as the
//! crates do ([`layers`](crate::layers)), and a module imports from lower ones only.
//! [`CIRCLES`] has the crates that still have circles; their numbers may only shrink.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::imports::{Import, of_crate};
use crate::tree::{Finding, Tree};

/// The folders of some crates, from the lowest layer up. A module belongs to the longest row that
/// leads to it, and imports from its own row and from those above it in the list.
pub const FOLDERS: &[(&str, &[&str])] = &[("dataflow", DATAFLOW), ("plan", PLAN)];

const PLAN: &[&str] =
    &["workers", "text", "expr", "catalog", "logical", "explain", "lower", "planner"];

const DATAFLOW: &[&str] = &[
    "calendar",
    "secrets",
    "error",
    "connector",
    // Snapshots of workers.
    "checkpoint",
    "rows",
    // Specifications: the work of a worker, as data.
    "job",
    "optimize",
    // The machinery of a worker.
    "pairing",
    "runtime",
    "exchange",
    // Entry points of fuzz targets.
    "hostile",
    "operators/probe_stage",
    "operators/downstream",
    "operators/restoring",
    "operators/operator",
    "operators/aggregate",
    "operators/keyed",
    "operators/interval_join",
    "operators/temporal_join",
    "operators/window_join",
    "operators/over",
    "operators/ranking",
    "operators/reroute",
    "operators/sessions",
    "operators/local_plan",
    "operators/probe_chain",
    "operators/lookup",
    "operators/hash_join",
    "operators/limit",
    "operators/sort",
    "operators/source",
    "operators/sink",
    "operators/build",
    "operators",
    "graph",
    "worker",
];

/// Crates with circles: the modules in them, and why they are still there. The number is exact, so
/// that it shrinks with each module that leaves a circle and never grows again.
pub const CIRCLES: &[(&str, usize, &str)] = &[
    ("bench", 2, "a loop by hand and the engine's runs share their error"),
    ("cluster", 13, "one error is made in, and of, all of it"),
    ("fabric", 2, "an endpoint has a pulse, which counts by its links"),
    ("millstream", 9, "a node's parts report to it; kinds of transports explain their errors"),
    ("state", 10, "loops over groups are chosen in the modules that hold the groups"),
    ("stream", 4, "streams, keyed streams and windows are made of each other"),
    ("verbs-sim", 4, "the device's functions and its numbers of errors stand in its root"),
];

/// The name of the root of a crate.
const ROOT: &str = "(root)";

/// The imports of each module, by the module that they lead to.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a Import>>;

/// Circles of imports, imports from a lower to an upper layer, and numbers that could be lower.
#[must_use]
pub fn circles(tree: &Tree) -> Vec<Finding> {
    check(tree, FOLDERS, CIRCLES)
}

fn check(
    tree: &Tree,
    folders: &[(&str, &[&str])],
    allowed: &[(&str, usize, &str)],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in tree.manifests() {
        let directory = manifest.path.trim_end_matches("/Cargo.toml");
        let name = directory.rsplit('/').next().unwrap_or(directory);
        let source = format!("{directory}/src/");
        let found = of_crate(tree, &source);
        let rows = folders.iter().find(|(krate, _)| *krate == name).map(|(_, rows)| *rows);
        let row_of = |module: &[String]| match rows {
            Some(rows) => row_of(rows, module),
            None => Some(module.first().map_or(ROOT.to_owned(), Clone::clone)),
        };
        for module in found.modules.keys().filter(|module| row_of(module).is_none()) {
            let message = format!("`{}` is in no row of FOLDERS: give it one", module.join("::"));
            findings.push(Finding::new(&source, 0, message));
        }
        let placed = found
            .imports
            .iter()
            .filter_map(|import| Some((row_of(&import.from)?, row_of(&import.to)?, import)));
        let placed: Vec<(String, String, &Import)> = placed.filter(|(a, b, _)| a != b).collect();
        if let Some(rows) = rows {
            let layer = |row: &str| rows.iter().position(|name| *name == row).unwrap_or(rows.len());
            for (from, to, import) in &placed {
                if layer(to) > layer(from) {
                    let path = &import.path;
                    let message = format!("`{from}` must not import `{path}` of `{to}` above it");
                    findings.push(Finding::new(&import.file, import.line, message));
                }
            }
        }
        let mut edges = Edges::new();
        for (from, to, import) in &placed {
            edges.entry(from).or_default().entry(to).or_insert(import);
        }
        let circles = components(&edges);
        let inside: usize = circles.iter().map(BTreeSet::len).sum();
        let most =
            allowed.iter().find(|(krate, ..)| *krate == name).map_or(0, |(_, most, _)| *most);
        if inside > most {
            findings.extend(circles.iter().map(|circle| finding(&source, circle, &edges)));
        } else if inside < most {
            let message = format!("{inside} modules are in circles, not {most}: lower CIRCLES");
            findings.push(Finding::new(&source, 0, message));
        }
    }
    findings
}

/// The longest row that leads to a module.
fn row_of(rows: &[&str], module: &[String]) -> Option<String> {
    let paths = (1..=module.len()).rev().map(|end| module[..end].join("/"));
    let row = paths.into_iter().find(|path| rows.contains(&path.as_str()));
    row.or_else(|| module.is_empty().then(|| ROOT.to_owned()))
}

/// The circles: modules that lead to each other, by whatever way.
fn components<'a>(edges: &Edges<'a>) -> Vec<BTreeSet<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|&from| (from, reached_from(edges, from))).collect();
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    for (&from, to) in &reached {
        let back = |to: &&str| reached.get(to).is_some_and(|further| further.contains(from));
        let circle: BTreeSet<&str> = to.iter().copied().filter(back).collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

fn reached_from<'a>(edges: &Edges<'a>, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        let to = edges.get(at).into_iter().flat_map(BTreeMap::keys);
        next.extend(to.copied().filter(|&to| reached.insert(to)));
    }
    reached
}

/// Says what is in a circle, and the imports of a shortest way around.
fn finding(source: &str, circle: &BTreeSet<&str>, edges: &Edges<'_>) -> Finding {
    let ways = circle.iter().filter_map(|&start| way_around(edges, start));
    let shortest = ways.min_by_key(Vec::len).unwrap_or_default();
    let line = |(from, to): &(&str, &str)| {
        let Import { file, line, path, .. } = edges[from][to];
        format!("\n    {from} → {to}: {file}:{line}: {path}")
    };
    let modules: Vec<&str> = circle.iter().copied().collect();
    let lines: String = shortest.iter().map(line).collect();
    let message = format!("modules import each other in a circle: {}{lines}", modules.join(", "));
    Finding::new(source, 0, message)
}

/// The edges of a shortest way from a module back to itself.
fn way_around<'a>(edges: &Edges<'a>, start: &'a str) -> Option<Vec<(&'a str, &'a str)>> {
    let mut came: BTreeMap<&str, &str> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(at) = next.pop_front() {
        for &to in edges.get(at).into_iter().flat_map(BTreeMap::keys) {
            if came.contains_key(to) {
                continue;
            }
            came.insert(to, at);
            if to != start {
                next.push_back(to);
                continue;
            }
            let (mut way, mut at) = (Vec::new(), start);
            loop {
                let from = came[at];
                way.push((from, at));
                at = from;
                if at == start {
                    way.reverse();
                    return Some(way);
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::tree::File;

    /// A crate `x` of these files below `src/`.
    fn tree(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File::new(&format!("crates/x/src/{path}"), text);
        let manifest = File::new("crates/x/Cargo.toml", "");
        Tree {
            root: PathBuf::new(),
            files: [manifest].into_iter().chain(files.iter().map(file)).collect(),
        }
    }

    fn messages(files: &[(&str, &str)], rows: &[&str], most: usize) -> Vec<String> {
        let folders: &[(&str, &[&str])] = if rows.is_empty() { &[] } else { &[("x", rows)] };
        let found = check(&tree(files), folders, &[("x", most, "")]);
        found.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_circle_is_found_however_it_is_written() {
        for back in [
            "use crate::a::A;",
            "use crate::{\n    a::{A, B},\n};",
            "use super::super::a::A;",
            "fn f() -> crate::a::A { A }",
            "use crate::A;",
            "use crate::a::*;",
            "#[cfg(not(test))]\nuse crate::a::A;",
            "const C: char = '\"';\nuse crate::a::A;",
            "const S: &str = \"\\\"\"; use crate::a::A;",
        ] {
            let files = [
                ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n"),
                ("a.rs", "use crate::b::B;\npub struct A;\n"),
                ("b/mod.rs", "mod inner;\nuse crate::c::C;\npub struct B;\n"),
                ("b/inner.rs", back),
                ("c.rs", "pub struct C;\n"),
            ];
            let found = messages(&files, &[], 0);
            assert_eq!(found.len(), 1, "{back}: {found:?}");
            assert!(
                found[0]
                    .starts_with("crates/x/src/: modules import each other in a circle: a, b\n")
            );
            assert!(found[0].contains("a → b: crates/x/src/a.rs:1: b::B"), "{found:?}");
            assert!(found[0].contains("b → a: crates/x/src/b/inner.rs:"), "{found:?}");
        }
    }

    #[test]
    fn tests_comments_and_strings_close_no_circle() {
        for back in [
            "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
            "#[cfg(test)]\nuse crate::a::A;\n",
            "#[cfg(test)]\nmod tests;\n",
            "//! See [`A`](crate::a::A).\n/* crate::a::A */\n",
            "const S: &str = \"crate::a::A\";\n",
            "const S: &str = r#\"crate::\"a::A\"#;\n",
            "pub(in crate::a) struct B;\n",
            "use super::inner::C;\n",
        ] {
            let mut files = vec![
                ("lib.rs", "mod a;\nmod b;\n"),
                ("a.rs", "use crate::b::B;\npub struct A;\n"),
                ("b.rs", back),
            ];
            if back.contains("mod tests;") {
                files.push(("b/tests.rs", "use crate::a::A;\n"));
            }
            assert_eq!(messages(&files, &[], 0), [""; 0], "{back}");
        }
    }

    #[test]
    fn a_name_is_followed_to_the_module_that_defines_it() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("a.rs", "use crate::c::B as Other;\n"),
            ("b.rs", "pub struct B;\nuse crate::a::f;\n"),
            ("c.rs", "mod deep;\npub use self::deep::B;\n"),
            ("c/deep.rs", "pub use crate::b::*;\n"),
        ];
        let found = messages(&files, &[], 0);
        assert!(found[0].contains("a → b: crates/x/src/a.rs:1: c::B"), "{found:?}");
    }

    #[test]
    fn modules_of_one_folder_may_import_each_other() {
        let files = [
            ("lib.rs", "mod a;\n"),
            ("a/mod.rs", "mod one;\nmod two;\nuse self::one::One;\n"),
            ("a/one.rs", "use super::two::Two;\npub struct One;\n"),
            ("a/two.rs", "use super::one::One;\npub struct Two;\n"),
        ];
        assert_eq!(messages(&files, &[], 0), [""; 0]);
        // Unless they are in rows of their own.
        let found = messages(&files, &["a", "a/one", "a/two"], 2);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with("`a` must not import `a::one::One` of `a/one` above it"));
        assert!(found[1].ends_with("`a/one` must not import `a::two::Two` of `a/two` above it"));
    }

    #[test]
    fn an_import_from_above_and_a_module_without_a_row_are_found() {
        let files = [
            ("lib.rs", "mod low;\nmod high;\npub use high::H;\n"),
            ("low.rs", "use crate::H;\n"),
            ("high.rs", "pub struct H;\n"),
        ];
        let found = messages(&files, &["low", "high"], 0);
        let message = "`low` must not import `H` of `high` above it";
        assert_eq!(found, [format!("crates/x/src/low.rs:1: {message}")]);
        assert_eq!(messages(&files, &["high", "low"], 0), [""; 0]);
        let found = messages(&files, &["low"], 0);
        assert_eq!(found, ["crates/x/src/: `high` is in no row of FOLDERS: give it one"]);
    }

    #[test]
    fn a_number_of_modules_in_circles_may_only_shrink() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a.rs", "use crate::b::B;\npub struct A;\n"),
            ("b.rs", "use crate::a::A;\npub struct B;\n"),
        ];
        assert_eq!(messages(&files, &[], 2), [""; 0]);
        assert_eq!(messages(&files, &[], 1).len(), 1);
        let found = messages(&files, &[], 3);
        assert_eq!(found, ["crates/x/src/: 2 modules are in circles, not 3: lower CIRCLES"]);
    }

    #[test]
    fn the_table_names_crates_and_reasons() {
        for (krate, most, why) in CIRCLES {
            assert!(*most > 1 && !why.is_empty(), "{krate}");
            assert!(FOLDERS.iter().all(|(other, _)| other != krate), "{krate} is in both tables");
        }
    }
}
