//! `--state`: where a job keeps its checkpoints, and what its users ask of it while it runs.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream::checkpoint::chain::{
    self, ChainView, JobRequest, RequestAnswer, ResumeFrom, StoredRequest,
};
use millstream::checkpoint::{Begin, CheckpointError, Holder, ObjectName, Store};
use millstream::{CheckpointOptions, state_store};
use rustix::process::{Pid, Signal, kill_process};

use crate::args::{RescaleArgs, RunArgs, StateArgs, StopArgs};
use crate::failure::Failure;
use crate::{human, supervised};

/// How long `stop` waits for a job's last checkpoint.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// How long `rescale` waits until a job goes on.
const RESCALE_WITHIN: Duration = Duration::from_secs(120);
/// How long `rescale` waits for the first checkpoint of a job that goes on: until then it may go
/// back to the number of nodes it had.
const FIRST_CHECKPOINT_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two looks at a store, which does not tell of changes.
const LOOK: Duration = Duration::from_millis(50);
/// How long a supervisor may take to answer; it looks for requests once a second.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Where and how the job of these arguments keeps checkpoints; `None` without `--state`.
pub(crate) fn state_of(args: &RunArgs) -> Result<Option<CheckpointOptions>, Failure> {
    let StateArgs { state, job, from, evolve, take_over, .. } = &args.state;
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
    let (store, evolve, take_over) = (open(place)?, *evolve, *take_over);
    let begun = supervised::begun();
    Ok(Some(CheckpointOptions { store, job, from, evolve, take_over, begun }))
}

fn open(place: &str) -> Result<Arc<dyn Store>, Failure> {
    state_store::open(place).map_err(|error| Failure::usage(&error.to_string(), None))
}

/// The names of a job's chains: a script of several jobs has one for each.
///
/// # Errors
/// When the store fails.
pub(crate) fn own_jobs(state: &CheckpointOptions) -> Result<Vec<ObjectName>, CheckpointError> {
    let jobs = chain::jobs(&*state.store)?.into_iter();
    Ok(jobs.filter(|job| chain::is_job_of(job, &state.job)).collect())
}

/// The views of a job's chains.
fn views(state: &CheckpointOptions) -> Vec<ChainView> {
    let own = own_jobs(state).unwrap_or_default().into_iter();
    own.filter_map(|job| chain::look(&*state.store, &job).ok()).collect()
}

/// Whether one of these processes of this machine has begun the last run of a job.
pub(crate) fn was_begun_by(state: &CheckpointOptions, pids: &[u32]) -> bool {
    let machine = Holder::this_process().machine;
    views(state).iter().any(|view| {
        let begin = view.begun(&*state.store).ok().flatten();
        begin.is_some_and(|Begin { holder, .. }| {
            holder.machine == machine && pids.contains(&holder.pid)
        })
    })
}

/// The number of the last run of each of a job's chains, by the chain's name. That of a damaged
/// chain is beyond all others: nothing begins anew in its place unasked.
///
/// # Errors
/// When the store fails.
pub(crate) fn generations(
    state: &CheckpointOptions,
) -> Result<BTreeMap<String, u64>, CheckpointError> {
    let mut found = BTreeMap::new();
    for job in own_jobs(state)? {
        let generation = match chain::look(&*state.store, &job) {
            Ok(view) => view.generation,
            Err(error @ CheckpointError::Store(_)) => return Err(error),
            Err(_) => u64::MAX,
        };
        found.insert(job.to_string(), generation);
    }
    Ok(found)
}

/// The sum of the numbers of the last checkpoints of a job's chains; `None` if none has any, or
/// none can be read.
pub(crate) fn checkpoint_of(state: &CheckpointOptions) -> Option<u64> {
    let views = views(state).into_iter();
    views.filter_map(|view| Some(view.checkpoint?.number)).reduce(u64::saturating_add)
}

/// Looks until `found` gives a value; `None` if it gives none within `limit`.
fn look<T>(
    limit: Duration,
    mut found: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    let since = Instant::now();
    loop {
        let found = found()?;
        if found.is_some() || since.elapsed() > limit {
            return Ok(found);
        }
        std::thread::sleep(LOOK);
    }
}

/// The job that a command names.
struct NamedJob {
    store: Arc<dyn Store>,
    job: ObjectName,
}

