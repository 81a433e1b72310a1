//! Real processes, on shared memory and on TCP: the same rows on every layout, memory as announced,
//! Ctrl-C, and nodes that are killed.

use std::fs;
use std::time::Duration;

use tests::command::{
    Dir, Outcome, Running, await_ends, kill, peak_bytes, root, run, run_sql, shared_bytes,
};

/// Within which all processes have to end when one was killed.
const PATIENCE: Duration = Duration::from_secs(5);

fn lines(csv: &str) -> Vec<String> {
    let mut lines: Vec<_> = csv.lines().map(str::to_owned).collect();
    // The header stays where it is.
    if let Some((_, rows)) = lines.split_first_mut() {
        rows.sort();
    }
    lines
}

/// Runs `examples/flights.sql`; its rows must be those that were computed without us.
#[track_caller]
fn flights(args: &[&str]) {
    let dir = Dir::new("flights");
    let common = ["run", "examples/flights.sql", "--format", "csv"];
    let outcome = run(&dir, &[&common[..], args].concat()).ended(0);
    let expected = fs::read_to_string(root().join("examples/expected/flights.csv")).unwrap();
    let (got, expected) = (lines(&outcome.out), lines(&expected));
    let wrong = got.iter().zip(&expected).position(|(got, expected)| got != expected);
    let shown = wrong.map(|at| (&got[at], &expected[at]));
    assert!(shown.is_none() && got.len() == expected.len(), "{args:?}: {shown:?}, {}", got.len());
    // A run of more than some seconds says how far it is before.
    let summary = outcome.err.lines().last().unwrap_or_default();
    assert!(summary.starts_with("336,776 rows in, 19,486 out in "), "{}", outcome.err);
    assert!(!outcome.err.contains("late"), "{}", outcome.err);
}

const MERGE: &str = "millstream.exchange=merge";
const SHUFFLE: &str = "millstream.exchange=shuffle";

#[test]
fn flights_on_one_process() {
    flights(&[]);
    flights(&["--workers", "1", "--set", "millstream.exchange=forward"]);
    flights(&["--workers", "3", "--set", SHUFFLE]);
}

#[test]
fn flights_on_four_nodes_over_shared_memory() {
    for exchange in [MERGE, SHUFFLE] {
        flights(&["--nodes", "4", "--workers", "1", "--fabric", "shm", "--set", exchange]);
    }
}

#[test]
fn flights_on_four_nodes_over_tcp() {
    for exchange in [MERGE, SHUFFLE] {
        flights(&["--nodes", "4", "--workers", "1", "--fabric", "tcp", "--set", exchange]);
    }
}

#[test]
fn flights_on_two_nodes_of_two_workers() {
    for fabric in ["shm", "tcp"] {
        flights(&["--nodes", "2", "--workers", "2", "--fabric", fabric]);
    }
}

/// What DuckDB makes of the days of carriers with ten flights or more: rows, flights, cancelled
/// flights, miles, and the sum of all shares of late departures.
#[test]
fn the_days_of_carriers_are_written_to_a_file() {
    for layout in [["--nodes", "1", "--workers", "2"], ["--nodes", "3", "--workers", "1"]] {
        let dir = Dir::new("daily");
        fs::create_dir_all(dir.path().join("target/demo")).unwrap();
        run(&dir, &[&["run", "examples/flights-daily.sql"], &layout[..]].concat()).ended(0);
        let csv = dir.read("target/demo/flights-daily.csv");
        let (header, rows) = csv.split_once('\n').unwrap();
        assert_eq!(header, "day,carrier,flights,cancelled,late_share,miles");
        let mut sums = [0.0; 4];
        for row in rows.lines() {
            let fields: Vec<&str> = row.split(',').collect();
            for (sum, field) in sums.iter_mut().zip(&fields[2..]) {
                *sum += if field.is_empty() { 0.0 } else { field.parse::<f64>().unwrap() };
            }
        }
        assert_eq!(rows.lines().count(), 3749);
        assert_eq!((sums[0], sums[1], sums[3]), (332_265.0, 8_150.0, 343_725_181.0));
        assert!((sums[2] - 789.776_615_727_478_5).abs() < 1e-6, "{}", sums[2]);
        assert_eq!(fs::read_dir(dir.path().join("target/demo")).unwrap().count(), 1);
    }
}

#[test]
fn explain_tells_the_pipeline_the_exchange_and_the_memory() {
    let dir = Dir::new("explain");
    let args = ["explain", "examples/flights.sql", "--nodes", "4", "--workers", "1"];
    let text = run(&dir, &args).ended(0).out;
    for part in
        ["flights (file)", "SIZE 1 h", "origin STRING", "─ merge(", "rings", "state", "stdout"]
    {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let shuffled = run(&dir, &[&args[..], &["--set", SHUFFLE]].concat()).ended(0).out;
    assert!(shuffled.contains("─ shuffle(") && !shuffled.contains("─ merge("), "{shuffled}");
}

/// A stream that never ends: windows of 10 ms over 1,000 keys to the terminal, and one file.
const ENDLESS: &str = "
    CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
        'connector' = 'generator', 'rate' = '200000', 'fields.n.kind' = 'sequence');
    CREATE TABLE shown (start TIMESTAMP(3), n BIGINT, c BIGINT)
        WITH ('connector' = 'stdout', 'format' = 'csv');
    CREATE TABLE kept (n BIGINT) WITH ('connector' = 'file', 'path' = 'kept.csv');
    SET millstream.state_bytes = '256 MiB';
    SET millstream.epoch_bytes = '64 KiB';
    BEGIN STATEMENT SET;
    INSERT INTO shown
        SELECT window_start, n % 1000, count(*)
        FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '10' MILLISECOND)
        GROUP BY window_start, window_end, n % 1000;
    INSERT INTO kept SELECT n FROM numbers;
    END;";

