//! The verbs transport on the simulated device: each test runs a second process that finds the
//! library under the name of libibverbs, with the knobs that it wants.

#[path = "../../channel/tests/bed/ends.rs"]
mod ends;
#[path = "../../channel/tests/bed/questions.rs"]
mod questions;
mod second;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use channel::{Link, RingConfig, Transfer};
use fabric::conformance::{self, Bed};
use fabric::shared::{Network, SharedFabric};
use fabric::verbs::{Connect, VerbsFabric, VerbsOptions, probe, survey};
use fabric::{Completion, Endpoint, ErrorKind, Fabric, FabricError, Flags, LinkId, OpId};
use fabric::{Publish, RemoteRange, Src};
use second::{PART, play, plays_well};

#[test]
fn the_conformance_suite_passes_whatever_the_device_does() {
    for seed in 1..=4 {
        for more in ["", ",inline=0", ",in_order=1"] {
            plays_well("conformance", &format!("seed={seed}{more}"));
        }
    }
}

#[test]
fn the_conformance_suite_passes_with_a_notice_for_each_write() {
    plays_well("counted", "seed=4");
}

/// Notices are messages where the device carries no immediate data, and where that is asked for.
#[test]
fn the_conformance_suite_passes_without_immediate_data() {
    for seed in 1..=4 {
        for more in ["", ",inline=0", ",in_order=1"] {
            plays_well("conformance", &format!("seed={seed},immediate=0{more}"));
        }
    }
    plays_well("counted", "seed=4,immediate=0");
    plays_well("shared", "seed=2,immediate=0");
    plays_well("questions", "seed=3,immediate=0");
    plays_well("send_only", "seed=5");
}

#[test]
fn the_conformance_suite_passes_on_a_shared_queue_pair() {
    for seed in 1..=4 {
        for part in ["shared", "shared_thread"] {
            plays_well(part, &format!("seed={seed}"));
        }
        plays_well("shared_counted", &format!("seed={seed},inline=0"));
    }
}

#[test]
fn sleeping_ends_of_a_link_wake() {
    for seed in 1..=4 {
        plays_well("questions", &format!("seed={seed}"));
    }
}

/// The device is hostile enough to be worth a test: without its promises the suite fails.
#[test]
fn the_conformance_suite_fails_on_a_device_that_breaks_its_promises() {
    for knobs in ["seed=5,break_notify=1", "seed=6,break_revoke=1"] {
        let output = play("conformance", knobs);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{knobs} makes no difference");
        assert!(text.contains("conformance: `"), "{knobs} fails elsewhere: {text}");
    }
}

#[test]
fn a_queue_pair_that_breaks_ends_its_connection_and_no_other() {
    plays_well("break", "seed=7,fail_at=60");
}

#[test]
fn too_little_memory_is_explained() {
    plays_well("pin", "pin_max=100000");
}

#[test]
fn the_device_is_surveyed() {
    plays_well("survey", "");
    plays_well("survey", "in_order=1");
    plays_well("survey", "immediate=0");
}

#[test]
fn datagrams_to_groups() {
    for knobs in ["seed=1", "seed=2,lost=0,repeated=0", "seed=3,lost=700,repeated=500"] {
        plays_well("groups", knobs);
    }
}

#[test]
fn a_missing_connection_manager_is_named() {
    plays_well("no_manager", "");
}

#[test]
fn second_process() {
    match std::env::var(PART).as_deref() {
        Err(_) => {}
        Ok("conformance") => conforms(None),
        Ok("counted") => conforms(Some(Publish::NotifyCounted)),
        Ok("send_only") => sends_only(),
        Ok("shared") => shares(None, false),
        Ok("shared_thread") => shares(None, true),
        Ok("shared_counted") => shares(Some(Publish::NotifyCounted), false),
        Ok("questions") => asks(),
        Ok("break") => breaks(),
        Ok("pin") => pins(),
        Ok("survey") => surveys(),
        Ok("groups") => assert_eq!(conformance::multicast(&mut VerbsBed::new(None)).len(), 6),
        Ok("no_manager") => manager_is_missing(),
        Ok(part) => panic!("there is no part {part}"),
    }
}

