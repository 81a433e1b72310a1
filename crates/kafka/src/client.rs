//! The state of a client's brokers, the consumer whose partitions the readers of a table share, and
//! requests that are retried.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use dataflow::backlog::FlowBacklog;
use dataflow::error::ConnectorError;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{ClientContext, Statistics, TopicPartitionList};

use crate::errors::{code_of, failed, final_error, unexpected, unreachable};
use crate::hostile::PARTITIONS_OF_PATTERN;
use crate::settings::{Topic, TopicChoice};

/// The longest wait of a consumer's thread for events, and so how late it ends.
const EVENTS: Duration = Duration::from_millis(100);

/// Brokers that were lost are asked so often whether they are back.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// A broker that has just started may not know its topics for this long.
const BEGINS: Duration = Duration::from_secs(2);

/// The timeout of one request.
const ANSWER: Duration = Duration::from_secs(2);

/// The wait for events of a client behind a request that failed. A poll that does not wait may miss
/// the error, since the first event may be a line of the log.
pub(crate) const SERVED: Duration = Duration::from_millis(5);

/// The state of a client's brokers, by its events.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Whether it was announced that no broker is reached.
    is_told: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The time at which the last broker was lost; `None` while one is reached.
    down_since: Option<Instant>,
    /// The last error of a broker.
    last: String,
    /// The first error that no retry mends.
    failed: Option<ConnectorError>,
    wakers: Vec<Waker>,
    /// By topic and partition, the backlogs of those that are read.
    flows: BTreeMap<String, BTreeMap<i32, Flow>>,
}

/// A partition that is read, for metrics.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) backlog: Weak<FlowBacklog>,
    /// Whether all that the client has of it was taken. Behind the last message there may be marks
    /// of transactions, which count as records of the broker and are none.
    pub(crate) is_drained: Arc<AtomicBool>,
}

impl State {
    fn set_unreachable(&self, is_unreachable: bool) {
        let flows = self.flows.values().flat_map(BTreeMap::values);
        let backlogs = flows.filter_map(|flow| flow.backlog.upgrade());
        backlogs.for_each(|backlog| backlog.set_unreachable(is_unreachable));
    }
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The error that no retry mends, if there is one.
    pub(crate) fn failed(&self) -> Option<ConnectorError> {
        self.lock().failed.clone()
    }

    /// The last error of a broker, for a message.
    pub(crate) fn last(&self) -> String {
        let state = self.lock();
        if state.last.is_empty() { "none answers".into() } else { state.last.clone() }
    }

    pub(crate) fn fail(&self, error: ConnectorError) {
        self.lock().failed.get_or_insert(error);
        self.wake();
    }

    /// Keeps the backlog of a partition up to date.
    pub(crate) fn measure(&self, (topic, partition): PartitionId, flow: Flow) {
        self.lock().flows.entry(topic).or_default().insert(partition, flow);
    }

    /// Sets the ends of the partitions.
    fn measured(&self, statistics: &Statistics, sees_open: bool) {
        let state = self.lock();
        let known = statistics.topics.iter().flat_map(|(name, topic)| {
            let flows = state.flows.get(name);
            topic.partitions.values().filter_map(move |known| Some((known, flows?)))
        });
        for (known, flows) in known {
            let Some(flow) = flows.get(&known.partition) else { continue };
            let Some(backlog) = flow.backlog.upgrade() else { continue };
            let end = if sees_open { known.hi_offset } else { known.ls_offset };
            let (Ok(end), Ok(next)) = (u64::try_from(end), u64::try_from(known.next_offset)) else {
                continue;
            };
            backlog.set_end(end);
            // Relaxed: a moment of difference is none.
            if flow.is_drained.load(Ordering::Relaxed) {
                backlog.set_read(next);
            }
        }
    }

    /// Somebody waits, and no broker is reached.
    pub(crate) fn is_lost(&self, place: &str) {
        // Relaxed: the flag is for the log and for metrics.
        if !self.is_told.swap(true, Ordering::Relaxed) {
            let last = self.last();
            tracing::warn!(target: "kafka", "{place}: waits, for no broker is reached: {last}");
            self.lock().set_unreachable(true);
        }
    }

