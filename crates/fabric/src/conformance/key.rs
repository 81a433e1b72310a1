//! Keys: which memory a peer may access, and for how long.

use super::rig::MEMORY;
use super::{Case, ConnectionEnd, Rig, pattern};
use crate::{FabricError, Flags, OpId, PostError, RemoteKey, RemoteRange, Slab, Src};

pub(super) const CASES: &[Case] = &[
    Case { name: "a key survives encoding", clause: "RemoteKey", check: encodes },
    Case { name: "a key of another length is malformed", clause: "RemoteKey", check: wrong_length },
    Case { name: "a write beyond the range is refused", clause: "bounds", check: beyond },
    Case { name: "the last byte can be written", clause: "bounds", check: last_byte },
    Case { name: "an offset that overflows is refused", clause: "bounds", check: overflow },
    Case { name: "an offset counts from the export", clause: "export", check: part },
    Case { name: "an invented key is refused", clause: "keys", check: invented },
    Case { name: "a stretched key is refused", clause: "keys", check: stretched },
    Case { name: "a shifted key is refused", clause: "keys", check: shifted },
    Case { name: "a revoked key is refused", clause: "revoke", check: revoked },
    Case { name: "a revoked key reads nothing", clause: "revoke", check: revoked_read },
    Case { name: "revoking one key leaves the other", clause: "revoke", check: leaves_others },
    Case { name: "a key is for its own connection", clause: "export", check: own_connection },
    Case { name: "a key dies with its connection", clause: "close", check: dies },
    Case { name: "two links share a slab", clause: "export", check: shared },
    Case { name: "memory of another fabric is refused or works", clause: "export", check: foreign },
];

/// Posts a write of 64 bytes of `pattern(99)` with a key of the caller's making.
fn write_with(side: &mut ConnectionEnd, key: RemoteKey, offset: u64) -> Result<OpId, PostError> {
    side.fill(0, 64, 99);
    let (id, src) = (side.id(), side.range(0, 64));
    side.end.write(Src::Slab(&src), RemoteRange { key, offset }, id, Flags::SIGNAL)?;
    side.end.submit();
    Ok(id)
}

/// Tries a write with a bad key, sees it refused, and `b`'s memory untouched.
fn refused(rig: &mut Rig<'_>, key: RemoteKey, offset: u64) {
    rig.b.fill(0, 4096, 98);
    let posted = write_with(&mut rig.a, key, offset);
    rig.refused(posted);
    rig.quiet();
    assert_eq!(rig.b.get(0, 4096), pattern(98, 4096), "memory changed all the same");
}

fn encodes(rig: &mut Rig<'_>) {
    let key = RemoteKey { key: 1, base: u64::MAX, len: 3 << 40 };
    assert_eq!(RemoteKey::decode(&key.encode()).expect("decodes"), key);
    let key = rig.a.peer;
    assert_eq!(RemoteKey::decode(&key.encode()).expect("decodes"), key);
    assert_eq!(key.len, MEMORY as u64);
}

fn wrong_length(_: &mut Rig<'_>) {
    for len in [0, 1, 8, 23, 25, 48] {
        let decoded = RemoteKey::decode(&vec![1; len]);
        assert!(matches!(decoded, Err(FabricError::Malformed { .. })), "{len} bytes");
    }
}

fn beyond(rig: &mut Rig<'_>) {
    for offset in [MEMORY - 63, MEMORY - 1, MEMORY] {
        assert_eq!(rig.a.write(0, offset, 64), Err(PostError::OutOfBounds), "at {offset}");
    }
    rig.publish(0, 0, 64, 1);
}

fn last_byte(rig: &mut Rig<'_>) {
    rig.a.fill(0, 64, 1);
    rig.publish(0, MEMORY - 64, 64, 1);
    assert_eq!(rig.b.get(MEMORY - 64, 64), pattern(1, 64));
}

fn overflow(rig: &mut Rig<'_>) {
    for offset in [u64::MAX, u64::MAX - 63, 1 << 63] {
        let key = rig.a.peer;
        assert_eq!(write_with(&mut rig.a, key, offset), Err(PostError::OutOfBounds));
    }
}

