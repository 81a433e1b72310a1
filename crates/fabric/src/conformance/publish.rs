//! Published ranges: every peer reads them, nobody writes them, and for as long as the owner wants.

use super::rig::MEMORY;
use super::{Case, ConnectionEnd, Rig, pattern};
use crate::{
    Atomics, Completion, ErrorKind, FabricError, Flags, OpId, PostError, RemoteKey, RemoteRange,
    Slab, Src,
};

pub(super) const CASES: &[Case] = &[
    Case { name: "a published range is read by two peers", clause: "G11", check: two_peers },
    Case { name: "a later connection reads what was published", clause: "G11", check: later },
    Case { name: "two ranges of a slab are two keys", clause: "publish", check: two_ranges },
    Case { name: "the last byte of a published range is read", clause: "bounds", check: last_byte },
    Case { name: "a read beyond a published range is refused", clause: "bounds", check: beyond },
    Case { name: "a stretched published key is refused", clause: "keys", check: stretched },
    Case { name: "a shifted published key is refused", clause: "keys", check: shifted },
    Case { name: "a guessed published key is refused", clause: "keys", check: guessed },
    Case { name: "a write into a published range is refused", clause: "G11", check: no_write },
    Case { name: "an atomic on a published range is refused", clause: "G11", check: no_atomic },
    Case { name: "a published key without its mark is refused", clause: "G11", check: unmarked },
    Case { name: "an unpublished range is not read", clause: "unpublish", check: unpublished },
    Case { name: "unpublishing leaves other keys", clause: "unpublish", check: leaves_others },
    Case { name: "a closed end serves no read", clause: "G11", check: closed },
    Case { name: "reads end when their range goes", clause: "unpublish", check: under_way },
    Case { name: "thousands of ranges are published", clause: "publish", check: many },
    Case { name: "others publish while workers poll", clause: "publish", check: concurrently },
    Case { name: "a notice behind a first read waits for it", clause: "FENCE", check: in_order },
    Case { name: "a first read is flushed by a close", clause: "G8", check: flushed },
    Case { name: "a budget counts a first read", clause: "budget", check: budget },
    Case { name: "foreign memory is refused or published", clause: "publish", check: foreign },
];

/// Publishes a part of `b`'s memory, and hands the key over.
fn publish(rig: &Rig<'_>, offset: usize, len: usize) -> RemoteKey {
    let key = rig.b.fabric.publish(&rig.b.range(offset, len)).expect("publishes");
    assert!(key.is_published() && key.len == len as u64);
    RemoteKey::decode(&key.encode()).expect("an encoded key decodes")
}

/// Posts a read of `len` bytes of a key.
pub(super) fn read(
    side: &mut ConnectionEnd,
    key: RemoteKey,
    offset: usize,
    to: usize,
    len: usize,
) -> Result<OpId, PostError> {
    let (id, dst) = (side.id(), side.range(to, len));
    let src = RemoteRange { key, offset: offset as u64 };
    side.end.read(&dst, src, id, Flags::SIGNAL)?;
    side.end.submit();
    Ok(id)
}

/// Reads all of a key into the front of `a`'s memory.
fn fetched(rig: &mut Rig<'_>, key: RemoteKey) -> Vec<u8> {
    let len = key.len as usize;
    let id = rig.post(|rig| read(&mut rig.a, key, 0, 0, len));
    rig.local(id);
    rig.a.get(0, len)
}

fn refused(rig: &mut Rig<'_>, key: RemoteKey, offset: usize) {
    rig.a.fill(0, 64, 77);
    let posted = read(&mut rig.a, key, offset, 0, 64);
    rig.refused(posted);
    rig.quiet();
    assert_eq!(rig.a.get(0, 64), pattern(77, 64), "something was read all the same");
}

