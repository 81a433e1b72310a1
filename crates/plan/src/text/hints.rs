//! The hint of a query: `/*+ BROADCAST(t) */`, a side of a join that shall go to every worker.
//!
//! A hint stands anywhere in a script and names the side of a join by its name or alias there.
//! What no join heeds is an error.

use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer, Whitespace};

use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::DIALECT;

/// The hints of a script.
#[derive(Debug, Default)]
pub(crate) struct Hints(Vec<Hint>);

/// A side that shall go to every worker.
#[derive(Debug)]
pub(crate) struct Hint {
    pub(crate) place: Place,
    pub(crate) name: String,
    heeded: AtomicBool,
}

impl Hints {
    /// The hints of a script. What is no SQL at all has none.
    ///
    /// # Errors
    /// A hint of another form.
    pub(crate) fn of(sql: &str) -> Result<Self, Diagnostic> {
        let tokens = Tokenizer::new(&DIALECT, sql).tokenize_with_location().unwrap_or_default();
        let mut hints = vec![];
        for token in &tokens {
            hints.extend(hint_of(token)?);
        }
        Ok(Self(hints))
    }

    /// The hint that names a side.
    pub(crate) fn of_side(&self, name: &str) -> Option<&Hint> {
        self.0.iter().find(|hint| hint.name.eq_ignore_ascii_case(name))
    }

    /// The errors that hints were not heeded.
    pub(crate) fn unheeded(&self) -> impl Iterator<Item = Diagnostic> {
        self.0.iter().filter(|hint| !hint.heeded.load(Ordering::Relaxed)).map(|hint| {
            let name = &hint.name;
            let message = format!("no join has a side '{name}' that could go to every worker");
            Diagnostic::at(hint.place, message).hint(
                "name a side as the join does, by its alias: \
                 SELECT /*+ BROADCAST(t) */ … FROM a JOIN b AS t",
            )
        })
    }
}

impl Hint {
    /// A join does what it asks for.
    pub(crate) fn heed(&self) {
        self.heeded.store(true, Ordering::Relaxed);
    }
}

/// The hints of a comment, if it is one.
fn hint_of(token: &TokenWithSpan) -> Result<Vec<Hint>, Diagnostic> {
    let Token::Whitespace(Whitespace::MultiLineComment(text)) = &token.token else {
        return Ok(vec![]);
    };
    let Some(asked) = text.strip_prefix('+') else { return Ok(vec![]) };
    let start = token.span.start;
    let length = if start.line == token.span.end.line { text.chars().count() + 4 } else { 3 };
    let place = Place { line: start.line as usize, column: start.column as usize, length };
    let names = names(asked.trim()).ok_or_else(|| {
        Diagnostic::at(place, format!("there is no hint '{}' of queries", asked.trim()))
            .detail("the only one is BROADCAST(t): a side of a join goes to every worker")
            .hint("options of a table stand in its WITH (…), others in SET; leave the hint out")
    })?;
    let hint = |name: &str| Hint { place, name: name.into(), heeded: AtomicBool::new(false) };
    Ok(names.into_iter().map(hint).collect())
}

/// The names in `BROADCAST(a, b)`.
fn names(text: &str) -> Option<Vec<&str>> {
    let (word, rest) = text.split_once('(')?;
    let inside = rest.trim_end().strip_suffix(')')?;
    let names: Vec<&str> = inside.split(',').map(|name| name.trim().trim_matches('"')).collect();
    let named = |name: &&str| !name.is_empty() && !name.contains(['(', ')']);
    (word.trim().eq_ignore_ascii_case("broadcast") && names.iter().all(named)).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_read_and_others_are_refused() {
        let hints = Hints::of("SELECT /*+ BROADCAST(a, \"B\") */ 1 /* not one */").expect("hints");
        assert_eq!(hints.of_side("b").map(|hint| hint.place.column), Some(8));
        assert!(hints.of_side("c").is_none());
        hints.of_side("A").expect("it is there").heed();
        let left: Vec<_> = hints.unheeded().map(|error| error.message).collect();
        assert_eq!(left, ["no join has a side 'B' that could go to every worker"]);
        for text in ["OPTIONS('x'='y')", "BROADCAST", "BROADCAST()", "BROADCAST(a) x", ""] {
            let error = Hints::of(&format!("SELECT\n  /*+ {text} */ 1")).expect_err(text);
            assert_eq!((error.line, error.column), (2, 3), "{text}");
        }
    }
}
