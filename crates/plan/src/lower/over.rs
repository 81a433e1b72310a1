//! Aggregates over the rows around each row, in event time: `OVER (… ORDER BY ts …)`.
//!
//! ```sql
//! SELECT ts, sum(amount) OVER (PARTITION BY account ORDER BY ts
//!                              RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW)
//! ```
//!
//! The order is that of the rows' event time, so that a row has all of its frame when the watermark
//! has passed it. Other functions are written with aggregates over frames: ROW_NUMBER counts the
//! rows up to its own, RANK those of an earlier time, DENSE_RANK the times, LAG is the value of one
//! row. What needs later rows is refused.
//!
//! Functions of one PARTITION BY share an operator, and each further one has its own behind it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use dataflow::job::{Distribution, InputLabels, KeyedInput, KeyedOperator, Labels};
use dataflow::keyed::{
    FrameUnit, Over, OverCall, OverFrame, first_value, last_value, nth_value, times,
};
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::{
    AggregateFunction, NullTreatment, Sort, WindowFunction, WindowFunctionParams,
};
use datafusion::logical_expr::{
    self as logical, Expr, ExprSchemable, WindowFrame, WindowFrameBound, WindowFrameUnits,
    WindowFunctionDefinition, cast, lit, when,
};

use crate::explain::{plain, shown};
use crate::expr::own::own;
use crate::logical::windows::{Bound, WindowCall};
use crate::lower::aggregates::{self, AggregateCall};
use crate::lower::between::length_ns;
use crate::lower::builder::JobBuilder;
use crate::lower::context::Context;
use crate::lower::join;
use crate::lower::join::{Places, names_of};
use crate::lower::pipeline;
use crate::lower::rank;
use crate::lower::relation::{LowerError, Relation, check_key};
use crate::lower::session;
use crate::text::interval::tick_ns;
use crate::text::refusal::Refusal;

const FORM: &str = "order by the column of the WATERMARK: sum(x) OVER (PARTITION BY k ORDER BY ts \
                    RANGE BETWEEN INTERVAL '1' HOUR PRECEDING AND CURRENT ROW)";

/// Why no function sees later rows.
const EMITTED: &str = "a row is emitted when the watermark has passed it";

/// The most that NTH_VALUE counts to: of each frame as many values are kept.
const NTH_MAX: usize = 1_000;

/// Functions of one PARTITION BY.
struct Partition<'a> {
    by: &'a [Expr],
    /// Which of all, and what.
    functions: Vec<(usize, &'a WindowFunction)>,
}

/// A function as aggregates over frames, and what is made of their results.
struct Framed {
    calls: Vec<(AggregateCall, OverFrame)>,
    outcome: Outcome,
}

/// The output that is made of the results of a function's calls.
enum Outcome {
    /// The result of the only call.
    Own,
    /// So many more than the only call counted, as a number without a sign.
    Number(u64),
    /// The first where the second counted a row, else this.
    Or(Expr),
}

/// Rows with what functions find around them: in the order of their event time, or numbered in
/// their window.
pub(crate) fn over(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    window: &logical::Window,
) -> Result<Relation, LowerError> {
    let input = pipeline::relation(cx, job, &window.input)?;
    let input = session::materialized(cx, job, input)?;
    let functions = functions_of(window)?;
    if let [function] = functions[..]
        && name_of(function) == "row_number"
    {
        match rank::numbered(&input, function) {
            Ok(numbered) => return rank::ranked(cx, job, input, window, numbered),
            Err(refused) => match time_of(&input, function) {
                Ok(_) => {}
                Err(_) => return Err(refused.into()),
            },
        }
    }
    let mut partitions: Vec<Partition<'_>> = vec![];
    for (at, &function) in functions.iter().enumerate() {
        time_of(&input, function).map_err(|refusal| refusal.about(read_by(function)))?;
        let by = &function.params.partition_by[..];
        match partitions.iter_mut().find(|known| known.by == by) {
            Some(known) => known.functions.push((at, function)),
            None => partitions.push(Partition { by, functions: vec![(at, function)] }),
        }
    }
    let columns = window.schema.columns();
    let given = columns.len() - functions.len();
    let mut relation = input;
    for partition in &partitions {
        relation = framed(cx, job, relation, partition, &columns[given..])?;
    }
    // The functions were computed in another order than they were asked for.
    let outputs = std::mem::take(&mut relation.outputs);
    let (mut outputs, results): (Vec<_>, Vec<_>) =
        outputs.into_iter().partition(|(column, _)| !columns[given..].contains(column));
    for column in &columns[given..] {
        outputs.extend(results.iter().find(|(known, _)| known == column).cloned());
    }
    relation.outputs = outputs;
    Ok(relation)
}

