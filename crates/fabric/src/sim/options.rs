//! Options of a simulated network, as plain values.

use std::ops::Range;

use super::group::Datagrams;
use crate::{Atomics, Caps, Publish};

/// A network. The default keeps the contract and nothing beyond it.
#[derive(Debug, Clone)]
pub struct SimOptions {
    /// Everything that happens is a function of the seed and of the calls.
    pub seed: u64,
    /// The value of [`Caps::publish`].
    pub publish: Publish,
    /// The value of [`Caps::atomics`].
    pub atomics: Atomics,
    /// The value of [`Caps::ordered_completions`].
    pub ordered_completions: bool,
    /// [`Caps::max_inline`] in bytes.
    pub max_inline: usize,
    /// [`Caps::max_msg`] in bytes.
    pub max_msg: usize,
    /// [`Caps::max_send`] in bytes.
    pub max_send: usize,
    /// [`Caps::max_ops`].
    pub max_ops: u32,
    /// From `submit` to the target's check of the key, in nanoseconds.
    pub latency_ns: Range<u64>,
    /// From there to each of a write's bursts of pieces, unless a notice releases them.
    pub placement_ns: Range<u64>,
    /// From there to the sender's `Local`, independent of the placement.
    pub completion_ns: Range<u64>,
    /// From a cut, a kill or a close to the other side's `Error`.
    pub detection_ns: Range<u64>,
    /// From the end of a connection to the last write that still lands, while the target has not
    /// closed.
    pub zombie_ns: Range<u64>,
    /// Hash each source at the post and panic when it differs at the completion.
    pub check_sources: bool,
    /// Fill the target of a write with [`POISON`] before its bytes land. The last whole word is
    /// spared, since it may be a commit word. Goes beyond the contract: a protocol that reads a
    /// word of a longer write while it lands sees neither the old nor the new one.
    pub poison: bool,
    /// The operation, counted over the whole net from zero, that breaks its connection instead of
    /// taking place.
    pub fail_at: Option<u64>,
    /// How datagrams of groups are treated.
    pub datagrams: Datagrams,
    /// Which promises are kept.
    pub keep: Guarantees,
}

/// The byte that fills poisoned memory.
pub const POISON: u8 = 0xdb;

/// A knob for each promise of the contract. A test turns one off to show that a protocol needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantees {
    /// G1: an aligned word lands whole.
    pub whole_words: bool,
    /// G2: where [`Publish::InOrderPoll`] is announced, the last whole word of a write lands last.
    pub in_order_poll: bool,
    /// G4: a notice makes the writes before it visible.
    pub notify_releases: bool,
    /// G5: after `Local` the source is not read again.
    pub local_means_reusable: bool,
    /// G5: where ordered completions are announced, `Local` comes in the order of posting.
    pub ordered_completions: bool,
    /// G7: fenced operations wait.
    pub fence: bool,
    /// G8: nothing lands after the target's `close` or `revoke`.
    pub stop_after_close: bool,
    /// G9: the budget counts the peer's receives and a post beyond them is refused. When off it
    /// goes out, and breaks the connection if it meets no receive.
    pub receive_budget: bool,
    /// Messages arrive in the order of [`send`](crate::Endpoint::send).
    pub sends_in_order: bool,
}

impl Default for Guarantees {
    fn default() -> Self {
        Self {
            whole_words: true,
            in_order_poll: true,
            notify_releases: true,
            local_means_reusable: true,
            ordered_completions: true,
            fence: true,
            stop_after_close: true,
            receive_budget: true,
            sends_in_order: true,
        }
    }
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            publish: Publish::Notify,
            atomics: Atomics::Nic,
            ordered_completions: true,
            max_inline: 220,
            max_msg: 1 << 20,
            max_send: 4096,
            max_ops: 256,
            latency_ns: 500..5_000,
            placement_ns: 0..50_000,
            completion_ns: 0..20_000,
            detection_ns: 100_000..2_000_000,
            zombie_ns: 0..5_000_000,
            check_sources: true,
            poison: false,
            fail_at: None,
            datagrams: Datagrams::default(),
            keep: Guarantees::default(),
        }
    }
}

impl SimOptions {
    /// The default with this seed.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    pub(super) fn caps(&self) -> Caps {
        Caps {
            publish: self.publish,
            atomics: self.atomics,
            ordered_completions: self.ordered_completions,
            names_refused: true,
            max_inline: self.max_inline,
            max_msg: self.max_msg,
            max_send: self.max_send,
            max_ops: self.max_ops,
        }
    }
}

/// Exact counts since the net was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimStats {
    /// Operations posted.
    pub ops: u64,
    /// Notices that reached a poll.
    pub notices: u64,
    /// Messages that reached a poll.
    pub messages: u64,
    /// Bytes placed by writes and reads.
    pub bytes: u64,
    /// Pieces in which they were placed.
    pub pieces: u64,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Copies of them that got lost.
    pub datagrams_lost: u64,
    /// Events of the network.
    pub events: u64,
    /// Completions that polls returned, of any kind.
    pub completions: u64,
    /// Connections that failed, counted at each end.
    pub failures: u64,
    /// Writes that were still under way when their connection ended and that were let go on.
    pub zombies: u64,
}
