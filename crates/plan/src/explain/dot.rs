//! The plan as a graph for Graphviz: edges lead as rows do.

use std::fmt::Write;

use super::text::{exchange, headline};
use super::tree::{PlanEdge, PlanNode};
use super::{Explain, OrderedJoins};
use crate::text::units::count;

impl Explain {
    pub(super) fn dot(&self) -> String {
        let tree = self.tree();
        let mut out = String::from("digraph job {\n  rankdir=BT;\n  node [shape=box];\n");
        // The join orders of a statement are shown at its first sink.
        let orders_of = |id: usize| {
            let of =
                tree.statements.iter().filter(|statement| statement.roots.first() == Some(&id));
            of.flat_map(|statement| &statement.orders).collect::<Vec<_>>()
        };
        let recovery = self.recovery();
        for (id, node) in tree.nodes.iter().enumerate() {
            let mut label = label(node, &orders_of(id));
            let fates = recovery.as_ref().map(|recovery| &recovery.operators);
            if let Some(fate) = node.operator.and_then(|at| fates?.get(at)) {
                label += &format!("\nrecovery: {fate}");
            }
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  o{id} [label={}];", quoted(&label));
        }
        for (id, node) in tree.nodes.iter().enumerate() {
            for edge in &node.inputs {
                let label = quoted(&edge_label(edge));
                let _ = writeln!(out, "  o{} -> o{id} [label={label}];", edge.from);
            }
        }
        out.push_str("}\n");
        out
    }
}

fn label(node: &PlanNode, orders: &[&OrderedJoins]) -> String {
    let properties = node.properties.iter().map(|(name, text)| format!("{name}: {text}"));
    let orders = orders.iter().map(|order| format!("order: {order}"));
    let lines = [headline(node)].into_iter().chain(orders).chain(properties);
    let rows = node.rows_estimate.map(|rows| format!("emits: about {} rows", count(rows)));
    let lines = lines.chain(rows).chain(node.plan.iter().cloned());
    lines.collect::<Vec<_>>().join("\n")
}

fn edge_label(edge: &PlanEdge) -> String {
    let steps = edge.steps.iter().map(|(name, text)| format!("{name} {text}"));
    let lines: Vec<_> = steps.chain([exchange(edge)]).collect();
    lines.join("\n")
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
