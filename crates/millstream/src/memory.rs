//! Memory that a job may use, computed before it starts.

use plan::{Explain, Workers};

use crate::FabricKind;

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
    pub(crate) fn of(explain: &Explain, workers: Workers, fabric: FabricKind) -> Self {
        let mut needs: Vec<_> = explain
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
        needs.extend(Self::inboxes(workers, fabric));
        Self { needs }
    }

    /// What the fabric has at each end of a link.
    fn inboxes(workers: Workers, fabric: FabricKind) -> Option<MemoryNeed> {
        let links = u64::from(workers.nodes) * u64::from(workers.per_node) - 1;
        let bytes = fabric.endpoint_bytes();
        if links == 0 || bytes == 0 {
            return None;
        }
        let node_bytes = links * bytes * u64::from(workers.per_node);
        Some(MemoryNeed {
            name: "inboxes",
            sum: format!("{links} links x {} KiB for notices and messages", bytes.div_ceil(1024)),
            node_bytes,
            all_bytes: node_bytes * u64::from(workers.nodes),
        })
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
