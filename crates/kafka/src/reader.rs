//! The reader of a partition.
//!
//! Offsets of messages that are read grow, and not by one: those of transactions that were given
//! up, and of marks that the brokers write, are no messages. So the end of a bounded table is
//! reached by an offset behind it, or when the brokers say that there is nothing more to be seen.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use connectors::messages::MessageDecoder;
use dataflow::backlog::FlowBacklog;
use dataflow::bad::{BadRow, BadRows};
use dataflow::error::ConnectorError;
use dataflow::origins::Origins;
use dataflow::position::refused;
use dataflow::source::{Next, Position, ReaderContext, SplitReader};
use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::{Offset, TopicPartitionList};

use crate::client::{Flow, SharedConsumer};
use crate::columns::{Collector, TopicColumns};
use crate::errors::{code_of, failed, unexpected};
use crate::keys::KeyDecoder;
use crate::queue::{MessageQueue, TAKEN_MAX, TopicMessage};
use crate::settings::Topic;

/// The name of positions: the next offset, and the first that is not read.
const FORMAT: &str = "kafka";
const VERSION: u32 = 1;
/// The end of a position of a table without an end.
const NO_END: u64 = u64::MAX;

/// Bytes of the messages of a batch, about.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// A place in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartitionRange {
    /// The least offset that may be that of the next message.
    pub(crate) next: i64,
    /// The first offset that is not read.
    pub(crate) end: Option<i64>,
}

impl PartitionRange {
    pub(crate) fn is_at_end(self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    /// The place of a position.
    ///
    /// # Errors
    /// When it is of another split or table.
    pub(crate) fn of(from: &Position, split: &str, bounded: bool) -> Result<Self, ConnectorError> {
        let [next, end] = from.numbers(FORMAT, VERSION, split)?;
        let offset = |offset: u64| {
            i64::try_from(offset).map_err(|_| refused(split, "its offset is none".into()))
        };
        let end = if end == NO_END { None } else { Some(offset(end)?) };
        if end.is_some() != bounded {
            let message = "'scan.bounded.mode' is not what it was".into();
            return Err(refused(split, message));
        }
        Ok(Self { next: offset(next)?, end })
    }
}

/// A partition, and what is read of it.
pub(crate) struct PartitionSettings {
    pub(crate) topic: Topic,
    pub(crate) table: String,
    pub(crate) partition: i32,
    pub(crate) columns: TopicColumns,
    pub(crate) skips_gaps: bool,
    /// Whether it begins with whatever is there.
    pub(crate) begins: bool,
}

/// A partition that is being read.
pub(crate) struct PartitionReader {
    reading: PartitionSettings,
    split: String,
    place: PartitionRange,
    /// Declared before the consumer, so that it is dropped first.
    queue: Option<MessageQueue>,
    shared: Option<Arc<SharedConsumer>>,
    decoder: MessageDecoder,
    /// Reads columns of the key, where some are read.
    keys: Option<KeyDecoder>,
    /// Messages that wait for a schema of a registry.
    held: Option<HeldMessages>,
    bad: Arc<BadRows>,
    origins: Arc<Origins>,
    backlog: Arc<FlowBacklog>,
    /// Whether all that the client has was taken.
    is_drained: Arc<AtomicBool>,
    /// Whether the client has found that the next message is not in the topic.
    in_gap: bool,
}

impl PartitionReader {
    pub(crate) fn open(
        reading: PartitionSettings,
        place: PartitionRange,
        shared: Option<Arc<SharedConsumer>>,
        (mut decoder, keys): (MessageDecoder, Option<KeyDecoder>),
        context: &ReaderContext,
    ) -> Result<Self, ConnectorError> {
        let split = reading.topic.partition(reading.partition);
        let (bad, origins) = (Arc::clone(&context.bad), Arc::clone(&context.origins));
        decoder.wakes(&context.waker);
        let mut reader = Self {
            reading,
            split,
            place,
            queue: None,
            shared,
            decoder,
            keys,
            held: None,
            bad,
            origins,
            backlog: context.backlog.of_flow(),
            is_drained: Arc::default(),
            in_gap: false,
        };
        reader.backlog.set_read(place.next.cast_unsigned());
        if let Some(shared) = reader.shared.clone() {
            shared.wakes(context.waker.clone());
            let (topic, partition) = (&reader.reading.topic.name, reader.reading.partition);
            let queue = MessageQueue::of(&shared.consumer, topic, partition);
            let mut queue = queue.ok_or_else(|| {
                failed(&reader.split, "the client has no queue for it", "report this")
            })?;
            let (backlog, is_drained) = (&reader.backlog, Arc::clone(&reader.is_drained));
            let flow = Flow { backlog: Arc::downgrade(backlog), is_drained };
            shared.health.measure((topic.clone(), partition), flow);
            let (waker, is_drained) = (context.waker.clone(), Arc::clone(&reader.is_drained));
            queue.set_nonempty_callback(move || {
                is_drained.store(false, Ordering::Relaxed);
                waker.wake_by_ref();
            });
            reader.queue = Some(queue);
            reader.assign(&shared)?;
        }
        Ok(reader)
    }

