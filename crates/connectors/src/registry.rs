//! A schema registry: what the number in a message stands for, and a number for what is written.
//!
//! ```text
//! GET  schemas/ids/7                    a schema, and the names of those that it refers to
//! GET  subjects/S/versions/3            one that another one refers to
//! POST subjects/S/versions              the number of a schema, which is added where it is new
//! ```
//!
//! These are the requests that the registries of Confluent, Apicurio, Karapace and others answer.
//!
//! A number stands for one schema for ever: each is asked for once, unless there are very many, of
//! which some are forgotten. A registry that cannot be
//! reached is asked again with growing pauses, and its readers wait; a number that it does not know
//! is asked for again after a while, since copies of a registry may lag.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use dataflow::connector::OptionSpec;
use dataflow::error::ConnectorError;

use crate::options::OptionReader;
use crate::remote::{Io, Task};

mod ask;
mod references;

use ask::Asked;
pub(crate) use references::RegisteredSchema;

/// How long a number stays unknown before it is asked for again.
const UNKNOWN_FOR: Duration = Duration::from_secs(30);

/// Requests that wait for an answer at a time.
const REQUESTS_MAX: usize = 8;

/// Numbers that are known not to be there, before they are forgotten.
const UNKNOWN_MAX: usize = 10_000;

/// Schemas that are kept, before they are forgotten and asked for again.
const SCHEMAS_MAX: usize = 1_000;

/// Bytes of the texts of schemas that are kept, beside the last one.
const SCHEMA_BYTES_MAX: usize = 64 << 20;

const fn option(
    key: &'static str,
    values: &'static str,
    default: &'static str,
    doc: &'static str,
) -> OptionSpec {
    OptionSpec { key, values, default, doc }
}

/// The options of a registry, behind the name of a format.
macro_rules! registry_options {
    ($format:literal) => {
        [
            option(
                concat!($format, ".url"),
                "http://… or https://…",
                "",
                "The registry of schemas. Older versions of Flink call it \
                 schema-registry.url, which is read, too.",
            ),
            option(
                concat!($format, ".subject"),
                "text",
                "the topic, with -value behind it",
                "A sink: the subject to which the schema of the rows is added.",
            ),
            option(
                concat!($format, ".basic-auth.user-info"),
                "user:password",
                "none",
                "Credentials for the registry; shown nowhere.",
            ),
            option(
                concat!($format, ".bearer-auth.token"),
                "text",
                "none",
                "A token for the registry; shown nowhere.",
            ),
            option(
                concat!($format, ".ssl.ca.location"),
                "file",
                "the usual authorities",
                "Certificates, as PEM, one of which must have signed that of the registry.",
            ),
        ]
    };
}

/// The options of the registry of 'avro-confluent'.
pub(crate) const AVRO_OPTIONS: [OptionSpec; 5] = registry_options!("avro-confluent");

/// The options of the registry of 'protobuf-confluent'.
pub(crate) const PROTOBUF_OPTIONS: [OptionSpec; 5] = registry_options!("protobuf-confluent");

/// A registry, and the schemas that are known.
pub(crate) struct Registry {
    asked: Asked,
    io: Arc<Io>,
    known: Mutex<SchemaCache>,
}

#[derive(Default)]
struct SchemaCache {
    schemas: HashMap<u32, State>,
    /// The tasks that wait for an answer.
    wakers: Vec<Waker>,
    /// Requests that wait for an answer.
    waiting: usize,
}

impl SchemaCache {
    /// Forgets the schemas where they are too many: readers keep what they made of them.
    fn make_room(&mut self) {
        let (mut schemas, mut bytes) = (0, 0);
        for state in self.schemas.values() {
            if let State::Found(schema) = state {
                (schemas, bytes) = (schemas + 1, bytes + schema.bytes());
            }
        }
        if schemas >= SCHEMAS_MAX || bytes > SCHEMA_BYTES_MAX {
            self.schemas.retain(|_, state| !matches!(state, State::Found(_)));
        }
    }
}

enum State {
    /// The task asks for it.
    Asked {
        _task: Task,
    },
    Found(Arc<RegisteredSchema>),
    /// Why it is not, and since when that is known.
    Unknown(String, Instant),
    Failed(ConnectorError),
}

