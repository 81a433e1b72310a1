//! Compiled steps against DataFusion's own evaluation of the same query.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, Float64Array, Int32Array, Int64Array, StringArray, TimestampMillisecondArray,
};
use arrow::compute::concat_batches;
use arrow::datatypes::Int64Type;
use datafusion::datasource::{MemTable, provider_as_source};
use datafusion::logical_expr::LogicalPlanBuilder;
use datafusion::prelude::{SessionContext, col, lit};

use super::*;

fn rows(n: i64) -> RecordBatch {
    let some = |i: i64| (i % 7 != 3).then_some(i);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("a", Arc::new(Int64Array::from_iter((0..n).map(some)))),
        ("b", Arc::new(Int32Array::from_iter((0..n).map(|i| some(i * 31 % 17).map(|v| v as i32))))),
        ("x", Arc::new(Float64Array::from_iter((0..n).map(|i| some(i).map(|v| v as f64 / 3.0))))),
        (
            "s",
            Arc::new(StringArray::from_iter(
                (0..n).map(|i| some(i).map(|v| format!("k{}", v % 5))),
            )),
        ),
        ("t", Arc::new(TimestampMillisecondArray::from_iter((0..n).map(|i| some(i * 250))))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true)))
        .expect("rows")
}

/// Runs a filter and outputs in DataFusion.
fn expected(batch: &RecordBatch, filter: Option<Expr>, outputs: Vec<Expr>) -> RecordBatch {
    let table = MemTable::try_new(batch.schema(), vec![vec![batch.clone()]]).expect("a table");
    let mut plan =
        LogicalPlanBuilder::scan("t", provider_as_source(Arc::new(table)), None).expect("a scan");
    if let Some(filter) = filter {
        plan = plan.filter(filter).expect("a filter");
    }
    let plan = plan.project(outputs).and_then(LogicalPlanBuilder::build).expect("a plan");
    let state = SessionContext::new().state();
    let plan = state.optimize(&plan).expect("an optimized plan");
    let batches = crate::lower::batch::collect(&plan, &state).expect("rows");
    let schema = Arc::new(plan.schema().as_arrow().clone());
    concat_batches(&schema, &batches).expect("one batch")
}

fn check(filter: Option<Expr>, outputs: Vec<Expr>) {
    for n in [0, 1, 100] {
        let batch = rows(n);
        let expected = expected(&batch, filter.clone(), outputs.clone());
        let plain: Vec<Expr> = outputs.iter().map(|e| e.clone().unalias()).collect();
        let step = compile(&batch.schema(), filter.as_ref(), &plain, expected.schema(), &[]);
        let step = step.expect("compiles").expect("does something");
        let stepped = step.apply(&batch).expect("runs");
        assert_eq!(stepped.batch, expected, "{:?}", step.describe());
        let kept = match stepped.origin {
            Origin::All => n as usize,
            Origin::Mask(mask) => {
                assert_eq!((mask.len(), mask.null_count()), (n as usize, 0));
                mask.true_count()
            }
            Origin::Taken(rows) => rows.len(),
        };
        assert_eq!(kept, expected.num_rows());
    }
}

#[test]
fn filters_and_projections_are_datafusions() {
    check(Some(col("a").gt(lit(50i64))), vec![col("s"), col("x")]);
    check(Some(col("a").gt(lit(-1i64))), vec![col("a"), col("b")]);
    check(Some(col("x").lt(lit(0.0)).or(col("s").is_null())), vec![col("s")]);
    check(None, vec![(col("a") + lit(1i64)).alias("n"), col("s")]);
    check(Some(col("s").eq(lit("k1"))), vec![lit(7i64).alias("seven")]);
    check(None, vec![col("b"), col("a")]);
}

#[test]
fn shared_parts_are_computed_to_the_same_values() {
    let part = || col("a") * lit(3i64) + lit(1i64);
    check(
        None,
        vec![part().alias("p"), (part() * part()).alias("q"), (part() - col("a")).alias("r")],
    );
    check(
        Some(part().gt(lit(100i64))),
        vec![(part() + part()).alias("p"), ((part() + part()) * lit(2i64)).alias("q")],
    );
}

#[test]
fn a_part_that_occurs_twice_is_taken_out_once() {
    let part = || col("a") * lit(3i64);
    let (parts, rewritten) = share(&[part() + part(), part() - lit(1i64)]).expect("shared");
    assert_eq!(parts.len(), 1);
    assert_eq!(rewritten[1].to_string(), "__shared_0 - Int64(1)");
}

#[test]
fn a_part_under_a_condition_is_not_computed_for_all_rows() {
    use datafusion::logical_expr::when;
    let risky = || lit(10i64) / (col("a") - lit(4i64));
    let guarded = || when(col("a").not_eq(lit(4i64)), risky()).end().expect("a case");
    let (parts, _) = share(&[guarded() + lit(1i64), guarded() + lit(2i64)]).expect("shared");
    assert_eq!(parts.len(), 1, "the whole CASE is shared, not what it protects: {parts:?}");
    check(None, vec![(guarded() + lit(1i64)).alias("p"), (guarded() + lit(2i64)).alias("q")]);
}

