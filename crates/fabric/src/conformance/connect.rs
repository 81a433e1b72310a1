//! Memory and connections: how they come to be.

use super::rig::MEMORY;
use super::{Case, Rig, pattern};
use std::sync::atomic::Ordering;

use crate::{CACHE_LINE, Completion, Fabric, FabricError, Flags, LinkId, RemoteRange, Src};

pub(super) const CASES: &[Case] = &[
    Case { name: "a slab is zeroed, large enough and aligned", clause: "slab", check: slab },
    Case { name: "parts of a large slab are written each by itself", clause: "slab", check: large },
    Case { name: "an address is short", clause: "offer", check: short },
    Case { name: "a garbled address is malformed", clause: "connect", check: garbled },
    Case { name: "a truncated address is malformed", clause: "connect", check: truncated },
    Case { name: "many connections do not mix", clause: "offer", check: many },
];

fn slab(rig: &mut Rig<'_>) {
    for bytes in [1, 8, 100, 4096, 70_000] {
        let slab = rig.a.fabric.slab(bytes).expect("a small slab");
        assert!(slab.len() >= bytes);
        assert!((slab.backing().base().as_ptr() as usize).is_multiple_of(CACHE_LINE));
        let sum: u64 = (0..slab.len() / 8)
            .map(|i| slab.load(8 * i, std::sync::atomic::Ordering::Relaxed))
            .sum();
        assert_eq!(sum, 0, "{bytes} bytes are zero");
    }
    assert!(rig.a.memory.len() >= MEMORY && !rig.a.memory.same(&rig.b.memory));
}

/// Large enough for huge pages, and no multiple of one.
const LARGE: usize = (5 << 20) + 64;

fn large(rig: &mut Rig<'_>) {
    const PARTS: usize = 3;
    let slab = rig.b.fabric.slab(LARGE).expect("a large slab");
    let part = (LARGE / PARTS).next_multiple_of(64) - 64;
    let bytes = 1_000;
    let end_of = |at: usize| (at + 1) * part - bytes;
    let ranges = (0..PARTS).map(|at| slab.range(at * part..(at + 1) * part).expect("a part"));
    let keys: Vec<_> = ranges.map(|range| rig.b.end.export(&range).expect("a key")).collect();
    for (at, &key) in keys.iter().enumerate() {
        rig.b.allow(1);
        // Each from elsewhere: the write before may not have completed (G5).
        let from = 1_024 * at;
        rig.a.fill(from, bytes, at as u64);
        let (src, id) = (rig.a.memory.range(from..from + bytes).expect("filled"), rig.a.id());
        let dst = RemoteRange { key, offset: (part - bytes) as u64 };
        let (src, imm) = (Src::Slab(&src), at as u32);
        rig.a.end.write_notify(src, dst, imm, id, Flags::SIGNAL).expect("posts");
        rig.a.end.submit();
        rig.notice(imm);
    }
    for at in 0..PARTS {
        let mut found = vec![0; bytes];
        slab.range(end_of(at)..end_of(at) + bytes).expect("inside").snapshot(&mut found);
        assert_eq!(found, pattern(at as u64, bytes), "part {at}");
    }
    let words = slab.words().iter().filter(|word| word.load(Ordering::Relaxed) != 0).count();
    assert!(words <= PARTS * bytes.div_ceil(8) + PARTS, "the rest is zero");
}

const LINK: LinkId = LinkId { local: 1_000, remote: 1_001 };

fn short(rig: &mut Rig<'_>) {
    let offer = rig.a.fabric.offer(LINK).expect("an offer");
    let address = offer.address();
    assert!(!address.is_empty() && address.len() <= 1024);
    assert_eq!(address, offer.address(), "an address does not change");
}

fn garbled(rig: &mut Rig<'_>) {
    for address in [&b""[..], b"x", b"not an address of any fabric at all", &[0xff; 1024]] {
        let offer = rig.a.fabric.offer(LINK).expect("an offer");
        let connected = offer.connect(address).map(|_| ());
        assert!(matches!(connected, Err(FabricError::Malformed { .. })), "{connected:?}");
    }
}

fn truncated(rig: &mut Rig<'_>) {
    let back = LinkId { local: LINK.remote, remote: LINK.local };
    let theirs = rig.b.fabric.offer(back).expect("an offer").address();
    let ours = rig.a.fabric.offer(LINK).expect("an offer");
    let connected = ours.connect(&theirs[..theirs.len() - 1]).map(|_| ());
    assert!(matches!(connected, Err(FabricError::Malformed { .. })), "{connected:?}");
}

/// Has either side of a pair connect with one that stays silent: each gets an error when the
/// fabric's time to connect is over, which the caller makes short.
pub fn waits_in_vain(fabric: &dyn Fabric) {
    for link in [LinkId { local: 0, remote: 1 }, LinkId { local: 1, remote: 0 }] {
        let silent = fabric.offer(LinkId { local: link.remote, remote: link.local });
        let silent = silent.expect("an offer");
        let offer = fabric.offer(link).expect("an offer");
        let Err(FabricError::Connect { source, .. }) = offer.connect(&silent.address()) else {
            panic!("nobody answers");
        };
        assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
    }
}

fn many(rig: &mut Rig<'_>) {
    let links: Vec<usize> = (0..8).map(|_| rig.another()).collect();
    for &i in &links {
        rig.others[i].1.allow(4);
        rig.others[i].0.fill(0, 512, i as u64);
    }
    for round in 0..4 {
        for &i in &links {
            rig.post(|rig| rig.others[i].0.write_notify(0, 0, 512, 100 * i as u32 + round));
        }
    }
    rig.until("all notices", |rig| rig.others.iter().all(|(_, b)| b.seen.len() >= 4));
    rig.quiet();
    for (i, (_, b)) in rig.others.iter_mut().enumerate() {
        assert_eq!(b.get(0, 512), pattern(i as u64, 512));
        for round in 0..4 {
            let imm = 100 * i as u32 + round;
            assert!(b.take(&Completion::Notify { imm }), "notice {imm} came elsewhere");
        }
        assert_eq!(b.seen, []);
    }
}