/// The answer to the question what a number stands for.
pub(crate) enum SchemaLookup {
    Found(Arc<RegisteredSchema>),
    /// Why there is nothing.
    Unknown(String),
    /// It has not come yet.
    Pending,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({})", self.asked.place())
    }
}

impl Registry {
    /// The registry that the options of a format name. Nothing is asked yet.
    ///
    /// # Errors
    /// When they do not fit.
    pub(crate) fn new(options: OptionReader<'_>, format: &str) -> Result<Self, ConnectorError> {
        let asked = Asked::new(options, format)?;
        Ok(Self { asked, io: Io::shared()?, known: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, SchemaCache> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The schema of a number; `waker` is called when it may have come.
    ///
    /// # Errors
    /// When the registry cannot be reached for as long as the options say, or refuses to answer.
    pub(crate) fn look(
        self: &Arc<Self>,
        id: u32,
        waker: &Waker,
    ) -> Result<SchemaLookup, ConnectorError> {
        let mut known = self.lock();
        match known.schemas.get(&id) {
            Some(State::Found(schema)) => return Ok(SchemaLookup::Found(Arc::clone(schema))),
            Some(State::Unknown(reason, since)) if since.elapsed() < UNKNOWN_FOR => {
                return Ok(SchemaLookup::Unknown(reason.clone()));
            }
            Some(State::Failed(_)) => {
                if let Some(State::Failed(error)) = known.schemas.remove(&id) {
                    return Err(error);
                }
            }
            Some(State::Asked { .. } | State::Unknown(..)) | None => {}
        }
        if !known.wakers.iter().any(|own| own.will_wake(waker)) {
            known.wakers.push(waker.clone());
        }
        let is_asked = matches!(known.schemas.get(&id), Some(State::Asked { .. }));
        if !is_asked && known.waiting < REQUESTS_MAX {
            known.waiting += 1;
            let (own, asked) = (Arc::downgrade(self), self.asked.clone());
            let task = self.io.spawn(async move {
                let answer = references::schema(&asked, id).await;
                Self::answered(&own, id, answer);
            });
            known.schemas.insert(id, State::Asked { _task: task });
        }
        Ok(SchemaLookup::Pending)
    }

    fn answered(
        own: &Weak<Self>,
        id: u32,
        answer: Result<Result<RegisteredSchema, String>, ConnectorError>,
    ) {
        let Some(own) = own.upgrade() else { return };
        let mut known = own.lock();
        known.waiting -= 1;
        let is_unknown = |state: &State| matches!(state, State::Unknown(..));
        if known.schemas.values().filter(|state| is_unknown(state)).count() >= UNKNOWN_MAX {
            known.schemas.retain(|_, state| !is_unknown(state));
        }
        known.make_room();
        let before = known.schemas.insert(id, state_of(answer));
        let wakers = std::mem::take(&mut known.wakers);
        drop(known);
        // The task that runs here, which ends now.
        drop(before);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The number of a schema of a subject, to which it is added where it is not there; waits for
    /// it.
    ///
    /// # Errors
    /// When the registry cannot be reached, or refuses the schema.
    pub(crate) fn register(
        &self,
        subject: &str,
        kind: &'static str,
        text: &str,
    ) -> Result<u32, ConnectorError> {
        let (asked, subject, text) = (self.asked.clone(), subject.to_owned(), text.to_owned());
        self.io.wait(async move { asked.register(&subject, kind, &text).await })
    }

    /// As [`register`](Self::register), but waits for nobody: `done` is called by another thread,
    /// unless the task is dropped before.
    pub(crate) fn registers(
        &self,
        subject: &str,
        kind: &'static str,
        text: &str,
        done: impl FnOnce(Result<u32, ConnectorError>) + Send + 'static,
    ) -> Task {
        let (asked, subject, text) = (self.asked.clone(), subject.to_owned(), text.to_owned());
        self.io.spawn(async move { done(asked.register(&subject, kind, &text).await) })
    }
}

fn state_of(answer: Result<Result<RegisteredSchema, String>, ConnectorError>) -> State {
    match answer {
        Ok(Ok(schema)) => State::Found(Arc::new(schema)),
        Ok(Err(reason)) => State::Unknown(reason, Instant::now()),
        Err(error) => State::Failed(error),
    }
}
