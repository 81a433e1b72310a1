//! The chain of a job's records.
//!
//! ```text
//! 1 begin g1 ── 2 manifest ── 3 manifest ── 4 begin g2 ── 5 manifest ── …
//!                                           ▲
//!            generation 1 would write its next record here: it is taken, so generation 1 is fenced
//! ```
//!
//! [`Chain`] is what leads a generation: it writes its records and collects old ones. [`look`]
//! reads the end of a chain without writing. What both do next is decided in [`Append`] and
//! [`Claim`].

mod collect;
mod decide;
mod members;
mod names;
mod refer;
mod requests;
mod stored;
mod view;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;

pub use collect::CollectedObjects;
use collect::OwnSegments;
pub use decide::{
    Append, AppendOutcome, CHECKPOINTS_RETAINED, ChainHead, ChainReply, ChainRequest, Claim,
    RECORD_RETAINED_MS, retained_from,
};
pub use members::{forget_members, members, propose_members, ranks_of};
use names::{begun_folder, begun_name};
pub use names::{is_job_of, record_name, segment_file, segment_name};
pub use refer::{REFERRED_MAX, References, SectionPlace, StoredSection};
pub use requests::{
    JobRequest, RequestAnswer, StoredRequest, answer, answer_to, ask, forget, fulfil, give_up,
    given_up, is_open, request_objects, requests,
};
pub use stored::{PIECE_BYTES, SegmentUpload, open_segment, read_section, store_segment};
pub use view::{
    ChainRecord, ChainView, KeptCheckpoint, drop_job, drop_kept, jobs, keep, kept, look,
    read_checkpoint, recent_pause, records, verify,
};

use crate::error::{CheckpointError, StoreError, WriteEffect};
use crate::record::{BaseCheckpoint, Begin, CheckpointManifest, Holder, Record, RecordBody};
use crate::secrets;
use crate::store::{ObjectName, Store};

/// How long a write is asked again whose answer was lost, before its caller hears of it.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The first pause before a request is repeated; it doubles, up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(10);
/// The longest pause before a request is repeated.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a head that moves, or listings that are behind the time, are looked at again.
const CLAIMS_MAX: u32 = 1000;

/// The checkpoint that a run goes on from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ResumeFrom {
    /// The last checkpoint, if there is one.
    #[default]
    Latest,
    /// Nothing: it begins anew.
    Nothing,
    /// The checkpoint of this number, which must be one of the last [`CHECKPOINTS_RETAINED`].
    Number(u64),
    /// The checkpoint that was kept under this name.
    Named(String),
}

/// The description that a run writes when it begins.
#[derive(Debug, Clone)]
pub struct RunDescription {
    /// The process that leads it.
    pub holder: Holder,
    /// Nodes of the job.
    pub nodes: u32,
    /// Workers of the job, on all nodes.
    pub workers: u32,
    /// The release of the program.
    pub release: String,
    /// Equal for jobs whose state is the same.
    pub fingerprint: String,
    /// The text of the job. Secrets in it are masked before it is stored.
    pub sql: String,
}

/// The checkpoint that a run goes on from, as the chain has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resumed {
    /// Where the checkpoint is recorded. Other nodes read it there ([`read_checkpoint`]).
    pub base: BaseCheckpoint,
    /// The checkpoint.
    pub manifest: CheckpointManifest,
    /// Whether its output is known to be published: that of the last checkpoint is, when its run
    /// has recorded it, and that of an older one was published when a later one was begun.
    pub is_published: bool,
}

/// A generation of a job, led by this process.
///
/// Only one process of a job has one that can still write. When a call gives
/// [`CheckpointError::Fenced`], another generation has begun, and the process must stop and publish
/// nothing.
pub struct Chain {
    store: Arc<dyn Store>,
    job: ObjectName,
    generation: u64,
    /// The nonce of this process.
    run: u64,
    /// Its last record.
    last: ChainHead<Bytes>,
    /// The checkpoint that a run would go on from now.
    base: Option<BaseCheckpoint>,
    /// The greatest number of a checkpoint of this chain, also of one that was left out.
    greatest: u64,
    /// The first round of this generation.
    round: u64,
    /// A write whose outcome is unknown.
    pending: Option<Pending>,
    /// The segments of its own checkpoints.
    own: OwnSegments,
    timeout: Duration,
}

