//! Joins that stream: of the rows of each window (S7).
//!
//! Both sides carry windows, and the join asks for equal `window_start` and `window_end` beside
//! other keys: then its state is bounded by the windows that are open. Other joins over input that
//! never ends would have to remember every row, and are refused.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::job::{Exchange, Keyed, KeyedInput, KeyedOperator, OperatorKind, Step};
use dataflow::keyed::{JoinKind, JoinSide, WindowJoin};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{self as logical, Expr};

use crate::interval::tick_ns;
use crate::relation::{Bounds, Refusal, Relation, Stop, check_key, own};
use crate::step;
use crate::tumble::{Bound, WindowCall};
use crate::weave::{Closed, Wanted, Weaver};

/// What both sides of a join must have equal.
struct Conditions {
    /// Left and right.
    keys: Vec<(Expr, Expr)>,
    /// The end of the window, left and right.
    ends: (Expr, Expr),
}

impl Weaver<'_> {
    /// A join.
    pub(crate) fn join(&mut self, join: &logical::Join) -> Result<Relation, Stop> {
        let kind = kind_of(join)?;
        let left = self.relation(&join.left)?;
        let right = self.relation(&join.right)?;
        let on = join.on.iter().map(|(l, r)| Ok((left.rewrite(l)?, right.rewrite(r)?)));
        let on = on.collect::<Result<Vec<_>, Refusal>>()?;
        let Conditions { keys, ends } = conditions(&left, &right, on)?;
        for (l, r) in &keys {
            check_key(l, &left.scan)?;
            check_key(r, &right.scan)?;
        }
        let (left_keys, right_keys): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        let (left_at, left_side) = self.side(&left, &left_keys, &ends.0)?;
        let (right_at, right_side) = self.side(&right, &right_keys, &ends.1)?;

        let both = both_of(&left_side.schema, &right_side.schema);
        let first = left_side.schema.fields().len();
        let schema: SchemaRef = match kind {
            JoinKind::LeftSemi | JoinKind::LeftAnti => part(&both, 0, first),
            JoinKind::RightSemi | JoinKind::RightAnti => part(&both, first, both.fields().len()),
            _ => both.clone(),
        };
        let left_columns = left_at.columns(&left, &both, 0);
        let right_columns = right_at.columns(&right, &both, first);
        let known: Vec<_> = left_columns.iter().chain(&right_columns).cloned().collect();
        let on = join.filter.as_ref().map(|filter| self.condition(filter, &known, &both));
        let on = on.transpose()?.flatten();
        let places = [(&left_side.schema, &left_at), (&right_side.schema, &right_at)];
        let inputs = places.map(|(schema, at)| at.input(schema)).to_vec();
        let sides = places.map(|(schema, at)| at.side(schema));
        let operator = WindowJoin { sides, kind, on, schema: schema.clone(), both };
        self.section.text("join", operator.describe());
        let exchange = match self.lowering.workers.total() {
            1 => Exchange::Forward,
            _ => Exchange::Shuffle,
        };
        self.section.text("exchange", format!("{exchange}: rows of equal keys meet"));
        let granularity = granularity(&ends.0, &left_side.schema, left_at.end);
        let spec = Keyed { inputs, exchange, granularity, operator: Arc::new(operator) };
        let edges = vec![left_side.edges, right_side.edges];
        let operator = self.add("join".into(), edges, OperatorKind::Keyed(spec));

        let outputs = match kind {
            JoinKind::LeftSemi | JoinKind::LeftAnti => left_columns.clone(),
            JoinKind::RightSemi | JoinKind::RightAnti => right_columns.clone(),
            _ => known.clone(),
        };
        let (columns, exprs): (Vec<Column>, Vec<Expr>) = outputs.into_iter().unzip();
        let mut relation = Relation::of_operator(operator, schema, columns, exprs)?;
        relation.names = names_of(&known);
        // Rows that are given out without a partner have no time on the other side.
        relation.window = match kind {
            JoinKind::Full => None,
            JoinKind::Right | JoinKind::RightSemi | JoinKind::RightAnti => {
                bounds_behind(&right, &right_columns)
            }
            _ => bounds_behind(&left, &left_columns),
        };
        relation.time = relation.window.as_ref().map(|window| window.time.clone());
        Ok(relation)
    }

    /// The condition of a join beside its keys, over the columns of both sides.
    fn condition(
        &self,
        filter: &Expr,
        known: &[(Column, Expr)],
        both: &SchemaRef,
    ) -> Result<Option<Arc<dyn Step>>, Stop> {
        let filter = over(filter, known).map_err(|e| self.report(&e))?;
        let all: Vec<Expr> = both.fields().iter().map(|field| own(field.name())).collect();
        step::compile(both, Some(&filter), &all, both.clone()).map_err(|e| self.report(&e))
    }

    /// Ends one side: its columns, keys and the end of its window arrive.
    fn side(
        &mut self,
        relation: &Relation,
        keys: &[Expr],
        end: &Expr,
    ) -> Result<(Places, Closed), Stop> {
        let time = match WindowCall::of(end) {
            Some(call) if !self.bounded && relation.time.as_ref() != Some(&call.time) => {
                return Err(self.lowering.no_watermark(relation, &call).into());
            }
            Some(call) => Some(call.time),
            None => relation.time.clone(),
        };
        let mut wanted = Wanted::default();
        let outputs: Vec<usize> =
            relation.outputs.iter().map(|(_, expr)| wanted.index(expr)).collect();
        let keys: Vec<usize> = keys.iter().map(|key| wanted.index(key)).collect();
        let end = wanted.index(end);
        let closed = self.close(relation, &wanted.0, time.as_ref())?;
        let place = |at: usize| closed.places[at];
        let places = Places {
            outputs: outputs.into_iter().map(place).collect(),
            keys: keys.into_iter().map(place).collect(),
            end: place(end),
        };
        Ok((places, closed))
    }
}

