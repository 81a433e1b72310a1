//! Tables of Delta Lake: Parquet files, and a log that says which of them are there.
//!
//! ```text
//! reading   _delta_log/ ─▶ checkpoint, commits ─▶ files added and not removed ─▶ as `file` reads
//! writing   rows ─▶ hidden parts ─▶ named parts ─▶ _delta_log/N.json, which names them
//! ```
//!
//! The protocol is that of Delta Lake: PROTOCOL.md of its sources, versions 1 to 3 for readers and
//! 1 to 7 for writers.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use dataflow::connector::{
    Connector, MetadataSpec, OptionSpec, Options, TableDef, Vacuum, WriteMode,
};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder as ReaderBuilder;

mod checkpoint;
mod columns;
mod commit;
mod files;
mod interval;
mod log;
mod place;
mod retention;
mod sink;
mod snapshot;
mod statistics;
mod vacuum;

use files::TableFiles;
use log::LogState;
use place::TablePlace;
use snapshot::Snapshot;
use statistics::TableStatistics;
use vacuum::VacuumSource;

use super::{directory, roll};
use crate::format::rows::METADATA;
use crate::format::{Kind, ON_BAD, TargetColumns};
use crate::object::S3_OPTIONS;
use crate::options::{OptionReader, nearest, refuse};
use crate::remote::RETRY_TIMEOUT;
use crate::stored::PartitionedSource;

/// The directory of the log.
const LOG: &str = "_delta_log";

const PATH_HINT: &str = "write 'path' = 'lake/orders' or 's3://bucket/orders'";

/// The name of the transactions of a sink.
const APP_ID: &str = "txn.app-id";

/// Commits from one checkpoint of the log to the next.
const CHECKPOINT_INTERVAL: &str = "checkpoint.interval";

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "path",
        values: "directory or URL",
        default: "",
        doc: "The directory of the table, or s3://bucket/path. A sink makes the table if it is \
              not there.",
    },
    directory::PARTITION_BY,
    roll::ROLL,
    super::PARQUET_COMPRESSION,
    OptionSpec {
        key: CHECKPOINT_INTERVAL,
        values: "integer",
        default: "10",
        doc: "After how many commits a sink writes a checkpoint of the log; 0 for none. The \
              table's own delta.checkpointInterval comes first.",
    },
    OptionSpec {
        key: APP_ID,
        values: "text",
        default: "a name of the job",
        doc: "The name by which the log counts the publications of a sink, in a job that keeps \
              checkpoints. No other sink of the table may have it.",
    },
    ON_BAD,
    S3_OPTIONS[0],
    S3_OPTIONS[1],
    S3_OPTIONS[2],
    S3_OPTIONS[3],
    S3_OPTIONS[4],
    S3_OPTIONS[5],
    RETRY_TIMEOUT,
];

/// The connector `delta`.
#[derive(Debug, Clone, Copy)]
pub struct DeltaConnector;

