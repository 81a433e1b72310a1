//! Tumbling, hopping and cumulating windows and sessions, on every exchange and any number of
//! workers, against every row in every window that has it.
//!
//! The jobs are made by hand: windows are a matter of the dataflow, whatever SQL calls them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use dataflow::job::{Exchange, OperatorKind};
use state::Windows;
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::memory::Memory;
use tests::random::{DELAY_MS, IDLE_MS, Random, Stream, stream};
use tests::windowed::{Asked, V, windows};

const CASES: u64 = 120;

/// Cluster sizes: nodes and workers of each.
const SIZES: [(u32, u32); 4] = [(1, 1), (2, 1), (3, 1), (2, 2)];

/// Rows of the result, how many rows are late, and how many are late for some windows only.
fn expected(stream: &Stream, windows: &Windows, lateness: i64) -> (Vec<String>, u64, u64) {
    let mut groups: BTreeMap<(i64, i64, i64), (u64, Option<i64>)> = BTreeMap::new();
    let (mut late, mut partly) = (0, 0);
    for flow in &stream.flows {
        let mut met = i64::MIN;
        for row in flow {
            let slice = windows.slice_start(row.ts);
            let all = windows.ends_of(slice, i64::MIN).count();
            let left: Vec<i64> = windows.ends_of(slice, met).collect();
            late += u64::from(all > 0 && left.is_empty());
            partly += u64::from(!left.is_empty() && left.len() < all);
            for end in left {
                let window = windows.window_at(end);
                assert!(window.start <= row.ts && row.ts < window.end);
                let group = groups.entry((row.k, window.start, window.end)).or_default();
                group.0 += 1;
                group.1 = group.1.map_or(row.v, |sum| Some(sum + row.v.unwrap_or(0)));
            }
            met = met.max(row.ts - DELAY_MS - lateness);
        }
    }
    let text = |value: Option<i64>| value.map_or("NULL".into(), |value| value.to_string());
    let rows = groups
        .into_iter()
        .map(|((k, start, end), (count, sum))| format!("{k}|{start}|{end}|{count}|{}", text(sum)));
    let mut rows: Vec<String> = rows.collect();
    rows.sort();
    (rows, late, partly)
}

/// Count and sum of `v` by `k` and window.
fn asked(windows: Windows, exchange: Exchange, lateness: i64) -> Asked {
    Asked { windows, exchange, sums: vec![V], lateness, early_ns: None }
}

/// The committed rows, sorted.
fn answer(memory: &Memory) -> Vec<String> {
    let mut rows = vec![];
    for batch in memory.all_committed() {
        let number = |column| cast(column, &DataType::Int64).expect("times are numbers");
        let columns: Vec<Int64Array> = batch
            .columns()
            .iter()
            .map(|column| number(column).as_primitive::<Int64Type>().clone())
            .collect();
        for row in 0..batch.num_rows() {
            let value = |column: usize| columns[column].value(row);
            let sum = columns[2].is_valid(row).then(|| value(2));
            let (k, count, start, end, time) = (value(0), value(1), value(3), value(4), value(5));
            assert_eq!(time, end - 1, "the last millisecond of the window");
            let sum = sum.map_or("NULL".into(), |sum: i64| sum.to_string());
            rows.push(format!("{k}|{start}|{end}|{count}|{sum}"));
        }
    }
    rows.sort();
    rows
}

#[test]
fn every_exchange_gives_the_rows_of_every_window() {
    let (mut late_rows, mut partly_rows, mut rows) = (0, 0, 0);
    let mut cases = cases(CASES);
    for seed in &mut cases {
        let mut random = Random::new(seed + 40_000);
        let stream = loop {
            // Idle flows are judged by how far others have come: not for this oracle.
            let stream = stream(&mut random);
            if !stream.idle {
                break stream;
            }
        };
        let windows = windows(&mut random);
        let lateness = *random.one_of(&[0, 0, 1, 2_000, 60_000]);
        let (expected, late, partly) = expected(&stream, &windows, lateness);
        (late_rows, partly_rows) = (late_rows + late, partly_rows + partly);
        rows += expected.len();
        let many = SIZES[seed as usize % SIZES.len()];
        for ((nodes, workers), exchange) in [
            ((1, 1), Exchange::Merge),
            (many, Exchange::Merge),
            (many, Exchange::Shuffle),
            (many, Exchange::UpPar),
        ] {
            let at = format!("seed {seed}, {nodes}x{workers}, {exchange}, {windows:?}, {lateness}");
            let memory = Memory::new(None);
            memory.add("t", stream.table.clone());
            let job = asked(windows, exchange, lateness).job(&memory, &stream);
            let cluster = Cluster::seeded(nodes, workers, seed);
            let run = cluster.run(&Arc::new(job)).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(answer(&memory), expected, "{at}");
            assert_eq!(run.sum(|metrics| &metrics.late), late, "{at}");
        }
    }
    let met = late_rows > 100 && partly_rows > 100 && rows > 10_000;
    cases.met(met, &format!("{late_rows} and {partly_rows} late, {rows} rows"));
}

