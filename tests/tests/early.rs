//! Windows that are looked at before they end, on every exchange and any number of workers: what is
//! told early is of each flow the rows up to some row, and what is told last is the window.
//!
//! The values of a stream are such that a sum says how many rows of each flow are in it, and
//! another whether these are the first ones.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use dataflow::job::Exchange;
use state::Windows;
use tests::cluster::{Cluster, Run};
use tests::memory::{Event, Memory};
use tests::random::{DELAY_MS, Random, Stream, batch, stream};
use tests::windowed::{Asked, V, W, windows};

const CASES: u64 = 90;

/// Cluster sizes: nodes and workers of each.
const SIZES: [(u32, u32); 4] = [(1, 1), (2, 1), (3, 1), (2, 2)];

/// More than the rows of a flow.
const ROWS_MAX: i64 = 1_000;

/// The key and the end of a window.
type Group = (i64, i64);

/// A stream with silences, in which time passes. A row of flow `f` adds a power of [`ROWS_MAX`] to
/// one sum, and something of its own to the other.
fn told_apart(random: &mut Random) -> Stream {
    let mut stream = stream(random);
    for (flow, rows) in stream.flows.iter_mut().enumerate() {
        for (at, row) in rows.iter_mut().enumerate() {
            (row.v, row.w) = (Some(ROWS_MAX.pow(flow as u32)), (at * at) as f64);
        }
        let mut events = vec![];
        for rows in rows.chunks(1 + random.below(60) as usize) {
            events.push(Event::Rows(batch(rows)));
            events.push(Event::Silence(random.below(40_000_000)));
        }
        stream.table.flows[flow] = events;
    }
    stream
}

/// By window and flow what each row that counts adds to the other sum, in order; and whether some
/// rows count for some of their windows only.
fn expected(stream: &Stream, windows: &Windows) -> (BTreeMap<Group, Vec<Vec<f64>>>, bool) {
    let mut partly = false;
    let mut groups = BTreeMap::<Group, Vec<Vec<f64>>>::new();
    for (flow, rows) in stream.flows.iter().enumerate() {
        let mut met = i64::MIN;
        for row in rows {
            let slice = windows.slice_start(row.ts);
            let left = windows.ends_of(slice, met).count();
            partly |= left > 0 && left < windows.ends_of(slice, i64::MIN).count();
            for end in windows.ends_of(slice, met) {
                let flows = groups.entry((row.k, end)).or_default();
                flows.resize(stream.flows.len(), vec![]);
                flows[flow].push(row.w);
            }
            met = met.max(row.ts - DELAY_MS);
        }
    }
    (groups, partly)
}

/// A row that was given out.
struct Told {
    group: Group,
    count: i64,
    v: i64,
    w: f64,
    last: bool,
}

fn told(batch: &RecordBatch) -> Vec<Told> {
    let number = |at: usize| {
        let column = cast(batch.column(at), &DataType::Int64).expect("times are numbers");
        column.as_primitive::<Int64Type>().values().to_vec()
    };
    let (k, count, v, end) = (number(0), number(1), number(2), number(5));
    let w = batch.column(3).as_primitive::<Float64Type>();
    let kind = batch.column_by_name("kind").map(|kind| kind.as_string::<i32>());
    (0..batch.num_rows())
        .map(|row| Told {
            group: (k[row], end[row]),
            count: count[row],
            v: v[row],
            w: w.value(row),
            last: kind.is_none_or(|kind| match kind.value(row) {
                "final" => true,
                "early" => false,
                other => panic!("a row is {other}"),
            }),
        })
        .collect()
}

/// How many rows of each flow a group has.
fn counts(told: &Told, flows: usize) -> Vec<usize> {
    let of = |flow| (told.v / ROWS_MAX.pow(flow) % ROWS_MAX) as usize;
    let counts: Vec<usize> = (0..flows).map(|flow| of(flow as u32)).collect();
    assert_eq!(counts.iter().sum::<usize>() as i64, told.count, "the count of another moment");
    counts
}

