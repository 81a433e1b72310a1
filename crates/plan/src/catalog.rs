//! Tables and views by name, and what DataFusion may know of them.
//!
//! A [`Table`] is what `CREATE TABLE` said, checked against its connector ([`declare`]). Its
//! columns, where it declares none, and whether it is bounded are asked of the connector when first
//! needed. DataFusion sees a [`TableScan`] of a [`TableSource`] that it never reads:
//! [`crate::lower::pipeline`] takes the scans out of its plans.
//!
//! [`TableScan`]: datafusion::logical_expr::TableScan

mod bad;
pub(crate) mod computed;
pub(crate) mod dead_letters;
mod declare;
mod files;
mod late;
pub(crate) mod proctime;
pub(crate) mod rows;
mod scanned;
pub(crate) mod side_output;
pub(crate) mod streams;
pub(crate) mod view;
pub(crate) mod watermark;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{Schema, SchemaRef, TimeUnit};
use dataflow::connector::{Connector, HashBuckets, Options, TableDef, WriteMode};
use dataflow::error::ConnectorError;
use dataflow::fragment::Fragment;
use dataflow::job::{OnBad, Scan};
use dataflow::source::Source;

pub(crate) use self::scanned::{Named, ScannedTable};
use crate::catalog::bad::BadRowsOnly;
use crate::catalog::computed::{Compute, Computed};
use crate::catalog::dead_letters::{CaptureBadRows, DeadLetterBuffer, DeadLetterSource};
use crate::catalog::files::Files;
use crate::catalog::late::LateRowsOnly;
use crate::catalog::side_output::SideOutput;
use crate::catalog::streams::Streams;
use crate::catalog::view::View;
use crate::text::bounds::COLUMNS_MAX;
use crate::text::diagnostics::{Diagnostic, Place};

/// Columns and options that are pointed at when a connector refuses them.
#[derive(Debug, Default)]
struct Places {
    /// Set when the script that they are of is over: in the next they mean nothing.
    stale: AtomicBool,
    name: Place,
    columns: BTreeMap<String, Place>,
    /// Where `DISTRIBUTED BY` names columns.
    buckets: BTreeMap<String, Place>,
    options: BTreeMap<String, Place>,
}

/// A table's event time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventTimeColumn {
    pub(crate) column: String,
    /// Ticks of the column's unit.
    pub(crate) delay: i64,
    pub(crate) idle_timeout_ns: Option<u64>,
}

/// A column that does not come from the data.
#[derive(Clone)]
enum Derived {
    /// From where the data stands.
    Metadata {
        /// The connector's name of it.
        key: String,
        /// Whether a statement that writes the table gives it.
        is_written: bool,
    },
    Computed(Computed),
}

/// A table that `CREATE TABLE` made.
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) event_time: Option<EventTimeColumn>,
    /// As connectors take them: references to secrets are resolved. Nothing shows them.
    options: Options,
    buckets: Vec<HashBuckets>,
    /// All columns, declared or inferred.
    schema: OnceLock<SchemaRef>,
    /// The declared columns that do not come from the data, by position.
    derived: BTreeMap<usize, Derived>,
    bounded: OnceLock<bool>,
    places: Places,
    /// The operators that emit its rows, if it is a stream.
    pub(crate) stream: Option<Fragment>,
    /// Where bad rows wait for `t__bad`.
    dead_letters: Arc<DeadLetterBuffer>,
    /// Of a table that `CREATE TABLE` did not make: which side of which table it is.
    side_output: Option<(SideOutput, Arc<Table>)>,
}

impl Table {
    /// For EXPLAIN: the table and its connector.
    pub(crate) fn title(&self) -> String {
        format!("{} ({})", self.name, self.connector.name())
    }

    /// The columns that are computed.
    pub(crate) fn computed(&self) -> impl Iterator<Item = &Computed> {
        self.derived.values().filter_map(|derived| match derived {
            Derived::Computed(column) => Some(column),
            Derived::Metadata { .. } => None,
        })
    }

