//! `state=` and `job=`: where jobs keep checkpoints, and by which names.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream::checkpoint::chain::ResumeFrom;
use millstream::checkpoint::{ObjectName, Store};
use millstream::{CheckpointOptions, Error, state_store};

/// The jobs of this process that run and keep checkpoints, by place and name.
static RUNNING: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

/// What a text asks of its checkpoints.
#[derive(Debug, Clone)]
pub(crate) struct JobOptions {
    /// The name of its job; that of the session if there is none.
    pub(crate) job: Option<String>,
    /// The checkpoint that it goes on from.
    pub(crate) resume: ResumeFrom,
    /// Whether state without an operator is dropped, and operators without state begin empty.
    pub(crate) evolve: bool,
    /// Whether a run that may be alive is ended.
    pub(crate) take_over: bool,
}

impl JobOptions {
    /// The checkpoint that Python names: `"latest"`, `"none"`, a number or the name of one that is
    /// kept.
    pub(crate) fn resume(named: &str) -> ResumeFrom {
        match named {
            "latest" => ResumeFrom::Latest,
            "none" => ResumeFrom::Nothing,
            text => match text.parse() {
                Ok(number) => ResumeFrom::Number(number),
                Err(_) => ResumeFrom::Named(text.to_owned()),
            },
        }
    }
}

/// The place of the checkpoints of a session, and the names of its jobs.
pub(crate) struct SessionJobs {
    place: String,
    job: Option<String>,
    /// The text of each job that was planned, by its name.
    texts: Mutex<HashMap<String, String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn usage(message: String, hint: &str) -> Error {
    Error::Usage { message, hint: hint.into() }
}

impl SessionJobs {
    /// Checkpoints at this place; `job` names the job of a text that names none.
    ///
    /// # Errors
    /// When the place is no directory and no bucket, or the name cannot be one.
    pub(crate) fn new(place: String, job: Option<String>) -> Result<Self, Error> {
        open(&place)?;
        let texts = Mutex::default();
        let jobs = Self { place, job, texts };
        jobs.job.iter().try_for_each(|job| checked(job))?;
        Ok(jobs)
    }

    /// The checkpoints of a text; `None` if it has no job.
    ///
    /// # Errors
    /// When the name cannot be one.
    pub(crate) fn options(&self, asked: &JobOptions) -> Result<Option<CheckpointOptions>, Error> {
        let Some(job) = asked.job.clone().or_else(|| self.job.clone()) else { return Ok(None) };
        checked(&job)?;
        Ok(Some(CheckpointOptions {
            store: open(&self.place)?,
            job,
            from: asked.resume.clone(),
            evolve: asked.evolve,
            take_over: asked.take_over,
            begun: Vec::new(),
        }))
    }

    /// Keeps a name for a text that has a job.
    ///
    /// # Errors
    /// When it is the name of another text.
    pub(crate) fn name(&self, job: &str, sql: &str) -> Result<(), Error> {
        let mut texts = lock(&self.texts);
        if texts.get(job).is_some_and(|other| other != sql) {
            let message = format!("job '{job}' is another text of this session");
            return Err(usage(message, "each has a name of its own: session.sql(…, job='other')"));
        }
        texts.insert(job.to_owned(), sql.to_owned());
        Ok(())
    }

    /// Begins a run of a job, which ends when the value is dropped.
    ///
    /// # Errors
    /// When it runs already.
    pub(crate) fn begin(&self, job: &str) -> Result<RunningName, Error> {
        let key = (self.place.clone(), job.to_owned());
        let mut running = lock(&RUNNING);
        if running.contains(&key) {
            let message = format!("job '{job}' runs already in this process");
            return Err(usage(message, "stop it and wait for it, or give this one another name"));
        }
        running.push(key.clone());
        Ok(RunningName(key))
    }
}

/// The name of a job while it runs.
pub(crate) struct RunningName((String, String));

impl Drop for RunningName {
    fn drop(&mut self) {
        lock(&RUNNING).retain(|key| *key != self.0);
    }
}

fn open(place: &str) -> Result<Arc<dyn Store>, Error> {
    state_store::open(place).map_err(|error| {
        usage(error.to_string(), "state='/var/lib/jobs', or state='s3://bucket/path'")
    })
}

fn checked(job: &str) -> Result<(), Error> {
    ObjectName::job(job).map(drop).map_err(|error| usage(error.to_string(), "job='clicks'"))
}
