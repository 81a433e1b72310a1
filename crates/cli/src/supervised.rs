//! The variables of the environment by which a supervisor speaks with the process that it starts.

use millstream::checkpoint::chain;
use millstream::cluster::Assignment;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::args::{self, RunArgs};
use crate::failure::AGAIN;

/// The variable of a process that another one starts again: the number of that process.
pub(crate) const SUPERVISED: &str = "MILLSTREAM_SUPERVISED";
/// The variable with the jobs that an earlier start of the same supervisor has begun, joined by
/// commas.
pub(crate) const GOES_ON: &str = "MILLSTREAM_GOES_ON";
/// The variable of a start behind a checkpoint that an earlier one has taken.
pub(crate) const SAVED: &str = "MILLSTREAM_SAVED";
/// The variable of a start after the first: the number of starts before.
pub(crate) const STARTED_AGAIN: &str = "MILLSTREAM_STARTED_AGAIN";
/// The variable with the number of nodes, where it is not that of the arguments.
pub(crate) const RESCALED: &str = "MILLSTREAM_RESCALED";
/// The variable with the ranks that go on, joined by commas. The times that ranks were given up are
/// joined by semicolons: each names the ranks by their numbers since the time before.
pub(crate) const MEMBERS: &str = "MILLSTREAM_MEMBERS";

/// Whether another process starts this one again.
pub(crate) fn is_supervised() -> bool {
    std::env::var_os(SUPERVISED).is_some()
}

/// How often the job was started before this start.
pub(crate) fn restarts() -> u32 {
    std::env::var(STARTED_AGAIN).ok().and_then(|starts| starts.parse().ok()).unwrap_or(0)
}

/// The jobs that an earlier start of the same supervisor has begun.
pub(crate) fn begun() -> Vec<String> {
    let jobs = std::env::var(GOES_ON).unwrap_or_default();
    jobs.split(',').filter(|job| !job.is_empty()).map(str::to_owned).collect()
}

/// Whether an earlier start of the same supervisor has taken a checkpoint.
pub(crate) fn has_saved() -> bool {
    std::env::var_os(SAVED).is_some()
}

/// Whether this process is not the first that its supervisor has started.
pub(crate) fn is_started_again() -> bool {
    std::env::var_os(STARTED_AGAIN).is_some()
}

/// The arguments with the number of nodes that the job was given while it ran.
pub(crate) fn rescaled(given: &RunArgs) -> RunArgs {
    let mut given = given.clone();
    let nodes = std::env::var(RESCALED).ok().and_then(|nodes| args::nodes(&nodes).ok());
    given.job.layout.nodes = nodes.or(given.job.layout.nodes);
    given
}

/// Has this process die with the one that starts it again.
pub(crate) fn die_with_supervisor() {
    let supervisor = std::env::var(SUPERVISED).ok().and_then(|pid| pid.parse::<i32>().ok());
    let Some(supervisor) = supervisor else { return };
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // The supervisor may have died before the call.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(supervisor) {
        std::process::exit(AGAIN.into());
    }
}

/// The assignment among the ranks that go on, by the variable [`MEMBERS`].
pub(crate) fn among_members(assignment: Assignment) -> Option<Assignment> {
    let Ok(times) = std::env::var(MEMBERS) else { return Some(assignment) };
    let launch = assignment.job.clone();
    let mut own = assignment;
    for (time, ranks) in times.split(';').enumerate() {
        own = own.among(&chain::ranks_of(ranks, own.nodes)?, shrunk(&launch, time + 1))?;
    }
    Some(own)
}

/// The name of a launcher's job that goes on with fewer ranks for the `time`th time.
pub(crate) fn shrunk(launch: &str, time: usize) -> String {
    format!("{launch}.{time}")
}