fn part(rig: &mut Rig<'_>) {
    let inner = rig.b.range(1000, 200);
    let key = rig.b.end.export(&inner).expect("exports");
    assert_eq!(key.len, 200);
    assert_eq!(write_with(&mut rig.a, key, 137), Err(PostError::OutOfBounds));
    let id = write_with(&mut rig.a, key, 136).expect("posts");
    rig.local(id);
    let (id, dst, src) = (rig.a.id(), rig.a.range(512, 64), RemoteRange { key, offset: 136 });
    rig.a.end.read(&dst, src, id, Flags::FENCE | Flags::SIGNAL).expect("posts");
    rig.a.end.submit();
    rig.local(id);
    assert_eq!(rig.a.get(512, 64), pattern(99, 64));
    assert_eq!(rig.b.get(1136, 64), pattern(99, 64));
    assert_eq!(rig.b.get(1000, 136), [0; 136]);
}

fn invented(rig: &mut Rig<'_>) {
    let key = RemoteKey { key: rig.a.peer.key ^ 0x5a5a_5a5a, ..rig.a.peer };
    refused(rig, key, 0);
}

fn stretched(rig: &mut Rig<'_>) {
    let inner = rig.b.range(1024, 128);
    let honest = rig.b.end.export(&inner).expect("exports");
    refused(rig, RemoteKey { len: 2048, ..honest }, 256);
}

fn shifted(rig: &mut Rig<'_>) {
    let inner = rig.b.range(1024, 128);
    let honest = rig.b.end.export(&inner).expect("exports");
    refused(rig, RemoteKey { base: honest.base.wrapping_sub(512), ..honest }, 0);
}

fn revoked(rig: &mut Rig<'_>) {
    let key = rig.a.peer;
    rig.b.end.revoke(key);
    refused(rig, key, 0);
}

fn revoked_read(rig: &mut Rig<'_>) {
    rig.b.fill(0, 64, 2);
    let key = rig.a.peer;
    rig.b.end.revoke(key);
    let posted = rig.a.read(0, 1024, 64, Flags::NONE);
    rig.refused(posted);
    assert_eq!(rig.a.get(1024, 64), [0; 64]);
}

fn leaves_others(rig: &mut Rig<'_>) {
    let all = rig.b.range(0, MEMORY);
    let second = rig.b.end.export(&all).expect("a range can be exported twice");
    assert_ne!(second, rig.a.peer);
    rig.b.end.revoke(second);
    rig.b.end.revoke(second);
    rig.a.fill(0, 64, 3);
    rig.publish(0, 0, 64, 1);
    assert_eq!(rig.b.get(0, 64), pattern(3, 64));
    refused(rig, second, 0);
}

fn own_connection(rig: &mut Rig<'_>) {
    let other = rig.another();
    let theirs = rig.others[other].0.peer;
    let posted = write_with(&mut rig.a, theirs, 0);
    rig.refused(posted);
    rig.quiet();
    assert_eq!(rig.others[other].1.get(0, 64), [0; 64]);
}

fn dies(rig: &mut Rig<'_>) {
    let other = rig.another();
    let (mut far, mut near) = rig.others.swap_remove(other);
    let stale = far.peer;
    near.end.close();
    far.end.close();
    let posted = write_with(&mut rig.a, stale, 0);
    rig.refused(posted);
    rig.quiet();
    assert_eq!(near.get(0, 64), [0; 64]);
}

fn shared(rig: &mut Rig<'_>) {
    let other = rig.another();
    let all = rig.b.range(0, MEMORY);
    let (far, near) = &mut rig.others[other];
    far.peer = near.end.export(&all).expect("a slab serves two links");
    near.allow(1);
    far.fill(0, 64, 4);
    rig.a.fill(0, 64, 5);
    rig.post(|rig| rig.others[other].0.write_notify(0, 0, 64, 8));
    rig.publish(0, 64, 64, 9);
    let notice = crate::Completion::Notify { imm: 8 };
    rig.until("Notify", |rig| rig.others[other].1.take(&notice));
    assert_eq!(rig.b.get(0, 64), pattern(4, 64));
    assert_eq!(rig.b.get(64, 64), pattern(5, 64));
}

fn foreign(rig: &mut Rig<'_>) {
    let memory = Slab::heap(4096).expect("a small slab");
    let key = match rig.b.end.export(&memory.range(0..4096).expect("in bounds")) {
        Err(FabricError::ForeignSlab) => return,
        Err(other) => panic!("refused with the wrong error: {other}"),
        Ok(key) => key,
    };
    let id = write_with(&mut rig.a, key, 0).expect("posts");
    rig.local(id);
    rig.a.notify(1).expect("posts");
    rig.notice(1);
    let word = memory.load(0, std::sync::atomic::Ordering::Acquire);
    assert_eq!(word.to_le_bytes()[..], pattern(99, 8));
}
