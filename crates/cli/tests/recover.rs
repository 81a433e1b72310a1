//! Jobs that keep checkpoints, as a user meets them: nodes that are killed, other numbers of nodes,
//! edits, second runs, damage. The rows of the output are those of a run that nothing happened to.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use crate::rig::{Dir, Random, files, signal};

const BIDS: &str = "CREATE TABLE bids (
    ts TIMESTAMP(3), auction BIGINT, price BIGINT, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
  ) WITH (
    'connector' = 'generator', 'rows' = '60000', 'rate' = '20000', 'interval' = '10ms',
    'fields.auction.max' = '99', 'fields.price.max' = '1000000');\n";

/// A query that writes its rows into the directory `out/`.
fn query(columns: &str, select: &str, setting: &str) -> String {
    format!(
        "{setting}{BIDS}CREATE TABLE written ({columns}) WITH (
           'connector' = 'file', 'path' = 'out/', 'format' = 'csv');
         INSERT INTO written {select};"
    )
}

const CHECKPOINT: &str = "SET 'millstream.checkpoint' = '100 ms';\n";

const TUMBLE: (&str, &str) = (
    "ws TIMESTAMP(3), auction BIGINT, n BIGINT, s BIGINT, hi BIGINT",
    "SELECT window_start, auction, count(*), sum(price), max(price)
     FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)
     GROUP BY window_start, window_end, auction",
);
const HOP: (&str, &str) = (
    "ws TIMESTAMP(3), auction BIGINT, n BIGINT",
    "SELECT window_start, auction, count(*)
     FROM HOP(TABLE bids, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '20' SECOND)
     GROUP BY window_start, window_end, auction",
);
const RANKED: (&str, &str) = (
    "ws TIMESTAMP(3), auction BIGINT, price BIGINT, nth BIGINT",
    "SELECT window_start, auction, price, CAST(nth AS BIGINT) FROM (
       SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end
                                    ORDER BY price DESC, ts, auction) AS nth
       FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND)) WHERE nth <= 3",
);

/// The rows of a run of the query that nothing happens to.
fn undisturbed(name: &str, (columns, select): (&str, &str)) -> Vec<String> {
    let dir = Dir::new(&format!("{name}-undisturbed"));
    let sql = query(columns, select, "").replace("'rate' = '20000', ", "");
    dir.write("q.sql", &sql);
    let (code, message) = dir.run(&["run", "q.sql", "--workers", "2"]);
    assert_eq!(code, Some(0), "{message}");
    let rows = dir.rows("out");
    assert!(!rows.is_empty());
    rows
}

/// Runs a query on two nodes, and kills processes of it.
fn killed(name: &str, of: (&str, &str), exchange: &str, fabric: &str, kills: u32, seed: u64) {
    let expected = undisturbed(name, of);
    let dir = Dir::new(name);
    let setting = format!("{CHECKPOINT}SET 'millstream.exchange' = '{exchange}';\n");
    dir.write("q.sql", &query(of.0, of.1, &setting));
    let layout = ["--nodes", "2", "--workers", "1", "--fabric", fabric];
    let run = [&["run", "q.sql", "--state", "state"], &layout[..]].concat();
    let mut job = dir.start(dir.command(&run));
    let mut random = Random(seed);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(200 + random.below(800)));
        let nodes = job.below();
        if nodes.is_empty() || job.has_ended() {
            break;
        }
        signal(nodes[random.below(nodes.len() as u64) as usize], Signal::KILL);
    }
    assert_eq!(job.ends(), Some(0), "{}", dir.log());
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
    // A job that has ended has nothing to do.
    let (code, message) = dir.run(&run);
    assert!(code == Some(0) && message.contains("job 'q' has ended"), "{message}");
    assert_eq!(dir.rows("out"), expected);
}

#[test]
fn killed_nodes_lose_and_double_nothing_tumble_merge_shm() {
    killed("tumble", TUMBLE, "merge", "shm", 5, 1);
}

