//! From an optimized plan to the queries of a job.
//!
//! A plan that is one [`Fragment`] becomes one query into the statement's sink. Otherwise, over
//! bounded input, its largest fragments become queries into a [`BatchStage`], which runs the rest.
//! Over unbounded input there is no rest: what does not stream is refused.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use dataflow::job::{Aggregation, Exchange, Input, Query, Watermark, Window};
use dataflow::sink::{Placement, Sink};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use state::{GroupBy, StateOptions, Windows};

use crate::Workers;
use crate::batch::{self, BatchStage, GatheredRows};
use crate::catalog::{ScannedTable, Table};
use crate::diagnostics::{Diagnostic, Place};
use crate::errors::Surroundings;
use crate::explain::{Line, Section};
use crate::fragment::{Fragment, Grouping, Refusal, Shape, aggregate_name, key_name};
use crate::interval::tick_ns;
use crate::query::Engine;
use crate::rows::Rows;
use crate::settings::{ExchangeChoice, InForce};
use crate::step::{self, column_index};
use crate::syntax::is_word;
use crate::tumble::{Bound, WindowCall};

/// Where a statement's rows go.
pub(crate) struct Target {
    /// For messages: `INSERT INTO t`.
    pub(crate) name: String,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) schema: SchemaRef,
    /// For EXPLAIN: the table and its connector.
    pub(crate) shown: String,
}

/// The queries of a statement.
pub(crate) struct Lowered {
    pub(crate) queries: Vec<Query>,
    pub(crate) sections: Vec<Section>,
    pub(crate) bounded: bool,
    pub(crate) batch: bool,
}

/// Lowers one statement.
pub(crate) struct Lowering<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) settings: &'a InForce,
    pub(crate) workers: Workers,
    pub(crate) around: Surroundings<'a>,
}

