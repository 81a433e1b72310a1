//! The queue of a partition, whose messages are taken many at a time.
//!
//! The call of the crate `rdkafka` for one message asks the clock three times, locks the queue and
//! makes an event: a third of what it costs to read a topic. So messages are taken by
//! `rd_kafka_consume_callback_queue`, which that crate does not have.
#![allow(unsafe_code)]

use std::any::Any;
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_void};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rdkafka::bindings as c;
use rdkafka::consumer::base_consumer::PartitionQueue;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;

use crate::client::Listener;

const NO_ERROR: c::rd_kafka_resp_err_t = c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
const END: c::rd_kafka_resp_err_t = c::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR__PARTITION_EOF;

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

/// The messages of a partition that the client has fetched.
pub(crate) struct MessageQueue {
    native: NativeQueue,
    /// Calls back when a message comes.
    split: PartitionQueue<Listener>,
    consumer: Arc<BaseConsumer<Listener>>,
}

/// What a call of the client hands its messages to.
struct Taking<'a> {
    act: &'a mut dyn FnMut(Result<ClientMessage<'_>, KafkaError>) -> ControlFlow<()>,
    client: *mut c::rd_kafka_t,
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
        // SAFETY: the client outlives the queue, which has it, and copies the name.
        let native = unsafe { c::rd_kafka_queue_get_partition(client, topic.as_ptr(), partition) };
        Some(Self { native: NativeQueue(NonNull::new(native)?), split, consumer })
    }

    /// Sets what is called, on a thread of the client, when the first message comes into the empty
    /// queue.
    pub(crate) fn set_nonempty_callback(&mut self, act: impl Fn() + Send + Sync + 'static) {
        self.split.set_nonempty_callback(act);
    }

    /// Hands on the messages that have come, and what the client says in place of one, such as
    /// [`KafkaError::PartitionEOF`], until there are no more or `act` breaks off.
    pub(crate) fn take(
        &mut self,
        act: &mut dyn FnMut(Result<ClientMessage<'_>, KafkaError>) -> ControlFlow<()>,
    ) {
        let client = self.consumer.client().native_ptr();
        let mut taking = Taking { act, client, panicked: None };
        let opaque = (&raw mut taking).cast::<c_void>();
        // SAFETY: the queue lives, and `taking` until the call returns: it hands on nothing later.
        unsafe {
            c::rd_kafka_consume_callback_queue(self.native.0.as_ptr(), 0, Some(hand_on), opaque)
        };
        if let Some(panicked) = taking.panicked {
            resume_unwind(panicked);
        }
    }
}

/// Hands a message of the client to the [`Taking`] behind `opaque`.
///
/// # Safety
/// Both live during the call, and nobody else has the second one.
unsafe extern "C" fn hand_on(message: *mut c::rd_kafka_message_t, opaque: *mut c_void) {
    // SAFETY: as above.
    let (message, taking) = unsafe { (&*message, &mut *opaque.cast::<Taking<'_>>()) };
    let message = match message.err {
        NO_ERROR => Ok(ClientMessage(message)),
        END => Err(KafkaError::PartitionEOF(message.partition)),
        error => Err(KafkaError::MessageConsumption(error.into())),
    };
    // A panic must not unwind through C.
    let goes_on = catch_unwind(AssertUnwindSafe(|| (taking.act)(message)));
    match goes_on {
        Ok(ControlFlow::Continue(())) => return,
        Ok(ControlFlow::Break(())) => {}
        Err(panicked) => taking.panicked = Some(panicked),
    }
    // SAFETY: the client lives, and this is a call of its own: it puts the others back.
    unsafe { c::rd_kafka_yield(taking.client) };
}

/// A reference to a queue of the client.
struct NativeQueue(NonNull<c::rd_kafka_queue_t>);

// SAFETY: the client locks its queues.
unsafe impl Send for NativeQueue {}

impl Drop for NativeQueue {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody uses it any more.
        unsafe { c::rd_kafka_queue_destroy(self.0.as_ptr()) };
    }
}

/// A message in the memory of the client.
pub(crate) struct ClientMessage<'a>(&'a c::rd_kafka_message_t);

impl ClientMessage<'_> {
    /// Bytes of this length, which live as long as the message.
    ///
    /// # Safety
    /// They are of this message, or `at` is null.
    unsafe fn bytes(&self, at: *const c_void, len: usize) -> Option<&[u8]> {
        // SAFETY: as above; the client does not change them.
        (!at.is_null()).then(|| unsafe { slice::from_raw_parts(at.cast(), len) })
    }
}

impl TopicMessage for ClientMessage<'_> {
    fn offset(&self) -> i64 {
        self.0.offset
    }

    fn payload(&self) -> Option<&[u8]> {
        // SAFETY: the fields of one message belong together.
        unsafe { self.bytes(self.0.payload, self.0.len) }
    }

    fn key(&self) -> Option<&[u8]> {
        // SAFETY: as above.
        unsafe { self.bytes(self.0.key, self.0.key_len) }
    }

    fn millis(&self) -> Option<i64> {
        // SAFETY: the message lives.
        let millis = unsafe { c::rd_kafka_message_timestamp(self.0, ptr::null_mut()) };
        (millis != -1).then_some(millis)
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
                is_there.then(|| (CStr::from_ptr(name).to_string_lossy(), self.bytes(value, len)))
            }
        };
        Some((0..).map_while(header).collect())
    }
}
