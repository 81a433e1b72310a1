//! Chains as processes write them: resumed, fenced, with lost answers, collected.
#![allow(missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use checkpoint::chain::{
    Chain, CollectedObjects, ResumeFrom, RunDescription, drop_job, drop_kept, jobs, keep, kept,
    look, open_segment, recent_pause, records, resolve, store_segment, verify,
};
use checkpoint::record::{Holder, RecordBody};
use checkpoint::segment::SegmentWriter;
use checkpoint::store::Faults;
use checkpoint::{CheckpointError, CheckpointManifest, MemoryStore, ObjectName, Store};

const HOUR_MS: i64 = 3600 * 1000;

fn job() -> ObjectName {
    ObjectName::job("clicks").unwrap()
}

fn run(pid: u32) -> RunDescription {
    let holder =
        Holder { host: "h".into(), machine: "m".into(), pid, started: 1, nonce: pid.into() };
    RunDescription {
        holder,
        nodes: 1,
        workers: 1,
        release: "0.1.0".into(),
        fingerprint: "f".into(),
        sql: "SELECT 1 WHERE 'token' = 'hush'".into(),
    }
}

fn manifest(number: u64) -> CheckpointManifest {
    CheckpointManifest { number, nodes: 1, workers: 1, ..CheckpointManifest::default() }
}

fn begin(
    store: &Arc<MemoryStore>,
    pid: u32,
    from: &ResumeFrom,
) -> Result<(Chain, Option<u64>), CheckpointError> {
    let store: Arc<dyn Store> = Arc::clone(store) as _;
    let (mut chain, resumed) = Chain::begin(store, &job(), &run(pid), from)?;
    chain.set_timeout(Duration::ZERO);
    Ok((chain, resumed.map(|resumed| resumed.manifest.number)))
}

/// A checkpoint whose state is its own number, in a segment.
fn save(chain: &mut Chain, number: u64) -> Result<(), CheckpointError> {
    let mut segment = SegmentWriter::default();
    let state = vec![Bytes::from(number.to_string())];
    segment.section("count", 0, 1, state)?;
    let at = (chain.generation(), 0, number);
    let entry = store_segment(chain.store().as_ref(), chain.job(), at, &segment.finish()?)?;
    chain.append(CheckpointManifest { segments: vec![entry], ..manifest(number) })?;
    Ok(())
}

/// The state of a checkpoint.
fn load(store: &dyn Store, manifest: &CheckpointManifest) -> Result<String, CheckpointError> {
    verify(store, &job(), manifest)?;
    let segment = open_segment(store, &job(), &manifest.segments[0])?;
    let state = segment.read(&segment.sections()[0])?;
    Ok(String::from_utf8(state.to_vec()).unwrap())
}

/// The kinds of the records, in order.
fn kinds(store: &dyn Store) -> String {
    let kind = |record: checkpoint::chain::ChainRecord| match record.record.unwrap().body {
        RecordBody::Begin(_) => 'b',
        RecordBody::Manifest(_) => 'm',
        RecordBody::Settled(_) => 's',
        RecordBody::Done(_) => 'd',
    };
    records(store, &job()).unwrap().into_iter().map(kind).collect()
}

#[test]
fn a_run_goes_on_where_the_one_before_it_was() {
    let store = Arc::new(MemoryStore::default());
    let (mut chain, from) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    assert_eq!((chain.generation(), chain.first_round(), from), (1, 1, None));
    for number in [1, 2, 5] {
        save(&mut chain, number).unwrap();
    }
    assert!(save(&mut chain, 5).is_err(), "numbers grow");
    let (mut chain, from) = begin(&store, 2, &ResumeFrom::Latest).unwrap();
    assert_eq!((chain.generation(), chain.first_round(), from), (2, 6, Some(5)));
    chain.settled().unwrap();
    // A run that made no checkpoint leaves the one before.
    let (_, from) = begin(&store, 3, &ResumeFrom::Latest).unwrap();
    assert_eq!(from, Some(5));
    let (mut chain, from) = begin(&store, 4, &ResumeFrom::Number(2)).unwrap();
    assert_eq!((chain.first_round(), from), (6, Some(2)));
    let (_, from) = begin(&store, 5, &ResumeFrom::Latest).unwrap();
    assert_eq!(from, Some(2), "what the last run has gone on from");
    assert!(matches!(chain.done(), Err(CheckpointError::Fenced { .. })));
    let (mut chain, from) = begin(&store, 6, &ResumeFrom::Nothing).unwrap();
    assert_eq!((chain.first_round(), from), (6, None));
    assert!(chain.done().is_err(), "there is nothing to be done with");
    save(&mut chain, 6).unwrap();
    chain.done().unwrap();
    assert_eq!(kinds(store.as_ref()), "bmmmbsbbbbmd");
    let view = look(store.as_ref(), &job()).unwrap();
    assert!(view.is_done());
    assert_eq!(view.begun(store.as_ref()).unwrap().unwrap().holder.pid, 6);
    let error = begin(&store, 7, &ResumeFrom::Number(1)).err().unwrap().to_string();
    assert_eq!(error, "checkpoint 1 of job 'clicks' (it has 6, 5, 2) is not there");
}

