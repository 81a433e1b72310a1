//! The beginning of a run at node 0: whether it may begin, and what it goes on from.

use std::sync::Arc;
use std::time::Duration;

use checkpoint::chain::{self, Chain, ChainView, ResumeFrom, Resumed, RunDescription};
use checkpoint::{CheckpointManifest, Holder, ObjectName, OperatorEntry, Store};
use dataflow::error::DataflowError;
use dataflow::job::{CheckpointInterval, JobGraph};
use dataflow::sink::Publishing;

use super::encode::OperatorNames;
use super::functions;
use super::ids::{FittedState, OperatorId};
use super::keeper::{self, ENDED};
use super::sweep::sweep_at_end;
use super::{CheckpointOptions, HEAD_LOOK, HEAD_WATCH};
use crate::error::Error;

/// The beginning of a run at node 0.
pub(super) struct Opening<'o> {
    pub(super) store: &'o Arc<dyn Store>,
    pub(super) name: &'o ObjectName,
    pub(super) options: &'o CheckpointOptions,
    pub(super) ids: &'o [OperatorId],
    pub(super) job: &'o JobGraph,
    /// The reasons why the job takes no checkpoints.
    pub(super) obstacles: &'o [String],
    pub(super) tell: &'o dyn Fn(&str),
}

