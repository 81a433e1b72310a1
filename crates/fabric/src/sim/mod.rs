//! A simulated network: any number of nodes in one thread, in virtual time, as a function of a
//! seed.
//!
//! It keeps the contract of the crate and, by default, nothing beyond it: a write falls into pieces
//! of 8 to 64 bytes that land in any order and long after the sender's `Local`, unless a notice
//! releases them; notices overtake each other; reads tear; what is under way when a connection ends
//! may land until the target closes. Each promise has a knob in [`Guarantees`], so that a test can
//! show which of them a protocol needs.
//!
//! ```
//! use fabric::sim::{SimNet, SimOptions};
//! use fabric::{Fabric, LinkId};
//!
//! let net = SimNet::new(SimOptions::seeded(7));
//! let (a, b) = (net.fabric(0), net.fabric(1));
//! let here = a.offer(LinkId { local: 0, remote: 1 })?;
//! let there = b.offer(LinkId { local: 1, remote: 0 })?;
//! let (of_here, of_there) = (here.address(), there.address());
//! let mut here = here.connect(&of_there)?; // never blocks
//! let mut there = there.connect(&of_here)?;
//! there.post_recvs(1);
//! net.settle();
//! here.send(b"hello", fabric::OpId(1)).unwrap();
//! here.submit();
//! let mut seen = Vec::new();
//! while there.poll(&mut seen) == 0 {
//!     assert!(net.step(), "the network owes us an event");
//! }
//! # Ok::<(), fabric::FabricError>(())
//! ```
//!
//! The one who drives it interleaves the nodes' own work with [`SimNet::step`]; when no node has
//! work, [`SimNet::next_event_ns`] says how far time may jump. Nothing moves in `poll`, apart from
//! what a notice releases.
//!
//! Datagrams to groups get lost, come twice and overtake each other, as [`Datagrams`] says.
//!
//! Out of scope: it does not model bandwidth or contention; lose or repeat anything on a connection
//! that goes on; serve two threads at once (it is `Send`, and a lock orders the calls, but the
//! order of threads is not a function of the seed).
#![forbid(unsafe_code)]

mod bytes;
mod endpoint;
mod group;
mod link;
mod net;
mod op;
mod options;
mod published;
mod rng;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::Clock;
use endpoint::{Shared, lock};
use net::{Net, What};

pub use endpoint::SimFabric;
pub use group::Datagrams;
pub use options::{Guarantees, POISON, SimOptions, SimStats};

/// A network and its time. Clones are the same network.
#[derive(Clone)]
pub struct SimNet {
    net: Shared,
    now: Arc<AtomicU64>,
}

impl SimNet {
    /// A network without nodes at time zero.
    pub fn new(options: SimOptions) -> Self {
        let net = Net::new(options);
        let now = net.clock.clone();
        Self { net: Arc::new(Mutex::new(net)), now }
    }

    /// The fabric of a node; the same node at every call with the same number.
    pub fn fabric(&self, node: u32) -> Arc<SimFabric> {
        let mut net = lock(&self.net);
        net.nodes.entry(node).or_default();
        let caps = net.options.caps();
        Arc::new(SimFabric { net: self.net.clone(), node, caps })
    }

    /// Virtual nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The virtual time, for users of a clock.
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(VirtualClock(self.now.clone()))
    }

    /// When the next event is due.
    pub fn next_event_ns(&self) -> Option<u64> {
        lock(&self.net).next_event()
    }

    /// Moves time to the next event, which takes place; false when there is none.
    pub fn step(&self) -> bool {
        lock(&self.net).step()
    }

    /// Lets all events until then take place, and moves time there. Time never moves back.
    pub fn advance_to(&self, ns: u64) {
        lock(&self.net).advance_to(ns);
    }

    /// Lets events take place until there is none; nothing comes any more unless somebody posts.
    pub fn settle(&self) {
        let mut net = lock(&self.net);
        while net.step() {}
    }

    /// The node's process dies: its endpoints are closed without a word, and its peers notice after
    /// a while. The memory stays for its owner to drop.
    pub fn kill(&self, node: u32) {
        lock(&self.net).kill(node);
    }

    /// A new process takes a killed node's place; it begins without connections.
    pub fn restart(&self, node: u32) {
        let mut net = lock(&self.net);
        net.trace(14, u64::from(node), 0);
        let node = net.nodes.entry(node).or_default();
        node.dead = false;
        node.slabs.clear();
        node.published.clear();
    }

    /// The node's process stands still for a while: polls return nothing, while its memory stays
    /// open to its peers.
    pub fn pause(&self, node: u32, for_ns: u64) {
        let mut net = lock(&self.net);
        let until = net.now() + for_ns;
        net.trace(15, u64::from(node), until);
        net.nodes.entry(node).or_default().paused_until = until;
        net.at(until, What::Resume(node));
    }

    /// Whether the code of a node runs: it is neither dead nor paused. A driver skips the nodes
    /// that do not.
    pub fn runs(&self, node: u32) -> bool {
        lock(&self.net).runs(node)
    }

    /// Breaks all connections between two nodes, now and until [`SimNet::heal`].
    pub fn cut(&self, a: u32, b: u32) {
        lock(&self.net).cut_link(a, b);
    }

    /// Lets two nodes make new connections.
    pub fn heal(&self, a: u32, b: u32) {
        let mut net = lock(&self.net);
        net.trace(16, u64::from(a), u64::from(b));
        net.cuts.remove(&link::pair(a, b));
    }

    /// Exact counts so far.
    pub fn stats(&self) -> SimStats {
        lock(&self.net).stats
    }

    /// A hash of all events, posts with their bytes, and completions so far: equal for equal seeds
    /// and calls.
    pub fn trace_hash(&self) -> u64 {
        lock(&self.net).trace
    }
}

struct VirtualClock(Arc<AtomicU64>);

impl Clock for VirtualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
