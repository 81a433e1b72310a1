//! The end of a connection: errors, each once, and nothing after them.

use super::{Case, ConnectionEnd, Rig, pattern};
use crate::{Budget, Completion, ErrorKind, Flags, OpId, PostError, RemoteKey, Src};

pub(super) const CASES: &[Case] = &[
    Case { name: "nothing can be posted after a close", clause: "close", check: closed },
    Case { name: "a close flushes each operation once", clause: "G8", check: flushes },
    Case { name: "closing twice is closing once", clause: "close", check: twice },
    Case { name: "the peer notices a close", clause: "close", check: noticed },
    Case { name: "dropping an end closes it", clause: "close", check: dropped },
    Case { name: "the peer's operations end once each", clause: "G8", check: peer_flushes },
    Case { name: "nothing lands after a close", clause: "G8", check: lands_never },
    Case { name: "nothing lands after a revoke", clause: "G8", check: revoked_stays },
    Case { name: "an error takes the others with it", clause: "G8", check: one_culprit },
    Case { name: "a failed end refuses posts", clause: "Closed", check: failed_refuses },
    Case { name: "other connections live on", clause: "close", check: others_live },
    Case { name: "a new connection takes the place", clause: "offer", check: again },
    Case { name: "what was polled before a close stays", clause: "close", check: stays },
];

const NOTHING: Budget = Budget { ops: 0, notices: 0 };

/// Checks that each of the operations had one outcome, with no success and no second culprit after
/// the first error.
fn ended_once(seen: &[Completion], ids: &[OpId]) {
    let mut failed = false;
    let mut ended = Vec::new();
    for completion in seen {
        match completion {
            Completion::Local { id } => {
                assert!(!failed, "{id:?} succeeded after an error");
                ended.push(*id);
            }
            Completion::Error { id, kind } => {
                assert!(!failed || *kind == ErrorKind::Flushed, "{kind:?} after the first error");
                failed = true;
                ended.extend(*id);
            }
            _ => {}
        }
    }
    ended.sort_unstable();
    let mut expected = ids.to_vec();
    expected.sort_unstable();
    assert_eq!(ended, expected, "each operation ends once");
}

/// Awaits the ends of the operations of one side, which are taken back as the network acts, and
/// gives more of them a chance to come.
fn all_end<'b>(
    rig: &mut Rig<'b>,
    ids: &[OpId],
    side: impl for<'r> Fn(&'r Rig<'b>) -> &'r ConnectionEnd,
) {
    rig.until("each operation ends", |rig| ids.iter().all(|id| side(rig).settled(*id)));
    rig.quiet();
    ended_once(&side(rig).seen, ids);
}

fn refuses(rig: &mut Rig<'_>) {
    assert_eq!(rig.a.write(0, 0, 8), Err(PostError::Closed));
    assert_eq!(rig.a.write_notify(0, 0, 8, 1), Err(PostError::Closed));
    assert_eq!(rig.a.notify(1), Err(PostError::Closed));
    assert_eq!(rig.a.read(0, 0, 8, Flags::NONE), Err(PostError::Closed));
    assert_eq!(rig.a.send(b"x"), Err(PostError::Closed));
    assert_eq!(rig.a.end.budget(), NOTHING);
    rig.a.end.submit();
    rig.a.end.post_recvs(1);
}

fn closed(rig: &mut Rig<'_>) {
    rig.a.end.close();
    refuses(rig);
}

fn flushes(rig: &mut Rig<'_>) {
    for submitted in [true, false] {
        let other = rig.another();
        let mut ids = Vec::new();
        for _ in 0..6 {
            let side = &mut rig.others[other].0;
            let (id, src, dst) = (side.id(), side.range(0, 512), side.at(0));
            side.end.write(Src::Slab(&src), dst, id, Flags::SIGNAL).expect("posts");
            ids.push(id);
        }
        if submitted {
            rig.others[other].0.end.submit();
        }
        rig.others[other].0.end.close();
        all_end(rig, &ids, |rig| &rig.others[other].0);
    }
}

fn twice(rig: &mut Rig<'_>) {
    let id = rig.a.write(0, 0, 64).expect("posts");
    rig.a.end.close();
    rig.a.end.close();
    all_end(rig, &[id], |rig| &rig.a);
    rig.a.end.close();
    all_end(rig, &[id], |rig| &rig.a);
}

fn noticed(rig: &mut Rig<'_>) {
    rig.b.end.close();
    rig.until("the peer notices", |rig| !rig.a.errors().is_empty());
    rig.quiet();
    assert_eq!(rig.a.errors(), [(None, ErrorKind::Disconnected)], "one error, and only one");
    refuses(rig);
}

fn dropped(rig: &mut Rig<'_>) {
    let other = rig.another();
    let (mut far, near) = rig.others.swap_remove(other);
    drop(near.end);
    rig.until("the peer notices", |_| {
        far.poll();
        !far.errors().is_empty()
    });
    assert_eq!(far.notify(1), Err(PostError::Closed));
}

