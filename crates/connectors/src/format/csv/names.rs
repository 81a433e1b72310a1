//! The names of a header, each once: of columns that have one name, the later ones are called
//! `NAME_1`, `NAME_2`, …, as DuckDB calls them.

use std::collections::{BTreeSet, HashMap, HashSet};

use dataflow::error::ConnectorError;

/// Columns by their names.
pub(super) struct ColumnNames {
    names: Vec<String>,
    repeats: Vec<Repeat>,
}

/// Two columns that have one name in the header, by their positions.
struct Repeat {
    first: usize,
    again: usize,
}

impl ColumnNames {
    pub(super) fn of(mut names: Vec<String>) -> Self {
        let mut firsts = HashMap::<&str, usize>::with_capacity(names.len());
        let mut repeats = Vec::new();
        for (again, name) in names.iter().enumerate() {
            let first = *firsts.entry(name).or_insert(again);
            if first < again {
                repeats.push(Repeat { first, again });
            }
        }
        if !repeats.is_empty() {
            let mut taken: HashSet<String> = names.iter().cloned().collect();
            let mut numbers = HashMap::<usize, usize>::new();
            for Repeat { first, again } in &repeats {
                let number = numbers.entry(*first).or_insert(0);
                names[*again] = loop {
                    *number += 1;
                    let name = format!("{}_{number}", names[*first]);
                    if taken.insert(name.clone()) {
                        break name;
                    }
                };
            }
        }
        Self { names, repeats }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Refuses a table that reads the first of several columns of one name and does not name the
    /// others: nothing says that it is the one which was meant.
    ///
    /// # Errors
    /// The column, and what the other one is called.
    pub(super) fn check(&self, found: &[Option<usize>], place: &str) -> Result<(), ConnectorError> {
        if self.repeats.is_empty() {
            return Ok(());
        }
        let found: BTreeSet<usize> = found.iter().flatten().copied().collect();
        let is_unclear =
            |repeat: &&Repeat| found.contains(&repeat.first) && !found.contains(&repeat.again);
        let Some(Repeat { first, again }) = self.repeats.iter().find(is_unclear) else {
            return Ok(());
        };
        Err(ConnectorError::Column {
            column: self.names[*first].clone(),
            message: format!("{place} has two columns of this name"),
            hint: Some(format!(
                "the second one is called '{}': declare it too",
                self.names[*again]
            )),
        })
    }
}
