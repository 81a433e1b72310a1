//! From the tokens of a query to DataFusion's optimized plan.
//!
//! No table is read and nothing waits here: name resolution is a lookup in the [`Catalog`].

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow::temporal_conversions::timestamp_ns_to_datetime;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, SchemaError, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::planner::{
    ContextProvider, ExprPlanner, RelationPlanner, TypePlanner,
};
use datafusion::logical_expr::{
    AggregateUDF, EmptyRelation, Expr, HigherOrderUDF, LogicalPlan, ScalarUDF, TableSource,
    WindowUDF,
};
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast::{Ident, Query, Statement};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use futures::FutureExt;

use crate::catalog::computed::Computed;
use crate::catalog::proctime::ProcTime;
use crate::catalog::view::InlinedView;
use crate::catalog::watermark::CurrentWatermark;
use crate::catalog::{Catalog, Entry, ScannedTable};
use crate::expr::conform::{conform, with_literals};
use crate::expr::division;
use crate::expr::emit_kind::EmitKind;
use crate::expr::equality::{self, with_equal_values};
use crate::expr::failure::root;
use crate::expr::growth;
use crate::expr::interval_times::IntervalProducts;
use crate::expr::max_by::{self, ByOrder};
use crate::expr::percentile;
use crate::expr::written;
use crate::expr::{calendar, checked, distance, every, exact, flink, flink_times, json, lead};
use crate::logical::as_of::{self, AsOf};
use crate::logical::errors::{Again, PlanError, Surroundings};
use crate::logical::locate;
use crate::logical::naming::Naming;
use crate::logical::rewrite;
use crate::logical::twice::{self, Apart};
use crate::logical::windows::{self, Site, WindowPlanner};
use crate::text::bounds::{self, Extent};
use crate::text::clauses;
use crate::text::clauses::flink as forms;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::emit::{self, Emit};
use crate::text::syntax::{Cursor, misspelt_hint, parser, syntax_error};
use crate::text::types::Types;

/// DataFusion's functions and rules. It holds no tables.
pub(crate) struct Engine {
    state: SessionState,
    /// Those of our own.
    pub(super) functions: Vec<Arc<ScalarUDF>>,
    /// The aggregates that the program has given.
    pub(super) aggregates: Vec<Arc<AggregateUDF>>,
    /// The names of functions that the program has given.
    pub(super) given: Vec<String>,
    emit_kind: Arc<AggregateUDF>,
    types: Arc<Types>,
    /// Set to end the batch stages of the script that is planned.
    pub(crate) interrupt: Arc<AtomicBool>,
}

/// A plan, and its columns of one name.
struct NamedApart {
    plan: LogicalPlan,
    apart: Apart,
    /// The error about them.
    twice: Option<DataFusionError>,
}

/// A query as DataFusion understood it.
#[derive(Debug)]
pub(crate) struct Understood {
    /// The syntax tree.
    query: Box<Query>,
    pub(crate) plan: LogicalPlan,
    pub(crate) extent: Extent,
    pub(crate) sites: Vec<Site>,
    /// Whether and how often windows emit before they end.
    pub(crate) emit: Option<Emit>,
    /// The columns of one name, and what there is against them where columns are found by name.
    apart: Apart,
    twice: Option<DataFusionError>,
}

impl Understood {
    /// The names of the columns, of which two may be the same.
    pub(crate) fn names(&self) -> Vec<String> {
        self.apart.names(&self.plan)
    }

    /// The columns as they reach a sink that declares none.
    pub(crate) fn columns(&self) -> SchemaRef {
        twice::told_apart(&self.names(), self.plan.schema())
    }

    /// Refuses two columns of one name.
    pub(crate) fn each_once(
        &self,
        around: &Surroundings<'_>,
    ) -> std::result::Result<(), Vec<Diagnostic>> {
        let Some(error) = &self.twice else { return Ok(()) };
        Err(match twice::later(&self.query, error) {
            Some(Ident { value, span, .. }) => {
                let message = format!("column '{value}' would be there twice");
                let error = Diagnostic::at(Place::of(*span), message);
                vec![error.hint("give one of them another name with AS")]
            }
            None => Vec::from_iter(around.report(error)),
        })
    }
}

