//! Links of the documentation: each leads to a file that exists and, with `#…`, to a heading in it.
//! So do the pages that comments in the code name.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::tree::{File, Finding, Tree};

/// Relative links in Markdown, and pages named in comments, that do not exist.
#[must_use]
pub fn broken(tree: &Tree) -> Vec<Finding> {
    let mut findings = pages_of_comments(tree);
    for file in tree.with(&["md"]) {
        for (line, target) in targets(&file.text) {
            if let Some(message) = fault(tree, file, &target) {
                findings.push(Finding::new(&file.path, line, message));
            }
        }
    }
    findings
}

/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Pages below `docs/` that the book's table of contents does not name, or names twice.
#[must_use]
pub fn outside_the_book(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.files.iter().find(|file| file.path == SUMMARY) else {
        return vec![Finding::new(SUMMARY, 0, "is missing")];
    };
    let mut named = BTreeSet::new();
    let mut findings = Vec::new();
    for (line, target) in targets(&summary.text) {
        if !named.insert(format!("docs/{target}")) {
            findings.push(Finding::new(SUMMARY, line, format!("`{target}` is named twice")));
        }
    }
    let pages = tree.with(&["md"]).filter(|file| file.path.starts_with("docs/"));
    for page in pages.filter(|page| page.path != SUMMARY && !named.contains(&page.path)) {
        findings.push(Finding::new(SUMMARY, 0, format!("`{}` is not named", page.path)));
    }
    findings
}

/// Pages below `docs/` that Rust files name, and that do not exist.
fn pages_of_comments(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.with(&["rs"]).filter(|file| !file.path.starts_with("crates/tidy/")) {
        for (number, line) in file.lines() {
            let words = line.split(|c: char| c.is_whitespace() || "`()<>#\",;:".contains(c));
            for page in words.filter(|word| word.starts_with("docs/") && word.contains(".md")) {
                let page = page.trim_end_matches('.');
                if !tree.root.join(page).exists() {
                    let message = format!("`{page}` does not exist");
                    findings.push(Finding::new(&file.path, number, message));
                }
            }
        }
    }
    findings
}

/// The fault of a link, if it has one.
fn fault(tree: &Tree, from: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = if path.is_empty() {
        PathBuf::from(&from.path)
    } else {
        let below = Path::new(&from.path).parent().unwrap_or(Path::new("")).join(path);
        match normalized(&below) {
            Some(to) => to,
            None => return Some(format!("`{target}` leads out of the repository")),
        }
    };
    if !tree.root.join(&to).exists() {
        return Some(format!("`{target}` does not exist"));
    }
    let page = tree.files.iter().find(|file| Path::new(&file.path) == to && file.is("md"));
    match page {
        Some(page) if !anchor.is_empty() && !anchors(&page.text).contains(anchor) => {
            Some(format!("`{target}`: no such heading"))
        }
        _ => None,
    }
}

/// The path without `.` and `..`; `None` when it leads above the root.
fn normalized(path: &Path) -> Option<PathBuf> {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !result.pop() {
                    return None;
                }
            }
            other => result.push(other),
        }
    }
    Some(result)
}

/// The targets of `[text](target)` and `src="target"` outside code, with their lines.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, words) in prose(text) {
        for (open, close) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"'), ("href=\"", '"')] {
            for part in words.split(open).skip(1) {
                if let Some((target, _)) = part.split_once(close) {
                    found.push((line, target.split_whitespace().next().unwrap_or("").to_owned()));
                }
            }
        }
    }
    found
}

/// The lines outside fenced code, without `code` in them.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let outside: Vec<&str> = line.split('`').step_by(2).collect();
            lines.push((i + 1, outside.join("`")));
        }
    }
    lines
}

/// The anchors that a page's headings have: lower case, spaces as `-`, without punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if !fenced && line.starts_with('#') {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let keep = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
            let slug: String = words.chars().filter(keep).collect();
            found.insert(slug.replace(' ', "-"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Links from `docs/a.md` with the given text; only `docs/a.md` itself exists on disk, as this
    /// file does.
    fn faults(text: &str) -> Vec<String> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let files = vec![File::new("src/lib.rs", ""), File::new("src/a.md", text)];
        broken(&Tree { root, files }).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        assert_eq!(faults("see [it](missing.md)"), ["`missing.md` does not exist"]);
        assert_eq!(faults("<img src=\"no.svg\">"), ["`no.svg` does not exist"]);
        assert_eq!(faults("see [it](../../../x)"), ["`../../../x` leads out of the repository"]);
        assert!(faults("see [it](lib.rs) and [that](https://example.org/x)").is_empty());
    }

    #[test]
    fn a_page_that_a_comment_names_must_exist() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let files = vec![File::new("x.rs", "//! See `docs/gone.md#part`.\n")];
        let found = broken(&Tree { root, files });
        assert_eq!(found, [Finding::new("x.rs", 1, "`docs/gone.md` does not exist")]);
    }

    #[test]
    fn every_page_is_in_the_book_once() {
        let found = |summary: &str| {
            let page = |path: &str, text: &str| File::new(path, text);
            let pages = [page("docs/a.md", ""), page("docs/b/c.md", ""), page("README.md", "")];
            let files = [&pages[..], &[page(SUMMARY, summary)]].concat();
            outside_the_book(&Tree { root: PathBuf::new(), files })
        };
        assert!(found("- [A](a.md)\n  - [C](b/c.md)\n").is_empty());
        let message = "`docs/b/c.md` is not named";
        assert_eq!(found("- [A](a.md)\n"), [Finding::new(SUMMARY, 0, message)]);
        let twice = Finding::new(SUMMARY, 3, "`a.md` is named twice");
        assert_eq!(found("- [A](a.md)\n- [C](b/c.md)\n- [A](a.md)\n"), [twice]);
    }

    #[test]
    fn code_is_not_a_link() {
        assert!(faults("`[a](b)`\n```\n[a](b)\n```\n").is_empty());
    }

    #[test]
    fn headings_become_anchors() {
        let slugs = anchors("# S · Slash — late\n## `a` b?\n```\n# no\n```\n");
        assert_eq!(slugs.into_iter().collect::<Vec<_>>(), ["a-b", "s--slash--late"]);
    }
}
