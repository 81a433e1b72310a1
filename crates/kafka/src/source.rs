//! A topic as a source: a split for each partition.
//!
//! The partitions and where they begin are found when the splits are first asked for: before any
//! row flows, where a wait for brokers holds up nobody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use arrow::datatypes::SchemaRef;
use connectors::messages::MessageFormat;
use connectors::refuse;
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{NewSplits, Position, ReaderContext, Source, Split, SplitReader};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::client::{Listener, SERVED, SharedConsumer, ask, without_errors};
use crate::columns::TopicColumns;
use crate::errors::{final_error, unexpected};
use crate::keys::KeyDecoder;
use crate::reader::{PartitionRange, PartitionReader, PartitionSettings};
use crate::settings::{SourceSettings, Startup, Topic};

/// Kilobytes that a consumer fetches ahead, of all its partitions.
const AHEAD_KB: usize = 65_536;

/// The same of one partition, at least and at most.
const AHEAD_OF_PARTITION_KB: [usize; 2] = [512, 16_384];

/// Milliseconds from one look at the ends of partitions to the next: at least, and for each of
/// them, since the client writes a kilobyte for each, and it is read.
const STATISTICS_MS_MIN: usize = 1_000;
const STATISTICS_MS_EACH: usize = 10;

/// A topic that is read.
pub(crate) struct KafkaSource {
    topic: Topic,
    settings: SourceSettings,
    columns: TopicColumns,
    format: MessageFormat,
    key_format: Option<MessageFormat>,
    table: String,
    /// What was found, or what is wrong: brokers that cannot be reached are waited for once.
    found: Mutex<Option<Result<Arc<Found>, ConnectorError>>>,
    /// The consumer that the readers of this process share.
    shared: Mutex<Weak<SharedConsumer>>,
}