impl Engine {
    pub(crate) fn new() -> Self {
        let mut config = SessionConfig::new().with_target_partitions(1).with_batch_size(8192);
        let options = config.options_mut();
        options.sql_parser.collect_spans = true;
        options.sql_parser.enable_ident_normalization = false;
        options.sql_parser.map_string_types_to_utf8view = false;
        // Fields of structures taken out early would be columns that no operator emits.
        options.optimizer.enable_leaf_expression_pushdown = false;
        // A subquery that has become a join may give NULL, until a CASE behind it makes that 0,
        // where the plan says never; an aggregate over it is right all the same.
        options.execution.skip_physical_aggregate_schema_check = true;
        let mut builder = SessionStateBuilder::new()
            .with_config(config)
            .with_default_features()
            .with_optimizer_rules(rewrite::rules());
        let by_order = max_by::functions().map(Arc::new);
        let others = exact::functions().into_iter().chain([percentile::function()]).map(Arc::new);
        builder.aggregate_functions().get_or_insert_default().extend(by_order.chain(others));
        let lead = Arc::new(lead::function());
        builder.window_functions().get_or_insert_default().push(lead);
        let planners = builder.expr_planners().get_or_insert_default();
        planners.push(Arc::new(ByOrder));
        planners.push(Arc::new(IntervalProducts::new()));
        let scalar = builder.scalar_functions().get_or_insert_default();
        scalar.iter_mut().for_each(growth::bound);
        let state = builder.build();
        let mut functions = vec![Arc::new(ScalarUDF::from(ProcTime::new()))];
        functions.push(Arc::new(ScalarUDF::from(AsOf::new())));
        functions.push(Arc::new(ScalarUDF::from(CurrentWatermark::new())));
        functions.push(rewrite::called::function());
        functions.extend(locate::functions());
        functions.extend(flink::functions());
        functions.extend(flink_times::functions());
        functions.extend(json::functions());
        functions.extend(every::functions());
        functions.extend(calendar::functions());
        functions.push(distance::function());
        functions.iter_mut().for_each(growth::bound);
        let emit_kind = Arc::new(AggregateUDF::from(EmitKind::new()));
        let (types, interrupt) = (Arc::new(Types), Arc::default());
        let (given, aggregates) = (vec![], vec![]);
        Self { state, functions, aggregates, given, emit_kind, types, interrupt }
    }

    /// Every `now()` of a plan is this instant, to the nanosecond.
    pub(crate) fn set_now(&mut self, instant: SystemTime) {
        let since = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
        let ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        let instant = timestamp_ns_to_datetime(ns).map(|time| time.and_utc());
        self.state.execution_props_mut().query_execution_start_time = instant;
    }

    /// DataFusion's own state.
    pub(crate) fn state(&self) -> &SessionState {
        &self.state
    }

    /// Resolves and types a query. No error means that the cause was reported already.
    ///
    /// DataFusion stops at the first unknown name. To find the others, each is replaced by
    /// something that is known and the query tried again; of what is found then, only names that
    /// are unknown too are believed.
    pub(crate) fn understand(
        &self,
        tokens: &[TokenWithSpan],
        catalog: &Catalog,
    ) -> std::result::Result<Understood, Vec<Diagnostic>> {
        let mut found = match self.resolve(tokens, catalog) {
            Ok(understood) => return Ok(understood),
            Err(error) => error,
        };
        let mut errors: Vec<Diagnostic> = vec![];
        let mut tokens = tokens.to_vec();
        let at = |error: &Diagnostic| (error.line, error.column);
        let mut replaced = vec![];
        for _ in 0..TRIES_MAX {
            let Some(error) = found else { break };
            let again = neutralize(&mut tokens, &error);
            replaced.push(at(&error));
            // A name that is used again is reported where it comes first.
            match errors.iter_mut().find(|known| known.message == error.message) {
                Some(known) if at(&error) < at(known) => *known = error,
                Some(_) => {}
                None => errors.push(error),
            }
            if !again {
                break;
            }
            found = match self.resolve(&tokens, catalog) {
                Err(Some(next)) if is_unknown_name(&next) && !replaced.contains(&at(&next)) => {
                    Some(next)
                }
                _ => None,
            };
        }
        errors.sort_by_key(|error| (error.line, error.column));
        Err(errors)
    }

