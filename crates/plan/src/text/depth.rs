//! How deep a statement may go.
//!
//! A tree is as deep as parentheses and `CASE … END` are nested, and as a chain is long:
//! `a + b + c + …`, `… UNION ALL … UNION ALL …`. Everything that walks the tree needs stack for
//! each level, DataFusion's optimizer some ten KiB, and to run out of it would end the process. So
//! both have a bound, and whatever is within it is planned on a stack that is large enough, whoever
//! asks.

use std::thread;

use dataflow::panics::{Panicked, caught};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::text::diagnostics::{Diagnostic, Place};
use crate::text::syntax::is_word;

/// Links of a chain at most.
pub(crate) const LINKS_MAX: usize = 500;

/// Links at most from the outermost chain to the innermost, where chains stand in the parentheses
/// of others: the depth of the tree.
pub(crate) const DEPTH_MAX: usize = 1_000;

/// Parentheses and `CASE … END` within each other at most.
pub(crate) const NESTED_MAX: usize = 100;

/// Parentheses of [`DOUBLING`] words within each other at most: the work doubles with each.
pub(crate) const DOUBLED_MAX: usize = 10;

/// Levels that the parser goes down at most. It needs several for each of ours, so that theirs are
/// never the first to end.
pub(crate) const PARSER_LEVELS_MAX: usize = 20 * DEPTH_MAX;

/// Tokens of a statement at most.
const TOKENS_MAX: usize = 2_000_000;

/// Bytes of stack; what is not used is never memory.
const STACK_BYTES: usize = 256 << 20;

/// Words that are operators.
const OPERATORS: &[&str] = &[
    "AND", "OR", "NOT", "XOR", "IS", "LIKE", "ILIKE", "BETWEEN", "IN", "DIV", "AT", "COLLATE",
    "SIMILAR", "ESCAPE", "OVERLAPS",
];
/// Words whose parentheses are read twice, by the parser (`NOT (` may begin a call) or by
/// DataFusion's planner of names.
const DOUBLING: &[&str] = &["NOT", "ROW", "STRUCT", "FILTER"];
/// Words behind which another expression begins.
const BEGIN: &[&str] = &[
    "SELECT", "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "BY", "ON", "WHEN", "THEN", "ELSE",
    "WITH", "LIMIT", "VALUES", "QUALIFY",
];
/// Words that put two inputs together.
const INPUTS: &[&str] = &["UNION", "EXCEPT", "INTERSECT", "JOIN", "APPLY"];

/// The chains at one level of parentheses.
#[derive(Default)]
struct Level {
    /// Operators since the expression began.
    operators: usize,
    /// Inputs put together so far.
    inputs: usize,
    /// Whether a comma puts two inputs together.
    from: bool,
    /// Whether `END` closes it.
    case: bool,
    /// Whether its parentheses are those of a word of [`DOUBLING`].
    doubles: bool,
    /// The deepest parentheses within the expression, and of those before.
    within: usize,
    before: usize,
}

impl Level {
    /// Another expression begins.
    fn begins(&mut self) {
        self.before = self.depth_of_exprs();
        (self.operators, self.within) = (0, 0);
    }

    fn depth_of_exprs(&self) -> usize {
        self.before.max(self.operators + self.within)
    }

    /// Something within it ends that is so deep.
    fn has_within(&mut self, depth: usize) {
        self.within = self.within.max(depth);
    }

    /// How deep the tree of it is.
    fn depth(&self) -> usize {
        self.inputs + self.depth_of_exprs()
    }
}

