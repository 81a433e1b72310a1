//! Rules on the text of source files: sizes, heads, words that must not stand in them.

use crate::tree::{File, Finding, Tree};

/// Most lines of a source file, tests included.
pub const FILE_LINES_MAX: usize = 1000;
/// Most lines of production code in a source file, where [`LONG_FILES`] does not explain it.
pub const CODE_LINES_MAX: usize = 600;
/// Most columns of a line of Rust.
pub const COLUMNS_MAX: usize = 100;

/// Files with more than [`CODE_LINES_MAX`] lines of production code, and why.
pub const LONG_FILES: &[(&str, &str)] = &[];

/// Where `unsafe` may stand: crates whose memory other processes write, single files of a measured
/// inner loop, and the border to other languages.
pub const UNSAFE_ALLOWED: &[&str] = &[
    "bench/src/recovery/cpu.rs",
    "bench/src/tsc.rs",
    "bench/src/wire/raw.rs",
    "crates/fabric/",
    "crates/channel/",
    "crates/verbs-sim/",
    "crates/state/src/gather.rs",
    "crates/state/src/kernel.rs",
    "crates/state/src/fused.rs",
    "crates/state/src/vector.rs",
    "crates/state/src/vector/pack.rs",
    "crates/state/src/vector/neon.rs",
    "crates/state/examples/",
    "crates/connectors/src/format/csv/blocks.rs",
    // An option of the allocator, which is C.
    "crates/cli/src/allocator.rs",
    // Messages in the memory of Kafka's client, which is C.
    "crates/kafka/src/queue.rs",
    // Structures of C, which other libraries of the process read and write.
    "crates/python/src/capsules.rs",
];

/// Macros that mark unfinished work, and attributes that hide it.
const UNFINISHED: &[&str] = &["todo!(", "unimplemented!(", "dbg!(", "#[ignore"];

/// Files longer than their limits, and explanations that are no longer needed.
#[must_use]
pub fn long_files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with(&["rs"]) {
        let explained = LONG_FILES.iter().any(|(path, _)| *path == file.path);
        let code = code_lines(file);
        let lines = file.text.lines().count();
        if lines > FILE_LINES_MAX {
            let message = format!("{lines} lines, at most {FILE_LINES_MAX} are allowed: split it");
            findings.push(Finding::new(&file.path, 0, message));
        } else if code > CODE_LINES_MAX && !explained {
            let message = format!("{code} lines of code, more than {CODE_LINES_MAX}: split it");
            findings.push(Finding::new(&file.path, 0, message));
        } else if code <= CODE_LINES_MAX && explained {
            let message = "short enough now: take it out of LONG_FILES";
            findings.push(Finding::new(&file.path, 0, message));
        }
    }
    for (path, _) in LONG_FILES {
        if !tree.files.iter().any(|file| file.path == *path) {
            findings.push(Finding::new(path, 0, "is gone: take it out of LONG_FILES"));
        }
    }
    findings
}

/// Lines before the tests of the file; none in a file of tests.
fn code_lines(file: &File) -> usize {
    if is_test(file) {
        return 0;
    }
    let lines: Vec<&str> = file.text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
    });
    tests.unwrap_or(lines.len())
}

fn is_test(file: &File) -> bool {
    file.path.ends_with("/tests.rs") || file.path.contains("/tests/")
}

