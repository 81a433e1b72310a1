//! From the tokens of a query to DataFusion's optimized plan.
//!
//! No table is read and nothing waits here: name resolution is a lookup in the [`Catalog`].

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::datatypes::{DataType, Schema};
use arrow::temporal_conversions::timestamp_ns_to_datetime;
use datafusion::common::{DFSchema, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner, TypePlanner};
use datafusion::logical_expr::{
    AggregateUDF, HigherOrderUDF, LogicalPlan, ScalarUDF, TableSource, WindowUDF,
};
use datafusion::prelude::SessionConfig;
use datafusion::sql::planner::{PlannerContext, SqlToRel};
use datafusion::sql::sqlparser::ast::Statement;
use datafusion::sql::sqlparser::tokenizer::TokenWithSpan;

use crate::catalog::{Catalog, Entry, InlinedView, ScannedTable};
use crate::computed::Computed;
use crate::diagnostics::{Diagnostic, Place};
use crate::errors::{PlanError, Surroundings};
use crate::proctime::ProcTime;
use crate::syntax::{Cursor, misspelt_hint, parser, syntax_error};
use crate::tumble::{self, Site};
use crate::types::Types;

/// DataFusion's functions and rules. It holds no tables.
pub(crate) struct Engine {
    state: SessionState,
    /// Those of our own.
    functions: Vec<Arc<ScalarUDF>>,
    types: Arc<Types>,
}

/// A query as DataFusion understood it.
#[derive(Debug)]
pub(crate) struct Understood {
    pub(crate) plan: LogicalPlan,
    pub(crate) sites: Vec<Site>,
}

impl Engine {
    pub(crate) fn new() -> Self {
        let mut config = SessionConfig::new().with_target_partitions(1).with_batch_size(8192);
        let options = config.options_mut();
        options.sql_parser.collect_spans = true;
        options.sql_parser.enable_ident_normalization = false;
        options.sql_parser.map_string_types_to_utf8view = false;
        let state = SessionStateBuilder::new().with_config(config).with_default_features().build();
        let mut functions = tumble::functions();
        functions.push(Arc::new(ScalarUDF::from(ProcTime::new())));
        Self { state, functions, types: Arc::new(Types) }
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

    /// Resolves and types a query. `None` if its error was reported already.
    pub(crate) fn understand(
        &self,
        tokens: &[TokenWithSpan],
        catalog: &Catalog,
    ) -> std::result::Result<Understood, Option<Diagnostic>> {
        let (rewritten, sites) = tumble::rewrite(tokens)?;
        let mut parser = parser(&rewritten);
        let query = parser.parse_query().map_err(|e| syntax_error(&e, &rewritten))?;
        let mut end = Cursor::new(&rewritten);
        end.skip(parser.index());
        end.end().map_err(|error| misspelt_hint(error, &rewritten))?;
        let names = Names { engine: self, catalog };
        let planned = SqlToRel::new(&names).sql_statement_to_plan(Statement::Query(query));
        // Types are final only when they have been coerced: until then a CASE has that of its first
        // branch.
        let options = self.state.config_options();
        let analyzer = self.state.analyzer();
        let planned = planned.and_then(|plan| analyzer.execute_and_check(plan, options, |_, _| {}));
        match planned {
            Ok(plan) => Ok(Understood { plan, sites }),
            Err(error) => Err(self.surroundings(tokens, &sites, catalog).report(&error)),
        }
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
        let parsed = parser(tokens).parse_expr().map_err(|e| syntax_error(&e, tokens))?;
        let names = Names { engine: self, catalog };
        let planned = DFSchema::try_from(schema.clone()).and_then(|scope| {
            let expr =
                SqlToRel::new(&names).sql_to_expr(parsed, &scope, &mut PlannerContext::new())?;
            Computed::new(name, self.state.create_physical_expr(expr, &scope)?, schema)
        });
        planned.map_err(|error| self.surroundings(tokens, &[], catalog).report(&error))
    }

    /// Folds constants, pushes predicates and projections down.
    pub(crate) fn optimize(&self, plan: &LogicalPlan) -> Result<LogicalPlan> {
        self.state.optimize(plan)
    }

    /// What errors of a query are reported with.
    pub(crate) fn surroundings<'a>(
        &'a self,
        tokens: &'a [TokenWithSpan],
        sites: &'a [Site],
        catalog: &'a Catalog,
    ) -> Surroundings<'a> {
        let state = &self.state;
        let functions = state
            .scalar_functions()
            .keys()
            .chain(state.aggregate_functions().keys())
            .chain(state.window_functions().keys());
        Surroundings {
            tokens,
            sites,
            tables: catalog.names().collect(),
            functions: functions.map(String::as_str).collect(),
        }
    }
}

/// Resolves names for DataFusion.
struct Names<'a> {
    engine: &'a Engine,
    catalog: &'a Catalog,
}

impl ContextProvider for Names<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        let name = name.to_string();
        match self.catalog.get(&name) {
            Some(Entry::View(view)) => Ok(Arc::new(InlinedView(view.clone()))),
            Some(Entry::Table(table)) => {
                let schema = table
                    .columns(Place::default())
                    .map_err(|e| DataFusionError::from(PlanError::Table(Box::new(e))))?;
                Ok(Arc::new(ScannedTable { table: table.clone(), schema }))
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

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(self.engine.types.clone())
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        let ours = || self.engine.functions.iter().find(|udf| udf.name() == name);
        self.engine.state.scalar_functions().get(name).or_else(ours).cloned()
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.engine.state.higher_order_functions().get(name).cloned()
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.engine.state.aggregate_functions().get(name).cloned()
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
