//! The laws of S10 for every aggregate function that SQL accepts.
//!
//! Rows are split into parts at random, of which some are empty; each part is a partial state, as a
//! worker makes it, and goes through Arrow's messages as between workers. States are then merged in
//! pairs, in random order and association, until one is left, whose results must be those of a
//! single pass over all rows, and of DataFusion over them. So merging is commutative and
//! associative, and empty state is neutral. The functions are those of the engine's own registry:
//! a new one fails here until it is listed, with what may differ and in the page on SQL.

mod nothing;

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{
    BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch, RecordBatchOptions,
    StringArray, TimestampMillisecondArray, UInt32Array,
};
use arrow::compute::{concat, sort_to_indices, take};
use arrow::datatypes::{Float64Type, Int64Type};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow::util::display::array_value_to_string;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{SessionContext, col};

use super::*;
use crate::logical::engine::Engine;
use crate::lower::step;

const GROUPS: i64 = 4;
/// Streams of each call.
const CASES: u64 = 12;

/// The tolerance of a result.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Like {
    /// Nothing.
    Same,
    /// The rounding of floats, relative to the greatest value.
    Rounded,
    /// It lies, by rank among the values of the group, within this part of all of them from the
    /// quantile that is asked.
    Rank(f64, f64),
    /// The order in which the values of a group come.
    Bag,
    /// It is any value of the group.
    Member,
}

/// How a function may be asked.
struct Law {
    name: &'static str,
    like: Like,
    calls: &'static [&'static str],
    /// Whether it takes DISTINCT.
    distinct: bool,
}