/// Adds the operator of the functions of one partition.
fn framed(
    cx: &Context<'_>,
    job: &mut JobBuilder,
    input: Relation,
    partition: &Partition<'_>,
    columns: &[Column],
) -> Result<Relation, LowerError> {
    let keys = input.rewrite_all(partition.by)?;
    for key in &keys {
        check_key(key, &input.scan)?;
    }
    let time = time_of(&input, partition.functions[0].1)?;
    let data_type = time.get_type(&input.scan).map_err(|error| cx.report(&error))?;
    let DataType::Timestamp(unit, _) = data_type else {
        return Err(refused("the time that orders rows is no TIMESTAMP").into());
    };
    let framed = partition.functions.iter();
    let framed = framed.map(|(_, function)| {
        let framed = framed_of(&input, function, unit);
        framed.map_err(|refusal| refusal.about(read_by(function)))
    });
    let framed = framed.collect::<Result<Vec<_>, Refusal>>()?;

    let args = framed.iter().flat_map(|f| &f.calls).flat_map(|(call, _)| &call.args);
    let by: Vec<Expr> = keys.iter().chain(args).cloned().collect();
    let (places, finished) =
        join::arriving(cx, job, &input, &by, time.clone(), Some(time.clone()))?;
    let is_end =
        |key: &Expr| input.bound(key).is_some_and(|of| of.bound == Bound::End && of.is_total());
    let end = partition.by.iter().position(is_end);
    let mut operator = operator_of(&framed, &places, &finished.schema, keys.len(), end);
    operator.ties.sort_by_key(|place| told_apart(&input, &places, *place));
    let schema = operator.schema();
    let known = places.columns(&input, &schema, 0);
    for call in &mut operator.calls {
        call.text = plain(&call.text, &input.names);
    }
    let names = names_behind(&operator, &known, &finished.columns);
    let taken = KeyedInput {
        schema: finished.schema,
        keys: operator.keys.clone(),
        distribution: Distribution::Hash,
        time: Some(places.at),
        grace: 1,
    };
    let mut labels = Labels::of_input(InputLabels::of_columns(&finished.columns));
    labels.columns = shown(&schema, &names);
    let (granularity, operator) = ((100_000_000 / tick_ns(unit)).max(1), Arc::new(operator));
    let edges = vec![finished.edges];
    let number = pipeline::keyed(cx, job, edges, vec![taken], granularity, operator, labels)?;

    let attached =
        told_window(&input, &time).and_then(|window| input.attached_behind(window, &known, None));
    let (mut all, mut exprs): (Vec<Column>, Vec<Expr>) = known.into_iter().unzip();
    let mut call = 0;
    for ((at, _), framed) in partition.functions.iter().zip(framed) {
        let first = call;
        call += framed.calls.len();
        all.push(columns[*at].clone());
        exprs.push(framed.outcome.over(first).map_err(|error| cx.report(&error))?);
    }
    let time = own(schema.field(places.at).name());
    let mut relation = Relation::of_operator(number, schema, all, exprs)?;
    relation.names = names;
    relation.times = vec![time];
    relation.windows = input.windows.clone();
    relation.attach(attached);
    Ok(relation)
}

/// The output columns of an operator: the `known` ones, the arriving ones, and its
/// results.
fn names_behind(
    operator: &Over,
    known: &[(Column, Expr)],
    arriving: &[String],
) -> Vec<(String, String)> {
    let mut names = names_of(known);
    let unnamed = arriving.iter().enumerate().map(|(at, text)| (column_name(at), text.clone()));
    let unnamed: Vec<_> =
        unnamed.filter(|(name, _)| !names.iter().any(|(known, _)| known == name)).collect();
    let results = operator.calls.iter().enumerate();
    let results = results.map(|(at, call)| (result_name(at), format!("{} over", call.text)));
    names.extend(unnamed.into_iter().chain(results));
    names
}

