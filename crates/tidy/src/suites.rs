//! Which files of `tests/` are compiled.
//!
//! Where a crate names its test programs itself (`autotests = false`), cargo takes no other file of
//! `tests/`, and says nothing of one that belongs to no program: a suite that never runs.

use toml::{Table, Value};

use crate::tree::{File, Finding, Tree};

/// Files of `tests/` that no program of their crate is made of.
#[must_use]
pub fn outside_the_programs(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for manifest in tree.manifests() {
        // The rule of layers finds files that are not TOML.
        let Ok(table) = manifest.text.parse::<Table>() else { continue };
        let named = table.get("package").and_then(|package| package.get("autotests"));
        if named != Some(&Value::Boolean(false)) {
            continue;
        }
        let folder = manifest.path.trim_end_matches("Cargo.toml");
        let programs = programs(tree, folder, &table);
        for file in suites(tree, folder) {
            let name = file.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
            let module = format!("mod {name};");
            let has = |program: &&File| {
                program.path == file.path || program.lines().any(|(_, line)| line == module)
            };
            if !programs.iter().any(has) {
                let message = "no test program has this suite: enter it in `main.rs` beside it";
                findings.push(Finding::new(&file.path, 0, message));
            }
        }
    }
    findings
}

/// The roots of a crate's test programs.
fn programs<'a>(tree: &'a Tree, folder: &str, manifest: &Table) -> Vec<&'a File> {
    let tests = manifest.get("test").and_then(Value::as_array).into_iter().flatten();
    let paths: Vec<String> = tests
        .filter_map(|test| test.get("path").and_then(Value::as_str))
        .map(|path| format!("{folder}{path}"))
        .collect();
    tree.files.iter().filter(|file| paths.contains(&file.path)).collect()
}

/// The files of `tests/` of a crate, not those of folders below.
fn suites<'a>(tree: &'a Tree, folder: &str) -> impl Iterator<Item = &'a File> {
    let folder = format!("{folder}tests/");
    tree.with(&["rs"]).filter(move |file| {
        file.path.strip_prefix(&folder).is_some_and(|below| !below.contains('/'))
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn a_suite_that_no_program_has_is_found() {
        let manifest = |head: &str| {
            let test = "[[test]]\nname = \"all\"\npath = \"tests/main.rs\"";
            File::new("crates/x/Cargo.toml", &format!("[package]\nname = \"x\"\n{head}{test}"))
        };
        let files = |head: &str| {
            vec![
                manifest(head),
                File::new("crates/x/tests/main.rs", "//! All.\n\nmod joins;\n"),
                File::new("crates/x/tests/joins.rs", ""),
                File::new("crates/x/tests/joins/help.rs", ""),
                File::new("crates/x/tests/lost.rs", ""),
            ]
        };
        let found = |head: &str| {
            let tree = Tree { root: PathBuf::new(), files: files(head) };
            outside_the_programs(&tree).into_iter().map(|one| one.path).collect::<Vec<_>>()
        };
        assert_eq!(found("autotests = false\n"), ["crates/x/tests/lost.rs"]);
        assert_eq!(found(""), [""; 0]);
    }
}
