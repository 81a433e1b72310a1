//! Hints of query blocks: `SELECT /*+ EXCHANGE('merge'), BROADCAST(t) */ … FROM …`.
//!
//! A hint stands behind the SELECT of the block that it is about, and names a side of a join by its
//! name or alias there. A hint that nothing obeys is an error. One within a view is obeyed where
//! the view is read.

use std::sync::atomic::{AtomicBool, Ordering};

use dataflow::job::{Exchange, Reason};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer, Whitespace};

use crate::text::diagnostics::{Diagnostic, Place, nearest};
use crate::text::syntax::{DIALECT, is_word};

/// The names of all hints, as they are written.
const FORMS: &str = "there are EXCHANGE('…'), FORWARD, BROADCAST(t), PULL(t), MULTICAST(t), \
                     SHUFFLE(t) and LEADING(t, u, …)";

const NAMES: &[&str] =
    &["EXCHANGE", "FORWARD", "BROADCAST", "PULL", "MULTICAST", "SHUFFLE", "LEADING"];

/// The hints of the script that is planned, and those of the views of earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Hints(Vec<Hint>);

/// A hint.
#[derive(Debug)]
pub(crate) struct Hint {
    pub(crate) asked: Asked,
    /// Where it stands in its script, and which script that is.
    pub(crate) place: Place,
    pub(crate) script: u64,
    /// The SELECT of its block.
    pub(crate) select: Place,
    is_of_view: bool,
    is_obeyed: AtomicBool,
}

/// The request of a hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// How rows of different workers meet in the groupings and joins of the block.
    Exchange(Exchange),
    /// A side of a join goes to every worker.
    Broadcast(String),
    /// Each process reads a side of a join itself.
    Pull(String),
    /// One process reads each strip of a side of a join, and passes its rows on.
    Multicast(String),
    /// The rows of a side of a join go to the workers of their keys.
    Shuffle(String),
    /// These sides are joined first, one after another.
    Leading(Vec<NamedSide>),
}

/// A side of a join as a hint names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedSide {
    pub(crate) name: String,
    pub(crate) place: Place,
}

impl Hints {
    /// Takes the hints of the next script. What is no SQL at all has none.
    ///
    /// # Errors
    /// A hint of another form, or at another place.
    pub(crate) fn read(&mut self, sql: &str, script: u64) -> Result<(), Diagnostic> {
        self.0.retain(|hint| hint.is_of_view);
        let tokens = Tokenizer::new(&DIALECT, sql).tokenize_with_location().unwrap_or_default();
        let mut before: Option<&TokenWithSpan> = None;
        for token in &tokens {
            match &token.token {
                Token::Whitespace(Whitespace::MultiLineComment(text)) if text.starts_with('+') => {
                    let block = Block { script, select: before.filter(|t| is_word(t, "SELECT")) };
                    let hints = block.hints(token, &text[1..])?;
                    self.0.extend(hints);
                }
                Token::Whitespace(_) => {}
                _ => before = Some(token),
            }
        }
        self.conflict()
    }

