//! Which transport joins which two nodes.
//!
//! With [`FabricKind::Auto`] each pair of nodes chooses for itself: shared memory where both are on
//! one machine, RDMA where both have a device that can be used and the two speak the same, else
//! TCP. Both ends see the same descriptions of all nodes, and so choose the same. The workers of
//! two nodes share a connection where that is wanted ([`Wires`]).

use std::net::IpAddr;
use std::sync::Arc;

use channel::RingConfig;
use cluster::Control;
use dataflow::job::{Idle, Settings};
use dataflow::wires::{Checksum, Connection, ProgressMode, Wires};
use fabric::multicast::Multicast;
use fabric::pulse::{EndedConnection, Pulse, Pulses};
use fabric::shared::{Network, SharedFabric};
use fabric::{Fabric, FabricError, LinkId};

use crate::error::Error;
use crate::fabric_kind::{FabricKind, rdma_network};
use crate::links::NodeLayout;
use crate::pinning;

/// The transports of a node, opened, and which joins it with each other node.
pub(crate) struct Pairs {
    /// By rank.
    kinds: Vec<FabricKind>,
    open: Vec<Open>,
    /// Pairs of nodes of the whole job, by what joins them.
    joined: Vec<(FabricKind, u64)>,
    /// More workers run on this machine than it has processors.
    shares_processors: bool,
    /// The processor of each worker of this node, where they are pinned.
    processors: Vec<u32>,
}

/// A transport in use.
struct Open {
    kind: FabricKind,
    fabric: Arc<dyn Fabric>,
    /// How many ends of its connections a node has: its workers, or itself where they share.
    per_node: u32,
}

impl Pairs {
    /// Agrees with all other nodes. Every node makes this call.
    ///
    /// # Errors
    /// When shared memory is asked for between machines, choices contradict each other, a node
    /// failed, or a transport cannot be opened.
    pub(crate) fn agree(
        kind: FabricKind,
        control: &Control,
        layout: NodeLayout,
        settings: &Settings,
    ) -> Result<Self, Error> {
        let wires = settings.wires;
        if (wires.connection, wires.progress) == (Connection::Worker, ProgressMode::Thread) {
            return Err(contradiction());
        }
        let machines = control.all_gather("machines", machine().into_bytes())?;
        let own = &machines[control.rank() as usize];
        let stranger = machines.iter().position(|machine| machine != own);
        let networks = match (kind, stranger) {
            (FabricKind::Shm, Some(rank)) => return Err(apart(rank)),
            (FabricKind::Auto, Some(_)) => {
                let network = rdma_network(control.address());
                let network = network.inspect_err(|reason| tracing::debug!(%reason, "no RDMA"));
                control.all_gather("devices", network.unwrap_or_default().into_bytes())?
            }
            _ => vec![Vec::new(); machines.len()],
        };
        let processors = if settings.pins_workers {
            pinning::agree(control, layout.per_node, &machines)?
        } else {
            Vec::new()
        };
        let beside = machines.iter().filter(|machine| *machine == own).count();
        let available = std::thread::available_parallelism().ok();
        let shares_processors = !settings.pins_workers
            && available.is_some_and(|all| beside * layout.per_node as usize > all.get());
        let nodes: Vec<_> = machines.into_iter().zip(networks).collect();
        let choose = |a: usize, b: usize| match kind {
            FabricKind::Auto => choose(&nodes[a], &nodes[b]),
            kind => kind,
        };
        let own = control.rank() as usize;
        let kinds: Vec<_> = (0..nodes.len()).map(|other| choose(own, other)).collect();
        for (rank, kind) in kinds.iter().enumerate().filter(|(rank, _)| *rank != own) {
            tracing::debug!("joined with node {rank} by {kind}");
        }
        let joined = count(nodes.len(), choose);
        let pairs = Self::open(kinds, control.address(), layout.per_node, settings)?;
        Ok(Self { joined, shares_processors, processors, ..pairs })
    }

