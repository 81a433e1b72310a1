//! The simulated network passes the conformance suite in every publish mode, whatever the seed.

use std::os::fd::RawFd;
use std::sync::Arc;

use fabric::conformance::{self, Bed};
use fabric::multicast::Group;
use fabric::sim::{Datagrams, SimNet, SimOptions};
use fabric::{Atomics, Endpoint, Fabric, Offer, Publish};

struct SimBed(SimNet);

impl Bed for SimBed {
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2] {
        [self.0.fabric(0), self.0.fabric(1)]
    }

    fn step(&mut self) {
        for _ in 0..3 {
            self.0.step();
        }
    }

    fn readable(&mut self, _: RawFd) -> bool {
        unreachable!("the simulator has no descriptors")
    }

    fn connect(&mut self, [a, b]: [Box<dyn Offer>; 2]) -> [Box<dyn Endpoint>; 2] {
        let (of_a, of_b) = (a.address(), b.address());
        [a.connect(&of_b).expect("connects"), b.connect(&of_a).expect("connects")]
    }
}

fn passes(options: &SimOptions) {
    for seed in 0..8 {
        let net = SimNet::new(SimOptions { seed, ..options.clone() });
        let report = conformance::run(&mut SimBed(net.clone()));
        assert_eq!(report.passed.len(), conformance::cases().len());
        assert!(net.stats().completions > 0);
    }
}

#[test]
fn notices() {
    passes(&SimOptions::default());
}

#[test]
fn notices_with_unordered_completions() {
    passes(&SimOptions { ordered_completions: false, ..SimOptions::default() });
}

#[test]
fn polling_in_order() {
    passes(&SimOptions { publish: Publish::InOrderPoll, ..SimOptions::default() });
}

#[test]
fn counted_notices() {
    let options = SimOptions { publish: Publish::NotifyCounted, ..SimOptions::default() };
    passes(&SimOptions { ordered_completions: false, ..options });
}

#[test]
fn without_atomics_and_with_small_limits() {
    passes(&SimOptions {
        atomics: Atomics::None,
        max_inline: 0,
        max_msg: 8192,
        max_send: 64,
        max_ops: 8,
        ..SimOptions::default()
    });
}

fn passes_as_groups(datagrams: &Datagrams) {
    for seed in 0..8 {
        let datagrams = datagrams.clone();
        let net = SimNet::new(SimOptions { seed, datagrams, ..SimOptions::default() });
        assert_eq!(conformance::multicast(&mut SimBed(net.clone())).len(), 6);
        assert!(net.stats().datagrams > 0);
    }
}

#[test]
fn datagrams_to_groups() {
    passes_as_groups(&Datagrams::default());
    passes_as_groups(&Datagrams { lost: 700, repeated: 700, waiting_max: 2, ..Default::default() });
    passes_as_groups(&Datagrams { lost: 0, repeated: 0, delay_ns: 5..6, ..Default::default() });
}

#[test]
fn a_network_without_groups_says_so() {
    let datagrams = Datagrams { bytes_max: 0, ..Datagrams::default() };
    let net = SimNet::new(SimOptions { datagrams, ..SimOptions::default() });
    assert!(net.fabric(0).multicast().is_none());
    assert!(conformance::multicast(&mut SimBed(net)).is_empty());
}

/// Sends a hundred datagrams to two members, and returns what they got, in the order of arrival.
fn hundred(datagrams: Datagrams, net: impl Fn(&SimNet)) -> [Vec<u8>; 2] {
    let sim = SimNet::new(SimOptions { seed: 3, datagrams, ..SimOptions::default() });
    let join = |node| {
        let fabric = sim.fabric(node);
        let group = Group::new(*b"a group of a job");
        fabric.multicast().expect("there are groups").join(group).expect("joins")
    };
    let (mut sender, mut members) = (join(0), [join(1), join(2)]);
    net(&sim);
    (0..100).for_each(|i| sender.send(&[i]).expect("goes out"));
    sim.settle();
    members.each_mut().map(|member| {
        let mut got = Vec::new();
        member.poll(&mut |bytes| got.extend_from_slice(bytes));
        got
    })
}

#[test]
fn datagrams_are_lost_repeated_and_overtaken_as_the_options_say() {
    let room = Datagrams { waiting_max: 1000, ..Datagrams::default() };
    let all: Vec<u8> = (0..100).collect();
    let calm = Datagrams { lost: 0, repeated: 0, delay_ns: 5..6, ..room.clone() };
    assert_eq!(hundred(calm.clone(), |_| {}), [all.clone(), all.clone()]);

    let [a, b] = hundred(Datagrams { lost: 300, ..calm.clone() }, |_| {});
    assert!(a != b && (40..95).contains(&a.len()) && a.is_sorted(), "{a:?}");
    let [a, _] = hundred(Datagrams { repeated: 300, ..calm.clone() }, |_| {});
    assert!((110..170).contains(&a.len()), "{a:?}");
    let [mut a, _] = hundred(Datagrams { delay_ns: 5..50_000, ..calm.clone() }, |_| {});
    assert!(!a.is_sorted(), "nothing is overtaken");
    a.sort_unstable();
    assert_eq!(a, all);

    let [a, _] = hundred(Datagrams { waiting_max: 7, ..calm.clone() }, |_| {});
    assert_eq!(a, all[..7], "what finds no room is lost");
    let [a, b] = hundred(calm.clone(), |net| net.cut(0, 1));
    assert_eq!((a, b), (vec![], all.clone()), "a cut is a cut for datagrams too");
    let [a, b] = hundred(calm, |net| net.kill(1));
    assert_eq!((a, b), (vec![], all), "the dead get nothing");
}