/// Runs a job; gives its rows in the order in which they came.
fn rows(
    asked: &Asked,
    stream: &Stream,
    (nodes, workers): (u32, u32),
    seed: u64,
) -> (Run, Vec<Told>) {
    let memory = Memory::new(None);
    memory.add("t", stream.table.clone());
    let job = Arc::new(asked.job(&memory, stream));
    let run = Cluster::seeded(nodes, workers, seed).run(&job);
    let run = run.unwrap_or_else(|error| panic!("seed {seed}, {nodes}x{workers}: {error}"));
    (run, memory.all_committed().iter().flat_map(told).collect())
}

fn finals(rows: &[Told]) -> Vec<(Group, i64, i64, String)> {
    let finals = rows.iter().filter(|row| row.last);
    let mut rows: Vec<_> =
        finals.map(|row| (row.group, row.count, row.v, row.w.to_string())).collect();
    rows.sort();
    rows
}

#[test]
fn early_rows_grow_with_each_flow_to_the_final_one() {
    let (mut early, mut of_several) = (0, 0);
    for seed in 0..CASES {
        let mut random = Random::new(seed + 80_000);
        let stream = told_apart(&mut random);
        let windows = windows(&mut random);
        let (expected, partly) = expected(&stream, &windows);
        let every = 1 + random.below(60_000_000);
        let many = SIZES[seed as usize % SIZES.len()];
        for (size, exchange) in [
            ((1, 1), Exchange::Forward),
            (many, Exchange::Merge),
            (many, Exchange::Shuffle),
            (many, Exchange::UpPar),
        ] {
            let at = format!("seed {seed}, {size:?}, {exchange}, {windows:?}, every {every} ns");
            let mut asked =
                Asked { windows, exchange, sums: vec![V, W], lateness: 0, early_ns: None };
            let (_, once) = rows(&asked, &stream, size, seed);
            asked.early_ns = NonZeroU64::new(every);
            let (_, told) = rows(&asked, &stream, size, seed);
            assert_eq!(finals(&told), finals(&once), "{at}");
            assert_eq!(finals(&told).len(), expected.len(), "{at}");
            let mut before = BTreeMap::<Group, (Vec<usize>, bool)>::new();
            for row in told {
                let flows = &expected[&row.group];
                let counts = counts(&row, flows.len());
                let first = |(flow, count): (&Vec<f64>, &usize)| flow[..*count].iter().sum::<f64>();
                let sum: f64 = flows.iter().zip(&counts).map(first).sum();
                // Where rows travel, such rows travel behind the others of their batch.
                let travel = matches!(exchange, Exchange::Shuffle | Exchange::UpPar);
                let in_order = !(partly && travel);
                let rows_are_the_first = row.w == sum || !in_order && !row.last;
                assert!(rows_are_the_first, "{at}: other rows than the first of each flow");
                if let Some((before, over)) = before.get(&row.group) {
                    assert!(!over, "{at}: a row behind the final one");
                    assert!(before.iter().zip(&counts).all(|(a, b)| a <= b), "{at}: rows are gone");
                }
                if row.last {
                    assert!(flows.iter().zip(&counts).all(|(f, c)| f.len() == *c), "{at}");
                } else {
                    early += 1;
                    of_several += u64::from(counts.iter().filter(|count| **count > 0).count() > 1);
                }
                before.insert(row.group, (counts, row.last));
            }
        }
    }
    assert!(early > 10_000 && of_several > 1_000, "{early} early rows, {of_several} of several");
}

#[test]
fn the_same_seed_gives_the_same_trace_with_early_rows() {
    for seed in 0..6 {
        let run = || {
            let mut random = Random::new(seed + 90_000);
            let stream = told_apart(&mut random);
            let exchange = if seed % 2 == 0 { Exchange::Merge } else { Exchange::Shuffle };
            let asked = Asked {
                windows: windows(&mut random),
                exchange,
                sums: vec![V, W],
                lateness: 0,
                early_ns: NonZeroU64::new(10_000_000),
            };
            let (run, told) = rows(&asked, &stream, (3, 1), seed);
            let told: Vec<_> =
                told.iter().map(|row| (row.group, row.count, row.v, row.last)).collect();
            (run.trace, run.elapsed_ns, told)
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}
