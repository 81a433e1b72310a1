//! The reports of a node's thread about a round, and the staged output that is part of the round.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arrow::datatypes::{Schema, SchemaRef};
use checkpoint::chain::{ResumeFrom, RunDescription};
use checkpoint::{Holder, MemoryStore};
use dataflow::error::ConnectorError;
use dataflow::job::{Operator, Scan};
use dataflow::source::{Position, ReaderContext, Source, Split, SplitReader};

use super::*;

fn sink(staged: &str) -> SinkSnapshot {
    SinkSnapshot { operator: 3, staged: staged.into(), unsynced: None }
}

fn staged(state: &KeeperState, round: u64, worker: u32) -> Vec<String> {
    let all = state.staged(round, worker).into_iter();
    all.map(|sink| String::from_utf8(sink.staged).unwrap()).collect()
}

/// A worker may have ended when the leader's word of the round before comes.
#[test]
fn a_checkpoint_has_no_rows_of_a_later_round() {
    let mut state = KeeperState::default();
    state.until_end.extend([(7, 0, sink("up to 7")), (8, 0, sink("up to 8"))]);
    state.until_end.extend([(9, 0, sink("up to 9")), (8, 1, sink("of another"))]);
    state.waiting.extend([(7, 0, sink("a part of 7")), (9, 0, sink("a part of 9"))]);
    state.forget_covered(8);
    assert_eq!(staged(&state, 8, 0), ["a part of 7", "up to 8"]);
    assert_eq!(staged(&state, 8, 1), ["of another"]);
    state.forget_covered(9);
    assert_eq!(staged(&state, 9, 0), ["a part of 7", "a part of 9", "up to 9"]);
}

/// Output that a worker has left to be made durable.
#[derive(Debug)]
struct Unsynced {
    fails: bool,
    synced: AtomicU32,
}

impl UnsyncedOutput for Unsynced {
    fn sync(&self) -> Result<(), ConnectorError> {
        self.synced.fetch_add(1, Ordering::Relaxed);
        let (place, message) = ("out/.part".to_owned(), "no space".to_owned());
        if self.fails { Err(ConnectorError::Io { place, message, hint: None }) } else { Ok(()) }
    }
}

