//! `millstream state`: the checkpoints of jobs.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use millstream::checkpoint::chain::{self, ChainView, KeptCheckpoint};
use millstream::checkpoint::{
    BaseCheckpoint, Begin, CheckpointError, CheckpointManifest, Holder, ObjectName, Record,
    RecordBody, Store,
};
use millstream::{ConnectorError, state_store};
use serde_json::{Value, json};

use crate::args::{LogArgs, ProgressStyle};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::session::print;
use crate::table::{fields, lines, table};
use crate::{human, log};

#[derive(Debug, Args)]
pub(crate) struct StateCommandArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub(crate) command: StateCommand,

    /// Where the checkpoints lie: a directory or s3://bucket/path [default:
    /// $XDG_STATE_HOME/millstream/jobs]
    #[arg(long, value_name = "DIR|URL", global = true)]
    pub(crate) state: Option<String>,

    /// Writes JSON instead of a table
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StateCommand {
    /// Lists the jobs.
    List,
    /// Shows what a job has saved.
    Show {
        /// The job
        job: String,
        /// A checkpoint, by its number or the name under which it is kept; else the last one
        checkpoint: Option<String>,
    },
    /// Compares every byte that is saved with its checksum.
    Verify {
        /// The job; else all
        job: Option<String>,
    },
    /// Keeps a checkpoint under a name, until it is dropped.
    Keep {
        /// The job
        job: String,
        /// The name
        name: String,
        /// One of the last three checkpoints; else the last one
        #[arg(long, value_name = "NUMBER")]
        checkpoint: Option<u64>,
    },
    /// Drops a job with all that it has saved, or a checkpoint that is kept under a name.
    Drop {
        /// The job
        job: String,
        /// The name of a checkpoint that is kept
        name: Option<String>,
        /// Drops a job that may still run
        #[arg(long)]
        force: bool,
    },
}

/// Runs the command.
pub(crate) fn state(args: &StateCommandArgs) -> Result<ExitCode, Failure> {
    log::start(&args.log.log, &Screen::new(ProgressStyle::None), None);
    let location = match &args.state {
        Some(location) => location.clone(),
        None => {
            let directory = state_store::default_directory();
            let none = || Failure::usage("no state is named", Some("--state DIR or --state URL"));
            directory.ok_or_else(none)?.display().to_string()
        }
    };
    let store = state_store::open_existing(&location).map_err(|error| {
        let hint = match &error {
            ConnectorError::Io { hint, .. } | ConnectorError::Option { hint, .. } => hint.clone(),
            _ => None,
        };
        Failure::runtime(&error.to_string(), hint.as_deref())
    })?;
    let states = States { store, location, json: args.json };
    let text = match &args.command {
        StateCommand::List => states.list(),
        StateCommand::Show { job, checkpoint } => states.show(job, checkpoint.as_deref()),
        StateCommand::Verify { job } => return states.verify(job.as_deref()),
        StateCommand::Keep { job, name, checkpoint } => states.keep(job, name, *checkpoint),
        StateCommand::Drop { job, name: Some(name), .. } => states.drop_kept(job, name),
        StateCommand::Drop { job, name: None, force } => states.drop_job(job, *force)?,
    };
    print(&text.map_err(|error| failure(&error))?);
    Ok(ExitCode::SUCCESS)
}

fn failure(error: &CheckpointError) -> Failure {
    let hint = match error {
        CheckpointError::Damaged { .. } | CheckpointError::Missing { .. } => {
            Some("`millstream state verify` tells which checkpoints are intact")
        }
        CheckpointError::NotFound { .. } => Some("`millstream state list` lists the jobs"),
        CheckpointError::Version { .. } => Some("a later release of millstream reads it"),
        _ => None,
    };
    Failure::runtime(&error.to_string(), hint)
}

/// The checkpoints of all jobs at a location.
struct States {
    store: Arc<dyn Store>,
    location: String,
    json: bool,
}

type Text = Result<String, CheckpointError>;

impl States {
    /// A job that is there.
    fn job(&self, name: &str) -> Result<ObjectName, CheckpointError> {
        let job = ObjectName::job(name)?;
        if chain::jobs(self.store.as_ref())?.contains(&job) {
            return Ok(job);
        }
        Err(CheckpointError::NotFound { what: format!("job '{job}' in {}", self.location) })
    }