    /// A stream by the name of a table.
    pub(crate) fn of_stream(name: &str, stream: Fragment) -> Self {
        let column = stream.time.map(|at| stream.schema.field(at).name().clone());
        Self {
            name: name.to_owned(),
            connector: Arc::new(Streams),
            event_time: column.map(|column| EventTimeColumn {
                column,
                delay: 0,
                idle_timeout_ns: None,
            }),
            options: Options::new(),
            buckets: vec![],
            schema: OnceLock::from(stream.schema.clone()),
            derived: BTreeMap::new(),
            bounded: OnceLock::from(stream.bounded),
            places: Places::default(),
            stream: Some(stream),
            dead_letters: Arc::default(),
            side_output: None,
        }
    }

    /// A version of the table.
    ///
    /// # Errors
    /// When its connector keeps no versions, or the table is of one version.
    fn at_version(&self, version: u64) -> Result<Self, Diagnostic> {
        let keeps = self.connector.options().iter().any(|option| option.key == VERSION_OPTION);
        if !keeps || self.options.contains_key(VERSION_OPTION) {
            let message = if keeps {
                format!("table '{}' is of one version already", self.name)
            } else {
                format!("tables of '{}' have no versions", self.connector.name())
            };
            let hint = "leave FOR SYSTEM_TIME AS OF VERSION out";
            return Err(Diagnostic::at(Place::default(), message).hint(hint));
        }
        let mut options = self.options.clone();
        options.insert(VERSION_OPTION.into(), version.to_string());
        Ok(Self {
            name: self.name.clone(),
            connector: Arc::clone(&self.connector),
            event_time: self.event_time.clone(),
            options,
            buckets: vec![],
            schema: self.schema.clone(),
            derived: self.derived.clone(),
            bounded: OnceLock::new(),
            places: Places { stale: AtomicBool::new(true), ..Places::default() },
            stream: None,
            dead_letters: Arc::default(),
            side_output: None,
        })
    }

    /// A side of a table: see [`crate::catalog::side_output`].
    ///
    /// # Errors
    /// When the table has no such side, or its connector cannot tell its columns.
    pub(crate) fn side_output(
        of: &Arc<Table>,
        side_output: SideOutput,
    ) -> Result<Self, Diagnostic> {
        if of.stream.is_some() {
            let message = format!("'{}' is a stream and keeps no late or bad rows", of.name);
            return Err(Diagnostic::at(Place::default(), message)
                .hint("read those of the tables that it is made of"));
        }
        let time = of.event_time.as_ref().map(|time| time.column.as_str());
        if side_output == SideOutput::Late && time.is_none() {
            let message =
                format!("table '{}' has no watermark, so none of its rows is late", of.name);
            return Err(Diagnostic::at(Place::default(), message)
                .hint("declare it: WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"));
        }
        let schema = side_output.schema(&*of.columns(Place::default())?, time.unwrap_or_default());
        Ok(Self {
            name: format!("{}{}", of.name, side_output.suffix()),
            connector: Arc::clone(&of.connector),
            event_time: None,
            options: Options::new(),
            buckets: vec![],
            schema: OnceLock::from(schema),
            derived: BTreeMap::new(),
            bounded: OnceLock::new(),
            places: Places::default(),
            stream: None,
            dead_letters: Arc::clone(&of.dead_letters),
            side_output: Some((side_output, Arc::clone(of))),
        })
    }

    /// Its columns, to be read. `place` is where it is used.
    pub(crate) fn columns(&self, place: Place) -> Result<SchemaRef, Diagnostic> {
        if let Some(schema) = self.schema.get() {
            return Ok(schema.clone());
        }
        match self.connector.infer(&self.options) {
            Ok(Some(schema)) if schema.fields().len() > COLUMNS_MAX => {
                let message = format!("table '{}' has more than {COLUMNS_MAX} columns", self.name);
                Err(Diagnostic::at(place, message).hint("declare those that are read"))
            }
            Ok(Some(schema)) => Ok(self.schema.get_or_init(|| schema).clone()),
            Ok(None) => {
                let message = format!("table '{}' declares no columns", self.name);
                Err(Diagnostic::at(place, message)
                    .detail(format!("connector '{}' cannot tell them", self.connector.name()))
                    .hint(format!("CREATE TABLE {} (name TYPE, …) WITH (…)", self.name)))
            }
            Err(error) => Err(self.refused(&error, place)),
        }
    }

