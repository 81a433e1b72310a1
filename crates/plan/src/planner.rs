//! From a script to stages.

mod building;
pub(crate) mod define;
pub(crate) mod fragment;
pub(crate) mod functions;
pub(crate) mod given;
mod ingestion;
pub(crate) mod insert;
mod products;
mod vacuum;
pub(crate) mod vocabulary;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use dataflow::connector::{Connector, Options, TableDef, WriteMode};
use dataflow::fusion::fuse;
use dataflow::job::{JobGraph, Operator, OperatorSpec, StateMemory};
use dataflow::{grid, placement, probe_chains, probed_builds};
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::tokenizer::TokenWithSpan;

use crate::Workers;
use crate::catalog::{Catalog, Entry};
use crate::explain::{self, Analyzed, Discard, EndNeed, Explain, RecoveryAsked, RingMode};
use crate::expr::given::GivenFunction;
use crate::logical::engine::{Engine, Understood};
use crate::lower::join_order::{OrderedPlan, ScannedStatistics};
use crate::lower::shared::Sharing;
use crate::lower::{Lowered, Lowering, Target, known_rows, told_rows};
pub(crate) use crate::planner::building::Building;
use crate::planner::define::defined_name;
use crate::planner::insert::NamedQuery;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::hints::Hints;
use crate::text::names::with_plain_names;
use crate::text::settings::{InForce, Scope};
use crate::text::statements::{self, ExplainOptions, Statement};
use crate::text::syntax::{Ident, split, text_of, unmarked};
use crate::text::types::sql_name;
use crate::text::{bounds, depth};

/// Plans scripts. It keeps tables, views and settings from one script to the next.
pub struct Planner {
    pub(crate) connectors: Vec<Arc<dyn Connector>>,
    workers: Workers,
    ends: Vec<EndNeed>,
    member_bytes: u64,
    default_sink: Option<(Arc<dyn Connector>, Options)>,
    pub(crate) engine: Engine,
    pub(crate) catalog: Catalog,
    pub(crate) settings: InForce,
    /// The tables that a job which goes on reads as streams, by their titles.
    streamed: Vec<String>,
    /// Of the script that is planned.
    pub(crate) hints: Hints,
}

/// The unit that runs at a time: one statement, or all of a statement set. Stages run one after
/// another.
pub struct Stage {
    /// The queries.
    pub job: JobGraph,
    /// The statements that it runs.
    pub statements: Vec<Planned>,
    /// Where the operators of each end in the job: they follow those of the one before.
    pub ends: Vec<usize>,
    /// Whether it ends by itself.
    pub bounded: bool,
    /// The plan for a reader.
    pub explain: Explain,
    /// Where to tell how it went, if the next stage is to show that.
    pub analyzed: Option<Analyzed>,
    /// Set to true, it ends what runs when all input has been read; the rest ends by its workers.
    pub interrupt: Arc<AtomicBool>,
}

/// A statement of a stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// `INSERT INTO t`, `SELECT`.
    pub name: String,
    /// Its text.
    pub sql: String,
    /// The line of the script where it begins, from 1.
    pub line: usize,
}

/// Why a statement was not planned: what to report, or nothing if the cause was reported already.
pub(crate) type Failed = Vec<Diagnostic>;

/// A script while it is planned.
struct Script<'a> {
    sql: &'a str,
    stages: Vec<Stage>,
    /// The statement set that is open, and where it was opened.
    set: Option<(Building, Place)>,
}

/// The connector that reads files.
const FILES: &str = "file";

fn named(connectors: &[Arc<dyn Connector>], name: &str) -> Option<Arc<dyn Connector>> {
    connectors.iter().find(|connector| connector.name() == name).cloned()
}

impl Planner {
    /// A planner without tables, for jobs of `workers`.
    pub fn new(connectors: Vec<Arc<dyn Connector>>, workers: Workers) -> Self {
        let catalog = Catalog::new(named(&connectors, FILES));
        Self {
            connectors,
            workers,
            ends: vec![],
            member_bytes: 0,
            default_sink: None,
            engine: Engine::new(),
            catalog,
            settings: InForce::default(),
            streamed: vec![],
            hints: Hints::default(),
        }
    }

    pub(crate) fn workers(&self) -> Workers {
        self.workers
    }

    /// Says where the rows of a bare `SELECT` go.
    pub fn set_default_sink(&mut self, connector: Arc<dyn Connector>, options: Options) {
        self.default_sink = Some((connector, options));
    }

