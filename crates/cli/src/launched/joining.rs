//! How the ranks of a launcher meet: at the start, again when one of them was lost, and without
//! those that do not come back.
//!
//! ```text
//! a rank dies ─▶ all others end with 75 ─▶ each supervisor starts its rank again ─▶ they meet
//!                                                    │ not all within --rejoin-timeout
//!                                                    ▼
//!                  exit: all end with 75        shrink: the first that has waited so creates
//!                                               <job>/members/<launch>.<n>, with the ranks that
//!                                               wait: they go on
//! ```

use std::path::PathBuf;
use std::time::{Duration, Instant};

use millstream::checkpoint::ObjectName;
use millstream::checkpoint::chain;
use millstream::cluster::{Assignment, Control, JoinOptions};
use millstream::{CheckpointOptions, Error, FabricKind};

use crate::args::{OnLoss, RunArgs};
use crate::failure::Failure;
use crate::script::SqlText;
use crate::supervised;

/// A rank that reports a failure.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankReport {
    /// Whether the job keeps checkpoints.
    pub(super) keeps: bool,
    pub(super) rank: u32,
}

/// The failure of an error. A job that keeps checkpoints goes on by another start if a node was
/// lost, and one rank is enough to report that.
pub(super) fn failure(error: &Error, script: &SqlText, report: RankReport) -> Failure {
    let failure = Failure::of(error, &script.name, &script.sql);
    if !report.keeps || !error.has_lost_node() {
        return failure;
    }
    let failure = if report.rank == 0 { failure } else { failure.silenced() };
    failure.beginning_again()
}

/// Meets the other ranks.
pub(super) fn join(
    args: &RunArgs,
    assignment: &Assignment,
    state: Option<&CheckpointOptions>,
    script: &SqlText,
) -> Result<Control, Failure> {
    let again = supervised::is_started_again();
    let limit = if again { args.state.rejoin_timeout } else { args.join_timeout };
    let limit = Duration::from_secs(limit.into());
    let options = JoinOptions {
        listen: args.listen,
        directory: directory(args, assignment, state.is_some()),
        limit,
        certs: args.certs.clone(),
        insecure: args.insecure,
    };
    let since = Instant::now();
    let late = |waiting: &[u32]| {
        if let Some(state) = state.filter(|_| again && args.state.on_loss == OnLoss::Shrink) {
            propose(state, assignment, waiting);
        }
    };
    let error = match assignment.join_or(&options, &late) {
        Ok(control) => return Ok(control),
        Err(error) => Error::from(error),
    };
    let report = RankReport { keeps: state.is_some(), rank: assignment.rank };
    let failed = failure(&error, script, report);
    match state {
        Some(_) if again && since.elapsed() >= limit => Err(failed.missing_others()),
        // Another rank has died while they met.
        Some(_) if again => Err(failed.silenced().beginning_again()),
        _ => Err(failed),
    }
}

/// Where the ranks find each other; `None` for the launcher. A launcher listens to one process of a
/// rank, once: MPI speaks with it itself, and a rank that is started again is another process.
fn directory(args: &RunArgs, assignment: &Assignment, keeps: bool) -> Option<PathBuf> {
    let by_file = keeps || args.job.layout.fabric == FabricKind::Mpi;
    args.rendezvous.clone().or(by_file.then(|| assignment.directory.clone()))
}

/// Proposes the ranks that go on without the others. The first proposal of all ranks counts;
/// without one the ranks end.
fn propose(state: &CheckpointOptions, assignment: &Assignment, waiting: &[u32]) {
    let job = ObjectName::job(&state.job);
    let proposed =
        job.and_then(|job| chain::propose_members(&*state.store, &job, &assignment.job, waiting));
    match proposed {
        Ok(counts) => tracing::debug!(counts, ?waiting, "a proposal of the nodes that go on"),
        Err(error) => tracing::warn!(%error, "the nodes that go on cannot be proposed"),
    }
}
