//! `file`: tables in CSV, newline JSON and Parquet files.
//!
//! ```text
//! 'path'   a file, a directory or a glob, sorted        ─▶ blobs ─▶ flows, equal on every node
//! ```
//!
//! Reading: a record that is no row of the table is counted at `file:line` and passed over, or ends
//! the query with `'on_bad' = 'fail'`. Writing: a file appears under its name when the query has
//! ended well and not before; an existing one is replaced in the same instant, like DuckDB's COPY.
//!
//! Deliberately absent: remote files, files that grow while they are read.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;

mod atomic;
mod blob;
mod paths;
mod sink;

use blob::FileBlob;

pub use crate::format::csv::RECORD_BYTES_MAX;
pub use crate::format::json::LINE_BYTES_MAX;
use crate::format::{CSV_OPTIONS, Kind, ON_BAD, Target};
use crate::options::Reader;
use crate::stored;

/// The connector `file`.
#[derive(Debug, Clone, Copy)]
pub struct FileConnector;

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "path",
        values: "file, directory or glob",
        default: "",
        doc: "What is read, in the order of names; a sink writes a single file.",
    },
    OptionSpec {
        key: "format",
        values: "csv | json | parquet",
        default: "by extension",
        doc: "CSV, one JSON object a line, or Parquet.",
    },
    ON_BAD,
    CSV_OPTIONS[0],
    CSV_OPTIONS[1],
    CSV_OPTIONS[2],
    CSV_OPTIONS[3],
    CSV_OPTIONS[4],
    OptionSpec {
        key: "parquet.compression",
        values: "snappy | zstd | none",
        default: "snappy",
        doc: "How a sink compresses pages.",
    },
];

const PATH_HINT: &str = "write 'path' = 'data/flights.parquet'";

impl Connector for FileConnector {
    fn name(&self) -> &'static str {
        "file"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    /// Parquet from the footer of the first file, CSV and JSON from the first 1,000 records of it.
    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let options = Reader(options);
        let path = options.required("path", PATH_HINT)?;
        let (paths, kind) = paths::expand(path, Kind::given(options)?)?;
        let schema = stored::infer(&FileBlob::open(&paths[0])?, kind, options)?;
        Ok(Some(Arc::new(schema)))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let options = Reader(&table.options);
        let path = options.required("path", PATH_HINT)?;
        let (paths, kind) = paths::expand(path, Kind::given(options)?)?;
        let target = Arc::new(Target::new(table, projection)?);
        let blobs: Result<Vec<_>, _> = paths.iter().map(|path| FileBlob::open(path)).collect();
        stored::source(blobs?, kind, options, target)
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(Arc::new(sink::FileSink::new(table)?))
    }
}
