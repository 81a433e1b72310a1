//! Why the command ends without success: one primary line, a hint, an exit code.

use std::io::IsTerminal;
use std::process::ExitCode;

use millstream::panics::Panicked;
use millstream::{Diagnostic, Error, FaultKind, Place};

/// The exit code of a node that has lost another one: the job can be started again (`EX_TEMPFAIL`).
pub(crate) const AGAIN: u8 = 75;

/// The exit code of a node whose peers have not come back, for its supervisor (`EX_UNAVAILABLE`).
pub(crate) const MISSING: u8 = 69;

/// The exit code after Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// The exit code of a bug of ours, as sysexits.h has it.
const BUG: u8 = 70;

/// The printed message, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Whole lines; empty where everything was said already.
    text: String,
    /// Their message, in one line.
    message: String,
    code: u8,
}

impl Failure {
    /// Wrong arguments.
    pub(crate) fn usage(message: &str, hint: Option<&str>) -> Self {
        Self { text: lines(message, hint), message: message.into(), code: 2 }
    }

    /// Something that failed on the way.
    pub(crate) fn runtime(message: &str, hint: Option<&str>) -> Self {
        Self { text: lines(message, hint), message: message.into(), code: 1 }
    }

    /// Ended by Ctrl-C, which needs no words.
    pub(crate) fn interrupted() -> Self {
        Self { text: String::new(), message: String::new(), code: INTERRUPTED }
    }

    /// A failure that another process reports.
    pub(crate) fn silent() -> Self {
        Self { text: String::new(), message: String::new(), code: 1 }
    }

    /// The same end, of which another process tells.
    pub(crate) fn silenced(self) -> Self {
        Self { text: String::new(), ..self }
    }

    /// The same, of a job that goes on when it is started again.
    pub(crate) fn beginning_again(self) -> Self {
        Self { code: AGAIN, ..self }
    }

    /// The same failure, as that of a node whose peers have not come back.
    pub(crate) fn missing_others(self) -> Self {
        Self { code: MISSING, ..self }
    }

    /// The error, in one line.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The library's error; `file` and `sql` are its input.
    pub(crate) fn of(error: &Error, file: &str, sql: &str) -> Self {
        let color = colored();
        let message = error.to_string();
        let code = match error.blame() {
            FaultKind::Failure => 1,
            FaultKind::Usage => 2,
            FaultKind::Bug => BUG,
        };
        if let Error::Sql(diagnostics) = error.cause() {
            let rendered: Vec<_> =
                diagnostics.iter().map(|one| one.render(file, sql, color)).collect();
            return Self { text: rendered.join("\n"), message, code };
        }
        let details = error.details();
        let text = match place(error, sql) {
            Some(place) => {
                let mut diagnostic = Diagnostic::at(place, message.clone());
                diagnostic.detail = (!details.is_empty()).then(|| details.join("\n"));
                diagnostic.hint = error.hint();
                diagnostic.render(file, sql, color)
            }
            None => {
                let details = details.iter().map(|detail| ("detail", detail.as_str()));
                let hint = error.hint();
                let hint = hint.iter().map(|hint| ("hint", hint.as_str()));
                noted(&message, details.chain(hint), color)
            }
        };
        Self { text, message, code }
    }

    /// A panic that nobody has made an error of.
    pub(crate) fn bug(panicked: Panicked) -> Self {
        Self::of(&Error::Panic { doing: "the command".into(), panicked }, "", "")
    }

    pub(crate) fn print(&self) {
        eprint!("{}", self.text);
    }

    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

/// Whether standard error may be coloured (<https://no-color.org>).
pub(crate) fn colored() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::stderr().is_terminal()
}

fn lines(message: &str, hint: Option<&str>) -> String {
    noted(message, hint.iter().map(|hint| ("hint", *hint)), colored())
}

