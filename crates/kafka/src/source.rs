//! Topics as a source: a split for each partition.
//!
//! Nodes may hear of a topic, or of a partition, at different times. Which worker reads a partition
//! follows from its topic and its number alone, so that the list of that worker's process counts:
//! each partition is read by one worker, whatever the others know. The partitions of one topic by
//! its name are dealt out by their numbers.
//!
//! The partitions and where they begin are found when the splits are first asked for: before any
//! row flows, where a wait for brokers holds up nobody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use arrow::datatypes::SchemaRef;
use connectors::messages::MessageFormat;
use connectors::{fnv, refuse};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::position::refused;
use dataflow::source::{NewSplits, Position, ReaderContext, Source, Split, SplitReader};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::client::{
    Discovery, Listener, PartitionId, SERVED, SharedConsumer, ask, check_count, partitions_of,
    without_errors,
};
use crate::columns::TopicColumns;
use crate::errors::{failed, final_error, unexpected};
use crate::keys::KeyDecoder;
use crate::queue::{TAKEN_MAX, TAKEN_PROPERTY};
use crate::reader::{PartitionRange, PartitionReader, PartitionSettings};
use crate::settings::{SourceSettings, Startup, Topic, TopicChoice};

/// Kilobytes that a consumer fetches ahead, of all its partitions.
const AHEAD_KB: usize = 65_536;

/// The same of one partition, at least and at most.
const AHEAD_OF_PARTITION_KB: [usize; 2] = [512, 16_384];

/// Milliseconds until the client looks again whether a partition of which it has fetched enough has
/// room. It waits for a second by itself, in which a job reads all that was fetched ahead.
const FULL_QUEUE_MS: usize = 10;

/// Milliseconds from one look at the ends of partitions to the next: at least, and for each of
/// them, since the client writes a kilobyte for each, and it is read.
const STATISTICS_MS_MIN: usize = 1_000;
const STATISTICS_MS_EACH: usize = 10;

