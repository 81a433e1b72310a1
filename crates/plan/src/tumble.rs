//! `TUMBLE`: windows in FROM.
//!
//! DataFusion's SQL has no windowing table functions. A pass over the tokens turns each into a
//! query that calls functions of ours, and leaves the table's name and the time column as the
//! user's own tokens, with their places:
//!
//! ```text
//! TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)
//!   ⇒ (SELECT *, __tumble_start(ts, size, offset) AS window_start,
//!                __tumble_end(ts, size, offset) AS window_end,
//!                __tumble_time(ts, size, offset) AS window_time FROM t)
//! ```
//!
//! Size and offset are nanoseconds. The functions compute the window of a row, so that a query
//! means the same with and without a streaming aggregate; [`crate::weave`] recognises them as
//! group keys and makes a window of them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::unary;
use arrow::datatypes::{
    ArrowTimestampType, DataType, Field, FieldRef, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use datafusion::common::{ScalarValue, exec_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::sql::sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Word};

use crate::diagnostics::{Diagnostic, Place};
use crate::errors::PlanError;
use crate::interval::{Interval, interval, tick_ns};
use crate::syntax::{Cursor, Ident, is_word};
use crate::types::sql_name;

/// Which bound of the window a function gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Bound {
    Start,
    End,
    Time,
}

impl Bound {
    const ALL: [Bound; 3] = [Bound::Start, Bound::End, Bound::Time];

    /// The column in SQL.
    pub(crate) fn column(self) -> &'static str {
        match self {
            Bound::Start => "window_start",
            Bound::End => "window_end",
            Bound::Time => "window_time",
        }
    }

    /// The function's name.
    fn function(self) -> &'static str {
        match self {
            Bound::Start => "__tumble_start",
            Bound::End => "__tumble_end",
            Bound::Time => "__tumble_time",
        }
    }
}

/// A window that the user wrote.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) time: Ident,
    pub(crate) size: Interval,
    pub(crate) offset: Option<Interval>,
}

/// Replaces each `TUMBLE(…)`, also inside `TABLE(…)`.
pub(crate) fn rewrite(
    tokens: &[TokenWithSpan],
) -> Result<(Vec<TokenWithSpan>, Vec<Site>), Diagnostic> {
    let mut out = Vec::with_capacity(tokens.len());
    let mut sites = vec![];
    let mut cursor = Cursor::new(tokens);
    while let Some(token) = cursor.peek() {
        let opens = |n: usize, t: Token| cursor.peek_at(n).is_some_and(|next| next.token == t);
        let wrapped = is_word(token, "TABLE") && opens(1, Token::LParen);
        let at = if wrapped { 2 } else { 0 };
        let Some(function) = cursor.peek_at(at).filter(|_| opens(at + 1, Token::LParen)) else {
            out.push(token.clone());
            cursor.skip(1);
            continue;
        };
        let first_is = |word| cursor.peek_at(at + 2).is_some_and(|first| is_word(first, word));
        let in_from = first_is("TABLE") || opens(at + 3, Token::RArrow);
        let other = ["HOP", "CUMULATE", "SESSION"].iter().find(|name| is_word(function, name));
        if let (Some(name), true) = (other, in_from) {
            return Err(Diagnostic::at(
                Place::of(function.span),
                format!("{name} is not supported"),
            )
            .hint("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR) is"));
        }
        if !is_word(function, "TUMBLE") || !(in_from || wrapped) {
            out.push(token.clone());
            cursor.skip(1);
            continue;
        }
        cursor.skip(at + 2);
        let (table, site) = arguments(&mut cursor)?;
        if wrapped {
            cursor.expect(&Token::RParen)?;
        }
        replace(&mut out, function.span, &table, &site);
        sites.push(site);
    }
    Ok((out, sites))
}

