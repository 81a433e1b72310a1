//! A topic as a sink.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use connectors::{StagedFormat, StagedStream, fnv};
use dataflow::error::ConnectorError;
use dataflow::sink::{
    ExclusiveTarget, Placement, Publishing, Sink, SinkVisibility, SinkWriter, WriterContext,
};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{Producer, ThreadedProducer};

use crate::client::{Listener, ask};
use crate::errors::{failed, unexpected};
use crate::settings::{Partitioning, SinkSettings, TRANSACTIONAL_ID, Topic};
use crate::staged::{StagingWriter, staged_format};
use crate::transaction::{Publication, Transactions};
use crate::writer::{Chooser, Deliveries, KafkaEncoder, ProducerListener, StreamingWriter};

/// Kilobytes of messages that the client of a writer keeps at most, and their number.
const QUEUE_KB: &str = "32768";
const QUEUE_MESSAGES: &str = "100000";

/// Milliseconds of the greatest timeout of a message that the client takes.
const MESSAGE_TIMEOUT_MAX: u128 = i32::MAX as u128;

/// The partitioner of the client of Java.
const PARTITIONER: &str = "murmur2_random";

/// A topic that is written.
pub(crate) struct KafkaSink {
    topic: Topic,
    settings: SinkSettings,
    encoder: KafkaEncoder,
    transactions: Option<Transactions>,
}

impl KafkaSink {
    pub(crate) fn new(mut topic: Topic, settings: SinkSettings, encoder: KafkaEncoder) -> Self {
        // The client takes 0 as no timeout at all.
        let timeout = topic.retry_timeout.as_millis().clamp(1, MESSAGE_TIMEOUT_MAX);
        let timeout = timeout.to_string();
        let defaults = [
            ("partitioner", PARTITIONER),
            ("queue.buffering.max.kbytes", QUEUE_KB),
            ("queue.buffering.max.messages", QUEUE_MESSAGES),
            ("message.timeout.ms", timeout.as_str()),
            ("enable.idempotence", "true"),
        ];
        for (key, value) in defaults {
            if topic.config.get(key).is_none() {
                topic.config.set(key, value);
            }
        }
        let id = settings.transactional_id.clone();
        let transactions = id.map(|id| {
            let mut topic = topic.clone();
            // The client takes no timeout of messages beyond that of their transaction.
            topic.config.remove("message.timeout.ms");
            Transactions::new(topic, id)
        });
        Self { topic, settings, encoder, transactions }
    }

    /// A producer, and the number of partitions.
    fn producer(
        &self,
        waker: &Waker,
    ) -> Result<(ThreadedProducer<ProducerListener>, Arc<Deliveries>, i32), ConnectorError> {
        let listener = Listener::new(&self.topic);
        let deliveries = Arc::new(Deliveries::new(listener.clone(), waker.clone()));
        let context = ProducerListener(Arc::clone(&deliveries));
        let producer = ThreadedProducer::from_config_and_context(&self.topic.config, context);
        let producer = producer.map_err(|error| unexpected(&listener.place, &error))?;
        let name = self.topic.name.as_str();
        let partitions = ask(
            &self.topic,
            self.topic.start_timeout,
            &listener,
            || {},
            |wait| {
                let metadata = producer.client().fetch_metadata(Some(name), wait)?;
                let own = metadata.topics().iter().find(|own| own.name() == name);
                let own = own.ok_or(KafkaError::MetadataFetch(Code::UnknownTopicOrPartition))?;
                match own.error() {
                    Some(error) => Err(KafkaError::MetadataFetch(error.into())),
                    None => Ok(own.partitions().len() as i32),
                }
            },
        )?;
        Ok((producer, deliveries, partitions.max(1)))
    }

    /// The format of the messages that wait for a checkpoint.
    fn staged_format(&self) -> StagedFormat {
        staged_format(&self.topic.name, self.encoder.parts())
    }

    fn chooser(&self, worker: u32, partitions: i32) -> Chooser {
        let own = (worker % partitions.cast_unsigned()).cast_signed();
        match self.settings.partitioning {
            Partitioning::ByKey => Chooser::Client,
            Partitioning::Fixed => Chooser::Fixed(own),
            Partitioning::RoundRobin => Chooser::RoundRobin(own, partitions),
        }
    }
}

impl Sink for KafkaSink {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    /// Two sinks of one name would count each other's publications as their own.
    fn replaces(&self) -> Option<ExclusiveTarget> {
        let own = self.transactions.as_ref()?;
        let place = format!("kafka {}, transactions '{}'", self.topic.servers, own.id);
        Some(ExclusiveTarget { place, option: Some(TRANSACTIONAL_ID) })
    }

    fn staging(&self) -> SinkVisibility {
        match self.transactions {
            Some(_) => SinkVisibility::ByCheckpoint,
            None => SinkVisibility::AsTheyCome,
        }
    }

    fn stages_rows(&self) -> bool {
        self.transactions.is_some()
    }

    fn mark(&self) -> Result<Option<[u64; 2]>, ConnectorError> {
        self.transactions.as_ref().map(|own| Ok([own.count()?, 0])).transpose()
    }

    fn publish(&self, staged: &[Vec<u8>], how: Publishing) -> Result<(), ConnectorError> {
        let Some(transactions) = &self.transactions else { return Ok(()) };
        let (mut is_empty, mut checksum) = (true, 0_u64);
        let format = self.staged_format();
        for staged in staged {
            is_empty &= format.read(staged)?.1.is_empty();
            checksum = checksum.wrapping_add(fnv(staged));
        }
        if is_empty {
            return Ok(());
        }
        let Some([before, _]) = how.mark else {
            let message = "the checkpoint has no marker of it";
            return Err(failed(&self.topic.name, message, "begin anew: --from none"));
        };
        let Publishing { again, last, .. } = how;
        transactions.publish(&Publication { staged, format, checksum, again, last }, before)
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let (producer, deliveries, partitions) = self.producer(&context.waker)?;
        let chooser = self.chooser(context.worker, partitions);
        let (topic, encoder) = (self.topic.clone(), self.encoder.clone());
        // A registry is asked early: there is no room until it has answered.
        encoder.is_ready(&context.waker)?;
        if self.transactions.is_none() {
            let (waiting, failed) = (VecDeque::new(), None);
            let writer =
                StreamingWriter { topic, encoder, chooser, producer, deliveries, waiting, failed };
            return Ok(Box::new(writer));
        }
        let Some(staging) = &context.staging else {
            return Err(connectors::refuse(
                "sink.delivery-guarantee",
                "'exactly-once' is a matter of checkpoints, and the job keeps none",
                Some("run it with --state DIR, or write 'at-least-once'".into()),
            ));
        };
        let rows = StagedStream::new(self.staged_format(), staging.run.job);
        let waker = context.waker.clone();
        Ok(Box::new(StagingWriter { encoder, chooser, rows, waker }))
    }
}
