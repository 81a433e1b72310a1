//! Checkpoints in a bucket.

use std::sync::Arc;

use checkpoint::chain::{Chain, ResumeFrom, RunDescription, store_segment, verify};
use checkpoint::segment::SegmentWriter;
use checkpoint::{
    CheckpointError, CheckpointManifest, Holder, ObjectName, Store, WriteEffect, conformance,
};
use connectors::BucketStore;
use dataflow::connector::Options;

use crate::servers::nobody;
use crate::servers::s3::{KEY, S3};

fn options(endpoint: &str) -> Options {
    let pairs = [
        ("s3.endpoint", endpoint),
        ("s3.region", "eu-west-1"),
        ("s3.access_key_id", KEY),
        ("s3.secret_access_key", "hush"),
        ("retry.timeout", "0"),
    ];
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

fn store(server: &S3, url: &str) -> Arc<dyn Store> {
    Arc::new(BucketStore::open(url, &options(&server.endpoint())).unwrap())
}

pub(crate) fn run() -> RunDescription {
    RunDescription {
        holder: Holder::this_process(),
        nodes: 1,
        workers: 1,
        release: "0.1.0".into(),
        fingerprint: String::new(),
        sql: String::new(),
    }
}

#[test]
fn a_bucket_keeps_the_promises_of_a_store() {
    let server = S3::start();
    server.put("/bucket/elsewhere", "x");
    server.put("/bucket/path/to-others/x", "x");
    conformance::check(&store(&server, "s3://bucket/path/to")).unwrap();
    conformance::check(&store(&server, "s3://other/")).unwrap();
    assert_eq!(server.get("/bucket/elsewhere").unwrap(), "x");
}

#[test]
fn a_chain_in_a_bucket_is_resumed_and_fenced() {
    let server = S3::start();
    let (store, job) = (store(&server, "s3://bucket/state"), ObjectName::job("clicks").unwrap());
    let (mut chain, _) =
        Chain::begin(Arc::clone(&store), &job, &run(), &ResumeFrom::Latest).unwrap();
    let mut segment = SegmentWriter::default();
    // More than one request takes.
    let state: Vec<u8> = (0..20_000_000_u32).map(|i| (i % 251) as u8).collect();
    segment.section("count", 0, 1, vec![state.into()]).unwrap();
    let segment = segment.finish().unwrap();
    let entry = store_segment(store.as_ref(), &job, (1, 0, 1), &segment).unwrap();
    let manifest = CheckpointManifest { number: 1, segments: vec![entry], ..Default::default() };
    chain.append(manifest.clone()).unwrap();
    assert!(server.get("/bucket/state/clicks/chain/00000000000000000002").is_some());
    assert!(server.state.lock().unwrap().uploads.is_empty());

    let (_new, resumed) =
        Chain::begin(Arc::clone(&store), &job, &run(), &ResumeFrom::Latest).unwrap();
    let resumed = resumed.unwrap().manifest;
    assert_eq!(resumed, manifest);
    assert_eq!(verify(store.as_ref(), &job, &resumed).unwrap(), segment.bytes);
    let fenced = chain.append(CheckpointManifest { number: 2, ..Default::default() });
    assert!(matches!(fenced, Err(CheckpointError::Fenced { .. })), "{fenced:?}");
}

#[test]
fn a_store_without_conditional_puts_is_refused() {
    let server = S3::start();
    server.state.lock().unwrap().takes_all = true;
    let (store, job) = (store(&server, "s3://bucket/state"), ObjectName::job("clicks").unwrap());
    let error = Chain::begin(store, &job, &run(), &ResumeFrom::Latest).err().unwrap().to_string();
    assert!(error.starts_with("s3://bucket/state/clicks"), "{error}");
    assert!(error.contains("two runs of a job"), "{error}");
    assert_eq!(server.state.lock().unwrap().objects.len(), 0, "nothing stays behind");
}

#[test]
fn failures_say_whether_they_changed_anything() {
    let server = S3::start();
    let (name, bytes) = (ObjectName::new("job/a").unwrap(), bytes::Bytes::from_static(b"x"));
    let mut wrong = options(&server.endpoint());
    wrong.insert("s3.access_key_id".into(), "stranger".into());
    let error =
        BucketStore::open("s3://bucket", &wrong).unwrap().create(&name, &bytes).unwrap_err();
    assert_eq!(error.effect, WriteEffect::None);
    let text = "s3://bucket/job/a: access is refused: InvalidAccessKeyId: who are you?";
    assert_eq!(error.to_string(), text);

    let gone = BucketStore::open("s3://bucket", &options(&format!("http://{}", nobody()))).unwrap();
    assert_eq!(gone.create(&name, &bytes).unwrap_err().effect, WriteEffect::Unknown);
    assert!(BucketStore::open("https://host/x", &Options::default()).is_err());
}