    /// The connector of that name.
    pub fn connector(&self, name: &str) -> Option<Arc<dyn Connector>> {
        named(&self.connectors, name)
    }

    /// Says that the name of a file is no table: a script reads and writes what is declared.
    pub fn refuse_file_names(&mut self) {
        self.catalog = Catalog::new(None);
    }

    /// Plans a script: its statements in order. Statements that only define something make no
    /// stage.
    ///
    /// # Errors
    /// Everything that is wrong with the script; then no table, view or setting has changed.
    pub fn plan(&mut self, sql: &str) -> Result<Vec<Stage>, Vec<Diagnostic>> {
        self.catalog.forget_places();
        self.plan_part(sql)
    }

    /// Plans statements of a script whose former statements were planned by calls before: errors
    /// may point at those. The places of both are those of the same text, so that blanks stand in
    /// `sql` for what is not planned by this call.
    ///
    /// # Errors
    /// As [`Planner::plan`].
    pub fn plan_part(&mut self, sql: &str) -> Result<Vec<Stage>, Vec<Diagnostic>> {
        let before = (self.catalog.clone(), self.settings.clone());
        let planned = depth::guarded(|| self.plan_here(unmarked(sql)));
        if planned.is_err() {
            (self.catalog, self.settings) = before;
        }
        planned
    }

    fn plan_here(&mut self, sql: &str) -> Result<Vec<Stage>, Vec<Diagnostic>> {
        self.catalog.begin_script();
        self.hints.read(sql, self.catalog.script).map_err(|error| vec![error])?;
        self.engine.interrupt = Arc::default();
        let mut script = Script { sql, stages: vec![], set: None };
        let mut errors = vec![];
        let pieces = split(sql).map_err(|error| vec![error])?;
        bounds::check_statements(&pieces).map_err(|error| vec![error])?;
        for tokens in pieces {
            let start = tokens.first().map_or(Place::default(), |t| Place::of(t.span));
            let done = depth::unless_it_panics(start, || {
                let parsed = statements::parse(&tokens).map_err(|error| vec![error])?;
                parsed.into_iter().try_for_each(|one| self.statement(one, &tokens, &mut script))
            });
            if let Err(failed) = done {
                errors.extend(failed);
                self.catalog.broken.extend(defined_name(&tokens));
            }
        }
        if let Some((_, place)) = script.set {
            errors.push(
                Diagnostic::at(place, "the statement set is not closed").hint("close it with END;"),
            );
        }
        if errors.is_empty() {
            errors.extend(self.hints.disobeyed());
        }
        if errors.is_empty() { Ok(script.stages) } else { Err(errors) }
    }

    fn statement(
        &mut self,
        statement: Statement,
        tokens: &[TokenWithSpan],
        script: &mut Script<'_>,
    ) -> Result<(), Failed> {
        let start = tokens.first().map_or(Place::default(), |t| Place::of(t.span));
        if script.set.is_some()
            && !matches!(
                statement,
                Statement::Insert { .. } | Statement::Set { .. } | Statement::EndSet
            )
        {
            return Err(vec![
                Diagnostic::at(start, "a statement set holds INSERT and SET statements only")
                    .hint("close it with END; first"),
            ]);
        }
        match statement {
            Statement::CreateTable(mut decl) => {
                let Some(query) = decl.query.take() else { return self.create_table(&decl) };
                if self.create_table_as(&mut decl, &query)? {
                    let (table, mode, columns) = (decl.name, WriteMode::Create, vec![]);
                    let insert = Statement::Insert { table, mode, columns, query };
                    return self.statement(insert, tokens, script);
                }
            }
            Statement::CreateView { name, if_not_exists, columns, query } => {
                return self.create_view(&name, if_not_exists, &columns, &query);
            }
            Statement::Drop { view, name, if_exists } => self.drop(view, &name, if_exists)?,
            Statement::Set { key, value } => {
                let of_a_job = InForce::scope(&key.text) == Some(Scope::Job);
                if script.set.is_some() && of_a_job {
                    let message = format!("'{}' is a setting of the whole statement set", key.text);
                    let error = Diagnostic::at(key.place, message);
                    return Err(vec![error.hint("SET it before BEGIN STATEMENT SET")]);
                }
                self.set(&key, &value)?;
            }
            Statement::Analyze(inner, options) => {
                let text = text_of(script.sql, tokens);
                script.stages.extend(self.analyze(*inner, options, text, start)?);
            }
            Statement::BeginSet => script.set = Some((Building::default(), start)),
            Statement::EndSet => match script.set.take() {
                Some((building, _)) if building.operators.is_empty() => {}
                Some((building, _)) => script.stages.push(self.stage(building)),
                None => {
                    return Err(vec![Diagnostic::at(start, "there is no statement set to END")]);
                }
            },
            rows => {
                let place = match &rows {
                    Statement::Insert { table, .. } => table.place,
                    _ => start,
                };
                let (name, lowered) = self.rows(rows, start)?;
                let text = text_of(script.sql, tokens);
                let planned = Planned { name, sql: text, line: start.line };
                match &mut script.set {
                    Some((building, _)) => {
                        building.replaces(&lowered, place).map_err(|error| vec![error])?;
                        building.add(planned, lowered);
                    }
                    None => {
                        let mut building = Building::default();
                        building.add(planned, lowered);
                        script.stages.push(self.stage(building));
                    }
                }
            }
        }
        Ok(())
    }

