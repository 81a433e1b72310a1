//! A table as a sink.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use connectors::{OptionReader, fnv};
use dataflow::connector::TableDef;
use dataflow::error::ConnectorError;
use dataflow::sink::{Placement, Publishing, Sink, SinkVisibility, SinkWriter, WriterContext};

use crate::errors::failed;
use crate::publish::{KeptConnection, Marker, StagedPublication};
use crate::staged::{PgStagingWriter, StagedText};
use crate::streaming::{FlushPolicy, PgStreamingWriter};
use crate::table::{PgTable, quoted_path};
use crate::types::check_types;
use crate::write::RowStatements;

/// The table with the markers, where nothing is said.
pub(crate) const MARKER_TABLE: &str = "millstream_marker";

/// Rows after which those that wait are written, and how long the first of them waits at most.
const FLUSH_ROWS: usize = 10_000;
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// A table that is written.
pub(crate) struct PgSink {
    table: PgTable,
    schema: SchemaRef,
    statements: RowStatements,
    policy: FlushPolicy,
    marker: Marker,
    kept: KeptConnection,
    /// Whether rows are published with checkpoints, where there are some.
    is_exact: bool,
    /// The job, once a writer was opened.
    job: OnceLock<u64>,
    /// Whether the first worker of the process has found that table and columns are there.
    checked: Mutex<bool>,
}

impl PgSink {
    pub(crate) fn new(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        check_types(&table.schema)?;
        let pg_table = PgTable::new(options)?;
        let key = options.text("primary-key").unwrap_or_default();
        let key = key.split([';', ',']).map(str::trim).filter(|name| !name.is_empty());
        let key: Vec<String> = key.map(str::to_owned).collect();
        let statements = RowStatements::new(&pg_table, &table.schema, &key)?;
        let rows = options.integer("sink.buffer-flush.max-rows", 0)?;
        let interval = options.duration_ns("sink.buffer-flush.interval")?;
        let interval = match interval.map(Duration::from_nanos) {
            None => FLUSH_INTERVAL,
            Some(Duration::ZERO) => Duration::MAX,
            Some(interval) => interval,
        };
        let policy = FlushPolicy { rows: rows.map_or(FLUSH_ROWS, |rows| rows as usize), interval };
        let guarantee = ["exactly-once", "at-least-once"];
        let is_exact = options.choice("sink.delivery-guarantee", &guarantee)? != Some(1);
        let name = options.text("sink.marker-name").map(str::to_owned);
        let marker = options.text("sink.marker-table").unwrap_or(MARKER_TABLE);
        let marker = Marker { table: quoted_path("sink.marker-table", marker)?, name };
        Ok(Self {
            table: pg_table,
            schema: table.schema.clone(),
            statements,
            policy,
            marker,
            kept: KeptConnection::default(),
            is_exact,
            job: OnceLock::new(),
            checked: Mutex::new(false),
        })
    }

    /// Checks, once in a process, that all is there that rows need.
    fn check(&self, stages: bool) -> Result<(), ConnectorError> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if !*checked {
            self.table.check(&self.schema, |connection| {
                if stages {
                    self.marker.prepare(connection)?;
                }
                self.statements.check(connection)
            })?;
            *checked = true;
        }
        Ok(())
    }
}

impl Sink for PgSink {
    fn placement(&self) -> Placement {
        Placement::Everywhere
    }

    fn staging(&self) -> SinkVisibility {
        if self.is_exact { SinkVisibility::ByCheckpoint } else { SinkVisibility::AsTheyCome }
    }

    fn stages_rows(&self) -> bool {
        self.is_exact
    }

    fn mark(&self) -> Result<Option<[u64; 2]>, ConnectorError> {
        let Some(job) = self.job.get().filter(|_| self.is_exact) else { return Ok(None) };
        let name = self.marker.name_for(&self.table, *job);
        Ok(Some([self.marker.count(&self.table, &self.kept, &name)?, *job]))
    }

    fn publish(&self, staged: &[Vec<u8>], how: Publishing) -> Result<(), ConnectorError> {
        let place = self.table.place();
        let texts = staged.iter().map(|staged| StagedText::of(&place, staged));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let Some(job) = texts.first().map(|text| text.job) else { return Ok(()) };
        if texts.iter().all(StagedText::is_empty) {
            return Ok(());
        }
        let Some([before, _]) = how.mark else {
            let message = "the checkpoint has no marker of it";
            return Err(failed(&place, message, "begin anew: --from none"));
        };
        let checksum = staged.iter().fold(0_u64, |sum, part| sum.wrapping_add(fnv(part)));
        let name = self.marker.name_for(&self.table, job);
        let publication = StagedPublication { staged: texts, checksum, name };
        let to = (&self.table, &self.kept);
        self.marker.publish(to, &self.statements, &publication, before)
    }

    fn open(&self, context: &WriterContext) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        let staging = context.staging.as_ref().filter(|_| self.is_exact);
        self.check(staging.is_some())?;
        let place = self.table.place();
        if let Some(staging) = staging {
            let job = *self.job.get_or_init(|| staging.run.job);
            return Ok(Box::new(PgStagingWriter::new(&place, job, self.statements.clone())));
        }
        // One worker of the job says what is promised.
        if context.worker == 0 && !self.statements.is_upsert() {
            tracing::warn!(
                "{place}: rows are written as they come, at least once: those that a job which \
                 fails has written stay, and are there twice when it is run again; run it with \
                 --state, or declare a PRIMARY KEY"
            );
        }
        let waker = context.waker.clone();
        let writer = PgStreamingWriter::start(&self.table, &self.statements, self.policy, waker)?;
        Ok(Box::new(writer))
    }
}
