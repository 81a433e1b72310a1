//! `stdout`: rows for the reader at the terminal.
//!
//! ```text
//! table  drawn once, when the query has ended: the first and last rows, and how many there were
//! csv    ┐ a stream: rows leave when the worker is idle, or when 64 KiB have gathered
//! json   ┘
//! ```
//!
//! A table is for a person and leaves rows out; where a program reads the output, CSV is the
//! default. Each result in CSV has its own header, and a blank line before it if it is not the
//! first of its output.
//!
//! The rows go to an [`StdoutTarget`] that the program hands in, never to the process's own
//! standard output behind its back. A thread of the sink's own writes them, since a reader may be
//! slow.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, OptionSpec, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Room, Sink, SinkVisibility, SinkWriter, WriterContext};

use crate::format::encode::{CsvStyle, RowEncoding};
use crate::options::OptionReader;
use crate::queued::QueuedWriter;

mod nested;
mod table;

use nested::Flat;
use table::TablePicture;

/// Rows of a table that are shown unless 'max_rows' says otherwise.
pub const ROWS_SHOWN_MAX: u64 = 40;

/// Bytes of text that are held back before they are written without waiting for a flush.
const STREAM_BYTES_MAX: usize = 64 << 10;

/// Where `stdout` writes: shared, so that a program can keep an end of it.
#[derive(Clone)]
pub struct StdoutTarget {
    /// For messages.
    name: Arc<str>,
    writer: Arc<Mutex<dyn Write + Send>>,
    /// A table that says no format is written as CSV, with all of its rows.
    for_programs: bool,
    /// Whether rows were written to it as a stream.
    begun: Arc<AtomicBool>,
    /// It takes bytes without waiting for anybody.
    is_memory: bool,
}

impl StdoutTarget {
    /// Writes go to `writer`, which messages call `name`: a file's path, `stdout`.
    pub fn new(name: &str, writer: impl Write + Send + 'static) -> Self {
        Self::of(name, Arc::new(Mutex::new(writer)))
    }

    fn of(name: &str, writer: Arc<Mutex<dyn Write + Send>>) -> Self {
        Self {
            name: name.into(),
            writer,
            for_programs: false,
            begun: Arc::default(),
            is_memory: false,
        }
    }

    /// The same for programs that read it: a table that says no format is written as CSV, with all
    /// of its rows, where it would otherwise be drawn for a person.
    pub fn for_programs(self) -> Self {
        Self { for_programs: true, ..self }
    }

    /// The standard output of this process.
    pub fn stdout() -> Self {
        Self::new("stdout", io::stdout())
    }

    /// An output that is kept in memory, and the end from which to read it.
    pub fn captured() -> (Self, Capture) {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let output = Self { is_memory: true, ..Self::of("memory", bytes.clone()) };
        (output, Capture(bytes))
    }

    fn write_all(&self, bytes: &[u8]) -> Result<(), ConnectorError> {
        let mut writer = self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        writer.write_all(bytes).and_then(|()| writer.flush()).map_err(|error| {
            let full = matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
            );
            ConnectorError::Io {
                place: self.name.to_string(),
                message: error.to_string(),
                hint: full.then(|| "make room or write elsewhere".into()),
            }
        })
    }
}

impl fmt::Debug for StdoutTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Output")
    }
}

/// The bytes written to a captured [`StdoutTarget`].
#[derive(Debug, Clone)]
pub struct Capture(Arc<Mutex<Vec<u8>>>);

impl Capture {
    /// Everything so far, and forgets it.
    pub fn take(&self) -> String {
        let bytes =
            std::mem::take(&mut *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The connector `stdout`.
#[derive(Debug, Clone)]
pub struct Stdout {
    output: StdoutTarget,
}

impl Stdout {
    /// Writes to `output`.
    pub fn new(output: StdoutTarget) -> Self {
        Self { output }
    }
}

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "format",
        values: "table | csv | json",
        default: "table on a terminal, else csv",
        doc: "A picture of the table at the end, or every row as it comes.",
    },
    OptionSpec {
        key: "max_rows",
        values: "integer",
        default: "40",
        doc: "Rows that a table shows; of more, the first and the last half.",
    },
];

impl Connector for Stdout {
    fn name(&self) -> &'static str {
        "stdout"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let options = OptionReader(&table.options);
        let rows_max = options.integer("max_rows", 1)?.unwrap_or(ROWS_SHOWN_MAX);
        let format = match options.choice("format", &["table", "csv", "json"])? {
            None if self.output.for_programs && !table.options.contains_key("max_rows") => {
                Format::Stream(RowEncoding::Csv(CsvStyle::default()))
            }
            None | Some(0) => Format::Table { rows_max },
            Some(1) => Format::Stream(RowEncoding::Csv(CsvStyle::default())),
            Some(_) => Format::Stream(RowEncoding::Json),
        };
        let schema = Arc::clone(&table.schema);
        Ok(Arc::new(StdoutSink { output: self.output.clone(), schema, format }))
    }
}

enum Format {
    Table { rows_max: u64 },
    Stream(RowEncoding),
}

