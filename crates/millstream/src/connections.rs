//! The connections of a session (Q6, S2): made for its first statement, and used by all.
//!
//! ```text
//!   rest ─▶ all_gather("connections") ─▶ all whole: begin the next statement on the same links
//!                                     └▶ else: close them, make others, begin on these
//! ```
//!
//! This is the one place that decides whether connections go on. A node keeps them only if its
//! statement has ended well and nobody has cancelled it; before the next statement every node says
//! whether it has kept them, and whether they are whole. Frames carry the number of the statement,
//! so that a late one of a former statement is dropped ([`channel::protocol::KeptLinks`]).
//!
//! The threads of its workers are kept with them ([`crate::threads`]).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use channel::Link;
use channel::RingConfig;
use channel::protocol::{KeptLinks, NextStatement, StatementNumber};
use cluster::{Control, ControlId};
use dataflow::job::{Idle, Settings};
use dataflow::wires::{RingPages, Wires};
use tracing::level_filters::LevelFilter;

use crate::FabricKind;
use crate::error::Error;
use crate::links::{NodeLayout, join, report_pages};
use crate::memory::MachineMemory;
use crate::pairs::Pairs;
use crate::threads::WorkerThreads;

/// The links of a node: by its worker, then by worker; `None` within the node.
pub(crate) type NodeLinks = Vec<Vec<Option<Link>>>;

/// What connections are made for: another statement can use them if it asks for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    fabric: FabricKind,
    nodes: u32,
    per_node: u32,
    wires: Wires,
    ring: RingConfig,
    /// Workers that never sleep have the memory of rings before rows come.
    spins: bool,
    pins: bool,
}

/// The connections of a node with all others, as they rest between two statements.
struct Connections {
    shape: Shape,
    pairs: Pairs,
    links: NodeLinks,
}

impl Connections {
    /// Lets them rest. True if each link can serve another statement.
    fn rest(&mut self, own: std::ops::Range<u32>) -> bool {
        let workers = self.shape.nodes * self.shape.per_node;
        let rests = |(worker, link): (u32, &mut Option<Link>)| match link {
            Some(link) => link.rests(),
            None => own.contains(&worker),
        };
        let mut whole = self.links.len() == self.shape.per_node as usize;
        for links in &mut self.links {
            // Each is asked, since each drops what nobody has received.
            let resting = (0..).zip(links.iter_mut()).map(rests).filter(|rests| *rests).count();
            whole &= resting == workers as usize;
        }
        whole
    }
}

/// The connections of a statement that runs.
pub(crate) struct OpenConnections {
    shape: Shape,
    pub(crate) pairs: Pairs,
    pub(crate) statement: StatementNumber,
    /// Whether all nodes know the same costs of the job's sources, and some.
    pub(crate) by_cost: bool,
}

/// What one node keeps from one statement of a session to the next.
#[derive(Default)]
pub(crate) struct NodeConnections {
    last: StatementNumber,
    kept: Option<Connections>,
    pub(crate) threads: WorkerThreads,
}

impl NodeConnections {
    /// The connections for the next statement, and the links of this node's workers. Every node
    /// makes this call. `costs` is the number of the [costs](crate::costs) that this one knows, or
    /// 0.
    ///
    /// # Errors
    /// When a node failed or is unlike this one, or the fabric refuses memory or connections.
    pub(crate) fn begin(
        &mut self,
        fabric: FabricKind,
        control: &Control,
        layout: NodeLayout,
        settings: &Settings,
        costs: u64,
    ) -> Result<(OpenConnections, NodeLinks), Error> {
        let NodeLayout { nodes, per_node, .. } = layout;
        let (wires, ring, spins) = (settings.wires, settings.ring, settings.idle == Idle::Spin);
        let pins = settings.pins_workers;
        let shape = Shape { fabric, nodes, per_node, wires, ring, spins, pins };
        let mut kept = self.kept.take().filter(|kept| kept.shape == shape);
        let whole = kept.as_mut().is_some_and(|kept| kept.rest(layout.own()));
        let own = KeptLinks { last: self.last, whole };
        let own = [&own.encode()[..], &costs.to_le_bytes()].concat();
        let all = control.all_gather("connections", own)?;
        // Nodes have ended the statement before, and have sent all that they say of it.
        control.discard_progress();
        let decode = |(rank, bytes): (u32, &Vec<u8>)| {
            let (kept, costs) = bytes.split_last_chunk().unzip();
            let kept = kept.and_then(KeptLinks::decode);
            kept.zip(costs.map(|of| u64::from_le_bytes(*of)))
                .ok_or(Error::Unlike { rank, what: "version" })
        };
        let all = (0..).zip(&all).map(decode).collect::<Result<Vec<_>, _>>()?;
        let by_cost = costs != 0 && all.iter().all(|(_, of)| *of == costs);
        let all: Vec<KeptLinks> = all.into_iter().map(|(kept, _)| kept).collect();
        let NextStatement { statement, reuses } = KeptLinks::agree(&all);
        self.last = statement;
        let Connections { pairs, mut links, .. } = match kept.filter(|_| reuses) {
            Some(kept) => kept,
            None => {
                let pairs = Pairs::agree(fabric, control, layout, settings)?;
                let links = join(&pairs, control, layout, settings)?;
                Connections { shape, pairs, links }
            }
        };
        tracing::debug!(statement = statement.number(), reuses, "connections");
        let mut each = links.iter_mut().flatten().flatten();
        each.try_for_each(|link| link.begin(statement))?;
        Ok((OpenConnections { shape, pairs, statement, by_cost }, links))
    }

