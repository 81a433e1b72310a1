//! `millstream top`: watches a running job, from another terminal.
//!
//! It reads what the job serves beside its metrics, `/status` and `/plan`, and shows what has
//! changed between two looks: the tables of `EXPLAIN ANALYZE`, as rates. On a terminal the tables
//! are drawn over and over, below the plan; elsewhere one follows another.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use millstream::{Ran, Snapshot, WorkerCounters, counters_from_json};
use serde_json::Value;

use crate::args::TopArgs;
use crate::failure::Failure;
use crate::human;
use crate::session::print;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of an answer at most.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Runs the command.
pub(crate) fn top(args: &TopArgs) -> Result<ExitCode, Failure> {
    let mut screen = Screen { redraw: std::io::stdout().is_terminal() && !args.json, lines: 0 };
    let mut last = status(args.address).map_err(|problem| problem.of(args.address))?;
    let (mut shown, mut planned) = (0, None);
    while args.count.is_none_or(|count| shown < count) {
        std::thread::sleep(Duration::from_millis(args.interval_ms));
        let now = match status(args.address) {
            Ok(now) => now,
            // The server ends with the job.
            Err(Problem::Gone(_)) => {
                eprintln!("the job has ended");
                break;
            }
            Err(problem) => return Err(problem.of(args.address)),
        };
        let number = now["job"]["number"].as_u64();
        let Some(number) = number.filter(|_| now["job"]["number"] == last["job"]["number"]) else {
            last = now;
            continue;
        };
        if !args.json && planned.replace(number) != Some(number) {
            let plan = ask(args.address, "/plan").map_err(|problem| problem.of(args.address))?;
            screen.keep(plan["text"].as_str().unwrap_or_default());
        }
        let (names, ran) = (names(&now), between(&last, &now));
        if args.json {
            print(&format!("{}\n", report_json(&now, &ran, &names)))
        } else {
            screen.draw(&format!("{}\n{}", heading(&now), ran.text(&names)))
        }
        shown += 1;
        last = now;
    }
    Ok(ExitCode::SUCCESS)
}

/// The screen on standard output.
struct Screen {
    redraw: bool,
    /// Lines of what was drawn last.
    lines: usize,
}

impl Screen {
    /// Shows a text that stays.
    fn keep(&mut self, text: &str) {
        print(&format!("{text}\n"));
        self.lines = 0;
    }

    /// Shows a text in place of the last one.
    fn draw(&mut self, text: &str) {
        let mut out = String::new();
        if self.redraw && self.lines > 0 {
            // Up, and nothing below.
            out = format!("\x1b[{}A\x1b[J", self.lines);
        }
        let width = terminal_size::terminal_size().map_or(usize::MAX, |(width, _)| width.0.into());
        for line in text.lines() {
            let shown = if self.redraw { width } else { usize::MAX };
            out.extend(line.chars().take(shown));
            out.push('\n');
        }
        self.lines = text.lines().count();
        print(&out);
    }
}

/// The first line: the job's running time, rows read and progress.
fn heading(status: &Value) -> String {
    let job = &status["job"];
    let statements = job["statements"].as_array();
    let names = statements.into_iter().flatten().filter_map(|s| s["name"].as_str());
    let mut text = names.collect::<Vec<_>>().join("; ");
    let elapsed = Duration::from_secs_f64(job["elapsed_seconds"].as_f64().unwrap_or(0.0).max(0.0));
    text += &format!(": for {}", human::duration(elapsed));
    if let Some(done) = job["done_ratio"].as_f64() {
        text += &format!(", {:.0} % done", done * 100.0);
    }
    if let Some(bad) = status["job"]["bad_rows"].as_f64().filter(|&bad| bad > 0.0) {
        text += &format!(", {} bad", human::counted(bad as u64, "row"));
    }
    match checkpoints(job, &status["workers"]) {
        Some(line) => text + "\n" + &line,
        None => text,
    }
}

