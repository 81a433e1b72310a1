//! `TUMBLE`, `HOP`, `CUMULATE` and `SESSION`: windows in FROM.
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
//! group keys and makes a window of them. A row has several windows of `HOP` and `CUMULATE`, which
//! are written as lists to be unnested: see [`crate::several`]. `SESSION` has window functions: see
//! [`crate::session`].

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::unary;
use arrow::datatypes::{
    ArrowTimestampType, DataType, Field, FieldRef, Int64Type, TimeUnit, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
};
use dataflow::time::last_tick;
use datafusion::common::{ScalarValue, exec_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::sql::sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Word};

use crate::diagnostics::Diagnostic;
use crate::errors::PlanError;
use crate::interval::{Interval, interval, tick_ns};
use crate::several;
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
}

/// How windows follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    Tumble,
    Hop,
    Cumulate,
    Session,
}

impl Shape {
    const ALL: [Shape; 4] = [Shape::Tumble, Shape::Hop, Shape::Cumulate, Shape::Session];

    /// The function in SQL.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Shape::Tumble => "TUMBLE",
            Shape::Hop => "HOP",
            Shape::Cumulate => "CUMULATE",
            Shape::Session => "SESSION",
        }
    }

    /// The shape of that name, in any case.
    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.word().eq_ignore_ascii_case(word))
    }

    /// The arguments, in order.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Shape::Tumble => &["DATA", "TIMECOL", "SIZE", "OFFSET"],
            Shape::Hop => &["DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"],
            Shape::Cumulate => &["DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"],
            Shape::Session => &["DATA", "TIMECOL", "GAP"],
        }
    }

    pub(crate) fn example(self) -> &'static str {
        match self {
            Shape::Tumble => "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)",
            Shape::Hop => "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '1' HOUR)",
            Shape::Cumulate => {
                "CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY)"
            }
            Shape::Session => {
                "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '10' MINUTE)"
            }
        }
    }

    /// The function that computes a bound.
    pub(crate) fn function(self, bound: Bound) -> &'static str {
        match (self, bound) {
            (Shape::Tumble, Bound::Start) => "__tumble_start",
            (Shape::Tumble, Bound::End) => "__tumble_end",
            (Shape::Tumble, Bound::Time) => "__tumble_time",
            (Shape::Hop, Bound::Start) => "__hop_start",
            (Shape::Hop, Bound::End) => "__hop_end",
            (Shape::Hop, Bound::Time) => "__hop_time",
            (Shape::Cumulate, Bound::Start) => "__cumulate_start",
            (Shape::Cumulate, Bound::End) => "__cumulate_end",
            (Shape::Cumulate, Bound::Time) => "__cumulate_time",
            (Shape::Session, Bound::Start) => "__session_start",
            (Shape::Session, Bound::End) => "__session_end",
            (Shape::Session, Bound::Time) => "__session_time",
        }
    }

    /// The function that is written for a bound: of windows of which a row has several it gives
    /// all.
    pub(crate) fn written(self, bound: Bound) -> &'static str {
        match (self, bound) {
            (Shape::Hop, Bound::Start) => "__hop_starts",
            (Shape::Hop, Bound::End) => "__hop_ends",
            (Shape::Hop, Bound::Time) => "__hop_times",
            (Shape::Cumulate, Bound::Start) => "__cumulate_starts",
            (Shape::Cumulate, Bound::End) => "__cumulate_ends",
            (Shape::Cumulate, Bound::Time) => "__cumulate_times",
            (Shape::Tumble | Shape::Session, bound) => self.function(bound),
        }
    }

    /// The shape and bound of a function.
    pub(crate) fn of(function: &str) -> Option<(Self, Bound)> {
        let all = Self::ALL.into_iter().flat_map(|s| Bound::ALL.map(|bound| (s, bound)));
        all.into_iter().find(|(shape, bound)| shape.function(*bound) == function)
    }
}