struct Pending {
    append: Append<Bytes>,
    body: RecordBody,
    cause: StoreError,
}

impl Chain {
    /// Begins a generation: writes its first record behind the head of the job's chain. The
    /// generation before it, should it still run, is fenced by that.
    ///
    /// # Errors
    /// When the store fails, when the record or checkpoint that it goes on from is damaged, or when
    /// there is none of the number or name in `from`.
    pub fn begin(
        store: Arc<dyn Store>,
        job: &ObjectName,
        run: &RunDescription,
        from: &ResumeFrom,
    ) -> Result<(Self, Option<Resumed>), CheckpointError> {
        // The run begins although the leftovers of dead processes stay.
        let _ = store.clean(job);
        stored::probe(store.as_ref(), job, run.holder.nonce)?;
        let mut claim = Claim::Listing;
        let mut begun: Option<(Record, Option<Resumed>)> = None;
        let mut greatest = 0;
        for _ in 0..CLAIMS_MAX {
            stored::find_head(store.as_ref(), job, &mut claim)?;
            if let Claim::Found(head) = &claim {
                let view = ChainView::of(store.as_ref(), job, head, *from != ResumeFrom::Latest)?;
                let resumed = resolve(store.as_ref(), &view, from)?;
                greatest = view.greatest(store.as_ref())?;
                let record = begin_record(run, &view, resumed.as_ref(), greatest);
                claim.begin(record.encode()?);
                begun = Some((record, resumed));
            }
            if let Claim::Beginning(append) = &mut claim {
                let (outcome, _) = settle(store.as_ref(), job, append, WRITE_TIMEOUT);
                claim = match outcome? {
                    AppendOutcome::Written(number) => Claim::Begun(number),
                    AppendOutcome::Fenced => Claim::Listing,
                };
            }
            if let (Claim::Begun(last), Some((record, resumed))) = (&claim, begun.take()) {
                let RecordBody::Begin(begin) = &record.body else { unreachable!("it was made so") };
                let encoded = record.encode()?;
                copy_begun(store.as_ref(), job, record.generation, &encoded);
                let last = ChainHead { number: *last, record: Some(encoded) };
                let chain = Self {
                    store,
                    job: job.clone(),
                    generation: record.generation,
                    run: record.run,
                    last,
                    base: begin.base.clone(),
                    greatest,
                    round: begin.round,
                    pending: None,
                    own: OwnSegments::default(),
                    timeout: WRITE_TIMEOUT,
                };
                return Ok((chain, resumed));
            }
        }
        Err(StoreError::refused(
            store.place(job),
            "its records change so fast, or its listings are so far behind, that no run can begin",
        )
        .into())
    }

    /// Sets how long a write is asked again whose answer was lost: [`WRITE_TIMEOUT`] at first.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The generation of this run. The first one is 1.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &ObjectName {
        &self.job
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The first round of this generation: behind the round of every checkpoint of the chain, so
    /// that no two checkpoints have one number.
    #[must_use]
    pub fn first_round(&self) -> u64 {
        self.round
    }

    /// The last checkpoint, and where it is recorded.
    #[must_use]
    pub fn checkpoint(&self) -> Option<&BaseCheckpoint> {
        self.base.as_ref()
    }

    /// Writes the record of a checkpoint. When it returns, the checkpoint is complete, and its
    /// output may be published.
    ///
    /// # Errors
    /// [`Fenced`](CheckpointError::Fenced): another generation has begun.
    /// [`Pending`](CheckpointError::Pending): the outcome is unknown; [`settle_pending`] must be
    /// called before anything else is written. Any other error: nothing was written.
    ///
    /// [`settle_pending`]: Self::settle_pending
    pub fn append(
        &mut self,
        manifest: CheckpointManifest,
    ) -> Result<BaseCheckpoint, CheckpointError> {
        if manifest.number <= self.greatest {
            return Err(CheckpointError::invalid(format!(
                "checkpoint {} comes behind checkpoint {}",
                manifest.number, self.greatest
            )));
        }
        self.write(RecordBody::Manifest(manifest))?;
        self.base.clone().ok_or_else(|| CheckpointError::invalid("no checkpoint was written"))
    }

    /// Records that the output of the last checkpoint was published, and that the job was stopped.
    ///
    /// # Errors
    /// As [`append`](Self::append), or that there is no checkpoint.
    pub fn settled(&mut self) -> Result<(), CheckpointError> {
        let of = self.last_checkpoint()?;
        self.write(RecordBody::Settled(of))
    }

