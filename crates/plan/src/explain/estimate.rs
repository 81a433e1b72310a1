//! How large the state of each operator may become, as EXPLAIN shows it.

use std::fmt::Write;

use dataflow::job::{Deployment, Operator, StateEstimate, Statistics};
use serde_json::{Value, json};

use crate::Workers;
use crate::text::units::human;

/// The text of an estimate.
fn text(estimate: &StateEstimate) -> String {
    let StateEstimate { unit, which, each_bytes, count_max, copies } = estimate;
    let each = human(*each_bytes);
    let mut text = match count_max {
        Some(most) => {
            let plural = if *most == 1 { "" } else { "s" };
            format!("at most {most} {unit}{plural}{which} x {each}")
        }
        None => format!("unknown number of {unit}s{which} x {each}"),
    };
    if copies.count > 1 {
        // Writing to a String cannot fail.
        let _ = write!(text, " x {} {}", copies.count, copies.by);
    }
    text
}

pub(super) fn json(estimate: &StateEstimate) -> Value {
    json!({
        "what": format!("{}s{}", estimate.unit, estimate.which),
        "bytes_each": estimate.each_bytes,
        "at_most": estimate.count_max,
        "copies": estimate.copies.count,
        "bytes_at_most": estimate.bytes_max(),
    })
}

/// The lines of all operators that have state: their names, what they hold, and how much that is.
pub(super) fn lines(estimates: &[Vec<StateEstimate>], names: &[String]) -> Vec<[String; 3]> {
    let parts = estimates.iter().zip(names);
    let parts = parts.flat_map(|(parts, name)| parts.iter().map(move |part| (name, part)));
    parts
        .map(|(name, part)| {
            let bytes = part.bytes_max().map_or_else(|| "unknown".into(), human);
            [name.clone(), text(part), bytes]
        })
        .collect()
}

/// The state of each operator. Sources are asked for their splits.
pub(super) fn estimates(operators: &[Operator], workers: Workers) -> Vec<Vec<StateEstimate>> {
    let deployment = Deployment { workers: workers.total(), processes: workers.nodes };
    let emitted = Statistics::of(operators, deployment.workers);
    let parts = |operator: &Operator| {
        let inputs = operator.inputs.iter().map(|edges| Statistics::along(edges, &emitted));
        operator.spec().state(&inputs.collect::<Vec<_>>(), deployment)
    };
    operators.iter().map(parts).collect()
}
