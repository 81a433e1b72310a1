//! How large the state of each operator may become, from what is known before the start: the rows
//! of bounded tables, the bounds of their columns, the widths of rows and groups.

use std::fmt::Write;

use arrow::datatypes::DataType;
use dataflow::cost::{INDEX_BYTES, VARIABLE_BYTES, element_bytes, value_bytes};
use dataflow::job::{Aggregation, Exchange, Kept, Keyed, Lead, Operator, OperatorKind};
use dataflow::known::{Known, row_bytes};
use dataflow::lookup::Lookup;
use serde_json::{Value, json};

use super::describe::span;
use crate::Workers;
use crate::text::units::human;

/// Of what is held in one place, or in parts.
const ONCE: (u64, &str) = (1, "");

/// A part of an operator's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Estimate {
    /// The counted things, in the singular, and which of them are held.
    what: (&'static str, String),
    /// Bytes of each.
    each: u64,
    /// How many there are at most over all workers; `None` where that is not known beforehand.
    most: Option<u64>,
    /// How many times all of them are held, and by what.
    copies: (u64, &'static str),
}

impl Estimate {
    /// Bytes over all workers, at most.
    fn bytes(&self) -> Option<u64> {
        Some(self.most?.saturating_mul(self.each).saturating_mul(self.copies.0))
    }

    fn text(&self) -> String {
        let Self { what: (what, which), each, most, copies: (copies, at) } = self;
        let mut text = match most {
            Some(most) => {
                let plural = if *most == 1 { "" } else { "s" };
                format!("at most {most} {what}{plural}{which} x {}", human(*each))
            }
            None => format!("unknown number of {what}s{which} x {}", human(*each)),
        };
        if *copies > 1 {
            // Writing to a String cannot fail.
            let _ = write!(text, " x {copies} {at}");
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "what": format!("{}s{}", self.what.0, self.what.1),
            "bytes_each": self.each,
            "at_most": self.most,
            "copies": self.copies.0,
            "bytes_at_most": self.bytes(),
        })
    }
}

/// The lines of all operators that have state: their names, what they hold, and how much that is.
pub(super) fn lines(estimates: &[Vec<Estimate>], names: &[String]) -> Vec<[String; 3]> {
    let parts = estimates.iter().zip(names);
    let parts = parts.flat_map(|(parts, name)| parts.iter().map(move |part| (name, part)));
    parts
        .map(|(name, part)| {
            let bytes = part.bytes().map_or_else(|| "unknown".into(), human);
            [name.clone(), part.text(), bytes]
        })
        .collect()
}

/// The state of each operator. Sources are asked for their flows.
pub(super) fn estimates(operators: &[Operator], workers: Workers) -> Vec<Vec<Estimate>> {
    let all = workers.total();
    let given = Known::of(operators, all);
    let parts = |operator: &Operator| {
        let inputs = operator.inputs.iter().map(|edges| Known::along(edges, &given));
        let inputs: Vec<Known> = inputs.collect();
        match &operator.kind {
            OperatorKind::Aggregate(aggregation) => groups(aggregation, &inputs[0], all),
            OperatorKind::Keyed(keyed) => {
                let inputs = keyed.inputs.iter().zip(&inputs).enumerate();
                inputs.filter_map(|(at, (_, rows))| held(keyed, at, rows, all)).collect()
            }
            OperatorKind::Lookup(lookup) => {
                let source = Known::of_source(lookup.table.source.as_ref(), all);
                vec![of_table(lookup, &source.behind(lookup.step.as_deref()), workers)]
            }
            OperatorKind::Source(_) | OperatorKind::Sink { .. } => vec![],
        }
    };
    operators.iter().map(parts).collect()
}

/// The lesser of what is known.
fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// The groups of an aggregation.
fn groups(aggregation: &Aggregation, rows: &Known, workers: u32) -> Vec<Estimate> {
    let group_by = &aggregation.group_by;
    let types = group_by.keys.iter().cloned().chain(group_by.state_types());
    let (lists, fixed): (Vec<_>, Vec<_>) = types.partition(DataType::is_nested);
    let index = if group_by.keys.is_empty() { 0 } else { INDEX_BYTES };
    let lists_bytes = VARIABLE_BYTES * lists.len() as u64;
    let each = index + fixed.iter().map(value_bytes).sum::<u64>() + lists_bytes;
    let groups = rows.groups_max(aggregation);
    // Each worker has a part of what it has read, the leaders have the whole.
    let workers = u64::from(workers);
    let kept = match aggregation.exchange {
        Exchange::Merge if workers > 1 => groups.map(|groups| {
            let parts = groups.saturating_mul(workers);
            groups.saturating_add(rows.rows_max.map_or(parts, |rows| rows.min(parts)))
        }),
        _ => groups,
    };
    let which = match &aggregation.window {
        Some(_) => " of open windows",
        None => "",
    };
    let mut parts =
        vec![Estimate { what: ("group", which.into()), each, most: kept, copies: ONCE }];
    if !lists.is_empty() {
        let each = lists.iter().map(element_bytes).sum();
        let what = ("value", format!("{which} that are kept one by one"));
        parts.push(Estimate { what, each, most: rows.rows_max, copies: ONCE });
    }
    parts
}

/// The rows of an input that a keyed operator holds.
fn held(keyed: &Keyed, at: usize, rows: &Known, workers: u32) -> Option<Estimate> {
    let input = &keyed.inputs[at];
    let kept = keyed.operator.keeps(at);
    let of_keys = |count: u64| Some(rows.values_max(&input.keys)?.saturating_mul(count));
    let (which, most) = match kept {
        Some(Kept::Passing) => return None,
        None => (String::new(), rows.rows_max),
        Some(Kept::Waiting) => (" not yet due".into(), rows.rows_max),
        Some(Kept::PerKey(1)) => {
            (", the newest of each key".into(), least(of_keys(1), rows.rows_max))
        }
        Some(Kept::PerKey(count)) => {
            (format!(", the newest {count} of each key"), least(of_keys(count), rows.rows_max))
        }
        Some(Kept::Span(ticks)) => {
            (format!(" within {}", span(ticks, &time_type(keyed, at))), rows.rows_max)
        }
        Some(Kept::Window) => (" of open windows".into(), rows.rows_max),
        Some(Kept::Session) => (" of open sessions".into(), rows.rows_max),
    };
    let of_input = match keyed.inputs.len() {
        1 => String::new(),
        _ => format!(" of input {at}"),
    };
    let copies = if input.lead == Lead::ToAll { (workers.into(), "workers") } else { ONCE };
    let what = ("row", format!("{of_input}{which}"));
    Some(Estimate { what, each: row_bytes(&input.schema), most, copies })
}

/// The type of an input's time.
fn time_type(keyed: &Keyed, at: usize) -> DataType {
    let schema = &keyed.inputs[at].schema;
    let is_time = |of: &&DataType| matches!(of, DataType::Timestamp(..));
    let known = keyed.inputs[at].time.map(|time| schema.field(time).data_type());
    let any = || schema.fields().iter().map(|field| field.data_type()).find(is_time);
    known.or_else(any).cloned().unwrap_or(DataType::Null)
}

/// The table of a join that every node has whole.
fn of_table(lookup: &Lookup, table: &Known, workers: Workers) -> Estimate {
    let step = lookup.step.as_ref();
    let schema = step.map_or_else(|| lookup.table.source.schema(), |step| step.schema());
    let what = ("row", format!(" of {}", lookup.table.table));
    let copies = (workers.nodes.into(), "nodes");
    Estimate { what, each: row_bytes(&schema) + INDEX_BYTES, most: table.rows_max, copies }
}