/// The reports of a node of two workers about two rounds of which both have staged something.
fn reports_of(outputs: &[Arc<Unsynced>; 2], name: &str) -> Vec<String> {
    let path = format!("millstream-keeper-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(path);
    let store = crate::state_store::open(&path.display().to_string()).unwrap();
    let (to, kept) = mpsc::channel();
    let job = JobGraph { operators: Vec::new(), settings: Default::default() };
    let (job, name) = ((Arc::new(job), Arc::default()), ObjectName::job("j").unwrap());
    let mut keeper = Keeper::new(store, name, job, 1, (0, 1), (0..2, 2), String::new(), None, to);
    let text = |report| match report {
        KeeperReport::Saved { round } => format!("saved {round}"),
        KeeperReport::Part { round, stored: Ok(_) } => format!("part {round}"),
        KeeperReport::Part { round, stored: Err(why) } => format!("no part {round}: {why}"),
        KeeperReport::Failed(error) => format!("failed: {error}"),
        KeeperReport::Ended | KeeperReport::Checkpoint { .. } => "another".into(),
    };
    let mut reports = Vec::new();
    for round in [1, 2] {
        keeper.state.round = Some(round);
        for (worker, output) in (0..).zip(outputs) {
            let before = (reports.len(), output.synced.load(Ordering::Relaxed));
            let unsynced: Option<Arc<dyn UnsyncedOutput>> = Some(output.clone());
            let sinks = vec![SinkSnapshot { unsynced, ..sink("rows") }];
            keeper.saved(WorkerSnapshot { worker, round, sinks, ..WorkerSnapshot::default() });
            keeper.store_round();
            reports.extend(kept.try_iter().map(text));
            let now = (reports.len(), output.synced.load(Ordering::Relaxed));
            assert_eq!(worker == 0, now == before, "the round has the rows of both workers");
        }
    }
    drop(keeper);
    let _ = std::fs::remove_dir_all(path);
    reports
}

#[test]
fn a_part_is_complete_when_what_was_staged_is_durable() {
    let output = |fails| Arc::new(Unsynced { fails, synced: AtomicU32::new(0) });
    let outputs = [output(false), output(false)];
    let stored = ["saved 1", "part 1", "saved 2", "part 2"];
    assert_eq!(reports_of(&outputs, "durable"), stored);
    assert!(outputs.iter().all(|output| output.synced.load(Ordering::Relaxed) == 2));
    let reports = reports_of(&[output(false), output(true)], "lost");
    assert_eq!(reports.iter().filter(|report| report.starts_with("failed")).count(), 1);
    assert!(reports[1].contains("out/.part: no space"), "{reports:?}");
    // The system may have dropped the rows: no later checkpoint can have them.
    assert!(reports.iter().all(|report| !report.starts_with("part")), "{reports:?}");
    assert!(reports[4].starts_with("no part 2: "), "{reports:?}");
}

/// Ends a job of one worker without operators. The answer to one call of its store is lost, and is
/// not waited for. Gives the number of calls.
fn end(lost: Option<u64>) -> (Result<(), Error>, u64) {
    let (memory, name) = (Arc::new(MemoryStore::default()), ObjectName::job("j").unwrap());
    let store: Arc<dyn Store> = memory.clone();
    let run = RunDescription {
        holder: Holder::this_process(),
        nodes: 1,
        workers: 1,
        release: String::new(),
        fingerprint: String::new(),
        sql: String::new(),
    };
    let (mut chain, _) = Chain::begin(store.clone(), &name, &run, &ResumeFrom::Latest).unwrap();
    chain.set_timeout(Duration::ZERO);
    lost.into_iter().for_each(|call| memory.lose_answer(call));
    let job = Arc::new(JobGraph { operators: Vec::new(), settings: Default::default() });
    let (job, chain, to) = ((job, Arc::default()), Some(chain), mpsc::channel().0);
    let mut keeper = Keeper::new(store, name, job, 1, (0, 1), (0..1, 1), String::new(), chain, to);
    let ended = keeper.complete(1, Vec::new(), RoundEnd::Ended);
    (ended, memory.calls())
}

#[test]
fn a_job_ends_well_though_it_is_unknown_whether_its_end_is_recorded() {
    let (ended, calls) = end(None);
    ended.unwrap();
    let (ended, again) = end(Some(calls - 1));
    ended.unwrap();
    assert_eq!(again, calls, "the last call is the record of the end, and is not repeated");
}

#[test]
fn staged_rows_of_rounds_that_are_given_up_end_the_job_before_they_fill_memory() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let (to, kept) = mpsc::channel();
    let job = JobGraph { operators: Vec::new(), settings: Default::default() };
    let (job, name) = ((Arc::new(job), Arc::default()), ObjectName::job("j").unwrap());
    let mut keeper = Keeper::new(store, name, job, 1, (0, 1), (0..2, 2), String::new(), None, to);
    let rows = "r".repeat(WAITING_BYTES_MAX / 4);
    let mut save = |round| {
        for worker in 0..2 {
            let sinks = vec![sink(&rows)];
            keeper.saved(WorkerSnapshot { worker, round, sinks, ..WorkerSnapshot::default() });
        }
        let failed = kept.try_iter().filter_map(|report| match report {
            KeeperReport::Failed(error) => Some(error.to_string()),
            _ => None,
        });
        failed.collect::<Vec<_>>()
    };
    // Each round has half of the bound; four are at it.
    assert!((1..=4).all(|round| save(round).is_empty()));
    let failed = save(5);
    assert_eq!(failed.len(), 1);
    assert!(failed[0].contains("no checkpoint could be stored with"), "{failed:?}");
    assert!(save(6).is_empty(), "it is said once");
}