const fn law(name: &'static str, like: Like, calls: &'static [&'static str]) -> Law {
    Law { name, like, calls, distinct: false }
}

const fn with_distinct(name: &'static str, like: Like, calls: &'static [&'static str]) -> Law {
    Law { name, like, calls, distinct: true }
}

use Like::{Bag, Member, Rank, Rounded, Same};

const LAWS: &[Law] = &[
    law("any_value", Member, &["any_value(a)", "any_value(s)"]),
    law("approx_distinct", Same, &["approx_distinct(a)", "approx_distinct(s)"]),
    law("approx_median", Rank(0.5, 0.05), &["approx_median(y)"]),
    law(
        "approx_percentile_cont",
        Rank(0.9, 0.05),
        &[
            "approx_percentile_cont(0.9) WITHIN GROUP (ORDER BY y)",
            "approx_percentile_cont(y, 0.9)",
        ],
    ),
    law(
        "approx_percentile_cont_with_weight",
        Rank(0.2, 0.05),
        &["approx_percentile_cont_with_weight(1, 0.2) WITHIN GROUP (ORDER BY y)"],
    ),
    law("array_agg", Bag, &["array_agg(a)", "array_agg(x)", "array_agg(s)"]),
    law("array_agg", Same, &["array_agg(a ORDER BY o)", "array_agg(s ORDER BY o DESC)"]),
    law("array_agg", Same, &["array_agg(DISTINCT b ORDER BY b DESC NULLS LAST)"]),
    with_distinct("avg", Rounded, &["avg(a)", "avg(b)", "avg(x)"]),
    with_distinct("bit_and", Same, &["bit_and(a)", "bit_and(b)"]),
    with_distinct("bit_or", Same, &["bit_or(a)", "bit_or(b)"]),
    with_distinct("bit_xor", Same, &["bit_xor(a)", "bit_xor(b)"]),
    law("bool_and", Same, &["bool_and(p)"]),
    law("bool_or", Same, &["bool_or(p)"]),
    law("corr", Rounded, &["corr(y, z)"]),
    law("count", Same, &["count(*)"]),
    with_distinct("count", Same, &["count(a)", "count(b)", "count(x)", "count(s)", "count(p)"]),
    law("covar_pop", Rounded, &["covar_pop(y, z)"]),
    law("covar_samp", Rounded, &["covar_samp(y, z)"]),
    law("first_value", Member, &["first_value(a)", "first_value(s)"]),
    law(
        "first_value",
        Same,
        &[
            "first_value(a ORDER BY o)",
            "first_value(s ORDER BY o DESC)",
            "first_value(x ORDER BY b DESC NULLS LAST, o)",
        ],
    ),
    law("max_by", Same, &["max_by(a, o)", "max_by(s, o)"]),
    law("min_by", Same, &["min_by(x, o)", "min_by(s, -o)"]),
    law("last_value", Member, &["last_value(a)", "last_value(s)"]),
    law(
        "last_value",
        Same,
        &["last_value(a ORDER BY o)", "last_value(s ORDER BY b NULLS FIRST, o DESC)"],
    ),
    with_distinct("max", Same, &["max(a)", "max(b)", "max(x)", "max(s)", "max(ts)", "max(p)"]),
    law("median", Same, &["median(a)", "median(y)", "median(x)"]),
    with_distinct("min", Same, &["min(a)", "min(b)", "min(x)", "min(s)", "min(ts)", "min(p)"]),
    law(
        "percentile_cont",
        Same,
        &[
            "percentile_cont(0.3) WITHIN GROUP (ORDER BY y)",
            "percentile_cont(0.75) WITHIN GROUP (ORDER BY b DESC)",
        ],
    ),
    law("regr_avgx", Rounded, &["regr_avgx(y, z)"]),
    law("regr_avgy", Rounded, &["regr_avgy(y, z)"]),
    law("regr_count", Same, &["regr_count(y, z)"]),
    law("regr_intercept", Rounded, &["regr_intercept(y, z)"]),
    law("regr_r2", Rounded, &["regr_r2(y, z)"]),
    law("regr_slope", Rounded, &["regr_slope(y, z)"]),
    law("regr_sxx", Rounded, &["regr_sxx(y, z)"]),
    law("regr_sxy", Rounded, &["regr_sxy(y, z)"]),
    law("regr_syy", Rounded, &["regr_syy(y, z)"]),
    law("stddev", Rounded, &["stddev(y)", "stddev(b)"]),
    law("stddev_pop", Rounded, &["stddev_pop(y)", "stddev_pop(b)"]),
    law("string_agg", Bag, &["string_agg(s, ',')"]),
    law(
        "string_agg",
        Same,
        &["string_agg(s, ',' ORDER BY o)", "string_agg(s, '' ORDER BY o DESC)"],
    ),
    law("string_agg", Same, &["string_agg(DISTINCT s, ',' ORDER BY s)"]),
    with_distinct("sum", Same, &["sum(a)", "sum(b)"]),
    with_distinct("sum", Rounded, &["sum(x)"]),
    law("var", Rounded, &["var(y)", "var(b)"]),
    law("var_pop", Rounded, &["var_pop(y)", "var_pop(b)"]),
];

/// Functions that do not stream, each with a call.
const REFUSED: &[(&str, &str)] =
    &[("grouping", "grouping(g)"), ("nth_value", "nth_value(a, 2 ORDER BY o)")];

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// NULL, one of `rare`, or a small number of which there are many.
    fn value<T: Copy>(&mut self, rare: &[T], small: impl Fn(i64) -> T) -> Option<T> {
        match self.below(10) {
            0 | 1 => None,
            2 => Some(self.one_of(rare)),
            _ => Some(small(self.below(20) as i64 - 10)),
        }
    }
}

/// Random rows. The last group has no value but NULL; `o` is in a random order and tells all rows
/// apart; `x` has values that are no numbers and very large ones, `y` and `z` only numbers.
fn rows(random: &mut Random) -> RecordBatch {
    let count = random.below(120) as usize;
    let groups: Vec<i64> = (0..count).map(|_| random.below(GROUPS as u64) as i64).collect();
    let mut order: Vec<i64> = (0..count as i64).collect();
    (1..count).for_each(|at| order.swap(at, random.below(at as u64 + 1) as usize));
    let floats = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 1e300, -1e300];
    let some = |group: &i64| *group + 1 < GROUPS;
    let words = ["", "a", "é", "a longer text than fits inline", "b"];
    let mut a = vec![];
    let (mut b, mut x, mut y, mut z, mut s, mut p) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    for group in &groups {
        let some = some(group);
        a.push(random.value(&[i64::MIN, i64::MAX, i64::MAX - 1], |v| v).filter(|_| some));
        b.push(random.value(&[i32::MIN, i32::MAX], |v| v as i32).filter(|_| some));
        x.push(random.value(&floats, |v| v as f64 / 3.0).filter(|_| some));
        y.push(random.value(&[-0.0, 1e3, -1e3], |v| v as f64 / 3.0).filter(|_| some));
        z.push(random.value(&[-0.0, 1e3, -1e3], |v| v as f64 / 7.0).filter(|_| some));
        s.push(Some(random.one_of(&words)).filter(|_| some && random.below(5) > 0));
        p.push(Some(random.below(3) > 0).filter(|_| some && random.below(5) > 0));
    }
    let times = TimestampMillisecondArray::from_iter(a.iter().map(|v| v.map(|v| v / 1_000_000)));
    let columns: [(&str, ArrayRef); 10] = [
        ("g", Arc::new(Int64Array::from(groups))),
        ("o", Arc::new(Int64Array::from(order))),
        ("a", Arc::new(Int64Array::from(a))),
        ("b", Arc::new(Int32Array::from(b))),
        ("x", Arc::new(Float64Array::from(x))),
        ("y", Arc::new(Float64Array::from(y))),
        ("z", Arc::new(Float64Array::from(z))),
        ("s", Arc::new(StringArray::from(s))),
        ("p", Arc::new(BooleanArray::from(p))),
        ("ts", Arc::new(times)),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

/// The call as DataFusion understands it, over the columns of `batch`; and its own results over
/// them, by group.
struct Asked {
    call: Expr,
    plan: LogicalPlan,
    context: SessionContext,
}

fn asked(text: &str, batch: &RecordBatch) -> Result<Asked, String> {
    let context = SessionContext::new_with_state(Engine::new().state().clone());
    oracle::register(&context, "t", batch.clone());
    let sql = format!("SELECT g, {text} AS f FROM t GROUP BY g");
    let plan = oracle::plan(&context, &sql).map_err(|error| error.to_string())?;
    // Not optimized: that makes two aggregates of one over distinct values.
    let state = context.state();
    let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {});
    let plan = plan.map_err(|error| error.to_string())?;
    let mut found = None;
    plan.apply(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            found = aggregate.aggr_expr.first().cloned();
        }
        Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
    })
    .map_err(|error| error.to_string())?;
    let call = found.ok_or("no aggregate")?.unalias();
    let call = call.transform_up(|node| {
        Ok(match node {
            Expr::Column(column) => Transformed::yes(col(column.name)),
            other => Transformed::no(other),
        })
    });
    Ok(Asked { call: call.map_err(|error| error.to_string())?.data, plan, context })
}