    /// A request has failed. `waits`: for longer than brokers take that have just started.
    fn has_failed(&self, place: &str, code: Option<Code>, waits: bool) {
        if code.is_some_and(is_of_broker) {
            self.lock().down_since = None;
            self.is_reached(place);
        }
        let is_lost = code.is_some_and(is_without_broker) || self.lock().down_since.is_some();
        if is_lost && waits {
            self.is_lost(place);
        }
    }

    /// A broker has answered.
    pub(crate) fn is_reached(&self, place: &str) {
        // Relaxed: as above. Most calls find that nobody waits.
        if self.is_told.load(Ordering::Relaxed) && self.is_told.swap(false, Ordering::Relaxed) {
            tracing::warn!(target: "kafka", "{place}: a broker is reached again");
            self.lock().set_unreachable(false);
        }
    }

    /// Wakes the workers of all readers.
    fn wake(&self) {
        let wakers = self.lock().wakers.clone();
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    fn received(&self, code: Option<Code>, reason: &str, place: &str) {
        // A client looks for the coordinator of its group, though the group is not joined.
        let code = code.filter(|code| *code != Code::GroupAuthorizationFailed);
        if let Some(error) = code.and_then(|code| final_error(place, code, reason)) {
            return self.fail(error);
        }
        let mut state = self.lock();
        if code == Some(Code::AllBrokersDown) {
            state.down_since.get_or_insert_with(Instant::now);
        } else {
            reason.clone_into(&mut state.last);
        }
    }
}

/// Takes the events of a client.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) health: Arc<Health>,
    pub(crate) place: String,
    /// Whether messages of open transactions are seen.
    sees_open: bool,
}

impl Listener {
    pub(crate) fn new(topic: &Topic) -> Self {
        let sees_open = topic.config.get("isolation.level") == Some("read_uncommitted");
        let place = format!("kafka {}", topic.title());
        Self { health: Arc::default(), place, sees_open }
    }
}

