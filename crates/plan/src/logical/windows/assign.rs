//! `TUMBLE`, `HOP` and `CUMULATE` as a node of the plan.
//!
//! ```text
//! WindowAssign: TUMBLE on ts, size 10 s
//!   TableScan: t                            ⇒ t's columns, window_start, window_end, window_time
//! ```
//!
//! A row comes once for each window that it is in. DataFusion may filter below the node by columns
//! of the input, reads of the input what is asked for and the time, and moves no limit below it.
//! [`crate::lower`] makes a window of it, or a step. Where DataFusion executes the rest of a plan,
//! [`expanded`] writes the node as what it computes: bounds of a row, or lists of bounds that are
//! unnested.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, DFSchemaRef, ScalarValue, UnnestOptions, exec_err};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Extension, LogicalPlan, LogicalPlanBuilder, ScalarUDF,
    UserDefinedLogicalNodeCore,
};
use datafusion::sql::sqlparser::ast::{
    Expr as Tree, FunctionArg, FunctionArgExpr, FunctionArguments, SelectItem, SetExpr,
    TableFactor, Value,
};

use super::lists::WindowsOf;
use super::{Bound, BoundOf, Lengths, WindowShape};
use crate::logical::errors::PlanError;
use crate::text::interval::tick_ns;
use crate::text::types::sql_name;
use crate::text::units::span_ns;

/// The function that [`super::rewrite`] calls in place of a window: with the time, the shape, and
/// slide, size, offset and a lateness that was written, in nanoseconds.
pub(super) const CALL: &str = "__window";

/// Rows with the bounds of the windows that their time is in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WindowAssign {
    pub(crate) input: Arc<LogicalPlan>,
    /// When a row is, over the input's columns.
    pub(crate) time: Expr,
    pub(crate) shape: WindowShape,
    pub(crate) lengths: Lengths,
    /// How long rows may be late, if that was written.
    pub(crate) lateness_ns: Option<i64>,
    /// The columns of the input, then the bounds.
    schema: DFSchemaRef,
}

impl WindowAssign {
    /// # Errors
    /// When the time is no timestamp, or not fine enough, or a column is called as a bound is.
    fn try_new(
        input: Arc<LogicalPlan>,
        time: Expr,
        (shape, lengths): (WindowShape, Lengths),
        lateness_ns: Option<i64>,
    ) -> DfResult<Self> {
        let before = input.schema();
        let time_type = time.get_type(before)?;
        let DataType::Timestamp(unit, _) = &time_type else {
            return Err(PlanError::WindowOf(sql_name(&time_type)).into());
        };
        let Lengths { slide_ns, size_ns, offset_ns } = lengths;
        let all = [size_ns, offset_ns, slide_ns, lateness_ns.unwrap_or(0)];
        if all.iter().any(|ns| ns % tick_ns(*unit) != 0) {
            return Err(PlanError::WindowFiner(*unit, sql_name(&time_type)).into());
        }
        let nullable = time.nullable(before)?;
        let bound = |bound: Bound| {
            (None, Arc::new(Field::new(bound.column(), time_type.clone(), nullable)))
        };
        let fields = before.iter().map(|(table, field)| (table.cloned(), field.clone()));
        let fields = fields.chain(Bound::ALL.map(bound)).collect();
        let schema = DFSchema::new_with_metadata(fields, before.metadata().clone())?;
        Ok(Self { input, time, shape, lengths, lateness_ns, schema: Arc::new(schema) })
    }

    /// The node, if a plan is one.
    pub(crate) fn of(plan: &LogicalPlan) -> Option<&Self> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// A bound of the window of `time`, or of one of its windows, as a call.
    pub(crate) fn call(&self, bound: Bound, time: Expr) -> Expr {
        let udf = ScalarUDF::from(BoundOf::new(self.shape, bound));
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(udf), self.arguments(time)))
    }

    fn arguments(&self, time: Expr) -> Vec<Expr> {
        let Lengths { slide_ns, size_ns, offset_ns } = self.lengths;
        let slide = (self.shape != WindowShape::Tumble).then_some(slide_ns);
        let lengths = [Some(size_ns), Some(offset_ns), slide, self.lateness_ns];
        let literal = |ns: i64| Expr::Literal(ScalarValue::from(ns.to_string()), None);
        [time].into_iter().chain(lengths.into_iter().flatten().map(literal)).collect()
    }

    /// The same rows as DataFusion computes them.
    fn computed(&self) -> DfResult<LogicalPlan> {
        let input = LogicalPlanBuilder::from(self.input.clone());
        let several = self.shape != WindowShape::Tumble;
        let bound = |bound: Bound| {
            if several {
                let udf = Arc::new(ScalarUDF::from(WindowsOf::new(self.shape, bound)));
                let list = ScalarFunction::new_udf(udf, self.arguments(self.time.clone()));
                Expr::ScalarFunction(list).alias(bound.column())
            } else {
                self.call(bound, self.time.clone()).alias(bound.column())
            }
        };
        let columns = self.input.schema().columns().into_iter().map(Expr::Column);
        let computed = input.project(columns.chain(Bound::ALL.map(bound)).collect::<Vec<_>>())?;
        if !several {
            return computed.build();
        }
        let lists = Bound::ALL.map(|bound| Column::new_unqualified(bound.column()));
        let options = UnnestOptions::new().with_preserve_nulls(false);
        computed.unnest_columns_with_options(lists.to_vec(), options)?.build()
    }
}

