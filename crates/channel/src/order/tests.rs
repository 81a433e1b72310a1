//! Every interleaving, and every outcome that the memory model allows, of the four accesses; run by
//! `RUSTFLAGS="--cfg loom" cargo test --release -p millstream-channel --lib order`.

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::{Word, collect, observe, publish, release};
use crate::protocol::{Class, Consumer, Producer, commit_word};

const SLOTS: u32 = 2;
const FRAMES: u64 = 4;

/// A ring in shared memory: what the fabric would place and carry is done by plain accesses.
struct Shared {
    slots: [UnsafeCell<u64>; SLOTS as usize],
    commits: [AtomicU64; SLOTS as usize],
    released: AtomicU64,
    /// Credit on its way: the fabric's notice, which it delivers with release and acquire (G4).
    credit: AtomicU64,
}

// SAFETY: loom checks each access to the cells; that is the test.
unsafe impl Sync for Shared {}

fn explore(publish: fn(&AtomicU64, u64), release: fn(&AtomicU64, u32)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let shared = Arc::new(Shared {
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            commits: [AtomicU64::new(0), AtomicU64::new(0)],
            released: AtomicU64::new(0),
            credit: AtomicU64::new(0),
        });
        let to = shared.clone();
        let producer = thread::spawn(move || produce(&to, publish));
        consume(&shared, release);
        producer.join().expect("the producer");
    });
}

fn produce(shared: &Shared, publish: fn(&AtomicU64, u64)) {
    let mut producer = Producer::new(SLOTS, 1);
    for frame in 0..FRAMES {
        while producer.reserve(Class::Control).is_err() {
            let credit = observe(&shared.credit);
            if !producer.credit(credit).expect("credit of published frames") {
                thread::yield_now();
            }
        }
        let slot = (frame % u64::from(SLOTS)) as usize;
        // SAFETY: reserved, so its credit has returned; loom would report another access.
        shared.slots[slot].with_mut(|bytes| unsafe { *bytes = frame });
        publish(&shared.commits[slot], commit_word(1, frame));
        producer.publish();
        producer.retire(frame);
    }
}

fn consume(shared: &Shared, release: fn(&AtomicU64, u32)) {
    let mut consumer = Consumer::new(SLOTS, 1, 1, fabric::Publish::InOrderPoll);
    for frame in 0..FRAMES {
        let slot = (frame % u64::from(SLOTS)) as usize;
        while !consumer.is_there(observe(&shared.commits[slot])).expect("an honest producer") {
            thread::yield_now();
        }
        assert_eq!(consumer.accept(), frame);
        // SAFETY: accepted and not released; loom would report another access.
        let read = shared.slots[slot].with(|bytes| unsafe { *bytes });
        assert_eq!(read, frame);
        release(&shared.released, slot as u32);
        let slots = collect(&shared.released);
        assert_eq!(slots, 1 << slot);
        consumer.release_slot(slots.trailing_zeros());
        super::publish(&shared.credit, consumer.credit());
    }
}

#[test]
fn a_ring_of_two_slots_carries_four_frames() {
    explore(publish, release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_commit_word_is_not_enough() {
    explore(|commit, value| Word::store(commit, value, Ordering::Relaxed), release);
}

/// A payload is read and dropped on another thread; the link's thread collects the slot and lets it
/// be overwritten.
fn drop_elsewhere(release: fn(&AtomicU64, u32)) {
    loom::model(move || {
        let shared = Arc::new((UnsafeCell::new(1u64), AtomicU64::new(0)));
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                // SAFETY: loom checks it.
                shared.0.with(|bytes| assert_eq!(unsafe { *bytes }, 1));
                release(&shared.1, 5);
            })
        };
        while collect(&shared.1) != 1 << 5 {
            thread::yield_now();
        }
        // SAFETY: loom checks it.
        shared.0.with_mut(|bytes| unsafe { *bytes = 2 });
        reader.join().expect("the reader");
    });
}

#[test]
fn a_payload_may_be_dropped_on_another_thread() {
    drop_elsewhere(release);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_release_is_not_enough() {
    drop_elsewhere(|released, slot| {
        Word::fetch_or(released, 1 << slot, Ordering::Relaxed);
    });
}
