//! `ASOF JOIN`, in the manner of DuckDB and in that of Snowflake.
//!
//! ```text
//! a ASOF JOIN b ON a.k = b.k AND a.ts >= b.ts
//!   ⇒ a JOIN b ON a.k = b.k AND __as_of(a.ts, b.ts)
//! a ASOF LEFT JOIN b ON a.k = b.k AND a.ts > b.ts
//!   ⇒ a LEFT JOIN b ON a.k = b.k AND __as_of(a.ts, b.ts, TRUE)
//! a ASOF JOIN b MATCH_CONDITION (a.ts >= b.ts) ON a.k = b.k
//!   ⇒ a LEFT JOIN b ON __as_of(a.ts, b.ts) AND a.k = b.k
//! ```
//!
//! Each form keeps the meaning that it has where it comes from: with MATCH_CONDITION a row without
//! a partner stays, as if LEFT were written.

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::NAME;
use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::{Cursor, is_word};

pub(crate) const FORM: &str = "write stream AS s ASOF JOIN versions AS v ON s.k = v.k AND s.ts >= \
                               v.ts";

/// Words that end the condition of a join.
const ENDS: &[&str] = &[
    "ASOF",
    "JOIN",
    "INNER",
    "LEFT",
    "RIGHT",
    "FULL",
    "CROSS",
    "NATURAL",
    "WHERE",
    "GROUP",
    "HAVING",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "FETCH",
    "UNION",
    "INTERSECT",
    "EXCEPT",
    "WINDOW",
    "QUALIFY",
    "EMIT",
];

/// Replaces each `ASOF JOIN`.
pub(super) fn rewrite(tokens: &[TokenWithSpan]) -> Result<Vec<TokenWithSpan>, Diagnostic> {
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut cursor = Cursor::new(tokens);
    while let Some(token) = cursor.peek() {
        let Some(mut outer) = opened(&mut cursor)? else {
            out.push(token.clone());
            cursor.skip(1);
            continue;
        };
        let table = until(&mut cursor, |next| {
            ["ON", "MATCH_CONDITION", "USING"].iter().any(|word| is_word(next, word))
        });
        let missing = |cursor: &Cursor<'_>| cursor.expected("ON").hint(FORM);
        let mut condition = vec![];
        if cursor.words("MATCH_CONDITION") {
            outer = true;
            cursor.expect(&Token::LParen)?;
            let place = cursor.place();
            let inner = until(&mut cursor, |_| false);
            cursor.expect(&Token::RParen)?;
            condition.extend(compared(inner, place)?);
            condition.push(with(token, Token::make_keyword("AND")));
            if !cursor.words("ON") {
                return Err(missing(&cursor));
            }
            condition.extend(rewrite(until(&mut cursor, |_| false))?);
        } else if cursor.words("ON") {
            let place = cursor.place();
            condition = compared(until(&mut cursor, |_| false), place)?;
        } else {
            return Err(missing(&cursor));
        }
        if outer {
            out.push(with(token, Token::make_keyword("LEFT")));
        }
        out.push(with(token, Token::make_keyword("JOIN")));
        out.extend(rewrite(table)?);
        out.push(with(token, Token::make_keyword("ON")));
        out.extend(condition);
    }
    Ok(out)
}

/// Reads the words that begin a join: whether rows without a partner stay.
fn opened(cursor: &mut Cursor<'_>) -> Result<Option<bool>, Diagnostic> {
    let place = cursor.place();
    let joins = [("JOIN", false), ("INNER JOIN", false), ("LEFT JOIN", true)];
    for (words, outer) in joins.into_iter().chain([("LEFT OUTER JOIN", true)]) {
        if cursor.words(&format!("ASOF {words}")) {
            return Ok(Some(outer));
        }
    }
    for kind in ["RIGHT", "FULL"] {
        if cursor.words(&format!("ASOF {kind}")) {
            let message = format!("there is no ASOF {kind} JOIN");
            return Err(Diagnostic::at(place, message)
                .detail("each row of the stream, on the left, meets one version at most")
                .hint("ASOF JOIN, or ASOF LEFT JOIN to keep rows without a version"));
        }
    }
    Ok(None)
}

/// Reads the tokens up to the end of the clause, or to one that `ends` it.
fn until<'a>(
    cursor: &mut Cursor<'a>,
    ends: impl Fn(&TokenWithSpan) -> bool,
) -> &'a [TokenWithSpan] {
    let (rest, from) = (cursor.rest(), cursor.position());
    let mut depth = 0usize;
    while let Some(next) = cursor.peek() {
        let calls = cursor.peek_at(1).is_some_and(|behind| behind.token == Token::LParen);
        let clause = !calls && ENDS.iter().any(|word| is_word(next, word));
        match next.token {
            Token::LParen => depth += 1,
            Token::RParen | Token::Comma if depth == 0 => break,
            Token::RParen => depth -= 1,
            _ if depth == 0 && (clause || ends(next)) => break,
            _ => {}
        }
        cursor.skip(1);
    }
    &rest[..cursor.position() - from]
}