/// The rows where `a` is 4 divide by zero, so they take the slow form and the others do not.
#[test]
fn both_forms_of_a_guarded_expression_give_the_same_rows() {
    let risky = || (lit(10i64) / (col("a") - lit(4i64))).gt(lit(-3i64));
    let asked = col("a").not_eq(lit(4i64)).and(risky());
    let safe = rows(100);
    let without = arrow::compute::filter_record_batch(
        &safe,
        &arrow::compute::kernels::cmp::neq(safe.column(0), &Int64Array::new_scalar(4)).expect("a"),
    );
    let safe = without.expect("rows");
    let schema =
        Arc::new(Schema::new(vec![Field::new("q", arrow::datatypes::DataType::Boolean, true)]));
    for (filter, output) in [(Some(asked.clone()), lit(true)), (None, asked.clone())] {
        let step = || {
            let outputs = std::slice::from_ref(&output);
            let step = compile(&safe.schema(), filter.as_ref(), outputs, schema.clone(), &[]);
            step.expect("compiles").expect("a step")
        };
        let quick = step().apply(&safe).expect("rows").batch;
        let slow = step();
        slow.apply(&rows(100)).expect("no row divides by zero that is asked");
        assert_eq!(slow.apply(&safe).expect("rows").batch, quick);
    }
    check(Some(asked.clone()), vec![col("a")]);
    check(None, vec![asked.alias("q")]);
}

#[test]
fn a_step_that_changes_nothing_is_none() {
    let batch = rows(1);
    let all: Vec<Expr> = ["a", "b", "x", "s", "t"].map(col).to_vec();
    assert!(compile(&batch.schema(), None, &all, batch.schema(), &[]).expect("compiles").is_none());
    let renamed = Arc::new(batch.schema().project(&[0]).expect("one column"));
    assert!(compile(&batch.schema(), None, &all[..1], renamed, &[]).expect("compiles").is_some());
}

#[test]
fn a_failing_row_is_an_error_with_its_reason() {
    let batch = rows(10);
    let schema =
        Arc::new(Schema::new(vec![Field::new("q", arrow::datatypes::DataType::Int64, true)]));
    let risky = lit(10i64) / (col("a") - lit(4i64));
    let step =
        compile(&batch.schema(), None, &[risky], schema, &[]).expect("compiles").expect("a step");
    let error = step.apply(&batch).err().expect("a division by zero").to_string();
    assert!(error.contains("ivision by zero"), "{error}");
}

#[test]
fn division_by_a_constant_is_as_everywhere() {
    for by in [2i64, 7, 10, 3_600_000, -10, 1] {
        check(Some(col("a").gt(lit(5i64))), vec![(col("a") / lit(by)).alias("q"), col("s")]);
    }
}

#[test]
fn a_column_that_nobody_reads_has_the_right_length() {
    let batch = rows(100);
    let filter = col("a").gt(lit(50i64));
    let outputs = [col("s"), col("t"), col("a") + lit(1i64)];
    let types = [("s", "s"), ("t", "t"), ("n", "a")];
    let field = |(name, of): (&str, &str)| {
        let data_type = batch.schema().field_with_name(of).expect("a column").data_type().clone();
        Field::new(name, data_type, true)
    };
    let schema = Arc::new(Schema::new(types.map(field).to_vec()));
    let step = compile(&batch.schema(), Some(&filter), &outputs, schema, &[]).expect("compiles");
    let step = step.expect("a step");
    assert_eq!((step.passes_on(1), step.passes_on(2)), (Some(4), None));
    let whole = step.apply(&batch).expect("rows").batch;
    for unread in 0..3 {
        let part = step.apply_for(&batch, Some(unread)).expect("rows").batch;
        assert_eq!(part.num_rows(), whole.num_rows());
        for other in (0..3).filter(|&other| other != unread) {
            assert_eq!(part.column(other), whole.column(other), "without {unread}");
        }
    }
}

#[test]
fn what_a_result_is_made_of_is_told_where_one_loop_can_make_it() {
    let column = |by: i64| Arc::new(Int64Array::from_iter_values((0..100).map(|i| i * by)));
    let small: ArrayRef = Arc::new(Int32Array::from_iter_values(0..100));
    let columns: [(&str, ArrayRef); 3] = [("a", column(7)), ("v", column(3)), ("b", small)];
    let batch = RecordBatch::try_from_iter(columns).expect("rows");
    let step = |filter: Option<Expr>, outputs: &[Expr], batch: &RecordBatch| {
        let types = expected(batch, filter.clone(), outputs.to_vec()).schema();
        compile(&batch.schema(), filter.as_ref(), outputs, types, &[])
            .expect("compiles")
            .expect("a step")
    };
    let outputs = [col("a") / lit(10_i64), col("v"), col("b"), col("a") + lit(1_i64)];
    let filtered = step(Some(col("v").gt(lit(30_i64))), &outputs, &batch);
    let raw = filtered.raw(&batch, 0, None).expect("nothing fails").expect("a division");
    let KeyOf::Scaled(scale) = raw.by else { panic!("a division") };
    let passes = raw.passes.expect("a filter");
    let words = raw.key.as_primitive::<Int64Type>().values();
    let passes = |row: &usize| passes[row / 64] >> (row % 64) & 1 == 1;
    let keys = (0..100).filter(passes).map(|row| scale.of(words[row] as u64) as i64);
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
    assert_eq!(filtered.apply(&batch).expect("runs").batch.column(0), &keys);
    // With this the pass over the job refuses arguments behind a filter.
    assert!(filtered.fused(0, Some(1)).expect("the loop has the key").filtered);
    // A key of four bytes, one that is computed otherwise, NULL.
    for (key, arg) in [(2, None), (3, None)] {
        assert!(filtered.raw(&batch, key, arg).expect("nothing fails").is_none(), "{key}");
    }
    let plain = step(None, &outputs, &batch);
    assert!(plain.raw(&batch, 0, Some(1)).expect("nothing fails").is_some());
    let outputs = [col("a") / lit(10_i64)];
    let of_nulls = step(None, &outputs, &rows(100));
    assert!(of_nulls.raw(&rows(100), 0, None).expect("nothing fails").is_none());
}
