//! Writes: which bytes arrive, where, and when the sender may rely on it.

use std::sync::atomic::Ordering;

use super::rig::MEMORY;
use super::{Case, Rig, pattern};
use crate::{Completion, Flags, PostError, Publish, Src};

pub(super) const CASES: &[Case] = &[
    Case { name: "a write arrives whole", clause: "write", check: arrives },
    Case { name: "a write changes nothing beside its range", clause: "write", check: stays_inside },
    Case { name: "an unaligned write arrives", clause: "write", check: unaligned },
    Case { name: "a write goes in both directions", clause: "write", check: both_ways },
    Case { name: "a later write replaces an earlier one", clause: "write", check: replaces },
    Case { name: "an inline source may change at once", clause: "Src::Inline", check: inline },
    Case { name: "the inline limit is exact", clause: "max_inline", check: inline_limit },
    Case { name: "the largest write arrives", clause: "max_msg", check: largest },
    Case { name: "a write above the limit is refused", clause: "max_msg", check: too_large },
    Case { name: "an empty write completes", clause: "Src::Empty", check: empty },
    Case { name: "a source may change after Local", clause: "G5", check: reusable },
    Case { name: "each signalled write completes once", clause: "SIGNAL", check: once },
    Case { name: "an unsignalled write is silent", clause: "SIGNAL", check: unsignalled },
    Case { name: "ordered completions are in order", clause: "G5", check: ordered },
    Case { name: "several posts start with one submit", clause: "MORE", check: one_submit },
    Case { name: "a word is old or new", clause: "G1", check: whole_words },
    Case { name: "the last word comes last", clause: "G2", check: last_word },
    Case { name: "the last whole word comes last", clause: "G2", check: last_word_with_tail },
];

fn arrives(rig: &mut Rig<'_>) {
    rig.a.fill(0, 4096, 1);
    rig.publish(0, 8192, 4096, 7);
    assert_eq!(rig.b.get(8192, 4096), pattern(1, 4096));
}

fn stays_inside(rig: &mut Rig<'_>) {
    rig.b.fill(0, 512, 2);
    rig.a.fill(0, 128, 3);
    rig.publish(0, 192, 128, 1);
    let mut expected = pattern(2, 512);
    expected[192..320].copy_from_slice(&pattern(3, 128));
    assert_eq!(rig.b.get(0, 512), expected);
}

fn unaligned(rig: &mut Rig<'_>) {
    let shapes = [(3, 5, 1), (1, 7, 9), (6, 65, 131), (0, 1001, 777), (5, 5, 2), (8, 4, 12)];
    for (imm, (from, to, len)) in (0..).zip(shapes) {
        rig.b.fill(0, 2048, 4);
        rig.a.fill(from, len, 5);
        rig.publish(from, to, len, imm);
        let mut expected = pattern(4, 2048);
        expected[to..to + len].copy_from_slice(&pattern(5, len));
        assert_eq!(rig.b.get(0, 2048), expected, "{len} bytes to {to}");
    }
}

fn both_ways(rig: &mut Rig<'_>) {
    rig.a.fill(0, 256, 6);
    rig.b.fill(0, 256, 7);
    rig.a.write_notify(0, 1024, 256, 1).expect("posts");
    rig.b.write_notify(0, 1024, 256, 2).expect("posts");
    rig.notice(1);
    rig.until("Notify", |rig| rig.a.take(&Completion::Notify { imm: 2 }));
    assert_eq!(rig.b.get(1024, 256), pattern(6, 256));
    assert_eq!(rig.a.get(1024, 256), pattern(7, 256));
}

fn replaces(rig: &mut Rig<'_>) {
    for round in 0..20 {
        rig.a.fill(0, 640, u64::from(round));
        rig.publish(0, 64, 640, round);
        assert_eq!(rig.b.get(64, 640), pattern(u64::from(round), 640));
    }
}