struct VerbsBed([Arc<VerbsFabric>; 2]);

impl VerbsBed {
    fn new(publish: Option<Publish>) -> Self {
        let options = VerbsOptions { publish, ..VerbsOptions::default() };
        Self([(); 2].map(|()| VerbsFabric::new(options.clone()).expect("the device opens")))
    }
}

impl Bed for VerbsBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        [self.0[0].clone(), self.0[1].clone()]
    }
}

fn conforms(publish: Option<Publish>) {
    passes(&mut VerbsBed::new(publish));
}

fn passes(bed: &mut dyn Bed) {
    let report = conformance::run(bed);
    assert_eq!(report.passed.len(), conformance::cases().len());
}

/// One side asks for it, and the other has to follow.
fn sends_only() {
    let asks = VerbsOptions { send_only: true, ..VerbsOptions::default() };
    let both = [asks, VerbsOptions::default()];
    passes(&mut VerbsBed(both.map(|options| VerbsFabric::new(options).expect("the device opens"))));
}

/// The suite's links join even with odd numbers, over one connection.
struct SharedBed([Arc<SharedFabric>; 2]);

impl Bed for SharedBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        [self.0[0].clone(), self.0[1].clone()]
    }
}

fn shares(publish: Option<Publish>, thread: bool) {
    let fabrics = VerbsBed::new(publish).0.map(|fabric| {
        let network = thread.then(|| Network::thread().expect("a thread"));
        SharedFabric::new(fabric, Arc::new(|worker| worker % 2), network)
    });
    passes(&mut SharedBed(fabrics));
}

fn asks() {
    for publish in [Publish::Notify, Publish::NotifyCounted] {
        for transfer in [Transfer::Write, Transfer::Read] {
            let [a, b] = VerbsBed::new(Some(publish)).0;
            let (here, there) = ends::endpoints(&*a, &*b, true);
            let config = RingConfig { transfer, ..ends::small(false) };
            let mut here = Link::new(&*a, here, config, 7).expect("a link");
            let mut there = Link::new(&*b, there, config, 7).expect("a link");
            here.attach(&there.descriptor()).expect("equal ends");
            there.attach(&here.descriptor()).expect("equal ends");
            questions::questions([here, there]);
        }
    }
}

fn surveys() {
    let found = survey(&VerbsOptions::default());
    let choice = found.choice.clone().expect("a device");
    assert_eq!((choice.device.as_str(), choice.port, choice.mtu), ("sim0", 1, 4096));
    let caps = probe(&VerbsOptions::default()).expect("the device reaches itself");
    let in_order = std::env::var("MILLSTREAM_VERBS_SIM").is_ok_and(|knobs| knobs == "in_order=1");
    // Other processors do not order what they poll after what a device wrote.
    let polls = in_order && cfg!(target_arch = "x86_64");
    let publish = if polls { Publish::InOrderPoll } else { Publish::Notify };
    assert_eq!((caps.publish, caps.max_msg), (publish, 1 << 23));
    let text = found.to_string();
    assert!(text.contains("sim0 (software") && text.contains("would use"), "{text}");
    let carries = !std::env::var("MILLSTREAM_VERBS_SIM").is_ok_and(|knobs| knobs == "immediate=0");
    assert_eq!(text.contains("would notify   with immediate data"), carries, "{text}");
    let asked = survey(&VerbsOptions { send_only: true, ..VerbsOptions::default() }).to_string();
    assert!(asked.contains("would notify   as messages, as asked for"), "{asked}");
}

fn manager_is_missing() {
    let options = VerbsOptions { connect: Connect::RdmaCm, ..VerbsOptions::default() };
    let Err(FabricError::Device { detail }) = VerbsFabric::new(options.clone()).map(|_| ()) else {
        panic!("there is no library");
    };
    assert!(detail.contains("librdmacm.so.1") && detail.contains("librdmacm1"), "{detail}");
    let text = survey(&options).to_string();
    assert!(text.contains("would connect  not at all: ") && text.contains("librdmacm1"), "{text}");
    let text = survey(&VerbsOptions::default()).to_string();
    assert!(text.contains("would connect  by tcp; rdma_cm is not there"), "{text}");
}

