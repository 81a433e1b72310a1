//! The relations and conditions of a block of inner joins, and the plan of another order of them.
//!
//! A block is a tree of inner joins, with filters, aliases and projections of plain columns between
//! them. Every other node below is a *relation*, also outer, semi, anti and mark joins, which stay
//! as they are written. Columns that are equal to each other are a *class*: `a = b` and `b = c`
//! imply `a = c`, so each pair of relations of a class can be joined.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinConstraint, JoinType, NullEquality};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, Join, LogicalPlan, Operator, Projection};

use super::estimate::{ColumnEstimate, Estimate, Estimator, KeyPair, values_of_keys};
use super::search::{JoinTree, RELATIONS_MAX, Relations, Set};
use super::selectivity::{column, selectivity};
use crate::logical::as_of;

/// A block of inner joins.
pub(crate) struct JoinBlock<'a> {
    /// The topmost node of the block.
    root: &'a LogicalPlan,
    pub(crate) relations: Vec<LogicalPlan>,
    /// Columns that are equal, each with its relation.
    classes: Vec<Vec<(usize, Column)>>,
    /// The other conditions, each with the relations whose columns it reads.
    conditions: Vec<(Set, Expr)>,
    /// The columns of the root.
    outputs: Vec<Column>,
    /// The order in which it is written.
    pub(crate) written: JoinTree,
}

/// A block while it is taken out of a plan.
struct Taking<'a> {
    relations: Vec<&'a LogicalPlan>,
    conditions: Vec<Expr>,
    /// Whether a node inside the block is a relation all the same.
    keeps: &'a dyn Fn(&LogicalPlan) -> bool,
}

/// A node of a block: its columns as columns of relations, and the order of its joins.
type Taken = (Vec<Column>, JoinTree);

impl<'a> JoinBlock<'a> {
    /// The block with this topmost node, if it has at least two relations whose columns have
    /// different names. Nodes for which `keeps` is true are relations.
    pub(crate) fn of(plan: &'a LogicalPlan, keeps: &dyn Fn(&LogicalPlan) -> bool) -> Option<Self> {
        let is_name = |node: &LogicalPlan| matches!(node, LogicalPlan::SubqueryAlias(_));
        if !is_inside(plan, keeps) {
            return None;
        }
        // Without the aliases of subqueries two tables may have the same name.
        let with_names = |node: &LogicalPlan| keeps(node) || is_name(node);
        Self::taken(plan, keeps).or_else(|| Self::taken(plan, &with_names))
    }

    fn taken(root: &'a LogicalPlan, keeps: &dyn Fn(&LogicalPlan) -> bool) -> Option<Self> {
        let mut taking = Taking { relations: vec![], conditions: vec![], keeps };
        let (outputs, written) = taking.take(root)?;
        let Taking { relations, conditions, .. } = taking;
        let fits = (2..=RELATIONS_MAX).contains(&relations.len());
        let is_plain = |condition: &Expr| !condition.is_volatile() && !asks_subquery(condition);
        if !fits || !each_once(&relations) || !conditions.iter().all(is_plain) {
            return None;
        }
        let relations = relations.into_iter().cloned().collect();
        let mut block =
            Self { root, relations, classes: vec![], conditions: vec![], outputs, written };
        conditions.into_iter().for_each(|condition| block.add(condition));
        block.restrict();
        Some(block)
    }

    fn add(&mut self, condition: Expr) {
        for part in split_conjunction(&condition) {
            match self.equal_columns(part) {
                Some(columns) => self.add_equality(columns),
                None => self.conditions.push((self.set_of(part), part.clone())),
            }
        }
    }

    /// The columns of two relations that are equal by a condition.
    fn equal_columns(&self, condition: &Expr) -> Option<[(usize, Column); 2]> {
        let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else {
            return None;
        };
        let (Expr::Column(left), Expr::Column(right)) = (left.as_ref(), right.as_ref()) else {
            return None;
        };
        let sides = [(self.relation_of(left)?, left), (self.relation_of(right)?, right)];
        let type_of = |(at, column): (usize, &Column)| {
            let schema = self.relations[at].schema();
            Some(schema.field(schema.maybe_index_of_column(column)?).data_type().clone())
        };
        let differ = sides[0].0 != sides[1].0 && type_of(sides[0])? == type_of(sides[1])?;
        differ.then(|| sides.map(|(at, column)| (at, column.clone())))
    }

