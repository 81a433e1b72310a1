//! The corpora of the fuzz targets, replayed, and each seed with some changes. `UPDATE_CORPUS=1`
//! writes the seeds anew; a finding of a fuzz target is added by its own name.
#![allow(missing_docs)]

use std::sync::Arc;

use pool::access::{At, BlockRange, LoadMode, LookOutcome, OriginLook, TableLoad, TableSummary};
use pool::home::{HeldPart, SavedVersion};
use pool::list::{self, ListNode};
use pool::manifest::{
    Block, Buckets, CachedOrigin, Codec, Definition, ExtentHolder, KeyFamily, Layout, Manifest,
    Strip,
};
use pool::pointer::{ExtentId, Pointer};
use pool::wire::{
    ClientRequest, MESSAGE_BYTES_MAX, PROTOCOL, Rights, ServerPlace, ServerResponse, Stat,
    StatementId, Welcome,
};
use pool::{hostile, record};

#[path = "../../../fuzz/replay/mutate.rs"]
mod mutate;
#[path = "../../../fuzz/replay/seeds.rs"]
mod seeds;

/// Changed seeds of a target.
const CHANGED: usize = 20_000;

type Seeds = Vec<(String, Vec<u8>)>;

fn replayed(target: &str, write: fn() -> Seeds) -> Seeds {
    seeds::read(&seeds::corpus(env!("CARGO_MANIFEST_DIR"), target), write)
}

fn definition() -> Definition {
    Definition {
        schema: b"columns".to_vec(),
        columns: vec![Layout::Fixed(8), Layout::Bits, Layout::Bytes],
        buckets: vec![Buckets { column: 0, bits: 1, family: KeyFamily::Integer }],
        strip_rows: 256,
    }
}

const EXTENT: ExtentId = ExtentId { server: 1, number: 7 };

fn strip() -> Strip {
    let block = |offset, bytes, codec, nulls| Block {
        at: Pointer { extent: EXTENT, offset },
        bytes,
        codec,
        nulls,
        least: -3,
        greatest: 200,
    };
    let blocks = vec![
        block(0, 10, Codec::Distance(1), 0),
        block(64, 66, Codec::Plain, 9),
        block(192, 60, Codec::Plain, 0),
    ];
    Strip { rows: 10, blocks }
}

fn holder(number: u16) -> ExtentHolder {
    ExtentHolder { number, name: "m1".into(), identity: 9 }
}

fn manifest() -> Manifest {
    Manifest {
        table: "t".into(),
        version: 3,
        definition: definition(),
        strips: vec![strip(), strip()],
        partitions: vec![0, 1, 2],
        extents: vec![(EXTENT, 252)],
        holders: vec![],
        origin: None,
    }
}

fn origin() -> CachedOrigin {
    CachedOrigin { name: "/data/*.csv".into(), mark: 77 }
}

fn place() -> ServerPlace {
    ServerPlace { name: "m1".into(), address: "h:7741".into(), identity: 8, incarnation: 9 }
}