/// Rows of the result where windows are sessions, how many rows are late, and how many there are.
fn expected_sessions(stream: &Stream, gap: i64, lateness: i64) -> (Vec<String>, u64, u64) {
    let mut keys: BTreeMap<i64, Vec<(i64, Option<i64>)>> = BTreeMap::new();
    let (mut late, mut all) = (0, 0);
    for flow in &stream.flows {
        let mut met = i64::MIN;
        for row in flow {
            match row.ts + gap > met {
                true => keys.entry(row.k).or_default().push((row.ts, row.v)),
                false => late += 1,
            }
            all += 1;
            met = met.max(row.ts - DELAY_MS - lateness);
        }
    }
    let mut out = vec![];
    for (k, mut rows) in keys {
        rows.sort_unstable();
        for session in rows.chunk_by(|a, b| b.0 - a.0 <= gap) {
            let (start, end) = (session[0].0, session[session.len() - 1].0 + gap);
            let values = session.iter().filter_map(|row| row.1);
            let sum = values.reduce(|a, b| a + b).map_or("NULL".into(), |sum| sum.to_string());
            out.push(format!("{k}|{start}|{end}|{}|{sum}", session.len()));
        }
    }
    out.sort();
    (out, late, all)
}

#[test]
fn every_exchange_gives_the_sessions_of_all_flows() {
    let (mut late_rows, mut idle_cases, mut rows) = (0, 0, 0);
    let mut cases = cases(CASES);
    for seed in &mut cases {
        let mut random = Random::new(seed + 60_000);
        let stream = stream(&mut random);
        let gap = *random.one_of(&[1, 7, 400, 3_000, 20_000, 90_000]);
        let windows = Windows::sessions(gap).expect("it is positive");
        let lateness = *random.one_of(&[0, 0, 1, 2_000, 60_000]);
        let (expected, late, all) = expected_sessions(&stream, gap, lateness);
        (late_rows, rows) = (late_rows + late, rows + expected.len());
        idle_cases += u64::from(stream.idle);
        let many = SIZES[seed as usize % SIZES.len()];
        for ((nodes, workers), exchange) in [
            ((1, 1), Exchange::Merge),
            (many, Exchange::Merge),
            (many, Exchange::Shuffle),
            (many, Exchange::UpPar),
        ] {
            let at = format!("seed {seed}, {nodes}x{workers}, {exchange}, gap {gap}");
            let memory = Memory::new(None);
            memory.add("t", stream.table.clone());
            let mut job = asked(windows, exchange, lateness).job(&memory, &stream);
            if let (true, OperatorKind::Source(input)) = (stream.idle, &mut job.operators[0].kind)
                && let Some(watermark) = &mut input.watermark
            {
                watermark.idle_timeout_ns = Some(IDLE_MS as u64 * 1_000_000);
            }
            let cluster = Cluster::seeded(nodes, workers, seed);
            let run = cluster.run(&Arc::new(job)).unwrap_or_else(|error| panic!("{at}: {error}"));
            let (answer, told) = (answer(&memory), run.sum(|metrics| &metrics.late));
            if stream.idle && told > late {
                // Time went on without who was idle: more rows are late, but none is lost.
                let count = |row: &String| row.split('|').nth(3)?.parse::<u64>().ok();
                let counted: u64 = answer.iter().filter_map(count).sum();
                assert_eq!(counted + told, all, "{at}");
                continue;
            }
            assert_eq!(answer, expected, "{at}");
            assert_eq!(told, late, "{at}");
            assert_eq!(run.sum(|metrics| &metrics.windows), expected.len() as u64, "{at}");
        }
    }
    let met = late_rows > 100 && idle_cases > 10 && rows > 10_000;
    cases.met(met, &format!("{late_rows} late, {idle_cases} idle, {rows} rows"));
}
