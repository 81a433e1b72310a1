//! Publications: the messages of a checkpoint and a marker, in one transaction.
//!
//! ```text
//! a producer begins (fences whoever had the name) ─▶ marker? ─▶ messages, marker ─▶ commit
//! ```
//!
//! The marker is an offset of a group that nobody is in, and is written by the transaction itself.
//! It counts the publications, and its note has a checksum of the last one, of its messages and its
//! job. The record of a checkpoint has the count before its own: a run that goes on and finds the
//! next count there, with its own checksum, knows that its messages are in the topic.
//!
//! **Each publication has a producer of its own.** The request that ends a transaction names the
//! producer and its epoch, and not the transaction. One that arrives late, when the same producer
//! has begun the next transaction, would commit the half of it that has arrived. The epoch of a
//! new producer is another one, and the broker refuses the late request.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use dataflow::error::ConnectorError;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::{Offset, TopicPartitionList};

use crate::client::{Listener, SERVED, ask};
use crate::errors::{code_of, failed, unexpected};
use crate::settings::Topic;
use crate::writer::{Deliveries, OutMessage, ProducerListener};

/// How long one step of a transaction may take before it is asked again.
const STEP: Duration = Duration::from_secs(10);

/// How long a publication is tried with one producer after another has taken the name.
const FENCED_MAX: u32 = 3;

/// A topic that is written by transactions of one name.
pub(crate) struct Transactions {
    topic: Topic,
    id: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A producer that has begun and published nothing yet.
    begun: Option<Begun>,
    /// The count since then, if it was asked for.
    count: Option<u64>,
    /// A consumer in the name of the marker's group; it reads nothing.
    group: Option<BaseConsumer<Listener>>,
}

/// What the brokers have of the publications.
struct Marker {
    count: u64,
    note: String,
}

/// The messages of a checkpoint.
pub(crate) struct Publication {
    pub(crate) messages: Vec<(OutMessage, Option<i32>)>,
    /// A checksum of them and of their job, whatever the order of the workers' parts.
    pub(crate) checksum: u64,
}

struct Begun {
    producer: BaseProducer<ProducerListener>,
    deliveries: Arc<Deliveries>,
}

impl Transactions {
    pub(crate) fn new(topic: Topic, id: String) -> Self {
        Self { topic, id, state: Mutex::default() }
    }

    fn place(&self) -> String {
        format!("kafka topic '{}', transactions '{}'", self.topic.name, self.id)
    }