    /// Records that the output of the last checkpoint was published, and that the job has ended.
    ///
    /// # Errors
    /// As [`append`](Self::append), or that there is no checkpoint.
    pub fn done(&mut self) -> Result<(), CheckpointError> {
        let of = self.last_checkpoint()?;
        self.write(RecordBody::Done(of))
    }

    fn last_checkpoint(&self) -> Result<BaseCheckpoint, CheckpointError> {
        let missing =
            || CheckpointError::invalid("the job has no checkpoint that could be settled");
        self.base.clone().ok_or_else(missing)
    }

    /// Asks again for a write whose outcome is unknown (rule C4), and gives the checkpoint if it
    /// was the record of one and is written now. `None`: nothing was pending, or it was another
    /// record.
    ///
    /// # Errors
    /// As [`append`](Self::append): `Pending` if the outcome is still unknown.
    pub fn settle_pending(&mut self) -> Result<Option<BaseCheckpoint>, CheckpointError> {
        let Some(Pending { append, body, .. }) = self.pending.take() else { return Ok(None) };
        let is_checkpoint = matches!(body, RecordBody::Manifest(_));
        self.run(append, body, true)?;
        Ok(self.base.clone().filter(|_| is_checkpoint))
    }

    fn write(&mut self, body: RecordBody) -> Result<(), CheckpointError> {
        if let Some(Pending { append, cause, .. }) = &self.pending {
            return Err(self.pending_error(append.number(), cause.clone()));
        }
        let (job, generation) = (self.job.to_string(), self.generation);
        let record = Record {
            job,
            record: self.last.number + 1,
            generation,
            run: self.run,
            kept: None,
            body,
        };
        let append = Append::new(self.last.clone(), record.encode()?);
        self.run(append, record.body, false)
    }

    /// Writes to the end. `unknown`: an answer was lost before.
    fn run(
        &mut self,
        mut append: Append<Bytes>,
        body: RecordBody,
        unknown: bool,
    ) -> Result<(), CheckpointError> {
        let (outcome, lost) = settle(self.store.as_ref(), &self.job, &mut append, self.timeout);
        match outcome {
            Ok(AppendOutcome::Written(number)) => {
                self.last = ChainHead { number, record: Some(append.record().clone()) };
                if let RecordBody::Manifest(manifest) = body {
                    self.greatest = manifest.number;
                    self.own.recorded(&manifest);
                    let (record, number) = (number, manifest.number);
                    self.base = Some(BaseCheckpoint { record, number, kept: None });
                }
                Ok(())
            }
            Ok(AppendOutcome::Fenced) => Err(self.fenced(append.number())),
            Err(CheckpointError::Store(cause)) if unknown || lost => {
                let number = append.number();
                self.pending = Some(Pending { append, body, cause: cause.clone() });
                Err(self.pending_error(number, cause))
            }
            Err(error) => Err(error),
        }
    }

    fn pending_error(&self, record: u64, cause: StoreError) -> CheckpointError {
        CheckpointError::Pending { job: self.job.to_string(), record, cause }
    }

    /// Checks whether another run has begun. An error of the store may come of that: another run
    /// collects the files that this one has not recorded.
    ///
    /// # Errors
    /// [`Fenced`](CheckpointError::Fenced) if so, or when the store fails.
    pub fn check_fence(&self) -> Result<(), CheckpointError> {
        let number = self.last.number + 1;
        match self.store.get(&record_name(&self.job, number), Some(0..1))? {
            Some(_) => Err(self.fenced(number)),
            None => Ok(()),
        }
    }

    /// Says who has begun meanwhile, if the record in the place of this one tells.
    fn fenced(&self, number: u64) -> CheckpointError {
        let name = record_name(&self.job, number);
        let bytes = self.store.get(&name, None).ok().flatten().unwrap_or_default();
        let by = match Record::decode(&self.store.place(&name), &bytes) {
            Ok(Record { generation, body: RecordBody::Begin(begin), .. }) => {
                let Holder { host, pid, .. } = begin.holder;
                format!(" as generation {generation} on {host} (process {pid})")
            }
            _ => String::new(),
        };
        CheckpointError::Fenced { job: self.job.to_string(), generation: self.generation, by }
    }
}

