//! Casts that change values.
//!
//! DataFusion cuts the digits of a time towards 1970, so that a time before it moves forward, maybe
//! into the next window; here it moves back, as those after it do. And DataFusion's optimizer takes
//! a cast beside a constant away: `CAST(d AS INT) = 1` would be `d = 1`, which is false of 1.25. A
//! cast that changes values, or makes NULLs of them, stands where the optimizer does not see it.
//!
//! Arrow panics where the day or the text of a time in its zone lies beyond the calendar, and
//! writes `<invalid>`, or its error, for what has no text otherwise. Such a time is an error before
//! it is cast, and NULL in `TRY_CAST`.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast as cast_array;
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use dataflow::calendar::{checked, writable};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue, exec_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Cast, TryCast};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility, cast, try_cast,
};

/// `__cast(CAST(x AS t))`: the cast.
static PLAIN: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| function(Which::Plain));

/// `CAST(__calendar(x) AS t)`: an error where the value of `x` has no text.
static CALENDAR: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| function(Which::Calendar));

/// `TRY_CAST(__within_calendar(x) AS t)`: NULL there.
static WITHIN_CALENDAR: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| function(Which::WithinCalendar));

/// Functions that write times, or take them from their zone.
const IN_ZONES: [&str; 2] = ["array_to_string", "to_local_time"];

/// Functions that cut the digits of a time, and to which unit.
const CUTTING: [(&str, TimeUnit); 4] = [
    ("to_timestamp_micros", TimeUnit::Microsecond),
    ("to_timestamp_millis", TimeUnit::Millisecond),
    ("to_timestamp_seconds", TimeUnit::Second),
    ("to_unixtime", TimeUnit::Second),
];

/// Gives such casts the values that they have in SQL, and hides them from the optimizer.
pub(super) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let kept = plan.transform_up_with_subqueries(|node| {
        let scope = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let kept = expr.transform_up(|part| within(part, &scope))?;
            Ok(kept.update_data(|expr| name.restore(expr)))
        })
    });
    kept.map(|kept| kept.data)
}

/// As [`rewrite`], of an expression over columns of `scope`.
pub(crate) fn expression(expr: Expr, scope: &DFSchema) -> Result<Expr> {
    expr.transform_up(|part| within(part, scope)).map(|kept| kept.data)
}

/// The argument of a function that this rule has written.
pub(crate) fn of_function(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::ScalarFunction(call) if call.func.inner().is::<Function>() => call.args.first(),
        _ => None,
    }
}

fn within(part: Expr, scope: &DFSchema) -> Result<Transformed<Expr>> {
    match &part {
        Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => {
            let (from, to) = (expr.get_type(scope)?, field.data_type());
            if let DataType::Timestamp(unit, zone) = to
                && let Some(floor) = floor(&from, *unit)
            {
                let floored = floor.call(vec![expr.as_ref().clone()]);
                let same = matches!(&from, DataType::Timestamp(_, own) if own == zone);
                return Ok(Transformed::yes(if same {
                    floored
                } else {
                    cast(floored, to.clone())
                }));
            }
            if leaves_calendar(&from, to) && !is_checked(expr) {
                let Expr::TryCast(_) = part else {
                    let checked = CALENDAR.call(vec![expr.as_ref().clone()]);
                    return Ok(Transformed::yes(cast(checked, to.clone())));
                };
                let checked = WITHIN_CALENDAR.call(vec![expr.as_ref().clone()]);
                return Ok(Transformed::yes(try_cast(checked, to.clone())));
            }
            if changes(&from, to, matches!(part, Expr::TryCast(_))) {
                return Ok(Transformed::yes(PLAIN.call(vec![part])));
            }
        }
        Expr::ScalarFunction(call) if call.func.name() == PLAIN.name() => {
            // The rule has written it before.
            if let [Expr::ScalarFunction(inner)] = &call.args[..]
                && inner.func.name() == PLAIN.name()
            {
                return Ok(Transformed::yes(call.args[0].clone()));
            }
        }
        Expr::ScalarFunction(call) if call.func.name() == "date_trunc" => {
            if let [Expr::Literal(unit, _), time] = &call.args[..]
                && let Some(Some(unit)) = unit.try_as_str()
                && let Some(unit) = fraction(unit)
                && let of = time.get_type(scope)?
                && let Some(floor) = floor(&of, unit)
            {
                return Ok(Transformed::yes(cast(floor.call(vec![time.clone()]), of)));
            }
        }
        Expr::ScalarFunction(call) if IN_ZONES.contains(&call.func.name()) => {
            let mut some = false;
            let args = call.args.iter().map(|arg| {
                let is_time = holds(&arg.get_type(scope)?, DataType::is_temporal);
                if !is_time || is_checked(arg) {
                    return Ok(arg.clone());
                }
                some = true;
                Ok(CALENDAR.call(vec![arg.clone()]))
            });
            let args = args.collect::<Result<Vec<_>>>()?;
            if some {
                return Ok(Transformed::yes(call.func.call(args)));
            }
        }
        Expr::ScalarFunction(call) => {
            let unit = CUTTING.iter().find(|(name, _)| *name == call.func.name());
            if let ([time], Some((_, unit))) = (&call.args[..], unit)
                && let Some(floor) = floor(&time.get_type(scope)?, *unit)
            {
                let call = call.func.call(vec![floor.call(vec![time.clone()])]);
                return Ok(Transformed::yes(call));
            }
        }
        _ => {}
    }
    Ok(Transformed::no(part))
}

