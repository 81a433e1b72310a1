//! Reads: the bytes that they fetch, and the order that a fence makes.

use super::rig::MEMORY;
use super::{Case, Rig, pattern};
use crate::{Completion, Flags};

pub(super) const CASES: &[Case] = &[
    Case { name: "a read fetches", clause: "read", check: fetches },
    Case { name: "an unaligned read fetches", clause: "read", check: unaligned },
    Case { name: "a read changes nothing beside its range", clause: "read", check: stays_inside },
    Case { name: "the largest read fetches", clause: "max_msg", check: largest },
    Case { name: "an empty read completes", clause: "read", check: empty },
    Case { name: "many reads each get their own bytes", clause: "read", check: many },
    Case { name: "reads go in both directions", clause: "read", check: both_ways },
    Case { name: "a fenced read sees the writes before it", clause: "G7", check: fenced_read },
    Case { name: "a fenced write waits for the reads", clause: "FENCE", check: fenced_write },
    Case { name: "a read beyond the range is refused", clause: "read", check: out_of_bounds },
];

fn fetches(rig: &mut Rig<'_>) {
    rig.b.fill(1024, 2048, 1);
    let id = rig.a.read(1024, 0, 2048, Flags::NONE).expect("posts");
    rig.local(id);
    assert_eq!(rig.a.get(0, 2048), pattern(1, 2048));
    assert_eq!(rig.b.seen, [], "the peer is not told");
}

fn unaligned(rig: &mut Rig<'_>) {
    for (from, to, len) in [(3, 5, 1), (1, 7, 9), (6, 65, 131), (0, 1001, 777), (4, 4, 3)] {
        rig.b.fill(from, len, 2);
        let id = rig.a.read(from, to, len, Flags::NONE).expect("posts");
        rig.local(id);
        assert_eq!(rig.a.get(to, len), pattern(2, len), "{len} bytes from {from}");
    }
}

fn stays_inside(rig: &mut Rig<'_>) {
    rig.a.fill(0, 512, 3);
    rig.b.fill(0, 100, 4);
    let id = rig.a.read(0, 200, 100, Flags::NONE).expect("posts");
    rig.local(id);
    let mut expected = pattern(3, 512);
    expected[200..300].copy_from_slice(&pattern(4, 100));
    assert_eq!(rig.a.get(0, 512), expected);
    assert_eq!(rig.b.get(0, 100), pattern(4, 100));
}

fn largest(rig: &mut Rig<'_>) {
    let len = rig.caps().max_msg.min(MEMORY);
    rig.b.fill(0, len, 5);
    let id = rig.a.read(0, 0, len, Flags::NONE).expect("posts");
    rig.local(id);
    assert!(rig.a.get(0, len) == pattern(5, len), "{len} bytes differ");
}

fn empty(rig: &mut Rig<'_>) {
    rig.a.fill(0, 64, 6);
    let id = rig.a.read(0, 0, 0, Flags::NONE).expect("posts");
    rig.local(id);
    assert_eq!(rig.a.get(0, 64), pattern(6, 64));
}

fn many(rig: &mut Rig<'_>) {
    rig.b.fill(0, 64 * 256, 7);
    let read = |rig: &mut Rig<'_>, i: usize| {
        rig.post(|rig| rig.a.read((63 - i) * 256, i * 256, 256, Flags::NONE))
    };
    let ids: Vec<_> = (0..64).map(|i| read(rig, i)).collect();
    rig.until("all complete", |rig| ids.iter().all(|id| rig.a.settled(*id)));
    let expected = pattern(7, 64 * 256);
    for i in 0..64 {
        assert_eq!(rig.a.get(i * 256, 256), expected[(63 - i) * 256..][..256], "read {i}");
    }
    ids.iter().for_each(|id| assert_eq!(rig.a.outcomes(*id), (1, 0)));
}

fn both_ways(rig: &mut Rig<'_>) {
    rig.a.fill(0, 512, 8);
    rig.b.fill(0, 512, 9);
    let here = rig.a.read(0, 1024, 512, Flags::NONE).expect("posts");
    let there = rig.b.read(0, 1024, 512, Flags::NONE).expect("posts");
    rig.local(here);
    rig.until("Local", |rig| rig.b.take(&Completion::Local { id: there }));
    assert_eq!(rig.a.get(1024, 512), pattern(9, 512));
    assert_eq!(rig.b.get(1024, 512), pattern(8, 512));
}

fn fenced_read(rig: &mut Rig<'_>) {
    for round in 0..50 {
        rig.a.fill(0, 1024, round);
        let write = rig.post(|rig| rig.a.write(0, 4096, 1024));
        let read = rig.post(|rig| rig.a.read(4096, 8192, 1024, Flags::FENCE));
        rig.local(read);
        assert_eq!(rig.a.get(8192, 1024), pattern(round, 1024), "round {round}");
        rig.local(write);
    }
}

fn fenced_write(rig: &mut Rig<'_>) {
    for round in 0..50 {
        rig.b.fill(0, 2048, round);
        rig.a.fill(0, 2048, round + 1_000);
        let read = rig.post(|rig| rig.a.read(0, 4096, 2048, Flags::NONE));
        let write = rig.post(|rig| {
            let (id, src, dst) = (rig.a.id(), rig.a.range(0, 2048), rig.a.at(0));
            let flags = Flags::FENCE | Flags::SIGNAL;
            rig.a.end.write_notify(crate::Src::Slab(&src), dst, 1, id, flags)?;
            rig.a.end.submit();
            Ok(id)
        });
        rig.notice(1);
        rig.local(read);
        assert_eq!(rig.a.get(4096, 2048), pattern(round, 2048), "round {round}");
        assert_eq!(rig.b.get(0, 2048), pattern(round + 1_000, 2048));
        rig.local(write);
        rig.b.allow(1);
    }
}

fn out_of_bounds(rig: &mut Rig<'_>) {
    let len = 64;
    rig.a.fill(0, len, 10);
    let posted = rig.a.read(MEMORY - len + 1, 0, len, Flags::NONE);
    rig.refused(posted);
    assert_eq!(rig.a.get(0, len), pattern(10, len));
}