    fn list(&self) -> Text {
        let (mut rows, mut values) = (Vec::new(), Vec::new());
        for job in chain::jobs(self.store.as_ref())? {
            let objects = self.store.list(Some(&job))?;
            let bytes: u64 = objects.iter().map(|object| object.bytes).sum();
            let kept = chain::kept(self.store.as_ref(), &job)?.len();
            let (view, status) = match chain::look(self.store.as_ref(), &job) {
                Ok(view) => {
                    let status = self.status(&view)?;
                    (Some(view), status)
                }
                Err(CheckpointError::Store(error)) => return Err(error.into()),
                Err(error) => (None, error.to_string()),
            };
            let number = view.as_ref().and_then(|view| view.checkpoint.as_ref()?.number.into());
            let generation = view.as_ref().map(|view| view.generation);
            values.push(json!({
                "job": job.as_str(), "checkpoint": number, "generation": generation, "kept": kept,
                "bytes": bytes, "status": status,
            }));
            let or_none = |number: Option<u64>| {
                number.map_or_else(|| "-".to_owned(), |number| number.to_string())
            };
            let (kept, bytes) = (kept.to_string(), human::bytes(bytes));
            let numbers = [or_none(number), or_none(generation), kept, bytes, status];
            rows.push(std::iter::once(job.to_string()).chain(numbers).collect());
        }
        if self.json {
            return Ok(lines(values.into_iter()));
        }
        Ok(table(&["job", "checkpoint", "generation", "kept", "bytes", "status"], rows))
    }

    /// Whether the job runs, as far as can be known here.
    fn status(&self, view: &ChainView) -> Result<String, CheckpointError> {
        let over = match &view.record {
            None => Some("empty"),
            Some(Record { body: RecordBody::Done(_), .. }) => Some("done"),
            Some(Record { body: RecordBody::Settled(_), .. }) => Some("stopped"),
            Some(_) => None,
        };
        if let Some(over) = over {
            return Ok(over.to_owned());
        }
        Ok(match view.begun(self.store.as_ref())? {
            Some(Begin { holder, .. }) if holder.is_known_dead() => "ended".to_owned(),
            Some(Begin { holder, .. }) if holder.machine == Holder::this_process().machine => {
                format!("runs as process {}", holder.pid)
            }
            Some(Begin { holder, .. }) => {
                format!("begun on {}, process {}", holder.host, holder.pid)
            }
            None => "unknown".to_owned(),
        })
    }

    fn show(&self, job: &str, checkpoint: Option<&str>) -> Text {
        let (store, job) = (self.store.as_ref(), self.job(job)?);
        let view = chain::look(store, &job)?;
        let begin = view.begun(store)?;
        let kept = chain::kept(store, &job)?;
        let retained = view.retained(store)?;
        let base = match checkpoint {
            None => view.checkpoint.clone(),
            Some(name) => Some(find(&job, name, &retained, &kept)?),
        };
        let read = |base: &BaseCheckpoint| chain::read_checkpoint(store, &job, base);
        let manifest = base.as_ref().map(read).transpose()?;
        let sections =
            manifest.as_ref().map(|manifest| self.sections(&job, manifest)).transpose()?;
        let numbers: Vec<u64> = retained.iter().map(|base| base.number).collect();
        let names: Vec<&str> = kept.iter().map(|entry| entry.name.as_str()).collect();
        if self.json {
            return Ok(lines(std::iter::once(json!({
                "job": job.as_str(), "generation": view.generation, "status": self.status(&view)?,
                "sql": begin.as_ref().map(|begin| &begin.sql), "checkpoints": numbers,
                "kept": names,
                "checkpoint": manifest.as_ref().map(|of| checkpoint_json(of, &sections)),
            }))));
        }
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let or_none = |list: String| if list.is_empty() { "none".to_owned() } else { list };
        let mut text = fields(&[
            ("job", job.to_string()),
            ("status", self.status(&view)?),
            ("generation", view.generation.to_string()),
            ("checkpoints", or_none(numbers.join(", "))),
            ("kept", or_none(names.join(", "))),
        ]);
        if let Some(begin) = &begin {
            text += &fields(&[("release", begin.release.clone())]);
        }
        if let (Some(base), Some(manifest)) = (&base, &manifest) {
            text += &describe(base, manifest, &sections.unwrap_or_default());
        }
        Ok(text)
    }

    /// Rows and bytes of each operator's state.
    fn sections(
        &self,
        job: &ObjectName,
        manifest: &CheckpointManifest,
    ) -> Result<Sizes, CheckpointError> {
        let mut sizes = Sizes::new();
        for entry in manifest.all_segments() {
            let segment = chain::open_segment(self.store.as_ref(), job, entry)?;
            for section in segment.sections() {
                let size = sizes.entry(section.operator.clone()).or_default();
                *size = (size.0 + section.rows, size.1 + section.bytes);
            }
        }
        Ok(sizes)
    }

