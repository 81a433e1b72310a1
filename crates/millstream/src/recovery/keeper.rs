//! A node's thread that stores what its workers keep of a round: no worker waits for a disk.
//!
//! Rows that sinks have staged are part of the checkpoint of their round, or of a later one where
//! that was given up: they stay here until the leader says that a checkpoint with them is stored.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use checkpoint::chain::{
    Chain, References, SectionPlace, SegmentUpload, StoredSection, segment_file, segment_name,
};
use checkpoint::{CheckpointError, CheckpointManifest, ObjectName, SegmentEntry, Store};
use dataflow::checkpoint::{CheckpointTarget, RunId, SinkSnapshot, SplitSnapshot, WorkerSnapshot};
use dataflow::error::DataflowError;
use dataflow::job::{JobGraph, OperatorKind};
use dataflow::sink::{Publishing, SinkVisibility, UnsyncedOutput};

use super::encode::{self, Decoded, Earlier, OperatorNames, StoredId};
use super::functions;
use super::ids::{FittedState, OperatorId};
use super::loading::Loading;
use super::manifest::{manifest, marks_of, tables_of};
use super::record_timeout::{RecordTimeout, append};
use super::sweep::sweep_at_end;
use crate::checkpoints::{BAD, LATE, RestoredCheckpoint};
use crate::error::Error;

/// The name under which a manifest says that the job has read all of its input.
pub(super) const ENDED: &str = "ended";

/// Threads that bring staged output to the disk at the same time: it waits for the disk, and each
/// wait is short.
const SYNCS_MAX: usize = 8;

/// Bytes that a sink of a node may have staged and no checkpoint of the chain names, for each
/// worker of the node: a few times what one stages of a round at most.
const WAITING_BYTES_MAX: usize = if cfg!(test) { 1 << 10 } else { 1 << 30 };

/// An event at a node.
pub(super) enum KeeperEvent {
    /// A worker has kept its part of a round.
    Saved(WorkerSnapshot),
    /// The leader ends a round. Output up to the checkpoint `stored` is in the chain.
    EndRound { round: u64, stored: u64 },
    /// At the leader: all nodes have stored their part of a round.
    Complete { round: u64, parts: Vec<SegmentEntry>, end: RoundEnd },
    /// At the leader: the checkpoint of a round is given up, of which these nodes have stored their
    /// parts.
    Discard { round: u64, nodes: Vec<u32> },
}

/// The fate of a job behind a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundEnd {
    /// It goes on.
    GoesOn,
    /// It is stopped, and goes on when it is run again.
    Stops,
    /// It has ended.
    Ended,
}

/// A report of a node's checkpoint thread.
pub(super) enum KeeperReport {
    /// All workers of the node have saved a round, and its part is being stored.
    Saved { round: u64 },
    /// The node's part of a round is stored, or why it is not.
    Part { round: u64, stored: Result<SegmentEntry, CheckpointError> },
    /// All workers of the node have ended.
    Ended,
    /// Output that was staged is not durable, so that no checkpoint can have it.
    Failed(Error),
    /// At the leader: a checkpoint is in the chain and its output is published, or why not.
    Checkpoint { round: u64, end: RoundEnd, stored: Result<(), Error> },
}

/// Takes snapshots on workers' threads.
pub(super) struct Target {
    pub(super) run: RunId,
    /// Behind a lock, for a sender is not shared.
    pub(super) events: Mutex<Sender<KeeperEvent>>,
    pub(super) recorded: Arc<RecordedRound>,
}

/// The last round that is in the chain, for workers, which do not keep again what it has.
#[derive(Debug, Default)]
pub(super) struct RecordedRound {
    /// Its number, or 0.
    round: AtomicU64,
    /// Earlier rounds are not taken for recorded, since a section of them could not be read.
    since: AtomicU64,
}

impl RecordedRound {
    /// Notes that a round is in the chain, behind the event by which the thread of the node knows
    /// it: a snapshot without the groups of that round comes behind this event. Release, as the
    /// load is Acquire.
    pub(super) fn set(&self, round: u64) {
        self.round.store(round, Ordering::Release);
    }

    /// Workers keep all that they have, until a round from this one on is in the chain.
    fn lose(&self, since: u64) {
        self.since.fetch_max(since, Ordering::Release);
    }

    /// The round, if there is one.
    fn get(&self) -> Option<u64> {
        let round = self.round.load(Ordering::Acquire);
        // No round of a job is 0.
        (round >= self.since.load(Ordering::Acquire).max(1)).then_some(round)
    }
}

impl CheckpointTarget for Target {
    fn run(&self) -> RunId {
        self.run
    }

