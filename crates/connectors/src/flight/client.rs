//! A server: how it is reached, and what it says when something is wrong.

use std::time::Duration;

use arrow::datatypes::Schema;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightClient, FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use dataflow::connector::Options;
use dataflow::error::ConnectorError;
use futures::TryStreamExt;
use tonic::Code;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::Endpoint;

use super::{Reader, URI_HINT, patience_ns, refuse};
use crate::remote::{Backoff, chain};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a message at most: servers cut larger batches.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The first letters of an option that is metadata of a call.
const HEADER: &str = "header.";

/// A location that stands for the server that named it.
const SAME_SERVER: &str = "arrow-flight-reuse-connection://";

/// A server and who asks.
#[derive(Clone)]
pub(super) struct Server {
    place: String,
    endpoint: Endpoint,
    headers: MetadataMap,
    patience_ns: u64,
}

impl Server {
    pub(super) fn new(options: &Options) -> Result<Self, ConnectorError> {
        let reader = Reader(options);
        let uri = reader.required("uri", URI_HINT)?;
        let endpoint =
            endpoint(uri).map_err(|message| refuse("uri", message, Some(URI_HINT.into())))?;
        let mut headers = MetadataMap::new();
        for (key, value) in options {
            let Some(name) = key.strip_prefix(HEADER) else { continue };
            let name = MetadataKey::<Ascii>::from_bytes(name.to_ascii_lowercase().as_bytes());
            let name = name.map_err(|_| refuse(key, "it is no name of metadata", None))?;
            let value = MetadataValue::try_from(value.as_str());
            let mut value = value.map_err(|_| refuse(key, "its value cannot be sent", None))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let place = uri.to_owned();
        Ok(Self { place, endpoint, headers, patience_ns: patience_ns(reader)? })
    }

    /// Its address, for messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The server of an endpoint: the first of its locations, or the one that named it.
    fn of(&self, location: &FlightEndpoint) -> Result<Self, ConnectorError> {
        let Some(location) = location.location.first() else { return Ok(self.clone()) };
        if location.uri.is_empty() || location.uri.starts_with(SAME_SERVER) {
            return Ok(self.clone());
        }
        let endpoint = endpoint(&location.uri).map_err(|message| ConnectorError::Io {
            place: self.place.clone(),
            message: format!("the server names a location: {message}"),
            hint: None,
        })?;
        Ok(Self { place: location.uri.clone(), endpoint, ..self.clone() })
    }

    /// A connection; tried again until patience ends.
    async fn connect(&self, backoff: &mut Backoff) -> Result<FlightClient, ConnectorError> {
        loop {
            let error = match self.endpoint.connect().await {
                Ok(channel) => {
                    let inner = FlightServiceClient::new(channel)
                        .max_decoding_message_size(MESSAGE_BYTES_MAX)
                        .max_encoding_message_size(MESSAGE_BYTES_MAX);
                    let mut client = FlightClient::new_from_inner(inner);
                    client.metadata_mut().clone_from(&self.headers);
                    return Ok(client);
                }
                Err(error) => error,
            };
            if !backoff.again().await {
                return Err(ConnectorError::Io {
                    place: self.place.clone(),
                    message: format!("cannot be reached: {}", chain(&error)),
                    hint: Some("check 'uri'; 'patience' is how long to try again".into()),
                });
            }
        }
    }

    /// What the server says of `descriptor`.
    pub(super) async fn flight_info(
        &self,
        descriptor: FlightDescriptor,
    ) -> Result<FlightInfo, ConnectorError> {
        let mut backoff = Backoff::new(self.patience_ns);
        loop {
            let mut client = self.connect(&mut backoff).await?;
            match client.get_flight_info(descriptor.clone()).await {
                Ok(info) => return Ok(info),
                Err(error) if passes(&error) && backoff.again().await => {}
                Err(error) => return Err(self.said(&error)),
            }
        }
    }

    /// The rows of an endpoint.
    pub(super) async fn rows(
        &self,
        endpoint: &FlightEndpoint,
    ) -> Result<FlightRecordBatchStream, ConnectorError> {
        let server = self.of(endpoint)?;
        let mut backoff = Backoff::new(self.patience_ns);
        loop {
            let mut client = server.connect(&mut backoff).await?;
            let ticket = endpoint.ticket.clone().unwrap_or_else(|| Ticket::new(""));
            match client.do_get(ticket).await {
                Ok(rows) => return Ok(rows),
                Err(error) if passes(&error) && backoff.again().await => {}
                Err(error) => return Err(server.said(&error)),
            }
        }
    }

    /// The columns of an endpoint, from its beginning.
    pub(super) async fn schema_of(
        &self,
        endpoint: FlightEndpoint,
    ) -> Result<Schema, ConnectorError> {
        let mut rows = self.rows(&endpoint).await?;
        let first = rows.try_next().await.map_err(|error| self.said(&error))?;
        let schema = rows.schema().cloned().or(first.map(|batch| batch.schema()));
        schema.map(|schema| schema.as_ref().clone()).ok_or_else(|| ConnectorError::Io {
            place: self.place.clone(),
            message: "the stream has no schema".into(),
            hint: Some("declare the columns of the table".into()),
        })
    }

    /// A client for a sink.
    pub(super) async fn client(&self) -> Result<FlightClient, ConnectorError> {
        self.connect(&mut Backoff::new(self.patience_ns)).await
    }

    /// What went wrong, with what to do about it.
    pub(super) fn said(&self, error: &FlightError) -> ConnectorError {
        let (message, hint) = match error {
            FlightError::Tonic(status) => {
                let hint = match status.code() {
                    Code::Unauthenticated | Code::PermissionDenied => {
                        Some("credentials are given by 'header.authorization'")
                    }
                    Code::NotFound => Some("check 'path', 'command' or 'ticket'"),
                    Code::Unimplemented => Some("the server does not offer this call"),
                    _ => None,
                };
                (format!("{:?}: {}", status.code(), status.message()), hint)
            }
            other => (chain(other), None),
        };
        ConnectorError::Io { place: self.place.clone(), message, hint: hint.map(str::to_owned) }
    }
}

/// Whether the same call may succeed a little later.
fn passes(error: &FlightError) -> bool {
    matches!(error, FlightError::Tonic(status) if status.code() == Code::Unavailable)
}

/// A server's address in the words of HTTP.
fn endpoint(uri: &str) -> Result<Endpoint, String> {
    let (scheme, rest) = uri.split_once("://").unwrap_or(("", uri));
    match scheme {
        "grpc" | "grpc+tcp" | "http" => {}
        "grpc+tls" | "https" => return Err(format!("'{uri}' needs TLS, which is not offered")),
        _ => return Err(format!("'{uri}' is no address of a Flight server")),
    }
    Endpoint::from_shared(format!("http://{rest}"))
        .map(|endpoint| endpoint.connect_timeout(CONNECT_TIMEOUT))
        .map_err(|_| format!("'{uri}' is no address of a Flight server"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_or_refused_with_the_reason() {
        assert_eq!(endpoint("grpc+tcp://h:1").unwrap().uri().to_string(), "http://h:1/");
        assert!(endpoint("grpc+tls://h:1").unwrap_err().contains("TLS"));
        assert!(endpoint("h:1").is_err());
        assert!(endpoint("grpc:// ").is_err());
    }
}