    /// A stage that runs a query for nobody, and one that shows how that went.
    fn analyze(
        &self,
        inner: Statement,
        ExplainOptions { format, recovery }: ExplainOptions,
        sql: String,
        start: Place,
    ) -> Result<[Stage; 2], Failed> {
        let Statement::Select(query) = inner else {
            let message = "EXPLAIN ANALYZE runs a query, and this is none";
            return Err(vec![Diagnostic::at(start, message).hint("EXPLAIN ANALYZE SELECT …")]);
        };
        let place = query.first().map_or(start, |token| Place::of(token.span));
        let (name, lowered) = self.select_into(&query, |schema| {
            let table = "none, rows are counted".into();
            Ok(Target { name: "SELECT".into(), sink: Arc::new(Discard), schema, table })
        })?;
        if !lowered.bounded {
            let message = "EXPLAIN ANALYZE runs a query to its end, and this one has none";
            return Err(vec![
                Diagnostic::at(place, message)
                    .hint("run it with --metrics: /metrics tells the same while it runs"),
            ]);
        }
        let of = |name: String, lowered| {
            let mut building = Building::default();
            building.add(Planned { name, sql: sql.clone(), line: start.line }, lowered);
            self.stage(building)
        };
        let schema = Arc::new(Schema::new(vec![Field::new("plan", DataType::Utf8, false)]));
        let analyzed = Analyzed { format, schema: schema.clone(), rows: Arc::default() };
        let target = self.default_target("EXPLAIN ANALYZE", schema, start)?;
        let shown = told_rows(analyzed.rows.clone(), "what the run before came to".into(), target);
        let mut run = Stage { analyzed: Some(analyzed), ..of(name, lowered) };
        run.explain.recovery.shown |= recovery;
        Ok([run, of("EXPLAIN ANALYZE".into(), shown)])
    }

    /// A statement that makes rows.
    fn rows(&self, statement: Statement, start: Place) -> Result<(String, Lowered), Failed> {
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        match statement {
            Statement::Insert { table, mode, columns, query } => {
                self.insert(&table, mode, &columns, &query)
            }
            Statement::Select(query) => self.select(&query, start),
            Statement::Explain(inner, options) => {
                let (_, lowered) = self.rows(*inner, start)?;
                let mut building = Building::default();
                building.add(Planned { name: String::new(), sql: String::new(), line: 0 }, lowered);
                let explained = self.stage(building).explain.asked(options);
                self.shown("EXPLAIN", vec![text("plan")], vec![explained.lines().collect()], start)
            }
            Statement::ShowTables => {
                let names: Vec<&str> = self.catalog.names().collect();
                self.shown("SHOW TABLES", vec![text("name")], vec![names], start)
            }
            Statement::Describe(name) => {
                let mut entry =
                    self.catalog.read(&name.text).map_err(|e| vec![e.moved(name.place)])?;
                let schema = match &mut entry {
                    Some(Entry::Table(table)) => table.columns(name.place).map_err(|e| vec![e])?,
                    Some(Entry::View(view)) => view.schema(),
                    None => return Err(self.unknown(&name)),
                };
                let fields = schema.fields();
                let names = fields.iter().map(|f| f.name().as_str()).collect();
                let types: Vec<String> = fields.iter().map(|f| sql_name(f.data_type())).collect();
                let types = types.iter().map(String::as_str).collect();
                let columns = vec![text("column"), text("type")];
                self.shown(&format!("DESCRIBE {}", name.text), columns, vec![names, types], start)
            }
            Statement::Vacuum { table, how } => self.vacuum(&table, how, start),
            // The statements that define something were taken by the caller.
            _ => Err(vec![]),
        }
    }

