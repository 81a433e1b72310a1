//! Aggregates in partial states that are merged, against DataFusion's aggregation of all rows at
//! once.

use arrow::array::{Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::compute::concat_batches;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::functions_aggregate::expr_fn::{
    approx_percentile_cont, array_agg, avg, bit_xor, bool_and, count, count_distinct, first_value,
    last_value, max, median, min, percentile_cont, stddev, sum, sum_distinct, var_pop,
};
use datafusion::logical_expr::{ExprFunctionExt, LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::{SessionContext, col};

use super::*;
use crate::lower::relation::Relation;
use crate::lower::step;

const GROUPS: usize = 3;

/// Rows of groups 0 and 2; of group 2, every value is null.
fn rows() -> RecordBatch {
    let group = |i: i64| if i % 3 == 0 { 2 } else { 0 };
    let some = |i: i64| (group(i) == 0 && i % 4 != 1).then_some(i);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("g", Arc::new(Int64Array::from_iter_values((0..40).map(group)))),
        ("a", Arc::new(Int64Array::from_iter((0..40).map(some)))),
        ("b", Arc::new(Int32Array::from_iter((0..40).map(|i| some(i).map(|v| v as i32 - 9))))),
        ("x", Arc::new(Float64Array::from_iter((0..40).map(|i| some(i).map(|v| v as f64 * 0.5))))),
        ("s", Arc::new(StringArray::from_iter((0..40).map(|i| some(i).map(|v| format!("s{v}")))))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
        .expect("rows")
}

fn plan(call: Expr) -> LogicalPlan {
    let table = MemTable::try_new(rows().schema(), vec![vec![rows()]]).expect("a table");
    let plan = LogicalPlanBuilder::scan("t", provider_as_source(Arc::new(table)), None)
        .and_then(|scan| scan.aggregate(vec![col("g")], vec![call]))
        .and_then(LogicalPlanBuilder::build)
        .expect("a plan");
    // Not optimized: that makes two aggregates of one over distinct values.
    let state = SessionContext::new().state();
    let analyzed = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {});
    analyzed.expect("an analyzed plan")
}

/// Two partial states, merged into a third, group by group.
fn merged(call: &AggregateCall) -> ArrayRef {
    let batch = rows();
    let fields: Vec<Field> =
        (0..call.args.len()).map(|at| Field::new(format!("{at}"), DataType::Null, true)).collect();
    let scope = DFSchema::try_from(batch.schema().as_ref().clone()).expect("a schema");
    let fields = fields
        .into_iter()
        .zip(&call.args)
        .map(|(field, arg)| field.with_data_type(arg.get_type(&scope).expect("a type")));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let step = step::compile(&batch.schema(), None, &call.args, schema, &[]).expect("compiles");
    let mut leader = call.aggregate.create();
    for part in [batch.slice(0, 13), batch.slice(13, 27)] {
        let args = step.as_ref().map(|s| s.apply(&part).expect("runs").batch);
        let args = args.map_or(vec![], |batch| batch.columns().to_vec());
        let ids: Vec<u32> = part
            .column(0)
            .as_primitive::<arrow::datatypes::Int64Type>()
            .values()
            .iter()
            .map(|&g| g as u32 / 2)
            .collect();
        let mut helper = call.aggregate.create();
        helper.update(&args, &Groups::each(&ids), 2).expect("updates");
        let state = helper.state(&Part::all(0..2, 2)).expect("a state");
        let types: Vec<DataType> = state.iter().map(|s| s.data_type().clone()).collect();
        assert_eq!(types, call.aggregate.state_types());
        leader.merge(&state, &Groups::each(&[0, 1]), 2).expect("merges");
        // States may be read at any time, and are still there.
        assert_eq!(leader.state(&Part::all(1..2, 2)).expect("a state").len(), state.len());
    }
    let values = |ids| leader.values(&Part::all(ids, 2)).expect("a result");
    let parts: Vec<ArrayRef> = [0..1, 1..2].map(values).into();
    let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
    arrow::compute::concat(&parts).expect("one column")
}

fn check(call: Expr, native: bool) {
    let plan = plan(call);
    let LogicalPlan::Aggregate(aggregate) = find(&plan) else { panic!("{plan}") };
    let scope = DFSchema::try_from(rows().schema().as_ref().clone()).expect("a schema");
    let call = aggregate.aggr_expr[0].clone().unalias();
    let unqualified = datafusion::common::tree_node::TreeNode::transform_up(call, |node| {
        use datafusion::common::tree_node::Transformed;
        Ok(match node {
            Expr::Column(c) => Transformed::yes(col(c.name)),
            other => Transformed::no(other),
        })
    });
    let lowered = lower(&unqualified.expect("columns").data, &scope).expect("an aggregate");
    let adapted = format!("{:?}", lowered.aggregate) == aggregate_name(&lowered);
    assert_ne!(adapted, native, "{}", lowered.text);
    let batches =
        crate::lower::batch::collect(&plan, &SessionContext::new().state()).expect("rows");
    let all = concat_batches(&batches[0].schema(), &batches).expect("one batch");
    let order = arrow::compute::sort_to_indices(all.column(0), None, None).expect("an order");
    let expected = arrow::compute::take(all.column(1), &order, None).expect("a column");
    let found = merged(&lowered);
    assert_eq!(found.data_type(), expected.data_type(), "{}", lowered.text);
    let shown = |array: &ArrayRef| {
        (0..2)
            .map(|i| arrow::util::display::array_value_to_string(array, i).expect("a value"))
            .collect::<Vec<_>>()
    };
    assert_eq!(shown(&found), shown(&expected), "{}", lowered.text);
}

/// The name of an adapter.
fn aggregate_name(call: &AggregateCall) -> String {
    call.text.split('(').next().unwrap_or_default().to_string()
}

fn find(plan: &LogicalPlan) -> &LogicalPlan {
    match plan {
        LogicalPlan::Aggregate(_) => plan,
        other => find(other.inputs().first().expect("an aggregate below")),
    }
}

#[test]
fn kernels_give_what_datafusion_gives() {
    for call in [
        count(lit(1i64)),
        count(col("a")),
        count(col("s")),
        sum(col("a")),
        sum(col("b")),
        sum(col("x")),
        min(col("x")),
        max(col("b")),
        avg(col("b")),
        avg(col("x")),
        count(lit(1i64)).filter(col("a").gt(lit(9i64))).build().expect("a filter"),
        sum(col("b")).filter(col("a").gt(lit(9i64))).build().expect("a filter"),
    ] {
        check(call, true);
    }
}

fn by_itself() -> Vec<datafusion::logical_expr::SortExpr> {
    vec![col("a").sort(false, true)]
}

#[test]
fn adapted_functions_give_what_datafusion_gives() {
    for call in [
        stddev(col("x")),
        var_pop(col("b")),
        bit_xor(col("a")),
        bool_and(col("a").gt(lit(3i64))),
        min(col("s")),
        max(col("s")),
        max(col("s")).filter(col("a").lt(lit(20i64))).build().expect("a filter"),
        median(col("x")),
        percentile_cont(col("x").sort(true, false), lit(0.3)),
        percentile_cont(col("b").sort(false, false), lit(0.3)),
        approx_percentile_cont(col("x").sort(true, false), lit(0.9), None),
        approx_percentile_cont(col("a").sort(false, false), lit(0.9), Some(lit(50i64))),
        count_distinct(col("s")),
        count_distinct(col("a")),
        sum_distinct(col("b")),
        count(col("s")).filter(col("a").lt(lit(20i64))).distinct().build().expect("a filter"),
        array_agg(col("a")).order_by(vec![col("x").sort(false, false)]).build().expect("ordered"),
        array_agg(col("a")).order_by(by_itself()).distinct().build().expect("ordered"),
        first_value(col("s"), vec![col("a").sort(true, false)]),
        last_value(col("s"), vec![col("a").sort(true, true)]),
    ] {
        check(call, false);
    }
}

#[test]
fn groups_without_rows_of_their_own_are_there() {
    let plan = plan(stddev(col("x")));
    let LogicalPlan::Aggregate(aggregate) = find(&plan) else { panic!("{plan}") };
    let scope = DFSchema::try_from(rows().schema().as_ref().clone()).expect("a schema");
    let call = lower(&aggregate.aggr_expr[0].clone().unalias(), &aggregate_scope(&scope));
    let call = call.expect("an aggregate");
    let mut accumulator = call.aggregate.create();
    let nothing = call.aggregate.create().values(&Part::all(0..1, 1)).expect("a result");
    assert_eq!((nothing.len(), nothing.null_count()), (1, 1), "of no rows it is NULL");
    let one: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    accumulator.update(&[one], &Groups::each(&[0]), 1).expect("updates");
    let mut valid = |total: usize| {
        let values = accumulator.values(&Part::all(0..total, total)).expect("a result");
        accumulator.clear(total);
        (values.len(), values.null_count())
    };
    assert_eq!(valid(GROUPS), (GROUPS, GROUPS), "the deviation of one value is NULL");
    assert_eq!(valid(0), (0, 0), "it starts again from nothing");
}

fn aggregate_scope(scope: &DFSchema) -> DFSchema {
    DFSchema::try_from_qualified_schema("t", scope.as_arrow()).expect("a schema")
}

#[test]
fn a_table_of_another_kind_does_not_stream() {
    let plan = plan(count(lit(1i64)));
    let mut refused = None;
    let _ = plan.apply(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            refused = Relation::scan(scan).err();
        }
        Ok(TreeNodeRecursion::Continue)
    });
    assert!(refused.is_some_and(|refusal| refusal.reason.contains("no table")));
}
