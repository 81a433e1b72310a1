//! The first rows of each window: `ROW_NUMBER() OVER (PARTITION BY window_start, window_end …)`.
//!
//! The partition names the window, so that rows are remembered until it ends. A filter on the
//! number behind it (`WHERE rn <= 3`) says how many rows of each key are worth remembering.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use dataflow::job::{Distribution, InputLabels, KeyedInput, KeyedOperator, Labels, OperatorKind};
use dataflow::keyed::Ranking;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{self as logical, Expr, Operator};

use crate::explain::shown;
use crate::expr::own::own;
use crate::logical::windows::{Bound, BoundColumn};
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join;
use crate::lower::join::names_of;
use crate::lower::pipeline;
use crate::lower::relation::{LowerError, Relation, check_key};
use crate::lower::window_bounds::{granularity, window_time};
use crate::text::refusal::Refusal;

/// The column that numbers rows, and the operator that does.
#[derive(Clone)]
pub(crate) struct Rank {
    column: Expr,
    operator: usize,
    ranking: Ranking,
}

/// A call of ROW_NUMBER.
pub(crate) struct RowNumberCall {
    keys: Vec<Expr>,
    /// The number of the window among those of the rows, and its end.
    window: usize,
    end: Expr,
    order: Vec<(Expr, SortOptions)>,
}

/// Rows numbered in their window.
pub(crate) fn ranked(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    input: Relation,
    window: &logical::Window,
    numbered: RowNumberCall,
) -> Result<Relation, LowerError> {
    let RowNumberCall { keys, window: of, end, order } = numbered;
    for key in &keys {
        check_key(key, &input.scan)?;
    }
    let by: Vec<Expr> = keys.iter().chain(order.iter().map(|(expr, _)| expr)).cloned().collect();
    let time = window_time(cx, &input, of)?;
    let (places, finished) = join::arriving(cx, job, &input, &by, end.clone(), time)?;
    let (partition, sorted) = places.keys.split_at(keys.len());
    let name = "__row_number";
    let fields = finished.schema.fields().iter().enumerate();
    let fields = fields.map(|(at, f)| f.as_ref().clone().with_name(format!("column_{at}")));
    let fields: Vec<Field> = fields.collect();
    let arriving = Arc::new(Schema::new(fields.clone()));
    let rank = Field::new(name, DataType::UInt64, false);
    let schema = Arc::new(Schema::new(fields.into_iter().chain([rank]).collect::<Vec<_>>()));
    let ranking = Ranking {
        input: finished.schema.clone(),
        keys: partition.to_vec(),
        window_end: places.at,
        order: sorted.iter().copied().zip(order.iter().map(|(_, options)| *options)).collect(),
        limit: None,
        schema: schema.clone(),
    };
    let led = if partition.is_empty() { vec![places.at] } else { partition.to_vec() };
    let input_of = KeyedInput {
        schema: finished.schema.clone(),
        keys: led,
        distribution: Distribution::Hash,
        time: Some(places.at),
        grace: 0,
    };
    let granularity = granularity(&end, &finished.schema, places.at);
    let columns = places.columns(&input, &arriving, 0);
    let mut names = names_of(&columns);
    names.push((name.to_string(), "row_number()".to_string()));
    let mut labels = Labels::of_input(InputLabels::of_columns(&finished.columns));
    labels.columns = shown(&schema, &names);
    let (edges, ranks) = (vec![finished.edges], Arc::new(ranking.clone()));
    let operator = pipeline::keyed(cx, job, edges, vec![input_of], granularity, ranks, labels)?;

    let attached = input.attached_behind(of, &columns, Some(arriving.field(places.at)));
    let all = window.schema.columns();
    let mut exprs: Vec<Expr> = columns.into_iter().map(|(_, expr)| expr).collect();
    exprs.push(own(name));
    let mut relation = Relation::of_operator(operator, schema, all, exprs)?;
    relation.names = names;
    relation.windows = input.windows;
    relation.attach(attached);
    relation.rank = Some(Rank { column: own(name), operator, ranking });
    Ok(relation)
}

