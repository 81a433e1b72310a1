//! Two connected ends.

use channel::RingConfig;
use fabric::{Endpoint, Fabric, LinkId};

/// A small ring: laps are short and each slot is used often.
pub fn small(payload_crc: bool) -> RingConfig {
    RingConfig {
        slots: 4,
        slot_bytes: 1024,
        control_slots: 1,
        payload_crc,
        ..RingConfig::default()
    }
}

/// Connects two fabrics, each end on this thread or on one of its own.
pub fn endpoints(
    a: &dyn Fabric,
    b: &dyn Fabric,
    blocking: bool,
) -> (Box<dyn Endpoint>, Box<dyn Endpoint>) {
    let here = a.offer(LinkId { local: 0, remote: 1 }).expect("an offer");
    let there = b.offer(LinkId { local: 1, remote: 0 }).expect("an offer");
    let (of_here, of_there) = (here.address(), there.address());
    if !blocking {
        return (here.connect(&of_there).expect("a"), there.connect(&of_here).expect("b"));
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| there.connect(&of_here).expect("b"));
        let a = here.connect(&of_there).expect("a");
        (a, other.join().expect("the other end"))
    })
}