impl ClientContext for Listener {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, text: &str) {
        match level {
            RDKafkaLogLevel::Debug | RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => {
                tracing::debug!(target: "kafka", fac, "{text}");
            }
            _ => tracing::info!(target: "kafka", fac, "{text}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "kafka", %error, reason);
        self.health.received(code_of(&error), reason, &self.place);
    }

    fn stats(&self, statistics: Statistics) {
        self.health.measured(&statistics, self.sees_open);
    }
}

impl ConsumerContext for Listener {}

/// The first offset of a partition, and the one behind its last message.
pub(crate) type Watermarks = (i64, i64);

/// A topic, and the number of a partition of it.
pub(crate) type PartitionId = (String, i32);

/// Partitions whose watermarks a reader has asked for; `None` until the brokers have answered.
type Asked = Arc<Mutex<BTreeMap<PartitionId, Option<Watermarks>>>>;

/// The partitions of all topics that are read, as the brokers say now. A topic of a pattern that is
/// being made, or deleted, is left out, with a warning.
///
/// # Errors
/// When they cannot be asked, a topic that is named is not there, or one of a pattern has another
/// error.
pub(crate) fn partitions_of(
    consumer: &BaseConsumer<Listener>,
    choice: &TopicChoice,
    wait: Duration,
) -> Result<Vec<PartitionId>, KafkaError> {
    let mut all = vec![];
    let mut add = |topic: &MetadataTopic| {
        let partitions = topic.partitions().iter().map(|of| (topic.name().to_owned(), of.id()));
        all.extend(partitions);
    };
    match choice {
        TopicChoice::Names(names) => {
            for name in names {
                let metadata = consumer.fetch_metadata(Some(name), wait)?;
                let own = metadata.topics().iter().find(|own| own.name() == name);
                let own = own.ok_or(KafkaError::MetadataFetch(Code::UnknownTopicOrPartition))?;
                if let Some(error) = own.error() {
                    return Err(KafkaError::MetadataFetch(error.into()));
                }
                if own.partitions().is_empty() {
                    return Err(KafkaError::MetadataFetch(Code::LeaderNotAvailable));
                }
                add(own);
            }
        }
        TopicChoice::Pattern(..) => {
            let metadata = consumer.fetch_metadata(None, wait)?;
            for own in metadata.topics().iter().filter(|own| choice.has(own.name())) {
                match own.error().map(Code::from) {
                    None => add(own),
                    Some(code) if is_left_out(code) => {
                        let topic = own.name();
                        tracing::warn!(target: "kafka", topic, %code, "the topic is omitted");
                    }
                    Some(code) => return Err(KafkaError::MetadataFetch(code)),
                }
            }
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// Whether a topic of a list of all is left out that has this error: it is being made, or deleted.
fn is_left_out(code: Code) -> bool {
    matches!(code, Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::LeaderNotAvailable)
}

/// Refuses more partitions than are read.
///
/// # Errors
/// When there are.
pub(crate) fn check_count(place: &str, partitions: usize) -> Result<(), ConnectorError> {
    if partitions > PARTITIONS_OF_PATTERN {
        let message =
            format!("its topics have {partitions} partitions: over {PARTITIONS_OF_PATTERN}");
        let hint = "choose fewer topics by 'topic-pattern'";
        return Err(failed(place, message, hint));
    }
    Ok(())
}

/// A consumer whose events a thread of its own takes.
pub(crate) struct SharedConsumer {
    pub(crate) consumer: Arc<BaseConsumer<Listener>>,
    pub(crate) health: Arc<Health>,
    asked: Asked,
    new: Arc<NewlyFound>,
}

/// The partitions that were found since a consumer started.
#[derive(Debug, Default)]
struct NewlyFound {
    count: AtomicUsize,
    /// In the order in which they were found.
    partitions: Mutex<Vec<PartitionId>>,
}

/// What a consumer looks for while it runs.
pub(crate) struct Discovery {
    pub(crate) choice: TopicChoice,
    /// The partitions that are known.
    pub(crate) known: BTreeSet<PartitionId>,
    /// How often it looks; `None` if it does not.
    pub(crate) interval: Option<Duration>,
}

impl SharedConsumer {
    /// Starts the thread, which looks for partitions beside the ones that are known.
    ///
    /// # Errors
    /// When that fails.
    pub(crate) fn start(
        consumer: BaseConsumer<Listener>,
        topic: &Topic,
        discovery: Discovery,
    ) -> Result<Self, ConnectorError> {
        let health = Arc::clone(&consumer.context().health);
        let (consumer, asked) = (Arc::new(consumer), Asked::default());
        let new = Arc::<NewlyFound>::default();
        let watch = Watch {
            consumer: Arc::clone(&consumer),
            health: Arc::clone(&health),
            asked: Arc::clone(&asked),
            new: Arc::clone(&new),
            discovery,
            topic: topic.clone(),
        };
        let started = thread::Builder::new().name("millstream-kafka".into()).spawn(|| watch.run());
        started.map_err(|error| {
            failed("kafka", format!("cannot start its thread: {error}"), "allow more threads")
        })?;
        Ok(Self { consumer, health, asked, new })
    }

    /// The partitions that were found since it started, but for the first `announced` of them.
    pub(crate) fn found_since(&self, announced: usize) -> Vec<PartitionId> {
        // Acquire: the client knows these partitions.
        if self.new.count.load(Ordering::Acquire) <= announced {
            return vec![];
        }
        lock(&self.new.partitions).get(announced..).unwrap_or_default().to_vec()
    }

    /// Wakes a worker when the consumer fails, and when watermarks or partitions have come.
    pub(crate) fn wakes(&self, waker: Waker) {
        self.health.lock().wakers.push(waker);
    }

    /// The watermarks of a partition. The thread asks the brokers: with `None` the worker is woken
    /// when they have answered.
    pub(crate) fn watermarks(&self, of: &PartitionId) -> Option<Watermarks> {
        let mut asked = lock(&self.asked);
        let answer = *asked.entry(of.clone()).or_default();
        if answer.is_some() {
            asked.remove(of);
        }
        answer
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that takes the events of a consumer.
struct Watch {
    consumer: Arc<BaseConsumer<Listener>>,
    health: Arc<Health>,
    asked: Asked,
    new: Arc<NewlyFound>,
    discovery: Discovery,
    topic: Topic,
}

impl Watch {
    /// Ends when this is the last to have the consumer: it closes the connections, which may wait,
    /// and no worker has to.
    fn run(mut self) {
        let (mut asked, mut discovered) = (Instant::now(), Instant::now());
        while Arc::strong_count(&self.consumer) > 1 {
            match self.consumer.poll(EVENTS) {
                // The messages of partitions have queues of their own.
                Some(Ok(message)) => {
                    use rdkafka::Message;
                    let place = self.topic.named(message.topic()).partition(message.partition());
                    let text = "a message reached a queue that nobody reads";
                    self.health.fail(failed(place, text, "report this"));
                }
                Some(Err(error)) => tracing::debug!(target: "kafka", %error),
                None => {}
            }
            self.ask_watermarks();
            if asked.elapsed() >= ASKED_AGAIN {
                self.look_for_brokers();
                asked = Instant::now();
            }
            if self.discovery.interval.is_some_and(|interval| discovered.elapsed() >= interval) {
                self.look_for_partitions();
                discovered = Instant::now();
            }
        }
    }

    /// Asks for the watermarks that readers wait for. A request that fails is retried, until the
    /// brokers are given up.
    fn ask_watermarks(&self) {
        let waiting =
            |(of, answer): (&PartitionId, &Option<_>)| answer.is_none().then(|| of.clone());
        let partitions: Vec<PartitionId> = lock(&self.asked).iter().filter_map(waiting).collect();
        for (topic, partition) in partitions {
            match self.consumer.fetch_watermarks(&topic, partition, ANSWER) {
                Ok(answer) => {
                    lock(&self.asked).insert((topic, partition), Some(answer));
                    self.health.wake();
                }
                Err(error) => {
                    tracing::debug!(target: "kafka", %error, partition, "no watermarks");
                    let place = self.topic.named(&topic).partition(partition);
                    let code = code_of(&error);
                    let last = code.and_then(|of| final_error(&place, of, &error.to_string()));
                    if let Some(error) = last {
                        self.health.fail(error);
                    }
                }
            }
        }
    }

    /// Asks whether there are more partitions, or topics. A request that fails is retried an
    /// interval later.
    fn look_for_partitions(&mut self) {
        let found = match partitions_of(&self.consumer, &self.discovery.choice, ANSWER) {
            Ok(found) => found,
            Err(error) => {
                return tracing::warn!(target: "kafka", %error, "cannot look for new partitions");
            }
        };
        let known = &mut self.discovery.known;
        let new: Vec<_> = found.into_iter().filter(|of| known.insert(of.clone())).collect();
        if new.is_empty() {
            return;
        }
        if let Err(error) = check_count(&self.consumer.context().place, known.len()) {
            return self.health.fail(error);
        }
        for (topic, partition) in &new {
            tracing::info!(target: "kafka", "topic '{topic}' has partition {partition} now");
        }
        let count = {
            let mut partitions = lock(&self.new.partitions);
            partitions.extend(new);
            partitions.len()
        };
        self.new.count.store(count, Ordering::Release);
        self.health.wake();
    }

    /// Asks brokers that were lost whether they are back: without new messages there is no event
    /// that tells it.
    fn look_for_brokers(&self) {
        let Some(since) = self.health.lock().down_since else { return };
        let place = &self.consumer.context().place;
        let topic = match &self.discovery.choice {
            TopicChoice::Names(names) => names.first().map(String::as_str),
            TopicChoice::Pattern(..) => None,
        };
        if self.consumer.fetch_metadata(topic, ASKED_AGAIN).is_ok() {
            self.health.lock().down_since = None;
            self.health.is_reached(place);
            return;
        }
        self.health.is_lost(place);
        if since.elapsed() > self.topic.retry_timeout {
            self.health.fail(unreachable(&self.topic.servers, &self.health.last()));
        }
    }
}

/// Retries a request until a broker answers, an error comes that no retry mends, or the time is
/// over.
///
/// # Errors
/// The error that no retry mends, or that no broker can be reached.
pub(crate) fn ask<T>(
    topic: &Topic,
    timeout: Duration,
    listener: &Listener,
    poll: impl Fn(),
    mut question: impl FnMut(Duration) -> Result<T, KafkaError>,
) -> Result<T, ConnectorError> {
    let (since, mut pause) = (Instant::now(), Duration::from_millis(20));
    loop {
        let left = timeout.saturating_sub(since.elapsed());
        let answer = question(ANSWER.min(left).max(Duration::from_millis(100)));
        let error = match answer {
            Ok(answer) => {
                listener.health.lock().down_since = None;
                listener.health.is_reached(&listener.place);
                return Ok(answer);
            }
            Err(error) => error,
        };
        poll();
        let code = code_of(&error);
        listener.health.has_failed(&listener.place, code, since.elapsed() > BEGINS);
        if let Some(error) = listener.health.failed() {
            return Err(error);
        }
        // A broker that has just started may not know its topics yet.
        let may_pass = code == Some(Code::UnknownTopicOrPartition) && since.elapsed() < BEGINS;
        let wrong = code.and_then(|code| final_error(&listener.place, code, &error.to_string()));
        if let Some(error) = wrong.filter(|_| !may_pass) {
            return Err(error);
        }
        if since.elapsed() + pause >= timeout {
            tracing::debug!(target: "kafka", %error, "no answer");
            return Err(if code.is_some_and(is_of_broker) {
                unexpected(&listener.place, &error)
            } else {
                unreachable(&topic.servers, &listener.health.last())
            });
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// Whether a broker has said so: the client's own errors are below 0.
fn is_of_broker(code: Code) -> bool {
    code as i32 > 0
}

/// Whether the client has found no broker that it could ask.
fn is_without_broker(code: Code) -> bool {
    matches!(code, Code::BrokerTransportFailure | Code::AllBrokersDown | Code::Resolve)
}

/// The answer for several partitions, if none of them has an error of its own.
///
/// # Errors
/// The error of the first partition that has one.
pub(crate) fn without_errors(list: TopicPartitionList) -> Result<TopicPartitionList, KafkaError> {
    list.elements().iter().try_for_each(|own| own.error())?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_of_a_pattern_that_may_not_be_read_is_not_left_out() {
        let gone = [Code::UnknownTopicOrPartition, Code::UnknownTopic, Code::LeaderNotAvailable];
        assert!(gone.into_iter().all(is_left_out));
        let others = [Code::TopicAuthorizationFailed, Code::InvalidTopic, Code::Unknown];
        assert!(!others.into_iter().any(is_left_out));
    }

    #[test]
    fn brokers_that_answer_with_an_error_are_reached() {
        let health = Health::default();
        let is_told = || health.is_told.load(Ordering::Relaxed);
        for code in [Code::CoordinatorLoadInProgress, Code::NotCoordinator] {
            health.has_failed("t", Some(code), true);
            assert!(!is_told(), "{code:?}");
        }
        // No answer of one broker says nothing of the others.
        health.has_failed("t", Some(Code::OperationTimedOut), true);
        assert!(!is_told());
        for code in [Code::BrokerTransportFailure, Code::AllBrokersDown, Code::Resolve] {
            health.has_failed("t", Some(code), false);
            assert!(!is_told(), "{code:?}: it has just begun");
            health.has_failed("t", Some(code), true);
            assert!(is_told(), "{code:?}");
            health.has_failed("t", Some(Code::NotCoordinator), true);
            assert!(!is_told(), "a broker has answered after {code:?}");
        }
        health.received(Some(Code::AllBrokersDown), "1/1 brokers are down", "t");
        health.has_failed("t", Some(Code::OperationTimedOut), true);
        assert!(is_told(), "the client has said that it has no broker");
    }
}