    /// Keeps the connections of a statement that has ended well at every node, with the links that
    /// its workers have given back. Those of one that was cancelled are closed: its nodes have not
    /// all ended in the same way.
    pub(crate) fn end(&mut self, control: &Control, of: OpenConnections, links: NodeLinks) {
        let OpenConnections { shape, pairs, .. } = of;
        // Not `enabled!`: layers that filter for themselves take its answer for that of the next
        // event, too, and lose a warning.
        let is_logged = LevelFilter::current() >= LevelFilter::INFO;
        if is_logged && shape.wires.ring_pages != RingPages::Small {
            report_pages(&links);
        }
        if !control.cancelled() && !control.failed() {
            self.kept = Some(Connections { shape, pairs, links });
        }
    }
}

/// The links that workers of a node have given back while others still run.
pub(crate) struct ReturnedLinks(Mutex<NodeLinks>);

impl ReturnedLinks {
    pub(crate) fn new(workers: u32) -> Self {
        Self(Mutex::new((0..workers).map(|_| Vec::new()).collect()))
    }

    /// Takes the links of a worker, by its place in the node.
    pub(crate) fn put(&self, at: u32, links: Vec<Option<Link>>) {
        self.lock()[at as usize] = links;
    }

    /// Lets them make progress: a worker of another node that has not ended may wait for what an
    /// endpoint of this node has to say.
    pub(crate) fn poll(&self) {
        for link in self.lock().iter_mut().flatten().flatten() {
            if link.has_news() {
                // One that has failed says so again, and is not used for another statement.
                let _ = link.poll();
            }
        }
    }

    pub(crate) fn take(&self) -> NodeLinks {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, NodeLinks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node that is a thread of this process: its handle on the others, and its connections.
pub(crate) struct ThreadNode {
    pub(crate) control: Control,
    pub(crate) connections: NodeConnections,
}

/// What a session keeps between two statements. One that begins takes it; if two run at the same
/// time the second finds nothing, and makes its own.
#[derive(Default)]
pub(crate) struct SessionConnections {
    rest: Mutex<Option<AtRest>>,
    machine: Mutex<MachineMemory>,
}

enum AtRest {
    /// All nodes are threads of this process.
    Threads(Vec<ThreadNode>),
    /// This process is a node, with this handle.
    Process(ControlId, NodeConnections),
}

impl SessionConnections {
    /// The nodes of a job that runs as threads of this process.
    ///
    /// # Errors
    /// When the operating system gives no sockets or threads.
    pub(crate) fn take_threads(&self, nodes: u32) -> Result<Vec<ThreadNode>, Error> {
        let usable = |nodes: &Vec<ThreadNode>| nodes.iter().all(|node| !node.control.failed());
        match self.lock().take() {
            Some(AtRest::Threads(kept)) if usable(&kept) => return Ok(kept),
            Some(AtRest::Threads(kept)) => close(kept),
            Some(AtRest::Process(..)) | None => {}
        }
        let controls = cluster::in_process(nodes)?.into_iter();
        let fresh = |control| ThreadNode { control, connections: NodeConnections::default() };
        Ok(controls.map(fresh).collect())
    }

    /// Keeps the nodes of a job that has ended, if it ended well; else the next statement begins
    /// with others.
    pub(crate) fn end_threads(&self, nodes: Vec<ThreadNode>, ended_well: bool) {
        let over = |node: &ThreadNode| node.control.failed() || node.control.cancelled();
        if !ended_well || nodes.iter().any(over) {
            return close(nodes);
        }
        if let Some(AtRest::Threads(before)) = self.lock().replace(AtRest::Threads(nodes)) {
            close(before);
        }
    }

    /// What this node has kept from the job before with the same handle.
    pub(crate) fn take_process(&self, control: &Control) -> NodeConnections {
        match self.lock().take() {
            Some(AtRest::Process(id, kept)) if id == control.id() => kept,
            Some(AtRest::Threads(nodes)) => {
                close(nodes);
                NodeConnections::default()
            }
            Some(AtRest::Process(..)) | None => NodeConnections::default(),
        }
    }

    /// Keeps what this node has for the next job with the same handle.
    pub(crate) fn end_process(&self, control: &Control, connections: NodeConnections) {
        *self.lock() = Some(AtRest::Process(control.id(), connections));
    }

    /// Closes what is kept, and ends its threads. A statement that runs is not concerned.
    pub(crate) fn release(&self) {
        let kept = self.lock().take();
        if let Some(AtRest::Threads(nodes)) = kept {
            close(nodes);
        }
    }

    /// Bytes that this process may have, where the system tells.
    pub(crate) fn machine_memory(&self) -> Option<u64> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).recent()
    }

