//! `millstream run`, as node 0.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream::cluster::{Assignment, Control, Invitation, Launched, LocalLaunch, launch_local};
use millstream::{Error, FabricKind, Memory, Report, RowFormat, RowTarget, RunOptions, Session};

use crate::args::{LayoutArgs, ProgressStyle, RunArgs};
use crate::failure::Failure;
use crate::output::{Output, Writer};
use crate::screen::Screen;
use crate::script::{self, Script};
use crate::telemetry::Telemetry;
use crate::{human, launched, member, rows, signals, summary};

/// How long other nodes may take to end by themselves.
const PATIENCE: Duration = Duration::from_secs(5);

/// The step by which node 0 hands the SQL to the others.
pub(crate) const SCRIPT_STEP: &str = "script";

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    signals::survive_large_files()?;
    if let Some(invitation) = invitation()? {
        return member::run(args, &invitation);
    }
    if let Some(assignment) = assignment()? {
        return launched::run(args, &assignment);
    }
    let style = if args.quiet { ProgressStyle::None } else { args.progress };
    let screen = Screen::new(style);
    let telemetry = Telemetry::start(&args.telemetry, &args.log, &screen, true)?;
    let result = run_first(args, &screen, &telemetry);
    telemetry.end();
    result
}

fn run_first(args: &RunArgs, screen: &Screen, telemetry: &Telemetry) -> Result<ExitCode, Failure> {
    if let Some(addr) = args.listen.filter(|addr| !addr.ip().is_loopback()) {
        let message =
            format!("cannot listen on {addr}: this process starts all nodes on this host");
        let hint = "use a loopback address; mpirun and srun start nodes on other hosts";
        return Err(Failure::usage(&message, Some(hint)));
    }
    let script = script::read(&args.job.file)?;
    let started = SystemTime::now();
    let fail = |error: &Error| Failure::of(error, &script.name, &script.sql);
    let (output, writer) = Output::open(rows::text_file(&args.rows), screen)?;
    let mut session = session(args, writer, started)?.map_err(|error| fail(&error))?;
    let planned = session.sql(&script.sql).map_err(|error| fail(&error))?;
    if let Some(file) = rows::file(&args.rows) {
        rows::only_one(&planned, file)?;
    }
    if args.dry_run {
        print(&dry_run(&args.job.layout, &planned.memory()));
        return Ok(ExitCode::SUCCESS);
    }
    planned.fits(true).map_err(|error| fail(&error))?;
    let cancel = signals::cancel_flag(output.temporary())?;
    output.heed(&cancel);
    let launched = launch(args, screen).map_err(|error| fail(&error))?;
    let options = RunOptions {
        control: Some(&launched.control),
        cancel: Some(&cancel),
        observer: Some(telemetry),
        ..RunOptions::default()
    };
    let result = start(&launched.control, &script, started).and_then(|()| planned.run(&options));
    screen.clear();
    if result.is_ok() {
        launched.control.close();
        launched.children.wait(PATIENCE);
    } else {
        // Says why before it goes.
        drop(launched.control);
        match result.as_ref().err().and_then(Error::failed_node) {
            Some(failure) => launched.children.wait_after(failure),
            None => launched.children.wait(PATIENCE),
        }
    }
    let interrupted = cancel.load(Ordering::Relaxed);
    finish(args, screen, output, result, interrupted).map_err(|end| end.failure(&script))
}

/// The invitation that makes this process another node than 0.
fn invitation() -> Result<Option<Invitation>, Failure> {
    Invitation::from_env().map_err(|error| Failure::runtime(&error.to_string(), None))
}

/// What a launcher tells this process to be; nothing if it is on its own.
fn assignment() -> Result<Option<Assignment>, Failure> {
    let told = Assignment::from_env();
    told.map_err(|error| Failure::usage(&error.to_string(), error.hint().as_deref()))
}

/// A session as the arguments say; every node builds the same. `started` is node 0's clock.
///
/// # Errors
/// The outer one when the arguments do not fit each other, the inner one as the session has it.
pub(crate) fn session(
    args: &RunArgs,
    output: Writer,
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

fn launch(args: &RunArgs, screen: &Screen) -> Result<Launched, Error> {
    args.job.layout.fabric.check()?;
    let mut launch = LocalLaunch::new(args.job.layout.nodes())?;
    launch.listen = args.listen.unwrap_or(launch.listen);
    let screen = screen.clone();
    launch.stderr = Arc::new(move |rank, line| screen.line(&format!("[node {rank}] {line}")));
    Ok(launch_local(launch)?)
}

/// Hands the SQL and the time to the other nodes: a file may change, standard input is read once,
/// and `now()` has to be the same everywhere.
fn start(control: &Control, script: &Script, started: SystemTime) -> Result<(), Error> {
    control.all_gather(SCRIPT_STEP, encode_start(&script.sql, started))?;
    Ok(())
}

/// `nanoseconds since 1970 u64 | SQL`.
fn encode_start(sql: &str, started: SystemTime) -> Vec<u8> {
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

pub(crate) enum End {
    Library(Error),
    Command(Failure),
}

impl End {
    /// As the user hears of it.
    pub(crate) fn failure(self, script: &Script) -> Failure {
        match self {
            End::Library(error) => Failure::of(&error, &script.name, &script.sql),
            End::Command(failure) => failure,
        }
    }
}

pub(crate) fn finish(
    args: &RunArgs,
    screen: &Screen,
    output: Output,
    result: Result<Report, Error>,
    interrupted: bool,
) -> Result<ExitCode, End> {
    let report = match result {
        Ok(report) => report,
        // Nobody reads the rows any more: nothing is wrong.
        Err(_) if output.reader_is_gone() => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(End::Library(error)),
    };
    output.publish().map_err(End::Command)?;
    // Whichever rank was told to end.
    let interrupted = interrupted || report.cancelled;
    if !args.quiet {
        screen.line(&summary::summary(&report));
    }
    if let Some(warning) = summary::warning(&report) {
        screen.line(&warning);
    }
    Ok(if interrupted { ExitCode::from(signals::INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// What carries rows, in words.
fn between(fabric: FabricKind) -> String {
    match fabric {
        FabricKind::Auto => "shm (and verbs or tcp from machine to machine)".into(),
        fabric => fabric.to_string(),
    }
}

/// What a job would use.
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
