//! The suite that every transport passes unchanged: one case per promise of the contract.
//!
//! A transport brings a [`Bed`]: the fabrics of two nodes and a way to let time pass. [`run`] takes
//! each case of [`cases`] through a connection of its own; both ends are driven by the calling
//! thread, which polls them in turn. A case about something that the endpoint's
//! [`Caps`](crate::Caps) rule out asserts that it is refused.
//!
//! ```no_run
//! # fn bed() -> Box<dyn fabric::conformance::Bed> { unimplemented!() }
//! let report = fabric::conformance::run(&mut *bed());
//! assert_eq!(report.passed.len(), fabric::conformance::cases().len());
//! ```
//!
//! Out of scope: the suite cannot show the absence of an ordering, only that what is
//! promised holds. The simulator with its knobs does the former.
#![forbid(unsafe_code)]

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Endpoint, Fabric, Offer};

mod atomic;
mod close;
mod connect;
mod key;
mod load;
mod multicast;
mod notify;
mod publish;
mod queue;
mod read;
mod rig;
mod seal;
mod send;
mod wake;
mod write;

pub use connect::waits_in_vain;
pub use multicast::multicast;
pub use rig::{ConnectionEnd, Rig, pattern};

/// Two nodes of one transport in one process.
pub trait Bed {
    /// The fabrics of the two nodes; the same two at every call.
    fn fabrics(&mut self) -> [Arc<dyn Fabric>; 2];

    /// Lets the network act between two polls. A transport that acts in `poll` only gives the
    /// processor away.
    fn step(&mut self) {
        std::thread::yield_now();
    }

    /// Waits until the descriptor is readable; false after some seconds. Asked for
    /// [`Armed::Fd`](crate::Armed::Fd) only.
    fn readable(&mut self, fd: RawFd) -> bool {
        let (start, timeout) = (Instant::now(), Duration::from_secs(5));
        crate::wait(&[fd], timeout);
        start.elapsed() < timeout
    }

    /// Connects two offers with each other. `connect` may block until the peer connects, hence two
    /// threads.
    fn connect(&mut self, offers: [Box<dyn Offer>; 2]) -> [Box<dyn Endpoint>; 2] {
        let [a, b] = offers;
        let (of_a, of_b) = (a.address(), b.address());
        std::thread::scope(|scope| {
            let a = scope.spawn(move || a.connect(&of_b));
            let b = b.connect(&of_a);
            let a = a.join().expect("connect does not panic");
            match (a, b) {
                (Ok(a), Ok(b)) => [a, b],
                // The one side's reason may be the other's.
                (a, b) => panic!("they do not connect: {:?}", [a.err(), b.err()]),
            }
        })
    }
}

/// One promise and how it is checked.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// In words, unique.
    pub name: &'static str,
    /// The clause of the contract: `G4`, or the method's name.
    pub clause: &'static str,
    /// Panics when the promise is broken.
    pub check: fn(&mut Rig<'_>),
}

/// The result of [`run`].
#[derive(Debug, Clone, Default)]
pub struct ConformanceReport {
    /// Names of the cases that passed: all of them, or `run` had panicked.
    pub passed: Vec<&'static str>,
}

/// All cases, in the order in which they run.
pub fn cases() -> Vec<Case> {
    let of_all = [
        connect::CASES,
        write::CASES,
        notify::CASES,
        send::CASES,
        read::CASES,
        atomic::CASES,
        key::CASES,
        publish::CASES,
        seal::CASES,
        queue::CASES,
        close::CASES,
        wake::CASES,
        load::CASES,
    ];
    of_all.concat()
}

/// Takes every case through a fresh connection.
///
/// # Panics
/// At the first case that fails, with its name.
pub fn run(bed: &mut dyn Bed) -> ConformanceReport {
    let mut report = ConformanceReport::default();
    for case in cases() {
        let outcome = catch_unwind(AssertUnwindSafe(|| (case.check)(&mut Rig::new(bed))));
        if let Err(cause) = outcome {
            let cause = cause
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| cause.downcast_ref::<&str>().copied())
                .unwrap_or("?");
            panic!("conformance: `{}` ({}) failed: {cause}", case.name, case.clause);
        }
        report.passed.push(case.name);
    }
    report
}
