//! `millstream run` as one of several processes that `mpirun` or `srun` started.
//!
//! Every rank reads the script and plans it, and nobody starts anybody:
//!
//! ```text
//!   meet ─▶ all_gather("start") ─▶ plan ─▶ all_gather("planned") ─▶ run
//! ```
//!
//! Each rank sees all that the others were given. They refuse each other where that differs, each
//! with the same words. Rank 0 alone prints rows and the summary; the end of the job is reported by
//! every rank, since a launcher may show the words of any.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use millstream::cluster::{Assignment, Control};
use millstream::{CheckpointOptions, Error, PlanDecisions, RunOptions, WORKERS_MAX};

use self::joining::RankReport;
use self::rank_arguments::RankArguments;

use crate::args::{ProgressStyle, RunArgs};
use crate::failure::{Failure, INTERRUPTED};
use crate::output::{OutputFile, OutputWriter};
use crate::screen::Screen;
use crate::script::{self, SqlText};
use crate::session::{JobEnd, Start, dry_run, finish, print, session};
use crate::telemetry::Telemetry;
use crate::{recover, rows, signals, supervised};

mod joining;
mod rank_arguments;

/// The step by which the nodes tell what they were given.
const START_STEP: &str = "start";
/// The step by which rank 0 hands out what a job that goes on has decided.
const DECISIONS_STEP: &str = "decisions";
/// The step by which they tell whether they could plan it.
const PLANNED_STEP: &str = "planned";

/// Runs this rank's part of the command.
pub(crate) fn run(args: &RunArgs, assignment: &Assignment) -> Result<ExitCode, Failure> {
    let first = assignment.rank == 0;
    let style = if args.quiet || !first { ProgressStyle::None } else { args.progress };
    let screen = Screen::new(style);
    let telemetry = Telemetry::start(&args.telemetry, &args.log, &screen, first)?;
    let result = run_rank(args, assignment, &screen, &telemetry);
    telemetry.end();
    if result.is_ok() {
        millstream::finish_fabrics();
    }
    result
}

fn run_rank(
    args: &RunArgs,
    assignment: &Assignment,
    screen: &Screen,
    telemetry: &Telemetry,
) -> Result<ExitCode, Failure> {
    let first = assignment.rank == 0;
    // All ranks have the same arguments, and one of them is enough to say what is wrong with them.
    let sent = |failure: Failure| if first { failure } else { failure.silenced() };
    let mut args = prepared(args, assignment).map_err(sent)?;
    let state = recover::state_of(&args).map_err(sent)?;
    if args.dry_run {
        return if first { plan_only(&args, screen) } else { Ok(ExitCode::SUCCESS) };
    }
    // Nobody reads what rank 0 is given twice: a launcher hands standard input to one of them.
    let piped = args.job.file.as_os_str() == "-";
    let mut script = if piped && !first {
        SqlText { name: "<stdin>".into(), sql: String::new() }
    } else {
        script::read(&args.job.file)?
    };
    let report = RankReport { keeps: state.is_some(), rank: assignment.rank };
    let failed = |error: &Error, script: &SqlText| joining::failure(error, script, report);
    args.job.layout.fabric.check().map_err(|error| failed(&error, &script))?;
    let control = joining::join(&args, assignment, state.as_ref(), &script)?;
    let cancel = signals::cancel_flag(None)?;
    let started = agree(&control, &mut args, &mut script, assignment)?;
    let started = match &state {
        Some(state) => decided(&control, &args, state, started, &script, report)?,
        None => started,
    };
    let text_file = rows::text_file(&args.rows).filter(|_| first);
    let (output, writer) = OutputFile::open(text_file, screen)?;
    output.heed(&cancel);
    let on_one_machine = control.address().is_loopback();
    let planned = plan(&args, &script, writer, &started).and_then(|planned| {
        planned.fits(on_one_machine).map_err(|error| failed(&error, &script)).map(|()| planned)
    });
    let planned = agree_on_plan(&control, planned, &script, report)?;
    let options = RunOptions {
        control: Some(&control),
        cancel: Some(&cancel),
        observer: Some(telemetry),
        state: state.as_ref(),
        restarts: supervised::restarts(),
        ..RunOptions::default()
    };
    let result = planned.run(&options);
    screen.clear();
    if let Err(error) = &result
        && error.failed_node().is_none()
    {
        control.fail(&error.reason());
    }
    control.close();
    let interrupted = cancel.load(Ordering::Relaxed);
    match result {
        Ok(report) if !first => {
            let interrupted = interrupted || report.cancelled;
            Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
        }
        result => {
            let ended = finish(&args, screen, output, result, interrupted);
            ended.map_err(|end| match end {
                JobEnd::Library(error) => failed(&error, &script),
                end @ JobEnd::Command(_) => end.failure(&script),
            })
        }
    }
}

