//! How the workers of different nodes are joined, each with each (S2).
//!
//! ```text
//!   offer ─▶ all_gather("addresses") ─▶ connect ─▶ Link::new ─▶ all_gather("rings") ─▶ attach
//! ```
//!
//! Every node makes these calls in this order. Workers of one node need no link: they hand rows
//! over by reference ([`dataflow::process`]).

use std::sync::Arc;
use std::thread;

use channel::{Link, LinkError, LinkMemory, RingConfig, SharedRegion, Transfer, Tuning};
use cluster::Control;
use dataflow::job::Settings;
use fabric::{Endpoint, FabricError, LinkId, Offer, Slab};

use crate::error::Error;
use crate::pairs::Pairs;

/// Workers of a node at most.
pub const WORKERS_MAX: u32 = 1024;

/// The workers of a job: every node has as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeLayout {
    /// This node.
    pub(crate) rank: u32,
    /// All nodes.
    pub(crate) nodes: u32,
    /// Workers of a node.
    pub(crate) per_node: u32,
}

impl NodeLayout {
    /// Workers of the job.
    pub(crate) fn workers(self) -> u32 {
        self.nodes * self.per_node
    }

    /// The workers of this node.
    pub(crate) fn own(self) -> std::ops::Range<u32> {
        self.rank * self.per_node..(self.rank + 1) * self.per_node
    }

    /// The ends of links that this node has, in the order in which it tells of them.
    fn ends(self) -> impl Iterator<Item = LinkId> {
        self.own().flat_map(move |local| {
            let others = (0..self.workers()).filter(move |remote| !self.own().contains(remote));
            others.map(move |remote| LinkId { local, remote })
        })
    }

    /// Where the node of `end.remote` tells of the other end of the link: its rank, and the place
    /// in its list.
    fn opposite(self, end: LinkId) -> (usize, usize) {
        let rank = end.remote / self.per_node;
        let row = end.remote % self.per_node;
        let column = if end.local < end.remote { end.local } else { end.local - self.per_node };
        (rank as usize, (row * (self.workers() - self.per_node) + column) as usize)
    }
}

/// Joins this node's workers with those of all others. The result holds a list per worker of this
/// node, each indexed by worker, `None` for those of this node. The links' incarnation is the
/// launch's generation.
///
/// # Errors
/// When a node failed or is unlike this one, or the fabric refuses memory or connections.
pub(crate) fn join(
    pairs: &Pairs,
    control: &Control,
    layout: NodeLayout,
    settings: &Settings,
) -> Result<Vec<Vec<Option<Link>>>, Error> {
    let tuning = Tuning { credit_slots: settings.wires.credit_slots, ..Tuning::default() };
    let ends: Vec<LinkId> = layout.ends().collect();
    let fabric = |end: LinkId| pairs.with(end.remote / layout.per_node);
    let offers = ends.iter().map(|&end| fabric(end).offer(end)).collect::<Result<Vec<_>, _>>()?;
    let addresses = offers.iter().map(|offer| offer.address()).collect();
    let addresses = exchange(control, layout, "addresses", true, &ends, addresses)?;
    let endpoints = connect_all(offers, &addresses)?;
    let regions = regions(pairs, layout, settings)?;
    let mut memory = memory(pairs, layout, settings)?;
    let mut links = endpoints
        .into_iter()
        .zip(&ends)
        .map(|(endpoint, &end)| {
            let rank = end.remote / layout.per_node;
            let own = memory
                .get_mut(rank as usize)
                .and_then(Vec::pop)
                .map_or_else(|| LinkMemory::new(fabric(end), &pairs.ring(rank, settings)), Ok)?;
            let link = Link::within(own, endpoint, control.generation())?.tuned(tuning);
            let lends = |rank| pairs.is_alike(rank, end.remote / layout.per_node);
            let region = regions.as_ref().filter(|(rank, _)| lends(*rank));
            Ok(match region {
                Some((_, regions)) => {
                    link.lending(regions[(end.local % layout.per_node) as usize].clone())
                }
                None => link,
            })
        })
        .collect::<Result<Vec<_>, LinkError>>()?;
    let rings = links.iter().map(Link::descriptor).collect();
    let rings = exchange(control, layout, "rings", false, &ends, rings)?;
    for (link, ring) in links.iter_mut().zip(&rings) {
        link.attach(ring)?;
    }
    let mut joined: Vec<Vec<Option<Link>>> =
        layout.own().map(|_| (0..layout.workers()).map(|_| None).collect()).collect();
    for (end, link) in ends.into_iter().zip(links) {
        joined[(end.local % layout.per_node) as usize][end.remote as usize] = Some(link);
    }
    Ok(joined)
}

