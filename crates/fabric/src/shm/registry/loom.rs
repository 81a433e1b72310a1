//! All interleavings of small runs, under the memory model:
//! `RUSTFLAGS="--cfg loom" cargo test --release registry::loom`.

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use super::{Entry, FencedWord, Posting};

impl FencedWord for AtomicU64 {
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// An entry, and words that stand for the memory of two slabs.
#[derive(Default)]
struct Model {
    entry: Entry<AtomicU64>,
    slabs: [AtomicU64; 2],
}

const FIRST: u64 = 11;
const SECOND: u64 = 12;

fn posting(slab: u64) -> Posting {
    Posting { base: slab + 100, len: slab + 200, slab }
}

/// Reads as an endpoint does; a value only if the key held.
fn read(model: &Model, key: u64) -> Option<(Posting, u64)> {
    let found = model.entry.find(key)?;
    let value = model.slabs[found.slab as usize % 2].load(Ordering::Relaxed);
    model.entry.has(key).then_some((found, value))
}

#[test]
fn what_is_stored_after_a_range_was_taken_away_is_not_read() {
    loom::model(|| {
        let model = Arc::new(Model::default());
        model.slabs[0].store(1, Ordering::Relaxed);
        model.entry.open(FIRST, posting(0));
        let theirs = model.clone();
        let reader = thread::spawn(move || read(&theirs, FIRST));
        model.entry.close();
        model.slabs[0].store(2, Ordering::Relaxed);
        if let Some(seen) = reader.join().expect("the reader ends") {
            assert_eq!(seen, (posting(0), 1));
        }
    });
}

#[test]
fn an_entry_that_is_used_again_is_one_range_or_the_other() {
    loom::model(|| {
        let model = Arc::new(Model::default());
        model.slabs[0].store(1, Ordering::Relaxed);
        model.entry.open(FIRST, posting(0));
        let theirs = model.clone();
        let reader = thread::spawn(move || [read(&theirs, FIRST), read(&theirs, SECOND)]);
        model.entry.close();
        model.slabs[0].store(2, Ordering::Relaxed);
        model.slabs[1].store(3, Ordering::Relaxed);
        model.entry.open(SECOND, posting(1));
        let [first, second] = reader.join().expect("the reader ends");
        assert!(first.is_none_or(|seen| seen == (posting(0), 1)), "{first:?}");
        assert!(second.is_none_or(|seen| seen == (posting(1), 3)), "{second:?}");
    });
}
