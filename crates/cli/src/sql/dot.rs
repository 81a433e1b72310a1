//! Dot commands: commands for the shell itself.

use crate::failure::Failure;

/// A dot command, for the help, completion and the reference page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DotCommand {
    /// Its name, with the dot.
    pub(crate) name: &'static str,
    /// How its argument is shown.
    pub(crate) usage: &'static str,
    /// The kind of its argument.
    pub(crate) takes: Takes,
    /// One sentence.
    pub(crate) doc: &'static str,
}

/// The kind of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    OneOf(&'static [&'static str]),
    File,
    Relation,
    Setting,
    Sql,
}

const ON_OFF: Takes = Takes::OneOf(&["on", "off"]);

/// All of them, by name.
pub(crate) const COMMANDS: &[DotCommand] = &[
    DotCommand {
        name: ".chart",
        usage: "on|off",
        takes: ON_OFF,
        doc: "Draws the rows of SELECT as a chart instead of a table.",
    },
    DotCommand {
        name: ".explain",
        usage: "[SQL]",
        takes: Takes::Sql,
        doc: "Shows how a statement would run: pipelines, exchanges and why, memory. Without SQL, \
              the last one.",
    },
    DotCommand { name: ".help", usage: "", takes: Takes::Nothing, doc: "Lists the dot commands." },
    DotCommand {
        name: ".mode",
        usage: "table|csv|json",
        takes: Takes::OneOf(&["table", "csv", "json"]),
        doc: "How rows are shown: a table when the query has ended, or text as they come.",
    },
    DotCommand {
        name: ".output",
        usage: "[FILE]",
        takes: Takes::File,
        doc: "Writes the rows of the next SELECT to a file; its extension tells the format: csv, \
              json, parquet, arrow. Without FILE, takes that back.",
    },
    DotCommand {
        name: ".quit",
        usage: "",
        takes: Takes::Nothing,
        doc: "Leaves, as Ctrl-D and .exit do.",
    },
    DotCommand {
        name: ".read",
        usage: "FILE",
        takes: Takes::File,
        doc: "Runs the statements and dot commands of a file.",
    },
    DotCommand {
        name: ".schema",
        usage: "[TABLE]",
        takes: Takes::Relation,
        doc: "Shows the columns of a table or view, or of all.",
    },
    DotCommand {
        name: ".set",
        usage: "[SETTING [VALUE]]",
        takes: Takes::Setting,
        doc: "Changes a setting, as SET does; without VALUE, shows it, and without SETTING all.",
    },
    DotCommand {
        name: ".tables",
        usage: "",
        takes: Takes::Nothing,
        doc: "Lists tables and views.",
    },
    DotCommand {
        name: ".timer",
        usage: "on|off",
        takes: ON_OFF,
        doc: "Shows how long each statement took.",
    },
];

