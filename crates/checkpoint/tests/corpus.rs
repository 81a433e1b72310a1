//! The corpora of the fuzz targets, replayed, and each seed with some changes. `UPDATE_CORPUS=1`
//! writes the seeds anew; a finding of a fuzz target is added by its own name.
#![allow(missing_docs)]

use checkpoint::segment::SegmentWriter;
use checkpoint::{
    BaseCheckpoint, Begin, CheckpointManifest, Holder, OperatorEntry, Record, RecordBody,
    SegmentEntry, SinkEntry, SourceEntry, SplitEntry, StagedPart, hostile,
};

#[path = "../../../fuzz/replay/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/replay/seeds.rs"]
mod seeds;

/// Changed seeds of a target.
const CHANGED: usize = 10_000;

type Seeds = Vec<(String, Vec<u8>)>;

fn replayed(target: &str, write: fn() -> Seeds) -> Seeds {
    seeds::read(&seeds::corpus(env!("CARGO_MANIFEST_DIR"), target), write)
}

fn records() -> Seeds {
    let base = BaseCheckpoint { record: 4, number: 12, kept: Some("friday".into()) };
    let begin = Begin {
        holder: Holder {
            host: "host3".into(),
            machine: "boot-1".into(),
            pid: 812,
            started: 5,
            nonce: u64::MAX,
        },
        nodes: 2,
        workers: 4,
        release: "0.1.0".into(),
        fingerprint: "f".into(),
        sql: "SELECT 'a\n'".into(),
        round: 13,
        base: Some(base.clone()),
    };
    let split = SplitEntry {
        name: "0".into(),
        position: vec![0, 255, 16],
        greatest: Some(i64::MIN),
        ended: true,
    };
    let manifest = CheckpointManifest {
        number: 12,
        parent: Some(11),
        nodes: 2,
        workers: 4,
        fingerprint: "f".into(),
        operators: vec![OperatorEntry {
            id: "count by page".into(),
            text: "count(*)".into(),
            watermark: Some(-5),
        }],
        segments: vec![SegmentEntry { file: "g1-n0-000012.seg".into(), bytes: 9, crc: u32::MAX }],
        referred: vec![SegmentEntry { file: "g1-n0-000007.seg".into(), bytes: 90, crc: 5 }],
        sources: vec![SourceEntry { id: "clicks".into(), splits: vec![split] }],
        sinks: vec![SinkEntry {
            id: "out".into(),
            parts: vec![StagedPart { part: 1, staged: b"rows".to_vec() }],
            mark: Some([3, 1000]),
        }],
        counters: [("late".to_owned(), u64::MAX)].into(),
        settled: None,
        tables: vec![],
    };
    let bodies = [
        ("begin", RecordBody::Begin(begin)),
        ("manifest", RecordBody::Manifest(manifest)),
        ("settled", RecordBody::Settled(base.clone())),
        ("done", RecordBody::Done(base)),
    ];
    let seed = |(name, body): (&str, RecordBody)| {
        let record =
            Record { job: "clicks".into(), record: 5, generation: 7, run: 9, kept: None, body };
        let bytes = record.encode().unwrap();
        let json = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        (name.to_owned(), bytes[json..].to_vec())
    };
    let mut seeds: Seeds = bodies.into_iter().map(seed).collect();
    seeds.push(("bad-deep".into(), "[".repeat(300).into_bytes()));
    seeds.push(("bad-kind".into(), br#"{"kind":"x","generation":1}"#.to_vec()));
    seeds.push(("bad-header".into(), b"millstream-chain 1 00000000 0\n".to_vec()));
    seeds
}

fn segments() -> Seeds {
    let segment = |lengths: &[usize]| {
        let mut writer = SegmentWriter::default();
        for (part, &length) in lengths.iter().enumerate() {
            writer.section("count", part as u32, 1, vec![vec![7; length].into()]).unwrap();
        }
        writer.finish().unwrap().parts.concat()
    };
    let mut count = segment(&[1]);
    // The footer begins at 128.
    count[128] = 2;
    let mut place = segment(&[1, 1]);
    // The offset of the second section.
    let at = place.len() - 16 - 20;
    place[at] = 64;
    vec![
        ("none".into(), segment(&[])),
        ("one".into(), segment(&[10])),
        ("several".into(), segment(&[64, 0, 65])),
        ("bad-count".into(), count),
        ("bad-place".into(), place),
        ("bad-short".into(), b"MSSEG\0".to_vec()),
    ]
}

#[test]
fn records_of_strangers_are_records_or_refused() {
    let seeds = replayed("chain_record", records);
    for (name, json) in &seeds {
        assert_eq!(hostile::record(json).is_err(), name.starts_with("bad"), "{name}");
    }
    mutate::each(&seeds::contents(&seeds), CHANGED, hostile::record);
}

#[test]
fn segments_of_strangers_are_segments_or_refused() {
    let seeds = replayed("segment", segments);
    for (name, bytes) in &seeds {
        let read = hostile::segment(bytes);
        assert_eq!(read.is_err(), name.starts_with("bad"), "{name}: {read:?}");
    }
    mutate::each(&seeds::contents(&seeds), CHANGED, hostile::segment);
}
