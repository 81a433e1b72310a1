//! `TUMBLE`, `HOP`, `CUMULATE` and `SESSION`: windows in FROM.
//!
//! DataFusion's SQL has no windowing table functions. A pass over the tokens makes a query of each,
//! in which the table's name and the time column are the user's own tokens, with their places; in
//! the place of that query the planner puts a node of ours ([`WindowAssign`]):
//!
//! ```text
//! TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)
//!   ⇒ (SELECT __window(ts, 'TUMBLE', slide, size, offset) FROM t)
//!   ⇒ WindowAssign: TUMBLE on t.ts, size 1 h
//!       TableScan: t
//! ```
//!
//! In a relation ([`crate::lower::relation`]) bounds are written as calls of functions
//! ([`WindowCall`]), which compute those of `TUMBLE` where rows are not grouped.

mod assign;
mod bound;
mod columns;
mod lists;
mod session;

use datafusion::sql::sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Word};

pub(crate) use self::assign::{WindowAssign, WindowPlanner, expanded};
pub(crate) use self::bound::{BoundOf, Lengths, WindowCall, bound_named, lateness_of, nanos};
pub(crate) use self::columns::{BoundColumn, RowWindows, ends_meet};
pub(crate) use self::lists::{WINDOWS_OF_ROW_MAX, no_windows, windows_of};
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::interval::{Interval, interval};
use crate::text::syntax::{Cursor, Ident, WINDOW_CALL, is_word};

/// Which bound of the window a function gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Bound {
    Start,
    End,
    Time,
}

impl Bound {
    /// All, in the order in which a grouping gives them out.
    pub(crate) const ALL: [Bound; 3] = [Bound::Start, Bound::End, Bound::Time];

    /// All, the one first that tells most windows from others.
    pub(crate) const TELLING: [Bound; 3] = [Bound::End, Bound::Time, Bound::Start];

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum WindowShape {
    Tumble,
    Hop,
    Cumulate,
    Session,
}

impl WindowShape {
    const ALL: [WindowShape; 4] =
        [WindowShape::Tumble, WindowShape::Hop, WindowShape::Cumulate, WindowShape::Session];

    /// The function in SQL.
    pub(crate) fn word(self) -> &'static str {
        match self {
            WindowShape::Tumble => "TUMBLE",
            WindowShape::Hop => "HOP",
            WindowShape::Cumulate => "CUMULATE",
            WindowShape::Session => "SESSION",
        }
    }

