//! What the innermost loops cost, each by itself on one thread: a frame through a ring, a record
//! into groups, a group of a delta into its leader's, a turn of a coroutine.
//!
//! ```text
//! make bench-loops                  time of 8,192 of each, and how many there are in a second
//! make instructions                 instructions of each
//! ```
//!
//! With a name and a count it runs that loop so often and nothing else, for who counts its
//! instructions; else it takes the options of divan.

use std::error::Error;
use std::fmt;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringArray};
use arrow::datatypes::DataType;
use channel::{Class, Header, Link, RingConfig};
use dataflow::error;
use divan::counter::ItemsCount;
use divan::{Bencher, Divan};
use fabric::shm::{ShmFabric, ShmOptions};
use fabric::{Fabric, LinkId};
use state::aggregates::count;
use state::{
    GroupBy, GroupColumns, KeyMap, KeyMode, KeyOf, RawRows, Scale, Slice, Slices, StateOptions,
    Times, gather,
};

// The worker's own, which is nobody else's to use.
#[allow(dead_code, reason = "only its turns are measured")]
#[path = "../src/runtime/scheduler.rs"]
mod scheduler;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Runs a loop so many times.
type Run = Box<dyn FnMut(usize) -> Outcome<()>>;

/// Rows of a batch.
const ROWS: usize = 8192;

/// A loop: its name, what it counts, and how it is made ready.
#[derive(Clone, Copy)]
struct Loop {
    name: &'static str,
    unit: &'static str,
    ready: fn() -> Outcome<Run>,
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: a {}", self.name, self.unit)
    }
}

const LOOPS: [Loop; 10] = [
    Loop { name: "ring", unit: "frame of 64 bytes", ready: ring },
    Loop { name: "dense", unit: "record, 1,000 keys", ready: dense },
    Loop { name: "fused", unit: "record as it was read, 100 keys", ready: fused },
    Loop { name: "looked", unit: "record as it was read, by a table of keys", ready: looked },
    Loop { name: "hashed", unit: "record, 1,000 keys", ready: hashed },
    Loop { name: "hashed-large", unit: "record, 1 M keys", ready: hashed_large },
    Loop { name: "merge", unit: "group of a delta, 64 Ki keys", ready: merge },
    Loop { name: "gather", unit: "text of 4 to 32 bytes", ready: gather_short },
    Loop { name: "gather-long", unit: "text of 72 to 108 bytes", ready: gather_long },
    Loop { name: "switch", unit: "turn of a coroutine", ready: switch },
];

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, times] = arguments.as_slice()
        && let Some(one) = LOOPS.iter().find(|one| one.name == name)
    {
        let mut run = (one.ready)()?;
        return measured(&mut run, times.parse()?);
    }
    Divan::from_args().run_benches();
    Ok(())
}

/// As many as a batch has rows.
#[divan::bench(args = LOOPS)]
fn time(bencher: Bencher<'_, '_>, one: Loop) {
    let mut run = (one.ready)().expect("the loop is made ready");
    let bencher = bencher.counter(ItemsCount::new(ROWS));
    bencher.bench_local(|| measured(&mut run, ROWS).expect("nothing fails"));
}

/// What is inside is counted.
#[inline(never)]
fn measured(run: &mut Run, times: usize) -> Outcome<()> {
    run(black_box(times))
}

/// Both ends on one thread: as many frames are sent as there is credit for, then they are taken.
fn ring() -> Outcome<Run> {
    let fabric = ShmFabric::new(ShmOptions { prefault: true, ..ShmOptions::default() })?;
    let here = fabric.offer(LinkId { local: 0, remote: 1 })?;
    let there = fabric.offer(LinkId { local: 1, remote: 0 })?;
    let (of_here, of_there) = (here.address(), there.address());
    let (here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(move || there.connect(&of_here));
        (here.connect(&of_there), there.join())
    });
    let there = there.map_err(|_| "the other end panicked")??;
    let (slots, slot_bytes, control_slots) = (16, 4096, 1);
    let config = RingConfig { slots, slot_bytes, control_slots, ..RingConfig::default() };
    let mut here = Link::new(&*fabric, here?, config, 1)?;
    let mut there = Link::new(&*fabric, there, config, 1)?;
    here.attach(&there.descriptor())?;
    there.attach(&here.descriptor())?;
    Ok(Box::new(move |frames| {
        let mut taken = 0;
        while taken < frames {
            while let Some(slot) = here.reserve(Class::Data) {
                slot.publish(Header::default(), 64);
            }
            here.flush();
            while let Some(frame) = there.recv()? {
                black_box(frame.payload.first());
                taken += 1;
            }
            there.poll()?;
            there.flush();
            here.poll()?;
        }
        Ok(())
    }))
}

fn dense() -> Outcome<Run> {
    grouped(None, 1_000)
}

/// Records of which a third count, in order of time, by a tenth of a number.
fn fused() -> Outcome<Run> {
    folded(KeyOf::Scaled(Scale { factor: 3_435_973_837, shift: 35 }))
}

/// The same, by what a table has beside each number.
fn looked() -> Outcome<Run> {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
    let beside: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1_000).map(|n| n / 10)));
    let map = KeyMap::of(&numbers, &beside)?.ok_or("numbers lie close together")?;
    folded(KeyOf::Mapped(Arc::new(map)))
}