/// A condition with the comparison of two times in it replaced.
fn compared(condition: &[TokenWithSpan], place: Place) -> Result<Vec<TokenWithSpan>, Diagnostic> {
    let mut found = None;
    let mut depth = 0usize;
    for (at, token) in condition.iter().enumerate() {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            Token::GtEq | Token::Gt | Token::LtEq | Token::Lt if depth == 0 => {
                let (before, behind) =
                    (column_before(&condition[..at]), column(&condition[at + 1..]));
                let (from, to) = (at - before, at + 1 + behind);
                if before == 0 || behind == 0 {
                    continue;
                }
                if found.replace((from, at, to)).is_some() {
                    let message = "the condition of an ASOF JOIN compares more than two times";
                    return Err(Diagnostic::at(Place::of(token.span), message).hint(FORM));
                }
            }
            _ => {}
        }
    }
    let Some((from, at, to)) = found else {
        let message = "the condition of an ASOF JOIN does not compare the times of both sides";
        return Err(Diagnostic::at(place, message).hint(FORM));
    };
    let compares = &condition[at];
    let (mut row, mut version) = (&condition[from..at], &condition[at + 1..to]);
    if matches!(compares.token, Token::LtEq | Token::Lt) {
        (row, version) = (version, row);
    }
    let put = |token: Token| with(compares, token);
    let mut out = rewrite(&condition[..from])?;
    out.extend([put(Token::make_word(NAME, None)), put(Token::LParen)]);
    out.extend_from_slice(row);
    out.push(put(Token::Comma));
    out.extend_from_slice(version);
    if matches!(compares.token, Token::Gt | Token::Lt) {
        out.extend([put(Token::Comma), put(Token::make_keyword("TRUE"))]);
    }
    out.push(put(Token::RParen));
    out.extend(rewrite(&condition[to..])?);
    Ok(out)
}

/// How many tokens name a column, from the first on; none if something else is named.
fn column(tokens: &[TokenWithSpan]) -> usize {
    let is_name =
        |at: usize| matches!(tokens.get(at), Some(t) if matches!(t.token, Token::Word(_)));
    let is_period = |at: usize| tokens.get(at).is_some_and(|t| t.token == Token::Period);
    let mut count = usize::from(is_name(0));
    while count > 0 && is_period(count) && is_name(count + 1) {
        count += 2;
    }
    match tokens.get(count) {
        None => count,
        Some(next) if is_word(next, "AND") => count,
        Some(_) => 0,
    }
}

/// How many tokens name a column, up to the last.
fn column_before(tokens: &[TokenWithSpan]) -> usize {
    let last = tokens.iter().rposition(|token| is_word(token, "AND")).map_or(0, |at| at + 1);
    if column(&tokens[last..]) == tokens.len() - last { tokens.len() - last } else { 0 }
}

/// A token in the place of another.
fn with(of: &TokenWithSpan, token: Token) -> TokenWithSpan {
    TokenWithSpan { token, span: of.span }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::split;

    fn rewritten(sql: &str) -> Result<String, String> {
        let tokens = split(sql).expect("tokens").swap_remove(0);
        let tokens = rewrite(&tokens).map_err(|error| error.message)?;
        Ok(tokens.iter().map(|t| t.token.to_string()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn each_form_becomes_a_join_with_versions() {
        for (sql, expected) in [
            (
                "a ASOF JOIN b ON a.k = b.k AND a.ts >= b.ts WHERE a.x > b.y",
                "a JOIN b ON a . k = b . k AND __as_of ( a . ts , b . ts ) WHERE a . x > b . y",
            ),
            (
                "a asof left join b AS c on a.k = c.k and c.ts < a.ts and c.x > 3, d",
                "a LEFT JOIN b AS c ON a . k = c . k and __as_of ( a . ts , c . ts , TRUE ) and c \
                 . x > 3 , d",
            ),
            (
                "a ASOF JOIN b MATCH_CONDITION (ts >= at) ON a.k = b.k JOIN c ON a.x > c.x",
                "a LEFT JOIN b ON __as_of ( ts , at ) AND a . k = b . k JOIN c ON a . x > c . x",
            ),
            (
                "(a ASOF JOIN (SELECT * FROM x ASOF JOIN y ON x.t >= y.t) AS b ON a.t >= b.t)",
                "( a JOIN ( SELECT * FROM x JOIN y ON __as_of ( x . t , y . t ) ) AS b ON __as_of \
                 ( a . t , b . t ) )",
            ),
            ("SELECT asof FROM t", "SELECT asof FROM t"),
        ] {
            assert_eq!(rewritten(sql).as_deref(), Ok(expected), "{sql}");
        }
    }

    #[test]
    fn what_is_no_such_join_is_refused() {
        for (sql, message) in [
            ("a ASOF RIGHT JOIN b ON a.t >= b.t", "there is no ASOF RIGHT JOIN"),
            ("a ASOF JOIN b USING (k, t)", "expected ON, found 'USING'"),
            ("a ASOF JOIN b WHERE x", "expected ON, found 'WHERE'"),
            (
                "a ASOF JOIN b MATCH_CONDITION (a.t >= b.t)",
                "expected ON, found the end of the statement",
            ),
            (
                "a ASOF JOIN b ON a.k = b.k",
                "the condition of an ASOF JOIN does not compare the times of both sides",
            ),
            (
                "a ASOF JOIN b ON a.t + 1 >= b.t",
                "the condition of an ASOF JOIN does not compare the times of both sides",
            ),
            (
                "a ASOF JOIN b ON a.t >= b.t AND a.t < b.u",
                "the condition of an ASOF JOIN compares more than two times",
            ),
        ] {
            assert_eq!(rewritten(sql), Err(message.to_string()), "{sql}");
        }
    }
}