/// Where the columns of a side are among those that arrive.
struct Places {
    outputs: Vec<usize>,
    keys: Vec<usize>,
    end: usize,
}

impl Places {
    /// The columns of a side by what they are called among `both`, of which they begin at `first`.
    fn columns(&self, side: &Relation, both: &Schema, first: usize) -> Vec<(Column, Expr)> {
        let columns = side.outputs.iter().zip(&self.outputs);
        let named = |place: usize| own(both.field(first + place).name());
        columns.map(|((column, _), &place)| (column.clone(), named(place))).collect()
    }

    fn input(&self, schema: &SchemaRef) -> KeyedInput {
        // Without keys, the rows of one window meet.
        let keys = if self.keys.is_empty() { vec![self.end] } else { self.keys.clone() };
        KeyedInput { schema: schema.clone(), keys, time: Some(self.end), grace: 0 }
    }

    fn side(&self, schema: &SchemaRef) -> JoinSide {
        JoinSide { schema: schema.clone(), keys: self.keys.clone(), window_end: self.end }
    }
}

/// For EXPLAIN: what the columns of both sides are.
fn names_of(columns: &[(Column, Expr)]) -> Vec<(String, String)> {
    let named = |(column, expr): &(Column, Expr)| match expr {
        Expr::Column(own) => Some((own.name.clone(), column.name.clone())),
        _ => None,
    };
    columns.iter().filter_map(named).collect()
}

fn kind_of(join: &logical::Join) -> Result<JoinKind, Refusal> {
    if join.null_equality == NullEquality::NullEqualsNull {
        return Err(Refusal::new(&["INTERSECT", "EXCEPT"], "INTERSECT and EXCEPT do not stream"));
    }
    if join.null_aware {
        return Err(Refusal::new(&["IN"], "NOT IN does not stream").hint("write NOT EXISTS"));
    }
    Ok(match join.join_type {
        JoinType::Inner => JoinKind::Inner,
        JoinType::Left => JoinKind::Left,
        JoinType::Right => JoinKind::Right,
        JoinType::Full => JoinKind::Full,
        JoinType::LeftSemi => JoinKind::LeftSemi,
        JoinType::LeftAnti => JoinKind::LeftAnti,
        JoinType::RightSemi => JoinKind::RightSemi,
        JoinType::RightAnti => JoinKind::RightAnti,
        JoinType::LeftMark | JoinType::RightMark => {
            return Err(Refusal::new(&["IN", "EXISTS"], "a subquery in an expression"));
        }
    })
}