/// The line of the job's checkpoints, with the longest time that its workers have aligned markers
/// and have saved; `None` if the job keeps none.
fn checkpoints(job: &Value, workers: &Value) -> Option<String> {
    let number = |name: &str| job[name].as_f64().filter(|number| *number >= 0.0);
    let time = |name: &str| number(name).map(|of| human::duration(Duration::from_secs_f64(of)));
    let restarts = number("restarts")? as u64;
    let mut parts = vec![match number("checkpoint_number") {
        Some(number) => format!("checkpoint {number}"),
        None => "no checkpoint yet".to_owned(),
    }];
    parts.extend(time("checkpoint_age_seconds").map(|age| format!("{age} ago")));
    parts.extend(time("checkpoint_duration_seconds").map(|lasted| format!("took {lasted}")));
    parts.extend(number("checkpoint_bytes").map(|bytes| human::bytes(bytes as u64)));
    let given_up = number("given_up_checkpoints").filter(|of| *of > 0.0);
    parts.extend(given_up.map(|of| format!("{} given up", human::count(of as u64))));
    for (peak, what) in [("align_peak_seconds", "aligned"), ("save_peak_seconds", "saved")] {
        let of_workers = workers.as_array().into_iter().flatten();
        let longest = of_workers.filter_map(|worker| worker[peak].as_f64()).fold(0.0, f64::max);
        let longest = Some(longest).filter(|longest| *longest > 0.0);
        let longest = longest.map(|of| human::duration(Duration::from_secs_f64(of)));
        parts.extend(longest.map(|longest| format!("{what} within {longest}")));
    }
    parts.extend((restarts > 0).then(|| human::counted(restarts, "restart")));
    if let (Some(since), Some(waits)) =
        (time("checkpoint_pending_seconds"), job["checkpoint_waits_for"].as_str())
    {
        parts.push(format!("the next waits for {waits}, for {since}"));
    }
    Some(parts.join(", "))
}