    fn assign(&self, shared: &SharedConsumer) -> Result<(), ConnectorError> {
        let mut list = TopicPartitionList::new();
        let (topic, partition) = (&self.reading.topic.name, self.reading.partition);
        let offset = Offset::Offset(self.place.next);
        list.add_partition_offset(topic, partition, offset)
            .and_then(|()| shared.consumer.incremental_assign(&list))
            .map_err(|error| unexpected(&self.split, &error))
    }

    /// Takes messages that have come, up to `rows_max`. Gives whether all of them are read that
    /// there are to read.
    fn take(&mut self, rows_max: usize, batch: &mut Taken) -> Result<bool, ConnectorError> {
        let Some(mut queue) = self.queue.take() else { return Ok(true) };
        let next = self.place.next;
        let is_all = self.take_from(&mut queue, rows_max, batch);
        self.queue = Some(queue);
        if self.place.next > next {
            self.backlog.set_read(self.place.next.cast_unsigned());
        }
        is_all
    }

    fn take_from(
        &mut self,
        queue: &mut MessageQueue,
        rows_max: usize,
        batch: &mut Taken,
    ) -> Result<bool, ConnectorError> {
        let (rows_max, mut bytes) = (rows_max.max(1), 0);
        let has_room = |rows: usize, bytes: usize| rows <= rows_max && bytes < BATCH_BYTES_MAX;
        loop {
            let mut ended = Ok(None);
            let has_more = queue.take(&mut |message| {
                ended = self.take_one(message, batch, &mut bytes);
                match ended {
                    Ok(None) if has_room(batch.offsets.len() + 1, bytes) => {
                        ControlFlow::Continue(())
                    }
                    _ => ControlFlow::Break(()),
                }
            });
            if let Some(is_all) = ended? {
                return Ok(is_all);
            }
            // The client would put messages back that find no room, one by one.
            if !has_more || !has_room(batch.offsets.len() + TAKEN_MAX, bytes) {
                return Ok(self.place.is_at_end());
            }
        }
    }

