//! The operators of a statement while they are made.

use dataflow::job::{Edge, Keyed, Labels, Operator, OperatorKind};

use crate::lower::shared::SharedPart;

/// Adds operators behind each other.
#[derive(Default)]
pub(crate) struct JobBuilder {
    pub(crate) operators: Vec<Operator>,
    /// Parts that are lowered once.
    pub(crate) shared: Vec<SharedPart>,
    /// How many lookup joins there are: numbers their columns.
    pub(crate) lookups: usize,
}

impl JobBuilder {
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