/// The topics of a table that is read.
pub(crate) struct KafkaSource {
    topic: Topic,
    choice: TopicChoice,
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
type Found = BTreeMap<PartitionId, PartitionRange>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KafkaSource {
    pub(crate) fn new(
        table: &TableDef,
        projection: &[usize],
        (topic, choice): (Topic, TopicChoice),
        settings: SourceSettings,
    ) -> Result<Self, ConnectorError> {
        let (columns, values) = TopicColumns::new(table, projection, &topic.name)?;
        let format = MessageFormat::new(&values.table, &values.projection)?;
        let (found, shared, table) = (Mutex::default(), Mutex::default(), table.name.clone());
        let key_format = values.key;
        Ok(Self { topic, choice, settings, columns, format, key_format, table, found, shared })
    }

    /// A client that reads.
    fn consumer(&self, partitions: usize) -> Result<BaseConsumer<Listener>, ConnectorError> {
        let mut config: ClientConfig = self.topic.config.clone();
        let [least, most] = AHEAD_OF_PARTITION_KB;
        let ahead = (AHEAD_KB / partitions.max(1)).clamp(least, most);
        let statistics = STATISTICS_MS_MIN.max(partitions * STATISTICS_MS_EACH);
        for (property, default) in [
            ("group.id", "millstream".into()),
            ("queued.max.messages.kbytes", ahead.to_string()),
            ("fetch.queue.backoff.ms", FULL_QUEUE_MS.to_string()),
            ("statistics.interval.ms", statistics.to_string()),
        ] {
            if config.get(property).is_none() {
                config.set(property, default);
            }
        }
        config.set("enable.auto.commit", "false");
        config.set("enable.auto.offset.store", "false");
        config.set("enable.partition.eof", "true");
        config.set("auto.offset.reset", "error");
        config.set(TAKEN_PROPERTY, TAKEN_MAX.to_string());
        let listener = Listener::new(&self.topic);
        let consumer = BaseConsumer::from_config_and_context(&config, listener);
        consumer.map_err(|error| unexpected(&self.place(), &error))
    }

    fn place(&self) -> String {
        format!("kafka {}", self.topic.title())
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
        let partitions = ask(topic, timeout, &listener, events, |wait| {
            partitions_of(&consumer, &self.choice, wait)
        })?;
        check_count(&self.place(), partitions.len())?;
        if partitions.is_empty() && self.settings.discovery.is_none() {
            let hint = "check 'topic-pattern': it has to match the whole name of a topic";
            return Err(failed(self.place(), "no topic matches", hint));
        }
        let ends = |(topic_name, partition): &PartitionId| {
            ask(topic, timeout, &listener, events, |wait| {
                consumer.fetch_watermarks(topic_name, *partition, wait)
            })
        };
        let given = self.given(&consumer, &partitions)?;
        let mut found = Found::new();
        for partition in partitions {
            let (least, end) = ends(&partition)?;
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
        partitions: &[PartitionId],
    ) -> Result<BTreeMap<PartitionId, i64>, ConnectorError> {
        let topic = &self.topic;
        let list = |offset: Offset| {
            let mut list = TopicPartitionList::new();
            for (name, partition) in partitions {
                list.add_partition_offset(name, *partition, offset)?;
            }
            Ok::<_, KafkaError>(list)
        };
        let listener = consumer.context().as_ref().clone();
        let events = || while consumer.poll(SERVED).is_some() {};
        let asked = match &self.settings.startup {
            Startup::Earliest | Startup::Latest => return Ok(BTreeMap::new()),
            Startup::Specific(offsets) => {
                // They are those of one topic.
                let own = |number: i32| (topic.name.clone(), number);
                let is_unknown = |number: &&i32| !partitions.contains(&own(**number));
                if let Some(unknown) = offsets.keys().find(is_unknown) {
                    let message = format!("the topic has no partition {unknown}");
                    let hint = format!("it has {}", partitions.len());
                    return Err(refuse("scan.startup.specific-offsets", message, Some(hint)));
                }
                return Ok(offsets.iter().map(|(number, at)| (own(*number), *at)).collect());
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
            Offset::Offset(offset) => Some(((of.topic().to_owned(), of.partition()), offset)),
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
        let consumer = self.consumer(found.len())?;
        let known = found.keys().cloned().collect();
        let interval = self.settings.discovery;
        let discovery = Discovery { choice: self.choice.clone(), known, interval };
        let started = Arc::new(SharedConsumer::start(consumer, &self.topic, discovery)?);
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
        let split = |(number, (of, place)): (usize, (&PartitionId, &PartitionRange))| Split {
            number,
            rows: place.end.map(|end| end.saturating_sub(place.next).max(0).cast_unsigned()),
            ..self.choice.split(&self.topic, of)
        };
        Ok(found.iter().enumerate().map(split).collect())
    }

    fn new_splits(&self, waker: Waker) -> Result<Option<Box<dyn NewSplits>>, ConnectorError> {
        if self.settings.discovery.is_none() {
            return Ok(None);
        }
        let shared = self.shared()?;
        shared.wakes(waker);
        let (topic, choice) = (self.topic.clone(), self.choice.clone());
        Ok(Some(Box::new(NewPartitions { shared, topic, choice, announced: 0 })))
    }

    fn owner_of(&self, split: &str) -> Option<u64> {
        self.choice.owner(&partition_of(split)?)
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
        Some(format!("{} {startup}{end}", self.topic.title()))
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let found = self.found()?;
        let from_its_beginning = Some(PartitionRange { next: 0, end: None });
        let begin = |of: &PartitionId| {
            if split.is_new { from_its_beginning } else { found.get(of).copied() }
        };
        let own = partition_of(&split.name).filter(|(name, _)| self.choice.has(name));
        let own = own.and_then(|of| begin(&of).map(|begin| (of, begin)));
        let Some(((name, partition), begin)) = own else {
            let error = final_error(&split.name, Code::UnknownPartition, "");
            return Err(error.unwrap_or_else(|| refused(&split.name, "it is not there".into())));
        };
        let place = match from {
            Some(from) => PartitionRange::of(from, &split.name, self.settings.bounded)?,
            None => begin,
        };
        let reading = PartitionSettings {
            topic: self.topic.named(&name),
            table: self.table.clone(),
            partition,
            columns: self.columns.of_topic(&name),
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

impl TopicChoice {
    /// The owner of a partition, where processes may know others of several topics.
    fn owner(&self, (name, partition): &PartitionId) -> Option<u64> {
        let owner = (fnv(name.as_bytes()) >> 1).wrapping_add(u64::from(partition.unsigned_abs()));
        (!self.is_one()).then_some(owner)
    }

    /// The split of a partition.
    fn split(&self, topic: &Topic, of: &PartitionId) -> Split {
        let (owner, (name, partition)) = (self.owner(of), of);
        Split { name: topic.named(name).partition(*partition), owner, ..Split::default() }
    }
}

/// The partition of a split, by its name.
fn partition_of(split: &str) -> Option<PartitionId> {
    let (name, number) = split.strip_suffix(']')?.rsplit_once('[')?;
    Some((name.to_owned(), number.parse().ok()?))
}

/// The partitions that come while topics are read.
struct NewPartitions {
    shared: Arc<SharedConsumer>,
    topic: Topic,
    choice: TopicChoice,
    /// The number of those that were given.
    announced: usize,
}

impl NewSplits for NewPartitions {
    fn poll(&mut self) -> Result<Vec<Split>, ConnectorError> {
        if let Some(error) = self.shared.health.failed() {
            return Err(error);
        }
        let new = self.shared.found_since(self.announced);
        self.announced += new.len();
        Ok(new.iter().map(|of| self.choice.split(&self.topic, of)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_split_follows_from_its_name() {
        let several = TopicChoice::Names(vec!["a".into(), "b-1.c".into()]);
        for (name, partition) in [("a", 0), ("b-1.c", 7), ("a", i32::MAX)] {
            let of = (name.to_owned(), partition);
            assert_eq!(partition_of(&format!("{name}[{partition}]")), Some(of.clone()));
            assert!(several.owner(&of).is_some());
            assert_eq!(TopicChoice::Names(vec![name.into()]).owner(&of), None);
        }
        assert_ne!(several.owner(&("a".into(), 0)), several.owner(&("a".into(), 1)));
        for split in ["", "a", "a[", "a[x]", "[1", "a[1]b"] {
            assert_eq!(partition_of(split), None, "{split}");
        }
    }
}
