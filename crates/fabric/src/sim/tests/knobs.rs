//! For each promise a protocol that is right with it and, for some seed, wrong without it.

use super::*;

const SEEDS: u64 = 60;

/// The protocol is never wrong on a net that keeps the contract, and sometimes on one that drops
/// the given promise.
fn needs(options: SimOptions, drop: impl Fn(&mut Guarantees), wrong: impl Fn(&SimNet) -> bool) {
    let wrong_at = |options: &SimOptions| {
        let net = |seed| SimNet::new(SimOptions { seed, ..options.clone() });
        (0..SEEDS).filter(|seed| wrong(&net(*seed))).count()
    };
    assert_eq!(wrong_at(&options), 0, "wrong although every promise is kept");
    let mut without = options.clone();
    drop(&mut without.keep);
    assert_ne!(without.keep, options.keep);
    assert!(wrong_at(&without) > 0, "the knob makes no difference");
}

#[test]
fn a_counter_needs_whole_words() {
    let torn = |net: &SimNet| {
        let (mut a, b) = pair(net);
        a.fill(0, 64, u64::MAX);
        a.write(0, 64).expect("posts");
        let mut torn = false;
        until(net, || {
            let word = b.memory.load(8, Ordering::Acquire);
            torn |= word != 0 && word != u64::MAX;
            false
        });
        torn
    };
    needs(SimOptions::default(), |keep| keep.whole_words = false, torn);
}

#[test]
fn a_commit_word_needs_placement_in_order() {
    let early = |net: &SimNet| {
        let (mut a, b) = pair(net);
        a.fill(0, 1024, 7);
        a.write(0, 1024).expect("posts");
        assert!(until(net, || b.memory.load(1016, Ordering::Acquire) == 7));
        !b.holds(0, 1024, 7)
    };
    let options = SimOptions { publish: Publish::InOrderPoll, ..SimOptions::default() };
    needs(options, |keep| keep.in_order_poll = false, early);
}

#[test]
fn a_notice_needs_to_release() {
    let early = |net: &SimNet| {
        let (mut a, mut b) = pair(net);
        a.fill(0, 4096, 7);
        a.write(0, 4096).expect("posts");
        a.notify(1).expect("posts");
        assert!(until(net, || b.sees(&Completion::Notify { imm: 1 })));
        !b.holds(0, 4096, 7)
    };
    needs(SimOptions::default(), |keep| keep.notify_releases = false, early);
}

#[test]
fn a_source_needs_local_before_reuse() {
    let mixed = |net: &SimNet| {
        let (mut a, mut b) = pair(net);
        a.fill(0, 4096, 7);
        let id = a.write(0, 4096).expect("posts");
        assert!(until(net, || a.sees(&Completion::Local { id })));
        a.fill(0, 4096, 8);
        a.notify(1).expect("posts");
        assert!(until(net, || b.sees(&Completion::Notify { imm: 1 })));
        !b.holds(0, 4096, 7)
    };
    needs(SimOptions::default(), |keep| keep.local_means_reusable = false, mixed);
}

#[test]
fn retiring_by_the_last_needs_ordered_completions() {
    let early = |net: &SimNet| {
        let (mut a, _b) = pair(net);
        let ids: Vec<_> = (0..8).map(|i| a.write(i * 64, 64).expect("posts")).collect();
        let last = Completion::Local { id: ids[7] };
        assert!(until(net, || a.sees(&last)));
        ids.iter().any(|id| !a.seen.contains(&Completion::Local { id: *id }))
    };
    needs(SimOptions::default(), |keep| keep.ordered_completions = false, early);
}

#[test]
fn reading_back_needs_the_fence() {
    let stale = |net: &SimNet| {
        let (mut a, _b) = pair(net);
        a.fill(0, 512, 7);
        a.write(0, 512).expect("posts");
        let (id, src) = (a.id(), a.dst(0));
        let dst = a.memory.range(4096..4608).expect("in bounds");
        a.end.read(&dst, src, id, Flags::FENCE | Flags::SIGNAL).expect("posts");
        a.end.submit();
        assert!(until(net, || a.sees(&Completion::Local { id })));
        !a.holds(4096, 512, 7)
    };
    needs(SimOptions::default(), |keep| keep.fence = false, stale);
}

#[test]
fn taking_memory_back_needs_the_close() {
    let changed = |net: &SimNet| {
        let (mut a, mut b) = pair(net);
        a.fill(0, 4096, 7);
        a.write(0, 4096).expect("posts");
        let soon = net.now_ns() + 3_000;
        net.advance_to(soon);
        a.end.close();
        b.end.close();
        b.fill(0, 4096, 9);
        net.settle();
        !b.holds(0, 4096, 9)
    };
    needs(SimOptions::default(), |keep| keep.stop_after_close = false, changed);
}

#[test]
fn taking_a_range_back_needs_the_revoke() {
    let changed = |net: &SimNet| {
        let (mut a, mut b) = pair(net);
        a.fill(0, 4096, 7);
        a.write(0, 4096).expect("posts");
        let soon = net.now_ns() + 3_000;
        net.advance_to(soon);
        b.end.revoke(a.key);
        b.fill(0, 4096, 9);
        net.settle();
        !b.holds(0, 4096, 9)
    };
    needs(SimOptions::default(), |keep| keep.stop_after_close = false, changed);
}

