//! What is seen of the checkpoints of a running job: metrics, `top`, progress and summary.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Dir, Running, TIMEOUT, await_some, signal};

const ENDLESS: &str = "
    SET 'millstream.checkpoint' = '50 ms';
    CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH (
      'connector' = 'generator', 'rate' = '20000', 'fields.n.max' = '999');
    CREATE TABLE kept (start TIMESTAMP(3), n BIGINT, c BIGINT) WITH (
      'connector' = 'file', 'path' = 'out/', 'format' = 'csv');
    INSERT INTO kept SELECT window_start, n, count(*)
      FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '1' HOUR)
      GROUP BY window_start, window_end, n;";

/// A directory with the script of a job.
fn prepared(name: &str, sql: &str) -> Dir {
    let dir = Dir::new(&format!("checkpoints-{name}"));
    dir.write("q.sql", sql);
    dir
}

/// A job in a directory of its own, and the lines that it writes to standard error.
struct Job {
    dir: Dir,
    process: Running,
    lines: Receiver<String>,
    messages: Vec<String>,
}

impl Job {
    fn start(name: &str, sql: &str, args: &[&str]) -> Self {
        let dir = prepared(name, sql);
        let mut command = dir.command(&[&["run", "q.sql", "--metrics=127.0.0.1:0"], args].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Running(command.spawn().unwrap());
        let (sender, lines) = mpsc::channel();
        let error = BufReader::new(process.0.stderr.take().unwrap());
        std::thread::spawn(move || {
            error.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { dir, process, lines, messages: Vec::new() }
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
        self.process.signal(Signal::TERM);
        self.messages.extend(self.lines.iter());
        (self.process.ends(), self.messages.join("\n"))
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
    let found = || page(address, path).filter(|page| wanted(page));
    await_some(found, || format!("never so: {:?}", page(address, path)))
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
                && sum(page, "millstream_align_peak_seconds").is_some_and(|time| time > 0.0)
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
            let waits = |of: &&Value| of["align_seconds"].as_f64().is_some_and(|time| time > 0.0);
            of_plan > 2
                && operators.iter().filter(waits).count() >= 2
                && saved.count() == 2 * of_plan
                && bytes.sum::<u64>() > 0
                && status["job"]["checkpoint_age_seconds"].is_number()
        });

        let node = *job.process.below().first().expect("node 0 runs");
        assert!(signal(node, Signal::KILL));
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
    let top = |dir: &Dir| run(dir, &["top", &address, "--count", "1", "--interval", "50ms"]).1;
    let line = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("checkpoint ")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("no line of checkpoints: {text}"))
    };
    let shown = line(&top(&job.dir));
    assert!(shown.contains(" ago, took ") && shown.contains("iB"), "{shown}");
    let number = |page: &str| value(page, "millstream_job_checkpoint_number");
    let before = wait(&address, "/metrics", |page| number(page).is_some());
    let before = number(&before).unwrap();
    // Directories have the names of the segments to come.
    let rounds = before as u64 + 20..before as u64 + 5000;
    let segment = |round: u64| job.dir.0.join(format!("state/q/seg/g1-n0-{round:06}.seg"));
    let taken: Vec<PathBuf> = rounds.map(segment).collect();
    taken.iter().for_each(|path| drop(std::fs::create_dir(path)));
    job.line(" given up since");
    let shown = line(&top(&job.dir));
    assert!(shown.contains(" given up"), "{shown}");
    // One of them may be a segment, if it came first.
    taken.iter().for_each(|path| drop(std::fs::remove_dir(path)));
    let before = number(&page(&address, "/metrics").unwrap());
    wait(&address, "/metrics", |page| number(page) > before);
    let (code, messages) = job.stopped();
    assert_eq!(code, Some(130), "{messages}");
    let summary = messages.lines().find(|line| line.contains("rows in, ")).expect(&messages);
    assert!(summary.contains(" checkpoints, the last, "), "{summary}");
    assert!(summary.contains(" given up, aligned within "), "{summary}");
    assert!(summary.contains("; ended early"), "{summary}");
}

/// The rows of a bounded table that are counted by windows into this sink.
fn counted(table: &str, sink: &str) -> String {
    format!(
        "CREATE TABLE numbers (n BIGINT, ts TIMESTAMP(3), WATERMARK FOR ts AS ts) WITH ({table});
         CREATE TABLE kept (start TIMESTAMP(3), n BIGINT, c BIGINT) WITH ({sink});
         INSERT INTO kept SELECT window_start, n, count(*)
           FROM TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '1' SECOND)
           GROUP BY window_start, window_end, n;"
    )
}