#[test]
fn killed_nodes_lose_and_double_nothing_tumble_shuffle_tcp() {
    killed("shuffle", TUMBLE, "shuffle", "tcp", 5, 2);
}

#[test]
fn killed_nodes_lose_and_double_nothing_hop_merge_tcp() {
    killed("hop", HOP, "merge", "tcp", 5, 3);
}

#[test]
fn killed_nodes_lose_and_double_nothing_ranked_shuffle_shm() {
    killed("ranked", RANKED, "shuffle", "shm", 5, 4);
}

#[test]
fn a_job_that_is_stopped_goes_on_with_another_number_of_nodes() {
    let expected = undisturbed("rescale", TUMBLE);
    let dir = Dir::new("rescale");
    dir.write("q.sql", &query(TUMBLE.0, TUMBLE.1, CHECKPOINT));
    let run = |nodes: &'static str| {
        ["run", "q.sql", "--state", "state", "--workers", "1", "--nodes", nodes]
    };
    let mut ended = None;
    for nodes in ["2", "3", "1"] {
        let before = dir.parts();
        let mut job = dir.start(dir.command(&run(nodes)));
        // Some rows are seen while it runs.
        dir.await_more_than(before, &mut job);
        let (code, message) = dir.run(&run(nodes));
        if code == Some(2) {
            assert!(message.contains("job 'q' runs as generation"), "{message}");
        }
        let (code, message) = dir.run(&["stop", "q", "--state", "state"]);
        assert_eq!(code, Some(0), "{message}");
        ended = job.ends();
    }
    if ended != Some(0) {
        assert_eq!(ended, Some(130), "{}", dir.log());
        let (code, message) = dir.run(&run("2"));
        assert_eq!(code, Some(0), "{message}");
    }
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
    assert!(dir.log().contains("goes on from checkpoint"), "{}", dir.log());
}

/// How the job of `q.sql` is run.
const RUN: [&str; 6] = ["run", "q.sql", "--state", "state", "--workers", "1"];

/// Runs a job until it has published rows, and stops it.
fn stopped_behind_a_checkpoint(dir: &Dir) {
    dir.write("q.sql", &query(TUMBLE.0, TUMBLE.1, CHECKPOINT));
    let mut job = dir.start(dir.command(&RUN));
    dir.await_more_than(0, &mut job);
    assert!(dir.parts() > 0, "{}", dir.log());
    let (code, message) = dir.run(&["stop", "q", "--state", "state"]);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(job.ends(), Some(130));
}

#[test]
fn state_of_another_text_is_refused_until_it_may_evolve() {
    let dir = Dir::new("evolve");
    stopped_behind_a_checkpoint(&dir);
    let other = TUMBLE.1.replace("INTERVAL '10' SECOND", "INTERVAL '20' SECOND");
    dir.write("q.sql", &query(TUMBLE.0, &other, CHECKPOINT));
    let (code, message) = dir.run(&RUN);
    assert_eq!(code, Some(2), "{message}");
    for part in ["gone", "SIZE 10 s", "new", "SIZE 20 s", "--evolve"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let (code, message) = dir.run(&[&RUN[..], &["--evolve"]].concat());
    assert_eq!(code, Some(0), "{message}");
}

#[test]
fn a_text_that_cannot_be_saved_does_not_take_up_the_positions_of_one_that_could() {
    let dir = Dir::new("unsaved");
    stopped_behind_a_checkpoint(&dir);
    let sorted = format!("{} ORDER BY window_start, auction LIMIT 5", TUMBLE.1);
    dir.write("q.sql", &query(TUMBLE.0, &sorted, CHECKPOINT));
    let (code, message) = dir.run(&[&RUN[..], &["--evolve"]].concat());
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("cannot go on from it"), "{message}");
    assert!(message.contains("--from none"), "{message}");
}