    fn saved(&self, snapshot: WorkerSnapshot) {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a receiver the job has failed.
        let _ = events.send(KeeperEvent::Saved(snapshot));
    }

    fn recorded(&self) -> Option<u64> {
        self.recorded.get()
    }
}

/// The state of a node's checkpoint thread.
pub(super) struct Keeper {
    pub(super) store: Arc<dyn Store>,
    pub(super) name: ObjectName,
    pub(super) job: Arc<JobGraph>,
    pub(super) ids: Arc<[OperatorId]>,
    pub(super) generation: u64,
    pub(super) node: u32,
    pub(super) nodes: u32,
    /// The workers of the node.
    pub(super) workers: std::ops::Range<u32>,
    pub(super) workers_in_all: u32,
    pub(super) fingerprint: String,
    /// At the leader.
    pub(super) chain: Option<Chain>,
    pub(super) to: Sender<KeeperReport>,
    /// The counts of earlier runs.
    pub(super) before: RestoredCheckpoint,
    pub(super) recorded: Arc<RecordedRound>,
    pub(super) record_timeout: Arc<RecordTimeout>,
    state: KeeperState,
}

#[derive(Default)]
struct KeeperState {
    /// By worker, what it has kept of the round under way.
    saved: HashMap<u32, WorkerSnapshot>,
    /// By worker, how it has ended.
    ended: HashMap<u32, WorkerSnapshot>,
    /// The round that the leader ends.
    round: Option<u64>,
    /// Staged parts that no checkpoint of the chain names, with round and worker.
    waiting: Vec<(u64, u32, SinkSnapshot)>,
    /// The same of sinks whose rows are kept until the end: each has those of the earlier ones.
    until_end: Vec<(u64, u32, SinkSnapshot)>,
    /// Staged output that is not durable, with its round and operator.
    unsynced: Vec<(u64, u32, Arc<dyn UnsyncedOutput>)>,
    /// Why output is not durable that was staged: no checkpoint of this run can follow.
    lost: Option<String>,
    /// The sections that a checkpoint may refer to.
    references: References<StoredId>,
    /// The rounds that may come into the chain, and how far the node's workers had read in each.
    positions: Vec<(u64, Vec<SplitSnapshot>)>,
}

impl KeeperState {
    /// How far the node's workers had read in the last checkpoint up to `stored`. The rounds before
    /// the one that ends are in the chain or given up, so that none of them is asked for again.
    fn take_positions(&mut self, stored: u64) -> Vec<SplitSnapshot> {
        let own = self.positions.drain(..).rfind(|(round, _)| *round <= stored);
        own.map(|(_, splits)| splits).unwrap_or_default()
    }

    /// The staged output of a worker that belongs to the checkpoint of a round.
    fn staged(&self, round: u64, worker: u32) -> Vec<SinkSnapshot> {
        let all = self.waiting.iter().chain(&self.until_end);
        let own = all.filter(|(of, by, _)| *of <= round && *by == worker);
        own.map(|(.., sink)| sink.clone()).collect()
    }

    /// Drops rows that are kept until the end where a later part, which is not behind the round,
    /// has them too. A worker may be ahead of the round that the leader ends.
    fn forget_covered(&mut self, round: u64) {
        let newest = |worker: u32, operator: u32| {
            let of = |(_, by, sink): &&(u64, u32, SinkSnapshot)| {
                *by == worker && sink.operator == operator
            };
            let own = self.until_end.iter().filter(of).map(|(of, ..)| *of);
            own.filter(|of| *of <= round).max()
        };
        let covered: Vec<bool> = self
            .until_end
            .iter()
            .map(|(of, worker, sink)| {
                newest(*worker, sink.operator).is_some_and(|newest| *of < newest)
            })
            .collect();
        let mut covered = covered.into_iter();
        self.until_end.retain(|_| !covered.next().unwrap_or(false));
    }
}

/// The thread and the way to it.
pub(super) struct KeeperThread {
    pub(super) events: Sender<KeeperEvent>,
    pub(super) kept: Receiver<KeeperReport>,
    pub(super) record_timeout: Arc<RecordTimeout>,
    thread: Option<JoinHandle<()>>,
}

impl KeeperThread {
    /// Begins the thread of a node, which `make` gives the way back.
    pub(super) fn start(
        make: impl FnOnce(Sender<KeeperReport>) -> Keeper,
    ) -> std::io::Result<Self> {
        let (to, kept) = mpsc::channel();
        let (events, happened) = mpsc::channel();
        let keeper = make(to);
        let record_timeout = keeper.record_timeout.clone();
        let thread = std::thread::Builder::new()
            .name("checkpoints".into())
            .spawn(move || keeper.run(&happened))?;
        Ok(Self { events, kept, record_timeout, thread: Some(thread) })
    }
}