/// A unit of `date_trunc` below a second.
fn fraction(name: &str) -> Option<TimeUnit> {
    match name.to_ascii_lowercase().as_str() {
        "millisecond" => Some(TimeUnit::Millisecond),
        "microsecond" => Some(TimeUnit::Microsecond),
        _ => None,
    }
}

/// Whether a cast gives other values than it is given, or NULL for some of them if it is a trial.
fn changes(from: &DataType, to: &DataType, trial: bool) -> bool {
    let scale = |of: &DataType| match of {
        DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => Some(*scale),
        of if of.is_integer() => Some(0),
        _ => None,
    };
    match (scale(from), scale(to)) {
        (Some(own), Some(other)) => other < own || trial && from != to,
        _ => false,
    }
}

/// Whether a cast writes times, or takes the day of one in its zone, beyond what Arrow can.
fn leaves_calendar(from: &DataType, to: &DataType) -> bool {
    let is_zoned = |of: &DataType| matches!(of, DataType::Timestamp(_, Some(_)));
    let is_day = |of: &DataType| matches!(of, DataType::Date32 | DataType::Date64);
    if holds(to, DataType::is_string) {
        // Arrow's casts of other times, but for those within a list, are errors of their own.
        holds(from, |of| is_zoned(of) || matches!(of, DataType::Duration(_)))
            || from.is_nested() && holds(from, DataType::is_temporal)
    } else {
        holds(from, is_zoned) && holds(to, is_day)
    }
}

/// Whether the type, or one within it, is of the kind.
fn holds(of: &DataType, kind: impl Fn(&DataType) -> bool + Copy) -> bool {
    match of {
        DataType::Struct(fields) => fields.iter().any(|field| holds(field.data_type(), kind)),
        DataType::List(of)
        | DataType::LargeList(of)
        | DataType::FixedSizeList(of, _)
        | DataType::ListView(of)
        | DataType::LargeListView(of)
        | DataType::RunEndEncoded(_, of)
        | DataType::Map(of, _) => holds(of.data_type(), kind),
        DataType::Dictionary(_, of) => holds(of, kind),
        of => kind(of),
    }
}

fn is_checked(expr: &Expr) -> bool {
    let checks = [CALENDAR.name(), WITHIN_CALENDAR.name()];
    matches!(expr, Expr::ScalarFunction(call) if checks.contains(&call.func.name()))
}

/// The expression that cuts a time to `unit`, if it has more digits.
fn floor(of: &DataType, unit: TimeUnit) -> Option<Arc<ScalarUDF>> {
    match of {
        DataType::Timestamp(own, _) if per_second(*own) > per_second(unit) => {
            Some(function(Which::Floor(unit)))
        }
        _ => None,
    }
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

fn function(which: Which) -> Arc<ScalarUDF> {
    let signature = Signature::any(1, Volatility::Immutable);
    Arc::new(ScalarUDF::from(Function { which, signature }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Which {
    /// A time, down to a unit.
    Floor(TimeUnit),
    /// The value as it is.
    Plain,
    /// The value, which has a text.
    Calendar,
    /// The value, or NULL where it has no text.
    WithinCalendar,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    which: Which,
    signature: Signature,
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        match self.which {
            Which::Floor(TimeUnit::Second) => "__floor_seconds",
            Which::Floor(TimeUnit::Millisecond) => "__floor_millis",
            Which::Floor(TimeUnit::Microsecond) => "__floor_micros",
            Which::Floor(TimeUnit::Nanosecond) => "__floor_nanos",
            Which::Plain => "__cast",
            Which::Calendar => "__calendar",
            Which::WithinCalendar => "__within_calendar",
        }
    }

    /// As DataFusion calls a cast: as what is cast.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(args[0].schema_name().to_string())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match (self.which, &types[0]) {
            (Which::Floor(unit), DataType::Timestamp(_, zone)) => {
                DataType::Timestamp(unit, zone.clone())
            }
            (_, of) => of.clone(),
        })
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let given = args.args.swap_remove(0);
        let of = |array: &ArrayRef| match self.which {
            Which::Floor(unit) => floored(array, unit),
            Which::Plain => Ok(array.clone()),
            Which::Calendar => checked(array).or_else(|message| exec_err!("{message}")),
            Which::WithinCalendar => Ok(writable(array)?),
        };
        Ok(match given {
            ColumnarValue::Array(values) => ColumnarValue::Array(of(&values)?),
            ColumnarValue::Scalar(value) => {
                let value = of(&value.to_array()?)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&value, 0)?)
            }
        })
    }
}

/// Times in a coarser unit, none of them later than it was.
fn floored(times: &ArrayRef, unit: TimeUnit) -> Result<ArrayRef> {
    let DataType::Timestamp(own, zone) = times.data_type() else { return Ok(times.clone()) };
    let parts = per_second(*own) / per_second(unit);
    let counts = cast_array(times, &DataType::Int64)?;
    let counts = counts.as_primitive::<Int64Type>();
    let floored: Int64Array = counts.unary(|count| count.div_euclid(parts));
    Ok(cast_array(&floored, &DataType::Timestamp(unit, zone.clone()))?)
}