/// The arguments up to the closing parenthesis, by position or by name.
fn arguments(cursor: &mut Cursor<'_>) -> Result<(Vec<TokenWithSpan>, Site), Diagnostic> {
    const NAMES: [&str; 4] = ["DATA", "TIMECOL", "SIZE", "OFFSET"];
    let (mut table, mut time, mut size, mut offset) = (None, None, None, None);
    for position in 0.. {
        let named = cursor.peek_at(1).is_some_and(|t| t.token == Token::RArrow);
        let place = cursor.place();
        let which = if named {
            let name = cursor.ident("an argument")?.text;
            cursor.skip(1);
            NAMES.iter().position(|n| name.eq_ignore_ascii_case(n)).ok_or_else(|| {
                Diagnostic::at(place, format!("TUMBLE has no argument '{name}'")).nearest(
                    "arguments",
                    &name,
                    NAMES,
                )
            })?
        } else {
            position
        };
        match which {
            0 => table = Some(table_argument(cursor)?),
            1 => time = Some(descriptor(cursor)?),
            2 => size = Some(interval(cursor)?),
            3 => offset = Some(interval(cursor)?),
            _ => return Err(Diagnostic::at(place, "TUMBLE has four arguments at most")),
        }
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    let end = cursor.place();
    if !cursor.token(&Token::RParen) {
        return Err(cursor.expected("',' or ')'"));
    }
    let missing = |what: &str| {
        Diagnostic::at(end, format!("TUMBLE lacks its {what}"))
            .hint("TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)")
    };
    let table = table.ok_or_else(|| missing("table"))?;
    let time = time.ok_or_else(|| missing("time column"))?;
    let size = size.ok_or_else(|| missing("size"))?;
    if size.ns <= 0 {
        return Err(Diagnostic::at(size.place, "a window is longer than nothing"));
    }
    Ok((table, Site { time, size, offset }))
}

fn table_argument(cursor: &mut Cursor<'_>) -> Result<Vec<TokenWithSpan>, Diagnostic> {
    if !cursor.words("TABLE") {
        return Err(cursor.expected("TABLE").hint("name the table as TABLE t"));
    }
    let start = cursor.rest();
    let from = cursor.position();
    let subquery = cursor.peek().is_some_and(|t| t.token == Token::LParen);
    if subquery {
        return Err(Diagnostic::at(cursor.place(), "TUMBLE takes a table or view by name")
            .hint("give the query a name with WITH or CREATE VIEW"));
    }
    cursor.ident("the table's name")?;
    while cursor.token(&Token::Period) {
        cursor.ident("the table's name")?;
    }
    Ok(start[..cursor.position() - from].to_vec())
}

fn descriptor(cursor: &mut Cursor<'_>) -> Result<Ident, Diagnostic> {
    if !cursor.words("DESCRIPTOR") {
        return Err(cursor.expected("DESCRIPTOR").hint("name the time column as DESCRIPTOR(ts)"));
    }
    cursor.expect(&Token::LParen)?;
    let time = cursor.ident("the time column")?;
    cursor.expect(&Token::RParen)?;
    Ok(time)
}

/// Writes the query that stands for a window.
fn replace(out: &mut Vec<TokenWithSpan>, span: Span, table: &[TokenWithSpan], site: &Site) {
    let word = |text: &str| Token::make_word(text, None);
    let quoted = |text: &str| {
        Token::Word(Word {
            value: text.to_string(),
            quote_style: Some('"'),
            keyword: datafusion::sql::sqlparser::keywords::Keyword::NoKeyword,
        })
    };
    let number = |ns: i64| Token::SingleQuotedString(ns.to_string());
    let start = Location::new(site.time.place.line as u64, site.time.place.column as u64);
    let end = Location::new(start.line, start.column + site.time.place.length as u64);
    let mut put = |token: Token, span: Span| out.push(TokenWithSpan { token, span });
    for token in [Token::LParen, Token::make_keyword("SELECT"), Token::Mul] {
        put(token, span);
    }
    for bound in Bound::ALL {
        for token in [Token::Comma, word(bound.function()), Token::LParen] {
            put(token, span);
        }
        put(quoted(&site.time.text), Span::new(start, end));
        for ns in [site.size.ns, site.offset.map_or(0, |offset| offset.ns)] {
            put(Token::Comma, span);
            put(number(ns), span);
        }
        for token in [Token::RParen, Token::make_keyword("AS"), word(bound.column())] {
            put(token, span);
        }
    }
    put(Token::make_keyword("FROM"), span);
    table.iter().for_each(|token| put(token.token.clone(), token.span));
    put(Token::RParen, span);
}

/// A window as it stands in a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WindowCall {
    pub(crate) bound: Bound,
    pub(crate) time: Expr,
    pub(crate) size_ns: i64,
    pub(crate) offset_ns: i64,
}

