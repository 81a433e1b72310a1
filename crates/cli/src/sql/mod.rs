//! `millstream sql`: statements from the keyboard, a file or the command line.
//!
//! ```text
//! keyboard ─ editor (history, Tab, colours) ─┐
//! -c, -f, standard input, .read ─────────────┴▶ units ─▶ shell ─▶ session, dot commands
//! ```
//!
//! Tables, views and settings are kept from one statement to the next. Each statement runs when it
//! is complete; an error ends what was typed with it, and outside the keyboard the command. Ctrl-C
//! stops the query and not the shell.

mod complete;
mod dot;
mod editor;
mod lexer;
mod shell;
mod units;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use millstream::panics;

use crate::args::{ProgressStyle, SqlArgs, SqlSource};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::script::{self, SqlText};
use crate::signals;
use crate::telemetry::Telemetry;

use editor::{Lines, Typed};
use shell::{Next, Shell};

/// Runs the command.
pub(crate) fn sql(args: &SqlArgs) -> Result<ExitCode, Failure> {
    signals::survive_large_files()?;
    if args.state.is_some() {
        let message = "the shell keeps no checkpoints: nothing would run its statements again";
        let hint = "write them into a file: millstream run FILE --state DIR";
        return Err(Failure::usage(message, Some(hint)));
    }
    if let Some(text) = &args.unmarked {
        let (message, hint) = if Path::new(text).is_file() {
            ("a file stands behind -f", format!("millstream sql -f {text}"))
        } else {
            ("SQL stands behind -c", "millstream sql -c 'SELECT …'".to_owned())
        };
        return Err(Failure::usage(message, Some(&hint)));
    }
    let interactive = args.sources.0.is_empty() && std::io::stdin().is_terminal();
    // Read before anybody listens for Ctrl-C, which ends the command while it waits for a pipe.
    let typed = if interactive { None } else { standard_input(args)? };
    let progress = if interactive && std::io::stderr().is_terminal() {
        ProgressStyle::Bar
    } else {
        ProgressStyle::None
    };
    let screen = Screen::new(progress);
    let telemetry = Telemetry::start(&args.telemetry, &args.log, &screen, true)?;
    let result = Shell::new(args, screen, &telemetry, interactive).and_then(|mut shell| {
        if interactive { converse(&mut shell) } else { run(&mut shell, args, typed) }
    });
    telemetry.end();
    result
}

/// The script on standard input, where the arguments name it or nothing.
fn standard_input(args: &SqlArgs) -> Result<Option<SqlText>, Failure> {
    let named = |source: &SqlSource| matches!(source, SqlSource::File(file) if is_dash(file));
    let asked = args.sources.0.is_empty() || args.sources.0.iter().any(named);
    asked.then(|| script::read(Path::new("-"))).transpose()
}

fn is_dash(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// The script that the arguments name, or else `typed`, that on standard input.
fn run(
    shell: &mut Shell<'_>,
    args: &SqlArgs,
    mut typed: Option<SqlText>,
) -> Result<ExitCode, Failure> {
    let standard_input = [SqlSource::File(Path::new("-").to_owned())];
    let pieces = match &args.sources.0[..] {
        [] => &standard_input,
        sources => sources,
    };
    for piece in pieces {
        let next = match piece {
            SqlSource::Text(sql) => shell.run("<command>", sql)?,
            SqlSource::File(file) => {
                let typed = if is_dash(file) { typed.take() } else { None };
                let script = typed.map_or_else(|| script::read(file), Ok)?;
                shell.run(&script.name, &script.sql)?
            }
        };
        if next == Next::Leave {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Until the user leaves.
fn converse(shell: &mut Shell<'_>) -> Result<ExitCode, Failure> {
    let broken = |error: rustyline::error::ReadlineError| {
        Failure::runtime(&format!("cannot read from the terminal: {error}"), None)
    };
    let mut lines = Lines::new(shell.names()).map_err(broken)?;
    shell.say(&format!(
        "millstream {}. Statements end with ';'. Tab completes, .help lists commands, \
         Ctrl-D leaves.\n",
        env!("CARGO_PKG_VERSION")
    ));
    loop {
        let text = match lines.read().map_err(broken)? {
            Typed::Text(text) => text,
            Typed::Dropped => continue,
            Typed::End => break,
        };
        if ["quit", "exit"].contains(&text.trim().trim_end_matches(';').to_lowercase().as_str()) {
            break;
        }
        let ran = panics::caught(|| shell.run("<typed>", &text));
        match ran.unwrap_or_else(|panicked| Err(Failure::bug(panicked))) {
            Ok(Next::Leave) => break,
            Ok(Next::GoOn) => {}
            Err(failure) => failure.print(),
        }
    }
    Ok(ExitCode::SUCCESS)
}
