//! Nodes over tables that end which our operators do not support: each worker runs them in
//! DataFusion, over the rows of the keys that are assigned to it.
//!
//! A refused node becomes an operator of its own if its result is the union of the results of
//! parts of its rows:
//!
//! | node | rows |
//! |---|---|
//! | `OVER (PARTITION BY k …)` | are partitioned by the columns that all `PARTITION BY` have |
//! | aggregates that are not ours, by key | are partitioned by the columns of `GROUP BY` |
//! | a join without an equality | stay, and the smaller side goes to every worker |
//! | a value of a subquery in an expression | stay, and the subquery's row goes to every worker |
//! | `UNNEST` | stay |
//! | each of these without a key | go to one worker, which alone runs the operator |
//!
//! Its output is distributed like that of any operator, so that the next operator is parallel
//! again. The rest of a plan is left to the [batch stage](crate::lower::batch).

mod partitions;
mod run;
mod shape;
mod spill;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use dataflow::job::{
    Distribution, Edge, Exchange, InputLabels, Labels, LocalInput, LocalOperator, OperatorKind,
    Reason, Statistics,
};
use dataflow::placement::Placements;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{Expr, ExprSchemable, Join, LogicalPlan, Projection, lit};

use self::run::WorkerPlan;
use self::shape::{RequiredDistribution, Shape, subqueries_of};
use crate::explain::shown;
use crate::expr::own::own;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::pipeline;
use crate::lower::relation::{LowerError, Relation, check_key};
use crate::lower::session;
use crate::lower::{HALVES, leaf_of};
use crate::text::refusal::Refusal;
use crate::text::settings::ExchangeChoice;
use crate::text::units::human;

/// Rows that a join without a condition may emit, unless it is written as CROSS JOIN. More would
/// take hours.
const PRODUCT_ROWS_MAX: u128 = 100_000_000_000;

/// An input of the operator while it is made.
struct Input {
    edges: Vec<Edge>,
    schema: SchemaRef,
    keys: Vec<usize>,
    required: RequiredDistribution,
    labels: InputLabels,
}

/// Whether a node with this refusal may be an operator of this kind.
pub(crate) fn takes(
    cx: &Context<'_>,
    job: &JobBuilder,
    plan: &LogicalPlan,
    refusal: &Refusal,
) -> bool {
    let of_this = match &refusal.site.node {
        None => true,
        Some(node) => {
            let subqueries = subqueries_of(plan).unwrap_or_default();
            subqueries.iter().any(|subquery| &**subquery == node)
        }
    };
    // A shared part that was lowered once refers to operators that are dropped with the node.
    cx.bounded && cx.lowering.emit.is_none() && !refusal.always && of_this && job.shared.is_empty()
}