/// The partitions, with the first offset of each that is read, and the first that is not.
type Found = BTreeMap<i32, PartitionRange>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KafkaSource {
    pub(crate) fn new(
        table: &TableDef,
        projection: &[usize],
        topic: Topic,
        settings: SourceSettings,
    ) -> Result<Self, ConnectorError> {
        let (columns, values) = TopicColumns::new(table, projection, &topic.name)?;
        let format = MessageFormat::new(&values.table, &values.projection)?;
        let (found, shared, table) = (Mutex::default(), Mutex::default(), table.name.clone());
        let key_format = values.key;
        Ok(Self { topic, settings, columns, format, key_format, table, found, shared })
    }

    /// A client that reads.
    fn consumer(&self, partitions: usize) -> Result<BaseConsumer<Listener>, ConnectorError> {
        let mut config: ClientConfig = self.topic.config.clone();
        let [least, most] = AHEAD_OF_PARTITION_KB;
        let ahead = (AHEAD_KB / partitions.max(1)).clamp(least, most);
        if config.get("group.id").is_none() {
            config.set("group.id", "millstream");
        }
        if config.get("queued.max.messages.kbytes").is_none() {
            config.set("queued.max.messages.kbytes", ahead.to_string());
        }
        if config.get("statistics.interval.ms").is_none() {
            let interval = STATISTICS_MS_MIN.max(partitions * STATISTICS_MS_EACH);
            config.set("statistics.interval.ms", interval.to_string());
        }
        config.set("enable.auto.commit", "false");
        config.set("enable.auto.offset.store", "false");
        config.set("enable.partition.eof", "true");
        config.set("auto.offset.reset", "error");
        let listener = Listener::new(&self.topic);
        let consumer = BaseConsumer::from_config_and_context(&config, listener);
        consumer.map_err(|error| unexpected(&self.place(), &error))
    }

    fn place(&self) -> String {
        format!("kafka topic '{}'", self.topic.name)
    }

    /// The partitions; brokers are asked once.
    fn found(&self) -> Result<Arc<Found>, ConnectorError> {
        let mut found = lock(&self.found);
        found.get_or_insert_with(|| self.find().map(Arc::new)).clone()
    }

    fn find(&self) -> Result<Found, ConnectorError> {
        let consumer = self.consumer(1)?;
        let listener = consumer.context().as_ref().clone();
        let events = || while consumer.poll(SERVED).is_some() {};
        let (topic, timeout) = (&self.topic, self.topic.start_timeout);
        let name = topic.name.as_str();
        let partitions = ask(topic, timeout, &listener, events, |wait| {
            let metadata = consumer.fetch_metadata(Some(name), wait)?;
            let own = metadata.topics().iter().find(|own| own.name() == name);
            let own = own.ok_or(KafkaError::MetadataFetch(Code::UnknownTopicOrPartition))?;
            if let Some(error) = own.error() {
                return Err(KafkaError::MetadataFetch(error.into()));
            }
            let mut partitions: Vec<i32> = own.partitions().iter().map(|of| of.id()).collect();
            partitions.sort_unstable();
            if partitions.is_empty() {
                return Err(KafkaError::MetadataFetch(Code::LeaderNotAvailable));
            }
            Ok(partitions)
        })?;
        let ends = |partition: i32| {
            ask(topic, timeout, &listener, events, |wait| {
                consumer.fetch_watermarks(name, partition, wait)
            })
        };
        let given = self.given(&consumer, &partitions)?;
        let mut found = Found::new();
        for partition in partitions {
            let (least, end) = ends(partition)?;
            let next = match &self.settings.startup {
                Startup::Earliest => least,
                Startup::Latest => end,
                Startup::Timestamp(_) => given.get(&partition).copied().unwrap_or(end),
                Startup::Group { else_latest } => {
                    let reset = if *else_latest { end } else { least };
                    given.get(&partition).copied().unwrap_or(reset)
                }
                Startup::Specific(_) => given.get(&partition).copied().unwrap_or(least),
            };
            let end = self.settings.bounded.then_some(end);
            found.insert(partition, PartitionRange { next, end });
        }
        Ok(found)
    }

    /// The offsets that the mode names or that the brokers know for it, where there are such.
    fn given(
        &self,
        consumer: &BaseConsumer<Listener>,
        partitions: &[i32],
    ) -> Result<BTreeMap<i32, i64>, ConnectorError> {
        let (topic, name) = (&self.topic, self.topic.name.as_str());
        let list = |offset: Offset| {
            let mut list = TopicPartitionList::new();
            for partition in partitions {
                list.add_partition_offset(name, *partition, offset)?;
            }
            Ok::<_, KafkaError>(list)
        };
        let listener = consumer.context().as_ref().clone();
        let events = || while consumer.poll(SERVED).is_some() {};
        let asked = match &self.settings.startup {
            Startup::Earliest | Startup::Latest => return Ok(BTreeMap::new()),
            Startup::Specific(offsets) => {
                if let Some(unknown) = offsets.keys().find(|of| !partitions.contains(of)) {
                    let message = format!("the topic has no partition {unknown}");
                    let hint = format!("it has {}", partitions.len());
                    return Err(refuse("scan.startup.specific-offsets", message, Some(hint)));
                }
                return Ok(offsets.clone());
            }
            Startup::Group { .. } => ask(topic, topic.start_timeout, &listener, events, |wait| {
                without_errors(consumer.committed_offsets(list(Offset::Invalid)?, wait)?)
            })?,
            Startup::Timestamp(millis) => {
                ask(topic, topic.start_timeout, &listener, events, |wait| {
                    let begin = list(Offset::Offset(*millis))?;
                    without_errors(consumer.offsets_for_times(begin, wait)?)
                })?
            }
        };
        let known = asked.elements().into_iter().filter_map(|of| match of.offset() {
            Offset::Offset(offset) => Some((of.partition(), offset)),
            _ => None,
        });
        Ok(known.collect())
    }

    fn shared(&self) -> Result<Arc<SharedConsumer>, ConnectorError> {
        let mut shared = lock(&self.shared);
        if let Some(shared) = shared.upgrade() {
            return Ok(shared);
        }
        let found = self.found()?;
        let known = found.keys().next_back().map_or(0, |last| last + 1);
        let (consumer, discovery) = (self.consumer(found.len())?, self.settings.discovery);
        let started = Arc::new(SharedConsumer::start(consumer, &self.topic, known, discovery)?);
        *shared = Arc::downgrade(&started);
        Ok(started)
    }
}

