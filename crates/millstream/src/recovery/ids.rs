//! Names of operators that outlive edits of the SQL, other numbers of workers, and other exchanges.
//!
//! A name is made of the kind of an operator and of what its state means: keys, aggregates with
//! their types, windows, the table of a source or sink. Operators that are equal in all of that are
//! told apart by their order. Filters, projections, exchanges, key modes and workers are no part of
//! it.

use std::collections::HashMap;

use dataflow::job::{JobGraph, Operator, OperatorKind};

/// Properties, as EXPLAIN calls them, that say what state means.
const MEANING: [&str; 12] = [
    "window",
    "group by",
    "aggregates",
    "keys",
    "on",
    "rank",
    "frame",
    "order by",
    "partition by",
    "gap",
    "between",
    "versions",
];

/// An operator as the chain knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OperatorId {
    /// Its name.
    pub(crate) id: String,
    /// The operator, for a reader.
    pub(crate) text: String,
}

/// The names of the operators of a job, by their numbers.
pub(crate) fn operator_ids(job: &JobGraph) -> Vec<OperatorId> {
    let mut equal = HashMap::<String, u32>::new();
    let each = job.operators.iter().map(|operator| {
        let (kind, text) = text_of(operator);
        let nth = equal.entry(text.clone()).or_default();
        *nth += 1;
        let id = format!("{}-{:016x}-{nth}", kind.to_lowercase(), fnv(text.as_bytes()));
        OperatorId { id, text }
    });
    each.collect()
}

/// The kind of an operator, and what its state means.
fn text_of(operator: &Operator) -> (&'static str, String) {
    let description = operator.describe(None);
    let kind = match operator.kind {
        // Its name in EXPLAIN depends on what is fused with it.
        OperatorKind::Source(_) => "Source",
        OperatorKind::Sink(_) => "Sink",
        _ => description.name,
    };
    let mut text = kind.to_owned();
    if let Some(table) = &operator.labels.table {
        text += &format!(" {table}");
    }
    for (name, value) in &description.properties {
        if MEANING.contains(name) {
            text += &format!(", {name} {value}");
        }
    }
    (kind, text)
}

/// A hash that is the same in every release and on every machine (FNV-1a).
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
