//! Memory that is written by a peer, sealed, and then read by all: in place where that can be.

use super::publish::read;
use super::{Case, ConnectionEnd, Rig, pattern};
use crate::{
    FabricError, Flags, MappedRange, PostError, RemoteKey, RemoteRange, Slab, SlabRange, Src,
};

pub(super) const CASES: &[Case] = &[
    Case { name: "a peer's bytes are sealed and read", clause: "seal", check: written_then_sealed },
    Case { name: "memory with other handles is not sealed", clause: "seal", check: held },
    Case { name: "sealed memory is not exported", clause: "seal", check: not_exported },
    Case { name: "nothing is read into sealed memory", clause: "seal", check: no_destination },
    Case { name: "memory that is not sealed is not mapped", clause: "mapped", check: unsealed },
    Case { name: "what is not published is not mapped", clause: "mapped", check: not_published },
    Case { name: "a mapping outlives its key", clause: "mapped", check: outlives },
    Case { name: "two links map the same memory", clause: "mapped", check: two_links },
];

const LEN: usize = 64 << 10;

fn all(slab: &Slab) -> SlabRange {
    slab.range(0..slab.len()).expect("all of it")
}

/// Memory of `b` with these bytes, sealed.
fn sealed(side: &ConnectionEnd, seed: u64) -> Slab {
    let slab = side.fabric.slab(LEN).expect("memory");
    all(&slab).place(0, &pattern(seed, LEN));
    side.fabric.seal(slab).expect("nobody else has it")
}

fn bytes(slab: &Slab) -> Vec<u8> {
    let mut out = vec![0; slab.len()];
    all(slab).snapshot(&mut out);
    out
}

/// The mapping, when it has come; `None` where the transport has none.
fn mapped(
    rig: &mut Rig<'_>,
    key: RemoteKey,
    side: impl for<'r> Fn(&'r mut Rig<'_>) -> &'r mut ConnectionEnd,
) -> Option<MappedRange> {
    let mut answer = None;
    rig.until("the mapping comes", |rig| match side(rig).end.mapped(key) {
        Ok(range) => {
            answer = range;
            true
        }
        Err(PostError::Full) => false,
        Err(other) => panic!("not mapped: {other}"),
    });
    answer
}

/// Reads in place or by copies.
fn fetched(rig: &mut Rig<'_>, key: RemoteKey) -> Vec<u8> {
    if let Some(range) = mapped(rig, key, |rig| &mut rig.a) {
        return range.to_vec();
    }
    let (memory, len) = (rig.a.fabric.slab(key.len as usize).expect("memory"), key.len as usize);
    let step = rig.caps().max_msg.min(len);
    for from in (0..len).step_by(step) {
        let dst = memory.range(from..len.min(from + step)).expect("in bounds");
        let id = rig.post(|rig| {
            let (id, src) = (rig.a.id(), RemoteRange { key, offset: from as u64 });
            rig.a.end.read(&dst, src, id, Flags::SIGNAL)?;
            rig.a.end.submit();
            Ok(id)
        });
        rig.local(id);
    }
    bytes(&memory)
}

/// The way of an extent: a peer writes, gives its key up, and the owner seals and publishes.
fn written_then_sealed(rig: &mut Rig<'_>) {
    for seed in 1..4 {
        let slab = rig.b.fabric.slab(LEN).expect("memory");
        let key = rig.b.end.export(&all(&slab)).expect("own memory");
        let step = rig.caps().max_msg.min(LEN);
        rig.a.fill(0, LEN, seed);
        for from in (0..LEN).step_by(step) {
            let src = rig.a.range(from, step);
            let id = rig.post(|rig| {
                let (id, dst) = (rig.a.id(), RemoteRange { key, offset: from as u64 });
                rig.a.end.write(Src::Slab(&src), dst, id, Flags::SIGNAL)?;
                rig.a.end.submit();
                Ok(id)
            });
            rig.local(id);
        }
        // Behind the writes: what it shows is there when the key is taken back.
        let id = rig.post(|rig| {
            let (id, dst) = (rig.a.id(), rig.a.range(LEN, 8));
            let src = RemoteRange { key, offset: 0 };
            rig.a.end.read(&dst, src, id, Flags::FENCE | Flags::SIGNAL)?;
            rig.a.end.submit();
            Ok(id)
        });
        rig.local(id);
        rig.a.end.release(key);
        rig.b.end.revoke(key);
        let slab = rig.b.fabric.seal(slab).expect("nobody can write any more");
        assert!(slab.is_sealed() && slab.len() == LEN);
        assert!(bytes(&slab) == pattern(seed, LEN), "the seal has changed something");
        let key = rig.b.fabric.publish(&all(&slab)).expect("publishes");
        assert!(fetched(rig, key) == pattern(seed, LEN), "seed {seed}");
        rig.b.fabric.unpublish(key);
    }
    assert_eq!((rig.a.errors(), rig.b.errors()), (vec![], vec![]));
}