fn folded(key: KeyOf) -> Outcome<Run> {
    let mut slices = Slices::new(&spec(None));
    let groups: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
    slices.update(0, groups.len(), &[groups], &[vec![]])?;
    let batches = keys(1_000);
    let pass = |row: usize| u64::from((row * 7).is_multiple_of(3));
    let word = |word: usize| (0..64).fold(0, |bits, bit| bits | pass(64 * word + bit) << bit);
    let passes: Vec<u64> = (0..ROWS / 64).map(word).collect();
    let times: Vec<i64> = (0..ROWS as i64).collect();
    let mut next = 0;
    Ok(Box::new(move |records| {
        for _ in 0..records.div_ceil(ROWS) {
            let rows = RawRows::of_column(&batches[next % batches.len()]).ok_or("no words")?;
            let times = Some(Times { each: &times, last: i64::MAX });
            let rows = RawRows { key: &key, passes: Some(&passes), times, ..rows };
            let folded = slices.update_raw(0, &rows, &[])?;
            if folded.rows < ROWS {
                return Err("not all rows were folded".into());
            }
            next += 1;
        }
        Ok(())
    }))
}

fn hashed() -> Outcome<Run> {
    grouped(Some(KeyMode::Hash), 1_000)
}

fn hashed_large() -> Outcome<Run> {
    grouped(Some(KeyMode::Hash), 1_000_000)
}

/// Records of so many keys, by a hash that takes each about as often.
fn keys(number: u64) -> Vec<ArrayRef> {
    let key = |i: u64| {
        let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed) * u128::from(number)) >> 64) as i64
    };
    let batches = (number as usize).div_ceil(ROWS).max(16);
    let batch = |at: usize| -> ArrayRef {
        let rows = (at * ROWS) as u64..((at + 1) * ROWS) as u64;
        Arc::new(Int64Array::from_iter_values(rows.map(key)))
    };
    (0..batches).map(batch).collect()
}

fn spec(mode: Option<KeyMode>) -> Arc<GroupBy> {
    let options = StateOptions { key_mode: mode, budget_bytes: usize::MAX, ..Default::default() };
    Arc::new(GroupBy { keys: vec![DataType::Int64], aggregates: vec![count()], options })
}

fn grouped(mode: Option<KeyMode>, number: u64) -> Outcome<Run> {
    let (mut slice, batches, mut next) = (Slice::new(&spec(mode)), keys(number), 0);
    // All groups are there before anything is counted.
    for batch in &batches {
        slice.update(std::slice::from_ref(batch), &[vec![]])?;
    }
    Ok(Box::new(move |records| {
        for _ in 0..records.div_ceil(ROWS) {
            let batch = &batches[next % batches.len()];
            slice.update(std::slice::from_ref(batch), &[vec![]])?;
            next += 1;
        }
        Ok(())
    }))
}

fn merge() -> Outcome<Run> {
    let spec = spec(None);
    let mut helper = Slice::new(&spec);
    for batch in keys(1 << 16) {
        helper.update(&[batch], &[vec![]])?;
    }
    let mut parts: Vec<GroupColumns> = Vec::new();
    while let Some(part) = helper.take_delta()? {
        parts.push(part);
    }
    let groups: usize = parts.iter().map(GroupColumns::rows).sum();
    let mut leader = Slice::new(&spec);
    for part in &parts {
        leader.merge(&part.keys, &part.states)?;
    }
    Ok(Box::new(move |times| {
        for _ in 0..times.div_ceil(groups.max(1)) {
            for part in &parts {
                leader.merge(&part.keys, &part.states)?;
            }
        }
        Ok(())
    }))
}

fn gather_short() -> Outcome<Run> {
    gathered(4..33)
}

fn gather_long() -> Outcome<Run> {
    gathered(72..109)
}

/// Texts of so many bytes, from several batches.
fn gathered(lengths: Range<usize>) -> Outcome<Run> {
    const BATCHES: usize = 4;
    let mixed = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 32;
    let text = |i: usize| "x".repeat(lengths.start + mixed(i) % lengths.len());
    let batch = |at: usize| StringArray::from_iter_values((0..ROWS).map(|i| text(at * ROWS + i)));
    let batches: Vec<StringArray> = (0..BATCHES).map(batch).collect();
    let place = |i: usize| (mixed(i) % BATCHES, mixed(i) / BATCHES % ROWS);
    let places: Vec<(usize, usize)> = (0..ROWS).map(place).collect();
    Ok(Box::new(move |texts| {
        let parts: Vec<&dyn Array> = batches.iter().map(|batch| batch as &dyn Array).collect();
        for _ in 0..texts.div_ceil(ROWS) {
            black_box(gather(&parts, &places)?);
        }
        Ok(())
    }))
}

fn switch() -> Outcome<Run> {
    let mut scheduler = scheduler::Scheduler::new();
    for _ in 0..4 {
        scheduler.spawn(async {
            loop {
                scheduler::yield_now().await;
            }
        });
    }
    Ok(Box::new(move |turns| {
        for _ in 0..turns.div_ceil(4) {
            scheduler.turn(|_| {})?;
        }
        Ok(())
    }))
}