struct StdoutSink {
    output: StdoutTarget,
    schema: SchemaRef,
    format: Format,
}

impl Sink for StdoutSink {
    fn placement(&self) -> Placement {
        Placement::Gather
    }

    fn staging(&self) -> SinkVisibility {
        match self.format {
            Format::Table { .. } => SinkVisibility::AtEnd,
            Format::Stream(_) => SinkVisibility::AsTheyCome,
        }
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let schema = Arc::clone(&self.schema);
        let blank_line = matches!(&self.format, Format::Stream(RowEncoding::Csv(_)));
        let to = To::open(&self.output, blank_line, context)?;
        Ok(match &self.format {
            Format::Table { rows_max } => {
                let picture = Some(TablePicture::new(schema, *rows_max as usize));
                Box::new(TableWriter { to, picture })
            }
            Format::Stream(format) => {
                let format = format.clone();
                let flat = matches!(format, RowEncoding::Csv(_)).then(|| Flat::new(&schema));
                let flat = flat.flatten();
                let written = flat.as_ref().map_or(schema, Flat::schema);
                let pending = format.prologue(written).map_err(unfit)?;
                Box::new(StreamWriter { to, format, flat, pending })
            }
        })
    }
}

/// The way to an [`StdoutTarget`].
enum To {
    Memory(Pieces),
    Thread(QueuedWriter),
}

/// Writes the pieces of one result.
struct Pieces {
    output: StdoutTarget,
    /// A blank line stands before the first piece, if it is not the first of its output.
    blank_line: bool,
    /// Whether some of it was written.
    begun: bool,
}

impl Pieces {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ConnectorError> {
        if !std::mem::replace(&mut self.begun, true) {
            let follows = self.output.begun.swap(true, Ordering::Relaxed);
            if follows && self.blank_line {
                return self.output.write_all(&[b"\n", bytes].concat());
            }
        }
        self.output.write_all(bytes)
    }
}

impl To {
    fn open(
        output: &StdoutTarget,
        blank_line: bool,
        context: &WriterContext,
    ) -> Result<Self, ConnectorError> {
        let mut pieces = Pieces { output: output.clone(), blank_line, begun: false };
        if output.is_memory {
            return Ok(Self::Memory(pieces));
        }
        let write = move |bytes: &[u8]| pieces.write(bytes);
        Ok(Self::Thread(QueuedWriter::start(&output.name, &context.waker, write)?))
    }

    fn room(&self) -> Room {
        match self {
            Self::Memory(_) => Room::Ready,
            Self::Thread(queued) => queued.room(),
        }
    }

    fn send(&mut self, bytes: Vec<u8>) -> Result<(), ConnectorError> {
        match self {
            Self::Memory(pieces) => pieces.write(&bytes),
            Self::Thread(queued) => queued.send(bytes),
        }
    }

    fn drain(&self) -> Result<Room, ConnectorError> {
        match self {
            Self::Memory(_) => Ok(Room::Ready),
            Self::Thread(queued) => queued.drain(),
        }
    }

    fn finish(&self) -> Result<(), ConnectorError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Thread(queued) => queued.finish(),
        }
    }
}

/// Draws at the end.
struct TableWriter {
    to: To,
    /// Until it is drawn.
    picture: Option<TablePicture>,
}

impl TableWriter {
    fn draw(&mut self) -> Result<(), ConnectorError> {
        match self.picture.take() {
            Some(picture) => self.to.send(picture.draw().into_bytes()),
            None => Ok(()),
        }
    }
}

impl SinkWriter for TableWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        match &mut self.picture {
            Some(picture) => picture.add(batch).map_err(unfit),
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        self.draw()?;
        self.to.drain()
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.draw()?;
        self.to.finish()
    }
}

/// Streams.
struct StreamWriter {
    to: To,
    format: RowEncoding,
    /// Gives texts for columns that CSV has none for.
    flat: Option<Flat>,
    pending: Vec<u8>,
}

impl SinkWriter for StreamWriter {
    fn room(&mut self) -> Room {
        self.to.room()
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let written = match &self.flat {
            Some(flat) => flat.of(batch).map_err(unfit)?,
            None => batch.clone(),
        };
        self.format.encode(&written, &mut self.pending).map_err(unfit)?;
        if self.pending.len() >= STREAM_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        if self.pending.is_empty() {
            self.to.drain().map(drop)
        } else {
            self.to.send(std::mem::take(&mut self.pending))
        }
    }

    fn settle(&mut self) -> Result<Room, ConnectorError> {
        self.drain()
    }

    fn drain(&mut self) -> Result<Room, ConnectorError> {
        self.flush()?;
        self.to.drain()
    }

    fn commit(mut self: Box<Self>) -> Result<(), ConnectorError> {
        self.flush()?;
        self.to.finish()
    }
}

/// A value that has no text: its type is at fault.
fn unfit(error: impl std::fmt::Display) -> ConnectorError {
    ConnectorError::Io { place: "stdout".into(), message: error.to_string(), hint: None }
}
