//! The plan as text: a tree with the sink of a statement at the top and its tables at the bottom.
//!
//! ```text
//! Sink hourly (file) [2]
//! └─ gather: worker 0 takes all rows             the exchange into the operator above, and why
//!    Project window_start, origin, count(*)      what is done with rows in front of it
//!    WindowAggregate [1]                         the operator that emits them, with its number
//!    └─ …
//! ```

use std::fmt::Write;

use dataflow::job::Cost;

use super::tree::{PlanEdge, PlanNode, PlanTree};
use super::{Explain, estimate};
use crate::text::units::{count, human};

impl Explain {
    /// The plan as text. Sources are asked for their flows: files may be opened for it.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.tree().write(&mut out);
        self.write_state(&mut out);
        self.write_recovery(&mut out);
        self.write_memory(&mut out);
        out
    }

    fn write_state(&self, out: &mut String) {
        let estimates = estimate::estimates(&self.operators, self.workers);
        let lines = estimate::lines(&estimates, &self.operators());
        if lines.is_empty() {
            return;
        }
        let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max();
        let [name, text] = [width(0).unwrap_or(0), width(1).unwrap_or(0)];
        // Writing to a String cannot fail.
        let _ = writeln!(out, "state, estimated over all workers");
        for [operator, holds, bytes] in &lines {
            let _ = writeln!(out, "  {operator:<name$}  {holds:<text$} {bytes:>10}");
        }
        out.push('\n');
    }
}

impl PlanTree {
    /// Each statement with its tree, and an empty line behind it.
    fn write(&self, out: &mut String) {
        let mut printer = Printer { tree: self, seen: vec![false; self.nodes.len()], out };
        for statement in &self.statements {
            printer.line("", &statement.name);
            for order in &statement.orders {
                printer.line("   ", &format!("order: {order}"));
            }
            for &root in &statement.roots {
                printer.node(root, "");
            }
            printer.line("", "");
        }
    }
}

struct Printer<'a> {
    tree: &'a PlanTree,
    /// Which nodes were printed.
    seen: Vec<bool>,
    out: &'a mut String,
}

impl Printer<'_> {
    fn line(&mut self, prefix: &str, text: &str) {
        let line = [prefix, text].concat();
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    /// A node with what is below it; all lines begin with `prefix`.
    fn node(&mut self, at: usize, prefix: &str) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        if std::mem::replace(&mut self.seen[at], true) {
            return self.line(prefix, &format!("{}, as above", headline(node)));
        }
        self.line(prefix, &headline(node));
        let bar = if node.inputs.is_empty() { "   " } else { "│  " };
        let details = [prefix, bar].concat();
        for (name, text) in &node.properties {
            self.line(&details, &format!("{name}: {text}"));
        }
        if let Some(rows) = node.rows_estimate {
            self.line(&details, &format!("emits: about {} rows", count(rows)));
        }
        for line in &node.plan {
            self.line(&details, &format!("  {line}"));
        }
        for (number, edge) in node.inputs.iter().enumerate() {
            let last = number + 1 == node.inputs.len();
            let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            self.line(&[prefix, branch].concat(), &exchange(edge));
            let below = [prefix, below].concat();
            self.edge(edge, &below);
            self.node(edge.from, &below);
        }
    }

    /// The properties of an edge beside its exchange.
    fn edge(&mut self, edge: &PlanEdge, prefix: &str) {
        if let Some(mode) = self.tree.ring_mode.text(edge.exchange) {
            self.line(prefix, &format!("ring mode: {mode}"));
        }
        if !edge.costs.is_empty() {
            self.line(prefix, &costs(&edge.costs));
        }
        if let Some(lateness) = &edge.lateness {
            self.line(prefix, &format!("allowed lateness: {lateness}"));
        }
        for (name, text) in edge.steps.iter().rev() {
            self.line(prefix, &format!("{name} {text}"));
        }
    }
}

/// The name of a node, its table, and its number.
pub(super) fn headline(node: &PlanNode) -> String {
    let mut line = node.name.to_owned();
    if let Some(table) = &node.table {
        line = format!("{line} {table}");
    }
    match node.operator {
        Some(id) => format!("{line} [{id}]"),
        None => line,
    }
}

/// The exchange of an edge, its keys, and why.
pub(super) fn exchange(edge: &PlanEdge) -> String {
    let mut text = edge.exchange.to_string();
    if !edge.keys.is_empty() {
        text = format!("{text}({})", edge.keys.join(", "));
    }
    if let (at, parts @ 2..) = edge.part {
        text = format!("{text}, UNION ALL {} of {parts}", at + 1);
    }
    match &edge.reason {
        Some(reason) => format!("{text}: {reason}"),
        None => text,
    }
}

/// Costs beside each other.
fn costs(costs: &[Cost]) -> String {
    let one = |cost: &Cost| match cost {
        Cost::PerRow { strategy, bytes, cycles } => {
            format!("{strategy} {} B and {cycles:.0} cycles a row", number(*bytes))
        }
        Cost::InAll { strategy, bytes } => format!("{strategy} {}", human(*bytes)),
    };
    let shown: Vec<String> = costs.iter().map(one).collect();
    let in_all = matches!(costs.first(), Some(Cost::InAll { .. }));
    format!("{}: {}", if in_all { "cost, at most" } else { "cost" }, shown.join(", "))
}

/// A number with two digits behind the point if it is small.
pub(super) fn number(number: f64) -> String {
    match number {
        ..10.0 => format!("{number:.2}"),
        _ => format!("{number:.0}"),
    }
}
