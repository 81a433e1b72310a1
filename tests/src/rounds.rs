//! A job that keeps checkpoints, in the simulator: rounds end at random turns, the whole cluster is
//! lost at random turns, and the job goes on with another number of workers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dataflow::checkpoint::{
    CheckpointTarget, OperatorSnapshot, Restored, RowsId, RunId, StoredRows, WorkerSnapshot,
};
use dataflow::error::DataflowError;
use dataflow::job::{JobGraph, OperatorKind};
use dataflow::process::Process;
use dataflow::sink::Publishing;
use dataflow::worker::{Signals, Status, Worker, WorkerConfig};
use fabric::sim::{SimNet, SimOptions};
use state::Disk;
use state::sim::{SimDisk, SimDiskOptions};

use crate::cluster::Cluster;
use crate::random::Random;

/// Turns after which a run that does not end is given up.
const TURNS_MAX: u64 = 200_000;
/// Turns after which a round that does not end is given up.
const ROUND_TURNS_MAX: u64 = 100_000;

/// Counts of what happened to a job.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ran {
    /// Rounds that all workers saved.
    pub saved: u64,
    /// Losses of the cluster.
    pub crashes: u64,
    /// Losses behind which it went on from a saved round, and not from the beginning.
    pub restored: u64,
    /// Rows of state that were saved.
    pub rows: u64,
    /// Blocks of groups that were saved by the round before, and had not changed since.
    pub unchanged: u64,
    /// Rows in memory or on a disk that the round before had under the same number.
    pub referred: u64,
    /// Rounds that the run behind the one that saved them published.
    pub published_again: u64,
    /// Reads of state from a disk.
    pub disk_reads: u64,
    /// Rows that came too late, as the saved rounds count them.
    pub late: u64,
    /// The most turns from the end of a round until all had saved it.
    pub round_turns_max: u64,
}

impl Ran {
    /// Adds the counts of another job.
    pub fn add(&mut self, other: &Self) {
        self.saved += other.saved;
        self.crashes += other.crashes;
        self.restored += other.restored;
        self.rows += other.rows;
        self.unchanged += other.unchanged;
        self.referred += other.referred;
        self.published_again += other.published_again;
        self.disk_reads += other.disk_reads;
        self.late += other.late;
        self.round_turns_max = self.round_turns_max.max(other.round_turns_max);
    }
}

/// The runs of a job.
#[derive(Debug, Clone, Copy)]
pub struct Restarts<'a> {
    /// Nodes and workers of each run. All runs but the last are lost.
    pub sizes: &'a [(u32, u32)],
    /// Whether state that does not fit its budget goes to a disk.
    pub spills: bool,
    /// All random choices are a function of it.
    pub seed: u64,
}

/// Takes the snapshots of workers.
#[derive(Default)]
struct Kept {
    snapshots: Mutex<Vec<WorkerSnapshot>>,
    /// The number behind the last round that workers know to be recorded; 0 if they know none.
    known: AtomicU64,
}

/// The rows of a round that have numbers, by worker, operator and number.
type Numbered = BTreeMap<(u32, u32, RowsId), StoredRows>;

/// Replaces rows that have the number of rows of the round before by these, as a checkpoint does
/// that refers to them: those that were not copied, and those that are there too. They come in
/// front of the others. Gives how many there are of both.
fn complete(whole: &mut Restored, before: &mut Numbered) -> [u64; 2] {
    let (mut numbered, mut same_rows) = (Numbered::new(), [0; 2]);
    for WorkerSnapshot { worker, operators, .. } in &mut whole.workers {
        for OperatorSnapshot { operator, stored, .. } in operators {
            let number = |rows: &StoredRows| Some((*worker, *operator, rows.rows.id()?));
            for rows in &mut *stored {
                let Some(id) = number(rows) else { continue };
                if let Some(same) = before.get(&id) {
                    same_rows[usize::from(!rows.rows.is_recorded())] += 1;
                    *rows = same.clone();
                }
                assert!(!rows.rows.is_recorded(), "the round before has them");
                numbered.insert(id, rows.clone());
            }
            stored.sort_by_key(|rows| number(rows).is_none_or(|id| !before.contains_key(&id)));
        }
    }
    *before = numbered;
    same_rows
}

impl CheckpointTarget for Kept {
    fn run(&self) -> RunId {
        RunId { job: 1, generation: 1 }
    }

    fn saved(&self, snapshot: WorkerSnapshot) {
        self.snapshots.lock().expect("not poisoned").push(snapshot);
    }