impl Lowering<'_> {
    /// Lowers the optimized plan of a statement.
    ///
    /// # Errors
    /// What does not stream over unbounded input, and what connectors or DataFusion refuse.
    pub(crate) fn lower(
        &self,
        plan: &LogicalPlan,
        target: Target,
    ) -> Result<Lowered, Option<Diagnostic>> {
        let tables = tables_of(plan);
        if tables.is_empty() {
            return self.constant(plan, target);
        }
        let mut bounded = true;
        for table in &tables {
            bounded &= table.bounded(self.place_of(table))?;
        }
        let fragment = Fragment::of(plan);
        if !bounded {
            let fragment = fragment.map_err(|refusal| self.unbounded(&refusal, &tables))?;
            if fragment.groups_for_ever() {
                return Err(Some(self.unbounded(&for_ever(plan), &tables)));
            }
            return self.whole(fragment, target, false);
        }
        match fragment {
            Ok(fragment) => self.whole(fragment, target, true),
            Err(refusal) => self.with_batch_stage(plan, target, &refusal),
        }
    }

    /// A statement that is one fragment.
    fn whole(
        &self,
        fragment: Fragment,
        target: Target,
        bounded: bool,
    ) -> Result<Lowered, Option<Diagnostic>> {
        let mut section = Section::new(&target.name);
        let shown = match target.sink.placement() {
            Placement::Gather => format!("{}, written by worker 0", target.shown),
            Placement::Everywhere => format!("{}, written by every worker", target.shown),
        };
        let query = self.query(&fragment, &target, bounded, &mut section)?;
        section.text("sink", shown);
        Ok(Lowered { queries: vec![query], sections: vec![section], bounded, batch: false })
    }

    /// A statement of several fragments, or with work that needs all rows.
    fn with_batch_stage(
        &self,
        plan: &LogicalPlan,
        target: Target,
        refusal: &Refusal,
    ) -> Result<Lowered, Option<Diagnostic>> {
        let mut fragments = vec![];
        let rest = cut(plan, &mut fragments).map_err(|e| self.around.report(&e))?;
        let stage = BatchStage::new(
            rest.clone(),
            fragments.len(),
            self.engine.state(),
            target.sink.clone(),
            target.schema.clone(),
            self.settings.batch_bytes,
        )
        .map_err(|e| self.around.report(&e))?;
        let mut lowered = Lowered { queries: vec![], sections: vec![], bounded: true, batch: true };
        for (part, fragment) in fragments.into_iter().enumerate() {
            let name = format!("{} (part {})", target.name, part + 1);
            let mut section = Section::new(&name);
            let schema = Arc::new(fragment.schema.as_arrow().clone());
            let into = Target { name, sink: stage.part(part), schema, shown: String::new() };
            let query = self.query(&fragment, &into, true, &mut section)?;
            section.text("sink", "the batch stage, gathered on worker 0".to_string());
            lowered.queries.push(query);
            lowered.sections.push(section);
        }
        let mut section = Section::new(&target.name);
        section.text(
            "batch stage",
            format!("on worker 0 when all parts have ended: {}", refusal.reason),
        );
        section.lines.extend(
            rest.display_indent().to_string().lines().map(|line| Line::Plan(line.to_string())),
        );
        section.text("sink", target.shown);
        lowered.sections.push(section);
        Ok(lowered)
    }

    /// A statement that reads no table: its rows are computed now.
    fn constant(&self, plan: &LogicalPlan, target: Target) -> Result<Lowered, Option<Diagnostic>> {
        let report = |e: &DataFusionError| self.around.report(e);
        let batches = batch::collect(plan, self.engine.state()).map_err(|e| report(&e))?;
        let batches = batches
            .into_iter()
            .map(|b| batch::renamed(b, &target.schema))
            .collect::<DfResult<Vec<_>>>()
            .map_err(|e| report(&e))?;
        Ok(known_rows(batches, target))
    }

    /// The query of a fragment.
    fn query(
        &self,
        fragment: &Fragment,
        target: &Target,
        bounded: bool,
        section: &mut Section,
    ) -> Result<Query, Option<Diagnostic>> {
        let table = &fragment.table;
        let place = self.place_of(table);
        let all = table.columns(place)?;
        let read = columns_read(fragment, &all);
        let columns = all.project(&read).map_err(|e| self.around.report(&e.into()))?;
        let columns = Arc::new(columns);
        let source = table.source(&read, place)?;
        let mut query = Query {
            name: target.name.clone(),
            input: Input { table: table.name.clone(), source, watermark: None },
            step: None,
            aggregate: None,
            schema: target.schema.clone(),
            sink: target.sink.clone(),
        };
        let reported = |e: DataFusionError| self.around.report(&e);
        let filter = fragment.filter.as_ref();
        match &fragment.shape {
            Shape::Rows(outputs) => {
                let schema = target.schema.clone();
                query.step = step::compile(&columns, filter, outputs, schema).map_err(reported)?;
                section.source(table, &query.input, &columns);
                section.step("step", &query.step);
            }
            Shape::Groups(grouping) => {
                if let Some(window) = &grouping.window {
                    query.input.watermark = self.watermark(window, table, &columns, bounded)?;
                }
                section.source(table, &query.input, &columns);
                self.aggregation(fragment, grouping, &columns, &mut query, section)?;
            }
        }
        Ok(query)
    }

    /// The event time of a query with a window.
    fn watermark(
        &self,
        window: &WindowCall,
        table: &Table,
        columns: &SchemaRef,
        bounded: bool,
    ) -> Result<Option<Watermark>, Diagnostic> {
        let column = column_index(&window.time, columns);
        let event_time = table.event_time.as_ref();
        match (event_time, column) {
            (Some(time), Some(column)) if columns.field(column).name() == &time.column => {
                let (delay, idle_timeout_ns) = (time.delay, time.idle_timeout_ns);
                Ok(Some(Watermark { column, delay, idle_timeout_ns }))
            }
            _ if bounded => Ok(None),
            _ => {
                let site = window.site(self.around.sites);
                let place = site.map_or_else(|| self.around.start(), |site| site.time.place);
                let name = window.time.human_display();
                let message =
                    format!("'{name}' has no watermark, and table '{}' never ends", table.name);
                let error = Diagnostic::at(place, message)
                    .detail("a window is given out when the watermark has passed its end");
                Err(match event_time {
                    Some(time) => {
                        error.hint(format!("the table's event time is '{}'", time.column))
                    }
                    None => error.hint(format!(
                        "declare it: WATERMARK FOR {name} AS {name} - INTERVAL '5' SECOND"
                    )),
                })
            }
        }
    }

    /// Fills in the step before the grouping, the grouping, and the step behind it.
    fn aggregation(
        &self,
        fragment: &Fragment,
        grouping: &Grouping,
        columns: &SchemaRef,
        query: &mut Query,
        section: &mut Section,
    ) -> Result<(), Option<Diagnostic>> {
        let report = |e: DataFusionError| self.around.report(&e);
        let mut wanted = Wanted::default();
        let keys: Vec<usize> = grouping.keys.iter().map(|key| wanted.index(key)).collect();
        let mut index_all =
            |args: &[Expr]| args.iter().map(|a| wanted.index(a)).collect::<Vec<_>>();
        let args = grouping.aggregates.iter().map(|call| index_all(&call.args)).collect::<Vec<_>>();
        let time = grouping.window.as_ref().map(|window| wanted.index(&window.time));
        if wanted.0.is_empty() {
            // Rows need a column to be counted by.
            let first = columns.field(0).name().clone();
            wanted.index(&Expr::Column(Column::new_unqualified(first)));
        }
        let (before, places) = match (&fragment.filter, wanted.direct(columns)) {
            (None, Some(places)) => (columns.clone(), places),
            (filter, _) => {
                let before = wanted.schema(columns).map_err(report)?;
                query.step = step::compile(columns, filter.as_ref(), &wanted.0, before.clone())
                    .map_err(report)?;
                (before, (0..wanted.0.len()).collect())
            }
        };
        let keys: Vec<usize> = keys.into_iter().map(|key| places[key]).collect();
        let args = args.into_iter().map(|of| of.into_iter().map(|arg| places[arg]).collect());
        let args: Vec<Vec<usize>> = args.collect();
        let window = match (&grouping.window, time) {
            (Some(window), Some(time)) => Some(window_of(window, places[time], &before)?),
            _ => None,
        };
        let given_out = given_out(grouping, &keys, &before, window.as_ref());
        let behind = step::compile(
            &given_out,
            grouping.filter.as_ref(),
            &grouping.outputs,
            query.schema.clone(),
        )
        .map_err(report)?;
        let (exchange, why) = self.exchange()?;
        section.step("step", &query.step);
        section.grouping(grouping, &before, &keys);
        section.text("exchange", format!("{exchange}: {why}"));
        section.behind(grouping, &behind);
        query.aggregate = Some(Aggregation {
            group_by: Arc::new(GroupBy {
                keys: keys.iter().map(|&key| before.field(key).data_type().clone()).collect(),
                aggregates: grouping.aggregates.iter().map(|c| c.aggregate.clone()).collect(),
                options: StateOptions {
                    budget_bytes: self.settings.job.state_bytes_max,
                    ..StateOptions::default()
                },
            }),
            input_schema: before,
            keys,
            args,
            window,
            exchange,
            schema: given_out,
            step: behind,
        });
        Ok(())
    }

    /// How the workers' rows meet, and why so.
    fn exchange(&self) -> Result<(Exchange, String), Diagnostic> {
        let workers = self.workers.total();
        match self.settings.exchange {
            ExchangeChoice::Auto if workers == 1 => {
                Ok((Exchange::Forward, "there is one worker, and all rows meet there".into()))
            }
            ExchangeChoice::Auto => Ok((
                Exchange::Merge,
                "each worker aggregates what it reads, so rows do not travel; how many groups \
                 there are is not known beforehand"
                    .into(),
            )),
            ExchangeChoice::Fixed(Exchange::Forward) if workers > 1 => {
                let message =
                    format!("exchange 'forward' cannot group the rows of {workers} workers");
                let place = self.first_of(&["GROUP", "DISTINCT"]);
                Err(Diagnostic::at(place, message)
                    .detail("each worker would give out its own rows for the same key")
                    .hint("SET millstream.exchange = 'merge'"))
            }
            ExchangeChoice::Fixed(exchange) => Ok((exchange, "SET millstream.exchange".into())),
        }
    }

    /// The error that something does not stream.
    fn unbounded(&self, refusal: &Refusal, tables: &[Arc<Table>]) -> Diagnostic {
        let mut refusal = refusal.clone();
        let opens = |pair: &[TokenWithSpan]| {
            pair[0].token == Token::LParen && is_word(&pair[1], "DISTINCT")
        };
        if self.around.tokens.windows(2).any(opens) {
            // DataFusion has made two groupings of it.
            refusal =
                Refusal::new(&["DISTINCT"], "aggregates of DISTINCT values do not stream yet");
        }
        let words: Vec<&str> = refusal.words.iter().map(String::as_str).collect();
        let endless =
            tables.iter().find(|t| !t.bounded(Place::default()).unwrap_or(true)).map(|t| &t.name);
        let mut error = Diagnostic::at(self.first_of(&words), refusal.reason.clone());
        if let Some(name) = endless {
            error = error.detail(format!("table '{name}' never ends"));
        }
        error.hint = refusal.hint.clone();
        error
    }

    /// The place of the first of `words` that occurs in the statement.
    fn first_of(&self, words: &[&str]) -> Place {
        let find = |word: &&str| self.around.tokens.iter().find(|token| is_word(token, word));
        words
            .iter()
            .find_map(find)
            .map_or_else(|| self.around.start(), |token| Place::of(token.span))
    }

    fn place_of(&self, table: &Table) -> Place {
        self.around.named(&table.name).unwrap_or_else(|| self.around.start())
    }
}

