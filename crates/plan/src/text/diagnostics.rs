//! Errors of SQL that cannot be planned, for users.
//!
//! A [`Diagnostic`] points at a place in the script and says what is wrong there, why, and what to
//! write instead:
//!
//! ```text
//! error: unknown column 'orign'
//!   --> flights.sql:14:8
//!    |
//! 14 | SELECT orign, count(*)
//!    |        ^^^^^
//!    = hint: did you mean 'origin'?
//! ```

use std::fmt::Write;

use dataflow::panics::Panicked;
use datafusion::common::utils::datafusion_strsim::levenshtein;
use datafusion::sql::sqlparser::tokenizer::Span as TokenSpan;

use crate::text::syntax::unmarked;

/// A piece of one line of a script. Lines and columns count from 1, columns and lengths in
/// characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column of its first character.
    pub column: usize,
    /// How many characters.
    pub length: usize,
}

impl Place {
    /// The place of a token; of one that spans lines, its first character.
    pub(crate) fn of(span: TokenSpan) -> Self {
        let length = if span.start.line == span.end.line {
            span.end.column.saturating_sub(span.start.column).max(1) as usize
        } else {
            1
        };
        Self { line: span.start.line as usize, column: span.start.column as usize, length }
    }
}

/// An error in a script. The author of the SQL is at fault, unless it is a [`bug`](Self::bug).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// Characters to underline.
    pub length: usize,
    /// The error, in one line.
    pub message: String,
    /// Why, or what there is instead.
    pub detail: Option<String>,
    /// How to avoid it.
    pub hint: Option<String>,
    /// Whether the planner failed where it should not: Millstream is at fault.
    pub bug: bool,
}

impl Diagnostic {
    /// An error at a place.
    pub fn at(place: Place, message: impl Into<String>) -> Self {
        Self {
            line: place.line,
            column: place.column,
            length: place.length,
            message: message.into(),
            detail: None,
            hint: None,
            bug: false,
        }
    }

    /// The planner panicked over a statement that begins at a place.
    pub(crate) fn bug(place: Place, panicked: &Panicked) -> Self {
        let message = "this is a bug in millstream: the planner failed over this statement";
        let details = [Some(&panicked.message), panicked.backtrace.as_ref()];
        let mut details: Vec<String> = details.into_iter().flatten().cloned().collect();
        if let Some(place) = &panicked.place {
            details.insert(1, format!("a panic at {place}"));
        }
        let error = Self::at(place, message).detail(details.join("\n"));
        let hint = "please report it with the statement, the tables that it reads, and what \
                    `millstream --version` shows; the session goes on";
        Self { bug: true, ..error.hint(hint) }
    }

    /// The same, moved.
    pub(crate) fn moved(mut self, place: Place) -> Self {
        (self.line, self.column, self.length) = (place.line, place.column, place.length);
        self
    }

    /// Adds a detail.
    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the nearest of `names` as a hint, or all of them as a detail if none is near.
    pub(crate) fn nearest<'a>(
        self,
        what: &str,
        name: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_unstable();
        names.dedup();
        match nearest(name, &names) {
            Some(near) => self.hint(format!("did you mean '{near}'?")),
            None if names.is_empty() => self.detail(format!("there are no {what}")),
            None if names.len() <= NAMES_SHOWN_MAX => {
                self.detail(format!("the {what} are: {}", names.join(", ")))
            }
            None => self,
        }
    }

    /// The error as a text of several lines, with the line of `sql` where it lies. `file` stands
    /// before the position; `color` adds ANSI escapes.
    pub fn render(&self, file: &str, sql: &str, color: bool) -> String {
        let paint = |code: &'static str| if color { code } else { "" };
        let (red, blue, bold, off) =
            (paint("\x1b[1;31m"), paint("\x1b[1;34m"), paint("\x1b[1m"), paint("\x1b[0m"));
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let mut text = format!("{red}error{off}{bold}: {}{off}\n", self.message);
        let out = &mut text;
        let (line, column) = (self.line, self.column);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{margin}{blue}-->{off} {file}:{line}:{column}");
        let before = self.column.saturating_sub(1);
        if let Some(source) = unmarked(sql).lines().nth(self.line.wrapping_sub(1)) {
            let width = source.chars().count().saturating_sub(before).max(1);
            // Tabs stay tabs, so that the caret stands below its character whatever their width.
            let blanks: String =
                source.chars().take(before).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
            let carets = "^".repeat(self.length.clamp(1, width));
            let _ = writeln!(out, "{margin} {blue}|{off}");
            let _ = writeln!(out, "{blue}{number} |{off} {source}");
            let _ = writeln!(out, "{margin} {blue}|{off} {blanks}{red}{carets}{off}");
        }
        for (label, note) in [("detail", &self.detail), ("hint", &self.hint)] {
            if let Some(note) = note {
                let note = note.replace('\n', &format!("\n{margin}   "));
                let _ = writeln!(out, "{margin} {blue}={off} {bold}{label}{off}: {note}");
            }
        }
        text
    }
}

/// Names listed in a detail at most.
const NAMES_SHOWN_MAX: usize = 24;

/// The name that `name` was probably meant to be: equal but for case, within a third of its length
/// in edits, or with two letters swapped.
pub(crate) fn nearest<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let lower = name.to_lowercase();
    let length = lower.chars().count();
    let letters = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    // Letters that changed places are one slip of the fingers.
    let distance = |candidate: &str| match levenshtein(&lower, &candidate.to_lowercase()) {
        2 if letters(&lower) == letters(&candidate.to_lowercase()) => 1,
        distance => distance,
    };
    let near = |distance: usize, candidate: &str| {
        let edits_max = (length.max(candidate.chars().count()) / 3).max(1);
        distance < length && distance <= edits_max
    };
    names
        .iter()
        .map(|candidate| (distance(candidate), *candidate))
        .min()
        .filter(|(distance, candidate)| *distance == 0 || near(*distance, candidate))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rendered_error_points_below_its_token() {
        let place = Place { line: 2, column: 8, length: 5 };
        let error = Diagnostic::at(place, "unknown column 'orign'").hint("did you mean 'origin'?");
        assert_eq!(
            error.render("a.sql", "-- x\nSELECT orign\nFROM t", false),
            "error: unknown column 'orign'\n --> a.sql:2:8\n  |\n2 | SELECT orign\n  \
             |        ^^^^^\n  = hint: did you mean 'origin'?\n"
        );
        assert!(error.render("a.sql", "", true).contains("\x1b[1;31merror"));
        let error = Diagnostic { line: 1, ..error };
        let marked = error.render("a.sql", "\u{feff}SELECT orign", false);
        assert!(marked.contains("1 | SELECT orign\n  |        ^^^^^\n"), "{marked}");
    }

    #[test]
    fn carets_stay_within_the_line_and_below_tabs() {
        let place = Place { line: 1, column: 2, length: 99 };
        let text = Diagnostic::at(place, "x").render("a", "\tab", false);
        assert!(text.ends_with("| \t^^\n"), "{text:?}");
    }

    #[test]
    fn the_nearest_name_is_near() {
        assert_eq!(nearest("orign", &["dest", "origin"]), Some("origin"));
        assert_eq!(nearest("ORIGIN", &["dest", "origin"]), Some("origin"));
        assert_eq!(nearest("carrier", &["dest", "origin"]), None);
        assert_eq!(nearest("FORM", &["FROM", "WHERE"]), Some("FROM"));
        assert_eq!(nearest("T", &["t"]), Some("t"));
        assert_eq!(nearest("u", &["t"]), None);
    }
}
