//! How groups are found, where `millstream.key_mode` says how.

use std::fmt::Write;

use dataflow::job::{Aggregation, OperatorKind};
use state::{GroupBy, KeyMode, KeyModes};

use super::{Explain, Ran};

const SET: &str = "SET millstream.key_mode";

/// What keys a mode is for.
fn needs(mode: KeyMode) -> &'static str {
    match mode {
        KeyMode::One => "a grouping without keys",
        KeyMode::Tiny | KeyMode::Array | KeyMode::Ranges => {
            "one key of whole numbers, dates or times"
        }
        KeyMode::Hash => "one key of at most 64 bits",
        KeyMode::Packed => "keys of at most 256 bits together, with a bit for the NULL of each",
        KeyMode::Wide => "a key",
    }
}

/// What a mode asks of the values of keys that it is for.
fn allows(mode: KeyMode) -> Option<&'static str> {
    match mode {
        KeyMode::Tiny => Some("a range below 1,024"),
        KeyMode::Array => Some("a range that fits the memory for state"),
        KeyMode::Ranges => Some("a range that fits the memory for state, and count(*) alone"),
        KeyMode::One | KeyMode::Hash | KeyMode::Packed | KeyMode::Wide => None,
    }
}

/// What EXPLAIN says of a mode that is forced.
pub(crate) fn forced(group_by: &GroupBy) -> Option<String> {
    let mode = group_by.options.key_mode.filter(|_| !group_by.keys.is_empty())?;
    let name = mode.name();
    Some(match (mode.suits(&group_by.keys), allows(mode)) {
        (true, None) => format!("{name}: {SET}"),
        (true, Some(range)) => format!("{name}, if the keys have {range}: {SET}"),
        (false, _) => format!("any, for {name} needs {}: {SET}", needs(mode)),
    })
}

impl Explain {
    /// Lines of groupings that never were in the mode that is forced.
    pub(super) fn modes_text(&self, ran: &Ran) -> String {
        let mut out = String::new();
        for ((at, operator), name) in self.operators.iter().enumerate().zip(self.operators()) {
            let OperatorKind::Aggregate(spec) = &operator.kind else { continue };
            let of_this = ran.operators.iter().filter(|one| one.operator == at);
            let modes = of_this.fold(KeyModes::default(), |all, one| all.union(one.key_modes));
            if let Some(missed) = missed(spec, modes) {
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
    let mode = group_by.options.key_mode.filter(|_| !group_by.keys.is_empty())?;
    let name = mode.name();
    if modes == KeyModes::default() || modes.names().contains(&name) {
        return None;
    }
    let asked = match (mode.suits(&group_by.keys), allows(mode)) {
        (true, Some(range)) => range,
        _ => needs(mode),
    };
    Some(format!("never by {name} as {SET} asks, which needs {asked}"))
}