    /// Takes what comes next in the queue, and adds the bytes of a message. Where nothing more is
    /// to be taken now, it gives whether everything is read.
    fn take_one(
        &mut self,
        message: Result<impl TopicMessage, KafkaError>,
        batch: &mut Taken,
        bytes: &mut usize,
    ) -> Result<Option<bool>, ConnectorError> {
        let message = match message {
            Ok(message) => message,
            Err(KafkaError::PartitionEOF(_)) => {
                if self.place.end.is_some() {
                    return Ok(Some(true));
                }
                self.is_drained.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            Err(error) if code_of(&error) == Some(Code::AutoOffsetReset) => {
                self.in_gap = true;
                return Ok(Some(false));
            }
            Err(error) if code_of(&error).is_some_and(may_pass) => {
                tracing::debug!(target: "kafka", %error, split = self.split);
                return Ok(None);
            }
            // To go on after an error that is not known might pass over messages.
            Err(error) => return Err(unexpected(&self.split, &error)),
        };
        self.is_drained.store(false, Ordering::Relaxed);
        let offset = message.offset();
        if offset < self.place.next {
            return Ok(None);
        }
        if self.place.end.is_some_and(|end| offset >= end) {
            return Ok(Some(true));
        }
        let parts = [message.payload(), message.key()];
        *bytes += parts.into_iter().flatten().map(<[u8]>::len).sum::<usize>();
        self.accept(&message, batch)?;
        Ok(None)
    }

    /// Takes a message that is to be read.
    fn accept(
        &mut self,
        message: &impl TopicMessage,
        batch: &mut Taken,
    ) -> Result<(), ConnectorError> {
        self.place.next = message.offset() + 1;
        batch.offsets.push(message.offset());
        self.decoder.push(message.payload())?;
        if let Some(reason) = batch.collector.push(message) {
            self.decoder.refuse_last(reason);
        }
        Ok(())
    }

    /// The rows of messages that were taken; `None` where all of them are bad. They are held where
    /// a schema of theirs has not come.
    fn decode(&mut self, held: HeldMessages) -> Result<Option<Next>, ConnectorError> {
        if self.decoder.is_waiting()? {
            self.held = Some(held);
            return self.pending().map(Some);
        }
        let mut taken = held.taken;
        let offset = |message: u32| taken.offsets[message as usize];
        let place = |message| format!("{}:{}", self.split, offset(message));
        let mut rows = self.decoder.rows(&place)?;
        let mut key_columns = None;
        if let (Some(decoder), Some(keys)) = (&mut self.keys, &taken.collector.keys) {
            let (left, columns) = decoder.join(rows, keys, &place)?;
            (rows, key_columns) = (left, Some(columns));
        }
        if rows.messages.is_empty() {
            return Ok(None);
        }
        taken.tell(&self.split, &rows.messages, &self.origins);
        let columns = &self.reading.columns;
        let partition = self.reading.partition;
        let rows = columns.rows(partition, (rows, key_columns), &mut taken.collector);
        rows.map(|rows| Some(Next::Batch(rows))).map_err(|error| {
            failed(&self.split, error.to_string(), "check the columns of the table")
        })
    }

    /// Goes on behind messages that are not in the topic any more. `false` until the brokers have
    /// answered where that is.
    ///
    /// # Errors
    /// When messages are missing that were to be read.
    fn pass_gap(&mut self) -> Result<bool, ConnectorError> {
        let Some(shared) = self.shared.clone() else { return Ok(true) };
        let (topic, partition) = (&self.reading.topic.name, self.reading.partition);
        let own = (topic.clone(), partition);
        let Some((least, end)) = shared.watermarks(&own) else { return Ok(false) };
        let next = self.place.next;
        if next > end {
            let message = format!("offset {next} is behind its end, which is {end}");
            let hint = "the topic was made anew, or its brokers have lost messages: begin anew, \
                        --from none";
            return Err(failed(&self.split, message, hint));
        }
        if least > next && !self.reading.begins {
            let reason = format!("offsets {next} to {} are not there any more", least - 1);
            if !self.reading.skips_gaps {
                let hint = "the topic deletes messages sooner than they are read: raise its \
                            retention.ms, or go on behind them with 'on_gap' = 'skip'";
                return Err(failed(&self.split, reason, hint));
            }
            let (table, place) = (self.reading.table.clone(), format!("{}:{next}", self.split));
            self.bad.add(BadRow { table, place, reason, text: String::new() });
        }
        (self.place.next, self.in_gap) = (least.max(next), false);
        let mut list = TopicPartitionList::new();
        list.add_partition(topic, partition);
        shared
            .consumer
            .incremental_unassign(&list)
            .map_err(|error| unexpected(&self.split, &error))?;
        self.assign(&shared)?;
        Ok(true)
    }

    /// The answer of a reader that waits, for messages or for brokers.
    fn pending(&self) -> Result<Next, ConnectorError> {
        let failed = self.shared.as_ref().and_then(|shared| shared.health.failed());
        failed.map_or(Ok(Next::Pending), Err)
    }
}

/// Whether the client tries again by itself.
fn may_pass(code: Code) -> bool {
    matches!(
        code,
        Code::BrokerTransportFailure
            | Code::AllBrokersDown
            | Code::Resolve
            | Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::LeaderNotAvailable
            | Code::NotLeaderForPartition
            | Code::BrokerNotAvailable
            | Code::ReplicaNotAvailable
            | Code::NetworkException
            | Code::CoordinatorNotAvailable
            | Code::CoordinatorLoadInProgress
            | Code::NotCoordinator
            | Code::FencedLeaderEpoch
            | Code::UnknownLeaderEpoch
            | Code::GroupAuthorizationFailed
    )
}

/// Messages that were taken.
struct Taken {
    offsets: Vec<i64>,
    collector: Collector,
}

impl Taken {
    /// Tells where the rows of these messages are from.
    fn tell(&self, split: &str, messages: &[u32], origins: &Origins) {
        let offset = |message: &u32| self.offsets[*message as usize];
        for run in messages.chunk_by(|a, b| offset(a) + 1 == offset(b)) {
            origins.tell(split, offset(&run[0]).cast_unsigned(), run.len() as u64);
        }
    }
}

/// Messages that were taken and are not decoded.
struct HeldMessages {
    taken: Taken,
    /// Where the reader stood before it took them: a checkpoint has none of their rows.
    from: i64,
}

impl SplitReader for PartitionReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        while self.held.is_some() || !self.place.is_at_end() {
            if let Some(held) = self.held.take() {
                match self.decode(held)? {
                    Some(next) => return Ok(next),
                    None => continue,
                }
            }
            if self.in_gap && !self.pass_gap()? {
                return self.pending();
            }
            let from = self.place.next;
            let mut taken = Taken { offsets: vec![], collector: self.reading.columns.collector() };
            let is_all = self.take(rows_max, &mut taken)?;
            if is_all {
                self.queue = None;
                self.place.end = Some(self.place.next);
            }
            if taken.offsets.is_empty() && !is_all {
                if self.in_gap {
                    continue;
                }
                return self.pending();
            }
            // Where all of them are bad, more may have come.
            if let Some(next) = self.decode(HeldMessages { taken, from })? {
                return Ok(next);
            }
        }
        Ok(Next::End)
    }

    fn position(&self) -> Position {
        let end = self.place.end.map_or(NO_END, i64::cast_unsigned);
        let next = self.held.as_ref().map_or(self.place.next, |held| held.from);
        Position::new(FORMAT, VERSION, &self.split, &[next.cast_unsigned(), end])
    }
}

#[cfg(test)]
mod tests;
