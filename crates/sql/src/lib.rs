//! Layer 4, under `plan`: DataFusion's planner of SQL, compiled once.
//!
//! [`SqlToRel`] is generic over who resolves names, so that whoever calls it compiles the whole
//! planner with the tree of the parser, for a minute or two. Here it is called with one type, which
//! asks any resolver; a change of `plan`, and its tests, find it compiled.
#![forbid(unsafe_code)]

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::common::file_options::file_type::FileType;
use datafusion::common::{DFSchema, Result, TableReference};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::planner::{
    ContextProvider, ExprPlanner, RelationPlanner, TypePlanner,
};
use datafusion::logical_expr::{
    AggregateUDF, Expr, HigherOrderUDF, LogicalPlan, ScalarUDF, TableSource, WindowUDF,
};
use datafusion::sql::planner::{PlannerContext, SqlToRel};
use datafusion::sql::sqlparser::ast::{self, Statement};

/// The plan of a statement, neither analyzed nor optimized.
///
/// # Errors
/// DataFusion's: unknown names, types that do not fit, what it does not support.
pub fn statement(names: &dyn ContextProvider, statement: Statement) -> Result<LogicalPlan> {
    SqlToRel::new(&Names(names)).sql_statement_to_plan(statement)
}

/// An expression over the columns of `scope`.
///
/// # Errors
/// As [`statement`].
pub fn expression(
    names: &dyn ContextProvider,
    expression: ast::Expr,
    scope: &DFSchema,
) -> Result<Expr> {
    SqlToRel::new(&Names(names)).sql_to_expr(expression, scope, &mut PlannerContext::new())
}

/// Any resolver, as one type. Every method is passed on, those with a default too.
struct Names<'a>(&'a dyn ContextProvider);

impl ContextProvider for Names<'_> {
    fn get_table_source(&self, name: TableReference) -> Result<Arc<dyn TableSource>> {
        self.0.get_table_source(name)
    }

    fn get_file_type(&self, extension: &str) -> Result<Arc<dyn FileType>> {
        self.0.get_file_type(extension)
    }

    fn get_table_function_source(
        &self,
        name: &str,
        args: Vec<Expr>,
    ) -> Result<Arc<dyn TableSource>> {
        self.0.get_table_function_source(name, args)
    }

    fn create_cte_work_table(&self, name: &str, schema: SchemaRef) -> Result<Arc<dyn TableSource>> {
        self.0.create_cte_work_table(name, schema)
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        self.0.get_expr_planners()
    }

    fn get_relation_planners(&self) -> &[Arc<dyn RelationPlanner>] {
        self.0.get_relation_planners()
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        self.0.get_type_planner()
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.0.get_function_meta(name)
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.0.get_higher_order_meta(name)
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.0.get_aggregate_meta(name)
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.0.get_window_meta(name)
    }

    fn get_variable_type(&self, names: &[String]) -> Option<DataType> {
        self.0.get_variable_type(names)
    }

    fn get_variable_field(&self, names: &[String]) -> Option<FieldRef> {
        self.0.get_variable_field(names)
    }

    fn options(&self) -> &ConfigOptions {
        self.0.options()
    }

    fn udf_names(&self) -> Vec<String> {
        self.0.udf_names()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        self.0.higher_order_function_names()
    }

    fn udaf_names(&self) -> Vec<String> {
        self.0.udaf_names()
    }

    fn udwf_names(&self) -> Vec<String> {
        self.0.udwf_names()
    }
}