    /// A scan of the columns of `projection`.
    pub(crate) fn scan(&self, projection: &[usize], place: Place) -> Result<Scan, Diagnostic> {
        if let Some((side_output, of)) = &self.side_output {
            return self.scan_of_side_output(*side_output, of, projection, place);
        }
        let scan = self.scan_of_columns(projection, place)?;
        if self.on_bad() != OnBad::Count {
            return Ok(scan);
        }
        let schema = scan.columns();
        let time = self.event_time.as_ref();
        let time = time.and_then(|time| schema.index_of(&time.column).ok());
        let dead_letters = (!scan.source.repeats()).then(|| Arc::clone(&self.dead_letters));
        let table = self.name.clone();
        Ok(scan.then(CaptureBadRows { table, schema, time, dead_letters }))
    }

    /// The policy for bad rows.
    pub(crate) fn on_bad(&self) -> OnBad {
        match self.options.get("on_bad").map(|policy| policy.to_ascii_lowercase()).as_deref() {
            Some("fail") => OnBad::Fail,
            // A step of the scan keeps them: see `dead_letters`.
            Some("table") => OnBad::Count,
            _ => OnBad::Show,
        }
    }

    /// The columns of the data, and those that are computed from them.
    fn scan_of_columns(&self, projection: &[usize], place: Place) -> Result<Scan, Diagnostic> {
        let columns = self.columns(place)?;
        let read = |def: &TableDef, projection: &[usize]| {
            let source = self.connector.source(def, projection);
            source.map(|source| Scan::new(&self.name, source)).map_err(|e| self.refused(&e, place))
        };
        if self.derived.is_empty() {
            return read(&self.def(columns), projection);
        }
        let mut stored = vec![];
        let mut metadata = BTreeMap::new();
        for (at, field) in columns.fields().iter().enumerate() {
            match self.derived.get(&at) {
                Some(Derived::Computed(_)) => continue,
                Some(Derived::Metadata { key, .. }) => {
                    metadata.insert(stored.len(), key.clone());
                }
                None => {}
            }
            stored.push(field.clone());
        }
        let def = TableDef { metadata, ..self.def(Arc::new(Schema::new(stored))) };
        let outputs: Vec<Result<String, Box<Computed>>> = projection
            .iter()
            .map(|at| match self.derived.get(at) {
                Some(Derived::Computed(computed)) => Err(Box::new(computed.clone())),
                _ => Ok(columns.field(*at).name().clone()),
            })
            .collect();
        let needs = |name: &String| {
            outputs.iter().any(|output| match output {
                Ok(read) => read == name,
                Err(computed) => computed.inputs().contains(name),
            })
        };
        let names = def.schema.fields().iter().enumerate();
        let needed: Vec<usize> =
            names.filter(|(_, field)| needs(field.name())).map(|(at, _)| at).collect();
        let scan = read(&def, &needed)?;
        let step = Compute::new(&scan.columns(), outputs);
        let step = step.map_err(|error| Diagnostic::at(place, error.to_string()))?;
        Ok(if step.is_needed() { scan.then(step) } else { scan })
    }

    fn scan_of_side_output(
        &self,
        side_output: SideOutput,
        of: &Table,
        projection: &[usize],
        place: Place,
    ) -> Result<Scan, Diagnostic> {
        let schema = self.columns(place)?.project(projection);
        let schema = schema.map_err(|error| Diagnostic::at(place, error.to_string()))?;
        let schema = Arc::new(schema);
        let mut scan = match side_output {
            SideOutput::Bad => of.scan_of_bad_rows(schema, place)?,
            SideOutput::Late => of.scan_of_late_rows(projection, schema, place)?,
        };
        scan.table.clone_from(&self.name);
        Ok(scan)
    }

    /// The rows that cannot be read, with the columns of `schema`.
    fn scan_of_bad_rows(&self, schema: SchemaRef, place: Place) -> Result<Scan, Diagnostic> {
        let table = self.name.clone();
        if self.on_bad() == OnBad::Count {
            let first = self.scan(&[0], place)?;
            if !first.source.repeats() {
                let (dead_letters, bounded) = (Arc::clone(&self.dead_letters), first.bounded());
                let source = DeadLetterSource { table, dead_letters, bounded, schema };
                return Ok(Scan::new(&self.name, Arc::new(source)));
            }
        }
        let source = self.skipping_source(place)?;
        let time = self.event_time.as_ref();
        let time = time.and_then(|time| source.schema().index_of(&time.column).ok());
        Ok(Scan::new(&self.name, source).then(BadRowsOnly { table, time, schema }))
    }

