//! Publications: the messages of a checkpoint and a marker, in one transaction.
//!
//! ```text
//! a producer begins (fences the one before it) ─▶ marker? ─▶ messages, marker ─▶ commit
//! ```
//!
//! The marker is an offset of a group without members, and is written by the transaction itself.
//! It counts the publications, and its note has a checksum of the last one, of its messages and its
//! job. The record of a checkpoint has the count before its own: a run that goes on and finds the
//! next count there, with its own checksum, knows that its messages are in the topic.
//!
//! Brokers forget an offset that was not written for a week. A run that publishes for the first
//! time needs no marker to know that its messages are not in the topic: it begins to count anew.
//!
//! **Each publication has a producer of its own.** The request that ends a transaction names the
//! producer and its epoch, and not the transaction. One that arrives late, when the same producer
//! has begun the next transaction, would commit the half of it that has arrived. The epoch of a
//! new producer is another one, and the broker refuses the late request.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use connectors::StagedFormat;
use dataflow::error::ConnectorError;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::{BaseProducer, Producer};
use rdkafka::{Offset, TopicPartitionList};

use crate::client::{Listener, SERVED, ask, without_errors};
use crate::errors::{code_of, failed, unexpected};
use crate::settings::Topic;
use crate::staged::messages_of;
use crate::writer::{Deliveries, ProducerListener};

/// The timeout of one step of a transaction, after which it is retried.
const STEP: Duration = Duration::from_secs(10);

/// A publication is retried so often after another producer has taken the name.
const FENCED_MAX: u32 = 3;

/// The wait for events of a producer that has no room for a message.
const ROOM: Duration = Duration::from_millis(10);

/// The wait for reports of messages, before it is asked whether all have come.
const REPORTS: Duration = Duration::from_millis(4);

/// The pause before a publication is retried.
const PAUSE: Duration = Duration::from_millis(100);

/// A producer that has published nothing is kept for this time.
const NEXT_KEPT: Duration = Duration::from_secs(60);

/// The count is asked for again after this time: brokers may have forgotten it.
const COUNT_KEPT: Duration = Duration::from_secs(60);

/// A topic that is written by transactions of one name.
pub(crate) struct Transactions {
    topic: Topic,
    pub(crate) id: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The producer of the next publication, which has an epoch or waits for one.
    next: Option<TransactionalProducer>,
    /// The count since then, and when it was asked for.
    count: Option<(u64, Instant)>,
    /// A consumer by the name of the marker's group; it reads nothing.
    group: Option<BaseConsumer<Listener>>,
}

/// The marker that the brokers have.
struct Marker {
    count: u64,
    note: String,
}

/// The messages of a checkpoint.
pub(crate) struct Publication<'a> {
    /// The parts of the workers.
    pub(crate) staged: &'a [Vec<u8>],
    pub(crate) format: StagedFormat,
    /// A checksum of them and of their job, whatever the order of the parts.
    pub(crate) checksum: u64,
    /// Whether it may have been published by another call.
    pub(crate) again: bool,
    /// Whether no publication follows.
    pub(crate) last: bool,
}

/// A failure of a transaction.
enum Failure {
    /// Of the client: another producer may succeed.
    Client(KafkaError),
    /// Of the messages.
    Staged(ConnectorError),
}

impl From<KafkaError> for Failure {
    fn from(error: KafkaError) -> Self {
        Self::Client(error)
    }
}

/// A producer of one transaction.
struct TransactionalProducer {
    producer: BaseProducer<ProducerListener>,
    deliveries: Arc<Deliveries>,
    /// Whether it is known to have its epoch: it has fenced the producers before it.
    has_epoch: bool,
    /// The time at which it was started.
    since: Instant,
}

impl Transactions {
    pub(crate) fn new(topic: Topic, id: String) -> Self {
        Self { topic, id, state: Mutex::default() }
    }

    fn place(&self) -> String {
        format!("kafka topic '{}', transactions '{}'", self.topic.name, self.id)
    }