fn two_peers(rig: &mut Rig<'_>) {
    rig.b.fill(1024, 2048, 1);
    let other = rig.another();
    let key = publish(rig, 1024, 2048);
    let here = rig.a.read(0, 8192, 64, Flags::NONE).expect("posts");
    let first = rig.post(|rig| read(&mut rig.a, key, 0, 0, 2048));
    let second = rig.post(|rig| read(&mut rig.others[other].0, key, 0, 0, 2048));
    rig.local(here);
    rig.local(first);
    let done = Completion::Local { id: second };
    rig.until("Local", |rig| rig.others[other].0.take(&done));
    assert_eq!(rig.a.get(0, 2048), pattern(1, 2048));
    assert_eq!(rig.others[other].0.get(0, 2048), pattern(1, 2048));
    assert_eq!(rig.b.seen, [], "the owner is not told");
}

fn later(rig: &mut Rig<'_>) {
    rig.b.fill(0, 512, 2);
    let key = publish(rig, 0, 512);
    for _ in 0..3 {
        let other = rig.another();
        let id = rig.post(|rig| read(&mut rig.others[other].0, key, 64, 0, 448));
        let done = Completion::Local { id };
        rig.until("Local", |rig| rig.others[other].0.take(&done));
        assert_eq!(rig.others[other].0.get(0, 448), pattern(2, 512)[64..]);
    }
}

fn two_ranges(rig: &mut Rig<'_>) {
    rig.b.fill(0, 1024, 3);
    let keys = [publish(rig, 0, 512), publish(rig, 256, 512), publish(rig, 0, 512)];
    assert!(keys[0] != keys[1] && keys[0] != keys[2]);
    for (key, from) in keys.into_iter().zip([0, 256, 0]) {
        assert_eq!(fetched(rig, key), pattern(3, 1024)[from..from + 512]);
    }
    rig.b.fabric.unpublish(keys[0]);
    assert_eq!(fetched(rig, keys[2]), pattern(3, 1024)[..512], "the other key of the same range");
}

fn last_byte(rig: &mut Rig<'_>) {
    rig.b.fill(MEMORY - 100, 100, 4);
    let key = publish(rig, MEMORY - 100, 100);
    let id = read(&mut rig.a, key, 36, 0, 64).expect("posts");
    rig.local(id);
    assert_eq!(rig.a.get(0, 64), pattern(4, 100)[36..]);
}

fn beyond(rig: &mut Rig<'_>) {
    let key = publish(rig, 1024, 128);
    for offset in [65, 127, 128, MEMORY, usize::MAX, usize::MAX - 63] {
        assert_eq!(read(&mut rig.a, key, offset, 0, 64), Err(PostError::OutOfBounds), "{offset}");
    }
    assert_eq!(fetched(rig, key).len(), 128);
}

fn stretched(rig: &mut Rig<'_>) {
    let honest = publish(rig, 1024, 128);
    refused(rig, RemoteKey { len: 2048, ..honest }, 256);
}

fn shifted(rig: &mut Rig<'_>) {
    let honest = publish(rig, 1024, 128);
    refused(rig, RemoteKey { base: honest.base.wrapping_sub(512), ..honest }, 0);
}

fn guessed(rig: &mut Rig<'_>) {
    let honest = publish(rig, 1024, 128);
    refused(rig, RemoteKey { key: honest.key ^ 0x5a5a_5a5a, ..honest }, 0);
}

fn no_write(rig: &mut Rig<'_>) {
    rig.b.fill(0, 256, 5);
    let key = publish(rig, 0, 256);
    let (src, dst) = (rig.a.range(0, 64), RemoteRange { key, offset: 0 });
    let id = rig.a.id();
    let write = rig.a.end.write(Src::Slab(&src), dst, id, Flags::SIGNAL);
    assert_eq!(write, Err(PostError::OutOfBounds));
    let notify = rig.a.end.write_notify(Src::Slab(&src), dst, 1, id, Flags::SIGNAL);
    assert_eq!(notify, Err(PostError::OutOfBounds));
    assert_eq!(fetched(rig, key), pattern(5, 256));
}

fn no_atomic(rig: &mut Rig<'_>) {
    let wanted = match rig.caps().atomics {
        Atomics::None => PostError::Unsupported,
        _ => PostError::OutOfBounds,
    };
    let key = publish(rig, 0, 64);
    let (id, dst, old) = (rig.a.id(), RemoteRange { key, offset: 0 }, rig.a.range(0, 8));
    assert_eq!(rig.a.end.fetch_add(dst, 1, &old, id), Err(wanted));
    assert_eq!(rig.a.end.compare_swap(dst, 0, 1, &old, id), Err(wanted));
}

