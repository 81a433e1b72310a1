//! Each knob breaks a small protocol that needs it, and none without; faults, time and determinism.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::endpoint::lock;
use super::{Guarantees, POISON, SimFabric, SimNet, SimOptions};
use crate::{
    Completion, Endpoint, ErrorKind, Fabric, Flags, LinkId, OpId, PostError, Publish, RemoteKey,
    RemoteRange, Slab, Src,
};

mod faults;
mod knobs;

const MEMORY: usize = 1 << 16;

/// One end with memory, all of it exported.
struct Peer {
    fabric: Arc<SimFabric>,
    end: Box<dyn Endpoint>,
    memory: Slab,
    /// The other side's memory.
    key: RemoteKey,
    seen: Vec<Completion>,
    ids: u64,
}

/// Two nodes, 0 and 1, and a connection with receives.
fn pair(net: &SimNet) -> (Peer, Peer) {
    let (mut a, mut b) = link(net, 0, 1);
    a.end.post_recvs(1_000);
    b.end.post_recvs(1_000);
    net.settle();
    (a, b)
}

fn link(net: &SimNet, left: u32, right: u32) -> (Peer, Peer) {
    let (a, b) = (net.fabric(left), net.fabric(right));
    let of_a = a.offer(LinkId { local: left, remote: right }).expect("offers");
    let of_b = b.offer(LinkId { local: right, remote: left }).expect("offers");
    let (to_a, to_b) = (of_a.address(), of_b.address());
    let (end_a, end_b) = (of_a.connect(&to_b), of_b.connect(&to_a));
    let mut a = Peer::new(a, end_a.expect("connects"));
    let mut b = Peer::new(b, end_b.expect("connects"));
    let whole = |peer: &Peer| peer.memory.range(0..MEMORY).expect("in bounds");
    let (range_a, range_b) = (whole(&a), whole(&b));
    b.key = a.end.export(&range_a).expect("own memory");
    a.key = b.end.export(&range_b).expect("own memory");
    (a, b)
}

impl Peer {
    fn new(fabric: Arc<SimFabric>, end: Box<dyn Endpoint>) -> Self {
        let memory = fabric.slab(MEMORY).expect("a small slab");
        let key = RemoteKey { key: 0, base: 0, len: 0 };
        Self { fabric, end, memory, key, seen: Vec::new(), ids: 0 }
    }

    fn fill(&self, at: usize, len: usize, word: u64) {
        (at..at + len).step_by(8).for_each(|i| self.memory.store(i, word, Ordering::Relaxed));
    }

    /// Whether all words of a range have this value.
    fn holds(&self, at: usize, len: usize, word: u64) -> bool {
        (at..at + len).step_by(8).all(|i| self.memory.load(i, Ordering::Acquire) == word)
    }

    fn id(&mut self) -> OpId {
        self.ids += 1;
        OpId(self.ids)
    }

    fn dst(&self, at: usize) -> RemoteRange {
        RemoteRange { key: self.key, offset: at as u64 }
    }

    /// A signalled write between equal places, started.
    fn write(&mut self, at: usize, len: usize) -> Result<OpId, PostError> {
        let (id, dst) = (self.id(), self.dst(at));
        let src = self.memory.range(at..at + len).expect("in bounds");
        self.end.write(Src::Slab(&src), dst, id, Flags::SIGNAL)?;
        self.end.submit();
        Ok(id)
    }

    fn notify(&mut self, imm: u32) -> Result<OpId, PostError> {
        let (id, dst) = (self.id(), self.dst(0));
        self.end.write_notify(Src::Empty, dst, imm, id, Flags::SIGNAL)?;
        self.end.submit();
        Ok(id)
    }

    fn polled(&mut self) -> &mut Vec<Completion> {
        self.end.poll(&mut self.seen);
        &mut self.seen
    }

    fn sees(&mut self, wanted: &Completion) -> bool {
        self.polled().contains(wanted)
    }

    fn failed(&mut self) -> bool {
        self.polled().iter().any(|c| matches!(c, Completion::Error { .. }))
    }
}

/// Steps until the condition holds; false when the network falls silent first.
fn until(net: &SimNet, mut done: impl FnMut() -> bool) -> bool {
    loop {
        if done() {
            return true;
        }
        if !net.step() {
            return done();
        }
    }
}

/// Traffic of four nodes, all with all, until nothing moves; returns the trace.
fn traffic(seed: u64) -> (u64, super::SimStats) {
    let net = SimNet::new(SimOptions::seeded(seed));
    let mut peers = Vec::new();
    for left in 0..4 {
        for right in left + 1..4 {
            let (mut a, mut b) = link(&net, left, right);
            a.end.post_recvs(100);
            b.end.post_recvs(100);
            peers.extend([a, b]);
        }
    }
    for round in 0..20 {
        for peer in &mut peers {
            peer.polled().clear();
            peer.fill(1024 * round, 1024, round as u64);
            peer.write(1024 * round, 1000).expect("fits");
            // Receives may not be known yet in the first rounds.
            let _ = peer.notify(round as u32);
        }
        let until = net.now_ns() + 2_000;
        net.advance_to(until);
    }
    net.settle();
    for peer in &mut peers {
        peer.polled();
    }
    (net.trace_hash(), net.stats())
}