    fn resolve(
        &self,
        tokens: &[TokenWithSpan],
        catalog: &Catalog,
    ) -> std::result::Result<Understood, Option<Diagnostic>> {
        let (tokens, emit) = emit::split(tokens)?;
        let (rewritten, sites) = windows::rewrite(&as_of::rewrite(tokens, catalog)?)?;
        let mut parser = parser(&rewritten);
        let mut query = parser.parse_query().map_err(|e| syntax_error(&e, &rewritten))?;
        let mut end = Cursor::new(&rewritten);
        end.skip(parser.index());
        end.end().map_err(|error| misspelt_hint(error, &rewritten))?;
        let names = Names { engine: self, catalog, relations: vec![] };
        clauses::check(&mut query, &names, &rewritten)?;
        rewrite::files::rewrite(&mut query, catalog);
        let extent = bounds::extent(&query, |name| match catalog.read(name) {
            Ok(Some(Entry::View(view))) => Some(view.extent),
            _ => None,
        })?;
        let understood = query.clone();
        let around = self.around(tokens, &sites, Some(&understood), catalog);
        self.replaces_columns(catalog, &query).map_err(|error| around.report(&error))?;
        let mut by_text = query.clone();
        if rewrite::called::clashes(&mut query) {
            rewrite::called::by_text(&mut query);
        }
        let named = match self.named_apart(catalog, query) {
            Ok(named) => named,
            // Casts may be called alike that are no columns of the result.
            Err(error)
                if twice::is_about_names(&error) && rewrite::called::by_text(&mut by_text) =>
            {
                self.named_apart(catalog, by_text).map_err(|_| around.report(&error))?
            }
            Err(error) => return Err(around.report(&error)),
        };
        bounds::check_plan(&named.plan, around.start())?;
        let NamedApart { plan, apart, twice } = named;
        Ok(Understood { query: understood, plan, extent, sites, emit, apart, twice })
    }

    /// Looks whether all that a query replaces behind a star are columns.
    fn replaces_columns(&self, catalog: &Catalog, query: &Query) -> Result<()> {
        let Some((mut query, replaced)) = rewrite::replaced::left_out(query) else {
            return Ok(());
        };
        let joins = rewrite::tree(&mut query, &HashSet::new())?;
        let relations: Vec<Arc<dyn RelationPlanner>> = vec![joins, Arc::new(WindowPlanner)];
        let names = Names { engine: self, catalog, relations };
        match sql::statement(&names, Statement::Query(query)) {
            Err(error) if replaced.lacks(&error) => Err(error),
            // All other errors are about the query as it is.
            _ => Ok(()),
        }
    }

    /// The plan of a query, of which columns of one name are set apart.
    fn named_apart(&self, catalog: &Catalog, mut query: Box<Query>) -> Result<NamedApart> {
        let (mut apart, mut twice) = (Apart::default(), None);
        let mut rounds = 0;
        loop {
            let error = match self.planned(catalog, &query) {
                Ok(plan) => return Ok(NamedApart { plan, apart, twice }),
                Err(error) => error,
            };
            if rounds == twice::ROUNDS_MAX || !apart.set_apart(&mut query, &error) {
                return Err(twice.filter(|_| twice::is_meant(&error)).unwrap_or(error));
            }
            twice = twice.or(Some(error));
            rounds += 1;
        }
    }

