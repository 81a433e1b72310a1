//! What is seen of the checkpoints of a running job: metrics, `top`, progress and summary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long something may take to be seen, on a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(120);

const ENDLESS: &str = "
    SET 'millstream.checkpoint' = '50 ms';
    CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
      'connector' = 'generator', 'rate' = '20000', 'fields.n.max' = '999');
    CREATE TABLE kept (start TIMESTAMP(3), n BIGINT, c BIGINT) WITH (
      'connector' = 'file', 'path' = 'out/', 'format' = 'csv');
    INSERT INTO kept SELECT window_start, n, count(*)
      FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '1' HOUR)
      GROUP BY window_start, window_end, n;";

/// A job in a directory of its own, and the lines that it writes to standard error.
struct Job {
    path: PathBuf,
    process: Child,
    lines: Receiver<String>,
    messages: Vec<String>,
}

impl Job {
    fn start(name: &str, sql: &str, args: &[&str]) -> Self {
        let name = format!("millstream-checkpoints-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("q.sql"), sql).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["run", "q.sql", "--metrics=127.0.0.1:0"])
            .args(args)
            .current_dir(&path)
            .env_remove("MILLSTREAM_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let error = BufReader::new(process.stderr.take().unwrap());
        std::thread::spawn(move || {
            error.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { path, process, lines, messages: Vec::new() }
    }

    /// The next line that has this.
    #[track_caller]
    fn line(&mut self, part: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("no '{part}' in {:#?}", self.messages));
            self.messages.push(line.clone());
            if line.contains(part) {
                return line;
            }
        }
    }

    /// The address of the metrics that node 0 writes next.
    #[track_caller]
    fn address(&mut self) -> String {
        let line = self.line("metrics on http://");
        let (_, address) = line.split_once("http://").unwrap();
        address.strip_suffix("/metrics").unwrap().to_owned()
    }

    /// The code with which it ends when it is asked to, and all that it has written.
    fn stopped(&mut self) -> (Option<i32>, String) {
        let pid = Pid::from_raw(self.process.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        self.messages.extend(self.lines.iter());
        (self.process.wait().unwrap().code(), self.messages.join("\n"))
    }

    /// The process of node 0.
    fn node(&self) -> Pid {
        let process = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        let children = children.unwrap();
        let pid = children.split_whitespace().next().expect("node 0 runs").parse().unwrap();
        Pid::from_raw(pid).unwrap()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A page of the job; nothing if nobody listens.
fn page(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

/// The page when it is as wanted.
#[track_caller]
fn wait(address: &str, path: &str, wanted: impl Fn(&str) -> bool) -> String {
    let until = Instant::now() + TIMEOUT;
    let mut last = None;
    while Instant::now() < until {
        last = page(address, path).or(last);
        if let Some(page) = last.take_if(|page| wanted(page)) {
            return page;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never so: {last:?}")
}

/// The value of a series without labels.
fn value(page: &str, name: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

/// The sum of the series of all workers.
fn sum(page: &str, name: &str) -> Option<f64> {
    let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
    let values = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
    values.reduce(|sum, value| sum + value)
}

#[test]
fn metrics_tell_of_checkpoints_and_of_restarts() {
    for layout in [["--nodes", "1", "--workers", "2"], ["--nodes", "2", "--workers", "1"]] {
        let args = [&layout[..], &["--quiet", "--state", "state"]].concat();
        let mut job = Job::start("metrics", ENDLESS, &args);
        let address = job.address();
        let saved = |page: &str| {
            value(page, "millstream_checkpoints_total").is_some_and(|stored| stored >= 2.0)
                && sum(page, "millstream_saved_state_bytes").is_some_and(|bytes| bytes > 0.0)
                && sum(page, "millstream_save_peak_seconds").is_some_and(|time| time > 0.0)
        };
        let first = wait(&address, "/metrics", saved);
        let of = |name: &str| value(&first, name).unwrap_or_else(|| panic!("no {name}: {first}"));
        let number = of("millstream_job_checkpoint_number");
        assert!(number >= of("millstream_checkpoints_total"), "{first}");
        assert!(of("millstream_job_checkpoint_bytes") > 0.0, "{first}");
        let (age, duration) =
            (of("millstream_job_checkpoint_age_seconds"), "millstream_job_checkpoint_duration");
        assert!(age >= of(&format!("{duration}_seconds")), "the round ended before: {first}");
        assert_eq!(of("millstream_given_up_checkpoints_total"), 0.0);
        assert_eq!(of("millstream_job_restarts"), 0.0);
        assert_eq!(value(&first, "millstream_job_restored_bytes"), None);
        let times = ["millstream_save_seconds_total", "millstream_save_peak_seconds"];
        let [all, longest] = times.map(|name| sum(&first, name).unwrap());
        assert!(all >= longest, "{first}");
        // Each operator of each worker, the table that is read and the sink too.
        wait(&address, "/status", |page| {
            let status: Value = serde_json::from_str(page).unwrap();
            let of_plan = status["job"]["operators"].as_array().map_or(0, Vec::len);
            let operators = status["operators"].as_array().unwrap();
            let saved = operators.iter().filter(|of| of["saved_round"].as_u64() >= Some(1));
            let bytes = operators.iter().filter_map(|of| of["saved_state_bytes"].as_u64());
            of_plan > 2
                && saved.count() == 2 * of_plan
                && bytes.sum::<u64>() > 0
                && status["job"]["checkpoint_age_seconds"].is_number()
        });

        kill_process(job.node(), Signal::KILL).unwrap();
        let address = job.address();
        let again = |page: &str| {
            value(page, "millstream_job_restarts") == Some(1.0)
                && value(page, "millstream_job_checkpoint_number") > Some(number)
        };
        let second = wait(&address, "/metrics", again);
        assert!(value(&second, "millstream_job_restored_bytes") > Some(0.0), "{second}");
        assert_eq!(job.stopped().0, Some(130));
    }
}

#[test]
fn a_job_without_state_has_no_checkpoints_to_tell_of() {
    let mut job = Job::start("stateless", ENDLESS, &["--quiet", "--workers", "1"]);
    let address = job.address();
    let reads = |page: &str| sum(page, "millstream_input_rows_total") > Some(0.0);
    let page = wait(&address, "/metrics", reads);
    assert_eq!(value(&page, "millstream_checkpoints_total"), Some(0.0));
    assert_eq!(sum(&page, "millstream_saved_round"), None, "{page}");
    for gauge in ["checkpoint_number", "checkpoint_age_seconds", "restarts", "restored_bytes"] {
        assert_eq!(value(&page, &format!("millstream_job_{gauge}")), None, "{page}");
    }
    assert_eq!(job.stopped().0, Some(130));
}

#[test]
fn progress_top_and_summary_tell_of_checkpoints_and_of_a_store_that_is_gone() {
    let args = ["--workers", "1", "--progress", "plain", "--state", "state"];
    let mut job = Job::start("progress", ENDLESS, &args);
    let address = job.address();
    job.line(" ago");
    let top = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let output = command.args(["top", &address, "--count", "1", "--interval", "50ms"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let line = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("checkpoint ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("no line of checkpoints: {text}"))
    };
    let shown = line(&top());
    assert!(shown.contains(" ago, took ") && shown.contains("iB"), "{shown}");
    let number = |page: &str| value(page, "millstream_job_checkpoint_number");
    let before = wait(&address, "/metrics", |page| number(page).is_some());
    let before = number(&before).unwrap();
    // Directories have the names of the segments to come.
    let rounds = before as u64 + 20..before as u64 + 5000;
    let segment = |round: u64| job.path.join(format!("state/q/seg/g1-n0-{round:06}.seg"));
    let taken: Vec<PathBuf> = rounds.map(segment).collect();
    taken.iter().for_each(|path| drop(std::fs::create_dir(path)));
    job.line(" given up since");
    let shown = line(&top());
    assert!(shown.contains(" given up"), "{shown}");
    // One of them may be a segment, if it came first.
    taken.iter().for_each(|path| drop(std::fs::remove_dir(path)));
    let before = number(&page(&address, "/metrics").unwrap());
    wait(&address, "/metrics", |page| number(page) > before);
    let (code, messages) = job.stopped();
    assert_eq!(code, Some(130), "{messages}");
    let summary = messages.lines().find(|line| line.contains("rows in, ")).expect(&messages);
    assert!(summary.contains(" checkpoints, the last, "), "{summary}");
    assert!(summary.contains(" given up; ended early"), "{summary}");
}