#[test]
fn a_seed_is_a_trace() {
    let runs: Vec<_> = (0..6).map(traffic).collect();
    let again: Vec<_> = (0..6).map(traffic).collect();
    assert_eq!(runs, again);
    let mut traces: Vec<_> = runs.iter().map(|(trace, _)| *trace).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 6, "another seed is another trace");
}

#[test]
fn payload_is_part_of_the_trace() {
    let run = |word: u64| {
        let net = SimNet::new(SimOptions::seeded(1));
        let (mut a, _b) = pair(&net);
        a.fill(0, 64, word);
        a.write(0, 64).expect("posts");
        net.settle();
        net.trace_hash()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn counts_are_exact() {
    let net = SimNet::new(SimOptions::seeded(2));
    let (mut a, mut b) = pair(&net);
    for i in 0..10 {
        a.write(i * 512, 512).expect("posts");
        a.notify(i as u32).expect("posts");
    }
    a.end.send(b"hello", OpId(0)).expect("posts");
    a.end.submit();
    net.settle();
    assert_eq!((a.polled().len(), b.polled().len()), (21, 11));
    let stats = net.stats();
    assert_eq!((stats.ops, stats.notices, stats.messages), (21, 10, 1));
    assert_eq!((stats.bytes, stats.completions), (5120, 32));
    assert_eq!((stats.failures, stats.zombies), (0, 0));
    assert!(stats.pieces >= 80 && stats.pieces <= 640, "{} pieces", stats.pieces);
}

#[test]
fn records_are_used_again() {
    let net = SimNet::new(SimOptions { max_ops: 16, ..SimOptions::seeded(3) });
    let (mut a, mut b) = pair(&net);
    for round in 0..500 {
        a.write(0, 256).expect("posts");
        a.notify(round).expect("posts");
        net.settle();
        a.polled().clear();
        b.polled().clear();
        b.end.post_recvs(1);
    }
    let records = lock(&net.net).ops.len();
    assert!(records <= 4, "{records} records for two operations at a time");
}

#[test]
fn time_is_virtual() {
    let net = SimNet::new(SimOptions::seeded(4));
    let clock = net.clock();
    assert_eq!((net.next_event_ns(), net.now_ns(), clock.now_ns()), (None, 0, 0));
    assert!(!net.step());
    let (mut a, mut b) = pair(&net);
    net.advance_to(1_000_000);
    assert_eq!(clock.now_ns(), 1_000_000);
    a.notify(1).expect("posts");
    let due = net.next_event_ns().expect("the notice is under way");
    assert!(due >= 1_000_500);
    assert!(b.polled().is_empty());
    net.advance_to(due - 1);
    assert_eq!((net.now_ns(), net.next_event_ns()), (due - 1, Some(due)));
    net.advance_to(5);
    assert_eq!(net.now_ns(), due - 1, "time never moves back");
    net.settle();
    assert!(b.sees(&Completion::Notify { imm: 1 }));
}

#[test]
fn what_is_posted_early_waits_for_the_peer() {
    let net = SimNet::new(SimOptions::seeded(5));
    let (a, b) = (net.fabric(0), net.fabric(1));
    let of_a = a.offer(LinkId { local: 0, remote: 1 }).expect("offers");
    let of_b = b.offer(LinkId { local: 1, remote: 0 }).expect("offers");
    let (to_a, to_b) = (of_a.address(), of_b.address());
    let mut a = Peer::new(a, of_a.connect(&to_b).expect("connects"));
    let dst = RemoteRange { key: a.key, offset: 0 };
    a.end.write(Src::Empty, dst, OpId(1), Flags::SIGNAL).expect("posts");
    a.end.submit();
    net.settle();
    assert!(a.polled().is_empty());
    let _b = of_b.connect(&to_a).expect("connects");
    net.settle();
    assert!(a.sees(&Completion::Local { id: OpId(1) }));
}

#[test]
fn an_offer_is_for_one_link_and_one_net() {
    let (net, other) = (SimNet::new(SimOptions::seeded(6)), SimNet::new(SimOptions::seeded(7)));
    let ours = |n: u32| net.fabric(0).offer(LinkId { local: 0, remote: n }).expect("offers");
    let back = LinkId { local: 1, remote: 0 };
    let theirs = net.fabric(1).offer(back).expect("offers");
    let abroad = other.fabric(1).offer(back).expect("offers");
    assert!(ours(2).connect(&theirs.address()).is_err(), "of another link");
    assert!(ours(1).connect(&abroad.address()).is_err(), "of another net");
    let first = ours(1);
    let to_first = first.address();
    let _first = first.connect(&theirs.address()).expect("connects");
    let to_theirs = theirs.address();
    let _theirs = theirs.connect(&to_first).expect("connects");
    assert!(ours(1).connect(&to_theirs).is_err(), "taken");
}
