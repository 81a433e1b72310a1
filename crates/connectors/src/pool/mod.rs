//! `pool`: tables in network-attached memory.
//!
//! ```text
//! rows ─▶ sink: partitions ─▶ strips ─▶ blocks ══▶ memory servers ══▶ blocks ─▶ batches: source
//!               (by bucket)             (a column of a strip each)
//! ```
//!
//! A scan pins a version while the statement is planned, so that EXPLAIN, the splits and all
//! readers see the same rows; a scan of a table that a statement before it in the script loads is
//! pinned when it begins to read. A load publishes a version when all workers have written their
//! rows. How a version lies in memory is said in [`pool::manifest`]; how blocks travel is the
//! matter of the [`PoolAccess`] that the connector is given.
//!
//! A table with an 'origin' is a cache: who reads it loads it first, if it has to be
//! ([`cache`]).
//!
//! Deliberately absent: changes in place.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use dataflow::connector::{Connector, OptionSpec, Options, TableDef, WriteMode};
use dataflow::error::ConnectorError;
use dataflow::sink::Sink;
use dataflow::source::Source;
use pool::PoolError;
use pool::access::{At, PoolAccess};
use pool::manifest::{Definition, STRIP_ROWS_MAX};
use pool::wire::NAME_BYTES_MAX;

mod assign;
mod cache;
mod columns;
mod commit_clock;
mod costs;
mod cut;
mod decode;
mod encode;
mod errors;
mod growing;
#[doc(hidden)]
pub mod in_memory;
mod index;
mod interrupt;
mod lists;
mod newest;
mod origin;
mod partition;
mod prune;
mod reader;
mod recorded;
mod sink;
mod source;
mod staged;
mod version;

use crate::options::{OptionReader, refuse};
use columns::StoredColumns;
pub use columns::buckets_of;
use commit_clock::CommitEvery;
use costs::CostBook;
use errors::refused;
pub use errors::{ACCESS, SERVERS};
pub use index::is_index_of;
use interrupt::Interrupt;
pub use lists::{ListReads, NodeCache, followed};
use origin::CacheOrigin;
use sink::PoolSink;
use source::PoolSource;

/// Rows of a strip at least.
const STRIP_ROWS_MIN: u64 = 256;

/// Bytes that a worker collects for strips that are not full, where 'load.bytes' says nothing.
const LOAD_BYTES: u64 = 64 << 20;

/// Bytes of rows that a loading worker has to keep at least.
const LOAD_BYTES_MIN: u64 = 1 << 20;

/// Nanoseconds between two questions for a newer version at least.
const REFRESH_NS_MIN: u64 = 10_000_000;

/// How often a version appears where 'commit.bytes' alone is said.
const COMMIT_INTERVAL: Duration = Duration::from_secs(10);

/// How often a version appears at most.
const COMMIT_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Strips that are read ahead at most.
const PREFETCH_MAX: u64 = 64;

const OPTIONS: &[OptionSpec] = &[
    OptionSpec {
        key: "table",
        values: "name",
        default: "the table's own name",
        doc: "The name of the table in the pool.",
    },
    OptionSpec {
        key: "version",
        values: "integer",
        default: "the newest",
        doc: "The version that is read.",
    },
    OptionSpec {
        key: "strip.rows",
        values: "256 … 8192",
        default: "8192",
        doc: "Rows of a full strip, of a table that is made.",
    },
    OptionSpec {
        key: "layout",
        values: "directory | lists",
        default: "directory",
        doc: "How a table that is made says where its strips lie: by a directory for each version, \
              or by lists of remote pointers in its own memory, of which a version adds what is \
              new.",
    },
    OptionSpec {
        key: "load.bytes",
        values: "integer",
        default: "67108864",
        doc: "Bytes of rows that a worker collects for strips that are not full; beyond that the \
              largest is written as it is.",
    },
    OptionSpec {
        key: "refresh",
        values: "duration",
        default: "never",
        doc: "How often a stream that is joined with the table asks for a newer version.",
    },
    OptionSpec {
        key: "commit.interval",
        values: "duration",
        default: "at the end",
        doc: "How often a version with the rows so far appears, where rows are written; at least \
              once. In a job that keeps checkpoints: with each of them, and once.",
    },
    OptionSpec {
        key: "commit.bytes",
        values: "integer",
        default: "none",
        doc: "A version appears also when a process has written this many bytes of rows since the \
              last. The interval is '10 s' then, if it says nothing else.",
    },
    OptionSpec {
        key: "origin",
        values: "file, directory, glob or URL",
        default: "none",
        doc: "The table is a cache of these files or objects: who reads it first loads it.",
    },
    OptionSpec {
        key: "origin.refresh",
        values: "duration",
        default: "1 min",
        doc: "How old the last look at the origin may be when a statement is planned; it is loaded \
              anew if it has changed.",
    },
    OptionSpec {
        key: "origin.<option>",
        values: "text",
        default: "that of the option",
        doc: "An option of the connector `file` that says how the origin is read; `origin.on_bad` \
              is `fail` by default.",
    },
    OptionSpec {
        key: "index",
        values: "column",
        default: "none",
        doc: "Queries that name few values of this column find their strips by an index, which the \
              first of them loads for all.",
    },
    OptionSpec {
        key: "prefetch",
        values: "1 … 64",
        default: "millstream.prefetch",
        doc: "How many strips a worker asks for ahead of the one that it reads.",
    },
];