impl Keeper {
    #[expect(clippy::too_many_arguments, reason = "it is made once, of what it is")]
    pub(super) fn new(
        store: Arc<dyn Store>,
        name: ObjectName,
        (job, ids): (Arc<JobGraph>, Arc<[OperatorId]>),
        generation: u64,
        (node, nodes): (u32, u32),
        (workers, workers_in_all): (std::ops::Range<u32>, u32),
        fingerprint: String,
        chain: Option<Chain>,
        to: Sender<KeeperReport>,
    ) -> Self {
        let state = KeeperState::default();
        Self {
            store,
            name,
            job,
            ids,
            generation,
            node,
            nodes,
            workers,
            workers_in_all,
            fingerprint,
            chain,
            to,
            before: RestoredCheckpoint::default(),
            recorded: Arc::default(),
            record_timeout: Arc::default(),
            state,
        }
    }

    /// Until nobody is left who could tell it something.
    fn run(mut self, happened: &Receiver<KeeperEvent>) {
        while let Ok(event) = happened.recv() {
            match event {
                KeeperEvent::Saved(snapshot) => self.saved(snapshot),
                KeeperEvent::EndRound { round, stored } => {
                    self.state.round = Some(round);
                    self.state.references.recorded(stored);
                    self.state.waiting.retain(|(of, ..)| *of > stored);
                    // Those of the leader, which keeps none here, were settled behind the record.
                    settle(&self.job, &self.state.take_positions(stored));
                }
                KeeperEvent::Discard { round, nodes } => {
                    self.discard(round, nodes);
                    continue;
                }
                KeeperEvent::Complete { round, parts, end } => {
                    let nodes = 0..parts.len() as u32;
                    let stored = self.complete(round, parts, end);
                    if stored.as_ref().is_err_and(Error::leaves_checkpoint_out) {
                        self.discard(round, nodes);
                    }
                    let _ = self.to.send(KeeperReport::Checkpoint { round, end, stored });
                    continue;
                }
            }
            self.store_round();
        }
    }

    fn saved(&mut self, mut snapshot: WorkerSnapshot) {
        let (worker, round) = (snapshot.worker, snapshot.round);
        for mut sink in snapshot.sinks.drain(..) {
            let unsynced = sink.unsynced.take().map(|output| (round, sink.operator, output));
            self.state.unsynced.extend(unsynced);
            let operator = self.job.operators.get(sink.operator as usize);
            let staging = operator.and_then(|operator| operator.kind.spec().sink());
            if staging.is_some_and(|sink| sink.staging() == SinkVisibility::Retained) {
                self.state.until_end.push((round, worker, sink));
            } else {
                self.state.waiting.push((round, worker, sink));
            }
        }
        self.bound_waiting();
        if snapshot.last {
            self.state.ended.insert(worker, snapshot);
            if self.state.ended.len() == self.workers.len() {
                let _ = self.to.send(KeeperReport::Ended);
            }
        } else {
            self.state.saved.insert(worker, snapshot);
        }
    }

    /// Ends the job where checkpoints are given up for so long that the staged rows that wait for
    /// one take too much memory.
    fn bound_waiting(&mut self) {
        let KeeperState { waiting, lost, .. } = &mut self.state;
        let bytes: usize = waiting.iter().map(|(.., sink)| sink.staged.len()).sum();
        let sinks: BTreeSet<u32> = waiting.iter().map(|(.., sink)| sink.operator).collect();
        let most = WAITING_BYTES_MAX * self.workers.len().max(1) * sinks.len().max(1);
        if bytes <= most || lost.is_some() {
            return;
        }
        let reason = format!(
            "rows of sinks that no checkpoint could be stored with take {bytes} bytes, more than \
             {most}"
        );
        waiting.clear();
        *lost = Some(reason.clone());
        let _ = self.to.send(KeeperReport::Failed(CheckpointError::Invalid { reason }.into()));
    }

