//! Reading: a task for each endpoint gives batches to its worker.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow_flight::FlightEndpoint;
use dataflow::error::ConnectorError;
use dataflow::source::{Next, Position, ReaderContext, Source, Split, SplitReader};
use tokio::sync::mpsc::{Receiver, error::TryRecvError};

use super::client::Server;
use crate::format::typed::Mapping;
use crate::format::{Refuser, TargetColumns};
use crate::remote::{Io, QueueSender, Task, died, queue};

/// Batches that wait for the worker at most; each is as large as the server makes them.
const BATCHES_MAX: usize = 4;

pub(super) struct FlightSource {
    pub(super) server: Server,
    pub(super) endpoints: Vec<FlightEndpoint>,
    pub(super) bounded: bool,
    pub(super) target: Arc<TargetColumns>,
}

impl FlightSource {
    fn place(&self, flow: usize) -> String {
        format!("{} endpoint {flow}", self.server.place())
    }
}

impl Source for FlightSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    /// A server gives a stream from its beginning.
    fn replays(&self) -> bool {
        false
    }

    fn bounded(&self) -> bool {
        self.bounded
    }

    fn splits(
        &self,
        _workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let split = |number| Split { number, name: self.place(number), ..Split::default() };
        Ok((0..self.endpoints.len()).map(split).collect())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        let (batches, queue) = queue(BATCHES_MAX, &context.waker);
        let server = self.server.clone();
        let endpoint = self.endpoints[split.number].clone();
        let task = Io::shared()?.spawn(async move {
            let end = read(&server, &endpoint, &batches).await;
            batches.send(end.map(|()| None)).await;
        });
        Ok(Box::new(FlightReader {
            place: self.place(split.number),
            queue,
            _task: task,
            mapping: None,
            rest: None,
            row: 1,
            refuser: Refuser::new(&self.target, context),
        }))
    }
}

async fn read(
    server: &Server,
    endpoint: &FlightEndpoint,
    batches: &QueueSender<Result<Option<RecordBatch>, ConnectorError>>,
) -> Result<(), ConnectorError> {
    let mut rows = server.rows(endpoint).await?;
    loop {
        let Some(batch) = rows.next().await? else { return Ok(()) };
        if !batches.send(Ok(Some(batch))).await {
            return Ok(());
        }
    }
}

struct FlightReader {
    place: String,
    queue: Receiver<Result<Option<RecordBatch>, ConnectorError>>,
    _task: Task,
    /// Which column is which, once the stream has begun.
    mapping: Option<Mapping>,
    /// Rows that did not fit into the last batch asked for.
    rest: Option<RecordBatch>,
    /// The number of the row to be read next, counted from 1.
    row: u64,
    refuser: Refuser,
}

impl FlightReader {
    /// The rows of a batch that fit the table.
    fn rows(&mut self, batch: &RecordBatch) -> Result<RecordBatch, ConnectorError> {
        let target = &self.refuser.target;
        let mapping = match &self.mapping {
            Some(mapping) => mapping,
            None => self.mapping.insert(Mapping::new(target, &batch.schema(), &self.place)?),
        };
        let read = batch.project(&mapping.columns_read()).map_err(|error| ConnectorError::Io {
            place: self.place.clone(),
            message: error.to_string(),
            hint: None,
        })?;
        let first = self.row;
        self.row += batch.num_rows() as u64;
        mapping.rows(&self.refuser, &read, &self.place, &first)
    }
}

impl SplitReader for FlightReader {
    fn next(&mut self, rows_max: usize) -> Result<Next, ConnectorError> {
        loop {
            let batch = match self.rest.take() {
                Some(batch) => batch,
                None => match self.queue.try_recv() {
                    Ok(Ok(Some(batch))) => self.rows(&batch)?,
                    Ok(Ok(None)) => return Ok(Next::End),
                    Ok(Err(error)) => return Err(error),
                    Err(TryRecvError::Empty) => return Ok(Next::Pending),
                    Err(TryRecvError::Disconnected) => return Err(died(&self.place)),
                },
            };
            if batch.num_rows() > rows_max {
                self.rest = Some(batch.slice(rows_max, batch.num_rows() - rows_max));
                return Ok(Next::Batch(batch.slice(0, rows_max)));
            }
            if batch.num_rows() > 0 {
                return Ok(Next::Batch(batch));
            }
        }
    }

    fn position(&self) -> Position {
        Position::none(&self.place)
    }
}
