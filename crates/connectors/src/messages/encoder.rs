//! Rows becoming messages.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;

use super::raw::{self, value_column};
use super::typed::{AVRO_CONFLUENT, PROTOBUF_CONFLUENT, typed_name};
use crate::format::Format;
use crate::format::avro::{AvroEncoder, schema_for};
use crate::format::encode::RowEncoding;
use crate::format::protobuf::{ProtoEncoder, proto_null, proto_type};
use crate::format::rows;
use crate::options::{OptionReader, refuse};
use crate::registry::Registry;
use crate::remote::{Task, line_format, row_encoding};

/// How the rows of a table become messages.
#[derive(Debug, Clone)]
pub struct MessageEncoder(Encoding);

#[derive(Debug, Clone)]
enum Encoding {
    Lines(RowEncoding),
    /// The value of the only column.
    Raw,
    Typed {
        of: TypedEncoder,
        registered: Option<Arc<Registered>>,
    },
}

#[derive(Debug, Clone)]
enum TypedEncoder {
    Avro(AvroEncoder),
    Proto(ProtoEncoder),
}

/// A schema that a registry gets before the first row is written.
#[derive(Debug)]
struct Registered {
    registry: Registry,
    subject: String,
    kind: &'static str,
    text: String,
    /// The bytes behind the number of the schema.
    place: Vec<u8>,
    id: OnceLock<u32>,
    asked: Mutex<AskedNumber>,
}

/// For so long a failure of the registry is that of all writers of a run; then it is asked anew.
const FAILED_FOR: Duration = Duration::from_secs(5);

/// The number of a schema, while the registry is asked for it.
#[derive(Debug, Default)]
struct AskedNumber {
    task: Option<Task>,
    /// The writers that wait for it.
    wakers: Vec<Waker>,
    /// Why there is none, and since when that is known.
    failed: Option<(ConnectorError, Instant)>,
}

impl Registered {
    /// Whether the number of the schema is known. It is asked for where nobody has done so, and
    /// `waker` is called when the registry has answered.
    fn is_known(self: &Arc<Self>, waker: &Waker) -> Result<bool, ConnectorError> {
        if self.id.get().is_some() {
            return Ok(true);
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((error, since)) = &asked.failed {
            if since.elapsed() < FAILED_FOR {
                return Err(error.clone());
            }
            // It is another run of the job.
            (asked.failed, asked.task) = (None, None);
        }
        // The answer may have come before the lock.
        if self.id.get().is_some() {
            return Ok(true);
        }
        if !asked.wakers.iter().any(|own| own.will_wake(waker)) {
            asked.wakers.push(waker.clone());
        }
        if asked.task.is_none() {
            let own = Arc::downgrade(self);
            let answered = move |answer| {
                if let Some(own) = own.upgrade() {
                    own.answered(answer);
                }
            };
            let task = self.registry.registers(&self.subject, self.kind, &self.text, answered);
            asked.task = Some(task);
        }
        Ok(false)
    }

    fn answered(&self, answer: Result<u32, ConnectorError>) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Ok(id) => drop(self.id.set(id)),
            Err(error) => asked.failed = Some((error, Instant::now())),
        }
        let wakers = std::mem::take(&mut asked.wakers);
        drop(asked);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The bytes before the values of a message.
    fn head(&self) -> Result<Vec<u8>, ConnectorError> {
        let id = match self.id.get() {
            Some(id) => *id,
            None => {
                let id = self.registry.register(&self.subject, self.kind, &self.text)?;
                *self.id.get_or_init(|| id)
            }
        };
        let mut head = vec![0];
        head.extend(id.to_be_bytes());
        head.extend_from_slice(&self.place);
        Ok(head)
    }
}