#[test]
fn giving_published_memory_out_anew_needs_the_unpublish() {
    let mixed = |net: &SimNet| {
        let (mut a, b) = pair(net);
        b.fill(0, 4096, 7);
        let range = b.memory.range(0..4096).expect("in bounds");
        let key = b.fabric.publish(&range).expect("own memory");
        let (id, dst) = (a.id(), a.memory.range(0..4096).expect("in bounds"));
        let src = RemoteRange { key, offset: 0 };
        a.end.read(&dst, src, id, Flags::SIGNAL).expect("posts");
        a.end.submit();
        let soon = net.now_ns() + 3_000;
        net.advance_to(soon);
        b.fabric.unpublish(key);
        b.fill(0, 4096, 9);
        net.settle();
        a.end.poll(&mut a.seen);
        a.seen.contains(&Completion::Local { id }) && !a.holds(0, 4096, 7)
    };
    needs(SimOptions::default(), |keep| keep.stop_after_close = false, mixed);
}

#[test]
fn a_sender_without_credits_needs_the_budget() {
    let broken = |net: &SimNet| {
        let (mut a, mut b) = link(net, 0, 1);
        b.end.post_recvs(4);
        net.settle();
        let mut sent = 0;
        until(net, || {
            while sent < 8 && a.notify(sent).is_ok() {
                sent += 1;
            }
            a.failed()
        });
        let not_ready = ErrorKind::ReceiverNotReady;
        let culprit =
            |c: &Completion| matches!(c, Completion::Error { kind, .. } if *kind == not_ready);
        let broke = a.seen.iter().any(culprit);
        assert!(broke || (sent == 4 && !b.failed()));
        broke
    };
    needs(SimOptions::default(), |keep| keep.receive_budget = false, broken);
}

#[test]
fn a_dialogue_needs_messages_in_order() {
    let swapped = |net: &SimNet| {
        let (mut a, mut b) = pair(net);
        for i in 0..8 {
            a.end.send(&[i], OpId(u64::from(i))).expect("posts");
        }
        a.end.submit();
        net.settle();
        let sent: Vec<_> = (0..8).map(|i| Completion::Recv { bytes: vec![i] }).collect();
        *b.polled() != sent
    };
    needs(SimOptions::default(), |keep| keep.sends_in_order = false, swapped);
}

/// Everything that is not promised does happen, so that no caller comes to rely on it.
fn happens(options: SimOptions, seen: impl Fn(&SimNet) -> bool) {
    let net = |seed| SimNet::new(SimOptions { seed, ..options.clone() });
    let count = (0..SEEDS).filter(|seed| seen(&net(*seed))).count();
    assert!(count > 0 && count < SEEDS as usize, "{count} of {SEEDS} seeds");
}

#[test]
fn local_says_nothing_of_the_target() {
    happens(SimOptions::default(), |net| {
        let (mut a, b) = pair(net);
        a.fill(0, 512, 7);
        let id = a.write(0, 512).expect("posts");
        assert!(until(net, || a.sees(&Completion::Local { id })));
        !b.holds(0, 512, 7)
    });
}

#[test]
fn writes_overtake_writes() {
    happens(SimOptions { publish: Publish::InOrderPoll, ..SimOptions::default() }, |net| {
        let (mut a, b) = pair(net);
        a.fill(0, 128, 7);
        a.write(0, 64).expect("posts");
        a.write(64, 64).expect("posts");
        assert!(until(net, || b.memory.load(120, Ordering::Acquire) == 7));
        !b.holds(0, 64, 7)
    });
}

#[test]
fn notices_overtake_notices() {
    happens(SimOptions::default(), |net| {
        let (mut a, mut b) = pair(net);
        a.notify(1).expect("posts");
        a.notify(2).expect("posts");
        net.settle();
        b.polled()[0] == Completion::Notify { imm: 2 }
    });
}

#[test]
fn a_counted_notice_says_nothing_of_other_writes() {
    happens(SimOptions { publish: Publish::NotifyCounted, ..SimOptions::default() }, |net| {
        let (mut a, mut b) = pair(net);
        a.fill(0, 64, 7);
        a.write(0, 64).expect("posts");
        a.notify(1).expect("posts");
        assert!(until(net, || b.sees(&Completion::Notify { imm: 1 })));
        !b.holds(0, 64, 7)
    });
}

#[test]
fn a_message_says_nothing_of_writes() {
    happens(SimOptions { placement_ns: 0..5_000, ..SimOptions::default() }, |net| {
        let (mut a, mut b) = pair(net);
        a.fill(0, 64, 7);
        a.write(0, 64).expect("posts");
        a.end.send(b"done", OpId(99)).expect("posts");
        a.end.submit();
        assert!(until(net, || b.sees(&Completion::Recv { bytes: b"done".to_vec() })));
        !b.holds(0, 64, 7)
    });
}

#[test]
fn a_read_tears() {
    happens(SimOptions::default(), |net| {
        let (mut a, mut b) = pair(net);
        let (id, src) = (a.id(), a.dst(0));
        let dst = a.memory.range(0..1024).expect("in bounds");
        a.end.read(&dst, src, id, Flags::SIGNAL).expect("posts");
        a.end.submit();
        let soon = net.now_ns() + 4_000;
        net.advance_to(soon);
        b.fill(0, 1024, 7);
        b.polled();
        assert!(until(net, || a.sees(&Completion::Local { id })));
        !a.holds(0, 1024, 7) && !a.holds(0, 1024, 0)
    });
}
