//! The rounds of a worker: when its sources mark, and what the worker keeps of a round.
//!
//! A round ends when [`Signals::end_round`] asks for that, or a peer has marked it: so a worker
//! that hears late of it is no later than its peers. Each source marks by itself, at its next batch
//! boundary; each operator saves when the round is complete in front of it. When all have, the
//! worker hands over its [`WorkerSnapshot`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fabric::Clock;

use crate::checkpoint::{
    CheckpointTarget, OperatorSnapshot, SinkSnapshot, SplitSnapshot, WorkerSnapshot,
};
use crate::connector::bad::BadRows;
use crate::error::DataflowError;
use crate::rows::wire::bytes_of;
use crate::runtime::metrics::Metrics;
use crate::runtime::place::Signals;
use crate::runtime::scheduler::Event;

/// The rounds of a worker whose job keeps checkpoints.
pub(crate) struct WorkerRounds {
    worker: u32,
    /// The round with which the worker began.
    first: u64,
    /// By operator of the job, the edges that lead to it.
    edges: Vec<usize>,
    target: Arc<dyn CheckpointTarget>,
    signals: Arc<Signals>,
    counts: RoundCounts,
    /// The rounds before this one have been marked by a peer.
    received: Cell<u64>,
    asked: Event,
    saving: RefCell<Saving>,
}

/// The counts of a worker, for its rounds, and the clock by which saves are timed.
pub(crate) struct RoundCounts {
    pub(crate) metrics: Arc<Metrics>,
    /// The bad rows of the worker.
    pub(crate) bad: Arc<BadRows>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl RoundCounts {
    /// The counts of a worker.
    pub(crate) fn of(metrics: &Arc<Metrics>, bad: &Arc<BadRows>, clock: &Arc<dyn Clock>) -> Self {
        Self { metrics: metrics.clone(), bad: bad.clone(), clock: clock.clone() }
    }

    fn late(&self) -> u64 {
        self.metrics.late.load(Ordering::Relaxed)
    }
}

/// The saved parts of rounds that the worker has not handed over.
#[derive(Default)]
struct Saving {
    /// The next round that is handed over.
    next: u64,
    /// The rounds of which something was saved.
    rounds: BTreeMap<u64, SavedRound>,
    /// By operator that has ended, in which round.
    ended: BTreeMap<u32, u64>,
    /// By source that has ended its splits and bad rows, which stay part of every round.
    splits: BTreeMap<u32, (Vec<SplitSnapshot>, u64)>,
    /// What sinks have staged that have ended, until the round in which they did is handed over.
    sinks: Vec<SinkSnapshot>,
}

/// The part of a round that a worker has saved.
#[derive(Default)]
struct SavedRound {
    snapshot: WorkerSnapshot,
    /// The operators that have saved it.
    operators: usize,
    /// Rows that had come late when the first operator with state saved it.
    late: Option<u64>,
    /// Bad rows of the sources that have marked it, each as it marked.
    bad: u64,
    /// Bytes of their state.
    bytes: u64,
    /// The time that it took.
    ns: u64,
}

/// The parts of a round that an operator has: its state, and the rows that it has staged, if it is
/// a sink.
pub(crate) type SavedOperator = (Option<OperatorSnapshot>, Option<SinkSnapshot>);

impl WorkerRounds {
    /// Of a worker that begins with the round `first`; `edges` are those that lead to each operator
    /// of the job.
    pub(crate) fn new(
        worker: u32,
        first: u64,
        edges: Vec<usize>,
        target: Arc<dyn CheckpointTarget>,
        signals: Arc<Signals>,
        counts: RoundCounts,
    ) -> Rc<Self> {
        let saving = RefCell::new(Saving { next: first, ..Saving::default() });
        Rc::new(Self {
            worker,
            first,
            edges,
            target,
            signals,
            counts,
            received: Cell::new(first),
            asked: Event::default(),
            saving,
        })
    }

    /// The round with which the worker began.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The last round whose checkpoint is known to be in the chain.
    pub(crate) fn recorded(&self) -> Option<u64> {
        self.target.recorded()
    }

    /// The edges of this worker that lead to an operator.
    pub(crate) fn edges(&self, operator: u32) -> usize {
        self.edges.get(operator as usize).copied().unwrap_or(0)
    }

    /// Whether a round is to be ended.
    pub(crate) fn is_due(&self, round: u64) -> bool {
        self.received.get().max(self.signals.rounds_ended()) > round
    }

