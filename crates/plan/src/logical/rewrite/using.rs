//! The column that `RIGHT JOIN … USING` and `FULL JOIN … USING` merge, and `NATURAL` ones.
//!
//! DataFusion takes the left column for it, which is NULL where the left side has no row. Here such
//! a join is planned with a projection behind it: the merged column stands where the left one did,
//! and is the right one, or the first of both that is not NULL.
//!
//! The columns of both sides by themselves (`a.k`) go on behind the others, if the statement names
//! them. Then `k` alone would be any of them to DataFusion, which says so; it is written as the
//! merged one, and the statement planned again ([`MergingJoins::is_merged`]).

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use datafusion::common::{Column, JoinType};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions::expr_fn::coalesce;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{
    Expr as Tree, Ident, JoinConstraint, JoinOperator, ObjectName, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableFactor, TableWithJoins, VisitMut, VisitorMut,
};

use super::refused;
use crate::text::names::MERGED;

/// Puts each such join into brackets, and writes the columns `alone`, which stand without a table,
/// as the merged ones; gives what plans the joins.
pub(super) fn rewrite(query: &mut Query, alone: &HashSet<String>) -> MergingJoins {
    let mut found = Found { joins: MergingJoins::default(), alone };
    // It never breaks off.
    let _ = VisitMut::visit(query, &mut found);
    found.joins
}

/// Plans the joins that merge columns.
#[derive(Debug, Default)]
pub(crate) struct MergingJoins {
    /// Columns that the statement names with their table.
    named: HashSet<(String, String)>,
    /// Tables of which it takes all columns.
    whole: HashSet<String>,
    /// Whether all columns of such a join are taken.
    all: bool,
    /// The columns that were merged, once joins have been planned.
    merged: Mutex<HashSet<String>>,
}

impl MergingJoins {
    /// Whether one of the joins that were planned merges columns of that name.
    pub(crate) fn is_merged(&self, name: &str) -> bool {
        self.merged.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}

struct Found<'a> {
    joins: MergingJoins,
    alone: &'a HashSet<String>,
}

impl VisitorMut for Found<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let SetExpr::Select(select) = &*query.body else { return ControlFlow::Continue(()) };
        let mut alone = self.merged_alone(select);
        // A name of the result goes before one of the tables.
        alone.retain(|name| {
            let bare = |item: &SelectItem| match item {
                SelectItem::UnnamedExpr(Tree::Identifier(ident)) => ident.value == *name,
                _ => false,
            };
            let items = &select.projection;
            items.iter().any(bare) || !items.iter().any(|item| gives_out(item, name))
        });
        if let Some(order) = &mut query.order_by {
            let _ = VisitMut::visit(order, &mut Alone { names: &alone, within: 0 });
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let names = self.merged_alone(select);
        if !names.is_empty() {
            let from = std::mem::take(&mut select.from);
            let _ = VisitMut::visit(select, &mut Alone { names: &names, within: 0 });
            select.from = from;
        }
        let mut merges = false;
        for from in &mut select.from {
            merges |= bracket(from);
        }
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(_) => self.joins.all |= merges,
                SelectItem::QualifiedWildcard(
                    SelectItemQualifiedWildcardKind::ObjectName(name),
                    _,
                ) => {
                    let last = name.0.last().and_then(|part| part.as_ident());
                    self.joins.whole.extend(last.map(|ident| ident.value.clone()));
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        // Joins put into brackets here, up to the last one, stay as they are.
        if let TableFactor::NestedJoin { table_with_joins, .. } = factor
            && let Some((_, before)) = table_with_joins.joins.split_last()
            && before
                .iter()
                .any(|join| kind_of(&join.join_operator).is_some_and(|(k, _)| is_outer(k)))
        {
            bracket(table_with_joins);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Tree) -> ControlFlow<()> {
        if let Tree::CompoundIdentifier(parts) = expr
            && let [.., Ident { value: table, .. }, Ident { value: column, .. }] = &parts[..]
            && table != MERGED
        {
            self.joins.named.insert((table.clone(), column.clone()));
        }
        ControlFlow::Continue(())
    }
}

impl Found<'_> {
    /// Of the columns that stand alone, those that the joins of a SELECT merge.
    fn merged_alone(&self, select: &Select) -> HashSet<String> {
        let merges = |name: &&String| select.from.iter().any(|from| merges_column(from, name));
        self.alone.iter().filter(merges).cloned().collect()
    }
}

