//! Whether the page of mechanisms says how much of each there is.
//!
//! A row of `docs/design/papers.md` ends with what the product does today: `yes`, `part` or `–`,
//! and where it is a part, with what is missing behind the word `Missing:`.

use crate::tree::{Finding, Tree};

/// The page.
const PAGE: &str = "docs/design/papers.md";

/// The words of the last column.
const TODAY: [&str; 3] = ["yes", "part", "–"];

/// Mechanisms of which the page does not say whether they are there, or what of them is missing.
#[must_use]
pub fn untold(tree: &Tree) -> Vec<Finding> {
    let page = tree.files.iter().filter(|file| file.path == PAGE);
    let rows = page.flat_map(|file| file.lines());
    let wrong = rows.filter_map(|(number, line)| {
        let (id, today) = row(line)?;
        let word = TODAY.into_iter().find(|word| today.starts_with(word));
        let tells = today.contains("Missing: ");
        let message = match word {
            None => format!("{id} begins with yes, part or –"),
            Some("part") if !tells => format!("{id} is a part: say what is missing, `Missing: …`"),
            Some("yes") if tells => format!("{id} is there, and something is missing: a part"),
            Some(_) => return None,
        };
        Some(Finding::new(PAGE, number, message))
    });
    wrong.collect()
}

/// The id of a mechanism and what there is of it.
fn row(line: &str) -> Option<(&str, &str)> {
    let (id, rest) = line.strip_prefix("| ")?.split_once(" | ")?;
    let (kind, number) = id.split_at_checked(1)?;
    let is_id = "SWIAQ".contains(kind) && number.parse::<u32>().is_ok();
    let (_, today) = rest.strip_suffix(" |")?.rsplit_once(" | ")?;
    is_id.then_some((id, today))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::tree::File;

    #[test]
    fn a_mechanism_that_says_too_little_is_found() {
        let found = |rows: &str| {
            let files = vec![File::new(PAGE, rows), File::new("docs/sql.md", "| S1 | x | y |")];
            let tree = Tree { root: PathBuf::new(), files };
            untold(&tree).into_iter().map(|one| one.line).collect::<Vec<_>>()
        };
        let told = "| id | mechanism | today |\n|---|---|---|\n| S1 | **A ring**. | yes: here |\n\
                    | W12 | x | part: here. Missing: there |\n| Q10 | a | – |\n";
        assert_eq!(found(told), [0; 0]);
        let untold = "| S1 | a | done |\n| W2 | a | part: of it |\n| I3 | a | yes. Missing: b |\n\
                      | A4 | a | `--fabric mpi` |\n";
        assert_eq!(found(untold), [1, 2, 3, 4]);
    }
}
