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
use crate::logical::windows::{Bound, RowWindows, WindowCall};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::pipeline;
use crate::lower::relation::{Base, Feeds, LowerError, Relation};
use crate::lower::session;
use crate::lower::step::column_index;
use crate::lower::window_bounds::{AttachedWindow, last_of};
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
    let times = Vec::from_iter(all(&|part, expr| part.times.contains(expr)).map(column));
    let windows =
        RowWindows::united(union, &Vec::from_iter(parts.iter().map(|part| &part.windows)));
    let scan = DFSchema::try_from(schema.as_ref().clone())
        .map_err(|error| Refusal::new(&[], error.to_string()))?;
    let columns = schema.fields().iter().map(|field| own(field.name()));
    let names = schema.fields().iter().map(|field| field.name().clone());
    let names = names.zip(union.schema.columns().into_iter().map(|column| column.name));
    let attached = attached(union, &parts, &schema, &windows);
    let mut united = Relation {
        scan,
        filters: vec![],
        outputs: union.schema.columns().into_iter().zip(columns).collect(),
        times,
        windows,
        attached: None,
        multi_window: None,
        lateness_ns: None,
        rank: None,
        names: names.collect(),
        base: Base::United { parts, schema },
    };
    united.attach(attached);
    Ok(united)
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

/// The window of the rows of all parts, if watermarks speak of it in each.
fn attached(
    union: &logical::Union,
    parts: &[Relation],
    schema: &Schema,
    windows: &RowWindows,
) -> Option<AttachedWindow> {
    let columns = union.schema.columns();
    let telling = Bound::TELLING.into_iter().find_map(|bound| {
        let mut of = windows.columns(0).filter(|(_, of)| windows.tells(of));
        let (column, _) = of.find(|(_, of)| of.bound == bound)?;
        Some((bound, columns.iter().position(|known| known == column)?))
    });
    let (bound, at) = telling?;
    let tells = |part: &Relation| {
        let of = part.bound(&Expr::Column(part.outputs[at].0.clone()))?;
        let time = part.call_of(of.window).map(|call| call.time);
        let last = || part.attached.as_ref().map(|attached| attached.last.clone());
        Some(part.tells(&time.or_else(last)?))
    };
    let DataType::Timestamp(unit, _) = schema.field(at).data_type() else { return None };
    let is_told = parts.iter().all(|part| tells(part) == Some(true));
    let last = last_of(windows, 0, bound, &own(schema.field(at).name()), *unit);
    last.filter(|_| is_told).map(|last| AttachedWindow { window: 0, last })
}
