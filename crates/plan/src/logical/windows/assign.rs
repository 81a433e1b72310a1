//! `TUMBLE`, `HOP`, `CUMULATE` and `SESSION` as a node of the plan.
//!
//! ```text
//! WindowAssign: TUMBLE on ts, size 10 s
//!   TableScan: t                            ⇒ t's columns, window_start, window_end, window_time
//! ```
//!
//! A row comes once for each window that it is in. DataFusion reads of the input what is asked for,
//! the time and the keys of sessions, and moves no limit below the node. It may filter below it by
//! columns of the input; below sessions only by their keys, since a session depends on all rows of
//! its key. [`crate::lower`] makes a window of the node, a step, or an operator in which rows wait
//! for the end of their session. Where DataFusion executes the rest of a plan, [`expanded`] writes
//! the node as what it computes: bounds of a row, lists of bounds that are unnested, or window
//! functions.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, DFSchemaRef, ScalarValue, UnnestOptions, exec_err};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{ScalarFunction, WindowFunction};
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Extension, LogicalPlan, LogicalPlanBuilder, ScalarUDF,
    UserDefinedLogicalNodeCore, WindowUDF,
};
use datafusion::sql::sqlparser::ast::{
    Expr as Tree, FunctionArg, FunctionArgExpr, FunctionArguments, SelectItem, SetExpr,
    TableFactor, Value,
};

use super::bound::arguments;
use super::lists::WindowsOf;
use super::session::SessionOf;
use super::{Bound, Lengths, WindowCall, WindowShape};
use crate::logical::errors::PlanError;
use crate::text::interval::tick_ns;
use crate::text::syntax::WINDOW_CALL;
use crate::text::types::sql_name;
use crate::text::units::span_ns;

/// Rows with the bounds of the windows that their time is in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct WindowAssign {
    pub(crate) input: Arc<LogicalPlan>,
    /// When a row is, over the input's columns.
    pub(crate) time: Expr,
    /// Of sessions the columns of the input that they are of.
    pub(crate) keys: Vec<Expr>,
    pub(crate) of: WindowSpec,
    /// The columns of the input, then the bounds.
    schema: DFSchemaRef,
}

/// The windows that a node assigns, whatever their input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WindowSpec {
    pub(crate) shape: WindowShape,
    pub(crate) lengths: Lengths,
    /// How long rows may be late, if that was written.
    pub(crate) lateness_ns: Option<i64>,
}

impl WindowAssign {
    /// # Errors
    /// When the time is no timestamp, or not fine enough, or a column is called as a bound is.
    fn try_new(
        input: Arc<LogicalPlan>,
        time: Expr,
        keys: Vec<Expr>,
        of: WindowSpec,
    ) -> DfResult<Self> {
        let before = input.schema();
        let time_type = time.get_type(before)?;
        let DataType::Timestamp(unit, _) = &time_type else {
            return Err(PlanError::WindowOf(sql_name(&time_type)).into());
        };
        let Lengths { slide_ns, size_ns, offset_ns } = of.lengths;
        let all = [size_ns, offset_ns, slide_ns, of.lateness_ns.unwrap_or(0)];
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
        Ok(Self { input, time, keys, of, schema: Arc::new(schema) })
    }

    /// The node, if a plan is one.
    pub(crate) fn of(plan: &LogicalPlan) -> Option<&Self> {
        match plan {
            LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref(),
            _ => None,
        }
    }

    /// The window of `time`, or the windows that it is in; of sessions by `keys`.
    pub(crate) fn call(&self, time: Expr, keys: Vec<Expr>) -> WindowCall {
        let WindowSpec { shape, lengths, lateness_ns } = self.of;
        WindowCall { shape, bound: Bound::Start, time, keys, lengths, lateness_ns }
    }

    /// The same rows as DataFusion computes them.
    fn computed(&self) -> DfResult<LogicalPlan> {
        let input = LogicalPlanBuilder::from(self.input.clone());
        let columns = self.input.schema().columns().into_iter().map(Expr::Column);
        let bounds = Bound::ALL.map(|bound| self.computed_bound(bound).alias(bound.column()));
        match self.of.shape {
            WindowShape::Tumble => {
                input.project(columns.chain(bounds).collect::<Vec<_>>())?.build()
            }
            WindowShape::Session => input.window(bounds)?.build(),
            WindowShape::Hop | WindowShape::Cumulate => {
                let lists = Bound::ALL.map(|bound| Column::new_unqualified(bound.column()));
                let options = UnnestOptions::new().with_preserve_nulls(false);
                let input = input.project(columns.chain(bounds).collect::<Vec<_>>())?;
                input.unnest_columns_with_options(lists.to_vec(), options)?.build()
            }
        }
    }

