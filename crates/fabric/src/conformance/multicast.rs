//! Datagrams to groups, where the fabric has them. A datagram that may get lost is sent again until
//! it has come, so that the cases hold on a network that loses most of it.

use std::sync::Arc;
use std::time::Instant;

use super::Bed;
use super::rig::{TIMEOUT, pattern};
use crate::multicast::{Group, GroupMember};
use crate::{Fabric, PostError};

/// Takes the multicast of two nodes through all cases; returns their names. Empty for a fabric that
/// has none.
///
/// # Panics
/// At the first promise that is not kept.
pub fn multicast(bed: &mut dyn Bed) -> Vec<&'static str> {
    let fabrics = bed.fabrics();
    if fabrics.iter().any(|fabric| fabric.multicast().is_none()) {
        return Vec::new();
    }
    let cases: [(&'static str, Check); 6] = [
        ("every other member is reached, and the sender is not", reaches),
        ("what arrives is whole, at every length", whole),
        ("too much is refused", bounded),
        ("groups do not hear each other", apart),
        ("who does not poll loses datagrams and nothing else", silent),
        ("who leaves is not missed", leaves),
    ];
    for (at, (_, check)) in cases.iter().enumerate() {
        let name = std::array::from_fn(|i| (at * 16 + i) as u8 ^ 0x5a);
        check(&mut Hall { bed: &mut *bed, fabrics: fabrics.clone(), group: Group::new(name) });
    }
    cases.iter().map(|(name, _)| *name).collect()
}

type Check = fn(&mut Hall<'_>);

/// Where the members of a case meet.
struct Hall<'b> {
    bed: &'b mut dyn Bed,
    fabrics: [Arc<dyn Fabric>; 2],
    group: Group,
}

/// A member and what it has got.
struct Seat {
    member: Box<dyn GroupMember>,
    got: Vec<Vec<u8>>,
}

impl Seat {
    fn poll(&mut self) {
        let Self { member, got } = self;
        let before = got.len();
        let n = member.poll(&mut |bytes| got.push(bytes.to_vec()));
        assert_eq!(n, got.len() - before, "poll counts what it gives out");
    }

    fn has(&self, bytes: &[u8]) -> bool {
        self.got.iter().any(|got| got == bytes)
    }
}

impl Hall<'_> {
    fn join(&self, node: usize, group: Group) -> Seat {
        let multicast = self.fabrics[node].multicast().expect("asked before");
        Seat { member: multicast.join(group).expect("a member more"), got: Vec::new() }
    }

    fn longest(&self) -> usize {
        let max = |fabric: &Arc<dyn Fabric>| fabric.multicast().map_or(0, |m| m.datagram_max());
        self.fabrics.iter().map(max).min().unwrap_or(0)
    }

    /// Sends until each of the others has it.
    fn deliver(&mut self, bytes: &[u8], from: &mut Seat, to: &mut [&mut Seat]) {
        let start = Instant::now();
        while !to.iter().all(|seat| seat.has(bytes)) {
            match from.member.send(bytes) {
                Ok(()) | Err(PostError::Full) => {}
                Err(error) => panic!("nothing that others do makes it fail: {error}"),
            }
            // Some turns for the network before the next attempt.
            for _ in 0..50 {
                self.bed.step();
                from.poll();
                to.iter_mut().for_each(|seat| seat.poll());
            }
            assert!(start.elapsed() < TIMEOUT, "{} bytes do not arrive", bytes.len());
        }
    }
}

fn reaches(hall: &mut Hall<'_>) {
    let [mut a, mut b, mut c] = [0, 0, 1].map(|node| hall.join(node, hall.group));
    hall.deliver(b"from the first", &mut a, &mut [&mut b, &mut c]);
    hall.deliver(b"from its neighbour", &mut b, &mut [&mut a, &mut c]);
    hall.deliver(b"from the other node", &mut c, &mut [&mut a, &mut b]);
    assert!(!a.has(b"from the first"), "a member has got its own");
    assert!(!b.has(b"from its neighbour"), "a member has got its own");
    assert!(!c.has(b"from the other node"), "a member has got its own");
}

fn whole(hall: &mut Hall<'_>) {
    let [mut a, mut b] = [0, 1].map(|node| hall.join(node, hall.group));
    let max = hall.longest();
    assert!(max >= 128, "no payload worth a datagram fits {max} bytes");
    let lengths = [1, 8, 63, 100, max - 1, max];
    let sent: Vec<_> = (1..).zip(lengths).map(|(seed, len)| pattern(seed, len)).collect();
    for bytes in &sent {
        hall.deliver(bytes, &mut a, &mut [&mut b]);
    }
    assert!(b.got.iter().all(|got| sent.contains(got)), "something else has come");
}

fn bounded(hall: &mut Hall<'_>) {
    let max = hall.fabrics[0].multicast().map_or(0, |m| m.datagram_max());
    let mut a = hall.join(0, hall.group);
    assert_eq!(a.member.send(&vec![1; max + 1]), Err(PostError::TooLarge));
    assert_eq!(a.member.send(&vec![1; max]), Ok(()));
}

fn apart(hall: &mut Hall<'_>) {
    let mut other = *hall.group.name();
    other[15] ^= 1;
    let [mut a, mut b] = [0, 1].map(|node| hall.join(node, hall.group));
    let [mut c, mut d] = [0, 1].map(|node| hall.join(node, Group::new(other)));
    hall.deliver(b"of one", &mut a, &mut [&mut b]);
    hall.deliver(b"of the other", &mut c, &mut [&mut d]);
    hall.deliver(b"of one again", &mut b, &mut [&mut a]);
    [&mut a, &mut b, &mut c, &mut d].into_iter().for_each(Seat::poll);
    assert!([&a, &b].iter().all(|seat| !seat.has(b"of the other")), "a group hears another");
    assert!([&c, &d].iter().all(|seat| !seat.has(b"of one")), "a group hears another");
}

fn silent(hall: &mut Hall<'_>) {
    let [mut a, mut b, mut c] = [0, 1, 1].map(|node| hall.join(node, hall.group));
    let flood = pattern(7, 100);
    let (mut sent, start) = (0, Instant::now());
    while sent < 2000 {
        match a.member.send(&flood) {
            Ok(()) => sent += 1,
            Err(PostError::Full) => a.poll(),
            Err(error) => panic!("nothing that others do makes it fail: {error}"),
        }
        hall.bed.step();
        b.poll();
        assert!(start.elapsed() < TIMEOUT, "others make it wait: {sent} are sent");
    }
    hall.deliver(b"after the flood", &mut a, &mut [&mut b, &mut c]);
    let ours = |got: &Vec<u8>| *got == flood || got == b"after the flood";
    assert!(b.got.iter().chain(&c.got).all(ours), "something else has come");
}

fn leaves(hall: &mut Hall<'_>) {
    let [mut a, mut b, mut c] = [0, 0, 1].map(|node| hall.join(node, hall.group));
    hall.deliver(b"to both", &mut a, &mut [&mut b, &mut c]);
    drop(b);
    hall.deliver(b"to who stays", &mut a, &mut [&mut c]);
    let mut late = hall.join(0, hall.group);
    hall.deliver(b"to who came", &mut c, &mut [&mut a, &mut late]);
    assert!(!late.has(b"to both"), "what was sent before has come");
}