    fn add_equality(&mut self, columns: [(usize, Column); 2]) {
        let (mut with, without): (Vec<_>, Vec<_>) = std::mem::take(&mut self.classes)
            .into_iter()
            .partition(|class| columns.iter().any(|column| class.contains(column)));
        let mut class: Vec<(usize, Column)> = with.drain(..).flatten().collect();
        for column in columns {
            if !class.contains(&column) {
                class.push(column);
            }
        }
        self.classes = without;
        self.classes.push(class);
    }

    /// Makes the conditions of one relation a filter of it; among them equalities of two of its
    /// columns that are both equal to a third one.
    fn restrict(&mut self) {
        let mut own: Vec<Vec<Expr>> = vec![vec![]; self.relations.len()];
        for class in &mut self.classes {
            let mut kept: Vec<(usize, Column)> = vec![];
            for (at, column) in class.drain(..) {
                match kept.iter().find(|(other, _)| *other == at) {
                    Some((_, first)) => {
                        let [first, column] = [first.clone(), column].map(Expr::Column);
                        own[at].push(first.eq(column));
                    }
                    None => kept.push((at, column)),
                }
            }
            *class = kept;
        }
        self.conditions.retain(|(set, condition)| {
            if set.count_ones() == 1 {
                own[set.trailing_zeros() as usize].push(condition.clone());
            }
            set.count_ones() != 1
        });
        for (relation, own) in self.relations.iter_mut().zip(own) {
            if let Some(predicate) = conjunction(own)
                && let Ok(filter) = Filter::try_new(predicate.clone(), Arc::new(relation.clone()))
            {
                *relation = LogicalPlan::Filter(filter);
            }
        }
    }

    fn relation_of(&self, column: &Column) -> Option<usize> {
        let has = |plan: &LogicalPlan| plan.schema().maybe_index_of_column(column).is_some();
        self.relations.iter().position(has)
    }

    fn set_of(&self, expr: &Expr) -> Set {
        let columns = expr.column_refs();
        columns.into_iter().filter_map(|c| self.relation_of(c)).fold(0, |set, at| set | 1 << at)
    }

    /// The plan of an order, with the columns of the root.
    ///
    /// # Errors
    /// DataFusion's.
    pub(crate) fn plan(&self, tree: &JoinTree) -> Result<LogicalPlan> {
        let outside = self.conditions.iter().filter(|(set, _)| *set == 0);
        let outside = conjunction(outside.map(|(_, condition)| condition.clone()));
        let mut plan = self.joined(tree, &self.outputs.iter().cloned().collect())?;
        if let Some(predicate) = outside {
            plan = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?);
        }
        let schema = self.root.schema();
        if plan.schema().columns() == schema.columns() {
            return Ok(plan);
        }
        let columns = schema.iter().zip(&self.outputs).map(|((qualifier, field), column)| {
            let same = column.relation.as_ref() == qualifier && column.name == *field.name();
            let own = Expr::Column(column.clone());
            if same { own } else { own.alias_qualified(qualifier.cloned(), field.name()) }
        });
        Ok(LogicalPlan::Projection(Projection::try_new(columns.collect(), Arc::new(plan))?))
    }

    /// The plan of a part of an order, with the columns that are `needed` behind it.
    fn joined(&self, tree: &JoinTree, needed: &BTreeSet<Column>) -> Result<LogicalPlan> {
        let JoinTree::Join(left, right) = tree else {
            let JoinTree::Relation(at) = tree else { unreachable!("a tree is one of both") };
            return projected(self.relations[*at].clone(), needed);
        };
        let sides = [left.set(), right.set()];
        let (on, filter) = self.between(sides);
        let mut below = needed.clone();
        let read = on.iter().flat_map(|(left, right)| [left, right]).chain(&filter);
        below.extend(read.flat_map(|expr| expr.column_refs()).cloned());
        let left = Arc::new(self.joined(left, &below)?);
        let right = Arc::new(self.joined(right, &below)?);
        let join = Join::try_new(
            left,
            right,
            on,
            filter,
            JoinType::Inner,
            JoinConstraint::On,
            NullEquality::NullEqualsNothing,
            false,
        )?;
        projected(LogicalPlan::Join(join), needed)
    }

    /// The conditions between two sets: equalities of the left and the right one, and others.
    fn between(&self, [left, right]: [Set; 2]) -> (Vec<(Expr, Expr)>, Option<Expr>) {
        let member = |class: &[(usize, Column)], set: Set| {
            let found = class.iter().find(|(at, _)| set & (1 << at) != 0);
            found.map(|(_, column)| Expr::Column(column.clone()))
        };
        let mut on: Vec<(Expr, Expr)> = self
            .classes
            .iter()
            .filter_map(|class| member(class, left).zip(member(class, right)))
            .collect();
        let mut others = vec![];
        let all = left | right;
        let is_here = |set: Set| set & !all == 0 && set & left != 0 && set & right != 0;
        for (_, condition) in self.conditions.iter().filter(|(set, _)| is_here(*set)) {
            match self.sides_of(condition, [left, right]) {
                Some(sides) => on.push(sides),
                None => others.push(condition.clone()),
            }
        }
        (on, conjunction(others))
    }

    /// The sides of an equality that reads one set on each.
    fn sides_of(&self, condition: &Expr, [left, right]: [Set; 2]) -> Option<(Expr, Expr)> {
        let Expr::BinaryExpr(BinaryExpr { left: one, op: Operator::Eq, right: other }) = condition
        else {
            return None;
        };
        let sets = [self.set_of(one), self.set_of(other)];
        let within = |[a, b]: [Set; 2]| sets[0] & !a == 0 && sets[1] & !b == 0;
        if sets.contains(&0) {
            None
        } else if within([left, right]) {
            Some((one.as_ref().clone(), other.as_ref().clone()))
        } else if within([right, left]) {
            Some((other.as_ref().clone(), one.as_ref().clone()))
        } else {
            None
        }
    }

    /// The relations with their estimates.
    pub(crate) fn estimated(&self, estimator: &Estimator<'_>, workers: u32) -> EstimatedBlock<'_> {
        let estimates: Vec<Estimate> =
            self.relations.iter().map(|relation| estimator.of(relation)).collect();
        let mut beside = vec![0; self.relations.len()];
        let mut connect = |set: Set| {
            for (at, beside) in beside.iter_mut().enumerate() {
                if set & (1 << at) != 0 {
                    *beside |= set;
                }
            }
        };
        for class in &self.classes {
            connect(class.iter().fold(0, |set, (at, _)| set | 1 << at));
        }
        // Of the other conditions, equalities by which two relations can be joined.
        for (set, condition) in &self.conditions {
            let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else {
                continue;
            };
            let sides = [self.set_of(left), self.set_of(right)];
            if set.count_ones() == 2 && sides.iter().all(|side| side.count_ones() == 1) {
                connect(*set);
            }
        }
        EstimatedBlock { block: self, estimates, beside, workers }
    }
}