/// The relation of a refused node, by an operator of this kind.
///
/// # Errors
/// The refusal where the node has no such form, and those of its inputs.
pub(crate) fn relation(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    plan: &LogicalPlan,
    refusal: Refusal,
) -> Result<Relation, LowerError> {
    let (Some(shape), Some(subqueries)) = (Shape::of(plan), subqueries_of(plan)) else {
        return Err(refusal.into());
    };
    let mut inputs = vec![];
    for (plan, required) in &shape.inputs {
        inputs.push(input(cx, job, plan, required.clone())?);
    }
    let emitted = Statistics::of(&job.operators, cx.lowering.workers.total());
    let rows = inputs.iter().map(|input| Statistics::along(&input.edges, &emitted));
    let rows: Vec<Statistics> = rows.collect();
    refuse_product(cx, plan, &rows)?;
    smaller_everywhere(&mut inputs, &rows);
    let is_one = |input: &Input| input.required == RequiredDistribution::One;
    let gathered = inputs.iter().any(is_one);
    let beside =
        if gathered { RequiredDistribution::One } else { RequiredDistribution::Everywhere };
    for plan in &subqueries {
        inputs.push(input(cx, job, plan, beside.clone())?);
    }
    let schema: SchemaRef = Arc::new(Schema::new(fields_of(plan)));
    let required = inputs.iter().map(|input| &input.required).collect::<Vec<_>>();
    let over = over_leaves(plan).and_then(|over| match (&over, &required[..]) {
        (LogicalPlan::Join(join), [_, RequiredDistribution::Everywhere, ..]) => swapped(join),
        _ => Ok(over),
    });
    let over = over.map_err(|error| cx.report(&error))?;
    let passed = shape.inputs.iter().map(|(input, _)| places(input, plan)).collect();
    let state = cx.lowering.engine.state();
    let made = WorkerPlan::new(shape.name, over, state, schema.clone(), passed);
    let mut made = made.map_err(|error| cx.report(&error))?;
    made.properties.splice(0..0, shape.properties);
    if gathered && cx.lowering.workers.total() > 1 {
        let most = human(cx.lowering.settings.job.state_bytes_max as u64);
        made.properties.push(("bound", format!("millstream.state_bytes of worker 0: {most}")));
    }
    let names: Vec<(String, String)> = plan
        .schema()
        .columns()
        .into_iter()
        .enumerate()
        .map(|(at, column)| (name(at), column.name))
        .collect();
    let columns = shown(&schema, &names);
    let operator = add(cx, job, inputs, made, columns);
    let exprs = schema.fields().iter().map(|field| own(field.name())).collect();
    let mut relation = Relation::of_operator(operator, schema, plan.schema().columns(), exprs)?;
    relation.names = names;
    Ok(relation)
}

fn name(at: usize) -> String {
    format!("column_{at}")
}

/// The columns of a node, under names that are all different.
fn fields_of(plan: &LogicalPlan) -> Vec<Field> {
    let fields = plan.schema().fields().iter().enumerate();
    fields.map(|(at, field)| Field::new(name(at), field.data_type().clone(), true)).collect()
}

/// By column of an input: the column of the node that has the same name, and the same values.
fn places(input: &LogicalPlan, plan: &LogicalPlan) -> Vec<Option<usize>> {
    // `a % 2 AS a` has the name of a column and other values, and so has a column of grouping sets.
    let plain = |expr: &Expr| match expr {
        Expr::Column(column) => Some(column.clone()),
        _ => None,
    };
    let emitted: Vec<Option<Column>> = match plan {
        LogicalPlan::Projection(projection) => projection.expr.iter().map(plain).collect(),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.iter().map(plain).collect(),
        // The columns that are unnested keep their names.
        LogicalPlan::Unnest(_) => vec![],
        _ => plan.schema().columns().into_iter().map(Some).collect(),
    };
    let place = |column| emitted.iter().position(|other| other.as_ref() == Some(&column));
    input.schema().columns().into_iter().map(place).collect()
}

/// The node over leaves in place of its inputs, and of its subqueries behind these.
fn over_leaves(plan: &LogicalPlan) -> DfResult<LogicalPlan> {
    let mut part = 0;
    let mut leaf = |input: &LogicalPlan| {
        part += 1;
        leaf_of(input, part - 1)
    };
    let over = plan.clone().map_children(|input| Ok(Transformed::yes(leaf(&input)?)))?;
    let over = over.data.map_expressions(|expr| {
        expr.transform_down(|expr| match expr {
            Expr::ScalarSubquery(mut asked) => {
                asked.subquery = Arc::new(leaf(&asked.subquery)?);
                Ok(Transformed::new(Expr::ScalarSubquery(asked), true, TreeNodeRecursion::Jump))
            }
            expr => Ok(Transformed::no(expr)),
        })
    })?;
    Ok(over.data)
}