impl WindowCall {
    /// The window that an expression computes, if it is a call of one of the functions here.
    pub(crate) fn of(expr: &Expr) -> Option<Self> {
        let Expr::ScalarFunction(call) = expr else { return None };
        let bound = Bound::ALL.into_iter().find(|b| b.function() == call.func.name())?;
        let [time, Expr::Literal(size, _), Expr::Literal(offset, _)] = &call.args[..] else {
            return None;
        };
        let (size_ns, offset_ns) = (nanos(size)?, nanos(offset)?);
        Some(Self { bound, time: time.clone(), size_ns, offset_ns })
    }

    /// Whether both are of the same window.
    pub(crate) fn same_window(&self, other: &Self) -> bool {
        (&self.time, self.size_ns, self.offset_ns) == (&other.time, other.size_ns, other.offset_ns)
    }

    /// The site that it comes from.
    pub(crate) fn site<'a>(&self, sites: &'a [Site]) -> Option<&'a Site> {
        let fits = |site: &&Site| {
            site.size.ns == self.size_ns && site.offset.map_or(0, |o| o.ns) == self.offset_ns
        };
        let named = |site: &&Site| match &self.time {
            Expr::Column(column) => column.name == site.time.text,
            _ => false,
        };
        let mut fitting = sites.iter().filter(fits);
        fitting.clone().find(named).or_else(|| fitting.next())
    }
}

fn nanos(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Utf8(Some(text)) => text.parse().ok(),
        _ => None,
    }
}

/// The functions.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    Bound::ALL.into_iter().map(|bound| Arc::new(ScalarUDF::from(Tumble::new(bound)))).collect()
}

/// `__tumble_…(time, size, offset)`: a bound of the window of `time`, of the same type.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Tumble {
    bound: Bound,
    signature: Signature,
}

