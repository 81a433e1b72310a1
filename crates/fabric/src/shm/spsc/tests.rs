use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{Entry, Receiver, Sender, SpscMemory};

#[derive(Default)]
struct Words {
    entries: [AtomicU64; 4],
    limit: AtomicU64,
    touched: AtomicU64,
    asleep: AtomicU64,
}

impl SpscMemory for Words {
    type Word = AtomicU64;
    const ENTRIES: u64 = 4;

    fn entry(&self, index: usize) -> &AtomicU64 {
        &self.entries[index]
    }

    fn limit(&self) -> &AtomicU64 {
        &self.limit
    }

    fn touched(&self) -> &AtomicU64 {
        &self.touched
    }

    fn asleep(&self) -> &AtomicU64 {
        &self.asleep
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

#[test]
fn entries_keep_their_order_over_more_laps_than_an_entry_can_count() {
    let (words, mut tx, mut rx) = (Words::default(), Sender::default(), Receiver::default());
    for position in 0..4 * 70_000_u32 {
        rx.grant(&words, 1);
        assert!(tx.ready(&words));
        let entry = match position % 3 {
            0 => Entry::Message((position % 1025) as u16),
            _ => Entry::Notice(position.wrapping_mul(0x9e37_79b9)),
        };
        tx.push(&words, entry);
        assert_eq!(rx.pop(&words), Some(entry), "at {position}");
        assert_eq!(rx.pop(&words), None);
    }
}

#[test]
fn receives_beyond_the_ring_are_held_back_until_there_is_room() {
    let (words, mut tx, mut rx) = (Words::default(), Sender::default(), Receiver::default());
    rx.grant(&words, 10);
    let mut sent = 0;
    for expected in [4, 4, 2, 0] {
        assert_eq!(tx.budget(&words), expected);
        for _ in 0..expected {
            assert!(tx.ready(&words));
            tx.push(&words, Entry::Notice(sent));
            sent += 1;
        }
        assert!(!tx.ready(&words));
        while rx.pop(&words).is_some() {}
        rx.advertise(&words);
    }
    assert_eq!((sent, rx.position()), (10, 10));
}

#[test]
fn an_entry_that_was_not_granted_does_not_count() {
    let (words, mut rx) = (Words::default(), Receiver::default());
    words.entry(0).store(Entry::Notice(1).encode(1), Ordering::Release);
    assert_eq!(rx.pop(&words), None);
    rx.grant(&words, 1);
    assert_eq!(rx.pop(&words), Some(Entry::Notice(1)));
}

#[test]
fn only_a_receiver_that_sleeps_is_woken_and_only_once() {
    let (words, mut tx, mut rx) = (Words::default(), Sender::default(), Receiver::default());
    assert!(!tx.publish(&words));
    assert!(!rx.sleep(&words), "something was published");
    assert!(rx.sleep(&words));
    assert!(tx.publish(&words));
    assert!(!tx.publish(&words));
    assert!(!rx.sleep(&words));
}

#[test]
fn a_receiver_expects_the_wake_ups_that_are_sent_and_no_others() {
    let (words, mut tx, mut rx) = (Words::default(), Sender::default(), Receiver::default());
    rx.wake(&words);
    assert!(!rx.expects_wake(), "it has not slept");
    assert!(rx.sleep(&words));
    rx.wake(&words);
    assert!(!rx.expects_wake() && !tx.publish(&words), "it has taken its sleep back");
    assert!(!rx.sleep(&words), "something was published");
    assert!(rx.sleep(&words) && tx.publish(&words));
    assert!(!rx.sleep(&words), "the second is declared where the first was taken");
    assert!(rx.expects_wake());
    rx.woken();
    assert!(!rx.expects_wake());
    rx.woken();
    assert!(!rx.expects_wake(), "one that was not due");
}
