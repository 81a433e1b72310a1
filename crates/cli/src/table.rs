//! Text in columns, and JSON in lines: what commands that show things print.

use serde_json::Value;

/// A JSON value a line.
pub(crate) fn lines(values: impl Iterator<Item = Value>) -> String {
    values.map(|value| format!("{value}\n")).collect()
}

/// Names and values, a pair a line.
pub(crate) fn fields(fields: &[(&str, String)]) -> String {
    fields.iter().map(|(name, value)| format!("{name:<12}{value}\n")).collect()
}

/// Columns of text; the first to the left, numbers to the right.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|at| rows.iter().chain([&head]).map(|row| row[at].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  "))
    };
    std::iter::once(&head).chain(&rows).map(line).collect()
}