/// By node the memory of the links with its workers, where rings lie beside each other; else
/// nothing.
fn memory(
    pairs: &Pairs,
    layout: NodeLayout,
    settings: &Settings,
) -> Result<Vec<Vec<LinkMemory>>, LinkError> {
    let of_node = |rank| {
        if rank == layout.rank {
            return Ok(vec![]);
        }
        let (ring, links) = (pairs.ring(rank, settings), (layout.per_node as usize).pow(2));
        let bytes = (links * ring.memory_bytes().ring) as u64;
        if !settings.wires.ring_pages.are_beside(bytes) {
            return Ok(vec![]);
        }
        LinkMemory::of_peer(pairs.with(rank), &ring, links)
    };
    (0..layout.nodes).map(of_node).collect()
}

/// Tells in how large pages the memory of links lies.
pub(crate) fn report_pages(links: &[Vec<Option<Link>>]) {
    let mut slabs: Vec<Slab> = Vec::new();
    for slab in links.iter().flatten().flatten().flat_map(Link::slabs) {
        if !slabs.iter().any(|known| known.same(slab)) {
            slabs.push(slab.clone());
        }
    }
    if slabs.is_empty() {
        return;
    }
    let bytes: usize = slabs.iter().map(Slab::len).sum();
    let huge_bytes = Slab::huge_bytes(&slabs);
    tracing::info!(slabs = slabs.len(), bytes, huge_bytes, "rings in huge pages");
}

/// The rank of a node that reads the regions of this one, and the region of each worker.
type NodeRegions = (u32, Vec<Arc<SharedRegion>>);

/// A region for each worker of this node, if rings are so (W3), and the rank of a node that reads
/// them, as all do that are joined with this one in the same way.
fn regions(
    pairs: &Pairs,
    layout: NodeLayout,
    settings: &Settings,
) -> Result<Option<NodeRegions>, LinkError> {
    if settings.ring.transfer != Transfer::Region {
        return Ok(None);
    }
    let Some((rank, fabric)) = pairs.most_used(layout.rank) else { return Ok(None) };
    let ring: RingConfig = pairs.ring(rank, settings);
    let region = |_| SharedRegion::new(fabric, &ring, settings.region_slots());
    let regions = layout.own().map(region).collect::<Result<_, _>>()?;
    Ok(Some((rank, regions)))
}

/// Gives away one byte string per end, and gets the one of each opposite end. `are_places` says
/// whether the ends connect at them.
fn exchange(
    control: &Control,
    layout: NodeLayout,
    step: &str,
    are_places: bool,
    ends: &[LinkId],
    own: Vec<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, Error> {
    let all = if are_places {
        control.all_gather_places(step, pack(&own))?
    } else {
        control.all_gather(step, pack(&own))?
    };
    let count = ends.len();
    let mut lists = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        let list = unpack(bytes).filter(|list| list.len() == count);
        lists.push(list.ok_or(Error::Unlike { rank: rank as u32, what: "number of workers" })?);
    }
    Ok(ends
        .iter()
        .map(|&end| {
            let (rank, at) = layout.opposite(end);
            std::mem::take(&mut lists[rank][at])
        })
        .collect())
}