    /// The shape of that name, in any case.
    pub(crate) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.word().eq_ignore_ascii_case(word))
    }

    /// The arguments, in order.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            WindowShape::Tumble => &["DATA", "TIMECOL", "SIZE", "OFFSET"],
            WindowShape::Hop => &["DATA", "TIMECOL", "SLIDE", "SIZE", "OFFSET"],
            WindowShape::Cumulate => &["DATA", "TIMECOL", "STEP", "SIZE", "OFFSET"],
            WindowShape::Session => &["DATA", "TIMECOL", "GAP"],
        }
    }

    pub(crate) fn example(self) -> &'static str {
        match self {
            WindowShape::Tumble => "TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR)",
            WindowShape::Hop => {
                "HOP(TABLE t, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '1' HOUR)"
            }
            WindowShape::Cumulate => {
                "CUMULATE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR, INTERVAL '1' DAY)"
            }
            WindowShape::Session => {
                "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), INTERVAL '10' MINUTE)"
            }
        }
    }

    /// The function that computes a bound.
    pub(crate) fn function(self, bound: Bound) -> &'static str {
        match (self, bound) {
            (WindowShape::Tumble, Bound::Start) => "__tumble_start",
            (WindowShape::Tumble, Bound::End) => "__tumble_end",
            (WindowShape::Tumble, Bound::Time) => "__tumble_time",
            (WindowShape::Hop, Bound::Start) => "__hop_start",
            (WindowShape::Hop, Bound::End) => "__hop_end",
            (WindowShape::Hop, Bound::Time) => "__hop_time",
            (WindowShape::Cumulate, Bound::Start) => "__cumulate_start",
            (WindowShape::Cumulate, Bound::End) => "__cumulate_end",
            (WindowShape::Cumulate, Bound::Time) => "__cumulate_time",
            (WindowShape::Session, Bound::Start) => "__session_start",
            (WindowShape::Session, Bound::End) => "__session_end",
            (WindowShape::Session, Bound::Time) => "__session_time",
        }
    }

    /// The function that is written for a bound: of windows of which a row has several it gives
    /// all.
    pub(crate) fn written(self, bound: Bound) -> &'static str {
        match (self, bound) {
            (WindowShape::Hop, Bound::Start) => "__hop_starts",
            (WindowShape::Hop, Bound::End) => "__hop_ends",
            (WindowShape::Hop, Bound::Time) => "__hop_times",
            (WindowShape::Cumulate, Bound::Start) => "__cumulate_starts",
            (WindowShape::Cumulate, Bound::End) => "__cumulate_ends",
            (WindowShape::Cumulate, Bound::Time) => "__cumulate_times",
            (WindowShape::Tumble | WindowShape::Session, bound) => self.function(bound),
        }
    }

    /// The shape and bound of a function.
    pub(crate) fn of(function: &str) -> Option<(Self, Bound)> {
        let all = Self::ALL.into_iter().flat_map(|s| Bound::ALL.map(|bound| (s, bound)));
        all.into_iter().find(|(shape, bound)| shape.function(*bound) == function)
    }
}

/// The argument of all of them that has a name only.
const LATENESS: &str = "LATENESS";

/// A window that the user wrote.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) shape: WindowShape,
    /// Where its table is named.
    pub(crate) table: Place,
    pub(crate) time: Ident,
    /// Of sessions the columns of PARTITION BY.
    pub(crate) keys: Vec<Ident>,
    /// The slide or step, where there is one.
    pub(crate) slide: Option<Interval>,
    /// The size; of sessions, the gap.
    pub(crate) size: Interval,
    pub(crate) offset: Option<Interval>,
    /// How long its rows may be late, if that is written.
    pub(crate) lateness: Option<Interval>,
}