/// A join with its sides swapped: DataFusion keeps the left one, and reads the right one as it
/// comes.
fn swapped(join: &Join) -> DfResult<LogicalPlan> {
    let columns = join.schema.columns().into_iter().map(Expr::Column).collect();
    let Join { left, right, on, filter, join_type, join_constraint, .. } = join.clone();
    let on = on.into_iter().map(|(l, r)| (r, l)).collect();
    let (nulls, null_aware) = (join.null_equality, join.null_aware);
    let (filter, kind) = (filter, join_type.swap());
    let swapped = Join::try_new(right, left, on, filter, kind, join_constraint, nulls, null_aware)?;
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(LogicalPlan::Join(swapped)))?))
}

/// Ends the relation of an input: its columns arrive, followed by its keys.
fn input(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    plan: &LogicalPlan,
    mut required: RequiredDistribution,
) -> Result<Input, LowerError> {
    let relation = pipeline::relation(cx, job, plan)?;
    let relation = session::materialized(cx, job, relation)?;
    let (mut outputs, mut fields) = (relation.exprs(), fields_of(plan));
    if fields.is_empty() {
        // Rows need a column to be counted by.
        outputs.push(lit(true));
        fields.push(Field::new(name(0), DataType::Boolean, true));
    }
    let mut keys = vec![];
    if let RequiredDistribution::Key(by) = &required {
        for key in relation.rewrite_all(by)? {
            // Rows with equal keys are on one worker also if only some of the keys are hashed.
            // A random value would be another one where it is computed again.
            let is_fixed = !key.column_refs().is_empty() && !key.is_volatile();
            if !is_fixed || check_key(&key, &relation.scan).is_err() {
                continue;
            }
            let known = outputs.iter().position(|output| *output == key);
            keys.push(known.unwrap_or(outputs.len()));
            if known.is_none() {
                let data_type = key.get_type(&relation.scan).map_err(|e| cx.report(&e))?;
                fields.push(Field::new(name(outputs.len()), data_type, true));
                outputs.push(key);
            }
        }
        if keys.is_empty() {
            required = RequiredDistribution::One;
        }
    }
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let edges = pipeline::end(cx, job, &relation, &outputs, schema.clone(), None)?;
    let names = |(at, column): (usize, Column)| (name(at), column.name);
    let names: Vec<_> = plan.schema().columns().into_iter().enumerate().map(names).collect();
    let labels = InputLabels::of_columns(&shown(&schema, &names));
    Ok(Input { edges, schema, keys, required, labels })
}

/// Chooses the input that goes to every worker: the smaller one, if sizes are known.
fn smaller_everywhere(inputs: &mut [Input], rows: &[Statistics]) {
    let ([left, right], [of_left, of_right]) = (inputs, rows) else { return };
    if left.required != RequiredDistribution::Smaller {
        return;
    }
    let bytes = [
        of_left.bytes(&left.schema).unwrap_or(u64::MAX),
        of_right.bytes(&right.schema).unwrap_or(u64::MAX),
    ];
    let (small, large) = if bytes[0] < bytes[1] { (left, right) } else { (right, left) };
    small.required = RequiredDistribution::Everywhere;
    large.required = RequiredDistribution::Stay;
    let least = bytes[0].min(bytes[1]);
    let most =
        if least == u64::MAX { String::new() } else { format!(": at most {}", human(least)) };
    let reason =
        format!("there is no equality to lead rows by, and this is the smaller side{most}");
    small.labels.reason = Some(Reason::Planner(reason));
}

