//! Where SQL and streams that are built without it meet: a query whose rows go on into a stream,
//! a stream that queries read as a table, and jobs made of both.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use dataflow::error::DataflowError;
use dataflow::fragment::{Fragment, WindowColumns};
use dataflow::job::{Exchange, Operator, Origin, PROJECT, Property, Settings, Step, Stepped};
use dataflow::sink::Sink;
use dataflow::step::chain;
use datafusion::logical_expr::Expr;

use crate::catalog::{Entry, Table};
use crate::logical::windows::Bound;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::hints::BlockHints;
use crate::lower::join_order::ScannedStatistics;
use crate::lower::relation::{LowerError, Relation};
use crate::lower::{Lowered, Lowering, tables_of};
use crate::lower::{pipeline, session};
use crate::planner::{Building, Planned, Planner, Stage};
use crate::text::depth;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::names::with_plain_names;
use crate::text::settings::ExchangeChoice;
use crate::text::statements::{self, Statement};
use crate::text::syntax::{split, unmarked};

impl Planner {
    /// The rows of a query, to be continued.
    ///
    /// # Errors
    /// The errors of the query, and its parts that do not stream.
    pub fn fragment(&mut self, sql: &str) -> Result<Fragment, Vec<Diagnostic>> {
        depth::guarded(|| self.fragment_here(unmarked(sql)))
    }

    fn fragment_here(&mut self, sql: &str) -> Result<Fragment, Vec<Diagnostic>> {
        self.catalog.forget_places();
        self.catalog.begin_script();
        self.hints.read(sql, self.catalog.script).map_err(|error| vec![error])?;
        let one = || vec![Diagnostic::at(Place::default(), "a stream is made of one SELECT")];
        let mut pieces = split(sql).map_err(|error| vec![error])?;
        pieces.retain(|tokens| !tokens.is_empty());
        let [tokens] = pieces.as_slice() else { return Err(one()) };
        let parsed = statements::parse(tokens).map_err(|error| vec![error])?;
        let [Statement::Select(query)] = parsed.as_slice() else { return Err(one()) };
        let understood = self.understand(query)?;
        let around = self.engine.surroundings(query, &understood, &self.catalog);
        let plan = self.engine.optimize(&understood.plan);
        let plan = plan.map_err(|e| Vec::from_iter(around.report(&e)))?;
        let schema = with_plain_names(&understood.columns(), &understood.plan);
        let (engine, settings, workers) = (&self.engine, &self.settings, self.workers());
        if let Some(emit) = &understood.emit {
            return Err(vec![emit.elsewhere("a stream")]);
        }
        let hints = &self.hints;
        let (catalog, plan, emit) = (&self.catalog, &plan, None);
        let statistics = ScannedStatistics::new(workers.total());
        let lowering = Lowering {
            engine,
            catalog,
            plan,
            settings,
            workers,
            around,
            emit,
            hints,
            statistics,
            streamed: &[],
            shows_rows: false,
        };
        let fragment = lowering.fragment(schema).map_err(Vec::from_iter)?;
        let disobeyed: Vec<_> = self.hints.disobeyed().collect();
        if disobeyed.is_empty() { Ok(fragment) } else { Err(disobeyed) }
    }

    /// Gives a stream a name that queries may read, until it is dropped as a table is.
    ///
    /// # Errors
    /// When the name is taken.
    pub fn register(&mut self, name: &str, stream: Fragment) -> Result<(), Diagnostic> {
        if let Some(taken) = self.catalog.get(name) {
            let message = format!("{} '{name}' exists already", taken.kind());
            return Err(Diagnostic::at(Place::default(), message).hint("give it another name"));
        }
        if stream.lateness > 0 {
            let message = format!("stream '{name}' has windows that wait, which a query does not");
            return Err(Diagnostic::at(Place::default(), message).hint(
                "aggregate or join it before, or say LATENESS => INTERVAL '…' in the query instead",
            ));
        }
        let table = Table::of_stream(name, stream);
        self.catalog.insert(name.to_owned(), Entry::Table(Arc::new(table)));
        Ok(())
    }

    /// A writer of rows of `schema` into a table.
    ///
    /// # Errors
    /// When there is no such table, or it has other columns.
    pub fn sink(&self, name: &str, schema: &SchemaRef) -> Result<Arc<dyn Sink>, Diagnostic> {
        let Some(Entry::Table(table)) = self.catalog.get(name) else {
            return Err(self.catalog.unknown(Place::default(), name));
        };
        if let Some(declared) = table.declared_columns() {
            let wanted = declared.fields().iter().map(|f| (f.name(), f.data_type()));
            let given = schema.fields().iter().map(|f| (f.name(), f.data_type()));
            if !wanted.clone().eq(given.clone()) {
                let list = |columns: Vec<String>| columns.join(", ");
                let wanted = list(wanted.map(|(name, of)| format!("{name} {of}")).collect());
                let given = list(given.map(|(name, of)| format!("{name} {of}")).collect());
                let message = format!("table '{name}' has other columns than the stream");
                return Err(Diagnostic::at(Place::default(), message)
                    .detail(format!("the stream has {given}"))
                    .hint(format!("the table wants {wanted}: stream.select([…]), stream.map(…)")));
            }
        }
        let sink = table.connector.sink(&table.def(schema.clone()));
        sink.map_err(|error| table.refused(&error, Place::default()))
    }