    fn insert(
        &self,
        name: &Ident,
        mode: WriteMode,
        columns: &[Ident],
        query: &[TokenWithSpan],
    ) -> Result<(String, Lowered), Failed> {
        let file = self.catalog.file(&name.text);
        let table = match self.catalog.get(&name.text) {
            None if file.is_none() && matches!(self.catalog.read(&name.text), Ok(Some(_))) => {
                let message = format!(
                    "'{}' holds what another table could not give, and cannot be written",
                    name.text
                );
                return Err(vec![Diagnostic::at(name.place, message)]);
            }
            Some(Entry::Table(table)) => table,
            Some(Entry::View(_)) => {
                let message = format!("'{}' is a view, and only tables can be written", name.text);
                return Err(vec![Diagnostic::at(name.place, message)]);
            }
            None => match &file {
                Some(file) => file,
                None => return Err(self.unknown(name)),
            },
        };
        let understood = self.understand(query)?;
        // A file is written anew, whatever columns it has.
        let declared = if file.is_some() { None } else { table.declared_columns() };
        if let (None, Some(first)) = (&declared, columns.first()) {
            let message = format!("table '{}' declares no columns to be named", name.text);
            return Err(vec![Diagnostic::at(first.place, message)]);
        }
        let around = self.engine.surroundings(query, &understood, &self.catalog);
        let failed = |e| Vec::from_iter(around.report(&e));
        let (plan, schema) = match declared {
            None => (understood.plan.clone(), understood.columns()),
            Some(schema) => {
                let given = NamedQuery { plan: understood.plan.clone(), names: understood.names() };
                let fitted = insert::fit(given, &schema, columns, name, query);
                (fitted.map_err(|e| vec![e])?.map_err(failed)?, schema)
            }
        };
        if file.is_some() {
            table.is_written_as(&schema);
        }
        let sharing = self.engine.shared(&plan);
        let plan = self.engine.optimize(&plan).map_err(failed)?;
        let sink = table
            .connector
            .sink_for(&table.def(schema.clone()), mode)
            .map_err(|error| vec![table.refused_write(&error, mode, name.place)])?;
        let verb = if mode == WriteMode::Overwrite { "OVERWRITE" } else { "INTO" };
        let target = Target {
            name: format!("INSERT {verb} {}", name.text),
            sink,
            schema,
            table: table.title(),
        };
        self.lower(query, &understood, &plan, sharing, target)
    }

    fn select(&self, query: &[TokenWithSpan], start: Place) -> Result<(String, Lowered), Failed> {
        self.select_into(query, |schema| self.default_target("SELECT", schema, start))
    }

    fn select_into(
        &self,
        query: &[TokenWithSpan],
        target: impl FnOnce(SchemaRef) -> Result<Target, Failed>,
    ) -> Result<(String, Lowered), Failed> {
        let understood = self.understand(query)?;
        let (plan, sharing) = {
            let around = self.engine.surroundings(query, &understood, &self.catalog);
            let plan = self.engine.optimize(&understood.plan);
            let plan = plan.map_err(|e| Vec::from_iter(around.report(&e)))?;
            (plan, self.engine.shared(&understood.plan))
        };
        let schema = with_plain_names(&understood.columns(), &understood.plan);
        let target = target(schema)?;
        self.lower(query, &understood, &plan, sharing, target)
    }

    /// Rows of text into the default sink.
    fn shown(
        &self,
        name: &str,
        fields: Vec<Field>,
        columns: Vec<Vec<&str>>,
        start: Place,
    ) -> Result<(String, Lowered), Failed> {
        let schema = Arc::new(Schema::new(fields));
        let target = self.default_target(name, schema.clone(), start)?;
        let columns = columns.into_iter().map(|c| Arc::new(StringArray::from(c)) as ArrayRef);
        let batch = RecordBatch::try_new(schema, columns.collect())
            .map_err(|error| vec![Diagnostic::at(start, error.to_string())])?;
        Ok((name.to_string(), known_rows(vec![batch], target)))
    }

