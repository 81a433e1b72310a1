//! A session: for how many workers SQL is planned, and where its rows go.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use connectors::{PoolConnector, Stdout, StdoutTarget};
use dataflow::connector::{Connector, Options, TableDef};
use dataflow::error::ConnectorError;
use dataflow::panics::caught;
use plan::{Diagnostic, ExplainFormat, Planner, Stage, Vocabulary, Workers};

use crate::FabricKind;
use crate::collect::Collected;
use crate::connections::SessionConnections;
use crate::embedded::MemoryTables;
use crate::error::Error;
use crate::links::WORKERS_MAX;
use crate::pool::{Client, PoolOptions};
use crate::recovery::PlanDecisions;
use crate::script::{RunOptions, Script};

/// Plans SQL for a number of nodes and workers, and keeps tables, views and settings from one
/// script to the next. Make one with [`Session::builder`].
pub struct Session {
    pub(crate) planner: Planner,
    pub(crate) workers: Workers,
    pub(crate) fabric: FabricKind,
    rows: RowTarget,
    output: StdoutTarget,
    started_at: Option<SystemTime>,
    pub(crate) pool: Option<Arc<Client>>,
    pool_tables: Option<Arc<PoolConnector>>,
    /// See [`SessionBuilder::interrupted_by`].
    interrupted: Arc<AtomicBool>,
    /// The tables that lie in the program's memory.
    pub(crate) memory: MemoryTables,
    /// Those that the statement before has left, with the threads of its workers.
    connections: Arc<SessionConnections>,
}

/// Where the rows of a bare `SELECT` go.
#[derive(Clone)]
pub enum RowTarget {
    /// To the session's output, which is standard output unless the session was given another.
    Output(RowFormat),
    /// Into a file that appears when the query has ended well. It holds the rows of one `SELECT`:
    /// those of another take their place.
    File {
        /// Where; may be whatever the connector `file` can write.
        path: String,
        /// `csv`, `json`, …: a `'format'` of the connector `file`. The extension tells it
        /// where there is none.
        format: Option<String>,
    },
    /// To a connector's sink.
    Connector(Arc<dyn Connector>),
}

impl Default for RowTarget {
    fn default() -> Self {
        Self::Output(RowFormat::default())
    }
}

/// How rows are written to the session's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowFormat {
    /// A table, drawn when the query has ended.
    #[default]
    Table,
    /// Comma-separated values with a header, as they come.
    Csv,
    /// A JSON object per line, as they come.
    Json,
}

impl RowFormat {
    /// The value of the option `format` of the connector `stdout`.
    fn option(self) -> &'static str {
        match self {
            RowFormat::Table => "table",
            RowFormat::Csv => "csv",
            RowFormat::Json => "json",
        }
    }
}

/// The options of a session; everything has a default.
#[must_use]
pub struct SessionBuilder {
    workers: Workers,
    fabric: FabricKind,
    settings: Vec<(String, String)>,
    rows: RowTarget,
    output: StdoutTarget,
    for_programs: bool,
    started_at: Option<SystemTime>,
    connectors: Vec<Arc<dyn Connector>>,
    file_names: bool,
    pool: Option<PoolOptions>,
    interrupted: Arc<AtomicBool>,
}

impl Session {
    /// One node with one worker over shared memory; rows of a bare `SELECT` go to standard output
    /// as a table.
    pub fn builder() -> SessionBuilder {
        SessionBuilder {
            workers: Workers { nodes: 1, per_node: 1 },
            fabric: FabricKind::default(),
            settings: Vec::new(),
            rows: RowTarget::default(),
            output: StdoutTarget::stdout(),
            for_programs: false,
            started_at: None,
            connectors: Vec::new(),
            file_names: true,
            pool: None,
            interrupted: Arc::default(),
        }
    }

    /// Plans a script. Nothing is read beyond what tells the columns of tables, and nothing is
    /// written.
    ///
    /// # Errors
    /// [`Error::Sql`] with everything that is wrong with it; [`Error::Interrupted`] when it was
    /// [ended](SessionBuilder::interrupted_by).
    pub fn sql(&mut self, text: &str) -> Result<Script, Error> {
        self.planned(|planner| planner.plan(text))
    }

