//! Breaches of the contract by its user, and faults of the network.

use super::*;

#[test]
#[should_panic(expected = "changed before its Local completion (G5)")]
fn an_early_reuse_is_found() {
    let net = SimNet::new(SimOptions::seeded(1));
    let (mut a, _b) = pair(&net);
    a.fill(0, 512, 7);
    a.write(0, 512).expect("posts");
    a.memory.store(504, 8, Ordering::Relaxed);
    net.settle();
    a.polled();
}

#[test]
#[should_panic(expected = "changed before its Local completion (G5)")]
fn an_early_reuse_is_found_when_a_later_operation_completes() {
    let net = SimNet::new(SimOptions::seeded(2));
    let (mut a, _b) = pair(&net);
    let (id, dst) = (a.id(), a.dst(0));
    let src = a.memory.range(0..512).expect("in bounds");
    a.end.write(Src::Slab(&src), dst, id, Flags::NONE).expect("posts");
    a.end.submit();
    net.settle();
    a.polled();
    a.memory.store(0, 8, Ordering::Relaxed);
    a.write(1024, 64).expect("posts");
    net.settle();
    a.polled();
}

#[test]
fn a_panic_about_a_breach_leaves_the_net_usable() {
    let net = SimNet::new(SimOptions::seeded(3));
    let (mut a, mut b) = pair(&net);
    a.write(0, 512).expect("posts");
    a.memory.store(0, 8, Ordering::Relaxed);
    net.settle();
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| a.polled().len()));
    assert!(polled.is_err());
    b.notify(4).expect("posts");
    net.settle();
    assert!(a.sees(&Completion::Notify { imm: 4 }));
}

#[test]
fn unwritten_memory_is_poisoned() {
    let poison = u64::from_le_bytes([POISON; 8]);
    let mut met = 0;
    for seed in 0..20 {
        let net = SimNet::new(SimOptions { poison: true, ..SimOptions::seeded(seed) });
        let (mut a, mut b) = pair(&net);
        a.fill(0, 1024, 7);
        a.write(0, 1024).expect("posts");
        a.notify(1).expect("posts");
        let poisoned = |b: &Peer| (0..1024).step_by(8).any(|i| b.holds(i, 8, poison));
        let observed = Completion::Notify { imm: 1 };
        assert!(until(&net, || {
            met += usize::from(poisoned(&b));
            assert!(!b.holds(1016, 8, poison), "the last word is old or new");
            b.sees(&observed)
        }));
        assert!(b.holds(0, 1024, 7));
    }
    assert!(met > 0);
}

/// Writes that outlive their sender land until the receiver closes, and never later.
#[test]
fn zombies_end_at_the_close() {
    let (mut landed_late, mut zombies) = (0, 0);
    for seed in 0..60 {
        let net = SimNet::new(SimOptions::seeded(seed));
        let (mut a, mut b) = pair(&net);
        a.fill(0, 8192, 7);
        a.write(0, 8192).expect("posts");
        let soon = net.now_ns() + 2_000;
        net.advance_to(soon);
        net.kill(0);
        let at_death = count(&b);
        assert!(until(&net, || b.failed()), "the death is noticed");
        let later = net.now_ns() + seed * 100_000;
        net.advance_to(later);
        landed_late += usize::from(count(&b) > at_death);
        zombies += net.stats().zombies;
        b.end.close();
        let at_close = count(&b);
        net.settle();
        assert_eq!(count(&b), at_close, "seed {seed}: a write landed after the close");
    }
    assert!(landed_late > 0 && zombies > 0, "{landed_late} late of {zombies}");

    fn count(peer: &Peer) -> usize {
        (0..8192).step_by(8).filter(|i| peer.holds(*i, 8, 7)).count()
    }
}

#[test]
fn a_killed_node_is_noticed_and_replaced() {
    let net = SimNet::new(SimOptions::seeded(4));
    let (mut a, mut b) = pair(&net);
    let died = net.now_ns();
    net.kill(1);
    assert!(!net.runs(1) && net.runs(0));
    assert_eq!(b.notify(1), Err(PostError::Closed));
    assert!(until(&net, || a.failed()));
    assert!(net.now_ns() - died <= SimOptions::default().detection_ns.end);
    assert!(b.polled().is_empty(), "the dead say nothing");
    assert!(b.fabric.offer(LinkId { local: 1, remote: 0 }).is_err());
    net.restart(1);
    let (mut a, mut b) = pair(&net);
    a.notify(2).expect("posts");
    net.settle();
    assert!(b.sees(&Completion::Notify { imm: 2 }));
}