fn requests() -> Vec<ClientRequest> {
    let snapshot = StatementId { job: 5 << 70, statement: 3 };
    let load = TableLoad {
        table: "é".into(),
        definition: definition(),
        mode: LoadMode::Overwrite,
        origin: Some(origin()),
    };
    let hello = ClientRequest::Hello {
        protocol: PROTOCOL,
        client: "process 7".into(),
        token: vec![9; 32],
        rights: Rights::Write,
    };
    vec![
        hello,
        ClientRequest::Connect { fabric: "tcp".into(), address: vec![0, 255] },
        ClientRequest::Tables,
        ClientRequest::Pin { table: "t".into(), at: At::Newest, snapshot: Some(snapshot) },
        ClientRequest::Pin { table: "t".into(), at: At::Version(7), snapshot: None },
        ClientRequest::Manifest { lease: 1, from: 2 },
        ClientRequest::Keys { extents: vec![1, u32::MAX] },
        ClientRequest::Unpin { lease: 3 },
        ClientRequest::Beat,
        ClientRequest::Begin { load, snapshot, writers: 4 },
        ClientRequest::Grant { load: 1, bytes: 2, part: false },
        ClientRequest::Seal { load: 1, extent: 2, used: 3, crc: 4 },
        ClientRequest::Commit { load: 1, writer: 2, strips: vec![(1, strip())], last: true },
        ClientRequest::Abort { load: 1, reason: "no room".into() },
        ClientRequest::Drop { table: "t".into() },
        ClientRequest::Stat,
        ClientRequest::Verify { extents: vec![] },
        ClientRequest::Outcome { load: 1, snapshot },
        ClientRequest::Replace { load: 1, writer: 2, strips: vec![(1, strip())] },
        ClientRequest::HandIn { load: 1, writer: 2, strips: vec![(1, strip())], last: false },
        ClientRequest::Distribute { load: 1, servers: vec![place()] },
        ClientRequest::Hold { load: 1, extents: vec![(2, 3)], unused: vec![4] },
        ClientRequest::Release { extents: vec![2, u32::MAX] },
        ClientRequest::Look { table: "t".into(), statement: snapshot, age_max_ns: 9 },
        ClientRequest::EndLook { table: "t".into(), outcome: LookOutcome::Failed },
        ClientRequest::Relocate { servers: vec![place()] },
        ClientRequest::Claim {
            identity: 7,
            name: "m0".into(),
            link: 9,
            extents: vec![3],
            last: true,
        },
        ClientRequest::Forget { name: "m0".into(), living: Some(7) },
    ]
}

fn responses() -> Vec<ServerResponse> {
    let summary =
        TableSummary { name: "t".into(), version: 1, rows: 2, bytes: 3, leases: 4, damaged: true };
    let fabrics = vec!["shm".into(), "tcp".into()];
    let (name, host, rights) = ("m0".into(), "h".into(), Rights::Write);
    let welcome = Welcome { name, host, fabrics, rights, incarnation: 7, identity: 8, keeps: true };
    vec![
        ServerResponse::Welcome(welcome),
        ServerResponse::Failed(pool::PoolError::Full { needed: 5, free: 3 }),
        ServerResponse::Failed(pool::PoolError::GivenUp { reason: "node 1 failed".into() }),
        ServerResponse::Done,
        ServerResponse::Address(vec![1, 2]),
        ServerResponse::Tables(vec![summary]),
        ServerResponse::Pinned { version: 1, lease: 2, manifest_bytes: 3 },
        ServerResponse::Manifest(vec![0; 100]),
        ServerResponse::Keys(vec![vec![1], vec![]]),
        ServerResponse::Load(5),
        ServerResponse::Extent { number: 1, bytes: 2, key: vec![3] },
        ServerResponse::Committed { version: Some(9) },
        ServerResponse::Stat(Stat { name: "m0".into(), bytes: 3, ..Stat::default() }),
        ServerResponse::Broken { lease: 1, reason: "it was silent".into() },
        ServerResponse::UnderWay,
        ServerResponse::Working,
        ServerResponse::Numbers(vec![1, u16::MAX]),
        ServerResponse::Look(OriginLook::Due),
        ServerResponse::Missing(vec![4]),
        ServerResponse::Forgotten { tables: vec!["t".into()], extents: 2 },
    ]
}

/// A message whose checksum is put right by the reader.
fn message(parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&(body.len() as u32).to_le_bytes()[..], &[0; 4], &body].concat()
}

