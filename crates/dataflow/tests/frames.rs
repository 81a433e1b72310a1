//! The corpora of frames and of rows, replayed, and each seed with some changes. `UPDATE_CORPUS=1`
//! writes the seeds anew; what a fuzz target finds is added by its own name. A seed whose name
//! begins with `bad` is refused, and no other is.
#![allow(missing_docs)]

use std::collections::BTreeSet;

use dataflow::frame::Frame;
use dataflow::hostile;

#[path = "../../../fuzz/replay/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/replay/seeds.rs"]
mod seeds;

/// Changed seeds.
const CHANGED: usize = 20_000;

#[test]
fn frames_are_read_or_refused_and_each_kind_is_reached() {
    let directory = seeds::corpus(env!("CARGO_MANIFEST_DIR"), "frame");
    let all = seeds::read(&directory, hostile::seeds);
    let mut kinds = BTreeSet::new();
    for (name, bytes) in &all {
        let kind = hostile::frame(bytes);
        assert_eq!(kind.is_err(), name.starts_with("bad"), "{name}: {kind:?}");
        kinds.extend(kind);
    }
    assert_eq!(kinds, (1..=Frame::KINDS.len() as u8).collect(), "kinds that seeds reach");
    let known: BTreeSet<_> = all.iter().map(|(name, _)| name.clone()).collect();
    let made: BTreeSet<_> = hostile::seeds().into_iter().map(|(name, _)| name).collect();
    assert!(made.is_subset(&known), "UPDATE_CORPUS=1 writes {:?}", made.difference(&known));
    mutate::each(&seeds::contents(&all), CHANGED, hostile::frame);
}

#[test]
fn rows_are_read_or_refused_and_each_schema_is_reached() {
    let directory = seeds::corpus(env!("CARGO_MANIFEST_DIR"), "rows");
    let all = seeds::read(&directory, hostile::rows_seeds);
    let mut schemas = BTreeSet::new();
    for (name, bytes) in &all {
        let schema = hostile::rows(bytes);
        assert_eq!(schema.is_err(), name.starts_with("bad"), "{name}: {schema:?}");
        schemas.extend(schema);
    }
    assert_eq!(schemas, (0..4).collect(), "schemas that seeds reach");
    let known: BTreeSet<_> = all.iter().map(|(name, _)| name.clone()).collect();
    let made: BTreeSet<_> = hostile::rows_seeds().into_iter().map(|(name, _)| name).collect();
    assert!(made.is_subset(&known), "UPDATE_CORPUS=1 writes {:?}", made.difference(&known));
    mutate::each(&seeds::contents(&all), CHANGED, hostile::rows);
}