impl<'a> Taking<'a> {
    fn take(&mut self, plan: &'a LogicalPlan) -> Option<Taken> {
        if !is_inside(plan, self.keeps) {
            self.relations.push(plan);
            return Some((plan.schema().columns(), JoinTree::Relation(self.relations.len() - 1)));
        }
        match plan {
            LogicalPlan::Join(join) => {
                let (left, left_tree) = self.take(&join.left)?;
                let (right, right_tree) = self.take(&join.right)?;
                for (one, other) in &join.on {
                    let one = over(one, &join.left, &left)?;
                    let other = over(other, &join.right, &right)?;
                    self.conditions.push(one.eq(other));
                }
                let columns: Vec<Column> = left.into_iter().chain(right).collect();
                if let Some(filter) = &join.filter {
                    self.conditions.push(over(filter, plan, &columns)?);
                }
                Some((columns, JoinTree::Join(Box::new(left_tree), Box::new(right_tree))))
            }
            LogicalPlan::Filter(filter) => {
                let (columns, tree) = self.take(&filter.input)?;
                self.conditions.push(over(&filter.predicate, &filter.input, &columns)?);
                Some((columns, tree))
            }
            LogicalPlan::Projection(projection) => {
                let (columns, tree) = self.take(&projection.input)?;
                let column = |expr: &Expr| {
                    let at = projection.input.schema().maybe_index_of_column(plain(expr)?)?;
                    columns.get(at).cloned()
                };
                Some((projection.expr.iter().map(column).collect::<Option<_>>()?, tree))
            }
            LogicalPlan::SubqueryAlias(alias) => self.take(&alias.input),
            _ => None,
        }
    }
}

/// Whether a node is inside a block, and no relation.
pub(crate) fn is_inside(plan: &LogicalPlan, keeps: &dyn Fn(&LogicalPlan) -> bool) -> bool {
    if keeps(plan) {
        return false;
    }
    match plan {
        LogicalPlan::Join(join) => {
            join.join_type == JoinType::Inner
                && join.null_equality == NullEquality::NullEqualsNothing
                && !join.filter.as_ref().is_some_and(as_of::is_asked)
        }
        LogicalPlan::Filter(filter) => is_inside(&filter.input, keeps),
        LogicalPlan::SubqueryAlias(alias) => is_inside(&alias.input, keeps),
        LogicalPlan::Projection(projection) => {
            projection.expr.iter().all(|expr| plain(expr).is_some())
                && is_inside(&projection.input, keeps)
        }
        _ => false,
    }
}