/// Refuses a join without a condition that would emit more than [`PRODUCT_ROWS_MAX`] rows by the
/// estimates of its sides, unless it is written as CROSS JOIN.
fn refuse_product(
    cx: &Context<'_>,
    plan: &LogicalPlan,
    rows: &[Statistics],
) -> Result<(), LowerError> {
    let (
        LogicalPlan::Join(Join { left, right, filter: None, join_type: JoinType::Inner, .. }),
        [of_left, of_right],
    ) = (plan, rows)
    else {
        return Ok(());
    };
    let rows = |side: &LogicalPlan, of: &Statistics| {
        let estimate = cx.lowering.statistics.known_rows(side);
        let most = of.rows_max.map(|most| most as f64);
        Some(estimate.or(most)?.min(most.unwrap_or(f64::MAX)))
    };
    let product = rows(left, of_left).zip(rows(right, of_right));
    let product = product.map_or(0, |(left, right)| (left * right) as u128);
    if product <= PRODUCT_ROWS_MAX {
        return Ok(());
    }
    let message =
        format!("'{}' and '{}' are joined by no condition", name_of(left), name_of(right));
    let hint = format!("write CROSS JOIN; {} rows would come out", power(product));
    let refusal = Refusal::new(&["JOIN", "FROM"], message).hint(hint).always().at(plan);
    if cx.lowering.is_cross(&refusal) { Ok(()) } else { Err(refusal.into()) }
}

/// The name of a side of a join in the query.
fn name_of(side: &LogicalPlan) -> &str {
    match (side, side.inputs().as_slice()) {
        (LogicalPlan::SubqueryAlias(alias), _) => alias.alias.table(),
        (LogicalPlan::TableScan(scan), _) => scan.table_name.table(),
        (_, &[input]) => name_of(input),
        _ => "a join",
    }
}

/// A number to one digit, as `3·10¹¹`.
pub(crate) fn power(count: u128) -> String {
    let exponent = count.checked_ilog10().unwrap_or(0);
    let digits = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let raised = exponent.to_string();
    let raised = raised.bytes().map(|digit| digits[usize::from(digit - b'0')]);
    format!("{}·10{}", count / 10u128.pow(exponent), raised.collect::<String>())
}

/// Adds the operator.
fn add(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    inputs: Vec<Input>,
    plan: WorkerPlan,
    columns: Vec<String>,
) -> usize {
    let is_forward = match &inputs[..] {
        _ if cx.lowering.workers.total() == 1 => true,
        [one] if !one.keys.is_empty() => {
            let edges = std::slice::from_ref(&one.edges);
            Placements::of(&job.operators).fits(edges, &[&one.keys]).is_some()
        }
        _ => false,
    };
    let fixed = cx.lowering.settings.exchange;
    let exchange = match fixed {
        _ if is_forward => Exchange::Forward,
        ExchangeChoice::Fixed(Exchange::UpPar) => Exchange::UpPar,
        _ => Exchange::Shuffle,
    };
    let mut labels = Labels { columns, ..Labels::default() };
    let (mut edges, mut specs) = (vec![], vec![]);
    let several = cx.lowering.workers.total() > 1;
    for mut input in inputs {
        if several && exchange == Exchange::Forward {
            input.labels.reason = Some(Reason::together());
        } else if exchange == Exchange::UpPar {
            input.labels.reason = Some(Reason::Setting(HALVES.into()));
        }
        labels.inputs.push(input.labels);
        edges.push(input.edges);
        specs.push(LocalInput {
            schema: input.schema,
            keys: input.keys,
            distribution: match input.required {
                RequiredDistribution::Key(_) | RequiredDistribution::One => Distribution::Hash,
                RequiredDistribution::Everywhere => Distribution::Broadcast,
                RequiredDistribution::Smaller | RequiredDistribution::Stay => Distribution::Local,
            },
        });
    }
    let name = plan.name.to_owned();
    let spec = LocalOperator { inputs: specs, exchange, plan: Arc::new(plan) };
    job.add(name, edges, OperatorKind::Local(spec), labels)
}

#[cfg(test)]
mod tests {
    use super::power;

    #[test]
    fn great_numbers_are_powers_of_ten() {
        let numbers = [0, 7, 300_000_000_000, 1_500_000_000_001];
        assert_eq!(numbers.map(power), ["0·10⁰", "7·10⁰", "3·10¹¹", "1·10¹²"]);
    }
}
