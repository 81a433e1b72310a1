//! How rows for every worker travel: the tree, and the network in its place.

use channel::broadcast::Shape;

/// How rows for every worker travel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Casting {
    /// The tree around each source.
    pub tree: TreeChoice,
    /// Whether the network's own multicast carries payloads beside it.
    pub multicast: MulticastChoice,
    /// Q: frames that may wait at a source.
    pub queue_frames: u32,
    /// By process the rack in which it stands; empty if nobody says (W13).
    pub racks: Vec<u32>,
    /// Nanoseconds for which a worker may take nothing before the job fails.
    pub stall_ns: u64,
}

impl Default for Casting {
    fn default() -> Self {
        let (tree, racks) = (TreeChoice::Adaptive, vec![]);
        let multicast = MulticastChoice::Auto;
        Self { tree, multicast, queue_frames: 64, racks, stall_ns: 300_000_000_000 }
    }
}

impl Casting {
    /// Whether the network may carry payloads between so many processes.
    pub fn wants_groups(&self, processes: u32) -> bool {
        self.tree != TreeChoice::Copies && self.multicast.is_for(processes)
    }
}

/// Who copies rows for every worker, where the network can: datagrams to a group (I6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MulticastChoice {
    /// The network, where payloads and receivers are worth it and it does not lose too many; the
    /// processes along the tree otherwise.
    #[default]
    Auto,
    /// The processes.
    Tree,
    /// The network, whatever it loses.
    Hardware,
}

impl MulticastChoice {
    /// Other processes for which [`MulticastChoice::Auto`] takes the network.
    pub const AGENTS_MIN: u32 = 3;

    /// Whether the network may carry something between so many processes.
    pub fn is_for(self, processes: u32) -> bool {
        match self {
            MulticastChoice::Auto => processes > Self::AGENTS_MIN,
            MulticastChoice::Tree => false,
            MulticastChoice::Hardware => processes > 1,
        }
    }
}

/// The tree around each source of a broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TreeChoice {
    /// Whose degree follows the load (W6–W9).
    Adaptive,
    /// As it is (W10).
    Fixed(Shape),
    /// None: the source encodes rows anew for each worker of another process, and sends each its
    /// own copy. The baseline without W1, as Storm does it (W10).
    Copies,
}