    /// The rows behind their watermark, with the columns of `schema`; `projection` says which of
    /// the columns that is.
    fn scan_of_late_rows(
        &self,
        projection: &[usize],
        schema: SchemaRef,
        place: Place,
    ) -> Result<Scan, Diagnostic> {
        let all = self.columns(place)?;
        let time = self.event_time.as_ref().and_then(|time| {
            Some((all.fields().iter().position(|field| *field.name() == time.column)?, time.delay))
        });
        // The watermark itself is behind the columns of the table.
        let stored = projection.iter().copied().filter(|at| *at < all.fields().len());
        let mut read: Vec<usize> = stored.chain(time.map(|(column, _)| column)).collect();
        read.sort_unstable();
        read.dedup();
        let scan = self.scan(&read, place)?;
        let time = time.and_then(|(at, delay)| Some((read.binary_search(&at).ok()?, delay)));
        Ok(scan.then(LateRowsOnly { time, schema }))
    }

    /// All columns of the data, read so that bad rows are passed over whatever `on_bad` says: a row
    /// is bad or not by all of them.
    fn skipping_source(&self, place: Place) -> Result<Arc<dyn Source>, Diagnostic> {
        self.columns(place)?;
        let schema = self.declared_columns().unwrap_or_else(|| Arc::new(Schema::empty()));
        let all: Vec<usize> = (0..schema.fields().len()).collect();
        let mut def = self.def(schema);
        def.options.remove("on_bad");
        self.connector.source(&def, &all).map_err(|error| self.refused(&error, place))
    }

    /// Whether reading it ends.
    pub(crate) fn bounded(&self, place: Place) -> Result<bool, Diagnostic> {
        if let Some(bounded) = self.bounded.get() {
            return Ok(*bounded);
        }
        let bounded = self.scan(&[], place)?.bounded();
        Ok(*self.bounded.get_or_init(|| bounded))
    }

    /// The error of a connector about a statement that writes the table. That the connector has no
    /// `INSERT OVERWRITE` is an error of the statement.
    pub(crate) fn refused_write(
        &self,
        error: &ConnectorError,
        mode: WriteMode,
        used: Place,
    ) -> Diagnostic {
        let error = self.refused(error, used);
        if mode == WriteMode::Overwrite { error.moved(used) } else { error }
    }

    /// The error of a connector about the table: at the option or column at fault if it is of the
    /// same script, else where the table is used.
    pub(crate) fn refused(&self, error: &ConnectorError, used: Place) -> Diagnostic {
        let (places, error) = (&self.places, &error.clone().masked());
        let (place, message, hint) = match error {
            ConnectorError::Option { key, message, hint } => {
                let place = places.options.get(key).copied().unwrap_or(places.name);
                (place, format!("option '{key}' of table '{}': {message}", self.name), hint)
            }
            ConnectorError::Column { column, message, hint } => {
                let named = places.buckets.get(column).or_else(|| places.columns.get(column));
                let place = named.copied().unwrap_or(places.name);
                (place, format!("column '{column}' of table '{}': {message}", self.name), hint)
            }
            ConnectorError::Io { place, message, hint } => {
                let option = ADDRESSES.iter().find_map(|key| places.options.get(*key).copied());
                let text = format!("table '{}': {place}: {message}", self.name);
                (option.unwrap_or(places.name), text, hint)
            }
            other => (places.name, format!("table '{}': {other}", self.name), &None),
        };
        let stale = places.stale.load(Ordering::Relaxed) || place == Place::default();
        let place = if stale { used } else { place };
        let mut error = Diagnostic::at(place, message);
        error.hint = hint.clone();
        error
    }
}

/// The options that say where the rows of a table are: an error of a place is shown there.
const ADDRESSES: [&str; 4] = ["path", "url", "uri", "address"];

/// Between a table and its version in a name that no statement can declare by mistake.
const AS_OF_VERSION: &str = " FOR SYSTEM_TIME AS OF VERSION ";