impl Opening<'_> {
    /// Begins a generation; `None` if the job has ended.
    pub(super) fn begin(
        &self,
        run: &RunDescription,
    ) -> Result<Option<(Chain, Option<Resumed>)>, Error> {
        let view = chain::look(&**self.store, self.name);
        let mut from = self.options.goes_on_from(self.name.as_str());
        let anew = *from != ResumeFrom::Latest;
        if let Ok(view) = &view {
            if view.is_done() && !anew {
                let job = &self.options.job;
                (self.tell)(&format!("job '{job}' has ended: --from none begins it anew"));
                return Ok(None);
            }
            if !self.options.take_over {
                self.check_alone(view)?;
            }
            let mut goes_on = false;
            if let Some(resumed) = chain::resolve(&**self.store, view, from)? {
                self.check(&resumed.manifest)?;
                self.check_published(&resumed)?;
                if self.has_lost(&resumed)? {
                    from = &ResumeFrom::Nothing;
                } else {
                    goes_on = true;
                }
            }
            if !goes_on {
                self.check_new()?;
            }
        }
        let (mut chain, resumed) = Chain::begin(self.store.clone(), self.name, run, from)?;
        if let Some(resumed) = &resumed {
            let manifest = &resumed.manifest;
            // Another run may have gone on meanwhile.
            self.check(manifest)?;
            self.check_published(resumed)?;
            self.tell_evolved(manifest)?;
            let fitted = FittedState::of(&manifest.operators, self.ids);
            let (store, segments) = (&**self.store, &manifest.segments);
            let workers = keeper::read(store, self.name, segments, fitted.names(), None)?.workers;
            let ended = has_ended(manifest);
            if ended || !resumed.is_published {
                let how = Publishing { last: ended, again: true, mark: None };
                let marks = keeper::marks_in(manifest, &fitted, self.ids.len());
                keeper::publish(self.job, &workers, how, &marks)?;
            }
            if ended {
                chain.done()?;
                sweep_at_end(store, self.name, (self.job, self.ids), chain.generation());
                let job = &self.options.job;
                (self.tell)(&format!("job '{job}' had ended; its output is published"));
                return Ok(None);
            }
        }
        Ok(Some((chain, resumed)))
    }

    /// Refuses to begin anew where sinks have rows of others: the record of such a beginning would
    /// hide the checkpoints of the job.
    fn check_new(&self) -> Result<(), Error> {
        for (at, operator) in self.job.operators.iter().enumerate() {
            let Some(sink) = operator.kind.spec().sink() else { continue };
            sink.check_new().map_err(|error| DataflowError::from(error).of_operator(at))?;
        }
        Ok(())
    }

    /// Refuses a second run of the job.
    fn check_alone(&self, view: &ChainView) -> Result<(), Error> {
        let Some(begin) = view.begun(&**self.store)? else { return Ok(()) };
        let here = Holder::this_process();
        let is_here = begin.holder.machine == here.machine
            && (begin.holder.pid, begin.holder.started) == (here.pid, here.started);
        if view.is_over() || begin.holder.is_known_dead() || is_here {
            return Ok(());
        }
        if begin.holder.machine != here.machine {
            let watch = self.head_watch();
            let (host, seconds) = (&begin.holder.host, watch.as_secs());
            (self.tell)(&format!(
                "the job was begun on {host}, process {}: for {seconds} s it may show that it runs \
                 there (--take-over does not wait)",
                begin.holder.pid
            ));
            let since = std::time::Instant::now();
            let mut moved = false;
            while !moved && since.elapsed() < watch {
                std::thread::sleep(HEAD_LOOK);
                moved = chain::look(&**self.store, self.name)?.head != view.head;
            }
            if !moved {
                return Ok(());
            }
        }
        Err(Error::Usage {
            message: format!(
                "job '{}' runs as generation {} on {} (process {})",
                self.options.job, view.generation, begin.holder.host, begin.holder.pid
            ),
            hint: "stop it, give this one another name by --job, or end the other by --take-over"
                .into(),
        })
    }

    /// How long a run that lives is sure to have written a record: twice its interval, as its last
    /// records and the settings show it.
    fn head_watch(&self) -> Duration {
        let interval = match self.job.settings.checkpoint {
            Some(CheckpointInterval::Every(ns)) => Duration::from_nanos(ns.get()),
            Some(CheckpointInterval::Auto) | None => Duration::ZERO,
        };
        // Damage is told when the checkpoint is read.
        let pause = chain::recent_pause(&**self.store, self.name).unwrap_or_default();
        pause.max(interval).saturating_mul(2).clamp(HEAD_WATCH[0], HEAD_WATCH[1])
    }

    /// Refuses a checkpoint that the job cannot go on from.
    fn check(&self, manifest: &CheckpointManifest) -> Result<(), Error> {
        if !self.obstacles.is_empty() && !has_ended(manifest) {
            let (job, number) = (&self.options.job, manifest.number);
            let reasons = self.obstacles.join("; ");
            return Err(Error::Usage {
                message: format!(
                    "job '{job}' has checkpoint {number}, and cannot go on from it: {reasons}"
                ),
                hint: "run the text that was saved, or begin anew by --from none".into(),
            });
        }
        self.check_fits(manifest)
    }

    /// Refuses state that the job has no operator for, and operators that would begin empty.
    fn check_fits(&self, manifest: &CheckpointManifest) -> Result<(), Error> {
        let FittedState { gone, new, .. } = &FittedState::of(&manifest.operators, self.ids);
        if self.options.evolve {
            return Ok(());
        }
        if let Some(name) = functions::changed(&self.job.settings.functions, &manifest.counters) {
            return Err(Error::Usage {
                message: format!(
                    "function '{name}' is another than that with which job '{}' has begun",
                    self.options.job
                ),
                hint: "--evolve goes on with the new one, and --from none begins anew".into(),
            });
        }
        if gone.is_empty() && new.is_empty() {
            return Ok(());
        }
        let mut message =
            format!("the saved state does not fit the text of job '{}'", self.options.job);
        self.listed(manifest, gone, new)?.iter().for_each(|line| message += &format!("\n  {line}"));
        let hint = "--evolve drops the state of what is gone and begins what is new empty, and \
                    --from none begins anew";
        Err(Error::Usage { message, hint: hint.into() })
    }

    /// Refuses to drop output of a checkpoint that may not be visible yet: no later run would make
    /// it so.
    fn check_published(&self, resumed: &Resumed) -> Result<(), Error> {
        let Resumed { base, manifest, is_published } = resumed;
        if *is_published {
            return Ok(());
        }
        let gone = FittedState::of(&manifest.operators, self.ids).gone;
        let staged = |of: &&OperatorEntry| manifest.sinks.iter().any(|sink| sink.id == of.id);
        let Some(OperatorEntry { text, .. }) = gone.iter().find(staged) else { return Ok(()) };
        Err(Error::Usage {
            message: format!(
                "rows of checkpoint {} may not be visible yet, and the text of job '{}' does not \
                 have their sink any more: {text}",
                base.number, self.options.job
            ),
            hint: "run the text that was saved, stop it, and then run this one".into(),
        })
    }

    /// Whether the job had ended, and the rows of a sink that loads at the end are gone with its
    /// processes. The user is told that it begins anew.
    ///
    /// # Errors
    /// When other such rows are visible: they would come twice.
    fn has_lost(&self, resumed: &Resumed) -> Result<bool, Error> {
        let Resumed { manifest, is_published, .. } = resumed;
        if *is_published || !has_ended(manifest) {
            return Ok(false);
        }
        let fitted = FittedState::of(&manifest.operators, self.ids);
        let (store, segments) = (&**self.store, &manifest.segments);
        let workers = keeper::read(store, self.name, segments, fitted.names(), None)?.workers;
        let marks = keeper::marks_in(manifest, &fitted, self.ids.len());
        let (mut lost, mut visible) = (Vec::new(), Vec::new());
        for (at, operator) in self.job.operators.iter().enumerate() {
            let Some(sink) = operator.kind.spec().sink() else { continue };
            if sink.publishes_end() {
                let staged = keeper::staged_of(&workers, at as u32);
                let mark = marks.get(at).copied().flatten();
                let has_lost = sink.has_lost(&staged, mark);
                let has_lost =
                    has_lost.map_err(|error| DataflowError::from(error).of_operator(at))?;
                if has_lost { &mut lost } else { &mut visible }.push(&*operator.name);
            }
        }
        let (Some(first), job) = (lost.first(), &self.options.job) else { return Ok(false) };
        if let Some(seen) = visible.first() {
            return Err(Error::Usage {
                message: format!(
                    "job '{job}' had ended: the rows of '{seen}' are visible, and those of \
                     '{first}' are gone with the process that had them"
                ),
                hint: format!(
                    "take the rows of '{seen}' away and begin anew by --from none, or run the rest \
                     of the script as another job"
                ),
            });
        }
        (self.tell)(&format!(
            "job '{job}' had ended, and the rows of '{first}' were not published: it begins anew"
        ));
        Ok(true)
    }

    /// Lines for the user: operators that are gone, with their saved bytes, and those that are new.
    fn listed(
        &self,
        manifest: &CheckpointManifest,
        gone: &[OperatorEntry],
        new: &[String],
    ) -> Result<Vec<String>, Error> {
        let (store, names) = (&**self.store, OperatorNames(self.ids));
        let bytes = keeper::read(store, self.name, &manifest.segments, names, None)?.bytes;
        let gone = gone.iter().map(|OperatorEntry { id, text, .. }| {
            let state = bytes.get(id).copied().unwrap_or(0);
            let sources = manifest.sources.iter().filter(|source| source.id == *id);
            let splits = sources.flat_map(|source| &source.splits);
            let positions: usize = splits.map(|split| split.position.len()).sum();
            let sinks = manifest.sinks.iter().filter(|sink| sink.id == *id);
            let staged: usize = sinks.flat_map(|of| &of.parts).map(|part| part.staged.len()).sum();
            format!("gone  {text} ({} bytes)", state + (positions + staged) as u64)
        });
        Ok(gone.chain(new.iter().map(|text| format!("new   {text}"))).collect())
    }

    /// Tells the user which state is dropped, and which operators begin empty.
    fn tell_evolved(&self, manifest: &CheckpointManifest) -> Result<(), Error> {
        let FittedState { gone, new, .. } = &FittedState::of(&manifest.operators, self.ids);
        for line in self.listed(manifest, gone, new)? {
            (self.tell)(&line);
        }
        Ok(())
    }
}

/// Whether a checkpoint is that of the end of its job.
pub(super) fn has_ended(manifest: &CheckpointManifest) -> bool {
    manifest.counters.get(ENDED) == Some(&1)
}