/// The operator of functions whose keys and arguments arrive at `places`; of the keys, `end` is the
/// end of the rows' window.
fn operator_of(
    framed: &[Framed],
    places: &Places,
    input: &SchemaRef,
    keys: usize,
    end: Option<usize>,
) -> Over {
    let (keys, mut args) = places.keys.split_at(keys);
    let mut calls = vec![];
    for (call, frame) in framed.iter().flat_map(|framed| &framed.calls) {
        let (own, others) = args.split_at(call.args.len());
        args = others;
        let (text, aggregate) = (call.text.clone(), call.aggregate.clone());
        calls.push(OverCall { text, aggregate, args: own.to_vec(), frame: *frame });
    }
    let fields = input.fields().iter().enumerate();
    let fields = fields.map(|(at, f)| f.as_ref().clone().with_name(column_name(at)));
    let results = calls.iter().enumerate();
    let results =
        results.map(|(at, call)| Field::new(result_name(at), call.aggregate.output_type(), true));
    let schema = Arc::new(Schema::new(fields.chain(results).collect::<Vec<_>>()));
    let data_type = |at: usize| input.field(at).data_type();
    let end = end.map(|at| keys[at]).filter(|&at| data_type(at) == data_type(places.at));
    Over {
        input: input.clone(),
        ties: (0..input.fields().len()).collect(),
        keys: keys.to_vec(),
        time: places.at,
        window_end: end,
        calls,
        schema,
    }
}

/// How soon a column that arrives tells rows of the same time apart: in the order of the columns of
/// the query, before those that the optimizer has made.
fn told_apart(input: &Relation, places: &Places, place: usize) -> (bool, usize) {
    let at = places.outputs.iter().position(|&output| output == place);
    match at {
        Some(at) => (input.outputs[at].0.name.starts_with("__"), at),
        None => (true, usize::MAX),
    }
}

impl Outcome {
    /// The result over an operator's output, where the results of the calls begin at `call`.
    fn over(self, call: usize) -> datafusion::error::Result<Expr> {
        let of = |call: usize| own(&result_name(call));
        match self {
            Outcome::Own => Ok(of(call)),
            Outcome::Number(0) => Ok(cast(of(call), DataType::UInt64)),
            Outcome::Number(more) => Ok(cast(of(call), DataType::UInt64) + lit(more)),
            Outcome::Or(other) => when(of(call + 1).gt(lit(0i64)), of(call)).otherwise(other),
        }
    }
}

fn column_name(at: usize) -> String {
    format!("column_{at}")
}

fn result_name(call: usize) -> String {
    format!("over_{call}")
}

fn refused(reason: &str) -> Refusal {
    Refusal::new(&["OVER"], reason).hint(FORM)
}

/// The functions of a node.
fn functions_of(window: &logical::Window) -> Result<Vec<&WindowFunction>, Refusal> {
    let function = |expr| {
        let mut expr: &Expr = expr;
        while let Expr::Alias(alias) = expr {
            expr = &alias.expr;
        }
        match expr {
            Expr::WindowFunction(function) => Ok(&**function),
            _ => Err(refused("OVER needs all rows")),
        }
    };
    window.window_expr.iter().map(function).collect()
}

/// The rows that a function reads.
fn read_by(function: &WindowFunction) -> impl Iterator<Item = &Expr> {
    let params = &function.params;
    let order = params.order_by.iter().map(|sort| &sort.expr);
    params.args.iter().chain(&params.partition_by).chain(order)
}

fn name_of(function: &WindowFunction) -> &str {
    match &function.fun {
        WindowFunctionDefinition::AggregateUDF(udf) => udf.name(),
        WindowFunctionDefinition::WindowUDF(udf) => udf.name(),
    }
}

/// The event time by which rows are ordered, over the columns of the base.
fn time_of(input: &Relation, function: &WindowFunction) -> Result<Expr, Refusal> {
    let [Sort { expr, asc, .. }] = &function.params.order_by[..] else {
        return Err(refused(if function.params.order_by.is_empty() {
            "OVER without an order needs all rows"
        } else {
            "OVER by more than the event time needs all rows"
        }));
    };
    let time = input.rewrite_time(expr)?;
    if !input.times.contains(&time) {
        let reason = {
            let shown = plain(&expr.human_display().to_string(), &input.names);
            format!("rows in the order of '{shown}' need all rows")
        };
        return Err(match input.times.first() {
            Some(_) => refused(&reason),
            None => Refusal::new(&["OVER"], reason).hint(
                "give the table an event time: WATERMARK FOR ts AS ts - INTERVAL '5' SECOND, and \
                 ORDER BY ts",
            ),
        });
    }
    if *asc { Ok(time) } else { Err(refused("the latest rows first need all rows")) }
}

/// The window of rows that is of their event time, so that what the watermark says of it holds for
/// the end of that window too.
fn told_window(input: &Relation, time: &Expr) -> Option<usize> {
    let mut calls = input.outputs.iter().filter_map(|(_, expr)| WindowCall::of(expr));
    match calls.find(|call| call.time == *time) {
        Some(call) => input.window_of(&call),
        None => input.attached.as_ref().map(|attached| attached.window),
    }
}