    /// A stage of operators that were made without SQL.
    pub fn stage_of(&mut self, name: &str, mut operators: Vec<Operator>, bounded: bool) -> Stage {
        self.distribute(&mut operators);
        self.engine.interrupt = Arc::default();
        let mut building = Building::default();
        let planned = Planned { name: name.to_owned(), sql: String::new(), line: 0 };
        let (name, orders) = (name.to_owned(), vec![]);
        let functions = vec![];
        let lowered = Lowered { operators, name, bounded, batch: None, orders, functions };
        building.add(planned, lowered);
        self.stage(building)
    }

    /// The exchange that `SET millstream.exchange` has chosen; `None` for `auto`.
    pub fn exchange(&self) -> Option<Exchange> {
        match self.settings.exchange {
            ExchangeChoice::Auto => None,
            ExchangeChoice::Fixed(exchange) => Some(exchange),
        }
    }

    /// The settings of jobs, and bytes of tables for static joins that a worker may hold.
    pub fn job_and_table_bytes(&self) -> (&Settings, usize) {
        (&self.settings.job, self.settings.table_bytes)
    }
}

impl Lowering<'_> {
    /// The rows of an optimized plan as columns of `schema`, to be continued.
    fn fragment(&self, schema: SchemaRef) -> Result<Fragment, Option<Diagnostic>> {
        let plan = self.plan;
        let tables = tables_of(plan);
        if tables.is_empty() {
            let error = Diagnostic::at(self.around.start(), "the query reads no table");
            return Err(Some(error.hint("a stream begins at a table: SELECT … FROM t")));
        }
        let mut bounded = true;
        for table in &tables {
            bounded &= table.bounded(self.place_of(table))?;
        }
        let waits_ns = self.waits_ns(plan);
        let hints = BlockHints::default();
        let (emit, sizes) = (None, None);
        let cx = &Context { lowering: self, bounded, emit, waits_ns, hints, sizes };
        let job = &mut JobBuilder::default();
        let relation = pipeline::relation(cx, job, plan);
        let relation = relation.and_then(|relation| session::materialized(cx, job, relation));
        let lowered = relation.and_then(|relation| open_end(cx, job, &relation, schema));
        lowered.map_err(|error| match error.at(plan) {
            LowerError::Failed(diagnostic) => diagnostic,
            LowerError::Refused(mut refusal) => {
                let hint = || "run the query as a statement instead".into();
                refusal.hint = refusal.hint.or_else(|| Some(hint()));
                let detail = "rows that go on into a stream are emitted as they come";
                Some(self.refused(refusal.detail(detail)))
            }
        })
    }
}

/// Ends a relation whose rows somebody else takes on.
fn open_end(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    relation: &Relation,
    schema: SchemaRef,
) -> Result<Fragment, LowerError> {
    let outputs = relation.exprs();
    let at = |expr: &Expr| outputs.iter().position(|output| output == expr);
    let timed = relation.times.iter().find(|time| at(time).is_some());
    let finished = pipeline::finish(cx, job, relation, &outputs, timed)?;
    let step: Arc<dyn Step> = Arc::new(Named { schema: schema.clone(), columns: finished.places });
    let lateness = finished.edges.iter().map(|edge| edge.lateness).max().unwrap_or(0);
    let edges = finished.edges.into_iter();
    let window = relation.attached.as_ref().and_then(|attached| {
        let column = |bound: Bound| {
            let mut of = relation.windows.columns(attached.window);
            let (column, _) = of.find(|(_, of)| of.bound == bound && of.is_total())?;
            relation.outputs.iter().position(|(known, _)| known == column)
        };
        let end = column(Bound::End)?;
        let start = column(Bound::Start).unwrap_or(end);
        Some(WindowColumns { start, end, time: column(Bound::Time)? })
    });
    Ok(Fragment {
        operators: std::mem::take(&mut job.operators),
        from: edges.map(|edge| (edge.from, chain(edge.step, Some(step.clone())))).collect(),
        schema,
        time: timed.and_then(at),
        window,
        lateness,
        bounded: cx.bounded,
    })
}

/// Some columns under the names of a query.
struct Named {
    schema: SchemaRef,
    columns: Vec<usize>,
}

impl Step for Named {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn apply_for(&self, batch: &RecordBatch, _: Option<usize>) -> Result<Stepped, DataflowError> {
        let columns = self.columns.iter().map(|&at| batch.column(at).clone()).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        Ok(Stepped { batch, origin: Origin::All })
    }

    fn passes_on(&self, output: usize) -> Option<usize> {
        self.columns.get(output).copied()
    }

    fn describe(&self) -> Vec<Property> {
        let names: Vec<_> = self.schema.fields().iter().map(|f| f.name().as_str()).collect();
        vec![(PROJECT, names.join(", "))]
    }
}
