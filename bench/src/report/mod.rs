//! A report: what was measured, as a page with plots, and as JSON beside it for programs.
//!
//! ```text
//! Report ─┬─ Section ─┬─ text
//!         ├─ …        ├─ Bar    a figure against what was asked of it: met, or not met
//!         └─ …        ├─ Plot   lines; dashed if they were computed and not measured
//!                     └─ Table
//! ```
//!
//! The page is one file that loads nothing: styles and drawings are in it. A report never fails for
//! a bar that is not met; it says so.

mod page;
mod plot;
mod text;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Figures, in sections.
#[derive(Debug, Clone, Default)]
pub struct FigureReport {
    /// Its subject.
    pub title: String,
    /// The conditions: the machine, and the measurements that it does not allow.
    pub about: Vec<String>,
    /// Its parts.
    pub sections: Vec<ReportSection>,
}

/// One question and its figures.
#[derive(Debug, Clone, Default)]
pub struct ReportSection {
    /// The question.
    pub title: String,
    /// Paragraphs in front of the figures.
    pub text: Vec<String>,
    /// The targets of the figures.
    pub bars: Vec<Bar>,
    /// Drawings.
    pub plots: Vec<Plot>,
    /// Numbers.
    pub tables: Vec<ReportTable>,
}

/// A figure against what was asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bar {
    /// The subject.
    pub what: String,
    /// The target, as `≥ 10 times`.
    pub needed: String,
    /// The result.
    pub got: String,
    /// Whether it is enough; `None` where it could not be measured.
    pub met: Option<bool>,
}

impl Bar {
    /// As an object.
    pub fn json(&self) -> Value {
        let Self { what, needed, got, met } = self;
        json!({ "what": what, "needed": needed, "got": got, "met": met })
    }
}

/// Lines over one axis.
#[derive(Debug, Clone)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// The lines: eight at most are told apart by colour.
    pub series: Vec<Series>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// Quantity and unit.
    pub label: String,
    /// Whether equal ratios have equal lengths; then only what is positive is drawn.
    pub log: bool,
}

impl Axis {
    /// An axis on which equal differences have equal lengths.
    pub fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), log: false }
    }

    /// An axis on which equal ratios have equal lengths.
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), log: true }
    }
}

/// Where figures come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureOrigin {
    /// A run of processes on this machine.
    Measured,
    /// A run in virtual time.
    Simulated,
    /// Somebody else's publication.
    Published,
}

impl FigureOrigin {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            FigureOrigin::Measured => "measured",
            FigureOrigin::Simulated => "simulated",
            FigureOrigin::Published => "published",
        }
    }
}

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its subject.
    pub name: String,
    /// Where its points come from.
    pub origin: FigureOrigin,
    /// Right and up, in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
}

/// Numbers in columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportTable {
    /// Its title.
    pub title: String,
    /// The heads of the columns.
    pub columns: Vec<String>,
    /// The rows, of as many cells.
    pub rows: Vec<Vec<String>>,
}

impl FigureReport {
    /// Whether every bar that could be measured is met.
    pub fn met(&self) -> bool {
        self.bars().all(|bar| bar.met != Some(false))
    }

    /// All bars.
    pub fn bars(&self) -> impl Iterator<Item = &Bar> {
        self.sections.iter().flat_map(|section| &section.bars)
    }

    /// As one page.
    pub fn html(&self) -> String {
        page::html(self)
    }

    /// As an object.
    pub fn json(&self) -> Value {
        let sections: Vec<Value> = self.sections.iter().map(ReportSection::json).collect();
        json!({ "title": self.title, "about": self.about, "sections": sections })
    }