/// A function as aggregates over frames.
fn framed_of(
    input: &Relation,
    function: &WindowFunction,
    unit: TimeUnit,
) -> Result<Framed, Refusal> {
    let params = &function.params;
    let WindowFunctionDefinition::AggregateUDF(udf) = &function.fun else {
        return place_of(input, function, unit);
    };
    let filter = params.filter.as_ref().map(|filter| input.rewrite(filter)).transpose()?;
    let call = AggregateFunction::new_udf(
        udf.clone(),
        input.rewrite_all(&params.args)?,
        params.distinct,
        filter.map(Box::new),
        vec![],
        params.null_treatment,
    );
    let call = aggregates::lower(&Expr::AggregateFunction(call), &input.scan)?;
    let frame = frame_of(&params.window_frame, unit)?;
    Ok(Framed { calls: vec![(call, frame)], outcome: Outcome::Own })
}

/// A function that is no aggregate.
fn place_of(
    input: &Relation,
    function: &WindowFunction,
    unit: TimeUnit,
) -> Result<Framed, Refusal> {
    let params = &function.params;
    let number = |unit, to, more| {
        let frame = OverFrame { unit, from: None, to };
        Framed { calls: vec![(counted(), frame)], outcome: Outcome::Number(more) }
    };
    match name_of(function) {
        "row_number" => Ok(number(FrameUnit::Rows, 0, 0)),
        "rank" => Ok(number(FrameUnit::Range, 1, 1)),
        "dense_rank" => {
            let time = time_of(input, function)?;
            let of = type_of(input, &time)?;
            let text = format!("times of {}", time.human_display());
            let call = AggregateCall { text, aggregate: times(of), args: vec![time] };
            let frame = OverFrame { unit: FrameUnit::Range, from: None, to: 0 };
            Ok(Framed { calls: vec![(call, frame)], outcome: Outcome::Number(0) })
        }
        name @ ("first_value" | "last_value" | "nth_value") => {
            let frame = frame_of(&params.window_frame, unit)?;
            let value = value_of(input, params, name)?;
            Ok(Framed { calls: vec![(value, frame)], outcome: Outcome::Own })
        }
        "lag" => lag(input, params),
        "lead" => {
            let reason = format!("LEAD needs later rows: {EMITTED}");
            Err(Refusal::new(&["LEAD", "OVER"], reason)
                .hint("ask the later row for the one before it: LAG(x) OVER (… ORDER BY ts)"))
        }
        name => Err(Refusal::new(&[name, "OVER"], format!("{name}() needs all rows")).hint(
            "ROW_NUMBER, RANK, DENSE_RANK, LAG, FIRST_VALUE, LAST_VALUE, NTH_VALUE and aggregates \
             stream",
        )),
    }
}

/// `count(*)`.
fn counted() -> AggregateCall {
    AggregateCall { text: "count(*)".into(), aggregate: state::aggregates::count(), args: vec![] }
}

/// The first or the last value of a frame.
fn value_of(
    input: &Relation,
    params: &WindowFunctionParams,
    name: &str,
) -> Result<AggregateCall, Refusal> {
    let arg = params.args.first().ok_or_else(|| refused("a value needs an argument"))?;
    let arg = input.rewrite(arg)?;
    let of = type_of(input, &arg)?;
    let skip_nulls = params.null_treatment == Some(NullTreatment::IgnoreNulls);
    let (aggregate, which) = match name {
        "last_value" => (last_value(of, skip_nulls), String::new()),
        "nth_value" => {
            let n = nth_of(input, params)?;
            (nth_value(of, n, skip_nulls), format!(", {n}"))
        }
        _ => (first_value(of, skip_nulls), String::new()),
    };
    let text = format!("{name}({}{which})", arg.human_display());
    Ok(AggregateCall { text, aggregate, args: vec![arg] })
}

fn type_of(input: &Relation, expr: &Expr) -> Result<DataType, Refusal> {
    expr.get_type(&input.scan).map_err(|error| Refusal::new(&["OVER"], error.to_string()))
}

/// Which value NTH_VALUE asks for.
fn nth_of(input: &Relation, params: &WindowFunctionParams) -> Result<usize, Refusal> {
    let n = params.args.get(1).map(|n| input.rewrite(n)).transpose()?;
    let n = match &n {
        Some(Expr::Literal(value, _)) => integer(value),
        _ => None,
    };
    let fits = n.and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=NTH_MAX).contains(n));
    fits.ok_or_else(|| {
        let reason = format!("NTH_VALUE counts from the first row, a constant from 1 to {NTH_MAX}");
        Refusal::new(&["NTH_VALUE", "OVER"], reason)
            .hint("NTH_VALUE(x, 2) OVER (PARTITION BY k ORDER BY ts)")
    })
}

