//! Joins without equal keys, of which one side goes to every worker: on clusters of several sizes,
//! against DataFusion over the rows that are not late, and beside the exchange that brings all
//! rows of a window to one worker.

use std::sync::Arc;

use tests::asked::{Asked, check, endless, in_windows, on_time, same};
use tests::cluster::Cluster;
use tests::memory::{Event, Memory};
use tests::random::{COLUMNS, Random, Stream, batch};
use tests::rows::sorted;
use tests::scenario::plan;

/// Conditions that no key can lead rows by.
const NEAR: [&str; 4] =
    ["abs(a.v - b.v) < 20", "a.v < b.v AND a.k <> b.k", "a.k + b.k = 7", "a.v + b.v > 120"];

#[test]
fn windows_without_equal_keys() {
    let mut rows = 0;
    for seed in 0..48 {
        let mut random = Random::new(seed + 90_000);
        let (left, right) = (endless(&mut random), endless(&mut random));
        let size = *random.one_of(&[1, 5]);
        let on = random.one_of(&NEAR);
        let window = |name: &str| {
            let of = format!("TABLE {name}, DESCRIPTOR(ts), INTERVAL '{size}' SECOND");
            format!("(SELECT * FROM TUMBLE({of})) AS {name}")
        };
        let binned = |name: &str| {
            format!(
                "(SELECT *, date_bin(INTERVAL '{size} second', ts) AS at FROM {name}) AS {name}"
            )
        };
        let [a, b] = ["a", "b"].map(window);
        let ours =
            format!("a.window_start = b.window_start AND a.window_end = b.window_end AND {on}");
        let [c, d] = ["a", "b"].map(binned);
        let theirs = format!("a.at = b.at AND {on}");
        let ask = |select: &str, kind: &str| Asked {
            ours: format!("SELECT {select} FROM {a} {kind} {b} ON {ours}"),
            batch: format!("SELECT {select} FROM {c} {kind} {d} ON {theirs}"),
        };
        let pairs = "a.k, a.v, a.ts, b.k, b.v, b.w";
        let asked = match seed % 6 {
            0 | 1 => ask(pairs, "JOIN"),
            2 => ask(pairs, "LEFT JOIN"),
            3 => ask(pairs, "RIGHT JOIN"),
            4 => Asked {
                ours: format!(
                    "SELECT a.v, a.ts FROM {a} WHERE EXISTS (SELECT 1 FROM {b} WHERE {ours})"
                ),
                batch: format!(
                    "SELECT a.v, a.ts FROM {c} WHERE EXISTS (SELECT 1 FROM {d} WHERE {theirs})"
                ),
            },
            _ => Asked {
                ours: format!(
                    "SELECT a.v, a.ts FROM {a} WHERE NOT EXISTS (SELECT 1 FROM {b} WHERE {ours})"
                ),
                batch: format!(
                    "SELECT a.v, a.ts FROM {c} WHERE NOT EXISTS (SELECT 1 FROM {d} WHERE {theirs})"
                ),
            },
        };
        let tables = [("a", &left.table), ("b", &right.table)];
        let all = [
            ("a", batch(&in_windows(&left, size as i64))),
            ("b", batch(&in_windows(&right, size as i64))),
        ];
        rows += check(&asked, &tables, &all, seed);
    }
    assert!(rows > 10_000, "too tame: {rows}");
}

#[test]
fn rows_near_each_other_without_equal_keys() {
    let mut rows = 0;
    for seed in 0..30 {
        let mut random = Random::new(seed + 91_000);
        let (left, right) = (endless(&mut random), endless(&mut random));
        let (on, apart) = (random.one_of(&NEAR), random.below(3));
        let near = format!(
            "{on} AND a.ts BETWEEN b.ts - INTERVAL '{apart}' SECOND AND b.ts + INTERVAL '1' SECOND"
        );
        let kind = ["JOIN", "LEFT JOIN", "RIGHT JOIN"][seed as usize % 3];
        let asked = same(format!("SELECT a.k, a.v, a.ts, b.k, b.v FROM a {kind} b ON {near}"));
        let tables = [("a", &left.table), ("b", &right.table)];
        let by_time = |stream| batch(&on_time(stream, |row, met| row.ts < met));
        rows += check(&asked, &tables, &[("a", by_time(&left)), ("b", by_time(&right))], seed);
    }
    assert!(rows > 3_000, "too tame: {rows}");
}

