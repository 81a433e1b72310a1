//! Keys of work that DataFusion does, equal where those of our own operators are.
//!
//! DataFusion compares floats within keys by their bits: its two zeros are two groups. Keys are
//! therefore given to it in the one form that [`state::canonical`] makes: those of groupings,
//! joins, partitions and orders of the batch stage ([`with_equal_keys`]), and everywhere what is
//! DISTINCT within a function, what `CASE x WHEN …`, `IN` and functions such as `nullif` and
//! `array_position` compare, and arrays, maps and rows of floats ([`with_equal_values`]). Columns
//! without floats stay as they are. What only compares floats keeps its zeros, and has one NaN
//! ([`ordered`]).

use std::sync::{Arc, LazyLock};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::{GroupingSet, ScalarFunction, Sort};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    self as logical, Between, BinaryExpr, Case, ColumnarValue, Expr, ExprSchemable, LogicalPlan,
    Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    lit, when,
};

/// A value in place of all that equal it, as a function of the plan.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Equalized {
    form: Form,
    signature: Signature,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// `__key(x)`: one of all that are equal, its zeros and NaNs among them.
    Key,
    /// `__ordered(x)`: floats whose NaNs are one, above infinity. Arrow compares floats by their
    /// bits, and the NaN that processors make of `0.0 / 0.0` has a sign, which puts it below all
    /// numbers.
    Ordered,
}

static KEY: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| equalized(Form::Key));
static ORDERED: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| equalized(Form::Ordered));

fn equalized(form: Form) -> Arc<ScalarUDF> {
    let signature = Signature::any(1, Volatility::Immutable);
    Arc::new(ScalarUDF::from(Equalized { form, signature }))
}

impl ScalarUDFImpl for Equalized {
    fn name(&self) -> &str {
        match self.form {
            Form::Key => "__key",
            Form::Ordered => "__ordered",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> DfResult<FieldRef> {
        let field = args.arg_fields[0].as_ref().clone();
        Ok(field.with_name(self.name()).into())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let of = |column: &ArrayRef| match self.form {
            Form::Key => state::canonical(column),
            Form::Ordered => state::with_one_nan(column),
        };
        Ok(match &args.args[0] {
            ColumnarValue::Array(column) => ColumnarValue::Array(of(column)),
            ColumnarValue::Scalar(value) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&of(&value.to_array()?), 0)?)
            }
        })
    }
}

/// Whether a call gives its argument with the NaNs of floats as one.
pub(crate) fn is_ordered(call: &ScalarFunction) -> bool {
    Arc::ptr_eq(&call.func, &ORDERED)
}

/// The sides of a comparison, with the NaNs of floats as one. Other expressions stay as they are.
///
/// # Errors
/// Those of types that are found again.
pub(crate) fn ordered(mut expr: Expr, scope: &DFSchema) -> DfResult<Transformed<Expr>> {
    let some = match &mut expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(*op) => {
            ordered_values([left.as_mut(), right.as_mut()], scope)?
        }
        Expr::Between(between) => {
            let Between { expr, low, high, .. } = between;
            ordered_values([expr.as_mut(), low.as_mut(), high.as_mut()], scope)?
        }
        _ => false,
    };
    Ok(if some { Transformed::yes(expr) } else { Transformed::no(expr) })
}

/// The same of all comparisons in an expression.
///
/// # Errors
/// As [`ordered`].
pub(crate) fn ordered_in(expr: Expr, scope: &DFSchema) -> DfResult<Expr> {
    Ok(expr.transform_up(|part| ordered(part, scope))?.data)
}

fn ordered_values<'a>(
    exprs: impl IntoIterator<Item = &'a mut Expr>,
    scope: &DFSchema,
) -> DfResult<bool> {
    let mut some = false;
    for expr in exprs {
        let known = match &*expr {
            Expr::ScalarFunction(call) => {
                Arc::ptr_eq(&call.func, &KEY) || Arc::ptr_eq(&call.func, &ORDERED)
            }
            Expr::Literal(value, _) => !is_nan(value),
            _ => false,
        };
        if !known && expr.get_type(scope)?.is_floating() {
            let call = ScalarFunction::new_udf(ORDERED.clone(), vec![std::mem::take(expr)]);
            *expr = Expr::ScalarFunction(call);
            some = true;
        }
    }
    Ok(some)
}