/// The name of a good one begins with the number of its messages.
fn message_seeds() -> Seeds {
    let asked: Vec<u8> = requests().iter().flat_map(ClientRequest::encode).collect();
    let answered: Vec<u8> = responses().iter().flat_map(ServerResponse::encode).collect();
    let mut damaged = asked.clone();
    damaged[9] ^= 4;
    let long = (MESSAGE_BYTES_MAX as u32 + 1).to_le_bytes();
    let beats = ClientRequest::Beat.encode().repeat(2);
    let all = [
        ("28-requests", 0, asked.clone()),
        ("28-requests-summed", 2, asked.clone()),
        ("20-responses", 1, answered.clone()),
        ("20-responses-summed", 3, answered),
        ("2-half", 0, [&beats[..], &asked[..20]].concat()),
        ("0-none", 0, vec![]),
        ("bad-damaged", 0, damaged),
        ("bad-kind", 2, message(&[&[255]])),
        ("bad-response-kind", 3, message(&[&[99]])),
        ("bad-look", 3, message(&[&[17, 4]])),
        ("bad-empty", 2, message(&[])),
        ("bad-long", 2, [&long[..], &[0; 9]].concat()),
        ("bad-more", 2, message(&[&[8, 0]])),
        ("bad-text", 2, message(&[&[14], &[1, 0, 0, 0, 0xff]])),
        ("bad-reason", 2, message(&[&[13], &[0; 8], &[1, 0, 0, 0, 27]])),
        ("bad-strips", 2, message(&[&[20], &[0; 12], &[0xff; 4]])),
        ("bad-keys", 2, message(&[&[6], &[0xff; 4]])),
        ("bad-manifest-of-response", 3, message(&[&[7], &[0xff; 4]])),
    ];
    all.map(|(name, how, bytes)| (name.to_owned(), [&[how][..], &bytes].concat())).into()
}

/// The name of one that is a manifest begins with `good`.
fn manifest_seeds() -> Seeds {
    let with = |change: fn(&mut Manifest)| {
        let mut of = manifest();
        change(&mut of);
        of
    };
    let all = [
        ("good", manifest()),
        ("good-empty", with(|of| (of.strips, of.partitions) = (vec![], vec![0; 3]))),
        ("good-holders", with(|of| of.holders = vec![holder(1)])),
        (
            "good-holders-of-cache",
            with(|of| (of.holders, of.origin) = (vec![holder(1)], Some(origin()))),
        ),
        ("good-lists", heads()),
        ("bad-lists", Manifest { definition: definition(), ..heads() }),
        ("good-cache", with(|of| of.origin = Some(origin()))),
        ("bad-holder", with(|of| of.holders = vec![holder(4)])),
        ("bad-partitions", with(|of| of.partitions = vec![0, 2, 1])),
        ("bad-outside", with(|of| of.extents[0].1 = 251)),
        ("bad-wraps", with(|of| of.strips[0].blocks[2].at.offset = 0u32.wrapping_sub(64))),
        ("bad-nulls", with(|of| of.strips[0].blocks[1].nulls = 11)),
        ("bad-bits", with(|of| of.definition.buckets[0].bits = 200)),
        ("bad-rows", with(|of| of.definition.strip_rows = 0)),
    ];
    let bytes = |of: Manifest| {
        let mut bytes = of.encode();
        bytes.truncate(bytes.len() - 4);
        bytes
    };
    all.map(|(name, of)| (name.to_owned(), bytes(of))).into()
}

fn link() -> BlockRange {
    BlockRange { at: Pointer { extent: EXTENT, offset: 64 }, bytes: 200 }
}

/// A version of a table in lists.
fn heads() -> Manifest {
    let head = list::head(30, link(), &[(EXTENT, 264)]);
    let definition = definition().listed();
    let (strips, extents) = (vec![head], vec![(EXTENT, 264)]);
    Manifest { definition, strips, partitions: vec![0, 0, 1], extents, ..manifest() }
}

