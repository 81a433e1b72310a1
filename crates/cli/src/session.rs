//! The session that the arguments ask for, and how a job ends: alike on every node of a run,
//! however it was started.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream::pool::PoolOptions;
use millstream::{
    CheckpointOptions, Error, FabricKind, Memory, PlanDecisions, Report, RowFormat, RowTarget,
    Session,
};

use crate::args::{LayoutArgs, PinnedVersion, PoolArgs, RunArgs};
use crate::failure::{Failure, INTERRUPTED};
use crate::output::{OutputFile, OutputWriter};
use crate::screen::Screen;
use crate::script::SqlText;
use crate::{human, rows, summary, supervised};

/// The step by which node 0 hands the SQL to the others.
pub(crate) const SCRIPT_STEP: &str = "script";

/// A session as the arguments say; every node builds the same.
///
/// # Errors
/// The outer one when the arguments do not fit each other, the inner one as the session has it.
pub(crate) fn session(
    args: &RunArgs,
    output: OutputWriter,
    start: &Start,
) -> Result<Result<Session, Error>, Failure> {
    let target = rows::target(&args.rows, &output)?;
    output
        .clip(matches!(target, RowTarget::Output(RowFormat::Table)) && args.rows.output.is_none());
    let file = rows::text_file(&args.rows);
    let name = file.map_or("stdout".into(), |path| path.display().to_string());
    let mut builder = millstream_session(&args.job.layout);
    if !start.pool.is_empty() {
        let options = pool_options_at(&args.job.layout.pool, start.pool.clone());
        let job = (args.job.layout.nodes() > 1).then_some(start.job);
        builder = builder.pool(PoolOptions { job, ..options });
    }
    let builder = builder.started_at(start.started).rows_to(target);
    let builder = builder.output_for_programs(rows::for_programs(&args.rows));
    let session = builder.output(&name, output).build();
    Ok(session.map(|mut session| {
        if args.state.state.is_some() {
            session.resume(&start.decisions);
        }
        session
    }))
}

pub(crate) fn millstream_session(layout: &LayoutArgs) -> millstream::SessionBuilder {
    let (nodes, workers) = (layout.nodes(), layout.workers());
    let mut builder = Session::builder().nodes(nodes).workers(workers).fabric(layout.fabric);
    for (key, value) in &layout.set {
        builder = builder.set(key, value);
    }
    match pool_options(&layout.pool) {
        Some(pool) => builder.pool(pool),
        None => builder,
    }
}

/// The options of a client that the arguments ask for; `None` without a pool.
pub(crate) fn pool_options(args: &PoolArgs) -> Option<PoolOptions> {
    let addresses: Vec<String> =
        args.pool.iter().map(|address| address.trim().to_owned()).collect();
    let addresses: Vec<String> = addresses.into_iter().filter(|of| !of.is_empty()).collect();
    (!addresses.is_empty()).then(|| pool_options_at(args, addresses))
}

/// The same of the servers at other addresses.
fn pool_options_at(args: &PoolArgs, addresses: Vec<String>) -> PoolOptions {
    PoolOptions {
        certs: args.pool_certs.clone(),
        token_file: args.pool_token_file.clone(),
        fabric: args.pool_fabric,
        ..PoolOptions::new(addresses)
    }
}

/// The values that node 0 sends to all nodes of a job, beside the SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// Its clock.
    pub(crate) started: SystemTime,
    /// A number that no other job has.
    pub(crate) job: u128,
    /// Where the memory servers are.
    pub(crate) pool: Vec<String>,
    /// The decisions of the plan that a job which goes on has begun with.
    pub(crate) decisions: PlanDecisions,
}

impl Start {
    /// Now, with the memory servers of the arguments.
    pub(crate) fn now(args: &RunArgs) -> Self {
        let pool = pool_options(&args.job.layout.pool);
        let pool = pool.map_or_else(Vec::new, |options| options.addresses);
        let decisions = PlanDecisions::default();
        Self { started: SystemTime::now(), job: job_number(), pool, decisions }
    }

    /// The same start with the decisions of the plan that the job goes on with, if it does.
    ///
    /// # Errors
    /// When its checkpoint cannot be read.
    pub(crate) fn resuming(
        self,
        args: &RunArgs,
        state: Option<&CheckpointOptions>,
    ) -> Result<Self, Error> {
        let mut decisions =
            state.map_or_else(|| Ok(PlanDecisions::default()), PlanDecisions::of)?;
        // The job moves to later versions once: the first checkpoint has them.
        if args.state.pin == PinnedVersion::Latest && !supervised::has_saved() {
            decisions.versions.clear();
        }
        Ok(Self { decisions, ..self })
    }

    /// `nanoseconds since 1970 u64 | job u128 | length u32 | addresses, behind commas | length u32
    /// | decisions | SQL`.
    pub(crate) fn encode(&self, sql: &str) -> Vec<u8> {
        let since = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let pool = self.pool.join(",");
        let length = (pool.len() as u32).to_le_bytes();
        let (ns, job, decisions) =
            (ns.to_le_bytes(), self.job.to_le_bytes(), self.decisions.encode());
        let decided = (decisions.len() as u32).to_le_bytes();
        [&ns[..], &job, &length, pool.as_bytes(), &decided, &decisions, sql.as_bytes()].concat()
    }

    /// The inverse of [`Start::encode`].
    pub(crate) fn decode(bytes: &[u8]) -> Option<(String, Self)> {
        let (ns, rest) = bytes.split_first_chunk()?;
        let (job, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (pool, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let (length, rest) = rest.split_first_chunk()?;
        let (decisions, sql) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let decisions = PlanDecisions::decode(decisions)?;
        let started = UNIX_EPOCH.checked_add(Duration::from_nanos(u64::from_le_bytes(*ns)))?;
        let pool = std::str::from_utf8(pool).ok()?.split(',').filter(|of| !of.is_empty());
        let pool = pool.map(str::to_owned).collect();
        let start = Self { started, job: u128::from_le_bytes(*job), pool, decisions };
        Some((String::from_utf8(sql.to_vec()).ok()?, start))
    }
}

/// A random number.
pub(crate) fn job_number() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    // Each has keys of its own, which the system's randomness has given.
    let half = || RandomState::new().hash_one((std::process::id(), SystemTime::now()));
    u128::from(half()) << 64 | u128::from(half())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_node_0_tells_is_understood_and_damage_is_not() {
        for pool in [vec![], vec!["a:1".to_owned()], vec!["a:1".to_owned(), "b:2".to_owned()]] {
            let started = UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
            let versions = pool.iter().cloned().zip(3..).collect();
            let decisions = PlanDecisions { streamed: pool.clone(), versions };
            let start = Start { started, job: 7 << 100, pool, decisions };
            let bytes = start.encode("SELECT 'é'");
            assert_eq!(Start::decode(&bytes), Some(("SELECT 'é'".to_owned(), start.clone())));
            for end in 0..bytes.len() {
                let cut = Start::decode(&bytes[..end]);
                assert!(cut.is_none_or(|(sql, _)| sql != "SELECT 'é'"), "{end}");
            }
        }
    }

    #[test]
    fn no_two_jobs_have_one_number() {
        assert_ne!(job_number(), job_number());
    }
}