impl PartialOrd for WindowAssign {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let rest = |of: &Self| (of.shape.word(), of.lengths, of.lateness_ns);
        match (&self.input, &self.time).partial_cmp(&(&other.input, &other.time))? {
            Ordering::Equal => rest(self).partial_cmp(&rest(other)),
            unequal => Some(unequal),
        }
    }
}

impl UserDefinedLogicalNodeCore for WindowAssign {
    fn name(&self) -> &str {
        "WindowAssign"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        vec![self.time.clone()]
    }

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        Bound::ALL.map(|bound| bound.column().to_owned()).into()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lengths { slide_ns, size_ns, offset_ns } = self.lengths;
        let (word, time, size) = (self.shape.word(), &self.time, span_ns(size_ns));
        write!(f, "WindowAssign: {word} on {time}, size {size}")?;
        match self.shape {
            WindowShape::Hop => write!(f, ", slide {}", span_ns(slide_ns))?,
            WindowShape::Cumulate => write!(f, ", step {}", span_ns(slide_ns))?,
            WindowShape::Tumble | WindowShape::Session => {}
        }
        if offset_ns != 0 {
            write!(f, ", offset {}", span_ns(offset_ns))?;
        }
        Ok(())
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> DfResult<Self> {
        let ([time], [input]) = (&exprs[..], &inputs[..]) else {
            return exec_err!("a window has a time and an input");
        };
        let (time, input) = (time.clone().unalias(), Arc::new(input.clone()));
        Self::try_new(input, time, (self.shape, self.lengths), self.lateness_ns)
    }

    fn necessary_children_exprs(&self, output_columns: &[usize]) -> Option<Vec<Vec<usize>>> {
        let before = self.input.schema().fields().len();
        Some(vec![output_columns.iter().copied().filter(|&at| at < before).collect()])
    }
}

/// The plan with every window as what DataFusion can execute.
///
/// # Errors
/// DataFusion's.
pub(crate) fn expanded(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let expanded = plan.transform_up_with_subqueries(|node| match WindowAssign::of(&node) {
        Some(assign) => assign.computed().map(Transformed::yes),
        None => Ok(Transformed::no(node)),
    })?;
    Ok(expanded.data)
}

/// Plans what [`super::rewrite`] has written in the place of windows.
#[derive(Debug)]
pub(crate) struct WindowPlanner;

/// A window in FROM.
struct Written<'a> {
    table: &'a TableFactor,
    time: &'a Tree,
    shape: WindowShape,
    lengths: Lengths,
    lateness_ns: Option<i64>,
}

impl<'a> Written<'a> {
    /// The window that a relation stands for, if it is one.
    fn of(relation: &'a TableFactor) -> Option<Self> {
        let TableFactor::Derived { subquery, .. } = relation else { return None };
        let SetExpr::Select(select) = &*subquery.body else { return None };
        let [SelectItem::UnnamedExpr(Tree::Function(call))] = &select.projection[..] else {
            return None;
        };
        let ([name], [from]) = (&call.name.0[..], &select.from[..]) else { return None };
        name.as_ident().filter(|name| name.value == CALL)?;
        let FunctionArguments::List(list) = &call.args else { return None };
        let given = |arg: &'a FunctionArg| match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
            _ => None,
        };
        let [time, shape, lengths @ ..] = &list.args[..] else { return None };
        let lengths: Option<Vec<i64>> =
            lengths.iter().map(|length| text(given(length)?)?.parse().ok()).collect();
        let (slide_ns, size_ns, offset_ns, lateness_ns) = match lengths?[..] {
            [slide, size, offset] => (slide, size, offset, None),
            [slide, size, offset, lateness] => (slide, size, offset, Some(lateness)),
            _ => return None,
        };
        Some(Self {
            table: &from.relation,
            time: given(time)?,
            shape: WindowShape::named(text(given(shape)?)?)?,
            lengths: Lengths { slide_ns, size_ns, offset_ns },
            lateness_ns,
        })
    }
}

/// The text in quotes.
fn text(expr: &Tree) -> Option<&str> {
    match expr {
        Tree::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

impl RelationPlanner for WindowPlanner {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> DfResult<RelationPlanning> {
        let Some(Written { table, time, shape, lengths, lateness_ns }) = Written::of(&relation)
        else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let input = context.plan(table.clone())?;
        let time = context.sql_to_expr(time.clone(), input.schema())?;
        let assign = WindowAssign::try_new(Arc::new(input), time, (shape, lengths), lateness_ns)?;
        let plan = LogicalPlan::Extension(Extension { node: Arc::new(assign) });
        let alias = match relation {
            TableFactor::Derived { alias, .. } => alias,
            _ => None,
        };
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
    }
}