/// Lines with more than [`COLUMNS_MAX`] columns. A line of one word, such as an address, may be
/// longer.
#[must_use]
pub fn long_lines(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with(&["rs"]) {
        for (number, line) in file.lines() {
            let columns = line.chars().count();
            let words = line.trim().trim_start_matches(['/', '!']).split_whitespace().count();
            if columns > COLUMNS_MAX && words > 1 {
                let message = format!("{columns} columns, more than {COLUMNS_MAX}");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// Rust files that do not begin by saying what they are for.
#[must_use]
pub fn headless(tree: &Tree) -> Vec<Finding> {
    let without_head = |file: &&File| !file.text.starts_with("//! ") && !is_test(file);
    let say = |file: &File| Finding::new(&file.path, 1, "begins without a `//!` head");
    tree.with(&["rs"]).filter(without_head).map(say).collect()
}

/// Unfinished work.
#[must_use]
pub fn unfinished(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with(&["rs"]).filter(|file| !is_tidy(file)) {
        for (number, line) in file.lines() {
            let code = without_comment(line);
            for mark in UNFINISHED.iter().filter(|mark| code.contains(**mark)) {
                let message = format!("`{mark}` is not for the main branch");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// `unsafe` outside [`UNSAFE_ALLOWED`], and crates that do not have the compiler refuse it.
#[must_use]
pub fn stray_unsafe(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let allowed = |file: &&File| UNSAFE_ALLOWED.iter().any(|at| file.path.starts_with(*at));
    for file in tree.with(&["rs"]).filter(|file| !allowed(file) && !is_tidy(file)) {
        for (number, line) in file.lines() {
            let code = without_comment(line);
            let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.any(|word| word == "unsafe") {
                findings.push(Finding::new(&file.path, number, "`unsafe` does not belong here"));
            }
        }
        let is_root = file.path.ends_with("/src/lib.rs") || file.path.ends_with("/src/main.rs");
        let refuses = ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"];
        if is_root && !refuses.iter().any(|refusal| file.text.contains(refusal)) {
            findings.push(Finding::new(&file.path, 1, "`#![forbid(unsafe_code)]` is missing"));
        }
    }
    findings
}

/// Paths that exist on one machine only.
#[must_use]
pub fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !is_tidy(file) && !file.is("svg")) {
        for (number, line) in file.lines() {
            if let Some(home) = ["/home/", "/root/", "/work/", "/Users/"]
                .into_iter()
                .find(|home| mentions_root(line, home))
            {
                let message = format!("a path below `{home}` exists on one machine only");
                findings.push(Finding::new(&file.path, number, message));
            }
        }
    }
    findings
}

/// Whether an absolute path below `home` stands in the line: not the middle of a longer path.
fn mentions_root(line: &str, home: &str) -> bool {
    line.match_indices(home).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !"._-/})*".contains(c))
    })
}

fn is_tidy(file: &File) -> bool {
    file.path.starts_with("crates/tidy/")
}

/// The line up to `//`. A `//` within a string ends it too: the rules above look for words that do
/// not follow one.
fn without_comment(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn tree(path: &str, text: &str) -> Tree {
        Tree { root: PathBuf::new(), files: vec![File::new(path, text)] }
    }

    #[test]
    fn a_long_file_is_found_and_its_tests_do_not_count() {
        let code = "fn f() {}\n".repeat(CODE_LINES_MAX);
        assert!(long_files(&tree("crates/x/src/a.rs", &code)).is_empty());
        assert_eq!(long_files(&tree("crates/x/src/a.rs", &format!("{code}//\n"))).len(), 1);
        let with_tests = format!("{code}#[cfg(test)]\nmod tests {{\n}}\n");
        assert!(long_files(&tree("crates/x/src/a.rs", &with_tests)).is_empty());
        let tests = "fn f() {}\n".repeat(FILE_LINES_MAX);
        assert!(long_files(&tree("crates/x/src/a/tests.rs", &tests)).is_empty());
        assert_eq!(long_files(&tree("crates/x/tests/a.rs", &format!("{tests}//\n"))).len(), 1);
    }

    #[test]
    fn a_long_line_is_found_and_columns_are_characters() {
        let fits = "é".repeat(50) + " " + &"é".repeat(49);
        assert!(long_lines(&tree("a.rs", &fits)).is_empty());
        assert_eq!(long_lines(&tree("a.rs", &format!("{fits}é"))).len(), 1);
        let address = format!("//! <https://example.org/{}>", "x".repeat(100));
        assert!(long_lines(&tree("a.rs", &address)).is_empty());
    }

    #[test]
    fn a_file_without_head_is_found() {
        assert_eq!(headless(&tree("crates/x/src/a.rs", "use std::fmt;\n")).len(), 1);
        assert!(headless(&tree("crates/x/src/a.rs", "//! What it is for.\n")).is_empty());
        assert!(headless(&tree("crates/x/src/a/tests.rs", "use super::*;\n")).is_empty());
    }

    #[test]
    fn unfinished_work_is_found_outside_comments() {
        for text in ["    todo!()", "#[ignore]\nfn f() {}", "let x = dbg!(1);", "unimplemented!()"]
        {
            assert_eq!(unfinished(&tree("a.rs", text)).len(), 1, "{text}");
        }
        assert!(unfinished(&tree("a.rs", "// no todo!() here")).is_empty());
    }

    #[test]
    fn unsafe_is_found_where_it_does_not_belong() {
        let block = "fn f() { unsafe { g() } }";
        assert_eq!(stray_unsafe(&tree("crates/plan/src/a.rs", block)).len(), 1);
        assert!(stray_unsafe(&tree("crates/fabric/src/a.rs", block)).is_empty());
        assert_eq!(stray_unsafe(&tree("crates/plan/src/lib.rs", "//! Head.\n")).len(), 1);
        let forbids = "//! Head.\n#![forbid(unsafe_code)]\n// unsafe\n";
        assert!(stray_unsafe(&tree("crates/plan/src/lib.rs", forbids)).is_empty());
    }

    #[test]
    fn a_machines_path_is_found() {
        let found = |text: &str| machine_paths(&tree("a.sh", text)).len();
        assert_eq!(found("cd /home/anna/x"), 1);
        assert_eq!(found("DIR=\"/work/main\""), 1);
        assert_eq!(found("cd $HOME/work/x"), 0);
        assert_eq!(found("see docs/work/x and https://example.org/home/x"), 0);
    }
}