/// Refuses a statement with a chain that is too long.
///
/// # Errors
/// At the first link too many.
pub(crate) fn check(tokens: &[TokenWithSpan]) -> Result<(), Diagnostic> {
    if let Some(token) = tokens.get(TOKENS_MAX) {
        let message = format!("a statement of more than {TOKENS_MAX} words and signs");
        return Err(Diagnostic::at(Place::of(token.span), message)
            .hint("write the rows into a file, and read it as a table"));
    }
    let mut levels = vec![Level::default()];
    for (at, token) in tokens.iter().enumerate() {
        let any = |words: &[&str]| words.iter().any(|word| is_word(token, word));
        let Some(level) = levels.last_mut() else { return Ok(()) };
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => {
                let behind = at.checked_sub(1).map(|before| &tokens[before]);
                let doubles =
                    behind.is_some_and(|before| DOUBLING.iter().any(|word| is_word(before, word)));
                levels.push(Level { doubles, ..Level::default() });
                if doubles && levels.iter().filter(|level| level.doubles).count() > DOUBLED_MAX {
                    return Err(doubled_too_often(token));
                }
            }
            Token::Word(_) if is_word(token, "CASE") => {
                levels.push(Level { case: true, ..Level::default() });
            }
            Token::Word(_) if is_word(token, "END") && level.case => close(&mut levels),
            Token::RParen | Token::RBracket | Token::RBrace => {
                // A CASE that has no END ends with what it stands in.
                while levels.last().is_some_and(|level| level.case) {
                    close(&mut levels);
                }
                close(&mut levels);
                // One subscript may follow another.
                let brackets = matches!(token.token, Token::RBracket);
                if let Some(level) = levels.last_mut().filter(|_| brackets) {
                    level.operators += 1;
                }
            }
            Token::Comma if level.from => level.inputs += 1,
            Token::Comma => level.begins(),
            Token::Word(_) if any(INPUTS) => level.inputs += 1,
            Token::Word(_) if any(BEGIN) => {
                level.begins();
                level.from = is_word(token, "FROM") || level.from && is_word(token, "ON");
            }
            Token::Word(_) if any(OPERATORS) => level.operators += 1,
            Token::Word(_) | Token::Number(..) | Token::SingleQuotedString(_) | Token::Period => {}
            _ => level.operators += 1,
        }
        if levels.len() > NESTED_MAX + 1 {
            let message = format!("more than {NESTED_MAX} parentheses within each other");
            return Err(Diagnostic::at(Place::of(token.span), message)
                .hint("compute parts of it in views, or name subqueries by WITH"));
        }
        let chain = levels.last().map_or(0, |level| level.operators.max(level.inputs));
        if chain > LINKS_MAX {
            let message = format!("a chain of more than {LINKS_MAX} operators");
            return Err(Diagnostic::at(Place::of(token.span), message).hint(
                "write x IN (…) for many comparisons with OR; VALUES or a file for many UNIONs; \
                 else compute parts of it in views",
            ));
        }
        let depth = levels.last().map_or(0, Level::depth);
        if depth > DEPTH_MAX {
            let message = format!("chains of operators within each other, {DEPTH_MAX} together");
            return Err(
                Diagnostic::at(Place::of(token.span), message).hint("compute parts of it in views")
            );
        }
    }
    Ok(())
}

/// The error of one parenthesis of [`DOUBLING`] words too many.
fn doubled_too_often(token: &TokenWithSpan) -> Diagnostic {
    let words = DOUBLING.join(", ");
    let message = format!("more than {DOUBLED_MAX} parentheses of {words} within each other");
    Diagnostic::at(Place::of(token.span), message)
        .hint("compute parts of it in views, or name subqueries by WITH")
}

/// Ends the innermost level, which is one of the level around it.
fn close(levels: &mut Vec<Level>) {
    let Some(inner) = (levels.len() > 1).then(|| levels.pop()).flatten() else { return };
    if let Some(level) = levels.last_mut() {
        level.has_within(inner.depth() + 1);
    }
}

/// Plans on a large stack.
///
/// # Errors
/// Those of `work`, a panic of it as a bug of ours, and when there is no memory for a thread.
pub(crate) fn guarded<T: Send>(
    work: impl FnOnce() -> Result<T, Vec<Diagnostic>> + Send,
) -> Result<T, Vec<Diagnostic>> {
    let start = Place { line: 1, column: 1, length: 1 };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("plan".into()).stack_size(STACK_BYTES);
        let started = thread.spawn_scoped(scope, || unless_it_panics(start, work));
        let done = started.map(|thread| thread.join());
        done.map_err(|error| Diagnostic::at(start, format!("there is no stack: {error}")))
            .and_then(|done| done.map_err(|panic| Diagnostic::bug(start, &Panicked::of(&*panic))))
            .unwrap_or_else(|error| Err(vec![error]))
    })
}