/// A dot command that was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dot<'a> {
    Chart(bool),
    Explain(Option<&'a str>),
    Help,
    Mode(&'a str),
    Output(Option<&'a str>),
    Quit,
    Read(&'a str),
    Schema(Option<&'a str>),
    Set(Option<(&'a str, Option<&'a str>)>),
    Tables,
    Timer(bool),
}

/// Understands a line that begins with a dot. A semicolon at its end is a habit, and forgiven.
///
/// # Errors
/// When there is no such command, or its argument does not fit.
pub(crate) fn parse(line: &str) -> Result<Dot<'_>, Failure> {
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let name = name.trim_end_matches(';');
    let argument = argument.trim();
    let bare = argument.trim_end_matches(';').trim_end();
    let command = match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => command,
        None if name == ".exit" => return Ok(Dot::Quit),
        None => {
            let message = format!("unknown command '{name}'");
            return Err(Failure::usage(&message, Some(".help lists the commands")));
        }
    };
    let value = Some(bare).filter(|text| !text.is_empty());
    let wrong = || {
        let message = match value {
            Some(value) => format!("'{value}' does not fit {name}"),
            None => format!("{name} needs more"),
        };
        Failure::usage(&message, Some(&format!("{name} {}", command.usage)))
    };
    if command.takes == Takes::Nothing && value.is_some() {
        let message = format!("{name} takes nothing, and '{bare}' was given");
        return Err(Failure::usage(&message, Some(command.doc)));
    }
    let on = || match value {
        Some("on") => Ok(true),
        Some("off") => Ok(false),
        _ => Err(wrong()),
    };
    Ok(match name {
        ".chart" => Dot::Chart(on()?),
        ".explain" => Dot::Explain(Some(argument).filter(|sql| !sql.is_empty())),
        ".help" => Dot::Help,
        ".mode" => match (value, command.takes) {
            (Some(mode), Takes::OneOf(modes)) if modes.contains(&mode) => Dot::Mode(mode),
            _ => return Err(wrong()),
        },
        ".output" => Dot::Output(value.map(unquoted)),
        ".read" => Dot::Read(unquoted(value.ok_or_else(wrong)?)),
        ".schema" => Dot::Schema(value),
        ".set" => Dot::Set(value.map(|value| match value.split_once(['=', ' ']) {
            Some((key, value)) => {
                let value = value.trim_start_matches([' ', '=']);
                (key.trim(), Some(unquoted(value)))
            }
            None => (value, None),
        })),
        ".tables" => Dot::Tables,
        ".timer" => Dot::Timer(on()?),
        _ => Dot::Quit,
    })
}

/// Without the quotes around it.
fn unquoted(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    inner('\'').or_else(|| inner('"')).unwrap_or(text)
}

/// The commands as a text of aligned lines, no longer than `width`.
pub(crate) fn help(width: usize) -> String {
    let heads: Vec<String> = COMMANDS.iter().map(|c| format!("{} {}", c.name, c.usage)).collect();
    let head_width = heads.iter().map(String::len).max().unwrap_or(0);
    let room = width.saturating_sub(head_width + 2).max(20);
    let mut text = String::new();
    for (head, command) in heads.iter().zip(COMMANDS) {
        let mut lines = vec![String::new()];
        for word in command.doc.split(' ') {
            let line = lines.len() - 1;
            if !lines[line].is_empty() && lines[line].len() + 1 + word.len() > room {
                lines.push(word.to_owned());
            } else {
                let gap = if lines[line].is_empty() { "" } else { " " };
                lines[line] += &format!("{gap}{word}");
            }
        }
        for (at, line) in lines.iter().enumerate() {
            let head = if at == 0 { head.as_str() } else { "" };
            text += &format!("{head:<head_width$}  {line}\n");
        }
    }
    text + "\nStatements end with a semicolon. Ctrl-C stops a query, Ctrl-D leaves.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sorted_and_all_are_understood() {
        assert!(COMMANDS.is_sorted_by_key(|command| command.name));
        for command in COMMANDS {
            let argument = match command.takes {
                Takes::OneOf(values) => values[0],
                Takes::Nothing => "",
                _ => "x",
            };
            assert!(parse(&format!("{} {argument}", command.name)).is_ok(), "{}", command.name);
        }
    }

    #[test]
    fn arguments_are_taken_apart() {
        assert_eq!(parse(".mode csv;").unwrap(), Dot::Mode("csv"));
        assert_eq!(parse(".tables;").unwrap(), Dot::Tables);
        assert_eq!(parse(".output 'two words.csv'").unwrap(), Dot::Output(Some("two words.csv")));
        assert_eq!(parse(".output").unwrap(), Dot::Output(None));
        assert_eq!(parse(".set a.b = 'c d'").unwrap(), Dot::Set(Some(("a.b", Some("c d")))));
        assert_eq!(parse(".set a.b 1").unwrap(), Dot::Set(Some(("a.b", Some("1")))));
        assert_eq!(parse(".set a.b").unwrap(), Dot::Set(Some(("a.b", None))));
        assert_eq!(parse(".explain SELECT ';';").unwrap(), Dot::Explain(Some("SELECT ';';")));
        assert_eq!(parse(".exit").unwrap(), Dot::Quit);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for line in [".", ".nothing", ".mode", ".mode xml", ".timer", ".read", ".quit now"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn the_help_keeps_to_its_width() {
        for width in [60, 80, 200] {
            let help = help(width);
            assert!(help.lines().rev().skip(2).all(|line| line.len() <= width), "{width}\n{help}");
            assert!(COMMANDS.iter().all(|command| help.contains(command.name)));
        }
    }

    /// The reference page names every command, and no other.
    #[test]
    fn the_reference_page_is_complete() {
        let page = include_str!("../../../../docs/cli.md");
        let table: Vec<String> = COMMANDS
            .iter()
            .map(|c| {
                let head = format!("{} {}", c.name, c.usage.replace('|', "\\|"));
                format!("| `{}` | {} |", head.trim_end(), c.doc)
            })
            .collect();
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `.")).collect();
        assert_eq!(rows, table, "docs/cli.md:\n{}", table.join("\n"));
    }
}
