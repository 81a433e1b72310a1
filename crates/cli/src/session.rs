//! The session that the arguments ask for, and how a job ends: alike on every node of a run,
//! however it was started.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream::{Error, FabricKind, Memory, Report, RowFormat, RowTarget, Session};

use crate::args::{LayoutArgs, RunArgs};
use crate::failure::{Failure, INTERRUPTED};
use crate::output::{OutputFile, OutputWriter};
use crate::screen::Screen;
use crate::script::SqlText;
use crate::{human, rows, summary};

/// The step by which node 0 hands the SQL to the others.
pub(crate) const SCRIPT_STEP: &str = "script";

/// A session as the arguments say; every node builds the same. `started` is node 0's clock.
///
/// # Errors
/// The outer one when the arguments do not fit each other, the inner one as the session has it.
pub(crate) fn session(
    args: &RunArgs,
    output: OutputWriter,
    started: SystemTime,
) -> Result<Result<Session, Error>, Failure> {
    let target = rows::target(&args.rows, &output)?;
    output
        .clip(matches!(target, RowTarget::Output(RowFormat::Table)) && args.rows.output.is_none());
    let file = rows::text_file(&args.rows);
    let name = file.map_or("stdout".into(), |path| path.display().to_string());
    let builder = millstream_session(&args.job.layout).started_at(started).rows_to(target);
    let builder = builder.output_for_programs(rows::for_programs(&args.rows));
    Ok(builder.output(&name, output).build())
}

pub(crate) fn millstream_session(layout: &LayoutArgs) -> millstream::SessionBuilder {
    let (nodes, workers) = (layout.nodes(), layout.workers());
    let mut builder = Session::builder().nodes(nodes).workers(workers).fabric(layout.fabric);
    for (key, value) in &layout.set {
        builder = builder.set(key, value);
    }
    builder
}

/// `nanoseconds since 1970 u64 | SQL`.
pub(crate) fn encode_start(sql: &str, started: SystemTime) -> Vec<u8> {
    let since = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    [&ns.to_le_bytes(), sql.as_bytes()].concat()
}

/// The inverse of [`encode_start`].
pub(crate) fn decode_start(bytes: &[u8]) -> Option<(String, SystemTime)> {
    let (ns, sql) = bytes.split_first_chunk()?;
    let started = UNIX_EPOCH.checked_add(Duration::from_nanos(u64::from_le_bytes(*ns)))?;
    Some((String::from_utf8(sql.to_vec()).ok()?, started))
}

/// Why a job ended without success.
pub(crate) enum JobEnd {
    Library(Error),
    Command(Failure),
}

impl JobEnd {
    /// As the user hears of it.
    pub(crate) fn failure(self, script: &SqlText) -> Failure {
        match self {
            JobEnd::Library(error) => Failure::of(&error, &script.name, &script.sql),
            JobEnd::Command(failure) => failure,
        }
    }
}

pub(crate) fn finish(
    args: &RunArgs,
    screen: &Screen,
    output: OutputFile,
    result: Result<Report, Error>,
    interrupted: bool,
) -> Result<ExitCode, JobEnd> {
    let report = match result {
        Ok(report) => report,
        // Nobody reads the rows any more: nothing is wrong.
        Err(_) if output.reader_is_gone() => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(JobEnd::Library(error)),
    };
    output.publish().map_err(JobEnd::Command)?;
    // The rank that was interrupted may be any.
    let interrupted = interrupted || report.cancelled;
    if !args.quiet {
        screen.line(&summary::summary(&report));
    }
    if let Some(warning) = summary::warning(&report) {
        screen.line(&warning);
    }
    Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// The transport, in words.
fn between(fabric: FabricKind) -> String {
    match fabric {
        FabricKind::Auto => "shm (and verbs or tcp from machine to machine)".into(),
        fabric => fabric.to_string(),
    }
}

/// The memory that a job would use.
pub(crate) fn dry_run(job: &LayoutArgs, memory: &Memory) -> String {
    let mut text = format!(
        "{} with {} each, {} between workers\n\n{:<14}{:>12}{:>12}  per worker\n",
        human::counted(job.nodes().into(), "node"),
        human::counted(job.workers().into(), "worker"),
        between(job.fabric),
        "memory",
        "per node",
        "in all"
    );
    let mut line = |name: &str, node: u64, all: u64, sum: &str| {
        let (node, all) = (human::bytes(node), human::bytes(all));
        text.push_str(format!("{name:<14}{node:>12}{all:>12}  {sum}").trim_end());
        text.push('\n');
    };
    for need in &memory.needs {
        line(need.name, need.node_bytes, need.all_bytes, &need.sum);
    }
    line("sum", memory.node_bytes(), memory.all_bytes(), "");
    text
}

/// Writes to standard output; a reader that has gone is no error.
pub(crate) fn print(text: &str) {
    use std::io::Write;
    let written = std::io::stdout().lock().write_all(text.as_bytes());
    if let Err(error) = written {
        tracing::debug!(%error, "standard output");
    }
}