fn peer_flushes(rig: &mut Rig<'_>) {
    let mut ids: Vec<_> = (0..4).map(|_| rig.post(|rig| rig.a.write(0, 0, 256))).collect();
    ids.push(rig.post(|rig| rig.a.notify(1)));
    rig.b.end.close();
    ids.extend(rig.a.write(0, 0, 256));
    rig.until("the peer notices", |rig| !rig.a.errors().is_empty());
    all_end(rig, &ids, |rig| &rig.a);
}

fn lands_never(rig: &mut Rig<'_>) {
    for round in 0..10 {
        let other = rig.another();
        let far = &mut rig.others[other].0;
        far.fill(0, 2048, round);
        for i in 0..6 {
            far.write(0, i * 2048, 2048).expect("posts");
        }
        for _ in 0..round {
            rig.turn();
        }
        let (far, near) = &mut rig.others[other];
        near.end.close();
        let retained = near.get(0, 6 * 2048);
        if round % 2 == 0 {
            far.end.close();
        }
        rig.quiet();
        let near = &rig.others[other].1;
        assert!(near.get(0, 6 * 2048) == retained, "memory changed after close had returned");
    }
}

fn revoked_stays(rig: &mut Rig<'_>) {
    for round in 0..10 {
        let other = rig.another();
        let (far, near) = &mut rig.others[other];
        far.fill(0, 2048, round);
        let key = far.peer;
        for i in 0..6 {
            far.write(0, i * 2048, 2048).expect("posts");
        }
        for _ in 0..round {
            far.poll();
            near.poll();
        }
        near.end.revoke(key);
        let retained = near.get(0, 6 * 2048);
        rig.quiet();
        let near = &rig.others[other].1;
        assert!(near.get(0, 6 * 2048) == retained, "memory changed after revoke had returned");
    }
}

fn one_culprit(rig: &mut Rig<'_>) {
    let mut ids: Vec<_> = (0..3).map(|i| rig.a.write(0, i * 64, 64).expect("posts")).collect();
    let key = RemoteKey { key: !rig.a.peer.key, ..rig.a.peer };
    let (culprit, src) = (rig.a.id(), rig.a.range(0, 64));
    let dst = crate::RemoteRange { key, offset: 0 };
    match rig.a.end.write(Src::Slab(&src), dst, culprit, Flags::SIGNAL) {
        Err(PostError::OutOfBounds) => return,
        posted => posted.expect("posts"),
    }
    ids.push(culprit);
    for i in 0..3 {
        ids.extend(rig.a.write(0, i * 64, 64));
    }
    rig.until("the error", |rig| rig.a.settled(culprit) && !rig.a.errors().is_empty());
    all_end(rig, &ids, |rig| &rig.a);
    assert_eq!(rig.a.errors().first(), Some(&rig.refusal(culprit)));
    refuses(rig);
    rig.until("the peer notices", |rig| !rig.b.errors().is_empty());
}

fn failed_refuses(rig: &mut Rig<'_>) {
    let id = rig.a.write(0, 0, 64).expect("posts");
    rig.b.end.close();
    rig.until("the failure", |rig| !rig.a.errors().is_empty());
    all_end(rig, &[id], |rig| &rig.a);
    refuses(rig);
    let seen = rig.a.seen.len();
    rig.a.end.close();
    rig.quiet();
    assert_eq!(rig.a.seen.len(), seen, "the close has nothing to add");
}

fn others_live(rig: &mut Rig<'_>) {
    let other = rig.another();
    rig.others[other].1.end.close();
    rig.until("the peer notices", |rig| !rig.others[other].0.errors().is_empty());
    rig.a.fill(0, 1024, 1);
    rig.publish(0, 0, 1024, 1);
    assert_eq!(rig.b.get(0, 1024), pattern(1, 1024));
    assert_eq!((rig.a.errors(), rig.b.errors()), (vec![], vec![]));
}

fn again(rig: &mut Rig<'_>) {
    rig.a.end.close();
    rig.b.end.close();
    for round in 0..3 {
        let other = rig.another();
        let (far, near) = &mut rig.others[other];
        far.fill(0, 512, round);
        near.allow(1);
        let id = rig.post(|rig| rig.others[other].0.write_notify(0, 0, 512, 7));
        let notice = Completion::Notify { imm: 7 };
        rig.until("Notify", |rig| rig.others[other].1.take(&notice));
        assert_eq!(rig.others[other].1.get(0, 512), pattern(round, 512));
        rig.until("Local", |rig| rig.others[other].0.settled(id));
        rig.others[other].0.end.close();
    }
}

fn stays(rig: &mut Rig<'_>) {
    rig.a.fill(0, 1024, 2);
    rig.publish(0, 0, 1024, 1);
    rig.b.end.close();
    rig.a.end.close();
    rig.quiet();
    assert_eq!(rig.b.get(0, 1024), pattern(2, 1024));
}
