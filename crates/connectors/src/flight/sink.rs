//! Writing: one DoPut, fed through a bounded queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::{FlightData, FlightDescriptor};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Room, Sink, SinkWriter, WriterContext};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::client::Server;
use crate::remote::{Io, Task, died};

/// Batches that wait for the server at most.
const BATCHES_MAX: usize = 4;

/// How long the server may take no rows before the query fails.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long giving up may take: it is done on a thread that has better things to do.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The header of a message that no server can read.
const TORN: &[u8] = b"the writer has given up";

pub(super) struct FlightSink {
    pub(super) server: Server,
    pub(super) descriptor: FlightDescriptor,
    pub(super) schema: SchemaRef,
}

impl Sink for FlightSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let io = Io::shared()?;
        let server = self.server.clone();
        let mut client = io.wait(async move { server.client().await })?;
        let (batches, queue) = channel(BATCHES_MAX);
        let (outcome, result) = mpsc::sync_channel(1);
        let committed = Arc::new(AtomicBool::new(false));
        let waker = context.waker.clone();
        let data = data(self, queue, waker.clone(), Arc::clone(&committed));
        let server = self.server.clone();
        let task = io.spawn(async move {
            let put = match client.do_put(data).await {
                Ok(answers) => answers.try_for_each(|_| async { Ok(()) }).await,
                Err(error) => Err(error),
            };
            // Nobody is left to tell only if the writer is gone.
            let _ = outcome.send(put.map_err(|error| server.error_of(&error)));
            waker.wake();
        });
        let place = self.server.place().to_owned();
        let batches = Some(batches);
        let full_since = None;
        Ok(Box::new(FlightWriter { place, batches, full_since, committed, result, _task: task }))
    }
}

/// The messages sent: the rows; and behind rows that were not committed a message that is none. A
/// client cannot break off a call but by its connection, and the mere end of the rows would look
/// like the end of the table. `waker` is called when there is room for more.
fn data(
    sink: &FlightSink,
    mut queue: Receiver<RecordBatch>,
    waker: Waker,
    committed: Arc<AtomicBool>,
) -> impl Stream<Item = Result<FlightData, FlightError>> + Send + 'static {
    let rows = stream::poll_fn(move |context| {
        let next = queue.poll_recv(context);
        if next.is_ready() {
            waker.wake_by_ref();
        }
        next
    });
    let data = FlightDataEncoderBuilder::new()
        .with_schema(Arc::clone(&sink.schema))
        .with_flight_descriptor(Some(sink.descriptor.clone()))
        .build(rows.map(Ok));
    let end = stream::once(async move {
        let torn = FlightData::new().with_data_header(TORN);
        (!committed.load(Ordering::Acquire)).then_some(Ok(torn))
    });
    data.chain(end.filter_map(|end| async { end }))
}

struct FlightWriter {
    place: String,
    /// Dropped, the rows have ended.
    batches: Option<Sender<RecordBatch>>,
    /// Since when the server has taken nothing though batches wait for it.
    full_since: Option<Instant>,
    /// Stored with `Release` before `batches` is dropped; read with `Acquire` after.
    committed: Arc<AtomicBool>,
    /// How the call ended.
    result: mpsc::Receiver<Result<(), ConnectorError>>,
    _task: Task,
}

impl FlightWriter {
    /// How the call has ended, though there were more rows.
    fn ended(&self) -> ConnectorError {
        match self.result.recv() {
            Ok(Err(error)) => error,
            Ok(Ok(())) => self.failed("the server ended the call before the last row".into()),
            Err(_) => died(&self.place),
        }
    }

    fn failed(&self, message: String) -> ConnectorError {
        ConnectorError::Io { place: self.place.clone(), message, hint: None }
    }
}

impl SinkWriter for FlightWriter {
    fn room(&mut self) -> Room {
        let waits = |batches: &Sender<_>| batches.capacity() == 0 && !batches.is_closed();
        if !self.batches.as_ref().is_some_and(waits) {
            self.full_since = None;
            return Room::Ready;
        }
        // That the server has taken nothing for too long is told by the next rows.
        let waits = self.full_since.get_or_insert_with(Instant::now).elapsed();
        if waits < WRITE_TIMEOUT { Room::Full } else { Room::Ready }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let Some(batches) = &self.batches else { return Err(died(&self.place)) };
        match batches.try_send(dataflow::detach(batch)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                let seconds = WRITE_TIMEOUT.as_secs();
                Err(self.failed(format!("the server has taken no rows for {seconds} s")))
            }
            Err(TrySendError::Closed(_)) => Err(self.ended()),
        }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    /// The last batches are taken: the server's answer is all that is missing then.
    fn drain(&mut self) -> Result<Room, ConnectorError> {
        match &self.batches {
            Some(batches) if batches.is_closed() => Err(self.ended()),
            Some(batches) if batches.capacity() < BATCHES_MAX => Ok(Room::Full),
            _ => Ok(Room::Ready),
        }
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.committed.store(true, Ordering::Release);
        self.batches = None;
        self.result.recv().unwrap_or_else(|_| Err(died(&self.place)))
    }
}

impl Drop for FlightWriter {
    fn drop(&mut self) {
        if self.batches.take().is_some() {
            // So that the server hears of it even if the process ends next. What it says to that
            // is of no interest.
            let _ = self.result.recv_timeout(ABORT_TIMEOUT);
        }
    }
}
