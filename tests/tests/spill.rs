//! State larger than its budget: the same rows with a disk as without a bound, by every exchange,
//! in the simulator and as processes; and what a bad disk does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Int64Array, StringArray, TimestampMillisecondArray};
use arrow::record_batch::RecordBatch;
use dataflow::error::DataflowError;
use dataflow::metrics::OperatorMetrics;
use fabric::sim::SimOptions;
use state::StateError;
use state::sim::{SimDisk, SimDiskOptions};
use tests::cluster::{Cluster, Run};
use tests::command::{Dir, run_sql};
use tests::memory::{Event, Memory, Table};
use tests::random::schema;
use tests::rows::sorted;
use tests::scenario::plan;

const FLOWS: i64 = 6;
const BATCHES: i64 = 20;
const ROWS: i64 = 500;
/// Keys of all flows.
const KEYS: i64 = 20_000;
/// What a worker's state may hold.
const BUDGET: &str = "448 KiB";
/// The same where a part of what is kept has to fit with its keys.
const KEPT_BUDGET: &str = "1280 KiB";

/// Rows of six flows with keys far apart, of which each comes several times in the hour.
fn table() -> Table {
    let batch = |flow: i64, number: i64| {
        let at: Vec<i64> = (0..ROWS).map(|row| (number * ROWS + row) * FLOWS + flow).collect();
        let of = |by: fn(i64) -> i64| at.iter().map(|&at| by(at)).collect::<Int64Array>();
        let words = ["a", "b", "c"].iter().cycle().take(ROWS as usize);
        let times = at.iter().map(|at| at * 60);
        let columns: Vec<arrow::array::ArrayRef> = vec![
            Arc::new(of(|at| at * 7_919 % KEYS * 1_000_003)),
            Arc::new(StringArray::from_iter_values(words)),
            Arc::new(of(|at| at % 101)),
            Arc::new(of(|at| at % 7).unary::<_, arrow::datatypes::Float64Type>(|v| v as f64)),
            Arc::new(TimestampMillisecondArray::from_iter_values(times)),
        ];
        RecordBatch::try_new(schema(), columns).expect("the columns fit")
    };
    let flow = |flow| (0..BATCHES).map(|number| Event::Rows(batch(flow, number))).collect();
    Table { schema: schema(), bounded: true, flows: (0..FLOWS).map(flow).collect() }
}

const QUERIES: [&str; 5] = [
    "SELECT k, count(*), sum(v), max(w) FROM t GROUP BY k",
    "SELECT window_start, k, count(*), min(v) FROM TUMBLE(TABLE t, DESCRIPTOR(ts), \
     INTERVAL '20' MINUTE) GROUP BY window_start, window_end, k",
    "SELECT window_start, k, count(*), avg(w) FROM HOP(TABLE t, DESCRIPTOR(ts), \
     INTERVAL '10' MINUTE, INTERVAL '20' MINUTE) GROUP BY window_start, window_end, k",
    "SELECT window_end, k, count(*), sum(v) FROM CUMULATE(TABLE t, DESCRIPTOR(ts), \
     INTERVAL '15' MINUTE, INTERVAL '30' MINUTE) GROUP BY window_start, window_end, k",
    FREQUENT,
];

/// Every other row has one of 300 keys.
const FREQUENT: &str = "SELECT window_start, \
     CASE WHEN v % 2 = 0 THEN k / 1000003 % 300 ELSE k END AS key, count(*), avg(w) \
     FROM HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTE, INTERVAL '20' MINUTE) \
     GROUP BY window_start, window_end, CASE WHEN v % 2 = 0 THEN k / 1000003 % 300 ELSE k END";

/// Runs a query on two nodes of two workers, or on one worker; with a budget if there is a disk.
fn answer(
    (query, budget): (&str, &str),
    exchange: &str,
    disk: Option<Arc<SimDisk>>,
) -> Result<(Vec<String>, Run), DataflowError> {
    let memory = Memory::new(None);
    memory.add("t", table());
    memory.add("u", table());
    let budget = if disk.is_some() { budget } else { "1 GiB" };
    let script = format!(
        "SET millstream.exchange = {exchange};
         SET millstream.frequent_keys = 'on';
         SET millstream.epoch_bytes = '1 MiB';
         SET millstream.batch_rows = 512;
         SET millstream.state_bytes = '{budget}';
         CREATE TABLE t ({columns}, WATERMARK FOR ts AS ts - INTERVAL '30' SECOND)
             WITH ('connector' = 'memory');
         CREATE TABLE u ({columns}, WATERMARK FOR ts AS ts - INTERVAL '30' SECOND)
             WITH ('connector' = 'memory');
         {query};",
        columns = tests::random::COLUMNS
    );
    let (nodes, workers) = if exchange == "forward" { (1, 1) } else { (2, 2) };
    let job = Arc::new(plan(&memory, &script, nodes, workers).job);
    let network = SimOptions::seeded(7);
    let run = Cluster { nodes, workers, network, kill: None, breaks: None, disk }.run(&job)?;
    Ok((sorted(&memory.all_committed()), run))
}