    /// Plans the statements of a script in the bytes `part` of its text, as [`Session::sql`] plans
    /// a whole one, where those before are planned and perhaps run already. Errors have their
    /// places in `text`. `goes_on`: a part before it was planned, at which they may point.
    ///
    /// # Errors
    /// As [`Session::sql`].
    ///
    /// # Panics
    /// When `part` is not within the text, or begins or ends within a character.
    pub fn sql_part(
        &mut self,
        text: &str,
        part: Range<usize>,
        goes_on: bool,
    ) -> Result<Script, Error> {
        let blank = |char| if char == '\n' { '\n' } else { ' ' };
        let mut blanked: String = text[..part.start].chars().map(blank).collect();
        blanked.push_str(&text[part]);
        let plan = if goes_on { Planner::plan_part } else { Planner::plan };
        self.planned(|planner| plan(planner, &blanked))
    }

    fn planned(
        &mut self,
        plan: impl FnOnce(&mut Planner) -> Result<Vec<Stage>, Vec<Diagnostic>>,
    ) -> Result<Script, Error> {
        self.planner.set_now(self.started_at.unwrap_or_else(SystemTime::now));
        if let Some(pool) = &self.pool {
            pool.next_statement();
        }
        // The planner catches what it can; this is for the rest.
        let planned = caught(|| plan(&mut self.planner));
        let planned =
            planned.map_err(|panicked| Error::Panic { doing: "planning".into(), panicked })?;
        match planned {
            Ok(stages) => Ok(self.script(stages)),
            Err(_) if self.interrupted.load(Ordering::Relaxed) => Err(Error::Interrupted),
            Err(diagnostics) => Err(Error::Sql(diagnostics)),
        }
    }

    /// A script that runs on the connections of this session.
    pub(crate) fn script(&self, stages: Vec<Stage>) -> Script {
        let (pool, connections) = (self.pool.as_ref(), &self.connections);
        Script::new(stages, self.workers, self.fabric, pool, connections)
    }

    /// How a script would run: pipelines, exchanges and why, memory.
    ///
    /// # Errors
    /// As [`Session::sql`].
    pub fn explain(&mut self, text: &str) -> Result<String, Error> {
        Ok(self.sql(text)?.explain())
    }

    /// As [`Session::explain`], in a format.
    ///
    /// # Errors
    /// As [`Session::sql`].
    pub fn explain_as(&mut self, text: &str, format: ExplainFormat) -> Result<String, Error> {
        Ok(self.sql(text)?.explain_as(format))
    }

    /// Runs a script on nodes of this process and gives back the rows of its bare `SELECT`s.
    ///
    /// # Errors
    /// As [`Session::sql`], and the first failure while it runs.
    pub fn collect(&mut self, text: &str) -> Result<Vec<RecordBatch>, Error> {
        let rows = Collected::default();
        let target = RowTarget::Connector(Arc::new(rows.clone()));
        let before = std::mem::replace(&mut self.rows, target.clone());
        let script = self.rows_to(target).and_then(|()| self.sql(text));
        self.rows_to(before)?;
        script?.run(&RunOptions::default())?;
        Ok(rows.take())
    }

    /// Says where the rows of a bare `SELECT` go from now on.
    ///
    /// # Errors
    /// [`Error::Usage`] when they cannot go there; then nothing has changed. A file is not opened
    /// before a query runs.
    pub fn rows_to(&mut self, rows: RowTarget) -> Result<(), Error> {
        let option = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let (connector, options): (Arc<dyn Connector>, Options) = match &rows {
            RowTarget::Output(format) => (
                Arc::new(Stdout::new(self.output.clone())),
                Options::from([option("format", format.option())]),
            ),
            RowTarget::File { path, format } => {
                let file = self.planner.connector("file").ok_or_else(|| Error::Usage {
                    message: "this session has no connector 'file'".into(),
                    hint: "add it to the session's connectors".into(),
                })?;
                let mut options = Options::from([option("path", path)]);
                options.extend(format.as_ref().map(|format| option("format", format)));
                check_file(&*file, path, &options)?;
                (file, options)
            }
            RowTarget::Connector(connector) => (Arc::clone(connector), Options::new()),
        };
        self.planner.set_default_sink(connector, options);
        self.rows = rows;
        Ok(())
    }