#[test]
fn parts_of_a_checkpoint_that_is_given_up_are_deleted() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let job = JobGraph { operators: Vec::new(), settings: Default::default() };
    let (job, name) = ((Arc::new(job), Arc::default()), ObjectName::job("j").unwrap());
    let (to, happened) = (mpsc::channel().0, mpsc::channel());
    let at = store.clone();
    let keeper = Keeper::new(at, name, job, 1, (0, 2), (0..1, 2), String::new(), None, to);
    for round in [1, 2] {
        let saved = WorkerSnapshot { round, ..WorkerSnapshot::default() };
        let events = [KeeperEvent::Saved(saved), KeeperEvent::EndRound { round, stored: 0 }];
        events.into_iter().for_each(|event| happened.0.send(event).unwrap());
    }
    // Node 1 has stored nothing.
    happened.0.send(KeeperEvent::Discard { round: 1, nodes: vec![0, 1] }).unwrap();
    drop(happened.0);
    keeper.run(&happened.1);
    let left = store.list(None).unwrap();
    let left: Vec<&str> = left.iter().map(|object| object.name.last_part()).collect();
    assert_eq!(left, ["g1-n0-000002.seg"]);
}

/// A source that keeps the positions with which it was settled.
#[derive(Default)]
struct SettledSource(Mutex<Vec<Position>>);

impl Source for SettledSource {
    fn schema(&self) -> SchemaRef {
        Arc::new(Schema::empty())
    }

    fn bounded(&self) -> bool {
        false
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        Ok(Vec::new())
    }

    fn settle(&self, positions: &[Position]) {
        self.0.lock().unwrap().extend_from_slice(positions);
    }

    fn open(
        &self,
        _: &Split,
        _: Option<&Position>,
        _: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        unreachable!("nobody reads it")
    }
}

fn scan(source: Arc<SettledSource>) -> Operator {
    let scan = Scan::new("changes", source);
    Operator::new("Scan changes", Vec::new(), OperatorKind::Source(scan))
}

/// A node that does not lead has workers 2 and 3, and reads two sources. The log of a database
/// behind the settled one could not be read again.
#[test]
fn sources_of_each_node_hear_of_checkpoints_that_are_stored_alone() {
    let sources = [Arc::new(SettledSource::default()), Arc::new(SettledSource::default())];
    let operators = sources.iter().cloned().map(scan).collect();
    let job = Arc::new(JobGraph { operators, settings: Default::default() });
    let (store, name) = (Arc::new(MemoryStore::default()), ObjectName::job("j").unwrap());
    let (to, happened) = (mpsc::channel().0, mpsc::channel());
    let id = |id: &str| OperatorId { id: id.into(), text: String::new(), remembers: true };
    let (job, text) = ((job, ["a", "b"].map(id).into()), String::new());
    let keeper = Keeper::new(store, name, job, 1, (1, 2), (2..4, 4), text, None, to);
    let position = |at: u64| Position::new("log", 1, "slot", &[at]);
    let saved = |worker: u32, round: u64| {
        let (operator, position) = (worker - 2, position(10 * round + u64::from(worker)));
        let (greatest, ended, readers) = (None, false, 4);
        let splits = vec![SplitSnapshot { operator, position, greatest, ended, readers }];
        KeeperEvent::Saved(WorkerSnapshot { worker, round, splits, ..WorkerSnapshot::default() })
    };
    // Round 2 is given up, and round 5 may still be.
    let ends = [(1, 0), (2, 1), (3, 1), (4, 3), (5, 4)];
    for (round, stored) in ends {
        let events = [saved(2, round), saved(3, round), KeeperEvent::EndRound { round, stored }];
        events.into_iter().for_each(|event| happened.0.send(event).unwrap());
    }
    drop(happened.0);
    keeper.run(&happened.1);
    let settled = |at: usize| sources[at].0.lock().unwrap().clone();
    assert_eq!(settled(0), [12, 32, 42].map(position));
    assert_eq!(settled(1), [13, 33, 43].map(position));
}