fn inline(rig: &mut Rig<'_>) {
    let len = rig.caps().max_inline.min(64);
    let (id, dst) = (rig.a.id(), rig.a.at(64));
    let mut bytes = pattern(8, len);
    rig.a.end.write_notify(Src::Inline(&bytes), dst, 9, id, Flags::SIGNAL).expect("posts");
    bytes.fill(0xee);
    rig.a.end.submit();
    rig.notice(9);
    assert_eq!(rig.b.get(64, len), pattern(8, len));
    rig.local(id);
}

fn inline_limit(rig: &mut Rig<'_>) {
    let most = rig.caps().max_inline;
    let bytes = pattern(9, most + 1);
    let (id, dst) = (rig.a.id(), rig.a.at(0));
    let over = rig.a.end.write(Src::Inline(&bytes), dst, id, Flags::SIGNAL);
    assert_eq!(over, Err(PostError::TooLarge));
    rig.a.end.write_notify(Src::Inline(&bytes[..most]), dst, 1, id, Flags::SIGNAL).expect("posts");
    rig.a.end.submit();
    rig.notice(1);
    assert_eq!(rig.b.get(0, most), bytes[..most]);
    rig.local(id);
}

fn largest(rig: &mut Rig<'_>) {
    let len = rig.caps().max_msg.min(MEMORY);
    rig.a.fill(0, len, 10);
    rig.publish(0, 0, len, 1);
    assert!(rig.b.get(0, len) == pattern(10, len), "{len} bytes differ");
}

/// Above this limit the case would need more memory than it is worth.
const LIMIT_TRIED_MAX: usize = 16 << 20;

fn too_large(rig: &mut Rig<'_>) {
    let most = rig.caps().max_msg;
    assert!(most >= 4096, "a write carries a page at least");
    if most > LIMIT_TRIED_MAX {
        return;
    }
    let ours = rig.a.fabric.slab(most + 8).expect("a slab");
    let theirs = rig.b.fabric.slab(most + 8).expect("a slab");
    let all = |slab: &crate::Slab| slab.range(0..most + 8).expect("in bounds");
    let key = rig.b.end.export(&all(&theirs)).expect("exports");
    let (src, dst) = (all(&ours), crate::RemoteRange { key, offset: 0 });
    let id = rig.a.id();
    let write = rig.a.end.write(Src::Slab(&src), dst, id, Flags::SIGNAL);
    assert_eq!(write, Err(PostError::TooLarge));
    assert_eq!(rig.a.end.read(&src, dst, id, Flags::SIGNAL), Err(PostError::TooLarge));
}

fn empty(rig: &mut Rig<'_>) {
    rig.b.fill(0, 64, 11);
    let (id, dst) = (rig.a.id(), rig.a.at(0));
    rig.a.end.write(Src::Empty, dst, id, Flags::SIGNAL).expect("posts");
    rig.a.end.submit();
    rig.local(id);
    let id = rig.a.write(0, 0, 0).expect("posts");
    rig.local(id);
    assert_eq!(rig.b.get(0, 64), pattern(11, 64));
}

fn reusable(rig: &mut Rig<'_>) {
    for round in 0..50 {
        rig.a.fill(0, 512, u64::from(round));
        let id = rig.post(|rig| rig.a.write_notify(0, 512, 512, round));
        rig.local(id);
        rig.a.fill(0, 512, 1_000);
        rig.notice(round);
        assert_eq!(rig.b.get(512, 512), pattern(u64::from(round), 512));
        rig.b.allow(1);
    }
}

fn once(rig: &mut Rig<'_>) {
    let ids: Vec<_> = (0..100).map(|_| rig.post(|rig| rig.a.write(0, 0, 64))).collect();
    rig.until("all complete", |rig| ids.iter().all(|id| rig.a.settled(*id)));
    rig.quiet();
    for id in ids {
        assert_eq!(rig.a.outcomes(id), (1, 0));
    }
}

