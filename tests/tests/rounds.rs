//! Jobs that keep checkpoints, lost at random turns: what was published by then, and what the next
//! run publishes, are the rows of a run without failures.

use std::sync::Arc;

use dataflow::sink::Placement;
use tests::asked::endless;
use tests::cases::cases;
use tests::cluster::Cluster;
use tests::memory::{Memory, Table};
use tests::random::{BESIDE_COLUMNS, COLUMNS, DELAY_MS, Random, beside};
use tests::rounds::{Ran, run};
use tests::rows::sorted;
use tests::scenario::plan;

/// Seeds, if nobody asks for more.
const SEEDS: u64 = 200;

/// Cluster sizes: nodes and workers of each.
const SIZES: [(u32, u32); 6] = [(1, 1), (2, 1), (1, 3), (3, 1), (2, 2), (4, 1)];

/// Queries over the streams `t` and `u`, which never end, and the table `b`.
fn query(random: &mut Random) -> String {
    let size = *random.one_of(&[1, 7, 60]);
    let window = format!("TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND");
    let starts = "GROUP BY window_start, window_end, k";
    let near = "t.ts BETWEEN u.ts - INTERVAL '3' SECOND AND u.ts + INTERVAL '4' SECOND";
    match random.below(9) {
        0 => format!("SELECT window_start, k, count(*), sum(v) FROM TUMBLE({window}) {starts}"),
        1 => format!(
            "SELECT window_end, k, count(*), min(v) FROM
               HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND,
               INTERVAL '{}' SECOND) {starts}",
            3 * size
        ),
        2 => format!(
            "SELECT window_start, window_end, k, count(*), sum(w) FROM
               SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '{size}' SECOND) {starts}"
        ),
        3 => format!("SELECT t.k, t.ts, t.v, u.v AS other FROM t JOIN u ON t.k = u.k AND {near}"),
        4 => format!("SELECT t.ts, t.v, u.v AS other FROM t LEFT JOIN u ON t.k = u.k AND {near}"),
        5 => "SELECT t.v, t.ts, g FROM t JOIN b ON t.k = id".into(),
        6 => format!(
            "SELECT window_start, g, count(*) FROM TUMBLE({window}) AS t JOIN b ON t.k = id
             GROUP BY window_start, window_end, g"
        ),
        7 => format!(
            "SELECT k, max(v), min(ts), count(*) FROM
               CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '{size}' SECOND, INTERVAL '{}' SECOND)
             {starts}",
            4 * size
        ),
        _ => "SELECT k, s, v, ts FROM t WHERE v > 0".into(),
    }
}

/// Runs a random query with rounds and failures; gives its rows, those of a run without, and what
/// happened.
fn case(seed: u64) -> (String, Vec<String>, Vec<String>, Ran) {
    let mut random = Random::new(seed + 90_000);
    let tables: [Table; 2] = [endless(&mut random).table, endless(&mut random).table];
    let query = query(&mut random);
    let script = format!(
        "SET millstream.exchange = {}; SET millstream.epoch_bytes = 4096;
         SET millstream.batch_rows = {}; SET millstream.multicast = {};
         CREATE TABLE t ({COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL '{delay}' SECOND)
           WITH ('connector' = 'memory');
         CREATE TABLE u ({COLUMNS}, WATERMARK FOR ts AS ts - INTERVAL '{delay}' SECOND)
           WITH ('connector' = 'memory');
         CREATE TABLE b ({BESIDE_COLUMNS}) WITH ('connector' = 'memory');
         {query};",
        random.one_of(&["auto", "merge", "shuffle", "uppar"]),
        random.one_of(&[7, 100, 8_192]),
        random.one_of(&["tree", "hardware"]),
        delay = DELAY_MS / 1_000,
    );
    // Each worker writes its rows itself, or one for all.
    let memory = Memory::new(random.chance(50).then_some(Placement::Everywhere));
    let [t, u] = tables;
    memory.add("t", t);
    memory.add("u", u);
    memory.add("b", beside());
    let job = |nodes, workers| Arc::new(plan(&memory, &script, nodes, workers).job);
    Cluster::seeded(1, 1, seed).run(&job(1, 1)).expect("it runs");
    let expected = sorted(&memory.all_committed());
    memory.clear();
    let runs = 1 + random.below(5);
    let sizes: Vec<(u32, u32)> = (0..runs).map(|_| *random.one_of(&SIZES)).collect();
    let at = format!("seed {seed}, {sizes:?}: {script}");
    // It is seen where a run fails.
    println!("{at}");
    let ran = run(job, &sizes, seed);
    let ran = ran.unwrap_or_else(|error| panic!("{at}: {error}"));
    (at, sorted(&memory.all_committed()), expected, ran)
}

#[test]
fn rows_of_a_job_that_is_lost_again_and_again_are_those_of_one_that_is_not() {
    let mut all = Ran::default();
    let mut cases = cases(SEEDS);
    for seed in &mut cases {
        let (at, got, expected, ran) = case(seed);
        let missing: Vec<_> = expected.iter().filter(|row| !got.contains(row)).take(5).collect();
        let other: Vec<_> = got.iter().filter(|row| !expected.contains(row)).take(5).collect();
        assert!(
            got == expected,
            "{at}: {} rows and not {}: without {missing:?}, with {other:?}; {ran:?}",
            got.len(),
            expected.len()
        );
        all.saved += ran.saved;
        all.crashes += ran.crashes;
        all.restored += ran.restored;
        all.rows += ran.rows;
    }
    println!("{all:?}");
    let met = all.saved > 500 && all.crashes > 150 && all.restored > 30 && all.rows > 10_000;
    cases.met(met, &format!("{all:?}"));
}
