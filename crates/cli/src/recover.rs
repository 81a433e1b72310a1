//! `--state`: where a job keeps its checkpoints, and the process that starts its nodes again.
//!
//! ```text
//! the started process ─▶ node 0 ─▶ nodes 1, 2, …
//! ```
//!
//! The started process has no rows and no connections. A node that is killed ends all others, with
//! code 75; then node 0 is started again, and the job goes on from its last checkpoint. Whatever
//! else ends a job ends it: the same error would come again.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use millstream::checkpoint::chain::{self, ChainView, ResumeFrom};
use millstream::checkpoint::{ObjectName, Store};
use millstream::{CheckpointOptions, state_store};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;

use crate::args::{RunArgs, StateArgs, StopArgs};
use crate::failure::{AGAIN, Failure, INTERRUPTED};

/// The variable by which a process knows that another one starts it again: the process of that.
const SUPERVISED: &str = "MILLSTREAM_SUPERVISED";
/// Starts in a row without a checkpoint in between.
const FRUITLESS_MAX: u32 = 10;
/// The pause before a start that follows a fruitless one; it doubles, up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before a start.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long `stop` waits for a job's last checkpoint.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks at it.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// Where and how the job of these arguments keeps checkpoints; `None` without `--state`.
pub(crate) fn state_of(args: &RunArgs) -> Result<Option<CheckpointOptions>, Failure> {
    let StateArgs { state, job, from, evolve, take_over } = &args.state;
    let Some(place) = state else { return Ok(None) };
    let stem = args.job.file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let Some(job) = job.clone().or(stem.filter(|stem| stem != "-")) else {
        let hint = "name the job: --job clicks";
        return Err(Failure::usage("--state needs the name of a job", Some(hint)));
    };
    if args.job.file.as_os_str() == "-" {
        let message = "--state needs the SQL in a file: the job may be started again";
        return Err(Failure::usage(message, None));
    }
    ObjectName::job(&job).map_err(|error| Failure::usage(&error.to_string(), None))?;
    let from = match from.as_str() {
        "latest" => ResumeFrom::Latest,
        "none" => ResumeFrom::Nothing,
        text => match text.parse() {
            Ok(number) => ResumeFrom::Number(number),
            Err(_) => ResumeFrom::Named(text.to_owned()),
        },
    };
    // A job begins anew, or goes on from an older checkpoint, once and not at each restart.
    let again = std::env::var_os(STARTED_AGAIN).is_some();
    let from = if again { ResumeFrom::Latest } else { from };
    let (store, evolve, take_over) = (open(place)?, *evolve, *take_over);
    Ok(Some(CheckpointOptions { store, job, from, evolve, take_over }))
}

/// The variable of a start behind the first.
const STARTED_AGAIN: &str = "MILLSTREAM_STARTED_AGAIN";
/// The variable that says how many starts there were before.
const RESTARTS: &str = "MILLSTREAM_RESTARTS";

/// How often the job was started again before this start.
pub(crate) fn restarts() -> u32 {
    std::env::var(RESTARTS).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn open(place: &str) -> Result<Arc<dyn Store>, Failure> {
    state_store::open(place).map_err(|error| Failure::usage(&error.to_string(), None))
}

/// Whether this process is the one that the user has started, and starts its nodes again.
pub(crate) fn supervises(args: &RunArgs) -> bool {
    args.state.state.is_some() && !args.dry_run && std::env::var_os(SUPERVISED).is_none()
}

/// Has this process die with the one that starts it again.
pub(crate) fn die_with_supervisor() {
    let supervisor = std::env::var(SUPERVISED).ok().and_then(|pid| pid.parse::<i32>().ok());
    let Some(supervisor) = supervisor else { return };
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // It may have died before.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(supervisor) {
        std::process::exit(AGAIN.into());
    }
}

/// Starts node 0 as often as needed.
pub(crate) fn supervise(args: &RunArgs) -> Result<ExitCode, Failure> {
    let state = state_of(args)?;
    let failed = |error: std::io::Error| Failure::runtime(&format!("cannot start: {error}"), None);
    let child_pid = Arc::new(AtomicU32::new(0));
    let asked = Arc::new(AtomicBool::new(false));
    pass_on_terminations(child_pid.clone(), asked.clone()).map_err(failed)?;
    let (mut fruitless, mut starts) = (0u32, 0u32);
    let mut before = state.as_ref().and_then(checkpoint_of);
    let generations = state.as_ref().map(generations_of);
    loop {
        if asked.load(Ordering::Acquire) {
            return Ok(ExitCode::from(INTERRUPTED));
        }
        // A job that begins anew does so once, when its run is in the chain.
        let begun = starts > 0 && generations != state.as_ref().map(generations_of);
        let mut child = start(begun, starts).map_err(failed)?;
        child_pid.store(child.id(), Ordering::Release);
        let status = child.wait().map_err(failed)?;
        child_pid.store(0, Ordering::Release);
        if asked.load(Ordering::Acquire) && is_lost(status) {
            // The user has ended it: it goes on when it is run again.
            return Ok(ExitCode::from(INTERRUPTED));
        }
        if !is_lost(status) {
            return Ok(ExitCode::from(status.code().unwrap_or(1) as u8));
        }
        let now = state.as_ref().and_then(checkpoint_of);
        fruitless = if now == before { fruitless + 1 } else { 0 };
        before = now;
        starts += 1;
        if let Some(signal) = status.signal() {
            eprintln!("node 0 (process {}) was killed by signal {signal}", child.id());
        }
        if fruitless > FRUITLESS_MAX {
            let message =
                format!("the job was started again {FRUITLESS_MAX} times without a checkpoint");
            let hint = "the messages above say why it ended; run it again to go on";
            Failure::runtime(&message, Some(hint)).print();
            return Ok(ExitCode::from(AGAIN));
        }
        if !args.quiet {
            eprintln!("the job is started again ({starts})");
        }
        if fruitless > 1 {
            std::thread::sleep((PAUSE * (1 << fruitless.min(7))).min(PAUSE_MAX));
        }
    }
}