fn is_nan(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float16(Some(value)) => value.is_nan(),
        ScalarValue::Float32(Some(value)) => value.is_nan(),
        ScalarValue::Float64(Some(value)) => value.is_nan(),
        _ => false,
    }
}

/// An expression as a key, if it has floats.
fn key(expr: Expr, scope: &DFSchema) -> DfResult<Transformed<Expr>> {
    let known = matches!(&expr, Expr::ScalarFunction(call) if Arc::ptr_eq(&call.func, &KEY));
    if known || !state::has_floats(&expr.get_type(scope)?) {
        return Ok(Transformed::no(expr));
    }
    let key = ScalarFunction::new_udf(KEY.clone(), vec![expr]);
    Ok(Transformed::yes(Expr::ScalarFunction(key)))
}

/// Makes keys of expressions; says whether there was any with floats.
fn keys(exprs: &mut [Expr], scope: &DFSchema) -> DfResult<bool> {
    let mut some = false;
    for expr in exprs {
        let made = key(std::mem::take(expr), scope)?;
        some |= made.transformed;
        *expr = made.data;
    }
    Ok(some)
}

/// The same of what rows are ordered by.
fn order(sorts: &mut [Sort], scope: &DFSchema) -> DfResult<bool> {
    let mut some = false;
    for sort in sorts {
        some |= keys(std::slice::from_mut(&mut sort.expr), scope)?;
    }
    Ok(some)
}

/// A plan whose values are compared within functions as keys are: those that are DISTINCT, and
/// those of `CASE x WHEN …`.
///
/// # Errors
/// Those of types that are found again.
pub(crate) fn with_equal_values(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let made = plan.transform_up_with_subqueries(|node| {
        let scope = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        let made = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let made = expr.transform_up(|part| equal_within(part, &scope))?;
            Ok(made.update_data(|expr| name.restore(expr)))
        })?;
        if made.transformed { made.map_data(LogicalPlan::recompute_schema) } else { Ok(made) }
    })?;
    Ok(made.data)
}

fn equal_within(mut part: Expr, scope: &DFSchema) -> DfResult<Transformed<Expr>> {
    if let Expr::ScalarFunction(call) = &part
        && call.func.name() == "nullif"
    {
        let made = nullif(call.clone(), scope)?;
        return Ok(made.map_or_else(|| Transformed::no(part), Transformed::yes));
    }
    let some = match &mut part {
        // The least of distinct values is the least of all.
        Expr::AggregateFunction(call)
            if call.params.distinct && !matches!(call.func.name(), "min" | "max") =>
        {
            let args = keys(&mut call.params.args, scope)?;
            // The order key of distinct values is one of them.
            if args {
                order(&mut call.params.order_by, scope)?;
            }
            args
        }
        Expr::AggregateFunction(call) => {
            ordered_values(call.params.order_by.iter_mut().map(|sort| &mut sort.expr), scope)?
        }
        Expr::WindowFunction(call) if call.params.distinct => keys(&mut call.params.args, scope)?,
        Expr::InList(list) => {
            let mut some = keys(std::slice::from_mut(list.expr.as_mut()), scope)?;
            some |= keys(&mut list.list, scope)?;
            some
        }
        Expr::ScalarFunction(call) if matches!(call.func.name(), "greatest" | "least") => {
            ordered_values(&mut call.args, scope)?
        }
        // DataFusion compares the two zeros as numbers, but not within what has parts. What has no
        // columns is computed by the optimizer, before other comparisons are written anew.
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(*op) => {
            let constant = !left.any_column_refs() && !right.any_column_refs();
            let mut some = constant && ordered_values([left.as_mut(), right.as_mut()], scope)?;
            for side in [left, right] {
                if side.get_type(scope)?.is_nested() {
                    some |= keys(std::slice::from_mut(side.as_mut()), scope)?;
                }
            }
            some
        }
        Expr::ScalarFunction(call) if COMPARING.contains(&call.func.name()) => {
            keys(&mut call.args, scope)?
        }
        Expr::Case(Case { expr: Some(of), when_then_expr, .. }) => {
            let mut some = keys(std::slice::from_mut(of.as_mut()), scope)?;
            for (when, _) in when_then_expr {
                some |= keys(std::slice::from_mut(when.as_mut()), scope)?;
            }
            some
        }
        _ => false,
    };
    Ok(if some { Transformed::yes(part) } else { Transformed::no(part) })
}

