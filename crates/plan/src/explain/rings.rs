//! How rows move between nodes, where `millstream.ring_mode` is not the default.

use channel::Transfer;
use dataflow::job::{Strategy, TreeChoice};

use crate::text::settings::InForce;

/// How rows travel over rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingMode {
    transfer: Transfer,
    /// Rows for every worker go along a tree.
    by_tree: bool,
    /// The network may carry them instead.
    by_network: bool,
}

impl RingMode {
    /// As the settings say, on so many nodes; `has_groups` where their network has multicast.
    pub(crate) fn of(settings: &InForce, nodes: u32, has_groups: bool) -> Self {
        let casting = &settings.job.casting;
        Self {
            transfer: if nodes > 1 { settings.job.ring.transfer } else { Transfer::Write },
            by_tree: casting.tree != TreeChoice::Copies,
            by_network: has_groups && casting.wants_groups(nodes),
        }
    }

    /// The mode of an exchange, as the setting calls it; `None` where rows are written.
    pub(super) fn name(self, exchange: Strategy) -> Option<&'static str> {
        let for_all = matches!(exchange, Strategy::Broadcast | Strategy::Multicast);
        match (self.transfer, exchange) {
            (_, Strategy::Forward | Strategy::Pull) | (Transfer::Write, _) => None,
            (Transfer::Read, _) => Some("read"),
            (Transfer::Region, _) if for_all && self.by_tree => Some("region"),
            (Transfer::Region, _) => None,
        }
    }

    /// The same with what it means.
    pub(super) fn text(self, exchange: Strategy) -> Option<&'static str> {
        Some(match (self.name(exchange)?, self.by_network) {
            ("region", false) => "region, written once and read by each receiver",
            ("region", true) => {
                "region, written once and read by each receiver, unless the network copies them"
            }
            _ => "read, receivers read rows from memory of the sender",
        })
    }
}
