//! `file`: tables in files of CSV, newline JSON, Parquet, Arrow IPC, Avro, streams of Protobuf and
//! records of fixed length.
//!
//! ```text
//! 'path'   a file, a directory, a glob or a URL, sorted ─▶ blobs ─▶ flows, equal on every node
//! ```
//!
//! Reading: a record that is no row of the table is counted at `file:line` and passed over, or ends
//! the query with `'on_bad' = 'fail'`. Writing: a file appears under its name when the query has
//! ended well and not before; an existing one is replaced in the same instant, like DuckDB's COPY.
//! A path that ends in a slash is a [`directory`] of parts. In a job that keeps checkpoints rows
//! are [`staged`], beside the [single file](spool) or as parts.
//!
//! With 'watch', new files are read as they appear (`watch`) and the table has no end.
//!
//! A directory with a log of Delta Lake is read as that says (`delta`), and written by a connector
//! of its own.
//!
//! A path that is a URL names objects of a store ([`object`]); one that names a pipe is read once,
//! as its rows come (`pipe`).
//!
//! Deliberately absent: files that grow while they are read.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::connector::{Connector, MetadataSpec, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;

mod atomic;
mod avro_writer;
mod blob;
mod delta;
mod directory;
mod encoder;
mod object_spool;
mod part_place;
mod part_summary;
pub(crate) mod paths;
mod pipe;
mod roll;
mod sink;
mod spool;
mod staged;
mod unsynced;
mod walk;
mod watch;

pub use atomic::AtomicFile;
use blob::FileBlob;
pub use delta::DeltaConnector;
pub(crate) use delta::read_log;
use pipe::{PipeSource, PipesInUse};
pub(crate) use watch::watched;
use watch::{WatchSource, Watched};

use crate::format::compression::COMPRESSION;
pub use crate::format::csv::{QUOTED_BYTES_MAX, RECORD_BYTES_MAX};
pub use crate::format::ipc::BODY_BYTES_MAX;
pub use crate::format::json::LINE_BYTES_MAX;
use crate::format::protobuf;
use crate::format::rows::METADATA;
use crate::format::{CSV_OPTIONS, Kind, ON_BAD, TargetColumns, avro, fixed, fnv, partitions};
use crate::object::{self, S3_OPTIONS};
use crate::options::OptionReader;
use crate::remote::RETRY_TIMEOUT;
use crate::stored::{self, Blob, PartitionedSource, SPLIT_BYTES};

/// The connector `file`.
#[derive(Debug, Clone, Default)]
pub struct FileConnector {
    pipes: PipesInUse,
}

const PARQUET_COMPRESSION: OptionSpec = OptionSpec {
    key: "parquet.compression",
    values: "snappy | zstd | gzip | brotli | lz4 | none",
    default: "snappy",
    doc: "How a sink compresses pages.",
};

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "path",
        values: "file, directory, glob or URL",
        default: "",
        doc: "The files to read, in the order of their names; a sink writes a single file or \
              object, or parts into a directory whose name ends in a slash.",
    },
    OptionSpec {
        key: "format",
        values: "csv | json | parquet | arrow | avro | protobuf | fixed | raw",
        default: "by extension",
        doc: "CSV, one JSON object a line, Parquet, Arrow IPC (files and streams), Avro, messages \
              of Protobuf behind their lengths, records of fixed length, or lines as they are.",
    },
    COMPRESSION,
    OptionSpec {
        key: "watch",
        values: "duration",
        default: "not watched",
        doc: "The interval at which a directory or glob is looked at for new files; the table has \
              no end then.",
    },
    OptionSpec {
        key: "watch.settle",
        values: "duration",
        default: "the interval",
        doc: "How long a new file must stay as it is before it is read: '0s' where finished files \
              are renamed into place.",
    },
    SPLIT_BYTES,
    partitions::HIVE_PARTITIONING,
    ON_BAD,
    CSV_OPTIONS[0],
    CSV_OPTIONS[1],
    CSV_OPTIONS[2],
    CSV_OPTIONS[3],
    CSV_OPTIONS[4],
    fixed::OPTIONS[0],
    fixed::OPTIONS[1],
    roll::ROLL,
    directory::PARTITION_BY,
    PARQUET_COMPRESSION,
    OptionSpec {
        key: "arrow.compression",
        values: "lz4 | zstd | none",
        default: "lz4",
        doc: "How a sink compresses the columns of a record batch.",
    },
    OptionSpec {
        key: "arrow.layout",
        values: "file | stream",
        default: "file (a stream for .arrows, and where it is packed as a whole)",
        doc: "Whether a sink writes a footer, by which record batches are found and read side by \
              side.",
    },
    avro::OPTIONS[0],
    avro::OPTIONS[1],
    avro::CODEC,
    protobuf::OPTIONS[0],
    protobuf::OPTIONS[1],
    protobuf::OPTIONS[2],
    protobuf::OPTIONS[3],
    protobuf::OPTIONS[4],
    S3_OPTIONS[0],
    S3_OPTIONS[1],
    S3_OPTIONS[2],
    S3_OPTIONS[3],
    S3_OPTIONS[4],
    S3_OPTIONS[5],
    RETRY_TIMEOUT,
];