fn lowered(call: &Expr, batch: &RecordBatch) -> Result<AggregateCall, String> {
    let scope = DFSchema::try_from(batch.schema().as_ref().clone()).expect("a schema");
    lower(call, &scope).map_err(|refusal| refusal.reason)
}

/// The arguments of a call, row by row.
fn arguments(call: &AggregateCall, batch: &RecordBatch) -> Vec<ArrayRef> {
    let scope = DFSchema::try_from(batch.schema().as_ref().clone()).expect("a schema");
    let field = |(at, arg): (usize, &Expr)| {
        Field::new(format!("{at}"), arg.get_type(&scope).expect("a type"), true)
    };
    let fields: Vec<Field> = call.args.iter().enumerate().map(field).collect();
    let schema = Arc::new(Schema::new(fields));
    match step::compile(&batch.schema(), None, &call.args, schema, &[]).expect("it compiles") {
        Some(step) => step.apply(batch).expect("it runs").batch.columns().to_vec(),
        None => batch.columns().to_vec(),
    }
}

/// A partial state as it travels: the groups in the order in which they were met, and columns.
#[derive(Clone)]
struct Partial {
    groups: Vec<i64>,
    states: Vec<ArrayRef>,
}

/// Dense ids of groups, as an index gives them.
fn ids(known: &mut Vec<i64>, groups: impl Iterator<Item = i64>) -> Vec<u32> {
    let id = |group: i64| {
        let at = known.iter().position(|&known| known == group).unwrap_or_else(|| {
            known.push(group);
            known.len() - 1
        });
        at as u32
    };
    groups.map(id).collect()
}

/// Adds rows, a few at a time.
fn add(
    accumulator: &mut dyn Accumulator,
    call: &AggregateCall,
    batch: &RecordBatch,
    known: &mut Vec<i64>,
    step: usize,
) {
    for at in (0..batch.num_rows()).step_by(step) {
        let some = batch.slice(at, step.min(batch.num_rows() - at));
        let groups = some.column(0).as_primitive::<Int64Type>().values().iter().copied();
        let ids = ids(known, groups);
        let args = arguments(call, &some);
        accumulator.update(&args, &Groups::each(&ids), known.len()).expect("it updates");
    }
}