    /// The number of publications so far. Nobody else publishes by this name from here on: an
    /// open transaction of a run before is given up.
    ///
    /// # Errors
    /// When the brokers do not tell.
    pub(crate) fn count(&self) -> Result<u64, ConnectorError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = state.count {
            return Ok(count);
        }
        if state.begun.is_none() {
            state.begun = Some(self.begin()?);
        }
        let count = self.marker(&mut state)?.count;
        state.count = Some(count);
        Ok(count)
    }

    /// Publishes messages, unless they were: `before` is the count before them.
    ///
    /// # Errors
    /// When they cannot be published, or nobody knows whether they were.
    pub(crate) fn publish(
        &self,
        publication: &Publication,
        before: u64,
    ) -> Result<(), ConnectorError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, mut fenced) = (Instant::now(), 0);
        loop {
            state.count = None;
            let begun = state.begun.take().map_or_else(|| self.begin(), Ok)?;
            let marker = self.marker(&mut state)?;
            if marker.count == before + 1 && marker.note == note_of(before + 1, publication) {
                return Ok(());
            }
            if marker.count != before {
                return Err(self.changed(before, marker.count));
            }
            let error = match self.transact(&begun, &mut state, publication, before + 1) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if let Some(error) = begun.deliveries.failure(&self.topic)
                && begun.deliveries.is_final()
            {
                return Err(error);
            }
            let is_fenced = matches!(
                code_of(&error),
                Some(Code::ProducerFenced | Code::Fenced | Code::InvalidProducerEpoch)
            );
            fenced += u32::from(is_fenced);
            tracing::info!(target: "kafka", %error, fenced, "publishes again");
            if fenced > FENCED_MAX {
                let message = "another run or another sink writes by the same name";
                let hint = "end the other one, or give each sink a name of its own: \
                            'sink.transactional-id-prefix'";
                return Err(failed(self.place(), message, hint));
            }
            if since.elapsed() > self.topic.retry_timeout {
                return Err(unexpected(&self.place(), &error));
            }
            // Whatever became of the transaction: the next producer ends it, and asks the marker.
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A producer with an epoch of its own.
    fn begin(&self) -> Result<Begun, ConnectorError> {
        let listener = Listener::new(&self.topic);
        let mut config = self.topic.config.clone();
        config.set("transactional.id", &self.id);
        config.set("enable.idempotence", "true");
        let deliveries = Arc::new(Deliveries::new(listener.clone(), Waker::noop().clone()));
        let context = ProducerListener(Arc::clone(&deliveries));
        let producer = BaseProducer::from_config_and_context(&config, context);
        let producer = producer.map_err(|error| unexpected(&self.place(), &error))?;
        let poll = || producer.poll(SERVED);
        ask(&self.topic, self.topic.retry_timeout, &listener, poll, |wait| {
            producer.init_transactions(wait)
        })?;
        Ok(Begun { producer, deliveries })
    }

    fn transact(
        &self,
        Begun { producer, deliveries }: &Begun,
        state: &mut State,
        publication: &Publication,
        count: u64,
    ) -> Result<(), KafkaError> {
        producer.begin_transaction()?;
        for (message, partition) in &publication.messages {
            loop {
                let sent = deliveries.try_send(&self.topic, message, *partition, |record| {
                    producer.send(record).map_err(|(error, _)| error)
                })?;
                producer.poll(Duration::from_millis(if sent { 0 } else { 10 }));
                if sent {
                    break;
                }
            }
        }
        let group = self.group(state)?.group_metadata().ok_or(KafkaError::Canceled)?;
        let note = note_of(count, publication);
        let marker = self.marker_of(Offset::Offset(count.cast_signed()), &note)?;
        self.until(|| producer.send_offsets_to_transaction(&marker, &group, STEP))?;
        self.until(|| producer.commit_transaction(STEP))
    }

    /// Takes a step again as long as that may help.
    fn until(&self, mut step: impl FnMut() -> Result<(), KafkaError>) -> Result<(), KafkaError> {
        let since = Instant::now();
        loop {
            match step() {
                Err(KafkaError::Transaction(error))
                    if error.is_retriable() && since.elapsed() < self.topic.retry_timeout => {}
                done => return done,
            }
        }
    }

    /// The consumer of the marker's group. It is kept, since a new one has to find its broker.
    fn group<'a>(&self, state: &'a mut State) -> Result<&'a BaseConsumer<Listener>, KafkaError> {
        if state.group.is_none() {
            let mut config = self.topic.config.clone();
            config.set("group.id", &self.id);
            config.set("enable.auto.commit", "false");
            // Asks for offsets of transactions that have ended.
            config.set("isolation.level", "read_committed");
            let listener = Listener::new(&self.topic);
            state.group = Some(BaseConsumer::from_config_and_context(&config, listener)?);
        }
        state.group.as_ref().ok_or(KafkaError::Canceled)
    }

    fn marker_of(&self, offset: Offset, note: &str) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::new();
        let mut own = list.add_partition(&self.topic.name, 0);
        own.set_offset(offset)?;
        own.set_metadata(note);
        Ok(list)
    }

    fn marker(&self, state: &mut State) -> Result<Marker, ConnectorError> {
        let consumer = self.group(state).map_err(|error| unexpected(&self.place(), &error))?;
        let listener = consumer.context().as_ref().clone();
        let events = || while consumer.poll(SERVED).is_some() {};
        let timeout = self.topic.retry_timeout;
        let asked = ask(&self.topic, timeout, &listener, events, |wait| {
            let asked = consumer.committed_offsets(self.marker_of(Offset::Invalid, "")?, wait)?;
            asked.elements().iter().try_for_each(|own| own.error())?;
            Ok(asked)
        })?;
        let elements = asked.elements();
        let own = elements.first();
        match own.map(|own| own.offset()) {
            Some(Offset::Offset(count)) => {
                let note = own.map_or("", |own| own.metadata()).to_owned();
                Ok(Marker { count: count.cast_unsigned(), note })
            }
            Some(Offset::Invalid) | None => Ok(Marker { count: 0, note: String::new() }),
            Some(other) => {
                let message = format!("its marker is {other:?}");
                Err(failed(self.place(), message, "give the sink another name"))
            }
        }
    }

    /// Nobody knows whether the messages of a checkpoint are in the topic.
    fn changed(&self, before: u64, now: u64) -> ConnectorError {
        let message = match now {
            0 => format!(
                "its marker is gone, which counted {before} publications: nobody knows whether \
                 the rows of the last checkpoint are in the topic"
            ),
            _ => format!(
                "there were {before} publications by this name when the checkpoint was taken, \
                 and there are {now} now: another job writes by the same name"
            ),
        };
        let hint = "brokers forget the offsets of a group after offsets.retention.minutes: look \
                    into the topic, and begin anew, --from none, where its rows end";
        failed(self.place(), message, hint)
    }
}

/// The note of a marker.
fn note_of(count: u64, publication: &Publication) -> String {
    format!("{count} {:016x}", publication.checksum)
}