/// Reads a block behind its description, which anybody may have written: see [`decode::block_of`].
pub(crate) fn block_of(bytes: &[u8]) -> Result<arrow::array::ArrayRef, String> {
    decode::block_of(bytes)
}

/// The connector `pool`.
#[derive(Debug)]
pub struct PoolConnector {
    access: Option<Arc<dyn PoolAccess>>,
    /// The loads of statements that are planned or run.
    planned: Mutex<Vec<Weak<PoolSink>>>,
    /// The nodes of lists that were read.
    nodes: Arc<NodeCache>,
    /// The costs of partitions, as earlier statements have measured them.
    costs: Arc<CostBook>,
    /// Whether a table that is to be made may be that of an earlier run of the job.
    goes_on: AtomicBool,
    /// Ends the loads of caches while a statement is planned.
    interrupt: Interrupt,
}

impl PoolConnector {
    /// Of the tables of a pool.
    pub fn new(access: Arc<dyn PoolAccess>) -> Self {
        Self { access: Some(access), ..Self::absent() }
    }

    /// Where there is no pool: its tables are refused, with what to do about it.
    pub fn absent() -> Self {
        let (planned, nodes) = (Mutex::default(), Arc::default());
        let (costs, interrupt) = (Arc::default(), Interrupt::default());
        Self { access: None, planned, nodes, costs, goes_on: false.into(), interrupt }
    }

    /// While the flag is true, statements on caches are not planned: what waits for an origin, or
    /// loads it, is given up. Whoever sets the flag clears it.
    #[must_use]
    pub fn interrupted_by(self, flag: Arc<AtomicBool>) -> Self {
        Self { interrupt: Interrupt::new(flag), ..self }
    }

    /// The statements that are planned from now on are of a job that may have run before. That a
    /// table is there which they make is an error only when the load begins: then it is known that
    /// no run of the job has made it.
    pub fn goes_on(&self) {
        self.goes_on.store(true, Ordering::Relaxed);
    }

    fn access(&self) -> Result<&Arc<dyn PoolAccess>, ConnectorError> {
        self.access.as_ref().ok_or_else(|| {
            let hint = "start a memory server, `millstream memory --bytes 8GiB`, and name it: \
                        --pool; or have `millstream run` start one: --memory-servers 1x8GiB";
            refuse("connector", "no pool is known here", Some(hint.into()))
        })
    }

    /// The definition that a table will have when a load that is planned has ended.
    fn planned(&self, table: &str) -> Option<Definition> {
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        planned.retain(|sink| sink.strong_count() > 0);
        let sinks = planned.iter().rev().filter_map(Weak::upgrade);
        sinks.map(|sink| sink.load().clone()).find(|load| load.table == table).map(|l| l.definition)
    }

    /// How nodes of lists were found so far.
    pub fn list_reads(&self) -> ListReads {
        self.nodes.reads()
    }