#[test]
fn secrets_are_not_stored() {
    let store = Arc::new(MemoryStore::default());
    let (_chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    let begin = look(store.as_ref(), &job()).unwrap().begun(store.as_ref()).unwrap().unwrap();
    assert_eq!(begin.sql, "SELECT 1 WHERE 'token' = '…'");
}

#[test]
fn a_run_that_another_one_has_followed_is_fenced() {
    let store = Arc::new(MemoryStore::default());
    let (mut old, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    save(&mut old, 1).unwrap();
    old.check_fence().unwrap();
    let (mut new, _) = begin(&store, 2, &ResumeFrom::Latest).unwrap();
    assert!(matches!(old.check_fence(), Err(CheckpointError::Fenced { .. })));
    let error = save(&mut old, 2).unwrap_err();
    let text = "job 'clicks' goes on elsewhere as generation 2 on h (process 2): this run, \
                generation 1, stops";
    assert_eq!(error.to_string(), text);
    assert!(matches!(old.collect(), Err(CheckpointError::Fenced { .. })));
    save(&mut new, 2).unwrap();
    assert!(matches!(save(&mut old, 2), Err(CheckpointError::Fenced { .. })));
    assert_eq!(kinds(store.as_ref()), "bmbm");
}

#[test]
fn a_lost_answer_is_asked_again() {
    for lost in 0..2 {
        let store = Arc::new(MemoryStore::default());
        let (mut chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
        if lost == 1 {
            chain.set_timeout(Duration::from_secs(60));
        }
        store.lose_answer(store.calls());
        let outcome = chain.append(manifest(1));
        if lost == 1 {
            outcome.unwrap();
        } else {
            assert!(matches!(outcome, Err(CheckpointError::Pending { record: 2, .. })));
            let other = chain.append(manifest(2));
            assert!(matches!(other, Err(CheckpointError::Pending { .. })), "one after the other");
            assert_eq!(chain.settle_pending().unwrap().unwrap().number, 1);
            assert_eq!(chain.settle_pending().unwrap(), None);
        }
        chain.append(manifest(2)).unwrap();
        assert_eq!(kinds(store.as_ref()), "bmm");
    }
}

#[test]
fn a_refused_write_changes_nothing() {
    let store = Arc::new(MemoryStore::default());
    let (mut chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    store.refuse_call(store.calls());
    let refused = chain.append(manifest(1));
    assert!(matches!(refused, Err(CheckpointError::Store(_))), "{refused:?}");
    chain.append(manifest(2)).unwrap();
    assert_eq!(kinds(store.as_ref()), "bm");
}

#[test]
fn collection_keeps_the_last_checkpoints_and_young_records() {
    let store = Arc::new(MemoryStore::default());
    let (mut chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    for number in 1..=5 {
        save(&mut chain, number).unwrap();
    }
    let name = |file: &str| ObjectName::new(format!("clicks/seg/{file}")).unwrap();
    // Of an earlier life, of the next checkpoint, and of somebody else.
    for file in ["g1-n1-000005.seg", "g1-n0-000006.seg", "g2-n0-000001.seg", "notes"] {
        store.put(&name(file), &[Bytes::from_static(b"x")]).unwrap();
    }
    let collected = chain.collect().unwrap();
    assert_eq!((collected.records, collected.segments), (0, 3));
    let left = |store: &MemoryStore| -> Vec<String> {
        let listed = store.list(Some(&ObjectName::new("clicks/seg").unwrap())).unwrap();
        listed.iter().map(|object| object.name.last_part().to_owned()).collect()
    };
    let names = ["g1-n0-000003.seg", "g1-n0-000004.seg", "g1-n0-000005.seg", "g1-n0-000006.seg"];
    assert_eq!(left(&store)[..4], names);
    assert_eq!(left(&store)[4..], ["g2-n0-000001.seg", "notes"]);

    store.set_time(HOUR_MS + 1);
    save(&mut chain, 6).unwrap();
    assert_eq!(chain.collect().unwrap().records, 4, "begin, 1, 2 and 3");
    assert_eq!(chain.collect().unwrap(), CollectedObjects::default());
    assert_eq!(kinds(store.as_ref()), "mmm");
    let view = look(store.as_ref(), &job()).unwrap();
    let begun = view.begun(store.as_ref()).unwrap().expect("a copy of its record stays");
    assert_eq!(begun.holder.nonce, 1);
    let (mut chain, from) = begin(&store, 2, &ResumeFrom::Latest).unwrap();
    assert_eq!((chain.generation(), from), (2, Some(6)));
    // What a run goes on from stays, whatever is younger.
    let (_, from) = begin(&store, 3, &ResumeFrom::Number(4)).unwrap();
    assert_eq!(from, Some(4));
    assert!(chain.collect().is_err());
}

/// A listing of an hour's records takes longer with each of them.
#[test]
fn segments_go_with_each_checkpoint_and_records_are_seldom_listed() {
    let store = Arc::new(MemoryStore::default());
    let numbers = || -> Vec<u64> {
        let listed = store.list(Some(&ObjectName::new("clicks/seg").unwrap())).unwrap();
        let number = |name: &str| name.rsplit_once('-')?.1.strip_suffix(".seg")?.parse().ok();
        listed.iter().filter_map(|object| number(object.name.last_part())).collect()
    };
    let (mut chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    (1..=5).for_each(|number| save(&mut chain, number).unwrap());
    let (mut chain, _) = begin(&store, 2, &ResumeFrom::Latest).unwrap();
    // Of the run before, and of a checkpoint that was given up.
    let given_up = ObjectName::new("clicks/seg/g2-n0-000007.seg").unwrap();
    save(&mut chain, 6).unwrap();
    chain.collect_superseded().unwrap();
    assert_eq!(numbers(), [4, 5, 6]);
    store.put(&given_up, &[Bytes::from_static(b"x")]).unwrap();
    keep(store.as_ref(), &job(), Some(6), "friday").unwrap();
    let mut calls = Vec::new();
    for number in 8..=150 {
        save(&mut chain, number).unwrap();
        let before = store.calls();
        let collected = chain.collect_superseded().unwrap();
        calls.push(store.calls() - before);
        assert_eq!(collected.records, 0, "all are young");
        let all = numbers();
        assert!(all.contains(&6), "it has a name");
        // Those of the run before go when this one has enough, and not dozens of checkpoints later.
        assert!(number == 8 || !all.iter().any(|number| *number < 6), "{all:?}");
        assert!(all.iter().filter(|number| **number > 7).count() <= 3, "{all:?}");
        assert!(all.ends_with(&[number]));
    }
    // Each time the names that were given are listed and read, and a segment is deleted.
    let few = calls.iter().filter(|calls| **calls <= 3).count();
    assert!(few >= calls.len() - 4, "{calls:?}");
    assert_eq!(numbers(), [6, 148, 149, 150], "what is left over goes with everything else");
    drop_kept(store.as_ref(), &job(), "friday").unwrap();
    store.set_time(HOUR_MS + 1);
    (151..=220).for_each(|number| {
        save(&mut chain, number).unwrap();
        chain.collect_superseded().unwrap();
    });
    assert_eq!(numbers(), [218, 219, 220]);
    assert!(records(store.as_ref(), &job()).unwrap().len() < 80);
}

#[test]
fn the_recent_pause_is_that_of_a_run_and_not_of_a_job_that_was_down() {
    let store = Arc::new(MemoryStore::default());
    let pause = |store: &MemoryStore| recent_pause(store, &job()).unwrap().as_millis();
    assert_eq!(pause(&store), 0);
    store.set_time(1000);
    let (mut chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    assert_eq!(pause(&store), 0);
    for (number, at_ms) in [(1, 3500), (2, 4000)] {
        store.set_time(at_ms);
        save(&mut chain, number).unwrap();
    }
    assert_eq!(pause(&store), 2500);
    store.set_time(HOUR_MS);
    begin(&store, 2, &ResumeFrom::Latest).unwrap();
    assert_eq!(pause(&store), 2500);
}

#[test]
fn a_run_that_collection_has_passed_is_fenced() {
    for first in [true, false] {
        let store = Arc::new(MemoryStore::default());
        // A process that was stopped before its first record, or behind its second one.
        let mut old = (!first).then(|| begin(&store, 1, &ResumeFrom::Latest).unwrap().0);
        let mut chain = begin(&store, 2, &ResumeFrom::Latest).unwrap().0;
        for number in 1..=6 {
            save(&mut chain, number).unwrap();
        }
        store.set_time(HOUR_MS + 1);
        save(&mut chain, 7).unwrap();
        assert!(chain.collect().unwrap().records > 3);
        let before = kinds(store.as_ref());
        if let Some(old) = &mut old {
            // Its record is created, for nothing is in its place; and it is told all the same.
            assert!(matches!(save(old, 1), Err(CheckpointError::Fenced { .. })));
            assert_eq!(kinds(store.as_ref()), before, "it is taken away again");
        }
        let (chain, from) = begin(&store, 3, &ResumeFrom::Latest).unwrap();
        assert_eq!(from, Some(7));
        assert_eq!(chain.generation(), if first { 2 } else { 3 });
    }
}

#[test]
fn what_is_left_of_runs_that_died_in_their_first_calls_goes() {
    let store = Arc::new(MemoryStore::default());
    let left = |store: &MemoryStore| -> Vec<String> {
        let listed = store.list(Some(&ObjectName::new("clicks/probe").unwrap())).unwrap();
        listed.iter().map(|object| object.name.last_part().to_owned()).collect()
    };
    for (name, now_ms) in [("old", 0), ("young", HOUR_MS / 2)] {
        store.set_time(now_ms);
        let name = ObjectName::new(format!("clicks/probe/{name}")).unwrap();
        store.put(&name, &[Bytes::new()]).unwrap();
    }
    store.set_time(HOUR_MS + 1);
    begin(&store, 1, &ResumeFrom::Latest).unwrap();
    assert_eq!(left(&store), ["young"]);
}

#[test]
fn a_checkpoint_is_kept_under_a_name() {
    let store = Arc::new(MemoryStore::default());
    assert!(keep(store.as_ref(), &job(), None, "friday").is_err(), "there is none");
    let (mut chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    for number in 1..=3 {
        save(&mut chain, number).unwrap();
    }
    assert_eq!(keep(store.as_ref(), &job(), Some(1), "friday").unwrap().number, 1);
    assert_eq!(keep(store.as_ref(), &job(), Some(1), "friday").unwrap().number, 1);
    assert!(keep(store.as_ref(), &job(), Some(2), "friday").is_err(), "the name is taken");
    assert!(keep(store.as_ref(), &job(), Some(2), "../x").is_err());
    for number in 4..=9 {
        save(&mut chain, number).unwrap();
    }
    store.set_time(HOUR_MS + 1);
    save(&mut chain, 10).unwrap();
    chain.collect().unwrap();
    assert!(keep(store.as_ref(), &job(), Some(2), "late").is_err(), "it was collected");
    let entry = &kept(store.as_ref(), &job()).unwrap()[0];
    assert_eq!(entry.name, "friday");
    assert_eq!(load(store.as_ref(), entry.manifest.as_ref().unwrap()).unwrap(), "1");

    let (mut chain, from) = begin(&store, 2, &ResumeFrom::Named("friday".into())).unwrap();
    assert_eq!((chain.first_round(), from), (11, Some(1)));
    assert!(drop_kept(store.as_ref(), &job(), "friday").is_err(), "the job goes on from it");
    save(&mut chain, 11).unwrap();
    drop_kept(store.as_ref(), &job(), "friday").unwrap();
    assert!(drop_kept(store.as_ref(), &job(), "friday").is_err(), "it is gone");
    assert!(begin(&store, 3, &ResumeFrom::Named("friday".into())).is_err());
    assert_eq!(chain.collect().unwrap().segments, 2, "those of 1 and 8");
}

/// Checkpoints refer to the segment of an early one, until one does not.
#[test]
fn collection_keeps_segments_that_are_referred_to() {
    let store = Arc::new(MemoryStore::default());
    let (mut chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    save(&mut chain, 1).unwrap();
    let view = look(store.as_ref(), &job()).unwrap();
    let resumed = resolve(store.as_ref(), &view, &ResumeFrom::Latest).unwrap().unwrap();
    let first = resumed.manifest.segments[0].clone();
    let is_there = || {
        open_segment(store.as_ref(), &job(), &first).is_ok_and(|segment| segment.verify().is_ok())
    };
    for number in 2..=8 {
        let referred = if number < 6 { vec![first.clone()] } else { vec![] };
        chain.append(CheckpointManifest { referred, ..manifest(number) }).unwrap();
        chain.collect().unwrap();
        // The last three are kept.
        assert_eq!(is_there(), number < 8, "behind {number}");
    }
    let mut lost = manifest(9);
    lost.referred = vec![first];
    assert!(verify(store.as_ref(), &job(), &lost).is_err());
}

#[test]
fn a_dropped_job_is_gone_and_its_run_is_fenced() {
    let store = Arc::new(MemoryStore::default());
    let (mut chain, _) = begin(&store, 1, &ResumeFrom::Latest).unwrap();
    save(&mut chain, 1).unwrap();
    keep(store.as_ref(), &job(), None, "friday").unwrap();
    assert_eq!(jobs(store.as_ref()).unwrap(), [job()]);
    let (files, bytes) = drop_job(store.as_ref(), &job()).unwrap();
    assert!(files == 5 && bytes > 0, "{files} {bytes}");
    assert_eq!(jobs(store.as_ref()).unwrap(), []);
    assert!(matches!(save(&mut chain, 2), Err(CheckpointError::Fenced { .. })));
    assert_eq!(kinds(store.as_ref()), "", "its record is no beginning of another chain");
    let (mut new, from) = begin(&store, 2, &ResumeFrom::Latest).unwrap();
    assert_eq!((new.generation(), from), (1, None));
    // The chain of the new job has come to the place behind the one that was dropped.
    save(&mut new, 1).unwrap();
    assert!(matches!(save(&mut chain, 2), Err(CheckpointError::Fenced { .. })));
    save(&mut new, 2).unwrap();
    assert_eq!(kinds(store.as_ref()), "bmm");
}

/// A job of six checkpoints that is started again after each failure. Gives what was told to have
/// been written: the numbers, and with which state each run went on.
fn stubborn(store: &Arc<MemoryStore>, starts_max: u32) -> Option<Vec<u64>> {
    let mut written = Vec::new();
    for pid in 1..=starts_max {
        let Ok((mut chain, from)) = begin(store, pid, &ResumeFrom::Latest) else { continue };
        let last = written.last().copied();
        // Exactly what was told to be written, or one more whose answer was lost.
        assert!(from >= last, "{from:?} after {written:?}");
        if let Some(from) = from.filter(|from| Some(*from) != last) {
            written.push(from);
        }
        let mut number = chain.first_round();
        loop {
            if from.into_iter().chain([number - 1]).max() >= Some(6) && number > 6 {
                return Some(written);
            }
            match save(&mut chain, number) {
                Ok(()) => written.push(number),
                Err(CheckpointError::Pending { .. }) => match chain.settle_pending() {
                    Ok(base) => written.extend(base.map(|base| base.number)),
                    Err(CheckpointError::Fenced { .. }) => panic!("nobody else runs"),
                    Err(_) => break,
                },
                Err(CheckpointError::Store(_)) => break,
                Err(error) => panic!("{error}"),
            }
            let _ = chain.collect();
            number += 1;
        }
    }
    None
}

fn check(store: &Arc<MemoryStore>, written: &[u64]) {
    store.heal();
    assert!(written.is_sorted_by(|a, b| a < b), "{written:?}");
    let (_, from) = begin(store, 99, &ResumeFrom::Latest).unwrap();
    assert_eq!(from, written.last().copied());
    let view = look(store.as_ref(), &job()).unwrap();
    for base in view.retained(store.as_ref()).unwrap() {
        let manifest = checkpoint::chain::read_checkpoint(store.as_ref(), &job(), &base).unwrap();
        assert_eq!(load(store.as_ref(), &manifest).unwrap(), base.number.to_string());
    }
}

#[test]
fn each_call_to_the_store_fails_once() {
    let store = Arc::new(MemoryStore::default());
    let written = stubborn(&store, 1).unwrap();
    assert_eq!(written, [1, 2, 3, 4, 5, 6]);
    let calls = store.calls();
    assert!(calls > 40, "{calls}");
    for call in 0..calls {
        for fail in [MemoryStore::refuse_call, MemoryStore::lose_answer] {
            let store = Arc::new(MemoryStore::default());
            fail(&store, call);
            let written = stubborn(&store, 3).unwrap();
            check(&store, &written);
            assert!(written.len() >= 5, "{written:?}, call {call}");
        }
    }
}

#[test]
fn a_store_that_fails_at_random_loses_no_checkpoint() {
    let mut ended = 0;
    for seed in 0..400 {
        let faults =
            Faults { seed, refused: 20, full: 20, lost: 40, late: 40, torn: 0, stale: 200 };
        let store = Arc::new(MemoryStore::faulty(faults));
        if let Some(written) = stubborn(&store, 100) {
            ended += 1;
            check(&store, &written);
        }
    }
    assert!(ended > 300, "{ended}");
}

#[test]
fn a_torn_segment_is_never_named_by_a_record() {
    for seed in 0..100 {
        let faults = Faults { seed, torn: 300, ..Faults::default() };
        let store = Arc::new(MemoryStore::faulty(faults));
        if let Some(written) = stubborn(&store, 100) {
            check(&store, &written);
        }
    }
}