/// A plan whose relations are replaced; its joins stay as they are written.
///
/// # Errors
/// Those of `replaced`.
pub(crate) fn map_relations(
    plan: &LogicalPlan,
    keeps: &dyn Fn(&LogicalPlan) -> bool,
    replaced: &mut dyn FnMut(&LogicalPlan) -> Result<LogicalPlan>,
) -> Result<LogicalPlan> {
    if !is_inside(plan, keeps) {
        return replaced(plan);
    }
    let inside = plan
        .clone()
        .map_children(|node| map_relations(&node, keeps, replaced).map(Transformed::yes));
    Ok(inside?.data)
}

/// The joins of a block.
pub(crate) fn joins_of<'a>(
    plan: &'a LogicalPlan,
    keeps: &dyn Fn(&LogicalPlan) -> bool,
) -> Vec<&'a LogicalPlan> {
    if !is_inside(plan, keeps) {
        return vec![];
    }
    let own = matches!(plan, LogicalPlan::Join(_)).then_some(plan);
    let below = plan.inputs().into_iter().flat_map(|input| joins_of(input, keeps));
    own.into_iter().chain(below).collect()
}

/// The column that an expression is, possibly under an alias.
pub(super) fn plain(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        Expr::Alias(alias) => plain(&alias.expr),
        _ => None,
    }
}

/// An expression over the columns of a plan, which are `columns` of relations. Each column keeps
/// its place in the text of the query.
fn over(expr: &Expr, plan: &LogicalPlan, columns: &[Column]) -> Option<Expr> {
    let mut known = true;
    let replaced = expr.clone().transform_up(|node| {
        let Expr::Column(column) = node else { return Ok(Transformed::no(node)) };
        let at = plan.schema().maybe_index_of_column(&column);
        let Some(of) = at.and_then(|at| columns.get(at)) else {
            known = false;
            return Ok(Transformed::no(Expr::Column(column)));
        };
        let Column { relation, name, .. } = of.clone();
        Ok(Transformed::yes(Expr::Column(Column { relation, name, ..column })))
    });
    replaced.ok().map(|replaced| replaced.data).filter(|_| known)
}

/// Whether all columns of some relations have different names.
fn each_once(relations: &[&LogicalPlan]) -> bool {
    let mut qualified = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut bare = vec![];
    for column in relations.iter().flat_map(|relation| relation.schema().columns()) {
        if column.relation.is_none() {
            bare.push(column.name.clone());
        } else {
            names.insert(column.name.clone());
        }
        if !qualified.insert(column) {
            return false;
        }
    }
    bare.iter().all(|name| !names.contains(name))
}

/// Whether an expression has a subquery, which may refer to columns by their former names.
fn asks_subquery(expr: &Expr) -> bool {
    let asks = |part: &Expr| {
        let is_set = matches!(part, Expr::InSubquery(_) | Expr::SetComparison(_));
        Ok(is_set || matches!(part, Expr::Exists(_) | Expr::ScalarSubquery(_)))
    };
    expr.exists(asks).unwrap_or(true)
}

/// A plan with the needed ones of its columns; with all if none is needed, so that rows can be
/// counted.
fn projected(plan: LogicalPlan, needed: &BTreeSet<Column>) -> Result<LogicalPlan> {
    let columns = plan.schema().columns();
    let kept: Vec<Expr> = columns
        .iter()
        .filter(|column| needed.contains(column))
        .cloned()
        .map(Expr::Column)
        .collect();
    if kept.is_empty() || kept.len() == columns.len() {
        return Ok(plan);
    }
    Ok(LogicalPlan::Projection(Projection::try_new(kept, Arc::new(plan))?))
}

/// A block with the estimates of its relations.
pub(crate) struct EstimatedBlock<'a> {
    block: &'a JoinBlock<'a>,
    estimates: Vec<Estimate>,
    /// By relation: the relations with which it has an equality.
    beside: Vec<Set>,
    workers: u32,
}