/// A peer that does not keep to the rule above, as far as it can.
fn unmarked(rig: &mut Rig<'_>) {
    rig.b.fill(0, 64, 6);
    let key = publish(rig, 0, 64);
    let key = RemoteKey { base: key.base & !RemoteKey::PUBLISHED, ..key };
    let (id, src) = (rig.a.id(), rig.a.range(128, 64));
    let dst = RemoteRange { key, offset: 0 };
    let posted = rig.a.end.write(Src::Slab(&src), dst, id, Flags::SIGNAL).map(|()| id);
    rig.a.end.submit();
    rig.refused(posted);
    rig.quiet();
    assert_eq!(rig.b.get(0, 64), pattern(6, 64));
}

fn unpublished(rig: &mut Rig<'_>) {
    rig.b.fill(0, 128, 7);
    let key = publish(rig, 0, 128);
    assert_eq!(fetched(rig, key), pattern(7, 128));
    rig.b.fabric.unpublish(key);
    rig.b.fabric.unpublish(key);
    refused(rig, key, 0);
}

fn leaves_others(rig: &mut Rig<'_>) {
    rig.b.fill(0, 256, 8);
    let keys: Vec<_> = (0..4).map(|i| publish(rig, 64 * i, 64)).collect();
    rig.b.fabric.unpublish(keys[1]);
    for i in [0, 2, 3] {
        assert_eq!(fetched(rig, keys[i]), pattern(8, 256)[64 * i..][..64]);
    }
    let again = publish(rig, 64, 64);
    assert_ne!(again, keys[1]);
    assert_eq!(fetched(rig, again), pattern(8, 256)[64..128]);
    refused(rig, keys[1], 0);
}

fn closed(rig: &mut Rig<'_>) {
    rig.b.fill(0, 128, 9);
    let key = publish(rig, 0, 128);
    assert_eq!(fetched(rig, key), pattern(9, 128));
    rig.b.end.close();
    rig.b.fill(0, 128, 10);
    rig.a.fill(0, 128, 11);
    let posted = read(&mut rig.a, key, 0, 0, 128);
    rig.until("the end is noticed", |rig| !rig.a.errors().is_empty());
    if let Ok(id) = posted {
        rig.until("the read ends", |rig| rig.a.settled(id));
        assert_eq!(rig.a.outcomes(id), (0, 1));
    }
    rig.quiet();
    assert_eq!(read(&mut rig.a, key, 0, 0, 128), Err(PostError::Closed));
}

fn under_way(rig: &mut Rig<'_>) {
    const LEN: usize = 2048;
    for round in 0..10 {
        let other = rig.another();
        rig.b.fill(0, LEN, 12);
        let key = publish(rig, 0, LEN);
        let ids: Vec<_> = (0..6)
            .map(|i| rig.post(|rig| read(&mut rig.others[other].0, key, 0, i * LEN, LEN)))
            .collect();
        for _ in 0..round {
            rig.turn();
        }
        rig.b.fabric.unpublish(key);
        rig.b.fill(0, LEN, 13);
        rig.quiet();
        rig.until("each read ends", |rig| ids.iter().all(|id| rig.others[other].0.settled(*id)));
        let far = &rig.others[other].0;
        for (i, id) in ids.into_iter().enumerate() {
            match far.outcomes(id) {
                (1, 0) => assert!(
                    far.get(i * LEN, LEN) == pattern(12, LEN),
                    "round {round}: read {i} has got bytes of later"
                ),
                outcomes => assert_eq!(outcomes, (0, 1)),
            }
        }
        let kinds = far.errors().into_iter().map(|(_, kind)| kind);
        assert!(kinds.skip(1).all(|kind| kind == ErrorKind::Flushed));
    }
}