fn names(status: &Value) -> Vec<String> {
    let names = status["job"]["operators"].as_array();
    names.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

/// An interval for other programs.
fn report_json(status: &Value, ran: &Ran, names: &[String]) -> Value {
    let mut with_job = ran.json(names);
    with_job["job"] = status["job"].clone();
    with_job
}

/// The metrics of a status, by node and worker.
fn workers(status: &Value) -> BTreeMap<(u32, u32), WorkerCounters> {
    let each = |of: &str| status[of].as_array().into_iter().flatten();
    let number = |of: &Value, key: &str| of[key].as_u64().unwrap_or(0) as u32;
    let place = |of: &Value| (number(of, "node"), number(of, "worker"));
    let worker = |of: &Value| {
        let (node, worker) = place(of);
        let (counters, operators) = (counters_from_json(of), Vec::new());
        ((node, worker), WorkerCounters { node, worker, counters, operators })
    };
    let mut workers: BTreeMap<_, _> = each("workers").map(worker).collect();
    // In the order of the plan.
    for operator in each("operators") {
        if let Some(worker) = workers.get_mut(&place(operator)) {
            worker.operators.push(counters_from_json(operator));
        }
    }
    workers
}

/// The work of workers and operators between two looks.
fn between(last: &Value, now: &Value) -> Ran {
    let clock = |status: &Value| status["clock_ms"].as_i64().unwrap_or(0);
    let last_workers = workers(last);
    let since = |(place, now): ((u32, u32), WorkerCounters)| {
        let Some(last) = last_workers.get(&place) else { return now };
        let operators = now.operators.iter().enumerate().map(|(at, operator)| {
            operator.since(&last.operators.get(at).copied().unwrap_or_default())
        });
        WorkerCounters {
            counters: now.counters.since(&last.counters),
            operators: operators.collect(),
            ..now
        }
    };
    Ran {
        elapsed: Duration::from_millis((clock(now) - clock(last)).max(0) as u64),
        clock_ms: Some(clock(now)),
        workers: workers(now).into_iter().map(since).collect(),
        joined: Vec::new(),
        functions: Vec::new(),
    }
}

/// Why there is no answer.
enum Problem {
    /// Nobody is there.
    Gone(std::io::Error),
    /// Somebody else is there.
    Other(String),
}

impl Problem {
    fn of(self, address: SocketAddr) -> Failure {
        let (why, hint) = match self {
            Problem::Gone(error) => (
                error.to_string(),
                "start the job with --metrics, and give its address here: millstream top \
                 127.0.0.1:9464",
            ),
            Problem::Other(why) => (why, "give the address that a job was started with: --metrics"),
        };
        Failure::runtime(&format!("cannot read http://{address}/status: {why}"), Some(hint))
    }
}

fn status(address: SocketAddr) -> Result<Value, Problem> {
    let status = ask(address, "/status")?;
    match status.get("clock_ms") {
        Some(_) => Ok(status),
        None => Err(Problem::Other("it is not a job's".into())),
    }
}

/// The JSON at a path.
fn ask(address: SocketAddr, path: &str) -> Result<Value, Problem> {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        // In this version an answer ends with its connection.
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = exchange().map_err(|error| match error.kind() {
        ErrorKind::InvalidData => Problem::Other("it is no text".into()),
        _ => Problem::Gone(error),
    })?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    if !head.lines().next().is_some_and(|line| line.contains(" 200 ")) {
        let line = head.lines().next().unwrap_or("nothing");
        return match line {
            "" | "nothing" => Err(Problem::Gone(ErrorKind::UnexpectedEof.into())),
            _ => Err(Problem::Other(format!("it says '{line}'"))),
        };
    }
    serde_json::from_str(body).map_err(|error| Problem::Other(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(clock_ms: i64, rows: u64) -> Value {
        let numbers = json!({
            "node": 1, "worker": 3, "operator": 0, "busy_seconds": rows as f64 / 1e3,
            "input_rows": rows, "output_rows": 2 * rows, "watermark_seconds": 1.5,
        });
        json!({
            "clock_ms": clock_ms,
            "job": {
                "number": 1, "elapsed_seconds": 12.5, "bad_rows": 2.0, "operators": ["0 source t"],
                "statements": [{"name": "SELECT", "line": 1}],
            },
            "workers": [numbers],
            "operators": [numbers],
        })
    }

    #[test]
    fn an_interval_is_the_difference_of_two_looks() {
        let (last, now) = (status(10_000, 100), status(12_000, 600));
        let ran = between(&last, &now);
        assert_eq!((ran.elapsed, ran.clock_ms), (Duration::from_secs(2), Some(12_000)));
        let [worker] = &ran.workers[..] else { panic!("{ran:?}") };
        assert_eq!((worker.node, worker.worker), (1, 3));
        let counters = &worker.counters;
        assert_eq!((counters.rows_in, counters.rows_out), (500, 1000));
        assert_eq!((counters.busy_ns, counters.watermark_ms), (500_000_000, 1500));
        let [operator] = worker.operators[..] else { panic!("{ran:?}") };
        assert_eq!((operator.rows_in, operator.busy_ns), (500, 500_000_000));
        // A worker that was not there before has done all since.
        assert_eq!(between(&json!({}), &now).workers[0].counters.rows_in, 600);
        assert_eq!(heading(&now), "SELECT: for 12.5 s, 2 rows bad");
        let mut kept = now.clone();
        let job = kept["job"].as_object_mut().unwrap();
        job.insert("restarts".into(), 0.0.into());
        assert_eq!(heading(&kept), "SELECT: for 12.5 s, 2 rows bad\nno checkpoint yet");
        let job = kept["job"].as_object_mut().unwrap();
        for (name, value) in [
            ("restarts", 1.0),
            ("checkpoint_number", 412.0),
            ("checkpoint_age_seconds", 1.2),
            ("checkpoint_duration_seconds", 0.035),
            ("checkpoint_bytes", 41_216.0),
            ("given_up_checkpoints", 2.0),
            ("checkpoint_pending_seconds", 3.0),
        ] {
            job.insert(name.into(), value.into());
        }
        job.insert("checkpoint_waits_for".into(), "0 source t on worker 1".into());
        let peaks = |worker: Value, align: f64, save: f64| {
            let mut worker = worker;
            worker["align_peak_seconds"] = align.into();
            worker["save_peak_seconds"] = save.into();
            worker
        };
        let worker = kept["workers"][0].clone();
        kept["workers"] = json!([peaks(worker.clone(), 0.012, 0.5), peaks(worker, 0.007, 1.5)]);
        assert_eq!(
            heading(&kept).lines().nth(1),
            Some(
                "checkpoint 412, 1.2 s ago, took 35 ms, 40.2 KiB, 2 given up, aligned within 12 \
                 ms, saved within 1.5 s, 1 restart, the next waits for 0 source t on worker 1, for \
                 3.0 s"
            )
        );
        assert_eq!(report_json(&now, &ran, &names(&now))["operators"][0]["name"], "0 source t");
    }
}