impl Source for KafkaSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.columns.schema)
    }

    fn bounded(&self) -> bool {
        self.settings.bounded
    }

    fn repeats(&self) -> bool {
        false
    }

    fn replays(&self) -> bool {
        true
    }

    fn splits(&self, _: u32, _: Option<usize>) -> Result<Vec<Split>, ConnectorError> {
        let found = self.found()?;
        let split = |(number, (partition, place)): (usize, (&i32, &PartitionRange))| Split {
            number,
            name: self.topic.partition(*partition),
            rows: place.end.map(|end| end.saturating_sub(place.next).max(0).cast_unsigned()),
            ..Split::default()
        };
        Ok(found.iter().enumerate().map(split).collect())
    }

    fn new_splits(&self, waker: Waker) -> Result<Option<Box<dyn NewSplits>>, ConnectorError> {
        if self.settings.discovery.is_none() {
            return Ok(None);
        }
        let shared = self.shared()?;
        shared.wakes(waker);
        let known = self.found()?.keys().next_back().map_or(0, |last| last + 1);
        Ok(Some(Box::new(NewPartitions { shared, topic: self.topic.clone(), known })))
    }

    fn describe(&self) -> Option<String> {
        let startup = match &self.settings.startup {
            Startup::Earliest => "from the earliest offsets".into(),
            Startup::Latest => "from the latest offsets".into(),
            Startup::Group { .. } => "from the offsets of its group".into(),
            Startup::Timestamp(millis) => format!("from timestamp {millis} on"),
            Startup::Specific(_) => "from specific offsets".into(),
        };
        let end = if self.settings.bounded { " to those of the start" } else { "" };
        Some(format!("topic '{}' {startup}{end}", self.topic.name))
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let found = self.found()?;
        let number = split.name.strip_prefix(&self.topic.name);
        let number = number.and_then(|of| of.strip_prefix('[')?.strip_suffix(']')?.parse().ok());
        let from_its_beginning = Some(PartitionRange { next: 0, end: None });
        let begin = |number: i32| {
            if split.is_new { from_its_beginning } else { found.get(&number).copied() }
        };
        let own = number.and_then(|number: i32| Some((number, begin(number)?)));
        let Some((partition, begin)) = own else {
            let error = final_error(&split.name, Code::UnknownPartition, "");
            return Err(error.unwrap_or_else(|| refused(&split.name, "it is not there".into())));
        };
        let place = match from {
            Some(from) => PartitionRange::of(from, &split.name, self.settings.bounded)?,
            None => begin,
        };
        let reading = PartitionSettings {
            topic: self.topic.clone(),
            table: self.table.clone(),
            partition,
            columns: self.columns.clone(),
            skips_gaps: self.settings.skips_gaps,
            // What is deleted before it was read first is no gap.
            begins: from.is_none() && (split.is_new || self.settings.startup == Startup::Earliest),
        };
        let shared = if place.is_at_end() { None } else { Some(self.shared()?) };
        let keys = self.key_format.as_ref();
        let keys = keys.map(|format| KeyDecoder::new(format, &self.table, &context.bad));
        let decoders = (self.format.decoder(&context.bad), keys);
        Ok(Box::new(PartitionReader::open(reading, place, shared, decoders, context)?))
    }
}

/// The partitions that a topic gets while it is read.
struct NewPartitions {
    shared: Arc<SharedConsumer>,
    topic: Topic,
    /// The first that was not given.
    known: i32,
}

impl NewSplits for NewPartitions {
    fn poll(&mut self) -> Result<Vec<Split>, ConnectorError> {
        let partitions = self.shared.partitions();
        let new = self.known..partitions;
        self.known = self.known.max(partitions);
        let split = |partition| Split { name: self.topic.partition(partition), ..Split::default() };
        Ok(new.map(split).collect())
    }
}