    /// The definition of a table as the server has it; `None` if the pool has no such table.
    fn newest(access: &dyn PoolAccess, table: &str) -> Result<Option<Definition>, PoolError> {
        match access.pin(table, At::Newest) {
            Ok(pinned) => Ok(Some(pinned.manifest.definition.clone())),
            Err(PoolError::NoTable { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The columns of a table that is there, or that a statement before makes.
    fn columns(&self, table: &str, at: At) -> Result<SchemaRef, ConnectorError> {
        let definition = match self.planned(table) {
            Some(definition) => definition,
            None => self.access()?.pin(table, at).map_err(refused)?.manifest.definition.clone(),
        };
        Ok(StoredColumns::of(&definition.of_rows().map_err(refused)?, table)?.schema)
    }

    fn load(&self, table: &TableDef, mode: WriteMode) -> Result<Arc<PoolSink>, ConnectorError> {
        let options = PoolOptions::of(table)?;
        if let Some(origin) = &options.origin {
            let message = format!("the table is a cache of {}", origin.name);
            let hint = "write to the origin, or declare another table without 'origin'";
            return Err(refuse("origin", message, Some(hint.into())));
        }
        if let At::Version(_) = options.at {
            let hint = "leave 'version' out: a load makes the next one";
            return Err(refuse("version", "a version never changes", Some(hint.into())));
        }
        let there = match self.planned(&options.table) {
            Some(definition) => Some(definition),
            None => match Self::newest(&**self.access()?, &options.table) {
                // None of its rows is read. The server compares the columns.
                Err(PoolError::Lost { .. }) if mode == WriteMode::Overwrite => None,
                newest => newest.map_err(refused)?,
            },
        };
        if there.is_some() && mode == WriteMode::Create && !self.goes_on.load(Ordering::Relaxed) {
            let message = format!("the pool has a table '{}' already", options.table);
            let hint = "CREATE TABLE it without AS, and INSERT OVERWRITE it; or give the table in \
                        the pool another name: 'table' = '…'";
            return Err(refuse("table", message, Some(hint.into())));
        }
        let wanted = options.definition(table)?;
        let definition = match there {
            None if options.listed == Some(true) => wanted.listed(),
            None => wanted,
            Some(there) => {
                let rows = there.of_rows().map_err(refused)?;
                version::check_same(&rows, &wanted, &options.table, !table.buckets.is_empty())?;
                options.check_layout(&there)?;
                there
            }
        };
        let sink = PoolSink::new(self.access()?, &options, definition, mode)?;
        let sink = Arc::new(sink);
        let mut planned = self.planned.lock().unwrap_or_else(PoisonError::into_inner);
        planned.push(Arc::downgrade(&sink));
        Ok(sink)
    }
}

impl Connector for PoolConnector {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn options(&self) -> &'static [OptionSpec] {
        OPTIONS
    }

    fn takes_buckets(&self) -> bool {
        true
    }

    fn declare(&self, table: &TableDef) -> Result<Option<SchemaRef>, ConnectorError> {
        let options = PoolOptions::of(table)?;
        self.access()?;
        if let Some(origin) = options.origin.as_ref().filter(|_| table.schema.fields().is_empty()) {
            return self.columns_of_cache(origin, &options).map(Some);
        }
        if table.schema.fields().is_empty() {
            return self.columns(&options.table, options.at).map(Some);
        }
        options.definition(table)?;
        Ok(None)
    }

    fn infer(&self, options: &Options) -> Result<Option<SchemaRef>, ConnectorError> {
        let reader = OptionReader(options);
        let table = reader.required("table", "write 'table' = 'ssb.lineorder'")?;
        self.columns(table, PoolOptions::at(reader)?).map(Some)
    }

    fn source(
        &self,
        table: &TableDef,
        projection: &[usize],
    ) -> Result<Arc<dyn Source>, ConnectorError> {
        let options = PoolOptions::of(table)?;
        if let Some(origin) = &options.origin {
            self.refresh(origin, table, &options)?;
        }
        let access = Arc::clone(self.access()?);
        let planned = self.planned(&options.table).filter(|_| options.at == At::Newest);
        let source = match planned {
            Some(definition) => {
                let rows = definition.of_rows().map_err(refused)?;
                PoolSource::later(access, &options, &rows, &self.nodes)?
            }
            None => PoolSource::pinned(access, &options, &self.nodes)?,
        };
        if let Some(origin) = &options.origin {
            source.check_origin(origin)?;
        }
        let source = source.indexed(&options, &self.interrupt)?;
        Ok(Arc::new(source.projected(table, projection)?.measured(&self.costs)))
    }

    fn sink(&self, table: &TableDef) -> Result<Arc<dyn Sink>, ConnectorError> {
        self.sink_for(table, WriteMode::Insert)
    }

    fn sink_for(&self, table: &TableDef, mode: WriteMode) -> Result<Arc<dyn Sink>, ConnectorError> {
        Ok(self.load(table, mode)?)
    }
}

/// The options of a table.
#[derive(Clone)]
struct PoolOptions {
    /// Its name in the pool.
    table: String,
    at: At,
    strip_rows: u32,
    load_bytes: usize,
    /// How often a version appears; `None`: at the end of a load.
    every: Option<CommitEvery>,
    /// Whether a table that is made is kept in lists; `None` without the option.
    listed: Option<bool>,
    /// Strips that are read ahead; `None` where the job says so.
    prefetch: Option<usize>,
    /// How often a newer version is asked for.
    refresh_ns: Option<u64>,
    /// The files or objects that it is a cache of.
    origin: Option<CacheOrigin>,
    /// The column whose keys are looked up in an index.
    index: Option<String>,
}

impl PoolOptions {
    fn of(table: &TableDef) -> Result<Self, ConnectorError> {
        let options = OptionReader(&table.options);
        let strip_rows = options.integer("strip.rows", STRIP_ROWS_MIN)?;
        let strip_rows = strip_rows.unwrap_or(u64::from(STRIP_ROWS_MAX));
        if strip_rows > u64::from(STRIP_ROWS_MAX) {
            let message = format!("a strip has at most {STRIP_ROWS_MAX} rows");
            let hint = format!("write 'strip.rows' = '{STRIP_ROWS_MAX}'");
            return Err(refuse("strip.rows", message, Some(hint)));
        }
        let prefetch = options.integer("prefetch", 1)?;
        if prefetch.is_some_and(|strips| strips > PREFETCH_MAX) {
            let message = format!("at most {PREFETCH_MAX} strips are read ahead");
            return Err(refuse("prefetch", message, Some("leave it out".into())));
        }
        let load_bytes = options.integer("load.bytes", LOAD_BYTES_MIN)?.unwrap_or(LOAD_BYTES);
        let name = options.text("table").unwrap_or(&table.name);
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let message = format!("a table of a pool has a name of 1 to {NAME_BYTES_MAX} bytes");
            return Err(refuse("table", message, Some("choose another: 'table' = '…'".into())));
        }
        Ok(Self {
            table: name.to_owned(),
            at: Self::at(options)?,
            strip_rows: strip_rows as u32,
            load_bytes: usize::try_from(load_bytes).unwrap_or(usize::MAX),
            every: Self::every(options)?,
            listed: Self::listed(options)?,
            prefetch: prefetch.map(|strips| strips as usize),
            refresh_ns: Self::refresh_ns(options)?,
            origin: CacheOrigin::of(&table.options)?,
            index: options.text("index").map(str::to_owned),
        })
    }

    fn refresh_ns(options: OptionReader<'_>) -> Result<Option<u64>, ConnectorError> {
        let every = options.duration_ns("refresh")?;
        if every.is_some_and(|every| every < REFRESH_NS_MIN) {
            let message = "a newer version is asked for every 10 milliseconds at most";
            return Err(refuse("refresh", message, Some("write 'refresh' = '1 s'".into())));
        }
        if every.is_some() && options.text("version").is_some() {
            let message = "a table of one version has no newer one";
            return Err(refuse("refresh", message, Some("leave 'version' out".into())));
        }
        Ok(every)
    }

    fn listed(options: OptionReader<'_>) -> Result<Option<bool>, ConnectorError> {
        match options.text("layout") {
            None => Ok(None),
            Some("directory") => Ok(Some(false)),
            Some("lists") => Ok(Some(true)),
            Some(other) => {
                let message = format!("'{other}' is no layout of a table");
                let hint = "write 'layout' = 'directory' or 'layout' = 'lists'";
                Err(refuse("layout", message, Some(hint.into())))
            }
        }
    }

    /// Refuses to load a table that has the other layout.
    fn check_layout(&self, there: &Definition) -> Result<(), ConnectorError> {
        let Some(listed) = self.listed.filter(|listed| *listed != there.is_listed()) else {
            return Ok(());
        };
        let [has, wants] = [!listed, listed].map(|of| if of { "lists" } else { "a directory" });
        let message = format!("the pool's '{}' is kept in {has}, and not in {wants}", self.table);
        let hint = "leave 'layout' out: the pool knows it";
        Err(refuse("layout", message, Some(hint.into())))
    }

    fn at(options: OptionReader<'_>) -> Result<At, ConnectorError> {
        Ok(options.integer("version", 1)?.map_or(At::Newest, At::Version))
    }

    fn every(options: OptionReader<'_>) -> Result<Option<CommitEvery>, ConnectorError> {
        let interval = options.duration_ns("commit.interval")?.map(Duration::from_nanos);
        if interval.is_some_and(|interval| interval < COMMIT_INTERVAL_MIN) {
            let message = format!("a version appears each {COMMIT_INTERVAL_MIN:?} at most");
            let hint = "write 'commit.interval' = '10 s'";
            return Err(refuse("commit.interval", message, Some(hint.into())));
        }
        let bytes = options.integer("commit.bytes", 1)?;
        Ok((interval.is_some() || bytes.is_some()).then(|| CommitEvery {
            interval: interval.unwrap_or(COMMIT_INTERVAL),
            bytes: bytes.unwrap_or(u64::MAX),
        }))
    }

    /// The definition of a declared table.
    fn definition(&self, table: &TableDef) -> Result<Definition, ConnectorError> {
        let columns = StoredColumns::declared(&table.schema)?;
        if let Some(name) = &self.index {
            index::indexed(&self.table, &columns, name)?;
        }
        Ok(Definition {
            schema: columns.encoded(),
            buckets: partition::buckets(&columns.schema, &table.buckets)?,
            columns: columns.layouts,
            strip_rows: self.strip_rows,
        })
    }
}
