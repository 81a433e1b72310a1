//! Sleeping: an armed end is woken.

use super::rig::RECVS;
use super::{Case, Rig};
use crate::{Armed, Budget, Completion};

pub(super) const CASES: &[Case] = &[
    Case { name: "an armed end is woken by a notice", clause: "arm", check: woken },
    Case { name: "no wake-up is lost", clause: "arm", check: none_lost },
    Case { name: "news before the arm are ready or wake", clause: "arm", check: before },
    Case { name: "an idle end can sleep", clause: "arm", check: sleeps },
    Case { name: "who has no receives left is woken by one", clause: "arm", check: allowed },
];

/// Waits as a worker would: by the descriptor, and then by polling.
fn sleep_until(rig: &mut Rig<'_>, armed: Armed, events: impl FnMut(&mut Rig<'_>) -> bool) {
    if let Armed::Fd(fd) = armed {
        assert!(rig.bed().readable(fd), "the sleeper was not woken");
    }
    rig.until("the news", events);
}

/// Turns until `b` has nothing to say and can sleep.
fn lull(rig: &mut Rig<'_>) -> Armed {
    let mut armed = Armed::Ready;
    rig.until("the end can sleep", |rig| {
        armed = rig.b.end.arm();
        armed != Armed::Ready
    });
    armed
}

fn woken(rig: &mut Rig<'_>) {
    let armed = lull(rig);
    rig.a.notify(1).expect("posts");
    sleep_until(rig, armed, |rig| rig.b.take(&Completion::Notify { imm: 1 }));
}

fn none_lost(rig: &mut Rig<'_>) {
    for round in 0..100 {
        // To wait for room with the end asleep would be to wake it.
        rig.until("there is room", |rig| {
            let Budget { ops, notices } = rig.a.end.budget();
            ops > 0 && notices > 0
        });
        let armed = lull(rig);
        if round % 2 == 0 {
            rig.a.notify(round).expect("posts");
            sleep_until(rig, armed, |rig| rig.b.take(&Completion::Notify { imm: round }));
        } else {
            let bytes = round.to_le_bytes().to_vec();
            rig.a.send(&bytes).expect("posts");
            sleep_until(rig, armed, |rig| rig.b.take(&Completion::Recv { bytes: bytes.clone() }));
        }
        rig.b.allow(1);
    }
}

fn before(rig: &mut Rig<'_>) {
    for round in 0..50 {
        rig.post(|rig| rig.a.notify(round));
        for _ in 0..round % 5 {
            rig.bed().step();
        }
        let armed = rig.b.end.arm();
        sleep_until(rig, armed, |rig| rig.b.take(&Completion::Notify { imm: round }));
        rig.b.allow(1);
    }
}

fn sleeps(rig: &mut Rig<'_>) {
    rig.publish(0, 0, 64, 1);
    lull(rig);
    rig.until("the sender can sleep", |rig| rig.a.end.arm() != Armed::Ready);
}

fn allowed(rig: &mut Rig<'_>) {
    for imm in 0..RECVS {
        rig.post(|rig| rig.a.notify(imm));
        rig.notice(imm);
    }
    for round in 0..50 {
        assert_eq!(rig.a.end.budget().notices, 0);
        rig.b.allow(1);
        for _ in 0..round % 5 {
            rig.bed().step();
        }
        let armed = rig.a.end.arm();
        if rig.a.end.budget().notices == 0 {
            // Telling of receives may take the other end some turns of its own.
            while rig.b.end.arm() == Armed::Ready {
                rig.b.poll();
                rig.bed().step();
            }
            sleep_until(rig, armed, |rig| rig.a.end.budget().notices > 0);
        }
        rig.post(|rig| rig.a.notify(round));
        rig.notice(round);
    }
}