/// The value a number of rows before, else a default.
fn lag(input: &Relation, params: &WindowFunctionParams) -> Result<Framed, Refusal> {
    let literal = |at: usize| match params.args.get(at).map(|arg| input.rewrite(arg)).transpose() {
        Ok(Some(Expr::Literal(value, _))) => Ok(Some(value)),
        Ok(None) => Ok(None),
        _ => Err(Refusal::new(&["LAG", "OVER"], "LAG takes constants behind its value")),
    };
    let back = match literal(1)? {
        Some(value) => integer(&value).ok_or_else(|| refused("LAG counts rows"))?,
        None => 1,
    };
    if back < 0 {
        return Err(refused("LAG with a negative offset needs all rows"));
    }
    let skip_nulls = params.null_treatment == Some(NullTreatment::IgnoreNulls);
    let mut frame = OverFrame { unit: FrameUnit::Rows, from: Some(back), to: back };
    let (mut value, mut found) = (value_of(input, params, "last_value")?, counted());
    if skip_nulls && back > 0 {
        if back > 1 {
            let reason = "LAG with IGNORE NULLS looks back to the last value alone";
            return Err(Refusal::new(&["LAG", "OVER"], reason).hint("LAG(x) IGNORE NULLS OVER …"));
        }
        frame.from = None;
        let aggregate = state::aggregates::count_of(&value.aggregate.output_type());
        found = AggregateCall { text: "count".into(), aggregate, args: value.args.clone() };
    }
    let default = literal(2)?.filter(|default| !default.is_null());
    value.text = value.text.replacen("last_value", "lag", 1);
    Ok(match default {
        None => Framed { calls: vec![(value, frame)], outcome: Outcome::Own },
        Some(default) => {
            let of = value.aggregate.output_type();
            let default = cast(Expr::Literal(default, None), of);
            let calls = vec![(value, frame), (found, frame)];
            Framed { calls, outcome: Outcome::Or(default) }
        }
    })
}

/// A frame that no row to come is in.
fn frame_of(frame: &WindowFrame, unit: TimeUnit) -> Result<OverFrame, Refusal> {
    let counts = match frame.units {
        WindowFrameUnits::Rows => FrameUnit::Rows,
        WindowFrameUnits::Range => FrameUnit::Range,
        WindowFrameUnits::Groups => {
            return Err(Refusal::new(&["GROUPS"], "GROUPS of rows need all rows")
                .hint("bound the frame by ROWS or by RANGE"));
        }
    };
    let length = |value: &ScalarValue| match counts {
        FrameUnit::Rows => integer(value)
            .ok_or_else(|| Refusal::new(&["ROWS"], "a frame of ROWS counts rows").hint(FORM)),
        FrameUnit::Range => {
            let ns = length_ns(value).ok_or_else(|| {
                Refusal::new(
                    &["RANGE"],
                    "a frame of RANGE is as long as an interval of days or less",
                )
                .hint(FORM)
            })?;
            let tick = tick_ns(unit);
            match ns % tick {
                0 => Ok(ns / tick),
                _ => Err(Refusal::new(&["INTERVAL"], "an interval is finer than the event time")
                    .hint(crate::catalog::finer_hint(unit))),
            }
        }
    };
    let back = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::CurrentRow => Ok(Some(0)),
        WindowFrameBound::Preceding(value) if value.is_null() => Ok(None),
        WindowFrameBound::Preceding(value) => length(value).map(Some),
        WindowFrameBound::Following(value) => match value.is_null() {
            false if length(value)? == 0 => Ok(Some(0)),
            _ => Err(Refusal::new(
                &["FOLLOWING", "OVER"],
                format!("a frame cannot end after the current row: {EMITTED}"),
            )
            .hint(
                "end it with CURRENT ROW, and read it at the later row; or join rows with those \
                 that follow: … JOIN t AS n ON n.k = t.k AND n.ts BETWEEN t.ts AND t.ts + INTERVAL \
                 '1' HOUR",
            )),
        },
    };
    let to = back(&frame.end_bound)?.ok_or_else(|| refused("a frame has an end"))?;
    Ok(OverFrame { unit: counts, from: back(&frame.start_bound)?, to })
}

fn integer(value: &ScalarValue) -> Option<i64> {
    match value.cast_to(&DataType::Int64).ok()? {
        ScalarValue::Int64(number) => number,
        _ => None,
    }
}