#[test]
fn a_cut_link_fails_both_ends_until_it_heals() {
    let net = SimNet::new(SimOptions::seeded(5));
    let (mut a, mut b) = pair(&net);
    let (mut c, mut d) = link(&net, 0, 2);
    d.end.post_recvs(1);
    net.settle();
    net.cut(1, 0);
    a.notify(1).expect("the cut is not known yet");
    net.settle();
    assert!(a.failed() && b.failed());
    assert!(!b.sees(&Completion::Notify { imm: 1 }));
    let (mut a, mut b) = link(&net, 0, 1);
    net.settle();
    assert!(a.failed() && b.failed(), "still cut");
    c.notify(3).expect("another link is not concerned");
    net.heal(0, 1);
    let (mut a, mut b) = pair(&net);
    a.notify(2).expect("posts");
    net.settle();
    assert!(b.sees(&Completion::Notify { imm: 2 }));
    assert!(d.sees(&Completion::Notify { imm: 3 }));
}

#[test]
fn a_paused_node_is_written_to_but_does_not_run() {
    let net = SimNet::new(SimOptions::seeded(6));
    let (mut a, mut b) = pair(&net);
    a.fill(0, 64, 7);
    a.write(0, 64).expect("posts");
    a.notify(1).expect("posts");
    let until_ns = net.now_ns() + 1_000_000;
    net.pause(1, 1_000_000);
    net.advance_to(until_ns - 1);
    assert!(!net.runs(1));
    assert!(b.holds(0, 64, 7), "its memory is open");
    assert!(b.polled().is_empty());
    assert!(net.step(), "the end of the pause is an event");
    assert_eq!(net.now_ns(), until_ns);
    assert!(net.runs(1) && b.sees(&Completion::Notify { imm: 1 }));
}

/// Whichever operation breaks the connection, each of them ends exactly once.
#[test]
fn any_operation_may_break_its_connection() {
    for fail_at in 0..10 {
        for seed in 0..10 {
            let options = SimOptions { fail_at: Some(fail_at), ..SimOptions::seeded(seed) };
            let net = SimNet::new(options);
            let (mut a, mut b) = pair(&net);
            let ids: Vec<_> = (0..10).map(|i| a.write(i * 64, 64).expect("posts")).collect();
            net.settle();
            assert!(b.failed());
            let ended = |id: OpId, seen: &[Completion]| {
                let of_it = |c: &&Completion| match c {
                    Completion::Local { id: it } => *it == id,
                    Completion::Error { id: it, .. } => *it == Some(id),
                    _ => false,
                };
                seen.iter().filter(of_it).count()
            };
            let seen = a.polled().clone();
            assert!(ids.iter().all(|id| ended(*id, &seen) == 1), "{seen:?}");
            let kind = ErrorKind::Disconnected;
            let culprit = Completion::Error { id: Some(ids[fail_at as usize]), kind };
            assert!(seen.contains(&culprit), "{seen:?}");
            assert_eq!(seen.len(), 10);
        }
    }
}

#[test]
fn a_kept_notice_is_kept_through_the_end_of_its_connection() {
    for seed in 0..60 {
        let net = SimNet::new(SimOptions::seeded(seed));
        let (mut a, mut b) = pair(&net);
        a.fill(0, 4096, 7);
        a.write(0, 4096).expect("posts");
        a.notify(1).expect("posts");
        let soon = net.now_ns() + 1_000 * (seed % 15);
        net.advance_to(soon);
        match seed % 3 {
            0 => net.kill(0),
            1 => net.cut(0, 1),
            _ => a.end.close(),
        }
        let later = net.now_ns() + 10_000_000;
        net.advance_to(later);
        if b.sees(&Completion::Notify { imm: 1 }) {
            assert!(b.holds(0, 4096, 7), "seed {seed}");
        }
    }
}