impl FileConnector {
    /// A number that is another one when 'path' names other files or objects, or one of them has
    /// changed: by their names, lengths, and times or tags. None is read.
    ///
    /// # Errors
    /// When it names none, or they cannot be listed.
    pub(crate) fn mark(options: &Options) -> Result<u64, ConnectorError> {
        let (blobs, _) = blobs(OptionReader(options))?;
        let mut listed = vec![];
        for blob in blobs {
            let name = blob.name();
            // Other processes may run elsewhere.
            let name = if object::is_url(&name) { name } else { paths::absolute(&name) };
            listed.extend_from_slice(name.as_bytes());
            // A zero byte is in no name.
            listed.push(0);
            listed.extend([blob.bytes(), blob.stamp()].iter().flat_map(|of| of.to_le_bytes()));
        }
        Ok(fnv(&listed))
    }
}

/// Whether a path names a pipe, whose bytes come once.
pub(crate) fn is_pipe(path: &str) -> bool {
    !object::is_url(path) && pipe::is_pipe(path)
}

const PATH_HINT: &str = "write 'path' = 'data/flights.parquet'";

impl Connector for FileConnector {
    fn name(&self) -> &'static str {
        "file"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &METADATA
    }

    /// Parquet and Arrow from the first file's own schema, CSV and JSON from its first 1,000
    /// records.
    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let options = OptionReader(options);
        if let Some(pipe) = pipe_of(options)? {
            return Err(pipe::not_inferred(pipe));
        }
        let (blobs, kind) = blobs(options)?;
        let first = blobs.iter().find(|blob| blob.bytes() > 0).unwrap_or(&blobs[0]);
        let names = stored::names(&blobs);
        let keys = partitions::keys(&names, options)?;
        let schema = stored::infer(first, kind, options)?;
        let schema = partitions::with_columns(&schema, &keys, &names);
        if schema.fields().is_empty() {
            let (place, message) = (first.name(), "it has no columns".into());
            let hint = Some("declare those that other files of the table have".into());
            return Err(ConnectorError::Io { place, message, hint });
        }
        Ok(Some(Arc::new(schema)))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let options = OptionReader(&table.options);
        if let Some(watched) = WatchSource::new(table, projection)? {
            return Ok(Arc::new(Watched(Arc::new(watched))));
        }
        if let Some(pipe) = pipe_of(options)? {
            return Ok(Arc::new(PipeSource::new(pipe, table, projection, self.pipes.clone())?));
        }
        let (blobs, kind) = blobs(options)?;
        let keys = partitions::keys(&stored::names(&blobs), options)?;
        let partitioned = !keys.is_empty();
        let target = Arc::new(TargetColumns::partitioned(table, projection, keys)?);
        if !partitioned {
            return stored::source(blobs, kind, options, target);
        }
        let options = table.options.clone();
        Ok(Arc::new(PartitionedSource::new(blobs, kind, options, target)?))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        let path = OptionReader(&table.options).text("path").unwrap_or_default();
        let hint = "write to it by 'connector' = 'delta'";
        delta::refuse_table(path, "path", "written as files", Some(hint))?;
        if directory::is_directory(path) {
            return Ok(Arc::new(directory::DirectorySink::new(table)?));
        }
        Ok(Arc::new(sink::FileSink::new(table)?))
    }
}

/// The path of a table, if it names a pipe.
fn pipe_of(options: OptionReader<'_>) -> Result<Option<&str>, ConnectorError> {
    let path = options.required("path", PATH_HINT)?;
    Ok(is_pipe(path).then_some(path))
}

/// The files or objects that the option 'path' names, at least one, and their format.
fn blobs(options: OptionReader<'_>) -> Result<(Vec<Arc<dyn Blob>>, Kind), ConnectorError> {
    let path = options.required("path", PATH_HINT)?;
    let given = Kind::given(options)?;
    if !object::is_url(path) {
        let (paths, kind) = paths::expand(path, given)?;
        let blobs: Result<_, _> = paths.iter().map(|path| FileBlob::open(path)).collect();
        return Ok((blobs?, kind));
    }
    let blobs = object::expand(path, options, given)?;
    let names: Vec<PathBuf> = blobs.iter().map(|blob| blob.name().into()).collect();
    let kind = given.map_or_else(|| paths::common_format(&names), Ok)?;
    Ok((blobs, kind))
}