    /// Makes the folder of a report, and sees that its files can be written.
    ///
    /// # Errors
    /// When one cannot.
    pub fn ready(path: &Path) -> io::Result<()> {
        if let Some(directory) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            fs::create_dir_all(directory)?;
        }
        for path in names(path) {
            let new = !path.exists();
            fs::OpenOptions::new().append(true).create(true).open(&path)?;
            if new {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Writes `path` with the extension `html`, and beside it `json`; gives both paths.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<[PathBuf; 2]> {
        Self::ready(path)?;
        let paths = names(path);
        fs::write(&paths[0], self.html())?;
        fs::write(&paths[1], format!("{:#}\n", self.json()))?;
        Ok(paths)
    }
}

/// The page of a report, and its JSON.
fn names(path: &Path) -> [PathBuf; 2] {
    ["html", "json"].map(|extension| path.with_extension(extension))
}

impl ReportSection {
    fn json(&self) -> Value {
        let series = |series: &Series| {
            let points: Vec<[f64; 2]> = series.points.iter().map(|&(x, y)| [x, y]).collect();
            json!({ "name": series.name, "origin": series.origin.name(), "points": points })
        };
        let plot = |plot: &Plot| {
            let lines: Vec<Value> = plot.series.iter().map(series).collect();
            json!({ "title": plot.title, "x": plot.x.label, "y": plot.y.label, "series": lines })
        };
        let table = |table: &ReportTable| {
            let ReportTable { title, columns, rows } = table;
            json!({ "title": title, "columns": columns, "rows": rows })
        };
        json!({
            "title": self.title,
            "text": self.text,
            "bars": self.bars.iter().map(Bar::json).collect::<Vec<_>>(),
            "plots": self.plots.iter().map(plot).collect::<Vec<_>>(),
            "tables": self.tables.iter().map(table).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> FigureReport {
        let line = |name: &str, origin, points: &[(f64, f64)]| Series {
            name: name.to_owned(),
            origin,
            points: points.to_vec(),
        };
        let plot = Plot {
            title: "throughput".into(),
            x: Axis::linear("instances"),
            y: Axis::log("tuples/s"),
            series: vec![
                line("tree & co", FigureOrigin::Measured, &[(8.0, 1e6), (480.0, 9e5)]),
                line("copies", FigureOrigin::Simulated, &[(8.0, 0.0), (240.0, 1e5), (480.0, 4e4)]),
            ],
        };
        let bar = Bar {
            what: "bytes".into(),
            needed: "< 10 %".into(),
            got: "12 %".into(),
            met: Some(false),
        };
        let table = ReportTable {
            title: "all".into(),
            columns: vec!["a".into(), "b".into()],
            rows: vec![vec!["1".into(), "<2>".into()]],
        };
        let section = ReportSection {
            title: "One to many".into(),
            text: vec!["As \"it\" is.".into()],
            bars: vec![bar],
            plots: vec![plot],
            tables: vec![table],
        };
        FigureReport {
            title: "Whale".into(),
            about: vec!["two cores".into()],
            sections: vec![section],
        }
    }

    #[test]
    fn a_page_shows_everything_and_escapes_it() {
        let html = report().html();
        for shown in
            ["Whale", "two cores", "tree &amp; co", "&lt;2&gt;", "not met", "stroke-dasharray"]
        {
            assert!(html.contains(shown), "{shown} in {html}");
        }
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        assert!(!report().met());
        // On a logarithmic axis zero has no place: two of three points are joined.
        assert_eq!(html.matches("<polyline").count(), 2);
        let dashed = html.split("<polyline").find(|part| part.contains("dasharray"));
        let points = dashed.and_then(|part| part.split("points=\"").nth(1));
        let points = points.and_then(|rest| rest.split('"').next()).unwrap_or_default();
        assert_eq!(points.split(' ').count(), 2, "{points}");
    }

    #[test]
    fn the_files_hold_the_same() {
        let directory =
            std::env::temp_dir().join(format!("millstream-report-{}", std::process::id()));
        let [html, json] = report().write(&directory.join("whale.html")).unwrap();
        assert_eq!(fs::read_to_string(html).unwrap(), report().html());
        let read: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
        assert_eq!(read, report().json());
        assert_eq!(read["sections"][0]["plots"][0]["series"][1]["origin"], "simulated");
        assert_eq!(read["sections"][0]["bars"][0]["met"], false);
        fs::remove_dir_all(directory).unwrap();
    }
}