/// Lets an operator that numbers rows forget those that the filters of its relation do not
/// want.
pub(crate) fn limit(job: &mut JobBuilder, relation: &Relation) {
    let Some(Rank { column, operator, ranking }) = &relation.rank else { return };
    let parts = relation.filters.iter().flat_map(split_conjunction);
    let Some(most) = parts.filter_map(|part| most(part, column)).min() else { return };
    let limited = Ranking { limit: Some(most), ..ranking.clone() };
    if let Some(operator) = job.operators.get_mut(*operator)
        && let OperatorKind::Keyed(spec) = &mut operator.kind
    {
        operator.name = limited.describe(&[]).name.to_owned();
        spec.operator = Arc::new(limited);
    }
}

const FORM: &str = "number the rows of a window: ROW_NUMBER() OVER (PARTITION BY window_start, \
                    window_end ORDER BY …)";

fn refused(reason: &str) -> Refusal {
    Refusal::new(&["OVER"], reason).hint(FORM)
}

/// How ROW_NUMBER is asked to number the rows of a window.
pub(crate) fn numbered(
    input: &Relation,
    function: &WindowFunction,
) -> Result<RowNumberCall, Refusal> {
    let params = &function.params;
    let bounds = params.partition_by.iter().map(|part| input.bound(part));
    let bounds: Vec<Option<BoundColumn>> = bounds.collect();
    let telling = bounds.iter().flatten().filter(|of| input.windows.tells(of));
    let window = telling.map(|of| of.window).max();
    let end = window.and_then(|window| Some((window, input.end_of(window)?)));
    let Some((window, end)) = end else {
        return Err(refused("ROW_NUMBER without a window needs all rows"));
    };
    // Windows that depend on rows may have the same end and another start.
    let is_told = |of: &BoundColumn| {
        let follows = of.bound != Bound::Start || input.windows.grid(window).is_some();
        of.window == window && of.is_total() && follows
    };
    let parts = input.rewrite_all(&params.partition_by)?.into_iter().zip(&bounds);
    let keys = parts.filter(|(_, of)| !of.as_ref().is_some_and(is_told));
    let keys = keys.map(|(part, _)| part).collect();
    if params.order_by.is_empty() {
        return Err(Refusal::new(&["OVER"], "ROW_NUMBER needs an order").hint(FORM));
    }
    let order = params.order_by.iter().map(|sort| {
        let options = SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first };
        Ok((input.rewrite(&sort.expr)?, options))
    });
    Ok(RowNumberCall { keys, window, end, order: order.collect::<Result<_, Refusal>>()? })
}

/// How great a number may be that passes a condition.
fn most(part: &Expr, number: &Expr) -> Option<usize> {
    let is_number = |expr: &Expr| match expr {
        Expr::Cast(cast) => &*cast.expr == number,
        other => other == number,
    };
    match part {
        Expr::BinaryExpr(binary) => {
            let (op, bound) = match (&*binary.left, &*binary.right) {
                (left, Expr::Literal(bound, _)) if is_number(left) => (binary.op, bound),
                (Expr::Literal(bound, _), right) if is_number(right) => (binary.op.swap()?, bound),
                _ => return None,
            };
            let bound = integer(bound)?;
            match op {
                Operator::LtEq | Operator::Eq => Some(bound),
                Operator::Lt => Some(bound.saturating_sub(1)),
                _ => None,
            }
        }
        Expr::Between(between) if !between.negated && is_number(&between.expr) => {
            match &*between.high {
                Expr::Literal(bound, _) => integer(bound),
                _ => None,
            }
        }
        _ => None,
    }
}

fn integer(value: &ScalarValue) -> Option<usize> {
    match value.cast_to(&DataType::UInt64).ok()? {
        ScalarValue::UInt64(Some(number)) => usize::try_from(number).ok(),
        _ => None,
    }
}