/// A window that the user wrote.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) shape: Shape,
    pub(crate) time: Ident,
    /// Of sessions the columns of PARTITION BY.
    pub(crate) keys: Vec<Ident>,
    /// The slide or step, where there is one.
    pub(crate) slide: Option<Interval>,
    /// The size; of sessions, the gap.
    pub(crate) size: Interval,
    pub(crate) offset: Option<Interval>,
}

/// Replaces each `TUMBLE(…)`, `HOP(…)`, `CUMULATE(…)` and `SESSION(…)`, also inside `TABLE(…)`.
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
        let shape = Shape::ALL.into_iter().find(|shape| is_word(function, shape.word()));
        let Some(shape) = shape.filter(|_| in_from || wrapped) else {
            out.push(token.clone());
            cursor.skip(1);
            continue;
        };
        cursor.skip(at + 2);
        let (table, site) = arguments(&mut cursor, shape)?;
        if wrapped {
            cursor.expect(&Token::RParen)?;
        }
        replace(&mut out, function.span, &table, &site);
        sites.push(site);
    }
    Ok((out, sites))
}

/// The arguments up to the closing parenthesis, by position or by name.
fn arguments(
    cursor: &mut Cursor<'_>,
    shape: Shape,
) -> Result<(Vec<TokenWithSpan>, Site), Diagnostic> {
    let names = shape.arguments();
    let word = shape.word();
    let (mut table, mut time, mut slide, mut size, mut offset) = (None, None, None, None, None);
    let (mut keys, mut given) = (vec![], vec![]);
    for position in 0.. {
        let named = cursor.peek_at(1).is_some_and(|t| t.token == Token::RArrow);
        let place = cursor.place();
        let name = if named {
            let name = cursor.ident("an argument")?.text;
            cursor.skip(1);
            let known = names.iter().find(|known| name.eq_ignore_ascii_case(known));
            known.ok_or_else(|| {
                Diagnostic::at(place, format!("{word} has no argument '{name}'")).nearest(
                    "arguments",
                    &name,
                    names.iter().copied(),
                )
            })?
        } else {
            let count = names.len();
            let many = || Diagnostic::at(place, format!("{word} has {count} arguments at most"));
            names.get(position).ok_or_else(many)?
        };
        if given.contains(name) {
            return Err(Diagnostic::at(place, format!("argument '{name}' is given twice")));
        }
        given.push(name);
        match *name {
            "DATA" => {
                table = Some(table_argument(cursor, shape)?);
                if shape == Shape::Session {
                    keys = partition_by(cursor)?;
                }
            }
            "TIMECOL" => time = Some(descriptor(cursor)?),
            "SLIDE" | "STEP" => slide = Some(interval(cursor)?),
            "SIZE" | "GAP" => size = Some(interval(cursor)?),
            _ => offset = Some(interval(cursor)?),
        }
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    let end = cursor.place();
    if !cursor.token(&Token::RParen) {
        return Err(cursor.expected("',' or ')'"));
    }
    let missing =
        |what: &str| Diagnostic::at(end, format!("{word} lacks its {what}")).hint(shape.example());
    let table = table.ok_or_else(|| missing("table"))?;
    let time = time.ok_or_else(|| missing("time column"))?;
    match shape {
        Shape::Hop if slide.is_none() => return Err(missing("slide")),
        Shape::Cumulate if slide.is_none() => return Err(missing("step")),
        _ => {}
    }
    let length = if shape == Shape::Session { "gap" } else { "size" };
    let size = size.ok_or_else(|| missing(length))?;
    let mut lengths = [Some(size), slide].into_iter().flatten();
    if let Some(length) = lengths.find(|length| length.ns <= 0) {
        return Err(Diagnostic::at(length.place, "a window is longer than nothing"));
    }
    if let Some(step) = slide.filter(|step| shape == Shape::Cumulate && size.ns % step.ns != 0) {
        return Err(Diagnostic::at(step.place, "the step does not divide the size"));
    }
    Ok((table, Site { shape, time, keys, slide, size, offset }))
}

/// The columns of `PARTITION BY a, b` or `PARTITION BY (a, b)`, if that is there.
fn partition_by(cursor: &mut Cursor<'_>) -> Result<Vec<Ident>, Diagnostic> {
    if !cursor.words("PARTITION BY") {
        return Ok(vec![]);
    }
    let closes = cursor.token(&Token::LParen);
    let mut keys = vec![cursor.ident("a column")?];
    loop {
        // Without parentheses, the comma may be that before the next argument.
        let ends = |n: usize| {
            let next = cursor.peek_at(n).map(|next| &next.token);
            !matches!(next, Some(Token::Comma | Token::RParen))
        };
        let is_comma = cursor.peek().is_some_and(|next| next.token == Token::Comma);
        if !is_comma || !closes && ends(2) {
            break;
        }
        cursor.skip(1);
        keys.push(cursor.ident("a column")?);
    }
    if closes {
        cursor.expect(&Token::RParen)?;
    }
    Ok(keys)
}

fn table_argument(cursor: &mut Cursor<'_>, shape: Shape) -> Result<Vec<TokenWithSpan>, Diagnostic> {
    if !cursor.words("TABLE") {
        return Err(cursor.expected("TABLE").hint("name the table as TABLE t"));
    }
    let start = cursor.rest();
    let from = cursor.position();
    let subquery = cursor.peek().is_some_and(|t| t.token == Token::LParen);
    if subquery {
        let message = format!("{} takes a table or view by name", shape.word());
        return Err(Diagnostic::at(cursor.place(), message)
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
    let span_of = |name: &Ident| {
        let start = Location::new(name.place.line as u64, name.place.column as u64);
        let end = Location::new(start.line, start.column + name.place.length as u64);
        Span::new(start, end)
    };
    let mut put = |token: Token, span: Span| out.push(TokenWithSpan { token, span });
    for token in [Token::LParen, Token::make_keyword("SELECT"), Token::Mul] {
        put(token, span);
    }
    for bound in Bound::ALL {
        put(Token::Comma, span);
        if site.slide.is_some() {
            put(word("unnest"), span);
            put(Token::LParen, span);
        }
        put(word(site.shape.written(bound)), span);
        put(Token::LParen, span);
        put(quoted(&site.time.text), span_of(&site.time));
        let offset = site.offset.map_or(0, |offset| offset.ns);
        let session = site.shape == Shape::Session;
        let offset = (!session).then_some(offset);
        let lengths = [Some(site.size.ns), offset, site.slide.map(|slide| slide.ns)];
        for ns in lengths.into_iter().flatten() {
            put(Token::Comma, span);
            put(number(ns), span);
        }
        put(Token::RParen, span);
        if site.slide.is_some() {
            put(Token::RParen, span);
        }
        if session {
            put(Token::make_keyword("OVER"), span);
            put(Token::LParen, span);
            for (at, key) in site.keys.iter().enumerate() {
                let before: &[&str] = if at == 0 { &["PARTITION", "BY"] } else { &[] };
                before.iter().for_each(|keyword| put(Token::make_keyword(keyword), span));
                if at > 0 {
                    put(Token::Comma, span);
                }
                put(quoted(&key.text), span_of(key));
            }
            put(Token::RParen, span);
        }
        for token in [Token::make_keyword("AS"), word(bound.column())] {
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
    pub(crate) shape: Shape,
    pub(crate) bound: Bound,
    pub(crate) time: Expr,
    /// Of sessions what they are of.
    pub(crate) keys: Vec<Expr>,
    pub(crate) lengths: Lengths,
}

/// Where the windows of a function begin and end, as far as that does not depend on rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// The slide or step; of other windows, the size.
    pub(crate) slide_ns: i64,
    /// The size; of sessions, the gap.
    pub(crate) size_ns: i64,
    pub(crate) offset_ns: i64,
}

impl WindowCall {
    /// The window that an expression computes, if it is a call of one of the functions here.
    pub(crate) fn of(expr: &Expr) -> Option<Self> {
        let Expr::ScalarFunction(call) = expr else { return None };
        let (shape, bound) = Shape::of(call.func.name())?;
        let [time, Expr::Literal(size, _), Expr::Literal(offset, _), rest @ ..] = &call.args[..]
        else {
            return None;
        };
        let (size_ns, offset_ns) = (nanos(size)?, nanos(offset)?);
        let (slide_ns, keys) = match rest {
            keys if shape == Shape::Session => (size_ns, keys.to_vec()),
            [] => (size_ns, vec![]),
            [Expr::Literal(slide, _)] => (nanos(slide)?, vec![]),
            _ => return None,
        };
        let lengths = Lengths { slide_ns, size_ns, offset_ns };
        Some(Self { shape, bound, time: time.clone(), keys, lengths })
    }

    /// What tells windows apart of which any two with the same end are the same: nothing, where
    /// they depend on rows.
    pub(crate) fn grid(&self) -> Option<(Shape, Lengths)> {
        (self.shape != Shape::Session).then_some((self.shape, self.lengths))
    }

    /// Whether both are of the same window.
    pub(crate) fn same_window(&self, other: &Self) -> bool {
        let bound = self.bound;
        *self == Self { bound, ..other.clone() }
    }

    /// The site that it comes from.
    pub(crate) fn site<'a>(&self, sites: &'a [Site]) -> Option<&'a Site> {
        let Lengths { slide_ns, size_ns, offset_ns } = self.lengths;
        let fits = |site: &&Site| {
            site.shape == self.shape
                && site.size.ns == size_ns
                && site.offset.map_or(0, |o| o.ns) == offset_ns
                && site.slide.is_none_or(|slide| slide.ns == slide_ns)
        };
        let named = |site: &&Site| match &self.time {
            Expr::Column(column) => column.name == site.time.text,
            _ => false,
        };
        let mut fitting = sites.iter().filter(fits);
        fitting.clone().find(named).or_else(|| fitting.next())
    }
}

pub(crate) fn nanos(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Utf8(Some(text)) => text.parse().ok(),
        _ => None,
    }
}

/// The functions that are written for windows.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let bounds = Bound::ALL.into_iter().map(|bound| BoundOf::new(Shape::Tumble, bound));
    bounds.map(|bound| Arc::new(ScalarUDF::from(bound))).chain(several::functions()).collect()
}

