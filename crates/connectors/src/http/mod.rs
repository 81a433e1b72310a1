//! `http`: rows from a web address.
//!
//! ```text
//! 'url' alone            one GET; its answer is the table
//! 'interval' = '5s'      a GET every five seconds; each answer that is new is more rows
//! 'mode' = 'sse'         server-sent events; the data of each event is a record
//! ```
//!
//! Polling asks with the `ETag` and `Last-Modified` of the last answer, so that one that has not
//! changed gives no rows (304). An answer that breaks off within a record makes that record bad,
//! and the next poll asks for the whole again; without an interval it ends the query.
//!
//! Events: when the connection ends, the flow connects again with the `Last-Event-ID` of the last
//! whole event, so that a server that keeps events gives each once; an event that was cut off is
//! not taken. A server ends the stream with 204.
//!
//! Redirects are followed, ten at most and none from https to http. The headers of the table do not
//! go to another host, and none is told what was asked before.
//!
//! One flow, read by worker 0. What headers say (credentials, mostly) appears in no message.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use dataflow::connector::{Connector, MetadataSpec, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{Position, ReaderContext, Source, Split, SplitReader};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};

use crate::format::rows::METADATA;
use crate::format::{ByteInput, CSV_OPTIONS, Format, ON_BAD, Refuser, TargetColumns, protobuf};
use crate::options::{OptionReader, refuse};
use crate::remote::{
    Io, KEEPALIVE, RETRY_TIMEOUT, StreamReader, connection_format, decode, line_format,
    retry_timeout_ns,
};

mod array;
mod events;
mod poll;
mod request;

pub(crate) use array::array_in;
pub(crate) use events::events_in;

use request::Request;

/// The first letters of an option that is a header.
const HEADER: &str = "header.";

/// How long the other end may take to accept a connection, and to say something after a request.
const TIMEOUT: Duration = Duration::from_secs(10);

const URL_HINT: &str = "write 'url' = 'https://example.org/rows.json'";

/// The connector `http`.
#[derive(Debug, Clone, Copy)]
pub struct Http;

const OPTIONS: [OptionSpec; 13] = {
    let [header, delimiter, quote, comment, null] = CSV_OPTIONS;
    let url = OptionSpec {
        key: "url",
        values: "http://… or https://…",
        default: "",
        doc: "What is asked.",
    };
    let mode = OptionSpec {
        key: "mode",
        values: "poll | sse",
        default: "poll",
        doc: "Whether whole answers are read, or server-sent events.",
    };
    let interval = OptionSpec {
        key: "interval",
        values: "duration",
        default: "none: ask once",
        doc: "Between two polls, from beginning to beginning.",
    };
    let event = OptionSpec {
        key: "event",
        values: "text",
        default: "all",
        doc: "The type of the server-sent events that are read; others are ignored.",
    };
    let format = OptionSpec {
        key: "format",
        values: "csv | json | raw | avro | protobuf",
        default: "json",
        doc: "CSV; JSON: one object a line, or an array of objects; lines as they are; a file of \
              Avro; or messages of Protobuf behind their lengths. An event is CSV, JSON or text.",
    };
    let headers = OptionSpec {
        key: "header.<name>",
        values: "text",
        default: "none",
        doc: "A header of each request, such as 'header.authorization'; shown nowhere, and sent to \
              no host but that of 'url'.",
    };
    [
        url,
        mode,
        interval,
        event,
        headers,
        format,
        RETRY_TIMEOUT,
        ON_BAD,
        header,
        delimiter,
        quote,
        comment,
        null,
    ]
};

/// The options of a table, read.
#[derive(Clone)]
struct Settings {
    request: Request,
    format: Format,
    mode: Mode,
}

#[derive(Clone)]
enum Mode {
    Once,
    Every { interval_ns: u64 },
    Events { of_type: Option<String> },
}