impl Site {
    fn lengths(&self) -> Lengths {
        let offset_ns = self.offset.map_or(0, |offset| offset.ns);
        let slide_ns = self.slide.unwrap_or(self.size).ns;
        Lengths { slide_ns, size_ns: self.size.ns, offset_ns }
    }
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
        let shape = WindowShape::ALL.into_iter().find(|shape| is_word(function, shape.word()));
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
    shape: WindowShape,
) -> Result<(Vec<TokenWithSpan>, Site), Diagnostic> {
    let names = shape.arguments();
    let word = shape.word();
    let (mut table, mut time, mut slide, mut size, mut offset) = (None, None, None, None, None);
    let (mut keys, mut given, mut lateness) = (vec![], vec![], None);
    for position in 0.. {
        let named = cursor.peek_at(1).is_some_and(|t| t.token == Token::RArrow);
        let place = cursor.place();
        let name = if named {
            let name = cursor.ident("an argument")?.text;
            cursor.skip(1);
            let all = || names.iter().chain([&LATENESS]);
            let known = all().find(|known| name.eq_ignore_ascii_case(known));
            known.ok_or_else(|| {
                let error = Diagnostic::at(place, format!("{word} has no argument '{name}'"));
                error.nearest("arguments", &name, all().copied())
            })?
        } else {
            let count = names.len();
            let many = || {
                Diagnostic::at(place, format!("{word} has {count} arguments at most"))
                    .hint("one more has a name: LATENESS => INTERVAL '5' MINUTE")
            };
            names.get(position).ok_or_else(many)?
        };
        if given.contains(name) {
            return Err(Diagnostic::at(place, format!("argument '{name}' is given twice")));
        }
        given.push(name);
        match *name {
            "DATA" => {
                table = Some(table_argument(cursor, shape)?);
                if shape == WindowShape::Session {
                    keys = partition_by(cursor)?;
                }
            }
            "TIMECOL" => time = Some(descriptor(cursor)?),
            "SLIDE" | "STEP" => slide = Some(interval(cursor)?),
            "SIZE" | "GAP" => size = Some(interval(cursor)?),
            LATENESS => lateness = Some(interval(cursor)?),
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
        WindowShape::Hop if slide.is_none() => return Err(missing("slide")),
        WindowShape::Cumulate if slide.is_none() => return Err(missing("step")),
        _ => {}
    }
    let length = if shape == WindowShape::Session { "gap" } else { "size" };
    let size = size.ok_or_else(|| missing(length))?;
    let named = table.first().map_or(Place::default(), |name| Place::of(name.span));
    let site = Site { shape, table: named, time, keys, slide, size, offset, lateness };
    check_lengths(&site)?;
    Ok((table, site))
}

/// The lengths of a window.
fn check_lengths(site: &Site) -> Result<(), Diagnostic> {
    let Site { shape, slide, size, lateness, .. } = site;
    let mut lengths = [Some(*size), *slide].into_iter().flatten();
    if let Some(length) = lengths.find(|length| length.ns <= 0) {
        return Err(Diagnostic::at(length.place, "a window is longer than nothing"));
    }
    if let Some(lateness) = lateness.filter(|lateness| lateness.ns < 0) {
        return Err(Diagnostic::at(lateness.place, "a lateness is not negative"));
    }
    if let Some(step) =
        slide.filter(|step| *shape == WindowShape::Cumulate && size.ns % step.ns != 0)
    {
        return Err(Diagnostic::at(step.place, "the step does not divide the size"));
    }
    Ok(())
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

fn table_argument(
    cursor: &mut Cursor<'_>,
    shape: WindowShape,
) -> Result<Vec<TokenWithSpan>, Diagnostic> {
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

/// Writes the query that stands for a window: a call with the time, the shape, and slide, size,
/// offset and a lateness that was written, in nanoseconds; beside the call the keys of sessions.
fn replace(out: &mut Vec<TokenWithSpan>, span: Span, table: &[TokenWithSpan], site: &Site) {
    let word = |text: &str| Token::make_word(text, None);
    let mut put = |token: Token, span: Span| out.push(TokenWithSpan { token, span });
    for token in [Token::LParen, Token::make_keyword("SELECT")] {
        put(token, span);
    }
    put(word(WINDOW_CALL), span);
    put(Token::LParen, span);
    put(quoted(&site.time.text), span_of(&site.time));
    let Lengths { slide_ns, size_ns, offset_ns } = site.lengths();
    let lateness_ns = site.lateness.map(|lateness| lateness.ns);
    let lengths = [Some(slide_ns), Some(size_ns), Some(offset_ns), lateness_ns];
    let lengths = lengths.into_iter().flatten().map(|ns| ns.to_string());
    for argument in [site.shape.word().to_owned()].into_iter().chain(lengths) {
        put(Token::Comma, span);
        put(Token::SingleQuotedString(argument), span);
    }
    put(Token::RParen, span);
    for key in &site.keys {
        put(Token::Comma, span);
        put(quoted(&key.text), span_of(key));
    }
    put(Token::make_keyword("FROM"), span);
    table.iter().for_each(|token| put(token.token.clone(), token.span));
    put(Token::RParen, span);
}

fn quoted(text: &str) -> Token {
    let keyword = datafusion::sql::sqlparser::keywords::Keyword::NoKeyword;
    Token::Word(Word { value: text.to_string(), quote_style: Some('"'), keyword })
}

/// Where the user wrote a name.
fn span_of(name: &Ident) -> Span {
    let start = Location::new(name.place.line as u64, name.place.column as u64);
    let end = Location::new(start.line, start.column + name.place.length as u64);
    Span::new(start, end)
}

#[cfg(test)]
mod tests;