/// Whether a node of the job was lost, so that the next start may go on.
fn is_lost(status: ExitStatus) -> bool {
    let by_user = [Signal::INT, Signal::TERM].map(Signal::as_raw);
    match status.signal() {
        Some(signal) => !by_user.contains(&signal),
        None => status.code() == Some(AGAIN.into()),
    }
}

fn start(again: bool, restarts: u32) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(SUPERVISED, std::process::id().to_string());
    command.env(RESTARTS, restarts.to_string());
    if again {
        command.env(STARTED_AGAIN, "1");
    }
    command.spawn()
}

/// The terminal's Ctrl-C reaches the child without us; SIGTERM is passed on.
fn pass_on_terminations(child: Arc<AtomicU32>, asked: Arc<AtomicBool>) -> std::io::Result<()> {
    let (mut came, comes) = UnixStream::pair()?;
    pipe::register(SIGTERM, comes)?;
    flag::register(SIGINT, asked.clone())?;
    let pass_on = move || {
        while came.read_exact(&mut [0]).is_ok() {
            asked.store(true, Ordering::Release);
            if let Some(pid) = Pid::from_raw(child.load(Ordering::Acquire).cast_signed()) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(pass_on).map(drop)
}

/// The views of a job's chains.
fn views(state: &CheckpointOptions) -> Vec<ChainView> {
    let jobs = chain::jobs(&*state.store).unwrap_or_default();
    let own = jobs.into_iter().filter(|job| {
        let parts = job.as_str().strip_prefix(&state.job);
        parts.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    own.filter_map(|job| chain::look(&*state.store, &job).ok()).collect()
}

/// How many runs of a job were begun.
fn generations_of(state: &CheckpointOptions) -> u64 {
    views(state).iter().map(|view| view.generation).sum()
}

/// The number of the last checkpoint of a job's chains; `None` if there is none, or nobody knows.
fn checkpoint_of(state: &CheckpointOptions) -> Option<u64> {
    let views = views(state).into_iter();
    views.filter_map(|view| Some(view.checkpoint?.number)).reduce(u64::saturating_add)
}

/// `millstream stop`: a last checkpoint, and the end. Open windows are kept.
pub(crate) fn stop(args: &StopArgs) -> Result<ExitCode, Failure> {
    let store = open(&args.state)?;
    let reported = |error: &dyn std::fmt::Display| Failure::runtime(&error.to_string(), None);
    let job = ObjectName::job(&args.job).map_err(|error| reported(&error))?;
    let view = chain::look(&*store, &job).map_err(|error| reported(&error))?;
    let Some(begin) = view.begun(&*store).map_err(|error| reported(&error))? else {
        let message = format!("{} has no job '{}'", args.state, args.job);
        return Err(Failure::usage(&message, Some("see: millstream state list")));
    };
    let holder = &begin.holder;
    let here = millstream::checkpoint::Holder::this_process();
    if holder.is_known_dead() {
        println!("job '{}' does not run", args.job);
        return Ok(ExitCode::SUCCESS);
    }
    if holder.machine != here.machine {
        let message =
            format!("job '{}' runs on {} (process {})", args.job, holder.host, holder.pid);
        return Err(Failure::runtime(
            &message,
            Some("stop it there, or end that process by SIGTERM"),
        ));
    }
    if let Some(pid) = Pid::from_raw(holder.pid.cast_signed()) {
        kill_process(pid, Signal::TERM).map_err(|error| reported(&error))?;
    }
    let since = std::time::Instant::now();
    while !holder.is_known_dead() {
        if since.elapsed() > STOP_WITHIN {
            let message = format!(
                "job '{}' (process {}) has not ended within {} s",
                args.job,
                holder.pid,
                STOP_WITHIN.as_secs()
            );
            return Err(Failure::runtime(&message, Some("it may still write its last checkpoint")));
        }
        std::thread::sleep(STOP_LOOK);
    }
    let view = chain::look(&*store, &job).map_err(|error| reported(&error))?;
    match view.checkpoint {
        Some(of) => println!("job '{}' is stopped at checkpoint {}", args.job, of.number),
        None => println!("job '{}' is stopped, and begins anew when it is run again", args.job),
    }
    Ok(ExitCode::SUCCESS)
}