    fn lock(&self) -> MutexGuard<'_, Option<AtRest>> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SessionConnections {
    fn drop(&mut self) {
        self.release();
    }
}

/// Closes nodes that are threads of this process, at the same time: each waits for the others.
fn close(nodes: Vec<ThreadNode>) {
    thread::scope(|scope| {
        for node in nodes {
            scope.spawn(move || {
                drop(node.connections);
                node.control.close();
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use channel::{Class, Header};
    use dataflow::wires::{Connection, ProgressMode};

    use super::*;

    const LAYOUT: NodeLayout = NodeLayout { rank: 0, nodes: 2, per_node: 2 };

    /// A statement on both nodes: each worker sends the other node's workers a frame, which nobody
    /// receives. Gives the number of the statement, and of the frames that its links have ever
    /// sent. `end` says what a node does with its links.
    fn statement(
        nodes: &mut [ThreadNode],
        fabric: FabricKind,
        settings: &Settings,
        end: impl Fn(&Control, &mut NodeConnections, OpenConnections, NodeLinks) + Sync,
    ) -> Vec<(u32, u64)> {
        thread::scope(|scope| {
            let node = |ThreadNode { control, connections }: &mut ThreadNode| {
                let layout = NodeLayout { rank: control.rank(), ..LAYOUT };
                let (open, mut links) =
                    connections.begin(fabric, control, layout, settings, 0).expect("connections");
                control.all_gather("open", vec![]).expect("both are here");
                for link in links.iter_mut().flatten().flatten() {
                    link.reserve(Class::Control).expect("room").publish(Header::default(), 0);
                    link.flush();
                }
                let sent = links.iter().flatten().flatten().map(|link| link.stats().frames_sent);
                let counts = (open.statement.number(), sent.sum());
                control.all_gather("end", vec![]).expect("both are here");
                end(control, connections, open, links);
                counts
            };
            let running: Vec<_> =
                nodes.iter_mut().map(|one| scope.spawn(move || node(one))).collect();
            running.into_iter().map(|node| node.join().expect("no panic")).collect()
        })
    }

    fn well(
        control: &Control,
        connections: &mut NodeConnections,
        open: OpenConnections,
        links: NodeLinks,
    ) {
        connections.end(control, open, links);
    }

    fn settings(connection: Connection, progress: ProgressMode) -> Settings {
        let wires = Wires { connection, progress, ..Wires::default() };
        Settings { wires, ..Settings::default() }
    }

    #[test]
    fn statements_use_the_links_of_the_first_one_until_one_asks_for_others() {
        for (fabric, settings) in [
            (FabricKind::Shm, settings(Connection::Auto, ProgressMode::Spin)),
            (FabricKind::Tcp, settings(Connection::Auto, ProgressMode::Spin)),
            (FabricKind::Tcp, settings(Connection::Worker, ProgressMode::Spin)),
            (FabricKind::Tcp, settings(Connection::Auto, ProgressMode::Thread)),
        ] {
            let session = SessionConnections::default();
            let mut nodes = session.take_threads(2).expect("two nodes");
            // Each node has four ends of links, each of which sends a frame.
            for number in 1..=4 {
                let counts = statement(&mut nodes, fabric, &settings, well);
                let sent = 4 * u64::from(number);
                assert_eq!(counts, [(number, sent); 2], "{fabric}");
            }
            let ring = RingConfig { slots: 4, ..settings.ring };
            let others = Settings { ring, ..settings.clone() };
            assert_eq!(statement(&mut nodes, fabric, &others, well), [(5, 4); 2], "{fabric}");
            session.end_threads(nodes, true);
            let mut nodes = session.take_threads(2).expect("the same nodes");
            assert_eq!(statement(&mut nodes, fabric, &others, well), [(6, 8); 2], "{fabric}");
            close(nodes);
        }
    }

    #[test]
    fn costs_are_used_where_all_nodes_know_the_same() {
        let session = SessionConnections::default();
        let mut nodes = session.take_threads(2).expect("two nodes");
        let settings = Settings::default();
        for (costs, used) in [([0, 0], false), ([7, 7], true), ([7, 0], false), ([7, 8], false)] {
            let begin = |ThreadNode { control, connections }: &mut ThreadNode| {
                let layout = NodeLayout { rank: control.rank(), ..LAYOUT };
                let known = costs[control.rank() as usize];
                let begun = connections.begin(FabricKind::Shm, control, layout, &settings, known);
                let (open, links) = begun.expect("connections");
                let by_cost = open.by_cost;
                control.all_gather("end", vec![]).expect("both are here");
                connections.end(control, open, links);
                by_cost
            };
            let by_cost: Vec<bool> = thread::scope(|scope| {
                let running: Vec<_> =
                    nodes.iter_mut().map(|one| scope.spawn(|| begin(one))).collect();
                running.into_iter().map(|node| node.join().expect("no panic")).collect()
            });
            assert_eq!(by_cost, [used; 2], "{costs:?}");
        }
        close(nodes);
    }

    #[test]
    fn what_one_node_does_not_keep_none_uses() {
        let settings = Settings::default();
        let session = SessionConnections::default();
        let mut nodes = session.take_threads(2).expect("two nodes");
        let shm = FabricKind::Shm;
        statement(&mut nodes, shm, &settings, well);
        let drops = |control: &Control, connections: &mut NodeConnections, open, mut links| {
            let lost: &mut NodeLinks = &mut links;
            if control.rank() == 1 {
                lost[0][0] = None;
            }
            connections.end(control, open, links);
        };
        assert_eq!(statement(&mut nodes, shm, &settings, drops), [(2, 8); 2]);
        assert_eq!(statement(&mut nodes, shm, &settings, well), [(3, 4); 2]);
        let fails = |control: &Control, connections: &mut NodeConnections, open, links| {
            if control.rank() == 0 {
                connections.end(control, open, links);
            }
        };
        assert_eq!(statement(&mut nodes, shm, &settings, fails), [(4, 8); 2]);
        assert_eq!(statement(&mut nodes, shm, &settings, well), [(5, 4); 2]);
        let cancelled = |control: &Control, connections: &mut NodeConnections, open, links| {
            control.cancel();
            connections.end(control, open, links);
            assert!(connections.kept.is_none());
        };
        statement(&mut nodes, shm, &settings, cancelled);
        session.end_threads(nodes, true);
        assert!(session.lock().is_none(), "a cancelled job leaves nothing");
    }

    #[test]
    fn connections_belong_to_the_handle_that_they_were_made_with() {
        let session = SessionConnections::default();
        let [first, second] = [(); 2].map(|()| Control::solo().expect("a handle"));
        let connections =
            NodeConnections { last: StatementNumber::new(7), ..NodeConnections::default() };
        session.end_process(&first, connections);
        assert_eq!(session.take_process(&second).last, StatementNumber::default());
        let connections =
            NodeConnections { last: StatementNumber::new(7), ..NodeConnections::default() };
        session.end_process(&first, connections);
        assert_eq!(session.take_process(&first).last, StatementNumber::new(7));
        assert_eq!(session.take_process(&first).last, StatementNumber::default(), "it was taken");
    }
}