    /// A bound as DataFusion computes it; of windows of which a row has several, the list of all.
    fn computed_bound(&self, bound: Bound) -> Expr {
        let time = self.time.clone();
        match self.of.shape {
            WindowShape::Tumble => self.call(time, vec![]).expr(bound),
            WindowShape::Session => {
                let of = Arc::new(WindowUDF::from(SessionOf::new(bound)));
                let gap = Expr::Literal(ScalarValue::from(self.of.lengths.size_ns), None);
                let mut function = WindowFunction::new(of, vec![time, gap]);
                function.params.partition_by = self.keys.clone();
                Expr::from(function)
            }
            shape @ (WindowShape::Hop | WindowShape::Cumulate) => {
                let of = Arc::new(ScalarUDF::from(WindowsOf::new(shape, bound)));
                let lengths = arguments(shape, self.of.lengths, self.of.lateness_ns);
                let arguments = [vec![time], lengths].concat();
                Expr::ScalarFunction(ScalarFunction::new_udf(of, arguments))
            }
        }
    }
}

impl PartialOrd for WindowAssign {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        let Self { input, time, keys, of, .. } = self;
        (input, time, keys, of).partial_cmp(&(&other.input, &other.time, &other.keys, &other.of))
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
        [vec![self.time.clone()], self.keys.clone()].concat()
    }

    fn prevent_predicate_push_down_columns(&self) -> HashSet<String> {
        let names = self.schema.fields().iter().map(|field| field.name().clone());
        let is_bound = |name: &String| Bound::ALL.iter().any(|bound| bound.column() == name);
        let is_key = |name: &String| {
            let named = |key: &Expr| matches!(key, Expr::Column(column) if column.name == *name);
            self.keys.iter().any(named)
        };
        match self.of.shape {
            WindowShape::Session => names.filter(|name| !is_key(name)).collect(),
            _ => names.filter(is_bound).collect(),
        }
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WindowSpec { shape, lengths: Lengths { slide_ns, size_ns, offset_ns }, .. } = self.of;
        let (word, time, size) = (shape.word(), &self.time, span_ns(size_ns));
        let length = if shape == WindowShape::Session { "gap" } else { "size" };
        write!(f, "WindowAssign: {word} on {time}, {length} {size}")?;
        match shape {
            WindowShape::Hop => write!(f, ", slide {}", span_ns(slide_ns))?,
            WindowShape::Cumulate => write!(f, ", step {}", span_ns(slide_ns))?,
            WindowShape::Tumble | WindowShape::Session => {}
        }
        for (at, key) in self.keys.iter().enumerate() {
            write!(f, "{} {key}", if at == 0 { ", partition by" } else { "," })?;
        }
        if offset_ns != 0 {
            write!(f, ", offset {}", span_ns(offset_ns))?;
        }
        Ok(())
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> DfResult<Self> {
        let ([time, keys @ ..], [input]) = (&exprs[..], &inputs[..]) else {
            return exec_err!("a window has a time and an input");
        };
        let keys = keys.iter().map(|key| key.clone().unalias()).collect();
        Self::try_new(Arc::new(input.clone()), time.clone().unalias(), keys, self.of)
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
    keys: Vec<&'a Tree>,
    of: WindowSpec,
}

impl<'a> Written<'a> {
    /// The window that a relation stands for, if it is one.
    fn of(relation: &'a TableFactor) -> Option<Self> {
        let TableFactor::Derived { subquery, .. } = relation else { return None };
        let SetExpr::Select(select) = &*subquery.body else { return None };
        let [SelectItem::UnnamedExpr(Tree::Function(call)), keys @ ..] = &select.projection[..]
        else {
            return None;
        };
        let ([name], [from]) = (&call.name.0[..], &select.from[..]) else { return None };
        name.as_ident().filter(|name| name.value == WINDOW_CALL)?;
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
        let key = |item: &'a SelectItem| match item {
            SelectItem::UnnamedExpr(key) => Some(key),
            _ => None,
        };
        let shape = WindowShape::named(text(given(shape)?)?)?;
        let lengths = Lengths { slide_ns, size_ns, offset_ns };
        Some(Self {
            table: &from.relation,
            time: given(time)?,
            keys: keys.iter().map(key).collect::<Option<_>>()?,
            of: WindowSpec { shape, lengths, lateness_ns },
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
        let Some(Written { table, time, keys, of }) = Written::of(&relation) else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let input = context.plan(table.clone())?;
        let mut over_input = |tree: &Tree| context.sql_to_expr(tree.clone(), input.schema());
        let time = over_input(time)?;
        let keys = keys.into_iter().map(over_input).collect::<DfResult<_>>()?;
        let assign = WindowAssign::try_new(Arc::new(input), time, keys, of)?;
        let plan = LogicalPlan::Extension(Extension { node: Arc::new(assign) });
        let alias = match relation {
            TableFactor::Derived { alias, .. } => alias,
            _ => None,
        };
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
    }
}

#[cfg(test)]
mod tests {
    use super::expanded;
    use crate::catalog::Catalog;
    use crate::logical::engine::Engine;
    use crate::text::syntax::split;

    const ROWS: &str = "WITH t AS (SELECT * FROM (VALUES
        (1, 2, TIMESTAMP '2024-01-01 00:00:01'), (3, 4, TIMESTAMP '2024-01-01 00:00:07')
      ) AS v (k, v, ts)) ";

    /// The optimized plan of a query of rows, and whether DataFusion can execute it.
    fn planned(sql: &str) -> String {
        let tokens = split(&format!("{ROWS}{sql}")).expect("tokens").swap_remove(0);
        let engine = Engine::new();
        let understood = engine.understand(&tokens, &Catalog::default());
        let understood = understood.unwrap_or_else(|errors| panic!("{sql}: {errors:?}"));
        let plan = engine.optimize(&understood.plan).expect("a plan");
        let computed = expanded(plan.clone()).expect("what DataFusion computes");
        assert!(!computed.display_indent().to_string().contains("WindowAssign"), "{computed}");
        assert_eq!(computed.schema().columns(), plan.schema().columns(), "{computed}");
        plan.display_indent().to_string()
    }

    fn hop() -> &'static str {
        "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '5' SECOND, INTERVAL '10' SECOND)"
    }

    /// Whether the line with the first text stands above the one with the second.
    fn above(plan: &str, first: &str, second: &str) -> bool {
        let line = |text: &str| plan.lines().position(|line| line.contains(text));
        line(first).expect(plan) < line(second).expect(plan)
    }

    #[test]
    fn rows_are_filtered_below_by_their_own_columns_and_above_by_their_windows() {
        let plan = planned(&format!("SELECT v FROM {} WHERE k > 1", hop()));
        assert!(above(&plan, "WindowAssign: HOP", "> Int64(1)"), "{plan}");
        let plan = planned(&format!("SELECT v FROM {} WHERE window_end > ts", hop()));
        assert!(above(&plan, "< window_end", "WindowAssign: HOP"), "{plan}");
    }

    #[test]
    fn below_sessions_rows_are_filtered_by_their_keys_alone() {
        let session = "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '5' SECOND)";
        let plan = planned(&format!("SELECT v FROM {session} WHERE k > 1"));
        assert!(above(&plan, "WindowAssign: SESSION", "> Int64(1)"), "{plan}");
        let plan = planned(&format!("SELECT k FROM {session} WHERE v > 1"));
        assert!(above(&plan, "> Int64(1)", "WindowAssign: SESSION"), "{plan}");
    }

    #[test]
    fn each_window_of_a_row_has_a_decision_of_its_own() {
        let plan = planned(&format!("SELECT k FROM {} WHERE random() < 0.5 AND v > 1", hop()));
        assert!(above(&plan, "random()", "WindowAssign: HOP"), "{plan}");
        assert!(above(&plan, "WindowAssign: HOP", "> Int64(1)"), "{plan}");
    }

    #[test]
    fn limits_and_groups_stay_above() {
        let plan = planned(&format!("SELECT window_end FROM {} LIMIT 1", hop()));
        assert!(above(&plan, "Limit: skip=0, fetch=1", "WindowAssign: HOP"), "{plan}");
        let below = plan.split("WindowAssign").nth(1).expect("a window");
        assert!(!below.contains("Limit"), "{plan}");
        let plan = planned(&format!("SELECT DISTINCT window_start FROM {}", hop()));
        assert!(above(&plan, "Aggregate", "WindowAssign: HOP"), "{plan}");
    }

    #[test]
    fn of_the_input_the_time_and_what_is_selected_are_read() {
        let plan = planned(&format!("SELECT window_end, v FROM {}", hop()));
        let below = plan.split("WindowAssign").nth(1).expect("a window");
        assert!(below.contains("AS v") && below.contains("AS ts"), "{plan}");
        assert!(!below.contains("AS k"), "{plan}");
    }
}