/// Finds the windows among the equalities of a join.
fn conditions(
    left: &Relation,
    right: &Relation,
    on: Vec<(Expr, Expr)>,
) -> Result<Conditions, Refusal> {
    let (mut keys, mut ends, mut start) = (vec![], None, false);
    for (l, r) in on {
        match (bound_of(left, &l), bound_of(right, &r)) {
            (Some(Bound::Start), Some(Bound::Start)) => start = true,
            (Some(Bound::End), Some(Bound::End)) => ends = Some((l, r)),
            (Some(Bound::Time), Some(Bound::Time)) => {}
            _ => keys.push((l, r)),
        }
    }
    match ends {
        Some(ends) if start => Ok(Conditions { keys, ends }),
        _ => {
            Err(Refusal::new(&["JOIN", "IN", "EXISTS"], "a join would have to remember every row")
                .hint(
                    "join windows: … ON l.window_start = r.window_start AND \
                 l.window_end = r.window_end AND …",
                ))
        }
    }
}

/// Which bound of its window an expression of a relation is.
fn bound_of(relation: &Relation, expr: &Expr) -> Option<Bound> {
    if let Some(call) = WindowCall::of(expr) {
        return Some(call.bound);
    }
    let window = relation.window.as_ref()?;
    let bounds =
        [(&window.start, Bound::Start), (&window.end, Bound::End), (&window.time, Bound::Time)];
    bounds.into_iter().find(|(of, _)| *of == expr).map(|(_, bound)| bound)
}

/// The columns behind a join that tell the window, if all three are there.
fn bounds_behind(side: &Relation, columns: &[(Column, Expr)]) -> Option<Bounds> {
    let find = |bound: Bound| {
        let at = side.outputs.iter().position(|(_, e)| bound_of(side, e) == Some(bound))?;
        Some(columns[at].1.clone())
    };
    Some(Bounds { start: find(Bound::Start)?, end: find(Bound::End)?, time: find(Bound::Time)? })
}

/// Left and right columns, under names that are all different.
fn both_of(left: &Schema, right: &Schema) -> SchemaRef {
    let named = |side: &'static str| {
        move |(at, field): (usize, &Arc<Field>)| {
            Field::new(format!("{side}_{at}"), field.data_type().clone(), true)
        }
    };
    let left = left.fields().iter().enumerate().map(named("left"));
    let right = right.fields().iter().enumerate().map(named("right"));
    Arc::new(Schema::new(left.chain(right).collect::<Vec<_>>()))
}

fn part(schema: &Schema, from: usize, to: usize) -> SchemaRef {
    Arc::new(Schema::new(schema.fields()[from..to].to_vec()))
}

/// A condition over the columns of a join's inputs, written over what they are called here.
fn over(filter: &Expr, known: &[(Column, Expr)]) -> DfResult<Expr> {
    let replaced = filter.clone().transform_up(|node| {
        Ok(match node {
            Expr::Column(column) => match known.iter().find(|(known, _)| *known == column) {
                Some((_, expr)) => Transformed::yes(expr.clone()),
                None => Transformed::no(Expr::Column(column)),
            },
            other => Transformed::no(other),
        })
    })?;
    Ok(replaced.data)
}

/// How far apart the ends of windows are at least, in ticks.
fn granularity(end: &Expr, schema: &Schema, column: usize) -> i64 {
    let DataType::Timestamp(unit, _) = schema.field(column).data_type() else { return 1 };
    match WindowCall::of(end) {
        Some(call) if call.offset_ns == 0 => call.size_ns / tick_ns(*unit),
        _ => 1,
    }
}