/// Whether an outer join of these merges columns of that name, as far as one can tell.
fn merges_column(from: &TableWithJoins, name: &str) -> bool {
    let within = match &from.relation {
        TableFactor::NestedJoin { table_with_joins, .. } => merges_column(table_with_joins, name),
        _ => false,
    };
    let named = |parts: &ObjectName| {
        parts.0.last().and_then(|part| part.as_ident()).is_some_and(|ident| ident.value == name)
    };
    within
        || from.joins.iter().any(|join| match kind_of(&join.join_operator) {
            Some((_, JoinConstraint::Using(names))) => names.iter().any(named),
            other => other.is_some(),
        })
}

/// Whether a column of the result has that name, and is not the merged one.
fn gives_out(item: &SelectItem, name: &str) -> bool {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => alias.value == name,
        SelectItem::UnnamedExpr(Tree::CompoundIdentifier(parts)) => {
            parts.last().is_some_and(|part| part.value == name)
        }
        _ => false,
    }
}

/// Writes columns that stand without a table as the merged ones; not those of queries within.
struct Alone<'a> {
    names: &'a HashSet<String>,
    within: usize,
}

impl VisitorMut for Alone<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.within += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.within -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Tree) -> ControlFlow<()> {
        if let Tree::Identifier(ident) = expr
            && self.within == 0
            && self.names.contains(&ident.value)
        {
            let mut table = Ident::new(MERGED);
            table.span = ident.span;
            *expr = Tree::CompoundIdentifier(vec![table, ident.clone()]);
        }
        ControlFlow::Continue(())
    }
}

/// Puts what comes up to each merging join into brackets, and with the first of them to each one
/// behind that has USING too; tells whether there is one.
fn bracket(from: &mut TableWithJoins) -> bool {
    let mut any = false;
    for join in std::mem::take(&mut from.joins) {
        let kind = kind_of(&join.join_operator).map(|(kind, _)| kind);
        any |= kind.is_some_and(is_outer);
        let merging = any && kind.is_some();
        from.joins.push(join);
        if merging {
            let inner = TableWithJoins {
                relation: from.relation.clone(),
                joins: std::mem::take(&mut from.joins),
            };
            from.relation =
                TableFactor::NestedJoin { table_with_joins: Box::new(inner), alias: None };
        }
    }
    any
}

/// Whether the left column alone is not the merged one.
fn is_outer(kind: JoinType) -> bool {
    matches!(kind, JoinType::Right | JoinType::Full)
}

/// Whether the last of these joins is planned here.
fn merges(from: &TableWithJoins) -> bool {
    let kind = from.joins.last().and_then(|join| kind_of(&join.join_operator));
    let within = || match &from.relation {
        TableFactor::NestedJoin { table_with_joins, .. } => merges(table_with_joins),
        _ => false,
    };
    kind.is_some_and(|(kind, _)| is_outer(kind) || within())
}

/// The kind of a join with USING, or a NATURAL one.
fn kind_of(join: &JoinOperator) -> Option<(JoinType, &JoinConstraint)> {
    let (kind, constraint) = match join {
        JoinOperator::Right(constraint) | JoinOperator::RightOuter(constraint) => {
            (JoinType::Right, constraint)
        }
        JoinOperator::FullOuter(constraint) => (JoinType::Full, constraint),
        JoinOperator::Left(constraint) | JoinOperator::LeftOuter(constraint) => {
            (JoinType::Left, constraint)
        }
        JoinOperator::Inner(constraint) | JoinOperator::Join(constraint) => {
            (JoinType::Inner, constraint)
        }
        _ => return None,
    };
    let merging = matches!(constraint, JoinConstraint::Using(_) | JoinConstraint::Natural);
    merging.then_some((kind, constraint))
}

