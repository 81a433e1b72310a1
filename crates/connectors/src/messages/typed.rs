//! Messages that are no text: Avro and Protobuf, by a schema that is given or that a registry has.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use dataflow::connector::{OptionSpec, TableDef};
use dataflow::error::ConnectorError;
use prost_reflect::FileDescriptor;

use super::INPUT;
use crate::format::avro::{self, AvroRows, AvroSchema, schema_for};
use crate::format::protobuf::{
    self, DEFAULTS, MESSAGE_NAME, ProtoFormat, ProtoRows, compiled, message_at, message_named,
};
use crate::format::typed::Mapping;
use crate::format::{Refuser, TargetColumns, rows};
use crate::options::OptionReader;
use crate::registry::{self, RegisteredSchema, Registry, SchemaLookup};

/// The formats that name a schema of a registry.
pub(super) const AVRO_CONFLUENT: &str = "avro-confluent";
pub(super) const PROTOBUF_CONFLUENT: &str = "protobuf-confluent";

/// Schemas and types of messages that are kept at a time.
const WRITERS_MAX: usize = 1_000;

/// Types within each other that a message may name.
const PLACES_MAX: usize = 32;

/// The options of the formats that are no text.
pub const TYPED_OPTIONS: [OptionSpec; 17] = {
    let [schema, schema_file] = avro::OPTIONS;
    let [url, subject, user, token, ca] = registry::AVRO_OPTIONS;
    let [proto_url, proto_subject, proto_user, proto_token, proto_ca] = registry::PROTOBUF_OPTIONS;
    let [name, descriptor, proto, defaults, null] = protobuf::OPTIONS;
    [
        schema,
        schema_file,
        url,
        subject,
        user,
        token,
        ca,
        name,
        descriptor,
        proto,
        defaults,
        null,
        proto_url,
        proto_subject,
        proto_user,
        proto_token,
        proto_ca,
    ]
};

/// How messages that are no text are read.
#[derive(Debug, Clone)]
pub(super) enum TypedFormat {
    Avro(Arc<AvroSchema>),
    Protobuf(ProtoFormat),
    RegisteredAvro(Arc<Registry>),
    /// With the name of the type, if it is not that of each message.
    RegisteredProtobuf {
        registry: Arc<Registry>,
        name: Option<String>,
        defaults: bool,
    },
}

/// The name of a format that is no text, if the table has one.
pub(super) fn typed_name(options: OptionReader<'_>) -> Option<&'static str> {
    let names = ["avro", AVRO_CONFLUENT, "protobuf", PROTOBUF_CONFLUENT];
    let given = options.text("format")?;
    names.into_iter().find(|name| name.eq_ignore_ascii_case(given))
}

impl TypedFormat {
    /// `None` where the format is text.
    ///
    /// # Errors
    /// When the options do not fit.
    pub(super) fn new(table: &TableDef) -> Result<Option<Self>, ConnectorError> {
        let options = OptionReader(&table.options);
        let Some(name) = typed_name(options) else { return Ok(None) };
        let registry = || Registry::new(options, name).map(Arc::new);
        Ok(Some(match name {
            "avro" => {
                let fields = table.schema.fields().iter().enumerate();
                let fields = fields.filter(|(at, _)| !table.metadata.contains_key(at));
                let columns = Schema::new(fields.map(|(_, of)| of.clone()).collect::<Vec<_>>());
                Self::Avro(Arc::new(schema_for(&columns, options)?.schema))
            }
            AVRO_CONFLUENT => Self::RegisteredAvro(registry()?),
            "protobuf" => Self::Protobuf(ProtoFormat::new(options)?),
            _ => Self::RegisteredProtobuf {
                registry: registry()?,
                name: options.text(MESSAGE_NAME).map(str::to_owned),
                defaults: options.bool(DEFAULTS, false)?,
            },
        }))
    }

    /// Refuses a table that a schema that is known does not fit. Where one comes with each message,
    /// it may lack columns: they are NULL.
    ///
    /// # Errors
    /// When it does not fit.
    pub(super) fn check(
        &self,
        target: TargetColumns,
    ) -> Result<Arc<TargetColumns>, ConnectorError> {
        let target = Arc::new(target);
        match self {
            Self::Avro(_) | Self::Protobuf(_) => {
                Writer::given(self, &target)?;
                Ok(target)
            }
            Self::RegisteredAvro(_) | Self::RegisteredProtobuf { .. } => Ok(target.of_several()),
        }
    }

    fn registry(&self) -> Option<&Arc<Registry>> {
        match self {
            Self::Avro(_) | Self::Protobuf(_) => None,
            Self::RegisteredAvro(registry) | Self::RegisteredProtobuf { registry, .. } => {
                Some(registry)
            }
        }
    }
}

/// Takes the numbers of a type from the front of a message.
fn places(bytes: &mut &[u8]) -> Result<Vec<usize>, String> {
    let mut number = || {
        let mut value = 0_u64;
        for at in 0..10 {
            let (byte, rest) = bytes.split_first().ok_or("it ends before its values")?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                let number = usize::try_from(value >> 1).ok().filter(|_| value & 1 == 0);
                return number.ok_or_else(|| "it names a type of a negative number".to_owned());
            }
        }
        Err("it names a type of a number that is too long".to_owned())
    };
    match number()? {
        0 => Ok(vec![0]),
        count if count > PLACES_MAX => Err(format!("it names {count} types within each other")),
        count => (0..count).map(|_| number()).collect(),
    }
}

