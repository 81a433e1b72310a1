//! The operators of a statement while they are made.

use std::collections::HashMap;

use dataflow::job::{Edge, Keyed, Labels, Operator, OperatorKind};
use datafusion::logical_expr::LogicalPlan;

use crate::lower::shared::SharedPart;
use crate::text::refusal::Refusal;

/// Adds operators behind each other.
#[derive(Default)]
pub(crate) struct JobBuilder {
    pub(crate) operators: Vec<Operator>,
    /// Parts that are lowered once.
    pub(crate) shared: Vec<SharedPart>,
    /// How many lookup joins there are: numbers their columns.
    pub(crate) lookups: usize,
    /// Nodes that our operators have refused, by their addresses. An address alone says nothing: a
    /// node may be dropped, and another one lie there. The context says nothing more: nodes are
    /// noted only where nothing is emitted early ([`takes`](crate::lower::local_plan::takes)), and
    /// the hints and sizes of a join or grouping are of its own operator, not of its inputs.
    pub(crate) refused: HashMap<usize, (LogicalPlan, Refusal)>,
}

impl JobBuilder {
    /// Notes that our operators refuse a node. Without that, a node within nodes that are refused
    /// would be tried twice as often with each of them.
    pub(crate) fn refuse(&mut self, node: &LogicalPlan, refusal: &Refusal) {
        self.refused.insert(std::ptr::from_ref(node).addr(), (node.clone(), refusal.clone()));
    }

    /// Why our operators have refused a node, if they have.
    pub(crate) fn refusal_of(&self, node: &LogicalPlan) -> Option<Refusal> {
        let (refused, refusal) = self.refused.get(&std::ptr::from_ref(node).addr())?;
        (refused == node).then(|| refusal.clone())
    }

    /// Adds an operator; gives its index.
    pub(crate) fn add(
        &mut self,
        name: String,
        inputs: Vec<Vec<Edge>>,
        kind: OperatorKind,
        labels: Labels,
    ) -> usize {
        self.operators.push(Operator::new(name, inputs, kind).labelled(labels));
        self.operators.len() - 1
    }

    /// Adds an operator that keeps rows by key, under the name by which EXPLAIN knows it.
    pub(crate) fn add_keyed(
        &mut self,
        edges: Vec<Vec<Edge>>,
        spec: Keyed,
        labels: Labels,
    ) -> usize {
        let name = spec.operator.describe(&[]).name.to_owned();
        self.add(name, edges, OperatorKind::Keyed(spec), labels)
    }
}