/// Rows that are known, as a statement.
pub(crate) fn known_rows(batches: Vec<RecordBatch>, target: Target) -> Lowered {
    let mut section = Section::new(&target.name);
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    section.text("source", format!("{rows} rows of the statement itself"));
    section.text("sink", target.shown);
    let source = Arc::new(Rows { schema: target.schema.clone(), batches });
    let query = Query {
        name: target.name,
        input: Input { table: "rows".into(), source, watermark: None },
        step: None,
        aggregate: None,
        schema: target.schema,
        sink: target.sink,
    };
    Lowered { queries: vec![query], sections: vec![section], bounded: true, batch: false }
}

/// Expressions that a step gives out, each once.
#[derive(Default)]
struct Wanted(Vec<Expr>);

impl Wanted {
    fn index(&mut self, expr: &Expr) -> usize {
        self.0.iter().position(|known| known == expr).unwrap_or_else(|| {
            self.0.push(expr.clone());
            self.0.len() - 1
        })
    }

    /// Where each is among `columns`, if all of them are mere columns.
    fn direct(&self, columns: &Schema) -> Option<Vec<usize>> {
        self.0.iter().map(|expr| column_index(expr, columns)).collect()
    }

    fn schema(&self, columns: &Schema) -> DfResult<SchemaRef> {
        let scope = &DFSchema::try_from(columns.clone())?;
        let field = |expr: &Expr| {
            let data_type = expr.get_type(scope)?;
            Ok(match expr {
                Expr::Column(column) => Field::new(&column.name, data_type, expr.nullable(scope)?),
                other => Field::new(other.human_display().to_string(), data_type, true),
            })
        };
        Ok(Arc::new(Schema::new(self.0.iter().map(field).collect::<DfResult<Vec<_>>>()?)))
    }
}