    /// Reads all that is kept of a job, or of all. Damage is told, and is a failure in the end.
    fn verify(&self, job: Option<&str>) -> Result<ExitCode, Failure> {
        let read = || -> Result<Vec<(ObjectName, Vec<Verified>)>, CheckpointError> {
            let jobs = match job {
                Some(job) => vec![self.job(job)?],
                None => chain::jobs(self.store.as_ref())?,
            };
            let verified = |job: ObjectName| {
                let checkpoints = self.verify_job(&job)?;
                Ok((job, checkpoints))
            };
            jobs.into_iter().map(verified).collect()
        };
        let jobs = read().map_err(|error| failure(&error))?;
        let (mut text, mut damaged, mut count) = (String::new(), 0, 0);
        for (job, checkpoints) in &jobs {
            for Verified { what, bytes } in checkpoints {
                count += 1;
                let error = bytes.as_ref().err().map(ToString::to_string);
                damaged += u64::from(error.is_some());
                if self.json {
                    text += &lines(std::iter::once(json!({
                        "job": job.as_str(), "what": what, "bytes": bytes.as_ref().ok(),
                        "intact": error.is_none(), "error": error,
                    })));
                } else {
                    let outcome = match bytes {
                        Ok(bytes) => format!("intact, {}", human::bytes(*bytes)),
                        Err(error) => format!("damaged: {error}"),
                    };
                    text += &format!("{job}: {what} is {outcome}\n");
                }
            }
        }
        print(&text);
        if damaged == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        let message = format!("{damaged} of {count} are damaged");
        let hint = "a run goes on from one that is intact by --from NUMBER or --from NAME";
        Err(Failure::runtime(&message, Some(hint)))
    }

    fn verify_job(&self, job: &ObjectName) -> Result<Vec<Verified>, CheckpointError> {
        let store = self.store.as_ref();
        let mut verified = Vec::new();
        let mut add = |what: String, bytes: Result<u64, CheckpointError>| match bytes {
            // A store that fails says nothing about what it holds.
            Err(CheckpointError::Store(error)) => Err(CheckpointError::from(error)),
            bytes => {
                verified.push(Verified { what, bytes });
                Ok(())
            }
        };
        let records = chain::records(store, job)?;
        let retained: Vec<u64> = match chain::look(store, job) {
            Ok(view) => view.retained(store)?.iter().map(|base| base.record).collect(),
            Err(CheckpointError::Store(error)) => return Err(error.into()),
            Err(_) => Vec::new(),
        };
        let oldest = retained.iter().min().copied().unwrap_or(0);
        let mut expected = None;
        for chain::ChainRecord { number, record, .. } in &records {
            if let Some(missing) = expected.filter(|missing| missing < number && *missing > oldest)
            {
                let file = store.place(&chain::record_name(job, missing));
                add(format!("record {missing}"), Err(CheckpointError::Missing { file }))?;
            }
            expected = Some(number + 1);
            match record {
                Err(error) => add(format!("record {number}"), Err(error.clone()))?,
                Ok(Record { body: RecordBody::Manifest(manifest), .. })
                    if retained.is_empty() || retained.contains(number) =>
                {
                    let bytes = chain::verify(store, job, manifest);
                    add(format!("checkpoint {}", manifest.number), bytes)?;
                }
                Ok(_) => {}
            }
        }
        for KeptCheckpoint { name, manifest, .. } in chain::kept(store, job)? {
            let bytes = manifest.and_then(|manifest| chain::verify(store, job, &manifest));
            add(format!("'{name}'"), bytes)?;
        }
        Ok(verified)
    }

    fn keep(&self, job: &str, name: &str, checkpoint: Option<u64>) -> Text {
        let job = self.job(job)?;
        let manifest = chain::keep(self.store.as_ref(), &job, checkpoint, name)?;
        let number = manifest.number;
        if self.json {
            let value = json!({ "job": job.as_str(), "kept": name, "checkpoint": number });
            return Ok(lines(std::iter::once(value)));
        }
        Ok(format!("checkpoint {number} of '{job}' is kept as '{name}'\n"))
    }

    fn drop_kept(&self, job: &str, name: &str) -> Text {
        let job = self.job(job)?;
        chain::drop_kept(self.store.as_ref(), &job, name)?;
        let value = json!({ "job": job.as_str(), "dropped": name });
        Ok(if self.json { lines(std::iter::once(value)) } else { String::new() })
    }

