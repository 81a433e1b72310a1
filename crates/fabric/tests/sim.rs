//! The simulated network passes the conformance suite in every publish mode, whatever the seed.

use std::os::fd::RawFd;
use std::sync::Arc;

use fabric::conformance::{self, Bed};
use fabric::sim::{SimNet, SimOptions};
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