    /// Stores the part of the round that ends, if all workers have kept theirs.
    fn store_round(&mut self) {
        let Some(round) = self.state.round else { return };
        let KeeperState { saved, ended, .. } = &mut self.state;
        let has_saved = |worker: u32| {
            saved.get(&worker).is_some_and(|saved| saved.round == round)
                || ended.contains_key(&worker)
        };
        if !self.workers.clone().all(has_saved) {
            return;
        }
        // The state of a worker is held here alone: it is dropped as it is written.
        let mut workers: Vec<WorkerSnapshot> = self
            .workers
            .clone()
            .filter_map(|worker| {
                let own = saved.get(&worker).is_some_and(|saved| saved.round == round);
                if own { saved.remove(&worker) } else { ended.get(&worker).cloned() }
            })
            .collect();
        let _ = self.to.send(KeeperReport::Saved { round });
        self.state.round = None;
        self.state.saved.retain(|_, saved| saved.round > round);
        self.state.forget_covered(round);
        if let Err(why) = self.sync(round) {
            let stored = Err(CheckpointError::Invalid { reason: why });
            let _ = self.to.send(KeeperReport::Part { round, stored });
            return;
        }
        if self.chain.is_none() {
            let splits = workers.iter().flat_map(|worker| worker.splits.iter().cloned()).collect();
            self.state.positions.push((round, splits));
        }
        for worker in &mut workers {
            worker.sinks.extend(self.state.staged(round, worker.worker));
        }
        let at = (self.generation, self.node, round);
        let refers = self.state.references.usable(&encode::ids_of(&workers));
        let mut segment = SegmentUpload::new(&*self.store, &self.name, at);
        let recorded = self.state.references.recorded_sections();
        let mut earlier = Earlier::new((&*self.store, &self.name), &refers, recorded);
        let names = OperatorNames(&self.ids);
        let stored = encode::encode(workers, names, &mut earlier, &mut segment);
        if earlier.is_lost() {
            self.recorded.lose(round + 1);
        }
        let stored = stored.and_then(|new| Ok((segment.finish()?, new)));
        let stored = stored.map(|(segment, new)| {
            let new = new.into_iter().map(|(section, rows)| {
                let place = SectionPlace { segment: segment.clone(), section };
                StoredSection { place, rows }
            });
            self.state.references.stored(round, refers.into_iter().chain(new).collect());
            segment
        });
        let _ = self.to.send(KeeperReport::Part { round, stored });
    }

