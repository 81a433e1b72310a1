//! Why the command ends without success: one primary line, a hint, an exit code.

use std::io::IsTerminal;
use std::process::ExitCode;

use millstream::Error;

use crate::signals::INTERRUPTED;

/// What is printed, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Whole lines; empty where everything was said already.
    text: String,
    /// What they say, in one line.
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

    /// What is wrong, in one line.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// What the library said; `file` and `sql` are what it was given.
    pub(crate) fn of(error: &Error, file: &str, sql: &str) -> Self {
        match error {
            Error::Sql(diagnostics) => {
                let color = colored();
                let rendered: Vec<_> =
                    diagnostics.iter().map(|one| one.render(file, sql, color)).collect();
                Self { text: rendered.join("\n"), message: error.to_string(), code: 2 }
            }
            Error::Usage { message, hint } => Self::usage(message, Some(hint)),
            error => Self::runtime(&error.to_string(), error.hint().as_deref()),
        }
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
    let (red, bold, off) =
        if colored() { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
    let mut text = format!("{red}error{off}{bold}: {message}{off}\n");
    if let Some(hint) = hint {
        text.push_str(&format!("  = {bold}hint{off}: {hint}\n"));
    }
    text
}
