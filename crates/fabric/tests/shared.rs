//! Links that share one connection of two processes pass the conformance suite over every
//! transport, whoever drives it, and do not disturb each other.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fabric::conformance::{self, Bed};
use fabric::shared::{Network, ProcessOf, SharedFabric};
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::sim::{SimNet, SimOptions};
use fabric::tcp::{TcpFabric, TcpOptions};
use fabric::{
    Armed, Caps, Completion, Endpoint, ErrorKind, Fabric, FabricError, Flags, LinkId, Offer, OpId,
    Publish, RemoteKey, RemoteRange, Slab, SlabRange, Src,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Only what hangs takes so long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The suite's links join even with odd numbers.
fn parity() -> ProcessOf {
    Arc::new(|worker| worker % 2)
}

struct RealBed([Arc<dyn Fabric>; 2]);

impl Bed for RealBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        self.0.clone()
    }
}

fn passes(inner: impl Fn() -> Arc<dyn Fabric>, thread: bool) {
    let fabric = || -> Arc<dyn Fabric> {
        let network = thread.then(|| Network::thread().expect("a thread"));
        SharedFabric::new(inner(), parity(), network)
    };
    let report = conformance::run(&mut RealBed([fabric(), fabric()]));
    assert_eq!(report.passed.len(), conformance::cases().len());
}

fn tcp(publish: Publish) -> Arc<dyn Fabric> {
    TcpFabric::new(TcpOptions { publish, ..TcpOptions::default() }).expect("loopback")
}

fn shm() -> Arc<dyn Fabric> {
    ShmFabric::new(ShmOptions::default()).expect("shared memory")
}

#[test]
fn tcp_passes_the_conformance_suite() {
    for publish in [Publish::Notify, Publish::InOrderPoll] {
        passes(|| tcp(publish), false);
    }
}

#[test]
fn tcp_passes_the_conformance_suite_with_a_thread() {
    passes(|| tcp(Publish::Notify), true);
}

#[test]
fn shared_memory_passes_the_conformance_suite() {
    passes(shm, false);
}

#[test]
fn shared_memory_passes_the_conformance_suite_with_a_thread() {
    passes(shm, true);
}

/// The network is moved by the workers, or by two of the suite's own that stand for threads.
struct SimBed {
    net: SimNet,
    fabrics: [Arc<dyn Fabric>; 2],
    networks: Vec<Arc<Network>>,
}

impl SimBed {
    fn new(options: SimOptions, driven: bool) -> Self {
        let net = SimNet::new(options);
        let mut networks = Vec::new();
        let fabrics = [0, 1].map(|node| -> Arc<dyn Fabric> {
            let network = driven.then(|| Network::driven().expect("a descriptor"));
            networks.extend(network.clone());
            SharedFabric::new(net.fabric(node), parity(), network)
        });
        Self { net, fabrics, networks }
    }
}

impl Bed for SimBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        self.fabrics.clone()
    }

    fn step(&mut self) {
        for _ in 0..3 {
            self.net.step();
        }
        self.networks.iter().for_each(|network| network.turn(None));
    }

    fn readable(&mut self, fd: RawFd) -> bool {
        // The event descriptor of a worker whose network is driven here.
        // SAFETY: it belongs to an endpoint of the suite's, which lives during the call.
        let event_fd = unsafe { BorrowedFd::borrow_raw(fd) };
        (0..100_000).any(|_| {
            self.step();
            let mut fds = [PollFd::from_borrowed_fd(event_fd, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).expect("polls") == 1
        })
    }

    fn connect(&mut self, [a, b]: [Box<dyn Offer>; 2]) -> [Box<dyn Endpoint>; 2] {
        let (of_a, of_b) = (a.address(), b.address());
        [a.connect(&of_b).expect("connects"), b.connect(&of_a).expect("connects")]
    }
}

fn passes_simulated(options: &SimOptions) {
    for seed in 0..8 {
        for driven in [false, true] {
            let mut bed = SimBed::new(SimOptions { seed, ..options.clone() }, driven);
            let report = conformance::run(&mut bed);
            assert_eq!(report.passed.len(), conformance::cases().len());
            assert!(bed.net.stats().completions > 0);
        }
    }
}

#[test]
fn simulated_notices() {
    passes_simulated(&SimOptions::default());
}

#[test]
fn simulated_notices_with_unordered_completions() {
    passes_simulated(&SimOptions { ordered_completions: false, ..SimOptions::default() });
}