/// The state of an accumulator, written and read as messages are.
fn travelled(
    accumulator: &mut dyn Accumulator,
    call: &AggregateCall,
    groups: Vec<i64>,
    cut: usize,
) -> Partial {
    let total = groups.len();
    let cut = cut.min(total);
    let types = call.aggregate.state_types();
    let fields =
        types.iter().enumerate().map(|(at, of)| Field::new(at.to_string(), of.clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let mut writer = StreamWriter::try_new(vec![], &schema).expect("a schema");
    for ids in [0..cut, cut..total] {
        let options = RecordBatchOptions::new().with_row_count(Some(ids.len()));
        let states = accumulator.state(&Part::all(ids, total)).expect("a state");
        let batch = RecordBatch::try_new_with_options(schema.clone(), states, &options);
        writer.write(&batch.expect("states of the declared types")).expect("it is written");
    }
    writer.finish().expect("it ends");
    let written = writer.into_inner().expect("bytes");
    let read = StreamReader::try_new(&written[..], None).expect("a stream");
    let read: Vec<RecordBatch> = read.map(|batch| batch.expect("a batch")).collect();
    let column = |at: usize| {
        let parts: Vec<&dyn Array> = read.iter().map(|batch| batch.column(at).as_ref()).collect();
        concat(&parts).expect("one column")
    };
    Partial { groups, states: (0..types.len()).map(column).collect() }
}

/// Merges states into a fresh accumulator.
fn merged(call: &AggregateCall, parts: &[&Partial]) -> (Box<dyn Accumulator>, Vec<i64>) {
    let mut accumulator = call.aggregate.create();
    let mut known = vec![];
    for part in parts {
        let ids = ids(&mut known, part.groups.iter().copied());
        let groups = Groups::each(&ids);
        accumulator.merge(&part.states, &groups, known.len()).expect("it merges");
    }
    (accumulator, known)
}

/// The results of an accumulator, by group; why there are none.
fn results(accumulator: &mut dyn Accumulator, groups: &[i64]) -> Result<ArrayRef, String> {
    let values = accumulator.values(&Part::all(0..groups.len(), groups.len()));
    let values = values.map_err(|error| error.to_string())?;
    Ok(by_group(&(Arc::new(Int64Array::from(groups.to_vec())) as ArrayRef), &values))
}

fn by_group(groups: &ArrayRef, values: &ArrayRef) -> ArrayRef {
    let order: UInt32Array = sort_to_indices(groups, None, None).expect("an order");
    take(values, &order, None).expect("a column")
}

/// Rows in parts, of which some have none, as states that were merged in pairs until one is left.
fn in_parts(
    call: &AggregateCall,
    batch: &RecordBatch,
    random: &mut Random,
) -> Result<ArrayRef, String> {
    let parts = 1 + random.below(6) as usize;
    let mut of_part: Vec<Vec<u32>> = vec![vec![]; parts];
    for row in 0..batch.num_rows() as u32 {
        of_part[random.below(parts as u64) as usize].push(row);
    }
    let mut states: Vec<Partial> = vec![];
    for rows in of_part {
        let some = arrow::compute::take_record_batch(batch, &UInt32Array::from(rows));
        let (mut accumulator, mut known) = (call.aggregate.create(), vec![]);
        let step = 1 + random.below(40) as usize;
        add(accumulator.as_mut(), call, &some.expect("rows"), &mut known, step);
        let cut = random.below(GROUPS as u64 + 1) as usize;
        states.push(travelled(accumulator.as_mut(), call, known, cut));
    }
    states.push(Partial {
        groups: vec![],
        ..travelled(call.aggregate.create().as_mut(), call, vec![], 0)
    });
    while states.len() > 1 {
        let mut any = || states.swap_remove(random.below(states.len() as u64) as usize);
        let (one, other) = (any(), any());
        let (mut accumulator, known) = merged(call, &[&one, &other]);
        states.push(travelled(accumulator.as_mut(), call, known, 2));
    }
    let last = states.pop().expect("one is left");
    let (mut accumulator, known) = merged(call, &[&last]);
    results(accumulator.as_mut(), &known)
}

fn shown(column: &ArrayRef) -> Vec<String> {
    (0..column.len()).map(|at| array_value_to_string(column, at).expect("a value")).collect()
}

/// Whether two columns of results are alike.
fn alike(like: Like, a: &ArrayRef, b: &ArrayRef, slack: f64) -> bool {
    let sorted = |text: &str| {
        let mut values: Vec<String> =
            text.trim_matches(['[', ']']).split(',').map(|v| v.trim().to_owned()).collect();
        values.sort();
        values
    };
    match like {
        Same => shown(a) == shown(b),
        Bag => {
            let bags =
                |column: &ArrayRef| shown(column).iter().map(|v| sorted(v)).collect::<Vec<_>>();
            bags(a) == bags(b)
        }
        Rounded => match (a.as_primitive_opt::<Float64Type>(), b.as_primitive_opt::<Float64Type>())
        {
            (Some(a), Some(b)) => a.iter().zip(b.iter()).all(|(a, b)| match (a, b) {
                (Some(a), Some(b)) => close(a, b, slack),
                (a, b) => a == b,
            }),
            _ => shown(a) == shown(b),
        },
        // Judged by the rows.
        Rank(..) | Member => a.len() == b.len(),
    }
}

fn close(a: f64, b: f64, slack: f64) -> bool {
    let relative = 1e-9 * a.abs().max(b.abs()).max(1.0);
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= relative.max(slack)
}

/// The rounding error that sums may have: relative to the sum of the values of the first argument
/// without their signs, for greater ones may have taken each other's place.
fn slack_of(text: &str, batch: &RecordBatch) -> f64 {
    let argument = text.split(['(', ',', ')']).nth(1).unwrap_or_default();
    let argument = argument.trim_start_matches("DISTINCT ").trim();
    let Some(column) = batch.column_by_name(argument) else { return 0.0 };
    let Ok(floats) = cast(column, &DataType::Float64) else { return 0.0 };
    let finite = floats.as_primitive::<Float64Type>().iter().flatten().filter(|v| v.is_finite());
    finite.map(f64::abs).sum::<f64>() * 64.0 * f64::EPSILON
}

/// Whether each result is near enough to what is asked of the values of its group.
fn fits(like: Like, batch: &RecordBatch, wanted: &str, found: &ArrayRef) -> bool {
    let groups = batch.column(0).as_primitive::<Int64Type>().values();
    let all: BTreeSet<i64> = groups.iter().copied().collect();
    let filter = batch.column_by_name("p").expect("a column").as_boolean();
    let filtered = wanted.contains("FILTER");
    let counts = |row: &usize| !filtered || (filter.is_valid(*row) && filter.value(*row));
    all.iter().zip(0..).all(|(group, at)| {
        let rows = (0..groups.len()).filter(|&row| groups[row] == *group).filter(counts);
        match like {
            Member => {
                let column = if wanted.contains("(a") { "a" } else { "s" };
                let column = batch.column_by_name(column).expect("a column");
                let text = |row: usize| array_value_to_string(column, row).expect("a value");
                let found = array_value_to_string(found, at).expect("a value");
                let mut rows = rows.peekable();
                rows.peek().is_none() && found.is_empty() || rows.any(|row| text(row) == found)
            }
            Rank(quantile, bound) => {
                let column = batch.column_by_name("y").expect("a column");
                let column = column.as_primitive::<Float64Type>();
                let mut values: Vec<f64> =
                    rows.filter(|&row| column.is_valid(row)).map(|row| column.value(row)).collect();
                values.sort_by(f64::total_cmp);
                if values.is_empty() {
                    return found.is_null(at);
                }
                let value = found.as_primitive::<Float64Type>().value(at);
                let most = (values.len() - 1) as f64;
                let near = |quantile: f64| (quantile.clamp(0.0, 1.0) * most).round() as usize;
                // Between two values that are neighbours, anything is near both.
                let low = values[near(quantile - bound).saturating_sub(1)];
                let high = values[(near(quantile + bound) + 1).min(values.len() - 1)];
                (low - 1e-9..=high + 1e-9).contains(&value)
            }
            _ => true,
        }
    })
}

fn check(text: &str, like: Like) {
    for seed in 0..CASES {
        let mut random = Random(seed);
        let batch = rows(&mut random);
        let at = format!("seed {seed}: {text}");
        let slack = slack_of(text, &batch);
        let asked = asked(text, &batch).unwrap_or_else(|error| panic!("{at}: {error}"));
        let call = lowered(&asked.call, &batch).unwrap_or_else(|error| panic!("{at}: {error}"));
        let (mut single, mut known) = (call.aggregate.create(), vec![]);
        add(single.as_mut(), &call, &batch, &mut known, usize::MAX);
        let single = results(single.as_mut(), &known);
        let found = in_parts(&call, &batch, &mut random);
        let (single, found) = match (single, found) {
            (Ok(single), Ok(found)) => (single, found),
            // A result that does not fit its type does not fit however rows are split.
            (single, found) => {
                assert_eq!(single.err(), found.err(), "{at}");
                assert!(text.starts_with("sum("), "{at}: only sums have errors");
                continue;
            }
        };
        let report = format!("{at}\n{:?}\n{:?}", shown(&found), shown(&single));
        assert!(alike(like, &found, &single, slack), "{report}");
        assert!(fits(like, &batch, text, &found), "{report}");
        if text.starts_with("bit_xor(DISTINCT") {
            // DataFusion's forgets which values there were.
            assert_eq!(shown(&found), xor_of_distinct(&batch, text), "{report}");
            continue;
        }
        let batches =
            crate::lower::batch::collect(&asked.plan, &asked.context.state()).expect("rows");
        let Some(first) = batches.first() else { continue };
        let all = arrow::compute::concat_batches(&first.schema(), &batches).expect("one batch");
        let expected = by_group(all.column(0), all.column(1));
        assert_eq!(found.data_type(), expected.data_type(), "{at}");
        // Where there is NaN, DataFusion's extremes depend on the order of rows.
        let extreme = ["max", "min"].iter().any(|name| text.starts_with(name));
        let comparable = !extreme || !(text.contains("(x") || text.contains(" x"));
        let same = !comparable || alike(like, &found, &expected, slack);
        assert!(same, "{report}\n{:?} by DataFusion", shown(&expected));
    }
}

/// By group, its values put together once each.
fn xor_of_distinct(batch: &RecordBatch, text: &str) -> Vec<String> {
    let column = batch.column_by_name(if text.contains("T a)") { "a" } else { "b" });
    let column = cast(column.expect("a column"), &DataType::Int64).expect("integers");
    let column = column.as_primitive::<Int64Type>();
    let filter = batch.column_by_name("p").expect("a column").as_boolean();
    let mut groups: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
    for (row, &group) in batch.column(0).as_primitive::<Int64Type>().values().iter().enumerate() {
        let counts = !text.contains("FILTER") || (filter.is_valid(row) && filter.value(row));
        let values = groups.entry(group).or_default();
        values.extend((counts && column.is_valid(row)).then(|| column.value(row)));
    }
    let xor = |values: &BTreeSet<i64>| values.iter().copied().reduce(|a, b| a ^ b);
    let text = |xor: Option<i64>| xor.map_or(String::new(), |xor| xor.to_string());
    groups.values().map(|values| text(xor(values))).collect()
}

/// The ways in which a call is asked.
fn asked_ways(law: &Law, call: &str) -> Vec<String> {
    let mut ways = vec![call.to_owned(), format!("{call} FILTER (WHERE p)")];
    if law.distinct {
        let call = call.replacen('(', "(DISTINCT ", 1);
        ways.extend([call.clone(), format!("{call} FILTER (WHERE p)")]);
    }
    ways
}

#[test]
fn parts_that_are_merged_are_one_pass() {
    let ways = LAWS.iter().flat_map(|law| {
        let calls = law.calls.iter().flat_map(|call| asked_ways(law, call));
        calls.map(|way| (way, law.like))
    });
    // Reports all that break a law, not the first alone.
    let broken =
        |(way, like): &(String, Like)| std::panic::catch_unwind(|| check(way, *like)).is_err();
    let broken: Vec<_> = ways.filter(broken).collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_function_is_listed_here_and_in_the_page_on_sql() {
    let engine = Engine::new();
    let functions = engine.state().aggregate_functions().values();
    let known: BTreeSet<&str> = functions.map(|function| function.name()).collect();
    let refused = REFUSED.iter().map(|(name, _)| *name);
    let listed: BTreeSet<&str> = LAWS.iter().map(|law| law.name).chain(refused).collect();
    assert_eq!(known, listed);
    let page = include_str!("../../../../../docs/sql.md");
    for law in LAWS {
        let row = page
            .lines()
            .any(|line| line.starts_with("| `") && line.contains(&format!("`{}`", law.name)));
        assert!(row, "{} has a row in the table of aggregates", law.name);
    }
}

#[test]
fn what_does_not_stream_is_refused() {
    let batch = rows(&mut Random(1));
    for (name, call) in REFUSED {
        let call = asked(call, &batch);
        let refused = call.and_then(|asked| lowered(&asked.call, &batch).map(|_| asked));
        assert!(refused.is_err(), "{name}");
    }
}
