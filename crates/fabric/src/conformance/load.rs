//! Load: much at a time, in both directions, against a model.

use super::rig::{MEMORY, RECVS};
use super::{Case, Rig, pattern};
use crate::{Completion, PostError};

pub(super) const CASES: &[Case] = &[
    Case { name: "both directions at once do not block", clause: "load", check: both_ways },
    Case { name: "large transfers arrive whole", clause: "load", check: large },
    Case { name: "a receiver that sleeps misses nothing", clause: "load", check: parked },
    Case { name: "a random mix equals the model", clause: "load", check: mix },
];

fn both_ways(rig: &mut Rig<'_>) {
    const EACH: u32 = 600;
    let (mut posted, mut arrived) = ([0; 2], [0; 2]);
    let len = rig.caps().max_msg.min(8192);
    rig.until("all arrived", |rig| {
        for (i, side) in [&mut rig.a, &mut rig.b].into_iter().enumerate() {
            while posted[i] < EACH {
                match side.write_notify(0, 16_384, len, posted[i]) {
                    Ok(_) => posted[i] += 1,
                    Err(PostError::Full) => break,
                    Err(other) => panic!("cannot post: {other}"),
                }
            }
            let notices =
                side.seen.iter().filter(|c| matches!(c, Completion::Notify { .. })).count() as u32;
            arrived[i] += notices;
            side.seen.clear();
            if notices > 0 {
                side.allow(notices);
            }
        }
        arrived == [EACH; 2]
    });
}

fn large(rig: &mut Rig<'_>) {
    let len = rig.caps().max_msg.min(MEMORY / 2);
    for round in 0..12_u32 {
        let seed = u64::from(round);
        rig.a.fill(0, len, seed);
        rig.publish(0, MEMORY / 2, len, round);
        assert!(rig.b.get(MEMORY / 2, len) == pattern(seed, len), "round {round} differs");
    }
}

fn parked(rig: &mut Rig<'_>) {
    rig.a.fill(0, RECVS as usize * 128, 1);
    let mut sent = 0;
    while sent < RECVS {
        let at = sent as usize * 128;
        match rig.a.write_notify(at, at, 128, sent) {
            Ok(_) => sent += 1,
            Err(PostError::Full) => {
                // The receiver sleeps for as long as the sender's queue allows.
                rig.turn();
            }
            Err(other) => panic!("cannot post: {other}"),
        }
        rig.a.poll();
        rig.bed().step();
    }
    (0..RECVS).for_each(|imm| rig.notice(imm));
    assert_eq!(rig.b.get(0, RECVS as usize * 128), pattern(1, RECVS as usize * 128));
}

/// Writes of random shapes to places that do not overlap within a round, then a look at all of
/// `b`'s memory.
fn mix(rig: &mut Rig<'_>) {
    const PLACES: usize = 32;
    const PLACE: usize = 2048;
    let mut model = vec![0; PLACES * PLACE];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % n
    };
    for round in 0..12 {
        rig.a.fill(0, PLACES * PLACE, round);
        let source = pattern(round, PLACES * PLACE);
        let mut ids = Vec::new();
        for place in 0..PLACES {
            let (from, len) = (next(PLACES * PLACE - PLACE), 1 + next(PLACE));
            let to = place * PLACE + next(PLACE - len + 1);
            ids.push(rig.post(|rig| rig.a.write_notify(from, to, len, place as u32)));
            model[to..to + len].copy_from_slice(&source[from..from + len]);
        }
        (0..PLACES as u32).for_each(|imm| rig.notice(imm));
        rig.b.allow(PLACES as u32);
        assert!(rig.b.get(0, PLACES * PLACE) == model, "round {round} differs from the model");
        rig.until("Local", |rig| ids.iter().all(|id| rig.a.settled(*id)));
    }
}
