//! Verbs pass the conformance suite, connect real processes and survive hostile peers: on the
//! devices that MILLSTREAM_RDMA_DEVICES names (one for both sides, or two with a comma), else on
//! the best device of the machine. Where there is none the tests say that they did not run, hence
//! they are no part of `cargo test`: scripts/test-rdma.sh brings devices.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fabric::conformance::{self, Bed};
use fabric::shared::{Network, SharedFabric};
use fabric::verbs::{Connect, VerbsFabric, VerbsOptions, probe, probe_groups, survey};
use fabric::{
    Armed, Completion, Endpoint, ErrorKind, Fabric, FabricError, Flags, LinkId, OpId, PostError,
    Publish, RemoteRange, Src,
};

mod greeting;
mod processes;

use greeting::{GREETING_BYTES, greeting, place};

const DEVICES: &str = "MILLSTREAM_RDMA_DEVICES";
const TIMEOUT: Duration = Duration::from_secs(20);

struct VerbsBed([Arc<VerbsFabric>; 2]);

impl Bed for VerbsBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        [self.0[0].clone(), self.0[1].clone()]
    }
}

struct SharedBed([Arc<dyn Fabric>; 2]);

impl Bed for SharedBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        self.0.clone()
    }
}

impl VerbsBed {
    /// `None` where there is no device, after saying so.
    fn new(options: &VerbsOptions) -> Option<Self> {
        let [a, b] = devices()?;
        let fabric = |device| VerbsFabric::new(VerbsOptions { device, ..fitting(options) });
        Some(Self([fabric(a).expect("the device opens"), fabric(b).expect("the device opens")]))
    }

    fn pair(&mut self) -> [Box<dyn Endpoint>; 2] {
        let offer = |i: usize| {
            let link = LinkId { local: i as u32, remote: 1 - i as u32 };
            self.0[i].offer(link).expect("an offer")
        };
        let offers = [offer(0), offer(1)];
        self.connect(offers)
    }
}

/// The devices of the two sides.
fn devices() -> Option<[Option<String>; 2]> {
    if let Ok(names) = std::env::var(DEVICES) {
        let mut names = names.split(',').map(str::to_string);
        let first = names.next();
        let second = names.next().or(first.clone());
        return Some([first, second]);
    }
    match survey(&VerbsOptions::default()).choice {
        Ok(choice) => Some([Some(choice.device.clone()), Some(choice.device)]),
        Err(reason) => {
            println!("NOT RUN: {reason}");
            None
        }
    }
}

/// Whether the devices are of iWARP, which connects by rdma_cm alone.
fn iwarp() -> bool {
    let asked = devices().and_then(|[first, _]| first);
    let known = survey(&VerbsOptions::default()).devices.unwrap_or_default();
    known.iter().any(|device| device.iwarp && Some(&device.name) == asked.as_ref())
}

/// The options, with the way to connect that the devices have.
fn fitting(options: &VerbsOptions) -> VerbsOptions {
    let connect = if iwarp() { Connect::RdmaCm } else { options.connect };
    VerbsOptions { connect, ..options.clone() }
}

fn conforms(options: &VerbsOptions) {
    let Some(mut bed) = VerbsBed::new(options) else { return };
    let report = conformance::run(&mut bed);
    assert_eq!(report.passed.len(), conformance::cases().len());
    println!("{} cases passed on {:?}", report.passed.len(), bed.0[0].choice());
}

#[test]
fn passes_the_conformance_suite() {
    conforms(&VerbsOptions::default());
}

#[test]
fn passes_the_conformance_suite_with_a_notice_for_each_write() {
    conforms(&VerbsOptions { publish: Some(Publish::NotifyCounted), ..Default::default() });
}

#[test]
fn passes_the_conformance_suite_with_relaxed_ordering_and_small_packets() {
    conforms(&VerbsOptions {
        relaxed_ordering: true,
        mtu: Some(1024),
        ops_max: 64,
        ..Default::default()
    });
}

#[test]
fn passes_the_conformance_suite_with_notices_as_messages() {
    conforms(&VerbsOptions { publish: Some(Publish::Notify), send_only: true, ..by_rdma_cm() });
}