    /// The number of publications so far. No former run publishes from here on: its open
    /// transaction is aborted.
    ///
    /// # Errors
    /// When the brokers do not answer.
    pub(crate) fn count(&self) -> Result<u64, ConnectorError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((count, since)) = state.count
            && since.elapsed() < COUNT_KEPT
        {
            return Ok(count);
        }
        let started = self.started(&mut state)?;
        state.next = Some(started);
        let count = self.marker(&mut state)?.count;
        state.count = Some((count, Instant::now()));
        Ok(count)
    }

    /// Publishes messages, unless they were: `before` is the count before them.
    ///
    /// # Errors
    /// When they cannot be published, or it is not known whether they were.
    pub(crate) fn publish(
        &self,
        publication: &Publication<'_>,
        before: u64,
    ) -> Result<(), ConnectorError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, mut fenced) = (Instant::now(), 0);
        loop {
            state.count = None;
            let started = self.started(&mut state)?;
            let marker = self.marker(&mut state)?;
            if marker.count == before + 1 && marker.note == note_of(before + 1, publication) {
                state.next = Some(started);
                return Ok(());
            }
            let is_forgotten = marker.count == 0 && !publication.again;
            if marker.count != before && !is_forgotten {
                return Err(self.changed(before, marker.count));
            }
            let error = match self.transact(&started, &mut state, publication, before + 1) {
                Ok(()) => {
                    // The next publication need not wait for its producer. What fails now fails
                    // again when it is waited for.
                    if !publication.last {
                        state.next = self.start().ok();
                        state.count = Some((before + 1, Instant::now()));
                    }
                    return Ok(());
                }
                Err(Failure::Staged(error)) => return Err(error),
                Err(Failure::Client(error)) => error,
            };
            if let Some(error) = started.deliveries.final_error(&self.topic, &error) {
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
            // The outcome of the transaction is open: the next producer ends it, and asks for the
            // marker.
            std::thread::sleep(PAUSE);
        }
    }

    /// The producer of the next publication, when it has an epoch of its own.
    ///
    /// # Errors
    /// When the brokers do not give it one.
    fn started(&self, state: &mut State) -> Result<TransactionalProducer, ConnectorError> {
        // Nobody takes the events of one that waits: it is not kept for long.
        let next = state.next.take().filter(|next| next.since.elapsed() < NEXT_KEPT);
        let mut started = next.map_or_else(|| self.start(), Ok)?;
        if !started.has_epoch {
            let TransactionalProducer { producer, deliveries, .. } = &started;
            let poll = || producer.poll(SERVED);
            ask(&self.topic, self.topic.retry_timeout, &deliveries.listener, poll, |wait| {
                producer.init_transactions(wait)
            })?;
            started.has_epoch = true;
        }
        Ok(started)
    }

    /// A producer that asks for an epoch of its own, and does not wait for it.
    fn start(&self) -> Result<TransactionalProducer, ConnectorError> {
        let listener = Listener::new(&self.topic);
        let mut config = self.topic.config.clone();
        config.set("transactional.id", &self.id);
        config.set("enable.idempotence", "true");
        let deliveries = Arc::new(Deliveries::new(listener, Waker::noop().clone()));
        let context = ProducerListener(Arc::clone(&deliveries));
        let producer = BaseProducer::from_config_and_context(&config, context);
        let producer = producer.map_err(|error| unexpected(&self.place(), &error))?;
        // The client goes on with it when the time is over, and the next call waits for its end.
        let has_epoch = producer.init_transactions(Duration::ZERO).is_ok();
        Ok(TransactionalProducer { producer, deliveries, has_epoch, since: Instant::now() })
    }

    fn transact(
        &self,
        TransactionalProducer { producer, deliveries, .. }: &TransactionalProducer,
        state: &mut State,
        publication: &Publication<'_>,
        count: u64,
    ) -> Result<(), Failure> {
        producer.begin_transaction()?;
        for staged in publication.staged {
            let (_, batches) = publication.format.read(staged).map_err(Failure::Staged)?;
            for batch in batches {
                for (message, partition) in messages_of(&batch.map_err(Failure::Staged)?) {
                    while !deliveries.try_send(&self.topic, &message, partition, |record| {
                        producer.send(record).map_err(|(error, _)| error)
                    })? {
                        producer.poll(ROOM);
                    }
                    producer.poll(Duration::ZERO);
                }
            }
        }
        let group = self.group(state)?.group_metadata().ok_or(KafkaError::Canceled)?;
        let note = note_of(count, publication);
        let marker = self.marker_of(Offset::Offset(count.cast_signed()), &note)?;
        self.until(|| producer.send_offsets_to_transaction(&marker, &group, STEP))?;
        // A commit looks for reports of messages ten times a second.
        let since = Instant::now();
        while deliveries.in_flight() > 0
            && deliveries.failure(&self.topic).is_none()
            && since.elapsed() < STEP
        {
            // A timeout is no error: the next turn looks again.
            let _ = producer.flush(REPORTS);
        }
        Ok(self.until(|| producer.commit_transaction(STEP))?)
    }

    /// Retries a step as long as the client says that this may help.
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
            // The offsets of transactions that have ended.
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
            let own = self.marker_of(Offset::Invalid, "")?;
            without_errors(consumer.committed_offsets(own, wait)?)
        })?;
        // The events of a client that is not polled would gather.
        events();
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

    /// The error where it is not known whether the messages of a checkpoint are in the topic.
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
fn note_of(count: u64, publication: &Publication<'_>) -> String {
    format!("{count} {:016x}", publication.checksum)
}