fn reported(error: &dyn std::fmt::Display) -> Failure {
    Failure::runtime(&error.to_string(), None)
}

impl NamedJob {
    /// The job, the end of its chain, and its last run.
    fn of(job: &str, state: &str) -> Result<(Self, ChainView, Begin), Failure> {
        let store = open(state)?;
        let name = ObjectName::job(job).map_err(|error| reported(&error))?;
        let this = Self { store, job: name };
        let view = this.look()?;
        match this.begun(&view)? {
            Some(begin) => Ok((this, view, begin)),
            None => {
                let message = format!("{state} has no job '{job}'");
                Err(Failure::usage(&message, Some("see: millstream state list")))
            }
        }
    }

    fn look(&self) -> Result<ChainView, Failure> {
        chain::look(&*self.store, &self.job).map_err(|error| reported(&error))
    }

    fn begun(&self, view: &ChainView) -> Result<Option<Begin>, Failure> {
        view.begun(&*self.store).map_err(|error| reported(&error))
    }

    /// Asks the job's supervisor; `None` if nobody answers. An accepted request stays until the
    /// supervisor has done it.
    fn ask(&self, request: JobRequest) -> Result<Option<(StoredRequest, RequestAnswer)>, Failure> {
        let failed = |error: CheckpointError| reported(&error);
        let (store, nonce) = (&*self.store, Holder::this_process().nonce);
        let asked = chain::ask(store, &self.job, nonce, request).map_err(failed)?;
        let answered = || chain::answer_to(store, &asked).map_err(failed);
        let mut answer = look(ANSWER_WITHIN, answered)?;
        if answer.is_none()
            && !chain::answer(store, &asked, &RequestAnswer::Withdrawn).map_err(failed)?
        {
            // The supervisor has answered just now.
            answer = answered()?;
        }
        if answer != Some(RequestAnswer::Accepted) {
            chain::forget(store, &asked).map_err(failed)?;
        }
        Ok(answer.map(|answer| (asked, answer)))
    }

    /// Waits until a process on this machine has ended.
    fn await_end(&self, holder: &Holder) -> Result<(), Failure> {
        let ended = look(STOP_WITHIN, || Ok(holder.is_known_dead().then_some(())))?;
        ended.ok_or_else(|| self.not_ended(&format!("(process {})", holder.pid)))
    }

    /// Waits until a supervisor has done a request that it has accepted. Gives the reason if it has
    /// given it up.
    fn await_fulfilled(
        &self,
        asked: &StoredRequest,
        holder: &Holder,
    ) -> Result<Option<String>, Failure> {
        let done = look(STOP_WITHIN, || {
            let is_open = chain::is_open(&*self.store, asked).map_err(|error| reported(&error))?;
            Ok((!is_open).then_some(()))
        })?;
        if done.is_none() {
            let place = format!("on {} (process {})", holder.host, holder.pid);
            return Err(self.not_ended(&place));
        }
        let given_up = chain::given_up(&*self.store, asked).map_err(|error| reported(&error))?;
        chain::forget(&*self.store, asked).map_err(|error| reported(&error))?;
        Ok(given_up)
    }

    /// Waits for the first checkpoint of a run, because a job that cannot load its state goes back
    /// to the number of nodes that it had. Gives the last run; `None` if the job has ended.
    fn first_checkpoint(&self, begun: Begin) -> Result<Option<Begin>, Failure> {
        let decided = look(FIRST_CHECKPOINT_WITHIN, || {
            let view = self.look()?;
            if view.is_done() {
                return Ok(Some(None));
            }
            let (last, base) = (self.begun(&view)?, begun.base.as_ref().map(|base| base.number));
            let has_one = view.checkpoint.as_ref().map(|of| of.number) != base;
            let is_other = last.as_ref().is_some_and(|last| last.nodes != begun.nodes);
            Ok((has_one || is_other).then_some(last))
        })?;
        Ok(decided.unwrap_or(Some(begun)))
    }

    fn not_ended(&self, place: &str) -> Failure {
        let (job, seconds) = (&self.job, STOP_WITHIN.as_secs());
        let message = format!("job '{job}' {place} has not ended within {seconds} s");
        Failure::runtime(&message, Some("it may still write its last checkpoint"))
    }

