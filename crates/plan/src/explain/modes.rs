//! How groups are found, where `millstream.key_mode` says how.

use std::fmt::Write;

use dataflow::job::{Aggregation, OperatorKind};
use state::{GroupBy, KeyMode, KeyModes};

use super::{Explain, Ran};

const SET: &str = "SET millstream.key_mode";

/// The keys that a mode is for.
fn needs(mode: KeyMode) -> &'static str {
    match mode {
        KeyMode::One | KeyMode::Wide => "any keys",
        KeyMode::Tiny | KeyMode::Array | KeyMode::Ranges => {
            "one key of whole numbers, dates or times"
        }
        KeyMode::Hash => "one key of at most 64 bits",
        KeyMode::Packed => "keys of at most 256 bits together, with a bit for the NULL of each",
    }
}

/// The other requirements of a mode.
fn asks(mode: KeyMode) -> Option<&'static str> {
    match mode {
        KeyMode::Tiny => Some("a range of at most 512"),
        KeyMode::Array => Some("a range of at most 128 Mi that fits the memory for state"),
        KeyMode::Ranges => Some(
            "count(*) alone, rows of groups that have come before, not of neighbours, and memory \
             for their array and for rows that wait",
        ),
        KeyMode::One | KeyMode::Hash | KeyMode::Packed | KeyMode::Wide => None,
    }
}

/// The mode that is forced, if there are keys.
fn forced(group_by: &GroupBy) -> Option<KeyMode> {
    group_by.options.key_mode.filter(|_| !group_by.keys.is_empty())
}

/// The text of EXPLAIN about a forced mode.
pub(crate) fn text(group_by: &GroupBy) -> Option<String> {
    let mode = forced(group_by)?;
    let name = mode.name();
    Some(match (mode.suits(&group_by.keys), asks(mode)) {
        (true, None) => format!("{name}: {SET}"),
        (true, Some(asked)) => format!("{name}, which needs {asked}: {SET}"),
        (false, _) => format!("any, for {name} needs {}: {SET}", needs(mode)),
    })
}

impl Explain {
    /// Lines of groupings that never were in the mode that is forced.
    pub(super) fn modes_text(&self, ran: &Ran) -> String {
        let mut out = String::new();
        for ((at, operator), name) in self.operators.iter().enumerate().zip(self.operators()) {
            let OperatorKind::Aggregate(spec) = &operator.kind else { continue };
            if let Some(missed) = missed(spec, ran.key_modes(at)) {
                // Writing to a String cannot fail.
                let _ = writeln!(out, "  {name}: {missed}");
            }
        }
        out
    }
}

/// Why a grouping was not in the mode that is forced, if it was in others only.
fn missed(spec: &Aggregation, modes: KeyModes) -> Option<String> {
    let group_by = &spec.group_by;
    let mode = forced(group_by)?;
    let name = mode.name();
    if modes == KeyModes::default() || modes.names().contains(&name) {
        return None;
    }
    let asked = match (mode.suits(&group_by.keys), asks(mode)) {
        (true, Some(asked)) => asked,
        _ => needs(mode),
    };
    Some(format!("never by {name} as {SET} asks, which needs {asked}"))
}