    fn open(
        kinds: Vec<FabricKind>,
        address: IpAddr,
        per_node: u32,
        settings: &Settings,
    ) -> Result<Self, Error> {
        // A spinning worker must not wait for the kernel at the first rows of each slot.
        let (wires, prefault) = (settings.wires, settings.idle == Idle::Spin);
        let checksum = wires.checksum != Checksum::Off;
        let mut open: Vec<Open> = Vec::new();
        let mut network = None;
        for &kind in &kinds {
            if open.iter().any(|opened| opened.kind == kind) {
                continue;
            }
            let mut fabric = kind.open_at(address, prefault, checksum)?;
            let shared = shares(kind, per_node, wires);
            if shared {
                if wires.progress == ProgressMode::Thread && network.is_none() {
                    network = Some(Network::thread().map_err(no_thread)?);
                }
                let process_of = Arc::new(move |worker| worker / per_node);
                fabric = SharedFabric::new(fabric, process_of, network.clone());
            }
            open.push(Open { kind, fabric, per_node: if shared { 1 } else { per_node } });
        }
        let (joined, processors) = (Vec::new(), Vec::new());
        Ok(Self { kinds, open, joined, shares_processors: false, processors })
    }

    /// How many pairs of nodes of the job are joined by what.
    pub(crate) fn joined(&self) -> &[(FabricKind, u64)] {
        &self.joined
    }

    /// Whether more workers of the job run on this machine than it has processors.
    pub(crate) fn shares_processors(&self) -> bool {
        self.shares_processors
    }

    /// The processor of the worker at a place of this node, where workers are pinned.
    pub(crate) fn processor(&self, at: usize) -> Option<u32> {
        self.processors.get(at).copied()
    }

    /// The fabric between this node and another.
    pub(crate) fn with(&self, rank: u32) -> &dyn Fabric {
        let kind = self.kinds[rank as usize];
        let found = self.open.iter().find(|opened| opened.kind == kind);
        &*found.expect("each kind was opened").fabric
    }

    /// The rank of a node that is joined with this one as most others are, and the transport: where
    /// memory that many peers read is published.
    pub(crate) fn most_used(&self, own: u32) -> Option<(u32, &Arc<dyn Fabric>)> {
        let others = || (0..self.kinds.len() as u32).filter(|&rank| rank != own);
        let alike = |&rank: &u32| others().filter(|&other| self.is_alike(rank, other)).count();
        let rank = others().max_by_key(alike)?;
        let kind = self.kinds[rank as usize];
        let open = self.open.iter().find(|opened| opened.kind == kind)?;
        Some((rank, &open.fabric))
    }

    /// Whether two nodes are joined with this one by the same transport.
    pub(crate) fn is_alike(&self, rank: u32, other: u32) -> bool {
        self.kinds[rank as usize] == self.kinds[other as usize]
    }

    /// The connections of this node that are watched, and the node at the other end of each.
    pub(crate) fn pulses(&self) -> Vec<(u32, Arc<Pulse>)> {
        self.each(Pulses::used, |pulse| pulse.link())
    }

    /// Those that have ended since the last call.
    pub(crate) fn ended(&self) -> Vec<(u32, EndedConnection)> {
        self.each(Pulses::take_ended, |ended| ended.link)
    }

    /// Something of all connections that are watched, and the node at the other end of each.
    fn each<T>(&self, get: fn(&Pulses) -> Vec<T>, link: fn(&T) -> LinkId) -> Vec<(u32, T)> {
        let of = |open: &Open| {
            let per_node = open.per_node;
            let found = open.fabric.pulses().map_or_else(Vec::new, get);
            found.into_iter().map(move |one| (link(&one).remote / per_node, one))
        };
        self.open.iter().flat_map(of).collect()
    }

    /// The dimensions of the rings between this node and another. Over TCP whole frames carry
    /// checksums, and payloads need none of their own.
    pub(crate) fn ring(&self, rank: u32, settings: &Settings) -> RingConfig {
        let by_tcp = self.kinds[rank as usize] == FabricKind::Tcp;
        let payload_crc = settings.wires.checksum == Checksum::On && !by_tcp;
        RingConfig { payload_crc, ..settings.ring }
    }

    /// The multicast of the network, if it reaches all other nodes.
    pub(crate) fn multicast(&self, own: u32) -> Option<&dyn Multicast> {
        let mut others = (0..self.kinds.len() as u32).filter(|&rank| rank != own);
        let first = self.kinds[others.next()? as usize];
        let alike = others.all(|rank| self.kinds[rank as usize] == first);
        let open = self.open.iter().find(|opened| opened.kind == first)?;
        open.fabric.multicast().filter(|_| alike)
    }
}

/// A node: its machine, and what its RDMA device speaks; empty where it has none.
type Place = (Vec<u8>, Vec<u8>);

fn choose((machine, network): &Place, other: &Place) -> FabricKind {
    if *machine == other.0 {
        FabricKind::Shm
    } else if !network.is_empty() && *network == other.1 {
        FabricKind::Verbs
    } else {
        FabricKind::Tcp
    }
}

