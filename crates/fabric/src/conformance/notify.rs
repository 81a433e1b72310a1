//! Notices: their meaning for a receiver, and how many there may be.

use super::rig::RECVS;
use super::{Case, Rig, pattern};
use crate::{Completion, Flags, PostError, Publish, Src};

pub(super) const CASES: &[Case] = &[
    Case { name: "a notice carries its number", clause: "write_notify", check: number },
    Case { name: "a notice needs no bytes and no key", clause: "write_notify", check: bare },
    Case { name: "a notice shows its own write", clause: "G4", check: own_write },
    Case { name: "a notice shows the writes before it", clause: "G4", check: earlier_writes },
    Case { name: "a later notice covers for an earlier one", clause: "G4", check: covers },
    Case { name: "each notice arrives once", clause: "write_notify", check: once },
    Case { name: "an unsignalled notice is silent at home", clause: "SIGNAL", check: unsignalled },
    Case { name: "a notice without a receive is refused", clause: "G9", check: no_receive },
    Case { name: "a refused notice has no effect", clause: "G9", check: refused_is_nothing },
    Case { name: "the budget counts receives down", clause: "G9", check: counts_down },
    Case { name: "posted receives add up", clause: "post_recvs", check: adds_up },
    Case { name: "new receives let notices pass again", clause: "G9", check: recovers },
    Case { name: "plain writes need no receive", clause: "G9", check: plain_writes },
];

fn number(rig: &mut Rig<'_>) {
    for imm in [0, 1, 0x8000_0000, u32::MAX] {
        rig.a.notify(imm).expect("posts");
        rig.notice(imm);
    }
}

fn bare(rig: &mut Rig<'_>) {
    let id = rig.a.id();
    let key = crate::RemoteKey { key: 1, base: 2, len: 3 };
    let dst = crate::RemoteRange { key, offset: 99 };
    rig.a.end.write_notify(Src::Empty, dst, 5, id, Flags::SIGNAL).expect("posts");
    rig.a.end.submit();
    rig.notice(5);
    rig.local(id);
}

fn own_write(rig: &mut Rig<'_>) {
    for round in 0..50 {
        rig.a.fill(0, 3000, u64::from(round));
        let id = rig.post(|rig| rig.a.write_notify(0, 0, 3000, round));
        rig.notice(round);
        assert_eq!(rig.b.get(0, 3000), pattern(u64::from(round), 3000));
        rig.local(id);
        rig.b.allow(1);
    }
}

fn earlier_writes(rig: &mut Rig<'_>) {
    let counted = rig.caps().publish == Publish::NotifyCounted;
    for round in 0..50_u32 {
        rig.a.fill(0, 4 * 512, u64::from(round));
        let mut last = None;
        for i in 0..4 {
            last = Some(if counted {
                rig.post(|rig| rig.a.write_notify(i * 512, i * 1024, 512, i as u32))
            } else {
                rig.post(|rig| rig.a.write(i * 512, i * 1024, 512))
            });
        }
        let bare = rig.post(|rig| rig.a.notify(99));
        rig.notice(99);
        if counted {
            (0..4).for_each(|imm| rig.notice(imm));
            rig.b.allow(4);
        }
        let expected = pattern(u64::from(round), 4 * 512);
        for i in 0..4 {
            assert_eq!(rig.b.get(i * 1024, 512), expected[i * 512..][..512], "write {i}");
        }
        rig.b.allow(1);
        let ids = [last.expect("four were posted"), bare];
        rig.until("Local", |rig| ids.iter().all(|id| rig.a.settled(*id)));
        rig.quiet();
    }
}

fn covers(rig: &mut Rig<'_>) {
    for round in 0..20_u32 {
        rig.a.fill(0, 2048, u64::from(round));
        for i in 0..2 {
            rig.post(|rig| rig.a.write_notify(i * 1024, i * 1024, 1024, i as u32));
        }
        rig.notice(1);
        let expected = pattern(u64::from(round), 2048);
        if rig.caps().publish == Publish::NotifyCounted {
            assert_eq!(rig.b.get(1024, 1024), expected[1024..]);
        } else {
            assert_eq!(rig.b.get(0, 2048), expected);
        }
        rig.notice(0);
        rig.b.allow(2);
        rig.quiet();
    }
}

fn once(rig: &mut Rig<'_>) {
    for imm in 0..RECVS {
        rig.post(|rig| rig.a.notify(imm));
    }
    let count = |rig: &Rig<'_>| {
        rig.b.seen.iter().filter(|c| matches!(c, Completion::Notify { .. })).count()
    };
    rig.until("all notices", |rig| count(rig) >= RECVS as usize);
    rig.quiet();
    assert_eq!(count(rig), RECVS as usize);
    (0..RECVS).for_each(|imm| rig.notice(imm));
}

fn unsignalled(rig: &mut Rig<'_>) {
    let (id, dst) = (rig.a.id(), rig.a.at(0));
    rig.a.end.write_notify(Src::Empty, dst, 3, id, Flags::NONE).expect("posts");
    rig.a.end.submit();
    rig.notice(3);
    rig.quiet();
    assert_eq!(rig.a.outcomes(id), (0, 0));
}

fn no_receive(rig: &mut Rig<'_>) {
    let other = rig.another();
    assert_eq!(rig.others[other].0.end.budget().notices, 0);
    assert_eq!(rig.others[other].0.notify(1), Err(PostError::Full));
    assert_eq!(rig.others[other].0.send(b"no"), Err(PostError::Full));
}

fn refused_is_nothing(rig: &mut Rig<'_>) {
    let other = rig.another();
    rig.others[other].0.fill(0, 64, 1);
    assert_eq!(rig.others[other].0.write_notify(0, 0, 64, 1), Err(PostError::Full));
    rig.quiet();
    let (a, b) = &rig.others[other];
    assert_eq!(b.get(0, 64), [0; 64]);
    assert_eq!((a.seen.len(), b.seen.len()), (0, 0));
}

fn counts_down(rig: &mut Rig<'_>) {
    for left in (0..RECVS).rev() {
        rig.post(|rig| rig.a.notify(left));
        assert_eq!(rig.a.end.budget().notices, left);
    }
    rig.quiet();
    assert_eq!(rig.a.notify(0), Err(PostError::Full), "polling gives no receive back");
}

fn adds_up(rig: &mut Rig<'_>) {
    rig.b.end.post_recvs(3);
    rig.b.end.post_recvs(0);
    rig.b.allow(4);
    rig.until("receives are known", |rig| rig.a.end.budget().notices == RECVS + 7);
    rig.quiet();
    assert_eq!(rig.a.end.budget().notices, RECVS + 7);
}

fn recovers(rig: &mut Rig<'_>) {
    let other = rig.another();
    for round in 0..10 {
        rig.others[other].1.allow(2);
        for imm in [2 * round, 2 * round + 1] {
            rig.post(|rig| rig.others[other].0.notify(imm));
            let seen = Completion::Notify { imm };
            rig.until("Notify", |rig| rig.others[other].1.take(&seen));
        }
        assert_eq!(rig.others[other].0.notify(0), Err(PostError::Full));
    }
}

fn plain_writes(rig: &mut Rig<'_>) {
    let other = rig.another();
    let id = rig.others[other].0.write(0, 0, 64).expect("posts");
    let local = Completion::Local { id };
    rig.until("Local", |rig| rig.others[other].0.take(&local));
}