    fn default_target(
        &self,
        name: &str,
        schema: SchemaRef,
        start: Place,
    ) -> Result<Target, Failed> {
        let Some((connector, options)) = &self.default_sink else {
            let error = Diagnostic::at(start, "there is nowhere to show rows");
            return Err(vec![error.hint("INSERT INTO a table")]);
        };
        let def = TableDef {
            name: "result".into(),
            schema: schema.clone(),
            options: options.clone(),
            metadata: Default::default(),
            buckets: vec![],
        };
        let sink =
            connector.sink(&def).map_err(|error| vec![Diagnostic::at(start, error.to_string())])?;
        let table = connector.name().to_string();
        Ok(Target { name: name.into(), sink, schema, table })
    }

    pub(crate) fn understand(&self, query: &[TokenWithSpan]) -> Result<Understood, Failed> {
        let understood = self.engine.understand(query, &self.catalog);
        understood.map_err(|errors| self.with_product_rows(query, errors))
    }

    fn lower(
        &self,
        query: &[TokenWithSpan],
        understood: &Understood,
        plan: &LogicalPlan,
        sharing: Option<Sharing>,
        target: Target,
    ) -> Result<(String, Lowered), Failed> {
        let name = target.name.clone();
        let lowering = Lowering {
            engine: &self.engine,
            catalog: &self.catalog,
            plan,
            settings: &self.settings,
            workers: self.workers,
            around: self.engine.surroundings(query, understood, &self.catalog),
            emit: understood.emit.clone(),
            hints: &self.hints,
            statistics: ScannedStatistics::new(self.workers.total()),
            streamed: &self.streamed,
            shows_rows: false,
        };
        let OrderedPlan { plan, orders } = lowering.ordered().map_err(Vec::from_iter)?;
        let lowering = Lowering { plan: &plan, shows_rows: !orders.is_empty(), ..lowering };
        let mut lowered = lowering.lower(sharing, target).map_err(Vec::from_iter)?;
        lowered.orders = orders;
        GivenFunction::add_used(&mut lowered.functions, &understood.plan)
            .map_err(|error| Vec::from_iter(lowering.around.report(&error)))?;
        self.distribute(&mut lowered.operators);
        Ok((name, lowered))
    }

    /// Workers read, keep and send rows as the settings in force say.
    fn distribute(&self, operators: &mut Vec<Operator>) {
        ingestion::divide(operators, &self.settings.job, self.workers.total());
        operators.iter_mut().for_each(|operator| operator.shuffle = self.settings.shuffle);
    }

    pub(crate) fn stage(&self, building: Building) -> Stage {
        let count = |of: fn(&dyn OperatorSpec) -> bool| {
            building.operators.iter().filter(|operator| of(operator.spec())).count()
        };
        let groupings = count(|spec| spec.memory() != StateMemory::Stateless);
        let broadcasts = count(|spec| spec.broadcasts());
        let mut needs = explain::memory::needs(
            &self.settings,
            self.workers,
            &self.ends,
            groupings,
            building.batch,
        );
        needs.extend(explain::memory::broadcast_needs(
            &self.settings,
            self.workers,
            broadcasts,
            self.member_bytes,
        ));
        let workers = self.workers.total();
        let windows = building.operators.iter().map(|of| of.spec().receive_windows(workers));
        needs.extend(explain::memory::receive_needs(&self.settings, windows.sum()));
        let (operators, mut settings) = (building.operators, self.settings.job.clone());
        settings.functions = building.functions.iter().map(GivenFunction::of_job).collect();
        let mut job = JobGraph { operators, settings };
        placement::release(&mut job.operators);
        fuse(&mut job, workers);
        grid::divide(&mut job, self.workers.nodes);
        probed_builds::connect(&mut job, workers);
        probe_chains::chain(&mut job, workers);
        let operators = job.operators.clone();
        Stage {
            job,
            statements: building.statements,
            ends: building.ends,
            bounded: !building.unbounded,
            explain: Explain {
                statements: building.explained,
                operators,
                needs,
                workers: self.workers,
                only_readers: self.settings.job.only_readers(workers),
                ring_mode: RingMode::of(&self.settings, self.workers.nodes, self.member_bytes > 0),
                epoch: self.settings.job.epoch,
                recovery: RecoveryAsked::of(&self.settings),
                functions: building.functions,
            },
            analyzed: None,
            interrupt: self.engine.interrupt.clone(),
        }
    }
}