    fn recorded(&self) -> Option<u64> {
        self.known.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// The rounds of a job: the simulator asks for their end, and collects what workers save.
struct Leader {
    workers: u32,
    /// The round that is under way.
    round: u64,
    asked: bool,
    /// The snapshots of this round, and the last ones of workers that have ended.
    saved: Vec<WorkerSnapshot>,
    last: Vec<WorkerSnapshot>,
    /// All workers have ended, and everything is published.
    is_over: bool,
}

impl Leader {
    /// The progress of the round, for messages.
    fn state(&self) -> String {
        format!(
            "round {}: asked {}, {} of {} have saved it, {} have ended",
            self.round,
            self.asked,
            self.saved.len(),
            self.workers,
            self.last.len()
        )
    }

    /// Takes the snapshots of workers. Gives the round when it is whole, to be published.
    fn take(&mut self, kept: &Kept) -> Option<Restored> {
        for snapshot in kept.snapshots.lock().expect("not poisoned").drain(..) {
            if snapshot.last {
                // A worker may save the round that is under way, and end in the next one.
                assert!(snapshot.round <= self.round + 1, "no other can be under way");
                self.last.push(snapshot);
            } else {
                assert!(self.asked && snapshot.round == self.round, "it was asked for");
                self.saved.push(snapshot);
            }
        }
        let round = self.round;
        let has_ended = |last: &&mut WorkerSnapshot| last.round <= round;
        let ended = self.last.iter_mut().filter(has_ended).count();
        let all_ended = ended == self.workers as usize;
        let is_whole = self.saved.len() + ended == self.workers as usize;
        if self.is_over || !is_whole || !(self.asked || all_ended) {
            return None;
        }
        let mut workers = std::mem::take(&mut self.saved);
        for last in self.last.iter_mut().filter(has_ended) {
            workers.push(last.clone());
            // Its rows are published once.
            last.sinks.clear();
        }
        (self.round, self.asked, self.is_over) = (round + 1, false, all_ended);
        Some(Restored { round, workers })
    }
}

/// Publishes the rows that a round has staged.
fn publish(job: &JobGraph, round: &Restored, how: Publishing) {
    for sink in round.workers.iter().flat_map(|worker| &worker.sinks) {
        let OperatorKind::Sink(of) = &job.operators[sink.operator as usize].kind else {
            panic!("operator {} is no sink", sink.operator);
        };
        of.sink.publish(std::slice::from_ref(&sink.staged), how).expect("it is staged");
    }
}

/// Runs a job to its end, and loses each run but the last. `job` makes the graph of a run.
///
/// # Errors
/// The first failure of a worker.
///
/// # Panics
/// A job that cannot go on before its end, and a round or a job that does not end.
pub fn run(
    job: impl Fn(usize) -> Arc<JobGraph>,
    restarts: Restarts<'_>,
) -> Result<Ran, DataflowError> {
    let Restarts { sizes, spills, seed } = restarts;
    let mut random = Random::new(seed);
    let mut ran = Ran::default();
    let mut restored: Option<Arc<Restored>> = None;
    for (at, &(nodes, workers)) in sizes.iter().enumerate() {
        let job = job(at);
        let network = SimOptions::seeded(random.number());
        let disk = spills.then(|| SimDisk::new(SimDiskOptions::default()));
        let cluster = Cluster { network, disk, ..Cluster::seeded(nodes, workers, seed) };
        let about = 1 << random.below(10);
        let turns = (at + 1 < sizes.len()).then(|| 1 + random.below(about));
        let disk = cluster.disk.clone();
        let attempt = Attempt { cluster, job: job.clone(), restored: restored.take(), turns };
        let lost = match attempt.run(&mut random, &mut ran)? {
            Fate::Ended => None,
            Fate::Lost(lost) => Some(lost),
        };
        ran.disk_reads += disk.map_or(0, |disk| disk.reads());
        let Some(lost) = lost else { return Ok(ran) };
        ran.crashes += 1;
        ran.restored += u64::from(lost.round.is_some());
        if let (Some(round), Some(how)) = (&lost.round, lost.to_publish) {
            publish(&job, round, how);
            ran.published_again += 1;
            if how.last {
                return Ok(ran);
            }
        }
        restored = lost.round;
    }
    Ok(ran)
}

/// The fate of a run.
enum Fate {
    Ended,
    Lost(Lost),
}

/// The state that a lost run leaves.
struct Lost {
    /// The last round that was saved.
    round: Option<Arc<Restored>>,
    /// The way to publish it, if it was saved and not published.
    to_publish: Option<Publishing>,
}

/// One run of a job, which is lost after a number of turns.
struct Attempt {
    cluster: Cluster,
    job: Arc<JobGraph>,
    restored: Option<Arc<Restored>>,
    turns: Option<u64>,
}

impl Ran {
    /// Counts a round that was saved within a number of turns.
    fn count(&mut self, whole: &Restored, turns: u64, late_before: u64) {
        self.round_turns_max = self.round_turns_max.max(turns);
        // A worker counts those of its own run.
        self.late = late_before + whole.workers.iter().map(|worker| worker.late).sum::<u64>();
        let operators = whole.workers.iter().flat_map(|worker| &worker.operators);
        let parts = operators.flat_map(|operator| &operator.parts);
        self.rows += parts.map(|part| part.rows.num_rows() as u64).sum::<u64>();
        self.saved += 1;
    }
}

impl Attempt {
    /// Runs the job until it has ended or the run is lost.
    fn run(self, random: &mut Random, ran: &mut Ran) -> Result<Fate, DataflowError> {
        let (Self { cluster, job, mut restored, turns }, late_before) = (self, ran.late);
        let net = SimNet::new(cluster.network.clone());
        let nodes: Vec<Arc<Signals>> = (0..cluster.nodes).map(|_| Arc::default()).collect();
        let (kept, round) = (Arc::<Kept>::default(), restored.as_ref().map_or(0, |r| r.round + 1));
        let mut workers = workers(&cluster, &net, &job, &nodes, &kept, restored.as_ref())?;
        let (last, saved) = (vec![], vec![]);
        let count = cluster.nodes * cluster.workers;
        let (asked, is_over) = (false, false);
        let mut leader = Leader { workers: count, round, asked, saved, last, is_over };
        let (every, mut asked_at) = (1 + random.below(60), 0);
        let (mut told, mut numbered) = (vec![], Numbered::new());
        for turn in 0..TURNS_MAX {
            if turns == Some(turn) {
                return Ok(Fate::Lost(Lost { round: restored, to_publish: None }));
            }
            if !leader.asked && !leader.is_over && random.below(every) == 0 {
                (leader.asked, asked_at) = (true, turn);
                // A worker whose node gets the order late begins the round by a marker.
                told = (0..nodes.len()).collect();
            }
            assert!(!leader.asked || turn - asked_at < ROUND_TURNS_MAX, "{}", leader.state());
            if !told.is_empty() && random.chance(10) {
                let node = told.swap_remove(random.below(told.len() as u64) as usize);
                nodes[node].end_round(leader.round);
            }
            let (mut busy, wake) = step_all(&mut workers)?;
            busy |= !told.is_empty();
            let since = if leader.asked { turn - asked_at } else { 0 };
            if let Some(mut whole) = leader.take(&kept) {
                told.clear();
                let [unchanged, referred] = complete(&mut whole, &mut numbered);
                ran.unchanged += unchanged;
                ran.referred += referred;
                // Workers know that every other round is recorded.
                if whole.round % 2 == 0 {
                    kept.known.store(whole.round + 1, Ordering::Relaxed);
                }
                ran.count(&whole, since, late_before);
                let whole = restored.insert(Arc::new(whole));
                // The run is lost by chance when the round is saved and not published.
                let again = turns.is_some() && random.chance(4);
                let how = Publishing { last: leader.is_over, again, mark: None };
                if again {
                    return Ok(Fate::Lost(Lost { round: restored, to_publish: Some(how) }));
                }
                publish(&job, whole, how);
                busy = true;
            }
            if workers.iter().all(Option::is_none) {
                assert_eq!(leader.last.len(), count as usize, "each has said that it has ended");
                assert!(leader.is_over, "all is published: {}", leader.state());
                return Ok(Fate::Ended);
            }
            match (net.next_event_ns(), wake) {
                (Some(event), wake) if wake.is_none_or(|wake| event <= wake) => {
                    net.step();
                }
                (_, Some(wake)) if !busy => net.advance_to(wake.max(net.now_ns() + 1)),
                _ => assert!(busy, "nothing moves any more, {turn} turns: {}", leader.state()),
            }
        }
        panic!("the job does not end: {}", leader.state())
    }
}

/// Gives each worker a turn. Tells whether one has done something, and the time at which one wakes.
fn step_all(workers: &mut [Option<Worker>]) -> Result<(bool, Option<u64>), DataflowError> {
    let (mut busy, mut wake): (bool, Option<u64>) = (false, None);
    for slot in workers {
        let Some(worker) = slot else { continue };
        match worker.step()? {
            Status::Done => (*slot, busy) = (None, true),
            Status::Busy => busy = true,
            Status::Idle { wake_ns } => wake = wake.into_iter().chain(wake_ns).min(),
        }
    }
    Ok((busy, wake))
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
            disk: cluster.disk.clone().map(|disk| disk as Arc<dyn Disk>),
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
