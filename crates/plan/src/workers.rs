//! The layout of a job: how many nodes, and how many workers each has.

/// How many workers a job will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    /// Nodes, at least 1.
    pub nodes: u32,
    /// Workers of each node, at least 1.
    pub per_node: u32,
}

impl Workers {
    /// Workers of the whole job; at least 1.
    pub fn total(self) -> u32 {
        self.nodes.saturating_mul(self.per_node).max(1)
    }
}