#[test]
fn passes_the_conformance_suite_by_rdma_cm() {
    conforms(&by_rdma_cm());
}

#[test]
fn datagrams_reach_a_group() {
    let Some(mut bed) = VerbsBed::new(&VerbsOptions::default()) else { return };
    if bed.0.iter().any(|fabric| fabric.multicast().is_none()) {
        println!("NOT RUN: the device or its address has no groups");
        return;
    }
    assert_eq!(conformance::multicast(&mut bed).len(), 6);
    let options = VerbsOptions { device: devices().and_then(|[a, _]| a), ..Default::default() };
    let probed = probe_groups(&options).expect("the device has groups");
    assert!(probed.is_some_and(|(bytes, arrives)| bytes >= 128 && arrives), "{probed:?}");
    let [a, b] = bed.0.map(|fabric| SharedFabric::new(fabric, Arc::new(|worker| worker), None));
    assert!(a.multicast().is_some() && b.multicast().is_some(), "sharing takes nothing away");
}

#[test]
fn passes_the_conformance_suite_on_a_shared_queue_pair() {
    shares(&VerbsOptions::default());
}

#[test]
fn passes_the_conformance_suite_on_a_queue_pair_shared_by_rdma_cm() {
    shares(&by_rdma_cm());
}

fn by_rdma_cm() -> VerbsOptions {
    VerbsOptions { connect: Connect::RdmaCm, ..Default::default() }
}

fn shares(options: &VerbsOptions) {
    for thread in [false, true] {
        let Some(bed) = VerbsBed::new(options) else { return };
        let fabrics = bed.0.map(|fabric| -> Arc<dyn Fabric> {
            let network = thread.then(|| Network::thread().expect("a thread"));
            SharedFabric::new(fabric, Arc::new(|worker| worker % 2), network)
        });
        let report = conformance::run(&mut SharedBed(fabrics));
        assert_eq!(report.passed.len(), conformance::cases().len());
    }
}

#[test]
fn the_survey_says_what_would_be_used() {
    let options = fitting(&VerbsOptions::default());
    let found = survey(&options);
    let text = found.to_string();
    println!("{text}");
    match (std::env::var(DEVICES), &found.choice) {
        (Ok(names), choice) => {
            choice.as_ref().expect("there are devices");
            assert!(names.split(',').all(|name| text.contains(name)), "{text}");
            assert!(text.contains("would use"), "{text}");
            for options in [options, by_rdma_cm()] {
                let caps = probe(&options).expect("the device reaches itself");
                assert!(caps.max_send >= 64 && caps.max_ops >= 16, "{caps:?}");
            }
        }
        (Err(_), Ok(choice)) => assert!(text.contains(&choice.device), "{text}"),
        (Err(_), Err(reason)) => {
            let Err(FabricError::Device { detail }) = VerbsFabric::new(options).map(|_| ()) else {
                panic!("opened what the survey does not see");
            };
            assert!(detail.starts_with(reason.as_str()), "{detail} and {reason}");
        }
    }
}

#[test]
fn what_does_not_exist_is_named() {
    let refusal = |options| match VerbsFabric::new(fitting(&options)).map(|_| ()) {
        Err(FabricError::Device { detail }) => detail,
        other => panic!("{other:?}"),
    };
    if devices().is_none() {
        return;
    }
    let none = refusal(VerbsOptions { device: Some("none7".into()), ..Default::default() });
    assert!(none.contains("none7"), "{none}");
    let none = refusal(VerbsOptions { gid_index: Some(200), ..Default::default() });
    assert!(none.contains("200"), "{none}");
    let none = refusal(VerbsOptions { port: Some(9), ..Default::default() });
    assert!(none.contains("port 1: not the one asked for"), "{none}");
}

/// Marks a process of this binary that may pin little.
const PINS_LITTLE: &str = "MILLSTREAM_TEST_PINS_LITTLE";

