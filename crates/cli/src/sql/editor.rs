//! The line under the cursor: colours, completion, several lines until a semicolon, history.

use std::borrow::Cow;
use std::env;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use millstream::Vocabulary;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{ColorMode, CompletionType, Config, Context, Editor, Helper, Hinter};

use super::complete::{Candidates, KEYWORDS, offer};
use super::lexer::{SqlToken, TokenKind, tokens};
use super::units::{Unit, units};
use crate::failure::colored;

/// Statements that the history keeps.
const HISTORY_MAX: usize = 10_000;

/// The user's input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed {
    /// Complete statements or dot commands.
    Text(String),
    /// Ctrl-C: the line is dropped.
    Dropped,
    /// Ctrl-D.
    End,
}

/// Reads what the user types.
pub(super) struct Lines {
    editor: Editor<Assistant, FileHistory>,
    history: Option<PathBuf>,
    color: bool,
}

impl Lines {
    /// An editor with the history of earlier sessions; `names` are offered for completion.
    pub(super) fn new(names: Arc<Mutex<Vocabulary>>) -> rustyline::Result<Self> {
        let color = colored();
        let config = Config::builder()
            .completion_type(CompletionType::List)
            .color_mode(if color { ColorMode::Enabled } else { ColorMode::Disabled })
            .max_history_size(HISTORY_MAX)?
            .history_ignore_dups(true)?
            .history_ignore_space(true)
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Assistant { names, files: FilenameCompleter::new(), color }));
        let history = history_file();
        if let Some(path) = &history {
            let opened = open_history(path).map_err(ReadlineError::from);
            if let Err(error) = opened.and_then(|()| editor.load_history(path)) {
                tracing::warn!(file = %path.display(), %error, "there will be no history");
            }
        }
        Ok(Self { editor, history, color })
    }

    /// Waits for the user.
    pub(super) fn read(&mut self) -> rustyline::Result<Typed> {
        let plain = "millstream> ";
        let styled = if self.color { "\x1b[1;34mmillstream>\x1b[0m " } else { plain };
        match self.editor.readline(&(plain, styled)) {
            Ok(text) => {
                self.remember(&text);
                Ok(Typed::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Dropped),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error),
        }
    }

    /// Writes at once: a session may end in any way, and others may run beside it.
    fn remember(&mut self, text: &str) {
        let added = self.editor.add_history_entry(text.trim_end());
        let Some(path) = self.history.as_ref().filter(|_| matches!(added, Ok(true))) else {
            return;
        };
        if let Err(error) = self.editor.append_history(path) {
            tracing::warn!(file = %path.display(), %error, "the history cannot be written");
            self.history = None;
        }
    }
}

/// `$XDG_STATE_HOME/millstream/history`, or `~/.local/state/millstream/history`.
fn history_file() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("millstream/history"))
}

/// Makes the file for its owner alone: statements may hold what others should not read.
fn open_history(path: &PathBuf) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(|_| ())
}

/// Helpers of the line editor.
#[derive(Helper, Hinter)]
struct Assistant {
    names: Arc<Mutex<Vocabulary>>,
    files: FilenameCompleter,
    color: bool,
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let names = self.names.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match offer(line, pos, &names) {
            Candidates::Texts(start, texts) => {
                let pair = |text: String| Pair { display: text.clone(), replacement: text };
                Ok((start, texts.into_iter().map(pair).collect()))
            }
            // Without the text before: quotes there are those of SQL.
            Candidates::Files(start) => {
                let (at, pairs) = self.files.complete_path(&line[start..pos], pos - start)?;
                Ok((start + at, pairs))
            }
        }
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_finished(context.input()) {
            ValidationResult::Valid(None)
        } else {
            ValidationResult::Incomplete
        })
    }
}

/// Whether Enter ends the input.
fn is_finished(text: &str) -> bool {
    let units = units(text);
    // Leaving needs no semicolon.
    let leaves = matches!(&units.list[..], [Unit::Sql { text, .. }]
        if text.eq_ignore_ascii_case("quit") || text.eq_ignore_ascii_case("exit"));
    units.complete || leaves
}

impl Highlighter for Assistant {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if self.color { Cow::Owned(highlighted(line)) } else { Cow::Borrowed(line) }
    }

    fn highlight_char(&self, _: &str, _: usize, kind: CmdKind) -> bool {
        self.color && kind != CmdKind::MoveCursor
    }
}

/// The same text with colours.
pub(super) fn highlighted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() * 2);
    for token in tokens(text) {
        match color_of(&token) {
            "" => out.push_str(token.text),
            color => out.push_str(&format!("\x1b[{color}m{}\x1b[0m", token.text)),
        }
    }
    out
}

fn color_of(token: &SqlToken<'_>) -> &'static str {
    match token.kind {
        TokenKind::Comment => "2",
        TokenKind::Text => "32",
        TokenKind::Number => "36",
        TokenKind::Word if KEYWORDS.contains(&token.text.to_uppercase().as_str()) => "1;34",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enter_ends_what_is_complete() {
        for text in ["SELECT 1;", ".tables", "", "-- nothing", "exit", "Quit"] {
            assert!(is_finished(text), "{text}");
        }
        for text in ["SELECT 1", "SELECT ';", "BEGIN STATEMENT SET;", "/*", "exit now"] {
            assert!(!is_finished(text), "{text}");
        }
    }

    #[test]
    fn colours_change_nothing_but_the_colour() {
        let text = "select 'a;', 1 -- done\nfrom t;";
        let mut plain = highlighted(text);
        for color in ["1;34", "32", "36", "2", "0"] {
            plain = plain.replace(&format!("\x1b[{color}m"), "");
        }
        assert_eq!(plain, text);
        assert!(highlighted(text).starts_with("\x1b[1;34mselect\x1b[0m \x1b[32m'a;'\x1b[0m"));
    }
}