/// An error and its details, each with its label.
fn noted<'a>(
    message: &str,
    details: impl Iterator<Item = (&'a str, &'a str)>,
    color: bool,
) -> String {
    let (red, bold, off) = if color { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
    let mut text = format!("{red}error{off}{bold}: {message}{off}\n");
    for (label, detail) in details {
        let detail = detail.trim_end().replace('\n', "\n    ");
        text.push_str(&format!("  = {bold}{label}{off}: {detail}\n"));
    }
    text
}

/// The message of a subquery with too many rows. Its expression is not known when it runs.
const SUBQUERY: &str = "a subquery that stands for a value has more than one row";
const SUBQUERY_BEGINS: &str = "(SELECT";

/// Where a statement stands that failed while it ran: its expression that failed, if the text has
/// that once, or else its first word.
fn place(error: &Error, sql: &str) -> Option<Place> {
    let statement = error.statement()?;
    let line = sql.split_inclusive('\n').take(statement.line.checked_sub(1)?);
    let begin = line.map(str::len).sum::<usize>();
    let begin = begin + sql.get(begin..)?.find(&statement.sql)?;
    let word = statement.sql.chars().take_while(|c| c.is_alphanumeric()).count();
    let is_subquery = || error.to_string().contains(SUBQUERY);
    let expression =
        error.expression().or_else(|| is_subquery().then(|| SUBQUERY_BEGINS.to_owned()));
    let (at, length) = expression
        .and_then(|expression| only_place(&statement.sql, &expression))
        .unwrap_or((0, word.max(1)));
    let before = &sql[..begin + at];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    Some(Place { line, column, length })
}

/// Where a text has what is looked for, whatever the blanks and the case: the byte, and how many
/// characters. `None` if it does not, or several times.
fn only_place(text: &str, passage: &str) -> Option<(usize, usize)> {
    let dense = |text: &str| -> Vec<(usize, char)> {
        let shown = text.char_indices().filter(|(_, c)| !c.is_whitespace());
        shown.map(|(at, c)| (at, c.to_ascii_lowercase())).collect()
    };
    let (text_dense, passage) = (dense(text), dense(passage));
    if passage.is_empty() {
        return None;
    }
    let mut places = text_dense
        .windows(passage.len())
        .filter(|window| window.iter().zip(&passage).all(|((_, one), (_, other))| one == other));
    let found = places.next()?;
    let (&(from, _), &(last, _)) = (found.first()?, found.last()?);
    let length = text[from..last].chars().count() + 1;
    places.next().is_none().then_some((from, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_says_what_to_report() {
        let panicked = Panicked {
            message: "index out of bounds".into(),
            place: Some("crates/plan/src/a.rs:1:2".into()),
            backtrace: None,
        };
        let failure = Failure::bug(panicked);
        assert_eq!(failure.code, 70);
        let version = env!("CARGO_PKG_VERSION");
        let text = format!(
            "error: this is a bug in millstream: index out of bounds\n  \
             = detail: a panic at crates/plan/src/a.rs:1:2 (the command)\n  \
             = hint: please report it with all of this, the statement, and the version: \
             {version}; the variable RUST_BACKTRACE=1 shows how it came to that\n"
        );
        assert_eq!(failure.text, text);
    }

    #[test]
    fn an_expression_is_found_whatever_its_blanks() {
        let sql = "SELECT é, A /\n b FROM t";
        let (at, length) = only_place(sql, "a / b").unwrap();
        assert_eq!((&sql[at..at + 6], length), ("A /\n b", 6));
        assert_eq!(only_place("a / b, a/b", "a / b"), None, "which of them?");
        assert_eq!(only_place(sql, "a / c"), None);
        let sql = "SELECT k, ( select k FROM t) FROM t";
        assert_eq!(only_place(sql, SUBQUERY_BEGINS), Some((10, 8)));
    }

    #[test]
    fn a_usage_error_has_its_hint() {
        let failure = Failure::usage("no such thing", Some("take another"));
        let text = "error: no such thing\n  = hint: take another\n";
        assert_eq!((failure.code, failure.text.as_str()), (2, text));
    }
}
