//! Chains of stages whose rows travel, with the smallest receive windows, on simulated clusters and
//! as processes: the rows are those of an oracle, and nothing waits forever.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use channel::RingConfig;
use dataflow::connector::{Connector, TableDef};
use dataflow::fusion::fuse;
use dataflow::job::{JobGraph, Settings};
use stream::{Columns, Setup, Stream};
use tests::asked::{Asked, check, endless, in_windows};
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::command::{Dir, run_sql};
use tests::memory::{Event, Memory, Table};
use tests::random::{Random, batch};
use tests::remainder::ByRemainder;
use tests::scenario::plan;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]))
}

fn numbers(of: impl Iterator<Item = i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(of.collect::<Int64Array>());
    RecordBatch::try_new(schema(), vec![column]).expect("one column")
}

/// Each stage partitions the numbers by their remainder, or every third one round-robin, and adds
/// one to them.
fn chain(memory: &Memory, rows: i64, stages: usize) -> Stream {
    let flow = |flow: i64| -> Vec<Event> {
        let own: Vec<i64> = (0..rows).filter(|n| n % 4 == flow).collect();
        own.chunks(50).map(|part| Event::Rows(numbers(part.iter().copied()))).collect()
    };
    let flows = (0..4).map(flow).collect();
    memory.add("numbers", Table { schema: schema(), bounded: true, flows });
    let (options, metadata) = Default::default();
    let def =
        TableDef { name: "numbers".into(), schema: schema(), options, metadata, buckets: vec![] };
    let source = memory.source(&def, &[0]).expect("it was added");
    let mut stream = Stream::read("numbers", source, None).expect("there is no time");
    for stage in 0..stages {
        let led = match stage % 3 {
            2 => stream.rebalance(),
            _ => stream.route(Arc::new(ByRemainder(0))),
        };
        let next = Columns::of(&[]).and("n", DataType::Int64);
        let plus_one = |batch: &RecordBatch| {
            let numbers = batch.column(0).as_primitive::<Int64Type>();
            let next: ArrayRef = Arc::new(numbers.unary::<_, Int64Type>(|n| n + 1));
            Ok(vec![next])
        };
        stream = led.map(next, plus_one).expect("it is a number");
    }
    stream
}

/// The results of a chain, on a cluster with small rings and windows.
fn through(seed: u64, (nodes, workers): (u32, u32), (rows, stages): (i64, usize)) -> Vec<i64> {
    let memory = Memory::new(None);
    let stream = chain(&memory, rows, stages);
    let (options, metadata) = Default::default();
    let def = TableDef { name: "out".into(), schema: schema(), options, metadata, buckets: vec![] };
    let output = stream.into_sink("out", memory.sink(&def).expect("it takes all"));
    let settings = Settings {
        receive_bytes: 1 << (10 + seed % 3),
        ring: RingConfig { slots: 3, slot_bytes: 512, control_slots: 1, ..RingConfig::default() },
        batch_rows_max: 64,
        ..Settings::default()
    };
    let setup = Setup {
        workers: nodes * workers,
        beside: 1,
        exchange: None,
        epoch: settings.epoch,
        state_bytes_max: 1 << 30,
        table_bytes_max: 1 << 20,
    };
    let operators = stream::job(&[output], &setup).expect("it fits");
    let mut job = JobGraph { operators, settings };
    fuse(&mut job, nodes * workers);
    let ran = Cluster::seeded(nodes, workers, seed).run(&Arc::new(job));
    ran.unwrap_or_else(|error| panic!("seed {seed}, {nodes}x{workers}: {error}"));
    let mut got: Vec<i64> = vec![];
    for batch in memory.all_committed() {
        got.extend(batch.column(0).as_primitive::<Int64Type>().values());
    }
    got.sort_unstable();
    got
}

#[test]
fn chains_of_shuffles_neither_lose_rows_nor_wait_forever() {
    let sizes = [(2, 1), (3, 1), (1, 3), (2, 2), (4, 1)];
    for seed in &mut cases(60) {
        let size = sizes[seed as usize % sizes.len()];
        let stages = 2 + (seed / 5 % 2) as usize;
        let rows = [0, 1, 800][if seed % 10 < 2 { seed as usize % 2 } else { 2 }];
        let expected: Vec<i64> = (0..rows).map(|n| n + stages as i64).collect();
        assert_eq!(through(seed, size, (rows, stages)), expected, "seed {seed}, {size:?}");
    }
}

