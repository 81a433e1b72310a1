//! The page of a report.

use super::{Bar, FigureOrigin, FigureReport, ReportSection, ReportTable, plot};

/// Colours for light and for dark, chosen to be told apart by everybody; a table for each drawing
/// says the same in numbers.
const STYLE: &str = include_str!("page.css");

/// The whole page.
pub(super) fn html(report: &FigureReport) -> String {
    let title = escape(&report.title);
    let about: String = report.about.iter().map(|text| paragraph("about", text)).collect();
    let sections: String = report.sections.iter().map(section).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n<h1>{title}</h1>\n{about}{}{sections}</html>\n",
        bars(report.bars(), "What was asked, and what came out")
    )
}

fn section(section: &ReportSection) -> String {
    let text: String = section.text.iter().map(|text| paragraph("text", text)).collect();
    let plots: String = section
        .plots
        .iter()
        .map(|of| {
            let key: String = of.series.iter().enumerate().map(|(at, s)| entry(at, s)).collect();
            format!(
                "<figure><figcaption>{}</figcaption>\n{}<div class=\"key\">{key}</div>\n\
                 <details><summary>in numbers</summary>{}</details></figure>\n",
                escape(&of.title),
                plot::svg(of),
                table(&plot::numbers(of))
            )
        })
        .collect();
    let plots =
        if plots.is_empty() { plots } else { format!("<div class=\"plots\">\n{plots}</div>\n") };
    let tables: String = section.tables.iter().map(table).collect();
    let bars = bars(section.bars.iter(), "");
    format!("<h2>{}</h2>\n{text}{bars}{plots}{tables}", escape(&section.title))
}

/// A line's entry below a drawing.
fn entry(at: usize, series: &super::Series) -> String {
    let origin = match series.origin {
        FigureOrigin::Measured => String::new(),
        other => format!(" ({})", other.name()),
    };
    format!(
        "<span><svg viewBox=\"0 0 26 10\">{}</svg>{}{origin}</span>",
        plot::sample(at, series.origin),
        escape(&series.name)
    )
}

fn bars<'a>(bars: impl Iterator<Item = &'a Bar>, title: &str) -> String {
    let row = |bar: &Bar| {
        let (class, word) = match bar.met {
            Some(true) => ("met", "met"),
            Some(false) => ("missed", "not met"),
            None => ("quiet", "not measured"),
        };
        let [what, needed, got] = [&bar.what, &bar.needed, &bar.got].map(|text| escape(text));
        format!(
            "<tr><td>{what}</td><td>{needed}</td><td>{got}</td><td class=\"{class}\">{word}</td>\
             </tr>\n"
        )
    };
    let rows: String = bars.map(row).collect();
    if rows.is_empty() {
        return rows;
    }
    format!(
        "<table><caption>{}</caption>\n<tr><th></th><th>asked</th><th>came out</th><th></th></tr>\n\
         {rows}</table>\n",
        escape(title)
    )
}

fn table(table: &ReportTable) -> String {
    let cells = |cells: &[String], tag: &str| {
        let cell = |text: &String| format!("<{tag}>{}</{tag}>", escape(text));
        format!("<tr>{}</tr>\n", cells.iter().map(cell).collect::<String>())
    };
    let rows: String = table.rows.iter().map(|row| cells(row, "td")).collect();
    format!(
        "<table><caption>{}</caption>\n{}{rows}</table>\n",
        escape(&table.title),
        cells(&table.columns, "th")
    )
}

fn paragraph(class: &str, text: &str) -> String {
    format!("<p class=\"{class}\">{}</p>\n", escape(text))
}

/// A text as it may stand between tags and in attributes.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