    /// Waits until a peer has marked a round. [`Signals::end_round`] wakes the worker otherwise.
    pub(crate) async fn received(&self, round: u64) {
        self.asked.wait_for(|| (self.received.get() > round).then_some(())).await;
    }

    /// A peer has marked a round.
    pub(crate) fn hear(&self, round: u64) {
        if self.received.get() <= round {
            self.received.set(round + 1);
            self.asked.notify();
        }
    }

    /// A source has marked a round, where its splits stand so and it has had so many bad rows.
    pub(crate) fn save_splits(
        &self,
        operator: u32,
        round: u64,
        (splits, bad): (Vec<SplitSnapshot>, u64),
    ) {
        self.counts.metrics.count_saved(operator, round, 0, 0);
        self.add(round, |saved| {
            saved.snapshot.splits.extend(splits);
            // Bad rows behind the marker are of the next round, also where another source of the
            // worker has not marked this one.
            saved.bad += bad;
        });
    }

    /// The time, for [`count_aligned`](Self::count_aligned).
    pub(crate) fn now_ns(&self) -> u64 {
        self.counts.clock.now_ns()
    }

    /// An operator has all markers of a round, of which the first came then.
    pub(crate) fn count_aligned(&self, operator: u32, since_ns: u64) {
        let ns = self.now_ns().saturating_sub(since_ns);
        self.counts.metrics.count_aligned(operator, ns);
    }

    /// An operator saves a round by `save`, which is timed.
    ///
    /// # Errors
    /// Those of `save`.
    pub(crate) fn save_operator(
        &self,
        operator: u32,
        round: u64,
        save: impl FnOnce() -> Result<SavedOperator, DataflowError>,
    ) -> Result<(), DataflowError> {
        let since = self.counts.clock.now_ns();
        let (kept, staged) = save()?;
        let ns = self.counts.clock.now_ns().saturating_sub(since);
        let parts = kept.iter().flat_map(|kept| &kept.parts);
        let stored = kept.iter().flat_map(|kept| &kept.stored);
        let bytes = parts.map(|part| bytes_of(&part.rows)).sum::<usize>()
            + stored.map(|stored| stored.rows.bytes()).sum::<usize>();
        let bytes = bytes as u64;
        let late = self.counts.late();
        self.counts.metrics.count_saved(operator, round, bytes, ns);
        self.add(round, |saved| {
            // Operators with state find rows late, and have none of the next round yet.
            saved.late = saved.late.or(kept.as_ref().map(|_| late));
            saved.snapshot.operators.extend(kept);
            saved.snapshot.sinks.extend(staged);
            saved.bytes += bytes;
            saved.ns += ns;
        });
        Ok(())
    }

    fn add(&self, round: u64, add: impl FnOnce(&mut SavedRound)) {
        {
            let mut saving = self.saving.borrow_mut();
            let saved = saving.rounds.entry(round).or_default();
            add(saved);
            saved.operators += 1;
        }
        self.hand_over();
    }

    /// A source has read its splits, or needs no more of their rows: this stands for all rounds
    /// from this one on, and so does the number of its bad rows.
    pub(crate) fn end_source(&self, operator: u32, round: u64, read: (Vec<SplitSnapshot>, u64)) {
        self.saving.borrow_mut().splits.insert(operator, read);
        self.end(operator, round, None);
    }

    /// An operator has ended: it keeps nothing more from this round on. What it has staged, if it
    /// is a sink. Only the first call for an operator counts.
    pub(crate) fn end(&self, operator: u32, round: u64, staged: Option<SinkSnapshot>) {
        {
            let mut saving = self.saving.borrow_mut();
            if saving.ended.contains_key(&operator) {
                return;
            }
            saving.ended.insert(operator, round);
            saving.sinks.extend(staged);
            self.counts.metrics.end_saved(operator);
        }
        self.hand_over();
        // Its peers may go on for long, and their rounds must not wait until it is done.
        if self.saving.borrow().ended.len() == self.edges.len() {
            self.hand_over_last();
        }
    }

    /// Hands over the rounds that everybody has saved.
    fn hand_over(&self) {
        while let Some(snapshot) = self.take_saved() {
            self.target.saved(snapshot);
        }
    }

