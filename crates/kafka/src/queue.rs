//! The queue of a partition, whose messages are taken many at a time.
//!
//! The call of the crate `rdkafka` for one message asks the clock three times, locks the queue and
//! makes an event: a third of what it costs to read a topic. So messages are taken by
//! `rd_kafka_consume_callback`, which that crate does not have.
//!
//! The client fetches more while a call runs, for what it hands on has left its queue. So a call
//! hands on [`TAKEN_MAX`] messages at most, and all of them are used before the next call, unless
//! the batch is full before: messages that wait never take more than twice what the client may
//! fetch ahead.
#![allow(unsafe_code)]

use std::any::Any;
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_void};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rdkafka::ClientContext;
use rdkafka::bindings as c;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use crate::client::Listener;

/// Messages that one call of the client hands on, at most.
pub(crate) const TAKEN_MAX: usize = 1024;

/// The client's property for [`TAKEN_MAX`].
pub(crate) const TAKEN_PROPERTY: &str = "consume.callback.max.messages";

const NO_ERROR: c::rd_kafka_resp_err_t = c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;

/// A header: its name, and its value if it has one.
pub(crate) type InHeader<'a> = (Cow<'a, str>, Option<&'a [u8]>);

/// A message of a topic.
pub(crate) trait TopicMessage {
    fn offset(&self) -> i64;

    /// The value; `None` where it has none.
    fn payload(&self) -> Option<&[u8]>;

    /// The key; `None` where it has none.
    fn key(&self) -> Option<&[u8]>;

    /// Its time in milliseconds since 1970, if it has one.
    fn millis(&self) -> Option<i64>;

    /// Its headers; `None` where it has none.
    fn headers(&self) -> Option<Vec<InHeader<'_>>>;
}

/// The messages of a partition that the client has fetched. The client is dropped last.
pub(crate) struct MessageQueue {
    topic: NativeTopic,
    partition: i32,
    /// Calls back when a message comes.
    split: PartitionQueue<Listener>,
    consumer: Arc<BaseConsumer<Listener>>,
}

/// The state of one call of the client, which hands its messages to `act`.
struct Taking<'a> {
    act: &'a mut dyn FnMut(Result<ClientMessage<'_>, KafkaError>) -> ControlFlow<()>,
    consumer: &'a BaseConsumer<Listener>,
    panicked: Option<Box<dyn Any + Send>>,
}

impl MessageQueue {
    /// Takes the messages of a partition out of the queue that all partitions share. `None` if the
    /// client does not know the partition.
    pub(crate) fn of(
        consumer: &Arc<BaseConsumer<Listener>>,
        topic: &str,
        partition: i32,
    ) -> Option<Self> {
        let split = consumer.split_partition_queue(topic, partition)?;
        let (topic, consumer) = (CString::new(topic).ok()?, Arc::clone(consumer));
        let client = consumer.client().native_ptr();
        // SAFETY: the client outlives its topic, and copies the name.
        let topic = unsafe { c::rd_kafka_topic_new(client, topic.as_ptr(), ptr::null_mut()) };
        Some(Self { topic: NativeTopic(NonNull::new(topic)?), partition, split, consumer })
    }

    /// Sets what is called when a message comes into the empty queue, on a thread of the client, or
    /// within [`take`](Self::take) when that breaks off. It must not use the queue.
    pub(crate) fn set_nonempty_callback(&mut self, act: impl Fn() + Send + Sync + 'static) {
        self.split.set_nonempty_callback(act);
    }

    /// Hands on up to [`TAKEN_MAX`] messages that have come, and errors in their place, such as
    /// [`KafkaError::PartitionEOF`], until `act` breaks off. Gives whether there may be more.
    pub(crate) fn take(
        &mut self,
        act: &mut dyn FnMut(Result<ClientMessage<'_>, KafkaError>) -> ControlFlow<()>,
    ) -> bool {
        let mut taking = Taking { act, consumer: &self.consumer, panicked: None };
        let opaque = (&raw mut taking).cast::<c_void>();
        // SAFETY: the topic lives, and `taking` until the call returns: it hands on nothing later.
        let count = unsafe {
            let topic = self.topic.0.as_ptr();
            c::rd_kafka_consume_callback(topic, self.partition, 0, Some(hand_on), opaque)
        };
        if let Some(panicked) = taking.panicked {
            resume_unwind(panicked);
        }
        // It is below 0 where the client does not know the partition.
        usize::try_from(count).is_ok_and(|count| count >= TAKEN_MAX)
    }
}

/// Hands a message of the client to the [`Taking`] behind `opaque`.
///
/// # Safety
/// `message` and the [`Taking`] live during the call, which alone has the second one.
unsafe extern "C" fn hand_on(message: *mut c::rd_kafka_message_t, opaque: *mut c_void) {
    // SAFETY: `take` has made it, and waits for this call.
    let taking = unsafe { &mut *opaque.cast::<Taking<'_>>() };
    let consumer = taking.consumer;
    // A panic must not unwind through C.
    let goes_on = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the client drops the message behind this call.
        (taking.act)(unsafe { message_of(message, consumer) })
    }));
    match goes_on {
        Ok(ControlFlow::Continue(())) => return,
        Ok(ControlFlow::Break(())) => {}
        Err(panicked) => taking.panicked = Some(panicked),
    }
    // SAFETY: the client lives, and this is a call of its own: it puts the others back.
    unsafe { c::rd_kafka_yield(consumer.client().native_ptr()) };
}

