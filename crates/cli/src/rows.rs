//! Where the rows of a bare `SELECT` go, as the arguments say.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use millstream::{RowFormat, RowTarget, Script};

use crate::args::{OutputFormat, RowsArgs};
use crate::chart::ChartConnector;
use crate::failure::Failure;
use crate::output::OutputWriter;

/// The target that the arguments ask for; pictures go to `output`.
///
/// # Errors
/// When a format needs a file and none is named.
pub(crate) fn target(args: &RowsArgs, output: &OutputWriter) -> Result<RowTarget, Failure> {
    if args.chart {
        return Ok(RowTarget::Connector(Arc::new(ChartConnector::new(output.clone()))));
    }
    if let Some(path) = file(args) {
        let format = args.format.map(|format| format.name().to_owned());
        return Ok(RowTarget::File { path: path.display().to_string(), format });
    }
    match args.format {
        None => Ok(RowTarget::Output(unsaid(args))),
        Some(OutputFormat::Table) => Ok(RowTarget::Output(RowFormat::Table)),
        Some(OutputFormat::Csv) => Ok(RowTarget::Output(RowFormat::Csv)),
        Some(OutputFormat::Json) => Ok(RowTarget::Output(RowFormat::Json)),
        Some(format) => {
            let message = format!("{} is no text for the terminal", format.name());
            let hint = format!("--output rows.{} writes it into a file", format.name());
            Err(Failure::usage(&message, Some(&hint)))
        }
    }
}

/// How rows are written where nobody says it: a table for a person before a terminal, all rows as
/// CSV for the program at the other end of a pipe.
pub(crate) fn unsaid(args: &RowsArgs) -> RowFormat {
    if for_programs(args) { RowFormat::Csv } else { RowFormat::Table }
}

/// Whether programs read what is written.
pub(crate) fn for_programs(args: &RowsArgs) -> bool {
    args.format != Some(OutputFormat::Table) && !std::io::stdout().is_terminal()
}

/// The file that holds rows as data. A table in a file is text.
pub(crate) fn file(args: &RowsArgs) -> Option<&Path> {
    args.output.as_deref().filter(|_| args.format != Some(OutputFormat::Table))
}

/// The file that holds a table as text.
pub(crate) fn text_file(args: &RowsArgs) -> Option<&Path> {
    args.output.as_deref().filter(|_| args.format == Some(OutputFormat::Table))
}

/// A file of data holds the rows of one `SELECT`.
///
/// # Errors
/// When the script has more.
pub(crate) fn only_one(script: &Script, file: &Path) -> Result<(), Failure> {
    let statements = script.jobs().iter().flat_map(|job| job.statements());
    let shown: Vec<_> =
        statements.filter(|statement| !statement.name.starts_with("INSERT INTO ")).collect();
    if shown.len() <= 1 {
        return Ok(());
    }
    let lines: Vec<_> = shown.iter().map(|statement| statement.line.to_string()).collect();
    let message = format!(
        "{} statements give rows (lines {}), and {} holds those of one",
        shown.len(),
        lines.join(", "),
        file.display()
    );
    let hint = "INSERT INTO tables of the connector 'file', or --format table for text";
    Err(Failure::usage(&message, Some(hint)))
}