    /// Keeps the hints of a view that the script defines by `tokens`.
    pub(crate) fn keep(&mut self, script: u64, tokens: &[TokenWithSpan]) {
        let place = |token: &TokenWithSpan| Place::of(token.span);
        let (Some(first), Some(last)) = (tokens.first().map(place), tokens.last().map(place))
        else {
            return;
        };
        let order = |place: Place| (place.line, place.column);
        let within = order(first)..=order(last);
        let of_view =
            |hint: &&mut Hint| hint.script == script && within.contains(&order(hint.select));
        self.0.iter_mut().filter(of_view).for_each(|hint| hint.is_of_view = true);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All hints, also those of views.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Hint> {
        self.0.iter()
    }

    /// Whether a hint names a side of this name.
    pub(crate) fn names_side(&self, called: &str) -> bool {
        self.0.iter().any(|hint| match &hint.asked {
            Asked::Exchange(_) => false,
            Asked::Broadcast(name)
            | Asked::Pull(name)
            | Asked::Multicast(name)
            | Asked::Shuffle(name) => name.eq_ignore_ascii_case(called),
            Asked::Leading(sides) => {
                sides.iter().any(|side| side.name.eq_ignore_ascii_case(called))
            }
        })
    }

    /// The hints of the block whose SELECT stands there.
    pub(crate) fn of_block(&self, script: u64, select: Place) -> impl Iterator<Item = &Hint> {
        let at = |place: Place| (place.line, place.column);
        self.0.iter().filter(move |hint| hint.script == script && at(hint.select) == at(select))
    }

    /// The errors that hints were not obeyed.
    pub(crate) fn disobeyed(&self) -> impl Iterator<Item = Diagnostic> {
        let left = |hint: &&Hint| !hint.is_of_view && !hint.is_obeyed.load(Ordering::Relaxed);
        self.0.iter().filter(left).map(|hint| {
            let (message, help) = match &hint.asked {
                Asked::Exchange(exchange) => (
                    format!("no rows meet by '{exchange}' in this query"),
                    "put the hint behind the SELECT that groups or joins, and write \
                     EXPLAIN to see its exchanges",
                ),
                Asked::Broadcast(name) => (
                    format!("no join of this query has a side '{name}' that could be broadcast"),
                    "name a side as the join does, by its alias: \
                     SELECT /*+ BROADCAST(t) */ … FROM a JOIN b AS t",
                ),
                Asked::Pull(name) => (
                    format!("no join of this query has a side '{name}' that could be pulled"),
                    "name a table of a pool as the join does, by its alias: \
                     SELECT /*+ PULL(t) */ … FROM a JOIN b AS t",
                ),
                Asked::Multicast(name) => (
                    format!("no join of this query has a side '{name}' that could be multicast"),
                    "name a table of a pool as the join does, by its alias: \
                     SELECT /*+ MULTICAST(t) */ … FROM a JOIN b AS t",
                ),
                Asked::Shuffle(name) => (
                    format!("no join of this query has a side '{name}' that could be shuffled"),
                    "name a side as the join does, by its alias: \
                     SELECT /*+ SHUFFLE(t) */ … FROM a JOIN b AS t",
                ),
                Asked::Leading(_) => (
                    format!("no inner joins of this query have all sides of {}", hint.text()),
                    "name the sides of inner joins of one SELECT over input that ends, by their \
                     aliases: SELECT /*+ LEADING(a, t) */ … FROM a JOIN b AS t",
                ),
            };
            let detail = "hints are about exchanges between workers; what runs in the batch stage, \
                          when all input has been read, has none";
            Diagnostic::at(hint.place, message).detail(detail).hint(help)
        })
    }

    /// Refuses hints of one block of which only one can be obeyed.
    fn conflict(&self) -> Result<(), Diagnostic> {
        let about = |hint: &Hint| match &hint.asked {
            Asked::Exchange(_) => ("exchange", None),
            Asked::Broadcast(name)
            | Asked::Pull(name)
            | Asked::Multicast(name)
            | Asked::Shuffle(name) => ("side", Some(name.to_lowercase())),
            Asked::Leading(_) => ("order", None),
        };
        for (at, hint) in self.0.iter().enumerate() {
            let others = self.0[..at].iter();
            let mut others = others.filter(|other| {
                (other.script, other.select) == (hint.script, hint.select)
                    && about(other) == about(hint)
            });
            if let Some(other) = others.find(|other| other.asked != hint.asked) {
                let message = format!("{} contradicts {}", hint.text(), other.text());
                return Err(Diagnostic::at(hint.place, message).hint("leave one of them out"));
            }
        }
        Ok(())
    }
}

impl Hint {
    /// The hint as it may be written.
    pub(crate) fn text(&self) -> String {
        match &self.asked {
            Asked::Exchange(Exchange::Forward) => "FORWARD".into(),
            Asked::Exchange(exchange) => format!("EXCHANGE('{exchange}')"),
            Asked::Broadcast(name) => format!("BROADCAST({name})"),
            Asked::Pull(name) => format!("PULL({name})"),
            Asked::Multicast(name) => format!("MULTICAST({name})"),
            Asked::Shuffle(name) => format!("SHUFFLE({name})"),
            Asked::Leading(sides) => {
                let names: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
                format!("LEADING({})", names.join(", "))
            }
        }
    }

    /// This hint and another one of its script, in the order in which they stand.
    pub(crate) fn in_order<'a>(&'a self, other: &'a Self) -> (&'a Self, &'a Self) {
        let at = |hint: &Self| (hint.place.line, hint.place.column);
        if at(self) <= at(other) { (self, other) } else { (other, self) }
    }

