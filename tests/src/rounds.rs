//! A job that keeps checkpoints, in the simulator: rounds end at random turns, and the whole
//! cluster is lost at random turns and goes on with another number of workers.

use std::sync::{Arc, Mutex};

use dataflow::checkpoint::{CheckpointTarget, Restored, RunId, WorkerSnapshot};
use dataflow::error::DataflowError;
use dataflow::job::{JobGraph, OperatorKind};
use dataflow::process::Process;
use dataflow::sink::Publishing;
use dataflow::worker::{Signals, Status, Worker, WorkerConfig};
use fabric::sim::{SimNet, SimOptions};

use crate::cluster::Cluster;
use crate::random::Random;

/// Turns after which a run that does not end is given up.
const TURNS_MAX: u64 = 200_000;

/// The fate of a job.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ran {
    /// Rounds that all workers saved.
    pub saved: u64,
    /// How often the cluster was lost.
    pub crashes: u64,
    /// How often it went on from a round that was saved, and not from the beginning.
    pub restored: u64,
    /// Rows of state that were saved.
    pub rows: u64,
}

/// Takes what workers save.
#[derive(Default)]
struct Kept(Mutex<Vec<WorkerSnapshot>>);

impl CheckpointTarget for Kept {
    fn run(&self) -> RunId {
        RunId { job: 1, generation: 1 }
    }

    fn saved(&self, snapshot: WorkerSnapshot) {
        self.0.lock().expect("not poisoned").push(snapshot);
    }
}

/// A job in the hands of whoever decides when rounds end.
struct Leader<'a> {
    job: &'a JobGraph,
    workers: u32,
    /// The round that is under way.
    round: u64,
    asked: bool,
    /// Its saved parts, and those of workers that have ended.
    saved: Vec<WorkerSnapshot>,
    last: Vec<WorkerSnapshot>,
    /// All workers have ended, and everything is published.
    is_over: bool,
}

impl Leader<'_> {
    /// Takes the snapshots of workers. Gives the whole round, when it is, whose rows are published.
    fn take(&mut self, kept: &Kept) -> Option<Restored> {
        for snapshot in kept.0.lock().expect("not poisoned").drain(..) {
            if snapshot.last {
                // It may have saved the round that is under way, and ended in the next one.
                assert!(snapshot.round <= self.round + 1, "no other can be under way");
                self.last.push(snapshot);
            } else {
                assert!(self.asked && snapshot.round == self.round, "it was asked for");
                self.saved.push(snapshot);
            }
        }
        let round = self.round;
        let has_ended = |last: &&mut WorkerSnapshot| last.round <= round;
        let ended = self.last.iter().filter(|last| last.round <= round).count();
        let all_ended = ended == self.workers as usize;
        let is_whole = self.saved.len() + ended == self.workers as usize;
        if self.is_over || !is_whole || !(self.asked || all_ended) {
            return None;
        }
        let mut workers = std::mem::take(&mut self.saved);
        for last in self.last.iter_mut().filter(has_ended) {
            workers.push(last.clone());
            // They are published once.
            last.sinks.clear();
        }
        for sink in workers.iter().flat_map(|worker| &worker.sinks) {
            let OperatorKind::Sink(of) = &self.job.operators[sink.operator as usize].kind else {
                panic!("operator {} is no sink", sink.operator);
            };
            let how = Publishing { last: all_ended, again: false, mark: None };
            of.sink.publish(std::slice::from_ref(&sink.staged), how).expect("it is staged");
        }
        (self.round, self.asked, self.is_over) = (round + 1, false, all_ended);
        Some(Restored { round, workers })
    }
}

/// Runs a job to its end, on clusters of these sizes in turn, and loses each but the last.
///
/// # Errors
/// The first failure of a worker.
///
/// # Panics
/// When nothing moves any more and the job has not ended.
pub fn run(
    job: impl Fn(u32, u32) -> Arc<JobGraph>,
    sizes: &[(u32, u32)],
    seed: u64,
) -> Result<Ran, DataflowError> {
    let mut random = Random::new(seed);
    let mut ran = Ran::default();
    let mut restored: Option<Arc<Restored>> = None;
    for (at, &(nodes, workers)) in sizes.iter().enumerate() {
        let job = job(nodes, workers);
        let network = SimOptions::seeded(random.number());
        let cluster = Cluster { network, ..Cluster::seeded(nodes, workers, seed) };
        let about = 1 << random.below(10);
        let turns = (at + 1 < sizes.len()).then(|| 1 + random.below(about));
        let attempt = Attempt { cluster, job, restored: restored.take(), turns };
        let (ended, whole) = attempt.run(&mut random, &mut ran)?;
        if ended {
            return Ok(ran);
        }
        ran.crashes += 1;
        ran.restored += u64::from(whole.is_some());
        restored = whole;
    }
    Ok(ran)
}