impl EstimatedBlock<'_> {
    /// The equalities between a relation and a set, each with one relation of the set. As many as
    /// possible are with the same relation, since its columns may be a key only together.
    fn pairs(&self, set: Set, at: usize) -> Vec<KeyPair> {
        let mut open: Vec<&Vec<(usize, Column)>> = self
            .block
            .classes
            .iter()
            .filter(|class| class.iter().any(|(of, _)| *of == at))
            .filter(|class| class.iter().any(|(of, _)| set & (1 << of) != 0))
            .collect();
        let mut pairs = vec![];
        while !open.is_empty() {
            let has = |class: &Vec<(usize, Column)>, other: usize| {
                class.iter().any(|(of, _)| *of == other)
            };
            let count = |other: usize| open.iter().filter(|class| has(class, other)).count();
            let inside = (0..self.estimates.len()).filter(|other| set & (1 << other) != 0);
            // The first of the relations that are in most classes.
            let best = inside.rev().max_by_key(|&other| count(other));
            let Some(other) = best.filter(|&other| count(other) > 0) else { break };
            let (with, without): (Vec<_>, Vec<_>) =
                open.into_iter().partition(|class| has(class, other));
            let member = |class: &[(usize, Column)], of: usize| {
                let column = class.iter().find(|(at, _)| *at == of).map(|(_, column)| column)?;
                let place = self.block.relations[of].schema().maybe_index_of_column(column)?;
                self.estimates[of].columns.get(place).copied()
            };
            pairs.extend(with.into_iter().filter_map(|class| {
                let columns = [member(class, other)?, member(class, at)?];
                Some(KeyPair { of: [other, at], columns })
            }));
            open = without;
        }
        pairs
    }

    /// Rows of the largest relation of a set.
    fn largest(&self, set: Set) -> f64 {
        let each = self.estimates.iter().enumerate();
        each.filter(|(at, _)| set & (1 << at) != 0).map(|(_, of)| of.rows).fold(1.0, f64::max)
    }

    /// The share of pairs for which the conditions beside classes hold, of the conditions that can
    /// be evaluated once a relation is joined to a set.
    fn share(&self, set: Set, at: usize) -> f64 {
        let all = set | 1 << at;
        let decided = self
            .block
            .conditions
            .iter()
            .filter(|(of, _)| *of & !all == 0 && *of & (1 << at) != 0 && of.count_ones() > 1);
        let lookup = |column: &Column| {
            let of = self.block.relation_of(column)?;
            let place = self.block.relations[of].schema().maybe_index_of_column(column)?;
            self.estimates[of].columns.get(place).copied()
        };
        let share = |condition: &Expr| match self.block.sides_of(condition, [set, 1 << at]) {
            Some((one, other)) => {
                let columns = [(one, set), (other, 1 << at)].map(|(side, within)| {
                    let unknown = || ColumnEstimate::unknown(self.largest(within));
                    column(&side).and_then(&lookup).unwrap_or_else(unknown)
                });
                1.0 / values_of_keys(&[KeyPair { of: [0, 1], columns }])
            }
            None => selectivity(condition, &lookup),
        };
        decided.map(|(_, condition)| share(condition)).product()
    }
}

impl Relations for EstimatedBlock<'_> {
    fn count(&self) -> usize {
        self.estimates.len()
    }

    fn beside(&self, set: Set) -> Set {
        let each = self.beside.iter().enumerate();
        each.filter(|(at, _)| set & (1 << at) != 0).fold(0, |all, (_, beside)| all | beside)
    }

    /// The relations are joined one by one, the largest first, so that a set has one estimate,
    /// independent of the order of its joins.
    fn rows(&self, set: Set) -> f64 {
        let mut left: Vec<usize> = (0..self.count()).filter(|at| set & (1 << at) != 0).collect();
        left.sort_by(|&a, &b| self.estimates[b].rows.total_cmp(&self.estimates[a].rows));
        let (mut joined, mut rows): (Set, f64) = (0, 1.0);
        while !left.is_empty() {
            let beside = self.beside(joined);
            let next = left.iter().position(|at| beside & (1 << at) != 0).unwrap_or(0);
            let at = left.remove(next);
            let pairs = self.pairs(joined, at);
            let values = if pairs.is_empty() { 1.0 } else { values_of_keys(&pairs) };
            rows *= self.estimates[at].rows / values * self.share(joined, at);
            rows = rows.max(f64::from(self.estimates[at].rows >= 1.0));
            joined |= 1 << at;
        }
        rows
    }

    fn width(&self, set: Set) -> f64 {
        let each = self.estimates.iter().enumerate();
        each.filter(|(at, _)| set & (1 << at) != 0).map(|(_, of)| of.width).sum()
    }

    fn workers(&self) -> u32 {
        self.workers
    }
}