/// The bytes of a line of a dry run: of a node, and in all.
fn announced(text: &str, name: &str) -> (u64, u64) {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let bytes = |number: &str, unit: &str| {
        let shift = ["B", "KiB", "MiB", "GiB"].iter().position(|known| *known == unit).unwrap();
        (number.parse::<f64>().unwrap() * f64::from(1u32 << (10 * shift))) as u64
    };
    (bytes(words[1], words[2]), bytes(words[3], words[4]))
}

#[test]
fn memory_is_as_announced() {
    for nodes in ["2", "3"] {
        let dir = Dir::new("memory");
        let layout = ["--nodes", nodes, "--workers", "1"];
        let dry = run_sql(&dir, ENDLESS, &[&layout[..], &["--dry-run"]].concat()).ended(0);
        assert_eq!((dry.err.as_str(), dir.names()), ("", vec!["examples".into(), "q.sql".into()]));

        let running = Running::start(&dir, ENDLESS, &layout, 20_000);
        let processes = running.nodes();
        assert_eq!(processes.len().to_string(), nodes);
        let mapped = shared_bytes(&processes);
        let shared = announced(&dry.out, "rings").1 + announced(&dry.out, "inboxes").1;
        let share = mapped as f64 / shared as f64;
        assert!((0.9..1.1).contains(&share), "{mapped} bytes of {shared} announced:\n{}", dry.out);
        let (sum, _) = announced(&dry.out, "sum");
        for process in processes {
            let peak = peak_bytes(process);
            assert!(peak < sum, "{peak} bytes of {sum} announced:\n{}", dry.out);
        }
        running.interrupt();
        running.end().ended(130);
    }
}

#[test]
fn ctrl_c_ends_in_good_order_and_publishes_what_is_finished() {
    for layout in [["--nodes", "1", "--workers", "2"], ["--nodes", "3", "--workers", "1"]] {
        let dir = Dir::new("interrupt");
        let running = Running::start(&dir, ENDLESS, &layout, 5_000);
        assert!(!dir.names().contains(&"kept.csv".to_owned()), "not before the end");
        running.interrupt();
        let outcome = running.end().ended(130);
        assert!(outcome.err.contains("; ended early, as asked"), "{}", outcome.err);
        assert!(!outcome.err.contains("error"), "{}", outcome.err);
        assert!(outcome.out.is_empty() || outcome.out.ends_with('\n'), "the last row is whole");
        assert_eq!(dir.names(), ["examples", "kept.csv", "q.sql"]);
        // Every row that was read was written, once.
        let kept = dir.read("kept.csv");
        let mut numbers: Vec<u64> = kept.lines().skip(1).map(|n| n.parse().unwrap()).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert!(kept.starts_with("n\n") && kept.ends_with('\n') && count > 5_000);
        assert_eq!(numbers.len(), count);
    }
}

#[test]
fn a_killed_node_ends_all_with_one_error_and_no_file() {
    for (fabric, victim) in [("shm", 2), ("tcp", 1)] {
        let dir = Dir::new("killed");
        let layout = ["--nodes", "3", "--workers", "1", "--fabric", fabric];
        let running = Running::start(&dir, ENDLESS, &layout, 5_000);
        let nodes = running.nodes();
        assert_eq!(nodes.len(), 3);
        kill(nodes[victim]);
        // Standard output has to be read on, or node 0 waits for its reader.
        let outcome = std::thread::scope(|scope| {
            let ends = scope.spawn(|| await_ends(&nodes, PATIENCE));
            let outcome = running.end();
            ends.join().unwrap().unwrap_or_else(|pid| panic!("process {pid} goes on"));
            outcome
        });
        let Outcome { out, err, .. } = outcome.ended(1);
        let named = format!("error: node {victim} (process {}) was killed", nodes[victim]);
        assert!(err.starts_with(&named), "{err}");
        assert_eq!(err.matches("error").count(), 1, "{err}");
        assert!(out.is_empty() || out.ends_with('\n'), "the last row is whole");
        assert_eq!(dir.names(), ["examples", "q.sql"], "{fabric}");
    }
}

#[test]
fn nodes_end_when_node_0_is_killed() {
    for fabric in ["shm", "tcp"] {
        let dir = Dir::new("orphans");
        let layout = ["--nodes", "3", "--workers", "1", "--fabric", fabric];
        let running = Running::start(&dir, ENDLESS, &layout, 5_000);
        let nodes = running.nodes();
        kill(nodes[0]);
        await_ends(&nodes[1..], PATIENCE).unwrap_or_else(|pid| panic!("process {pid} goes on"));
        assert_eq!(running.end().code, None);
        assert!(!dir.names().contains(&"kept.csv".to_owned()), "{fabric}");
    }
}
