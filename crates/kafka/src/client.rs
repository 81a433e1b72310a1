//! What the clients of this process share: what they tell of their brokers, and the consumer whose
//! partitions the readers of a table share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use dataflow::error::ConnectorError;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::errors::{code_of, failed, final_error, unreachable};
use crate::settings::Topic;

/// How long the thread of a consumer waits for events, and so how late it ends.
const EVENTS: Duration = Duration::from_millis(100);

/// How often brokers that were lost are asked whether they are back.
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// How long a broker may say that it does not know a topic that is there.
const BEGINS: Duration = Duration::from_secs(2);

/// How long one question may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);

/// How long a client that was asked is given to tell what else it has to tell. Nothing is told in
/// no time: the first of its events may be a line of its log.
pub(crate) const SERVED: Duration = Duration::from_millis(5);

/// What a client has told of its brokers.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Since when no broker could be reached.
    down_since: Option<Instant>,
    /// What was last heard of a broker.
    last: String,
    /// What is wrong for good.
    failed: Option<ConnectorError>,
    wakers: Vec<Waker>,
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is wrong for good.
    pub(crate) fn failed(&self) -> Option<ConnectorError> {
        self.lock().failed.clone()
    }

    /// What was last heard of a broker, for the message of an error.
    pub(crate) fn last(&self) -> String {
        let state = self.lock();
        if state.last.is_empty() { "none answers".into() } else { state.last.clone() }
    }

    /// Wakes a worker when something is wrong for good.
    fn wakes(&self, waker: Waker) {
        self.lock().wakers.push(waker);
    }

    pub(crate) fn fail(&self, error: ConnectorError) {
        let mut state = self.lock();
        state.failed.get_or_insert(error);
        let wakers = state.wakers.clone();
        drop(state);
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    fn received(&self, code: Option<Code>, reason: &str, place: &str) {
        // A client asks for its group though nobody reads by it.
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

/// Hears what a client tells.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) health: Arc<Health>,
    pub(crate) place: String,
}

impl Listener {
    pub(crate) fn new(topic: &Topic) -> Self {
        Self { health: Arc::default(), place: format!("kafka topic '{}'", topic.name) }
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
}

impl ConsumerContext for Listener {}

/// A consumer whose events a thread of its own takes.
pub(crate) struct SharedConsumer {
    pub(crate) consumer: Arc<BaseConsumer<Listener>>,
    pub(crate) health: Arc<Health>,
    ends: Arc<AtomicBool>,
}

impl SharedConsumer {
    /// Starts the thread.
    ///
    /// # Errors
    /// When that fails.
    pub(crate) fn start(
        consumer: BaseConsumer<Listener>,
        topic: &Topic,
    ) -> Result<Self, ConnectorError> {
        let health = Arc::clone(&consumer.context().health);
        let (consumer, ends) = (Arc::new(consumer), Arc::new(AtomicBool::new(false)));
        let watch = Watch {
            consumer: Arc::clone(&consumer),
            health: Arc::clone(&health),
            ends: Arc::clone(&ends),
            topic: topic.clone(),
        };
        let started = thread::Builder::new().name("millstream-kafka".into()).spawn(|| watch.run());
        started.map_err(|error| {
            failed("kafka", format!("cannot start its thread: {error}"), "allow more threads")
        })?;
        Ok(Self { consumer, health, ends })
    }

    /// Wakes a worker when something is wrong for good.
    pub(crate) fn wakes(&self, waker: Waker) {
        self.health.wakes(waker);
    }
}

impl Drop for SharedConsumer {
    fn drop(&mut self) {
        // Relaxed: the thread looks again within a tenth of a second.
        self.ends.store(true, Ordering::Relaxed);
    }
}

/// The thread that takes the events of a consumer.
struct Watch {
    consumer: Arc<BaseConsumer<Listener>>,
    health: Arc<Health>,
    ends: Arc<AtomicBool>,
    topic: Topic,
}

impl Watch {
    fn run(self) {
        let mut asked = Instant::now();
        while !self.ends.load(Ordering::Relaxed) {
            match self.consumer.poll(EVENTS) {
                // The messages of partitions have queues of their own.
                Some(Ok(message)) => {
                    use rdkafka::Message;
                    let place = self.topic.partition(message.partition());
                    let text = "a message reached a queue that nobody reads";
                    self.health.fail(failed(place, text, "report this"));
                }
                Some(Err(error)) => tracing::debug!(target: "kafka", %error),
                None => {}
            }
            if asked.elapsed() >= ASKED_AGAIN {
                self.look_for_brokers();
                asked = Instant::now();
            }
        }
    }

    /// Asks brokers that were lost whether they are back. Those of a topic without new messages
    /// would not be heard of otherwise.
    fn look_for_brokers(&self) {
        let Some(since) = self.health.lock().down_since else { return };
        if self.consumer.fetch_metadata(Some(&self.topic.name), ASKED_AGAIN).is_ok() {
            self.health.lock().down_since = None;
        } else if since.elapsed() > self.topic.retry_timeout {
            self.health.fail(unreachable(&self.topic.servers, &self.health.last()));
        }
    }
}

/// Asks brokers until one answers, something is wrong for good, or the time is over.
///
/// # Errors
/// What is wrong.
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
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        poll();
        if let Some(error) = listener.health.failed() {
            return Err(error);
        }
        let code = code_of(&error);
        // A broker that has just begun may not know of its topics yet.
        let may_pass = code == Some(Code::UnknownTopicOrPartition) && since.elapsed() < BEGINS;
        let wrong = code.and_then(|code| final_error(&listener.place, code, &error.to_string()));
        if let Some(error) = wrong.filter(|_| !may_pass) {
            return Err(error);
        }
        if since.elapsed() + pause >= timeout {
            tracing::debug!(target: "kafka", %error, "no answer");
            return Err(unreachable(&topic.servers, &listener.health.last()));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}
