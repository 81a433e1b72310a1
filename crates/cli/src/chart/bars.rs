//! Bars over texts: a line each, or one per series.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::data::Data;
use super::scale::number;
use super::{Look, mark};

/// Columns of a label at most, of the whole.
const LABEL_SHARE: usize = 3;

/// Draws them; the text ends with a line end.
pub(super) fn draw(data: &Data, look: Look) -> String {
    let labels: Vec<String> =
        data.labels.iter().map(|label| clip(label, look.width / LABEL_SHARE)).collect();
    let margin = labels.iter().map(|label| label.width()).max().unwrap_or(0);
    let values = || data.series.iter().flat_map(|series| series.points.iter().map(|(_, y)| *y));
    let low = values().fold(0.0, f64::min);
    let high = values().fold(0.0, f64::max);
    let numbers = values().map(|value| number(value).len()).max().unwrap_or(0);
    let width = look.width.saturating_sub(margin + numbers + 4).max(4);
    let mut out = String::new();
    if data.series.len() > 1 {
        let names = data.series.iter().enumerate().map(|(at, series)| {
            let sign = if look.color { '█' } else { mark(at, look.unicode) };
            format!("{} {}", look.paint(at, &sign.to_string()), series.name)
        });
        out += &names.collect::<Vec<_>>().join("  ");
        out.push('\n');
    }
    let axis = if look.unicode { "│" } else { "|" };
    for (row, label) in labels.iter().enumerate() {
        for (at, series) in data.series.iter().enumerate() {
            let label = if at == 0 { label.as_str() } else { "" };
            let blank = " ".repeat(margin - label.width());
            let point = series.points.iter().find(|(x, _)| *x == row as f64);
            let (bar, shown) = match point {
                None => (String::new(), "NULL".to_owned()),
                Some((_, value)) => {
                    let many = data.series.len() > 1 && !look.color;
                    let full = many.then(|| mark(at, look.unicode));
                    (bar(*value, low, high, width, look, full), number(*value))
                }
            };
            let bar = if bar.is_empty() { bar } else { look.paint(at, &bar) + " " };
            out += &format!("{label}{blank} {axis}{bar}{shown}\n");
        }
    }
    let more = data.rows.saturating_sub(labels.len() as u64);
    if more > 0 {
        out += &format!("and {} more that are not drawn\n", crate::human::counted(more, "row"));
    }
    out
}

/// From zero to the value, on a line of `width` characters that reaches from `low` to `high`.
fn bar(value: f64, low: f64, high: f64, width: usize, look: Look, full: Option<char>) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    // Halved, so that the greatest of floats does not overflow.
    let span = high / 2.0 - low / 2.0;
    let at = |v: f64| if span > 0.0 { (v / 2.0 - low / 2.0) / span * width as f64 } else { 0.0 };
    let (zero, end) = (at(0.0), at(value));
    let fine = look.unicode && full.is_none();
    let full = full.unwrap_or(if look.unicode { '█' } else { '#' }).to_string();
    if value < 0.0 {
        let (from, to) = (end.round() as usize, zero.round() as usize);
        return " ".repeat(from) + &full.repeat(to.saturating_sub(from));
    }
    let from = zero.round() as usize;
    let length = (end - zero).max(0.0);
    let (cells, eighths) = if fine {
        (length as usize, (length.fract() * 8.0) as usize)
    } else {
        (length.round() as usize, 0)
    };
    let bar = full.repeat(cells) + EIGHTHS[eighths];
    if bar.is_empty() { bar } else { " ".repeat(from) + &bar }
}

/// A text on one line, cut where it is too wide.
fn clip(text: &str, width_max: usize) -> String {
    let mut out = String::new();
    let mut width = 0;
    for c in text.chars().filter(|c| !c.is_control()) {
        width += c.width().unwrap_or(0);
        if width > width_max {
            out.push('~');
            break;
        }
        out.push(c);
    }
    out
}