/// A grouping behind a grouping or a join, whose rows are gathered, and the same query in batch
/// over the rows that are in time.
fn staged(random: &mut Random, seed: u64) -> Asked {
    let window = |size: u64| format!("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND)");
    let start = "date_bin(INTERVAL '10 second', ts)";
    match seed % 3 {
        // Two stages: by key and word, then by word.
        0 => Asked {
            ours: format!(
                "SELECT window_start, s, count(*), sum(c), max(c) FROM (
                   SELECT window_start, window_end, k, s, count(*) AS c FROM {} AS t
                   GROUP BY window_start, window_end, k, s) AS by_key
                 GROUP BY window_start, window_end, s",
                window(10)
            ),
            batch: format!(
                "SELECT ws, s, count(*), sum(c), max(c) FROM (
                   SELECT {start} AS ws, k, s, count(*) AS c FROM t GROUP BY {start}, k, s)
                 GROUP BY ws, s"
            ),
        },
        // Two stages: windows are joined by key, then grouped by word.
        1 => Asked {
            ours: format!(
                "SELECT x.window_start, x.s, count(*), sum(y.c) FROM (SELECT * FROM {0}) AS x
                 JOIN (SELECT window_start, window_end, k, count(*) AS c FROM {0} AS t
                       GROUP BY window_start, window_end, k) AS y
                 ON x.k = y.k AND x.window_start = y.window_start AND x.window_end = y.window_end
                 GROUP BY x.window_start, x.window_end, x.s",
                window(10)
            ),
            batch: format!(
                "SELECT x.ws, x.s, count(*), sum(y.c) FROM (SELECT {start} AS ws, * FROM t) AS x
                 JOIN (SELECT {start} AS ws, k, count(*) AS c FROM t GROUP BY {start}, k) AS y
                 ON x.k = y.k AND x.ws = y.ws GROUP BY x.ws, x.s"
            ),
        },
        // Three stages: by key and word, then by key, then by count.
        _ => {
            let least = random.below(3);
            Asked {
                ours: format!(
                    "SELECT window_start, words, count(*) FROM (
                       SELECT window_start, window_end, k, count(*) AS words FROM (
                         SELECT window_start, window_end, k, s, count(*) AS c FROM {} AS t
                         GROUP BY window_start, window_end, k, s) AS a
                       WHERE c > {least} GROUP BY window_start, window_end, k) AS b
                     GROUP BY window_start, window_end, words",
                    window(10)
                ),
                batch: format!(
                    "SELECT ws, words, count(*) FROM (
                       SELECT ws, k, count(*) AS words FROM (
                         SELECT {start} AS ws, k, s, count(*) AS c FROM t GROUP BY {start}, k, s)
                       WHERE c > {least} GROUP BY ws, k)
                     GROUP BY ws, words"
                ),
            }
        }
    }
}

#[test]
fn stages_of_sql_with_the_smallest_windows_give_the_rows_of_the_oracle() {
    let mut rows = 0;
    let mut cases = cases(45);
    for seed in &mut cases {
        let mut random = Random::new(seed + 90_000);
        let stream = endless(&mut random);
        let Asked { ours, batch: meant } = staged(&mut random, seed);
        let small = "SET millstream.receive_bytes = '1 KiB'; SET millstream.slots = 3;
                     SET millstream.slot_bytes = '4 KiB';";
        let asked = Asked { ours: format!("{small} {ours}"), batch: meant };
        let in_time = batch(&in_windows(&stream, 10));
        rows += check(&asked, &[("t", &stream.table)], &[("t", in_time)], seed);
    }
    cases.met(rows > 1_000, &format!("{rows} rows"));
}

/// A table of two numbers, in some flows of some batches.
fn pairs(random: &mut Random, rows: u64) -> (Vec<[i64; 2]>, Table) {
    let pair = |_| [random.below(20) as i64, random.below(20) as i64];
    let rows: Vec<[i64; 2]> = (0..rows).map(pair).collect();
    let fields = ["k", "n"].map(|name| Field::new(name, DataType::Int64, true));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let batch = |rows: &[[i64; 2]]| {
        let column = |at: usize| -> ArrayRef {
            Arc::new(rows.iter().map(|row| row[at]).collect::<Int64Array>())
        };
        let batch = RecordBatch::try_new(schema.clone(), vec![column(0), column(1)]);
        Event::Rows(batch.expect("two columns"))
    };
    let flow = |part: &[[i64; 2]]| part.chunks(30).map(batch).collect();
    let flows = rows.chunks(rows.len() / 3 + 1).map(flow).collect();
    (rows, Table { schema, bounded: true, flows })
}