    /// Something does what it asks for, and that is the reason.
    pub(crate) fn obey(&self) -> Reason {
        self.is_obeyed.store(true, Ordering::Relaxed);
        Reason::Hint { hint: self.text(), line: self.place.line, column: self.place.column }
    }
}

/// Where the hints of a comment belong.
struct Block<'a> {
    script: u64,
    /// The SELECT in front of the comment, if there is one.
    select: Option<&'a TokenWithSpan>,
}

impl Block<'_> {
    /// The hints of a comment.
    fn hints(&self, comment: &TokenWithSpan, text: &str) -> Result<Vec<Hint>, Diagnostic> {
        let start = Place::of(comment.span);
        let words = Tokenizer::new(&DIALECT, text).tokenize_with_location().unwrap_or_default();
        let words: Vec<(Token, Place)> = words
            .into_iter()
            .filter(|word| !matches!(word.token, Token::Whitespace(_) | Token::EOF))
            .map(|word| {
                let place = Place::of(word.span);
                // The text begins behind `/*+`.
                let before = if place.line == 1 { start.column + 2 } else { 0 };
                let (line, column) = (start.line + place.line - 1, before + place.column);
                (word.token, Place { line, column, ..place })
            })
            .collect();
        let lines: Vec<&str> = text.lines().collect();
        let length = match lines[..] {
            [] => 5,
            [one] => one.chars().count() + 5,
            [first, ..] => first.chars().count() + 3,
        };
        let whole = Place { length, ..start };
        let Some(select) = self.select else {
            return Err(Diagnostic::at(whole, "a hint stands behind the SELECT of its query")
                .hint("SELECT /*+ … */ … FROM …; options of a table stand in its WITH (…)"));
        };
        if words.is_empty() {
            return Err(Diagnostic::at(whole, "there is no hint in the comment").detail(FORMS));
        }
        let select = Place::of(select.span);
        let mut hints = vec![];
        let mut rest = &words[..];
        while let [(first, place), ..] = rest {
            let Some((asked, behind)) = asked_for(rest)? else {
                let message = format!("there is no hint '{first}' of queries");
                let help = match nearest(&first.to_string(), NAMES) {
                    Some(near) => format!("did you mean '{near}'?"),
                    None => "options of a table stand in its WITH (…), others in SET".into(),
                };
                return Err(Diagnostic::at(*place, message).detail(FORMS).hint(help));
            };
            let made = |asked| Hint {
                asked,
                place: *place,
                script: self.script,
                select,
                is_of_view: false,
                is_obeyed: AtomicBool::new(false),
            };
            hints.extend(asked.into_iter().map(made));
            rest = match behind {
                [(Token::Comma, _), behind @ ..] => behind,
                behind => behind,
            };
        }
        Ok(hints)
    }
}

type Words<'a> = &'a [(Token, Place)];

/// The hint that some words begin with, and the words behind it; `None` if they begin with no hint.
fn asked_for(words: Words<'_>) -> Result<Option<(Vec<Asked>, Words<'_>)>, Diagnostic> {
    let [(Token::Word(name), place), rest @ ..] = words else { return Ok(None) };
    let name = name.value.to_uppercase();
    let needs = |what: &str| Diagnostic::at(*place, format!("{name} needs {what}")).detail(FORMS);
    if name == "FORWARD" {
        return Ok(Some((vec![Asked::Exchange(Exchange::Forward)], rest)));
    }
    let what = match name.as_str() {
        "EXCHANGE" => "the name of an exchange: EXCHANGE('merge')",
        "BROADCAST" => "a side of a join: BROADCAST(t)",
        "PULL" => "a side of a join: PULL(t)",
        "MULTICAST" => "a side of a join: MULTICAST(t)",
        "SHUFFLE" => "a side of a join: SHUFFLE(t)",
        "LEADING" => "two or more sides of joins: LEADING(t, u)",
        _ => return Ok(None),
    };
    let [(Token::LParen, _), inside @ ..] = rest else { return Err(needs(what)) };
    let close = inside.iter().position(|(token, _)| *token == Token::RParen);
    let (inside, rest) = inside.split_at(close.ok_or_else(|| needs("a closing parenthesis"))?);
    let (mut asked, mut leading) = (vec![], vec![]);
    for argument in inside.split(|(token, _)| *token == Token::Comma) {
        let one = match (name.as_str(), argument) {
            ("EXCHANGE", [(Token::SingleQuotedString(text), at)]) => {
                Asked::Exchange(exchange(text).ok_or_else(|| {
                    let error = Diagnostic::at(*at, format!("there is no exchange '{text}'"));
                    let names = ["merge", "shuffle", "uppar", "forward"];
                    error.nearest("exchanges", text, names)
                })?)
            }
            ("BROADCAST", [(Token::Word(side), _)]) => Asked::Broadcast(side.value.clone()),
            ("PULL", [(Token::Word(side), _)]) => Asked::Pull(side.value.clone()),
            ("MULTICAST", [(Token::Word(side), _)]) => Asked::Multicast(side.value.clone()),
            ("SHUFFLE", [(Token::Word(side), _)]) => Asked::Shuffle(side.value.clone()),
            ("LEADING", [(Token::Word(side), place)]) => {
                leading.push(NamedSide { name: side.value.clone(), place: *place });
                continue;
            }
            _ => return Err(needs(what)),
        };
        asked.push(one);
    }
    if name == "EXCHANGE" && asked.len() > 1 {
        return Err(needs("one exchange"));
    }
    match leading.len() {
        0 => {}
        1 => return Err(needs(what)),
        _ => asked.push(Asked::Leading(leading)),
    }
    Ok(Some((asked, &rest[1..])))
}