const NUMBERS: &str = "'connector' = 'generator', 'rows' = '1000', 'fields.n.max' = '9'";
const OUT: &str = "'connector' = 'file', 'path' = 'out/', 'format' = 'csv'";
const BLACKHOLE: &str = "'connector' = 'blackhole'";
const STDIN: &str = "'connector' = 'stdin', 'format' = 'csv'";

/// The code, standard output and standard error of a command.
fn run(dir: &Dir, args: &[&str]) -> (Option<i32>, String, String) {
    let output = dir.command(args).output().unwrap();
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), out, error)
}

#[test]
fn explain_tells_what_is_saved_built_anew_and_lost() {
    let dir = prepared("explain", &counted(NUMBERS, OUT));
    let explain = |args: &[&str]| {
        let (code, out, error) = run(&dir, &[&["explain", "q.sql"], args].concat());
        assert_eq!((code, error.as_str()), (Some(0), ""), "{out}");
        out
    };
    let section = |plan: &str| {
        let (_, rest) = plan.split_once("recovery of a job with --state\n").expect(plan);
        let (section, _) = rest.split_once("\n\n").expect(plan);
        section.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(!explain(&[]).contains("recovery"), "nobody has asked");
    let of_files = "0 FusedScan numbers positions are saved \
                    1 WindowAggregate state is saved by key \
                    2 Sink INSERT INTO kept each row once, seen with each checkpoint";
    let set = |value: &'static str| ["--set", value];
    let plan = explain(&set("millstream.checkpoint=2 s"));
    assert_eq!(section(&plan), format!("{of_files} checkpoints: every 2 s"));
    let json = explain(&["--set", "millstream.guarantee=exactly-once", "--format", "json"]);
    let recovery = &serde_json::from_str::<Value>(&json).unwrap()["recovery"];
    assert_eq!(recovery["guarantee"], "exactly-once");
    assert_eq!(recovery["operators"][0]["text"], "positions are saved");
    assert_eq!(recovery["refusals"].as_array().map(Vec::len), Some(0));
    let dot = explain(&["--set", "millstream.guarantee=auto", "--format", "dot"]);
    assert!(dot.contains("\\nrecovery: state is saved by key\"]"), "{dot}");

    dir.write("q.sql", &counted(STDIN, BLACKHOLE));
    let plan = section(&explain(&set("millstream.guarantee=exactly-once")));
    for part in [
        "numbers not read on from a position: what was read is lost",
        "at least once, seen as rows come",
        "refused with --state: the job cannot promise millstream.guarantee = 'exactly-once': rows \
         of 'numbers' that were read before a failure are lost; rows of 'INSERT INTO kept' are \
         seen as they come, and again after a failure",
    ] {
        assert!(plan.contains(part), "{part}: {plan}");
    }
    let once =
        "refused with --state: rows of 'numbers' come once, so that the job cannot begin anew";
    let plan = section(&explain(&set("millstream.guarantee=auto")));
    assert!(plan.contains(once), "{plan}");

    let asked = counted(NUMBERS, OUT);
    let (tables, insert) = asked.split_once("INSERT INTO kept").unwrap();
    let asked = format!("{tables} EXPLAIN (RECOVERY) {insert}");
    dir.write("q.sql", &asked);
    let (code, out, error) = run(&dir, &["run", "q.sql", "--quiet", "--format", "csv"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(out.contains("checkpoints: as often as costs little"), "{out}");
}

#[test]
fn a_job_that_cannot_promise_what_is_asked_is_refused() {
    for (guarantee, table, sink, refused) in [
        ("auto", NUMBERS, BLACKHOLE, None),
        ("at-least-once", NUMBERS, BLACKHOLE, None),
        ("exactly-once", NUMBERS, OUT, None),
        ("exactly-once", NUMBERS, BLACKHOLE, Some("rows of 'INSERT INTO kept' are seen as")),
        ("exactly-once", STDIN, OUT, Some("rows of 'numbers' that were read before a failure")),
        ("at-least-once", STDIN, OUT, Some("rows of 'numbers' that were read before a failure")),
    ] {
        let sql = format!("SET 'millstream.guarantee' = '{guarantee}'; {}", counted(table, sink));
        let dir = prepared("guarantee", &sql);
        let (code, _, error) = run(&dir, &["run", "q.sql", "--workers", "1", "--state", "state"]);
        let case = format!("{guarantee}, {table}, {sink}: {error}");
        let Some(refused) = refused else {
            assert_eq!(code, Some(0), "{case}");
            // Only a job without a guarantee is told what it has.
            let is_told = error.contains("since the last checkpoint come again");
            assert_eq!(is_told, guarantee == "auto", "{case}");
            continue;
        };
        assert_eq!(code, Some(2), "{case}");
        assert!(error.contains(refused) && error.contains("'auto'"), "{case}");
        assert!(!dir.0.join("out").exists(), "{case}");
    }
}

/// Rows at a rate, some of them late.
fn disordered(rate: &str) -> String {
    let table = format!(
        "'connector' = 'generator', 'rows' = '10000', {rate} 'interval' = '10ms',
         'disorder' = '30s', 'fields.n.max' = '9'"
    );
    format!("SET 'millstream.checkpoint' = '50 ms'; {}", counted(&table, OUT))
}

#[test]
fn late_rows_of_all_runs_are_counted_in_the_checkpoint() {
    let late = |dir: &Dir| -> Option<u64> {
        let (code, out, error) = run(dir, &["state", "show", "q", "--state", "state", "--json"]);
        assert_eq!(code, Some(0), "{error}");
        let shown: Value = serde_json::from_str(out.lines().next()?).unwrap();
        find(&shown, "late")?.as_u64()
    };
    let undisturbed = prepared("late-undisturbed", &disordered(""));
    let args = ["run", "q.sql", "--workers", "1", "--state", "state"];
    let (code, _, error) = run(&undisturbed, &args);
    assert_eq!(code, Some(0), "{error}");
    let expected = late(&undisturbed).unwrap();
    assert!(expected > 0, "{error}");

    let mut job = Job::start("late", &disordered("'rate' = '1000',"), &args[2..]);
    let address = job.address();
    let has_late = |page: &str| {
        value(page, "millstream_checkpoints_total") >= Some(3.0)
            && sum(page, "millstream_late_rows_total") > Some(0.0)
    };
    wait(&address, "/metrics", has_late);
    let (code, messages) = job.stopped();
    let dir = &job.dir;
    assert!(late(dir).unwrap() > 0, "{messages}");
    // It may have come to its end, where this process had to wait for long.
    if code != Some(0) {
        assert_eq!(code, Some(130), "{messages}");
        let (code, _, error) = run(dir, &args);
        assert_eq!(code, Some(0), "{error}");
        assert!(error.contains(" since the job began"), "{error}");
    }
    assert_eq!(late(dir), Some(expected), "{messages}");
}

#[test]
fn watermarks_of_a_checkpoint_are_in_milliseconds() {
    // The event times of a generator begin with the year 2024.
    let begin_ms = 1_704_067_200_000;
    for unit in ["TIMESTAMP(3)", "TIMESTAMP(6)"] {
        let sql = ENDLESS.replace("TIMESTAMP(3)", unit).replace("'1' HOUR", "'1' SECOND");
        let mut job = Job::start("units", &sql, &["--workers", "1", "--state", "state"]);
        let address = job.address();
        let has_passed = |page: &str| {
            let watermark = sum(page, "millstream_watermark_seconds");
            watermark > Some(begin_ms as f64 / 1e3 + 2.0)
        };
        let page = wait(&address, "/metrics", has_passed);
        let number = value(&page, "millstream_job_checkpoint_number").unwrap_or(0.0);
        let is_later = |page: &str| value(page, "millstream_job_checkpoint_number") > Some(number);
        wait(&address, "/metrics", is_later);
        let (code, messages) = job.stopped();
        assert_eq!(code, Some(130), "{messages}");
        let dir = &job.dir;
        let (_, out, error) = run(dir, &["state", "show", "q", "--state", "state", "--json"]);
        let shown: Value = serde_json::from_str(out.lines().next().expect(&error)).unwrap();
        let operators = find(&shown, "operators").and_then(Value::as_array).expect(&out);
        let watermarks = operators.iter().filter_map(|of| of["watermark"].as_i64());
        let watermarks: Vec<i64> =
            watermarks.filter(|of| ![i64::MIN, i64::MAX].contains(of)).collect();
        assert!(!watermarks.is_empty(), "{out}");
        let day_ms = 86_400_000;
        for watermark in watermarks {
            assert!((begin_ms..begin_ms + day_ms).contains(&watermark), "{unit}: {out}");
        }
    }
}

/// The first value of a key, wherever it is.
fn find<'a>(json: &'a Value, key: &str) -> Option<&'a Value> {
    match json {
        Value::Object(fields) => {
            fields.get(key).or_else(|| fields.values().find_map(|value| find(value, key)))
        }
        Value::Array(values) => values.iter().find_map(|value| find(value, key)),
        _ => None,
    }
}
