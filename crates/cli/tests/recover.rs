//! Jobs that keep checkpoints, as a user meets them: nodes that are killed, other numbers of nodes,
//! edits, second runs, damage. The rows of the output are those of a run that nothing happened to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a job may take, on a machine that is busy with other things.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(180);

/// A directory that is removed at the end.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("millstream-recover-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    /// The rows of all files of a directory, sorted, without headers.
    pub(crate) fn rows(&self, name: &str) -> Vec<String> {
        let mut rows = Vec::new();
        for entry in fs::read_dir(self.0.join(name)).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(!file.starts_with('.'), "{file} was left behind");
            let text = fs::read_to_string(&path).unwrap();
            rows.extend(text.lines().skip(1).map(str::to_owned));
        }
        rows.sort();
        rows
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).current_dir(&self.0).env_remove("MILLSTREAM_LOG").stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.0.join("log"));
        let child = self.command(args).stderr(log.unwrap()).stdout(Stdio::null()).spawn().unwrap();
        Running(child)
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A run; its processes are ended with it.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// The processes of its nodes: children of the one that was started, and their children.
    pub(crate) fn nodes(&self) -> Vec<i32> {
        let mut found = children(self.0.id().cast_signed());
        let mut at = 0;
        while at < found.len() {
            found.extend(children(found[at]));
            at += 1;
        }
        found
    }

    pub(crate) fn ends(&mut self) -> Option<i32> {
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it does not end")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn children(of: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{of}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// Numbers that look random, the same for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

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
    let output = dir.run(&["run", "q.sql", "--workers", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    let mut job = dir.start(&[&["run", "q.sql", "--state", "state"], &layout[..]].concat());
    let mut random = Random(seed);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(200 + random.below(800)));
        let nodes = job.nodes();
        if nodes.is_empty() || job.0.try_wait().unwrap().is_some() {
            break;
        }
        let node = nodes[random.below(nodes.len() as u64) as usize];
        let _ = kill_process(Pid::from_raw(node).unwrap(), Signal::KILL);
    }
    assert_eq!(job.ends(), Some(0), "{}", dir.log());
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
    // A job that has ended has nothing to do.
    let again = dir.run(&[&["run", "q.sql", "--state", "state"], &layout[..]].concat());
    let reported = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.success() && reported.contains("job 'q' has ended"), "{reported}");
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
        let mut job = dir.start(&run(nodes));
        let until = Instant::now() + TIMEOUT;
        // Some rows are seen while it runs.
        let before = dir.0.join("out").read_dir().map_or(0, Iterator::count);
        while dir.0.join("out").read_dir().map_or(0, Iterator::count) == before
            && job.0.try_wait().unwrap().is_none()
        {
            assert!(Instant::now() < until, "{}", dir.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        let second = dir.run(&run(nodes));
        if second.status.code() == Some(2) {
            let reported = String::from_utf8_lossy(&second.stderr).into_owned();
            assert!(reported.contains("job 'q' runs as generation"), "{reported}");
        }
        let stopped = dir.run(&["stop", "q", "--state", "state"]);
        assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
        ended = job.ends();
    }
    if ended != Some(0) {
        assert_eq!(ended, Some(130), "{}", dir.log());
        let rest = dir.run(&run("2"));
        assert!(rest.status.success(), "{}", String::from_utf8_lossy(&rest.stderr));
    }
    assert_eq!(dir.rows("out"), expected, "{}", dir.log());
    assert!(dir.log().contains("goes on from checkpoint"), "{}", dir.log());
}

/// How the job of `q.sql` is run.
const RUN: [&str; 6] = ["run", "q.sql", "--state", "state", "--workers", "1"];

/// Runs a job until it has published rows, and stops it.
fn stopped_behind_a_checkpoint(dir: &Dir) {
    dir.write("q.sql", &query(TUMBLE.0, TUMBLE.1, CHECKPOINT));
    let mut job = dir.start(&RUN);
    let until = Instant::now() + TIMEOUT;
    while dir.0.join("out").read_dir().map_or(0, Iterator::count) == 0 {
        assert!(Instant::now() < until && job.0.try_wait().unwrap().is_none(), "{}", dir.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(dir.run(&["stop", "q", "--state", "state"]).status.success());
    assert_eq!(job.ends(), Some(130));
}

#[test]
fn state_of_another_text_is_refused_until_it_may_evolve() {
    let dir = Dir::new("evolve");
    stopped_behind_a_checkpoint(&dir);
    let other = TUMBLE.1.replace("INTERVAL '10' SECOND", "INTERVAL '20' SECOND");
    dir.write("q.sql", &query(TUMBLE.0, &other, CHECKPOINT));
    let refused = dir.run(&RUN);
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{reported}");
    for part in ["gone", "SIZE 10 s", "new", "SIZE 20 s", "--evolve"] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    let evolved = dir.run(&[&RUN[..], &["--evolve"]].concat());
    assert!(evolved.status.success(), "{}", String::from_utf8_lossy(&evolved.stderr));
}

#[test]
fn a_text_that_cannot_be_saved_does_not_take_up_the_positions_of_one_that_could() {
    let dir = Dir::new("unsaved");
    stopped_behind_a_checkpoint(&dir);
    let sorted = format!("{} ORDER BY window_start, auction LIMIT 5", TUMBLE.1);
    dir.write("q.sql", &query(TUMBLE.0, &sorted, CHECKPOINT));
    let refused = dir.run(&[&RUN[..], &["--evolve"]].concat());
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{reported}");
    assert!(reported.contains("cannot go on from it"), "{reported}");
    assert!(reported.contains("--from none"), "{reported}");
}

/// The files of a directory, and of the directories in it.
fn files(of: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(of).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
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
    let refused = dir.run(&RUN);
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{reported}");
    assert!(reported.contains(".seg") && reported.contains("byte"), "{reported}");
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
    let mut job =
        dir.start(&["run", "q.sql", "--state", "state", "--nodes", "2", "--workers", "1"]);
    std::thread::sleep(Duration::from_millis(1000));
    for node in job.nodes().into_iter().take(1) {
        let _ = kill_process(Pid::from_raw(node).unwrap(), Signal::KILL);
    }
    assert_eq!(job.ends(), Some(0), "{}", dir.log());
    assert!(dir.log().contains("takes no checkpoints"), "{}", dir.log());
    let text = fs::read_to_string(dir.0.join("out.csv")).unwrap();
    let counts: Vec<u64> =
        text.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!((counts.len(), counts.iter().sum::<u64>()), (100, 40_000));
}
