//! A whole cluster on one thread: every worker of every node over the simulated fabric, in virtual
//! time.
//!
//! A run is a function of the job and the seed: the same two give the same trace.

use std::sync::Arc;

use channel::{Link, SharedRegion, Transfer, Tuning};
use dataflow::bad::BadRows;
use dataflow::error::DataflowError;
use dataflow::job::JobGraph;
use dataflow::metrics::Metrics;
use dataflow::process::Process;
use dataflow::worker::{Signals, Status, Worker, WorkerConfig};
use fabric::multicast::{Group, GroupMember};
use fabric::sim::{SimFabric, SimNet, SimOptions};
use fabric::{Fabric, LinkId};
use state::Disk;
use state::sim::SimDisk;

use crate::reconnect::Repairs;

/// Steps after which a run that does not end is given up.
const STEPS_MAX: u64 = 20_000_000;

/// The size of a cluster and how its network behaves.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Nodes.
    pub nodes: u32,
    /// Workers of each node.
    pub workers: u32,
    /// The network's seed, faults and guarantees.
    pub network: SimOptions,
    /// A node that dies, and after how many rounds of turns.
    pub kill: Option<(u32, u64)>,
    /// Rounds of turns after which connections between two nodes break, on the average, and are
    /// made anew.
    pub breaks: Option<u64>,
    /// Where groups go that do not fit memory.
    pub disk: Option<Arc<SimDisk>>,
}

/// What a run came to.
#[derive(Debug)]
pub struct Run {
    /// The counters of each worker.
    pub metrics: Vec<Arc<Metrics>>,
    /// Rows that could not be read.
    pub bad: Arc<BadRows>,
    /// A hash over everything that the network did.
    pub trace: u64,
    /// Virtual time that passed.
    pub elapsed_ns: u64,
    /// Turns of workers.
    pub steps: u64,
}

impl Run {
    /// The sum of a counter over the workers.
    pub fn sum(&self, counter: impl Fn(&Metrics) -> &std::sync::atomic::AtomicU64) -> u64 {
        self.metrics.iter().map(|m| counter(m).load(std::sync::atomic::Ordering::Relaxed)).sum()
    }
}