#[test]
fn rows_do_not_depend_on_whether_state_fits() {
    for query in QUERIES {
        let (expected, _) = answer((query, BUDGET), "forward", None).expect("it fits");
        for exchange in ["forward", "merge", "shuffle"] {
            let disk = SimDisk::new(SimDiskOptions::default());
            let (rows, run) = answer((query, BUDGET), exchange, Some(disk.clone()))
                .unwrap_or_else(|error| panic!("{exchange}: {query}: {error}"));
            assert!(rows == expected, "{exchange}: {query}");
            let spilled = run.sum(|metrics| &metrics.spilled_bytes);
            assert!(spilled > 0, "{exchange}: {query}: nothing was spilled");
            assert!(run.sum(|metrics| &metrics.unspilled_bytes) > 0, "{exchange}: {query}");
            assert_eq!(disk.files(), 0, "{exchange}: {query}");
            let operators = run.metrics.iter().flat_map(|metrics| metrics.operators());
            let combined = |one: &OperatorMetrics| one.rows_combined.load(Ordering::Relaxed);
            let combined: u64 = operators.map(combined).sum();
            let expected = exchange == "shuffle" && query == FREQUENT;
            assert_eq!(combined > 0, expected, "{query}: {combined} rows of frequent keys");
        }
    }
}

/// Queries that keep rows until their window ends, until no row can meet them, or until their
/// session ends.
const KEEPING: [(&str, &str); 5] = [
    (
        "SELECT a.k, a.v, b.v, a.window_end \
     FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '20' MINUTE) a \
     JOIN TUMBLE(TABLE u, DESCRIPTOR(ts), INTERVAL '20' MINUTE) b \
     ON a.k = b.k AND a.window_start = b.window_start AND a.window_end = b.window_end",
        BUDGET,
    ),
    (
        "SELECT a.k, a.v, b.k, b.v FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '20' MINUTE) a \
     FULL JOIN TUMBLE(TABLE u, DESCRIPTOR(ts), INTERVAL '20' MINUTE) b \
     ON a.k = b.k AND a.window_start = b.window_start AND a.window_end = b.window_end",
        BUDGET,
    ),
    (
        "SELECT k, v, w, n FROM (SELECT k, v, w, ROW_NUMBER() OVER (PARTITION BY window_start, \
     window_end, k ORDER BY v DESC, ts) AS n \
     FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)) WHERE n <= 3",
        BUDGET,
    ),
    (
        "SELECT a.k, a.v, b.v, a.ts FROM t a LEFT JOIN u b \
     ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '20' MINUTE AND a.ts + INTERVAL '20' MINUTE",
        KEPT_BUDGET,
    ),
    (
        "SELECT k, window_start, window_end, v, w \
     FROM SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '30' MINUTE)",
        KEPT_BUDGET,
    ),
];

#[test]
fn rows_that_are_kept_do_not_depend_on_whether_they_fit() {
    for (query, budget) in KEEPING {
        let (expected, whole) = answer((query, budget), "forward", None).expect("it fits");
        assert!(!expected.is_empty(), "{query}");
        let most = whole.sum(|metrics| &metrics.state_bytes_peak);
        for exchange in ["forward", "shuffle"] {
            let disk = SimDisk::new(SimDiskOptions::default());
            let (rows, run) = answer((query, budget), exchange, Some(disk.clone()))
                .unwrap_or_else(|error| panic!("{exchange}: {query}: {error}"));
            assert!(rows == expected, "{exchange}: {query}");
            let spilled = run.sum(|metrics| &metrics.spilled_bytes);
            assert!(spilled > 0, "{exchange}: {query}: nothing of {most} bytes was spilled");
            assert_eq!(disk.files(), 0, "{exchange}: {query}");
        }
    }
}

#[test]
fn a_bad_disk_ends_the_job() {
    let of =
        |options| answer((QUERIES[0], BUDGET), "merge", Some(SimDisk::new(options))).map(|_| ());
    let full = of(SimDiskOptions { bytes_max: Some(50_000), ..SimDiskOptions::default() });
    assert!(full.expect_err("it is full").is_disk());
    let fails = of(SimDiskOptions { fails_at: Some(9), ..SimDiskOptions::default() });
    let fails = fails.expect_err("it cannot be read").to_string();
    assert!(fails.ends_with("the device does not answer"), "{fails}");
    let damaged = of(SimDiskOptions { damages_at: Some(5), ..SimDiskOptions::default() });
    let damaged = damaged.expect_err("it is damaged");
    let DataflowError::State(StateError::Damaged { .. }) = damaged.cause() else {
        panic!("{damaged:?}");
    };
}