/// Whether an operator compares values.
pub(crate) fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Functions that look for what equals an element.
const COMPARING: &[&str] = &[
    "array_has",
    "array_has_all",
    "array_has_any",
    "array_position",
    "array_positions",
    "array_remove",
    "array_remove_all",
    "array_remove_n",
    "array_replace",
    "array_replace_all",
    "array_replace_n",
];

/// `nullif(a, b)` of floats: NULL, where both are one key. What is another value each time is
/// computed once, and gives out its key.
fn nullif(mut call: ScalarFunction, scope: &DFSchema) -> DfResult<Option<Expr>> {
    let given = call.args.first().cloned();
    if !keys(&mut call.args, scope)? {
        return Ok(None);
    }
    match (&call.args[..], given.filter(|given| !given.is_volatile())) {
        ([left, right], Some(given)) => {
            let null = ScalarValue::try_from(given.get_type(scope)?)?;
            when(left.clone().eq(right.clone()), lit(null)).otherwise(given).map(Some)
        }
        _ => Ok(Some(Expr::ScalarFunction(call))),
    }
}

/// An optimized plan for DataFusion, whose keys are equal where those of our operators are.
///
/// # Errors
/// Those of types that are found again.
pub(crate) fn with_equal_keys(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let made = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Aggregate(aggregate) => grouped(aggregate),
        LogicalPlan::Window(window) => partitioned(window),
        LogicalPlan::Join(mut join) => {
            let mut some = false;
            for (left, right) in &mut join.on {
                some |= keys(std::slice::from_mut(left), join.left.schema())?;
                some |= keys(std::slice::from_mut(right), join.right.schema())?;
            }
            let join = LogicalPlan::Join(join);
            Ok(if some { Transformed::yes(join) } else { Transformed::no(join) })
        }
        LogicalPlan::Sort(mut sort) => {
            let some = order(&mut sort.expr, sort.input.schema())?;
            let sort = LogicalPlan::Sort(sort);
            Ok(if some { Transformed::yes(sort) } else { Transformed::no(sort) })
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(made.data)
}

fn grouped(aggregate: logical::Aggregate) -> DfResult<Transformed<LogicalPlan>> {
    let scope = aggregate.input.schema();
    let mut group_expr = aggregate.group_expr.clone();
    let mut some = false;
    for group in &mut group_expr {
        match group {
            Expr::GroupingSet(GroupingSet::Rollup(by) | GroupingSet::Cube(by)) => {
                some |= named_keys(by, scope)?;
            }
            Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => {
                for by in sets {
                    some |= named_keys(by, scope)?;
                }
            }
            group => some |= named_keys(std::slice::from_mut(group), scope)?,
        }
    }
    if !some {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let logical::Aggregate { input, aggr_expr, schema, .. } = aggregate;
    let made = logical::Aggregate::try_new_with_schema(input, group_expr, aggr_expr, schema)?;
    Ok(Transformed::yes(LogicalPlan::Aggregate(made)))
}

/// Keys that are columns of the names that the expressions have.
fn named_keys(exprs: &mut [Expr], scope: &DFSchema) -> DfResult<bool> {
    let mut some = false;
    for expr in exprs {
        let name = match &*expr {
            Expr::Column(column) => column.name.clone(),
            other => other.schema_name().to_string(),
        };
        if keys(std::slice::from_mut(expr), scope)? {
            some = true;
            *expr = std::mem::take(expr).alias(name);
        }
    }
    Ok(some)
}

fn partitioned(window: logical::Window) -> DfResult<Transformed<LogicalPlan>> {
    let scope = window.input.schema();
    let mut some = false;
    let mut window_expr = window.window_expr.clone();
    for expr in &mut window_expr {
        let name = expr.schema_name().to_string();
        let mut inner = std::mem::take(expr).unalias();
        if let Expr::WindowFunction(call) = &mut inner {
            some |= keys(&mut call.params.partition_by, scope)?;
            some |= order(&mut call.params.order_by, scope)?;
        }
        *expr = inner.alias(name);
    }
    if !some {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }
    let logical::Window { input, schema, .. } = window;
    let made = logical::Window::try_new_with_schema(window_expr, input, schema)?;
    Ok(Transformed::yes(LogicalPlan::Window(made)))
}
