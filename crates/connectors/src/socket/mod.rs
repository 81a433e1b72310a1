//! `socket`: lines over TCP, messages of Protobuf, or a file of Avro.
//!
//! ```text
//! 'address' = 'host:port, …'   each address is a flow, read by its own connection
//! end of the stream            ends the flow; its last line counts, with or without a line end
//! connection lost              what was cut off is a bad record; the flow connects again
//! ```
//!
//! TCP has no position to resume from: lines that the peer sent while nobody was connected are
//! gone, and lines that it sends again come twice. For more than that there must be a log at the
//! other end.
//!
//! As a sink, worker 0 connects and writes lines as they come. A peer that reads too slowly slows
//! the query down; what was sent cannot be taken back when the query fails.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::SchemaRef;
use dataflow::connector::{Connector, MetadataSpec, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{Position, ReaderContext, Source, Split, SplitReader};

use crate::format::rows::METADATA;
use crate::format::{CSV_OPTIONS, Format, ON_BAD, Refuser, TargetColumns, avro, protobuf};
use crate::options::{OptionReader, refuse};
use crate::remote::{Io, RETRY_TIMEOUT, StreamReader, connection_format, decode, retry_timeout_ns};

mod encoding;
mod sink;
mod source;

/// Addresses of a table at most: each costs a connection and a queue.
const ADDRESSES_MAX: usize = 1024;

/// The connector `socket`.
#[derive(Debug, Clone, Copy)]
pub struct Socket;

const OPTIONS: [OptionSpec; 9] = {
    let [header, delimiter, quote, comment, null] = CSV_OPTIONS;
    let address = OptionSpec {
        key: "address",
        values: "host:port, or several separated by commas",
        default: "",
        doc: "The addresses to connect to: a flow for each. A sink has one.",
    };
    let format = OptionSpec {
        key: "format",
        values: "csv | json | raw | avro | protobuf",
        default: "csv",
        doc: "CSV, one JSON object a line, lines as they are, a file of Avro for each connection, \
              or messages of Protobuf behind their lengths.",
    };
    let header = OptionSpec { default: "false", ..header };
    [address, format, RETRY_TIMEOUT, ON_BAD, header, delimiter, quote, comment, null]
};

/// The options of a table, read.
struct Settings {
    addresses: Vec<String>,
    format: Format,
    retry_timeout_ns: u64,
}

impl Settings {
    fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let hint = "write 'address' = 'localhost:9000'";
        let list = options.required("address", hint)?;
        let addresses: Vec<String> = list.split(',').map(|one| one.trim().to_owned()).collect();
        for address in &addresses {
            let parts = address.rsplit_once(':');
            let valid = parts.is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            });
            if !valid {
                let message = format!("'{address}' is no host and port");
                return Err(refuse("address", message, Some(hint.into())));
            }
        }
        if addresses.len() > ADDRESSES_MAX {
            let message = format!("{} addresses; {ADDRESSES_MAX} at most", addresses.len());
            return Err(refuse("address", message, None));
        }
        let format = connection_format(&table.options, false)?;
        Ok(Self { addresses, format, retry_timeout_ns: retry_timeout_ns(options)? })
    }
}

impl Connector for Socket {
    fn name(&self) -> &'static str {
        "socket"
    }

    fn options(&self) -> &'static [OptionSpec] {
        static ALL: LazyLock<Vec<OptionSpec>> = LazyLock::new(|| {
            [&OPTIONS[..], &avro::OPTIONS, &[avro::CODEC], &protobuf::OPTIONS].concat()
        });
        &ALL
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &METADATA
    }

    /// Of a format whose columns are described elsewhere: what is looked at would be missing from
    /// the stream.
    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(connection_format(options, false)?.described().map(Arc::new))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let settings = Settings::new(table)?;
        let target = Arc::new(TargetColumns::new(table, projection)?);
        settings.format.check(&target.declared)?;
        Ok(Arc::new(SocketSource { settings, target }))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let settings = Settings::new(table)?;
        Ok(Arc::new(sink::SocketSink::new(settings, table)?))
    }
}

struct SocketSource {
    settings: Settings,
    target: Arc<TargetColumns>,
}

impl Source for SocketSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        false
    }

    fn splits(
        &self,
        _workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let split = |(number, address): (usize, &String)| Split {
            number,
            name: address.clone(),
            ..Split::default()
        };
        Ok(self.settings.addresses.iter().enumerate().map(split).collect())
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        let refuser = Refuser::new(&self.target, context);
        let streams = source::connect(
            &Io::shared()?,
            self.settings.addresses[split.number].clone(),
            self.settings.retry_timeout_ns,
            (self.settings.format.clone(), refuser.clone()),
            &context.waker,
        );
        let decode = decode(self.settings.format.clone(), refuser);
        Ok(Box::new(StreamReader::new(split, streams, decode)))
    }
}