    /// Plans from now on by the decisions of a job that keeps checkpoints, and may go on from one:
    /// [`PlanDecisions::of`] reads them.
    pub fn resume(&mut self, decisions: &PlanDecisions) {
        self.planner.set_streamed(decisions.streamed.clone());
        if let Some(pool) = &self.pool {
            pool.pin_again(&decisions.versions);
        }
        if let Some(tables) = &self.pool_tables {
            tables.goes_on();
        }
    }

    /// Closes the connections that the statement before has left, and ends the threads of its
    /// workers: for a session that has nothing to do for a while. Its memory for rings goes back to
    /// the system; tables and settings stay. The next statement makes others, as the first one did.
    /// Dropping the session does the same, also where scripts of it are still there.
    pub fn disconnect(&self) {
        self.connections.release();
    }

    /// The names that SQL may use now: tables, columns, functions, connectors, settings.
    pub fn vocabulary(&self) -> Vocabulary {
        self.planner.vocabulary()
    }

    /// Changes a setting, as `SET 'key' = 'value'` does.
    ///
    /// # Errors
    /// [`Error::Usage`] when there is no such setting, or it does not take the value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let quoted = |text: &str| text.replace('\'', "''");
        let statement = format!("SET '{}' = '{}'", quoted(key), quoted(value));
        match self.planner.plan(&statement) {
            Ok(_) => Ok(()),
            Err(diagnostics) => {
                let first = diagnostics.into_iter().next();
                let (message, hint) = first.map_or((statement, None), |error| {
                    (error.message, error.hint.or(error.detail))
                });
                let hint = hint.unwrap_or_else(|| "see the settings in the reference".into());
                Err(Error::Usage { message, hint })
            }
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workers { nodes, per_node } = self.workers;
        write!(f, "Session({nodes} x {per_node} workers over {})", self.fabric)
    }
}

