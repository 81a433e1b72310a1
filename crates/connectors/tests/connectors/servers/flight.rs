//! A Flight server with tables in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow::record_batch::RecordBatch;
use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo,
    HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use super::Serving;

type Answer<T> = Result<Response<T>, Status>;

/// Tables by name; each batch of a table is an endpoint.
#[derive(Clone, Default)]
pub struct Tables {
    pub tables: Arc<Mutex<BTreeMap<String, Vec<RecordBatch>>>>,
    /// Puts that broke off before their end.
    pub broken: Arc<Mutex<Vec<String>>>,
    /// Whether information about a table lacks its schema, and what calls must carry.
    pub without_schema: bool,
    pub password: Option<&'static str>,
    /// Where endpoints are said to be.
    pub location: Option<String>,
    /// What calls gave as password, by call.
    pub given: Arc<Mutex<Vec<Option<String>>>>,
    /// A byte of the schema's message that is changed: where, and to what.
    pub damage: Arc<Mutex<Option<(usize, u8)>>>,
}

impl Tables {
    pub fn serve(self) -> Serving {
        Serving::start(|listener| async move {
            let incoming = TcpIncoming::from(listener);
            let service = FlightServiceServer::new(self);
            Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        })
    }

    /// A message behind so many bytes, with what is to be wrong in it.
    fn damaged(&self, message: &Bytes, behind: usize) -> Bytes {
        let mut message = message.to_vec();
        if let Some((at, value)) = *self.damage.lock().unwrap()
            && let Some(byte) = message.get_mut(behind + at)
        {
            *byte = value;
        }
        message.into()
    }

    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let given = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        self.given.lock().unwrap().push(given.map(str::to_owned));
        match self.password {
            Some(password) if given != Some(password) => {
                Err(Status::unauthenticated("who are you?"))
            }
            _ => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl FlightService for Tables {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoActionStream = BoxStream<'static, Result<arrow_flight::Result, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Answer<FlightInfo> {
        self.check(&request)?;
        let name = request.into_inner().path.join("/");
        let tables = self.tables.lock().unwrap();
        let Some(batches) = tables.get(&name) else {
            return Err(Status::not_found(format!("no table '{name}'")));
        };
        let mut info = FlightInfo::new();
        if !self.without_schema {
            info = info.try_with_schema(&batches[0].schema()).unwrap();
            // In front of the message there are its mark and its length.
            let schema = self.damaged(&info.schema, 8);
            info.schema = schema;
        }
        for part in 0..batches.len() {
            let ticket = Ticket::new(format!("{name}#{part}"));
            let endpoint = FlightEndpoint::new().with_ticket(ticket);
            info = info.with_endpoint(match &self.location {
                Some(location) => endpoint.with_location(location),
                None => endpoint,
            });
        }
        Ok(Response::new(info))
    }

    async fn do_get(&self, request: Request<Ticket>) -> Answer<Self::DoGetStream> {
        self.check(&request)?;
        let ticket = String::from_utf8(request.into_inner().ticket.to_vec()).unwrap();
        let (name, part) = ticket.split_once('#').unwrap_or((&ticket, "0"));
        let tables = self.tables.lock().unwrap();
        let batch = tables.get(name).map(|batches| batches[part.parse::<usize>().unwrap()].clone());
        let Some(batch) = batch else { return Err(Status::not_found("no such ticket")) };
        let rows = FlightDataEncoderBuilder::new()
            .with_schema(batch.schema())
            .build(stream::iter([Ok(batch)]));
        let tables = self.clone();
        let mut schema = true;
        let rows = rows.map_err(Status::from).map_ok(move |mut data| {
            if std::mem::take(&mut schema) {
                data.data_header = tables.damaged(&data.data_header, 0);
            }
            data
        });
        Ok(Response::new(rows.boxed()))
    }

    async fn do_put(&self, request: Request<Streaming<FlightData>>) -> Answer<Self::DoPutStream> {
        self.check(&request)?;
        let mut data = request.into_inner().peekable();
        let first = std::pin::Pin::new(&mut data).peek().await;
        let descriptor = first.and_then(|first| first.as_ref().ok()?.flight_descriptor.clone());
        let name = descriptor.unwrap_or_default().path.join("/");
        if name == "refused" {
            return Err(Status::permission_denied("it is read-only"));
        }
        let rows = FlightRecordBatchStream::new_from_flight_data(data.map_err(Into::into));
        match rows.try_collect::<Vec<_>>().await {
            Ok(batches) => {
                self.tables.lock().unwrap().insert(name, batches);
                Ok(Response::new(stream::empty().boxed()))
            }
            Err(_) => {
                self.broken.lock().unwrap().push(name);
                Err(Status::aborted("the stream broke off"))
            }
        }
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Answer<Self::HandshakeStream> {
        Err(Status::unimplemented("handshake"))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Answer<Self::ListFlightsStream> {
        Err(Status::unimplemented("list_flights"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Answer<PollInfo> {
        Err(Status::unimplemented("poll_flight_info"))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Answer<SchemaResult> {
        Err(Status::unimplemented("get_schema"))
    }

    async fn do_action(&self, _: Request<Action>) -> Answer<Self::DoActionStream> {
        Err(Status::unimplemented("do_action"))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Answer<Self::ListActionsStream> {
        Err(Status::unimplemented("list_actions"))
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Answer<Self::DoExchangeStream> {
        Err(Status::unimplemented("do_exchange"))
    }
}
