//! `flight`: rows from and to a server of Arrow Flight.
//!
//! ```text
//! source   'path' or 'command' ─▶ GetFlightInfo ─▶ endpoints: each is a flow, read by DoGet
//!          'ticket'            ─▶ one flow, read by DoGet
//! sink     'path' or 'command' ─▶ worker 0 writes by one DoPut
//! ```
//!
//! A server may name others, where endpoints are read. What the table has for it, as
//! `header.authorization`, is not told to those, unless the table trusts them.
//!
//! Columns are matched by name and cast as those of a file are. A connection that is lost within
//! the rows ends the query: Flight has no position to resume from. The rows of a sink that is not
//! committed end in a message that is none, so that the server sees a broken stream and not the end
//! of one; what it does with the rows that it had is its own affair.
//!
//! Deliberately absent: TLS, and Flight SQL's commands, which a 'command' can carry but nobody here
//! makes.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use dataflow::connector::{Connector, MetadataSpec, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;

use crate::format::ipc::framed_schema;
use crate::format::rows::METADATA;
use crate::format::typed::{Mapping, plain};
use crate::format::{ON_BAD, TargetColumns};
use crate::options::{OptionReader, refuse};
use crate::remote::{Io, RETRY_TIMEOUT, retry_timeout_ns};

mod client;
mod rows;
mod sink;
mod source;

use client::Server;

/// Endpoints of a table at most: each is a flow.
const ENDPOINTS_MAX: usize = 100_000;

const URI_HINT: &str = "write 'uri' = 'grpc://localhost:8815'";

/// The option that names servers which get the table's headers, too.
const TRUSTED: &str = "trusted";

const WHAT_HINT: &str = "write 'path' = 'flights', 'command' = '…' or 'ticket' = '…'";

/// The connector `flight`.
#[derive(Debug, Clone, Copy)]
pub struct FlightConnector;

const OPTIONS: [OptionSpec; 9] = [
    OptionSpec {
        key: "uri",
        values: "grpc://host:port",
        default: "",
        doc: "The server. Endpoints that it names elsewhere are read there.",
    },
    OptionSpec {
        key: "path",
        values: "names, separated by /",
        default: "none",
        doc: "The stream to read or to write, as a path.",
    },
    OptionSpec {
        key: "command",
        values: "text",
        default: "none",
        doc: "The stream to read or to write, as a command that the server understands.",
    },
    OptionSpec {
        key: "ticket",
        values: "text",
        default: "none",
        doc: "The stream to read, as a ticket from the server; a sink cannot have one.",
    },
    OptionSpec {
        key: "bounded",
        values: "true | false",
        default: "true",
        doc: "Whether the endpoints end; those that do not are all read at the same time.",
    },
    OptionSpec {
        key: "header.<name>",
        values: "text",
        default: "none",
        doc: "Metadata of each call, such as 'header.authorization'; shown nowhere, and sent to no \
              server but that of 'uri'.",
    },
    OptionSpec {
        key: TRUSTED,
        values: "host:port, …",
        default: "none",
        doc: "Other servers that get 'header.<name>', too, where endpoints are named there.",
    },
    RETRY_TIMEOUT,
    ON_BAD,
];

/// The object that is read or written.
#[derive(Clone)]
enum What {
    Descriptor(FlightDescriptor),
    Ticket(Ticket),
}

impl What {
    fn new(options: OptionReader<'_>) -> Result<Self, ConnectorError> {
        let given = |key| options.text(key);
        match (given("path"), given("command"), given("ticket")) {
            (Some(path), None, None) => {
                let names = path.split('/').filter(|name| !name.is_empty());
                let names = names.map(str::to_owned).collect();
                Ok(Self::Descriptor(FlightDescriptor::new_path(names)))
            }
            (None, Some(command), None) => {
                Ok(Self::Descriptor(FlightDescriptor::new_cmd(command.to_owned())))
            }
            (None, None, Some(ticket)) => Ok(Self::Ticket(Ticket::new(ticket.to_owned()))),
            (None, None, None) => Err(refuse("path", "is missing", Some(WHAT_HINT.into()))),
            _ => {
                let message = "there are several of 'path', 'command' and 'ticket'";
                Err(refuse("path", message, Some("keep one of them".into())))
            }
        }
    }
}

/// The server's description of a table.
struct Plan {
    /// Its columns, where the server tells them before the rows.
    schema: Option<SchemaRef>,
    endpoints: Vec<FlightEndpoint>,
}

fn plan(server: &Server, what: &What) -> Result<Plan, ConnectorError> {
    let place = server.place().to_owned();
    let asked = match what {
        What::Ticket(ticket) => {
            let endpoint = FlightEndpoint::new().with_ticket(ticket.clone());
            return Ok(Plan { schema: None, endpoints: vec![endpoint] });
        }
        What::Descriptor(descriptor) => descriptor.clone(),
    };
    let server = server.clone();
    let info: FlightInfo = Io::shared()?.wait(async move { server.flight_info(asked).await })?;
    let schema = if info.schema.is_empty() {
        None
    } else {
        Some(framed_schema(&info.schema).map_err(|error| ConnectorError::Io {
            place: place.clone(),
            message: format!("the server's schema cannot be read: {error}"),
            hint: None,
        })?)
    };
    if info.endpoint.len() > ENDPOINTS_MAX {
        let message = format!("{} endpoints; {ENDPOINTS_MAX} at most", info.endpoint.len());
        return Err(ConnectorError::Io { place, message, hint: None });
    }
    Ok(Plan { schema, endpoints: info.endpoint })
}

impl Connector for FlightConnector {
    fn name(&self) -> &'static str {
        "flight"
    }

    fn options(&self) -> &'static [OptionSpec] {
        &OPTIONS
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &METADATA
    }

    /// From the server.
    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let server = Server::new(options)?;
        let plan = plan(&server, &What::new(OptionReader(options))?)?;
        let schema = match (plan.schema, plan.endpoints.into_iter().next()) {
            (Some(schema), _) => schema.as_ref().clone(),
            (None, None) => return Ok(None),
            (None, Some(endpoint)) => {
                Io::shared()?.wait(async move { server.schema_of(endpoint).await })?
            }
        };
        Ok(Some(Arc::new(plain(&schema))))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let options = OptionReader(&table.options);
        let server = Server::new(&table.options)?;
        let bounded = options.bool("bounded", true)?;
        let target = Arc::new(TargetColumns::new(table, projection)?);
        let plan = plan(&server, &What::new(options)?)?;
        if let Some(schema) = &plan.schema {
            Mapping::new(&target, schema, server.place())?;
        }
        Ok(Arc::new(source::FlightSource { server, endpoints: plan.endpoints, bounded, target }))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let server = Server::new(&table.options)?;
        match What::new(OptionReader(&table.options))? {
            What::Descriptor(descriptor) => Ok(Arc::new(sink::FlightSink {
                server,
                descriptor,
                schema: Arc::clone(&table.schema),
            })),
            What::Ticket(_) => {
                let hint = Some("write 'path' = '…' or 'command' = '…'".into());
                Err(refuse("ticket", "a sink cannot have one", hint))
            }
        }
    }
}