impl Tumble {
    fn new(bound: Bound) -> Self {
        Self { bound, signature: Signature::any(3, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Tumble {
    fn name(&self) -> &str {
        self.bound.function()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        exec_err!("the type of a window's bound depends on its arguments")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let Some(time) = args.arg_fields.first() else {
            return exec_err!("a window needs a time");
        };
        let DataType::Timestamp(unit, _) = time.data_type() else {
            return Err(PlanError::WindowOf(sql_name(time.data_type())).into());
        };
        let lengths = args.scalar_arguments.iter().skip(1).flatten();
        if lengths.filter_map(|ns| nanos(ns)).any(|ns| ns % tick_ns(*unit) != 0) {
            return Err(PlanError::WindowFiner(*unit, sql_name(time.data_type())).into());
        }
        Ok(Arc::new(Field::new(self.name(), time.data_type().clone(), time.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [time, ColumnarValue::Scalar(size), ColumnarValue::Scalar(offset)] = &args.args[..]
        else {
            return exec_err!("a window's size is constant");
        };
        let (Some(size), Some(offset)) = (nanos(size), nanos(offset)) else {
            return exec_err!("a window's size is a number");
        };
        let scalar = matches!(time, ColumnarValue::Scalar(_));
        let time = time.to_array(args.number_rows)?;
        let DataType::Timestamp(unit, _) = time.data_type() else {
            return exec_err!("a window needs a time");
        };
        let bounds = match unit {
            TimeUnit::Second => bounds::<TimestampSecondType>(&time, self.bound, size, offset),
            TimeUnit::Millisecond => {
                bounds::<TimestampMillisecondType>(&time, self.bound, size, offset)
            }
            TimeUnit::Microsecond => {
                bounds::<TimestampMicrosecondType>(&time, self.bound, size, offset)
            }
            TimeUnit::Nanosecond => {
                bounds::<TimestampNanosecondType>(&time, self.bound, size, offset)
            }
        }?;
        Ok(match scalar {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&bounds, 0)?),
            false => ColumnarValue::Array(bounds),
        })
    }
}

/// Computes a bound for each time.
fn bounds<T: ArrowTimestampType>(
    time: &ArrayRef,
    bound: Bound,
    size_ns: i64,
    offset_ns: i64,
) -> Result<ArrayRef> {
    let tick = tick_ns(T::UNIT);
    let (size, offset) = (size_ns / tick, offset_ns / tick);
    if size * tick != size_ns || offset * tick != offset_ns {
        return Err(DataFusionError::Execution("a window is finer than its time".into()));
    }
    let shift = match bound {
        Bound::Start => 0,
        Bound::End => size,
        Bound::Time => size - last_tick(T::UNIT),
    };
    let of = |t: i64| {
        let start = t.wrapping_sub(t.wrapping_sub(offset).rem_euclid(size));
        start.wrapping_add(shift)
    };
    let ticks = arrow::compute::cast(time, &DataType::Int64)?;
    let values = unary::<_, _, T>(ticks.as_primitive::<Int64Type>(), of);
    let zone = match time.data_type() {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => None,
    };
    Ok(Arc::new(values.with_timezone_opt(zone)) as ArrayRef)
}

/// How far `window_time` lies before `window_end`, in ticks: a millisecond, as in Flink, but at
/// least a tick.
fn last_tick(unit: TimeUnit) -> i64 {
    (1_000_000 / tick_ns(unit)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::split;

    fn rewritten(sql: &str) -> std::result::Result<String, String> {
        let tokens = split(sql).expect("tokens");
        let (tokens, _) = rewrite(&tokens[0]).map_err(|e| e.message)?;
        Ok(tokens.iter().map(|t| t.token.to_string()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn all_ways_to_write_a_window_are_the_same() {
        let plain = rewritten("SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)");
        let plain = plain.expect("a window");
        assert!(plain.contains("__tumble_start ( \"ts\" , '3600000000000' , '0' )"), "{plain}");
        for sql in [
            "SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '60' MINUTES))",
            "SELECT * FROM tumble(SIZE => INTERVAL '1' HOUR, DATA => TABLE t, \
             TIMECOL => DESCRIPTOR(ts))",
            "SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '0' HOUR)",
        ] {
            assert_eq!(rewritten(sql).as_ref(), Ok(&plain), "{sql}");
        }
    }

    #[test]
    fn a_function_of_that_name_elsewhere_is_left_alone() {
        let sql = "SELECT tumble ( 1 ) , TABLE FROM t";
        assert_eq!(rewritten(sql).as_deref(), Ok(sql));
    }

    #[test]
    fn the_time_column_keeps_its_place() {
        let tokens = split("SELECT *\nFROM TUMBLE(TABLE t,\n DESCRIPTOR(when), INTERVAL '1' DAY)");
        let tokens = tokens.expect("tokens");
        let (tokens, sites) = rewrite(&tokens[0]).expect("a window");
        let time = tokens.iter().find(|t| t.token.to_string() == "\"when\"").expect("the column");
        assert_eq!((time.span.start.line, time.span.start.column), (3, 13));
        assert_eq!(sites[0].time.place, Place { line: 3, column: 13, length: 4 });
    }

    #[test]
    fn windows_start_at_multiples_of_their_size_also_before_1970() {
        let of = |t: i64, bound, offset| {
            let time: ArrayRef =
                Arc::new(arrow::array::TimestampMillisecondArray::from(vec![Some(t), None]));
            let of = bounds::<TimestampMillisecondType>(&time, bound, 10_000_000, offset);
            let of = of.expect("bounds");
            assert!(of.is_null(1));
            of.as_primitive::<TimestampMillisecondType>().value(0)
        };
        assert_eq!(of(25, Bound::Start, 0), 20);
        assert_eq!(of(25, Bound::End, 0), 30);
        assert_eq!(of(25, Bound::Time, 0), 29);
        assert_eq!(of(-1, Bound::Start, 0), -10);
        assert_eq!(of(25, Bound::Start, 6_000_000), 16);
        assert_eq!(of(25, Bound::Start, -14_000_000), 16);
    }
}