fn many(rig: &mut Rig<'_>) {
    const RANGES: usize = 10_000;
    rig.b.fill(0, MEMORY, 14);
    for _ in 0..2 {
        let keys: Vec<_> = (0..RANGES).map(|i| publish(rig, 8 * i, 64)).collect();
        let mut distinct: Vec<_> = keys.iter().map(RemoteKey::encode).collect();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), RANGES);
        for i in [0, 1, 4_711, RANGES - 1] {
            assert_eq!(fetched(rig, keys[i]), rig.b.get(8 * i, 64));
        }
        keys.iter().for_each(|key| rig.b.fabric.unpublish(*key));
    }
}

fn concurrently(rig: &mut Rig<'_>) {
    rig.b.fill(0, 512, 15);
    let key = publish(rig, 0, 512);
    let (fabric, range) = (rig.b.fabric.clone(), rig.b.range(128, 128));
    std::thread::scope(|scope| {
        let control = scope.spawn(move || {
            for _ in 0..200 {
                let keys = [0; 4].map(|_| fabric.publish(&range).expect("publishes"));
                keys.into_iter().for_each(|key| fabric.unpublish(key));
            }
        });
        let mut last = false;
        while !last {
            last = control.is_finished();
            assert_eq!(fetched(rig, key), pattern(15, 512));
        }
    });
}

fn in_order(rig: &mut Rig<'_>) {
    rig.b.fill(0, 1024, 16);
    rig.a.fill(4096, 64, 17);
    let key = publish(rig, 0, 1024);
    let first = read(&mut rig.a, key, 0, 0, 1024).expect("posts");
    let write = rig.a.write(4096, 0, 8).expect("posts");
    let (id, src, dst) = (rig.a.id(), rig.a.range(4096, 64), rig.a.at(0));
    let flags = Flags::FENCE | Flags::SIGNAL;
    rig.a.end.write_notify(Src::Slab(&src), dst, 5, id, flags).expect("posts");
    let sent = rig.a.send(b"behind").expect("posts");
    rig.notice(5);
    for id in [first, write, id, sent] {
        rig.local(id);
    }
    rig.until("Recv", |rig| rig.b.take(&Completion::Recv { bytes: b"behind".to_vec() }));
    // The write that has no fence may have come before the read.
    assert_eq!(rig.a.get(8, 1016), pattern(16, 1024)[8..]);
    assert_eq!(rig.b.get(0, 64), pattern(17, 64));
}

fn flushed(rig: &mut Rig<'_>) {
    for turns in 0..4 {
        let key = publish(rig, 0, 1024);
        let other = rig.another();
        let far = &mut rig.others[other].0;
        let ids = [(); 3]
            .map(|()| read(far, key, 0, 0, 1024).and_then(|id| Ok([id, far.write(0, 0, 8)?])));
        for _ in 0..turns {
            rig.turn();
        }
        let ids: Vec<OpId> = ids.into_iter().flat_map(|ids| ids.expect("posts")).collect();
        rig.others[other].0.end.close();
        rig.until("each ends", |rig| ids.iter().all(|id| rig.others[other].0.settled(*id)));
        rig.quiet();
        for id in ids {
            let (done, failed) = rig.others[other].0.outcomes(id);
            assert_eq!(done + failed, 1, "{id:?} after {turns} turns");
        }
    }
}

fn budget(rig: &mut Rig<'_>) {
    let key = publish(rig, 0, 64);
    let all = rig.caps().max_ops;
    rig.until("nothing is outstanding", |rig| rig.a.end.budget().ops == all);
    for posted in 1..=all {
        read(&mut rig.a, key, 0, 0, 64).expect("within the budget");
        assert_eq!(rig.a.end.budget().ops, all - posted);
    }
    assert_eq!(read(&mut rig.a, key, 0, 0, 64), Err(PostError::Full));
    rig.until("they complete", |rig| rig.a.end.budget().ops == all);
    rig.quiet();
    assert_eq!(rig.a.errors(), []);
}

fn foreign(rig: &mut Rig<'_>) {
    let memory = Slab::heap(4096).expect("a small slab");
    let range = memory.range(0..4096).expect("in bounds");
    range.place(0, &pattern(18, 4096));
    match rig.b.fabric.publish(&range) {
        Err(FabricError::ForeignSlab) => {}
        Err(other) => panic!("refused with the wrong error: {other}"),
        Ok(key) => assert_eq!(fetched(rig, key), pattern(18, 4096)),
    }
}
