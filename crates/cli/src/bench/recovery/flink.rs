//! The cost of checkpoints in Flink: a job like YSB with checkpoints and without, in turns.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use bench::recovery::StateDirectory;
use bench::recovery::estimate::{median, median_estimate};
use bench::report::{ReportSection, ReportTable};
use serde_json::Value;

/// The state backends, as Flink names them.
const BACKENDS: [&str; 2] = ["hashmap", "rocksdb"];
/// The milliseconds between two checkpoints.
const INTERVAL_MS: u64 = 1000;
/// The rows and the number of the runs in which compilers warm up.
const WARM_ROWS: u64 = 1_000_000;
const WARM_RUNS: u32 = 3;

/// The extent of the measurement.
#[derive(Debug, Clone)]
pub(super) struct FlinkPlan<'a> {
    /// The command that starts Java with the program's classes.
    pub(super) command: Option<&'a str>,
    pub(super) seconds: f64,
    pub(super) pairs: u32,
    pub(super) threads: u32,
    pub(super) directory: &'a Path,
}

/// Measures each backend. The text names one that does not run, and the reason.
pub(super) fn measure(plan: &FlinkPlan<'_>) -> ReportSection {
    let mut section = ReportSection {
        title: "Flink".into(),
        text: vec![format!(
            "A job like YSB, whose rows are made as they are read, with a checkpoint every \
             {INTERVAL_MS} ms and without, in turns: processor time of the process, its compilers \
             and collectors among it."
        )],
        ..ReportSection::default()
    };
    let Some(command) = plan.command else {
        section.text.push("Skipped: --flink names no command that starts it.".into());
        return section;
    };
    let mut rows = Vec::new();
    for backend in BACKENDS {
        match row(plan, command, backend) {
            Ok(row) => rows.push(row),
            Err(why) => section.text.push(format!("Skipped: {backend}: {why}")),
        }
    }
    let columns = [
        "Flink",
        "backend",
        "pairs",
        "processor s",
        "M rows/s",
        "checkpoints",
        "more",
        "from",
        "to",
    ];
    let columns = columns.map(str::to_owned).to_vec();
    section.tables.push(ReportTable { title: String::new(), columns, rows });
    section
}

/// The figures of a backend as cells.
fn row(plan: &FlinkPlan<'_>, command: &str, backend: &str) -> Result<Vec<String>, String> {
    let directory = StateDirectory::new(plan.directory).map_err(|error| error.to_string())?;
    let mut flink = Flink::start(command, plan.threads, backend, directory.path())?;
    let mut warm = 0.0;
    for _ in 0..WARM_RUNS {
        warm = flink.run(WARM_ROWS, INTERVAL_MS)?.processor;
    }
    let count = (WARM_ROWS as f64 * plan.seconds / warm.max(1e-3)).max(1.0) as u64;
    let (mut more, mut seconds, mut checkpoints) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..plan.pairs {
        let (bare, saved) = if pair % 2 == 0 {
            let bare = flink.run(count, 0)?;
            (bare, flink.run(count, INTERVAL_MS)?)
        } else {
            let saved = flink.run(count, INTERVAL_MS)?;
            (flink.run(count, 0)?, saved)
        };
        if bare.sums != saved.sums {
            return Err(format!("{:?} with checkpoints, and {:?}", saved.sums, bare.sums));
        }
        more.push(saved.processor / bare.processor.max(1e-9) - 1.0);
        seconds.push(bare.processor);
        checkpoints.push(saved.checkpoints);
    }
    let estimate = median_estimate(&more);
    let cell = |value: Option<f64>| value.map_or("–".into(), |v| format!("{:.2} %", v * 100.0));
    let seconds = median(&seconds);
    Ok(vec![
        flink.version.clone(),
        backend.to_owned(),
        more.len().to_string(),
        format!("{seconds:.3}"),
        format!("{:.1}", count as f64 / seconds.max(1e-9) / 1e6),
        format!("{:.0}", median(&checkpoints)),
        cell(estimate.map(|of| of.median)),
        cell(estimate.map(|of| of.low)),
        cell(estimate.map(|of| of.high)),
    ])
}

/// A run of the program.
struct FlinkRun {
    processor: f64,
    checkpoints: f64,
    /// Rows of the result, and their sum.
    sums: (u64, u64),
}

/// The process of Flink, which runs the job once for each line that it reads.
struct Flink {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    version: String,
}

impl Flink {
    fn start(command: &str, threads: u32, backend: &str, directory: &Path) -> Result<Self, String> {
        let mut words = command.split_whitespace();
        let program = words.next().ok_or("--flink is empty")?;
        let mut command = Command::new(program);
        command.args(words).arg("peer.Recovery").args(["--backend", backend]);
        command.args(["--threads", &threads.to_string()]).arg("--directory").arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{program} has no input and output"));
        };
        let output = BufReader::new(output);
        let mut flink = Self { child, input, output, version: String::new() };
        flink.version = flink.answer()?["version"].as_str().unwrap_or("?").to_owned();
        Ok(flink)
    }

    fn run(&mut self, rows: u64, interval_ms: u64) -> Result<FlinkRun, String> {
        writeln!(self.input, "{rows} {interval_ms}").map_err(|error| error.to_string())?;
        let answer = self.answer()?;
        let number = |name: &str| answer[name].as_f64().ok_or(format!("no {name} in {answer}"));
        let whole = |name: &str| answer[name].as_u64().ok_or(format!("no {name} in {answer}"));
        Ok(FlinkRun {
            processor: number("processor")?,
            checkpoints: number("checkpoints")?,
            sums: (whole("rows")?, whole("whole")?),
        })
    }

    fn answer(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        if read == 0 {
            return Err("the program has ended".into());
        }
        serde_json::from_str(&line).map_err(|error| format!("{}: {error}", line.trim()))
    }
}

impl Drop for Flink {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(command: Option<&str>) -> String {
        let directory = std::env::temp_dir();
        let (seconds, pairs, threads) = (0.1, 6, 1);
        measure(&FlinkPlan { command, seconds, pairs, threads, directory: &directory }).to_string()
    }

    #[test]
    fn what_cannot_be_started_is_skipped_with_the_reason() {
        assert!(text(None).contains("Skipped: --flink names no command"));
        let missing = text(Some("/nowhere/java -cp x"));
        for backend in BACKENDS {
            assert!(missing.contains(&format!("Skipped: {backend}: /nowhere/java: ")), "{missing}");
        }
        assert!(text(Some("true")).contains("Skipped: rocksdb: the program has ended"));
    }
}