/// Connects all at once: each call may wait for its peer's.
fn connect_all(
    offers: Vec<Box<dyn Offer>>,
    addresses: &[Vec<u8>],
) -> Result<Vec<Box<dyn Endpoint>>, FabricError> {
    thread::scope(|scope| {
        let connecting: Vec<_> = offers
            .into_iter()
            .zip(addresses)
            .map(|(offer, address)| scope.spawn(move || offer.connect(address)))
            .collect();
        connecting
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// `length u32 | bytes` for each.
fn pack(list: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for bytes in list {
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    out
}

fn unpack(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut list = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk() {
        let (item, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        list.push(item.to_vec());
        bytes = rest;
    }
    bytes.is_empty().then_some(list)
}

#[cfg(test)]
mod tests {
    use dataflow::wires::{Connection, ProgressMode, RingPages, Wires};

    use super::*;
    use crate::FabricKind;

    #[test]
    fn the_opposite_of_an_end_tells_of_the_same_link() {
        for (nodes, per_node) in [(1, 2), (1, 5), (2, 1), (3, 4), (8, 2)] {
            let layout = |rank| NodeLayout { rank, nodes, per_node };
            let lists: Vec<Vec<LinkId>> =
                (0..nodes).map(|rank| layout(rank).ends().collect()).collect();
            let count = nodes * per_node * (nodes - 1) * per_node;
            assert_eq!(lists.iter().flatten().count() as u32, count);
            for end in lists.iter().flatten() {
                let (rank, at) = layout(end.local / per_node).opposite(*end);
                assert_eq!(lists[rank][at], LinkId { local: end.remote, remote: end.local });
            }
        }
    }

    #[test]
    fn lists_survive_the_wire_and_damage_does_not_panic() {
        let list = vec![vec![1, 2, 3], vec![], vec![255; 300]];
        let packed = pack(&list);
        assert_eq!(unpack(&packed), Some(list));
        assert_eq!(unpack(&[]), Some(vec![]));
        for len in 0..packed.len() {
            assert_ne!(unpack(&packed[..len]).map(|list| list.len()), Some(3));
        }
    }

    #[test]
    fn workers_of_several_nodes_are_joined_each_with_each() {
        let own = Wires { connection: Connection::Worker, ..Wires::default() };
        let moved = Wires { progress: ProgressMode::Thread, ..Wires::default() };
        let huge = Wires { ring_pages: RingPages::Huge, ..Wires::default() };
        let small = Wires { ring_pages: RingPages::Small, ..Wires::default() };
        for (kind, wires) in [
            (FabricKind::Auto, Wires::default()),
            (FabricKind::Shm, Wires::default()),
            (FabricKind::Shm, moved),
            (FabricKind::Tcp, Wires::default()),
            (FabricKind::Tcp, own),
            (FabricKind::Tcp, moved),
            (FabricKind::Shm, huge),
            (FabricKind::Tcp, huge),
            (FabricKind::Shm, small),
            (FabricKind::Tcp, small),
        ] {
            let controls = cluster::in_process(2).unwrap();
            thread::scope(|scope| {
                for control in &controls {
                    scope.spawn(move || {
                        let layout = NodeLayout { rank: control.rank(), nodes: 2, per_node: 2 };
                        let settings = Settings { wires, ..Settings::default() };
                        let pairs = Pairs::agree(kind, control, layout, &settings).unwrap();
                        let links = join(&pairs, control, layout, &settings).unwrap();
                        for (row, worker) in links.iter().zip(layout.own()) {
                            let others: Vec<_> =
                                (0..4).filter(|&i| row[i as usize].is_some()).collect();
                            let expected: Vec<_> =
                                (0..4).filter(|&i| i / 2 != worker / 2).collect();
                            assert_eq!(others, expected);
                        }
                        let first = |link: &Link| link.slabs().map(Slab::len);
                        let all = links.iter().flatten().flatten().map(first);
                        // Two workers with two: their rings fill a huge page.
                        let beside = if wires.ring_pages == RingPages::Small { 1 } else { 4 };
                        let rings: usize = beside * settings.ring.memory_bytes().ring;
                        assert!(all.into_iter().all(|slabs| slabs == [rings; 2]), "{wires:?}");
                        control.all_gather("end", Vec::new()).unwrap();
                        control.close();
                    });
                }
            });
        }
    }
}