#[test]
fn a_flipped_byte_of_the_state_is_named_and_nothing_is_published() {
    let dir = Dir::new("damaged");
    stopped_behind_a_checkpoint(&dir);
    let seen = dir.rows("out");
    let segments: Vec<PathBuf> = files(&dir.0.join("state"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "seg"))
        .collect();
    for segment in &segments {
        let mut bytes = fs::read(segment).unwrap();
        let at = bytes.len() / 2;
        bytes[at] ^= 0x10;
        fs::write(segment, bytes).unwrap();
    }
    assert!(!segments.is_empty());
    let (code, message) = dir.run(&RUN);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains(".seg") && message.contains("byte"), "{message}");
    assert_eq!(dir.rows("out"), seen);
}

#[test]
fn a_job_that_cannot_be_saved_says_so_and_begins_anew() {
    let dir = Dir::new("rebuilt");
    let sql = "CREATE TABLE made (n BIGINT) WITH (
        'connector' = 'generator', 'rows' = '40000', 'rate' = '20000', 'fields.n.max' = '99');
      CREATE TABLE written (n BIGINT, times BIGINT) WITH (
        'connector' = 'file', 'path' = 'out.csv');
      INSERT INTO written SELECT n, count(*) FROM made GROUP BY n ORDER BY n;";
    dir.write("q.sql", sql);
    let run = ["run", "q.sql", "--state", "state", "--nodes", "2", "--workers", "1"];
    let mut job = dir.start(dir.command(&run));
    std::thread::sleep(Duration::from_millis(1000));
    for node in job.below().into_iter().take(1) {
        signal(node, Signal::KILL);
    }
    assert_eq!(job.ends(), Some(0), "{}", dir.log());
    assert!(dir.log().contains("takes no checkpoints"), "{}", dir.log());
    let rows = dir.rows("out.csv");
    let counts = rows.iter().map(|row| row.split(',').nth(1).unwrap().parse().unwrap());
    let counts: Vec<u64> = counts.collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (100, 40_000));
}

#[test]
fn each_job_of_a_script_begins_anew_once_and_not_at_each_restart() {
    let dir = Dir::new("anew");
    let table = |name: &str, rate: &str| {
        format!(
            "CREATE TABLE {name} (n BIGINT) WITH (
               'connector' = 'generator', 'rows' = '6000', {rate} 'fields.n.kind' = 'sequence');
             CREATE TABLE to_{name} (n BIGINT) WITH (
               'connector' = 'file', 'path' = 'out_{name}/', 'format' = 'csv');
             INSERT INTO to_{name} SELECT n FROM {name};"
        )
    };
    let text = |rate: &str| {
        let first = table("first", rate);
        format!("SET 'millstream.checkpoint' = '50 ms';\n{first}\n{}", table("second", ""))
    };
    let run = ["run", "q.sql", "--state", "state", "--workers", "1", "--from", "none"];
    dir.write("q.sql", &text(""));
    let (code, message) = dir.run(&run);
    assert_eq!(code, Some(0), "{message}");
    // A beginning that is refused leaves the checkpoints as they are.
    let (code, message) = dir.run(&run);
    assert!(code != Some(0) && message.contains("it has rows already"), "{message}");
    let (code, message) = dir.run(&run[..6]);
    assert_eq!(code, Some(0), "{message}");
    assert!(message.contains("has ended: --from none begins it anew"), "{message}");
    for name in ["out_first", "out_second"] {
        fs::remove_dir_all(dir.0.join(name)).unwrap();
    }
    // Both have ended, and begin anew. A node is killed while the first of them runs.
    dir.write("q.sql", &text("'rate' = '3000',"));
    let mut job = dir.start(dir.command(&run));
    dir.await_that(|| !dir.published("out_first").is_empty() || job.has_ended());
    for node in job.below() {
        signal(node, Signal::KILL);
    }
    assert_eq!(job.ends(), Some(0), "{}", dir.log());
    assert!(dir.log().contains("goes on from checkpoint"), "{}", dir.log());
    for name in ["out_first", "out_second"] {
        let rows = dir.rows(name);
        assert_eq!(rows.len(), 6000, "{name}: {}", dir.log());
        assert!(rows.windows(2).all(|two| two[0] != two[1]), "{name}");
    }
}
