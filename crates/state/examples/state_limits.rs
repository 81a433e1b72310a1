//! What a record costs in each key mode, on one core, with input in cache-sized batches.
//!
//! Cycles are those of the time stamp counter. Run: `cargo run --release -p millstream-state
//! --example state_limits`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray, StringViewArray};
use arrow::datatypes::DataType;
use state::aggregates::{avg, count, max};
use state::{Aggregate, GroupBy, KeyMode, Slice, StateOptions};

const ROWS: usize = 8192;

/// A small generator of numbers; its quality does not matter here.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ (self.0 << 20 >> 33)
    }

    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next() << 33 | self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Zipf with exponent 1: the inverse of the harmonic sum, roughly.
    fn zipf(&mut self, n: f64) -> u64 {
        let u = self.next() as f64 / 2_147_483_648.0;
        (n.powf(u) - 1.0) as u64
    }
}

fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reading the time stamp counter has no preconditions.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

fn keys(batches: usize, mut key: impl FnMut() -> u64) -> Vec<ArrayRef> {
    let batch = |key: &mut dyn FnMut() -> u64| -> ArrayRef {
        Arc::new(Int64Array::from((0..ROWS).map(|_| key() as i64).collect::<Vec<_>>()))
    };
    (0..batches).map(|_| batch(&mut key)).collect()
}

/// Runs `rows` rows through a slice twice and reports the second pass, when its mode is settled.
fn case(
    name: &str,
    mode: Option<KeyMode>,
    aggregate: Arc<dyn Aggregate>,
    input: &[ArrayRef],
    arg: Option<&ArrayRef>,
    rows: usize,
) {
    let options = StateOptions { key_mode: mode, budget_bytes: usize::MAX, ..Default::default() };
    let keys = vec![input[0].data_type().clone()];
    let spec = Arc::new(GroupBy { keys, aggregates: vec![aggregate], options });
    let mut slice = Slice::new(&spec);
    let args = vec![arg.into_iter().cloned().collect::<Vec<_>>()];
    let mut best = (f64::MAX, f64::MAX);
    for pass in 0..3 {
        let (start, since) = (ticks(), Instant::now());
        for batch in 0..rows / ROWS {
            let keys = &input[batch % input.len()];
            slice.update(std::slice::from_ref(keys), &args).expect("the columns fit");
        }
        let (cycles, seconds) = (ticks() - start, since.elapsed().as_secs_f64());
        if pass > 0 && seconds < best.1 {
            best = (cycles as f64, seconds);
        }
    }
    let (mode, bytes) = (slice.key_mode(), slice.bytes());
    let (start, groups) = (ticks(), slice.groups());
    let parts = std::iter::from_fn(|| slice.take_delta().expect("states are built"));
    let parts: Vec<_> = black_box(parts.collect());
    let taking = (ticks() - start) as f64 / groups as f64;
    let n = (rows / ROWS * ROWS) as f64;
    let start = ticks();
    let mut leader = Slice::new(&spec);
    for part in &parts {
        leader.merge(&part.keys, &part.states).expect("the delta fits");
    }
    let merging = (ticks() - start) as f64 / groups as f64;
    println!(
        "{name:<34} {mode:?} {:>6.1} cycles/record {:>7.1} M records/s; {groups} groups, {} MiB; \
         take {taking:.1}, merge {merging:.1} cycles/group",
        best.0 / n,
        n / best.1 / 1e6,
        bytes >> 20,
    );
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let mut random = Random(1);
    let values: ArrayRef =
        Arc::new(Int64Array::from_iter_values((0..ROWS).map(|_| random.next() as i64)));
    let floats: ArrayRef =
        Arc::new(Float64Array::from_iter_values((0..ROWS).map(|_| random.next() as f64)));
    let longs = || max(&DataType::Int64).expect("there is a maximum of integers");
    let means = || avg(&DataType::Float64).expect("there is an average of floats");
    let few = 33 << 20;
    if "small".contains(&wanted) {
        let hundred = keys(16, || random.below(100));
        let thousand = keys(16, || random.below(1000));
        let one = keys(16, || 7);
        let zipf = keys(16, || random.zipf(1000.0));
        case("100 keys, count(*)", None, count(), &hundred, None, few);
        case("100 keys, count(*), hashed", Some(KeyMode::Hash), count(), &hundred, None, few);
        case("one key, count(*)", None, count(), &one, None, few);
        case("1,000 keys, max(bigint)", None, longs(), &thousand, Some(&values), few);
        case("1,000 keys, zipf 1.0, max(bigint)", None, longs(), &zipf, Some(&values), few);
        case("1,000 keys, avg(double)", None, means(), &thousand, Some(&floats), few);
        let words = |batch: &ArrayRef| -> Vec<String> {
            let batch = batch.as_any().downcast_ref::<Int64Array>().expect("they are integers");
            batch.values().iter().map(|key| format!("key {key}")).collect()
        };
        let utf8: Vec<ArrayRef> =
            hundred.iter().map(|b| Arc::new(StringArray::from(words(b))) as ArrayRef).collect();
        let views: Vec<ArrayRef> =
            hundred.iter().map(|b| Arc::new(StringViewArray::from(words(b))) as ArrayRef).collect();
        case("100 short strings, count(*)", None, count(), &utf8, None, few);
        case("100 short views, count(*)", None, count(), &views, None, few);
    }
    if "large".contains(&wanted) {
        let uniform = keys(4096, || random.below(10_000_000));
        case("10 M uniform, count(*)", None, count(), &uniform, None, few);
        case("10 M uniform, count(*), hashed", Some(KeyMode::Hash), count(), &uniform, None, few);
        case("10 M uniform, avg(double)", None, means(), &uniform, Some(&floats), few);
        let zipf = keys(4096, || random.zipf(10e6));
        case("10 M zipf 1.0, count(*)", None, count(), &zipf, None, few);
        case("10 M zipf 1.0, count(*), hashed", Some(KeyMode::Hash), count(), &zipf, None, few);
        let uniform = keys(512, || random.below(1_000_000));
        case("1 M uniform, count(*)", None, count(), &uniform, None, few);
    }
}
