//! How large a query may get. Views and WITH queries are written out where they are named, so that
//! a short script may stand for a plan that no memory holds: each bound is checked before that.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::common::Column;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::sql::sqlparser::ast::{self, Query, Spanned, TableFactor, Visit, Visitor};
use datafusion::sql::sqlparser::tokenizer::{Span, TokenWithSpan};

use crate::text::depth::DEPTH_MAX;
use crate::text::diagnostics::{Diagnostic, Place};

/// Columns at most of a table, and items of a SELECT list. The planner compares each with each: it
/// takes some seconds for as many.
pub(crate) const COLUMNS_MAX: usize = 3_000;

/// Statements of a script at most: each that gives rows becomes a job before the first one runs.
pub(crate) const STATEMENTS_MAX: usize = 10_000;

/// Grouping sets of a GROUP BY at most.
pub(crate) const GROUPING_SETS_MAX: usize = 4_096;

/// Tables and subqueries of a statement at most, when its views are written out.
pub(crate) const INPUTS_MAX: usize = 1_000;

/// Joins of a query at most, when its views are written out. The optimizer looks from each at all
/// others: it takes some seconds for as many.
pub(crate) const JOINS_MAX: usize = 256;

/// Queries within queries at most, when views are written out.
pub(crate) const NESTED_MAX: usize = 100;

/// Subqueries of expressions within each other at most, when views are written out: DataFusion's
/// work doubles with each.
pub(crate) const SUBQUERIES_MAX: usize = 10;

/// Parts of an expression at most, when the columns of views and subqueries are written out.
pub(crate) const PARTS_MAX: u64 = 100_000;

/// Refuses a script of too many statements.
///
/// # Errors
/// At the first that is too many.
pub(crate) fn check_statements(pieces: &[Vec<TokenWithSpan>]) -> Result<(), Diagnostic> {
    let Some(first) = pieces.get(STATEMENTS_MAX).and_then(|piece| piece.first()) else {
        return Ok(());
    };
    let message = format!("a script of more than {STATEMENTS_MAX} statements");
    Err(Diagnostic::at(Place::of(first.span), message).hint("run it in several parts"))
}

/// How many tables and subqueries a query has when it is written out, and how deep they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    inputs: usize,
    nested: usize,
    /// How many subqueries of expressions stand within each other.
    asked: usize,
}

impl Extent {
    const OF_A_TABLE: Self = Self { inputs: 1, nested: 0, asked: 0 };

    fn add(&mut self, within: Self, of_expression: bool) {
        self.inputs = self.inputs.saturating_add(within.inputs);
        self.nested = self.nested.max(within.nested + 1);
        self.asked = self.asked.max(within.asked + usize::from(of_expression));
    }
}

/// How far a query extends.
///
/// # Errors
/// Where it names one table or view too many.
pub(crate) fn extent(
    query: &Query,
    views: impl Fn(&str) -> Option<Extent>,
) -> Result<Extent, Diagnostic> {
    let mut walk = Walk { views, frames: vec![], last: Extent::OF_A_TABLE };
    match query.visit(&mut walk) {
        ControlFlow::Continue(()) => Ok(walk.last),
        ControlFlow::Break((span, message)) => Err(Diagnostic::at(Place::of(span), message)
            .detail("views and WITH queries count as often as they are named")
            .hint("write the rows of some of them into a table, and read that")),
    }
}

struct Walk<V> {
    views: V,
    /// The queries around.
    frames: Vec<Frame>,
    /// Of the query that ended last.
    last: Extent,
}

struct Frame {
    extent: Extent,
    /// The WITH queries that ended.
    named: Vec<(String, Extent)>,
    /// Where the WITH queries of this one are, and their names.
    with: Vec<(*const Query, String)>,
    /// Where the subqueries of its expressions are.
    asked: Vec<*const Query>,
    /// Of how many subqueries of expressions this is the innermost.
    depth: usize,
}