impl MessageEncoder {
    /// For rows of `schema`, in the format that the option 'format' of the table names. Nothing is
    /// asked of a registry before somebody [is to write](Self::is_ready), or the first row is
    /// written.
    ///
    /// # Errors
    /// When the options or the columns do not fit.
    pub fn new(table: &TableDef, schema: &Schema) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let Some(name) = typed_name(options) else {
            let format = line_format(&table.options, false)?;
            if let Format::Raw = format {
                return value_column(schema).map(|_| Self(Encoding::Raw));
            }
            return row_encoding(&format, schema).map(Encoding::Lines).map(Self);
        };
        let registered = |format: &str, kind, text: String, place| {
            let subject =
                [format!("{format}.subject"), format!("{format}.schema-registry.subject")];
            let subject = subject.iter().find_map(|key| options.text(key));
            let of_topic = || options.text("topic").map(|topic| format!("{topic}-value"));
            let subject = subject
                .map(str::to_owned)
                .or_else(of_topic)
                .ok_or_else(|| refuse(&format!("{format}.subject"), "is missing", None))?;
            let (registry, id) = (Registry::new(options, format)?, OnceLock::new());
            let asked = Mutex::default();
            Ok::<_, ConnectorError>(Arc::new(Registered {
                registry,
                subject,
                kind,
                text,
                place,
                id,
                asked,
            }))
        };
        let (of, registered) = match name {
            "avro" | AVRO_CONFLUENT => {
                let written = schema_for(schema, options)?;
                let of = AvroEncoder::new(schema, written.schema)?;
                let registered = match name {
                    "avro" => None,
                    _ => Some(registered(name, "AVRO", written.json, vec![])?),
                };
                (TypedEncoder::Avro(of), registered)
            }
            _ => {
                let of = proto_type(options, name == PROTOBUF_CONFLUENT)?;
                let encoder = ProtoEncoder::new(schema, &of.message, proto_null(options))?;
                let registered = match of.text {
                    Some(text) => Some(registered(name, "PROTOBUF", text, of.place)?),
                    None => None,
                };
                (TypedEncoder::Proto(encoder), registered)
            }
        };
        Ok(Self(Encoding::Typed { of, registered }))
    }

    /// Whether [`encode`](Self::encode) has to wait for nobody: a registry has given the schema of
    /// the rows a number. Where it is not so, it is asked by another thread, which calls `waker`
    /// when the answer is there.
    ///
    /// # Errors
    /// When the registry could not be reached for too long, or refuses the schema.
    pub fn is_ready(&self, waker: &Waker) -> Result<bool, ConnectorError> {
        match &self.0 {
            Encoding::Typed { registered: Some(registered), .. } => registered.is_known(waker),
            Encoding::Typed { registered: None, .. } | Encoding::Lines(_) | Encoding::Raw => {
                Ok(true)
            }
        }
    }

    /// Whether a row may become a message [without a value](Self::encode).
    pub fn has_nulls(&self) -> bool {
        matches!(self.0, Encoding::Raw)
    }

    /// Gives the message of each row, `None` for one without a value; waits for a registry that was
    /// not [asked](Self::is_ready).
    ///
    /// # Errors
    /// When a value cannot be written.
    pub fn encode(
        &self,
        table: &str,
        batch: &RecordBatch,
        give: impl FnMut(Option<&[u8]>),
    ) -> Result<(), ConnectorError> {
        let unfit = |message: String| rows::unfit(table, &message);
        match &self.0 {
            Encoding::Raw => raw::encode(batch, give).map_err(unfit),
            Encoding::Lines(lines) => encode_lines(lines, batch, give).map_err(unfit),
            Encoding::Typed { of, registered } => {
                let head = registered.as_ref().map(|registered| registered.head()).transpose()?;
                let head = head.unwrap_or_default();
                encode_typed(of, batch, &head, give).map_err(unfit)
            }
        }
    }
}

fn encode_typed(
    of: &TypedEncoder,
    batch: &RecordBatch,
    head: &[u8],
    mut give: impl FnMut(Option<&[u8]>),
) -> Result<(), String> {
    let mut bytes = head.to_vec();
    let end = |bytes: &mut Vec<u8>| {
        give(Some(bytes));
        bytes.truncate(head.len());
        Ok(())
    };
    match of {
        TypedEncoder::Avro(of) => of.encode(batch, &mut bytes, end),
        TypedEncoder::Proto(of) => of.encode(batch, &mut bytes, end),
    }
}

fn encode_lines(
    of: &RowEncoding,
    batch: &RecordBatch,
    mut give: impl FnMut(Option<&[u8]>),
) -> Result<(), String> {
    let mut text = Vec::new();
    of.encode(batch, &mut text)?;
    let lines = memchr::memchr_iter(b'\n', &text).count();
    if lines == batch.num_rows() {
        let mut from = 0;
        for end in memchr::memchr_iter(b'\n', &text) {
            give(Some(&text[from..end]));
            from = end + 1;
        }
        return Ok(());
    }
    // A line end stands in a value.
    for row in 0..batch.num_rows() {
        text.clear();
        of.encode(&batch.slice(row, 1), &mut text)?;
        give(Some(text.strip_suffix(b"\n").unwrap_or(&text)));
    }
    Ok(())
}