/// The option that says which version of a table is read.
const VERSION_OPTION: &str = "version";

/// The hint where an interval is finer than a column.
pub(crate) fn finer_hint(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "count in whole seconds, or declare the column as TIMESTAMP(3)",
        TimeUnit::Millisecond => "count in milliseconds, or declare the column as TIMESTAMP(6)",
        _ => "count in microseconds, or declare the column as TIMESTAMP(9)",
    }
}

/// The object of a name.
#[derive(Clone)]
pub(crate) enum Entry {
    Table(Arc<Table>),
    View(Arc<View>),
}

impl Entry {
    /// Its kind, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Entry::Table(_) => "table",
            Entry::View(_) => "view",
        }
    }
}

/// All names.
#[derive(Default, Clone)]
pub(crate) struct Catalog {
    entries: BTreeMap<String, Entry>,
    /// Names whose definition failed: what uses them is not reported again.
    pub(crate) broken: BTreeSet<String>,
    /// The number of the script that is planned: places of others are in other texts.
    pub(crate) script: u64,
    files: Files,
}

impl Catalog {
    /// A catalog without names, in which names of files are tables that `connector` reads, if there
    /// is one.
    pub(crate) fn new(connector: Option<Arc<dyn Connector>>) -> Self {
        Self { files: Files::of(connector), ..Self::default() }
    }

    /// The table of a file's name, if no other object has that name.
    pub(crate) fn file(&self, name: &str) -> Option<Arc<Table>> {
        if self.entries.contains_key(name) { None } else { self.files.get(name) }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// The object of a name that is read, also a side output of a table.
    ///
    /// # Errors
    /// When a table has no such side.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Entry>, Diagnostic> {
        if let Some(entry) = self.entries.get(name) {
            return Ok(Some(entry.clone()));
        }
        if let Some((of, version)) = Self::version_of(name) {
            return match self.entries.get(of) {
                Some(Entry::Table(of)) => Ok(Some(Entry::Table(Arc::new(of.at_version(version)?)))),
                _ => Err(self.unknown(Place::default(), of)),
            };
        }
        let Some((of, side_output)) = SideOutput::of(name) else {
            return Ok(self.file(name).map(Entry::Table));
        };
        match self.entries.get(of) {
            Some(Entry::Table(of)) => {
                Ok(Some(Entry::Table(Arc::new(Table::side_output(of, side_output)?))))
            }
            _ => Ok(self.file(name).map(Entry::Table)),
        }
    }

    /// The name by which [`Catalog::read`] gives a version of a table.
    pub(crate) fn version_name(table: &str, version: u64) -> String {
        format!("{table}{AS_OF_VERSION}{version}")
    }

    /// The table and the version of such a name.
    fn version_of(name: &str) -> Option<(&str, u64)> {
        let (table, version) = name.rsplit_once(AS_OF_VERSION)?;
        Some((table, version.parse().ok()?))
    }

    pub(crate) fn insert(&mut self, name: String, entry: Entry) {
        self.broken.remove(&name);
        self.entries.insert(name, entry);
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Entry> {
        self.broken.remove(name);
        self.entries.remove(name)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The views, by name.
    pub(crate) fn views(&self) -> impl Iterator<Item = (&str, &View)> {
        self.entries().filter_map(|(name, entry)| match entry {
            Entry::View(view) => Some((name, &**view)),
            Entry::Table(_) => None,
        })
    }

    /// All of them, by name.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// Called before statements are planned.
    pub(crate) fn begin_script(&mut self) {
        self.broken.clear();
        self.script += 1;
        self.files.begin_script();
    }

    /// Called before a script is planned, in which the places of tables of others mean nothing.
    pub(crate) fn forget_places(&mut self) {
        for entry in self.entries.values() {
            if let Entry::Table(table) = entry {
                table.places.stale.store(true, Ordering::Relaxed);
            }
        }
    }

    /// The error that there is no `name`.
    pub(crate) fn unknown(&self, place: Place, name: &str) -> Diagnostic {
        Diagnostic::at(place, format!("unknown table '{name}'")).nearest(
            "tables and views",
            name,
            self.names(),
        )
    }
}