    fn nobody_answers(&self, holder: &Holder) -> Failure {
        let (job, host, pid) = (&self.job, &holder.host, holder.pid);
        let message =
            format!("nobody answers for job '{job}', which process {pid} on {host} began");
        let hint = "if it runs, end that process by SIGTERM: it takes a last checkpoint";
        Failure::runtime(&message, Some(hint))
    }
}

/// `millstream stop`: a last checkpoint, and the end. Open windows are kept.
pub(crate) fn stop(args: &StopArgs) -> Result<ExitCode, Failure> {
    let (job, view, Begin { holder, .. }) = NamedJob::of(&args.job, &args.state)?;
    if view.is_over() || holder.is_known_dead() {
        println!("job '{}' does not run", args.job);
        return Ok(ExitCode::SUCCESS);
    }
    if holder.machine == Holder::this_process().machine {
        if let Some(pid) = Pid::from_raw(holder.pid.cast_signed()) {
            kill_process(pid, Signal::TERM).map_err(|error| reported(&error))?;
        }
        job.await_end(&holder)?;
    } else {
        match job.ask(JobRequest::Stop)? {
            None => return Err(job.nobody_answers(&holder)),
            Some((_, RequestAnswer::Refused(why))) => return Err(reported(&why)),
            Some((asked, _)) => _ = job.await_fulfilled(&asked, &holder)?,
        }
    }
    match job.look()?.checkpoint {
        Some(of) => println!("job '{}' is stopped at checkpoint {}", args.job, of.number),
        None => println!("job '{}' is stopped, and begins anew when it is run again", args.job),
    }
    Ok(ExitCode::SUCCESS)
}

/// `millstream rescale`: a last checkpoint, and a start on another number of nodes.
pub(crate) fn rescale(args: &RescaleArgs) -> Result<ExitCode, Failure> {
    let (job, view, begin) = NamedJob::of(&args.job, &args.state)?;
    let name = &args.job;
    if view.is_over() {
        let message = format!("job '{name}' does not run");
        let hint = format!("run it: millstream run … --nodes {}", args.nodes);
        return Err(Failure::runtime(&message, Some(&hint)));
    }
    let asked = match job.ask(JobRequest::Rescale { nodes: args.nodes })? {
        None => return Err(job.nobody_answers(&begin.holder)),
        Some((_, RequestAnswer::Refused(why))) => {
            return Err(Failure::runtime(&format!("job '{name}' is not rescaled: {why}"), None));
        }
        Some((asked, _)) => asked,
    };
    // The job may have been started again since it was looked at.
    let before = job.begun(&job.look()?)?.unwrap_or(begin).holder;
    if let Some(why) = job.await_fulfilled(&asked, &before)?
        && !job.look()?.is_done()
    {
        let hint =
            format!("it goes on when it is run again: millstream run … --nodes {}", args.nodes);
        let message = format!("job '{name}' is not rescaled: {why}");
        return Err(Failure::runtime(&message, Some(&hint)));
    }
    let is_new = |begun: &Begin| begun.nodes == args.nodes || begun.holder != before;
    let gone_on = look(RESCALE_WITHIN, || {
        let view = job.look()?;
        if view.is_done() {
            return Ok(Some(None));
        }
        Ok(job.begun(&view)?.filter(is_new).map(Some))
    })?;
    let gone_on = match gone_on {
        Some(Some(begun)) if begun.nodes == args.nodes => Some(job.first_checkpoint(begun)?),
        other => other,
    };
    match gone_on {
        None => {
            let seconds = RESCALE_WITHIN.as_secs();
            let message = format!("job '{name}' has not gone on within {seconds} s");
            Err(Failure::runtime(&message, Some("its messages say why")))
        }
        Some(None) => {
            println!("job '{name}' has ended");
            Ok(ExitCode::SUCCESS)
        }
        Some(Some(Begin { nodes, base, .. })) => {
            let checkpoint =
                base.map_or("the beginning".into(), |base| format!("checkpoint {}", base.number));
            let on = human::counted(nodes.into(), "node");
            let message = format!("job '{name}' goes on from {checkpoint} on {on}");
            if nodes == args.nodes {
                println!("{message}");
                return Ok(ExitCode::SUCCESS);
            }
            let hint = "its messages say why it cannot run on the other number";
            Err(Failure::runtime(&format!("{message} again"), Some(hint)))
        }
    }
}