#[test]
fn simulated_polling_in_order() {
    passes_simulated(&SimOptions { publish: Publish::InOrderPoll, ..SimOptions::default() });
}

#[test]
fn simulated_counted_notices() {
    let options = SimOptions { publish: Publish::NotifyCounted, ..SimOptions::default() };
    passes_simulated(&SimOptions { ordered_completions: false, ..options });
}

/// A fabric that counts the connections that are offered.
struct Counted(Arc<dyn Fabric>, AtomicU32);

impl Fabric for Counted {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn caps(&self) -> Caps {
        self.0.caps()
    }

    fn slab(&self, bytes: usize) -> Result<Slab, FabricError> {
        self.0.slab(bytes)
    }

    fn publish(&self, range: &SlabRange) -> Result<RemoteKey, FabricError> {
        self.0.publish(range)
    }

    fn unpublish(&self, key: RemoteKey) {
        self.0.unpublish(key);
    }

    fn offer(&self, link: LinkId) -> Result<Box<dyn Offer>, FabricError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.offer(link)
    }
}

/// Workers of a process in the tests below.
const WORKERS: u32 = 3;

fn by_threes() -> ProcessOf {
    Arc::new(|worker| worker / WORKERS)
}

/// Two processes of three workers, each joined with those of the other.
struct Two {
    fabrics: [Arc<dyn Fabric>; 2],
    /// By process: local worker, remote worker, the end.
    ends: [Vec<(LinkId, Box<dyn Endpoint>)>; 2],
}

fn two(fabrics: [Arc<dyn Fabric>; 2]) -> Two {
    let links: Vec<LinkId> = (0..WORKERS * WORKERS)
        .map(|i| LinkId { local: i / WORKERS, remote: WORKERS + i % WORKERS })
        .collect();
    let offers = links.iter().map(|&link| {
        let back = LinkId { local: link.remote, remote: link.local };
        let here = fabrics[0].offer(link).expect("an offer");
        (here, fabrics[1].offer(back).expect("an offer"))
    });
    let mut ends = [Vec::new(), Vec::new()];
    let offers: Vec<_> = offers.collect();
    for (link, (here, there)) in links.into_iter().zip(offers) {
        let (of_here, of_there) = (here.address(), there.address());
        let back = LinkId { local: link.remote, remote: link.local };
        let [a, b] = std::thread::scope(|scope| {
            let a = scope.spawn(move || here.connect(&of_there).expect("connects"));
            let b = there.connect(&of_here).expect("connects");
            [a.join().expect("does not panic"), b]
        });
        ends[0].push((link, a));
        ends[1].push((back, b));
    }
    Two { fabrics, ends }
}

fn over(inner: &dyn Fn() -> Arc<dyn Fabric>, thread: bool) -> [Arc<dyn Fabric>; 2] {
    [0, 1].map(|_| -> Arc<dyn Fabric> {
        let network = thread.then(|| Network::thread().expect("a thread"));
        SharedFabric::new(inner(), by_threes(), network)
    })
}

#[test]
fn all_links_of_two_processes_are_one_connection() {
    let counted = [0, 1].map(|_| Arc::new(Counted(tcp(Publish::Notify), AtomicU32::new(0))));
    let fabrics = counted
        .each_ref()
        .map(|inner| -> Arc<dyn Fabric> { SharedFabric::new(inner.clone(), by_threes(), None) });
    let two = two(fabrics);
    assert_eq!(two.ends[0].len(), 9);
    assert_eq!(counted.each_ref().map(|inner| inner.1.load(Ordering::Relaxed)), [1, 1]);
    // Workers of one process are none of its business.
    let _ = two.fabrics[0].offer(LinkId { local: 0, remote: 2 }).expect("an offer");
    assert_eq!(counted[0].1.load(Ordering::Relaxed), 2);
}

