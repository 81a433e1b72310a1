//! Messages: small, in order, and bounded by the peer's receives.

use super::rig::RECVS;
use super::{Case, Rig, pattern};
use crate::{Completion, PostError};

pub(super) const CASES: &[Case] = &[
    Case { name: "a message arrives", clause: "send", check: arrives },
    Case { name: "an empty message arrives", clause: "send", check: empty },
    Case { name: "the message limit is exact", clause: "max_send", check: limit },
    Case { name: "messages keep their order", clause: "send", check: in_order },
    Case { name: "messages go in both directions", clause: "send", check: both_ways },
    Case { name: "a message completes once", clause: "send", check: completes },
    Case { name: "messages and notices share the receives", clause: "G9", check: share },
];

fn message(bytes: &[u8]) -> Completion {
    Completion::Recv { bytes: bytes.to_vec() }
}

fn arrives(rig: &mut Rig<'_>) {
    let mut bytes = b"a word in your ear".to_vec();
    rig.a.send(&bytes).expect("posts");
    bytes.fill(0);
    rig.until("Recv", |rig| rig.b.take(&message(b"a word in your ear")));
}

fn empty(rig: &mut Rig<'_>) {
    rig.a.send(b"").expect("posts");
    rig.until("Recv", |rig| rig.b.take(&message(b"")));
}

fn limit(rig: &mut Rig<'_>) {
    let most = rig.caps().max_send;
    assert!(most >= 64, "a message carries a line at least");
    let bytes = pattern(1, most + 1);
    assert_eq!(rig.a.send(&bytes), Err(PostError::TooLarge));
    rig.a.send(&bytes[..most]).expect("posts");
    rig.until("Recv", |rig| rig.b.take(&message(&bytes[..most])));
}

fn in_order(rig: &mut Rig<'_>) {
    for i in 0..RECVS {
        rig.post(|rig| rig.a.send(&i.to_le_bytes()));
    }
    rig.until("all messages", |rig| rig.b.seen.len() >= RECVS as usize);
    let sent: Vec<_> = (0..RECVS).map(|i| message(&i.to_le_bytes())).collect();
    assert_eq!(rig.b.seen, sent);
}

fn both_ways(rig: &mut Rig<'_>) {
    for round in 0..10_u8 {
        rig.post(|rig| rig.a.send(&[round]));
        rig.post(|rig| rig.b.send(&[round, round]));
    }
    for round in 0..10 {
        rig.until("Recv", |rig| rig.b.take(&message(&[round])));
        rig.until("Recv", |rig| rig.a.take(&message(&[round, round])));
    }
}

fn completes(rig: &mut Rig<'_>) {
    let ids: Vec<_> = (0..20).map(|_| rig.post(|rig| rig.a.send(b"x"))).collect();
    rig.until("all complete", |rig| ids.iter().all(|id| rig.a.settled(*id)));
    rig.quiet();
    for id in ids {
        assert_eq!(rig.a.outcomes(id), (1, 0));
    }
}

fn share(rig: &mut Rig<'_>) {
    for i in 0..RECVS {
        if i % 2 == 0 {
            rig.post(|rig| rig.a.send(&i.to_le_bytes()));
        } else {
            rig.post(|rig| rig.a.notify(i));
        }
    }
    rig.until("all", |rig| rig.b.seen.len() == RECVS as usize);
    assert_eq!(rig.a.end.budget().notices, 0);
    assert_eq!(rig.a.send(b"one more"), Err(PostError::Full));
    for i in 0..RECVS {
        let wanted =
            if i % 2 == 0 { message(&i.to_le_bytes()) } else { Completion::Notify { imm: i } };
        assert!(rig.b.take(&wanted), "{wanted:?} is missing");
    }
}