/// One run of a job, which is lost after a number of turns.
struct Attempt {
    cluster: Cluster,
    job: Arc<JobGraph>,
    restored: Option<Arc<Restored>>,
    turns: Option<u64>,
}

impl Ran {
    /// Counts a round that was saved.
    fn count(&mut self, whole: &Restored) {
        let operators = whole.workers.iter().flat_map(|worker| &worker.operators);
        let parts = operators.flat_map(|operator| &operator.parts);
        self.rows += parts.map(|part| part.rows.num_rows() as u64).sum::<u64>();
        self.saved += 1;
    }
}

impl Attempt {
    /// Whether the job has ended, and the last round that was saved.
    fn run(
        self,
        random: &mut Random,
        ran: &mut Ran,
    ) -> Result<(bool, Option<Arc<Restored>>), DataflowError> {
        let Self { cluster, job, mut restored, turns } = self;
        let net = SimNet::new(cluster.network.clone());
        let nodes: Vec<Arc<Signals>> = (0..cluster.nodes).map(|_| Arc::default()).collect();
        let (kept, round) = (Arc::<Kept>::default(), restored.as_ref().map_or(0, |r| r.round + 1));
        let mut workers = workers(&cluster, &net, &job, &nodes, &kept, restored.as_ref())?;
        let (last, saved) = (vec![], vec![]);
        let count = cluster.nodes * cluster.workers;
        let (asked, is_over) = (false, false);
        let mut leader = Leader { job: &job, workers: count, round, asked, saved, last, is_over };
        let every = 1 + random.below(60);
        let mut told = vec![];
        for turn in 0.. {
            assert!(
                turn < TURNS_MAX,
                "round {} does not end: asked {}, {} of {count} have saved it, {} have ended",
                leader.round,
                leader.asked,
                leader.saved.len(),
                leader.last.len()
            );
            if turns == Some(turn) {
                return Ok((false, restored));
            }
            if !leader.asked && !leader.is_over && random.below(every) == 0 {
                leader.asked = true;
                // Others may hear of it by the marker first.
                told = (0..nodes.len()).collect();
            }
            if !told.is_empty() && random.chance(10) {
                let node = told.swap_remove(random.below(told.len() as u64) as usize);
                nodes[node].end_round(leader.round);
            }
            let mut wake: Option<u64> = None;
            let mut busy = !told.is_empty();
            for slot in &mut workers {
                let Some(worker) = slot else { continue };
                match worker.step()? {
                    Status::Done => (*slot, busy) = (None, true),
                    Status::Busy => busy = true,
                    Status::Idle { wake_ns } => wake = wake.into_iter().chain(wake_ns).min(),
                }
            }
            if let Some(whole) = leader.take(&kept) {
                told.clear();
                ran.count(&whole);
                restored = Some(Arc::new(whole));
                busy = true;
            }
            if workers.iter().all(Option::is_none) {
                assert_eq!(leader.last.len(), count as usize, "each has said that it has ended");
                return Ok((true, restored));
            }
            match (net.next_event_ns(), wake) {
                (Some(event), wake) if wake.is_none_or(|wake| event <= wake) => {
                    net.step();
                }
                (_, Some(wake)) if !busy => net.advance_to(wake.max(net.now_ns() + 1)),
                _ => assert!(
                    busy,
                    "nothing moves any more in round {}: asked {}, {} of {count} have saved it, {} \
                     have ended, {turn} turns",
                    leader.round,
                    leader.asked,
                    leader.saved.len(),
                    leader.last.len()
                ),
            }
        }
        unreachable!("turns have a bound")
    }
}

fn workers(
    cluster: &Cluster,
    net: &SimNet,
    job: &Arc<JobGraph>,
    nodes: &[Arc<Signals>],
    kept: &Arc<Kept>,
    restored: Option<&Arc<Restored>>,
) -> Result<Vec<Option<Worker>>, DataflowError> {
    let process = |node| Process::new(node, cluster.workers).expect("there are descriptors");
    let processes: Vec<_> = (0..cluster.nodes).map(process).collect();
    let total = cluster.nodes * cluster.workers;
    let worker = |(worker, links): (u32, _)| {
        let node = (worker / cluster.workers) as usize;
        let config = WorkerConfig {
            signals: nodes[node].clone(),
            multicast: cluster.member(net, worker),
            checkpoints: Some(kept.clone() as Arc<dyn CheckpointTarget>),
            round: restored.map_or(0, |restored| restored.round + 1),
            restored: restored.cloned(),
            ..WorkerConfig::new(
                worker,
                total,
                processes[node].clone(),
                job.clone(),
                links,
                net.clock(),
            )
        };
        Worker::new(config).map(Some)
    };
    (0..).zip(cluster.links(net, job)).map(worker).collect()
}
