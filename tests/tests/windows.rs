//! Tumbling, hopping and cumulating windows and sessions, on every exchange and any number of
//! workers, against every row in every window that has it.
//!
//! The jobs are made by hand: windows are a matter of the dataflow, whatever SQL calls them.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, Schema, TimeUnit};
use dataflow::connector::{Connector, TableDef};
use dataflow::job::{
    Aggregation, Edge, Exchange, Input, Job, Operator, OperatorKind, Settings, Watermark, Window,
};
use state::{GroupBy, StateOptions, Windows};
use tests::cluster::Cluster;
use tests::memory::Memory;
use tests::random::{DELAY_MS, IDLE_MS, Random, Stream, stream};

const CASES: u64 = 120;

/// Cluster sizes: nodes and workers of each.
const SIZES: [(u32, u32); 4] = [(1, 1), (2, 1), (3, 1), (2, 2)];

fn windows(random: &mut Random) -> Windows {
    let seconds = |random: &mut Random, n: u64| 1_000 * (1 + random.below(n) as i64);
    let offset = random.below(20_000) as i64 - 10_000;
    if random.chance(30) {
        return Windows::tumbling(seconds(random, 20), offset).expect("it is positive");
    }
    if random.chance(40) {
        let (step, steps) = (seconds(random, 20), 1 + random.below(8) as i64);
        return Windows::cumulating(step * steps, step, offset).expect("a step divides the size");
    }
    // A second slide that does not divide the size, and windows with gaps between them.
    let (size, slide) = (seconds(random, 60), 500 * (1 + random.below(60) as i64));
    Windows::hopping(size, slide, offset).expect("both are positive")
}

/// Rows of the result, how many rows are late, and how many are late for some windows only.
fn expected(stream: &Stream, windows: &Windows) -> (Vec<String>, u64, u64) {
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
            met = met.max(row.ts - DELAY_MS);
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
fn job(memory: &Memory, stream: &Stream, windows: Windows, exchange: Exchange) -> Job {
    let input_schema = stream.table.schema.clone();
    let (options, metadata) = Default::default();
    let table = TableDef { name: "t".into(), schema: input_schema.clone(), options, metadata };
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let field = |name: &str, of: &DataType| Field::new(name, of.clone(), true);
    let schema = Arc::new(Schema::new(vec![
        field("k", &DataType::Int64),
        field("count", &DataType::Int64),
        field("sum", &DataType::Int64),
        field("window_start", &time),
        field("window_end", &time),
        field("window_time", &time),
    ]));
    let sum = state::aggregates::sum(&DataType::Int64).expect("there is a sum of integers");
    let aggregation = Aggregation {
        input_schema,
        group_by: Arc::new(GroupBy {
            keys: vec![DataType::Int64],
            aggregates: vec![state::aggregates::count(), sum],
            options: StateOptions::default(),
        }),
        keys: vec![0],
        args: vec![vec![], vec![2]],
        window: Some(Window { column: 4, time_type: time, windows, attached: false }),
        exchange,
        schema: schema.clone(),
    };
    let source = memory.source(&table, &[0, 1, 2, 3, 4]).expect("the table is there");
    let watermark = Watermark { column: 4, delay: DELAY_MS, idle_timeout_ns: None };
    let input = Input { table: "t".into(), source, watermark: Some(watermark) };
    let sink = memory.sink(&table).expect("a sink");
    let kinds = [
        OperatorKind::Source(input),
        OperatorKind::Aggregate(Box::new(aggregation)),
        OperatorKind::Sink { sink, schema },
    ];
    let edge = |from| vec![Edge { from, step: None, timed: true }];
    let operators = kinds.into_iter().enumerate().map(|(at, kind)| {
        let inputs = at.checked_sub(1).map(edge).into_iter().collect();
        Operator { name: "windows".into(), inputs, kind }
    });
    let settings = Settings { epoch_bytes: 4_096, ..Settings::default() };
    Job { operators: operators.collect(), settings }
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
    for seed in 0..CASES {
        let mut random = Random::new(seed + 40_000);
        let stream = loop {
            // Idle flows are judged by how far others have come: not for this oracle.
            let stream = stream(&mut random);
            if !stream.idle {
                break stream;
            }
        };
        let windows = windows(&mut random);
        let (expected, late, partly) = expected(&stream, &windows);
        (late_rows, partly_rows) = (late_rows + late, partly_rows + partly);
        rows += expected.len();
        let many = SIZES[seed as usize % SIZES.len()];
        for ((nodes, workers), exchange) in
            [((1, 1), Exchange::Merge), (many, Exchange::Merge), (many, Exchange::Shuffle)]
        {
            let at = format!("seed {seed}, {nodes}x{workers}, {exchange}, {windows:?}");
            let memory = Memory::new(None);
            memory.add("t", stream.table.clone());
            let job = job(&memory, &stream, windows, exchange);
            let cluster = Cluster::seeded(nodes, workers, seed);
            let run = cluster.run(&Arc::new(job)).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(answer(&memory), expected, "{at}");
            assert_eq!(run.sum(|metrics| &metrics.late), late, "{at}");
        }
    }
    assert!(late_rows > 100 && partly_rows > 100 && rows > 10_000, "too tame");
}

/// Rows of the result where windows are sessions, how many rows are late, and how many there are.
fn expected_sessions(stream: &Stream, gap: i64) -> (Vec<String>, u64, u64) {
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
            met = met.max(row.ts - DELAY_MS);
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
    for seed in 0..CASES {
        let mut random = Random::new(seed + 60_000);
        let stream = stream(&mut random);
        let gap = *random.one_of(&[1, 7, 400, 3_000, 20_000, 90_000]);
        let windows = Windows::sessions(gap).expect("it is positive");
        let (expected, late, all) = expected_sessions(&stream, gap);
        (late_rows, rows) = (late_rows + late, rows + expected.len());
        idle_cases += u64::from(stream.idle);
        let many = SIZES[seed as usize % SIZES.len()];
        for ((nodes, workers), exchange) in
            [((1, 1), Exchange::Merge), (many, Exchange::Merge), (many, Exchange::Shuffle)]
        {
            let at = format!("seed {seed}, {nodes}x{workers}, {exchange}, gap {gap}");
            let memory = Memory::new(None);
            memory.add("t", stream.table.clone());
            let mut job = job(&memory, &stream, windows, exchange);
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
    assert!(late_rows > 100 && idle_cases > 10 && rows > 10_000, "too tame");
}
