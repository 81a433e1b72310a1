//! The rows of an endpoint, message by message.
//!
//! Bytes of a server are not trusted: a message is decoded as one of a file is
//! ([`crate::format::ipc`]), which checks what it states against the bytes that are there and
//! survives what the library does not.

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow_flight::FlightData;
use arrow_flight::error::FlightError;
use dataflow::error::ConnectorError;
use tonic::Streaming;

use super::client::Server;
use crate::format::ipc::{IpcContext, schema_in};

/// A stream of rows that has been asked for.
pub(super) struct Rows {
    server: Server,
    messages: Streaming<FlightData>,
    context: Option<IpcContext>,
}

impl Rows {
    pub(super) fn new(server: Server, messages: Streaming<FlightData>) -> Self {
        Self { server, messages, context: None }
    }

    /// The columns; `None` when the stream ends before it tells them.
    pub(super) async fn schema(&mut self) -> Result<Option<SchemaRef>, ConnectorError> {
        while self.context.is_none() {
            let Some(message) = self.message().await? else { return Ok(None) };
            let schema = schema_in(&message.data_header).map_err(|why| self.unreadable(&why))?;
            self.context = Some(IpcContext::new(schema));
        }
        Ok(self.context.as_ref().map(|context| SchemaRef::clone(&context.schema)))
    }

    /// The next batch; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<RecordBatch>, ConnectorError> {
        let Some(schema) = self.schema().await? else { return Ok(None) };
        let all: Vec<usize> = (0..schema.fields().len()).collect();
        while let Some(FlightData { data_header, data_body, .. }) = self.message().await? {
            let accept = |context: &mut IpcContext| context.accept(&data_header, &data_body, &all);
            let batch = self.context.as_mut().map(accept).transpose();
            if let Some(batch) = batch.map_err(|why| self.unreadable(&why))?.flatten() {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// The next message with something of Arrow in it: some have words for applications alone.
    async fn message(&mut self) -> Result<Option<FlightData>, ConnectorError> {
        loop {
            let message = self.messages.message().await;
            match message.map_err(|error| self.server.error_of(&FlightError::from(error)))? {
                Some(message) if message.data_header.is_empty() => {}
                message => return Ok(message),
            }
        }
    }

    fn unreadable(&self, why: &str) -> ConnectorError {
        ConnectorError::Io {
            place: self.server.place().to_owned(),
            message: format!("the server's rows cannot be read: {why}"),
            hint: None,
        }
    }
}