/// A message of the client, or the error in its place. The listener logs errors, too, and keeps
/// them for messages to the user; the end of the partition is none.
///
/// # Safety
/// `message` lives for `'a`.
unsafe fn message_of<'a>(
    message: *const c::rd_kafka_message_t,
    consumer: &BaseConsumer<Listener>,
) -> Result<ClientMessage<'a>, KafkaError> {
    // SAFETY: the message lives. Its code is read as a number: brokers may have more of them than
    // the enumeration.
    let code = unsafe { (&raw const (*message).err).cast::<i32>().read() };
    match c::rd_kafka_resp_err_t::try_from(code).map_or(Code::Unknown, Code::from) {
        // SAFETY: the message lives, and its code is one of the enumeration.
        Code::NoError => Ok(ClientMessage(unsafe { &*message })),
        // SAFETY: the message lives.
        Code::PartitionEOF => Err(KafkaError::PartitionEOF(unsafe { (*message).partition })),
        code => {
            // SAFETY: the message lives; the bytes of an error are its reason.
            let reason = unsafe { bytes((*message).payload, (*message).len) };
            let reason = String::from_utf8_lossy(reason.unwrap_or_default());
            consumer.context().error(KafkaError::Global(code), &reason);
            Err(KafkaError::MessageConsumption(code))
        }
    }
}

/// A topic of a client.
struct NativeTopic(NonNull<c::rd_kafka_topic_t>);

// SAFETY: the client locks its topics.
unsafe impl Send for NativeTopic {}

impl Drop for NativeTopic {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody uses it any more.
        unsafe { c::rd_kafka_topic_destroy(self.0.as_ptr()) };
    }
}

/// Bytes of a message.
///
/// # Safety
/// They live for `'a`, and nobody changes them; or `at` is null.
unsafe fn bytes<'a>(at: *const c_void, len: usize) -> Option<&'a [u8]> {
    // SAFETY: the caller guarantees it.
    (!at.is_null()).then(|| unsafe { slice::from_raw_parts(at.cast(), len) })
}

/// A message in the memory of the client.
pub(crate) struct ClientMessage<'a>(&'a c::rd_kafka_message_t);

impl TopicMessage for ClientMessage<'_> {
    fn offset(&self) -> i64 {
        self.0.offset
    }

    fn payload(&self) -> Option<&[u8]> {
        // SAFETY: they live as long as the message.
        unsafe { bytes(self.0.payload, self.0.len) }
    }

    fn key(&self) -> Option<&[u8]> {
        // SAFETY: they live as long as the message.
        unsafe { bytes(self.0.key, self.0.key_len) }
    }

    fn millis(&self) -> Option<i64> {
        let mut kind = c::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message lives, and the client has no other kinds.
        let millis = unsafe { c::rd_kafka_message_timestamp(self.0, &raw mut kind) };
        let is_there = kind != c::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        (is_there && millis != -1).then_some(millis)
    }

    fn headers(&self) -> Option<Vec<InHeader<'_>>> {
        let mut headers = ptr::null_mut();
        // SAFETY: the message lives, and no other thread has it.
        let error = unsafe { c::rd_kafka_message_headers(self.0, &raw mut headers) };
        if error != NO_ERROR {
            return None;
        }
        let header = |at| {
            let (mut name, mut value, mut len) = (ptr::null(), ptr::null(), 0);
            let (to_name, to_value, to_len) = (&raw mut name, &raw mut value, &raw mut len);
            // SAFETY: the headers live as long as the message; a name ends with 0, and a value has
            // this length.
            unsafe {
                let error = c::rd_kafka_header_get_all(headers, at, to_name, to_value, to_len);
                let is_there = error == NO_ERROR;
                is_there.then(|| (CStr::from_ptr(name).to_string_lossy(), bytes(value, len)))
            }
        };
        Some((0..).map_while(header).collect())
    }
}