fn held(rig: &mut Rig<'_>) {
    let fabric = rig.b.fabric.clone();
    let refused = |slab: Slab| {
        let sealed = fabric.seal(slab).map(|slab| slab.len());
        assert!(matches!(sealed, Err(FabricError::StillWritable { bytes: LEN, .. })), "{sealed:?}");
    };
    let slab = fabric.slab(LEN).expect("memory");
    let clone = slab.clone();
    refused(slab);
    let range = all(&clone);
    refused(clone);
    let key = fabric.publish(&range).expect("publishes");
    let slab = range.slab().clone();
    drop(range);
    refused(slab);
    fabric.unpublish(key);
    let slab = fabric.slab(LEN).expect("memory");
    let key = rig.b.end.export(&all(&slab)).expect("own memory");
    let clone = slab.clone();
    refused(slab);
    rig.b.end.revoke(key);
    fabric.seal(clone).expect("the last handle");
}

fn not_exported(rig: &mut Rig<'_>) {
    let slab = sealed(&rig.b, 1);
    let exported = rig.b.end.export(&all(&slab));
    assert!(matches!(exported, Err(FabricError::Sealed)), "{exported:?}");
    let again = rig.b.fabric.seal(slab).expect("a seal is for ever");
    assert!(bytes(&again) == pattern(1, LEN));
}

fn no_destination(rig: &mut Rig<'_>) {
    let slab = sealed(&rig.a, 2);
    let (id, src, dst) = (rig.a.id(), rig.a.at(0), slab.range(0..64).expect("in bounds"));
    let posted = rig.a.end.read(&dst, src, id, Flags::SIGNAL);
    assert_eq!(posted, Err(PostError::OutOfBounds));
    assert!(bytes(&slab) == pattern(2, LEN));
}

fn unsealed(rig: &mut Rig<'_>) {
    rig.b.fill(0, 64, 3);
    let key = rig.b.fabric.publish(&rig.b.range(0, 64)).expect("publishes");
    assert!(mapped(rig, key, |rig| &mut rig.a).is_none());
    let id = read(&mut rig.a, key, 0, 0, 64).expect("posts");
    rig.local(id);
    assert_eq!(rig.a.get(0, 64), pattern(3, 64));
}

/// Asks until the answer is another than to ask again.
fn refused_mapping(rig: &mut Rig<'_>, key: RemoteKey, maps: bool) {
    let mut answer = Ok(None);
    rig.until("an answer", |rig| {
        answer = rig.a.end.mapped(key).map(|range| range.map(|range| range.len()));
        answer != Err(PostError::Full)
    });
    assert_eq!(answer, if maps { Err(PostError::OutOfBounds) } else { Ok(None) });
}

fn not_published(rig: &mut Rig<'_>) {
    let slab = sealed(&rig.b, 4);
    let key = rig.b.fabric.publish(&slab.range(0..4096).expect("in bounds")).expect("publishes");
    let maps = mapped(rig, key, |rig| &mut rig.a).is_some();
    let long = RemoteKey { len: LEN as u64, ..key };
    let exported = rig.a.peer;
    for key in [long, RemoteKey { key: !key.key, ..key }, exported] {
        refused_mapping(rig, key, maps);
    }
    rig.b.fabric.unpublish(key);
    refused_mapping(rig, key, maps);
    assert_eq!(rig.a.errors(), [], "the connection goes on");
    rig.publish(0, 0, 64, 1);
}

fn outlives(rig: &mut Rig<'_>) {
    let slab = sealed(&rig.b, 5);
    let key = rig.b.fabric.publish(&slab.range(4096..LEN).expect("in bounds")).expect("publishes");
    let Some(range) = mapped(rig, key, |rig| &mut rig.a) else { return };
    let part = range.part(100, 1000).expect("a part");
    assert!(range.part(100, range.len()).is_none() && range.part(usize::MAX, 1).is_none());
    rig.b.fabric.unpublish(key);
    rig.a.end.release(key);
    drop(slab);
    rig.a.end.close();
    rig.b.end.close();
    rig.quiet();
    assert!(range[..] == pattern(5, LEN)[4096..]);
    drop(range);
    assert_eq!(part[..], pattern(5, LEN)[4196..5196]);
    assert_eq!(rig.a.end.mapped(key).map(|range| range.is_some()), Err(PostError::Closed));
}

fn two_links(rig: &mut Rig<'_>) {
    let other = rig.another();
    let slab = sealed(&rig.b, 6);
    let key = rig.b.fabric.publish(&all(&slab)).expect("publishes");
    let here = mapped(rig, key, |rig| &mut rig.a);
    let there = mapped(rig, key, |rig| &mut rig.others[other].0);
    assert_eq!(here.is_some(), there.is_some());
    for range in [here, there].into_iter().flatten() {
        assert!(range[..] == pattern(6, LEN));
    }
}