#[test]
fn process_that_may_pin_little() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if std::env::var(PINS_LITTLE).is_err() {
        return;
    }
    let maximum = getrlimit(Resource::Memlock).maximum;
    let limit = Rlimit { current: Some(64 << 10), maximum };
    setrlimit(Resource::Memlock, limit).expect("less is always allowed");
    let Some([device, _]) = devices() else { return };
    let options = fitting(&VerbsOptions { device, ..Default::default() });
    let opened = VerbsFabric::new(options).map(|_| ());
    let Err(FabricError::Memory { bytes, source }) = opened else { panic!("{opened:?}") };
    let (text, bytes) = (source.to_string(), bytes / 1024);
    assert!(text.contains("locked memory is 64 KiB") && text.contains("ulimit -l"), "{text}");
    assert!(text.contains(&format!("{bytes} KiB more")), "{text}");
}

#[test]
fn memory_that_cannot_be_pinned_is_explained() {
    use std::os::unix::process::CommandExt;
    if devices().is_none() {
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("a path"));
    child.args(["--exact", "process_that_may_pin_little", "--nocapture"]).env(PINS_LITTLE, "1");
    // The superuser may pin what it likes.
    if rustix::process::geteuid().is_root() {
        child.uid(65_534).gid(65_534);
    }
    assert!(child.status().expect("the test binary starts").success());
}

fn fabric(options: &VerbsOptions) -> Arc<VerbsFabric> {
    let [device, _] = devices().expect("asked before");
    VerbsFabric::new(VerbsOptions { device, ..fitting(options) }).expect("the device opens")
}

#[test]
fn second_process() {
    processes::second(|| fabric(&VerbsOptions::default()));
}

#[test]
fn second_process_by_rdma_cm() {
    processes::second(|| fabric(&by_rdma_cm()));
}