    /// Plans a query as far as its expressions can be computed, to see what is against that.
    /// Columns of one name are only set apart if `apart`.
    ///
    /// # Errors
    /// The first error of the query.
    pub(crate) fn tried(&self, catalog: &Catalog, query: Query, apart: bool) -> Result<()> {
        let plan = if apart {
            self.named_apart(catalog, Box::new(query))?.plan
        } else {
            self.planned(catalog, &query)?
        };
        let plan = self.optimize(&plan)?;
        let empty = plan.clone().transform_down_with_subqueries(|node| match node {
            LogicalPlan::TableScan(scan) => {
                let schema = scan.projected_schema;
                let rows = EmptyRelation { produce_one_row: false, schema };
                Ok(Transformed::yes(LogicalPlan::EmptyRelation(rows)))
            }
            other => Ok(Transformed::no(other)),
        })?;
        // Nothing is read, so that it is ready at once.
        let physical = self.state.query_planner();
        let physical = physical.create_physical_plan(&empty.data, &self.state).now_or_never();
        physical.transpose()?;
        plan.apply_with_subqueries(|node| {
            let mut scope = DFSchema::empty();
            node.inputs().iter().for_each(|input| scope.merge(input.schema()));
            if matches!(node, LogicalPlan::Projection(_) | LogicalPlan::Filter(_)) {
                node.apply_expressions(|expr| self.computes(expr, &scope))?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(())
    }

    /// Whether an expression can be computed; of one without columns, whether its value is there.
    fn computes(&self, expr: &Expr, scope: &DFSchema) -> Result<TreeNodeRecursion> {
        let asks = |part: &Expr| {
            let asks =
                matches!(part, Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_));
            Ok(asks || matches!(part, Expr::ScalarSubquery(_) | Expr::OuterReferenceColumn(..)))
        };
        if !expr.exists(asks)? && !expr.is_volatile() {
            let compiled = self.state.create_physical_expr(expr.clone(), scope)?;
            if expr.column_refs().is_empty() {
                let options = RecordBatchOptions::new().with_row_count(Some(1));
                let schema = Arc::new(Schema::empty());
                compiled.evaluate(&RecordBatch::try_new_with_options(schema, vec![], &options)?)?;
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    /// The plan of a query, with its types.
    fn planned(&self, catalog: &Catalog, query: &Query) -> Result<LogicalPlan> {
        let mut alone = HashSet::new();
        let plan = loop {
            let mut query = Box::new(query.clone());
            let joins = rewrite::tree(&mut query, &alone)?;
            let naming = Arc::new(Naming::new(catalog.script));
            let relations: Vec<Arc<dyn RelationPlanner>> =
                vec![joins.clone(), naming, Arc::new(WindowPlanner)];
            let names = Names { engine: self, catalog, relations };
            match sql::statement(&names, Statement::Query(query)) {
                Ok(plan) => break plan,
                // Of columns that are merged, each is written as the merged one once.
                Err(error) => match ambiguous(&error).filter(|name| joins.is_merged(name)) {
                    Some(name) if alone.insert(name.to_owned()) => {}
                    _ => return Err(error),
                },
            }
        };
        let plan = rewrite::before_types(plan)?;
        // Types are final only when they have been coerced: until then a CASE has that of its first
        // branch.
        let options = self.state.config_options();
        let analyzer = self.state.analyzer();
        let typed = |plan| analyzer.execute_and_check(plan, options, |_, _| {});
        let given = with_literals(typed(plan)?)?;
        // Expressions with another type now are coerced again.
        let plan = if given.transformed { typed(given.data)? } else { given.data };
        with_equal_values(rewrite::after_types(plan)?)
    }

    /// The column `name` that an expression over columns of `schema` makes. `None` if its error was
    /// reported already.
    pub(crate) fn computed(
        &self,
        name: &str,
        tokens: &[TokenWithSpan],
        schema: &Schema,
        catalog: &Catalog,
    ) -> std::result::Result<Computed, Option<Diagnostic>> {
        let mut parsed = parser(tokens).parse_expr().map_err(|e| syntax_error(&e, tokens))?;
        let names = Names { engine: self, catalog, relations: vec![] };
        clauses::check_expr(&mut parsed, &names, tokens)?;
        let planned = DFSchema::try_from(schema.clone()).and_then(|scope| {
            let expr = sql::expression(&names, parsed, &scope)?;
            rewrite::conditions::expression(&expr, &scope)?;
            rewrite::comparisons::expression(&expr, &scope)?;
            let expr = equality::ordered_in(rewrite::casts::expression(expr, &scope)?, &scope)?;
            let expr = growth::joined::in_expression(division::in_expression(expr, &scope)?)?;
            let expr = written::out(expr, &scope, self.state.config_options())?;
            let compiled = self.state.create_physical_expr(expr, &scope)?;
            Computed::new(name, checked::compiled(compiled)?, schema)
        });
        planned.map_err(|error| self.around(tokens, &[], None, catalog).report(&error))
    }

    /// Folds constants, pushes predicates and projections down. The columns keep their types.
    ///
    /// # Errors
    /// DataFusion's, and where a column cannot keep its type.
    pub(crate) fn optimize(&self, plan: &LogicalPlan) -> Result<LogicalPlan> {
        let optimized = self.state.optimize(&division::as_functions(plan.clone())?)?;
        let optimized = rewrite::sorts::without_lost(optimized)?;
        conform(division::as_operators(optimized)?, plan.schema())
    }

    /// The context in which errors of a query are reported.
    pub(crate) fn surroundings<'a>(
        &'a self,
        tokens: &'a [TokenWithSpan],
        understood: &'a Understood,
        catalog: &'a Catalog,
    ) -> Surroundings<'a> {
        self.around(tokens, &understood.sites, Some(&understood.query), catalog)
    }

    fn around<'a>(
        &'a self,
        tokens: &'a [TokenWithSpan],
        sites: &'a [Site],
        query: Option<&'a Query>,
        catalog: &'a Catalog,
    ) -> Surroundings<'a> {
        Surroundings {
            tokens,
            sites,
            tables: catalog.names().collect(),
            functions: self.function_names().collect(),
            again: query.map(|query| Again { engine: self, catalog, query }),
        }
    }

    /// All scalar functions, DataFusion's and ours; one that stands in the place of another comes
    /// beside it.
    #[cfg(test)]
    pub(crate) fn scalar_functions(&self) -> impl Iterator<Item = &Arc<ScalarUDF>> {
        self.state.scalar_functions().values().chain(&self.functions)
    }

    /// Names of all functions, in no order; one may come more than once.
    pub(crate) fn function_names(&self) -> impl Iterator<Item = &str> {
        let state = &self.state;
        let scalar = state.scalar_functions().keys();
        let others = state.aggregate_functions().keys().chain(state.window_functions().keys());
        // Those that only the rewriting of a query writes are not for users.
        let ours = self.functions.iter().map(|udf| udf.name());
        let ours = ours.filter(|name| !name.starts_with("__"));
        let given = self.aggregates.iter().map(|udf| udf.name());
        let ours = ours.chain(given).chain([self.emit_kind.name()]).chain(forms::NAMES);
        scalar.chain(others).map(String::as_str).chain(ours)
    }
}

/// The column that stands without a table, and may be that of several.
fn ambiguous(error: &DataFusionError) -> Option<&str> {
    match root(error) {
        DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
            SchemaError::AmbiguousReference { field } => Some(&field.name),
            _ => None,
        },
        _ => None,
    }
}