/// The arguments with the launcher's number of nodes.
fn prepared(args: &RunArgs, assignment: &Assignment) -> Result<RunArgs, Failure> {
    let Assignment { nodes, launcher, .. } = *assignment;
    let mut args = args.clone();
    match args.job.layout.nodes {
        Some(asked) if asked != nodes => {
            let message = format!("--nodes {asked}, but {launcher} started {nodes} processes");
            Err(Failure::usage(&message, Some("leave --nodes out: the launcher sets it")))
        }
        _ if args.memory_servers.is_some() => {
            let message = "--memory-servers starts servers of nodes that this command starts";
            let hint = "start them beforehand, `millstream memory`, and name them: --pool";
            Err(Failure::usage(message, Some(hint)))
        }
        _ => {
            args.job.layout.nodes = Some(nodes);
            args.job.layout.workers = args.job.layout.workers.or(assignment.cores);
            Ok(args)
        }
    }
}

fn plan_only(args: &RunArgs, screen: &Screen) -> Result<ExitCode, Failure> {
    let script = script::read(&args.job.file)?;
    let planned = plan(args, &script, OutputWriter::stdout(screen), &Start::now(args))?;
    print(&dry_run(&args.job.layout, &planned.memory()));
    Ok(ExitCode::SUCCESS)
}

fn plan(
    args: &RunArgs,
    script: &SqlText,
    writer: OutputWriter,
    start: &Start,
) -> Result<millstream::Script, Failure> {
    let fail = |error: &Error| Failure::of(error, &script.name, &script.sql);
    let mut session = session(args, writer, start)?.map_err(|error| fail(&error))?;
    let planned = session.sql(&script.sql).map_err(|error| fail(&error))?;
    if let Some(file) = rows::file(&args.rows) {
        rows::only_one(&planned, file)?;
    }
    Ok(planned)
}

/// Compares what the nodes were given, and takes what is not given from them all: the time of rank
/// 0 and what was piped into it, and as many threads as every node can have.
fn agree(
    control: &Control,
    args: &mut RunArgs,
    script: &mut SqlText,
    assignment: &Assignment,
) -> Result<Start, Failure> {
    let own = RankArguments::new(args, script, assignment);
    let report = RankReport { keeps: args.state.state.is_some(), rank: assignment.rank };
    let all = gather(control, START_STEP, own.encode(), script, report)?;
    let all: Vec<Option<RankArguments>> =
        all.iter().map(|bytes| RankArguments::decode(bytes)).collect();
    let Some(first) = all.first().and_then(Option::as_ref) else {
        return Err(refused(0, "its version: it speaks of what this one does not know"));
    };
    for (rank, other) in all.iter().enumerate() {
        let difference = match other {
            Some(other) => first.difference(other),
            None => Some("its version: it speaks of what node 0 does not know".into()),
        };
        if let Some(difference) = difference {
            // The others find the same, if nobody leaves before they have looked.
            control.close();
            return Err(refused(rank, &difference));
        }
    }
    let workers = all.iter().flatten().map(|arguments| arguments.workers).min();
    args.job.layout.workers = workers.map(|workers| workers.clamp(1, WORKERS_MAX));
    script.sql.clone_from(&first.sql);
    Ok(Start { started: first.started, job: first.job, ..Start::now(args) })
}

/// The start with the decisions of rank 0: another rank may have been started again alone, and not
/// know what the others have begun.
fn decided(
    control: &Control,
    args: &RunArgs,
    state: &CheckpointOptions,
    start: Start,
    script: &SqlText,
    report: RankReport,
) -> Result<Start, Failure> {
    let own = match report.rank {
        0 => start.clone().resuming(args, Some(state)),
        _ => Ok(start.clone()),
    };
    let own = own.map_err(|error| joining::failure(&error, script, report))?;
    let all = gather(control, DECISIONS_STEP, own.decisions.encode(), script, report)?;
    let decisions = all.first().and_then(|bytes| PlanDecisions::decode(bytes));
    let decisions = decisions.ok_or_else(|| refused(0, "its version"))?;
    Ok(Start { decisions, ..start })
}

fn refused(rank: usize, difference: &str) -> Failure {
    let message = format!("node {rank} differs from node 0 in {difference}");
    Failure::runtime(&message, Some("all nodes of a job need the same program, SQL and options"))
}

/// The plan, if every node has one. The lowest that has none says why; another that has none has
/// nothing to add.
fn agree_on_plan(
    control: &Control,
    own: Result<millstream::Script, Failure>,
    script: &SqlText,
    report: RankReport,
) -> Result<millstream::Script, Failure> {
    let sent = own.as_ref().err().map_or(Vec::new(), |failure| {
        let message = if failure.message().is_empty() { "?" } else { failure.message() };
        message.as_bytes().to_vec()
    });
    let all = gather(control, PLANNED_STEP, sent, script, report)?;
    let Some(rank) = all.iter().position(|message| !message.is_empty()) else { return own };
    control.close();
    match own {
        Err(failure) if rank as u32 == control.rank() => Err(failure),
        Err(failure) => Err(failure.silenced()),
        Ok(_) => {
            let message = String::from_utf8_lossy(&all[rank]);
            let message = format!("node {rank} cannot plan {}: {message}", script.name);
            Err(Failure::runtime(&message, Some("every node has to see the same files")))
        }
    }
}

fn gather(
    control: &Control,
    step: &str,
    own: Vec<u8>,
    script: &SqlText,
    report: RankReport,
) -> Result<Vec<Vec<u8>>, Failure> {
    let gathered = control.all_gather(step, own);
    gathered.map_err(|error| joining::failure(&error.into(), script, report))
}
