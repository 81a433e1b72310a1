//! `millstream run`, as node 0.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream::cluster::{Assignment, Control, Invitation, Launched, LocalLaunch, launch_local};
use millstream::{Error, RunOptions};

use crate::args::{ProgressStyle, RunArgs};
use crate::failure::Failure;
use crate::output::OutputFile;
use crate::screen::Screen;
use crate::script::{self, SqlText};
use crate::session::{SCRIPT_STEP, Start, dry_run, finish, print, session};
use crate::telemetry::Telemetry;
use crate::{launched, member, memory, recover, rows, signals, supervise, supervised};

/// How long other nodes may take to end by themselves.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    signals::survive_large_files()?;
    let args = &supervised::rescaled(args);
    if let Some(invitation) = invitation()? {
        return member::run(args, &invitation);
    }
    let mut assignment = assignment()?;
    if supervise::supervises(args, assignment.as_ref()) {
        return supervise::supervise(args, assignment.as_ref());
    }
    supervised::die_with_supervisor();
    if assignment.is_some() {
        assignment = assignment.and_then(supervised::among_members);
        let missing = || Failure::usage("this rank is not one of those that go on", None);
        return launched::run(args, &assignment.ok_or_else(missing)?);
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
    let state = recover::state_of(args)?;
    let mut start = Start::now(args);
    let servers = match args.memory_servers {
        Some(_) if args.job.layout.pool.is_named() => {
            let message = "--memory-servers starts the servers of a job, and --pool names others";
            return Err(Failure::usage(message, Some("leave one of them out")));
        }
        Some(servers) => {
            let (servers, addresses) = memory::of_job(servers)?;
            start.pool = addresses;
            servers
        }
        None => Vec::new(),
    };
    let fail = |error: &Error| Failure::of(error, &script.name, &script.sql);
    let (output, writer) = OutputFile::open(rows::text_file(&args.rows), screen)?;
    let start = start.resuming(args, state.as_ref()).map_err(|error| fail(&error))?;
    let mut session = session(args, writer, &start)?.map_err(|error| fail(&error))?;
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
    let goes_on = |error: &Error| state.is_some() && error.has_lost_node();
    let launched = launch(args, screen).map_err(|error| {
        let failure = fail(&error);
        if goes_on(&error) { failure.beginning_again() } else { failure }
    })?;
    let options = RunOptions {
        control: Some(&launched.control),
        cancel: Some(&cancel),
        observer: Some(telemetry),
        state: state.as_ref(),
        restarts: supervised::restarts(),
        ..RunOptions::default()
    };
    let result = tell(&launched.control, &script, &start).and_then(|()| planned.run(&options));
    screen.clear();
    if result.is_ok() {
        launched.control.close();
        launched.children.wait(TIMEOUT);
    } else {
        // Says why before it goes.
        drop(launched.control);
        match result.as_ref().err().and_then(Error::failed_node) {
            Some(failure) => launched.children.wait_after(failure),
            None => launched.children.wait(TIMEOUT),
        }
    }
    // The plan holds leases of them.
    drop((planned, session, servers));
    let interrupted = cancel.load(Ordering::Relaxed);
    let lost = result.as_ref().is_err_and(goes_on);
    let ended = finish(args, screen, output, result, interrupted);
    ended.map_err(|end| {
        let failure = end.failure(&script);
        if lost { failure.beginning_again() } else { failure }
    })
}

/// The invitation that makes this process another node than 0.
fn invitation() -> Result<Option<Invitation>, Failure> {
    Invitation::from_env().map_err(|error| Failure::runtime(&error.to_string(), None))
}

/// The launcher's assignment of this process; nothing if it is on its own.
fn assignment() -> Result<Option<Assignment>, Failure> {
    let assignment = Assignment::from_env();
    assignment.map_err(|error| Failure::usage(&error.to_string(), error.hint().as_deref()))
}

fn launch(args: &RunArgs, screen: &Screen) -> Result<Launched, Error> {
    args.job.layout.fabric.check()?;
    let mut launch = LocalLaunch::new(args.job.layout.nodes())?;
    launch.listen = args.listen.unwrap_or(launch.listen);
    let screen = screen.clone();
    launch.stderr = Arc::new(move |rank, line| screen.line(&format!("[node {rank}] {line}")));
    Ok(launch_local(launch)?)
}

/// Hands the SQL and the rest to the other nodes: a file may change, standard input is read once,
/// and `now()` has to be the same everywhere.
fn tell(control: &Control, script: &SqlText, start: &Start) -> Result<(), Error> {
    control.all_gather(SCRIPT_STEP, start.encode(&script.sql))?;
    Ok(())
}
