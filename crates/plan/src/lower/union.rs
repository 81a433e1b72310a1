//! `UNION ALL`: the rows of several relations, in any order.
//!
//! Where each part has its event time in the same column, that is the time of all: its watermark is
//! the least of theirs. Nothing is read before somebody asks for the rows, and says whether with
//! their time: a row without event time is bad only for those who ask for it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Column, DFSchema};
use datafusion::logical_expr::{self as logical, Expr, lit};

use crate::expr::own::own;
use crate::logical::windows::{Bound, WindowCall};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::pipeline;
use crate::lower::relation::{Base, Bounds, Feeds, LowerError, Relation};
use crate::lower::session;
use crate::lower::step::column_index;
use crate::lower::window_bounds::{bound_of, grid_of};
use crate::text::refusal::Refusal;

/// The rows of all inputs.
pub(crate) fn union(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    union: &logical::Union,
) -> Result<Relation, LowerError> {
    let fields = union.schema.as_arrow().fields().iter().enumerate();
    let named = fields.map(|(at, field)| field.as_ref().clone().with_name(format!("c{at}")));
    let mut named: Vec<Field> = named.collect();
    // Rows need a column to be counted by.
    let counted = named.is_empty().then(|| Field::new("c0", DataType::Boolean, false));
    named.extend(counted.clone());
    let schema: SchemaRef = Arc::new(Schema::new(named));
    let mut parts = vec![];
    for input in &union.inputs {
        let relation = pipeline::relation(cx, job, input)?;
        let mut relation = session::materialized(cx, job, relation)?;
        let column = counted.iter().map(|field| Column::new_unqualified(field.name()));
        relation.outputs.extend(column.map(|column| (column, lit(true))));
        parts.push(relation);
    }
    let column = |at: usize| own(schema.field(at).name());
    let all = |of: &dyn Fn(&Relation, &Expr) -> bool| {
        let everywhere = |at: &usize| parts.iter().all(|part| of(part, &part.outputs[*at].1));
        (0..schema.fields().len()).find(everywhere)
    };
    let mut times = Vec::from_iter(all(&|part, expr| part.times.contains(expr)).map(column));
    let window = window_of(&parts, &schema, &|bound| {
        all(&|part, expr| bound_of(part, expr) == Some(bound) && tells_bound(part, expr))
    });
    times.extend(window.iter().map(|window| window.time.clone()));
    let scan = DFSchema::try_from(schema.as_ref().clone())
        .map_err(|error| Refusal::new(&[], error.to_string()))?;
    let columns = schema.fields().iter().map(|field| own(field.name()));
    let names = schema.fields().iter().map(|field| field.name().clone());
    let names = names.zip(union.schema.columns().into_iter().map(|column| column.name));
    Ok(Relation {
        scan,
        filters: vec![],
        outputs: union.schema.columns().into_iter().zip(columns).collect(),
        times,
        window,
        multi_window: None,
        lateness_ns: None,
        rank: None,
        names: names.collect(),
        base: Base::United { parts, schema },
    })
}

/// The operators that emit the rows of all parts, as columns of `schema`, of which `time` is one.
pub(crate) fn united(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    parts: &[Relation],
    schema: &SchemaRef,
    time: Option<&Expr>,
) -> Result<Feeds, LowerError> {
    let mut from = vec![];
    // The time itself, or the end of a window that it follows from.
    let time_column = time.and_then(|time| time.column_refs().into_iter().next().cloned());
    let column =
        time_column.and_then(|time_column| column_index(&Expr::Column(time_column), schema));
    for part in parts {
        let exprs = part.exprs();
        let time = column
            .and_then(|column| exprs.get(column))
            .map(|time| WindowCall::of(time).map_or_else(|| time.clone(), |window| window.time));
        let edges = pipeline::end(cx, job, part, &exprs, schema.clone(), time.as_ref())?;
        from.extend(edges.into_iter().map(|edge| (edge.from, edge.step)));
    }
    Ok(from)
}

/// The window of rows of which each part has the same bounds in the same columns; `at` finds them.
fn window_of(
    parts: &[Relation],
    schema: &Schema,
    at: &dyn Fn(Bound) -> Option<usize>,
) -> Option<Bounds> {
    let end = at(Bound::End)?;
    let column = |at: usize| own(schema.field(at).name());
    let mut grids = parts.iter().map(|part| grid_of(part, &part.outputs[end].1));
    let first = grids.next().flatten();
    let grid = first.filter(|_| grids.all(|grid| grid == first));
    let others = [at(Bound::Start).map(column), at(Bound::Time).map(column)];
    Bounds::ending(column(end), schema.field(end).data_type(), others, grid)
}

/// Whether the watermarks of rows speak of the window of which an expression is a bound.
fn tells_bound(part: &Relation, expr: &Expr) -> bool {
    match (WindowCall::of(expr), &part.window) {
        (Some(call), _) => part.tells(&call.time),
        (None, Some(window)) => part.tells(&window.time),
        (None, None) => false,
    }
}
