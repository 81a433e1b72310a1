//! The plan for other programs: its operators and edges as JSON, or as a graph for Graphviz.

use std::fmt::Write;

use dataflow::job::{Edge, Operator, OperatorKind};
use serde_json::{Value, json};

use super::estimate::{Estimate, estimates};
use super::{Explain, Line, Section, flows, plain};
use crate::Workers;
use crate::text::statements::ExplainFormat;

/// Characters of an operator's name that are shown beside its numbers.
const NAME_CHARS_MAX: usize = 40;

impl Explain {
    /// The plan in a format, with an end of line. Sources are asked for their flows: files may be
    /// opened for it.
    pub fn show(&self, format: ExplainFormat) -> String {
        match format {
            ExplainFormat::Text => self.text(),
            ExplainFormat::Json => format!("{:#}\n", self.json()),
            ExplainFormat::Dot => self.dot(),
        }
    }

    /// The names of the operators, in the order in which a run counts them.
    pub fn operators(&self) -> Vec<String> {
        let name = |(id, operator): (usize, &Operator)| {
            let (kind, _) = kind_of(operator);
            let name = operator.name.trim();
            format!("{id} {kind} {}", name.strip_prefix(kind).unwrap_or(name).trim())
        };
        let named = self.operators.iter().enumerate().map(name);
        named.map(|name| name.trim_end().chars().take(NAME_CHARS_MAX).collect()).collect()
    }

    /// The plan for other programs.
    pub fn json(&self) -> Value {
        let estimates = estimates(&self.operators, self.workers);
        let operator = |(id, operator): (usize, &Operator)| {
            let edges = operator.inputs.iter().enumerate();
            let edge = |(input, edge): (usize, &Edge)| {
                json!({
                    "from": edge.from,
                    "input": input,
                    "step": edge.step.as_ref().map(|step| plain(&step.describe(), &[])),
                    "event_time": edge.timed,
                })
            };
            let edges = edges.flat_map(|(input, edges)| edges.iter().map(move |e| (input, e)));
            let inputs: Vec<Value> = edges.map(edge).collect();
            let (kind, detail) = kind_of(operator);
            json!({
                "id": id,
                "name": operator.name,
                "kind": kind,
                "detail": detail,
                "inputs": inputs,
                "state": estimates[id].iter().map(Estimate::json).collect::<Vec<_>>(),
            })
        };
        let need = |need: &super::Need| {
            json!({
                "name": need.name,
                "sum": need.sum,
                "bytes_per_worker": need.bytes,
                "worker_0_only": need.once,
            })
        };
        let Workers { nodes, per_node } = self.workers;
        json!({
            "nodes": nodes,
            "workers_per_node": per_node,
            "queries": self.sections.iter().map(|s| s.json(self.readers())).collect::<Vec<_>>(),
            "operators": self.operators.iter().enumerate().map(operator).collect::<Vec<_>>(),
            "memory": self.needs.iter().map(need).collect::<Vec<_>>(),
        })
    }

    fn dot(&self) -> String {
        let mut out = String::from("digraph job {\n  rankdir=LR;\n  node [shape=box];\n");
        for (id, operator) in self.operators.iter().enumerate() {
            let (kind, detail) = kind_of(operator);
            let label = [operator.name.as_str(), kind, &detail].join("\n");
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  o{id} [label={}];", quoted(label.trim_end()));
        }
        for (id, operator) in self.operators.iter().enumerate() {
            for edge in operator.inputs.iter().flatten() {
                let label = edge.step.as_ref().map(|step| plain(&step.describe(), &[]));
                let label = label.unwrap_or_default();
                let _ = writeln!(out, "  o{} -> o{id} [label={}];", edge.from, quoted(&label));
            }
        }
        out.push_str("}\n");
        out
    }
}

impl Section {
    fn json(&self, readers: u32) -> Value {
        let line = |line: &Line| match line {
            Line::Text(label, text) => json!({ "label": label, "text": text }),
            Line::Plan(text) => json!({ "label": "plan", "text": text }),
            Line::Source { shown, source, columns } => json!({
                "label": "source",
                "text": format!("{shown}: {}", flows(source.as_ref(), readers)),
                "reads": columns,
            }),
        };
        json!({ "name": self.title, "lines": self.lines.iter().map(line).collect::<Vec<_>>() })
    }
}

/// What an operator is, and how its rows meet.
fn kind_of(operator: &Operator) -> (&'static str, String) {
    match &operator.kind {
        OperatorKind::Source(input) => {
            let end = if input.source.bounded() { "bounded" } else { "never ending" };
            ("source", end.into())
        }
        OperatorKind::Aggregate(aggregation) => ("aggregate", aggregation.exchange.to_string()),
        OperatorKind::Keyed(keyed) => {
            let exchange = match operator.kind.broadcasts() {
                true => "broadcast".into(),
                false => keyed.exchange.to_string(),
            };
            ("keyed", format!("{exchange}, {}", keyed.operator.describe()))
        }
        OperatorKind::Lookup(lookup) => {
            ("lookup", format!("table {}, {}", lookup.table.table, lookup.describe()))
        }
        OperatorKind::Sink { .. } => ("sink", String::new()),
    }
}

/// A string of Graphviz.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_graphviz_are_escaped() {
        assert_eq!(quoted("a \"b\"\n\\c"), r#""a \"b\"\n\\c""#);
    }
}