    fn drop_job(&self, job: &str, force: bool) -> Result<Text, Failure> {
        let job = self.job(job).map_err(|error| failure(&error))?;
        if !force {
            let status = chain::look(self.store.as_ref(), &job).and_then(|view| self.status(&view));
            match status.as_deref() {
                Ok("done" | "stopped" | "ended" | "empty") => {}
                Ok(status) => {
                    let message = format!("job '{job}' may run: {status}");
                    let hint = "--force drops it all the same: a run ends at its next checkpoint";
                    return Err(Failure::runtime(&message, Some(hint)));
                }
                Err(error) => {
                    let message = format!("whether job '{job}' runs is unknown: {error}");
                    return Err(Failure::runtime(&message, Some("--force drops it all the same")));
                }
            }
        }
        Ok(chain::drop_job(self.store.as_ref(), &job).map(|(files, bytes)| {
            if self.json {
                let value = json!({ "dropped": job.as_str(), "files": files, "bytes": bytes });
                return lines(std::iter::once(value));
            }
            format!("{}, {}\n", human::counted(files, "file"), human::bytes(bytes))
        }))
    }
}

/// Rows and bytes by operator.
type Sizes = BTreeMap<String, (u64, u64)>;

/// A checkpoint or a record that was read, with its bytes.
struct Verified {
    what: String,
    bytes: Result<u64, CheckpointError>,
}

/// The checkpoint that a user names: by its number, or by the name under which it is kept.
fn find(
    job: &ObjectName,
    name: &str,
    retained: &[BaseCheckpoint],
    kept: &[KeptCheckpoint],
) -> Result<BaseCheckpoint, CheckpointError> {
    if let Some(base) = retained.iter().find(|base| base.number.to_string() == name) {
        return Ok(base.clone());
    }
    let Some(entry) = kept.iter().find(|entry| entry.name == name) else {
        let what = format!("checkpoint '{name}' of job '{job}'");
        return Err(CheckpointError::NotFound { what });
    };
    let number = entry.manifest.clone()?.number;
    Ok(BaseCheckpoint { record: entry.record, number, kept: Some(name.to_owned()) })
}

fn checkpoint_json(of: &CheckpointManifest, sizes: &Option<Sizes>) -> Value {
    let sizes = sizes.clone().unwrap_or_default();
    let operators = of.operators.iter().map(|operator| {
        let (rows, bytes) = sizes.get(&operator.id).copied().unwrap_or_default();
        json!({ "id": operator.id, "text": operator.text, "watermark": operator.watermark,
            "rows": rows, "bytes": bytes })
    });
    let sources = of.sources.iter().map(|source| {
        let ended = source.splits.iter().filter(|split| split.ended).count();
        json!({ "id": source.id, "splits": source.splits.len(), "ended": ended })
    });
    let sinks = of.sinks.iter().map(|sink| json!({ "id": sink.id, "parts": sink.parts.len() }));
    json!({
        "number": of.number, "parent": of.parent, "nodes": of.nodes, "workers": of.workers,
        "segments": of.all_segments().count(), "bytes": bytes_of(of), "settled": of.settled,
        "counters": of.counters, "operators": operators.collect::<Vec<_>>(),
        "sources": sources.collect::<Vec<_>>(), "sinks": sinks.collect::<Vec<_>>(),
    })
}

fn bytes_of(manifest: &CheckpointManifest) -> u64 {
    manifest.all_segments().map(|segment| segment.bytes).sum()
}

fn describe(base: &BaseCheckpoint, of: &CheckpointManifest, sizes: &Sizes) -> String {
    let segments = human::counted(of.all_segments().count() as u64, "segment");
    let layout = [(of.nodes, "node"), (of.workers, "worker")]
        .map(|(number, thing)| human::counted(number.into(), thing));
    let mut text = fields(&[
        (
            "checkpoint",
            base.kept
                .as_ref()
                .map_or(of.number.to_string(), |name| format!("{}, kept as '{name}'", of.number)),
        ),
        ("layout", layout.join(", ")),
        ("size", format!("{} in {segments}", human::bytes(bytes_of(of)))),
    ]);
    for (name, count) in &of.counters {
        text += &fields(&[(name.as_str(), human::count(*count))]);
    }
    let watermark = |time: Option<i64>| {
        time.map_or_else(
            || "-".to_owned(),
            |ms| {
                if ms == i64::MIN || ms == i64::MAX { "-".to_owned() } else { human::time(ms) }
            },
        )
    };
    if !of.operators.is_empty() {
        let rows = of.operators.iter().map(|operator| {
            let (rows, bytes) = sizes.get(&operator.id).copied().unwrap_or_default();
            let numbers = [human::count(rows), human::bytes(bytes), watermark(operator.watermark)];
            std::iter::once(operator.text.clone()).chain(numbers).collect()
        });
        text +=
            &format!("\n{}", table(&["operator", "rows", "bytes", "watermark"], rows.collect()));
    }
    if !of.sources.is_empty() {
        let rows = of.sources.iter().map(|source| {
            let ended = source.splits.iter().filter(|split| split.ended).count();
            vec![source.id.clone(), source.splits.len().to_string(), ended.to_string()]
        });
        text += &format!("\n{}", table(&["source", "splits", "ended"], rows.collect()));
    }
    text
}
