//! Memory that a job may use, computed before it starts.

use plan::{Explain, Workers};

/// Named amounts that add up.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memory {
    /// The amounts.
    pub needs: Vec<MemoryNeed>,
}

/// A named amount of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNeed {
    /// What for.
    pub name: &'static str,
    /// How it comes about, per worker.
    pub sum: String,
    /// Bytes of the node that has most of it, node 0.
    pub node_bytes: u64,
    /// Bytes of all nodes.
    pub all_bytes: u64,
}

impl Memory {
    pub(crate) fn of(explain: &Explain, workers: Workers) -> Self {
        let needs = explain
            .memory()
            .iter()
            .map(|need| {
                let per_node = if need.once { 1 } else { u64::from(workers.per_node) };
                let nodes = if need.once { 1 } else { u64::from(workers.nodes) };
                let node_bytes = need.bytes.saturating_mul(per_node);
                MemoryNeed {
                    name: need.name,
                    sum: need.sum.clone(),
                    node_bytes,
                    all_bytes: node_bytes.saturating_mul(nodes),
                }
            })
            .collect();
        Self { needs }
    }

    /// The sum of node 0, in bytes.
    pub fn node_bytes(&self) -> u64 {
        self.needs.iter().map(|need| need.node_bytes).fold(0, u64::saturating_add)
    }

    /// The sum of all nodes, in bytes.
    pub fn all_bytes(&self) -> u64 {
        self.needs.iter().map(|need| need.all_bytes).fold(0, u64::saturating_add)
    }
}