/// Rows of one schema, and the messages that they are.
struct Writer {
    rows: WriterRows,
    /// Counted from 1, as records of a file are.
    numbers: Vec<u64>,
}

enum WriterRows {
    Avro(AvroRows),
    Protobuf(ProtoRows),
}

impl Writer {
    /// For the schema of the table's options; `None` where it comes with the messages.
    fn given(format: &TypedFormat, target: &TargetColumns) -> Result<Option<Self>, ConnectorError> {
        let rows = match format {
            TypedFormat::Avro(schema) => {
                let place = "the Avro schema";
                WriterRows::Avro(AvroRows::new(target, Arc::clone(schema), place)?)
            }
            TypedFormat::Protobuf(format) => WriterRows::Protobuf(format.rows(target)?),
            _ => return Ok(None),
        };
        Ok(Some(Self { rows, numbers: vec![] }))
    }

    /// For a schema of a registry.
    fn registered(
        format: &TypedFormat,
        target: &TargetColumns,
        (id, places): (u32, &[usize]),
        schema: &RegisteredSchema,
    ) -> Result<Self, String> {
        let other = |kind: &str| format!("schema {id} is one of {kind}");
        let (text, place) = (&schema.text, format!("schema {id}"));
        let unfit = |error: ConnectorError| error.to_string();
        let rows = match format {
            TypedFormat::RegisteredProtobuf { name, defaults, .. } => {
                if schema.kind != "PROTOBUF" {
                    return Err(other(&schema.kind));
                }
                let file: FileDescriptor = compiled(text, &schema.references)
                    .map_err(|reason| format!("{place} cannot be read: {reason}"))?;
                let message = match name {
                    Some(name) => message_named(file.parent_pool(), name)
                        .ok_or_else(|| format!("{place} has no message '{name}'"))?,
                    None => message_at(&file, places)
                        .ok_or_else(|| format!("{place} has no type at {places:?}"))?,
                };
                let rows = ProtoRows::new(target, &message, &place, *defaults).map_err(unfit)?;
                WriterRows::Protobuf(rows)
            }
            _ => {
                if schema.kind != "AVRO" {
                    return Err(other(&schema.kind));
                }
                let known: Vec<_> = schema.references.iter().map(|(_, text)| &**text).collect();
                let schema = AvroSchema::new(text, &known);
                let schema = schema.map_err(|reason| format!("{place}: {reason}"))?;
                WriterRows::Avro(AvroRows::new(target, Arc::new(schema), &place).map_err(unfit)?)
            }
        };
        Ok(Self { rows, numbers: vec![] })
    }

    fn push(&mut self, message: u32, values: &[u8]) -> Result<(), String> {
        match &mut self.rows {
            WriterRows::Avro(rows) => rows.push(values)?,
            WriterRows::Protobuf(rows) => rows.push(values)?,
        }
        self.numbers.push(u64::from(message) + 1);
        Ok(())
    }

    fn finish(&mut self, refuser: &Refuser) -> Result<RecordBatch, ConnectorError> {
        let (batch, mapping): (_, &Mapping) = match &mut self.rows {
            WriterRows::Avro(rows) => (rows.finish(), rows.mapping()),
            WriterRows::Protobuf(rows) => (rows.finish(), rows.mapping()),
        };
        let batch = batch.map_err(|error| rows::unfit(INPUT, &error))?;
        mapping.rows(refuser, &batch, INPUT, &std::mem::take(&mut self.numbers))
    }
}

/// A message that is no row.
pub(super) struct RefusedMessage {
    pub(super) message: u32,
    pub(super) reason: String,
    pub(super) value: Vec<u8>,
}

/// How long a thread that waits for a schema is asleep at most.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A thread that waits.
struct WokenThread(Thread);

impl WokenThread {
    fn of_this() -> Self {
        Self(std::thread::current())
    }
}

impl Wake for WokenThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The schema that a message names: its number, and the place of its type.
type Named = (u32, Vec<usize>);

