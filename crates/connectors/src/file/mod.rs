//! `file`: tables in CSV, newline JSON and Parquet files.
//!
//! ```text
//! 'path'   a file, a directory or a glob, sorted        ─▶ flows, equal on every node
//! CSV, JSON   a file is a flow: cut anywhere else, its rows would lose the order of their times
//! Parquet     a row group is a flow
//! ```
//!
//! Reading: a record that is no row of the table is counted at `file:line` and passed over, or ends
//! the query with `'on_bad' = 'fail'`. Writing: a file appears under its name when the query has
//! ended well and not before; an existing one is replaced in the same instant, like DuckDB's COPY.
//!
//! Deliberately absent: compressed text, remote files, files that grow while they are read.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;

mod atomic;
mod csv;
mod infer;
mod input;
mod json;
mod parquet;
mod paths;
mod rows;
mod sink;
mod text;

pub use csv::RECORD_BYTES_MAX;
pub use json::LINE_BYTES_MAX;
use rows::Target;

use crate::options::Reader;

/// The connector `file`.
#[derive(Debug, Clone, Copy)]
pub struct FileConnector;

/// What a file is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Csv,
    Json,
    Parquet,
}

impl Format {
    /// By the extension of a name.
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "csv" | "tsv" => Some(Self::Csv),
            "json" | "jsonl" | "ndjson" => Some(Self::Json),
            "parquet" | "pq" => Some(Self::Parquet),
            _ => None,
        }
    }

    /// By the option 'format'.
    fn given(options: Reader<'_>) -> Result<Option<Self>, ConnectorError> {
        let formats = [Self::Csv, Self::Json, Self::Parquet];
        let index = options.choice("format", &["csv", "json", "parquet"])?;
        Ok(index.map(|index| formats[index]))
    }
}

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
    OptionSpec {
        key: "on_bad",
        values: "skip | fail",
        default: "skip",
        doc: "Whether a record that is no row of the table is counted and passed over, or ends \
              the query.",
    },
    OptionSpec {
        key: "csv.header",
        values: "true | false",
        default: "true",
        doc: "Whether the first record names the columns; without it they stand in the declared \
              order.",
    },
    OptionSpec {
        key: "csv.delimiter",
        values: "character",
        default: ", (a tab for .tsv)",
        doc: "What stands between fields.",
    },
    OptionSpec {
        key: "csv.quote",
        values: "character",
        default: "\"",
        doc: "What stands around a field that contains delimiters; doubled within it.",
    },
    OptionSpec {
        key: "csv.comment",
        values: "character",
        default: "none",
        doc: "A line that begins with it is passed over.",
    },
    OptionSpec {
        key: "csv.null",
        values: "texts, separated by commas",
        default: "none",
        doc: "Texts that stand for NULL, such as NA; an empty field is NULL for every type but \
              strings. A sink writes the first.",
    },
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
        let (paths, format) = paths::expand(path, Format::given(options)?)?;
        let first = &paths[0];
        let schema = match format {
            Format::Csv => csv::infer(first, csv::Dialect::new(options, first)?)?,
            Format::Json => json::infer(first)?,
            Format::Parquet => parquet::infer(first)?,
        };
        Ok(Some(Arc::new(schema)))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let options = Reader(&table.options);
        let path = options.required("path", PATH_HINT)?;
        let (paths, format) = paths::expand(path, Format::given(options)?)?;
        let target = Arc::new(Target::new(table, projection)?);
        let format = match format {
            Format::Csv => text::Format::Csv(csv::Dialect::new(options, &paths[0])?),
            Format::Json => text::Format::Json,
            Format::Parquet => {
                return Ok(Arc::new(parquet::ParquetSource::open(paths, target)?));
            }
        };
        Ok(Arc::new(text::TextSource::open(paths, format, target)?))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(Arc::new(sink::FileSink::new(table)?))
    }
}