/// A stream that ends, of flows of so many rows.
fn ended(random: &mut Random, flows: usize, rows: usize) -> Stream {
    loop {
        let mut stream = endless(random);
        let all: Vec<_> = stream.flows.concat().into_iter().take(flows * rows).collect();
        if all.len() < flows * rows {
            continue;
        }
        stream.flows = all.chunks(rows).map(<[_]>::to_vec).collect();
        let flow = |rows: &Vec<_>| vec![Event::Rows(batch(rows))];
        stream.table.flows = stream.flows.iter().map(flow).collect();
        stream.table.bounded = true;
        return stream;
    }
}

#[test]
fn a_side_that_is_small_goes_everywhere_and_rows_are_the_same() {
    let mut rows = 0;
    for seed in 0..24 {
        let mut random = Random::new(seed + 93_000);
        let (large, small) = (ended(&mut random, 4, 90), ended(&mut random, 1, 9));
        let small_first = random.chance(50);
        let sides = if small_first { [&small, &large] } else { [&large, &small] };
        let [left, right] = sides;
        // The one side that can go everywhere is the small one, or both can.
        let kind = match (random.chance(50), small_first) {
            (true, _) => "JOIN",
            (_, true) => "RIGHT JOIN",
            _ => "LEFT JOIN",
        };
        let near = "a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '30' SECOND
                    AND b.ts + INTERVAL '30' SECOND";
        let asked = same(format!("SELECT a.k, a.v, a.ts, b.v, b.w FROM a {kind} b ON {near}"));
        let by_time = |stream| batch(&on_time(stream, |row, met| row.ts < met));
        let tables = [("a", &left.table), ("b", &right.table)];
        rows += check(&asked, &tables, &[("a", by_time(left)), ("b", by_time(right))], seed);

        let memory = Memory::new(None);
        let mut script = String::new();
        for (name, table) in tables {
            memory.add(name, table.clone());
            script += &format!(
                "CREATE TABLE {name} ({COLUMNS}, WATERMARK FOR ts AS ts)
                 WITH ('connector' = 'memory');"
            );
        }
        let text = plan(&memory, &(script + &asked.ours), 2, 2).explain.text();
        let side = if small_first { "a" } else { "b" };
        let broadcast = exchange_of(side, &text);
        let why = "broadcast: it moves at most half of what a shuffle would";
        assert!(broadcast.starts_with(why), "{text}");
    }
    assert!(rows > 500, "too tame: {rows}");
}

/// The network loses, repeats and reorders datagrams; what does not come is fetched.
#[test]
fn rows_are_the_same_by_the_tree_and_by_the_networks_multicast() {
    let (mut landed, mut fetched) = (0, 0);
    for seed in 0..12 {
        let mut random = Random::new(seed + 94_000);
        let (left, right) = (ended(&mut random, 3, 60), ended(&mut random, 3, 60));
        let query = "SELECT a.k, a.v, b.v, b.w FROM a JOIN b
                     ON a.v < b.v AND a.ts BETWEEN b.ts - INTERVAL '3' SECOND AND b.ts";
        let run = |multicast: &str| {
            let memory = Memory::new(None);
            let mut script =
                format!("SET millstream.batch_rows = 7; SET millstream.multicast = {multicast};");
            for (name, stream) in [("a", &left), ("b", &right)] {
                memory.add(name, stream.table.clone());
                script += &format!(
                    "CREATE TABLE {name} ({COLUMNS}, WATERMARK FOR ts AS ts)
                     WITH ('connector' = 'memory');"
                );
            }
            let (nodes, workers) = [(2, 1), (3, 2), (5, 1)][seed as usize % 3];
            let job = plan(&memory, &(script + query), nodes, workers).job;
            let run = Cluster::seeded(nodes, workers, seed).run(&Arc::new(job));
            let run = run.unwrap_or_else(|error| panic!("seed {seed}, {multicast}: {error}"));
            (sorted(&memory.all_committed()), run)
        };
        let ((rows, by_tree), (same, by_network)) = (run("tree"), run("hardware"));
        assert_eq!(rows, same, "seed {seed}");
        assert_eq!(by_tree.sum(|metrics| &metrics.broadcast_multicast), 0);
        landed += by_network.sum(|metrics| &metrics.broadcast_multicast_received);
        fetched += by_network.sum(|metrics| &metrics.broadcast_fetched);
    }
    assert!(landed > 100 && fetched > 10, "{landed} landed, {fetched} fetched");
}