impl SessionBuilder {
    /// Nodes of a job, 1 to 256.
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.workers.nodes = nodes;
        self
    }

    /// Workers of each node, 1 to 1024.
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers.per_node = workers;
        self
    }

    /// The transport between workers.
    pub fn fabric(mut self, fabric: FabricKind) -> Self {
        self.fabric = fabric;
        self
    }

    /// Sets an option before each script, as `SET 'key' = 'value'` in it would.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Where rows of a bare `SELECT` go.
    pub fn rows_to(mut self, rows: RowTarget) -> Self {
        self.rows = rows;
        self
    }

    /// Where rows of a bare `SELECT` and of tables of the connector `stdout` go.
    /// Messages call it `name`: a file's path, `stdout`.
    pub fn output(mut self, name: &str, output: impl Write + Send + 'static) -> Self {
        self.output = StdoutTarget::new(name, output);
        self
    }

    /// Whether programs read that output: then tables of the connector `stdout` that say no format
    /// are written as CSV, with all of their rows, and not drawn.
    pub fn output_for_programs(mut self, for_programs: bool) -> Self {
        self.for_programs = for_programs;
        self
    }

    /// The instant that `now()` gives in every script; otherwise that at which each is planned.
    /// Nodes that are processes of their own have to agree on it.
    pub fn started_at(mut self, instant: SystemTime) -> Self {
        self.started_at = Some(instant);
        self
    }

    /// A connector beside those that are there; one of the same name takes the place of ours.
    pub fn connector(mut self, connector: Arc<dyn Connector>) -> Self {
        self.connectors.push(connector);
        self
    }

    /// Whether the name of a file stands for a table, as in `FROM 'flights.parquet'`; so it does
    /// unless this says otherwise. Tables that are declared are read and written all the same.
    pub fn file_names(mut self, allowed: bool) -> Self {
        self.file_names = allowed;
        self
    }

    /// The memory servers whose tables the connector `pool` reads and loads. They are asked when a
    /// statement names such a table.
    pub fn pool(mut self, pool: PoolOptions) -> Self {
        self.pool = Some(pool);
        self
    }

    /// While the flag is true, planning does not wait for the files or objects that a table of a
    /// pool is a cache of: [`Session::sql`] gives such a load up. Whoever sets the flag clears it.
    pub fn interrupted_by(mut self, flag: Arc<AtomicBool>) -> Self {
        self.interrupted = flag;
        self
    }

    /// The session.
    ///
    /// # Errors
    /// [`Error::Usage`] when a number is out of bounds or a setting is unknown.
    pub fn build(self) -> Result<Session, Error> {
        let Self { workers, fabric, settings, rows, mut output, started_at, .. } = self;
        let (file_names, mut connectors) = (self.file_names, self.connectors);
        if self.for_programs {
            output = output.for_programs();
        }
        bounded("job", "nodes", workers.nodes, cluster::NODES_MAX)?;
        bounded("node", "workers", workers.per_node, WORKERS_MAX)?;
        let pool = self.pool.map(|pool| client(pool, workers)).transpose()?;
        let interrupted = self.interrupted;
        let pool_tables = pool.as_ref().map(|pool| {
            let tables = PoolConnector::new(Arc::<Client>::clone(pool));
            Arc::new(tables.interrupted_by(Arc::clone(&interrupted)))
        });
        if let Some(tables) = &pool_tables {
            connectors.push(tables.clone());
        }
        let memory = MemoryTables::default();
        if connectors.iter().all(|other| other.name() != memory.name()) {
            connectors.push(Arc::new(memory.clone()));
        }
        #[cfg(feature = "kafka")]
        if connectors.iter().all(|other| other.name() != kafka::KafkaConnector.name()) {
            connectors.push(Arc::new(kafka::KafkaConnector));
        }
        #[cfg(feature = "postgres")]
        for own in postgres::all() {
            if connectors.iter().all(|other| other.name() != own.name()) {
                connectors.push(own);
            }
        }
        let ours = connectors::all_to(output.clone()).into_iter();
        let ours: Vec<_> =
            ours.filter(|one| connectors.iter().all(|other| other.name() != one.name())).collect();
        connectors.extend(ours);
        let mut planner = Planner::new(connectors, workers);
        if !file_names {
            planner.refuse_file_names();
        }
        planner.set_transport_needs(fabric.end_needs(), fabric.member_bytes());
        let rows_at_first = RowTarget::default();
        let mut session = Session {
            planner,
            workers,
            fabric,
            rows: rows_at_first,
            output,
            started_at,
            pool,
            pool_tables,
            interrupted,
            memory,
            connections: Arc::default(),
        };
        session.rows_to(rows)?;
        for (key, value) in &settings {
            session.set(key, value)?;
        }
        Ok(session)
    }
}

/// The client of a pool, for a job on `workers`.
fn client(options: PoolOptions, workers: Workers) -> Result<Arc<Client>, Error> {
    let workers = workers.nodes * workers.per_node;
    let client = Client::new(PoolOptions { workers, ..options });
    let refused = |source| cluster::ClusterError::System { what: "randomness", source };
    Ok(Arc::new(client.map_err(refused)?))
}

/// Whether a file of that name can be a sink, whatever the columns; nothing is opened.
fn check_file(file: &dyn Connector, path: &str, options: &Options) -> Result<(), Error> {
    let schema = Arc::new(Schema::new(vec![Field::new("column", DataType::Int64, true)]));
    let (options, metadata) = (options.clone(), BTreeMap::new());
    let table = TableDef { name: path.to_owned(), schema, options, metadata, buckets: vec![] };
    let Err(refused) = file.sink(&table) else { return Ok(()) };
    let (message, hint) = match &refused {
        ConnectorError::Option { key, message, .. } if key == "format" => {
            (format!("the format of the rows: {message}"), None)
        }
        ConnectorError::Option { hint, .. }
        | ConnectorError::Column { hint, .. }
        | ConnectorError::Io { hint, .. } => (refused.to_string(), hint.clone()),
        other => (other.to_string(), None),
    };
    let hint = hint.unwrap_or_else(|| "name it x.csv, x.json, x.parquet or x.arrow".into());
    Err(Error::Usage { message, hint })
}

fn bounded(whole: &str, parts: &str, number: u32, max: u32) -> Result<(), Error> {
    if (1..=max).contains(&number) {
        return Ok(());
    }
    let message = format!("a {whole} cannot have {number} {parts}");
    Err(Error::Usage { message, hint: format!("choose 1 to {max} {parts}") })
}