/// The columns of the table that a fragment reads, in the table's order. At least one: rows are
/// counted by it.
fn columns_read(fragment: &Fragment, schema: &Schema) -> Vec<usize> {
    let exprs: Vec<&Expr> = match &fragment.shape {
        Shape::Rows(outputs) => outputs.iter().collect(),
        Shape::Groups(grouping) => grouping
            .keys
            .iter()
            .chain(grouping.aggregates.iter().flat_map(|call| &call.args))
            .chain(grouping.window.as_ref().map(|window| &window.time))
            .collect(),
    };
    let mut read: Vec<usize> = exprs
        .into_iter()
        .chain(&fragment.filter)
        .flat_map(|expr| expr.column_refs())
        .filter_map(|column| schema.index_of(&column.name).ok())
        .collect();
    read.sort_unstable();
    read.dedup();
    if read.is_empty() {
        let fixed = |field: &Arc<Field>| field.data_type().is_primitive();
        read.push(schema.fields().iter().position(fixed).unwrap_or(0));
    }
    read
}

/// The window over column `column` of `schema`.
fn window_of(
    window: &WindowCall,
    column: usize,
    schema: &Schema,
) -> Result<Window, Option<Diagnostic>> {
    let time_type = schema.field(column).data_type().clone();
    let unit = match &time_type {
        DataType::Timestamp(unit, _) => *unit,
        _ => TimeUnit::Nanosecond,
    };
    let (size, offset) = (window.size_ns / tick_ns(unit), window.offset_ns / tick_ns(unit));
    // The function's own check has refused sizes that are no whole number of ticks, and the parser
    // those below one.
    let windows = Windows::tumbling(size, offset).ok_or(None)?;
    Ok(Window { column, time_type, windows })
}