fn exchange(text: &str) -> Option<Exchange> {
    let all = [Exchange::Merge, Exchange::Shuffle, Exchange::UpPar, Exchange::Forward];
    all.into_iter().find(|exchange| exchange.to_string().eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(sql: &str) -> Result<Hints, Diagnostic> {
        let mut hints = Hints::default();
        hints.read(sql, 1).map(|()| hints)
    }

    #[test]
    fn hints_are_of_their_block() {
        let sql = "SELECT /*+ broadcast(a, \"B\"), EXCHANGE('Merge')\n FORWARD */ 1 FROM \
                   (SELECT /* not one */ /*+ SHUFFLE(a) */ 2)";
        let error = read(sql).expect_err("two exchanges");
        assert_eq!(error.message, "FORWARD contradicts EXCHANGE('merge')");
        assert_eq!((error.line, error.column), (2, 2));
        let hints = read(&sql.replace("FORWARD", "")).expect("hints");
        let texts = |line, column| {
            let select = Place { line, column, length: 6 };
            hints.of_block(1, select).map(Hint::text).collect::<Vec<_>>()
        };
        assert_eq!(texts(1, 1), ["BROADCAST(a)", "BROADCAST(B)", "EXCHANGE('merge')"]);
        assert_eq!(texts(2, 14), ["SHUFFLE(a)"]);
        assert!(texts(1, 2).is_empty());
        let first = hints.of_block(1, Place { line: 1, column: 1, length: 0 }).next();
        first.expect("a hint").obey();
        assert_eq!(hints.disobeyed().count(), 3);
    }

    #[test]
    fn hints_of_views_stay_and_need_not_be_obeyed() {
        let sql = "SELECT /*+ FORWARD */ 1; SELECT /*+ SHUFFLE(t) */ 2";
        let mut hints = read(sql).expect("hints");
        let view = crate::text::syntax::split(sql).expect("tokens").swap_remove(1);
        hints.keep(1, &view);
        assert_eq!(hints.disobeyed().count(), 1);
        hints.read("SELECT 3", 2).expect("no hints");
        assert_eq!(hints.of_block(1, Place::of(view[0].span)).count(), 1);
    }

    #[test]
    fn others_are_refused_where_they_stand() {
        for (hint, column) in [
            ("OPTIONS('x'='y')", 7),
            ("FORWARD, BROADCAST", 16),
            ("BROADCAST()", 7),
            ("SHUFFLE(a.b)", 7),
            ("EXCHANGE(merge)", 7),
            ("EXCHANGE('merge', 'shuffle')", 7),
            ("EXCHANGE('mergee')", 16),
            ("BROADCAST(x), SHUFFLE(y), SHUFFLE(X)", 33),
            ("", 3),
        ] {
            let error = read(&format!("SELECT\n  /*+ {hint} */ 1")).expect_err(hint);
            assert_eq!((error.line, error.column), (2, column), "{hint}: {error:?}");
        }
        let error = read("SELECT 1 FROM t /*+ FORWARD */").expect_err("not behind SELECT");
        assert_eq!((error.column, error.length), (17, 14));
    }
}