fn both_ways() -> [(VerbsOptions, &'static str); 2] {
    let tcp = VerbsOptions::default();
    [(tcp, "second_process"), (by_rdma_cm(), "second_process_by_rdma_cm")]
}

#[test]
fn two_processes_exchange_messages() {
    for (options, second) in both_ways() {
        if devices().is_some() {
            processes::exchange(&*fabric(&options), second);
        }
    }
}

#[test]
fn a_killed_process_is_noticed() {
    for (options, second) in both_ways() {
        for sleeps in [false, true] {
            if devices().is_some() {
                processes::notices_death(&*fabric(&options), second, sleeps);
            }
        }
    }
}

/// A side that never polls gets more credit messages than it has kept receives for: the other side
/// holds them back, and loses none.
#[test]
fn credit_for_a_peer_that_does_not_poll_is_held_back() {
    let Some(mut bed) = VerbsBed::new(&VerbsOptions::default()) else { return };
    let [mut a, mut b] = bed.pair();
    let mut seen = Vec::new();
    let start = Instant::now();
    for round in 0..100 {
        b.post_recvs(1);
        // Idle polls tell at once.
        (0..20).for_each(|_| _ = b.poll(&mut seen));
        assert_eq!(a.budget().notices, 0, "nobody polled in round {round}");
    }
    assert_eq!(b.arm(), Armed::Ready, "what could not be said is a reason to stay awake");
    while a.budget().notices < 100 {
        a.poll(&mut seen);
        b.poll(&mut seen);
        assert!(start.elapsed() < TIMEOUT, "{:?}", a.budget());
    }
    let nowhere = fabric::RemoteKey { key: 0, base: 0, len: 0 };
    for imm in 0..100 {
        let dst = RemoteRange { key: nowhere, offset: 0 };
        a.write_notify(Src::Empty, dst, imm, OpId(1), Flags::SIGNAL).expect("a receive is there");
        a.submit();
    }
    let notices = |seen: &[Completion]| {
        seen.iter().filter(|c| matches!(c, Completion::Notify { .. })).count()
    };
    while notices(&seen) < 100 {
        a.poll(&mut seen);
        b.poll(&mut seen);
        assert!(start.elapsed() < TIMEOUT, "{seen:?}");
    }
}

/// Memory of another transport is refused, at export and as a source.
#[test]
fn what_is_not_of_this_transport_is_refused() {
    let Some(mut bed) = VerbsBed::new(&VerbsOptions::default()) else { return };
    let [mut a, mut b] = bed.pair();
    let heap = fabric::Slab::heap(64).expect("memory").range(0..64).expect("all");
    assert!(matches!(a.export(&heap), Err(FabricError::ForeignSlab)));
    let own = bed.0[1].slab(4096).expect("memory").range(0..4096).expect("all");
    let dst = RemoteRange { key: b.export(&own).expect("own memory"), offset: 0 };
    let foreign = a.write(Src::Slab(&heap), dst, OpId(1), Flags::SIGNAL);
    assert_eq!(foreign, Err(PostError::Unsupported));
}

/// Strangers know the token of an offer, and then say what they like, or nothing, or leave.
#[test]
fn strangers_do_no_harm_at_any_step_of_the_handshake() {
    let Some([device, _]) = devices() else { return };
    if iwarp() {
        println!("NOT RUN: iWARP has no handshake by TCP");
        return;
    }
    let timeout = Duration::from_millis(300);
    let options = VerbsOptions { device, connect_timeout: timeout, ..Default::default() };
    let fabric = VerbsFabric::new(options).expect("the device opens");
    let receives = || fabric.receives_free();
    let before = receives();
    let hello = |change: fn(&mut Vec<u8>)| {
        let mut hello = [b"MLSVRB\x00\x02".to_vec(), vec![0; 56]].concat();
        hello[18] = 0xff;
        hello[19] = 0xff;
        hello[20..24].copy_from_slice(&[10, 77, 0, 99]);
        hello[24] = 77;
        hello[36..40].copy_from_slice(&4096_u32.to_le_bytes());
        hello[52..54].copy_from_slice(&1024_u16.to_le_bytes());
        hello[54] = 1;
        hello[58] = 1;
        change(&mut hello);
        hello
    };
    let steps: [(&str, Vec<u8>); 7] = [
        ("nothing", vec![]),
        ("half a hello", hello(|hello| hello.truncate(30))),
        ("noise", conformance::pattern(3, 64)),
        ("another version", hello(|hello| hello[7] = 9)),
        ("another link layer", hello(|hello| hello[58] = 0)),
        ("an impossible packet size", hello(|hello| hello[52] = 1)),
        ("a hello and no more", hello(|_| {})),
    ];
    for (what, bytes) in steps {
        for leaves in [true, false] {
            let offer = fabric.offer(LinkId { local: 1, remote: 0 }).expect("an offer");
            let address = offer.address();
            let mut own = address.clone();
            own[8..24].copy_from_slice(&[7; 16]);
            let connecting = std::thread::spawn(move || offer.connect(&own).map(|_| ()));
            let mut stream = TcpStream::connect(place(&address)).expect("it listens");
            stream.write_all(&greeting(0, 1, &address[8..24], &[7; 16])).expect("it listens");
            stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
            stream.read_exact(&mut [0; GREETING_BYTES]).expect("it answers");
            stream.write_all(&bytes).expect("a few bytes fit");
            // A stranger that stays keeps its socket until the offer has given up.
            let stays = (!leaves).then_some(stream);
            let outcome = connecting.join().expect("no panic");
            drop(stays);
            assert!(matches!(outcome, Err(FabricError::Connect { .. })), "{what}: {outcome:?}");
            assert_eq!(receives(), before, "{what}");
        }
    }
}

/// Connections come and go: what they held is given back, and late completions of one are none of
/// the next.
#[test]
fn connections_that_end_in_the_middle_give_everything_back() {
    for (options, _) in both_ways() {
        let Some(bed) = VerbsBed::new(&options) else { return };
        end_in_the_middle(bed);
    }
}

fn end_in_the_middle(mut bed: VerbsBed) {
    let before = bed.0.each_ref().map(|fabric| fabric.receives_free());
    let memory = bed.0.each_ref().map(|fabric| fabric.slab(1 << 16).expect("memory"));
    for round in 0..30_u32 {
        let [mut a, mut b] = bed.pair();
        let theirs = memory[1].range(0..1 << 16).expect("all");
        let key = b.export(&theirs).expect("own memory");
        let src = memory[0].range(0..4096).expect("in bounds");
        memory[0].store(0, u64::from(round), Ordering::Relaxed);
        let mut seen = Vec::new();
        b.post_recvs(16);
        let start = Instant::now();
        while a.budget().notices < 16 {
            b.poll(&mut seen);
            a.poll(&mut seen);
            assert!(start.elapsed() < TIMEOUT);
        }
        for i in 0..16_u32 {
            let dst = RemoteRange { key, offset: u64::from(i) * 4096 };
            let id = OpId(i.into());
            a.write_notify(Src::Slab(&src), dst, i, id, Flags::SIGNAL).expect("posts");
        }
        a.submit();
        (0..round % 4).for_each(|_| _ = b.poll(&mut seen));
        match round % 3 {
            0 => drop(b),
            1 => drop(a),
            _ => {
                drop(b);
                let start = Instant::now();
                while !seen.iter().any(|c| matches!(c, Completion::Error { .. })) {
                    a.poll(&mut seen);
                    assert!(start.elapsed() < TIMEOUT);
                }
                let kind = ErrorKind::Disconnected;
                let first = seen.iter().find(|c| matches!(c, Completion::Error { .. }));
                assert_eq!(first, Some(&Completion::Error { id: None, kind }));
            }
        }
    }
    let after = bed.0.each_ref().map(|fabric| fabric.receives_free());
    assert_eq!(after, before);
}

#[test]
fn a_wait_in_vain_is_an_error() {
    let Some([device, _]) = devices() else { return };
    for (options, _) in both_ways() {
        let connect_timeout = Duration::from_millis(50);
        let options = VerbsOptions { device: device.clone(), connect_timeout, ..options };
        let fabric = VerbsFabric::new(fitting(&options)).expect("the device opens");
        conformance::waits_in_vain(&*fabric);
    }
}

/// A caller without the token of the offer is refused, and the peer is connected.
#[test]
fn a_stranger_is_refused_by_rdma_cm() {
    let Some(bed) = VerbsBed::new(&by_rdma_cm()) else { return };
    let [caller, called] = [LinkId { local: 0, remote: 1 }, LinkId { local: 1, remote: 0 }];
    let free = bed.0.each_ref().map(|fabric| fabric.receives_free());
    let here = bed.0[0].offer(called).expect("an offer");
    let [peer, stranger] = [(); 2].map(|()| bed.0[1].offer(caller).expect("an offer"));
    let (of_here, of_peer) = (here.address(), peer.address());
    let answering = std::thread::spawn(move || here.connect(&of_peer));
    let mut wrong = of_here.clone();
    wrong[8..24].copy_from_slice(&[7; 16]);
    let Err(FabricError::Connect { source, .. }) = stranger.connect(&wrong) else {
        panic!("a stranger came in");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::ConnectionRefused, "{source}");
    let ends = [peer.connect(&of_here), answering.join().expect("no panic")];
    drop(ends.map(|end| end.expect("the peer is connected")));
    assert_eq!(bed.0.each_ref().map(|fabric| fabric.receives_free()), free);
    // Nobody listens there any more.
    let late = bed.0[1].offer(caller).expect("an offer").connect(&of_here).map(|_| ());
    assert!(matches!(late, Err(FabricError::Connect { .. })), "{late:?}");
}

#[test]
fn one_side_by_tcp_and_the_other_by_rdma_cm_is_an_error() {
    if devices().is_none() || iwarp() {
        println!("NOT RUN: there are no devices that connect both ways");
        return;
    }
    let [a, b] = both_ways().map(|(options, _)| fabric(&options));
    let (here, there) = (LinkId { local: 0, remote: 1 }, LinkId { local: 1, remote: 0 });
    let offers = [a.offer(here).expect("an offer"), b.offer(there).expect("an offer")];
    let addresses = [offers[1].address(), offers[0].address()];
    for (offer, peer) in offers.into_iter().zip(addresses) {
        let Err(FabricError::Connect { source, .. }) = offer.connect(&peer) else {
            panic!("they cannot meet");
        };
        assert!(source.to_string().contains("by tcp and the other by rdma_cm"), "{source}");
    }
}