/// Two processes may offer their links one after the other, and not in the same order: whoever
/// offers behind the first link knows of the connection already.
#[test]
fn offers_before_and_behind_the_first_link_meet() {
    for order in [[0, 1], [1, 0]] {
        let net = SimNet::new(SimOptions::seeded(3));
        let counted = [0, 1].map(|node| Arc::new(Counted(net.fabric(node), AtomicU32::new(0))));
        let fabrics =
            counted.each_ref().map(|inner| SharedFabric::new(inner.clone(), by_threes(), None));
        let ends = |worker: u32| [(worker, worker + WORKERS), (worker + WORKERS, worker)];
        let offer = |(local, remote): (u32, u32)| {
            let fabric = &fabrics[(local / WORKERS) as usize];
            fabric.offer(LinkId { local, remote }).expect("an offer")
        };
        let [early, late] = order.map(|node| ends(1)[node]);
        let early = offer(early);
        let [here, there] = ends(0).map(offer);
        let (of_here, of_there) = (here.address(), there.address());
        let mut retained = vec![here.connect(&of_there).expect("connects")];
        retained.push(there.connect(&of_here).expect("connects"));
        let late = offer(late);
        let (of_early, of_late) = (early.address(), late.address());
        retained.push(early.connect(&of_late).expect("the first link's connection is taken"));
        retained.push(late.connect(&of_early).expect("the first link's connection is taken"));
        let offered = counted.each_ref().map(|inner| inner.1.load(Ordering::Relaxed));
        assert_eq!(offered.iter().min(), Some(&1), "{offered:?} connections were offered");
    }
}

#[test]
fn a_shared_connection_has_a_number_of_links_and_says_so() {
    let net = SimNet::new(SimOptions::seeded(1));
    let fabric = SharedFabric::new(net.fabric(0), parity(), None);
    let offer = |i: u32| fabric.offer(LinkId { local: 2 * i, remote: 2 * i + 1 });
    let _kept: Vec<_> = (0..4096).map(|i| offer(i).expect("an offer")).collect();
    let Err(error) = offer(4096) else { panic!("one too many") };
    let text = error.to_string();
    assert!(text.contains("worker 8192 with worker 8193") && text.contains("4096 links"), "{text}");
}

/// One of the links is closed while its peer writes as fast as it can: the others count their
/// notices to the end, on the same connection.
fn closes_among_others(inner: &dyn Fn() -> Arc<dyn Fabric>, thread: bool) {
    const EACH: u32 = 60;
    let Two { fabrics, ends: [mut senders, mut receivers] } = two(over(inner, thread));
    let memory = fabrics.each_ref().map(|fabric| fabric.slab(1 << 16).expect("memory"));
    let source = memory[0].range(0..4096).expect("in bounds");
    let keys: Vec<_> = receivers
        .iter_mut()
        .map(|(_, end)| {
            end.post_recvs(EACH);
            end.submit();
            end.export(&memory[1].range(0..4096).expect("in bounds")).expect("exports")
        })
        .collect();
    let closed = 4;
    let mut sent = vec![0; senders.len()];
    let mut seen = vec![0; senders.len()];
    let mut errors = vec![Vec::new(); senders.len()];
    let start = Instant::now();
    while (0..senders.len()).any(|i| i != closed && seen[i] < EACH) || errors[closed].is_empty() {
        assert!(start.elapsed() < TIMEOUT, "{seen:?} of {EACH} arrived, {errors:?}");
        for (i, (_, end)) in senders.iter_mut().enumerate() {
            let dst = RemoteRange { key: keys[i], offset: 0 };
            let _ = end.write(Src::Slab(&source), dst, OpId(1), Flags::SIGNAL);
            let imm = 0x1000_0000 | sent[i];
            if sent[i] < EACH
                && end.write_notify(Src::Empty, dst, imm, OpId(2), Flags::SIGNAL).is_ok()
            {
                sent[i] += 1;
            }
            end.submit();
            let mut out = Vec::new();
            end.poll(&mut out);
            errors[i].extend(out.into_iter().filter_map(|completion| match completion {
                Completion::Error { id, kind } if kind != ErrorKind::Flushed => Some((id, kind)),
                _ => None,
            }));
        }
        for (i, (_, end)) in receivers.iter_mut().enumerate() {
            let mut out = Vec::new();
            end.poll(&mut out);
            let notices = out.iter().filter(|c| matches!(c, Completion::Notify { .. }));
            seen[i] += notices.count() as u32;
        }
        if seen[closed] >= EACH / 2 {
            // Again and again, which is as good as once.
            receivers[closed].1.close();
        }
    }
    for (i, errors) in errors.iter().enumerate() {
        let expected = if i == closed { vec![(None, ErrorKind::Disconnected)] } else { vec![] };
        assert_eq!(*errors, expected, "link {i}");
    }
}

#[test]
fn a_link_that_is_closed_disturbs_no_other() {
    for thread in [false, true] {
        closes_among_others(&|| tcp(Publish::Notify), thread);
        closes_among_others(&shm, thread);
    }
}