/// Each of many keys twice.
const TWICE: &str = "
    SET millstream.state_bytes = '4 MiB';
    CREATE TABLE numbers (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '800000', 'fields.n.kind' = 'sequence');
    CREATE TABLE counts (k STRING, c BIGINT) WITH ('connector' = 'file', 'path' = 'counts.csv');
    INSERT INTO counts
        SELECT 'key ' || CAST(n % 400000 AS STRING), count(*) FROM numbers
        GROUP BY 'key ' || CAST(n % 400000 AS STRING);";

#[test]
fn a_command_with_a_folder_needs_no_more_memory() {
    for exchange in ["merge", "shuffle"] {
        let dir = Dir::new("spill");
        let exchange = format!("millstream.exchange={exchange}");
        let layout = ["--nodes", "2", "--workers", "1", "--set", &exchange];
        let spill = ["--set", "millstream.spill_dir=./cold"];
        let outcome = run_sql(&dir, TWICE, &[&layout[..], &spill].concat()).ended(0);
        assert!(outcome.err.contains("; spilled "), "{}", outcome.err);
        let rows = dir.read("counts.csv");
        let mut keys: Vec<&str> =
            rows.lines().skip(1).map(|row| row.strip_suffix(",2").expect(row)).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 400_000);
        let left = std::fs::read_dir(dir.path().join("cold")).expect("it is there").count();
        assert_eq!(left, 0, "files go with the job");
    }
    let dir = Dir::new("no-spill");
    let outcome = run_sql(&dir, TWICE, &["--workers", "1"]);
    assert!(outcome.err.contains("millstream.spill_dir"), "{}", outcome.err);
}

/// More numbers than fit the memory, beside the rows of what is replicated.
const STREAMED: &str = "
    SET millstream.state_bytes = '4 MiB';
    CREATE TABLE numbers (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '2000000', 'fields.n.kind' = 'sequence',
        'fields.n.max' = '1999999');
    CREATE TABLE few (f BIGINT) WITH (
        'connector' = 'generator', 'rows' = '3', 'fields.f.kind' = 'sequence');
    CREATE TABLE counts (rows_out BIGINT, n BIGINT, f BIGINT)
        WITH ('connector' = 'file', 'path' = 'counts.csv');
    INSERT INTO counts
        SELECT count(*), sum(n), sum(f) FROM numbers CROSS JOIN few
        UNION ALL SELECT count(*), sum(n), sum(f) FROM numbers LEFT JOIN few ON n < f
        UNION ALL SELECT count(*), sum(n), 0 FROM numbers WHERE n > (SELECT avg(n) FROM numbers);";

#[test]
fn the_larger_side_of_a_join_without_an_equality_needs_no_memory() {
    for layout in [["1", "1"], ["2", "2"]] {
        let dir = Dir::new("streamed");
        let [nodes, workers] = layout;
        run_sql(&dir, STREAMED, &["--nodes", nodes, "--workers", workers]).ended(0);
        let rows = dir.read("counts.csv");
        let mut rows: Vec<&str> = rows.lines().skip(1).collect();
        rows.sort_unstable();
        let expected =
            ["1000000,1499999500000,0", "2000001,1999999000000,5", "6000000,5999997000000,6000000"];
        assert_eq!(rows, expected, "{nodes} x {workers}");
    }
}

/// Keys of 240 bytes, of which some come twice: 4.0 GiB of keys alone.
const FOUR_GIB: &str = "
    SET millstream.state_bytes = '1 GiB';
    CREATE TABLE numbers (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '20000000',
        'fields.n.kind' = 'sequence', 'fields.n.max' = '17999999');
    CREATE TABLE totals (keys BIGINT, bytes BIGINT, rows_in BIGINT, least BIGINT, most BIGINT)
        WITH ('connector' = 'file', 'path' = 'totals.csv');
    INSERT INTO totals
        SELECT count(*), sum(octet_length(k)), sum(c), min(c), max(c) FROM (
            SELECT k, count(*) AS c
            FROM (SELECT repeat('x', 232) || CAST(n + 10000000 AS STRING) AS k FROM numbers)
            GROUP BY k);";

#[test]
fn four_gibibytes_of_state_need_one() {
    let dir = Dir::new("four-gib");
    // Not where other files of tests are: that may be memory.
    let cold = format!("{}/four-gib", env!("CARGO_TARGET_TMPDIR"));
    let spill = format!("millstream.spill_dir={cold}");
    let outcome = run_sql(&dir, FOUR_GIB, &["--workers", "1", "--set", &spill]).ended(0);
    assert_eq!(std::fs::read_dir(&cold).expect("it is there").count(), 0, "files go with the job");
    let spilled = outcome.err.split("; spilled ").nth(1).expect(&outcome.err);
    let (gib, _) = spilled.split_once(" GiB").expect(spilled);
    assert!(gib.parse::<f64>().expect(gib) > 3.0, "at most one of four stays: {spilled}");
    // 18 million keys of 232 letters and eight digits, the first two million of them twice.
    let totals = dir.read("totals.csv");
    assert_eq!(totals.lines().nth(1), Some("18000000,4320000000,20000000,1,2"), "{totals}");
}
