//! The plan for other programs. The schema is documented in `docs/cli.md`.

use dataflow::job::{Cost, Property, Reason};
use serde_json::{Map, Value, json};

use super::estimate;
use super::tree::{PlanEdge, PlanNode, PlanTree};
use super::{Explain, Need, OrderedJoins, RingMode};
use crate::Workers;

impl Explain {
    /// The plan for other programs.
    pub fn json(&self) -> Value {
        let Workers { nodes, per_node } = self.workers;
        let PlanTree { statements, nodes: operators, ring_mode } = self.tree();
        let statements = statements.iter().map(|statement| {
            let orders: Vec<Value> = statement.orders.iter().map(OrderedJoins::json).collect();
            json!({ "name": statement.name, "orders": orders, "sinks": statement.roots })
        });
        let operators = operators.iter().enumerate().map(|at| node(at, ring_mode));
        let mut json = json!({
            "nodes": nodes,
            "workers_per_node": per_node,
            "statements": statements.collect::<Vec<_>>(),
            "operators": operators.collect::<Vec<_>>(),
            "memory": self.needs.iter().map(need).collect::<Vec<_>>(),
        });
        if let Some(recovery) = self.recovery_json() {
            json["recovery"] = recovery;
        }
        json
    }
}

fn node((id, node): (usize, &PlanNode), ring_mode: RingMode) -> Value {
    json!({
        "id": id,
        "operator": node.operator,
        "name": node.name,
        "table": node.table,
        "properties": properties(&node.properties),
        "rows_estimated": node.rows_estimate,
        "columns": node.columns,
        "plan": node.plan,
        "state": node.state.iter().map(estimate::json).collect::<Vec<_>>(),
        "inputs": node.inputs.iter().map(|at| edge(at, ring_mode)).collect::<Vec<_>>(),
    })
}

/// Properties by name; the values of one name are a list.
fn properties(properties: &[Property]) -> Value {
    let mut map: Map<String, Value> = Map::new();
    for (name, text) in properties {
        match map.get_mut(*name) {
            None => drop(map.insert((*name).into(), json!([text]))),
            Some(list) => list.as_array_mut().into_iter().for_each(|list| list.push(json!(text))),
        }
    }
    map.into()
}

fn edge(edge: &PlanEdge, ring_mode: RingMode) -> Value {
    let step = |(name, text): &Property| json!({ "name": name, "text": text });
    json!({
        "from": edge.from,
        "input": edge.input,
        "exchange": edge.exchange.to_string(),
        "keys": edge.keys,
        "reason": edge.reason.as_ref().map(reason),
        "ring_mode": ring_mode.name(edge.exchange),
        "costs": edge.costs.iter().map(cost).collect::<Vec<_>>(),
        "rows_estimated": edge.rows_estimate,
        "columns": edge.columns,
        "steps": edge.steps.iter().map(step).collect::<Vec<_>>(),
        "event_time": edge.event_time,
        "allowed_lateness": edge.lateness,
    })
}

fn reason(reason: &Reason) -> Value {
    let text = reason.to_string();
    match reason {
        Reason::Planner(_) => json!({ "by": "planner", "text": text }),
        Reason::Setting(_) => json!({ "by": "setting", "text": text }),
        Reason::Hint { line, column, .. } => {
            json!({ "by": "hint", "text": text, "line": line, "column": column })
        }
    }
}

fn cost(cost: &Cost) -> Value {
    match cost {
        Cost::PerRow { strategy, bytes, cycles } => json!({
            "exchange": strategy.to_string(),
            "bytes_per_row": bytes,
            "cycles_per_row": cycles,
        }),
        Cost::InAll { strategy, bytes } => json!({
            "exchange": strategy.to_string(),
            "bytes_at_most": bytes,
        }),
    }
}

fn need(need: &Need) -> Value {
    json!({
        "name": need.name,
        "sum": need.sum,
        "bytes_per_worker": need.bytes,
        "worker_0_only": need.once,
    })
}