/// The name of one that is a node begins with `good`.
fn list_seeds() -> Seeds {
    let with = |change: fn(&mut ListNode)| {
        let strips = vec![strip(), strip()];
        let mut of = ListNode { partition: 1, depth: 2, rows: 50, links: vec![link()], strips };
        change(&mut of);
        of
    };
    let all = [
        ("good", with(|_| ())),
        ("good-oldest", with(|of| (of.depth, of.rows, of.links) = (1, 20, vec![]))),
        ("bad-links", with(|of| of.depth = 3)),
        ("bad-end", with(|of| of.depth = 0)),
        ("bad-rows", with(|of| of.rows = 20)),
        ("bad-empty", with(|of| of.strips.clear())),
        ("bad-partition", with(|of| of.partition = 1 << 20)),
        ("bad-length", with(|of| of.links[0].bytes = u32::MAX)),
    ];
    let bytes = |of: ListNode| {
        let mut bytes = of.encode();
        bytes.truncate(bytes.len() - 4);
        bytes
    };
    all.map(|(name, of)| (name.to_owned(), bytes(of))).into()
}

#[test]
fn nodes_of_lists_are_what_they_say_or_refused() {
    let all = replayed("pool_list", list_seeds);
    for (name, bytes) in &all {
        assert_eq!(hostile::list_node(bytes), name.starts_with("good"), "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::list_node);
}

/// The name of one that is the file of a table begins with `good`.
fn saved_seeds() -> Seeds {
    let saved = |of: Manifest, sums: &[u32]| {
        let bytes = Arc::new(of.encode());
        let snapshot = StatementId { job: 5 << 70, statement: 3 };
        let version =
            SavedVersion { load: 9, snapshot, manifest: Arc::new(of), bytes, goes_on: false };
        let mut bytes = record::encode(&version, sums);
        bytes.truncate(bytes.len() - 4);
        bytes
    };
    let mut head = saved(manifest(), &[7]);
    head[12] ^= 1;
    let mut format = saved(manifest(), &[7]);
    format[7] = 2;
    let spread = Manifest { holders: vec![holder(1)], ..manifest() };
    let all = [
        ("good", saved(manifest(), &[7])),
        ("good-spread", saved(spread, &[])),
        ("bad-sums", saved(manifest(), &[7, 8])),
        ("bad-head", head),
        ("bad-format", format),
        ("bad-empty", vec![]),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[test]
fn files_of_tables_are_what_they_say_or_refused() {
    let all = replayed("pool_saved", saved_seeds);
    for (name, bytes) in &all {
        assert_eq!(hostile::saved(bytes), name.starts_with("good"), "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::saved);
}

/// The name of one that is the file of what is held for another server begins with `good`.
fn part_seeds() -> Seeds {
    let part = |extents: Vec<(u32, u32)>| {
        let part = HeldPart { owner: 9, name: "m0".into(), extents, client: None };
        let mut bytes = record::part::encode(&part, &[7, 8][..part.extents.len()]);
        bytes.truncate(bytes.len() - 4);
        bytes
    };
    let mut format = part(vec![(1, 64)]);
    format[7] = 2;
    let all = [
        ("good", part(vec![(1, 64), (2, 1)])),
        ("good-none", part(vec![])),
        ("bad-twice", part(vec![(1, 64), (1, 64)])),
        ("bad-format", format),
        ("bad-empty", vec![]),
    ];
    all.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

#[test]
fn files_of_parts_are_what_they_say_or_refused() {
    let all = replayed("pool_part", part_seeds);
    for (name, bytes) in &all {
        assert_eq!(hostile::part(bytes), name.starts_with("good"), "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::part);
}

#[test]
fn messages_are_what_they_say_or_refused() {
    let all = replayed("pool_messages", message_seeds);
    for (name, bytes) in &all {
        let count = name.split('-').next().and_then(|number| number.parse().ok());
        assert_eq!(hostile::messages(bytes).ok(), count, "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::messages);
}

#[test]
fn manifests_are_what_they_say_or_refused() {
    let all = replayed("pool_manifest", manifest_seeds);
    for (name, bytes) in &all {
        assert_eq!(hostile::manifest(bytes), name.starts_with("good"), "{name}");
    }
    mutate::each(&seeds::contents(&all), CHANGED, hostile::manifest);
}
