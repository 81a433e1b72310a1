//! All interleavings of small runs, under the memory model:
//! `RUSTFLAGS="--cfg loom" cargo test --release spsc::loom`.

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use super::{Entry, Receiver, Sender, SpscMemory, Word};

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
}

const ENTRIES: usize = 2;

/// A lane of two entries, and for each a cell that stands for memory that a notice speaks of.
#[derive(Default)]
struct Model {
    entries: [AtomicU64; ENTRIES],
    limit: AtomicU64,
    touched: AtomicU64,
    asleep: AtomicU64,
    /// Stands for the socket: wake-ups sent.
    wakes: AtomicU64,
    /// Stands for a word that plain writes go to.
    word: AtomicU64,
    memory: [UnsafeCell<u32>; ENTRIES],
}

impl SpscMemory for Model {
    type Word = AtomicU64;
    const ENTRIES: u64 = ENTRIES as u64;

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

fn publish(tx: &mut Sender, model: &Model) {
    if tx.publish(model) {
        model.wakes.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sleeps as an endpoint does: declares it, and if that stands, waits for a wake-up. A lost wake-up
/// is a run that never ends, which loom reports.
fn sleep(rx: &mut Receiver, model: &Model, woken: &mut u64) {
    if rx.sleep(model) {
        while model.wakes.load(Ordering::SeqCst) == *woken {
            thread::yield_now();
        }
        *woken = model.wakes.load(Ordering::SeqCst);
    }
    rx.wake(model);
}

/// The receiver gives up its sleep, as one that another connection has woken: it expects a wake-up
/// if and only if the sender sends one.
#[test]
fn a_receiver_that_gives_up_its_sleep_knows_of_each_wake_up() {
    loom::model(|| {
        let model = Arc::new(Model::default());
        let theirs = model.clone();
        let sender = thread::spawn(move || {
            let mut tx = Sender::default();
            publish(&mut tx, &theirs);
            publish(&mut tx, &theirs);
        });
        let mut rx = Receiver::default();
        for _ in 0..2 {
            // Whether it stands makes no difference here.
            let _ = rx.sleep(&*model);
            rx.wake(&*model);
        }
        sender.join().expect("the sender ends");
        for _ in 0..model.wakes.load(Ordering::SeqCst) {
            assert!(rx.expects_wake(), "nobody looks for a wake-up that was sent");
            rx.woken();
        }
        assert!(!rx.expects_wake(), "a wake-up that was not sent is looked for");
    });
}

#[test]
fn a_notice_shows_what_was_written_before_and_slots_are_not_overwritten_early() {
    loom::model(|| {
        let model = Arc::new(Model::default());
        let theirs = model.clone();
        let sender = thread::spawn(move || {
            let mut tx = Sender::default();
            for i in 0..3 {
                while !tx.ready(&*theirs) {
                    thread::yield_now();
                }
                // SAFETY: the limit gives the slot to the sender; loom checks it.
                theirs.memory[i % ENTRIES].with_mut(|cell| unsafe { *cell = i as u32 + 1 });
                tx.push(&*theirs, Entry::Notice(i as u32));
            }
        });
        let mut rx = Receiver::default();
        rx.grant(&*model, 3);
        for i in 0..3 {
            let entry = loop {
                match rx.pop(&*model) {
                    Some(entry) => break entry,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(entry, Entry::Notice(i as u32));
            // SAFETY: the entry gives the slot to the receiver until it advertises; loom checks it.
            let seen = model.memory[i % ENTRIES].with(|cell| unsafe { *cell });
            assert_eq!(seen, i as u32 + 1);
            rx.advertise(&*model);
        }
        sender.join().expect("the sender ends");
    });
}

#[test]
fn a_sleeping_receiver_is_woken_by_a_notice() {
    loom::model(|| {
        let model = Arc::new(Model::default());
        let mut rx = Receiver::default();
        rx.grant(&*model, 1);
        let theirs = model.clone();
        let sender = thread::spawn(move || {
            let mut tx = Sender::default();
            assert!(tx.ready(&*theirs));
            tx.push(&*theirs, Entry::Notice(7));
            publish(&mut tx, &theirs);
        });
        let mut woken = 0;
        while rx.pop(&*model).is_none() {
            sleep(&mut rx, &model, &mut woken);
        }
        sender.join().expect("the sender ends");
    });
}

#[test]
fn a_sleeping_receiver_is_woken_by_a_plain_write() {
    loom::model(|| {
        let model = Arc::new(Model::default());
        let theirs = model.clone();
        let sender = thread::spawn(move || {
            let mut tx = Sender::default();
            theirs.word.store(1, Ordering::Release);
            publish(&mut tx, &theirs);
        });
        let (mut rx, mut woken) = (Receiver::default(), 0);
        while model.word.load(Ordering::Acquire) == 0 {
            sleep(&mut rx, &model, &mut woken);
        }
        sender.join().expect("the sender ends");
    });
}
