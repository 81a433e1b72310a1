//! Bounds that the documentation names: each is a constant of that name, with that value.
//!
//! A row of a table whose last cell is `` `crate::module::NAME_MAX` `` names a constant of the file
//! of that module. The number that the row's second cell begins with is its value.

use crate::tree::{Finding, Tree};

/// The page whose tables name bounds.
const PAGE: &str = "docs/configuration.md";

/// Names of bounds that no constant has, and numbers that are not its value.
#[must_use]
pub fn astray(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.files.iter().find(|file| file.path == PAGE) else {
        return vec![Finding::new(PAGE, 0, "is missing")];
    };
    let mut findings = Vec::new();
    let mut named = false;
    for (line, text) in page.lines() {
        let cells: Vec<&str> = text.trim_matches('|').split(" | ").map(str::trim).collect();
        let Some((last, [_, bound, ..])) = cells.split_last() else { continue };
        let Some(path) = last.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
            continue;
        };
        let Some((module, name)) = path.rsplit_once("::") else { continue };
        named = true;
        match value_of(tree, module, name) {
            None => {
                let message = format!("`{path}` is no constant");
                findings.push(Finding::new(PAGE, line, message));
            }
            Some(value) => {
                if let (Some(value), Some(stated)) = (number(&value), number(bound))
                    && value != stated
                {
                    let message = format!("`{path}` is {value}, and the page says {stated}");
                    findings.push(Finding::new(PAGE, line, message));
                }
            }
        }
    }
    if !named {
        findings.push(Finding::new(PAGE, 0, "names no bound"));
    }
    findings
}

/// The value of a constant, as it is written.
fn value_of(tree: &Tree, module: &str, name: &str) -> Option<String> {
    let (krate, path) = module.split_once("::").unwrap_or((module, ""));
    let stem = format!("crates/{krate}/src/{}", path.replace("::", "/"));
    let stem = stem.trim_end_matches('/');
    let files = [format!("{stem}.rs"), format!("{stem}/mod.rs"), format!("{stem}/lib.rs")];
    let file = tree.files.iter().find(|file| files.contains(&file.path))?;
    let declared = format!("const {name}: ");
    let line = file.text.lines().find(|line| line.contains(&declared))?;
    let (_, value) = line.split_once(" = ")?;
    Some(value.trim_end_matches(';').to_owned())
}

/// The number that a text begins with: `3_000`, `16 << 20`, `Duration::from_secs(5)` of the source,
/// `3,000`, `16 MiB`, `5 s` of the page. Nothing where it is made of other names.
fn number(text: &str) -> Option<u64> {
    let text = text.trim_start_matches("Duration::from_secs(");
    let end = text.find(|c: char| !c.is_ascii_digit() && !"_,".contains(c)).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let value: u64 = digits.replace(['_', ','], "").parse().ok()?;
    let shift = |bits: u32| value.checked_shl(bits);
    match rest.trim_start() {
        rest if rest.starts_with("KiB") => shift(10),
        rest if rest.starts_with("MiB") => shift(20),
        rest if rest.starts_with("GiB") => shift(30),
        rest => match rest.strip_prefix("<< ") {
            Some(bits) => shift(bits.parse().ok()?),
            None if rest.starts_with('*') => None,
            None => Some(value),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::File;

    fn tree(row: &str) -> Tree {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let source = "pub(crate) const ROWS_MAX: usize = 3_000;\nconst WAIT: u64 = OTHER;\n";
        let files = vec![file(PAGE, row), file("crates/plan/src/text/bounds.rs", source)];
        Tree { root: ".".into(), files }
    }

    #[test]
    fn a_name_and_a_value_that_went_astray_are_found() {
        let right = "| rows | 3,000 | `plan::text::bounds::ROWS_MAX` |\n";
        assert!(astray(&tree(right)).is_empty());
        assert!(astray(&tree("| time | 5 s | `plan::text::bounds::WAIT` |\n")).is_empty());
        for wrong in [right.replace("3,000", "10,000"), right.replace("ROWS", "COLUMNS")] {
            assert_eq!(astray(&tree(&wrong)).len(), 1, "{wrong}");
        }
        assert_eq!(astray(&tree("nothing\n")).len(), 1);
    }

    #[test]
    fn numbers_are_read_on_both_sides() {
        for (source, page) in [
            ("16 << 20", "16 MiB, and more"),
            ("2_000_000", "2,000,000"),
            ("Duration::from_secs(5)", "5 s"),
        ] {
            assert_eq!(number(source), number(page));
        }
        assert_eq!(number("OTHER"), None);
        assert_eq!(number("20 * OTHER"), None);
    }
}
