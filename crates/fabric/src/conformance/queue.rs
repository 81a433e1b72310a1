//! The queue: how much fits, and who makes room.

use super::{Case, Rig};
use crate::{OpId, PostError};

pub(super) const CASES: &[Case] = &[
    Case { name: "limits make sense", clause: "Caps", check: limits },
    Case { name: "the budget is kept", clause: "budget", check: budget_is_kept },
    Case { name: "a full queue refuses", clause: "Full", check: full },
    Case { name: "a refused post has no effect", clause: "Full", check: refused_is_nothing },
    Case { name: "a full queue recovers", clause: "Full", check: recovers },
    Case { name: "poll alone makes room", clause: "G10", check: no_hidden_progress },
    Case { name: "completions wait for the poll", clause: "G10", check: completions_wait },
    Case { name: "an idle end says nothing", clause: "poll", check: idle },
    Case { name: "poll appends", clause: "poll", check: appends },
];

fn limits(rig: &mut Rig<'_>) {
    for (end, fabric) in [(&rig.a.end, &rig.a.fabric), (&rig.b.end, &rig.b.fabric)] {
        let (caps, best) = (end.caps(), fabric.caps());
        assert!(caps.max_ops > 0 && caps.max_ops <= best.max_ops);
        assert!(caps.max_msg <= best.max_msg && caps.max_inline <= caps.max_msg);
        assert!(caps.max_send <= best.max_send && caps.max_inline <= best.max_inline);
        assert_eq!(end.budget().ops, caps.max_ops, "an idle end has all of its queue");
        assert!(!fabric.name().is_empty());
    }
}

/// Posts writes until the queue is full.
fn fill(rig: &mut Rig<'_>) -> Vec<OpId> {
    let mut ids = Vec::new();
    loop {
        match rig.a.write(0, 0, 64) {
            Ok(id) => ids.push(id),
            Err(PostError::Full) => return ids,
            Err(other) => panic!("cannot post: {other}"),
        }
        assert!(ids.len() <= rig.caps().max_ops as usize, "more than max_ops are outstanding");
    }
}

fn budget_is_kept(rig: &mut Rig<'_>) {
    for round in 0..rig.caps().max_ops.min(64) {
        let promised = rig.a.end.budget().ops;
        assert!(promised <= rig.caps().max_ops);
        for _ in 0..promised {
            rig.a.write(0, 0, 8).unwrap_or_else(|e| panic!("{promised} promised: {e}"));
        }
        (0..round % 7).for_each(|_| rig.turn());
    }
}

fn full(rig: &mut Rig<'_>) {
    let ids = fill(rig);
    assert!(!ids.is_empty());
    assert_eq!(rig.a.end.budget().ops, 0);
    assert_eq!(rig.a.notify(1), Err(PostError::Full), "a notice needs a place too");
    assert_eq!(rig.a.send(b"x"), Err(PostError::Full), "a message needs a place too");
    rig.until("all complete", |rig| ids.iter().all(|id| rig.a.settled(*id)));
}

fn refused_is_nothing(rig: &mut Rig<'_>) {
    let ids = fill(rig);
    rig.a.fill(4096, 64, 1);
    assert_eq!(rig.a.write(4096, 4096, 64), Err(PostError::Full));
    rig.until("all complete", |rig| ids.iter().all(|id| rig.a.settled(*id)));
    rig.quiet();
    assert_eq!(rig.b.get(4096, 64), [0; 64]);
    assert_eq!(rig.a.seen.len(), ids.len());
}

fn recovers(rig: &mut Rig<'_>) {
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.append(&mut fill(rig));
        rig.until("there is room", |rig| rig.a.end.budget().ops > 0);
    }
    rig.until("all complete", |rig| ids.iter().all(|id| rig.a.settled(*id)));
    assert_eq!(rig.a.end.budget().ops, rig.caps().max_ops);
    ids.iter().for_each(|id| assert_eq!(rig.a.outcomes(*id), (1, 0)));
}

fn no_hidden_progress(rig: &mut Rig<'_>) {
    fill(rig);
    for _ in 0..400 {
        rig.b.poll();
        rig.bed().step();
        assert_eq!(rig.a.end.budget().ops, 0, "nobody polled");
    }
    assert_eq!(rig.a.notify(1), Err(PostError::Full));
    rig.until("there is room", |rig| rig.a.end.budget().ops > 0);
}

fn completions_wait(rig: &mut Rig<'_>) {
    let ids: Vec<_> = (0..4).map(|i| rig.a.notify(i).expect("posts")).collect();
    for _ in 0..400 {
        rig.b.poll();
        rig.bed().step();
    }
    rig.until("all complete", |rig| ids.iter().all(|id| rig.a.settled(*id)));
    ids.iter().for_each(|id| assert_eq!(rig.a.outcomes(*id), (1, 0)));
}

fn idle(rig: &mut Rig<'_>) {
    rig.quiet();
    assert_eq!(rig.a.end.poll(&mut Vec::new()), 0);
    assert_eq!((rig.a.seen.len(), rig.b.seen.len()), (0, 0));
    rig.a.end.submit();
    rig.quiet();
    assert_eq!((rig.a.seen.len(), rig.b.seen.len()), (0, 0));
}

fn appends(rig: &mut Rig<'_>) {
    let before = crate::Completion::Notify { imm: 1 };
    let mut out = vec![before.clone(); 3];
    let id = rig.a.write(0, 0, 8).expect("posts");
    let mut polled = 0;
    while polled == 0 {
        rig.b.poll();
        rig.bed().step();
        polled = rig.a.end.poll(&mut out);
    }
    let local = crate::Completion::Local { id };
    assert_eq!((polled, out), (1, vec![before.clone(), before.clone(), before, local]));
}