/// How often a query with unknown names is tried.
const TRIES_MAX: usize = 32;

fn is_unknown_name(error: &Diagnostic) -> bool {
    ["unknown column '", "unknown function '"].iter().any(|start| error.message.starts_with(start))
}

/// Replaces the unknown column or function at fault by a known one; false if it is something else.
fn neutralize(tokens: &mut Vec<TokenWithSpan>, error: &Diagnostic) -> bool {
    let place = Place { line: error.line, column: error.column, length: error.length };
    let at = tokens.iter().position(|token| Place::of(token.span) == place);
    let (true, Some(at)) = (is_unknown_name(error), at) else { return false };
    if tokens.get(at + 1).is_some_and(|next| next.token == Token::LParen) {
        tokens[at].token = Token::make_word("coalesce", None);
        return true;
    }
    tokens[at].token = Token::make_word("NULL", None);
    // Of `t.name`, the `t.` goes.
    if at >= 2 && tokens[at - 1].token == Token::Period {
        tokens.drain(at - 2..at);
    }
    true
}

/// Resolves names for DataFusion.
struct Names<'a> {
    engine: &'a Engine,
    catalog: &'a Catalog,
    relations: Vec<Arc<dyn RelationPlanner>>,
}

impl ContextProvider for Names<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        let is_plain = matches!(name, TableReference::Bare { .. });
        let name = name.to_string();
        let failed = |e| DataFusionError::from(PlanError::Table(Box::new(e)));
        match self.catalog.read(&name).map_err(failed)? {
            Some(_) if !is_plain && self.catalog.file(&name).is_some() => {
                Err(PlanError::FileWithoutQuotes(name).into())
            }
            Some(Entry::View(view)) => Ok(Arc::new(InlinedView(view.clone()))),
            Some(Entry::Table(table)) => {
                let schema = table.columns(Place::default()).map_err(failed)?;
                Ok(Arc::new(ScannedTable { table: table.clone(), schema, named: vec![] }))
            }
            None if self.catalog.broken.contains(&name) => Err(PlanError::Broken.into()),
            None => Err(PlanError::UnknownTable(name).into()),
        }
    }

    fn create_cte_work_table(
        &self,
        name: &str,
        schema: Arc<Schema>,
    ) -> Result<Arc<dyn TableSource>> {
        let _ = schema;
        Err(DataFusionError::Plan(format!("'{name}' is recursive, which is not supported")))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        self.engine.state.expr_planners()
    }

    fn get_relation_planners(&self) -> &[Arc<dyn RelationPlanner>] {
        &self.relations
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(self.engine.types.clone())
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        let named =
            |udf: &&Arc<ScalarUDF>| udf.name() == name || udf.aliases().iter().any(|a| a == name);
        let ours = self.engine.functions.iter().find(named);
        ours.or_else(|| self.engine.state.scalar_functions().get(name)).cloned()
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.engine.state.higher_order_functions().get(name).cloned()
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        // Of all keys, GROUPING gives the number of the set.
        let name = if name == "grouping_id" { "grouping" } else { name };
        if name == self.engine.emit_kind.name() {
            return Some(self.engine.emit_kind.clone());
        }
        let given = self.engine.aggregates.iter().find(|udf| udf.name() == name);
        given.or_else(|| self.engine.state.aggregate_functions().get(name)).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.engine.state.window_functions().get(name).cloned()
    }

    fn get_variable_type(&self, _: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        self.engine.state.config_options()
    }

    fn udf_names(&self) -> Vec<String> {
        self.engine.state.scalar_functions().keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        self.engine.state.higher_order_functions().keys().cloned().collect()
    }

    fn udaf_names(&self) -> Vec<String> {
        self.engine.state.aggregate_functions().keys().cloned().collect()
    }

    fn udwf_names(&self) -> Vec<String> {
        self.engine.state.window_functions().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::split;

    fn errors(sql: &str) -> Vec<(usize, String)> {
        let tokens = split(sql).expect("tokens").swap_remove(0);
        let errors = Engine::new().understand(&tokens, &Catalog::default());
        let errors = errors.expect_err("something is unknown");
        errors.into_iter().map(|error| (error.column, error.message)).collect()
    }

    #[test]
    fn all_unknown_names_of_a_query_are_found_at_once() {
        let found = errors("SELECT t.x, cuont(y), lenght(z) FROM (VALUES (1, 'a')) AS t (a, y)");
        let shown: Vec<_> = found.iter().map(|(at, text)| (*at, text.as_str())).collect();
        let expected = [
            (10, "unknown column 'x'"),
            (13, "unknown function 'cuont'"),
            (23, "unknown function 'lenght'"),
            (30, "unknown column 'z'"),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_name_is_reported_once_and_what_follows_from_it_never() {
        let sql = "SELECT x, x + 'a' FROM (VALUES (1)) AS t (a) WHERE x > 1 GROUP BY x";
        assert_eq!(errors(sql), [(8, "unknown column 'x'".to_owned())]);
    }
}