/// The exchange of the rows of a table, from EXPLAIN.
fn exchange_of(table: &str, text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let scan = format!("Scan {table} (memory)");
    let at = lines.iter().position(|line| line.contains(&scan)).expect(text);
    let is_edge = |line: &&str| line.contains("├─ ") || line.contains("└─ ");
    let edge = lines[..at].iter().rfind(|line| is_edge(line)).expect(text);
    edge.split_once("─ ").map_or("", |(_, exchange)| exchange).to_owned()
}

/// What EXPLAIN says of the exchanges of both sides of a query over two streams, on so many
/// workers.
fn exchanges(settings: &str, hint: &str, join: &str, (nodes, workers): (u32, u32)) -> [String; 2] {
    let memory = Memory::new(None);
    let mut random = Random::new(5);
    let mut script = settings.to_owned();
    for name in ["a", "b"] {
        memory.add(name, endless(&mut random).table);
        script += &format!(
            "CREATE TABLE {name} ({COLUMNS}, WATERMARK FOR ts AS ts) WITH ('connector' = 'memory');
             CREATE VIEW w{name} AS SELECT * FROM
               TUMBLE(TABLE {name}, DESCRIPTOR(ts), INTERVAL '5' SECOND);"
        );
    }
    script += &format!(
        "\nSELECT {hint} wa.v FROM wa {join} AND wa.window_start = wb.window_start
         AND wa.window_end = wb.window_end"
    );
    let text = plan(&memory, &script, nodes, workers).explain.text();
    ["a", "b"].map(|table| exchange_of(table, &text))
}

#[test]
fn a_hint_broadcasts_a_side_of_a_join_of_equal_keys() {
    let mut rows = 0;
    for seed in 0..20 {
        let mut random = Random::new(seed + 92_000);
        let (left, right) = (endless(&mut random), endless(&mut random));
        let (kind, side) =
            [("JOIN", "b"), ("LEFT JOIN", "b"), ("RIGHT JOIN", "a")][seed as usize % 3];
        let on = "a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL '2' SECOND AND b.ts";
        let query = format!("a.k, a.v, a.ts, b.v, b.w FROM a {kind} b ON {on} AND a.v < b.v");
        let asked = Asked {
            ours: format!("SELECT /*+ BROADCAST({side}) */ {query}"),
            batch: format!("SELECT {query}"),
        };
        let tables = [("a", &left.table), ("b", &right.table)];
        let by_time = |stream| batch(&on_time(stream, |row, met| row.ts < met));
        rows += check(&asked, &tables, &[("a", by_time(&left)), ("b", by_time(&right))], seed);
    }
    assert!(rows > 1_000, "too tame: {rows}");
}

#[test]
fn explain_names_the_side_that_goes_everywhere_and_why() {
    let inner = "JOIN wb ON wa.v < wb.v";
    let stays = "forward: rows stay and meet the broadcast side";
    let right = "broadcast: there is no key; this is the right side, and both sizes are unknown";
    assert_eq!(exchanges("", "", inner, (2, 2)), [stays, right]);
    let [in_turn, _] = exchanges("", "", inner, (4, 2));
    assert!(in_turn.starts_with("rebalance: "), "{in_turn}");
    let [left, _] = exchanges("", "", "RIGHT JOIN wb ON wa.v < wb.v", (1, 3));
    let why = "broadcast: the join asks whether rows of the other side have a partner";
    assert_eq!(left, why);
    let hinted = exchanges("", "/*+ BROADCAST(wa) */", "JOIN wb ON wa.k = wb.k", (2, 2));
    assert_eq!(hinted, ["broadcast: hint BROADCAST(wa) at 6:12", stays]);
    for (settings, join, size, other) in [
        ("", inner, (1, 1), "forward: there is one worker"),
        ("", "JOIN wb ON wa.k = wb.k", (2, 2), "shuffle(wa.k): rows of equal keys meet"),
        ("", "FULL JOIN wb ON wa.v < wb.v", (2, 2), "shuffle(wa.window_end): rows of equal keys"),
        ("SET millstream.exchange = 'shuffle';", inner, (2, 2), "shuffle(wa.window_end): "),
    ] {
        let [left, _] = exchanges(settings, "", join, size);
        assert!(left.starts_with(other), "{join}: {left}");
    }
}