/// Messages that are no text becoming rows.
pub(super) struct TypedMessages {
    format: TypedFormat,
    refuser: Refuser,
    /// That of the table's options.
    given: Option<Writer>,
    /// Those that messages have named; `Err`: why their messages are no rows.
    named: HashMap<Named, Result<Writer, String>>,
    /// Those that the registry does not know, for now.
    unknown: Vec<Named>,
    /// Messages whose schema has not come.
    held: Vec<(u32, Vec<u8>)>,
    waker: Waker,
}

impl TypedMessages {
    pub(super) fn new(format: TypedFormat, refuser: Refuser) -> Self {
        // It was made before, when the table was looked at.
        let given = Writer::given(&format, &refuser.target).ok().flatten();
        let waker = Waker::noop().clone();
        Self { format, refuser, given, named: HashMap::new(), unknown: vec![], held: vec![], waker }
    }

    pub(super) fn wakes(&mut self, waker: &Waker) {
        self.waker = waker.clone();
    }

    /// Whether messages wait for their schema.
    pub(super) fn is_waiting(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes a message. Gives why it is no row, if that is so.
    ///
    /// # Errors
    /// When the registry does not answer for too long.
    pub(super) fn push(
        &mut self,
        message: u32,
        value: &[u8],
    ) -> Result<Option<String>, ConnectorError> {
        if let Some(given) = &mut self.given {
            return Ok(given.push(message, value).err());
        }
        let (named, values) = match self.named_by(value) {
            Ok(named) => named,
            Err(reason) => return Ok(Some(reason)),
        };
        if !self.named.contains_key(&named) {
            let Some(registry) = self.format.registry() else { return Ok(None) };
            let lookup = registry.look(named.0, &self.waker)?;
            if !self.learn(&named, lookup) {
                self.held.push((message, value.to_vec()));
                return Ok(None);
            }
        }
        Ok(match self.named.get_mut(&named) {
            Some(Ok(writer)) => writer.push(message, values).err(),
            Some(Err(reason)) => Some(reason.clone()),
            None => None,
        })
    }

    /// Tries the messages that wait once more; gives those that are no rows.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub(super) fn retry(&mut self) -> Result<Vec<RefusedMessage>, ConnectorError> {
        let mut refused = vec![];
        for (message, value) in std::mem::take(&mut self.held) {
            if let Some(reason) = self.push(message, &value)? {
                refused.push(RefusedMessage { message, reason, value });
            }
        }
        Ok(refused)
    }

    /// Waits until no message does; gives those that are no rows.
    ///
    /// # Errors
    /// As for [`push`](Self::push).
    pub(super) fn wait(&mut self) -> Result<Vec<RefusedMessage>, ConnectorError> {
        let own = std::mem::replace(&mut self.waker, Arc::new(WokenThread::of_this()).into());
        let mut refused = vec![];
        let waited = loop {
            match self.retry() {
                Ok(more) => refused.extend(more),
                Err(error) => break Err(error),
            }
            if self.held.is_empty() {
                break Ok(refused);
            }
            // To look once more costs little, where a call of the waker was for another thread.
            std::thread::park_timeout(LOOK_AGAIN);
        };
        self.waker = own;
        waited
    }

    /// The schema of a message, and its values.
    fn named_by<'v>(&self, value: &'v [u8]) -> Result<(Named, &'v [u8]), String> {
        let head = value.split_first_chunk::<5>();
        let Some(([0, id @ ..], mut rest)) = head else {
            return Err("it does not begin with 0 and the number of a schema".into());
        };
        let id = u32::from_be_bytes(*id);
        let places = match &self.format {
            TypedFormat::RegisteredProtobuf { .. } => places(&mut rest)?,
            _ => vec![],
        };
        Ok(((id, places), rest))
    }

    /// Takes what a registry says; `false`: it has not said it yet.
    fn learn(&mut self, named: &Named, lookup: SchemaLookup) -> bool {
        let (id, places) = named;
        let writer = match lookup {
            SchemaLookup::Pending => return false,
            SchemaLookup::Unknown(reason) => {
                self.unknown.push(named.clone());
                Err(reason)
            }
            SchemaLookup::Found(schema) => {
                let target = &self.refuser.target;
                Writer::registered(&self.format, target, (*id, places), &schema)
            }
        };
        self.named.insert(named.clone(), writer);
        true
    }

    /// The rows of the messages, by their schemas.
    ///
    /// # Errors
    /// When they cannot be made.
    pub(super) fn finish(&mut self) -> Result<Vec<RecordBatch>, ConnectorError> {
        let named = self.named.values_mut().filter_map(|writer| writer.as_mut().ok());
        let writers = self.given.iter_mut().chain(named);
        let writers = writers.filter(|writer| !writer.numbers.is_empty());
        let batches = writers.map(|writer| writer.finish(&self.refuser)).collect();
        // They may be known by the next batch: the registry's cache says when it is asked again.
        for named in self.unknown.drain(..) {
            self.named.remove(&named);
        }
        if self.named.len() > WRITERS_MAX {
            self.named.clear();
        }
        batches
    }
}