    /// Makes the output durable that was staged up to a round. If it fails, it is not tried again
    /// and the job fails: the system may have dropped what it could not write.
    fn sync(&mut self, round: u64) -> Result<(), String> {
        let KeeperState { unsynced, lost, .. } = &mut self.state;
        let due: Vec<_> = unsynced.extract_if(.., |(of, ..)| *of <= round).collect();
        let results = std::thread::scope(|scope| {
            let outputs = due.chunks(due.len().div_ceil(SYNCS_MAX).max(1));
            let sync = |outputs: &[(u64, u32, Arc<dyn UnsyncedOutput>)]| {
                outputs.iter().try_for_each(|(_, operator, output)| {
                    output.sync().map_err(|error| (*operator, error))
                })
            };
            let threads: Vec<_> = outputs.map(|some| scope.spawn(move || sync(some))).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        for result in results {
            let error = match result {
                Ok(Ok(())) => continue,
                Ok(Err((operator, error))) => {
                    DataflowError::from(error).of_operator(operator as usize).into()
                }
                Err(panic) => std::panic::resume_unwind(panic),
            };
            if lost.is_none() {
                *lost = Some(Error::to_string(&error));
                let _ = self.to.send(KeeperReport::Failed(error));
            }
        }
        lost.clone().map_or(Ok(()), Err)
    }

    /// Deletes the parts of a checkpoint that is in no record and never will be: later ones refer
    /// to nothing in them.
    fn discard(&self, round: u64, nodes: impl IntoIterator<Item = u32>) {
        for node in nodes {
            let file = segment_file(self.generation, node, round);
            let Some(name) = segment_name(&self.name, &file) else { continue };
            if let Err(error) = self.store.delete(&name) {
                // It goes with all else that nobody needs when a checkpoint is stored.
                tracing::debug!(%error, "a part of a checkpoint that is given up stays");
            }
        }
    }

    /// Writes the record of a checkpoint, publishes its output, and says what comes behind it.
    fn complete(
        &mut self,
        round: u64,
        parts: Vec<SegmentEntry>,
        end: RoundEnd,
    ) -> Result<(), Error> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        let names = OperatorNames(&self.ids);
        let Decoded { workers, referred, .. } =
            match read(&*self.store, &self.name, &parts, names, None) {
                Err(error) => {
                    chain.check_fence()?;
                    return Err(error.into());
                }
                Ok(decoded) => decoded,
            };
        let parent = chain.checkpoint().map(|of| of.number);
        let marks = marks_of(&self.job)?;
        let mut manifest = manifest(&workers, (&self.job, &self.ids, &marks), round, parent);
        for (name, before) in [(LATE, self.before.late), (BAD, self.before.bad)] {
            let count = manifest.counters.entry(name.into()).or_default();
            *count = count.saturating_add(before);
        }
        let mut manifest = CheckpointManifest {
            nodes: self.nodes,
            workers: self.workers_in_all,
            fingerprint: self.fingerprint.clone(),
            segments: parts,
            referred: referred.into_iter().collect(),
            tables: tables_of(&self.job),
            ..manifest
        };
        manifest.counters.insert(ENDED.into(), u64::from(end == RoundEnd::Ended));
        manifest.counters.extend(functions::counters(&self.job.settings.functions));
        append(chain, manifest, &self.record_timeout)?;
        let last = end == RoundEnd::Ended;
        publish(&self.job, &workers, Publishing { last, again: false, mark: None }, &marks)?;
        let splits: Vec<SplitSnapshot> = workers.iter().flat_map(|of| of.splits.clone()).collect();
        settle(&self.job, &splits);
        let recorded = match end {
            RoundEnd::GoesOn => {
                if let Err(error) = chain.collect_superseded() {
                    tracing::warn!(%error, "old checkpoints stay");
                }
                Ok(())
            }
            RoundEnd::Stops => chain.settled(),
            RoundEnd::Ended => chain.done(),
        };
        if end == RoundEnd::Ended && recorded.is_ok() {
            sweep_at_end(&*self.store, &self.name, (&self.job, &self.ids), self.generation);
        }
        match recorded.map_err(Error::from) {
            // The output is visible. The next run publishes it again: names and marks show that it
            // is there already.
            Err(error) if error.leaves_checkpoint_out() || error.is_pending() => {
                tracing::warn!(%error, "the chain may not show that the output is published");
                Ok(())
            }
            recorded => recorded,
        }
    }
}

/// Tells sources how far a checkpoint has read their splits.
fn settle(job: &JobGraph, splits: &[SplitSnapshot]) {
    for (at, operator) in job.operators.iter().enumerate() {
        let OperatorKind::Source(scan) = &operator.kind else { continue };
        let own = splits.iter().filter(|split| split.operator as usize == at);
        let positions: Vec<_> = own.map(|split| split.position.clone()).collect();
        if !positions.is_empty() {
            scan.source.settle(&positions);
        }
    }
}

/// The state in the segments of a checkpoint; without a `loading` only the lists of its workers.
pub(super) fn read(
    store: &dyn Store,
    job: &ObjectName,
    segments: &[SegmentEntry],
    names: OperatorNames<'_>,
    loading: Option<&Arc<Loading>>,
) -> Result<Decoded, CheckpointError> {
    let mut decoded = Decoded::default();
    for entry in segments {
        encode::decode(store, job, entry, names, loading, &mut decoded)?;
    }
    Ok(decoded)
}

/// By operator, the mark that a checkpoint has of its sink.
pub(super) fn marks_in(
    manifest: &CheckpointManifest,
    fitted: &FittedState,
    operators: usize,
) -> Vec<Option<[u64; 2]>> {
    let mark = |at: usize| {
        let name = fitted.name(at)?;
        manifest.sinks.iter().find(|sink| sink.id == name)?.mark
    };
    (0..operators).map(mark).collect()
}

/// Makes visible what the sinks of a job have staged. The marks are those of its operators.
pub(super) fn publish(
    job: &JobGraph,
    workers: &[WorkerSnapshot],
    how: Publishing,
    marks: &[Option<[u64; 2]>],
) -> Result<(), Error> {
    for (at, operator) in job.operators.iter().enumerate() {
        let Some(sink) = operator.kind.spec().sink() else { continue };
        let how = Publishing { mark: marks.get(at).copied().flatten(), ..how };
        let staged: Vec<Vec<u8>> = staged_of(workers, at as u32);
        let published = sink.publish(&staged, how);
        published.map_err(|error| DataflowError::from(error).of_operator(at))?;
    }
    Ok(())
}

/// The staged output of the writers of a sink.
pub(super) fn staged_of(workers: &[WorkerSnapshot], operator: u32) -> Vec<Vec<u8>> {
    let sinks = workers.iter().flat_map(|worker| &worker.sinks);
    let of = sinks.filter(|sink| sink.operator == operator);
    of.map(|sink| sink.staged.clone()).collect()
}

impl Drop for KeeperThread {
    fn drop(&mut self) {
        self.record_timeout.close();
        // It ends when nobody can tell it anything any more.
        let (nobody, _) = mpsc::channel();
        self.events = nobody;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of checkpoints panicked");
        }
    }
}

#[cfg(test)]
mod tests;