/// Plans something that begins at a place. What a panic leaves half done is the caller's to put
/// back.
///
/// # Errors
/// Those of `work`, and a panic of it as a bug of ours.
pub(crate) fn unless_it_panics<T>(
    place: Place,
    work: impl FnOnce() -> Result<T, Vec<Diagnostic>>,
) -> Result<T, Vec<Diagnostic>> {
    caught(work).unwrap_or_else(|panicked| Err(vec![Diagnostic::bug(place, &panicked)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::syntax::split;

    fn refused(sql: &str) -> Option<usize> {
        split(sql).err().map(|error| {
            assert!(error.message.contains("chain"), "{}", error.message);
            error.column
        })
    }

    #[test]
    fn chains_have_a_bound_and_lists_have_none() {
        let sql = |link: &str, links: usize| format!("SELECT 1{} FROM t", link.repeat(links));
        for link in [" + 1", " AND 1", " UNION ALL SELECT 1", "[1]", " IS NULL", "::INT"] {
            assert_eq!(refused(&sql(link, LINKS_MAX)), None, "{link}");
            assert!(refused(&sql(link, LINKS_MAX + 1)).is_some(), "{link}");
        }
        assert_eq!(refused(&sql(" + 1", LINKS_MAX + 1)), Some(9 + LINKS_MAX * 4 + 1));
        for link in [", 1", ", 1 + 1", ", f(1, 2)"] {
            assert_eq!(refused(&sql(link, 4 * LINKS_MAX)), None, "{link}");
        }
        let from = |links: usize| format!("SELECT 1 FROM t{}", ", t".repeat(links));
        assert!(refused(&from(LINKS_MAX)).is_none() && refused(&from(LINKS_MAX + 1)).is_some());
    }

    #[test]
    fn parentheses_that_double_the_work_have_a_bound() {
        let sql = |word: &str, depth: usize| {
            format!("SELECT {}1{} FROM t", format!("{word} (").repeat(depth), ")".repeat(depth))
        };
        for word in ["NOT", "ROW", "struct", "count(*) FILTER"] {
            assert!(split(&sql(word, DOUBLED_MAX)).is_ok(), "{word}");
            let error = split(&sql(word, DOUBLED_MAX + 1)).expect_err(word);
            assert!(error.message.contains("more than 10 parentheses of NOT"), "{error:?}");
        }
        assert!(split(&format!("SELECT 1{}", ", NOT (a)".repeat(100))).is_ok());
        assert!(split(&sql("f", DOUBLED_MAX + 1)).is_ok());
    }

    #[test]
    fn what_is_within_parentheses_is_a_chain_of_its_own() {
        let inner = format!("(1{})", " + 1".repeat(LINKS_MAX));
        assert_eq!(refused(&format!("SELECT {inner}, {inner} * {inner}")), None);
    }

    #[test]
    fn chains_within_chains_are_as_deep_as_all_together() {
        let sql = |links: [usize; 3]| {
            let chain = |inner: String, links| format!("({inner}{})", " + 1".repeat(links));
            let chains = links.into_iter().fold("1".to_string(), chain);
            format!("SELECT f(1, {chains}), {chains} FROM t")
        };
        assert_eq!(refused(&sql([400, 400, 190])), None);
        assert!(refused(&sql([400, 400, 400])).is_some());
        let unions = |links: usize| format!("(SELECT 1{})", " UNION ALL SELECT 1".repeat(links));
        let nested = |links| format!("SELECT * FROM {} AS u{}", unions(links), ", t".repeat(links));
        assert!(refused(&nested(400)).is_none());
    }

    #[test]
    fn parentheses_and_cases_within_each_other_have_a_bound() {
        let levels = [("(", "1", ")"), ("[", "1", "]"), ("CASE WHEN ", "TRUE", " THEN 1 END")];
        for (open, inner, close) in levels {
            let sql = |n: usize| format!("SELECT {}{inner}{}", open.repeat(n), close.repeat(n));
            assert!(split(&sql(NESTED_MAX)).is_ok(), "{open}");
            let error = split(&sql(NESTED_MAX + 1)).expect_err(open);
            assert_eq!(error.message, "more than 100 parentheses within each other");
            let many = format!("SELECT {}", vec![format!("{open}{inner}{close}"); 300].join(", "));
            assert!(split(&many).is_ok(), "{open}");
        }
        assert!(split(&format!("SELECT {}", "(CASE 1)".repeat(300))).is_ok(), "no END");
        assert!(split("BEGIN STATEMENT SET; END; END").is_ok());
    }

    #[test]
    fn a_panic_is_a_bug_at_its_statement() {
        assert_eq!(guarded(|| Ok(7)).ok(), Some(7));
        let place = Place { line: 3, column: 2, length: 6 };
        let failed = guarded(|| unless_it_panics::<()>(place, || panic!("so")));
        let failed = failed.expect_err("a panic");
        assert_eq!((failed[0].line, failed[0].detail.as_deref()), (3, Some("so")));
        assert!(failed[0].bug && failed[0].message.starts_with("this is a bug in millstream"));
        assert!(guarded::<()>(|| panic!("{}", 1)).expect_err("a panic")[0].bug);
    }
}