impl Settings {
    fn new(options: &Options) -> Result<Self, ConnectorError> {
        let reader = OptionReader(options);
        let text = reader.required("url", URL_HINT)?;
        let url = Url::parse(text)
            .map_err(|error| refuse("url", format!("it is no address: {error}"), hint()))?;
        if !matches!(url.scheme(), "http" | "https") {
            let message = format!("'{}' is no way to ask", url.scheme());
            return Err(refuse("url", message, hint()));
        }
        let interval_ns = reader.duration_ns("interval")?;
        if interval_ns == Some(0) {
            return Err(refuse("interval", "it must be longer than nothing", None));
        }
        let event = reader.text("event").map(str::to_owned);
        let sse = reader.choice("mode", &["poll", "sse"])? == Some(1);
        let mode = match (sse, interval_ns, event) {
            (true, None, of_type) => Mode::Events { of_type },
            (true, Some(_), _) => {
                return Err(refuse("interval", "events come by themselves", None));
            }
            (false, _, Some(_)) => {
                let hint = Some("write 'mode' = 'sse'".into());
                return Err(refuse("event", "only server-sent events have types", hint));
            }
            (false, None, None) => Mode::Once,
            (false, Some(interval_ns), None) => Mode::Every { interval_ns },
        };
        let mut options = options.clone();
        options.entry("format".into()).or_insert_with(|| "json".into());
        // Events have no first line that could name columns.
        let format =
            if sse { line_format(&options, false) } else { connection_format(&options, true) }?;
        let given = headers(&options)?;
        let request =
            Request::new(client(sse)?, url, given, retry_timeout_ns(OptionReader(&options))?);
        Ok(Self { request, format, mode })
    }
}

fn hint() -> Option<String> {
    Some(URL_HINT.to_owned())
}

/// The headers that the table asks for.
fn headers(options: &Options) -> Result<HeaderMap, ConnectorError> {
    let mut headers = HeaderMap::new();
    for (key, value) in options {
        let Some(name) = key.strip_prefix(HEADER) else { continue };
        let name = HeaderName::try_from(name)
            .map_err(|_| refuse(key, format!("'{name}' is no name of a header"), None))?;
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| refuse(key, "its value cannot be sent in a header", None))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn client(sse: bool) -> Result<Client, ConnectorError> {
    let builder = Client::builder()
        .user_agent(concat!("millstream/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .referer(false)
        .tcp_keepalive(KEEPALIVE)
        .connect_timeout(TIMEOUT);
    // Events may be far apart.
    let builder = if sse { builder } else { builder.read_timeout(TIMEOUT) };
    builder.build().map_err(|error| refuse("url", error.to_string(), None))
}

impl Connector for Http {
    fn name(&self) -> &'static str {
        "http"
    }

    fn options(&self) -> &'static [OptionSpec] {
        static ALL: LazyLock<Vec<OptionSpec>> =
            LazyLock::new(|| [&OPTIONS[..], &protobuf::OPTIONS].concat());
        &ALL
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &METADATA
    }

    /// From what describes the format, or the first records of an answer; not from events, which
    /// would be missing afterwards.
    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let settings = Settings::new(options)?;
        if let Mode::Events { .. } = settings.mode {
            return Ok(None);
        }
        if let Some(columns) = settings.format.described() {
            return Ok(Some(Arc::new(columns)));
        }
        let io = Io::shared()?;
        let place = settings.request.place().to_owned();
        let Settings { request, format, .. } = settings.clone();
        let sample = io.wait(async move { poll::sample(&request, &format).await })?;
        let input = ByteInput::new(Box::new(std::io::Cursor::new(sample)), place);
        Ok(Some(Arc::new(settings.format.infer(input)?)))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let settings = Settings::new(&table.options)?;
        let target = Arc::new(TargetColumns::new(table, projection)?);
        settings.format.check(&target.declared)?;
        Ok(Arc::new(HttpSource { settings, target }))
    }

    fn sink(&self, _table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Err(refuse(
            "connector",
            "'http' can only be read from",
            Some("write to 'file', 'socket' or 'flight'".into()),
        ))
    }
}

struct HttpSource {
    settings: Settings,
    target: Arc<TargetColumns>,
}

impl Source for HttpSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        matches!(self.settings.mode, Mode::Once)
    }

    /// A server need not answer with the same rows again.
    fn replays(&self) -> bool {
        false
    }

    fn splits(
        &self,
        _workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        let name = self.settings.request.place().to_owned();
        Ok(vec![Split { name, ..Split::default() }])
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        let Settings { request, format, mode } = self.settings.clone();
        split.begins(from)?;
        let refuser = Refuser::new(&self.target, context);
        let is_json = matches!(format, Format::Json);
        let decode = decode(format.clone(), refuser.clone());
        let io = Io::shared()?;
        Ok(match mode {
            Mode::Events { of_type } => {
                let streams = events::listen(&io, request, of_type, is_json, &context.waker);
                Box::new(StreamReader::new(split, streams, decode))
            }
            Mode::Once | Mode::Every { .. } => {
                let interval_ns = match mode {
                    Mode::Every { interval_ns } => Some(interval_ns),
                    _ => None,
                };
                let polls = poll::Polls::new(io, request, interval_ns, format, refuser, context);
                Box::new(StreamReader::new(split, polls, decode))
            }
        })
    }
}
