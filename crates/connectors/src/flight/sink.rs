//! Writing: one DoPut, fed through a bounded queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::{FlightData, FlightDescriptor};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Sink, SinkWriter};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

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

    fn open(&self, _worker: u32) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let io = Io::shared()?;
        let server = self.server.clone();
        let mut client = io.wait(async move { server.client().await })?;
        let (batches, queue) = channel(BATCHES_MAX);
        let (outcome, result) = mpsc::sync_channel(1);
        let committed = Arc::new(AtomicBool::new(false));
        let data = data(self, queue, Arc::clone(&committed));
        let server = self.server.clone();
        let task = io.spawn(async move {
            let put = match client.do_put(data).await {
                Ok(answers) => answers.try_for_each(|_| async { Ok(()) }).await,
                Err(error) => Err(error),
            };
            // Nobody is left to tell only if the writer is gone.
            let _ = outcome.send(put.map_err(|error| server.said(&error)));
        });
        let place = self.server.place().to_owned();
        let batches = Some(batches);
        Ok(Box::new(FlightWriter { place, io, batches, committed, result, _task: task }))
    }
}

/// What is sent: the rows; and behind rows that were not committed a message that is none. A
/// client cannot break off a call but by its connection, and the mere end of the rows would look
/// like the end of the table.
fn data(
    sink: &FlightSink,
    mut queue: Receiver<RecordBatch>,
    committed: Arc<AtomicBool>,
) -> impl Stream<Item = Result<FlightData, FlightError>> + Send + 'static {
    let rows = stream::poll_fn(move |context| queue.poll_recv(context));
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
    io: Arc<Io>,
    /// Dropped, the rows have ended.
    batches: Option<Sender<RecordBatch>>,
    /// Stored with `Release` before `batches` is dropped; read with `Acquire` after.
    committed: Arc<AtomicBool>,
    /// How the call ended.
    result: mpsc::Receiver<Result<(), ConnectorError>>,
    _task: Task,
}

impl SinkWriter for FlightWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let Some(batches) = self.batches.clone() else { return Err(died(&self.place)) };
        let batch = dataflow::detach(batch);
        let sending = async move { Ok(timeout(WRITE_TIMEOUT, batches.send(batch)).await) };
        let message = match self.io.wait(sending)? {
            Ok(Ok(())) => return Ok(()),
            Err(_) => format!("the server has taken no rows for {} s", WRITE_TIMEOUT.as_secs()),
            Ok(Err(_)) => match self.result.recv() {
                Ok(Err(error)) => return Err(error),
                Ok(Ok(())) => "the server ended the call before the last row".into(),
                Err(_) => return Err(died(&self.place)),
            },
        };
        Err(ConnectorError::Io { place: self.place.clone(), message, hint: None })
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
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