fn pins() {
    let Err(FabricError::Memory { source, .. }) = VerbsFabric::new(VerbsOptions::default()) else {
        panic!("a megabyte of receives was pinned");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::OutOfMemory);
}

struct Pair {
    ends: [Box<dyn Endpoint>; 2],
    seen: [Vec<Completion>; 2],
}

impl Pair {
    fn poll(&mut self) {
        for (end, seen) in self.ends.iter_mut().zip(&mut self.seen) {
            end.poll(seen);
        }
    }

    fn failed(&self) -> bool {
        self.seen.iter().flatten().any(|c| matches!(c, Completion::Error { .. }))
    }
}

/// Three connections; one breaks in the middle. Each of its operations ends once, its other end
/// learns of it, the others go on, and a new one takes its place.
fn breaks() {
    const EACH: u64 = 40;
    let mut bed = VerbsBed::new(None);
    let memory = bed.0.each_ref().map(|fabric| fabric.slab(1 << 16).expect("memory"));
    let source = memory[0].range(0..512).expect("in bounds");
    memory[0].store(504, 42, Ordering::Relaxed);
    let mut pairs: Vec<(Pair, RemoteRange)> =
        (0..3).map(|i| connect(&mut bed, i, &memory[1])).collect();
    for id in 0..EACH {
        for (pair, dst) in &mut pairs {
            let posted = pair.ends[0].write(Src::Slab(&source), *dst, OpId(id), Flags::SIGNAL);
            assert!(posted.is_ok() || pair.failed(), "{posted:?}");
            pair.ends[0].submit();
            pair.poll();
        }
    }
    let start = Instant::now();
    let ended = |pair: &Pair| {
        let mut ids: Vec<u64> = pair.seen[0]
            .iter()
            .filter_map(|c| match c {
                Completion::Local { id } | Completion::Error { id: Some(id), .. } => Some(id.0),
                _ => None,
            })
            .collect();
        ids.sort_unstable();
        ids
    };
    let broken = |pairs: &[(Pair, RemoteRange)]| pairs.iter().filter(|(p, _)| p.failed()).count();
    while broken(&pairs) == 0
        || pairs.iter().any(|(p, _)| !p.failed() && ended(p).len() < EACH as usize)
    {
        pairs.iter_mut().for_each(|(pair, _)| pair.poll());
        assert!(start.elapsed() < Duration::from_secs(20), "nothing broke");
    }
    assert_eq!(broken(&pairs), 1, "one request broke one connection");
    let (pair, _) = pairs.iter_mut().find(|(pair, _)| pair.failed()).expect("counted above");
    let start = Instant::now();
    let gone = Completion::Error { id: None, kind: ErrorKind::Disconnected };
    while !pair.seen[1].contains(&gone) {
        pair.poll();
        assert!(start.elapsed() < Duration::from_secs(20), "the peer does not notice");
    }
    assert!(pair.seen[0].contains(&gone), "{:?}", pair.seen[0]);
    let ids = ended(pair);
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "an operation ended twice: {ids:?}");
    let (mut next, dst) = connect(&mut bed, 9, &memory[1]);
    next.ends[0].write(Src::Slab(&source), dst, OpId(1), Flags::SIGNAL).expect("posts");
    next.ends[0].submit();
    while next.seen[0].is_empty() {
        next.poll();
        assert!(start.elapsed() < Duration::from_secs(20), "a new connection does not work");
    }
    assert_eq!(next.seen[0], [Completion::Local { id: OpId(1) }]);
}

fn connect(bed: &mut VerbsBed, n: u32, target: &fabric::Slab) -> (Pair, RemoteRange) {
    let (left, right) = (2 * n, 2 * n + 1);
    let here = bed.0[0].offer(LinkId { local: left, remote: right }).expect("an offer");
    let there = bed.0[1].offer(LinkId { local: right, remote: left }).expect("an offer");
    let mut ends = bed.connect([here, there]);
    let key = ends[1].export(&target.range(0..4096).expect("in bounds")).expect("own memory");
    (Pair { ends, seen: [Vec::new(), Vec::new()] }, RemoteRange { key, offset: 0 })
}
