//! A server: how it is reached, and what it says when something is wrong.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::Schema;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightClient, FlightDescriptor, FlightEndpoint, FlightInfo};
use dataflow::connector::Options;
use dataflow::error::ConnectorError;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::Endpoint;
use tonic::{Code, Request};

use super::rows::Rows;
use super::{OptionReader, TRUSTED, URI_HINT, refuse, retry_timeout_ns};
use crate::remote::{Backoff, KEEPALIVE, chain};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a message at most: servers cut larger batches.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The first letters of an option that is metadata of a call.
const HEADER: &str = "header.";

/// A location that stands for the server that named it.
const SAME_SERVER: &str = "arrow-flight-reuse-connection://";

/// A server and the credentials of its client.
#[derive(Clone)]
pub(super) struct Server {
    place: String,
    endpoint: Endpoint,
    /// The headers given for it, and for no other.
    headers: MetadataMap,
    /// Others that may get the same.
    trusted: Arc<[Authority]>,
    retry_timeout_ns: u64,
}

/// A host in lower case, and a port.
type Authority = (String, u16);

impl Server {
    pub(super) fn new(options: &Options) -> Result<Self, ConnectorError> {
        let reader = OptionReader(options);
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
        let trusted = trusted(reader)?;
        Ok(Self { place, endpoint, headers, trusted, retry_timeout_ns: retry_timeout_ns(reader)? })
    }

    /// Its address, for messages.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The server of an endpoint: the first of its locations, or the one that named it. What was
    /// given for this one is not told to another, unless that is trusted.
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
        let there = authority(&endpoint);
        let knows = there.is_some()
            && (there == authority(&self.endpoint)
                || self.trusted.iter().any(|trusted| Some(trusted) == there.as_ref()));
        let headers = if knows { self.headers.clone() } else { MetadataMap::new() };
        Ok(Self { place: location.uri.clone(), endpoint, headers, ..self.clone() })
    }

    /// A connection; tried again until the time for it has passed.
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
                    hint: Some("check 'uri'; 'retry.timeout' is how long to try again".into()),
                });
            }
        }
    }

    /// The server's answer about `descriptor`.
    pub(super) async fn flight_info(
        &self,
        descriptor: FlightDescriptor,
    ) -> Result<FlightInfo, ConnectorError> {
        let mut backoff = Backoff::new(self.retry_timeout_ns);
        loop {
            let mut client = self.connect(&mut backoff).await?;
            match client.get_flight_info(descriptor.clone()).await {
                Ok(info) => return Ok(info),
                Err(error) if passes(&error) && backoff.again().await => {}
                Err(error) => return Err(self.error_of(&error)),
            }
        }
    }

    /// The rows of an endpoint.
    pub(super) async fn rows(&self, endpoint: &FlightEndpoint) -> Result<Rows, ConnectorError> {
        let server = self.of(endpoint)?;
        let mut backoff = Backoff::new(self.retry_timeout_ns);
        loop {
            let mut client = server.connect(&mut backoff).await?.into_inner();
            let mut ask = Request::new(endpoint.ticket.clone().unwrap_or_default());
            ask.metadata_mut().clone_from(&server.headers);
            match client.do_get(ask).await.map_err(FlightError::from) {
                Ok(answer) => return Ok(Rows::new(server, answer.into_inner())),
                Err(error) if passes(&error) && backoff.again().await => {}
                Err(error) => return Err(server.error_of(&error)),
            }
        }
    }

    /// The columns of an endpoint, from its beginning.
    pub(super) async fn schema_of(
        &self,
        endpoint: FlightEndpoint,
    ) -> Result<Schema, ConnectorError> {
        let schema = self.rows(&endpoint).await?.schema().await?;
        schema.map(|schema| schema.as_ref().clone()).ok_or_else(|| ConnectorError::Io {
            place: self.place.clone(),
            message: "the stream has no schema".into(),
            hint: Some("declare the columns of the table".into()),
        })
    }

    /// A client for a sink.
    pub(super) async fn client(&self) -> Result<FlightClient, ConnectorError> {
        self.connect(&mut Backoff::new(self.retry_timeout_ns)).await
    }

    /// The error, with a hint.
    pub(super) fn error_of(&self, error: &FlightError) -> ConnectorError {
        let (message, hint) = match error {
            FlightError::Tonic(status) => {
                let hint = match status.code() {
                    Code::Unauthenticated | Code::PermissionDenied => Some(
                        "credentials are given by 'header.authorization'; other servers than that \
                         of 'uri' get them where 'trusted' names them",
                    ),
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
        .map(|endpoint| endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_keepalive(Some(KEEPALIVE)))
        .map_err(|_| format!("'{uri}' is no address of a Flight server"))
}

/// The servers beside that of the table that get what was given for it.
fn trusted(options: OptionReader<'_>) -> Result<Arc<[Authority]>, ConnectorError> {
    let names = options.text(TRUSTED).unwrap_or_default();
    let named = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    let place = |name: &str| {
        let place = Endpoint::from_shared(format!("http://{name}")).ok();
        place.as_ref().and_then(authority).ok_or_else(|| {
            let hint = Some("write 'trusted' = 'host-a:8815, host-b:8815'".to_owned());
            refuse(TRUSTED, format!("'{name}' is no host and port"), hint)
        })
    };
    named.map(place).collect()
}

/// The host and port of a server.
fn authority(endpoint: &Endpoint) -> Option<Authority> {
    let uri = endpoint.uri();
    Some((uri.host()?.to_ascii_lowercase(), uri.port_u16().unwrap_or(80)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(options: &[(&str, &str)]) -> Server {
        let options = options.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        Server::new(&options.collect()).unwrap()
    }

    #[test]
    fn what_was_given_for_a_server_goes_to_no_other_unless_it_is_trusted() {
        let given = [
            ("uri", "grpc://a.org:8815"),
            ("header.x-api-key", "secret"),
            (TRUSTED, "b.org:1, [::1]:8815,c.org"),
        ];
        let server = server(&given);
        let headers = |location: &str| {
            let endpoint = FlightEndpoint::new().with_location(location);
            server.of(&endpoint).unwrap().headers.len()
        };
        for trusted in [
            "",
            "arrow-flight-reuse-connection://?",
            "grpc://A.org:8815",
            "grpc+tcp://a.org:8815",
            "grpc://b.org:1",
            "http://[::1]:8815",
            "grpc://c.org",
        ] {
            assert_eq!(headers(trusted), 1, "{trusted}");
        }
        for kept in
            ["grpc://a.org:8816", "grpc://a.org", "grpc://b.org:8815", "grpc://x.a.org:8815"]
        {
            assert_eq!(headers(kept), 0, "{kept}");
        }
        let wrong = [("uri", "grpc://a.org:1"), (TRUSTED, "no host")];
        let wrong = wrong.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert!(Server::new(&wrong.into_iter().collect()).is_err());
    }

    #[test]
    fn addresses_are_understood_or_refused_with_the_reason() {
        assert_eq!(endpoint("grpc+tcp://h:1").unwrap().uri().to_string(), "http://h:1/");
        assert!(endpoint("grpc+tls://h:1").unwrap_err().contains("TLS"));
        assert!(endpoint("h:1").is_err());
        assert!(endpoint("grpc:// ").is_err());
    }
}