impl<V> Walk<V> {
    /// Whether an expression of the innermost query around asks this one.
    fn is_asked(&self, query: &Query) -> bool {
        let asked = self.frames.last().into_iter().flat_map(|frame| &frame.asked);
        asked.into_iter().any(|at| std::ptr::eq(*at, query))
    }
}

fn too_many_subqueries() -> String {
    format!("more than {SUBQUERIES_MAX} subqueries of expressions within each other")
}

impl<V: Fn(&str) -> Option<Extent>> Visitor for Walk<V> {
    type Break = (Span, String);

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Self::Break> {
        let with = query.with.iter().flat_map(|with| &with.cte_tables);
        let with = with.map(|cte| (&raw const *cte.query, cte.alias.name.value.clone()));
        let with = with.collect();
        let around = self.frames.last().map_or(0, |frame| frame.depth);
        let depth = around + usize::from(self.is_asked(query));
        if depth > SUBQUERIES_MAX {
            return ControlFlow::Break((query.span(), too_many_subqueries()));
        }
        let extent = Extent::OF_A_TABLE;
        self.frames.push(Frame { extent, named: vec![], with, asked: vec![], depth });
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<Self::Break> {
        let (ast::Expr::Subquery(query)
        | ast::Expr::InSubquery { subquery: query, .. }
        | ast::Expr::Exists { subquery: query, .. }) = expr
        else {
            return ControlFlow::Continue(());
        };
        if let Some(frame) = self.frames.last_mut() {
            frame.asked.push(&raw const **query);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<Self::Break> {
        let Some(ended) = self.frames.pop() else { return ControlFlow::Continue(()) };
        self.last = ended.extent;
        let asked = self.is_asked(query);
        if let Some(around) = self.frames.last_mut() {
            let name = around.with.iter().find(|(at, _)| std::ptr::eq(*at, query));
            match name.map(|(_, name)| name.clone()) {
                Some(name) => around.named.push((name, ended.extent)),
                None => around.extent.add(ended.extent, asked),
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Self::Break> {
        let TableFactor::Table { name, .. } = table else { return ControlFlow::Continue(()) };
        let Some(ast::ObjectNamePart::Identifier(ident)) = name.0.last() else {
            return ControlFlow::Continue(());
        };
        let with = self.frames.iter().rev().flat_map(|frame| frame.named.iter().rev());
        let with = with.into_iter().find(|(name, _)| *name == ident.value);
        let extent = with.map(|(_, extent)| *extent).or_else(|| (self.views)(&ident.value));
        let Some(frame) = self.frames.last_mut() else { return ControlFlow::Continue(()) };
        let extent = extent.unwrap_or(Extent::OF_A_TABLE);
        frame.extent.add(extent, false);
        if frame.depth + extent.asked > SUBQUERIES_MAX {
            return ControlFlow::Break((ident.span, too_many_subqueries()));
        }
        if frame.extent.inputs > INPUTS_MAX {
            let message = format!("a query over more than {INPUTS_MAX} tables and subqueries");
            return ControlFlow::Break((ident.span, message));
        }
        if frame.extent.nested > NESTED_MAX {
            let message = format!("more than {NESTED_MAX} queries within each other");
            return ControlFlow::Break((ident.span, message));
        }
        ControlFlow::Continue(())
    }
}

/// How large an expression is when it is written over the columns of tables.
#[derive(Debug, Clone, Copy)]
struct Size {
    parts: u64,
    depth: u64,
}

impl Size {
    const OF_A_COLUMN: Self = Self { parts: 1, depth: 1 };

    fn max(self, other: Self) -> Self {
        Self { parts: self.parts.max(other.parts), depth: self.depth.max(other.depth) }
    }
}

/// Refuses a plan of too many joins, or with an expression that is too large when it is written
/// over the columns of tables, as the optimizer writes it.
///
/// # Errors
/// At `place`.
pub(crate) fn check_plan(plan: &LogicalPlan, place: Place) -> Result<(), Diagnostic> {
    let mut joins = 0;
    // The closure never fails.
    let _ = plan.apply_with_subqueries(|node| {
        joins += usize::from(matches!(node, LogicalPlan::Join(_)));
        Ok(TreeNodeRecursion::Continue)
    });
    if joins > JOINS_MAX {
        return Err(Diagnostic::at(place, format!("a query of more than {JOINS_MAX} joins"))
            .detail("views and WITH queries count as often as they are named")
            .hint("write the rows of some of them into a table, and read that"));
    }
    let mut largest = Size::OF_A_COLUMN;
    columns(plan, &mut largest);
    let message = if largest.parts > PARTS_MAX {
        format!("an expression of more than {PARTS_MAX} parts")
    } else if largest.depth > DEPTH_MAX as u64 {
        format!("an expression of more than {DEPTH_MAX} levels")
    } else {
        return Ok(());
    };
    Err(Diagnostic::at(place, message)
        .detail("columns of views and subqueries are written out as often as they are named")
        .hint("write what a view computes into a table, and read that"))
}

/// The sizes of the columns of a plan; `largest` is of all its expressions.
fn columns(plan: &LogicalPlan, largest: &mut Size) -> Vec<Size> {
    let inputs = plan.inputs();
    let of_inputs: Vec<Vec<Size>> = inputs.iter().map(|input| columns(input, largest)).collect();
    let mut scope: HashMap<Column, Size> = HashMap::new();
    for (input, sizes) in inputs.iter().zip(&of_inputs) {
        scope.extend(input.schema().columns().into_iter().zip(sizes.iter().copied()));
    }
    let exprs: Vec<Size> = plan.expressions().iter().map(|expr| size(expr, &scope)).collect();
    for of_expr in &exprs {
        *largest = largest.max(*of_expr);
    }
    let width = plan.schema().fields().len();
    let mut sizes = match plan {
        LogicalPlan::Projection(_) => exprs,
        // A computed value is a column of its own; keys stay the same.
        LogicalPlan::Aggregate(aggregate) => exprs[..aggregate.group_expr.len()].to_vec(),
        LogicalPlan::Union(_) => {
            let at = |at: usize| of_inputs.iter().filter_map(move |sizes| sizes.get(at).copied());
            (0..width).map(|column| at(column).fold(Size::OF_A_COLUMN, Size::max)).collect()
        }
        LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Window(_) => of_inputs.concat(),
        _ => vec![],
    };
    sizes.resize(width, Size::OF_A_COLUMN);
    sizes
}

fn size(expr: &Expr, scope: &HashMap<Column, Size>) -> Size {
    if let Expr::Column(column) = expr {
        return scope.get(column).copied().unwrap_or(Size::OF_A_COLUMN);
    }
    let mut whole = Size { parts: 1, depth: 0 };
    // The closure never fails.
    let _ = expr.apply_children(|child| {
        let child = size(child, scope);
        whole.parts = whole.parts.saturating_add(child.parts);
        whole.depth = whole.depth.max(child.depth);
        Ok(TreeNodeRecursion::Continue)
    });
    whole.depth = whole.depth.saturating_add(1);
    whole
}

#[cfg(test)]
mod tests {
    use super::SUBQUERIES_MAX;
    use crate::catalog::Catalog;
    use crate::logical::engine::Engine;
    use crate::text::depth;
    use crate::text::syntax::split;

    fn refused(sql: &str) -> Option<String> {
        let tokens = split(sql).map_err(|error| error.message);
        let tokens = match tokens {
            Ok(mut tokens) => tokens.swap_remove(0),
            Err(message) => return Some(message),
        };
        let planned =
            depth::guarded(|| Engine::new().understand(&tokens, &Catalog::default()).map(|_| ()));
        planned.err().map(|mut errors| errors.swap_remove(0).message)
    }

    /// Each doubles the one before.
    fn doubled(times: usize, body: impl Fn(usize) -> String) -> String {
        let with: Vec<String> = (1..=times).map(|n| format!("q{n} AS ({})", body(n - 1))).collect();
        format!("WITH q0 AS (SELECT 1 AS x), {} SELECT x FROM q{times}", with.join(", "))
    }

    #[test]
    fn queries_that_double_have_a_bound() {
        let unions = |n: usize| format!("SELECT x FROM q{n} UNION ALL SELECT x FROM q{n}");
        assert_eq!(refused(&doubled(6, unions)), None);
        let message = refused(&doubled(30, unions)).expect("2^30 tables");
        assert!(message.contains("1000 tables"), "{message}");

        let sums = |n: usize| format!("SELECT x + x AS x FROM q{n}");
        assert_eq!(refused(&doubled(10, sums)), None);
        let message = refused(&doubled(60, sums)).expect("2^60 sums");
        assert!(message.contains("100000 parts"), "{message}");

        let join = |n: usize| format!("JOIN q t{n} ON t{n}.x = t0.x");
        let joins = |count: usize| (1..=count).map(join).collect::<Vec<_>>().join(" ");
        let joins =
            |count| format!("WITH q AS (SELECT 1 AS x) SELECT t0.x FROM q t0 {}", joins(count));
        assert_eq!(refused(&joins(20)), None);
        let message = refused(&joins(257)).expect("257 joins");
        assert!(message.contains("256 joins"), "{message}");

        let once = |n: usize| format!("SELECT x FROM q{n}");
        let asked = |n: usize| format!("SELECT {}1{} AS x", "(SELECT ".repeat(n), ")".repeat(n));
        assert_eq!(refused(&asked(SUBQUERIES_MAX)), None);
        let message = refused(&asked(SUBQUERIES_MAX + 1)).expect("2^11 times the work");
        assert!(message.contains("10 subqueries"), "{message}");
        let within = |n: usize| format!("SELECT (SELECT max(x) FROM q{n}) AS x");
        let message = refused(&doubled(SUBQUERIES_MAX + 1, within)).expect("2^11 times the work");
        assert!(message.contains("10 subqueries"), "{message}");

        let message = refused(&doubled(200, once)).expect("200 levels");
        assert!(message.contains("100 queries within"), "{message}");
    }

    #[test]
    fn statements_of_a_script_have_a_bound() {
        let script = |count: usize| split(&"SELECT 1;\n".repeat(count)).map_err(|e| e.message);
        let checked = |count| super::check_statements(&script(count).expect("it is SQL"));
        assert!(checked(super::STATEMENTS_MAX).is_ok());
        let error = checked(super::STATEMENTS_MAX + 1).expect_err("one too many");
        assert_eq!((error.line, error.column), (10_001, 1));
        assert!(error.message.contains("10000 statements"), "{}", error.message);
    }

    #[test]
    fn grouping_sets_and_columns_have_a_bound() {
        let keys =
            |count: usize| (0..count).map(|n| format!("c{n}")).collect::<Vec<_>>().join(", ");
        let ones = |count: usize| vec!["1"; count].join(", ");
        let cube = |count: usize| {
            let (keys, ones) = (keys(count), ones(count));
            format!("SELECT count(*) FROM (VALUES ({ones})) AS t ({keys}) GROUP BY CUBE ({keys})")
        };
        assert_eq!(refused(&cube(5)), None);
        assert!(refused(&cube(22)).expect("2^22 sets").contains("4096 grouping sets"));
        let list = |count: usize| (0..count).map(|n| format!("{n} AS c{n}")).collect::<Vec<_>>();
        let message = refused(&format!("SELECT {}", list(3_001).join(", ")));
        assert!(message.expect("3,001 columns").contains("3000 columns"));
    }
}
