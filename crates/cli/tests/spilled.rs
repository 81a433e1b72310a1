//! Jobs whose state is many times their memory and lies on a disk: a checkpoint of it takes no
//! memory that the job does not have, and the job goes on with it after its node was killed. A job
//! that holds more than it may ends with an error.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a job may take, on a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Bytes of state that the job may have in memory.
const BUDGET: u64 = 256 << 10;

/// A directory that is removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let name = format!("millstream-spilled-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        command.args(args).current_dir(&self.0).env_remove("MILLSTREAM_LOG").stdin(Stdio::null());
        command
    }

    /// The rows of the output, sorted.
    fn rows(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for entry in fs::read_dir(self.0.join("out")).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            rows.extend(text.lines().skip(1).map(str::to_owned));
        }
        rows.sort();
        rows
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    /// Whether a checkpoint of the chain refers to segments of earlier ones.
    fn refers(&self) -> bool {
        let records = fs::read_dir(self.0.join("state/q/chain")).into_iter().flatten().flatten();
        let mut texts = records.filter_map(|record| fs::read_to_string(record.path()).ok());
        texts.any(|text| text.contains("\"referred\":[{"))
    }

    /// Bytes of all segments of the state.
    fn segment_bytes(&self) -> u64 {
        let files = fs::read_dir(self.0.join("state/q/seg")).into_iter().flatten().flatten();
        let bytes = files.filter_map(|file| {
            let is_whole = !file.file_name().to_string_lossy().starts_with('.');
            file.metadata().ok().filter(|_| is_whole).map(|metadata| metadata.len())
        });
        bytes.sum()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A run, which is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processes that a process has started.
fn children(of: u32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{of}/task")) else { return Vec::new() };
    let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}

/// Everything is in one window, which is over with the input.
fn query((columns, select): (&str, &str), settings: &str) -> String {
    format!(
        "{settings}CREATE TABLE bids (
           ts TIMESTAMP(3), auction BIGINT, price BIGINT,
           WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
         ) WITH (
           'connector' = 'generator', 'rows' = '150000', 'rate' = '15000', 'interval' = '10ms',
           'fields.auction.max' = '1000000000', 'fields.price.max' = '1000000000');
         CREATE TABLE written ({columns}) WITH (
           'connector' = 'file', 'path' = 'out/', 'format' = 'csv');
         INSERT INTO written {select};"
    )
}

/// Runs a job whose state is ten times its memory, and kills it behind a checkpoint of that.
fn killed(name: &str, of: (&str, &str)) {
    let whole = Dir::new(&format!("{name}-whole"));
    fs::write(whole.0.join("q.sql"), query(of, "")).unwrap();
    let output = whole.command(&["run", "q.sql", "--workers", "1"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let dir = Dir::new(name);
    let settings = format!(
        "SET 'millstream.checkpoint' = '100 ms';
         SET 'millstream.state_bytes' = '{BUDGET}';
         SET 'millstream.spill_dir' = './spill';\n"
    );
    fs::write(dir.0.join("q.sql"), query(of, &settings)).unwrap();
    let log = fs::File::create(dir.0.join("log")).unwrap();
    let mut command = dir.command(&["run", "q.sql", "--state", "state", "--workers", "1"]);
    let mut job = Running(command.stderr(log).stdout(Stdio::null()).spawn().unwrap());
    let until = Instant::now() + TIMEOUT;
    // Rows come for ten seconds: there is time for a checkpoint before they end.
    while dir.segment_bytes() < 12 * BUDGET || !dir.refers() {
        assert!(Instant::now() < until && job.0.try_wait().unwrap().is_none(), "{}", dir.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    for node in children(job.0.id()) {
        let _ = kill_process(Pid::from_raw(node).unwrap(), Signal::KILL);
    }
    let status = loop {
        assert!(Instant::now() < until, "{}", dir.log());
        if let Some(status) = job.0.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let log = dir.log();
    assert!(status.success(), "{log}");
    let resumed = log.lines().find_map(|line| line.split_once("splits of sources, "));
    let bytes = resumed.and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(bytes.is_some_and(|bytes| bytes > 8 * BUDGET), "{log}");
    assert!(!log.contains("given up"), "{log}");
    assert!(dir.rows() == whole.rows(), "{log}");
}

#[test]
fn groups_beyond_memory_are_saved_and_go_on() {
    let columns = "auction BIGINT, n BIGINT, s BIGINT, hi BIGINT";
    let select = "SELECT auction, count(*), sum(price), max(price)
         FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' HOUR)
         GROUP BY window_start, window_end, auction";
    killed("groups", (columns, select));
}

#[test]
fn rows_beyond_memory_are_saved_and_go_on() {
    let columns = "auction BIGINT, price BIGINT, nth BIGINT";
    let select = "SELECT auction, price, CAST(nth AS BIGINT) FROM (
           SELECT auction, price, ROW_NUMBER() OVER (
             PARTITION BY window_start, window_end, auction ORDER BY price) AS nth
           FROM TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' HOUR)) WHERE nth <= 2";
    killed("rows", (columns, select));
}