    fn take_saved(&self) -> Option<WorkerSnapshot> {
        let mut saving = self.saving.borrow_mut();
        let round = saving.next;
        let saved = saving.rounds.get(&round)?;
        let ended: Vec<u32> = saving.ended_by(round).collect();
        if saved.operators + ended.len() < self.edges.len() {
            return None;
        }
        let SavedRound { snapshot, late, bad, bytes, ns, .. } = saving.rounds.remove(&round)?;
        self.counts.metrics.count_saved_round(round, bytes, ns);
        saving.next += 1;
        let read = ended.iter().filter_map(|operator| saving.splits.get(operator));
        let bad = bad + read.clone().map(|(_, bad)| bad).sum::<u64>();
        let splits: Vec<SplitSnapshot> = read.flat_map(|(splits, _)| splits).cloned().collect();
        let sinks = std::mem::take(&mut saving.sinks);
        let (ended, later): (Vec<_>, Vec<_>) =
            sinks.into_iter().partition(|sink| ended.contains(&sink.operator));
        saving.sinks = later;
        Some(WorkerSnapshot {
            splits: snapshot.splits.into_iter().chain(splits).collect(),
            sinks: snapshot.sinks.into_iter().chain(ended).collect(),
            operators: snapshot.operators,
            late: late.unwrap_or_else(|| self.counts.late()),
            bad,
            ..self.snapshot(round)
        })
    }

    /// The snapshot of a round behind which nothing comes, without state.
    fn snapshot(&self, round: u64) -> WorkerSnapshot {
        let (late, bad) = (self.counts.late(), self.counts.bad.count());
        WorkerSnapshot { worker: self.worker, round, late, bad, ..WorkerSnapshot::default() }
    }

    /// All sources and operators have ended: hands over what is left, which stands for this round
    /// and all later ones.
    fn hand_over_last(&self) {
        let mut saving = self.saving.borrow_mut();
        let read = std::mem::take(&mut saving.splits).into_values();
        let splits = read.flat_map(|(splits, _)| splits).collect();
        let sinks = std::mem::take(&mut saving.sinks);
        let snapshot = self.snapshot(saving.next);
        drop(saving);
        self.counts.metrics.count_saved_round(u64::MAX, 0, 0);
        self.target.saved(WorkerSnapshot { splits, sinks, last: true, ..snapshot });
    }
}

impl Saving {
    /// The operators that have ended in this round or before.
    fn ended_by(&self, round: u64) -> impl Iterator<Item = u32> {
        self.ended.iter().filter(move |(_, of)| **of <= round).map(|(&operator, _)| operator)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use fabric::clock::MonotonicClock;

    use super::*;
    use crate::checkpoint::RunId;

    /// By round the bad rows that a worker hands over.
    #[derive(Default)]
    struct Snapshots(Mutex<Vec<(u64, u64)>>);

    impl CheckpointTarget for Snapshots {
        fn run(&self) -> RunId {
            RunId { job: 1, generation: 1 }
        }

        fn saved(&self, snapshot: WorkerSnapshot) {
            let mut snapshots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            snapshots.push((snapshot.round, snapshot.bad));
        }
    }

    #[test]
    fn bad_rows_are_of_the_round_that_their_source_marks_behind_them() {
        let (snapshots, bad) = (Arc::<Snapshots>::default(), Arc::<BadRows>::default());
        let (metrics, clock) = (Arc::<Metrics>::default(), MonotonicClock::default());
        metrics.count_operators(2);
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let counts = RoundCounts::of(&metrics, &bad, &clock);
        let signals = Arc::<Signals>::default();
        let rounds = WorkerRounds::new(0, 5, vec![0, 0], snapshots.clone(), signals, counts);
        let sources = [(); 2].map(|()| BadRows::within(bad.clone()));
        let mark = |operator: u32, round: u64| {
            let bad = sources[operator as usize].count();
            rounds.save_splits(operator, round, (Vec::new(), bad));
        };
        sources[0].count_more(1);
        mark(0, 5);
        // The first source reads on behind its marker, and the second one in front of its own.
        sources[0].count_more(10);
        sources[1].count_more(100);
        mark(1, 5);
        rounds.end_source(1, 6, (Vec::new(), sources[1].count()));
        mark(0, 6);
        sources[0].count_more(1_000);
        mark(0, 7);
        rounds.end_source(0, 8, (Vec::new(), sources[0].count()));
        let snapshots = snapshots.0.lock().unwrap();
        assert_eq!(*snapshots, [(5, 101), (6, 111), (7, 1_111), (8, 1_111)]);
        assert_eq!(bad.count(), 1_111);
    }
}