/// `__tumble_…(time, size, offset)`: a bound of the window of `time`, of the same type;
/// `__hop_…(time, size, offset, slide)` and `__cumulate_…(time, size, offset, step)`, which stand
/// in relations for all windows of a row; `__session_…(time, gap, 0, keys…)`, which stands there
/// for the window function of that name.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct BoundOf {
    shape: Shape,
    bound: Bound,
    signature: Signature,
}

impl BoundOf {
    pub(crate) fn new(shape: Shape, bound: Bound) -> Self {
        // What cannot be computed must not be folded where a time is constant.
        let signature = match shape {
            Shape::Tumble => Signature::any(3, Volatility::Immutable),
            Shape::Hop | Shape::Cumulate => Signature::any(4, Volatility::Stable),
            Shape::Session => Signature::variadic_any(Volatility::Stable),
        };
        Self { shape, bound, signature }
    }
}

impl ScalarUDFImpl for BoundOf {
    fn name(&self) -> &str {
        self.shape.function(self.bound)
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
        // Behind time and lengths are the keys of sessions.
        let count = if self.shape == Shape::Session { 2 } else { 3 };
        let lengths = args.scalar_arguments.iter().skip(1).take(count).flatten();
        if lengths.filter_map(|ns| nanos(ns)).any(|ns| ns % tick_ns(*unit) != 0) {
            return Err(PlanError::WindowFiner(*unit, sql_name(time.data_type())).into());
        }
        Ok(Arc::new(Field::new(self.name(), time.data_type().clone(), time.is_nullable())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.shape != Shape::Tumble {
            return exec_err!("{} gives a row no window of its own", self.shape.word());
        }
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

#[cfg(test)]
mod tests;
