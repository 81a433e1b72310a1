//! Remote atomics, where there are any.

use std::sync::atomic::Ordering;

use super::{Case, ConnectionEnd, Rig};
use crate::{Atomics, Completion, OpId, PostError};

pub(super) const CASES: &[Case] = &[
    Case { name: "an addition returns the old value", clause: "fetch_add", check: adds },
    Case { name: "an addition wraps", clause: "fetch_add", check: wraps },
    Case { name: "a swap takes place when it matches", clause: "compare_swap", check: swaps },
    Case { name: "a swap is refused a mismatch", clause: "compare_swap", check: mismatch },
    Case { name: "additions of two links are atomic", clause: "G6", check: two_links },
    Case { name: "a misaligned word is refused", clause: "fetch_add", check: misaligned },
    Case { name: "a word beyond the range is refused", clause: "fetch_add", check: outside },
];

const OLD: usize = 64;

fn add(side: &mut ConnectionEnd, at: usize, n: u64, old: usize) -> Result<OpId, PostError> {
    let (id, dst, old) = (side.id(), side.at(at), side.range(old, 8));
    side.end.fetch_add(dst, n, &old, id)?;
    side.end.submit();
    Ok(id)
}

fn swap(side: &mut ConnectionEnd, at: usize, expect: u64, new: u64) -> Result<OpId, PostError> {
    let (id, dst, old) = (side.id(), side.at(at), side.range(OLD, 8));
    side.end.compare_swap(dst, expect, new, &old, id)?;
    side.end.submit();
    Ok(id)
}

/// True when there are atomics; otherwise both are refused as the contract says.
fn offered(rig: &mut Rig<'_>) -> bool {
    if rig.caps().atomics != Atomics::None {
        return true;
    }
    assert_eq!(add(&mut rig.a, 0, 1, OLD), Err(PostError::Unsupported));
    assert_eq!(swap(&mut rig.a, 0, 1, 2), Err(PostError::Unsupported));
    false
}

fn adds(rig: &mut Rig<'_>) {
    if !offered(rig) {
        return;
    }
    rig.b.memory.store(128, 40, Ordering::Release);
    for round in 0..20 {
        let id = add(&mut rig.a, 128, 2, OLD).expect("posts");
        rig.local(id);
        assert_eq!(rig.a.memory.load(OLD, Ordering::Acquire), 40 + 2 * round);
    }
    assert_eq!(rig.b.memory.load(128, Ordering::Acquire), 80);
}

fn wraps(rig: &mut Rig<'_>) {
    if !offered(rig) {
        return;
    }
    rig.b.memory.store(8, u64::MAX, Ordering::Release);
    let id = add(&mut rig.a, 8, 3, OLD).expect("posts");
    rig.local(id);
    assert_eq!(rig.b.memory.load(8, Ordering::Acquire), 2);
}

fn swaps(rig: &mut Rig<'_>) {
    if !offered(rig) {
        return;
    }
    rig.b.memory.store(0, 5, Ordering::Release);
    let id = swap(&mut rig.a, 0, 5, 6).expect("posts");
    rig.local(id);
    assert_eq!(rig.a.memory.load(OLD, Ordering::Acquire), 5);
    assert_eq!(rig.b.memory.load(0, Ordering::Acquire), 6);
}

fn mismatch(rig: &mut Rig<'_>) {
    if !offered(rig) {
        return;
    }
    rig.b.memory.store(0, 7, Ordering::Release);
    let id = swap(&mut rig.a, 0, 5, 6).expect("posts");
    rig.local(id);
    assert_eq!(rig.a.memory.load(OLD, Ordering::Acquire), 7);
    assert_eq!(rig.b.memory.load(0, Ordering::Acquire), 7);
}

fn two_links(rig: &mut Rig<'_>) {
    if !offered(rig) {
        return;
    }
    let other = rig.another();
    let whole = rig.b.range(0, super::rig::MEMORY);
    let (link, peer) = &mut rig.others[other];
    link.peer = peer.end.export(&whole).expect("a slab serves two links");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for i in 0..20 {
        ours.push(rig.post(|rig| add(&mut rig.a, 256, 1, 8 * i)));
        theirs.push(rig.post(|rig| add(&mut rig.others[other].0, 256, 1, 8 * i)));
    }
    for (here, there) in ours.into_iter().zip(theirs) {
        rig.local(here);
        let done = Completion::Local { id: there };
        rig.until("Local", |rig| rig.others[other].0.take(&done));
    }
    let word = |side: &ConnectionEnd, i: usize| side.memory.load(8 * i, Ordering::Acquire);
    let link = &rig.others[other].0;
    let mut seen: Vec<u64> = (0..20).flat_map(|i| [word(&rig.a, i), word(link, i)]).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
}

fn misaligned(rig: &mut Rig<'_>) {
    if offered(rig) {
        assert_eq!(add(&mut rig.a, 4, 1, OLD), Err(PostError::OutOfBounds));
        assert_eq!(add(&mut rig.a, 0, 1, OLD + 4), Err(PostError::OutOfBounds), "the old value's");
    }
}

fn outside(rig: &mut Rig<'_>) {
    if offered(rig) {
        let posted = add(&mut rig.a, super::rig::MEMORY, 1, OLD);
        rig.refused(posted);
    }
}