impl RelationPlanner for MergingJoins {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let original = |relation| Ok(RelationPlanning::Original(Box::new(relation)));
        let TableFactor::NestedJoin { mut table_with_joins, alias } = relation else {
            return original(relation);
        };
        let merging = merges(&table_with_joins);
        let Some(join) = table_with_joins.joins.pop_if(|_| merging) else {
            return original(TableFactor::NestedJoin { table_with_joins, alias });
        };
        let Some((kind, constraint)) = kind_of(&join.join_operator) else {
            table_with_joins.joins.push(join);
            return original(TableFactor::NestedJoin { table_with_joins, alias });
        };
        let left = if table_with_joins.joins.is_empty() {
            context.plan(table_with_joins.relation)?
        } else {
            context.plan(TableFactor::NestedJoin { table_with_joins, alias: None })?
        };
        let right = context.plan(join.relation.clone())?;
        let names: Vec<String> = match constraint {
            JoinConstraint::Using(names) => names
                .iter()
                .map(|name| match &name.0[..] {
                    [part] if part.as_ident().is_some() => {
                        Ok(part.as_ident().map(|ident| ident.value.clone()).unwrap_or_default())
                    }
                    _ => {
                        let message = "USING takes names of columns, without a table";
                        Err(refused(&["USING"], message, "write USING (k)"))
                    }
                })
                .collect::<Result<_>>()?,
            _ => shared_names(&left, &right),
        };
        let plan = self.merged(kind, left, right, &names)?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
    }
}

/// Names of columns that both sides have, in the order of the left side.
fn shared_names(left: &LogicalPlan, right: &LogicalPlan) -> Vec<String> {
    let right: HashSet<&String> = right.schema().fields().iter().map(|f| f.name()).collect();
    let mut seen = HashSet::new();
    let left = left.schema().fields().iter().map(|field| field.name());
    left.filter(|name| right.contains(name) && seen.insert(*name)).cloned().collect()
}

impl MergingJoins {
    fn merged(
        &self,
        kind: JoinType,
        left: LogicalPlan,
        right: LogicalPlan,
        names: &[String],
    ) -> Result<LogicalPlan> {
        let key = |plan: &LogicalPlan, name: &String| {
            let merged = Column::new(Some(MERGED), name.clone());
            if plan.schema().has_column(&merged) {
                return Ok(merged);
            }
            let using = plan.using_columns()?;
            let column = Column::from_name(name);
            column.normalize_with_schemas_and_ambiguity_check(&[&[plan.schema()]], &using)
        };
        let mut pairs = vec![];
        for name in names {
            pairs.push((key(&left, name)?, key(&right, name)?));
        }
        let columns = [left.schema().columns(), right.schema().columns()];
        let equal = pairs.iter().map(|(l, r)| Expr::Column(l.clone()).eq(Expr::Column(r.clone())));
        let joined = LogicalPlanBuilder::from(left).join_on(right, kind, equal)?;
        let (mut outputs, mut behind, mut done) = (vec![], vec![], HashSet::new());
        for column in columns.concat() {
            let Some(at) = names.iter().position(|name| *name == column.name) else {
                outputs.push(Expr::Column(column));
                continue;
            };
            if done.insert(at) {
                let mut merged = self.merged.lock().unwrap_or_else(PoisonError::into_inner);
                merged.insert(column.name.clone());
                let (l, r) = &pairs[at];
                let (l, r) = (Expr::Column(l.clone()), Expr::Column(r.clone()));
                let whole = match kind {
                    JoinType::Full => coalesce(vec![l, r]),
                    JoinType::Right => r,
                    _ => l,
                };
                outputs.push(whole.alias_qualified(Some(MERGED), &column.name));
            }
            if self.is_named(&column)? {
                behind.push(Expr::Column(column));
            }
        }
        joined.project(outputs.into_iter().chain(behind))?.build()
    }

    /// Whether the statement asks for a column of one side that was merged.
    fn is_named(&self, column: &Column) -> Result<bool> {
        let Some(table) = &column.relation else { return Ok(false) };
        let table = table.table();
        let named = self.named.contains(&(table.to_owned(), column.name.clone()));
        let star = if self.whole.contains(table) {
            Some(format!("'{table}.*'"))
        } else {
            (named && self.all).then(|| "'*'".to_owned())
        };
        if let Some(star) = star {
            let message = format!(
                "'{table}.{}' is merged with another column, and {star} has only the one of both",
                column.name
            );
            let hint = "name the columns in place of the star, or join with ON a.k = b.k";
            return Err::<bool, DataFusionError>(refused(&["USING", "NATURAL"], &message, hint));
        }
        Ok(named)
    }
}