impl Cluster {
    /// A hostile network with this seed.
    pub fn seeded(nodes: u32, workers: u32, seed: u64) -> Self {
        let network = SimOptions::seeded(seed);
        Self { nodes, workers, network, kill: None, breaks: None, disk: None }
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// The first failure of a worker.
    ///
    /// # Panics
    /// When nothing moves any more and the job has not ended: a deadlock.
    pub fn run(&self, job: &Arc<JobGraph>) -> Result<Run, DataflowError> {
        let net = SimNet::new(self.network.clone());
        let total = self.nodes * self.workers;
        let bad = Arc::new(BadRows::default());
        let metrics: Vec<_> = (0..total).map(|_| Arc::new(Metrics::default())).collect();
        let signals = Arc::new(Signals::default());
        let process = |node| Process::new(node, self.workers).expect("there are descriptors");
        let processes: Vec<_> = (0..self.nodes).map(process).collect();
        let size = (self.nodes, self.workers);
        let repairs = self.breaks.map(|every| Repairs::new(every, size, self.network.seed));
        let mut workers = Vec::new();
        for (worker, links) in self.links(&net, job).into_iter().enumerate() {
            workers.push(Some(Worker::new(WorkerConfig {
                bad: bad.clone(),
                metrics: metrics[worker].clone(),
                signals: signals.clone(),
                disk: self.disk.clone().map(|disk| disk as Arc<dyn Disk>),
                reconnector: repairs.as_ref().map(|repairs| repairs.reconnector(worker as u32)),
                multicast: self.member(&net, worker as u32),
                ..WorkerConfig::new(
                    worker as u32,
                    total,
                    processes[worker / self.workers as usize].clone(),
                    job.clone(),
                    links,
                    net.clock(),
                )
            })?));
        }
        let steps = self.drive(&net, &mut workers, repairs)?;
        let (trace, elapsed_ns) = (net.trace_hash(), net.now_ns());
        Ok(Run { metrics, bad, trace, elapsed_ns, steps })
    }

    /// In the group of the workers with the same place in their node.
    pub(crate) fn member(&self, net: &SimNet, worker: u32) -> Option<Box<dyn GroupMember>> {
        let fabric = net.fabric(worker / self.workers);
        let group = Group::new(*b"group of the job").branch(worker % self.workers);
        Some(fabric.multicast()?.join(group).expect("the simulator has room"))
    }

    /// Connects every pair of workers of two nodes; `[worker][peer]`.
    pub(crate) fn links(&self, net: &SimNet, job: &JobGraph) -> Vec<Vec<Option<Link>>> {
        let total = self.nodes * self.workers;
        let fabrics: Vec<Arc<SimFabric>> = (0..self.nodes).map(|node| net.fabric(node)).collect();
        let fabric = |worker: u32| fabrics[(worker / self.workers) as usize].clone();
        let ring = job.settings.ring;
        let region = |worker: u32| {
            let fabric: Arc<dyn Fabric> = fabric(worker);
            SharedRegion::new(&fabric, &ring, job.settings.region_slots())
                .expect("the simulator has room")
        };
        let lends = ring.transfer == Transfer::Region;
        let regions: Vec<_> = (0..total).map(|worker| lends.then(|| region(worker))).collect();
        let mut links: Vec<Vec<Option<Link>>> =
            (0..total).map(|_| (0..total).map(|_| None).collect()).collect();
        for a in 0..total {
            for b in (a + 1..total).filter(|b| a / self.workers != b / self.workers) {
                let offer = |local, remote| {
                    let offer = fabric(local).offer(LinkId { local, remote });
                    offer.expect("the simulator refuses nothing")
                };
                let (here, there) = (offer(a, b), offer(b, a));
                let (to_there, to_here) = (there.address(), here.address());
                let connect = |offer: Box<dyn fabric::Offer>, peer: &[u8], worker: u32| {
                    let endpoint = offer.connect(peer).expect("the simulator connects");
                    let tuning = Tuning {
                        credit_slots: job.settings.wires.credit_slots,
                        ..Tuning::default()
                    };
                    let link = Link::new(fabric(worker).as_ref(), endpoint, job.settings.ring, 1)
                        .expect("the configuration is valid")
                        .tuned(tuning);
                    match &regions[worker as usize] {
                        Some(region) => link.lending(region.clone()),
                        None => link,
                    }
                };
                let mut here = connect(here, &to_there, a);
                let mut there = connect(there, &to_here, b);
                here.attach(&there.descriptor()).expect("the peer is alike");
                there.attach(&here.descriptor()).expect("the peer is alike");
                links[a as usize][b as usize] = Some(here);
                links[b as usize][a as usize] = Some(there);
            }
        }
        links
    }

    /// Gives each worker a turn, then the network; moves time on when nobody has anything to do.
    fn drive(
        &self,
        net: &SimNet,
        workers: &mut [Option<Worker>],
        mut repairs: Option<Repairs>,
    ) -> Result<u64, DataflowError> {
        let (mut steps, mut rounds) = (0, 0);
        while workers.iter().any(Option::is_some) {
            rounds += 1;
            if let Some((node, _)) = self.kill.filter(|&(_, round)| round == rounds) {
                net.kill(node);
            }
            let mut wake: Option<u64> = None;
            let mut busy = repairs.as_mut().is_some_and(|repairs| repairs.turn(net));
            for (number, slot) in workers.iter_mut().enumerate() {
                let Some(worker) = slot else { continue };
                if !net.runs(number as u32 / self.workers) {
                    continue;
                }
                steps += 1;
                match worker.step()? {
                    Status::Done => {
                        *slot = None;
                        busy = true;
                    }
                    Status::Busy => busy = true,
                    Status::Idle { wake_ns } => wake = wake.into_iter().chain(wake_ns).min(),
                }
            }
            match (net.next_event_ns(), wake) {
                (Some(event), wake) if wake.is_none_or(|wake| event <= wake) => {
                    net.step();
                }
                (_, Some(wake)) if !busy => net.advance_to(wake.max(net.now_ns() + 1)),
                _ => assert!(busy, "nothing moves any more, and the job has not ended"),
            }
            assert!(steps < STEPS_MAX, "the job does not end");
        }
        Ok(steps)
    }
}