fn unsignalled(rig: &mut Rig<'_>) {
    let (src, dst) = (rig.a.range(0, 64), rig.a.at(0));
    for _ in 0..3 {
        let id = rig.a.id();
        rig.a.end.write(Src::Slab(&src), dst, id, Flags::NONE).expect("posts");
    }
    let id = rig.a.write(0, 0, 64).expect("posts");
    rig.local(id);
    let all = rig.caps().max_ops;
    rig.until("the silent ones are retired too", |rig| rig.a.end.budget().ops == all);
    rig.quiet();
    assert_eq!(rig.a.seen, [], "nothing but the signalled completion");
}

fn ordered(rig: &mut Rig<'_>) {
    let ids: Vec<_> = (0..100).map(|_| rig.post(|rig| rig.a.write(0, 0, 8))).collect();
    rig.until("all complete", |rig| ids.iter().all(|id| rig.a.settled(*id)));
    let local = |c: &Completion| match c {
        Completion::Local { id } => Some(*id),
        _ => None,
    };
    let mut seen: Vec<_> = rig.a.seen.iter().filter_map(local).collect();
    if !rig.caps().ordered_completions {
        seen.sort_unstable();
    }
    assert_eq!(seen, ids);
}

fn one_submit(rig: &mut Rig<'_>) {
    rig.a.fill(0, 320, 12);
    for i in 0..5 {
        let (id, src, dst) = (rig.a.id(), rig.a.range(i * 64, 64), rig.a.at(i * 64));
        let (imm, flags) = (i as u32, Flags::SIGNAL | Flags::MORE);
        rig.a.end.write_notify(Src::Slab(&src), dst, imm, id, flags).expect("posts");
    }
    rig.a.end.submit();
    for imm in 0..5 {
        rig.notice(imm);
    }
    assert_eq!(rig.b.get(0, 320), pattern(12, 320));
}

fn whole_words(rig: &mut Rig<'_>) {
    let (old, new) = (0x1111_2222_3333_4444, 0xaaaa_bbbb_cccc_dddd);
    for round in 0..40 {
        for word in 0..32 {
            rig.b.memory.store(word * 8, old, Ordering::Relaxed);
            rig.a.memory.store(word * 8, new, Ordering::Relaxed);
        }
        let id = rig.post(|rig| rig.a.write_notify(0, 0, 256, round));
        let notice = Completion::Notify { imm: round };
        rig.until("Notify", |rig| {
            for word in 0..32 {
                let seen = rig.b.memory.load(word * 8, Ordering::Acquire);
                assert!(seen == old || seen == new, "a torn word: {seen:x}");
            }
            rig.b.take(&notice)
        });
        rig.local(id);
        rig.b.allow(1);
    }
}

fn last_word(rig: &mut Rig<'_>) {
    appears_last(rig, 1024);
}

fn last_word_with_tail(rig: &mut Rig<'_>) {
    appears_last(rig, 1029);
}

/// Watches the last whole word of a write, where the transport promises that it comes last, or else
/// the notice.
fn appears_last(rig: &mut Rig<'_>, len: usize) {
    let in_order = rig.caps().publish == Publish::InOrderPoll;
    let last = 4096 + (len & !7) - 8;
    for round in 1..60_u32 {
        rig.a.fill(0, len, u64::from(round));
        let expected = pattern(u64::from(round), len);
        rig.b.set(4096, &vec![0; len]);
        let id = rig.post(|rig| rig.a.write_notify(0, 4096, len, round));
        let notice = Completion::Notify { imm: round };
        rig.until("the last word", |rig| {
            let word = rig.b.memory.load(last, Ordering::Acquire).to_le_bytes();
            let there = word[..] == expected[last - 4096..last - 4088];
            there && (in_order || rig.b.take(&notice))
        });
        assert_eq!(rig.b.get(4096, len), expected, "round {round}");
        rig.local(id);
        if in_order {
            rig.notice(round);
        }
        rig.b.allow(1);
    }
}