/// Asks until the outcome of a write is known, or until `timeout` is over. Also tells whether an
/// answer to the create was lost: then an error leaves the outcome unknown.
fn settle(
    store: &dyn Store,
    job: &ObjectName,
    append: &mut Append<Bytes>,
    timeout: Duration,
) -> (Result<AppendOutcome, CheckpointError>, bool) {
    let (began, mut pause, mut lost) = (Instant::now(), PAUSE, false);
    let mut creates = 0;
    loop {
        let Some(request) = append.request() else {
            let outcome = append.outcome().unwrap_or(AppendOutcome::Fenced);
            if outcome == AppendOutcome::Fenced {
                stored::remove_stray(store, job, append.number(), append.record());
            }
            return (Ok(outcome), lost);
        };
        let is_create = matches!(request, ChainRequest::Create(..));
        creates += u32::from(is_create);
        let answer = match stored::ask(store, job, &request) {
            // It exists, and cannot be read: not for long, on a store that keeps its promises.
            Ok(ChainReply::Record(None)) if creates > 1 && append.is_comparing() => {
                let message = "the store says that it is there, and does not give it";
                let place = store.place(&record_name(job, append.number()));
                Err(StoreError::unknown(place, message))
            }
            answer => answer,
        };
        match answer {
            Ok(reply) => {
                // From here on the record may be there, whatever becomes of the next request.
                lost |= is_create;
                append.reply(&reply);
            }
            Err(error) => {
                lost |= is_create && error.effect == WriteEffect::Unknown;
                // A create that was refused has changed nothing: its caller decides.
                if !lost || began.elapsed() >= timeout {
                    return (Err(error.into()), lost);
                }
                append.reply(&ChainReply::Lost);
                thread::sleep(pause.min(timeout.saturating_sub(began.elapsed())));
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// The checkpoint that a run would go on from.
///
/// # Errors
/// When the store fails, when the record is damaged, or when there is none of the number or name.
pub fn resolve(
    store: &dyn Store,
    view: &ChainView,
    from: &ResumeFrom,
) -> Result<Option<Resumed>, CheckpointError> {
    let base = match from {
        ResumeFrom::Nothing => None,
        ResumeFrom::Latest => view.checkpoint.clone(),
        ResumeFrom::Number(number) => Some(view.find(store, *number)?),
        ResumeFrom::Named(name) => {
            let entry = kept(store, &view.job)?.into_iter().find(|entry| entry.name == *name);
            let what = || format!("checkpoint '{name}' of job '{}'", view.job);
            let entry = entry.ok_or_else(|| CheckpointError::NotFound { what: what() })?;
            let manifest = entry.manifest?;
            let (number, kept) = (manifest.number, Some(name.clone()));
            Some(BaseCheckpoint { record: entry.record, number, kept })
        }
    };
    let read = |base: BaseCheckpoint| {
        let manifest = read_checkpoint(store, &view.job, &base)?;
        let is_published = view.unpublished(store)? != Some(manifest.number);
        Ok(Resumed { base, manifest, is_published })
    };
    base.map(read).transpose()
}

/// Puts a copy of the record that begins a generation where collection leaves it, and removes those
/// of generations before. Where it fails, others look for the record in the chain.
fn copy_begun(store: &dyn Store, job: &ObjectName, generation: u64, record: &Bytes) {
    let copy = begun_name(job, generation);
    let _ = store.put(&copy, std::slice::from_ref(record));
    for object in store.list(Some(&begun_folder(job))).unwrap_or_default() {
        if object.name < copy {
            let _ = store.delete(&object.name);
        }
    }
}

fn begin_record(
    run: &RunDescription,
    view: &ChainView,
    resumed: Option<&Resumed>,
    greatest: u64,
) -> Record {
    let begin = Begin {
        holder: run.holder.clone(),
        nodes: run.nodes,
        workers: run.workers,
        release: run.release.clone(),
        fingerprint: run.fingerprint.clone(),
        sql: secrets::mask(&run.sql),
        round: greatest + 1,
        base: resumed.map(|resumed| resumed.base.clone()),
    };
    Record {
        job: view.job.to_string(),
        record: view.head + 1,
        generation: view.generation + 1,
        run: run.holder.nonce,
        kept: None,
        body: RecordBody::Begin(begin),
    }
}