/// Joins of tables that end, one behind another and by another key: rows of a probe side wait at
/// their receiver until the build is complete there.
#[test]
fn joins_behind_joins_give_each_pair_once() {
    let sizes = [(2, 1), (3, 1), (1, 3), (2, 2), (4, 1)];
    let mut pairs_seen = 0;
    let mut cases = cases(40);
    for seed in &mut cases {
        let mut random = Random::new(seed + 95_000);
        let [a, b, c] = [300, 40, 40].map(|most| {
            let rows = if seed % 8 == 0 { random.below(3) } else { random.below(most) };
            pairs(&mut random, rows)
        });
        let memory = Memory::new(None);
        let mut script = String::from(
            "SET millstream.receive_bytes = '1 KiB'; SET millstream.slots = 3;
             SET millstream.slot_bytes = '1 KiB'; SET millstream.exchange = 'shuffle';
             SET millstream.batch_rows = 50;",
        );
        for (name, (_, table)) in [("a", &a), ("b", &b), ("c", &c)] {
            memory.add(name, table.clone());
            script +=
                &format!("CREATE TABLE {name} (k BIGINT, n BIGINT) WITH ('connector' = 'memory');");
        }
        script += "SELECT a.n + b.n * 100 + c.n * 10000 AS n FROM a JOIN b ON a.k = b.k
                   JOIN c ON b.n = c.k";
        let (nodes, workers) = sizes[seed as usize % sizes.len()];
        let stage = plan(&memory, &script, nodes, workers);
        assert!(!stage.explain.text().contains("Batch"), "{}", stage.explain.text());
        let ran = Cluster::seeded(nodes, workers, seed).run(&Arc::new(stage.job));
        ran.unwrap_or_else(|error| panic!("seed {seed}, {nodes}x{workers}: {error}"));
        let mut got: Vec<i64> = vec![];
        for batch in memory.all_committed() {
            got.extend(batch.column(0).as_primitive::<Int64Type>().values());
        }
        got.sort_unstable();
        let mut expected: Vec<i64> = vec![];
        for a in &a.0 {
            for b in b.0.iter().filter(|b| a[0] == b[0]) {
                let partners = c.0.iter().filter(|c| b[1] == c[0]);
                expected.extend(partners.map(|c| a[1] + b[1] * 100 + c[1] * 10_000));
            }
        }
        expected.sort_unstable();
        assert_eq!(got, expected, "seed {seed}, {nodes}x{workers}");
        pairs_seen += got.len();
    }
    cases.met(pairs_seen > 1_000, &format!("{pairs_seen} pairs"));
}

/// As processes, over shared memory and TCP, and as threads of one process: all rows are gathered,
/// through windows that hold a few rows each.
#[test]
fn processes_gather_within_windows() {
    let sql = "CREATE TABLE flights (WATERMARK FOR time_hour AS time_hour - INTERVAL '1' HOUR)
               WITH ('connector' = 'file', 'path' = 'examples/data/flights.parquet');
               SELECT origin, dest, carrier, count(*) FROM (
                 SELECT origin, dest, carrier, tailnum FROM flights
                 GROUP BY origin, dest, carrier, tailnum) AS planes
               GROUP BY origin, dest, carrier;";
    let rows = |args: &[&str]| {
        let dir = Dir::new("receive");
        let common = ["--format", "csv", "--quiet"];
        let outcome = run_sql(&dir, sql, &[&common[..], args].concat()).ended(0);
        let mut lines: Vec<String> = outcome.out.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let expected = rows(&["--workers", "1"]);
    assert!(expected.len() > 300, "{} rows", expected.len());
    let small = ["--set", "millstream.receive_bytes=1KiB", "--set", "millstream.exchange=shuffle"];
    for layout in [
        &["--nodes", "2", "--workers", "2", "--fabric", "shm"][..],
        &["--nodes", "2", "--workers", "2", "--fabric", "tcp"],
        &["--nodes", "4", "--workers", "1", "--fabric", "tcp"],
        &["--workers", "4"],
    ] {
        assert_eq!(rows(&[layout, &small[..]].concat()), expected, "{layout:?}");
    }
}
