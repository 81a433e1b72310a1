//! `stdin`: rows that are piped into the program.
//!
//! ```text
//! cat x.csv | millstream run q.sql
//! ```
//!
//! One flow, read by worker 0: of several nodes, that is the one which the user started. The bytes
//! can be read once, so that a script can read them with one query.
//!
//! A thread of its own waits for the pipe. It ends with the pipe, or when it finds at its next
//! piece that nobody reads any more; a pipe that says nothing keeps it until the process ends,
//! which does not wait for it.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Waker;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use dataflow::connector::{Connector, MetadataSpec, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::{Position, ReaderContext, Source, Split, SplitReader};

use crate::format::rows::METADATA;
use crate::format::{CSV_OPTIONS, Format, ON_BAD, Refuser, TargetColumns, fixed, protobuf};
use crate::options::refuse;
use crate::remote::{
    ByteStream, PIECE_BYTES, StreamReader, TaskStreams, byte_queue, decode, queue, stream_format,
};

/// Its name in messages.
const PLACE: &str = "stdin";

/// The connector `stdin`.
#[derive(Clone)]
pub struct Stdin(Arc<Mutex<Option<Box<dyn Read + Send>>>>);

impl Stdin {
    /// Reads from `reader`, in place of the process's standard input.
    pub fn new(reader: impl Read + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(reader)))))
    }
}

impl Default for Stdin {
    /// The standard input of this process.
    fn default() -> Self {
        Self::new(std::io::stdin())
    }
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stdin")
    }
}

const OPTIONS: [OptionSpec; 9] = {
    let [header, delimiter, quote, comment, null] = CSV_OPTIONS;
    let format = OptionSpec {
        key: "format",
        values: "csv | json | raw | arrow | avro | protobuf | fixed",
        default: "csv",
        doc: "CSV, one JSON object a line, an Arrow IPC stream, a file of Avro, messages of \
              Protobuf behind their lengths, records of fixed length, or lines as they are.",
    };
    let [lengths, record_bytes] = fixed::OPTIONS;
    [format, ON_BAD, header, delimiter, quote, comment, null, lengths, record_bytes]
};

impl Connector for Stdin {
    fn name(&self) -> &'static str {
        "stdin"
    }

    fn options(&self) -> &'static [OptionSpec] {
        static ALL: LazyLock<Vec<OptionSpec>> =
            LazyLock::new(|| [&OPTIONS[..], &protobuf::OPTIONS].concat());
        &ALL
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &METADATA
    }

    /// Of a format whose columns are described elsewhere: to look at the first rows would take them
    /// from the query.
    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        Ok(stream_format(options)?.described().map(Arc::new))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let format = stream_format(&table.options)?;
        let target = Arc::new(TargetColumns::new(table, projection)?);
        format.check(&target.declared)?;
        Ok(Arc::new(StdinSource { stdin: self.clone(), format, target }))
    }

    fn sink(&self, _table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Err(refuse(
            "connector",
            "'stdin' can only be read from",
            Some("write to 'stdout' or 'file'".into()),
        ))
    }
}

struct StdinSource {
    stdin: Stdin,
    format: Format,
    target: Arc<TargetColumns>,
}

impl Source for StdinSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.target.projected)
    }

    fn bounded(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        false
    }

    fn comes_once(&self) -> bool {
        true
    }

    fn splits(
        &self,
        _workers: u32,
        _time_column: Option<usize>,
    ) -> Result<Vec<Split>, ConnectorError> {
        Ok(vec![Split { name: PLACE.into(), ..Split::default() }])
    }

    fn open(
        &self,
        split: &Split,
        from: Option<&Position>,
        context: &ReaderContext,
    ) -> Result<Box<dyn SplitReader>, ConnectorError> {
        split.begins(from)?;
        let mut stdin = self.stdin.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let reader = stdin.take().ok_or_else(|| ConnectorError::Io {
            place: PLACE.into(),
            message: "it was read already, and can be read once".into(),
            hint: Some("write its rows to a file first, and read that as often as you like".into()),
        })?;
        let refuser = Refuser::new(&self.target, context);
        let streams = pump(reader, &context.waker)?;
        let decode = decode(self.format.clone(), refuser);
        Ok(Box::new(StreamReader::new(split, streams, decode)))
    }
}

/// Starts the thread that reads.
fn pump(mut reader: Box<dyn Read + Send>, waker: &Waker) -> Result<TaskStreams, ConnectorError> {
    let failed = |error: std::io::Error| ConnectorError::Io {
        place: PLACE.into(),
        message: error.to_string(),
        hint: None,
    };
    let (sender, bytes) = byte_queue(waker);
    let (arrivals, queue) = queue(2, waker);
    let stream = ByteStream { place: PLACE.into(), bytes, may_break: false };
    std::thread::Builder::new()
        .name("stdin".into())
        .spawn(move || {
            arrivals.send_blocking(Ok(Some(stream)));
            let mut buffer = vec![0; PIECE_BYTES];
            let end = loop {
                match reader.read(&mut buffer) {
                    Ok(0) => break Ok(None),
                    Ok(bytes) => {
                        if !sender.send_blocking(Bytes::copy_from_slice(&buffer[..bytes])) {
                            return;
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => break Err(failed(error)),
                }
            };
            // Said before the stream ends: it must not be missed when the rows are read.
            arrivals.send_blocking(end);
        })
        .map_err(failed)?;
    Ok(TaskStreams { place: PLACE.into(), queue, _task: None })
}