impl Connector for DeltaConnector {
    fn name(&self) -> &'static str {
        "delta"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn metadata(&self) -> &'static [MetadataSpec] {
        &METADATA
    }

    /// The columns that the log has.
    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let place = open(OptionReader(options))?;
        let files = TableFiles::read(&place)?;
        columns::read_schema(&place.display(""), &files.schema).map(|of| Some(Arc::new(of)))
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let options = OptionReader(&table.options);
        let place = open(options)?;
        let files = TableFiles::read(&place)?;
        let known = columns::read_schema(&place.display(""), &files.schema)?;
        for (at, field) in table.schema.fields().iter().enumerate() {
            let name = field.name();
            let is_own = |own: &str| own.eq_ignore_ascii_case(name);
            let mut names = known.fields().iter().map(|own| own.name().as_str());
            if !table.metadata.contains_key(&at) && !names.clone().any(is_own) {
                let near = nearest(name, names.by_ref());
                return Err(ConnectorError::Column {
                    column: name.clone(),
                    message: format!("{} has no such column", place.display("")),
                    hint: near.map(|near| format!("did you mean '{near}'?")),
                });
            }
        }
        let keys: Vec<String> =
            files.partitioned_by.iter().map(|column| column.to_lowercase()).collect();
        // A column that came later is in no older file.
        let target = TargetColumns::partitioned(table, projection, keys)?.of_several();
        let blobs = place.blobs(&files.names)?;
        let statistics = TableStatistics::new(files.statistics, &known, &target);
        let options = table.options.clone();
        let source = PartitionedSource::new(blobs, Kind::Parquet, options, target)?;
        Ok(Arc::new(source.with_summaries(Arc::new(statistics))))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        self.sink_for(table, WriteMode::Insert)
    }

    fn sink_for(&self, table: &TableDef, mode: WriteMode) -> Result<Arc<dyn Sink>, ConnectorError> {
        if mode == WriteMode::Overwrite {
            let hint = format!("write INSERT INTO {} SELECT …", table.name);
            return Err(refuse("connector", "'delta' has no INSERT OVERWRITE", Some(hint)));
        }
        Ok(Arc::new(sink::DeltaSink::new(table, mode)?))
    }

    fn vacuum(&self, table: &TableDef, how: Vacuum) -> Result<Arc<dyn Source>, ConnectorError> {
        let place = open(OptionReader(&table.options))?;
        Ok(Arc::new(VacuumSource::new(place, how)?))
    }
}

fn open(options: OptionReader<'_>) -> Result<TablePlace, ConnectorError> {
    TablePlace::open(options.required("path", PATH_HINT)?, options)
}

/// Reads a log of one commit that anybody may have made, as a reader and as a writer do. Gives the
/// number of its files.
///
/// # Errors
/// Why it is none.
///
/// # Panics
/// When a file is outside of the table, statistics have other types than columns, or a checkpoint
/// of the log has other files.
pub(crate) fn read_log(bytes: &[u8]) -> Result<usize, String> {
    let (mut files, mut written) = (files::TableState::default(), Snapshot::default());
    let apply = |bytes: &[u8], state: &mut dyn LogState| {
        log::apply_commit("t", bytes, state, &mut 0).map_err(|error| error.to_string())
    };
    apply(bytes, &mut files)?;
    let table = files.files("t").map_err(|error| error.to_string())?;
    let is_below = |name: &String| super::staged::is_below(name);
    assert!(table.names.iter().all(is_below), "{:?}", table.names);
    let schema = columns::read_schema("t", &table.schema).map_err(|error| error.to_string())?;
    table.statistics.iter().flatten().for_each(|text| statistics::check(text, &schema));
    if apply(bytes, &mut written).is_ok() && !written.is_partial {
        let mut again = Snapshot::default();
        let packed = checkpoint::packed("t", &written);
        let builder = packed.ok().map(|(bytes, _)| ReaderBuilder::try_new(bytes));
        if let Some(builder) = builder {
            let builder = builder.expect("it was written here");
            log::apply_checkpoint("t", builder, &mut again, &mut 0).expect("its actions");
            assert!(again.files.keys().eq(written.files.keys()), "files are those of the log");
        }
    }
    Ok(table.names.len())
}

/// Whether a directory is a table of Delta Lake.
pub(super) fn is_table(path: &Path) -> bool {
    path.join(LOG).is_dir()
}

/// The files of the newest version of a table, sorted.
///
/// # Errors
/// When the log is damaged, or the table has something that is not read.
pub(super) fn files(table: &Path) -> Result<Vec<std::path::PathBuf>, ConnectorError> {
    let files = TableFiles::read(&TablePlace::Files(table.to_owned()))?;
    Ok(files.names.into_iter().map(|name| table.join(name)).collect())
}

/// Refuses what a table of Delta Lake is not for.
///
/// # Errors
/// When the path is one.
pub(super) fn refuse_table(
    path: &str,
    key: &str,
    what: &str,
    hint: Option<&str>,
) -> Result<(), ConnectorError> {
    if is_table(Path::new(path)) {
        let message = format!("'{path}' is a table of Delta Lake, which cannot be {what}");
        return Err(refuse(key, message, hint.map(str::to_owned)));
    }
    Ok(())
}