/// The columns that a grouping gives out.
fn given_out(
    grouping: &Grouping,
    keys: &[usize],
    before: &Schema,
    window: Option<&Window>,
) -> SchemaRef {
    let keys = keys.iter().enumerate().map(|(at, &key)| {
        let field = before.field(key);
        Field::new(key_name(at), field.data_type().clone(), field.is_nullable())
    });
    let aggregates = grouping
        .aggregates
        .iter()
        .enumerate()
        .map(|(at, call)| Field::new(aggregate_name(at), call.aggregate.output_type(), true));
    let bounds = window.into_iter().flat_map(|window| {
        Bound::GIVEN_OUT
            .into_iter()
            .map(|bound| Field::new(bound.column(), window.time_type.clone(), true))
    });
    Arc::new(Schema::new(keys.chain(aggregates).chain(bounds).collect::<Vec<_>>()))
}

/// The tables that a plan reads, each once.
pub(crate) fn tables_of(plan: &LogicalPlan) -> Vec<Arc<Table>> {
    let mut tables: Vec<Arc<Table>> = vec![];
    // The closure never fails, so neither does the walk.
    let _ = plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Some(source) = scan.source.downcast_ref::<ScannedTable>()
            && !tables.iter().any(|known| Arc::ptr_eq(known, &source.table))
        {
            tables.push(source.table.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    tables
}

/// Cuts the largest fragments out of a plan and leaves [`GatheredRows`] with the same columns in
/// their place.
fn cut(plan: &LogicalPlan, fragments: &mut Vec<Fragment>) -> DfResult<LogicalPlan> {
    let rest = plan.clone().transform_down_with_subqueries(|node| {
        let Ok(fragment) = Fragment::of(&node) else { return Ok(Transformed::no(node)) };
        let part = fragments.len();
        let fields = fragment.schema.as_arrow().fields().iter().enumerate();
        let plain: Vec<Field> =
            fields.map(|(at, f)| f.as_ref().clone().with_name(format!("c{at}"))).collect();
        let source = GatheredRows { part, schema: Arc::new(Schema::new(plain)) };
        let name = format!("part {}", part + 1);
        let scan = LogicalPlanBuilder::scan(name.clone(), Arc::new(source), None)?;
        let columns = fragment.schema.iter().enumerate().map(|(at, (qualifier, field))| {
            Expr::Column(Column::new(Some(name.clone()), format!("c{at}")))
                .alias_qualified(qualifier.cloned(), field.name())
        });
        let leaf = scan.project(columns.collect::<Vec<_>>())?.build()?;
        fragments.push(fragment);
        Ok(Transformed::new(leaf, true, TreeNodeRecursion::Jump))
    })?;
    Ok(rest.data)
}

/// Why a grouping without a window is refused.
fn for_ever(plan: &LogicalPlan) -> Refusal {
    let mut distinct = false;
    let _ = plan.apply(|node| {
        distinct |= matches!(node, LogicalPlan::Aggregate(a) if a.aggr_expr.is_empty());
        Ok(TreeNodeRecursion::Continue)
    });
    let words: &[&str] = match distinct {
        true => &["DISTINCT", "GROUP"],
        false => &["GROUP", "count", "sum", "avg", "min", "max"],
    };
    Refusal::new(words, "rows that never end cannot be grouped without a window").hint(
        "add a window: FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR) … \
         GROUP BY window_start, window_end",
    )
}
