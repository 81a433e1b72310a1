//! `EMIT EVERY INTERVAL '10' SECOND` behind a query: windows emit results before they end.
//!
//! Where a query may have it is decided in [`crate::lower::early`]; `EMIT_KIND()` is in
//! [`crate::expr::emit_kind`].

use std::num::NonZeroU64;

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::interval::interval;
use crate::text::syntax::{Cursor, is_word};

/// An interval is at least a millisecond.
const EVERY_NS_MIN: i64 = 1_000_000;

const FORM: &str = "write EMIT EVERY INTERVAL '10' SECOND";

/// `EMIT EVERY …`.
#[derive(Debug, Clone)]
pub(crate) struct Emit {
    pub(crate) every_ns: NonZeroU64,
    /// Where it stands.
    place: Place,
}

/// Takes `EMIT …` from the end of a query.
pub(crate) fn split(
    tokens: &[TokenWithSpan],
) -> Result<(&[TokenWithSpan], Option<Emit>), Diagnostic> {
    let mut depth = 0i32;
    let mut found = None;
    for (at, token) in tokens.iter().enumerate() {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ if begins(&tokens[at..]) && depth > 0 => {
                let message = "EMIT stands at the end of a statement";
                return Err(Diagnostic::at(Place::of(token.span), message).hint(
                    "behind the whole query; the grouping next to the statement's sink is the one \
                     that is meant",
                ));
            }
            _ if begins(&tokens[at..]) => found = Some(at),
            _ => {}
        }
    }
    let Some(at) = found else {
        let asks = |token: &&TokenWithSpan| is_word(token, "EMIT_KIND");
        return match tokens.iter().find(asks) {
            Some(token) => Err(Diagnostic::at(
                Place::of(token.span),
                "EMIT_KIND() tells early rows from final ones, and this query has no EMIT",
            )
            .hint("add EMIT EVERY INTERVAL '10' SECOND at its end, or leave EMIT_KIND() out")),
            None => Ok((tokens, None)),
        };
    };
    let mut cursor = Cursor::new(tokens);
    cursor.skip(at + 1);
    let emit = read(&mut cursor, Place::of(tokens[at].span))?;
    cursor.end()?;
    Ok((&tokens[..at], Some(emit)))
}

/// Whether a clause begins here, and not a thing of that name.
fn begins(tokens: &[TokenWithSpan]) -> bool {
    let word = |at: usize, word: &str| tokens.get(at).is_some_and(|token| is_word(token, word));
    let forms = ["EVERY", "STREAM", "AFTER", "CHANGES", "FINAL", "PERIODIC", "INTERVAL"];
    word(0, "EMIT")
        && (forms.iter().any(|form| word(1, form)) || word(1, "ON") && word(2, "WINDOW"))
}

fn read(cursor: &mut Cursor<'_>, place: Place) -> Result<Emit, Diagnostic> {
    if !cursor.words("EVERY") {
        let form = cursor.peek().map(|token| token.token.to_string().to_uppercase());
        let error = Diagnostic::at(place, "EMIT takes EVERY and an interval, and nothing else");
        return Err(match form.as_deref() {
            Some("STREAM" | "CHANGES") => error
                .detail("rows are never taken back: an early row is followed by a later one")
                .hint(FORM),
            Some("FINAL" | "ON") => {
                error.hint("leave EMIT out: a window emits its result once, when it has ended")
            }
            _ => error.hint(FORM),
        });
    }
    let every = interval(cursor).map_err(|error| match error.hint {
        Some(_) => error,
        None => error.hint(FORM),
    })?;
    let every_ns = u64::try_from(every.ns.max(0)).ok().and_then(NonZeroU64::new);
    match every_ns.filter(|_| every.ns >= EVERY_NS_MIN) {
        Some(every_ns) => Ok(Emit { every_ns, place }),
        None => Err(Diagnostic::at(every.place, "an interval of EMIT is at least a millisecond")),
    }
}

impl Emit {
    /// The error that it is written where rows do not go to a sink.
    pub(crate) fn elsewhere(&self, what: &str) -> Diagnostic {
        Diagnostic::at(self.place, format!("EMIT is for a statement's sink, and this is {what}"))
            .hint("write it at the end of the SELECT or INSERT that reads it")
    }

    /// The error that there are no windows.
    pub(crate) fn without_windows(&self) -> Diagnostic {
        self.refused("no rows are grouped by a window here").hint(
            "FROM TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR) … \
                 GROUP BY window_start, window_end",
        )
    }

    /// The error that windows cannot emit early results, for a reason.
    pub(crate) fn refused(&self, reason: &str) -> Diagnostic {
        Diagnostic::at(self.place, format!("windows cannot emit early results: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax;

    fn of(sql: &str) -> Result<(usize, Option<u64>), String> {
        let tokens = syntax::split(sql).expect("tokens").swap_remove(0);
        let split = split(&tokens).map_err(|error| error.message);
        split.map(|(rest, emit)| (rest.len(), emit.map(|emit| emit.every_ns.get())))
    }

    #[test]
    fn the_clause_is_told_from_things_of_its_name() {
        assert_eq!(
            of("SELECT a FROM t EMIT EVERY INTERVAL '2' SECOND"),
            Ok((4, Some(2_000_000_000)))
        );
        assert_eq!(of("SELECT emit FROM emit AS emit"), Ok((6, None)));
        assert_eq!(of("SELECT emit, every FROM t JOIN emit ON emit.a = t.a"), Ok((16, None)));
        for sql in [
            "SELECT a FROM (SELECT 1 EMIT EVERY INTERVAL '1' SECOND) AS t",
            "SELECT 1 EMIT EVERY INTERVAL '1' SECOND LIMIT 1",
            "SELECT 1 EMIT EVERY 10",
            "SELECT 1 EMIT EVERY INTERVAL '0' SECOND",
            "SELECT 1 EMIT EVERY INTERVAL '-1' SECOND",
            "SELECT 1 EMIT STREAM AFTER DELAY INTERVAL '1' SECOND",
            "SELECT 1 EMIT CHANGES",
            "SELECT 1 EMIT ON WINDOW CLOSE",
            "SELECT EMIT_KIND()",
        ] {
            assert!(of(sql).is_err(), "{sql}");
        }
    }
}
