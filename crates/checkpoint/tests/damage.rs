//! Each file of a job is flipped, cut, deleted, swapped: a run goes on from an older checkpoint, or
//! refuses and names the file; and never takes a state that was not saved so.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use checkpoint::chain::{
    Chain, ResumeFrom, Resumed, RunDescription, keep, open_segment, records, store_segment, verify,
};
use checkpoint::segment::SegmentWriter;
use checkpoint::{
    CheckpointError, CheckpointManifest, Holder, MemoryStore, ObjectName, Store, StoredObject,
};

/// Checkpoints of the chain.
const CHECKPOINTS: u64 = 4;

fn job() -> ObjectName {
    ObjectName::job("clicks").unwrap()
}

fn run() -> RunDescription {
    let holder = Holder { host: "h".into(), machine: "m".into(), pid: 1, started: 1, nonce: 7 };
    RunDescription {
        holder,
        nodes: 1,
        workers: 1,
        release: "0.1.0".into(),
        fingerprint: "f".into(),
        sql: "SELECT 1".into(),
    }
}

fn begin(store: &Arc<MemoryStore>, from: &ResumeFrom) -> Result<Option<Resumed>, CheckpointError> {
    let store: Arc<dyn Store> = Arc::clone(store) as _;
    Chain::begin(store, &job(), &run(), from).map(|(_, resumed)| resumed)
}

/// The state of the checkpoint of a number, on two nodes.
fn state(number: u64, node: u32) -> Vec<u8> {
    (0..300).map(|i| (i * number + u64::from(node)) as u8).collect()
}

/// A job with four checkpoints and two generations; the second one is kept.
fn saved() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::default());
    for numbers in [1..=2, 3..=CHECKPOINTS] {
        let shared: Arc<dyn Store> = Arc::clone(&store) as _;
        let (mut chain, _) = Chain::begin(shared, &job(), &run(), &ResumeFrom::Latest).unwrap();
        for number in numbers {
            let entry = |node| {
                let mut segment = SegmentWriter::default();
                segment.section("count", node, 300, vec![state(number, node).into()]).unwrap();
                let at = (chain.generation(), node, number);
                store_segment(store.as_ref(), &job(), at, &segment.finish().unwrap()).unwrap()
            };
            let segments = vec![entry(0), entry(1)];
            let manifest = CheckpointManifest { number, segments, ..Default::default() };
            chain.append(manifest).unwrap();
        }
        keep(store.as_ref(), &job(), Some(2), "friday").unwrap();
    }
    store
}

/// The number of a checkpoint whose state is that which was saved.
fn load(store: &MemoryStore, manifest: &CheckpointManifest) -> Result<u64, CheckpointError> {
    verify(store, &job(), manifest)?;
    for entry in &manifest.segments {
        let segment = open_segment(store, &job(), entry)?;
        for section in segment.sections() {
            let read = segment.read(section)?;
            assert_eq!(read, state(manifest.number, section.part), "{}", manifest.number);
        }
    }
    Ok(manifest.number)
}

/// The checkpoint that a run goes on from.
fn resume(store: &Arc<MemoryStore>, from: &ResumeFrom) -> Result<Option<u64>, CheckpointError> {
    begin(store, from)?.map(|resumed| load(store, &resumed.manifest)).transpose()
}

/// Resumes in all ways; what does not refuse must be a checkpoint that was saved. A refusal names a
/// file.
fn check(store: &Arc<MemoryStore>, what: &str) {
    let copies = [
        (ResumeFrom::Latest, CHECKPOINTS),
        (ResumeFrom::Number(3), 3),
        (ResumeFrom::Named("friday".into()), 2),
    ];
    for (from, most) in copies {
        match resume(store, &from) {
            Ok(Some(number)) => assert!((1..=most).contains(&number), "{what}: {from:?} {number}"),
            Ok(None) => panic!("{what}: {from:?} begins anew"),
            Err(error @ (CheckpointError::Damaged { .. } | CheckpointError::Missing { .. })) => {
                assert!(error.to_string().starts_with("memory:clicks/"), "{what}: {error}");
            }
            Err(CheckpointError::Version { file, .. }) => {
                assert!(file.starts_with("memory:clicks/"), "{what}: {file}");
            }
            Err(CheckpointError::NotFound { .. }) if from != ResumeFrom::Latest => {}
            Err(error) => panic!("{what}: {from:?}: {error}"),
        }
    }
}

fn objects(store: &MemoryStore) -> Vec<(StoredObject, Bytes)> {
    let listed = store.list(Some(&job())).unwrap();
    let read = |object: StoredObject| {
        let bytes = store.get(&object.name, None).unwrap().unwrap();
        (object, bytes)
    };
    listed.into_iter().map(read).collect()
}

#[test]
fn without_damage_all_of_them_are_there() {
    let store = saved();
    assert_eq!(resume(&store, &ResumeFrom::Latest).unwrap(), Some(CHECKPOINTS));
    assert_eq!(resume(&store, &ResumeFrom::Number(3)).unwrap(), Some(3));
    assert_eq!(resume(&store, &ResumeFrom::Named("friday".into())).unwrap(), Some(2));
    // Records, segments, a record that is kept, and the copy of that which began the last run.
    assert_eq!(objects(&saved()).len(), 2 + 4 + 8 + 1 + 1);
    assert!(records(store.as_ref(), &job()).unwrap().iter().all(|record| record.record.is_ok()));
}

#[test]
fn a_flipped_or_cut_file_is_found() {
    for (object, bytes) in objects(&saved()) {
        let places: BTreeSet<usize> =
            (0..40).map(|i| i * bytes.len() / 40).chain([bytes.len() - 1]).collect();
        for at in places {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << (at % 8);
            for damaged in [flipped.into(), bytes.slice(..at)] {
                let store = saved();
                store.damage(&object.name, Some(damaged));
                check(&store, &format!("{} at {at}", object.name));
            }
        }
    }
}

#[test]
fn a_deleted_or_swapped_file_is_found() {
    let all = objects(&saved());
    for (object, _) in &all {
        let store = saved();
        store.damage(&object.name, None);
        check(&store, &format!("{} deleted", object.name));
        for (other, bytes) in &all {
            let store = saved();
            let own = store.get(&object.name, None).unwrap().unwrap();
            store.damage(&object.name, Some(bytes.clone()));
            store.damage(&other.name, Some(own));
            check(&store, &format!("{} and {}", object.name, other.name));
        }
    }
}

#[test]
fn a_damaged_last_record_is_passed_over_when_asked() {
    let store = saved();
    let name = ObjectName::new("clicks/chain/00000000000000000006").unwrap();
    store.damage(&name, Some(Bytes::from_static(b"millstream")));
    let error = resume(&store, &ResumeFrom::Latest).unwrap_err();
    assert_eq!(error.to_string(), format!("memory:{name}, byte 0: it has no header line"));
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    let (chain, resumed) = Chain::begin(shared, &job(), &run(), &ResumeFrom::Number(3)).unwrap();
    assert_eq!(load(&store, &resumed.unwrap().manifest).unwrap(), 3);
    // No number is used again that the damaged record may have had.
    assert!(chain.first_round() > CHECKPOINTS && chain.generation() > 2);
}