#[test]
fn the_death_of_a_process_is_told_to_each_link_once() {
    for thread in [false, true] {
        let Two { ends: [mut here, there], .. } = two(over(&|| tcp(Publish::Notify), thread));
        drop(there);
        let mut errors = vec![Vec::new(); here.len()];
        let start = Instant::now();
        while errors.iter().any(Vec::is_empty) {
            assert!(start.elapsed() < TIMEOUT, "not all links were told: {errors:?}");
            here.iter_mut().zip(&mut errors).for_each(|((_, end), out)| {
                end.poll(out);
            });
        }
        for ((_, end), out) in here.iter_mut().zip(&mut errors) {
            for _ in 0..10 {
                end.poll(out);
            }
            let gone = Completion::Error { id: None, kind: ErrorKind::Disconnected };
            assert_eq!(*out, [gone], "once");
        }
    }
}

/// Workers on threads of their own, of which each sends numbered notices over all of its links and
/// sleeps when there is nothing to do. Every number arrives once, and nobody sleeps for good.
fn threads_talk(inner: &dyn Fn() -> Arc<dyn Fabric>, thread: bool, rounds: u32) {
    let Two { ends, .. } = two(over(inner, thread));
    let mut by_worker: Vec<Vec<Box<dyn Endpoint>>> = (0..2 * WORKERS).map(|_| vec![]).collect();
    for (link, end) in ends.into_iter().flatten() {
        by_worker[link.local as usize].push(end);
    }
    let talking = std::sync::Barrier::new(by_worker.len());
    std::thread::scope(|scope| {
        for ends in by_worker {
            let talking = &talking;
            scope.spawn(move || talk(ends, rounds, talking));
        }
    });
}

fn talk(mut ends: Vec<Box<dyn Endpoint>>, rounds: u32, all: &std::sync::Barrier) {
    const WINDOW: u32 = 8;
    let nowhere = RemoteRange { key: RemoteKey { key: 0, base: 0, len: 0 }, offset: 0 };
    let (mut sent, mut seen) = (vec![0; ends.len()], vec![0; ends.len()]);
    ends.iter_mut().for_each(|end| end.post_recvs(WINDOW));
    let start = Instant::now();
    while seen.iter().chain(&sent).any(|n| *n < rounds) {
        assert!(start.elapsed() < TIMEOUT, "sent {sent:?}, seen {seen:?} of {rounds}");
        let mut moved = false;
        for (i, end) in ends.iter_mut().enumerate() {
            // Every third number does not fit beside the port's.
            let imm = |n: u32| if n.is_multiple_of(3) { 0x8000_0000 | n } else { n };
            while sent[i] < rounds
                && end
                    .write_notify(Src::Empty, nowhere, imm(sent[i]), OpId(0), Flags::SIGNAL)
                    .is_ok()
            {
                sent[i] += 1;
            }
            end.submit();
            let mut out = Vec::new();
            moved |= end.poll(&mut out) > 0;
            for completion in out {
                match completion {
                    Completion::Notify { .. } => {
                        seen[i] += 1;
                        end.post_recvs(1);
                    }
                    Completion::Local { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            end.submit();
        }
        // New receives of the peer come without a word.
        let can_send = |(end, sent): (&dyn Endpoint, &u32)| {
            *sent < rounds && end.budget().notices > 0 && end.budget().ops > 0
        };
        if moved || ends.iter().map(|end| &**end).zip(&sent).any(can_send) {
            continue;
        }
        let armed: Vec<Armed> = ends.iter_mut().map(|end| end.arm()).collect();
        let fds: Vec<RawFd> = armed
            .iter()
            .filter_map(|armed| match armed {
                Armed::Fd(fd) => Some(*fd),
                _ => None,
            })
            .collect();
        if fds.len() == armed.len() {
            fabric::wait(&fds, TIMEOUT);
        }
    }
    // A thread that has all of its own serves the others until they have theirs.
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            all.wait();
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            for end in &mut ends {
                end.poll(&mut Vec::new());
            }
            std::thread::yield_now();
        }
    });
}

#[test]
fn workers_on_threads_talk_and_sleep() {
    threads_talk(&|| tcp(Publish::Notify), false, 2000);
    threads_talk(&shm, false, 2000);
}

#[test]
fn workers_on_threads_talk_and_sleep_while_a_thread_moves_the_network() {
    threads_talk(&|| tcp(Publish::Notify), true, 2000);
    threads_talk(&shm, true, 2000);
}