/// How often each transport was chosen for pairs of `nodes` nodes.
fn count(nodes: usize, choose: impl Fn(usize, usize) -> FabricKind) -> Vec<(FabricKind, u64)> {
    let mut joined: Vec<(FabricKind, u64)> = Vec::new();
    for (a, b) in (0..nodes).flat_map(|a| (a + 1..nodes).map(move |b| (a, b))) {
        let kind = choose(a, b);
        match joined.iter_mut().find(|(counted, _)| *counted == kind) {
            Some((_, pairs)) => *pairs += 1,
            None => joined.push((kind, 1)),
        }
    }
    joined
}

/// Whether the workers of two nodes share a connection.
fn shares(kind: FabricKind, per_node: u32, wires: Wires) -> bool {
    match wires.connection {
        Connection::Process => true,
        Connection::Worker => false,
        Connection::Auto if wires.progress == ProgressMode::Thread => true,
        // Over shared memory a connection costs no more than its memory, and a worker that writes
        // would keep others from writing.
        Connection::Auto => per_node > 1 && matches!(kind, FabricKind::Tcp | FabricKind::Verbs),
    }
}

fn contradiction() -> Error {
    Error::Usage {
        message: "millstream.progress = 'thread' moves connections that workers share, and with \
                  millstream.connection = 'worker' they share none"
            .into(),
        hint: "leave one of the two at its default".into(),
    }
}

fn no_thread(source: std::io::Error) -> Error {
    FabricError::Connect { link: "the thread that moves the network".into(), source }.into()
}

fn apart(rank: usize) -> Error {
    Error::Usage {
        message: format!("shared memory does not reach node {rank}, which is on another machine"),
        hint: "--fabric auto takes shared memory on a machine and tcp or verbs between".into(),
    }
}

/// The identity that processes with shared memory have in common: a boot of a kernel, and the
/// namespace in which their sockets find each other.
pub(crate) fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), network.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_takes_the_nearest_that_reaches() {
        let place = |machine: &str, network: &str| (machine.into(), network.into());
        let nodes = [
            place("a", "RoCE v2"),
            place("a", ""),
            place("b", "RoCE v2"),
            place("c", ""),
            place("d", "iWARP"),
        ];
        let chosen = |a: usize, b: usize| choose(&nodes[a], &nodes[b]);
        let from_first: Vec<_> = (1..5).map(|other| chosen(0, other)).collect();
        let [shm, tcp, verbs] = [FabricKind::Shm, FabricKind::Tcp, FabricKind::Verbs];
        assert_eq!(from_first, [shm, verbs, tcp, tcp]);
        assert_eq!([chosen(1, 2), chosen(1, 3), chosen(3, 1)], [tcp; 3], "without a device");
        assert_eq!(count(5, chosen), [(shm, 1), (verbs, 1), (tcp, 8)]);
        let error = apart(3);
        assert!(error.to_string().contains("node 3") && error.hint().unwrap().contains("auto"));
    }

    #[test]
    fn a_transport_is_opened_once_for_all_pairs_that_use_it() {
        let kinds = [FabricKind::Shm, FabricKind::Tcp, FabricKind::Shm, FabricKind::Tcp];
        let address = IpAddr::from([127, 0, 0, 1]);
        let pairs = Pairs::open(kinds.into(), address, 2, &Settings::default()).unwrap();
        let names: Vec<_> = (0..4).map(|rank| pairs.with(rank).name()).collect();
        assert_eq!(names, ["shm", "tcp", "shm", "tcp"]);
        assert_eq!(pairs.open.len(), 2);
    }

    #[test]
    fn workers_share_where_that_is_wanted_or_suits() {
        let wires = |connection, progress| Wires { connection, progress, ..Wires::default() };
        let auto = wires(Connection::Auto, ProgressMode::Spin);
        assert!(shares(FabricKind::Tcp, 2, auto) && shares(FabricKind::Verbs, 8, auto));
        assert!(!shares(FabricKind::Tcp, 1, auto) && !shares(FabricKind::Shm, 8, auto));
        assert!(shares(FabricKind::Shm, 1, wires(Connection::Auto, ProgressMode::Thread)));
        assert!(shares(FabricKind::Shm, 1, wires(Connection::Process, ProgressMode::Spin)));
        assert!(!shares(FabricKind::Tcp, 2, wires(Connection::Worker, ProgressMode::Spin)));
        let error = contradiction();
        assert!(error.to_string().contains("'thread'") && error.hint().is_some());
    }
}
