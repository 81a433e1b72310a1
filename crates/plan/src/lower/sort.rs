//! `ORDER BY`, `LIMIT` and `OFFSET`.
//!
//! `ORDER BY` needs input that ends. A `LIMIT` without an order emits the rows that come first, and
//! then ends the sources that are read for it: so it also ends a query over rows that never end.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{Schema, SchemaRef};
use dataflow::job::{InputLabels, Labels, Limit, OperatorKind, RowRange, Sort};
use datafusion::logical_expr::SkipType;
use datafusion::logical_expr::{self as logical, Expr, ExprSchemable, FetchType, LogicalPlan};
use state::KeyRows;

use crate::explain::shown;
use crate::expr::own::own;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::pipeline::{self, RequestedColumns};
use crate::lower::relation::{Base, LowerError, Relation, refusal};
use crate::lower::session;
use crate::text::refusal::Refusal;

/// Rows in order.
pub(crate) fn sort(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    sort: &logical::Sort,
) -> Result<Relation, LowerError> {
    if !cx.bounded || cx.lowering.emit.is_some() {
        return Err(refusal(&LogicalPlan::Sort(sort.clone())).into());
    }
    let input = pipeline::relation(cx, job, &sort.input)?;
    let input = session::materialized(cx, job, input)?;
    let order = sort.expr.iter().map(|by| {
        let expr = input.rewrite(&by.expr)?;
        let of = expr.get_type(&input.scan).map_err(|e| Refusal::new(&[], e.to_string()))?;
        if !KeyRows::supports(&of) {
            let of = crate::text::types::sql_name(&of);
            return Err(Refusal::new(&["ORDER"], format!("values of {of} have no order")));
        }
        Ok((expr, SortOptions { descending: !by.asc, nulls_first: by.nulls_first }))
    });
    let order = order.collect::<Result<Vec<_>, Refusal>>()?;
    let range = RowRange { skip: 0, fetch: sort.fetch };
    emitted(cx, job, &input, &order, |schema, order| {
        OperatorKind::Sort(Sort { schema, order, range })
    })
}

/// Some rows: the first in the order of the input if it is sorted, else the rows that come first.
pub(crate) fn limit(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    limit: &logical::Limit,
) -> Result<Relation, LowerError> {
    let refused = || refusal(&LogicalPlan::Limit(limit.clone())).into();
    let skip = limit.get_skip_type().map_err(|error| cx.report(&error))?;
    let fetch = limit.get_fetch_type().map_err(|error| cx.report(&error))?;
    let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (skip, fetch) else {
        return Err(refused());
    };
    if cx.lowering.emit.is_some() {
        return Err(refused());
    }
    if !cx.bounded && fetch.is_none() {
        return Err(Refusal::new(&["OFFSET"], "OFFSET needs a LIMIT").into());
    }
    let range = RowRange { skip, fetch };
    let input = pipeline::relation(cx, job, &limit.input)?;
    if is_sorted(&limit.input)
        && let Base::Operators { from, .. } = &input.base
        && let [(at, None)] = from[..]
        && let Some(operator) = job.operators.get_mut(at)
        && let OperatorKind::Sort(sort) = &mut operator.kind
    {
        sort.range = sort.range.then(range);
        return Ok(input);
    }
    let input = session::materialized(cx, job, input)?;
    emitted(cx, job, &input, &[], |schema, _| OperatorKind::Limit(Limit { schema, range }))
}

/// Whether a plan emits one row for each row of a sort, in its order.
fn is_sorted(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Projection(projection) => is_sorted(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => is_sorted(&alias.input),
        _ => false,
    }
}

/// Adds an operator whose relation emits the columns of its input. `kind` makes it of the columns
/// that arrive and the places of `order` among them.
fn emitted(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    input: &Relation,
    order: &[(Expr, SortOptions)],
    kind: impl FnOnce(SchemaRef, Vec<(usize, SortOptions)>) -> OperatorKind,
) -> Result<Relation, LowerError> {
    let mut requested = RequestedColumns::default();
    let (columns, outputs): (Vec<_>, Vec<usize>) =
        input.outputs.iter().map(|(column, expr)| (column.clone(), requested.index(expr))).unzip();
    let by: Vec<usize> = order.iter().map(|(expr, _)| requested.index(expr)).collect();
    let finished = pipeline::finish(cx, job, input, &requested.0, None)?;
    let renamed = finished.schema.fields().iter().enumerate();
    let renamed = renamed.map(|(at, f)| f.as_ref().clone().with_name(session::row_name(at)));
    let schema = Arc::new(Schema::new(renamed.collect::<Vec<_>>()));
    let options = order.iter().map(|(_, options)| *options);
    let order = by.iter().map(|&at| finished.places[at]).zip(options).collect();
    let kind = kind(schema.clone(), order);
    let name = if by.is_empty() { "Limit" } else { "Sort" };
    let named = |at: usize| (session::row_name(at), finished.columns[at].clone());
    let names: Vec<_> = (0..schema.fields().len()).map(named).collect();
    let mut labels = Labels::of_input(InputLabels::of_columns(&finished.columns));
    labels.columns = shown(&schema, &names);
    let operator = job.add(name.to_owned(), vec![finished.edges], kind, labels);
    let place = |at: usize| own(&session::row_name(finished.places[at]));
    let outputs = outputs.into_iter().map(place).collect();
    let mut relation = Relation::of_operator(operator, schema, columns, outputs)?;
    relation.names = names;
    Ok(relation)
}