/// As with threads, in the simulator: the close of a link among others, for many seeds.
#[test]
fn a_simulated_link_that_is_closed_disturbs_no_other() {
    for seed in 0..40 {
        let net = SimNet::new(SimOptions::seeded(seed));
        let fabrics = [0, 1].map(|node| SharedFabric::new(net.fabric(node), by_threes(), None));
        let connect = |local: u32, remote: u32| {
            let here = fabrics[0].offer(LinkId { local, remote }).expect("an offer");
            let there = fabrics[1].offer(LinkId { local: remote, remote: local }).expect("offers");
            let (of_here, of_there) = (here.address(), there.address());
            [here.connect(&of_there).expect("connects"), there.connect(&of_here).expect("connects")]
        };
        let memory = fabrics.each_ref().map(|fabric| fabric.slab(1 << 16).expect("memory"));
        let [mut retained, mut of_kept] = connect(0, 3);
        let [mut lost, mut of_lost] = connect(1, 4);
        let range = memory[1].range(0..4096).expect("in bounds");
        let other = memory[1].range(4096..8192).expect("in bounds");
        let lost_key = of_lost.export(&other).expect("exports");
        let kept_key = of_kept.export(&range).expect("exports");
        of_kept.post_recvs(40);
        of_kept.submit();
        let source = memory[0].range(0..4096).expect("in bounds");
        let (mut sent, mut seen, mut out) = (0, 0, Vec::new());
        for turn in 0.. {
            assert!(turn < 100_000, "seed {seed}: {seen} of 40 notices arrived");
            let dst = RemoteRange { key: lost_key, offset: 0 };
            let _ = lost.write(Src::Slab(&source), dst, OpId(1), Flags::SIGNAL);
            lost.submit();
            let dst = RemoteRange { key: kept_key, offset: 0 };
            let tells =
                retained.write_notify(Src::Slab(&source), dst, sent, OpId(2), Flags::SIGNAL);
            sent += u32::from(tells.is_ok());
            retained.submit();
            net.step();
            lost.poll(&mut Vec::new());
            of_lost.poll(&mut Vec::new());
            for end in [&mut retained, &mut of_kept] {
                out.clear();
                end.poll(&mut out);
                assert!(
                    !out.iter().any(|c| matches!(c, Completion::Error { .. })),
                    "seed {seed}: {out:?}"
                );
                let notices = out.iter().filter(|c| matches!(c, Completion::Notify { .. }));
                seen += notices.count();
            }
            if seen == 10 {
                of_lost.close();
            }
            if seen == 40 {
                break;
            }
        }
        assert_eq!(lost.budget().ops, 0, "seed {seed}: the peer of a closed link knows");
    }
}

#[test]
fn what_was_gathered_on_several_links_starts_with_one_of_them() {
    let net = SimNet::new(SimOptions::default());
    let fabrics = [0, 1]
        .map(|node| -> Arc<dyn Fabric> { SharedFabric::new(net.fabric(node), by_threes(), None) });
    let mut links = [(0, 3), (0, 4), (0, 5)].map(|(local, remote)| {
        let here = fabrics[0].offer(LinkId { local, remote }).expect("an offer");
        let there = fabrics[1].offer(LinkId { local: remote, remote: local }).expect("an offer");
        let (of_here, of_there) = (here.address(), there.address());
        [here.connect(&of_there).expect("connects"), there.connect(&of_here).expect("connects")]
    });
    let received = |links: &mut [[Box<dyn Endpoint>; 2]; 3]| {
        net.settle();
        let mut seen = vec![];
        for [_, there] in links.iter_mut() {
            there.poll(&mut seen);
        }
        seen.into_iter().filter(|one| matches!(one, Completion::Recv { .. })).count()
    };
    for [here, there] in &mut links {
        there.post_recvs(2);
        there.submit();
        net.settle();
        here.poll(&mut vec![]);
    }
    for round in 0..2 {
        for [here, _] in &mut links {
            here.poll(&mut vec![]);
            here.send(b"hello", OpId(round)).expect("the peer has a receive");
            here.gather();
        }
        assert_eq!(received(&mut links), 0, "gathered, and not started");
        links[round as usize][0].submit();
        assert_eq!(received(&mut links), 3);
        links.iter_mut().for_each(|[here, _]| here.submit());
        assert_eq!(received(&mut links), 0, "nothing was left");
    }
}
