//! A report as lines: what a terminal shows. Plots are left to the page.

use std::fmt;

use super::{Bar, FigureReport, ReportSection, ReportTable};

impl fmt::Display for FigureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        self.about.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        self.sections.iter().try_for_each(|section| write!(f, "\n{section}"))
    }
}

impl fmt::Display for ReportSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        self.text.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        self.bars.iter().try_for_each(|bar| writeln!(f, "  {bar}"))?;
        self.tables.iter().try_for_each(|table| table.fmt(f))
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, needed, got, met } = self;
        let met = match met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "not measured",
        };
        write!(f, "{met}: {what} {needed}, got {got}")
    }
}

impl fmt::Display for ReportTable {
    /// Columns as wide as what is in them; numbers end at the right.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.title.is_empty() {
            writeln!(f, "  {}", self.title)?;
        }
        let rows = || std::iter::once(&self.columns).chain(&self.rows);
        let width = |column: usize| {
            let cells = rows().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for row in rows() {
            let mut line = String::from(" ");
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let cell = match column {
                    0 => format!(" {cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
                line.push_str(&cell);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bar, FigureReport, ReportSection, ReportTable};

    #[test]
    fn a_terminal_shows_bars_and_columns() {
        let row = |cells: [&str; 2]| cells.map(String::from).to_vec();
        let table = ReportTable {
            title: "by size".into(),
            columns: row(["bytes", "GB/s"]),
            rows: vec![row(["64", "0.5"]), row(["65472", "10.25"])],
        };
        let bar = Bar {
            what: "ring".into(),
            needed: "≥ 80 %".into(),
            got: "79 %".into(),
            met: Some(false),
        };
        let (bars, tables) = (vec![bar], vec![table]);
        let section =
            ReportSection { title: "shm".into(), bars, tables, ..ReportSection::default() };
        let about = vec!["two cores".into()];
        let report = FigureReport { title: "Wires".into(), about, sections: vec![section] };
        let right = "\
Wires
  two cores

shm
  NOT MET: ring ≥ 80 %, got 79 %
  by size
  bytes   GB/s
  64       0.5
  65472  10.25
";
        assert_eq!(report.to_string(), right);
    }
}
